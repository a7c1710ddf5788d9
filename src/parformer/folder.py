"""How is a model kept on disk?

A folder with `model.safetensors`, `config.json` and `manifest.json`, which holds the
SHA-256 of every other file and is written last. A folder appears whole or not at all, and
a damaged or foreign one is refused by name. Nothing in it can run code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from parformer.errors import FolderError

FORMAT = "parformer-model-1"
WEIGHTS, CONFIG, MANIFEST = "model.safetensors", "config.json", "manifest.json"
JSON_LIMIT = 4 * 2**20
"""No configuration or manifest of ours is larger."""


def write_model(path: Path, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write everything beside the folder, make it durable, then move it into place."""
    try:
        if path.exists() and not (path.is_dir() and (_is_ours(path) or not any(path.iterdir()))):
            raise FolderError(f"{str(path)!r} exists and is no model folder; choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except (OSError, ValueError) as error:
        raise FolderError(f"cannot write to {str(path)!r}: {reason(error)}") from None
    try:
        tensors = {name: tensor.contiguous().cpu() for name, tensor in weights.items()}
        safetensors.torch.save_file(tensors, beside / WEIGHTS)
        (beside / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        files = {name: sha256(beside / name) for name in (CONFIG, WEIGHTS)}
        manifest = {"format": FORMAT, "sha256": files}
        # No line end: without its last byte, whatever it is, a manifest must not read as whole.
        (beside / MANIFEST).write_text(json.dumps(manifest, indent=2), "utf-8")
        for name in (WEIGHTS, CONFIG, MANIFEST):
            sync(beside / name)
        sync(beside)
        beside.chmod(0o755)
        _move(beside, path)
        sync(path.parent)
    except (OSError, safetensors.SafetensorError) as error:
        needed = sum(t.numel() * t.element_size() for t in weights.values())
        raise FolderError(
            f"could not write {str(path)!r} ({needed:,} bytes needed): {error}"
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _move(beside: Path, path: Path) -> None:
    """Put a finished folder in its place; whatever goes wrong, the old one is there again."""
    if not path.exists():
        beside.rename(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    try:
        path.rename(old / "model")
        try:
            beside.rename(path)
        except BaseException:
            (old / "model").rename(path)
            raise
        shutil.rmtree(old / "model", ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):
            old.rmdir()


def read_model(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and weights, after every checksum was found right."""
    try:
        if not path.is_dir():
            raise FolderError(f"no model folder at {str(path)!r}")
    except OSError as error:
        raise FolderError(f"no model folder at {str(path)!r}: {error.strerror}") from None
    manifest = _read_json(path, MANIFEST)
    if manifest.get("format") != FORMAT:
        raise FolderError(
            f"{str(path)!r} is no model folder of this version: its manifest says "
            f"{manifest.get('format')!r}, not {FORMAT!r}"
        )
    sums = manifest.get("sha256")
    if not isinstance(sums, dict) or set(sums) != {CONFIG, WEIGHTS}:
        raise FolderError(f"{str(path / MANIFEST)!r} does not list {CONFIG} and {WEIGHTS}")
    for name, expected in sums.items():
        file = path / name
        if file.is_symlink() or not file.is_file():
            raise FolderError(
                f"{str(file)!r} is missing or no plain file; copy the whole folder again"
            )
        if sha256(file) != expected:
            raise FolderError(f"{str(file)!r} is damaged: its SHA-256 differs from the manifest's")
    try:
        weights = safetensors.torch.load((path / WEIGHTS).read_bytes())
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise FolderError(f"{str(path / WEIGHTS)!r} is not a safetensors file: {error}") from None
    return _read_json(path, CONFIG), weights


def _is_ours(path: Path) -> bool:
    try:
        return _read_json(path, MANIFEST).get("format") == FORMAT
    except FolderError:
        return False


def _read_json(path: Path, name: str) -> dict[str, Any]:
    file = path / name
    try:
        if file.is_symlink() or not stat.S_ISREG(file.stat().st_mode):
            raise FolderError(f"{str(file)!r} is no plain file; copy the whole folder again")
        if file.stat().st_size > JSON_LIMIT:
            raise FolderError(f"{str(file)!r} is too large to be a {name} of ours")
        value = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise FolderError(f"{str(path)!r} is no model folder: {name}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{str(file)!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FolderError(f"{str(file)!r} must hold a JSON object")
    return value


def reason(error: Exception) -> str:
    """What an error of the operating system says, without the path that stands beside it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Make a file or folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
