"""Does `parformer proxies` judge a table, and answer bad ones in one line?"""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from parformer.cli import main
from parformer.search.ranking.proxies import PROXIES
from parformer.search.ranking.rankings import common_ratio, front_distance, spearman

HEAD = (
    "experiment,model,valid_ppl,test_ppl,params_nonembedding,params_total,latency,cfg_n_layer,"
    "cfg_d_model,cfg_d_embed,cfg_div_val,cfg_n_head,cfg_d_inner,cfg_n_token,cfg_cutoffs"
)
SIZES = (8, 12, 16, 20, 24, 28, 32, 40)


def make_rows(experiment: str, seed: int) -> list[dict[str, Any]]:
    """Small models, the larger of them the better, with some noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for i, width in enumerate(SIZES):
        inner = [int(n) for n in rng.integers(2, 5, 2) * width]
        rows.append(
            {
                "experiment": experiment,
                "model": f"m{i}",
                "valid_ppl": 60 - width + rng.normal(0, 6),
                "test_ppl": 60 + width,
                "params_nonembedding": float(width**2 * 8),
                "params_total": float(width * 100 + rng.integers(0, 3000)),
                "latency": width / 10 + rng.uniform(0, 1),
                "cfg_n_layer": 2,
                "cfg_d_model": width,
                "cfg_d_embed": 8,
                "cfg_div_val": 2,
                "cfg_n_head": "[2, 4]",
                "cfg_d_inner": str(inner),
                "cfg_n_token": 50,
                "cfg_cutoffs": "[20, 30, 99]",
            }
        )
    return rows


ROWS = make_rows("random_GPT2", 0) + make_rows("random_TransXL", 1)


def written(rows: list[dict[str, Any]], without: tuple[str, ...] = ()) -> str:
    columns = [name for name in HEAD.split(",") if name not in without]
    lines = [",".join(f'"{row[name]}"' for name in columns) for row in rows]
    return "\n".join([",".join(columns), *lines]) + "\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "trained.csv"
    path.write_text(written(ROWS))
    return path


def do(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    try:
        status = main(["proxies", *map(str, words)])
    except SystemExit as leaving:
        assert isinstance(leaving.code, int)
        status = leaving.code
    said = capsys.readouterr()
    return status, said.out, said.err


def found(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    status, out, err = do(capsys, *words, "--json")
    assert status == 0, err
    answer = json.loads(out)["experiments"]
    assert isinstance(answer, dict)
    return answer


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    status, out, err = do(capsys, *words)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("parformer proxies: ")
    return line


def column(experiment: str, name: str) -> list[float]:
    return [float(row[name]) for row in ROWS if row["experiment"] == experiment]


def test_every_experiment_and_proxy_is_judged(table: Path, capsys: Any) -> None:
    answer = found(capsys, table)
    assert list(answer) == ["random_GPT2", "random_TransXL"]
    for experiment, group in answer.items():
        assert list(group) == ["decoder-parameters", "parameters"]
        truth = np.array(column(experiment, "valid_ppl"))
        for name, title in (
            ("decoder-parameters", "params_nonembedding"),
            ("parameters", "params_total"),
        ):
            proxy, one = column(experiment, title), group[name]
            assert one["models"] == 8
            assert one["spearman"] == spearman(-truth, proxy)
            assert one["interval"][0] <= one["spearman"] <= one["interval"][1]
            assert one["common"]["0.5"] == common_ratio(truth, proxy, 0.5)
            assert list(one["top"]) == list(one["common"]) == [f"{i / 10:g}" for i in range(1, 11)]
            assert one["top"]["1"] == one["spearman"]
            assert one["top"]["0.1"] is None
            latency = column(experiment, "latency")
            assert one["front_distance"] == front_distance(truth, latency, proxy)
            assert [part["models"] for part in one["bins"]] == [2, 2, 2, 2]
            assert one["bins"][0]["low"] == 8**3
            assert one["bins"][0]["spearman"] is None
            assert one["flops"] == 0
        assert group["decoder-parameters"]["spearman"] > 0.5


def test_people_see_tables(table: Path, capsys: Any) -> None:
    status, out, _ = do(capsys, table)
    assert status == 0
    assert "random_TransXL, 8 models" in out
    assert "among models of one size" in out
    assert "front off by" in out
    assert "rank correlation with valid_ppl" in out


def test_columns_are_chosen(table: Path, capsys: Any) -> None:
    answer = found(capsys, table, "--proxy", "parameters, cfg_d_model", "--truth", "test_ppl")
    group = answer["random_GPT2"]
    assert list(group) == ["parameters", "cfg_d_model"]
    assert group["cfg_d_model"]["spearman"] == -1  # test_ppl grows with the width here
    assert group["cfg_d_model"]["flops"] is None
    assert [part["models"] for part in group["cfg_d_model"]["bins"]] == [2, 2, 2, 2]
    other = found(capsys, table, "--latency", "cfg_d_model")["random_GPT2"]["parameters"]
    truth, width = column("random_GPT2", "valid_ppl"), column("random_GPT2", "cfg_d_model")
    totals = column("random_GPT2", "params_total")
    assert other["front_distance"] == front_distance(truth, width, totals)


def test_less_is_said_of_a_table_with_less(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "less.csv"
    path.write_text(written(ROWS[:8], without=("latency", "params_nonembedding", "experiment")))
    answer = found(capsys, path, "--proxy", "parameters")
    (group,) = answer.values()
    assert group["parameters"]["front_distance"] is None
    assert group["parameters"]["bins"] == []
    status, out, _ = do(capsys, path, "--proxy", "parameters")
    assert status == 0
    assert "front" not in out
    assert "Sizes" not in out


def test_scores_are_computed_for_both_backbones(table: Path, capsys: Any) -> None:
    words = ("--score", "snip,jacob-cov,decoder-parameters", "--batch", 2, "--tgt-len", 6)
    answer = found(capsys, table, *words)
    for group in answer.values():
        assert list(group) == ["parameters", "snip", "jacob-cov", "decoder-parameters"]
        assert group["snip"]["flops"] == group["jacob-cov"]["flops"] > 0
        # the true counts, not the table's column
        assert group["decoder-parameters"]["bins"][0]["low"] != 8**3
        # and they grow with the width, as good models do in this table
        assert group["decoder-parameters"]["spearman"] > 0.5
    one = found(capsys, table, *words, "--seed", 1, "--sample", 6, "--experiment", "random_GPT2")
    assert list(one) == ["random_GPT2"]
    assert one["random_GPT2"]["snip"]["models"] == 6


def test_every_score_of_transformer_xl(table: Path, capsys: Any) -> None:
    words = ("--experiment", "random_TransXL", "--batch", 2, "--tgt-len", 4, "--sample", 3)
    names = [name for name in PROXIES if "parameters" not in name]
    group = found(capsys, table, "--score", ",".join(names), *words)["random_TransXL"]
    assert set(names) < set(group)


def test_a_picture_is_written(table: Path, tmp_path: Path, capsys: Any) -> None:
    svg = tmp_path / "picture.svg"
    assert do(capsys, table, "--svg", svg)[0] == 0
    ElementTree.fromstring(svg.read_text("utf-8"))
    assert "cannot write" in refused(capsys, table, "--svg", tmp_path / "no" / "picture.svg")


def test_gzip_is_read(table: Path, tmp_path: Path, capsys: Any) -> None:
    packed = tmp_path / "trained.csv.gz"
    packed.write_bytes(gzip.compress(table.read_bytes()))
    assert found(capsys, packed) == found(capsys, table)
    packed.write_bytes(packed.read_bytes()[:-50])
    assert "is damaged" in refused(capsys, packed)
    packed.write_bytes(b"\x1f\x8b what is this")
    assert "is damaged" in refused(capsys, packed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (HEAD, "has no models"),
        (written(ROWS[:2]), "experiment 'random_GPT2' in '.*' has 2 models; a ranking needs 3"),
        (written([*ROWS, ROWS[3]]), "line 18 of '.*' repeats line 5"),
        (written(ROWS, without=("valid_ppl",)), "has no column 'valid_ppl'; it has 'experiment'"),
        (written(ROWS, without=("params_total",)), "has no column 'params_total'"),
        (written(ROWS).replace('"[2, 4]"', '"[2, 4]","9"', 1), "16 values for 15 columns"),
        (written([{**ROWS[0], "valid_ppl": "good"}, *ROWS[1:]]), "line 2 of .*: 'good'; mend it"),
        (written([{**ROWS[0], "valid_ppl": "-1"}, *ROWS[1:]]), "perplexities above 0"),
        (b"\xff\xff\xff", "is not CSV"),
    ],
)
def test_a_bad_table_takes_one_line(
    tmp_path: Path, capsys: Any, text: str | bytes, message: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    assert re.search(message, refused(capsys, path))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--score", "snap"), "unknown score 'snap'; did you mean 'snip'"),
        (("--score", "snip,"), "--score takes different names with commas between, got 'snip,'"),
        (("--proxy", "parameters,parameters"), "--proxy takes different names"),
        (("--proxy", ""), "--proxy takes different names"),
        (("--proxy", "parameters", "--score", "parameters"), "in --proxy and in --score"),
        (("--proxy", "size"), "has no column 'size'"),
        (("--latency", "seconds"), "has no column 'seconds'"),
        (("--experiment", "third"), "no experiment 'third' in .*; it has 'random_GPT2', 'random_T"),
        (("--sample", "2"), "has 2 models; a ranking needs 3"),
        (("--sample", "-1"), "--sample must be at least 0, got -1"),
        (("--batch", "0", "--score", "snip"), "--batch must be at least 1, got 0"),
        (("--tgt-len", "0"), "--tgt-len must be at least 1, got 0"),
        (("--seed", "-1"), "--seed must be at least 0, got -1"),
        (("--score", "relu-log-det"), "line 2 of .*, 'random_GPT2': relu-log-det needs"),
        (
            ("--score", "snip", "--tgt-len", "193"),
            "line 2 .* tgt_len 193 exceeds the window of 192",
        ),
    ],
)
def test_a_bad_wish_takes_one_line(
    table: Path, capsys: Any, words: tuple[str, ...], message: str
) -> None:
    assert re.search(message, refused(capsys, table, *words))


def test_rows_with_gaps_are_left_out_and_counted(table: Path, tmp_path: Path, capsys: Any) -> None:
    lines = table.read_text().splitlines()
    place = lines[0].split(",").index("valid_ppl")
    rows = list(csv.reader(lines[1:]))
    rows[1][place] = ""
    gaps = tmp_path / "gaps.csv"
    with gaps.open("w", newline="") as file:
        csv.writer(file).writerows([lines[0].split(","), *rows])
    status, out, err = do(capsys, gaps, "--json")
    assert status == 0, err
    assert f"1 of {len(rows)} models have a gap and are left out." in err
    found = json.loads(out)
    assert found["skipped"] == 1
    counts = [one["parameters"]["models"] for one in found["experiments"].values()]
    assert sum(counts) == len(rows) - 1


def test_a_missing_table_takes_one_line(tmp_path: Path, capsys: Any) -> None:
    assert "cannot read" in refused(capsys, tmp_path / "none.csv")
    assert "has no tables of translators such as ja-en.hyps" in refused(capsys, tmp_path)
    status, _, err = do(capsys)
    assert status == 2
    assert "TABLE" in err


def test_a_table_alone_needs_no_torch(table: Path) -> None:
    code = (
        "import sys; from parformer.cli import main; "
        f"status = main(['proxies', {str(table)!r}]); sys.exit(status or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
