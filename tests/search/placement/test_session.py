"""Do weights and architecture take turns, each with its own text, and go on bit for bit?"""

# l layer, c choice

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from parformer.config import ModelConfig
from parformer.data.batches import Streams
from parformer.errors import ConfigError, CorpusError, FolderError
from parformer.pattern import Pattern
from parformer.recipe import Recipe, SearchConfig, TrainConfig
from parformer.search.placement import session as sessions
from parformer.search.placement.choices import Choices
from parformer.search.placement.prices import exact, refuse_unreachable
from parformer.search.placement.session import (
    Architecture,
    SearchSession,
    space_of,
)
from parformer.search.placement.shares import PLACES, share_out
from parformer.search.placement.supernet import Mixture
from parformer.search.placement.timetable import Timetable
from parformer.tasks import find_task
from parformer.train.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parformer.train.distributed import Workers
from parformer.train.optimizers import state_tensors
from parformer.train.session import Session
from tests.search.placement.trials import (
    FAMILIES,
    MODES,
    TOKENS,
    aims,
    bits,
    chained_text,
    copying_text,
    make_recipe,
    make_session,
    search_of,
    updated,
)

RAGGED = Choices(tuple(Pattern.parse(c).blocks for c in ("sfi", "fs", "s f i f[inner=5]")))
HUNGRY: dict[str, Any] = {"search__penalty": "flops=0.5"}


# Whose turn is it?


def kinds(timetable: Timetable) -> str:
    return "".join(timetable.at(step).kind[0] for step in range(timetable.steps))


def test_a_timetable_as_one_would_write_it_down() -> None:
    table = Timetable.of(20, SearchConfig(warmup=0.25, share=0.4, cycle=5), epoch=1000)
    assert kinds(table) == "wwwww" + "wwwaa" * 3
    assert table.tuning == 15
    first = Timetable.of(9, SearchConfig(warmup=0.0, share=0.2, cycle=2), epoch=1000)
    assert kinds(first) == "wawawawaw"


def test_a_cycle_of_nought_is_an_epoch_of_the_weights() -> None:
    """So many turns of the weights as it takes to read their text once, in every cycle."""
    for epoch, share in ((8, 0.2), (60, 0.25), (100, 0.5), (999, 0.1)):
        table = Timetable.of(5 * epoch, SearchConfig(warmup=0.0, share=share), epoch)
        assert table.cycle - table.turns == pytest.approx(epoch, abs=1)
        assert table.turns / table.cycle == pytest.approx(share, abs=0.5 / table.cycle)
    tiny = Timetable.of(10, SearchConfig(warmup=0.0), epoch=1)
    assert (tiny.cycle, tiny.turns) == (2, 1)


@given(
    steps=st.integers(1, 400),
    warmup=st.floats(0, 0.99),
    share=st.floats(0.01, 0.99),
    cycle=st.just(0) | st.integers(2, 50),
    epoch=st.integers(1, 60),
)
@settings(max_examples=150)
def test_every_update_has_one_owner_and_nothing_is_left_out(
    steps: int, warmup: float, share: float, cycle: int, epoch: int
) -> None:
    config = SearchConfig(warmup=warmup, share=share, cycle=cycle)
    table = Timetable.of(steps, config, epoch)
    turns = [table.at(step) for step in range(steps)]
    for kind in ("weights", "architecture"):
        indices = [turn.index for turn in turns if turn.kind == kind]
        assert indices == list(range(len(indices)))  # 0, 1, 2, … without a gap
    assert table.warmup == round(warmup * steps)
    assert all(turn.kind == "weights" for turn in turns[: table.warmup])
    assert 1 <= table.turns < table.cycle
    assert cycle in (0, table.cycle)
    for start in range(table.warmup, steps - table.cycle + 1, table.cycle):
        spell = [turn.kind[0] for turn in turns[start : start + table.cycle]]
        assert "".join(spell) == "w" * (table.cycle - table.turns) + "a" * table.turns
    assert table.turns == min(table.cycle - 1, max(1, round(share * table.cycle)))


# Whose text is it?


def shares(**changes: Any) -> Recipe:
    return make_recipe(train__batch=2, train__accumulate=1, train__tgt_len=4, **changes)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 0.75])
