"""Which architecture of a space is meant, in a line?

>>> genome = Genome.read('{"d_model":64,"layers":[["s[heads=2]","f"]]}')
>>> genome.fields, genome.layers, genome.encoder
({'d_model': 64}, (('s[heads=2]', 'f'),), ())
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from parformer.errors import ConfigError
from parformer.notation import shown
from parformer.records import Json

Layers = tuple[tuple[str, ...], ...]
"""The blocks of every layer."""


@dataclass(frozen=True)
class Genome:
    """One architecture of a space: fields of the model, and every layer's blocks as texts."""

    fields: Mapping[str, int]
    layers: Layers
    encoder: Layers = ()
    """Layers of the encoder, where there is one; `layers` are the decoder's then."""

    @property
    def text(self) -> str:
        """The canonical form, JSON in one line: equal genomes have equal texts."""
        values: Json = {**self.fields, "layers": [list(layer) for layer in self.layers]}
        if self.encoder:
            values["encoder"] = [list(layer) for layer in self.encoder]
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @cached_property
    def digest(self) -> str:
        """A short name of the architecture: where identities stood does not matter to it."""
        sides = [
            [text for layer in layers for text in layer if text != "i"]
            for layers in (self.layers, self.encoder)
        ]
        key = json.dumps([sorted(self.fields.items()), *sides[: 2 if self.encoder else 1]])
        return hashlib.sha256(key.encode()).hexdigest()[:16]

    @classmethod
    def read(cls, text: str) -> Self:
        """What `text` gave."""
        try:
            values = json.loads(text)
            layers = tuple(map(tuple, values.pop("layers")))
            encoder = tuple(map(tuple, values.pop("encoder", ())))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{shown(text)} is no genome: {error!r}") from None
        numbers = all(type(value) is int for value in values.values())
        if not numbers or not all(
            isinstance(block, str) for layer in (*layers, *encoder) for block in layer
        ):
            raise ConfigError(f"{shown(text)} is no genome: fields are numbers, blocks are texts")
        return cls(values, layers, encoder)


def stacks_of(genome: Genome) -> tuple[Layers, Layers]:
    return genome.layers, genome.encoder


def genome_of(fields: Mapping[str, int], sides: Sequence[Layers]) -> Genome:
    return Genome(dict(sorted(fields.items())), *sides)
