"""Does a fit learn labels and translations as it learns a text, and say what they are worth?"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import parformer as pf
from parformer.cli import main
from parformer.errors import ConfigError, CorpusError, Stopped
from parformer.evaluate.translation import overlap
from parformer.events import Event, Phase, Watch
from parformer.fitting.grid import Straight, parts_of, sized
from parformer.fitting.kinds import find_kind
from parformer.fitting.kinds.answers import Answers, ignorant, short, squared_errors, task_of
from parformer.fitting.kinds.pairs import COPY, Pairs
from parformer.fitting.phases import Line
from parformer.fitting.request import FitRequest
from parformer.fitting.result import FitResult, ModelFacts, Verdict
from parformer.fitting.scored import TaskScores
from parformer.fitting.verdict import at_task
from parformer.measure.readings import Step
from parformer.model import build
from parformer.pattern import Pattern
from parformer.search.sentences import sentence_meter
from parformer.tasks import Translate
from tests.fitting.office import small_fit

WORDS = ("good", "great", "lovely", "bad", "awful", "dull")


def write_reviews(path: Path, rows: int = 240) -> Path:
    rng = Random(3)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["body", "stars"])
        for number in range(rows):
            thing = rng.choice(["film", "story", "music", "end"])
            table.writerow([f"the {thing} was {WORDS[number % 6]}", 5 if number % 6 < 3 else 1])
    return path


def write_pairs(folder: Path) -> Path:
    folder.mkdir()
    numbers, things = ["one", "two", "three"], ["dog", "cat", "house", "tree"]
    theirs = dict(
        zip(
            [*numbers, *things],
            ["ein", "zwei", "drei", "Hund", "Katze", "Haus", "Baum"],
            strict=True,
        )
    )
    lines = [f"{n} {t}" for n in numbers for t in things] * 8
    for split, some in (("train", lines), ("valid", lines[:12]), ("test", lines[4:16])):
        (folder / f"{split}.en").write_text("\n".join(some) + "\n")
        said = [" ".join(theirs[word] for word in line.split()) for line in some]
        (folder / f"{split}.de").write_text("\n".join(said) + "\n")
    return folder


def label_request(table: Path, run: Path, **more: Any) -> FitRequest:
    given = {"task": "classify", "label": "stars", "text": ("body",), "steps": 24}
    given |= {"limits": ("flops=0.9x",), "corpus": str(table), "run": str(run)}
    return FitRequest(**(given | more))  # type: ignore[arg-type]


def pair_request(folder: Path, run: Path, **more: Any) -> FitRequest:
    given = {"task": "translate", "pair": "de-en", "tokenizer": "character", "steps": 2}
    given |= {"choices": "sfr"}
    given |= {"limits": ("flops=0.9x",), "corpus": str(folder), "run": str(run)}
    return FitRequest(**(given | more))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reviews(tmp_path_factory.mktemp("labels") / "reviews.csv")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs") / "pairs")


@pytest.fixture(scope="module")
def classified(reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    run = tmp_path_factory.mktemp("classified") / "run"

    def stop(event: Event) -> None:
        if isinstance(event, Phase) and event.name == "contest":
            raise Stopped("enough for today")

    with pytest.raises(Stopped):  # and gone on with
        small_fit(label_request(reviews, run), watch=stop)
    return small_fit(label_request(reviews, run))


@pytest.fixture(scope="module")
def translated(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    return small_fit(pair_request(pairs, tmp_path_factory.mktemp("translated") / "run"))


def test_labels_are_fitted_and_judged_by_their_own_score(classified: FitResult) -> None:
    assert classified.finished
    assert {"bag", "lsra", "memory"} <= {model.name for model in classified.models}
    scores = classified.scores
    assert scores is not None
    assert scores.words == "accuracy"
    assert set(scores.splits) == {"valid", "test"}
    assert scores.of("final", "test") == 1.0
    low, high = scores.intervals["test"]
    assert low <= 1.0 <= high
    told = pf.predict(model=Path(classified.run), texts=("the film was great", "the end was dull"))
    assert [one.label for one in told.predictions] == ["5", "1"]
    assert "accuracy 1.000" in str(classified.verdict)
    assert "squared error" in classified.report.read_text("utf-8")


def test_what_needs_no_network_is_what_a_training_says_of_it(classified: FitResult) -> None:
    scores = classified.scores
    assert scores is not None
    result = json.loads((Path(classified.run) / "result.json").read_text())
    for split in ("valid", "test"):
        beside = result[split]["beside"]
        assert scores.splits[split]["a bag of n-grams"] == beside["n-grams"]
        assert scores.splits[split]["the most frequent answer"] == beside["majority"]


def test_translations_are_fitted_beside_copies_of_their_sources(
    translated: FitResult, pairs: Path
) -> None:
    assert translated.finished
    assert {"deep", "recurrent"} <= {model.name for model in translated.models}
    assert translated.scores is not None
    sides = [(pairs / f"test.{side}").read_text().splitlines() for side in ("de", "en")]
    assert translated.scores.of(COPY, "test") == pytest.approx(overlap(*sides).bleu)
    assert translated.step is not None
    assert "greedy" in translated.step.words
    assert "--source" in translated.repeat[0]


@pytest.mark.parametrize("task", ["classify", "score"])
def test_squared_errors_are_those_of_plain_loops(reviews: Path, task: str) -> None:
    kind = find_kind(label_request(reviews, Path("run"), task=task))
    recipe, prepared = kind.read(None, Watch(), Path("run"), "")
    from parformer.data.labelled import unpacked

    features, judge = unpacked(prepared.splits["valid"].tokens), task_of(recipe)
    width = 2 if task == "classify" else 1
    told = torch.randn(len(features), width, generator=torch.Generator().manual_seed(0)).double()
    truth = [line.split(",")[1] for line in reviews.read_text().splitlines()[1:]][8::10]
    wanted = []
    for row, label in zip(told.tolist(), truth, strict=True):
        if task == "score":
            wanted.append((row[0] - float(label)) ** 2)
            continue
        sure = np.exp(row) / np.exp(row).sum()
        right = ["1", "5"].index(label)
        wanted.append(sum((p - (n == right)) ** 2 for n, p in enumerate(sure)))
    np.testing.assert_allclose(squared_errors(judge, features, told), wanted)
    train = unpacked(prepared.splits["train"].tokens)
    loss, squares = ignorant(judge, train, features)
    if task == "classify":
        assert loss == pytest.approx(np.log(2), rel=0.02)
        assert squares == pytest.approx(0.5, rel=0.02)
    else:
        assert loss == squares == pytest.approx(4.0, rel=0.02)
    examples = [prepared.examples["valid"][one.number] for one in features]  # type: ignore[attr-defined]
    answers = Answers(judge, features, examples, told)
    low, high = answers.interval(TaskScores(task, judge.metrics[:1], {}), 0)
    assert low <= answers.metrics()[judge.metrics[0]] <= high


def test_losses_of_pairs_are_the_task_s(pairs: Path) -> None:
    kind = find_kind(pair_request(pairs, Path("run")))
    assert isinstance(kind, Pairs)
    corpus = kind.find(Watch(), Path("run"), "")
    recipe, prepared = kind.read(corpus, Watch(), Path("run"), "")
    recipe = recipe.replaced(
        {"model.d_model": 32, "model.d_inner": 32, "model.pattern": "sf | scf"}
    )
    model = build(recipe.model)
    task = Translate(recipe)
    rows = task.pairs(prepared.splits["valid"].tokens)
    lengths = np.array([len(target) + 1 for _, target in rows])
    losses = kind.losses(recipe, model, prepared)
    assert len(losses) == len(rows)
    mean = float((losses * lengths).sum() / lengths.sum())
    assert mean == pytest.approx(task.reference_loss(model, prepared, "valid", 0).loss, rel=1e-5)


def test_a_line_finds_what_blocks_cost() -> None:
    rng = np.random.default_rng(0)
    parts = [
        {"s": float(s), "f": float(f), "flops": float(x)} for s, f, x in rng.integers(1, 9, (12, 3))
    ]
    seconds = [0.001 + 0.002 * p["s"] + 0.003 * p["f"] + 1e-4 * p["flops"] for p in parts]
    line = Line.drawn(parts, seconds)
    for one, took in zip(parts, seconds, strict=True):
        assert line.at(one) == pytest.approx(took, rel=0.02)
    assert Line.drawn([{"s": 1.0}, {"s": 2.0}], [2.0, 1.0]).at({"s": 9.0}) >= 0


def test_sizes_of_a_grid_are_models(reviews: Path) -> None:
    base = pf.preset("bert-pocket", d_model=64, n_head=4, d_inner=256, pattern="(sf)x2")
    found = sized([Pattern.parse("n (f)x3"), Pattern.parse("{sf}x2")], base)
    assert len({one.d_model for one in found}) > 2
    clock = Straight(Line({"f": 1.0, "s": 2.0}), lambda _: {"flops": 1.0}, base, 1e6)
    shared = next(one for one in found if "s" in str(one.pattern))
    assert clock.latency(shared) == 2 * 2.0 + 2 * 1.0  # every time it runs
    translator = Pattern.parse("(sf)x2 | scf")
    two = pf.preset("transformer-pocket-translation", pattern=str(translator))
    assert parts_of(two, 5.0) == {"flops": 5.0, "s": 1, "f": 1, "c": 1, "s|": 2, "f|": 2}


def test_a_sentence_is_timed_whole() -> None:
    base = pf.preset(
        "transformer-pocket-translation", vocab_size=40, d_model=32, d_inner=32, pad=39, start=1,
        end=2, pattern="sf | scf",
    )  # fmt: skip
    deep = base.replaced(pattern=Pattern.parse("sf | (scf)x4"))
    found = sentence_meter(5)({"one": base, "four": deep}, Step(tgt_len=6, mem_len=0, rounds=5))
    assert found["four"].peak_bytes > found["one"].peak_bytes
    assert len(found["four"].samples) == 5
    assert "a sentence of 6 tokens from 5" in found.receipt.what
    assert found["one"].peak_bytes > 4 * sum(p.numel() for p in build(base).parameters())


def judged(own: float, plain: float, *, learned: bool = True) -> Verdict:
    splits = {"test": {"final": {"accuracy": own}, "a bag of n-grams": {"accuracy": plain},
                       "the most frequent answer": {"accuracy": 0.5}}}  # fmt: skip
    scores = TaskScores("classify", ("accuracy",), splits, {"test": (own - 0.02, own + 0.02)})
    chosen = ModelFacts.__new__(ModelFacts)
    object.__setattr__(chosen, "learned", learned)
    return at_task(Verdict("better", "It is better.", ("So it is.",)), chosen, scores)


def test_the_first_line_says_where_no_network_is_needed() -> None:
    behind = judged(0.78, 0.8)
    assert behind.headline.startswith("A bag of n-grams is ahead of it without a network: accuracy")
    assert "0.780 (0.760 to 0.800) on test, a bag of n-grams 0.800" in behind.headline
    assert judged(0.9, 0.8).sentences[0].startswith("It is ahead of a bag of n-grams")
    assert judged(0.81, 0.8).sentences[0].startswith("It is not told apart from a bag of n-grams")
    for nothing in (judged(0.5, 0.8), judged(0.9, 0.8, learned=False)):
        assert nothing.kind == "nothing learned"
        assert nothing.headline == "Nothing was learned in this time."


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{csv}", "--task", "classify", "--label", "nope"], "has no column 'nope'"),
        (["{csv}", "--task", "classify", "--text", "body", "--label", "same"], "two kinds"),
        (["{txt}", "--task", "classify"], "is no table"),
        (["{csv}", "--task", "squad"], "unknown task of a fit"),
        (["{csv}", "--label", "stars"], "is for --task classify or --task score"),
        (["{csv}", "--task", "translate"], "give --pair"),
        (["{uneven}", "--task", "translate", "--pair", "de-en"], "lines and"),
        (["{csv}", "--task", "classify", "--label", "stars", "--family", "llama"], "known: bert"),
        (["{csv}", "--data", "elsewhere", "--task", "score"], "two places"),
        (
            ["{csv}", "--task", "classify", "--text", "body", "--label", "stars", "--steps", "2",
             "--limit", "flops=10"],
            "no model is within the limits",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_reviews(tmp_path / "reviews.csv", 40)
    lines = table.read_text().splitlines()
    table.write_text("\n".join(f"{line},{'same' if n == 0 else 1}" for n, line in enumerate(lines)))
    (tmp_path / "notes.txt").write_text("some words\n" * 40)
    uneven = tmp_path / "uneven"
    uneven.mkdir()
    (uneven / "train.de").write_text("eins\nzwei\n")
    (uneven / "train.en").write_text("one\n")
    places = {"csv": table, "txt": tmp_path / "notes.txt", "uneven": uneven}
    run = tmp_path / "run"
    given = [word.format(**places) if word.startswith("{") else word for word in words]
    assert main(["fit", *given, "--run", str(run)]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert says in told[-1]
    assert not [path for path in run.rglob("*") if path.is_file() and path.name != ".lock"]


def test_a_text_is_cut_between_words() -> None:
    assert short("one  two\nthree", 40) == "one two three"
    assert short("one two three four", 12) == "one two …"


def test_labels_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown tokenizer 'bpe'"):
        FitRequest(corpus="x.csv", task="classify", tokenizer="bpe")
    with pytest.raises(CorpusError, match="no folder or file"):
        small_fit(FitRequest(corpus="nowhere.csv", task="classify", steps=2, run="unused-run"))
