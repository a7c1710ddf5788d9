"""How does the recurrence of SRU become a loop that ONNX knows?

The compiled recurrence is one operator; ONNX has `Scan`, which carries the cell from token to
token. `parformer.kernels.steps` defines what both compute.
"""

# b batch, t time, d width; onnxscript reads the source of these functions

from typing import Any

import onnxscript
from onnxscript import FLOAT
from onnxscript import opset18 as op


@onnxscript.script()
def scan_recurrence(
    u: FLOAT[...], x: FLOAT[...], weight: FLOAT[...], bias: FLOAT[...], cell: FLOAT[...]
) -> tuple[FLOAT[...], FLOAT[...]]:
    """Outputs (batch, time, width), and the last cell."""
    weight_f = op.Gather(weight, op.Constant(value_int=0), axis=0)
    weight_r = op.Gather(weight, op.Constant(value_int=1), axis=0)
    bias_f = op.Gather(bias, op.Constant(value_int=0), axis=0)
    bias_r = op.Gather(bias, op.Constant(value_int=1), axis=0)
    by_time = op.Transpose(u, perm=[1, 2, 0, 3])
    candidate = op.Gather(by_time, op.Constant(value_int=0), axis=1)
    forget = op.Gather(by_time, op.Constant(value_int=1), axis=1)
    reset = op.Gather(by_time, op.Constant(value_int=2), axis=1)
    skip = op.Transpose(x, perm=[1, 0, 2])

    @onnxscript.graph()
    def step(cell_before, u_now, f_now, r_now, x_now):  # type: ignore[no-untyped-def]
        f = op.Sigmoid(op.Add(op.Add(f_now, op.Mul(weight_f, cell_before)), bias_f))
        r = op.Sigmoid(op.Add(op.Add(r_now, op.Mul(weight_r, cell_before)), bias_r))
        cell_after = op.Add(u_now, op.Mul(op.Sub(cell_before, u_now), f))
        shown = op.Add(x_now, op.Mul(op.Sub(cell_after, x_now), r))
        return cell_after, shown

    last, rows = op.Scan(cell, candidate, forget, reset, skip, body=step, num_scan_inputs=4)
    outputs = op.Transpose(rows, perm=[1, 0, 2])
    return outputs, last


def recurrence(
    u: Any, x: Any, weight: Any, bias: Any, cell: Any, mask: Any = None, scale: float = 1.0
) -> tuple[Any, Any, Any]:
    """In the place of the operator, whose third answer only gradients need."""
    assert mask is None
    assert scale == 1.0
    if cell is None:
        first = op.Squeeze(op.Slice(x, [0], [1], [1]), [1])
        cell = op.Sub(first, first)
    outputs, last = scan_recurrence(u, x, weight, bias, cell)
    return outputs, last, last
