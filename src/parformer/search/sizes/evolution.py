"""Which architectures should be looked at next?

A sampler proposes one generation after the other. What it proposes depends on the seed, the
generation's number and the results of all earlier generations, and on nothing else: a search
that was killed, or that many workers share, proposes the same again.

>>> from parformer.search.sizes.space import read_space
>>> plan = Plan(population=10, parents=2, mutated=4, crossed=4, iterations=3)
>>> plan.slots, plan.generation(9), plan.generation(10), plan.start(2)
(26, 0, 1, 18)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from random import Random
from typing import Any, ClassVar

import numpy as np

from parformer.errors import ConfigError
from parformer.fields import check_names, fit_fields, need_at_least
from parformer.records import Record
from parformer.search.front import crowding, front, ranks
from parformer.search.sizes.objectives import Candidate
from parformer.search.sizes.space import Genome, SearchSpace

TRIES = 1000
"""Draws until one is new and within the bounds; then the next way, and in the end repetition."""

Allowed = Callable[[Genome], bool]
"""Whether a genome may be a candidate at all."""

Maker = Callable[[], Genome]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan(Record):
    """How many candidates there are, and where they come from."""

    population: int = 100
    """Drawn at random to begin with; later, parents and children together."""
    parents: int = 20
    """Taken from the front in every iteration after the first."""
    mutated: int = 40
    crossed: int = 40
    mutation: float = 0.3
    """The chance of every gene of a mutated child to be drawn again."""
    iterations: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        fit_fields(self)
        for name in ("population", "parents", "iterations"):
            need_at_least(name, getattr(self, name), 1)
        for name in ("mutated", "crossed"):
            need_at_least(name, getattr(self, name), 0)
        if self.mutated + self.crossed < 1:
            raise ConfigError("mutated and crossed are both 0: no children; give one of them")
        if not 0 < self.mutation <= 1:
            raise ConfigError(f"mutation is a chance above 0, got {self.mutation:g}")

    @classmethod
    def sized(cls, population: int, iterations: int, **others: Any) -> Plan:
        """LiteTransformerSearch's proportions: for one parent two mutants and two crosses."""
        need_at_least("population", population, 5)
        children = 2 * population // 5
        parents = population - 2 * children
        return cls(population=population, parents=parents, mutated=children, crossed=children,
                   iterations=iterations, **others)  # fmt: skip

    @property
    def children(self) -> int:
        return self.mutated + self.crossed

    @property
    def slots(self) -> int:
        """All candidates of a search."""
        return self.start(self.iterations)

    def start(self, generation: int) -> int:
        """The first slot of a generation."""
        return 0 if generation == 0 else self.population + (generation - 1) * self.children

    def generation(self, slot: int) -> int:
        """Which generation a slot belongs to."""
        past = slot - self.population
        return 0 if past < 0 else 1 + past // self.children

    def bounds(self, slot: int) -> tuple[int, int]:
        """Where a slot's generation begins, and where the next one does."""
        number = self.generation(slot)
        return self.start(number), self.start(number + 1)


class Sampler(ABC):
    """Proposes generations for one space."""

    name: ClassVar[str]

    def __init__(self, space: SearchSpace, plan: Plan, allowed: Allowed) -> None:
        self.space, self.plan, self.allowed = space, plan, allowed
        self._known: dict[int, list[Genome]] = {}
        self._refused: set[str] = set()

    def propose(self, slot: int, scored: Sequence[Candidate]) -> Genome:
        """The candidate of a slot; `scored` are all earlier generations, in the order of slots."""
        number = self.plan.generation(slot)
        start = self.plan.start(number)
        if number not in self._known:
            assert len(scored) >= start, f"slot {slot} needs {start} results, got {len(scored)}"
            self._known[number] = self._generation(number, scored[:start])
        return self._known[number][slot - start]

    def _generation(self, number: int, scored: Sequence[Candidate]) -> list[Genome]:
        rng = Random(f"{self.plan.seed} generation {number}")
        seen = {one.genome.digest: one.genome for one in scored}
        if number == 0:
            # the least of all tells at once whether limits can be met
            first = [genome for genome in [self.space.smallest()] if self._may(genome)]
            seen |= {genome.digest: genome for genome in first}
            return [*first, *self._new(self.plan.population - len(first), seen, self._draws(rng))]
        return list(self._children(number, scored, rng, seen))

    @abstractmethod
    def _children(
        self, number: int, scored: Sequence[Candidate], rng: Random, seen: dict[str, Genome]
    ) -> Iterator[Genome]: ...

    def _draws(self, rng: Random) -> Maker:
        return lambda: self.space.draw(rng)

    def _bred(
        self, parents: Sequence[Genome], rng: Random, seen: dict[str, Genome]
    ) -> Iterator[Genome]:
        """Mutants of parents drawn at random, then crosses of two of them."""

        def mutant() -> Genome:
            return self.space.mutate(rng.choice(parents), rng, self.plan.mutation)

        def cross() -> Genome:
            one, other = rng.choices(parents, k=2)
            return self.space.cross(one, other, rng)

        yield from self._new(self.plan.mutated, seen, mutant, self._draws(rng))
        yield from self._new(self.plan.crossed, seen, cross, self._draws(rng))

    def _new(self, count: int, seen: dict[str, Genome], *makers: Maker) -> Iterator[Genome]:
        """Genomes that were not seen before; a way that finds none any more leaves it to the next.

        A space that has nothing new left repeats itself.
        """
        ways, again = [*makers], 0
        for _ in range(count):
            genome = None
            while genome is None and ways:
                genome = self._try(ways[0], seen)
                if genome is None:
                    ways.pop(0)
            if genome is None:
                if not seen:
                    raise ConfigError(
                        f"none of {TRIES:,} draws from the space {self.space.name!r} is within "
                        "its bounds; widen the bounds"
                    )
                genome = list(seen.values())[again % len(seen)]
                again += 1
            seen[genome.digest] = genome
            yield genome

    def _try(self, make: Maker, seen: Mapping[str, Genome]) -> Genome | None:
        for _ in range(TRIES):
            genome = make()
            if genome.digest not in seen and self._may(genome):
                return genome
        return None

    def _may(self, genome: Genome) -> bool:
        """Whether it is allowed, which is asked but once of what is not."""
        if genome.digest not in self._refused and self.allowed(genome):
            return True
        self._refused.add(genome.digest)
        return False


