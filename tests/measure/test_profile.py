from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.errors import ConfigError, FolderError
from parformer.events import Preparing
from parformer.measure import profile as profile_module
from parformer.measure.device import Device, Receipt, describe_device
from parformer.measure.memory import peak_memory
from parformer.measure.models import Reader
from parformer.measure.prediction import CONSTANT
from parformer.measure.profile import BlockRange, Profile, Sizes, Spread, profile_device
from parformer.measure.readings import (
    REFERENCE,
    Reading,
    Readings,
    Step,
    measure_here,
    weights_bytes,
)
from parformer.measure.tables import reference_of, tables_of
from parformer.model import build
from parformer.pattern import BlockSpec

STEP = Step(tgt_len=16, mem_len=0, rounds=4)
DEVICE = describe_device(1)
WIDTHS, HEADS, INNER = tuple(range(16, 129, 16)), (2, 4), tuple(range(32, 513, 32))

Seconds = Callable[[ModelConfig], float]


def base(**changes: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "family": "gpt2",
        "pattern": "sf",
        "vocab_size": 300,
        "d_model": 32,
        "n_head": 4,
        "d_inner": 64,
        "max_len": 32,
    }
    return ModelConfig.from_dict(values | changes)


def sizes(**changes: Any) -> Sizes:
    values: dict[str, Any] = {
        "base": base(),
        "fields": {"d_model": WIDTHS},
        "blocks": (
            BlockRange(letter="s", options={"heads": HEADS}),
            BlockRange(letter="f", options={"inner": INNER}),
        ),
        "typical_bytes": 200_000,
        "step": STEP,
    }
    return Sizes(**values | changes)


def smooth(width: int, spec: BlockSpec) -> float:
    """A block's time that is a formula of its parameters."""
    if spec.letter == "f":
        inner = int(spec.options.get("inner", 64))
        return 0.1 + 1e-5 * (2 * width * inner + inner + 3 * width)
    return 0.0 if spec.letter == "i" else 0.2 + 1e-4 * (4 * width * width + 6 * width)


def rough(width: int, spec: BlockSpec) -> float:
    """A time with a character of its own at every size."""
    bump = sum(ord(letter) for letter in f"{width}{spec}") % 7
    return smooth(width, spec) * (1 + 0.05 * bump)


class Fake:
    """A machine whose times are known, and which remembers what it was asked."""

    def __init__(
        self,
        block: Callable[[int, BlockSpec], float] = smooth,
        *,
        whole: float = 1.0,
        noise: float = 0.0,
        device: Device = DEVICE,
    ) -> None:
        self.block, self.whole, self.noise, self.device = block, whole, noise, device
        self.asked: list[list[ModelConfig]] = []
        self.rng = np.random.default_rng(0)
        self.dies_at = math.inf

    @property
    def models(self) -> int:
        """Models measured so far, the reference left out."""
        return sum(map(len, self.asked))

    def ends(self, config: ModelConfig) -> float:
        words = config.vocab_size * config.embed_width / config.div_val
        return 0.05 + 1e-6 * words * (1 + 0.03 * (config.d_model % 5))

    def blocks(self, config: ModelConfig) -> float:
        real = config.vocab_size > 16 and len(config.pattern) > 1
        return sum(self.block(config.d_model, spec) for spec in config.pattern) * (
            self.whole if real else 1.0
        )

    def seconds(self, config: ModelConfig) -> float:
        return self.ends(config) + self.blocks(config)

    def __call__(
        self, configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
    ) -> Readings:
        if len(self.asked) + 1 >= self.dies_at:
            raise KeyboardInterrupt
        self.asked.append([config for name, config in configs.items() if name != REFERENCE])
        if progress is not None:
            progress("timing", 0.5)
        slow = self.rng.uniform(1, 1.5, step.rounds) if self.noise else np.ones(step.rounds)
        first = self.seconds(next(iter(configs.values())))
        readings = []
        for name, config in configs.items():
            jitter = np.exp(self.noise * self.rng.normal(size=step.rounds))
            samples = (self.seconds(config) * slow * jitter).tolist()
            weights, count = weights_bytes(config, step), len(config.pattern)
            readings.append(
                Reading.taken(
                    name, samples, samples[0] / first, weights + 1000 + 10 * count, weights
                )
            )
        receipt = replace(Receipt.issue("a test", threads=1), device=self.device)
        return Readings(readings=tuple(readings), receipt=receipt)


