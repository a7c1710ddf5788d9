"""Do pairs come in whole, in step, and into the same batches every time?"""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch

from parformer.data.paired import Paired
from parformer.data.pairs import Filters, find_pairs, pairs_in
from parformer.data.sides import vocabulary_of
from parformer.data.tokenizers import read_tokenizer
from parformer.embedding import IGNORE
from parformer.errors import ParformerError

GERMAN, ENGLISH = "ein Hund\nzwei  Katzen\nnein\n", "a dog\ntwo cats\nno\n"


def text(root: Path, split: str, pair: str = "de-en", **filters: object) -> str:
    corpus = find_pairs(str(root), pair, Filters(**filters))  # type: ignore[arg-type]
    return b"".join(corpus.chunks(split)).decode()


def test_two_files_a_table_and_json_lines_hold_the_same_pairs(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "train.de.gz").write_bytes(gzip.compress(GERMAN.encode()))
    (files / "train.en.xz").write_bytes(lzma.compress(ENGLISH.encode()))
    (files / "val.de").write_text("gut\n")
    (files / "val.en").write_text("good\n")
    table, lines = tmp_path / "table", tmp_path / "lines"
    rows = list(zip(GERMAN.splitlines(), ENGLISH.splitlines(), strict=True))
    table.mkdir()
    (table / "train.tsv").write_text("".join(f"{de}\t{en}\n" for de, en in rows))
    lines.mkdir()
    said = [{"translation": {"de": de, "en": en}} for de, en in rows]
    (lines / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in said))
    wanted = "ein Hund\ta dog\nzwei Katzen\ttwo cats\nnein\tno\n"
    assert [text(root, "train") for root in (files, table, lines)] == [wanted] * 3
    assert text(files, "valid") == "gut\tgood\n"
    assert text(files, "train", "en-de", lower=True).startswith("a dog\tein hund\n")


def test_a_single_file_is_shared_out(tmp_path: Path) -> None:
    file = tmp_path / "all.tsv"
    file.write_text("".join(f"s{n}\tt{n}\n" for n in range(1, 61)))
    assert text(file, "test") == "s20\tt20\ns40\tt40\ns60\tt60\n"
    assert text(file, "valid").startswith("s19\tt19\n")
    assert text(file, "train").count("\n") == 54


def test_lists_of_sentences_and_of_references(tmp_path: Path) -> None:
    """As SciTLDR has them: the sentences of a source are one text, the first reference counts."""
    rows = [{"source": ["One  is here.", "Two too."], "target": ["short", "other"]}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert text(tmp_path, "train", "source-target") == "One is here. Two too.\tshort\n"
    for split in ("train", "test"):
        found = text(tmp_path, split, "source-target", source_words=4)
        assert found == "One is here. Two\tshort\n"
    (tmp_path / "train.jsonl").write_text('{"source": ["a"], "target": []}\n')
    with pytest.raises(ParformerError, match="has no texts 'source' and 'target'"):
        text(tmp_path, "train", "source-target")


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    (tmp_path / "train.de").write_text("eins\n\neins zwei drei vier\neins zwei drei\n")
    (tmp_path / "train.en").write_text("one\ntwo\none\none two three\n")
    corpus = find_pairs(str(tmp_path), "de-en", Filters(longest=3))
    assert corpus.about == (
        "4 pairs de-en; left out of train: 1 with an empty side, 1 longer than 3 words"
    )
    assert corpus.left_out == 2
    uneven = find_pairs(str(tmp_path), "de-en", Filters(ratio=2.0))
    assert "1 more uneven than 2 to 1" in uneven.about


@pytest.mark.parametrize(
    ("files", "pair", "problem"),
    [
        ({"train.de": "a\nb\n", "train.en": "a\n"}, "de-en", "has 2 lines and .* has 1; line n"),
        ({"train.de": "a\n", "train.en": "a\n"}, "de-fr", r"has no pair de-fr: it needs train\.de"),
        ({"train.de": "a\n"}, "de", "a pair is two different names such as de-en, got 'de'"),
        ({"train.tsv": "a\tb\tc\n"}, "de-en", "line 1 of .* has 2 tabs; a pair is source, tab"),
        ({"train.jsonl": "{}\n"}, "de-en", "line 1 of .* has no texts 'de' and 'en'"),
        ({"train.jsonl": "{\n"}, "de-en", "line 1 of .* is not JSON"),
        ({"train.de": "\n", "train.en": "a\n"}, "de-en", "train of .* has no pairs left"),
        (
            {"train.tsv": "a\tb\n", "test.de": "a\n\n", "test.en": "a\nb\n"},
            "de-en",
            "1 pairs in test of .* have an empty side",
        ),
        (
            {"train.de": "a\n", "train.de.gz": "", "train.en": "a\n"},
            "de-en",
            "has two files for train: train.de and train.de.gz",
        ),
    ],
)
def test_what_is_no_pair_is_refused_in_a_line(
    tmp_path: Path, files: dict[str, str], pair: str, problem: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ParformerError, match=problem) as caught:
        find_pairs(str(tmp_path), pair, Filters())
    assert "\n" not in str(caught.value)


def test_a_place_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParformerError, match="there is no folder or file"):
        find_pairs(str(tmp_path / "no"), "de-en", Filters())


