"""Does a preset without an encoder give way to its translator where pairs are to be learned?"""

from __future__ import annotations

from pathlib import Path

import pytest

import parformer as pf
from parformer.cli import main
from parformer.events import Event, Notice
from parformer.train.request import TrainRequest
from parformer.train.run import read_run

SMALL = (
    "model.d_model=16",
    "model.d_inner=16",
    "model.n_head=4",
    "data.tokenizer=character",
    "data.vocab_size=0",
    "train.batch_tokens=200",
    "train.kernels=plain",
    "train.precision=fp32",
)
SAID = "lite-pocket has no encoder, so lite-pocket-translation is trained."


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.de").write_text("ein Hund\nzwei Hunde\n" * 20, "utf-8")
        (folder / f"{split}.en").write_text("a dog\ntwo dogs\n" * 20, "utf-8")
    return folder


@pytest.mark.parametrize("task", ["translate", "summarise", ""])
def test_a_presets_translator_is_trained_and_that_is_said(
    pairs: Path, tmp_path: Path, task: str
) -> None:
    told: list[Event] = []
    asked = {"model": "lite-pocket", "data": str(pairs), "pair": "de-en", "task": task}
    run = tmp_path / "run"
    pf.train(**asked, steps=1, changes=SMALL, run=run, device="cpu", watch=told.append)
    assert SAID in [one.text for one in told if isinstance(one, Notice)]
    wanted = pf.preset("lite-pocket-translation").pattern
    assert read_run(run).model.pattern == wanted
    again: list[Event] = []
    pf.train(run=run, device="cpu", watch=again.append)
    assert SAID not in [one.text for one in again if isinstance(one, Notice)]


def test_the_command_line_takes_it_too(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "lite-pocket", "--task", "translate", "--data", str(pairs), "--pair", "de-en"]
    sets = [word for change in SMALL for word in ("--set", change)]
    assert main([*words, "--steps", "1", *sets, "--run", str(tmp_path / "run")]) == 0
    heard = capsys.readouterr()
    assert SAID in " ".join((heard.out + heard.err).split())


@pytest.mark.parametrize(
    ("asked", "preset"),
    [
        ({"model": "lite-pocket"}, "lite-pocket"),
        ({"model": "lite-pocket", "task": "language"}, "lite-pocket"),
        ({"model": "lite-pocket", "task": "translate", "pattern": "lf | lcf"}, "lite-pocket"),
        ({"model": "pocket", "task": "translate"}, "pocket"),
        ({"model": "srupp-pocket", "pair": "de-en"}, "srupp-pocket-translation"),
        ({"model": "lite-pocket-translation", "task": "translate"}, "lite-pocket-translation"),
    ],
)
def test_whoever_needs_no_translator_gets_what_was_named(
    asked: dict[str, str], preset: str
) -> None:
    assert TrainRequest(**asked).preset == preset  # type: ignore[arg-type]


def test_a_run_is_named_after_what_is_trained() -> None:
    asked = TrainRequest(model="lite-pocket", data="pairs", pair="de-en", task="translate")
    assert asked.folder == Path("runs/lite-pocket-translation-pairs")
