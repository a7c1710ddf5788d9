"""Do lottery tickets win, what do few bits cost, and does a teacher help, in pocket size?

    python benchmarks/compression.py lottery bits teacher [--steps 400] [--seeds 3] [--first-seed 0]
    python benchmarks/compression.py patient [--steps 400]
    python benchmarks/compression.py transfer [--steps 400]
    python benchmarks/compression.py --write

`lottery`: six rounds that take a third of what is left away, set back to the first weights, to
those of an early step, or to fresh ones. `bits`: one trained model in 8, 4, 3 and 2 bits, as it is
and after a quarter more of training in them, with whole and with learned ranges, beside that
training without. `teacher`: a small model
trained alone, and by a larger one's answers, for equally many updates and for equally long;
`patient` is the same with five times the updates for all. `transfer`: MobileBERT's shape taught by
IB-BERT's, in pocket size: bare, by answers (PD), that with the teacher's ends to begin with, after
layer-by-layer transfer of feature maps (FMT), and of attention too (AT). Everything is by updates,
so other work beside it changes no figure but the seconds. What the folder of runs has already is
not done again; what came out is added to benchmarks/compression.jsonl, line by line, from where
`--write` puts the tables and the figure into docs/experiments/compression.md.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from learns import into_document
from tickets import picture

import parformer as pf
from parformer.compress.coding import coded
from parformer.compress.lottery import Back, Lottery
from parformer.evaluate.perplexity import evaluate
from parformer.events import Watch
from parformer.measure.device import describe_device
from parformer.model import Model, load
from parformer.recipe import Recipe, read_recipe
from parformer.train.job import find_text, train_model

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "compression.md"
PICTURE = DOCUMENT.with_name("lottery.svg")
RESULTS = Path(__file__).with_name("compression.jsonl")
RUNS = Path("runs") / "compression"
STEPS, ROUNDS, SHARE = 400, 6, 1 / 3
MORE = 0.25
"""Of the updates, to train on in few bits."""
SCORED = 65_536
PATIENCE = 5
"""Times the updates, for teachers and students that are trained for longer."""


def pocket(steps: int, seed: int, **changes: object) -> Recipe:
    named: dict[str, object] = {
        "model.pattern": "(sf)x4",
        "train.steps": steps,
        "train.seed": seed,
        "train.compile": "off",
        "train.evaluate_tokens": SCORED,
        "train.final_tokens": SCORED,
        "train.evaluate_every": 10 * steps,
    }
    return read_recipe("llama-pocket", named | changes)


def once(file: Path, work: Callable[[], object]) -> object:
    """What a file holds, or what has to be done for it."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        found = work()
        file.write_text(json.dumps(found), "utf-8")
        line = {"name": file.stem, "found": found, "cpu": describe_device(1).cpu}
        with RESULTS.open("a", encoding="utf-8") as results:
            results.write(json.dumps(line | {"date": str(date.today())}) + "\n")
        print(f"{file.stem}: {found}", flush=True)
    return json.loads(file.read_text("utf-8"))


@cache
def results() -> dict[str, Any]:
    """All that ever came out, by its name; the last counts."""
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.is_file() else []
    return {line["name"]: line["found"] for line in map(json.loads, lines)}


def read_all(name: str) -> list[Any]:
    """What came out with all the seeds there are."""
    known = results()
    return [known[one] for one in sorted(known) if re.fullmatch(f"{re.escape(name)}-[0-9]", one)]


def trained(recipe: Recipe, run: Path) -> float:
    outcome = train_model(recipe, run)
    assert outcome.result is not None
    return outcome.result.loss_on("valid")


def lottery(folder: Path, steps: int, seed: int) -> None:
    backs: tuple[Back, ...] = ("first", "step", "random")
    for back in backs:

        def play(back: Back = back) -> object:
            place = folder / f"lottery-{back}-{seed}"
            recipe, early = pocket(steps, seed), steps // 20
            drawn = Lottery(recipe=recipe, folder=place, share=SHARE, back=back, step=early)
            return [(one.left, one.loss) for one in drawn.draw(ROUNDS)]

        once(folder / f"lottery-{back}-{seed}.json", play)


