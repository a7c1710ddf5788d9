"""Do labelled tasks read, lose and score what they say, and go on bit for bit?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import parformer as pf
from parformer.cli import main, make_parser
from parformer.cli.flags import asked
from parformer.data.labelled import (
    Examples,
    Feature,
    batch_of,
    bits_of,
    fitted,
    in_order,
    packed,
    scores_of,
    unpacked,
)
from parformer.data.tables import Example
from parformer.errors import ConfigError, CorpusError
from parformer.events import Step
from parformer.model import load
from parformer.recipe import read_recipe
from parformer.store import folder
from parformer.tasks import find_task
from parformer.tasks.classify import classes_of
from parformer.tasks.labelled import all_logits, label_logits
from parformer.tasks.preparing import read_labelled
from parformer.tasks.span import Span, best_answer, nearby, piece_starts, shows_most
from parformer.train.request import TrainRequest
from parformer.train.run import read_run, read_run_tokenizer
from tests.tasks.office import SMALL, write_choices, write_questions, write_reviews
from tests.train.trials import evidence


def some_features(count: int = 30) -> list[Feature]:
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 50, rng.integers(3, 12)).tolist() for _ in range(count)]
    return [Feature(((row, 2),), (n % 3, 0), n) for n, row in enumerate(rows)]


def test_examples_survive_being_packed() -> None:
    features = [*some_features(), Feature((([1, 2], 1), ([3], 1)), (-7, 9), 30)]
    found = unpacked(packed(features, np.dtype("<i4")))
    assert [one.targets for one in found] == [one.targets for one in features]
    for one, two in zip(found, features, strict=True):
        assert [(list(t), n) for t, n in one.rows] == [(list(t), n) for t, n in two.rows]


def test_scores_survive_as_whole_numbers() -> None:
    values = [0.0, -2.5, 3.3, 1e-20]
    bits = torch.tensor([bits_of(value) for value in values])
    assert torch.equal(scores_of(bits), torch.tensor(values))


def test_batches_follow_from_their_number_and_hold_everything_once() -> None:
    features = some_features(24)
    one, two = (Examples(features, batch=4, seed=3, pad=0) for _ in range(2))
    seen: list[int] = []
    for index in (5, 0, 3, 1, 4, 2):  # in any order
        batch = one.at(index)
        assert torch.equal(batch.tokens_bt, two.at(index).tokens_bt)
        lengths = batch.inputs["padding"].sum(1)
        assert int(lengths.max()) == batch.tokens_bt.shape[1]
        rows = two.at(index, slice(1, 3))
        assert torch.equal(rows.tokens_bt, batch.tokens_bt[1:3])
        seen += [tuple(row[:n].tolist()) for row, n in zip(batch.tokens_bt, lengths, strict=True)]  # type: ignore[misc]
    assert sorted(map(str, seen)) == sorted(str(tuple(f.rows[0][0])) for f in features)
    assert not torch.equal(one.at(0).targets, one.at(6).targets) or one.at(6).tokens_bt.shape
    with pytest.raises(CorpusError, match="24 examples to train on, but a batch has 32"):
        Examples(features, batch=32, seed=0, pad=0)


def test_types_tell_the_second_text_and_padding_is_neither() -> None:
    pair = Feature((([1, 5, 2, 6, 7, 2], 3),), (0, 0), 0)
    short = Feature((([1, 5, 2], 3),), (0, 0), 1)
    batch = batch_of([pair, short], pad=9)
    assert batch.inputs["types"].tolist() == [[0, 0, 0, 1, 1, 1], [0] * 6]
    assert batch.inputs["padding"].sum(1).tolist() == [6, 3]
    assert batch.tokens_bt[1, 3:].tolist() == [9, 9, 9]


def test_every_example_is_read_once_in_order() -> None:
    features = some_features()
    numbers = [n for some, _ in in_order(features, 0, 40) for n in some]
    assert sorted(numbers) == list(range(30))
    assert all(
        len(some) == 1 or batch.tokens_bt.numel() <= 40 for some, batch in in_order(features, 0, 40)
    )


@pytest.mark.parametrize("room", range(1, 14))
def test_pairs_are_cut_as_tokenizers_cut_them(room: int) -> None:
    one, two = list(range(7)), list(range(10, 15))
    a, b = list(one), list(two)
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    assert fitted(one, two, room) == (a, b)


def train(*words: object) -> None:
    assert main([str(word) for word in ("train", *words)]) == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model of each kind."""
    root = tmp_path_factory.mktemp("labels")
    write_reviews(root / "reviews.csv")
    write_questions(root / "questions.jsonl")
    write_choices(root / "choices.jsonl")
    usual = ("--epochs", 2, *SMALL, "--set", "train.batch=8")
    own = ("--text", "body", "--label", "stars")
    reviews = root / "reviews.csv"
    train(
        "bert-pocket",
        "--task",
        "classify",
        "--data",
        reviews,
        *own,
        *usual,
        "--run",
        root / "classify",
    )
    train(
        "bert-pocket", "--task", "score", "--data", reviews, *own, *usual, "--run", root / "score"
    )
    train(
        "bert-pocket",
        "--task",
        "span",
        "--data",
        root / "questions.jsonl",
        *usual,
        "--run",
        root / "span",
    )
    train(
        "bert-pocket",
        "--task",
        "choice",
        "--data",
        root / "choices.jsonl",
        *usual,
        "--run",
        root / "choice",
    )
    return root


