"""Is it said in time how threads wait, and only where nobody has said it?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from parformer import threads
from parformer.errors import ConfigError
from parformer.measure.device import check_threads

TOLD = "import os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"


def said(code: str) -> str:
    """What a new process prints, for whom nobody has said how to wait."""
    environment = {n: v for n, v in os.environ.items() if n not in threads.KNOWN}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_it_is_set_before_torch_is_loaded() -> None:
    assert said(f"import parformer; {TOLD}") == f"{threads.SPINS} False"
    code = f"from parformer.cli import main; main(['design', '--par', '8']); {TOLD}"
    assert said(code).endswith(f"{threads.SPINS} False")


@pytest.mark.parametrize("name", threads.KNOWN)
def test_what_the_user_said_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_late", False)
    given = {name: "7"}
    threads.settle(given, loaded=True)
    assert given == {name: "7"}
    assert threads.too_late() == ""


def test_where_torch_came_first_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_late", False)
    given: dict[str, str] = {}
    threads.settle(given, loaded=True)
    assert given == {}
    assert "Import parformer first" in threads.too_late()
    assert "Import parformer first" in said(
        "import torch, parformer; from parformer import threads; print(threads.too_late())"
    )


def test_no_machine_runs_any_number_of_threads() -> None:
    check_threads(None)
    check_threads(threads.most_threads())
    for asked in (0, threads.most_threads() + 1):
        with pytest.raises(ConfigError, match=f"got {asked}"):
            check_threads(asked)
