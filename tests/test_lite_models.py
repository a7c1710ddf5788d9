"""Are all models of Lite Transformer there, and do such models read, train and write?"""

# b batch, t time, d width

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from parformer.config import preset, presets
from parformer.costs import cost
from parformer.embedding import Embedding
from parformer.errors import ConfigError, InputError
from parformer.evaluate.perplexity import evaluate
from parformer.first_weights import initialise
from parformer.generate import generate
from parformer.measure.operations import time_by_kind
from parformer.measure.profile import BlockRange
from parformer.measure.tables import find_place, tables_of
from parformer.model import build, count_parameters, load
from parformer.search.sizes.space import read_space
from tests.blocks.test_groups import Step
from tests.conftest import lively, noise, small_config, small_model
from tests.measure.test_profile import base, sizes
from tests.search.placement import trials as searches
from tests.train.trials import (
    begin,
    evidence,
    make_prepared,
    make_recipe,
    train_to_the_end,
    train_until,
)

PREPARED = make_prepared()

PUBLISHED: dict[str, tuple[float, int]] = {
    "lite-lm-wt103": (37.2, 37_182_208),
    "adaptive-input-wt103": (37.8, 37_828_608),
    "lite-translation-200": (2.9, 2_884_400),
    "lite-translation-408": (11.7, 11_739_792),
    "lite-translation-496": (17.3, 17_283_616),
    "transformer-translation-128": (2.8, 2_777_088),
    "transformer-translation-256": (11.1, 11_059_200),
    "transformer-translation-320": (17.3, 17_264_640),
    "transformer-translation-512": (44.1, 44_138_496),
    "lite-summaries-496": (17.3, 17_283_616),
    "lite-translation-200-en-fr": (2.9, 2_884_400),
    "lite-translation-408-en-fr": (11.7, 11_739_792),
    "lite-translation-496-en-fr": (17.3, 17_283_616),
}
"""Millions that the paper prints (Tables 2, 4 and 5), without embeddings, and all digits."""
RELEASED = {
    "lite-translation-iwslt-160": 1_713_584,
    "lite-translation-iwslt-240": 3_837_104,
    "lite-translation-iwslt-320": 6_805_424,
}
"""What the released recipes for IWSLT'14 have, which no table prints."""
POCKETS = {"lite-pocket", "lite-pocket-translation", "transformer-pocket-translation"}
MULTIPLY_ADDS = {
    # at 30 tokens of source and of target, in millions: counted, and as printed
    "lite-translation-200": (90.66, 90),
    "lite-translation-408": (360.61, 360),
    "lite-translation-496": (528.75, 527),
    "transformer-translation-128": (86.72, 87),
    "transformer-translation-256": (338.60, 338),
    "transformer-translation-320": (526.46, 527),
}


# What the paper says


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_published_number_of_parameters(name: str) -> None:
    printed, exact = PUBLISHED[name]
    parameters = cost(preset(name)).decoder_parameters
    assert parameters == exact
    assert round(parameters / 1e6, 1) == printed


@pytest.mark.parametrize("name", RELEASED)
def test_released_models_have_as_many_parameters_as_the_released_code(name: str) -> None:
    assert cost(preset(name)).decoder_parameters == RELEASED[name]


def test_every_preset_is_checked_here() -> None:
    ours = {n for n in presets() if "lite" in n or "translation" in n or "adaptive-input" in n}
    others = {n for n in presets() if "srupp" in n or n == "transformer-translation-iwslt"}
    # the others: convert/test_srupp_translation.py
    assert ours - others == {*PUBLISHED, *RELEASED, *POCKETS}


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_translating_takes_the_published_multiply_adds(name: str) -> None:
    ours, printed = MULTIPLY_ADDS[name]
    price = cost(preset(name), tgt_len=30, src_len=30)
    found = (sum(row.cost.flops for row in price.blocks) + price.encoder.flops) / 2e6
    assert round(found, 2) == ours
    assert found == pytest.approx(printed, rel=0.01)


@pytest.mark.parametrize(
    ("name", "tokens", "billions", "printed"),
    [
        ("lite-lm-wt103", 100, 3.84, 3.9),
        ("lite-lm-wt103", 1000, 48.07, 48.7),
        ("adaptive-input-wt103", 100, 3.90, 3.9),
        ("adaptive-input-wt103", 1000, 50.04, 50.3),
    ],
)
def test_language_models_take_the_published_multiply_adds(
    name: str, tokens: int, billions: float, printed: float
) -> None:
    price = cost(preset(name), tgt_len=tokens)
    found = sum(row.cost.flops for row in price.blocks) / 2e9
    assert round(found, 2) == billions
    assert found == pytest.approx(printed, rel=0.02)


