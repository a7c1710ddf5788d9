"""What do all phases of a fit share: the request, the journal, the text, the clock, the meter?"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from parformer.config import ModelConfig
from parformer.counts import count
from parformer.counts.count import MOST
from parformer.counts.look import Readable
from parformer.data.batches import sample
from parformer.data.corpora import Corpus
from parformer.data.overlap import overlaps
from parformer.data.tokens import Prepared
from parformer.evaluate.counting import References, references_of, table_loss
from parformer.evaluate.perplexity import as_stream
from parformer.events import Event, Part, Preparing, Watch
from parformer.fitting.kinds import find_kind
from parformer.fitting.kinds.base import Kind
from parformer.fitting.kinds.language import EVALUATED
from parformer.fitting.phases import BASELINE, Baseline, Finalist, Finalists, Paces, TextFacts
from parformer.fitting.progress import Clock, Progress
from parformer.fitting.request import FitRequest
from parformer.fitting.runtime import runtime_meter, scaled
from parformer.fitting.squeezing import QUICKER, bits_meter, bring_within, squeezed_bytes
from parformer.fitting.timetable import counted, plan, share_out
from parformer.grams import largest_order, least_bytes
from parformer.measure.readings import Meter, Readings, Step, measure_here
from parformer.model import Model, load
from parformer.recipe import Recipe
from parformer.search.sizes.objectives import Figures
from parformer.train.alike import Alike, Trained
from parformer.train.plateau import on_plateau
from parformer.train.run import MODEL

TRAININGS = "trainings"
ROUNDS = 10
"""How often a model is timed while sizes are looked for."""
TESTED = 131_072
"""Tokens of the test split that the baseline and the model handed over are looked at with."""
GLANCE = 8_192
"""Tokens that a validation during a training looks at."""
LEAVING, LEAVING_SHARE = 22.0, 0.05
"""Seconds at most, and the share of its time, that a fit keeps for trying exports."""
LOOKS = 6
"""Validations during a training."""
LARGEST_VOCABULARY = 8192
"""Counts give a chance to every token; of more tokens than these that would take too long."""
SPARED = 0.004
"""A table of half the size is taken if it costs no more of the loss."""


THERE = "size.there"
IN_BITS = "size.bits"
"""How many times as long a model takes in the runtime that it is for."""


class OutOfTime(Exception):
    """Work that can be done without took half of all the time that was left."""


@dataclass
class Running:
    """One fit in its run folder."""

    progress: Progress
    path: Path
    watch: Watch
    meter: Meter = measure_here
    cache: Path | None = None
    """Where block costs are kept; the user's cache folder unless given."""
    clock: Clock = time.monotonic
    slowness: float = field(default=1.0, init=False)
    """How many times as long as when it was timed an update takes by now."""

    @property
    def request(self) -> FitRequest:
        return self.progress.request

    @cached_property
    def kind(self) -> Kind:
        """What is learned from: a text, labels or pairs."""
        return find_kind(self.request)

    @cached_property
    def plan(self) -> tuple[Part, ...]:
        """The phases, as they were planned in the beginning."""
        without = self.kind.without
        return counted(without) if self.request.steps else plan(self.request.seconds, without)

    @cached_property
    def planned(self) -> dict[str, float]:
        """Seconds by phase; 0 for one that is left out, and for all in a fit by updates."""
        return {part.name: part.planned for part in self.plan}

    @property
    def by_clock(self) -> bool:
        return not self.request.steps

    @property
    def left(self) -> float:
        """Seconds that remain of the time for everything but trying the ways out of here; no end
        of them in a fit by updates.
        """
        if not self.by_clock:
            return math.inf
        seconds = self.request.seconds
        kept = min(LEAVING, LEAVING_SHARE * seconds) if self.request.exports else 0.0
        return max(0.0, seconds - kept - self.progress.spent)

    @property
    def left_to_train(self) -> float:
        """The same without what the report takes at the pace of now."""
        return self.left - self.planned["report"] * min(max(self.slowness, 1.0), 3.0)

    def late(self) -> bool:
        """Whether there is no more time but for the report."""
        return self.left_to_train <= 0

    def seconds_for(self, phase: str) -> float:
        """What a phase gets of the time that is left: less than planned where others took more.

        0 where it is too little to say anything; then the phase is left out.
        """
        names = list(self.planned)
        ahead = [n for n in names[names.index(phase) :] if self.planned[n] and n != "report"]
        if phase not in ahead:
            return 0.0
        return share_out(max(0.0, self.left_to_train), ahead)[phase]

    def impatient(self) -> Watch:
        """For work that can be done without: it ends once it has taken half of what was left."""
        most = self.left_to_train / 2

        def tell(event: Event) -> None:
            self.watch.tell(event)
            if self.left_to_train < most:
                raise OutOfTime

        return Watch(tell)

    def leave_out(self, phase: str) -> None:
        """Say, and write down, that a phase that was planned is given up."""
        why = f"left out: {self.left:,.0f} s were left, which is too little for it"
        self.progress.leave_out(phase, why)
        title = next(part.title for part in self.plan if part.name == phase)
        self.watch.notice(f"No time to {title}: {self.left:,.0f} s are left.")

    @cached_property
    def corpus(self) -> Corpus | None:
        """The text, or the pairs; others than the fit began with are refused. None for tables."""
        return self.kind.find(self.watch, self.path, self.identity)

    @cached_property
    def reading(self) -> tuple[Recipe, Prepared]:
        """The recipe as its data decide it, and these as tokens."""
        return self.kind.read(self.corpus, self.watch, self.path, self.identity)

    @property
    def identity(self) -> str:
        """Of what the fit began with; empty before that is known."""
        known = self.progress.found(TextFacts)
        return known.identity if known else ""

    def look(self) -> None:
        """Refuse what is not there, or cannot be learned from, before a plan is told."""
        if self.corpus is None:
            assert self.prepared is not None

    @property
    def prepared(self) -> Prepared:
        """What is learned from, as tokens."""
        return self.reading[1]

    @cached_property
    def facts(self) -> TextFacts:
        return self.progress.need(TextFacts)

    @cached_property
    def references(self) -> dict[str, References]:
        """What plain counting reaches on the tokens that models are judged by."""
        return self.progress.need(TextFacts).references

    def stuck(self, loss: float) -> bool:
        """Whether a loss on validation text tells of nothing but frequencies of tokens."""
        if not self.references:
            return self.kind.stuck(loss, self.facts)
        return on_plateau(loss, self.references["valid"].unigram)

    def learned(self, loss: float) -> bool:
        """Whether it tells of more than pairs of tokens, or than the counts beside the model."""
        if not self.references:
            return self.kind.learned(loss, self.facts)
        return loss < self.references["valid"].to_beat

    @cached_property
    def most_updates(self) -> int:
        """Updates after which examples have nothing left to teach; 0 where there is no end."""
        return self.kind.most_updates(self.baseline.recipe, self.prepared)

    @cached_property
    def step(self) -> Step:
        """What is measured of every model."""
        return replace(self.kind.step(self.facts), rounds=ROUNDS)

    def measure(
        self,
        configs: Mapping[str, ModelConfig],
        step: Step,
        progress: Preparing | None = None,
        *,
        rough: bool = False,
        coded: Collection[ModelConfig] = (),
    ) -> Readings:
        """Latency and memory of models, side by side, where they will run.

        `rough` asks for many: in another runtime their times are reckoned, not measured. `coded`
        ones are timed in 8 bits; their memory is that of the others.
        """
        meter, asked = self.kind.meter(self.meter, self.facts), self.request
        if coded:
            source = self.facts.source if asked.kind == "pairs" else 0
            return bits_meter(self.meter, coded, source)(configs, step, progress)
        if asked.runtime == "torch":
            return meter(configs, step, progress)
        if rough:
            times = self.progress.number(THERE, lambda: self.times_there(first_of(configs)))
            return scaled(meter(configs, step, progress), times)
        there = runtime_meter(asked.runtime, asked.kind, self.facts.source)
        return there(configs, step, progress)

    def times_there(self, config: ModelConfig) -> float:
        """How many times as long as here a model takes in the runtime."""
        one = {BASELINE: config}
        here = self.kind.meter(self.meter, self.facts)(one, self.step)[BASELINE].median
        return self.measure(one, self.step)[BASELINE].median / here

    @cached_property
    def in_bits(self) -> float:
        """How many times as long a model takes in 8 bits; 1 where nobody asks for that."""
        asked = self.request
        if not asked.compress or asked.runtime != "torch" or "latency" not in self.limits:
            return 1.0
        return self.progress.number(IN_BITS, self._times_in_bits)

    @property
    def quicker(self) -> bool:
        """Whether models are brought within a latency by their bits."""
        return self.in_bits <= QUICKER

    def _times_in_bits(self) -> float:
        """Of the baseline, in turns with itself."""
        config = self.baseline.recipe.model
        # two models of one configuration could not be told apart; dropout takes no time here
        plain = config.replaced(dropout=0.0 if config.dropout else 0.1)
        both = {BASELINE: plain, "coded": config}
        return self.measure(both, self.step, coded={config})["coded"].ratio

    def counts(self, config: ModelConfig) -> Figures:
        """What can be counted of a model's step; its size is the one that it will have."""
        price = self.kind.price(config, self.step, self.facts)
        if self.request.compress:
            price["size"] = min(price["size"], squeezed_bytes(config))
        return price

    def load(self, run: Path) -> Model:
        """The model of a training as it would be handed over."""
        model = load(run / MODEL)
        if not self.request.compress:
            return model
        in_bits = any(one.bits and one.config == model.config for one in self.finalists.values())
        return bring_within(model, 0.0 if in_bits else self.limits.get("size", math.inf))

    @cached_property
    def baseline(self) -> Baseline:
        return self.progress.need(Baseline)

    @property
    def limits(self) -> dict[str, float]:
        """In seconds, bytes and counts."""
        return self.baseline.limits

    @cached_property
    def finalists(self) -> dict[str, Finalist]:
        """The models of the contest by name, the baseline first."""
        return {one.name: one for one in self.progress.need(Finalists).models}

    @property
    def eligible(self) -> list[str]:
        """Those that keep the limits."""
        return [name for name, one in self.finalists.items() if one.eligible]

    @cached_property
    def alike(self) -> Alike:
        """All trainings; by the clock, they end when only the report has time left."""
        return Alike(self.path / TRAININGS, self.prepared, self.watch, self.late, self.clock)

    def train(
        self, recipe: Recipe, name: str, *, until: int | None = None, end: int | None = None
    ) -> Trained | None:
        """Train one of the models, and see how the machine keeps up."""
        trained = self.alike.run(recipe, name, until=until, end=end)
        if trained is not None and trained.pace is not None and self.by_clock:
            known = [m for m, one in self.finalists.items() if one.config == recipe.model]
            expected = self.progress.need(Paces).updates[known[0]]
            self.slowness = trained.pace / expected
        return trained

    def pace(self, name: str) -> float:
        """Seconds of an update of a finalist, at the pace of now."""
        return self.progress.need(Paces).updates[name] * self.slowness

    def token_pace(self) -> float:
        """Seconds of a token in validation, likewise."""
        return self.progress.need(Paces).token * self.slowness

    def recipe_of(
        self,
        name: str,
        steps: int,
        rate: float,
        *,
        seed: int = 0,
        looks: int = LOOKS,
        warmup: int = 0,
    ) -> Recipe:
        """How one of the models is trained; all alike, but for the rate.

        The rate falls in the end, so that who wins can go on from before that.
        """
        config = self.finalists[name].config
        own = self.kind.training(config, self.path)
        return replace(self.baseline.recipe, model=config).replaced(
            {
                "train.steps": steps,
                "train.time": 0.0,
                "train.warmup": warmup or max(1, steps // 10),
                "train.schedule": "trapezoid",
                "train.learning_rate": rate,
                "train.seed": self.request.seed + seed,
                "train.evaluate_every": max(1, steps // looks),
                "train.evaluate_tokens": GLANCE,
                "train.final_tokens": 1024,
                **own,
            }
        )


def first_of(configs: Mapping[str, ModelConfig]) -> ModelConfig:
    return next(iter(configs.values()))


def count_references(prepared: Prepared, size: int = 0) -> dict[str, References]:
    """What counting reaches, on the very stretches of text that models are judged by."""
    most = {"valid": EVALUATED, "test": TESTED}
    samples = {
        split: sample(prepared.splits[split].tokens, limit)
        for split, limit in most.items()
        if split in prepared.splits
    }
    return references_of(prepared, {s: t for s, t in samples.items() if len(t) > 1}, size=size)


def table_bytes(prepared: Prepared, most: int) -> int:
    """The smallest table of counts that knows nearly as much as one of `most` bytes; 0 for none."""
    size, train = prepared.tokenizer.size, prepared.splits["train"].tokens[:MOST]
    if size > LARGEST_VOCABULARY or most < 2 * least_bytes(largest_order(size), size):
        return 0
    valid = sample(prepared.splits["valid"].tokens, GLANCE)
    if len(valid) < 2:
        return 0

    def nats(room: int) -> float:
        table = Readable(count(as_stream(train), vocab_size=size, size=room))
        return table_loss(table, valid)

    best, room = nats(most), most
    while room // 2 > least_bytes(largest_order(size), size):
        if nats(room // 2) > (1 + SPARED) * best:
            break
        room //= 2
    return room


def read(fit: Running) -> TextFacts:
    """What is learned from, its measures, and what counting makes of it."""
    if fit.request.kind != "text":
        return fit.kind.facts(*fit.reading)
    assert fit.corpus is not None, "a text is there"
    train = fit.prepared.splits["train"]
    counts = table_bytes(fit.prepared, fit.request.table_room)
    return TextFacts(
        identity=fit.prepared.identity,
        tokens=len(train.tokens),
        bytes=train.bytes,
        vocabulary=fit.prepared.tokenizer.size,
        overlap=overlaps(fit.corpus),
        references=count_references(fit.prepared, counts),
        counts=counts,
    )
