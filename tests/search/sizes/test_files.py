"""Are the built-in spaces what their sources say, and is a bad space refused in a line?"""

from __future__ import annotations

import tomllib
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parformer.config import preset, presets
from parformer.errors import ConfigError, ParformerError
from parformer.search.sizes.files import read_space_table, space_names
from parformer.search.sizes.ranges import Range
from parformer.search.sizes.space import SearchSpace, read_space

NAMES = space_names()


def ranges(space: SearchSpace) -> dict[str, list[int]]:
    """Every range of a space, by the name that LiteTransformerSearch gives it."""
    (attention,), (feed_forward,) = space.unit
    (heads,), (inner,) = attention.options, feed_forward.options
    assert (attention.kind, heads[0], feed_forward.kind, inner[0]) == (
        "s", "heads", "f", "inner",
    )  # fmt: skip
    found = {"layers": space.layers, "heads": heads[1], "inner": inner[1], **dict(space.fields)}
    return {name: list(r.values) for name, r in found.items()}


def test_the_space_of_the_text_is_section_3() -> None:
    space = read_space("lts")
    assert ranges(space) == {
        "layers": list(range(2, 17)),
        "heads": [2, 4, 8],
        "inner": list(range(256, 4097, 64)),
        "d_model": list(range(128, 1025, 64)),
        "d_embed": [128, 256, 512],
        "div_val": [1, 2, 4],
    }
    assert space.inner_ratio == 2.0
    assert not space.alike
    assert space.bounds == ()
    assert space.like == preset("lts-transformer-xl")


def test_the_space_as_run_is_what_the_released_code_draws_from() -> None:
    """Its tops are left out, and its factor is fixed."""
    space = read_space("lts-as-run")
    assert ranges(space) == {
        "layers": list(range(2, 17)),
        "heads": [2, 4, 8],
        "inner": list(range(128, 4096, 64)),
        "d_model": list(range(128, 1024, 64)),
    }
    assert space.inner_ratio == 1.7
    assert space.like.div_val == 4
    assert space.bounds == (("decoder_parameters", Range((4 * 10**6, 10**8), "4M..100M")),)
    other = read_space("lts-as-run", "lts-gpt2")
    assert other.like == preset("lts-gpt2")
    assert (other.recipe, space.recipe) == ("lts-gpt2", "lts-transformer-xl")
    assert other.bounds == (("decoder_parameters", Range((6 * 10**6, 10**8), "6M..100M")),)
    assert read_space("lts-as-run", "llama-pocket").bounds == ()


def test_the_homogeneous_space_is_appendix_d() -> None:
    space = read_space("lts-homogeneous")
    assert space.alike
    assert ranges(space) == ranges(read_space("lts"))
    assert space.name == "lts-homogeneous"
    assert "alike" in space.title


def test_the_space_beside_opt_is_appendix_h() -> None:
    space = read_space("opt-350m")
    assert ranges(space) == {
        "layers": list(range(3, 30)),
        "heads": [2, 4, 8, 16],
        "inner": list(range(512, 6081, 64)),
        "d_model": list(range(512, 1473, 64)),
    }
    assert space.inner_ratio == 0
    assert space.bounds == (("parameters", Range((3 * 10**8, 5 * 10**8), "300M..500M")),)
    like = space.like
    assert (like.family, like.vocab_size, like.max_len, like.embedding, like.embed_width) == (
        "gpt2", 50272, 2048, "plain", like.d_model,
    )  # fmt: skip


def test_every_file_is_a_space_with_a_title_and_a_source() -> None:
    folder = Path(__file__).parents[3] / "src" / "parformer" / "spaces"
    assert sorted(file.stem for file in folder.iterdir()) == list(NAMES)
    for name in NAMES:
        table, model = read_space_table(name)
        assert table["name"] == name
        assert table["title"]
        assert table["source"]
        assert table["like"] in presets()
        assert model == read_space(name).like


def test_only_spaces_that_say_so_mix_blocks() -> None:
    assert [name for name in NAMES if read_space(name).mixes] == ["pocket-mixed"]


