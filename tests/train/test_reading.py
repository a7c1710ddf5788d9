"""Is what the blocks remember saved whole, and put back in the same places?"""

# b batch, t time

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from parformer.blocks.memory import InputMemory
from parformer.data.batches import Streams, Windows
from parformer.errors import FolderError
from parformer.model import Model, State, build
from parformer.tasks import find_task
from parformer.tasks.base import training_shape
from parformer.train.distributed import Workers
from parformer.train.reading import Reading
from tests.train.trials import make_prepared, make_recipe

TOKENS = make_prepared().splits["train"].tokens
RECIPE = make_recipe(model__dropout=0.0)


def make_reading(pieces: int = 2, workers: Workers | None = None, **changes: object) -> Reading:
    workers = workers or Workers()
    recipe = RECIPE.replaced({name.replace("__", "."): value for name, value in changes.items()})
    batches = find_task(recipe).batches(TOKENS)
    return Reading(batches, batch=4, rows=workers.rows(4), pieces=pieces, workers=workers)


def read(model: Model, reading: Reading, first: int, last: int) -> list[Tensor]:
    """Hidden streams of some batches, each piece after what it remembers."""
    found = []
    for index in range(first, last):
        for piece, batch in enumerate(reading.pieces(index)):
            out = model(batch.tokens_bt, reading.states[piece])
            reading.keep(piece, out.state)
            found.append(out.hidden.detach())
    return found


@pytest.fixture
def model() -> Model:
    return build(training_shape(RECIPE)).train()


@pytest.mark.parametrize("pieces", [1, 2, 4])
@pytest.mark.parametrize("later", [1, 2, 4])
def test_a_text_is_read_on_where_it_was_left(model: Model, pieces: int, later: int) -> None:
    """The rows of a batch stay in order, however many pieces it is worked off in."""
    whole = make_reading(pieces)
    read(model, whole, 0, 3)
    memory, position = whole.memory()
    assert position == 24
    assert sorted(memory) == ["0/inputs_bmd", "2/inputs_bmd"]
    assert all(len(tensor) == 4 for tensor in memory.values())
    again = make_reading(later)
    again.restore(model, memory, position)
    assert again.memory()[1] == position
    assert all(torch.equal(t, memory[name]) for name, t in again.memory()[0].items())
    ours, theirs = torch.cat(read(model, again, 3, 4)), torch.cat(read(model, whole, 3, 4))
    torch.testing.assert_close(ours, theirs)
    assert torch.equal(ours, theirs) or later != pieces


def test_what_was_restored_is_a_copy(model: Model) -> None:
    reading = make_reading()
    read(model, reading, 0, 2)
    memory, position = reading.memory()
    again = make_reading()
    again.restore(model, memory, position)
    for tensor in memory.values():
        tensor.fill_(9.0)
    assert all(not (t == 9.0).any() for t in again.memory()[0].values())


def test_nothing_remembered_is_nothing_restored(model: Model) -> None:
    reading = make_reading()
    assert reading.memory() == ({}, 0)
    reading.restore(model, {}, 0)
    assert reading.states == [None, None]


def test_windows_carry_nothing(model: Model) -> None:
    reading = make_reading(train__order="windows")
    assert isinstance(reading.batches, Windows)
    read(model, reading, 0, 2)
    assert reading.states == [None, None]
    assert reading.memory() == ({}, 0)


def test_an_epoch_begins_with_an_empty_memory(model: Model) -> None:
    reading = make_reading()
    assert isinstance(reading.batches, Streams)
    last = reading.batches.per_epoch
    read(model, reading, last - 2, last)
    assert reading.memory()[1] == 16
    for _ in reading.pieces(last):
        assert reading.states == [None, None]


def test_every_process_gets_its_own_rows(model: Model) -> None:
    whole = make_reading(1)
    read(model, whole, 0, 2)
    memory, position = whole.memory()
    for rank in range(2):
        part = make_reading(1, Workers(rank=rank, count=2))
        part.restore(model, memory, position)
        (state,) = part.states
        assert isinstance(state, State)
        assert (state.batch, state.position) == (2, 16)
        kept = state.blocks[0]
        assert isinstance(kept, InputMemory)
        assert torch.equal(kept.inputs_bmd, memory["0/inputs_bmd"][2 * rank : 2 * rank + 2])
        batch, *rest = part.pieces(2)
        assert not rest
        every = whole.batches.at(2).tokens_bt
        assert torch.equal(batch.tokens_bt, every[2 * rank : 2 * rank + 2])


@pytest.mark.parametrize("name", ["0/inputs_bmd", "first/inputs_bmd", "inputs_bmd"])
def test_another_runs_memory_is_refused(model: Model, name: str) -> None:
    rows = 3 if name[0] == "0" else 4
    with pytest.raises(FolderError, match=f"memory '{name}' has {rows} rows, the batch 4") as e:
        make_reading().restore(model, {name: torch.zeros(rows, 5, 16)}, 8)
    assert "\n" not in str(e.value)
