"""Is a model folder whole, ours and harmless, or refused by name?"""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import parformer as pf
from parformer.errors import ConfigError, FolderError
from parformer.model import Model, build, load
from parformer.store import folder
from parformer.store.files import JSON_LIMIT, sha256
from parformer.store.folder import CONFIG, FORMAT, MANIFEST, WEIGHTS
from tests.conftest import lively, small_config
from tests.test_model import EMBEDDINGS, FAMILIES, refused

FILES = (WEIGHTS, CONFIG, MANIFEST)


def make(family: str = "transformer-xl", **changes: Any) -> Model:
    return lively(build(small_config(family, vocab_size=23, **changes)))


def answer(model: Model) -> Tensor:
    """Numbers in which every weight has its say."""
    out = model(torch.arange(14).view(2, 7))
    return out.hidden if out.logits is None else out.logits


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder to copy from."""
    path = tmp_path_factory.mktemp("whole") / "model"
    make().save(path)
    return path


@pytest.fixture
def saved(whole: Path, tmp_path: Path) -> Path:
    """A model folder to damage."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


def seal(path: Path) -> None:
    """Make the manifest agree with the files, as somebody hostile would."""
    sums = {name: sha256(path / name) for name in (CONFIG, WEIGHTS)}
    (path / MANIFEST).write_text(json.dumps({"format": FORMAT, "sha256": sums}))


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {
        str(file.relative_to(path)): b"" if file.is_dir() else file.read_bytes()
        for file in sorted(path.rglob("*"))
    }


# There and back


@pytest.mark.parametrize("name", EMBEDDINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_model_says_the_same_to_the_last_bit(
    family: str, name: str, tmp_path: Path
) -> None:
    if family == "bert" and "adaptive" in name:
        changes = {"head": "none", "embedding": "factorized", "d_embed": 7}
    else:
        changes = EMBEDDINGS[name]
    model = make(family, pattern="sfi", **changes)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.config == model.config
    assert not again.training
    assert torch.equal(answer(again), answer(model))
    for (one, a), (other, b) in zip(
        model.named_parameters(), again.named_parameters(), strict=True
    ):
        assert one == other
        assert torch.equal(a, b)
        assert b.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_loaded_model_keeps_its_number_type(dtype: torch.dtype, tmp_path: Path) -> None:
    model = build(small_config("llama"), dtype=dtype)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert b.dtype == dtype
        assert torch.equal(a, b)


def test_a_folder_holds_three_files_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    make().save(tmp_path / "deep" / "down" / "model")
    assert sorted(contents(tmp_path / "deep" / "down")) == [
        "model",
        *sorted(f"model/{name}" for name in FILES),
    ]
    manifest = json.loads((tmp_path / "deep/down/model" / MANIFEST).read_text())
    assert manifest["format"] == FORMAT
    for name, digest in manifest["sha256"].items():
        assert sha256(tmp_path / "deep/down/model" / name) == digest


def test_a_path_may_be_text_and_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = make()
    model.save("model")
    assert torch.equal(answer(pf.load("model")), answer(model))


def test_a_model_folder_is_overwritten_whole(saved: Path) -> None:
    other = make("llama", pattern="fs")
    other.save(saved)
    assert torch.equal(answer(load(saved)), answer(other))
    assert [file.name for file in saved.parent.iterdir()] == ["model"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    model = make()
    model.save(tmp_path / "model")
    assert torch.equal(answer(load(tmp_path / "model")), answer(model))
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_fields_that_shape_no_weight_may_change_on_loading(saved: Path) -> None:
    model = load(saved, clamp_len=2, mem_len=5, dropout=0.1)
    assert (model.config.clamp_len, model.config.mem_len, model.config.dropout) == (2, 5, 0.1)
    assert torch.equal(model.blocks[0].qkv.weight, load(saved).blocks[0].qkv.weight)
    assert not torch.allclose(answer(model), answer(load(saved)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_model": 24}, ("content_bias", "(12,)", "(24,)")),
        ({"vocab_size": 24}, ("(23, 12)", "(24, 12)")),
        ({"pattern": "sff"}, ("lack", "blocks.2")),
        ({"pattern": "s"}, ("surplus", "blocks.1")),
        ({"tie_weights": False}, ("lack", "'head.out.weight'")),
        ({"norm_type": "rms"}, ("surplus", "norm.bias")),
    ],
    ids=str,
)
def test_fields_that_shape_a_weight_may_not_change(
    saved: Path, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    with refused(FolderError, str(saved), *words):
        load(saved, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clamp_length": 3}, ("'clamp_length'", "clamp_len")),
        ({"n_head": 5}, ("5 heads", "12")),
        ({"clamp_len": "far"}, ("clamp_len", "'far'")),
    ],
    ids=str,
)
def test_a_change_that_makes_no_configuration_is_the_callers(
    saved: Path, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    with refused(ConfigError, *words):
        load(saved, **changes)


# What is not ours


def test_a_foreign_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MANIFEST).write_text('{"format": "another-program-1"}')
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / WEIGHTS).write_bytes(b"weights of somebody")
    before = contents(tmp_path)
    for name in ("notes", "file", "other", "loose"):
        with refused(FolderError, str(tmp_path / name), "no model folder", "another name"):
            make().save(tmp_path / name)
    assert contents(tmp_path) == before


def test_what_is_no_model_folder_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    make().save(tmp_path / "foreign" / "inside")
    for name in ("missing", "file", "empty", "foreign", "file/below"):
        with refused(FolderError, "no model folder", str(tmp_path / name)):
            load(tmp_path / name)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "two\nlines\0"], ids=["nul", "long", "lines"])
