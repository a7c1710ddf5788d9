"""Figures for people: right units, right sums, right words."""

from __future__ import annotations

from rich.console import Console

import parformer as pf
from parformer.costs import cost
from parformer.measure.device import Receipt
from parformer.measure.latency import Comparison, Timing
from parformer.measure.memory import PeakMemory
from parformer.measure.models import MeasuredModel, MeasuredModels
from parformer.report.tables import (
    block_table,
    cost_table,
    measured_table,
    stacks,
    verdict,
)
from parformer.report.words import duration, gigaflops, megabytes


def text_of(renderable: object) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def measured(ratio: float) -> MeasuredModels:
    """Two models, the second `ratio` times as slow, timed by a perfect clock."""
    names = {"XL": pf.preset("pocket"), "PAR": pf.preset("pocket", pattern="(sfff)x2 (f)x4")}
    memory = PeakMemory(peak_bytes=3_000_000, resident_bytes=2_000_000, allocated_bytes=1)
    timings = tuple(
        Timing(name=n, samples_seconds=(t,) * 20, median=t, low=t, high=t)
        for n, t in (("XL", 0.01), ("PAR", 0.01 * ratio))
    )
    models = {name: MeasuredModel(c, cost(c), memory) for name, c in names.items()}
    return MeasuredModels(models, Comparison(timings=timings, receipt=Receipt.issue("one step")))


def test_units_follow_the_size() -> None:
    assert [megabytes(n) for n in (0, 12, 1500, 2_000_000, 3.2e9)] == [
        "none", "12 B", "1.5 kB", "2.0 MB", "3.2 GB",
    ]  # fmt: skip
    assert [duration(t) for t in (2.0, 0.0123, 1.5e-6)] == ["2 s", "12.3 ms", "1.5 µs"]
    assert [gigaflops(n) for n in (0, 5_000_000, 1_310_000_000)] == ["none", "5.00 M", "1.31 G"]


def test_the_cost_table_shows_exact_figures_and_the_step() -> None:
    text = text_of(cost_table({"PAR": cost(pf.preset("par-base"))}))
    assert "199,840,218" in text
    assert "64 tokens after 640" in text


def test_the_block_table_counts_kinds_or_lists_all() -> None:
    price = cost(pf.preset("par-base"))
    assert "26 × f" in text_of(block_table(price))
    assert "31 f" in text_of(block_table(price, every=True))


def test_stacks_are_drawn_with_their_pattern() -> None:
    text = text_of(stacks({"PAR": pf.preset("par-base")}))
    assert "(sfff)x6 (f)x8" in text
    assert "s f f f s" in text


def test_a_tie_is_called_a_tie() -> None:
    words = verdict(measured(1.0))
    assert words == [
        "PAR takes as long as XL (the difference is inside the noise) and remembers 67% less."
    ]
    assert "a tie" in text_of(measured_table(measured(1.0)))


def test_a_win_and_a_loss_are_said_with_numbers() -> None:
    assert verdict(measured(0.5))[0].startswith("PAR is 50% faster than XL per step")
    assert verdict(measured(1.5))[0].startswith("PAR is 50% slower than XL per step")
    assert "0.50×, faster" in text_of(measured_table(measured(0.5)))


def test_noise_is_not_called_equality() -> None:
    quiet = measured(0.5)
    noisy = (0.004, 0.03) * 10
    timings = (
        quiet.latency["XL"],
        Timing(name="PAR", samples_seconds=noisy, median=0.017, low=0.004, high=0.03),
    )
    found = MeasuredModels(quiet.models, Comparison(timings=timings, receipt=quiet.latency.receipt))
    assert verdict(found)[0].startswith("PAR cannot be told from XL by 20 noisy rounds (0.40×")


def test_a_model_without_attention_remembers_nothing() -> None:
    found = measured(0.5)
    config = pf.preset("pocket", pattern="(f)x12")
    bare = MeasuredModel(config, cost(config), found.models["PAR"].memory)
    models = {"XL": found.models["XL"], "PAR": bare}
    assert verdict(MeasuredModels(models, found.latency))[0].endswith("and remembers nothing.")


def test_what_placement_in_memory_can_do_is_no_difference_between_models() -> None:
    assert verdict(measured(0.98))[0].startswith("PAR takes as long as XL")
    assert verdict(measured(0.95))[0].startswith("PAR is 5% faster")
