"""Is there always a whole checkpoint to go on from, and is a damaged one never used?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from parformer.errors import FolderError
from parformer.store import folder
from parformer.train import checkpoint as checkpoints
from parformer.train.checkpoint import (
    Checkpoint,
    newest_checkpoint,
    read_checkpoint,
    rotate,
    sweep,
    write_checkpoint,
)


def make_checkpoint(step: int) -> Checkpoint:
    def tensors(*names: str) -> dict[str, torch.Tensor]:
        return {name: torch.full((3, 5), step + i + 0.25) for i, name in enumerate(names)}

    return Checkpoint(
        step,
        tensors("head.bias", "blocks.0.weight"),
        tensors("head.bias/exp_avg") | {"head.bias/step": torch.tensor(float(step))},
        tensors("0/inputs_bmd"),
        {"metrics_bytes": 17 * step, "tally": [0.1 + 0.2, step]},
    )


def same(a: Checkpoint, b: Checkpoint) -> bool:
    for part in ("weights", "optimizer", "memory"):
        one, other = getattr(a, part), getattr(b, part)
        if one.keys() != other.keys() or not all(torch.equal(one[k], other[k]) for k in one):
            return False
    return a.step == b.step and dict(a.progress) == dict(b.progress)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two checkpoints, of steps 2 and 4."""
    for step in (2, 4):
        write_checkpoint(tmp_path / "checkpoints", make_checkpoint(step), keep=2)
    return tmp_path / "checkpoints"


def names(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir())


def fail_to_notice(text: str) -> None:
    raise AssertionError(text)


def test_what_was_written_comes_back(root: Path) -> None:
    for step in (2, 4):
        assert same(read_checkpoint(root / f"step-{step:09d}"), make_checkpoint(step))
    newest = newest_checkpoint(root, fail_to_notice)
    assert newest is not None
    assert newest.step == 4


