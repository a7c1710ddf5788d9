"""Are the models of the SRU++ paper all there, and do such models read, train and write?"""

# b batch, t time

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from parformer.config import FAMILIES, preset, presets
from parformer.costs import cost
from parformer.evaluate.perplexity import evaluate
from parformer.generate import generate
from parformer.model import build, count_parameters, load
from parformer.recipe import read_recipe
from tests.conftest import DIFFERENT, lively, small_config
from tests.search.placement import trials as searches
from tests.train.trials import (
    begin,
    evidence,
    make_prepared,
    make_recipe,
    train_to_the_end,
    train_until,
)

CAUSAL = [family for family in DIFFERENT if FAMILIES[family]["causal"]]
PREPARED = make_prepared()

PUBLISHED: dict[str, tuple[int, int]] = {
    "srupp-small-enwik8": (42, 42_341_974),
    "srupp-base-enwik8": (108, 107_560_150),
    "srupp-base-k5-enwik8": (98, 98_122_958),
    "srupp-large-enwik8": (191, 190_599_382),
    "srupp-large-r8-enwik8": (195, 194_981_782),
    "srupp-base-wt103": (148, 147_676_036),
    "srupp-large-wt103": (232, 231_690_116),
    "srupp-large-r8-wt103": (234, 233_741_476),
    "srupp-large-r8-k5-wt103": (225, 224_884_892),
    "srupp-base-lm1b": (328, 328_313_803),
    "srupp-large-k5-lm1b": (465, 465_318_339),
}
"""Millions that the paper prints (Tables 2, 3, 5, 6, 11 and 12), and all digits."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_published_number_of_parameters(name: str) -> None:
    printed, exact = PUBLISHED[name]
    parameters = cost(preset(name)).parameters
    assert parameters == exact
    assert round(parameters / 1e6) == printed


def test_every_preset_is_checked_here() -> None:
    own = {n for n in presets() if n.startswith("sru") and "translation" not in n}
    assert own == {*PUBLISHED, "srupp-pocket"}  # translators: convert/test_srupp_translation.py


@pytest.mark.parametrize(
    ("changes", "millions"),
    [
        ({"d_model": 3840, "d_attention": 640}, 108.229),
        ({"d_model": 4480, "d_attention": 560}, 108.642),
        ({"d_model": 5040, "d_attention": 504}, 108.955),
        ({"pattern": "(r)x5 (a)x5"}, 101.662),
        ({"pattern": "(ra)x5"}, 101.662),
        ({"pattern": "(r)x9 a"}, 96.943),
        ({"pattern": "(r)x7 (a)x3", "d_model": 3136, "d_attention": 784}, 103.454),
        ({"pattern": "(rra)x3 r", "d_model": 3136, "d_attention": 784}, 103.454),
        ({"pattern": "(rrrr a)x2", "d_model": 4480, "d_attention": 560}, 103.625),
        ({"pattern": "(r)x9 a", "d_model": 2016, "d_attention": 504}, 42.064),
    ],
)
def test_the_other_rows_of_tables_4_and_10_agree(changes: dict[str, Any], millions: float) -> None:
    parameters = cost(preset("srupp-base-enwik8", **changes)).parameters
    assert round(parameters / 1e6, 3) == millions


def test_a_built_model_has_what_is_priced() -> None:
    """The published structure in small, untied and tied."""
    for name in ("srupp-base-k5-enwik8", "srupp-base-wt103", "srupp-large-k5-lm1b"):
        small: dict[str, Any] = {"d_model": 24, "d_attention": 6, "vocab_size": 300}
        if "enwik8" not in name:
            small |= {"d_embed": 64, "cutoffs": [40, 80]}
        config = preset(name, **small)
        assert cost(config).parameters == count_parameters(build(config))


RECIPES: dict[str, tuple[str, int, int, int, float, float, int, int, str]] = {
    # pattern, unroll in training, unroll in test, batch, dropout, rate, steps, warm-up, corpus
    "srupp-base-k5-enwik8": ("(rrrra)x2", 1024, 3072, 4 * 8, 0.22, 3e-4, 400_000, 16_000, "enwik8"),
    "srupp-base-enwik8": ("(a)x10", 1024, 3072, 4 * 8, 0.22, 3e-4, 400_000, 16_000, "enwik8"),
    "srupp-large-enwik8": ("(a)x10", 1024, 3072, 8 * 8, 0.32, 4e-4, 400_000, 16_000, "enwik8"),
    "srupp-large-r8-enwik8": ("(a)x10", 1024, 3072, 8 * 8, 0.35, 4e-4, 400_000, 16_000, "enwik8"),
    "srupp-base-wt103": (
        *("(a)x10", 768, 2560, 8 * 8, 0.15, 3e-4, 400_000, 16_000, "wikitext-103"),
    ),
    "srupp-large-wt103": (
        *("(a)x10", 1024, 2560, 8 * 8, 0.2, 3e-4, 400_000, 16_000, "wikitext-103"),
    ),
    "srupp-large-r8-k5-wt103": (
        *("(rrrra)x2", 1024, 2560, 8 * 8, 0.2, 3e-4, 400_000, 16_000, "wikitext-103"),
    ),
    "srupp-large-r8-wt103": (
        *("(a)x10", 1024, 2560, 8 * 8, 0.2, 3e-4, 400_000, 16_000, "wikitext-103"),
    ),
    "srupp-base-lm1b": ("(a)x10", 64, 96, 1024, 0.05, 2e-4, 800_000, 16_000, "lm1b"),
    "srupp-large-k5-lm1b": ("(rrrra)x2", 64, 96, 1536, 0.05, 2e-4, 800_000, 16_000, "lm1b"),
    "srupp-small-enwik8": ("(a)x10", 512, 2048, 24, 0.1, 2.5e-4, 400_000, 0, "enwik8"),
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_follow_the_papers_tables(name: str) -> None:
    """Tables 11 and 12 row by row, section 5 for One Billion Words, Table 1 for the small one."""
    pattern, unroll, test, batch, dropout, learning_rate, steps, warmup, corpus = RECIPES[name]
    recipe = read_recipe(name)
    model, train = recipe.model, recipe.train
    assert (str(model.pattern), recipe.data.corpus) == (pattern, corpus)
    assert (train.tgt_len, train.mem_len) == (unroll, unroll)
    assert (model.tgt_len, model.mem_len, model.same_length) == (test, test, True)
    assert (train.batch, train.steps, train.warmup) == (batch, steps, warmup)
    assert (model.dropout, train.learning_rate) == (dropout, learning_rate)
    assert model.dropatt == (0.0 if corpus == "lm1b" else dropout)
    assert (train.optimizer, train.schedule, train.final_rate) == ("radam", "cosine", 0.0)
    assert (train.weight_decay, train.clip, train.beta1, train.beta2) == (0.1, 1.0, 0.9, 0.999)
    ratio = model.d_model / model.d_attention
    assert ratio == (8 if "-r8-" in name else 4 if "large-k5" not in name else 7616 / 1024)
    if corpus == "lm1b":
        assert round(batch * unroll / 1000) in (66, 98)  # 65K (65,536) and 98K tokens


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("pattern", ["ra", "sarf", "raisf a[qkv] r[full]"])
def test_a_text_in_pieces_gives_what_it_gives_in_one(family: str, pattern: str) -> None:
    memory = {"mem_len": 30} if family in ("sru", "transformer-xl") else {}
    model = lively(build(small_config(family, pattern=pattern, **memory)))
    tokens = torch.randint(13, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        whole = model(tokens).logits
        state, pieces = None, []
        for piece in torch.split(tokens, [1, 1, 9, 6], dim=1):
            out = model(piece, state=state)
            state = out.state
            pieces.append(out.logits)
    assert_close(torch.cat(pieces, dim=1), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["sru", "transformer-xl", "llama"])
def test_what_is_written_token_by_token_is_what_one_pass_says(family: str) -> None:
    memory = {"mem_len": 30} if family != "llama" else {}
    model = lively(build(small_config(family, pattern="(ra)x2", **memory)))
    prompt = [1, 5, 2, 7]
    (written,) = generate(model, [prompt], 12)
    (again,) = generate(model, [prompt], 12, use_state=False)
    assert written == again
    text = torch.tensor([prompt + written])
    state, found = None, []
    with torch.inference_mode():
        for token in text.split(1, dim=1):
            out = model(token, state=state)
            state = out.state
            found.append(out.logits)
        assert_close(torch.cat(found, dim=1), model(text).logits, atol=1e-4, rtol=1e-4)
    assert len(set(written)) > 1


@pytest.mark.parametrize(
    ("family", "pattern"), [("sru", "(ra)x2"), ("transformer-xl", "srfa"), ("gpt2", "rsaf")]
)
def test_a_broken_training_ends_like_a_whole_one(family: str, pattern: str, tmp_path: Path) -> None:
    """Cells and remembered inputs are saved with every checkpoint."""
    changes: dict[str, Any] = {"model__pattern": pattern, "train__steps": 6}
    changes |= {"train__optimizer": "radam", "model__dropatt": 0.1}
    if family == "sru":
        changes |= {"model__mem_len": 12, "model__tgt_len": 8, "model__tie_weights": False}
    recipe = make_recipe(family, **changes)
    for name in ("whole", "broken"):
        begin(tmp_path / name, recipe, PREPARED)
    train_to_the_end(tmp_path / "whole", recipe, PREPARED)
    for stop in (3, 5):
        train_until(tmp_path / "broken", recipe, PREPARED, stop)
    train_to_the_end(tmp_path / "broken", recipe, PREPARED)
    assert evidence(tmp_path / "broken") == evidence(tmp_path / "whole")


def test_a_recurrence_learns_what_comes_next(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"model__mem_len": 8, "model__tgt_len": 8, "model__dropout": 0.0}
    changes |= {"train__steps": 40, "train__learning_rate": 0.02, "train__checkpoint_every": 40}
    recipe = make_recipe("sru", model__pattern="(ra)x2", **changes)
    begin(tmp_path / "run", recipe, PREPARED)
    _, watch = train_to_the_end(tmp_path / "run", recipe, PREPARED)
    assert watch.losses[40] < 0.6 * watch.losses[1]


def test_a_saved_model_is_the_same_model(tmp_path: Path) -> None:
    model = lively(build(small_config("sru", pattern="ra[heads=3] r[full]", mem_len=9)))
    model.save(tmp_path / "model")
    tokens = torch.randint(13, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "model")(tokens).logits, model(tokens).logits)


def test_evaluating_in_steps_of_any_length_gives_the_same() -> None:
    """Without a limit to what attention sees but the window, and cells carried all along."""
    model = lively(build(small_config("sru", pattern="ra", mem_len=6, same_length=True)))
    tokens = torch.randint(13, (60,), generator=torch.Generator().manual_seed(1))
    scores = [evaluate(model, tokens, tgt_len=n) for n in (4, 7, 60)]
    for score in scores:
        assert score.loss == pytest.approx(scores[0].loss, rel=1e-5)


@pytest.mark.parametrize("family", ["sru", "transformer-xl", "gpt2"])
def test_a_search_over_recurrence_and_attention_goes_on_bit_for_bit(family: str) -> None:
    """All choices have a gradient, and cells are carried from update to update."""
    changes: dict[str, Any] = {"search__choices": "rsaf", "search__penalty": "flops=0.1"}
    if family == "sru":
        changes |= {"model__mem_len": 8, "model__tgt_len": 8}
    recipe = searches.make_recipe(family, **changes)
    whole, broken = searches.make_session(recipe), searches.make_session(recipe)
    seen = searches.updated(whole, 0, 8)
    assert searches.updated(broken, 0, 5) == seen[:5]
    again = searches.make_session(recipe, broken.checkpoint(5, {}))
    assert searches.updated(again, 5, 8) == seen[5:]
    assert searches.bits(again.checkpoint(8, {})) == searches.bits(whole.checkpoint(8, {}))
    gates = [name for name, p in whole.model.named_parameters() if "gate" in name and p.any()]
    assert len(gates) == 3 * 2 * 2  # layers, r and a, weight and bias
    carried = [name for name in whole.checkpoint(8, {}).memory if "cell_bd" in name]
    assert bool(carried) == (family != "gpt2")


@pytest.mark.parametrize("family", ["sru", "transformer-xl"])
def test_all_four_kinds_in_one_stack_are_priced_and_write(family: str) -> None:
    config = small_config(family, pattern="(rsaf)x2", mem_len=30)
    model = lively(build(config))
    assert count_parameters(model) == cost(config).parameters
    assert generate(model, [[1, 2, 3]], 20) == generate(model, [[1, 2, 3]], 20, use_state=False)
