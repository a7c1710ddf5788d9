"""Are memories of n-grams searched, priced in bytes and picked?"""

from __future__ import annotations

from pathlib import Path

import pytest

from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.recipe import read_recipe
from parformer.search.sizes.evolution import Plan
from parformer.search.sizes.objectives import Grading
from parformer.search.sizes.picking import pick
from parformer.search.sizes.space import read_space
from parformer.search.sizes.summarise import summarise
from tests.search.sizes.test_job import TINY, FakeMeter, search, wish

ROWS = (16, 64, 256)
MEMORY = TINY | {"unit": ["n[rows=16|64|256,to=3]", "f[inner=32]"], "layers": 1}


def test_rows_are_searched_priced_and_picked(tmp_path: Path) -> None:
    """They have bytes and take no time, so only a training tells what they are worth."""
    space = read_space(MEMORY | {"fields": {"d_model": 16}})
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 200)
    grading = Grading(proxy="short-training", recipe="pocket", corpus=str(text), steps=4, share=0.5)
    names = ("quality", "parameters", "memory")
    asked = wish(space=space, grading=grading, objectives=names, plan=Plan.sized(6, 1))
    ended = search(tmp_path / "run", asked)
    sizes = {space.config(one.genome).pattern[0].options["rows"]: one for one in ended.candidates}
    assert sorted(sizes) == list(ROWS)
    plain = cost(space.like.replaced(d_model=16, pattern="f[inner=32]")).parameters
    own = 2 * 2 + 2 * 16  # the gates of two orders, and a norm
    for rows, one in sizes.items():
        assert one.figures["parameters"] == plain + own + 2 * rows * 4  # a quarter of the width
        assert one.figures["memory"] >= 4 * one.figures["parameters"]
    summarise(ended, meter=FakeMeter()).save(tmp_path / "run")
    most = sizes[64].figures["parameters"]
    picked = pick(run=str(tmp_path / "run"), limits=(f"parameters={most:.0f}",))
    assert picked.pattern[0].options["rows"] in ROWS[:2]
    assert read_recipe(str(picked.config_file)).model.pattern == picked.pattern


def test_parameters_do_not_rank_rows_that_are_looked_up() -> None:
    for space in (MEMORY, "pocket-memory"):
        with pytest.raises(ConfigError, match=r"takes the rows of n for weights.*short-training"):
            wish(space=read_space(space))
    wish(space=read_space(MEMORY | {"unit": ["n[rows=64]", "f[inner=32|64]"]}))
    wish(space=read_space(MEMORY | {"unit": ["n", "f[inner=32|64]"]}))


def test_the_shipped_space_has_tables_of_three_sizes() -> None:
    space = read_space("pocket-memory")
    small = space.config(space.smallest())
    assert small.pattern.letters == "nrfsf"
    assert small.pattern[0].options["rows"] == 4096
    large = small.replaced(pattern=str(small.pattern).replace("rows=4096", "rows=65536"))
    more = 3 * (65_536 - 4096) * small.d_model // 4  # of three orders
    assert cost(large).size - cost(small).size == 4 * more
    assert cost(large).flops == cost(small).flops
