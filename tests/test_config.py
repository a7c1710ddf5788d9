"""Does a configuration check itself, and say what is wrong in one line?"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any, TypeVar

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from parformer.config import (
    FAMILIES,
    Cluster,
    ModelConfig,
    preset,
    preset_table,
    presets,
    read_model,
)
from parformer.errors import ConfigError, PatternError
from parformer.fields import parse_assignment
from parformer.pattern import Pattern
from tests.conftest import small_config

T = TypeVar("T")

FIELDS = [field.name for field in fields(ModelConfig)]


@pytest.mark.parametrize("name", presets())
def test_a_preset_loads_without_building_anything(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: nn.Module, *args: object, **more: object) -> None:
        raise AssertionError(f"{type(self).__name__} was built")

    monkeypatch.setattr(nn.Module, "__init__", refuse)
    config = preset(name)
    table = preset_table(name)
    assert config.pattern == Pattern.parse(table["model"]["pattern"])
    assert table["title"]
    assert table["source"]


@pytest.mark.parametrize("name", presets())
def test_a_preset_survives_plain_values_toml_and_json(name: str) -> None:
    config = preset(name)
    values = config.to_dict()
    assert set(values) == set(FIELDS) - {"encoder"}
    assert ModelConfig.from_dict(values) == config
    assert ModelConfig.from_dict(tomllib.loads(tomli_w.dumps(values))) == config
    assert ModelConfig.from_dict(json.loads(json.dumps(values))) == config


def test_an_extending_preset_says_only_what_differs() -> None:
    base, par = preset("transformer-xl-base"), preset("par-base")
    assert par == base.replaced(pattern="(sfff)x6 (f)x8")
    text8 = preset("par-24b-text8")
    assert (text8.vocab_size, text8.embedding, text8.cutoffs) == (27, "plain", ())
    assert (text8.d_model, text8.mem_len, text8.clamp_len) == (512, 2052, 820)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_fills_in_what_is_left_open(family: str) -> None:
    config = small_config(family)
    usual = FAMILIES[family]
    assert {name: getattr(config, name) for name in usual} == dict(usual)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_family_fills_in_stays_a_field(family: str) -> None:
    for name, value in FAMILIES[family].items():
        if isinstance(value, bool) and name != "causal":
            changes = {name: not value} | (
                {"trigrams": "none"} if name == "narrow_positions" else {}
            )
            assert getattr(small_config(family, **changes), name) is not value


def test_a_configuration_is_frozen() -> None:
    config = small_config("gpt2")
    with pytest.raises(FrozenInstanceError):
        config.d_model = 5  # type: ignore[misc]


def test_replacing_a_field_recomputes_what_follows_from_it() -> None:
    config = preset("transformer-xl-base", div_val=4)
    assert (config.head_width(8), config.embed_width) == (64, 512)
    assert [cluster.width for cluster in config.clusters] == [512, 128, 32, 8]
    wide = config.replaced(d_model=1024, vocab_size=300_000)
    assert (wide.head_width(8), wide.head_width(16), wide.embed_width) == (128, 64, 1024)
    assert wide.clusters == (
        Cluster(0, 19997, 1024),
        Cluster(19997, 39997, 256),
        Cluster(39997, 199997, 64),
        Cluster(199997, 300_000, 16),
    )
    assert sum(cluster.size for cluster in wide.clusters) == 300_000
    assert config.d_model == 512
    assert wide.replaced(d_model=512, vocab_size=267_735) == config


def test_replacing_the_family_changes_all_that_it_filled_in() -> None:
    config = preset("pocket", d_inner=100, activation="silu")
    other = config.replaced(family="gpt2", max_len=128)
    assert (other.positions, other.norm, other.final_norm) == ("learned", "pre", True)
    assert (other.d_inner, other.activation) == (100, "silu")
    assert config.replaced(family="transformer-xl") == config


@pytest.mark.parametrize(
    ("changes", "memory", "step_len"),
    [
        ({"family": "transformer-xl", "mem_len": 7, "tgt_len": 3}, 7, 3),
        ({"family": "transformer-xl"}, 0, 64),
        ({"family": "gpt2", "max_len": 20}, 20, 20),
        ({"family": "gpt2", "max_len": 20, "tgt_len": 5}, 20, 5),
        ({"family": "bert", "max_len": 20}, 0, 20),
        ({"family": "llama", "max_len": 0}, 2048, 2048),
        ({"family": "llama", "positions": "none", "mem_len": 9, "max_len": 0}, 9, 64),
    ],
)
def test_lengths_follow_from_positions(changes: dict[str, Any], memory: int, step_len: int) -> None:
    config = small_config(**changes)
    assert (config.memory, config.step_len) == (memory, step_len)


BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"family": "gpt3"}, "'gpt3'", ", ".join(map(repr, FAMILIES))),
    ({"family": ["gpt2"]}, "['gpt2']", "'gpt2'"),
    ({"family": None}, "None", "'gpt2'"),
    ({"d_modle": 8}, "'d_modle'", "did you mean 'd_model'"),
    ({"zzz": 8}, "'zzz'", f"there are {len(FIELDS)}"),
    ({3: 8}, "3", f"there are {len(FIELDS)}"),
    ({"d_model": "12"}, "'12'", "a whole number"),
    ({"d_model": 12.0}, "12.0", "a whole number"),
    ({"d_model": True}, "True", "a whole number"),
    ({"d_model": None}, "None", "a whole number"),
    ({"d_model": 0}, "0", "at least 1"),
    ({"vocab_size": -3}, "-3", "at least 1"),
    ({"vocab_size": 10**400}, "1329", "64 bits"),
    ({"n_head": 0}, "0", "at least 1"),
    ({"d_inner": 0}, "0", "at least 1"),
    ({"div_val": 0}, "0", "at least 1"),
    ({"d_head": -1}, "-1", "at least 0"),
    ({"n_kv_head": -1}, "-1", "at least 0"),
    ({"mem_len": -1}, "-1", "at least 0"),
    ({"token_types": -2}, "-2", "at least 0"),
    ({"clamp_len": -2}, "-2", "at least -1"),
    ({"dropout": 1.0}, "1.0", "0 to below 1"),
    ({"dropout": -0.1}, "-0.1", "0 to below 1"),
    ({"dropatt": 7}, "7.0", "0 to below 1"),
    ({"dropkernel": -0.5}, "-0.5", "0 to below 1"),
    ({"dropout": float("nan")}, "nan", "finite"),
    ({"dropout": 10**400}, "1329", "64 bits"),
    ({"dropout": "some"}, "'some'", "a number"),
    ({"norm_eps": 0.0}, "0.0", "positive"),
    ({"norm_eps": float("inf")}, "inf", "finite"),
    ({"rotary_base": -1}, "-1.0", "positive"),
    ({"init_std": -0.5}, "-0.5", "not be negative"),
    ({"norm": "both"}, "'both'", "'pre', 'post'"),
    ({"norm": 10**5000}, "16610", "64 bits"),
    ({"positions": ["relative"]}, "['relative']", "'learned', 'rotary'"),
    ({"activation": "tanh"}, "'tanh'", "'relu', 'gelu'"),
    ({"gated": 1}, "1", "true or false"),
    ({"gated": "yes"}, "'yes'", "true or false"),
    ({"cutoffs": 5}, "5", "a list"),
    ({"cutoffs": "5"}, "'5'", "a list"),
    ({"cutoffs": [1.5]}, "1.5", "a whole number"),
    ({"embedding": "adaptive", "cutoffs": [8, 4]}, "[8, 4]", "rise between 0 and vocab_size 13"),
    ({"embedding": "adaptive", "cutoffs": [4, 4]}, "[4, 4]", "rise between 0 and vocab_size 13"),
    ({"embedding": "adaptive", "cutoffs": [13]}, "[13]", "rise between 0 and vocab_size 13"),
    ({"embedding": "adaptive", "cutoffs": [0]}, "[0]", "rise between 0 and vocab_size 13"),
    ({"cutoffs": [4]}, "[4]", "embedding='adaptive'"),
    ({"div_val": 2}, "div_val 2", "embedding='adaptive'"),
    ({"embedding": "adaptive", "cutoffs": [4], "div_val": 13}, "div_val 13", "lower div_val"),
    ({"d_embed": 5}, "d_embed 5", "embedding='factorized'"),
    ({"n_head": 5}, "5 heads", "set d_head"),
    ({"n_head": 13}, "13 heads", "set d_head"),
    ({"n_head": 13, "round_heads": True}, "13 heads", "set d_head"),
    ({"max_len": 0}, "max_len 0", "set it, such as 1024"),
    ({"tgt_len": 65}, "tgt_len 65", "raise max_len"),
    ({"same_length": True}, "'learned'", "set mem_len"),
    ({"family": "transformer-xl", "same_length": True}, "mem_len 0", "set mem_len"),
    ({"pattern": "scf"}, "c in 'scf'", "encoder | decoder"),
    ({"pattern": "sf | scf", "family": "bert", "max_len": 9}, "must be causal", "causal=true"),
    ({"pattern": "cf | scf"}, "c in the encoder", "nothing to look at"),
    ({"encoder": {"d_inner": 3}}, "no encoder in 'sf'", "encoder | decoder"),
    ({"pattern": "s | c", "encoder": {"d_iner": 3}}, "'d_iner'", "'d_inner'"),
    ({"pattern": "s | c", "encoder": {"d_model": 8}}, "one embedding", "the same"),
    ({"pattern": "s | c", "encoder": {"n_head": 5}}, "5 heads", "d_head"),
    ({"encoder": 3}, "encoder must be a table", "got 3"),
    ({"family": "transformer-xl", "d_model": 9}, "9", "try 10"),
    ({"family": "bert", "embedding": "adaptive"}, "'adaptive'", "'plain' or 'factorized'"),
    ({"head": "masked"}, "masked", "causal=false"),
    ({"pattern": ""}, "''", "write at least one"),
    ({"pattern": "sz"}, "'z'", "known blocks"),
    ({"pattern": "(sf"}, "'(sf'", "close"),
    ({"pattern": 5}, "5", "give a text"),
    ({"pattern": "s[heads=2,heads=3]"}, "'heads'", "give each option once"),
]


@pytest.mark.parametrize(
    ("changes", "value", "way_out"),
    BAD_FIELDS,
    ids=[f"{', '.join(map(str, changes))}: {value}" for changes, value, _ in BAD_FIELDS],
)
def test_a_mistake_is_named_in_one_line_with_a_way_out(
    changes: dict[Any, Any], value: str, way_out: str
) -> None:
    good = {"family": "gpt2", "pattern": "sf", "vocab_size": 13, "d_model": 12, "n_head": 3}
    good |= {"d_inner": 20, "max_len": 64}
    with pytest.raises((PatternError, ConfigError)) as caught:
        ModelConfig.from_dict(good | changes)
    message = str(caught.value)
    assert "\n" not in message
    assert value in message
    assert way_out in message


@pytest.mark.parametrize("name", ["family", "pattern", "vocab_size", "d_model", "n_head"])
def test_what_is_missing_is_named(name: str) -> None:
    values = small_config("gpt2").to_dict()
    del values[name]
    with pytest.raises(ConfigError, match=f"missing field '{name}'; a model needs family"):
        ModelConfig.from_dict(values)


def test_unknown_names_are_refused_wherever_they_come_from() -> None:
    for change in (
        lambda: preset("pocket", d_modell=3),
        lambda: preset("pocket").replaced(d_modell=3),
        lambda: small_config("gpt2", d_modell=3),
    ):
        with pytest.raises(ConfigError, match="unknown field 'd_modell'; did you mean 'd_model'"):
            change()


@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("par-bas", "did you mean 'par-base'"),
        ("Pocket", "did you mean 'pocket'"),
        ("???", "the nearest are"),
        ("", "the nearest are"),
        ("../par-base", "did you mean 'par-base'"),
    ],
)
def test_an_unknown_preset_is_named_with_a_way_out(name: str, way_out: str) -> None:
    with pytest.raises(ConfigError) as caught:
        preset(name)
    assert str(caught.value).startswith(f"unknown preset {name!r}; ")
    assert way_out in str(caught.value)


whole = st.one_of(st.integers(-3, 40), st.integers(), st.just(10**400))
atoms = st.one_of(
    st.none(), st.booleans(), whole, st.floats(), st.text(max_size=5), st.binary(max_size=3)
)
values = st.one_of(
    atoms,
    st.lists(st.one_of(st.integers(0, 20), atoms), max_size=3),
    st.dictionaries(st.text(max_size=2), atoms, max_size=2),
    st.sampled_from(sorted({str(v) for usual in FAMILIES.values() for v in usual.values()})),
    st.sampled_from(["adaptive", "factorized", "plain", "all", "none", "per-layer", "(sf)x2 i"]),
)


def attempt_or_complaint(attempt: Callable[[], T]) -> tuple[T | None, str]:
    """What came out, or what was said against it; any other error is a bug."""
    try:
        return attempt(), ""
    except (ConfigError, PatternError) as error:
        return None, str(error)


@given(
    family=st.sampled_from(sorted(FAMILIES)),
    changes=st.dictionaries(st.sampled_from(FIELDS), values, min_size=1, max_size=3),
)
@settings(max_examples=600)
def test_any_values_give_a_configuration_or_a_sentence(
    family: str, changes: dict[str, Any]
) -> None:
    start = small_config(family)
    for attempt in (
        lambda: ModelConfig.from_dict(start.to_dict() | changes),
        lambda: start.replaced(**changes),
    ):
        config, complaint = attempt_or_complaint(attempt)
        if config is None:
            assert len(complaint.splitlines()) == 1
        else:
            plain = config.to_dict()
            assert ModelConfig.from_dict(plain) == config
            assert ModelConfig.from_dict(tomllib.loads(tomli_w.dumps(plain))) == config


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("d_model=256", "d_model", 256),
        (" d_model = 256 ", "d_model", 256),
        ("dropout=0.1", "dropout", 0.1),
        ("dropout=1e-3", "dropout", 1e-3),
        ("gated=true", "gated", True),
        ("norm=pre", "norm", "pre"),
        ('norm="pre"', "norm", "pre"),
        ("cutoffs=[10, 20]", "cutoffs", [10, 20]),
        ("pattern=(sf)x2", "pattern", "(sf)x2"),
        ("pattern=s[heads=2]f", "pattern", "s[heads=2]f"),
        ("d_model=", "d_model", ""),
        ("x=[1, 2", "x", "[1, 2"),
        ("x=" + "9" * 5000, "x", "9" * 5000),
        ("x=" + "[" * 5000, "x", "[" * 5000),
    ],
    ids=lambda value: str(value)[:30],
)
def test_assignments_read_as_toml_or_as_text(text: str, name: str, value: object) -> None:
    assert parse_assignment(text) == (name, value)


@pytest.mark.parametrize("text", ["", "d_model", "=5", "  =5"])
def test_what_assigns_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_assignment(text)
    assert str(caught.value) == (
        f"cannot read {text!r}; write it as field=value, such as d_model=256"
    )


@given(text=st.text(max_size=30), equals=st.booleans())
def test_any_assignment_gives_a_value_or_a_sentence(text: str, equals: bool) -> None:
    read, complaint = attempt_or_complaint(
        lambda: parse_assignment("x=" + text if equals else text)
    )
    if read is None:
        assert len(complaint.splitlines()) == 1
    else:
        assert read[0]


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "model.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_a_model_file_reads_back(tmp_path: Path) -> None:
    config = preset("par-large")
    path = write(tmp_path, tomli_w.dumps({"model": config.to_dict()}))
    assert read_model(path) == config
    assert read_model(path, dropout=0.5) == config.replaced(dropout=0.5)


def test_a_model_file_extends_a_preset(tmp_path: Path) -> None:
    path = write(tmp_path, 'extends = "par-base"\n[model]\nd_inner = 1024\n')
    assert read_model(path) == preset("par-base", d_inner=1024)
    assert read_model(path, d_inner=5) == preset("par-base", d_inner=5)


def test_a_model_file_that_changes_the_family_gets_all_of_it(tmp_path: Path) -> None:
    path = write(tmp_path, 'extends = "pocket"\n[model]\nfamily = "llama"\n')
    assert read_model(path) == preset("pocket", family="llama")
    assert read_model(path).positions == "rotary"


def test_a_name_without_toml_is_a_preset() -> None:
    assert read_model("par-base", d_inner=9) == preset("par-base", d_inner=9)
    with pytest.raises(ConfigError, match="unknown preset 'nothing'"):
        read_model("nothing")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("d_model: 5", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        ("x = " + "9" * 5000, "is not TOML"),
        ("x = " + "[" * 5000, "is not TOML"),
        ("", r"has no \[model\] table; 'parformer show' prints one"),
        ("model = 5", r"'model' in .* must be a table"),
        ("[model]\nfamily = 'gpt2'", "missing field 'pattern'"),
        (
            "extends = 'pocket'\n[trian]\nsteps = 3",
            "unknown table or name 'trian'; did you mean 'train'",
        ),
        ("extends = 'par-bse'\n[model]\n", "unknown preset 'par-bse'; did you mean 'par-base'"),
        ("extends = 3\n[model]\n", "unknown preset '3'"),
        ("extends = 'pocket'\n[model]\nd_modell = 3", "did you mean 'd_model'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_broken_model_file_is_named_in_one_line(
    tmp_path: Path, text: str | bytes, problem: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_model(path)
    assert "\n" not in str(caught.value)
    if "TOML" in problem or "table" in problem:
        assert repr(path) in str(caught.value)


@pytest.mark.parametrize("name", ["missing.toml", ".toml", "null\0byte.toml"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / ".toml").mkdir()
    path = str(tmp_path / name)
    with pytest.raises(ConfigError) as caught:
        read_model(path)
    assert repr(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_encoder_is_like_its_decoder_but_sees_both_sides() -> None:
    config = small_config("gpt2", pattern="sf | scf", encoder={"d_inner": 24})
    assert config.source is not None
    assert (config.source.causal, config.source.d_inner, config.source.n_head) == (False, 24, 3)
    assert str(config.source.pattern) == "sf"
    assert ModelConfig.from_dict(tomllib.loads(tomli_w.dumps(config.to_dict()))) == config
    assert hash(config) == hash(config.replaced())
    assert small_config("gpt2").source is None
