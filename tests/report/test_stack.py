"""Drawings show every block, and nothing that a name smuggles in."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from parformer.pattern import ALPHABET, Pattern, par
from parformer.report.stack import COLOURS, draw, legend, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def test_every_letter_has_a_colour_of_its_own() -> None:
    assert set(COLOURS) == {*ALPHABET, "<", "{", "|"}
    assert len(set(COLOURS.values())) == len(COLOURS)


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("s", "s"),
        ("(sf)x2 f", "sfsff"),
        ("s[heads=2]f[inner=64]", "sf"),
        ("<sff>x2 i", "<sff><sff>i"),
        ("{sf}x3", "{sfsfsf}"),
        ("sf | {c<f>}x2", "sf|{c<f>c<f>}"),
    ],
)
def test_a_drawing_has_one_cell_per_block_that_runs(text: str, drawn: str) -> None:
    pattern = Pattern.parse(text)
    assert draw(pattern).plain.split() == list(drawn)
    assert len(draw(pattern).spans) == len(drawn)
    assert to_svg({"it": pattern}).count('width="150"') == len(drawn)


def test_the_legend_names_what_occurs_and_no_more() -> None:
    words = legend([par(12), Pattern.parse("i")]).plain
    assert "self-attention" in words
    assert "identity" in words
    assert "Synthesizer" not in words


def test_a_picture_has_one_box_per_block_from_bottom_to_top() -> None:
    root = ElementTree.fromstring(to_svg({"one": Pattern.parse("sffi"), "two": Pattern.parse("f")}))
    boxes = [box for box in root.iter(f"{SVG}rect") if box.get("width") == "150"]
    assert [box.get("fill") for box in boxes] == [COLOURS[letter] for letter in "sffif"]
    heights = [float(box.get("y", "")) for box in boxes]
    assert heights[:4] == sorted(heights[:4], reverse=True)
    assert heights[4] == heights[0]


def test_names_in_a_picture_are_escaped_and_nothing_is_loaded() -> None:
    picture = to_svg({"<script>alert(1)</script>": Pattern.parse("<sf>x2")})
    assert "<script" not in picture
    ElementTree.fromstring(picture)
    assert picture.count("http") == 1  # the namespace
