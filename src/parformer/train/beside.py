"""What learns beside the weights, has an optimizer of its own, and is no part of the model?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from parformer.train.optimizers import (
    load_state_tensors,
    make_adam,
    set_learning_rate,
    state_tensors,
)
from parformer.train.rules import MOMENTS


class Beside(nn.Module):
    """Numbers that say what is seen of a model's matrices while it trains."""

    rate: float
    optimizer: torch.optim.Optimizer

    def learn(self, numbers: Iterable[nn.Parameter], rate: float) -> None:
        """Let these numbers learn, by Adam."""
        self.rate = rate
        groups = [{"params": list(numbers), "keeps": ("step", *MOMENTS)}]
        self.optimizer = make_adam(torch.optim.Adam, groups, {"lr": rate})

    def after(self, share: float, heat: float) -> None:
        """Once this share of the updates is done, at such a share of the full rate."""
        set_learning_rate(self.optimizer, self.rate * heat)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.choose(share)
        if share >= 1:
            self.finish()

    def choose(self, share: float) -> None:
        """What is seen from here on."""

    def finish(self) -> None:
        """Make the weights what was seen of them."""

    def tensors(self) -> dict[str, Tensor]:
        """All that the next update depends on."""
        own = {name: numbers.detach().cpu() for name, numbers in self.named_parameters()}
        return own | state_tensors(self.optimizer, self)

    def restore(self, tensors: Mapping[str, Tensor], share: float) -> None:
        """Go on from what `tensors` gave, after this share of the updates."""
        own = dict(self.named_parameters())
        with torch.no_grad():
            for name, numbers in own.items():
                numbers.copy_(tensors[name])
        rest = {name: tensor for name, tensor in tensors.items() if name not in own}
        load_state_tensors(self.optimizer, self, rest)
        self.choose(share)
