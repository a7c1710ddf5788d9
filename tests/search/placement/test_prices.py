"""Do the prices of choices add up to the price of the model, and are targets understood?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from parformer.config import FAMILIES, ModelConfig, preset
from parformer.costs import ModelCost, cost
from parformer.errors import ConfigError, FolderError, ParformerError
from parformer.measure import latency
from parformer.measure.latency import Comparison
from parformer.measure.models import Reader
from parformer.pattern import Pattern
from parformer.search.placement import prices as module
from parformer.search.placement.architecture import best_picks, expected_cost
from parformer.search.placement.choices import Choices
from parformer.search.placement.prices import (
    Prices,
    baseline_pattern,
    exact,
    measured,
    refuse_unreachable,
)
from parformer.search.placement.target import METRICS, Target, read_target
from tests.conftest import small_config

COSTS: dict[str, Callable[[ModelCost], int]] = {
    "flops": lambda price: price.flops,
    "parameters": lambda price: price.parameters,
    "state": lambda price: price.state_bytes,
}

PRICES = Prices(metric="flops", choices=((7, 3, 0), (7, 3)), fixed=10, baseline=20)


def small(family: str) -> ModelConfig:
    """With a memory, wherever there can be one."""
    config = small_config(family)
    return config if config.memory or not config.causal else config.replaced(tgt_len=6, mem_len=5)


# Counted


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("metric", COSTS)
def test_a_patterns_price_is_the_sum_of_its_parts(family: str, metric: str) -> None:
    config, rng = small(family), Random(0)
    choices = "s f i s[heads=2] f[inner=7]"
    if metric == "state" and not config.causal:
        pytest.skip("it has none")
    for layers in (1, 2, 5, 8):
        space = Choices.uniform(layers, choices)
        prices = exact(metric, config, space)
        whole = COSTS[metric](cost(config.replaced(pattern=("sf" * layers)[:layers])))
        assert prices.baseline == whole
        assert prices.total([i % 2 for i in range(layers)]) == 1
        for _ in range(20):
            picks = [rng.randrange(5) for _ in range(layers)]
            model = config.replaced(pattern=space.pattern(picks))
            assert prices.total(picks) == COSTS[metric](cost(model)) / whole
            blocks = sum(row[pick] for row, pick in zip(prices.choices, picks, strict=True))
            assert prices.fixed + blocks == COSTS[metric](cost(model))


def test_layers_of_different_choices_have_their_own_prices() -> None:
    config = small("gpt2")
    space = Choices(tuple(Pattern.parse(text).blocks for text in ("sf", "ifs", "fi")))
    prices = exact("parameters", config, space)
    s, f = cost(config.replaced(pattern="sf")).blocks
    attention, feed_forward = s.cost.parameters, f.cost.parameters
    assert prices.choices == (
        (attention, feed_forward),
        (0, feed_forward, attention),
        (feed_forward, 0),
    )


def test_a_model_keeps_its_own_pattern_out_of_the_prices() -> None:
    config, space = small("llama"), Choices.uniform(3, "sfi")
    assert exact("flops", config, space) == exact("flops", config.replaced(pattern="fff"), space)


def test_published_shares_are_found() -> None:
    """PAR has 63% of the attention blocks' work left out: its 32 blocks hold 6 of 16."""
    config = preset("par-base")
    space = Choices.uniform(32, "sfi")
    picks = ["sfi".index(block.letter) for block in config.pattern]
    baseline = cost(preset("transformer-xl-base"))
    assert exact("parameters", config, space).total(picks) == 199_840_218 / baseline.parameters
    assert exact("state", config, space).total(picks) == 6 / 16


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (small("bert"), "it sees both sides"),
        (small_config("transformer-xl"), "its mem_len is 0"),
    ],
)
def test_a_model_without_state_has_no_price_of_it(config: ModelConfig, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        exact("state", config, Choices.uniform(4, "sfi"))
    assert str(error.value) == (
        f"this model keeps no state, as {why}; choose one of flops, parameters, latency"
    )


def test_what_is_not_counted_is_refused() -> None:
    for metric in ("latency", "time"):
        with pytest.raises(ConfigError, match=f"unknown counted metric '{metric}'; known: flops"):
            exact(metric, small("gpt2"), Choices.uniform(4, "sfi"))


def test_the_baseline_is_attention_and_feed_forward_in_turn() -> None:
    assert [baseline_pattern(layers).letters for layers in (1, 2, 5)] == ["s", "sf", "sfsfs"]


# Sums


def test_relative_prices_are_multiples_of_the_interleaved_model() -> None:
    relative_lc = PRICES.relative_lc()
    assert relative_lc.dtype == torch.float64
    assert relative_lc.tolist() == [[0.35, 0.15, 0.0], [0.35, 0.15, 0.0]]
    assert PRICES.relative_fixed == 0.5
    assert PRICES.total([0, 1]) == 1
    assert PRICES.total([2, 1]) == 0.65
    with pytest.raises(ValueError, match="zip"):
        PRICES.total([0])


def test_the_expected_cost_of_certain_picks_is_their_total() -> None:
    certain_lc = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    expected = expected_cost(certain_lc, PRICES.relative_lc(), PRICES.relative_fixed)
    assert float(expected) == pytest.approx(PRICES.total([1, 0]))


def test_the_room_is_exactly_what_a_limit_leaves() -> None:
    """A limit means what was written: 0.7 of 10 is 7, though 0.7 as a float is less."""
    assert 0.7 * 10 == 7 > math.floor(10 * (0.7 - 1e-16))
    for baseline in (10, 30, 1000, 511_705_088):
        for hundredths in range(1, 130):
            prices = replace(PRICES, baseline=baseline, fixed=3)
            most = prices.room(hundredths / 100) + 3
            assert most == hundredths * baseline // 100
            assert most / baseline <= hundredths / 100 < (most + 1) / baseline


@pytest.mark.parametrize("metric", COSTS)
def test_the_interleaved_model_is_within_a_limit_of_one(metric: str) -> None:
    space = Choices.uniform(7, "sfi")
    prices = exact(metric, small("transformer-xl"), space)
    likes = [[0.0, -1.0, -2.0] if layer % 2 == 0 else [-1.0, 0.0, -2.0] for layer in range(7)]
    assert best_picks(likes, prices.choices, prices.room(1.0)) == [0, 1, 0, 1, 0, 1, 0]
    picks = best_picks(likes, prices.choices, prices.room(0.999))
    assert prices.total(picks) <= 0.999


# Stored


def test_prices_come_back_from_json() -> None:
    for prices in (PRICES, replace(PRICES, metric="latency", measured=25)):
        stored = json.loads(json.dumps(prices.to_dict()))
        assert stored == prices.to_dict()
        assert Prices.from_dict(stored) == prices


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "flop"}, "unknown metric 'flop'; did you mean 'flops'"),
        ({"metric": 3}, "metric must be a text, got 3"),
        ({"choices": 5}, "choices must be a list, got 5"),
        ({"choices": [5]}, "choices[0] must be a list, got 5"),
        ({"choices": [[1, "2"]]}, "choices[0][1] must be a whole number, got '2'"),
        ({"choices": [[1, True]]}, "choices[0][1] must be a whole number, got True"),
        ({"choices": []}, "choices must have a price in every layer"),
        ({"choices": [[1], []]}, "choices must have a price in every layer"),
        ({"choices": [[1, 2], [3, -4]]}, "prices must not be negative, got -4"),
        ({"fixed": -1}, "prices must not be negative, got -1"),
        ({"measured": -2}, "prices must not be negative, got -2"),
        ({"fixed": 0.5}, "fixed must be a whole number, got 0.5"),
        ({"baseline": 0}, "baseline must be at least 1, got 0"),
        ({"baseline": None}, "baseline must be a whole number, got None"),
        ({"baseline": 2**64}, "baseline must fit into 64 bits"),
    ],
)
def test_broken_prices_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ParformerError) as error:
        Prices.from_dict(PRICES.to_dict() | change)
    assert message in str(error.value)


