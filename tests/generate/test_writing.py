"""Does a model write what its numbers say, whoever else is in the batch, and show it whole?"""

# b batch, t time, v vocabulary

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from parformer.errors import ConfigError, InputError
from parformer.generate.writing import (
    Sampling,
    TextStream,
    draw,
    generate,
    generate_text,
    keep_top_k,
    keep_top_p,
    penalise,
)
from parformer.model import Model, build
from tests.conftest import lively, small_config, small_model

VOCAB = 13
CAUSAL = ("transformer-xl", "gpt2", "llama")


def make(family: str, pattern: str = "sfsf", **changes: Any) -> Model:
    if family == "transformer-xl":
        changes = {"mem_len": 64} | changes
    return small_model(family, pattern, **changes)


def noise(batch: int, size: int = VOCAB, seed: int = 0) -> Tensor:
    return 3 * torch.randn(batch, size, generator=torch.Generator().manual_seed(seed))


# Sampling


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 2, 5, 13])
def test_top_k_is_what_transformers_has(k: int, seed: int) -> None:
    logits_bv = noise(4, seed=seed)
    logits_bv[0, :3] = logits_bv[0].max()  # equals stay together
    none: Any = None
    assert torch.equal(keep_top_k(logits_bv, k), TopKLogitsWarper(k)(none, logits_bv))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 0.9, 0.999])
def test_top_p_is_what_transformers_has(p: float, seed: int) -> None:
    logits_bv = noise(4, seed=seed)
    none: Any = None
    assert torch.equal(keep_top_p(logits_bv, p), TopPLogitsWarper(p)(none, logits_bv))


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 4.0])
def test_the_penalty_is_what_transformers_has(penalty: float) -> None:
    logits_bv = noise(3)
    tokens_bt = torch.randint(VOCAB, (3, 6), generator=torch.Generator().manual_seed(1))
    seen_bv = torch.zeros(3, VOCAB, dtype=torch.bool).scatter(1, tokens_bt, True)
    expected: Any = RepetitionPenaltyLogitsProcessor(penalty)(tokens_bt, logits_bv)  # type: ignore[arg-type]
    assert_close(penalise(logits_bv, seen_bv, penalty), expected)


def test_a_row_keeps_the_tokens_that_transformers_would_and_draws_in_proportion() -> None:
    sampling = Sampling(temperature=0.7, top_k=6, top_p=0.8, repetition_penalty=1.5)
    logits_bv = noise(1)
    tokens_bt = torch.tensor([[int(logits_bv.argmax()), 3]])
    seen_bv = torch.zeros(1, VOCAB, dtype=torch.bool).scatter(1, tokens_bt, True)
    expected: Any = logits_bv
    for step in (
        RepetitionPenaltyLogitsProcessor(1.5),
        TemperatureLogitsWarper(0.7),
        TopKLogitsWarper(6),
        TopPLogitsWarper(0.8),
    ):
        expected = step(tokens_bt, expected)  # type: ignore[arg-type]
    shares = expected.softmax(-1)[0].tolist()
    count = 2000  # evenly spaced numbers meet every token as often as it is likely
    found = Counter(
        sampling.choose(logits_bv, seen_bv, [(i + 0.5) / count])[0] for i in range(count)
    )
    assert 1 < len(found) < 6
    for token, share in enumerate(shares):
        assert found[token] == pytest.approx(count * share, abs=1)


@given(st.integers(0, 2**31), st.floats(0, 1, exclude_max=True))
def test_a_number_points_into_the_stretch_of_its_token(seed: int, uniform: float) -> None:
    logits_bv = noise(2, seed=seed).double()
    logits_bv[0, ::2] = -math.inf
    for row, token in zip(logits_bv, draw(logits_bv, [uniform, uniform]), strict=True):
        shares = row.softmax(-1).tolist()
        assert shares[token] > 0
        assert sum(shares[:token]) <= uniform + 1e-12
        assert uniform <= sum(shares[: token + 1]) + 1e-12


