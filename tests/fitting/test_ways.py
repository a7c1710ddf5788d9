"""Are models that run elsewhere, are compressed, or begin with other weights treated so?"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import parformer as pf
from parformer.compress.receipt import bytes_of
from parformer.config import ModelConfig
from parformer.errors import ConfigError
from parformer.events import Watch
from parformer.fitting import takeaway
from parformer.fitting.finalists import settle_there, small_ones
from parformer.fitting.kinds import find_kind, labels
from parformer.fitting.kinds.starts import start_folder
from parformer.fitting.phases import BASELINE, TextFacts
from parformer.fitting.request import FitRequest
from parformer.fitting.runtime import runtime_meter, scaled
from parformer.fitting.squeezing import bring_within, roomier, squeezed_bytes
from parformer.measure.readings import Step, measure_here
from parformer.model import load
from parformer.pattern import Pattern
from tests.fitting.office import FakeMeter, small_fit
from tests.fitting.test_tasks import label_request, write_reviews

ENCODER = {"vocab_size": 60, "d_model": 32, "n_head": 2, "d_inner": 64, "head": "none"}


def encoder(pattern: str, **more: Any) -> ModelConfig:
    told = {"label_head": "class", "labels": ("a", "b"), "pooler": True, "pattern": pattern}
    return pf.preset("bert-pocket", **ENCODER | told | more)


def test_a_step_is_timed_in_the_runtime_it_is_for() -> None:
    pytest.importorskip("onnxruntime")
    step = Step(tgt_len=6, mem_len=0, rounds=5)
    found = runtime_meter("onnx", "labels", 0)({"one": encoder("sf")}, step)
    assert "another runtime" in found.receipt.what
    assert found["one"].median > 0
    twice = scaled(found, 2.0)
    assert twice["one"].median == 2 * found["one"].median
    assert twice["one"].samples == tuple(2 * each for each in found["one"].samples)


def test_what_breaks_a_limit_there_gives_way_to_a_smaller_one() -> None:
    """In the other runtime everything takes three times as long but the baseline."""
    sizes = {"par": [encoder("sf", d_model=width) for width in (64, 48, 32, 16)]}
    figures = {"par": [{"latency": x, "size": 1.0} for x in (0.9, 0.6, 0.4, 0.25)]}
    asked: list[list[str]] = []

    def measure(configs: Any, *_: Any, **__: Any) -> Any:
        asked.append(list(configs))
        width = configs["par"].d_model
        here = {64: 0.9, 48: 0.6, 32: 0.4, 16: 0.25}[width]
        return {"par": SimpleNamespace(ratio=3 * here), BASELINE: SimpleNamespace(ratio=1.0)}

    fit: Any = SimpleNamespace(
        baseline=SimpleNamespace(
            recipe=SimpleNamespace(model=encoder("sf")), figures={"latency": 1.0}
        ),
        measure=measure,
        step=None,
        watch=SimpleNamespace(preparing=None),
        limits={"latency": 1.0},
    )
    taken = {"par": 0}
    assert settle_there(fit, sizes, figures, taken) == {"latency": 1.0}
    assert taken == {"par": 3}
    assert figures["par"][3]["latency"] == pytest.approx(0.75)
    assert len(asked) == 2


@pytest.mark.parametrize("name", ["bert-pocket", "transformer-pocket-translation", "pocket"])
def test_the_size_in_eight_bits_is_known_beforehand(name: str, tmp_path: Path) -> None:
    config = pf.preset(name, vocab_size=300, d_model=64, n_head=4, d_inner=128)
    made = bring_within(pf.build(config), 1.0)
    made.save(tmp_path / "model")
    real = bytes_of(tmp_path / "model")
    assert real <= squeezed_bytes(config) < 1.05 * real
    assert (
        bring_within(pf.build(config), 1e9).state_dict().keys()
        == pf.build(config).state_dict().keys()
    )
    assert roomier({"size": 1e6}, config)["size"] > 3e6
    assert roomier({"latency": 1.0}, config) == {"latency": 1.0}


def test_a_small_one_is_within_the_size_as_it_is() -> None:
    models = [encoder("sf", d_model=width) for width in (64, 32, 16)]
    sizes = [4 * sum(p.numel() for p in pf.build(one).parameters()) for one in models]
    assert small_ones(models, sizes[1]) == models[1:]
    assert small_ones(models, 1.0) == models[2:]


def test_models_are_compressed_into_their_size(tmp_path: Path) -> None:
    table = write_reviews(tmp_path / "reviews.csv", 120)
    request = label_request(
        table, tmp_path / "run", limits=("size=90kB",), compress=True, choices="sf", steps=2
    )
    found = small_fit(request)
    assert "small" in {model.name for model in found.models}
    assert bytes_of(tmp_path / "run" / "model") <= 90_000
    assert any("8 bits" in sentence for sentence in found.verdict.sentences)


def test_a_part_of_a_start_has_its_weights(tmp_path: Path) -> None:
    table = write_reviews(tmp_path / "reviews.csv", 120)
    request = label_request(table, tmp_path / "run")
    _, prepared = find_kind(request).read(None, Watch(), tmp_path, "")
    size, text = prepared.tokenizer.size, prepared.tokenizer.to_json()
    whole = pf.build(encoder("(sf)x2", vocab_size=size, pool="mean"), seed=3)
    whole.save(tmp_path / "start", text)
    thin = whole.config.replaced(pattern=Pattern.parse("sff"))
    part = load(start_folder(tmp_path / "start", thin, tmp_path / "parts"))
    ours, theirs = part.state_dict(), whole.state_dict()
    for name, tensor in ours.items():
        told = name.replace("blocks.2.", "blocks.3.") if name.startswith("blocks.2.") else name
        torch.testing.assert_close(tensor, theirs[told])
    found = small_fit(
        label_request(table, tmp_path / "tuned", start=str(tmp_path / "start"), steps=2)
    )
    assert {"half", "thin"} & {model.name for model in found.models}
    assert found.finished


def test_ways_out_are_tried_or_told_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_reviews(tmp_path / "reviews.csv", 120)
    request = label_request(table, tmp_path / "run", choices="sf")
    tried: list[str] = []

    def exported(run: Path, kind: str, end: str) -> str:
        tried.append(kind)
        if kind == "gguf":
            raise ConfigError("GGUF has no home for it")
        return "the same"

    monkeypatch.setitem(labels.RECIPE, "train.learning_rate", 5e-3)  # so that it learns at once
    monkeypatch.setattr(takeaway, "exported", exported)
    monkeypatch.setattr(takeaway, "measure_here", meter := FakeMeter())
    found = small_fit(request, meter=meter)
    ways = {way.name: way for way in found.ways}
    assert tried == ["onnx", "gguf", "hub"]
    assert ways["to ask it"].works
    assert "predict" in ways["to ask it"].command
    assert not ways["for llama.cpp"].possible
    page = found.report.read_text("utf-8")
    assert "not this model. GGUF has no home for it" in page
    assert page.rindex("Take it away") > page.rindex("How can it be repeated")
    assert measure_here is not meter


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"compress": True}, "say which, such as --limit size=4MB"),
        ({"runtime": "llama.cpp", "task": "classify"}, "has no place for --task classify"),
        ({"runtime": "llama.cpp", "choices": "rsf"}, "has no place for blocks 'r'"),
        ({"runtime": "llama.cpp", "tokenizer": "word"}, "reads bytes or bpe"),
        ({"compress": True, "start": "x", "task": "score"}, "two ways to a small model"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        FitRequest(corpus="x", **changes)


def test_a_model_for_llama_cpp_is_made_of_what_it_runs() -> None:
    request = FitRequest(corpus="x", runtime="llama.cpp", time=600.0)
    assert (request.family, request.choices, request.counts) == ("llama", "sfi", False)
    assert FitRequest.from_dict(request.to_dict()) == request
    facts = TextFacts("", 1, 1, 256, {}, {})
    assert find_kind(request).step(facts).tgt_len == 1
