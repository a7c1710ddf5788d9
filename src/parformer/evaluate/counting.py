"""What does plain counting reach on this text?

A model has learned nothing but letter frequencies until it beats a bigram, and little more
until it beats the best n-gram. All of these are counted on train and then frozen, as a model
is; they predict the same tokens of a split as `evaluate` does.

>>> train, test = b"to be or not to be, that is the question " * 9, b"this is not the question"
>>> read = lambda text: np.frombuffer(text, np.uint8)
>>> found = references(read(train), {"test": read(test)}, vocab_size=256)["test"]
>>> [(name, round(loss, 2)) for name, loss in found.lines()]
[('uniform', 5.55), ('letter frequencies', 2.53), ('bigram', 1.35), ('3-gram', 0.99)]
"""

# n places of train and the splits, s of the splits in the text's order, q in sorted order, g groups
# of places where the same tokens begin, c their contexts: the groups of one token less

from __future__ import annotations

import hashlib
import lzma
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from parformer.counts import count, log_chances
from parformer.counts.count import MOST
from parformer.counts.look import Readable
from parformer.data.batches import Tokens
from parformer.data.characters import Bytes, UsedBytes
from parformer.data.tokenizer import Tokenizer
from parformer.data.tokens import Prepared
from parformer.errors import InputError
from parformer.evaluate.perplexity import as_stream
from parformer.fields import need_at_least
from parformer.records import Json, Record
from parformer.store.cache import digest, keep
from parformer.store.files import cache_folder

FORMAT = "parformer-references-1"
ORDERS = 8
"""An 8-gram predicts a token from the seven before it."""
BLOCK = 8_000_000
"""So many tokens of the splits are looked up at once, to bound the memory."""
LOOKED_UP = 2**22
"""So many chances are looked up at once."""
CHUNK = 2**20
"""Tokens that are turned into numbers or text at a time, where all at once would be too many."""
XZ_TRAIN = 4 * 2**20
"""xz reads so many of train's last bytes."""
XZ_DICTIONARY = 2 * XZ_TRAIN
"""How far back xz looks at most; it takes twelve times as much memory."""

Text = Callable[[Tokens], bytes]
"""Turns tokens back into the bytes they stand for."""


@dataclass(frozen=True, slots=True)
class References(Record):
    """What a text gives away to whoever only counts: losses in nats per token of one split."""

    uniform: float
    """All tokens are equally likely."""
    unigram: float
    """Each is as likely as it is frequent in train."""
    bigram: float
    """Likewise, after the one before it."""
    ngram: float
    """That of the best order."""
    order: int
    """Which order that is; it predicts a token from `order - 1` before it."""
    orders: tuple[float, ...]
    """Those of all orders, from 1 on."""
    xz: float | None
    """What xz needs for the split after it has read train; None where it was not asked for."""
    tokens: int
    """Predicted tokens of the split: all but the first."""
    counted: int
    """Tokens of train that were counted."""
    table: float | None = None
    """That of a table of n-grams in so many bytes; None where it was not asked for."""
    table_bytes: int = 0

    def to_dict(self) -> Json:
        """Plain values; of a table only where there is one, as version 0.1 had none."""
        values = Record.to_dict(self)
        if self.table is None:
            del values["table"], values["table_bytes"]
        return values

    @property
    def to_beat(self) -> float:
        """Who is not below it learned nothing: pairs, or the counts that stand beside a model."""
        return self.bigram if self.table is None else self.table

    @property
    def best(self) -> tuple[str, float]:
        """What reaches the lowest loss by counting alone, and that loss."""
        if self.table is not None and self.table < self.ngram:
            return f"{self.table_bytes / 1e6:.3g} MB of counts", self.table
        return f"a counted {self.order}-gram", self.ngram

    def lines(self, *, letters: bool = True) -> list[tuple[str, float]]:
        """Names and losses, as a table shows them; `letters` says what the tokens are called."""
        named = [
            ("uniform", self.uniform),
            ("letter frequencies" if letters else "token frequencies", self.unigram),
            ("bigram", self.bigram),
        ]
        if self.order > 2:
            named.append((f"{self.order}-gram", self.ngram))
        if self.table is not None:
            named.append((f"{self.table_bytes / 1e6:.3g} MB of counts", self.table))
        return named if self.xz is None else [*named, ("xz", self.xz)]


