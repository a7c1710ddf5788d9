"""Are tickets drawn as they should be, and set back to what they should?"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

import parformer as pf
from parformer.compress.lottery import Lottery
from parformer.errors import ConfigError
from parformer.recipe import Recipe, read_recipe
from parformer.train.checkpoint import in_order, read_checkpoint
from parformer.train.job import train_model
from parformer.train.run import read_run
from parformer.train.shape import Shaping
from parformer.weights import matrices


def small(**changes: object) -> Recipe:
    fields: dict[str, object] = {
        "model.d_model": 64,
        "model.d_inner": 128,
        "model.pattern": "sf",
        "data.corpus": "python-docs",
        "train.batch": 2,
        "train.steps": 6,
        "train.compile": "off",
        "train.evaluate_tokens": 512,
        "train.final_tokens": 512,
    }
    return read_recipe("llama-pocket", fields | changes)


def test_every_round_leaves_less_and_keeps_within_the_last(tmp_path: Path) -> None:
    tickets = Lottery(recipe=small(), folder=tmp_path, share=0.5).draw(2)
    assert [t.left for t in tickets] == pytest.approx([1, 0.5, 0.25], abs=0.01)
    models = [matrices(pf.load(t.run / "model")) for t in tickets]
    for before, after in pairwise(models[1:]):
        for name in before:
            assert not bool(((before[name] == 0) & (after[name] != 0)).any())
    # the largest of the trained network stay
    trained, first = models[0], models[1]
    sizes = torch.cat([w.abs().flatten() for w in trained.values()])
    stays = torch.cat([(w != 0).flatten() for w in first.values()])
    assert sizes[stays].min() >= sizes[~stays].max()


def test_all_rounds_compute_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of precisions need not end the same way twice."""
    answers = iter(("fp32", "bf16", "bf16"))
    monkeypatch.setattr("parformer.train.plan.find_precision", lambda *_: next(answers))
    tickets = Lottery(recipe=small(), folder=tmp_path, share=0.5).draw(2)
    assert {read_run(ticket.run).train.precision for ticket in tickets} == {"fp32"}


@pytest.mark.parametrize("back", ["first", "step", "random"])
def test_weights_go_back_to_what_they_were(back: str, tmp_path: Path) -> None:
    """Trained once more by hand from where a ticket should begin."""
    recipe = small(**{"train.precision": "fp32"})
    lottery = Lottery(recipe=recipe, folder=tmp_path / back, back=back, step=3, share=0.4)  # type: ignore[arg-type]
    _, ticket = lottery.draw(1)
    begin = {
        "first": lambda: pf.build(recipe.model, seed=recipe.train.seed),
        "step": lambda: pf.load(lottery.begins(1)),
        "random": lambda: pf.load(lottery.begins(1)),
    }[back]()
    if back == "step":
        early = recipe.replaced({"train.checkpoint_every": 3})
        assert train_model(early, tmp_path / "early", until=3).step == 3
        kept = read_checkpoint(in_order(tmp_path / "early" / "checkpoints")[-1])
        for name, weight in begin.named_parameters():
            assert torch.equal(weight, kept.weights[name])
    masks = lottery.masks(tmp_path / back / "round-0")
    by_hand = recipe.replaced({"compress.masks": str(masks)})
    begin.save(tmp_path / "begin", (ticket.run / "tokenizer.json").read_text("utf-8"))
    by_hand = by_hand.replaced({"train.start": str(tmp_path / "begin")})
    train_model(by_hand, tmp_path / "again")
    for a, b in zip(
        pf.load(ticket.run / "model").parameters(),
        pf.load(tmp_path / "again" / "model").parameters(),
        strict=True,
    ):
        assert torch.equal(a, b)
    if back == "random":
        drawn = pf.build(recipe.model, seed=recipe.train.seed)
        assert not torch.equal(begin.blocks[0].qkv.weight, drawn.blocks[0].qkv.weight)


def test_fresh_weights_are_drawn_anew_in_every_round(tmp_path: Path) -> None:
    """A mask that was drawn with some weights says nothing against setting these back."""
    lottery = Lottery(recipe=small(), folder=tmp_path, back="random", share=0.4)
    lottery.draw(2)
    one, two = (pf.load(lottery.begins(number)).blocks[0].qkv.weight for number in (1, 2))
    assert not torch.equal(one, two)
    assert read_run(tmp_path / "round-2").train.start == str(lottery.begins(2))


def test_a_masks_zeros_are_there_before_the_first_update(tmp_path: Path) -> None:
    lottery = Lottery(recipe=small(), folder=tmp_path)
    lottery.draw(0)
    model = pf.build(small().model)
    shaping = Shaping(
        model, small(**{"compress.masks": str(lottery.masks(tmp_path / "round-0"))}).compress, 6
    )
    for name, mask in shaping.masks.items():
        assert bool((matrices(model)[name][~mask] == 0).all())


def test_bad_wishes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="share"):
        Lottery(recipe=small(), folder=tmp_path, share=1.0)
    with pytest.raises(ConfigError, match="step 99"):
        Lottery(recipe=small(), folder=tmp_path, back="step", step=99)
