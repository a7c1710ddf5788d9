"""Is the price what the papers print, and what the built model really has and does?"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from parformer.blocks import BLOCKS, Cost
from parformer.blocks.sru import Recurrent
from parformer.config import FAMILIES, ModelConfig, preset, presets
from parformer.costs import ModelCost, cost
from parformer.embedding import token_shares
from parformer.errors import ConfigError
from parformer.model import Model, State, build, count_parameters
from parformer.pattern import BlockSpec
from tests.conftest import CountFlops, small_config

PUBLISHED = {
    "transformer-xl-base": 191_950_298,
    "sandwich-base": 191_950_298,
    "par-base": 199_840_218,
    "transformer-xl-large": 285_167_482,
    "sandwich-large": 285_167_482,
    "par-large": 319_826_810,
    "transformer-xl-24b-enwik8": 41_055_436,
    "sandwich-24b-enwik8": 41_055_436,
    "par-24b-enwik8": 46_578_380,
    "transformer-xl-24b-text8": 40_964_635,
    "sandwich-24b-text8": 40_964_635,
    "par-24b-text8": 46_487_579,
    "bert-base": 109_482_240,
    "par-bert-base": 126_002_688,
    "distilbert": 66_362_880,
    "bert-large": 335_141_888,
    "albert-base": 11_683_584,
    "albert-large": 17_683_968,
    "albert-xlarge": 58_724_864,
    "albert-xxlarge": 222_595_584,
    "mobilebert": 24_581_888,
    "mobilebert-tiny": 15_485_696,
    "ib-bert-large": 294_467_840,
    "gpt2-small": 124_439_808,
    "opt-350m-shape": 331_196_416,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_published_number_of_parameters(name: str) -> None:
    assert cost(preset(name)).parameters == PUBLISHED[name]


PRETRAINED = {"head": "masked", "pair_head": "order"}


@pytest.mark.parametrize(
    ("name", "changes", "parameters"),
    [
        ("bert-base", {"head": "masked", "pooler": False}, 109_514_298),
        ("distilbert", {"head": "masked"}, 66_985_530),
        ("bert-large", {"pooler": False}, 334_092_288),
        ("albert-base", PRETRAINED, 11_813_810),
        ("albert-large", PRETRAINED, 17_847_474),
        ("albert-xlarge", PRETRAINED, 59_021_490),
        ("albert-xxlarge", PRETRAINED, 223_158_450),
        ("albert-base", {"pattern": "(sf)x12"}, 89_650_176),
        ("albert-base", {"pattern": "{sfsf}x12"}, 18_771_456),
        ("mobilebert", {"pool": "dense"}, 24_844_544),
        ("mobilebert", {"head": "masked", "pair_head": "next"}, 36_597_564),
        ("mobilebert", {"head": "masked", "pair_head": "next", "pool": "dense"}, 36_860_220),
        ("mobilebert", {"pattern": "<sffff>[feed=outside]x24"}, 25_359_104),
        ("mobilebert-tiny", {"pool": "dense"}, 15_748_352),
        ("ib-bert-large", {"pool": "first"}, 294_205_184),
        (
            "transformer-xl-24b-enwik8",
            {"pattern": "(sf)x24", "d_model": 1024, "d_inner": 3072},
            277_231_820,
        ),
        (
            "transformer-xl-base",
            {"d_model": 410, "n_head": 10, "d_inner": 2100, "cutoffs": [20000, 40000, 200000]},
            151_107_538,
        ),
    ],
)
def test_variants_that_others_have_counted_agree(
    name: str, changes: dict[str, Any], parameters: int
) -> None:
    assert cost(preset(name, **changes)).parameters == parameters


with (Path(__file__).parent / "oracles" / "lts_tables.csv").open() as file:
    LTS = list(csv.DictReader(file))


@pytest.mark.parametrize("row", LTS, ids=lambda row: f"Table {row['table']} {row['name']}")
def test_every_row_of_lite_transformer_search_prices_as_printed(row: dict[str, str]) -> None:
    """Decoder parameters in millions, to the last printed digit."""
    sizes = zip(row["heads"].split(), row["inner"].split(), strict=True)
    pattern = "".join(f"s[heads={heads}]f[inner={inner}]" for heads, inner in sizes)
    d_model = int(row["d_model"])
    config = preset(f"lts-{row['family']}", pattern=pattern, d_model=d_model)
    parameters = cost(config).decoder_parameters
    if row["table"] == "3":
        parameters += 2048 * d_model  # this table counts learned positions as well
    digits = len(row["printed_millions"].partition(".")[2])
    # The tables round halves either way, so a printed digit is right within half of it.
    assert abs(parameters / 1e6 - float(row["printed_millions"])) <= 0.5 * 10**-digits


def test_the_tables_are_all_there() -> None:
    tables = Counter(row["table"] for row in LTS)
    assert tables == {"3": 21, "4": 71, "5": 37, "6": 37, "7": 75}


def test_blocks_of_the_base_models_cost_what_was_derived_by_hand() -> None:
    """Queries of 64 tokens, keys, values and distances of 704, three products, one output."""
    price = cost(preset("transformer-xl-base"), tgt_len=64, mem_len=640)
    d, time, keys = 512, 64, 704
    attention, feed_forward = price.blocks[0].cost, price.blocks[1].cost
    assert attention.flops == 2 * (2 * time * d * d + 3 * keys * d * d + 3 * time * keys * d)
    assert attention.flops / 1e9 == pytest.approx(1.3128, abs=5e-5)
    assert feed_forward.flops / 1e9 == pytest.approx(0.2684, abs=5e-5)
    assert attention.parameters == 1_311_744
    assert feed_forward.parameters == 2_100_736
    assert attention.state_bytes == 640 * 2 * d * 4
    assert [row.block for row in price.blocks] == ["s", "f"] * 16


@pytest.mark.parametrize(
    ("name", "published"), [("transformer-xl-base", 27), ("sandwich-base", 27), ("par-base", 17)]
)
def test_published_gigaflops_come_out(name: str, published: int) -> None:
    flops = cost(preset(name), tgt_len=64, mem_len=640).flops
    assert round(flops / 1e9) == published
    assert abs(flops / 1e9 - published) < 0.6


@st.composite
def patterns(draw: st.DrawFn, *, free_heads: bool, causal: bool) -> str:
    """A few blocks of every kind, some with sizes of their own."""
    heads = st.sampled_from([1, 2])
    recurrent = {c for c, cls in BLOCKS.items() if issubclass(cls, Recurrent)}
    choices = [
        st.sampled_from(sorted(BLOCKS.keys() - {"c"} - (set() if causal else recurrent))),
        st.builds("f[inner={}]".format, st.integers(1, 20)),
        st.sampled_from(["s[share=a]", "f[share=b]"]),
    ]
    if causal:
        choices += [
            st.sampled_from(["r[full]", "r[norm=off]", "a[qkv]", "a[norm=pre]"]),
            st.builds("r[width={}]".format, st.integers(1, 9)),
            st.builds("a[heads={},width=4]".format, heads),
        ]
    if free_heads:
        choices += [
            st.builds("s[heads={},head={}]".format, heads, st.sampled_from([2, 6])),
            st.builds("s[kv_heads=1,heads={}]".format, heads),
        ]
    blocks = st.lists(st.one_of(choices), min_size=1, max_size=3).map("".join)
    shared = st.builds("{{{}}}x{}".format, blocks, st.integers(1, 3))
    # in a narrow stream a name would stand for another width
    narrow = blocks.map(lambda text: f"<{text.replace('share=', 'share=n')}>")
    feeds = st.sampled_from(
        ["feed=inside", "feed=shared", "feed=outside", "feed=shared,width=8", "wide,width=16"]
    )
    fed = st.builds("<s{}>[{}]".format, blocks.filter(lambda text: "share" not in text), feeds)
    narrow = st.one_of(narrow, fed)
    nested = st.one_of(shared, narrow, narrow.map(lambda text: f"{{{text}f}}x2"))
    return "".join(draw(st.lists(st.one_of(*choices, nested), min_size=1, max_size=4)))


@st.composite
def embeddings(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["plain", "factorized", "adaptive"]))
    values: dict[str, Any] = {"embedding": kind, "vocab_size": draw(st.integers(20, 40))}
    if kind != "plain":
        values["d_embed"] = draw(st.sampled_from([0, 5, 8, 11]))
        values["projection_bias"] = draw(st.booleans())
    if kind == "adaptive":
        edges = st.lists(st.integers(1, 19), max_size=3, unique=True)
        values["cutoffs"] = tuple(sorted(draw(edges)))
        room = values["d_embed"] or 8
        fitting = [n for n in (1, 2, 4) if room // n ** len(values["cutoffs"])]
        values["div_val"] = draw(st.sampled_from(fitting))
    values["tie_weights"] = draw(st.booleans())
    values["tie_projections"] = draw(st.sampled_from(["all", "tails", "none"]))
    return values


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Any valid configuration of any family, small enough to be built at once."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    causal = FAMILIES[family]["causal"]
    values: dict[str, Any] = draw(embeddings()) | {"d_model": 8, "n_head": 2, "max_len": 80}
    values["positions"] = draw(st.sampled_from(["learned", "rotary", "none", "relative"]))
    values["position_bias"] = draw(st.sampled_from(["shared", "per-layer"]))
    shared = values["positions"] == "relative" and values["position_bias"] == "shared"
    values["pattern"] = draw(patterns(free_heads=not shared, causal=bool(causal)))
    values["d_bottleneck"] = 8 if values["positions"] == "rotary" else 4  # for even heads of l
    if causal and draw(st.booleans()):
        encoder = draw(patterns(free_heads=not shared, causal=False)).replace("share=", "share=e")
        values["pattern"] = f"{encoder} | {values['pattern']} c {{cf}}x2"
    values["d_inner"] = draw(st.integers(1, 20))
    values["d_head"] = draw(st.sampled_from([0, 6])) if shared else 0
    values["n_kv_head"] = draw(st.sampled_from([0, 1]))
    heads = ["lm", "none"]
    if not causal and values["embedding"] != "adaptive":
        heads.append("masked")
    values["head"] = draw(st.sampled_from(heads))
    values["norm"] = draw(st.sampled_from(["pre", "post"]))
    values["norm_type"] = draw(st.sampled_from(["layer", "rms", "affine"]))
    single = values["embedding"] != "adaptive"
    values["narrow_positions"] = single and draw(st.booleans())
    values["trigrams"] = "none"
    reused = values["head"] == "lm" and values["tie_projections"] == "all"
    if single and not (causal or values["narrow_positions"] or reused):
        values["trigrams"] = draw(st.sampled_from(["none", "tokens", "all"]))
    values["pool"] = draw(st.sampled_from(["dense", "first"]))
    values["wide_head"] = draw(st.booleans())
    values["token_types"] = draw(st.sampled_from([0, 2]))
    for name in (
        "final_norm",
        "gated",
        "attention_bias",
        "feed_forward_bias",
        "embedding_norm",
        "output_bias",
        "pooler",
    ):
        values[name] = draw(st.booleans())
    if values["pooler"]:
        values["pair_head"] = draw(st.sampled_from(["none", "next", "order"]))
    return small_config(family, **values)


@given(config=configs())
@settings(max_examples=150)
def test_the_price_of_any_model_is_what_gets_built(config: ModelConfig) -> None:
    price, model = cost(config), build(config)
    shared = set(model.embedding.parameters())
    parts = (model.head, model.pooler, model.pair_head)
    rest = [part for part in parts if part is not None]
    own = {p for part in rest for p in part.parameters()} - shared
    assert price.parameters == count_parameters(model)
    assert price.embedding_parameters == count_parameters(model.embedding)
    assert price.head_parameters == sum(p.numel() for p in own)
    assert price.decoder_parameters == sum(
        p.numel() for p in set(model.parameters()) - shared - own
    )
    before = set(model.encoder.parameters()) if model.encoder is not None else set()
    for row, block in zip(price.blocks, model.blocks, strict=True):
        own = set(block.parameters()) - before
        assert row.cost.parameters == sum(p.numel() for p in own)
        before |= own


def typical_tokens(config: ModelConfig, batch: int, time: int) -> Tensor:
    """Tokens of which just the share that prices assume falls into each rare cluster."""
    tokens = torch.arange(batch * time) % config.clusters[0].size
    at = 0
    for cluster, share in zip(config.clusters[1:], token_shares(config)[1:], strict=True):
        count = int(batch * time * share)
        assert count == batch * time * share > 0
        tokens[at : at + count] = cluster.low
        at += count
    return tokens.view(batch, time)


SOURCE = 32


def source_of(config: ModelConfig, batch: int) -> Tensor | None:
    return None if config.source is None else typical_tokens(config, batch, SOURCE)


def remembered(model: Model, batch: int, past: int, memory: int) -> State | None:
    """A state after `past` tokens, with nothing left that only a first step does."""
    if past == 0:
        return None
    tokens, source = torch.zeros(batch, past, dtype=torch.int64), source_of(model.config, batch)
    state = model(tokens, model.initial_state(batch, memory), source=source).state
    if model.config.positions == "relative":
        state = model(tokens, state, source=source).state
    return state


@given(config=configs(), past=st.sampled_from([0, 1, 16]))
@settings(max_examples=80)
def test_the_price_of_any_step_is_what_gets_multiplied(config: ModelConfig, past: int) -> None:
    """Training with its memory projected again, inference with its memory kept."""
    past, batch, time = past if config.causal else 0, 16, 32
    length = None if config.source is None else SOURCE
    price = cost(config, tgt_len=time, mem_len=past, batch=batch, src_len=length)
    model = build(config)
    tokens = typical_tokens(config, batch, time)
    targets = None if config.head == "none" else tokens
    for training, flops in ((True, price.flops), (False, price.flops_cached)):
        model.train(training)
        with torch.set_grad_enabled(training):
            state = remembered(model, batch, past, past)
            source = source_of(config, batch) if training or not past else None
            with CountFlops() as counted:
                model(tokens, state, targets=targets, source=source)
        # A first step without a past projects its distances and reads the source; later ones
        # have them. One that sees both sides has no later ones.
        first = config.causal and config.positions == "relative"
        if training or past or not (first or config.source):
            assert counted.flops == flops


@given(config=configs(), batch=st.sampled_from([1, 3]), past=st.sampled_from([1, 16]))
@settings(max_examples=50)
def test_the_price_of_any_state_is_what_gets_kept(
    config: ModelConfig, batch: int, past: int
) -> None:
    """Once the memory is full: the whole window, where a window bounds it."""
    if not config.causal:
        assert cost(config).state_bytes == 0
        return
    batch = batch if config.source is None else 16
    length = None if config.source is None else SOURCE
    price = cost(config, mem_len=past, tgt_len=4, batch=batch, src_len=length)
    model, source = build(config), source_of(config, batch)
    memory = past if config.positions in ("relative", "none") else config.max_len
    state = model.initial_state(batch, memory)
    with torch.no_grad():
        for _ in range(2 + memory // 16):
            state = model(torch.zeros(batch, 16, dtype=torch.int64), state, source=source).state
            # past a window all of it is read again, the source too
            source = source if config.positions == "learned" else None
    assert state.bytes == price.state_bytes
    if config.positions in ("relative", "none"):
        empty = cost(config, mem_len=0, tgt_len=4, batch=batch, src_len=length)
        kept = price.state_bytes_per_token * batch * memory
        assert price.state_bytes - empty.state_bytes == kept


@pytest.mark.parametrize("name", presets())
def test_pricing_builds_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: nn.Module, *args: object, **more: object) -> None:
        raise AssertionError(f"{type(self).__name__} was built")

    monkeypatch.setattr(nn.Module, "__init__", refuse)
    assert cost(preset(name)).parameters > 0


def test_each_different_block_is_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def watched(letter: str, price: Callable[..., Cost]) -> classmethod[Any, Any, Cost]:
        def ask(cls: type, config: ModelConfig, spec: BlockSpec, shape: Any) -> Cost:
            asked.append((letter, str(spec.options)))
            return price(config, spec, shape)

        return classmethod(ask)

    for letter, cls in BLOCKS.items():
        monkeypatch.setattr(cls, "cost", watched(letter, cls.cost))
    cost(small_config("gpt2", pattern="(sf)x300 (f[inner=9]s)x200 (i)x9 f"))
    assert sorted(asked) == [("f", ""), ("f", "inner=9"), ("i", ""), ("s", "")]


@pytest.mark.parametrize(
    ("changes", "step", "problem"),
    [
        ({}, {"tgt_len": 0}, "tgt_len must be at least 1, got 0"),
        ({}, {"tgt_len": -5}, "tgt_len must be at least 1, got -5"),
        ({}, {"mem_len": -1}, "mem_len must be at least 0, got -1"),
        ({}, {"batch": 0}, "batch must be at least 1, got 0"),
        ({"family": "gpt2"}, {"tgt_len": 65}, "tgt_len 65 and mem_len 0 exceed the window of 64"),
        (
            {"family": "gpt2"},
            {"tgt_len": 60, "mem_len": 5},
            "tgt_len 60 and mem_len 5 exceed the window of 64; lower one of them or raise max_len",
        ),
        ({"family": "bert"}, {"mem_len": 3}, "sees both sides has no memory, got mem_len 3"),
        ({"pattern": "<sf>x2"}, {}, "relative positions need an even d_model, got 3; try 4"),
        ({"pattern": "f[innr=3]"}, {}, "unknown option 'innr' in .*; known options: inner"),
        ({"pattern": "f[inner=3.5]"}, {}, "takes a whole number, got 3.5"),
        ({"pattern": "f[inner]"}, {}, "takes a whole number, got True"),
        ({"pattern": "s[heads=0]"}, {}, "option 'heads' in .* must be at least 1, got 0"),
        ({"pattern": "s[heads=5]"}, {}, "5 heads do not divide d_model 12"),
    ],
)
def test_what_cannot_be_priced_is_refused_in_one_line(
    changes: dict[str, Any], step: dict[str, int], problem: str
) -> None:
    config = small_config(**{"family": "transformer-xl"} | changes)
    with pytest.raises(ConfigError, match=problem) as caught:
        cost(config, **step)
    assert "\n" not in str(caught.value)


def test_a_price_adds_up_and_reads_as_plain_values() -> None:
    price = cost(preset("par-base"), batch=3)
    assert isinstance(price, ModelCost)
    parts = [row.cost for row in price.blocks] + [price.embedding, price.head]
    assert price.flops == sum(part.flops for part in parts)
    assert price.flops_cached == sum(part.flops_cached for part in parts)
    assert price.state_bytes == sum(part.state_bytes for part in parts)
    assert price.parameters == (
        price.decoder_parameters + price.embedding_parameters + price.head_parameters
    )
    values = price.to_dict()
    assert values["parameters"] == price.parameters
    assert values["blocks"][1] == {
        "index": 1,
        "block": "f",
        "parameters": 2_100_736,
        "flops": price.blocks[1].cost.flops,
        "flops_cached": price.blocks[1].cost.flops_cached,
        "state_bytes_per_token": 0,
        "state_bytes": 0,
        "constants": 0,
    }


@given(config=configs(), batch=st.integers(2, 5))
@settings(max_examples=40)
def test_a_batch_costs_its_rows_but_for_what_they_share(config: ModelConfig, batch: int) -> None:
    """Only the table of distances serves all rows at once."""
    step = {"tgt_len": 32} if config.source is None else {"tgt_len": 32, "src_len": 32}
    one, all_rows = cost(config, **step), cost(config, **step, batch=batch)
    assert all_rows.parameters == one.parameters
    assert all_rows.state_bytes == batch * one.state_bytes
    relative = config.positions == "relative" and config.pattern.count("s") > 0
    rounded = 2 * batch  # shares of tokens in rare clusters are no whole numbers
    assert (batch * one.flops - all_rows.flops > rounded) == relative
    if config.causal or not relative:
        assert abs(all_rows.flops_cached - batch * one.flops_cached) <= rounded


@pytest.mark.parametrize(
    ("told", "labels"), [("class", ("a", "b", "c")), ("score", ()), ("choice", ()), ("span", ())]
)
@pytest.mark.parametrize("pool", ["dense", "first", "mean"])
def test_heads_for_labels_are_priced_as_they_are_built(
    told: str, labels: tuple[str, ...], pool: str
) -> None:
    config = small_config(
        "bert", head="none", label_head=told, labels=labels, pool=pool, pooler=told != "span"
    )
    model = build(config)
    assert cost(config).parameters == count_parameters(model)
    with CountFlops() as counted, torch.no_grad():
        out = model(torch.zeros(2, 5, dtype=torch.long))
    assert cost(config, tgt_len=5, batch=2).flops == counted.flops
    shape = (2, 5, 2) if told == "span" else (2, config.label_width)
    assert out.label_logits.shape == shape
