"""How does text become numbers, and how is that kept?

Seven kinds are counted or learned from a text: `byte`, `used-bytes`, `character`, `word`, `bpe`,
`wordpiece` and `unigram`; an eighth, `hf`, is any `tokenizer.json` of Hugging Face's, named by
its path; and `sides` holds those of pairs. A tokenizer is kept as `tokenizer.json` beside the
model that was trained with it. Reading one runs no code.

>>> tokenizer = read_tokenizer('{"format": "parformer-tokenizer-1", "kind": "byte"}', "here")
>>> tokenizer.decode(tokenizer.encode("as it was"))
'as it was'
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from parformer.data.library import VOCAB_SIZE, Library, read_library
from parformer.data.sides import PLAIN, Sides
from parformer.data.tokenizer import FORMAT, Settings, Tokenizer
from parformer.errors import ConfigError, FolderError
from parformer.events import Preparing
from parformer.fields import check_names, need_at_least
from parformer.store.files import read_plain, reason

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

KINDS: dict[str, type[Tokenizer]] = PLAIN | {Sides.kind: Sides}
PIECES = ("bpe", "wordpiece", "unigram")
LEAST = {"character": 2, "word": 2, "bpe": 256, "wordpiece": 32, "unigram": 32}
"""The smallest vocabulary of the kinds that can be limited."""
TOKENIZER = "tokenizer.json"
LIMIT = 64 * 2**20
"""No tokenizer.json of ours is larger; WikiText-103's 267,735 words need 4 MB."""


def settings(kind: str, *, vocab_size: int = 0, min_count: int = 0, sides: int = 0) -> Settings:
    """The settings in one way of writing them, once they are known to make sense."""
    if not is_file(kind):
        check_names([kind], [one for one in PLAIN if one != Library.kind], "tokenizer")
    elif sides > 1:
        raise ConfigError(
            f"the tokenizer {kind!r} is one vocabulary; set data.vocabularies=joint, or a kind "
            "that is learned for each side, such as bpe"
        )
    need_at_least("vocab_size", vocab_size, 0)
    need_at_least("min_count", min_count, 0)
    if kind not in LEAST and (vocab_size or min_count):
        raise ConfigError(
            f"vocab_size {vocab_size} and min_count {min_count} mean nothing to the tokenizer "
            f"{kind!r}; leave them out, or use one of {', '.join(LEAST)}"
        )
    if vocab_size:
        need_at_least(f"vocab_size of the tokenizer {kind!r}", vocab_size, LEAST[kind])
    elif kind in PIECES:
        vocab_size = VOCAB_SIZE
    if kind == "unigram" and min_count:
        raise ConfigError("min_count means nothing to the tokenizer 'unigram'; leave it out")
    return Settings(kind, vocab_size, min_count, 0 if is_file(kind) else sides)


def train_tokenizer(
    kind: str,
    corpus: Corpus,
    *,
    vocab_size: int = 0,
    min_count: int = 0,
    sides: int = 0,
    progress: Preparing | None = None,
) -> Tokenizer:
    """A corpus's tokenizer of this kind; the same corpus and settings give the same one.

    `vocab_size` limits all tokens together, `<unk>` and `<eos>` among them; `min_count` leaves
    out what is rarer (for bpe: pairs). With 0, the limits are those of the text, and 8,192
    tokens for bpe. With `sides` the corpus is pairs, and gets one vocabulary or two.
    """
    chosen = settings(kind, vocab_size=vocab_size, min_count=min_count, sides=sides)
    if is_file(kind):
        return read_foreign(Path(kind))
    return (Sides if sides else KINDS[kind]).train(corpus, chosen, progress)


def is_file(kind: str) -> bool:
    """Whether what stands for a kind of tokenizer is a file of Hugging Face's."""
    return kind.endswith(".json")


def kind_of(kind: str) -> str:
    return Library.kind if is_file(kind) else kind


def read_foreign(file: Path) -> Tokenizer:
    """A tokenizer.json of Hugging Face's, or one of ours."""
    try:
        text = read_plain(file.expanduser(), LIMIT)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the tokenizer {str(file)!r}: {reason(error)}") from None
    if f'"{FORMAT}"' in text[:200]:
        return read_tokenizer(text, str(file))
    try:
        return Library(read_library(text))
    except ValueError as error:
        raise ConfigError(f"{str(file)!r} is no tokenizer.json: {error}") from None


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
        if not stat.S_ISREG(status.st_mode):
            raise FolderError(f"{str(file)!r} is no plain file; copy the whole folder again")
        if status.st_size > 4 * LIMIT:  # bytes; a character has at most four
            raise FolderError(f"{str(file)!r} is too large to be a tokenizer of ours")
        text = file.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FolderError(f"cannot read {str(file)!r}: {error}") from None
    return read_tokenizer(text, str(file))
