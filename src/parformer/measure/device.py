"""Which machine said so, when, and with which versions?

>>> receipt = Receipt.issue("a doctest", threads=2)
>>> receipt.threads, receipt.parformer == parformer.__version__
(2, True)

Facts about the machine, never its name, its user or a path: receipts are published.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

import parformer
from parformer.errors import ConfigError
from parformer.records import Record
from parformer.threads import cores, most_threads, share_cores

CPUINFO = Path("/proc/cpuinfo")
BUSY = 0.1
"""Others that take more of the processor are told of."""
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Device(Record):
    """What a speed depends on. None means that this system does not tell."""

    cpu: str
    cores: int
    """Cores this process may use, which a container can make fewer than there are."""

    ram_bytes: int | None
    simd: str
    """The widest vector instructions that PyTorch uses here, such as AVX512."""

    mkldnn: bool
    """Whether PyTorch has oneDNN for its matrix products."""

    native_bf16: bool | None
    """Whether the CPU computes in bfloat16; without, oneDNN emulates it, more slowly."""

    accelerator: str | None
    os: str
    python: str
    torch: str
    threads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt(Record):
    """What goes with every speed or size that is claimed."""

    what: str
    """What was measured, in words."""

    device: Device
    date: str
    """In UTC, to the second: 2026-11-15T09:30:00Z."""

    parformer: str
    torch: str
    threads: int
    others: float | None = None
    """The share of the processor that others took meanwhile; None where nobody told."""

    @classmethod
    def issue(
        cls,
        what: str,
        *,
        threads: int | None = None,
        when: datetime | None = None,
        others: float | None = None,
    ) -> Receipt:
        """A receipt of this machine, for now unless another time is given."""
        device = describe_device(threads)
        when = datetime.now(UTC) if when is None else when.astimezone(UTC)
        return cls(
            what=what,
            device=device,
            date=when.strftime("%Y-%m-%dT%H:%M:%SZ"),
            parformer=parformer.__version__,
            torch=device.torch,
            threads=device.threads,
            others=None if others is None else round(others, 3),
        )

    @property
    def busy(self) -> bool:
        """Whether so much else went on that times are longer than they would be."""
        return self.others is not None and self.others > BUSY

    def line(self) -> str:
        """The receipt in one line for people."""
        machine = self.device.accelerator or self.device.cpu
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        versions = f"torch {self.torch.split('+')[0]}, parformer {self.parformer}"
        beside = f", on a busy machine: others took {self.others:.0%} of it" if self.busy else ""
        return f"{machine}, {threads}, {versions}, {self.date[:10]}{beside}"


def describe_device(threads: int | None = None) -> Device:
    """The machine this runs on; threads are PyTorch's own number unless given."""
    cpuinfo = CPUINFO.read_text(errors="replace") if CPUINFO.is_file() else ""
    return Device(
        cpu=_cpu_name(cpuinfo),
        cores=cores(),
        ram_bytes=_ram_bytes(),
        simd=torch.backends.cpu.get_cpu_capability(),
        mkldnn=torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        native_bf16=_native_bf16(cpuinfo),
        accelerator=_accelerator(),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=str(torch.__version__),
        threads=torch.get_num_threads() if threads is None else threads,
    )


def find_device(name: str, local: int = 0) -> torch.device:
    """A device by name; auto takes a GPU where there is one, of several the `local`-th."""
    if name == "auto":
        return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device("cuda", local) if name == "cuda" else torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"cannot use the device {name!r}: {reason}") from None
    return device


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads that no machine, or not this one, can run."""
    if threads is not None and threads < 1:
        raise ConfigError(f"threads must be at least 1, got {threads}")
    if threads is not None and threads > most_threads():
        raise ConfigError(
            f"threads must be at most {most_threads()} on {cores()} cores, got {threads}"
        )


@contextmanager
def pinned_threads(threads: int | None) -> Iterator[int]:
    """Compute with this many threads inside; None leaves the number as it is."""
    check_threads(threads)
    share_cores()
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _cpu_name(cpuinfo: str) -> str:
    named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    name = named[1] if named else platform.processor() or platform.machine() or "unknown CPU"
    return " ".join(re.sub(r"\((R|TM)\)", " ", name, flags=re.IGNORECASE).split())


def _ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _native_bf16(cpuinfo: str) -> bool | None:
    # x86 lists its abilities under "flags", ARM under "Features"
    listed = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return None if listed is None else not BF16_FLAGS.isdisjoint(listed[1].split())


def _accelerator() -> str | None:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    if torch.accelerator.is_available():
        return str(torch.accelerator.current_accelerator())
    return None