def test_lengths_and_kernels_are_those_of_the_released_recipes() -> None:
    kernels = [b.options["kernel"] for b in preset("lite-lm-wt103").pattern if b.letter == "l"]
    assert kernels == [15] * 2 + [31] * 4 + [63] * 6
    translation = preset("lite-translation-408").pattern
    for side in (translation.encoder, translation):
        taps = [block.options["kernel"] for block in side if block.letter == "l"]
        assert taps == [3, 7, 15, 31, 31, 31]
    pocket = cost(preset("lite-pocket"))
    assert 1.1e6 < pocket.parameters < 1.3e6


def test_a_built_model_has_what_is_priced() -> None:
    small: dict[str, Any] = {"d_model": 48, "d_inner": 24, "vocab_size": 300}
    for name in sorted({*PUBLISHED, *RELEASED, *POCKETS}):
        own = {"cutoffs": [40, 80]} if "wt103" in name else {}
        config = preset(name, **small, **own)
        assert cost(config).parameters == count_parameters(build(config))


# Sinusoidal positions


def waves(number: int, width: int, kind: str) -> list[float]:
    """One place, number by number, as the papers' code has it."""
    half = width // 2
    if kind == "sinusoidal":
        angles = [number * math.exp(-2 * i * math.log(10_000) / width) for i in range(half)]
        return [f(angle) for angle in angles for f in (math.sin, math.cos)]
    angles = [(number + 2) * math.exp(-i * math.log(10_000) / (half - 1)) for i in range(half)]
    return [f(angle) for f in (math.sin, math.cos) for angle in angles]


any_kind = pytest.mark.parametrize("kind", ["sinusoidal", "sinusoidal-halves"])


@any_kind
def test_places_are_numbered_in_sines_and_cosines(kind: str) -> None:
    config = small_config("lite", positions=kind)
    embedding = Embedding(config).double()
    torch.nn.init.zeros_(embedding.words.tables[0])
    tokens = torch.zeros(1, 5, dtype=torch.long)
    wanted = torch.tensor([waves(n, 12, kind) for n in range(3, 8)], dtype=torch.float64)
    assert_close(embedding(tokens, None, 3)[0], wanted)
    there = torch.tensor([[True, False, False, True, False, True, True, True]])
    wanted = torch.tensor([waves(n, 12, kind) for n in (0, 1, 0, 2, 3, 4)], dtype=torch.float64)
    wanted[2] = 0
    assert_close(embedding(tokens, None, 3, there_bn=there)[0], wanted[[1, 2, 3, 4, 5]])


@any_kind
@pytest.mark.parametrize("pattern", ["sf", "lf", "sf | scf", "lf | lcf"])
def test_padding_before_a_text_changes_no_answer(kind: str, pattern: str) -> None:
    """Outputs and gradients; in pieces too, and where the text goes on."""
    model = small_model("lite", pattern, positions=kind)
    text = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
    filled = torch.cat((torch.tensor([[7, 7]]), text), dim=1)
    present = torch.tensor([[False] * 2 + [True] * 7])
    source = None if model.encoder is None else torch.tensor([[2, 6, 5]])
    answers = []
    for tokens, padding in ((text, None), (filled, present)):
        model.zero_grad()
        out = model(tokens, padding=padding, source=source)
        logits = out.logits[:, -7:]
        (logits * noise(*logits.shape)).sum().backward()
        gradients = [p.grad.clone() for p in model.blocks.parameters()]
        answers.append((logits, *gradients))
        if padding is not None:
            first = model(tokens[:, :4], padding=padding[:, :4], source=source)
            again = model(tokens[:, 4:], first.state, padding=padding[:, 4:])
            pieces = torch.cat((first.logits, again.logits), dim=1)
            assert_close(pieces[:, 2:], answers[0][0])
    assert_close(answers[0], answers[1])


@any_kind
def test_an_exported_step_gives_what_the_model_gives(kind: str) -> None:
    model = lively(build(small_config("lite", pattern="lf | lcf", positions=kind, pad=1)))
    tokens = torch.tensor([[3, 1, 4], [5, 9, 2]])
    with torch.no_grad():
        state = model(tokens, source=tokens).state
        exported = torch.export.export(Step(model), (tokens.clone(), state)).module()
        ours, after = exported(tokens + 1, state)
        out = model(tokens + 1, state)
        assert_close(ours, out.logits)
        assert_close(model(tokens, after).logits, model(tokens, out.state).logits)


