"""How is a pattern written down?

The grammar, read in one pass from left to right, and the canonical form, which always
reads back as the same blocks. What the blocks are made of is the caller's affair.

    pattern = [stack "|"] stack
    stack   = item {item}
    item    = block | group
    group   = ("(" stack ")" | "<" stack ">" ["[" options "]"] | "{" stack "}") ["x" count]
    block   = letter ["[" options "]"]
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, NoReturn, TypeAlias, TypeVar

from parformer.errors import PatternError

_letters = {
    "s": "self-attention",
    "c": "cross-attention",
    "f": "feed-forward",
    "i": "identity",
    "r": "SRU recurrence",
    "a": "SRU++ attention",
    "n": "n-gram memory",
    "l": "LSRA",
    "y": "Synthesizer",
}
ALPHABET: Mapping[str, str] = MappingProxyType(_letters)
"""What every letter is called; `add_letter` makes room for a guest."""
_OWN = frozenset(_letters)
MAX_BLOCKS = 4096
MAX_CHARACTERS = 100_000
MAX_DEPTH = 50

Value: TypeAlias = int | float | str
"""What an option holds; a bare word, as in `y[dense]`, holds True."""

_PAIRS = "groups open and close in pairs, ( ), < > or { }"
_WORD = re.compile(r"[a-z][a-z0-9_+.-]*")
_NUMBER = re.compile(r"-?[0-9]{1,18}(?P<decimals>(\.[0-9]{1,25})?(e[+-]?[0-9]{1,3})?)")
_TOKEN = re.compile(
    r"""\s* (?:
      (?P<open> [(<{] )
    | (?P<close> [)}] | > (?: \s* \[ (?P<told> [^\[\]]* ) \] )? )
      (?: \s* [x×*] \s* (?P<count> [0-9]* ) )?
    | (?P<letter> [a-wyz] )  (?: \s* \[ (?P<options> [^\[\]]* ) \] )?
      (?: \s* (?P<stray> [x×*] ) \s* (?P<digits> [0-9]* ) )?
    | (?P<other> \S ) )""",
    re.VERBOSE,
)


def known_blocks() -> str:
    return f"known blocks: {' '.join(sorted(ALPHABET))}"


def add_letter(letter: str, name: str) -> None:
    """Let patterns name a block that is not among our own."""
    free = [c for c in "abcdefghijklmnopqrstuvwyz" if c not in ALPHABET]  # x repeats groups
    if letter not in free:
        why = f"taken ({ALPHABET[letter]})" if letter in ALPHABET else "not for a block"
        raise PatternError(f"the letter {shown(letter)} is {why}; take one of {' '.join(free)}")
    _letters[letter] = name


def drop_letter(letter: str) -> None:
    """Take back what `add_letter` gave; our own letters stay."""
    if letter not in ALPHABET or letter in _OWN:
        guests = " ".join(sorted(set(ALPHABET) - _OWN)) or "none"
        raise PatternError(f"the letter {shown(letter)} was not added; added are: {guests}")
    del _letters[letter]


class Options(Mapping[str, Value]):
    """What a block is told beyond its letter: immutable, hashable, sorted by name."""

    __slots__ = ("_text", "_values")

    def __init__(self, values: Mapping[str, Value] = MappingProxyType({})) -> None:
        for name, value in values.items():
            check_option(name, value)
        named = {sorted_sum(n) if value is True else n: value for n, value in values.items()}
        self._values = {name: named[name] for name in sorted(named)}
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


NO_OPTIONS = Options()


def check_option(name: object, value: object, place: str = "") -> None:
    """Refuse what could not be written in brackets and read back."""
    if not (isinstance(name, str) and _WORD.fullmatch(name)):
        rule = "a name is a letter, then letters, digits or _ - + ., all lower case"
        raise PatternError(f"option name {shown(name)}{place}; {rule}")
    good = (
        value is True
        or (type(value) is int and abs(value) < 10**18)
        or (type(value) is float and math.isfinite(value))
        or (type(value) is str and _WORD.fullmatch(value))
    )
    if not good:
        rule = "give a whole number of up to 18 digits, a finite decimal or a word"
        raise PatternError(f"value {shown(value)} of option {shown(name)}{place}; {rule}")


def sorted_sum(word: str) -> str:
    """A sum of words in the one order that is printed.

    >>> sorted_sum("vanilla+dense")
    'dense+vanilla'
    """
    parts = word.split("+")
    return "+".join(sorted(parts)) if all(map(_WORD.fullmatch, parts)) else word


def shown(value: object) -> str:
    """A value in a message: one line, however long or strange it is."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return "an integer of more than 18 digits"
    return short(" ".join(repr(value).splitlines()))


def short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


def canonical(texts: Sequence[str]) -> str:
    """From the left, the repeated unit that covers the most blocks becomes a group."""
    # one character per distinct block, so that stretches of blocks are compared in C
    characters = {text: chr(number) for number, text in enumerate(dict.fromkeys(texts))}
    word = "".join(characters[text] for text in texts)
    pieces: list[str] = []
    at, in_run = 0, False
    while at < len(texts):
        length, times = _widest_repeat(word, at)
        unit = texts[at : at + length]
        shared = length == times == 1 and unit[0].startswith("{")
        bracketed = shared or (length == 1 and unit[0].startswith("<"))
        plain = times == 1 and not bracketed
        pieces.append(" " if pieces and not (plain and in_run) else "")
        pieces.append(unit[0] if plain or bracketed else f"({unit_text(unit, canonical(unit))})")
        pieces.append(f"x{times}" if times > 1 else "")
        at, in_run = at + length * times, plain
    if (needed := sum(map(len, pieces))) > MAX_CHARACTERS:
        raise PatternError(f"a text of {needed:,} characters; at most {MAX_CHARACTERS:,} are read")
    return "".join(pieces)