def bits(folder: Path, steps: int, seed: int) -> None:
    recipe = pocket(steps, seed)
    run = folder / f"plain-{seed}"

    def score(model: Model) -> float:
        from parformer.data.batches import sample
        from parformer.train.job import as_tokens

        watch = Watch()
        prepared = as_tokens(find_text(recipe, watch, run), recipe, watch)
        tokens = sample(prepared.splits["valid"].tokens, SCORED)
        return evaluate(model, tokens, batch=8).loss

    once(folder / f"bits-plain-{seed}.json", lambda: trained(recipe, run))
    on = recipe.replaced(
        {
            "train.steps": round(MORE * steps),
            "train.learning_rate": 0.25 * recipe.train.learning_rate,
            "train.warmup": 10,
            "train.start": str(run),
        }
    )
    once(
        folder / f"bits-on-{seed}.json",
        lambda: trained(on, folder / f"on-{seed}"),
    )
    for few in (8, 4, 3, 2):
        once(
            folder / f"bits-{few}-after-{seed}.json",
            lambda few=few: score(coded(load(run / "model"), few)),
        )

        for name, ranges in (("learned", "whole"), ("ranged", "learned")):

            def learned(few: int = few, name: str = name, ranges: str = ranges) -> float:
                place = folder / f"in-{few}-{name}-{seed}"
                within = {"compress.bits": few, "compress.ranges": ranges}
                train_model(on.replaced(within), place)
                return score(coded(load(place / "model"), few, nearest=True))

            once(folder / f"bits-{few}-{name}-{seed}.json", learned)


def teacher(folder: Path, steps: int, seed: int, name: str = "teacher") -> None:
    whole, small = ("plain", "") if name == "teacher" else (f"{name}-plain", f"{name}-")
    large = folder / f"{whole}-{seed}"
    once(folder / f"bits-{whole}-{seed}.json", lambda: trained(pocket(steps, seed), large))
    student = pocket(steps, seed, **{"model.pattern": "(sf)x2", "model.d_inner": 144})

    def kept(how: str, recipe: Recipe) -> dict[str, float]:
        def timed() -> object:
            began = time.process_time()
            loss = trained(recipe, folder / f"{small}{how}-{seed}")
            return {"loss": loss, "seconds": time.process_time() - began}

        found = once(folder / f"{name}-{how}-{seed}.json", timed)
        assert isinstance(found, dict)
        return found

    alone = kept("alone", student)
    taught = student.replaced({"compress.teacher": str(large), "compress.soft": 0.5})
    told = kept("taught", taught)
    longer = round(steps * told["seconds"] / alone["seconds"])
    kept("longer", student.replaced({"train.steps": longer}))


def patient(folder: Path, steps: int, seed: int) -> None:
    """The same where a student has the time to learn what it can."""
    teacher(folder, PATIENCE * steps, seed, "patient")


def bert(steps: int, seed: int, **changes: object) -> Recipe:
    """A student of bottlenecks, or with changes its teacher, that guess hidden words."""
    named: dict[str, object] = {
        "train.steps": steps,
        "train.seed": seed,
        "train.compile": "off",
        "train.evaluate_tokens": SCORED,
        "train.final_tokens": SCORED,
        "train.evaluate_every": 10 * steps,
    }
    return read_recipe("mobilebert-pocket", named | changes)


WIDE = {
    "model.pattern": "<sf>[feed=outside,wide]x4",
    "model.d_bottleneck": 256,
    "model.d_inner": 1024,
}
"""What makes a pocket IB-BERT of a pocket MobileBERT: layers that are wider inside."""


def transfer(folder: Path, steps: int, seed: int) -> None:
    large = folder / f"ib-bert-{seed}"
    once(
        folder / f"transfer-teacher-{seed}.json",
        lambda: trained(bert(2 * steps, seed, **WIDE), large),
    )
    answers: dict[str, object] = {
        "compress.teacher": str(large),
        "compress.soft": 0.5,
        "compress.temperature": 1.0,
    }
    maps: dict[str, object] = {
        "compress.features": 100.0,
        "compress.progressive": 1 / 3,
        "compress.take": "ends",
    }
    ways: dict[str, dict[str, object]] = {
        "bare": {},
        "pd": answers,
        "ends": answers | {"compress.take": "ends"},
        "fmt": answers | maps,
        "at": answers | maps | {"compress.attention": 1.0},
    }
    for name, changes in ways.items():
        once(
            folder / f"transfer-{name}-{seed}.json",
            lambda changes=changes, name=name: trained(
                bert(steps, seed, **changes), folder / f"transfer-{name}-{seed}"
            ),
        )