def test_a_name_that_no_folder_can_have_is_refused(name: str, tmp_path: Path) -> None:
    with refused(FolderError, "no model folder"):
        load(tmp_path / name)
    with refused(FolderError, "cannot write"):
        make().save(tmp_path / name)
    assert not contents(tmp_path)


def test_a_folder_cannot_be_made_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with refused(FolderError, "cannot write", str(tmp_path / "file" / "model")):
        make().save(tmp_path / "file" / "model")
    assert contents(tmp_path) == {"file": b"a file"}


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b'"parformer-model-1"',
        b"{}",
        b'{"format": "parformer-model-2", "sha256": {}}',
        b'{"format": ["parformer-model-1"], "sha256": {}}',
        b'{"format": "parformer-model-1"}',
        b'{"format": "parformer-model-1", "sha256": []}',
        b'{"format": "parformer-model-1", "sha256": {}}',
        b'{"format": "parformer-model-1", "sha256": {"config.json": null}}',
        b'{"format": "parformer-model-1", "sha256": {"config.json": 1, "model.safetensors": 2}}',
        b'{"format": "parformer-model-1", "sha256": {"../config.json": "", "/etc/passwd": ""}}',
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"format": ' + b"9" * 10_000 + b"}",
        b" " * (JSON_LIMIT + 1),
    ],
    ids=lambda manifest: manifest[:40].decode("latin-1") + f" ({len(manifest)})",
)
def test_a_manifest_that_is_not_ours_is_refused(saved: Path, manifest: bytes) -> None:
    (saved / MANIFEST).write_bytes(manifest)
    with refused(FolderError, str(saved)):
        load(saved)


# Damage


