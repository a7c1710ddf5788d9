"""What can one ask about proxies?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parformer.errors import ConfigError
from parformer.fields import need_at_least

COLUMNS = {"decoder-parameters": "params_nonembedding", "parameters": "params_total"}
"""Proxies that a table holds already, and their columns in the published one."""


@dataclass(frozen=True, kw_only=True)
class RankingRequest:
    """Which trained models, and which cheap scores of them."""

    table: Path
    """CSV of trained models, perhaps gzipped: columns experiment, model, valid_ppl,
    params_nonembedding, params_total, cfg_…."""
    proxy: str | None = None
    """Decoder-parameters, parameters, or any columns where higher is better, with commas
    between."""
    score: str | None = None
    """Scores to compute by building every model: grad-norm, snip, grasp, fisher, synflow,
    jacob-cov, relu-log-det, and the counts."""
    truth: str = "valid_ppl"
    """What a good model has little of."""
    latency: str = ""
    """For the distance between Pareto fronts."""
    experiment: str = ""
    """This one alone."""
    sample: int = 0
    """So many models of each experiment."""
    batch: int = 16
    """Texts."""
    tgt_len: int = 192
    """Tokens of each."""
    seed: int = 0
    """Decides samples, random weights and batches."""

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("tgt_len", 1), ("seed", 0), ("sample", 0)):
            need_at_least(f"--{name.replace('_', '-')}", getattr(self, name), least)
        both = next((name for name in self.columns if name in self.scores), None)
        if both is not None:
            raise ConfigError(f"{both!r} is in --proxy and in --score; leave it out of one of them")

    @property
    def scores(self) -> list[str]:
        """Names of what has to be computed."""
        return split_names("--score", self.score)

    @property
    def columns(self) -> dict[str, str]:
        """Columns by the name of their proxy."""
        asked = split_names("--proxy", self.proxy) or [n for n in COLUMNS if n not in self.scores]
        return {name: COLUMNS.get(name, name) for name in asked}


def split_names(option: str, text: str | None) -> list[str]:
    names = [] if text is None else [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(f"{option} takes different names with commas between, got {text!r}")
    return names
