"""Does a training end with the same model, however often it was broken off?"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from parformer.data.batches import sample
from parformer.data.characters import UsedBytes
from parformer.errors import FolderError, TrainingError
from parformer.evaluate.perplexity import evaluate
from parformer.events import Event, Notice, Watch
from parformer.model import State, load
from parformer.store import folder
from parformer.train import standing
from parformer.train.distributed import Workers
from parformer.train.loop import is_due, stop_signals, train
from parformer.train.session import Objective, Session
from parformer.train.standing import compare_machines, machine
from tests.train.trials import (
    FAMILIES,
    Breaker,
    begin,
    evidence,
    losses,
    make_prepared,
    make_recipe,
    metrics,
    train_to_the_end,
    train_until,
)

PREPARED = make_prepared()
MODEL_FILE = "model/model.safetensors"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_broken_training_ends_like_a_whole_one(family: str, tmp_path: Path) -> None:
    recipe = make_recipe(family)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for path in (whole, broken):
        begin(path, recipe, PREPARED)
    outcome, watch = train_to_the_end(whole, recipe, PREPARED)
    assert outcome.finished
    assert watch.losses.keys() == set(range(1, 9))
    for stop in (1, 3, 4, 8):
        part = train_until(broken, recipe, PREPARED, stop)
        assert part.notices == []
    again, rest = train_to_the_end(broken, recipe, PREPARED)
    assert rest.starts == [6]
    assert evidence(broken) == evidence(whole)
    assert again.result == outcome.result
    assert losses(whole) == watch.losses


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "radam", "lamb", "nvlamb", "muon"])
def test_every_optimizer_is_saved_whole(optimizer: str, tmp_path: Path) -> None:
    changes = {"train__weight_decay": 0.1, "train__clip": 0.25, "train__warmup": 3}
    recipe = make_recipe(train__optimizer=optimizer, train__steps=6, **changes)
    for name in ("whole", "broken"):
        begin(tmp_path / name, recipe, PREPARED)
    train_until(tmp_path / "broken", recipe, PREPARED, 5)
    for name in ("whole", "broken"):
        train_to_the_end(tmp_path / name, recipe, PREPARED)
    assert evidence(tmp_path / "broken") == evidence(tmp_path / "whole")


def test_means_are_not_torn(tmp_path: Path) -> None:
    """A line of metrics speaks for three steps, a checkpoint falls between."""
    recipe = make_recipe(train__log_every=3)
    for name in ("whole", "broken"):
        begin(tmp_path / name, recipe, PREPARED)
    _, watch = train_to_the_end(tmp_path / "whole", recipe, PREPARED)
    train_until(tmp_path / "broken", recipe, PREPARED, 5)
    train_to_the_end(tmp_path / "broken", recipe, PREPARED)
    assert evidence(tmp_path / "broken") == evidence(tmp_path / "whole")
    found = losses(tmp_path / "whole")
    assert list(found) == [3, 6, 8]
    for last, steps in ((3, (1, 2, 3)), (6, (4, 5, 6)), (8, (7, 8))):
        mean = sum(watch.losses[step] for step in steps) / len(steps)
        assert found[last] == pytest.approx(mean, rel=1e-12)


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    recipe, run = make_recipe(), tmp_path / "run"
    begin(run, recipe, PREPARED)
    outcome, _ = train_to_the_end(run, recipe, PREPARED)
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    again, watch = train_to_the_end(run, recipe, PREPARED)
    assert again == outcome
    assert watch.starts == []
    assert {file: file.stat().st_mtime_ns for file in run.rglob("*")} == before


def test_the_model_and_its_scores_are_what_was_trained(tmp_path: Path) -> None:
    recipe, run = make_recipe(train__tgt_len=4, train__mem_len=6), tmp_path / "run"
    begin(run, recipe, PREPARED)
    outcome, _ = train_to_the_end(run, recipe, PREPARED)
    model = load(run / "model")
    assert model.config == recipe.model  # not the lengths of training
    weights = folder.read_tensors(run / "checkpoints" / "step-000000008" / "weights.safetensors")
    assert weights.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(weights[name], p) for name, p in model.named_parameters())
    for split in ("valid", "test"):
        score = evaluate(model, PREPARED.splits[split].tokens, limit=300)
        assert outcome.result.loss_on(split) == pytest.approx(score.loss, rel=1e-5)
    rows = metrics(run)
    assert [row["step"] for row in rows if "valid_loss" in row] == [4, 8]
    assert rows[-1] == {"step": 8, "test_loss": outcome.result.loss_on("test")}


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    recipe, run = make_recipe(), tmp_path / "run"
    begin(run, recipe, PREPARED)
    train_until(run, recipe, PREPARED, 5)
    assert [row["step"] for row in metrics(run)] == [1, 2, 3, 4, 4]
    with (run / "metrics.jsonl").open("a") as torn:
        torn.write('{"step": 5, "loss": 99.0}\n{"step": 6, "lo')
    train_until(run, recipe, PREPARED, 7)
    assert list(losses(run)) == [1, 2, 3, 4, 5, 6]
    assert 99.0 not in losses(run).values()


def test_metrics_that_were_cut_begin_anew(tmp_path: Path) -> None:
    recipe, run = make_recipe(), tmp_path / "run"
    begin(run, recipe, PREPARED)
    train_until(run, recipe, PREPARED, 5)
    file = run / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:100])
    told: list[Event] = []
    assert train(recipe, PREPARED, run, watch=Watch(told.append)).finished
    assert any("a new log begins" in event.text for event in told if isinstance(event, Notice))
    assert (run / "damaged-metrics.jsonl").stat().st_size == 100
    assert min(json.loads(line)["step"] for line in file.read_text().splitlines()) >= 5


@pytest.mark.parametrize(
    "damaged", ["result.json", "model/model.safetensors", "model/manifest.json"]
)
def test_what_a_finished_run_lost_is_made_again(damaged: str, tmp_path: Path) -> None:
    recipe, run = make_recipe(), tmp_path / "run"
    begin(run, recipe, PREPARED)
    whole = train(recipe, PREPARED, run)
    files = {name: (run / name).read_bytes() for name in ("result.json", MODEL_FILE)}
    (run / damaged).write_bytes((run / damaged).read_bytes()[:-30])
    told: list[Event] = []
    again = train(recipe, PREPARED, run, watch=Watch(told.append))
    assert (again.finished, again.result) == (True, whole.result)
    assert any("made again from the last" in e.text for e in told if isinstance(e, Notice))
    assert files == {name: (run / name).read_bytes() for name in files}


def test_a_lost_model_without_a_checkpoint_is_no_reason_to_train_again(tmp_path: Path) -> None:
    recipe, run = make_recipe(), tmp_path / "run"
    begin(run, recipe, PREPARED)
    train(recipe, PREPARED, run)
    shutil.rmtree(run / "checkpoints")
    (run / MODEL_FILE).write_bytes(b"")
    with pytest.raises(FolderError, match="no checkpoint to make it again from"):
        train(recipe, PREPARED, run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_the_update_in_hand(number: int, tmp_path: Path) -> None:
    recipe, run = make_recipe(train__checkpoint_every=100), tmp_path / "run"
    begin(run, recipe, PREPARED)

    class Caller(Breaker):
        def step(self, step: int, loss: float, tokens_per_second: float) -> None:
            super().step(step, loss, tokens_per_second)
            if step == 3:
                os.kill(os.getpid(), number)

    before = [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]
    outcome = train(recipe, PREPARED, run, watch=Caller())
    assert (outcome.step, outcome.finished) == (3, False)
    assert [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)] == before
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-000000003"]
    assert not (run / "result.json").exists()
    _, rest = train_to_the_end(run, recipe, PREPARED)
    assert rest.starts == [3]
    other = tmp_path / "other"
    begin(other, recipe, PREPARED)
    _, whole = train_to_the_end(other, recipe, PREPARED)
    assert losses(run) == losses(other)
    assert rest.losses == {step: whole.losses[step] for step in range(4, 9)}


def test_a_second_interrupt_ends_it_at_once() -> None:
    with stop_signals() as caught:
        os.kill(os.getpid(), signal.SIGTERM)
        assert caught == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(caught) == 2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_thread_leaves_signals_to_others() -> None:
    found: list[list[int]] = []

    def inside() -> None:
        with stop_signals() as caught:
            found.append(caught)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [[]]


class Poison(Objective):
    """Spoils one number before the sixth update."""

    what = "loss"
    visits = 0

    def forward(self, *given: Any) -> tuple[Tensor, State | None]:
        self.visits += 1
        now = self.visits == 11  # there are two pieces to an update
        weight = self.model.embedding.words.tables[0]
        if now and self.what == "weight":
            with torch.no_grad():
                weight[255, 3] = float("nan")
        loss, state = super().forward(*given)
        if now and self.what == "loss":
            loss = loss * float("inf")
        if now and self.what == "gradient":
            loss = loss + (weight[0, 0] - weight[0, 0].detach()).abs().sqrt()
        return loss, state


def poison(what: str) -> type[Poison]:
    return type("Poison", (Poison,), {"what": what})


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("loss", r"the loss is inf at step 5; the last good checkpoint is step-000000004;"),
        ("gradient", r"the gradient's norm is (nan|inf) at step 5; the last good checkpoint is"),
        ("weight", r"the (weight|loss|gradient).*(no longer finite|is nan) at step [56]"),
    ],
)
def test_numbers_that_are_none_end_it(what: str, words: str, tmp_path: Path) -> None:
    recipe, run = make_recipe(), tmp_path / "run"
    begin(run, recipe, PREPARED)
    with pytest.raises(TrainingError, match=words) as caught:
        train(recipe, PREPARED, run, make_session=partial(Session, objective=poison(what)))
    assert caught.value.status == 3
    assert "\n" not in str(caught.value)
    assert "lower train.learning_rate" in str(caught.value)
    kept = sorted((run / "checkpoints").iterdir())
    assert [path.name for path in kept] == ["step-000000002", "step-000000004"]
    for path in kept:
        for name in ("weights.safetensors", "optimizer.safetensors"):
            tensors = folder.read_tensors(path / name)
            assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert not (run / "model").exists()
    for line in (run / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    outcome, _ = train_to_the_end(run, recipe, PREPARED)  # without the poison it goes on
    assert outcome.finished


def test_a_weight_that_no_loss_reads_is_still_looked_at(tmp_path: Path) -> None:
    """A word that never occurs gets no gradient, so nothing but a look finds it."""
    recipe = make_recipe(
        model__tie_weights=False, train__steps=6, train__evaluate_every=6, train__optimizer="lamb"
    )
    run = tmp_path / "run"
    begin(run, recipe, PREPARED)
    with pytest.raises(TrainingError, match=r"the weight 'embedding.words.tables.0' is no longer"):
        train(recipe, PREPARED, run, make_session=partial(Session, objective=poison("weight")))
    assert sorted(p.name for p in (run / "checkpoints").iterdir())[-1] == "step-000000004"


def test_a_damaged_checkpoint_costs_some_steps(tmp_path: Path) -> None:
    recipe, run, whole = make_recipe(), tmp_path / "run", tmp_path / "whole"
    for path in (run, whole):
        begin(path, recipe, PREPARED)
    train_to_the_end(whole, recipe, PREPARED)
    train_until(run, recipe, PREPARED, 5)
    file = run / "checkpoints" / "step-000000004" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    _, watch = train_to_the_end(run, recipe, PREPARED)
    assert watch.starts == [2]
    assert len(watch.notices) == 1
    assert "step-000000004 cannot be used" in watch.notices[0]
    shutil.rmtree(run / "checkpoints" / "damaged-step-000000004")
    assert evidence(run) == evidence(whole)


def test_where_all_checkpoints_are_damaged_nothing_is_overwritten(tmp_path: Path) -> None:
    recipe, run = make_recipe(), tmp_path / "run"
    begin(run, recipe, PREPARED)
    train_until(run, recipe, PREPARED, 5)
    for path in (run / "checkpoints").iterdir():
        (path / "manifest.json").write_text("{}")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(FolderError, match="none of the 2 checkpoints"):
        train(recipe, PREPARED, run)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_leftovers_are_swept(tmp_path: Path) -> None:
    recipe, run = make_recipe(), tmp_path / "run"
    begin(run, recipe, PREPARED)
    left = [run / ".model.a1b2", run / ".model.old.c3", run / "checkpoints" / ".step-000000002.d4"]
    for path in left:
        path.mkdir(parents=True)
        (path / "model.safetensors").write_bytes(b"half")
    train_until(run, recipe, PREPARED, 1)
    assert not any(path.exists() for path in left)


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    recipe, run = make_recipe(), tmp_path / "run"
    begin(run, recipe, PREPARED)
    train_until(run, recipe, PREPARED, 3)
    other = replace(PREPARED, tokenizer=UsedBytes(bytes(range(256))[::-1]))
    with pytest.raises(FolderError, match=r"tokenizer.json' is not the vocabulary that"):
        train(recipe, other, run)


@pytest.mark.parametrize("name", ["torch", "threads", "processes", "sharded", "device"])
def test_another_machine_is_called_not_bit_exact(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, run = make_recipe(), tmp_path / "run"
    begin(run, recipe, PREPARED)
    train_until(run, recipe, PREPARED, 3)
    other = replace(machine(Workers()), **{"threads": 1, name: "other"})
    monkeypatch.setattr(standing, "machine", lambda _: other)
    watch = train_until(run, recipe, PREPARED, 4)
    (notice,) = watch.notices
    assert notice.startswith(f"Not bit-exact from here on: {name} was ")
    assert notice.endswith("now it is other.")


def test_another_thread_count_is_called_not_bit_exact(tmp_path: Path) -> None:
    recipe, run = make_recipe(), tmp_path / "run"
    begin(run, recipe, PREPARED)
    train_until(run, recipe, PREPARED, 3)
    before = torch.get_num_threads()
    watch = train_until(run, recipe.replaced({"train.threads": 2}), PREPARED, 4)
    assert watch.notices == ["Not bit-exact from here on: threads was 1, now it is 2."]
    assert torch.get_num_threads() == before


def test_a_checkpoint_says_where_it_was_made() -> None:
    with pytest.raises(FolderError, match="does not say on what machine"):
        compare_machines(None, Workers(), Watch())


def test_checkpoints_come_by_the_step_or_by_the_clock() -> None:
    by_step, by_clock = make_recipe().train, make_recipe(train__checkpoint_every=0).train
    assert [step for step in range(1, 9) if is_due(by_step, step, 1e9)] == [2, 4, 6, 8]
    assert not is_due(by_clock, 4, 59.0)
    assert is_due(by_clock, 5, 61.0)


def test_a_sample_comes_from_all_over_the_text() -> None:
    tokens = np.arange(100_000)
    for limit in (0, 100_000, 200_000):
        assert sample(tokens, limit) is tokens
    assert len(sample(tokens, 1)) == 2
    for limit in (2, 500, 1024, 5000, 65_536, 99_999):
        taken = sample(tokens, limit)
        assert 0.98 * limit <= len(taken) <= limit
        assert (np.diff(taken) > 0).all()  # in order, nothing twice
    spread = sample(tokens, 65_536)
    assert spread[0] == 0
    assert spread[-1] > 98_000
