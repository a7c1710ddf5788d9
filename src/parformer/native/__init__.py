"""How does a model write without Python? Its native form, and the decoder that runs it."""

from parformer.native.decoder import Decoder
from parformer.native.program import NoForm

__all__ = ["Decoder", "NoForm"]
