"""What is a fit asked for?

>>> request = FitRequest(corpus="python-source", limits=("latency=0.8x",), time=360.0)
>>> request.bounds[0].most, request.folder
(0.8, PosixPath('runs/fit-python-source'))
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from parformer.errors import ConfigError
from parformer.fields import check_names, fit_fields, need_at_least
from parformer.pattern import Pattern
from parformer.recipe import Recipe, Tokenizers, read_recipe
from parformer.search.limits import Limit, read_limits

Kind = Literal["text", "labels", "pairs"]
"""What there is to learn from."""

TASKS: dict[str, Kind] = {"classify": "labels", "score": "labels", "translate": "pairs"}
"""What can be learned beside a text itself; published tasks of labels by their names too."""

FAMILIES = {"transformer-xl": "pocket", "gpt2": "gpt2-pocket", "llama": "llama-pocket"}
"""The preset that a family's models are like, in all but their sizes."""

PRESETS: dict[Kind, dict[str, str]] = {
    "text": FAMILIES,
    "labels": {"bert": "bert-pocket"},
    "pairs": {"transformer": "transformer-pocket-translation"},
}
"""The same for every kind of fit."""

CHOICES: dict[Kind, str] = {"text": "rsfni", "labels": "sfln", "pairs": "sflr"}
"""Blocks to place where nobody says which."""

TOKENIZERS: dict[Kind, tuple[str, ...]] = {
    "text": (),
    "labels": ("wordpiece", "unigram"),
    "pairs": ("bpe", "unigram", "character", "byte"),
}
"""What a token can be, the usual one first; any for a text, which has bytes."""

KINDS = typing.get_args(Tokenizers)
"""What a token may be."""

LLAMA_CPP = {"family": "llama", "choices": "sfi"}
"""What a model for llama.cpp is made of unless somebody says otherwise."""

USUAL, SHORTEST = 600.0, 60.0
"""Seconds where none are given, and below which nothing can be said about any model."""

COUNTS = 6_000_000
"""Bytes that a table of counts may take where no limit of the model's size is given."""

NO_MORE = "latency=1x"
"""The limit where none is given: no slower than the baseline."""

LATER = ("task", "data", "text", "label", "pair", "start", "runtime", "compress", "exports")
"""Fields that came after version 0.1."""

