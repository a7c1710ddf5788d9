"""Every verb answers, and every mistake gets one line and exit status 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import parformer as pf
from parformer.blocks.base import BLOCKS
from parformer.cli import main
from parformer.cli.console import make_console
from parformer.notation import ALPHABET

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
SMALL = ["--set", "d_model=32", "--set", "n_head=2", "--set", "d_inner=48"]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> object:
    return json.loads(run(capsys, *argv, "--json"))


def test_design_writes_the_published_patterns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "design", "--par", "36", "--p", "5") == "(sfff)x7 (f)x8\n"
    assert run(capsys, "design", "--sandwich", "32", "--k", "6") == "(s)x7 (fs)x9 (f)x7\n"
    assert run(capsys, "design", "--interleaved", "32") == "(sf)x16\n"


def test_design_reads_and_writes_other_notations(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "design", "--from-megatron", "*-*-") == "(sf)x2\n"
    assert run(capsys, "design", "--pattern", "(sf)x2", "--as", "megatron") == "*-*-\n"
    words = "full_attention,mlp,full_attention,mlp"
    assert run(capsys, "design", "--from-layer-types", words) == "(sf)x2\n"
    answer = run_json(capsys, "design", "--par", "12", "--as", "layer-types")
    assert isinstance(answer, dict)
    assert answer["pattern"] == "(sfff)x2 (f)x4"
    assert answer["layer-types"][:2] == ["full_attention", "mlp"]


def test_show_lists_all_presets(capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_json(capsys, "show")
    assert isinstance(rows, list)
    assert [row["name"] for row in rows] == list(pf.presets())
    listing = run(capsys, "show")
    assert all(name in listing for name in pf.presets())


def test_show_draws_and_describes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "stacks.svg"
    answer = run(capsys, "show", "par-base", "(sf)x2", "--svg", str(picture))
    assert "s f f f s f f f" in answer
    assert "PAR's rule" in answer
    assert "interleaved" in answer
    text = picture.read_text()
    assert text.startswith("<svg")
    assert "PAR Transformer Base" in text


def test_a_printed_toml_is_read_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = run(capsys, "show", "par-base", "--toml")
    assert pf.ModelConfig.from_dict(tomllib.loads(text)["model"]) == pf.preset("par-base")
    file = tmp_path / "mine.toml"
    file.write_text(text)
    answer = run_json(capsys, "cost", str(file))
    assert isinstance(answer, dict)
    assert answer["parameters"] == 199_840_218


def test_cost_in_json_has_the_exact_figures(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "cost", "transformer-xl-base", "--tgt-len", "64", "--mem-len", "640")
    assert isinstance(answer, dict)
    assert answer["parameters"] == 191_950_298
    assert answer["decoder_parameters"] == 54_600_704
    assert answer["parameters"] == sum(
        answer[f"{part}_parameters"] for part in ("decoder", "embedding", "head")
    )
    assert answer["state_bytes"] == 16 * 2 * 640 * 512 * 4
    assert len(answer["blocks"]) == 32
    assert answer["blocks"][0]["block"] == "s"
    assert answer["blocks"][0]["parameters"] == 1_311_744


def test_cost_takes_patterns_sets_and_several_models(capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_json(capsys, "cost", "(sf)x2", "pocket", "--set", "d_inner=100", "--batch", "3")
    assert isinstance(rows, list)
    bare = pf.preset("transformer-xl-base", pattern="(sf)x2", d_inner=100)
    assert rows[0]["parameters"] == pf.cost(bare).parameters
    assert rows[1]["flops"] == pf.cost(pf.preset("pocket", d_inner=100), batch=3).flops
    replaced = run_json(capsys, "cost", "par-base", "--pattern", "(sf)x16")
    assert isinstance(replaced, dict)
    assert replaced["parameters"] == 191_950_298
    table = run(capsys, "cost", "par-base", "sandwich-base", "--blocks")
    assert "199,840,218" in table
    assert "191,950,298" in table


def test_measure_compares_small_models(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = ["--tgt-len", "4", "--mem-len", "8", "--rounds", "8", "--threads", "1"]
    answer = run_json(capsys, "measure", "pocket", "llama-pocket", *SMALL, *lengths)
    assert isinstance(answer, dict)
    assert [row["name"] for row in answer["models"]] == ["Pocket", "Llama shape, pocket size"]
    assert all(row["latency_seconds"] > 0 for row in answer["models"])
    assert answer["receipt"]["threads"] == 1
    text = run(capsys, "measure", "pocket", "(f)x6", *SMALL, *lengths)
    assert "Receipt:" in text
    assert "measured here" in text


@pytest.mark.parametrize(
    ("argv", "value", "way_out"),
    [
        (["cost", "par-bse"], "par-bse", "par-base"),
        (["cost", "zork"], "'z' at column 1", "known blocks"),
        (["cost", "par-base", "--pattern", "sq"], "'q' at column 2", "known blocks"),
        (["cost", "par-base", "--pattern", "s[haeds=2]f"], "haeds", "known options"),
        (["cost", "par-base", "--set", "d_modl=3"], "d_modl", "d_model"),
        (["cost", "par-base", "--set", "d_model"], "d_model", "field=value"),
        (["cost", "par-base", "--set", "d_model=wide"], "wide", "whole number"),
        (["cost", "par-base", "--set", "n_head=7"], "7 heads", "d_head"),
        (["cost", "par-base", "--tgt-len", "0"], "0", "at least 1"),
        (["cost", "par-base", "--tgt-len", "x"], "'x'", "--help"),
        (["cost", "par-base", "--batch", "0"], "0", "at least 1"),
        (["cost", "gpt2-small", "--mem-len", "9"], "1024", "max_len"),
        (["cost", "bert-base", "--mem-len", "9"], "9", "both sides"),
        (["cost", "nowhere.toml"], "nowhere.toml", "No such file"),
        (["cost"], "MODEL", "--help"),
        (["cots"], "cots", "--help"),
        (["fit", "--tiem", "3m"], "--tiem", "'parformer fit --help'"),
        (["search", "pareto", "--tiem", "3m"], "--tiem", "'parformer search sizes --help'"),
        (["cost", "no-such-model"], "no-such-model", "the nearest are"),
        (["design"], "--par", "give one of"),
        ([], "VERB", "--help"),
        (["design", "--par", "0"], "0", "from 1"),
        (["design", "--par", "12", "--p", "1"], "1", "from 2"),
        (["design", "--interleaved", "7"], "7", "even"),
        (["design", "--interleaved", "8", "--p", "3"], "--p 3", "--par"),
        (["design", "--interleaved", "8", "--k", "3"], "--k 3", "--sandwich"),
        (["design", "--from-megatron", "*M"], "M", "known"),
        (["show", "--svg", "x.svg"], "--svg", "MODEL"),
        (["show", "parbase"], "parbase", "par-base"),
        (["show", "(sf)x2", "sfsf"], "sfsf", "name each model once"),
        (["cost", "pocket", "pocket"], "pocket", "name each model once"),
        (["show", "par-base", "--svg", "/nowhere/x.svg"], "/nowhere/x.svg", "No such file"),
        (["show", "(sf)x2", "--toml"], "--toml", "one preset"),
        (["measure", "pocket", "--threads", "0"], "0", "at least 1"),
        (["measure", "pocket", "--rounds", "0"], "0", "at least 1"),
        (["measure", "pocket", "--precision", "fp8"], "fp8", "fp32"),
    ],
)
def test_a_mistake_gets_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], value: str, way_out: str
) -> None:
    try:
        status = main(argv)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("parformer")
    assert value in captured.err
    assert way_out in captured.err


def test_a_message_quotes_no_more_than_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "pocket", "--set", "x" * 2_000_000]) == 2
    assert len(capsys.readouterr().err) < 2500


def test_no_message_offers_a_block_that_cannot_be_built(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "zork"]) == 2
    assert capsys.readouterr().err.endswith("known blocks: a c f i l n r s y\n")
    assert BLOCKS.keys() == ALPHABET.keys()


def test_json_of_a_recipe_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "show", "pocket", "--toml")["model"]["family"] == "transformer-xl"


def test_only_the_verb_that_is_named_is_loaded() -> None:
    code = "import sys; from parformer.cli import main; main(['design', '--par', '8']); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print(*[m for m in sys.modules if 'parformer.cli' in m])"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "parformer.cli.design" in loaded
    assert not {"parformer.cli.fit", "parformer.cli.search", "parformer.cli.train"} & set(loaded)


def test_output_that_finds_no_room_is_told_in_a_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "parformer", "show"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == "parformer show: no room for the output: No space left on device\n"


def test_what_is_printed_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print("a\x1b[2Jb", markup=False)
    assert capsys.readouterr().out == "a\ufffd[2Jb\n"


@pytest.mark.parametrize("error", [MemoryError("std::bad_alloc"), RuntimeError(NO_MEMORY)])
def test_too_little_memory_is_told_with_an_estimate(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("parformer.measure.models.measure_models", fail)
    assert main(["measure", "transformer-xl-large"]) == 2
    assert "not enough memory: 285" in (said := capsys.readouterr().err)
    assert "take at least 1,14" in said
    monkeypatch.setattr("parformer.train.job.train_model", fail)
    assert main(["train", "transformer-xl-base", "--steps", "1"]) == 2
    assert "to train 1" in (said := capsys.readouterr().err)
    assert "at least 3,0" in said


def test_another_error_of_torch_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr("parformer.measure.models.measure_models", fail)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        main(["measure", "pocket"])


@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
def test_a_file_that_need_not_end_is_not_read(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.toml"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.write_text("\n".join(f"a{i} = 1" for i in range(50_000)))
    assert main(["cost", str(file)]) == 2
    assert ("too large" if kind == "huge" else "no plain file") in capsys.readouterr().err


def test_help_teaches_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("design", "show", "cost", "measure"):
        with pytest.raises(SystemExit) as stop:
            main([verb, "--help"])
        assert stop.value.code == 0
        assert f"parformer {verb}" in capsys.readouterr().out.split("examples:")[1]


def test_it_runs_as_a_module_and_survives_a_closed_pipe() -> None:
    module = [sys.executable, "-m", "parformer"]
    version = subprocess.run([*module, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"parformer {pf.__version__}\n"
    closed = subprocess.run(
        f"{' '.join(module)} show | head -n 1", shell=True, capture_output=True, text=True
    )
    assert "Traceback" not in closed.stderr
