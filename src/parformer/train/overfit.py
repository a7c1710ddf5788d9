"""Was a training better before its end than at its end?

Where there is little text, a model learns it by heart, and its loss on other text rises again.

>>> curve = ((20, 7.913), (40, 8.572), (200, 8.144))
>>> advice(curve)[:65]
'The loss on valid was 2.8% lower after 20 updates than after 200:'
>>> advice(((20, 7.913), (40, 7.92)))
''
"""

from __future__ import annotations

from collections.abc import Sequence

LEAST = 0.01
"""The share of a loss by which it was lower: less may be chance."""


def advice(curve: Sequence[tuple[int, float]]) -> str:
    """What was better when, and the ways out; nothing where the end is the best or near it."""
    if len(curve) < 2:
        return ""
    last, end = curve[-1]
    step, best = min(curve, key=lambda point: point[1])
    if not best < (1 - LEAST) * end:
        return ""
    return (
        f"The loss on valid was {1 - best / end:.1%} lower after {step:,} updates than after "
        f"{last:,}: most often there is too little text for so many. More text helps, or another "
        f"--run with --steps {step}, or with train.patience=3, which keeps the best weights."
    )
