"""Are models trained alike, wherever a training stopped and whoever is in a hurry?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parformer.data.tokens import Prepared
from parformer.errors import CorpusError, TrainingError
from parformer.events import Event, Step, Watch
from parformer.recipe import Recipe, read_recipe
from parformer.train import alike
from parformer.train.alike import Alike, read_curve
from parformer.train.distributed import Workers
from parformer.train.job import read_text
from parformer.train.run import read_run

SMALL = {
    "model.d_model": 16, "model.d_inner": 16, "model.n_head": 2, "model.pattern": "sf",
    "model.tgt_len": 16, "model.mem_len": 16, "train.batch": 2, "train.steps": 12,
    "train.warmup": 2, "train.evaluate_every": 2, "train.evaluate_tokens": 256,
    "train.final_tokens": 256, "train.compile": "off", "train.precision": "fp32",
    "train.kernels": "plain", "train.threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    text = tmp_path_factory.mktemp("text") / "words.txt"
    text.write_text("".join(f"line {i % 97} says {i * i % 89}\n" for i in range(900)))
    return read_recipe("pocket", {**SMALL, "data.corpus": str(text)})


@pytest.fixture(scope="module")
def prepared(recipe: Recipe) -> Prepared:
    return read_text(recipe, Workers(), Watch(), None, Path())


def test_a_training_tells_what_it_was_worth_on_the_way(
    recipe: Recipe, prepared: Prepared, tmp_path: Path
) -> None:
    trained = Alike(tmp_path, prepared, Watch()).run(recipe, "a")
    assert trained is not None
    assert (trained.finished, trained.steps) == (True, 12)
    assert [step for step, _ in trained.valid] == [2, 4, 6, 8, 10, 12]
    # what it knows from the training itself is what stands in its metrics
    assert trained.valid == read_curve(tmp_path / "a", "valid_loss")
    assert trained.loss == trained.valid[-1][1]
    assert trained.loss_at(5) == dict(trained.valid)[4]
    assert trained.loss_at(1) == float("inf")
    result = json.loads((tmp_path / "a" / "result.json").read_text())
    assert trained.test_loss == result["test"]["loss"]


def test_what_stopped_goes_on_and_what_is_finished_is_found(
    recipe: Recipe, prepared: Prepared, tmp_path: Path
) -> None:
    whole = Alike(tmp_path, prepared, Watch()).run(recipe, "whole")
    parts = Alike(tmp_path, prepared, Watch())
    first = parts.run(recipe, "parts", until=5)
    assert first is not None
    assert (first.finished, first.steps, first.test_loss) == (False, 5, None)
    second = parts.run(recipe, "parts")
    assert whole is not None
    assert second is not None
    assert (second.valid, second.test_loss) == (whole.valid, whole.test_loss)
    again = parts.run(recipe, "parts")
    assert again is not None
    assert (again.valid, again.pace) == (second.valid, None)


def test_a_training_ends_early_where_it_has_to(
    recipe: Recipe, prepared: Prepared, tmp_path: Path
) -> None:
    cut = Alike(tmp_path, prepared, Watch()).run(recipe, "cut", end=7)
    assert cut is not None
    assert (cut.finished, cut.steps) == (True, 7)
    late = Alike(tmp_path, prepared, Watch(), late=lambda: True).run(recipe, "late")
    assert late is not None
    assert (late.finished, late.steps) == (True, 1)  # a model there is, whatever it knows
    assert (tmp_path / "late" / "model").is_dir()


def test_the_pace_is_that_of_updates(recipe: Recipe, prepared: Prepared, tmp_path: Path) -> None:
    now = [0.0]

    def listen(event: Event) -> None:
        # a validation, or what others do, makes some of them long
        now[0] += (100.0 if event.step % 5 == 0 else 2.0) if isinstance(event, Step) else 0.0

    trained = Alike(tmp_path, prepared, Watch(listen), clock=lambda: now[0]).run(recipe, "a")
    assert trained is not None
    assert trained.pace == 2.0


def test_another_rate_begins_anew(recipe: Recipe, prepared: Prepared, tmp_path: Path) -> None:
    trainings = Alike(tmp_path, prepared, Watch())
    trainings.run(recipe, "a", until=4)
    slower = recipe.replaced({"train.learning_rate": recipe.train.learning_rate / 4})
    trained = trainings.run(slower, "a", until=2)
    assert trained is not None
    assert trained.steps == 2
    assert read_run(tmp_path / "a").train.learning_rate == slower.train.learning_rate


def test_numbers_that_are_none_are_told_and_give_nothing(
    recipe: Recipe, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object, **__: object) -> None:
        raise TrainingError("the loss is nan at step 3")

    said: list[Event] = []
    monkeypatch.setattr(alike, "train", diverge)
    assert Alike(tmp_path, prepared, Watch(said.append)).run(recipe, "a") is None
    assert "a: the loss is nan at step 3" in str(said)


def test_another_text_is_refused(recipe: Recipe, prepared: Prepared, tmp_path: Path) -> None:
    Alike(tmp_path, prepared, Watch()).run(recipe, "a", until=2)
    other = Prepared(
        prepared.corpus, "0" * 64, prepared.tokenizer, prepared.splits, prepared.folder
    )
    with pytest.raises(CorpusError, match="is not the one that"):
        Alike(tmp_path, other, Watch()).run(recipe, "a")


def test_what_nobody_goes_on_from_needs_no_checkpoints(
    recipe: Recipe, prepared: Prepared, tmp_path: Path
) -> None:
    trainings = Alike(tmp_path, prepared, Watch())
    trainings.run(recipe, "rate-1", end=2)
    trainings.run(recipe, "a", until=2)
    trainings.tidy("rate-*")
    assert not (tmp_path / "rate-1" / "checkpoints").exists()
    assert (tmp_path / "rate-1" / "model").is_dir()
    assert (tmp_path / "a" / "checkpoints").is_dir()


def test_a_training_that_is_made_longer_is_the_longer_training(
    recipe: Recipe, prepared: Prepared, tmp_path: Path
) -> None:
    """Until its rate falls, a trapezoid of 12 updates is one of 20."""
    short = recipe.replaced({"train.schedule": "trapezoid"})
    long = short.replaced({"train.steps": 20})
    trainings = Alike(tmp_path, prepared, Watch())
    trainings.run(short, "a", until=8)
    trainings.keep("a", "a-on")
    ended = trainings.run(short, "a")
    assert trainings.has("a-on")
    assert trainings.lengthen("a-on", "longer", long)
    assert trainings.lengthen("a-on", "longer", long)  # is the same the second time
    longer, whole = trainings.run(long, "longer"), trainings.run(long, "whole")
    assert ended is not None
    assert longer is not None
    assert whole is not None
    assert (longer.steps, longer.valid, longer.test_loss) == (20, whole.valid, whole.test_loss)
    assert ended.steps == 12
    # another rate is another training
    assert not trainings.lengthen("a-on", "else", long.replaced({"train.learning_rate": 0.5}))
    assert not trainings.lengthen("nobody", "else", long)


def test_a_longer_training_that_becomes_worse_ends_with_its_best_weights(
    recipe: Recipe, prepared: Prepared, tmp_path: Path
) -> None:
    trainings = Alike(tmp_path, prepared, Watch())
    wild = {"train.schedule": "constant", "train.learning_rate": 2.0, "train.steps": 4}
    short = recipe.replaced(wild)
    trainings.run(short, "a", until=2)
    trainings.keep("a", "a-on")
    long = short.replaced({"train.steps": 20, "train.patience": 99})
    assert trainings.lengthen("a-on", "longer", long)
    longer = trainings.run(long, "longer")
    assert longer is not None
    since = [loss for step, loss in longer.valid[:-1] if step > 2]
    assert since[-1] > 1.05 * min(since), "it became worse"
    assert longer.loss == pytest.approx(min(since), rel=1e-3)
