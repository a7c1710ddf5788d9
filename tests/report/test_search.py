"""The report says what the search found, and says nothing false when it found something odd."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from html import escape
from io import StringIO
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console
from test_page import Reader

from parformer.errors import PatternError
from parformer.pattern import Pattern, interleaved, par, sandwich
from parformer.report import search as page
from parformer.report import search_costs, search_figures
from parformer.report.page import Part
from parformer.report.search_figures import choice_label, third_sentence, thirds
from parformer.report.stack import COLOURS
from parformer.search.placement.result import PlacementResult

FILES = Path(__file__).parents[1] / "search" / "files"
Found = dict[str, Any]
"""What `search.json` holds."""


def read(found: Found) -> PlacementResult:
    return PlacementResult.from_dict(found)


def search_page(found: Found) -> str:
    return page.search_page(read(found))


def sentences_of(found: Found) -> list[str]:
    return page.sentences_of(read(found))


def heat_map(found: Found) -> Part:
    return search_figures.heat_map(read(found), read(found).stacks[0])


def heat_maps_by_seed(found: Found) -> Part:
    return search_figures.heat_maps_by_seed(read(found), read(found).stacks[0])


def thirds_figure(found: Found) -> Part:
    return search_figures.thirds_figure(read(found), read(found).stacks[0])


def convergence(found: Found) -> Part:
    return search_figures.convergence(read(found))


def cost_rows(found: Found) -> list[tuple[str, list[str]]]:
    return search_costs.cost_rows(read(found))


def cost_figure(found: Found) -> Part:
    result = read(found)
    base = result.row("interleaved")
    assert base is not None
    return search_costs.cost_figure(result, base)


def quality_figure(found: Found) -> Part:
    return search_costs.quality_figure(read(found), read(found).retrained or ())


def quality_sentence(found: Found) -> str:
    return search_costs.quality_sentence(read(found).retrained or ())


@pytest.mark.parametrize("name", ["search-limit-0.1.json", "search-plain-0.1.json"])
def test_a_search_of_version_0_1_has_a_page_still(name: str) -> None:
    found = json.loads((FILES / name).read_text())
    text = Reader(search_page(found))
    assert found["command"] in text.all("code")
    assert text.all("p")[1].startswith("Nothing was learned in this time")
    assert found["pattern"] in shown(found)
    for row in found["compared"]:
        assert f"{row['parameters']:,}" in text.all("td")
    told = read(found).to_dict()
    assert {key: told[key] for key in found.keys() - {"format"}} == {
        key: found[key] for key in found.keys() - {"format"}
    }


def sample(
    layers: int = 12,
    choices: Sequence[str] = ("s", "f", "i"),
    seeds: int = 3,
    *,
    picks: Sequence[Sequence[int]] | None = None,
    priced: bool = False,
    retrained: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """What a search writes, made up but coherent; `picks` are every seed's choices."""
    rng = Random(layers + 100 * seeds)
    if picks is None:
        picks = [
            [_likely(rng, layer / layers, len(choices)) for layer in range(layers)]
            for _ in range(seeds)
        ]
    runs = [_seed(number, row, len(choices), rng, priced) for number, row in enumerate(picks)]
    mean = [
        [
            fmean(run["probabilities"][layer][choice] for run in runs)
            for choice in range(len(choices))
        ]
        for layer in range(layers)
    ]
    decided = [row.index(max(row)) for row in mean]
    pairs = [fmean(a == b for a, b in zip(x, y, strict=True)) for x, y in combinations(picks, 2)]
    return {
        "format": "parformer-search-1",
        "pattern": decode(choices, decided),
        "picks": decided,
        "corpus": "python-source",
        "layers": layers,
        "choices": list(choices),
        "mode": "soft",
        "steps": 1000,
        "warmup_steps": 200,
        "probabilities": mean,
        "agreement": fmean(pairs) if pairs else None,
        "seeds": [run | {"pattern": decode(choices, run["picks"])} for run in runs],
        "warnings": [],
        "target": {"metric": "flops", "limit": 0.7} if priced else None,
        "price": {"metric": "flops", "found": 0.69, "expected": 0.73} if priced else None,
        "compared": (compared := _compare(layers, decode(choices, decided))),
        "effort": {
            "search_step_seconds": 0.21,
            "baseline_step_seconds": 0.12,
            "share": 1.75,
            "seconds": 240.1,
        },
        "device": {"cpu": "AMD EPYC 9R14", "threads": 2, "torch": "2.13.0"},
        "retrained": [_retrain(row, place) for place, row in enumerate(compared)]
        if retrained
        else None,
        "command": "parformer search differentiable --corpus python-source",
        "version": "0.1.0",
        "date": "2026-11-16",
    } | changes


