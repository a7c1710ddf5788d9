"""Do translators stand up to text of another kind, and do the same models learn to summarise?

    python benchmarks/far.py tatoeba aeslc scitldr cnn --data DATA --folder RUNS [--minutes 20]
    python benchmarks/far.py --write

DATA holds the folders translation and summarization with their authors' files. `tatoeba`: English
to German, 169,813 everyday sentences, split by the English side; newstest2014 is the far test. Its
German is tokenised, so stops and commas stand by themselves on both sides of every score. `aeslc`:
subjects of 14,436 mails. `scitldr`: a sentence for each of 1,992 abstracts. `cnn`: 900 articles of
CNN/DailyMail, which is a trial of the format. Everything is trained by the clock, from nothing.
Results are lines of benchmarks/far.jsonl, from where `--write` fills tables of
docs/experiments/translation.md.
"""

from __future__ import annotations

import argparse
import html
import json
import lzma
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from inference import table
from kept import keep, known, made_on
from learns import into_document

import parformer as pf
from parformer.costs import cost
from parformer.train.run import read_result, read_run

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "translation.md"
RESULTS = Path(__file__).with_name("far.jsonl")
SAMPLES = (0, 111, 222, 333)
"""Texts of the test split that are shown, whatever they are."""
SHOWN = 160
"""Characters of each: nobody's texts are kept whole."""
Rows = dict[str, list[tuple[str, str]]]
"""Pairs of each split."""


@dataclass(frozen=True)
class Experiment:
    """What is trained on, and how."""

    rows: Callable[[Path], Rows]
    task: str
    pair: str
    recipe: str
    changes: Mapping[str, object] = field(default_factory=dict)
    far: Callable[[Path], list[tuple[str, str]]] | None = None
    """Pairs of another kind to be scored on as well."""
    published: str = ""
    """The name of the published pairs that a local copy stands for."""


def lines_of(file: Path) -> Iterator[str]:
    with lzma.open(file, "rt", encoding="utf-8") as opened:
        yield from opened


def apart(text: str) -> str:
    """German as newstest's file has it: stops, commas and quotes between blanks.

    >>> apart("„Ja“, sagte er, „um 10.30 Uhr.“")
    '" Ja " , sagte er , " um 10.30 Uhr . "'
    """
    text = re.sub('[„“”«»"]', ' " ', text)
    text = re.sub(r"([!?;:()…])|([.,](?!\d))", r" \1\2 ", text)
    return " ".join(text.split())


def tatoeba(data: Path) -> Rows:
    found: Rows = {"train": [], "valid": [], "test": []}
    for line in lines_of(data / "translation" / "tatoeba2018.en-de.tsv.xz"):
        english, german = line.rstrip("\n").split("\t")[:2]
        place = int(sha256(english.encode()).hexdigest(), 16) % 100
        split = {0: "test", 1: "valid"}.get(place, "train")
        found[split].append((english, apart(german)))
    Random(0).shuffle(found["train"])  # the file begins with its shortest
    return found


def news(data: Path) -> list[tuple[str, str]]:
    """newstest2014, in the same spelling."""
    folder = data / "translation"
    english = lines_of(folder / "wmt14.newstest2014.en.xz")
    german = lines_of(folder / "wmt14.newstest2014.tok.de.xz")
    pairs = zip(english, german, strict=True)
    return [(one.strip(), apart(html.unescape(two.strip()))) for one, two in pairs]


def mails(data: Path) -> Rows:
    return {
        split: [
            (" ".join(one["body"].split()), " ".join(one["subject"].split()))
            for one in read(data / "summarization" / f"aeslc.{name}.jsonl.xz")
        ]
        for split, name in (("train", "train"), ("valid", "dev"), ("test", "test"))
    }


def abstracts(data: Path) -> Rows:
    return {
        split: [
            (" ".join(one["source"]), one["target"][0])
            for one in read(data / "summarization" / f"scitldr-a.{name}.jsonl.xz")
        ]
        for split, name in (("train", "train"), ("valid", "dev"), ("test", "test"))
    }


def articles(data: Path) -> Rows:
    folder = data / "summarization"
    some = [
        [
            (" ".join(one["article"].split()), " ".join(one["highlights"].split()))
            for one in read(folder / f"cnn_dailymail.{name}.jsonl.xz")
        ]
        for name in ("validation-1000", "test-500")
    ]
    return {"train": some[0][:900], "valid": some[0][900:], "test": some[1]}


def read(file: Path) -> list[Any]:
    return [json.loads(line) for line in lines_of(file)]


MODEL = "lite-pocket-translation"
PATIENT: Mapping[str, object] = {"train.patience": 4}
"""For few texts, which are soon known by heart."""
EXPERIMENTS = {
    "tatoeba": Experiment(tatoeba, "translate", "en-de", MODEL, far=news),
    "aeslc": Experiment(mails, "summarise", "body-subject", MODEL, {"data.source_words": 120}),
    "scitldr": Experiment(
        abstracts, "summarise", "abstract-tldr", MODEL,
        {"data.source_words": 160, "model.max_len": 512, "train.batch_tokens": 4096, **PATIENT},
    ),
    "cnn": Experiment(
        articles, "summarise", "article-highlights", MODEL,
        {"data.source_words": 240, "model.max_len": 640, "train.batch_tokens": 8192, **PATIENT},
        published="cnn-dailymail",
    ),
}  # fmt: skip


