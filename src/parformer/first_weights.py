"""What are a model's weights before the first update?

As each family's authors draw them, or scaled to each matrix's inputs. Blocks that have a way of
their own draw first; the rest goes by names: norms at 1, biases at 0, all else normal.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from parformer.blocks.base import Block
from parformer.blocks.places import sinusoids
from parformer.config import ModelConfig
from parformer.head import FlatHead


@torch.no_grad()
def initialise(model: nn.Module, config: ModelConfig, generator: torch.Generator) -> None:
    """First weights, the same for the same generator."""
    drawn: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, Block):
            drawn |= module.draw(generator)
        elif isinstance(module, FlatHead):
            drawn |= module.draw()
    draw = draw_scaled if config.first_weights == "scaled" else draw_as_family
    for name, parameter in model.named_parameters():
        if parameter in drawn:
            continue
        if name.split(".")[-1] in ("bias", "cluster_bias"):
            parameter.zero_()
        else:
            draw(name, parameter, config, generator)


def draw_as_family(
    name: str, parameter: nn.Parameter, config: ModelConfig, generator: torch.Generator
) -> None:
    """A weight that is no bias, as the family's authors draw it."""
    inside = within_blocks(name)
    if config.draws == "xavier" and "norm" not in name:
        draw_xavier(name, parameter, config, generator)
    elif "norm" in name and config.draws == "noisy-norms":
        parameter.normal_(1.0, config.init_std, generator=generator)
    elif "norm" in name:
        parameter.fill_(1.0)
    elif config.draws == "uniform" and not inside:
        if "projection" in name:
            nn.init.xavier_uniform_(parameter, generator=generator)
        else:
            reach = math.sqrt(3 / config.d_model)
            parameter.uniform_(-reach, reach, generator=generator)
    elif "projection" in name:
        parameter.normal_(0.0, config.projection_std, generator=generator)
    elif inside and name.endswith("out.weight") and config.draws == "shrinking":
        # GPT-2 lets the sum of many residual blocks start no larger than that of one.
        spread = config.init_std / math.sqrt(len(config.pattern))
        parameter.normal_(0.0, spread, generator=generator)
    else:
        parameter.normal_(0.0, config.init_std, generator=generator)


def draw_xavier(
    name: str, parameter: nn.Parameter, config: ModelConfig, generator: torch.Generator
) -> None:
    """As fairseq draws its Transformers; queries, keys and values as one matrix."""
    if within_blocks(name) and parameter.dim() > 1:
        # of a source's, keys and values are one matrix and queries another
        gain = {"query": math.sqrt(1 / 2), "key_value": math.sqrt(3 / 4)}
        nn.init.xavier_uniform_(parameter, gain.get(name.split(".")[-2], 1.0), generator=generator)
    elif "projection" in name:
        nn.init.xavier_uniform_(parameter, generator=generator)
    else:
        parameter.normal_(0.0, config.d_model**-0.5, generator=generator)
        if name.startswith(EMBEDDINGS) and config.pad >= 0:
            parameter[config.pad].zero_()


EMBEDDINGS = ("embedding.words.", "source_embedding.words.")


def draw_scaled(
    name: str, parameter: nn.Parameter, config: ModelConfig, generator: torch.Generator
) -> None:
    """A weight that is no bias, such that what goes through it keeps its size.

    What blocks write begins at zero: the stream of a deep stack is that of a shallow one then, and
    no rate has to be small for its depth. Tables keep `init_std`, as heads share them.
    """
    inside = within_blocks(name)
    if "norm" in name:
        parameter.fill_(1.0)
    elif parameter.dim() < 2 or (inside and name.endswith("out.weight")):
        parameter.zero_()
    elif name == "embedding.positions" and parameter.shape[1] % 2 == 0:
        # neighbours begin alike, so that attention soon finds the token before
        count, width = parameter.shape
        waves = sinusoids(count, width, clamp_len=-1).flip(0)
        parameter.copy_(math.sqrt(2) * config.init_std * waves)
    elif inside or "projection" in name:
        spread = 1 / math.sqrt(parameter.shape[1])
        parameter.normal_(0.0, spread, generator=generator)
    else:
        parameter.normal_(0.0, config.init_std, generator=generator)


def within_blocks(name: str) -> bool:
    """Whether a weight belongs to a block, of the decoder or of the encoder."""
    return name.startswith(("blocks.", "encoder.blocks."))
