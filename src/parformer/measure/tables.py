"""Which models must be measured so that every size of a search space is known?

>>> from parformer.config import preset
>>> sizes = Sizes(
...     base=preset("pocket"),
...     fields={"d_model": range(64, 257, 32)},
...     blocks=(BlockRange(letter="f", options={"inner": range(128, 1025, 64)}),),
...     typical_bytes=4_000_000,
... )
>>> ends, feed_forward = tables_of(sizes)
>>> feed_forward.names, feed_forward.axes[1], len(feed_forward.places)
(('d_model', 'inner'), (128, 256, 512, 1024), 24)

A block by itself takes too little to be timed: it is timed as a stack of its copies, with next
to no vocabulary. Embedding and head, the ends, are timed as the model without any block.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product

from parformer.blocks.base import Cost, find_block
from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.fields import check_names
from parformer.measure.grid import Place, pick_nodes, places
from parformer.measure.readings import Step, weights_bytes
from parformer.pattern import BlockSpec, Pattern, Value, block_of
from parformer.records import Record

FIELDS = ("d_model", "d_embed", "div_val")
"""Fields of a model that a search may vary; the rest is said by the blocks' options."""

DEFAULTS: Mapping[tuple[str, str], str] = {
    ("s", "heads"): "n_head",
    ("l", "heads"): "n_head",
    ("y", "heads"): "n_head",
    ("f", "inner"): "d_inner",
}
"""Which field speaks for an option that a block does not name."""

TRAINING = ("dropout", "dropatt", "dropkernel", "inner_dropout", "init_std", "projection_std")
"""Fields that a step of inference does not feel."""

COLD = 24 << 20
"""Weights of a stack: more than the caches of one core hold, as in a real model."""
MOST_COPIES = 64

MOST_NODES = (6, 4)
"""Sizes to measure at on the first axis, the model's width, and on any other one."""

ENDS = "ends"
"""Embedding and head, where others have their letter."""

IDENTITY = "i"

ALONE: Mapping[str, Value] = {"pattern": IDENTITY, "n_head": 1}
"""A model without a block; one head fits into every width."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRange:
    """A block of the search space, and the values of each of its options."""

    letter: str
    """Or a bottleneck with its inside."""
    options: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    """Numbers are measured at a few of their values; words and flags at each."""

    def __post_init__(self) -> None:
        for name, values in self.options.items():
            if not values:
                raise ConfigError(f"option {name!r} of block {self.letter!r} has no values")
        first = {name: values[0] for name, values in self.options.items()}
        find_block(block_of(self.letter, first))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What a search space varies, as far as time and memory depend on it."""

    base: ModelConfig
    """Everything else about the models."""
    fields: Mapping[str, Sequence[int]]
    """Values of the model's own sizes: d_model always, d_embed and div_val where they vary."""
    blocks: tuple[BlockRange, ...]
    typical_bytes: int = COLD
    """Weights of a typical candidate."""
    step: Step = field(default_factory=Step)
    inner_ratio: float = 0.0
    """No candidate has an `inner` below this multiple of its d_model."""

    def __post_init__(self) -> None:
        check_names(self.fields, FIELDS, "size")
        if not self.fields.get("d_model"):
            raise ConfigError("sizes need values of d_model; give at least one")
        for name, values in self.fields.items():
            if not values or min(values) < (0 if name == "d_embed" else 1):
                raise ConfigError(f"values of {name} must be positive, got {list(values)}")
        if self.typical_bytes < 1:
            raise ConfigError(f"typical_bytes must be at least 1, got {self.typical_bytes}")
        self.step.shape(self.base)


