"""Lite Transformer's and Synthesizer's tables: exact counts, and how small models compare."""

from __future__ import annotations

from parformer.config import ModelConfig, preset
from parformer.costs import ModelCost, cost
from parformer.recipe import Recipe
from parformer.reproduce.pairs import compare_pairs, reader
from parformer.reproduce.study import Found, Ours
from parformer.reproduce.trainings import compare_losses, pocket
from parformer.reproduce.workbench import Workbench, study

COUNT = "exact count"
SENTENCE, SUMMARY = 30, 60
"""Tokens of a sentence on either side; of a summary, which the paper does not tell."""
WRITTEN = 100
"""Tokens of a text that a language model reads."""
WIDTHS = {"transformer": (128, 256, 320), "lite": (200, 408, 496)}
KINDS = ("fixed", "random", "factored-random", "dense", "factored-dense")
SUMS = ("dense-random", "dense-vanilla", "random-vanilla")
READING = ("random", "dense", "random-vanilla")
"""Those of them that learn from pairs."""


def translator(kind: str, width: int) -> ModelConfig:
    return preset(f"{kind}-translation-{width}")


def inside(price: ModelCost) -> float:
    """Multiply-adds of all blocks, without embeddings and softmax."""
    return (price.encoder.flops + sum(row.cost.flops for row in price.blocks)) / 2


def adds(config: ModelConfig, read: int, written: int, unit: float) -> Ours:
    return Ours(inside(cost(config, src_len=read, tgt_len=written)) / unit, COUNT)


def parameters(config: ModelConfig) -> Ours:
    """Without embeddings and softmax, in millions."""
    return Ours(cost(config).decoder_parameters / 1e6, COUNT)


def translators() -> dict[str, ModelConfig]:
    return {
        f"{kind}-{width}": translator(kind, width)
        for kind, widths in WIDTHS.items()
        for width in widths
    }


def readers() -> dict[str, Recipe]:
    """Small ones of about one size that learn from pairs."""
    return {kind: reader(f"{kind}-pocket-translation") for kind in WIDTHS}


def compared_readers(bench: Workbench) -> dict[str, Ours]:
    """Trained once for all tables that compare them."""
    return compare_pairs(bench, "lite-table-2", readers(), "transformer")


def synthesizers() -> dict[str, Recipe]:
    """The same Transformer, its own attention replaced."""
    replaced = {kind: f"y[{kind.replace('-', '+')}]" for kind in READING}
    return {"vanilla": reader("transformer-pocket-translation")} | {
        kind: reader("transformer-pocket-translation", f"({one}f)x3 | ({one}cf)x3")
        for kind, one in replaced.items()
    }


@study("lite-table-2")
def table_2(bench: Workbench) -> Found:
    models = translators()
    found = {f"parameters-{key}": parameters(config) for key, config in models.items()}
    sentence = (SENTENCE, SENTENCE, 1e6)
    found |= {f"adds-{key}": adds(config, *sentence) for key, config in models.items()}
    return found | compared_readers(bench)


@study("lite-table-3")
def table_3(bench: Workbench) -> Found:
    wanted = ("transformer-128", "lite-200", "transformer-256", "lite-408")
    models = {key: config for key, config in translators().items() if key in wanted}
    found = {f"parameters-{key}": parameters(config) for key, config in models.items()}
    sentence = (SENTENCE, SENTENCE, 1e6)
    found |= {f"adds-{key}": adds(config, *sentence) for key, config in models.items()}
    return found | compared_readers(bench)


@study("lite-table-4")
def table_4(bench: Workbench) -> Found:
    models = {"transformer": translator("transformer", 512), "lite": translator("lite", 496)}
    found = {
        "parameters-transformer-512": parameters(models["transformer"]),
        "parameters-lite-496": parameters(models["lite"]),
    }
    for key, config in models.items():
        for read in (30, 100, 1000):
            found[f"adds-{key}-{read}"] = adds(config, read, SUMMARY, 1e9)
    summarised = {"score": "rougeL", "task": "summarise"}
    return found | compare_pairs(bench, "lite-table-4", readers(), "transformer", **summarised)


@study("lite-table-5")
def table_5(bench: Workbench) -> Found:
    models = {"adaptive": preset("adaptive-input-wt103"), "lite": preset("lite-lm-wt103")}
    found = {f"parameters-{key}": parameters(config) for key, config in models.items()}
    for key, config in models.items():
        for length in (100, 1000):
            work = inside(cost(config, tgt_len=length, mem_len=0))
            found[f"adds-{key}-{length}"] = Ours(work / 1e9, COUNT)
    found |= bench.measure(models, tgt_len=100, mem_len=0).latencies("adaptive")
    recipes = {"adaptive": absolute("(sf)x6", 448), "lite": absolute("(lf)x6", 640)}
    return found | compare_losses(bench, "lite-table-5", recipes, "adaptive")


@study("lite-figure-4")
def figure_4(bench: Workbench) -> Found:
    models = translators() | {"transformer-512": translator("transformer", 512)}
    found = {f"adds-{key}": adds(config, SENTENCE, SENTENCE, 1e6) for key, config in models.items()}
    saved = found["adds-transformer-512"].value / found["adds-lite-496"].value
    writers = {"adaptive": preset("adaptive-input-wt103"), "lite-lm": preset("lite-lm-wt103")}
    for key, config in writers.items():
        work = inside(cost(config, tgt_len=WRITTEN, mem_len=0))
        found[f"adds-{key}"] = Ours(work / 1e9, COUNT)
    return found | {"saved": Ours(saved, COUNT)}


@study("synthesizer-table-2")
def synthesizer_table_2(bench: Workbench) -> Found:
    found = {}
    for kind in ("vanilla", *KINDS, *SUMS):
        config = preset(f"synthesizer-wmt-{kind}")
        found[f"parameters-{kind}"] = Ours(cost(config).parameters / 1e6, COUNT)
    recipes = {"vanilla": absolute("(sf)x6", 384)}
    recipes |= {kind: absolute(f"(y[{kind}]f)x6", 384) for kind in KINDS}
    recipes |= {kind: absolute(f"(y[{kind.replace('-', '+')}]f)x6", 384) for kind in SUMS}
    found |= compare_losses(bench, "synthesizer-table-2", recipes, "vanilla")
    return found | compare_pairs(bench, "synthesizer-table-2", synthesizers(), "vanilla")


@study("synthesizer-table-3")
def synthesizer_table_3(bench: Workbench) -> Found:
    summarised = {"score": "rougeL", "task": "summarise"}
    return compare_pairs(bench, "synthesizer-table-3", synthesizers(), "vanilla", **summarised)


@study("synthesizer-table-5")
@study("synthesizer-table-6")
def published_alone(bench: Workbench) -> Found:
    """Trained for days on texts that are not here."""
    return {}


def absolute(pattern: str, inner: int) -> Recipe:
    """A small model of bytes whose positions are added to its input, as both papers' are."""
    sizes = {"model__d_model": 128, "model__n_head": 4, "model__d_inner": inner}
    return pocket("lite-pocket", model__pattern=pattern, model__max_len=128, **sizes)
