"""Is every access within bounds, and does memory stay flat?"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from parformer.kernels import extension
from tests.conftest import small_model

pytestmark = pytest.mark.skipif(not extension.find_compilers(), reason="needs a C++ compiler")


def written(count: int) -> int:
    """Peak memory, in kilobytes, after so many more tokens of a few models."""
    for family, pattern in (("llama", "sfy"), ("transformer-xl", "srf"), ("sru", "ranl")):
        changes = {"mem_len": 50} if family != "llama" else {}
        model = small_model(family, pattern, torch.float32, **changes)
        decoder = model.native(batch=2)
        for number in range(count):
            decoder.step([[number % 13], [number % 7]])
            if number % 1000 == 0:
                decoder.load(decoder.state())
                decoder.rows([1, 0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_memory_stays_flat_for_some_thousand_tokens() -> None:
    before = written(1500)
    assert written(3000) - before < 2_000


@pytest.mark.soak
def test_memory_stays_flat_for_a_million_tokens() -> None:
    before = written(5_000)
    assert written(350_000) - before < 4_000


@pytest.mark.soak
def test_many_decoders_come_and_go() -> None:
    model = small_model("llama", "sf", torch.float32)

    def make(count: int) -> int:
        for _ in range(count):
            model.native(batch=3, threads=2).step([[1], [2], [3]])
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = make(200)
    assert make(3000) - before < 4_000


SANITIZED = """
import pytest, sys
from parformer.kernels.decoder import library
for level in ("best", "avx2", "portable"):
    library.LEVELS[level] = library.LEVELS["sanitized"]
chosen = [f"tests/native/test_{name}.py" for name in ("decoder", "quantized", "lending")]
sys.exit(pytest.main([*chosen, "-q", "-s", "-p", "no:cacheprovider", "-m", "not soak"]))
"""


@pytest.mark.soak
def test_every_access_is_within_bounds() -> None:
    """All tests of this folder again, with a build that checks addresses and arithmetic."""
    found = subprocess.run(
        ["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = {
        **os.environ,
        "LD_PRELOAD": str(Path(found).resolve()),
        "ASAN_OPTIONS": "detect_leaks=0",  # torch itself leaves some at the end
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_WAIT_POLICY": "passive",
    }
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
