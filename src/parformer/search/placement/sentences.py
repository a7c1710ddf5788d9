"""What does each block of a translator add to the time of a whole text?

Every distinct choice is timed as a stack of its copies beside an empty other side, in turns with
a model of no blocks and with the interleaved one, as blocks of one stack are. An encoder's block
is paid once for a text, a decoder's at every token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parformer.config import ModelConfig
from parformer.events import Preparing
from parformer.measure.readings import Readings, Step
from parformer.pattern import BlockSpec, Pattern
from parformer.search.placement.choices import IDENTITY, Choices
from parformer.search.placement.prices import Prices, baseline_of
from parformer.search.sentences import measure_any

BEAM, LENGTH = 5, 20
"""Texts that are looked for side by side, and tokens of source and text."""
COPIES = 4
ROUNDS = 15


def measured_sentences(
    config: ModelConfig,
    space: Choices,
    *,
    threads: int = 1,
    progress: Preparing | None = None,
) -> Prices:
    """Prices in nanoseconds of a text of 20 tokens from 20, by five beams, timed here."""
    interleaved = baseline_of(space)
    assert interleaved.encoder is not None
    empty = Pattern(IDENTITY.blocks, IDENTITY)
    sides = (
        kinds(interleaved.encoder, space.layers[: space.encoder]),
        kinds(interleaved, space.layers[space.encoder :]),
    )
    stacks = (
        {spec: Pattern(IDENTITY.blocks, Pattern([spec]) * COPIES) for spec in sides[0]},
        {spec: Pattern((Pattern([spec]) * COPIES).blocks, IDENTITY) for spec in sides[1]},
    )
    patterns = [empty, interleaved, *stacks[0].values(), *stacks[1].values()]
    configs = {str(pattern): config.replaced(pattern=pattern) for pattern in patterns}
    # ratios are to the first, which is the interleaved one
    ordered = {str(interleaved): configs[str(interleaved)], **configs}
    found = time_texts(ordered, threads=threads, progress=progress)
    whole = 1e9 * found[str(interleaved)].median
    fixed = whole * found[str(empty)].ratio
    prices: list[dict[BlockSpec, int]] = [
        {
            spec: max(0, round((whole * found[str(pattern)].ratio - fixed) / COPIES))
            for spec, pattern in stack.items()
        }
        for stack in stacks
    ]
    total = sum(prices[0][spec] for spec in interleaved.encoder)
    total += sum(prices[1][spec] for spec in interleaved)
    return Prices(
        metric="latency",
        choices=tuple(
            tuple(prices[number >= space.encoder].get(spec, 0) for spec in choices)
            for number, choices in enumerate(space.layers)
        ),
        fixed=round(fixed),
        baseline=round(fixed) + total,
        measured=round(whole),
    )


def time_texts(
    configs: Mapping[str, ModelConfig], *, threads: int = 1, progress: Preparing | None = None
) -> Readings:
    """What such a text takes of every translator."""
    step = Step(tgt_len=LENGTH, threads=threads or 1, rounds=ROUNDS, source=LENGTH, beam=BEAM)
    return measure_any(configs, step, progress)


def kinds(interleaved: Pattern, layers: Sequence[Sequence[BlockSpec]]) -> list[BlockSpec]:
    """Every block that may stand in a stack and does something, once."""
    every = dict.fromkeys((*interleaved, *(spec for row in layers for spec in row)))
    return [spec for spec in every if spec not in IDENTITY]
