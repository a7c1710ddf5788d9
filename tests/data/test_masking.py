"""Are words masked as BERT's authors mask them?"""

# b batch, t time

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from parformer.data.masking import mask_tokens
from parformer.embedding import IGNORE
from parformer.errors import InputError

VOCAB, MASK = 1000, 999


def masked(tokens_bt: Tensor, seed: int = 0, share: float = 0.15) -> tuple[Tensor, Tensor]:
    return mask_tokens(tokens_bt, torch.Generator().manual_seed(seed), MASK, VOCAB, share)


def test_only_chosen_places_change_and_only_they_are_asked_for() -> None:
    tokens_bt = torch.randint(VOCAB - 1, (8, 40), generator=torch.Generator().manual_seed(1))
    before_bt = tokens_bt.clone()
    inputs_bt, targets_bt = masked(tokens_bt)
    chosen_bt = targets_bt != IGNORE
    assert torch.equal(tokens_bt, before_bt)
    assert torch.equal(targets_bt[chosen_bt], tokens_bt[chosen_bt])
    assert torch.equal(inputs_bt[~chosen_bt], tokens_bt[~chosen_bt])
    assert chosen_bt.sum(1).tolist() == [6] * 8
    assert len({tuple(row.nonzero()[:, 0].tolist()) for row in chosen_bt}) > 1


def test_eight_in_ten_are_hidden_one_replaced_one_kept() -> None:
    tokens_bt = torch.zeros(50, 1000, dtype=torch.int64)
    inputs_bt, targets_bt = masked(tokens_bt)
    read_s = inputs_bt[targets_bt != IGNORE]
    assert len(read_s) == 7500
    hidden, kept = (read_s == MASK).double().mean(), (read_s == 0).double().mean()
    assert hidden == pytest.approx(0.8, abs=0.02)
    assert kept == pytest.approx(0.1, abs=0.015)
    others = read_s[(read_s != MASK) & (read_s != 0)]
    assert len(others.unique()) > 400  # any word of the vocabulary
    assert others.min() < 20
    assert others.max() > VOCAB - 20


def test_every_place_is_equally_likely() -> None:
    _, targets_bt = masked(torch.zeros(4000, 20, dtype=torch.int64))
    shares_t = (targets_bt != IGNORE).double().mean(0)
    assert shares_t.min() > 0.12
    assert shares_t.max() < 0.18


@pytest.mark.parametrize(
    ("time", "share", "count"), [(1, 0.15, 1), (3, 0.15, 1), (20, 0.5, 10), (7, 1.0, 7)]
)
def test_at_least_one_place_is_chosen(time: int, share: float, count: int) -> None:
    _, targets_bt = masked(torch.ones(3, time, dtype=torch.int32), share=share)
    assert (targets_bt != IGNORE).sum(1).tolist() == [count] * 3
    assert targets_bt.dtype == torch.int32


def test_the_generator_decides() -> None:
    tokens_bt = torch.arange(100).view(2, 50)
    first, again, other = masked(tokens_bt), masked(tokens_bt), masked(tokens_bt, seed=1)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1], other[1])


def test_what_makes_no_sense_is_refused() -> None:
    tokens_bt, generator = torch.zeros(1, 5, dtype=torch.int64), torch.Generator()
    with pytest.raises(InputError, match=r"mask_id 7 is outside 0 … 6"):
        mask_tokens(tokens_bt, generator, 7, 7)
    for share in (0.0, -1.0, 1.5):
        with pytest.raises(InputError, match="share"):
            mask_tokens(tokens_bt, generator, 1, 7, share)
