"""Are the counts those of a plain dictionary, and is nothing counted that was not in train?"""

from __future__ import annotations

import json
import logging
import lzma
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from parformer.data.characters import Bytes, Characters, UsedBytes
from parformer.data.tokens import Prepared, prepare
from parformer.data.words import Words
from parformer.errors import ConfigError, FolderError, InputError
from parformer.evaluate import counting
from parformer.evaluate.counting import References, entropy, references, references_of, text_of
from parformer.evaluate.perplexity import evaluate
from tests.conftest import small_model
from tests.data.test_tokenizers import Texts

Row = list[int]


class Naive:
    """Witten-Bell, one token at a time, from dictionaries."""

    def __init__(self, train: Row, vocab_size: int) -> None:
        self.train, self.vocab_size = train, vocab_size
        self.followers: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for place, token in enumerate(train):
            for length in range(min(place, 7) + 1):
                self.followers[tuple(train[place - length : place])][token] += 1

    def chance(self, context: Row, token: int) -> float:
        below = self.chance(context[1:], token) if context else 1 / self.vocab_size
        counts = self.followers.get(tuple(context))
        if counts is None:
            return below
        return (counts[token] + len(counts) * below) / (counts.total() + len(counts))

    def loss(self, split: Row, order: int) -> float:
        nats = [
            -math.log(self.chance(split[max(0, place - order + 1) : place], split[place]))
            for place in range(1, len(split))
        ]
        return math.fsum(nats) / len(nats)


def array(row: Row, vocab_size: int) -> NDArray[Any]:
    return np.array(row, np.min_scalar_type(vocab_size - 1))


def draw(length: int, vocab_size: int, seed: int) -> Row:
    """Tokens that repeat themselves: few are frequent, and phrases come again."""
    rng = np.random.default_rng(seed)
    phrases = [
        (rng.random(rng.integers(1, 12)) ** 4 * vocab_size).astype(int).tolist() for _ in range(20)
    ]
    row: Row = []
    while len(row) < length:
        row += phrases[rng.integers(20)]
    return row[:length]


def assert_as_naive(train: Row, splits: dict[str, Row], vocab_size: int) -> None:
    naive = Naive(train, vocab_size)
    found = references(
        array(train, vocab_size),
        {name: array(split, vocab_size) for name, split in splits.items()},
        vocab_size=vocab_size,
    )
    assert list(found) == list(splits)
    for name, split in splits.items():
        expected = [naive.loss(split, order) for order in range(1, 9)]
        assert found[name].orders == pytest.approx(expected, rel=0, abs=1e-10)
        assert found[name].unigram == found[name].orders[0]
        assert found[name].bigram == found[name].orders[1]
        assert found[name].uniform == math.log(vocab_size)
        assert (found[name].tokens, found[name].counted) == (len(split) - 1, len(train))


@pytest.mark.parametrize("vocab_size", [1, 2, 5, 27, 255, 256, 257, 300, 40_000, 300_000])
@pytest.mark.parametrize(
    "lengths", [(2000, 300, 200), (50, 9, 3), (3, 2, 20), (1, 5, 2), (8, 8, 8)]
)
def test_every_order_is_that_of_a_dictionary(
    vocab_size: int, lengths: tuple[int, int, int]
) -> None:
    row = draw(sum(lengths), vocab_size, seed=vocab_size)
    train, valid, test = np.split(row, np.cumsum(lengths)[:-1])
    splits = {"valid": valid.tolist(), "test": test.tolist()}
    assert_as_naive(train.tolist(), splits, vocab_size)


