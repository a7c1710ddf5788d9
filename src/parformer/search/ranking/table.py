"""Which models were trained, and how good did they become?

A table as LiteTransformerSearch published it: CSV, perhaps gzipped, one trained model per line,
with its perplexity, its counts of parameters and, in columns that begin with `cfg_`, what it was
built from. The table is read once, line by line, and never trusted.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "small.csv"
...     _ = path.write_text("model,valid_ppl\\na,30\\nb,25\\nc,21\\n")
...     models = read_trained(path)
>>> numbers(models, "valid_ppl")
[30.0, 25.0, 21.0]
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from parformer.config import ModelConfig
from parformer.errors import ConfigError, ParformerError
from parformer.notation import shown

LONGEST_LINE = 100_000
MOST_MODELS = 10_000
MOST_BYTES = 256 * 2**20
"""Of the text, unpacked; a few kilobytes of gzip can hold gigabytes."""
MOST_LAYERS = 512
LARGEST = 2**31
"""Parameters of the largest model that is built to be scored."""
MOST_SHOWN = 20
"""Columns that a message lists."""
MAGIC = b"\x1f\x8b"
LENGTH = 192
"""Tokens per step of all models in the published table."""

FAMILIES = {"transxl": "transformer-xl", "transformerxl": "transformer-xl", "gpt2": "gpt2"}
"""What the name of an experiment says about the backbone, written without marks."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A line of the table."""

    line: int
    experiment: str
    name: str
    values: Mapping[str, str]
    table: str

    @property
    def place(self) -> str:
        return f"line {self.line} of {self.table!r}"

    def value(self, column: str) -> str:
        if column not in self.values:
            known = ", ".join(map(shown, list(self.values)[:MOST_SHOWN]))
            raise ConfigError(f"{self.table!r} has no column {shown(column)}; it has {known}")
        return self.values[column]

    def number(self, column: str) -> float:
        text = self.value(column)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ConfigError(f"{column} in {self.place} is no number: {shown(text)}; mend it")
        return number


def numbers(models: Sequence[Trained], column: str) -> list[float]:
    """A column of finite numbers."""
    return [model.number(column) for model in models]


def best_over(models: Sequence[Trained], column: str, truth: str, *, higher: bool) -> list[Trained]:
    """Of models of one experiment that were built alike, as `cfg_…` says, the best by the truth.

    They may differ in `column`, such as the learning rate.
    """
    best: dict[tuple[str, ...], Trained] = {}
    for model in models:
        model.value(column)
        built = [f"{n}={v}" for n, v in model.values.items() if n[:4] == "cfg_" and n != column]
        key, own = (model.experiment, *built), model.number(truth)
        if key not in best or (own > best[key].number(truth)) == higher:
            best[key] = model
    return list(best.values())


def read_trained(path: Path) -> list[Trained]:
    """Every model of a table, in its order; each occurs once."""
    table = str(path)
    try:
        with path.open("rb") as raw:
            # a name says nothing: what was gzipped begins with two bytes of its own
            packed = raw.peek(2)[:2] == MAGIC
            stream: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            with io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
                return list(_parse(_bounded(text, table), table))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{table!r} is damaged: {error}; fetch it again") from None
    except OSError as error:
        raise ConfigError(f"cannot read {table!r}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{table!r} is not CSV: {error}") from None


def _bounded(text: io.TextIOWrapper, table: str) -> Iterator[str]:
    """Lines, until there are more than any table of models has."""
    total = 0
    while line := text.readline(LONGEST_LINE + 1):
        total += len(line)
        if len(line) > LONGEST_LINE:
            raise ConfigError(f"{table!r} has a line of more than {LONGEST_LINE:,} characters")
        if total > MOST_BYTES:
            raise ConfigError(f"{table!r} holds more than {MOST_BYTES:,} characters; cut it down")
        yield line


def _parse(lines: Iterator[str], table: str) -> Iterator[Trained]:
    rows = csv.reader(lines, strict=True)
    columns = next(rows, [])
    if not columns:
        raise ConfigError(f"{table!r} is empty; its first line must name columns")
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{table!r} has two columns {shown(twice)}; rename one")
    seen: dict[tuple[str, ...], int] = {}
    for row in rows:
        if not row:
            continue  # a blank line
        line = rows.line_num
        if len(row) != len(columns):
            raise ConfigError(
                f"line {line} of {table!r} has {len(row)} values for {len(columns)} columns"
            )
        if len(seen) == MOST_MODELS:
            raise ConfigError(f"{table!r} has more than {MOST_MODELS:,} models; cut it down")
        values = dict(zip(columns, row, strict=True))
        experiment = values.get("experiment", values.get("pair", "all models"))
        name = values.get("model", f"line {line}")
        key = (experiment, name) if "model" in values else tuple(row)
        if key in seen:
            raise ConfigError(
                f"line {line} of {table!r} repeats line {seen[key]}, model {shown(name)} of "
                f"{shown(experiment)}; leave one out"
            )
        seen[key] = line
        yield Trained(line, experiment, name, values, table)
    if not seen:
        raise ConfigError(f"{table!r} names columns but has no models")