GOOD: dict[str, Any] = {
    "name": "own",
    "like": "pocket",
    "layers": "1..3",
    "unit": ["s[heads=2|4]", "f[inner=64..256/64] | i"],
    "fields": {"d_model": "64|128"},
    "inner_ratio": 1.0,
    "alike": False,
    "bounds": {"decoder_parameters": "1k..10M"},
}


def test_a_table_by_hand_is_a_space() -> None:
    space = read_space(GOOD)
    assert (space.name, space.widths, space.recipe) == ("own", (64, 128), "pocket")
    assert read_space(space.to_dict()) == space
    assert read_space({k: v for k, v in GOOD.items() if k != "name"}).name == "unnamed"


def test_without_a_width_the_model_gives_it() -> None:
    space = read_space({k: v for k, v in GOOD.items() if k != "fields"})
    assert space.fields == (("d_model", Range((128,), "128")),)
    assert read_space(space.to_dict()) == space


def test_a_model_table_changes_the_model_or_is_one() -> None:
    changed = read_space(GOOD | {"model": {"n_head": 2, "vocab_size": 100}})
    assert changed.like == preset("pocket", n_head=2, vocab_size=100)
    own = {k: v for k, v in GOOD.items() if k != "like"}
    whole = read_space(own | {"model": preset("gpt2-pocket").to_dict()})
    assert whole.like == preset("gpt2-pocket")
    assert whole.recipe == ""
    assert read_space(GOOD | {"model": {"n_head": 2}}, "gpt2-pocket").like == preset("gpt2-pocket")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"layer": 3}, "unknown name in space 'own' 'layer'; did you mean 'layers'"),
    ({"layers": None}, "must be a text or a whole number"),
    ({"layers": "0..3"}, "layers must lie between 1 and 128, got 0..3"),
    ({"layers": "1..129"}, "layers must lie between 1 and 128"),
    ({"layers": "1..99999"}, "layers must lie between 1 and 128"),
    ({"layers": "3..1"}, "holds no value"),
    ({"layers": "1..3/0"}, "holds no value"),
    ({"layers": "many"}, "layers must be whole numbers, got 'many'"),
    ({"layers": "1|many"}, "layers must be whole numbers"),
    ({"layers": 2.5}, "must be a text or a whole number"),
    ({"layers": 16**4000}, "must be a text or a whole number"),
    ({"unit": "s"}, "unit of space 'own' must be a list"),
    ({"unit": {}}, "unit of space 'own' must be a list"),
    ({"unit": []}, "the unit is empty"),
    ({"unit": [""]}, "unknown block ''"),
    ({"unit": [3]}, "3 is no block"),
    ({"unit": [["s"]]}, "is no block"),
    ({"unit": ["z"]}, "unknown block 'z'"),
    ({"unit": ["s[width=4]"]}, "unknown option 'width'"),
    ({"unit": ["s[heads=3]"]}, "3 heads do not divide d_model 64"),
    ({"unit": ["s[heads=2|3|4]"]}, "3 heads do not divide d_model 64"),
    ({"unit": ["s[heads=128]"]}, "128 heads do not fit into d_model 64"),
    ({"unit": ["s[heads=4,kv_heads=1|3]"]}, "3 key-value heads do not divide 4"),
    ({"unit": ["s[heads=2,head=8]"]}, "cannot share position biases"),
    ({"unit": ["a[heads=7]"]}, "7 heads do not divide the width"),
    ({"unit": ["r[norm=sideways]"]}, "norm in .* must be one of"),
    ({"unit": ["r[full,width=4]"]}, "no projection"),
    ({"unit": ["f[inner=32]"]}, "no inner of 'f.inner=32.' is at least 1 times d_model 128"),
    ({"unit": ["f[inner=64..96/32]"]}, "is at least 1 times d_model 128"),
    ({"unit": ["s | s"]}, "'s' and 's' overlap; give each block once"),
    ({"unit": ["s[heads=2|4] | s[heads=4|8]"]}, "overlap"),
    ({"unit": [" | ".join(f"f[inner={i}]" for i in range(128, 200))]}, "72 blocks for one"),
    ({"unit": ["s"] * 2000}, "6,000 blocks are too many"),
    ({"unit": ["s[heads=1..4096]"], "fields": {"d_model": "64..1k/2"}}, "larger steps"),
    ({"fields": []}, "fields of space 'own' must be a table"),
    ({"fields": {"n_head": "2|4"}}, "unknown field of a space 'n_head'"),
    ({"fields": {"d_model": "wide"}}, "d_model must be whole numbers"),
    ({"fields": {"d_model": "0..64/64"}}, "d_model must be at least 1, got 0"),
    ({"fields": {"d_model": "63|64"}}, "even d_model|divide d_model 63"),
    ({"fields": {"d_model": "64..66"}}, "even d_model|divide d_model"),
    ({"fields": {"d_model": {"low": 64}}}, "must be a text or a whole number"),
    ({"fields": {"d_model": "999999999999999G"}, "unit": ["s"]}, "64 bits"),
    ({"fields": {"d_model": "64", "d_embed": "32"}}, "plain embedding"),
    ({"fields": {"d_model": "64|128", "d_embed": "0|64"}}, "plain embedding"),
    ({"fields": {"d_model": "64", "div_val": "1|2"}}, "div_val 2 belong to"),
    ({"fields": {"d_model": "64..8192/64", "div_val": "1..64"}}, "larger steps"),
    ({"inner_ratio": -1}, "inner_ratio of space 'own' must be from 0 to 1000, got -1"),
    ({"inner_ratio": 1e9}, "from 0 to 1000"),
    ({"inner_ratio": float("nan")}, "finite"),
    ({"inner_ratio": 10**400}, "64 bits"),
    ({"inner_ratio": "2"}, "must be a number"),
    ({"inner_ratio": True}, "must be a number"),
    ({"alike": "false"}, "alike of space 'own' must be true or false"),
    ({"title": 3}, "title of space 'own' must be a text"),
    ({"name": 3}, "name of space 3 must be a text"),
    ({"like": 3}, "like of space 'own' must be a text"),
    ({"like": "pokcet"}, "unknown preset 'pokcet'; did you mean 'pocket'"),
    ({"like": "nowhere.toml"}, "cannot read 'nowhere.toml'"),
    ({"model": "pocket"}, "model of space 'own' must be a table"),
    ({"model": {"source": "x"}}, "unknown field of the model of space 'own' 'source'"),
    ({"model": {"d_modle": 3}}, "did you mean 'd_model'"),
    ({"model": {"n_head": 0}}, "n_head must be at least 1"),
    ({"model": {"family": "gpt2"}}, "missing field"),
    ({"bounds": 4}, "bounds of space 'own' must be a table"),
    ({"bounds": {"flops": "1..2"}}, "unknown bound of a space 'flops'"),
    ({"bounds": {"parameters": "few"}}, "parameters must be whole numbers"),
    ({"bounds": {"gpt3": {"parameters": "1..2"}}}, "unknown family in the bounds"),
    ({"bounds": {"gpt2": {}, "transformer-xl": 3}}, "bounds.transformer-xl of space 'own'"),
    ({"bounds": {"gpt2": {}, "parameters": "1..2"}}, "unknown family in the bounds"),
    ({"extends": "own"}, "unknown space 'own'"),
    ({"extends": 3}, "unknown space '3'"),
]


