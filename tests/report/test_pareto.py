"""The report of a Pareto search says what was found, and nothing false when that is odd."""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from dataclasses import replace
from functools import cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import plotly.offline
import pytest
from rich.console import Console
from test_page import Reader

from parformer.config import preset
from parformer.pattern import Pattern
from parformer.report import pareto, pareto_figures, pareto_limits, pareto_savings
from parformer.report.page import Html, Part, page, template
from parformer.report.pareto_limits import run_of, stops
from parformer.report.pareto_rows import columns, drawing, quality_words, sizes
from parformer.report.pareto_savings import PAPER
from parformer.search.limits import SEARCHED, in_words, read_limit
from parformer.search.sizes.picking import best_within
from parformer.search.sizes.result import Member, SizesResult

FILES = Path(__file__).parents[1] / "search" / "files"
SCRIPT = template("pareto.js")
LIKE = preset("lts-transformer-xl")
Found = dict[str, Any]
"""What `pareto.json` holds."""


def result(found: Found) -> SizesResult:
    return SizesResult.from_dict(found)


def pareto_page(found: Found) -> str:
    return pareto.pareto_page(result(found))


def verdict(found: Found) -> str:
    return pareto.verdict(result(found))


def pictures(found: Found) -> list[Part]:
    return pareto_figures.pictures(result(found))


def predictions(found: Found) -> list[Part]:
    return pareto_figures.predictions(result(found))


def settling(found: Found) -> Part | None:
    return pareto_figures.settling(result(found))


def sliders(found: Found) -> Html | None:
    return pareto_limits.sliders(result(found))


def savings_parts(found: Found) -> list[Part]:
    return pareto_savings.savings_parts(result(found))


@pytest.mark.parametrize("name", ["pareto-clocked-0.1.json", "pareto-counted-0.1.json"])
def test_a_search_of_version_0_1_has_a_page_still(name: str) -> None:
    """Written by a real search: what reports read is what searches write."""
    found = json.loads((FILES / name).read_text())
    text = Reader(pareto_page(found))
    assert found["front"][0]["pattern"] in text.all("td")
    last = text.all("figcaption")[-1]
    if found["profile"] is not None:
        off = found["profile"]["held_out"]["latency"]["median"]
        assert f"the profile was off by {off:.1%} in the median" in last
    told = result(found).to_dict()
    found["space"]["model"] = told["space"]["model"]  # models have more fields by now
    for key in found.keys() - {"format", "front", "baseline", "receipt"}:
        assert told[key] == found[key], key
    for part in ("front", "baseline"):
        for old, new in zip(found[part], told[part], strict=True):
            measured = new["measured"] and {k: v for k, v in new["measured"].items() if v}
            assert {**new, "measured": measured} == {"digest": "", "genome": "", **old}


Genes = tuple[int, tuple[tuple[int, int], ...]]
"""A width, and the heads and inner width of every layer."""


def draw(rng: Random) -> Genes:
    """An architecture of LiteTransformerSearch's space."""
    width = rng.randrange(128, 961, 64)
    inner = [i for i in range(128, 4033, 64) if i >= 1.7 * width]
    depth = rng.randint(2, 16)
    return width, tuple((rng.choice([2, 4, 8]), rng.choice(inner)) for _ in range(depth))


def price(genes: Genes) -> dict[str, float]:
    """Made-up but sensible: counts of a Transformer-XL, and a device that has a price for all."""
    width, layers = genes
    stack = sum(5 * width**2 + 2 * width + 2 * width * i + i + 5 * width for _, i in layers)
    flops = 2 * 192 * stack
    time = flops / (4e11 * width / (width + 90))
    time += sum(0.0006 + 0.0003 * heads for heads, _ in layers)
    memory = 4 * stack + 4 * 192 * max(i for _, i in layers) + 4 * 20_000 * width
    memory += 90 * 192 * 192 * max(heads for heads, _ in layers)
    return {
        "quality": float(stack),
        "parameters": stack + 24_000_000,
        "decoder_parameters": stack,
        "flops": flops,
        "state_bytes": 4 * 192 * width * len(layers),
        "latency": time,
        "memory": memory,
    }


