"""What does the recurrence of SRU compute?

For every channel on its own, with projections u of the input and a cell c that starts as given:

    forget f = sigmoid(u₁ + v₀ c + b₀)      c before this step: both gates look back
    reset  r = sigmoid(u₂ + v₁ c + b₁)
    cell   c ← f c + (1 − f) u₀
    output h = r c + (1 − r) x              x is scaled first, and r masked for dropout

So says SRU++ (Lei 2021). This is the definition; recurrence.py has a faster way to the same.

>>> u_btkd, x_btd = torch.zeros(2, 5, 3, 4), torch.ones(2, 5, 4)
>>> gates = torch.zeros(2, 4), torch.zeros(2, 4)
>>> h_btd, c_bd = step_by_step(u_btkd, x_btd, *gates, None, None, 1.0)
>>> h_btd.shape, c_bd.shape, h_btd[0, 0, 0].item()
(torch.Size([2, 5, 4]), torch.Size([2, 4]), 0.5)
"""

# b batch, t time, k projections (candidate, forget, reset and perhaps skip), d width,
# g gates (forget, reset)

from __future__ import annotations

import time

import torch
from torch import Tensor


def step_by_step(
    u_btkd: Tensor,
    x_btd: Tensor | None,
    weight_gd: Tensor,
    bias_gd: Tensor,
    cell_bd: Tensor | None,
    mask_bd: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The definition."""
    kind = find_type(u_btkd, x_btd)
    skip_btd = u_btkd[:, :, 3] if x_btd is None else x_btd
    if cell_bd is None:
        cell_bd = u_btkd.new_zeros(u_btkd.shape[0], u_btkd.shape[-1], dtype=kind)
    weights, biases = weight_gd.to(kind), bias_gd.to(kind)
    mask_bd = None if mask_bd is None else mask_bd.to(kind)
    c_bd, outputs = cell_bd.to(kind), []
    for u_bkd, x_bd in zip(u_btkd.to(kind).unbind(1), skip_btd.to(kind).unbind(1), strict=True):
        f_bd = torch.sigmoid(u_bkd[:, 1] + weights[0] * c_bd + biases[0])
        r_bd = torch.sigmoid(u_bkd[:, 2] + weights[1] * c_bd + biases[1])
        c_bd = u_bkd[:, 0] + (c_bd - u_bkd[:, 0]) * f_bd
        r_bd = r_bd if mask_bd is None else r_bd * mask_bd
        x_bd = x_bd if scale == 1 else x_bd * scale
        outputs.append(x_bd + (c_bd - x_bd) * r_bd)
    h_btd = torch.stack(outputs, 1).to(skip_btd.dtype) if outputs else skip_btd.clone()
    return h_btd, c_bd.clone() if c_bd is cell_bd else c_bd


def find_type(u_btkd: Tensor, x_btd: Tensor | None) -> torch.dtype:
    """What to compute in."""
    wide = torch.float64 in (u_btkd.dtype, u_btkd.dtype if x_btd is None else x_btd.dtype)
    return torch.float64 if wide else torch.float32


def measure_steps(steps: int = 64, width: int = 256) -> float:
    """How much longer steps take one after the other than all at once, as if they were texts.

    A kernel is about as fast as all at once. This thread's own time is what counts: on a busy
    machine the clock on the wall was seen to say ten times as much.
    """
    u_btkd, x_btd = torch.zeros(1, steps, 3, width), torch.zeros(1, steps, width)
    gates = (torch.zeros(2, width), torch.zeros(2, width), None, None, 1.0)
    shortest = []
    with torch.no_grad():
        for u, x in ((u_btkd, x_btd), (u_btkd.transpose(0, 1), x_btd.transpose(0, 1))):
            times = []
            for _ in range(6):
                start = time.thread_time()
                step_by_step(u, x, *gates)
                times.append(time.thread_time() - start)
            shortest.append(min(times))
    return shortest[0] / shortest[1]
