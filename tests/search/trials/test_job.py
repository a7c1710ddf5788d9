"""Does the better half go on, within the limit, and end with the same bits when stopped?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import parformer as pf
from parformer.cli import main
from parformer.errors import ConfigError, Stopped
from parformer.events import Event, Notice
from parformer.search.trials import job
from parformer.search.trials.job import effort
from parformer.search.trials.result import TrialsResult
from tests.fitting.office import write_text

SMALL = (
    "model.d_model=16", "model.d_inner=32", "model.n_head=2", "model.tgt_len=16",
    "model.mem_len=16", "train.batch=2", "train.precision=fp32", "train.kernels=plain",
)  # fmt: skip


def search(text: Path, run: Path, **changes: Any) -> TrialsResult:
    usual: dict[str, Any] = {
        "corpus": str(text), "run": run, "by": "trials", "choices": "rsfi", "layers": 4,
        "steps": 16, "changes": SMALL,
    }  # fmt: skip
    found = pf.search_placement(**(usual | changes))
    assert isinstance(found, TrialsResult)
    return found


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "words.txt", 3000)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "FIRST", 5)
    monkeypatch.setattr(job, "EXPECTED", 2)


def test_the_better_half_goes_on(text: Path, tmp_path: Path) -> None:
    found = search(text, tmp_path / "run")
    assert found.looks == (2, 4, 8, 16)
    assert [len(one.losses) for one in found.trials] == [4, 3, 2, 2, 1, 1, 1]
    first = sorted(one.losses[0] for one in found.trials)
    assert sorted(one.losses[0] for one in found.trials if len(one.losses) > 1) == first[:4]
    assert {one.how for one in found.trials} == {"usual", "random", "expected"}
    assert found.pattern == found.trials[0].pattern
    assert len({str(one.pattern) for one in found.trials}) == 7
    assert found.updates == 16 + 8 + 2 * 4 + 3 * 2
    assert TrialsResult.load(tmp_path / "run") == found
    page = (tmp_path / "run/report.html").read_text("utf-8")
    assert found.verdict() in page


def test_stopped_it_ends_as_if_it_never_was(text: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"steps": 19, "changes": (*SMALL, "train.schedule=cosine")}
    whole = search(text, tmp_path / "whole", **more)

    def stop(event: Event) -> None:
        if isinstance(event, Notice) and "go on to 4" in event.text:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, Stopped)):
        search(text, tmp_path / "run", watch=stop, **more)
    again = search(text, tmp_path / "run", **more)
    assert [one.losses for one in again.trials] == [one.losses for one in whole.trials]
    shutil.rmtree(tmp_path / "run" / job.TRAININGS)
    assert search(text, tmp_path / "run", **more).pattern == whole.pattern


def test_a_limit_is_kept_by_all(text: Path, tmp_path: Path) -> None:
    found = search(text, tmp_path / "run", limit="flops=0.8x")
    assert all(one.cost is not None and one.cost <= 0.8 for one in found.trials)
    assert (tmp_path / "run" / job.PRICES).is_file()


@pytest.mark.parametrize(("by", "hows"), [("usual", {"usual"}), ("random", {"random"})])
def test_other_ways(by: str, hows: set[str], text: Path, tmp_path: Path) -> None:
    found = search(text, tmp_path / "run", by=by, steps=8)
    assert {one.how for one in found.trials} == hows


def test_the_command_line_tells_it(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["search", "placement", "--by", "usual", "--corpus", str(text), "--layers", "4"]
    words += ["--steps", "8", "--run", str(tmp_path / "run"), *(f"--set={one}" for one in SMALL)]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "(sf)x2" in told
    assert "parformer train pocket-search --corpus" in told
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["by"] == "usual"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"penalty": "flops=0.1"}, "a penalty is for the supernet"),
        ({"choices": "s[heads=1]s[heads=2]f"}, "has one twice"),
        ({"limit": "flops=0.001x"}, "flops"),
        ({"retrain": True}, "leave --retrain out"),
    ],
)
def test_what_cannot_be_tried_is_refused(
    changes: dict[str, Any], message: str, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        search(text, tmp_path / "run", **changes)


def test_effort_is_told_in_whole_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "FIRST", 16)
    monkeypatch.setattr(job, "EXPECTED", 8)
    # 24 for an eighth, 12 for another, 6 for a quarter, 3 for a half
    assert effort("trials", 3) == pytest.approx(24 / 8 + 12 / 8 + 6 / 4 + 3 / 2)
