"""LiteTransformerSearch's figures about what shapes and fronts cost on a device: this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from statistics import median

from parformer.config import ModelConfig, preset
from parformer.costs import cost
from parformer.evaluate.perplexity import exp
from parformer.reproduce.lts_counts import architecture
from parformer.reproduce.published import printed_models
from parformer.reproduce.study import Found, Ours
from parformer.reproduce.trainings import Trained, pocket, train_pocket
from parformer.reproduce.workbench import Workbench, study
from parformer.search.sizes.result import Savings
from parformer.search.sizes.space import read_space
from parformer.search.sizes.summarise import savings

LENGTH = 192
"""Tokens of a step, as in the paper."""
HEADS = 8
GPT2_SHAPES = ((792, 2), (560, 4), (456, 6), (320, 12), (224, 25), (160, 49), (112, 100))
XL_SHAPES = ((1024, 3), (880, 4), (720, 6), (592, 9), (512, 12), (408, 19), (304, 34))
"""Width and depth, all with about as many decoder parameters; inner widths are twice the width."""
POCKET_SHAPES = ((320, 1), (224, 2), (160, 4), (112, 8), (80, 16))
PAIRED = 24
"""Random models that pairs are looked for among."""
EQUAL = 0.03
"""What two models may differ by and count as equal."""
DEPTHS = range(2, 17, 2)
"""Layers of the baselines that fronts are compared with."""


def shaped(config: ModelConfig, width: int, depth: int) -> ModelConfig:
    """Wide and shallow, or narrow and deep: 8 heads, inner width twice the width."""
    return config.replaced(pattern=wide_pattern(width, depth), d_model=width, d_inner=2 * width)


def wide_pattern(width: int, depth: int) -> str:
    return f"(s[heads={HEADS}]f[inner={2 * width}])x{depth}"


def shapes(bench: Workbench, name: str, sizes: Sequence[tuple[int, int]]) -> dict[str, Ours]:
    configs = {f"{w} × {d}": shaped(preset(name), w, d) for w, d in sizes}
    middle = configs[list(configs)[len(configs) // 2]]
    read = bench.measure_many(configs, reference=middle, tgt_len=LENGTH)
    found, kinds = {}, {"latency": "median", "memory": "peak_bytes", "working": "working_bytes"}
    for key, value in kinds.items():
        values = {name: getattr(reading, value) for name, reading in read.items()}
        top, bottom = (pick(values, key=values.__getitem__) for pick in (max, min))
        ends = read[top].low / read[bottom].high, read[top].high / read[bottom].low
        timed, note = key == "latency", f"{top} against {bottom}"
        how = f"{'measured' if timed else 'counted'} here, {len(sizes)} shapes"
        found[key] = Ours(values[top] / values[bottom], how, ends if timed else None, note)
    return found


def deviation(trained: Trained) -> Ours:
    """How far a shape's perplexity is from the median of all, at most; seed by seed."""
    found = []
    for curves in zip(*trained.curves.values(), strict=True):
        values = [exp(curve.loss) for curve in curves]
        middle = median(values)
        found.append(100 * max(abs(value / middle - 1) for value in values))
    first = next(iter(trained.curves))
    return trained.of_seeds(found, first, f"{len(trained.curves)} shapes, 1 to 16 layers")


def pocket_shapes(bench: Workbench, name: str, like: str) -> dict[str, Ours]:
    recipes = {}
    for width, depth in POCKET_SHAPES:
        sizes = {"model__d_model": width, "model__d_inner": 2 * width, "model__n_head": HEADS}
        pattern = wide_pattern(width, depth)
        recipes[f"{width} × {depth}"] = pocket(like, model__pattern=pattern, **sizes)
    trained = train_pocket(bench, name, recipes)
    return {} if trained is None else {"deviation": deviation(trained)}


@study("lts-figure-7")
def figure_7(bench: Workbench) -> Found:
    found = shapes(bench, "lts-gpt2", GPT2_SHAPES)
    return found | pocket_shapes(bench, "lts-figure-7", "gpt2-pocket")


@study("lts-figure-14")
def figure_14(bench: Workbench) -> Found:
    found = shapes(bench, "lts-transformer-xl", XL_SHAPES)
    return found | pocket_shapes(bench, "lts-figure-14", "pocket")


@study("lts-figure-8")
def figure_8(bench: Workbench) -> Found:
    return front_savings(bench, "transformer-xl", "4") | front_savings(bench, "gpt2", "7")


