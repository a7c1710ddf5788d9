"""Which model is in a folder of Hugging Face's?

`config.json` says what it is, `model.safetensors` has the weights, alone or in parts. What other
frameworks keep, and what could run code, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from parformer.convert.albert import from_albert
from parformer.convert.bert import from_bert
from parformer.convert.checkpoint import Foreign
from parformer.convert.distilbert import from_distilbert
from parformer.convert.mobilebert import from_mobilebert
from parformer.errors import FolderError, ParformerError
from parformer.model import Model
from parformer.store.files import read_json
from parformer.store.folder import read_tensors

ENCODERS: Mapping[str, Callable[[Mapping[str, Tensor], Foreign], Model]] = {
    "bert": from_bert,
    "distilbert": from_distilbert,
    "albert": from_albert,
    "mobilebert": from_mobilebert,
}
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
HEADS = ("classifier.", "qa_outputs.", "pre_classifier.", "cls.", "predictions.", "sop_classifier.",
         "vocab_")  # fmt: skip
"""What belongs to a task, and not to the encoder."""


def is_hub_folder(path: Path) -> bool:
    """Whether a folder is one of Hugging Face's rather than one of ours."""
    config = path / CONFIG
    if not config.is_file() or (path / "manifest.json").is_file():
        return False
    return "model_type" in read_json(config)


def read_hub_folder(path: Path) -> Model:
    """The encoder in a Hugging Face folder, without the heads of other tasks."""
    config = read_json(path / CONFIG)
    kind = str(config.get("model_type"))
    if kind not in ENCODERS:
        raise FolderError(
            f"{str(path)!r} holds a model of type {kind!r}; known: {', '.join(ENCODERS)}"
        )
    weights = {n: t for n, t in read_weights(path).items() if not n.startswith(HEADS)}
    try:
        return ENCODERS[kind](weights, config)
    except ParformerError as error:
        raise FolderError(f"{str(path)!r}: {error}") from None


def read_weights(path: Path) -> dict[str, Tensor]:
    if (path / WEIGHTS).is_file():
        return read_tensors(path / WEIGHTS)
    if not (path / INDEX).is_file():
        other = " (pytorch_model.bin could run code and is not read)"
        raise FolderError(
            f"{str(path)!r} has no {WEIGHTS}"
            f"{other if (path / 'pytorch_model.bin').exists() else ''}; save it with "
            "safe_serialization=True"
        )
    names = set(read_json(path / INDEX).get("weight_map", {}).values())
    if any("/" in name or "\\" in name for name in names):
        raise FolderError(f"{str(path / INDEX)!r} names files of other folders")
    return {n: t for name in sorted(names) for n, t in read_tensors(path / name).items()}
