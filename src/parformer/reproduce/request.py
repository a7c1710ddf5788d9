"""What can one ask about published tables and figures?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from parformer.errors import ConfigError
from parformer.fields import need_at_least
from parformer.reproduce.published import Page, expand, read_pages

Scale = Literal["pocket", "paper"]


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest:
    """Which tables and figures, and how much may be done for them."""

    names: tuple[str, ...]
    """Tables and figures by the names that 'list' shows; par, par-first, lts, srupp, albert,
    mobilebert or efficient for all of a paper; all for all; or list."""
    scale: Scale = "pocket"
    """Where quality is asked for: small trainings here, or the paper's own, whose commands are
    printed and whose finished runs are read from --run."""
    models: Path | None = None
    """CSV of trained models, perhaps gzipped, as LiteTransformerSearch's authors publish."""
    run: Path | None = None
    """Where trainings and measurements are kept, and the page is written; the same command goes
    on where it stopped."""
    time: float | None = None
    """For the trainings of each study."""
    steps: int | None = None
    """Updates of each training, in place of a time."""
    seeds: int = 1
    """Trainings of each model."""
    untrained: bool = False
    """Leave out what takes trainings."""
    corpus: str = ""
    """What trainings read."""
    pairs: str = ""
    """What translators and summarisers learn from, a name such as multi30k or a folder; without it
    none are trained."""
    pair: str = "de-en"
    """Which texts of --pairs are a pair: what is read, and what is to be written."""
    threads: int | None = None
    """CPU threads."""

    def __post_init__(self) -> None:
        names = (self.names,) if isinstance(self.names, str) else tuple(self.names)
        object.__setattr__(self, "names", names)
        for name in ("models", "run"):
            if (place := getattr(self, name)) is not None:
                object.__setattr__(self, name, Path(place))
        need_at_least("--seeds", self.seeds, 1)
        for name in ("steps", "threads"):
            if getattr(self, name) is not None:
                need_at_least(f"--{name}", getattr(self, name), 1)
        if self.steps is not None and self.time is not None:
            raise ConfigError(
                f"time={self.time:g} and steps={self.steps} are two lengths; give one of them"
            )
        expand(names)
        if self.models is not None and not self.models.is_file():
            raise ConfigError(f"cannot read {str(self.models)!r}: there is no such file")

    @property
    def pages(self) -> list[Page]:
        """What is asked for, each once."""
        return [read_pages()[name] for name in expand(self.names)]

    @property
    def folder(self) -> Path | None:
        """Where everything goes; only what takes time needs a place."""
        if self.run is not None:
            return self.run
        trains = self.scale == "pocket" and not self.untrained
        takes, pages = {"measure"}, self.pages
        if trains:
            takes |= {"train", "pairs"} if self.pairs else {"train"}
        if not any(takes & set(page.work) for page in pages):
            return None
        return Path("runs") / (f"reproduce-{pages[0].name}" if len(pages) == 1 else "reproduce")
