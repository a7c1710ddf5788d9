"""Is every token predicted exactly once, and with all that the model may remember?"""

# b batch, t time, v vocabulary

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from parformer.embedding import IGNORE
from parformer.errors import ConfigError, InputError
from parformer.evaluate.perplexity import Score, evaluate, row_edges, step_length
from parformer.model import Model, build, reconfigure
from tests.conftest import lively, small_config, small_model

VOCAB = 13
CAUSAL = ("transformer-xl", "gpt2", "llama")


def text(length: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).astype(np.uint8)


def make(family: str, pattern: str = "sfsf", **changes: Any) -> Model:
    """Sees 64 tokens back."""
    if family == "transformer-xl":
        changes = {"mem_len": 64} | changes
    return small_model(family, pattern, **changes)


def naive(model: Model, tokens: NDArray[Any]) -> Tensor:
    """The losses of all tokens but the first, from one look at the whole text."""
    given = torch.from_numpy(tokens.astype(np.int64))[None]
    with torch.no_grad():
        logits_btv = model(given[:, :-1]).logits
    return -logits_btv.log_softmax(-1)[0].gather(1, given[0, 1:, None])[:, 0]


class Losses:
    """Collects what `each` is told."""

    def __init__(self) -> None:
        self.by_place: dict[int, float] = {}

    def __call__(self, places: NDArray[np.int64], losses: NDArray[np.float64]) -> None:
        for place, loss in zip(places.tolist(), losses.tolist(), strict=True):
            assert place not in self.by_place
            self.by_place[place] = loss

    def of(self, *arguments: Any, **options: Any) -> list[float]:
        """The losses of an evaluation in the order of the text, each token there once."""
        score = evaluate(*arguments, each=self, **options)
        places = sorted(self.by_place)
        assert places == list(range(1, score.tokens + 1))
        found = [self.by_place[place] for place in places]
        assert score.loss == pytest.approx(sum(found) / len(found), rel=1e-12)
        return found


def losses_of(model: Model, tokens: Any, **options: Any) -> list[float]:
    return Losses().of(model, tokens, **options)


# One text, however it is read


@pytest.mark.parametrize("tgt_len", [0, 1, 5, 7, 29, 30, 64])
@pytest.mark.parametrize("family", CAUSAL)
def test_the_losses_are_those_of_the_whole_text_at_once(family: str, tgt_len: int) -> None:
    model, tokens = make(family), text(31)
    expected = naive(model, tokens)
    found = losses_of(model, tokens, tgt_len=tgt_len)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-9)
    score = evaluate(model, tokens, tgt_len=tgt_len)
    assert score.tokens == 30
    assert score.loss == pytest.approx(float(expected.mean()), rel=1e-9)
    assert score.perplexity == pytest.approx(math.exp(expected.mean()), rel=1e-9)


@pytest.mark.parametrize("batch", [2, 3, 8])
@pytest.mark.parametrize("tgt_len", [1, 4, 7])
@pytest.mark.parametrize("length", [2, 9, 60, 61])
@pytest.mark.parametrize("family", CAUSAL)
def test_rows_side_by_side_have_their_memory(
    family: str, length: int, tgt_len: int, batch: int
) -> None:
    """With one attention block nothing older than the memory matters, so rows agree exactly."""
    window = {"mem_len": 9} if family == "transformer-xl" else {"max_len": 9}
    model, tokens = small_model(family, "fsf", **window), text(length)
    alone = losses_of(model, tokens, tgt_len=tgt_len)
    together = losses_of(model, tokens, tgt_len=tgt_len, batch=batch)
    np.testing.assert_allclose(together, alone, rtol=1e-6)  # rotations by place are rounded


def test_rows_of_a_deep_model_agree_where_the_warm_up_is_the_whole_past() -> None:
    model, tokens = make("transformer-xl", mem_len=8), text(41)
    alone = losses_of(model, tokens, tgt_len=8)
    together = losses_of(model, tokens, tgt_len=8, batch=2)
    np.testing.assert_allclose(together[:24], alone[:24], rtol=1e-9)
    np.testing.assert_allclose(together[24:], alone[24:], rtol=0.5)
    assert together[24:] != alone[24:]  # NVIDIA's warm-up fills the memory, no more