def test_a_pad_has_no_place_and_learns_nothing_by_being_read() -> None:
    model = small_model("lite", "lf | lcf", pad=1, tie_weights=False)
    source = torch.tensor([[1, 1, 4, 5], [2, 3, 4, 5]])
    alone = model.encode(source[:1, 2:]).vectors_bsd
    beside = model.encode(source)
    assert_close(beside.vectors_bsd[:1, 2:], alone)
    assert beside.padding is not None
    assert beside.padding.tolist() == [[False, False, True, True], [True] * 4]
    model.zero_grad()
    model(torch.tensor([[1, 3], [2, 1]]), source=source).logits.square().sum().backward()
    gradient = model.embedding.words.tables[0].grad
    assert not gradient[1].any()
    assert gradient[[2, 3, 4, 5]].any(dim=1).all()


@any_kind
def test_what_is_written_past_the_window_is_what_one_pass_says(kind: str) -> None:
    model = lively(build(small_config("lite", pattern="lf", positions=kind, max_len=9)))
    (written,) = generate(model, [[1, 5, 2, 7]], 16)
    assert written == generate(model, [[1, 5, 2, 7]], 16, use_state=False)[0]
    assert len(set(written)) > 1
    text = torch.tensor([1, 5, 2, 7, *written])
    with torch.no_grad():
        last = model(text[None, -10:-1]).logits[0, -1]
    assert int(last.argmax()) == written[-1]
    with pytest.raises(InputError, match="10 tokens exceed the window of 9"):
        model(text[None, :10])


