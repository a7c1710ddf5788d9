"""Does a training learn anything but how frequent each token is?

A rate that is too high, or norms after the residual sums, can leave a model where all it knows
is the frequencies of letters, for hundreds of updates or for good. Its loss is then that of
counting them, and a training that stands there after a fifth of its way says so.

>>> on_plateau(3.07, 3.08), on_plateau(2.9, 3.08)
(True, False)
"""

from __future__ import annotations

import math

from parformer.recipe import Recipe

NEAR = 0.01
"""Within this share of the entropy of single tokens, nothing else was learned."""
SHARE = 0.2
"""The share of a training after which that is looked at."""
SHORTEST = 100
"""Updates of a training below which it may well stand there: it has only begun."""

SLOWER = 4.0
"""By how much a rate is lowered for a model that learned nothing."""
MOST_SLOWER = 2
"""How often."""


def on_plateau(loss: float, entropy: float) -> bool:
    """Whether a loss is that of letter frequencies, or worse; both in nats per token."""
    return loss > (1 - NEAR) * entropy


def is_due(step: int, every: int, steps: int) -> bool:
    """Whether this line of metrics, one of which comes every so many updates, is to be judged.

    It is the first one after a fifth of the training, so a run that goes on asks no second time.

    >>> [step for step in range(10, 301, 10) if is_due(step, 10, 300)]
    [60]
    """
    first = math.ceil(SHARE * steps)
    return steps >= SHORTEST and step - every < first <= step


def advice(recipe: Recipe, step: int, loss: float, entropy: float) -> str:
    """What is wrong, and the ways out that this recipe has not taken yet."""
    rate = recipe.train.learning_rate
    ways = [f"start another --run with train.learning_rate={rate / 4:.2g}"]
    if recipe.model.norm == "post":
        ways.append("model.norm=pre and model.final_norm=true")
    elif recipe.model.first_weights == "family":
        ways.append("model.first_weights=scaled")
    else:
        ways.append(f"train.warmup={max(100, 2 * recipe.train.warmup)}")
    return (
        f"After {step:,} updates the loss is {loss:.3f}, and token frequencies alone give "
        f"{entropy:.3f}: nothing else was learned yet. If it stays there, "
        f"{', or with '.join(ways)}."
    )
