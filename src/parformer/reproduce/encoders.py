"""ALBERT's and MobileBERT's tables: exact counts, and what norms and activations cost here."""

from __future__ import annotations

from parformer.config import ModelConfig, preset
from parformer.costs import cost
from parformer.reproduce.study import Found, Ours
from parformer.reproduce.workbench import Workbench, study

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
TOKENS = 128


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
    """Trained for days on texts that are not here."""
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
    work = {key: cost(config, tgt_len=TOKENS) for key, config in configs.items()}
    work["mobilebert"] = cost(drawn, tgt_len=TOKENS)
    found = {f"flops-{key}": Ours(price.flops / 1e9, COUNT) for key, price in work.items()}
    return found | bench.measure(configs, tgt_len=TOKENS).latencies("bert")


@study("mobilebert-table-latency")
def mobilebert_latency(bench: Workbench) -> Found:
    configs = {
        f"{norm}-{activation}": preset("mobilebert", norm_type=norm, activation=activation)
        for norm in ("layer", "affine")
        for activation in ("gelu", "relu")
    }
    return bench.measure(configs, tgt_len=TOKENS).latencies("layer-gelu")
