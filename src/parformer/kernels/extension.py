"""How does C++ become functions of this process, once and for this very CPU?

`load` compiles a file, which takes seconds, and keeps the library in the cache folder for the
next process. Its name says for which source, flags, CPU and torch it
was made, so no other is ever taken for it. It is written beside its place and then renamed: a
build that was killed leaves nothing that counts, nobody waits for anybody, and where two
processes build at once the last one stays. A library that is damaged is made anew.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from parformer.errors import FolderError
from parformer.kernels import prebuilt
from parformer.kernels.cpu import describe_cpu
from parformer.store.files import cache_folder, replace_file

COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    *("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++17"),
    # vectors need these two; anything freer would let zeros and infinities come out wrong
    *("-fno-math-errno", "-fno-trapping-math"),
)
PATIENCE = 120.0
"""Seconds after which a compiler is taken to be stuck."""
DIGEST = hashlib.sha256().digest_size


class Unavailable(Exception):
    """Why nothing can be compiled here; whoever asked goes the plain way."""


def load(
    source: Path, *, flags: tuple[str, ...] = (), seconds: int, parts: Sequence[Path] = ()
) -> ctypes.CDLL:
    """The functions of a file, from the cache or else built, which takes about `seconds`.

    `parts` are the files that it includes.
    """
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"kernels are compiled on Linux only, not on {sys.platform}")
    name = source.stem
    code = b"".join(file.read_bytes() for file in (source, *parts))
    path = find_place(name, code, (*FLAGS, *flags))
    if path is not None and is_whole(path):
        with suppress(OSError):  # such as one that needs a newer C library
            return ctypes.CDLL(str(path))
    compilers = find_compilers()
    if not compilers:
        if (found := prebuilt.find(name, code, flags)) is not None:
            return found
        raise Unavailable(
            f"there is no C++ compiler; install one of {', '.join(COMPILERS)}, or a wheel that "
            "'parformer kernels build --wheel FOLDER' made on a machine that has one"
        )
    term = "once" if path is not None else "for this run"
    print(
        f"parformer: building the {name} kernel for this CPU, {term}: about {seconds} s",
        file=sys.stderr,
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="parformer-") as folder:
        built = Path(folder) / f"{name}.so"
        compile_source(compilers, source, (*FLAGS, *flags), built)
        if path is not None:
            # a full or read-only disk: the private one still serves
            with suppress(OSError, FolderError):
                put(built.read_bytes(), path)
                return ctypes.CDLL(str(path))
        try:
            return ctypes.CDLL(str(built))
        except OSError as error:
            raise Unavailable(f"the {name} kernel cannot be loaded: {error}") from None


def typed(function: Callable[..., None], arguments: int) -> Callable[..., None]:
    """Addresses and counts alike are 64 bits wide."""
    function.argtypes = (ctypes.c_void_p,) * arguments  # type: ignore[attr-defined]
    function.restype = None  # type: ignore[attr-defined]
    return function


def find_compilers() -> list[str]:
    return [found for found in map(shutil.which, COMPILERS) if found is not None]


def compile_source(
    compilers: Iterable[str], source: Path, flags: tuple[str, ...], target: Path
) -> None:
    complaint = ""
    for compiler in compilers:
        command = [compiler, *flags, str(source), "-o", str(target)]
        status, told = run_patiently(command)
        if status == 0:
            return
        complaint = f"{compiler}: {told.splitlines()[0] if told else f'left with {status}'}"
    raise Unavailable(f"{source.name} cannot be compiled: {complaint}")


def run_patiently(command: list[str]) -> tuple[int, str]:
    """A command's status and complaint; one that does not end is ended with all it started."""
    with tempfile.TemporaryFile() as told:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=told,
                start_new_session=True,
            )
            status = child.wait(PATIENCE)
        except OSError as error:
            return -1, str(error)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return -1, f"timed out after {PATIENCE:g} s"
        told.seek(0)
        return status, told.read(2**16).decode(errors="replace").strip()


# Where it is kept


def find_place(name: str, source: bytes, flags: tuple[str, ...]) -> Path | None:
    """Where a library belongs; None where it could be another CPU's or somebody else's."""
    cpu = describe_cpu()
    if not cpu:
        return None
    made_for = (*flags, cpu, platform.machine(), *platform.libc_ver(), version("torch"))
    key = hashlib.sha256(source + "\0".join(made_for).encode()).hexdigest()[:24]
    try:
        folder = cache_folder() / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter: nobody's home
        return None
    return folder / f"{name}-{key}.so" if is_ours(folder) else None


def is_ours(path: Path) -> bool:
    """Whether nobody else can have put something there: it is code, and will be run."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def is_whole(path: Path) -> bool:
    """Whether a library is there as it was written, with its digest at the end."""
    if not is_ours(path):
        return False
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(data[:-DIGEST]).digest() == data[-DIGEST:]


def put(code: bytes, path: Path) -> None:
    """Write a library and its digest, which loading does not mind, in one step."""
    replace_file(path, code + hashlib.sha256(code).digest(), mode=0o600)
