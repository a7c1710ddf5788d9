"""What does each choice of a search cost, beside the interleaved model?

Every layer's choice adds its price to what the rest of the model takes anyway, so a sum over
the layers is the price of the whole. FLOPs, parameters and state are counted, and exact;
latency is measured on this machine. All are whole numbers, and compared as multiples of the
interleaved Transformer with as many layers.

>>> from parformer.config import preset
>>> prices = exact("flops", preset("pocket"), Choices.uniform(12, "sfi"))
>>> prices.total([0, 1] * 6), round(prices.total([0, 1, 1, 2, 2, 2] * 2), 2)
(1.0, 0.44)
"""

# l layer, c choice

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from parformer.blocks.base import Shape, find_block
from parformer.config import ModelConfig
from parformer.costs import cost, step_shape
from parformer.errors import ConfigError
from parformer.events import Preparing
from parformer.fields import check_names, fit_fields
from parformer.measure.latency import measure_latency
from parformer.measure.models import Reader, step_words
from parformer.model import build
from parformer.pattern import BlockSpec, Pattern
from parformer.records import Record
from parformer.search.placement.choices import IDENTITY, Choices
from parformer.search.placement.duties import cheapest, duties_of
from parformer.search.placement.target import COUNTED, METRICS

FEWEST_COPIES = 8
"""One block takes microseconds; it is timed in a stack of at least so many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices(Record):
    """What every choice adds, and what the model costs without any."""

    metric: str
    """One of METRICS: FLOPs of a step, parameters, bytes of state, or nanoseconds of a step."""
    choices: tuple[tuple[int, ...], ...]
    """Of each layer's choices, in the order of the search space."""
    fixed: int
    """Everything outside the blocks: embedding, head, final norm."""
    baseline: int
    """The interleaved model with as many layers, as the sum of its parts."""
    measured: int = 0
    """What the clock said of the interleaved model; 0 for a metric that is counted."""

    def __post_init__(self) -> None:
        fit_fields(self)
        check_names([self.metric], METRICS, "metric")
        if not self.choices or not all(self.choices):
            raise ConfigError("choices must have a price in every layer; give at least one")
        if (least := min(self.fixed, self.measured, *map(min, self.choices))) < 0:
            raise ConfigError(f"prices must not be negative, got {least}")
        if self.baseline < 1:
            raise ConfigError(f"baseline must be at least 1, got {self.baseline}")

    @property
    def relative_fixed(self) -> float:
        """What the model costs without its blocks, beside the interleaved one."""
        return self.fixed / self.baseline

    @property
    def error(self) -> float:
        """How far the sum of its parts is from what was measured: 0.05 is 5% too much."""
        return self.baseline / self.measured - 1 if self.measured else 0.0

    def relative_lc(self) -> Tensor:
        """Each choice's price beside the interleaved model, as wide as the widest layer."""
        widest = max(map(len, self.choices))
        rows = [[*row, *[0] * (widest - len(row))] for row in self.choices]
        return torch.tensor(rows, dtype=torch.float64) / self.baseline

    def total(self, picks: Sequence[int]) -> float:
        """What one choice per layer costs beside the interleaved model, which costs 1."""
        blocks = sum(row[pick] for row, pick in zip(self.choices, picks, strict=True))
        return (self.fixed + blocks) / self.baseline

    def room(self, limit: float) -> int:
        """What blocks may cost so that the model stays within a limit, read as it is written."""
        return math.floor(Fraction(repr(float(limit))) * self.baseline) - self.fixed


def baseline_pattern(layers: int) -> Pattern:
    """The interleaved Transformer with as many layers; an odd one ends with attention."""
    return Pattern.parse(("sf" * layers)[:layers])


def baseline_of(space: Choices) -> Pattern:
    """The interleaved model with as many layers: for translators, one with cross-attention.

    >>> str(baseline_of(Choices.of_sides([(4, "sfi"), (6, "scfi")])))
    '(sf)x2 | (scf)x2'
    """
    if not space.encoder:
        return baseline_pattern(len(space.layers))
    places = len(space.layers) - space.encoder
    decoder = Pattern.parse(("scf" * places)[:places])
    return Pattern(decoder.blocks, baseline_pattern(space.encoder))


