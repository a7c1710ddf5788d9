"""How long does a translator take for a whole sentence?

Its source is read once, then one token after the other is written, the likeliest each time or
some beams side by side, as many as a typical translation has; models of random weights would not
end by themselves.
"""

# b batch, s source

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.events import Preparing
from parformer.generate.translating import translate
from parformer.measure import readings
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
    return sentence(model, source_bs, length, greedy=True)


def sentence(model: Model, source_bs: torch.Tensor, length: int, **how: Any) -> Sentence:
    """A text of exactly this length; a model that no pairs have told its pad takes the last."""
    pad = model.config.pad if model.config.pad >= 0 else model.config.vocab_size - 1
    how |= {"min_len": length, "max_len": length}
    return partial(translate, model, source_bs, n_best=1, pad=pad, **how)


def in_beams(beam: int) -> Runs:
    """As `parformer generate --beam` writes it."""

    def runs(model: Model, source_bs: torch.Tensor, length: int, threads: int) -> Sentence:
        return sentence(model, source_bs, length, beam=beam)

    return runs


def measure_any(
    configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
) -> Readings:
    """On this machine, steps, or whole sentences where the step has a source."""
    if not step.source:
        return readings.measure_here(configs, step, progress)
    runs = in_beams(step.beam) if step.beam > 1 else in_torch
    return sentence_meter(step.source, runs, beam=step.beam)(configs, step, progress)


def sentence_flops(config: ModelConfig, length: int, source: int, beam: int = 1) -> int:
    """Reading the source once, and a step of all beams for each token."""
    one = cost(config, tgt_len=1, mem_len=length // 2, src_len=source)
    return one.encoder.flops + length * beam * one.flops_cached


def sentence_meter(source: int, runs: Runs = in_torch, *, beam: int = 1) -> Meter:
    """Measures whole sentences from sources of so many tokens; a step says how long they become."""

    def measure(
        configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
    ) -> Readings:
        say = progress or (lambda what, share: None)
        how = f"{beam} beams" if beam > 1 else "greedy"
        works, memory = {}, {}
        with pinned_threads(step.threads):
            for number, (name, config) in enumerate(configs.items()):
                say(f"building {name}", 0.5 * number / len(configs))
                model = stand_in(config, dtype=PRECISIONS[step.precision]).eval()
                rng = torch.Generator().manual_seed(0)
                words = min(config.vocab_size, config.source_words.vocab_size)
                # neither the first nor the last, which may stand for no token
                source_bs = torch.randint(1, words - 1, (1, source), generator=rng)
                length = step.tgt_len or 1
                resident = [*model.parameters(), *model.buffers()]
                told = in_beams(beam) if beam > 1 else in_torch
                own = told(model, source_bs, length, step.threads)
                memory[name] = peak_memory(own, resident=resident)
                works[name] = runs(model, source_bs, length, step.threads)
        timed = measure_latency(
            works,
            rounds=step.rounds,
            warmup=1,
            threads=step.threads,
            min_round_seconds=0.0,
            what=f"a sentence of {step.tgt_len} tokens from {source}, {how}, {step.precision}",
            progress=lambda share: say("timing, in turns", 0.5 + 0.5 * share),
        )
        first = next(iter(configs))
        found = tuple(
            Reading.taken(
                name,
                timed[name].samples_seconds,
                timed.ratio(name, first),
                memory[name].peak_bytes,
                memory[name].resident_bytes,
            )
            for name in configs
        )
        return Readings(readings=found, receipt=timed.receipt)

    return measure
