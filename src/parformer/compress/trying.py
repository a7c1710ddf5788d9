"""What would bits, fewer words and fewer parts each bring and cost, on the model as it is?

Little by little: what needs no training is tried first, and nothing else where that is enough. The
plan that comes of it is written down, so that the same command follows the same plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from parformer.blocks.coded import NARROW, WIDE
from parformer.compress.bits import by_loss, in_order
from parformer.compress.choosing import size_price
from parformer.compress.coding import coded
from parformer.compress.planning import Bounds, Option, Plan, best, settled, ways
from parformer.compress.receipt import clock, timed
from parformer.compress.shrinking import places
from parformer.compress.steps import CAREFUL, borne_by, overhead
from parformer.compress.vocabulary import refuse, used, without_least
from parformer.compress.work import TRIED, Work
from parformer.compress.worth import find_worth
from parformer.errors import ConfigError
from parformer.model import Model
from parformer.store.files import read_json, replace_file
from parformer.weights import matrices

FILE = "plan.json"
FEW = (0.25, 0.5, 0.75, 1.0)
"""Shares of all matrices that are tried in four bits."""
SHARES = (0.85, 0.7, 0.55, 0.4)
"""Of the time, or of the bytes, that shrinking is tried to leave."""
LEAST = 0.98
"""What a trial must leave of bytes or time, at most, to be worth a step."""
SLACK = 0.001
"""By how much a step may miss what a trial left."""


def planned(model: Model, work: Work, folder: Path, key: str) -> Plan:
    """The plan that was made for just this, or a new one."""
    file = folder / FILE
    if file.is_file():
        kept = Plan.from_dict(read_json(file), str(file))
        if kept.key == key:
            return kept
    plan = make_plan(model, work, key)
    replace_file(file, json.dumps(plan.to_dict()) + "\n")
    return plan


def make_plan(model: Model, work: Work, key: str) -> Plan:
    """Try one kind of step after the other, until some of what was tried are enough together."""
    bounds = Bounds.of(work.targets, work.size, work.latency)
    tried: list[Option] = []
    for more in Trials(model, work).stages():
        tried += more
        if tried and settled(best(ways(tried), bounds), bounds):
            break
    if not tried:
        raise ConfigError("nothing of this model can become smaller; name steps by --by")
    return Plan.of(best(ways(tried), bounds), bounds, tried, key)


@dataclass(frozen=True)
class Trials:
    """What is tried on one model."""

    model: Model
    work: Work

    @cached_property
    def before(self) -> float:
        return self.loss(self.model)

    def loss(self, model: Model) -> float:
        return self.work.bench.train_loss(model, TRIED)

    def stages(self) -> Iterator[list[Option]]:
        """Options of one step after the other, the cheapest first."""
        if matrices(self.model):
            yield self.in_bits(self.usual_bits())
            if self.work.targets.size is not None and not self.work.request.bits:
                yield self.in_bits(self.fewer_bits())
        if self.work.targets.size is not None or self.work.targets.latency is not None:
            yield self.fewer_words()
            yield self.fewer_parts()

    def usual_bits(self) -> list[Mapping[str, int]]:
        """What quantizing takes where bytes do not ask for less."""
        names, targets = matrices(self.model), self.work.targets
        if self.work.request.bits or targets.size is not None or targets.loss is None:
            return [dict.fromkeys(names, self.work.request.bits or WIDE)]
        return [by_loss(borne_by(self.model, self.work), CAREFUL * targets.may_lose)]

    def fewer_bits(self) -> list[Mapping[str, int]]:
        """Four bits for more and more matrices, those first that bear it best."""
        order = in_order(borne_by(self.model, self.work))
        firsts = [set(order[: max(1, round(share * len(order)))]) for share in FEW]
        return [{name: NARROW if name in four else WIDE for name in order} for four in firsts]

    def in_bits(self, chosen: Sequence[Mapping[str, int]]) -> list[Option]:
        return self.options(
            "quantize", {in_words(bits): coded(self.model, bits) for bits in chosen}
        )

    def fewer_words(self) -> list[Option]:
        """Without the tokens that the text never has, and without the rarest as well."""
        tokenizer = self.work.bench.prepared.tokenizer
        bearable = self.work.targets.may_lose if self.work.bench.reads_on else 0.0
        found: dict[str, Model] = {}
        lost: dict[str, float] = {}
        try:
            refuse(self.model)
            counts = used(self.work.bench.prepared, tokenizer.size)[: tokenizer.size]
            for share in dict.fromkeys((0.0, CAREFUL * bearable)):
                wanted = tokenizer.size if share else 0
                made, _, kept = without_least(self.model, tokenizer, counts, wanted, share)
                told = f"{made.config.vocab_size:,} of {self.model.config.vocab_size:,} tokens"
                lost[told] = 1 - int(counts[kept].sum()) / int(counts.sum())
                found[told] = made
        except ConfigError:
            return []  # this vocabulary is of a kind that stays
        return self.options("vocabulary", found, lost)

    def fewer_parts(self) -> list[Option]:
        """Without those heads, channels and blocks that lose least, more and more of them."""
        if not list(places(self.model)):
            return []
        worth = find_worth(self.model, self.work)
        what = "time" if self.work.by_time else "bytes"
        made = {f"{share:.0%} of the {what}": worth.without(share) for share in SHARES}
        found = self.options("shrink", made)
        # by the clock it may be more or less than was aimed at
        return [replace(one, what=f"{one.left:.0%} of the {what}") for one in found]

    def options(
        self, step: str, made: Mapping[str, Model], lost: Mapping[str, float] | None = None
    ) -> list[Option]:
        """What each of these models leaves and loses; what leaves all of it is none."""
        times, found = self.times(made), []
        for number, (told, model) in enumerate(made.items()):
            self.work.watch.preparing(f"trying {told}", number / len(made))
            time = times.get(told, 1.0)
            left = time if self.work.by_time else size_price(model) / size_price(self.model)
            option = Option(
                step=step,
                what=told,
                size=(size_price(model) + overhead(model)) / self.work.size,
                time=time,
                loses=self.loss(model) / self.before - 1 if lost is None else lost[told],
                left=None if step == "quantize" else round(left + SLACK, 3),
            )
            if min(option.size, option.time) <= LEAST:
                found.append(option)
        return found

    def times(self, made: Mapping[str, Model]) -> dict[str, float]:
        """Shares of the time that are left, timed in turns, where a limit is a time."""
        if self.work.targets.latency is None:
            return {}
        say, told = self.work.watch.preparing, "timing what was tried, in turns"
        whole = {"the whole": self.model} | dict(made)
        found, _ = clock(whole, self.work.bench, 1, lambda share: say(told, share))
        return {name: timed(found, name, "the whole").ratio for name in made}


def in_words(bits: Mapping[str, int]) -> str:
    """Which bits matrices have, in words.

    >>> in_words({"a": 8}), in_words({"a": 4, "b": 8})
    ('8 bits', '4 bits for 1 of 2 matrices')
    """
    few, count = min(bits.values()), sum(one < WIDE for one in bits.values())
    part = f" for {count} of {len(bits)} matrices" if 0 < count < len(bits) else ""
    return f"{few} bits{part}"
