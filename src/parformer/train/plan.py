"""What is left open in a recipe, and how is it decided?

Precision, compilation, threads and, for a training by the clock, the number of steps are
found out once, on this machine, with the real model. The answers are written into the run's
configuration; a run that goes on decides nothing anew.
"""

# b batch, t time

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable

import torch

from parformer.config import ModelConfig
from parformer.data.batches import Tokens
from parformer.data.sides import vocabulary_of
from parformer.data.tokenizers import Tokenizer
from parformer.evaluate.perplexity import evaluate
from parformer.kernels import native
from parformer.model import build
from parformer.pattern import Pattern
from parformer.phases import phases_of
from parformer.recipe import Recipe
from parformer.tasks import find_task
from parformer.tasks.base import train_length, training_shape
from parformer.train.averaging import checkpoint_steps
from parformer.train.distributed import Workers
from parformer.train.session import Session

Notice = Callable[[str], None]

WORTH = 1.1
"""How many times faster half precision must be: below that its rounding buys nothing."""
COMPILE_SECONDS = 40.0
"""What compiling costs at most, on two cores: the first steps of a run wait so long."""
COMPILE_GAIN = 0.03
"""The share of a step that fused code saves at least."""
LOOKING = 0.15
"""The share of a training by the clock that validation may take; if need be it looks at less."""
LOOK = 65_536
"""Tokens that a validation is taken to read where it is to read all."""
RESERVE = 0.06
"""The share of a training by the clock that is kept for what was not foreseen."""


def fit_vocabulary(recipe: Recipe, tokenizer: Tokenizer, notice: Notice) -> Recipe:
    """The model gets the tokenizer's vocabulary, and a mask where it has to guess words.

    One with an encoder gets a token that stands for none, and is told how texts start and end.
    """
    model = recipe.model
    size = tokenizer.size + (1 if model.head == "masked" else 0)
    if model.source is not None:
        own = vocabulary_of(tokenizer)
        size = own["vocab_size"]
        recipe = recipe.replaced({f"model.{name}": value for name, value in own.items()})
    if model.vocab_size == size:
        return recipe
    changes: dict[str, object] = {"vocab_size": size}
    if model.embedding == "adaptive":
        below = tuple(cut for cut in model.cutoffs if cut < size)
        changes["cutoffs"] = below or tokenizer.cutoffs
    notice(f"The vocabulary has {size:,} tokens, in place of the preset's {model.vocab_size:,}.")
    return recipe.replaced({f"model.{name}": value for name, value in changes.items()})