@given(st.data(), st.sampled_from([1, 2, 3, 256, 257, 70_000]))
def test_odd_texts_are_counted_as_by_a_dictionary(data: st.DataObject, vocab_size: int) -> None:
    token = st.sampled_from(sorted({0, vocab_size // 2, vocab_size - 1}))
    train = data.draw(st.lists(token, min_size=0, max_size=25))
    splits = data.draw(st.lists(st.lists(token, min_size=2, max_size=12), min_size=1, max_size=3))
    assert_as_naive(train, {str(i): split for i, split in enumerate(splits)}, vocab_size)


@pytest.mark.parametrize("vocab_size", [6, 300])
def test_what_may_follow_has_a_probability_of_one(vocab_size: int) -> None:
    train = array(draw(400, vocab_size, seed=1), vocab_size)
    for length in range(2, 10):
        context = train[100 : 100 + length]
        splits = {str(w): np.append(context, w) for w in range(vocab_size)}
        found = references(train, {"context": context} | splits, vocab_size=vocab_size)
        before = found.pop("context")
        for order in range(8):
            nats = [
                r.orders[order] * r.tokens - before.orders[order] * (length - 1)
                for r in found.values()
            ]
            assert math.fsum(math.exp(-n) for n in nats) == pytest.approx(1, abs=1e-9)


def test_the_same_tokens_are_predicted_as_by_a_model() -> None:
    model = small_model("transformer-xl", "sf")
    split = array(draw(40, 13, seed=2), 13)
    found = references(split, {"test": split}, vocab_size=13)["test"]
    assert found.tokens == evaluate(model, split).tokens


def test_a_long_split_is_read_in_blocks_to_the_same_end(monkeypatch: pytest.MonkeyPatch) -> None:
    train, valid, test = (array(draw(n, 5, seed=n), 5) for n in (300, 101, 64))
    whole = references(train, {"valid": valid, "test": test}, vocab_size=5)
    monkeypatch.setattr(counting, "BLOCK", 9)
    blocks = references(train, {"valid": valid, "test": test}, vocab_size=5)
    for name, found in whole.items():
        assert blocks[name].orders == pytest.approx(found.orders, rel=0, abs=1e-12)
        assert blocks[name].tokens == found.tokens


def test_splits_do_not_see_each_other() -> None:
    train, one, two = (array(draw(n, 3, seed=n), 3) for n in (60, 9, 30))
    alone = references(train, {"one": one}, vocab_size=3)["one"]
    for others in ({"one": one, "two": two}, {"two": two, "one": one}, {"one": one, "two": one}):
        beside = references(train, others, vocab_size=3)["one"]
        assert beside.orders == pytest.approx(alone.orders, rel=0, abs=1e-12)


def test_the_order_is_chosen_on_valid_for_all() -> None:
    train = array(draw(3000, 27, seed=3), 27)
    known, noise = train[500:900], array(np.random.default_rng(4).integers(0, 27, 400).tolist(), 27)
    found = references(train, {"test": noise, "valid": known}, vocab_size=27)
    valid, test = found["valid"], found["test"]
    assert valid.order == test.order == 1 + int(np.argmin(valid.orders)) > 2
    assert test.ngram == test.orders[test.order - 1] > min(test.orders)
    assert valid.ngram == min(valid.orders)
    other = references(train, {"valid": known, "test": noise}, vocab_size=27, choose_on="test")
    assert other["valid"].order == 1 + int(np.argmin(test.orders)) != valid.order
    first = references(train, {"a": noise, "b": known}, vocab_size=27)
    assert first["b"].order == other["valid"].order


def test_fewer_orders_are_the_first_of_eight() -> None:
    train, test = array(draw(500, 9, seed=5), 9), array(draw(80, 9, seed=6), 9)
    eight, three = (references(train, {"test": test}, vocab_size=9, orders=n) for n in (8, 3))
    assert three["test"].orders == eight["test"].orders[:3]


def test_of_a_long_train_the_beginning_is_counted() -> None:
    train, test = array(draw(500, 9, seed=5), 9), array(draw(80, 9, seed=6), 9)
    some = references(train, {"test": test}, vocab_size=9, most=100)["test"]
    assert some == references(train[:100], {"test": test}, vocab_size=9)["test"]
    assert some.counted == 100


def test_tokens_may_be_mapped_from_a_file(tmp_path: Path) -> None:
    row = array(draw(900, 300, seed=7), 300)
    row.tofile(tmp_path / "tokens")
    mapped = np.memmap(tmp_path / "tokens", np.uint16, "r")
    expected = references(row[:700], {"test": row[700::2]}, vocab_size=300)
    assert references(mapped[:700], {"test": mapped[700::2]}, vocab_size=300) == expected
    assert entropy(mapped, 300) == entropy(row, 300)


def test_a_text_that_cannot_be_counted_is_refused() -> None:
    text = np.arange(9)
    with pytest.raises(InputError, match="test has 1 tokens and so nothing to predict"):
        references(text, {"test": text[:1]}, vocab_size=9)
    with pytest.raises(InputError, match="token 8 of train is outside the vocabulary of 8"):
        references(text, {"test": text[:3]}, vocab_size=8)
    with pytest.raises(InputError, match="token -1 of test is outside the vocabulary of 9"):
        references(text, {"test": text - 1}, vocab_size=9)
    with pytest.raises(InputError, match="one dimension of whole numbers"):
        references(text, {"test": text / 2}, vocab_size=9)
    with pytest.raises(ConfigError, match="orders must be at least 2, got 1"):
        references(text, {"test": text}, vocab_size=9, orders=1)
    with pytest.raises(InputError, match="a text of 0 tokens"):
        entropy(text[:0], 9)
    with pytest.raises(InputError, match="token 8 of train"):
        entropy(text, 8)
    assert references(text, {}, vocab_size=9) == {}


# What it shows


def made(**changes: Any) -> References:
    values: dict[str, Any] = {
        "uniform": 5.5,
        "unigram": 3.1,
        "bigram": 2.4,
        "ngram": 1.5,
        "order": 6,
        "orders": (3.1, 2.4, 2.0, 1.8, 1.6, 1.5, 1.7, 1.9),
        "xz": 1.4,
        "tokens": 99,
        "counted": 1000,
    }
    return References(**values | changes)


def test_lines_name_what_there_is() -> None:
    assert made().lines() == [
        ("uniform", 5.5),
        ("letter frequencies", 3.1),
        ("bigram", 2.4),
        ("6-gram", 1.5),
        ("xz", 1.4),
    ]
    assert [name for name, _ in made(xz=None).lines(letters=False)] == [
        "uniform",
        "token frequencies",
        "bigram",
        "6-gram",
    ]
    assert [name for name, _ in made(order=2).lines()][2:] == ["bigram", "xz"]
    assert [name for name, _ in made(order=1, xz=None).lines()][2:] == ["bigram"]


def test_references_come_back_from_json() -> None:
    for found in (made(), made(xz=None)):
        assert References.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert References.from_dict(made().to_dict() | {"later": 1}) == made()
    with pytest.raises(FolderError, match="bigram must be a number"):
        References.from_dict(made().to_dict() | {"bigram": "many"})


# Frequencies alone


def test_entropy_is_that_of_the_frequencies(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25))
    row = np.array([3, 0, 3, 1] * 25, np.uint8)
    assert entropy(row, 4) == pytest.approx(expected, abs=1e-14)
    assert entropy(row, 40_000) == pytest.approx(expected, abs=1e-14)
    monkeypatch.setattr(counting, "CHUNK", 7)
    assert entropy(row, 4) == pytest.approx(expected, abs=1e-14)
    assert entropy(row[:1], 4) == 0


# xz


def raw(tokens: NDArray[Any]) -> bytes:
    return tokens.astype(np.uint8).tobytes()


def xz_of(train: bytes, split: bytes) -> float:
    row = [np.frombuffer(text, np.uint8) for text in (train, split)]
    found = references(row[0], {"test": row[1]}, vocab_size=256, text=raw)["test"].xz
    assert found is not None
    return found


def noise(length: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(length)


def test_xz_needs_nearly_nothing_for_what_it_has_read_and_everything_for_noise() -> None:
    train = noise(15_000, 0).hex().encode()
    assert 0 <= xz_of(train, train[5_000:25_000]) < 0.05
    # after text it does not store noise as it is, and codes it a little longer than it is
    assert xz_of(train, noise(20_000, 1)) == pytest.approx(math.log(256), rel=0.03)
    assert xz_of(b"", noise(20_000, 1)) == pytest.approx(math.log(256), rel=0.01)


def test_xz_is_the_program_of_that_name() -> None:
    train, split = (bytes(draw(n, 256, seed=n)) for n in (20_000, 5_000))
    more = len(lzma.compress(train + split, preset=6)) - len(lzma.compress(train, preset=6))
    assert xz_of(train, split) == pytest.approx(more * 8 * math.log(2) / 5_000, abs=0.02)


def test_xz_reads_the_end_of_train(monkeypatch: pytest.MonkeyPatch) -> None:
    train = noise(15_000, 0).hex().encode()
    monkeypatch.setattr(counting, "XZ_TRAIN", 10_000)
    monkeypatch.setattr(counting, "CHUNK", 777)
    assert xz_of(train, train[-9_000:]) < 0.05
    assert xz_of(train, train[:9_000]) > math.log(16)


def test_xz_is_left_out_unless_there_is_text() -> None:
    row = np.arange(9)
    assert references(row, {"test": row}, vocab_size=9)["test"].xz is None


def test_tokens_of_bytes_become_those_bytes() -> None:
    data = bytes(range(256))[::-3]
    used = UsedBytes(bytes(sorted(data)))
    for tokenizer in (Bytes(), used):
        [tokens] = tokenizer.encode_chunks([data])
        assert text_of(tokenizer)(tokens) == data
    assert text_of(Characters("äb", unknown=False))(np.array([1, 0])) == "bä".encode()


# Kept

PARTS = {"train": "the cat sat on the mat\n" * 30, "valid": "the mat\n" * 3, "test": "a cat sat"}


def ready(cache: Path, kind: str = "byte", **parts: str) -> Prepared:
    return prepare(Texts(**PARTS | parts), kind, cache=cache)  # type: ignore[arg-type]


def refuse(*arguments: Any, **options: Any) -> dict[str, References]:
    raise AssertionError("counted again")


@pytest.mark.parametrize("kind", ["byte", "used-bytes", "character", "word"])
def test_a_corpus_has_the_references_of_its_splits(kind: str, tmp_path: Path) -> None:
    prepared = ready(tmp_path, kind, train="a cat\nthe mat sat on\n" * 30)
    train, valid, test = (prepared.splits[name].tokens for name in ("train", "valid", "test"))
    found = references_of(prepared, cache=tmp_path)
    assert found == references(
        train,
        {"valid": valid, "test": test},
        vocab_size=prepared.tokenizer.size,
        text=text_of(prepared.tokenizer),
    )
    assert all(values.xz is not None for values in found.values())


def test_a_split_with_nothing_to_predict_is_left_out(tmp_path: Path) -> None:
    assert list(references_of(ready(tmp_path, test="a"), cache=tmp_path)) == ["valid"]
    only = prepare(Texts(train="abc"), "byte", cache=tmp_path)  # type: ignore[arg-type]
    assert references_of(only, cache=tmp_path) == {}


def test_nothing_is_counted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = references_of(ready(tmp_path), cache=tmp_path)
    monkeypatch.setattr(counting, "references", refuse)
    assert references_of(ready(tmp_path), cache=tmp_path) == first
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path))
    assert references_of(ready(tmp_path)) == first


def test_whatever_changes_the_references_changes_their_folder(tmp_path: Path) -> None:
    prepared = ready(tmp_path)
    test = prepared.splits["test"].tokens
    words = [
        prepare(Texts(**PARTS), "word", tokenizer=Words(["<eos>", "<unk>", word]), cache=tmp_path)  # type: ignore[arg-type]
        for word in ("cat", "the")
    ]
    ones, entries = np.ones(5, int), set()
    for count, call in enumerate(
        [
            lambda: references_of(prepared, cache=tmp_path),
            lambda: references_of(prepared, xz=False, cache=tmp_path),
            lambda: references_of(prepared, orders=3, cache=tmp_path),
            lambda: references_of(prepared, most=99, cache=tmp_path),
            lambda: references_of(prepared, {"test": test}, cache=tmp_path),
            lambda: references_of(prepared, {"test": test[:5]}, cache=tmp_path),
            lambda: references_of(prepared, {"valid": test[:5]}, cache=tmp_path),
            lambda: references_of(ready(tmp_path, train="other text"), cache=tmp_path),
            lambda: references_of(words[0], {"test": ones}, cache=tmp_path),
            lambda: references_of(words[1], {"test": ones}, cache=tmp_path),
        ],
        start=1,
    ):
        call()
        entries = set((tmp_path / "references").iterdir())
        assert len(entries) == count
    references_of(prepared, {"test": test[:5].astype(np.int64)}, cache=tmp_path)
    assert set((tmp_path / "references").iterdir()) == entries


def cut(text: str) -> str:
    return text[:-9]


def lie(text: str) -> str:
    return text.replace('"order": ', '"order": 1')


def empty(text: str) -> str:
    return ""


@pytest.mark.parametrize("spoil", [cut, lie, empty])
def test_damaged_references_are_counted_anew_with_a_notice(
    spoil: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepared = ready(tmp_path)
    first = references_of(prepared, cache=tmp_path)
    [manifest] = (tmp_path / "references").rglob("manifest.json")
    good = manifest.read_text("utf-8")
    assert spoil(good) != good
    manifest.write_text(spoil(good), "utf-8")
    with caplog.at_level(logging.WARNING):
        assert references_of(prepared, cache=tmp_path) == first
    assert "made anew" in caplog.text
    assert manifest.read_text("utf-8") == good
