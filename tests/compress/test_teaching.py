"""Does a translator teach by what it says, and does a student read it?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import parformer as pf
from parformer.cli import main
from parformer.compress import teaching
from parformer.errors import ConfigError, FolderError
from parformer.model import load
from parformer.recipe import read_recipe
from parformer.train.job import train_model
from parformer.train.run import open_run

SMALL: dict[str, object] = {
    "model.pattern": "sf | scf",
    "model.d_model": 32,
    "model.d_inner": 64,
    "model.n_head": 2,
    "model.max_len": 32,
    "data.tokenizer": "character",
    "data.vocab_size": 0,
    "data.pair": "de-en",
    "train.task": "translate",
    "train.precision": "fp32",
    "train.kernels": "plain",
    "train.batch_tokens": 400,
    "train.steps": 3,
}
# as long as each other, so that none may write longer than when it is alone
DE = ["ein Hund", "rot Hund", "und Hund", "ein klug", "rot klug", "und klug"]
EN = ["a dog", "red dog", "and dog", "a wise", "red wise", "and wise"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    for split, times in (("train", 10), ("valid", 1), ("test", 1)):
        for name, lines in (("de", DE), ("en", EN)):
            (folder / f"{split}.{name}").write_text("".join(f"{x}\n" for x in lines * times))
    recipe = read_recipe("transformer-pocket-translation", SMALL | {"data.corpus": str(folder)})
    train_model(recipe, folder / "run")
    return folder / "run"


def test_targets_are_the_beams_of_the_teacher_one_by_one(run: Path, tmp_path: Path) -> None:
    done = pf.teach(model=run, to=tmp_path / "lessons", beam=2)
    assert (done.pair, done.sources) == ("de-en", 60)
    opened = open_run(run)
    model, tokenizer = load(opened.folder), opened.need_tokenizer()
    made = {}
    for line in DE:
        tokens = torch.tensor([[*tokenizer.encode(line), model.config.end]])
        limit = min(2 * tokens.shape[1] + 10, model.config.max_len - 1)
        found = pf.translate(model, tokens, beam=2, n_best=1, max_len=limit)
        made[line] = " ".join(tokenizer.decode(found.plain(0, 0)).split())
    sources = (tmp_path / "lessons" / "train.de").read_text().splitlines()
    targets = (tmp_path / "lessons" / "train.en").read_text().splitlines()
    wanted = [line for line in DE * 10 if made[line]]
    assert sources == wanted
    assert targets == [made[line] for line in wanted]
    assert (tmp_path / "lessons" / "valid.en").read_text().splitlines() == EN
    assert sorted(p.name for p in (tmp_path / "lessons").iterdir()) == [
        *("test.de", "test.en", "train.de", "train.en", "valid.de", "valid.en")
    ]
    student = SMALL | {"data.corpus": str(tmp_path / "lessons"), "model.pattern": "f | cf"}
    train_model(read_recipe("transformer-pocket-translation", student), tmp_path / "student")


def test_what_was_stopped_goes_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from parformer.generate import sentences

    pf.teach(model=run, to=tmp_path / "whole", beam=1)
    monkeypatch.setattr(teaching, "TOGETHER", 25)
    real, counts = sentences.translate_text, []

    def counted(model: object, tokenizer: object, some: list[str], **how: object) -> list[str]:
        counts.append(len(some))
        if len(counts) == 2:
            raise KeyboardInterrupt
        return real(model, tokenizer, some, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(sentences, "translate_text", counted)
    with pytest.raises(KeyboardInterrupt):
        pf.teach(model=run, to=tmp_path / "parts", beam=1)
    with pytest.raises(ConfigError, match="the beginning of something else"):
        pf.teach(model=run, to=tmp_path / "parts", beam=3)
    pf.teach(model=run, to=tmp_path / "parts", beam=1)
    assert counts == [25, 25, 25, 10]
    for file in (tmp_path / "whole").iterdir():
        assert file.read_bytes() == (tmp_path / "parts" / file.name).read_bytes()


def test_bad_input_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FolderError, match="not empty"):
        pf.teach(model=run, to=run)
    model = pf.build(pf.preset("llama-pocket", pattern="f", d_model=32, d_inner=32))
    model.save(tmp_path / "model")
    assert main(["teach", str(tmp_path / "model"), "--to", str(tmp_path / "no")]) == 2
    told = capsys.readouterr().err.strip()
    assert "no run that learned from pairs" in told
    assert "\n" not in told
    assert not (tmp_path / "no").exists()
