"""How does text become numbers, and how is that kept?

Five kinds: `byte`, `used-bytes`, `character`, `word` and `bpe`. A tokenizer is kept as
`tokenizer.json` beside the model that was trained with it. Reading one runs no code and
refuses whatever `train_tokenizer` cannot have made.

>>> tokenizer = read_tokenizer('{"format": "parformer-tokenizer-1", "kind": "byte"}', "here")
>>> tokenizer.decode(tokenizer.encode("as it was"))
'as it was'
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer.data.bpe import VOCAB_SIZE, Bpe
from parformer.data.characters import Bytes, Characters, UsedBytes
from parformer.data.tokenizer import FORMAT, Tokenizer
from parformer.data.words import Words
from parformer.errors import ConfigError, FolderError
from parformer.events import Preparing
from parformer.fields import check_names, need_at_least

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus

__all__ = [
    "KINDS",
    "TOKENIZER",
    "Tokenizer",
    "load_tokenizer",
    "read_tokenizer",
    "settings",
    "train_tokenizer",
]

KINDS: dict[str, type[Tokenizer]] = {
    cls.kind: cls for cls in (Bytes, UsedBytes, Characters, Words, Bpe)
}
LEAST = {"character": 2, "word": 2, "bpe": 256}
"""The smallest vocabulary of the kinds that can be limited."""
TOKENIZER = "tokenizer.json"
LIMIT = 64 * 2**20
"""No tokenizer.json of ours is larger; WikiText-103's 267,735 words need 4 MB."""


def settings(kind: str, *, vocab_size: int = 0, min_count: int = 0) -> dict[str, Any]:
    """What decides which tokenizer a corpus gets, in one way of writing it."""
    check_names([kind], KINDS, "tokenizer")
    need_at_least("vocab_size", vocab_size, 0)
    need_at_least("min_count", min_count, 0)
    if kind not in LEAST and (vocab_size or min_count):
        raise ConfigError(
            f"vocab_size {vocab_size} and min_count {min_count} mean nothing to the tokenizer "
            f"{kind!r}; leave them out, or use one of {', '.join(LEAST)}"
        )
    if vocab_size:
        need_at_least(f"vocab_size of the tokenizer {kind!r}", vocab_size, LEAST[kind])
    elif kind == "bpe":
        vocab_size = VOCAB_SIZE
    return {"kind": kind, "vocab_size": vocab_size, "min_count": min_count}


def train_tokenizer(
    kind: str,
    corpus: Corpus,
    *,
    vocab_size: int = 0,
    min_count: int = 0,
    progress: Preparing | None = None,
) -> Tokenizer:
    """A corpus's tokenizer of this kind; the same corpus and settings give the same one.

    `vocab_size` limits all tokens together, `<unk>` and `<eos>` among them; `min_count` leaves
    out what is rarer (for bpe: pairs). With 0, the limits are those of the text, and 8,192
    tokens for bpe.
    """
    chosen = settings(kind, vocab_size=vocab_size, min_count=min_count)
    return KINDS[kind].train(
        corpus,
        vocab_size=chosen["vocab_size"],
        min_count=chosen["min_count"],
        progress=progress,
    )


def read_tokenizer(text: str, where: str) -> Tokenizer:
    """What `to_json` wrote, or a FolderError that names `where` it stands."""
    if len(text) > LIMIT:
        raise FolderError(f"{where!r} is too large to be a tokenizer of ours")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{where!r} is not JSON: {error}") from None
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise FolderError(f"{where!r} is no tokenizer of this version: it must say {FORMAT!r}")
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise FolderError(f"{where!r} is of no kind known here: {', '.join(KINDS)}")
    try:
        return KINDS[kind].from_dict(values)
    except ValueError as error:
        raise FolderError(f"{where!r} is a damaged {kind} tokenizer: {error}") from None


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a model, run or cache folder, if it has one."""
    file = folder / TOKENIZER
    try:
        status = file.lstat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FolderError(f"cannot read {str(file)!r}: {error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise FolderError(f"{str(file)!r} is no plain file; copy the whole folder again")
    if status.st_size > 4 * LIMIT:  # bytes; a character has at most four
        raise FolderError(f"{str(file)!r} is too large to be a tokenizer of ours")
    try:
        text = file.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise FolderError(f"cannot read {str(file)!r}: {error}") from None
    return read_tokenizer(text, str(file))
