"""The report of a fit says what was found, and nothing more than that."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rich.console import Console, RenderableType
from test_page import EVIL, Reader
from test_search import sample as search_sample

from parformer import events
from parformer.fitting.result import FitResult
from parformer.pattern import Pattern
from parformer.report.figures import ACCENT
from parformer.report.fit import fit_page, fit_table, plan_table
from parformer.report.fit_effort import energy, phases, receipts, repeat
from parformer.report.fit_figures import answer, curves
from parformer.report.fit_glance import handed_over, stopped_words, tiles
from parformer.report.fit_parts import attention, figures, limits, samples, stacks, sweep
from parformer.report.fit_rows import colours_of, labels_of
from parformer.report.fit_sizes import sizes_pictures
from parformer.report.page import Part

OLD = Path(__file__).parents[1] / "fitting" / "files" / "fit-0.1.json"


def sample(**changes: Any) -> FitResult:
    """What a fit found, made up but coherent; changes replace whole entries."""
    return FitResult.from_dict(values(**changes))


def values(**changes: Any) -> dict[str, Any]:
    """The same, as it is written."""
    rng = Random(7)
    baseline = _model(
        "baseline", "(sf)x6", 1.520, 0.0039, title="Interleaved Transformer",
        how="attention and feed-forward in turn, all alike; sized for the time there is",
        eligible=False, broken={"latency": 0.0039}, against=None, memory=7_000_000, rng=rng,
    )  # fmt: skip
    models = [
        baseline,
        _model(
            "par", "(sfff)x2 (f)x4", 1.549, 0.00292, title="PAR’s rule", rng=rng,
            how="attention in the first two thirds only, every fourth block",
            against=_against(0.019, 0.008, 0.030, "worse"), memory=5_600_000,
        ),
        _model(
            "found", "sfsffsffffff", 1.529, 0.00271, title="Found by search", rng=rng,
            how="blocks placed by the differentiable search",
            against=_against(0.006, -0.002, 0.0094, "at par"), memory=5_700_000,
        ),
        _model(
            "found-sized", "s[heads=2]f[inner=448]s[heads=4]f[inner=640]f[inner=512]s[heads=2]"
            "f[inner=768]f[inner=512]f[inner=512]f[inner=384]", 1.541, 0.00252, rng=rng,
            title="Found, sizes searched", how="the found placement, every block its own size",
            against=_against(0.0138, 0.004, 0.0236, "unclear"), memory=5_100_000,
        ),
        _model(
            "recurrent", "(rf)x6", 1.83, 0.0033, title="Recurrence only", rng=rng, steps=600,
            how="SRU in place of attention", eligible=False, broken={"latency": 0.0033},
            dropped={"step": 200, "loss": 1.98, "why": "6.1% behind the best after a third"},
        ),
    ]  # fmt: skip
    return {
        "format": "parformer-fit-1",
        "corpus": "python-source",
        "tokenizer": "byte",
        "unit": "bits",
        "unit_words": "bits per byte",
        "command": "parformer fit python-source --time 6m --limit latency=0.8x",
        "version": "0.1.0",
        "date": "2026-11-16",
        "finished": True,
        "asked": {
            "limits": ["latency=0.8x"], "time": 360.0, "steps": 0, "margin": 0.01,
            "family": "transformer-xl", "choices": "rsfi", "seed": 0,
        },
        "step": {
            "tgt_len": 128, "mem_len": 128, "batch": 1, "threads": 1, "precision": "fp32",
            "words": "128 tokens after 128, batch 1, fp32", "rounds": 10,
        },
        "limits": {"latency": 0.00312},
        "text": {
            "bytes": 12_000_000, "tokens": 10_800_000, "vocabulary": 256, "identity": "0",
            "overlap": {}, "references": {},
        },
        "references": {},
        "phases": [
            _phase("read", "read and tokenize", 6.0, 4.8),
            _phase("profile", "profile this device", 30.0, 28.1,
                   "shrunk: 8 whole models instead of 24"),
            _phase("search", "search where attention is required", 60.0, 58.7),
            _phase("pareto", "search sizes under the limits", 20.0, 18.0),
            _phase("sweep", "find learning rates", 40.0, 41.3),
            _phase("train", "train the finalists alike", 110.0, 108.2),
            _phase("seeds", "train with more seeds", 0.0, None, "left out: 6 min are too short"),
            _phase("final", "train the winner on", 70.0, 71.5),
            _phase("measure", "measure all of them", 20.0, 19.6),
        ],
        "models": models,
        "baseline": "baseline",
        "chosen": "found",
        "final": {
            "folder": "model", "name": "found", "steps": 1900, "retrained": False,
            "baseline_test": None,
            "valid": {"loss": 1.402, "tokens": 65_535}, "test": {"loss": 1.391, "tokens": 200_000},
            "latency": models[2]["latency"], "memory": 5_700_000,
        },
        "verdict": {
            "kind": "at par",
            "headline": "At par with the interleaved Transformer, and 31% faster.",
            "sentences": [
                "Attention in 3 of 12 blocks is enough: the loss is 0.6% higher (−0.2% to +0.9%), "
                "within the margin of 1%, and a step takes 2.71 ms instead of 3.9 ms.",
                "It also needs 19% less memory at its peak and half the state.",
            ],
        },
        "samples": [
            {"name": "baseline", "prompt": "def read(",
             "text": 'self, size=-1):\n        """Return the <b>next</b> line."""\n'
                     "        if self.closed:\n            raise ValueError('I/O on closed file')\n"
                     "        return self._read(size)\n"},
            {"name": "final", "prompt": "def read(",
             "text": "self, path, mode='r', encoding=None):\n"
                     "        with open(path, mode) as file:\n"
                     "            for line in file:\n                yield line.rstrip()\n\n"
                     "    def _close(self):\n        self.file.close()\n"},
        ],
        "search": search_sample(12, picks=[[0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1]] * 2),
        "pareto": _pareto(rng),
        "profile": {"seconds": 28.1, "median_error": 0.03, "p90_error": 0.08},
        "energy": {
            "seconds": 351.0, "watts": 30.0, "kwh": 0.002925, "co2_kg": 0.00117,
            "money": 0.00088, "currency": "EUR", "grid": 0.4, "price": 0.3,
            "source": "15 W for each of 2 busy cores",
        },
        "receipt": {
            "what": "a step of 128 tokens after 128, batch 1, fp32", "date": "2026-11-16T20:11:05Z",
            "parformer": "0.1.0", "torch": "2.13.0+cpu", "threads": 1,
            "device": {
                "cpu": "AMD EPYC 9R14", "cores": 2, "ram_bytes": None, "simd": "AVX512",
                "mkldnn": True, "native_bf16": None, "accelerator": None, "os": "Linux",
                "python": "3.11", "torch": "2.13.0+cpu", "threads": 1,
            },
        },
        "device": {
            "cpu": "AMD EPYC 9R14", "cores": 2, "threads": 1, "torch": "2.13.0+cpu",
            "ram_bytes": 8_000_000_000,
        },
        "repeat": [
            "parformer train config.toml --run again",
            "parformer evaluate model --corpus python-source",
            "parformer generate model --prompt 'def read('",
        ],
        "warnings": [],
    } | changes  # fmt: skip


def _phase(
    name: str, title: str, planned: float, seconds: float | None, note: str = ""
) -> dict[str, Any]:
    return {"name": name, "title": title, "planned": planned, "seconds": seconds, "note": note}


def _against(difference: float, low: float, high: float, verdict: str) -> dict[str, Any]:
    ends = {"difference": difference, "low": low, "high": high}
    return ends | {"seeds": 2, "segments": 128, "verdict": verdict}


def _model(
    name: str, pattern: str, loss: float, time: float, *, rng: Random, steps: int = 600,
    against: Any = None, dropped: Any = None, memory: int = 6_000_000, **changes: Any
) -> dict[str, Any]:  # fmt: skip
    ratio = time / 0.0039
    done = 200 if dropped else steps
    at = [(step, loss + 2.6 * math.exp(-step / 75) + 0.09 * (1 - step / 600))
          for step in range(10, done + 1, 10)]  # fmt: skip
    blocks = Pattern.parse(pattern)
    count = 66_000 + 68_000 * blocks.count("s") + 132_000 * blocks.count("f")
    return {
        "name": name,
        "pattern": pattern,
        "d_model": 128,
        "eligible": True,
        "broken": {},
        "parameters": count,
        "decoder_parameters": count - 66_000,
        "flops": 280_000_000,
        "state_bytes": 262_144 * blocks.count("s") + 512 * blocks.count("r"),
        "latency": {
            "seconds": time, "low": time * 0.985, "high": time * 1.02,
            "ratio": ratio, "ratio_low": ratio * 0.98, "ratio_high": ratio * 1.03,
            "verdict": "tie" if abs(ratio - 1) < 0.03 else "faster" if ratio < 1 else "slower",
        },
        "memory": memory,
        "rates": [
            {"rate": 0.001, "loss": loss + 0.62}, {"rate": 0.002, "loss": loss + 0.55},
            {"rate": 0.004, "loss": loss + 0.58 if name != "par" else None},
        ],
        "rate": 0.002,
        "steps": steps,
        "dropped": dropped,
        "valid": None if dropped else {"loss": loss, "tokens": 65_535},
        "against": against,
        "curve": [[step, y + rng.gauss(0, 0.03)] for step, y in at],
        "valid_curve": [[step, y] for step, y in at if step % 100 == 0],
    } | changes  # fmt: skip


def _pareto(rng: Random) -> dict[str, Any]:
    visited, front = {}, {}
    for name, cost in (("par", 2.3), ("found", 2.05)):
        sizes = [rng.uniform(3e5, 1.35e6) for _ in range(220)]
        times = [x * cost * 1e-9 * rng.uniform(0.95, 1.5) for x in sizes]
        bytes_ = [2.8e6 + 2.9 * x for x in sizes]
        visited[name] = {"quality": sizes, "latency": times, "memory": bytes_}
        rows = sorted(zip(times, sizes, bytes_, strict=True))
        best = [row for row in rows if not any(o[0] < row[0] and o[1] > row[1] for o in rows)]
        front[name] = [{"quality": y, "latency": x, "memory": z} for x, y, z in best]
    return {"objectives": ["quality", "latency", "memory"], "proxy": "decoder-parameters",
            "visited": visited, "front": front}  # fmt: skip


def change(name: str, **changes: Any) -> list[dict[str, Any]]:
    """The sample's models, one of them changed."""
    return [m | changes if m["name"] == name else m for m in values()["models"]]