def decode(choices: Sequence[str], picks: Sequence[int]) -> str:
    """The pattern without its identities, as a search writes it."""
    blocks = Pattern.parse(" ".join(choices[pick] for pick in picks))
    try:
        return str(blocks.without_identity())
    except PatternError:
        return "i"


def _likely(rng: Random, depth: float, choices: int) -> int:
    return 0 if rng.random() < 0.8 - depth else rng.choice([1, 1, 1, 1, *range(1, choices)])


def _seed(
    number: int, picks: Sequence[int], choices: int, rng: Random, priced: bool
) -> dict[str, Any]:
    steps = list(range(10, 1001 - 160 * (number % 2), 10))
    force = [rng.uniform(0.5, 3.0) for _ in picks]
    turns = [rng.choice([200, 200, 350, 420]) for _ in picks]
    noise = [[rng.gauss(0, 0.7) for _ in range(choices)] for _ in picks]

    def at(step: int) -> list[list[float]]:
        share = max(0.0, (step - 200) / 800)
        rows = []
        for pick, push, row, turn in zip(picks, force, noise, turns, strict=True):
            top = max(row) - row[pick] + push if step > turn else 0
            logits = [share * (x + top * (c == pick)) for c, x in enumerate(row)]
            total = sum(map(math.exp, logits))
            rows.append([math.exp(x) / total for x in logits])
        return rows

    return {
        "seed": number,
        "picks": list(picks),
        "probabilities": at(steps[-1]),
        "steps": steps[-1],
        "changed": 412 + number,
        "early": steps[-1] < 1000,
        "history": {
            "step": steps,
            "loss": [1.4 + 4 * math.exp(-s / 150) + rng.gauss(0, 0.03) for s in steps],
            "temperature": [5 * 0.95 ** (s / 50) for s in steps],
            "probabilities": [at(step) for step in steps],
            "cost": [1.1 - 0.0004 * s for s in steps] if priced else None,
            "lambda": [0.001 * s for s in steps] if priced else None,
        },
    }


