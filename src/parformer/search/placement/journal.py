"""What does a search write down?

Every line of metrics holds how likely each choice is by now, so that the way to the pattern
can be looked at afterwards; the result is the architecture, not the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import cast

from parformer.errors import FolderError
from parformer.records import Json
from parformer.search.placement.result import History, Seed
from parformer.search.placement.session import SearchSession
from parformer.store.files import read_json
from parformer.train.loop import Journal
from parformer.train.metrics import read_metrics
from parformer.train.plateau import SHORTEST, on_plateau
from parformer.train.run import METRICS, RESULT, write_result
from parformer.train.schedule import rate

DIGITS = 5
"""Digits that a probability is written down with."""
HISTORY = 200
"""Lines of metrics at most that search.json has of a seed: more than a figure can show."""


class SearchJournal(Journal):
    """Metrics, checkpoints and in the end the architecture of one seed."""

    def log(self, step: int, loss: float, norm: float, speed: float, *, last: bool) -> None:
        session = cast(SearchSession, self.session)
        if session.turn.kind == "weights":
            self.tally.add(loss)
        self.watch.step(step, loss, speed)
        if (step % self.config.log_every and not last) or self.metrics is None:
            return
        row: Json = {"loss": self.tally.take() if self.tally.count else loss}
        self.look_for_plateau(step, row["loss"])
        row |= {
            "gradient": norm,
            "rate": rate(step - 1, self.config),
            "temperature": round(session.temperature(step - 1), DIGITS),
            "tokens_per_second": round(speed, 1),
            "probabilities": rounded(session.table()),
        }
        cost = session.relative_cost()
        if cost is not None:
            row |= {
                "cost": round(float(cost.detach()), DIGITS),
                "lambda": round(session.penalty, DIGITS),
            }
        self.metrics.add(step, row)

    def finish(self, steps: int) -> None:
        session = cast(SearchSession, self.session)
        cost = session.relative_cost()
        result: Json = {
            "steps": steps,
            "seed": self.config.seed,
            "pattern": str(session.space.pattern(session.picks)),
            "picks": session.picks,
            "probabilities": session.table(),
            "cost": None if cost is None else float(cost.detach()),
            "removal": session.removal,
            "changed": session.changed,
            "early": steps < self.config.steps,
        }
        if self.metrics is not None:
            self.metrics.settle()
            write_result(self.path, result)


def rounded(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[round(value, DIGITS) for value in row] for row in rows]


@dataclass(frozen=True, kw_only=True)
class SeedRun(Seed):
    """A finished search of one seed; its history has every line of its metrics."""

    cost: float | None
    """What the architecture is expected to cost, of the interleaved model's."""

    @classmethod
    def read(cls, path: Path) -> SeedRun:
        """What a seed's folder holds."""
        file = path / METRICS
        written = read_metrics(file) if file.is_file() else []
        rows = [row for row in written if "probabilities" in row]
        if not rows:
            raise FolderError(f"{str(file)!r} tells nothing of the search; restore it")
        names = ("step", "loss", "temperature", "probabilities", "cost", "lambda")
        columns = {name: [row[name] for row in rows] for name in names if name in rows[0]}
        result = read_json(path / RESULT)
        return cls.from_dict({**result, "history": columns}, str(path))

    @property
    def loss(self) -> float:
        """The training loss of the supernet in the end."""
        return fmean(self.history.loss[-max(1, len(self.history.loss) // 20) :])

    def stuck(self, ignorance: float | None) -> bool:
        """Whether the supernet never learned more than the frequencies of tokens, if they tell."""
        known = ignorance is not None and self.steps >= SHORTEST
        return known and on_plateau(self.loss, cast(float, ignorance))

    def fall_after_change(self) -> float:
        """The share by which the loss still fell after the pattern had last changed."""
        pairs = list(zip(self.history.step, self.history.loss, strict=True))
        width = max(1, len(pairs) // 20)
        before = [loss for step, loss in pairs if step <= self.changed][-width:]
        after = [loss for step, loss in pairs if step > self.changed][-width:]
        if not before or not after:
            return 0.0
        start, end = fmean(before), fmean(after)
        return max(0.0, (start - end) / start)

    def summary(self) -> Seed:
        """As in search.json."""
        # from the end, so that the last line is among them
        some = slice(None, None, -math.ceil(len(self.history.step) / HISTORY))
        thinned: Json = {
            name: None if column is None else column[some][::-1]
            for name, column in vars(self.history).items()
        }
        own = {name: value for name, value in vars(self).items() if name != "cost"}
        return Seed(**own | {"history": History(**thinned)})
