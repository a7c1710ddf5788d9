"""Small searches that take milliseconds, texts with a planted truth, and what to compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from parformer.blocks.base import (
    BLOCKS,
    Block,
    Context,
    Cost,
    Shape,
    block,
    find_block,
)
from parformer.blocks.state import BlockState
from parformer.config import ModelConfig
from parformer.data.batches import Tokens
from parformer.parts import StackConfig
from parformer.pattern import ALPHABET, BlockSpec
from parformer.recipe import Recipe, SearchConfig
from parformer.search.placement import decide, job, summarise
from parformer.search.placement.decide import Pace
from parformer.search.placement.prices import Prices, exact
from parformer.search.placement.session import SearchSession, space_of
from parformer.search.placement.target import Target, read_target
from parformer.store import folder
from parformer.train.checkpoint import Checkpoint
from parformer.train.distributed import Workers
from parformer.train.run import CHECKPOINTS, METRICS, RESULT
from tests.train import trials
from tests.train.trials import make_prepared

FAMILIES = ("transformer-xl", "gpt2", "llama", "bert")
MODES = ("soft", "sampled")
TOKENS = make_prepared().splits["train"].tokens


def make_recipe(family: str = "transformer-xl", /, **changes: Any) -> Recipe:
    """A recipe with nothing left open: three layers of sfi, eight updates.

    Two of them warm up; then come cycles of three, of which the last is the architecture's.
    """
    search: dict[str, Any] = {"layers": 3, "choices": "sfi", "warmup": 0.25, "cycle": 3}
    search |= {"learning_rate": 0.05, "patience": 1.0, "guard": 0.0}
    plain = trials.make_recipe(family).replaced({f"search.{n}": v for n, v in search.items()})
    plain = plain.replaced({"train.evaluate_every": 8})
    return plain.replaced({name.replace("__", "."): value for name, value in changes.items()})


def open_recipe(family: str = "transformer-xl", /, **changes: Any) -> Recipe:
    """The same as a user would write it: the text's identity is found out."""
    return make_recipe(family, data__identity="", **changes)


class Clock:
    """Stands in for everything that is measured; counts how often it was asked."""

    pace = Pace(0.02, 0.03, 0.01)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        for module in (decide, job):
            monkeypatch.setattr(module, "find_pace", self.find_pace)
        monkeypatch.setattr(decide, "measured", self.measured)
        monkeypatch.setattr(summarise, "measure_models", self.measure_models)

    def find_pace(self, *_: Any) -> Pace:
        self.asked.append("pace")
        return self.pace

    def measured(self, config: ModelConfig, space: Any, **_: Any) -> Prices:
        """Attention takes three microseconds, all else one, the rest of the model two."""
        self.asked.append("blocks")
        choices = [[{"s": 3000, "i": 0}.get(c.letter, 1000) for c in row] for row in space.layers]
        baseline = 2000 + sum([3000, 1000][n % 2] for n in range(len(choices)))
        return Prices(
            metric="latency",
            choices=tuple(map(tuple, choices)),
            fixed=2000,
            baseline=baseline,
            measured=round(baseline / 1.04),
        )

    def measure_models(self, configs: Any, **_: Any) -> Any:
        self.asked.append("models")
        times = {n: 1e-6 * (2 + 3 * c.pattern.count("s")) for n, c in configs.items()}
        timings = {
            n: SimpleNamespace(median=t, low=0.9 * t, high=1.1 * t) for n, t in times.items()
        }
        return SimpleNamespace(latency=timings)


def search_of(recipe: Recipe) -> SearchConfig:
    assert recipe.search is not None
    return recipe.search


def aims(recipe: Recipe) -> tuple[Prices | None, Target | None]:
    """What the recipe's penalty or limit comes to, without a clock."""
    target = read_target(search_of(recipe).penalty, search_of(recipe).limit)
    if target is None:
        return None, None
    return exact(target.metric, recipe.model, space_of(recipe)), target


def make_session(
    recipe: Recipe,
    start: Checkpoint | None = None,
    *,
    tokens: Tokens = TOKENS,
    workers: Workers | None = None,
) -> SearchSession:
    prices, target = aims(recipe)
    return SearchSession(
        recipe, tokens, workers=workers or Workers(), start=start, prices=prices, target=target
    )