def test_a_missing_file_is_named(whole: Path, tmp_path: Path) -> None:
    for name in FILES:
        path = Path(shutil.copytree(whole, tmp_path / f"without {name}"))
        (path / name).unlink()
        with refused(FolderError, str(path), name):
            load(path)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_always_caught(saved: Path, name: str) -> None:
    good = (saved / name).read_bytes()
    spread = range(0, len(good), max(1, len(good) // 100))
    ends = [*range(20), *range(len(good) - 20, len(good))]
    for length in sorted({*spread, *ends}):
        (saved / name).write_bytes(good[:length])
        with pytest.raises(FolderError):
            load(saved)
    (saved / name).write_bytes(good)
    load(saved)


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_more_at_its_end_is_caught(saved: Path, name: str) -> None:
    good = (saved / name).read_bytes()
    for more in (b"\0", b"}", good):
        (saved / name).write_bytes(good + more)
        with refused(FolderError, str(saved / name)):
            load(saved)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_always_caught(saved: Path, name: str) -> None:
    good = (saved / name).read_bytes()
    rng = Random(len(good))
    bits = rng.sample(range(8 * len(good)), 120)
    if name == MANIFEST:  # no checksum stands over it, so every byte is tried
        bits += [8 * byte + rng.randrange(8) for byte in range(len(good))]
    for bit in bits:
        (saved / name).write_bytes(flipped(good, bit))
        with pytest.raises(FolderError) as caught:
            load(saved)
        assert str(saved) in str(caught.value)
        assert "\n" not in str(caught.value)
    (saved / name).write_bytes(good)
    load(saved)


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_a_file_of_another_model_is_caught(saved: Path, tmp_path: Path, name: str) -> None:
    build(small_config("transformer-xl", vocab_size=23, norm="pre")).save(tmp_path / "other")
    (tmp_path / "other" / name).replace(saved / name)
    with refused(FolderError, str(saved / name), "SHA-256"):
        load(saved)


# Hostility


@pytest.mark.parametrize("name", FILES)
def test_links_are_refused(saved: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (saved / name).rename(elsewhere)
    (saved / name).symlink_to(elsewhere)
    with refused(FolderError, str(saved / name), "no plain file"):
        load(saved)
    elsewhere.unlink()
    with refused(FolderError, str(saved / name)):
        load(saved)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
@pytest.mark.parametrize("name", FILES)
def test_a_pipe_is_refused_and_not_waited_for(saved: Path, name: str) -> None:
    (saved / name).unlink()
    os.mkfifo(saved / name)
    with refused(FolderError, str(saved / name), "no plain file"):
        load(saved)


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_a_pickle_by_the_name_of_weights_never_runs(saved: Path, tmp_path: Path, how: str) -> None:
    mark = tmp_path / "mark"
    if how == "pickle":
        (saved / WEIGHTS).write_bytes(pickle.dumps(Bomb(mark)))
    else:
        torch.save({"weight": Bomb(mark)}, saved / WEIGHTS)
    seal(saved)
    with refused(FolderError, str(saved / WEIGHTS), "not a safetensors file"):
        load(saved)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists(), "the bomb is real"


def change(path: Path, **fields: object) -> None:
    values = json.loads((path / CONFIG).read_text())
    (path / CONFIG).write_text(json.dumps(values | fields))
    seal(path)


@pytest.mark.parametrize(
    "fields",
    [
        {"family": "gpt9"},
        {"family": ["transformer-xl"]},
        {"family": None},
        {"pattern": "sz"},
        {"pattern": 3},
        {"pattern": "<sf>"},
        {"pattern": "s[heads=5]f"},
        {"pattern": "s[inner=5]f"},
        {"pattern": "(sf)x9999999"},
        {"pattern": "(" * 10_000},
        {"pattern": "(f)x4096", "d_inner": 10**9},
        {"vocab_size": 2**62},
        {"vocab_size": 10**12},
        {"vocab_size": 10**400},
        {"vocab_size": "23"},
        {"vocab_size": 23.0},
        {"vocab_size": True},
        {"vocab_size": -1},
        {"vocab_size": None},
        {"d_model": 0},
        {"d_model": [12]},
        {"d_head": 2**62},
        {"n_head": 2**40, "round_heads": True},
        {"n_kv_head": 2},
        {"dropout": 10**400},
        {"dropout": float("nan")},
        {"dropout": float("inf")},
        {"dropout": "0.1"},
        {"causal": 0},
        {"norm": "sideways"},
        {"norm": {}},
        {"cutoffs": {}},
        {"cutoffs": [[1]]},
        {"cutoffs": [5, 9], "embedding": "adaptive"},
        {"cutoffs": list(range(1, 22)), "embedding": "adaptive", "div_val": 2**62},
        {"cutoffs": list(range(1, 300_000)), "embedding": "adaptive", "vocab_size": 10**6},
        {"embedding": "os.system"},
        {"__class__": "os.system"},
        {"class_path": "os.system"},
        {"d_modle": 12},
        {"": 0},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_a_hostile_configuration_is_refused(saved: Path, fields: dict[str, Any]) -> None:
    change(saved, **fields)
    with refused(FolderError, str(saved)):
        load(saved)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b"{'family': 'gpt2'}",
        b"!!python/object/apply:os.system ['true']",
        b"\x80\x04\x95",
        b"[" * 200_000,
        b'{"family": ' * 100_000,
        b'{"family": "' + b"x" * JSON_LIMIT + b'"}',
        b'{"dropout": ' + b"1" * 10_000 + b"}",
    ],
    ids=lambda text: text[:30].decode("latin-1") + f" ({len(text)})",
)
def test_a_configuration_that_is_no_table_is_refused(saved: Path, text: bytes) -> None:
    (saved / CONFIG).write_bytes(text)
    seal(saved)
    with refused(FolderError, str(saved)):
        load(saved)


@pytest.mark.parametrize("name", [CONFIG, MANIFEST])
def test_a_table_too_large_to_be_ours_is_not_even_read(saved: Path, name: str) -> None:
    for blanks, refusal in ((JSON_LIMIT // 2, False), (JSON_LIMIT, True)):
        good = (saved / name).read_bytes().rstrip()
        (saved / name).write_bytes(good + b" " * blanks)
        if name == CONFIG:
            seal(saved)
        if refusal:
            with refused(FolderError, str(saved / name), "too large"):
                load(saved)
        else:
            load(saved)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["gpt2", "llama", "bert", "pre", "post", "sf", "f", "adaptive", "rotary"]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=4), values),
    max_leaves=4,
)
FIELDS = sorted(small_config("gpt2").to_dict())


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=3))
def test_a_random_configuration_is_refused_or_fits(whole: Path, fields: dict[str, Any]) -> None:
    weights = safetensors.torch.load_file(whole / WEIGHTS)
    path = whole.parent / "random"
    shutil.copytree(whole, path, dirs_exist_ok=True)
    change(path, **fields)
    model, message = attempt(path)
    if model is None:
        assert str(path) in message
        assert "\n" not in message
    else:
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, weights[name])


