"""What the benchmarks compare computes the same numbers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
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


def test_blocks_that_do_least_harm_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    blocks = load("encoder_blocks", monkeypatch)
    monkeypatch.setattr(blocks, "RESULTS", tmp_path / "results.jsonl")
    harm = {-1: 0.5, 0: 0.9, 1: 0.7, 2: 0.6, 3: 2.5, 4: 0.8, 5: 0.6, 6: 2.9, 7: 2.9}
    seconds = {-1: 6.0, **{number: 5.0 if number % 2 else 5.5 for number in range(8)}}
    alone = [
        {"block": n, "letter": "" if n < 0 else "sf"[n % 2], "harm": harm[n], "seconds": seconds[n]}
        for n in harm
    ]
    found = blocks.sets(alone)
    assert found["2 attentions, least harm"] == (2, 4)
    assert found["1 layers, least harm"] == (4, 5)
    assert found["every second layer"] == (2, 3, 6, 7)
    # 1.5 seconds: blocks 2 and 5 do a harm of 0.2, layer 4-5 of 0.4
    assert found["any blocks, as much time as 1 layers"] == (2, 5)
    for number, (name, gone) in enumerate(found.items()):
        blocks.keep(
            blocks.RESULTS,
            {"part": "tuned", "task": "sst2", "name": name, "gone": list(gone),
             "score": 0.9 - number / 100, "beside": 1 - len(gone) / 10},
        )  # fmt: skip
    assert blocks.picture("sst2").count("<circle") == len(found)


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


def fit_line(seed: int, test: float, **more: Any) -> dict[str, Any]:
    usual = {
        "part": "fit", "text": "words", "minutes": 6.0, "seed": seed, "took": 339, "test": test,
        "ngram": 2.0, "order": 6, "counts": 1.5, "counts_bytes": 6_000_000, "pattern": "nrfsf",
        "updates": 5000, "predicted_off": 0.04, "cpu": "some", "date": "2026-11-19",
    }  # fmt: skip
    return usual | more


def test_regret_is_beside_the_best_that_is_known_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    fits = load("fit", monkeypatch)
    single = {"part": "alone", "text": "words", "minutes": 6.0, "seed": 0, "alone": 1.1}
    some = [fit_line(0, 1.21), fit_line(1, 1.32), single | {"alone": 1.2}, single | {"seed": 1}]
    (cells,) = fits.rows(some)
    told = dict(zip(fits.HEADS, cells, strict=True))
    assert told["regret"] == "+15.0% (+10.0% … +20.0%)"
    (cells,) = fits.rows([*some, fit_line(2, 1.0)])  # a fit that is better than all of them
    assert dict(zip(fits.HEADS, cells, strict=True))["regret"].endswith("(+0.0% … +32.0%)")
    (cells,) = fits.rows(some[:2])
    assert (
        dict(zip(fits.HEADS, cells, strict=True))["regret"] == ""
    )  # nothing was trained by itself


def test_counting_has_as_many_bytes_as_the_largest_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    fits = load("fit", monkeypatch)
    old = [fit_line(0, 1.2), fit_line(1, 1.2, size=7_000_000)]
    assert fits.largest(old) == fits.UNSIZED  # what does not say is not taken for small
    new = [fit_line(0, 1.2, size=7_000_000), fit_line(1, 1.2, size=8_500_000, finalists_off=0.06)]
    known = {"part": "counting", "text": "words", "bytes": 8_500_000, "counting": 1.49}
    smaller = known | {"bytes": 7_000_000, "counting": 1.51}
    (cells,) = fits.rows([*new, smaller, known])
    told = dict(zip(fits.HEADS, cells, strict=True))
    assert told["counting in as many bytes"] == "1.490 (8.5 MB)"
    assert told["that of finalists, off by"] == "6%"
    stamp = {"cpu": "some", "date": "2026-11-20"}
    assert "finalists" not in fits.written(old)
    assert "of finalists" in fits.written([*new, known | stamp])


def test_every_measured_line_of_fits_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    fits = load("fit", monkeypatch)
    every = fits.known(fits.RESULTS)
    texts = {one["text"] for one in every}
    assert {"enwik8", "python-source", "wikitext-2"} <= texts
    for cells in fits.rows(every):
        told = dict(zip(fits.HEADS, cells, strict=True))
        assert told["text"] in texts
        assert all(told[name] for name in ("bits", "counts alone", "best n-gram", "winners"))


def test_a_suffix_array_tells_what_followed_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its chances are those of counting contexts by hand."""
    monkeypatch.syspath_prepend(str(FOLDER))
    counts = load("counts", monkeypatch)
    monkeypatch.setattr(counts, "LOOKED_BACK", 4)
    rng = np.random.default_rng(0)
    # what stands there once, and what never does, beside letters that are frequent
    train = np.insert(rng.integers(97, 100, 300), 150, list(b"defgh")).astype(np.uint8)
    asked = b"abcabcaxbcdefghabcc"
    found = counts.by_suffixes(train, np.frombuffer(asked, np.uint8), 10_000)
    # a suffix is known as far as it is asked about, so the last few begin none
    text, starts = train.tobytes(), range(len(train) - 4)
    for place, (chance, longest) in enumerate(zip(*found, strict=True), start=4):
        wanted, many, length = 1 / 256, 0, 0
        for k in range(5):
            context = asked[place - k : place]
            after = [text[n + k] for n in starts if text[n : n + k] == context]
            if after and len(after) != many:
                kinds = len(set(after))
                wanted = (after.count(asked[place]) + kinds * wanted) / (len(after) + kinds)
            many, length = len(after), k if after else length
        assert chance == pytest.approx(wanted)
        assert longest == length


def test_a_text_and_its_suffix_array_have_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    counts = load("counts", monkeypatch)
    for size in (1000, 4_000_000, 8_000_000):
        tokens = counts.suffix_room(size)
        bits = (tokens - 1).bit_length()
        assert size - 10 < tokens * (1 + bits / 8) <= size
