"""Is a supernet exactly the mixture of its plain models, and where one is drawn, that one?"""

# b batch, t time, d width, l layer, c choice

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from parformer.blocks.base import Block
from parformer.blocks.memory import InputMemory
from parformer.blocks.stack import make_block
from parformer.blocks.state import BlockState, GroupState
from parformer.config import ModelConfig
from parformer.embedding import IGNORE
from parformer.errors import FolderError
from parformer.model import Model, State, build_from
from parformer.pattern import Pattern
from parformer.search.placement.architecture import gumbel_noise, mixing_weights
from parformer.search.placement.choices import Choices
from parformer.search.placement.supernet import (
    Mixture,
    Supernet,
    build_supernet,
    supernet_from,
)
from tests.conftest import context_of, lively, noise, small_config
from tests.search.placement.trials import FAMILIES

LENGTH = 5
SPACE = Choices(
    tuple(
        Pattern.parse(choices).blocks
        for choices in ("sfi", "f s[heads=2]", "i y f", "s f[inner=7] f i")
    )
)
"""Layers of two, three and four choices, in different orders."""
PICKS = ([0, 1, 1, 0], [1, 0, 0, 3], [2, 1, 2, 1], [2, 0, 0, 3])
"""Attention everywhere, identities at the end, in the middle, and hardly anything else."""


def widths(space: Choices = SPACE) -> list[int]:
    return [len(choices) for choices in space.layers]


def make_config(family: str) -> ModelConfig:
    changes: dict[str, Any] = {"n_head": 3, "dropout": 0.0, "dropatt": 0.0}
    if family == "transformer-xl":
        changes |= {"tgt_len": LENGTH, "mem_len": 7}
    if family == "llama":
        changes |= {"n_head": 2, "max_len": 16}  # an even head width, whatever the heads
    return small_config(family, pattern="sf", **changes)


def make_supernet(family: str, space: Choices = SPACE) -> Supernet:
    supernet = build_supernet(make_config(family), space, dtype=torch.float64)
    lively(supernet)
    return cast(Supernet, supernet.train())


def one_hot(picks: Sequence[int], space: Choices = SPACE) -> Tensor:
    return F.one_hot(torch.tensor(picks), max(widths(space))).double()


def some_weights(space: Choices = SPACE, seed: int = 3) -> Tensor:
    """Weights as a step mixes with, none of them nought."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(space.layers), max(widths(space)))
    theta_lc = torch.randn(shape, generator=generator, dtype=torch.float64)
    for layer, width in enumerate(widths(space)):
        theta_lc[layer, width:] = -torch.inf
    return mixing_weights(theta_lc, gumbel_noise(shape, generator), 1.5)


def pieces_of(config: ModelConfig, count: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Texts one after the other, with their targets; a masked model guesses some of them."""
    generator = torch.Generator().manual_seed(5)
    size = (3, count * LENGTH + 1)
    text_bt = torch.randint(config.vocab_size - 1, size, generator=generator)
    if config.causal:
        both = zip(text_bt[:, :-1].split(LENGTH, 1), text_bt[:, 1:].split(LENGTH, 1), strict=True)
        return list(both)
    hidden_bt = torch.rand(size, generator=generator) < 0.3
    tokens_bt = text_bt.masked_fill(hidden_bt, config.vocab_size - 1)
    targets_bt = text_bt.masked_fill(~hidden_bt, IGNORE)
    cut = (tokens_bt[:, :-1].split(LENGTH, 1), targets_bt[:, :-1].split(LENGTH, 1))
    return list(zip(*cut, strict=True))


def carries(config: ModelConfig) -> bool:
    """Whether training takes memory from one text to the next."""
    return config.positions == "relative"


def read(model: Model, count: int = 4) -> tuple[list[Tensor], list[Tensor], State | None]:
    """Hidden streams and losses of texts in a row, with memory where training carries it."""
    hidden, losses, state = [], [], None
    for tokens_bt, targets_bt in pieces_of(model.config, count):
        out = model(tokens_bt, state, targets_bt)
        assert out.loss is not None
        hidden.append(out.hidden)
        losses.append(out.loss)
        state = out.state if carries(model.config) else None
    return hidden, losses, state


