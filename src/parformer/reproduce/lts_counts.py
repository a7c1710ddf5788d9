"""LiteTransformerSearch's tables of settings and architectures, counted exactly."""

from __future__ import annotations

from functools import partial

from parformer.config import ModelConfig, preset
from parformer.costs import cost
from parformer.reproduce.published import Printed, printed_models
from parformer.reproduce.study import Found, Ours
from parformer.reproduce.workbench import Workbench, settings, study

POSITIONS = 2048
"""Learned positions that Table 3 counts with the decoder, and the others do not."""


def architecture(model: Printed) -> ModelConfig:
    """A row of the tables as a model: every layer its own heads and inner width."""
    sizes = zip(model.heads, model.inner, strict=True)
    pattern = "".join(f"s[heads={heads}]f[inner={inner}]" for heads, inner in sizes)
    return preset(f"lts-{model.family}", pattern=pattern, d_model=model.d_model)


def decoder_parameters(bench: Workbench, *, table: str) -> Found:
    found = {}
    for model in printed_models(table):
        count = cost(architecture(model)).decoder_parameters
        if table == "3":
            count += POSITIONS * model.d_model
        found[model.key] = Ours(count / 1e6, "exact count")
    return found


for number in "34567":
    study(f"lts-table-{number}")(partial(decoder_parameters, table=number))


@study("lts-table-2")
def table_2(bench: Workbench) -> Found:
    fields = {
        "vocabulary": "model.vocab_size",
        "steps": "train.steps",
        "batch": "train.batch",
        "rate": "train.learning_rate",
        "warmup": "train.warmup",
        "dropout": "model.dropout",
        "dropatt": "model.dropatt",
    }
    found = settings("lts-transformer-xl", fields, "txl-")
    return found | settings("lts-gpt2", fields, "gpt2-")
