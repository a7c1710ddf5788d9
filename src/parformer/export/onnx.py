"""How does a model become a folder that onnxruntime runs by itself?

The folder holds one graph (`model.onnx`), or two for a translator (`encoder.onnx`,
`decoder.onnx`), the tokenizer, `parformer.json` with what a runtime has to know, and `run.py`,
which needs onnxruntime and numpy alone. It is written only if it computes what the model computes.
"""

# b batch, t time, p past

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from parformer.blocks.groups import placed
from parformer.blocks.synthesizer import Synthesizer
from parformer.data.tokenizers import Tokenizer
from parformer.errors import ConfigError, need
from parformer.evaluate.perplexity import at_rest
from parformer.export.coded import as_operators, hurried
from parformer.export.graphs import HINTS, Decoder, Encoder, Layout, Reader
from parformer.model import Model
from parformer.store.files import Json
from parformer.store.folder import write_folder
from parformer.train.run import Opened

FORMAT = "parformer-onnx-1"
OPSETS = range(18, 24)
"""That the exporter can write and onnxruntime reads."""
FARTHEST = 0.05
"""How far logits may move, of their own spread, where inputs become eight bits."""
LARGEST = 2**31 - 2**20
"""Bytes of one graph: its format has no more room."""
BATCH, TIME, PAST, SOURCE = 2, 3, 4, 5
"""Sizes that a graph is traced with; it holds for all others."""


def make_files(model: Model, tokenizer: Tokenizer | None, opset: int) -> dict[str, bytes]:
    """Everything that the folder holds."""
    if opset not in OPSETS:
        raise ConfigError(
            f"opset {opset} is not among those that can be written; "
            f"take one from {OPSETS.start} to {OPSETS.stop - 1}"
        )
    if model.config.causal and model.config.head != "lm" and model.label_head is None:
        raise ConfigError(
            f"a causal model with head {model.config.head!r} tells nothing; build it with head='lm'"
        )
    need("onnx", extra="onnx")
    need("onnxscript", extra="onnx")
    need("onnxruntime", extra="onnx")
    with at_rest_for_export(model), as_operators(model):
        graphs, told = traced(model, opset)
    if tokenizer is not None:
        told["size"] = tokenizer.size
        if model.label_head is not None and tokenizer.has("cls") and tokenizer.has("sep"):
            told |= {"before": [tokenizer.special("cls")], "after": [tokenizer.special("sep")]}
    files = {f"{name}.onnx": graph for name, graph in graphs.items()}
    for name, content in files.items():
        if len(content) > LARGEST:
            raise ConfigError(f"{name} would have {len(content):,} bytes, {LARGEST:,} are possible")
    files["parformer.json"] = json.dumps(told, indent=2).encode()
    files["run.py"] = Path(__file__).with_name("run.py").read_bytes()
    if tokenizer is not None:
        files["tokenizer.json"] = tokenizer.to_json().encode()
    if model.prior is not None and model.prior.table is not None:
        files["counts.bin"] = model.prior.table.cpu().numpy().tobytes()
    return files


def traced(model: Model, opset: int) -> tuple[dict[str, bytes], Json]:
    """The graphs by name, and what a runtime has to know of them."""
    config = model.config
    told: Json = {
        "format": FORMAT,
        "model": config.to_dict(),
        "size": config.vocab_size,
        "sight": config.sight(config.vocab_size),
        "recall": config.recall,
        "window": config.max_len if config.numbered else 0,
        "memory": config.memory or config.step_len,
        **{name: getattr(config, name) for name in ("start", "end", "pad")},
        "state": [],
    }
    lengths = [b.sizes.length for _, _, b in placed(model) if isinstance(b, Synthesizer)]
    if not config.causal or model.label_head is not None:
        told |= {"kind": "encoder", "graphs": ["model"], "labels": list(config.labels)}
        return {"model": trace_reader(model, opset)}, told
    if lengths:
        told["window"] = min(lengths + [told["window"]] * bool(told["window"]))
    layout = Layout(model)
    told["state"] = [slot.to_dict() for slot in layout.slots]
    if model.encoder is None:
        told |= {"kind": "decoder", "graphs": ["model"]}
        return {"model": trace_decoder(model, layout, opset)}, told
    told |= {"kind": "translator", "graphs": ["encoder", "decoder"], "memory": 2**31}
    return {
        "encoder": trace_encoder(model, layout, opset),
        "decoder": trace_decoder(model, layout, opset),
    }, told


