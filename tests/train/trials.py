"""Small trainings that take milliseconds, and everything they leave to compare."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tomli_w

from parformer.config import FAMILIES as FILES
from parformer.config import ModelConfig
from parformer.data.characters import Bytes
from parformer.data.tokens import Prepared, Split
from parformer.events import Watch
from parformer.recipe import DataConfig, Recipe, TrainConfig
from parformer.store import folder
from parformer.train.loop import Outcome, train
from parformer.train.run import CHECKPOINTS, METRICS, MODEL, RESULT, start_run

WORDS = ("alpha", "beta", "gamma", "delta", "if", "then", "für", "return", "lambda", "x = 1")
FAMILIES = ("transformer-xl", "gpt2", "bert")


class Ears(Watch):
    """Hears notices with some words in them."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.heard: list[str] = []

    def notice(self, text: str) -> None:
        if self.words in text:
            self.heard.append(text)


def make_text(lines: int = 300, seed: int = 0) -> str:
    rng = Random(seed)
    return "".join(" ".join(rng.choices(WORDS, k=8)) + "\n" for _ in range(lines))


def make_recipe(family: str = "transformer-xl", /, **changes: Any) -> Recipe:
    """A recipe with nothing left open: width 16, four blocks, 8 steps, saved every second one.

    `changes` name a section and a field, such as `train__steps`.
    """
    model: dict[str, Any] = {
        "family": family,
        "pattern": "sfsf",
        "vocab_size": 257 if FILES[family]["head"] == "masked" else 256,
        "d_model": 16,
        "n_head": 2,
        "d_inner": 24,
        "dropout": 0.1,
    }
    model |= {"tgt_len": 8, "mem_len": 12} if family == "transformer-xl" else {"max_len": 16}
    training = TrainConfig(
        steps=8,
        batch=4,
        accumulate=2,
        tgt_len=8,
        precision="fp32",
        compile="off",
        kernels="plain",
        threads=1,
        log_every=1,
        evaluate_every=4,
        evaluate_tokens=300,
        final_tokens=300,
        checkpoint_every=2,
    )
    data = DataConfig(corpus="text.txt", identity="of this text")
    recipe = Recipe(model=ModelConfig.from_dict(model), data=data, train=training)
    return recipe.replaced({name.replace("__", "."): value for name, value in changes.items()})


def make_prepared(lines: int = 300) -> Prepared:
    """The text as bytes, made in memory."""
    splits = {}
    for seed, (name, size) in enumerate({"train": lines, "valid": 20, "test": 20}.items()):
        raw = make_text(size, seed).encode()
        tokens = np.frombuffer(raw, np.uint8)
        splits[name] = Split(tokens=tokens, bytes=len(raw), characters=len(raw), words=8 * size)
    return Prepared("text.txt", "of this text", Bytes(), splits, Path("nowhere"))


def begin(path: Path, recipe: Recipe, prepared: Prepared) -> None:
    """A run folder in which nothing was trained yet."""
    path.mkdir()
    start_run(path, recipe, prepared.tokenizer)


class Breaker(Watch):
    """Ends a training at once after some step, and writes down what it was told."""

    def __init__(self, stop: int = -1) -> None:
        super().__init__()
        self.stop = stop
        self.notices: list[str] = []
        self.losses: dict[int, float] = {}
        self.starts: list[int] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def start(self, step: int, steps: int) -> None:
        self.starts.append(step)

    def step(self, step: int, loss: float, tokens_per_second: float) -> None:
        self.losses[step] = loss
        if step == self.stop:
            raise KeyboardInterrupt


def train_until(path: Path, recipe: Recipe, prepared: Prepared, stop: int) -> Breaker:
    """Train, and break off after update number `stop`."""
    watch = Breaker(stop)
    try:
        train(recipe, prepared, path, watch=watch)
    except KeyboardInterrupt:
        return watch
    raise AssertionError(f"the training went past {stop}")


def train_to_the_end(path: Path, recipe: Recipe, prepared: Prepared) -> tuple[Outcome, Breaker]:
    watch = Breaker()
    return train(recipe, prepared, path, watch=watch), watch


def evidence(run: Path) -> dict[str, Any]:
    """All that a training leaves, save for times and names: equal means bit-equal."""
    found: dict[str, Any] = {"metrics": metrics(run)}
    for checkpoint in sorted((run / CHECKPOINTS).iterdir()):
        sums = folder.read_json(checkpoint, folder.MANIFEST)["sha256"]
        for name, listed in sums.items():
            raw = (checkpoint / name).read_bytes()
            assert hashlib.sha256(raw).hexdigest() == listed
            if name.endswith(".safetensors"):
                found[f"{checkpoint.name}/{name}"] = listed
    for file in sorted((run / MODEL).iterdir()):
        found[f"model/{file.name}"] = file.read_bytes()
    found["result"] = json.loads((run / RESULT).read_text("utf-8"))
    found["files"] = sorted(entry.name for entry in run.iterdir() if entry.name != ".lock")
    return found


def metrics(run: Path) -> list[dict[str, Any]]:
    """Every line of metrics, without what the clock says."""
    rows = [json.loads(line) for line in (run / METRICS).read_text("utf-8").splitlines()]
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in rows]


def losses(run: Path) -> dict[int, float]:
    """Step by step; no step may be there twice."""
    rows = [row for row in metrics(run) if "loss" in row]
    found = {row["step"]: row["loss"] for row in rows}
    assert len(found) == len(rows)
    return found


def write_toml(path: Path, recipe: Recipe) -> None:
    """The recipe as a user would write it: the text's identity is found out."""
    path.write_text(tomli_w.dumps(recipe.replaced({"data.identity": ""}).to_dict()), "utf-8")


def prepare_folder(path: Path, recipes: Mapping[str, Recipe]) -> None:
    """text.txt and a TOML file for each recipe."""
    (path / "text.txt").write_text(make_text(), "utf-8")
    for name, recipe in recipes.items():
        write_toml(path / f"{name}.toml", recipe)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number
