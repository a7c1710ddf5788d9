"""Which blocks, in which order?

>>> Pattern.parse("sfffsfff ff")
Pattern('(sfff)x2 (f)x2')
>>> par(32, p=5)
Pattern('(sfff)x6 (f)x8')

The notation is the papers' own, one letter per block:

    pattern = item {item}
    item    = block | group
    group   = ("(" pattern ")" | "<" pattern ">") ["x" count]
    block   = letter ["[" options "]"]
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from types import MappingProxyType
from typing import NoReturn, TypeAlias, overload

from parformer.errors import PatternError

ALPHABET: Mapping[str, str] = MappingProxyType(
    {
        "s": "self-attention",
        "f": "feed-forward",
        "i": "identity",
        "r": "SRU recurrence",
        "a": "SRU++ attention",
        "l": "LSRA",
        "y": "Synthesizer",
    }
)
MAX_BLOCKS = 4096
MAX_CHARACTERS = 100_000
MAX_DEPTH = 50

MEGATRON = {"s": "*", "f": "-"}
LAYER_TYPES = {"s": "full_attention", "f": "mlp"}

Value: TypeAlias = int | float | str
"""What an option holds; a bare word, as in `y[dense]`, holds True."""

_KNOWN = f"known blocks: {' '.join(sorted(ALPHABET))}"
_PAIRS = "groups open and close in pairs, ( ) or < >"
_WORD = re.compile(r"[a-z][a-z0-9_+.-]*")
_NUMBER = re.compile(r"-?[0-9]{1,18}(?P<decimals>(\.[0-9]{1,25})?(e[+-]?[0-9]{1,3})?)")
_TOKEN = re.compile(
    rf"""\s* (?:
      (?P<open> [(<] )
    | (?P<close> [)>] )  (?: \s* [x×*] \s* (?P<count> [0-9]* ) )?
    | (?P<letter> [{"".join(ALPHABET)}] )  (?: \s* \[ (?P<options> [^\[\]]* ) \] )?
      (?: \s* (?P<stray> [x×*] ) \s* (?P<digits> [0-9]* ) )?
    | (?P<other> \S ) )""",
    re.VERBOSE,
)


class Options(Mapping[str, Value]):
    """What a block is told beyond its letter: immutable, hashable, sorted by name."""

    __slots__ = ("_text", "_values")

    def __init__(self, values: Mapping[str, Value] = MappingProxyType({})) -> None:
        for name, value in values.items():
            _check_option(name, value)
        self._values = {name: values[name] for name in sorted(values)}
        self._text = ",".join(
            name if value is True else f"{name}={value}" for name, value in self._values.items()
        )

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        # 1, 1.0 and True are equal to Python; here they are three different options
        if isinstance(other, Options):
            return self._text == other._text
        return Mapping.__eq__(self, other)

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"Options({self._values})"

    def __str__(self) -> str:
        return self._text


_NO_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """One block: a letter and its options, or a bottleneck `<` with a pattern inside."""

    letter: str
    options: Mapping[str, Value] = _NO_OPTIONS
    inside: Pattern | None = None
    _text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.options, Options):
            object.__setattr__(self, "options", Options(self.options))
        if self.letter == "<":
            if self.options or not isinstance(self.inside, Pattern):
                raise PatternError("a bottleneck '<' takes a pattern inside, and no options")
            text = f"<{_unit([str(block) for block in self.inside], str(self.inside))}>"
        elif not isinstance(self.letter, str) or self.letter not in ALPHABET:
            raise PatternError(f"unknown block {_shown(self.letter)}; {_KNOWN}")
        elif self.inside is not None:
            raise PatternError(f"block {self.letter!r} with a pattern inside; only '<' takes one")
        else:
            text = f"{self.letter}[{self.options}]" if self.options else self.letter
        object.__setattr__(self, "_text", text)

    @property
    def size(self) -> int:
        """How many blocks this is: itself and all that is inside."""
        return 1 if self.inside is None else 1 + self.inside.size

    def __str__(self) -> str:
        return self._text


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
    size: int = field(compare=False)
    """How many blocks there are, counting each bottleneck and all that is inside."""
    _text: str = field(compare=False)

    def __init__(self, blocks: Iterable[BlockSpec]) -> None:
        blocks = tuple(blocks)
        if not blocks:
            raise PatternError("a pattern without blocks; give at least one")
        for block in blocks:
            if not isinstance(block, BlockSpec):
                raise PatternError(f"{_shown(block)} is no BlockSpec; Pattern.parse reads text")
        size = sum(block.size for block in blocks)
        if size > MAX_BLOCKS:
            raise PatternError(f"more than {MAX_BLOCKS:,} blocks; write a shorter pattern")
        object.__setattr__(self, "blocks", blocks)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "_text", "")
        # at worst, `ff` becomes `(f)x2 `; and parentheses alone nest at most 12 deep,
        # as each pair at least doubles the blocks: so few patterns need a look at their text
        longest = 3 * sum(len(str(block)) for block in blocks)
        if longest > MAX_CHARACTERS or any(block.inside for block in blocks):
            steps = (1 if bracket in "(<" else -1 for bracket in re.findall("[()<>]", str(self)))
            if (depth := max(accumulate(steps), default=0)) > MAX_DEPTH:
                raise PatternError(f"groups nested {depth} deep; nest at most {MAX_DEPTH}")

    @classmethod
    def parse(cls, text: str | Pattern) -> Pattern:
        """Read a pattern from its text; a pattern passes through unchanged."""
        if isinstance(text, Pattern):
            return text
        if not isinstance(text, str):
            raise PatternError(f"{_shown(text)} is no pattern; give a text like '(sf)x16'")
        return _Parser(text).parse()

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
        """The same pattern without its identity blocks, inside bottlenecks too."""
        blocks = [
            BlockSpec("<", inside=block.inside.without_identity()) if block.inside else block
            for block in self
            if block.letter != "i"
        ]
        if not blocks:
            raise PatternError(f"only identity blocks in {_shown(str(self))}; add another block")
        return Pattern(blocks)

    @property
    def letters(self) -> str:
        """The letters in order, with `<` for a bottleneck."""
        return "".join(block.letter for block in self)

    def count(self, letter: str) -> int:
        """How often a letter occurs, inside bottlenecks too."""
        return self.letters.count(letter) + sum(b.inside.count(letter) for b in self if b.inside)

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
        return Pattern(self.blocks + other.blocks) if isinstance(other, Pattern) else NotImplemented

    def __mul__(self, times: int) -> Pattern:
        # the first multiple that is too long is refused as all later ones would be
        return Pattern(self.blocks * min(times, MAX_BLOCKS // self.size + 1))

    __rmul__ = __mul__

    def __str__(self) -> str:
        if not self._text:
            object.__setattr__(self, "_text", _canonical([str(block) for block in self]))
        return self._text

    def __repr__(self) -> str:
        return f"Pattern({str(self)!r})"


def par(layers: int, p: float = 5) -> Pattern:
    """PAR's rule: one block in p is attention, and all of it in the first two thirds.

    Exact halves round up. The groups fill at most four fifths of the model, as in the
    published patterns of 24, 32 and 36 blocks.

    >>> str(par(36)), str(par(24))
    ('(sfff)x7 (f)x8', '(sff)x5 (f)x9')
    """
    _check_layers(layers)
    if not (isinstance(p, int | float) and 2 <= p < math.inf):
        raise PatternError(f"p must be a number from 2 up, got {_shown(p)}")
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
        raise PatternError(f"k must be from 0 to {layers // 2}, half the layers, got {_shown(k)}")
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
    letters, bottlenecks = pattern.letters, pattern.count("<")
    total = pattern.size - bottlenecks
    text = f"{total} block{'s' * (total > 1)}"
    if bottlenecks:
        text += f" and {bottlenecks} bottleneck{'s' * (bottlenecks > 1)}"
    text += ": " + ", ".join(
        f"{count} {name}" + (f" ({count / total:.0%})" if letter == "s" else "")
        for letter, name in ALPHABET.items()
        if (count := pattern.count(letter))
    )
    until = letters.rfind("s") + 1
    rest = total - until
    if until and rest > 1 and not bottlenecks:
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


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number % 100 < 20 else ending}"


def _attention_blocks(layers: int, p: int | Fraction) -> int:
    """`layers / p`, rounded to the nearest whole number, a half upwards."""
    return max(1, (2 * layers + p) // (2 * p))


def _check_layers(layers: int, *, even: bool = False) -> None:
    if not (isinstance(layers, int) and 1 <= layers <= MAX_BLOCKS) or (even and layers % 2):
        kind = "an even number from 2" if even else "a whole number from 1"
        raise PatternError(f"layers must be {kind} to {MAX_BLOCKS}, got {_shown(layers)}")


def _write_words(pattern: Pattern, table: Mapping[str, str]) -> list[str]:
    for number, block in enumerate(pattern, start=1):
        if block.letter not in table or block.options:
            way_out = f"there are only {' '.join(table.values())}, without options"
            if block.letter == "i":
                way_out = "drop identity blocks first: pattern.without_identity()"
            raise PatternError(f"no word for block {number}, {_shown(str(block))}; {way_out}")
    return [table[letter] for letter in pattern.letters]


def _read_words(words: Sequence[str], table: Mapping[str, str]) -> Pattern:
    letters, known = {word: letter for letter, word in table.items()}, " ".join(table.values())
    if not isinstance(words, str | list | tuple):
        raise PatternError(f"{_shown(words)} holds no layers; known layers: {known}")
    for number, word in enumerate(words, start=1):
        if not isinstance(word, str) or word not in letters:
            raise PatternError(f"unknown layer {number}, {_shown(word)}; known layers: {known}")
    return Pattern.parse("".join(letters[word] for word in words))


def _canonical(texts: Sequence[str]) -> str:
    """From the left, the repeated unit that covers the most blocks becomes a group."""
    # one character per distinct block, so that stretches of blocks are compared in C
    characters = {text: chr(number) for number, text in enumerate(dict.fromkeys(texts))}
    word = "".join(characters[text] for text in texts)
    pieces: list[str] = []
    at, in_run = 0, False
    while at < len(texts):
        length, times = _widest_repeat(word, at)
        unit = texts[at : at + length]
        bracketed = length == 1 and unit[0].startswith("<")
        plain = times == 1 and not bracketed
        pieces.append(" " if pieces and not (plain and in_run) else "")
        pieces.append(unit[0] if plain or bracketed else f"({_unit(unit, _canonical(unit))})")
        pieces.append(f"x{times}" if times > 1 else "")
        at, in_run = at + length * times, plain
    if (needed := sum(map(len, pieces))) > MAX_CHARACTERS:
        raise PatternError(f"a text of {needed:,} characters; at most {MAX_CHARACTERS:,} are read")
    return "".join(pieces)


def _unit(texts: Sequence[str], canonical: str) -> str:
    """The inside of a group: plain, unless the canonical form is shorter."""
    return canonical if len(canonical) < sum(map(len, texts)) else "".join(texts)


def _widest_repeat(word: str, at: int) -> tuple[int, int]:
    """The unit that covers the most from here on: its length, and how often it stands."""
    best, best_times = 1, 1
    left, length = len(word) - at, 1
    while length <= left // 2 and best * best_times < left:
        # a longer unit begins as this one does, so go where these characters come again
        again = word.find(word[at : at + length], at + length, at + left // 2 + length)
        if again < 0:
            break
        unit, length, times = word[at:again], again - at, 1
        while word.startswith(unit, at + times * length):
            times += 1
        if times > 1 and times * length > best * best_times:
            best, best_times = length, times
        length += 1
    return best, best_times


def _check_option(name: object, value: object, place: str = "") -> None:
    """Refuse what could not be written in brackets and read back."""
    if not (isinstance(name, str) and _WORD.fullmatch(name)):
        rule = "a name is a letter, then letters, digits or _ - + ., all lower case"
        raise PatternError(f"option name {_shown(name)}{place}; {rule}")
    good = (
        value is True
        or (type(value) is int and abs(value) < 10**18)
        or (type(value) is float and math.isfinite(value))
        or (type(value) is str and _WORD.fullmatch(value))
    )
    if not good:
        rule = "give a whole number of up to 18 digits, a finite decimal or a word"
        raise PatternError(f"value {_shown(value)} of option {_shown(name)}{place}; {rule}")


def _shown(value: object) -> str:
    """A value in a message: one line, however long or strange it is."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return "an integer of more than 18 digits"
    return _short(" ".join(repr(value).splitlines()))


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


