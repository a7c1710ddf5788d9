"""Where does this model need attention, and how sure is that?

One page, or a screenful of terminal, from what a search for placements found.
"""

from __future__ import annotations

from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parformer.pattern import BlockSpec, Pattern
from parformer.report import search_costs as costs
from parformer.report import search_figures as figures
from parformer.report.page import Html, Part, Section, letter_name, page, paragraph, strips, table
from parformer.report.stack import COLOURS, draw, legend
from parformer.report.tables import side_by_side
from parformer.report.words import duration, listed, long_time
from parformer.search.placement.result import PlacementResult, Stack

WHAT = (
    "A Transformer usually takes turns: a self-attention block looks back over the text, a "
    "feed-forward block then works on each position alone. Looking back takes the more time and "
    "memory the longer the text. The search trained one large model in which every layer holds "
    "all its choices and learns which of them to prefer; the pattern above is read off what the "
    "layers preferred in the end."
)
TRANSLATES = (
    "A translator has two stacks: the encoder reads the source, and the decoder writes, looking "
    "back over its own text by self-attention and at the source by cross-attention."
)
METRICS = {"flops": "FLOPs", "latency": "time"}
BARS = " ▁▂▃▄▅▆▇█"


def search_page(found: PlacementResult) -> str:
    """The report as one self-contained HTML page."""
    lead = [
        paragraph(sentences_of(found)[0], "verdict"),
        Html(f"<figure>{strips(found.strips('found'))}</figure>"),
        *(paragraph(sentence) for sentence in sentences_of(found)[1:]),
        *(paragraph(warning, "warning") for warning in found.warnings),
        paragraph(WHAT, "soft"),
        *[paragraph(TRANSLATES, "soft")] * found.translates,
    ]
    stacks, several = found.stacks, len(found.seeds) > 1
    seeds = [figures.heat_maps_by_seed(found, stack) for stack in stacks if several]
    likely = [figures.heat_map(found, stack) for stack in stacks]
    # a stack of one or two layers has no thirds
    depth = [figures.thirds_figure(found, stack) for stack in stacks if stack.layers > 2]
    what = "translator" if found.translates else "language model"
    anew = found.retrained or ()
    sections: list[Section] = [
        ("How likely is which block in which layer?", [*likely, *seeds]),
        ("Where in the depth do the blocks sit?", depth),
        ("Did the search settle?", [figures.convergence(found)]),
        ("What does the pattern cost?", _comparison(found) if found.compared else []),
        ("How good is it when trained anew?", costs.quality_parts(found, anew) if anew else []),
        ("What did the search take?", [_effort(found)]),
    ]
    return page(
        title=f"Where does a {what} of {found.corpus} need attention?",
        lead=lead,
        sections=sections,
        made=found,
    )


def sentences_of(found: PlacementResult) -> list[str]:
    """The verdict in plain words: the pattern, its repeatability, its price."""
    became = [_pattern_sentence(found, stack) for stack in found.stacks]
    sentences = [
        " ".join([*became, _beside_sentence(found)]).strip(),
        _seeds_sentence(found),
        costs.cost_sentence(found),
    ]
    if not found.learned:
        sentences.insert(0, "Nothing was learned in this time, so the pattern below is chance.")
    sentences.append(_target_sentence(found))
    if found.retrained:
        sentences.append(costs.quality_sentence(found.retrained))
    return [sentence for sentence in sentences if sentence]


def _pattern_sentence(found: PlacementResult, stack: Stack) -> str:
    letters = [block.letter for block in stack.blocks(found.picks)]
    offered = {Pattern.parse(choice)[0].letter for choice in stack.choices}
    became = [
        f"{letters.count(letter)} became {letter_name(letter)}"
        for letter in COLOURS
        if letter in letters and letter != "i"
    ]
    of = f"{stack.layers} {stack.name} layer".replace("  ", " ") + "s" * (stack.layers > 1)
    words = f"Of {of}, {listed(became)}"
    if left := letters.count("i"):
        words += f"{'; ' * bool(became)}{'all' if left == len(letters) else left} "
        words += "were left out (identity)" if left > 1 else "was left out (identity)"
    if "s" not in offered:
        words += "; self-attention was not among the choices"
    elif "s" not in letters:
        words += "; none became self-attention"
    return f"{words}."


def _beside_sentence(found: PlacementResult) -> str:
    base = found.row("interleaved")
    if base is None:
        return ""
    if base.pattern == found.pattern:
        return "This is the interleaved Transformer itself."
    counts = [(stack.side(base.pattern).count("s"), stack.name) for stack in found.stacks]
    where = [f"{count} of its {name}'s layers" if name else f"{count}" for count, name in counts]
    return f"The interleaved Transformer has self-attention in {listed(where)}."


def _seeds_sentence(found: PlacementResult) -> str:
    count = len(found.seeds)
    chance = fmean(1 / len(stack.choices) for stack in found.stacks for _ in range(stack.layers))
    if count < 2:
        return "Only one seed searched, so how much of this is luck is not known; more would tell."
    if found.agreement is None:
        return f"{count} seeds searched independently."
    who = "they agree on" if count == 2 else "two of them agree on average on"
    return (
        f"{count} seeds searched independently; {who} {found.agreement:.0%} of "
        f"the layers, where chance alone would give about {chance:.0%}."
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
    stacks: dict[str, list[BlockSpec]] = {}
    for row in found.compared:
        stacks |= found.strips(row.title, None if row.title == "found" else row.pattern)
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
    names = [row.title for row in found.compared]
    rows = [
        (label, dict(zip(names, cells, strict=True)).__getitem__)
        for label, cells in costs.cost_rows(found)
    ]
    return Group(
        Text(str(found.pattern), style="bold"),
        Text(),
        *(
            _screenful(found, stack, start)
            for stack in found.stacks
            for start in range(0, stack.layers, 30)
        ),
        legend([Pattern(stack.blocks(found.picks)) for stack in found.stacks]),
        Text(),
        *(Text(sentence) for sentence in sentences_of(found)),
        *(Text(f"Warning: {warning}", style="yellow") for warning in found.warnings),
        *[side_by_side(names, rows, "Beside the interleaved Transformer")] * bool(names),
    )


def _screenful(found: PlacementResult, stack: Stack, start: int) -> Table:
    """Up to 30 layers: the chosen blocks, and under each how likely every choice was."""
    grid = Table.grid(padding=(0, 2))
    layers = stack.of(found.probabilities)[start : start + 30]
    title = Text(f"{stack.name} layers {start + 1}–{start + len(layers)}".strip())
    grid.add_row(title, draw(Pattern(stack.blocks(found.picks)[start : start + 30])))
    for number, choice in enumerate(stack.choices):
        bars = "".join(f"{BARS[round(row[number] * 8)] * 2}" for row in layers)
        grid.add_row(Text(figures.choice_label(choice)), Text(bars))
    return grid