def attempt(path: Path) -> tuple[Model | None, str]:
    """The model, or what was said against it."""
    try:
        return load(path), ""
    except FolderError as error:
        return None, str(error)


def test_hostile_weights_are_refused(saved: Path) -> None:
    good = safetensors.torch.load_file(saved / WEIGHTS)
    name = "blocks.0.qkv.weight"
    for bad in (
        {},
        good | {"surplus": torch.zeros(1)},
        {key: weight for key, weight in good.items() if key != name},
        good | {name: good[name].T.contiguous()},
        good | {name: good[name].flatten()},
        good | {name: torch.zeros(0, 12)},
        good | {name: good[name].long()},
        good | {name: good[name] > 0},
        good | {name: good[name].to(torch.complex64)},
        good | {name: good[name].to(torch.float8_e4m3fn)},
    ):
        safetensors.torch.save_file(bad, saved / WEIGHTS)
        seal(saved)
        with refused(FolderError, str(saved)):
            load(saved)


def test_a_safetensors_file_made_by_hand_is_refused(saved: Path) -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    headers: list[Any] = [
        {"a": entry | {"data_offsets": [0, 2**62]}},
        {"a": entry | {"shape": [2**62, 2**62]}},
        {"a": entry | {"shape": [-2]}},
        {"a": entry | {"dtype": "OBJECT"}},
        {"a": entry | {"dtype": "F4"}},
        {"a": entry, "b": entry},
        {"a": "os.system"},
        [],
        None,
    ]
    files = [struct.pack("<Q", 2**60) + b"{}", b"\0" * 8, b"{}", struct.pack("<Q", 2) + b"{}"]
    for header in headers:
        text = json.dumps(header).encode()
        files.append(struct.pack("<Q", len(text)) + text + bytes(8))
    for data in files:
        (saved / WEIGHTS).write_bytes(data)
        seal(saved)
        with refused(FolderError, str(saved)):
            load(saved)


def test_flipped_bits_in_a_sealed_header_never_do_harm(saved: Path) -> None:
    good = (saved / WEIGHTS).read_bytes()
    expected = safetensors.torch.load(good)
    header = 8 + struct.unpack("<Q", good[:8])[0]
    for bit in sorted(Random(2).sample(range(8 * header), 200)):
        (saved / WEIGHTS).write_bytes(flipped(good, bit))
        seal(saved)
        model, message = attempt(saved)
        assert "\n" not in message
        if model is not None:  # the bit was one that means nothing
            for name, parameter in model.named_parameters():
                assert parameter.shape == expected[name].shape


