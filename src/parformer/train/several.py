"""What comes of several trainings that differ in a seed, or in what is tried?

Every one is a run of its own in a folder under one root: what was stopped goes on, what is
finished is found again. Of what is tried the best on validation counts, by the median of its
seeds; the median and the range are told, as a single training says little.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import ClassVar

from parformer.errors import ConfigError
from parformer.fields import parse_assignment
from parformer.records import Record, Result
from parformer.train.result import Written
from parformer.train.run import is_run, read_result


@dataclass(frozen=True, slots=True)
class Spread(Record):
    """One number of several trainings."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of all of them.

        >>> Spread.of([0.9, 0.7, 0.8])
        Spread(median=0.8, low=0.7, high=0.9)
        """
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Tried(Record):
    """What was tried, with all its seeds."""

    changes: tuple[str, ...]
    """Such as train.learning_rate=2e-05; none where only seeds differ."""
    runs: tuple[str, ...]
    valid: Mapping[str, Spread]
    """By metric."""
    test: Mapping[str, Spread]


@dataclass(frozen=True, kw_only=True)
class Several(Result):
    """All that was tried; the best by validation first."""

    FILE: ClassVar[str] = "several.json"
    FORMAT: ClassVar[str] = "parformer-several-1"

    tried: tuple[Tried, ...]
    best: str
    """The run that is nearest to the median of the best."""


def train_several(
    tries: Sequence[str],
    seeds: Sequence[int],
    root: Path,
    train: Callable[[tuple[str, ...], int, Path], bool],
) -> Several | None:
    """Train all, and what came of it; None as soon as a training was not finished.

    `train` takes changes, a seed and the folder, and says whether it came to its end.
    """
    if is_run(root):
        raise ConfigError(f"{str(root)!r} holds a single training; choose another --run")
    plan = {
        changes: [root / name_of(changes) / f"seed-{seed}" for seed in seeds]
        for changes in grid(tries)
    }
    for changes, paths in plan.items():
        for seed, path in zip(seeds, paths, strict=True):
            if not train(changes, seed, path):
                return None
    tried = [summed(changes, paths) for changes, paths in plan.items()]
    tried.sort(key=lambda one: -one.valid["score"].median)
    found = Several(tried=tuple(tried), best=nearest(tried[0]))
    found.save(root)
    return found


def grid(tries: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All ways to take one value of each.

    >>> list(grid(["learning_rate=1e-5,2e-5", "train.batch=8"]))[1]
    ('train.learning_rate=2e-05', 'train.batch=8')
    """
    axes = []
    for text in tries:
        name, equals, values = text.partition("=")
        name = name.strip() if "." in name else f"train.{name.strip()}"
        if not equals or not all(part.strip() for part in values.split(",")):
            raise ConfigError(f"cannot read --try {text!r}; write it as learning_rate=2e-5,5e-5")
        read = [parse_assignment(f"{name}={part}")[1] for part in values.split(",")]
        axes.append([f"{name}={value}" for value in dict.fromkeys(read)])
    return itertools.product(*axes)


def name_of(changes: Sequence[str]) -> str:
    words = [re.sub(r"[^\w.=-]+", "-", change.partition(".")[2]) for change in changes]
    return "_".join(words) or "."


def numbers_of(score: Written | None) -> dict[str, float]:
    """The score and metrics of a split, the larger the better."""
    if score is None:
        return {}
    own = score.values.get("metrics", {})
    assert isinstance(own, Mapping)
    main = score.values.get("score", -score.loss)
    return {"score": float(str(main)), "loss": score.loss} | {n: float(v) for n, v in own.items()}


def summed(changes: tuple[str, ...], paths: Sequence[Path]) -> Tried:
    found: dict[str, list[dict[str, float]]] = {"valid": [], "test": []}
    for path in paths:
        result = read_result(path)
        assert result is not None, "it is finished"
        found["valid"].append(numbers_of(result.valid))
        found["test"].append(numbers_of(result.test))
    spreads = {
        split: {name: Spread.of([one[name] for one in rows]) for name in rows[0]}
        for split, rows in found.items()
    }
    return Tried(changes, tuple(map(str, paths)), spreads["valid"], spreads["test"])


def nearest(tried: Tried) -> str:
    """The run whose validation is nearest to the median."""
    middle = tried.valid["score"].median

    def far(path: str) -> float:
        result = read_result(Path(path))
        return abs(numbers_of(None if result is None else result.valid)["score"] - middle)

    return min(tried.runs, key=far)