def updated(session: SearchSession, first: int, last: int) -> list[tuple[float, float]]:
    """Loss and norm of some updates."""
    return [(float(loss), float(norm)) for loss, norm in map(session.update, range(first, last))]


def bits(snapshot: Checkpoint) -> dict[str, Any]:
    """Every number of a checkpoint."""
    parts = {"w": snapshot.weights, "o": snapshot.optimizer, "m": snapshot.memory}
    numbers: dict[str, Any] = {
        f"{part} {name}": tensor.flatten().tolist()
        for part, tensors in parts.items()
        for name, tensor in tensors.items()
    }
    return numbers | {f"p {name}": value for name, value in snapshot.progress.items()}


def evidence(run: Path) -> dict[str, Any]:
    """All that one seed's search leaves, save for times: equal means bit-equal."""
    found: dict[str, Any] = {"metrics": trials.metrics(run)}
    for checkpoint in sorted((run / CHECKPOINTS).iterdir()):
        for name, listed in folder.read_json(checkpoint, folder.MANIFEST)["sha256"].items():
            raw = (checkpoint / name).read_bytes()
            assert hashlib.sha256(raw).hexdigest() == listed
            if name.endswith(".safetensors"):
                found[f"{checkpoint.name}/{name}"] = listed
            else:
                values = json.loads(raw)
                # lines of metrics hold a speed, so their length is the clock's
                found[f"{checkpoint.name}/{name}"] = values | {"metrics_bytes": 0}
    found["result"] = json.loads((run / RESULT).read_text("utf-8"))
    found["files"] = sorted(entry.name for entry in run.iterdir())
    return found


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / METRICS).read_text("utf-8").splitlines()]


def copying_text(length: int, *, back: int = 8, share: float = 0.9, seed: int = 0) -> Tokens:
    """Most tokens are what stood `back` places before: only attention can know."""
    rng = np.random.default_rng(seed)
    tokens, copied = rng.integers(0, 16, length), rng.random(length) < share
    for place in range(back, length):
        if copied[place]:
            tokens[place] = tokens[place - back]
    return tokens.astype(np.uint8)


def chained_text(length: int, *, share: float = 0.9, seed: int = 0) -> Tokens:
    """Most tokens follow from the one before: attention has nothing to find."""
    rng = np.random.default_rng(seed)
    after = rng.permutation(16)
    tokens, follows = rng.integers(0, 16, length), rng.random(length) < share
    for place in range(1, length):
        if follows[place]:
            tokens[place] = after[tokens[place - 1]]
    return tokens.astype(np.uint8)


@contextmanager
def recurrence() -> Iterator[str]:
    """The letter of a block, for the while, that has to run to know what it remembers."""
    letter = next((letter for letter in ALPHABET if letter not in BLOCKS), "y")
    replaced = BLOCKS.pop(letter, None)

    @block(letter)
    class Running(Block):
        """A running mean of the stream."""

        training_state = Carried
        state_needs_run = True

        def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
            super().__init__(config)
            self.out = nn.Linear(config.d_model, config.d_model)

        def forward(
            self, x_btd: Tensor, state: BlockState | None, context: Context
        ) -> tuple[Tensor, BlockState | None]:
            y_btd = self.out(self.read(x_btd).cumsum(1) / 8)
            if isinstance(state, Carried):
                y_btd = y_btd + state.mean_bd[:, None]
            after = Carried(y_btd[:, -1].detach()) if context.memory else None
            return self.write(x_btd, y_btd), after

        @classmethod
        def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
            return Cost(parameters=config.d_model**2, flops=1, flops_cached=1)

    find_block.cache_clear()
    try:
        yield letter
    finally:
        del BLOCKS[letter]
        BLOCKS.update({letter: replaced} if replaced else {})
        find_block.cache_clear()


@dataclass(frozen=True, eq=False)
class Carried(BlockState):
    mean_bd: Tensor

    @property
    def length(self) -> int:
        return 1
