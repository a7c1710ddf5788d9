"""What computes ours for which table or figure?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from parformer.reproduce.study import Found
from parformer.reproduce.workbench import Workbench

Compute: TypeAlias = Callable[[Workbench], Found]

STUDIES: dict[str, Compute] = {}
"""What computes ours, by the name of the table or figure."""


def study(name: str) -> Callable[[Compute], Compute]:
    """Register what computes ours for a table or figure."""

    def register(compute: Compute) -> Compute:
        assert name not in STUDIES, f"{name} is there already"
        STUDIES[name] = compute
        return compute

    return register