MAY_CHANGE = ("watts", "grid", "price", "currency", "local", "exports")
"""What only a report says, or how a text is found: a run may be asked with another one."""


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """A text and a budget, and what may be done with them; to go on, a run alone."""

    corpus: str = ""
    """A corpus by name, or a file, folder or glob of text; see 'parformer data'; for a task its
    table, or its folder of tables or pairs; not needed to go on."""
    task: str = ""
    """What to learn in place of the text itself: classify or score (labels of texts), translate
    (pairs), or a published task of labels such as sst2, mrpc or stsb."""
    data: str = ""
    """The same as CORPUS, as 'parformer train' calls it."""
    text: tuple[str, ...] = ()
    """Column of a table that holds the text; give it twice for pairs of texts."""
    label: str = ""
    """Column that holds the label, or the score."""
    pair: str = ""
    """Which side of pairs is the source and which the translation, such as de-en."""
    start: str = ""
    """For labels: a run, a model folder or a Hugging Face folder whose weights all models begin
    with."""
    limits: tuple[str, ...] = ()
    """At most, such as latency=20ms, memory=200MB, flops=5G, parameters=50M, state=1MB, size=4MB,
    or a multiple of the interleaved baseline's: latency=0.7x; may be given several times."""
    time: float | None = None
    """For everything, such as 10m or 2h."""
    steps: int | None = None
    """Updates of each finalist, in place of a time."""
    run: str = ""
    """The folder for everything; the same one goes on where it stopped."""
    local: str = ""
    """A local copy of a published corpus."""
    tokenizer: str = ""
    """What a token is: byte, used-bytes, character, word, bpe, wordpiece or unigram."""
    family: str = ""
    """Positions, norms and masks of all models: transformer-xl, gpt2 or llama."""
    choices: str = ""
    """Blocks to place: s attention, f feed-forward, r recurrence, n n-gram memory, l attention
    beside convolution, i nothing."""
    counts: bool = True
    """Models learn beside a table of the text's n-grams, what counting does not know."""
    margin: float = 0.01
    """At par means within this share of the baseline's loss."""
    seed: int = 0
    """Decides first weights and the order of the text."""
    tgt_len: int = 0
    """New tokens of the step; 0 means as trained."""
    mem_len: int = -1
    """Remembered tokens before them; -1 means as trained."""
    threads: int = 1
    """Threads that latency is measured with."""
    runtime: Literal["torch", "onnx", "llama.cpp"] = "torch"
    """Where the model will be deployed: latencies and their limit are those of this runtime."""
    compress: bool = False
    """Models may be larger than --limit size= and slower than --limit latency= and are brought into
    them in 8 bits; the verdict says whether that beat a small one."""
    exports: bool = True
    """Try in the end how the model leaves: served, and exported for onnxruntime, llama.cpp and
    Hugging Face."""
    watts: float = 0.0
    """Power drawn while it runs; 0 means 10 for a core."""
    grid: float = 0.4
    """Kilograms of CO₂ for a kWh."""
    price: float = 0.3
    """Money for a kWh."""
    currency: str = "EUR"
    """What that money is."""

    def __post_init__(self) -> None:
        for name in ("corpus", "data", "run", "local", "start"):
            object.__setattr__(self, name, _as_place(name, getattr(self, name)))
        for name in ("limits", "text"):
            given = getattr(self, name)
            whole = (given,) if isinstance(given, str) else tuple(given)
            object.__setattr__(self, name, whole)
        fit_fields(self)
        if self.data and self.corpus and self.data != self.corpus:
            raise ConfigError(
                f"CORPUS {self.corpus!r} and --data {self.data!r} are two places; give one of them"
            )
        if self.data:
            object.__setattr__(self, "corpus", self.data)
            object.__setattr__(self, "data", "")
        if not self.corpus:
            self._refuse_more_than_a_run()
            return
        self._take_the_usual()
        self._check_task()
        for name, least in (("seed", 0), ("threads", 1), ("tgt_len", 0), ("mem_len", -1)):
            need_at_least(name, getattr(self, name), least)
        self._check_length()
        self._check_shares()
        self._check_choices()
        for limit in read_limits(self.limits):
            if limit.metric == "size" and limit.relative:
                raise ConfigError(
                    f"limit size={limit.most:g}x is a multiple, but the size decides how large the "
                    "baseline's counts are; give bytes, such as size=4MB"
                )

    def _take_the_usual(self) -> None:
        """What a kind of fit has unless somebody says otherwise."""
        usual = {
            "tokenizer": next(iter(TOKENIZERS[self.kind]), "byte"),
            "family": next(iter(PRESETS[self.kind])),
            "choices": CHOICES[self.kind],
        }
        if self.runtime == "llama.cpp":
            usual |= LLAMA_CPP
            object.__setattr__(self, "counts", False)  # which have no place there
        for name, value in usual.items():
            object.__setattr__(self, name, getattr(self, name) or value)

    def _check_task(self) -> None:
        """Refuse what the task, or a text without one, has no use for."""
        kind, known = self.kind, PRESETS[self.kind]
        if self.runtime == "llama.cpp":
            self._check_home()
        if self.family not in known:
            raise ConfigError(f"cannot fit family {self.family!r}; known: {', '.join(known)}")
        if not self.tokenizer.endswith(".json"):
            check_names([self.tokenizer], TOKENIZERS[kind] or KINDS, "tokenizer")
        belongs: dict[str, tuple[Kind, ...]] = {
            "text": ("labels",), "label": ("labels",), "start": ("labels",), "pair": ("pairs",),
            "local": ("text", "pairs"), "tgt_len": ("text",),
        }  # fmt: skip
        for name, kinds in belongs.items():
            if getattr(self, name) and kind not in kinds:
                flag = "--from" if name == "local" else f"--{name.replace('_', '-')}"
                ways = " or ".join(f"--task {t}" for t, k in TASKS.items() if k in kinds)
                raise ConfigError(
                    f"{flag} {getattr(self, name)!r} is for {ways or 'a text without a --task'}, "
                    f"not for {f'--task {self.task}' if self.task else 'a text'}; leave it out"
                    + f", or say {ways}"
                    * bool(ways)
                )
        if self.compress and self.start:
            raise ConfigError(
                "--compress and --start are two ways to a small model; fit with --start, then: "
                "parformer compress RUN"
            )
        named = {one.metric for one in read_limits(self.limits)} & {"size", "latency"}
        if self.compress and not named:
            raise ConfigError(
                "--compress brings models within a size or a latency; say which, such as --limit "
                "size=4MB"
            )
        if self.compress and self.runtime != "torch" and named == {"latency"}:
            raise ConfigError(
                f"--compress reaches no latency in --runtime {self.runtime}: 8 bits are timed in "
                "torch; leave out one of them, or limit the size"
            )
        if kind == "pairs" and not self.pair:
            raise ConfigError("--task translate needs to know which texts are a pair; give --pair, "
                              "such as de-en")  # fmt: skip

    def _check_home(self) -> None:
        """Refuse what llama.cpp has no place for."""
        strange = set(self.letters) - set(LLAMA_CPP["choices"])
        if self.kind != "text" or self.family == "transformer-xl" or strange:
            what = f"blocks {''.join(sorted(strange))!r}" if strange else f"--family {self.family}"
            what = f"--task {self.task}" if self.kind != "text" else what
            raise ConfigError(
                f"--runtime llama.cpp has no place for {what}; it runs language models of the "
                "families llama and gpt2 with the blocks s and f (--runtime onnx runs everything)"
            )
        if self.tokenizer not in ("byte", "bpe"):
            raise ConfigError(f"--runtime llama.cpp reads bytes or bpe, not {self.tokenizer!r}")

    def _refuse_more_than_a_run(self) -> None:
        if not self.run:
            raise ConfigError(
                "there is no text to fit: name a CORPUS, such as python-source, or the --run to "
                "go on with"
            )
        for field in fields(self):
            if field.name != "run" and getattr(self, field.name) != field.default:
                raise ConfigError(
                    f"--{field.name.replace('_', '-')} belongs to a new fit; to go on, give --run "
                    "alone, or name the CORPUS too"
                )

    def _check_length(self) -> None:
        if self.steps is not None and self.time is not None:
            raise ConfigError(
                f"time={self.time:g} and steps={self.steps} are two lengths; give one of them"
            )
        if self.steps is not None:
            need_at_least("--steps", self.steps, 1)
        elif self.seconds < SHORTEST:
            raise ConfigError(
                f"{self.seconds:g} s are too short to train and compare models; "
                f"give --time {SHORTEST / 60:g}m or more"
            )

    def _check_shares(self) -> None:
        if not 0 < self.margin < 1:
            raise ConfigError(
                f"--margin is a share of the loss between 0 and 1, got {self.margin:g}"
            )
        for name in ("watts", "grid", "price"):
            if getattr(self, name) < 0:
                raise ConfigError(f"--{name} must not be negative, got {getattr(self, name):g}")

    def _check_choices(self) -> None:
        blocks = Pattern.parse(self.choices)
        if any(spec.options or spec.inside for spec in blocks):
            raise ConfigError(
                f"--choices {self.choices!r} are letters alone: sizes are found; write rsfni"
            )
        for needed, why in (("s", "the baseline has attention"), ("f", "so have all models")):
            if needed not in self.letters:
                raise ConfigError(f"--choices {self.choices!r} lack {needed!r}: {why}; add it")

    @property
    def kind(self) -> Kind:
        """What there is to learn from."""
        if not self.task or self.task in TASKS:
            return TASKS.get(self.task, "text")
        from parformer.data.benchmarks import BENCHMARKS

        known = [name for name, one in BENCHMARKS.items() if one.kind in TASKS]
        check_names([self.task], [*TASKS, *known], "task of a fit")
        return "labels"

    @property
    def folder(self) -> Path:
        """Where everything goes."""
        told = [self.task] * bool(self.task) + [Path(self.corpus).stem]
        name = re.sub(r"[^\w.]+", "-", "-".join(["fit", *told])).strip("-.")
        return Path(self.run) if self.run else Path("runs") / name

    @property
    def seconds(self) -> float:
        """For everything; 0 in a fit by updates, which asks no clock."""
        if self.steps is not None:
            return 0.0
        return USUAL if self.time is None else self.time

    @property
    def bounds(self) -> tuple[Limit, ...]:
        """The limits; without any, the baseline's own latency."""
        return read_limits(self.limits or (NO_MORE,))

    @property
    def table_room(self) -> int:
        """Bytes that a table of counts may take: half of what the model may, if that is said."""
        if not self.counts or self.kind != "text":
            return 0
        sizes = [bound.most / 2 for bound in self.bounds if bound.metric == "size"]
        return int(min([COUNTS, *sizes]))

    @property
    def multiples(self) -> dict[str, float]:
        """The limits that are multiples of the baseline's figures."""
        return {bound.metric: bound.most for bound in self.bounds if bound.relative}

    @property
    def letters(self) -> str:
        """The blocks to choose from."""
        return "".join(dict.fromkeys(spec.letter for spec in Pattern.parse(self.choices)))

    @property
    def preset(self) -> str:
        """What the models are like, in all but their sizes."""
        return PRESETS[self.kind][self.family]

    def recipe(self) -> Recipe:
        """How models of this family are trained, before their sizes are known."""
        changes: dict[str, object] = {
            "data.corpus": self.corpus,
            "data.local": self.local,
            "data.tokenizer": self.tokenizer,
            "train.seed": self.seed,
            "train.compile": "off",
        }
        if self.tokenizer not in ("bpe", "wordpiece", "unigram"):
            changes["data.vocab_size"] = 0
        return read_recipe(self.preset, changes)

    def refuse_another(self, asked: FitRequest, path: Path) -> None:
        """A run answers one question; what only its report says may change."""
        asked = replace(asked, run=self.run, **{n: getattr(self, n) for n in MAY_CHANGE})
        old, new = self.to_dict(), asked.to_dict()
        for name in {**old, **new}:
            if old.get(name) != new.get(name):
                raise ConfigError(
                    f"{name} is {old.get(name, '')!r} in the run {str(path)!r} and "
                    f"{new.get(name, '')!r} now; "
                    "leave it as it was, or choose another --run"
                )

    def to_dict(self) -> dict[str, Any]:
        """As a run keeps it: everything but its own folder, and what version 0.1 did not know
        where nobody asked for it.
        """
        values = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if one.name != "run"
            and (one.name not in LATER or getattr(self, one.name) != one.default)
        }
        length = {"time": self.seconds, "steps": self.steps or 0}
        lists = {name: list(values[name]) for name in ("limits", "text") if name in values}
        return values | length | lists

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        check_names(values, [field.name for field in fields(cls)], "field of a fit")
        steps = values.get("steps") or None
        time = None if steps else values.get("time")
        return cls(**{**values, "steps": steps, "time": time})


def _as_place(name: str, value: object) -> str:
    """A name or path as a text that a file system can take."""
    text = str(value) if isinstance(value, Path) else value
    if not isinstance(text, str):
        raise ConfigError(f"{name} must be a text or a path, got {value!r}")
    if "\0" in text:
        raise ConfigError(f"{name} {text!r} holds a NUL character; no file can be called so")
    return text
