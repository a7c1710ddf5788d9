"""How are costs and measurements shown in a terminal?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from parformer.report.stack import draw, legend
from parformer.report.words import duration, gigaflops, megabytes

if TYPE_CHECKING:
    from parformer.config import ModelConfig
    from parformer.costs import ModelCost
    from parformer.measure.models import MeasuredModels


def stacks(models: Mapping[str, ModelConfig]) -> RenderableType:
    """The models' stacks, first block at the left, and what the colours mean."""
    parts: list[RenderableType] = []
    for name, config in models.items():
        pattern = config.pattern
        words = Text.assemble((name, "bold"), f"  {pattern.runs} blocks, ", str(pattern))
        parts += [words, draw(pattern), Text()]
    return Group(*parts, legend([config.pattern for config in models.values()]))


def right(names: Iterable[str]) -> list[Column]:
    """Columns of figures."""
    return [Column(name, justify="right") for name in names]


def framed(*heads: Column | str, title: str = "") -> Table:
    """A table with lines around it."""
    return Table(*heads, title=title or None, title_justify="left", header_style="bold")


def slim(
    *heads: Column | str, padding: int = 1, show_edge: bool = True, show_footer: bool = False
) -> Table:
    """A table without lines but the one under its head; it may fit 80 columns."""
    return Table(
        *heads,
        box=SIMPLE_HEAD,
        header_style="bold",
        padding=(0, padding, 0, 0),
        pad_edge=not show_edge,
        show_edge=show_edge,
        show_footer=show_footer,
    )


def side_by_side(
    names: list[str], rows: list[tuple[str, Callable[[str], str]]], title: str = ""
) -> Table:
    """One column per model, one row per figure."""
    table = framed("", *right(names), title=title)
    for label, figure in rows:
        table.add_row(label, *(figure(name) for name in names))
    return table


def cost_table(costs: Mapping[str, ModelCost]) -> Table:
    """Exact prices, model beside model."""
    from parformer.measure.models import step_words  # brings torch, which other tables do without

    shape = next(iter(costs.values())).shape
    rows: list[tuple[str, Callable[[str], str]]] = [
        ("parameters", lambda n: f"{costs[n].parameters:,}"),
        ("  in the stack", lambda n: f"{costs[n].decoder_parameters:,}"),
        ("  in the embedding", lambda n: f"{costs[n].embedding_parameters:,}"),
        ("  in the head", lambda n: f"{costs[n].head_parameters:,}"),
        ("FLOPs per step, memory re-projected", lambda n: gigaflops(costs[n].flops)),
        ("FLOPs per step, memory cached", lambda n: gigaflops(costs[n].flops_cached)),
        ("state with memory full", lambda n: megabytes(costs[n].state_bytes)),
        ("state per token", lambda n: megabytes(costs[n].state_bytes_per_token)),
        ("size on disk, fp32", lambda n: megabytes(costs[n].size)),
    ]
    title = f"A step of {step_words(shape.tgt_len, shape.mem_len)}, batch {shape.batch}"
    return side_by_side(list(costs), rows, title)


def block_table(price: ModelCost, *, every: bool = False) -> Table:
    """What each kind of block costs, or every single one."""
    rows = {row.block: row for row in price.blocks}.values()
    heads = right(("parameters", "FLOPs", "FLOPs cached", "state"))
    table = framed("block" if every else "each of", *heads)
    for row in price.blocks if every else rows:
        count = sum(other.block == row.block for other in price.blocks)
        table.add_row(
            f"{row.index} {row.block}" if every else f"{count} × {row.block}",
            f"{row.cost.parameters:,}",
            gigaflops(row.cost.flops),
            gigaflops(row.cost.flops_cached),
            megabytes(row.cost.state_bytes),
        )
    for name, part in (("embedding", price.embedding), ("head", price.head)):
        work = [gigaflops(flops) for flops in (part.flops, part.flops_cached)]
        table.add_row(name, f"{part.parameters:,}", *work, "")
    return table


def measured_table(measured: MeasuredModels) -> Table:
    """Prices and measurements, model beside model."""
    models, latency = measured.models, measured.latency
    baseline = next(iter(models))

    def ratio(name: str) -> str:
        if name == baseline:
            return "1"
        difference = measured.difference(name, baseline)
        words = "a tie" if difference.verdict == "tie" else difference.verdict
        return f"{difference.ratio:.2f}×, {words}"

    def interval(name: str) -> str:
        return f"{duration(latency[name].low)} – {duration(latency[name].high)}"

    rows: list[tuple[str, Callable[[str], str]]] = [
        ("attention blocks", lambda n: f"{models[n].config.pattern.count('s')}"),
        ("parameters", lambda n: f"{models[n].cost.parameters:,}"),
        ("FLOPs per step, re-projected", lambda n: gigaflops(models[n].cost.flops)),
        ("FLOPs per step, cached", lambda n: gigaflops(models[n].cost.flops_cached)),
        ("time per step, median", lambda n: duration(latency[n].median)),
        ("  95% interval", interval),
        *([(f"  against {baseline}", ratio)] if len(models) > 1 else []),
        ("state, memory full", lambda n: megabytes(models[n].cost.state_bytes)),
        ("peak memory", lambda n: megabytes(models[n].memory.peak_bytes)),
        ("  beyond weights and state", lambda n: megabytes(models[n].memory.working_bytes)),
    ]
    return side_by_side(list(models), rows, f"{latency.receipt.what}, measured here".capitalize())


def verdict(measured: MeasuredModels) -> list[str]:
    """What was found, in plain words, one sentence per model after the first."""
    baseline = next(iter(measured.models))
    return [
        f"{name} {speed_words(measured, name, baseline)}{state_words(measured, name, baseline)}."
        for name in list(measured.models)[1:]
    ]


def speed_words(measured: MeasuredModels, name: str, baseline: str) -> str:
    found = measured.difference(name, baseline)
    if found.verdict != "tie":
        return f"is {abs(1 - found.ratio):.0%} {found.verdict} than {baseline} per step"
    if found.high - found.low < 0.1:
        return f"takes as long as {baseline} (the difference is inside the noise)"
    return (
        f"cannot be told from {baseline} by {found.rounds} noisy rounds "
        f"({found.low:.2f}× to {found.high:.2f}×; more --rounds may tell)"
    )


def state_words(measured: MeasuredModels, name: str, baseline: str) -> str:
    mine = measured.models[name].cost.state_bytes
    theirs = measured.models[baseline].cost.state_bytes
    if mine == theirs or not theirs:
        return ""
    if not mine:
        return " and remembers nothing"
    change = mine / theirs - 1
    return f" and remembers {abs(change):.0%} {'less' if change < 0 else 'more'}"
