"""Is everything that a search leaves open decided before it begins, or refused in one line?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from parformer.data.batches import Windows
from parformer.errors import ConfigError, CorpusError, FolderError, ParformerError
from parformer.recipe import Recipe
from parformer.search.placement import decide
from parformer.search.placement.decide import (
    ROUNDS,
    Known,
    Pace,
    decide_search,
    find_pace,
    find_prices,
    refuse_impossible,
    target_of,
    timetable_of,
    without_carried_state,
)
from parformer.search.placement.prices import exact
from parformer.search.placement.session import SearchSession, space_of
from parformer.search.placement.timetable import Timetable
from parformer.train.distributed import Workers
from parformer.train.plan import RESERVE
from parformer.train.session import Session
from tests.search.placement.trials import (
    FAMILIES,
    TOKENS,
    Clock,
    make_recipe,
    make_session,
    recurrence,
    search_of,
    updated,
)
from tests.train.trials import Breaker


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def settled(recipe: Recipe, watch: Breaker | None = None) -> Any:
    return decide_search(recipe, TOKENS, Workers(), watch or Breaker())


def refused(recipe: Recipe, workers: Workers | None = None) -> str:
    with pytest.raises(ParformerError) as caught:
        decide_search(recipe, TOKENS, workers or Workers(), Breaker())
    assert caught.value.status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_mean_update_of_a_search() -> None:
    pace = Pace(weights=1.0, architecture=3.0, baseline=0.5)
    table = Timetable(steps=20, warmup=5, cycle=5, turns=1)
    assert pace.mean(table) == pytest.approx((17 * 1 + 3 * 3) / 20)
    assert pace.mean(Timetable(steps=4, warmup=4, cycle=5, turns=1)) == 1.0


def test_a_pace_survives_json_and_broken_ones_are_refused() -> None:
    pace = Pace(0.25, 0.5, 0.125)
    assert Pace.from_dict(pace.to_dict()) == pace
    with pytest.raises(FolderError, match="Pace lacks 'weights'"):
        Pace.from_dict({"base": 1.0})


def test_nothing_is_left_open(clock: Clock) -> None:
    recipe = make_recipe(
        train__threads=0, train__precision="auto", train__compile="auto", train__kernels="auto"
    )
    decided, known = settled(recipe)
    train = decided.train
    assert train.threads > 0
    assert train.precision in ("fp32", "bf16")
    assert train.kernels in ("native", "plain")
    assert train.compile == "off"
    assert train.evaluate_every == train.steps == 8  # nobody looks at how good a supernet is
    assert known == Known(None, clock.pace)
    assert clock.asked == ["pace"]


@pytest.mark.parametrize("seeds", [1, 3])
def test_time_becomes_updates(seeds: int, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    watch = Breaker()
    recipe = make_recipe(train__time=60.0, train__steps=400, search__seeds=seeds, train__warmup=300)
    decided, known = settled(recipe, watch)
    pace = known.pace
    # of four hundred updates a hundred warm up, then every third is the architecture's
    mean = (300 * clock.pace.weights + 100 * clock.pace.architecture) / 400
    assert pace.mean(timetable_of(recipe, TOKENS)) == pytest.approx(mean)
    steps = int(60 * (1 - RESERVE) / seeds / mean)
    assert decided.train.steps == steps == decided.train.evaluate_every
    assert decided.train.time == 60.0
    assert decided.train.warmup == (300 if steps > 300 else max(1, steps // 10))
    (notice,) = watch.notices
    each = " for each of 3 seeds" if seeds == 3 else ""
    assert notice == f"{steps:,} updates of {1000 * mean:.0f} ms{each} fit into 60 s."


def test_the_clock_runs_while_things_are_decided(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What measuring took is no longer there to search in."""
    now = iter([100.0] + [130.0] * 10)
    monkeypatch.setattr(decide, "time", type("T", (), {"monotonic": lambda: next(now)}))
    decided, known = settled(make_recipe(train__time=60.0, train__steps=400))
    expected = 30 * (1 - RESERVE) / known.pace.mean(Timetable(400, 100, 3, 1))
    assert decided.train.steps == int(expected)


