"""How is a text kept from copying itself for ever?

A model that looks for repeats makes the longest of them likelier still, and a text that copies
itself becomes one long repeat. So the token that would lengthen a copy is made less likely, the
more the longer the copy already is; whatever is shorter than some length is nobody's business.

>>> lengths([5, 6, 7, 8, 5, 6, 7], least=3)
{8: 3}
>>> lengths([5, 6, 7, 8, 5, 6, 7], least=4)
{}
"""

# b batch, v vocabulary

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

REACH = 1024
"""Tokens of a text in which copies are looked for."""
LONGEST = 256
"""Copies are told apart up to so many tokens."""
PENALTY = 0.15
"""Nats for every token that a copy is too long by."""


def lengths(text: Sequence[int], least: int) -> dict[int, int]:
    """How long the longest copy is that each token would go on with, from `least` on."""
    end, found = len(text) - 1, dict[int, int]()
    for place in range(end - 1, max(end - REACH, -1), -1):
        length = 0
        while length < LONGEST and length <= place and text[place - length] == text[end - length]:
            length += 1
        if length >= least:
            token = text[place + 1]
            found[token] = max(length, found.get(token, 0))
    return found


def shun_copies(logits_bv: Tensor, texts: Sequence[Sequence[int]], longest: int) -> None:
    """Make tokens that would lengthen a copy beyond so many tokens less likely, in place."""
    for logits_v, text in zip(logits_bv, texts, strict=True):
        for token, length in lengths(text, longest).items():
            if token < len(logits_v):
                logits_v[token] -= PENALTY * (length + 1 - longest)
