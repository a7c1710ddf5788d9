"""Where does this language model need attention, and how sure is that?

One page, or a screenful of terminal, from what `search.json` holds.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parformer.pattern import Pattern
from parformer.report.page import (
    Html,
    Made,
    Part,
    Section,
    letter_name,
    listed,
    page,
    paragraph,
    strips,
    table,
)
from parformer.report.search_costs import (
    cost_figure,
    cost_rows,
    cost_sentence,
    cost_table,
    quality_figure,
    quality_sentence,
    quality_table,
    row_name,
)
from parformer.report.search_figures import (
    Found,
    blocks_of,
    choice_label,
    convergence,
    heat_map,
    heat_maps_by_seed,
    row_of,
    thirds_figure,
)
from parformer.report.stack import COLOURS, draw, legend
from parformer.report.tables import duration, side_by_side

WHAT = (
    "A Transformer usually takes turns: a self-attention block looks back over the text, a "
    "feed-forward block then works on each position alone. Looking back takes the more time and "
    "memory the longer the text. The search trained one large model in which every layer holds "
    "all its choices and learns which of them to prefer; the pattern above is read off what the "
    "layers preferred in the end."
)
METRICS = {"flops": "FLOPs", "latency": "time"}
BARS = " ▁▂▃▄▅▆▇█"


def search_page(found: Found) -> str:
    """The report as one self-contained HTML page."""
    chosen = blocks_of(found, found["picks"])
    lead = [
        paragraph(sentences_of(found)[0], "verdict"),
        Html(f"<figure>{strips({'found': chosen})}</figure>"),
        *(paragraph(sentence) for sentence in sentences_of(found)[1:]),
        *(paragraph(warning, "warning") for warning in found["warnings"]),
        paragraph(WHAT, "soft"),
    ]
    maps = [heat_map(found)]
    if len(found["seeds"]) > 1:
        maps.append(heat_maps_by_seed(found))
    sections = [
        Section("How likely is which block in which layer?", maps),
        Section("Where in the depth do the blocks sit?", [thirds_figure(found)]),
        Section("Did the search settle?", [convergence(found)]),
    ]
    if found["compared"]:
        sections.append(Section("What does the pattern cost?", _comparison(found)))
    if found["retrained"]:
        parts = [Part(quality_table(found), "Lower is better everywhere.")]
        if any(row_of(found, run["name"]) for run in found["retrained"]):
            parts.insert(0, quality_figure(found))
        sections.append(Section("How good is it when trained anew?", parts))
    sections.append(Section("What did the search take?", [_effort(found)]))
    return page(
        title=f"Where does a language model of {found['corpus']} need attention?",
        lead=Html("\n".join(lead)),
        sections=sections,
        made=Made(command=found["command"], date=found["date"], version=found["version"]),
    )


def sentences_of(found: Found) -> list[str]:
    """The verdict in plain words: the pattern, its repeatability, its price."""
    sentences = [_pattern_sentence(found), _seeds_sentence(found), cost_sentence(found)]
    if found.get("learned") is False:
        sentences.insert(0, "Nothing was learned in this time, so the pattern below is chance.")
    sentences.append(_target_sentence(found))
    if found["retrained"]:
        sentences.append(quality_sentence(found))
    return [sentence for sentence in sentences if sentence]


def _pattern_sentence(found: Found) -> str:
    letters = [block.letter for block in blocks_of(found, found["picks"])]
    offered = {Pattern.parse(choice)[0].letter for choice in found["choices"]}
    became = [
        f"{letters.count(letter)} became {letter_name(letter)}"
        for letter in COLOURS
        if letter in letters and letter != "i"
    ]
    words = f"Of {found['layers']} layer{'s' * (found['layers'] > 1)}, {listed(became)}"
    if left := letters.count("i"):
        words += f"{'; ' * bool(became)}{'all' if left == len(letters) else left} "
        words += "were left out (identity)" if left > 1 else "was left out (identity)"
    if "s" not in offered:
        words += "; self-attention was not among the choices"
    elif "s" not in letters:
        words += "; none became self-attention"
    base = row_of(found, "interleaved")
    if base is None:
        return f"{words}."
    usual = Pattern.parse(base["pattern"])
    if usual == Pattern.parse(found["pattern"]):
        return f"{words}. This is the interleaved Transformer itself."
    return f"{words}. The interleaved Transformer has self-attention in {usual.count('s')}."


def _seeds_sentence(found: Found) -> str:
    count, choices = len(found["seeds"]), len(found["choices"])
    if count < 2:
        return "Only one seed searched, so how much of this is luck is not known; more would tell."
    if found["agreement"] is None:
        return f"{count} seeds searched independently."
    who = "they agree on" if count == 2 else "two of them agree on average on"
    return (
        f"{count} seeds searched independently; {who} {found['agreement']:.0%} of "
        f"the layers, where chance alone would give about {1 / choices:.0%}."
    )


def _target_sentence(found: Found) -> str:
    target, price = found["target"], found["price"]
    if not target:
        return ""
    metric = METRICS.get(target["metric"], target["metric"])
    if "limit" not in target:
        weight = f"{metric}, weight {target['penalty']:g}"
        return f"Cost was part of what the search minimised ({weight})."
    limit = f"{target['limit']:g}× the interleaved Transformer's {metric}"
    words = f"It was told to need at most {limit}"
    if price and price["metric"] == target["metric"]:
        kept = "so it kept" if price["found"] <= target["limit"] else "so it did not keep"
        words += f" and needs {price['found']:.3g}×, {kept} to that"
    return f"{words}."


def _comparison(found: Found) -> list[Part]:
    stacks = {row_name(row): list(Pattern.parse(row["pattern"])) for row in found["compared"]}
    if "found" in stacks:
        stacks["found"] = blocks_of(found, found["picks"])
    counts = [
        (row_name(row), Pattern.parse(row["pattern"]).count("s")) for row in found["compared"]
    ]
    shares = [f"{count} in {name}" for name, count in counts]
    see = f"The first block is at the left. Self-attention blocks: {listed(shares)}."
    note = "FLOPs count two per multiply-add; a dash means not known, or nothing to divide by."
    figure = [cost_figure(found)] if row_of(found, "interleaved") else []
    return [Part(strips(stacks), see), *figure, Part(cost_table(found), note)]


def _effort(found: Found) -> Part:
    effort, device, seeds = found["effort"], found["device"], found["seeds"]
    done = [f"{seed['steps']:,}" + " (settled early)" * seed["early"] for seed in seeds]
    modes = {
        "soft": "soft: every choice of every layer runs in every step",
        "sampled": "sampled: one drawn choice per layer runs in every step",
    }
    once = found["steps"] * effort["baseline_step_seconds"]
    rows = [
        ("mode", modes.get(found["mode"], str(found["mode"]))),
        ("seeds", ", ".join(str(seed["seed"]) for seed in seeds)),
        ("steps planned", f"{found['steps']:,} per seed, {found['warmup_steps']:,} to warm up"),
        ("steps done", ", ".join(done)),
        ("a search step", duration(effort["search_step_seconds"])),
        ("a baseline training step", duration(effort["baseline_step_seconds"])),
        ("the whole search", long_time(effort["seconds"])),
        ("device", f"{device['cpu']}, {device['threads']} threads, torch {device['torch']}"),
    ]
    if found["price"]:
        price = found["price"]
        metric = METRICS.get(price["metric"], price["metric"])
        words = (
            f"{price['found']:.3g}× interleaved; {price['expected']:.3g}× expected before deciding"
        )
        rows.insert(4, (f"price in {metric}", words))
    see = (
        f"A search step takes {effort['share']:.2f}× a training step of the interleaved baseline. "
        f"All in all the search took {long_time(effort['seconds'])}; training the baseline once "
        f"for {found['steps']:,} steps would take about {long_time(once)}."
    )
    return Part(table([], rows), see)


def long_time(seconds: float) -> str:
    """A time that may be hours; seconds are told below ten minutes.

    >>> long_time(240.1), long_time(351), long_time(7530), long_time(0.25)
    ('4 min', '5 min 51 s', '2 h 6 min', '250 ms')
    """
    if seconds < 100:
        return duration(seconds)
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 10:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def found_table(found: Found) -> RenderableType:
    """The same in a terminal: pattern, probabilities, agreement, costs."""
    chosen = Pattern(blocks_of(found, found["picks"]))
    names = [row_name(row) for row in found["compared"]]
    rows = [
        (label, dict(zip(names, cells, strict=True)).__getitem__)
        for label, cells in cost_rows(found)
    ]
    return Group(
        Text(found["pattern"], style="bold"),
        Text(),
        *(_screenful(found, chosen, start) for start in range(0, len(chosen), 30)),
        legend([chosen]),
        Text(),
        *(Text(sentence) for sentence in sentences_of(found)),
        *(Text(f"Warning: {warning}", style="yellow") for warning in found["warnings"]),
        *[side_by_side(names, rows, "Beside the interleaved Transformer")] * bool(names),
    )


def _screenful(found: Found, chosen: Pattern, start: int) -> Table:
    """Up to 30 layers: the chosen blocks, and under each how likely every choice was."""
    grid = Table.grid(padding=(0, 2))
    layers = found["probabilities"][start : start + 30]
    title = Text(f"layers {start + 1}–{start + len(layers)}")
    grid.add_row(title, draw(chosen[start : start + 30]))
    for number, choice in enumerate(found["choices"]):
        bars = "".join(f"{BARS[round(row[number] * 8)] * 2}" for row in layers)
        grid.add_row(Text(choice_label(choice)), Text(bars))
    return grid
