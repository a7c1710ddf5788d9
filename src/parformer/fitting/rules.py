"""Which blocks in which order may enter the contest by rule?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parformer.pattern import Pattern, par

DEPTHS = (1, 0.75, 0.5)
"""Blocks of a placement by rule, in multiples of the baseline's."""
INSTEAD = {
    "r": ("recurrent", "Recurrence", "recurrence in the place of attention"),
    "l": ("lsra", "LSRA", "attention with half of the channels, convolution with the others"),
    "y": ("synthesizer", "Synthesizer", "a dense Synthesizer in the place of attention"),
}
"""What may stand in the place of attention, by its letter: its name, its title, and in words."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Which blocks in which order, and where that came from."""

    name: str
    title: str
    how: str
    patterns: tuple[Pattern, ...]
    """Of one depth or several, the deepest first."""


def placements(layers: int, letters: str, found: str) -> list[Placement]:
    """What may be compared: by rule, and found by a search if there was one.

    >>> for one in placements(12, "rsfn", ""):
    ...     print(one.name, one.patterns[0])
    interleaved (sf)x6
    par (sfff)x2 (f)x4
    recurrent (rf)x6
    hybrid (rfsf)x3
    memory n (rfsf)x3
    """
    depths = list(dict.fromkeys(max(2, 2 * round(share * layers / 2)) for share in DEPTHS))
    rule = "one block in five is attention, in the first two thirds"
    turns = "attention and feed-forward in turn"
    known = [
        Placement("interleaved", "Interleaved, resized", turns, in_turn("sf", depths)),
        Placement("par", "PAR's rule", rule, tuple(map(par, depths))),
    ]
    for letter, (name, title, what) in INSTEAD.items():
        if letter not in letters:
            continue
        known.append(Placement(name, title, what, in_turn(f"{letter}f", depths)))
        if letter == "r":
            known += hybrids(depths, memory="n" in letters)
    seen = {pattern for placement in known for pattern in placement.patterns}
    if found and (pattern := Pattern.parse(found)) not in seen and pattern.letters.strip("i"):
        known.append(Placement("found", "Found", "where the search put the blocks", (pattern,)))
    return known


def hybrids(depths: Sequence[int], *, memory: bool) -> list[Placement]:
    """Recurrence and attention in turn, and the same behind a memory; two blocks are neither."""
    both = tuple(one for one in in_turn("rfsf", depths) if "s" in one.letters)
    if not both:
        return []
    turns = "recurrence and attention in turn, feed-forwards between"
    found = [Placement("hybrid", "Recurrence and attention", turns, both)]
    if memory:
        behind = tuple(Pattern.parse(f"n {pattern}") for pattern in both)
        how = f"a memory of n-grams, then {turns}"
        found.append(Placement("memory", "Memory, then both", how, behind))
    return found


def in_turn(letters: str, depths: Sequence[int]) -> tuple[Pattern, ...]:
    """As many of these letters, over and over, as there are blocks."""
    over = (letters * -(-depth // len(letters)) for depth in depths)
    return tuple(Pattern.parse(word[:depth]) for word, depth in zip(over, depths, strict=True))
