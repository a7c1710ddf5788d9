"""A model that is all architectures of a space at once.

Every layer runs its choices side by side and mixes them: X_l = Σ m_i F_i(X_{l−1}), where the
weights m come from a Gumbel-softmax over the layer's architecture parameters (PAR
Transformer, Mandava et al. 2020). Where only one choice is drawn, only that one runs.

>>> from parformer.config import preset
>>> from parformer.search.placement.choices import Choices
>>> supernet = build_supernet(preset("pocket"), Choices.uniform(4, "sfi"))
>>> str(supernet.extract([0, 1, 2, 1]).config.pattern)
's (f)x2'
"""

# b batch, t time, d width, l layer, c choice

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from parformer.blocks.base import Block, Context, Cost, Shape
from parformer.blocks.stack import Stack, make_block
from parformer.blocks.state import BlockState, GroupState, apart, together
from parformer.config import ModelConfig
from parformer.model import Model, build_from, realise, refill
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec
from parformer.search.placement.choices import Choices, Stretch
from parformer.weights import named_tensors


class Mixture(Block):
    """One layer of a supernet."""

    letter = "mixture"

    def __init__(self, choices: Iterable[nn.Module]) -> None:
        nn.Module.__init__(self)
        self.choices = nn.ModuleList(choices)
        self.weights_c: Tensor | None = None
        """How much of each choice this step takes."""
        self.drawn: int | None = None
        """The only choice that runs, if not all do."""

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        assert self.weights_c is not None, "mix the supernet before it runs"
        assert state is None or isinstance(state, GroupState)
        before = (None,) * len(self.choices) if state is None else state.blocks
        each = zip(self.weights_c.unbind(), self.choices, before, strict=True)
        sum_btd: Tensor | None = None
        after: list[BlockState | None] = []
        for i, (weight, block, remembered) in enumerate(each):
            if self.drawn not in (None, i):
                after.append(cast(Block, block).remember(x_btd, remembered, context))
                continue
            y_btd, kept = block(x_btd, remembered, context)
            after.append(kept)
            if self.drawn is None:
                y_btd = y_btd * weight
            elif weight.requires_grad:
                # times one: exactly the drawn block's answer, with the gradient of its probability
                y_btd = y_btd * (1 + (weight - weight.detach()))
            sum_btd = y_btd if sum_btd is None else sum_btd + y_btd
        assert sum_btd is not None
        return sum_btd, together(after)

    def recall(self, tensors: Mapping[str, Tensor]) -> BlockState:
        pairs = zip(self.choices, apart(tensors, len(self.choices)), strict=True)
        return GroupState(
            tuple(cast(Block, block).recall(own) if own else None for block, own in pairs)
        )

    @classmethod
    def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
        raise AssertionError("a mixture has no price of its own; its choices have")


class Supernet(Model):
    """Embedding and head of a model, and layers that hold every choice of a space."""

    def __init__(self, config: ModelConfig, space: Choices) -> None:
        super().__init__(config.replaced(pattern=space.nothing))
        self.space = space
        for stack, (_, stretch) in zip(self.stacks, self.named, strict=True):
            stack.blocks = nn.ModuleList(
                Mixture(make_block(stack.config, spec, {}) for spec in choices)
                for choices in stretch.of(space.layers)
            )

    @property
    def stacks(self) -> list[Stack]:
        """The encoder, where there is one, and the model's own stack."""
        return [self] if self.encoder is None else [self.encoder, self]

    @property
    def named(self) -> list[tuple[str, Stretch]]:
        """What the names of every stack's blocks begin with, and which layers they are."""
        names = ["encoder.blocks.", "blocks."][-len(self.stacks) :]
        return list(zip(names, self.space.stretches, strict=True))

    @property
    def mixtures(self) -> list[Mixture]:
        """Every layer's, in the order that picks count them."""
        return [cast(Mixture, layer) for stack in self.stacks for layer in stack.blocks]

    def mix(self, weights_lc: Tensor, drawn: Sequence[int] | None = None) -> None:
        """Set how much of each choice the next steps take; with `drawn`, only those run."""
        pairs = zip(self.mixtures, weights_lc.unbind(), strict=True)
        for i, (mixture, weights_c) in enumerate(pairs):
            mixture.weights_c = weights_c[: len(mixture.choices)]
            mixture.drawn = None if drawn is None else drawn[i]

    def extract(self, picks: Sequence[int]) -> Model:
        """The plain model of one choice per layer, with copies of this one's weights."""
        kept = {}
        for blocks, stretch in self.named:
            own = [(i, picks[layer]) for i, layer in enumerate(stretch.layers)]
            rows = stretch.of(self.space.layers)
            chosen = [(i, pick) for i, pick in own if rows[i][pick].letter != "i"]
            for place, (i, pick) in enumerate(chosen):
                kept[f"{blocks}{i}.choices.{pick}."] = f"{blocks}{place}."
        weights = {}
        for name, parameter in named_tensors(self).items():
            if not name.startswith(tuple(blocks for blocks, _ in self.named)):
                weights[name] = parameter.detach()
            for prefix, place_name in kept.items():
                if name.startswith(prefix):
                    weights[place_name + name.removeprefix(prefix)] = parameter.detach()
        return build_from(self.config.replaced(pattern=self.space.pattern(picks)), weights)


def build_supernet(
    config: ModelConfig,
    space: Choices,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Supernet:
    """A new supernet with random weights; the same seed gives the same weights."""
    return realise(outline(config, space), seed=seed, device=device, dtype=dtype)


def supernet_from(config: ModelConfig, space: Choices, weights: Mapping[str, Tensor]) -> Supernet:
    """A supernet with these weights, by the names that `named_parameters` gives."""
    return refill(outline(config, space), weights)


def outline(config: ModelConfig, space: Choices) -> Supernet:
    with torch.device("meta"):
        return Supernet(config, space)
