from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import combinations, groupby

import numpy as np
import pytest
import torch
from torch import nn

from parformer.errors import ConfigError
from parformer.measure.latency import Comparison, Remade, measure_latency

MS = 1_000_000


class Machine:
    """A clock that moves only when work is done, and remembers who worked."""

    def __init__(self, slowness: Iterator[float] | None = None) -> None:
        self.now = 0
        self.worked: list[str] = []
        self.slowness = slowness

    def clock(self) -> int:
        return self.now

    def work(self, name: str, nanoseconds: float) -> Callable[[], None]:
        def function() -> None:
            slowness = 1.0 if self.slowness is None else next(self.slowness)
            self.now += round(nanoseconds * slowness)
            self.worked.append(name)

        return function


def orders(seed: int, rounds: int = 40) -> list[list[str]]:
    """Who was timed, round by round."""
    machine, names = Machine(), "abcd"
    candidates = {name: machine.work(name, 5 * MS) for name in names}
    measure_latency(candidates, rounds=rounds, warmup=0, seed=seed, clock=machine.clock)
    # a sample is an untimed and a timed call; before come those that settle how many
    turns = machine.worked[-2 * len(names) * rounds :: 2]
    return [turns[i : i + len(names)] for i in range(0, len(turns), len(names))]


def test_every_round_times_everyone_once_in_a_new_order() -> None:
    taken = orders(seed=0)
    assert all(sorted(order) == list("abcd") for order in taken)
    assert len({tuple(order) for order in taken}) > 12
    assert {order[0] for order in taken} == set("abcd")


def test_the_seed_draws_the_order() -> None:
    assert orders(seed=0) == orders(seed=0) != orders(seed=1)


def test_a_sample_is_the_time_of_one_call() -> None:
    machine = Machine()
    comparison = measure_latency(
        {
            "long": machine.work("long", 7 * MS),
            "middle": machine.work("middle", 0.7 * MS),
            "short": machine.work("short", 1000),
        },
        rounds=10,
        clock=machine.clock,
    )
    assert [len(timing.samples_seconds) for timing in comparison.timings] == [10, 10, 10]
    assert comparison["long"].median == pytest.approx(7e-3)
    assert comparison["middle"].median == pytest.approx(0.7e-3)
    assert comparison["short"].median == pytest.approx(1e-6)
    assert comparison.ratio("long", "middle") == pytest.approx(10)
    assert comparison.difference("middle", "long").verdict == "faster"
    assert comparison.ties() == ("short",)


@pytest.mark.parametrize("microseconds", [1, 30, 700, 1900, 2100])
def test_a_sample_lasts_long_enough_for_the_clock_and_not_much_longer(microseconds: int) -> None:
    machine = Machine()
    measure_latency({"a": machine.work("a", microseconds * 1000)}, rounds=8, clock=machine.clock)
    with_all = len(machine.worked)
    machine.worked.clear()
    measure_latency({"a": machine.work("a", microseconds * 1000)}, rounds=9, clock=machine.clock)
    calls = len(machine.worked) - with_all - 1
    assert 2000 <= calls * microseconds <= 2000 * 1.25 + microseconds


def test_one_stall_does_not_make_a_quick_function_look_slow() -> None:
    stalls = iter([1.0] * 4 + [50_000.0] + [1.0] * 1_000_000)
    machine = Machine(slowness=stalls)
    measure_latency({"a": machine.work("a", 1000)}, rounds=1, clock=machine.clock)
    assert len(machine.worked) > 2000


def test_a_candidate_starts_from_its_own_caches() -> None:
    """Whoever follows another pays for it, but not on the clock."""
    machine = Machine()

    def cached(name: str) -> Callable[[], None]:
        def function() -> None:
            cold = machine.worked[-1:] != [name]
            machine.now += 9 * MS if cold else 3 * MS
            machine.worked.append(name)

        return function

    comparison = measure_latency(
        {name: cached(name) for name in "ab"}, rounds=8, clock=machine.clock
    )
    samples = {sample for timing in comparison.timings for sample in timing.samples_seconds}
    assert samples == {3e-3}


def test_warm_up_calls_come_first_and_are_not_timed() -> None:
    slow_start = iter([100.0] * 3 + [1.0] * 100)
    machine = Machine(slowness=slow_start)
    comparison = measure_latency(
        {"a": machine.work("a", 5 * MS)}, warmup=3, rounds=8, clock=machine.clock
    )
    assert set(comparison["a"].samples_seconds) == {5e-3}
    assert len(machine.worked) == 3 + 2 * 3 + 2 * 8


