"""Are translators of every depth and size weighed by the time of a whole sentence?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import parformer as pf
from parformer.cli import main
from parformer.costs import cost
from parformer.errors import ParformerError
from parformer.measure.readings import Step
from parformer.search.sentences import measure_any, sentence_flops
from parformer.search.sizes.objectives import Grading, counted, make_quality
from parformer.search.sizes.request import SizesRequest
from parformer.search.sizes.space import read_space

SPACE = """\
title = "Tiny translators"
like = "transformer-pocket-translation"
layers = "1..2"
unit = ["s[heads=2|4]", "c[heads=2|4]", "f[inner=32|64]"]
encoder_layers = "1..3"
encoder = ["s[heads=2|4]", "f[inner=32|64]"]

[model]
vocab_size = 40
max_len = 32

[fields]
d_model = "16|32"
"""


@pytest.fixture
def space(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(SPACE)
    return file


def test_a_front_of_translators(space: Path, tmp_path: Path, capsys: Any) -> None:
    """Every candidate writes whole sentences by beams, and what is picked is a translator."""
    run = tmp_path / "run"
    words = ["search", "sizes", str(space), "--objectives", "quality,latency", "--beam", "3"]
    more = ["--population", "5", "--iterations", "1", "--tgt-len", "4", "--source-len", "5"]
    assert main([*words, *more, "--run", str(run)]) == 0
    shown = capsys.readouterr()
    assert "of a whole text of 4 tokens from 5, 3 beams, each model measured" in shown.err
    assert " | " in shown.out
    assert main(["pick", str(run), "--output", str(tmp_path / "picked.toml")]) == 0
    picked = pf.config.read_model(str(tmp_path / "picked.toml"))
    assert picked.source is not None
    assert picked.pattern.count("c")
    page = (run / "report.html").read_text("utf-8")
    assert "a whole text of 4 tokens from 5, 3 beams" in page


def test_a_step_with_a_source_is_a_whole_sentence(
    space: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as was asked for, by as many beams, whatever random weights would rather write."""
    heard: list[tuple[int, ...]] = []
    real = pf.translate

    def listening(model: Any, source: torch.Tensor, **how: Any) -> Any:
        found = real(model, source, **how)
        heard.append((source.shape[1], how.get("beam", 1), len(found.plain(0, 0))))
        return found

    monkeypatch.setattr("parformer.search.sentences.translate", listening)
    one = read_space(str(space))
    config = one.config(one.smallest())
    step = Step(tgt_len=6, rounds=2, source=5, beam=3)
    found = measure_any({"model": config}, step)
    assert set(heard) == {(5, 3, 6)}
    assert "a sentence of 6 tokens from 5, 3 beams" in found.receipt.what
    heard.clear()
    measure_any({"model": config}, replace(step, beam=1))
    assert {(source, text) for source, _, text in heard} == {(5, 6)}


def test_sentences_cost_their_source_once_and_a_step_for_every_token(space: Path) -> None:
    config = read_space(str(space)).like
    step = cost(config, tgt_len=1, mem_len=4, src_len=5)
    whole = step.encoder.flops + 8 * 3 * step.flops_cached
    assert sentence_flops(config, 8, 5, 3) == whole
    told = counted(config, Step(tgt_len=8, source=5, beam=3))
    assert told["flops"] == whole
    assert told["decoder_parameters"] == cost(config).decoder_parameters


def test_a_step_without_a_source_is_written_as_before() -> None:
    assert "beam" not in Step(tgt_len=3).to_dict()
    told = Step(tgt_len=3, source=4, beam=2)
    assert Step.from_dict(told.to_dict()) == told
    with pytest.raises(ParformerError, match="beam"):
        Step(source=4, beam=0)


def test_only_translators_are_measured_so(space: Path) -> None:
    asked = SizesRequest(space=str(space), beam=2)
    assert (asked.wanted().latency_by, asked.wanted().step.source) == ("measuring", 20)
    other = SizesRequest(space="pocket").wanted()
    assert (other.latency_by, other.step.source, other.step.tgt_len) == ("profile", 0, None)
    with pytest.raises(ParformerError, match="source_len must be at least 1, got 0"):
        SizesRequest(source_len=0)


def test_translators_are_trained_for_a_while(space: Path, tmp_path: Path) -> None:
    """The proxy that ranks any mix: what it lost of the references after some updates."""
    for split in ("train", "valid"):
        (tmp_path / f"{split}.de").write_text("ein Hund\nzwei Hunde\n" * 8)
        (tmp_path / f"{split}.en").write_text("a dog\ntwo dogs\n" * 8)
    one = read_space(str(space))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'extends = "transformer-pocket-translation"\n[data]\ntokenizer = "character"\n'
        "vocab_size = 0\n[train]\nbatch_tokens = 64\nwarmup = 1\nlearning_rate = 1e-2\n"
    )
    letters = len(set("ein Hundzwei Hunde a dogtwo dogs\t\n")) + 1
    like = one.like.replaced(vocab_size=letters)
    grading = Grading(proxy="short-training", recipe=str(recipe), corpus=str(tmp_path),
                      pair="de-en", steps=20, share=1.0)  # fmt: skip
    quality = make_quality(grading, like)
    config = like.replaced(pattern="sf | scf", d_model=16, d_inner=32, n_head=2)
    short = make_quality(replace(grading, share=0.05), like)
    assert quality(config, cost(config)) > short(config, cost(config))
