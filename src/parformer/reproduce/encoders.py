"""ALBERT's and MobileBERT's tables: exact counts, the cost of norms, sentence tasks in small."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from parformer.config import ModelConfig, preset
from parformer.costs import cost
from parformer.data.pretraining import Pairing
from parformer.data.tokens import Prepared
from parformer.model import load
from parformer.reproduce.study import Found, Ours
from parformer.reproduce.trainings import TOKENS, pocket, train_pocket
from parformer.reproduce.workbench import Workbench, study
from parformer.tasks import find_task
from parformer.tasks.pretrain import PretrainScore
from parformer.train.run import MODEL, read_run

COUNT = "exact count"
SHARING = {
    "all": "{sf}x12",
    "attention": "(s[share=a]f)x12",
    "feed-forward": "(sf[share=a])x12",
    "none": "(sf)x12",
}
"""What the layers of ALBERT Base share."""
DRAWN = "<sffff>[feed=outside]x24"
"""MobileBERT as its Table 1 draws it."""
LENGTH = 128
SMALL = {
    "model__pattern": "{sf}x4",
    "model__d_model": 192,
    "model__d_inner": 768,
    "model__n_head": 4,
    "train__tgt_len": 64,
    "train__batch": 16,
}
SENTENCE_TASKS: Mapping[str, Pairing] = {"none": "none", "nsp": "next", "sop": "order"}
"""What Table 5 compares, by the names of its rows."""


def albert(sharing: str, width: int) -> ModelConfig:
    """A row of Tables 3 and 4; the pooler counts where anything is shared."""
    shape = {"pattern": SHARING[sharing], "d_embed": width, "pooler": sharing != "none"}
    return preset("albert-base", **shape)


def millions(config: ModelConfig) -> Ours:
    return Ours(cost(config).parameters / 1e6, COUNT)


@study("albert-table-3")
def albert_table_3(bench: Workbench) -> Found:
    rows = [(sharing, width) for sharing in ("none", "all") for width in (64, 128, 256, 768)]
    return {f"{row[0]}-{row[1]}": millions(albert(*row)) for row in rows}


@study("albert-table-4")
def albert_table_4(bench: Workbench) -> Found:
    rows = [(sharing, width) for sharing in SHARING for width in (768, 128)]
    return {f"{row[0]}-{row[1]}": millions(albert(*row)) for row in rows}


@study("albert-table-5")
def albert_table_5(bench: Workbench) -> Found:
    """What models with each sentence task know of hidden words, and of pairs of both kinds."""
    recipes = {
        name: pocket("albert-pocket-pretraining", model__pair_head=pairs, **SMALL)
        for name, pairs in SENTENCE_TASKS.items()
    }
    trained = train_pocket(bench, "albert-table-5", recipes)
    if trained is None:
        return {}
    found = {}
    for name, runs in trained.curves.items():
        text = bench.text(trained.recipes[name])
        told = [known_pairs(one.path, text) for one in runs]
        note = f"{trained.recipes[name].model.pattern}, from nothing"
        for key in told[0]:
            shares = [100 * one[key] for one in told]
            found[f"{name}-{key}"] = trained.of_seeds(shares, name, note)
    return found


def known_pairs(run: Path, text: Prepared) -> dict[str, float]:
    """The shares of hidden words, and of pairs of both kinds, that a trained model gets right."""
    recipe, model = read_run(run), load(run / MODEL)
    found = {}
    for key, pairing in SENTENCE_TASKS.items():
        asked = recipe.replaced({"model.pair_head": pairing})
        score = find_task(asked).score(model, text, "test", TOKENS)
        assert isinstance(score, PretrainScore)
        if pairing == recipe.model.pair_head:
            found["mlm"] = score.accuracy
        if score.pairs is not None and pairing != "none":
            found[key] = score.pairs
    return found


@study("albert-table-9")
def albert_table_9(bench: Workbench) -> Found:
    """Trained for weeks on texts that are not here."""
    return {}


@study("mobilebert-table-1")
def mobilebert_table_1(bench: Workbench) -> Found:
    bare = {"pooler": False}
    mobile = preset("mobilebert", **bare)
    extra = (mobile.d_model - mobile.embed_width) * mobile.vocab_size
    return {
        "bert-large": millions(preset("bert-large", **bare)),
        "bert-base": millions(preset("bert-base", **bare)),
        "ib-bert": millions(preset("ib-bert-large", **bare)),
        "mobilebert": millions(preset("mobilebert", pattern=DRAWN, **bare)),
        "mobilebert-released": millions(mobile),
        "tiny": millions(preset("mobilebert-tiny", **bare)),
        "head": Ours(extra / 1e6, COUNT),
    }


@study("mobilebert-table-4")
def mobilebert_table_4(bench: Workbench) -> Found:
    drawn = preset("mobilebert", pattern=DRAWN)
    configs = {"bert": preset("bert-base"), "mobilebert": preset("mobilebert")}
    configs["tiny"] = preset("mobilebert-tiny")
    work = {key: cost(config, tgt_len=LENGTH) for key, config in configs.items()}
    work["mobilebert"] = cost(drawn, tgt_len=LENGTH)
    found = {f"flops-{key}": Ours(price.flops / 1e9, COUNT) for key, price in work.items()}
    return found | bench.measure(configs, tgt_len=LENGTH).latencies("bert")


@study("mobilebert-table-latency")
def mobilebert_latency(bench: Workbench) -> Found:
    configs = {
        f"{norm}-{activation}": preset("mobilebert", norm_type=norm, activation=activation)
        for norm in ("layer", "affine")
        for activation in ("gelu", "relu")
    }
    return bench.measure(configs, tgt_len=LENGTH).latencies("layer-gelu")
