"""Is a model with fewer tokens the same model for whoever uses these tokens alone?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import parformer as pf
from parformer.compress.coding import coded
from parformer.compress.receipt import lost
from parformer.compress.request import CompressRequest
from parformer.compress.vocabulary import least_used, with_tokens
from parformer.costs import cost
from parformer.data.tokenizers import load_tokenizer
from parformer.errors import ConfigError
from parformer.model import Model, count_parameters
from tests.compress.test_job import QUICK, SMALL, without_clock
from tests.compress.test_shrinking import alive

WORDS = ("data.tokenizer=bpe", "data.vocab_size=420")


def told(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    source = tokens if model.encoder is not None else None
    logits = model(tokens, source=source).logits
    assert logits is not None
    return logits


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-pocket", {}),
        ("bert-pocket", {"vocab_size": 200}),
        ("srupp-pocket", {}),
        ("mobilebert-pocket", {"vocab_size": 200}),
        ("transformer-pocket-translation", {"vocab_size": 200, "pad": 199, "start": 3, "end": 9}),
    ],
)
def test_tokens_that_stay_are_what_they_were(name: str, changes: dict[str, object]) -> None:
    model = alive(name, **changes)
    size = model.config.vocab_size
    kept_v = torch.arange(0, size, 3)
    marks = [model.config.pad, model.config.start, model.config.end, size - 1]
    kept_v = torch.cat([kept_v, torch.tensor([n for n in marks if n >= 0])]).unique()
    small = with_tokens(model, kept_v)
    assert small.config.vocab_size == len(kept_v)
    assert count_parameters(small) == cost(small.config).parameters < count_parameters(model)
    for mark in ("pad", "start", "end"):
        old, new = getattr(model.config, mark), getattr(small.config, mark)
        assert new == -1 if old == -1 else int(kept_v[new]) == old
    tokens = torch.randint(1, 60, (2, 11), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(told(small, tokens), told(model, kept_v[tokens])[..., kept_v])


def test_parts_of_an_adaptive_vocabulary_stay_parts() -> None:
    changes = {"vocab_size": 90, "cutoffs": (20, 50), "div_val": 2, "embedding": "adaptive"}
    model = alive("pocket", pattern="sf", **changes)
    kept_v = torch.tensor([*range(0, 20, 2), 21, 30, 49, *range(50, 90, 4)])
    small = with_tokens(model, kept_v)
    assert small.config.cutoffs == (10, 13)
    tokens = torch.arange(len(kept_v))[None]
    torch.testing.assert_close(small(tokens).hidden, model(kept_v[tokens]).hidden)
    # what is told apart inside a part does not depend on what the part has lost beside it
    wanted, found = model(kept_v[tokens]).logits[..., kept_v], small(tokens).logits
    for part in (slice(10, 13), slice(13, None)):
        torch.testing.assert_close(
            found[..., part].log_softmax(-1), wanted[..., part].log_softmax(-1)
        )


def test_what_goes_is_never_used_or_rare() -> None:
    counts = np.array([50, 0, 3, 1, 0, 46])
    assert set(least_used(counts, 0, 0.5)) == {1, 4}
    assert set(least_used(counts, 3, 0.5)) == {1, 4, 3}
    assert set(least_used(counts, 6, 0.04)) == {1, 4, 3, 2}
    assert set(least_used(counts, 6, 0.0)) == {1, 4}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 420 pieces, and a text of its kind that uses few of them."""
    place = tmp_path_factory.mktemp("words")
    changes = (*SMALL, *WORDS)
    pf.train(
        model="llama-pocket",
        corpus="python-docs",
        steps=8,
        run=place / "run",
        changes=changes,
        beside=False,
    )
    words = "the value of the list is the name of a class and the type of its values\n"
    (place / "some.txt").write_text(words * 400)
    return place


