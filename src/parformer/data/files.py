"""Which files does a folder or a pattern mean?

Plain text files below it, compressed or not, named relative to it. Hidden ones are left out,
and links are not followed: nothing that lies outside the given folder is ever read.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from parformer.data.reading import Piece, plain_name, read_pieces, unreadable
from parformer.data.splits import split_word
from parformer.errors import CorpusError

SNIFF = 2**13
"""Text has no NUL among this many bytes at its start."""

ENDINGS = (".txt", ".text", ".tokens", "")
"""What the files of splits end in, before any ending of compression."""


Files = tuple[dict[str, Path], int]
"""Text files by name, in their order, and how many others were left out as no text."""


def text_files(root: Path) -> Files:
    """All text files below a folder, by their names relative to it."""
    return _only_text(_walk(root.resolve(), "", depth=-1))


def matching_files(pattern: str) -> Files:
    """The text files that a pattern of `*`, `?`, `[…]` and `**` names."""
    parts = Path(pattern).expanduser().parts
    fixed = next(i for i, part in enumerate(parts) if is_pattern(part))
    root, wanted = Path(*parts[:fixed]), parts[fixed:]
    if ".." in wanted:
        raise CorpusError(f"{pattern!r} has '..' after a pattern; name the folder itself before it")
    if not root.is_dir():
        return {}, 0
    depth = -1 if "**" in wanted else len(wanted) - 1
    found = _walk(root.resolve(), "", depth)
    return _only_text((name, path) for name, path in found if _matches(name.split("/"), wanted))


def is_pattern(text: str) -> bool:
    return any(sign in text for sign in "*?[")


def inside(root: Path, name: str) -> Path | None:
    """A plain file below a folder under its own or a compressed name, if it really lies there."""
    for ending in ("", ".gz", ".xz", ".zst"):
        path = (root / (name + ending)).resolve()
        if path.is_relative_to(root.resolve()) and path.is_file():
            return path
    return None


def split_files(root: Path, *, any_ending: bool = False) -> dict[str, Path]:
    """The files of a folder whose names say which split they are; two for one are refused."""
    found: dict[str, list[str]] = {}
    for name in sorted(_names(root)):
        split, ending = split_word(plain_name(name)), Path(plain_name(name)).suffix
        if split is None or name.startswith(".") or not (any_ending or ending in ENDINGS):
            continue
        if inside(root, name) is not None:
            found.setdefault(split, []).append(name)
    if len(found) < 3:
        found = {split: names for split, names in found.items() if len(names) == 1}
    for split, names in found.items():
        if len(names) > 1:
            raise CorpusError(
                f"{str(root)!r} has more than one file for {split}: {', '.join(names)}; "
                "leave one, or give a pattern such as '*.txt' to share out all files"
            )
    return {split: (root / names[0]).resolve() for split, names in found.items()}


def _names(root: Path) -> list[str]:
    try:
        return [path.name for path in root.iterdir()]
    except OSError as error:
        raise unreadable(root, error) from None


def _walk(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, Path]]:
    """Regular files by relative name; depth says how many folders down, negative for all."""
    for name in sorted(_names(folder)):
        path = folder / name
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(path, error) from None
        if name.startswith("."):
            continue
        if stat.S_ISDIR(mode) and depth != 0:
            yield from _walk(path, f"{prefix}{name}/", depth - 1)
        elif stat.S_ISREG(mode):
            yield prefix + name, path


def _matches(names: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted:
        return not names
    if wanted[0] == "**":
        rest = wanted[1:] or ("*",)
        return any(_matches(names[i:], rest) for i in range(len(names)))
    return bool(names) and fnmatchcase(names[0], wanted[0]) and _matches(names[1:], wanted[1:])


def _only_text(files: Iterator[tuple[str, Path]]) -> Files:
    found = dict(sorted(files))
    texts = {name: path for name, path in found.items() if is_text(path)}
    return texts, len(found) - len(texts)


def is_text(path: Path) -> bool:
    """Whether the start of a file has no NUL, as text never has."""
    start = next(read_pieces([Piece(path)]), b"")
    return b"\0" not in start[:SNIFF]
