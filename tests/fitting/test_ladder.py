"""Is the baseline as large as the time and the limits allow?"""

from __future__ import annotations

import pytest

from parformer.config import preset
from parformer.costs import cost
from parformer.fitting.kinds import find_kind
from parformer.fitting.kinds.language import BYTES_PER_PARAMETER
from parformer.fitting.ladder import (
    HEAVIER,
    LADDER,
    affordable,
    ladder,
    reckon,
    within,
)
from parformer.fitting.phases import TextFacts
from parformer.fitting.request import FAMILIES, FitRequest


@pytest.mark.parametrize("family", FAMILIES)
def test_every_rung_is_a_model_and_larger_than_the_one_before(family: str) -> None:
    rungs = ladder(preset(FAMILIES[family]))
    sizes = [cost(config).parameters for config in rungs]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(LADDER)
    for config, (width, pairs) in zip(rungs, LADDER, strict=True):
        assert config.d_model == width
        assert config.pattern.letters == "sf" * pairs
        assert config.family == family


def test_an_update_of_twice_the_work_takes_less_than_twice_as_long() -> None:
    rungs = ladder(preset("pocket"))
    paces = reckon(rungs, rungs[3], 0.1)
    assert paces[3] == pytest.approx(0.1)
    ratio = cost(rungs[5]).flops / cost(rungs[3]).flops
    assert paces[5] == pytest.approx(0.1 * ratio**HEAVIER)


def test_the_largest_model_that_reads_enough() -> None:
    rungs = ladder(preset("pocket"))
    paces = reckon(rungs, rungs[3], 0.1)
    facts = TextFacts("", tokens=500, bytes=2000, vocabulary=256, overlap={}, references={})
    kind = find_kind(FitRequest(corpus="python-source"))
    wanted = [kind.wanted(config, facts) for config in rungs]
    for seconds in (1, 10, 100, 1000, 1e7):
        best = affordable(wanted, paces, seconds, 2048)
        # a token of this text is worth four bytes
        read = [4 * seconds / pace * 2048 for pace in paces]
        enough = [
            r >= BYTES_PER_PARAMETER * cost(c).parameters for r, c in zip(read, rungs, strict=True)
        ]
        assert best == max((n for n, fine in enumerate(enough) if fine), default=0)


def test_absolute_limits_shrink_the_baseline() -> None:
    figures = [{"parameters": 10.0 * n} for n in range(1, 6)]
    assert within(figures, {"parameters": 35.0}, 4) == 2
    assert within(figures, {"parameters": 35.0}, 1) == 1
    assert within(figures, {"parameters": 1.0}, 4) == 0