def _compare(layers: int, found: str) -> list[dict[str, Any]]:
    patterns = {"found": Pattern.parse(found)}
    if layers % 2 == 0:
        patterns |= {"interleaved": interleaved(layers), "sandwich": sandwich(layers, layers // 4)}
    else:
        patterns["interleaved"] = Pattern.parse(("sf" * layers)[:layers])
    rows = []
    for name, pattern in (patterns | {"par": par(layers)}).items():
        attention, forward = pattern.count("s"), pattern.count("f")
        time = 0.0004 + 0.00031 * attention + 0.00011 * forward
        rows.append(
            {
                "name": name,
                "pattern": str(pattern),
                "parameters": 1_234_567 + 66_000 * attention + 132_000 * forward,
                "flops": 40_000_000 + 9_000_000 * attention + 8_000_000 * forward,
                "state_bytes": 524_288 * attention,
                "latency_seconds": time,
                "latency_interval": [time * 0.98, time * 1.03],
            }
        )
    return rows


def _retrain(row: dict[str, Any], place: int) -> dict[str, Any]:
    loss = 1.31 + 0.011 * place

    def scores(loss: float) -> dict[str, float]:
        return {"loss": loss, "perplexity": math.exp(loss), "bits": loss / math.log(2)}

    return {
        "name": row["name"],
        "pattern": row["pattern"],
        "steps": 1000,
        "valid": scores(loss),
        "test": scores(loss + 0.02),
    }


CASES: dict[str, dict[str, Any]] = {
    "usual": sample(),
    "timed and trained anew": sample(retrained=True),
    "with a limit": sample(16, priced=True),
    "one seed": sample(seeds=1),
    "no attention": sample(8, picks=[[1] * 8] * 3),
    "all identity": sample(9, picks=[[2] * 9] * 2),
    "all attention": sample(6, picks=[[0] * 6] * 2),
    "interleaved itself": sample(6, picks=[[0, 1] * 3]),
    "ties": sample(4, picks=[[0, 1, 0, 1]], probabilities=[[0.5, 0.5, 0.0]] * 4),
    "options": sample(8, ("s[heads=2]", "s[heads=4]", "f[inner=64]", "i")),
    "bottlenecks": sample(8, ("<sff>", "y[dense]", "i")),
    "neither s nor f": sample(8, ("r", "a", "i")),
    "one layer": sample(1, seeds=2),
    "two layers": sample(2, seeds=1),
    "three layers": sample(3, retrained=True),
    "forty-eight layers": sample(48, priced=True, retrained=True),
    "fifteen layers": sample(15),
    "many seeds": sample(12, seeds=9),
    "no warm-up": sample(warmup_steps=0),
    "nothing compared": sample(compared=[]),
    "nothing to compare with": sample(compared=sample()["compared"][:1]),
}


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Reader]:
    found = CASES[request.param]
    return found, Reader(search_page(found))


def test_every_case_makes_a_whole_page(case: tuple[dict[str, Any], Reader]) -> None:
    from plotly.graph_objects import Figure

    found, text = case
    assert text.open == []
    assert len(text.scripts) == 2
    for figure in text.plots:
        Figure(figure)
        assert figure["data"]
    sentences = [*text.all("figcaption"), *text.all("p")[1:]]
    for sentence in sentences:
        assert sentence.endswith("."), sentence
        assert not re.search(r"\b(nan|inf|None|null)\b|  |\{|\}|, ;|, \.", sentence), sentence
    assert "python-source" in text.all("h1")[0]
    assert found["command"] in text.all("code")


def test_the_same_holds_in_a_terminal(case: tuple[dict[str, Any], Reader]) -> None:
    found, _ = case
    words = shown(found, width=500)
    assert words.splitlines()[0].rstrip() == found["pattern"]
    for choice in found["choices"]:
        assert choice_label(choice) in words
    for row in found["compared"]:
        assert f"{row['parameters']:,}" in words


def drawn(part: Part) -> dict[str, Any]:
    assert not isinstance(part.content, str)
    return part.content


def shown(found: dict[str, Any], width: int = 120) -> str:
    screen = Console(width=width, record=True, file=StringIO(), color_system=None)
    screen.print(page.found_table(read(found)))
    return screen.export_text()


def test_the_heat_map_shows_every_probability_and_the_choice_of_every_layer() -> None:
    found = sample(12, seeds=2)
    heat, dots = drawn(heat_map(found))["data"]
    for layer, row in enumerate(found["probabilities"]):
        assert [heat["z"][choice][layer] for choice in range(3)] == list(row)
    assert heat["x"] == dots["x"] == list(range(1, 13))
    assert heat["y"] == ["self-attention", "feed-forward", "identity"]
    assert [heat["y"].index(name) for name in dots["y"]] == found["picks"]


def test_every_seed_has_a_map_of_its_own() -> None:
    found = sample(12, seeds=3)
    figure = drawn(heat_maps_by_seed(found))
    maps = [trace for trace in figure["data"] if trace["type"] == "heatmap"]
    for trace, seed in zip(maps, found["seeds"], strict=True):
        assert [list(row) for row in zip(*trace["z"], strict=True)] == seed["probabilities"]
    assert [trace["yaxis"] for trace in maps] == ["y", "y2", "y3"]
    spans = [figure["layout"][name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3")]
    assert all(a[0] > b[1] for a, b in itertools.pairwise(spans)), "one lies over the other"
    assert (
        len(Reader(search_page(sample(seeds=1))).plots) == len(Reader(search_page(found)).plots) - 1
    )


@pytest.mark.parametrize(
    ("picks", "words"),
    [
        ([[0, 1], [0, 1]], "Both seeds chose the same block in all of the 2 layers."),
        ([[0, 1], [1, 0]], "Both seeds chose the same block in none of the 2 layers."),
        ([[0, 1]] * 3, "All 3 seeds chose the same block in all of the 2 layers."),
        (
            [[0, 1], [0, 0], [0, 1]],
            "All 3 seeds chose the same block in 1 of the 2 layers; "
            "two of them agree on 67% of the layers on average.",
        ),
    ],
)
def test_the_sentence_about_seeds_counts_layers(picks: list[list[int]], words: str) -> None:
    assert heat_maps_by_seed(sample(2, picks=picks)).see == words


def test_the_surest_and_the_least_sure_layer_are_named() -> None:
    rows = [[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.4, 0.35, 0.25]]
    found = sample(3, seeds=1, picks=[[0, 1, 0]], probabilities=rows)
    words = "No layer is surer than layer 2 (feed-forward 80%), and none less sure than layer 3 "
    assert f"{words}(self-attention 40%)." in heat_map(found).see
    assert "another than" not in heat_map(found).see
    assert "equally sure: the likeliest block has 50%" in heat_map(CASES["ties"]).see


def test_a_choice_that_is_not_the_likeliest_is_owned_up_to() -> None:
    limit = {"metric": "flops", "limit": 0.7}
    found = sample(3, picks=[[0, 1, 0]], probabilities=[[0.6, 0.3, 0.1]] * 3)
    assert heat_map(found).see.endswith("In 1 layer another than the likeliest was chosen.")
    found |= {"picks": [1, 1, 0], "target": limit}
    words = "In 2 layers another than the likeliest was chosen, to keep to the limit."
    assert heat_map(found).see.endswith(words)


# Thirds


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5, 11, 12, 48])
def test_thirds_are_cut_by_place_and_lose_nothing(layers: int) -> None:
    rng = Random(layers)
    letters = [rng.choice("sfi") for _ in range(layers)]
    for letter in "sfi":
        expected = [0, 0, 0]
        for place, other in enumerate(letters):
            expected[math.floor(3 * place / layers)] += other == letter
        assert thirds(letters, letter) == expected
        assert sum(thirds(letters, letter)) == letters.count(letter)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([10 / 3, 2 / 3, 0], "Most self-attention is in the first third: 3.3 of 4 blocks."),
        ([0, 0, 2], "All self-attention is in the last third: 2 of 2 blocks."),
        ([0, 1, 0], "All self-attention is in the second third: 1 of 1 block."),
        ([0, 0, 0], "No layer became self-attention."),
        ([2, 2, 2], "The self-attention is spread evenly: 2 of 6 blocks in each third."),
        ([2, 2, 1], "The first and second third have the most self-attention: 2 of 5 blocks each."),
        ([2, 1.5, 1.5], "The first third has the most self-attention: 2 of 5 blocks."),
        ([2, 1, 1], "The first third has the most self-attention: 2 of 4 blocks."),
    ],
)
def test_the_sentence_about_thirds_is_true(places: list[float], words: str) -> None:
    assert third_sentence("self-attention", places) == words


