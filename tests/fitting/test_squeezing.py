"""Do larger models come into a latency in 8 bits, and does the verdict say what that was worth?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import parformer as pf
from parformer.compress.coding import coded_maps
from parformer.config import ModelConfig
from parformer.errors import ConfigError
from parformer.fitting import finalists, running, squeezing
from parformer.fitting.kinds import labels
from parformer.fitting.phases import Finalists
from parformer.fitting.progress import Progress
from parformer.fitting.request import FitRequest
from parformer.fitting.rules import placements
from parformer.fitting.squeezing import bits_meter, roomier, small
from parformer.measure.models import Reader
from parformer.measure.readings import Meter, Readings, Step, measure_here
from parformer.model import Model, load
from tests.fitting.office import FakeMeter, small_fit
from tests.fitting.test_tasks import label_request, write_reviews
from tests.fitting.test_ways import encoder


def fake_bits(times: float) -> Any:
    """A device that takes so many times as long for what is in 8 bits."""

    def meter_of(usual: Meter, some: Collection[ModelConfig], source: int = 0) -> Meter:
        def measure(
            configs: Mapping[str, ModelConfig], step: Step, progress: Any = None
        ) -> Readings:
            plain = usual(configs, step, progress)
            found = []
            for one in plain.readings:
                many = times if configs[one.name] in some else 1.0
                took = {n: getattr(one, n) * many for n in ("median", "low", "high", "ratio")}
                samples = tuple(many * each for each in one.samples)
                found.append(replace(one, **took, samples=samples))
            return replace(plain, readings=tuple(found))

        return measure

    return meter_of


def fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float) -> Any:
    monkeypatch.setattr(running, "bits_meter", fake_bits(times))
    monkeypatch.setitem(labels.RECIPE, "train.learning_rate", 5e-3)
    table = write_reviews(tmp_path / "reviews.csv", 120)
    limits = {"limits": ("latency=0.6x",), "compress": True, "choices": "sf", "steps": 4}
    return small_fit(label_request(table, tmp_path / "run", **limits, exports=False))


def configs_of(run: Path) -> dict[str, ModelConfig]:
    return {one.name: one.config for one in Progress(run, None).need(Finalists).models}


def test_larger_models_come_into_a_latency_in_eight_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fitted(tmp_path, monkeypatch, 0.5)
    plain = {n: FakeMeter().seconds(one) for n, one in configs_of(tmp_path / "run").items()}
    took = {model.name: model.latency.seconds for model in found.models}
    most = found.limits["latency"]
    larger = [name for name in took if name not in ("baseline", "small")]
    for name in larger:
        assert took[name] == pytest.approx(0.5 * plain[name])
        assert took[name] <= most
    # without their bits they would not be there
    assert any(plain[name] > most for name in larger)
    assert took["small"] == pytest.approx(plain["small"])
    assert took["small"] <= most
    handed = load(tmp_path / "run" / "model")
    chosen = found.final.name
    assert bool(list(coded_maps(handed))) == (chosen not in ("baseline", "small"))
    told = " ".join(found.verdict.sentences)
    if chosen == "small":
        assert "within the latency as it is" in told
    else:
        assert "Compressed to 8 bits it has" in told
        assert "as it was trained about" in told
        assert "small model that needs no compression" in told


def test_a_search_for_sizes_looks_further_for_what_bits_make_quicker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(finalists, "search_sizes", lambda _, __, most, *___: asked.append(most))
    monkeypatch.setattr(finalists, "candidates", lambda *_: [])
    monkeypatch.setattr(finalists, "picture", lambda *_: None)
    fit: Any = SimpleNamespace(
        baseline=SimpleNamespace(recipe=SimpleNamespace(model=pf.preset("pocket")), tokens=0.0),
        kind=SimpleNamespace(searches=True),
        limits={"latency": 0.1},
        path=tmp_path,
        request=SimpleNamespace(compress=True, preset="pocket", seed=0),
        step=None,
        in_bits=0.5,
        quicker=True,
    )
    rule = placements(4, "sf", "")[0]
    for one in (rule, small(rule)):
        finalists.sizes_of(fit, one, None)  # type: ignore[arg-type]
    depths = len(rule.patterns)
    assert asked == [{"latency": 0.2}] * depths + [{"latency": 0.1}] * depths


def test_bits_that_are_no_quicker_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fitted(tmp_path, monkeypatch, 1.2)
    assert "8 bits take 1.20 times as long as what was trained" in " ".join(found.verdict.sentences)
    assert not list(coded_maps(load(tmp_path / "run" / "model")))
    configs = configs_of(tmp_path / "run")
    for one in found.models:
        assert one.latency.seconds == pytest.approx(FakeMeter().seconds(configs[one.name]))


def test_what_is_timed_in_bits_is_in_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Model] = []

    class Seen(Reader):
        def __init__(self, model: Model, *more: Any) -> None:
            seen.append(model)
            super().__init__(model, *more)

    monkeypatch.setattr(squeezing, "Reader", Seen)
    wide = {"d_model": 64, "d_inner": 64}
    one, other = encoder("sf", **wide), encoder("sff", **wide)
    step = Step(tgt_len=6, mem_len=0, rounds=5)
    found = bits_meter(measure_here, {other})({"one": one, "other": other}, step)
    assert found["other"].median > 0
    assert [bool(list(coded_maps(model))) for model in seen] == [False, True]
    sizes = {"vocab_size": 80, "pad": 0, "d_model": 64, "d_inner": 64}
    two = pf.preset("transformer-pocket-translation", pattern="sf | scf", **sizes)
    told = bits_meter(measure_here, {two}, source=5)({"two": two}, step)
    assert "a sentence of 6 tokens from 5" in told.receipt.what
    with pytest.raises(ConfigError, match="measures elsewhere"):
        bits_meter(FakeMeter(), {other})


def test_a_latency_is_roomier_by_what_bits_save() -> None:
    assert roomier({"latency": 1.0}, encoder("sf"), 0.5) == {"latency": 2.0}
    with pytest.raises(ConfigError, match="8 bits are timed in torch"):
        FitRequest(corpus="x", compress=True, limits=("latency=0.5x",), runtime="onnx")
    FitRequest(corpus="x", compress=True, limits=("latency=0.5x",))
