"""Does a Pareto search find the front, go on after anything, and tell the truth about it?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.measure.device import Receipt
from parformer.measure.prediction import Accuracy, Spread
from parformer.measure.readings import Reading, Readings, Step
from parformer.measure.remembered import Remembered
from parformer.pattern import Pattern
from parformer.search.front import front
from parformer.search.limits import read_limits
from parformer.search.sizes.engine import Ended, join_search, profile_words, search_front
from parformer.search.sizes.evolution import Plan
from parformer.search.sizes.objectives import Grading
from parformer.search.sizes.picking import absolute_limits, best_within, recipe_of
from parformer.search.sizes.result import Measured, Member, Predicted, SizesResult
from parformer.search.sizes.space import Genome, read_space
from parformer.search.sizes.study import join_study, open_study
from parformer.search.sizes.summarise import savings, summarise
from parformer.search.sizes.wanted import Wanted

TINY = {
    "name": "tiny",
    "like": "pocket",
    "model": {"d_model": 32, "d_inner": 64, "n_head": 2, "pattern": "(sf)x3"},
    "layers": "1..3",
    "unit": ["s[heads=2|4]", "f[inner=32..96/32]"],
    "fields": {"d_model": "16..48/16"},
}
STEP = Step(tgt_len=8, mem_len=0, rounds=8)


class FakeMeter:
    """A device whose times follow from sizes: a constant, and so much for every parameter."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.calls, self.stop_after = 0, stop_after

    def __call__(
        self, configs: Mapping[str, ModelConfig], step: Step, progress: Any = None
    ) -> Readings:
        self.calls += 1
        if self.stop_after is not None and self.calls > self.stop_after:
            raise KeyboardInterrupt
        first = self.seconds(next(iter(configs.values())), step)
        readings = []
        for name, config in configs.items():
            took = self.seconds(config, step)
            weights = 4 * cost(config).parameters
            working = 1000 * config.d_model
            readings.append(
                Reading(
                    name=name, median=took, low=took, high=took, ratio=took / first,
                    samples=(took,) * step.rounds, peak_bytes=weights + working,
                    resident_bytes=weights,
                )
            )  # fmt: skip
        receipt = Receipt.issue("a fake", threads=step.threads)
        return Readings(readings=tuple(readings), receipt=receipt)

    def seconds(self, config: ModelConfig, step: Step) -> float:
        price = cost(config, tgt_len=8, mem_len=0)
        return 1e-4 + 1e-9 * price.decoder_parameters + 2e-5 * len(config.pattern)


def wish(**changes: Any) -> Wanted:
    given = {
        "space": read_space(TINY),
        "plan": Plan.sized(10, 4, seed=3),
        "step": STEP,
    }
    return Wanted(**(given | changes))


def search(path: Path, asked: Wanted | None = None, **options: Any) -> Ended:
    path.mkdir(exist_ok=True)
    options.setdefault("meter", FakeMeter())
    return search_front(asked or wish(), path, cache=path.parent / "profiles", **options)


def outcome(ended: Ended) -> list[tuple[str, Any]]:
    return [(one.genome.text, one.values) for one in ended.candidates]


def test_the_front_is_what_every_candidate_of_a_small_space_would_give(tmp_path: Path) -> None:
    """Exhausted, the space has no better architecture than those of the front."""
    small = read_space(TINY | {"layers": "1..2", "unit": ["s", "f[inner=32|64]"]})
    asked = wish(space=small, plan=Plan.sized(20, 3), objectives=("quality", "flops", "parameters"))
    ended = search(tmp_path / "run", asked)
    visited = {one.genome.digest: one.values for one in ended.candidates}
    assert small.size == len(visited) == 18
    values = np.array(list(visited.values()))
    best = {name for name, flag in zip(visited, front(values), strict=True) if flag}
    found = summarise(ended, meter=None)
    shown = {row.digest for row in found.front}
    assert shown <= best
    assert {tuple(visited[name]) for name in best} == {tuple(visited[name]) for name in shown}


def test_the_same_settings_give_the_same_search(tmp_path: Path) -> None:
    one, other = (search(tmp_path / name) for name in ("one", "other"))
    assert outcome(one) == outcome(other)
    assert outcome(search(tmp_path / "third", wish(plan=Plan.sized(10, 4, seed=4)))) != outcome(one)


