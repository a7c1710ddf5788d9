"""How fast is a training step, beside `transformers` and `x-transformers`?

Every candidate has a process of its own, as it would in use, so that one's allocator and
threads cannot help or hinder another's; they take turns, one step at a time, in an order
drawn anew in each round. A step is forward, loss, backward, clipping, AdamW and zero_grad on
a GPT-2 of width 256 with 6 layers, the same for all. `python benchmarks/training.py` prints
the tables, `--write` puts them into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from inference import note, table, write
from torch import Tensor, nn

import parformer as pf
from parformer.data.characters import Bytes
from parformer.data.tokens import Prepared, Split
from parformer.events import Watch
from parformer.kernels import native
from parformer.measure import Comparison, Receipt, measure_latency
from parformer.recipe import read_recipe
from parformer.train.allocator import keep_memory
from parformer.train.distributed import Workers
from parformer.train.loop import Journal
from parformer.train.metrics import Metrics
from parformer.train.optimizers import clip_gradients
from parformer.train.session import Session
from parformer.train.standing import Tally

LOSSES = 20
"""Steps whose losses are compared, before anything is timed."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all candidates train."""

    width: int = 256
    layers: int = 6
    heads: int = 4
    window: int = 256
    batch: int = 8
    vocabulary: int = 1024
    precision: str = "fp32"
    threads: int = 2

    @property
    def tokens(self) -> int:
        return self.batch * self.window


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Who trains it, and how."""

    library: str
    compiled: bool = False
    keeps: bool = False
    """Whether the process keeps the memory that it frees."""
    kernels: bool = False
    """Whether Parformer's compiled kernels are used."""


CANDIDATES = {
    "transformers, eager": Candidate(library="transformers"),
    "x-transformers, eager": Candidate(library="x-transformers"),
    "Parformer, eager": Candidate(library="parformer", keeps=True, kernels=True),
    "transformers, compiled": Candidate(library="transformers", compiled=True),
    "x-transformers, compiled": Candidate(library="x-transformers", compiled=True),
    "Parformer, compiled": Candidate(library="parformer", compiled=True, keeps=True, kernels=True),
    "transformers, eager, memory kept": Candidate(library="transformers", keeps=True),
    "x-transformers, eager, memory kept": Candidate(library="x-transformers", keeps=True),
    "transformers, compiled, memory kept": Candidate(
        library="transformers", compiled=True, keeps=True
    ),
    "x-transformers, compiled, memory kept": Candidate(
        library="x-transformers", compiled=True, keeps=True
    ),
    "Parformer, eager, as plain as the others": Candidate(library="parformer"),
}

Loss = Callable[[Tensor, Tensor], Tensor]


