"""What can one ask of an export, and what comes of it?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from parformer.errors import ConfigError
from parformer.events import Listener, Watch, nobody
from parformer.records import Record
from parformer.store.files import Json
from parformer.verbs import requested

if TYPE_CHECKING:
    from parformer.model import Model


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """A trained model, and the form that it is to leave in."""

    model: Path
    """Folder of a run or of a model."""
    onnx: Path | None = None
    """Folder for graphs that onnxruntime runs."""
    hub: Path | None = None
    """Folder that Hugging Face's transformers loads."""
    gguf: Path | None = None
    """File for llama.cpp and everything built on it."""
    type: Literal["f32", "f16", "q8_0", "q4_0"] = "f32"
    """Of the numbers in that file."""
    opset: int = 18
    """Of ONNX's operators."""

    def __post_init__(self) -> None:
        if self.onnx is None and self.hub is None and self.gguf is None:
            raise ConfigError("say what to export to: --onnx FOLDER, --hub FOLDER or --gguf FILE")


@dataclass(frozen=True, slots=True)
class Exported(Record):
    """What was written, how far it agrees, and how fast it is."""

    kind: str
    path: str
    parity: Json
    latency: Json


def export(
    request: ExportRequest | None = None, *, watch: Listener = nobody, **given: Any
) -> tuple[Exported, ...]:
    """Write a model in forms that others run; each is compared with the model in the act."""
    asked = requested(ExportRequest, request, given)
    from parformer.model import load
    from parformer.train.run import open_run

    opened = open_run(Path(asked.model))
    model, told = load(opened.folder), Watch(watch)
    found = []
    if asked.onnx is not None:
        from parformer.export import onnx

        told.notice("tracing the model and comparing the graphs with it")
        found.append(
            Exported("onnx", str(asked.onnx), *onnx.write(asked.onnx, opened, model, asked.opset))
        )
    plain = without_codes(model, told) if asked.hub or asked.gguf else model
    if asked.hub is not None:
        from parformer.export import hub

        told.notice("writing for transformers and comparing what it computes")
        found.append(Exported("hub", str(asked.hub), *hub.write(asked.hub, opened, plain)))
    if asked.gguf is not None:
        from parformer.export import gguf

        told.notice("writing for llama.cpp and comparing what it computes")
        tokenizer = opened.need_tokenizer()
        found.append(
            Exported("gguf", str(asked.gguf), *gguf.write(asked.gguf, tokenizer, plain, asked.type))
        )
    return tuple(found)


def without_codes(model: Model, told: Watch) -> Model:
    """What others know no codes for: the numbers that they stand for."""
    from parformer.compress.coding import coded_maps, decoded

    if not any(coded_maps(model)):
        return model
    told.notice(
        "matrices in few bits are written as the numbers they stand for; --onnx keeps their bits, "
        "--gguf FILE --type q8_0 or q4_0 has its own"
    )
    return decoded(model)
