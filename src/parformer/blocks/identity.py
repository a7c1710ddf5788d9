"""The block that does nothing: a search's way of saying that a layer is not needed."""

from __future__ import annotations

from torch import Tensor, nn

from parformer.blocks.base import Block, Context, Cost, Shape, block
from parformer.blocks.state import BlockState
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec


@block("i")
class Identity(Block):
    """The stream as it is."""

    def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
        nn.Module.__init__(self)

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        return x_btd, None

    @classmethod
    def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
        return Cost()