@pytest.mark.parametrize("sampler", ["lts", "nsga2", "random"])
def test_a_search_goes_on_where_it_was_stopped(tmp_path: Path, sampler: str) -> None:
    asked = wish(sampler=sampler)
    whole = search(tmp_path / "whole", asked)
    looks = 0

    def stop() -> bool:
        nonlocal looks
        looks += 1
        return looks > 13

    part = search(tmp_path / "part", asked, stop=stop)
    assert 0 < len(part.candidates) < len(whole.candidates)
    rest = search(tmp_path / "part", asked)
    assert outcome(rest) == outcome(whole)


def test_a_search_may_be_made_longer(tmp_path: Path) -> None:
    search(tmp_path / "run")
    longer = wish(plan=Plan.sized(10, 6, seed=3))
    assert outcome(search(tmp_path / "run", longer)) == outcome(search(tmp_path / "new", longer))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objectives": ("quality", "flops")}, "objectives"),
        ({"space": read_space(TINY | {"layers": "1..2"})}, "space"),
        ({"step": replace(STEP, threads=2)}, "threads"),
        ({"sampler": "random"}, "sampler"),
    ],
)
def test_a_study_of_something_else_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    search(tmp_path / "run")
    with pytest.raises(ConfigError, match=words):
        search(tmp_path / "run", wish(**changes))


def test_a_helper_needs_the_storage_and_nothing_else(tmp_path: Path) -> None:
    alone = search(tmp_path / "alone")
    storage = f"sqlite:{tmp_path / 'shared.db'}"
    begun = search(tmp_path / "begun", storage=storage, stop=lambda: True)
    assert not begun.candidates
    with join_study(storage, "pareto") as study:
        join_search(study, meter=refuse)
    done = search(tmp_path / "begun", storage=storage, meter=FakeMeter())
    assert outcome(done) == outcome(alone)


def refuse(*_: Any) -> Readings:
    raise AssertionError("what the profile says need not be measured")


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    asked = wish(objectives=("quality", "flops"), plan=Plan.sized(5, 2))
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = search_front(asked, tmp_path / "one")
    two = search_front(asked, tmp_path / "two", workers=2)
    assert outcome(one) == outcome(two)


