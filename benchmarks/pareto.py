"""What does a gallery of sizes cost, is it right, and what is it worth on this machine?

    python benchmarks/pareto.py PART … --folder FOLDER
    python benchmarks/pareto.py --folder FOLDER --write

The parts, each for both backbones of LiteTransformerSearch (Javaheripi et al. 2022):

- search: a full-size search (100 × 30, three objectives), its front measured, beside the
  layer-scaled baseline
- direct: 20 × 10 from the profile against 20 × 10 that measure every candidate
- topology: equal parameters, from wide and shallow to narrow and deep (Figures 7 and 14)
- objectives: what a search over two of the three objectives overlooks (Appendix F)

Each leaves a JSON file in the folder; `--write` makes docs/experiments/gallery.md of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from inference import table

from parformer.config import ModelConfig, preset
from parformer.costs import cost
from parformer.events import Watch
from parformer.measure.device import Receipt
from parformer.measure.readings import Step, in_batches
from parformer.search.front import front, hypervolume, thin
from parformer.search.limits import in_words
from parformer.search.sizes.engine import Ended, search_front
from parformer.search.sizes.evolution import Plan
from parformer.search.sizes.space import read_space
from parformer.search.sizes.summarise import summarise
from parformer.search.sizes.wanted import Wanted

BACKBONES = {"lts-transformer-xl": "Transformer-XL", "lts-gpt2": "GPT-2"}
DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "gallery.md"
STEP = Step(threads=1)
ROUNDS = 3
"""How often each model of the part `direct` is timed: nothing has to be told apart there."""
COMPARED = 30
"""Well-spread models of each of its fronts that are measured."""
SEEDS = 3
"""Searches from the profile that are compared with the one that measures."""
BUDGETS = (5_000_000, 15_000_000, 40_000_000)
WIDTHS = (128, 192, 256, 384, 512, 768, 1024)
ALIKE = 0.02
"""How close two figures must be to count as the same."""


class Progress(Watch):
    """A line now and then."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.last = what, time.monotonic()

    def notice(self, text: str) -> None:
        print(f"{self.what}: {text}", flush=True)

    def preparing(self, what: str, share: float) -> None:
        if time.monotonic() - self.last > 20:
            self.last = time.monotonic()
            print(f"{self.what}: {share:4.0%} {what}", flush=True)


def wanted(
    backbone: str,
    population: int,
    iterations: int,
    *,
    step: Step = STEP,
    seed: int = 0,
    **others: Any,
) -> Wanted:
    return Wanted(
        space=read_space("lts-as-run", backbone),
        plan=Plan.sized(population, iterations, seed=seed),
        step=step,
        **others,
    )


def run_search(backbone: str, folder: Path) -> dict[str, Any]:
    """The whole job, timed; with and without the time for the profile."""
    place = folder / f"search-{backbone}"
    place.mkdir(exist_ok=True)
    watch = Progress(backbone)
    ended = search_front(wanted(backbone, 100, 30), place, watch=watch, cache=folder / "profiles")
    found = summarise(ended, watch=watch, folder=place).to_dict()
    found.pop("visited")
    # a profile that was there already took its time in an earlier run
    note = folder / f"profile-{backbone}.json"
    if not note.is_file():
        note.write_text(json.dumps(found["seconds"]["profile"]), "utf-8")
    found["seconds"]["profile"] = json.loads(note.read_text("utf-8"))
    return found


def run_direct(backbone: str, folder: Path) -> dict[str, Any]:
    """Searches of equal length; all fronts measured in one series, one corner for all.

    What two short searches find differs by luck too: the one from the profile, which costs
    nothing, is made with several seeds.
    """
    watch = Progress(backbone)
    fronts, seconds = {}, {}
    brief = replace(STEP, rounds=ROUNDS)
    ways = [(f"profile, seed {seed}", "profile", STEP, seed) for seed in range(SEEDS)]
    for name, way, step, seed in [*ways, ("measuring", "measuring", brief, 0)]:
        place = folder / f"direct-{backbone}-{way}{seed or ''}"
        place.mkdir(exist_ok=True)
        began = time.monotonic()
        asked = wanted(backbone, 20, 10, step=step, seed=seed, latency_by=way)
        ended = search_front(asked, place, watch=watch, cache=folder / "profiles")
        seconds[name] = time.monotonic() - began
        fronts[name] = front_of(ended)
    configs = {f"{name} {i}": c for name, models in fronts.items() for i, c in enumerate(models)}
    series = in_batches(configs, brief, reference=light(configs), progress=watch.preparing)
    values = {
        reading.name: (
            -float(cost(configs[reading.name]).decoder_parameters),
            reading.median,
            float(reading.peak_bytes),
        )
        for reading in series.readings
    }
    corner = np.array(list(values.values())).max(axis=0)
    ideal = np.array(list(values.values())).min(axis=0)
    volume = {}
    for name in fronts:
        own = np.array([v for model, v in values.items() if model.rpartition(" ")[0] == name])
        volume[name] = hypervolume((own - ideal) / (corner - ideal), np.full(3, 1.1))
    shares = [volume[name] / volume["measuring"] for name, *_ in ways]
    return {
        "seconds": seconds,
        "front": {name: len(models) for name, models in fronts.items()},
        "hypervolume": volume,
        "shares": shares,
    }