def filled(value: Any, words: str) -> Any:
    """The same with every text replaced but those that the program reads itself."""
    if isinstance(value, Mapping):
        kept = ("format", "unit", "verdict", "pattern", "choices", "objectives", "search", "step",
                "limits")  # fmt: skip
        return {k: v if k in kept else filled(v, words) for k, v in value.items()}
    if isinstance(value, list):
        return [filled(inside, words) for inside in value]
    return words if isinstance(value, str) else value


def evil() -> FitResult:
    """Names full of markup wherever a name can be."""
    found = values()
    names = {model["name"]: f"{EVIL}{model['name']}" for model in found["models"]}
    made = filled(found, EVIL)
    for model, (name, called) in zip(made["models"], names.items(), strict=True):
        model |= {"name": called, "title": f"{EVIL} {name}"}
    made |= {"baseline": names["baseline"], "chosen": names["found"]}
    made["verdict"] = {"kind": "at par", "headline": EVIL, "sentences": [EVIL, EVIL]}
    made["samples"] = [{"name": EVIL, "prompt": EVIL, "text": EVIL}]
    made["pareto"] = deepcopy(found["pareto"])
    for part in ("visited", "front"):
        made["pareto"][part] = {names[k]: v for k, v in found["pareto"][part].items()}
    return FitResult.from_dict(made)


