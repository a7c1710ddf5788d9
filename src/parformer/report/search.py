"""Where does this language model need attention, and how sure is that?

One page, or a screenful of terminal, from what a search for placements found.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parformer.pattern import Pattern
from parformer.report import search_costs as costs
from parformer.report import search_figures as figures
from parformer.report.page import Html, Part, Section, letter_name, page, paragraph, strips, table
from parformer.report.stack import COLOURS, draw, legend
from parformer.report.tables import side_by_side
from parformer.report.words import duration, listed, long_time
from parformer.search.placement.result import PlacementResult

WHAT = (
    "A Transformer usually takes turns: a self-attention block looks back over the text, a "
    "feed-forward block then works on each position alone. Looking back takes the more time and "
    "memory the longer the text. The search trained one large model in which every layer holds "
    "all its choices and learns which of them to prefer; the pattern above is read off what the "
    "layers preferred in the end."
)
METRICS = {"flops": "FLOPs", "latency": "time"}
BARS = " ▁▂▃▄▅▆▇█"


def search_page(found: PlacementResult) -> str:
    """The report as one self-contained HTML page."""
    lead = [
        paragraph(sentences_of(found)[0], "verdict"),
        Html(f"<figure>{strips({'found': found.blocks})}</figure>"),
        *(paragraph(sentence) for sentence in sentences_of(found)[1:]),
        *(paragraph(warning, "warning") for warning in found.warnings),
        paragraph(WHAT, "soft"),
    ]
    seeds = figures.heat_maps_by_seed(found) if len(found.seeds) > 1 else None
    anew = found.retrained or ()
    sections: list[Section] = [
        ("How likely is which block in which layer?", [figures.heat_map(found), seeds]),
        ("Where in the depth do the blocks sit?", [figures.thirds_figure(found)]),
        ("Did the search settle?", [figures.convergence(found)]),
        ("What does the pattern cost?", _comparison(found) if found.compared else []),
        ("How good is it when trained anew?", costs.quality_parts(found, anew) if anew else []),
        ("What did the search take?", [_effort(found)]),
    ]
    return page(
        title=f"Where does a language model of {found.corpus} need attention?",
        lead=lead,
        sections=sections,
        made=found,
    )


def sentences_of(found: PlacementResult) -> list[str]:
    """The verdict in plain words: the pattern, its repeatability, its price."""
    sentences = [_pattern_sentence(found), _seeds_sentence(found), costs.cost_sentence(found)]
    if not found.learned:
        sentences.insert(0, "Nothing was learned in this time, so the pattern below is chance.")
    sentences.append(_target_sentence(found))
    if found.retrained:
        sentences.append(costs.quality_sentence(found.retrained))
    return [sentence for sentence in sentences if sentence]


def _pattern_sentence(found: PlacementResult) -> str:
    letters = [block.letter for block in found.blocks]
    offered = {Pattern.parse(choice)[0].letter for choice in found.choices}
    became = [
        f"{letters.count(letter)} became {letter_name(letter)}"
        for letter in COLOURS
        if letter in letters and letter != "i"
    ]
    words = f"Of {found.layers} layer{'s' * (found.layers > 1)}, {listed(became)}"
    if left := letters.count("i"):
        words += f"{'; ' * bool(became)}{'all' if left == len(letters) else left} "
        words += "were left out (identity)" if left > 1 else "was left out (identity)"
    if "s" not in offered:
        words += "; self-attention was not among the choices"
    elif "s" not in letters:
        words += "; none became self-attention"
    base = found.row("interleaved")
    if base is None:
        return f"{words}."
    if base.pattern == found.pattern:
        return f"{words}. This is the interleaved Transformer itself."
    return f"{words}. The interleaved Transformer has self-attention in {base.pattern.count('s')}."


def _seeds_sentence(found: PlacementResult) -> str:
    count, choices = len(found.seeds), len(found.choices)
    if count < 2:
        return "Only one seed searched, so how much of this is luck is not known; more would tell."
    if found.agreement is None:
        return f"{count} seeds searched independently."
    who = "they agree on" if count == 2 else "two of them agree on average on"
    return (
        f"{count} seeds searched independently; {who} {found.agreement:.0%} of "
        f"the layers, where chance alone would give about {1 / choices:.0%}."
    )


def _target_sentence(found: PlacementResult) -> str:
    target, price = found.target, found.price
    if target is None:
        return ""
    metric = METRICS.get(target.metric, target.metric)
    if target.limit is None:
        return f"Cost was part of what the search minimised ({metric}, weight {target.penalty:g})."
    words = f"It was told to need at most {target.limit:g}× the interleaved Transformer's {metric}"
    if price is not None and price.metric == target.metric:
        kept = "so it kept" if price.found <= target.limit else "so it did not keep"
        words += f" and needs {price.found:.3g}×, {kept} to that"
    return f"{words}."


def _comparison(found: PlacementResult) -> list[Part]:
    stacks = {row.title: list(row.pattern) for row in found.compared}
    if "found" in stacks:
        stacks["found"] = found.blocks
    shares = [f"{row.pattern.count('s')} in {row.title}" for row in found.compared]
    see = f"The first block is at the left. Self-attention blocks: {listed(shares)}."
    note = "FLOPs count two per multiply-add; a dash means that there is nothing to divide by."
    base = found.row("interleaved")
    figure = [] if base is None else [costs.cost_figure(found, base)]
    return [Part(strips(stacks), see), *figure, Part(costs.cost_table(found), note)]


def _effort(found: PlacementResult) -> Part:
    effort = found.effort
    done = [f"{seed.steps:,}" + " (settled early)" * seed.early for seed in found.seeds]
    modes = {
        "soft": "soft: every choice of every layer runs in every step",
        "sampled": "sampled: one drawn choice per layer runs in every step",
    }
    once = found.steps * effort.baseline_step_seconds
    rows = [
        ("mode", modes.get(found.mode, found.mode)),
        ("seeds", ", ".join(str(seed.seed) for seed in found.seeds)),
        ("steps planned", f"{found.steps:,} per seed, {found.warmup_steps:,} to warm up"),
        ("steps done", ", ".join(done)),
        ("a search step", duration(effort.search_step_seconds)),
        ("a baseline training step", duration(effort.baseline_step_seconds)),
        ("the whole search", long_time(effort.seconds)),
        ("device", found.device.words()),
    ]
    if (price := found.price) is not None:
        metric = METRICS.get(price.metric, price.metric)
        words = f"{price.found:.3g}× interleaved; {price.expected:.3g}× expected before deciding"
        rows.insert(4, (f"price in {metric}", words))
    see = (
        f"A search step takes {effort.share:.2f}× a training step of the interleaved baseline. "
        f"All in all the search took {long_time(effort.seconds)}; training the baseline once "
        f"for {found.steps:,} steps would take about {long_time(once)}."
    )
    return Part(table([], rows), see)


def found_table(found: PlacementResult) -> RenderableType:
    """The same in a terminal: pattern, probabilities, agreement, costs."""
    chosen = Pattern(found.blocks)
    names = [row.title for row in found.compared]
    rows = [
        (label, dict(zip(names, cells, strict=True)).__getitem__)
        for label, cells in costs.cost_rows(found)
    ]
    return Group(
        Text(str(found.pattern), style="bold"),
        Text(),
        *(_screenful(found, chosen, start) for start in range(0, len(chosen), 30)),
        legend([chosen]),
        Text(),
        *(Text(sentence) for sentence in sentences_of(found)),
        *(Text(f"Warning: {warning}", style="yellow") for warning in found.warnings),
        *[side_by_side(names, rows, "Beside the interleaved Transformer")] * bool(names),
    )


def _screenful(found: PlacementResult, chosen: Pattern, start: int) -> Table:
    """Up to 30 layers: the chosen blocks, and under each how likely every choice was."""
    grid = Table.grid(padding=(0, 2))
    layers = found.probabilities[start : start + 30]
    title = Text(f"layers {start + 1}–{start + len(layers)}")
    grid.add_row(title, draw(chosen[start : start + 30]))
    for number, choice in enumerate(found.choices):
        bars = "".join(f"{BARS[round(row[number] * 8)] * 2}" for row in layers)
        grid.add_row(Text(figures.choice_label(choice)), Text(bars))
    return grid