def front_of(ended: Ended) -> list[ModelConfig]:
    found = [one for one in ended.candidates if one.values is not None]
    values = np.array([one.values for one in found])
    best = np.flatnonzero(front(values))
    space = ended.wanted.space
    return [space.config(found[best[i]].genome) for i in thin(values[best], COMPARED)]


def light(configs: Mapping[str, ModelConfig]) -> ModelConfig:
    """A model to time the others beside: long enough for the clock, and no longer."""
    return sorted(configs.values(), key=lambda config: cost(config).flops)[len(configs) // 4]


def run_topology(backbone: str, folder: Path) -> dict[str, Any]:
    """Equal decoder parameters; as in the paper twice the width inside, and eight heads."""
    base, configs, about = preset(backbone), {}, {}
    for budget in BUDGETS:
        for width in WIDTHS:
            layer = base.replaced(pattern="sf", d_model=width, n_head=8, d_inner=2 * width)
            one = cost(layer).decoder_parameters
            two = cost(layer.replaced(pattern="(sf)x2")).decoder_parameters
            layers = round((budget - one) / (two - one)) + 1
            if not 1 <= layers <= 60:
                continue
            config = layer.replaced(pattern=f"(sf)x{layers}")
            if abs(cost(config).decoder_parameters / budget - 1) > 0.1:
                continue
            name = f"{budget} {width}"
            configs[name] = config
            about[name] = {
                "budget": budget,
                "width": width,
                "layers": layers,
                "decoder_parameters": cost(config).decoder_parameters,
            }
    watch = Progress(backbone)
    series = in_batches(configs, STEP, reference=light(configs), progress=watch.preparing)
    rows = [
        about[reading.name]
        | {"latency": reading.median, "interval": [reading.low, reading.high]}
        | {"memory": reading.peak_bytes}
        for reading in series.readings
    ]
    return {"rows": rows}


def run_objectives(backbone: str, folder: Path) -> dict[str, Any]:
    """Searches over two objectives and over three, all priced by the same profile."""
    watch = Progress(backbone)
    ended = {}
    for names in (("quality", "latency"), ("quality", "memory"), ("quality", "latency", "memory")):
        place = folder / f"objectives-{backbone}-{'-'.join(names)}"
        place.mkdir(exist_ok=True)
        asked = wanted(backbone, 100, 30, objectives=names)
        # the profile knows the other cost too, though nobody searches for it
        ended["+".join(names)] = search_front(asked, place, watch=watch, cache=folder / "profiles")
    figures = [one.figures for one in ended["quality+latency+memory"].candidates]
    pairs = {
        "latency": widest(figures, "memory", "latency"),
        "memory": widest(figures, "latency", "memory"),
    }
    every = np.array([corner_values(c.figures) for e in ended.values() for c in e.candidates])
    ideal, worst = every.min(axis=0), every.max(axis=0)
    volume = {}
    for name, one in ended.items():
        own = (np.array([corner_values(c.figures) for c in one.candidates]) - ideal) / (
            worst - ideal
        )
        volume[name] = hypervolume(own, np.ones(3))
    return {"pairs": pairs, "hypervolume": volume}


def corner_values(figures: Mapping[str, float]) -> tuple[float, float, float]:
    return -figures["quality"], figures["latency"], figures["memory"]


def widest(figures: Sequence[Mapping[str, float]], same: str, differs: str) -> dict[str, Any]:
    """Two candidates of equal quality and of one equal cost that differ most in the other."""
    quality, equal, other = (
        np.array([one[name] for one in figures]) for name in ("quality", same, differs)
    )
    best: tuple[float, int, int] = (0.0, 0, 0)
    for i in range(len(figures)):
        near = np.abs(quality / quality[i] - 1) <= ALIKE
        near &= np.abs(equal / equal[i] - 1) <= ALIKE
        j = int(np.where(near, other, 0).argmax())
        if other[j] / other[i] > best[0]:
            best = (float(other[j] / other[i]), i, j)
    ratio, i, j = best
    keep = ("quality", "latency", "memory")
    pair = [{name: figures[k][name] for name in keep} for k in (i, j)]
    return {"ratio": ratio, "pair": pair}


PARTS = {
    "search": run_search,
    "direct": run_direct,
    "topology": run_topology,
    "objectives": run_objectives,
}


def read(folder: Path, part: str, backbone: str) -> dict[str, Any] | None:
    file = folder / f"{part}-{backbone}.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else None


def write(folder: Path) -> None:
    """Put the tables between the document's marks."""
    lines: list[str] = []
    for part, make in (
        ("search", search_lines),
        ("direct", direct_lines),
        ("topology", topology_lines),
        ("objectives", objective_lines),
    ):
        found = {b: read(folder, part, b) for b in BACKBONES}
        some = {b: one for b, one in found.items() if one is not None}
        if some:
            lines += [*make(some), ""]
    lines.append(f"{Receipt.issue('gallery', threads=1).line()}.")
    text = DOCUMENT.read_text("utf-8")
    start, end = "<!-- tables -->", "<!-- end -->"
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    DOCUMENT.write_text(f"{before}{start}\n" + "\n".join(lines) + f"\n{end}{after}", "utf-8")


def search_lines(found: dict[str, dict[str, Any]]) -> list[str]:
    rows = []
    for backbone, one in found.items():
        seconds, errors = one["seconds"], one["errors"]
        rows.append(
            [
                BACKBONES[backbone],
                f"{one['evaluated']:,}",
                f"{seconds['profile']:.0f} s",
                f"{seconds['search']:.0f} s",
                f"{seconds['measure']:.0f} s",
                f"{errors['latency']['median']:.1%}, {errors['latency']['p90']:.1%}",
                f"{errors['memory']['median']:.1%}, {errors['memory']['p90']:.1%}",
            ]
        )
    heads = ["", "candidates", "profile", "search", "front and baseline measured"]
    heads += ["latency off by (median, 90th)", "memory off by"]
    lines = ["**A full-size search, 100 × 30**", "", *table(heads, rows), ""]
    rows = []
    for backbone, one in found.items():
        saved = one["savings"]
        if saved is None:
            rows.append([BACKBONES[backbone], "no baseline within reach", "", "", ""])
            continue
        largest = saved["largest"]
        rows.append(
            [
                BACKBONES[backbone],
                f"{saved['latency_saved']:.1%}",
                f"{saved['memory_saved']:.1%}",
                f"{largest['layers']} layers: {largest['speedup']:.2f}×",
                f"{largest['memory_ratio']:.2f}×",
            ]
        )
    heads = ["at equal decoder parameters", "latency saved, mean", "memory saved, mean"]
    heads += ["deepest baseline that is matched: faster", "smaller"]
    return [*lines, *table(heads, rows)]


def direct_lines(found: dict[str, dict[str, Any]]) -> list[str]:
    rows = []
    for backbone, one in found.items():
        shares = one["shares"]
        rows.append(
            [
                BACKBONES[backbone],
                f"{one['seconds']['profile, seed 0']:.0f} s",
                f"{one['seconds']['measuring']:.0f} s",
                f"{sum(shares) / len(shares):.3f}",
                ", ".join(f"{share:.3f}" for share in shares),
            ]
        )
    heads = ["", "from the profile", "every candidate measured", "hypervolume, ratio", "by seed"]
    return ["**20 × 10 candidates, all fronts measured in one series**", "", *table(heads, rows)]


def topology_lines(found: dict[str, dict[str, Any]]) -> list[str]:
    rows = []
    for backbone, one in found.items():
        for budget in BUDGETS:
            own = [row for row in one["rows"] if row["budget"] == budget]
            if not own:
                continue
            fast, slow = (f(own, key=lambda r: r["latency"]) for f in (min, max))
            small, big = (f(own, key=lambda r: r["memory"]) for f in (min, max))
            rows.append(
                [
                    BACKBONES[backbone],
                    in_words("parameters", budget),
                    f"{min(r['width'] for r in own)} to {max(r['width'] for r in own)}",
                    f"{shape(fast)}: {in_words('latency', fast['latency'])}",
                    f"{shape(slow)}: {in_words('latency', slow['latency'])}",
                    f"{slow['latency'] / fast['latency']:.2f}×",
                    f"{big['memory'] / small['memory']:.2f}×",
                ]
            )
    heads = ["", "decoder parameters", "widths", "fastest", "slowest", "latency differs by"]
    heads += ["peak memory differs by"]
    return ["**Equal parameters, width against depth**", "", *table(heads, rows)]


def shape(row: dict[str, Any]) -> str:
    return f"{row['layers']} × {row['width']}"


def objective_lines(found: dict[str, dict[str, Any]]) -> list[str]:
    rows = []
    for backbone, one in found.items():
        volume, pairs = one["hypervolume"], one["pairs"]
        three = volume["quality+latency+memory"]
        rows.append(
            [
                BACKBONES[backbone],
                f"{pairs['latency']['ratio']:.2f}×",
                f"{pairs['memory']['ratio']:.2f}×",
                f"{volume['quality+latency'] / three:.3f}",
                f"{volume['quality+memory'] / three:.3f}",
            ]
        )
    heads = [
        "",
        "latency of two with equal quality and memory",
        "memory, equal quality and latency",
    ]
    heads += ["hypervolume of quality + latency", "of quality + memory, beside all three"]
    return ["**Two objectives and three** (predicted)", "", *table(heads, rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--backbone", choices=[*BACKBONES], action="append")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for part in given.parts:
        for backbone in given.backbone or BACKBONES:
            found = PARTS[part](backbone, given.folder)
            (given.folder / f"{part}-{backbone}.json").write_text(json.dumps(found), "utf-8")
            print(f"{part} of {backbone}: done", flush=True)
    if given.write:
        write(given.folder)


if __name__ == "__main__":
    main()