def test_a_budget_is_used_up_and_not_much_more() -> None:
    machine = Machine()
    comparison = measure_latency(
        {"a": machine.work("a", 10 * MS)}, seconds=2.0, clock=machine.clock
    )
    assert 2.0 <= machine.now / 1e9 < 2.0 + 0.02
    assert len(comparison["a"].samples_seconds) > 90


def test_even_a_tiny_budget_gives_enough_rounds_for_a_verdict() -> None:
    machine = Machine()
    comparison = measure_latency(
        {"a": machine.work("a", 10 * MS), "b": machine.work("b", 20 * MS)},
        seconds=0.001,
        clock=machine.clock,
    )
    assert len(comparison["a"].samples_seconds) == 8
    assert comparison.difference("a", "b").verdict == "faster"


@pytest.mark.parametrize("limit", [{"rounds": 4}, {"seconds": 1.0}])
def test_progress_goes_to_one(limit: dict[str, float]) -> None:
    machine, told = Machine(), []
    measure_latency(
        {"a": machine.work("a", 20 * MS)}, progress=told.append, clock=machine.clock, **limit
    )
    assert told == sorted(told)
    assert told[0] < 1
    assert told[-1] == 1


def test_threads_are_pinned_recorded_and_restored() -> None:
    before, inside = torch.get_num_threads(), set()
    machine = Machine()
    work = machine.work("a", 5 * MS)

    def watched() -> None:
        inside.add(torch.get_num_threads())
        work()

    comparison = measure_latency(
        {"a": watched}, rounds=1, threads=before + 1, what="a test", clock=machine.clock
    )
    assert inside == {before + 1}
    assert torch.get_num_threads() == before
    assert comparison.receipt.threads == before + 1
    assert comparison.receipt.what == "a test"


def test_the_collector_rests_while_the_clock_runs() -> None:
    machine, collecting = Machine(), []
    work = machine.work("a", 5 * MS)

    def watched() -> None:
        collecting.append(gc.isenabled())
        work()

    assert gc.isenabled()
    measure_latency({"a": watched}, rounds=8, warmup=0, clock=machine.clock)
    assert collecting == [True, False] * (3 + 8)
    assert gc.isenabled()


def test_an_error_passes_through_and_everything_is_restored() -> None:
    before = torch.get_num_threads()
    machine = Machine()

    def fails() -> None:
        if len(machine.worked) > 20 and not gc.isenabled():
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        measure_latency(
            {"works": machine.work("works", 5 * MS), "fails": fails},
            min_round_seconds=0,
            threads=before + 1,
            clock=machine.clock,
        )
    assert torch.get_num_threads() == before
    assert gc.isenabled()


