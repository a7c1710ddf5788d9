"""How are all kernels compiled for machines that have no compiler?"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import platform
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parformer import __version__
from parformer.errors import ConfigError
from parformer.kernels import coded, convolution, extension, native, recurrence
from parformer.kernels.decoder import library
from parformer.kernels.prebuilt import INDEX, PACKAGE, Built, key_of
from parformer.store.files import replace_file

NATIVE = "-march=native"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A source to compile."""

    source: Path
    flags: tuple[str, ...] = ()
    parts: tuple[Path, ...] = ()

    @property
    def code(self) -> bytes:
        return b"".join(file.read_bytes() for file in (self.source, *self.parts))


def kernels() -> Iterator[Kernel]:
    """Everything that is ever compiled."""
    headers = tuple(sorted(library.SOURCE.parent.glob("*.h")))
    yield Kernel(native.SOURCE, parts=native.PARTS)
    yield Kernel(recurrence.SOURCE, recurrence.FLAGS)
    yield Kernel(convolution.SOURCE)
    yield Kernel(coded.SOURCE, library.FLAGS, headers)
    yield Kernel(library.SOURCE, library.FLAGS, headers)
    yield Kernel(Path(__file__).parents[1] / "counts" / "look.cpp")


def make_wheel(
    folder: Path, levels: Sequence[str], tell: Callable[[str, float], None]
) -> tuple[Path, tuple[Built, ...]]:
    """Compile every kernel for every level, into a wheel for machines like this one."""
    machine = platform.machine()
    if machine != "x86_64" or platform.system() != "Linux":
        raise ConfigError(f"a wheel of kernels is made for x86_64 under Linux, not for {machine}")
    compilers = extension.find_compilers()
    if not compilers:
        raise ConfigError(f"there is no C++ compiler; install one of {extension.COMPILERS[0]}, …")
    all_kernels = list(kernels())
    total, found, files = len(all_kernels) * len(levels), list[Built](), dict[str, bytes]()
    with tempfile.TemporaryDirectory(prefix="parformer-") as place:
        for level in levels:
            flags = flags_for(level)
            for kernel in all_kernels:
                name = kernel.source.stem
                tell(f"{name} for {level}", len(found) / total)
                target = Path(place) / f"{name}-{level}.so"
                own = (*flags, *kernel.flags)
                extension.compile_source(compilers, kernel.source, own, target)
                data = target.read_bytes()
                files[target.name] = data
                key = key_of(kernel.code, kernel.flags)
                digest = hashlib.sha256(data).hexdigest()
                found.append(Built(name, key, level, target.name, digest))
    return write_wheel(folder, files, found), tuple(found)


def flags_for(level: str) -> tuple[str, ...]:
    """How a compiler is asked for a level's instructions."""
    base = level.removesuffix("-vnni")
    own = [f"-march={base}"] + ["-mavx512vnni"] * (base != level)
    return (*own, *(flag for flag in extension.FLAGS if flag != NATIVE))


def build_here(tell: Callable[[str, float], None]) -> int:
    """Compile every kernel for this very CPU, so that nobody waits for it later; how many."""
    found = list(kernels())
    for number, one in enumerate(found):
        tell(one.source.stem, number / len(found))
        extension.load(one.source, flags=one.flags, seconds=3, parts=one.parts)
    return len(found)


def write_wheel(folder: Path, files: dict[str, bytes], built: Sequence[Built]) -> Path:
    """A wheel as pip installs it: the package, and what the format asks for."""
    libc, number = platform.libc_ver()
    tag = f"manylinux_{number.replace('.', '_')}" if libc == "glibc" else "linux"
    tag = f"py3-none-{tag}_{platform.machine()}"
    about = f"{PACKAGE}-{__version__}.dist-info"
    index = {"parformer": __version__, "libraries": [one.to_dict() for one in built]}
    content = {
        f"{PACKAGE}/__init__.py": b'"""Kernels of Parformer, compiled."""\n',
        f"{PACKAGE}/{INDEX}": json.dumps(index, indent=1).encode(),
        **{f"{PACKAGE}/{name}": data for name, data in files.items()},
        f"{about}/METADATA": (
            f"Metadata-Version: 2.1\nName: {PACKAGE.replace('_', '-')}\nVersion: {__version__}\n"
            "Summary: Kernels of Parformer, compiled; they need libgomp\n"
        ).encode(),
        f"{about}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: parformer\nRoot-Is-Purelib: false\nTag: {tag}\n"
        ).encode(),
    }
    record = [f"{name},sha256={digest_of(data)},{len(data)}" for name, data in content.items()]
    content[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{PACKAGE}-{__version__}-{tag}.whl"
    replace_file(path, room.getvalue())
    return path


def digest_of(data: bytes) -> str:
    """As a wheel's record has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
