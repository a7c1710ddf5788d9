"""The survey's table of efficient Transformers: how the work of those that are here grows."""

from __future__ import annotations

from itertools import pairwise

from parformer.config import ModelConfig, preset
from parformer.costs import cost
from parformer.reproduce.study import Found, Ours
from parformer.reproduce.workbench import Workbench, study

LENGTHS = range(16, 80, 8)


def power(config: ModelConfig) -> int:
    """The degree of the polynomial by which FLOPs grow with the length, by its differences.

    >>> power(preset("pocket", pattern="f")), power(preset("pocket", pattern="s"))
    (1, 2)
    """
    work = [cost(config, tgt_len=n, mem_len=0).flops for n in LENGTHS]
    degree = -1
    while any(work):
        work, degree = [b - a for a, b in pairwise(work)], degree + 1
    return degree


@study("efficient-table-1")
def table_1(bench: Workbench) -> Found:
    models = {
        "transformer-xl": preset("transformer-xl-base", pattern="s"),
        "synthesizer": preset("synthesizer-pocket", pattern="y[dense,length=256]"),
    }
    return {key: Ours(power(config), "exact count") for key, config in models.items()}
