"""Where do the first weights come from, if not from chance?

From a run, from a model folder, or from a folder of Hugging Face's. What the new model has and the
old one has not (a head for labels, a pooler) is drawn; heads of other tasks are left behind.
Everything else must be there and fit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from parformer.config import ModelConfig
from parformer.data.foreign import read_folder_tokenizer
from parformer.data.tokenizers import Tokenizer
from parformer.errors import ConfigError, FolderError
from parformer.hub import foreign_config, load_foreign
from parformer.model import Model, build, build_from, load
from parformer.recipe import TrainConfig
from parformer.train.run import open_run
from parformer.weights import named_tensors

DRAWN = ("pooler.", "label_head.")
"""What a new task may add."""
LEFT = ("head.", "pair_head.", "prior.", *DRAWN)
"""What a new task may do without."""
POOLING = Path("1_Pooling") / "config.json"
"""Where sentence encoders say how they pool."""


@dataclass(frozen=True, eq=False)
class Start:
    """A trained model to start from."""

    path: Path
    model: Model
    tokenizer: Tokenizer

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def identity(self) -> str:
        """SHA-256 of its weights."""
        whole = hashlib.sha256(b"parformer-weights-1\n")
        for name, tensor in sorted(named_tensors(self.model).items()):
            whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            flat = tensor.detach().cpu().contiguous().flatten()
            whole.update(flat.view(torch.uint8).numpy().data)
        return whole.hexdigest()


def open_start(path: Path) -> Start:
    """The model and the tokenizer of a run, a model folder or a Hugging Face folder."""
    if not path.is_dir():
        raise FolderError(
            f"there is no folder {str(path)!r} to start from; name a run, a model folder or a "
            "Hugging Face folder"
        )
    if (values := foreign_config(path)) is not None:
        model = load_foreign(path, values, heads=False)
        if pools_by_mean(path):
            config = model.config.replaced(pooler=True, pool="mean")
            kept = {n: t for n, t in named_tensors(model).items() if not n.startswith("pooler.")}
            model = build_from(config, kept)
        return Start(path, model, read_folder_tokenizer(path))
    opened = open_run(path)
    return Start(path, load(opened.folder), opened.need_tokenizer())


def pools_by_mean(path: Path) -> bool:
    """Whether a sentence encoder takes the mean of all tokens."""
    if not (path / POOLING).is_file():
        return False
    try:
        told = json.loads((path / POOLING).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and bool(told.get("pooling_mode_mean_tokens"))


def start_model(shape: ModelConfig, train: TrainConfig) -> Model:
    """A model with the weights of its start, and its own where the start has none."""
    start = open_start(Path(train.start))
    if train.start_identity and start.identity() != train.start_identity:
        raise FolderError(
            f"the weights in {train.start!r} are not those that the run was started with; restore "
            "them, or choose another --run"
        )
    model = build(shape, seed=train.seed)
    weights = taken(named_tensors(model), start, shape)
    return build_from(shape, weights)


def taken(wanted: Mapping[str, Tensor], start: Start, shape: ModelConfig) -> dict[str, Tensor]:
    """The weights that a model wants, from its start or as they were drawn.

    A head for labels is taken along where it tells the same labels.
    """
    given, known = named_tensors(start.model), start.config
    if (known.label_head, known.labels) != (shape.label_head, shape.labels):
        given = {n: t for n, t in given.items() if not n.startswith("label_head.")}
    found = {}
    for name, drawn in wanted.items():
        own = given.get(name)
        fits = own is not None and own.shape == drawn.shape
        if name.startswith(DRAWN):
            found[name] = own.detach() if own is not None and fits else drawn.detach()
            continue
        if own is None or not fits:
            shown = "nothing" if own is None else f"shape {tuple(own.shape)}"
            raise ConfigError(
                f"the start {str(start.path)!r} has {shown} for {name!r}, which has shape "
                f"{tuple(drawn.shape)} here; leave the model's fields as its start has them "
                f"(d_model {known.d_model}, vocab_size {known.vocab_size}, max_len {known.max_len})"
            )
        found[name] = own.detach()
    for name in given:
        if name not in wanted and not name.startswith(LEFT):
            raise ConfigError(
                f"the start {str(start.path)!r} has {name!r}, which this model has no place for; "
                "leave the model's pattern as it is"
            )
    return found