@cache
def visits(count: int = 2420) -> tuple[tuple[Genes, dict[str, float]], ...]:
    """Random ones, and then ever more that are nearly the best so far."""
    rng = Random(1)
    seen = [(genes, price(genes)) for genes in (draw(rng) for _ in range(count // 4))]
    while len(seen) < count:
        parents = unbeaten(rng.sample(seen, 200))
        for _ in range(count // 8):
            width, layers = rng.choice(parents)[0]
            other = rng.choice(parents)[0][1]
            mixed = [rng.choice(pair) for pair in zip(layers, other, strict=False)]
            made = (width, tuple((h, max(i, 64 + int(1.7 * width) // 64 * 64)) for h, i in mixed))
            if (figures := price(made))["quality"] <= 100e6:
                seen.append((made, figures))
    return tuple(seen[:count])


def unbeaten(
    all_of_them: list[tuple[Genes, dict[str, float]]],
) -> list[tuple[Genes, dict[str, float]]]:
    kept: list[tuple[Genes, dict[str, float]]] = []
    fine = [pair for pair in all_of_them if pair[1]["quality"] <= 100e6]
    for genes, p in sorted(fine, key=lambda pair: pair[1]["latency"]):
        if not any(q["quality"] >= p["quality"] and q["memory"] <= p["memory"] for _, q in kept):
            kept.append((genes, p))
    return kept


@cache
def best_visits() -> list[tuple[Genes, dict[str, float]]]:
    return unbeaten(list(visits()))


def member(name: str, genes: Genes, rng: Random, *, measured: bool = True) -> dict[str, Any]:
    """One architecture as a search writes it."""
    width, layers = genes
    figures = price(genes)
    real = figures["latency"] * rng.gauss(1.01, 0.025)
    return {
        "name": name,
        "digest": f"{rng.getrandbits(64):016x}",
        "pattern": "".join(f"s[heads={h}]f[inner={i}]" for h, i in layers),
        "fields": {"d_model": width},
        "layers": len(layers),
        "genome": "{}",
        **{k: v for k, v in figures.items() if k not in ("latency", "memory")},
        "predicted": {"latency": figures["latency"], "memory": figures["memory"]},
        "measured": {
            "latency": real,
            "latency_interval": [real * 0.985, real * 1.012],
            "memory": figures["memory"] * rng.gauss(1.0, 0.004),
        }
        if measured
        else None,
        "tie": False,
    }


def sample(
    members: int = 8, baselines: int = 4, dots: int = 200, *, measured: bool = True, **changes: Any
) -> dict[str, Any]:
    """What a search writes, made up but coherent."""
    rng = Random(7)
    visited = visits()[:dots]
    whole = best_visits()
    step = len(whole) / max(1, members)
    picked = [whole[int(n * step)] for n in range(min(members, len(whole)))]
    front = [
        member(f"g{n}", genes, rng, measured=measured) for n, (genes, _) in enumerate(picked, 1)
    ]
    if measured:
        front.sort(key=lambda row: row["measured"]["latency"])
        front = [row | {"name": f"g{n}"} for n, row in enumerate(front, start=1)]
        for row, after in pairwise(front):
            ends = row["measured"]["latency_interval"], after["measured"]["latency_interval"]
            row["tie"] = ends[0][1] >= ends[1][0]
    baseline = [
        member(f"{n} layer{'s' * (n > 1)}", (512, ((8, 2048),) * n), rng, measured=measured)
        for n in range(1, baselines + 1)
    ]
    source = "measured" if measured else "predicted"
    rows = []
    for row in baseline:
        reach = [r for r in front if r["quality"] >= row["quality"]]
        if reach:
            best = min(reach, key=lambda r: r[source]["latency"])
            mine, theirs = best[source], row[source]
            rows.append(
                {
                    "layers": row["layers"],
                    "quality": row["quality"],
                    "latency": theirs["latency"],
                    "memory": theirs["memory"],
                    "found": best["name"],
                    "found_latency": mine["latency"],
                    "found_memory": mine["memory"],
                    "speedup": theirs["latency"] / mine["latency"],
                    "memory_ratio": theirs["memory"] / mine["memory"],
                    "fastest": mine["latency"] / theirs["latency"],
                    "smallest": mine["memory"] / theirs["memory"],
                }
            )
    savings = None
    if rows:
        savings = {
            "rows": rows,
            "latency_saved": fmean(1 - r["found_latency"] / r["latency"] for r in rows),
            "memory_saved": fmean(1 - r["found_memory"] / r["memory"] for r in rows),
            "largest": rows[-1],
        }
    errors = None
    if measured and front:
        off = {
            m: sorted(abs(r["predicted"][m] / r["measured"][m] - 1) for r in front)
            for m in ("latency", "memory")
        }
        errors = {
            m: {"median": median(e), "p90": e[int(0.9 * len(e))], "worst": e[-1]}
            for m, e in off.items()
        }
    return {
        "format": "parformer-pareto-1",
        "space": {
            "name": "lts-as-run",
            "title": "LiteTransformerSearch, as its tables show it was run",
            "size": 3.2e36,
            "like": str(LIKE.pattern),
            "recipe": "lts-transformer-xl",
            "family": "transformer-xl",
            "model": LIKE.to_dict(),
        },
        "objectives": ["quality", "latency", "memory"],
        "proxy": "decoder-parameters",
        "limits": {},
        "step": {
            "tgt_len": 192,
            "mem_len": 0,
            "batch": 1,
            "threads": 1,
            "precision": "fp32",
            "rounds": 10,
            "words": "192 tokens, batch 1, fp32",
        },
        "plan": {
            "sampler": "lts",
            "population": 100,
            "parents": 20,
            "mutated": 40,
            "crossed": 40,
            "mutation": 0.3,
            "iterations": 30,
            "seed": 0,
        },
        "latency_by": "profile",
        "evaluated": 2420,
        "visited": {k: [p[k] for _, p in visited] for k in ("quality", "latency", "memory")},
        "front_size": len(whole),
        "front": front,
        "baseline": baseline,
        "savings": savings,
        "hypervolume": {
            "reference": [0.0, 0.2, 5e8],
            "ideal": [0.0, 0.0, 0.0],
            "by_iteration": [0.78 - 0.37 * math.exp(-n / 5) for n in range(30)],
        },
        "errors": errors,
        "profile": {
            "seconds": 141.0,
            "measured": "2026-11-16T09:30:00Z",
            "held_out": {
                "models": 12,
                "latency": {"median": 0.019, "p90": 0.052, "worst": 0.1},
                "memory": {"median": 0.0, "p90": 0.0, "worst": 0.0},
            },
        },
        "seconds": {"profile": 141.0, "search": 9.3, "measure": 88.0},
        "device": {"cpu": "AMD EPYC 9R14", "threads": 1, "torch": "2.13.0"},
        "receipt": None,
        "warnings": [],
        "command": "parformer search pareto --space lts-as-run --run runs/front --seed 0",
        "version": "0.1.0",
        "date": "2026-11-16",
    } | changes


LARGE = (40, 16, 2420)


def without(found: dict[str, Any], *metrics: str) -> dict[str, Any]:
    """The same search with other objectives alone."""
    rows = [row | {"predicted": None, "measured": None} for row in found["front"]]
    base = [row | {"predicted": None, "measured": None} for row in found["baseline"]]
    visited = {"quality": found["visited"]["quality"]}
    visited |= {
        m: [p[m] for _, p in visits()[:200]] for m in metrics if m in ("flops", "parameters")
    }
    return found | {
        "objectives": ["quality", *metrics],
        "front": rows,
        "baseline": base,
        "visited": visited,
        "savings": None,
        "errors": None,
    }


def loss(found: dict[str, Any]) -> dict[str, Any]:
    """The same search with minus a loss for its quality."""

    def score(quality: float) -> float:
        return -2.0 - 5e6 / quality

    found = found | {"proxy": "short-training"}
    for part in ("front", "baseline"):
        found[part] = [row | {"quality": score(row["quality"])} for row in found[part]]
    found["visited"] = found["visited"] | {
        "quality": [score(quality) for quality in found["visited"]["quality"]]
    }
    rows = [row | {"quality": score(row["quality"])} for row in found["savings"]["rows"]]
    found["savings"] = found["savings"] | {"rows": rows, "largest": rows[-1]}
    return found


def shuffled(found: dict[str, Any]) -> dict[str, Any]:
    """Every second architecture unmeasured."""
    front = [row | ({"measured": None} if n % 2 else {}) for n, row in enumerate(found["front"])]
    return found | {"front": front}


CASES: dict[str, dict[str, Any]] = {
    "usual": sample(),
    "as large as it gets": sample(*LARGE),
    "nothing measured": sample(measured=False),
    "partly measured": shuffled(sample()),
    "no baseline": sample(baselines=0),
    "one baseline": sample(baselines=1),
    "one architecture": sample(1),
    "two architectures": sample(2),
    "no architecture": sample(0),
    "no architecture within limits": sample(0, limits={"latency": 0.001, "memory": 2e6}),
    "limits": sample(limits={"latency": 0.02, "memory": 2e8}),
    "quality and latency": sample(objectives=["quality", "latency"]),
    "quality and memory": sample(objectives=["quality", "memory"]),
    "counts alone": without(sample(), "flops", "parameters"),
    "state alone": without(sample(), "state"),
    "everything": sample(objectives=["quality", *SEARCHED]),
    "minus a loss": loss(sample()),
    "measuring": sample(latency_by="measuring", errors=None, profile=None),
    "gpt2": sample(space=sample()["space"] | {"family": "gpt2"}),
    "another space": sample(space=sample()["space"] | {"name": "pocket"}),
    "no savings": sample(savings=None),
    "no visits": sample(visited={}),
    "equal figures": sample(front=[sample(1)["front"][0] | {"name": n} for n in ("g1", "g2")]),
    "other blocks": sample(
        front=[row | {"pattern": "<sff>x2 r (f)x60 i y[dense]"} for row in sample(3)["front"]]
    ),
    "warned": sample(warnings=["The clock was noisy."]),
}


@pytest.fixture(autouse=True)
def small_library(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Figures are looked at as data, so most pages do without the five megabytes that draw them."""
    if "whole" not in request.node.name:
        monkeypatch.setattr(plotly.offline, "get_plotlyjs", lambda: "/* library */")


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    return CASES[request.param]


def drawn(part: Part | None) -> dict[str, Any]:
    assert part is not None
    assert not isinstance(part.content, str)
    return part.content


def shown(found: dict[str, Any], width: int = 120) -> str:
    screen = Console(width=width, color_system=None)
    with screen.capture() as captured:
        screen.print(pareto.front_table(result(found)))
    return captured.get()


def sound(sentence: str) -> bool:
    odd = r"\b(nan|inf|None|null)\b|  |\{|\}|, ;|, \.|\.\.|\( | \)"
    return sentence.endswith(".") and not re.search(odd, sentence)


# Any search


def test_predicted_and_measured_stand_side_by_side_in_a_terminal() -> None:
    found = sample(1)
    (one,) = found["front"]
    one["predicted"] = {"latency": 0.0123, "memory": 5e6}
    one["measured"] = {"latency": 0.0119, "memory": 5e6}
    found["errors"]["latency"] = {"median": 0.034, "p90": 0.07, "worst": 0.1}
    text = shown(found)
    assert re.search(r"latency.*predicted.*peak memory", text)
    assert re.search(r"11\.9 ms.*12\.3 ms", text)
    assert "off by 3.4% in the median, 7.0% in one of ten" in text
    # nothing measured: the prediction is the latency, and there is no second column
    alone = shown(found | {"front": [one | {"measured": None}], "errors": None})
    assert "~12.3 ms" in alone
    assert "predicted, not measured" in alone
    assert alone.count("12.3 ms") == 1
    assert "off by" not in alone


def test_every_search_makes_a_whole_readable_page(case: dict[str, Any]) -> None:
    from plotly.graph_objects import Figure

    read = Reader(pareto_page(case))
    assert read.open == []
    assert len(read.scripts) == 3
    for figure in read.plots:
        Figure(figure)
        assert figure["data"]
    for sentence in [*read.all("figcaption"), *read.all("p")[1:]]:
        plain = "left; best quality" in sentence or not sentence
        assert plain or sound(sentence), sentence
    for tag, attributes in read.tags:
        assert not {"src", "href", "action"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    identities = [a["id"] for _, a in read.tags if "id" in a]
    assert len(identities) == len(set(identities))
    assert len([a for t, a in read.tags if "data-row" in a]) == len(case["front"])


def test_every_search_has_a_verdict_and_a_screenful(case: dict[str, Any]) -> None:
    assert sound(verdict(case)), verdict(case)
    words = shown(case, 300)
    assert "None" not in words
    assert "nan" not in words
    for row in case["front"]:
        assert row["name"] in words


def test_only_the_three_scripts_of_the_page_may_run() -> None:
    read = Reader(pareto_page(sample(2)))
    (policy,) = [a["content"] for t, a in read.tags if t == "meta" and "http-equiv" in a]
    allowed = (policy or "").partition("script-src ")[2].split()
    prints = [b64encode(sha256(s.encode()).digest()).decode() for s in read.scripts]
    assert allowed == [f"'sha256-{print_}'" for print_ in prints]
    assert read.scripts[2] == SCRIPT
    assert "</" not in SCRIPT
    assert not re.search(r"eval|Function|innerHTML|http|\bon\w+ ?=", SCRIPT)
    made = SimpleNamespace(command="c", date="d", version="v")
    plain = Reader(page(title="t", lead=[], sections=[], made=made))
    assert not plain.scripts  # without figures nothing has to be drawn
    assert ".limits" not in plain.all("style")[0]
    assert ".limits" in read.all("style")[0]


def test_the_whole_page_weighs_little_beside_its_library() -> None:
    text = pareto_page(sample(*LARGE))
    library = plotly.offline.get_plotlyjs()
    assert len(library) > 1e6
    assert text.count(library) == 1
    assert len(text) - len(library) < 350_000


EVIL = "</script><img src=x onerror=alert(1)>\"&' %{x} [red]"


def test_whatever_is_given_stays_text() -> None:
    found = sample(3, command=f'parformer --run "{EVIL}"', version=EVIL, date=EVIL, warnings=[EVIL])
    found["front"] = [row | {"name": f"{EVIL}{n}"} for n, row in enumerate(found["front"])]
    found["baseline"] = [row | {"name": EVIL} for row in found["baseline"]]
    found["savings"]["rows"][0]["found"] = EVIL
    found["space"] |= {"name": f"lts{EVIL}", "recipe": EVIL, "title": EVIL, "family": EVIL}
    found["plan"]["sampler"] = EVIL
    found["device"] = {"cpu": EVIL, "threads": 1, "torch": EVIL}
    found["step"]["words"] = EVIL
    for proxy in (EVIL, "decoder-parameters"):
        found["proxy"] = proxy
        read = Reader(pareto_page(found))
        assert len(read.scripts) == 3
        assert not [tag for tag, _ in read.tags if tag in ("img", "red")]
        assert read.open == []
        assert EVIL in read.all("p")
        assert EVIL in read.all("td")
        for figure in read.plots[:2]:
            for trace in figure["data"]:
                assert not [t for t in trace.get("hovertext", []) if "<img" in t]
                assert "<img" not in str(trace.get("name"))
            assert "<img" not in figure["layout"]["yaxis"]["title"]["text"]
        assert f"{EVIL}0" in shown(found, 600)


# Verdict


def row_of(**changes: Any) -> dict[str, Any]:
    row = {"layers": 16, "quality": 1.0, "latency": 0.05, "memory": 2e8, "found": "g9"}
    row |= {"found_latency": 0.03, "found_memory": 1e8, "speedup": 1.61, "memory_ratio": 1.9}
    return row | {"fastest": 0.8, "smallest": 0.7} | changes


def savings(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    means = {"latency_saved": 0.198, "memory_saved": 0.288}
    return {"rows": list(rows), **means, "largest": rows[-1]} | more


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({}, "; at the quality of the 16-layer Transformer-XL: 1.6× faster, 1.9× less memory."),
        ({"memory_ratio": 0.8}, "Transformer-XL: 1.6× faster but 1.2× more memory."),
        ({"speedup": 0.5}, "Transformer-XL: 2.0× slower but 1.9× less memory."),
        ({"speedup": 1.04}, "Transformer-XL: about as fast, 1.9× less memory."),
        (
            {"speedup": 0.9, "memory_ratio": 0.5},
            "; the front does not beat layer-scaling: at the quality of the 16-layer "
            "Transformer-XL, 1.1× slower, 2.0× more memory.",
        ),
        (
            {"speedup": 1.0, "memory_ratio": 0.97},
            "does not beat layer-scaling: at the quality of the 16-layer Transformer-XL, "
            "about as fast, about as much memory.",
        ),
        ({"layers": 9}, "at the quality of the 9-layer Transformer-XL: "),
    ],
)
def test_the_verdict_tells_gains_and_losses_as_they_are(row: dict[str, Any], words: str) -> None:
    assert words in verdict(sample(savings=savings(row_of(**row))))


def test_the_verdict_counts_and_gives_the_range() -> None:
    found = sample(40, 1, front_size=214, savings=savings(row_of()))
    times = sorted(row["measured"]["latency"] * 1e3 for row in found["front"])
    start = f"40 architectures of 214 unbeaten ones from {times[0]:.3g} ms to {times[-1]:.3g} ms;"
    assert verdict(found).startswith(start)
    found |= {"front_size": 40, "limits": {"latency": 0.02, "memory": 2e8}}
    assert verdict(found).startswith("40 architectures from ")
    assert " ms, within latency 20 ms and peak memory 200 MB; at the" in verdict(found)
    one = sample(1, front_size=1, baselines=0)
    time = one["front"][0]["measured"]["latency"] * 1e3
    assert verdict(one).startswith(f"1 architecture of {time:.3g} ms; no layer-scaled baseline was")
    flops = sorted(row["flops"] for row in CASES["counts alone"]["front"])
    ends = f" from {flops[0] / 1e6:.3g} M to {flops[-1] / 1e9:.3g} G FLOPs; "
    assert ends in verdict(CASES["counts alone"])


def test_the_verdict_owns_up_to_what_is_not_known() -> None:
    assert "predicted" not in verdict(sample())
    words = "All of latency and peak memory is predicted, nothing measured."
    assert verdict(sample(measured=False)).endswith(words)
    assert "no layer-scaled baseline was compared" in verdict(sample(baselines=0))
    assert "latency and memory were not compared with layer-scaling" in verdict(
        CASES["counts alone"]
    )
    high = [row | {"quality": 1e12} for row in sample()["baseline"]]
    words = "the front reaches the quality of no layer-scaled model, so nothing is compared"
    assert words in verdict(sample(baseline=high, savings=None))
    some = [*sample()["baseline"][:1], *high]
    assert "were not compared" in verdict(sample(baseline=some, savings=None))
    assert "predicted" not in verdict(CASES["partly measured"])
    assert verdict(CASES["no architecture within limits"]) == (
        "No architecture was found within latency 1 ms and peak memory 2 MB."
    )


def test_means_are_told_where_there_are_several_depths() -> None:
    two = savings(row_of(layers=8), row_of())
    words = (
        "On average over the 2 depths whose quality it reaches: 19.8% less latency for the fastest "
        "and 28.8% less memory for the smallest."
    )
    assert verdict(sample(savings=two)).endswith(words)
    assert "On average" not in verdict(sample(savings=savings(row_of())))
    worse = verdict(sample(savings=two | {"latency_saved": -0.05}))
    assert "5.0% more latency for the fastest and 28.8% less memory" in worse


def test_times_that_overlap_are_no_gain() -> None:
    found = sample(savings=savings(row_of(layers=4, found="g7", speedup=1.3)))
    found["front"][6]["measured"]["latency_interval"] = [0.01, 0.011]
    found["baseline"][3]["measured"]["latency_interval"] = [0.012, 0.013]
    assert "1.3× faster" in verdict(found)
    for part, name in (("front", "g7"), ("baseline", "4 layers")):
        (row,) = [row for row in found[part] if row["name"] == name]
        row["measured"]["latency_interval"] = [0.04, 0.05] if part == "front" else [0.05, 0.06]
    assert "about as fast" in verdict(found)
    assert "1.30 ≈" in Reader(pareto_page(found)).all("td")
    assert "≈: the two latencies cannot be told apart." in savings_parts(found)[0].see
    found["front"][6]["measured"]["latency_interval"] = [0.061, 0.07]
    assert "1.3× faster" in verdict(found)
    assert "≈" not in savings_parts(found)[0].see


def test_the_page_names_device_step_and_day() -> None:
    words = (
        "AMD EPYC 9R14, 1 thread, torch 2.13.0; a step of 192 tokens, batch 1, fp32; 2026-11-16."
    )
    assert words in Reader(pareto_page(sample(1))).all("p")


# Pictures


def test_the_front_stands_where_it_was_measured() -> None:
    found = sample()
    for part, metric, size in zip(pictures(found), ("latency", "memory"), (1e-3, 1e6), strict=True):
        figure = drawn(part)
        members, scaled = [trace for trace in figure["data"] if trace.get("meta") == "limited"]
        for trace, rows in ((members, found["front"]), (scaled, found["baseline"])):
            for place, row in enumerate(rows):
                assert trace["x"][place] * size == pytest.approx(row["measured"][metric])
                assert trace["y"][place] * 1e6 == pytest.approx(row["quality"])
        assert members["customdata"] == list(range(8))
        assert scaled["customdata"] == list(range(8, 12))
        assert members["marker"]["symbol"] == "circle"
        other, worth = ("memory", 1e6) if metric == "latency" else ("latency", 1e-3)
        colours = [row["measured"][other] / worth for row in found["front"]]
        assert members["marker"]["color"] == pytest.approx(colours)
        assert figure["layout"]["coloraxis"]["cmin"] == pytest.approx(min(colours))
        assert figure["layout"]["coloraxis"]["cmax"] == pytest.approx(max(colours))
        assert figure["layout"]["meta"] == {"metric": metric, "size": size}
        assert "lines" in scaled["mode"]


def test_the_words_of_a_picture_are_true() -> None:
    found = sample()
    first, second = pictures(found)
    best = max(found["front"], key=lambda row: row["quality"])
    quality, time = best["quality"] / 1e6, best["measured"]["latency"] * 1e3
    assert f"The best quality, {quality:.3g} M decoder parameters, costs {time:.3g} ms" in first.see
    least = min(row["measured"]["memory"] for row in found["front"]) / 1e6
    assert f"the least peak memory is {least:.3g} MB." in second.see
    assert "The colour is peak memory." in first.see
    assert "where they were predicted" in first.see
    assert "where they were measured" in pictures(CASES["measuring"])[0].see
    assert "Faint dots" not in second.see


def test_predicted_and_measured_are_told_apart() -> None:
    found = CASES["partly measured"]
    figure = drawn(pictures(found)[0])
    solid, hollow = [t for t in figure["data"] if t.get("meta") == "limited"][:2]
    assert (solid["marker"]["symbol"], hollow["marker"]["symbol"]) == ("circle", "circle-open")
    assert solid["customdata"] == list(range(0, 8, 2))
    assert hollow["customdata"] == list(range(1, 8, 2))
    assert solid["uid"] != hollow["uid"]
    names = [t["name"] for t in figure["data"] if t.get("showlegend") is not False]
    assert names == ["visited", "front, measured", "front, predicted", "layer-scaled"]
    row = found["front"][1]
    assert hollow["x"][0] * 1e-3 == pytest.approx(row["predicted"]["latency"])
    exact = drawn(pictures(CASES["counts alone"])[0])
    assert [t["name"] for t in exact["data"] if "name" in t] == ["visited", "front", "layer-scaled"]


def test_the_line_joins_what_two_figures_alone_leave_unbeaten() -> None:
    found = sample(40)
    (line,) = [t for t in drawn(pictures(found)[1])["data"] if t["mode"] == "lines"]
    places = [(row["measured"]["memory"] / 1e6, row["quality"] / 1e6) for row in found["front"]]
    kept = [
        (x, y) for x, y in places
        if not any(a <= x and b >= y and (a, b) != (x, y) for a, b in places)
    ]  # fmt: skip
    assert 2 < len(kept) < 40
    assert line["x"] == pytest.approx([x for x, _ in sorted(kept)])
    assert line["y"] == pytest.approx([y for _, y in sorted(kept)])


def test_dots_outside_the_frame_are_counted_and_left_out() -> None:
    visited = {"quality": [1e6, 9e12, 1e6], "latency": [0.01, 0.01, 99.0]}
    part = pictures(sample(visited=visited))[0]
    (dots,) = [t for t in drawn(part)["data"] if t.get("name") == "visited"]
    assert (dots["x"], dots["y"]) == ([10.0], [1.0])
    assert "Faint dots are 1 candidate that" in part.see
    assert "; 2 more lie outside the frame." in part.see
    whole = pictures(CASES["as large as it gets"])[0]
    (dots,) = [t for t in drawn(whole)["data"] if t.get("name") == "visited"]
    assert f"{len(dots['x']):,} candidates" in whole.see
    assert len(dots["x"]) > 2000


def test_two_objectives_make_one_picture_without_colours() -> None:
    (part,) = pictures(CASES["quality and latency"])
    figure = drawn(part)
    members = next(t for t in figure["data"] if t.get("meta") == "limited")
    assert isinstance(members["marker"]["color"], str)
    assert "coloraxis" not in figure["layout"]
    assert "colour" not in part.see
    assert len(pictures(CASES["everything"])) == 5
    assert pictures(CASES["no architecture"]) == []


def test_quality_below_nought_keeps_its_sign_and_stays_in_the_frame() -> None:
    part = pictures(CASES["minus a loss"])[0]
    figure = drawn(part)
    low, high = figure["layout"]["yaxis"]["range"]
    members = next(t for t in figure["data"] if t.get("meta") == "limited")
    assert low < min(members["y"]) < max(members["y"]) < high
    assert max(members["y"]) < 0
    assert f"The best quality, short-training score −{-max(members['y']):.4g}, costs" in part.see
    assert figure["layout"]["yaxis"]["title"]["text"] == "quality: short-training score"
    assert "Nothing was trained" not in " ".join(
        Reader(pareto_page(CASES["minus a loss"])).all("p")
    )


def test_a_point_tells_all_its_figures() -> None:
    row = sample()["front"][7]
    found = result(sample())
    words = next(t for t in drawn(pictures(sample())[0])["data"] if "hovertext" in t)["hovertext"][
        7
    ]
    parts = words.split("<br>")
    low, high = (end * 1e3 for end in row["measured"]["latency_interval"])
    assert parts[:2] == [f"<b>{row['name']}</b>", sizes(found.front[7], found)]
    assert f"latency {row['predicted']['latency'] * 1e3:.3g} ms predicted, " in parts[3]
    assert (
        f"{row['measured']['latency'] * 1e3:.3g} ms measured ({low:.3g} – {high:.3g} ms)"
        in parts[3]
    )
    assert parts[4].startswith("peak memory ")
    assert parts[4].endswith(" MB measured")
    assert [part.split()[0] for part in parts[5:]] == ["FLOPs", "parameters", "state"]


# Limits


@pytest.mark.parametrize("metric", SEARCHED)
@pytest.mark.parametrize(("low", "high"), [(3.1, 48.0), (0.98, 1.03), (7.0, 7100.0), (1.0, 1.9)])
def test_a_slider_stops_at_what_the_command_line_reads(
    metric: str, low: float, high: float
) -> None:
    unit = {"latency": 1e-3, "memory": 1e6, "state": 1e3, "flops": 1e9, "parameters": 1e6}[metric]
    places = stops(metric, [high * unit, low * unit, low * unit])
    amounts = [most for most, _, _ in places]
    assert amounts == sorted(set(amounts))
    assert low * unit <= amounts[0] < low * unit * 1.2
    assert high * unit * 0.8 < amounts[-1] < high * unit * (1 + 1e-9)
    assert 4 < len(places) <= 160
    for most, words, option in places:
        limit = read_limit(option)
        assert (limit.metric, limit.most) == (metric, most)
        assert in_words(metric, most) == words
        assert len(option) <= len(metric) + 8


def test_a_slider_has_round_stops() -> None:
    assert stops("latency", [0.0185, 0.0999])[1:3] == [
        (0.02, "20 ms", "latency=20ms"),
        (0.021, "21 ms", "latency=21ms"),
    ]
    assert stops("memory", [5.0, 5.0]) == stops("state", [0.0, 0.0]) == []
    assert stops("state", [0.0, 1e6, 2e6])[0][0] == 1e6, "nought needs no limit"


def known_of(found: dict[str, Any]) -> dict[str, Any]:
    text = sliders(found)
    assert text is not None
    (group,) = [a for _, a in Reader(text).tags if "data-known" in a]
    known = json.loads(group["data-known"] or "")
    assert isinstance(known, dict)
    return known


@pytest.mark.parametrize("name", ["usual", "partly measured", "minus a loss", "counts alone"])
def test_what_a_slider_leaves_is_what_pick_takes(name: str) -> None:
    """The script's comparison, written again, chooses as the command line does."""
    found = CASES[name]
    known, rng = known_of(found), Random(3)
    for _ in range(40):
        chosen = {
            m: rng.choice(places) for m, places in known["stops"].items() if rng.random() < 0.5
        }
        left = [
            n for n in range(len(found["front"]))
            if all(known["figures"][m][n] <= stop[0] for m, stop in chosen.items())
        ]  # fmt: skip
        if left:
            best = max(left, key=lambda n: known["quality"][n])
            limits = {m: read_limit(stop[2]).most for m, stop in chosen.items()}
            chosen_one = best_within(result(found).front, limits)
            assert chosen_one.name == found["front"][best]["name"]


def test_every_figure_that_differs_has_a_slider_and_a_word() -> None:
    found = sample()
    read = Reader(sliders(found) or "")
    inputs = [a for t, a in read.tags if t == "input"]
    assert [a["name"] for a in inputs] == ["latency", "memory", "flops", "parameters", "state"]
    labels = [a["for"] for t, a in read.tags if t == "label"]
    outputs = [a["for"] for t, a in read.tags if t == "output"]
    assert labels == outputs == [a["id"] for a in inputs]
    assert read.all("output") == ["no limit"] * 5
    known = known_of(found)
    for a in inputs:
        assert a["value"] == a["max"] == str(len(known["stops"][a["name"]]))
        assert (a["min"], a["step"]) == ("0", "1")
    assert known["figures"]["latency"] == [
        one.figure("latency") for one in (*result(found).front, *result(found).baseline)
    ]
    assert known["pick"] == "parformer pick runs/front"
    best = max(found["front"], key=lambda row: row["quality"])
    assert best["name"] == read.all("span")[0].partition(":")[0]
    assert read.all("b") == ["8 of 8 left; best quality:"]
    assert [w for w in known["words"] if w.startswith(f"{best['name']}: ")] == read.all("span")
    assert sliders(CASES["no architecture"]) is None
    assert sliders(CASES["one architecture"]) is None


def test_the_script_speaks_of_what_the_page_has() -> None:
    text = pareto_page(sample())
    read = Reader(text)
    classes = {name for _, a in read.tags for name in (a.get("class") or "").split()}
    for selector in re.findall(r'(?:find|querySelector(?:All)?)\("([^"]+)"\)', SCRIPT):
        for name in re.findall(r"\.([a-z]+)", selector):
            assert name in classes, selector
    assert "tr[data-row]" in SCRIPT
    rows = [a["data-row"] for t, a in read.tags if "data-row" in a]
    assert rows == [str(n) for n in range(8)]


@pytest.mark.parametrize(
    ("command", "run"),
    [
        ("parformer search pareto --run runs/a --seed 1", "runs/a"),
        ("parformer search pareto --run='my run'", "'my run'"),
        ("parformer search pareto", "RUN"),
        ("parformer search pareto --run", "RUN"),
        ("parformer search pareto --run '; rm -rf x'", "'; rm -rf x'"),
        ("broken 'quote", "RUN"),
        ("", "RUN"),
    ],
)
def test_the_run_is_named_as_a_shell_needs_it(command: str, run: str) -> None:
    assert run_of(command) == run
    assert known_of(sample(2, command=command))["pick"] == f"parformer pick {run}"


# The table


def cells_of(found: dict[str, Any]) -> list[list[str]]:
    """Rows of the table of the front; the second line of a cell after a bar."""
    text = pareto_page(found).replace("<small>", "|").replace("</small>", "")
    rows = re.findall(r"<tr data-row=.*?</tr>", text, flags=re.S)
    return [Reader(row).all("td") for row in rows]


def test_the_table_holds_the_given_numbers() -> None:
    found = sample(40)
    for row, cells in zip(found["front"], cells_of(found), strict=True):
        heads = sorted({int(h) for h in re.findall(r"heads=(\d+)", row["pattern"])})
        inner = sorted({int(i) for i in re.findall(r"inner=(\d+)", row["pattern"])})
        low, high = (f"{end * 1e3:.3g}" for end in row["measured"]["latency_interval"])
        assert cells[1:] == [
            str(row["layers"]),
            str(row["fields"]["d_model"]),
            "–".join(str(h) for h in dict.fromkeys((heads[0], heads[-1]))),
            "–".join(f"{i:,}" for i in dict.fromkeys((inner[0], inner[-1]))),
            quality_words(found["proxy"], row["decoder_parameters"]),
            f"{row['predicted']['latency'] * 1e3:.3g} ms",
            f"{row['measured']['latency'] * 1e3:.3g} ms{' ≈' * row['tie']}|{low} – {high} ms",
            f"{row['measured']['memory'] / 1e6:.3g} MB",
        ]
    assert any(row["tie"] for row in found["front"])
    assert "≈: the latency cannot be told" in pareto_page(found)
    calm = [row | {"tie": False} for row in found["front"]]
    assert "≈" not in pareto_page(sample(front=calm, savings=None)).partition("<footer>")[0]


def test_full_patterns_are_below_the_table() -> None:
    found = sample()
    read = Reader(pareto_page(found))
    assert {row["pattern"] for row in found["front"]} <= set(read.all("td"))
    assert "full patterns" in read.all("summary")


def test_unmeasured_figures_are_marked() -> None:
    (cells, *_) = cells_of(sample(measured=False))
    assert cells[-2] == "–"
    assert cells[-1].startswith("~")
    assert "after ~ was predicted" in pareto_page(sample(measured=False))
    assert "after ~" not in pareto_page(sample())


def test_other_objectives_and_proxies_have_their_columns() -> None:
    def heads(found: dict[str, Any]) -> list[str]:
        top = re.search(r'aria-label="the front">.*?</thead>', pareto_page(found), flags=re.S)
        assert top
        return Reader("<div " + top[0] + "</table></div>").all("th")[2:]

    assert heads(sample())[4:] == [
        "decoder parameters",
        "latency predicted",
        "latency measured",
        "peak memory",
    ]
    assert heads(CASES["minus a loss"])[4:6] == ["short-training score", "decoder parameters"]
    assert heads(CASES["counts alone"])[4:] == ["decoder parameters", "FLOPs", "parameters"]
    twice = sample(proxy="parameters", objectives=["quality", "parameters"])
    assert heads(twice)[4:] == ["parameters", "decoder parameters"]


def of_pattern(pattern: str, **changes: Any) -> tuple[Member, SizesResult]:
    found = result(sample(1))
    return replace(found.front[0], pattern=Pattern.parse(pattern), **changes), found


def test_a_drawing_has_a_bar_per_block_as_high_as_it_is_wide() -> None:
    row, found = of_pattern("s[heads=2]f[inner=1000]s[heads=8]f[inner=500]f[inner=4000]")
    text = drawing(row, found, 4000, 8)
    paths = {a["fill"]: a["d"] or "" for t, a in Reader(text).tags if t == "path"}
    ups = [float(v) for v in re.findall(r"M\S+ \S+?v(-?[\d.]+)h", paths["#4c78a8"])]
    downs = [float(v) for v in re.findall(r"M\S+ \S+?v(-?[\d.]+)h", paths["#d9480f"])]
    assert ups == [-6.0, -3.0, -24.0]
    assert downs == pytest.approx([2.25, 9.0])
    lefts = [float(x) for x in re.findall(r"M([\d.]+) ", paths["#4c78a8"])]
    assert lefts == [0, 6.5, 13]
    assert "inner 1000, 500, 4000; heads 2, 8" in text
    wide = re.search(r'width="([\d.]+)"', drawing(*of_pattern("(sf)x100"), 0, 0))
    assert wide is not None
    assert float(wide[1]) <= 110


def test_a_feed_forward_stands_on_the_block_before_it() -> None:
    for pattern in ("sfsf", "sfff", "ffss", "rfaf i f", "s"):
        blocks = list(Pattern.parse(pattern))
        made = columns(blocks)
        flat = [block for above, below in made for block in (below, above) if block is not None]
        assert flat == blocks
        assert all(above is None or above.letter == "f" for above, _ in made)
        assert all(below is None or below.letter != "f" for _, below in made)
    assert len(columns(list(Pattern.parse("sfsf")))) == 2


def test_sizes_that_a_pattern_leaves_open_come_from_the_model() -> None:
    row, found = of_pattern("(sf)x4", layers=4, fields={"d_model": 512})
    usual = f"heads {LIKE.n_head}, inner {LIKE.d_inner:,}"
    assert sizes(row, found) == f"4 layers, width 512, {usual}"
    assert sizes(replace(row, fields={}), found).startswith(f"4 layers, width {LIKE.d_model:,}")


# Savings


def test_every_depth_has_its_row() -> None:
    found = sample()
    depths, paper = savings_parts(found)
    assert isinstance(depths.content, str)
    read = Reader(depths.content)
    assert [cell for cell in read.all("th") if cell.endswith(("layer", "layers"))] == [
        row["name"] for row in found["baseline"][: len(found["savings"]["rows"])]
    ]
    wide = len(read.all("td")) // len(found["savings"]["rows"])
    for number, row in enumerate(found["savings"]["rows"]):
        cells = read.all("td")[number * wide : (number + 1) * wide]
        tie = cells[4].partition(" ")[2]
        assert cells == [
            quality_words(found["proxy"], row["quality"]),
            row["found"],
            f"{row['latency'] * 1e3:.3g} ms",
            f"{row['found_latency'] * 1e3:.3g} ms",
            f"{row['latency'] / row['found_latency']:.2f}{' ' * bool(tie)}{tie}",
            f"{row['memory'] / 1e6:.3g} MB",
            f"{row['found_memory'] / 1e6:.3g} MB",
            f"{row['memory'] / row['found_memory']:.2f}",
        ]
    assert "section 4.4 of LiteTransformerSearch" in paper.see


def test_depths_that_are_out_of_reach_are_counted() -> None:
    found = sample()
    found["savings"]["rows"] = found["savings"]["rows"][:2]
    assert "2 depths left out" in savings_parts(found)[0].see
    assert "left out" not in savings_parts(sample())[0].see
    assert "predictions are compared" in savings_parts(sample(measured=False))[0].see


def test_the_papers_figures_stand_beside_ours_where_the_search_is_of_its_kind() -> None:
    found = sample(savings=savings(row_of(layers=8), row_of()))
    content = savings_parts(found)[1].content
    assert isinstance(content, str)
    read = Reader(content)
    assert read.all("td") == [
        *("19.8%", "28.8%", "1.6", "1.9"),  # this search, as made up above
        *("19.8%", "28.8%", "1.6", "1.9"),
        *("25.8%", "30.0%", "1.7", "1.9"),
        *("30.5%", "27.0%", "2.5", "2.0"),
    ]
    assert read.all("th")[1:5] == [
        "latency saved", "memory saved", "× faster, 16 layers", "× less memory, 16 layers"
    ]  # fmt: skip
    names = ["this search", "the paper, ARM", "the paper, Core i7", "the paper, TITAN Xp"]
    assert read.all("th")[5:] == names
    gpt = found | {"space": found["space"] | {"family": "gpt2"}}
    content = savings_parts(gpt)[1].content
    assert isinstance(content, str)
    assert Reader(content).all("td")[4:] == [
        *("0.0%", "11.8%", "–", "–"),
        *("13.8%", "9.7%", "1.3", "1.2"),
        *("11.9%", "12.9%", "1.5", "1.2"),
    ]
    for other in ({"family": "llama"}, {"name": "pocket"}):
        assert len(savings_parts(found | {"space": found["space"] | other})) == 1
    assert "LM1B" not in pareto_page(CASES["another space"])
    assert set(PAPER) == {"transformer-xl", "gpt2"}


def test_a_shallower_comparison_says_so() -> None:
    content = savings_parts(sample(savings=savings(row_of(layers=9))))[1].content
    assert isinstance(content, str)
    assert "× faster, 16 layers (here 9)" in Reader(content).all("th")


# Settling, predicting, repeating


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.4, 0.6, 0.78, 0.8], "It rose from 0.4 to 0.8; 5.0% of that came in the last third"),
        ([0.4, 0.4], "It stayed at 0.4."),
        ([0.4], "It stayed at 0.4."),
        ([0.5, 0.4], "It fell from 0.5 to 0.4."),
    ],
)
def test_the_way_of_the_hypervolume_is_told(values: list[float], words: str) -> None:
    part = settling(sample(1, hypervolume=volumes(values)))
    assert part is not None
    assert words in part.see


def volumes(values: list[float]) -> dict[str, Any]:
    return {"reference": [], "ideal": [], "by_iteration": values}


def test_iterations_are_counted_from_one() -> None:
    found = sample(1)
    (line,) = drawn(settling(found))["data"]
    assert line["x"] == list(range(1, 31))
    assert line["y"] == found["hypervolume"]["by_iteration"]
    many = found | {"hypervolume": volumes([0.1] * 9000)}
    assert drawn(settling(many))["layout"]["xaxis"]["dtick"] == 1000
    assert settling(found | {"hypervolume": volumes([])}) is None


def test_predictions_stand_against_measurements() -> None:
    found = sample()
    parts = predictions(found)
    for part, metric, size in zip(parts, ("latency", "memory"), (1e-3, 1e6), strict=True):
        line, front = drawn(part)["data"]
        assert line["x"] == line["y"] == [*drawn(part)["layout"]["xaxis"]["range"]]
        for place, row in enumerate(found["front"]):
            assert front["x"][place] * size == pytest.approx(row["predicted"][metric])
            assert front["y"][place] * size == pytest.approx(row["measured"][metric])
        errors = found["errors"][metric]
        assert f"half of them are within {errors['median']:.1%}" in part.see
        assert f"nine in ten within {errors['p90']:.1%}" in part.see
        assert f"the worst is off by {errors['worst']:.1%}" in part.see
    bars = drawn(parts[0])["data"][1]["error_y"]
    for place, row in enumerate(found["front"]):
        low, high = row["measured"]["latency_interval"]
        assert bars["array"][place] * 1e-3 == pytest.approx(high - row["measured"]["latency"])
        assert bars["arrayminus"][place] * 1e-3 == pytest.approx(row["measured"]["latency"] - low)
    assert "error_y" not in drawn(parts[1])["data"][1]
    assert predictions(sample(measured=False)) == []
    assert "half of them" not in predictions(sample(errors=None))[0].see
    exact = {"median": 0.0, "p90": 0.0, "worst": 0.0}
    both = {"latency": exact, "memory": exact}
    assert predictions(sample(errors=both))[1].see.endswith("for the front came true.")
    worse = both | {"memory": exact | {"worst": 0.001}}
    assert predictions(sample(errors=worse))[1].see.endswith("the worst is off by 0.1%.")


def test_all_that_is_needed_to_repeat_it_is_told() -> None:
    read = Reader(pareto_page(sample()))
    cells = read.all("td")
    for words in (
        "parformer search pareto --space lts-as-run --run runs/front --seed 0",
        "lts-as-run, like lts-transformer-xl, 3.2 × 10³⁶ architectures",
        "quality, latency and memory",
        "lts, population 100, parents 20, mutated 40, crossed 40, mutation 0.3, iterations 30",
        "predicted by a profile of the device",
        "192 tokens, batch 1, fp32",
        "AMD EPYC 9R14, 1 thread, torch 2.13.0",
        "2 min 21 s",
        "9.3 s",
        "88 s",
    ):
        assert words in cells
    assert cells[read.all("td").index("predicted by a profile of the device") - 1] == "0"
    last = read.all("figcaption")[-1]
    assert last.startswith("All in all it took 3 min 58 s.")
    assert "off by 1.9% in the median and 5.2% at the 90th percentile" in last
    bare = sample(1)
    bare["profile"] |= {"held_out": None}
    assert "off by" not in Reader(pareto_page(bare)).all("figcaption")[-1]


# The terminal


def test_the_terminal_shows_every_architecture_within_eighty_columns() -> None:
    found = sample(40)
    lines = shown(found, 80).splitlines()
    assert max(map(len, lines)) <= 80
    words = shown(found, 200)
    for row in found["front"]:
        (line,) = [line for line in words.splitlines() if f"│ {row['name']} " in line]
        assert f"{row['measured']['latency'] * 1e3:.3g} ms{' ≈' * row['tie']} " in line
        assert f"{row['measured']['memory'] / 1e6:.3g} MB" in line
        assert quality_words(found["proxy"], row["quality"]) in line
        assert "~" not in line
    assert "≈ the latency cannot be told" in words
    assert "~ predicted" not in words
    guessed = shown(sample(measured=False), 200)
    assert guessed.count("~") == 2 * 8 + 1
    assert "~ predicted, not measured" in guessed
