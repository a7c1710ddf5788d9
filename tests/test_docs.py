"""What the documents show is true: their examples run and their links lead somewhere.

Commands stand in fenced blocks. Those of `sh` blocks run here; those of `sh soak` blocks take
minutes, are parsed here, and run with `make soak`; those of blocks without a language may need
files of their reader's, or hours, and are parsed alone.
"""

from __future__ import annotations

import doctest
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from parformer.cli import main, make_parser
from parformer.evaluate import counting
from tests.fitting.office import few_sizes

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
LARGE = ("measure transformer-xl-base",)
"""Commands that build large models; their arguments are checked here."""
RUN, SOAK, PARSED = "sh", "sh soak", ""
"""What stands behind the three backticks."""


@pytest.fixture(autouse=True)
def little_work(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No example shows how well counting or the widest search does, which take seconds each."""
    if request.node.get_closest_marker("soak"):
        yield
        return
    whole = counting.references
    counted = {"most": 2**17}
    monkeypatch.setattr(counting, "references", lambda *text, **how: whole(*text, **how | counted))
    monkeypatch.setattr(counting, "XZ_TRAIN", 2**17)
    with few_sizes():
        yield


any_document = pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)


@any_document
def test_python_examples_give_what_they_show(document: Path) -> None:
    failed, _ = doctest.testfile(
        str(document), module_relative=False, encoding="utf-8", optionflags=doctest.ELLIPSIS
    )
    assert failed == 0


@any_document
def test_commands_run(
    document: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in commands(document.read_text("utf-8"), RUN):
        words, target = split_redirect(command)
        if command.removeprefix("parformer ").startswith(LARGE):
            make_parser().parse_args(words)
            continue
        assert main(words) == 0, command
        answer = capsys.readouterr().out
        if target:
            Path(target).write_text(answer)


@any_document
def test_commands_that_take_long_can_be_read(document: Path) -> None:
    for kind in (SOAK, PARSED):
        for command in commands(document.read_text("utf-8"), kind):
            words, _ = split_redirect(command)
            assert make_parser().parse_args(words).verb == words[0], command


@pytest.mark.soak
@any_document
def test_commands_that_take_long_run(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in commands(document.read_text("utf-8"), SOAK):
        assert main(split_redirect(command)[0]) == 0, command


@any_document
def test_links_to_files_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text("utf-8")):
        assert (document.parent / link).exists(), link


@any_document
def test_fenced_blocks_say_what_they_are(document: Path) -> None:
    """A misspelt kind would be neither run nor parsed."""
    kinds = {kind for kind, _ in fenced_blocks(document.read_text("utf-8"))}
    assert kinds <= {RUN, SOAK, PARSED, "python", "toml", "json"}


def test_commands_are_found_by_their_kind() -> None:
    text = (
        "```sh\nmake test\nparformer show  # all\n```\nparformer cost\n"
        "```sh soak\n$ ls\nparformer train pocket\n```\n"
        "```\nparformer fit 'a b' --time 1h   # long\n```\n"
    )
    assert commands(text, RUN) == ["parformer show"]
    assert commands(text, SOAK) == ["parformer train pocket"]
    assert commands(text, PARSED) == ["parformer fit 'a b' --time 1h"]
    assert split_redirect("parformer show pocket > my.toml") == (["show", "pocket"], "my.toml")


def commands(text: str, kind: str) -> list[str]:
    """The lines of blocks of this kind that call parformer, comments cut off."""
    lines = (line for found, inside in fenced_blocks(text) if found == kind for line in inside)
    cut = (re.split(r"\s#", line)[0].strip() for line in lines)
    return [line for line in cut if re.match(r"parformer [a-z]+( |$)", line)]


def fenced_blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """What stands behind the opening backticks, and the lines down to the closing ones."""
    kind, inside = None, []
    for line in text.splitlines():
        if not line.lstrip().startswith("```"):
            inside.append(line)
        elif kind is None:
            kind, inside = line.strip().removeprefix("```"), []
        else:
            yield kind, inside
            kind = None
    assert kind is None, "a block is not closed"


def split_redirect(command: str) -> tuple[list[str], str | None]:
    words = shlex.split(command)[1:]
    if ">" in words:
        return words[: words.index(">")], words[-1]
    return words, None
