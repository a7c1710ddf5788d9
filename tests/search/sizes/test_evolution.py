"""Do samplers propose what they should: the same again, nothing twice, children of the best?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import inf, nan
from random import Random
from typing import Any

import pytest

from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.search.front import hypervolume
from parformer.search.sizes import evolution
from parformer.search.sizes.evolution import (
    SAMPLERS,
    Candidate,
    Evolution,
    Plan,
    make_sampler,
    pool,
    select,
)
from parformer.search.sizes.space import Genome, SearchSpace, read_space
from tests.search.sizes.written import is_of

Score = Callable[[Genome], tuple[tuple[float, ...] | None, float]]
"""What a candidate's values are, and by how much it breaks limits."""


@cache
def tiny(unit: str = "f[inner=64|128|192]", layers: str = "1..2", **changes: Any) -> SearchSpace:
    table = {"name": "tiny", "like": "pocket", "layers": layers, "unit": [unit]}
    return read_space({**table, "fields": {"d_model": "64"}, **changes})


SPACE = read_space(
    {
        "name": "small",
        "like": "pocket",
        "layers": "2..8",
        "unit": ["s[heads=2|4|8]", "f[inner=64..1024/64]"],
        "fields": {"d_model": "64|128"},
    }
)
PLAN = Plan(population=12, parents=4, mutated=5, crossed=3, iterations=5, seed=7)


def anything(genome: Genome) -> bool:
    return True


def sizes(genome: Genome) -> tuple[float, ...]:
    """More inner width is better, and costs; more heads only cost."""
    inner = sum(int(f.removeprefix("f[inner=")[:-1]) for *_, f in genome.layers)
    heads = sum(layer[0] != "s[heads=2]" for layer in genome.layers)
    return (-float(inner), float(inner + 400 * heads))


def run(
    name: str,
    space: SearchSpace,
    plan: Plan,
    score: Score = lambda genome: (sizes(genome), 0.0),
    allowed: Callable[[Genome], bool] = anything,
) -> list[Candidate]:
    """A whole search, one sampler from first to last."""
    sampler, scored = make_sampler(name, space, plan, allowed), []
    for slot in range(plan.slots):
        genome = sampler.propose(slot, scored)
        scored.append(Candidate(genome, *score(genome)))
    return scored


def texts(scored: Sequence[Candidate]) -> list[str]:
    return [one.genome.text for one in scored]


def test_the_plan_of_the_paper_is_the_default() -> None:
    plan = Plan()
    assert (plan.population, plan.parents, plan.mutated, plan.crossed) == (100, 20, 40, 40)
    assert (plan.mutation, plan.iterations, plan.slots) == (0.3, 30, 100 + 29 * 80)
    assert plan == Plan.sized(100, 30)
    assert Plan(**plan.to_dict()) == plan


def test_slots_and_generations_are_each_others_inverse() -> None:
    for population in [1, 2, 5, 7, 13, 100]:
        for mutated, crossed in [(1, 0), (0, 1), (2, 3), (40, 40), (7, 6)]:
            plan = Plan(population=population, mutated=mutated, crossed=crossed, iterations=6)
            owners = [0] * population
            for generation in range(1, 6):
                owners += [generation] * (mutated + crossed)
            assert plan.slots == len(owners)
            assert [plan.generation(slot) for slot in range(plan.slots)] == owners
            for generation in range(6):
                assert plan.start(generation) == owners.index(generation)
            for slot, generation in enumerate(owners):
                first = owners.index(generation)
                assert plan.bounds(slot) == (first, first + owners.count(generation))


@pytest.mark.parametrize("population", range(5, 60))
def test_odd_populations_keep_the_proportions(population: int) -> None:
    plan = Plan.sized(population, 3, seed=9)
    assert plan.parents + plan.mutated + plan.crossed == plan.population == population
    assert plan.mutated == plan.crossed == int(0.4 * population)
    assert plan.parents >= 1
    assert (plan.iterations, plan.seed) == (3, 9)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"population": 0}, "population must be at least 1, got 0"),
        ({"parents": 0}, "parents must be at least 1"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"mutated": -1}, "mutated must be at least 0"),
        ({"crossed": -1}, "crossed must be at least 0"),
        ({"mutated": 0, "crossed": 0}, "no children"),
        ({"mutation": 0}, "a chance above 0, got 0"),
        ({"mutation": 1.1}, "a chance above 0, got 1.1"),
        ({"mutation": nan}, "finite"),
        ({"population": 2.5}, "whole number"),
        ({"seed": "x"}, "whole number"),
    ],
    ids=range(11),
)
def test_a_plan_that_cannot_be_is_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Plan(**values)


def test_a_population_too_small_for_the_proportions_is_refused() -> None:
    with pytest.raises(ConfigError, match="population must be at least 5, got 4"):
        Plan.sized(4, 3)


