"""Are published tasks read from their authors' own files?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parformer.data.benchmarks import BENCHMARKS, read_benchmark
from parformer.data.tables import Example
from parformer.errors import CorpusError


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        stem, _, ending = name.rpartition("_")
        (folder / f"{stem}.{ending}").write_text(text)
    return folder


def read(task: str, folder: Path) -> dict[str, list[Example]]:
    return read_benchmark(BENCHMARKS[task], str(folder))


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("task", "train", "dev", "texts", "label"),
    [
        ("sst2", "sentence\tlabel\nfine \"film\t1\n", "sentence\tlabel\nx\t0\n",
         ('fine "film',), "1"),
        ("cola", "gj04\t0\t*\tA b c.\n", "gj04\t1\t\tD e.\n", ("A b c.",), "0"),
        ("mrpc", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tA.\tB.\n",
         "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tC.\tD.\n", ("A.", "B."), "1"),
        ("stsb", "main\tf\t2012\t1\t3.8\tA.\tB.\textra\n", "main\tf\t2012\t1\t1.0\tC.\tD.\n",
         ("A.", "B."), "3.8"),
        ("qqp", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tA?\tB?\t0\n",
         "1\tC?\tD?\t9\n", ("A?", "B?"), "0"),
        ("qnli", "index\tquestion\tsentence\tlabel\n0\tA?\tB.\tentailment\n",
         "index\tquestion\tsentence\tlabel\n0\tC?\tD.\tnot_entailment\n",
         ("A?", "B."), "entailment"),
    ],
)  # fmt: skip
def test_glue_comes_in_its_own_files(
    task: str, train: str, dev: str, texts: tuple[str, ...], label: str, tmp_path: Path
) -> None:
    found = read(task, written(tmp_path, train_tsv=train, dev_tsv=dev))
    assert [(one.texts, one.label) for one in found["train"]] == [(texts, label)]
    assert len(found["valid"]) == 1


def test_mnli_has_two_validations(tmp_path: Path) -> None:
    head = "index\tsentence1\tsentence2\tgold_label\n"
    written(
        tmp_path, train_tsv=head + "0\tA.\tB.\tneutral\n",
        dev_matched_tsv=head + "0\tC.\tD.\tentailment\n",
        dev_mismatched_tsv=head + "0\tE.\tF.\tcontradiction\n",
    )  # fmt: skip
    assert read("mnli", tmp_path)["valid"][0].texts == ("C.", "D.")
    assert read("mnli-mm", tmp_path)["valid"][0].texts == ("E.", "F.")


def test_superglue_comes_in_its_own_files(tmp_path: Path) -> None:
    answers = [{"text": "one", "label": 1}, {"text": "two", "label": 0}]
    question = {"question": "Which?", "answers": answers, "idx": 5}
    passage = {"text": "<b>Sent 1: </b>It is.", "questions": [question]}
    rows = {
        "BoolQ": {"passage": "P.", "question": "q", "label": True, "idx": 0},
        "COPA": {"premise": "It fell.", "choice1": "A.", "choice2": "B.", "question": "effect",
                 "label": 1},
        "MultiRC": {"idx": 3, "passage": passage},
        "WiC": {"word": "place", "sentence1": "A place.", "sentence2": "To place.", "label": False},
        "WSC": {"text": "Ann saw Bo and she ran.", "label": True,
                "target": {"span1_index": 0, "span1_text": "Ann", "span2_index": 4,
                           "span2_text": "she"}},
    }  # fmt: skip
    for name, row in rows.items():
        for split in ("train", "val"):
            (tmp_path / f"{name}.{split}.jsonl").write_text(lines(row))
    assert read("boolq", tmp_path)["train"][0] == Example(texts=("P.", "q"), label="True")
    copa = read("copa", tmp_path)["valid"][0]
    assert copa.texts == ("It fell. What happened as a result?",)
    assert (copa.choices, copa.label) == (("A.", "B."), "1")
    multirc = read("multirc", tmp_path)["train"]
    assert [(one.texts[1], one.label, one.group) for one in multirc] == [
        ("Which? one", "1", "3-5"), ("Which? two", "0", "3-5"),
    ]  # fmt: skip
    assert read("wic", tmp_path)["train"][0].texts == ("place: A place.", "To place.")
    assert read("wsc", tmp_path)["train"][0].texts == ("*Ann* saw Bo and #she# ran.", "she = Ann")


def test_record_asks_for_every_entity(tmp_path: Path) -> None:
    passage = {"text": "Ann met Bo.", "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 9}]}
    answer = {"start": 8, "end": 9, "text": "Bo"}
    row = {"idx": 1, "passage": passage,
           "qas": [{"query": "@placeholder was met.", "answers": [answer], "idx": 2}]}  # fmt: skip
    written(tmp_path, train_jsonl=lines(row), val_jsonl=lines(row))
    found = read("record", tmp_path)["train"]
    assert [(one.texts[1], one.label, one.name, one.group) for one in found] == [
        ("Ann was met.", "0", "Ann", "1-2"), ("Bo was met.", "1", "Bo", "1-2"),
    ]  # fmt: skip


def test_squad_and_race(tmp_path: Path) -> None:
    asked = {"id": "a", "question": "Who?", "answers": [{"text": "Bo", "answer_start": 4}]}
    nobody = {"id": "b", "question": "Why?", "answers": [], "is_impossible": True}
    whole = {"data": [{"paragraphs": [{"context": "Ann Bo.", "qas": [asked, nobody]}]}]}
    for name in ("train-v2.0.json", "dev-v2.0.json"):
        (tmp_path / name).write_text(json.dumps(whole))
    one, two = read("squad2", tmp_path)["train"]
    assert (one.texts, one.answers, one.name) == (("Ann Bo.", "Who?"), ((4, "Bo"),), "a")
    assert (two.answers, two.name) == ((), "b")
    other = tmp_path / "race"
    other.mkdir()
    row = {
        "article": "P.",
        "questions": ["q _"],
        "options": [["1", "2", "3", "4"]],
        "answers": ["C"],
    }
    for name in ("race.train.middle", "race.dev.middle", "race.dev.high", "race.train.high"):
        (other / f"{name}.jsonl").write_text(lines(row | {"article": name}))
    found = read("race-middle", other)
    assert [one.texts[0] for one in found["train"]] == ["race.train.middle"]
    assert (found["valid"][0].choices, found["valid"][0].label) == (("1", "2", "3", "4"), "2")
    assert len(read("race", other)["valid"]) == 2


def test_what_is_no_task_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="has no labelled train file for sst2"):
        read("sst2", tmp_path)
    written(tmp_path, train_jsonl=lines({"passage": {"text": "x"}}))
    with pytest.raises(CorpusError, match="is not in the format of its task"):
        read("multirc", tmp_path)
    written(tmp_path, train_json="{}")
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(CorpusError, match="is no file of SQuAD's"):
        read("squad", tmp_path)


def test_pairs_of_mrpc_have_one_of_two_names(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tone\ttwo\n"
    )
    row = {"sentence1": "three", "sentence2": "four", "label": 0, "idx": 9}
    (tmp_path / "dev.jsonl").write_text(json.dumps(row) + "\n")
    found = read_benchmark(BENCHMARKS["mrpc"], str(tmp_path))
    assert [one.texts for one in found["train"]] == [("one", "two")]
    assert [(one.texts, one.label) for one in found["valid"]] == [(("three", "four"), "0")]
