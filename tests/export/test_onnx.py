"""Does onnxruntime compute what the model computes, without torch?"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import parformer as pf
from parformer.blocks.coded import CodedLinear
from parformer.cli import main
from parformer.counts.count import count
from parformer.data.characters import Bytes
from parformer.errors import ConfigError
from parformer.export import parity
from parformer.export.coded import as_operators, hurried, packed, unpacked
from parformer.export.onnx import make_files
from parformer.export.run import Counts, Runner
from parformer.generate import Sampling, generate_text
from parformer.model import Model, build
from tests.conftest import lively, small_config
from tests.native.test_quantized import coded

ALL = [
    ("gpt2", "sf"),
    ("transformer-xl", "sf"),
    ("sru", "raf"),
    ("gpt2", "n[rows=50]lf"),
    ("gpt2", "y[dense+vanilla]f"),
    ("gpt2", "y[random]y[factored-dense]"),
    ("llama", "{sf}x2 <sf>"),
    ("llama", "{rs}x2 <af>"),
    ("mobilebert", "<sffff>[feed=shared]x2"),
    ("albert", "{sf}x3"),
    ("lite", "lf | lcf"),
    ("sru", "a | a[source]"),
    ("transformer-xl", "{sf}x2 | <sf>{scf}x2"),
]


ADAPTIVE = {"embedding": "adaptive", "cutoffs": [5], "div_val": 2}


def make(family: str, pattern: str, **changes: Any) -> Model:
    sizes: dict[str, Any] = {"d_model": 16, "n_head": 2, "d_bottleneck": 8, "pattern": pattern}
    if family in ("transformer-xl", "sru"):
        sizes["mem_len"] = 20
    return lively(build(small_config(family, **(sizes | changes))))


def written(model: Model, folder: Path) -> Runner:
    folder.mkdir()
    for name, content in make_files(model, None, 18).items():
        (folder / name).write_bytes(content)
    return Runner(folder, 1)


@pytest.mark.parametrize(
    ("family", "pattern", "changes"),
    [
        ("transformer-xl", "sl[light,kernel=3]", ADAPTIVE),
        ("bert", "sf", {"label_head": "class", "labels": ("bad", "good")}),
        ("transformer", "sf | scf", {"pad": 0}),
    ],
)
def test_graphs_give_what_the_model_gives(
    family: str,
    pattern: str,
    changes: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parity, "LONGEST", 24)
    monkeypatch.setattr(parity, "GREEDY", 40)
    model = make(family, pattern, **changes)
    runner = written(model, tmp_path / "onnx")
    assert parity.check_onnx(model, runner)["largest_difference"] < 1e-5
    with torch.no_grad():  # and a model whose weights differ is found out
        model.embedding.words.tables[0][3] += 0.05
    with pytest.raises(parity.Differs, match=r"differ by|writes"):
        parity.check_onnx(model, runner)


@pytest.mark.parametrize("bits", [8, 4])
def test_few_bits_stay_few_bits(bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "LONGEST", 24)
    monkeypatch.setattr(parity, "GREEDY", 40)
    plain = make("llama", "sf", d_model=40, d_inner=72)
    model = coded(plain, bits)
    for linear in (one for one in model.modules() if isinstance(one, CodedLinear)):
        sizes = (linear.bits, linear.in_features)
        assert torch.equal(unpacked(*packed(linear), *sizes), linear.weight)
    exact = written(model, tmp_path / "exact")
    with as_operators(model) as found:
        assert found
        assert parity.check_onnx(model, exact)["largest_difference"] < 1e-5
    # and back as it was: the model's own kernels round what they read to sixteen bits
    monkeypatch.setattr(parity, "CLOSE", 2e-3)
    assert parity.check_onnx(model, exact)["largest_difference"] < 2e-3
    graph = (tmp_path / "exact" / "model.onnx").read_bytes()
    maps = sum(isinstance(one, CodedLinear) for one in model.modules())
    assert graph.count(b"MatMulNBits") >= maps - 1  # the table is looked up too
    quick = tmp_path / "quick"
    shutil.copytree(tmp_path / "exact", quick)
    (quick / "model.onnx").write_bytes(hurried(graph))
    assert 0 < parity.moved(model, exact, Runner(quick, 1)) < 0.05


@pytest.mark.soak
@pytest.mark.parametrize(("family", "pattern"), ALL)
def test_every_family_and_block_can_be_exported(family: str, pattern: str, tmp_path: Path) -> None:
    model = make(family, pattern)
    assert parity.check_onnx(model, written(model, tmp_path / "onnx"))["largest_difference"] < 1e-4


def test_the_verb_writes_a_folder_that_runs_without_torch(tmp_path: Path, capsys: Any) -> None:
    """With recurrence, attention, counts and repeats: what `fit` makes."""
    model = make("llama", "rsf", vocab_size=256, counts=2**16, recall=16, max_len=32)
    text = Path(parity.__file__).read_bytes()
    model.prior.learn(np.frombuffer(text, np.uint8).astype(np.int64), fresh=True)
    model.save(tmp_path / "model", Bytes().to_json())
    folder = tmp_path / "onnx"
    assert main(["export", str(tmp_path / "model"), "--onnx", str(folder), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["parity"]["greedy_tokens_equal"] == 200
    assert {"1 thread", "2 threads"} <= told["latency"].keys()
    session = Runner(folder, 1).graphs["model"]
    names = [one.name for one in session.get_inputs()]
    assert names[:3] == ["input_ids", "position_ids", "attention_mask"]
    assert {f"past_key_values.{n}" for n in ("0.recurrent_state", "1.key", "1.value")} <= {*names}
    command = [sys.executable, "-c", NO_TORCH, str(folder / "run.py"), "--prompt", "def "]
    done = subprocess.run(
        [*command, "--tokens", "30", "--greedy"], capture_output=True, text=True, check=False
    )
    wanted = generate_text(
        pf.load(tmp_path / "model"), Bytes(), ["def "], 30, sampling=Sampling(temperature=0)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"def {wanted[0]}\n"


NO_TORCH = """
import sys, runpy
sys.modules["torch"] = sys.modules["parformer"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_counts_are_read_as_parformer_reads_them() -> None:
    from parformer.counts.look import look

    tokens = torch.randint(40, (3000,), generator=torch.Generator().manual_seed(0)) ** 2 % 40
    for size in (40, 300):
        table = count(tokens.numpy(), vocab_size=size, size=20_000, order=4)
        counts, text = Counts(table), tokens[:50].numpy()
        ours = look(table, text[None])[0]
        theirs = np.array([counts.look(text[: n + 1]) for n in range(50)])
        assert np.abs(ours - theirs).max() < 1e-4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--onnx", "out", "--opset", "7"], "opset 7 is not among those that can be written; take"),
        ([], "say what to export to"),
    ],
)
def test_what_cannot_be_exported_says_so(
    arguments: list[str], says: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make("gpt2", "sf").save(tmp_path / "model")
    assert main(["export", "model", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_model(tmp_path: Path, capsys: Any) -> None:
    assert main(["export", str(tmp_path), "--onnx", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path) in error
    assert error.count("\n") == 1
    with pytest.raises(ConfigError, match="opset"):
        make_files(make("gpt2", "sf"), None, 99)


def test_a_step_is_timed_in_onnxruntime(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "LONGEST", 12)
    monkeypatch.setattr(parity, "GREEDY", 10)
    small = [f"--set={name}" for name in ("d_model=32", "d_inner=32", "max_len=32")]
    asked = ["--rounds", "8", "--tgt-len", "1", "--mem-len", "8", "--runtime", "onnx", "--json"]
    assert main(["measure", "llama-pocket", "--pattern", "sf", *small, *asked]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "in another runtime" in told["receipt"]["what"]
    assert len(told["models"]) == 1
