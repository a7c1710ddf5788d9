"""Does a model still find again what it has just read?

Recall breaks first when attention goes, and a loss hides it: most words of a text can be guessed
without. So two tests that nothing but recall can pass, of the commonest tokens of the text in an
order that means nothing: *copying* (a row of tokens, and the same row again) and *associative
recall* (keys and values by turns, then the keys in another order). A model has to tell which of
the row's tokens comes next, or which of the values belongs to a key; whoever guesses is right once
in so many.
"""

# q question, n tokens of a row, v vocabulary

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parformer.data.batches import Tokens, number_for
from parformer.model import Model
from parformer.records import Record

ROWS, AT_ONCE = 64, 8
"""Rows of each test, and those that are read together."""
LENGTH, PAIRS = 16, 8
"""Tokens that are copied, and pairs that are remembered, where a model reads that far."""
FEWEST = 3
COMMON = 500
"""Tokens that are drawn from: the commonest of the text."""


@dataclass(frozen=True, kw_only=True)
class Recalled(Record):
    """Shares of the questions that were answered rightly."""

    copying: float
    recall: float
    copying_chance: float
    recall_chance: float
    """What guessing reaches."""
    copying_questions: int
    recall_questions: int

    def error(self, what: str) -> float:
        """Half of the interval that a share lies in with 95% confidence."""
        share, count = getattr(self, what), getattr(self, f"{what}_questions")
        return float(1.96 * (share * (1 - share) / count) ** 0.5)


def probe(model: Model, text: Tokens, seed: int = 0) -> Recalled | None:
    """How well a causal model remembers; None where it or its text is too small to be asked."""
    config = model.config
    words = common(text, min(COMMON, config.vocab_size))
    window = config.max_len or 4 * LENGTH
    length = min(LENGTH, window // 2, len(words))
    pairs = min(PAIRS, window // 4, len(words) // 2)
    if min(length, pairs) < FEWEST:
        return None
    generator = np.random.default_rng(number_for(seed, "recall"))
    rows = np.stack([generator.permutation(words)[: 2 * pairs] for _ in range(ROWS)])
    orders = np.stack([generator.permutation(pairs) for _ in range(ROWS)])
    lines = np.stack([generator.permutation(words)[:length] for _ in range(ROWS)])
    copying = answered(model, *to_copy(torch.from_numpy(lines).long()))
    recall = answered(model, *to_recall(torch.from_numpy(rows).long(), torch.from_numpy(orders)))
    return Recalled(
        copying=copying,
        recall=recall,
        copying_chance=1 / length,
        recall_chance=1 / pairs,
        copying_questions=ROWS * (length - 1),
        recall_questions=ROWS * pairs,
    )


def common(text: Tokens, count: int) -> Tokens:
    """The commonest tokens of a text, in an order of their own."""
    found, often = np.unique(np.asarray(text), return_counts=True)
    return np.sort(found[np.argsort(-often, kind="stable")[:count]])


def to_copy(lines_bn: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What is read, where is asked, what may be answered, and which of that is right.

    >>> tokens, places, options, right = to_copy(torch.tensor([[5, 6, 7]]))
    >>> tokens.tolist(), places.tolist(), right.tolist()
    ([[5, 6, 7, 5, 6]], [[3, 4]], [[1, 2]])
    """
    count, length = lines_bn.shape
    tokens_bt = torch.cat((lines_bn, lines_bn[:, :-1]), 1)
    places_bq = torch.arange(length, 2 * length - 1).expand(count, -1)
    right_bq = torch.arange(1, length).expand(count, -1)
    return tokens_bt, places_bq, lines_bn, right_bq


def to_recall(rows_bn: Tensor, orders_bq: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same for keys and values: keys stand at even places.

    >>> [x.tolist() for x in to_recall(torch.tensor([[5, 6, 7, 8]]), torch.tensor([[1, 0]]))]
    [[[5, 6, 7, 8, 7, 8, 5]], [[4, 6]], [[6, 8]], [[1, 0]]]
    """
    keys_bp, values_bp = rows_bn[:, ::2], rows_bn[:, 1::2]
    again = torch.stack((keys_bp.gather(1, orders_bq), values_bp.gather(1, orders_bq)), -1)
    tokens_bt = torch.cat((rows_bn, again.flatten(1)[:, :-1]), 1)
    first = rows_bn.shape[1]
    places_bq = torch.arange(first, tokens_bt.shape[1], 2).expand(len(rows_bn), -1)
    return tokens_bt, places_bq, values_bp, orders_bq


@torch.inference_mode()
def answered(
    model: Model, tokens_bt: Tensor, places_bq: Tensor, options_bn: Tensor, right_bq: Tensor
) -> float:
    """The share of questions whose likeliest option is the right one."""
    right = 0
    for start in range(0, len(tokens_bt), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        logits_btv = model(tokens_bt[some]).logits
        assert logits_btv is not None
        width = logits_btv.shape[-1]
        asked_bqv = logits_btv.gather(1, places_bq[some, :, None].expand(-1, -1, width))
        options_bqn = options_bn[some, None, :].expand(-1, places_bq.shape[1], -1)
        told_bq = asked_bqv.gather(2, options_bqn).argmax(-1)
        right += int((told_bq == right_bq[some]).sum())
    return right / right_bq.numel()