def test_bars_are_means_with_deviations_beside_the_baseline() -> None:
    found = sample(6, picks=[[0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 0, 1]])
    part = thirds_figure(found)
    bars = {bar["name"]: bar for bar in drawn(part)["data"]}
    assert bars["self-attention, found"]["y"] == [1.5, 0, 0.5]
    assert bars["self-attention, found"]["error_y"]["array"] == pytest.approx(
        [0.5**0.5, 0, 0.5**0.5]
    )
    assert bars["feed-forward, found"]["y"] == [0.5, 2, 1]
    assert bars["self-attention, interleaved"]["y"] == [1, 1, 1]
    assert bars["feed-forward, interleaved"]["y"] == [1, 1, 1]
    assert len(bars) == 4, "identity is no block to count"
    assert bars["self-attention, found"]["marker"]["color"] == COLOURS["s"]
    assert bars["self-attention, found"]["x"][0] == "first third<br>layers 1–2"
    assert part.see.startswith("Most self-attention is in the first third: 1.5 of 2 blocks.")
    assert "has 1, 1 and 1." in part.see
    assert "2 seeds" in part.see


def test_a_single_seed_has_no_deviation() -> None:
    part = thirds_figure(CASES["one seed"])
    assert not [bar for bar in drawn(part)["data"] if "error_y" in bar]
    assert "deviation" not in part.see


