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
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from math import prod
from random import Random
from typing import NoReturn, Self

from parformer.blocks.base import Shape, find_block
from parformer.config import ModelConfig
from parformer.costs import ModelCost, step_shape
from parformer.errors import ConfigError
from parformer.fields import check_names
from parformer.notation import shown
from parformer.pattern import MAX_BLOCKS, BlockSpec, Pattern, Value, block_of
from parformer.records import Json
from parformer.search.placement.choices import IDENTITY, MAX_CHOICES
from parformer.search.sizes.files import read_space_table
from parformer.search.sizes.ranges import (
    MOST,
    Range,
    Ranged,
    Slot,
    read_block,
    read_range,
    read_slot,
)

FIELDS = ("d_model", "d_embed", "div_val")
"""What a genome may say of the model beside its blocks."""

BOUNDS = ("decoder_parameters", "parameters")
"""What a space may keep between two numbers."""

MOST_LAYERS = 128
ONE_TOKEN = Shape(1, 1, 0, 0)


@dataclass(frozen=True)
class Genome:
    """One architecture of a space: fields of the model, and every layer's blocks as texts."""

    fields: Mapping[str, int]
    layers: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The canonical form, JSON in one line: equal genomes have equal texts."""
        values = {**self.fields, "layers": [list(layer) for layer in self.layers]}
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @cached_property
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
            layers = tuple(map(tuple, values.pop("layers")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{shown(text)} is no genome: {error!r}") from None
        numbers = all(type(value) is int for value in values.values())
        if not numbers or not all(isinstance(block, str) for layer in layers for block in layer):
            raise ConfigError(f"{shown(text)} is no genome: fields are numbers, blocks are texts")
        return cls(values, layers)


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
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
    recipe: str = ""
    """The preset or file that the model it is like came from; it says how to train."""

    def __post_init__(self) -> None:
        check_names((name for name, _ in self.fields), FIELDS, "field of a space")
        check_names((name for name, _ in self.bounds), BOUNDS, "bound of a space")
        for name, r in (("layers", self.layers), *self.fields, *self.bounds):
            if not all(type(value) is int for value in r.values):
                self._refuse(f"{name} must be whole numbers, got {shown(r.text)}")
        if not (self.layers.values[0] >= 1 and self.layers.values[-1] <= MOST_LAYERS):
            self._refuse(f"layers must lie between 1 and {MOST_LAYERS}, got {self.layers.text}")
        if not self.unit or not all(self.unit):
            self._refuse("the unit is empty; give it a block, such as s")
        if (most := len(self.unit) * self.layers.values[-1]) > MAX_BLOCKS:
            self._refuse(f"{most:,} blocks are too many; have at most {MAX_BLOCKS:,}")
        for slot in self.unit:
            if len(slot) > MAX_CHOICES:
                self._refuse(f"{len(slot):,} blocks for one place; give at most {MAX_CHOICES}")
            for one, other in combinations(slot, 2):
                if one.overlaps(other):
                    self._refuse(f"{str(one)!r} and {str(other)!r} overlap; give each block once")
        try:
            self._check_models()
        except ConfigError as error:
            self._refuse(str(error))

    def _check_models(self) -> None:
        """Whether every genome is a model: all widths, all heads, the ends of inner widths."""
        choices = prod(len(r.values) for _, r in self.fields)
        kinds = sum(prod(len(r.values) for n, r in block.options if n != "inner")
                    for block in self.ranged_blocks())  # fmt: skip
        if choices > MOST or kinds * len(self.widths) > 16 * MOST:
            raise ConfigError(
                f"{choices:,} choices of fields and {kinds:,} kinds of blocks are more than can be "
                "looked at; take larger steps"
            )
        for block in self.ranged_blocks():
            for name, r in block.options:
                for value in (r.values[0], r.values[-1]):
                    find_block(block_of(block.kind, {name: value}))
                if not block.fitting(name, self.widths[-1], self.inner_ratio):
                    raise ConfigError(
                        f"no {name} of {str(block)!r} is at least {self.inner_ratio:g} times "
                        f"d_model {self.widths[-1]}; widen its range or lower inner_ratio"
                    )
                if name == "width" and not block.fitting(name, self.widths[0], 0.0):
                    raise ConfigError(
                        f"no width of {str(block)!r} fits into d_model {self.widths[0]}; "
                        "widen its range or raise d_model"
                    )
        by_width = {}
        for values in product(*(r.values for _, r in self.fields)):
            chosen = dict(zip(dict(self.fields), values, strict=True))
            by_width[chosen["d_model"]] = self._with_all_blocks(chosen)
        for width, config in by_width.items():
            for block in self.ranged_blocks():
                for spec in block.corners(width, self.inner_ratio):
                    find_block(spec).cost(config, spec, ONE_TOKEN)

    def _with_all_blocks(self, fields: Mapping[str, int]) -> ModelConfig:
        """A model that has every block once, the least of each."""
        pattern = Pattern(
            block.least(fields["d_model"], self.inner_ratio) for block in self.ranged_blocks()
        )
        return self.like.replaced(pattern=pattern, **fields)

    def _refuse(self, why: str) -> NoReturn:
        raise ConfigError(f"space {shown(self.name)}: {why}")

    @cached_property
    def widths(self) -> tuple[int, ...]:
        return tuple(int(value) for value in dict(self.fields)["d_model"].values)

    @cached_property
    def mixes(self) -> bool:
        """Whether candidates differ in which blocks they have, not just in their sizes.

        How many feed-forwards stand in a bottleneck beside its attention is a size too.
        """
        return any(len({block.letters for block in slot}) > 1 for slot in self.unit)

    @cached_property
    def size(self) -> int:
        """How many genomes there are, bounds aside; identities make some of them the same model.

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
        drawn = [self._draw_layer(fields, rng) for _ in range(1 if self.alike else depth)]
        return self._whole(fields, drawn, depth)

    def smallest(self, metric: str = "parameters") -> Genome:
        """The least of everything, and of blocks those with the least of a metric."""
        fields = {name: int(values.values[0]) for name, values in self.fields}
        # of adaptive embeddings the one that shrinks fastest is the smallest
        if "div_val" in fields:
            fields["div_val"] = int(dict(self.fields)["div_val"].values[-1])
        config = self._with_all_blocks(fields)

        name = {"state": "state_bytes", "size": "parameters"}.get(metric, metric)
        shape = step_shape(config, None, None, 1)

        def price(spec: BlockSpec) -> int:
            return int(getattr(find_block(spec).cost(config, spec, shape), name))

        width, ratio = fields["d_model"], self.inner_ratio
        least = tuple(
            str(min((block.least(width, ratio) for block in slot), key=price)) for slot in self.unit
        )
        depth = int(self.layers.values[0])
        return self._whole(fields, [least] * depth, depth)

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
        return self._whole(fields, layers, depth)

    def cross(self, one: Genome, other: Genome, rng: Random) -> Genome:
        """Every gene from either parent; layers that only one of them has come from that one."""
        fields = {name: rng.choice((one, other)).fields[name] for name, _ in self.fields}
        depth = len(rng.choice((one, other)).layers)
        layers = []
        for number in range(1 if self.alike else depth):
            having = [g.layers[number] for g in (one, other) if number < len(g.layers)]
            layers.append(self._cross_layers(having[0], having[-1], fields, rng))
        return self._whole(fields, layers, depth)

    def config(self, genome: Genome) -> ModelConfig:
        """The model that a genome stands for."""
        pattern = Pattern(read_block(text) for layer in genome.layers for text in layer)
        letters = pattern.letters.strip("i")
        pattern = pattern.without_identity() if letters else IDENTITY
        return self.like.replaced(pattern=pattern, **genome.fields)

    def within_bounds(self, price: ModelCost) -> bool:
        """Whether a candidate has as many parameters as the space wants."""
        return all(
            r.values[0] <= getattr(price, name) <= r.values[-1] for name, r in self.bounds
        )  # fmt: skip

    @staticmethod
    def from_dict(values: Json) -> SearchSpace:
        """What `to_dict` gave."""
        return read_space(values)

    def to_dict(self) -> Json:
        """Plain values, ready for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "like": self.recipe,
            "model": self.like.to_dict(),
            "layers": self.layers.text,
            "unit": [" | ".join(map(str, slot)) for slot in self.unit],
            "fields": {name: values.text for name, values in self.fields},
            "inner_ratio": self.inner_ratio,
            "alike": self.alike,
            "bounds": {name: values.text for name, values in self.bounds},
        }

    def _whole(
        self, fields: Mapping[str, int], layers: Sequence[tuple[str, ...]], depth: int
    ) -> Genome:
        same = [layers[0]] * depth if self.alike else layers
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
            first, second = both = tuple(map(read_block, texts))
            if first.kind != second.kind or first.options.keys() != second.options.keys():
                child = rng.choice(both)
            else:
                options = {name: rng.choice(both).options[name] for name in first.options}
                child = replace(first, options=options)
            made.append(self._mended(slot, child, set(), fields, rng))
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
        options = spec.options
        alike = [block for block in slot if block.has(spec.kind, options)]
        # of several, the one that these options came from; none if two were mixed
        ranged = next(
            (b for b in alike if all(options[n] in r.values for n, r in b.options)), alike[0]
        )
        mended: dict[str, Value] = {}
        for name, fit in ranged.fit(fields["d_model"], self.inner_ratio).items():
            keep = name not in changed and options[name] in fit
            mended[name] = options[name] if keep else rng.choice(fit)
        return str(replace(spec, options=mended))

    def ranged_blocks(self) -> Iterator[Ranged]:
        """Every block that may stand somewhere, once."""
        yield from dict.fromkeys(block for slot in self.unit for block in slot)


def read_space(source: str | Json, like: str = "") -> SearchSpace:
    """A space by name, from a TOML file, or from what `to_dict` gave; `like` another model."""
    table, model = read_space_table(source, like)
    layers = read_range(table["layers"], "layers")
    unit = tuple(read_slot(text) for text in table["unit"])
    fields = {name: read_range(text, name) for name, text in table.get("fields", {}).items()}
    fields.setdefault("d_model", Range.of(model.d_model))
    bounds = table.get("bounds", {})
    return SearchSpace(
        name=table["name"],
        title=table.get("title", ""),
        recipe=table.get("like", ""),
        like=model,
        layers=layers,
        unit=unit,
        fields=tuple(sorted(fields.items())),
        inner_ratio=float(table.get("inner_ratio", 0.0)),
        alike=bool(table.get("alike", False)),
        bounds=tuple((name, read_range(text, name)) for name, text in sorted(bounds.items())),
    )
