"""Is what a search says of its result true, and does it say when it should not be believed?"""

from __future__ import annotations

import datetime
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from parformer import __version__
from parformer.costs import cost
from parformer.errors import FolderError
from parformer.evaluate.counting import References
from parformer.pattern import Pattern, interleaved, par, sandwich
from parformer.report.search import found_table, search_page, sentences_of
from parformer.search.placement.choices import Choices
from parformer.search.placement.decide import Known, timetable_of
from parformer.search.placement.journal import HISTORY, SeedRun
from parformer.search.placement.removal import read_removal
from parformer.search.placement.result import History, PlacementResult
from parformer.search.placement.session import space_of
from parformer.search.placement.summarise import (
    average,
    compare_costs,
    retrained,
    rivals,
    summarise,
    warnings,
)
from tests.search.placement.trials import TOKENS, Clock, aims, make_recipe, search_of
from tests.train.trials import Breaker

KEYS = {
    *("pattern", "picks", "corpus", "layers", "choices", "encoder", "mode", "steps"),
    *("warmup_steps", "probabilities", "agreement", "seeds", "warnings", "target", "price"),
    *("compared", "effort", "device", "retrained", "command", "version", "date"),
    *("learned", "references"),
}
SEED_KEYS = {
    *("seed", "pattern", "picks", "probabilities", "removal", "steps", "changed", "early"),
    "history",
}


def made_up(
    picks: list[int], *, seed: int = 0, sure: float = 0.8, priced: bool = False, **changes: Any
) -> SeedRun:
    """A finished search of three layers, with eight lines of metrics."""
    rest = (1 - sure) / 2
    table = [[sure if c == pick else rest for c in range(3)] for pick in picks]
    removal = changes.pop("removal", None)
    run = SeedRun(
        seed=seed,
        steps=8,
        pattern=space_of(make_recipe()).pattern(picks),
        picks=tuple(picks),
        probabilities=tuple(map(tuple, table)),
        cost=0.9 if priced else None,
        removal=None if removal is None else read_removal(removal),
        changed=5,
        early=False,
        history=lines(8, table, priced=priced),
    )
    return replace(run, **changes)


