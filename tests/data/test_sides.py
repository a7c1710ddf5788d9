"""Do the vocabularies of pairs give every text back, whoever learned them, and survive saving?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from parformer.data.characters import Characters
from parformer.data.corpora import Corpus
from parformer.data.pairs import pairs_in
from parformer.data.reading import Piece
from parformer.data.sides import END, NONE, PAIRED, START, Sides, vocabulary_of
from parformer.data.tokenizers import Tokenizer, read_tokenizer, train_tokenizer
from parformer.data.tokens import prepare
from parformer.errors import FolderError, ParformerError
from parformer.export.run import Text

LINES = "".join(
    f"der Hund {n} läuft über die Straße\tthe dog {n} runs across the street\n" for n in range(40)
)
STRANGE = "der Hund 戦🙂 <unk> <0x41> läuft\tthe  dog 戦 é\n"
"""Letters that nobody learned, and what looks like pieces that stand for none."""
SIZES = {"unigram": 310, "bpe": 270}


def corpus(cache: Path = Path("nowhere")) -> Corpus:
    splits = {split: (Piece(LINES.encode()),) for split in ("train", "test")}
    return Corpus(name="pairs", about="for tests", texts=splits, cache=cache)


def learned(kind: str, sides: int) -> Tokenizer:
    return train_tokenizer(kind, corpus(), vocab_size=SIZES.get(kind, 0), sides=sides)


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("kind", PAIRED)
def test_pairs_come_back_as_they_were(kind: str, sides: int) -> None:
    known = learned(kind, sides)
    given = STRANGE.replace("  ", " ") if kind in ("bpe", "byte", "unigram") else LINES[:80]
    tokens = known.encode(given)
    assert known.decode(tokens) == given
    assert read_tokenizer(known.to_json(), "here") == known
    parts = known.encode_chunks(given.encode()[n : n + 1] for n in range(len(given.encode())))
    assert np.concatenate(list(parts)).tolist() == tokens
    source, target = given.split("\n")[0].split("\t")
    found = pairs_in(np.array(tokens), START, END)
    assert found[0][0].tolist() == known.source.encode(source)
    assert found[0][1].tolist() == known.target.encode(target)
    assert known.target.decode([NONE, START, *known.target.encode(target), END]) == target


def test_each_side_learns_from_its_own_texts() -> None:
    """Sources and targets have other letters, so their vocabularies have other sizes."""
    apart, joint = learned("character", 2), learned("character", 1)
    assert isinstance(apart, Sides)
    assert isinstance(joint, Sides)
    source, target = apart.tokenizers
    assert isinstance(source, Characters)
    assert isinstance(target, Characters)
    assert "ß" in source.characters
    assert "ß" not in target.characters
    assert "\t" not in source.characters + target.characters
    marks = {"pad": NONE, "start": START, "end": END}
    sizes = {"vocab_size": 3 + target.size, "source_vocab": 3 + source.size}
    assert vocabulary_of(apart) == sizes | marks
    shared = len(set(source.characters + target.characters)) + 3
    assert vocabulary_of(joint) == {"vocab_size": shared, "source_vocab": 0} | marks


def test_no_vocabulary_is_larger_than_was_asked_for() -> None:
    for kind, size in SIZES.items():
        known = learned(kind, 2)
        assert max(known.source.size, known.target.size) <= size


def test_tokens_are_kept_and_found_again(tmp_path: Path) -> None:
    """By their settings and by the tokenizer of a run; one vocabulary is not taken for two."""
    how = {"vocab_size": 270, "cache": tmp_path}
    one, two = (prepare(corpus(tmp_path), "bpe", sides=sides, **how) for sides in (1, 2))  # type: ignore[arg-type]
    assert one.folder != two.folder
    again = prepare(corpus(tmp_path), "bpe", sides=2, tokenizer=two.tokenizer, cache=tmp_path)
    assert again.folder == two.folder
    assert two.tokenizer.decode(again.splits["test"].tokens.tolist()) == LINES
    named = prepare(corpus(tmp_path), "sides", tokenizer=two.tokenizer, cache=tmp_path)
    assert named.folder == two.folder
    with pytest.raises(ParformerError, match="where 'unigram' was asked for"):
        prepare(corpus(tmp_path), "unigram", tokenizer=two.tokenizer, cache=tmp_path)


@pytest.mark.parametrize("kind", PAIRED)
def test_the_program_beside_an_export_reads_them_too(kind: str, tmp_path: Path) -> None:
    for sides in (1, 2):
        known = learned(kind, sides)
        (tmp_path / "tokenizer.json").write_text(known.to_json(), "utf-8")
        source, target = LINES.split("\n")[0].split("\t")
        tokens = known.target.encode(target)
        assert Text(tmp_path).encode(source) == known.source.encode(source)
        assert Text(tmp_path, -1).decode([START, *tokens, END]) == target


@pytest.mark.parametrize(
    ("kind", "size", "problem"),
    [
        ("wordpiece", 0, "a wordpiece tokenizer does not give pairs back"),
        ("unigram", 200, "vocab_size 200 is too small for pairs .* take 291 at least"),
        ("bpe", 258, "take 259 at least"),
        ("some.json", 0, "'some.json' is one vocabulary; set data.vocabularies=joint"),
    ],
)
def test_what_cannot_be_learned_is_refused(kind: str, size: int, problem: str) -> None:
    with pytest.raises(ParformerError, match=problem):
        train_tokenizer(kind, corpus(), vocab_size=size, sides=2)


@pytest.mark.parametrize("sides", [[], [{"kind": "byte"}] * 3, [{"kind": "sides"}], ["byte"]])
def test_damaged_files_are_refused(sides: list[object]) -> None:
    told = {"format": "parformer-tokenizer-1", "kind": "sides", "sides": sides}
    with pytest.raises(FolderError, match="is a damaged sides tokenizer"):
        read_tokenizer(json.dumps(told), "here")