@pytest.mark.parametrize(("changes", "problem"), BAD, ids=range(len(BAD)))
def test_a_bad_space_is_refused_in_a_line(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParformerError, match=problem) as refusal:
        read_space(GOOD | changes)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize("name", ["layers", "unit", "like"])
def test_what_a_space_cannot_do_without_is_asked_for(name: str) -> None:
    with pytest.raises(ConfigError, match=f"space 'own' (has no {name}|does not say which model)"):
        read_space({k: v for k, v in GOOD.items() if k != name})


def test_a_space_for_another_kind_of_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"space 'lts': .* got 'plain'"):
        read_space("lts", "pocket")
    with pytest.raises(ConfigError, match="space 'own': a recurrence"):
        read_space(GOOD | {"unit": ["r"]}, "bert-pocket")


def test_blocks_that_only_some_positions_allow_are_looked_at() -> None:
    model = {"positions": "none", "same_length": True, "mem_len": 8, "pattern": "a"}
    table = GOOD | {"like": "srupp-pocket", "model": model, "fields": {}}
    read_space(table | {"unit": ["a"]})
    with pytest.raises(ConfigError, match="same_length without positions"):
        read_space(table | {"unit": ["a", "s"]})


def write(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    return str(path)


OWN = """
like = "pocket"
layers = 2
unit = ["s", "f[inner=64|128]"]
"""


def test_a_file_is_a_space_with_its_own_name(tmp_path: Path) -> None:
    space = read_space(write(tmp_path / "mine.toml", OWN))
    assert (space.name, space.layers.values, space.size) == ("mine", (2,), 4)
    named = read_space(write(tmp_path / "other.toml", 'name = "lts"' + OWN))
    assert named.name == "other"


def test_a_space_may_extend_another(tmp_path: Path) -> None:
    parent = write(tmp_path / "parent.toml", OWN + '[model]\nn_head = 2\n[fields]\nd_model = "64"')
    child = f'extends = "{parent}"\nlayers = 3\nmodel.vocab_size = 99\nfields.div_val = "1"\n'
    space = read_space(write(tmp_path / "child.toml", child))
    assert space.name == "child"
    assert space.layers.values == (3,)
    assert (space.like.n_head, space.like.vocab_size) == (2, 99)
    assert {name: r.values for name, r in space.fields} == {"d_model": (64,), "div_val": (1,)}
    assert space == read_space(tomllib.loads(child) | {"name": "child"})
    grandchild = read_space(
        write(tmp_path / "lts.toml", f'extends = "{tmp_path / "child.toml"}"\nalike = true')
    )
    assert (grandchild.name, grandchild.alike, grandchild.fields) == ("lts", True, space.fields)
    same_name = read_space(write(tmp_path / "lts.toml", 'extends = "lts"\nlayers = 2'))
    assert (same_name.name, same_name.layers.values) == ("lts", (2,))


def test_a_circle_of_spaces_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    with pytest.raises(ConfigError, match=r"one.toml' extends itself"):
        read_space(write(one, f'extends = "{one}"'))
    write(two, f'extends = "{one}"')
    with pytest.raises(ConfigError, match=r"one.toml' extends itself, by way of .*two.toml"):
        read_space(write(one, f'extends = "{two}"'))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"layers = ", "is not TOML"),
        (b"\xff\xfe", "cannot read"),
        (b"x = " + b"[" * 5000, "is not TOML"),
        (b"layers = 0x" + b"f" * 4000, "has no unit"),
        (b"", "has no layers"),
        (b'extends = "ltss"', "unknown space 'ltss'; did you mean 'lts'"),
    ],
    ids=range(6),
)
def test_a_file_that_is_no_space_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        read_space(str(path))


