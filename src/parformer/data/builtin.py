"""Which text does every Python bring along?

`python-docs` is the language reference that `help()` shows, `python-source` the standard
library's own code. Both are the same wherever the same version of Python runs, so examples and
tests need no download.
"""

from __future__ import annotations

import os
import platform
import sysconfig
from pathlib import Path

from parformer.errors import CorpusError

ABOUT = {
    "python-docs": "the language reference inside Python {version}",
    "python-source": "the standard library of Python {version}, without its tests",
}
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


def about(name: str) -> str:
    return f"{ABOUT[name].format(version=platform.python_version())}; {LICENCE}"


def builtin_files(name: str) -> dict[str, Path | bytes]:
    """The texts of a built-in corpus by name, in their order."""
    return python_docs() if name == "python-docs" else python_source(standard_library())


def python_docs() -> dict[str, Path | bytes]:
    from pydoc_data.topics import topics

    return {name: topics[name].encode() for name in sorted(topics)}


def standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def python_source(root: Path) -> dict[str, Path | bytes]:
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
