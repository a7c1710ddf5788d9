"""How do weights and architecture take turns?

First the weights alone, while every choice is as likely as any other. Then, cycle by cycle,
most updates go to the weights and some to the architecture, each on a part of the text of
its own and with a memory of its own (PAR Transformer, Mandava et al. 2020, after FBNet).
Update number n depends on what a checkpoint holds and on n alone.
"""

# b batch, t time, l layer, c choice

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from parformer.config import ModelConfig
from parformer.data.batches import Tokens, number_for
from parformer.errors import ConfigError, FolderError
from parformer.recipe import Recipe, SearchConfig
from parformer.search.placement.architecture import (
    best_picks,
    expected_cost,
    gumbel_noise,
    mixing_weights,
    probabilities,
    steer,
    temperature_at,
)
from parformer.search.placement.choices import Choices
from parformer.search.placement.duties import Duty, duties_of, keep
from parformer.search.placement.prices import Prices
from parformer.search.placement.removal import needed_kinds, put_back, read_removal
from parformer.search.placement.result import Table
from parformer.search.placement.shares import share_out
from parformer.search.placement.supernet import Supernet, build_supernet, supernet_from
from parformer.search.placement.target import Target
from parformer.search.placement.timetable import Timetable, Turn
from parformer.store.files import Json
from parformer.train.checkpoint import Checkpoint
from parformer.train.distributed import Workers
from parformer.train.optimizers import load_state_tensors, make_adam, state_tensors
from parformer.train.rules import MOMENTS
from parformer.train.session import Session

OWN = "architecture/"
"""What begins the names of the architecture's tensors in a checkpoint."""
NUMBERS = "numbers"
USUAL, TRANSLATING = SearchConfig().choices, "sfi | scfi"
"""Choices where nobody names any: of a stack, and of a translator."""
TESTED = 2
"""Batches that the removal test looks at."""


class Architecture(nn.Module):
    """What the search learns: a number for every layer and choice, all alike at first."""

    known_lc: Tensor

    def __init__(self, space: Choices) -> None:
        super().__init__()
        most = max(map(len, space.layers))
        self.numbers_lc = nn.Parameter(torch.zeros(len(space.layers), most))
        known = [[c < len(choices) for c in range(most)] for choices in space.layers]
        self.register_buffer("known_lc", torch.tensor(known))

    def forward(self) -> Tensor:
        """The numbers, −∞ where a layer has fewer choices than others."""
        return self.numbers_lc.masked_fill(~self.known_lc, -math.inf)