def candidate(rng: Random, like: ModelConfig | None = None) -> ModelConfig:
    blocks = [
        rng.choice([f"s[heads={rng.choice(HEADS)}]", f"f[inner={rng.choice(INNER)}]"])
        for _ in range(rng.randint(2, 12))
    ]
    like = base() if like is None else like
    return like.replaced(d_model=rng.choice(WIDTHS), pattern="".join(blocks))


def candidates(count: int, seed: int = 0) -> list[ModelConfig]:
    rng = Random(seed)
    return [candidate(rng) for _ in range(count)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """Of a machine without surprises."""
    return profile_device(sizes(), meter=Fake(), folder=tmp_path_factory.mktemp("plain"))


# Latency


def test_models_of_measured_sizes_are_predicted_exactly(tmp_path: Path) -> None:
    fake, space = Fake(rough), sizes()
    profile = profile_device(space, meter=fake, folder=tmp_path)
    _, attention, feed_forward = tables_of(space)
    nodes = feed_forward.axes[0]
    assert nodes == (16, 32, 64, 80, 128)
    for width in nodes:
        specs = [
            *(f"s[heads={heads}]" for heads in attention.axes[1]),
            *(f"f[inner={inner}]" for inner in feed_forward.axes[1]),
        ]
        config = base(d_model=width, pattern="".join(specs))
        assert profile.latency(config) == pytest.approx(fake.seconds(config), rel=1e-9)
    assert profile.reference_seconds == pytest.approx(fake.seconds(profile.reference))
    assert profile.error is None
    assert set(profile.weights.values()) == {0.0, 1.0}


def test_what_the_formula_explains_is_exact_in_between(plain: Profile) -> None:
    for config in candidates(30):
        blocks = plain.latency(config) - plain.parts(config)[0].seconds
        assert blocks == pytest.approx(Fake().blocks(config), rel=1e-6)


def test_what_the_formula_leaves_over_is_interpolated(tmp_path: Path) -> None:
    """A factor that rises with the width is neither parameters nor FLOPs."""

    def tilted(width: int, spec: BlockSpec) -> float:
        return smooth(width, spec) * (1 + width / 128)

    fake = Fake(tilted)
    profile = profile_device(sizes(), meter=fake, folder=tmp_path)
    for config in candidates(30):
        blocks = profile.latency(config) - profile.parts(config)[0].seconds
        assert blocks == pytest.approx(fake.blocks(config), rel=0.04)


def test_options_left_out_are_the_models_own_and_identity_is_free(plain: Profile) -> None:
    short = base(pattern="isfi", n_head=2, d_inner=96)
    said = base(pattern="s[heads=2]f[inner=96]")
    assert plain.latency(short) == plain.latency(said)
    assert plain.peak_bytes(short) == plain.peak_bytes(said)
    other = base(pattern="isfi", n_head=2, d_inner=64)
    assert plain.latency(other) < plain.latency(short)


def test_an_option_that_is_not_varied_is_as_in_the_base(tmp_path: Path) -> None:
    blocks = (BlockRange(letter="s"), BlockRange(letter="f", options={"inner": INNER}))
    profile = profile_device(sizes(blocks=blocks), meter=Fake(), folder=tmp_path)
    four = profile.latency(base(pattern="s[heads=4]"))
    assert profile.latency(base(pattern="s")) == four
    assert profile.latency(base(pattern="s[heads=4]", n_head=2)) == four
    with pytest.raises(ConfigError, match="heads 2 is outside 4 … 4"):
        profile.latency(base(pattern="s", n_head=2))


def test_words_and_flags_have_tables_of_their_own(tmp_path: Path) -> None:
    space = sizes(
        base=base(family="sru", positions="none"),
        blocks=(
            BlockRange(letter="a", options={"width": (8, 16), "norm": ("post", "off")}),
            BlockRange(letter="a", options={"width": (8, 16), "qkv": (True,)}),
            BlockRange(letter="i"),
            BlockRange(letter="r"),
        ),
    )
    fake = Fake(rough)
    profile = profile_device(space, meter=fake, folder=tmp_path)
    assert [(table.letter, dict(table.words)) for table in tables_of(space)] == [
        ("ends", {}),
        ("a", {"norm": "post"}),
        ("a", {"norm": "off"}),
        ("a", {"qkv": True}),
        ("r", {}),
    ]
    pattern = "a[width=16,norm=off] a[width=8,norm=post] a[width=8,qkv] r i"
    config = space.base.replaced(d_model=64, pattern=pattern)
    assert profile.latency(config) == pytest.approx(fake.seconds(config), rel=1e-9)
    with pytest.raises(ConfigError, match=r"block 'a\[width=8\]' .*: nothing of its kind"):
        profile.latency(config.replaced(pattern="a[width=8]"))


def test_a_synthesizer_is_profiled_by_its_kind_and_heads(tmp_path: Path) -> None:
    space = sizes(
        blocks=(
            BlockRange(letter="y"),
            BlockRange(letter="y", options={"random+vanilla": (True,), "heads": HEADS}),
            BlockRange(letter="f", options={"inner": INNER}),
        )
    )
    assert [(t.letter, dict(t.words), t.numbers) for t in tables_of(space)[1:3]] == [
        ("y", {}, ("heads",)),
        ("y", {"random+vanilla": True}, ("heads",)),
    ]
    fake = Fake(rough)
    profile = profile_device(space, meter=fake, folder=tmp_path)
    assert any(c.pattern[0] == BlockSpec("y", {"heads": 4}) for asked in fake.asked for c in asked)
    config = space.base.replaced(d_model=64, pattern="y[heads=4] y[random+vanilla,heads=2]")
    assert profile.latency(config) == pytest.approx(fake.seconds(config), rel=1e-9)
    assert profile.latency(config) == profile.latency(
        config.replaced(pattern="y y[random+vanilla,heads=2]")
    )
    with pytest.raises(ConfigError, match=r"block 'y\[random\]' .*: nothing of its kind"):
        profile.latency(config.replaced(pattern="y[random]"))


def test_bottlenecks_have_tables_by_their_inside(tmp_path: Path) -> None:
    options = {"width": (8, 16, 32), "feed": ("shared",)}
    blocks = tuple(BlockRange(letter=kind, options=options) for kind in ("<sf>", "<sff>"))
    space, fake = sizes(blocks=blocks), Fake(by_parameters)
    profile = profile_device(space, meter=fake, folder=tmp_path)
    assert [table.letter for table in tables_of(space)] == ["ends", "<sf>", "<sff>"]
    pattern = "<sf>[feed=shared,width=8] <sff>[feed=shared,width=32] <sff>[feed=shared,width=16]"
    config = base(pattern=pattern, d_model=64)
    assert profile.latency(config) == pytest.approx(fake.seconds(config), rel=1e-9)
    with pytest.raises(ConfigError, match=r"block '<sfff>\[.*: nothing of its kind"):
        profile.latency(base(pattern="<sfff>[feed=shared,width=16]", d_model=64))


def by_parameters(width: int, spec: BlockSpec) -> float:
    """A block's time that is a formula of its parameters, whatever it is."""
    config = base(pattern=str(spec), d_model=width)
    return 0.0 if spec.letter == "i" else 0.1 + 1e-5 * cost(config).blocks[0].cost.parameters


def test_the_embedding_may_vary_too(tmp_path: Path) -> None:
    adaptive = base(embedding="adaptive", cutoffs=(100, 200))
    genes = {"d_model": (32, 64, 128), "d_embed": (0, 16, 64), "div_val": (1, 2, 4)}
    space = sizes(base=adaptive, fields=genes)
    ends = [table for table in tables_of(space) if table.letter == "ends"]
    assert [table.words["div_val"] for table in ends] == [1, 2, 4]
    assert ends[0].names == ("d_model", "embed_width")
    assert ends[0].axes == ((32, 64, 128), (16, 32, 64, 128))
    fake = Fake(rough)
    profile = profile_device(space, meter=fake, folder=tmp_path)
    for d_embed, div_val in [(0, 1), (16, 2), (64, 4)]:
        config = adaptive.replaced(
            d_model=64, d_embed=d_embed, div_val=div_val, pattern="s[heads=2]"
        )
        assert profile.latency(config) == pytest.approx(fake.seconds(config), rel=1e-9)
    with pytest.raises(ConfigError, match="does not cover the embedding"):
        profile.latency(adaptive.replaced(d_model=64, d_embed=8, pattern="s[heads=2]"))


def test_noise_is_mostly_averaged_out(tmp_path: Path) -> None:
    fake = Fake(smooth, noise=0.1)
    space = sizes(step=replace(STEP, rounds=12))
    profile = profile_device(space, meter=fake, folder=tmp_path, whole=candidates(16))
    assert profile.error is not None
    assert profile.error.latency.median < 0.05
    true = [fake.seconds(config) for config in candidates(60, seed=5)]
    found = [profile.latency(config) for config in candidates(60, seed=5)]
    scale = np.median(np.array(found) / np.array(true))  # the reference has its noise as well
    assert Spread.of(found / scale, true).p90 < 0.04


# Whole models


def test_the_first_half_calibrates_and_the_second_half_reports(
    tmp_path: Path, plain: Profile
) -> None:
    fake = Fake(smooth, whole=1.2)
    models = candidates(16)
    profile = profile_device(sizes(), meter=fake, folder=tmp_path, whole=models)
    assert profile.error is not None
    assert profile.error.models == 8
    errors = [abs(profile.latency(c) / fake.seconds(c) - 1) for c in models[8:]]
    assert asdict(profile.error.latency) == pytest.approx(
        {"median": np.median(errors), "p90": np.quantile(errors, 0.9), "worst": max(errors)}
    )
    assert profile.error.latency.worst < 0.02
    assert max(abs(plain.latency(c) / fake.seconds(c) - 1) for c in models) > 0.1
    assert profile.weights["f"] == pytest.approx(1.2, abs=0.05)
    assert profile.weights["s"] == pytest.approx(1.2, abs=0.05)


def test_what_reports_has_no_part_in_the_weights(tmp_path: Path) -> None:
    models = candidates(8)
    others = [*models[:4], *candidates(4, seed=9)]
    one = profile_device(sizes(), meter=Fake(whole=1.2), folder=tmp_path, whole=models)
    two = profile_device(sizes(), meter=Fake(whole=1.2), folder=tmp_path, whole=others)
    assert one.weights == two.weights
    assert one.error != two.error


def test_weights_are_held_near_one(tmp_path: Path) -> None:
    """One model cannot tell what is wrong: not that only attention is, which it has most of."""
    only = base(d_model=64, pattern="(s[heads=4])x6 f[inner=64]")
    profile = profile_device(
        sizes(), meter=Fake(whole=1.1), folder=tmp_path, whole=[only, *candidates(1)]
    )
    assert 1.05 < profile.weights["s"] < 1.1
    assert profile.weights["f"] == pytest.approx(1, abs=0.02)
    assert 0 <= profile.weights[CONSTANT] < 0.05
    assert profile.latency(only) == pytest.approx(Fake(whole=1.1).seconds(only), rel=0.02)


def test_a_single_whole_model_reports(tmp_path: Path) -> None:
    profile = profile_device(sizes(), meter=Fake(), folder=tmp_path, whole=candidates(1))
    assert profile.error is not None
    assert profile.error.models == 1
    assert profile.weights["s"] == 1.0


# Memory


def count_memory(
    configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
) -> Readings:
    """Real memory, without the trouble of taking times."""
    readings = []
    for name, config in configs.items():
        reader = Reader(build(config), step.shape(config))
        reader()
        memory = peak_memory(reader, resident=list(reader.resident()))
        samples = [float(len(config.pattern))] * step.rounds
        readings.append(Reading.taken(name, samples, 1.0, memory.peak_bytes, memory.resident_bytes))
    return Readings(readings=tuple(readings), receipt=Receipt.issue("a test", threads=1))


SF = ("s[heads=2]", "s[heads=4]", "f[inner=32]", "f[inner=100]", "f[inner=256]")
LF = ("l[kernel=3]", "l[kernel=7]", "l[kernel=15]", "f[inner=256]")
RA = ("r[width=8]", "r[width=12]", "a[width=16]", "a[width=20]", "f[inner=64]")


@pytest.mark.parametrize(
    ("model", "step", "specs"),
    [
        ({"family": "transformer-xl", "position_bias": "per-layer"}, {}, SF),
        ({"family": "transformer-xl", "position_bias": "per-layer", "mem_len": 24}, {}, SF),
        ({"family": "transformer-xl", "mem_len": 24}, {"tgt_len": 1, "batch": 2}, SF),
        ({"family": "gpt2", "max_len": 32}, {}, SF),
        ({"family": "gpt2", "max_len": 32}, {"mem_len": 8}, SF),
        ({"family": "llama", "max_len": 32, "n_kv_head": 2}, {}, SF),
        ({"family": "sru", "mem_len": 16}, {}, RA),
        ({"family": "lite", "max_len": 32}, {}, LF),
        ({"family": "transformer-xl", "mem_len": 24}, {"tgt_len": 1}, LF),
    ],
    ids=[
        "xl",
        "xl with memory",
        "xl one token",
        "gpt2",
        "gpt2 with memory",
        "llama",
        "sru",
        "lite",
        "xl near",
    ],
)
def test_peak_memory_is_that_of_the_real_model(
    tmp_path: Path, model: dict[str, Any], step: dict[str, Any], specs: tuple[str, ...]
) -> None:
    kind = base(**{"max_len": 0, "vocab_size": 60, **model})
    ranges = (
        BlockRange(letter="s", options={"heads": HEADS}),
        BlockRange(letter="f", options={"inner": (32, 256)}),
        BlockRange(letter="r", options={"width": (8, 24)}),
        BlockRange(letter="a", options={"width": (8, 24)}),
        BlockRange(letter="l", options={"kernel": (3, 7, 15)}),
    )
    letters = {spec[0] for spec in specs}
    rng = Random(3)
    whole = [
        kind.replaced(
            d_model=rng.choice((16, 24, 32)),
            pattern="".join(rng.choice(specs) for _ in range(rng.randint(3, 8))),
        )
        for _ in range(5)
    ]
    space = sizes(
        base=kind,
        fields={"d_model": (16, 32)},
        blocks=tuple(each for each in ranges if each.letter in letters),
        typical_bytes=6_000,
        step=Step(**{"tgt_len": 16, "rounds": 2, **step}),
    )
    profile = profile_device(space, meter=count_memory, folder=tmp_path, whole=whole)
    for config in whole:
        peak = count_memory({"it": config}, space.step)["it"].peak_bytes
        assert profile.peak_bytes(config) == pytest.approx(peak, rel=0.01)
    assert profile.error is not None
    assert profile.error.memory.worst < 0.01


def test_peak_memory_is_exact_at_the_nodes(tmp_path: Path) -> None:
    kind = base(family="transformer-xl", position_bias="per-layer", max_len=0, mem_len=24)
    space = sizes(
        base=kind,
        fields={"d_model": (16, 32)},
        blocks=(
            BlockRange(letter="s", options={"heads": HEADS}),
            BlockRange(letter="f", options={"inner": (32, 512)}),
        ),
        step=Step(tgt_len=16, rounds=2),
    )
    profile = profile_device(space, meter=count_memory, folder=tmp_path)
    for pattern in (
        "s[heads=4]",
        "f[inner=512] s[heads=2] f[inner=512]",  # the mask lives on through the feed-forward
        "(s[heads=2]f[inner=32])x4",
        "(f[inner=32])x3 i",
    ):
        config = kind.replaced(d_model=16, pattern=pattern)
        peak = count_memory({"it": config}, space.step)["it"].peak_bytes
        assert profile.peak_bytes(config) == peak, pattern


# What is measured


def test_no_candidate_touches_a_node_that_was_not_measured() -> None:
    space = sizes(inner_ratio=2.0, fields={"d_model": range(16, 257, 16)})
    full = sizes(fields=space.fields)
    (_, _, table), (_, _, all_of_it) = tables_of(space), tables_of(full)
    assert table.axes == all_of_it.axes
    assert len(table.places) < len(all_of_it.places)
    measured = set(table.places)
    widths, inners = table.axes
    for width in space.fields["d_model"]:
        for inner in (inner for inner in INNER if inner >= 2 * width):
            for i, low in enumerate(widths):
                for j, small in enumerate(inners):
                    beside = (
                        abs(bisect(widths, width) - i) < 1 and abs(bisect(inners, inner) - j) < 1
                    )
                    if beside or (low, small) == (width, inner):
                        assert (i, j) in measured, (width, inner, low, small)


def bisect(axis: tuple[int, ...], value: int) -> float:
    """Where a value stands among the nodes, in nodes."""
    return float(np.interp(value, axis, range(len(axis))))


def test_what_cannot_be_built_is_left_out() -> None:
    space = sizes(
        fields={"d_model": (16, 18, 20)},
        blocks=(BlockRange(letter="s", options={"heads": (1, 4)}),),
    )
    ends, table = tables_of(space)
    assert len(ends.places) == 3
    assert set(table.places) == {(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)}
    with pytest.raises(ConfigError, match="no size of the block 's' can be built: 19 heads"):
        tables_of(sizes(blocks=(BlockRange(letter="s", options={"heads": (19, 17)}),)))


def test_all_blocks_of_a_kind_are_in_the_reference() -> None:
    space = sizes()
    reference = reference_of(space, tables_of(space))
    assert set(reference.pattern.letters) == {"s", "f"}
    assert reference.vocab_size == 16
    assert weights_bytes(reference, STEP) >= space.typical_bytes
    with pytest.raises(ConfigError, match="at least one block that does something"):
        reference_of(space, tables_of(sizes(blocks=(BlockRange(letter="i"),))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fields": {}}, "need values of d_model"),
        ({"fields": {"d_model": ()}}, "need values of d_model"),
        ({"fields": {"d_model": (0, 64)}}, "values of d_model must be positive"),
        ({"fields": {"d_model": (64,), "div_val": ()}}, "values of div_val must be positive"),
        ({"fields": {"d_model": (64,), "width": (1,)}}, "unknown size 'width'"),
        ({"typical_bytes": 0}, "typical_bytes must be at least 1"),
        ({"step": Step(tgt_len=64)}, "exceed the window"),
    ],
)
def test_sizes_check_themselves(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sizes(**changes)


def test_ranges_check_themselves() -> None:
    with pytest.raises(ConfigError, match="option 'heads' of block 's' has no values"):
        BlockRange(letter="s", options={"heads": ()})
    with pytest.raises(ConfigError, match="unknown option 'inner' in"):
        BlockRange(letter="s", options={"inner": (3,)})


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 256}, "d_model 256 is outside 16 … 128"),
        ({"pattern": "f[inner=4096]"}, r"block 'f\[inner=4096\]' of a model 32 wide: inner 4096"),
        ({"pattern": "s[heads=2]f[inner=16]"}, "inner 16 is outside 32 … 512"),
        ({"pattern": "s[heads=4,head=3]"}, "nothing of its kind was measured"),
        ({"pattern": "rf"}, "does not cover block 'r'"),
        ({"vocab_size": 301}, "of models with vocab_size 300, got 301"),
        ({"activation": "relu"}, "of models with activation 'gelu-tanh', got 'relu'"),
    ],
)
def test_a_model_that_is_not_covered_is_refused(
    tmp_path: Path, plain: Profile, changes: dict[str, Any], message: str
) -> None:
    config = base().replaced(**changes)
    for predict in (plain.latency, plain.peak_bytes):
        with pytest.raises(ConfigError, match=message):
            predict(config)
    fake = Fake()
    with pytest.raises(ConfigError, match=message):
        profile_device(sizes(), meter=fake, folder=tmp_path / "new", whole=[config])
    assert fake.asked == []  # it is refused before anything is measured


