"""How does a search move among the architectures of a space?

A genome is drawn, changed gene by gene, or made of two others; whatever a new width rules out is
drawn again. All randomness comes from the generator that is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from parformer.pattern import BlockSpec, Value
from parformer.search.sizes.genome import Genome, Layers, genome_of, stacks_of
from parformer.search.sizes.ranges import Range, Slot, read_block

Unit = tuple[Slot, ...]
"""The places of a layer."""


class Moves:
    """What a space does with its genomes."""

    fields: tuple[tuple[str, Range], ...]
    inner_ratio: float
    alike: bool

    @property
    def sides(self) -> tuple[tuple[Unit, Range], ...]:
        """Units and their repeats: the decoder's, and the encoder's where there is one."""
        raise NotImplementedError

    def draw(self, rng: Random) -> Genome:
        """One genome, every gene drawn evenly from what the earlier ones leave it."""
        fields = {name: int(rng.choice(values.values)) for name, values in self.fields}
        sides = []
        for unit, layers in self.sides:
            depth = int(rng.choice(layers.values))
            drawn = [self._draw_layer(unit, fields, rng) for _ in range(self._own(depth))]
            sides.append(self._deep(drawn, depth))
        return genome_of(fields, sides)

    def mutate(self, genome: Genome, rng: Random, chance: float) -> Genome:
        """Every gene is drawn again with this chance; so is what a new width rules out."""
        fields = {
            name: int(rng.choice(values.values)) if rng.random() < chance else genome.fields[name]
            for name, values in self.fields
        }
        sides = []
        for (unit, layers), known in zip(self.sides, stacks_of(genome), strict=False):
            depth = len(known)
            if rng.random() < chance:
                depth = int(rng.choice(layers.values))
            made = []
            for number in range(self._own(depth)):
                if number < len(known):
                    made.append(self._mutate_layer(unit, known[number], fields, rng, chance))
                else:
                    made.append(self._draw_layer(unit, fields, rng))
            sides.append(self._deep(made, depth))
        return genome_of(fields, sides)

    def cross(self, one: Genome, other: Genome, rng: Random) -> Genome:
        """Every gene from either parent; layers that only one of them has come from that one."""
        fields = {name: rng.choice((one, other)).fields[name] for name, _ in self.fields}
        sides = []
        parents = zip(stacks_of(one), stacks_of(other), strict=True)
        for (unit, _), both in zip(self.sides, parents, strict=False):
            depth = len(rng.choice(both))
            made = []
            for number in range(self._own(depth)):
                having = [layers[number] for layers in both if number < len(layers)]
                made.append(self._cross_layers(unit, having[0], having[-1], fields, rng))
            sides.append(self._deep(made, depth))
        return genome_of(fields, sides)

    def _own(self, depth: int) -> int:
        """Layers of a stack that have sizes of their own."""
        return 1 if self.alike else depth

    def _deep(self, layers: Sequence[tuple[str, ...]], depth: int) -> Layers:
        return (layers[0],) * depth if self.alike else tuple(layers)

    def _draw_layer(self, unit: Unit, fields: Mapping[str, int], rng: Random) -> tuple[str, ...]:
        width = fields["d_model"]
        return tuple(str(rng.choice(s).draw(rng, width, self.inner_ratio)) for s in unit)

    def _mutate_layer(
        self,
        unit: Unit,
        layer: tuple[str, ...],
        fields: Mapping[str, int],
        rng: Random,
        chance: float,
    ) -> tuple[str, ...]:
        made = []
        for slot, text in zip(unit, layer, strict=True):
            spec = read_block(text)
            if len(slot) > 1 and rng.random() < chance:
                spec = rng.choice(slot).draw(rng, fields["d_model"], self.inner_ratio)
            changed = {name for name in spec.options if rng.random() < chance}
            made.append(self._mended(slot, spec, changed, fields, rng))
        return tuple(made)

    def _cross_layers(
        self,
        unit: Unit,
        one: tuple[str, ...],
        other: tuple[str, ...],
        fields: Mapping[str, int],
        rng: Random,
    ) -> tuple[str, ...]:
        made = []
        for slot, *texts in zip(unit, one, other, strict=True):
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
