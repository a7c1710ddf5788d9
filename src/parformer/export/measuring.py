"""How fast is a step where a model will really run? For `measure --runtime onnx`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from parformer.blocks.base import Shape
from parformer.export.onnx import make_files
from parformer.export.parity import check_onnx
from parformer.export.run import Runner
from parformer.model import Model


def onnx_step(
    model: Model, shape: Shape, threads: int | None, *, check: bool = True
) -> Callable[[], object]:
    """One step in onnxruntime, its memory full, once it was found to compute the same."""
    with tempfile.TemporaryDirectory() as place:
        for name, content in make_files(model, None, 18).items():
            (Path(place) / name).write_bytes(content)
        if check:
            check_onnx(model, Runner(place, threads=1))
        runner = Runner(place, threads or torch.get_num_threads())
    size = model.config.vocab_size
    rng = np.random.default_rng(0)
    tokens = rng.integers(size, size=(shape.batch, shape.tgt_len))
    if runner.told["kind"] == "encoder":
        return lambda: runner.look(tokens)
    state = runner.start(shape.batch)
    if shape.mem_len:
        _, state = runner.step(rng.integers(size, size=(shape.batch, shape.mem_len)), state)
    return lambda: runner.step(tokens, state)


RUNTIMES = {"onnx": onnx_step}
"""What else than torch a step can be timed in."""
