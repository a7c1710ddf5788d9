"""How fast are training, writing and measuring beside other work, by how threads wait?

Every setting has a process of its own, for OpenMP reads it once; Parformer's own way (`as others
need`) looks all the time. They take turns in an order drawn
anew in each round: some updates of a training, some tokens written one by one, one measured
latency. The rounds are gone through on a quiet machine, beside two loops of plain Python, and
beside two other trainings. `python benchmarks/busy.py` prints the tables; `--rounds 3 --updates 5`
is a quick look. The machine should have nothing else to do.

What is wanted: beside two neighbours on two cores a third of the quiet speed at least, and
at most 3% lost when it is quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

SETTINGS: dict[str, dict[str, str]] = {
    "torch's own": {"GOMP_SPINCOUNT": "300000"},
    "as others need": {},
    "spin 100000": {"GOMP_SPINCOUNT": "100000"},
    "spin 30000": {"GOMP_SPINCOUNT": "30000"},
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "spin 3000": {"GOMP_SPINCOUNT": "3000"},
    "spin 1000": {"GOMP_SPINCOUNT": "1000"},
    "spin 100": {"GOMP_SPINCOUNT": "100"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
CONDITIONS = ("quiet", "two Python loops", "two trainings")
JOBS = ("training", "writing", "latency")
OURS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")
LOOP = "while True: sum(range(1000))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--updates", type=int, default=20, help="of a training in each turn")
    parser.add_argument("--tokens", type=int, default=100, help="written in each turn")
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--conditions", nargs="*", choices=CONDITIONS, default=list(CONDITIONS))
    parser.add_argument("--json", action="store_true", help="print all samples")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.updates, arguments.tokens)
        return
    found = measure(arguments)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for job in JOBS:
        show(job, found, arguments.settings, arguments.conditions)


Samples = dict[str, dict[str, dict[str, list[float]]]]
"""Seconds by condition, setting and job."""


def measure(arguments: argparse.Namespace) -> Samples:
    found: Samples = {}
    rng = random.Random(0)
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(process(name, arguments)) for name in arguments.settings
        }
        for condition in arguments.conditions:
            samples = found[condition] = {name: {job: [] for job in JOBS} for name in workers}
            with neighbours(condition, arguments):
                for number in range(arguments.rounds):
                    print(f"{condition}: round {number + 1} of {arguments.rounds}", file=sys.stderr)
                    order = list(workers)
                    rng.shuffle(order)
                    for name in order:
                        for job in JOBS:
                            samples[name][job].append(ask(workers[name], job))
            for name, taken in samples.items():  # whoever stops it has this much
                medians = [f"{job} {1000 * statistics.median(taken[job]):.2f} ms" for job in JOBS]
                print(f"{condition}, {name}: {', '.join(medians)}", file=sys.stderr)
    return found


@contextmanager
def process(setting: str, arguments: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """A worker with one setting, which does what it is told on its standard input."""
    clean = {name: value for name, value in os.environ.items() if name not in OURS}
    sizes = ["--updates", str(arguments.updates), "--tokens", str(arguments.tokens)]
    child = subprocess.Popen(
        [sys.executable, __file__, "--work", *sizes],
        env=clean | SETTINGS[setting],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for job in JOBS:  # everything is slow the first time
            ask(child, job)
        yield child
    finally:
        child.kill()
        child.wait()


def ask(child: subprocess.Popen[str], job: str) -> float:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{job}\n")
    child.stdin.flush()
    return float(child.stdout.readline())


@contextmanager
def neighbours(condition: str, arguments: argparse.Namespace) -> Iterator[None]:
    """Two other processes that never rest."""
    with ExitStack() as stack:
        children: list[subprocess.Popen[str]] = []
        for _ in range(0 if condition == "quiet" else 2):
            if condition == "two Python loops":
                child = subprocess.Popen([sys.executable, "-c", LOOP], text=True)
                stack.callback(child.wait)
                stack.callback(child.kill)
            else:
                child = stack.enter_context(process("torch's own", arguments))
            children.append(child)
        if condition == "two trainings":
            for child in children:
                assert child.stdin is not None
                child.stdin.write("training for ever\n")
                child.stdin.flush()
        time.sleep(1.0 if children else 0.0)
        yield


def work(updates: int, tokens: int) -> None:
    """Do what standard input asks for; the seconds of one unit are the answer."""
    import numpy as np

    import parformer as pf
    from parformer.generate.writing import generate
    from parformer.measure.models import measure_models
    from parformer.recipe import read_recipe
    from parformer.threads import share_cores
    from parformer.train.allocator import keep_memory
    from parformer.train.distributed import Workers
    from parformer.train.session import Session

    keep_memory()
    share_cores()
    recipe = read_recipe("pocket", {"train.compile": "off", "train.kernels": "native"})
    text = np.random.default_rng(0).integers(0, 256, 200_000)
    session = Session(recipe, text, workers=Workers())
    model, step = pf.build(recipe.model), 0
    for line in sys.stdin:
        began = time.perf_counter()
        if line.startswith("training"):
            while True:
                for _ in range(updates):
                    session.update(step)
                    step += 1
                if "for ever" not in line:
                    break
            unit = (time.perf_counter() - began) / updates
        elif line.startswith("writing"):
            generate(model, [[1, 2, 3]], tokens)
            unit = (time.perf_counter() - began) / tokens
        else:
            measured = measure_models({"pocket": recipe.model}, rounds=8)
            unit = measured.latency["pocket"].median
        print(unit, flush=True)


def show(job: str, found: Samples, settings: list[str], conditions: list[str]) -> None:
    """Milliseconds, and the share of the first setting's quiet speed that is left."""
    quiet = statistics.median(found[conditions[0]][settings[0]][job])
    print(f"\n{job}: ms, and speed beside {settings[0]} when {conditions[0]}\n")
    print("| waiting | " + " | ".join(conditions) + " |")
    print("|---" * (len(conditions) + 1) + "|")
    for name in settings:
        cells = []
        for condition in conditions:
            seconds = statistics.median(found[condition][name][job])
            cells.append(f"{1000 * seconds:.2f} ({quiet / seconds:.0%})")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