@pytest.mark.parametrize("length", [64 * 20, 64 * 20 + 1, 12_345, 99_999])
def test_the_text_is_shared_out(share: float, length: int) -> None:
    own, others = share_out(np.arange(length), shares(search__share=share))
    both = np.concatenate((own, others))
    assert len(np.unique(both)) == len(both)  # nobody reads what the other reads
    assert length - len(both) < PLACES
    assert len(others) / len(both) == pytest.approx(share, abs=0.5 * PLACES / len(both))
    assert (np.diff(own) > 0).all()  # in the order of the text
    assert (np.diff(others) > 0).all()
    for part in (own, others):  # and from all over it
        stretches, _ = np.histogram(part, bins=PLACES, range=(0, PLACES * (length // PLACES)))
        assert len(np.unique(stretches)) == 1
        assert stretches[0] > 0


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5, 0.8])
def test_a_text_that_is_too_short_is_refused_with_the_length_it_needs(share: float) -> None:
    recipe = make_recipe(search__share=share)
    with pytest.raises(CorpusError, match=r"has 100 tokens, but a search .* needs") as caught:
        share_out(np.zeros(100, np.uint8), recipe)
    said = str(caught.value)
    assert "\n" not in said
    assert "lower train.batch or train.tgt_len" in said
    needed = int(said.split(" needs ")[1].split(":")[0].replace(",", ""))
    parts = share_out(np.zeros(needed, np.uint8), recipe)  # what it says is enough
    for part in parts:
        find_task(recipe).batches(part)
    with pytest.raises(CorpusError, match=f"has {needed - 1:,} tokens"):
        share_out(np.zeros(needed - 1, np.uint8), recipe)


def marked(recipe: Recipe, length: int) -> Any:
    """A text whose tokens say whose they are: below 100 the weights', from there on the other's."""
    tokens = np.zeros(length, np.uint8)
    places = np.arange(length)
    own, others = share_out(places, recipe)
    tokens[own], tokens[others] = places[own] % 97, 100 + places[others] % 97
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_nobody_reads_the_others_text(family: str, mode: str) -> None:
    recipe = make_recipe(family, search__mode=mode, train__steps=40)
    session = make_session(recipe, tokens=marked(recipe, 4000))
    seen: dict[str, list[Tensor]] = {"weights": [], "architecture": []}
    for reading in (session.reading, session.other_reading):
        read = reading.batches.at

        def record(index: int, rows: slice, read: Any = read) -> Any:
            batch = read(index, rows)
            places = batch.targets_bt != -100
            seen[session.turn.kind].append(batch.targets_bt[places])
            return batch

        reading.batches.at = record  # type: ignore[method-assign]
    updated(session, 0, 40)
    assert len(seen["weights"]) == sum(k == "w" for k in kinds(session.timetable))
    assert len(seen["architecture"]) == sum(k == "a" for k in kinds(session.timetable))
    assert int(torch.cat(seen["weights"]).max()) < 100 <= int(torch.cat(seen["architecture"]).min())


def test_every_turn_reads_the_next_batch_of_its_own() -> None:
    session = make_session(make_recipe(train__steps=30))
    asked: dict[str, list[int]] = {"weights": [], "architecture": []}
    for kind, reading in (("weights", session.reading), ("architecture", session.other_reading)):
        read = reading.batches.at

        def record(index: int, rows: slice, kind: str = kind, read: Any = read) -> Any:
            asked[kind].append(index)
            return read(index, rows)

        reading.batches.at = record  # type: ignore[method-assign]
    updated(session, 0, 30)
    assert all(indices == list(range(len(indices))) for indices in asked.values())
    assert len(asked["weights"]) + len(asked["architecture"]) == 30


# What moves, and what does not?


def weights_of(session: SearchSession) -> dict[str, list[float]]:
    weights = {n: p.detach().flatten().tolist() for n, p in session.model.named_parameters()}
    moments = state_tensors(session.optimizer, session.model)
    return weights | {name: tensor.flatten().tolist() for name, tensor in moments.items()}


def architecture_of(session: SearchSession) -> dict[str, Any]:
    moments = state_tensors(session.adam, session.architecture)
    return {name: tensor.flatten().tolist() for name, tensor in moments.items()} | {
        "numbers": session.architecture.numbers_lc.detach().tolist(),
        "picks": list(session.picks),
        "changed": session.changed,
        "steered": session.steered,
    }


def memory_of(reading: Any) -> dict[str, list[float]]:
    return {name: tensor.flatten().tolist() for name, tensor in reading.memory()[0].items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
def test_only_the_owner_of_a_turn_moves(family: str, mode: str) -> None:
    recipe = make_recipe(family, search__mode=mode, train__steps=11, **HUNGRY)
    session = make_session(recipe)
    for step in range(11):
        weights, architecture = weights_of(session), architecture_of(session)
        own, others = memory_of(session.reading), memory_of(session.other_reading)
        session.update(step)
        if session.turn.kind == "weights":
            assert architecture_of(session) == architecture
            assert weights_of(session) != weights
            assert memory_of(session.other_reading) == others
            assert (memory_of(session.reading) != own) == (family == "transformer-xl")
        else:
            assert weights_of(session) == weights
            assert architecture_of(session) != architecture
            assert memory_of(session.reading) == own
            assert (memory_of(session.other_reading) != others) == (family == "transformer-xl")
        assert all(p.grad is None and p.requires_grad for p in session.parameters)
        assert session.architecture.numbers_lc.grad is None
    assert kinds(session.timetable) == "www" + "wwa" * 2 + "ww"


def test_the_architecture_stays_alike_through_the_warm_up() -> None:
    session = make_session(make_recipe(train__steps=8, search__warmup=0.75, **HUNGRY))
    assert session.timetable.warmup == 6
    updated(session, 0, 6)
    assert not session.architecture.numbers_lc.any()
    assert_close(session.probabilities(), torch.full((3, 3), 1 / 3))


@pytest.mark.parametrize("mode", MODES)
def test_mixing_follows_noise_temperature_and_floor(mode: str) -> None:
    recipe = make_recipe(search__mode=mode, search__floor=0.1, train__steps=12)
    session = make_session(recipe)
    search = search_of(recipe)
    for step in range(12):
        numbers_lc = session.architecture.numbers_lc.detach().clone()
        session.update(step)
        done = max(0, step - 3) / 9  # it falls once the architecture moves
        heat = search.temperature * (search.final_temperature / search.temperature) ** done
        assert session.temperature(step) == pytest.approx(heat)
        expected_lc = 0.9 * torch.softmax((numbers_lc + session._noise(step)) / heat, -1) + 0.1 / 3
        if mode == "soft" and step < 3:  # evenly and without noise while the weights warm up
            expected_lc = torch.full((3, 3), 1 / 3)
        for layer, mixture in enumerate(session.model.blocks):
            assert isinstance(mixture, Mixture)
            assert mixture.weights_c is not None
            assert_close(mixture.weights_c.detach(), expected_lc[layer])
            assert mixture.weights_c.requires_grad == (session.turn.kind == "architecture")
            best = int(expected_lc[layer].argmax())
            assert mixture.drawn == (best if mode == "sampled" else None)
    assert session.temperature(0) == 5.0
    assert session.temperature(12) == pytest.approx(0.087)
    even = make_session(make_recipe(search__final_temperature=5.0))
    assert even.temperature(5) == 5.0


def test_noise_depends_on_seed_and_step_alone() -> None:
    recipe = make_recipe()
    session, other = make_session(recipe), make_session(recipe.replaced({"train.seed": 1}))
    ranks = [make_session(recipe, workers=Workers(rank=rank, count=2)) for rank in range(2)]
    shape = (3, 3)
    for step in (0, 1, 7):
        noise_lc = session._noise(step)
        assert noise_lc.shape == shape
        torch.manual_seed(step + 99)
        updated(session, 0, 1)  # whatever happened before
        for same in (session, *ranks):
            assert torch.equal(same._noise(step), noise_lc)
        assert not torch.equal(other._noise(step), noise_lc)
        assert not torch.equal(session._noise(step + 1), noise_lc)


def test_processes_drop_other_numbers_but_draw_the_same_path() -> None:
    """Dropout has a seed per process, the path must not."""
    recipe = make_recipe(search__mode="sampled")
    paths = []
    for rank in range(2):
        session = make_session(recipe, workers=Workers(rank=rank, count=2))
        cast(Any, session).workers = Workers(rank=rank)  # nobody else is there to talk to
        session.update(0)
        paths.append([cast(Mixture, m).drawn for m in session.model.blocks])
    assert paths[0] == paths[1]


# What does the architecture learn from?


def pushes(session: SearchSession, steps: int) -> list[Tensor]:
    """The gradient of every update of the architecture, as Adam sees it."""
    found: list[Tensor] = []

    def note(*_: Any) -> None:
        gradient = session.architecture.numbers_lc.grad
        assert gradient is not None
        found.append(gradient.clone())

    session.adam.register_step_pre_hook(note)
    updated(session, 0, steps)
    return found


def test_a_price_pushes_by_its_gradient() -> None:
    """Beyond the loss' own gradient: λ/τ p_i (c_i − c̄), as one finds on paper."""
    free, priced = make_session(make_recipe()), make_session(make_recipe(**HUNGRY))
    with torch.no_grad():
        numbers_lc = torch.tensor([[0.3, -0.2, 0.5], [1.0, 0.0, -1.0], [0.0, 0.4, 0.1]])
        for session in (free, priced):
            session.architecture.numbers_lc.copy_(numbers_lc)
    plain_lc, pushed_lc = pushes(free, 5)[0], pushes(priced, 5)[0]
    prices, _ = aims(make_recipe(**HUNGRY))
    assert prices is not None
    heat = priced.temperature(4)
    assert heat > 1
    chances_lc = (numbers_lc / heat).softmax(-1).double()
    relative_lc = torch.tensor(prices.choices, dtype=torch.float64) / prices.baseline
    mean_l = (chances_lc * relative_lc).sum(-1, keepdim=True)
    expected_lc = 0.5 / heat * chances_lc * (relative_lc - mean_l)
    assert_close(pushed_lc - plain_lc, expected_lc.float(), rtol=1e-4, atol=1e-6)
    cost = free.relative_cost()
    assert cost is None
    cost = make_session(make_recipe(**HUNGRY)).relative_cost()
    even = (sum(map(sum, prices.choices)) / 3 + prices.fixed) / prices.baseline
    assert cost is not None
    assert float(cost.detach()) == pytest.approx(even)


def test_the_gradient_of_the_loss_is_that_of_the_other_text() -> None:
    """Against a plain backward pass through everything at once."""
    recipe = make_recipe(model__dropout=0.0, search__floor=0.05, train__accumulate=2)
    session = make_session(recipe)
    (found_lc,) = pushes(session, 5)
    again = make_session(recipe)
    updated(again, 0, 4)
    again.temperature(4)
    read = again.other_reading.batches.at(0, again.rows)
    weights_lc = sessions.mixing_weights(
        again.architecture(), again._noise(4), again.temperature(4), 0.05
    )
    again.model.mix(weights_lc)
    again.model(read.tokens_bt, None, read.targets_bt).loss.backward()
    expected_lc = again.architecture.numbers_lc.grad
    assert expected_lc is not None
    assert_close(found_lc, expected_lc, rtol=1e-3, atol=1e-6)


def test_the_architecture_follows_its_own_adam() -> None:
    """Rate, betas and decay are the search's, not those of the weights."""
    own = {"learning_rate": 0.03, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95}
    recipe = make_recipe(train__steps=20, **{f"search__{n}": v for n, v in own.items()})
    session = make_session(recipe)
    theta_lc = torch.tensor([[0.3, -0.2, 0.5], [1.0, 0.0, -1.0], [0.0, 0.4, 0.1]])
    with torch.no_grad():
        session.architecture.numbers_lc.copy_(theta_lc)
    given = pushes(session, 20)
    assert len(given) == 5
    theta_lc, m_lc, v_lc = theta_lc.double(), torch.zeros(3, 3), torch.zeros(3, 3)
    for turn, push_lc in enumerate(given, start=1):
        gradient_lc = push_lc.double() + 0.1 * theta_lc
        m_lc = 0.8 * m_lc + 0.2 * gradient_lc
        v_lc = 0.95 * v_lc + 0.05 * gradient_lc**2
        step_lc = (m_lc / (1 - 0.8**turn)) / ((v_lc / (1 - 0.95**turn)).sqrt() + 1e-8)
        theta_lc = theta_lc - 0.03 * step_lc
    assert_close(session.architecture.numbers_lc.detach(), theta_lc.float())


def test_a_penalty_grows_along_its_ramp() -> None:
    def heights(**changes: Any) -> list[float]:
        session = make_session(make_recipe(train__steps=40, **HUNGRY, **changes))
        assert session.timetable.warmup == 10
        return [session._penalty_at(step) for step in range(40)]

    assert heights() == [0.5] * 40
    slow = heights(search__ramp=0.5)
    assert slow[:11] == [0.0] * 11
    assert slow[10:25] == pytest.approx([0.5 * n / 15 for n in range(15)])
    assert slow[25:] == [0.5] * 15
    session = make_session(make_recipe(train__steps=40, **HUNGRY, search__ramp=0.5))
    updated(session, 0, 13)
    assert session.turn.kind == "architecture"
    assert session.penalty == slow[12]
    assert make_session(make_recipe()).penalty == 0.0


def test_a_limit_steers_its_own_penalty() -> None:
    """It rises while the expected cost is above the limit, and falls to nothing below it."""
    recipe = make_recipe(search__limit="flops=0.75x", search__steering=1.0, train__steps=200)
    session = make_session(recipe)
    with torch.no_grad():
        session.architecture.numbers_lc[:, 0] = 3.0  # mostly attention
    costs, penalties = [], []
    for step in range(200):
        before = session.steered
        session.update(step)
        expected = session.relative_cost()
        assert expected is not None
        assert session.penalty == before
        if session.turn.kind == "weights":
            assert session.steered == before
            continue
        costs.append(float(expected.detach()))
        penalties.append(session.steered)
        assert session.steered == pytest.approx(max(0.0, before + costs[-1] - 0.75))
    assert costs[0] > 0.9
    turn = next(n for n, cost in enumerate(costs) if cost < 0.75)
    assert np.all(np.diff(penalties[:turn]) > 0)
    assert penalties[turn + 3] < penalties[turn - 1]
    generous = make_session(make_recipe(search__limit="flops=5x", search__steering=0.5))
    generous.steered = 0.3
    updated(generous, 0, 8)
    assert generous.steered == 0.0


def test_a_limit_decides_what_is_found() -> None:
    """However much attention the architecture likes, what is read off it is within the limit."""
    recipe = make_recipe(search__limit="flops=0.8x", search__layers=6)
    session = make_session(recipe)
    prices, _ = aims(recipe)
    assert prices is not None
    free = make_session(make_recipe(search__layers=6))
    with torch.no_grad():
        for each in (session, free):
            each.architecture.numbers_lc[:, 0] = torch.linspace(3.0, 1.0, 6)
    assert free.decode() == [0] * 6
    assert prices.total([0] * 6) > 0.8
    picks = session.decode()
    assert prices.total(picks) <= 0.8
    assert picks != [0] * 6
    assert picks[0] == 0  # where it is liked best it stays


@pytest.mark.parametrize("layers", [3, 4, 7, 12])
def test_a_limit_that_can_be_met_is_met(layers: int) -> None:
    """Whatever is not refused at the start finds a pattern, to the last digit of the limit."""
    recipe = make_recipe(search__layers=layers, search__choices="sf", search__limit="flops=1x")
    prices, _ = aims(recipe)
    assert prices is not None
    cheapest = [row.index(min(row)) for row in prices.choices]
    least, accepted = prices.total(cheapest), 0
    for digits in (1, 2, 3, 4):
        for more in (-1, 0, 1):
            limit = math.floor(least * 10**digits + more) / 10**digits
            asked = recipe.replaced({"search.limit": f"flops={limit:.{digits}f}x"})
            try:
                refuse_unreachable(prices, space_of(recipe), limit)
            except ConfigError:
                assert limit < least
                continue
            accepted += 1
            assert prices.total(make_session(asked).decode()) <= limit
    assert 4 <= accepted < 12


# What may not be given up?


@pytest.mark.parametrize("family", FAMILIES)
def test_removal_is_what_the_loss_grows_by_without_a_choice(family: str) -> None:
    """Once, when the warm-up ends, on the architecture's text and without dropout."""
    recipe = make_recipe(family, search__guard=0.1, train__batch=8, train__learning_rate=0.01)
    session = make_session(recipe)
    updated(session, 0, 2)
    assert session.removal is None
    frozen = {name: p.detach().clone() for name, p in session.model.named_parameters()}
    memory = memory_of(session.other_reading)
    session.update(2)
    assert session.removal is not None
    assert session.model.training
    assert memory_of(session.other_reading) == memory
    twin = sessions.supernet_from(session.model.config, session.space, frozen)
    batches = find_task(recipe).batches(share_out(TOKENS, recipe)[1])

    def loss(weights_lc: Tensor) -> float:
        twin.mix(weights_lc)
        with torch.no_grad():
            both = [twin(b.tokens_bt, None, b.targets_bt).loss for b in map(batches.at, (0, 1))]
        return float(sum(both) / 2)

    even = loss(torch.full((3, 3), 1 / 3))
    for layer in range(3):
        for choice in range(3):
            weights_lc = torch.full((3, 3), 1 / 3)
            weights_lc[layer] = 0.5
            weights_lc[layer, choice] = 0.0
            grown = loss(weights_lc) / even - 1
            assert session.removal[layer][choice] == pytest.approx(grown, abs=1e-6)
    before = session.removal
    updated(session, 3, 8)
    assert session.removal is before


@pytest.mark.parametrize("mode", MODES)
def test_asking_changes_nothing_that_is_learned(mode: str) -> None:
    asked, free = (make_session(make_recipe(search__mode=mode, search__guard=g)) for g in (1, 0))
    assert updated(asked, 0, 8) == updated(free, 0, 8)
    assert (asked.removal is None) == (mode == "sampled")
    assert free.removal is None
    ours, theirs = bits(asked.checkpoint(8, {})), bits(free.checkpoint(8, {}))
    assert {n for n in ours if ours[n] != theirs[n]} <= {"p removal"}


def test_what_is_needed_is_kept_within_the_limit() -> None:
    generous = make_session(make_recipe(search__guard=0.1))
    tight = make_session(make_recipe(search__guard=0.1, search__limit="flops=0.4x"))
    loose = make_session(make_recipe(search__guard=0.0))
    for session in (generous, tight, loose):
        with torch.no_grad():
            session.architecture.numbers_lc[:, 1] = 5.0  # feed-forward is liked everywhere
        session.removal = ((0.0, 0.0, 0.0), (0.2, 0.0, 0.0), (0.05, 0.3, 0.9))
    assert generous.decode() == [1, 0, 1]
    assert loose.decode() == [1, 1, 1]
    prices, _ = aims(make_recipe(search__limit="flops=0.4x"))
    assert prices is not None
    assert prices.total(tight.decode()) <= 0.4


# When is it over?


def test_it_is_over_when_the_pattern_has_long_been_the_same() -> None:
    session = make_session(make_recipe(train__steps=100, search__patience=0.5))
    assert session.timetable.warmup == session.changed == 25
    assert not any(session.settled(step) for step in range(63))
    assert session.settled(63)  # 37.5 updates without a change
    session.changed = 60
    assert not session.settled(97)
    assert session.settled(98)
    session.changed = 99
    assert not session.settled(99)
    assert session.settled(100)
    patient = make_session(make_recipe(train__steps=100, search__patience=1.0))
    assert not any(patient.settled(step) for step in range(100))
    eager = make_session(make_recipe(train__steps=100, search__patience=0.001))
    assert not eager.settled(25)
    assert eager.settled(26)


def test_a_change_is_noticed_when_the_pattern_is_another() -> None:
    session = make_session(make_recipe(train__steps=100))
    session.turn = sessions.Turn("architecture", 0)
    session.picks = [0, 1, 2]
    for numbers, step, changed in (
        ([0, 2, 1], 40, 25),  # the identity elsewhere: the same pattern
        ([0, 1, 1], 41, 41),
        ([0, 1, 1], 42, 41),
        ([2, 2, 2], 43, 43),
    ):
        with torch.no_grad():
            picks_l = torch.tensor(numbers)
            session.architecture.numbers_lc.copy_(nn.functional.one_hot(picks_l, 3))
        session._notice_change(step)
        assert (session.picks, session.changed) == (numbers, changed)


# What if a number is none?


@pytest.mark.parametrize("kind", ["weights", "architecture"])
@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("mode", MODES)
def test_numbers_that_are_none_change_nothing(kind: str, what: str, mode: str) -> None:
    recipe = make_recipe(
        search__mode=mode, search__limit="flops=0.5x", train__steps=20, train__accumulate=1
    )
    session = make_session(recipe)
    step = {"weights": 11, "architecture": 13}[kind]
    updated(session, 0, step)
    weights, architecture = weights_of(session), architecture_of(session)
    fine = session.objective

    class Poisoned(nn.Module):
        def forward(self, *given: Any) -> Any:
            loss, state = fine(*given)
            if what == "loss":
                return loss * float("nan"), state
            # 0, but its slope at 0 is infinite
            moved = (loss - loss.detach()).abs().sqrt()
            return loss + moved, state

    session.objective = Poisoned()
    loss, norm = session.update(step)
    assert session.turn.kind == kind
    assert math.isnan(loss) == (what == "loss")
    assert not math.isfinite(norm)
    assert weights_of(session) == weights
    assert architecture_of(session) == architecture
    assert all(p.grad is None and p.requires_grad for p in session.parameters)
    assert session.architecture.numbers_lc.grad is None
    session.objective = fine
    updated(session, step, step + 1)
    changed = weights_of(session) if kind == "weights" else architecture_of(session)
    assert changed != (weights if kind == "weights" else architecture)


def test_weights_want_gradients_again_after_any_accident() -> None:
    session = make_session(make_recipe())
    updated(session, 0, 4)

    class Broken(nn.Module):
        def forward(self, *_: Any) -> Any:
            raise KeyboardInterrupt

    session.objective = Broken()
    with pytest.raises(KeyboardInterrupt):
        session.update(4)
    assert all(p.requires_grad for p in session.parameters)


# Does it go on?


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "target", [{"search__penalty": "parameters=0.3"}, {"search__limit": "flops=0.8x"}]
)
def test_a_search_goes_on_bit_for_bit(
    family: str, mode: str, target: dict[str, Any], tmp_path: Path
) -> None:
    """Broken off before the first update and after every one of them."""
    recipe = make_recipe(family, search__mode=mode, train__steps=9, search__guard=1e-4, **target)
    whole = make_session(recipe)
    expected = updated(whole, 0, 9)
    assert (whole.removal is not None) == (mode == "soft")
    broken = make_session(recipe)
    for step in range(9):
        write_checkpoint(tmp_path, broken.checkpoint(step, {}), keep=2)
        torch.manual_seed(99)  # nothing that happens between may matter
        broken = make_session(recipe, read_checkpoint(tmp_path / f"step-{step:09d}"))
        assert updated(broken, step, step + 1) == expected[step : step + 1]
    assert bits(broken.checkpoint(9, {})) == bits(whole.checkpoint(9, {}))
    assert bool(broken.checkpoint(9, {}).memory) == (family == "transformer-xl")


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "radam", "lamb", "nvlamb", "muon"])
def test_blocks_that_were_never_drawn_go_on_too(optimizer: str) -> None:
    """An optimizer has no state yet for what got no gradient."""
    recipe = make_recipe(
        search__mode="sampled",
        train__optimizer=optimizer,
        train__weight_decay=0.1,
        train__accumulate=1,
    )
    whole = make_session(recipe)
    expected = updated(whole, 0, 8)
    for stop in (1, 2, 5):
        broken = make_session(recipe)
        updated(broken, 0, stop)
        again = make_session(recipe, broken.checkpoint(stop, {}))
        assert updated(again, stop, 8) == expected[stop:]
        assert bits(again.checkpoint(8, {})) == bits(whole.checkpoint(8, {}))