def test_nothing_at_all_is_no_error(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none", fail_to_notice) is None
    (tmp_path / "empty").mkdir()
    assert newest_checkpoint(tmp_path / "empty", fail_to_notice) is None


def test_the_oldest_go_and_never_the_last_two(root: Path) -> None:
    for step in (6, 8):
        write_checkpoint(root, make_checkpoint(step), keep=2)
        assert names(root) == [f"step-{step - 2:09d}", f"step-{step:09d}"]
    more = root.with_name("three")
    for step in range(6):
        write_checkpoint(more, make_checkpoint(step), keep=3)
    assert names(more) == [f"step-{step:09d}" for step in (3, 4, 5)]


def test_what_a_killed_process_did_not_let_go_goes_later(root: Path) -> None:
    write_checkpoint(root, make_checkpoint(6), keep=3)
    rotate(root, 2)
    assert names(root) == ["step-000000004", "step-000000006"]
    rotate(root.with_name("none"), 2)


def test_the_newest_is_found_by_its_number(tmp_path: Path) -> None:
    """Names sort like numbers only up to nine digits."""
    for step in (999_999_999, 1_000_000_000):
        write_checkpoint(tmp_path, make_checkpoint(step), keep=2)
    newest = newest_checkpoint(tmp_path, fail_to_notice)
    assert newest is not None
    assert newest.step == 1_000_000_000
    write_checkpoint(tmp_path, make_checkpoint(1_000_000_001), keep=2)
    assert names(tmp_path) == ["step-1000000000", "step-1000000001"]


def test_old_ones_go_after_the_new_one_is_durable(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file is synced before the rename, the folder after it; only then may one go."""
    events: list[str] = []

    def spy(owner: Any, name: str, tell: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def called(*given: Any, **named: Any) -> Any:
            events.append(tell(*given))
            return real(*given, **named)

        monkeypatch.setattr(owner, name, called)

    def plain(path: Any) -> str:
        return "new" if Path(path).name.startswith(".step-000000006.") else Path(path).name

    handles: dict[int, str] = {}
    real_open = os.open

    def open_and_remember(path: Any, *given: Any, **named: Any) -> int:
        handle = real_open(path, *given, **named)
        handles[handle] = str(path)
        return handle

    monkeypatch.setattr(os, "open", open_and_remember)
    spy(os, "fsync", lambda handle: f"sync {plain(handles[handle])}")
    spy(Path, "rename", lambda path, target: f"move {plain(path)} to {plain(target)}")
    spy(shutil, "rmtree", lambda path, **_: f"remove {plain(path)}")
    write_checkpoint(root, make_checkpoint(6), keep=2)
    moved = events.index("move new to step-000000006")
    files = {*checkpoints.FILES, folder.MANIFEST}
    assert {f"sync {name}" for name in files} | {"sync new"} == set(events[:moved])
    assert events[moved - 2 : moved] == [f"sync {folder.MANIFEST}", "sync new"]
    assert events[moved + 1] == "sync checkpoints"
    gone = events.index("move step-000000002 to .step-000000002.gone")
    assert gone > moved + 1
    assert events[-1] == "remove .step-000000002.gone"


def test_a_failed_write_leaves_the_others_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "sync", full)
    with pytest.raises(
        FolderError, match=r"step-000000006.*\([\d,]+ bytes needed\): No space left"
    ):
        write_checkpoint(root, make_checkpoint(6), keep=2)
    assert names(root) == ["step-000000002", "step-000000004"]
    monkeypatch.undo()
    assert same(read_checkpoint(root / "step-000000002"), make_checkpoint(2))


def test_leftovers_of_a_killed_process_are_swept(root: Path) -> None:
    for left in (".step-000000006.x1y2", ".step-000000002.gone", ".step-000000004.old.ab"):
        (root / left / "deep").mkdir(parents=True)
        (root / left / "deep" / "weights.safetensors").write_bytes(b"half")
    (root / "damaged-step-000000001").mkdir()
    (root / ".keep-me").mkdir()
    before = newest_checkpoint(root, fail_to_notice)
    assert before is not None
    assert before.step == 4  # nothing half done passes for a checkpoint
    sweep(root)
    assert names(root) == [".keep-me", "damaged-step-000000001", "step-000000002", "step-000000004"]


def damage(file: Path, rng: Random, kind: str) -> str:
    """Cut a file somewhere or flip one of its bits; what was done."""
    raw = bytearray(file.read_bytes())
    if kind == "cut":
        length = rng.randrange(len(raw))
        file.write_bytes(raw[:length])
        return f"{file.name} cut to {length} of {len(raw)}"
    bit = rng.randrange(8 * len(raw))
    raw[bit // 8] ^= 1 << bit % 8
    file.write_bytes(raw)
    return f"{file.name} with bit {bit} of {8 * len(raw)} flipped"


def try_damages(root: Path, spare: Path, rng: Random, kind: str, count: int) -> None:
    """Each time another place of another file; each time the one before must be used."""
    files = sorted((root / "step-000000004").iterdir())
    assert len(files) == 5
    expected = make_checkpoint(2)
    shutil.copytree(root, spare)
    for number in range(count):
        shutil.rmtree(root)
        shutil.copytree(spare, root)
        done = damage(root / "step-000000004" / files[number % 5].name, rng, kind)
        with pytest.raises(FolderError) as caught:
            read_checkpoint(root / "step-000000004")
        assert "step-000000004" in str(caught.value), done
        notices: list[str] = []
        found = newest_checkpoint(root, notices.append)
        assert found is not None, done
        assert same(found, expected), done
        assert len(notices) == 1, done
        assert "step-000000004 cannot be used" in notices[0], done
        assert names(root) == ["damaged-step-000000004", "step-000000002"], done


@pytest.mark.parametrize("kind", ["cut", "flip"])
def test_damage_is_always_found_and_the_one_before_used(
    root: Path, tmp_path: Path, kind: str
) -> None:
    try_damages(root, tmp_path / "spare", Random(1), kind, 30)


def test_every_byte_of_a_manifest_counts(root: Path) -> None:
    manifest = root / "step-000000004" / folder.MANIFEST
    raw = manifest.read_bytes()
    for length in {*range(0, len(raw), 9), *range(len(raw) - 9, len(raw))}:
        manifest.write_bytes(raw[:length])
        with pytest.raises(FolderError):
            read_checkpoint(manifest.parent)


@pytest.mark.parametrize("missing", sorted({*checkpoints.FILES, folder.MANIFEST}))
def test_a_missing_file_is_found(root: Path, missing: str) -> None:
    (root / "step-000000004" / missing).unlink()
    notices: list[str] = []
    found = newest_checkpoint(root, notices.append)
    assert found is not None
    assert found.step == 2
    assert missing in notices[0]


def test_where_all_are_damaged_nothing_is_touched(root: Path) -> None:
    rng = Random(5)
    for path in root.iterdir():
        damage(path / "weights.safetensors", rng, "flip")
    before = {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}
    notices: list[str] = []
    with pytest.raises(FolderError, match=r"none of the 2 checkpoints in .* is whole") as caught:
        newest_checkpoint(root, notices.append)
    assert "\n" not in str(caught.value)
    assert len(notices) == 2
    assert {file: file.read_bytes() for file in root.rglob("*") if file.is_file()} == before


def test_a_renamed_checkpoint_is_not_what_it_says(root: Path) -> None:
    (root / "step-000000004").rename(root / "step-000000009")
    with pytest.raises(FolderError, match="holds step 4; it was renamed"):
        read_checkpoint(root / "step-000000009")


def test_a_second_damage_of_the_same_step_is_set_aside_too(root: Path) -> None:
    for _ in range(2):
        damage(root / "step-000000004" / "memory.safetensors", Random(0), "cut")
        found = newest_checkpoint(root, lambda _: None)
        assert found is not None
        assert found.step == 2
        write_checkpoint(root, make_checkpoint(4), keep=2)
    assert same(read_checkpoint(root / "step-000000004"), make_checkpoint(4))