def test_what_only_training_feels_is_not_looked_at(plain: Profile) -> None:
    config = base(pattern="s[heads=2]")
    trained = config.replaced(dropout=0.3, dropatt=0.1, init_std=0.5, tgt_len=7)
    assert plain.latency(trained) == plain.latency(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cpu": "Abacus 3"}, "the CPU is .* and here it is 'Abacus 3'; .* --again"),
        ({"threads": 9}, "the number of threads is 1, and here it is 9"),
        ({"torch": "99.0"}, "torch is .* and here it is '99.0'"),
    ],
)
def test_a_profile_does_not_speak_for_another_machine(
    tmp_path: Path, plain: Profile, changes: dict[str, Any], message: str
) -> None:
    plain.refuse_elsewhere()
    other = replace(DEVICE, **changes)
    with pytest.raises(ConfigError, match=message):
        plain.refuse_elsewhere(other)
    stranger = Fake(device=other)
    with pytest.raises(ConfigError, match="this was measured where"):
        profile_device(sizes(), meter=stranger, folder=tmp_path / "new")


def test_another_machine_may_measure(tmp_path: Path) -> None:
    other = replace(DEVICE, cpu="Abacus 3")
    stranger, own = Fake(device=other), Fake()
    far = profile_device(sizes(), meter=stranger, device=other, folder=tmp_path)
    far.refuse_elsewhere(other)
    profile_device(sizes(), meter=own, folder=tmp_path)
    assert own.models == stranger.models
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


