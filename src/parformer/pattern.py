"""Which blocks, in which order?

>>> Pattern.parse("sfffsfff ff")
Pattern('(sfff)x2 (f)x2')
>>> par(32, p=5)
Pattern('(sfff)x6 (f)x8')
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from typing import overload

from parformer.errors import PatternError
from parformer.notation import (
    ALPHABET,
    MAX_BLOCKS,
    MAX_CHARACTERS,
    MAX_DEPTH,
    NO_OPTIONS,
    Options,
    Parser,
    Value,
    canonical,
    known_blocks,
    shown,
    unit_text,
)

__all__ = [
    "ALPHABET",
    "LAYER_TYPES",
    "MAX_BLOCKS",
    "MAX_CHARACTERS",
    "MAX_DEPTH",
    "MEGATRON",
    "BlockSpec",
    "Options",
    "Pattern",
    "Value",
    "describe",
    "interleaved",
    "par",
    "sandwich",
]

GROUPS = {"<": ("<", ">"), "{": ("{", "}")}
"""The letters of blocks that have a pattern inside, and how they are written."""
MEGATRON = {"s": "*", "f": "-"}
LAYER_TYPES = {"s": "full_attention", "f": "mlp"}


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """One block: a letter and its options, or a group with a pattern inside.

    A bottleneck `<` narrows the stream for its inside; `{` runs its inside several times with
    the same weights.
    """

    letter: str
    options: Mapping[str, Value] = NO_OPTIONS
    inside: Pattern | None = None
    times: int = 1
    """How often the inside of `{` runs."""
    _text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.options, Options):
            object.__setattr__(self, "options", Options(self.options))
        if isinstance(self.letter, str) and self.letter in GROUPS:
            text = self._group_text()
        elif not isinstance(self.letter, str) or self.letter not in ALPHABET:
            raise PatternError(f"unknown block {shown(self.letter)}; {known_blocks()}")
        elif self.inside is not None:
            raise PatternError(
                f"block {self.letter!r} with a pattern inside; only '<' and '{{' take one"
            )
        elif self.times != 1:
            raise PatternError(f"block {self.letter!r} {self.times} times; only '{{' repeats")
        else:
            text = f"{self.letter}[{self.options}]" if self.options else self.letter
        object.__setattr__(self, "_text", text)

    def _group_text(self) -> str:
        opening, closing = GROUPS[self.letter]
        if not isinstance(self.inside, Pattern):
            raise PatternError(f"a group {opening} {closing} takes a pattern inside")
        if self.options and opening != "<":
            raise PatternError(f"a group {opening} {closing} takes no options; < > and blocks do")
        if self.inside.encoder is not None:
            raise PatternError(f"an encoder inside {opening} {closing}; '|' stands outside of it")
        if type(self.times) is not int or self.times < 1 or (self.times > 1 and opening == "<"):
            raise PatternError(
                f"a group {opening} {closing} that runs {shown(self.times)} times; "
                "{ } runs once or more often, < > once"
            )
        inside = unit_text([str(block) for block in self.inside], str(self.inside))
        told = f"[{self.options}]" if self.options else ""
        return f"{opening}{inside}{closing}{told}" + (f"x{self.times}" if self.times > 1 else "")

    @property
    def kind(self) -> str:
        """What it is without its options: a letter, or a group with its inside."""
        return self.letter if self.inside is None else str(replace(self, options=NO_OPTIONS))

    @property
    def size(self) -> int:
        """How many blocks this is: itself and all that run inside."""
        return 1 if self.inside is None else 1 + self.inside.size * self.times

    def __str__(self) -> str:
        return self._text


def block_of(kind: str, options: Mapping[str, Value] = NO_OPTIONS) -> BlockSpec:
    """A block of a kind, with these options.

    >>> str(block_of("<sff>", {"width": 64})), block_of("<sff>").kind
    ('<sff>[width=64]', '<sff>')
    """
    if kind[:1] not in GROUPS:
        return BlockSpec(kind, options)
    blocks = Pattern.parse(kind).blocks
    if len(blocks) != 1 or blocks[0].options:
        raise PatternError(f"{shown(kind)} is no single group without options")
    return replace(blocks[0], options=Options(options))


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Pattern(Sequence[BlockSpec]):
    """A fixed sequence of blocks, whose text always reads back as the same pattern.

    >>> pattern = Pattern.parse("s[heads=2]f <sff>x2")
    >>> len(pattern), pattern.count("f"), pattern[0].options["heads"]
    (4, 5, 2)
    >>> pattern[:2] * 3
    Pattern('(s[heads=2]f)x3')
    """

    blocks: tuple[BlockSpec, ...]
    encoder: Pattern | None
    """What stands before the `|`: the stack that reads the source."""
    size: int = field(compare=False)
    """How many blocks run, counting each group as one more."""
    _text: str = field(compare=False)

    def __init__(self, blocks: Iterable[BlockSpec], encoder: Pattern | None = None) -> None:
        blocks = tuple(blocks)
        if not blocks:
            raise PatternError("a pattern without blocks; give at least one")
        for block in blocks:
            if not isinstance(block, BlockSpec):
                raise PatternError(f"{shown(block)} is no BlockSpec; Pattern.parse reads text")
        if encoder is not None and encoder.encoder is not None:
            raise PatternError("an encoder of an encoder; one '|' stands between two stacks")
        size = sum(block.size for block in blocks) + (0 if encoder is None else encoder.size)
        if size > MAX_BLOCKS:
            raise PatternError(f"more than {MAX_BLOCKS:,} blocks; write a shorter pattern")
        object.__setattr__(self, "blocks", blocks)
        object.__setattr__(self, "encoder", encoder)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "_text", "")
        # at worst, `ff` becomes `(f)x2 `; and parentheses alone nest at most 12 deep,
        # as each pair at least doubles the blocks: so few patterns need a look at their text
        longest = 3 * sum(len(str(block)) for block in blocks)
        if longest > MAX_CHARACTERS or any(block.inside for block in blocks):
            brackets = re.findall("[()<>{}]", str(self))
            steps = (1 if bracket in "(<{" else -1 for bracket in brackets)
            if (depth := max(accumulate(steps), default=0)) > MAX_DEPTH:
                raise PatternError(f"groups nested {depth} deep; nest at most {MAX_DEPTH}")

    @classmethod
    def parse(cls, text: str | Pattern) -> Pattern:
        """Read a pattern from its text; a pattern passes through unchanged."""
        if isinstance(text, Pattern):
            return text
        if not isinstance(text, str):
            raise PatternError(f"{shown(text)} is no pattern; give a text like '(sf)x16'")

        def group(letter: str, blocks: list[BlockSpec], times: int, options: Options) -> BlockSpec:
            return BlockSpec(letter, options, cls(blocks), times)

        encoder, blocks = Parser(text, BlockSpec, group).parse()
        return cls(blocks, None if encoder is None else cls(encoder))

    @classmethod
    def from_megatron(cls, text: str) -> Pattern:
        """Read Megatron's `--hybrid-layer-pattern`: `*` is attention, `-` a feed-forward."""
        return _read_words(text, MEGATRON)

    def to_megatron(self) -> str:
        """Write Megatron's `--hybrid-layer-pattern`."""
        return "".join(_write_words(self, MEGATRON))

    @classmethod
    def from_layer_types(cls, words: Sequence[str]) -> Pattern:
        """Read the `layer_types` of a Hugging Face config, one entry per block."""
        return _read_words(words, LAYER_TYPES)

    def to_layer_types(self) -> list[str]:
        """Write the `layer_types` of a Hugging Face config, one entry per block."""
        return _write_words(self, LAYER_TYPES)

    def without_identity(self) -> Pattern:
        """The same pattern without its identity blocks, inside groups too."""
        blocks = [
            replace(block, inside=block.inside.without_identity()) if block.inside else block
            for block in self
            if block.letter != "i"
        ]
        if not blocks:
            raise PatternError(f"only identity blocks in {shown(str(self))}; add another block")
        return Pattern(blocks, self.encoder and self.encoder.without_identity())

    @property
    def steps(self) -> Iterator[BlockSpec]:
        """Every block that runs after the `|`, in order, with groups unfolded."""
        for block in self:
            if block.inside is None:
                yield block
            else:
                for _ in range(block.times):
                    yield from block.inside.steps

    @property
    def runs(self) -> int:
        """How many blocks run, in both stacks, without counting groups."""
        before = 0 if self.encoder is None else self.encoder.runs
        return before + sum(1 for _ in self.steps)

    @property
    def letters(self) -> str:
        """The letters in order, with `<` and `{` for groups; those of an encoder are its own."""
        return "".join(block.letter for block in self)

    def count(self, letter: str) -> int:
        """How often a letter runs, inside groups and in the encoder too."""
        inside = sum(b.inside.count(letter) * b.times for b in self if b.inside)
        before = self.encoder.count(letter) if self.encoder else 0
        return self.letters.count(letter) + inside + before

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[BlockSpec]:
        return iter(self.blocks)

    @overload
    def __getitem__(self, index: int) -> BlockSpec: ...
    @overload
    def __getitem__(self, index: slice) -> Pattern: ...
    def __getitem__(self, index: int | slice) -> BlockSpec | Pattern:
        return Pattern(self.blocks[index]) if isinstance(index, slice) else self.blocks[index]

    def __add__(self, other: object) -> Pattern:
        if not isinstance(other, Pattern):
            return NotImplemented
        return Pattern(self.blocks + other.blocks, self.encoder or other.encoder)

    def __mul__(self, times: int) -> Pattern:
        # the first multiple that is too long is refused as all later ones would be
        return Pattern(self.blocks * min(times, MAX_BLOCKS // self.size + 1), self.encoder)

    __rmul__ = __mul__

    def __str__(self) -> str:
        if not self._text:
            text = canonical([str(block) for block in self])
            before = "" if self.encoder is None else f"{self.encoder} | "
            object.__setattr__(self, "_text", before + text)
        return self._text

    def __repr__(self) -> str:
        return f"Pattern({str(self)!r})"


def par(layers: int, p: float = 5) -> Pattern:
    """PAR's rule: one block in p is attention, and all of it in the first two thirds.

    The groups fill at most four fifths of the model, as in the
    published patterns of 24, 32 and 36 blocks.

    >>> str(par(36)), str(par(24))
    ('(sfff)x7 (f)x8', '(sff)x5 (f)x9')
    """
    _check_layers(layers)
    if not (isinstance(p, int | float) and 2 <= p < math.inf):
        raise PatternError(f"p must be a number from 2 up, got {shown(p)}")
    attention = _attention_blocks(layers, Fraction(p))
    stride = 4 * layers // (5 * attention)
    if attention > 1:
        stride = min(stride, 2 * layers // (3 * (attention - 1)))
    letters = ["f"] * layers
    for number in range(attention):
        letters[number * stride] = "s"
    return Pattern.parse("".join(letters))


def sandwich(layers: int, k: int) -> Pattern:
    """Press et al.: k attentions first, k feed-forwards last, interleaved in between.

    >>> sandwich(32, k=6) == Pattern.parse("(s)x6 (sf)x10 (f)x6")
    True
    """
    _check_layers(layers, even=True)
    if not (isinstance(k, int) and 0 <= k <= layers // 2):
        raise PatternError(f"k must be from 0 to {layers // 2}, half the layers, got {shown(k)}")
    return Pattern.parse("s" * k + "sf" * (layers // 2 - k) + "f" * k)


def interleaved(layers: int) -> Pattern:
    """The original Transformer: attention and feed-forward in turn."""
    return sandwich(layers, k=0)


def describe(pattern: Pattern | str) -> str:
    """Say in words what a pattern is.

    >>> describe("(sf)x12")
    '24 blocks: 12 self-attention (50%), 12 feed-forward. This is the interleaved Transformer.'
    """
    pattern = Pattern.parse(pattern)
    if pattern.encoder is not None:
        decoder = describe(Pattern(pattern.blocks))
        return f"Encoder: {describe(pattern.encoder)} Decoder: {decoder}"
    letters, bottlenecks, shared = pattern.letters, pattern.count("<"), pattern.count("{")
    total = pattern.runs
    text = f"{total} block{'s' * (total > 1)}"
    for count, name in ((bottlenecks, "bottleneck"), (shared, "group that shares its weights")):
        if count:
            text += f" and {count} {name}" if count == 1 else f" and {count} {plural(name)}"
    text += ": " + ", ".join(
        f"{count} {name}" + (f" ({count / total:.0%})" if letter == "s" else "")
        for letter, name in ALPHABET.items()
        if (count := pattern.count(letter))
    )
    until = letters.rfind("s") + 1
    rest = total - until
    if until and rest > 1 and not bottlenecks and not shared:
        strides = {len(between) + 1 for between in letters[: until - 1].split("s")[1:]}
        stride = max(strides, default=1)
        every = f" (every {_ordinal(stride)})" if strides == {stride} != {1} else ""
        without = "third" if rest == round(total / 3) else rest
        text += f"; attention in the first {until} of {total} blocks{every}"
        text += f", the last {without} without it"
    names = " and ".join(_names(letters))
    return f"{text}. This is {names}." if names else f"{text}."


def _names(letters: str) -> Iterator[str]:
    """What the papers call this order of blocks."""
    layers, attention = len(letters), letters.count("s")
    k = layers - len(letters.lstrip("s")) - 1
    if k >= 0 and letters == "s" * k + "sf" * (layers // 2 - k) + "f" * k:
        yield f"a Sandwich with k = {k}" if k else "the interleaved Transformer"
    fitting = (p for p in range(2, layers + 1) if _attention_blocks(layers, p) == attention)
    if (p := next(fitting, None)) and letters == par(layers, p).letters:
        yield f"PAR's rule for p = {p}"


def plural(name: str) -> str:
    return {"bottleneck": "bottlenecks"}.get(name, "groups that share their weights")


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number % 100 < 20 else ending}"


def _attention_blocks(layers: int, p: int | Fraction) -> int:
    """`round(layers / p)`, exactly: a half goes to the even neighbour, as Python rounds."""
    return max(1, round(Fraction(layers) / p))


def _check_layers(layers: int, *, even: bool = False) -> None:
    if not (isinstance(layers, int) and 1 <= layers <= MAX_BLOCKS) or (even and layers % 2):
        kind = "an even number from 2" if even else "a whole number from 1"
        raise PatternError(f"layers must be {kind} to {MAX_BLOCKS}, got {shown(layers)}")


def _write_words(pattern: Pattern, table: Mapping[str, str]) -> list[str]:
    if pattern.encoder is not None:
        raise PatternError(f"no words for an encoder, {shown(str(pattern))}; write one stack")
    for number, block in enumerate(pattern, start=1):
        if block.letter not in table or block.options:
            way_out = f"there are only {' '.join(table.values())}, without options"
            if block.letter == "i":
                way_out = "drop identity blocks first: pattern.without_identity()"
            raise PatternError(f"no word for block {number}, {shown(str(block))}; {way_out}")
    return [table[letter] for letter in pattern.letters]


def _read_words(words: Sequence[str], table: Mapping[str, str]) -> Pattern:
    letters, known = {word: letter for letter, word in table.items()}, " ".join(table.values())
    if not isinstance(words, str | list | tuple):
        raise PatternError(f"{shown(words)} holds no layers; known layers: {known}")
    for number, word in enumerate(words, start=1):
        if not isinstance(word, str) or word not in letters:
            raise PatternError(f"unknown layer {number}, {shown(word)}; known layers: {known}")
    return Pattern.parse("".join(letters[word] for word in words))
