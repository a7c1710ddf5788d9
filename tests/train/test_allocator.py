"""Memory is kept where the C library can, and nothing breaks where it cannot."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from parformer.train import allocator

PROGRAM = """
import resource, torch
{call}
def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(24 * 2**20)  # 96 MB, more than the C library keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(10)  # until what is freed and what is asked for fit together
print(faults(6))
"""


def has_gnu_library() -> bool:
    return sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")


@pytest.mark.skipif(not has_gnu_library(), reason="needs the GNU C library")
def test_freed_memory_stays_with_the_process() -> None:
    def run(call: str) -> int:
        program = [sys.executable, "-c", PROGRAM.format(call=call)]
        return int(
            subprocess.run(program, capture_output=True, check=True, text=True).stdout.split()[-1]
        )

    pages = 6 * 96 * 2**20 // 4096
    without_huge_pages = "import parformer.train.allocator as a; a.ask_for_huge_pages = print"
    assert run(f"{without_huge_pages}; assert a.keep_memory()") < pages / 10
    assert run("") > 0.9 * pages


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_left_alone(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("asked a foreign library"))
    assert not allocator.keep_memory()


def test_a_library_without_the_setting_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert not allocator.keep_memory()


def test_a_library_that_refuses_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(name: int, value: int) -> int:
        asked.append(name)
        return 0

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=refuse))
    assert not allocator.keep_memory()
    assert asked
