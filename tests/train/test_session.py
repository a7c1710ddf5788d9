"""Does an update depend on its number, the weights and the memory alone?"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parformer.data.batches import Batch, MaskedWindows, Streams, Windows
from parformer.errors import ConfigError, FolderError
from parformer.kernels import native
from parformer.model import Model, State
from parformer.recipe import Recipe, TrainConfig
from parformer.tasks import Task
from parformer.tasks.base import training_shape
from parformer.train.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parformer.train.distributed import Workers
from parformer.train.session import Objective, Session
from tests.train.trials import FAMILIES, make_prepared, make_recipe

PREPARED = make_prepared()
TOKENS = PREPARED.splits["train"].tokens


def make_session(recipe: Recipe, start: Checkpoint | None = None, **options: Any) -> Session:
    return Session(recipe, TOKENS, workers=Workers(), start=start, **options)


def bits(snapshot: Checkpoint) -> dict[str, list[float]]:
    """Every number of a checkpoint."""
    parts = {"w": snapshot.weights, "o": snapshot.optimizer, "m": snapshot.memory}
    return {
        f"{part} {name}": tensor.flatten().tolist()
        for part, tensors in parts.items()
        for name, tensor in tensors.items()
    }


def go_on(session: Session, first: int, last: int) -> list[tuple[float, float]]:
    return [(float(loss), float(norm)) for loss, norm in map(session.update, range(first, last))]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_a_session_goes_on_bit_for_bit(family: str, stop: int, tmp_path: Path) -> None:
    recipe = make_recipe(family)
    whole = make_session(recipe)
    expected = go_on(whole, 0, 6)
    broken = make_session(recipe)
    before = go_on(broken, 0, stop)
    write_checkpoint(tmp_path, broken.checkpoint(stop, {}), keep=2)
    torch.manual_seed(99)  # nothing that happens between may matter
    again = make_session(recipe, read_checkpoint(tmp_path / f"step-{stop:09d}"))
    assert before + go_on(again, stop, 6) == expected
    assert bits(again.checkpoint(6, {})) == bits(whole.checkpoint(6, {}))
    assert bool(again.checkpoint(6, {}).memory) == (family == "transformer-xl")


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "radam", "lamb", "nvlamb", "muon"])
def test_every_optimizer_goes_on_bit_for_bit(optimizer: str) -> None:
    recipe = make_recipe(train__optimizer=optimizer, train__weight_decay=0.1)
    whole, broken = make_session(recipe), make_session(recipe)
    expected = go_on(whole, 0, 9)
    seen = go_on(broken, 0, 7)
    again = make_session(recipe, broken.checkpoint(7, {}))
    assert seen + go_on(again, 7, 9) == expected
    assert bits(again.checkpoint(9, {})) == bits(whole.checkpoint(9, {}))


@pytest.mark.parametrize("family", ["transformer-xl", "gpt2"])
def test_compiled_kernels_go_on_bit_for_bit(family: str) -> None:
    if native.library() is None:
        pytest.skip("there is no compiler here")
    plain = go_on(make_session(make_recipe(family, model__dropout=0.0)), 0, 6)
    recipe = make_recipe(family, model__dropout=0.0, train__kernels="native")
    try:
        whole, broken = make_session(recipe), make_session(recipe)
        expected = go_on(whole, 0, 6)
        seen = go_on(broken, 0, 4)
        again = make_session(recipe, broken.checkpoint(4, {}))
        assert seen + go_on(again, 4, 6) == expected
        assert bits(again.checkpoint(6, {})) == bits(whole.checkpoint(6, {}))
    finally:
        native.enable(False)
    for ours, theirs in zip(expected, plain, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert expected != plain


def test_a_long_memory_goes_on_bit_for_bit() -> None:
    """Distances are embedded in advance, for more than a short memory needs."""
    recipe = make_recipe(model__mem_len=90, train__clamp_len=70)
    whole, broken = make_session(recipe), make_session(recipe)
    expected = go_on(whole, 0, 14)
    go_on(broken, 0, 11)
    again = make_session(recipe, broken.checkpoint(11, {}))
    assert go_on(again, 11, 14) == expected[11:]


class Reader(nn.Module):
    """Trains next to nothing; what it was given to read is all that matters."""

    def __init__(self, model: Model, task: Task) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, state: State | None) -> tuple[Tensor, State | None]:
        place = self.model.embedding.words.tables[0]
        return (place[0] ** 2).sum(), self.model.initial_state(len(batch.targets))


@pytest.mark.parametrize("family", FAMILIES)
def test_interruptions_never_change_the_order_of_the_text(family: str) -> None:
    recipe = make_recipe(family, model__dropout=0.0, model__pattern="f", train__accumulate=1)
    tokens = TOKENS[: 4 * (12 * 8 + 1) if family == "transformer-xl" else 4 * 12 * 8 + 1]
    seen: list[Batch] = []

    def session(start: Checkpoint | None = None) -> Session:
        made = Session(recipe, tokens, workers=Workers(), start=start, objective=Reader)
        read = made.reading.batches.at

        def record(index: int, rows: slice) -> Batch:
            seen.append(read(index, rows))
            return seen[-1]

        made.reading.batches.at = record  # type: ignore[method-assign]
        return made

    whole = session()
    epoch, steps = whole.reading.batches.per_epoch, whole.reading.batches.per_epoch + 3
    assert epoch == 12
    go_on(whole, 0, steps)
    expected, places = list(seen), (0, 1, 10, epoch - 1, epoch, epoch + 1)
    for stops in (s for count in (1, 2, 3) for s in combinations(places, count)):
        seen.clear()
        part, first = session(), 0
        for stop in stops:
            go_on(part, first, stop)
            part, first = session(part.checkpoint(stop, {})), stop
        go_on(part, first, steps)
        assert len(seen) == steps, stops
        for before, now in zip(expected, seen, strict=True):
            assert torch.equal(before.tokens_bt, now.tokens_bt), stops
            assert torch.equal(before.targets_bt, now.targets_bt), stops
            assert before.fresh == now.fresh, stops


def test_dropout_depends_on_the_step_alone() -> None:
    session = make_session(make_recipe())
    first, again = (
        float(session.gradient(session.reading, 0, 0)),
        float(session.gradient(session.reading, 0, 0)),
    )
    assert first == again
    masked = float(session.gradient(session.reading, 0, 1))
    assert masked != first  # the same text, but another mask
    calm = make_session(make_recipe(model__dropout=0.0))
    assert float(calm.gradient(calm.reading, 0, 0)) != first
    other = make_session(make_recipe(train__seed=1))
    assert float(other.gradient(other.reading, 0, 0)) != first


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_add_up_to_the_batch(family: str) -> None:
    results = []
    for pieces in (1, 2, 4):
        recipe = make_recipe(family, model__dropout=0.0, train__accumulate=pieces)
        session = make_session(recipe)
        go_on(session, 0, 2)
        loss = session.gradient(session.reading, 2, 2)
        results.append([loss, *(p.grad for p in session.parameters if p.grad is not None)])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-5)


def test_memory_begins_anew_with_an_epoch() -> None:
    recipe = make_recipe(model__dropout=0.0)
    session = Session(recipe, TOKENS[: 4 * 25], workers=Workers())
    assert session.reading.batches.per_epoch == 3
    lengths = []
    for step in range(7):
        session.gradient(session.reading, step, step)
        state = session.reading.states[0]
        assert state is not None
        assert state.blocks[0] is not None
        lengths.append((state.position, state.blocks[0].length))
    assert lengths == [(8, 8), (16, 12), (24, 12), (8, 8), (16, 12), (24, 12), (8, 8)]


def poisoned(what: str) -> Any:
    """An objective whose loss or gradient is no number at the third update."""

    class Poisoned(Objective):
        visits = 0

        def forward(self, *given: Any) -> tuple[Tensor, State | None]:
            loss, state = super().forward(*given)
            self.visits += 1
            if self.visits == 3 and what == "loss":
                loss = loss * float("nan")
            if self.visits == 3 and what == "gradient":
                weight = self.model.embedding.words.tables[0]
                # the value is 0, its slope at 0 infinite
                loss = loss + (weight[0, 0] - weight[0, 0].detach()).abs().sqrt()
            return loss, state

    return Poisoned


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
def test_numbers_that_are_none_never_reach_the_weights(
    what: str, clip: float, optimizer: str
) -> None:
    recipe = make_recipe(train__accumulate=1, train__clip=clip, train__optimizer=optimizer)
    session = make_session(recipe, objective=poisoned(what))
    go_on(session, 0, 2)
    before = {
        name: numbers for name, numbers in bits(session.checkpoint(2, {})).items() if name[0] != "m"
    }
    ((loss, norm),) = go_on(session, 2, 3)
    assert (loss != loss) == (what == "loss")
    assert norm != norm or norm == float("inf")
    after = bits(session.checkpoint(2, {}))
    assert all(after[name] == numbers for name, numbers in before.items())


def test_half_precision_keeps_its_weights_in_full() -> None:
    session = make_session(make_recipe(train__precision="bf16", model__dropout=0.0))
    plain = make_session(make_recipe(model__dropout=0.0))
    (half, _), (full, _) = go_on(session, 0, 1) + go_on(plain, 0, 1)
    assert half != full
    assert half == pytest.approx(full, rel=1e-2)
    assert {p.dtype for p in session.parameters} == {torch.float32}


def test_each_kind_of_model_gets_its_kind_of_batches() -> None:
    kinds = [type(make_session(make_recipe(family)).reading.batches) for family in FAMILIES]
    assert kinds == [Streams, Windows, MaskedWindows]
    windows = make_session(make_recipe(train__order="windows"))
    assert type(windows.reading.batches) is Windows
    go_on(windows, 0, 2)
    assert windows.checkpoint(2, {}).memory == {}
    forgetful = make_session(make_recipe(train__mem_len=0))
    assert type(forgetful.reading.batches) is Windows


def test_the_lengths_of_training_are_the_recipes() -> None:
    recipe = make_recipe(train__tgt_len=5, train__mem_len=7, train__clamp_len=3)
    shape = training_shape(recipe)
    assert (shape.tgt_len, shape.mem_len, shape.clamp_len) == (5, 7, 3)
    open_ = training_shape(make_recipe(train__tgt_len=0, model__tgt_len=9))
    assert (open_.tgt_len, open_.mem_len) == (9, 12)
    assert make_session(recipe).tokens_per_update == 20


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("gpt2", {"train__order": "streams"}, "'streams' needs a model with memory"),
        ("gpt2", {"train__tgt_len": 17}, "train.tgt_len 17 exceeds the model's window of 16"),
        ("transformer-xl", {"train__batch": 2000, "train__accumulate": 1}, "lower train.batch"),
    ],
)
def test_what_does_not_fit_is_refused(family: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words) as caught:
        make_session(make_recipe(family, **changes))
    assert caught.value.status == 2  # type: ignore[attr-defined]
    assert "\n" not in str(caught.value)


def test_every_process_needs_whole_pieces() -> None:
    recipe = make_recipe(train__batch=4, train__accumulate=4)
    with pytest.raises(ConfigError, match="accumulate 4 does not divide the 2 texts of each"):
        Session(recipe, TOKENS, workers=Workers(rank=1, count=2))


def test_a_memory_of_another_run_is_refused() -> None:
    session = make_session(make_recipe())
    go_on(session, 0, 2)
    snapshot = session.checkpoint(2, {})
    wider = make_recipe(train__batch=8)
    with pytest.raises(FolderError, match="has 4 rows, the batch 8"):
        make_session(wider, snapshot)
    moved = {name.replace("0/", "1/"): t for name, t in snapshot.memory.items() if name[0] == "0"}
    swapped = Checkpoint(2, snapshot.weights, snapshot.optimizer, moved, snapshot.progress)
    with pytest.raises(FolderError, match="remembers something for a block 'f'"):
        make_session(make_recipe(), swapped)


@pytest.mark.parametrize("changes", [{}, {"tie_weights": False}, {"tie_projections": "none"}])
def test_words_that_do_not_occur_have_a_gradient_too(changes: dict[str, Any]) -> None:
    """Of several processes one may see a rare word, the other not; both must share out alike."""
    adaptive = {"embedding": "adaptive", "cutoffs": [90, 120], "div_val": 2, **changes}
    session = make_session(make_recipe(**{f"model__{n}": v for n, v in adaptive.items()}))
    session.reading.batches.tokens_br = session.reading.batches.tokens_br % 90  # type: ignore[attr-defined]
    session.gradient(session.reading, 0, 0)
    assert all(p.grad is not None for p in session.parameters)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_without_a_gradient_are_known(family: str) -> None:
    session = make_session(make_recipe(family))
    session.gradient(session.reading, 0, 0)
    assert session.objective.idle == any(p.grad is None for p in session.parameters)


def test_defaults_leave_out_nothing() -> None:
    """A field that no update and no plan reads would be a promise that is not kept."""
    sources = Path(__file__).parents[2] / "src" / "parformer"
    code = "".join(
        file.read_text("utf-8")
        for part in ("train", "data", "evaluate", "tasks")
        for file in (sources / part).glob("*.py")
    )
    unread = [name for name in TrainConfig.__slots__ if f".{name}" not in code]
    assert unread == []