def test_an_accelerator_is_waited_for_on_both_sides_of_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Work that is only queued by the call is done when someone waits for it."""
    machine, queued = Machine(), []

    def synchronize() -> None:
        machine.now += sum(queued)
        queued.clear()

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda: torch.device("cpu"), raising=False
    )
    comparison = measure_latency(
        {"a": lambda: queued.append(3 * MS), "b": lambda: queued.append(6 * MS)},
        rounds=8,
        clock=machine.clock,
    )
    assert set(comparison["a"].samples_seconds) == {3e-3}
    assert set(comparison["b"].samples_seconds) == {6e-3}


def test_a_remade_candidate_lives_for_one_sample() -> None:
    machine = Machine()
    alive: weakref.WeakSet[nn.Module] = weakref.WeakSet()
    made: list[str] = []

    def maker(name: str) -> Callable[[], Callable[[], object]]:
        def make() -> Callable[[], object]:
            assert len(alive) == 0
            model = nn.Linear(1, 1)
            alive.add(model)
            made.append(name)
            work = machine.work(name, 5 * MS)

            def run() -> None:
                assert model in alive
                work()

            return run

        return make

    comparison = measure_latency(
        {name: Remade(maker(name)) for name in "ab"}, rounds=8, warmup=1, clock=machine.clock
    )
    assert sorted(made) == ["a"] * 9 + ["b"] * 9
    assert [name for name, _ in groupby(made)] != ["a", "b"] * 9
    assert len(alive) == 0
    assert set(comparison["a"].samples_seconds) == {5e-3}


def test_a_comparison_is_ready_for_json() -> None:
    machine = Machine()
    comparison = measure_latency(
        {"a": machine.work("a", 5 * MS), "b": machine.work("b", 9 * MS)},
        rounds=8,
        clock=machine.clock,
    )
    told = json.loads(json.dumps(comparison.to_dict()))
    assert told == comparison.to_dict()
    assert told["ties"] == ["a"]
    assert told["timings"][1]["name"] == "b"
    assert told["timings"][1]["samples_seconds"] == [9e-3] * 8
    assert told["receipt"]["device"]["torch"] == torch.__version__


def test_bad_requests_are_refused_with_the_value() -> None:
    machine = Machine()
    candidates = {"a": machine.work("a", 5 * MS)}
    with pytest.raises(ConfigError, match="at least one candidate"):
        measure_latency({})
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        measure_latency(candidates, rounds=0)
    with pytest.raises(ConfigError, match="positive, got 0"):
        measure_latency(candidates, seconds=0)
    with pytest.raises(ConfigError, match="negative, got -1"):
        measure_latency(candidates, warmup=-1)
    with pytest.raises(ConfigError, match="threads must be at least 1, got 0"):
        measure_latency(candidates, threads=0)
    comparison = measure_latency(candidates, rounds=1, clock=machine.clock)
    with pytest.raises(ConfigError, match="no candidate 'b' was measured; there are: a"):
        comparison.difference("a", "b")


def slowness(rng: np.random.Generator, calls: int, per_round: int) -> Iterator[float]:
    """A shared machine: it drifts, it has neighbours, and its noise has a memory."""
    time = np.arange(calls) / calls
    drift = 0.2 * time + 0.1 * np.sin(7 * time + rng.uniform(0, 6))
    neighbour = 0.3 * (time > rng.uniform(0.2, 0.8))
    tick = 0.02 * np.sin(2 * np.pi * np.arange(calls) / per_round)
    memory = np.zeros(calls)
    shocks = rng.normal(0, 0.005, calls)
    for i in range(1, calls):
        memory[i] = 0.95 * memory[i - 1] + shocks[i]
    bursts = np.zeros(calls)
    for start in rng.integers(0, calls, size=calls // 200):
        bursts[start : start + rng.geometric(0.1)] += rng.exponential(0.7)
    return iter(np.exp(drift + neighbour + tick + memory + bursts + rng.normal(0, 0.01, calls)))


def on_a_noisy_machine(costs: dict[str, float], seed: int) -> Comparison:
    per_round, rounds = 2 * len(costs), 30
    calls = len(costs) * (3 + 2 * 3) + rounds * per_round
    machine = Machine(slowness(np.random.default_rng(seed), calls, per_round))
    return measure_latency(
        {name: machine.work(name, cost * 10 * MS) for name, cost in costs.items()},
        rounds=rounds,
        seed=seed,
        clock=machine.clock,
    )


def called_different(comparison: Comparison) -> int:
    pairs = combinations([timing.name for timing in comparison.timings], 2)
    return sum(comparison.difference(a, b).verdict != "tie" for a, b in pairs)


def test_copies_tie_on_a_noisy_machine() -> None:
    """Twenty copies measured ten times: at most 5% of the 1,900 pairs called different."""
    copies = {str(copy): 1.0 for copy in range(20)}
    measurements = [on_a_noisy_machine(copies, seed) for seed in range(10)]
    assert sum(map(called_different, measurements)) <= 0.05 * 1900
    assert np.mean([len(comparison.ties()) for comparison in measurements]) > 19


def test_a_real_difference_is_found_in_the_same_noise() -> None:
    costs = {str(copy): 1.0 for copy in range(19)} | {"slow": 1.05}
    measurements = [on_a_noisy_machine(costs, seed) for seed in range(10)]
    verdicts = [
        comparison.difference("slow", str(copy)).verdict
        for comparison in measurements
        for copy in range(19)
    ]
    assert verdicts.count("slower") >= 0.8 * len(verdicts)
    assert verdicts.count("faster") == 0


def test_copies_of_a_model_tie_on_this_machine() -> None:
    """The same promise with a real clock, whatever else this machine is doing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).eval()
    x = torch.randn(8, 64)

    def step(model: nn.Module) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            with torch.inference_mode():
                return model(x)

        return run

    copies = {str(copy): step(deepcopy(model)) for copy in range(20)}
    different = sum(
        called_different(
            measure_latency(copies, rounds=20, min_round_seconds=0.0005, threads=1, seed=seed)
        )
        for seed in range(10)
    )
    assert different <= 0.05 * 1900
