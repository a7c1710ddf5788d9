"""How does a tokenizer of ours look to Hugging Face's library?"""

from __future__ import annotations

import json
from typing import Any

from parformer.data.characters import Characters, UsedBytes
from parformer.data.tokenizer import SPECIAL, Tokenizer
from parformer.data.words import Words
from parformer.errors import ConfigError, need
from parformer.store.files import Json

NAMES = {
    "pad": "pad_token",
    "unk": "unk_token",
    "bos": "bos_token",
    "eos": "eos_token",
    "sep": "sep_token",
    "cls": "cls_token",
    "mask": "mask_token",
}


def to_library(tokenizer: Tokenizer) -> str:
    """`tokenizer.json` as the library reads it, with the same numbers."""
    told = tokenizer.to_dict()
    if "library" in told:
        return json.dumps(told["library"], ensure_ascii=False)
    tokenizers = need("tokenizers", extra="bpe")
    if isinstance(tokenizer, Characters):
        return by_letters(tokenizers, tokenizer)
    if isinstance(tokenizer, Words):
        return by_words(tokenizers, tokenizer)
    if tokenizer.made_of != "bytes":
        raise ConfigError(
            f"a {tokenizer.kind} tokenizer has no form in Hugging Face's library; export to ONNX, "
            "or train with another tokenizer"
        )
    used = tokenizer.used if isinstance(tokenizer, UsedBytes) else bytes(range(256))
    letters = byte_letters()
    vocab = {letters[byte]: number for number, byte in enumerate(used)}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    library.decoder = tokenizers.decoders.ByteLevel()
    return str(library.to_str())


def by_letters(tokenizers: Any, tokenizer: Characters) -> str:
    vocab = {letter: number for number, letter in enumerate(tokenizer.characters)}
    unknown = {"unk_token": "<unk>"} if tokenizer.unknown else {}
    if unknown:
        vocab["<unk>"] = len(vocab)
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, **unknown))
    every = tokenizers.Regex(r"[\s\S]")
    library.pre_tokenizer = tokenizers.pre_tokenizers.Split(every, "isolated")
    library.decoder = tokenizers.decoders.Fuse()
    return str(library.to_str())


def by_words(tokenizers: Any, tokenizer: Words) -> str:
    vocab = {word: number for number, word in enumerate(tokenizer.words)}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    library.normalizer = tokenizers.normalizers.Replace("\n", " <eos> ")
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return str(library.to_str())


def byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in byte-level tokenizers, as GPT-2 chose them."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {
        byte: chr(256 + number) for number, byte in enumerate(others)
    }


def settings(tokenizer: Tokenizer, longest: int) -> Json:
    """`tokenizer_config.json`."""
    told: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    if longest:
        told["model_max_length"] = longest
    for name, theirs in NAMES.items():
        if tokenizer.has(name):
            number = tokenizer.special(name)
            told[theirs] = next(w for w in SPECIAL[name] if tokenizer.number(w) == number)
    return told
