"""What does the found pattern cost, and what is it worth?

Beside the interleaved Transformer, the Sandwich and PAR's rule: figures, tables, sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from parformer.report.figures import ACCENT, GREY, Trace, axis, bars, plot
from parformer.report.page import Html, Part, table
from parformer.report.words import duration, gigaflops, interval, listed, megabytes, overlap
from parformer.search.placement.result import Compared, PlacementResult, Retrained

METRICS = {
    "parameters": "parameters",
    "FLOPs": "flops",
    "state": "state_bytes",
    "time": "latency_seconds",
}
STYLES = {
    "found": {"color": ACCENT, "symbol": "circle"},
    "interleaved": {"color": GREY, "symbol": "square"},
    "sandwich": {"color": "#0c8599", "symbol": "diamond"},
    "par": {"color": "#e8a200", "symbol": "triangle-up"},
}


def ratios(row: Compared, base: Compared) -> dict[str, float]:
    """How many times the other's cost this one has, where there is any."""
    pairs = {word: (getattr(row, key), getattr(base, key)) for word, key in METRICS.items()}
    return {word: mine / theirs for word, (mine, theirs) in pairs.items() if theirs}


def same_time(row: Compared, base: Compared) -> bool:
    """Whether the intervals of two times overlap, so that neither is known to be faster."""
    return overlap(row.latency_interval, base.latency_interval)


def cost_rows(found: PlacementResult) -> list[tuple[str, list[str]]]:
    """One line per figure with a cell for every pattern, for pages and terminals alike."""
    compared, base = found.compared, found.row("interleaved")

    def against(word: str) -> list[tuple[str, list[str]]]:
        if base is None:
            return []
        shares = [ratios(row, base) for row in compared]
        return [("  ×\u00a0interleaved", [f"{s[word]:.2f}" if word in s else "–" for s in shares])]

    return [
        ("self-attention", [str(row.pattern.count("s")) for row in compared]),
        ("parameters", [f"{row.parameters:,}" for row in compared]),
        *against("parameters"),
        ("FLOPs per step", [gigaflops(row.flops) for row in compared]),
        *against("FLOPs"),
        ("state, memory full", [megabytes(row.state_bytes) for row in compared]),
        *against("state"),
        (f"time per {found.timed}", [duration(row.latency_seconds) for row in compared]),
        ("  interval", [interval(*row.latency_interval) for row in compared]),
        *against("time"),
    ]


def cost_table(found: PlacementResult) -> Html:
    names = [row.title for row in found.compared]
    return table(["", *names], [(label, *cells) for label, cells in cost_rows(found)])


def cost_figure(found: PlacementResult, base: Compared) -> Part:
    """Costs relative to the interleaved Transformer."""
    data = []
    for row in found.compared:
        if row is not base:
            shares = ratios(row, base)
            hover = f"{escape(row.title)}: %{{y:.3f}} × %{{x}}"
            colour = STYLES.get(row.name, STYLES["interleaved"])["color"]
            data.append(
                bars(list(shares), [*shares.values()], name=row.title, colour=colour, hover=hover)
            )
    line: Trace = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    line["line"] = {"color": GREY, "width": 1.5, "dash": "dot"}
    see = "The dotted line is the interleaved Transformer; below it is cheaper."
    own = found.row("found")
    if own is not None and (shares := ratios(own, base)):
        told = [f"{s:.2f}× its {word}" if s else f"no {word}" for word, s in shares.items()]
        see += f" The found pattern has {listed(told)}."
        if same_time(own, base):
            see += " The two times cannot be told apart: their intervals overlap."
    y = axis("× interleaved", rangemode="tozero")
    return Part(plot(data, height=340, xaxis=axis(), yaxis=y, shapes=[line], showlegend=True), see)


def cost_sentence(found: PlacementResult) -> str:
    """What the found pattern costs beside the interleaved Transformer, in plain words."""
    own, base = found.row("found"), found.row("interleaved")
    if own is None or base is None:
        return ""
    shares = ratios(own, base)
    parts = [_more_or_less(shares["FLOPs"], "computation")] if "FLOPs" in shares else []
    if "state" in shares:
        parts.append(_more_or_less(shares["state"], "memory for past text"))
    alike = same_time(own, base)
    if not alike:
        times = f"{duration(own.latency_seconds)} against {duration(base.latency_seconds)}"
        parts.append(f"{_more_or_less(shares['time'], 'time')} ({times})")
    words = f"Beside the interleaved Transformer it needs {listed(parts)} per step"
    words += ", where times are those of a whole text" * found.translates
    if alike:
        words += "; which of the two is faster could not be told, as their times overlap"
    return f"{words}."


