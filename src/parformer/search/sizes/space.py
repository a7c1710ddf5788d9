"""Which sizes may a Pareto search choose from, and how does it move among them?

A gallery of sizes gives a model its depth, its width and every block its options. One choice
of all of them is a genome; it stands for exactly one architecture.

>>> from random import Random
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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from math import prod
from typing import NoReturn

from parformer.blocks.base import Shape, find_block
from parformer.config import ModelConfig
from parformer.costs import ModelCost, step_shape
from parformer.errors import ConfigError
from parformer.fields import check_names
from parformer.notation import shown
from parformer.parts import StackConfig
from parformer.pattern import MAX_BLOCKS, BlockSpec, Pattern, block_of
from parformer.records import Json
from parformer.search.placement.choices import IDENTITY, MAX_CHOICES
from parformer.search.sizes.files import read_space_table
from parformer.search.sizes.genome import Genome as Genome
from parformer.search.sizes.genome import genome_of, stacks_of
from parformer.search.sizes.moves import Moves
from parformer.search.sizes.moves import Unit as Unit
from parformer.search.sizes.ranges import (
    MOST,
    Range,
    Ranged,
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
NO_LAYERS = Range.of(0)


@dataclass(frozen=True, kw_only=True)
class SearchSpace(Moves):
    """Ranges of everything that may vary; the rest is the model that it is like."""

    name: str
    like: ModelConfig
    layers: Range
    """How often the unit may be repeated."""
    unit: Unit
    fields: tuple[tuple[str, Range], ...]
    encoder: Unit = ()
    """The unit of the encoder, for translators; `unit` is the decoder's then."""
    encoder_layers: Range = NO_LAYERS
    """How often that may be repeated."""
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
        for unit, layers in self.sides:
            if not (layers.values[0] >= 1 and layers.values[-1] <= MOST_LAYERS):
                self._refuse(f"layers must lie between 1 and {MOST_LAYERS}, got {layers.text}")
            if not unit or not all(unit):
                self._refuse("the unit is empty; give it a block, such as s")
        most = sum(len(unit) * int(layers.values[-1]) for unit, layers in self.sides)
        if most > MAX_BLOCKS:
            self._refuse(f"{most:,} blocks are too many; have at most {MAX_BLOCKS:,}")
        self._check_encoder()
        for slot in (*self.unit, *self.encoder):
            if len(slot) > MAX_CHOICES:
                self._refuse(f"{len(slot):,} blocks for one place; give at most {MAX_CHOICES}")
            for one, other in combinations(slot, 2):
                if one.overlaps(other):
                    self._refuse(f"{str(one)!r} and {str(other)!r} overlap; give each block once")
        try:
            self._check_models()
        except ConfigError as error:
            self._refuse(str(error))

    @property
    def sides(self) -> tuple[tuple[Unit, Range], ...]:
        """Units and their repeats: the decoder's, and the encoder's where there is one."""
        own = (self.unit, self.layers)
        return (own, (self.encoder, self.encoder_layers)) if self.encoder else (own,)

    def _check_encoder(self) -> None:
        """Whether translators have both of their sides, and one looks at the other."""
        if not self.encoder:
            if self.like.pattern.encoder is not None:
                self._refuse(
                    f"{str(self.like.pattern)!r} has an encoder and the space none; add encoder = "
                    "['s', 'f'] and encoder_layers = '1..6'"
                )
            return
        looks = [
            all(block.kind == "c" or "source" in dict(block.options) for block in slot)
            for slot in self.unit
        ]
        if not any(looks):
            self._refuse(
                "no place of the unit always looks at the encoder; give it c, or a[source]"
            )

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
            stacks = (config, config.source) if self.encoder else (config,)
            for (unit, _), stack in zip(self.sides, stacks, strict=True):
                assert stack is not None
                for block in blocks_of(unit):
                    for spec in block.corners(width, self.inner_ratio):
                        find_block(spec).cost(stack, spec, ONE_TOKEN)

    def _with_all_blocks(self, fields: Mapping[str, int]) -> ModelConfig:
        """A model that has every block once, the least of each."""
        sides = [
            Pattern(block.least(fields["d_model"], self.inner_ratio) for block in blocks_of(unit))
            for unit, _ in self.sides
        ]
        return self.like.replaced(pattern=joined(*sides), **fields)

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
        slots = (*self.unit, *self.encoder)
        return any(len({block.letters for block in slot}) > 1 for slot in slots)

    @cached_property
    def looks_up(self) -> bool:
        """Whether candidates differ in the rows of their memories, which take bytes and no time."""
        blocks = [block for slot in (*self.unit, *self.encoder) for block in slot]
        memories = [dict(block.options) for block in blocks if block.kind == "n"]
        return any(len(one["rows"].values) > 1 for one in memories if "rows" in one)

    @cached_property
    def size(self) -> int:
        """How many genomes there are, bounds aside; identities make some of them the same model.

        >>> read_space("lts").size > 10**36
        True
        """
        others = prod(len(r.values) for name, r in self.fields if name != "d_model")
        return others * sum(
            prod(self._count(width, unit, layers) for unit, layers in self.sides)
            for width in self.widths
        )

    def _count(self, width: int, unit: Unit, layers: Range) -> int:
        """How many stacks there are of one width."""
        layer = prod(sum(block.count(width, self.inner_ratio) for block in slot) for slot in unit)
        depths = [int(depth) for depth in layers.values]
        return len(depths) * layer if self.alike else sum(layer**depth for depth in depths)

    def smallest(self, metric: str = "parameters") -> Genome:
        """The least of everything, and of blocks those with the least of a metric."""
        fields = {name: int(values.values[0]) for name, values in self.fields}
        # of adaptive embeddings the one that shrinks fastest is the smallest
        if "div_val" in fields:
            fields["div_val"] = int(dict(self.fields)["div_val"].values[-1])
        config = self._with_all_blocks(fields)

        name = {"state": "state_bytes", "size": "parameters"}.get(metric, metric)
        shape = step_shape(config, None, None, 1)
        width, ratio = fields["d_model"], self.inner_ratio
        sides = []
        stacks = (config, config.source) if self.encoder else (config,)
        for (unit, layers), stack in zip(self.sides, stacks, strict=True):
            assert stack is not None

            def price(spec: BlockSpec, stack: StackConfig = stack) -> int:
                return int(getattr(find_block(spec).cost(stack, spec, shape), name))

            least = tuple(
                str(min((block.least(width, ratio) for block in slot), key=price)) for slot in unit
            )
            sides.append((least,) * int(layers.values[0]))
        return genome_of(fields, sides)

    def config(self, genome: Genome) -> ModelConfig:
        """The model that a genome stands for."""
        sides = []
        for layers in stacks_of(genome)[: len(self.sides)]:
            pattern = Pattern(read_block(text) for layer in layers for text in layer)
            letters = pattern.letters.strip("i")
            sides.append(pattern.without_identity() if letters else IDENTITY)
        return self.like.replaced(pattern=joined(*sides), **genome.fields)

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
            **self._encoder_words(),
            "fields": {name: values.text for name, values in self.fields},
            "inner_ratio": self.inner_ratio,
            "alike": self.alike,
            "bounds": {name: values.text for name, values in self.bounds},
        }

    def _encoder_words(self) -> Json:
        if not self.encoder:
            return {}
        unit = [" | ".join(map(str, slot)) for slot in self.encoder]
        return {"encoder": unit, "encoder_layers": self.encoder_layers.text}

    def ranged_blocks(self) -> Iterator[Ranged]:
        """Every block that may stand somewhere, once."""
        yield from dict.fromkeys(block for unit, _ in self.sides for block in blocks_of(unit))


def blocks_of(unit: Unit) -> list[Ranged]:
    """Every block of a unit, once."""
    return list(dict.fromkeys(block for slot in unit for block in slot))


def joined(decoder: Pattern, encoder: Pattern | None = None) -> Pattern:
    return Pattern(decoder.blocks, encoder)


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
        encoder=tuple(read_slot(text) for text in table.get("encoder", ())),
        encoder_layers=read_range(table.get("encoder_layers", 0), "encoder_layers"),
        fields=tuple(sorted(fields.items())),
        inner_ratio=float(table.get("inner_ratio", 0.0)),
        alike=bool(table.get("alike", False)),
        bounds=tuple((name, read_range(text, name)) for name, text in sorted(bounds.items())),
    )