@dataclass(slots=True)
class _Group:
    """A bracket that is still open, and the blocks read since."""

    at: int
    blocks: list[BlockSpec] = field(default_factory=list)
    size: int = 0


class _Parser:
    """Reads a text once, from left to right; open groups wait on a stack."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.groups = [_Group(at=0)]

    def parse(self) -> Pattern:
        if len(self.text) > MAX_CHARACTERS:
            self.refuse("text too long", MAX_CHARACTERS, f"write at most {MAX_CHARACTERS:,}")
        at, end = 0, len(self.text.rstrip())
        while at < end:
            token = _TOKEN.match(self.text, at)
            assert token, "anything but blanks is a token"
            if token["open"]:
                self.open(token.start("open"))
            elif token["close"]:
                self.close(token)
            elif token["letter"]:
                self.block(token)
            elif token["other"] in "[]":
                way_out = "options follow their block, like s[heads=2]"
                self.refuse(f"stray {token['other']!r}", token.start("other"), way_out)
            else:
                self.refuse(f"unknown block {token['other']!r}", token.start("other"), _KNOWN)
            at = token.end()
        at = self.groups[-1].at
        if len(self.groups) > 1:
            self.refuse(f"unpaired {self.text[at]!r}", at, _PAIRS)
        if not self.groups[0].blocks:
            self.refuse("no block", at, "write at least one, like s")
        return Pattern(self.groups[0].blocks)

    def open(self, at: int) -> None:
        if len(self.groups) > MAX_DEPTH:
            self.refuse(f"groups nested {len(self.groups)} deep", at, f"nest at most {MAX_DEPTH}")
        self.groups.append(_Group(at))

    def close(self, token: re.Match[str]) -> None:
        at, bracket, count = token.start("close"), token["close"], token["count"]
        opening = self.text[self.groups[-1].at] if len(self.groups) > 1 else ""
        if opening + bracket not in ("()", "<>"):
            self.refuse(f"unpaired {bracket!r}", at, _PAIRS)
        group = self.groups.pop()
        if not group.blocks:
            self.refuse("empty group", group.at, "put at least one block inside")
        if count is not None and not count.strip("0"):
            self.refuse(f"count {count[:1] or 'missing'}", token.start("count"), "write 1 or more")
        blocks, size = group.blocks, group.size
        if bracket == ">":
            blocks, size = [BlockSpec("<", inside=Pattern(blocks))], size + 1
        # nine digits are too many blocks already; Python itself refuses to read thousands
        self.add(blocks, size, int((count or "1").lstrip("0")[:9]), at)

    def block(self, token: re.Match[str]) -> None:
        options = _NO_OPTIONS if token["options"] is None else self.options(token)
        block = BlockSpec(token["letter"], options)
        if token["stray"]:
            group = f"({_short(str(block))})x{token['digits'][:9] or 2}"
            self.refuse(f"stray {token['stray']!r}", token.start("stray"), f"write {group}")
        self.add([block], 1, 1, token.start("letter"))

    def options(self, token: re.Match[str]) -> Options:
        values: dict[str, Value] = {}
        at = token.start("options")
        for piece in token["options"].split(","):
            place = self.place(at + len(piece) - len(piece.lstrip()))
            name, equals, word = (part.strip() for part in piece.partition("="))
            value: Value = word if equals else True
            if number := _NUMBER.fullmatch(word):
                value = float(word) if number["decimals"] else int(word)
            _check_option(name, value, place)
            if name in values:
                raise PatternError(f"second option {_shown(name)}{place}; give each option once")
            values[name] = value
            at += len(piece) + 1
        return Options(values)

    def add(self, blocks: list[BlockSpec], size: int, times: int, at: int) -> None:
        group = self.groups[-1]
        group.size += size * times
        if group.size > MAX_BLOCKS:
            self.refuse(f"{group.size:,} blocks or more", at, f"write at most {MAX_BLOCKS:,}")
        group.blocks += blocks * times

    def refuse(self, problem: str, at: int, way_out: str) -> NoReturn:
        raise PatternError(f"{problem}{self.place(at)}; {way_out}")

    def place(self, at: int) -> str:
        start = max(0, at - 30) if len(self.text) > 60 else 0
        left, right = "…" * (start > 0), "…" * (start + 60 < len(self.text))
        excerpt = f"{left}{self.text[start : start + 60]}{right}"
        return f" at column {at + 1} of {excerpt!r}"
