"""How do labelled texts come in?

As a table: CSV, TSV or JSON lines, compressed or not. A folder says by its files' names which
split they are; of a single file every tenth row is for the test and the one before it for
validation.

>>> list(parsed_rows(["body;stars\\n", "fine;5\\n"], ";", "here"))
[(2, {'body': 'fine', 'stars': '5'})]
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from parformer.data.reading import Piece, plain_name, read_pieces, unreadable
from parformer.data.splits import SPLITS, split_word
from parformer.errors import ConfigError, CorpusError
from parformer.fields import nearest
from parformer.store.files import Json

EVERY = 10
"""Of so many rows of a single file one is for the test, and one for validation."""
ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
OTHERS = ";\t|,"
"""What else stands between columns."""
TEXTS = (("text",), ("sentence",), ("sentence1", "sentence2"), ("premise", "hypothesis"),
         ("question1", "question2"), ("question", "sentence"))  # fmt: skip
"""Columns that hold texts where nobody says which."""
LABELS = ("label", "gold_label", "class", "score")

Row = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A text, or what belongs together, and what is to be told of it."""

    texts: tuple[str, ...]
    """One or two; of questions about a passage the passage first."""
    label: str = ""
    """A class, a number, or the number of the right choice; empty where nobody knows."""
    choices: tuple[str, ...] = ()
    answers: tuple[tuple[int, str], ...] = ()
    """Where answers start in the passage, and what they are; none where there is none."""
    name: str = ""
    """What its authors call it."""
    group: str = ""
    """What is scored together has one group."""


