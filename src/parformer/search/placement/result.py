"""What did a search for placements find?

`search.json` as types: what reports, `fit`, `reproduce` and notebooks read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from parformer.evaluate.counting import References
from parformer.pattern import BlockSpec, Pattern
from parformer.records import Json, Record, Result
from parformer.search.machine import Machine
from parformer.search.placement.choices import Stretch, stretches_of
from parformer.search.placement.target import Target

T = TypeVar("T")

Table = tuple[tuple[float, ...], ...]
"""A number for every choice of every layer."""


@dataclass(frozen=True, kw_only=True)
class History(Record):
    """How one seed came to its pattern: some lines of its metrics, column by column."""

    step: tuple[int, ...]
    loss: tuple[float, ...]
    temperature: tuple[float, ...]
    probabilities: tuple[Table, ...]
    cost: tuple[float, ...] | None = None
    """What the architecture was expected to cost, of the interleaved model's."""
    penalty: tuple[float, ...] | None = None
    """What one interleaved model's cost added to the loss; `lambda` in the file."""

    def to_dict(self) -> Json:
        values = super().to_dict()
        return {"lambda" if name == "penalty" else name: values[name] for name in values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], place: str = "") -> Self:
        return super().from_dict({**values, "penalty": values.get("lambda")}, place)


@dataclass(frozen=True, kw_only=True)
class Seed(Record):
    """What one seed found."""

    seed: int
    pattern: Pattern
    picks: tuple[int, ...]
    """The choice of every layer."""
    probabilities: Table
    removal: Table | None = None
    """What the loss grew by without each choice, when the warm-up ended."""
    steps: int
    """Updates that were done."""
    changed: int
    """The update after which the pattern was last another one."""
    early: bool = False
    """Whether it settled before its updates were used up."""
    history: History


@dataclass(frozen=True, kw_only=True)
class Price(Record):
    """What the pattern costs, as a multiple of the interleaved model."""

    metric: str
    found: float
    expected: float
    """Before one block per layer was decided on, on average over the seeds."""


@dataclass(frozen=True, kw_only=True)
class Rival(Record):
    """The found pattern, or one that it has to be better than."""

    name: str
    """found, interleaved, sandwich or par."""
    pattern: Pattern

    @property
    def title(self) -> str:
        return "PAR's rule" if self.name == "par" else self.name


@dataclass(frozen=True, kw_only=True)
class Compared(Rival):
    """What a pattern costs, exactly and on this machine."""

    parameters: int
    flops: int
    state_bytes: int
    latency_seconds: float
    latency_interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Effort(Record):
    """What the search took."""

    search_step_seconds: float
    baseline_step_seconds: float
    share: float
    """A step of the search in steps of the interleaved model's training."""
    seconds: float
    """Of all seeds."""


@dataclass(frozen=True, kw_only=True)
class Score(Record):
    """How good a model is on a text."""

    loss: float
    perplexity: float
    bits: float | None = None
    """Per character, where tokens are characters."""


@dataclass(frozen=True, kw_only=True)
class Retrained(Rival):
    """A pattern that was trained from scratch with the search's updates."""

    steps: int
    valid: Score
    test: Score | None = None
    learned: bool = True
    """Whether it learned more than counting pairs of tokens tells."""


@dataclass(frozen=True, kw_only=True)
class Offered(Record):
    """The layers of a stack, and what they could become."""

    layers: int
    choices: tuple[str, ...]

    @classmethod
    def of(cls, layers: Sequence[Sequence[BlockSpec]]) -> Self:
        """Those of a search, where every layer of a stack has the same choices."""
        return cls(layers=len(layers), choices=tuple(map(str, layers[0])))


@dataclass(frozen=True, slots=True)
class Stack:
    """One stack of what was found: its layers, what they could become, and what they became."""

    stretch: Stretch
    offered: Offered

    @property
    def name(self) -> str:
        return self.stretch.name

    @property
    def layers(self) -> int:
        return self.offered.layers

    @property
    def choices(self) -> tuple[str, ...]:
        return self.offered.choices

    def of(self, rows: Sequence[T]) -> Sequence[T]:
        """Its own of what there is for every layer."""
        return self.stretch.of(rows)

    def blocks(self, picks: Sequence[int]) -> list[BlockSpec]:
        """What its layers became by these picks of all layers, identities among them."""
        specs = [Pattern.parse(choice)[0] for choice in self.choices]
        return [specs[pick] for pick in self.of(picks)]

    def side(self, pattern: Pattern) -> Pattern:
        """The same stack of another model."""
        if self.name != "encoder":
            return Pattern(pattern.blocks)
        assert pattern.encoder is not None
        return pattern.encoder


@dataclass(frozen=True, kw_only=True)
class PlacementResult(Result):
    """Which block belongs where, how sure that is, and what it costs."""

    FILE: ClassVar[str] = "search.json"
    FORMAT: ClassVar[str] = "parformer-search-1"

    pattern: Pattern
    picks: tuple[int, ...]
    """The choice of every layer; the pattern leaves identities out."""
    corpus: str
    layers: int
    """Of a translator the decoder's."""
    choices: tuple[str, ...]
    """What each of them could become."""
    encoder: Offered | None = None
    """The same of a translator's encoder, whose layers come first wherever there is a row each."""
    mode: str
    steps: int
    """Updates of each seed at most."""
    warmup_steps: int
    probabilities: Table
    """On average over the seeds."""
    agreement: float | None
    """The share of layers on which two seeds agree; None with one seed."""
    seeds: tuple[Seed, ...]
    learned: bool = True
    """Whether any supernet learned more than counting pairs of tokens tells."""
    references: References | None = None
    """What plain counting reaches on the same text."""
    warnings: tuple[str, ...] = ()
    target: Target | None = None
    price: Price | None = None
    compared: tuple[Compared, ...] = ()
    effort: Effort
    device: Machine
    retrained: tuple[Retrained, ...] | None = None
    command: str = ""
    version: str
    date: str

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The encoder, where there is one, and the stack that writes."""
        own = Offered(layers=self.layers, choices=self.choices)
        offered = [own] if self.encoder is None else [self.encoder, own]
        before = 0 if self.encoder is None else self.encoder.layers
        stretches = stretches_of(self.layers + before, before)
        return tuple(map(Stack, stretches, offered))

    @property
    def translates(self) -> bool:
        return self.encoder is not None

    @property
    def timed(self) -> str:
        """What latencies are the time of."""
        return "text" if self.translates else "step"

    def strips(self, name: str, pattern: Pattern | None = None) -> dict[str, list[BlockSpec]]:
        """The blocks of every stack, by a name: the chosen ones, identities too, unless told."""
        return {
            f"{name}, {stack.name}" if stack.name else name: (
                stack.blocks(self.picks) if pattern is None else list(stack.side(pattern))
            )
            for stack in self.stacks
        }

    def row(self, name: str) -> Compared | None:
        """What a pattern costs, if it was compared."""
        return next((one for one in self.compared if one.name == name), None)
