"""How are models and checkpoints kept on disk?

A folder of plain files, and a `manifest.json` with the SHA-256 of every one, written last.
A folder appears whole or not at all, and a damaged or foreign one is refused by name.
Nothing in it can run code.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TypeAlias

import safetensors
import safetensors.torch
from torch import Tensor

from parformer.errors import FolderError
from parformer.store import whole
from parformer.store.faults import failpoint
from parformer.store.files import Json, reason, sha256, sync
from parformer.store.files import read_json as read_plain_json
from parformer.store.sparse import with_zeros

FORMAT = "parformer-model-1"
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
MANIFEST = "manifest.json"
REQUIRED, OPTIONAL = {CONFIG, WEIGHTS}, {TOKENIZER}
"""The files of a model folder."""

Content: TypeAlias = bytes | Mapping[str, Tensor]
"""What a file holds: bytes, or tensors by name."""


def write_model(
    path: Path,
    weights: Mapping[str, Tensor],
    config: Json,
    tokenizer: str | None = None,
) -> None:
    """A model's weights and configuration, and the tokenizer it was trained with."""
    files: dict[str, Content] = {WEIGHTS: weights, CONFIG: json_bytes(config)}
    if tokenizer is not None:
        files[TOKENIZER] = tokenizer.encode()
    write_folder(path, FORMAT, files)


def write_folder(path: Path, form: str, files: Mapping[str, Content]) -> None:
    """Write everything beside the folder, make it durable, then move it into place."""
    needed = sum(size_of(content) for content in files.values())
    try:
        with contextlib.suppress(FileNotFoundError):
            path.lstat()  # a name that no folder can have is refused here
        if path.exists() and not (
            path.is_dir() and (_is_ours(path, form) or not any(path.iterdir()))
        ):
            raise FolderError(f"{str(path)!r} exists and is no model folder; choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FolderError(f"cannot write to {str(path)!r}: {reason(error)}") from None
    try:
        free = shutil.disk_usage(path.parent).free
        if free < needed:
            raise OSError(errno.ENOSPC, f"only {free:,} bytes are free")
        with whole.beside(path) as beside:
            for name, content in files.items():
                write_content(beside / name, content)
                failpoint("folder.file-written")
            sums = {name: sha256(beside / name) for name in sorted(files)}
            failpoint("folder.before-manifest")
            # No line end: without its last byte, whatever it is, a manifest must not read as whole.
            manifest = json.dumps({"format": form, "sha256": sums}, indent=2)
            write_content(beside / MANIFEST, manifest.encode())
            sync(beside)
            failpoint("folder.before-rename")
            whole.replace(beside, path)
            failpoint("folder.after-rename")
            sync(path.parent)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise FolderError(
            f"could not write {str(path)!r} ({needed:,} bytes needed): {reason(error)}"
        ) from None


def write_content(file: Path, content: Content) -> None:
    """A new file, durable, that whoever the umask lets may read."""
    file.write_bytes(content if isinstance(content, bytes) else b"")
    if not isinstance(content, bytes):
        mode = file.stat().st_mode
        tensors = {key: t.contiguous().cpu() for key, t in content.items()}
        safetensors.torch.save_file(tensors, file)
        file.chmod(mode)  # the library lets nobody else read
    sync(file)


def size_of(content: Content) -> int:
    if isinstance(content, bytes):
        return len(content)
    return sum(t.numel() * t.element_size() for t in content.values())


def json_bytes(value: Json) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def read_model(path: Path) -> tuple[Json, dict[str, Tensor]]:
    """Configuration and weights, after every checksum was found right."""
    check_folder(path, FORMAT, REQUIRED, OPTIONAL)
    return read_json(path, CONFIG), with_zeros(read_tensors(path / WEIGHTS))


def read_tokenizer_file(path: Path) -> str | None:
    """The text of a model folder's tokenizer, if it has one."""
    names = check_folder(path, FORMAT, REQUIRED, OPTIONAL, only=OPTIONAL)
    return (path / TOKENIZER).read_text("utf-8") if TOKENIZER in names else None


def check_folder(
    path: Path,
    form: str,
    required: Set[str],
    optional: Set[str] = frozenset(),
    only: Set[str] | None = None,
) -> set[str]:
    """The files that a folder of ours lists, after the checksums (of `only` some) were right."""
    try:
        if not path.is_dir():
            raise FolderError(f"no model folder at {str(path)!r}")
    except OSError as error:
        raise FolderError(f"no model folder at {str(path)!r}: {error.strerror}") from None
    manifest = read_json(path, MANIFEST)
    if manifest.get("format") != form:
        raise FolderError(
            f"{str(path)!r} is no model folder of this version: its manifest says "
            f"{manifest.get('format')!r}, not {form!r}"
        )
    sums = manifest.get("sha256")
    if not isinstance(sums, dict) or not required <= set(sums) <= required | optional:
        listed = " and ".join(sorted(required))
        raise FolderError(f"{str(path / MANIFEST)!r} does not list {listed}")
    for name, expected in sums.items():
        if only is not None and name not in only:
            continue
        file = path / name
        if file.is_symlink() or not file.is_file():
            raise FolderError(
                f"{str(file)!r} is missing or no plain file; copy the whole folder again"
            )
        try:
            found = sha256(file)
        except OSError as error:
            raise FolderError(f"cannot read {str(file)!r}: {reason(error)}") from None
        if found != expected:
            raise FolderError(f"{str(file)!r} is damaged: its SHA-256 differs from the manifest's")
    return set(sums)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, copied into memory."""
    try:
        return safetensors.torch.load(file.read_bytes())
    except OSError as error:
        raise FolderError(f"cannot read {str(file)!r}: {reason(error)}") from None
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise FolderError(f"{str(file)!r} is not a safetensors file: {error}") from None


def _is_ours(path: Path, form: str) -> bool:
    try:
        return read_json(path, MANIFEST).get("format") == form
    except FolderError:
        return False


def read_json(path: Path, name: str) -> Json:
    """A file of a folder that should be one of ours."""
    if not os.path.lexists(path / name):
        raise FolderError(f"{str(path)!r} is no model folder: {name}: No such file or directory")
    return read_plain_json(path / name)
