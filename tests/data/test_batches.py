"""Does batch number n hold what it should, whoever asks and whenever?"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parformer.data.batches import (
    Batches,
    MaskedWindows,
    Streams,
    Windows,
    number_for,
    shuffled,
)
from parformer.embedding import IGNORE
from parformer.errors import CorpusError

TEXT = np.arange(214, dtype=np.uint16)


def make(kind: str, batch: int = 4, length: int = 6, seed: int = 3) -> Batches:
    size = {"batch": batch, "length": length, "seed": seed}
    if kind == "streams":
        return Streams(TEXT, **size)
    if kind == "windows":
        return Windows(TEXT, **size)
    return MaskedWindows(TEXT, **size, vocab_size=300, mask_id=299, share=0.3)


KINDS = ("streams", "windows", "masked")


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_depends_on_its_number_alone(kind: str) -> None:
    first, second = make(kind), make(kind)
    order = [17, 0, 5, 17, 3]
    for index in order:
        second.at(index)
    for index in range(20):
        a, b = first.at(index), second.at(index)
        assert torch.equal(a.tokens_bt, b.tokens_bt)
        assert torch.equal(a.targets_bt, b.targets_bt)
        assert a.fresh == b.fresh
        assert a.tokens_bt.shape == a.targets_bt.shape == (4, 6)
        assert a.tokens_bt.dtype == a.targets_bt.dtype == torch.int64
    other = make(kind, seed=4)
    assert any(not torch.equal(first.at(i).tokens_bt, other.at(i).tokens_bt) for i in range(20))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_whole_batch(kind: str) -> None:
    batches = make(kind)
    for index in (0, 1, 8, 30):
        whole = batches.at(index)
        for rows in (slice(0, 2), slice(2, 4), slice(3, 4)):
            part = batches.at(index, rows)
            assert torch.equal(part.tokens_bt, whole.tokens_bt[rows])
            assert torch.equal(part.targets_bt, whole.targets_bt[rows])
            assert part.fresh == whole.fresh


@given(
    length=st.integers(1, 12),
    batch=st.integers(1, 5),
    tokens=st.integers(70, 140),
    roll=st.booleans(),
)
def test_each_row_is_read_round_once_per_epoch(
    length: int, batch: int, tokens: int, roll: bool
) -> None:
    streams = Streams(np.arange(tokens), batch=batch, length=length, seed=1, roll=roll)
    row = tokens // batch
    for epoch in range(3):
        numbers = range(epoch * streams.per_epoch, (epoch + 1) * streams.per_epoch)
        read = [streams.at(n) for n in numbers]
        assert [b.fresh for b in read] == [True] + [False] * (streams.per_epoch - 1)
        tokens_bn = torch.cat([b.tokens_bt for b in read], dim=1)
        targets_bn = torch.cat([b.targets_bt for b in read], dim=1)
        assert torch.equal(tokens_bn[:, 1:], targets_bn[:, :-1])
        for number, (seen, wanted) in enumerate(zip(tokens_bn, targets_bn, strict=True)):
            low = number * row
            assert ((seen + 1 - low) % row == (wanted - low) % row).all()
            assert ((low <= wanted) & (wanted < low + row)).all()
            assert len(wanted.unique()) == len(wanted)  # no token is a target twice
            assert row - len(wanted) <= length  # and no more than a remainder never is
            if not roll:
                assert int(seen[0]) == low


def test_rolls_differ_by_epoch_and_by_row() -> None:
    streams = Streams(np.arange(40_000), batch=4, length=50, seed=0)
    starts = [
        (streams.at(epoch * streams.per_epoch).tokens_bt[:, 0] - torch.arange(4) * 10_000).tolist()
        for epoch in range(4)
    ]
    assert len({number for epoch in starts for number in epoch}) == 16


@pytest.mark.parametrize("kind", ["windows", "masked"])
def test_no_window_comes_twice_in_an_epoch(kind: str) -> None:
    batches = make(kind)
    epochs = []
    for epoch in range(4):
        starts = []
        for place in range(batches.per_epoch):
            batch = batches.at(epoch * batches.per_epoch + place)
            assert batch.fresh
            whole_bt = batch.tokens_bt
            if kind == "masked":
                whole_bt = torch.where(batch.targets_bt == IGNORE, whole_bt, batch.targets_bt)
            else:
                assert torch.equal(batch.targets_bt, whole_bt + 1)
            assert torch.equal(whole_bt, whole_bt[:, :1] + torch.arange(6))
            starts += whole_bt[:, 0].tolist()
        assert len(set(starts)) == len(starts) == 4 * batches.per_epoch
        assert len({start % 6 for start in starts}) == 1
        epochs.append(tuple(starts))
    assert len(set(epochs)) == 4
    assert len({epoch[0] % 6 for epoch in epochs}) > 1  # windows are cut elsewhere each time


def test_a_masked_batch_hides_the_same_share_of_every_row() -> None:
    batches = make("masked")
    batch = batches.at(7)
    asked_bt = batch.targets_bt != IGNORE
    assert asked_bt.sum(1).tolist() == [2, 2, 2, 2]
    assert not torch.equal(asked_bt, batches.at(8).targets_bt != IGNORE)
    assert (batch.tokens_bt == 299).any()
    left = [batches.at(i) for i in range(30)]
    untouched = [b.tokens_bt[b.targets_bt == IGNORE] for b in left]
    assert all((tokens < 214).all() for tokens in untouched)


@pytest.mark.parametrize("count", [*range(1, 70), 255, 256, 257, 1000, 4097])
def test_shuffled_is_a_permutation(count: int) -> None:
    order = [shuffled(i, count, key=number_for(count)) for i in range(count)]
    assert sorted(order) == list(range(count))
    if count > 20:
        assert order != list(range(count))
        assert order != [shuffled(i, count, key=number_for(count, 1)) for i in range(count)]


def test_a_shuffle_leaves_no_order_behind() -> None:
    order = [shuffled(i, 10_000, key=number_for("any")) for i in range(10_000)]
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05


def test_numbers_stay_what_they_were() -> None:
    """A run that goes on in a later version must find the same order."""
    assert number_for(0, "roll", 1, 2) == number_for("0 roll 1 2")
    assert number_for(0, "roll", 1, 2) != number_for(0, "roll", 2, 1)
    assert [number_for(0, "shuffle", epoch) >> 48 for epoch in range(3)] == [20161, 7974, 10211]
    assert [shuffled(i, 10, 5) for i in range(10)] == [0, 3, 7, 9, 2, 4, 5, 6, 8, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_is_too_short_is_refused(kind: str) -> None:
    with pytest.raises(CorpusError, match=r"214 tokens, but 4 .* need [\d,]+; lower train.batch"):
        make(kind, batch=4, length=60)
    enough = make(kind, batch=3, length=69)
    assert enough.per_epoch == 1
    assert enough.at(0).tokens_bt.shape == (3, 69)