def test_options_of_a_letter_count_together_and_other_letters_too() -> None:
    found = sample(3, ("s[heads=2]", "s[heads=4]", "r", "i"), picks=[[0, 1, 2]])
    bars = {bar["name"]: bar["y"] for bar in drawn(thirds_figure(found))["data"]}
    assert bars["self-attention, found"] == [1, 1, 0]
    assert bars["SRU recurrence, found"] == [0, 0, 1]
    other = thirds_figure(sample(3, ("r", "i"), picks=[[0, 0, 1]]))
    assert other.see.startswith("The first and second third have the most SRU recurrence")


# Convergence


def test_curves_are_those_of_the_history_and_end_where_they_end() -> None:
    found = sample(8, seeds=2, priced=True)
    part = convergence(found)
    curves = drawn(part)["data"]
    for number, seed in enumerate(found["seeds"]):
        loss, there, cost = curves[3 * number : 3 * number + 3]
        assert loss["x"] == there["x"] == cost["x"] == seed["history"]["step"]
        assert loss["y"] == seed["history"]["loss"]
        assert loss["customdata"] == seed["history"]["temperature"]
        assert cost["y"] == seed["history"]["cost"]
        assert cost["customdata"] == seed["history"]["lambda"]
        assert there["y"][0] == 0, "before the search starts every choice is as likely"
        assert there["y"][-1] == 1
        last = seed["history"]["probabilities"][-1]
        for rows, share in zip(seed["history"]["probabilities"], there["y"], strict=True):
            pairs = zip(rows, last, strict=True)
            same = sum(a.index(max(a)) == b.index(max(b)) and len(set(a)) > 1 for a, b in pairs)
            assert share == pytest.approx(same / 8)
    assert "fell from" in part.see
    assert "The expected cost fell from 1.1 to 0.7" in part.see
    assert "last changed at step 413 of 840 (seed 1)" in part.see
    assert "1 of the 2 seeds stopped early" in part.see


def test_the_warm_up_is_shaded_where_there_is_one() -> None:
    (shade,) = drawn(convergence(sample()))["layout"]["shapes"]
    assert (shade["x0"], shade["x1"]) == (0, 200)
    assert drawn(convergence(CASES["no warm-up"]))["layout"]["shapes"] == []
    assert "warm-up" not in convergence(CASES["no warm-up"]).see


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ([2.0, 1.0], "The training loss fell from 2 to 1."),
        ([1.0, 2.0], "The training loss rose from 1 to 2."),
        ([1.0, 1.0001], "The training loss stayed at 1."),
        ([3.0, math.nan], "The training loss stayed at 3."),
        ([math.nan, math.nan], "The chosen blocks"),
    ],
)
def test_the_way_of_the_loss_is_told_as_it_was(loss: list[float], words: str) -> None:
    found = sample(3, seeds=1)
    found["seeds"][0]["history"]["loss"] = [*loss[:1], *[math.nan] * 98, *loss[1:]]
    assert convergence(found).see.startswith(words)
    Reader(search_page(found))