def test_the_ends_of_the_unit_interval_are_tokens_too() -> None:
    logits_bv = torch.full((1, 50_000), -math.inf)
    logits_bv[0, 7:40_000] = 0.0
    assert draw(logits_bv, [0.0]) == [7]
    assert draw(logits_bv, [1 - 2**-53]) == [39_999]


def test_greedy_takes_the_likeliest_and_minds_the_penalty() -> None:
    logits_bv = torch.tensor([[1.0, 5.0, 4.0], [-1.0, -2.0, -9.0]])
    seen_bv = torch.tensor([[False, True, False], [True, False, False]])
    assert Sampling(temperature=0).choose(logits_bv, seen_bv, [0.9, 0.9]) == [1, 0]
    penalised = Sampling(temperature=0, repetition_penalty=3.0)
    assert penalised.choose(logits_bv, seen_bv, [0.9, 0.9]) == [2, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": -0.1},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"repetition_penalty": 0.0},
    ],
)
def test_sampling_checks_itself(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        Sampling(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    logits_bv = torch.tensor([[0.0, bad]])
    with pytest.raises(InputError, match="not finite"):
        Sampling().choose(logits_bv, torch.zeros(1, 2, dtype=torch.bool), [0.5])


# Writing on


def naive(model: Model, prompt: list[int], tokens: int, seed: int, place: int) -> list[int]:
    """The whole text again for every token, and the cumulative probabilities by hand."""
    random, text = Random(f"{seed} {place}"), list(prompt)
    for _ in range(tokens):
        with torch.no_grad():
            shares = model(torch.tensor([text])).logits[0, -1].softmax(-1).tolist()
        at, token = random.random(), 0
        while token < VOCAB - 1 and at >= sum(shares[: token + 1]):
            token += 1
        text.append(token)
    return text[len(prompt) :]


@pytest.mark.parametrize("pattern", ["sfsf", "ff"])
@pytest.mark.parametrize("family", CAUSAL)
def test_what_is_written_follows_from_the_whole_text(family: str, pattern: str) -> None:
    model, prompt = make(family, pattern), [3, 1, 4, 1, 5]
    expected = naive(model, prompt, 30, seed=2, place=0)
    assert generate(model, [prompt], 30, seed=2) == [expected]
    assert generate(model, [prompt], 30, seed=2, use_state=False) == [expected]
    assert len(set(expected)) > 3


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0, repetition_penalty=8), Sampling(top_k=4, top_p=0.9)]
)
@pytest.mark.parametrize("changes", [{}, {"same_length": True, "mem_len": 40}, {"clamp_len": 3}])
def test_state_changes_nothing_within_the_memory(changes: Any, sampling: Sampling) -> None:
    model = make("transformer-xl", **changes)
    carried, read_again = (
        generate(model, [[1, 2], [2, 1]], 25, sampling=sampling, use_state=use_state)
        for use_state in (True, False)
    )
    assert carried == read_again
    assert carried[0] != carried[1]


def test_the_penalty_minds_the_prompt_and_what_was_written() -> None:
    model, text = make("gpt2"), [3, 1, 4, 1, 0]
    written = generate(
        model, [text[:]], 20, sampling=Sampling(temperature=0, repetition_penalty=3)
    )[0]
    penalty = RepetitionPenaltyLogitsProcessor(3.0)
    for token in written:
        tokens: Any = torch.tensor([text])
        with torch.no_grad():
            assert int(penalty(tokens, model(tokens).logits[:, -1]).argmax()) == token
        text.append(token)
    first_plain = generate(model, [text[:5]], 1, sampling=Sampling(temperature=0))[0]
    assert first_plain != written[:1]


def test_learned_positions_write_past_their_window() -> None:
    model, prompt = make("gpt2", max_len=8), [3, 1, 4]
    written = generate(model, [prompt], 20, sampling=Sampling(temperature=0))[0]
    text = prompt[:]
    for token in written:
        with torch.no_grad():
            assert int(model(torch.tensor([text[-8:]])).logits[0, -1].argmax()) == token
        text.append(token)
    again = generate(model, [prompt], 20, sampling=Sampling(temperature=0), use_state=False)
    assert again == [written]