def _more_or_less(share: float, what: str) -> str:
    if not share:
        return f"no {what}"
    if f"{abs(share - 1):.0%}" == "0%":
        return f"as much {what}"
    if share >= 2:
        return f"{share:.1f} times the {what}"
    return f"{abs(share - 1):.0%} {'less' if share < 1 else 'more'} {what}"


def scored(runs: Sequence[Retrained]) -> tuple[dict[str, float], str]:
    """What each pattern trained anew reached, by its name, in a figure that all have; its unit."""
    split = "test" if all(run.test for run in runs) else "valid"
    scores = {run.name: run.test if run.test and split == "test" else run.valid for run in runs}
    bits = {name: score.bits for name, score in scores.items() if score.bits is not None}
    if len(bits) == len(scores):
        return bits, f"{split} bits per character"
    return {name: score.perplexity for name, score in scores.items()}, f"{split} perplexity"


def quality_parts(found: PlacementResult, runs: Sequence[Retrained]) -> list[Part | None]:
    """What every pattern reached when trained anew, drawn and as a table."""
    numbers = Part(quality_table(runs), "Lower is better everywhere.")
    return [quality_figure(found, runs), numbers]


def quality_figure(found: PlacementResult, runs: Sequence[Retrained]) -> Part | None:
    """Quality against cost, one point per pattern that was trained anew."""
    values, unit = scored(runs)
    pairs = [(run, row) for run in runs if (row := found.row(run.name))]
    if not pairs:
        return None
    places = [(1e3 * row.latency_seconds, values[run.name]) for run, row in pairs]
    shared: Trace = {"type": "scatter", "mode": "markers+text", "textposition": "top center"}
    shared["hovertemplate"] = "%{text}: %{y:.3f} at %{x:.3g} ms<extra></extra>"
    shared |= {"cliponaxis": False, "showlegend": False}
    data: list[Trace] = []
    for (run, _), (x, y) in zip(pairs, places, strict=True):
        marker: Trace = {"size": 13, **STYLES.get(run.name, STYLES["interleaved"])}
        data.append({"x": [x], "y": [y], "text": [escape(run.title)], "marker": marker, **shared})
    across, up = map(_with_room, zip(*places, strict=True))
    x_axis, y_axis = axis(f"time per {found.timed}, ms", range=across), axis(unit, range=up)
    drawn = plot(data, height=380, xaxis=x_axis, yaxis=y_axis)
    return Part(drawn, f"Lower and further left is better. {quality_sentence(runs)}")


def _with_room(values: Sequence[float]) -> list[float]:
    """Ends of an axis that leave room for the words at its points."""
    low, high = min(values), max(values)
    room = 0.2 * (high - low) or 0.1 * abs(high) or 1.0
    return [low - room, high + room]


def quality_sentence(runs: Sequence[Retrained]) -> str:
    """The found pattern's quality beside the interleaved Transformer's."""
    values, unit = scored(runs)
    if not {"found", "interleaved"} <= set(values):
        best = min(runs, key=lambda run: values[run.name])
        return f"No {unit} is below that of {best.title}, {values[best.name]:.3f}."
    failed = [run.title for run in runs if not run.learned]
    if failed:
        return (
            f"Trained anew, {listed(failed)} learned less than counting pairs of tokens gives in "
            "this time, so there is nothing to compare; train longer, or at a lower rate."
        )
    mine, theirs = values["found"], values["interleaved"]
    words = f"{abs(mine / theirs - 1):.1%} {'below' if mine < theirs else 'above'}"
    words = "within 0.05% of" if words.startswith("0.0%") else words
    return (
        f"Trained anew, the found pattern reaches {mine:.3f} {unit}, {words} the interleaved "
        f"Transformer's {theirs:.3f}. Each was trained once, so small differences may be luck."
    )


def quality_table(runs: Sequence[Retrained]) -> Html:
    """What every pattern reached when trained anew, and its distance from interleaved."""
    values, unit = scored(runs)
    base = next((run for run in runs if run.name == "interleaved"), None)

    def figure(run: Retrained, split: str, kind: str) -> float | None:
        score = getattr(run, split)
        return None if score is None else getattr(score, kind)

    columns = [
        (f"{split} {word}", split, kind)
        for split in ("valid", "test")
        for kind, word in (("perplexity", "perplexity"), ("bits", "bits per character"))
        if any(figure(run, split, kind) is not None for run in runs)
    ]
    rows = []
    for run in runs:
        known = [figure(run, split, kind) for _, split, kind in columns]
        cells = ["–" if value is None else f"{value:.3f}" for value in known]
        change = "–"
        if base and run is not base and run.learned and base.learned:
            change = f"{values[run.name] - values[base.name]:+.3f}".replace("-", "−")
        rows.append((run.title, f"{run.steps:,}", *cells, change))
    head = ["", "steps", *(name for name, _, _ in columns), f"{unit} against interleaved"]
    return table(head, rows)
