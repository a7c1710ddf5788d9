"""Where may which letters stand, in one stack or in an encoder and a decoder?

Picks are counted through, the encoder's first. What is drawn or changed is so in each stack by
itself; what a regression sees of a pattern is what it sees of its stacks, one after the other.

>>> both = Stacks((Side(6, "sfli"), Side(6, "scfi")))
>>> [both.spelled(picks) for picks in both.usual()]
['sfsfsf-scfscf', 'lflflf-scfscf', 'sfffff-scfscf', 'sfsfsf-scfiii']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

from parformer.errors import ConfigError
from parformer.pattern import BlockSpec, par
from parformer.search.placement.choices import MIXERS, Choices
from parformer.search.trials.patterns import (
    Picks,
    draw,
    features,
    most_promising,
    neighbour,
    spelled,
    usual_picks,
)


@dataclass(frozen=True, slots=True)
class Side:
    """The places of a stack, and the letters that may stand there."""

    places: int
    letters: str


@dataclass(frozen=True, slots=True)
class Stacks:
    """All stacks of a model, an encoder first."""

    sides: tuple[Side, ...]

    @classmethod
    def of(cls, space: Choices) -> Stacks:
        """Those of a space, where every place of a stack has the same choices."""
        cuts = [stretch.of(space.layers) for stretch in space.stretches]
        return cls(tuple(Side(len(layers), letters_of(layers[0])) for layers in cuts))

    @property
    def letters(self) -> str:
        return " | ".join(side.letters for side in self.sides)

    @property
    def translates(self) -> bool:
        return len(self.sides) > 1

    def cut(self, picks: Picks) -> list[tuple[Picks, Side]]:
        """The picks of every stack."""
        found, first = [], 0
        for side in self.sides:
            found.append((picks[first : first + side.places], side))
            first += side.places
        return found

    def spelled(self, picks: Picks) -> str:
        return "-".join(spelled(own, side.letters) for own, side in self.cut(picks))

    def looks(self, picks: Picks) -> bool:
        """Whether tokens see others, and a decoder its source."""
        *before, last = (spelled(own, side.letters) for own, side in self.cut(picks))
        if not before:
            return bool(last.strip("fi"))
        return "c" in last and any(letter in MIXERS for letter in before[0])

    def usual(self) -> list[Picks]:
        """What one would try without a search."""
        if not self.translates:
            return usual_picks(self.sides[0].places, self.sides[0].letters)
        encoder, decoder = self.sides
        wanted = []
        for mixer in "slry":
            reads = f"{mixer}f" if {mixer, "f"} <= {*encoder.letters} else "sf"
            writes = f"{mixer}cf" if {mixer, "c", "f"} <= {*decoder.letters} else "scf"
            wanted.append((repeated(reads, encoder), repeated(writes, decoder)))
        wanted.append((par(encoder.places).letters, repeated("scf", decoder)))
        wanted.append((repeated("sf", encoder), f"scf{'i' * decoder.places}"[: decoder.places]))
        found = [
            tuple(
                side.letters.index(letter)
                for word, side in zip(words, self.sides, strict=True)
                for letter in word
            )
            for words in dict.fromkeys(wanted)
            if all({*word} <= {*side.letters} for word, side in zip(words, self.sides, strict=True))
        ]
        return [picks for picks in found if self.looks(picks)]

    def draw(self, rng: Random) -> Picks:
        """A mix at random, in every stack."""
        drawn = [draw(side.places, side.letters, rng) for side in self.sides]
        return tuple(pick for own in drawn for pick in own)

    def neighbour(self, picks: Picks, rng: Random) -> Picks:
        """The same with one stack changed a little."""
        which = rng.randrange(len(self.sides)) if self.translates else 0
        parts = [
            neighbour(own, side.letters, rng) if number == which else own
            for number, (own, side) in enumerate(self.cut(picks))
        ]
        return tuple(pick for own in parts for pick in own)

    def features(self, picks: Picks) -> list[float]:
        """What can be seen of a pattern without training it."""
        seen = (features(spelled(own, side.letters), side.letters) for own, side in self.cut(picks))
        return [value for own in seen for value in own]

    def most_promising(
        self, losses: Mapping[Picks, float], pool: Iterable[Picks], count: int
    ) -> list[Picks]:
        return most_promising(losses, pool, self.features, count)


def repeated(word: str, side: Side) -> str:
    """A word as often as it takes to fill a stack."""
    return (word * side.places)[: side.places]


def letters_of(choices: Iterable[BlockSpec]) -> str:
    """A letter for every choice; two choices of one letter cannot be told apart in a word."""
    letters = "".join(spec.letter for spec in choices)
    if len(set(letters)) < len(letters):
        raise ConfigError(
            f"trials choose among letters, and {letters!r} has one twice; give each once, or "
            "search by supernet"
        )
    return letters
