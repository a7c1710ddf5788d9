"""Does a compression do what was asked, tell the truth about it, and go on after a stop?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import parformer as pf
from parformer.cli import main
from parformer.compress import job, steps, trying, worth
from parformer.compress.choosing import choose, prices, size_price
from parformer.compress.coding import coded_maps, decoded
from parformer.compress.receipt import Figures
from parformer.compress.request import CompressRequest
from parformer.compress.result import CompressResult
from parformer.compress.shrinking import importance, places
from parformer.errors import ConfigError, Stopped
from parformer.store.folder import WEIGHTS
from parformer.train.session import Session
from parformer.weights import matrices

SMALL = (
    *("model.pattern=(sf)x2", "model.d_model=64", "model.d_inner=128", "train.batch=4"),
    *("train.evaluate_tokens=2048", "train.final_tokens=2048", "train.compile=off"),
)
QUICK = {"tokens": 4096, "rounds": 6, "threads": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    pf.train(
        model="llama-pocket", corpus="python-docs", steps=30, run=run, changes=SMALL, beside=False
    )
    return run


def test_eight_bits_and_their_receipt(trained: Path, tmp_path: Path) -> None:
    result = pf.compress(model=trained, run=tmp_path / "few", **QUICK)
    assert [stair.name for stair in result.stairs] == ["original", "quantize"]
    first, last = (stair.figures for stair in result.stairs)
    assert first.size == (trained / "model" / WEIGHTS).stat().st_size
    assert last.size == (tmp_path / "few" / "model" / WEIGHTS).stat().st_size
    assert first.size / last.size > 3
    assert last.loss_change is not None
    assert abs(last.loss_change.ratio - 1) < 0.01
    assert "× smaller" in result.verdict()
    model = pf.load(tmp_path / "few" / "model")
    assert {module.bits for _, module in coded_maps(model)} == {8}
    again = CompressResult.load(tmp_path / "few")
    assert again.stairs == result.stairs
    page = (tmp_path / "few" / "report.html").read_text("utf-8")
    assert "quantize" in page
    assert "https://" not in page.split("<script")[0]


def test_a_compressed_run_is_a_run(trained: Path, tmp_path: Path) -> None:
    result = pf.compress(model=trained, run=tmp_path / "few", bits=4, **QUICK)
    found = pf.evaluate(model=tmp_path / "few", split="valid", beside=False, tokens=4000)
    assert found.score.loss == pytest.approx(result.last.figures.loss, rel=0.1)
    written = pf.generate(model=tmp_path / "few", prompts=("def ",), tokens=5)
    assert written[0].text
    with pytest.raises(ConfigError, match="quantized already"):
        pf.compress(model=tmp_path / "few", run=tmp_path / "fewer", **QUICK)


def test_a_size_is_kept_by_what_matrices_bear(trained: Path, tmp_path: Path) -> None:
    eight = pf.compress(model=trained, run=tmp_path / "eight", **QUICK).last.figures.size
    limit = f"size={int(0.8 * eight)}B"
    result = pf.compress(model=trained, run=tmp_path / "few", limits=(limit,), **QUICK)
    assert result.kept
    assert result.last.figures.size <= 0.8 * eight
    bits = {module.bits for _, module in coded_maps(pf.load(tmp_path / "few" / "model"))}
    assert bits == {4, 8}


def test_a_limit_that_nobody_reaches_names_the_nearest(trained: Path, tmp_path: Path) -> None:
    asked = {"model": trained, "run": tmp_path / "few", "updates": 1}
    result = pf.compress(**asked, limits=("size=1kB",), **QUICK)
    assert not result.kept
    assert "Not within size=1kB: the nearest" in result.verdict()


def test_what_loses_too_much_is_left_out(trained: Path, tmp_path: Path) -> None:
    result = pf.compress(
        model=trained,
        run=tmp_path / "few",
        by="prune",
        sparsity=0.95,
        limits=("loss=+0.1%",),
        **QUICK,
    )
    assert not result.stairs[1].taken
    assert "the loss would grow" in result.stairs[1].why
    assert "Nothing was gained" in result.verdict()
    kept = pf.load(tmp_path / "few" / "model")(torch.arange(9)[None]).logits
    assert torch.equal(kept, pf.load(trained / "model")(torch.arange(9)[None]).logits)


def test_steps_are_stacked_and_a_stopped_job_does_nothing_twice(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {"model": trained, "run": tmp_path / "few", "by": "prune,quantize", "sparsity": 0.5}
    real = job.STEPS["quantize"]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(job.STEPS, "quantize", killed)
    with pytest.raises(KeyboardInterrupt):
        pf.compress(**request, **QUICK)
    monkeypatch.setitem(job.STEPS, "quantize", real)
    monkeypatch.setitem(job.STEPS, "prune", killed)  # it was done before the stop
    result = pf.compress(**request, **QUICK)
    assert [stair.name for stair in result.stairs if stair.taken] == [
        "original",
        "prune",
        "quantize",
    ]
    whole = pf.compress(**request | {"run": tmp_path / "again"} | {"by": "quantize"}, **QUICK)
    assert result.last.figures.size < whole.last.figures.size


def test_weights_become_zero_in_a_training_and_stay_zero_in_few_bits(
    trained: Path, tmp_path: Path
) -> None:
    asked = {"model": trained, "sparsity": 0.6, "updates": 12, "bits": 4, **QUICK}
    result = pf.compress(run=tmp_path / "few", by="prune,quantize", **asked)
    assert "trained for 12 updates while they went" in result.stairs[1].done
    for step in ("1-prune", "2-quantize"):
        model = pf.load(tmp_path / "few" / "steps" / step / "model")
        for name, weight in matrices(decoded(model)).items():
            assert float((weight == 0).float().mean()) >= 0.59, (step, name)
    at_once = pf.compress(run=tmp_path / "at-once", by="prune", **asked | {"updates": 0, "bits": 0})
    assert result.stairs[1].figures.loss < at_once.last.figures.loss


def without_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick: sizes alone are told, every stair is a little better, and little text is read."""

    def sizes_alone(models: object, sizes: dict[str, int], *_: object) -> dict[str, Figures]:
        same = {"parameters": 1, "memory": 1, "token": 1.0, "piece": 1.0}
        falls = {name: 1 / (2 + number) for number, name in enumerate(sizes)}
        return {n: Figures(size=size, loss=falls[n], **same) for n, size in sizes.items()}

    monkeypatch.setattr(job, "weigh", sizes_alone)
    monkeypatch.setattr(job, "write_samples", lambda *_: "")
    for module, name, few in (
        *((steps, "TRIED", 512), (steps, "CALIBRATED", 512), (trying, "TRIED", 512)),
        *((worth, "TRIED", 512), (worth, "BATCHES", 2)),
    ):
        monkeypatch.setattr(module, name, few)


def killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def unwanted(*_: object, **__: object) -> None:
    raise AssertionError("this was done already")


def test_another_limit_in_the_same_folder_is_another_training(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_clock(monkeypatch)
    asked = {"model": trained, "run": tmp_path / "few", "by": "shrink,distil", "updates": 2}
    first = pf.compress(**asked, limits=("size=0.8x",), **QUICK)
    less = pf.compress(**asked, limits=("size=0.6x",), **QUICK)
    assert less.last.figures.size < 0.8 * first.last.figures.size
    monkeypatch.setattr(Session, "update", unwanted)  # the first limit's training was kept
    again = pf.compress(**asked, limits=("size=0.8x",), **QUICK)
    assert again.last.figures == first.last.figures


def test_a_text_that_changed_is_noticed(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_clock(monkeypatch)
    text = tmp_path / "text.txt"
    text.write_text("some words to read, and to read again\n" * 400)
    asked = {"model": trained, "run": tmp_path / "few", "by": "prune", "corpus": str(text)}
    pf.compress(**asked, **QUICK)
    monkeypatch.setitem(job.STEPS, "prune", unwanted)
    pf.compress(**asked, **QUICK)
    note = tmp_path / "few" / "steps" / "1-prune" / job.NOTE
    values = json.loads(note.read_text())
    note.write_text(json.dumps({name: values[name] for name in values if name != "text"}))
    pf.compress(**asked, **QUICK)  # as an older version wrote it
    note.write_text(json.dumps(values))
    text.write_text("other words, of which nothing is known\n" * 400)
    with pytest.raises(AssertionError):
        pf.compress(**asked, **QUICK)


def test_wishes_are_told_as_they_were_before_there_was_a_choice_of_scores() -> None:
    """So that steps which an older version has done are found again."""
    gradient = job.wishes(CompressRequest(model=Path("x"), score="gradient"))
    assert "score" not in gradient
    for score in ("magnitude", "loss"):
        assert job.wishes(CompressRequest(model=Path("x"), score=score)) != gradient  # type: ignore[arg-type]


def test_a_killed_compression_ends_with_the_same_bits(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when a step is made and not yet written, in a training, and in the last step."""
    asked = {"model": trained, "by": "shrink,distil,prune,quantize", "limits": ("size=0.8x",)}
    asked |= {"updates": 4, "sparsity": 0.5, "activations": True, **QUICK}

    without_clock(monkeypatch)
    pf.compress(run=tmp_path / "whole", **asked)

    def at_update(session: Session, step: int) -> object:
        if step == 2:
            raise KeyboardInterrupt
        return update(session, step)

    update = Session.update
    for where, what, instead in (
        (job, "write_step", killed),
        (Session, "update", at_update),
        (steps, "coded", killed),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, what, instead)
            with pytest.raises((KeyboardInterrupt, Stopped)):
                pf.compress(run=tmp_path / "killed", **asked)
    result = pf.compress(run=tmp_path / "killed", **asked)
    assert all(stair.taken for stair in result.stairs)
    for step in ("1-shrink", "2-distil", "3-prune", "4-quantize"):
        files = [tmp_path / run / "steps" / step / "model" / WEIGHTS for run in ("whole", "killed")]
        assert files[0].read_bytes() == files[1].read_bytes(), step
    ends = [tmp_path / run / "model" / WEIGHTS for run in ("whole", "killed")]
    assert ends[0].read_bytes() == ends[1].read_bytes()


def test_a_shrunk_model_is_an_ordinary_one_within_its_size(trained: Path, tmp_path: Path) -> None:
    result = pf.compress(
        model=trained, run=tmp_path / "few", by="shrink", limits=("size=0.6x",), **QUICK
    )
    first, last = result.first.figures, result.last.figures
    assert last.size <= 0.6 * first.size
    assert last.parameters < first.parameters
    model = pf.load(tmp_path / "few" / "model")
    assert not list(coded_maps(model))
    assert str(model.config.pattern) in result.stairs[1].done


def test_what_matters_least_goes_first() -> None:
    """A model with one silent block and one silent head loses nothing by losing them."""
    model = pf.build(pf.preset("gpt2-pocket", pattern="(sf)x2"))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        model.blocks[3].out.weight.zero_()
        model.blocks[0].out.weight[:, 32:64] = 0
    tokens = torch.randint(1000, (2, 20), generator=generator)
    worth = importance(model, [model(tokens, targets=tokens).loss])
    assert int(worth["blocks.0"].argmin()) == 1
    blocks = {path: 1.0 for path, _ in places(model)} | {"blocks.3": 0.0}
    known = prices(model, size_price)
    kept = choose(model, worth, blocks, known, save=known.unit["FeedForward"])
    assert set(kept) in ({"blocks.3"}, {"blocks.0"})
    more = choose(model, worth, blocks, known, save=0.3 * size_price(model))
    assert more["blocks.3"] is None or len(more["blocks.3"]) < 512


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"by": "melt"}, "melt"),
        ({"by": "prune,prune"}, "twice"),
        ({"by": "prune,distil"}, "zeros would be filled again; prune after it"),
        ({"bits": 5}, "bits are 8, or 2 to 4"),
        ({"sparsity": 1.5}, "between 0 and 1"),
        ({"score": "luck"}, "unknown score 'luck'"),
        ({"limits": ("size=1parsec",)}, "unit"),
        ({"limits": ("loss=much",)}, "loss=.1%"),
        ({"limits": ("size=1MB", "size=2MB")}, "two limits of size"),
        ({"limits": ("memory=1MB",)}, "memory"),
        ({"tokens": 3}, "tokens"),
    ],
)
def test_bad_wishes_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CompressRequest(model=Path("x"), **fields)  # type: ignore[arg-type]


def test_bad_input_is_one_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["compress", str(tmp_path / "nowhere")],
        ["compress", str(trained), "--run", str(trained)],
        ["compress", str(trained), "--by", "melt"],
    ):
        assert main(words) == 2
        told = capsys.readouterr().err.strip()
        assert told.startswith("parformer compress: ")
        assert "\n" not in told


def test_json_is_the_result(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compress", str(trained), "--run", str(tmp_path / "few"), "--json", "--rounds", "6"]
    assert main([*words, "--tokens", "2048", "--threads", "1"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [stair["name"] for stair in values["stairs"]] == ["original", "quantize"]
