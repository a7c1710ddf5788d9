"""How well do encoder-decoders of different blocks translate after equal time?

    python benchmarks/translating.py --folder FOLDER --data MULTI30K --steps 800
    python benchmarks/translating.py --folder FOLDER --data MULTI30K --minutes 20 --only transformer
    python benchmarks/translating.py --write

MULTI30K holds train, val and test_2016_flickr in .de and .en. The first two train whatever is
missing, one after the other, for so many updates or by the clock, and score it on test2016 in small
letters with beam 5, and add what came out to benchmarks/translating.jsonl (but for trials, which
have a `--name`); the third writes docs/experiments/translation.md from there. What a
training took is told in the processor's time, which others beside it change little. `--only` takes
some models, `--seed` another seed, `--set` changes a field for a trial, whose `--name` keeps it
apart.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from drawing import SHADES, Picture, with_room
from learns import into_document

import parformer as pf
from parformer.costs import cost
from parformer.measure.device import describe_device
from parformer.records import Record
from parformer.train.run import read_run

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "translation.md"
PICTURE = DOCUMENT.with_name("translation-time.svg")
RESULTS = Path(__file__).with_name("translating.jsonl")
PAIR = "de-en"
TRANSFORMER, LITE, SRUPP = (
    f"{name}-pocket-translation" for name in ("transformer", "lite", "srupp")
)
MODELS: dict[str, tuple[str, str]] = {
    "transformer": (TRANSFORMER, ""),
    "par": (TRANSFORMER, "(sff)x2 f | scf cff cf"),
    "supernet": (TRANSFORMER, "(f)x2 s (f)x2 | (f)x8 c"),
    "lite": (LITE, ""),
    "srupp": (SRUPP, ""),
    "srupp-k2": (SRUPP, "(ra)x2 | (ra[source])x2"),
    "synthesizer-dense": (TRANSFORMER, "(y[dense]f)x3 | (y[dense]cf)x3"),
    "synthesizer-random": (TRANSFORMER, "(y[random+vanilla]f)x3 | (y[random+vanilla]cf)x3"),
}
"""Each model's recipe, and its pattern where that is another one."""
SAMPLES = (0, 111, 222, 333)
"""Lines of the test split that are shown."""


@dataclass(frozen=True, kw_only=True)
class Trained(Record):
    """What came of a training."""

    model: str
    seed: int
    minutes: float
    """Of all processors together, for everything from the text to the last validation."""
    seconds: float
    """On the clock, others beside it or not."""
    steps: int
    tokens: int
    """Of an update, their padding counted."""
    pattern: str
    parameters: int
    precision: str
    bleu: float
    low: float
    high: float
    chrf: float
    loss: float
    signature: str
    samples: tuple[tuple[str, str, str], ...]
    """Sources, references, and what the model makes of them."""
    asked: float = 0.0
    """Minutes on the clock that it was to take; 0 where updates were asked for."""
    threads: int = 0
    """Of the training; 0 where nobody wrote them down."""


def train_one(given: argparse.Namespace, model: str) -> Trained:
    preset, pattern = MODELS[model]
    much = f"{given.minutes:g}m" if given.minutes else f"{given.steps}"
    name = "-".join(filter(None, (model, given.name, much, str(given.seed))))
    file = given.folder / f"{name}.json"
    if file.is_file():
        return Trained.from_dict(json.loads(file.read_text("utf-8")), str(file))
    run, changes = given.folder / name, ["data.lower=true", *given.changes]
    began, spent = time.monotonic(), time.process_time()
    length = {"time": 60 * given.minutes} if given.minutes else {"steps": given.steps}
    pf.train(
        model=preset, data=str(given.data), pair=PAIR, task="translate", pattern=pattern,
        seed=given.seed, run=run, changes=tuple(changes), beside=False, **length,
    )  # fmt: skip
    seconds, spent = time.monotonic() - began, time.process_time() - spent
    found = pf.evaluate(model=run, split=given.split)
    told, recipe = found.to_dict(), read_run(run)
    made = Trained(
        model=model,
        seed=given.seed,
        minutes=round(spent / 60, 2),
        seconds=round(seconds, 1),
        steps=recipe.train.steps,
        tokens=recipe.train.batch_tokens,
        pattern=str(recipe.model.pattern),
        parameters=cost(recipe.model).parameters,
        precision=recipe.train.precision,
        samples=tuple(samples(run, given.data)),
        asked=given.minutes,
        threads=recipe.train.threads,
        **{key: told[key] for key in ("bleu", "low", "high", "chrf", "loss", "signature")},
    )
    file.write_text(json.dumps(made.to_dict(), indent=1, ensure_ascii=False), "utf-8")
    if not given.name:
        with RESULTS.open("a", encoding="utf-8") as results:
            results.write(json.dumps(made.to_dict(), ensure_ascii=False) + "\n")
    return made


