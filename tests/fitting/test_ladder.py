"""Is the baseline as large as the time and the limits allow?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parformer.config import preset
from parformer.costs import cost
from parformer.errors import Stopped
from parformer.fitting.kinds import find_kind
from parformer.fitting.kinds.language import BYTES_PER_PARAMETER, trained
from parformer.fitting.ladder import (
    HEAVIER,
    LADDER,
    affordable,
    burden,
    in_step,
    ladder,
    reckon,
    within,
)
from parformer.fitting.phases import Baseline, Finalists, TextFacts
from parformer.fitting.progress import Progress
from parformer.fitting.request import FAMILIES, FitRequest
from parformer.recipe import read_recipe
from parformer.search.limits import read_limits
from tests.fitting.office import lenient, small_fit, small_request, write_text
from tests.fitting.test_job import StopAt


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


RUNGS = ladder(preset("pocket"))


def fit_of(place: int, tokens: float, *limits: str, by_clock: bool = True) -> Any:
    """A fit whose baseline is such a rung and reads so many tokens in the contest."""
    request = FitRequest(corpus="python-source", limits=limits or ("size=8MB",))
    recipe = replace(read_recipe("pocket"), model=RUNGS[place])
    return SimpleNamespace(
        request=request,
        kind=find_kind(request),
        facts=TextFacts("", tokens=500, bytes=500, vocabulary=256, overlap={}, references={}),
        baseline=Baseline(recipe, {}, {}, tokens),
        by_clock=by_clock,
    )


def test_finalists_read_ten_bytes_for_each_parameter_as_the_baseline_does() -> None:
    needed = BYTES_PER_PARAMETER * cost(RUNGS[2]).parameters
    share = burden(fit_of(2, needed))
    assert share is not None
    assert share(RUNGS[2]) == pytest.approx(1)
    larger, known = cost(RUNGS[3]), cost(RUNGS[2])
    slower = (larger.flops / known.flops) ** HEAVIER
    assert share(RUNGS[3]) == pytest.approx(larger.parameters / known.parameters * slower)
    twice = burden(fit_of(2, 2 * needed))
    assert twice is not None
    assert twice(RUNGS[2]) == pytest.approx(0.5)
    by_updates = burden(fit_of(2, needed, by_clock=False))
    assert by_updates is not None
    assert by_updates(RUNGS[3]) == pytest.approx(larger.parameters / known.parameters)
    # where the smallest baseline has too little time, nobody is to need more than it
    short = burden(fit_of(2, needed / 10))
    assert short is not None
    assert short(RUNGS[2]) == pytest.approx(1)


def test_tables_that_are_looked_up_call_for_no_text() -> None:
    kind = find_kind(FitRequest(corpus="python-source"))
    facts = TextFacts("", tokens=500, bytes=500, vocabulary=256, overlap={}, references={})
    plain = RUNGS[2]
    few, many = (
        plain.replaced(pattern=f"n[rows={rows}] {plain.pattern}") for rows in (4096, 65_536)
    )
    assert cost(many).parameters > 2 * cost(plain).parameters
    assert kind.wanted(few, facts) == kind.wanted(many, facts) == kind.wanted(plain, facts)


def test_only_a_loose_limit_leaves_a_size_to_the_time() -> None:
    tight = ["latency=0.8x", "latency=1x", "flops=0.5x"]
    loose = ["latency=2x", "latency=5ms", "size=8MB", "memory=0.5x", "flops=1G"]
    assert [in_step(read_limits([one])) for one in tight] == [True] * 3
    assert [in_step(read_limits([one])) for one in loose] == [False] * 5
    assert in_step(read_limits(["size=8MB", "latency=0.8x"]))
    assert burden(fit_of(2, 1e6, "latency=0.8x")) is None
    assert burden(fit_of(2, 0.0)) is None  # what an older version began


@pytest.mark.parametrize("limit", ["size=40MB", "latency=9s"])
def test_a_loose_limit_is_no_reason_for_what_there_is_no_time_for(
    limit: str, tmp_path: Path
) -> None:
    """Its tables apart, no finalist has more to learn than a baseline that has too little time."""
    text = write_text(tmp_path / "words.txt")
    request = small_request(text, tmp_path / "run", limits=(limit,), choices="rsfn")
    with lenient(), pytest.raises(Stopped):
        small_fit(request, watch=StopAt("rates"))
    baseline, *others = Progress(tmp_path / "run", request).need(Finalists).models
    assert "memory" in [one.name for one in others]
    assert all(one.eligible for one in others)
    most = trained(baseline.config)
    assert most // 4 < max(trained(one.config) for one in others) <= most
