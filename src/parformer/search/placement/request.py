"""What can one ask of a search for placements?"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from parformer.errors import ConfigError
from parformer.recipe import Recipe, read_recipe
from parformer.records import Json
from parformer.search.placement.target import read_target
from parformer.train.request import gather, run_name

DEFAULT = "pocket-search"


@dataclass(frozen=True, kw_only=True)
class PlacementRequest:
    """Which blocks to choose from, on which text, for how long; the rest is the recipe's."""

    recipe: str = ""
    """Preset or TOML file whose sizes, text and training are used."""
    corpus: str = ""
    """A corpus by name, or a file, folder or glob of text; see 'parformer data'."""
    local: str = ""
    """A local copy of a published corpus."""
    tokenizer: str = ""
    """Byte, used-bytes, character, word or bpe."""
    pair: str = ""
    """Which texts of the corpus are pairs, such as de-en, for a translator."""
    layers: int | None = None
    """Layers to fill; of a translator the decoder's."""
    encoder_layers: int | None = None
    """Those of a translator's encoder."""
    choices: str | None = None
    """Blocks that every layer may choose from: s attention, f feed-forward, i nothing; with
    options, such as 's[heads=2]s[heads=8]fi'; of a translator 'sfi | scfi'."""
    by: Literal["supernet", "trials", "usual", "random"] | None = None
    """How to search: one supernet, as the paper; or short trainings whose better half goes on, of
    patterns that a regression finds promising (trials), of the usual ones, or of random ones."""
    mode: Literal["soft", "sampled"] | None = None
    """Run all choices mixed, as the paper, or only a drawn one: cheaper, but biased."""
    seeds: int | None = None
    """Independent searches."""
    steps: int | None = None
    """Updates of each search."""
    time: float | None = None
    """For all searches together, in seconds."""
    penalty: str = ""
    """What a cost of one interleaved model adds to the loss: flops=0.1; the metrics are flops,
    parameters, state and latency, which is measured here."""
    limit: str = ""
    """What the pattern may cost of the interleaved model: latency=0.7x is 30% faster."""
    retrain: bool = False
    """Then train the found pattern and its rivals from scratch, with as many updates."""
    seed: int | None = None
    """The first seed."""
    run: Path | None = None
    """The folder for everything."""
    precision: Literal["auto", "fp32", "bf16"] | None = None
    """Numbers that matrices are multiplied in."""
    device: str = "auto"
    """Such as cpu or cuda:0."""
    changes: tuple[str, ...] = ()
    """Replace a field of [model], [data], [train] or [search]; may be repeated."""
    command: str = ""
    """What was typed, for the report."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.time is not None:
            raise ConfigError(
                f"steps {self.steps} and time {self.time:g} s are two lengths; give one of them"
            )
        read_target(self.penalty, self.limit)

    @property
    def chosen(self) -> Json:
        """Everything that is set by hand, each by the field it stands for."""
        changes = gather(
            self.changes,
            {
                "data.corpus": self.corpus or None,
                "data.local": self.local or None,
                "data.tokenizer": self.tokenizer or None,
                "train.steps": self.steps,
                "train.time": self.time,
                "train.seed": self.seed,
                "train.precision": self.precision,
                "data.pair": self.pair or None,
                "search.layers": self.layers,
                "search.encoder_layers": self.encoder_layers,
                "search.choices": self.choices,
                "search.by": self.by,
                "search.mode": self.mode,
                "search.seeds": self.seeds,
                "search.penalty": self.penalty or None,
                "search.limit": self.limit or None,
            },
        )
        if self.penalty:
            changes.setdefault("search.limit", "")
        if self.limit:
            changes.setdefault("search.penalty", "")
        return changes

    def asked(self) -> Recipe:
        """The recipe that is searched by; without a name, that of the run."""
        from parformer.train.run import is_run, read_run

        if self.run is not None and not self.recipe and is_run(Path(self.run)):
            return read_run(Path(self.run)).replaced(self.chosen)
        return read_recipe(self.recipe or DEFAULT, self.chosen)

    def folder(self, asked: Recipe) -> Path:
        """Where the run goes; not where a training of the same recipe would go."""
        if self.run is not None:
            return Path(self.run)
        name = run_name(self.recipe or DEFAULT, asked)
        return Path("runs") / (f"search-{name}" if self.recipe not in ("", DEFAULT) else name)

    def again_with(self, path: Path) -> str:
        """The command that goes on with this search."""
        more = " --retrain" if self.retrain else ""
        return f"parformer search placement --run {shlex.quote(str(path))}{more}"