def test_several_workers_need_a_storage_for_several(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 workers need a study that several processes"):
        search_front(wish(), tmp_path, workers=3, storage="memory")


def test_every_candidate_can_be_measured_instead(tmp_path: Path) -> None:
    meter = FakeMeter()
    ended = search(tmp_path / "run", wish(latency_by="measuring"), meter=meter)
    assert meter.calls == len(ended.candidates)  # latency and memory from one measurement
    assert (tmp_path / "run" / "study.db").is_file()
    for one in ended.candidates:
        config = ended.wanted.space.config(one.genome)
        assert one.figures["latency"] == FakeMeter().seconds(config, STEP)
    search(tmp_path / "run", wish(latency_by="measuring"), meter=refuse)


def test_limits_are_kept(tmp_path: Path) -> None:
    free = summarise(search(tmp_path / "free"), meter=None)
    middle = sorted(row.predicted.latency for row in free.front)[len(free.front) // 2]
    limits = read_limits([f"latency={middle * 1e6:.1f}us"])
    found = summarise(search(tmp_path / "run", wish(limits=limits)), meter=None)
    assert found.front
    assert all(row.predicted.latency <= middle * 1.001 for row in found.front)


def test_a_multiple_stays_what_it_was_when_the_search_goes_on(tmp_path: Path) -> None:
    asked = wish(limits=read_limits(["latency=0.9x"]))
    first = search(tmp_path / "run", asked, stop=lambda: True)
    again = search(tmp_path / "run", asked, meter=Slower(0, 1.3))
    assert again.limits == first.limits


def test_a_multiple_is_of_the_model_that_the_space_is_like(tmp_path: Path) -> None:
    limits = read_limits(["latency=0.8x", "flops=0.75x", "memory=0.9x"])
    ended = search(tmp_path / "run", wish(limits=limits))
    like = ended.wanted.space.like
    assert ended.limits["latency"] == 0.8 * FakeMeter().seconds(like, STEP)
    assert ended.limits["flops"] == 0.75 * cost(like, tgt_len=8, mem_len=0).flops
    assert ended.limits["memory"] == 0.9 * (4 * cost(like).parameters + 1000 * like.d_model)


def test_what_not_even_the_smallest_keeps_to_is_refused_at_once(tmp_path: Path) -> None:
    for text, calls in (("latency=1us", 1), ("memory=1kB", 1), ("flops=100", 0), ("state=1B", 0)):
        meter = FakeMeter()
        asked = wish(limits=read_limits([text]), step=replace(STEP, mem_len=4))
        with pytest.raises(ConfigError, match="within the limits; the nearest, "):
            search(tmp_path / text, asked, meter=meter)
        assert meter.calls == calls  # nothing was profiled
        assert not (tmp_path / text / "study.db").exists()


@pytest.mark.parametrize("iterations", [1, 9])
def test_contradictory_limits_name_the_nearest_candidate(
    tmp_path: Path, iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parformer.search.sizes.wanted.SURELY", 1e9)
    limits = read_limits(["latency=1us", "parameters=1k"])
    asked = wish(limits=limits, plan=Plan.sized(10, iterations))
    with pytest.raises(ConfigError) as caught:
        summarise(search(tmp_path / "run", asked), meter=None)
    words = str(caught.value)
    assert "nothing in the space 'tiny' is within the limits; the nearest, " in words
    assert "of latency where 1 µs is allowed" in words
    assert "try --limit latency=" in words
    assert "\n" not in words


def test_parameters_do_not_rank_mixed_blocks() -> None:
    mixed = read_space(TINY | {"unit": ["s[heads=2] | f[inner=32] | i"]})
    with pytest.raises(ConfigError, match=r"here the mix varies.*take short-training"):
        wish(space=mixed)


def test_a_short_training_can_stand_for_quality(tmp_path: Path) -> None:
    mixed = read_space(
        TINY | {"unit": ["s[heads=2] | f[inner=32]"], "layers": 2, "fields": {"d_model": 16}}
    )
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 200)
    grading = Grading(proxy="short-training", recipe="pocket", corpus=str(text), steps=4, share=0.5)
    asked = wish(
        space=mixed, grading=grading, objectives=("quality", "flops"), plan=Plan.sized(5, 1)
    )
    ended = search(tmp_path / "run", asked)
    again = search(tmp_path / "again", asked)
    assert outcome(ended) == outcome(again)
    assert all(
        -9 < one.figures["quality"] < -3 for one in ended.candidates
    )  # minus a loss of bytes
    assert len({one.figures["quality"] for one in ended.candidates}) > 1
    assert (tmp_path / "run" / "study.db").is_file()  # each result is stored at once


def test_a_gradient_proxy_runs_through_the_same_study(tmp_path: Path) -> None:
    asked = wish(
        grading=Grading(proxy="snip"), objectives=("quality", "flops"), plan=Plan.sized(5, 1)
    )
    ended = search(tmp_path / "run", asked)
    assert all(one.figures["quality"] > 0 for one in ended.candidates)


def test_the_front_is_measured_and_the_prediction_stands_beside_it(tmp_path: Path) -> None:
    found = summarise(search(tmp_path / "run"), meter=FakeMeter(), folder=tmp_path / "run")
    for row in [*found.front, *found.baseline]:
        like = read_space(TINY).like
        config = row.config(like)
        assert row.measured.latency == pytest.approx(FakeMeter().seconds(config, STEP))
        assert row.measured.memory == 4 * cost(config).parameters + 1000 * config.d_model
    off = [abs(row.predicted.latency / row.measured.latency - 1) for row in found.front]
    assert found.errors.latency.median == pytest.approx(float(np.median(off)))
    assert found.errors.latency.worst == pytest.approx(max(off))
    assert SizesResult.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert [row.layers for row in found.baseline] == [1, 2, 3]


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    ended = search(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        summarise(ended, meter=FakeMeter(stop_after=0), folder=tmp_path / "run")
    meter = FakeMeter()
    first = summarise(ended, meter=meter, folder=tmp_path / "run")
    assert meter.calls
    again = summarise(ended, meter=refuse, folder=tmp_path / "run")
    assert again.front == first.front


def test_readings_are_remembered_by_models_and_step(tmp_path: Path) -> None:
    like = read_space(TINY).like
    meter = FakeMeter()
    for _ in range(2):
        with Remembered(meter, tmp_path / "m.jsonl") as kept:
            kept({"a": like}, STEP)
    assert meter.calls == 1
    with Remembered(meter, tmp_path / "m.jsonl") as kept:
        kept({"a": like}, replace(STEP, rounds=9))
        kept({"b": like}, STEP)
        kept({"a": like.replaced(d_inner=7)}, STEP)
    assert meter.calls == 4


def test_a_search_shows_at_most_forty_with_the_ends_among_them(tmp_path: Path) -> None:
    ended = search(tmp_path / "run", wish(plan=Plan.sized(20, 6)))
    everything = summarise(ended, meter=None, shown=1000)
    some = summarise(ended, meter=None, shown=7)
    assert everything.front_size == some.front_size == len(everything.front) > 7
    assert len(some.front) == 7
    for metric in ("latency", "memory"):
        least = [min(getattr(row.predicted, metric) for row in f.front) for f in (everything, some)]
        assert least[0] == least[1]
    assert max(row.quality for row in some.front) == max(row.quality for row in everything.front)


def row(name: str, quality: float, latency: float, memory: float, layers: int = 1) -> Member:
    return Member(
        name=name, quality=quality, measured=Measured(latency=latency, memory=memory),
        layers=layers, parameters=10, decoder_parameters=9, flops=5, state_bytes=3,
        pattern=Pattern.parse("sf") * layers,
    )  # fmt: skip


def test_savings_are_at_equal_quality() -> None:
    models = [row("g1", 10, 1.0, 10.0), row("g2", 20, 1.5, 9.0), row("g3", 30, 4.0, 30.0)]
    base = [row("1", 9, 2.0, 20.0, 1), row("2", 18, 3.0, 18.0, 2), row("3", 99, 9.0, 90.0, 3)]
    found = savings(models, base)
    assert found is not None
    first, second = found.rows  # nothing reaches the third
    assert (first.found, first.speedup, first.memory_ratio) == ("g1", 2.0, 2.0)
    assert (second.found, second.speedup, second.memory_ratio) == ("g2", 2.0, 2.0)
    # the fastest and the smallest that are no worse, each for itself
    assert found.latency_saved == pytest.approx(1 - (1.0 / 2 + 1.5 / 3) / 2)
    assert found.memory_saved == pytest.approx(1 - (9 / 20 + 9 / 18) / 2)
    assert found.largest is second
    assert savings(models, base[2:]) is None


def test_the_best_within_limits_is_picked(tmp_path: Path) -> None:
    front = row("g1", 10, 1.0, 10.0), row("g2", 20, 1.5, 9.0), row("g3", 30, 4.0, 30.0)
    baseline = row("1", 9, 2.0, 20.0), row("2", 9, 4.0, 40.0, 2)
    whole = summarise(search(tmp_path / "run"), meter=None)
    found = replace(whole, front=front, baseline=baseline)  # the space is like (sf)x3
    assert best_within(front, {}).name == "g3"
    assert best_within(front, {"latency": 2.0}).name == "g2"
    assert best_within(front, {"latency": 1.5, "memory": 9.0}).name == "g2"
    limits = absolute_limits(read_limits(["latency=0.3x", "memory=30B"]), found)
    assert limits == {"latency": pytest.approx(1.2), "memory": 30.0}
    assert best_within(front, limits).name == "g1"
    # of the model that the space is like, where that one was measured
    like = replace(found, space=replace(found.space, like=Pattern.parse("sf")))
    limits = absolute_limits(read_limits(["latency=0.3x"]), like)
    assert limits == {"latency": pytest.approx(0.6)}
    with pytest.raises(ConfigError, match=r"nearest, g2, has 1\.5 s of latency and 9 B of memory"):
        best_within(front, {"latency": 1.4, "memory": 8.9})
    with pytest.raises(ConfigError, match="front is empty"):
        best_within([], {})


def test_a_profile_that_is_far_off_is_called_so(tmp_path: Path) -> None:
    profile = search(tmp_path / "run").profile
    assert profile is not None
    for median, said in ((0.04, False), (0.2, True)):
        latency = Spread(median, 0.3, 0.4)
        error = Accuracy(models=9, latency=latency, memory=Spread(0.0, 0.0, 0.0))
        words = profile_words(replace(profile, error=error))
        assert f"off by {median:.1%}" in words
        assert ("--again" in words) is said


def test_measured_figures_come_before_predicted_ones() -> None:
    one = replace(row("g1", 10, 1.0, 10.0), predicted=Predicted(latency=9.0, memory=9.0))
    assert one.figure("latency") == 1.0
    assert replace(one, measured=None).figure("latency") == 9.0
    bare = replace(one, measured=None, predicted=None)
    assert bare.figure("latency") is None
    assert one.figure("state") == 3
    with pytest.raises(ConfigError, match="knows no latency of its models"):
        best_within([bare], {"latency": 1.0})


def test_a_picked_model_brings_its_recipe(tmp_path: Path) -> None:
    found = summarise(search(tmp_path / "run"), meter=None)
    chosen = best_within(found.front, {})
    recipe = recipe_of(chosen, found)
    assert recipe.model.pattern == chosen.pattern
    assert recipe.model.d_model == Genome.read(chosen.genome).fields["d_model"]
    assert (recipe.data.corpus, recipe.train.steps) == ("python-source", 2000)


def test_hypervolume_never_falls(tmp_path: Path) -> None:
    found = summarise(search(tmp_path / "run"), meter=None)
    volumes = found.hypervolume.by_iteration
    assert len(volumes) == 4
    assert list(volumes) == sorted(volumes)
    assert 0 < volumes[-1] <= 1


def test_settings_survive_the_storage() -> None:
    asked = wish(
        limits=read_limits(["latency=0.5x"]), grading=Grading(proxy="snip", seed=5), sampler="nsga2"
    )
    settings = json.loads(json.dumps(asked.to_settings()))
    assert Wanted.from_settings(settings, asked.plan.slots) == asked


def test_a_foreign_study_is_not_joined(tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path / 's.db'}"
    with (
        open_study(storage, "other", {"objectives": ["x"]}, slots=3) as study,
        pytest.raises(ConfigError, match="another version"),
    ):
        join_search(study)


def test_bad_storages_are_one_line(tmp_path: Path) -> None:
    bad: list[Callable[[], str]] = [
        lambda: "postgresql://nobody:secret@127.0.0.1:1/none",
        lambda: "mongodb://x",
        lambda: f"sqlite:{tmp_path / 'no' / 'such' / 'folder' / 'x.db'}",
    ]
    for make in bad:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            search(tmp_path / "run", storage=make())
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)


class Slower(FakeMeter):
    """A device that gets slower after so many calls."""

    def __init__(self, after: int, pace: float) -> None:
        super().__init__()
        self.after, self.pace = after, pace

    def seconds(self, config: ModelConfig, step: Step) -> float:
        return super().seconds(config, step) * (self.pace if self.calls > self.after else 1.0)


def test_predictions_follow_the_pace_of_the_device(tmp_path: Path) -> None:
    steady, slow = FakeMeter(), Slower(10**9, 1.5)
    found = []
    for name, meter in (("steady", steady), ("slow", slow)):
        ended = search_front(wish(), tmp_path / name, meter=meter, cache=tmp_path / name)
        slow.after = 0 if meter is slow else slow.after  # from now on
        found.append(summarise(ended, meter=meter))
    assert found[0].pace == pytest.approx(1.0)
    assert found[1].pace == pytest.approx(1.5)
    for before, after in zip(found[0].front, found[1].front, strict=True):
        assert after.predicted.latency == pytest.approx(1.5 * before.predicted.latency)
    assert found[0].errors.latency.median == pytest.approx(found[1].errors.latency.median)
    assert found[0].warnings == ()
    assert "1.50 times as long" in found[1].warnings[0]