@pytest.mark.parametrize("family", CAUSAL)
def test_a_prompt_longer_than_the_memory_is_read_in_pieces(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parformer.generate.writing.PIECE", 7)
    random = Random(0)
    prompt = [random.randrange(VOCAB) for _ in range(50)]
    lengths: list[int] = []
    forward = Model.forward

    def watch(self: Model, tokens: Tensor, **options: Any) -> Any:
        lengths.append(tokens.shape[1])
        return forward(self, tokens, **options)

    model = make(family)
    expected = naive(model, prompt, 5, seed=0, place=0)
    monkeypatch.setattr(Model, "forward", watch)
    assert generate(model, [prompt], 5) == [expected]
    assert lengths[:-4] == ([50] if family == "gpt2" else [7] * 7 + [1])
    assert lengths[-4:] == [1] * 4
    short = make("gpt2", max_len=16)
    lengths.clear()
    assert generate(short, [prompt], 5) == generate(short, [prompt[-16:]], 5)
    assert lengths == [16, 1, 1, 1, 1] * 2


def test_a_model_trained_without_memory_sees_the_text_all_the_same() -> None:
    model = make("transformer-xl", mem_len=0, tgt_len=64)
    prompt = [3, 1, 4, 1, 5]
    assert generate(model, [prompt], 20) == [naive(model, prompt, 20, seed=0, place=0)]


# Batches


@pytest.mark.parametrize("family", CAUSAL)
def test_what_a_prompt_becomes_does_not_depend_on_its_neighbours(family: str) -> None:
    model = make(family)
    prompts = [[1, 2, 3], [4, 5], [1, 2, 3], [6, 7, 8], [9]]
    together = generate(model, prompts, 12, seed=5)
    assert generate(model, prompts[:1], 12, seed=5) == together[:1]
    assert generate(model, prompts[:3], 12, seed=5) == together[:3]
    assert (
        generate(model, [[0], *prompts[1:2], [8] * 3, *prompts[3:]], 12, seed=5)[3:]
        == (together[3:])
    )
    assert together[0] != together[2]  # the same prompt twice gives two texts
    assert generate(model, prompts, 12, seed=6) != together
    for place, prompt in enumerate(prompts):
        assert together[place] == naive(model, prompt, 12, seed=5, place=place)


def test_a_text_that_stops_leaves_the_others_alone() -> None:
    model = make("llama")
    whole = generate(model, [[1], [2], [3]], 10)
    stopped = generate(
        model, [[1], [2], [3]], 10, stop=lambda place, text: place == 1 and len(text) == 4
    )
    assert stopped == [whole[0], whole[1][:4], whole[2]]


def test_no_step_is_made_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    forward = Model.forward

    def watch(self: Model, tokens: Tensor, **options: Any) -> Any:
        calls.append(tokens.shape[0])
        return forward(self, tokens, **options)

    monkeypatch.setattr(Model, "forward", watch)
    generate(make("gpt2"), [[1], [2]], 5)
    assert calls == [2] * 5
    calls.clear()
    generate(make("gpt2"), [[1], [2]], 5, stop=lambda place, text: True)
    assert calls == [2]


def test_tokens_are_told_as_they_come() -> None:
    told: list[tuple[int, int]] = []
    first, second = generate(
        make("gpt2"), [[1], [2]], 3, on_token=lambda place, token: told.append((place, token))
    )
    assert told == [pair for a, b in zip(first, second, strict=True) for pair in ((0, a), (1, b))]


def test_tokens_beyond_the_tokenizer_are_never_written() -> None:
    model = make("gpt2")
    assert max(generate(model, [[12]], 60)[0]) > 4
    assert max(generate(model, [[12]], 60, size=5)[0]) <= 4


def test_half_precision_writes_too() -> None:
    model = lively(build(small_config("llama"), dtype=torch.bfloat16))
    assert len(generate(model, [[1, 2]], 4)[0]) == 4


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    model = build(small_config("llama", dropout=0.5)).train(training)
    assert generate(model, [[1, 2]], 9) == generate(model, [[1, 2]], 9)
    assert model.training == training


@pytest.mark.parametrize(
    ("family", "prompts", "options", "words"),
    [
        ("bert", [[1]], {}, "sees both sides"),
        ("gpt2", [[1], []], {}, "prompt 2 has no tokens"),
        ("gpt2", [[VOCAB]], {}, "outside 0"),
        ("gpt2", [[-1]], {}, "outside 0"),
        ("gpt2", [[1]], {"tokens": 0}, "tokens must be at least 1"),
        ("gpt2", [[1]], {"size": 14}, "another model"),
    ],
)
def test_what_cannot_go_on_is_refused(
    family: str, prompts: list[list[int]], options: Any, words: str
) -> None:
    with pytest.raises((InputError, ConfigError), match=words) as caught:
        generate(make(family), prompts, options.pop("tokens", 3), **options)
    assert "\n" not in str(caught.value)


def test_no_prompts_give_no_texts() -> None:
    assert generate(make("gpt2"), [], 5) == []


# Text


class Bytes:
    """One token per byte."""

    kind = "byte"
    size = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")


class Words:
    """One token per word, blanks between them but none around a line end."""

    kind = "word"
    size = 4
    words = ("\n", "a", "bc", "d")

    def encode(self, text: str) -> list[int]:
        return [self.words.index(word) for word in text.replace("\n", " \n ").split(" ") if word]

    def decode(self, tokens: Iterable[int]) -> str:
        text = " ".join(self.words[token] for token in tokens)
        return text.replace(" \n", "\n").replace("\n ", "\n")


def stream_of(tokenizer: Any, prompt: str, stop: tuple[str, ...] = ()) -> TextStream:
    return TextStream(tokenizer, tokenizer.encode(prompt), stop)


def feed(stream: TextStream, tokens: Iterable[int]) -> list[str]:
    """The pieces up to a stop, and what comes when nothing more does."""
    pieces = []
    for token in tokens:
        pieces.append(stream.feed(token))
        if stream.stopped:
            break
    return [*pieces, stream.finish()]


@given(st.text(max_size=20), st.text(max_size=40))
def test_pieces_of_bytes_are_whole_characters_and_make_up_the_text(prompt: str, text: str) -> None:
    try:
        prompt.encode(), text.encode()
    except UnicodeEncodeError:
        return
    pieces = feed(stream_of(Bytes(), prompt), text.encode())
    assert "".join(pieces) == text.removesuffix("\ufffd")
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_text_are_shown_as_such(data: bytes) -> None:
    pieces = feed(stream_of(Bytes(), "über"), data)
    assert "".join(pieces) == data.decode("utf-8", "replace").removesuffix("\ufffd")


def test_a_character_is_shown_with_its_last_byte() -> None:
    assert feed(stream_of(Bytes(), "x"), "a€b".encode()) == ["a", "", "", "€", "b", ""]
    broken = b"\xff\xff\xff" + "€".encode()
    assert feed(stream_of(Bytes(), "x"), broken) == ["", "\ufffd", "\ufffd", "\ufffd", "", "€", ""]
    assert feed(stream_of(Bytes(), "x"), "€".encode()[:2]) == ["", "", ""]


@given(st.lists(st.integers(0, 3), max_size=40), st.sampled_from(["a", "a\n", "bc a"]))
def test_words_get_the_blanks_that_stand_between_them(tokens: list[int], prompt: str) -> None:
    tokenizer = Words()
    whole = tokenizer.decode(tokenizer.encode(prompt) + tokens)
    assert prompt + "".join(feed(stream_of(tokenizer, prompt), tokens)) == whole


def test_a_long_text_is_not_decoded_again_and_again() -> None:
    tokenizer, lengths = Bytes(), []
    decode = tokenizer.decode

    def watch(tokens: Any) -> str:
        lengths.append(len(tokens))
        return decode(tokens)

    tokenizer.decode = watch  # type: ignore[method-assign]
    feed(stream_of(tokenizer, "x" * 500), b"some text " * 100)
    assert max(lengths) < 20


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.integers(0, 2**31),
)
def test_text_ends_before_the_stop_string_that_is_complete_first(
    text: str, stop: list[str], seed: int
) -> None:
    """Compared letter by letter, with the text cut into tokens at random."""
    expected, stopped = text, False
    for end in range(1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            expected, stopped = text[: end - max(map(len, found))], True
            break
    random, pieces = Random(seed), []
    stream, place = TextStream(Chunks(), [], stop), 0
    while place < len(text) and not stream.stopped:
        size = random.randint(1, 5)
        pieces.append(stream.feed(Chunks.token(text[place : place + size])))
        place += size
        shown = "".join(pieces)
        assert expected.startswith(shown)
    assert "".join([*pieces, stream.finish()]) == expected
    assert stream.stopped == stopped


class Chunks:
    """A token is any few letters."""

    kind = "bpe"
    size = 1

    @staticmethod
    def token(text: str) -> int:
        return int.from_bytes(text.encode(), "big")

    def encode(self, text: str) -> list[int]:
        return [self.token(text)]

    def decode(self, tokens: Iterable[int]) -> str:
        return "".join(t.to_bytes(8, "big").lstrip(b"\0").decode() for t in tokens)


def test_what_may_become_a_stop_string_is_held_back() -> None:
    stream = stream_of(Bytes(), "x", ("\n\n",))
    assert feed(stream, b"a\nb\n\nc") == ["a", "", "\nb", "", "", ""]
    assert stream.stopped
    assert feed(stream_of(Bytes(), "x", ("\n\n",)), b"a\n") == ["a", "", "\n"]


def test_a_short_stop_string_ends_the_text_before_a_longer_one_can() -> None:
    for stop in (("abb", "b"), ("b", "abb")):
        whole, letters = TextStream(Chunks(), [], stop), TextStream(Chunks(), [], stop)  # type: ignore[arg-type]
        assert whole.feed(Chunks.token("abb")) == "a"
        assert feed(letters, map(Chunks.token, "abb")) == ["", "a", ""]


def test_a_stop_string_in_the_prompt_does_not_count() -> None:
    assert feed(stream_of(Bytes(), "one.two", (".", "oa")), b"a") == ["a", ""]


def byte_model() -> Model:
    return lively(build(small_config("llama", vocab_size=256, pattern="sf")))


def test_text_in_pieces_is_the_text() -> None:
    told = ["", ""]

    def tell(place: int, piece: str) -> None:
        assert piece
        told[place] += piece

    prompts = ["def f", "class C"]
    texts = generate_text(byte_model(), Bytes(), prompts, 40, on_text=tell, seed=1)  # type: ignore[arg-type]
    assert told == texts
    ids = generate(byte_model(), [list(p.encode()) for p in prompts], 40, seed=1)
    for text, tokens in zip(texts, ids, strict=True):
        assert text == bytes(tokens).decode("utf-8", "replace").removesuffix("\ufffd")
    stop = texts[0][10:12]
    cut = generate_text(byte_model(), Bytes(), prompts, 40, stop=[stop], seed=1)  # type: ignore[arg-type]
    assert cut == [text.partition(stop)[0] for text in texts]


def test_an_empty_prompt_starts_from_a_line_end() -> None:
    model, tokenizer = byte_model(), Bytes()
    one, two = (generate_text(model, tokenizer, [p], 9)[0] for p in ("", "\n"))  # type: ignore[arg-type]
    assert one == two
    tokenizer.encode = lambda text: []  # type: ignore[method-assign]
    expected = bytes(generate(model, [[0]], 9)[0]).decode("utf-8", "replace")
    found = generate_text(model, tokenizer, [""], 9)[0]  # type: ignore[arg-type]
    assert found == expected.removesuffix("\ufffd")


def test_a_tokenizer_of_another_model_and_an_empty_stop_are_refused() -> None:
    with pytest.raises(InputError, match=r"size 256 .* vocabulary of 13"):
        generate_text(make("gpt2"), Bytes(), ["x"], 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="stop string is empty"):
        generate_text(byte_model(), Bytes(), ["x"], 3, stop=[""])  # type: ignore[arg-type]