def gradients(model: Model, losses: list[Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    torch.stack(losses).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def taken(supernet: Supernet, picks: Sequence[int]) -> dict[str, str]:
    """The supernet's name of every parameter of the plain model."""
    kept = [
        f"blocks.{layer}.choices.{pick}."
        for layer, pick in enumerate(picks)
        if supernet.space.layers[layer][pick].letter != "i"
    ]
    names = {}
    for name in dict(supernet.named_parameters()):
        if not name.startswith("blocks."):
            names[name] = name
        for place, prefix in enumerate(kept):
            if name.startswith(prefix):
                names[f"blocks.{place}.{name.removeprefix(prefix)}"] = name
    return names


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("picks", PICKS, ids=str)
@pytest.mark.parametrize("mode", ["mixed", "drawn"])
def test_one_choice_of_each_layer_is_the_plain_model(
    family: str, picks: list[int], mode: str
) -> None:
    supernet = make_supernet(family)
    supernet.mix(one_hot(picks), picks if mode == "drawn" else None)
    plain = supernet.extract(picks).train()
    assert str(plain.config.pattern) == str(SPACE.pattern(picks))
    ours, our_losses, _ = read(supernet)
    theirs, their_losses, _ = read(plain)
    for one, other in zip(ours + our_losses, theirs + their_losses, strict=True):
        assert torch.equal(one, other)
    names = taken(supernet, picks)
    assert names.keys() == dict(plain.named_parameters()).keys()
    found, expected = gradients(supernet, our_losses), gradients(plain, their_losses)
    assert expected  # something is compared
    for name, gradient in expected.items():
        assert_close(found.pop(names[name]), gradient, rtol=1e-10, atol=1e-12)
    # what was not taken learns nothing
    assert all(not gradient.any() for gradient in found.values())
    assert (mode == "drawn") <= (not found)


def test_texts_are_really_carried() -> None:
    """The comparison above would prove little if no memory made a difference."""
    supernet = make_supernet("transformer-xl")
    supernet.mix(one_hot(PICKS[0]))
    _, with_memory, state = read(supernet)
    assert state is not None
    assert [s.length for s in state.blocks if s is not None] == [7] * 4
    tokens_bt, targets_bt = pieces_of(supernet.config)[-1]
    alone = supernet(tokens_bt, None, targets_bt).loss
    assert not torch.allclose(alone, with_memory[-1])


class Twin:
    """Σ m_i F_i, spelled out with blocks that were built by themselves."""

    def __init__(self, supernet: Supernet, weights_lc: Tensor) -> None:
        config = supernet.config
        outside = {
            name: p.detach().clone()
            for name, p in supernet.named_parameters()
            if not name.startswith("blocks.")
        }
        self.outer = build_from(config.replaced(pattern="i"), outside).train()
        self.blocks: dict[tuple[int, int], Block] = {}
        for layer, choices in enumerate(supernet.space.layers):
            for choice, spec in enumerate(choices):
                made = make_block(config, spec, {}).double().train()
                of = cast(Mixture, supernet.blocks[layer]).choices[choice]
                made.load_state_dict(of.state_dict())
                self.blocks[layer, choice] = made
        self.weights_lc = weights_lc.detach().clone().requires_grad_()
        self.states: dict[tuple[int, int], BlockState | None] = dict.fromkeys(self.blocks)
        self.position = 0

    def read(self, tokens_bt: Tensor, targets_bt: Tensor) -> tuple[Tensor, Tensor]:
        config, outer = self.outer.config, self.outer
        context = context_of(outer, len(tokens_bt), config.memory, self.position)
        x_btd = outer.embedding(tokens_bt, None, self.position)
        for layer in range(len(SPACE.layers)):
            sum_btd = torch.zeros_like(x_btd)
            for choice in range(widths()[layer]):
                place = layer, choice
                y_btd, kept = self.blocks[place](x_btd, self.states[place], context)
                sum_btd = sum_btd + self.weights_lc[place] * y_btd
                self.states[place] = kept if carries(config) else None
            x_btd = sum_btd
        if outer.final_norm is not None:
            x_btd = outer.final_norm(x_btd)
        self.position += tokens_bt.shape[1] if carries(config) else 0
        assert outer.head is not None
        logits_btv = outer.head.logits(x_btd)
        loss = F.cross_entropy(logits_btv.flatten(0, 1), targets_bt.flatten(), ignore_index=IGNORE)
        return x_btd, loss

    def parameter(self, name: str) -> Tensor | None:
        """The gradient of what the supernet calls so."""
        if not name.startswith("blocks."):
            return dict(self.outer.named_parameters())[name].grad
        _, layer, _, choice, rest = name.split(".", 4)
        return dict(self.blocks[int(layer), int(choice)].named_parameters())[rest].grad


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixture_is_a_sum(family: str) -> None:
    supernet, weights_lc = make_supernet(family), some_weights()
    leaf_lc = weights_lc.clone().requires_grad_()
    supernet.mix(leaf_lc)
    hidden, losses, state = read(supernet)
    twin = Twin(supernet, weights_lc)
    answers = [twin.read(*piece) for piece in pieces_of(supernet.config)]
    for ours, our_loss, (theirs, their_loss) in zip(hidden, losses, answers, strict=True):
        assert_close(ours, theirs)
        assert_close(our_loss, their_loss)
    torch.stack([loss for _, loss in answers]).sum().backward()
    for name, gradient in gradients(supernet, losses).items():
        assert_close(gradient, twin.parameter(name), msg=lambda m, name=name: f"{name}: {m}")
    assert leaf_lc.grad is not None
    assert_close(leaf_lc.grad, twin.weights_lc.grad)
    if carries(supernet.config):
        assert state is not None
        for (layer, choice), kept in twin.states.items():
            mixed = cast(GroupState, state.blocks[layer]).blocks[choice]
            assert (mixed is None) == (kept is None)
            if isinstance(kept, InputMemory) and isinstance(mixed, InputMemory):
                assert_close(mixed.inputs_bmd, kept.inputs_bmd)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_gradients_of_the_architecture_agree_with_differences(family: str, floor: float) -> None:
    """Nothing but values: θ is moved a little, the noise stays what it was."""
    supernet = make_supernet(family)
    generator = torch.Generator().manual_seed(11)
    shape = (len(SPACE.layers), max(widths()))
    noise_lc = gumbel_noise(shape, generator)
    numbers_lc = torch.randn(shape, generator=generator, dtype=torch.float64)
    known_lc = torch.arange(shape[1]) < torch.tensor(widths())[:, None]
    first, second = pieces_of(supernet.config)[:2]
    supernet.mix(some_weights())
    with torch.no_grad():
        before = supernet(first[0], None, first[1]).state
    before = before if carries(supernet.config) else None

    def loss_at(numbers_lc: Tensor) -> Tensor:
        theta_lc = numbers_lc.masked_fill(~known_lc, -torch.inf)
        supernet.mix(mixing_weights(theta_lc, noise_lc, 0.7, floor))
        loss: Tensor = supernet(second[0], before, second[1]).loss
        return loss

    numbers_lc.requires_grad_()
    loss_at(numbers_lc).backward()
    assert numbers_lc.grad is not None
    step = 1e-5
    differences_lc = torch.zeros(shape, dtype=torch.float64)
    with torch.no_grad():
        for layer in range(shape[0]):
            for choice in range(shape[1]):
                moved = []
                for sign in (1, -1):
                    other_lc = numbers_lc.clone()
                    other_lc[layer, choice] += sign * step
                    moved.append(float(loss_at(other_lc)))
                differences_lc[layer, choice] = (moved[0] - moved[1]) / (2 * step)
    assert_close(numbers_lc.grad, differences_lc, rtol=1e-5, atol=1e-8)
    assert (numbers_lc.grad[known_lc].abs() > 1e-7).all()
    assert not numbers_lc.grad[~known_lc].any()


class Scaled(nn.Module):
    """A block whose answer is multiplied by a number that stands at one."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, *given: Any) -> tuple[Tensor, BlockState | None]:
        y_btd, state = self.block(*given)
        return y_btd * self.scale, state


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("picks", PICKS, ids=str)
def test_what_is_drawn_learns_how_much_it_should_count(family: str, picks: list[int]) -> None:
    supernet = make_supernet(family)
    leaf_lc = some_weights().requires_grad_()
    supernet.mix(leaf_lc, picks)
    for parameter in supernet.parameters():
        parameter.requires_grad_(False)
    hidden, losses, _ = read(supernet)
    torch.stack(losses).sum().backward()
    # identities stay in this one, for they have a probability too
    twin = supernet.extract(picks).train()
    config = twin.config.replaced(
        pattern=Pattern(SPACE.layers[layer][pick] for layer, pick in enumerate(picks))
    )
    chosen = [
        cast(Mixture, layer).choices[pick]
        for layer, pick in zip(supernet.blocks, picks, strict=True)
    ]
    twin.config, twin.blocks = config, nn.ModuleList(map(Scaled, chosen))
    theirs, their_losses, _ = read(twin)
    for one, other in zip(hidden + losses, theirs + their_losses, strict=True):
        assert torch.equal(one, other)
    torch.stack(their_losses).sum().backward()
    expected_lc = torch.zeros_like(leaf_lc)
    for layer, (pick, block) in enumerate(zip(picks, twin.blocks, strict=True)):
        expected_lc[layer, pick] = cast(Scaled, block).scale.grad  # type: ignore[assignment]
    assert leaf_lc.grad is not None
    assert_close(leaf_lc.grad, expected_lc)
    assert all(leaf_lc.grad[layer, pick] != 0 for layer, pick in enumerate(picks))


def test_weights_turns_take_the_drawn_answer_as_it_is() -> None:
    """Without a gradient to the architecture the answer is not even multiplied by one."""
    supernet = make_supernet("transformer-xl")
    supernet.mix(some_weights(), PICKS[0])
    _, losses, _ = read(supernet)
    plain = supernet.extract(PICKS[0]).train()
    _, expected, _ = read(plain)
    found, wanted = gradients(supernet, losses), gradients(plain, expected)
    for name, theirs in taken(supernet, PICKS[0]).items():
        assert torch.equal(found[theirs], wanted[name])


@pytest.mark.parametrize("family", FAMILIES)
def test_only_what_is_drawn_runs(family: str) -> None:
    supernet, runs = make_supernet(family), []
    for layer, mixture in enumerate(supernet.blocks):
        for choice, made in enumerate(cast(Mixture, mixture).choices):
            made.register_forward_hook(lambda *_, place=(layer, choice): runs.append(place))
    picks = PICKS[1]
    for weights_lc in (some_weights(), some_weights().requires_grad_()):
        runs.clear()
        supernet.mix(weights_lc, picks)
        read(supernet, 1)
        assert runs == list(enumerate(picks))
    runs.clear()
    supernet.mix(some_weights())
    read(supernet, 1)
    assert runs == [(n, c) for n, width in enumerate(widths()) for c in range(width)]


def test_attention_that_was_not_drawn_remembers_what_it_would_have() -> None:
    supernet, rng = make_supernet("transformer-xl"), Random(1)
    inputs: list[list[Tensor]] = [[] for _ in SPACE.layers]
    for layer, mixture in enumerate(supernet.blocks):
        mixture.register_forward_pre_hook(
            lambda _, given, layer=layer: inputs[layer].append(given[0].detach())
        )
    state = None
    drawn_before: set[tuple[int, int]] = set()
    for tokens_bt, targets_bt in pieces_of(supernet.config, 6):
        picks = [rng.randrange(width) for width in widths()]
        drawn_before |= set(enumerate(picks))
        supernet.mix(some_weights().requires_grad_(), picks)
        state = supernet(tokens_bt, state, targets_bt).state
        for layer, remembered in enumerate(state.blocks):
            past_bnd = torch.cat(inputs[layer], dim=1)[:, -7:]
            for spec, kept in zip(SPACE.layers[layer], remembered.blocks, strict=True):
                assert (kept is None) == (spec.letter not in "sy")
                if kept is not None:
                    assert torch.equal(kept.inputs_bmd, past_bnd)
                    assert not kept.inputs_bmd.requires_grad
    assert len(drawn_before) > 8  # many paths were tried


def test_remembering_is_what_running_would_remember() -> None:
    """For every family, length and memory: block by block, `remember` against `forward`."""
    for family in FAMILIES:
        supernet = make_supernet(family)
        config = supernet.config
        attention = cast(Mixture, supernet.blocks[0]).choices[0]
        for memory in (0, 3, 8):
            state: BlockState | None = None
            other: BlockState | None = None
            for seed, time in enumerate((2, 5, 9, 1)):
                x_btd = noise(2, time, config.d_model, seed=seed).requires_grad_()
                context = context_of(supernet, 2, memory)
                _, state = attention(x_btd, state, context)
                other = cast(Block, attention).remember(x_btd, other, context)
                assert (state is None) == (other is None) == (not config.causal or memory == 0)
                if isinstance(state, InputMemory) and isinstance(other, InputMemory):
                    assert torch.equal(state.inputs_bmd, other.inputs_bmd)
                    assert not other.inputs_bmd.requires_grad
        # what remembers nothing has nothing to say
        for choice in (1, 2):
            block = cast(Mixture, supernet.blocks[0]).choices[choice]
            assert cast(Block, block).remember(x_btd, None, context) is None


def test_a_layers_memory_is_taken_apart_and_put_together() -> None:
    supernet = make_supernet("transformer-xl")
    supernet.mix(some_weights())
    _, _, state = read(supernet, 3)
    assert state is not None
    for mixture, remembered in zip(supernet.blocks, state.blocks, strict=True):
        assert remembered is not None
        parts = remembered.tensors()
        again = cast(Mixture, mixture).recall(parts)
        assert isinstance(again, GroupState)
        assert len(again.blocks) == len(cast(Mixture, mixture).choices)
        assert (again.batch, again.length, again.bytes) == (3, 7, remembered.bytes)
        assert again.tensors().keys() == parts.keys()
        assert all(again.tensors()[name] is tensor for name, tensor in parts.items())
    names = [sorted(b.tensors()) for b in state.blocks if b is not None]
    assert names == [[f"{place}.inputs_bmd"] for place in (0, 1, 1, 0)]
    with pytest.raises(FolderError, match="remembers something for a block 'f'"):
        cast(Mixture, supernet.blocks[0]).recall({"1.inputs_bmd": torch.zeros(1, 1, 12)})


def test_a_layer_without_attention_remembers_nothing() -> None:
    supernet = make_supernet("transformer-xl", Choices.uniform(3, "fi"))
    supernet.mix(some_weights(supernet.space))
    _, _, state = read(supernet, 2)
    assert state is not None
    assert state.blocks == (None,) * 3
    assert GroupState((None, None)).batch == GroupState((None, None)).length == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_but_identities_still_runs(family: str) -> None:
    space = Choices.uniform(3, "fi")
    supernet = make_supernet(family, space)
    plain = supernet.extract([1, 1, 1])
    assert str(plain.config.pattern) == "i"
    supernet.mix(one_hot([1, 1, 1], space), [1, 1, 1])
    ours, theirs = read(supernet)[0], read(plain.train())[0]
    assert all(map(torch.equal, ours, theirs))


def test_an_extracted_model_is_a_copy() -> None:
    supernet = make_supernet("gpt2")
    plain = supernet.extract(PICKS[0])
    before = {name: p.detach().clone() for name, p in plain.named_parameters()}
    with torch.no_grad():
        for parameter in supernet.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(p, before[name]) for name, p in plain.named_parameters())
    assert all(p.requires_grad for p in plain.parameters())


def test_identities_leave_no_gap_between_blocks() -> None:
    """More than ten layers, so that layer 1 and layer 10 begin alike."""
    space = Choices.uniform(12, "sfi")
    supernet = make_supernet("gpt2", space)
    picks = [2, 0, 2, 1, 2, 2, 0, 1, 2, 2, 1, 0]
    plain = supernet.extract(picks).train()
    assert str(plain.config.pattern) == "(sf)x2 fs"
    supernet.mix(one_hot(picks, space), picks)
    assert all(map(torch.equal, read(supernet)[0], read(plain)[0]))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_supernet(family: str) -> None:
    config = make_config(family)
    one, two, other = (build_supernet(config, SPACE, seed=seed) for seed in (1, 1, 2))
    weights = dict(one.named_parameters())
    assert all(torch.equal(weights[n], p) for n, p in two.named_parameters())
    assert any(not torch.equal(weights[n], p) for n, p in other.named_parameters())
    again = supernet_from(config, SPACE, {n: p.detach() for n, p in weights.items()})
    assert all(torch.equal(weights[n], p) for n, p in again.named_parameters())
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    # the choices of a layer are not copies of one another
    fed = [cast(Any, one.blocks[n]).choices for n in (0, 2)]
    assert not torch.equal(fed[0][1].out.weight, fed[1][2].out.weight)


def test_deep_gpt2_supernets_start_as_small_as_their_models() -> None:
    config = make_config("gpt2").replaced(d_model=48, d_inner=96, pattern="sf")
    supernet = build_supernet(config, Choices.uniform(16, "sf"))
    for name, parameter in supernet.named_parameters():
        if name.startswith("blocks.") and name.endswith("out.weight"):
            assert float(parameter.detach().std()) == pytest.approx(config.init_std / 4, rel=0.1)


def test_a_state_of_another_space_is_refused() -> None:
    """Six layers of memory do not fit a model of four."""
    supernet = make_supernet("transformer-xl")
    other = make_supernet("transformer-xl", Choices.uniform(6, "sfi"))
    other.mix(some_weights(other.space))
    _, _, state = read(other, 1)
    supernet.mix(some_weights())
    tokens_bt, targets_bt = pieces_of(supernet.config)[0]
    with pytest.raises(Exception, match="belongs to another model"):
        supernet(tokens_bt, state, targets_bt)
