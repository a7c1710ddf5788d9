"""Does whoever writes take the native way by itself, and come to the same text?"""

# b batch, v vocabulary

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from parformer.blocks import BLOCKS, Block, block, forget
from parformer.evaluate import evaluate
from parformer.generate.writing import Sampling, generate
from parformer.kernels import extension
from parformer.model import Model, build
from parformer.native import Decoder, lending
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec
from tests.conftest import lively, small_config, small_model

pytestmark = pytest.mark.skipif(not extension.find_compilers(), reason="needs a C++ compiler")

PROMPTS = [[1, 2, 3], [4, 5, 6], [7, 8]]


def make(family: str, pattern: str = "sfsf", **changes: Any) -> Model:
    return small_model(family, pattern, torch.float32, **changes)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each native step read."""
    taken: list[int] = []
    ordinary = Decoder.step

    def step(self: Decoder, tokens: Any) -> Tensor:
        taken.append(len(tokens))
        return ordinary(self, tokens)

    monkeypatch.setattr(Decoder, "step", step)
    return taken


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARFORMER_NATIVE", "off")
    lending._waiting.clear()


RULES = [
    Sampling(temperature=0),
    Sampling(),
    Sampling(temperature=0, repetition_penalty=1.7),
    Sampling(temperature=0.7, top_k=5, top_p=0.8, repetition_penalty=1.2),
]


@pytest.mark.parametrize("family", ["transformer-xl", "gpt2", "llama", "sru"])
@pytest.mark.parametrize("sampling", RULES, ids=range(len(RULES)))
def test_the_same_text_is_written(
    family: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    model = make(family, mem_len=32 if family in ("transformer-xl", "sru") else 0)
    ours = generate(model, PROMPTS, 40, sampling=sampling, seed=3)
    assert steps == [2] * 39 + [1] * 39
    without(monkeypatch)
    assert generate(model, PROMPTS, 40, sampling=sampling, seed=3) == ours
    assert len(steps) == 78


def test_a_window_that_slides_goes_back_to_the_ordinary_step(
    monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    model = make("gpt2", max_len=9)
    ours = generate(model, PROMPTS[:2], 20, sampling=Sampling(temperature=0))
    assert len(steps) == 6  # after a prompt of three
    without(monkeypatch)
    assert generate(model, PROMPTS[:2], 20, sampling=Sampling(temperature=0)) == ours


def test_weights_that_change_are_seen(steps: list[int]) -> None:
    model = lively(build(small_config("llama")))
    greedy = Sampling(temperature=0)
    first = generate(model, PROMPTS, 12, sampling=greedy)
    assert generate(model, PROMPTS, 12, sampling=greedy) == first
    with torch.no_grad():
        model.embedding.words.tables[0].neg_()
    second = generate(model, PROMPTS, 12, sampling=greedy)
    assert second != first
    assert second == generate(model, PROMPTS, 12, sampling=greedy, use_state=False)


def test_weights_in_few_bits_are_taken_where_they_are_asked_for(steps: list[int]) -> None:
    model = make("llama")
    whole = [generate(model, PROMPTS, 8, seed=2) for _ in range(2)]
    few = generate(model, PROMPTS, 8, seed=2, weights="int4")
    assert whole[0] == whole[1] == generate(model, PROMPTS, 8, seed=2)
    assert few != whole[0]
    assert len(steps) == 4 * 2 * 7


def test_only_the_tokenizer_s_tokens_are_written() -> None:
    for text in generate(make("gpt2"), PROMPTS, 30, size=4, seed=1):
        assert max(text) < 4


class Same(Block):
    """The stream as it is, from outside of Parformer."""

    def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
        super().__init__(config)

    def forward(self, x_btd: Any, state: Any, context: Any) -> Any:
        return self.write(x_btd, 0 * x_btd), None

    @classmethod
    def cost(cls, config: Any, spec: Any, shape: Any) -> Any:
        return BLOCKS["i"].cost(config, spec, shape)


@pytest.fixture
def foreign() -> Iterator[None]:
    block("k", "same")(Same)
    yield
    forget("k")


def test_a_block_without_a_form_takes_the_ordinary_step_and_it_is_said_once(
    foreign: None, caplog: pytest.LogCaptureFixture, steps: list[int]
) -> None:
    model = build(small_config("gpt2", pattern="ksf"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert len(generate(model, PROMPTS, 5)[0]) == 5
    assert [record.message for record in caplog.records] == [
        "tokens are written by the ordinary step, several times slower: "
        "block 'k' (Same) has no native form"
    ]
    assert steps == []


@pytest.mark.parametrize(("family", "batch"), [("llama", 1), ("sru", 3), ("gpt2", 2)])
def test_a_text_read_token_by_token_scores_the_same(
    family: str, batch: int, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    model = make(family, "sf", max_len=20)
    text = np.arange(60) * 7 % 13
    ours = evaluate(model, text, tgt_len=1, batch=batch)
    assert steps
    without(monkeypatch)
    theirs = evaluate(model, text, tgt_len=1, batch=batch)
    assert (ours.tokens, ours.loss) == (theirs.tokens, pytest.approx(theirs.loss, rel=1e-5))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sampling", RULES, ids=range(len(RULES)))
def test_tokens_are_chosen_as_in_torch(sampling: Sampling, seed: int) -> None:
    model = make("gpt2", vocab_size=401)
    decoder = model.native(batch=7)
    generator = torch.Generator().manual_seed(seed)
    logits = decoder.step([[1]] * 7)
    logits.copy_(3 * torch.randn(7, 401, generator=generator))
    seen = torch.rand(7, 401, generator=generator) < 0.3
    uniforms = torch.rand(7, generator=generator, dtype=torch.float64).tolist()
    rules = (sampling.repetition_penalty, sampling.temperature, sampling.top_p, sampling.top_k)
    for size in (401, 57, 1):
        wanted = sampling.choose(logits[:, :size].clone(), seen[:, :size], uniforms)
        assert decoder.choose(rules, size, seen, uniforms) == wanted


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    model = make("gpt2")
    decoder = model.native()
    decoder.step([[1]])[0, 3] = bad
    with pytest.raises(Exception, match="not finite; its weights are broken"):
        decoder.choose((1.0, 0.0, 1.0, 0), 13, torch.zeros(1, 13, dtype=torch.bool), [0.5])


def test_a_fork_writes_and_ends() -> None:
    """A process that was forked has a decoder's memory, but none of its threads."""
    code = """
import os, sys, torch
from parformer.config import preset
from parformer.model import build
torch.set_num_threads(1)
decoder = build(preset("llama-pocket", d_model=256)).native(threads=2)
here = decoder.step([[1]]).clone()
child = os.fork()
decoder.clear()
if not child:
    sys.exit(not torch.equal(decoder.step([[1]]), here))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0