def test_an_unknown_sampler_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown sampler 'nsga'; did you mean 'nsga2'"):
        make_sampler("nsga", SPACE, PLAN, anything)
    assert sorted(SAMPLERS) == ["lts", "nsga2", "random"]


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_seed_decides_and_nothing_else(name: str) -> None:
    first = texts(run(name, SPACE, PLAN))
    assert texts(run(name, SPACE, PLAN)) == first
    assert texts(run(name, SPACE, replace(PLAN, iterations=9)))[: PLAN.slots] == first
    assert texts(run(name, SPACE, replace(PLAN, seed=8))) != first


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_fresh_sampler_goes_on_at_every_slot(name: str) -> None:
    scored = run(name, SPACE, PLAN)
    for slot in range(PLAN.slots):
        first, _ = PLAN.bounds(slot)
        fresh = make_sampler(name, SPACE, PLAN, anything)
        assert fresh.propose(slot, scored[:first]) == scored[slot].genome
    for slot in (PLAN.population, PLAN.slots - 1):
        fresh = make_sampler(name, SPACE, PLAN, anything)
        assert fresh.propose(slot, scored) == scored[slot].genome, "later results do not matter"


@pytest.mark.parametrize("name", SAMPLERS)
def test_slots_may_be_asked_for_in_any_order(name: str) -> None:
    """As by a worker that takes over what another has dropped."""
    scored = run(name, SPACE, PLAN)
    sampler = make_sampler(name, SPACE, PLAN, anything)
    for slot in Random(3).sample(range(PLAN.slots), k=PLAN.slots):
        assert sampler.propose(slot, scored) == scored[slot].genome
    sampler = make_sampler(name, SPACE, PLAN, anything)
    for slot in reversed(range(PLAN.slots)):
        assert sampler.propose(slot, scored) == scored[slot].genome


def test_results_that_are_missing_are_our_own_bug() -> None:
    sampler = make_sampler("lts", SPACE, PLAN, anything)
    with pytest.raises(AssertionError, match="slot 12 needs 12 results, got 0"):
        sampler.propose(12, [])