class Trainer:
    """A model, its optimizer and its data; a call is a step and gives the loss."""

    def __init__(self, task: Task, candidate: Candidate) -> None:
        torch.set_num_threads(task.threads)
        if candidate.keeps:
            assert keep_memory()
        if candidate.kernels:
            assert native.enable(), "the compiled kernels need a C++ compiler"
        make = {
            "transformers": transformers_model,
            "x-transformers": x_transformers_model,
            "parformer": parformer_model,
        }[candidate.library]
        model, self.loss = make(task, compiled=candidate.compiled)
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, fused=True)
        # each as it trains: Parformer has a clipping of its own
        own = candidate.library == "parformer"
        self.clip: Callable[..., Tensor] = clip_gradients if own else nn.utils.clip_grad_norm_
        self.half = task.precision == "bf16"
        generator = torch.Generator().manual_seed(1)
        shape = (LOSSES, task.batch, task.window + 1)
        # words as unequal as in a text, so that there is something to learn
        drawn = torch.rand(shape, generator=generator).pow(3) * task.vocabulary
        self.data = drawn.long()
        self.steps = 0

    def __call__(self) -> float:
        batch = self.data[self.steps % LOSSES]
        self.steps += 1
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            loss = self.loss(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        self.clip(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())


def gpt2_reference(task: Task) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    asked: dict[str, Any] = {"attn_implementation": "sdpa"}
    config = GPT2Config(
        n_embd=task.width, n_layer=task.layers, n_head=task.heads, vocab_size=task.vocabulary,
        n_positions=task.window, bos_token_id=0, eos_token_id=None, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, **asked,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


def transformers_model(task: Task, *, compiled: bool) -> tuple[nn.Module, Loss]:
    model = gpt2_reference(task)

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        logits = model(tokens, use_cache=False).logits
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    return model, torch.compile(loss, dynamic=False) if compiled else loss


def x_transformers_model(task: Task, *, compiled: bool) -> tuple[nn.Module, Loss]:
    """The same sizes and activation; it has no biases in attention and norms."""
    from x_transformers import Decoder, TransformerWrapper

    torch.manual_seed(0)
    layers = Decoder(
        dim=task.width, depth=task.layers, heads=task.heads,
        attn_dim_head=task.width // task.heads, attn_flash=True, ff_mult=4,
        ff_custom_activation=nn.GELU(approximate="tanh"),
    )  # fmt: skip
    model = TransformerWrapper(
        num_tokens=task.vocabulary, max_seq_len=task.window, attn_layers=layers, tie_embedding=True
    ).train()

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())

    return model, torch.compile(loss, dynamic=False) if compiled else loss


def parformer_model(task: Task, *, compiled: bool) -> tuple[nn.Module, Loss]:
    reference = gpt2_reference(task)
    model = pf.convert.from_gpt2(reference.state_dict(), reference.config.to_dict()).train()
    if compiled:
        model.compile(dynamic=False)

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        found = model(tokens, targets=targets).loss
        assert found is not None
        return found

    return model, loss


class Worker:
    """A candidate in its own process; calling it makes it take a step."""

    def __init__(self, task: Task, candidate: Candidate) -> None:
        given = json.dumps({"task": asdict(task), "candidate": asdict(candidate)})
        command = [sys.executable, __file__, "--worker", given]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(given: str) -> None:
    """A worker's life: a loss for every line that comes in."""
    values = json.loads(given)
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries that talk must not be taken for losses
    step = Trainer(Task(**values["task"]), Candidate(**values["candidate"]))
    for _ in sys.stdin:
        print(step(), file=answers, flush=True)


def one_table(task: Task, names: list[str], rounds: int) -> list[str]:
    workers = {name: Worker(task, CANDIDATES[name]) for name in names}
    try:
        curves = {}
        for name, worker in workers.items():
            curves[name] = [worker() for _ in range(LOSSES)]
            note(f"{task.precision}, {name}: loss {curves[name][0]:.4f} … {curves[name][-1]:.4f}")
        result = measure_latency(workers, rounds=rounds, warmup=1)
    finally:
        for worker in workers.values():
            worker.close()
    rows = [
        [t.name, *(f"{task.tokens / seconds:,.0f}" for seconds in (t.median, t.high, t.low))]
        for t in result.timings
    ]
    return [
        f"**A training step of GPT-2 (width {task.width}, {task.layers} layers, window "
        f"{task.window}, batch {task.batch}, vocabulary {task.vocabulary:,}), {task.precision}**",
        "",
        *table(["", "tokens/s", "95% from", "to"], rows),
        "",
        *verdicts(result, names),
        *same_curves(curves),
        "",
    ]


def verdicts(result: Comparison, names: list[str]) -> list[str]:
    """Each mode of Parformer against the faster peer in the same mode, and in the eager one."""
    lines = []
    for ours, mode in (
        ("Parformer, eager", "eager"),
        ("Parformer, compiled", "compiled"),
        ("Parformer, compiled", "eager"),
        ("Parformer, eager", "eager, memory kept"),
        ("Parformer, compiled", "compiled, memory kept"),
    ):
        peers = [n for n in (f"transformers, {mode}", f"x-transformers, {mode}") if n in names]
        if ours not in names or not peers:
            continue
        faster = min(peers, key=lambda name: result[name].median)
        found = result.difference(ours, faster)
        low, high = 1 / found.high, 1 / found.low
        lines.append(
            f"- {ours}: {1 / found.ratio:.2f}× the speed of {faster} ({low:.2f} to {high:.2f})"
        )
    return lines


def same_curves(curves: dict[str, list[float]]) -> list[str]:
    """How far Parformer's losses lie from those of transformers, which has the same weights."""
    theirs = next((c for n, c in curves.items() if n.startswith("transformers")), None)
    if theirs is None:
        return []
    return [
        f"- {name}: losses of {LOSSES} steps differ from those of transformers by at most "
        f"{max(abs(a - b) for a, b in zip(mine, theirs, strict=True)):.1e}"
        for name, mine in curves.items()
        if name.startswith("Parformer")
    ]


def loop_share(threads: int, steps: int) -> list[str]:
    """What reading the batch and writing metrics take of an update, for the preset `pocket`."""
    recipe = read_recipe("pocket", {"train.precision": "fp32", "train.kernels": "native"})
    torch.set_num_threads(threads)
    tokens = np.random.default_rng(0).integers(0, 256, 2_000_000).astype(np.uint8)
    session = Session(recipe, tokens, workers=Workers())
    bytes_ = Split(tokens=tokens, bytes=len(tokens), characters=len(tokens), words=1)
    with tempfile.TemporaryDirectory() as folder:
        prepared = Prepared("random", "", Bytes(), {"train": bytes_}, Path(folder))
        metrics = Metrics(Path(folder) / "metrics.jsonl", 0)
        journal = Journal(session, prepared, Path(folder), metrics, Tally(), Watch())
        spent: dict[str, list[float]] = {"update": [], "data": [], "metrics": []}
        for step in range(steps):
            began = time.perf_counter()
            loss, norm = session.update(step)
            updated = time.perf_counter()
            session.reading.batches.at(step)  # once more, for the clock
            read = time.perf_counter()
            journal.log(step + 1, float(loss), float(norm), 1.0, last=False)
            written = time.perf_counter()
            for name, value in zip(
                spent, (updated - began, read - updated, written - read), strict=True
            ):
                spent[name].append(value)
        metrics.close()
    update, data = (statistics.median(spent[name]) for name in ("update", "data"))
    logged = statistics.mean(spent["metrics"])  # a line in ten steps: its mean, not its median
    return [
        f"- `pocket`: an update takes {1000 * update:.0f} ms; reading its batch "
        f"{100 * data / update:.2f}% of that, metrics {100 * logged / update:.2f}%",
        "",
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--precision", choices=("fp32", "bf16"), help="default: one, then the other"
    )
    parser.add_argument("--only", nargs="+", choices=CANDIDATES, help="a few of the candidates")
    parser.add_argument("--tiny", action="store_true", help="a toy, to see whether all runs")
    parser.add_argument("--write", action="store_true", help="write into docs/benchmarks.md")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        serve(given.worker)
        return
    torch.set_num_threads(given.threads)
    size: dict[str, Any] = {"threads": given.threads}
    if given.tiny:
        size |= {"width": 32, "layers": 2, "window": 16, "batch": 2, "vocabulary": 50}
    names = given.only or list(CANDIDATES)
    for precision in (given.precision,) if given.precision else ("fp32", "bf16"):
        name = f"training-{precision}"
        note(f"{name} …")
        lines = one_table(Task(precision=precision, **size), names, given.rounds)
        # the very command: fewer threads, rounds or candidates make another table
        options = [o for o in arguments or sys.argv[1:] if o != "--write"]
        command = shlex.join(["python", "benchmarks/training.py", *options])
        text = "\n".join([*lines, f"`{command}` — {Receipt.issue(name).line()}"])
        print(text, end="\n\n")
        if given.write:
            write(name, text)
    if not given.only and not given.precision:
        lines = loop_share(given.threads, steps=20 if given.tiny else 100)
        text = "\n".join(
            [*lines, f"`python benchmarks/training.py` — {Receipt.issue('loop').line()}"]
        )
        print(text)
        if given.write:
            write("training-loop", text)


if __name__ == "__main__":
    main()
