"""Are models that tell labels, and models that translate, compressed as those that write are?"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import parformer as pf
from parformer.compress.coding import coded_maps

QUICK = {"rounds": 6, "threads": 1, "updates": 2}
WORDS = {"ein": "a", "hund": "dog", "rot": "red", "klein": "small", "und": "and"}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that tells whether a day was good."""
    folder = tmp_path_factory.mktemp("labelled")
    words = [("good", "lovely"), ("bad", "awful")]
    rows = [f"the day was {words[n % 2][1]} {n},{words[n % 2][0]}" for n in range(80)]
    (folder / "days.csv").write_text("text,label\n" + "\n".join(rows) + "\n", "utf-8")
    small = ("model.pattern=(sf)x2", "model.d_model=64", "model.d_inner=128", "train.batch=8")
    pf.train(
        model="bert-pocket", task="classify", data=str(folder / "days.csv"), steps=60, beside=False,
        run=folder / "run", changes=(*small, "train.learning_rate=0.01"),
    )  # fmt: skip
    return folder / "run"


@pytest.fixture(scope="module")
def translating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has hardly begun to translate."""
    folder, random = tmp_path_factory.mktemp("pairs"), Random(1)
    for split, count in (("train", 60), ("valid", 12), ("test", 4)):
        rows = [random.choices(list(WORDS), k=random.randint(1, 3)) for _ in range(count)]
        (folder / f"{split}.de").write_text("".join(" ".join(row) + "\n" for row in rows), "utf-8")
        said = [" ".join(WORDS[word] for word in row) for row in rows]
        (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in said), "utf-8")
    small = ("model.pattern=sf | scf", "model.d_model=64", "model.d_inner=128", "model.max_len=32")
    pf.train(
        model="transformer-pocket-translation", task="translate", data=str(folder), pair="de-en",
        steps=12, run=folder / "run", beside=False,
        changes=(*small, "data.tokenizer=character", "data.vocab_size=0", "train.batch_tokens=300"),
    )  # fmt: skip
    return folder / "run"


def test_labels_are_told_by_fewer_heads_in_fewer_bits(labelled: Path, tmp_path: Path) -> None:
    result = pf.compress(
        model=labelled, run=tmp_path / "few", by="shrink,distil,quantize", bits=8,
        limits=("size=0.7x",), **QUICK,
    )  # fmt: skip
    shrunk = next(stair for stair in result.stairs if stair.name == "shrink")
    assert shrunk.taken
    assert shrunk.figures.parameters < result.first.figures.parameters
    assert {one.bits for _, one in coded_maps(pf.load(tmp_path / "few" / "model"))} == {8}
    texts = ("the day was lovely 3", "the day was awful 4")
    told = pf.predict(model=tmp_path / "few", texts=texts).predictions
    before = pf.predict(model=labelled, texts=texts).predictions
    assert [one.label for one in before] == ["good", "bad"]
    assert len(told) == 2
    assert result.last.figures.size < 0.45 * result.first.figures.size


def test_a_translator_is_taught_and_kept_in_eight_bits(translating: Path, tmp_path: Path) -> None:
    result = pf.compress(
        model=translating, run=tmp_path / "few", by="shrink,distil,quantize", bits=8,
        limits=("size=0.8x",), **QUICK,
    )  # fmt: skip
    distilled = next(stair for stair in result.stairs if stair.name == "distil")
    assert (
        distilled.figures.loss < next(s for s in result.stairs if s.name == "shrink").figures.loss
    )
    assert result.last.name == "quantize"
    few, whole = (pf.load(run / "model").config for run in (tmp_path / "few", translating))
    assert few != whole
    assert few.pattern.encoder is not None
    source = ("ein hund",)
    assert len(pf.generate(model=tmp_path / "few", sources=source)) == 1
    assert pf.evaluate(model=tmp_path / "few", split="valid").score.loss == pytest.approx(
        result.last.figures.loss, rel=0.05
    )
