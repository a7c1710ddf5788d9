"""A library is built once, for this CPU only, and nothing that goes wrong outlives the process."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from parformer.kernels import extension
from parformer.kernels.extension import Unavailable, load

pytestmark = pytest.mark.skipif(not extension.find_compilers(), reason="needs a C++ compiler")

CPU = """processor : 0
vendor_id : GenuineIntel
model name : Xeon
cpu MHz : {mhz}
flags : fpu {flags}

processor : 1
vendor_id : GenuineIntel
model name : Xeon
cpu MHz : 1234.5
flags : fpu {flags}
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A function that is quick to compile, and an empty cache."""
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "seven.cpp"
    file.write_text('extern "C" int seven() { return 7; }\n')
    return file


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "find_compilers", list)


def kept() -> list[Path]:
    return sorted((extension.cache_folder() / "kernels").glob("*.so"))


def build(source: Path) -> Path:
    """Where the library is, after it was built as if by another process."""
    # a library of this process would stay in use, whatever became of its file
    code = f"from parformer.kernels.extension import *; load(Path({str(source)!r}), seconds=1)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    (found,) = kept()
    return found


def test_built_once_and_said_so(source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert load(source, seconds=3).seven() == 7
    said = capfd.readouterr()
    assert said.err == "parformer: building the seven kernel for this CPU, once: about 3 s\n"
    assert said.out == ""
    assert len(kept()) == 1
    assert load(source, seconds=3).seven() == 7
    assert capfd.readouterr().err == ""


def test_what_is_kept_needs_no_compiler(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(source)
    monkeypatch.setattr(extension, "find_compilers", list)
    assert load(source, seconds=1).seven() == 7


def test_without_a_compiler_the_reason_is_given(source: Path, no_compiler: None) -> None:
    with pytest.raises(Unavailable, match="no C\\+\\+ compiler; install one of g\\+\\+"):
        load(source, seconds=1)


def test_other_systems_are_left_alone(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension.sys, "platform", "darwin")
    with pytest.raises(Unavailable, match="darwin"):
        load(source, seconds=1)


@pytest.mark.parametrize("change", ["cpu", "machine", "libc", "torch", "flags", "source"])
def test_a_library_for_something_else_is_not_taken(
    source: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(source)
    flags: tuple[str, ...] = ()
    if change == "cpu":
        monkeypatch.setattr(extension, "describe_cpu", lambda: "flags : fpu sse9")
    elif change == "machine":
        monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    elif change == "libc":
        monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "1.0"))
    elif change == "torch":
        monkeypatch.setattr(extension, "version", lambda name: "9.9.9")
    elif change == "flags":
        flags = ("-DANYTHING",)
    else:
        source.write_text('extern "C" int seven() { return 3 + 4; }\n')
    monkeypatch.setattr(extension, "find_compilers", list)
    with pytest.raises(Unavailable):
        load(source, flags=flags, seconds=1)


def test_a_cpu_is_known_by_what_a_compiler_asks(tmp_path: Path) -> None:
    def describe(**values: str) -> str:
        file = tmp_path / "cpuinfo"
        file.write_text(CPU.format(**({"mhz": "800", "flags": "avx2"} | values)))
        return extension.describe_cpu(file)

    assert describe() == describe(mhz="3000.1")
    assert describe() != describe(flags="avx2 avx512f")
    assert extension.describe_cpu(tmp_path / "missing") == ""
    assert "flags" in extension.describe_cpu() or "Features" in extension.describe_cpu()


def test_for_an_unknown_cpu_nothing_is_kept(
    source: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extension, "describe_cpu", lambda: "")
    assert load(source, seconds=1).seven() == 7
    assert "for this run: about 1 s" in capfd.readouterr().err
    assert kept() == []


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "longer", "no library"])
def test_a_damaged_library_is_made_anew(source: Path, damage: str) -> None:
    path = build(source)
    whole = path.read_bytes()
    half = len(whole) // 2
    harmed = {
        "empty": b"",
        "cut": whole[:half],
        "changed": whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :],
        "longer": whole + b"\0",
    }
    if damage == "no library":
        extension.put(b"something else, but whole", path)
    else:
        path.write_bytes(harmed[damage])
    assert load(source, seconds=1).seven() == 7
    assert extension.is_whole(path)
    assert len(path.read_bytes()) > half
    assert list(path.parent.iterdir()) == [path]


def test_leftovers_of_a_killed_build_do_not_count(source: Path) -> None:
    path = build(source)
    leftover = path.with_name(f"{path.name}.abc.part")
    leftover.write_bytes(path.read_bytes()[:99])
    path.unlink()
    assert load(source, seconds=1).seven() == 7
    assert kept() == [path]


def test_a_build_that_is_killed_stands_in_nobodys_way(source: Path, tmp_path: Path) -> None:
    slow = tmp_path / "bin" / "g++"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    code = f"from parformer.kernels.extension import *; load(Path({str(source)!r}), seconds=1)"
    environment = os.environ | {"PATH": f"{slow.parent}:{os.environ['PATH']}"}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        assert b"building" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert kept() == []
    assert load(source, seconds=1).seven() == 7
    assert len(kept()) == 1


def test_an_interrupted_write_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(extension.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(source, seconds=1)
    assert list((extension.cache_folder() / "kernels").iterdir()) == []


def test_several_may_build_at_once(source: Path) -> None:
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(load(source, seconds=1).seven()))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [7, 7, 7]
    assert list((extension.cache_folder() / "kernels").iterdir()) == kept()
    assert len(kept()) == 1


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_could_have_written_is_not_run(
    source: Path, what: str, no_compiler: None
) -> None:
    path = build(source)
    (path.parent if what == "folder" else path).chmod(0o777)
    with pytest.raises(Unavailable):
        load(source, seconds=1)


def test_what_others_own_is_not_run(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build(source)
    assert extension.is_ours(path)
    monkeypatch.setattr(extension.os, "geteuid", lambda: os.getuid() + 1)
    assert not extension.is_ours(path)


def test_without_a_cache_it_is_built_for_this_run(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "file"))
    assert load(source, seconds=1).seven() == 7


def test_a_full_disk_does_not_matter(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(extension.os, "fsync", full)
    assert load(source, seconds=1).seven() == 7
    assert list((extension.cache_folder() / "kernels").iterdir()) == []


def test_a_source_that_makes_no_sense(source: Path) -> None:
    source.write_text("int seven() { return x; }\n")
    with pytest.raises(Unavailable, match=r"seven.cpp cannot be compiled: .*g?\+\+: .*"):
        load(source, seconds=1)
    assert kept() == []


def test_the_next_compiler_is_tried(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, missing = tmp_path / "g++", str(tmp_path / "missing++")
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    compilers = [missing, str(broken)]
    monkeypatch.setattr(extension, "find_compilers", lambda: compilers)
    with pytest.raises(Unavailable, match="left with 1"):
        load(source, seconds=1)
    compilers.append(next(filter(None, map(extension.shutil.which, extension.COMPILERS))))
    assert load(source, seconds=1).seven() == 7


def test_a_compiler_that_hangs_is_given_up(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = tmp_path / "g++"
    stuck.write_text("#!/bin/sh\nsleep 60\n")
    stuck.chmod(0o755)
    monkeypatch.setattr(extension, "find_compilers", lambda: [str(stuck)])
    monkeypatch.setattr(extension, "PATIENCE", 0.1)
    with pytest.raises(Unavailable, match=r"timed out after 0\.1"):
        load(source, seconds=1)