def references(
    train: Tokens,
    splits: Mapping[str, Tokens],
    *,
    vocab_size: int,
    orders: int = ORDERS,
    choose_on: str = "valid",
    text: Text | None = None,
    most: int = MOST,
    size: int = 0,
) -> dict[str, References]:
    """What counting `train`, or its first `most` tokens, tells about every split.

    The best order is chosen on the split `choose_on`, or on the first where there is none of
    that name, and is the same for all. With `text`, xz reads the last 4 MiB of train and then
    each split; its loss is the difference that the split makes to the size. With `size` there is
    a table of counts of so many bytes too.
    """
    need_at_least("vocab_size", vocab_size, 1)
    need_at_least("orders", orders, 2)
    need_at_least("most", most, 1)
    counted = _known(train[:most], vocab_size, "train")
    asked = {name: _known(tokens, vocab_size, name) for name, tokens in splits.items()}
    for name, tokens in asked.items():
        if len(tokens) < 2:
            raise InputError(
                f"{name} has {len(tokens)} tokens and so nothing to predict; give at least 2"
            )
    if not asked:
        return {}
    losses = _losses(counted, asked, vocab_size, orders)
    judge = losses[choose_on if choose_on in losses else next(iter(losses))]
    best = judge.index(min(judge))
    packed = _xz(train, asked, text) if text is not None else {}
    tabled = table_losses(counted, asked, vocab_size, size) if size else {}
    return {
        name: References(
            uniform=math.log(vocab_size),
            unigram=losses[name][0],
            bigram=losses[name][1],
            ngram=losses[name][best],
            order=best + 1,
            orders=losses[name],
            xz=packed.get(name),
            tokens=len(tokens) - 1,
            counted=len(counted),
            table=tabled.get(name),
            table_bytes=size,
        )
        for name, tokens in asked.items()
    }


def references_of(
    prepared: Prepared,
    samples: Mapping[str, Tokens] | None = None,
    *,
    xz: bool = True,
    orders: int = ORDERS,
    most: int = MOST,
    size: int = 0,
    cache: Path | None = None,
) -> dict[str, References]:
    """The references of a corpus, from the folder `references` of the cache if they are there.

    They are of all of valid and test, where those have a token to predict, or of `samples`.
    """
    if samples is None:
        present = {name: prepared.splits.get(name) for name in ("valid", "test")}
        samples = {
            name: split.tokens
            for name, split in present.items()
            if split is not None and len(split.tokens) >= 2
        }
    tokenizer = prepared.tokenizer
    told = [FORMAT, prepared.identity, tokenizer.to_json(), xz, orders, most]
    told += [size] if size else []
    sums = [[name, _sum(tokens)] for name, tokens in samples.items()]
    folder = (cache_folder() if cache is None else cache) / "references"

    def make(beside: Path) -> Json:
        found = references(
            prepared.splits["train"].tokens,
            samples,
            vocab_size=tokenizer.size,
            orders=orders,
            text=text_of(tokenizer) if xz else None,
            most=most,
            size=size,
        )
        return {name: values.to_dict() for name, values in found.items()}

    return keep(
        folder / f"{tokenizer.kind}-{digest([told, sums])[:20]}",
        make,
        lambda facts: {name: References.from_dict(facts[name]) for name in samples},
        needed=2**12,
    )


def table_losses(
    train: Tokens, splits: Mapping[str, Tokens], vocab_size: int, size: int
) -> dict[str, float]:
    """What a table of counts in so many bytes reaches on every split."""
    table = Readable(count(as_stream(train), vocab_size=vocab_size, size=size))
    return {name: table_loss(table, tokens) for name, tokens in splits.items()}


