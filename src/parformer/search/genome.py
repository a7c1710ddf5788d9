"""Which sizes may a Pareto search choose from, and how does it move among them?

A gallery of sizes gives a model its depth, its width and every block its options. One choice
of all of them is a genome; it stands for exactly one architecture.

>>> space = read_space("lts")
>>> genome = space.draw(Random(0))
>>> genome.layers[0]
('s[heads=8]', 'f[inner=3392]')
>>> space.config(genome).d_model == genome.fields["d_model"]
True

Whatever is drawn comes from a random generator that the caller gives, so the same one always
draws the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from random import Random
from typing import Any, Self

from parformer.blocks.base import find_block
from parformer.config import ModelConfig
from parformer.costs import ModelCost
from parformer.errors import ConfigError
from parformer.fields import check_names
from parformer.notation import shown
from parformer.pattern import BlockSpec, Pattern, Value
from parformer.search.ranges import Range, read_range, split_choices
from parformer.search.space import IDENTITY, SearchSpace
from parformer.search.spaces import read_space_table

FIELDS = ("d_model", "d_embed", "div_val")
"""What a genome may say of the model beside its blocks."""

BOUNDS = ("decoder_parameters", "parameters")
"""What a space may keep between two numbers."""

MOST_LAYERS = 128


@dataclass(frozen=True, slots=True)
class Genome:
    """One architecture of a space: fields of the model, and every layer's blocks as texts."""

    fields: Mapping[str, int]
    layers: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The canonical form, JSON in one line: equal genomes have equal texts."""
        values = {**self.fields, "layers": [list(layer) for layer in self.layers]}
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """A short name of the architecture: where identities stood does not matter to it."""
        blocks = [text for layer in self.layers for text in layer if text != "i"]
        key = json.dumps([sorted(self.fields.items()), blocks])
        return hashlib.sha256(key.encode()).hexdigest()[:16]

    @classmethod
    def read(cls, text: str) -> Self:
        """What `text` gave."""
        try:
            values = json.loads(text)
            layers = tuple(tuple(map(str, layer)) for layer in values.pop("layers"))
            return cls({str(name): int(value) for name, value in values.items()}, layers)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{shown(text)} is no genome: {error}") from None


@dataclass(frozen=True, slots=True)
class Ranged:
    """A block whose options are still open."""

    letter: str
    options: tuple[tuple[str, Range], ...] = ()

    @classmethod
    def of(cls, spec: BlockSpec) -> Self:
        """A block that leaves nothing open."""
        return cls(spec.letter, tuple((n, Range.of(v)) for n, v in spec.options.items()))

    def draw(self, rng: Random, width: int, ratio: float) -> BlockSpec:
        return BlockSpec(
            self.letter,
            {name: rng.choice(_fitting(name, r, width, ratio)) for name, r in self.options},
        )

    def count(self, width: int, ratio: float) -> int:
        return prod(len(_fitting(name, r, width, ratio)) for name, r in self.options)

    def allows(self, spec: BlockSpec, width: int, ratio: float) -> bool:
        if spec.letter != self.letter or spec.options.keys() != dict(self.options).keys():
            return False
        return all(
            spec.options[name] in _fitting(name, values, width, ratio)
            for name, values in self.options
        )

    def __str__(self) -> str:
        options = ",".join(
            name if r.values == (True,) else f"{name}={r.text}" for name, r in self.options
        )
        return f"{self.letter}[{options}]" if options else self.letter


Slot = tuple[Ranged, ...]
"""One place of a layer, and the blocks that may stand there."""


@dataclass(frozen=True, kw_only=True)
class GenomeSpace:
    """Ranges of everything that may vary; the rest is the model that it is like."""

    name: str
    like: ModelConfig
    layers: Range
    """How often the unit may be repeated."""
    unit: tuple[Slot, ...]
    fields: tuple[tuple[str, Range], ...]
    inner_ratio: float = 0.0
    """The inner width of a feed-forward is at least so many times d_model."""
    alike: bool = False
    """All layers of a model have the same sizes."""
    bounds: tuple[tuple[str, Range], ...] = ()
    """What a candidate may have of parameters."""
    title: str = ""

    def __post_init__(self) -> None:
        check_names((name for name, _ in self.fields), FIELDS, "field of a space")
        check_names((name for name, _ in self.bounds), BOUNDS, "bound of a space")
        if not (self.layers.values[0] >= 1 and self.layers.values[-1] <= MOST_LAYERS):
            raise ConfigError(
                f"layers of space {self.name!r} must lie between 1 and {MOST_LAYERS}, "
                f"got {self.layers.text}"
            )
        if not self.unit or not all(self.unit):
            raise ConfigError(
                f"the unit of space {self.name!r} is empty; give it a block, such as s"
            )
        for width in self.widths:
            for slot in self.unit:
                for block in slot:
                    self._check(block, width)

    def _check(self, block: Ranged, width: int) -> None:
        for name, values in block.options:
            if not _fitting(name, values, width, self.inner_ratio):
                raise ConfigError(
                    f"no {name} of {str(block)!r} is at least {self.inner_ratio:g} times d_model "
                    f"{width}; widen its range or lower inner_ratio"
                )
            for value in {values.values[0], values.values[-1]}:
                find_block(BlockSpec(block.letter, {name: value}))
                if name == "heads":
                    self.like.replaced(d_model=width, d_embed=0, embedding="plain", cutoffs=(),
                                       div_val=1).head_width(int(value))  # fmt: skip

    @classmethod
    def of(cls, space: SearchSpace, like: ModelConfig, name: str = "layers") -> Self:
        """The choices of blocks that a differentiable search has, for a model of fixed width."""
        unit = tuple(tuple(map(Ranged.of, choices)) for choices in space.layers)
        fields = (("d_model", Range.of(like.d_model)),)
        return cls(name=name, like=like, layers=Range.of(1), unit=unit, fields=fields)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        return tuple(int(value) for value in dict(self.fields)["d_model"].values)

    @cached_property
    def mixes(self) -> bool:
        """Whether candidates differ in which blocks they have, not just in their sizes."""
        return any(len({block.letter for block in slot}) > 1 for slot in self.unit)

    @cached_property
    def size(self) -> int:
        """How many architectures there are, bounds aside.

        >>> read_space("lts").size > 10**36
        True
        """
        others = prod(len(r.values) for name, r in self.fields if name != "d_model")
        total = 0
        for width in self.widths:
            layer = prod(
                sum(block.count(width, self.inner_ratio) for block in slot) for slot in self.unit
            )
            depths = [int(depth) for depth in self.layers.values]
            total += len(depths) * layer if self.alike else sum(layer**depth for depth in depths)
        return others * total

    def draw(self, rng: Random) -> Genome:
        """One genome, every gene drawn evenly from what the earlier ones leave it."""
        fields = {name: int(rng.choice(values.values)) for name, values in self.fields}
        depth = int(rng.choice(self.layers.values))
        return self._whole(fields, [self._draw_layer(fields, rng) for _ in range(depth)])

    def smallest(self) -> Genome:
        """The least of everything, which comes nearest to any limit."""
        fields = {name: int(values.values[0]) for name, values in self.fields}
        # of adaptive embeddings the one that shrinks fastest is the smallest
        if "div_val" in fields:
            fields["div_val"] = int(dict(self.fields)["div_val"].values[-1])
        least = []
        for slot in self.unit:
            block = slot[0] if len(slot) == 1 else min(slot, key=lambda b: b.letter != "i")
            options = {
                name: _fitting(name, r, fields["d_model"], self.inner_ratio)[0]
                for name, r in block.options
            }
            least.append(str(BlockSpec(block.letter, options)))
        return self._whole(fields, [tuple(least)] * int(self.layers.values[0]))

    def mutate(self, genome: Genome, rng: Random, chance: float) -> Genome:
        """Every gene is drawn again with this chance; so is what a new width rules out."""
        fields = {
            name: int(rng.choice(values.values)) if rng.random() < chance else genome.fields[name]
            for name, values in self.fields
        }
        depth = len(genome.layers)
        if rng.random() < chance:
            depth = int(rng.choice(self.layers.values))
        layers = []
        for number in range(1 if self.alike else depth):
            if number < len(genome.layers):
                layers.append(self._mutate_layer(genome.layers[number], fields, rng, chance))
            else:
                layers.append(self._draw_layer(fields, rng))
        return self._whole(fields, layers * depth if self.alike else layers)

    def cross(self, one: Genome, other: Genome, rng: Random) -> Genome:
        """Every gene from either parent; layers that only one of them has come from that one."""
        fields = {name: rng.choice((one, other)).fields[name] for name, _ in self.fields}
        depth = len(rng.choice((one, other)).layers)
        layers = []
        for number in range(1 if self.alike else depth):
            having = [g.layers[number] for g in (one, other) if number < len(g.layers)]
            layers.append(self._cross_layers(having[0], having[-1], fields, rng))
        return self._whole(fields, layers * depth if self.alike else layers)

    def config(self, genome: Genome) -> ModelConfig:
        """The model that a genome stands for."""
        pattern = Pattern(read_block(text) for layer in genome.layers for text in layer)
        letters = pattern.letters.strip("i")
        pattern = pattern.without_identity() if letters else IDENTITY
        return self.like.replaced(pattern=pattern, **genome.fields)

    def refuse_foreign(self, genome: Genome) -> None:
        """Refuse a genome of another space."""
        fields = dict(self.fields)
        if genome.fields.keys() != fields.keys():
            raise ConfigError(f"a genome of space {self.name!r} has {', '.join(fields)}")
        for name, value in genome.fields.items():
            if value not in fields[name].values:
                raise ConfigError(f"{name} {value} is not in {fields[name].text} of {self.name!r}")
        if len(genome.layers) not in self.layers.values:
            raise ConfigError(f"{len(genome.layers)} layers are not in {self.layers.text}")
        width = genome.fields["d_model"]
        for layer in genome.layers:
            fits = len(layer) == len(self.unit) and all(
                self._allowed(slot, read_block(text), width)
                for slot, text in zip(self.unit, layer, strict=True)
            )
            if not fits or (self.alike and layer != genome.layers[0]):
                raise ConfigError(f"layer {' '.join(layer)!r} is not in the space {self.name!r}")

    def within_bounds(self, price: ModelCost) -> bool:
        """Whether a candidate has as many parameters as the space wants."""
        return all(
            r.values[0] <= getattr(price, name) <= r.values[-1] for name, r in self.bounds
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; `read_space` takes them."""
        return {
            "name": self.name,
            "title": self.title,
            "model": self.like.to_dict(),
            "layers": self.layers.text,
            "unit": [" | ".join(map(str, slot)) for slot in self.unit],
            "fields": {name: values.text for name, values in self.fields},
            "inner_ratio": self.inner_ratio,
            "alike": self.alike,
            "bounds": {name: values.text for name, values in self.bounds},
        }

    def _whole(self, fields: Mapping[str, int], layers: Sequence[tuple[str, ...]]) -> Genome:
        same = [layers[0]] * len(layers) if self.alike else layers
        return Genome(dict(sorted(fields.items())), tuple(same))

    def _draw_layer(self, fields: Mapping[str, int], rng: Random) -> tuple[str, ...]:
        width = fields["d_model"]
        return tuple(str(rng.choice(s).draw(rng, width, self.inner_ratio)) for s in self.unit)

    def _mutate_layer(
        self, layer: tuple[str, ...], fields: Mapping[str, int], rng: Random, chance: float
    ) -> tuple[str, ...]:
        made = []
        for slot, text in zip(self.unit, layer, strict=True):
            spec = read_block(text)
            if len(slot) > 1 and rng.random() < chance:
                spec = rng.choice(slot).draw(rng, fields["d_model"], self.inner_ratio)
            changed = {name for name in spec.options if rng.random() < chance}
            made.append(self._mended(slot, spec, changed, fields, rng))
        return tuple(made)

    def _cross_layers(
        self,
        one: tuple[str, ...],
        other: tuple[str, ...],
        fields: Mapping[str, int],
        rng: Random,
    ) -> tuple[str, ...]:
        made = []
        for slot, *texts in zip(self.unit, one, other, strict=True):
            first, second = map(read_block, texts)
            if first.letter != second.letter or first.options.keys() != second.options.keys():
                spec = rng.choice((first, second))
            else:
                both = (first.options, second.options)
                spec = BlockSpec(first.letter, {n: rng.choice(both)[n] for n in first.options})
            made.append(self._mended(slot, spec, set(), fields, rng))
        return tuple(made)

    def _mended(
        self,
        slot: Slot,
        spec: BlockSpec,
        changed: set[str],
        fields: Mapping[str, int],
        rng: Random,
    ) -> str:
        """The block with some options drawn again, and whatever the width rules out."""
        names = spec.options.keys()
        ranged = next(
            b for b in slot if b.letter == spec.letter and dict(b.options).keys() == names
        )
        options: dict[str, Value] = {}
        for name, values in ranged.options:
            fitting = _fitting(name, values, fields["d_model"], self.inner_ratio)
            keep = name not in changed and spec.options[name] in fitting
            options[name] = spec.options[name] if keep else rng.choice(fitting)
        return str(BlockSpec(spec.letter, options))

    def _allowed(self, slot: Slot, spec: BlockSpec, width: int) -> bool:
        return any(block.allows(spec, width, self.inner_ratio) for block in slot)

    def ranged_blocks(self) -> Iterator[Ranged]:
        """Every block that may stand somewhere, once."""
        yield from dict.fromkeys(block for slot in self.unit for block in slot)