STOPPED = {
    "finished": False,
    "final": None,
    "samples": [],
    "pareto": None,
    "search": None,
    "receipt": None,
    "phases": [
        phase | {"seconds": None} if phase["name"] in ("train", "final", "measure") else phase
        for phase in values()["phases"]
    ],
    "verdict": {"kind": "stopped", "headline": "Stopped: at par so far.", "sentences": []},
}
NOTHING = STOPPED | {
    "models": [],
    "chosen": None,
    "limits": {},
    "text": None,
    "step": None,
    "profile": None,
    "repeat": [],
}

CASES: dict[str, FitResult] = {
    "usual": sample(),
    "perplexity": sample(unit="perplexity", unit_words="perplexity"),
    "stopped": sample(**STOPPED),
    "nothing yet": sample(**NOTHING),
    "of version 0.1": FitResult.from_dict(json.loads(OLD.read_text("utf-8"))),
    "no model at all": sample(models=[], chosen=None),
    "only the baseline": sample(models=values()["models"][:1], chosen=None),
    "no model keeps to the limits": sample(
        chosen=None, final=None, models=[m | {"eligible": False} for m in values()["models"]]
    ),
    "the baseline is chosen": sample(chosen="baseline", limits={}),
    "no limits": sample(limits={}, models=change("baseline", eligible=True, broken={})),
    "other limits": sample(limits={"memory": 6e6, "parameters": 2e6}),
    "nothing measured": sample(
        models=[m | {"latency": None} for m in values()["models"]]
    ),
    "nothing trained": sample(
        models=[
            m | {"valid": None, "against": None, "curve": [], "valid_curve": []}
            | {"rates": [], "rate": None, "dropped": None}
            for m in values()["models"]
        ]
    ),
    "no second comparison": sample(models=[m | {"against": None} for m in values()["models"]]),
    "alike titles": sample(models=[m | {"title": "A model"} for m in values()["models"]]),
    "left out on the way": sample(
        models=change("recurrent", dropped={"step": 0, "loss": None, "why": "no time"}),
        phases=[p | {"left_out": "left out: 3 s were left"} for p in values()["phases"]],
    ),
    "trained unlike": sample(models=change("found", steps=300, against=None)),
    "markup": evil(),
    "deep": sample(models=change("par", pattern="(sfff)x6 (f)x24")),
    "names as titles": sample(models=[m | {"title": ""} for m in values()["models"]]),
}  # fmt: skip


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> tuple[FitResult, Reader]:
    found = CASES[request.param]
    return found, Reader(fit_page(found))


