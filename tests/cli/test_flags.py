"""Do flags say what the request's fields say, and give back what was typed?"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from parformer.cli.flags import Flag, add_flags, given
from parformer.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked."""

    corpus: str = ""
    """A text, 100% of it."""
    run: Path | None = None
    """Where everything
    goes."""
    limits: tuple[str, ...] = ()
    """What it may cost."""
    time: float = 600.0
    """Seconds for everything."""
    seed: int = 0
    """Decides."""
    mode: Literal["soft", "hard"] = "soft"
    """How."""
    beside: bool = True
    """Count too."""
    secret: int = 0


def minutes(text: str) -> float:
    if not text.endswith("m"):
        raise ConfigError(f"cannot read the time {text!r}")
    return 60 * float(text[:-1])


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="x")
    special = {
        "corpus": Flag(name="CORPUS", metavar="CORPUS"),
        "limits": Flag(name="--limit", metavar="METRIC=AMOUNT", group="the budget"),
        "time": Flag(read=minutes, metavar="TIME", default="10m"),
        "secret": Flag(hidden=True),
    }
    add_flags(made, Request, special)
    return made


def test_only_what_was_typed_is_given() -> None:
    assert given(parser().parse_args([]), Request) == {}
    words = ["book", "--limit", "a=1", "--limit", "b=2", "--time", "2m", "--seed", "3"]
    more = ["--run", "runs/x", "--mode", "hard", "--no-beside"]
    assert given(parser().parse_args(words + more), Request) == {
        "corpus": "book",
        "limits": ("a=1", "b=2"),
        "time": 120.0,
        "seed": 3,
        "run": Path("runs/x"),
        "mode": "hard",
        "beside": False,
    }


def test_help_says_the_fields_own_sentences() -> None:
    told = " ".join(parser().format_help().split())
    assert "a text, 100% of it" in told
    assert "where everything goes" in told
    assert "seconds for everything (default 10m)" in told
    assert "how (default soft)" in told
    assert "the budget:" in told
    assert "secret" not in told


def test_an_error_of_ours_stays_as_it_is() -> None:
    with pytest.raises(ConfigError, match="cannot read the time '5'"):
        parser().parse_args(["--time", "5"])