@lru_cache(maxsize=65_536)
def read_block(text: str) -> BlockSpec:
    """One block from its text."""
    blocks = Pattern.parse(text).blocks
    if len(blocks) != 1:
        raise ConfigError(f"{shown(text)} is not one block")
    return blocks[0]


@lru_cache(maxsize=65_536)
def _fitting(name: str, values: Range, width: int, ratio: float) -> tuple[Value, ...]:
    if name != "inner":
        return values.values
    return tuple(value for value in values.values if float(value) >= int(ratio * width))


def read_space(source: str | Mapping[str, Any], like: ModelConfig | None = None) -> GenomeSpace:
    """A space by name, from a TOML file, or from what `to_dict` gave; `like` another model."""
    table, model = read_space_table(source, like)
    layers = read_range(table["layers"], "layers")
    unit = tuple(read_slot(text) for text in table["unit"])
    fields = {name: read_range(text, name) for name, text in table.get("fields", {}).items()}
    fields.setdefault("d_model", Range.of(model.d_model))
    bounds = table.get("bounds", {})
    return GenomeSpace(
        name=table["name"],
        title=table.get("title", ""),
        like=model,
        layers=layers,
        unit=unit,
        fields=tuple(sorted(fields.items())),
        inner_ratio=float(table.get("inner_ratio", 0.0)),
        alike=bool(table.get("alike", False)),
        bounds=tuple((name, read_range(text, name)) for name, text in sorted(bounds.items())),
    )


def read_slot(text: str) -> Slot:
    """Blocks that may stand in one place, such as `s[heads=2|4] | f[inner=64..256/64] | i`."""
    blocks = []
    for choice in split_choices(text):
        letter, bracket, rest = choice.partition("[")
        if bracket and not rest.endswith("]"):
            raise ConfigError(
                f"{shown(choice)} has no closing bracket; write it as f[inner=64..256/64]"
            )
        options = []
        for option in filter(None, rest.removesuffix("]").split(",")):
            name, equals, values = (part.strip() for part in option.partition("="))
            options.append((name, read_range(values, name) if equals else Range.of(True)))
        block = Ranged(letter.strip(), tuple(sorted(options)))
        find_block(BlockSpec(block.letter, {n: r.values[0] for n, r in block.options}))
        if block in blocks:
            raise ConfigError(f"{shown(choice)} is twice in {shown(text)}; give it once")
        blocks.append(block)
    return tuple(blocks)
