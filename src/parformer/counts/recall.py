"""Where did the text repeat itself, and what followed then?

The longest repeat counts, and of equally long ones the last. Attention learns to find it in
thousands of updates; here it is looked for, token by token, in a microsecond or two.
"""

# b batch, r tokens read: those remembered and those of the step, t time

from __future__ import annotations

import torch
from torch import Tensor

from parformer.counts.look import compiled
from parformer.kernels.operator import Operator

LONGEST = 32
"""Repeats are told apart up to so many tokens."""
SHORTEST = 2
"""A single token says little about what follows it."""


def run_repeats(tokens_br: Tensor, time: int, most: int) -> tuple[Tensor, Tensor]:
    """What followed the longest repeat that ends at each of the last `time` tokens, and its length.

    Repeats end at most `most` tokens before. Where there is none, both are 0.
    """
    tokens = tokens_br.detach().cpu().contiguous().to(torch.int64)
    expected, length = (torch.zeros(len(tokens), time, dtype=torch.int64) for _ in range(2))
    readers = compiled()
    if readers is not None:
        sizes = (*tokens.shape, time, most, SHORTEST, LONGEST, torch.get_num_threads())
        addresses = (tensor.data_ptr() for tensor in (tokens, expected, length))
        readers.repeats(*addresses, *sizes)
    else:
        for row, tokens_r in enumerate(tokens.tolist()):
            for place in range(time):
                found = longest_repeat(tokens_r[: len(tokens_r) - time + place + 1], most)
                expected[row, place], length[row, place] = found
    return expected.to(tokens_br.device), length.to(tokens_br.device)


def longest_repeat(text: list[int], most: int) -> tuple[int, int]:
    """The token after the longest repeat of a text's end, and its length.

    >>> longest_repeat([1, 2, 3, 4, 1, 2, 3], most=9)
    (4, 3)
    """
    end, best = len(text) - 1, (0, 0)
    for place in range(end - 1, max(end - most, 0) - 1, -1):
        length = 0
        while length < LONGEST and length <= place and text[place - length] == text[end - length]:
            length += 1
        if length >= SHORTEST and length > best[1]:
            best = (text[place + 1], length)
    return best


def outline_repeats(tokens_br: Tensor, time: int, most: int) -> tuple[Tensor, Tensor]:
    shape = (len(tokens_br), time)
    return tokens_br.new_empty(shape, dtype=torch.int64), tokens_br.new_empty(
        shape, dtype=torch.int64
    )


find_repeats = Operator("find_repeats", run_repeats, outline_repeats)
