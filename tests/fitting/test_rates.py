"""Are rates, losers and what a fit drew what they are said to be?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from parformer.fitting.contest import behind, choose, losers
from parformer.fitting.energy import WATTS_PER_CORE, estimate
from parformer.fitting.phases import Tried
from parformer.fitting.rates import MOST_RATES, UNDECIDED, best_rate, sweep


@pytest.mark.parametrize(
    ("best", "tried"),
    [(0.3, [0.125, 0.25, 0.5, 1, 2]), (1, [0.5, 1, 2]), (3, [1, 2]), (1.4, [0.5, 1, 2])],
)
def test_a_sweep_goes_down_while_that_helps(best: float, tried: list[float]) -> None:
    found = sweep(lambda rate: Tried(rate, 1 + abs(rate - best)), 2.0)
    assert [one.rate for one in found] == tried
    assert best_rate(found) == min(tried, key=lambda rate: abs(rate - best))


def test_no_rate_above_the_usual_one_is_tried() -> None:
    """Short trainings flatter high rates, which fail in a long one."""
    found = sweep(lambda rate: Tried(rate, 5.0 / rate), 2.0)
    assert [one.rate for one in found] == [1.0, 2.0]
    assert best_rate(found) == 2.0


def test_a_rate_that_diverges_is_never_taken() -> None:
    found = sweep(lambda rate: Tried(rate, None if rate > 1.5 else 5.0), 2.0)
    assert [(one.rate, one.loss) for one in found] == [(0.5, 5.0), (1.0, 5.0), (2.0, None)]
    assert best_rate(found) == 0.5


def test_a_rate_is_never_chosen_on_the_plateau() -> None:
    # what still knows nothing but letter frequencies is a hair lower there, and says nothing
    found = sweep(lambda rate: Tried(rate, 3.0 - 0.01 * rate, stuck=rate > 1), 2.0)
    assert best_rate(found) <= 1.0


def test_where_all_rates_are_stuck_lower_ones_are_tried() -> None:
    found = sweep(lambda rate: Tried(rate, 3.0, stuck=rate > 0.3), 2.0)
    assert [one.rate for one in found][-3:] == [0.25, 1.0, 2.0]
    assert best_rate(found) <= 0.25
    hopeless = sweep(lambda rate: Tried(rate, 3.0, stuck=True), 2.0)
    assert len(hopeless) == MOST_RATES
    assert best_rate(hopeless) == min(one.rate for one in hopeless)


def test_undecided_means_the_lower_rate() -> None:
    close = [Tried(1.0, 2.0 * (1 + 0.9 * UNDECIDED)), Tried(2.0, 2.0), Tried(4.0, 2.5)]
    assert best_rate(close) == 1.0
    apart = [Tried(1.0, 2.0 * (1 + 1.1 * UNDECIDED)), Tried(2.0, 2.0), Tried(4.0, 2.5)]
    assert best_rate(apart) == 2.0


def test_losers_are_far_behind_the_best_that_may_be_chosen() -> None:
    losses = {"baseline": 1.0, "a": 2.0, "b": 2.05, "c": 2.3}
    # the baseline breaks a limit here: being ahead of the others costs nobody its place
    assert losers(losses, ["baseline"], ["a", "b", "c"], 0.04) == {"c": pytest.approx(0.15)}
    assert "a" in losers(losses, ["baseline"], ["baseline", "a", "b", "c"], 0.04)


def test_the_baseline_is_never_dropped() -> None:
    assert losers({"baseline": 9.0, "a": 1.0}, ["baseline"], ["a"], 0.04) == {}


@pytest.mark.parametrize("eligible", [["interleaved", "par", "recurrent"], ["par", "recurrent"]])
def test_the_plain_transformer_within_the_limits_is_never_dropped(eligible: list[str]) -> None:
    """The best is held against it in the end."""
    kind = SimpleNamespace(level=lambda loss, facts: loss, behind=0.04)
    fit: Any = SimpleNamespace(eligible=eligible, kind=kind, facts=None)
    losses = {"baseline": 2.0, "interleaved": 1.9, "par": 1.2, "recurrent": 1.0}
    dropped = {"par": "20.0% behind the best"}
    if "interleaved" not in eligible:
        dropped["interleaved"] = "90.0% behind the best"
    assert behind(fit, losses) == dropped


def test_of_models_that_are_as_good_the_fastest_is_taken() -> None:
    found = {"a": 1.000, "b": 1.002, "c": 1.1}
    assert choose(found, {"a": 2.0, "b": 1.0, "c": 0.1}, close=0.0025) == "b"
    assert choose(found, {"a": 2.0, "b": 1.0, "c": 0.1}, close=0.001) == "a"


def test_energy_is_power_times_time() -> None:
    found = estimate(1800, cores=4, watts=100, grid=0.5, price=0.2, currency="CHF")
    assert found.kwh == pytest.approx(0.05)
    assert found.co2_kg == pytest.approx(0.025)
    assert found.money == pytest.approx(0.01)
    assert "as given" in found.source
    guessed = estimate(3600, cores=3, watts=0, grid=0, price=0, currency="")
    assert guessed.kwh == pytest.approx(3 * WATTS_PER_CORE / 1000)
    assert guessed.source.startswith("estimate")
