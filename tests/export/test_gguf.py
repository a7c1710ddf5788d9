"""Does llama.cpp compute what the model computes?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from parformer.cli import main
from parformer.data.characters import Bytes, UsedBytes
from parformer.errors import ConfigError
from parformer.export import gguf as exporting
from parformer.export.parity import Differs
from parformer.model import Model, build
from tests.conftest import lively, small_config

needs_llama_cpp = pytest.mark.skipif(
    exporting.find_spec("xllamacpp") is None, reason="llama.cpp is not installed"
)


def make(family: str, pattern: str, **changes: Any) -> Model:
    sizes = {"d_model": 64, "n_head": 4, "d_inner": 96, "vocab_size": 256, "max_len": 96}
    return lively(build(small_config(family, **(sizes | {"pattern": pattern} | changes))))


@needs_llama_cpp
@pytest.mark.parametrize(
    ("family", "pattern", "kind", "changes"),
    [
        ("llama", "(sf)x2 ff s s[heads=2,head=16] f[inner=64]", "f32", {}),
        ("llama", "fsf", "f16", {"n_kv_head": 2, "tie_weights": True}),
        ("llama", "sff", "q8_0", {"tie_weights": False}),
        ("llama", "sff", "q4_0", {}),
        ("gpt2", "(sf)x2", "f32", {}),
    ],
)
def test_llama_cpp_gives_what_the_model_gives(
    family: str, pattern: str, kind: str, changes: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    make(family, pattern, **changes).save(tmp_path / "model", Bytes().to_json())
    file = tmp_path / "model.gguf"
    command = ["export", str(tmp_path / "model"), "--gguf", str(file), "--type", kind, "--json"]
    assert main(command) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["latency"]["llama.cpp"]["seconds_per_token"] > 0
    if kind in ("f32", "f16"):
        assert told["parity"]["largest_difference"] < 0.05
        assert told["parity"]["likeliest_token_equal"] > 0.95
    assert file.read_bytes()[:4] == b"GGUF"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "model.gguf"]


@needs_llama_cpp
def test_a_file_that_differs_is_not_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(exporting, "in_turns", lambda rows, heads: rows)
    with pytest.raises(Differs, match=r"log-probabilities differ by .* nothing was written"):
        exporting.write(tmp_path / "x.gguf", Bytes(), make("llama", "sf"), "f32")
    assert list(tmp_path.iterdir()) == []


def test_without_llama_cpp_nothing_is_compared_and_that_is_said(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    told, _ = exporting.write(tmp_path / "x.gguf", Bytes(), make("llama", "sf"), "f32")
    assert "not installed" in told["note"]


@pytest.mark.parametrize(
    ("family", "pattern", "changes", "says"),
    [
        ("llama", "srf", {}, "blocks 'r' of 'srf'; the nearest that has is 'ssf'"),
        ("llama", "{sf}x2", {}, "blocks '{' of '{sf}x2'"),
        ("llama", "sf", {"recall": 8}, "counts and repeats; train it with counts=0"),
        ("llama", "s[head=8]s[head=16]f", {}, "heads of different widths ([8, 16])"),
        ("gpt2", "sff", {}, "the nearest that has is '(sf)x2', or the family llama"),
        ("sru", "sf", {}, "the family 'sru'; llama and gpt2 have one"),
    ],
)
def test_what_has_no_home_says_so_in_a_line(
    family: str, pattern: str, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        exporting.write(tmp_path / "x.gguf", Bytes(), make(family, pattern, **changes), "f32")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_without_a_home(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no home for a used-bytes tokenizer; byte and bpe"):
        exporting.write(tmp_path / "x.gguf", UsedBytes(b"ab"), make("llama", "sf"), "f32")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(Exception, match="gguf"):
        exporting.write(tmp_path / "x.gguf", Bytes(), make("llama", "sf"), "f32")


def test_rows_are_turned_as_llama_cpp_turns_them() -> None:
    """Pairs side by side: row 2 i of ours is i, row 2 i + 1 is half a head further."""
    rows = torch.arange(16.0)[:, None]
    assert exporting.in_turns(rows, 2)[:, 0].tolist() == [
        *(0, 4, 1, 5, 2, 6, 3, 7),
        *(8, 12, 9, 13, 10, 14, 11, 15),
    ]
