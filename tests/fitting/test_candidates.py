"""Do finalists have the most parameters that fit, and never anything that does not?"""

from __future__ import annotations

from pathlib import Path

import pytest

from parformer.config import ModelConfig, preset
from parformer.costs import cost
from parformer.fitting.candidates import (
    Reckoned,
    candidates,
    choose,
    inner_widths,
    inside_widths,
    picture,
    search_sizes,
    space_of,
    widths_of,
)
from parformer.fitting.ladder import LADDER, rung
from parformer.fitting.placements import placements
from parformer.fitting.request import FAMILIES
from parformer.measure.readings import Step
from parformer.pattern import Pattern, par

BASE = rung(preset("pocket"), 64, 4)
STEP = Step()
CLOCK = Reckoned(BASE, 0.004, 2_000_000, STEP)


def test_placements_by_rule_and_the_found_one() -> None:
    found = {one.name: one for one in placements(12, "rsfyi", "s(f)x3")}
    assert list(found) == ["interleaved", "par", "recurrent", "hybrid", "synthesizer", "found"]
    assert found["synthesizer"].patterns[0].letters == "yf" * 6
    assert found["synthesizer"].how == "a dense Synthesizer in the place of attention"
    assert found["par"].patterns == (par(12), par(8), par(6))
    assert found["recurrent"].patterns[0].letters == "rf" * 6
    assert found["found"].patterns == (Pattern.parse("sfff"),)
    near = {one.name: one for one in placements(12, "rsfl", "")}
    assert list(near) == ["interleaved", "par", "recurrent", "hybrid", "lsra"]
    known = {one.name: one for one in placements(12, "rsfn", "")}
    assert [str(pattern) for pattern in known["memory"].patterns] == [
        "n (rfsf)x3", "n (rfsf)x2", "nrfsfrf",
    ]  # fmt: skip
    assert near["lsra"].patterns[0].letters == "lf" * 6


def test_what_a_rule_gives_already_is_not_found_again() -> None:
    assert [one.name for one in placements(12, "sf", str(par(12)))] == ["interleaved", "par"]
    assert [one.name for one in placements(12, "sf", "i")] == ["interleaved", "par"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", LADDER)
def test_every_rung_of_every_family_has_sizes(family: str, size: tuple[int, int]) -> None:
    base = rung(preset(FAMILIES[family]), *size)
    assert base.d_model in widths_of(base)
    for placement in placements(len(base.pattern), "rsfly", ""):
        space = space_of(placement.name, placement.patterns[0], base, FAMILIES[family])
        for width in widths_of(base):
            assert width % base.n_head == 0
        assert space.size > 10
    assert inner_widths(base)[0] < base.d_inner < inner_widths(base)[-1]
    assert inside_widths(base)


def test_sizes_within_limits_hold_the_most_parameters(tmp_path: Path) -> None:
    space = space_of("par", par(8), BASE, "pocket")
    limits = {"latency": 0.75 * CLOCK.latency(BASE)}
    ended = search_sizes(space, CLOCK, limits, STEP, 0, tmp_path / "a.jsonl")
    first, *others = candidates([ended], limits)
    assert CLOCK.latency(first) <= limits["latency"]
    visited = [space.config(one.genome) for one in ended.candidates]
    fits = [c for c in visited if CLOCK.latency(c) <= limits["latency"]]
    assert cost(first).decoder_parameters == max(cost(c).decoder_parameters for c in fits)
    # less and less of the limit, should the prediction be off
    latencies = [CLOCK.latency(config) for config in others]
    assert latencies == sorted(latencies, reverse=True)
    assert latencies[-1] <= 0.66 * limits["latency"]
    again = search_sizes(space, CLOCK, limits, STEP, 0, tmp_path / "a.jsonl")
    assert [one.genome for one in again.candidates] == [one.genome for one in ended.candidates]
    shown = picture([ended])
    assert len(shown.visited["quality"]) <= 400
    assert max(row["quality"] for row in shown.front) == max(
        cost(config).decoder_parameters for config in visited
    )


def test_a_loose_limit_is_used_up_as_far_as_there_is_time(tmp_path: Path) -> None:
    space = space_of("par", par(8), BASE, "pocket")
    limits = {"latency": 9 * CLOCK.latency(BASE)}
    ended = search_sizes(space, CLOCK, limits, STEP, 0, tmp_path / "a.jsonl")

    def share(config: ModelConfig) -> float:
        return cost(config).parameters / cost(BASE).parameters

    loose, timely = candidates([ended], limits), candidates([ended], limits, share)
    assert share(loose[0]) > 1.5
    assert all(share(config) <= 1 for config in timely)
    every = [space.config(one.genome) for one in ended.candidates]
    assert cost(timely[0]).decoder_parameters == max(
        cost(config).decoder_parameters for config in every if share(config) <= 1
    )
    # where there is time for none the least is taken; where nothing fits time decides nothing
    (least,) = candidates([ended], limits, lambda config: 100 * share(config))
    assert share(least) == min(map(share, every))
    none = {"latency": 1e-9}
    assert candidates([ended], none, share) == candidates([ended], none)


def test_where_nothing_fits_the_nearest_is_kept(tmp_path: Path) -> None:
    space = space_of("par", par(8), BASE, "pocket")
    ended = search_sizes(space, CLOCK, {"latency": 1e-9}, STEP, 0, tmp_path / "a.jsonl")
    (nearest,) = candidates([ended], {"latency": 1e-9})
    visited = [CLOCK.latency(space.config(one.genome)) for one in ended.candidates]
    assert CLOCK.latency(nearest) == min(visited)


def test_measured_figures_decide() -> None:
    configs = [BASE.replaced(d_model=width) for width in (96, 80, 64)]
    figures = [{"latency": latency} for latency in (1.2, 0.9, 0.8)]
    assert choose(configs, figures, {"latency": 1.0}) == 1
    assert choose(configs, figures, {"latency": 0.5}) == 2


def test_a_finalist_has_some_room_below_a_limit_of_the_clock() -> None:
    """Measured again it may be slower by a few percent; what is counted stays as it is."""
    configs = [BASE.replaced(d_model=width) for width in (64, 80, 96)]
    figures = [{"latency": value, "parameters": 1.0} for value in (0.5, 0.9, 0.99)]
    assert choose(configs, figures, {"latency": 1.0}) == 1
    assert choose(configs, figures, {"latency": 1.0, "parameters": 1.0}) == 1
    assert choose(configs, figures[2:], {"latency": 1.0}) == 0
    assert choose(configs[1:], figures[1:], {"latency": 0.92}) == 0


def test_without_a_profile_flops_stand_for_time() -> None:
    assert CLOCK.latency(BASE) == pytest.approx(0.004)
    assert CLOCK.peak_bytes(BASE) == 2_000_000
    wide = BASE.replaced(d_inner=4 * BASE.d_inner)
    assert CLOCK.latency(wide) > 1.5 * 0.004
    assert CLOCK.peak_bytes(wide) > 2_000_000
