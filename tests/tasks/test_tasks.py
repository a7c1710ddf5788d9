"""Is a task one file that everything else knows by its protocol alone?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from parformer.config import ModelConfig
from parformer.data.batches import Batch, Batches, MaskedWindows, Streams, Tokens, Windows
from parformer.data.tokens import Prepared
from parformer.errors import ConfigError
from parformer.evaluate.counting import entropy
from parformer.evaluate.perplexity import Score
from parformer.model import Model
from parformer.state import State
from parformer.tasks import TASKS, Language, Loss, Masked, Task, find_task, forget_task, task
from parformer.train.distributed import Workers
from parformer.train.loop import train
from parformer.train.session import Session
from tests.train.trials import begin, make_prepared, make_recipe


@pytest.mark.parametrize(
    ("family", "kind", "batches"),
    [
        ("transformer-xl", Language, Streams),
        ("gpt2", Language, Windows),
        ("bert", Masked, MaskedWindows),
    ],
)
def test_a_model_tells_its_task(family: str, kind: type[Task], batches: type[Batches]) -> None:
    found = find_task(make_recipe(family))
    assert type(found) is kind
    assert TASKS[found.name] is kind
    tokens = make_prepared().splits["train"].tokens
    assert type(found.batches(tokens)) is batches


def test_unknown_tasks_are_refused_by_name() -> None:
    recipe = make_recipe("gpt2").replaced({"train.task": "langauge"})
    with pytest.raises(ConfigError, match="unknown task 'langauge'; did you mean 'language'"):
        find_task(recipe)
    headless = make_recipe("gpt2").replaced({"model.head": "none"})
    with pytest.raises(ConfigError, match=r"no task for a model with head 'none'.*language"):
        find_task(headless)
    two = make_recipe("gpt2").replaced({"model.pattern": "sf | scf"})
    with pytest.raises(ConfigError, match="which texts are a pair; give --pair"):
        find_task(two)


def test_masked_and_language_losses_are_the_models_own() -> None:
    for family in ("transformer-xl", "gpt2", "bert"):
        tokens = make_prepared().splits["train"].tokens
        session = Session(make_recipe(family), tokens, workers=Workers())
        batch = session.reading.batches.at(3)
        session.model.eval()
        found = session.task.loss(session.model, batch, None)
        out = session.model(batch.inputs["tokens"], targets=batch.targets)
        assert torch.equal(found.total, out.loss)


def test_ignorance_is_the_entropy_of_the_tokens() -> None:
    prepared, recipe = make_prepared(), make_recipe("gpt2")
    known = find_task(recipe).ignorance(prepared)
    assert known == entropy(prepared.splits["train"].tokens, recipe.model.vocab_size)


@pytest.fixture
def copying() -> Iterator[type[Task]]:
    """A task of somebody else's: say every token again, with a penalty on large hidden states."""

    @task("copying")
    class Copying(Task):
        @classmethod
        def fits(cls, config: ModelConfig) -> bool:
            return False

        def batches(self, tokens: Tokens) -> Batches:
            config = self.recipe.train
            return Windows(tokens, batch=config.batch, length=self.shape.tgt_len, seed=config.seed)

        def loss(self, model: Model, batch: Batch, state: State | None) -> Loss:
            out = model(batch.inputs["tokens"], state, batch.inputs["tokens"])
            penalty = 0.01 * out.hidden.square().mean()
            assert out.loss is not None
            return Loss(out.loss + penalty, None, {"copy": out.loss, "penalty": penalty})

        def score(self, model: Model, prepared: Prepared, split: str, limit: int) -> Score:
            tokens = torch.from_numpy(prepared.splits[split].tokens[:64].astype("int64"))[None]
            with torch.no_grad():
                out = model.eval()(tokens[:, :8], targets=tokens[:, :8])
            assert out.loss is not None
            return Score(loss=float(out.loss), tokens=8)

    yield Copying
    forget_task("copying")


def test_a_task_of_ones_own_is_trained_scored_and_resumed(
    copying: type[Task], tmp_path: Path
) -> None:
    recipe = make_recipe("gpt2").replaced({"train.task": "copying"})
    prepared = make_prepared()
    for name in ("whole", "stopped"):
        begin(tmp_path / name, recipe, prepared)
    whole = train(recipe, prepared, tmp_path / "whole")
    first = train(recipe, prepared, tmp_path / "stopped", until=3)
    assert not first.finished
    again = train(recipe, prepared, tmp_path / "stopped")
    assert whole.result == again.result
    assert whole.result.valid.tokens == 8
