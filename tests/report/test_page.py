"""A page holds all it needs, lets nothing in that could run, and reads well by day and night."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

from parformer.pattern import Pattern
from parformer.report.figures import axis, plot
from parformer.report.page import Html, Part, page, paragraph, strips, table, template
from parformer.report.stack import COLOURS

EVIL = "</script><script>alert('1')</script><img src=x onerror=alert(1)>\"&'"
LIGHT, DARK = json.loads(template("colours.json")).values()
MADE = SimpleNamespace(command="parformer search", date="2026-11-16", version="0.1.0")
UNPAIRED = {"meta", "img", "br"}


class Reader(HTMLParser):
    """What a browser would find in a page: tags, sentences, tables and figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in UNPAIRED:
            self.open.append(tag)
            self.texts.append((tag, ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.open:
            place = max(i for i, (tag, _) in enumerate(self.texts) if tag == self.open[-1])
            self.texts[place] = (self.open[-1], self.texts[place][1] + data)

    def all(self, tag: str) -> list[str]:
        return [" ".join(text.split()) for name, text in self.texts if name == tag]

    @property
    def scripts(self) -> list[str]:
        """Only what would run."""
        return [
            text
            for (_, attributes), text in zip(
                self._tags("script"), self._texts("script"), strict=True
            )
            if "type" not in attributes
        ]

    @property
    def plots(self) -> list[dict[str, Any]]:
        return [
            json.loads(text)
            for (_, attributes), text in zip(
                self._tags("script"), self._texts("script"), strict=True
            )
            if attributes.get("type") == "application/json"
        ]

    def _tags(self, name: str) -> list[tuple[str, dict[str, str | None]]]:
        return [tag for tag in self.tags if tag[0] == name]

    def _texts(self, name: str) -> list[str]:
        return [text for tag, text in self.texts if tag == name]


def small_plot(name: str = "line", y: Any = (1.0, 2.0)) -> dict[str, Any]:
    return plot([{"type": "scatter", "y": list(y), "name": name}], height=200, xaxis=axis("step"))


def small_page(**changes: Any) -> str:
    parts = [Part(small_plot(), "It rises."), Part(table(["", "b"], [("a", "1")]), "One row.")]
    given = {"title": "Title", "lead": [paragraph("Lead.")], "sections": [("Why?", parts)]}
    return page(**{**given, "made": MADE, **changes})


def test_the_page_asks_no_one_for_anything() -> None:
    read = Reader(small_page())
    for tag, attributes in read.tags:
        assert not {"src", "href", "srcset", "action", "data", "poster"} & set(attributes), tag
    (style,) = read.all("style")
    assert "url(" not in style
    assert "@import" not in style
    assert read.open == []
    painter = read.scripts[1]
    assert "http" not in painter
    policy = [a["content"] for t, a in read.tags if t == "meta" and "http-equiv" in a]
    assert "default-src 'none'" in (policy[0] or "")


def test_only_the_two_scripts_of_the_page_may_run() -> None:
    from plotly.offline import get_plotlyjs

    text = small_page(sections=[("Why?", [Part(small_plot(), "It rises.")] * 3)])
    read = Reader(text)
    assert len(read.plots) == 3
    library, painter = read.scripts
    assert library == get_plotlyjs()
    assert text.count("plotly.js v") == library.count("plotly.js v") == 1
    (policy,) = [a["content"] for t, a in read.tags if t == "meta" and "http-equiv" in a]
    allowed = (policy or "").partition("script-src ")[2].split()
    prints = [b64encode(sha256(s.encode()).digest()).decode() for s in (library, painter)]
    assert allowed == [f"'sha256-{print_}'" for print_ in prints]


def test_the_library_holds_nothing_that_would_end_its_script() -> None:
    from plotly.offline import get_plotlyjs

    library = get_plotlyjs()
    assert "</script" not in library.lower()
    assert "<!--" not in library
    assert "\r" not in library  # a browser would change it, and its fingerprint with it


def test_whatever_is_given_stays_text() -> None:
    made = SimpleNamespace(command=EVIL, date=EVIL, version=EVIL)
    lead = Html(paragraph(EVIL, "warning") + table([EVIL, EVIL], [(EVIL, EVIL)]))
    stacks = strips({EVIL: list(Pattern.parse("<sf>x2 s[heads=2]"))})
    parts = [Part(small_plot(EVIL), EVIL), Part(stacks, EVIL)]
    text = small_page(title=EVIL, lead=[lead], sections=[(EVIL, parts)], made=made)
    read = Reader(text)
    assert len(read.scripts) == 2
    assert not [tag for tag, _ in read.tags if tag == "img"]
    assert not [a for _, a in read.tags if any(name.startswith("on") for name in a)]
    assert read.all("title") == read.all("h1") == read.all("h2") == [EVIL]
    assert read.all("figcaption") == [EVIL, EVIL]
    assert EVIL in read.all("p")
    assert EVIL in read.all("td")
    assert read.all("code") == [EVIL]
    assert read.plots[0]["data"][0]["name"] == EVIL
    assert read.open == []


def test_every_figure_has_its_place_its_data_and_its_sentence() -> None:
    sections = [
        ("One", [Part(small_plot("a"), "First."), Part(small_plot("b"), "Second.")]),
        ("Two", [Part(small_plot("c"), "Third.")]),
    ]
    read = Reader(small_page(sections=sections))
    boxes = [a for t, a in read.tags if t == "div" and a.get("class") == "plot"]
    names = [box["id"] for box in boxes]
    assert len(set(names)) == 3
    data = [a["id"] for t, a in read.tags if t == "script" and "id" in a]
    assert data == [f"{name}-data" for name in names]
    assert [found["data"][0]["name"] for found in read.plots] == ["a", "b", "c"]
    assert read.all("figcaption") == ["First.", "Second.", "Third."]
    assert [box["aria-label"] for box in boxes] == ["First.", "Second.", "Third."]
    assert {box["style"] for box in boxes} == {"height:200px"}


def test_a_number_that_json_does_not_know_becomes_a_gap() -> None:
    values = [1.0, float("nan"), float("inf"), 2]
    text = small_page(sections=[("Why?", [Part(small_plot(y=values), "Gaps.")])])
    assert Reader(text).plots[0]["data"][0]["y"] == [1.0, None, None, 2]


def test_figures_are_such_as_plotly_knows_and_scroll_under_a_finger() -> None:
    from plotly.graph_objects import Figure

    found = small_plot()
    Figure(found)
    assert found["layout"]["dragmode"] is False
    assert found["layout"]["xaxis"]["fixedrange"] is True
    assert found["layout"]["paper_bgcolor"].endswith(",0)")


def test_how_it_was_made_is_at_the_foot() -> None:
    words = " ".join([*Reader(small_page()).all("footer"), *Reader(small_page()).all("code")])
    assert "0.1.0" in words
    assert "2026-11-16" in words
    assert "parformer search" in words


def test_a_strip_has_one_cell_per_block_in_order() -> None:
    read = Reader(strips({"one": list(Pattern.parse("sfi")), "two": list(Pattern.parse("ff"))}))
    cells = [a for t, a in read.tags if t == "span" and "title" in a]
    fills = [(cell["style"] or "").partition(";")[0] for cell in cells]
    assert fills == [f"background:{COLOURS[letter]}" for letter in "sfiff"]
    assert [text for text in read.all("span") if len(text) == 1] == list("sfiff")
    assert cells[0]["title"] == "1: self-attention s"
    assert {"self-attention", "feed-forward", "identity"} <= set(read.all("span"))
    assert "Synthesizer" not in read.all("span")


def test_a_note_stands_under_the_name_of_its_own_stack() -> None:
    stacks = {"one": list(Pattern.parse("sf")), "two": list(Pattern.parse("ff"))}
    text = strips(stacks, {"two": f"chosen {EVIL}"})
    assert Reader(text).all("small") == [f"chosen {EVIL}"]
    assert '<div class="name">two<small>chosen' in text
    assert "<small>" not in strips(stacks)


def test_a_table_tells_heads_names_and_what_belongs_to_the_row_above() -> None:
    read = Reader(table(["", "found"], [("time", "2 ms"), ("  interval", "1 – 3 ms")]))
    assert read.all("th") == ["", "found", "time", "interval"]
    assert read.all("td") == ["2 ms", "1 – 3 ms"]
    assert [a.get("class") for t, a in read.tags if t == "tr"] == [None, None, "more"]
    assert not Reader(table([], [("a", "b")])).all("thead")


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_stands_out_by_day_and_by_night(colours: dict[str, str]) -> None:
    for ground in ("page", "card", "alarm"):
        assert contrast(colours["ink"], colours[ground]) > 7
    for ground in ("page", "card"):
        assert contrast(colours["soft"], colours[ground]) > 4.5


def test_letters_stand_out_from_their_blocks() -> None:
    read = Reader(strips({"all": list(Pattern.parse("sfiraly <s>"))}))
    for _, attributes in read.tags:
        if "title" in attributes:
            ground, ink = (
                part.partition(":")[2] for part in (attributes["style"] or "").split(";")
            )
            assert contrast(ground, ink) > 3, attributes["title"]


def test_both_themes_name_the_same_colours_and_reach_the_figures() -> None:
    assert set(LIGHT) == set(DARK)
    text = small_page()
    (style,) = Reader(text).all("style")
    assert "prefers-color-scheme: dark" in style
    given = json.loads(unescape(text.partition('data-colours="')[2].partition('"')[0]))
    assert given == {"light": LIGHT, "dark": DARK}
    for colour in (*LIGHT.values(), *DARK.values()):
        assert colour in style


def test_plotly_waits_until_a_page_is_written() -> None:
    code = "import parformer.report.page, sys; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