@pytest.mark.parametrize("name", SAMPLERS)
def test_nothing_is_proposed_twice_and_everything_is_of_the_space(name: str) -> None:
    scored = run(name, SPACE, PLAN)
    assert len({one.genome.digest for one in scored}) == PLAN.slots
    assert scored[0].genome == SPACE.smallest()
    for one in scored:
        assert is_of(SPACE, one.genome)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    "space", [tiny(), tiny(alike=True), tiny("f[inner=64]", "1"), tiny("f | i", "3")],
    ids=["12", "6", "1", "identities"],
)  # fmt: skip
def test_a_space_is_exhausted_before_anything_is_proposed_again(
    name: str, space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evolution, "TRIES", 150)
    models = {space.draw(Random(seed)).digest for seed in range(300)}
    plan = Plan(population=4, parents=3, mutated=3, crossed=2, iterations=4)
    scored = run(name, space, plan, lambda genome: ((float(len(genome.layers)), 0.0), 0.0))
    assert len(scored) == plan.slots
    proposed = [one.genome.digest for one in scored]
    assert len({*proposed[: len(models)]}) == len(models)
    assert {*proposed} == models
    assert run(name, space, plan, lambda g: ((float(len(g.layers)), 0.0), 0.0)) == scored


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_exhausted_space_does_not_ask_for_ever(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way is given up once per generation, not once per slot; bounds are asked but once."""
    monkeypatch.setattr(evolution, "TRIES", 100)
    asked: Counter[str] = Counter()

    def allowed(genome: Genome) -> bool:
        asked[genome.digest] += 1
        return len(genome.layers) < 3

    space = tiny(layers="1..3")
    draws, draw = 0, SearchSpace.draw

    def counted(self: SearchSpace, rng: Random) -> Genome:
        nonlocal draws
        draws += 1
        return draw(self, rng)

    monkeypatch.setattr(SearchSpace, "draw", counted)
    plan = Plan(population=50, parents=3, mutated=30, crossed=30, iterations=3)
    scored = run(name, space, plan, allowed=allowed, score=lambda g: ((1.0, 2.0), 0.0))
    assert {len(one.genome.layers) for one in scored} == {1, 2}
    assert len({one.genome.digest for one in scored}) == 3 + 9
    assert max(asked.values()) == 1
    assert draws < 50 + 100 * 6
    repeats = Counter(one.genome.digest for one in scored[: plan.population])
    assert max(repeats.values()) - min(repeats.values()) <= 1


@pytest.mark.parametrize("name", SAMPLERS)
def test_bounds_are_kept(name: str) -> None:
    space = read_space("lts-as-run")

    def allowed(genome: Genome) -> bool:
        return space.within_bounds(cost(space.config(genome)))

    plan = Plan(population=8, parents=3, mutated=3, crossed=3, iterations=3)
    for one in run(name, space, plan, allowed=allowed):
        decoder = cost(space.config(one.genome)).decoder_parameters
        assert 4e6 <= decoder <= 1e8


def test_bounds_that_nothing_keeps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolution, "TRIES", 50)
    with pytest.raises(ConfigError, match="none of 50 draws from the space 'small' is within its"):
        make_sampler("lts", SPACE, PLAN, lambda genome: False).propose(0, [])


@pytest.mark.parametrize("name", SAMPLERS)
def test_bounds_that_only_one_model_keeps_repeat_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evolution, "TRIES", 50)
    only = SPACE.smallest().digest
    scored = run(name, SPACE, PLAN, allowed=lambda genome: genome.digest == only)
    assert {one.genome.digest for one in scored} == {only}
    assert len(scored) == PLAN.slots


def test_mutants_come_first_and_crosses_after_them() -> None:
    scored = run("lts", SPACE, PLAN)
    sampler = Evolution(SPACE, PLAN, anything)
    for generation in range(1, PLAN.iterations):
        start = PLAN.start(generation)
        sampler.propose(start, scored)
        parents = sampler._parents(generation, scored)
        for child in (one.genome for one in scored[start + PLAN.mutated : start + PLAN.children]):
            assert child.fields["d_model"] in {p.fields["d_model"] for p in parents}
            assert len(child.layers) in {len(p.layers) for p in parents}
            for number, layer in enumerate(child.layers):
                having = [p.layers[number] for p in parents if number < len(p.layers)]
                assert all(text in column for text, column in zip(layer, zip(*having, strict=True),
                                                                  strict=True))  # fmt: skip


def test_without_mutants_or_without_crosses_the_others_remain() -> None:
    for changes in ({"mutated": 0}, {"crossed": 0}):
        plan = replace(PLAN, **changes)
        assert len(run("lts", SPACE, plan)) == plan.slots


def test_parents_of_the_papers_search_are_of_the_front() -> None:
    scored = run("lts", SPACE, PLAN)
    sampler = Evolution(SPACE, PLAN, anything)
    sampler.propose(PLAN.slots - 1, scored)
    for generation in range(1, PLAN.iterations):
        earlier = scored[: PLAN.start(generation)]
        best = {
            one.genome.digest
            for one in earlier
            if not any(
                all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
                for other in earlier
                for pairs in [list(zip(other.values or (), one.values or (), strict=True))]
            )
        }
        parents = sampler._parents(generation, scored)
        assert len(parents) == PLAN.parents
        assert {genome.digest for genome in parents} <= best


def test_those_that_were_parents_often_are_drawn_less_often() -> None:
    """Chances are as 1 / (1 + scaled count), with counts scaled from 0 to 1."""
    plan = Plan(parents=12_000, seed=1)
    sampler = Evolution(SPACE, plan, anything)
    best = [SPACE.draw(Random(seed)) for seed in range(4)]
    counts = [3, 5, 9, 3]
    for genome, count in zip(best, counts, strict=True):
        sampler._counts[genome.digest] = count
    drawn = Counter(genome.digest for genome in sampler._draw_parents(1, best))
    weights = [1 / (1 + (count - 3) / (9 - 3)) for count in counts]
    for genome, count, weight in zip(best, counts, weights, strict=True):
        assert drawn[genome.digest] / 12_000 == pytest.approx(weight / sum(weights), abs=0.015)
        assert sampler._counts[genome.digest] == count + drawn[genome.digest]


def test_equal_counts_are_equal_chances() -> None:
    sampler = Evolution(SPACE, Plan(parents=9_000), anything)
    best = [SPACE.draw(Random(seed)) for seed in range(3)]
    drawn = Counter(genome.digest for genome in sampler._draw_parents(1, best))
    assert all(count / 9_000 == pytest.approx(1 / 3, abs=0.02) for count in drawn.values())


def test_counts_add_up_over_generations() -> None:
    scored = run("lts", SPACE, PLAN)
    sampler = Evolution(SPACE, PLAN, anything)
    sampler.propose(PLAN.slots - 1, scored)
    counted = Counter(g.digest for parents in sampler._drawn for g in parents)
    assert counted == sampler._counts
    assert counted.total() == PLAN.parents * (PLAN.iterations - 1)


def candidates(rows: Sequence[tuple[tuple[float, ...] | None, float]]) -> list[Candidate]:
    return [Candidate(Genome({"d_model": i}, ()), *row) for i, row in enumerate(rows)]


def names(genomes: Sequence[Genome]) -> list[int]:
    return [genome.fields["d_model"] for genome in genomes]


def test_parents_keep_limits_where_any_candidate_does() -> None:
    scored = candidates([((9, 9), 0), ((1, 1), 0.1), (None, 0), ((8, 10), 0), ((9, 10), 0)])
    assert names(pool(scored)) == [0, 3]
    assert names(select(scored, 9)) == [0, 3, 4, 1]
    assert names(select(scored, 2)) == [0, 3]


def test_where_none_keeps_them_the_least_violating_are_parents() -> None:
    rows = [((float(i), 0.0), 1.0 + (i * 7) % 30) for i in range(30)]
    scored = candidates([*rows, (None, 0.0), ((0.0, inf), 0.0)])
    least = sorted(range(30), key=lambda i: rows[i][1])
    assert names(pool(scored)) == least[:3]
    assert names(pool(scored[3:5])) == [3 if rows[3][1] < rows[4][1] else 4]
    assert names(select(scored, 5)) == least[:5]


@pytest.mark.parametrize("bad", [None, (nan, 1.0), (inf, 1.0), (1.0, -inf)])
def test_what_could_not_be_evaluated_is_no_parent(bad: tuple[float, ...] | None) -> None:
    scored = candidates([(bad, 0.0), ((1.0, 2.0), 0.0), (bad, 0.0)])
    assert names(pool(scored)) == names(select(scored, 3)) == [1]
    for choose in (pool, lambda scored: select(scored, 2)):
        with pytest.raises(ConfigError, match="no candidate of the first generation"):
            choose(scored[:1])


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_search_goes_on_past_what_could_not_be_evaluated(name: str) -> None:
    def score(genome: Genome) -> tuple[tuple[float, ...] | None, float]:
        return (None if len(genome.layers) % 2 else sizes(genome)), 0.0

    assert len(run(name, SPACE, PLAN, score)) == PLAN.slots


def naive_select(scored: Sequence[Candidate], count: int) -> list[int]:
    """NSGA-II, front by front, with a loop for every neighbour."""
    left = [i for i, one in enumerate(scored) if one.values is not None and one.excess == 0]
    values = {i: scored[i].values or () for i in left}
    chosen: list[int] = []
    while left:
        best = [
            i
            for i in left
            if not any(
                all(a <= b for a, b in zip(values[j], values[i], strict=True))
                and values[j] != values[i]
                for j in left
            )
        ]
        room = dict.fromkeys(best, 0.0)
        for k in range(len(values[best[0]])):
            order = sorted(best, key=lambda i: values[i][k])
            span = values[order[-1]][k] - values[order[0]][k]
            if span:
                room[order[0]] = room[order[-1]] = inf
                for (before, i), (_, after) in pairwise(pairwise(order)):
                    room[i] += (values[after][k] - values[before][k]) / span
        chosen += sorted(best, key=lambda i: -round(room[i], 9))
        left = [i for i in left if i not in best]
    broken = [i for i, one in enumerate(scored) if one.values is not None and one.excess > 0]
    chosen += sorted(broken, key=lambda i: scored[i].excess)
    return chosen[:count]


def test_selection_is_nsga2s() -> None:
    for seed in range(150):
        rng = Random(seed)
        width = rng.randint(1, 3)
        scored = candidates(
            [
                (
                    None
                    if rng.random() < 0.1
                    else tuple(rng.choice([1.0, 2.0, 4.0, 8.0, 16.0]) for _ in range(width)),
                    rng.choice([0.0, 0.0, 0.5 * rng.random()]),
                )
                for _ in range(rng.randint(1, 14))
            ]
        )
        count = rng.randint(1, 10)
        if any(one.values is not None for one in scored):
            assert names(select(scored, count)) == naive_select(scored, count)


@cache
def volume(name: str, seed: int) -> float:
    """How much a search dominates; with fewer than ten parents that is mostly luck."""
    scored = run(name, SPACE, Plan.sized(50, 15, seed=seed))
    return hypervolume([one.values or () for one in scored], (0.0, 12_000.0))


@pytest.mark.parametrize("name", ["lts", "nsga2"])
@pytest.mark.parametrize("seed", [0, 1])
def test_evolution_dominates_more_than_random_draws_do(name: str, seed: int) -> None:
    assert volume(name, seed) > volume("random", seed)


@pytest.mark.parametrize("name", ["lts", "nsga2"])
def test_evolution_finds_its_way_within_limits(name: str) -> None:
    """Nothing of the first generation keeps them; what breaks them least leads there."""

    def score(genome: Genome) -> tuple[tuple[float, ...] | None, float]:
        values = sizes(genome)
        return values, max(0.0, 3000 + values[0]) + values[1] + values[0]

    def within(sampler: str) -> int:
        scored = run(sampler, SPACE, Plan.sized(20, 12), score)
        assert all(one.excess for one in scored[:20])
        return sum(one.excess == 0 for one in scored)

    assert within(name) > within("random") + 5
