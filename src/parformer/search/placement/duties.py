"""What must a translator's pattern do, whatever a search settles on?

Its decoder looks at the source somewhere, or it would write without having read; its encoder mixes
tokens where that is offered, and is never nothing. Where the likeliest pattern fails at one of
these, the layer that is likeliest to do it does it.

>>> [duty.words for duty in duties_of(Choices.of_sides([(2, "sfi"), (3, "scfi")]))]
['look at the source', 'mix tokens']
>>> duties_of(Choices.uniform(3, "sfi"))
()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from parformer.errors import ConfigError
from parformer.pattern import BlockSpec, Pattern
from parformer.search.placement.choices import MIXERS, Choices, Stretch

Rows = Sequence[Sequence[float]]
"""A number for every choice of every layer."""


@dataclass(frozen=True, slots=True)
class Duty:
    """What at least one layer of a stack has to do."""

    words: str
    stretch: Stretch
    able: tuple[frozenset[int], ...]
    """The choices that do it, of every layer of the model."""

    def met(self, picks: Sequence[int]) -> bool:
        return any(pick in able for pick, able in zip(picks, self.able, strict=True))

    def best(self, rows: Rows) -> tuple[int, int]:
        """The layer and choice with the highest number of those that do it; the first of equals."""
        able = [(layer, pick) for layer, picks in enumerate(self.able) for pick in sorted(picks)]
        return max(able, key=lambda place: rows[place[0]][place[1]])


def duties_of(space: Choices) -> tuple[Duty, ...]:
    """What a space's patterns have to do; nothing is asked of a single stack."""
    if not space.encoder:
        return ()
    encoder, decoder = space.stretches
    looking = able_of(space, decoder, looks)
    if not any(looking):
        offered = Pattern(dict.fromkeys(spec for row in decoder.of(space.layers) for spec in row))
        raise ConfigError(
            f"no choice of the decoder, {str(offered)!r}, looks at the source; give it c, such as "
            "--choices 'sfi | scfi'"
        )
    mixing = able_of(space, encoder, mixes)
    reads = Duty("mix tokens", encoder, mixing)
    if not any(mixing):
        reads = Duty("read", encoder, able_of(space, encoder, lambda spec: spec.letter != "i"))
    return Duty("look at the source", decoder, looking), reads


def able_of(
    space: Choices, stretch: Stretch, does: Callable[[BlockSpec], bool]
) -> tuple[frozenset[int], ...]:
    """Which choices of a stack's layers do something; none of any other's."""
    return tuple(
        frozenset(pick for pick, spec in enumerate(row) if layer in stretch.layers and does(spec))
        for layer, row in enumerate(space.layers)
    )


def looks(spec: BlockSpec) -> bool:
    """Whether a block of a decoder, or one inside of it, sees the source."""
    if spec.inside is not None:
        return any(map(looks, spec.inside))
    return spec.letter == "c" or (spec.letter == "a" and "source" in spec.options)


def mixes(spec: BlockSpec) -> bool:
    """Whether a block, or one inside of it, sees other tokens."""
    return any(map(mixes, spec.inside)) if spec.inside is not None else spec.letter in MIXERS


def keep(
    log_probabilities: Rows,
    duties: Sequence[Duty],
    decode: Callable[[Rows], list[int]],
) -> tuple[list[int], dict[int, Duty]]:
    """What is decoded with every duty done, and the layers that had to be told to.

    `decode` may keep to a limit: then what other layers lose for it is its to say.
    """
    rows = [list(row) for row in log_probabilities]
    picks, kept = decode(rows), dict[int, Duty]()
    while (left := next((duty for duty in duties if not duty.met(picks)), None)) is not None:
        layer, _ = left.best(rows)
        rows[layer] = [
            value if pick in left.able[layer] else -math.inf
            for pick, value in enumerate(rows[layer])
        ]
        kept[layer] = left
        picks = decode(rows)
    return picks, kept


def cheapest(prices: Sequence[Sequence[int]], duties: Sequence[Duty]) -> list[int]:
    """The picks that cost least with every duty done."""
    picks = [min(range(len(row)), key=row.__getitem__) for row in prices]
    more = [[row[pick] - price for price in row] for row, pick in zip(prices, picks, strict=True)]
    for duty in duties:
        if not duty.met(picks):
            layer, pick = duty.best(more)
            picks[layer] = pick
    return picks


def duty_words(kept: Mapping[int, Duty], space: Choices, picks: Sequence[int]) -> list[str]:
    """Where the likeliest pattern was no translator's, and which layer was taken for that."""
    said = []
    for layer, duty in sorted(kept.items()):
        where, block = duty.stretch.told(layer).capitalize(), space.layers[layer][picks[layer]]
        said.append(
            f"{where} has {block}: no layer of the {duty.stretch.name} had settled on a block that "
            f"can {duty.words}, and this one was the likeliest for it. Search longer, or with a "
            "longer search.warmup, to be sure."
        )
    return said
