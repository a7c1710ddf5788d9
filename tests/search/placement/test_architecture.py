"""Are weights, temperatures and picks what the formulas say, for layers of any width?"""

# l layer, c choice

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from parformer.errors import ConfigError
from parformer.search.placement import architecture
from parformer.search.placement.architecture import (
    agreement,
    best_picks,
    expected_cost,
    gumbel_noise,
    mixing_weights,
    probabilities,
    steer,
    temperature_at,
)

GAP = -math.inf
THETA = [[0.3, -1.2, 2.0], [1.0, 0.5, GAP], [-0.7, 0.1, 0.4]]
NOISE = [[0.1, 2.0, -0.4], [0.9, -0.3, 1.7], [0.0, 0.6, -1.1]]


def arrays(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.tensor(THETA, dtype=dtype), torch.tensor(NOISE, dtype=torch.float64)


def by_hand(temperature: float, floor: float) -> list[list[float]]:
    """The formula, number by number."""
    rows = []
    for theta, noise in zip(THETA, NOISE, strict=True):
        count = sum(x != GAP for x in theta)
        powers = [math.exp((x + n) / temperature) for x, n in zip(theta, noise, strict=True)]
        shares = [(1 - floor) * power / sum(powers) + floor / count for power in powers]
        rows.append([0.0 if x == GAP else y for x, y in zip(theta, shares, strict=True)])
    return rows


@pytest.mark.parametrize("temperature", [5.0, 1.0, 0.087])
@pytest.mark.parametrize("floor", [0.0, 0.1, 0.9])
def test_weights_are_what_the_formula_says(temperature: float, floor: float) -> None:
    weights_lc = mixing_weights(*arrays(), temperature, floor)
    torch.testing.assert_close(weights_lc, torch.tensor(by_hand(temperature, floor)).double())
    torch.testing.assert_close(weights_lc.sum(dim=1), torch.ones(3).double())
    assert weights_lc[1, 2] == 0


def test_every_choice_keeps_the_floors_share() -> None:
    cold_lc = mixing_weights(*arrays(), 1e-3)
    assert cold_lc.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    kept_lc = mixing_weights(*arrays(), 1e-3, floor=0.3)
    expected = [[0.1, 0.1, 0.8], [0.85, 0.15, 0], [0.1, 0.8, 0.1]]
    torch.testing.assert_close(kept_lc, torch.tensor(expected).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_are_of_the_parameters_own_kind(dtype: torch.dtype) -> None:
    theta_lc, noise_lc = arrays(dtype)
    assert mixing_weights(theta_lc, noise_lc, 1.0, 0.1).dtype == dtype
    assert probabilities(theta_lc).dtype == dtype
    prices_lc = torch.ones(3, 3, dtype=torch.float64)
    assert expected_cost(probabilities(theta_lc), prices_lc, 0.5).dtype == dtype


@pytest.mark.parametrize("floor", [0.0, 0.2])
@pytest.mark.parametrize("temperature", [5.0, 0.087, 1e-3])
def test_gradients_are_finite_and_nought_where_there_is_no_choice(
    temperature: float, floor: float
) -> None:
    theta_lc, noise_lc = arrays()
    theta_lc.requires_grad_()
    prices_lc = torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0], [3.0, 1.0, 0.0]])
    weights_lc = mixing_weights(theta_lc, noise_lc, temperature, floor)
    cost = expected_cost(probabilities(theta_lc), prices_lc, 2.0)
    ((weights_lc * noise_lc).sum() + cost).backward()  # type: ignore[no-untyped-call]
    assert theta_lc.grad is not None
    assert theta_lc.grad.isfinite().all()
    assert theta_lc.grad[1, 2] == 0
    assert (theta_lc.grad != 0).sum() == 8


def test_gradients_are_those_of_the_formula() -> None:
    noise_lc = torch.tensor(NOISE, dtype=torch.float64)
    theta_lc = torch.tensor(NOISE[::-1], dtype=torch.float64, requires_grad=True)

    def weights(theta_lc: Tensor) -> Tensor:
        return mixing_weights(theta_lc, noise_lc, 0.7, 0.1)

    assert torch.autograd.gradcheck(weights, theta_lc)  # type: ignore[no-untyped-call]