def test_a_checkpoint_of_another_space_is_refused() -> None:
    session = make_session(make_recipe())
    updated(session, 0, 5)
    snapshot = session.checkpoint(5, {})
    for damage in ("gone", "narrow"):
        optimizer = dict(snapshot.optimizer)
        numbers_lc = optimizer.pop(sessions.OWN + sessions.NUMBERS)
        if damage == "narrow":
            optimizer[sessions.OWN + sessions.NUMBERS] = numbers_lc[:, :2]
        other = replace(snapshot, optimizer=optimizer)
        with pytest.raises(FolderError, match=r"holds no architecture of \(3, 3\)") as caught:
            make_session(make_recipe(), other)
        assert "\n" not in str(caught.value)
    plain = Session(replace(make_recipe(), search=None), TOKENS, workers=Workers())
    with pytest.raises(Exception, match="belong"):
        make_session(make_recipe(), cast(Checkpoint, plain.checkpoint(5, {})))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_add_up_to_the_batch(mode: str, family: str) -> None:
    """Both kinds of gradients, however many pieces the batch is worked off in."""
    results = []
    for pieces in (1, 2, 4):
        recipe = make_recipe(
            family,
            search__mode=mode,
            model__dropout=0.0,
            train__accumulate=pieces,
            train__learning_rate=0.0,  # the same weights for all, whatever Adam makes of zeros
            search__learning_rate=1e-9,
        )
        session = make_session(recipe)
        grads: list[Tensor] = []

        def note(*_: Any, session: Any = session, grads: list[Tensor] = grads) -> None:
            grads.extend(p.grad.clone() for p in session.parameters if p.grad is not None)

        session.optimizer.register_step_pre_hook(note)
        results.append([*pushes(session, 8), *grads])
    for other in results[1:]:
        assert len(other) == len(results[0])
        for one, two in zip(other, results[0], strict=True):
            assert_close(one, two, rtol=1e-3, atol=1e-5)