class SearchSession(Session):
    """A supernet in training, and the architecture that it settles on."""

    model: Supernet

    def __init__(
        self,
        recipe: Recipe,
        tokens: Tokens,
        *,
        workers: Workers,
        start: Checkpoint | None = None,
        prices: Prices | None = None,
        target: Target | None = None,
    ) -> None:
        self.search, self.prices, self.target = search_of(recipe), prices, target
        self.space = space_of(recipe)
        own, others = share_out(tokens, recipe)
        self.architecture = Architecture(self.space).to(workers.device)
        super().__init__(recipe, own, workers=workers, start=start)
        self.other_reading = self.read(self.task.batches(others))
        self.timetable = Timetable.of(
            self.config.steps, self.search, self.reading.batches.per_epoch
        )
        self.adam = make_adam(
            torch.optim.Adam,
            [{"params": [self.architecture.numbers_lc], "keeps": ("step", *MOMENTS)}],
            {
                "lr": self.search.learning_rate,
                "betas": (self.search.beta1, self.search.beta2),
                "weight_decay": self.search.weight_decay,
            },
        )
        self.turn = Turn("weights", 0)
        """Whose update was the last one."""
        self.penalty = 0.0
        """How much of the loss one baseline's cost counts for, in this update."""
        self.steered = 0.0
        """The penalty that a limit has led to so far."""
        self.removal: Table | None = None
        """What the supernet would lose without each choice, once the warm-up is over."""
        self.picks = self.decode()
        self.changed = self.timetable.warmup
        """The update after which the pattern was last another one than before."""
        if start is not None:
            self._go_on_searching(start)

    def make_model(self, shape: ModelConfig, start: Checkpoint | None) -> Supernet:
        device = self.workers.device
        if start is None:
            return build_supernet(shape, self.space, seed=self.config.seed, device=device)
        return supernet_from(shape, self.space, start.weights).to(device)

    def wrap(self, objective: nn.Module) -> nn.Module:
        # Every process draws the same path and exchanges gradients itself: DDP would wait for
        # those of blocks that were not drawn.
        return objective

    def gathering(self, *, last: bool) -> AbstractContextManager[Any]:
        return nullcontext()

    def go_on(self, start: Checkpoint) -> None:
        (_, weights), (_, memory) = sort_out(start.optimizer), sort_out(start.memory)
        super().go_on(Checkpoint(start.step, start.weights, weights, memory, start.progress))

    def update(self, step: int) -> tuple[Tensor, Tensor]:
        self.turn = self.timetable.at(step)
        if step == self.timetable.warmup > 0 and self.search.guard and self.search.mode == "soft":
            self.removal = self.test_removal()
        self.penalty = self._penalty_at(step)
        drawn = None
        if self.search.mode == "soft" and step < self.timetable.warmup:
            # evenly and without noise: weights that change at every step keep the blocks from
            # learning what takes several of them together
            weights_lc = self.probabilities()
        else:
            weights_lc = mixing_weights(
                self.architecture(), self._noise(step), self.temperature(step), self.search.floor
            )
        if self.search.mode == "sampled":
            drawn = self.draw(weights_lc)
        if self.turn.kind == "weights":
            self.model.mix(weights_lc.detach(), drawn)
            loss = self.gradient(self.reading, self.turn.index, step)
            self.workers.average_gradients(self.parameters)
            return self.move(step, loss)
        return self._update_architecture(step, weights_lc, drawn)

    def draw(self, weights_lc: Tensor) -> list[int]:
        """The choice of every layer that weighs most; what is drawn of translators is one, too."""
        if not (duties := duties_of(self.space)):
            return cast("list[int]", weights_lc.argmax(-1).tolist())
        rows = self._own(weights_lc.detach())
        return keep(rows, duties, lambda rows: [row.index(max(row)) for row in rows])[0]

    @torch.no_grad()
    def test_removal(self) -> Table:
        """What the loss of the architecture's text grows by without each choice of each layer."""
        even_lc = self.probabilities()
        self.model.eval()
        whole = self._mixed_loss(even_lc)
        rows = []
        for layer, choices in enumerate(self.space.layers):
            row = []
            for choice in range(len(choices)):
                without_lc = even_lc.clone()
                without_lc[layer, choice] = 0.0
                without_lc[layer] /= without_lc[layer].sum()
                row.append(self._mixed_loss(without_lc) / whole - 1)
            rows.append(tuple(row))
        self.model.train()
        return tuple(rows)

    def _mixed_loss(self, weights_lc: Tensor) -> float:
        """The loss of a few batches of the architecture's text, nothing remembered before them."""
        self.model.mix(weights_lc)
        total = torch.zeros((), device=self.workers.device)
        for number in range(TESTED):
            batch = self.other_reading.batches.at(number, self.rows).to(total.device)
            with self.precision():
                total += self.task.loss(self.model, batch, None).total / TESTED
        return float(self.workers.average(total))

    def _update_architecture(
        self, step: int, weights_lc: Tensor, drawn: list[int] | None
    ) -> tuple[Tensor, Tensor]:
        # a leaf of its own, for every piece of the batch goes backward through it
        leaf_lc = weights_lc.detach().requires_grad_()
        self.model.mix(leaf_lc, drawn)
        for parameter in self.parameters:
            parameter.requires_grad_(False)
        try:
            loss = self.gradient(self.other_reading, self.turn.index, step)
        finally:
            for parameter in self.parameters:
                parameter.requires_grad_(True)
        assert leaf_lc.grad is not None
        weights_lc.backward(self.workers.average(leaf_lc.grad))  # type: ignore[no-untyped-call]
        if self.penalty:
            # as warm as the mixing, or the price would outweigh the loss while that is even
            cost = self.relative_cost(self.temperature(step))
            assert cost is not None
            (self.penalty * cost).backward()  # type: ignore[no-untyped-call]
        assert self.architecture.numbers_lc.grad is not None
        norm = self.architecture.numbers_lc.grad.norm()
        if bool(torch.isfinite(loss) & torch.isfinite(norm)):
            self.adam.step()
            if self.target is not None and self.target.limit is not None:
                now = self.relative_cost()
                assert now is not None
                rate = self.search.steering
                self.steered = steer(self.steered, float(now.detach()), self.target.limit, rate)
            self._notice_change(step + 1)
        self.adam.zero_grad()
        return loss, norm

    def _penalty_at(self, step: int) -> float:
        if self.target is None:
            return 0.0
        if self.target.limit is not None:
            return self.steered
        assert self.target.penalty is not None
        done = (step - self.timetable.warmup) / max(1, self.timetable.tuning)
        ramp = self.search.ramp
        return self.target.penalty * (min(1.0, max(0.0, done) / ramp) if ramp else 1.0)

    def _notice_change(self, ended: int) -> None:
        picks = self.decode()
        if self.space.pattern(picks) != self.space.pattern(self.picks):
            self.changed = ended
        self.picks = picks

    def _noise(self, step: int) -> Tensor:
        """The same in every process."""
        generator = torch.Generator().manual_seed(number_for(self.config.seed, "gumbel", step))
        numbers_lc = self.architecture.numbers_lc
        layers, choices = numbers_lc.shape
        return gumbel_noise((layers, choices), generator).to(numbers_lc)

    def temperature(self, step: int) -> float:
        """Falls once the architecture moves."""
        done = max(0, step - self.timetable.warmup) / max(1, self.timetable.tuning)
        return temperature_at(done, self.search.temperature, self.search.final_temperature)

    def relative_cost(self, temperature: float = 1.0) -> Tensor | None:
        """What the architecture is expected to cost, of the interleaved model's."""
        if self.prices is None:
            return None
        chances_lc = probabilities(self.architecture() / temperature)
        relative_lc = self.prices.relative_lc().to(chances_lc)
        return expected_cost(chances_lc, relative_lc, self.prices.relative_fixed)

    def probabilities(self) -> Tensor:
        return probabilities(self.architecture())

    def table(self) -> Table:
        """How likely each choice is by now, for people and files."""
        return self._own(self.probabilities())

    def decode(self) -> list[int]:
        """The likeliest choice of every layer, within the limit if there is one."""
        rows = self._own(self.architecture().detach().log_softmax(-1))
        guard = self.search.guard
        return decode(rows, self.space, self.prices, self.target, self.removal, guard)[0]

    def _own(self, values_lc: Tensor) -> Table:
        """Rows as wide as their layers have choices."""
        rows = zip(values_lc.tolist(), self.space.layers, strict=True)
        return tuple(tuple(row[: len(choices)]) for row, choices in rows)

    def settled(self, step: int) -> bool:
        if step >= self.config.steps:
            return True
        still = step - self.changed
        return step > self.timetable.warmup and still >= self.search.patience * max(
            1, self.timetable.tuning
        )

    def checkpoint(self, step: int, progress: Json) -> Checkpoint:
        plain = super().checkpoint(step, progress)
        memory, position = self.other_reading.memory()
        own = state_tensors(self.adam, self.architecture)
        own[NUMBERS] = self.architecture.numbers_lc.detach()
        return Checkpoint(
            step,
            plain.weights,
            {**plain.optimizer, **{OWN + name: tensor for name, tensor in own.items()}},
            {**plain.memory, **{OWN + name: tensor for name, tensor in memory.items()}},
            {
                **plain.progress,
                "architecture_position": position,
                "changed": self.changed,
                "picks": self.picks,
                "steered": self.steered,
                "removal": self.removal,
            },
        )

    def _go_on_searching(self, start: Checkpoint) -> None:
        (own, _), (memory, _) = sort_out(start.optimizer), sort_out(start.memory)
        numbers_lc, given_lc = self.architecture.numbers_lc, own.pop(NUMBERS, None)
        if given_lc is None or given_lc.shape != numbers_lc.shape:
            raise FolderError(
                f"the checkpoint holds no architecture of {tuple(numbers_lc.shape)}; "
                "it belongs to another run"
            )
        with torch.no_grad():
            numbers_lc.copy_(given_lc)
        load_state_tensors(self.adam, self.architecture, own)
        progress = start.progress
        self.other_reading.restore(self.model, memory, int(progress["architecture_position"]))
        self.changed, self.steered = int(progress["changed"]), float(progress["steered"])
        self.picks = [int(pick) for pick in progress["picks"]]
        if progress["removal"] is not None:
            self.removal = read_removal(progress["removal"])


