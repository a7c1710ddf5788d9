"""What can one ask of a model that tells labels, and what does it answer?"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer.errors import ConfigError, FolderError
from parformer.events import Listener, Watch, nobody
from parformer.fields import need_at_least
from parformer.records import Json
from parformer.store.files import reason, sync
from parformer.verbs import requested

if TYPE_CHECKING:
    from parformer.data.tables import Example
    from parformer.predict.telling import Prediction, Teller

AT_ONCE = 2048
"""Rows of a file that are in memory at a time."""


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """A trained model, and the texts that it is asked about."""

    model: Path
    """Folder of a run or of a model."""
    texts: tuple[str, ...] = ()
    """A text; may be repeated."""
    text_pairs: tuple[str, ...] = ()
    """The other text of a pair; as often as the first."""
    question: str = ""
    """A question about a passage."""
    passage: str = ""
    """The passage that answers it, or that choices are about."""
    choices: tuple[str, ...] = ()
    """A choice; give it twice or more."""
    input: Path | None = None
    """File of texts: CSV, TSV or JSON lines with the columns of training, or .txt with one a
    line."""
    output: Path | None = None
    """File for the answers, a JSON line each."""
    tokens: int = 4096
    """Read at once."""
    device: str = "auto"
    """Such as cpu or cuda:0."""

    def __post_init__(self) -> None:
        need_at_least("tokens", self.tokens, 1)
        if self.input is not None and (self.texts or self.question or self.passage):
            raise ConfigError("--input and a --text are two places of texts; give one of them")
        if self.question and not self.passage:
            raise ConfigError("--question needs the --passage that answers it")
        if self.input is None and not self.texts and not self.passage:
            raise ConfigError("give a --text, a --question with its --passage, or --input FILE")
        if self.output is not None and self.input is None:
            raise ConfigError(f"--output {self.output} is for the answers to --input FILE")
        if self.text_pairs and len(self.text_pairs) != len(self.texts):
            raise ConfigError(
                f"there are {len(self.texts)} texts and {len(self.text_pairs)} others of pairs; "
                "give each its own"
            )
        for name in ("texts", "text_pairs"):
            for text in getattr(self, name):
                if not text.strip():
                    raise ConfigError("a text is empty; give it words, or leave it out")

    def examples(self) -> list[Example]:
        """What is asked on the command line."""
        from parformer.data.tables import Example

        if self.passage:
            texts = (self.passage, self.question) if self.question else (self.passage,)
            return [Example(texts=texts, choices=self.choices)]
        pairs = self.text_pairs or (None,) * len(self.texts)
        return [
            Example(texts=(one,) if two is None else (one, two), choices=self.choices)
            for one, two in zip(self.texts, pairs, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What a model told."""

    predictions: tuple[Prediction, ...]
    """Of the texts that were given; of a file, where nobody named an output."""
    count: int
    """Of all."""
    calibration: float | None
    """How far its probabilities are off on average, by its validation; None where unknown."""
    probable: bool = False
    """Whether it tells probabilities."""

    def to_dict(self) -> Json:
        """Plain values, ready for JSON."""
        told = [one.to_dict() for one in self.predictions]
        return {"predictions": told, "count": self.count, "calibration_error": self.calibration}


def predict(
    request: PredictRequest | None = None, *, watch: Listener = nobody, **given: Any
) -> Predicted:
    """What a trained model tells of texts: classes, scores, choices or answers."""
    asked = requested(PredictRequest, request, given)
    from parformer.measure.device import find_device
    from parformer.predict.telling import open_teller, refuse_misfit

    teller = open_teller(Path(asked.model), find_device(asked.device), asked.tokens)
    if asked.input is None:
        examples = asked.examples()
        for example in examples:
            refuse_misfit(teller, example)
        told = tuple(teller.tell(examples))
        return answered(teller, told, len(told))
    kept: list[Prediction] = []
    count = 0
    with written(asked.output) as write:
        for some in in_turns(file_examples(teller, Path(asked.input))):
            for one in teller.tell(some):
                count += 1
                if asked.output is None:
                    kept.append(one)
                else:
                    write(json.dumps(one.to_dict(), ensure_ascii=False) + "\n")
            Watch(watch).preparing(f"told {count:,}", 0.0)
        if not count:
            raise ConfigError(f"{str(asked.input)!r} has no texts")
    return answered(teller, tuple(kept), count)


def answered(teller: Teller, told: tuple[Prediction, ...], count: int) -> Predicted:
    probable = teller.head in ("class", "choice")
    return Predicted(
        predictions=told, count=count, calibration=teller.calibration, probable=probable
    )


def in_turns(examples: Iterator[Example]) -> Iterator[list[Example]]:
    while some := list(islice(examples, AT_ONCE)):
        yield some


def file_examples(teller: Teller, path: Path) -> Iterator[Example]:
    """The examples of a file, row by row, without their labels."""
    from parformer.data.benchmarks import choice, squad
    from parformer.data.reading import plain_name
    from parformer.data.tables import Example, as_text, find_columns, read_lines, read_table

    data = teller.recipe.data
    if Path(plain_name(path.name)).suffix == ".txt":
        for number, line in enumerate(read_lines(path), 1):
            yield Example(
                texts=(as_text(line.strip(), "text", f"line {number:,} of {str(path)!r}"),)
            )
        return
    columns: tuple[str, ...] = ()
    for number, row in read_table(path, data.delimiter):
        where = f"line {number:,} of {str(path)!r}"
        if teller.head in ("choice", "span"):
            for one in (choice if teller.head == "choice" else squad)(row, where):
                yield replace(one, label="", answers=())
            continue
        if not columns:
            columns, _ = find_columns(row, data.texts, "", repr(str(path)), labelled=False)
        yield Example(texts=tuple(as_text(row.get(name), name, where) for name in columns))


@contextlib.contextmanager
def written(path: Path | None) -> Iterator[Any]:
    """Writes lines to a file that appears whole or not at all."""
    if path is None:
        yield None
        return
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with beside.open("w", encoding="utf-8") as stream:
            yield stream.write
        sync(beside)
        beside.rename(path)
    except OSError as error:
        raise FolderError(f"could not write {str(path)!r}: {reason(error)}") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
