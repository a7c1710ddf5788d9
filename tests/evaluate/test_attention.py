"""Is what one sees of attention what it does, and is everything else told in a line?"""

# h heads, t time, n keys

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import parformer as pf
from parformer.blocks.taps import Taps
from parformer.cli import main
from parformer.data.tokenizers import Tokenizer, read_tokenizer
from parformer.errors import ParformerError
from parformer.evaluate.attention import (
    AttentionRequest,
    AttentionResult,
    Looks,
    look,
    see,
    tables_of,
)
from parformer.model import Model, build
from parformer.report.attention import attention_page
from tests.conftest import lively, small_config

TEXT = "def f(x):\n\treturn <b>x & 1"


def byte_tokenizer() -> Tokenizer:
    table = {"format": "parformer-tokenizer-1", "kind": "byte"}
    return read_tokenizer(json.dumps(table), "a test")


def make(pattern: str, family: str = "transformer-xl", **changes: Any) -> Model:
    sizes: dict[str, Any] = {"d_model": 16, "n_head": 4, "vocab_size": 256, "d_bottleneck": 8}
    sizes |= {"mem_len": 30} if family == "transformer-xl" else {}
    return lively(build(small_config(family, pattern=pattern, **(sizes | changes))))


def seen(model: Model, text: str = TEXT, **more: Any) -> AttentionResult:
    asked = AttentionRequest(model=Path("a run"), text=text, **more)
    return see(model, byte_tokenizer(), asked, "parformer show")


def unpacked(one: Looks, head: int) -> np.ndarray[Any, Any]:
    flat = np.frombuffer(b64decode(one.heads[head].map), np.uint8)
    return flat.reshape(one.rows, one.columns) / 255


@pytest.mark.parametrize(
    ("pattern", "family"),
    [
        ("s{f<s>}x2", "transformer-xl"),
        ("af", "transformer-xl"),
        ("y[dense+vanilla]l", "gpt2"),
        ("sf", "llama"),
        ("sy", "bert"),
    ],
)
def test_maps_and_shares_are_those_of_the_weights(pattern: str, family: str) -> None:
    model, taps = make(pattern, family), Taps("weights")
    found = seen(model, near=2)
    tokens = torch.tensor([list(TEXT.encode())])
    with torch.no_grad():
        model(tokens, taps=taps)
    heard = taps.having("weights")
    assert [one.place for one in found.blocks] == list(heard)
    for one in found.blocks:
        weights_htn = heard[one.place][0].double().numpy()
        assert len(one.heads) == len(weights_htn)
        for h, head in enumerate(one.heads):
            assert np.abs(unpacked(one, h) - weights_htn[h]).max() <= 0.5 / 255 + 1e-9
            near = [sum(weights_htn[h, t, max(0, t - 2) : t + 3]) for t in range(tokens.shape[1])]
            assert head.near == pytest.approx(np.mean(near), abs=1e-4)
            assert head.itself == pytest.approx(np.mean(np.diag(weights_htn[h])), abs=1e-4)
            assert head.first == pytest.approx(weights_htn[h, :, 0].mean(), abs=1e-4)
        assert one.near == pytest.approx(np.mean([head.near for head in one.heads]))


def test_evenly_is_what_equal_weights_would_give() -> None:
    count = len(TEXT)
    causal = np.mean([min(3, t + 1) / (t + 1) for t in range(count)])
    both = np.mean([len(range(max(0, t - 2), min(count, t + 3))) / count for t in range(count)])
    window = np.mean([min(3, t % 5 + 1) / (t % 5 + 1) for t in range(count)])
    for pattern, family, wanted in (("s", "gpt2", causal), ("s", "bert", both)):
        assert seen(make(pattern, family), near=2).blocks[0].even == pytest.approx(wanted, abs=1e-4)
    cut = seen(make("y[length=5]"), near=2).blocks[0]
    assert cut.even == pytest.approx(window, abs=1e-4)


def test_a_decoder_shows_its_encoder_and_what_it_reads_of_the_source() -> None:
    found = seen(make("s | scf", "gpt2"), source="le chat")
    assert [(one.place, one.keys) for one in found.blocks] == [
        ("encoder.0", "text"),
        ("0", "text"),
        ("1", "source"),
    ]
    assert found.blocks[2].columns == len("le chat") == len(found.source)
    assert found.blocks[2].near is None
    page = attention_page(found)
    assert "Encoder block 1, s" in page


def test_what_synthesizers_and_recurrences_have_learned() -> None:
    model = make("y[random+vanilla,alpha,length=40]a y[fixed,length=300]y[dense]")
    found = seen(model)
    sum_, recurrence, *_ = found.blocks
    share = float(torch.sigmoid(model.blocks[0].alpha.detach()))
    assert sum_.shares == pytest.approx({"random": share, "vanilla": 1 - share}, abs=1e-4)
    alpha = float(model.blocks[1].alpha.detach())
    assert recurrence.shares == pytest.approx({"alpha": alpha}, abs=1e-4)
    tables = list(tables_of(model))
    assert [(one.place, one.rows) for one in tables] == [("0", 40), ("2", 128)]
    table = model.blocks[0].scores["random"].table_hnn[1].detach()
    rows = [torch.softmax(table[t, : t + 1], 0) for t in range(40)]
    wanted = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).numpy()
    assert np.abs(unpacked(tables[0], 1) - wanted).max() <= 0.5 / 255 + 1e-6


def test_looking_leaves_a_model_as_it_was() -> None:
    model = make("sf").train()
    look(model, torch.arange(5)[None])
    assert model.training


def test_a_result_is_written_down_and_read_back() -> None:
    found = seen(make("s y[random]"))
    again = AttentionResult.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = make("sf", "gpt2")
    model.save(tmp_path / "model", byte_tokenizer().to_json())
    return tmp_path / "model"


def test_the_verb_and_the_command_give_the_same(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = pf.attention(model=folder, text="some words", near=1)
    assert "".join(found.tokens) == "some words"
    page = tmp_path / "page.html"
    words = ["show", str(folder), "--attention", "some words", "--near", "1"]
    assert main([*words, "--output", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["blocks"] == found.to_dict()["blocks"]
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert main([*words, "--output", str(page)]) == 0
    assert f"page: {page}" in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--attention", ""], "the text is empty; give some words"),
        (["--attention", "x" * 65], "the text has 65 tokens, and at most 64 can be read"),
        (["--attention", "x", "--source", "y"], "this model has no encoder; leave out --source"),
        (["--attention", "x", "--near", "-1"], "near must be at least 0, got -1"),
        (["--attention", "x", "--toml"], "--attention is about one run or model folder"),
        (["pocket", "--attention", "x"], "--attention is about one run or model folder"),
        (["--near", "3"], "--near belongs to --attention"),
        (["--output", "page.html"], "--output belongs to --attention"),
        (["--attention", "x", "--output", "/no/such/place.html"], "cannot write"),
    ],
)
def test_what_cannot_be_shown_is_told_in_a_line(
    words: list[str], problem: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(folder), *words]) == 2
    told = capsys.readouterr().err
    assert problem in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("pattern", ["ff", "rf", "n", "l[attend=0]"])
def test_a_model_without_attention_says_so(pattern: str) -> None:
    with pytest.raises(ParformerError, match=f"no block of .*{pattern[0]}.* attends") as caught:
        seen(make(pattern))
    assert "\n" not in str(caught.value)


def test_an_encoder_needs_its_source() -> None:
    with pytest.raises(ParformerError, match="has an encoder, which needs a source to read; give"):
        seen(make("s | cf", "gpt2"))
