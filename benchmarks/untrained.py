"""Do scores of untrained models tell which pattern will be the best?

    python benchmarks/untrained.py
    python benchmarks/untrained.py --write

The first scores every pattern of benchmarks/truth.json with random weights, by the proxies of
LiteTransformerSearch, and adds a line for each to benchmarks/untrained.jsonl; the second ranks them
by their real losses and puts a table into docs/experiments/placement.md. Regret is how far the loss
of the pattern that a score likes best is above the best of the table.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import truth
from kept import keep, known, made_on
from learns import into_document
from regret import DEPTH, DOCUMENT, Table, read_tables

from parformer.search.ranking.proxies import PROXIES, draw_batch, scores
from parformer.search.ranking.rankings import spearman

RESULTS = Path(__file__).with_name("untrained.jsonl")
NAMES = ("decoder-parameters", "parameters", "grad-norm", "snip", "fisher", "jacob-cov")
"""Those that have a value for every pattern: synflow reads ones, of which a norm before a block
leaves nothing, grasp needs second derivatives, which a recurrence has not, and of more signs than
texts the log-determinant is that of a singular matrix."""


def score_all() -> None:
    torch.set_num_threads(1)
    (table, *_) = read_tables().values()
    for row in table.rows:
        if known(RESULTS, letters=row.letters):
            continue
        # the text matters to no score: tokens are drawn
        config = truth.recipe_of(row.letters, Path("python-source"), 0).model
        batch = draw_batch(config)
        found, seconds = dict[str, float](), dict[str, float]()
        for name in NAMES:
            began = time.process_time()
            found |= scores([name], config, batch=batch)
            seconds[name] = round(time.process_time() - began, 4)
        keep(RESULTS, {"letters": row.letters, "scores": found, "seconds": seconds}, 1)


def row_of(name: str, tables: dict[str, Table], every: list[dict[str, Any]]) -> list[str]:
    told = {one["letters"]: one["scores"][name] for one in every}
    cells = [PROXIES[name].words.replace("|", r"\|"), name]
    for table in tables.values():
        rows = [row for row in table.rows if row.letters in told]
        values = [told[row.letters] for row in rows]
        best = max(rows, key=lambda row: told[row.letters])
        cells += [f"{spearman([-row.loss for row in rows], values):+.2f}".replace("-", "−")]
        cells += [f"{table.regret(best):.1%}", f"`{best.letters}`"]
    return cells


def table_of(every: list[dict[str, Any]]) -> str:
    tables = read_tables()
    heads = [f"{text}: rank correlation | regret | liked best" for text in tables]
    lines = [f"| score | | {' | '.join(heads)} |", f"|---|---|{'---:|---:|---|' * len(tables)}"]
    lines += [f"| {' | '.join(row_of(name, tables, every))} |" for name in NAMES]
    base = tables["python-source"].named(["sf" * (DEPTH // 2)])[0]
    spent = sum(sum(one["seconds"].values()) for one in every) / base.seconds / truth.STEPS
    how = f"one thread, {len(every)} patterns; all scores of all take {spent:.1f} trainings"
    return "\n".join([*lines, "", made_on(every, how)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the document")
    if parser.parse_args().write:
        into_document(DOCUMENT, "scores", table_of(known(RESULTS)))
    else:
        score_all()


if __name__ == "__main__":
    main()