def test_probabilities_are_a_softmax_of_each_layer() -> None:
    found_lc = probabilities(torch.tensor([[0.0, math.log(3), GAP], [1.0, 1.0, 1.0]]))
    expected_lc = torch.tensor([[0.25, 0.75, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(found_lc, expected_lc)


def test_noise_comes_from_the_generator_alone() -> None:
    drawn = [gumbel_noise((3, 2), torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert drawn[0].shape == (3, 2)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_the_likeliest_after_noise_is_a_draw_from_the_softmax() -> None:
    """100,000 draws: five standard errors are less than 0.008."""
    theta_lc = torch.tensor([[0.0, math.log(2), math.log(5)]], dtype=torch.float64)
    noise_lc = gumbel_noise((100_000, 3), torch.Generator().manual_seed(0))
    drawn_l = (theta_lc + noise_lc).argmax(dim=1)
    shares = torch.bincount(drawn_l) / len(drawn_l)
    assert shares.tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.008)
    weights_lc = mixing_weights(theta_lc.expand(100_000, 3), noise_lc, 0.05)
    assert weights_lc.mean(dim=0).tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.008)


def test_noise_is_finite_even_for_the_extreme_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    ends_lc = torch.tensor([[0.0, 2**-53, 1 - 2**-53]], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *shape, **how: ends_lc)
    noise_lc = gumbel_noise((1, 3), torch.Generator())
    assert noise_lc.isfinite().all()
    assert (noise_lc.diff() > 0).all()


def test_the_temperature_falls_as_fbnets_does() -> None:
    final = 5.0 * math.exp(-0.045 * 90)
    for epoch in (0, 1, 30, 89, 90):
        expected = 5.0 * math.exp(-0.045 * epoch)
        assert temperature_at(epoch / 90, 5.0, final) == pytest.approx(expected, rel=1e-12)
    assert final == pytest.approx(0.087, abs=1e-3)


def test_equal_temperatures_stay_what_they_are_and_ends_are_not_passed() -> None:
    assert {temperature_at(share / 7, 0.3, 0.3) for share in range(8)} == {0.3}
    assert temperature_at(-0.1, 5.0, 0.1) == 5.0
    assert temperature_at(1.1, 5.0, 0.1) == pytest.approx(0.1)
    assert temperature_at(0.5, 1, 4) == 2.0


def test_the_expected_cost_is_the_mean_over_all_architectures() -> None:
    chances = [[0.2, 0.5, 0.3], [0.9, 0.1, 0.0], [0.25, 0.5, 0.25]]
    prices = [[3.0, 1.0, 0.0], [4.0, 2.0, 0.0], [7.0, 0.0, 5.0]]
    mean = sum(
        math.prod(chances[i][pick] for i, pick in enumerate(picks))
        * (0.5 + sum(prices[i][pick] for i, pick in enumerate(picks)))
        for picks in product(range(3), repeat=3)
    )
    found = expected_cost(torch.tensor(chances).double(), torch.tensor(prices), 0.5)
    assert float(found) == pytest.approx(mean)


def test_steering_rises_above_the_limit_falls_below_it_and_stays_positive() -> None:
    assert steer(0.5, relative_cost=0.9, limit=0.7, rate=0.1) == pytest.approx(0.52)
    assert steer(0.5, relative_cost=0.6, limit=0.7, rate=0.1) == pytest.approx(0.49)
    assert steer(0.005, relative_cost=0.1, limit=0.7, rate=0.1) == 0
    assert steer(0.5, relative_cost=0.7, limit=0.7, rate=0.1) == 0.5


def test_steering_finds_the_penalty_that_keeps_a_limit() -> None:
    """A cost that answers to the penalty, 1/(1 + λ), is at 0.4 when λ is 1.5."""
    penalty = 0.0
    for _ in range(2000):
        penalty = steer(penalty, 1 / (1 + penalty), limit=0.4, rate=0.1)
    assert penalty == pytest.approx(1.5, rel=1e-3)


def test_agreement_is_the_mean_over_pairs() -> None:
    assert agreement([]) is None
    assert agreement([[0, 1]]) is None
    assert agreement([[0, 1], [0, 1], [0, 1]]) == 1
    assert agreement([[0, 0, 0, 0], [0, 0, 0, 1], [2, 0, 1, 1]]) == pytest.approx(
        (3 / 4 + 1 / 4 + 2 / 4) / 3
    )
    with pytest.raises(ValueError, match="zip"):
        agreement([[0, 1], [0]])


# Picks

Table = list[list[float]]


def score_of(picks: list[int], scores: Table) -> float:
    return math.fsum(row[pick] for row, pick in zip(scores, picks, strict=True))


def price_of(picks: list[int], prices: Table) -> Fraction:
    return sum((Fraction(row[pick]) for row, pick in zip(prices, picks, strict=True)), Fraction())


def best_by_trying_all(scores: Table, prices: Table, limit: float) -> float:
    """The best score within the limit; −inf if nothing is."""
    return max(
        (
            score_of(list(picks), scores)
            for picks in product(*(range(len(row)) for row in prices))
            if limit == math.inf or price_of(list(picks), prices) <= Fraction(limit)
        ),
        default=GAP,
    )


def drawn_problem(rng: Random, *, whole: bool) -> tuple[Table, Table, float]:
    scores, prices = [], []
    kind = rng.choice(["free", "even", "proportional", "shared"])
    shared = [rng.random() for _ in range(4)]
    for _ in range(rng.randint(1, 6)):
        count = rng.randint(1, 4)
        row = shared[:count] if kind == "shared" else [rng.random() for _ in range(count)]
        row = [round(9 * price) for price in row] if whole else [price**3 for price in row]
        scores.append([rng.gauss(0, 1) for _ in row])
        if kind == "even":
            scores[-1] = [-1.0] * count
        elif kind == "proportional":
            scores[-1] = [price + rng.gauss(0, 1e-3) for price in row]
        prices.append([float(price) for price in row] if rng.random() < 0.5 else row)
    low, high = sum(map(min, prices)), sum(map(max, prices))
    return scores, prices, rng.choice([low, high, math.inf, low + rng.random() * (high - low)])


@pytest.mark.parametrize("whole", [True, False])
def test_picks_are_the_best_that_trying_all_finds(whole: bool) -> None:
    rng, refused = Random(0), 0
    for _ in range(400):
        scores, prices, limit = drawn_problem(rng, whole=whole)
        best = best_by_trying_all(scores, prices, limit)
        if best == GAP:  # the float sum of the cheapest may be rounded down
            refused += 1
            with pytest.raises(ConfigError, match="raise the limit"):
                best_picks(scores, prices, limit)
            continue
        picks = best_picks(scores, prices, limit)
        assert limit == math.inf or price_of(picks, prices) <= Fraction(limit)
        assert score_of(picks, scores) >= best - 1e-12
    assert refused < 40


def test_no_price_is_rounded() -> None:
    """0.1 + 0.2 + 0.3 is above 0.6 exactly, and in floats only in this order."""
    scores = [[0.0, -1.0]] * 3
    prices = [[0.1, 0.0], [0.2, 0.0], [0.3, 0.0]]
    exact = price_of([0, 0, 0], prices)
    assert exact > Fraction(0.6)
    assert 1 in best_picks(scores, prices, 0.6)
    assert best_picks(scores, prices, math.nextafter(0.6, 1)) == [0, 0, 0]
    assert best_picks([[0.0, -1.0]] * 10, [[0.1, 0.0]] * 10, 1.0).count(1) == 1
    assert best_picks([[0.0, -1.0]] * 10, [[1, 0]] * 10, 10) == [0] * 10


def test_a_unit_of_difference_counts_among_huge_prices() -> None:
    scores = [[0.0, -1.0], [0.0, -2.0], [0.0, -3.0]]
    huge = 10**16
    prices = [[huge + 1, huge]] * 3
    assert best_picks(scores, prices, 3 * huge) == [1, 1, 1]
    assert best_picks(scores, prices, 3 * huge + 1) == [1, 1, 0]
    assert best_picks(scores, prices, 3 * huge + 2) == [1, 0, 0]
    assert best_picks(scores, prices, 3 * huge + 3) == [0, 0, 0]


@pytest.mark.parametrize("limit", [math.inf, 100, 2, 1])
def test_of_equally_probable_choices_the_cheaper_is_taken(limit: float) -> None:
    assert best_picks([[-1.0, -1.0, -1.0], [-1.0, -1.0, -2.0]], [[3, 1, 2], [1, 0, 0]], limit) == [
        1,
        1,
    ]


def test_what_is_no_choice_is_never_taken_even_if_it_costs_nothing() -> None:
    scores = [[-0.5, -1.0, GAP], [-2.0, -0.1, -3.0]]
    padded = [[4, 3, 0], [5, 6, 4]]
    ragged = [[4, 3], [5, 6, 4]]
    for prices in (padded, ragged):
        assert best_picks(scores, prices) == [0, 1]
        assert best_picks(scores, prices, 9) == [1, 1]
        assert best_picks(scores, prices, 7) == [1, 2]
        with pytest.raises(
            ConfigError, match="no picks cost 6 or less, the cheapest cost 7; raise"
        ):
            best_picks(scores, prices, 6)


@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_a_search_of_real_size_is_solved_exactly(share: float) -> None:
    """48 layers of 4 choices, against the best score for every possible sum of prices."""
    rng = Random(0)
    prices: Table = [[1750, 750, 400, 0]] * 48
    scores = [[rng.gauss(0, 1) for _ in range(4)] for _ in range(48)]
    limit = share * 24 * 2500
    best = {0.0: 0.0}
    for row, price_row in zip(scores, prices, strict=True):
        after: dict[float, float] = {}
        for spent, score in best.items():
            for gain, price in zip(row, price_row, strict=True):
                if spent + price <= limit:
                    known = after.get(spent + price, GAP)
                    after[spent + price] = max(known, score + gain)
        best = after
    picks = best_picks(scores, prices, limit)
    assert price_of(picks, prices) <= limit
    assert score_of(picks, scores) == pytest.approx(max(best.values()), abs=1e-9)


def fronts_of(
    monkeypatch: pytest.MonkeyPatch, scores: Table, prices: Table, limit: float
) -> tuple[list[int], list[list[architecture.Way]]]:
    """The best picks, and the ways that stayed open at each layer before any were given up."""
    fronts: list[list[architecture.Way]] = []
    unbeaten = architecture._unbeaten

    def watched(ways: list[architecture.Way]) -> list[architecture.Way]:
        fronts.append(unbeaten(ways))
        return fronts[-1]

    monkeypatch.setattr(architecture, "_unbeaten", watched)
    picks = best_picks(scores, prices, limit)
    monkeypatch.setattr(architecture, "_unbeaten", unbeaten)
    return picks, fronts[len(prices) :]


def test_few_ways_stay_open_in_a_real_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4⁴⁸ ways the exchange rate leaves a handful; of equal prices only the best stays."""
    rng = Random(0)
    scores = [[rng.gauss(0, 1) for _ in range(4)] for _ in range(48)]
    varied: Table = [[rng.randint(0, 10**6) for _ in range(4)] for _ in range(48)]
    for prices in (varied, [[1750, 750, 400, 0]] * 48):
        limit = 0.25 * sum(map(max, prices)) // 1
        _, fronts = fronts_of(monkeypatch, scores, prices, limit)
        assert len(fronts) == 48
        assert max(map(len, fronts)) < 100
        for front in fronts:
            spent = [price for price, _, _ in front]
            assert len(set(spent)) == len(spent)


def test_where_too_many_ways_stay_open_the_most_promising_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Choices about as probable as they are dear: what is found fits, and loses little."""
    losses = []
    for seed in range(30):
        rng = Random(seed)
        prices: Table = [[rng.randint(0, 1000) for _ in range(3)] for _ in range(20)]
        scores = [[price / 1000 + rng.gauss(0, 0.1) for price in row] for row in prices]
        limit = (sum(map(min, prices)) + sum(map(max, prices))) // 2
        best = score_of(best_picks(scores, prices, limit), scores)
        with monkeypatch.context() as patch:
            patch.setattr(architecture, "MOST_WAYS", 60)
            picks, fronts = fronts_of(patch, scores, prices, limit)
        assert max(map(len, fronts)) <= 60
        assert price_of(picks, prices) <= limit
        losses.append(best - score_of(picks, scores))
    assert min(losses) >= -1e-9
    assert 0 < sum(losses) / len(losses) < 0.1


rows = st.lists(
    st.lists(st.tuples(st.floats(-20, 0), st.integers(0, 20)), min_size=1, max_size=3),
    min_size=1,
    max_size=5,
)


@given(rows, st.integers(0, 60))
def test_whatever_the_problem_the_answer_is_best_or_refused(
    problem: list[list[tuple[float, int]]], limit: int
) -> None:
    scores = [[score for score, _ in row] for row in problem]
    prices: Table = [[price for _, price in row] for row in problem]
    best = best_by_trying_all(scores, prices, limit)
    if best == GAP:
        with pytest.raises(ConfigError, match="raise the limit"):
            best_picks(scores, prices, limit)
    else:
        picks = best_picks(scores, prices, limit)
        assert price_of(picks, prices) <= limit
        assert score_of(picks, scores) == pytest.approx(best, abs=1e-12)
