"""Do tables come in as they are, and is what is wrong with one told in a line?"""

from __future__ import annotations

import gzip
import json
import lzma
import shlex
from pathlib import Path

import pytest

from parformer.data.tables import read_examples, read_table
from parformer.errors import CorpusError, ParformerError
from parformer.fields import parse_assignment

ROWS = [(f'text {n}, "quoted"\nand on', str(n % 2)) for n in range(20)]


def as_csv() -> str:
    quoted = [f'"{text}",{label}'.replace('"quoted"', '""quoted""') for text, label in ROWS]
    return "text,label\r\n" + "".join(f"{line}\r\n" for line in quoted)


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "tsv"])
def test_all_kinds_of_tables_read_alike(kind: str, ending: str, tmp_path: Path) -> None:
    rows = ROWS if kind != "tsv" else [(text.replace("\n", " "), label) for text, label in ROWS]
    text = {
        "csv": as_csv(),
        "tsv": "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows),
        "jsonl": "".join(json.dumps({"text": t, "label": int(n)}) + "\n" for t, n in rows),
    }[kind]
    file = tmp_path / f"rows.{kind}{ending}"
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[ending]
    file.write_bytes(pack(b"\xef\xbb\xbf" + text.encode()))
    found = read_examples(str(file))
    assert {split: len(some) for split, some in found.items()} == {
        "train": 16, "valid": 2, "test": 2,
    }  # fmt: skip
    assert (found["train"][0].texts[0], found["train"][0].label) == rows[0]
    assert found["valid"][0].texts[0] == rows[8][0]
    assert found["test"][0].texts[0] == rows[9][0]


def test_a_folder_says_which_split_a_file_is(tmp_path: Path) -> None:
    for name, count in (("train.csv", 12), ("dev.csv", 3), ("test.csv.gz", 2)):
        text = "a,b,y\n" + "".join(f"one {n},two {n},{n % 2}\n" for n in range(count))
        data = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
        (tmp_path / name).write_bytes(data)
    found = read_examples(str(tmp_path), texts=("a", "b"), label="y")
    assert {split: len(some) for split, some in found.items()} == {
        "train": 12, "valid": 3, "test": 2,
    }  # fmt: skip
    assert found["valid"][1].texts == ("one 1", "two 1")
    (tmp_path / "dev.csv").unlink()
    found = read_examples(str(tmp_path), texts=("a", "b"), label="y")
    assert len(found["train"]) + len(found["valid"]) == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "text,stars\ngood,1\n",
            "has the columns text, stars; say which is the label with --label",
        ),
        ("body,label\ngood,1\n", "has the columns body, label; say which is the text with --text"),
        ("text;label\ngood;1\n", "has one column, 'text;label', and ';' in it"),
        ("text,label\ngood,1\n ,0\n", "line 3 of '.*' has an empty 'text'; fill it in"),
        ("text,label\ngood,\n", "line 2 of '.*' has no 'label'; fill it in"),
        ("text,label\ngood,fine,1\n", "line 2 of '.*' has 3 columns, the first line 2"),
        ("text,text,label\ngood,fine,1\n", "has two columns 'text'; give each a name of its own"),
        ("text,label\n", "has no rows below its first line"),
        ("", "is empty; its first line names the columns"),
    ],
)
def test_what_is_wrong_with_a_table_is_told_in_a_line(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(text)
    with pytest.raises(CorpusError, match=message) as refusal:
        read_examples(str(file))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_the_hint_at_another_delimiter_can_be_typed(sign: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(f"text{sign}label\ngood{sign}1\n")
    with pytest.raises(CorpusError) as refusal:
        list(read_table(file))
    words = shlex.split(str(refusal.value).partition("train with ")[2].partition(", or ")[0])
    assert words[0] == "--set"
    assert parse_assignment(words[1]) == ("data.delimiter", sign)


def test_columns_that_are_not_there_get_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("body,stars\ngood,1\n")
    with pytest.raises(CorpusError, match="no column 'star'; did you mean 'stars'"):
        read_examples(str(file), texts=("body",), label="star")


def test_another_encoding_is_named_with_its_byte(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes("text,label\ncafé,1\n".encode("latin-1"))
    with pytest.raises(
        CorpusError, match=r"byte 0xe9 at offset 14 of .* is no UTF-8; save the table"
    ):
        read_examples(str(file))


@pytest.mark.parametrize(
    ("name", "message"),
    [("rows.xlsx", "is no table"), ("none.csv", "there is no folder or file")],
)
def test_other_files_are_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    with pytest.raises(ParformerError, match=message):
        read_examples(str(tmp_path / name))


def test_a_delimiter_can_be_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text;label\nfine, really;1\n")
    assert [row for _, row in read_table(file, ";")] == [{"text": "fine, really", "label": "1"}]