def by_experiment(
    models: Sequence[Trained], fewest: int, *, sample: int = 0, seed: int = 0
) -> dict[str, list[Trained]]:
    """The models that were trained alike; with `sample` so many of each, drawn by the seed."""
    groups: dict[str, list[Trained]] = {}
    for model in models:
        groups.setdefault(model.experiment, []).append(model)
    for name, group in groups.items():
        if sample and len(group) > sample:
            kept = sorted(Random(seed).sample(range(len(group)), sample))
            groups[name] = [group[i] for i in kept]
        if len(groups[name]) < fewest:
            raise ConfigError(
                f"experiment {shown(name)} in {group[0].table!r} has {len(groups[name])} models; "
                f"a ranking needs {fewest} or more"
            )
    return groups


def config_of(model: Trained) -> ModelConfig:
    """What a model was built from, as the columns `cfg_…` have it."""
    family = _family(model)
    layers = _whole(model, "cfg_n_layer")
    if not 1 <= layers <= MOST_LAYERS:
        raise ConfigError(f"cfg_n_layer in {model.place} must be 1 to {MOST_LAYERS}, got {layers}")
    heads, inner = (_per_layer(model, name, layers) for name in ("cfg_n_head", "cfg_d_inner"))
    vocab_size = _whole(model, "cfg_n_token")
    cutoffs = [cut for cut in _list(model, "cfg_cutoffs") if cut < vocab_size]
    pairs = zip(heads, inner, strict=True)
    own: dict[str, object] = (
        {"position_bias": "per-layer"}
        if family == "transformer-xl"
        else {"max_len": LENGTH, "output_bias": True}
    )
    try:
        return ModelConfig.from_dict(
            {
                "family": family,
                "pattern": " ".join(f"s[heads={h}]f[inner={n}]" for h, n in pairs),
                "vocab_size": vocab_size,
                "d_model": _whole(model, "cfg_d_model"),
                "n_head": heads[0],
                "d_inner": inner[0],
                "round_heads": True,
                "embedding": "adaptive",
                "d_embed": _whole(model, "cfg_d_embed"),
                "cutoffs": tuple(cutoffs),
                "div_val": _whole(model, "cfg_div_val"),
                "tgt_len": LENGTH,
                **own,
            }
        )
    except ParformerError as error:
        raise ConfigError(f"{model.place} is no model: {error}") from None


def score_trained(
    models: Sequence[Trained],
    names: Sequence[str],
    *,
    batch: int,
    tgt_len: int,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, list[float]]:
    """Build the models, one after the other, and score each; `progress` hears of every one."""
    # a table by itself is read without torch
    from parformer.costs import cost
    from parformer.search.ranking.proxies import draw_batch, scores

    found: dict[str, list[float]] = {name: [] for name in names}
    for model in models:
        config = config_of(model)
        try:
            if (size := cost(config, tgt_len=1, mem_len=0).parameters) > LARGEST:
                raise ConfigError(f"{size:,} parameters are too many to be built")
            drawn = draw_batch(config, batch=batch, tgt_len=tgt_len, seed=seed)
            own = scores(names, config, batch=drawn, seed=seed)
        except ConfigError as error:
            raise ConfigError(f"{model.place}, {shown(model.experiment)}: {error}") from None
        for name in names:
            found[name].append(own[name])
        progress(model.name)
    return found


def _family(model: Trained) -> str:
    written = model.values.get("family", model.experiment).lower()
    plain = "".join(character for character in written if character.isalnum())
    for word, family in FAMILIES.items():
        if word in plain:
            return family
    raise ConfigError(
        f"{model.place} does not say its backbone: {shown(model.experiment)} names neither "
        "TransXL nor GPT2; add a column 'family'"
    )


def _whole(model: Trained, column: str) -> int:
    number = model.number(column)
    if not number.is_integer():
        raise ConfigError(f"{column} in {model.place} must be a whole number, got {number:g}")
    return int(number)


def _list(model: Trained, column: str) -> list[int]:
    text = model.value(column)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise ConfigError(
            f"{column} in {model.place} must be a list of whole numbers, got {shown(text)}"
        )
    return values


def _per_layer(model: Trained, column: str, layers: int) -> list[int]:
    values = _list(model, column)
    if len(values) != layers:
        raise ConfigError(f"{column} in {model.place} has {len(values)} values for {layers} layers")
    return values