@pytest.mark.parametrize("name", sorted(PRICES.to_dict().keys() - {"measured"}))
def test_a_missing_field_is_named(name: str) -> None:
    values = PRICES.to_dict()
    del values[name]
    with pytest.raises(FolderError, match=f"lacks '{name}'"):
        Prices.from_dict(values)


@pytest.mark.parametrize("values", [None, 3, [], ["metric"], "text"])
def test_what_is_no_table_is_no_prices(values: Any) -> None:
    with pytest.raises(FolderError, match="Prices must be a table"):
        Prices.from_dict(values)


# Measured

BLOCK_NS = {"s": 50_000, "f": 30_000, "s[heads=2]": 41_000, "i": 0}


class Laboratory:
    """Where a step takes 200 µs and each block its own time, on a machine that slows down."""

    def __init__(self, blocks: Mapping[str, int], together: float = 1.0) -> None:
        self.blocks, self.together = blocks, together
        self.readers: dict[str, Reader] = {}
        self.options: dict[str, Any] = {}

    def measure(
        self, candidates: Mapping[str, Reader], *, rounds: int, progress: Any, **options: Any
    ) -> Comparison:
        self.readers = dict(candidates)
        self.options = options | {"rounds": rounds}
        now = 0.0

        def runner(reader: Reader) -> Callable[[], None]:
            reader()  # it really runs, with whatever memory it has
            blocks = reader.model.config.pattern
            step = 200_000 + sum(self.blocks[str(block)] for block in blocks)
            step = step * self.together if len(set(blocks)) > 1 else step

            def run() -> None:
                nonlocal now
                now += step * (1 + now / 1e9)

            return run

        return latency.measure_latency(
            {name: runner(reader) for name, reader in candidates.items()},
            rounds=rounds,
            progress=progress,
            clock=lambda: round(now),
        )


