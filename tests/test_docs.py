"""What the documents show is true: their examples run and their links lead somewhere."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from parformer.cli import main, make_parser

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
LARGE = ("measure transformer-xl-base",)
"""Commands that build large models; their arguments are checked here, `make demo` runs them."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_python_examples_give_what_they_show(document: Path) -> None:
    failed, _ = doctest.testfile(
        str(document), module_relative=False, encoding="utf-8", optionflags=doctest.ELLIPSIS
    )
    assert failed == 0


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_commands_run(
    document: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in commands(document.read_text("utf-8")):
        words, target = split_redirect(command)
        if command.removeprefix("parformer ").startswith(LARGE):
            make_parser().parse_args(words)
            continue
        assert main(words) == 0, command
        answer = capsys.readouterr().out
        if target:
            Path(target).write_text(answer)


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text("utf-8")):
        assert (document.parent / link).exists(), link


def commands(text: str) -> list[str]:
    """The lines of `sh` blocks that call parformer, comments cut off."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = (line.split(" #")[0].strip() for block in blocks for line in block.splitlines())
    return [line for line in lines if line.startswith("parformer ")]


def split_redirect(command: str) -> tuple[list[str], str | None]:
    words = shlex.split(command)[1:]
    if ">" in words:
        return words[: words.index(">")], words[-1]
    return words, None
