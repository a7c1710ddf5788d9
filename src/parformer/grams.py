"""How long may counted n-grams be, and how small the table of them?"""

from __future__ import annotations

from parformer.errors import ConfigError
from parformer.fields import need_at_least

LONGEST_GRAM = 8
"""An 8-gram predicts a token from the seven before it."""
GRAM_BITS = 64
"""Bits that an n-gram is sorted by: of a large vocabulary only short ones are counted."""
TABLE_HEAD = 64
"""Whole numbers at the beginning of a table of counts."""


def token_bits(vocab_size: int) -> int:
    return max(1, (vocab_size - 1).bit_length())


def largest_order(vocab_size: int) -> int:
    """The longest n-grams that can be counted.

    >>> largest_order(256), largest_order(4096), largest_order(50257)
    (8, 5, 4)
    """
    return min(LONGEST_GRAM, GRAM_BITS // token_bits(vocab_size))


def least_bytes(order: int, vocab_size: int) -> int:
    """What a table of counts takes that knows frequencies alone."""
    return 4 * (TABLE_HEAD + vocab_size) + 24 * (order - 1)


def check_table(vocab_size: int, size: int, order: int) -> int:
    """The order that is meant, once a table of it has room for anything."""
    need_at_least("vocab_size", vocab_size, 1)
    longest = largest_order(vocab_size)
    if order < 0 or order > longest or order == 1:
        raise ConfigError(
            f"n-grams of 2 to {longest} tokens can be counted of {vocab_size:,}, "
            f"got count_order {order}"
        )
    least = least_bytes(order or longest, vocab_size)
    if size < least:
        raise ConfigError(
            f"a table of counts for {vocab_size:,} tokens takes {least:,} bytes at least, "
            f"got {size:,}"
        )
    return order or longest