def front_savings(bench: Workbench, family: str, table: str) -> dict[str, Ours]:
    """The paper's front for a CPU beside its layer-scaled baseline, both on this machine."""
    like = preset(f"lts-{family}")
    models = [architecture(model) for model in printed_models(table) if model.block == 2]
    fronts = {decoder(config): config for config in models}
    scaled = {depth: like.replaced(pattern=f"(sf)x{depth}") for depth in DEPTHS}
    reached = {d: c for d, c in scaled.items() if decoder(c) <= max(fronts)}
    # of each baseline, the two that are next in quality: any other is larger
    wanted: dict[int, ModelConfig] = {}
    for config in reached.values():
        above = sorted(size for size in fronts if size >= decoder(config))
        wanted |= {size: fronts[size] for size in above[:2]}
    configs = {f"front {size}": config for size, config in sorted(wanted.items())}
    configs |= {f"{depth} layers": config for depth, config in reached.items()}
    usual = reached[sorted(reached)[len(reached) // 2]]
    read = bench.measure_many(configs, reference=usual, tgt_len=LENGTH)
    how = f"measured here: {len(wanted)} models of the paper's front, {len(reached)} baselines"

    def saved(mine: str = "median", theirs: str = "median", memory: str = "peak_bytes") -> Savings:
        def timed(name: str, layers: int, quality: int, time: str) -> TimedModel:
            seconds, peak = getattr(read[name], time), getattr(read[name], memory)
            return TimedModel(name, layers, quality, seconds, peak)

        depths = {depth: decoder(config) for depth, config in reached.items()}
        base = [timed(f"{n} layers", n, size, theirs) for n, size in depths.items()]
        found = savings([timed(f"front {size}", 0, size, mine) for size in wanted], base)
        assert found is not None
        return found

    # the least and the most that the times' intervals allow
    middle, least, most = saved(), saved("high", "low"), saved("low", "high")

    def within(value: Callable[[Savings], float]) -> Ours:
        return Ours(value(middle), how, (value(least), value(most)))

    found = {
        f"{family}-latency": within(lambda one: 100 * one.latency_saved),
        f"{family}-memory": Ours(100 * middle.memory_saved, how),
        f"{family}-working": Ours(100 * saved(memory="working_bytes").memory_saved, how),
    }
    if middle.largest.layers == DEPTHS[-1]:
        found[f"{family}-speedup"] = within(lambda one: one.largest.speedup)
        found[f"{family}-ratio"] = Ours(middle.largest.memory_ratio, how)
    return found


@study("lts-figure-9")
def figure_9(bench: Workbench) -> Found:
    base = preset("opt-350m-shape")
    configs = {"OPT-350M": base}
    for model in printed_models("3"):
        if model.name.startswith("M"):
            configs[model.name] = architecture(model)
    read = bench.measure_many(configs, reference=base, tgt_len=LENGTH)
    theirs = read.pop("OPT-350M")
    fastest = min(read, key=lambda name: read[name].median)
    how = f"measured here: {len(read)} models of the paper"
    ends = (theirs.low / read[fastest].high, theirs.high / read[fastest].low)
    return {
        "speedup": Ours(theirs.median / read[fastest].median, how, ends, note=fastest),
        "faster": Ours(sum(one.median < theirs.median for one in read.values()), how),
    }


@study("lts-figure-17")
def figure_17(bench: Workbench) -> Found:
    """Trained for weeks on a text that is not here."""
    return {}


def decoder(config: ModelConfig) -> int:
    return cost(config, tgt_len=1, mem_len=0).decoder_parameters


@dataclass(frozen=True)
class TimedModel:
    """A model as savings are computed of it."""

    name: str
    layers: int
    quality: float
    latency: float
    memory: float

    def figure(self, metric: str) -> float:
        return float(getattr(self, metric))


@study("lts-figure-15")
def figure_15(bench: Workbench) -> Found:
    space, rng = read_space("lts-as-run", "lts-gpt2"), Random(0)
    configs: dict[str, ModelConfig] = {}
    while len(configs) < PAIRED:
        config = space.config(space.draw(rng))
        if 20e6 <= decoder(config) <= 40e6:
            configs[f"model {len(configs) + 1}"] = config
    middle = sorted(configs.values(), key=decoder)[len(configs) // 2]
    read = bench.measure_many(configs, reference=middle, tgt_len=LENGTH)
    sizes = {name: decoder(config) for name, config in configs.items()}
    times = {name: reading.median for name, reading in read.items()}
    bytes_of = {name: reading.peak_bytes for name, reading in read.items()}
    how = f"measured here, {len(configs)} random models"
    found = {}
    alike = [pair for pair in combinations(configs, 2) if near(sizes, pair)]
    if same := [pair for pair in alike if near(bytes_of, pair)]:
        most = max(apart(times, pair) for pair in same)
        found["latency"] = Ours(most, how, note=f"{len(same)} such pairs")
    if same := [pair for pair in alike if near(times, pair)]:
        apart_by = max(abs(bytes_of[a] - bytes_of[b]) for a, b in same)
        found["memory"] = Ours(apart_by / 1e6, how, note=f"{len(same)} such pairs")
    return found


def near(values: Mapping[str, float], pair: tuple[str, str]) -> bool:
    return apart(values, pair) <= 1 + EQUAL


def apart(values: Mapping[str, float], pair: tuple[str, str]) -> float:
    """How many times the smaller value the larger one is."""
    a, b = (values[name] for name in pair)
    return max(a, b) / min(a, b)