def test_a_run_with_fewer_tokens_is_a_run(trained: Path, tmp_path: Path) -> None:
    run, text = tmp_path / "few", str(trained / "some.txt")
    by = "vocabulary,distil,quantize"
    result = pf.compress(model=trained / "run", corpus=text, run=run, by=by, updates=2, **QUICK)
    cut, taught, bits = result.stairs[1:]
    assert [one.taken for one in (cut, bits)] == [True, True]
    assert cut.figures.size < result.first.figures.size
    assert "of 420 tokens stay; 0.00% of the training text" in cut.done
    # fewer wrong answers are possible, so the loss can only fall
    assert cut.figures.loss < result.first.figures.loss
    assert taught.figures.loss != cut.figures.loss
    model, tokenizer = pf.load(run / "model"), load_tokenizer(run / "model")
    assert tokenizer is not None
    assert model.config.vocab_size == tokenizer.size < 420
    assert tokenizer == load_tokenizer(run)
    found = pf.evaluate(model=run, corpus=text, split="valid", beside=False, tokens=4000)
    assert found.score.loss == pytest.approx(result.last.figures.loss, rel=0.1)
    assert pf.generate(model=run, prompts=("ünknown words, spelled",), tokens=5)[0].text


def test_under_a_limit_rare_tokens_go_and_losses_still_compare(
    trained: Path, tmp_path: Path
) -> None:
    text = (trained / "some.txt").read_text() + "Zebras: 1 quick quiz, zigzag.\n"
    (tmp_path / "more.txt").write_text(text * 2)
    asked = {"model": trained / "run", "corpus": str(tmp_path / "more.txt"), "by": "vocabulary"}
    plain = pf.compress(run=tmp_path / "a", **asked, **QUICK)
    tight = pf.compress(run=tmp_path / "b", limits=("size=0.01x", "loss=+90%"), **asked, **QUICK)
    sizes = [int(one.stairs[1].done.split(" of ")[0]) for one in (plain, tight)]
    assert sizes[1] < sizes[0] < 420
    assert not tight.kept
    spelled = tight.stairs[1].done.split("; ")[1]
    assert 0 < float(spelled.split("%")[0]) <= 90
    first, last = tight.stairs[0].figures, tight.stairs[1].figures
    # the same bits are told with more tokens, so each of them tells less: the sum is compared
    assert last.loss > first.loss
    assert last.loss_change is not None


def test_stretches_that_are_no_pairs_have_a_wider_interval() -> None:
    rng = np.random.default_rng(0)
    before = 2 + rng.normal(size=60)
    after = before * 1.1
    pairs, apart = lost(after, before), lost(after[:59], before)
    assert pairs is not None
    assert apart is not None
    assert apart.high - apart.low > 3 * (pairs.high - pairs.low)
    by_hand = 2 * 1.96 * (after[:59].var(ddof=1) / 59 + before.var(ddof=1) / 60) ** 0.5
    assert apart.high - apart.low == pytest.approx(by_hand / before.mean())


def test_what_cannot_lose_words_says_so(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="first"):
        CompressRequest(model=Path("x"), by="shrink,vocabulary")
    both = CompressRequest(model=Path("x"), by="vocabulary,quantize", replace=("s=i",))
    assert both.steps == ("vocabulary", "replace", "quantize")
    model = alive("llama-pocket", pattern="sf")
    with pytest.raises(ConfigError, match="vocabulary first"):
        with_tokens(coded(model, 8), torch.arange(9))
    with pytest.raises(ConfigError, match="n-grams"):
        with_tokens(alive("llama-pocket", pattern="nsf"), torch.arange(9))
    with pytest.raises(ConfigError, match="pad is token 5"):
        with_tokens(alive("llama-pocket", pattern="sf", pad=5), torch.arange(4))


def test_limits_that_bits_do_not_reach_cut_words_first(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_clock(monkeypatch)
    asked = {"model": trained / "run", "corpus": str(trained / "some.txt"), "updates": 1, **QUICK}
    plan = pf.compress(run=tmp_path / "fewest", limits=("size=0.05x",), **asked).plan
    assert plan is not None
    bits = min(one.size for one in plan.tried if one.step == "quantize")
    words = next(one for one in plan.tried if one.step == "vocabulary")
    assert words.loses == 0.0, "none of them is in the text"
    limits = (f"size={1.01 * bits * words.size:.4f}x", "loss=+50%")
    result = pf.compress(run=tmp_path / "few", limits=limits, **asked)
    assert [stair.name for stair in result.stairs[1:]] == ["vocabulary", "quantize"]
    assert result.plan is not None
    assert result.plan.steps[0].left == words.left