KINDS = ("classify", "score", "span", "choice")


def opened(run: Path) -> tuple[Any, Any, Any]:
    recipe, prepared = read_labelled(read_run(run), read_run_tokenizer(run), lambda *_: None)
    return find_task(recipe), prepared, load(run / "model")


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_is_that_of_every_example_by_itself(kind: str, place: Path) -> None:
    """Padding, token types and the order of a batch change nothing; gradients agree too."""
    task, prepared, model = opened(place / kind)
    features = unpacked(prepared.splits["train"].tokens)[:6]
    model.eval()
    together = task.loss_of(label_logits(model, batch := batch_of(features, 0)), batch)
    together.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    single = []
    for one in features:
        alone = batch_of([one], 0)
        single.append(task.loss_of(label_logits(model, alone), alone))
    torch.stack(single).mean().backward()
    assert together.item() == pytest.approx(torch.stack(single).mean().item(), abs=1e-5)
    for name, parameter in model.named_parameters():
        if name in gradients:
            torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_is_what_the_logits_say(kind: str, place: Path) -> None:
    task, prepared, model = opened(place / kind)
    features = unpacked(prepared.splits["valid"].tokens)
    score = task.score(model, prepared, "valid", 0)
    told = all_logits(model, features, 0, most=1)  # each by itself
    if kind in ("classify", "choice"):
        truth = torch.tensor([one.targets[0] for one in features])
        logits = torch.stack(told)
        assert score.metrics["accuracy"] == float((logits.argmax(1) == truth).float().mean())
        assert score.loss == pytest.approx(float(F.cross_entropy(logits, truth)), abs=1e-5)
        assert 0 <= score.calibration <= 1
    written = json.loads((place / kind / "result.json").read_text())["valid"]
    assert written["score"] == pytest.approx(score.main)
    assert written["beside"]


def test_a_killed_training_ends_like_a_whole_one(place: Path) -> None:
    words = [
        "--task",
        "classify",
        "--data",
        str(place / "reviews.csv"),
        "--text",
        "body",
        "--label",
    ]
    words += ["stars", "--epochs", "2", *SMALL, "--set", "train.batch=8"]
    words += ["--set", "train.patience=3", "--set", "train.evaluate_every=3"]
    train("bert-pocket", *words, "--run", place / "whole")

    class Enough(Exception):
        pass

    def stop(event: object) -> None:
        if isinstance(event, Step) and event.step == 5:
            raise Enough

    arguments = make_parser(["train"]).parse_args(
        ["train", "bert-pocket", *words, "--run", str(place / "torn")]
    )
    with pytest.raises(Enough):
        pf.train(asked(arguments, TrainRequest), watch=stop)
    train("--run", place / "torn")
    assert evidence(place / "torn") == evidence(place / "whole")


