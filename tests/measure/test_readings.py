from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from parformer.config import ModelConfig, preset
from parformer.costs import cost
from parformer.errors import ConfigError, FolderError
from parformer.events import Preparing
from parformer.measure import readings as readings_module
from parformer.measure.device import Receipt
from parformer.measure.readings import (
    REFERENCE,
    Meter,
    Reading,
    Readings,
    Step,
    cut,
    in_batches,
    measure_here,
    weights_bytes,
)

RECEIPT = Receipt.issue("a test", threads=1)


def model(blocks: int, **changes: Any) -> ModelConfig:
    values: dict[str, Any] = {"d_model": 16, "n_head": 2, "d_inner": 16, "tgt_len": 4, "mem_len": 3}
    return preset("pocket", pattern=f"(f)x{blocks}", **values | changes)


def blocks(config: ModelConfig) -> int:
    return len(config.pattern)


class Fake:
    """A machine on which a block takes a second; slower with each batch, and not steadily."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def __call__(
        self, configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
    ) -> Readings:
        self.batches.append(list(configs))
        if progress is not None:
            progress("working", 0.5)
            progress("working", 1.0)
        drift = [1.3 ** len(self.batches) * (1 + 0.2 * (i % 3)) for i in range(step.rounds)]
        first = blocks(next(iter(configs.values())))
        readings = [
            Reading.taken(
                name,
                [blocks(config) * slow for slow in drift],
                blocks(config) / first,
                1000 * blocks(config),
                10 * blocks(config),
            )
            for name, config in configs.items()
        ]
        return Readings(readings=tuple(readings), receipt=RECEIPT)


# Steps


@pytest.mark.parametrize(
    "step",
    [Step(), Step(tgt_len=192, mem_len=0, batch=2, threads=3, precision="bf16", rounds=7)],
)
def test_a_step_survives_json(step: Step) -> None:
    assert Step.from_dict(json.loads(json.dumps(step.to_dict()))) == step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tgt_len": 0}, "tgt_len must be a whole number from 1 up, got 0"),
        ({"mem_len": -1}, "mem_len must be a whole number from 0 up, got -1"),
        ({"batch": 0}, "batch"),
        ({"threads": 0}, "threads"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 2.5}, "got 2.5"),
        ({"batch": True}, "got True"),
        ({"precision": "fp8"}, "unknown precision 'fp8'; known: fp32, bf16"),
    ],
)
def test_a_step_checks_itself(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Step(**changes)
    with pytest.raises(FolderError, match=message):
        Step.from_dict(changes)


def test_a_step_is_the_models_own_where_it_does_not_say() -> None:
    own = Step().shape(model(1))
    assert (own.batch, own.tgt_len, own.mem_len) == (1, 4, 3)
    said = Step(tgt_len=9, mem_len=0, batch=2).shape(model(1))
    assert (said.batch, said.tgt_len, said.mem_len) == (2, 9, 0)


def test_weights_are_counted_in_the_steps_precision() -> None:
    parameters = cost(model(3)).parameters
    assert weights_bytes(model(3), Step()) == 4 * parameters
    assert weights_bytes(model(3), Step(precision="bf16")) == 2 * parameters


# Readings


def test_a_real_reading() -> None:
    threads = torch.get_num_threads()
    told: list[float] = []
    configs = {"one": model(1), "many": model(40)}
    readings = measure_here(configs, Step(rounds=3), lambda what, share: told.append(share))
    one, many = readings.readings
    assert (one.name, many.name) == ("one", "many")
    assert readings["many"] is many
    assert len(one.samples) == len(many.samples) == 3
    assert one.ratio == 1
    ratios = sorted(b / a for a, b in zip(one.samples, many.samples, strict=True))
    assert many.ratio == pytest.approx(ratios[1])
    assert one.low <= one.median <= one.high
    assert one.median == sorted(one.samples)[1]
    assert one.resident_bytes == weights_bytes(model(1), Step())
    assert one.working_bytes == one.peak_bytes - one.resident_bytes > 0
    assert readings.receipt.threads == 1
    assert torch.get_num_threads() == threads
    assert told == sorted(told)
    assert told[-1] == 1


def test_what_a_step_says_is_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(tgt_len=2, mem_len=5, batch=3, rounds=1)
    config = preset("pocket", pattern="s", d_model=16, n_head=2)
    readings = measure_here({"it": config}, step)
    assert "2 tokens after 5, batch 3, fp32" in readings.receipt.what
    assert readings["it"].resident_bytes > weights_bytes(config, step)  # a memory of 3 × 5

    def measure_models(configs: object, **options: object) -> None:
        assert (options["precision"], options["threads"]) == ("bf16", 2)
        assert torch.get_num_threads() == 2
        raise ConfigError("this CPU cannot")  # as some say that they could and die

    monkeypatch.setattr(readings_module, "measure_models", measure_models)
    with pytest.raises(ConfigError, match="this CPU cannot"):
        measure_here({"it": config}, replace(step, precision="bf16", threads=2))


def test_readings_survive_json() -> None:
    readings = measure_here({"one": model(1)}, Step(rounds=2))
    again = Readings.from_dict(json.loads(json.dumps(readings.to_dict())))
    assert again == readings


def test_a_name_that_was_not_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match="no model 'c' was measured; there are: a, b"):
        Fake()({"a": model(1), "b": model(2)}, Step())["c"]


def break_reading(**changes: Any) -> dict[str, Any]:
    values = Fake()({"a": model(1), "b": model(2)}, Step()).to_dict()
    values["readings"][1] |= changes
    return values


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"readings": []},
        {"readings": [], "receipt": RECEIPT.to_dict()},
        [],
        break_reading(samples=[]),
        break_reading(samples=[1.0]),
        break_reading(samples=7),
        break_reading(samples=[0.0] * 10),
        break_reading(samples=["1"] * 10),
        break_reading(ratio=math.nan),
        break_reading(median=math.inf),
        break_reading(low=-1.0),
        break_reading(high=None),
        break_reading(peak_bytes="many"),
        break_reading(resident_bytes=-5),
        break_reading() | {"receipt": {"device": {}}},
        break_reading() | {"receipt": None},
    ],
)
def test_broken_readings_are_refused(values: Any) -> None:
    with pytest.raises(FolderError, match="broken"):
        Readings.from_dict(values)


# Batches


def named(*sizes: int) -> dict[str, ModelConfig]:
    return {f"m{i}": model(size) for i, size in enumerate(sizes)}


def test_batches_are_as_large_as_their_bound_allows() -> None:
    configs, step = named(40, 20, 30, 10, 50, 5, 5), Step()
    size = {name: weights_bytes(config, step) for name, config in configs.items()}
    exactly = size["m0"] + size["m1"] + size["m2"]
    for bound in (exactly, exactly - 1, 10**12):
        batches = cut(configs, step, most_bytes=bound)
        assert [name for batch in batches for name in batch] == list(configs)
        held = [sum(size[name] for name in batch) for batch in batches]
        assert max(held) <= bound
        for bytes_held, after in zip(held, batches[1:], strict=False):
            assert bytes_held + size[after[0]] > bound
    assert cut(configs, step, most_bytes=exactly)[0] == ["m0", "m1", "m2"]
    assert cut(configs, step, most_bytes=exactly - 1)[0] == ["m0", "m1"]
    assert cut({}, step) == []


def test_a_model_too_large_gets_its_turn() -> None:
    assert cut(named(1, 1), Step(), most_bytes=1) == [["m0"], ["m1"]]
    pairs = cut(named(1, 1, 1), Step(), most_bytes=1, overlap=True)
    assert pairs == [["m0", "m1"], ["m1", "m2"]]


def test_the_last_of_a_batch_is_the_first_of_the_next() -> None:
    configs, step = named(1, 1, 1, 1, 1, 1), Step()
    bound = 3 * weights_bytes(configs["m0"], step)
    batches = cut(configs, step, most_bytes=bound, overlap=True)
    assert batches == [["m0", "m1", "m2"], ["m2", "m3", "m4"], ["m4", "m5"]]


def test_a_machine_that_slows_down_makes_no_difference() -> None:
    fake, told = Fake(), [0.0]
    sizes = (3, 5, 4, 9, 2)
    series = in_batches(
        named(*sizes),
        Step(),
        fake,
        reference=model(2),
        most_bytes=1,
        progress=lambda what, share: told.append(share),
    )
    assert [batch[0] for batch in fake.batches] == [REFERENCE] * 4
    assert [reading.name for reading in series.readings] == [f"m{i}" for i in range(5)]
    for reading, size in zip(series.readings, sizes, strict=True):
        assert reading.ratio == pytest.approx(size / 2)
        assert reading.median == pytest.approx(series.reference_seconds * size / 2)
        assert reading.high == pytest.approx(reading.low)
        assert (reading.peak_bytes, reading.resident_bytes) == (1000 * size, 10 * size)
    assert [len(reading.samples) for reading in series.readings] == [10, 20, 20, 20, 10]
    # four batches, each slower by a fifth of its rounds and more than the one before
    assert 2 * 1.3 < series.reference_seconds < 2 * 1.3**4 * 1.4
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1)
    assert series.receipt == RECEIPT


def test_neighbours_that_cannot_be_told_apart_are_ties() -> None:
    # 2% and 2.9% are less than where weights happen to lie can make, 3.1% is more
    sizes = (1000, 1000, 1020, 1049, 1082, 900)
    for bound in (10**12, 1):
        series = in_batches(named(*sizes), Step(), Fake(), reference=model(9), most_bytes=bound)
        assert series.ties == (True, True, True, False, False)


def test_few_rounds_are_always_ties() -> None:
    series = in_batches(named(1, 9), Step(rounds=2), Fake(), reference=model(1))
    assert series.ties == (True,)


def test_nothing_to_measure_and_a_name_that_is_taken_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to measure"):
        in_batches({}, Step(), Fake(), reference=model(1))
    with pytest.raises(ConfigError, match="cannot be called 'reference'"):
        in_batches({REFERENCE: model(1)}, Step(), Fake(), reference=model(1))


def test_what_goes_to_another_machine_comes_back_the_same() -> None:
    """A meter behind a queue sees nothing but JSON."""

    def far_away(
        configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
    ) -> Readings:
        sent = json.loads(
            json.dumps([{n: c.to_dict() for n, c in configs.items()}, step.to_dict()])
        )
        there = {name: ModelConfig.from_dict(values) for name, values in sent[0].items()}
        answer = Fake()(there, Step.from_dict(sent[1]))
        return Readings.from_dict(json.loads(json.dumps(answer.to_dict())))

    served: Meter = far_away
    near = in_batches(named(1, 2, 3), Step(), Fake(), reference=model(1))
    far = in_batches(named(1, 2, 3), Step(), served, reference=model(1))
    assert far == replace(near, receipt=far.receipt)
