"""Which patterns are worth a trial: the usual ones, random mixes, and what a regression expects?

>>> from random import Random
>>> [spelled(one, "sfi") for one in usual_picks(6, "sfi")]
['sfsfsf', 'sfffff']
>>> len(draw(6, "rsfi", Random(1)))
6
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

import numpy as np

from parformer.pattern import par
from parformer.search.placement.choices import MIXERS

Picks = tuple[int, ...]
"""The choice of every layer."""

PULL = 3.0
"""How strongly the regression is held back: patterns are few, and what can be seen of them many."""


def spelled(picks: Sequence[int], letters: str) -> str:
    return "".join(letters[pick] for pick in picks)


def usual_picks(layers: int, letters: str) -> list[Picks]:
    """What one would try without a search, as far as the choices have its blocks.

    Interleaved, PAR's rule, recurrence, LSRA or a Synthesizer in attention's place, recurrence in
    turn with it, and each of them behind a memory.
    """
    pairs = [mixer + "f" for mixer in "srly" if mixer in letters and "f" in letters]
    if {"s", "r", "f"} <= set(letters):
        pairs.append("rfsf")
    wanted = [(pair * layers)[:layers] for pair in pairs]
    if "s" in letters and "f" in letters:
        wanted.insert(1, par(layers).letters)
    if "n" in letters:
        wanted += ["n" + one[: layers - 1] for one in wanted]
    return list(dict.fromkeys(tuple(letters.index(letter) for letter in one) for one in wanted))


def draw(layers: int, letters: str, rng: Random) -> Picks:
    """A mix at random: first how much of each letter, then where."""
    shares = [rng.expovariate(1.0) for _ in letters]
    return ordered(rng.choices(range(len(letters)), shares, k=layers), letters)


def ordered(picks: Sequence[int], letters: str) -> Picks:
    """The same pattern always as the same picks: what does nothing comes last.

    >>> spelled(ordered((1, 0, 1), "fi"), "fi")
    'fii'
    """
    return tuple(sorted(picks, key=lambda pick: letters[pick] == "i"))


def neighbour(picks: Picks, letters: str, rng: Random) -> Picks:
    """The same with one or two layers changed, or two of them exchanged."""
    changed = list(picks)
    if rng.random() < 0.3:
        one, other = rng.randrange(len(picks)), rng.randrange(len(picks))
        changed[one], changed[other] = changed[other], changed[one]
    for _ in range(rng.choice((1, 2))):
        changed[rng.randrange(len(picks))] = rng.randrange(len(letters))
    return ordered(changed, letters)


def features(word: str, letters: str) -> list[float]:
    """What can be seen of a pattern without training it."""
    word = word.replace("i", "") or "i"
    last = max(1, len(word) - 1)
    found = [float(len(word))]
    for letter in letters:
        if letter == "i":
            continue
        places = [number / last for number, one in enumerate(word) if one == letter]
        found += [len(places), len(places) / len(word), float(bool(places))]
        found += [sum(places) / len(places) if places else 0.5, places[0] if places else 1.0]
    found.append(sum(one in MIXERS for one in word) / len(word))
    found.append(sum(a != b for a, b in itertools.pairwise(word)))
    return found


def most_promising(
    losses: Mapping[Picks, float],
    pool: Iterable[Picks],
    seen_of: Callable[[Picks], list[float]],
    count: int,
) -> list[Picks]:
    """Of a pool those with the lowest expected losses, by ridge regression on those known."""
    new = [picks for picks in dict.fromkeys(pool) if picks not in losses]
    known = list(losses)
    rows = np.array([seen_of(picks) for picks in [*known, *new]])
    spread = rows.std(axis=0)
    rows = (rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    seen, values = rows[: len(known)], np.array([losses[picks] for picks in known])
    weights = np.linalg.solve(
        seen.T @ seen + PULL * np.eye(rows.shape[1]), seen.T @ (values - values.mean())
    )
    expected = rows[len(known) :] @ weights
    return [new[place] for place in np.argsort(expected, kind="stable")[:count]]
