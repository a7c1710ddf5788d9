"""Does a smaller tokenizer read the text that it was cut for as before, and all others too?"""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from parformer.data.characters import Bytes, Characters
from parformer.data.fewer import fewer
from parformer.data.library import BYTES, Library
from parformer.data.tokenizer import Tokenizer
from parformer.data.tokenizers import read_foreign, read_tokenizer, train_tokenizer
from parformer.errors import ConfigError
from tests.data.test_library import TEXT, bert_file, corpus

SOME = "the cat sat on the mat, and the dog sat on the cat.\n" * 2


def check(whole: Tokenizer, text: str = SOME) -> tuple[Tokenizer, list[int]]:
    """Cut for a text, and compared with the whole on it, token by token."""
    used = set(whole.encode(text))
    made, kept = fewer(whole, used)
    assert kept == sorted(set(kept))
    assert used <= set(kept)
    assert made.size == len(kept) < whole.size
    assert type(made) is type(whole)
    assert [kept[token] for token in made.encode(text)] == whole.encode(text)
    assert made.decode(made.encode(text)) == whole.decode(whole.encode(text))
    again = read_tokenizer(made.to_json(), "here")
    assert again == made
    return made, kept


@pytest.mark.parametrize("kind", ["word", "bpe", "wordpiece", "unigram"])
def test_the_text_is_read_as_before(kind: str) -> None:
    whole = train_tokenizer(kind, corpus(), vocab_size=400)  # type: ignore[arg-type]
    made, _ = check(whole)
    if kind in ("bpe", "unigram"):  # what is lost is spelled
        assert made.decode(made.encode(TEXT)).strip() == TEXT.strip()
        assert len(made.encode(TEXT)) > len(whole.encode(TEXT))
    names = whole.names()
    if kind == "wordpiece":
        unknown = whole.special("unk")
        assert made.encode(TEXT).count(made.special("unk")) == whole.encode(TEXT).count(unknown)
        assert {names[n] for n in range(7)} == {made.names()[n] for n in range(7)}


def test_what_is_used_a_little_can_go_too() -> None:
    whole = train_tokenizer("bpe", corpus(), vocab_size=400)  # type: ignore[arg-type]
    used = set(whole.encode(SOME))
    longest = max(used, key=lambda n: len(whole.names()[n]))
    made, kept = fewer(whole, used - {longest})
    assert longest not in kept
    assert made.decode(made.encode(SOME)) == SOME


def test_letters_without_a_home_become_unknown() -> None:
    whole = Characters("abcdef", unknown=True)
    made, kept = check(whole, "badge")
    assert kept == [0, 1, 3, 4, 6]
    assert made.encode("fb") == [4, 1]
    with pytest.raises(ConfigError, match="needs all of its 6 tokens"):
        fewer(Characters("abcdef", unknown=False), {0})
    with pytest.raises(ConfigError, match="byte tokenizer needs all"):
        fewer(Bytes(), {0})


def test_a_foreign_file_is_cut_with_its_special_tokens(tmp_path: Path) -> None:
    made, kept = check(read_foreign(bert_file(tmp_path)), "the cat sat on the mat")
    names = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert {name: made.special(name) for name in names} == names
    assert len(kept) > 5


def test_letters_go_where_bytes_spell_them() -> None:
    """As Llama's: pairs in two ways, bytes for whatever is no piece, tokens added behind."""
    pieces = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "b", "c", "é", "ab", "bc", "abc", "▁abc"]
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc"), ("▁", "abc")]
    model = tokenizers.models.BPE(
        {piece: n for n, piece in enumerate(pieces)},
        merges,
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    library = tokenizers.Tokenizer(model)
    library.add_special_tokens(["<s>", "</s>", "<pad>"])
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<pad> $A", special_tokens=[("<pad>", library.token_to_id("<pad>"))]
    )
    library.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    whole = Library(library)
    made, _ = check(whole, "abc")
    names = set(made.names().values())
    assert {"ab", "bc", "abc", *BYTES, "<s>", "<pad>"} <= names
    assert not names & {"é", "▁abc", "▁"}
    assert made.decode(made.encode("é abc")) == "é abc"
    assert isinstance(made, Library)
    assert made._library.encode("abc").tokens == ["<pad>", "abc"]
