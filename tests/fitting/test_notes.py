"""Is a phase done once, and is its time counted once?"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from parformer.errors import ConfigError, FolderError
from parformer.fitting.ask import Ask
from parformer.fitting.notes import FILE, Notes

ASK = Ask(corpus="x")


def test_a_phase_is_done_once_also_by_another_process(tmp_path: Path) -> None:
    calls: list[int] = []

    def make() -> dict[str, object]:
        calls.append(1)
        return {"pair": (1, 2), "by": {3: "three"}}

    first = Notes(tmp_path, ASK).once("size", make)
    again = Notes(tmp_path, None).once("size", make)
    # what comes back is the same whether it was just made or read
    assert first == again == {"pair": [1, 2], "by": {"3": "three"}}
    assert calls == [1]


def test_time_counts_wherever_it_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    notes = Notes(tmp_path, ASK)

    def part() -> dict[str, object]:
        now[0] += 2
        return {}

    def whole() -> dict[str, object]:
        notes.once("rates.paces", part)
        now[0] += 3
        assert notes.spent == 5  # while it runs
        return {}

    def fails() -> dict[str, object]:
        now[0] += 7
        raise KeyboardInterrupt

    notes.once("rates", whole)
    with pytest.raises(KeyboardInterrupt):
        notes.once("contest", fails)
    for one in (notes, Notes(tmp_path, None)):
        assert one.spent == 12  # the part is in its whole
        assert one.seconds("contest") == 7
        assert one.seconds("winner") is None
        assert one.has("rates")
        assert not one.has("contest")


def test_another_question_is_refused_but_prices_may_change(tmp_path: Path) -> None:
    Notes(tmp_path, Ask(corpus="x", seed=1))
    with pytest.raises(ConfigError, match=r"seed is 1 in the run .* and 2 now"):
        Notes(tmp_path, Ask(corpus="x", seed=2))
    Notes(tmp_path, Ask(corpus="x", seed=1, price=0.5))


def test_a_folder_without_a_fit_and_broken_notes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no fit at"):
        Notes(tmp_path, None)
    (tmp_path / FILE).write_text(json.dumps({"format": "other"}))
    with pytest.raises(FolderError, match="not written by a fit"):
        Notes(tmp_path, ASK)
    (tmp_path / FILE).write_text(json.dumps({"format": "parformer-fit-notes-1", "phases": 3}))
    with pytest.raises(FolderError, match="broken"):
        Notes(tmp_path, ASK)
