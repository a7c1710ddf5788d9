"""SRU++ for translation, as the package sru's layers are wired for it (Lei 2021).

Its decoder has no cross-attention: the source stands before the text that attention looks at.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from parformer.blocks.base import Source
from parformer.blocks.linear import Linear
from parformer.blocks.stack import Stack
from parformer.config import ModelConfig
from parformer.convert.checkpoint import Checkpoint, Foreign, whole
from parformer.convert.sru import by_kind
from parformer.errors import ConfigError
from parformer.model import refill
from parformer.pattern import Pattern


class VectorTranslator(nn.Module):
    """Encoder and decoder of vectors, without vocabulary."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        assert config.source is not None
        self.source_in = Linear(width, config.d_model, bias=False)
        self.encoder = Stack(config.source)
        self.target_in = Linear(width, config.d_model, bias=False)
        self.decoder = Stack(config)

    def encode(self, source_bse: Tensor, padding: Tensor | None = None) -> Source:
        """What the encoder makes of a source; `padding` is true where there is something."""
        vectors_bsd, _ = self.encoder(self.source_in(source_bse), padding=padding)
        return Source(vectors_bsd, padding)

    def forward(
        self, source_bse: Tensor, target_bte: Tensor, padding: Tensor | None = None
    ) -> Tensor:
        """The decoder's vectors (batch, time, width) for those of source and target."""
        source = self.encode(source_bse, padding)
        y_btd: Tensor = self.decoder(self.target_in(target_bte), source=source)[0]
        return y_btd


def from_srupp_translation(weights: Mapping[str, Tensor], config: Foreign) -> VectorTranslator:
    """Two `SRUpp` of the package sru, encoder and decoder, of vectors (batch, time, embedding)."""
    if not config.get("project_input_first", True):
        raise ConfigError("project_input_first=false is not supported")
    heads, every = config.get("heads", 1), whole(config, "attention_every")
    after = "post" if config.get("post_layer_norm", True) else "pre"
    both = bool(config.get("bidirectional_encoder"))
    sides = {}
    for side, more, plain in (
        ("encoder", ",both" if both else "", "r[both]" if both else "r"),
        ("decoder", ",source", "r"),
    ):
        attend = f"a[heads={heads},norm={after}{more}]"
        count = whole(config, f"{side}_layers")
        sides[side] = "".join(plain if (i + 1) % every else attend for i in range(count))
    ours = ModelConfig(
        family="sru",
        pattern=f"{sides['encoder']} | {sides['decoder']}",  # type: ignore[arg-type]
        vocab_size=1,
        head="none",
        d_model=whole(config, "d"),
        d_attention=whole(config, "d_attention"),
        n_head=1,
        d_inner=whole(config, "d"),
        mem_len=config.get("mem_len", 1024),
    )
    source = Checkpoint(weights, "")
    got = source.linear("encoder.input_to_hidden", "source_in")
    got |= source.linear("decoder.input_to_hidden", "target_in")
    assert ours.pattern.encoder is not None
    got |= layers(source, ours.pattern.encoder, "encoder", ours.d_model)
    got |= layers(source, ours.pattern, "decoder", ours.d_model)
    source.refuse_leftovers()
    with torch.device("meta"):
        outline = VectorTranslator(ours, whole(config, "embedding"))
    return refill(outline, got)


def layers(source: Checkpoint, pattern: Pattern, side: str, width: int) -> dict[str, Tensor]:
    """The weights of one side, layer by layer."""
    got: dict[str, Tensor] = {}
    for i, spec in enumerate(pattern):
        cell, block = f"{side}.rnn_lst.{i}", f"{side}.blocks.{i}"
        module, attends = f"{cell}.transform_module", spec.letter == "a"
        if f"{cell}.scale_x" in source and bool((source.take(f"{cell}.scale_x") != 1).any()):
            raise ConfigError(f"rescale=true ({cell}.scale_x is not 1) is not supported")
        got[f"{block}.gate_weight"] = source.take(f"{cell}.weight_c")
        got[f"{block}.gate_bias"] = source.take(f"{cell}.bias")
        got |= source.linear(f"{module}.linear1", f"{block}.project")
        if attends:
            got |= source.linear(f"{module}.linear2", f"{block}.key_value")
            got[f"{block}.alpha"] = source.take(f"{module}.alpha")
        got |= source.linear(f"{module}.layer_norm", f"{block}.inner_norm")
        last = source.take(f"{module}.{'linear3' if attends else 'linear2'}.weight")
        got[f"{block}.out.weight"] = by_kind(last, width)
    return got