def test_a_pattern_that_never_changed_and_a_search_without_history() -> None:
    found = sample(3, seeds=1)
    seed = found["seeds"][0]
    seed |= {"changed": 0, "early": True}
    words = "The chosen blocks never changed; the search stopped early, having settled."
    assert words in convergence(found).see
    empty = {"step": [], "loss": [], "temperature": [], "probabilities": []}
    seed["history"] = {**empty, "cost": None, "lambda": None}
    assert convergence(found).see.startswith(words)
    Reader(search_page(found))


# Words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no attention", "Of 8 layers, 8 became feed-forward; none became self-attention."),
        ("all identity", "Of 9 layers, all were left out (identity); none became self-attention."),
        ("all attention", "Of 6 layers, 6 became self-attention. The interleaved Transformer has "),
        ("interleaved itself", "became feed-forward. This is the interleaved Transformer itself."),
        ("neither s nor f", "; self-attention was not among the choices."),
        ("bottlenecks", "; self-attention was not among the choices."),
    ],
)
def test_the_verdict_is_true_in_odd_cases(name: str, words: str) -> None:
    assert words in sentences_of(CASES[name])[0]


def test_the_verdict_counts_the_chosen_blocks_and_the_usual_ones() -> None:
    found = sample(6, picks=[[0, 1, 1, 0, 1, 2]])
    assert sentences_of(found)[0] == (
        "Of 6 layers, 2 became self-attention and 3 became feed-forward; 1 was left out "
        "(identity). The interleaved Transformer has self-attention in 3."
    )


def test_agreement_is_told_only_where_there_is_some() -> None:
    assert sentences_of(CASES["one seed"])[1].startswith("Only one seed")
    words = sentences_of(sample(4, picks=[[0, 1, 1, 1], [0, 0, 1, 1]]))[1]
    assert "they agree on 75% of the layers, where chance alone would give about 33%" in words


def price(**figures: Any) -> list[dict[str, Any]]:
    """The found pattern beside an interleaved one of round figures."""
    base = {"parameters": 100, "flops": 100, "state_bytes": 100}
    base |= {"latency_seconds": 0.01, "latency_interval": [0.0099, 0.0101]}
    rows = [{"name": "found", "pattern": "sff"}, {"name": "interleaved", "pattern": "sfsf"}]
    return [rows[0] | base | figures, rows[1] | base]


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"flops": 71}, "it needs 29% less computation"),
        ({"flops": 150}, "it needs 50% more computation"),
        ({"flops": 350}, "it needs 3.5 times the computation"),
        ({"flops": 100}, "it needs as much computation"),
        ({"state_bytes": 0}, "no memory for past text"),
        (
            {"latency_seconds": 0.008, "latency_interval": [0.0079, 0.0081]},
            "20% less time (8 ms against 10 ms)",
        ),
        (
            {"latency_seconds": 0.0098, "latency_interval": [0.0096, 0.01]},
            "which of the two is faster could not be told",
        ),
    ],
)
def test_the_price_is_told_as_it_is(figures: dict[str, Any], words: str) -> None:
    found = sample(4, compared=price(**figures))
    assert words in sentences_of(found)[2]
    if "could not" in words:
        assert "less time" not in sentences_of(found)[2]
        assert "cannot be told apart" in cost_figure(found).see
    else:
        assert ("cannot be told apart" in cost_figure(found).see) == ("ms" not in words)


def test_nothing_is_divided_by_nought() -> None:
    rows = price()
    rows[1] |= {"state_bytes": 0}
    found = sample(4, compared=rows)
    assert "state" not in cost_figure(found).see
    shares = [cells for label, cells in cost_rows(found) if label.endswith("interleaved")]
    assert shares[2] == ["–", "–"]
    assert "memory" not in sentences_of(found)[2]


