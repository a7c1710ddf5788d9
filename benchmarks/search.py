"""What does a differentiable search cost, beside training the interleaved model?

Three sessions in one process take turns, 25 updates each: the interleaved model, the supernet
with all choices mixed (`soft`), and the supernet with one choice drawn per layer (`sampled`).
Of a search's 25 updates four are the architecture's, the share that a whole search with a
warm-up of a fifth comes to. `python benchmarks/search.py` prints the table, `--write` puts it
into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from inference import table, write
from torch import Tensor

from parformer.measure import Receipt, measure_latency, peak_memory
from parformer.recipe import Recipe, read_recipe
from parformer.search.placement.prices import baseline_pattern
from parformer.search.placement.session import SearchSession
from parformer.train.allocator import keep_memory
from parformer.train.distributed import Workers
from parformer.train.session import Session

UPDATES, TURNS = 25, 4
"""Updates of one sample, and how many of them are the architecture's."""


class Updates:
    """A session that goes on by some updates whenever it is called."""

    def __init__(self, session: Session, count: int = UPDATES) -> None:
        self.session, self.count, self.step = session, count, 0

    def __call__(self) -> None:
        for _ in range(self.count):
            self.session.update(self.step)
            self.step += 1

    def resident(self) -> Iterator[Tensor]:
        """What stays in memory between updates: weights and the optimizer's memory."""
        yield from self.session.parameters
        for state in self.session.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def make_sessions(recipe: Recipe) -> dict[str, Session]:
    tokens = np.random.default_rng(0).integers(0, 256, 4_000_000).astype(np.uint8)
    layers = len(recipe.model.pattern)
    plain = replace(recipe.replaced({"model.pattern": baseline_pattern(layers)}), search=None)
    turns = {"search.warmup": 0.0, "search.cycle": UPDATES, "search.share": TURNS / UPDATES}
    sessions: dict[str, Session] = {
        "interleaved, trained": Session(plain, tokens, workers=Workers())
    }
    for mode in ("soft", "sampled"):
        own = recipe.replaced({**turns, "search.mode": mode})
        sessions[f"search, {mode}"] = SearchSession(own, tokens, workers=Workers())
    return sessions


def search_table(recipe: Recipe, rounds: int) -> list[str]:
    sessions = make_sessions(recipe)
    result = measure_latency(
        {name: Updates(session) for name, session in sessions.items()},
        rounds=rounds,
        warmup=1,
        what="25 updates",
    )
    first = next(iter(sessions))
    rows = []
    for name, session in sessions.items():
        step = Updates(session, count=1)
        step.step = 10_000_000  # a turn of the weights, which takes more memory
        peak = peak_memory(step, resident=list(step.resident()))
        found = result.difference(name, first)
        seconds = result[name].median / UPDATES
        against = "1" if name == first else f"{found.ratio:.2f} ({found.low:.2f}–{found.high:.2f})"
        megabytes = f"{peak.peak_bytes / 1e6:.0f} MB"
        rows.append([name, f"{1000 * seconds:.0f} ms", against, megabytes])
    heads = ["", "one update", "of the interleaved model's", "peak memory of a weights' update"]
    return table(heads, rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="a toy, to see whether all runs")
    parser.add_argument("--write", action="store_true", help="write into docs/benchmarks.md")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    keep_memory()
    changes = {
        "train.precision": "fp32",
        "train.kernels": "native",
        "train.compile": "off",
        "train.threads": given.threads,
        "train.steps": 100_000_000,
    }
    if given.tiny:
        changes |= {"model.d_model": 16, "model.d_inner": 16, "model.pattern": "(sf)x2"}
        changes |= {"train.batch": 2, "train.tgt_len": 8, "train.mem_len": 8}
    lines = search_table(read_recipe("pocket-search", changes), given.rounds)
    options = [o for o in arguments or sys.argv[1:] if o != "--write"]
    command = shlex.join(["python", "benchmarks/search.py", *options])
    text = "\n".join([*lines, "", f"`{command}` — {Receipt.issue('search').line()}"])
    print(text)
    if given.write:
        write("search", text)


if __name__ == "__main__":
    main()
