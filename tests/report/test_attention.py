"""Do maps of attention stand on pages that hold all they need and let nothing in?"""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

from rich.console import Console
from test_fit import values
from test_page import EVIL, Reader

from parformer.fitting.result import FitResult
from parformer.report.attention import attention_page, attention_table
from parformer.report.fit import fit_page
from tests.evaluate.test_attention import make, seen


def test_a_page_holds_all_and_lets_nothing_in() -> None:
    made = seen(make("sf y[random+vanilla,alpha]a"), text="ab")
    found = replace(made, tokens=(EVIL, "b"), model=EVIL, command=EVIL)
    page = attention_page(found)
    reader = Reader(page)
    assert not reader.open
    assert "alert" not in "".join(reader.scripts)
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    assert len(page) < 500_000, "plotly draws nothing here"
    data = [text for tag, text in reader.texts if tag == "script" and text.startswith("{")]
    drawn = [json.loads(text) for text in data]
    assert drawn[0]["tokens"] == [EVIL, "b"]
    assert [len(block["heads"]) for block in drawn[0]["blocks"]] == [4, 4, 1]
    assert [block["keys"] for block in drawn[1]["blocks"]] == ["places"]
    assert "What have the Synthesizers learned, whatever the text?" in reader.all("h2")


def test_the_page_of_a_fit_shows_what_its_model_looks_at() -> None:
    looks = replace(seen(make("sf"), text="ab"), tokens=(EVIL, "b"))
    for given, there in ((looks.to_dict(), True), (None, False)):
        reader = Reader(fit_page(FitResult.from_dict(values() | {"looks": given})))
        assert ("What does the model look at?" in reader.all("h2")) is there
        assert len(reader.scripts) == 2 + there
        assert "alert(1)" not in "".join(reader.scripts[2:])


def test_a_terminal_gets_a_summary() -> None:
    console = Console(width=80, record=True, file=StringIO())
    console.print(attention_table(seen(make("sf y[random+vanilla,alpha]a"), near=2)))
    text = console.export_text()
    assert "looks nearest" in text
    assert "alpha" in text
    assert "1 learned table" in text