@pytest.mark.parametrize("source", ["", "ltss", "nowhere.toml", "\0.toml", "x" * 5000, ".toml"])
def test_a_name_that_nobody_knows_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown space|cannot read"):
        read_space(source)


VALUES: list[Any] = [
    None, True, 0, -1, 3, 2.5, 1e308, float("nan"), 10**30, "", "s", "f[inner=64|128]", "2|4",
    "1..3", "3..1", "1..9/0", "x" * 200, "\n", "lts", "i | s", [], ["s"], ["s", 3], [[]], {},
    {"d_model": "64..128/32"}, {"d_model": 7}, {"decoder_parameters": "1..9M"}, {"gpt2": {}},
    {"family": "gpt2"}, {"n_head": 2}, {"": ""},
]  # fmt: skip
WORDS = [
    *"sfira[]|,=/027",
    "..",
    "heads",
    "inner",
    "norm",
    "full",
    "width",
    "64",
    "1k",
    "pre",
    "off",
]


def test_thousands_of_strange_spaces_are_read_or_refused() -> None:
    rng, read = Random(5), 0
    for number in range(2_500):
        table = deepcopy(GOOD)
        for _ in range(rng.randint(1, 2)):
            if number % 2:
                place = rng.choice([*GOOD, "model", "extends", "title", "other"])
                table[place] = rng.choice(VALUES)
            else:
                table["unit"] = ["".join(rng.choices(WORDS, k=rng.randint(1, 6)))]
        try:
            space = read_space(table)
            assert read_space(space.to_dict()) == space
            space.config(space.draw(rng))
            read += 1
        except ParformerError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 1000
    assert read > 100
