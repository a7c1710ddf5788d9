"""The same in a notebook: `pf.fit`, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from parformer.events import Event, Phase, Watch, nobody
from parformer.fitting.ask import Ask
from parformer.fitting.job import fit_text
from parformer.fitting.result import REPORT
from parformer.generate import Sampling, generate_text
from parformer.model import Model, load
from parformer.train.run import MODEL, open_run


def spoken(event: Event) -> None:
    """Every phase a line."""
    if isinstance(event, Phase):
        clock = f", {event.left:,.0f} s left" if event.left else ""
        print(f"[{event.number}/{event.of}] {event.title}{clock}")


@dataclass(frozen=True)
class Fitted:
    """The model that a fit found, and what speaks for it."""

    path: Path
    found: dict[str, Any]
    """What fit.json holds."""

    @property
    def verdict(self) -> str:
        """In plain words."""
        said = self.found["verdict"]
        return " ".join([said["headline"], *said["sentences"]])

    @property
    def pattern(self) -> str:
        """Of the chosen model; where nothing was learned, of the one that lies there."""
        rows = {row["name"]: row for row in self.found["models"]}
        return str(rows[self.found["chosen"] or self.found["final"]["name"]]["pattern"])

    @property
    def report(self) -> Path:
        return self.path / REPORT

    @cached_property
    def model(self) -> Model:
        return load(self.path / MODEL)

    def generate(self, prompt: str, tokens: int = 200, *, temperature: float = 0.8) -> str:
        """What the model writes after a prompt."""
        tokenizer = open_run(self.path).tokenizer
        assert tokenizer is not None, "a run has its tokenizer"
        sampling = Sampling(temperature=temperature)
        (text,) = generate_text(self.model, tokenizer, [prompt], tokens, sampling=sampling)
        return prompt + text


def fit(
    corpus: str | Path,
    *,
    run: str | Path,
    limits: Iterable[str] = (),
    time: float = 600.0,
    steps: int = 0,
    quiet: bool = False,
    **more: Any,
) -> Fitted:
    """Text and a budget in, the best model that fits out; the same run goes on where it stopped.

    run: the folder for everything.
    limits: such as "latency=5ms", "memory=64MB", "latency=0.7x" of the interleaved baseline.
    time: seconds for everything; or `steps`, updates of each finalist.
    more: whatever else `parformer fit --help` lists, such as family, choices, margin, seed.
    """
    ask = Ask(corpus=str(corpus), limits=tuple(limits), time=time, steps=steps, **more)
    path = Path(run)
    found = fit_text(ask, path, command="parformer.fit", watch=Watch(nobody if quiet else spoken))
    return Fitted(path, found)
