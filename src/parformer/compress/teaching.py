"""How does a translator become the teacher of another one?

By its translations (sequence-level distillation, Kim and Rush 2016): the training sources of its
run with what it makes of them by beam search, in a folder that `parformer train --data` reads. The
other splits stay as they are, so that students are judged by what people wrote. What was translated
stays when it is stopped, and the same command goes on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer.errors import ConfigError, FolderError
from parformer.events import Listener, Watch, nobody
from parformer.fields import need_at_least
from parformer.records import Record
from parformer.store.files import replace_file
from parformer.verbs import requested

if TYPE_CHECKING:
    from parformer.data.tokenizers import Tokenizer
    from parformer.model import Model
    from parformer.train.run import Opened

TOGETHER = 256
"""Sources whose translations are written down together."""
UNFINISHED = "unfinished.jsonl"
"""What was translated so far."""

Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class TeachRequest:
    """A translator, and a folder for what it makes of its training sources."""

    model: Path
    """Folder of a run that translates."""
    to: Path
    """Folder for the pairs."""
    data: str = ""
    """Pairs whose sources are translated."""
    beam: int = 5
    """Translations that are looked for side by side."""
    length_penalty: float = 1.0
    """Above 1: longer translations."""
    limit: int = 0
    """Training pairs at most; 0 means all."""

    def __post_init__(self) -> None:
        need_at_least("beam", self.beam, 1)
        need_at_least("limit", self.limit, 0)


@dataclass(frozen=True, kw_only=True)
class Taught(Record):
    """A folder of pairs, and how they came about."""

    folder: str
    pair: str
    sources: int
    """That were translated."""
    alike: float
    """Share of the translations that are just what the pairs had."""
    words: float
    """Of the translations, beside those of the pairs' targets."""


def teach(request: TeachRequest | None = None, *, watch: Listener = nobody, **given: Any) -> Taught:
    """Write what a translator makes of its training sources, for others to learn from."""
    asked, looks = requested(TeachRequest, request, given), Watch(watch)
    from parformer.model import load
    from parformer.train.run import open_run

    opened = open_run(Path(asked.model))
    pair, splits = pairs_of(asked, opened, looks)
    model = load(opened.folder)
    if model.encoder is None:
        raise ConfigError(
            f"the model in {str(asked.model)!r} translates nothing; name one that does"
        )
    folder = Path(asked.to)
    make_room(folder)
    known = splits["train"][: asked.limit or None]
    made = translations(asked, model, opened.need_tokenizer(), [one for one, _ in known], looks)
    names = pair.split("-")
    for split, pairs in splits.items():
        if split != "train":
            write_side(folder, split, names, pairs)
    # last: with it the folder is one to train on
    write_side(folder, "train", names, list(zip((one for one, _ in known), made, strict=True)))
    (folder / UNFINISHED).unlink(missing_ok=True)
    wanted = [two for _, two in known]
    return Taught(
        folder=str(folder),
        pair=pair,
        sources=len(known),
        alike=sum(a == b for a, b in zip(made, wanted, strict=True)) / len(known),
        words=words(made) / max(1, words(wanted)),
    )


def pairs_of(
    asked: TeachRequest, opened: Opened, watch: Watch
) -> tuple[str, dict[str, list[Pair]]]:
    """The names of both sides, and the pairs of every split."""
    from parformer.data.reading import read_pieces
    from parformer.train.job import corpus_of

    recipe = opened.recipe
    if recipe is None or not recipe.data.pair:
        raise ConfigError(
            f"{str(asked.model)!r} is no run that learned from pairs, which would say what it "
            "translates; name one"
        )
    data = recipe.data
    corpus = corpus_of(replace(data, corpus=asked.data or data.corpus), watch.preparing)
    found: dict[str, list[Pair]] = {}
    for split, pieces in corpus.texts.items():
        lines = b"".join(read_pieces(pieces)).decode().split("\n")[:-1]
        sides = [line.split("\t") for line in lines]
        found[split] = [(one, two) for one, two in sides]
    return data.pair, found


def make_room(folder: Path) -> None:
    """A new or empty folder, or one that this work has begun."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        inside = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise FolderError(f"cannot make the folder {str(folder)!r}: {error.strerror}") from None
    if inside and UNFINISHED not in inside:
        raise FolderError(f"{str(folder)!r} is not empty; choose another --to")


def translations(
    asked: TeachRequest, model: Model, tokenizer: Tokenizer, sources: list[str], watch: Watch
) -> list[str]:
    """The best translation of every source; what is written down is not made again."""
    from parformer.generate.sentences import translate_text
    from parformer.store.lines import SEAL, Lines, seal, unseal

    lines = Lines(Path(asked.to) / UNFINISHED, SEAL, unseal)
    try:
        wanted = wishes(asked, sources)
        if lines.found and lines.found[0] != wanted:
            raise ConfigError(
                f"{str(asked.to)!r} holds the beginning of something else, by another model, other "
                "pairs or another search; choose another --to"
            )
        if not lines.found:
            lines.add(seal(json.dumps(wanted)))
        made = [text for part in lines.found[1:] for text in part]
        while len(made) < len(sources):
            watch.preparing("translating", len(made) / len(sources))
            some = sources[len(made) : len(made) + TOGETHER]
            how = {"beam": asked.beam, "length_penalty": asked.length_penalty}
            texts = [" ".join(t.split()) for t in translate_text(model, tokenizer, some, **how)]
            lines.add(seal(json.dumps(texts)))
            lines.settle()
            made += texts
        return made
    finally:
        lines.close()


def wishes(asked: TeachRequest, sources: list[str]) -> list[str]:
    """What translations depend on."""
    import hashlib

    from parformer.store.files import sha256
    from parformer.store.folder import MANIFEST
    from parformer.train.run import open_run

    digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()
    identity = sha256(open_run(Path(asked.model)).folder / MANIFEST)
    return [identity, digest, str(asked.beam), repr(asked.length_penalty)]


def write_side(folder: Path, split: str, names: list[str], pairs: list[Pair]) -> None:
    """Both files of a split; what has no translation is left out of both."""
    kept = [pair for pair in pairs if all(side.strip() for side in pair)]
    for side, name in enumerate(names):
        replace_file(folder / f"{split}.{name}", "".join(f"{pair[side]}\n" for pair in kept))


def words(texts: list[str]) -> int:
    return sum(len(text.split()) for text in texts)