def in_laboratory(
    monkeypatch: pytest.MonkeyPatch,
    config: ModelConfig,
    space: Choices,
    *,
    blocks: Mapping[str, int] = BLOCK_NS,
    together: float = 1.0,
    **options: Any,
) -> tuple[Prices, Laboratory]:
    laboratory = Laboratory(blocks, together)
    monkeypatch.setattr(module, "measure_latency", laboratory.measure)
    return measured(config, space, **options), laboratory


def test_latency_is_what_a_stack_takes_beyond_none(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Choices.uniform(10, "s f i s[heads=2]")
    config = small_config("transformer-xl", d_model=12, n_head=3, mem_len=5, tgt_len=6)
    prices, laboratory = in_laboratory(monkeypatch, config, space)
    unit = prices.baseline / (200_000 + 5 * 50_000 + 5 * 30_000)
    assert prices.metric == "latency"
    assert prices.choices == (prices.choices[0],) * 10
    assert [price / unit for price in prices.choices[0]] == pytest.approx(
        [50_000, 30_000, 0, 41_000], rel=0.02
    )
    assert prices.fixed / unit == pytest.approx(200_000, rel=0.02)
    assert prices.baseline == prices.fixed + 5 * sum(prices.choices[0][:2])
    assert prices.total([0, 1] * 5) == 1
    assert abs(prices.error) < 0.01
    assert set(laboratory.readers) == {"i", "(sf)x5", "(s)x10", "(f)x10", "(s[heads=2])x10"}


def test_the_step_is_the_models_own_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config("transformer-xl", mem_len=5, tgt_len=6)
    _, laboratory = in_laboratory(
        monkeypatch, config, Choices.uniform(2, "sfi"), threads=1, rounds=9
    )
    for reader in laboratory.readers.values():
        assert (reader.shape.batch, reader.shape.tgt_len, reader.shape.mem_len) == (1, 6, 5)
        assert reader.state is not None
    assert laboratory.options["rounds"] == 9
    assert laboratory.options["threads"] == 1
    assert laboratory.options["what"] == "prices of blocks: one step of 6 tokens after 5"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_measured(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    prices, _ = in_laboratory(monkeypatch, small(family), Choices.uniform(3, "sfi"))
    assert prices.total([0, 1, 0]) == 1
    assert prices.choices[0][0] > prices.choices[0][1] > prices.choices[0][2] == 0


def test_the_baseline_needs_no_block_of_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shallow space without plain attention: eight copies are timed all the same."""
    config = small_config("gpt2", d_model=12)
    space = Choices.uniform(1, "s[heads=2] i")
    prices, laboratory = in_laboratory(monkeypatch, config, space)
    assert set(laboratory.readers) == {"i", "s", "(s)x8", "(s[heads=2])x8"}
    assert prices.total([0]) == pytest.approx(241_000 / 250_000, rel=0.01)


def test_how_far_the_sum_is_off_the_whole_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Choices.uniform(4, "sfi")
    prices, _ = in_laboratory(monkeypatch, small("gpt2"), space, together=1.25)
    assert prices.error == pytest.approx(1 / 1.25 - 1, abs=0.01)
    assert prices.error == prices.baseline / prices.measured - 1
    assert prices.total([0, 1, 0, 1]) == 1
    assert PRICES.error == 0


def test_a_block_too_quick_to_see_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Choices.uniform(4, "sfi")
    blocks = BLOCK_NS | {"f": -3000}
    prices, _ = in_laboratory(monkeypatch, small("gpt2"), space, blocks=blocks)
    assert prices.choices[0][1] == 0 < prices.choices[0][0]


def test_progress_goes_from_building_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float]] = []
    space = Choices.uniform(4, "sfi")
    in_laboratory(
        monkeypatch, small("gpt2"), space, progress=lambda what, share: told.append((what, share))
    )
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == 1
    assert told[0][0] == "building i"
    assert told[-1][0] == "timing, in turns"


def test_a_real_clock_gives_prices_too() -> None:
    """No time is asserted: only that all are there, and that something takes time."""
    space = Choices.uniform(3, "sfi")
    prices = measured(small("gpt2"), space, threads=1, rounds=2)
    assert [len(row) for row in prices.choices] == [3, 3, 3]
    assert prices.choices[0][2] == 0
    assert prices.fixed > 0
    assert prices.measured > 0
    assert Prices.from_dict(json.loads(json.dumps(prices.to_dict()))) == prices


# Targets


@pytest.mark.parametrize("metric", METRICS)
def test_targets_are_read(metric: str) -> None:
    assert read_target("", "") is None
    assert read_target(f"{metric}=0.1", "") == Target(metric=metric, penalty=0.1)
    assert read_target(f" {metric} = 2 ", "") == Target(metric=metric, penalty=2.0)
    assert read_target("", f"{metric}=0.7x") == Target(metric=metric, limit=0.7)
    assert read_target("", f" {metric} = 1.5x ") == Target(metric=metric, limit=1.5)


@pytest.mark.parametrize(
    ("penalty", "limit", "message"),
    [
        (
            "flops=0.1",
            "flops=0.7x",
            "both a penalty, 'flops=0.1', and a limit, 'flops=0.7x'; give one of them: "
            "a limit finds its own penalty",
        ),
        ("flops", "", "cannot read penalty 'flops'; write it as flops=0.1"),
        ("", "0.7x", "cannot read limit '0.7x'; write it as latency=20ms"),
        ("flop=0.1", "", "unknown metric of a penalty 'flop'; did you mean 'flops'?"),
        (
            "",
            "time=0.7x",
            "unknown metric of a limit 'time'; known: flops, parameters, state, latency",
        ),
        (
            "",
            "latency=5ms",
            "limit 'latency=5ms' must be a multiple of the interleaved model's latency, "
            "such as latency=0.7x; amounts are for 'search sizes' and 'fit'",
        ),
    ],
)
def test_targets_that_cannot_be_read_say_why(penalty: str, limit: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_target(penalty, limit)
    assert str(error.value) == message


@pytest.mark.parametrize("number", ["", "0", "-1", "nan", "inf", "1e999", "a", "0.1x", "0,1"])
def test_a_penalty_is_a_number_above_nought(number: str) -> None:
    with pytest.raises(ConfigError, match=r"must be a number above 0, such as state=0.1"):
        read_target(f"state={number}", "")


@pytest.mark.parametrize("number", ["", "x", "0x", "-1x", "nanx", "infx", "0.7", "70%", "0.7xx"])
def test_a_limit_is_a_multiple_above_nought(number: str) -> None:
    with pytest.raises(ConfigError, match=r"limit '.* a multiple of .* such as state=0.7x"):
        read_target("", f"state={number}")


def test_messages_stay_one_short_line() -> None:
    with pytest.raises(ConfigError) as error:
        read_target("flops=" + "\n9" * 1000 + "y", "")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


# Reach


def test_a_limit_below_the_cheapest_pattern_is_refused_with_the_nearest() -> None:
    config, space = preset("pocket"), Choices.uniform(12, "sfi")
    prices = exact("flops", config, space)
    fixed = cost(config.replaced(pattern="i")).flops / cost(config).flops
    with pytest.raises(ConfigError) as error:
        refuse_unreachable(prices, space, 0.01)
    assert str(error.value) == (
        "no pattern of this space costs 0.01x of the interleaved model's flops; the nearest, i, "
        f"costs {fixed:.4g}x: its embedding and head alone; raise the limit to 0.02x or more"
    )
    refuse_unreachable(prices, space, 0.02)


def test_without_identity_the_nearest_is_made_of_the_cheapest_blocks() -> None:
    space = Choices.uniform(12, "sf")
    prices = exact("flops", preset("pocket"), space)
    with pytest.raises(ConfigError, match=r"the nearest, \(f\)x12, costs 0.6066x; raise .* 0.61x"):
        refuse_unreachable(prices, space, 0.3)
    refuse_unreachable(prices, space, prices.total([1] * 12))
    with pytest.raises(ConfigError, match="raise the limit"):
        refuse_unreachable(prices, space, math.nextafter(prices.total([1] * 12), 0))
