"""Do texts of different lengths come in batches that depend on their number alone?"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from parformer.data.bucketed import Bucketed, Example
from parformer.embedding import IGNORE
from parformer.errors import CorpusError

LENGTHS = np.random.default_rng(3).integers(1, 60, 101)
ROWS: list[Example] = [
    {"tokens": np.full(n, i), "types": np.arange(n) % 2, "targets": np.full(n, i)}
    for i, n in enumerate(LENGTHS)
]


def bucketed(**changes: int) -> Bucketed:
    return Bucketed(ROWS, **({"batch": 4, "seed": 1, "pad": 7} | changes))


def test_an_epoch_reads_every_text_once_but_for_a_remainder() -> None:
    batches = bucketed()
    for epoch in range(3):
        numbers = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        seen = Counter(int(row[0]) for n in numbers for row in batches.at(n).inputs["tokens"])
        assert len(seen) == 100
        assert set(seen.values()) == {1}


def test_a_batch_depends_on_its_number_alone() -> None:
    one, other = bucketed(), bucketed()
    for number in (0, 40, 3, 25, 24):
        other.at(number + 1)
        ours, theirs = one.at(number), other.at(number)
        assert torch.equal(ours.targets, theirs.targets)
        assert all(torch.equal(ours.inputs[name], theirs.inputs[name]) for name in ours.inputs)
    assert not torch.equal(one.at(0).targets, bucketed(seed=2).at(0).targets)
    first, second = one.at(0).targets, one.at(one.per_epoch).targets
    assert first.shape != second.shape or not torch.equal(first, second)


def test_rows_of_a_batch_are_those_of_the_whole() -> None:
    whole, part = bucketed().at(5), bucketed().at(5, slice(1, 3))
    assert torch.equal(whole.targets[1:3], part.targets)
    for name, tensor in whole.inputs.items():
        assert torch.equal(tensor[1:3], part.inputs[name])


def test_what_is_no_text_is_marked() -> None:
    batch = bucketed().at(2)
    present = batch.inputs["padding"]
    assert (batch.inputs["tokens"][~present] == 7).all()
    assert (batch.targets[~present] == IGNORE).all()
    assert (batch.targets[present] != IGNORE).all()
    numbers = batch.inputs["tokens"][:, 0]
    assert present.sum(1).tolist() == [LENGTHS[n] for n in numbers]


def test_texts_of_about_one_length_stand_together() -> None:
    def padding(batches: Bucketed) -> float:
        shares = [batches.at(n).inputs["padding"].float().mean() for n in range(25)]
        return 1 - float(torch.stack(shares).mean())

    assert padding(bucketed()) < 0.25 * padding(bucketed(pool=1))


def test_too_few_texts_are_refused() -> None:
    with pytest.raises(CorpusError, match=r"101 texts, but a batch has 102; lower train\.batch"):
        bucketed(batch=102)