def test_evaluating_reads_windows_that_overlap() -> None:
    model = lively(build(small_config("lite", pattern="lf", max_len=8)))
    tokens = torch.randint(13, (40,), generator=torch.Generator().manual_seed(1))
    score = evaluate(model, tokens, tgt_len=4)
    losses = []
    with torch.no_grad():
        for end in range(4, 40, 4):
            start = max(0, end - 4)
            window = tokens[start : end + 5][None]
            logits = model(window[:, :-1]).logits[0, -(window.shape[1] - 1 - (end - start)) :]
            losses.append(
                torch.nn.functional.cross_entropy(
                    logits, tokens[end + 1 : end + 1 + len(logits)], reduction="sum"
                )
            )
        first = model(tokens[None, :4]).logits[0]
        losses.append(torch.nn.functional.cross_entropy(first, tokens[1:5], reduction="sum"))
    assert score.tokens == 39
    assert score.loss == pytest.approx(float(torch.stack(losses).sum()) / 39, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"d_model": 9, "pattern": "f"}, "sinusoidal-halves positions need an even d_model, got 9"),
        ({"pad": 13}, "pad 13 is no token of a vocabulary of 13; lower it, or set -1"),
        ({"pad": -2}, "pad must be at least -1, got -2"),
        ({"source_vocab": 9}, "source_vocab 9 is about an encoder, and there is none in 'sf'"),
        ({"pad": 1, "embedding": "adaptive", "cutoffs": [5]}, "pad 1 needs embedding='plain'"),
        ({"tgt_len": 65}, "tgt_len 65 exceeds the window max_len 64"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        small_config("lite", **changes)
    assert "\n" not in str(caught.value)


def test_first_weights_are_those_of_fairseq() -> None:
    """Even within bounds by what goes in and out; embeddings as wide as 1/√d, and no pad."""
    model = build(small_config("lite", d_model=96, n_head=4, pattern="lf | lcf", pad=1))
    initialise(model, model.config, torch.Generator().manual_seed(1))
    far, near = model.blocks[0].branches
    reaches = {
        # queries, keys and values: 1/√2 of what a square matrix has
        far.qkv: math.sqrt(6 / (2 * 48) / 2),
        far.out: math.sqrt(6 / (2 * 48)),
        near.inner: math.sqrt(6 / (3 * 48)),
        near.out: math.sqrt(6 / (2 * 48)),
        model.blocks[1].query: math.sqrt(6 / (2 * 96) / 2),
        model.blocks[1].key_value: math.sqrt(6 / (2 * 96) / 2),
        model.encoder.blocks[1].inner: math.sqrt(6 / (96 + 20)),
    }
    for linear, reach in reaches.items():
        assert float(linear.weight.detach().abs().max()) == pytest.approx(reach, rel=0.02)
        assert not linear.bias.any()
    table: Tensor = model.embedding.words.tables[0].detach()
    assert not table[1].any()
    assert float(table[2:].std()) == pytest.approx(96**-0.5, rel=0.1)


# Training, searching, measuring


@pytest.mark.parametrize(
    ("family", "pattern"),
    [("lite", "lf"), ("transformer-xl", "l[kernel=3]sf l[light]"), ("llama", "l[attend=0]f")],
)
def test_a_broken_training_ends_like_a_whole_one(family: str, pattern: str, tmp_path: Path) -> None:
    """Tails and remembered inputs are saved with every checkpoint."""
    changes: dict[str, Any] = {"model__pattern": pattern, "train__steps": 6}
    recipe = make_recipe(family, **changes, model__dropatt=0.1)
    for name in ("whole", "broken"):
        begin(tmp_path / name, recipe, PREPARED)
    train_to_the_end(tmp_path / "whole", recipe, PREPARED)
    train_until(tmp_path / "broken", recipe, PREPARED, 4)
    train_to_the_end(tmp_path / "broken", recipe, PREPARED)
    assert evidence(tmp_path / "broken") == evidence(tmp_path / "whole")


@pytest.mark.parametrize("pattern", ["lf", "l[attend=0,light]f"])
def test_near_and_far_learn_what_comes_next(pattern: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"train__steps": 40, "train__learning_rate": 0.02}
    changes |= {"train__checkpoint_every": 40, "model__dropout": 0.0}
    recipe = make_recipe("lite", model__pattern=pattern, **changes)
    begin(tmp_path / "run", recipe, PREPARED)
    _, watch = train_to_the_end(tmp_path / "run", recipe, PREPARED)
    assert watch.losses[40] < 0.6 * watch.losses[1]


def test_a_saved_model_is_the_same_model(tmp_path: Path) -> None:
    config = small_config("lite", pattern="lf | l[light]cf", source_vocab=7, pad=2)
    model = lively(build(config))
    model.save(tmp_path / "model")
    tokens, source = torch.tensor([[1, 2, 3]]), torch.tensor([[2, 6, 4]])
    again = load(tmp_path / "model")
    assert again.config == config
    with torch.no_grad():
        ours, theirs = (m(tokens, source=source).logits for m in (again, model))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("mode", ["soft", "sampled"])
def test_a_search_over_near_and_far_goes_on_bit_for_bit(mode: str) -> None:
    """All choices have a gradient, and tails are carried from update to update."""
    changes: dict[str, Any] = {"search__choices": "rslf", "search__mode": mode}
    changes |= {"search__penalty": "flops=0.1"}
    if mode == "sampled":
        changes["search__choices"] = "slf"
    recipe = searches.make_recipe("transformer-xl", **changes)
    whole, broken = searches.make_session(recipe), searches.make_session(recipe)
    seen = searches.updated(whole, 0, 8)
    assert searches.updated(broken, 0, 5) == seen[:5]
    again = searches.make_session(recipe, broken.checkpoint(5, {}))
    assert searches.updated(again, 5, 8) == seen[5:]
    assert searches.bits(again.checkpoint(8, {})) == searches.bits(whole.checkpoint(8, {}))
    assert [name for name in whole.checkpoint(8, {}).memory if "inputs_bkc" in name]


def test_the_space_lite_holds_models_that_can_be_built() -> None:
    space, rng = read_space("lite"), Random(0)
    for _ in range(20):
        config = space.config(space.mutate(space.draw(rng), rng, 0.2))
        assert cost(config).parameters > 0
    options = {name for block in space.ranged_blocks() for name, _ in block.options}
    assert options == {"attend", "heads", "kernel", "inner"}
    smallest = space.config(space.smallest())
    assert count_parameters(build(smallest)) == cost(smallest).parameters


def test_a_profile_covers_blocks_that_leave_their_heads_to_the_model() -> None:
    """Such a block was measured with the model's heads, not with one."""
    block = BlockRange(letter="l", options={"kernel": (3, 31), "attend": (0.25, 0.5)})
    space = sizes(base=base(n_head=4), blocks=(block,))
    tables = tables_of(space)
    assert [dict(table.words) for table in tables if table.letter == "l"] == [
        {"attend": 0.25},
        {"attend": 0.5},
    ]
    config = space.base.replaced(pattern="l[kernel=15,attend=0.5]")
    number, point = find_place(tables, config, config.pattern[0])
    assert dict(zip(tables[number].names, point, strict=True)) == {
        "d_model": config.d_model,
        "kernel": 15,
        "heads": 4,
    }
    assert str(tables[number].spec(point)) == "l[attend=0.5,heads=4,kernel=15]"


def test_the_time_of_convolutions_is_told_by_name() -> None:
    model = small_model("lite", "lf", torch.float32)
    with torch.no_grad():
        spent = time_by_kind(lambda: model(torch.zeros(1, 9, dtype=torch.long)), 2)
    assert spent["convolution"] > 0
