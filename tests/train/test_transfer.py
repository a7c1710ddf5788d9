"""Are layers taught one by one as MobileBERT's are, and do students begin as DistilBERT did?"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import parformer as pf
from parformer.blocks.taps import Taps
from parformer.errors import ConfigError
from parformer.model import Model
from parformer.recipe import Recipe, read_recipe
from parformer.shaping import CompressConfig
from parformer.train.distributed import Workers
from parformer.train.job import train_model
from parformer.train.objective import layers_apart
from parformer.train.session import Session
from parformer.train.transfer import Transfer

SMALL: dict[str, object] = {
    "model.d_model": 32,
    "model.d_inner": 48,
    "data.corpus": "python-docs",
    "train.batch": 2,
    "train.tgt_len": 16,
    "train.steps": 20,
    "train.optimizer": "adam",
    "train.learning_rate": 0.01,
    "train.weight_decay": 0.0,
    "train.clip": 0.0,
    "train.compile": "off",
    "train.precision": "fp32",
    "train.evaluate_tokens": 1024,
    "train.final_tokens": 1024,
}


def small(**changes: object) -> Recipe:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return read_recipe("llama-pocket", SMALL | {"model.pattern": "sfsf"} | named)


@pytest.fixture
def teacher(tmp_path: Path) -> Model:
    model = pf.build(small(model__pattern="(sf)x4").model, seed=7)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save(tmp_path / "teacher")
    return model


def session_of(recipe: Recipe) -> Session:
    tokens = torch.randint(200, (3000,), generator=torch.Generator().manual_seed(1)).numpy()
    return Session(recipe, tokens, workers=Workers())


def test_the_timetable_is_the_published_one() -> None:
    """Written out from the facts: 240,000 updates, 10,000 of them for each of 24 layers."""
    transfer = Transfer(layers=24, steps=240_000)
    for step in (0, 500, 999, 5_000, 9_999, 10_000, 123_456, 239_999):
        layer, within = divmod(step, 10_000)
        assert transfer.active(step) == layer
        share = within / 10_000
        wanted = min(0.9 + 0.1 * math.sqrt(1 - share), 10 * (within + 1) / 10_000)
        assert transfer.background(step) == pytest.approx(wanted)
        paces = [transfer.pace(n, step) for n in range(24)]
        assert paces == [0.3] * layer + [3.0] + [0.0] * (23 - layer)
        assert transfer.pace(None, step) == 0.0
    assert transfer.active(240_000) is None
    assert transfer.pace(None, 240_000) == 1.0


def test_an_update_is_that_of_a_twin_with_its_own_rates(teacher: Model, tmp_path: Path) -> None:
    recipe = small(
        compress__teacher=str(tmp_path / "teacher"),
        compress__features=2.0,
        compress__progressive=0.4,
    )
    session = session_of(recipe)
    twin = pf.build(session.model.config, seed=recipe.train.seed)
    adams = [torch.optim.Adam(block.parameters()) for block in twin.blocks]
    first = {name: p.detach().clone() for name, p in twin.named_parameters()}
    for step in range(4):  # two of the first layer, two of the second
        active = step // 2
        batch = session.reading.batches.at(step)
        own, theirs = Taps("output", gradients=True), Taps("output")
        twin(batch.tokens_bt, taps=own)
        teacher(batch.tokens_bt, taps=theirs)
        x, y = own.heard[str(active)]["output"], theirs.heard[str(2 * active + 1)]["output"]
        size = x.shape[-1:]
        loss = 2.0 * F.mse_loss(F.layer_norm(x, size), F.layer_norm(y, size)) / 4
        twin.zero_grad()
        loss.backward()
        within = step - 2 * active
        background = min(0.9 + 0.1 * math.sqrt(1 - within / 2), 10 * (within + 1) / 2)
        for number, adam in enumerate(adams):
            pace = 3.0 if number == active else 0.3 if number < active else 0.0
            for group in adam.param_groups:
                group["lr"] = 0.01 * background * pace
                group["betas"], group["eps"] = (0.9, 0.999), 1e-8
            adam.step()
        told, _ = session.update(step)
        assert float(told) == pytest.approx(float(loss.detach()), rel=1e-4)
    betas = session.optimizer.param_groups[0]["betas"]
    assert tuple(betas) == (0.9, 0.999)
    for name, parameter in session.model.named_parameters():
        wanted = dict(twin.named_parameters())[name]
        torch.testing.assert_close(parameter, wanted, rtol=1e-2, atol=2e-3)
        moved = not torch.equal(parameter, first[name])
        assert moved == name.startswith(("blocks.0.", "blocks.1.")), name


def test_afterwards_all_learn_from_the_answers_and_a_stop_changes_nothing(
    teacher: Model, tmp_path: Path
) -> None:
    recipe = small(
        compress__teacher=str(tmp_path / "teacher"),
        compress__features=2.0,
        compress__attention=1.0,
        compress__progressive=0.5,
        compress__take="ends",
        train__steps=8,
        train__checkpoint_every=3,
    )
    train_model(recipe, tmp_path / "whole")
    train_model(recipe, tmp_path / "parts", until=3)
    train_model(recipe, tmp_path / "parts")
    whole, parts = (
        dict(pf.load(tmp_path / n / "model").named_parameters()) for n in ("whole", "parts")
    )
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    table = dict(teacher.named_parameters())["embedding.words.tables.0"]
    assert not torch.equal(whole["embedding.words.tables.0"], table)  # it learned in the end


def test_students_begin_as_what_they_take(teacher: Model, tmp_path: Path) -> None:
    asked = {"compress__teacher": str(tmp_path / "teacher")}
    known = dict(teacher.named_parameters())
    layers = session_of(small(**asked, compress__take="layers")).model
    for name, tensor in layers.named_parameters():
        if name.startswith("blocks."):
            number = int(name.split(".")[1])
            there = {0: 0, 1: 1, 2: 6, 3: 7}[number]  # the first and the last of four layers
            name = name.replace(f"blocks.{number}.", f"blocks.{there}.")
        assert torch.equal(tensor, known[name])
    ends = session_of(small(**asked, compress__take="ends")).model
    fresh = session_of(small(**asked)).model
    for name, tensor in ends.named_parameters():
        source = dict(fresh.named_parameters()) if name.startswith("blocks.") else known
        assert torch.equal(tensor, source[name])
    with pytest.raises(ConfigError, match="has shape"):
        session_of(small(**asked, compress__take="layers", model__d_inner=64))
    with pytest.raises(ConfigError, match="has 4 blocks 's'"):
        session_of(small(**asked, compress__take="layers", model__pattern="(sf)x5"))


def test_layers_with_bottlenecks_are_compared_as_wholes() -> None:
    """IB-BERT's and MobileBERT's are as wide between layers and not inside of them."""
    tokens = torch.arange(12)[None]
    models = [
        pf.build(pf.preset("mobilebert-pocket", pattern=pattern, vocab_size=97))
        for pattern in ("<sff>[feed=shared]x2", "<sf>[width=96,feed=outside]x2")
    ]
    heard, told = Taps("output", "weights", gradients=True), Taps("output", "weights")
    for model, taps in zip(models, (heard, told), strict=True):
        model(tokens, taps=taps)
    config = CompressConfig(teacher="x", features=1.0, attention=1.0)
    both = [layers_apart(heard, told, config, only) for only in (0, 1)]
    whole = layers_apart(heard, told, config)
    torch.testing.assert_close(sum(both), whole)
    x, y = (t.heard["1"]["output"] for t in (heard, told))
    looks = [t.heard["1.0"]["weights"] for t in (heard, told)]
    size = x.shape[-1:]
    wanted = F.mse_loss(F.layer_norm(x, size), F.layer_norm(y, size)) / 2
    wanted = wanted + (looks[1] * (looks[1].log() - looks[0].log())).sum(-1).mean() / 2
    torch.testing.assert_close(both[1], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"progressive": 0.5, "teacher": "x"}, "set one of them"),
        ({"progressive": 1.0, "teacher": "x", "features": 1.0}, "below 1"),
        ({"take": "ends"}, "needs a compress.teacher"),
        ({"take": "all", "teacher": "x"}, "layers"),
    ],
)
def test_bad_wishes_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CompressConfig(**fields)  # type: ignore[arg-type]