class Evolution(Sampler):
    """LiteTransformerSearch's: parents from the front, those that were parents least first."""

    name = "lts"

    def __init__(self, space: SearchSpace, plan: Plan, allowed: Allowed) -> None:
        super().__init__(space, plan, allowed)
        self._counts: dict[str, int] = {}
        self._parents: dict[int, list[Genome]] = {}

    def _children(
        self, number: int, scored: Sequence[Candidate], rng: Random, seen: dict[str, Genome]
    ) -> Iterator[Genome]:
        # a resumed search draws the parents of all earlier generations again, for their counts
        for earlier in range(len(self._parents) + 1, number + 1):
            best = pool(scored[: self.plan.start(earlier)])
            self._parents[earlier] = self._draw_parents(earlier, best)
        yield from self._bred(self._parents[number], rng, seen)

    def _draw_parents(self, number: int, best: Sequence[Genome]) -> list[Genome]:
        rng = Random(f"{self.plan.seed} parents {number}")
        counts = [self._counts.get(genome.digest, 0) for genome in best]
        low, high = min(counts), max(counts)
        scaled = [(count - low) / (high - low) if high > low else 0.0 for count in counts]
        weights = [1 / (1 + share) for share in scaled]
        drawn = rng.choices(best, weights=weights, k=self.plan.parents)
        for genome in drawn:
            self._counts[genome.digest] = self._counts.get(genome.digest, 0) + 1
        return drawn


class Nsga2(Sampler):
    """NSGA-II's selection: the best ranks, and within a rank the least crowded."""

    name = "nsga2"

    def _children(
        self, number: int, scored: Sequence[Candidate], rng: Random, seen: dict[str, Genome]
    ) -> Iterator[Genome]:
        yield from self._bred(select(scored, self.plan.parents), rng, seen)


class Draws(Sampler):
    """Draws at random, from first to last: what any search has to beat."""

    name = "random"

    def _children(
        self, number: int, scored: Sequence[Candidate], rng: Random, seen: dict[str, Genome]
    ) -> Iterator[Genome]:
        yield from self._new(self.plan.children, seen, self._draws(rng))


SAMPLERS: dict[str, type[Sampler]] = {cls.name: cls for cls in (Evolution, Nsga2, Draws)}


def make_sampler(name: str, space: SearchSpace, plan: Plan, allowed: Allowed) -> Sampler:
    check_names([name], SAMPLERS, "sampler")
    return SAMPLERS[name](space, plan, allowed)


def pool(scored: Sequence[Candidate]) -> list[Genome]:
    """Who may be a parent: the front within limits, or those that break them least."""
    usable = [one for one in scored if is_usable(one)]
    if not usable:
        raise ConfigError(
            "no candidate of the first generation could be evaluated; see 'why' in the study"
        )
    fine = [one for one in usable if one.excess == 0]
    if not fine:
        fewest = sorted(usable, key=lambda one: one.excess)
        return [one.genome for one in fewest[: max(1, len(fewest) // 10)]]
    flags = front(np.array([one.values for one in fine]))
    return [one.genome for one, best in zip(fine, flags, strict=True) if best]


def select(scored: Sequence[Candidate], count: int) -> list[Genome]:
    """The best by rank, the least crowded first within one; broken limits come last of all."""
    usable = [one for one in scored if is_usable(one)]
    fine = [one for one in usable if one.excess == 0]
    chosen: list[Genome] = []
    if fine:
        values = np.array([one.values for one in fine])
        places = ranks(values)
        for rank in range(int(places.max()) + 1):
            own = np.flatnonzero(places == rank)
            order = own[np.argsort(-crowding(values[own]), kind="stable")]
            chosen += [fine[i].genome for i in order]
            if len(chosen) >= count:
                return chosen[:count]
    rest = sorted((one for one in usable if one.excess > 0), key=lambda one: one.excess)
    chosen += [one.genome for one in rest]
    return chosen[:count] or pool(scored)


def is_usable(one: Candidate) -> bool:
    """Whether a candidate has values to compare; a score of minus infinity is none."""
    return one.values is not None and all(map(isfinite, one.values))