# Must all layers have the same choices?


@pytest.fixture
def ragged(monkeypatch: pytest.MonkeyPatch) -> Choices:
    monkeypatch.setattr(sessions, "space_of", lambda _: RAGGED)
    return RAGGED


def ragged_session(recipe: Recipe, start: Checkpoint | None = None) -> SearchSession:
    _, target = aims(recipe)
    prices = None if target is None else exact(target.metric, recipe.model, RAGGED)
    return SearchSession(
        recipe, TOKENS, workers=Workers(), start=start, prices=prices, target=target
    )


@pytest.mark.parametrize("mode", MODES)
def test_layers_may_have_fewer_choices_than_others(mode: str, ragged: Choices) -> None:
    assert ragged is RAGGED
    recipe = make_recipe(
        search__mode=mode, train__steps=40, search__weight_decay=0.1, search__floor=0.1, **HUNGRY
    )
    session = ragged_session(recipe)
    unknown_lc = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)
    for step in range(40):
        session.update(step)
        for mixture, choices in zip(session.model.blocks, RAGGED.layers, strict=True):
            assert isinstance(mixture, Mixture)
            assert mixture.weights_c is not None
            assert len(mixture.weights_c) == len(choices)
            assert float(mixture.weights_c.detach().sum()) == pytest.approx(1.0, abs=1e-5)
            assert mixture.drawn is None or mixture.drawn < len(choices)
    numbers_lc = session.architecture.numbers_lc.detach()
    assert not numbers_lc[unknown_lc].any()
    assert bool((numbers_lc[~unknown_lc] != 0).all())
    chances_lc = session.probabilities().detach()
    assert not chances_lc[unknown_lc].any()
    assert_close(chances_lc.sum(-1), torch.ones(3))
    assert all(p < len(c) for p, c in zip(session.picks, RAGGED.layers, strict=True))
    cost = session.relative_cost()
    assert cost is not None
    assert math.isfinite(float(cost.detach()))


