"""Does `parformer predict` tell what its model knows, of any number of texts?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import parformer as pf
from parformer.cli import main
from parformer.model import load
from parformer.train.run import read_run_tokenizer
from tests.tasks.office import SMALL, write_choices, write_questions, write_reviews


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("predict")
    common = ["--epochs", "1", *SMALL, "--set", "train.batch=8"]
    files = {
        "classify": (write_reviews(root / "reviews.csv"), ["--text", "body", "--label", "stars"]),
        "span": (write_questions(root / "questions.jsonl"), []),
        "choice": (write_choices(root / "choices.jsonl"), []),
    }
    for task, (file, own) in files.items():
        words = ["train", "bert-pocket", "--task", task, "--data", str(file), *own, *common]
        assert main([*words, "--run", str(root / task)]) == 0
    return root


def asked(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    capsys.readouterr()
    assert main(["predict", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_classes_have_the_models_probabilities(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = place / "classify"
    found = asked(capsys, run, "--text", "the film was good", "--text", "bad")
    tokenizer, model = read_run_tokenizer(run), load(run / "model")
    for text, told in zip(("the film was good", "bad"), found["predictions"], strict=True):  # type: ignore[call-overload]
        marks = tokenizer.special("cls"), tokenizer.special("sep")
        tokens = torch.tensor([[marks[0], *tokenizer.encode(text), marks[1]]])
        with torch.no_grad():
            sure = model(tokens).label_logits[0].softmax(-1).tolist()
        assert list(told["probabilities"].values()) == pytest.approx(sure, abs=1e-5)
        assert told["label"] == ("1", "5")[sure.index(max(sure))]
    result = json.loads((run / "result.json").read_text())
    assert found["calibration_error"] == result["valid"]["calibration_error"]
    assert pf.predict(model=run / "model", texts=("bad",)).calibration is None
    for place_, words in ((run, "on average, on validation"), (run / "model", "is not known")):
        assert main(["predict", str(place_), "--text", "bad"]) == 0
        assert words in capsys.readouterr().out


def test_a_file_is_answered_line_by_line_in_order(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from parformer.predict import request

    monkeypatch.setattr(request, "AT_ONCE", 7)
    out = tmp_path / "told.jsonl"
    assert main(["predict", str(place / "classify"), "--input", str(place / "reviews.csv"),
                 "--output", str(out)]) == 0  # fmt: skip
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    texts = [line.rpartition(",")[0] for line in (place / "reviews.csv").read_text().splitlines()]
    alone = pf.predict(model=place / "classify", texts=tuple(texts[1:]))
    assert len(rows) == 60
    for row, one in zip(rows, alone.predictions, strict=True):
        assert row["probabilities"] == pytest.approx(dict(one.probabilities), abs=1e-5)
    plain = tmp_path / "texts.txt"
    plain.write_text("good\nbad film\n")
    found = asked(capsys, place / "classify", "--input", plain)
    assert found["count"] == 2


def test_nothing_is_left_of_a_file_that_fails(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, out = tmp_path / "bad.csv", tmp_path / "told.jsonl"
    bad.write_text('body\ngood\n" "\n')
    words = ["predict", str(place / "classify"), "--input", str(bad), "--output", str(out)]
    assert main(words) == 2
    assert "line 3 of" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad.csv"]


def test_answers_stand_in_their_passages(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passage = "the film was a story of two people"
    found = asked(capsys, place / "span", "--question", "film", "--passage", passage)
    (told,) = found["predictions"]  # type: ignore[misc]
    assert passage[told["start"] :].startswith(told["answer"])
    found = asked(capsys, place / "span", "--input", place / "questions.jsonl")
    assert found["count"] == 40


def test_labels_of_a_file_are_not_looked_at(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, name, wrong in (
        ("span", "questions", {"answers": [{"text": "nowhere", "answer_start": 3}]}),
        ("choice", "choices", {"label": 9}),
    ):
        rows = [json.loads(line) for line in (place / f"{name}.jsonl").read_text().splitlines()]
        file = tmp_path / "wrong.jsonl"
        file.write_text("".join(json.dumps(row | wrong) + "\n" for row in rows))
        alike = [asked(capsys, place / kind, "--input", one)["predictions"]
                 for one in (file, place / f"{name}.jsonl")]  # fmt: skip
        assert alike[0] == alike[1]


def test_no_answer_is_told_where_validation_says_that_it_is_likelier(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--question", "film", "--passage", "the film was a story")
    (before,) = asked(capsys, place / "span", *words)["predictions"]  # type: ignore[misc]
    run = tmp_path / "span"
    shutil.copytree(place / "span", run)
    result = json.loads((run / "result.json").read_text())
    for threshold, text in ((-before["score"] - 1, ""), (-before["score"] + 1, before["answer"])):
        result["valid"]["metrics"]["best_threshold"] = threshold
        (run / "result.json").write_text(json.dumps(result))
        (told,) = asked(capsys, run, *words)["predictions"]  # type: ignore[misc]
        assert (told["answer"], told["score"]) == (text, before["score"])


def test_choices_add_up(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--passage", "the film", "--choices", "good", "--choices", "bad", "--choices", "poor")
    found = asked(capsys, place / "choice", *words)
    (told,) = found["predictions"]  # type: ignore[misc]
    assert sum(told["probabilities"].values()) == pytest.approx(1.0)
    assert told["label"] in ("good", "bad", "poor")


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("classify", [], "give a --text"),
        ("classify", ["--text", " "], "a text is empty"),
        (
            "classify",
            ["--text", "a", "--text-pair", "b", "--text-pair", "c"],
            "1 texts and 2 others",
        ),
        (
            "classify",
            ["--text", "a", "--choices", "b"],
            "this model tells a class; ask it with --text",
        ),
        ("span", ["--text", "a"], "ask it with --question and --passage"),
        ("span", ["--question", "a"], "needs the --passage"),
        ("choice", ["--text", "a"], "ask it with --text and --choices"),
        ("choice", ["--text", "a", "--choices", "b"], "a single --choices leaves nothing"),
        ("classify", ["--text", "a", "--text-pair", "b"], "was trained on single texts; leave out"),
        ("classify", ["--text", "a", "--output", "b"], "--output b is for the answers to --input"),
        ("classify", ["--input", "nowhere.csv"], "there is no file 'nowhere.csv'"),
    ],
)
def test_what_cannot_be_asked_is_told_in_a_line(
    kind: str, words: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["predict", str(place / kind), *words]) == 2
    told = capsys.readouterr().err.splitlines()
    assert message in told[-1]


def test_a_model_without_labels_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pf.build(pf.preset("bert-pocket", vocab_size=20, d_model=16, n_head=2, d_inner=16)).save(
        tmp_path / "m"
    )
    assert main(["predict", str(tmp_path / "m"), "--text", "a"]) == 2
    assert "was trained for no labels" in capsys.readouterr().err


def test_evaluate_tells_the_same_score(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = place / "classify"
    capsys.readouterr()
    assert main(["evaluate", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    known = json.loads((run / "result.json").read_text())["test"]
    assert found["metrics"] == known["metrics"]
    assert found["beside"] == known["beside"]
    assert (
        main(["evaluate", str(run), "--data", str(place / "reviews.csv"), "--split", "train"]) == 0
    )
    assert "n-grams" in capsys.readouterr().out
    assert main(["evaluate", str(run), "--corpus", "python-docs"]) == 2
    assert "say --data" in capsys.readouterr().err
