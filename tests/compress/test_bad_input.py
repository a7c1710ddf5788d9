"""Does what cannot be done end with one clear line, and before anything is lost?"""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

import parformer as pf
from parformer.cli import main
from parformer.compress.coding import coded
from parformer.compress.request import STEPS
from parformer.data.characters import Bytes, Characters
from parformer.model import Model

SMALL = {"pattern": "sf", "d_model": 64, "d_inner": 96, "max_len": 64, "tgt_len": 32}
PLAIN = {"train.precision": "fp32", "train.compile": "off", "train.kernels": "plain"}
QUICK = ["--tokens", "1024", "--rounds", "6", "--threads", "1"]
TRAIN = [
    word
    for name, value in {**{f"model.{n}": v for n, v in SMALL.items()}, **PLAIN}.items()
    for word in ("--set", f"{name}={value}")
]


def model() -> Model:
    return pf.build(pf.preset("llama-pocket", **SMALL))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model nobody trained, the same in 8 bits, and a text."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "text.txt").write_text("some words to read, and to read again\n" * 400)
    model().save(folder / "model", Bytes().to_json())
    coded(model(), 8).save(folder / "coded", Bytes().to_json())
    return folder


def refused(words: list[str], capsys: pytest.CaptureFixture[str], verb: str = "compress") -> str:
    capsys.readouterr()
    assert main(words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    told = [line for line in lines if line.startswith(f"parformer {verb}: ")]
    assert lines[-1:] == told
    assert not any("Traceback" in line for line in lines)
    return told[0]


def compressed(place: Path, run: Path, *words: str, name: str = "model") -> list[str]:
    text = str(place / "text.txt")
    return ["compress", str(place / name), "--corpus", text, "--run", str(run), *QUICK, *words]


@pytest.mark.parametrize("step", STEPS)
def test_codes_cannot_be_compressed_again(
    step: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = compressed(place, tmp_path / "run", "--by", step, name="coded")
    assert "quantized already" in refused(words, capsys)
    assert not (tmp_path / "run").exists()


def test_nothing_comes_after_codes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = compressed(place, place / "never", "--by", "quantize,prune")
    assert "quantize comes last" in refused(words, capsys)


def test_a_limit_that_nobody_reaches_ends_with_the_nearest(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = compressed(place, tmp_path / "run", "--limit", "size=1kB", "--updates", "1")
    assert "Not within size=1kB: the nearest that was found is" in refused(words, capsys)
    assert pf.load(tmp_path / "run" / "model").config.vocab_size == 256


def test_calibration_needs_a_text(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "empty.txt").write_text("")
    words = ["compress", str(place / "model"), "--activations", "--run", str(place / "never")]
    told = refused([*words, "--corpus", str(place / "empty.txt")], capsys)
    assert "holds no text" in told


@pytest.mark.parametrize("name", ["blocks.1.out.weight", "blocks.1.norm.weight"])
def test_what_is_no_number_has_no_range(
    name: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a matrix, and of what a matrix reads."""
    broken = model()
    with torch.no_grad():
        broken.get_parameter(name).view(-1)[3] = torch.nan
    broken.save(tmp_path / "model", Bytes().to_json())
    text = str(place / "text.txt")
    words = ["compress", str(tmp_path / "model"), "--corpus", text, "--activations", *QUICK]
    told = refused([*words, "--run", str(tmp_path / "run")], capsys)
    assert f"{name!r} in" in told
    assert "NaN" in told
    assert not (tmp_path / "run").exists()


def test_masks_of_another_model_are_refused(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masks = {"blocks.0.qkv": torch.ones(3, 3, dtype=torch.uint8)}
    (tmp_path / "masks.safetensors").write_bytes(safetensors.torch.save(masks))
    words = ["train", "llama-pocket", "--corpus", str(place / "text.txt"), "--steps", "2", *TRAIN]
    words += ["--set", f"compress.masks={tmp_path / 'masks.safetensors'}"]
    assert "is another model's" in refused([*words, "--run", str(tmp_path / "r")], capsys, "train")


def test_a_teacher_reads_with_the_same_words(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many words need not be the same ones."""
    letters = "".join(map(chr, range(200, 456)))
    model().save(tmp_path / "teacher", Characters(letters, unknown=False).to_json())
    words = ["train", "llama-pocket", "--corpus", str(place / "text.txt"), "--steps", "2", *TRAIN]
    words += ["--set", f"compress.teacher={tmp_path / 'teacher'}", "--set", "compress.soft=0.5"]
    told = refused([*words, "--run", str(tmp_path / "run")], capsys, "train")
    assert "reads 256 character tokens, the student 256 byte tokens of another vocabulary" in told