# Saves that fail


class DiskFull(OSError):
    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail_at(call: Callable[..., Any], number: int, error: BaseException) -> Callable[..., Any]:
    """The same call, but the one with this number, counted from 1, fails."""
    count = 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            raise error
        return call(*args, **kwargs)

    return failing


PLACES: dict[str, tuple[object, str, int]] = {
    "weights": (safetensors.torch, "save_file", 1),
    "configuration": (Path, "write_bytes", 1),
    "manifest": (Path, "write_bytes", 3),
    "first checksum": (folder, "sha256", 1),
    "durable weights": (os, "fsync", 1),
    "durable manifest": (os, "fsync", 3),
    "durable folder": (os, "fsync", 4),
    "old folder away": (Path, "rename", 1),
    "new folder in": (Path, "rename", 2),
}


@contextmanager
def failing_at(place: str, error: BaseException) -> Iterator[None]:
    owner, name, number = PLACES[place]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fail_at(getattr(owner, name), number, error))
        yield


@pytest.mark.parametrize("place", PLACES)
def test_a_save_that_fails_leaves_the_old_folder_as_it_was(saved: Path, place: str) -> None:
    before = contents(saved.parent)
    model = make("llama", pattern="fsf")
    needed = sum(p.numel() * p.element_size() for p in model.parameters())
    needed += len(folder.json_bytes(model.config.to_dict()))
    with (
        refused(FolderError, str(saved), f"{needed:,} bytes", "No space left"),
        failing_at(place, DiskFull()),
    ):
        model.save(saved)
    assert contents(saved.parent) == before
    load(saved)
    model.save(saved)
    assert torch.equal(answer(load(saved)), answer(model))


@pytest.mark.parametrize("place", [place for place in PLACES if place != "new folder in"])
def test_a_first_save_that_fails_leaves_nothing(tmp_path: Path, place: str) -> None:
    path = tmp_path / "model"
    with (
        refused(FolderError, str(path), "bytes needed", "No space left"),
        failing_at(place, DiskFull()),
    ):
        make().save(path)
    assert not contents(tmp_path)


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupted_save_leaves_the_old_folder_as_it_was(saved: Path, place: str) -> None:
    before = contents(saved.parent)
    with pytest.raises(KeyboardInterrupt), failing_at(place, KeyboardInterrupt()):
        make("gpt2").save(saved)
    assert contents(saved.parent) == before


def test_a_disk_that_fills_up_at_any_byte_leaves_the_old_folder_as_it_was(saved: Path) -> None:
    """The limit is the operating system's own: a file may grow so far and no further."""
    resource = pytest.importorskip("resource")
    before = contents(saved.parent)
    model = make("gpt2", pattern="(sf)x4")
    model.save(saved.parent / "other")
    largest = (saved.parent / "other" / WEIGHTS).stat().st_size
    shutil.rmtree(saved.parent / "other")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for step in range(40):
        limit = step * largest // 40
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with refused(FolderError, str(saved), "bytes needed"):
                model.save(saved)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert contents(saved.parent) == before
    model.save(saved)
    assert torch.equal(answer(load(saved)), answer(model))


def test_whoever_the_umask_lets_may_read(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        make().save(tmp_path / "model")
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "model").iterdir()}
    assert set(modes.values()) == {0o644}
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o755


def test_a_file_that_may_not_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make().save(tmp_path / "model")

    def forbidden(file: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr(folder, "sha256", forbidden)
    with refused(FolderError, "cannot read", "Permission denied"):
        load(tmp_path / "model")


def test_a_pattern_that_the_weights_cannot_be_of_is_refused_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make().save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["pattern"] = "(sf)x2000"
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    manifest["sha256"]["config.json"] = folder.sha256(tmp_path / "model" / "config.json")
    (tmp_path / "model" / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr("parformer.model._outline", None)
    with refused(FolderError, "4,000 blocks have", "the weights"):
        load(tmp_path / "model")
