"""Which models can begin with the weights of another one: all of its blocks, or some of them?

>>> from parformer.pattern import Pattern
>>> [(name, str(some)) for name, _, _, some in cuts(Pattern.parse("(sf)x4"))]
[('half', '(sf)x2'), ('thin', '(sff)x2')]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from parformer.config import ModelConfig
from parformer.fitting.rules import Placement
from parformer.model import build_from
from parformer.pattern import Pattern
from parformer.store.folder import TOKENIZER
from parformer.train.start import open_start
from parformer.weights import named_tensors

BLOCKS = "blocks."


def cuts(pattern: Pattern) -> Iterator[tuple[str, str, str, Pattern]]:
    """Fewer blocks of a pattern: a name, a title, how, and what is left."""
    blocks = tuple(pattern)
    if any(spec.inside for spec in blocks) or len(blocks) < 4:
        return
    half = Pattern(blocks[: len(blocks) // 4 * 2])
    yield "half", "The lower half", "the first half of the start's blocks", half
    places = [n for n, spec in enumerate(blocks) if spec.letter == "s"]
    gone = set(places[1::2])
    if gone:
        thin = Pattern(spec for n, spec in enumerate(blocks) if n not in gone)
        yield "thin", "Half the attention", "the start without every other attention", thin


def start_placements(base: ModelConfig) -> list[Placement]:
    """What may be fine-tuned beside the start itself."""
    return [
        Placement(name, title, how, (pattern,)) for name, title, how, pattern in cuts(base.pattern)
    ]


def kept(whole: Pattern, some: Pattern) -> list[int]:
    """Which blocks of a pattern are left, by their numbers."""
    if len(some) == len(whole):
        return list(range(len(whole)))
    for name, _, _, cut in cuts(whole):
        if cut == some and name == "half":
            return list(range(len(some)))
        if cut == some:
            places = [n for n, spec in enumerate(whole) if spec.letter == "s"]
            return [n for n in range(len(whole)) if n not in set(places[1::2])]
    raise AssertionError(str(some))


def start_folder(start: Path, config: ModelConfig, root: Path) -> Path:
    """A folder with the start's weights for a model with some of its blocks; made once."""
    opened = open_start(start)
    if config.pattern == opened.config.pattern:
        return start
    place = root / f"start-{len(config.pattern)}-{config.pattern.letters}"
    if (place / TOKENIZER).is_file():
        return place
    numbers = {old: new for new, old in enumerate(kept(opened.config.pattern, config.pattern))}
    weights = {}
    for name, tensor in named_tensors(opened.model).items():
        if name.startswith(BLOCKS):
            number, _, rest = name.removeprefix(BLOCKS).partition(".")
            if int(number) not in numbers:
                continue
            name = f"{BLOCKS}{numbers[int(number)]}.{rest}"
        weights[name] = tensor
    model = build_from(opened.config.replaced(pattern=config.pattern), weights)
    model.save(place, opened.tokenizer.to_json())
    return place
