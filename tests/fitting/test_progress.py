"""Is a phase done once, and is its time counted once?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from parformer.errors import ConfigError, FolderError
from parformer.fitting.phases import Contest, PhaseResult, Placed, Rates, Seeds
from parformer.fitting.progress import FILE, Progress
from parformer.fitting.request import FitRequest

REQUEST = FitRequest(corpus="x")
FILES = Path(__file__).parent / "files"


def test_a_phase_is_done_once_also_by_another_process(tmp_path: Path) -> None:
    calls: list[int] = []

    def make() -> Seeds:
        calls.append(1)
        return Seeds({3: {"par": (1.0, 2.0)}})

    first = Progress(tmp_path, REQUEST).once(Seeds, make)
    again = Progress(tmp_path, None).once(Seeds, make)
    # what comes back is the same whether it was just made or read
    assert first == again == Seeds({3: {"par": (1.0, 2.0)}})
    assert calls == [1]
    assert Progress(tmp_path, None).number("seeds.count", lambda: 4) == 4
    assert Progress(tmp_path, None).number("seeds.count", lambda: 5) == 4


def test_time_counts_wherever_it_went(tmp_path: Path) -> None:
    now = [100.0]
    progress = Progress(tmp_path, REQUEST, lambda: now[0])

    def part() -> float:
        now[0] += 2
        return 1

    def whole() -> Placed:
        progress.number("search.part", part)
        now[0] += 3
        assert progress.spent == 5  # while it runs
        return Placed()

    def fails() -> Contest:
        now[0] += 7
        raise KeyboardInterrupt

    progress.once(Placed, whole)
    with pytest.raises(KeyboardInterrupt):
        progress.once(Contest, fails)
    for one in (progress, Progress(tmp_path, None)):
        assert one.spent == 12  # the part is in its whole
        assert one.seconds("contest") == 7
        assert one.seconds("winner") is None
        assert one.found(Placed) == Placed()
        assert one.found(Contest) is None


def test_what_was_given_up_is_remembered_with_its_reason(tmp_path: Path) -> None:
    Progress(tmp_path, REQUEST).leave_out("search", "no time")
    assert Progress(tmp_path, None).left_out("search") == "no time"
    assert Progress(tmp_path, None).left_out("profile") == ""
    assert not Progress(tmp_path, None).has("search")


def test_another_question_is_refused_but_prices_may_change(tmp_path: Path) -> None:
    Progress(tmp_path, FitRequest(corpus="x", seed=1))
    with pytest.raises(ConfigError, match=r"seed is 1 in the run .* and 2 now"):
        Progress(tmp_path, FitRequest(corpus="x", seed=2))
    with pytest.raises(ConfigError, match=r"time is 600.0 in the run .* and 0.0 now"):
        Progress(tmp_path, FitRequest(corpus="x", seed=1, steps=5))
    Progress(tmp_path, FitRequest(corpus="x", seed=1, price=0.5))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"format": "other", "ask": {}, "phases": {}}', "format must be one of"),
        ('{"format": "parformer-fit-notes-1", "phases": 3}', "lacks 'ask'"),
        ('{"format": "parformer-fit-notes-1", "ask": 3, "phases": {}}', "mapping"),
        ('{"format": "parformer-fit-notes-1", "ask": {}, "phases": {"size": 3}}', "a table, got 3"),
        ('{"format": "parformer-fit-no', "is not JSON"),
    ],
)
def test_a_broken_journal_says_what_to_remove(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(FolderError, match=f"{why}.*remove .* and fit anew") as error:
        Progress(tmp_path, REQUEST)
    assert "\n" not in str(error.value)


def test_a_phase_of_another_shape_is_refused(tmp_path: Path) -> None:
    Progress(tmp_path, REQUEST)
    values = json.loads((tmp_path / FILE).read_text())
    values["phases"]["contest"] = {"seconds": 1.0, "result": {"steps": "many"}}
    (tmp_path / FILE).write_text(json.dumps(values))
    with pytest.raises(FolderError, match=r"phase 'contest' cannot be read.*fit anew"):
        Progress(tmp_path, None).found(Contest)


def test_a_folder_without_a_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no fit at"):
        Progress(tmp_path, None)


def test_every_phase_that_version_0_1_wrote_is_read(tmp_path: Path) -> None:
    shutil.copy(FILES / "fit-notes-0.1.json", tmp_path / FILE)
    progress = Progress(tmp_path, None)
    stored = json.loads((tmp_path / FILE).read_text())["phases"]
    kinds = {kind.PHASE: kind for kind in PhaseResult.__subclasses__()}
    assert set(kinds) >= {"text", "size", "profile", "search", "sizes", "rates", "contest"}
    for name, kind in kinds.items():
        found = progress.found(kind)
        assert found is not None, name
        again = json.loads(json.dumps(found.to_dict()))
        assert kind.from_dict(again) == found
        if name not in ("size", "sizes"):  # a configuration says more by now
            old = stored[name]["result"]
            assert {key: again[key] for key in old} == tidy(old)
    assert progress.number("contest.steps", lambda: 0) == 30
    assert progress.need(Rates).models["baseline"].rate > 0


def tidy(values: Any) -> Any:
    """With what 0.1 left out where a finalist was dropped."""
    if isinstance(values, dict) and "dropped" in values:
        return {"segments": None, "learned": None, "steps": None, **values}
    if isinstance(values, dict):
        return {name: tidy(one) for name, one in values.items()}
    return [tidy(one) for one in values] if isinstance(values, list) else values
