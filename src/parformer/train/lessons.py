"""What does a teacher say of labelled examples that come again and again? It is asked once.

All examples are read in one order, whatever batches they come in later, so what it says of them
depends on nothing but its weights and them, and a training that goes on learns from the same
numbers. They stay in the cache for other seeds and settings.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from parformer.data.batches import Batch, Batches
from parformer.data.labelled import Examples
from parformer.model import Model
from parformer.store.cache import Facts, digest, keep
from parformer.store.files import cache_folder
from parformer.store.folder import read_tensors
from parformer.tasks.labelled import all_logits

FORMAT = "parformer-lessons-1"
ANSWERS = "answers.safetensors"
TOLD = "told"
"""The input of a batch that holds the teacher's answers."""


class Lessons(Batches):
    """Batches of examples, with what their teacher says of them."""

    def __init__(self, examples: Examples, answers_nc: Tensor) -> None:
        self.examples, self.answers_nc = examples, answers_nc
        self.per_epoch = examples.per_epoch

    def at(self, index: int, rows: slice = slice(None)) -> Batch:
        batch = self.examples.at(index, rows)
        told_bc = self.answers_nc[torch.from_numpy(self.examples.chosen(index)[rows])]
        return replace(batch, inputs={**batch.inputs, TOLD: told_bc})


def lessons(examples: Examples, teacher: Model, identity: str) -> Lessons:
    """The same batches; answers come from the cache where this teacher was asked before."""

    def make(beside: Path) -> Facts:
        told = torch.stack(all_logits(teacher, examples.features, examples.pad))
        safetensors.torch.save_file({TOLD: told.float()}, beside / ANSWERS)
        return {"teacher": identity, "examples": len(told)}

    def read(facts: Facts) -> Tensor:
        told = read_tensors(folder / ANSWERS)[TOLD]
        if len(told) != len(examples.features):
            raise ValueError(f"{len(told):,} answers to {len(examples.features):,} examples")
        return told

    key = digest([FORMAT, identity, identity_of(examples)])[:20]
    folder = cache_folder() / "lessons" / key
    return Lessons(examples, keep(folder, make, read, needed=64 * len(examples.features)))


def identity_of(examples: Examples) -> str:
    """SHA-256 of what a model reads of examples."""
    whole = hashlib.sha256(f"{examples.pad}\n".encode())
    for feature in examples.features:
        for tokens, first in feature.rows:
            whole.update(f"{first} {' '.join(map(str, tokens))};".encode())
        whole.update(b"\n")
    return whole.hexdigest()
