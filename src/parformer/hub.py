"""How is a model read from any folder that holds one, ours or Hugging Face's?

`pf.load` is this: a model folder of Parformer's, one that `parformer export --hub` wrote, or one of
a published architecture that `parformer.convert` knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parformer import convert, model
from parformer.config import ModelConfig
from parformer.errors import FolderError, ParformerError
from parformer.model import Model
from parformer.store import folder
from parformer.store.files import Json, read_json, read_plain

FORM = "parformer"
"""The kind of model that a folder with Parformer's own code says it is."""
WAYS_IN: Mapping[str, Callable[..., Model]] = {
    "gpt2": convert.from_gpt2,
    "llama": convert.from_llama,
    "bert": convert.from_bert,
    "albert": convert.from_albert,
    "mobilebert": convert.from_mobilebert,
    "distilbert": convert.from_distilbert,
}
HEADS = ("classifier.", "qa_outputs.", "pre_classifier.", "cls.", "predictions.", "sop_classifier.",
         "vocab_", "lm_head.")  # fmt: skip
"""How the names of weights begin that belong to a task."""
INDEX = "model.safetensors.index.json"
"""Where weights in several files are listed."""
CONFIG_LIMIT = 2**22
"""Bytes of a configuration."""


def load(path: str | Path, *, device: str | torch.device = "cpu", **changes: Any) -> Model:
    """A model from its folder; `changes` may replace fields that shape no weight."""
    place = Path(path)
    values = foreign_config(place)
    if values is None:
        return model.load(place, device=device, **changes)
    found = load_foreign(place, values).to(device)
    return model.reconfigure(found, **changes) if changes else found


def foreign_config(place: Path) -> Json | None:
    """What a folder of Hugging Face's says of its model; None where it is none."""
    try:
        values = json.loads(read_plain(place / folder.CONFIG, CONFIG_LIMIT))
    except (OSError, ValueError, RecursionError):
        return None  # whoever reads our own folders says what is wrong
    return values if isinstance(values, dict) and "model_type" in values else None


def load_foreign(place: Path, values: Json, *, heads: bool = True) -> Model:
    """A model as Hugging Face keeps it; nothing in the folder runs.

    Without `heads` it comes without those of any task, whatever they were for.
    """
    kind = str(values["model_type"])
    if kind != FORM and kind not in WAYS_IN:
        raise FolderError(
            f"{str(place)!r} holds a model of the kind {kind!r:.40}; known: {FORM}, "
            f"{', '.join(WAYS_IN)}"
        )
    weights = read_weights(place)
    if kind != FORM and not heads:
        weights = {name: w for name, w in weights.items() if not name.startswith(HEADS)}
    try:
        if kind != FORM:
            return WAYS_IN[kind](weights, values)
        ours = {name.removeprefix("model."): weight for name, weight in weights.items()}
        config = ModelConfig.from_dict(values[FORM])
        return model.build_from(config, once(config, ours))
    except ParformerError as error:
        raise FolderError(f"{str(place)!r} cannot be read: {error}") from None


def once(config: ModelConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights without the second names of those that are shared."""
    with torch.device("meta"):
        outline = Model(config)
    from parformer.weights import named_tensors

    known, every = named_tensors(outline), outline.state_dict()
    return {name: w for name, w in weights.items() if name in known or name not in every}


def read_weights(place: Path) -> dict[str, Tensor]:
    """The weights of a folder, in one file or in several."""
    file = place / folder.WEIGHTS
    if (place / INDEX).is_file() and not file.exists():
        names = set(read_json(place / INDEX).get("weight_map", {}).values())
        if any(Path(name).name != name for name in names):
            raise FolderError(f"{str(place / INDEX)!r} names files of other folders")
        return {
            n: t for name in sorted(names) for n, t in folder.read_tensors(place / name).items()
        }
    if file.is_symlink() or not file.is_file():
        other = (place / "pytorch_model.bin").exists()
        raise FolderError(
            f"{str(place)!r} has no {folder.WEIGHTS}"
            f"{'; pytorch_model.bin could run code and is not read' if other else ''}; fetch it "
            "whole, as safetensors"
        )
    return folder.read_tensors(file)
