"""Which way to search for a pattern loses least, for the time it takes?

    python benchmarks/regret.py                       the ways that the table alone can tell of
    python benchmarks/regret.py --supernets FOLDER --texts FILE FILE [--seed 1] [--only WORD]
                                                      PAR's supernets, for real
    python benchmarks/regret.py --write               writes docs/experiments/placement.md

Every way to search picks a pattern of benchmarks/truth.json, where its real loss stands. Regret is
how far that is above the best of the table; time is that of the trainings that the way asks for, in
the table's own seconds of one core. What depends on luck is repeated. Supernets search for real,
and what they find is trained as the table's patterns were.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import truth
from kept import keep, known, made_on
from learns import into_document
from truth import TABLE, usual

import parformer as pf
from parformer.measure.device import describe_device

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "placement.md"
SUPERNETS = Path(__file__).with_name("supernets.jsonl")
SUPERNET = {
    "supernet, soft, 200 updates": {"mode": "soft", "steps": 200},
    "supernet, soft, 500 updates": {"mode": "soft", "steps": 500},
    "supernet, soft, longer warm-up": {"mode": "soft", "steps": 300, "warmup": 0.7},
    "supernet, sampled, 500 updates": {"mode": "sampled", "steps": 500},
    "supernet, sampled, 1500 updates": {"mode": "sampled", "steps": 1500},
}
"""PAR's search over as many layers as the base depth has."""
EIGHTHS = (0, 1, 3, 5)
"""The looks of the table that are nearest to those of a search by trials."""
DRAWS = 400
"""How often a way that depends on luck is repeated."""
DEPTH = 8
"""Blocks of the interleaved model that limits are multiples of."""
LIMITS = (math.inf, 1.0, 0.7)
"""FLOPs of a step that a pattern may take, in multiples of the interleaved model's."""


@dataclass(frozen=True, slots=True)
class Row:
    """A pattern on one text."""

    letters: str
    flops: float
    parameters: int
    losses: tuple[float, ...]
    """After the looks of the table, the last one being the truth."""
    seconds: float
    """Of an update."""

    @property
    def loss(self) -> float:
        return self.losses[-1]


