"""Does a student learn what its teacher says, and is every part of that loss what it says?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import parformer as pf
from parformer.blocks.coded import CodedLinear
from parformer.blocks.taps import Taps
from parformer.compress.coding import coded
from parformer.compress.pruning import sparsity
from parformer.data.batches import Batch
from parformer.errors import ConfigError, FolderError
from parformer.model import Model, build_from
from parformer.recipe import Recipe, read_recipe
from parformer.shaping import CompressConfig
from parformer.tasks import find_task
from parformer.train.job import train_model
from parformer.train.objective import Distilling, distance, layers_apart, matched
from parformer.train.shape import Shaping
from parformer.weights import matrices

SMALL: dict[str, object] = {
    "model.d_model": 64,
    "model.d_inner": 128,
    "model.pattern": "(sf)x2",
    "data.corpus": "python-docs",
    "train.batch": 4,
    "train.steps": 12,
    "train.compile": "off",
    "train.precision": "fp32",
    "train.evaluate_tokens": 1024,
    "train.final_tokens": 1024,
}


def small(**changes: object) -> Recipe:
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return read_recipe("llama-pocket", SMALL | named)


def test_soft_answers_are_compared_as_the_formulas_say() -> None:
    own, theirs = (torch.randn(5, 7, dtype=torch.float64) for _ in range(2))
    heat = 3.0
    p, q = (torch.softmax(x / heat, -1) for x in (theirs, own))
    divergence = float((p * (p.log() - q.log())).sum(-1).mean()) * heat**2
    entropy = float(-(p * q.log()).sum(-1).mean()) * heat**2
    for kind, wanted in (
        ("kl", divergence),
        ("cross-entropy", entropy),
        ("mse", float((own - theirs).square().mean())),
    ):
        config = CompressConfig(teacher="x", temperature=heat, soft_loss=kind)  # type: ignore[arg-type]
        assert float(distance(own, theirs, config)) == pytest.approx(wanted)


def normed(z: Tensor) -> Tensor:
    spread = (z.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    return (z - z.mean(-1, keepdim=True)) / spread


def hidden(*tensors: Tensor, what: str = "output") -> Taps:
    taps = Taps("output", "weights", gradients=True)
    for place, tensor in enumerate(tensors):
        taps.at(place).tell(what, tensor)
    return taps


def test_streams_are_compared_layer_by_layer() -> None:
    own = [torch.randn(2, 3, 8, dtype=torch.float64) for _ in range(2)]
    theirs = [torch.randn(2, 3, 8, dtype=torch.float64) for _ in range(4)]
    pairs = [(own[0], theirs[1]), (own[1], theirs[3])]
    config = CompressConfig(teacher="x", features=2.0, means=3.0, variances=5.0)
    wanted = 0.0
    for x, y in pairs:
        wanted += 2 * float((normed(x) - normed(y)).square().mean())
        wanted += 3 * float((x.mean(-1) - y.mean(-1)).square().mean())
        wanted += 5 * float((x.var(-1, correction=0) - y.var(-1, correction=0)).abs().mean())
    found = layers_apart(hidden(*own), hidden(*theirs), config)
    assert float(found) == pytest.approx(wanted / 2, rel=1e-6)


def test_looks_are_compared_by_their_divergence() -> None:
    x, y = (torch.softmax(torch.randn(2, 3, 4, 5, dtype=torch.float64), -1) for _ in range(2))
    wanted = float((y * (y.log() - x.log())).sum(-1).mean())
    config = CompressConfig(teacher="x", attention=7.0)
    taps = (hidden(x, what="weights"), hidden(y, what="weights"))
    assert float(layers_apart(*taps, config)) == pytest.approx(7 * wanted, rel=1e-5)


def test_fewer_layers_learn_from_those_at_the_same_depth() -> None:
    many = {str(n): torch.ones(1) for n in range(12)}
    few = {str(n): torch.ones(1) for n in range(3)}
    assert [other for _, other in matched(few, many)] == ["3", "7", "11"]
    assert [other for _, other in matched(many, many)] == list(many)


def test_a_student_of_itself_has_nothing_to_learn(tmp_path: Path) -> None:
    recipe = small()
    model = pf.build(recipe.model)
    model.save(tmp_path / "teacher")
    config = CompressConfig(
        teacher=str(tmp_path / "teacher"), soft=1.0, features=1.0, attention=1.0, means=1.0
    )
    tokens = torch.randint(256, (2, 9))
    batch = Batch({"tokens": tokens}, tokens)
    objective = Distilling(model, find_task(recipe), config)
    assert float(objective(batch, None)[0].detach()) == pytest.approx(0, abs=1e-5)
    # the loss of the text alone is the task's
    alone = CompressConfig(teacher=config.teacher, soft=0.0)
    hard = Distilling(model, find_task(recipe), alone)
    wanted = F.cross_entropy(model(tokens).logits.flatten(0, 1), tokens.flatten())
    torch.testing.assert_close(hard(batch, None)[0], wanted)
    assert not [name for name, _ in objective.named_parameters() if "teacher" in name]


def test_a_student_comes_nearer_to_its_teacher_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    train_model(small(train__steps=40), tmp_path / "teacher")
    changes = {
        "compress__teacher": str(tmp_path / "teacher"),
        "compress__soft": 1.0,
        "train__checkpoint_every": 5,
    }
    recipe = small(model__pattern="sf", train__seed=3, **changes)
    whole = train_model(recipe, tmp_path / "whole")
    train_model(recipe, tmp_path / "stopped", until=7)
    train_model(None, tmp_path / "stopped")
    models = [pf.load(tmp_path / name / "model") for name in ("whole", "stopped")]
    for a, b in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(a, b)
    assert whole.result is not None

    @torch.no_grad()
    def apart(student: Model) -> float:
        tokens = torch.tensor([list(b"The module defines the following functions and classes: ")])
        teacher = pf.load(tmp_path / "teacher" / "model")
        q, p = (m(tokens).logits.log_softmax(-1) for m in (student, teacher))
        return float((p.exp() * (p - q)).sum(-1).mean())

    assert apart(models[0]) < apart(pf.build(recipe.model, seed=3))


def test_training_in_few_bits_gives_the_model_that_is_kept(tmp_path: Path) -> None:
    """What is scored while training is what the codes give."""
    recipe = small(compress__bits=4)
    train_model(recipe, tmp_path / "run")
    plain = pf.load(tmp_path / "run" / "model")
    shown = build_from(plain.config, dict(plain.named_parameters()))
    Shaping(shown, CompressConfig(bits=4), 10)
    kept = coded(plain, 4, nearest=True)
    tokens = torch.arange(30)[None]
    torch.testing.assert_close(shown(tokens).logits, kept(tokens).logits, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(shown(tokens).logits, plain(tokens).logits, atol=1e-4)


def test_gradients_go_straight_through_few_bits() -> None:
    model = pf.build(small().model)
    Shaping(model, CompressConfig(bits=4), 10)
    linear = model.blocks[1].out
    x = torch.randn(5, linear.in_features)
    linear(x).sum().backward()
    torch.testing.assert_close(linear.weight.grad, x.sum(0).expand(linear.out_features, -1))
    seen = CodedLinear.of(linear.weight.detach(), None, bits=4).weight
    torch.testing.assert_close(linear(x), x @ seen.T)


def test_zeros_rise_by_a_cube_and_stay(tmp_path: Path) -> None:
    recipe = small(compress__sparsity=0.8, compress__prune_until=0.5, train__steps=12)
    train_model(recipe, tmp_path / "run")
    assert sparsity(pf.load(tmp_path / "run" / "model")) == pytest.approx(0.8, abs=0.01)
    config = CompressConfig(sparsity=0.8, prune_from=0.2, prune_until=0.7)
    shares = [config.zeros_at(share) for share in (0.1, 0.2, 0.45, 0.7, 1.0)]
    assert shares == pytest.approx([0, 0, 0.7, 0.8, 0.8])


def test_masks_hold_from_the_first_update_on(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = pf.build(small().model)
    generator = torch.Generator().manual_seed(0)
    masks = {
        name: (torch.rand(weight.shape, generator=generator) < 0.3).byte()
        for name, weight in matrices(model).items()
    }
    save_file(masks, tmp_path / "masks.safetensors")
    recipe = small(compress__masks=str(tmp_path / "masks.safetensors"))
    train_model(recipe, tmp_path / "run")
    trained = matrices(pf.load(tmp_path / "run" / "model"))
    for name, mask in masks.items():
        assert bool((trained[name][mask == 0] == 0).all())
        assert bool((trained[name][mask == 1] != 0).any())
    other = small(model__d_inner=96, compress__masks=str(tmp_path / "masks.safetensors"))
    with pytest.raises(ConfigError, match="another model's"):
        train_model(other, tmp_path / "other")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bits": 7}, "8, or 2 to 4"),
        ({"soft": 2.0}, "share"),
        ({"temperature": 0.0}, "above 0"),
        ({"features": 1.0}, "needs a compress.teacher"),
        ({"sparsity": 1.0}, "below 1"),
        ({"prune_from": 0.9}, "must lie before"),
        ({"means": -1.0}, "negative"),
    ],
)
def test_bad_wishes_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CompressConfig(**fields)  # type: ignore[arg-type]


def test_teachers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    train_model(small(train__steps=1), tmp_path / "teacher")
    teacher = {"compress__teacher": str(tmp_path / "teacher")}
    with pytest.raises(ConfigError, match=r"train\.order=windows"):
        train_model(
            read_recipe("pocket", SMALL | {"compress.teacher": str(tmp_path / "teacher")}),
            tmp_path / "streams",
        )
    with pytest.raises(FolderError, match="same vocabulary"):
        train_model(small(data__tokenizer="character", **teacher), tmp_path / "letters")
    with pytest.raises(FolderError, match="nowhere"):
        train_model(small(compress__teacher=str(tmp_path / "nowhere")), tmp_path / "lost")


def test_classes_are_learned_from_a_teacher(tmp_path: Path) -> None:
    """A student that sees no label of its own tells what its teacher tells."""
    words = [("good", "lovely"), ("bad", "awful")]
    rows = [f"the day was {words[n % 2][1]} {n},{words[n % 2][0]}" for n in range(60)]
    (tmp_path / "days.csv").write_text("text,label\n" + "\n".join(rows) + "\n", "utf-8")
    small = ("model.pattern=sf", "train.batch=8", "train.learning_rate=0.01")
    asked = {"task": "classify", "data": str(tmp_path / "days.csv"), "beside": False}
    pf.train(model="bert-pocket", steps=40, run=tmp_path / "teacher", changes=small, **asked)
    more = (f"compress.teacher={tmp_path / 'teacher'}", "compress.soft=1.0", "train.seed=5")
    pf.train(model="bert-pocket", steps=40, run=tmp_path / "student", changes=small + more, **asked)
    for name in ("teacher", "student"):
        told = pf.predict(model=tmp_path / name, texts=("the day was lovely 3",))
        assert told.predictions[0].label == "good"
