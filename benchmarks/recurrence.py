"""How fast is the recurrence, beside the package `sru` and beside memory itself?

Five tables: SRU++ beside `sru` with the same weights, the recurrence alone beside its
definition, the recurrence beside a plain copy of as many bytes, where the time of a step goes
(Figure 5 of SRU++), and single tokens after a short and after a long text. Everything of one
table runs in one process in interleaved rounds. `python benchmarks/recurrence.py` prints them,
`--write` puts them into docs/benchmarks.md, and naming sections runs just those.
"""

# b batch, t time, k projections (candidate, forget, reset), d width, g gates (forget, reset)

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from inference import note, table, write
from torch import Tensor, nn

import parformer as pf
from parformer.blocks.stack import Stack, StackState
from parformer.kernels import native
from parformer.kernels import recurrence as kernel
from parformer.kernels.steps import step_by_step
from parformer.measure import Comparison, Receipt, measure_latency
from parformer.measure.operations import KINDS, time_by_kind
from parformer.model import Model
from parformer.report.words import duration
from parformer.train.allocator import keep_memory

Work = Callable[[], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What both sides compute."""

    width: int = 512
    inside: int = 128
    layers: int = 6
    every: int = 2
    batch: int = 8
    length: int = 256

    @property
    def tokens(self) -> int:
        return self.batch * self.length


TASK = Task()
TINY = Task(width=32, inside=8, layers=2, batch=2, length=16)
TWIN, TINY_TWIN = (512, 1, 1024), (16, 1, 64)
"""Length, batch and width of the recurrence that is timed beside its definition."""
WIDE, TINY_WIDE = (512, 16, 3072), (16, 2, 64)
"""The same, beside a plain copy of as many bytes."""


# SRU++ beside the package


class TheirStack:
    """SRU++ of the package `sru`; time comes first there."""

    def __init__(self, task: Task) -> None:
        self.task, self.module = task, their_module(task)
        self.remembered: list[Tensor] | None = None
        self.cell: Tensor | None = None

    def __call__(self, x_btd: Tensor, *, carry: bool = False) -> Tensor:
        past = self.task.length if carry and self.remembered is not None else 0
        time = x_btd.shape[1]
        hidden = torch.full((time, past + time), -1e4).triu(past + 1)
        given = {"memory": self.remembered, "c0": self.cell} if carry else {}
        y_tbd, cell, memory = self.module(x_btd.transpose(0, 1), attn_mask=hidden, **given)
        self.cell, self.remembered = cell.detach(), [x.detach() for x in memory["saved_inputs"]]
        return y_tbd.transpose(0, 1)


class OurStack:
    """The same weights in Parformer."""

    def __init__(self, task: Task) -> None:
        names = {"layers": task.layers, "attention_every": task.every, "d": task.width}
        weights = their_module(task).state_dict()
        sizes = {"d_attention": task.inside, "mem_len": task.length}
        self.module: Stack = pf.convert.from_sru(weights, {**names, **sizes})
        self.state: StackState | None = None

    def __call__(self, x_btd: Tensor, *, carry: bool = False) -> Tensor:
        fresh = self.module.initial_state(None if carry else 0)
        y_btd, self.state = self.module(x_btd, (self.state or fresh) if carry else fresh)
        return y_btd


def their_module(task: Task) -> nn.Module:
    # it compiles its kernel with ninja, which pip puts beside python
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for CUDA, and for a torch of its time
        from sru import SRUpp
    warnings.filterwarnings("ignore", "Running SRU on CPU with grad_enabled", UserWarning)
    torch.manual_seed(0)
    module = SRUpp(
        task.width, task.width, task.inside, num_layers=task.layers,
        attention_every_n_layers=task.every,
    )  # fmt: skip
    for name, parameter in module.named_parameters():
        if name.endswith("alpha"):
            nn.init.constant_(parameter, 0.5)  # from zero, attention would have no say
    return module


class Step:
    """A pass through a stack, and in training back again; the optimizer is left out."""

    def __init__(
        self, stack: TheirStack | OurStack, task: Task, *, training: bool, carry: bool
    ) -> None:
        self.stack, self.training, self.carry = stack, training, carry
        stack.module.train(training)
        generator = torch.Generator().manual_seed(1)
        self.x_btd = torch.randn(task.batch, task.length, task.width, generator=generator)
        self.x_btd.requires_grad_(training)
        self.slope_btd = torch.randn(self.x_btd.shape, generator=generator)

    def __call__(self) -> Tensor:
        with torch.enable_grad() if self.training else torch.no_grad():
            y_btd = self.stack(self.x_btd, carry=self.carry)
            if self.training:
                self.x_btd.grad = None
                self.stack.module.zero_grad()
                y_btd.backward(self.slope_btd)
        return y_btd.detach()


def beside_sru(rounds: int, *, tiny: bool) -> list[str]:
    """Tokens per second of both, in training and in inference, with memory and without."""
    task, rows = TINY if tiny else TASK, []
    for training in (True, False):
        for carry in (False, True):
            pair = {
                "sru": Step(TheirStack(task), task, training=training, carry=carry),
                "Parformer": Step(OurStack(task), task, training=training, carry=carry),
            }
            result = measure_latency(pair, rounds=rounds, warmup=2)
            words = "training" if training else "inference"
            words += f", after {task.length} remembered" if carry else ""
            rows.append([words, *speeds(result, task), times_faster(result, "Parformer", "sru")])
            note(f"{words}: done")
    return [
        f"**SRU++ beside `sru`, same weights: {task.layers} layers, width {task.width}, inside "
        f"{task.inside}, attention in every {task.every}nd, {task.length} tokens × {task.batch}, "
        "fp32**",
        "",
        *table(["", "`sru`, tokens/s", "Parformer, tokens/s", "faster"], rows),
        "",
    ]


def speeds(result: Comparison, task: Task) -> list[str]:
    return [f"{task.tokens / result[name].median:,.0f}" for name in ("sru", "Parformer")]


def times_faster(result: Comparison, ours: str, theirs: str) -> str:
    found = result.difference(ours, theirs)
    return f"{1 / found.ratio:.2f}× ({1 / found.high:.2f}–{1 / found.low:.2f})"


# The recurrence alone


def recurrence_inputs(length: int, batch: int, width: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, length, 3, width), (batch, length, width), (2, width), (2, width))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def beside_twin(rounds: int, *, tiny: bool) -> list[str]:
    """The kernel beside the definition in plain torch, forward, and forward and backward."""
    length, batch, width = TINY_TWIN if tiny else TWIN
    inputs, rows = recurrence_inputs(length, batch, width), []
    slope_btd = torch.randn(batch, length, width, generator=torch.Generator().manual_seed(1))

    def step(run: Callable[..., tuple[Tensor, Tensor]], *, training: bool) -> Work:
        own = [x.clone().requires_grad_(training) for x in inputs]

        def call() -> None:
            with torch.set_grad_enabled(training):
                h_btd, _ = run(*own)
            if training:
                torch.autograd.grad(h_btd, own, slope_btd)

        return call

    def twin(u: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return step_by_step(u, x, weight, bias, None, None, 1.0)

    for words, training in (("forward", False), ("forward and backward", True)):
        pair = {"plain torch": step(twin, training=training)}
        pair["Parformer"] = step(kernel.recurrence, training=training)
        result = measure_latency(pair, rounds=rounds)
        times = [duration(result[name].median) for name in pair]
        rows.append([words, *times, times_faster(result, "Parformer", "plain torch")])
    return [
        f"**The recurrence alone, length {length}, batch {batch}, width {width}, fp32**",
        "",
        *table(["", "plain torch", "Parformer", "faster"], rows),
        "",
    ]


class Bandwidth:
    """The recurrence of a long text in wide channels, and copies of as many bytes."""

    def __init__(self, length: int, batch: int, width: int) -> None:
        self.inputs = recurrence_inputs(length, batch, width)
        u_btkd, x_btd, *_ = self.inputs
        self.forward_bytes = 4 * (u_btkd.numel() + 2 * x_btd.numel())
        """Projections and skip are read, outputs written."""
        self.backward_bytes = 4 * (2 * u_btkd.numel() + 3 * x_btd.numel())
        """Those and the outputs' gradient are read, two gradients written."""
        weight, bias = self.inputs[2:]
        self.given = kernel.Arguments(u_btkd, x_btd, weight, bias, 1.0)
        self.h_btd, self.dh_btd = torch.zeros_like(x_btd), torch.randn(x_btd.shape)
        self.last_bd = torch.zeros(batch, width)
        self.starts_bnd = torch.zeros(batch, self.given.blocks, width)
        self.du_btkd, self.dx_btd = torch.zeros_like(u_btkd), torch.zeros_like(x_btd)
        self.d_gates_bkd, self.d_first_bd = torch.zeros(batch, 4, width), torch.zeros(batch, width)
        self.trained = [x.clone().requires_grad_() for x in self.inputs]

    def copy(self, traffic: int) -> Work:
        """Read half of the bytes and write the other half."""
        source, target = torch.ones(traffic // 8), torch.zeros(traffic // 8)
        return lambda: target.copy_(source)

    def forward(self) -> None:
        """The kernel itself, with memory that was written before."""
        given, compiled = self.given, compiled_kernel()
        places = (given.u_btkd, given.x_btd, given.gates, None, None)
        outputs = (self.h_btd, self.starts_bnd, self.last_bd)
        compiled.forward(ctypes.addressof(given.shape), *map(kernel.address, (*places, *outputs)))

    def backward(self) -> None:
        given, shape, compiled = self.given, self.given.shape, compiled_kernel()
        shape.dh_batch, shape.dh_time = self.dh_btd.stride(0), self.dh_btd.stride(1)
        shape.du_time, shape.dx_time = self.du_btkd.stride(1), self.dx_btd.stride(1)
        places = (given.u_btkd, given.x_btd, given.gates, None, self.starts_bnd, self.dh_btd, None)
        outputs = (self.du_btkd, self.dx_btd, self.d_gates_bkd, self.d_first_bd)
        compiled.backward(ctypes.addressof(shape), *map(kernel.address, (*places, *outputs)))

    def forward_afresh(self) -> None:
        """As a model calls it in inference: the outputs are new memory each time."""
        with torch.no_grad():
            kernel.recurrence(*self.inputs)

    def both_afresh(self) -> None:
        """As a model calls it in training."""
        h_btd, _ = kernel.recurrence(*self.trained)
        torch.autograd.grad(h_btd, self.trained, self.dh_btd)


def compiled_kernel() -> kernel.Library:
    compiled = kernel.library()
    if isinstance(compiled, str):
        raise SystemExit(f"there is no compiled recurrence here: {compiled}")
    return compiled


def beside_memory(rounds: int, *, tiny: bool) -> list[str]:
    """The recurrence beside a copy that reads and writes as many bytes."""
    length, batch, width = TINY_WIDE if tiny else WIDE
    case, rows = Bandwidth(length, batch, width), []
    both = case.forward_bytes + case.backward_bytes
    for words, work, traffic in (
        ("forward, memory given", case.forward, case.forward_bytes),
        ("backward, memory given", case.backward, case.backward_bytes),
        ("forward, fresh memory", case.forward_afresh, case.forward_bytes),
        ("forward and backward by autograd, fresh memory", case.both_afresh, both),
    ):
        result = measure_latency({"copy": case.copy(traffic), "recurrence": work}, rounds=rounds)
        found = result.difference("recurrence", "copy")
        seconds = result["recurrence"].median
        rows.append(
            [
                words,
                f"{traffic / 1e6:,.0f} MB",
                duration(result["copy"].median),
                duration(seconds),
                f"{traffic / seconds / 1e9:.1f} GB/s",
                f"{found.ratio:.2f} ({found.low:.2f}–{found.high:.2f})",
            ]
        )
    heads = ["", "bytes read and written", "copy", "recurrence", "", "× copy"]
    return [
        f"**The recurrence beside memory, length {length}, batch {batch}, width {width}, fp32**",
        "",
        *table(heads, rows),
        "",
    ]


# Where the time goes


def where_time_goes(rounds: int, *, tiny: bool) -> list[str]:
    """Figure 5 of SRU++: kinds of operations in `sru`, in Parformer and in Transformer-XL."""
    task = TINY if tiny else TASK
    lines = []
    for training in (False, True):
        steps: dict[str, Work] = {
            "Parformer, SRU++": Step(OurStack(task), task, training=training, carry=True),
            "Parformer, Transformer-XL": reader(task, training=training),
        }
        if not training:  # its loop in Python is a million events of the profiler
            steps = {"`sru`": Step(TheirStack(task), task, training=False, carry=True), **steps}
        for step in steps.values():
            step()  # so that the memory is full
        found = {name: time_by_kind(step, rounds) for name, step in steps.items()}
        rows = [[kind, *(share(spent, kind) for spent in found.values())] for kind in KINDS]
        rows.append(["all", *(duration(sum(spent.values())) for spent in found.values())])
        words = "forward and backward" if training else "forward"
        lines += [
            f"**Where the time goes, {words}: {task.length} tokens × {task.batch} after "
            f"{task.length} remembered, fp32**",
            "",
            *table(["", *found], rows),
            "",
        ]
    return lines


def share(spent: dict[str, float], kind: str) -> str:
    return f"{duration(spent[kind])} ({100 * spent[kind] / sum(spent.values()):.0f}%)"


def reader(task: Task, *, training: bool) -> Work:
    """Transformer-XL with as many layers and weights."""
    width = 3 * task.width // 8
    model = pf.build(
        pf.ModelConfig(
            family="transformer-xl", pattern=pf.Pattern.parse(f"(sf)x{task.layers}"),
            vocab_size=256, d_model=width, n_head=4, d_inner=4 * width // 3, head="none",
            tgt_len=task.length, mem_len=task.length,
        )
    ).train(training)  # fmt: skip
    tokens = torch.zeros(task.batch, task.length, dtype=torch.long)
    slope = torch.randn(task.batch, task.length, width)
    state = model.initial_state(task.batch, task.length, zeros=True)

    def step() -> None:
        nonlocal state
        with torch.enable_grad() if training else torch.no_grad():
            out = model(tokens, state)
            state = out.state
            if training:
                model.zero_grad()
                out.hidden.backward(slope)

    return step


# Single tokens


def single_tokens(rounds: int, *, tiny: bool) -> list[str]:
    """One token more after a short and after a long text: recurrence only, and with attention."""
    task, lengths = (TINY, (4, 40)) if tiny else (TASK, (100, 10_000))
    models = {
        "recurrence only": f"(r)x{task.layers}",
        "attention in every 2nd": f"(ra)x{task.layers // 2}",
        "attention in the last": f"(r)x{task.layers - 1} a",
    }
    steps: dict[str, SingleSteps] = {}
    for name, pattern in models.items():
        config = pf.ModelConfig(
            family="sru", pattern=pf.Pattern.parse(pattern), vocab_size=256, d_model=task.width,
            d_attention=task.inside, n_head=1, d_inner=task.width, mem_len=2 * max(lengths),
        )  # fmt: skip
        model = pf.build(config).eval()
        for length in lengths:
            steps[f"{name}, {length}"] = SingleSteps(model, length)
    result = measure_latency(steps, rounds=rounds)
    rows = []
    for name, pattern in models.items():
        short, long = (f"{name}, {length}" for length in lengths)
        found = result.difference(long, short)
        rows.append(
            [
                f"{name}, `{pattern}`",
                *(duration(result[which].median) for which in (short, long)),
                f"{found.ratio:.2f} ({found.low:.2f}–{found.high:.2f})",
                f"{steps[long].state_bytes() / 1e3:,.0f} kB",
            ]
        )
    heads = ["", *(f"after {length:,} tokens" for length in lengths), "ratio", "state then"]
    return [
        f"**One token more, batch 1, {task.layers} layers, width {task.width}, fp32**",
        "",
        *table(heads, rows),
        "",
    ]


class SingleSteps:
    """A model that reads single tokens, and from time to time goes back to where it began."""

    def __init__(self, model: Model, length: int, again: int = 64) -> None:
        self.model, self.again, self.count = model, again, 0
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(256, (1, length + 1), generator=generator)
        self.token = tokens[:, -1:]
        self.start = model.initial_state(1)
        with torch.inference_mode():
            for piece in tokens[:, :-1].split(512, dim=1):
                self.start = model(piece, self.start, last_only=True).state
        self.state = self.start

    def __call__(self) -> None:
        if self.count % self.again == 0:
            self.state = self.start
        self.count += 1
        with torch.inference_mode():
            self.state = self.model(self.token, self.state).state

    def state_bytes(self) -> int:
        kept = (
            t for block in self.start.blocks if block is not None for t in block.tensors().values()
        )
        return sum(4 * t.numel() for t in kept)


SECTIONS = {
    "beside-sru": (beside_sru, 12),
    "beside-twin": (beside_twin, 20),
    "beside-memory": (beside_memory, 12),
    "where-time-goes": (where_time_goes, 5),
    "single-tokens": (single_tokens, 30),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, help="rounds per table (default: the section's own)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="a toy, to see whether all runs")
    parser.add_argument("--write", action="store_true", help="write into docs/benchmarks.md")
    given = parser.parse_args(arguments)
    if unknown := set(given.sections) - set(SECTIONS):
        parser.error(f"unknown section {unknown.pop()!r}; known: {', '.join(SECTIONS)}")
    if given.write and given.sections:
        parser.error("--write is for all sections together")
    torch.set_num_threads(given.threads)
    keep_memory()
    native.enable()
    lines = []
    for name in given.sections or SECTIONS:
        note(f"{name} …")
        section, rounds = SECTIONS[name]
        lines += section(given.rounds or rounds, tiny=given.tiny)
    options = [o for o in arguments or sys.argv[1:] if o != "--write"]
    command = shlex.join(["python", "benchmarks/recurrence.py", *options])
    text = "\n".join([*lines, f"`{command}` — {Receipt.issue('recurrence').line()}"])
    print(text)
    if given.write:
        write("recurrence", text)


if __name__ == "__main__":
    main()