@dataclass(frozen=True, slots=True)
class Table:
    """All patterns on one text, within a limit."""

    rows: tuple[Row, ...]
    looks: tuple[int, ...]

    @property
    def best(self) -> float:
        return min(row.loss for row in self.rows)

    def regret(self, row: Row) -> float:
        return row.loss / self.best - 1

    def within(self, limit: float) -> Table:
        base = next(row.flops for row in self.rows if row.letters == "sf" * (DEPTH // 2))
        return Table(tuple(row for row in self.rows if row.flops <= limit * base), self.looks)

    def named(self, letters: Sequence[str]) -> list[Row]:
        known = {row.letters: row for row in self.rows}
        return [known[one] for one in letters if one in known]


Picked = tuple[Row, float]
"""What a way to search settles on, and the seconds that it took."""
Way = Callable[[Table, Random], Picked]


def read_tables(file: Path = TABLE) -> dict[str, Table]:
    found = json.loads(file.read_text("utf-8"))
    looks = tuple(found["about"]["looks"])
    texts = list(found["rows"][0]["texts"])
    return {
        text: Table(
            tuple(
                Row(
                    row["letters"],
                    row["flops"],
                    row["parameters"],
                    tuple(row["texts"][text][0]["losses"]),
                    row["texts"][text][0]["seconds"],
                )
                for row in found["rows"]
            ),
            looks,
        )
        for text in texts
    }


def halved(rows: Sequence[Row], looks: Sequence[int], first: int = 0) -> Picked:
    """Train all until the first look; then the better half goes on, look by look, to the end."""
    going, spent, done = list(rows), 0.0, 0
    for number in range(first, len(looks)):
        spent += sum(row.seconds * (looks[number] - done) for row in going)
        done = looks[number]
        going.sort(key=lambda row: row.losses[number])
        if number < len(looks) - 1:
            going = going[: max(1, math.ceil(len(going) / 2))]
    return going[0], spent


def at_random(count: int) -> Way:
    def pick(table: Table, rng: Random) -> Picked:
        rows = rng.sample(table.rows, min(count, len(table.rows)))
        return (rows[0], 0.0) if count == 1 else halved(rows, table.looks)

    return pick


def suspects(table: Table, rng: Random) -> Picked:
    """The usual patterns of the base depth, halved."""
    return halved(table.named(usual(DEPTH)[:5]) or table.rows[:1], table.looks)


def suspects_of_all_depths(table: Table, rng: Random) -> Picked:
    wanted = [one for depth in (6, 8, 10, 12) for one in usual(depth)[:5]]
    return halved(table.named(wanted) or table.rows[:1], table.looks)


def one_of(number: int) -> Way:
    def pick(table: Table, rng: Random) -> Picked:
        return (table.named([usual(DEPTH)[number]]) or [table.rows[0]])[0], 0.0

    return pick


def features(letters: str) -> list[float]:
    """What can be seen of a pattern without training it."""
    count = len(letters)
    found = [float(count)]
    for letter in truth.LETTERS:
        places = [n / (count - 1) for n, one in enumerate(letters) if one == letter]
        found += [len(places), len(places) / count, float(bool(places))]
        found += [statistics.fmean(places) if places else 0.5, places[0] if places else 1.0]
    mixers = [one in "sr" for one in letters]
    found += [sum(mixers) / count, sum(a != b for a, b in pairwise(letters))]
    return found


def predicted(table: Table, known: Sequence[Row], look: int) -> list[Row]:
    """All rows, best first, by ridge regression on some rows' losses at a look."""
    x = np.array([features(row.letters) for row in table.rows])
    x = (x - x.mean(0)) / (x.std(0) + 1e-9)
    place = {row.letters: n for n, row in enumerate(table.rows)}
    chosen = [place[row.letters] for row in known]
    y = np.array([row.losses[look] for row in known])
    a, mean = x[chosen], y.mean()
    weights = np.linalg.solve(a.T @ a + 3.0 * np.eye(x.shape[1]), a.T @ (y - mean))
    order = np.argsort(x @ weights)
    return [table.rows[n] for n in order]


def by_predictor(trained: int, confirmed: int, look: int = 1) -> Way:
    """Train some for a while, predict the rest, train the most promising."""

    def pick(table: Table, rng: Random) -> Picked:
        known = rng.sample(table.rows, min(trained, len(table.rows)))
        spent = sum(row.seconds * table.looks[look] for row in known)
        best = predicted(table, known, look)[:confirmed]
        best += sorted(known, key=lambda row: row.losses[look])[: max(1, confirmed // 2)]
        row, more = halved(list(dict.fromkeys(best)), table.looks, look)
        return row, spent + more

    return pick


def trials(first: int, expected: int) -> Way:
    """What `search placement --by trials` does, as far as the table has the patterns.

    The usual ones and random mixes, then those that a regression on the first look finds
    promising; looks after an eighth (here a tenth), a quarter (a fifth) and a half of the updates.
    """

    def pick(table: Table, rng: Random) -> Picked:
        shorter = Table(
            tuple(
                Row(row.letters, row.flops, row.parameters, tuple(row.losses[n] for n in EIGHTHS),
                    row.seconds)
                for row in table.rows
            ),
            tuple(table.looks[n] for n in EIGHTHS),
        )  # fmt: skip
        known = shorter.named(usual(DEPTH)[:5])
        rest = [row for row in shorter.rows if row not in known]
        known += rng.sample(rest, max(0, min(first - len(known), len(rest))))
        likely = [row for row in predicted(shorter, known, 0) if row not in known]
        return halved([*known, *likely[:expected]], shorter.looks)

    return pick


def by_count(name: str) -> Way:
    """The most parameters, or FLOPs: what ranks sizes of one mix."""

    def pick(table: Table, rng: Random) -> Picked:
        return max(table.rows, key=lambda row: getattr(row, name)), 0.0

    return pick


def evolved(population: int, generations: int, look: int = 1) -> Way:
    """Short trainings, and neighbours of the best of them, as far as the table has them."""

    def pick(table: Table, rng: Random) -> Picked:
        known = {
            row.letters: row for row in rng.sample(table.rows, min(population, len(table.rows)))
        }
        for _ in range(generations):
            parents = sorted(known.values(), key=lambda row: row.losses[look])[: population // 3]
            rest = [row for row in table.rows if row.letters not in known]
            for parent in parents:
                near = sorted(rest, key=lambda row: distance(row.letters, parent.letters))[:2]
                known |= {row.letters: row for row in near}
        spent = sum(row.seconds * table.looks[look] for row in known.values())
        best = sorted(known.values(), key=lambda row: row.losses[look])[:4]
        row, more = halved(best, table.looks, look)
        return row, spent + more

    return pick


def distance(one: str, other: str) -> int:
    """Letters to change, add or take away."""
    before = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        row = [i]
        for j, b in enumerate(other, start=1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (a != b)))
        before = row
    return before[-1]


WAYS: dict[str, Way] = {
    "one at random": at_random(1),
    "interleaved": one_of(0),
    "PAR's rule": one_of(1),
    "recurrence": one_of(2),
    "memory, then recurrence": one_of(3),
    "most parameters": by_count("parameters"),
    "most FLOPs": by_count("flops"),
    "five usual suspects, halved": suspects,
    "the same at four depths": suspects_of_all_depths,
    "8 at random, halved": at_random(8),
    "16 at random, halved": at_random(16),
    "32 at random, halved": at_random(32),
    "predictor on 12, 3 confirmed": by_predictor(12, 3),
    "predictor on 24, 4 confirmed": by_predictor(24, 4),
    "predictor on 48, 4 confirmed": by_predictor(48, 4),
    "trials: suspects, mixes up to 8, 4 predicted": trials(8, 4),
    "trials: suspects, mixes up to 16, 8 predicted": trials(16, 8),
    "evolution, 9 and 2 generations": evolved(9, 2),
    "evolution, 18 and 2 generations": evolved(18, 2),
}


@dataclass(frozen=True, slots=True)
class Found:
    """How a way to search did."""

    regret: float
    worst: float
    """Nine draws of ten are below."""
    seconds: float
    full: float
    """The same in trainings of the interleaved model."""


def judge(way: Way, table: Table) -> Found:
    rng = Random(0)
    base = min(
        table.rows, key=lambda row: abs(len(row.letters) - DEPTH) + (set(row.letters) != {"s", "f"})
    )
    unit = base.seconds * table.looks[-1]
    picks = [way(table, rng) for _ in range(DRAWS)]
    regrets = sorted(table.regret(row) for row, _ in picks)
    seconds = statistics.fmean(spent for _, spent in picks)
    return Found(
        statistics.fmean(regrets), regrets[int(0.9 * len(regrets))], seconds, seconds / unit
    )


def search_supernets(folder: Path, texts: Sequence[Path], seed: int, only: str) -> None:
    """Search for real, then train what was found, and what is interleaved, as the table was."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    choices = "".join(truth.BLOCK.get(letter, letter) for letter in truth.LETTERS) + "i"
    for text in texts:
        truth.read(text)
        usual = trained_here(folder, text, "sf" * (DEPTH // 2))
        for name, asked in SUPERNET.items():
            before = known(SUPERNETS, text=text.stem, way=name)
            if only not in name or any(one.get("seed", 0) == seed for one in before):
                continue
            settings = {**truth.SETTINGS, "search.warmup": asked.get("warmup", 0.4)}
            interleaved = truth.recipe_of("sf" * (DEPTH // 2), text, 0)
            settings["train.learning_rate"] = interleaved.train.learning_rate
            settings["train.seed"] = seed
            own = {n: v for n, v in settings.items() if n not in ("train.steps", "train.schedule")}
            words = (text.stem, asked["mode"], asked["steps"], asked.get("warmup", ""), seed)
            run = folder / "-".join(map(str, words))
            began = time.process_time()
            result = pf.search_placement(
                recipe="pocket-search", corpus=str(text), layers=DEPTH, choices=choices, run=run,
                mode=asked["mode"], steps=asked["steps"],
                changes=tuple(f"{field}={value}" for field, value in own.items()),
            )  # fmt: skip
            seconds = time.process_time() - began
            assert result is not None
            letters = result.pattern.letters
            found = trained_here(folder, text, letters)
            keep(
                SUPERNETS,
                {"text": text.stem, "way": name, "seed": seed, "letters": letters,
                 "loss": found["losses"][-1], "interleaved": usual["losses"][-1],
                 "seconds": round(seconds, 1),
                 "trainings": round(seconds / (truth.STEPS * usual["seconds"]), 2)},
                1,
            )  # fmt: skip


def trained_here(folder: Path, text: Path, letters: str) -> dict[str, Any]:
    truth.train_one((folder, text, letters, 0, False))
    return truth.trained(folder, text, letters)[0]


def told_supernets(tables: dict[str, Table]) -> list[str]:
    """What PAR's supernets found, without a limit."""
    every = known(SUPERNETS)
    if not every:
        return []
    lines = ["", "**PAR's supernets over eight layers of `s f r n i`, no limit**", ""]
    lines += ["| way | text | found, by seed | regret | trainings |", "|---|---|---|---:|---:|"]
    for way, text in dict.fromkeys((one["way"], one["text"]) for one in every):
        some = known(SUPERNETS, way=way, text=text)
        regrets = ", ".join(f"{one['loss'] / tables[text].best - 1:.2%}" for one in some)
        found = ", ".join(f"`{one['letters']}`" for one in some)
        spent = statistics.fmean(one["trainings"] for one in some)
        lines.append(f"| {way} | {text} | {found} | {regrets} | {spent:.1f} |")
    apart = ", ".join(
        f"{text} {one['interleaved'] / table.named(['sf' * (DEPTH // 2)])[0].losses[-1] - 1:+.2%}"
        for text, table in tables.items()
        for one in known(SUPERNETS, text=text)[:1]
    )
    lines += ["", f"The interleaved model, trained again beside them, ended {apart} beside the "
              "table's.", "", made_on(every, "one thread")]  # fmt: skip
    return lines


def report(tables: dict[str, Table]) -> list[str]:
    lines = []
    for limit in LIMITS:
        said = "no limit" if math.isinf(limit) else f"FLOPs at most {limit:g}× the interleaved's"
        lines += ["", f"**{said}**", ""]
        heads = [f"{text}: regret, nine in ten below" for text in tables]
        lines += [f"| way | {' | '.join(heads)} | trainings |", "|---" * (len(heads) + 2) + "|"]
        for name, way in WAYS.items():
            found = [judge(way, table.within(limit)) for table in tables.values()]
            cells = [f"{one.regret:.2%}, {one.worst:.2%}" for one in found]
            full = statistics.fmean(one.full for one in found)
            lines.append(f"| {name} | {' | '.join(cells)} | {full:.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--supernets", type=Path, help="search by supernets in this folder")
    parser.add_argument("--texts", type=Path, nargs="+", default=[])
    parser.add_argument("--seed", type=int, default=0, help="of the supernets")
    parser.add_argument("--only", default="", help="supernets whose names hold this word")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if asked.supernets:
        search_supernets(asked.supernets, asked.texts, asked.seed, asked.only)
        return
    tables = read_tables(asked.table)
    lines = [*report(tables), *told_supernets(tables)]
    print("\n".join(lines))
    if asked.write:
        device = describe_device(1)
        told = [*lines, "", f"{device.cpu}, one thread, torch {device.torch}."]
        into_document(DOCUMENT, "regret", "\n".join(told))


if __name__ == "__main__":
    main()