def shown(drawn: RenderableType, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(drawn)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def words_of(part: Part | None) -> str:
    assert part is not None
    return part.see


# The whole page


def test_every_case_makes_a_whole_page(case: tuple[FitResult, Reader]) -> None:
    from plotly.graph_objects import Figure

    _, read = case
    assert read.open == []
    assert len(read.scripts) == (2 if read.plots else 0)
    for figure in read.plots:
        Figure(figure)
        assert figure["data"]
        for name, place in figure["layout"].items():
            if name[:5] in ("xaxis", "yaxis"):
                assert place["title"]["text"] or name == "yaxis", figure  # the heat map names rows
    assert all(read.all("figcaption"))
    words = " ".join([*read.all("figcaption"), *read.all("p")])
    for slip in ("None", "nan", "inf ", "{", "  ", " .", "..", " ,"):
        assert slip not in words.replace(EVIL, "X")


def test_every_case_loads_nothing(case: tuple[FitResult, Reader]) -> None:
    _, read = case
    assert not [a for _, a in read.tags if a.keys() & {"src", "href", "srcset", "action"}]
    assert not [tag for tag, _ in read.tags if tag in ("link", "img", "iframe", "form", "object")]
    assert not any("url(" in style or "@import" in style for style in read.all("style"))


def test_every_case_fits_a_terminal(case: tuple[FitResult, Reader]) -> None:
    found, _ = case
    text = shown(fit_table(found))
    assert max(map(len, text.splitlines())) <= 80
    assert "None" not in text
    assert "nan" not in text


def test_markup_stays_text() -> None:
    read = Reader(fit_page(evil()))
    assert not [tag for tag, _ in read.tags if tag == "img"]
    assert not [a for _, a in read.tags if any(name.startswith("on") for name in a)]
    assert read.all("h1") == [EVIL]
    assert read.all("pre")[0] == EVIL
    for figure in read.plots:
        drawn = [{k: v for k, v in t.items() if k != "legendgroup"} for t in figure["data"]]
        assert "<img" not in json.dumps([drawn, figure["layout"]])
    assert "[bold]x[/]" in shown(fit_table(sample(warnings=["[bold]x[/]"])))


def test_parts_that_are_missing_leave_no_heading_behind() -> None:
    read = Reader(fit_page(sample(**STOPPED)))
    headings = read.all("h2")
    assert "Where is attention required?" not in headings
    assert "Which sizes were looked at?" not in headings
    assert "What do they write?" not in headings
    assert "Which model is worth it?" in headings
    assert Reader(fit_page(sample())).all("h2")[3:5] == [
        "Where is attention required?",
        "Which sizes were looked at?",
    ]


# The verdict


def test_the_verdict_stands_first() -> None:
    found = sample()
    read = Reader(fit_page(found))
    assert read.all("h1") == [found.verdict.headline] == read.all("title")
    assert read.all("p")[2:4] == list(found.verdict.sentences)
    assert read.all("p")[1] == (
        "Asked for: a language model of python-source, latency at most 0.8× the baseline's, "
        "all of the work within 6 min."
    )
    lines = shown(fit_table(found), 200).splitlines()
    at = lines.index(found.verdict.headline)
    assert lines[at + 1 : at + 3] == list(found.verdict.sentences)


def test_a_stopped_job_says_so_before_anything_else() -> None:
    found = sample(**STOPPED)
    words = (
        "The job was stopped before its end; this is the best so far. Not finished: train the "
        "finalists alike, train the winner on and measure all of them."
    )
    assert stopped_words(found) == words
    read = Reader(fit_page(found))
    assert read.all("p")[1] == words  # the first is for readers without JavaScript
    assert shown(fit_table(found), 400).startswith(words)
    assert "stopped" not in fit_page(sample()).partition("<script>")[0]
    assert "not finished" in " ".join(Reader(str(phases(found).content)).all("td"))


def test_tiles_set_the_chosen_beside_the_baseline() -> None:
    read = Reader(tiles(sample()))
    texts = [text for text in read.all("div") if text]
    for words in (
        "quality: bits per byte",
        "baseline 2.193",
        "at par, loss +0.6%",
        "95%: −0.2% to +0.9%",
        "baseline 3.9 ms",
        "31% faster",
        "95%: −32% to −28%",
        "baseline 7 MB",
        "19% less",
        "50% less",
        "15% more",
    ):
        assert words in texts
    marks = {a["class"] for _, a in read.tags if "mark" in (a.get("class") or "")}
    assert marks == {"mark gain", "mark neither"}
    (note,) = read.all("p")
    assert "after 600 updates, the same for both" in note
    assert "within 1% of the baseline’s loss" in note


def test_ties_and_doubts_are_marked_as_such() -> None:
    latency = values()["models"][2]["latency"] | {"verdict": "tie", "ratio": 0.98}
    unsure = _against(0.012, -0.02, 0.04, "unclear")
    found = sample(models=change("found", latency=latency, against=unsure, memory=7_000_000))
    read = Reader(tiles(found))
    marks = [
        (text, a["class"])
        for (_, a), (_, text) in zip(
            [t for t in read.tags if t[0] != "br"], read.texts, strict=True
        )
        if "mark" in (a.get("class") or "")
    ]
    assert marks[:3] == [
        ("unclear, loss +1.2%", "mark neither"),
        ("a tie", "mark neither"),
        ("the same", "mark neither"),
    ]
    text = " ".join(shown(fit_table(found)).split())
    assert "0.98× ≈" in text
    assert "+1.2% ?" in text
    assert "≈ a tie" in text
    assert "? unclear" in text


def test_a_loss_is_marked_as_one() -> None:
    worse = _against(0.05, 0.04, 0.06, "worse")
    slower = values()["models"][2]["latency"] | {"verdict": "slower", "ratio": 1.2}
    text = tiles(sample(models=change("found", against=worse, latency=slower)))
    assert '<div class="mark loss">worse, loss +5.0%</div>' in text
    assert '<div class="mark loss">20% slower</div>' in text


def test_without_a_choice_the_baseline_stands_alone() -> None:
    for chosen, words in ((None, "No model was chosen"), ("baseline", "The baseline itself was")):
        text = tiles(sample(chosen=chosen))
        assert words in text
        assert "2.193" in text
        assert "mark" not in text
        assert "the same for both" not in text
    assert "✓" not in shown(fit_table(sample(chosen=None)))


def test_the_model_to_take_home_is_told_apart_from_the_compared_ones() -> None:
    final = values()["final"]
    assert handed_over(sample(final=final | {"retrained": True})) == (
        "Yours to use: the model in the folder model, trained on to 1,900 updates; it reaches "
        "2.023 bits per byte on validation and 2.007 bits per byte on test text."
    )
    kept = handed_over(sample(final=final | {"steps": 600, "test": None}))
    assert "as trained in the contest, for 600 updates; it reaches 2.023 bits per byte on" in kept
    assert kept.endswith("validation text.")
    assert handed_over(sample(final=None)) == ""


def test_losses_are_told_in_the_unit_that_was_asked_for() -> None:
    assert sample().quality.told(math.log(2) * 2) == "2.000 bits per byte"
    perplexity = CASES["perplexity"].quality
    assert perplexity.told(math.log(131.24)) == "perplexity 131.2"
    assert perplexity.told(1e4) == "perplexity –"
    read = Reader(fit_page(CASES["perplexity"]))
    assert f"{math.exp(1.529):.4g}" in " ".join(read.all("div"))
    assert "bits" not in " ".join(read.all("figcaption"))


# Figures


def test_the_answer_shows_every_trained_model_where_it_belongs() -> None:
    found = sample()
    part = answer(found)
    assert part is not None
    assert not isinstance(part.content, str)
    data, layout = part.content["data"], part.content["layout"]
    assert [t["x"][0] for t in data] == pytest.approx([3.9, 2.92, 2.71, 2.52])
    assert [t["y"][0] for t in data] == pytest.approx([0, 1.9, 0.6, 1.38])
    assert "error_y" not in data[0]
    assert data[2]["error_y"]["array"] == pytest.approx([0.34])
    assert data[2]["error_y"]["arrayminus"] == pytest.approx([0.8])
    assert data[2]["error_x"]["array"] == pytest.approx([2.71 * 0.02])
    assert [t["marker"]["symbol"] for t in data] == ["circle-open", *["circle"] * 3]
    assert data[2]["marker"]["color"] == ACCENT
    assert data[2]["marker"]["size"] > data[1]["marker"]["size"]
    band, line = layout["shapes"]
    assert (band["y0"], band["y1"]) == (-1, 1)
    assert line["x0"] == line["x1"] == pytest.approx(3.12)
    for trace in data:
        low, high = layout["xaxis"]["range"]
        assert low < trace["x"][0] < high
        low, high = layout["yaxis"]["range"]
        assert low < trace["y"][0] < high
    for words in (
        "within 1% of the baseline’s",
        "takes less than 3.12 ms",
        "Found by search was chosen: 2.71 ms, 0.6% worse than the baseline (95%: −0.2% to +0.9%).",
        "not shown: Recurrence only.",
        "over 128 paired segments and 2 seeds.",
        "Hollow points break a limit.",
    ):
        assert words in part.see


def test_without_a_paired_comparison_no_interval_is_claimed() -> None:
    part = answer(CASES["no second comparison"])
    assert part is not None
    assert not isinstance(part.content, str)
    assert not any("error_y" in trace for trace in part.content["data"])
    assert "(no interval)" in part.see
    assert "paired" not in part.see
    assert "unclear" in tiles(CASES["no second comparison"])


def test_a_dropped_model_is_not_compared_with_trained_ones() -> None:
    early = {"valid": {"loss": 1.0, "tokens": 1}, "against": _against(-0.3, -0.4, -0.2, "better")}
    found = sample(models=change("recurrent", **early))
    assert "not shown: Recurrence only." in words_of(answer(found))
    assert "Interleaved Transformer is best" in words_of(figures(found))
    assert "better" not in shown(fit_table(found))


def test_a_relative_limit_follows_the_baseline_of_the_same_measurement() -> None:
    slow = values()["models"][0]["latency"] | {"seconds": 0.0078}
    found = sample(models=change("baseline", latency=slow, broken={"latency": 0.0078}))
    part = answer(found)
    assert part is not None
    assert not isinstance(part.content, str)
    assert part.content["layout"]["shapes"][1]["x0"] == pytest.approx(6.24)
    assert "takes less than 6.24 ms" in part.see
    assert cells_of(limits(found))["at most"] == ["6.24 ms"]
    assert "The limit of 3.12 ms was settled early" in words_of(limits(found))
    assert "settled early" not in words_of(limits(sample()))
    assert cells_of(limits(found))["Interleaved Transformer"] == ["7.8 ms ✗ +25%"]
    fixed = replace(found, asked=replace(found.asked, limits=("latency=3.12ms",)))
    assert "takes less than 3.12 ms" in words_of(answer(fixed))


def test_no_latency_limit_no_line() -> None:
    part = answer(sample(limits={"memory": 6e6}))
    assert part is not None
    assert not isinstance(part.content, str)
    assert len(part.content["layout"]["shapes"]) == 1
    assert "dashed" not in part.see
    assert answer(CASES["nothing measured"]) is None
    assert answer(CASES["nothing trained"]) is None


def test_colours_tell_models_apart_and_stay_with_them() -> None:
    colours = colours_of(sample())
    assert len(set(colours.values())) == len(colours) == 5
    assert colours["found"] == ACCENT
    assert len(set(labels_of(CASES["alike titles"]).values())) == 5


def test_sizes_are_drawn_per_placement_and_called_predicted() -> None:
    found = sample()
    (part,) = sizes_pictures(found)
    assert not isinstance(part.content, str)
    layout = part.content["layout"]
    assert layout["xaxis"]["title"]["text"] == "predicted latency, ms"
    assert layout["yaxis"]["title"]["text"] == "decoder parameters, M"
    marks = [t for t in part.content["data"] if t.get("marker", {}).get("symbol") == "diamond"]
    assert [t["x"][0] for t in marks] == pytest.approx([3.9, 2.92, 2.71, 2.52, 3.3])
    assert found.pareto is not None
    fronts = found.pareto.front
    count = sum(map(len, fronts.values()))
    every = [row["latency"] for rows in fronts.values() for row in rows]
    assert "latency is predicted for this device" in part.see
    assert f"Rings are the {count} of them" in part.see
    assert f"to {max(every) * 1000:.3g} ms" in part.see
    assert "440 sets" in part.see
    assert "Diamonds are the models that were built, as measured." in part.see


def test_a_limited_cost_has_its_own_picture_of_sizes() -> None:
    parts = sizes_pictures(sample(limits={"latency": 0.003, "memory": 6e6}))
    assert len(parts) == 2
    assert "peak memory is predicted" in parts[1].see
    assert not sizes_pictures(sample(pareto=None))


def test_curves_end_where_training_ended() -> None:
    part = curves(sample())
    assert part is not None
    assert not isinstance(part.content, str)
    last = [t for t in part.content["data"] if t["mode"] == "lines+markers"]
    assert [t["x"][-1] for t in last] == [600, 600, 600, 600, 200]
    assert last[-1]["marker"]["symbol"][-1] == "x"
    first = values()["models"][0]["valid_curve"][-1][1] / math.log(2)
    assert last[0]["y"][-1] == pytest.approx(first)
    assert "Interleaved Transformer is lowest (2.193) and PAR’s rule highest (2.235)" in part.see
    assert "Recurrence only was dropped after 200 updates: 6.1% behind" in part.see
    assert "first updates lie above the frame" in part.see
    low, high = part.content["layout"]["yaxis"]["range"]
    assert all(low < t["y"][-1] < high for t in last)
    early = {"curve": [[10, 5.0], [50, 4.0]], "valid_curve": [[50, 4.1]]}
    soon = curves(sample(models=change("recurrent", **early)))
    assert soon is not None
    assert not isinstance(soon.content, str)
    assert soon.content["layout"]["yaxis"]["range"][1] > 4.1 / math.log(2)
    bare = [m | {"valid_curve": []} for m in values()["models"]]
    assert words_of(curves(sample(models=bare))).startswith("Lines are the loss on the text")
    assert curves(CASES["nothing trained"]) is None


def test_attention_is_told_from_the_search() -> None:
    words = words_of(attention(sample()))
    assert words.startswith("Of 12 layers, 3 became self-attention and 9 became feed-forward.")
    assert attention(sample(search=None)) is None


# Tables


def cells_of(part: Part | None) -> dict[str, list[str]]:
    """Rows of a table by their names."""
    assert part is not None
    assert isinstance(part.content, str)
    read = Reader(part.content)
    rows: dict[str, list[str]] = {}
    for tag, text in read.texts:
        if tag == "th":
            rows[text] = []
        elif tag == "td":
            rows[[*rows][-1]].append(text)
    return rows


def test_all_figures_stand_beside_each_other() -> None:
    part = figures(sample())
    rows = cells_of(part)
    assert rows["outcome"][0] == "baseline, breaks latency"
    assert rows["outcome"][2] == "chosen"
    assert rows["outcome"][4] == "breaks latency, dropped after 200 updates"
    assert rows["validation, bits per byte"] == ["2.193", "2.235", "2.206", "2.223", "–"]
    assert rows["verdict"] == ["–", "worse", "at par", "unclear", "–"]
    assert rows["95% interval"][2] == "−0.2% to +0.9%"
    assert rows["its 95% interval"][2] == "2.67 – 2.76 ms"
    assert rows["than the baseline"][:3] == ["–", "25% faster", "31% faster"]
    assert rows["updates"] == ["600"] * 4 + ["200"]
    assert words_of(part).startswith(
        "Interleaved Transformer is best on validation text: 2.193 bits per byte. The shortest "
        "step is that of Found, sizes searched."
    )


def test_stacks_are_drawn_and_the_chosen_one_is_ticked() -> None:
    part = stacks(sample())
    assert part is not None
    assert isinstance(part.content, str)
    read = Reader(part.content)
    names = [t for t in read.all("div") if "Found by search" in t]
    assert names == ["✓ Found by search"]
    assert "chosen" in read.all("small")
    assert "6 of 12 in Interleaved Transformer, 2 of 12 in PAR’s rule" in part.see
    assert "(sfff)x2 (f)x4" in " ".join(read.all("td"))


def test_who_keeps_which_limit_is_told() -> None:
    part = limits(sample())
    rows = cells_of(part)
    assert rows["at most"] == ["3.12 ms"]
    assert rows["Interleaved Transformer"] == ["3.9 ms ✗ +25%"]
    assert rows["✓ Found by search"] == ["2.71 ms ✓"]
    assert words_of(part) == (
        "Asked for: latency=0.8x. 3 of 5 models keep to all limits; Interleaved Transformer "
        "(latency) and Recurrence only (latency) do not."
    )
    kept = sample(models=[m | {"broken": {}, "eligible": True} for m in values()["models"]])
    assert words_of(limits(kept)).startswith(
        "Asked for: latency=0.8x. Every model keeps to all limits."
    )
    assert cells_of(limits(kept))["Interleaved Transformer"] == ["3.9 ms +25.0%"]
    assert "without ✗ is so by less" in words_of(limits(kept))
    lost = sample(models=[m | {"broken": {"latency": 1.0}} for m in values()["models"]])
    assert words_of(limits(lost)).endswith("No model keeps to all limits.")
    assert limits(sample(limits={})) is None


def test_the_sweep_shows_what_was_tried_and_taken() -> None:
    part = sweep(sample())
    rows = cells_of(part)
    assert rows["PAR’s rule"] == ["3.129", "3.028 ✓", "diverged"]
    assert words_of(part).endswith("All were given 0.002.")
    edge = sweep(sample(models=change("found", rate=0.004)))
    assert "from 0.002 to 0.004" in words_of(edge)
    assert words_of(edge).endswith("a better one may lie beyond: Found by search.")


def test_samples_are_shown_as_they_are() -> None:
    part = samples(sample())
    assert part is not None
    assert isinstance(part.content, str)
    read = Reader(part.content)
    assert read.all("h3") == ["Interleaved Transformer", "Found by search, handed over"]
    assert read.all("b") == ["def read(", "def read("]
    assert "&lt;b&gt;next&lt;/b&gt;" in part.content
    assert "    raise ValueError" in part.content
    assert "baseline learned for 600 updates, the chosen model for 1,900 updates" in part.see


def test_plan_and_time_taken() -> None:
    part = phases(sample())
    rows = cells_of(part)
    assert rows["train the finalists alike"] == ["1 min 50 s", "1 min 48 s"]
    assert rows["train with more seeds"] == ["left out", "–"]
    assert "shrunk: 8 whole models instead of 24" in rows
    assert words_of(part) == (
        "Planned were 5 min 56 s, taken 5 min 50 s; the longest was “train the finalists alike” "
        "with 1 min 48 s. Left out: train with more seeds."
    )


def planned(row: dict[str, Any]) -> events.Part:
    return events.Part(row["name"], row["title"], row["planned"], row["note"])


def test_the_plan_is_printed_before_the_work() -> None:
    text = shown(plan_table([planned(row) for row in values()["phases"]]))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0].split() == ["phase", "time", "note"]
    assert any(
        line.split()[-3:] == ["device", "30", "s"] or "30 s  shrunk" in line for line in lines
    )
    assert [line.split() for line in lines][-1] == ["all", "in", "all", "5", "min", "56", "s"]
    assert "left out" in shown(plan_table([events.Part("x", "more seeds", 0.0, "too short")]))
    assert "[bold]" in shown(plan_table([events.Part("x", "[bold]", 1.0)]))