def test_tokens_of_lines_become_pairs_again() -> None:
    tokenizer = read_tokenizer('{"format": "parformer-tokenizer-1", "kind": "byte"}', "here")
    start, end = (vocabulary_of(tokenizer)[name] for name in ("start", "end"))
    found = pairs_in(np.array(tokenizer.encode("ab\tc\nd\tefg\n")), start, end)
    told = [tuple(tokenizer.decode(side.tolist()) for side in pair) for pair in found]
    assert told == [("ab", "c"), ("d", "efg")]


# Batches


def some_pairs(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 12, (count, 2))
    return [(np.full(s, 10 + n), np.full(t, 10 + n)) for n, (s, t) in enumerate(sizes)]


def test_every_pair_comes_once_in_an_epoch_and_batches_keep_their_tokens() -> None:
    pairs = some_pairs(50)
    batches = Paired(pairs, start=1, end=2, pad=0, tokens=60, seed=3)
    orders = []
    for epoch in range(2):
        seen: list[int] = []
        for place in range(batches.per_epoch):
            batch = batches.at(epoch * batches.per_epoch + place)
            tokens, source = batch.tokens_bt, batch.inputs["source"]
            assert tokens.shape[0] * max(tokens.shape[1], source.shape[1]) <= 60
            assert (tokens[:, 0] == 1).all()
            seen += source[:, 0].tolist()
        assert sorted(seen) == list(range(10, 60))
        orders.append(seen)
    assert orders[0] != orders[1]


def test_a_batch_depends_on_its_number_alone_and_rows_are_a_share_of_it() -> None:
    how = {"start": 1, "end": 2, "pad": 0, "tokens": 60, "batch": 4, "seed": 3}
    one, two = Paired(some_pairs(50), **how), Paired(some_pairs(50), **how)
    one.at(0)
    whole = one.at(7)
    assert torch.equal(whole.tokens_bt, two.at(7).tokens_bt)
    halves = [two.at(7, rows).tokens_bt for rows in (slice(0, 2), slice(2, 4))]
    assert torch.equal(torch.cat(halves), whole.tokens_bt)
    other = Paired(some_pairs(50), **how | {"seed": 4}).at(7)
    assert not torch.equal(other.targets, whole.targets)


def test_targets_are_the_tokens_one_place_on() -> None:
    batch = Paired([(np.array([7]), np.array([8, 9]))], start=1, end=2, pad=0, batch=1, seed=0).at(
        0
    )
    assert batch.inputs["source"].tolist() == [[7, 2]]
    assert (batch.tokens_bt.tolist(), batch.targets.tolist()) == ([[1, 8, 9]], [[8, 9, 2]])
    two = Paired(
        [(np.array([7]), np.array([8])), (np.array([7]), np.array([8, 9]))],
        start=1, end=2, pad=0, batch=2, seed=0,
    ).at(0)  # fmt: skip
    assert two.targets.tolist() == [[8, 2, IGNORE], [8, 9, 2]]