def test_a_meter_that_leaves_a_model_out_is_refused(tmp_path: Path) -> None:
    def forgetful(
        configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
    ) -> Readings:
        given = Fake()(configs, step)
        return replace(given, readings=given.readings[:-1])

    with pytest.raises(ConfigError, match="was measured; there are"):
        profile_device(sizes(), meter=forgetful, folder=tmp_path)


# What is kept


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "BATCH_BYTES", 1_500_000)


def measured(fake: Fake) -> list[str]:
    return [json.dumps(config.to_dict()) for batch in fake.asked for config in batch]


def test_nothing_is_measured_twice(tmp_path: Path) -> None:
    first, second, third = Fake(rough), Fake(rough), Fake(rough)
    one = profile_device(sizes(), meter=first, folder=tmp_path)
    two = profile_device(sizes(), meter=second, folder=tmp_path)
    assert len(set(measured(first))) == first.models > 40
    assert second.asked == []
    assert one == two
    profile_device(sizes(), meter=third, folder=tmp_path, again=True)
    assert third.models == first.models


def test_what_only_training_feels_needs_no_measuring(tmp_path: Path) -> None:
    profile_device(sizes(), meter=Fake(), folder=tmp_path)
    fake = Fake()
    profile_device(sizes(base=base(dropout=0.5, init_std=0.1)), meter=fake, folder=tmp_path)
    assert fake.asked == []


