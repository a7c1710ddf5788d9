"""Which tokenizer belongs to a folder of Hugging Face's?

`tokenizer.json` as it is; else `vocab.txt`, BERT's list of pieces, with what
`tokenizer_config.json` says about letters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from parformer.data.library import Library
from parformer.data.tokenizers import LIMIT, TOKENIZER, Tokenizer, read_foreign
from parformer.errors import FolderError, need
from parformer.store.files import Json, read_plain, reason

VOCABULARY, SETTINGS = "vocab.txt", "tokenizer_config.json"


def read_folder_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder."""
    if (folder / TOKENIZER).is_file():
        return read_foreign(folder / TOKENIZER)
    if (folder / VOCABULARY).is_file():
        return Library(bert_pieces(folder))
    raise FolderError(
        f"{str(folder)!r} has neither {TOKENIZER} nor {VOCABULARY}, so no text can be read; save "
        "its tokenizer as tokenizer.json"
    )


def bert_pieces(folder: Path) -> Any:
    """BERT's tokenizer, from its vocabulary."""
    tokenizers = need("tokenizers", extra="bpe")
    lines = read_text(folder / VOCABULARY).split("\n")
    words = [line.rstrip("\r") for line in (lines[:-1] if not lines[-1] else lines)]
    told = settings_of(folder)
    unknown = str(told.get("unk_token", "[UNK]"))
    vocabulary = {word: number for number, word in enumerate(words)}
    if unknown not in vocabulary:
        raise FolderError(f"{str(folder / VOCABULARY)!r} has no {unknown}; is it BERT's?")
    library = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token=unknown))
    library.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=bool(told.get("do_lower_case", True)),
        strip_accents=told.get("strip_accents"),
        handle_chinese_chars=bool(told.get("tokenize_chinese_chars", True)),
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    library.decoder = tokenizers.decoders.WordPiece()
    marks = [unknown, "[SEP]", "[PAD]", "[CLS]", "[MASK]"]
    library.add_special_tokens([mark for mark in marks if mark in vocabulary])
    return library


def settings_of(folder: Path) -> Json:
    if not (folder / SETTINGS).is_file():
        return {}
    try:
        told = json.loads(read_text(folder / SETTINGS))
    except (ValueError, RecursionError):
        raise FolderError(f"{str(folder / SETTINGS)!r} is not JSON") from None
    return told if isinstance(told, dict) else {}


def read_text(file: Path) -> str:
    try:
        return read_plain(file, LIMIT)
    except (OSError, ValueError) as error:
        raise FolderError(f"cannot read {str(file)!r}: {reason(error)}") from None
