"""What may take which block's place?

>>> {letter: [*map(str, choices)] for letter, choices in read_wanted(["s=r,f[inner=64],i"]).items()}
{'s': ['r', 'f[inner=64]', 'i']}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from parformer.errors import ConfigError
from parformer.notation import shown
from parformer.pattern import ALPHABET, BlockSpec, Pattern

Wanted = Mapping[str, tuple[BlockSpec, ...]]
"""By letter, what may stand in a block's place."""
EXAMPLE = "write it as s=r,f,i"
_COMMA = re.compile(r",(?![^\[]*\])")


def read_wanted(texts: Sequence[str]) -> dict[str, tuple[BlockSpec, ...]]:
    """What was asked for, letter by letter."""
    found: dict[str, tuple[BlockSpec, ...]] = {}
    for text in texts:
        letter, equals, choices = (part.strip() for part in text.partition("="))
        if not equals or not choices:
            raise ConfigError(f"cannot read replace {shown(text)}; {EXAMPLE}")
        if letter not in ALPHABET:
            known = " ".join(sorted(ALPHABET))
            raise ConfigError(
                f"unknown block {shown(letter)} in replace {shown(text)}; known blocks: {known}"
            )
        if letter in found:
            raise ConfigError(f"replace tells of {letter!r} twice; name all its choices at once")
        found[letter] = tuple(read_choice(word, text) for word in _COMMA.split(choices))
    return found


def read_choice(word: str, text: str) -> BlockSpec:
    """One block that may stand in another's place."""
    blocks = Pattern.parse(word).blocks if word.strip() else ()
    if len(blocks) != 1 or blocks[0].inside is not None or "share" in blocks[0].options:
        raise ConfigError(
            f"replace {shown(text)} has {shown(word)} where a single block belongs; {EXAMPLE}"
        )
    return blocks[0]
