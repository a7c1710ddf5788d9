"""Do tables and pictures show every proxy, whatever it is called and whatever is unknown?"""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console, RenderableType

from parformer.report.rankings import figure, ranking_svg, sizes, stroke, summary, tops
from parformer.search.ranking.rankings import Ranking, rank_proxy

SVG = "{http://www.w3.org/2000/svg}"


def ranked(count: int = 40, seed: int = 0, *, latency: bool = False) -> Ranking:
    rng = np.random.default_rng(seed)
    size = rng.uniform(1e6, 4e7, count)
    truth = 60 - size / 1e6 + rng.normal(0, 6, count)
    proxy = size * rng.uniform(0.7, 1.3, count)
    return rank_proxy(truth, proxy, size=size, latency=size if latency else None)


def text_of(shown: RenderableType, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(shown)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    return str(written)


def test_tables_fit_a_terminal_and_say_what_was_found() -> None:
    first, second = ranked(), ranked(seed=1)
    group = {
        "decoder-parameters": replace(first, flops=0.0),
        "snip": replace(second, flops=2.5e10),
    }
    head = text_of(summary("first", group))
    assert "first, 40 models" in head
    for ranking in group.values():
        assert figure(ranking.spearman) in head
        assert " to ".join(map(figure, ranking.interval)) in head
    assert "none" in head
    assert "25.0 G" in head
    assert "front" not in head
    best = text_of(tops(group))
    assert best.count("SRC") == best.count("CR") == 2
    assert "…" not in best
    assert f"{group['snip'].top[0.5]:.2f}"[1:] in best
    assert f"{group['snip'].common[0.1]:.2f}"[1:] in best
    worst = rank_proxy(np.arange(40.0) + 1, np.arange(40.0))
    assert "…" not in text_of(tops({"decoder-parameters": worst}))
    assert "-1.0" in text_of(tops({"decoder-parameters": worst}))
    by_size = text_of(sizes(group))
    smallest = group["decoder-parameters"].bins[0]
    low, high = smallest.low / 1e6, smallest.high / 1e6
    assert f"{low:.1f}–{high:.1f} M" in by_size
    assert figure(group["snip"].bins[3].spearman, 2) in by_size


def test_the_distance_between_fronts_is_there_where_it_is_known() -> None:
    ranking = ranked(latency=True)
    assert ranking.distance is not None
    shown = text_of(summary("x", {"p": ranking}))
    assert "front off by" in shown
    assert f"{ranking.distance:.2%}" in shown


def test_what_is_unknown_is_a_dash() -> None:
    few = rank_proxy([3.0, 2.0, 1.0], [1.0, 1.0, 1.0], size=[1.0, 2.0, 3.0])
    assert math.isnan(few.spearman)
    for table in (summary("x", {"p": few}), tops({"p": few}), sizes({"p": few})):
        shown = text_of(table)
        assert "−" in shown
        assert "nan" not in shown
    ElementTree.fromstring(ranking_svg({"x": {"p": few}}))
    assert "nan" not in ranking_svg({"x": {"p": few}})


def test_a_picture_has_a_line_for_every_proxy_in_both_diagrams() -> None:
    group = {"decoder-parameters": ranked(), "snip": ranked(seed=1)}
    root = ElementTree.fromstring(ranking_svg({"one": group, "two": {"snip": ranked(seed=2)}}))
    lines = root.findall(f"{SVG}polyline")
    assert len(lines) == 2 * (2 + 1)
    assert len({line.get("stroke") for line in lines}) == 2
    words = [text.text for text in root.findall(f"{SVG}text")]
    assert words.count("snip") == 1
    assert any("one" in (word or "") for word in words)
    _, _, width, height = map(float, str(root.get("viewBox")).split())
    for line in lines:
        for x, y in (map(float, point.split(",")) for point in str(line.get("points")).split()):
            assert 0 < x < width
            assert 0 < y < height
    # a better correlation is higher up
    drawn = str(lines[0].get("points")).split()
    heights = [float(point.split(",")[1]) for point in drawn]
    values = list(group["decoder-parameters"].top.values())
    assert np.argmin(heights) == np.argmax(values)


def test_correlations_below_zero_stay_inside() -> None:
    rng = np.random.default_rng(0)
    bad = rank_proxy(np.arange(30.0) + 1, np.arange(30.0) + rng.normal(0, 1, 30))
    assert bad.spearman < -0.9
    root = ElementTree.fromstring(ranking_svg({"x": {"bad": bad}}))
    heights = [
        float(point.split(",")[1])
        for line in root.findall(f"{SVG}polyline")
        for point in str(line.get("points")).split()
    ]
    assert max(heights) < float(str(root.get("viewBox")).split()[3])
    assert "-1.0" in [text.text for text in root.findall(f"{SVG}text")]


@pytest.mark.parametrize("name", ["[red]x[/red]", "<b>&", "a\nb\x00c\x1b[31m", "x" * 500])
def test_strange_names_spoil_nothing(name: str) -> None:
    group = {name: ranked()}
    for table in (summary(name, group), tops(group), sizes(group)):
        shown = text_of(table, width=400)
        assert not re.search("[\x00-\x09\x0b-\x1f]", shown)
        if len(name) < 20 and name.isprintable():
            assert name in shown
    ElementTree.fromstring(ranking_svg({name: group}))


def test_many_proxies_can_be_told_apart() -> None:
    assert len({stroke(number) for number in range(27)}) == 27
