"""What is every part of a model worth, what would it save, and what is left without the least?

Units of a block are told by gradients, by the size of what they write, or by the loss that is
measured without some of them. For whole blocks and for the stream the loss is always measured.
"""

# u units of a block

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from parformer.compress.choosing import (
    FEWEST_BLOCKS,
    FEWEST_CHANNELS,
    Prices,
    blocks_in,
    choose,
    measured_worth,
    prices,
    root_of,
    size_price,
)
from parformer.compress.narrowing import Axes, along, obstacle
from parformer.compress.receipt import Bench, token_seconds
from parformer.compress.shrinking import STREAM, Kept, importance, magnitude, places, shrunk
from parformer.compress.work import ATTEMPTS, TRIED, Work
from parformer.model import Model
from parformer.tasks import find_task

BATCHES = 8
"""Batches of training text whose gradients tell what matters."""
LEAST = 1e-6
"""What the loss grows by at least, as far as sizes are concerned; noise may say less."""


UNTRIED = 4.0
"""Times what the dearest units cost that were tried without, for the other half of a block."""


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What is known of a model's parts."""

    model: Model
    units: Mapping[str, Tensor]
    """What the loss grows by without each, by block."""
    blocks: Mapping[str, float]
    """The same for whole blocks."""
    known: Prices
    whole: float
    price: Callable[[Model], float]

    def without(self, share: float) -> Model:
        """The model once its parts are left that cost so much, as far as one knows."""
        save = (1 - share) * self.whole
        return shrunk(self.model, choose(self.model, self.units, self.blocks, self.known, save))

    def within(self, share: float) -> Model:
        """The same, priced again, with a tighter aim where the share is not kept."""
        aim, made = share, self.model
        for _ in range(ATTEMPTS):
            made = self.without(aim)
            reached = self.price(made) / self.whole
            if reached <= share:
                break
            aim *= share / reached
        return made


def price_of(work: Work) -> Callable[[Model], float]:
    """Seconds of a step, or bytes where only they are limited."""
    return partial(token_seconds, work.bench) if work.by_time else size_price


def find_worth(model: Model, work: Work) -> Worth:
    """What a model's parts are worth on some training text, and what they cost here."""
    price, say = price_of(work), work.watch.preparing
    whole = price(model)
    say("finding out what matters", 0.1)
    narrows = model.config.d_model >= 4 * FEWEST_CHANNELS and not obstacle(model)
    axes = along(model) if narrows else None
    before = work.bench.train_loss(model, TRIED)

    def grows(kept: Kept) -> float:
        return work.bench.train_loss(shrunk(model, kept), TRIED) - before

    worth = unit_worth(model, work, axes, grows)
    blocks = {}
    count = blocks_in(model)
    for number, (path, _) in enumerate(places(model)):
        say(f"trying without {path}", 0.2 + 0.5 * number / sum(count.values()))
        if count[root_of(path)] > FEWEST_BLOCKS:
            blocks[path] = grows({path: None})
    if narrows:
        say("trying a narrower stream", 0.7)
        worth[STREAM] = measured_worth(worth[STREAM], lambda stays: grows({STREAM: stays}))
    known = prices(model, price, stream=narrows)
    return Worth(model=model, units=worth, blocks=blocks, known=known, whole=whole, price=price)


def unit_worth(
    model: Model, work: Work, axes: Axes | None, grows: Callable[[Kept], float]
) -> dict[str, Tensor]:
    """What the loss grows by without each unit, by the score that was asked for."""
    score = work.request.score
    if score == "magnitude":
        return comparable(magnitude(model, axes), grows)
    found = importance(model, losses(model, work.bench), axes)
    if score == "loss":
        for number, path in enumerate(path for path in found if path != STREAM):
            work.watch.preparing(f"trying a smaller {path}", 0.1 + 0.1 * number / len(found))
            found[path] = measured_worth(found[path], alone(path, grows), UNTRIED)
    return found


def alone(path: str, grows: Callable[[Kept], float]) -> Callable[[Tensor], float]:
    """What the loss grows by where these units stay of one block, and all of the others."""
    return lambda stays: grows({path: stays})


def comparable(sizes: Mapping[str, Tensor], grows: Callable[[Kept], float]) -> dict[str, Tensor]:
    """Sizes as losses: the smaller halves of all blocks add up to what is lost without them."""
    order = {path: sizes_u.argsort() for path, sizes_u in sizes.items() if path != STREAM}
    stays = {path: order_u[len(order_u) // 2 :].sort().values for path, order_u in order.items()}
    gone = sum(
        float(sizes[path][order_u[: len(order_u) // 2]].sum()) for path, order_u in order.items()
    )
    factor = max(grows(stays), LEAST) / gone if gone else 1.0
    return {path: factor * sizes_u for path, sizes_u in sizes.items()}


def losses(model: Model, bench: Bench) -> Iterator[Tensor]:
    """Losses of some batches of training text, each with its gradient to come."""
    task = find_task(bench.recipe)
    batches = task.batches(bench.prepared.splits["train"].tokens)
    for number in range(BATCHES):
        yield task.loss(model, batches.at(number), None).total