@pytest.mark.parametrize(
    ("target", "got", "words"),
    [
        ({"limit": 0.7}, 0.69, "at most 0.7× the interleaved Transformer's FLOPs and needs 0.69×"),
        ({"limit": 0.7}, 0.69, "so it kept to that."),
        ({"limit": 0.7}, 0.72, "needs 0.72×, so it did not keep to that."),
        ({"penalty": 0.1}, 0.9, "minimised (FLOPs, weight 0.1)."),
    ],
)
def test_the_target_is_told_and_whether_it_was_met(
    target: dict[str, Any], got: float, words: str
) -> None:
    metric = {"metric": "flops"}
    price = metric | {"found": got, "expected": 0.8}
    assert words in sentences_of(sample(4, target=metric | target, price=price))[3]


# Tables


def test_the_table_of_costs_holds_the_given_numbers() -> None:
    found = sample(12)
    text = Reader(search_page(found))
    cells = text.all("td")
    rows = dict(cost_rows(found))
    for place, row in enumerate(found["compared"]):
        assert rows["parameters"][place] == f"{row['parameters']:,}"
        assert rows["parameters"][place] in cells
        assert float(rows["FLOPs per step"][place].split()[0]) * 1e9 == pytest.approx(
            row["flops"], rel=0.05
        )
        assert rows["state, memory full"][place] == f"{row['state_bytes'] / 1e6:.1f} MB"
        assert rows["time per step"][place] == f"{row['latency_seconds'] * 1e3:.3g} ms"
        low, high = (f"{end * 1e3:.3g}" for end in row["latency_interval"])
        assert rows["  interval"][place] == f"{low} – {high} ms"
        assert rows["self-attention"][place] == str(Pattern.parse(row["pattern"]).count("s"))
    keys = ("parameters", "flops", "state_bytes", "latency_seconds")
    shares = [cells for label, cells in cost_rows(found) if label.endswith("interleaved")]
    base = found["compared"][1]
    for key, share in zip(keys, shares, strict=True):
        assert share == [f"{row[key] / base[key]:.2f}" for row in found["compared"]]


def test_the_figure_of_costs_shows_ratios_to_the_interleaved() -> None:
    found = sample(12)
    base = found["compared"][1]
    bars = {bar["name"]: bar for bar in drawn(cost_figure(found))["data"]}
    assert set(bars) == {"found", "sandwich", escape("PAR's rule")}
    assert bars["found"]["x"] == ["parameters", "FLOPs", "state", "time"]
    keys = ("parameters", "flops", "state_bytes", "latency_seconds")
    assert bars["found"]["y"] == [found["compared"][0][key] / base[key] for key in keys]


def test_the_found_stack_keeps_its_left_out_layers_in_their_place() -> None:
    found = sample(6, picks=[[0, 2, 1, 2, 2, 1]])
    text = Reader(search_page(found))
    stacks = [a["aria-label"] for t, a in text.tags if a.get("class") == "strip"]
    assert stacks[:3] == ["s i f i i f", "s i f i i f", "s f s f s f"]


def test_an_odd_depth_has_no_sandwich() -> None:
    text = Reader(search_page(CASES["three layers"]))
    assert "sandwich" not in text.all("th")
    assert "PAR's rule" in text.all("th")


def test_quality_stands_against_time() -> None:
    found = sample(12, retrained=True)
    points = drawn(quality_figure(found))["data"]
    for point, run, row in zip(points, found["retrained"], found["compared"], strict=True):
        assert point["y"] == [run["test"]["bits"]]
        assert point["x"] == [pytest.approx(row["latency_seconds"] * 1e3)]
    for run in found["retrained"]:
        run |= {"test": None, "valid": run["valid"] | {"bits": None}}
    figure = drawn(quality_figure(found))
    for point, run, row in zip(figure["data"], found["retrained"], found["compared"], strict=True):
        assert point["y"] == [run["valid"]["perplexity"]]
        assert point["x"] == [pytest.approx(row["latency_seconds"] * 1e3)]
    assert figure["layout"]["yaxis"]["title"]["text"] == "valid perplexity"
    Reader(search_page(found))