def samples(run: Path, data: Path) -> Iterator[tuple[str, str, str]]:
    """Some sentences of the test split, before anybody looked at them."""
    from parformer.data.pairs import Filters, find_pairs

    corpus = find_pairs(str(data), PAIR, Filters(lower=True))
    lines = b"".join(corpus.chunks("test")).decode().splitlines()
    rows = [lines[n].split("\t") for n in SAMPLES if n < len(lines)]
    written = pf.generate(model=run, sources=tuple(source for source, _ in rows))
    for (source, reference), one in zip(rows, written, strict=True):
        yield source, reference, one.text


def known() -> list[Trained]:
    lines = RESULTS.read_text("utf-8").splitlines()
    return [Trained.from_dict(json.loads(line), str(RESULTS)) for line in lines]


def table(every: list[Trained]) -> Iterator[str]:
    """A row for each training, the best first."""
    heads = ["model", "pattern", "parameters", "seed", "updates", "processor minutes", "BLEU"]
    heads += ["95%", "chrF", "loss"]
    yield f"| {' | '.join(heads)} |"
    yield f"|---|---|{'---:|' * (len(heads) - 2)}"
    for one in sorted(every, key=lambda one: -one.bleu):
        pattern = one.pattern.replace("|", "\\|")  # a table's own sign
        yield (
            f"| {one.model} | `{pattern}` | {one.parameters:,} | {one.seed} | {one.steps:,} | "
            f"{one.minutes:.1f} | {one.bleu:.1f} | {one.low:.1f} … {one.high:.1f} | "
            f"{one.chrf:.1f} | {one.loss:.3f} |"
        )


def page(every: list[Trained]) -> str:
    lines = [*table(every), "", f"BLEU is sacreBLEU's, {every[0].signature}.", ""]
    best = max(every, key=lambda one: one.bleu)
    lines += [
        f"Lines {', '.join(str(n + 1) for n in SAMPLES)} of the test by the best of them:",
        "",
    ]
    lines += ["| source | reference | model |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in best.samples]
    device = describe_device(1)
    known = sorted({f"{one.threads}" for one in every if one.threads})
    lines += [
        "",
        f"{device.cpu}, torch {device.torch}, {', '.join(known)} thread each, {date.today()}.",
    ]
    return "\n".join(lines)


def picture(every: list[Trained]) -> str:
    """BLEU against the time of training: a dot for each, lines from short to long."""
    times, scores = [one.minutes for one in every], [one.bleu for one in every]
    low, high = with_room([math.log(one) for one in times], 0.1)
    drawn = Picture(
        "BLEU against training", "processor minutes; BLEU on test2016 upwards",
        (math.exp(low), math.exp(high)), with_room(scores), stretched=math.log,
    )  # fmt: skip
    drawn.rows()
    drawn.columns(n for n in (5, 10, 20, 40, 80) if math.exp(low) < n < math.exp(high))
    named = []
    for shade, model in zip(SHADES, MODELS, strict=True):
        if some := sorted((one.minutes, one.bleu) for one in every if one.model == model):
            drawn.curve(some, shade)
            for point in some:
                drawn.dot(point, shade)
            named.append((some[-1][1], model, shade))
    drawn.names(named)
    return drawn.svg()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("runs") / "translating", help="of runs")
    parser.add_argument("--data", type=Path, help="Multi30k's files")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--minutes", type=float, default=0.0, help="of each training")
    parser.add_argument("--steps", type=int, default=800, help="of each, in place of minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", default="test", help="to score; valid for trials")
    parser.add_argument("--name", default="", help="of a trial")
    parser.add_argument("--set", dest="changes", action="append", default=[])
    parser.add_argument("--write", action="store_true", help="write the document")
    given = parser.parse_args()
    if given.write:
        into_document(DOCUMENT, "translation", page(known()))
        PICTURE.write_text(picture(known()), "utf-8")
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    for model in given.only:
        one = train_one(given, model)
        print(
            f"{one.model} {given.name}: BLEU {one.bleu:.1f} ({one.low:.1f} … {one.high:.1f}), loss "
            f"{one.loss:.3f}, {one.steps:,} updates in {one.minutes:.1f} processor minutes, "
            f"{one.seconds:.0f} s, {one.parameters:,} parameters",
            flush=True,
        )
        for row in one.samples:
            print("  " + "  |  ".join(row), flush=True)


if __name__ == "__main__":
    main()
