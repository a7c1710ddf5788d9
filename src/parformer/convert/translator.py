"""A model with an encoder, as those who publish translators call it."""

from __future__ import annotations

from torch import Tensor, nn

from parformer.model import Model
from parformer.state import Output


class Translator(nn.Module):
    """A model with an encoder, called with its source first, and the tokens that it knows."""

    def __init__(self, model: Model, *, start: int, end: int, pad: int) -> None:
        super().__init__()
        self.model = model
        self.start, self.end, self.pad = start, end, pad

    def forward(self, source: Tensor, target: Tensor) -> Output:
        """Logits of what follows each token of `target` (batch, time) after `source`."""
        there = source != self.pad
        out: Output = self.model(target, source=source, source_padding=there)
        return out