def test_other_whole_models_are_all_that_is_new(tmp_path: Path) -> None:
    profile_device(sizes(), meter=Fake(), folder=tmp_path, whole=candidates(4))
    fake = Fake()
    profile_device(sizes(), meter=fake, folder=tmp_path, whole=candidates(6))
    assert len(fake.asked) == 1
    assert set(measured(fake)) == {json.dumps(c.to_dict()) for c in candidates(6)[4:]}


def test_the_usual_folder_is_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path))
    profile_device(sizes(), meter=Fake())
    assert len(list((tmp_path / "profiles").glob("*.jsonl"))) == 1


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("dies_at", [1, 2, 5])
def test_a_killed_profile_goes_on_where_it_was(tmp_path: Path, dies_at: int) -> None:
    whole = candidates(4)
    one, two, all_at_once = Fake(rough), Fake(rough), Fake(rough)
    straight = profile_device(sizes(), meter=all_at_once, folder=tmp_path / "a", whole=whole)
    assert len(all_at_once.asked) > 6
    one.dies_at = dies_at
    with pytest.raises(KeyboardInterrupt):
        profile_device(sizes(), meter=one, folder=tmp_path / "c", whole=whole)
    profile = profile_device(sizes(), meter=two, folder=tmp_path / "c", whole=whole)
    assert len(one.asked) == dies_at - 1
    assert sorted(measured(one) + measured(two)) == sorted(measured(all_at_once))
    for config in whole:
        assert profile.latency(config) == pytest.approx(straight.latency(config))