def table_loss(table: Readable, tokens: Tokens) -> float:
    """Nats per token of a split that a table of counts is asked about."""
    assert table.layout is not None
    nats, sight = 0.0, table.layout.order - 1
    step = max(1, LOOKED_UP // table.layout.vocab_size)
    for first in range(1, len(tokens), step):
        before = min(first, sight)
        piece = torch.from_numpy(tokens[first - before : first + step].astype(np.int64))
        told_nv = log_chances([table], piece[None, :-1], len(piece) - before)[0]
        nats -= float(told_nv.double().gather(1, piece[before:, None]).sum())
    return nats / (len(tokens) - 1)


def entropy(train: Tokens, vocab_size: int) -> float:
    """Nats per token of train's own frequencies: what knowing nothing else costs there.

    >>> round(entropy(np.array([0, 1, 0, 1]), 10) / math.log(2), 12)
    1.0
    """
    stream = as_stream(train)
    if not len(stream):
        raise InputError("a text of 0 tokens has no frequencies; give at least 1")
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, len(stream), CHUNK):
        block = _known(stream[start : start + CHUNK], vocab_size, "train")
        counts += np.bincount(block, minlength=vocab_size)
    share = counts[counts > 0] / len(stream)
    return float(-(share * np.log(share)).sum())


def text_of(tokenizer: Tokenizer) -> Text:
    """How this tokenizer's tokens become bytes; those of bytes exactly so, whatever they are."""
    if isinstance(tokenizer, Bytes):
        return lambda tokens: tokens.astype(np.uint8).tobytes()
    if isinstance(tokenizer, UsedBytes):
        used = np.frombuffer(tokenizer.used, np.uint8)
        return lambda tokens: used[tokens].tobytes()
    return lambda tokens: tokenizer.decode(tokens.tolist()).encode()


class _Piece(NamedTuple):
    """A part of a split, with so much before it as an n-gram sees."""

    split: str
    tokens: Tokens
    before: int
    """So many tokens at its beginning are not predicted."""


def _losses(
    train: Tokens, splits: Mapping[str, Tokens], vocab_size: int, orders: int
) -> dict[str, tuple[float, ...]]:
    """The losses of all orders on every split."""
    nats = {name: np.zeros(orders) for name in splits}
    for pieces in _rounds(splits, orders - 1):
        ends = np.cumsum([len(piece.tokens) for piece in pieces])
        for order, chances_s in enumerate(_chances(train, pieces, vocab_size, orders)):
            for piece, end in zip(pieces, ends, strict=True):
                predicted = chances_s[end - len(piece.tokens) + piece.before : end]
                nats[piece.split][order] -= np.log(predicted).sum()
    return {
        name: tuple((nats[name] / (len(tokens) - 1)).tolist()) for name, tokens in splits.items()
    }


def _rounds(splits: Mapping[str, Tokens], sight: int) -> Iterator[list[_Piece]]:
    """The splits in pieces, as many at a time as a block holds; mostly that is all of them."""
    waiting: list[_Piece] = []
    for name, tokens in splits.items():
        for first in range(1, len(tokens), BLOCK):
            before = min(first, sight)
            piece = _Piece(name, tokens[first - before : first + BLOCK], before)
            if waiting and sum(len(p.tokens) for p in [*waiting, piece]) > BLOCK:
                yield waiting
                waiting = []
            waiting.append(piece)
    yield waiting


def _chances(
    train: Tokens, pieces: list[_Piece], vocab_size: int, orders: int
) -> Iterator[NDArray[np.float64]]:
    """The probability of every token of the pieces, order by order (Witten and Bell, 1991).

    An order trusts its own counts as often as the context was seen, and the order below as
    often as something new followed it there: p = (c + t p') / (m + t), where m tokens of t
    kinds followed the context in train and c of them were this one. Where the context is new,
    p = p'. All places are sorted by the tokens that begin there, so that equal beginnings of
    any length are neighbours. No mark divides train and pieces: what would reach over an end
    is left out by its place.
    """
    seen = len(train)
    lengths = [len(piece.tokens) for piece in pieces]
    row_n = _joined([train, *(piece.tokens for piece in pieces)], vocab_size, orders)
    place_n = _sorted_places(row_n, vocab_size, orders)
    at_q = np.flatnonzero(place_n >= seen)
    place_q = place_n[at_q] - seen
    room_q = np.repeat(np.cumsum(lengths), lengths)[place_q] - place_q
    chances_s = np.full(sum(lengths), 1 / vocab_size)
    differs_n = np.zeros(len(place_n), bool)
    differs_n[0] = True
    context_n = np.zeros(len(place_n), np.int32)
    for order in range(1, orders + 1):
        last_n = row_n[order - 1 :][place_n]
        differs_n[1:] |= last_n[1:] != last_n[:-1]
        group_n = np.cumsum(differs_n, dtype=np.int32) - 1
        count_g = np.bincount(group_n[place_n <= seen - order], minlength=group_n[-1] + 1)
        context_g = context_n[differs_n]
        total_c = np.bincount(context_g, weights=count_g)
        kinds_c = np.bincount(context_g[count_g > 0], minlength=len(total_c))
        context_q = context_n[at_q]
        told_q = (room_q >= order) & (total_c[context_q] > 0)
        context_q, target_q = context_q[told_q], place_q[told_q] + order - 1
        count_q, kinds_q = count_g[group_n[at_q[told_q]]], kinds_c[context_q]
        mixed_q = count_q + kinds_q * chances_s[target_q]
        chances_s[target_q] = mixed_q / (total_c[context_q] + kinds_q)
        context_n = group_n
        yield chances_s


