"""Tables of counted n-grams: right chances in the bytes there are, read alike both ways."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parformer.counts import Layout, count, count_without
from parformer.counts.count import all_levels, as_much_as_fits, estimates, grams, rounded
from parformer.counts.look import Readable, compiled, log_chances, look_plainly
from parformer.counts.table import CHANCES
from parformer.errors import ConfigError, FolderError
from parformer.grams import largest_order, least_bytes

RANDOM = np.random.default_rng(0)
TEXT = np.frombuffer(
    b"".join(b"the %d cats sat on the mat with %d rats. " % (i % 7, i % 5) for i in range(300)),
    np.uint8,
)


def naive_counts(tokens, order, ends=None):
    """How often every n-gram occurs whose last token is at one of `ends`."""
    ends = range(order - 1, len(tokens)) if ends is None else ends
    return Counter(
        tuple(int(t) for t in tokens[i - order + 1 : i + 1]) for i in ends if i >= order - 1
    )


def naive_chances(top, order, vocab):
    """Modified Kneser-Ney (Chen and Goodman, 1999), one dictionary per order, as printed."""
    counts = {order: top}
    for n in range(order - 1, 0, -1):
        counts[n] = Counter(gram[1:] for gram in counts[n + 1])
    chances = {0: {(): None}}

    def discount(n):
        often = Counter(min(c, 5) for c in counts[n].values())
        y = often[1] / max(often[1] + 2 * often[2], 1)
        raw = [i - (i + 1) * y * often[i + 1] / max(often[i], 1) for i in (1, 2, 3)]
        return [0.0] + [min(max(d, 0.1 * i), 0.95 * i) for i, d in enumerate(raw, start=1)]

    for n in range(1, order + 1):
        taken, follow = discount(n), defaultdict(dict)
        for gram, c in counts[n].items():
            follow[gram[:-1]][gram[-1]] = c
        chances[n] = {}
        for context, after in follow.items():
            total = sum(after.values())
            rest = sum(taken[min(c, 3)] for c in after.values()) / total
            for token, c in after.items():
                below = 1 / vocab if n == 1 else chances[n - 1][(*context[1:], token)]
                chances[n][(*context, token)] = (c - taken[min(c, 3)]) / total + rest * below
    return chances


@pytest.mark.parametrize("order", [2, 3, 5])
def test_chances_are_those_of_kneser_and_ney(order):
    tokens = TEXT[:3000]
    naive = naive_chances(naive_counts(tokens, order), order, 256)
    frequency_v, known = estimates(all_levels(*grams(tokens, 256, order), 256, order), 256)
    unseen = [naive[1].get((v,), 0) for v in range(256)]
    seen = np.array(unseen) > 0
    np.testing.assert_allclose(frequency_v[seen], np.array(unseen)[seen], rtol=2e-3)
    for n, level in enumerate(known, start=2):
        for key, chance in zip(level.key_g.tolist(), level.chance_g.tolist(), strict=True):
            *context, token = key.to_bytes(n, "big")
            assert chance == pytest.approx(naive[n][(*context[::-1], token)], rel=2e-3)
        assert len(level.key_g) == len(naive[n])


def test_a_table_gives_those_chances_back():
    order, tokens = 4, TEXT[:3000]
    naive = naive_chances(naive_counts(tokens, order), order, 256)[order]
    readable = Readable(count(tokens, vocab_size=256, size=200_000, order=order))
    for gram in list(naive)[::17]:
        given = torch.tensor([gram[:-1]])
        chance = float(log_chances([readable], given, 1)[0, 0, gram[-1]].exp())
        assert chance == pytest.approx(naive[gram], rel=0.12)


@pytest.mark.parametrize("vocab", [256, 300, 70_000])
def test_both_readers_agree(vocab):
    if compiled() is None:
        pytest.skip("no compiler here")
    tokens = RANDOM.zipf(1.5, 5000) % vocab
    readable = Readable(count(tokens, vocab_size=vocab, size=20_000 + 4 * vocab))
    given = torch.from_numpy(tokens[:400].reshape(8, 50))
    fast = log_chances([readable], given, 45)
    plain = look_plainly(readable, given.numpy(), 45, np.ones((8, 45), bool))
    np.testing.assert_allclose(fast.flatten(0, 1).numpy(), plain, atol=2e-3)
    np.testing.assert_allclose(np.exp(plain).sum(1), 1, atol=1e-4)


def test_which_table_is_asked():
    first, second = (
        Readable(count(t, vocab_size=256, size=9000)) for t in (TEXT[:999], TEXT[999:])
    )
    given = torch.from_numpy(TEXT[50:70].astype(np.int64).reshape(2, 10))
    which = torch.tensor([[0] * 5 + [1] * 5, [1] * 10])
    both = log_chances([first, second], given, 10, which)
    each = [log_chances([table], given, 10) for table in (first, second)]
    assert torch.equal(both[0, :5], each[0][0, :5])
    assert torch.equal(both[1], each[1][1])


@given(size=st.integers(1500, 60_000), order=st.integers(2, 8), length=st.integers(0, 4000))
@settings(max_examples=25, deadline=None)
def test_a_table_takes_the_bytes_it_was_given(size, order, length):
    least = least_bytes(order, 256)
    table = count(TEXT[:length], vocab_size=256, size=max(size, least), order=order)
    assert len(table) == max(size, least)
    layout = Readable(table).layout
    assert layout is not None
    assert layout.size <= len(table)
    assert layout.order == order


def test_more_bytes_know_more():
    def nats(size):
        given = torch.from_numpy(TEXT[-2000:].astype(np.int64))[None]
        told = log_chances([Readable(count(TEXT[:8000], vocab_size=256, size=size))], given, 2000)
        return float(-told[0, :-1].gather(1, given[0, 1:, None]).mean())

    losses = [nats(size) for size in (1500, 2500, 5000, 40_000)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]


def test_a_part_is_left_out_of_what_was_counted():
    order, edges = 3, [0, 4000, 4100, len(TEXT)]
    tables = count_without(TEXT, edges, vocab_size=256, size=50_000, order=order)
    for part, table in enumerate(tables):
        others = [i for i in range(len(TEXT)) if not edges[part] <= i < edges[part + 1]]
        naive = naive_chances(naive_counts(TEXT, order, others), order, 256)[order]
        layout = Readable(table).layout
        assert layout is not None
        assert layout.rooms[-1].tokens == len(naive)


@given(st.lists(st.lists(st.floats(1e-5, 1), min_size=1, max_size=9), min_size=1, max_size=9))
@settings(max_examples=50, deadline=None)
def test_rounded_chances_keep_their_sum(rows):
    rows = [[x / sum(row) * 0.97 for x in row] for row in rows]
    chance = np.concatenate(rows)
    first = np.cumsum([0, *map(len, rows)])[:-1]
    off = np.add.reduceat(CHANCES[rounded(chance, first)] - chance, first)
    assert np.abs(off).max() < 0.025


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(ConfigError, match="2 to 8 tokens can be counted of 256, got count_order 9"):
        count(TEXT, vocab_size=256, size=9000, order=9)
    with pytest.raises(ConfigError, match="takes 1,448 bytes at least, got 100"):
        count(TEXT, vocab_size=256, size=100)
    assert largest_order(2) == 8


@pytest.mark.parametrize(("order", "vocab"), [(2, 2), (8, 256), (4, 50_257)])
def test_the_least_that_a_table_takes(order, vocab):
    none = (0,) * (order - 1)
    layout = Layout.of(order=order, vocab_size=vocab, contexts=none, tokens=none)
    assert layout.size == least_bytes(order, vocab)


def test_a_damaged_table_is_refused():
    table = count(TEXT, vocab_size=256, size=9000)
    layout = Layout.read(table)
    assert layout is not None
    room = layout.rooms[2]
    for place, value in ((0, 1), (room.firsts, 255), (room.chances + room.tokens - 1, 1)):
        broken = table.copy()
        broken[place] = value
        with pytest.raises(FolderError):
            Readable(broken)
    with pytest.raises(FolderError, match="should have"):
        Layout.read(table[: layout.size // 2])
    assert Layout.read(np.zeros(2000, np.uint8)) is None


def test_an_empty_text_knows_nothing():
    readable = Readable(count(TEXT[:0], vocab_size=256, size=9000))
    told = log_chances([readable], torch.zeros(1, 3, dtype=torch.int64), 3)
    assert torch.allclose(told, torch.full_like(told, -math.log(256)), atol=1e-4)


def test_of_a_long_text_the_beginning_of_every_part_is_counted():
    text, edges = as_much_as_fits(TEXT, parts=4, most=1000)
    assert edges == [0, 250, 500, 750, 1000]
    starts = [len(TEXT) * part // 4 for part in range(4)]
    pieces = [TEXT[start : start + 250] for start in starts]
    np.testing.assert_array_equal(text, np.concatenate(pieces))
    whole, parts = as_much_as_fits(TEXT, parts=4)
    assert whole is TEXT
    assert parts == [*starts, len(TEXT)]
