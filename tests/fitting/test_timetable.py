"""Is the time shared out, all of it and no more?"""

from __future__ import annotations

import pytest

from parformer.fitting.timetable import LEAST, MOST, TITLES, WITHOUT, counted, plan, share_out


@pytest.mark.parametrize("time", [60, 120, 360, 600, 3600, 36_000, 86_400, 172_800])
def test_the_phases_fill_the_time(time: float) -> None:
    phases = plan(time)
    assert [phase.name for phase in phases] == list(TITLES)
    assert sum(phase.planned for phase in phases) == pytest.approx(time)
    for phase in phases:
        assert phase.planned <= MOST.get(phase.name, time)
        assert phase.planned == 0 or phase.planned >= LEAST.get(phase.name, 0)


@pytest.mark.parametrize("time", [60, 120, 360, 3600])
def test_what_is_left_out_says_why(time: float) -> None:
    for phase in plan(time):
        assert (phase.planned == 0) == (phase.note == WITHOUT.get(phase.name, "nothing"))


def test_six_minutes_go_to_the_winner() -> None:
    planned = {phase.name: phase.planned for phase in plan(360)}
    assert planned["profile"] > 12
    assert planned["search"] == planned["rates"] == planned["seeds"] == 0
    assert planned["winner"] > 0.4 * 360


def test_ten_minutes_have_a_search() -> None:
    planned = {phase.name: phase.planned for phase in plan(600)}
    assert planned["search"] >= 60
    notes = {phase.name: phase.note for phase in plan(600)}
    assert notes["search"].startswith("shortened")


def test_more_time_goes_to_training() -> None:
    short, long = ({p.name: p.planned for p in plan(time)} for time in (600, 6000))
    for name in MOST:
        assert long[name] <= MOST[name]
    assert long["contest"] > 8 * short["contest"]
    assert long["winner"] > 8 * short["winner"]


def test_days_leave_nothing_out_and_go_to_training() -> None:
    planned = {phase.name: phase.planned for phase in plan(172_800)}
    assert all(planned.values())
    assert planned["winner"] > 0.4 * 172_800
    assert sum(planned[name] for name in MOST) < 900  # the rest is training


def test_a_fit_by_updates_asks_no_clock() -> None:
    assert all(phase.planned == 0 for phase in counted())
    assert [phase.name for phase in counted() if phase.note] == ["profile", "seeds"]


def test_what_is_left_is_shared_by_what_is_left_to_do() -> None:
    ahead = ["contest", "seeds", "winner"]
    rich, poor = share_out(3000.0, ahead), share_out(300.0, ahead)
    assert sum(rich.values()) == pytest.approx(3000)
    assert rich["seeds"] > 0
    assert poor["seeds"] == 0  # too little to say anything
    assert sum(poor.values()) == pytest.approx(300)
    assert share_out(0.0, ahead) == dict.fromkeys(ahead, 0.0)
