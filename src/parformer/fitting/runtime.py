"""How long does a model take where it will be deployed?

To build a model for another runtime takes seconds, so few are: the baseline, and the finalists.
What is looked at in between is reckoned by how many times as long the baseline takes there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from parformer.config import ModelConfig
from parformer.data.characters import Bytes
from parformer.errors import need
from parformer.events import Preparing
from parformer.export import gguf
from parformer.export.measuring import onnx_step
from parformer.export.onnx import make_files
from parformer.export.run import Runner
from parformer.fitting.request import Kind
from parformer.measure.device import Receipt
from parformer.measure.models import stand_in
from parformer.measure.readings import Meter, Reading, Readings, Step, measure_here
from parformer.model import Model
from parformer.search.sentences import Sentence, sentence_meter

OPSET = 18
LAUNCHES = 3
"""How often llama.cpp is started for each model; each time it tells the mean of many tokens."""


def runtime_meter(runtime: str, kind: Kind, source: int) -> Meter:
    """Who measures models in a runtime."""
    if runtime == "llama.cpp":
        return measure_llama_cpp
    if kind == "pairs":
        return sentence_meter(source, in_onnx)
    return partial(measure_here, runtime=partial(onnx_step, check=False))


def in_onnx(model: Model, source_bs: torch.Tensor, length: int, threads: int) -> Sentence:
    """A sentence as the export's own run.py writes it."""
    with tempfile.TemporaryDirectory() as place:
        for name, content in make_files(model, None, OPSET).items():
            (Path(place) / name).write_bytes(content)
        runner = Runner(place, threads)
    tokens = source_bs.numpy()
    mask = np.ones_like(tokens)

    def write() -> None:
        read = runner.run("encoder", {"input_ids": tokens, "attention_mask": mask})
        state = runner.start(1) | {"source": mask}
        state |= {name.removeprefix("present."): value for name, value in read.items()}
        last = 0
        for _ in range(length):
            logits, state = runner.step(np.array([[last]]), state)
            last = int(logits[0, -1].argmax())

    return write


def measure_llama_cpp(
    configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
) -> Readings:
    """Seconds of a token in llama.cpp, in a process of its own for each; memory is torch's."""
    library = need("gguf", extra="gguf")
    need("xllamacpp", extra="gguf")
    memory = measure_here(configs, replace(step, rounds=1))
    taken: dict[str, list[float]] = {name: [] for name in configs}
    with tempfile.TemporaryDirectory() as place:
        for number, (name, config) in enumerate(configs.items()):
            if progress is not None:
                progress(f"writing {name} for llama.cpp", number / len(configs))
            model = stand_in(config)
            gguf.refuse_homeless(model)
            gguf.fill(library, Path(place) / f".{number}.gguf", Bytes(), model, "f32")
        for _ in range(LAUNCHES):
            for number, name in enumerate(configs):
                told = gguf.ask_llama_cpp(
                    Path(place) / f".{number}.gguf", [[1] * 16], configs[name].max_len, step.threads
                )
                taken[name].append(float(told["seconds"]))
    first = fmean(taken[next(iter(configs))])
    readings = tuple(
        Reading.taken(
            name, some, fmean(some) / first, memory[name].peak_bytes, memory[name].resident_bytes
        )
        for name, some in taken.items()
    )
    return Readings(readings=readings, receipt=Receipt.issue("a token in llama.cpp, f32"))


def scaled(readings: Readings, times: float) -> Readings:
    """The same as if everything took so many times as long."""
    return replace(
        readings,
        readings=tuple(
            replace(
                one,
                median=one.median * times,
                low=one.low * times,
                high=one.high * times,
                samples=tuple(each * times for each in one.samples),
            )
            for one in readings.readings
        ),
    )