def trace_decoder(model: Model, layout: Layout, opset: int) -> bytes:
    batch, time = "batch", "time"
    past = layout.start(BATCH, PAST)
    vocab = model.config.vocab_size
    hints = []
    if model.prior is not None:
        kinds = (model.config.counts, model.config.recall, model.config.recall)
        shapes = ((BATCH, TIME, vocab), (BATCH, TIME), (BATCH, TIME))
        hints = [
            (torch.zeros(shape) if number == 0 else torch.zeros(shape, dtype=torch.long))
            if kind
            else None
            for number, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
        ]
    tokens = torch.zeros(BATCH, TIME, dtype=torch.long)
    mask = torch.ones(BATCH, PAST + TIME, dtype=torch.long)
    source = torch.ones(BATCH, PAST, dtype=torch.long) if model.encoder is not None else None
    places = torch.arange(PAST, PAST + TIME).repeat(BATCH, 1)
    grows = [
        {0: batch, **{1 + n: growth(slot.name) for n, size in enumerate(slot.shape) if size < 0}}
        for slot in layout.slots
    ]
    named = [name for name, hint in zip(HINTS, hints, strict=False) if hint is not None]
    slots = [slot.name for slot in layout.slots]
    return trace(
        Decoder(model, layout),
        (tokens, places, mask, past, hints, source),
        (
            {0: batch, 1: time},
            {0: batch, 1: time},
            {0: batch, 1: "past+time"},
            grows,
            [None if hint is None else {0: batch, 1: time} for hint in hints],
            None if source is None else {0: batch, 1: "source"},
        ),
        [
            *("input_ids", "position_ids", "attention_mask"),
            *(f"past_key_values.{name}" for name in slots),
            *named,
            *(("encoder_attention_mask",) if source is not None else ()),
        ],
        ["logits", *(f"present.{name}" for name in slots)],
        opset,
    )


def growth(name: str) -> str:
    return "source" if ".encoder." in f".{name}." else "past"


def trace_encoder(model: Model, layout: Layout, opset: int) -> bytes:
    tokens = torch.zeros(BATCH, SOURCE, dtype=torch.long)
    shape = {0: "batch", 1: "source"}
    names = [f"present.{slot.name}" for slot in layout.slots if ".encoder." in f".{slot.name}."]
    inputs = ["input_ids", "attention_mask"]
    return trace(
        Encoder(model), (tokens, torch.ones_like(tokens)), (shape, shape), inputs, names, opset
    )


def trace_reader(model: Model, opset: int) -> bytes:
    tokens = torch.zeros(BATCH, SOURCE, dtype=torch.long)
    shape = {0: "batch", 1: "time"}
    reader, given = Reader(model), [tokens, torch.ones_like(tokens)]
    names = ["input_ids", "attention_mask"]
    if model.config.token_types:
        given.append(torch.zeros_like(tokens))
        names.append("token_type_ids")
    with torch.no_grad():
        outputs = list(reader(*given))
    return trace(reader, tuple(given), (shape,) * len(given), names, outputs, opset)


def trace(
    module: nn.Module,
    given: tuple[Any, ...],
    dynamic: tuple[Any, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    opset: int,
) -> bytes:
    """One graph, as its format has it."""
    from parformer.export.scan import recurrence

    table: dict[Any, Any] = {}
    if hasattr(torch.ops.parformer, "recurrence"):
        table[torch.ops.parformer.recurrence.default] = recurrence
    with quietly():
        program = torch.onnx.export(
            module.eval(),
            given,
            dynamo=True,
            opset_version=opset,
            dynamic_shapes=dynamic,
            input_names=list(inputs),
            output_names=list(outputs),
            custom_translation_table=table,
            verbose=False,
        )
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    return content


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """The exporter speaks of everything that it does."""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "onnx_ir", "torch.onnx")]
    levels = [logger.level for logger in loggers]
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextlib.contextmanager
def at_rest_for_export(model: Model) -> Iterator[None]:
    """No gradients, and sines made in advance: what a graph makes belongs to the graph."""
    if model.config.sinusoidal:
        like = next(model.parameters())
        for words in (model.embedding, model.source_embedding):
            if words is not None:
                words.waves(model.config.max_len, like)
    with at_rest(model), torch.inference_mode(False), torch.no_grad():
        yield


def write(path: Path, opened: Opened, model: Model, opset: int) -> tuple[Json, Json]:
    """Write the folder if its graphs agree with the model; what was compared, and how fast."""
    from parformer.export.parity import check_onnx, time_onnx
    from parformer.export.run import Runner

    files = make_files(model, opened.tokenizer, opset)
    with tempfile.TemporaryDirectory() as place:
        put_all(place, files)
        with as_operators(model) as coded:
            compared = check_onnx(model, Runner(place, threads=1))
        if coded:
            quick = {
                name: hurried(file) if name.endswith(".onnx") else file
                for name, file in files.items()
            }
            compared |= take_quick(model, place, files, quick)
        timed = time_onnx(model, place)
    files["receipt.json"] = json.dumps({"parity": compared, "latency": timed}, indent=2).encode()
    write_folder(path, FORMAT, files)
    return compared, timed


def take_quick(model: Model, place: str, files: dict[str, bytes], quick: dict[str, bytes]) -> Json:
    """Have the inputs of coded matrices rounded, if that changes little; by how much, told."""
    from parformer.export.parity import moved
    from parformer.export.run import Runner

    exact = Runner(place, threads=1)
    with tempfile.TemporaryDirectory() as other:
        put_all(other, quick)
        far = moved(model, exact, Runner(other, threads=1))
    taken = far <= FARTHEST
    if taken:
        files |= quick
        put_all(place, quick)
    return {"inputs_of_8_bits": taken, "moved_by_rounded_inputs": far}


def put_all(place: str, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (Path(place) / name).write_bytes(content)
