"""Which words does a masked model have to guess?

As BERT's authors have it: of every text a fixed share of places is drawn. Most of them are
hidden behind the mask, some get another word, and some are left as they are, so that a
model can trust no word it sees.

>>> import torch
>>> tokens_bt = torch.arange(40).view(2, 20)
>>> inputs_bt, targets_bt = mask_tokens(tokens_bt, torch.Generator().manual_seed(0), 99, 100)
>>> (targets_bt != IGNORE).sum(1).tolist()
[3, 3]
"""

# b batch, t time, s chosen places

from __future__ import annotations

import torch
from torch import Tensor

from parformer.embedding import IGNORE
from parformer.errors import InputError

HIDDEN, REPLACED = 0.8, 0.1
"""Shares of the chosen places that get the mask, and that get a random word."""


def mask_token(vocab_size: int) -> int:
    """The token that hides others: the vocabulary's last."""
    return vocab_size - 1


def mask_tokens(
    tokens_bt: Tensor,
    generator: torch.Generator,
    mask_id: int,
    vocab_size: int,
    share: float = 0.15,
) -> tuple[Tensor, Tensor]:
    """What the model reads, and what it has to say; a target is IGNORE where it need not.

    Every row has the same number of chosen places, and at least one.
    """
    if not 0 < share <= 1:
        raise InputError(f"share must be above 0 and at most 1, got {share:g}")
    if not 0 <= mask_id < vocab_size:
        raise InputError(f"mask_id {mask_id} is outside 0 … {vocab_size - 1}; name another token")
    batch, time = tokens_bt.shape
    count = min(time, max(1, round(share * time)))
    where = generator.device
    order_bt = torch.rand(batch, time, generator=generator, device=where).argsort(dim=1)
    fate_bs = torch.rand(batch, count, generator=generator, device=where)
    word_bs = torch.randint(vocab_size, (batch, count), generator=generator, device=where)
    places_bs, fate_bs, word_bs = (
        drawn.to(tokens_bt.device) for drawn in (order_bt[:, :count], fate_bs, word_bs)
    )
    said_bs = tokens_bt.gather(1, places_bs)
    read_bs = torch.where(fate_bs < HIDDEN + REPLACED, word_bs.to(said_bs.dtype), said_bs)
    read_bs = read_bs.masked_fill(fate_bs < HIDDEN, mask_id)
    inputs_bt = tokens_bt.scatter(1, places_bs, read_bs)
    targets_bt = torch.full_like(tokens_bt, IGNORE).scatter(1, places_bs, said_bs)
    return inputs_bt, targets_bt