def decide(recipe: Recipe, tokens: Tokens, workers: Workers, notice: Notice) -> Recipe:
    """The recipe with nothing left open; every process must ask, the first one decides."""
    began = time.monotonic()
    config = recipe.train
    changes: dict[str, object] = {}
    if not config.threads:
        changes["train.threads"] = torch.get_num_threads()
    if config.kernels == "auto":
        changes["train.kernels"] = workers.share(find_kernels(workers, notice))
    if config.precision == "auto":
        changes["train.precision"] = workers.share(find_precision(recipe, workers, notice))
    recipe = recipe.replaced(changes)
    if config.phases:
        steps = sum(one.steps for one in phases_of(config))
        recipe = recipe.replaced({"train.steps": steps})
    if config.epochs:
        per_epoch = find_task(recipe).batches(tokens).per_epoch
        recipe = recipe.replaced({"train.steps": max(1, math.ceil(config.epochs * per_epoch))})
    if config.compile == "auto" or config.time:
        recipe = with_clock(recipe, tokens, workers, notice, began)
    config = recipe.train
    if config.warmup_share:
        warmup = round(config.warmup_share * config.steps)
        recipe = recipe.replaced({"train.warmup": warmup})
    if config.average > 1:
        recipe = recipe.replaced({"train.checkpoint_every": checkpoint_steps(config)})
    if not config.evaluate_every:
        recipe = recipe.replaced({"train.evaluate_every": max(1, -(-config.steps // 10))})
    return recipe


def with_clock(
    recipe: Recipe, tokens: Tokens, workers: Workers, notice: Notice, began: float
) -> Recipe:
    """Compile where it pays; take as many steps as the time allows."""
    config = recipe.train
    if config.compile == "auto":
        plain = recipe.replaced({"train.compile": "off"})
        seconds = step_seconds(plain, tokens, workers)
        length = config.time or seconds * config.steps
        steady = find_task(recipe).steady and can_compile(workers)
        pays = steady and COMPILE_GAIN * length > 1.5 * COMPILE_SECONDS
        recipe = recipe.replaced({"train.compile": workers.share("on" if pays else "off")})
        if pays:
            notice("torch.compile: on, the run is long enough to gain by it.")
    if not config.time:
        return recipe
    if recipe.train.compile == "on" or config.compile != "auto":
        seconds = step_seconds(recipe, tokens, workers)
    looks = 10 * (config.evaluate_tokens or LOOK) + (config.final_tokens or LOOK)
    if find_task(recipe).steady:
        looking = looks * token_seconds(recipe, tokens, workers)
    else:  # without gradients a token takes about a third of what it takes with them
        looking = looks * seconds / 3 / find_task(recipe).tokens_per_update
    share = min(1.0, LOOKING * config.time / max(looking, 1e-9))
    left = (config.time - (time.monotonic() - began)) * (1 - RESERVE) - share * looking
    if recipe.train.compile == "on":
        left -= COMPILE_SECONDS / 2  # the run itself compiles again, from a warm cache
    steps = int(workers.share(str(max(1, int(left / seconds)))))
    notice(f"{steps:,} updates of {1000 * seconds:,.0f} ms fit into {config.time:,.0f} s.")
    # A schedule's warm-up keeps its share when the clock decides how long a run is.
    changes: dict[str, object] = {"train.steps": steps}
    if share < 1:
        for name in ("evaluate_tokens", "final_tokens"):
            tokens_each = int(workers.share(str(int((getattr(config, name) or LOOK) * share))))
            changes[f"train.{name}"] = max(1024, tokens_each)
    if config.warmup >= steps:
        changes["train.warmup"] = max(1, steps // 10)
    return recipe.replaced(changes)


def step_seconds(recipe: Recipe, tokens: Tokens, workers: Workers) -> float:
    """How long an update takes, by a few on a model that is thrown away."""
    session = Session(recipe, tokens, workers=workers)
    memory = training_shape(recipe).memory
    # until the memory is full every step is longer than the one before
    warm = 2 + min(8, memory // train_length(recipe))
    taken = []
    for step in range(warm + 5):
        began = time.perf_counter()
        session.update(step)
        if session.workers.device.type == "cuda":
            torch.cuda.synchronize()
        if step >= warm:
            taken.append(time.perf_counter() - began)
    median = torch.tensor([sorted(taken)[len(taken) // 2]], device=workers.device)
    return float(workers.average(median))


def token_seconds(recipe: Recipe, tokens: Tokens, workers: Workers) -> float:
    """How long a token takes in validation."""
    model = build(training_shape(recipe), device=workers.device)
    sample = tokens[: 16 * train_length(recipe) + 1]
    taken = []
    for _ in range(2):  # the first is slow
        began = time.perf_counter()
        evaluate(model, sample, batch=8)
        taken.append(time.perf_counter() - began)
    return min(taken) / len(sample)


def can_compile(workers: Workers) -> bool:
    """Whether torch.compile has a compiler here; sharded models go without."""
    if workers.shard:
        return False
    return workers.device.type != "cpu" or any(map(shutil.which, ("g++", "clang++", "c++")))


def find_kernels(workers: Workers, notice: Notice = lambda text: None) -> str:
    """Kernels made for this CPU where it is a CPU that trains, and can compile them."""
    if workers.device.type != "cpu":
        return "plain"
    if native.library() is None:
        notice(f"Kernels: torch's own, which are slower; {native.failure}.")
        return "plain"
    return "native"


def find_precision(recipe: Recipe, workers: Workers, notice: Notice) -> str:
    """Half precision where this device is really faster with it, by trying."""
    config = recipe.train
    sample = shortened(training_shape(recipe))
    rows = max(1, min(config.batch // config.accumulate // workers.count, 8))
    seconds = {"fp32": 1e9, "bf16": 1e9}
    model = build(sample, device=workers.device).train()
    shape = (rows, train_length(recipe))
    tokens_bt = torch.randint(sample.vocab_size, shape, device=workers.device)
    # what a processor spends is its own; what passes on the clock is also others'
    clock = time.process_time if workers.device.type == "cpu" else time.perf_counter
    for _ in range(4):
        for name in seconds:
            began = clock()
            with torch.autocast(
                workers.device.type, torch.bfloat16, enabled=name == "bf16", cache_enabled=False
            ):
                out = model(tokens_bt, targets=None if sample.head == "none" else tokens_bt)
                loss = out.hidden.float().square().mean() if out.loss is None else out.loss
            loss.backward()
            if workers.device.type == "cuda":
                torch.cuda.synchronize()
            seconds[name] = min(seconds[name], clock() - began)
    ratio = seconds["fp32"] / seconds["bf16"]
    chosen = "bf16" if ratio > WORTH else "fp32"
    speed = f"{ratio:.1f} times as fast" if ratio >= 1 else f"{1 / ratio:.1f} times slower"
    notice(f"Precision: {chosen}; with bf16 a step is {speed} on this {workers.device.type}.")
    return chosen


def shortened(config: ModelConfig) -> ModelConfig:
    """The first blocks of a model and a part of its vocabulary: the same kind of work, less."""
    blocks = config.pattern.blocks
    if config.pattern.encoder is not None:  # a decoder by itself has no source to look at
        own = [spec for spec in blocks if spec.letter != "c" and "source" not in spec.options]
        blocks = tuple(own) or config.pattern.encoder.blocks
    pattern = Pattern(blocks[:4])
    size = min(config.vocab_size, 4096)
    cutoffs = tuple(cut for cut in config.cutoffs if cut < size)
    alone: dict[str, object] = {"encoder": (), "source_vocab": 0, "pad": -1, "start": -1, "end": -1}
    alone = {} if config.source is None else alone
    return config.replaced(pattern=pattern, vocab_size=size, cutoffs=cutoffs, **alone)
