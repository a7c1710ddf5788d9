"""A model with counts: learns beside them, and carries, saves and exports them like any part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import parformer as pf
from parformer.counts import count
from parformer.counts.look import Readable, log_chances
from parformer.counts.prior import PARTS
from parformer.counts.recall import find_repeats, longest_repeat
from parformer.data.batches import Streams, Windows
from parformer.errors import ConfigError, FolderError
from parformer.model import Model
from parformer.recipe import Recipe
from parformer.state import State
from parformer.train.checkpoint import read_checkpoint, write_checkpoint
from parformer.train.distributed import Workers
from parformer.train.session import Session
from tests.train.trials import FAMILIES, make_prepared, make_recipe

TOKENS = make_prepared().splits["train"].tokens
CAUSAL = [family for family in FAMILIES if family != "bert"]


def recipe(family: str = "transformer-xl", **changes: object) -> Recipe:
    return make_recipe(family, **{"model__counts": 6000, "model__recall": 20, **changes})


def session(family: str = "transformer-xl", **changes: object) -> Session:
    return Session(recipe(family, **changes), TOKENS, workers=Workers())


def trained(family: str) -> Model:
    training = session(family, model__dropout=0.0)
    for step in range(3):
        training.update(step)
    assert training.model.prior is not None
    return training.model.eval()


@pytest.mark.parametrize("family", CAUSAL)
def test_a_text_in_pieces_gives_what_it_gives_in_one(family: str) -> None:
    model = trained(family)
    tokens = torch.from_numpy(TOKENS[:24].astype(np.int64)).view(2, 12)
    whole = model(tokens)
    first = model(tokens[:, :5])
    second = model(tokens[:, 5:6], state=first.state)
    third = model(tokens[:, 6:], state=second.state)
    pieces = torch.cat((first.logits, second.logits, third.logits), dim=1)
    assert torch.allclose(pieces, whole.logits, atol=1e-5)
    # and the last logits alone are the last of all
    assert torch.allclose(model(tokens, last_only=True).logits, whole.logits[:, -1:], atol=1e-5)


def test_counts_are_added_as_far_as_they_are_trusted() -> None:
    model = trained("gpt2")
    assert model.prior is not None
    head = model.head
    tokens = torch.from_numpy(TOKENS[:16].astype(np.int64))[None]
    out = model(tokens)
    told = log_chances([Readable(model.prior.table)], tokens, 16)
    expected = head.out(out.hidden) + (1 + head.trust(out.hidden)) * told  # type: ignore[union-attr, operator]
    for place in range(16):
        token, length = longest_repeat(tokens[0, : place + 1].tolist(), 20)
        if length:
            surely = head.surely(out.hidden[0, place])  # type: ignore[union-attr, operator]
            expected[0, place, token] += (head.repeats[length] + surely)[0]  # type: ignore[union-attr, index]
    assert torch.allclose(out.logits, expected, atol=1e-5)
    losses = model(tokens, targets=tokens).losses
    assert torch.allclose(
        losses, -expected.log_softmax(-1).gather(-1, tokens[..., None])[..., 0], atol=1e-5
    )


def test_the_price_is_what_was_built() -> None:
    config = recipe().model
    model = pf.build(config)
    price = pf.cost(config, tgt_len=8, mem_len=8, batch=2)
    assert price.parameters == sum(p.numel() for p in model.parameters())
    state = None
    for _ in range(4):
        state = model(torch.zeros(2, 8, dtype=torch.int64), state=state).state
    assert state is not None
    assert (
        state.bytes == pf.cost(config, tgt_len=8, mem_len=model.config.mem_len, batch=2).state_bytes
    )


def test_before_anything_was_counted_all_tokens_are_alike() -> None:
    config = recipe().model
    config = config.replaced(recall=0)
    with_counts, without = pf.build(config), pf.build(config.replaced(counts=0, recall=0))
    without.load_state_dict(with_counts.state_dict(), strict=False)
    tokens = torch.arange(6)[None]
    got, expected = with_counts(tokens).logits, without(tokens).logits
    assert torch.allclose(got.log_softmax(-1), expected.log_softmax(-1), atol=1e-5)


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = trained("transformer-xl")
    model.save(tmp_path / "m")
    tokens = torch.from_numpy(TOKENS[:24].astype(np.int64)).view(2, 12)
    assert torch.equal(pf.load(tmp_path / "m")(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("family", CAUSAL)
def test_a_training_goes_on_bit_for_bit(family: str, tmp_path: Path) -> None:
    whole, broken = session(family), session(family)
    expected = [float(whole.update(step)[0]) for step in range(5)]
    seen = [float(broken.update(step)[0]) for step in range(2)]
    write_checkpoint(tmp_path, broken.checkpoint(2, {}), keep=2)
    start = read_checkpoint(tmp_path / f"step-{2:09d}")
    again = Session(recipe(family), TOKENS, workers=Workers(), start=start)
    assert seen + [float(again.update(step)[0]) for step in range(2, 5)] == expected


def test_learning_beside_counts_starts_where_counts_are() -> None:
    beside, alone = session(), Session(make_recipe(), TOKENS, workers=Workers())
    assert float(beside.update(0)[0]) < 0.8 * float(alone.update(0)[0])


def test_what_is_read_was_left_out_of_what_is_asked() -> None:
    """The text that nobody has but the part itself must not be known to the table beside it."""
    training = session()
    model = training.model
    assert model.prior is not None
    edge = len(TOKENS) // PARTS
    own = torch.from_numpy(TOKENS[: edge - 8].astype(np.int64))[None]
    zeros = torch.zeros_like(own)

    def nats(part: Tensor | None) -> float:
        told = model.prior(own, None, part)[0].counted  # type: ignore[misc]
        return float(-told[0, :-1].gather(1, own[0, 1:, None]).mean())

    assert nats(zeros) > nats(zeros + 1) + 0.02
    assert nats(zeros) > nats(None) + 0.02


@pytest.mark.parametrize("kind", [Streams, Windows])
def test_batches_say_which_part_they_are_from(kind: type[Streams | Windows]) -> None:
    text = np.arange(1000)
    batches = kind(text, batch=4, length=7, seed=3, parts=5)
    for index in range(2 * batches.per_epoch):
        batch = batches.at(index)
        assert torch.equal(batch.inputs["part"], batch.targets // 200)
    assert "part" not in kind(text, batch=4, length=7, seed=3).at(0).inputs


def test_a_step_is_exported() -> None:
    model = trained("transformer-xl")

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
            out = self.model(tokens, state=state)
            assert out.logits is not None
            assert out.state is not None
            return out.logits, out.state

    tokens = torch.from_numpy(TOKENS[:12].astype(np.int64)).view(2, 6)
    state = model(tokens).state
    with torch.no_grad():
        exported = torch.export.export(Step(), (tokens, state)).module()
        logits, after = exported(tokens, state)
    expected = model(tokens, state=state)
    assert torch.allclose(logits, expected.logits, atol=1e-5)
    assert torch.equal(after.recent_bk, expected.state.recent_bk)


def test_rows_of_a_state_keep_their_tokens() -> None:
    model = trained("transformer-xl")
    tokens = torch.from_numpy(TOKENS[:30].astype(np.int64)).view(3, 10)
    state = model(tokens).state
    assert state is not None
    turned = state.rows(torch.tensor([2, 0]))
    expected = model(tokens[:, :1], state=state).logits[[2, 0]]
    assert torch.allclose(model(tokens[[2, 0], :1], state=turned).logits, expected, atol=1e-5)


def test_counts_that_no_head_can_use_are_refused() -> None:
    with pytest.raises(ConfigError, match="they need head='lm'"):
        pf.preset("bert-pocket", counts=10_000)
    with pytest.raises(ConfigError, match="takes 1,448 bytes at least"):
        pf.preset("pocket", counts=9)
    with pytest.raises(ConfigError, match="2 to 8 tokens"):
        pf.preset("pocket", counts=10_000, count_order=1)


@pytest.mark.parametrize("most", [3, 10, 99])
def test_repeats_are_found_as_by_looking_at_every_place(most: int) -> None:
    """The longest, and of equally long ones the last; compiled and plain alike."""
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 3, (4, 60)))
    tokens[3, 10:30] = tokens[3, 30:50]
    expected, length = find_repeats(tokens, 40, most)
    for row, line in enumerate(tokens.tolist()):
        for place in range(40):
            end = 20 + place
            best = (0, 0)
            for start in range(end - 1, -1, -1):
                if start < end - most:
                    break
                same = 0
                while same < 32 and same <= start and line[start - same] == line[end - same]:
                    same += 1
                if same >= 2 and same > best[1]:
                    best = (line[start + 1], same)
            assert (int(expected[row, place]), int(length[row, place])) == best
            assert longest_repeat(line[: end + 1], most) == best


def test_recall_alone_expects_what_followed_before() -> None:
    model = pf.build(recipe(model__counts=0).model)
    assert model.prior is not None
    assert model.prior.table is None
    tokens = torch.tensor([[7, 8, 9, 1, 2, 7, 8, 9]])
    logits = model(tokens).logits
    plain = pf.build(recipe(model__counts=0, model__recall=0).model)
    plain.load_state_dict(model.state_dict(), strict=False)
    more = logits - plain(tokens).logits
    assert more[0, -1, 1] > 0.5
    assert more[0, -1].nonzero().flatten().tolist() == [1]
    assert not more[0, :6].any()


def test_a_table_of_another_model_is_refused_when_a_model_is_loaded(tmp_path: Path) -> None:
    model = trained("gpt2")
    assert model.prior is not None
    other = count(TOKENS[:500] % 100, vocab_size=100, size=6000)
    with torch.no_grad():
        model.prior.table.copy_(torch.from_numpy(other))  # type: ignore[union-attr]
    model.save(tmp_path / "m")
    with pytest.raises(FolderError, match="is for 100 tokens, the model for 256"):
        pf.load(tmp_path / "m")
    with torch.no_grad():
        model.prior.table.copy_(torch.from_numpy(other)[torch.arange(6000) // 2])  # type: ignore[union-attr]
    model.save(tmp_path / "n")
    with pytest.raises(FolderError, match="no table of counts"):
        pf.load(tmp_path / "n")


def test_a_model_that_is_made_in_inference_mode_counts_too() -> None:
    with torch.inference_mode():
        model = pf.build(recipe().model)
        assert model(torch.arange(4)[None]).logits is not None