def test_too_little_time_is_refused(clock: Clock) -> None:
    said = refused(make_recipe(train__time=0.001))
    assert "2 updates end before the architecture's first turn" in said
    assert clock.asked == ["pace"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train__compile": "on"}, "train.compile 'on' does not go with a search"),
        ({"search__choices": "s"}, "has only one choice"),
        ({"search__choices": "sfq"}, "q"),
        ({"search__choices": "ss"}, "'s' twice"),
        ({"train__steps": 3}, "3 updates end before the architecture's first turn: 1 warm up"),
        (
            {"search__cycle": 7},
            "and a cycle has 7; take more --steps or --time, or a shorter search.cycle",
        ),
        ({"train__batch": 400, "train__accumulate": 1}, "needs 18,112: 20% of them"),
        ({"search__limit": "flops=0.01x"}, "no pattern of this space costs 0.01x"),
        ({"search__limit": "flops=0.2x", "search__choices": "sf"}, "the nearest, (f)x3, costs"),
        ({"search__layers": 0, "model__pattern": "sf"}, "the model has 2 blocks, too few"),
        ({"search__penalty": "speed=1"}, "'speed'"),
        ({"search__limit": "latency=5ms"}, "latency=0.7x"),
        ({"train__tgt_len": 3000}, "lower train.batch or train.tgt_len"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused(changes: dict[str, Any], words: str, clock: Clock) -> None:
    assert words in refused(make_recipe(**changes))


def test_a_limit_in_latency_is_looked_at_before_it_begins(clock: Clock) -> None:
    said = refused(make_recipe(search__limit="latency=0.2x"))
    assert "no pattern of this space costs 0.2x of the interleaved model's latency" in said
    assert "the nearest, i, costs 0.2222x" in said
    assert clock.asked == ["blocks"]


def test_several_processes_hold_everything_each(clock: Clock) -> None:
    said = refused(make_recipe(), Workers(shard=True))
    assert "a search cannot be sharded; leave --shard out" in said
    with pytest.raises(ConfigError, match="cannot be shared out to 3 processes"):
        refuse_impossible(make_recipe(), TOKENS, Workers(count=3))


def test_both_parts_of_the_text_must_be_long_enough() -> None:
    for share in (0.05, 0.95):
        with pytest.raises(CorpusError, match=r"the train split has 500 tokens"):
            refuse_impossible(make_recipe(search__share=share), TOKENS[:500], Workers())
    refuse_impossible(make_recipe(search__share=0.5), TOKENS[:500], Workers())


def test_prices_are_counted_or_measured(clock: Clock) -> None:
    watch = Breaker()
    assert find_prices(make_recipe(), Workers(), watch) is None
    recipe = make_recipe(search__penalty="parameters=0.1")
    assert find_prices(recipe, Workers(), watch) == exact(
        "parameters", recipe.model, space_of(recipe)
    )
    assert (clock.asked, watch.notices) == ([], [])
    timed = find_prices(make_recipe(search__limit="latency=0.7x"), Workers(), watch)
    assert timed is not None
    assert timed.choices == ((3000, 1000, 0),) * 3
    assert clock.asked == ["blocks"]
    assert watch.notices == [
        "Latency of every block measured; the interleaved model's sum is off by +4%."
    ]
    target = target_of(make_recipe(search__limit="latency=0.7x"))
    assert target is not None
    assert (target.metric, target.limit, target.penalty) == ("latency", 0.7, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_updates_are_timed_side_by_side(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of update as often as the others, and none of them by another's clock."""
    recipe = make_recipe(family, train__steps=100)
    order: list[str] = []
    timings = {"weights": 0.5, "architecture": 0.75, "baseline": 0.25}
    now = [0.0]

    class Watched(SearchSession):
        def update(self, step: int) -> Any:
            result = super().update(step)
            order.append(self.turn.kind)
            now[0] += timings[self.turn.kind]
            return result

    class Plain(Session):
        def update(self, step: int) -> Any:
            assert str(self.model.config.pattern) == "sfs"
            result = super().update(step)
            order.append("baseline")
            now[0] += timings["baseline"]
            return result

    monkeypatch.setattr(decide, "SearchSession", Watched)
    monkeypatch.setattr(decide, "Session", Plain)
    monkeypatch.setattr(decide, "time", type("T", (), {"perf_counter": lambda: now[0]}))
    assert find_pace(recipe, TOKENS, Workers()) == Pace(**timings)
    assert order[:3] == ["weights", "architecture", "baseline"]
    assert order == order[:3] * (len(order) // 3)
    # the memory of twelve is full after two steps of eight
    assert len(order) // 3 - ROUNDS == {"transformer-xl": 3, "bert": 1}.get(family, 3)


def test_a_real_pace() -> None:
    pace = find_pace(make_recipe(), TOKENS, Workers())
    assert min(pace.weights, pace.architecture, pace.baseline) > 0


def test_drawn_paths_leave_no_gaps_in_a_recurrence() -> None:
    """What only a running block remembers cannot be carried past updates that left it out."""
    watch = Breaker()
    with recurrence() as letter:
        recipe = make_recipe(search__choices=f"s{letter}i", search__mode="sampled")
        changed = without_carried_state(recipe, watch)
        assert (changed.train.order, changed.train.mem_len) == ("windows", 0)
        (notice,) = watch.notices
        assert notice.startswith(f"Sampled: {letter} must run to remember")
        assert "reads windows and carries no state" in notice
        session = make_session(changed)
        assert isinstance(session.reading.batches, Windows)
        updated(session, 0, 8)
        assert not session.checkpoint(8, {}).memory
        # once is enough, and nothing else is touched
        assert without_carried_state(changed, watch) == changed
        soft = recipe.replaced({"search.mode": "soft"})
        without = recipe.replaced({"search.choices": "sfi"})
        windows = recipe.replaced({"train.order": "windows"})
        forgetful = recipe.replaced({"train.mem_len": 0})
        for other in (soft, without, windows, forgetful):
            assert without_carried_state(other, watch) == other
        assert watch.notices == [notice]
        # mixed softly it runs in every update, so its memory is whole and goes on
        whole, broken = make_session(soft), make_session(soft)
        expected = updated(whole, 0, 8)
        updated(broken, 0, 5)
        assert any("mean_bd" in name for name in broken.checkpoint(5, {}).memory)
        again = make_session(soft, broken.checkpoint(5, {}))
        assert updated(again, 5, 8) == expected[5:]


def test_a_cycle_is_an_epoch_of_the_weights_part() -> None:
    recipe = make_recipe(search__cycle=0, train__steps=1000)
    own = make_session(recipe).reading.batches.per_epoch
    table = timetable_of(recipe, TOKENS)
    assert table == Timetable.of(1000, search_of(recipe), own)
    assert table == make_session(recipe).timetable


def test_every_field_of_a_search_is_read() -> None:
    """A field that nothing reads would be a promise that is not kept."""
    sources = Path(decide.__file__).parent
    code = "".join(file.read_text("utf-8") for file in sources.glob("*.py"))
    recipe = make_recipe()
    assert [n for n in type(search_of(recipe)).__slots__ if f".{n}" not in code] == []
