"""Is a table of trained models read as it stands, and refused in one line where it cannot be?"""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

import pytest

from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.search.ranking import table
from parformer.search.ranking.proxies import draw_batch, scores
from parformer.search.ranking.table import (
    Trained,
    by_experiment,
    config_of,
    numbers,
    read_trained,
    score_trained,
)

HEAD = (
    "experiment,model,valid_ppl,params_nonembedding,params_total,cfg_n_layer,cfg_d_model,"
    "cfg_d_embed,cfg_div_val,cfg_n_head,cfg_d_inner,cfg_n_token,cfg_cutoffs"
)
GPT2_CUTS, XL_CUTS = "[19997, 39997, 199997, 50264]", "[19997, 39997, 199997, 267736]"
PUBLISHED = f"""{HEAD}
random_GPT2_wt103,a,36.05,2905104.0,20038634.0,4,256,512,2,"[4, 4, 8, 2]","[751, 935, 735, 1179]",50264,"{GPT2_CUTS}"
random_GPT2_wt103,b,33.27,6020286.0,18987800.0,7,256,256,1,"[2, 4, 2, 4, 2, 2, 8]","[1305, 528, 583, 1301, 1549, 1243, 1617]",50264,"{GPT2_CUTS}"
random_TransXL_wt103,a,40.12,2883141.0,23332736.0,6,128,256,2,"[4, 4, 4, 8, 4, 2]","[662, 2021, 1786, 1994, 1215, 1607]",267736,"{XL_CUTS}"
random_TransXL_wt103,b,57.00,1442589.0,10979428.0,8,64,256,4,"[8, 2, 8, 8, 4, 8, 4, 4]","[1016, 1795, 1529, 1868, 711, 1584, 727, 655]",267736,"{XL_CUTS}"
"""  # noqa: E501
"""Four models of the table that LiteTransformerSearch published."""


def small_row(experiment: str, name: str, *, width: int = 8, inner: str = "[16, 24]") -> str:
    return f'{experiment},{name},30,100,200,2,{width},4,2,"[2, 4]","{inner}",30,"[10, 20, 99]"'


def write(folder: Path, text: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, text: str | bytes) -> list[Trained]:
    return read_trained(write(folder, text))


def test_published_counts_are_ours(tmp_path: Path) -> None:
    for model in read(tmp_path, PUBLISHED):
        price = cost(config_of(model), tgt_len=1, mem_len=0)
        assert price.decoder_parameters == model.number("params_nonembedding")
        assert price.parameters == model.number("params_total")


def test_a_configuration_is_the_row_s(tmp_path: Path) -> None:
    text = f"{HEAD}\n{small_row('random_TransXL', 'a')}\n{small_row('my-gpt-2', 'b')}\n"
    xl, gpt = map(config_of, read(tmp_path, text))
    assert (xl.family, gpt.family) == ("transformer-xl", "gpt2")
    assert str(xl.pattern) == "s[heads=2]f[inner=16]s[heads=4]f[inner=24]"
    assert (xl.cutoffs, xl.vocab_size, xl.d_model, xl.d_embed, xl.div_val) == (
        (10, 20),
        30,
        8,
        4,
        2,
    )
    assert xl.position_bias == "per-layer"
    assert (gpt.max_len, gpt.output_bias, gpt.tgt_len) == (192, True, 192)


@pytest.mark.parametrize("name", ["table.csv.gz", "table.csv"])
def test_gzip_is_known_by_its_bytes(tmp_path: Path, name: str) -> None:
    plain = read(tmp_path, PUBLISHED)
    packed = read_trained(write(tmp_path, gzip.compress(PUBLISHED.encode()), name))
    assert [model.values for model in packed] == [model.values for model in plain]
    assert [model.line for model in plain] == [2, 3, 4, 5]
    assert numbers(plain, "valid_ppl") == [36.05, 33.27, 40.12, 57.0]


def test_names_and_experiments_may_be_missing(tmp_path: Path) -> None:
    models = read(tmp_path, "\ufeffvalid_ppl,x\r\n1,2\r\n\r\n1,3\r\n")
    assert [(m.experiment, m.name) for m in models] == [("all models", f"line {n}") for n in (2, 4)]


