"""Why does the attention inside a recurrence not set in, and what lets it?

Four layers read the first bytes of enwik8, each trial with other learning rates. Beside the
bits it says how large alpha has become, over how many places attention spreads its weight (1:
it looks at a single one), and what the model loses without attention (alpha set to zero).
`python benchmarks/recurrence_attention.py --enwik8 FILE` prints the table.
"""

# b batch, t time, p width of the projection

from __future__ import annotations

import argparse
import lzma
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from inference import note, table
from torch import Tensor

import parformer as pf
from parformer.blocks.sru_attention import SRUAttention
from parformer.kernels import native
from parformer.measure import Receipt
from parformer.model import Model

TRAIN, VALID = 9_000_000, 34_816
"""Bytes to train on, and bytes after them to validate on."""
BATCH, LENGTH = 16, 128
DECAY, CLIP, WARMUP = 0.1, 1.0, 0.1


@dataclass(frozen=True, slots=True)
class Trial:
    """A model and how it learns."""

    pattern: str
    rate: float
    key_rate: float = 1.0
    """Of the learning rate, what the matrices of keys and values get."""


TRIALS = (
    Trial("(r)x4", 8e-3),
    Trial("(ra)x2", 8e-3),
    Trial("(ra)x2", 2e-3),
    Trial("(ra)x2", 8e-3, 0.1),
    Trial("(r a[norm=pre])x2", 8e-3),
    Trial("(r a[norm=pre])x2", 8e-3, 0.1),
)


def make_model(trial: Trial) -> Model:
    torch.manual_seed(0)
    config = pf.ModelConfig(
        family="sru", pattern=pf.Pattern.parse(trial.pattern), vocab_size=256, d_model=192,
        d_attention=48, n_head=1, d_inner=192, tie_weights=False, mem_len=LENGTH, tgt_len=LENGTH,
    )  # fmt: skip
    return pf.build(config).train()


def make_optimizer(model: Model, trial: Trial) -> torch.optim.Optimizer:
    """AdamW, with weight decay for matrices only, as recipes have it."""
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        share = trial.key_rate if "key_value" in name else 1.0
        groups.setdefault((share, DECAY if parameter.ndim > 1 else 0.0), []).append(parameter)
    return torch.optim.AdamW(
        [{"params": p, "share": share, "weight_decay": d} for (share, d), p in groups.items()]
    )


def train(model: Model, trial: Trial, data: Tensor, steps: int) -> None:
    """Updates along a warm-up and a cosine, with memory and cells carried."""
    optimizer = make_optimizer(model, trial)
    rows, state, warmup = data.view(BATCH, -1), model.initial_state(BATCH), int(WARMUP * steps)
    for step in range(steps):
        gone = (step - warmup) / (steps - warmup)
        rise = (step + 1) / max(1, warmup) if step < warmup else (1 + math.cos(math.pi * gone)) / 2
        for group in optimizer.param_groups:
            group["lr"] = trial.rate * rise * group["share"]
        piece = rows[:, step * LENGTH : (step + 1) * LENGTH + 1]
        out = model(piece[:, :-1], state, targets=piece[:, 1:])
        state = out.state
        optimizer.zero_grad()
        out.loss.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()


@torch.no_grad()
def score(model: Model, data: Tensor) -> float:
    """Bits per byte."""
    rows, state, total = data.view(BATCH, -1), model.initial_state(BATCH), 0.0
    model.eval()
    for start in range(0, rows.shape[1] - 1, LENGTH):
        piece = rows[:, start : start + LENGTH + 1]
        out = model(piece[:, :-1], state)
        state = out.state
        total += float(F.cross_entropy(out.logits.mT, piece[:, 1:], reduction="sum"))
    model.train()
    return total / (rows[:, 1:].numel() * math.log(2))


@torch.no_grad()
def places(model: Model, data: Tensor) -> list[float]:
    """Over how many of about 96 places each attention spreads its weight: exp of the entropy."""
    found: list[float] = []

    def look(block: SRUAttention, z_btp: Tensor) -> None:
        inside, time = z_btp.shape[-1], z_btp.shape[1]
        read_btp = block._read(z_btp)
        keys_btp = F.linear(read_btp, block.key_value.weight[:inside])
        scores_btt = read_btp @ keys_btp.mT / math.sqrt(inside)
        future_tt = torch.ones(time, time, dtype=torch.bool).triu(1)
        shares_btt = scores_btt.masked_fill(future_tt, -torch.inf).softmax(-1)[:, time // 2 :]
        entropy = -torch.special.xlogy(shares_btt, shares_btt).sum(-1).mean()
        found.append(float(entropy.exp()))

    hooks = [
        block.project.register_forward_hook(lambda _, __, z, block=block: look(block, z))
        for block in attentions(model)
    ]
    model.eval()
    model(data.view(BATCH, -1)[:, :LENGTH])
    model.train()
    for hook in hooks:
        hook.remove()
    return found


def attentions(model: Model) -> list[SRUAttention]:
    return [block for block in model.blocks if isinstance(block, SRUAttention)]


@torch.no_grad()
def row(trial: Trial, data: Tensor, steps: int) -> list[str]:
    """Train a trial and say what has become of its attention."""
    model, valid = make_model(trial), data[TRAIN : TRAIN + VALID]
    with torch.enable_grad():
        train(model, trial, data[:TRAIN], steps)
    spread = places(model, valid)
    alphas = [float(block.alpha) for block in attentions(model)]
    bits = score(model, valid)
    for block in attentions(model):
        block.alpha.zero_()
    return [
        f"`{trial.pattern}`",
        f"{trial.rate:g}",
        f"{trial.rate * trial.key_rate:g}" if alphas else "",
        ", ".join(f"{alpha:.2f}" for alpha in alphas),
        ", ".join(f"{count:.1f}" for count in spread),
        f"{bits:.3f}",
        f"{score(model, valid) - bits:.3f}" if alphas else "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--enwik8", type=Path, required=True, help="its first bytes, plain or .xz")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--trials", type=int, nargs="*", default=range(len(TRIALS)))
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    native.enable()
    opened = lzma.open if given.enwik8.suffix == ".xz" else open
    with opened(given.enwik8, "rb") as file:
        data = torch.from_numpy(np.frombuffer(file.read(TRAIN + VALID), np.uint8).astype(np.int64))
    rows = []
    for number in given.trials:
        rows.append(row(TRIALS[number], data, given.steps))
        note(" | ".join(rows[-1]))
    heads = ["", "rate", "rate of keys", "alpha", "places", "valid bits", "lost without"]
    print("\n".join(table(heads, rows)))
    print(f"\n{Receipt.issue('recurrence').line()}")


if __name__ == "__main__":
    main()
