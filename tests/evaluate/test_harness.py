"""Does lm-eval score a model on tasks from a local folder? Needs parformer[tasks]."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import parformer as pf
from parformer.cli import main
from parformer.data.characters import Bytes
from parformer.model import build
from tests.conftest import lively, small_config

TASK = """
task: colours
dataset_path: json
dataset_kwargs:
  data_files:
    validation: {file}
output_type: multiple_choice
validation_split: validation
fewshot_split: validation
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list:
  - metric: acc
"""
ROWS = [
    {"question": f"what is {n}?", "choices": ["red", "dark blue", "green"], "label": n % 3}
    for n in range(7)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = lively(build(small_config("llama", vocab_size=256, d_model=16, n_head=2, max_len=512)))
    model.save(tmp_path / "model", Bytes().to_json())
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    rows = tasks / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tasks / "colours.yaml").write_text(TASK.format(file=rows))
    return tmp_path


def test_a_missing_package_is_named(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    model = build(small_config("llama", vocab_size=256, max_len=64))
    model.save(tmp_path / "model", Bytes().to_json())
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(["evaluate", str(tmp_path / "model"), "--tasks", "piqa"]) == 2
    assert "parformer[tasks]" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "model"), "--shots", "1"]) == 2
    assert "--shots 1 are for --tasks" in capsys.readouterr().err


@pytest.mark.parametrize("shots", [0, 1])
def test_lm_eval_scores_local_tasks(folder: Path, shots: int, capsys: Any) -> None:
    pytest.importorskip("lm_eval")
    asked = ["--tasks", "colours", "--shots", str(shots), "--from", str(folder / "tasks")]
    assert main(["evaluate", str(folder / "model"), *asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (score,) = told["tasks"]
    assert (score["task"], score["measure"], score["count"]) == ("colours", "acc", 7)
    assert score["chance"] == pytest.approx(1 / 3)
    assert score["error"] > 0
    if shots == 0:
        assert score["value"] == pytest.approx(by_hand(folder / "model"))


def by_hand(path: Path) -> float:
    import torch

    model, right = pf.load(path), 0
    for row in ROWS:
        context = f"Question: {row['question']}\nAnswer:".encode()
        sums = []
        for choice in row["choices"]:
            tokens = torch.tensor([[*context, *f" {choice}".encode()]])
            with torch.no_grad():
                logs = model(tokens[:, :-1]).logits[0].log_softmax(-1)
            own = tokens[0, 1:, None]
            sums.append(float(logs.gather(1, own)[len(context) - 1 :].sum()))
        right += sums.index(max(sums)) == row["label"]
    return right / len(ROWS)


@pytest.mark.soak
@pytest.mark.parametrize("shots", [0, 1])
def test_rows_of_a_known_task_come_from_a_folder(folder: Path, capsys: Any, shots: int) -> None:
    """Examples come from its train split, which nobody needs without them."""
    pytest.importorskip("lm_eval")
    place = folder / "data" / "piqa"
    place.mkdir(parents=True)
    for split in ("train", "validation")[1 - shots :]:
        rows = [
            {"goal": f"open door {n} ({split})", "sol1": "push", "sol2": "sing to it", "label": 0}
            for n in range(4)
        ]
        (place / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ["--tasks", "piqa", "--shots", str(shots), "--from", str(folder / "data")]
    assert main(["evaluate", str(folder / "model"), *asked]) == 0
    assert "piqa" in capsys.readouterr().out


@pytest.mark.soak
def test_a_task_that_nobody_knows_or_without_data(folder: Path, capsys: Any) -> None:
    pytest.importorskip("lm_eval")
    assert main(["evaluate", str(folder / "model"), "--tasks", "piqqa"]) == 2
    assert "unknown task 'piqqa'; did you mean 'piqa'" in capsys.readouterr().err
    missing = ["--tasks", "piqa", "--from", str(folder / "nowhere")]
    assert main(["evaluate", str(folder / "model"), *missing]) == 2
    assert "no folder at" in capsys.readouterr().err
