"""Every block a pattern can name; importing this package registers them all."""

from parformer.blocks.attention import SelfAttention
from parformer.blocks.base import BLOCKS, Block, BlockState, Context, Cost, Shape, block, forget
from parformer.blocks.feed_forward import FeedForward
from parformer.blocks.identity import Identity
from parformer.blocks.sru import SRU
from parformer.blocks.sru_attention import SRUAttention

__all__ = [
    "BLOCKS",
    "SRU",
    "Block",
    "BlockState",
    "Context",
    "Cost",
    "FeedForward",
    "Identity",
    "SRUAttention",
    "SelfAttention",
    "Shape",
    "block",
    "forget",
]