@dataclass(frozen=True, slots=True)
class Table(Record):
    """One kind of block over its sizes, or the ends of the model over theirs."""

    letter: str
    words: Mapping[str, Value | bool]
    """Options of the block (of the ends: fields) that have nothing in between."""
    names: tuple[str, ...]
    """What the axes are; the first is d_model."""
    axes: tuple[tuple[int, ...], ...]
    places: tuple[Place, ...]
    """The nodes that are measured: those that can be built and that a candidate may touch."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """Options, or fields, that have an axis of their own."""
        return self.names[1:]

    def point(self, place: Place) -> tuple[int, ...]:
        return tuple(axis[i] for axis, i in zip(self.axes, place, strict=True))

    def spec(self, point: Sequence[int]) -> BlockSpec:
        return block_of(
            self.letter, {**self.words, **dict(zip(self.numbers, point[1:], strict=True))}
        )


def tables_of(sizes: Sizes) -> tuple[Table, ...]:
    """All that is to be measured, the ends first."""
    return (*_ends_tables(sizes), *(t for each in sizes.blocks for t in _block_tables(sizes, each)))


def _ends_tables(sizes: Sizes) -> Iterator[Table]:
    widths = sizes.fields["d_model"]
    names, values = ["d_model"], [widths]
    if "d_embed" in sizes.fields:
        names.append("embed_width")
        # 0 says: as wide as the model
        given = sizes.fields["d_embed"]
        values.append([*(g for g in given if g), *(widths if 0 in given else ())])
    most = MOST_NODES if len(names) == 1 else (MOST_NODES[1],) * 2
    axes = tuple(pick_nodes(v, m) for v, m in zip(values, most, strict=False))
    factors = sorted(set(sizes.fields.get("div_val", ())))
    for words in [{"div_val": factor} for factor in factors] or [{}]:
        yield _measurable(sizes, Table(ENDS, words, tuple(names), axes, ()), places(axes))


def _block_tables(sizes: Sizes, block: BlockRange) -> Iterator[Table]:
    if block.letter == IDENTITY:
        return
    numbers: dict[str, list[int]] = {}
    words: dict[str, list[Value]] = {}
    for name, values in block.options.items():
        whole = [value for value in values if type(value) is int]
        if len(whole) == len(values):
            numbers[name] = whole
        else:
            words[name] = list(dict.fromkeys(values))
    for (letter, name), default in DEFAULTS.items():
        if letter == block.letter and name not in block.options:
            numbers[name] = [getattr(sizes.base, default)]
    names = ("d_model", *numbers)
    axes = tuple(
        pick_nodes(values, MOST_NODES[bool(i)])
        for i, values in enumerate((sizes.fields["d_model"], *numbers.values()))
    )
    touched = places(axes)
    if "inner" in numbers:
        inner = names.index("inner")
        lowest = [_lowest(axes, inner, width, sizes.inner_ratio) for width in range(len(axes[0]))]
        touched = [place for place in touched if place[inner] >= lowest[place[0]]]
    for chosen in product(*words.values()):
        given = dict(zip(words, chosen, strict=True))
        yield _measurable(sizes, Table(block.letter, given, names, axes, ()), touched)


def _lowest(axes: Sequence[Sequence[int]], inner: int, width: int, ratio: float) -> int:
    """The first node of `inner` that a candidate beside this node of the width may touch."""
    least = ratio * axes[0][max(width - 1, 0)]
    return max(bisect_right(axes[inner], least) - 1, 0)


def _measurable(sizes: Sizes, table: Table, touched: Sequence[Place]) -> Table:
    """The table with those of the places that can be built."""
    good, refusal = [], None
    for place in touched:
        point = table.point(place)
        try:
            if table.letter == ENDS:
                cost(ends_at(sizes.base, table, point))
            else:
                cost(stack(sizes.base, point[0], table.spec(point), 1))
        except ConfigError as error:
            refusal = error
        else:
            good.append(place)
    if not good:
        what = "embedding" if table.letter == ENDS else f"block {table.letter!r}"
        raise ConfigError(f"no size of the {what} can be built: {refusal}")
    return Table(table.letter, table.words, table.names, table.axes, tuple(good))


def ends_at(base: ModelConfig, table: Table, point: Sequence[int]) -> ModelConfig:
    """The model without a block, in these sizes."""
    if table.letter != ENDS:
        return stack(base, point[0], BlockSpec(IDENTITY), 1)
    changes: dict[str, object] = {"d_model": point[0], **table.words, **ALONE}
    if table.numbers:
        changes["d_embed"] = point[1]
    return base.replaced(**changes)


def stack(base: ModelConfig, width: int, spec: BlockSpec, copies: int) -> ModelConfig:
    """Copies of a block, with next to no vocabulary."""
    return base.replaced(
        pattern=Pattern([spec]) * copies,
        d_model=width,
        n_head=heads_beside(base, spec),
        vocab_size=16,
        embedding="plain",
        d_embed=0,
        cutoffs=(),
        div_val=1,
    )


def heads_beside(base: ModelConfig, spec: BlockSpec) -> Value:
    """Heads of a model around a block: its own, or those of whatever stands inside it."""
    if spec.inside is not None:
        return base.n_head
    return spec.options["heads"] if spec.letter == "s" else ALONE["n_head"]


def deep(sizes: Sizes, width: int, spec: BlockSpec) -> ModelConfig:
    """As many copies as make the weights as cold as they are in a real model."""
    one = stack(sizes.base, width, spec, 1)
    none = stack(sizes.base, width, BlockSpec(IDENTITY), 1)
    weights = weights_bytes(one, sizes.step) - weights_bytes(none, sizes.step)
    wanted = math.ceil(min(sizes.typical_bytes, COLD) / max(weights, 1))
    return stack(sizes.base, width, spec, min(max(wanted, 2), MOST_COPIES))


def reference_of(sizes: Sizes, tables: Sequence[Table]) -> ModelConfig:
    """The model that all others are timed beside: a block of each kind, in middling sizes."""
    blocks = {table.letter: table for table in tables if table.letter != ENDS}
    if not blocks:
        raise ConfigError("sizes need at least one block that does something")
    first = next(iter(blocks.values()))
    middle = first.places[len(first.places) // 2][0]
    specs = []
    for table in blocks.values():
        here = [place for place in table.places if place[0] == middle]
        if here:
            specs.append(table.spec(table.point(here[len(here) // 2])))
    width = first.axes[0][middle]
    # attention shares its biases with the model, which must have as many heads
    leader = min(specs, key=lambda spec: spec.letter != "s")
    once = stack(sizes.base, width, leader, 1).replaced(pattern=Pattern(specs))
    wanted = math.ceil(min(sizes.typical_bytes, COLD) / max(weights_bytes(once, sizes.step), 1))
    return once.replaced(pattern=once.pattern * min(max(wanted, 1), MOST_COPIES))


def block_features(config: ModelConfig, spec: BlockSpec, step: Step) -> tuple[Cost, list[float]]:
    """A block's cost in a model of this width, and what the formula of its time is made of."""
    price = find_block(spec).cost(config, spec, step.shape(config))
    return price, [1.0, float(price.flops_cached), float(price.parameters)]


