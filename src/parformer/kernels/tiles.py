"""Does the matrix unit that this processor claims to have really work?

Some virtual machines announce AMX, and end any process that multiplies in bf16 with it: an
illegal instruction cannot be caught. So a process of its own tries it once, and where it dies
oneDNN is told to do without. Whoever sets ONEDNN_MAX_CPU_ISA has decided for themselves.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from parformer.errors import FolderError
from parformer.kernels.cpu import describe_cpu
from parformer.store.files import cache_folder, replace_file

SWITCH, WITHOUT = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
TRIAL = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); assert (x @ x)[0, 0] == 64"
PATIENCE = 120
"""Seconds that the trial may take; it takes three."""


def avoid_broken_tiles(trial: str = TRIAL, cpu: str | None = None) -> bool:
    """Tell oneDNN, before it is used, not to use what would end the process; whether it was told.

    The answer is remembered in the cache folder for this processor and torch, and handed on to
    processes that are started from here.
    """
    cpu = describe_cpu() if cpu is None else cpu
    if SWITCH in os.environ or "amx_bf16" not in cpu:
        return False
    if works(trial, cpu):
        return False
    os.environ[SWITCH] = WITHOUT
    return True


def works(trial: str, cpu: str) -> bool:
    """Whether the trial ends well, as remembered or as tried now."""
    key = hashlib.sha256(f"{cpu}\0{version('torch')}\0{trial}".encode()).hexdigest()[:24]
    note: Path | None = None
    try:
        note = cache_folder() / f"tiles-{key}"
        if note.is_file():
            return note.read_text() == "fine"
    except (OSError, RuntimeError, ValueError):
        note = None
    command = [sys.executable, "-I", "-c", trial]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return True  # nothing was learned
    fine = done.returncode >= 0
    if note is not None:
        try:
            note.parent.mkdir(parents=True, exist_ok=True)
            replace_file(note, "fine" if fine else "broken")
        except (OSError, FolderError):
            pass
    return fine