def test_experiments_are_kept_apart_and_sampled_by_the_seed(tmp_path: Path) -> None:
    text = "experiment,model,p\n" + "".join(f"{'ab'[i % 2]},{i},{i}\n" for i in range(20))
    models = read(tmp_path, text)
    groups = by_experiment(models, 3)
    assert {name: len(group) for name, group in groups.items()} == {"a": 10, "b": 10}
    assert [m.name for m in groups["a"]] == [str(i) for i in range(0, 20, 2)]
    some = by_experiment(models, 3, sample=4, seed=1)
    assert [len(group) for group in some.values()] == [4, 4]
    assert some == by_experiment(models, 3, sample=4, seed=1)
    assert some != by_experiment(models, 3, sample=4, seed=2)
    assert numbers(some["a"], "p") == sorted(numbers(some["a"], "p"))
    assert by_experiment(models, 3, sample=99) == groups
    with pytest.raises(ConfigError, match=r"experiment 'a' in .* has 2 models; a ranking needs 3"):
        by_experiment(models, 3, sample=2)


def bad(folder: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as error:
        read(folder, text)
    assert "\n" not in str(error.value)
    assert "table.csv" in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n", "is empty"),
        ("a,b\n", "names columns but has no models"),
        ("a,b\n\n\n", "names columns but has no models"),
        ("a,a\n1,2\n", "has two columns 'a'"),
        ("a,b\n1,2\n1\n", "line 3 of .* has 1 values for 2 columns"),
        ("a,b\n1,2,3\n", "line 2 of .* has 3 values for 2 columns"),
        ("model,b\nx,2\ny,2\nx,3\n", "line 4 of .* repeats line 2, model 'x'"),
        ("a,b\n1,2\n1,2\n", "line 3 of .* repeats line 2"),
        ('a,b\n"1,2\n', "is not CSV: unexpected end of data"),
        (b"a,b\n\xff\xfe,2\n", "is not CSV: .*decode"),
    ],
)
def test_a_strange_table_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert re.search(message, bad(tmp_path, text))


def test_the_same_name_may_occur_in_two_experiments(tmp_path: Path) -> None:
    assert len(read(tmp_path, "experiment,model\na,x\nb,x\n")) == 2


def test_what_was_damaged_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(PUBLISHED.encode())
    assert "is damaged" in bad(tmp_path, packed[: len(packed) // 2])
    assert "is damaged" in bad(tmp_path, packed[:5])
    assert "is damaged" in bad(tmp_path, packed[:-6] + bytes(6))
    middle = bytearray(packed)
    middle[12:40] = bytes(28)
    assert "is damaged" in bad(tmp_path, bytes(middle))


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    long = squeeze.compress(b"a" * 30_000_000) + squeeze.flush()
    assert len(long) < 60_000
    assert "line of more than 100,000 characters" in bad(tmp_path, long)
    monkeypatch.setattr(table, "MOST_BYTES", 1000)
    many = gzip.compress(b"a,b\n" + b"".join(b"%d,%d\n" % (i, i) for i in range(999)))
    assert "holds more than 1,000 characters" in bad(tmp_path, many)
    monkeypatch.setattr(table, "MOST_BYTES", 10**6)
    monkeypatch.setattr(table, "MOST_MODELS", 998)
    assert "more than 998 models" in bad(tmp_path, many)
    monkeypatch.setattr(table, "MOST_MODELS", 999)
    assert len(read(tmp_path, many)) == 999


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(ConfigError, match=r"^cannot read '.*': (No such file|Is a directory)"):
            read_trained(path)


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "1e999", "1,5"])
def test_a_value_that_is_no_number_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    models = read(tmp_path, f'model,p\na,1\nb,"{text}"\n')
    with pytest.raises(ConfigError, match=r"^p in line 3 of '.*' is no number: "):
        numbers(models, "p")
    with pytest.raises(ConfigError, match="has no column 'q'; it has 'model', 'p'"):
        numbers(models, "q")