@pytest.mark.parametrize(
    ("mine", "words"),
    [(3.6, "10.0% below"), (4.4, "10.0% above"), (4.001, "within 0.05% of"), (4.0, "within 0.05%")],
)
def test_better_and_worse_are_not_mixed_up(mine: float, words: str) -> None:
    found = sample(12, retrained=True)
    for run, perplexity in zip(found["retrained"], [mine, 4.0, 5.0, 5.0], strict=True):
        run |= {"test": None, "valid": {"loss": 1.0, "perplexity": perplexity, "bits": None}}
    assert f"reaches {mine:.3f} valid perplexity, {words}" in quality_sentence(found)
    cells = Reader(search_page(found)).all("td")
    assert f"{mine:.3f}" in cells
    assert "+1.000" in cells
    if mine == 3.6:
        assert "−0.400" in cells


def test_where_only_some_were_tested_all_are_judged_by_validation() -> None:
    found = sample(12, retrained=True)
    found["retrained"][2]["test"] = None
    assert "valid bits per character" in quality_sentence(found)
    assert "–" in Reader(search_page(found)).all("td")


def test_patterns_without_a_price_are_trained_all_the_same() -> None:
    found = sample(12, retrained=True, compared=[])
    assert "1.919" in Reader(search_page(found)).all("td")


def test_what_it_took_is_told() -> None:
    found = sample(seeds=2, mode="sampled")
    found["effort"] |= {"share": 1.75, "seconds": 7530.0}
    text = Reader(search_page(found))
    words = text.all("figcaption")[-1]
    assert "1.75× a training step" in words
    assert "took 2 h 6 min" in words
    assert "1,000 steps would take about 2 min" in words
    cells = text.all("td")
    assert "1,000, 840 (settled early)" in cells
    assert "AMD EPYC 9R14, 2 threads, torch 2.13.0" in cells
    assert [cell for cell in cells if cell.startswith("sampled:")]


# Safety and the terminal


def test_names_from_outside_stay_text() -> None:
    evil = "<script>alert(1)</script>"
    device = {"cpu": evil, "threads": 2, "torch": evil}
    found = sample(4, corpus=evil, command=evil, warnings=[evil], device=device, version=evil)
    text = Reader(search_page(found))
    assert len(text.scripts) == 2
    assert text.all("title") == [f"Where does a language model of {evil} need attention?"]
    assert evil in text.all("p")
    assert text.all("code") == [evil]


def test_a_bottleneck_is_no_tag_in_a_figure() -> None:
    heat, _ = drawn(heat_map(CASES["bottlenecks"]))["data"]
    assert heat["y"][0] == "&lt;sff&gt;"


def test_warnings_show() -> None:
    found = sample(warnings=["Seeds disagree."])
    text = Reader(search_page(found))
    classes = [a.get("class") for t, a in text.tags if t == "p"]
    assert classes[text.all("p").index("Seeds disagree.")] == "warning"
    assert "Warning: Seeds disagree." in shown(found)


def test_the_terminal_lays_likelihoods_under_their_layers() -> None:
    rows = [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    found = sample(2, picks=[[0, 1]], probabilities=rows)
    lines = [line.rstrip() for line in shown(found).splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith("layers 1–2"))
    place = lines[at].index("s f")
    assert lines[at + 1][place:] == "██"
    assert lines[at + 2][place:] == "  ▄▄"
    assert lines[at + 3][place:] == "  ▄▄"


def test_the_terminal_keeps_options_and_fits_eighty_columns() -> None:
    words = shown(CASES["options"], width=80)
    assert "s[heads=4]" in words
    assert (
        max(len(line) for line in shown(CASES["forty-eight layers"], width=80).splitlines()) <= 80
    )
    assert "layers 31–48" in shown(CASES["forty-eight layers"], width=80)
