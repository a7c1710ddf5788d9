"""How wide, how long and by what measure is a text looked for?

>>> Decoding(style="imitkd").longest, Decoding(length_penalty=0.6).penalty
(50, 0.6)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from parformer.errors import ConfigError, InputError
from parformer.fields import need_at_least

if TYPE_CHECKING:
    from parformer.model import Model

STYLES = {"fairseq": (1.0, 1, 200), "imitkd": (0.0, 0, 50)}
"""Length penalty, least and largest length that each style has unless one says otherwise."""
COUNTED_FROM = {"fairseq": 0, "imitkd": 2}
"""Where n-grams have to end to be counted: imitkd does not write down the first token's."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What a search for a text can be asked, by whoever translates."""

    beam: int = 5
    """Beginnings of each text that are kept side by side."""
    style: Literal["fairseq", "imitkd"] = "fairseq"
    """Whose beam search."""
    length_penalty: float | None = None
    """Sums of log-probabilities are divided by this power of the length, so above 0 favours long
    texts; fairseq's is 1 unless given, imitkd's 0."""
    min_len: int | None = None
    """Tokens before the end at least; fairseq's is 1 unless given, imitkd's 0."""
    max_len: int | None = None
    """Tokens at most, before the end in fairseq and with the start in imitkd."""
    no_repeat_ngram: int = 0
    """No n-gram of this length twice; 0 allows any."""

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ConfigError(f"style must be one of {', '.join(STYLES)}, got {self.style!r:.40}")
        need_at_least("beam", self.beam, 1)
        need_at_least("no_repeat_ngram", self.no_repeat_ngram, 0)
        if self.length_penalty is not None and not math.isfinite(self.length_penalty):
            raise ConfigError(f"length_penalty must be a number, got {self.length_penalty}")
        if self.min_len is not None:
            need_at_least("min_len", self.min_len, 0)
        if self.max_len is not None:
            need_at_least("max_len", self.max_len, 1 if self.style == "fairseq" else 2)
        if (self.min_len or 0) > self.longest:
            raise ConfigError(
                f"min_len {self.min_len} exceeds max_len {self.longest}; lower it, or raise max_len"
            )

    @property
    def decoding(self) -> dict[str, Any]:
        """These fields alone, as `translate` takes them; what nobody said is left out."""
        told = {field.name: getattr(self, field.name) for field in fields(Decoding)}
        return {name: value for name, value in told.items() if value is not None}

    @property
    def flags(self) -> list[str]:
        """Those of these fields that somebody set, as a command line calls them.

        >>> Decoding(beam=4, min_len=55).flags
        ['--beam', '--min-len']
        """
        asked = [field for field in fields(Decoding) if getattr(self, field.name) != field.default]
        return [f"--{field.name.replace('_', '-')}" for field in asked]

    @property
    def penalty(self) -> float:
        return STYLES[self.style][0] if self.length_penalty is None else self.length_penalty

    @property
    def shortest(self) -> int:
        return STYLES[self.style][1] if self.min_len is None else self.min_len

    @property
    def longest(self) -> int:
        return STYLES[self.style][2] if self.max_len is None else self.max_len

    def places(self, model: Model) -> int:
        """Tokens that the search may read at most, its start counted."""
        own = self.longest + 1 if self.style == "fairseq" else self.longest
        limit = model.config.max_len if model.config.numbered else own
        if self.max_len is not None and own > limit:
            raise InputError(
                f"max_len {self.max_len} needs {own} places, and the model has {limit}; lower it"
            )
        return min(own, limit)
