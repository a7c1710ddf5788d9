"""Does pretraining on documents lose what it says, change phases, and go on bit for bit?"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F

import parformer as pf
from parformer.cli import main
from parformer.embedding import IGNORE
from parformer.errors import ConfigError
from parformer.events import Step
from parformer.model import load
from parformer.phases import read_phase
from parformer.recipe import TrainConfig, read_recipe
from parformer.tasks import find_task
from parformer.train.run import read_run
from parformer.train.schedule import rate
from tests.tasks.office import FILL
from tests.train.trials import evidence

SMALL = ("model.d_model=16", "model.d_inner=24", "model.n_head=2", "model.pattern=sf",
         "data.vocab_size=120", "train.precision=fp32", "train.kernels=plain", "train.threads=1",
         "train.log_every=1", "train.checkpoint_every=2", "train.evaluate_every=4",
         "train.evaluate_tokens=600", "train.final_tokens=600", "model.max_len=32",
         "data.tokenizer=wordpiece")  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "documents.txt"
    rng = Random(0)
    lines = []
    for _ in range(300):
        for _ in range(rng.randint(1, 5)):
            words = " ".join(rng.choices(FILL, k=rng.randint(3, 8)))
            lines.append(f"{words.capitalize()}.\n")
        lines.append("\n")
    file.write_text("".join(lines))
    return file


PHASES = ("steps=3 length=16 batch=8 rate=1e-3 warmup=1", "steps=3 length=32 batch=4 rate=5e-4")


def train(text: Path, run: Path, *changes: str, watch: object = None) -> None:
    phases = f"train.phases={json.dumps(PHASES)}"
    pf.train(
        model="bert-pocket", task="pretrain", corpus=str(text), run=run,
        changes=(*SMALL, "model.pair_head=order", "model.pooler=true", "model.token_types=2",
                 "train.mask_unit=n-gram", "train.optimizer=nvlamb", phases, "train.batch=8",
                 *changes),
        **({} if watch is None else {"watch": watch}),
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(text: Path) -> Path:
    run = text.parent / "whole"
    train(text, run)
    return run


def test_a_pretraining_has_its_phases_and_its_scores(whole: Path) -> None:
    recipe = read_run(whole)
    assert recipe.train.steps == 6
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    rates = [row["rate"] for row in rows if "rate" in row]
    assert rates[:2] == [1e-3, 1e-3]
    assert rates[3] == 5e-4
    metrics = json.loads((whole / "result.json").read_text())["valid"]["metrics"]
    assert set(metrics) == {"masked_accuracy", "pair_accuracy"}
    looks = [row for row in rows if "valid_loss" in row]
    assert all({"valid_masked_accuracy", "valid_pair_accuracy"} <= row.keys() for row in looks)
    assert looks[-1]["valid_pair_accuracy"] == metrics["pair_accuracy"]
    task = find_task(recipe)
    from parformer.events import Watch
    from parformer.train.distributed import Workers
    from parformer.train.job import read_text
    from parformer.train.run import read_run_tokenizer

    prepared = read_text(recipe, Workers(), Watch(), read_run_tokenizer(whole), whole)
    batches = task.batches(prepared.splits["train"].tokens)
    assert batches.at(2, slice(0, 8)).tokens_bt.shape == (8, 16)
    assert batches.at(3, slice(0, 8)).tokens_bt.shape == (4, 32)
    assert batches.at(3, slice(4, 8)).tokens_bt.shape == (2, 32)
    model, batch = load(whole / "model"), batches.at(4, slice(0, 8))
    found = task.loss(model, batch, None)
    out = model(batch.tokens_bt, token_types=batch.inputs["types"], padding=batch.inputs["padding"])
    masked = F.cross_entropy(out.logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)
    pair = F.cross_entropy(out.pair_logits, batch.inputs["pair"])
    torch.testing.assert_close(found.total, masked + pair)
    torch.testing.assert_close(found.parts["masked"], masked)
    score = task.score(model, prepared, "valid", 0)
    assert 0 <= score.to_dict()["metrics"]["masked_accuracy"] <= 1  # type: ignore[index]


def test_it_is_evaluated_as_it_was_validated(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["evaluate", str(whole), "--tokens", "600", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    known = json.loads((whole / "result.json").read_text())["test"]
    assert found["metrics"] == known["metrics"]
    assert found["loss"] == pytest.approx(known["loss"])
    assert main(["evaluate", str(whole), "--split", "valid"]) == 0
    assert "pair accuracy" in capsys.readouterr().out


def test_packed_rows_are_for_models_without_pairs(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.pair_head 'order' wants pairs of segments"):
        train(text, tmp_path / "pairs", "train.packed=true")
    plain = ("model.pair_head=none", "model.pooler=false", "train.packed=true")
    train(text, tmp_path / "plain", *plain)
    metrics = json.loads((tmp_path / "plain" / "result.json").read_text())["valid"]["metrics"]
    assert set(metrics) == {"masked_accuracy"}


@pytest.mark.parametrize("step", [2, 4])
def test_a_killed_pretraining_ends_like_a_whole_one(step: int, text: Path, whole: Path) -> None:
    """Also where it was killed in its second phase."""

    class EnoughError(Exception):
        pass

    def stop(event: object) -> None:
        if isinstance(event, Step) and event.step == step:
            raise EnoughError

    run = text.parent / f"torn-{step}"
    with pytest.raises(EnoughError):
        train(text, run, watch=stop)
    assert main(["train", "--run", str(run)]) == 0
    assert evidence(run) == evidence(whole)


def test_what_was_pretrained_can_be_fine_tuned(text: Path, whole: Path, tmp_path: Path) -> None:
    from tests.tasks.office import write_reviews

    data = write_reviews(tmp_path / "reviews.csv", 40)
    found = pf.train(
        start=str(whole), task="classify", data=str(data), text=("body",), label="stars", epochs=1,
        run=tmp_path / "run", changes=("train.precision=fp32", "train.batch=8"),
    )  # fmt: skip
    assert found.outcome.finished
    moved, first = load(tmp_path / "run" / "model"), load(whole / "model")
    torch.testing.assert_close(
        moved.embedding.positions, first.embedding.positions, atol=0.05, rtol=0
    )


def test_phases_have_schedules_of_their_own() -> None:
    config = TrainConfig(steps=6, phases=PHASES, schedule="linear", warmup=9)
    rates = [rate(step, config) for step in range(6)]
    assert rates[0] == 1e-3  # its warm-up is one update
    assert rates[2] == pytest.approx(1e-3 / 2)
    assert rates[3] == 5e-4
    assert rates[5] == pytest.approx(5e-4 / 3)


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ("steps=3 length=8 batch=2", "cannot read the phase"),
        ("steps=3 length=8 batch=2 rate=x", "has a part that is no number"),
        ("steps=0 length=8 batch=2 rate=1", "must be above 0"),
        ("steps=1 size=8 batch=2 rate=1", "unknown part of a phase 'size'"),
    ],
)
def test_a_phase_that_is_none_is_refused(phase: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_phase(phase)
    with pytest.raises(ConfigError, match=message):
        TrainConfig(phases=(phase,))


def test_a_model_without_a_head_for_words_is_refused() -> None:
    recipe = read_recipe("bert-base", {"train.task": "pretrain"})
    with pytest.raises(ConfigError, match=r"needs model.head='masked', got 'none'"):
        find_task(recipe)