def test_a_search_with_fewer_choices_somewhere_goes_on(ragged: Choices) -> None:
    recipe = make_recipe(**HUNGRY)
    whole, broken = ragged_session(recipe), ragged_session(recipe)
    expected = updated(whole, 0, 8)
    updated(broken, 0, 5)
    again = ragged_session(recipe, broken.checkpoint(5, {}))
    assert updated(again, 5, 8) == expected[5:]
    assert bits(again.checkpoint(8, {})) == bits(whole.checkpoint(8, {}))


def test_an_architecture_starts_with_all_alike() -> None:
    architecture = Architecture(RAGGED)
    expected = [[0.0, 0.0, 0.0, -math.inf], [0.0, 0.0, -math.inf, -math.inf], [0.0] * 4]
    assert architecture().tolist() == expected


def test_layers_are_those_of_the_model_unless_given() -> None:
    assert len(space_of(make_recipe(search__layers=0)).layers) == 4
    assert len(space_of(make_recipe(search__layers=7)).layers) == 7


def test_texts_are_read_as_the_model_needs() -> None:
    assert isinstance(make_session(make_recipe()).other_reading.batches, Streams)
    windows = make_session(make_recipe("gpt2"))
    updated(windows, 0, 5)
    assert windows.other_reading.memory() == ({}, 0)