def lines(count: int, table: Any, *, priced: bool = False, **columns: Any) -> History:
    """So many lines of metrics."""
    return History(
        step=tuple(range(1, count + 1)),
        loss=columns.get("loss", (2.0,) * count),
        temperature=tuple(5.0 - n / 2 for n in range(1, count + 1)),
        probabilities=(tuple(map(tuple, table)),) * count,
        cost=(0.9,) * count if priced else None,
        penalty=(0.1,) * count if priced else None,
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def result(clock: Clock, runs: list[SeedRun], **changes: Any) -> PlacementResult:
    recipe = make_recipe(**changes)
    prices, _ = aims(recipe)
    table = timetable_of(recipe, TOKENS)
    known = Known(prices, clock.pace)
    return summarise(recipe, runs, known, table, "parformer search …", Breaker())


def told(clock: Clock, runs: list[SeedRun], **changes: Any) -> dict[str, Any]:
    """What search.json says."""
    found = result(clock, runs, **changes)
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert PlacementResult.from_dict(values) == found  # it survives JSON
    assert isinstance(values, dict)
    return values


def sized(layers: int) -> Choices:
    return Choices.uniform(layers, "sfi")


def test_rivals_have_as_many_layers() -> None:
    for layers in range(3, 40):
        patterns = rivals(sized(layers))
        assert {len(pattern) for pattern in patterns.values()} == {layers}
        assert patterns["par"] == par(layers)
        assert ("sandwich" in patterns) == (layers % 2 == 0)
        if layers % 2 == 0:
            assert patterns["interleaved"] == interleaved(layers)
    assert str(rivals(sized(5))["interleaved"]) == "(sf)x2 s"
    assert rivals(sized(32))["sandwich"] == sandwich(32, k=6)  # the paper's


def test_everything_is_told(clock: Clock) -> None:
    runs = [made_up([0, 1, 2]), made_up([0, 1, 1], seed=1)]
    found = told(clock, runs, search__seeds=2)
    assert found.keys() == KEYS
    assert all(seed.keys() == SEED_KEYS for seed in found["seeds"])
    assert (found["corpus"], found["layers"], found["mode"]) == ("text.txt", 3, "soft")
    assert found["choices"] == ["s", "f", "i"]
    assert (found["steps"], found["warmup_steps"]) == (8, 2)
    assert found["target"] is found["price"] is found["retrained"] is None
    assert (found["command"], found["version"]) == ("parformer search …", __version__)
    today = datetime.datetime.now(datetime.UTC).date()
    assert abs((datetime.date.fromisoformat(found["date"]) - today).days) <= 1
    assert set(found["device"]) == {"cpu", "threads", "torch"}
    # two of the eight updates are the architecture's
    step = (6 * 0.02 + 2 * 0.03) / 8
    assert found["effort"] == pytest.approx(
        {
            "search_step_seconds": step,
            "baseline_step_seconds": 0.01,
            "share": step / 0.01,
            "seconds": 16 * step,
        }
    )
    assert [seed["seed"] for seed in found["seeds"]] == [0, 1]
    assert found["seeds"][1]["picks"] == [0, 1, 1]
    history = found["seeds"][0]["history"]
    assert history["step"] == list(range(1, 9))
    assert history["cost"] is history["lambda"] is None
    assert len(history["probabilities"]) == 8
    shown = PlacementResult.from_dict(found)
    search_page(shown)  # and it can be shown
    found_table(shown)


def test_how_long_a_search_takes_counts_its_own_cycles(clock: Clock) -> None:
    """Where a cycle is an epoch, that of the weights' text is meant."""
    changes: dict[str, Any] = {"search__cycle": 0, "train__steps": 1500}
    found = told(clock, [made_up([0, 1, 2])], **changes)
    table = timetable_of(make_recipe(**changes), TOKENS)
    turns = sum(table.at(step).kind == "architecture" for step in range(1500))
    assert turns > 100
    mean = ((1500 - turns) * 0.02 + turns * 0.03) / 1500
    assert found["effort"]["search_step_seconds"] == pytest.approx(mean)


def test_probabilities_are_averaged_and_decoded_together(clock: Clock) -> None:
    """One seed that is sure outweighs two that hardly care."""
    runs = [
        made_up([0, 1, 2], sure=0.99),
        made_up([1, 1, 2], sure=0.36, seed=1),
        made_up([1, 1, 0], sure=0.36, seed=2),
    ]
    found = told(clock, runs)
    assert found["picks"] == [0, 1, 2]
    assert found["pattern"] == "sf"
    for layer in range(3):
        for choice in range(3):
            mean = fmean(run.probabilities[layer][choice] for run in runs)
            assert found["probabilities"][layer][choice] == pytest.approx(mean)
    # of three layers the pairs agree on two, on one and on two
    assert found["agreement"] == pytest.approx((2 + 1 + 2) / 9)
    assert told(clock, runs[:1])["agreement"] is None
    assert average([((0.5, 0.5),), ((0.0, 1.0),)]) == ((0.25, 0.75),)


def test_a_certain_choice_may_have_no_chance_left(clock: Clock) -> None:
    found = told(clock, [made_up([0, 1, 2], sure=1.0)])
    assert found["picks"] == [0, 1, 2]


def test_what_is_found_is_within_its_limit(clock: Clock) -> None:
    changes = {"search__limit": "flops=0.6x"}
    runs = [made_up([0, 0, 1], priced=True, cost=0.55), made_up([0, 0, 1], priced=True, cost=0.65)]
    found = told(clock, runs, **changes)
    prices, _ = aims(make_recipe(**changes))
    assert prices is not None
    assert prices.total([0, 0, 1]) > 0.6
    assert found["target"] == {"metric": "flops", "limit": 0.6}
    assert found["price"]["found"] == prices.total(found["picks"]) <= 0.6
    assert found["price"]["expected"] == pytest.approx(0.6)
    assert found["price"]["metric"] == "flops"
    assert found["seeds"][0]["history"]["cost"] == [0.9] * 8
    free = told(clock, runs, search__penalty="flops=0.1")
    assert free["picks"] == [0, 0, 1]
    assert free["target"] == {"metric": "flops", "penalty": 0.1}
    search_page(PlacementResult.from_dict(found))


GUARDED: dict[str, Any] = {"search__guard": 0.1}
NEEDED = [[0.3, 0.0, 0.0], [0.0, 0.05, 0.9], [0.0, 0.2, 0.0]]
"""The first layer needs its attention, the third its feed-forward; nobody needs nothing."""


def test_what_a_layer_cannot_do_without_is_kept(clock: Clock) -> None:
    found = told(clock, [made_up([1, 1, 1], removal=NEEDED)], **GUARDED)
    assert found["picks"] == [0, 1, 1]
    assert found["seeds"][0]["removal"] == NEEDED
    (said,) = found["warnings"]
    assert said.startswith("Layer 1 keeps self-attention: the search had settled on another")
    assert "grown by more than 10% without it" in said
    agreed = told(clock, [made_up([0, 1, 1], removal=NEEDED)], **GUARDED)
    assert (agreed["picks"], agreed["warnings"]) == ([0, 1, 1], [])
    assert told(clock, [made_up([1, 1, 1], removal=NEEDED)])["picks"] == [1, 1, 1]  # no guard


def test_all_seeds_are_asked_what_they_need(clock: Clock) -> None:
    """On average: what one of two seeds needs a little is needed by none."""
    nothing = [[0.0] * 3] * 3
    half = [made_up([1, 1, 1], removal=NEEDED), made_up([1, 1, 1], seed=1, removal=nothing)]
    assert told(clock, half, **GUARDED)["picks"] == [0, 1, 1]  # 15% on average
    strict = told(clock, half, search__guard=0.2)
    assert strict["picks"] == [1, 1, 1]
    mixed = [made_up([1, 1, 1], removal=NEEDED), made_up([1, 1, 1], seed=1)]
    assert told(clock, mixed, **GUARDED)["picks"] == [1, 1, 1]  # one was not asked


def test_a_limit_has_the_last_word_and_nothing_else_is_said(clock: Clock) -> None:
    recipe = make_recipe(search__limit="flops=0.4x", **GUARDED)
    prices, _ = aims(recipe)
    assert prices is not None
    assert prices.total([0, 2, 2]) > 0.4  # no room for a single attention
    runs = [made_up([1, 1, 1], removal=NEEDED, cost=0.3)]
    found = told(clock, runs, search__limit="flops=0.4x", **GUARDED)
    assert 0 not in found["picks"]
    assert not any("keeps self-attention" in said for said in found["warnings"])


def test_costs_are_those_of_the_plain_models(clock: Clock) -> None:
    recipe = make_recipe()
    patterns = {"found": Pattern.parse("sf"), **rivals(sized(3))}
    rows = compare_costs(patterns, recipe, Breaker())
    assert [row.name for row in rows] == ["found", "interleaved", "par"]
    for row in rows:
        price = cost(recipe.model.replaced(pattern=row.pattern))
        assert row.pattern == patterns[row.name]
        assert row.parameters == price.parameters
        assert row.flops == price.flops
        assert row.state_bytes == price.state_bytes
        low, high = row.latency_interval
        assert low < row.latency_seconds < high
    assert clock.asked == ["models"]


def test_models_are_really_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = compare_costs({"found": Pattern.parse("f")}, make_recipe(), Breaker())
    low, high = row.latency_interval
    assert 0 < low <= row.latency_seconds <= high < 1


def falling(before: float, after: float, changed: int = 20) -> SeedRun:
    losses = tuple(before if n <= changed else after for n in range(1, 41))
    run = made_up([0, 1, 2], changed=changed)
    return replace(run, history=lines(40, run.probabilities, loss=losses))


def test_a_loss_that_fell_after_the_pattern_settled() -> None:
    assert falling(2.0, 1.5).fall_after_change() == pytest.approx(0.25)
    assert falling(2.0, 2.5).fall_after_change() == 0.0
    assert falling(2.0, 1.0, changed=40).fall_after_change() == 0.0  # nothing came after
    assert falling(2.0, 1.0, changed=0).fall_after_change() == 0.0  # nothing came before
    recipe = make_recipe()
    (said,) = warnings([falling(2.0, 1.5)], None, recipe)
    assert said.startswith("Seed 0: the loss still fell by 25% after the pattern had settled at")
    assert "step 20." in said
    assert warnings([falling(2.0, 1.95)], None, recipe) == []


def test_means_of_a_loss_are_taken_near_the_ends() -> None:
    """A twentieth of the lines, and at least one: what lies far back says nothing."""
    run = falling(2.0, 1.0)
    losses = tuple(
        100.0 if step < 19 or 20 < step < 39 else loss
        for step, loss in zip(run.history.step, run.history.loss, strict=True)
    )
    run = replace(run, history=replace(run.history, loss=losses))
    assert run.fall_after_change() == pytest.approx(0.5)


def test_seeds_that_do_not_agree() -> None:
    recipe = make_recipe()
    differing = [made_up([0, 1, 2]), made_up([1, 1, 0], seed=1)]
    (said,) = warnings(differing, None, recipe)
    assert said.startswith("Two seeds agree on 33% of the layers only")
    alike = [made_up([0, 1, 2]), made_up([0, 1, 1], seed=1)]
    assert warnings(alike, None, recipe) == []
    assert warnings(differing[:1], None, recipe) == []


def test_a_limit_that_was_not_reached_by_searching() -> None:
    recipe = make_recipe(search__limit="flops=0.6x")
    prices, _ = aims(recipe)
    (said,) = warnings([made_up([0, 1, 2], cost=0.8)], prices, recipe)
    assert said.startswith("The expected flops is 0.80x, above the limit of 0.6x")
    assert warnings([made_up([0, 1, 2], cost=0.62)], prices, recipe) == []
    priced = make_recipe(search__penalty="flops=0.6")
    assert warnings([made_up([0, 1, 2], cost=0.8)], prices, priced) == []
    assert search_of(priced).limit == ""


def counted(bigram: float) -> References:
    losses = {"uniform": 5.5, "unigram": 3.0, "bigram": bigram, "ngram": bigram, "xz": None}
    return References(**losses, order=2, orders=(3.0, bigram), tokens=99, counted=999)


def test_a_supernet_that_learned_nothing_crowns_no_pattern(clock: Clock) -> None:
    runs, recipe = [made_up([0, 1, 2])], make_recipe()
    table, loss = timetable_of(recipe, TOKENS), made_up([0, 1, 2]).loss
    for bigram, learned in ((loss * 1.01, True), (loss * 0.99, False)):
        known = Known(None, clock.pace)
        found = summarise(recipe, runs, known, table, "…", Breaker(), counted(bigram))
        assert found.learned is learned
        assert any("nothing was learned" in words for words in found.warnings) is not learned
        assert found.references is not None
        assert found.references.bigram == bigram
        first = sentences_of(found)[0]
        assert first.startswith("Nothing was learned in this time") is not learned
        score = {"loss": loss, "perplexity": 2.0, "bits_per_character": 2.1, "tokens": 9}
        results = {name: {"steps": 8, "valid": score, "test": score} for name in rivals(sized(4))}
        patterns = {"found": Pattern.parse("sf"), **rivals(sized(4))}
        results["found"] = results["par"]
        whole = retrained(found, results, patterns, by_character=True)
        assert all(row.learned is learned for row in whole.retrained or ())
        assert ("nothing to compare" in " ".join(sentences_of(whole))) is not learned


def test_trained_from_scratch(clock: Clock) -> None:
    found = result(clock, [made_up([0, 1, 2])])
    score = {"loss": 1.5, "perplexity": math.exp(1.5), "bits_per_character": 2.1, "tokens": 9}
    results = {
        "found": {"steps": 8, "valid": score, "test": score},
        "par": {"steps": 8, "valid": score},
    }
    patterns = {"found": Pattern.parse("sf"), "par": Pattern.parse("sff")}
    whole = retrained(found, results, patterns, by_character=True)
    assert replace(whole, retrained=None) == found
    one, two = whole.to_dict()["retrained"]
    assert one == {
        "name": "found",
        "pattern": "sf",
        "steps": 8,
        "valid": {"loss": 1.5, "perplexity": math.exp(1.5), "bits": 2.1},
        "test": {"loss": 1.5, "perplexity": math.exp(1.5), "bits": 2.1},
        "learned": True,
    }
    assert (two["pattern"], two["test"]) == ("s (f)x2", None)
    words = retrained(found, results, patterns, by_character=False)
    assert words.retrained is not None
    assert words.retrained[0].valid.bits is None
    assert found.retrained is None


def test_a_long_history_is_thinned_to_what_a_figure_can_show() -> None:
    run = made_up([0, 1, 2])
    for count in (1, HISTORY, HISTORY + 1, 7 * HISTORY + 3):
        steps = replace(run, history=lines(count, run.probabilities)).summary().history.step
        assert min(count, HISTORY // 2) <= len(steps) <= HISTORY
        assert steps[-1] == count  # how it ended
        assert len({b - a for a, b in pairwise(steps)}) <= 1
    assert run.history.step == tuple(range(1, 9))


def test_a_seed_whose_metrics_are_gone_is_named(tmp_path: Path) -> None:
    for text in (None, "", '{"step": 1, "loss": 2.0}\n'):
        if text is not None:
            (tmp_path / "metrics.jsonl").write_text(text)
        with pytest.raises(FolderError, match=r"metrics.jsonl' tells nothing of the search"):
            SeedRun.read(tmp_path)