@pytest.mark.usefixtures("small_batches")
def test_a_torn_tail_is_cut_off_and_a_spoilt_line_measured_again(tmp_path: Path) -> None:
    whole, first = candidates(4), Fake(rough)
    straight = profile_device(sizes(), meter=first, folder=tmp_path, whole=whole)
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == len(first.asked)

    file.write_bytes(b"".join(lines[:-1]) + lines[-1][:100])
    torn = Fake(rough)
    again = profile_device(sizes(), meter=torn, folder=tmp_path, whole=whole)
    assert torn.models == len(first.asked[-1])
    assert file.read_bytes().splitlines(keepends=True)[:-1] == lines[:-1]
    assert again == replace(straight, receipt=again.receipt)
    mended = Fake(rough)
    profile_device(sizes(), meter=mended, folder=tmp_path, whole=whole)
    assert mended.asked == []

    for spoilt in (b"\xff\x00\n", b"[]\n", b"17\n", b'{"readings": []}\n', lines[1][:50] + b"\n"):
        file.write_bytes(lines[0] + spoilt + b"".join(lines[2:]))
        mending = Fake(rough)
        again = profile_device(sizes(), meter=mending, folder=tmp_path, whole=whole)
        assert mending.models == len(first.asked[1])
        for config in whole:
            assert again.latency(config) == pytest.approx(straight.latency(config))