def test_what_was_used_is_called_an_estimate() -> None:
    part = energy(sample())
    rows = cells_of(part)
    assert rows["energy, estimated"] == ["2.93 Wh"]
    assert rows["CO₂, estimated"] == ["1.17 g"]
    assert rows["price, estimated"] == ["0.00088 EUR"]
    assert words_of(part) == (
        "Estimates, not measurements: 15 W for each of 2 busy cores; 30 W for 5 min 51 s."
    )


def test_what_was_left_out_on_the_way_says_why() -> None:
    rows = cells_of(phases(CASES["left out on the way"]))
    assert rows["train the finalists alike"][:2] == ["1 min 50 s", "left out"]
    assert "left out: 3 s were left" in rows
    text = " ".join(shown(fit_table(CASES["left out on the way"])).split())
    assert "not trained" in text
    assert "dropped after 0" not in text


def test_a_fit_by_updates_has_no_plan_to_keep() -> None:
    part = phases(CASES["of version 0.1"])
    assert cells_of(part)["profile this device"] == ["left out", "–"]
    assert cells_of(part)["size a model for the time there is"][0] == "–"
    assert words_of(part).startswith("No time was planned: it was asked for updates. Taken 2")
    assert "Left out: profile this device and train baseline and best" in words_of(part)


