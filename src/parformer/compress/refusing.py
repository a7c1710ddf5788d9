"""What cannot be done to a model, however long one tries?

It is told before anything is written or measured.
"""

from __future__ import annotations

import torch

from parformer.compress.coding import coded_maps
from parformer.compress.replacing.places import candidates, find_places
from parformer.compress.request import CompressRequest
from parformer.compress.vocabulary import refuse
from parformer.data.fewer import fewer
from parformer.data.tokenizers import Tokenizer
from parformer.errors import ConfigError, InputError
from parformer.model import Model
from parformer.weights import named_tensors


def refuse_early(request: CompressRequest, model: Model, tokenizer: Tokenizer) -> None:
    """Refuse a model, or the first step that was named, for what it is."""
    place, first = str(request.model), (request.steps or ("quantize",))[0]
    if list(coded_maps(model)):
        raise ConfigError(
            f"{place!r} is quantized already, and that comes last; to {first} compress the model "
            "that it was made of"
        )
    for name, tensor in named_tensors(model).items():
        if not bool(torch.isfinite(tensor.float()).all()):
            raise InputError(
                f"{name!r} in {place!r} holds NaN or infinity, which have no range; take an "
                "earlier checkpoint"
            )
    if first == "vocabulary":
        refuse(model)
        fewer(tokenizer, range(tokenizer.size))
    if first == "replace":
        candidates(model, find_places(model, request.replacements), request.seed)