def exact(metric: str, config: ModelConfig, space: Choices) -> Prices:
    """Prices of one step of the model's own length after its full memory, from the formulas.

    FLOPs are the papers': the memory is projected again, as in training.
    """
    check_names([metric], COUNTED, "counted metric")
    name, shape = COUNTED[metric], step_shape(config, None, None, 1)

    def price(spec: BlockSpec, *, reads: bool = False) -> int:
        stack = config.source if reads else config
        assert stack is not None
        own = reading_shape(shape) if reads else shape
        return int(getattr(find_block(spec).cost(stack, spec, own), name))

    interleaved = baseline_of(space)
    baseline = int(getattr(cost(config.replaced(pattern=interleaved)), name))
    if baseline == 0:
        why = "it sees both sides" if not config.causal else "its mem_len is 0"
        others = ", ".join(other for other in METRICS if other != metric)
        raise ConfigError(f"this model keeps no {metric}, as {why}; choose one of {others}")
    return Prices(
        metric=metric,
        choices=tuple(
            tuple(price(spec, reads=number < space.encoder) for spec in choices)
            for number, choices in enumerate(space.layers)
        ),
        fixed=baseline
        - sum(map(price, interleaved))
        - sum(price(spec, reads=True) for spec in interleaved.encoder or ()),
        baseline=baseline,
    )


def reading_shape(shape: Shape) -> Shape:
    """The step in which an encoder reads its source."""
    return Shape(shape.batch, shape.source, 0, 0)


def measured(
    config: ModelConfig,
    space: Choices,
    *,
    threads: int | None = None,
    rounds: int = 40,
    progress: Preparing | None = None,
) -> Prices:
    """Prices in nanoseconds of the same step, timed here.

    Every distinct choice is timed as a stack of its copies, in turns with a model of no
    blocks and with the interleaved one; what a stack takes longer than none, shared out
    among its copies, is the price. Times are multiples of the interleaved model's in the
    same round, as whatever else the machine does then slows down both.
    """
    say = progress or (lambda what, share: None)
    interleaved = baseline_pattern(len(space.layers))
    distinct = dict.fromkeys((*interleaved, *(c for row in space.layers for c in row)))
    copies = max(len(space.layers), FEWEST_COPIES)
    stacks = {spec: Pattern([spec]) * copies for spec in distinct if spec not in IDENTITY}
    patterns = [IDENTITY, interleaved, *stacks.values()]
    shape = step_shape(config, None, None, 1)
    readers = {}
    for i, pattern in enumerate(patterns):
        say(f"building {pattern}", 0.3 * i / len(patterns))
        readers[str(pattern)] = Reader(build(config.replaced(pattern=pattern)), shape)
    comparison = measure_latency(
        readers,
        rounds=rounds,
        threads=threads,
        what=f"prices of blocks: one step of {step_words(shape.tgt_len, shape.mem_len)}",
        progress=lambda share: say("timing, in turns", 0.3 + 0.7 * share),
    )

    whole = 1e9 * comparison[str(interleaved)].median

    def nanoseconds(pattern: Pattern) -> float:
        return whole * comparison.ratio(str(pattern), str(interleaved))

    fixed = nanoseconds(IDENTITY)
    price = dict.fromkeys(distinct, 0)
    for spec, stack in stacks.items():
        price[spec] = max(0, round((nanoseconds(stack) - fixed) / copies))
    return Prices(
        metric="latency",
        choices=tuple(tuple(price[spec] for spec in choices) for choices in space.layers),
        fixed=round(fixed),
        baseline=round(fixed) + sum(price[spec] for spec in interleaved),
        measured=round(whole),
    )


def refuse_unreachable(prices: Prices, space: Choices, limit: float) -> None:
    """Refuse a limit that even the cheapest architecture exceeds, and name that one."""
    picks = cheapest(prices.choices, duties_of(space))
    nearest = prices.total(picks)
    if nearest <= limit:
        return
    alone = ": its embedding and head alone" if nearest == prices.relative_fixed else ""
    raise ConfigError(
        f"no pattern of this space costs {limit:.4g}x of the interleaved model's "
        f"{prices.metric}; the nearest, {space.pattern(picks)}, costs {nearest:.4g}x{alone}; "
        f"raise the limit to {math.ceil(100 * nearest) / 100:.2f}x or more"
    )
