"""Is a processor without a working matrix unit spared, and every other left alone?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from parformer.kernels import tiles
from parformer.kernels.tiles import SWITCH, WITHOUT, avoid_broken_tiles

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
AMX = "flags : amx_bf16 amx_tile"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(SWITCH, "")  # so that what the test sets is taken back
    monkeypatch.delenv(SWITCH)
    return tmp_path / "cache"


def test_what_would_die_is_avoided_and_remembered(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert avoid_broken_tiles(DIES, AMX)
    assert os.environ[SWITCH] == WITHOUT
    assert [p.read_text() for p in clean.iterdir()] == ["broken"]
    monkeypatch.delenv(SWITCH)
    monkeypatch.setattr(tiles.subprocess, "run", None)  # not tried again
    assert avoid_broken_tiles(DIES, AMX)


def test_what_works_is_used(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not avoid_broken_tiles("pass", AMX)
    assert SWITCH not in os.environ
    monkeypatch.setattr(tiles.subprocess, "run", None)
    assert not avoid_broken_tiles("pass", AMX)
    # an ordinary error, such as a missing package, says nothing about the processor
    monkeypatch.undo()
    monkeypatch.setenv("PARFORMER_CACHE", str(clean))
    assert not avoid_broken_tiles("raise SystemExit(1)", AMX)


def test_other_processors_and_wishes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not avoid_broken_tiles(DIES, "flags : avx512_bf16")
    monkeypatch.setenv(SWITCH, "AVX2")
    assert not avoid_broken_tiles(DIES, AMX)
    assert os.environ[SWITCH] == "AVX2"


def test_a_cache_that_cannot_be_written_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "file"))
    assert avoid_broken_tiles(DIES, AMX)


def test_bf16_does_not_end_the_process_here() -> None:
    """Whatever this machine is."""
    words = (
        "import parformer.blocks, torch; x = torch.ones(64, 64).bfloat16(); "
        "print(float((x @ x)[0, 0]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.stdout.strip() == "64.0", done.returncode
