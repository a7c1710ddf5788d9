"""The verb `fit`: what it asks, refuses and prints."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from parformer.cli import main, make_parser
from parformer.cli.fit import EXAMPLES, read_request


def parse(*words: str) -> argparse.Namespace:
    return make_parser().parse_args(["fit", *words])


def test_the_options_become_what_is_asked() -> None:
    asked = read_request(
        parse("words.txt", "--limit", "latency=0.8x", "--limit", "memory=1MB", "--time", "1.5m",
              "--family", "llama", "--choices", "sf", "--margin", "0.02", "--seed", "4",
              "--tgt-len", "1", "--mem-len", "64", "--threads", "2", "--watts", "40")
    )  # fmt: skip
    assert (asked.corpus, asked.time) == ("words.txt", 90.0)
    assert (asked.family, asked.choices) == ("llama", "sf")
    assert asked.limits == ("latency=0.8x", "memory=1MB")
    assert (asked.margin, asked.seed, asked.tgt_len, asked.mem_len) == (0.02, 4, 1, 64)
    assert (asked.threads, asked.watts) == (2, 40.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a CORPUS"),
        (["nowhere.txt"], "nowhere.txt"),
        (["python-docs", "--time", "soon"], "'soon'"),
        (["python-docs", "--time", "5s"], "too short"),
        (["python-docs", "--limit", "speed=3"], "speed"),
        (["python-docs", "--limit", "latency=0x"], "latency=0x"),
        (["python-docs", "--choices", "f"], "lack 's'"),
        (["python-docs", "--family", "mamba"], "mamba"),
        (["python-docs", "--steps", "0"], "--steps"),
        (["python-docs", "--steps", "5", "--time", "5m"], "two lengths"),
        (["--run", "runs/none"], "no fit at"),
        (["--run", "runs/none", "--seed", "3"], "--seed belongs to a new fit"),
    ],
)
def test_misuse_gets_a_line_and_status_2(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *words]) == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "parformer fit:" in each]
    assert said in line


def test_what_is_refused_at_once_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "python-docs", "--limit", "speed=3", "--run", "r"]) == 2
    assert main(["fit", "--run", "s"]) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == []


def test_the_examples_can_be_parsed() -> None:
    for line in EXAMPLES.splitlines():
        command = (
            line.split("   ")[0] if not line.startswith("  ") else line.strip().split("   ")[0]
        )
        make_parser().parse_args(shlex.split(command)[1:])
