"""Are continuations that share a text scored as if each were read alone?"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from parformer.errors import InputError
from parformer.evaluate.choices import Question, of_like_length, score_pairs
from parformer.model import Model, build
from tests.conftest import lively, small_config


def make(family: str, pattern: str, **changes: Any) -> Model:
    window = {"mem_len": 60} if family in ("transformer-xl", "sru") else {"max_len": 40}
    config = small_config(family, pattern=pattern, d_model=16, n_head=2, **(window | changes))
    return lively(build(config, dtype=torch.float64))


def alone(model: Model, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """One pair in one piece."""
    tokens = [*context, *continuation]
    if model.config.numbered:
        tokens = tokens[-model.config.max_len - 1 :]
    state = model.initial_state(1, 200 if not model.config.numbered else model.config.max_len)
    with torch.no_grad():
        logs = model(torch.tensor([tokens[:-1]]), state).logits[0].log_softmax(-1)
    logs = logs[-len(continuation) :]
    chosen = logs[range(len(continuation)), continuation]
    return float(chosen.sum()), logs.argmax(-1).tolist() == continuation


def pairs_of(count: int) -> list[tuple[list[int], list[int]]]:
    random = Random(1)
    contexts = [[random.randrange(13) for _ in range(random.randrange(1, 12))] for _ in range(6)]
    return [
        (random.choice(contexts), [random.randrange(13) for _ in range(random.randrange(1, 6))])
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("family", "pattern", "changes"),
    [
        ("gpt2", "sf", {}),
        ("llama", "srf", {}),
        ("transformer-xl", "sf", {}),
        ("sru", "raf", {"recall": 5}),
        ("gpt2", "yf", {}),
        ("llama", "sf", {"counts": 4096}),
    ],
)
def test_shared_texts_score_as_if_alone(
    family: str, pattern: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pairs = make(family, pattern, **changes), pairs_of(40)
    for batch, step in ((64, 2048), (64, 11), (5, 2048)):
        monkeypatch.setattr("parformer.evaluate.choices.STEP", step)
        for ours, pair in zip(score_pairs(model, pairs, batch=batch), pairs, strict=True):
            wanted, greedy = alone(model, *pair)
            assert ours.logprob == pytest.approx(wanted, abs=1e-6)
            assert ours.greedy == greedy


def test_little_is_filled_up() -> None:
    """One long continuation must not make all others as long."""
    question = Question((1,), [*range(9)], [[1] * 3 for _ in range(8)] + [[1] * 1500])
    groups = [[len(q.choices[n]) for q, n in rows] for rows in of_like_length([question])]
    assert groups == [[3] * 8, [1500]]


def test_what_exceeds_a_window_is_cut_on_the_left() -> None:
    model = make("gpt2", "sf", max_len=8)
    pairs = [([1] * 20 + [2, 3], [4, 5, 6]), ([7], [1, 2]), ([5] * 7, [1, 2])]
    for ours, pair in zip(score_pairs(model, pairs), pairs, strict=True):
        assert ours.logprob == pytest.approx(alone(model, *pair)[0], abs=1e-9)
    with pytest.raises(InputError, match="continuation of 9 tokens exceeds the window of 8"):
        score_pairs(model, [([1], [2] * 9)])
    with pytest.raises(InputError, match="pair 2 has no text or no continuation"):
        score_pairs(model, [([1], [2]), ([], [1])])
