"""Which tokens can a tokenizer do without?

Those that a text does not use, unless others need them: letters stay, so that every text that could
be spelled still can, and so do special tokens and the parts that pairs are merged from. What is
left is a tokenizer of the same kind that reads this text as before, and spells what it has lost.

>>> from parformer.data.words import Words
>>> smaller, kept = fewer(Words(["<eos>", "the", "<unk>", "cat"]), {3})
>>> smaller.words, kept
(('<eos>', '<unk>', 'cat'), [0, 2, 3])
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from parformer.data.characters import Characters
from parformer.data.library import BYTES, Library
from parformer.data.tokenizer import SPECIAL, Tokenizer
from parformer.data.words import EOS, UNK, Words
from parformer.errors import ConfigError
from parformer.store.files import Json

MARKS = {mark for marks in SPECIAL.values() for mark in marks}
ALL_BYTES = set(BYTES)
"""How bytes are written where letters may be spelled in them."""
Numbers = Mapping[int, int]
"""New numbers of tokens, by their old ones."""


def fewer(tokenizer: Tokenizer, used: Collection[int]) -> tuple[Tokenizer, list[int]]:
    """A tokenizer with these tokens, and with what it needs besides; and their old numbers."""
    if isinstance(tokenizer, Words):
        marks = {n for n, word in enumerate(tokenizer.words) if word in (EOS, UNK)}
        kept = sorted(marks | set(used))
        return Words([tokenizer.words[n] for n in kept]), kept
    if isinstance(tokenizer, Characters) and tokenizer.unknown:
        last = len(tokenizer.characters)
        kept = sorted({*used, last})
        letters = "".join(tokenizer.characters[n] for n in kept if n != last)
        return Characters(letters, unknown=True), kept
    if isinstance(tokenizer, Library):
        return fewer_pieces(tokenizer, set(used))
    raise ConfigError(
        f"a {tokenizer.kind} tokenizer needs all of its {tokenizer.size:,} tokens, so its "
        "vocabulary stays; leave out that step"
    )


def fewer_pieces(tokenizer: Library, used: set[int]) -> tuple[Tokenizer, list[int]]:
    """The same for pieces of words, in the library's own form."""
    values = tokenizer.to_dict()["library"]
    model = values["model"]
    names = tokenizer.names()
    in_bytes = bool(model.get("byte_fallback")) and set(names.values()) >= ALL_BYTES
    kept = used | {n for n, name in names.items() if needed(name, model, in_bytes=in_bytes)}
    kept |= {token["id"] for token in values.get("added_tokens", [])}
    if isinstance(model.get("unk_id"), int):
        kept.add(model["unk_id"])
    if model.get("merges"):
        kept = with_parts(kept, names, model)
    chosen = sorted(kept & names.keys())
    new = {old: number for number, old in enumerate(chosen)}
    values["model"] = cut_model(model, new)
    for token in values.get("added_tokens", []):
        token["id"] = new[token["id"]]
    values["post_processor"] = renumbered(values.get("post_processor"), new)
    try:
        made = type(tokenizer).from_dict({"library": json.loads(json.dumps(values))})
    except ValueError as error:
        raise ConfigError(f"this vocabulary cannot become smaller: {error}") from None
    if made.names() != {new[old]: names[old] for old in chosen}:
        raise ConfigError("this vocabulary cannot become smaller: its tokens are numbered oddly")
    return made, chosen


def needed(name: str, model: Json, *, in_bytes: bool) -> bool:
    """Whether a piece stays whatever the text: a special token, a byte, a letter."""
    if name in MARKS or name == model.get("unk_token") or name in ALL_BYTES:
        return True
    if in_bytes:
        return False
    start, end = (
        model.get(part) or "" for part in ("continuing_subword_prefix", "end_of_word_suffix")
    )
    return len(name.removeprefix(start).removesuffix(end)) <= 1


def pairs_of(model: Json) -> list[tuple[str, str]]:
    """Which pairs become one; older files have them as text."""
    found = []
    for pair in model["merges"]:
        left, right = pair.split(" ", 1) if isinstance(pair, str) else pair
        found.append((left, right))
    return found


def product(pair: tuple[str, str], model: Json) -> str:
    return pair[0] + pair[1].removeprefix(model.get("continuing_subword_prefix") or "")


def with_parts(kept: set[int], names: Mapping[int, str], model: Json) -> set[int]:
    """With all that these pieces are merged from, down to letters."""
    numbers = {name: number for number, name in names.items()}
    parts: dict[str, set[str]] = defaultdict(set)
    for pair in pairs_of(model):
        parts[product(pair, model)] |= set(pair)
    found, new = set(kept), set(kept)
    while new:
        below = {numbers[part] for number in new for part in parts.get(names.get(number, ""), ())}
        new = below - found
        found |= new
    return found


def cut_model(model: Json, new: Numbers) -> Json:
    """The library's model with the chosen pieces alone."""
    if isinstance(model["vocab"], list):  # unigram: pieces with scores, in order
        pieces = [pair for number, pair in enumerate(model["vocab"]) if number in new]
        unknown = model.get("unk_id")
        return {**model, "vocab": pieces, "unk_id": None if unknown is None else new[unknown]}
    vocabulary = {name: new[old] for name, old in model["vocab"].items() if old in new}
    cut = {**model, "vocab": vocabulary}
    if model.get("merges"):
        cut["merges"] = [
            list(pair)
            for pair in pairs_of(model)
            if {*pair, product(pair, model)} <= vocabulary.keys()
        ]
    return cut


def renumbered(post: Any, new: Numbers) -> Any:
    """What the library puts around texts, with the new numbers of its tokens."""
    if isinstance(post, list):
        return [renumbered(one, new) for one in post]
    if not isinstance(post, dict):
        return post
    again = {name: renumbered(value, new) for name, value in post.items()}
    if isinstance(post.get("ids"), list):
        again["ids"] = [new.get(old, old) for old in post["ids"]]
    for name in ("cls", "sep"):
        if isinstance(pair := post.get(name), list) and len(pair) == 2:
            again[name] = [pair[0], new.get(pair[1], pair[1])]
    return again
