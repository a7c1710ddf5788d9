"""Is a teacher asked once, for the same numbers, however often its examples come?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

import pytest
import torch
from torch import Tensor

import parformer as pf
from parformer.data.batches import Batch
from parformer.data.labelled import Examples, Feature
from parformer.errors import FolderError, Stopped
from parformer.tasks.labelled import label_logits
from parformer.train import lessons as kept
from parformer.train import objective
from parformer.train.lessons import TOLD, lessons
from parformer.train.objective import open_teacher
from parformer.train.run import read_run
from parformer.train.session import Session

SMALL = ("model.pattern=sf", "model.d_model=32", "model.d_inner=64", "train.precision=fp32")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def days(tmp_path: Path) -> dict[str, object]:
    words = [("good", "lovely"), ("bad", "awful")]
    rows = [
        f"the day was {words[n % 2][1]} {'so ' * (n % 5)}{n},{words[n % 2][0]}" for n in range(60)
    ]
    (tmp_path / "days.csv").write_text("text,label\n" + "\n".join(rows) + "\n", "utf-8")
    asked = {"task": "classify", "data": str(tmp_path / "days.csv"), "beside": False}
    changes = (*SMALL, "train.batch=8", "train.learning_rate=0.01")
    pf.train(model="bert-pocket", steps=6, run=tmp_path / "teacher", changes=changes, **asked)
    taught = (f"compress.teacher={tmp_path / 'teacher'}", "compress.soft=1.0", "train.seed=5")
    return {"model": "bert-pocket", "changes": (*changes, *taught), **asked}


class Counting:
    """Counts how often a teacher was asked about all examples."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times, self.asked = 0, kept.all_logits
        monkeypatch.setattr(kept, "all_logits", self)

    def __call__(self, model: pf.Model, features: Sequence[Feature], pad: int) -> list[Tensor]:
        self.times += 1
        return self.asked(model, features, pad)


def test_answers_belong_to_their_examples(tmp_path: Path) -> None:
    model = pf.build(
        pf.preset(
            "bert-pocket",
            pattern="sf",
            d_model=32,
            label_head="class",
            pooler=True,
            labels=("a", "b"),
        )
    )
    rows = [list(range(5, 5 + 3 + n % 4)) for n in range(21)]
    features = [Feature(((row, len(row)),), (n % 2, 0), n) for n, row in enumerate(rows)]
    examples = Examples(features, batch=4, seed=1, pad=0, pool=2)
    taught = lessons(examples, model.eval(), "somebody")
    assert taught.per_epoch == examples.per_epoch
    for index in (0, 3, 7, 12):
        for some in (slice(None), slice(1, 3)):
            plain, batch = examples.at(index, some), taught.at(index, some)
            assert torch.equal(plain.tokens_bt, batch.tokens_bt)
            with torch.no_grad():
                wanted = label_logits(model, plain)
            torch.testing.assert_close(batch.inputs[TOLD], wanted, atol=1e-5, rtol=1e-5)


def test_a_teacher_is_asked_once_for_several_epochs_and_seeds(
    days: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, read = Counting(monkeypatch), []

    def hear(model: pf.Model, batch: Batch) -> Tensor:
        read.append(model)
        return label_logits(model, batch)

    monkeypatch.setattr(objective, "label_logits", hear)
    pf.train(steps=3, run=tmp_path / "short", **days)
    assert (count.times, len(read)) == (0, 6)  # less than an epoch: nothing comes twice
    pf.train(steps=14, run=tmp_path / "one", **days)
    assert (count.times, len(read)) == (1, 6 + 14)  # the student alone reads batches
    more = {**days, "changes": (*days["changes"], "train.seed=6")}  # type: ignore[misc]
    pf.train(steps=14, run=tmp_path / "two", **more)
    assert count.times == 1


def test_what_was_killed_ends_with_the_same_bits(
    days: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pf.train(steps=14, run=tmp_path / "whole", **days)
    update = Session.update

    def stopping(session: Session, step: int) -> object:
        if step == 9:
            raise KeyboardInterrupt
        return update(session, step)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "update", stopping)
        with pytest.raises((KeyboardInterrupt, Stopped)):
            pf.train(steps=14, run=tmp_path / "parts", **days)
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "other-cache"))
    pf.train(steps=14, run=tmp_path / "parts", **days)
    whole, parts = (
        dict(pf.load(tmp_path / name / "model").named_parameters()) for name in ("whole", "parts")
    )
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())


def test_another_teacher_in_the_same_place_is_noticed(
    days: dict[str, object], tmp_path: Path
) -> None:
    pf.train(steps=3, run=tmp_path / "student", **days)
    shaping = read_run(tmp_path / "student").compress
    assert shaping is not None
    assert len(shaping.teacher_identity) == 64
    student, folder = pf.load(tmp_path / "student" / "model"), tmp_path / "teacher" / "model"
    assert open_teacher(shaping, student) is not None
    teacher = pf.load(folder)
    with torch.no_grad():
        teacher.blocks[0].out.weight.add_(1.0)
    tokenizer = (folder / "tokenizer.json").read_text("utf-8")
    rmtree(folder)
    teacher.save(folder, tokenizer)
    with pytest.raises(FolderError, match="are not those that the run was started with"):
        open_teacher(shaping, student)
