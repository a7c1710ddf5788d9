"""A workbench that measures nothing: times follow from FLOPs, and differ a little by round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.events import Preparing
from parformer.measure.device import Receipt
from parformer.measure.readings import Reading, Readings, Step
from parformer.reproduce.workbench import Workbench

HEAD = (
    "experiment,model,valid_ppl,params_nonembedding,params_total,cfg_n_layer,"
    "cfg_d_model,cfg_d_embed,cfg_div_val,cfg_n_head,cfg_d_inner,cfg_n_token,cfg_cutoffs"
)


def pretend(
    configs: Mapping[str, ModelConfig], step: Step, progress: Preparing | None = None
) -> Readings:
    """Readings of models that nobody built."""
    readings: list[Reading] = []
    for number, (name, config) in enumerate(configs.items()):
        shape = step.shape(config)
        price = cost(config, tgt_len=shape.tgt_len, mem_len=shape.mem_len, batch=step.batch)
        rounds = range(max(step.rounds, 8))
        samples = [1e-11 * price.flops_cached * (1 + 0.001 * ((i + number) % 3)) for i in rounds]
        ratio = samples[0] / readings[0].samples[0] if readings else 1.0
        resident = 4 * price.parameters
        peak = resident + 4096 * config.d_model
        readings.append(Reading.taken(name, samples, ratio, peak, resident))
    return Readings(readings=tuple(readings), receipt=Receipt.issue("nothing"))


def quick_bench(**changes: Any) -> Workbench:
    """No trainings unless asked for, and a meter that only pretends."""
    return Workbench(**{"meter": pretend, "trains": False, "threads": 1, **changes})


def write_models(path: Path, *, experiments: tuple[str, ...] = ("TransXL", "GPT2")) -> Path:
    """Small models, the larger of them the better."""
    lines = [HEAD]
    for experiment in experiments:
        for i, width in enumerate((8, 12, 16, 20, 24, 28, 32, 40)):
            sizes = f'{width**2 * 8},{width * 100 + i % 3 * 900},2,{width},8,2,"[2, 4]"'
            lines.append(
                f'random_{experiment},m{i},{60 - width + i % 2 * 5},{sizes},"[{2 * width}, '
                f'{3 * width}]",50,"[20, 30, 99]"'
            )
    path.write_text("\n".join(lines) + "\n")
    return path


def write_text(path: Path) -> Path:
    """A text that a small model learns something of at once."""
    path.write_text("".join(f"line {i % 97} says {i * i % 89}\n" for i in range(1200)))
    return path