def test_models_of_unequal_training_are_not_compared() -> None:
    found = CASES["trained unlike"]
    assert "Found by search" in words_of(answer(found)).partition("so not shown:")[2]
    assert "the same for both" not in tiles(found)


def test_receipts_and_commands() -> None:
    rows = cells_of(receipts(sample()))
    assert rows["device"] == ["AMD EPYC 9R14, 1 thread, torch 2.13.0"]
    assert rows["text"] == [
        "python-source, 12.0 MB, 10,800,000 tokens, vocabulary 256, tokenizer byte"
    ]
    assert "off by 3.0% in the median and 8.0% at the 90th" in words_of(receipts(sample()))
    assert "No latency was measured." in words_of(receipts(CASES["nothing measured"]))
    part = repeat(sample())
    assert part is not None
    assert isinstance(part.content, str)
    found = sample()
    assert Reader(part.content).all("pre") == [found.command, *found.repeat]


# The terminal


def test_the_terminal_marks_chosen_broken_and_dropped() -> None:
    lines = [line.strip() for line in shown(fit_table(sample())).splitlines()]
    assert any(line.startswith("✗  baseline") for line in lines)
    assert any(line.startswith("✓  found ") for line in lines)
    assert any(line.startswith("✗– recurrent") for line in lines)
    row = next(line for line in lines if line.startswith("✓  found ")).split()
    assert row[2:] == ["2.206", "+0.6%", "≈", "2.71", "ms", "0.69×", "5.7", "MB", "786", "kB",
                       "1.46", "M"]  # fmt: skip
    assert "✗ over a limit (latency 0.8× the baseline's)" in " ".join(lines)
    assert "s f s f f s f f f f f f" in lines
