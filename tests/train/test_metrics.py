"""Does metrics.jsonl hold every step once?"""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from parformer.errors import FolderError
from parformer.train.metrics import Metrics, open_board, read_metrics


def test_lines_come_back(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    metrics = Metrics(file, 0)
    metrics.add(1, {"loss": 0.1 + 0.2})
    metrics.add(2, {"loss": 2.0, "rate": 1e-3})
    assert metrics.settle() == file.stat().st_size
    metrics.close()
    assert read_metrics(file) == [
        {"step": 1, "loss": 0.1 + 0.2},
        {"step": 2, "loss": 2.0, "rate": 1e-3},
    ]


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    metrics = Metrics(file, 0)
    metrics.add(1, {"loss": 1.0})
    length = metrics.settle()
    metrics.add(2, {"loss": 2.0})
    metrics.close()
    with file.open("ab") as torn:
        torn.write(b'{"step": 3, "lo')
    assert [row["step"] for row in read_metrics(file)] == [1, 2]  # a torn line is no line
    metrics = Metrics(file, length)
    metrics.add(2, {"loss": 2.5})
    metrics.close()
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 2.5},
    ]


def test_a_new_run_forgets_what_no_checkpoint_knows(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n')
    Metrics(file, 0).close()
    assert file.read_bytes() == b""


@pytest.mark.parametrize("there", [True, False])
def test_where_it_was_cut_a_new_log_begins(tmp_path: Path, there: bool) -> None:
    file, told = tmp_path / "metrics.jsonl", list[str]()
    if there:
        file.write_text('{"step": 1}\n')
    metrics = Metrics(file, 500, notice=told.append)
    metrics.add(8, {"loss": 1.0})
    metrics.close()
    assert "a new log begins here" in told[0]
    assert [row["step"] for row in read_metrics(file)] == [8]
    left = tmp_path / "damaged-metrics.jsonl"
    assert left.exists() == there
    assert not there or left.read_text() == '{"step": 1}\n'


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "diary").write_text("mine\n")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "diary")
    with pytest.raises(FolderError, match="is a link"):
        Metrics(tmp_path / "metrics.jsonl", 0)
    assert (tmp_path / "diary").read_text() == "mine\n"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"cannot write .*nowhere/metrics.jsonl'"):
        Metrics(tmp_path / "nowhere" / "metrics.jsonl", 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_one_line_and_closing_does_not_hide_it(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl", 0)
    metrics.file.close()
    metrics.file = Path("/dev/full").open("ab")  # noqa: SIM115 - closed by what is tested
    with pytest.raises(FolderError, match=r"metrics.jsonl' \(\d+ bytes needed\): No space left"):
        metrics.add(1, {"loss": 1.0})
    metrics.close()
    assert metrics.file.closed


def test_tensorboard_is_used_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *given: Any) -> Any:
        if name == "torch.utils.tensorboard":
            raise ImportError(name)
        return real(name, *given)

    monkeypatch.setattr(builtins, "__import__", without)
    assert open_board(tmp_path, 0) is None
    monkeypatch.undo()

    class Board:
        rows: list[tuple[Any, ...]] = []  # noqa: RUF012
        closed = False

        def add_scalar(self, *row: Any) -> None:
            self.rows.append(row)

        def close(self) -> None:
            self.closed = True

    board = Board()
    asked: list[int] = []
    monkeypatch.setattr(
        "parformer.train.metrics.open_board", lambda _, step: asked.append(step) or board
    )
    metrics = Metrics(tmp_path / "metrics.jsonl", 0, tensorboard=tmp_path / "board", step=2)
    metrics.add(3, {"loss": 1.5, "words": "none"})
    metrics.close()
    assert board.rows == [("loss", 1.5, 3)]
    assert board.closed
    assert asked == [2]
