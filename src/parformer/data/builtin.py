"""Which text does every Python bring along?

`python-docs` is the language reference that `help()` shows, `python-source` the standard
library's own code, without its tables and copies. Both are the same wherever the same version
of Python runs, so examples and tests need no download.

>>> files, families = builtin_files("python-source")
>>> "encodings/cp852.py" in files, any({"ntpath.py", "posixpath.py"} <= {*f} for f in families)
(False, True)
"""

from __future__ import annotations

import os
import platform
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from functools import lru_cache
from itertools import combinations
from pathlib import Path

from parformer.errors import CorpusError

ABOUT = {
    "python-docs": "the language reference inside Python {version}",
    "python-source": "the standard library of Python {version}, without tests, tables and copies",
}
OLDER = {
    "python-source-0.1": "the standard library of Python {version} as Parformer 0.1 had it, "
    "with its copies",
}
"""What a name stood for before; runs that were started then go on with it."""
LICENCE = "PSF-2.0"

LEFT_OUT = {
    "__pycache__",
    "_bundled",
    "dist-packages",
    "idle_test",
    "site-packages",
    "test",
    "tests",
}
"""Folders that hold tests or what came from elsewhere."""


SUBSTANTIAL = 12
"""Shorter lines are the same in many files by chance."""
EVERYWHERE = 20
"""Lines that stand in more files than this say nothing about who copied from whom."""
COPY = 0.5
"""A file is left out when so much of it stands in files before it."""
TABLE = 0.75
"""A file is left out when so much of it is lines that begin with a number or a string."""
RELATED, RELATED_BYTES = 0.1, 256
"""Two files belong together when they have so much of the smaller one in common."""

Texts = tuple[dict[str, Path | bytes], list[list[str]]]
"""Files by name in their order, and the families of those that belong in one split."""


def is_builtin(name: str) -> bool:
    return name in ABOUT or name in OLDER


def older(name: str) -> list[str]:
    """The names under which older texts of a built-in corpus are kept, the youngest first.

    >>> older("python-source"), older("python-docs")
    (['python-source-0.1'], [])
    """
    return sorted((old for old in OLDER if old.rpartition("-")[0] == name), reverse=True)


def about(name: str) -> str:
    return f"{(ABOUT | OLDER)[name].format(version=platform.python_version())}; {LICENCE}"


def builtin_files(name: str) -> Texts:
    """The texts of a built-in corpus by name, in their order, and which belong together."""
    if name == "python-docs":
        return python_docs(), []
    return _library(standard_library(), copies=name in OLDER)


@lru_cache(maxsize=4)
def _library(root: Path, *, copies: bool) -> Texts:
    """Looked at once in a process: it takes a second, and nobody changes it meanwhile."""
    files = library_files(root)
    return (files, []) if copies else without_copies(files)


def python_docs() -> dict[str, Path | bytes]:
    from pydoc_data.topics import topics

    return {name: topics[name].encode() for name in sorted(topics)}


def standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def library_files(root: Path) -> dict[str, Path | bytes]:
    """Python files below a folder that are the same on every machine, and valid UTF-8."""
    root = root.resolve()
    found: dict[str, Path | bytes] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [
            f for f in folders if f not in LEFT_OUT and not f.startswith(("config-", "."))
        ]
        for name in names:
            path = Path(folder, name)
            # _sysconfigdata says how and where this very Python was built.
            if name.endswith(".py") and not name.startswith("_sysconfigdata") and _is_utf8(path):
                found[path.relative_to(root).as_posix()] = path
    if not found:
        raise CorpusError(f"this Python has no source files at {str(root)!r}; use python-docs")
    return dict(sorted(found.items()))


def _is_utf8(path: Path) -> bool:
    """Whether a file is ours to read and valid; what cannot be read is no part of the library."""
    try:
        if path.is_symlink():
            return False
        path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return True


def without_copies(files: Mapping[str, Path | bytes]) -> Texts:
    """The files that are neither tables nor copies of files before them, and their families.

    What a model could recite from train should not stand in valid and test: tables by the
    dozen, modules that began as copies of others, and the text of python-docs.
    """
    kept: dict[str, frozenset[bytes]] = {}
    seen: set[bytes] = set()
    for name, source in files.items():
        if name.startswith("pydoc_data/"):
            continue
        lines = _substantial_lines(source if isinstance(source, bytes) else source.read_bytes())
        size = _size(lines)
        if size and (_size(lines & seen) >= COPY * size or _is_table(lines)):
            continue
        kept[name] = lines
        seen |= lines
    return {name: files[name] for name in kept}, _families(kept)


def _substantial_lines(text: bytes) -> frozenset[bytes]:
    """The different lines of a text that are long enough to tell."""
    stripped = (line.strip() for line in text.splitlines())
    return frozenset(line for line in stripped if len(line) >= SUBSTANTIAL)


def _size(lines: Set[bytes]) -> int:
    return sum(map(len, lines))


def _is_table(lines: Set[bytes]) -> bool:
    entries = {
        line
        for line in lines
        if line[0] in b"'\"0123456789" and not line.startswith((b'"""', b"'''"))
    }
    return _size(entries) >= TABLE * _size(lines)


def _families(files: Mapping[str, Set[bytes]]) -> list[list[str]]:
    """The groups of files that have lines in common, each with its neighbours' neighbours.

    >>> lines = [f"{i:0300}".encode() for i in range(4)]
    >>> _families({"a": {*lines[:2]}, "b": {lines[2]}, "c": {lines[1]}, "d": {lines[3]}})
    [['a', 'c']]
    """
    once: set[bytes] = set()
    again: set[bytes] = set()
    for lines in files.values():
        again |= lines & once
        once |= lines
    owners = defaultdict(list)
    for name, lines in files.items():
        for line in again & lines:
            owners[line].append(name)
    common: Counter[tuple[str, str]] = Counter()
    for line, names in owners.items():
        if len(names) <= EVERYWHERE:
            for pair in combinations(names, 2):
                common[pair] += len(line)
    sizes = {name: _size(lines) for name, lines in files.items()}
    family = {name: [name] for name in files}
    for (one, other), size in common.items():
        enough = max(RELATED * min(sizes[one], sizes[other]), RELATED_BYTES)
        if size >= enough and family[one] is not family[other]:
            family[one] += family[other]
            for name in family[other]:
                family[name] = family[one]
    found = {min(names): sorted(names) for names in family.values() if len(names) > 1}
    return [found[first] for first in sorted(found)]
