"""Which CPU is this, and which instructions does it have?"""

from __future__ import annotations

from pathlib import Path

CPU_FIELDS = {
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
}
"""What tells one kind of CPU from another in Linux's description of it, on x86 and on ARM."""


def describe_cpu(file: Path = Path("/proc/cpuinfo")) -> str:
    """What matters to a compiler about all the CPUs of this machine; nothing where unknown."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(sorted({x for x in lines if x.partition(":")[0].strip() in CPU_FIELDS}))


def cpu_flags() -> set[str]:
    """What all CPUs of this machine can do, as Linux names it."""
    lines = describe_cpu().splitlines()
    flags = [set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")]
    return set[str].intersection(*flags) if flags else set()
