"""What can one ask of a search for sizes, and of its front?"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from parformer.errors import ConfigError
from parformer.fields import need_at_least
from parformer.search.limits import read_limits

if TYPE_CHECKING:
    from parformer.search.sizes.wanted import Wanted


SENTENCE = 20
"""Tokens of a sentence where nobody says how many."""


@dataclass(frozen=True, kw_only=True)
class SizesRequest:
    """Which sizes, weighed by what, on which device."""

    space: str = "pocket"
    """A space of sizes by name, or a TOML file."""
    like: str = ""
    """Preset or TOML file for all that the space leaves open."""
    objectives: str = "quality,latency,memory"
    """Quality and one or more of latency, memory, flops, parameters, state, with commas."""
    limits: tuple[str, ...] = ()
    """What a model may cost at most: latency=20ms, memory=200MB, flops=5G, parameters=50M,
    state=1MB, size=4MB, or latency=0.7x of the model that the space is like; may be repeated."""
    proxy: str = "decoder-parameters"
    """What stands for quality: decoder-parameters, parameters, grad-norm, snip, grasp, fisher,
    synflow, jacob-cov, relu-log-det, short-training."""
    corpus: str = ""
    """Text of a short training."""
    steps: int = 0
    """Updates of a whole training."""
    share: float = 0.15
    """The share of them that a candidate is trained for."""
    pair: str = ""
    """Which texts of it are pairs, such as de-en, where translators are trained."""
    tgt_len: int | None = None
    """New tokens per step; of a translator's whole text, 20 unless given."""
    mem_len: int | None = None
    """Remembered tokens before them."""
    source_len: int = SENTENCE
    """Tokens of the source that a translator reads."""
    beam: int = 5
    """Texts that a translator looks for side by side; 1 takes the likeliest token each time."""
    batch: int = 1
    """Texts at once."""
    threads: int = 1
    """Threads of the CPU."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """What weights are kept as."""
    latency_by: Literal["profile", "measuring"] = "profile"
    """Predict candidates from a profile of the device, or build and measure each."""
    measure_on: Literal["here", "worker"] = "here"
    """This machine, or the device that runs 'parformer measure worker' on the --storage."""
    again: bool = False
    """Measure the device profile anew."""
    sampler: Literal["lts", "nsga2", "random"] = "lts"
    """How candidates are proposed."""
    population: int = 100
    """Candidates of a generation, parents and children together."""
    iterations: int = 30
    """Generations."""
    seed: int = 0
    """Decides every draw."""
    run: Path | None = None
    """The folder for everything."""
    storage: str = ""
    """Where the study is kept, for several machines: sqlite:FILE or
    postgresql://USER:PASSWORD@HOST/DATABASE."""
    study: str = "pareto"
    """Its name there."""
    workers: int = 1
    """Processes here."""
    command: str = ""
    """What was typed, for the report."""

    def __post_init__(self) -> None:
        read_limits(self.limits)
        for name in ("workers", "source_len", "beam"):
            need_at_least(name, getattr(self, name), 1)
        if self.measure_on == "worker" and not self.storage:
            raise ConfigError(
                "--measure-on worker needs a --storage that the worker can reach, such as "
                "postgresql://USER:PASSWORD@HOST/DATABASE"
            )

    def wanted(self) -> Wanted:
        """The same with everything read."""
        from parformer.measure.readings import Step
        from parformer.search.sizes.evolution import Plan
        from parformer.search.sizes.objectives import Grading, read_objectives
        from parformer.search.sizes.space import read_space
        from parformer.search.sizes.wanted import Wanted

        space = read_space(self.space, self.like)
        translates = bool(space.encoder)
        whole = {"source": self.source_len, "beam": self.beam} if translates else {}
        return Wanted(
            space=space,
            plan=Plan.sized(self.population, self.iterations, seed=self.seed),
            step=Step(
                tgt_len=SENTENCE if translates and self.tgt_len is None else self.tgt_len,
                mem_len=self.mem_len,
                batch=self.batch,
                threads=self.threads,
                precision=self.precision,
                **whole,
            ),
            objectives=read_objectives([n.strip() for n in self.objectives.split(",") if n]),
            limits=read_limits(self.limits),
            grading=Grading(
                proxy=self.proxy,
                seed=self.seed,
                recipe=space.recipe,
                corpus=self.corpus,
                pair=self.pair,
                steps=self.steps,
                share=self.share,
            ),
            sampler=self.sampler,
            # a profile knows steps, not sentences
            latency_by="measuring" if translates else self.latency_by,
        )

    def folder(self, wanted: Wanted) -> Path:
        """Where the run goes."""
        if self.run is not None:
            return Path(self.run)
        words = ["pareto", wanted.space.name]
        if wanted.space.recipe and Path(wanted.space.recipe).stem != wanted.space.name:
            words.append(Path(wanted.space.recipe).stem)
        return Path("runs") / "-".join(words)

    def again_with(self, path: Path) -> str:
        """The command that goes on with this search."""
        run = shlex.quote(str(path))
        typed = self.command or f"parformer search sizes {shlex.quote(self.space)} --run {run}"
        return typed if self.run is not None or not self.command else f"{typed} --run {run}"


@dataclass(frozen=True, kw_only=True)
class PickRequest:
    """Which model of a front."""

    run: Path
    """Folder of a search for sizes."""
    limits: tuple[str, ...] = ()
    """What it may cost at most: latency=20ms, memory=200MB, flops=5G, parameters=50M,
    state=1MB, size=4MB, or latency=0.7x of the search's baseline; may be repeated."""
    name: str = ""
    """This one of the front, such as g7."""
    output: Path | None = None
    """The file to write."""

    def __post_init__(self) -> None:
        read_limits(self.limits)