def _joined(parts: list[Tokens], vocab_size: int, more: int) -> NDArray[Any]:
    """All parts in a row, in the smallest type, with some zeros at the end."""
    row = np.zeros(sum(map(len, parts)) + more, np.min_scalar_type(vocab_size - 1))
    start = 0
    for part in parts:
        row[start : start + len(part)] = part
        start += len(part)
    return row


def _sorted_places(row: NDArray[Any], vocab_size: int, orders: int) -> NDArray[np.intp]:
    """All places but the last `orders`, sorted by the `orders` tokens that begin there."""
    bits = max(1, (vocab_size - 1).bit_length())
    keys = []
    for first in range(0, orders, 64 // bits):
        key = np.zeros(len(row) - orders, np.uint64)
        for offset in range(first, min(first + 64 // bits, orders)):
            key <<= np.uint64(bits)
            key |= row[offset : offset + len(key)]
        keys.append(key)
    # one key, as for bytes and letters, is sorted several times faster
    return np.argsort(keys[0]) if len(keys) == 1 else np.lexsort(keys[::-1])


def _xz(train: Tokens, splits: Mapping[str, Tokens], text: Text) -> dict[str, float]:
    """Nats per token that xz needs for each split after the end of train."""
    before = _last_bytes(train, text)
    with ThreadPoolExecutor(2) as pool:
        alone = pool.submit(_packed, before)
        both = {name: pool.submit(_packed, before + text(part)) for name, part in splits.items()}
        return {
            name: (done.result() - alone.result()) * math.log(256) / len(splits[name])
            for name, done in both.items()
        }


def _packed(data: bytes) -> int:
    """Bytes that xz makes of this, remembering all of it as far as its dictionary goes."""
    dictionary = min(max(len(data), 2**12), XZ_DICTIONARY)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": dictionary}]
    return len(lzma.compress(data, check=lzma.CHECK_NONE, filters=filters))


def _last_bytes(train: Tokens, text: Text) -> bytes:
    """The end of train's text, made from no more tokens than it takes."""
    parts, end = list[bytes](), len(train)
    while end > 0 and sum(map(len, parts)) < XZ_TRAIN:
        parts.insert(0, text(train[max(end - CHUNK, 0) : end]))
        end -= CHUNK
    return b"".join(parts)[-XZ_TRAIN:]


def _known(tokens: Tokens, vocab_size: int, name: str) -> Tokens:
    """The tokens, once all are known to be in the vocabulary."""
    stream = as_stream(tokens)
    for odd in (stream.min(), stream.max()) if len(stream) else ():
        if not 0 <= odd < vocab_size:
            raise InputError(
                f"token {odd} of {name} is outside the vocabulary of {vocab_size:,}; "
                "give the size of the tokenizer that made it"
            )
    return stream


def _sum(tokens: Tokens) -> str:
    """SHA-256 of tokens, whichever type they have."""
    total = hashlib.sha256()
    for start in range(0, len(tokens), CHUNK):
        total.update(tokens[start : start + CHUNK].astype("<i8").tobytes())
    return total.hexdigest()