def unit_text(texts: Sequence[str], canonical: str) -> str:
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


B = TypeVar("B")
"""What the caller makes of a block."""


@dataclass(slots=True)
class Group(Generic[B]):
    """A bracket that is still open, and the blocks read since."""

    at: int
    blocks: list[B] = field(default_factory=list)
    size: int = 0


class Parser(Generic[B]):
    """Reads a text once, from left to right; open groups wait on a stack."""

    def __init__(
        self,
        text: str,
        make_block: Callable[[str, Options], B],
        make_group: Callable[[str, list[B], int, Options], B],
    ) -> None:
        self.text = text
        self.make_block, self.make_group = make_block, make_group
        self.groups: list[Group[B]] = [Group(at=0)]
        self.encoder: Group[B] | None = None

    def parse(self) -> tuple[list[B] | None, list[B]]:
        """The blocks of the encoder, if there is one, and those of the stack after it."""
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
            elif token["letter"] in ALPHABET:
                self.block(token)
            elif token["other"] == "|":
                self.divide(token.start("other"))
            elif token["other"] in ("[", "]"):
                way_out = "options follow their block, like s[heads=2], or < >"
                self.refuse(f"stray {token['other']!r}", token.start("other"), way_out)
            else:
                kind = "letter" if token["letter"] else "other"
                self.refuse(f"unknown block {token[kind]!r}", token.start(kind), known_blocks())
            at = token.end()
        encoder = None if self.encoder is None else self.encoder.blocks
        return encoder, self.stack().blocks

    def stack(self) -> Group[B]:
        """What was read since the beginning or the bar, if it can stand by itself."""
        at = self.groups[-1].at
        if len(self.groups) > 1:
            self.refuse(f"unpaired {self.text[at]!r}", at, _PAIRS)
        if not self.groups[0].blocks:
            self.refuse("no block", at, "write at least one, like s")
        return self.groups[0]

    def divide(self, at: int) -> None:
        if self.encoder is not None:
            self.refuse("a second '|'", at, "one stands between encoder and decoder")
        self.encoder = self.stack()
        self.groups = [Group(at, size=self.encoder.size)]

    def open(self, at: int) -> None:
        if len(self.groups) > MAX_DEPTH:
            self.refuse(f"groups nested {len(self.groups)} deep", at, f"nest at most {MAX_DEPTH}")
        self.groups.append(Group(at))

    def close(self, token: re.Match[str]) -> None:
        at, bracket, count = token.start("close"), token["close"][0], token["count"]
        opening = self.text[self.groups[-1].at] if len(self.groups) > 1 else ""
        if opening + bracket not in ("()", "<>", "{}"):
            self.refuse(f"unpaired {bracket!r}", at, _PAIRS)
        group = self.groups.pop()
        if not group.blocks:
            self.refuse("empty group", group.at, "put at least one block inside")
        if count is not None and not count.strip("0"):
            self.refuse(f"count {count[:1] or 'missing'}", token.start("count"), "write 1 or more")
        # nine digits are too many blocks already; Python itself refuses to read thousands
        blocks, size, times = group.blocks, group.size, int((count or "1").lstrip("0")[:9])
        if bracket == ">":
            blocks, size = [self.make_group("<", blocks, 1, self.options(token, "told"))], size + 1
        elif bracket == "}":
            self.room(size * times, at)
            blocks, size, times = (
                [self.make_group("{", blocks, times, NO_OPTIONS)],
                size * times + 1,
                1,
            )
        self.add(blocks, size, times, at)

    def block(self, token: re.Match[str]) -> None:
        block = self.make_block(token["letter"], self.options(token, "options"))
        if token["stray"]:
            group = f"({short(str(block))})x{token['digits'][:9] or 2}"
            self.refuse(f"stray {token['stray']!r}", token.start("stray"), f"write {group}")
        self.add([block], 1, 1, token.start("letter"))

    def options(self, token: re.Match[str], part: str) -> Options:
        if token[part] is None:
            return NO_OPTIONS
        values: dict[str, Value] = {}
        at = token.start(part)
        for piece in token[part].split(","):
            place = self.place(at + len(piece) - len(piece.lstrip()))
            name, equals, word = (part.strip() for part in piece.partition("="))
            value: Value = word if equals else True
            if number := _NUMBER.fullmatch(word):
                value = float(word) if number["decimals"] else int(word)
            check_option(name, value, place)
            name = sorted_sum(name) if value is True else name
            if name in values:
                raise PatternError(f"second option {shown(name)}{place}; give each option once")
            values[name] = value
            at += len(piece) + 1
        return Options(values)

    def add(self, blocks: list[B], size: int, times: int, at: int) -> None:
        group = self.groups[-1]
        self.room(group.size + size * times, at)
        group.size += size * times
        group.blocks += blocks * times

    def room(self, size: int, at: int) -> None:
        if size > MAX_BLOCKS:
            self.refuse(f"{size:,} blocks or more", at, f"write at most {MAX_BLOCKS:,}")

    def refuse(self, problem: str, at: int, way_out: str) -> NoReturn:
        raise PatternError(f"{problem}{self.place(at)}; {way_out}")

    def place(self, at: int) -> str:
        start = max(0, at - 30) if len(self.text) > 60 else 0
        left, right = "…" * (start > 0), "…" * (start + 60 < len(self.text))
        excerpt = f"{left}{self.text[start : start + 60]}{right}"
        return f" at column {at + 1} of {excerpt!r}"