def ends_features(config: ModelConfig, step: Step) -> list[float]:
    """What the formula of the time of embedding and head is made of."""
    price = cost(config, tgt_len=step.tgt_len, mem_len=step.mem_len, batch=step.batch)
    return [1.0, float(price.flops_cached), float(price.parameters)]


def fixed_fields(step: Step, varied: Sequence[str]) -> tuple[str, ...]:
    """Fields of a model that must be as in the base, or a table would not speak for it."""
    free = {"pattern", "d_model", *DEFAULTS.values(), *varied, *TRAINING}
    if step.tgt_len is not None:
        free.add("tgt_len")
    return tuple(f.name for f in fields(ModelConfig) if f.name not in free)


def refuse_another_kind(config: ModelConfig, base: ModelConfig, fixed: Sequence[str]) -> None:
    """Refuse a model that differs from the base in more than its sizes."""
    for name in fixed:
        ours, given = getattr(base, name), getattr(config, name)
        if ours != given:
            raise ConfigError(
                f"the profile is of models with {name} {ours!r}, got {given!r}; "
                "measure a profile of such models"
            )


def find_place(
    tables: Sequence[Table], config: ModelConfig, spec: BlockSpec | None
) -> tuple[int, tuple[int, ...]]:
    """The table that knows a block (None: the ends) of a model, and the point in it."""
    refusal = ""
    for i, table in enumerate(tables):
        values = _values(table, config, spec)
        if values is None:
            continue
        point = tuple(values)
        for name, axis, value in zip(table.names, table.axes, point, strict=True):
            if not axis[0] <= value <= axis[-1]:
                refusal = f"{name} {value} is outside {axis[0]} … {axis[-1]}"
                break
        else:
            return i, point
    what = f"block {str(spec)!r}" if spec else "the embedding"
    why = refusal or "nothing of its kind was measured"
    raise ConfigError(
        f"the profile does not cover {what} of a model {config.d_model} wide: {why}; "
        "measure a profile of sizes that include it"
    )


def _values(table: Table, config: ModelConfig, spec: BlockSpec | None) -> list[int] | None:
    """What a block, or a model's ends, says on a table's axes; None if it is another kind."""
    if spec is None:
        if table.letter != ENDS or any(getattr(config, n) != v for n, v in table.words.items()):
            return None
        return [getattr(config, name) for name in table.names]
    options = dict(spec.options)
    for name in table.numbers:
        if name not in options and (spec.letter, name) in DEFAULTS:
            options[name] = getattr(config, DEFAULTS[spec.letter, name])
    if table.letter != spec.kind or options.keys() != {*table.words, *table.numbers}:
        return None
    if any(options[name] != value for name, value in table.words.items()):
        return None
    return [config.d_model, *(int(options[name]) for name in table.numbers)]
