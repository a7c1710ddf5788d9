"""How much faster than its definition is the compiled convolution?

    python benchmarks/convolution.py
    python benchmarks/convolution.py --rounds 3 --scale 16

Dynamic and lightweight kernels, causal and not, in the sizes of Lite Transformer's models: forward
and backward of the compiled kernel and of the unfolded definition, interleaved, medians. Then a
step of Lite Transformer's language model beside the baseline with adaptive inputs, whose
multiply-adds are the same, both without embedding and head.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from parformer.blocks.stack import Stack
from parformer.config import preset
from parformer.kernels.convolution import convolve, unfolded
from parformer.measure.device import pinned_threads
from parformer.measure.latency import Comparison, measure_latency

CASES = {
    # batch, time, channels, heads, taps
    "pocket, 15 taps": (8, 256, 112, 4, 15),
    "translation 496, 31 taps": (32, 32, 248, 4, 31),
    "WikiText-103, 15 taps": (4, 512, 448, 4, 15),
    "WikiText-103, 63 taps": (4, 512, 448, 4, 63),
}


def passes(
    case: tuple[int, ...], *, dynamic: bool, causal: bool
) -> dict[str, Callable[[], object]]:
    """Forward and backward, the compiled way and the plain one."""
    batch, time, channels, heads, taps = case
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(batch, time, channels, generator=generator, requires_grad=True)
    shape = (batch, time, heads, taps) if dynamic else (heads, taps)
    kernels = torch.randn(shape, generator=generator).softmax(-1).requires_grad_()
    probe = torch.randn(batch, time, channels, generator=generator)
    first = 1 - taps if causal else -(taps // 2)

    def work(way: Callable[..., torch.Tensor]) -> Callable[[], object]:
        def step() -> object:
            return torch.autograd.grad(way(u, kernels, time, first), [u, kernels], probe)

        return step

    return {"compiled": work(convolve), "unfolded": work(unfolded)}


def convolutions(rounds: int, scale: int) -> None:
    print("| convolution | compiled, ms | unfolded, ms | times faster |\n|---|---|---|---|")
    for name, (batch, time, *rest) in CASES.items():
        case = (max(1, batch // scale), max(2, time // scale), *rest)
        for dynamic, causal in ((True, True), (True, False), (False, True)):
            found = measure_latency(passes(case, dynamic=dynamic, causal=causal), rounds=rounds)
            kind = f"{'dynamic' if dynamic else 'light'}, {'causal' if causal else 'both sides'}"
            print(row(f"{name}, {kind}", found, "compiled", "unfolded"))


def steps(rounds: int, scale: int) -> None:
    """One step of each language model's blocks, and an update's forward and backward."""
    tokens = max(8, 256 // scale)
    stacks = {}
    for name in ("lite-lm-wt103", "adaptive-input-wt103"):
        config = preset(name, positions="none", dropout=0.0, dropatt=0.0)
        if scale > 1:
            config = config.replaced(pattern=str(config.pattern[:2]))
        torch.manual_seed(0)
        stack = Stack(config)
        for parameter in stack.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        stacks[name] = (stack, torch.randn(1, tokens, config.d_model))

    def read(name: str) -> Callable[[], object]:
        stack, x = stacks[name]

        def step() -> object:
            with torch.inference_mode():
                return stack.eval()(x)

        return step

    def train(name: str) -> Callable[[], object]:
        stack, x = stacks[name]

        def step() -> object:
            y, _ = stack.train()(x)
            return torch.autograd.grad(y.square().sum(), list(stack.parameters()))

        return step

    print(
        f"\n| step of {tokens} tokens | Lite Transformer, ms | adaptive inputs, ms | times faster |"
    )
    print("|---|---|---|---|")
    for title, make in (("reading", read), ("forward and backward", train)):
        found = measure_latency({name: make(name) for name in stacks}, rounds=rounds)
        print(row(title, found, *stacks))


def row(title: str, found: Comparison, one: str, other: str) -> str:
    ours, theirs = found[one].median, found[other].median
    return f"| {title} | {1e3 * ours:.2f} | {1e3 * theirs:.2f} | {theirs / ours:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--scale", type=int, default=1, help="divide batch and time by this")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    with pinned_threads(given.threads):
        convolutions(given.rounds, given.scale)
        steps(given.rounds, given.scale)


if __name__ == "__main__":
    main()