def read_table(path: Path, delimiter: str = "") -> Iterator[tuple[int, Row]]:
    """The rows of a file with the numbers of their lines."""
    plain, where = plain_name(path.name), repr(str(path))
    ending = Path(plain).suffix
    if ending not in ENDINGS:
        raise CorpusError(f"{where} is no table: it must end in {', '.join(ENDINGS[:3])}, or .gz")
    if ending in (".jsonl", ".json"):
        yield from json_rows(read_lines(path), where)
        return
    usual = "\t" if ending == ".tsv" else ","
    yield from parsed_rows(read_lines(path), delimiter or usual, where)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file with their ends, compressed or not, without a mark of UTF-8."""
    decoder, rest, read, first = codecs.getincrementaldecoder("utf-8")(), "", 0, True
    try:
        if not path.is_file():
            raise CorpusError(f"there is no file {str(path)!r}")
        for chunk in chain(read_pieces([Piece(path.resolve())]), [None]):
            held = len(decoder.getstate()[0])
            text = decoder.decode(chunk or b"", final=chunk is None)
            if first and text:
                text, first = text.removeprefix("\ufeff"), False
            *whole, rest = (rest + text).split("\n")
            yield from (f"{line}\n" for line in whole)
            read += len(chunk or b"")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"byte 0x{error.object[error.start]:02x} at offset {read - held + error.start:,} of "
            f"{str(path)!r} is no UTF-8; save the table as UTF-8"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if rest:
        yield rest


def parsed_rows(lines_in: Iterable[str], delimiter: str, where: str) -> Iterator[tuple[int, Row]]:
    """Rows of columns; tabs stand between texts that are not quoted (GLUE's way)."""
    if len(delimiter) != 1:
        raise ConfigError(f"a delimiter is one sign, got {delimiter!r}")
    csv.field_size_limit(2**27)
    how: Json = {"quoting": csv.QUOTE_NONE} if delimiter == "\t" else {}
    lines = csv.reader(lines_in, delimiter=delimiter, **how)
    try:
        names = next(lines, None)
        if not names:
            raise CorpusError(f"{where} is empty; its first line names the columns")
        if len(names) == 1:
            refuse_other_delimiter(names[0], delimiter, where)
        if twice := [name for name in names if names.count(name) > 1]:
            raise CorpusError(f"{where} has two columns {twice[0]!r}; give each a name of its own")
        for row in lines:
            if not row:
                continue
            if len(row) != len(names):
                raise CorpusError(
                    f"line {lines.line_num:,} of {where} has {len(row)} columns, the first line "
                    f"{len(names)}; is a text with {delimiter!r} in it not quoted?"
                )
            yield lines.line_num, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise CorpusError(f"line {lines.line_num:,} of {where} cannot be read: {error}") from None


def refuse_other_delimiter(line: str, delimiter: str, where: str) -> None:
    for other in OTHERS:
        if other != delimiter and other in line:
            raise CorpusError(
                f"{where} has one column, {line!r:.60}, and {other!r} in it; if that stands "
                f"between its columns, train with --set 'data.delimiter={json.dumps(other)}', or "
                f"put {delimiter!r} there"
            )


def json_rows(lines: Iterable[str], where: str) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            raise CorpusError(f"line {number:,} of {where} is not JSON") from None
        if not isinstance(values, dict):
            raise CorpusError(f"line {number:,} of {where} is no table of names and values")
        yield number, values


def find_files(source: str) -> dict[str, Path]:
    """The files of a folder by split, or a single file under no split's name."""
    path = Path(source).expanduser()
    if path.is_file():
        return {"": path}
    if not path.is_dir():
        raise CorpusError(
            f"there is no folder or file {source!r}; give --data the place of a table"
        )
    found: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        split, ending = split_word(plain_name(file.name)), Path(plain_name(file.name)).suffix
        if split is None or ending not in ENDINGS or file.name.startswith("."):
            continue
        if split in found:
            raise CorpusError(
                f"{source!r} has two files for {split}: {found[split].name} and {file.name}; "
                "leave one"
            )
        found[split] = file
    if "train" not in found:
        raise CorpusError(f"{source!r} has no train.csv, train.tsv or train.jsonl")
    return found


def share_out(rows: Sequence[T]) -> dict[str, list[T]]:
    """The splits of a single file."""
    found: dict[str, list[T]] = {split: [] for split in SPLITS}
    for number, row in enumerate(rows, 1):
        place = {0: "test", EVERY - 1: "valid"}.get(number % EVERY, "train")
        found[place].append(row)
    return found


def with_splits(found: dict[str, list[T]], source: str) -> dict[str, list[T]]:
    """Train, valid and, where there is one, test; validation is taken from train if need be."""
    if "" in found:
        found = share_out(found[""])
    elif "valid" not in found:
        shared = share_out(found["train"])
        found = found | {"train": shared["train"] + shared["test"], "valid": shared["valid"]}
    for split in ("train", "valid"):
        if not found[split]:
            raise CorpusError(f"{source!r} has no rows for {split}; give it ten at least")
    return {split: found[split] for split in SPLITS if found.get(split)}


def read_examples(
    source: str, *, texts: Sequence[str] = (), label: str = "", delimiter: str = ""
) -> dict[str, list[Example]]:
    """The examples of a table or of a folder of tables, by split."""
    found: dict[str, list[Example]] = {}
    for split, path in find_files(source).items():
        columns: tuple[tuple[str, ...], str] | None = None
        found[split] = []
        for number, row in read_table(path, delimiter):
            columns = columns or find_columns(row, texts, label, repr(str(path)))
            where = f"line {number:,} of {str(path)!r}"
            found[split].append(example_of(row, *columns, where))
        if not found[split]:
            raise CorpusError(f"{str(path)!r} has no rows below its first line")
    return with_splits(found, source)


def find_columns(
    row: Row, texts: Sequence[str], label: str, where: str, *, labelled: bool = True
) -> tuple[tuple[str, ...], str]:
    """Which columns are meant: those that are named, or the usual ones."""
    names = list(row)
    for name in (*texts, *filter(None, [label])):
        if name not in row and (labelled or name != label):
            raise CorpusError(f"{where} has no column {name!r}; {nearest(name, names)}")
    if not texts:
        texts = next((usual for usual in TEXTS if all(name in row for name in usual)), ())
    if not texts:
        raise CorpusError(
            f"{where} has the columns {', '.join(names)}; say which is the text with --text NAME"
        )
    if not label:
        label = next((usual for usual in LABELS if usual in row), "")
    if not label and labelled:
        raise CorpusError(
            f"{where} has the columns {', '.join(names)}; say which is the label with --label NAME"
        )
    return tuple(texts), label


def example_of(row: Row, texts: Sequence[str], label: str, where: str) -> Example:
    """An example from its row; neither text nor label may be empty."""
    found = tuple(as_text(row.get(name), name, where) for name in texts)
    told = row.get(label)
    if told is None or (isinstance(told, str) and not told.strip()):
        raise CorpusError(f"{where} has no {label!r}; fill it in, or remove the line")
    if isinstance(told, dict | list):
        raise CorpusError(f"{where} has {told!r:.40} as {label!r}; a label is a word or a number")
    return Example(texts=found, label=str(told).strip())


def as_text(value: object, name: str, where: str) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise CorpusError(f"{where} has an empty {name!r}; fill it in, or remove the line")
    if not isinstance(value, str):
        raise CorpusError(f"{where} has {value!r:.40} as {name!r}, which is no text")
    return value