def test_lines_of_another_machine_are_not_believed(tmp_path: Path) -> None:
    first = Fake()
    profile_device(sizes(), meter=first, folder=tmp_path)
    (file,) = tmp_path.glob("*.jsonl")
    file.write_text(file.read_text().replace(f'"torch":"{DEVICE.torch}"', '"torch":"99.0"'))
    second = Fake()
    profile_device(sizes(), meter=second, folder=tmp_path)
    assert second.models == first.models


def test_a_folder_that_cannot_be_written_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FolderError, match=r"cannot use .*file"):
        profile_device(sizes(), meter=Fake(), folder=tmp_path / "file" / "profiles")


def test_a_profile_survives_json(tmp_path: Path) -> None:
    whole = candidates(6)
    profile = profile_device(sizes(), meter=Fake(rough, noise=0.02), folder=tmp_path, whole=whole)
    again = Profile.from_dict(json.loads(json.dumps(profile.to_dict())))
    assert again == profile
    for config in candidates(10, seed=4):
        assert again.latency(config) == profile.latency(config)
        assert again.peak_bytes(config) == profile.peak_bytes(config)
    assert "16 tokens" in profile.receipt.what


@pytest.mark.parametrize("name", ["base", "priced", "weights", "receipt", "error"])
def test_a_broken_profile_is_refused(plain: Profile, name: str) -> None:
    values = plain.to_dict()
    lacking = {n: v for n, v in values.items() if n != name or name == "error"}
    for broken in ({**values, name: 7}, lacking | ({"step": 7} if name == "error" else {})):
        with pytest.raises(FolderError, match="the stored profile is broken"):
            Profile.from_dict(broken)


@pytest.mark.usefixtures("small_batches")
def test_progress_goes_from_nought_to_one(tmp_path: Path) -> None:
    told: list[float] = []
    profile_device(
        sizes(),
        meter=Fake(),
        folder=tmp_path,
        whole=candidates(4),
        progress=lambda what, share: told.append(share),
    )
    assert told == sorted(told)
    assert 0 < told[0] < 0.2
    assert told[-1] == pytest.approx(1)
    assert len(told) > 6


def test_a_real_profile_of_a_tiny_space(tmp_path: Path) -> None:
    space = sizes(
        fields={"d_model": (16,)},
        blocks=(BlockRange(letter="f", options={"inner": (32, 64)}),),
        typical_bytes=10_000,
        step=Step(tgt_len=4, mem_len=0, rounds=1),
    )
    whole = [base(d_model=16, pattern="f[inner=48]f[inner=64]", vocab_size=300)]
    profile = profile_device(space, meter=measure_here, folder=tmp_path, whole=whole)
    assert profile.latency(whole[0]) > 0
    assert profile.error is not None
    assert profile.error.memory.worst == 0
    profile.refuse_elsewhere()