def test_a_header_of_nonsense_is_told_in_one_line(tmp_path: Path) -> None:
    columns = ",".join(f'"x\n{i}{"y" * 500}"' for i in range(150))
    (model,) = read(tmp_path, f"{columns}\n{','.join(['1'] * 150)}\n")
    with pytest.raises(ConfigError) as error:
        model.number("p")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (small_row("BERT", "a"), "does not say its backbone: 'BERT' names neither"),
        (
            small_row("gpt2", "a", inner="[16]"),
            "cfg_d_inner in line 2 .* has 1 values for 2 layers",
        ),
        (small_row("gpt2", "a", inner="16"), "cfg_d_inner in line 2 .* a list of whole numbers"),
        (small_row("gpt2", "a", inner="[16, 2.5]"), "a list of whole numbers, got '\\[16, 2.5\\]'"),
        (small_row("gpt2", "a", inner="[16, true]"), "a list of whole numbers"),
        (small_row("gpt2", "a", inner="[" * 9000), "a list of whole numbers"),
        (small_row("gpt2", "a", inner="[16, 0]"), "line 2 of .*, 'gpt2': option 'inner'"),
        (small_row("gpt2", "a", width=0), "line 2 of .* is no model: d_model"),
        (small_row("gpt2", "a").replace(",30,", ",30.5,"), "must be a whole number, got 30.5"),
        (
            small_row("gpt2", "a").replace(",2,8", ",0,8"),
            "cfg_n_layer in line 2 .* 1 to 512, got 0",
        ),
        (small_row("gpt2", "a").replace(",2,8", ",1e9,8"), "cfg_n_layer .* 1 to 512, got 10+"),
    ],
)
def test_a_row_that_is_no_model_is_refused(tmp_path: Path, row: str, message: str) -> None:
    (model,) = read(tmp_path, f"{HEAD}\n{row}\n")
    with pytest.raises(ConfigError, match=message) as error:
        score_trained([model], ["decoder-parameters"], batch=1, tgt_len=2)
    assert "\n" not in str(error.value)


def test_a_column_may_name_the_family(tmp_path: Path) -> None:
    text = f"{HEAD},family\n{small_row('first', 'a')},Transformer-XL\n"
    assert config_of(read(tmp_path, text)[0]).family == "transformer-xl"


def test_models_are_built_and_scored_one_after_the_other(tmp_path: Path) -> None:
    rows = [small_row("TransXL", "a"), small_row("TransXL", "b", width=12)]
    models = read(tmp_path, "\n".join([HEAD, *rows]))
    heard: list[str] = []
    names = ["snip", "decoder-parameters"]
    found = score_trained(models, names, batch=2, tgt_len=5, seed=3, progress=heard.append)
    assert heard == ["a", "b"]
    for i, model in enumerate(models):
        config = config_of(model)
        drawn = draw_batch(config, batch=2, tgt_len=5, seed=3)
        wanted = scores(names, config, batch=drawn, seed=3)
        assert {name: values[i] for name, values in found.items()} == wanted


def test_a_score_that_is_not_defined_names_the_line(tmp_path: Path) -> None:
    (model,) = read(tmp_path, f"{HEAD}\n{small_row('gpt2', 'a')}\n")
    with pytest.raises(ConfigError, match=r"^line 2 of '.*', 'gpt2': relu-log-det needs"):
        score_trained([model], ["relu-log-det"], batch=1, tgt_len=2)
    with pytest.raises(ConfigError, match=r"^line 2 of '.*', 'gpt2': tgt_len 500 exceeds"):
        score_trained([model], ["snip"], batch=1, tgt_len=500)


def test_what_is_too_large_is_never_built(tmp_path: Path) -> None:
    (model,) = read(tmp_path, f"{HEAD}\n{small_row('gpt2', 'a', width=100_000_000)}\n")
    with pytest.raises(
        ConfigError, match=r"line 2 of '.*', 'gpt2': [\d,]+ parameters are too many"
    ):
        score_trained([model], ["snip"], batch=1, tgt_len=2)