# Does it find what is there?


def planted(seed: int) -> Recipe:
    """Four layers that may be attention, feed-forward or nothing, at a price on FLOPs."""
    model = {"family": "llama", "pattern": "sf", "vocab_size": 16, "d_model": 32}
    model |= {"n_head": 4, "d_inner": 64, "max_len": 24}
    training = TrainConfig(
        steps=300,
        batch=16,
        learning_rate=5e-3,
        warmup=10,
        seed=seed,
        precision="fp32",
        compile="off",
        kernels="plain",
        threads=1,
    )
    search = SearchConfig(layers=4, learning_rate=0.05, cycle=10, penalty="flops=0.1")
    return Recipe(model=ModelConfig.from_dict(model), train=training, search=search)


def find(recipe: Recipe, tokens: Any) -> Pattern:
    session = make_session(recipe, tokens=tokens)
    updated(session, 0, recipe.train.steps)
    return session.space.pattern(session.picks)


def learned(recipe: Recipe, tokens: Any, pattern: Pattern) -> float:
    """The loss that a plain model of this pattern ends with."""
    plain = replace(recipe.replaced({"model.pattern": pattern, "train.steps": 200}), search=None)
    session = Session(plain, tokens, workers=Workers())
    losses = [float(session.update(step)[0]) for step in range(200)]
    return sum(losses[-20:]) / 20


def try_to_find(seed: int) -> None:
    """Attention where tokens come from afar, none where each follows from the one before."""
    recipe = planted(seed)
    copying = copying_text(60_000, back=4, seed=seed)
    found = find(recipe, copying)
    assert "s" in found.letters
    assert "s" not in find(recipe, chained_text(60_000, seed=seed)).letters
    with_attention = learned(recipe, copying, found)
    without = learned(recipe, copying, Pattern.parse("(f)x4"))
    assert with_attention < without - 0.4


def test_it_finds_where_attention_is_needed() -> None:
    try_to_find(0)
