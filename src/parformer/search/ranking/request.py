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
    """CSV of trained models, perhaps gzipped: columns experiment (or pair, such as de-en), model,
    valid_ppl, params_nonembedding, params_total, cfg_…; or a folder of translators, ja-en.hyps
    and ja-en.evals for each pair."""
    proxy: str | None = None
    """Decoder-parameters, parameters, or any columns where higher is better, with commas
    between."""
    score: str | None = None
    """Scores to compute by building every model: grad-norm, snip, grasp, fisher, synflow,
    jacob-cov, relu-log-det, and the counts."""
    truth: str = "valid_ppl"
    """What a good model has little of, or much of where the column is called BLEU, chrF, ROUGE or
    accuracy; several with commas between."""
    where: tuple[str, ...] = ()
    """Only models with this value in this column, such as bpe=30000; may be repeated."""
    best_over: str = ""
    """Of models that are built alike, only the best, whatever this column has, such as
    learning_rate."""
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
        for condition in self.where:
            if not all(condition.partition("=")[::2]):
                raise ConfigError(f"--where takes COLUMN=VALUE, got {condition!r}")
        if not self.truths:
            raise ConfigError("--truth is empty; name a column")
        both = next((name for name in self.columns if name in self.scores), None)
        if both is not None:
            raise ConfigError(f"{both!r} is in --proxy and in --score; leave it out of one of them")

    @property
    def truths(self) -> list[str]:
        """Columns that say how good a model became."""
        return split_names("--truth", self.truth)

    @property
    def scores(self) -> list[str]:
        """Names of what has to be computed."""
        return split_names("--score", self.score)

    @property
    def columns(self) -> dict[str, str]:
        """Columns by the name of their proxy."""
        asked = split_names("--proxy", self.proxy) or [n for n in COLUMNS if n not in self.scores]
        return {name: COLUMNS.get(name, name) for name in asked}


HIGHER = ("bleu", "chrf", "rouge", "accuracy")


def is_higher_better(column: str) -> bool:
    """Whether a good model has much of what a column holds.

    >>> is_higher_better("dev_BLEU"), is_higher_better("valid_ppl")
    (True, False)
    """
    return any(word in column.lower() for word in HIGHER)


def split_names(option: str, text: str | None) -> list[str]:
    names = [] if text is None else [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(f"{option} takes different names with commas between, got {text!r}")
    return names
