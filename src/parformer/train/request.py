"""What can one ask of a training, and what does it answer?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from parformer.errors import ConfigError
from parformer.events import Listener, Watch, nobody
from parformer.fields import need_at_least, parse_assignment
from parformer.recipe import Recipe
from parformer.store.files import Json
from parformer.verbs import requested, within_memory

if TYPE_CHECKING:
    from parformer.train.loop import Outcome
    from parformer.train.several import Several

STATE_BYTES = 16
"""Of a parameter in training: its weight, its gradient, and two numbers of the optimizer."""


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """Which model, on which text, for how long; what is left out is the recipe's."""

    model: str = ""
    """Preset or TOML file; not needed to go on."""
    corpus: str = ""
    """A corpus by name, or a file, folder or glob of text; see 'parformer data'."""
    data: str = ""
    """The same: a folder or file of pairs, or of labelled texts (CSV, TSV, JSON lines)."""
    start: str = ""
    """Start from the weights of a run, a model folder or a Hugging Face folder."""
    text: tuple[str, ...] = ()
    """Column that holds a text; give it twice for pairs of texts."""
    label: str = ""
    """Column that holds the label."""
    pair: str = ""
    """Source and target, such as de-en."""
    task: str = ""
    """What is learned: language, masked, pretrain, translate, summarise, classify, score, choice,
    span, or a benchmark such as sst2."""
    local: str = ""
    """A local copy of a published corpus."""
    tokenizer: str = ""
    """What a token is, as 'parformer data' knows it."""
    pattern: str = ""
    """Replace the model's pattern."""
    steps: int | None = None
    """Updates."""
    time: float | None = None
    """For all updates, in seconds."""
    epochs: float | None = None
    """Times that every example is seen."""
    seed: int | None = None
    """Of weights and the order of the text."""
    seeds: int = 1
    """Train so many times, each with a seed of its own, and tell the median."""
    tries: tuple[str, ...] = ()
    """Try several values and take what is best on validation, such as learning_rate=2e-5,5e-5; may
    be repeated."""
    run: Path | None = None
    """The folder for everything."""
    precision: Literal["auto", "fp32", "bf16"] | None = None
    """Numbers that matrices are multiplied in."""
    compile: Literal["auto", "on", "off"] | None = None
    """Use torch.compile."""
    beside: bool = True
    """Tell what counting letters and n-grams, and xz, reach on that text."""
    device: str = "auto"
    """Such as cpu or cuda:0."""
    shard: bool = False
    """Spread the model over torchrun's processes (FSDP2)."""
    changes: tuple[str, ...] = ()
    """Replace a field of [model], [data] or [train], such as train.batch=8; may be repeated."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.time is not None:
            raise ConfigError(
                f"steps {self.steps} and time {self.time:g} s are two lengths; give one of them"
            )
        if self.data and self.corpus:
            raise ConfigError(f"corpus {self.corpus!r} and data {self.data!r} are two; give one")
        if not self.model and not self.start and self.run is None:
            raise ConfigError(
                "name a MODEL to train, such as pocket, a --start, or the --run to go on with"
            )
        need_at_least("seeds", self.seeds, 1)

    @property
    def chosen(self) -> dict[str, object]:
        """Everything that is set by hand, each by the field it stands for."""
        return gather(
            self.changes,
            {
                "data.corpus": self.corpus or self.data or None,
                "data.pair": self.pair or None,
                "train.task": self.task or None,
                "train.start": str(Path(self.start).expanduser().resolve()) if self.start else None,
                "data.texts": self.text or None,
                "data.label": self.label or None,
                "train.epochs": self.epochs,
                "data.local": self.local or None,
                "data.tokenizer": self.tokenizer or None,
                "model.pattern": self.pattern or None,
                "train.steps": self.steps,
                "train.time": self.time,
                "train.seed": self.seed,
                "train.precision": self.precision,
                "train.compile": self.compile,
            },
        )

    @property
    def preset(self) -> str:
        """The model that is meant: a preset's translator, where that is what the task needs."""
        if not self.model or self.start:
            return self.model
        from parformer.train.tuning import translator_of

        return translator_of(self.model, self.chosen)

    def recipe(self) -> Recipe | None:
        """What is asked for; None where that is whatever the run says."""
        if self.model or self.start:
            from parformer.train.tuning import recipe_for

            chosen = self.chosen
            return recipe_for(self.preset, str(chosen.get("train.start", "")), chosen)
        if not self.chosen:
            return None
        from parformer.train.run import read_run

        return read_run(self.folder).replaced(self.chosen)

    @property
    def folder(self) -> Path:
        """Where the run goes."""
        if self.run is not None:
            return Path(self.run)
        recipe = self.recipe()
        assert recipe is not None, "a model or a start was named"
        return Path("runs") / run_name(self.preset or self.start, recipe)


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a training ended, and where it lies."""

    run: Path
    outcome: Outcome
    unit: str
    """What people read its losses in: bits or perplexity."""
    source: str = ""
    """What the model reads, such as de, where it writes something for a source."""
    labelled: bool = False
    """Whether the model tells labels."""
    several: Several | None = None
    """What all trainings came to, where there were several; the others are of one of them."""
    first: bool = True
    """Whether this is the process, of many, that tells."""

    def to_dict(self) -> Json:
        """Plain values, ready for JSON."""
        found = self.outcome
        values = {"run": str(self.run), "step": found.step, "finished": found.finished}
        beside = {split: one.to_dict() for split, one in found.beside.items()}
        scores = {} if found.result is None else found.result.to_dict()
        several = {} if self.several is None else {"several": self.several.to_dict()}
        return values | scores | ({"beside": beside} if beside else {}) | several


def train(
    request: TrainRequest | None = None, *, watch: Listener = nobody, **given: Any
) -> TrainResult:
    """Train a model on a text; the same request on the same run goes on where it stopped."""
    asked = requested(TrainRequest, request, given)
    if asked.seeds > 1 or asked.tries:
        return train_all(asked, watch)
    recipe, path = asked.recipe(), asked.folder
    from parformer.train.distributed import workers_from
    from parformer.train.job import train_model, unit_of
    from parformer.train.run import read_run, read_run_tokenizer

    def needs() -> str:
        from parformer.costs import cost
        from parformer.train.run import is_run, read_run

        known = read_run(path) if is_run(path) else recipe
        assert known is not None, "a model was named, or there is a run"
        count = cost(known.model).parameters
        return (
            f"to train {count:,} parameters takes at least {STATE_BYTES * count / 1e6:,.0f} MB, "
            f"and more for train.batch={known.train.batch}; lower it, raise train.accumulate, or "
            "take a smaller model"
        )

    with (
        workers_from(device=asked.device, shard=asked.shard) as workers,
        within_memory(needs),
    ):
        told = Watch(watch if workers.first else nobody)
        if asked.preset != asked.model:
            told.notice(f"{asked.model} has no encoder, so {asked.preset} is trained.")
        outcome = train_model(
            recipe,
            path,
            chosen=asked.chosen,
            workers=workers,
            watch=told,
            beside=asked.beside,
        )
        unit = unit_of(read_run(path), read_run_tokenizer(path))
        known = read_run(path)
        return TrainResult(
            run=path,
            outcome=outcome,
            unit=unit,
            source=known.data.pair.partition("-")[0],
            labelled=known.model.label_head != "none",
            first=workers.first,
        )


def train_all(asked: TrainRequest, watch: Listener) -> TrainResult:
    """Trainings with several seeds, or of what is to be tried; told is the best one's."""
    from parformer.train.several import train_several

    results: dict[Path, TrainResult] = {}

    def one(changes: tuple[str, ...], seed: int, path: Path) -> bool:
        more = {"seeds": 1, "tries": (), "seed": seed, "run": path}
        alone = replace(asked, **more, changes=(*asked.changes, *changes))  # type: ignore[arg-type]
        results[path] = train(alone, watch=watch)
        return results[path].outcome.finished

    first = asked.seed or 0
    several = train_several(asked.tries, range(first, first + asked.seeds), asked.folder, one)
    if several is None:
        return list(results.values())[-1]
    return replace(results[Path(several.best)], several=several)


def gather(sets: tuple[str, ...], short: Mapping[str, object]) -> dict[str, object]:
    """Changes by the field they stand for; `short` holds what has a name of its own."""
    changes = dict(map(parse_assignment, sets))
    for name, value in short.items():
        if value is not None:
            if name in changes and changes[name] != value:
                raise ConfigError(f"{name} is given twice, as {changes[name]!r} and {value!r}")
            changes[name] = value
    if short.get("train.steps") is not None:
        changes.setdefault("train.time", 0.0)
    return changes


def run_name(model: str, recipe: Recipe) -> str:
    """Where a run goes when nobody says: its model and its text, and a seed that is not 0."""
    words = [Path(model).stem, Path(recipe.data.corpus).stem]
    if recipe.model.label_head != "none":
        words.append(recipe.train.task)
    if recipe.train.seed:
        words.append(str(recipe.train.seed))
    return re.sub(r"[^\w.]+", "-", "-".join(words)).strip("-.") or "run"