@pytest.mark.parametrize("pattern", ["ff", "f", "i"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_model_without_attention_has_nothing_to_warm_up(pattern: str, batch: int) -> None:
    model, tokens = make("transformer-xl", pattern), text(50)
    found = losses_of(model, tokens, tgt_len=6, batch=batch)
    np.testing.assert_allclose(found, naive(model, tokens).numpy(), rtol=1e-9)


def test_memory_changes_the_losses() -> None:
    model, tokens = make("transformer-xl"), text(60)
    forgetful = reconfigure(model, mem_len=0)
    kept, lost = (losses_of(m, tokens, tgt_len=10) for m in (model, forgetful))
    np.testing.assert_allclose(lost[:10], kept[:10], rtol=1e-9)
    assert np.abs(np.array(lost[10:]) - kept[10:]).min() > 1e-9
    np.testing.assert_allclose(losses_of(forgetful, tokens, tgt_len=10, batch=3), lost, rtol=1e-9)


def test_a_window_of_learned_positions_slides_by_half_of_itself() -> None:
    model, tokens = make("gpt2", max_len=8), text(23)
    found = losses_of(model, tokens)
    for place in range(1, 23):
        # the step that predicts this token ends a window of eight
        end = min(math.ceil(place / 4) * 4, 24)
        start = max(0, end - 8)
        expected = naive(model, tokens[start : place + 1])[-1]
        assert found[place - 1] == pytest.approx(float(expected), rel=1e-9)


# Rows


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("warm_up", [0, 1, 3, 50])
@pytest.mark.parametrize("steps", [1, 2, 10, 51, 52, 97])
def test_rows_count_every_step_once_and_begin_where_their_memory_does(
    steps: int, warm_up: int, batch: int
) -> None:
    rows = row_edges(steps, warm_up, batch)
    assert len(rows) <= batch
    assert rows[0][:2] == (0, 0)
    assert [step for _, first, end in rows for step in range(first, end)] == list(range(steps))
    reads = rows[0][2]
    for begin, first, end in rows[1:]:
        assert 0 <= begin == first - warm_up
        assert end - begin <= reads
    # no fewer reads would do
    least = math.ceil((steps + (len(rows) - 1) * warm_up) / len(rows))
    assert reads <= max(least, 1) or len(rows) < batch


# What is given, and what comes back


def test_any_kind_of_array_will_do(tmp_path: Any) -> None:
    model, tokens = make("llama"), text(20)
    expected = evaluate(model, tokens)
    mapped = np.memmap(tmp_path / "tokens", np.uint16, "w+", shape=(20,))
    mapped[:] = tokens
    for given in (tokens.astype(np.int32), mapped, torch.from_numpy(tokens)):
        assert evaluate(model, given) == expected


def test_a_limit_reads_the_first_tokens_alone() -> None:
    model, tokens = make("gpt2"), text(40)
    assert evaluate(model, tokens, limit=12) == evaluate(model, tokens[:12])
    assert evaluate(model, tokens, limit=99) == evaluate(model, tokens)


def test_progress_ends_with_all_of_it() -> None:
    heard: list[float] = []
    evaluate(make("gpt2"), text(40), tgt_len=10, progress=heard.append)
    assert heard == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    model = build(small_config("transformer-xl", dropout=0.5)).train(training)
    model.blocks[1].train(not training)
    before = [module.training for module in model.modules()]
    first, again = (evaluate(model, text(30)).loss for _ in range(2))
    assert first == again  # nothing is dropped
    assert [module.training for module in model.modules()] == before

    def fail(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(model, text(30), progress=fail)
    assert [module.training for module in model.modules()] == before


def test_training_can_go_on_after_an_evaluation() -> None:
    model = build(small_config("transformer-xl", mem_len=8)).train()
    evaluate(model, text(30), tgt_len=8)
    tokens = torch.from_numpy(text(8).astype(np.int64))[None]
    model(tokens, targets=tokens).loss.backward()


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("family", ["transformer-xl", "bert"])
def test_a_text_with_nothing_to_predict_is_refused(family: str, length: int) -> None:
    with pytest.raises(InputError, match=f"a text of {length} tokens .* at least 2"):
        evaluate(make(family), text(length))


@pytest.mark.parametrize(
    ("tokens", "options", "words"),
    [
        (np.zeros((2, 3), np.int64), {}, "one dimension"),
        (np.zeros(5), {}, "float64"),
        (np.full(5, VOCAB), {}, "outside 0"),
        (np.zeros(5, np.int64), {"batch": 0}, "batch"),
        (np.zeros(5, np.int64), {"tgt_len": -1}, "tgt_len"),
        (np.zeros(5, np.int64), {"limit": -1}, "limit"),
        (np.zeros(5, np.int64), {"tgt_len": 65}, "window of 64"),
    ],
)
def test_what_cannot_be_read_is_refused(tokens: Any, options: Any, words: str) -> None:
    with pytest.raises((InputError, ConfigError), match=words) as caught:
        evaluate(make("gpt2"), tokens, **options)
    assert "\n" not in str(caught.value)


# Scores


def test_a_score_in_bits_characters_and_words() -> None:
    score = Score(loss=2 * math.log(2), tokens=30, characters=120, words=6)
    assert score.perplexity == pytest.approx(4)
    assert score.bits_per_character == pytest.approx(0.5)  # 60 bits over 120 characters
    assert score.word_perplexity == pytest.approx(2**10)
    values = score.to_dict()
    assert values["bits_per_character"] == score.bits_per_character
    assert (values["tokens"], values["kind"]) == (30, "perplexity")
    assert "note" not in values


def test_what_is_unknown_is_none() -> None:
    score = evaluate(make("gpt2"), text(9))
    assert score.bits_per_character is None
    assert score.word_perplexity is None


@pytest.mark.parametrize("limit", [0, 2, 30])
def test_the_tokens_predicted_stand_for_their_share_of_the_text(limit: int) -> None:
    model, tokens = make("gpt2"), text(50)
    score = evaluate(model, tokens, limit=limit, characters=50, words=10)
    assert score.characters == score.tokens == (limit or 50) - 1
    assert score.bits_per_character == pytest.approx(score.loss / math.log(2), rel=1e-12)
    assert score.words == round(score.tokens / 5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_said_and_stays_json(bad: float) -> None:
    score = Score(loss=bad, tokens=3, characters=3, words=1)
    assert str(score.perplexity) == str(bad)
    values = json.loads(json.dumps(score.to_dict(), allow_nan=False))
    assert values["loss"] is None
    assert values["perplexity"] is None
    assert values["bits_per_character"] is None
    assert str(bad) in values["note"]


def test_broken_weights_give_nan_and_large_losses_no_error() -> None:
    model = lively(build(small_config("gpt2")))
    with torch.no_grad():
        next(model.parameters())[3, 0] = math.nan
    assert math.isnan(evaluate(model, text(30)).loss)
    assert Score(loss=1000.0, tokens=1).perplexity == math.inf
    assert Score(loss=1000.0, tokens=1).to_dict()["perplexity"] is None


def test_sums_are_in_double_precision() -> None:
    class Constant(nn.Module):
        """Loses as much on every token; the first one is off by a little."""

        def __init__(self, model: Model) -> None:
            super().__init__()
            self.config, self.weight = model.config, nn.Parameter(torch.zeros(1))

        def forward(self, tokens: Tensor, state: Any = None, targets: Any = None) -> Any:
            self.losses, self.state = torch.full(tokens.shape, 1e8 / 3).float(), None
            self.losses[0, 0] = 1.0
            return self

    model: Any = Constant(make("transformer-xl"))
    third = float(torch.tensor(1e8 / 3))
    assert evaluate(model, text(101), tgt_len=100).loss == (99 * third + 1) / 100


def test_rotary_positions_are_never_asked_beyond_their_window() -> None:
    """The losses are those of windows as in training: half of one, then the half that counts."""
    model, tokens = make("llama", "sf", max_len=16), text(70)
    found = Losses()
    evaluate(model, tokens, each=found)
    assert step_length(model, 0) == 8
    for first in range(0, 64, 8):
        begin = max(0, first - 8)
        want = naive(model, tokens[begin : first + 9])[first - begin :]
        got = torch.tensor([found.by_place[first + 1 + i] for i in range(8)])
        torch.testing.assert_close(got, want.double(), atol=1e-5, rtol=1e-5, check_dtype=False)
    with pytest.raises(InputError, match="exceeds the window of 16"):
        evaluate(model, tokens, tgt_len=17)


# Masked models


def test_a_masked_model_guesses_hidden_words() -> None:
    model, tokens = make("bert", max_len=20), text(150)
    score = evaluate(model, tokens, seed=3)
    assert score.kind == "pseudo-perplexity"
    assert score.tokens == 7 * 3 + 2  # 15% of twenty, seven times, and of the last ten
    assert score == evaluate(model, tokens, seed=3)
    assert score != evaluate(model, tokens, seed=4)
    assert score == evaluate(model, tokens, seed=3, mask_id=VOCAB - 1)
    assert score != evaluate(model, tokens, seed=3, mask_id=0)
    assert evaluate(model, tokens, characters=150, words=30).bits_per_character is None


@pytest.mark.parametrize("batch", [2, 3, 50])
def test_what_a_masked_model_guesses_does_not_depend_on_the_batch(batch: int) -> None:
    model, tokens = make("bert", max_len=20), text(150)
    alone, together = Losses(), Losses()
    evaluate(model, tokens, each=alone)
    evaluate(model, tokens, each=together, batch=batch)
    assert alone.by_place.keys() == together.by_place.keys()
    for place, loss in alone.by_place.items():
        assert together.by_place[place] == pytest.approx(loss, rel=1e-9)


def test_masked_losses_belong_to_the_words_that_were_there(monkeypatch: Any) -> None:
    model, tokens = make("bert", max_len=16), text(32)
    seen: list[tuple[Tensor, Tensor]] = []
    forward = Model.forward

    def watch(self: Model, given: Tensor, **options: Any) -> Any:
        seen.append((given, options["targets"]))
        return forward(self, given, **options)

    monkeypatch.setattr(Model, "forward", watch)
    losses = Losses()
    evaluate(model, tokens, each=losses, mask_id=5)
    monkeypatch.undo()
    given, wanted = (torch.cat(part, dim=1)[0] for part in zip(*seen, strict=True))
    counted = wanted != IGNORE
    assert sorted(losses.by_place) == counted.nonzero()[:, 0].tolist()
    original = torch.from_numpy(tokens.astype(np.int64))
    assert torch.equal(wanted[counted], original[counted])
    assert torch.equal(given[~counted], original[~counted])
    with torch.no_grad():
        logits = torch.cat([model(given[None, :16]).logits, model(given[None, 16:]).logits], dim=1)
    for place, loss in losses.by_place.items():
        expected = -logits[0, place].log_softmax(-1)[original[place]]
        assert loss == pytest.approx(float(expected), rel=1e-9)


# The same weights, read otherwise


def test_reconfigured_models_share_their_weights() -> None:
    model = lively(build(small_config("transformer-xl", mem_len=4))).train()
    other = reconfigure(model, mem_len=16, clamp_len=3, same_length=True)
    assert (other.config.mem_len, other.config.clamp_len, other.config.same_length) == (16, 3, True)
    assert model.config.mem_len == 4
    assert model.training
    assert not other.training
    for mine, others in zip(model.parameters(), other.parameters(), strict=True):
        assert mine is others
    plain = lively(build(small_config("transformer-xl", mem_len=16, clamp_len=3, same_length=True)))
    assert evaluate(other, text(40), tgt_len=8) == evaluate(plain, text(40), tgt_len=8)


def test_tied_weights_stay_tied_when_reconfigured() -> None:
    config = small_config("transformer-xl", embedding="adaptive", cutoffs=(5, 9), div_val=2)
    other = reconfigure(build(config), mem_len=3)
    assert list(other.state_dict()) == list(build(config).state_dict())
    assert other.head.tables is other.embedding.words.tables


@pytest.mark.parametrize(
    "changes", [{"d_inner": 21}, {"pattern": "sfsf"}, {"tie_weights": False}, {"vocab_size": 14}]
)
def test_a_change_of_shape_is_refused(changes: dict[str, Any]) -> None:
    name, value = next(iter(changes.items()))
    with pytest.raises(ConfigError, match=f"{name}={value!r} would change the shape of '"):
        reconfigure(build(small_config("transformer-xl")), **changes)
