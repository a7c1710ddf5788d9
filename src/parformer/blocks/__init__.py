"""Every block a pattern can name; importing this package registers them all."""

from parformer.blocks.attention import RotaryAttention, SelfAttention
from parformer.blocks.base import BLOCKS, Block, Context, Cost, Shape, Source, block, forget
from parformer.blocks.cross_attention import CrossAttention
from parformer.blocks.feed_forward import FeedForward
from parformer.blocks.groups import Bottleneck, Repeated
from parformer.blocks.identity import Identity
from parformer.blocks.lsra import LSRA
from parformer.blocks.ngrams import NGramMemory
from parformer.blocks.relative import RelativeAttention
from parformer.blocks.sru import SRU
from parformer.blocks.sru_attention import SRUAttention
from parformer.blocks.stack import Stack, StackState
from parformer.blocks.state import BlockState
from parformer.blocks.synthesizer import Synthesizer
from parformer.blocks.taps import Taps

__all__ = [
    "BLOCKS",
    "LSRA",
    "SRU",
    "Block",
    "BlockState",
    "Bottleneck",
    "Context",
    "Cost",
    "CrossAttention",
    "FeedForward",
    "Identity",
    "NGramMemory",
    "RelativeAttention",
    "Repeated",
    "RotaryAttention",
    "SRUAttention",
    "SelfAttention",
    "Shape",
    "Source",
    "Stack",
    "StackState",
    "Synthesizer",
    "Taps",
    "block",
    "forget",
]