def write_pairs(folder: Path, rows: Mapping[str, Iterable[tuple[str, str]]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in rows.items():
        text = "".join(f"{' '.join(a.split())}\t{' '.join(b.split())}\n" for a, b in pairs)
        (folder / f"{split}.tsv").write_text(text, "utf-8")
    return folder


def write_lines(folder: Path, rows: Mapping[str, Iterable[tuple[str, str]]], pair: str) -> Path:
    """The same as JSON lines, as some pairs are published."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in rows.items():
        lines = [json.dumps(dict(zip(pair.split("-"), texts, strict=True))) for texts in pairs]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


def run_one(name: str, given: argparse.Namespace) -> None:
    key = {"name": name, "seed": given.seed, "minutes": given.minutes, "threads": given.threads}
    if known(RESULTS, **key):
        return
    how, folder = EXPERIMENTS[name], given.folder
    rows = how.rows(given.data)
    place = folder / f"{name}-pairs"
    if how.published:
        source: dict[str, Any] = {
            "data": how.published,
            "local": str(write_lines(place, rows, how.pair)),
        }
    else:
        source = {"data": str(write_pairs(place, rows))}
    run = folder / f"{name}-{given.minutes:g}m-{given.seed}"
    changes = {"train.threads": given.threads, **how.changes}
    pf.train(
        model=how.recipe, pair=how.pair, task=how.task, seed=given.seed, run=run, beside=False,
        time=60 * given.minutes, changes=tuple(f"{n}={v}" for n, v in changes.items()), **source,
    )  # fmt: skip
    recipe, result = read_run(run), read_result(run)
    assert result is not None, "it is finished"
    found = {
        "parameters": cost(recipe.model).parameters,
        "pattern": str(recipe.model.pattern),
        "updates": result.steps,
        "batch_tokens": recipe.train.batch_tokens,
        "pairs": {split: len(some) for split, some in rows.items()},
        "test": pf.evaluate(model=run, split="test").score.to_dict(),
        "samples": samples(run, rows["test"]),
    }
    if how.far is not None:
        other = how.far(given.data)
        place = write_pairs(folder / f"{name}-far", {"test": other})
        found["far"] = pf.evaluate(model=run, data=str(place)).score.to_dict()
        found["far_samples"] = samples(run, other)
    keep(RESULTS, key | found)


def samples(run: Path, pairs: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    chosen = [pairs[n] for n in SAMPLES if n < len(pairs)]
    written = pf.generate(model=run, sources=tuple(source for source, _ in chosen))
    shown = [(*pair, one.text) for pair, one in zip(chosen, written, strict=True)]
    return [(cut(source), cut(target), cut(text)) for source, target, text in shown]


def cut(text: str) -> str:
    """The beginning of a text, in a line.

    >>> cut("a\\nmail"), len(cut("a" * 900))
    ('a mail', 162)
    """
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} …"


def far_page(every: list[dict[str, Any]]) -> str:
    rows = []
    for one in every:
        for place, words in (("test", "Tatoeba, held out"), ("far", "newstest2014")):
            score = one[place]
            rows.append(
                [
                    words,
                    f"{one['parameters'] / 1e6:.2f} M",
                    f"{one['updates']:,}",
                    f"{score['sentences']:,}",
                    f"{score['bleu']:.1f} ({score['low']:.1f} … {score['high']:.1f})",
                    f"{score['chrf']:.1f}",
                    f"{score['loss']:.3f}",
                ]
            )
    heads = ["test", "parameters", "updates", "sentences", "BLEU", "chrF", "loss"]
    lines = [*table(heads, rows), "", f"BLEU is sacreBLEU's, {every[0]['test']['signature']}.", ""]
    for place in ("samples", "far_samples"):
        lines += [*shown(every[0][place]), ""]
    return "\n".join([*lines, made_on(every, spent(every))])


def summaries_page(every: list[dict[str, Any]]) -> str:
    rows = []
    for one in every:
        score = one["test"]
        ways = {
            f"{one['parameters'] / 1e6:.2f} M parameters, {one['updates']:,} updates": score,
            "first sentence": score["first_sentence"],
            f"first {score['words']} words": score["first_words"],
        }
        for way, shares in ways.items():
            kinds = [f"{shares[kind]:.1f}" for kind in ("rouge1", "rouge2", "rougeL")]
            rows.append([one["name"], f"{one['pairs']['train']:,}", way, *kinds])
    heads = ["texts", "pairs to learn from", "summary", "ROUGE-1", "ROUGE-2", "ROUGE-L"]
    lines = [*table(heads, rows), ""]
    for one in every:
        lines += [f"{one['name']}:", "", *shown(one["samples"]), ""]
    return "\n".join([*lines, made_on(every, spent(every))])


def spent(every: list[dict[str, Any]]) -> str:
    """How long each was trained, and with what."""
    return ", ".join(
        f"{one['name']} {one['minutes']:g} minutes with {one['threads']} "
        f"thread{'s' * (one['threads'] > 1)}"
        for one in every
    )


def shown(some: list[list[str]]) -> list[str]:
    """What a model makes of a few texts."""
    lines = ["| source | reference | model |", "|---|---|---|"]
    cells = ([text.replace("|", "\\|") for text in row] for row in some)
    return [*lines, *(f"| {' | '.join(row)} |" for row in cells)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("runs") / "far", help="of runs")
    parser.add_argument("--minutes", type=float, default=20.0, help="of each training")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the document")
    given = parser.parse_args()
    if given.write:
        every = known(RESULTS)
        parts = {"far": (far_page, True), "summaries": (summaries_page, False)}
        for part, (page, translated) in parts.items():
            if some := [one for one in every if (one["name"] == "tatoeba") == translated]:
                into_document(DOCUMENT, part, page(some))
        return
    if given.data is None:
        parser.error("--data says where the texts are")
    for name in given.names:
        run_one(name, given)


if __name__ == "__main__":
    main()
