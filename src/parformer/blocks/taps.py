"""Who listens to blocks, and what do they hear?

Attention weights, and what goes into a block and comes out of it, by its place in the stack. A
block inside a group has the group's place before its own, as states are named: `2.0` is the first
inside the third, and each round of `{ }` counts on. An encoder's places begin with `encoder`.

>>> import parformer as pf, torch
>>> model, taps = pf.build(pf.preset("pocket", pattern="f{sf}x2")), Taps("weights", "output")
>>> out = model(torch.arange(7)[None], taps=taps)
>>> list(taps.heard), list(taps.having("weights")), taps.heard["1.2"]["weights"].shape
(['0', '1.0', '1.1', '1.2', '1.3', '1'], ['1.0', '1.2'], torch.Size([1, 4, 7, 7]))

Nobody pays who does not listen: without taps no block takes another way than before.
"""

# b batch, t time, n keys, h heads, g key-value heads, k head width

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from parformer.errors import ConfigError

HEARD = ("weights", "input", "output")
"""What can be heard: attention weights (batch, heads, time, keys), before dropout; the stream
(batch, time, width) as a block reads it, and as it leaves it."""


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Taps:
    """What the blocks of a model say in a step; a later step overwrites an earlier one."""

    wanted: frozenset[str]
    gradients: bool
    """Whether a loss may be made of what is heard; else it is cut off from the graph."""
    place: str
    """Whose these are: the empty text stands for a whole model."""
    heard: dict[str, dict[str, Tensor]] = field(repr=False)
    """By place, and by what it is."""

    def __init__(
        self,
        *wanted: str,
        gradients: bool = False,
        place: str = "",
        heard: dict[str, dict[str, Tensor]] | None = None,
    ) -> None:
        for name in wanted:
            if name not in HEARD:
                raise ConfigError(f"{name!r} cannot be heard; known: {', '.join(HEARD)}")
        object.__setattr__(self, "wanted", frozenset(wanted or HEARD))
        object.__setattr__(self, "gradients", gradients)
        object.__setattr__(self, "place", place)
        object.__setattr__(self, "heard", {} if heard is None else heard)

    def at(self, place: str | int) -> Taps:
        """The same for a block, or a stack, inside of what these are about."""
        inner = f"{self.place}.{place}" if self.place else str(place)
        return Taps(*self.wanted, gradients=self.gradients, place=inner, heard=self.heard)

    def tell(self, what: str, tensor: Tensor) -> None:
        """Whoever listens hears it, if that was asked for."""
        if what in self.wanted:
            kept = tensor if self.gradients else tensor.detach()
            self.heard.setdefault(self.place, {})[what] = kept

    def having(self, what: str) -> Mapping[str, Tensor]:
        """Of all places that have said it, what they said, in the order of the stack."""
        return {place: told[what] for place, told in self.heard.items() if what in told}


def attend_openly(
    q_bhtk: Tensor,
    k_bgnk: Tensor,
    v_bgnk: Tensor,
    bias_bhtn: Tensor | None,
    dropout: float = 0.0,
    taps: Taps | None = None,
) -> Tensor:
    """Attention with every step in the open: for whoever listens, and for the bias's gradient.

    Queries are scaled already; the bias is added to the scores, −inf where a key is not seen.
    """
    if k_bgnk.shape[1] != q_bhtk.shape[1]:
        groups = q_bhtk.shape[1] // k_bgnk.shape[1]
        k_bgnk, v_bgnk = (x.repeat_interleave(groups, dim=1) for x in (k_bgnk, v_bgnk))
    scores_bhtn = q_bhtk @ k_bgnk.transpose(-1, -2)
    if bias_bhtn is not None:
        scores_bhtn = scores_bhtn + bias_bhtn
    weights_bhtn = torch.softmax(scores_bhtn, dim=-1)
    if taps is not None:
        taps.tell("weights", weights_bhtn)
    if dropout:
        weights_bhtn = F.dropout(weights_bhtn, dropout)
    return weights_bhtn @ v_bgnk
