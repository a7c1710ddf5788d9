"""Which small part of a network could have learned alone?

The lottery ticket (Frankle and Carbin 2019): train, let the smallest weights go, set those that
stay back to what they were at first, and train again; round by round, until little is left. A
ticket wins if it learns as well as the whole did. Setting back to fresh random weights is the
control that should lose; a lecture on efficient Transformers has it as the method.

Every training is a run of its own, and masks are files beside them: what was stopped goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import safetensors.torch
import torch

from parformer.compress.pruning import sparsity
from parformer.data.tokens import Prepared
from parformer.errors import ConfigError, Stopped
from parformer.events import Watch
from parformer.model import build, build_from, load
from parformer.recipe import Recipe
from parformer.records import Record
from parformer.store.files import replace_file
from parformer.train.checkpoint import in_order, read_checkpoint
from parformer.train.job import train_model
from parformer.train.loop import Outcome
from parformer.train.run import CHECKPOINTS, MODEL, read_run, read_run_tokenizer
from parformer.weights import matrices

Back = Literal["first", "step", "random"]
"""What weights are set back to: the first ones, those of an early step, or ones that are drawn
anew for every round."""
DECIDED = ("precision", "compile", "kernels")
"""Settings of a training that a trial on this machine decides, where they are left open."""
FRESH = 7919
"""Added to a recipe's seed in every round, for weights that nobody had before."""


@dataclass(frozen=True, kw_only=True)
class Ticket(Record):
    """One round: how much was left, and how well it learned."""

    round: int
    left: float
    """Share of all matrices' weights that may be other than zero."""
    loss: float
    """On validation text, in the end."""
    run: Path


@dataclass(frozen=True, kw_only=True)
class Lottery:
    """How tickets are drawn."""

    recipe: Recipe
    folder: Path
    share: float = 0.2
    """Of the weights that are left, taken away in every round, smallest first, of all matrices
    together."""
    back: Back = "first"
    step: int = 0
    """The early step whose weights tickets go back to, where that is asked for."""
    watch: Watch | None = None
    prepared: Prepared | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(f"share is between 0 and 1, got {self.share:g}")
        if self.back == "step" and not 0 < self.step < self.recipe.train.steps:
            raise ConfigError(
                f"step {self.step} is none of the {self.recipe.train.steps} updates before the end"
            )

    def draw(self, rounds: int) -> tuple[Ticket, ...]:
        """The whole network, and so many tickets of it, each a part of the one before."""
        tickets: list[Ticket] = []
        for number in range(rounds + 1):
            run = self.folder / f"round-{number}"
            outcome = self.train(run, number, tickets[-1].run if tickets else None)
            if not outcome.finished or outcome.result is None:
                raise Stopped("stopped; what was done is kept, and the same call goes on")
            left = 1 - sparsity(load(run / MODEL))
            loss = outcome.result.loss_on("valid")
            tickets.append(Ticket(round=number, left=left, loss=loss, run=run))
        return tuple(tickets)

    def train(self, run: Path, number: int, before: Path | None) -> Outcome:
        """One round; the first keeps what later ones go back to."""
        if before is None:
            if self.back == "step" and not self.begins(1).is_dir():
                early = self.recipe.replaced({"train.checkpoint_every": self.step})
                train_model(early, run, until=self.step, watch=self.watch, prepared=self.prepared)
                self.keep_early(run)
            start = self.recipe.replaced({"train.checkpoint_every": self.step})
            return train_model(start, run, watch=self.watch, prepared=self.prepared)
        changes: dict[str, object] = {"compress.masks": str(self.masks(before))}
        # what was left open is decided once: tickets must not differ by how they compute
        decided = read_run(before).train
        changes |= {f"train.{name}": getattr(decided, name) for name in DECIDED}
        if self.back == "random":
            self.keep_fresh(before, number)
        if self.back != "first":
            changes["train.start"] = str(self.begins(number))
        return train_model(
            self.recipe.replaced(changes), run, watch=self.watch, prepared=self.prepared
        )

    def begins(self, number: int) -> Path:
        """The model folder that a round's ticket goes back to; first weights follow from the seed.

        Fresh weights that stayed the same from round to round would be a ticket's first ones.
        """
        return self.folder / (f"back-{number}" if self.back == "random" else "back")

    def keep_early(self, run: Path) -> None:
        """The weights of an early step, as a model to start from."""
        newest = read_checkpoint(in_order(run / CHECKPOINTS)[-1])
        model = build_from(read_run(run).model, newest.weights)
        model.save(self.begins(1), read_run_tokenizer(run).to_json())

    def keep_fresh(self, run: Path, number: int) -> None:
        """Weights that were never trained, and are not those that any mask was drawn with."""
        if not self.begins(number).is_dir():
            recipe = read_run(run)
            model = build(recipe.model, seed=recipe.train.seed + number * FRESH)
            model.save(self.begins(number), read_run_tokenizer(run).to_json())

    def masks(self, before: Path) -> Path:
        """What stays of a trained network, in a file beside its run."""
        file = before.with_name(f"{before.name}.safetensors")
        if not file.is_file():
            places = {n: w.detach() for n, w in matrices(load(before / MODEL)).items()}
            sizes = torch.cat([weight.abs().flatten() for weight in places.values()])
            alive = sizes[sizes > 0]
            gone = round(self.share * alive.numel())
            cut = alive.kthvalue(gone).values if gone else alive.new_tensor(0.0)
            kept = {name: (weight.abs() > cut).byte() for name, weight in places.items()}
            replace_file(file, safetensors.torch.save(kept))
        return file
