"""How large is the learning rate of each update?

It rises over the warm-up, then falls along a cosine or a line, or with the root of the step, or
stays, or falls in the end.

>>> config = TrainConfig(steps=6, warmup=2, learning_rate=0.4, schedule="linear")
>>> [round(rate(step, config), 3) for step in range(6)]
[0.2, 0.4, 0.4, 0.3, 0.2, 0.1]
"""

from __future__ import annotations

import math
from dataclasses import replace

from parformer.config import ModelConfig
from parformer.phases import phase_at, phases_of
from parformer.recipe import TrainConfig

DECAY = 0.3
"""The share of all updates in which a trapezoid falls."""

WIDER, DEEPER = 0.75, 0.0
"""By which powers of its width and its depth a model's best rate falls
(`python benchmarks/rates.py`, docs/training.md)."""


BESIDE_COUNTS = 0.005
"""No model that learns beside counts has a higher rate, however narrow it is: what they leave to be
learned is fine (`python benchmarks/late_rates.py`, docs/training.md)."""


def rate_for(config: ModelConfig, usual: float, known: ModelConfig) -> float:
    """The rate of a model of any size, from the usual one of a model of known size."""
    wider = config.d_model / known.d_model
    deeper = len(config.pattern) / len(known.pattern)
    found = usual * math.pow(wider, -WIDER) * math.pow(deeper, -DEEPER)
    return min(found, BESIDE_COUNTS) if config.counts else found


def rate(step: int, config: TrainConfig) -> float:
    """The learning rate of update number `step`, counted from 0.

    Update `step` of the warm-up has (step + 1) / warmup of the full rate: the first already
    moves, the last is at the full rate. From update `warmup` on, at the full rate too, the rate
    falls such that an update past the last would be at the final rate, so that none of them
    is spent at a rate of 0. A warm-up as long as the training or longer only rises.

    With `first_step_full` the rates of the warm-up come one update late, as in the reference,
    which sets the rate after an update: update `step` has step / warmup of the full rate, and
    the first, before which nobody set one, has all of it.
    """
    if config.phases:
        phase, step = phase_at(step, phases_of(config))
        told = {"steps": phase.steps, "warmup": phase.warmup, "learning_rate": phase.rate}
        config = replace(config, **told, phases=())  # type: ignore[arg-type]
    if config.first_step_full and step == 0:
        return config.learning_rate
    if step < config.warmup:
        risen = step if config.first_step_full else step + 1
        return config.learning_rate * risen / config.warmup
    if config.schedule == "inverse-sqrt":
        return max(
            config.learning_rate * math.sqrt(max(1, config.warmup) / (step + 1)), config.final_rate
        )
    if config.schedule == "trapezoid":
        low, high, top = config.final_rate, config.learning_rate, top_of(config.steps)
        return low + (high - low) * min(1.0, (config.steps - step) / (config.steps - top))
    falling = config.steps - config.warmup
    gone = min((step - config.warmup) / falling, 1.0) if falling > 0 else 1.0
    return config.final_rate + (config.learning_rate - config.final_rate) * left(gone, config)


def top_of(steps: int) -> int:
    """How many updates of a trapezoid come before its rate falls.

    >>> top_of(100), top_of(1)
    (70, 0)
    """
    return steps - max(1, round(DECAY * steps))


def left(gone: float, config: TrainConfig) -> float:
    """Which share of the way down is still ahead when `gone` of the time has passed."""
    match config.schedule:
        case "cosine":
            return (1 + math.cos(math.pi * gone)) / 2
        case "linear":
            return 1 - gone
        case _:
            return 1.0
