"""Does every tokenizer give back what it took, wherever the text is cut, and survive its JSON?"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parformer.data.bpe import Bpe
from parformer.data.characters import Bytes, Characters, UsedBytes
from parformer.data.library import many_threads
from parformer.data.text import PASSAGE, Count, passages
from parformer.data.tokenizer import cutoffs_for
from parformer.data.tokenizers import (
    Tokenizer,
    load_tokenizer,
    read_tokenizer,
    train_tokenizer,
)
from parformer.data.words import Words
from parformer.errors import ConfigError, CorpusError, FolderError, InputError, ParformerError

SAMPLE = (
    "the cat sat on the mat ; the dog\tsat too\n\n  it's 42 years — naïve Ünïcode 戦場の 🙂 \r\n"
    "<unk> the the end  \n \n\nlast line without an end"
)
EXACT = ("byte", "used-bytes", "character", "word", "bpe")
"""Kinds whose text comes back as it was, or as the words of it were."""
KIND = pytest.mark.parametrize("kind", EXACT)
TEXTUAL = pytest.mark.parametrize("kind", ["character", "word", "bpe"])


class Texts:
    """A corpus in memory, cut into chunks of any length."""

    about = "for tests"

    def __init__(self, name: str = "texts", chunk: int = 7, **parts: bytes | str) -> None:
        self.name, self.chunk = name, chunk
        self.parts = {k: v.encode() if isinstance(v, str) else v for k, v in parts.items()}
        self.splits = tuple(parts)
        self.reads = 0

    def chunks(self, split: str) -> Iterator[bytes]:
        self.reads += 1
        text = self.parts[split]
        for start in range(0, len(text), self.chunk):
            yield text[start : start + self.chunk]

    def size(self, split: str) -> int | None:
        return len(self.parts[split])

    def identity(self) -> str:
        return hashlib.sha256(repr(sorted(self.parts.items())).encode()).hexdigest()


def sample() -> Texts:
    return Texts(train=SAMPLE * 3, valid="the cat\n", test="the dog and ¿?\n")


def trained(kind: str, corpus: Texts | None = None, **limits: int) -> Tokenizer:
    if kind == "bpe":
        limits = {"vocab_size": 300} | limits
    return train_tokenizer(kind, corpus or sample(), **limits)  # type: ignore[arg-type]


def join(parts: Iterator[np.ndarray]) -> list[int]:
    return [int(token) for part in parts for token in part]


def cut(data: bytes, seed: int) -> list[bytes]:
    """The bytes in chunks of chance lengths, some of them empty."""
    rng = random.Random(seed)
    edges = sorted(rng.choices(range(len(data) + 1), k=9))
    return [data[a:b] for a, b in zip([0, *edges], [*edges, len(data)], strict=True)]


@KIND
def test_the_cuts_of_a_stream_have_no_effect(kind: str) -> None:
    tokenizer, data = trained(kind), SAMPLE.encode()
    whole = join(tokenizer.encode_chunks([data]))
    assert len(whole) > 20
    for seed in range(20):
        assert join(tokenizer.encode_chunks(cut(data, seed))) == whole
    assert join(tokenizer.encode_chunks(bytes([b]) for b in data)) == whole


@KIND
def test_a_stream_has_the_tokens_of_the_text(kind: str) -> None:
    tokenizer = trained(kind)
    text = SAMPLE + "\n"
    assert join(tokenizer.encode_chunks([text.encode()])) == tokenizer.encode(text)
    assert join(tokenizer.encode_chunks([])) == []


@KIND
def test_arrays_have_the_smallest_type(kind: str) -> None:
    tokenizer = trained(kind)
    types = {part.dtype for part in tokenizer.encode_chunks([SAMPLE.encode()])}
    assert types == {tokenizer.dtype} == {np.dtype("uint16" if kind == "bpe" else "uint8")}


@pytest.mark.parametrize(
    ("size", "dtype"), [(256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "int32")]
)
def test_types_hold_the_largest_token(size: int, dtype: str) -> None:
    words = Words(["<eos>", "<unk>", *(f"w{n}" for n in range(size - 2))])
    assert words.dtype == dtype
    (part,) = words.encode_chunks([f"w{size - 3} w0\n".encode()])
    assert part.tolist() == [size - 1, 2, 0]


@pytest.mark.parametrize("kind", ["byte", "bpe"])
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(kind: str, text: str) -> None:
    tokenizer = EVERY[kind]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["used-bytes", "character"])
def test_the_text_it_was_trained_on_comes_back(kind: str) -> None:
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(SAMPLE)) == SAMPLE


EVERY = {kind: trained(kind) for kind in EXACT}


@KIND
@given(st.data())
def test_any_tokens_become_text(kind: str, data: st.DataObject) -> None:
    tokenizer = EVERY[kind]
    tokens = data.draw(st.lists(st.integers(0, tokenizer.size - 1)))
    tokenizer.decode(np.array(tokens, tokenizer.dtype)).encode()


@KIND
def test_tokens_outside_the_vocabulary_are_refused(kind: str) -> None:
    tokenizer = EVERY[kind]
    for token in (-1, tokenizer.size):
        with pytest.raises(InputError, match=f"token {token} is outside the vocabulary"):
            tokenizer.decode([0, token])


@KIND
def test_half_a_surrogate_pair_is_no_text(kind: str) -> None:
    with pytest.raises(InputError, match=r"'\\ud800' at 1 of the text"):
        EVERY[kind].encode("a\ud800")


def test_stray_bytes_become_replacement_characters() -> None:
    assert Bytes().decode([0x61, 0xC3, 0x62]) == "a\ufffdb"
    assert UsedBytes(b"ab\xc3").decode([0, 2, 1]) == "a\ufffdb"
    assert EVERY["bpe"].decode(EVERY["bpe"].encode("戦")[:1]) == "\ufffd"


@KIND
def test_training_twice_gives_the_same(kind: str) -> None:
    other = sample()
    other.chunk = 64
    assert trained(kind, other) == trained(kind)


def test_bytes_in_use_are_those_of_all_splits() -> None:
    tokenizer = trained("used-bytes", Texts(train="caba", valid="\n", test=b"\xff"))
    assert isinstance(tokenizer, UsedBytes)
    assert tokenizer.used == b"\nabc\xff"
    assert tokenizer.encode("abc\n") == [1, 2, 3, 0]
    with pytest.raises(CorpusError, match=r"byte 0x64 at offset 5 of 'x' is not among the 5"):
        join(tokenizer.encode_chunks([b"aaa", b"bbd"], "'x'"))


def test_characters_come_by_frequency_then_code_point() -> None:
    corpus = Texts(train="éébbbaac", valid="cccc", test="zy")
    tokenizer = trained("character", corpus)
    assert isinstance(tokenizer, Characters)
    assert tokenizer.characters == "cbaéyz"
    assert tokenizer.size == 6
    with pytest.raises(InputError, match=r"'Q' \(U\+0051, number 4 of the text\)"):
        join(tokenizer.encode_chunks([b"abc\xc3", b"\xa9Q"]))


def test_rare_characters_become_unknown() -> None:
    corpus = Texts(train="éébbbaac", valid="cccc", test="zy")
    tokenizer = trained("character", corpus, vocab_size=4)
    assert tokenizer.size == 4
    assert tokenizer.encode("cbaé?") == [0, 1, 2, 3, 3]
    assert tokenizer.decode([0, 3]) == "c\ufffd"
    assert trained("character", corpus, min_count=2).encode("éz") == [3, 4]
    assert trained("character", corpus, vocab_size=100).size == 7


def test_text8_would_have_27_characters() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz "
    assert trained("character", Texts(train=letters, valid="a", test="b")).size == 27


def naive_words(text: str) -> list[str]:
    """The words of a file as Transformer-XL splits them."""
    found = []
    for line in text.removesuffix("\n").split("\n") if text else []:
        found += [*line.split(), "<eos>"]
    return found


@given(st.text(st.sampled_from("ab \n\t\r\u00a0"), max_size=40), st.integers(0, 99))
def test_words_are_split_as_transformer_xl_splits_them(text: str, seed: int) -> None:
    expected = naive_words(text)
    vocabulary = list(dict.fromkeys(["<eos>", "<unk>", *expected]))
    tokens = join(Words(vocabulary).encode_chunks(cut(text.encode(), seed)))
    assert [vocabulary[t] for t in tokens] == expected
    count = Count()
    for _ in count.watch(cut(text.encode(), seed)):
        pass
    assert (count.bytes, count.characters) == (len(text.encode()), len(text))
    assert count.words == len(expected)


def test_words_come_by_frequency_then_first_sight() -> None:
    corpus = Texts(train="d c c b b a\n<eos> a a\n", valid="e e e e e\n")
    tokenizer = trained("word", corpus)
    assert isinstance(tokenizer, Words)
    assert tokenizer.words == ("<eos>", "a", "c", "b", "d", "<unk>")
    assert tokenizer.encode("a e\n\nb") == [1, 5, 0, 0, 3]


def test_an_unk_in_the_text_keeps_its_place() -> None:
    tokenizer = trained("word", Texts(train="a <unk> <unk> b a <unk> c"))
    assert isinstance(tokenizer, Words)
    assert tokenizer.words == ("<eos>", "<unk>", "a", "b", "c")
    assert tokenizer.encode("nobody") == [1]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"vocab_size": 4}, "<eos> a b <unk>"),
        ({"vocab_size": 2}, "<eos> <unk>"),
        ({"vocab_size": 6}, "<eos> a b <unk> c d"),
        ({"vocab_size": 5}, "<eos> a b <unk> c"),
        ({"vocab_size": 99}, "<eos> a b <unk> c d"),
        ({"min_count": 3}, "<eos> a b <unk>"),
        ({"min_count": 4, "vocab_size": 3}, "<eos> a <unk>"),
    ],
)
def test_a_vocabulary_of_words_can_be_limited(limits: dict[str, int], words: str) -> None:
    corpus = Texts(train="a a a a b b b <unk> <unk> c d")
    tokenizer = trained("word", corpus, **limits)
    assert isinstance(tokenizer, Words)
    assert tokenizer.words == tuple(words.split())


def test_words_are_joined_with_blanks_and_lines() -> None:
    tokenizer = Words(["<eos>", "<unk>", "a", "b"])
    assert tokenizer.decode([2, 3, 0, 0, 1, 2, 0]) == "a b\n\n<unk> a\n"
    assert tokenizer.decode(tokenizer.encode("a  b\n\n b")) == "a b\n\nb"


def test_the_train_split_alone_teaches_words_and_pairs() -> None:
    corpus = Texts(valid="zz zz zz zz", train="a b a b", test="zz")
    assert "zz" not in trained("word", corpus).to_json()
    assert "zz" not in trained("bpe", corpus).to_json()
    assert "zz" in trained("word", Texts(valid="zz")).to_json()


@pytest.mark.parametrize(
    ("size", "cutoffs"),
    [
        (267_735, (19_997, 39_997, 199_997)),
        (200_001, (19_997, 39_997, 199_997)),
        (200_000, (19_997, 39_997)),
        (50_001, (19_997, 39_997)),
        (33_278, (19_997,)),
        (25_000, ()),
    ],
)
def test_cutoffs_follow_the_size(size: int, cutoffs: tuple[int, ...]) -> None:
    assert cutoffs_for(size) == cutoffs


def test_only_vocabularies_by_frequency_have_cutoffs() -> None:
    words = ["<eos>", "<unk>", *map(str, range(40_000))]
    assert Words(words).cutoffs == (19_997,)
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 30_000)))
    assert Characters(letters, unknown=True).cutoffs == (19_997,)
    assert EVERY["bpe"].cutoffs == Bytes().cutoffs == ()


@TEXTUAL
def test_bytes_that_are_no_utf8_are_named(kind: str) -> None:
    corpus = Texts("mine", chunk=3, train=b"abc de\xc3\xa9 fg\xff hi", valid=b"a")
    message = r"byte 0xff at offset 11 of 'train' of 'mine' is no UTF-8.*'byte'"
    with pytest.raises(CorpusError, match=message):
        trained(kind, corpus)
    with pytest.raises(CorpusError, match="byte 0xe6 at offset 3 of 'x' is no UTF-8"):
        join(EVERY[kind].encode_chunks([b"the\xe6", b"\x88"], "'x'"))


def test_a_mark_and_carriage_returns_are_kept() -> None:
    text = "\ufeffa\r\nb\r\n"
    for kind in ("byte", "used-bytes", "character", "bpe"):
        tokenizer = trained(kind, Texts(train=text))
        assert tokenizer.decode(join(tokenizer.encode_chunks([text.encode()]))) == text


@given(st.lists(st.sampled_from(["word", " ", "\n", "\t", "  ", "x" * 9, "…"])), st.integers(0, 9))
def test_passages_do_not_depend_on_cuts(words: list[str], seed: int) -> None:
    text = "".join(words)
    whole = list(short_passages([text]))
    assert "".join(whole) == text
    assert all(len(p) <= 8 for p in whole)
    parts = [text[:seed], *text[seed:]]
    assert list(short_passages(parts)) == whole


def short_passages(texts: list[str]) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parformer.data.text.PASSAGE", 8)
        yield from list(passages(texts))


def test_cuts_at_blanks_leave_the_pairs_as_they_are() -> None:
    tokenizer = EVERY["bpe"]
    assert isinstance(tokenizer, Bpe)
    rng = random.Random(3)
    bits = ["the", " ", "\n", " cat's", "\t", "  ", "戦場", "—", "\u3000", "42", "\r\n", "\x1c"]
    text = "".join(rng.choices(bits, k=2 * PASSAGE // 3))
    assert len(list(passages([text]))) > 1
    assert tokenizer.encode(text) == tokenizer._library.encode(text).ids


def test_a_long_run_without_blanks_is_cut_the_same_everywhere() -> None:
    text = "ab" * PASSAGE + " cd"
    tokenizer = EVERY["bpe"]
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    chunks = [text[i : i + 50_001].encode() for i in range(0, len(text), 50_001)]
    assert join(tokenizer.encode_chunks(chunks)) == tokens


@KIND
def test_a_tokenizer_survives_its_json(kind: str) -> None:
    tokenizer = EVERY[kind]
    again = read_tokenizer(tokenizer.to_json(), "here")
    assert again == tokenizer
    assert again.to_json() == tokenizer.to_json()
    assert join(again.encode_chunks([SAMPLE.encode()])) == join(
        tokenizer.encode_chunks([SAMPLE.encode()])
    )


def test_tokenizers_differ_by_what_they_were_taught() -> None:
    assert len(set(EVERY.values())) == len(EVERY)
    assert Words(["<eos>", "<unk>", "a"]) != Words(["<eos>", "<unk>", "b"])


HEAD = '{"format": "parformer-tokenizer-1", '


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("1" * 10_000, "not JSON"),
        ("[]", "no tokenizer of this version"),
        ('{"kind": "byte"}', "no tokenizer of this version"),
        ('{"format": "parformer-tokenizer-2", "kind": "byte"}', "no tokenizer of this version"),
        (HEAD + '"kind": "os.system"}', "of no kind known here"),
        (HEAD + '"kind": ["byte"]}', "of no kind known here"),
        (HEAD + '"kind": "byte", "more": 1}', "damaged byte tokenizer"),
        (HEAD + '"kind": "used-bytes", "bytes": []}', "do not ascend"),
        (HEAD + '"kind": "used-bytes", "bytes": [2, 1]}', "do not ascend"),
        (HEAD + '"kind": "used-bytes", "bytes": [1, 1]}', "do not ascend"),
        (HEAD + '"kind": "used-bytes", "bytes": [true, 256]}', "not all numbers"),
        (HEAD + '"kind": "used-bytes", "bytes": "ab"}', "must be a list"),
        (HEAD + '"kind": "character", "characters": "", "unknown": true}', "none, or one comes"),
        (HEAD + '"kind": "character", "characters": "aa", "unknown": true}', "one comes twice"),
        (HEAD + '"kind": "character", "characters": "a", "unknown": 1}', "must be a bool"),
        (HEAD + '"kind": "character", "characters": "\\ud800", "unknown": true}', "surrogate"),
        (HEAD + '"kind": "word", "words": {}}', "must be a list"),
        (HEAD + '"kind": "word", "words": ["<eos>", "<unk>", 3]}', "not all texts"),
        (HEAD + '"kind": "word", "words": ["<unk>", "<eos>"]}', "do not start with <eos>"),
        (HEAD + '"kind": "word", "words": ["<eos>", "a"]}', "lack <unk>"),
        (HEAD + '"kind": "word", "words": ["<eos>", "<unk>", "a", "a"]}', "one comes twice"),
        (HEAD + '"kind": "word", "words": ["<eos>", "<unk>", "a b"]}', "a blank inside"),
        (HEAD + '"kind": "word", "words": ["<eos>", "<unk>", ""]}', "is empty"),
        (HEAD + '"kind": "word", "words": ["<eos>", "<unk>", "\\udc00"]}', "surrogate"),
        (HEAD + '"kind": "bpe", "library": []}', "must be a dict"),
        (HEAD + '"kind": "bpe", "library": {}}', "no vocabulary"),
    ],
)
def test_damaged_tokenizers_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(FolderError, match=message) as caught:
        read_tokenizer(text, "some/tokenizer.json")
    assert str(caught.value).startswith("'some/tokenizer.json' ")
    assert "\n" not in str(caught.value)


def spoil(path: str, value: object) -> str:
    """The JSON of a BPE tokenizer with one thing inside replaced."""
    values = json.loads(EVERY["bpe"].to_json())
    at = values["library"]
    *above, last = path.split("/")
    for name in above:
        at = at[name]
    at[last] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "normalizer",
            {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""},
            "set up",
        ),
        ("pre_tokenizer", None, "set up"),
        ("added_tokens", [{"id": 300, "content": "the"}], "set up"),
        ("model/type", "WordPiece", "set up"),
        ("model/dropout", 0.5, "set up"),
        ("model/more", 1, "set up"),
        ("model/vocab/new", 5, "not numbered from 0 on"),
        ("model/vocab/new", 2**40, "not numbered from 0 on"),
        ("model/vocab/new", True, "not all numbered"),
        ("model/vocab/new", "300", "not all numbered"),
        ("model/vocab/戦", 300, "none of bytes"),
        ("model/vocab/\ud800", 300, "none of bytes"),
        ("model/vocab", {"a": 0}, "cover all bytes"),
        ("model/merges", None, "pairs of its tokens"),
        ("model/merges", [["t"]], "pairs of its tokens"),
        ("model/merges", [["t", "nobody"]], "pairs of its tokens"),
        ("model/merges", [["q", "x"]], "pairs of its tokens"),
        ("model/merges", [[[], {}]], "pairs of its tokens"),
    ],
)
def test_a_library_set_up_otherwise_is_refused(path: str, value: object, message: str) -> None:
    assert EVERY["bpe"].size == 300
    with pytest.raises(FolderError, match=message):
        read_tokenizer(spoil(path, value), "here")


@KIND
def test_spoilt_json_never_ends_in_a_traceback(kind: str) -> None:
    text, rng = EVERY[kind].to_json(), random.Random(5)
    outcomes: Counter[str] = Counter()
    for _ in range(60):
        at, span = rng.randrange(len(text)), rng.randrange(3)
        spoilt = text[:at] + rng.choice(["", "[", '"', "9", "null", "\x00"]) + text[at + span :]
        try:
            read_tokenizer(spoilt, "here").decode([0])
            outcomes["read"] += 1
        except ParformerError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
    assert outcomes["refused"] > 20


def test_a_large_text_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parformer.data.tokenizers.LIMIT", 20)
    with pytest.raises(FolderError, match="too large"):
        read_tokenizer(Bytes().to_json(), "here")


def test_folders_hold_tokenizers(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path) is None
    file = tmp_path / "tokenizer.json"
    file.write_text(EVERY["character"].to_json(), "utf-8")
    assert load_tokenizer(tmp_path) == EVERY["character"]
    file.write_bytes(b"\xff")
    with pytest.raises(FolderError, match=r"cannot read .*tokenizer\.json"):
        load_tokenizer(tmp_path)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match="no plain file"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("kind", "limits", "message"),
    [
        ("bytes", {}, "unknown tokenizer 'bytes'; did you mean 'byte'"),
        ("byte", {"vocab_size": 9}, "mean nothing to the tokenizer 'byte'"),
        ("used-bytes", {"min_count": 9}, "mean nothing to the tokenizer 'used-bytes'"),
        ("word", {"vocab_size": 1}, "must be at least 2, got 1"),
        ("word", {"min_count": -1}, "min_count must be at least 0"),
        ("bpe", {"vocab_size": 255}, "must be at least 256"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    kind: str, limits: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_tokenizer(kind, sample(), **limits)  # type: ignore[arg-type]


def test_pairs_are_learnt_up_to_the_size() -> None:
    words = [a + b + c for a in "bdfg" for b in "aeiou" for c in "lmnr"]
    corpus = Texts(train=" ".join(words * 3))
    assert trained("bpe", corpus, vocab_size=256).size == 256
    assert trained("bpe", corpus, vocab_size=290).size == 290
    everything = trained("bpe", corpus, vocab_size=8192)
    assert len(everything.encode(" bal dam gon")) == 3
    assert trained("bpe", corpus, vocab_size=8192, min_count=10**6).size == 256


def test_progress_hears_of_every_chunk() -> None:
    heard: list[tuple[str, float]] = []
    corpus = Texts(train="ab" * 7)
    train_tokenizer("word", corpus, progress=lambda *news: heard.append(news))  # type: ignore[arg-type]
    assert heard == [("counting words in train", 0.5), ("counting words in train", 1.0)]


def test_forked_processes_neither_complain_nor_hang() -> None:
    program = """
import os, sys
from tests.data.test_tokenizers import Texts, trained
tokenizer = trained("bpe", Texts(train="the cat sat " * 20000))
tokens = tokenizer.encode("the cat " * 60000)
child = os.fork()
if not child:
    os._exit(tokenizer.encode("the cat " * 60000) != tokens)
print(os.waitpid(child, 0)[1])
"""
    clean = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=clean
    )
    assert (answer.stdout, answer.stderr) == ("0\n", "")


def test_what_the_user_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    with many_threads():
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    with many_threads():
        assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "off"
