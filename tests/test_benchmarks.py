"""What the benchmarks compare computes the same numbers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import parformer as pf
from parformer.compress.coding import coded
from parformer.compress.pruning import pruned
from parformer.costs import cost
from parformer.model import Model

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_the_textbook_step_gives_parformers_loss_and_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = pf.preset(
        "par-base", pattern="sffsf", vocab_size=90, cutoffs=[30, 60], d_model=32, n_head=4,
        d_inner=48, dropout=0.0, mem_len=12, clamp_len=9,
    )  # fmt: skip
    model = pf.build(config, dtype=torch.float64).train()
    textbook = load("textbook", monkeypatch).Textbook(model, 12, 2)
    state = model.initial_state(2, zeros=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        tokens = torch.randint(90, (2, 5), generator=generator)
        targets = torch.randint(90, (2, 5), generator=generator)
        out = model(tokens, state, targets)
        state = out.state
        mine = torch.autograd.grad(out.loss, list(model.parameters()))
        loss = textbook.step(tokens, targets)
        theirs = torch.autograd.grad(loss, list(model.parameters()))
        torch.testing.assert_close(out.loss, loss)
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_compares_models_with_the_same_losses(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(FOLDER)
    training = load("training", monkeypatch)
    task = training.Task(
        width=16, layers=2, heads=2, window=8, batch=2, vocabulary=30, precision=precision,
        threads=1,
    )  # fmt: skip
    theirs = training.Trainer(task, training.Candidate(library="transformers"))
    ours = training.Trainer(task, training.Candidate(library="parformer"))
    curves = [[step() for _ in range(10)] for step in (theirs, ours)]
    torch.testing.assert_close(*curves, rtol=0, atol=1e-5 if precision == "fp32" else 1e-2)
    assert curves[0][-1] < curves[0][0] - 0.05


SMALL = {
    "BERT Base": {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 17},
    "DistilBERT": {"dim": 12, "n_heads": 3, "hidden_dim": 17},
    "ALBERT Base": {"hidden_size": 12, "num_attention_heads": 3, "embedding_size": 5},
    "MobileBERT": {"hidden_size": 12, "intra_bottleneck_size": 8, "num_attention_heads": 2},
}


@pytest.mark.parametrize(
    ("name", "like"),
    [*((name, name) for name in SMALL), ("PAR BERT Base", "BERT Base"),
     ("MobileBERT Tiny", "MobileBERT")],
)  # fmt: skip
def test_the_lecture_compares_models_with_the_same_hidden_states(
    name: str, like: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(FOLDER)
    lecture = load("lecture", monkeypatch)
    tokens = lecture.some_tokens(9) % 50
    theirs, ours = lecture.MODELS[name](2, vocab_size=50, **SMALL[like])
    lecture.same(theirs, ours, tokens)
    lecture.same(lecture.with_sdpa(theirs), ours, tokens)
    with torch.no_grad():
        for parameter in ours.blocks.parameters():
            parameter.mul_(1.5)
    with pytest.raises(AssertionError):
        lecture.same(theirs, ours, tokens)


@pytest.mark.parametrize("carry", [False, True])
def test_recurrence_compares_stacks_with_the_same_outputs_and_gradients(
    carry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ninja")
    if importlib.util.find_spec("sru") is None:  # importing it compiles: not before it is needed
        pytest.skip("needs the package sru")
    monkeypatch.syspath_prepend(FOLDER)
    recurrence = load("recurrence", monkeypatch)
    task = recurrence.Task(width=24, inside=6, layers=4, batch=2, length=9)
    for training in (True, False):
        steps = [
            recurrence.Step(make(task), task, training=training, carry=carry)
            for make in (recurrence.TheirStack, recurrence.OurStack)
        ]
        for _ in range(3):
            theirs, ours = (step() for step in steps)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        if training:
            compare_gradients(steps[0], steps[1], task)


def compare_gradients(theirs: Any, ours: Any, task: Any) -> None:
    torch.testing.assert_close(ours.x_btd.grad, theirs.x_btd.grad, rtol=0, atol=1e-4)
    gradients = {
        name: p.grad for name, p in theirs.stack.module.named_parameters() if "scale" not in name
    }
    config = {"layers": task.layers, "attention_every": task.every, "d": task.width}
    wanted = pf.convert.from_sru(gradients, {**config, "d_attention": task.inside})
    for name, parameter in wanted.named_parameters():
        found = ours.stack.module.get_parameter(name).grad
        torch.testing.assert_close(found, parameter.detach(), rtol=0, atol=1e-4)
        assert parameter.any(), name


@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_llama_cpp_writes_the_same_with_the_same_weights(
    shape: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("transformers", "gguf", "xllamacpp"):
        pytest.importorskip(name)
    monkeypatch.syspath_prepend(FOLDER)
    decoding = load("decoding", monkeypatch)
    monkeypatch.setattr(decoding, "COUNT", 12)
    if shape == "gpt2":
        subject = decoding.gpt2_subject("small", 64, 2, 2, 301)
    else:
        subject = decoding.llama_subject("small")
    texts = [
        decoding.native_writer(subject, "float32")()[0],
        decoding.ordinary_writer(subject)()[0],
        decoding.their_writer(subject)()[0],
        decoding.llama_writer(subject, tmp_path, "float32", 1)()[0],
    ]
    assert len({*texts[0]}) > 1
    assert texts[1:3] == [texts[0]] * 2
    assert texts[3][:4] == texts[0][:4]  # its GELU looks numbers up in 16 bits


def test_attention_that_is_missed_least_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    fewer = load("fewer_blocks", monkeypatch)
    monkeypatch.setattr(fewer, "RESULTS", tmp_path / "results.jsonl")
    for name, gone, accuracy in [
        ("1", [0], 0.7),
        ("2", [2], 0.9),
        ("3", [4], 0.8),
        ("all", [], 0.9),
    ]:
        kind = "attention" if gone else "whole"
        found = {"kind": kind, "name": name, "gone": gone, "task": "mrpc", "seed": 0}
        found |= {"metrics": {"accuracy": accuracy}, "ratio": 0.9, "weights": 5}
        fewer.keep(fewer.RESULTS, {"part": "blocks", **found})
    assert fewer.order("mrpc", 0) == [1, 2, 0]
    assert fewer.order("mrpc", 1) == []
    assert "| attention 2 | 0.90 | 5 | 0.900 |" in fewer.table(fewer.ours("mrpc"))
    assert fewer.picture(fewer.ours("mrpc")).count("<circle") == 4


def test_translators_compute_the_same_in_transformers_and_ctranslate2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("ctranslate2")
    monkeypatch.syspath_prepend(FOLDER)
    translators = load("translators", monkeypatch)
    model = pf.build(
        pf.preset(
            "transformer-pocket-translation", pattern="(sf)x2 | (scf)x2", vocab_size=40, pad=39,
            start=1, end=2, d_model=32, d_inner=48, n_head=4, dropout=0.0,
        )
    ).eval()  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    source, tokens = torch.tensor([[5, 9, 4, 2], [7, 2, 39, 39]]), torch.tensor([[1, 8], [1, 6]])
    with torch.no_grad():
        logits = model(tokens, source=source).logits
        theirs = translators.as_pegasus(model)(
            input_ids=source, attention_mask=(source != 39).long(), decoder_input_ids=tokens
        ).logits
    torch.testing.assert_close(theirs, logits, rtol=1e-5, atol=1e-4)
    folder = translators.write_ctranslate2(model, tmp_path / "model", None)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, source=source).logits, logits, rtol=0, atol=0)
    (scored,) = translators.translator(folder, 1).score_batch([["t7", "t2"]], [["t6"]])
    logs = logits[1].log_softmax(-1)
    expected = [float(logs[0, 6]), float(logs[1, 2])]
    assert scored.log_probs == pytest.approx(expected, abs=1e-4)


def test_the_stairs_of_lite_transformer_have_the_papers_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    stack = load("stack", monkeypatch)
    with torch.device("meta"):
        lite = Model(pf.preset("lite-translation-496"))
    assert stack.paper_bytes(lite) == 4 * 17_283_616  # 69.1 MB
    small = pf.build(pf.preset("lite-pocket", pattern="lf", d_inner=64))
    weight = small.blocks[1].inner.weight
    whole, half = stack.paper_bytes(small), pruned(small, 0.5)
    before, after = (int((one.blocks[1].inner.weight != 0).sum()) for one in (small, half))
    assert before == weight.numel() == 2 * after
    assert stack.paper_bytes(half) <= whole - 4 * after
    assert stack.paper_bytes(coded(half, 8)) == pytest.approx(stack.paper_bytes(half) / 4, rel=0.03)
    for pairs in ("", "somewhere"):
        sizes = [
            cost(stack.stack_recipe(name, 9, 0, pairs).model).decoder_parameters
            for name in ("transformer", "lite")
        ]
        assert sizes[0] > 2.3 * sizes[1]
