"""A small text, a device whose times are known, and a fit that takes seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.evaluate.counting import References
from parformer.fitting import candidates, running
from parformer.fitting.job import fit
from parformer.fitting.request import FitRequest
from parformer.fitting.result import FitResult
from parformer.measure.device import Receipt
from parformer.measure.readings import Reading, Readings, Step
from parformer.search.trials import job as trials
from parformer.train import plan

WORDS = [
    "attention",
    "is",
    "required",
    "here",
    "and",
    "not",
    "there",
    "so",
    "pay",
    "for",
    "it",
    "where",
    "it",
    "helps",
]


def write_text(path: Path, words: int = 6000) -> Path:
    rng = Random(5)
    lines = (" ".join(rng.choices(WORDS, k=8)) for _ in range(words // 8))
    path.write_text("\n".join(lines), "utf-8")
    return path


class FakeMeter:
    """Times follow from FLOPs and blocks, memory from weights."""

    def __init__(self, per_attention: float = 2e-4) -> None:
        self.per_attention = per_attention
        self.asked: list[list[str]] = []

    def seconds(self, config: ModelConfig) -> float:
        attention = config.pattern.letters.count("s")
        return 1e-4 + 1e-9 * cost(config).decoder_parameters + self.per_attention * attention

    def __call__(
        self, configs: Mapping[str, ModelConfig], step: Step, progress: Any = None
    ) -> Readings:
        self.asked.append(list(configs))
        first = self.seconds(next(iter(configs.values())))
        readings = []
        for name, config in configs.items():
            took, weights = self.seconds(config), 4 * cost(config).parameters
            readings.append(
                Reading(
                    name=name, median=took, low=took, high=took, ratio=took / first,
                    samples=(took,) * step.rounds, peak_bytes=weights + 1000,
                    resident_bytes=weights,
                )
            )  # fmt: skip
        receipt = Receipt.issue("a fake", threads=step.threads)
        return Readings(readings=tuple(readings), receipt=receipt)


def counting_reaches(loss: float) -> dict[str, References]:
    """References as if plain counting had this loss, whatever the text."""
    known = References(
        uniform=loss, unigram=loss, bigram=loss, ngram=loss, order=3, orders=(loss,) * 8, xz=None,
        tokens=100, counted=1000,
    )  # fmt: skip
    return {"valid": known, "test": known}


@contextmanager
def lenient(loss: float = 1e6) -> Iterator[None]:
    """Within it, models of a few updates count as having learned: counting is poor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "count_references", lambda *_: counting_reaches(loss))
        yield


def small_request(text: Path, run: Path, **changes: Any) -> FitRequest:
    """No clock in it: limits that are counted, and so many updates."""
    given: dict[str, Any] = {
        "corpus": str(text),
        "run": str(run),
        "steps": 6,
        "limits": ("flops=0.9x",),
        "choices": "sfi",
    }
    return FitRequest(**(given | changes))


@contextmanager
def few_sizes() -> Iterator[None]:
    """Within it, searches look at few sizes and patterns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "find_precision", lambda *_: "fp32")  # no clock decides
        patch.setattr(trials, "FIRST", 4)
        patch.setattr(trials, "EXPECTED", 1)
        patch.setattr(candidates, "POPULATION", 15)
        patch.setattr(candidates, "ITERATIONS", 3)
        yield


def small_fit(request: FitRequest, **options: Any) -> FitResult:
    with few_sizes():
        return fit(request, **({"meter": FakeMeter(), "quiet": True} | options))
