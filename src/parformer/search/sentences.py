"""How long does a translator take for a whole sentence?

Its source is read once, then one token after the other is written, the likeliest each time, as
many as a typical translation has; models of random weights would not end by themselves.
"""

# b batch, s source

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from parformer.config import ModelConfig
from parformer.events import Preparing
from parformer.generate.translating import translate
from parformer.measure.device import pinned_threads
from parformer.measure.latency import measure_latency
from parformer.measure.memory import peak_memory
from parformer.measure.models import PRECISIONS, stand_in
from parformer.measure.readings import Meter, Reading, Readings, Step
from parformer.model import Model

Sentence = Callable[[], object]
Runs = Callable[[Model, torch.Tensor, int, int], Sentence]
"""Makes the work of a sentence: of a model, a source, a length, with so many threads."""


def in_torch(model: Model, source_bs: torch.Tensor, length: int, threads: int) -> Sentence:
    """As `parformer generate --greedy` writes it."""
    return partial(
        translate, model, source_bs, greedy=True, n_best=1, min_len=length, max_len=length
    )


def sentence_meter(source: int, runs: Runs = in_torch) -> Meter:
    """Measures whole sentences from sources of so many tokens; a step says how long they become."""

    def measure(
        configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
    ) -> Readings:
        say = progress or (lambda what, share: None)
        works, memory = {}, {}
        with pinned_threads(step.threads):
            for number, (name, config) in enumerate(configs.items()):
                say(f"building {name}", 0.5 * number / len(configs))
                model = stand_in(config, dtype=PRECISIONS[step.precision]).eval()
                rng = torch.Generator().manual_seed(0)
                source_bs = torch.randint(config.vocab_size - 1, (1, source), generator=rng)
                length = step.tgt_len or 1
                resident = [*model.parameters(), *model.buffers()]
                own = in_torch(model, source_bs, length, step.threads)
                memory[name] = peak_memory(own, resident=resident)
                works[name] = runs(model, source_bs, length, step.threads)
        timed = measure_latency(
            works,
            rounds=step.rounds,
            warmup=1,
            threads=step.threads,
            min_round_seconds=0.0,
            what=f"a sentence of {step.tgt_len} tokens from {source}, greedy, {step.precision}",
            progress=lambda share: say("timing, in turns", 0.5 + 0.5 * share),
        )
        first = next(iter(configs))
        readings = tuple(
            Reading.taken(
                name,
                timed[name].samples_seconds,
                timed.ratio(name, first),
                memory[name].peak_bytes,
                memory[name].resident_bytes,
            )
            for name in configs
        )
        return Readings(readings=readings, receipt=timed.receipt)

    return measure
