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
from collections import Counter
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

    @abstractmethod
    def _parents(self, number: int, scored: Sequence[Candidate]) -> Sequence[Genome]:
        """Whose children a generation is; without any, it is drawn at random."""

    def _generation(self, number: int, scored: Sequence[Candidate]) -> list[Genome]:
        """Mutants of parents drawn at random, then crosses of two of them."""
        rng = Random(f"{self.plan.seed} generation {number}")
        seen = {one.genome.digest: one.genome for one in scored}

        def draw() -> Genome:
            return self.space.draw(rng)

        def mutant() -> Genome:
            return self.space.mutate(rng.choice(parents), rng, self.plan.mutation)

        def cross() -> Genome:
            one, other = rng.choices(parents, k=2)
            return self.space.cross(one, other, rng)

        if number == 0:
            # the least of all tells at once whether limits can be met
            first = [genome for genome in [self.space.smallest()] if self._may(genome)]
            seen |= {genome.digest: genome for genome in first}
            return [*first, *self._new(self.plan.population - len(first), seen, draw)]
        parents = self._parents(number, scored)
        if not parents:
            return [*self._new(self.plan.children, seen, draw)]
        mutants = [*self._new(self.plan.mutated, seen, mutant, draw)]
        return [*mutants, *self._new(self.plan.crossed, seen, cross, draw)]

    def _new(self, count: int, seen: dict[str, Genome], *makers: Maker) -> Iterator[Genome]:
        """Genomes that were not seen before; a way that finds none any more leaves it to the next.

        A space that has nothing new left repeats itself.
        """
        ways, again = [*makers], 0
        for _ in range(count):
            genome = None
            while ways and (genome := self._try(ways[0], seen)) is None:
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
        drawn = (make() for _ in range(TRIES))
        return next((one for one in drawn if one.digest not in seen and self._may(one)), None)

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
        self._counts: Counter[str] = Counter()
        self._drawn: list[list[Genome]] = []
        """The parents of every generation but the first."""

    def _parents(self, number: int, scored: Sequence[Candidate]) -> Sequence[Genome]:
        # a resumed search draws the parents of all earlier generations again, for their counts
        for earlier in range(len(self._drawn) + 1, number + 1):
            best = pool(scored[: self.plan.start(earlier)])
            self._drawn.append(self._draw_parents(earlier, best))
        return self._drawn[number - 1]

    def _draw_parents(self, number: int, best: Sequence[Genome]) -> list[Genome]:
        rng = Random(f"{self.plan.seed} parents {number}")
        counts = [self._counts[genome.digest] for genome in best]
        low, high = min(counts), max(counts)
        scaled = [(count - low) / (high - low) if high > low else 0.0 for count in counts]
        weights = [1 / (1 + share) for share in scaled]
        drawn = rng.choices(best, weights=weights, k=self.plan.parents)
        self._counts.update(genome.digest for genome in drawn)
        return drawn


class Nsga2(Sampler):
    """NSGA-II's selection: the best ranks, and within a rank the least crowded."""

    name = "nsga2"

    def _parents(self, number: int, scored: Sequence[Candidate]) -> Sequence[Genome]:
        return select(scored, self.plan.parents)


class Draws(Sampler):
    """Draws at random, from first to last: what any search has to beat."""

    name = "random"

    def _parents(self, number: int, scored: Sequence[Candidate]) -> Sequence[Genome]:
        return ()


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