def test_the_best_weights_are_kept(place: Path) -> None:
    """Of a rate that ruins the model, the first validation is the best."""
    run = place / "ruined"
    words = ("--task", "classify", "--data", place / "reviews.csv", "--text", "body", "--label")
    more = ("stars", *SMALL, "--set", "train.batch=8", "--set", "train.patience=1", "--epochs", 9)
    rate = ("--set", "train.learning_rate=0.9", "--set", "train.evaluate_every=2")
    exact = ("--set", "train.precision=fp32")
    train("--start", place / "classify", *words, *more[:1], *exact, *more[-6:], *rate, "--run", run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    known = {row["step"]: row["valid_accuracy"] for row in rows if "valid_accuracy" in row}
    assert len(known) < 9 * 6 // 2  # it stopped before its end
    result = json.loads((run / "result.json").read_text())
    assert result["valid"]["metrics"]["accuracy"] == max(known.values())
    best = folder.read_tensors(run / "best" / "weights.safetensors")
    model = dict(load(run / "model").named_parameters())
    last = folder.read_tensors(sorted((run / "checkpoints").iterdir())[-1] / "weights.safetensors")
    assert all(torch.equal(best[name], weight) for name, weight in model.items())
    assert not all(torch.equal(last[name], weight) for name, weight in model.items())


def test_rare_classes_weigh_as_much_as_they_are_rarer() -> None:
    changes = {"model.label_head": "class", "model.labels": ("a", "b"), "model.head": "none",
               "model.pooler": True, "train.task": "classify"}  # fmt: skip
    recipe = read_recipe("bert-pocket", changes | {"train.class_weights": "balanced"})
    task = find_task(recipe)
    rows = [Feature((([1, 2], 2),), (int(n == 0), 0), n) for n in range(4)]
    task.learn(rows)  # type: ignore[attr-defined]
    assert task.weights.tolist() == pytest.approx([4 / (2 * 3), 4 / (2 * 1)])  # type: ignore[attr-defined]
    logits = torch.randn(4, 2)
    truth = torch.tensor([1, 0, 0, 0])
    losses = F.cross_entropy(logits, truth, reduction="none")
    weights = task.weights[truth]  # type: ignore[attr-defined]
    expected = (losses * weights).sum() / weights.sum()
    found = task.loss_of(logits, batch_of(rows, 0))  # type: ignore[attr-defined]
    torch.testing.assert_close(found, expected)


def test_classes_are_in_order_of_numbers_or_letters() -> None:
    def named(*labels: str) -> tuple[str, ...]:
        return classes_of([Example(texts=("x",), label=label) for label in labels], "here")

    assert named("10", "9", "1") == ("1", "9", "10")
    assert named("no", "yes", "maybe") == ("maybe", "no", "yes")
    with pytest.raises(CorpusError, match="every row of train in 'here' has the label 'a'"):
        named("a", "a")
    with pytest.raises(CorpusError, match=r"60 different labels in 60 rows.*--task score"):
        named(*map(str, range(60)))


# Spans


@pytest.mark.parametrize(("count", "room", "stride"), [(10, 4, 3), (4, 4, 2), (9, 5, 5), (1, 9, 2)])
def test_pieces_cover_a_passage(count: int, room: int, stride: int) -> None:
    cut = piece_starts(count, room, stride)
    assert {n for start, size in cut for n in range(start, start + size)} == set(range(count))
    assert all(size <= room for _, size in cut)


@pytest.mark.parametrize("seed", range(12))
def test_the_best_answer_is_the_best_of_all_that_may_be(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    text = "abcdefghijklmnopqrst"
    passage = [(n, n, n + 1) for n in range(20)]
    cut = piece_starts(20, 8, 5)
    logits = [torch.randn(3 + size + 1, 2, generator=generator) for _, size in cut]
    found = best_answer(text, passage, cut, logits, 3)
    every = {}
    for number, (start, size) in enumerate(cut):
        for s in range(size):
            for e in range(s, size):
                if shows_most(start + s, cut) == number:
                    score = float(logits[number][3 + s, 0] + logits[number][3 + e, 1])
                    every[score] = text[start + s : start + e + 1]
    assert found.text == every[max(every)]
    assert found.score == pytest.approx(max(every))
    assert found.null == pytest.approx(min(float(one[0].sum()) for one in logits))


def test_of_pieces_that_show_as_much_the_longer_counts() -> None:
    assert shows_most(2, [(0, 4), (1, 6)]) == 1
    assert shows_most(2, [(0, 4), (1, 4)]) == 0


def test_answers_are_the_tokens_they_stand_in(place: Path) -> None:
    task, prepared, _ = opened(place / "span")
    assert isinstance(task, Span)
    for one in unpacked(prepared.splits["train"].tokens):
        example = prepared.examples["train"][one.number]
        tokens = one.rows[0][0][one.targets[0] : one.targets[1] + 1].tolist()
        assert prepared.tokenizer.decode(tokens) == example.answers[0][1]


def test_a_long_passage_is_read_in_pieces_or_refused(place: Path) -> None:
    recipe = read_run(place / "span").replaced({"train.tgt_len": 8})
    tokenizer = read_run_tokenizer(place / "span")
    recipe, prepared = read_labelled(
        recipe.replaced({"data.stride": 2}), tokenizer, lambda *_: None
    )
    features = unpacked(prepared.splits["train"].tokens)
    assert len(features) > len(prepared.examples["train"])
    assert max(one.length for one in features) <= 8
    score = find_task(recipe).score(load(place / "span" / "model"), prepared, "valid", 0)
    assert score.examples == len(prepared.examples["valid"])  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError, match=r"passage of .* has .* tokens, .* data\.stride is 0; set it"
    ):
        read_labelled(recipe.replaced({"data.stride": 0}), tokenizer, lambda *_: None)


def test_an_answer_that_is_not_there_is_left_out_and_told(place: Path) -> None:
    file = place / "wrong.jsonl"
    rows = (place / "questions.jsonl").read_text().splitlines()
    bad = json.loads(rows[2])
    bad["answers"][0]["answer_start"] += 1
    file.write_text("\n".join([*rows[:2], json.dumps(bad), *rows[3:]]) + "\n")
    recipe = read_run(place / "span").replaced({"data.corpus": str(file)})
    _, prepared = read_labelled(recipe, read_run_tokenizer(place / "span"), lambda *_: None)
    assert prepared.notes == (
        "train: 1 of 32 examples were left out, as their answers do not stand in their passages; "
        "the first is 'q2'.",
    )
    assert len(unpacked(prepared.splits["train"].tokens)) == 31


def test_counting_finds_answers_among_the_words_of_their_questions(place: Path) -> None:
    far, words = ["music"] * 30, ["the", "film", "was", "a", "story", "of", "two", "people"]
    text = " ".join([*far, *words, *far])
    examples = [
        Example(texts=(text, "was a of two"), answers=((text.index("film"), "film"),)),
        Example(texts=("", "music")),
    ]
    told = nearby(examples, examples, read_run_tokenizer(place / "span"))
    assert told == ["story", ""]


# What is refused


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("score", ["2.5"] * 20, "every row of train in .* has the label '2.5'"),
        ("score", ["1", "2"] * 9 + ["1", "nan"], "the score 'nan' of 'text' is no number"),
        ("score", ["1", "inf"] * 10, "the score 'inf' of 'text' is no number"),
    ],
)
def test_scores_are_numbers_that_differ(
    task: str, rows: list[str], message: str, tmp_path: Path
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("text,label\n" + "".join(f"text,{label}\n" for label in rows))
    with pytest.raises(CorpusError, match=message):
        pf.train(model="bert-pocket", task=task, data=str(table), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_choice_without_a_label_is_refused(tmp_path: Path) -> None:
    table = write_choices(tmp_path / "choices.jsonl")
    lines = table.read_text().splitlines()
    bare = json.loads(lines[3])
    del bare["label"]
    table.write_text("\n".join([*lines[:3], json.dumps(bare), *lines[4:]]) + "\n")
    with pytest.raises(CorpusError, match=r"1 of 32 rows of train in .* have no label, the first"):
        pf.train(model="bert-pocket", task="choice", data=str(table), run=tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt2-pocket", "--task", "classify"], "reads a text from both sides, and a model"),
        (["bert-pocket", "--task", "clasify"], "unknown task 'clasify'; did you mean 'classify'"),
        (["bert-pocket", "--task", "classify", "--label", "star"], "no column 'star'; did you"),
        (["--start", "nowhere", "--task", "classify"], "there is no folder"),
        (["bert-pocket", "--task", "sst2"], "--data for sst2 is a folder with its files"),
        (["bert-pocket", "--task", "classify", "--try", "learning_rate"], "cannot read --try"),
        (["bert-pocket", "--task", "classify", "--set", "train.frozen=99"], "frozen 99 is more"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_in_a_line(
    words: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = place / "refused"
    data = ["--data", str(place / "reviews.csv"), "--text", "body", "--run", str(run)]
    label = [] if "--label" in words else ["--label", "stars"]
    assert main(["train", *words, *data, *label]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert message in last
    assert not run.exists() or "frozen" in message


def test_an_unknown_label_in_validation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\n" + "a,1\nb,2\n" * 8)
    (tmp_path / "dev.csv").write_text("text,label\na,3\n")
    recipe = read_recipe(
        "bert-pocket",
        {"data.corpus": str(tmp_path), "train.task": "classify", "model.label_head": "class",
         "model.head": "none", "model.pooler": True, "data.tokenizer": "wordpiece"},
    )  # fmt: skip
    with pytest.raises(CorpusError, match="the label '3' of 'a' is none of train's: 1, 2"):
        read_labelled(recipe, None, lambda *_: None)