def transfer_table() -> str:
    names = {
        "bare": "bare",
        "pd": "+ PD",
        "ends": "+ PD, its teacher's embedding and head to begin with",
        "fmt": "+ PD + FMT",
        "at": "+ PD + FMT + AT",
        "teacher": "its teacher, twice the updates",
    }
    lines = ["| | nats per hidden token |", "|---|---:|"]
    for name, words in names.items():
        losses = [float(str(one)) for one in read_all(f"transfer-{name}")]
        shown = f"{statistics.mean(losses):.3f}" if losses else ""
        lines.append(f"| {words} | {shown} |")
    return "\n".join(lines)


def told(losses: list[float]) -> str:
    values = [loss / math.log(2) for loss in losses]
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


BACK = {"first": "the first weights", "step": "an early step's", "random": "fresh ones"}
"""What weights are set back to."""


def lottery_picture() -> str:
    """The same as curves."""
    lines = {
        words: [[(left, loss / math.log(2)) for left, loss in one] for one in found]
        for kind, words in BACK.items()
        if (found := read_all(f"lottery-{kind}"))
    }
    return picture(lines, "Tickets, set back to …")


def lottery_table() -> str:
    rows = {kind: read_all(f"lottery-{kind}") for kind in BACK}
    lines = [f"| left | {' | '.join(BACK.values())} |", "|---:|---:|---:|---:|"]
    rounds = max((len(one) for found in rows.values() for one in found), default=0)
    for number in range(rounds):
        cells, left = [], ""
        for kind in BACK:
            points = [one[number] for one in rows[kind] if number < len(one)]
            cells.append(told([loss for _, loss in points]))
            left = f"{points[0][0]:.1%}" if points else left
        lines.append(f"| {left} | {' | '.join(cells)} |")
    return "\n".join(lines)


def bits_table() -> str:
    lines = ["| weights | as it is | trained on in them | with learned ranges |"]
    lines += ["|---|---:|---:|---:|"]
    plain, on = (told(read_all(f"bits-{name}")) for name in ("plain", "on"))
    lines.append(f"| 32 bits | {plain} | {on} | |")
    for few in (8, 4, 3, 2):
        cells = [told(read_all(f"bits-{few}-{how}")) for how in ("after", "learned", "ranged")]
        lines.append(f"| {few} bits | {' | '.join(cells)} |")
    return "\n".join(lines)


def teacher_table() -> str:
    lines = ["| a student of half the depth | updates | bits per byte | processor seconds |"]
    lines += ["|---|---:|---:|---:|"]
    for kind, whole in (("teacher", "bits-plain"), ("patient", "bits-patient-plain")):
        if not read_all(f"{kind}-alone"):
            continue
        updates = f"{STEPS if kind == 'teacher' else PATIENCE * STEPS:,}"
        longer = f"what {updates} taught ones take"
        for how, words, many in (
            ("alone", "alone", updates),
            ("taught", "taught", updates),
            ("longer", "alone", longer),
        ):
            found = read_all(f"{kind}-{how}")
            seconds = [one["seconds"] for one in found]
            mean = f"{statistics.mean(seconds):.0f}" if seconds else ""
            lines.append(f"| {words} | {many} | {told([one['loss'] for one in found])} | {mean} |")
        lines.append(f"| its teacher | {updates} | {told(read_all(whole))} | |")
    return "\n".join(lines)


def arguments(parts: Mapping[str, object], description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    parser.add_argument("--folder", type=Path, default=RUNS, help=f"of runs (default {RUNS})")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the document")
    return parser


def write(tables: Mapping[str, Callable[[], str]]) -> None:
    """Put tables into the document; of what was not run, it stays as it is."""
    for name, table in tables.items():
        if any(one.startswith(f"{name}-") for one in results()):
            into_document(DOCUMENT, name, table())


def main() -> None:
    parts = {
        "lottery": lottery,
        "bits": bits,
        "teacher": teacher,
        "patient": patient,
        "transfer": transfer,
    }
    given = arguments(parts, __doc__.splitlines()[0]).parse_args()
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for name in given.parts:
            parts[name](given.folder, given.steps, seed)
    if given.write:
        write(
            {
                "lottery": lottery_table,
                "bits": bits_table,
                "teacher": teacher_table,
                "transfer": transfer_table,
            }
        )
        if read_all("lottery-first"):
            PICTURE.write_text(lottery_picture(), "utf-8")
        device = describe_device(1)
        made = f"{device.cpu}, torch {device.torch}, parformer {pf.__version__}, {date.today()}."
        into_document(DOCUMENT, "made", made)


if __name__ == "__main__":
    main()
