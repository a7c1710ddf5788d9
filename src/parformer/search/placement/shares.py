"""Which part of a text is the weights', and which the architecture's?

Each is from all over it. A stream of tokens is cut into stretches, and each of them shared out;
where a text has rows that stay whole, such as pairs, these are dealt out one by one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from parformer.data.batches import Tokens
from parformer.errors import CorpusError
from parformer.recipe import Recipe
from parformer.tasks import find_task
from parformer.tasks.base import train_length

PLACES = 64
"""Stretches that the text is cut into before each is shared out: no text is alike everywhere."""


def share_out(tokens: Tokens, recipe: Recipe) -> tuple[Tokens, Tokens]:
    """The weights' part of the text and the architecture's, each from all over it."""
    assert recipe.search is not None, "a recipe of a training"
    ends = find_task(recipe).ends(tokens)
    if ends is not None:
        return deal_out(tokens, ends, recipe.search.share)
    each, share = len(tokens) // PLACES, recipe.search.share
    needed = recipe.train.batch * (train_length(recipe) + 1)
    cut = own_part(each, share)
    if PLACES * min(cut, each - cut) < needed:
        whole = shortest(needed, share)
        raise CorpusError(
            f"the train split has {len(tokens):,} tokens, but a search with {recipe.train.batch} "
            f"texts of {train_length(recipe)} needs {whole:,}: {share:.0%} of them "
            "are the architecture's; give a longer text, or lower train.batch or train.tgt_len"
        )
    rows = np.asarray(tokens[: PLACES * each]).reshape(PLACES, each)
    return rows[:, :cut].ravel(), rows[:, cut:].ravel()


def deal_out(tokens: Tokens, ends: NDArray[np.int64], share: float) -> tuple[Tokens, Tokens]:
    """Rows one by one: whenever the architecture's share has grown by a whole row, it gets one."""
    theirs_r = np.diff(np.floor(np.arange(len(ends) + 1) * share)) > 0
    if theirs_r.all() or not theirs_r.any():
        raise CorpusError(
            f"the train split has {len(ends):,} pairs, too few to be shared out: {share:.0%} of "
            "them are the architecture's; give more pairs, or another search.share"
        )
    theirs_n = np.repeat(theirs_r, np.diff(ends, prepend=0))
    whole = np.asarray(tokens[: ends[-1]])
    return whole[~theirs_n], whole[theirs_n]


def own_part(each: int, share: float) -> int:
    """How much of a stretch is the weights'."""
    return each - round(share * each)


def shortest(needed: int, share: float) -> int:
    """The shortest text of which both parts have so many tokens."""
    each = math.ceil(needed / PLACES)
    while PLACES * min(own_part(each, share), each - own_part(each, share)) < needed:
        each += 1
    return PLACES * each
