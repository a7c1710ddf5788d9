"""Are translations those that the published searches find?

The oracles hold what fairseq (with Lite Transformer) and imitkd found with their own weights; the
rest is compared with a search that is written plainly here.
"""

# b sentences, k beams, t time, v vocabulary

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor
from torch.testing import assert_close

import parformer as pf
from parformer.errors import ParformerError
from parformer.generate import Sampling
from parformer.model import Model

ORACLES = Path(__file__).parents[1] / "oracles"


def read_oracle(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(ORACLES / f"{name}.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return json.loads(file.metadata()["config"]), tensors


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


LITE, LITE_TENSORS = read_oracle("lsra_a")
PLAIN, PLAIN_TENSORS = read_oracle("translation_a")
LITE_SOURCE, PLAIN_SOURCE = LITE_TENSORS["input.src_tokens"], PLAIN_TENSORS["input.src_tokens"]


def lite() -> pf.convert.Translator:
    return pf.convert.from_lite_transformer(part(LITE_TENSORS, "weight."), LITE)


def plain() -> pf.convert.Translator:
    return pf.convert.from_translation(part(PLAIN_TENSORS, "weight."), PLAIN)


# The published searches


def test_fairseqs_beams_are_the_recorded_ones() -> None:
    asked = {"beam": 4, "length_penalty": 0.6, "min_len": 1, "max_len": 12}
    found = pf.translate(lite(), LITE_SOURCE, style="fairseq", **asked)
    assert torch.equal(found.tokens, LITE_TENSORS["output.beam_tokens"])
    assert_close(found.scores, LITE_TENSORS["output.beam_scores"], atol=1e-5, rtol=0.0)
    assert found.best.tolist() == [0, 0, 0]
    assert found.plain(0) == [14, 14, 14, 14]


def test_imitkds_beams_are_the_recorded_ones() -> None:
    found = pf.translate(plain(), PLAIN_SOURCE, beam=4, style="imitkd", max_len=10)
    assert torch.equal(found.tokens, PLAIN_TENSORS["output.beams"])
    assert_close(found.scores, PLAIN_TENSORS["output.beam_log_probs"], atol=1e-5, rtol=0.0)
    assert torch.equal(found.translation, PLAIN_TENSORS["output.translation"])


def test_greedy_texts_are_the_recorded_ones() -> None:
    found = pf.translate(plain(), PLAIN_SOURCE, style="imitkd", max_len=10, greedy=True)
    assert torch.equal(found.tokens[:, 0], PLAIN_TENSORS["output.greedy"])
    narrow = pf.translate(plain(), PLAIN_SOURCE, style="imitkd", max_len=10, beam=1)
    assert torch.equal(narrow.tokens, found.tokens)
    assert_close(narrow.scores, found.scores)


def test_the_transformer_gives_the_recorded_logits_loss_and_gradients() -> None:
    translator = plain()
    target = PLAIN_TENSORS["input.tgt_out"]
    logits = translator(PLAIN_SOURCE, PLAIN_TENSORS["input.tgt_in"]).logits
    counted = target != PLAIN["pad"]
    assert_close(logits[counted], PLAIN_TENSORS["output.logits"][counted], atol=5e-6, rtol=0.0)
    loss = F.cross_entropy(logits[counted], target[counted])
    assert_close(loss[None], PLAIN_TENSORS["output.loss"])
    loss.backward()
    wanted = dict(
        pf.convert.from_translation(part(PLAIN_TENSORS, "grad."), PLAIN).named_parameters()
    )
    for name, parameter in translator.named_parameters():
        truth = wanted[name].detach()
        assert parameter.grad is not None, name
        error, largest = float((parameter.grad - truth).abs().max()), float(truth.abs().max())
        assert error <= 5e-6 * largest + 1e-6, f"{name}: off by {error:g} of {largest:g}"


@pytest.mark.parametrize(
    ("weights", "config", "problem"),
    [
        ({"more": torch.ones(1)}, {}, "hold 'more', which this model has no place for"),
        ({}, {"encoder_layers": 3}, "the weights lack 'encoder.layers.2"),
        ({}, {"eos": None}, "needs a whole number 'eos', got None"),
    ],
)
def test_what_is_no_such_transformer_is_refused(
    weights: dict[str, Tensor], config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ParformerError, match=problem):
        pf.convert.from_translation(part(PLAIN_TENSORS, "weight.") | weights, PLAIN | config)


# A plain twin


def log_probs(model: Model, source_1s: Tensor, text: list[int]) -> Tensor:
    """Of what follows a text, all of it read again."""
    with torch.no_grad():
        there = source_1s != PLAIN["pad"]
        out = model(torch.tensor([text]), source=source_1s, source_padding=there)
    return out.logits[0, -1].log_softmax(-1)


def banned(text: list[int], size: int, first: int) -> set[int]:
    grams = {tuple(text[i - size + 1 : i + 1]) for i in range(max(first, size - 1), len(text))}
    return {g[-1] for g in grams if list(g[:-1]) == text[len(text) - size + 1 :]}


def naive_fairseq(
    model: Model, source_1s: Tensor, beam: int, power: float, longest: int, ngram: int
) -> list[tuple[float, list[int]]]:
    start = end = PLAIN["eos"]
    live, done = [(0.0, [start])], []
    for step in range(longest + 1):
        every = []
        for total, text in live:
            logs = log_probs(model, source_1s, text)
            for token, value in enumerate((total + logs).tolist()):
                forbidden = token == PLAIN["pad"] or (step < 1 and token == end)
                if step == longest:
                    forbidden = token != end
                elif ngram and token in banned(text, ngram, 0):
                    forbidden = True
                if not forbidden:
                    every.append((value, [*text, token]))
        every = sorted(every, key=lambda pair: -pair[0])[: 2 * beam]
        for value, text in every[:beam]:
            if text[-1] == end and len(done) < beam:
                done.append((value / (step + 1) ** power, text[1:]))
        live = [pair for pair in every if pair[1][-1] != end][:beam]
        if len(done) == beam:
            break
    return sorted(done, key=lambda pair: -pair[0])


def naive_imitkd(
    model: Model, source_1s: Tensor, beam: int, longest: int, ngram: int
) -> list[tuple[float, list[int]]]:
    live = [(0.0, [PLAIN["sos"]])]
    while len(live[0][1]) < longest and not all(PLAIN["eos"] in text for _, text in live):
        every = []
        for total, text in live:
            if PLAIN["eos"] in text:
                every.append((total, [*text, PLAIN["pad"]]))
                continue
            logs = log_probs(model, source_1s, text)
            out = banned(text, ngram, 2) if ngram else set()
            options = enumerate((total + logs).tolist())
            every += [(value, [*text, token]) for token, value in options if token not in out]
        live = sorted(every, key=lambda pair: -pair[0])[:beam]
    return live


@pytest.mark.parametrize("ngram", [0, 1, 2, 3])
@pytest.mark.parametrize("style", ["fairseq", "imitkd"])
def test_a_search_finds_what_its_plain_twin_finds(style: str, ngram: int) -> None:
    translator = plain()
    asked: dict[str, Any] = {"beam": 3, "max_len": 7, "no_repeat_ngram": ngram, "style": style}
    if style == "fairseq":
        asked |= {"start": PLAIN["eos"], "length_penalty": 1.3}
    found = pf.translate(translator, PLAIN_SOURCE, **asked)
    for row in range(len(PLAIN_SOURCE)):
        source_1s = PLAIN_SOURCE[row : row + 1]
        if style == "fairseq":
            wanted = naive_fairseq(translator.model, source_1s, 3, 1.3, 7, ngram)
        else:
            wanted = naive_imitkd(translator.model, source_1s, 3, 7, ngram)
        for k, (score, text) in enumerate(wanted):
            padded = text + [PLAIN["pad"]] * (found.tokens.shape[2] - len(text))
            assert found.tokens[row, k].tolist() == padded, (row, k)
            assert abs(float(found.scores[row, k]) - score) < 1e-5
        assert not found.scores[row, len(wanted) :].isfinite().any()


def naive_draw(model: Model, source_1s: Tensor, style: str, longest: int, ngram: int) -> list[int]:
    """The likeliest token each time that makes no n-gram again; without one the text ends."""
    fairseq, end = style == "fairseq", PLAIN["eos"]
    text = [end if fairseq else PLAIN["sos"]]
    for step in range(longest + 1 if fairseq else longest - 1):
        logs = log_probs(model, source_1s, text)
        out = {PLAIN["pad"], *banned(text, ngram, 0 if fairseq else 2)}
        out |= {end} if fairseq and not step else set()
        allowed = [token for token in range(len(logs)) if token not in out]
        last = fairseq and step == longest
        token = end if last or not allowed else max(allowed, key=lambda token: float(logs[token]))
        text.append(token)
        if token == end:
            break
    return text[1:] if fairseq else text


@pytest.mark.parametrize("ngram", [1, 2, 3])
@pytest.mark.parametrize("style", ["fairseq", "imitkd"])
def test_drawn_texts_have_no_n_gram_twice(style: str, ngram: int) -> None:
    translator = plain()
    asked: dict[str, Any] = {"max_len": 30, "no_repeat_ngram": ngram, "style": style}
    if style == "fairseq":
        asked["start"] = PLAIN["eos"]
    found = pf.translate(translator, PLAIN_SOURCE, greedy=True, **asked)
    drawn = pf.translate(translator, PLAIN_SOURCE, sampling=Sampling(), n_best=4, **asked)
    for row in range(len(PLAIN_SOURCE)):
        source_1s = PLAIN_SOURCE[row : row + 1]
        wanted = naive_draw(translator.model, source_1s, style, 30, ngram)
        padded = wanted + [PLAIN["pad"]] * (found.tokens.shape[2] - len(wanted))
        assert found.tokens[row, 0].tolist() == padded
        for k in range(4):
            words = drawn.plain(row, k)[style == "imitkd" :]  # which forgets its first word
            grams = [tuple(words[i : i + ngram]) for i in range(len(words) - ngram + 1)]
            assert len({*grams}) == len(grams)


@pytest.mark.parametrize("how", [{"beam": 3}, {"greedy": True}, {"sampling": Sampling()}])
@pytest.mark.parametrize("style", ["fairseq", "imitkd"])
def test_a_text_ends_where_all_that_could_follow_is_forbidden(
    style: str, how: dict[str, Any]
) -> None:
    """Seventeen tokens, none of them twice: no text can be longer than those."""
    start = {"start": PLAIN["eos"]} if style == "fairseq" else {}
    asked: dict[str, Any] = {"max_len": 40, "min_len": 30, "no_repeat_ngram": 1, "style": style}
    found = pf.translate(plain(), PLAIN_SOURCE, **asked, **how, **start)
    for row in range(len(PLAIN_SOURCE)):
        words = found.plain(row)[style == "imitkd" :]
        assert 10 <= len({*words}) == len(words)
        assert bool(found.scores[row, int(found.best[row])].isfinite())
        assert PLAIN["eos"] in found.tokens[row, int(found.best[row])].tolist()


# What a search is asked for


def test_imitkds_length_penalty_chooses_among_the_beams() -> None:
    asked: dict[str, Any] = {"beam": 4, "style": "imitkd", "max_len": 10}
    found = pf.translate(plain(), PLAIN_SOURCE, length_penalty=3.0, **asked)
    assert torch.equal(found.tokens, PLAIN_TENSORS["output.beams"])
    lengths = (found.tokens != PLAIN["pad"]).sum(-1)
    assert torch.equal(found.best, (found.scores / lengths**3.0).argmax(-1))
    assert found.best.tolist() != [0, 0, 0]
    one = pf.translate(plain(), PLAIN_SOURCE, length_penalty=3.0, n_best=1, **asked)
    assert torch.equal(one.tokens[:, 0], found.translation)


def test_a_prefix_is_kept_and_the_rest_is_what_follows_it() -> None:
    prefix = [[8, 13], [5], []]
    asked: dict[str, Any] = {"beam": 3, "max_len": 8}
    found = pf.translate(plain(), PLAIN_SOURCE, prefix=prefix, **asked)
    free = pf.translate(plain(), PLAIN_SOURCE, **asked)
    for row, wanted in enumerate(prefix):
        for text in found.tokens[row].tolist():
            assert text[: len(wanted)] == wanted
    time = min(found.tokens.shape[2], free.tokens.shape[2])
    assert torch.equal(found.tokens[2, :, :time], free.tokens[2, :, :time])
    assert torch.equal(found.scores[2], free.scores[2])


def test_sentences_do_not_touch_each_other() -> None:
    """Without padding that leaks, each is translated as it would be alone."""
    asked: dict[str, Any] = {"beam": 4, "style": "imitkd", "max_len": 10}
    for row in range(len(PLAIN_SOURCE)):
        length = int((PLAIN_SOURCE[row] != PLAIN["pad"]).sum())
        alone = pf.translate(plain(), PLAIN_SOURCE[row : row + 1, :length], **asked)
        assert torch.equal(alone.tokens[0], PLAIN_TENSORS["output.beams"][row])


def test_drawn_texts_follow_the_seed_and_the_length() -> None:
    asked: dict[str, Any] = {"sampling": Sampling(temperature=1.5), "n_best": 3, "max_len": 6}
    one, two = (pf.translate(plain(), PLAIN_SOURCE, seed=7, **asked) for _ in range(2))
    other = pf.translate(plain(), PLAIN_SOURCE, seed=8, **asked)
    assert torch.equal(one.tokens, two.tokens)
    assert not torch.equal(one.tokens, other.tokens)
    assert one.tokens.shape[:2] == (3, 3)
    assert all(
        text[-1] in (PLAIN["eos"], PLAIN["pad"]) for text in one.tokens.flatten(0, 1).tolist()
    )


def test_the_encoder_runs_once_and_finished_sentences_leave() -> None:
    translator = plain()
    encoder, model = translator.model.encoder, translator.model
    assert encoder is not None
    runs, rows = [], []
    encoder.blocks[0].register_forward_hook(lambda *_: runs.append(1))
    model.blocks[0].register_forward_hook(lambda _, given, out: rows.append(len(given[0])))
    pf.translate(translator, PLAIN_SOURCE, beam=2, max_len=12)
    assert len(runs) == 1
    assert rows[0] == 3
    assert rows[1] == 6
    assert rows == [3, *sorted(rows[1:], reverse=True)]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"beam": 0}, "beam must be at least 1, got 0"),
        ({"beam": 40}, "beam 40 is too wide for a vocabulary of 17; lower it"),
        ({"style": "marian"}, "style must be one of fairseq, imitkd, got 'marian'"),
        ({"beam": 2, "n_best": 3}, "n_best 3 exceeds beam 2; raise beam"),
        ({"min_len": 9, "max_len": 3}, "min_len 9 exceeds max_len 3; lower it"),
        ({"max_len": 4000}, "max_len 4000 needs 4001 places, and the model has 2048; lower it"),
        ({"end": 17}, "end 17 is no token of a vocabulary of 17"),
        ({"prefix": [[1]]}, "there are 1 prefixes for 3 sources"),
        ({"prefix": [[1], [99], []]}, "prefix 2 is not within the vocabulary of 17"),
        ({"prefix": [[5], [PLAIN["pad"]], []]}, "prefix 2 holds the end"),
        ({"prefix": [[5], [6, PLAIN["eos"]], []]}, "prefix 2 holds the end"),
        ({"prefix": [[5], [6] * 4, []], "max_len": 3}, "prefix 2 has 4 tokens, and a text 3 at"),
        ({"beams": 3}, "unknown field of a search 'beams'; did you mean 'beam'"),
        ({"greedy": True, "sampling": Sampling()}, "greedy and sampling contradict each other"),
        ({"source": torch.full((1, 3000), 5)}, "a source of 3000 tokens exceeds the 2048 places"),
        ({"source": torch.full((1, 3), 21)}, "the source's tokens hold 21, outside 0 … 20"),
    ],
)
def test_what_cannot_be_looked_for_is_refused_in_a_line(
    asked: dict[str, Any], problem: str
) -> None:
    source = asked.pop("source", PLAIN_SOURCE)
    with pytest.raises(ParformerError, match=problem) as caught:
        pf.translate(plain(), source, **asked)
    assert "\n" not in str(caught.value)


def test_a_model_without_an_encoder_translates_nothing() -> None:
    model = pf.build(pf.preset("pocket"))
    with pytest.raises(ParformerError, match="a model without an encoder"):
        pf.translate(model, PLAIN_SOURCE, pad=0)
