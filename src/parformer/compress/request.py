"""What can one ask of a compression?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from parformer.compress.replacing.wanted import Wanted, read_wanted
from parformer.errors import ConfigError
from parformer.fields import check_names, need_at_least
from parformer.search.limits import Limit, read_limit

STEPS = ("vocabulary", "replace", "shrink", "distil", "prune", "quantize")
"""What can be done to a model, in the order in which it is usually done."""
Score = Literal["gradient", "magnitude", "loss"]
LIMITED = ("size", "latency")
USUALLY = ("s=r,f,i",)
"""What may be replaced where nobody says."""
_LOSS = re.compile(r"\+?\s*(\d+(?:\.\d*)?|\.\d+)\s*%")


@dataclass(frozen=True, kw_only=True)
class CompressRequest:
    """A trained model, and what may become of it."""

    model: Path
    """Folder of a run or of a model."""
    limits: tuple[str, ...] = ()
    """What it may need in the end: size=2MB, latency=0.7x, and what its loss may grow by, loss=+1%;
    may be repeated."""
    by: str = ""
    """Steps in their order, such as shrink,distil,quantize; without them a plan is made of what is
    tried under the limits."""
    replace: tuple[str, ...] = ()
    """Blocks that may go, and what may stand in their places: s=r,f,i; may be repeated."""
    score: Score = "loss"
    """How heads and channels are told that matter least, where a model is shrunk: by gradients, by
    the size of what they write, or by the loss without an eighth, a quarter and half of them."""
    bits: int = 0
    """Bits of all weights where quantized: 8, or 4 and fewer; 0 means by what each matrix bears."""
    activations: bool = False
    """Inputs of matrices become 8 bits too, within a reach learned from some training text."""
    sparsity: float = 0.9
    """Share of a matrix' weights that become zero where it is pruned."""
    corpus: str = ""
    """Text to calibrate, to train and to judge with."""
    local: str = ""
    """A local copy of a published corpus."""
    time: float | None = None
    """For all training, in seconds."""
    updates: int = 0
    """Of each training, where no clock is to decide."""
    tokens: int = 65_536
    """Of validation text, to judge with."""
    rounds: int = 12
    """Times that each model is timed."""
    threads: int | None = None
    """CPU threads."""
    seed: int = 0
    """Of whatever is drawn."""
    run: Path | None = None
    """The folder for everything."""
    command: str = ""
    """How it was asked for, to be told again."""

    def __post_init__(self) -> None:
        check_names(self.steps, STEPS, "step of a compression")
        if len(set(self.steps)) < len(self.steps):
            raise ConfigError(f"by {self.by!r} names a step twice; give each once")
        check_names([self.score], get_args(Score), "score")
        if self.bits and self.bits != 8 and not 2 <= self.bits <= 4:
            raise ConfigError(f"bits are 8, or 2 to 4; got {self.bits}")
        if not 0 < self.sparsity < 1:
            raise ConfigError(f"sparsity is a share between 0 and 1, got {self.sparsity:g}")
        if self.time is not None and self.time <= 0:
            raise ConfigError(f"time must be above 0, got {self.time:g} s")
        need_at_least("tokens", self.tokens, 1024)
        need_at_least("rounds", self.rounds, 6)
        need_at_least("updates", self.updates, 0)
        if self.time is not None and self.updates:
            raise ConfigError(f"both time {self.time:g} s and updates {self.updates}; give one")
        if "quantize" in self.steps[:-1]:
            raise ConfigError(
                f"by {self.by!r}: quantize comes last, since nothing else can be done to codes"
            )
        after = self.steps[self.steps.index("prune") :] if "prune" in self.steps else ()
        if filling := [step for step in after if step in ("distil", "replace")]:
            raise ConfigError(
                f"by {self.by!r}: {filling[0]} trains, and zeros would be filled again; prune "
                "after it, which trains by itself where it is given --time or --updates"
            )
        if "vocabulary" in self.steps[1:]:
            raise ConfigError(
                f"by {self.by!r}: the vocabulary goes first, since later steps learn from a model "
                "with the same words; say --by vocabulary,…"
            )
        self.targets  # noqa: B018 - what cannot be read is refused at once
        self.replacements  # noqa: B018

    @property
    def steps(self) -> tuple[str, ...]:
        """In their order; what is to be replaced goes first where nothing else is said."""
        named = tuple(word.strip() for word in self.by.split(",") if word.strip())
        if not self.replace or "replace" in named:
            return named
        if not named and self.targets.size is not None:
            named = ("quantize",)
        first = 1 if named[:1] == ("vocabulary",) else 0
        return (*named[:first], "replace", *named[first:])

    @property
    def replacements(self) -> Wanted:
        """What may take which block's place."""
        given = (self.replace,) if isinstance(self.replace, str) else self.replace
        return read_wanted(given or USUALLY)

    @property
    def targets(self) -> Targets:
        """The limits, read."""
        found: dict[str, Limit] = {}
        loss: float | None = None
        for text in (self.limits,) if isinstance(self.limits, str) else self.limits:
            name, _, amount = (part.strip() for part in text.partition("="))
            if name in found or (name == "loss" and loss is not None):
                raise ConfigError(f"two limits of {name}; give one, the second is {text!r}")
            if name == "loss":
                read = _LOSS.fullmatch(amount)
                if read is None:
                    raise ConfigError(f"limit {text!r} must be a share, such as loss=+1%")
                loss = float(read[1]) / 100
            else:
                found[name] = read_limit(text, LIMITED)
        return Targets(size=found.get("size"), latency=found.get("latency"), loss=loss)

    @property
    def folder(self) -> Path:
        """Where the compressed model goes."""
        if self.run is not None:
            return Path(self.run)
        path = Path(self.model)
        return path.with_name(f"{path.name}-compressed")


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Limits of a compression."""

    size: Limit | None = None
    latency: Limit | None = None
    loss: float | None = None
    """What the loss may grow by, as a share."""

    @property
    def may_lose(self) -> float:
        """The same, or what people bear who do not say."""
        return 0.02 if self.loss is None else self.loss

    def bytes(self, original: int) -> float | None:
        """The most bytes on disk."""
        return None if self.size is None else self.size.of(original).most

    def seconds(self, original: float) -> float | None:
        """The longest step of one token."""
        return None if self.latency is None else self.latency.of(original).most
