"""What do all phases of a fit share: the notes, the text, the step that is measured, the time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.data.tokens import Prepared
from parformer.evaluate.counting import References, references_of
from parformer.events import Part, Watch
from parformer.fitting.ask import FAMILIES, Ask
from parformer.fitting.notes import Notes, Result
from parformer.fitting.timetable import counted, plan
from parformer.fitting.trainings import EVALUATED, LOOKS, TESTED, Trainings
from parformer.measure.readings import Meter, Step, measure_here
from parformer.recipe import Recipe
from parformer.search.sizes.objectives import Figures, countable
from parformer.train.distributed import Workers
from parformer.train.job import read_text
from parformer.train.loop import sample
from parformer.train.plateau import on_plateau

BASELINE = "baseline"
ROUNDS = 10
"""How often a model is timed while sizes are looked for."""


@dataclass(frozen=True)
class Desk:
    """One fit in its run folder."""

    notes: Notes
    path: Path
    watch: Watch
    meter: Meter = measure_here
    cache: Path | None = None
    """Where block costs are kept; the user's cache folder unless given."""

    @property
    def ask(self) -> Ask:
        return self.notes.ask

    def result(self, phase: str) -> Result:
        """What a phase that is done found."""
        return self.notes.once(phase, _unreachable)

    @cached_property
    def phases(self) -> tuple[Part, ...]:
        return counted() if self.ask.steps else plan(self.ask.time)

    @cached_property
    def planned(self) -> dict[str, float]:
        """Seconds by phase; 0 for one that is left out, and for all in a fit by updates."""
        return {phase.name: phase.planned for phase in self.phases}

    @property
    def left(self) -> float:
        """Seconds that remain of the time for everything."""
        return max(0.0, self.ask.time - self.notes.spent)

    @cached_property
    def prepared(self) -> Prepared:
        """The text as tokens; another one than the fit began with is refused."""
        recipe = self.ask.recipe()
        if self.notes.has("text"):
            identity = self.result("text")["identity"]
            recipe = recipe.replaced({"data.identity": identity})
        return read_text(recipe, Workers(), self.watch, None, self.path)

    @cached_property
    def references(self) -> dict[str, References]:
        """What plain counting reaches on the tokens that models are judged by."""
        known = self.result("text").get("references") if self.notes.has("text") else None
        if known is None:
            return count_references(self.prepared)
        return {split: References.from_dict(values) for split, values in known.items()}

    def stuck(self, loss: float) -> bool:
        """Whether a loss on validation text tells of nothing but frequencies of tokens."""
        return on_plateau(loss, self.references["valid"].unigram)

    def learned(self, loss: float) -> bool:
        """Whether it tells of more than pairs of tokens, which anybody can count."""
        return loss < self.references["valid"].bigram

    @cached_property
    def step(self) -> Step:
        """What is measured of every model."""
        ask = self.ask
        return Step(
            tgt_len=ask.tgt_len or None,
            mem_len=None if ask.mem_len < 0 else ask.mem_len,
            threads=ask.threads,
            rounds=ROUNDS,
        )

    def counts(self, config: ModelConfig) -> Figures:
        """What can be counted of a model's step."""
        shape = self.step.shape(config)
        return countable(cost(config, tgt_len=shape.tgt_len, mem_len=shape.mem_len))

    @property
    def preset(self) -> str:
        return FAMILIES[self.ask.family]

    @cached_property
    def recipe(self) -> Recipe:
        """How the baseline is trained; models differ from it in what they are."""
        return Recipe.from_dict(self.result("size")["recipe"])

    @property
    def limits(self) -> dict[str, float]:
        """In seconds, bytes and counts."""
        return dict(self.result("size")["limits"])

    @property
    def sized(self) -> bool:
        """Whether it is known which models enter the contest."""
        return self.notes.has("sizes")

    @cached_property
    def models(self) -> dict[str, ModelConfig]:
        """The baseline and the finalists."""
        rows = self.result("sizes")["models"]
        return {row["name"]: ModelConfig.from_dict(row["config"]) for row in rows}

    @property
    def eligible(self) -> list[str]:
        """Those that keep the limits."""
        return [row["name"] for row in self.result("sizes")["models"] if row["eligible"]]

    @cached_property
    def trainings(self) -> Trainings:
        return Trainings(self.path / "trainings", self.prepared, self.watch)

    def recipe_of(
        self, name: str, steps: int, rate: float, *, seed: int = 0, looks: int = LOOKS
    ) -> Recipe:
        """How one of the models is trained; all alike, but for the rate."""
        return replace(self.recipe, model=self.models[name]).replaced(
            self.trainings.schedule(steps, rate, self.ask.seed + seed, looks)
        )


def count_references(prepared: Prepared) -> dict[str, References]:
    """What counting reaches, on the very stretches of text that models are judged by."""
    most = {"valid": EVALUATED, "test": TESTED}
    samples = {
        split: sample(prepared.splits[split].tokens, limit)
        for split, limit in most.items()
        if split in prepared.splits
    }
    return references_of(prepared, {s: t for s, t in samples.items() if len(t) > 1})


def _unreachable() -> Result:
    raise AssertionError("this phase was to be done before")