def sort_out(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a checkpoint has of the architecture, by its own names, and what is the weights'."""
    own = {n.removeprefix(OWN): t for n, t in tensors.items() if n.startswith(OWN)}
    return own, {n: t for n, t in tensors.items() if not n.startswith(OWN)}


def decode(
    log_probabilities: Sequence[Sequence[float]],
    space: Choices,
    prices: Prices | None,
    target: Target | None,
    removal: Table | None,
    guard: float,
) -> tuple[list[int], dict[int, Duty]]:
    """The likeliest architecture, within the limit if there is one, and who was told to do what.

    A layer keeps the kind of block that the removal test found it to need, and a translator the
    blocks that make it one.
    """
    if removal is not None and guard:
        needs = needed_kinds(removal, space, guard)
        log_probabilities = put_back(log_probabilities, needs, space)
    return keep(log_probabilities, duties_of(space), lambda rows: likeliest(rows, prices, target))


def likeliest(
    log_probabilities: Sequence[Sequence[float]], prices: Prices | None, target: Target | None
) -> list[int]:
    if prices is None or target is None or target.limit is None:
        flat = [[0.0] * len(row) for row in log_probabilities]
        return best_picks(log_probabilities, flat)
    return best_picks(log_probabilities, prices.choices, prices.room(target.limit))


def search_of(recipe: Recipe) -> SearchConfig:
    assert recipe.search is not None, "a recipe of a training"
    return recipe.search


def space_of(recipe: Recipe) -> Choices:
    search, pattern = search_of(recipe), recipe.model.pattern
    usual = pattern.encoder is not None and search.choices == USUAL
    sides = (TRANSLATING if usual else search.choices).split("|")
    if pattern.encoder is None and len(sides) == 1:
        return Choices.uniform(search.layers or len(pattern), search.choices)
    if pattern.encoder is None or len(sides) != 2 or not all(side.strip() for side in sides):
        raise ConfigError(
            f"search.choices {search.choices!r} are not for {str(pattern)!r}: write those of a "
            "translator as encoder | decoder, such as 'sfi | scfi', and those of one stack as 'sfi'"
        )
    layers = (search.encoder_layers or len(pattern.encoder), search.layers or len(pattern))
    return Choices.of_sides(list(zip(layers, sides, strict=True)))
