"""What did a fit take, on what was it measured, and how is it done again?

Tables, each with the sentence that says what to see in it, written from the same numbers.
"""

from __future__ import annotations

from html import escape

from parformer.fitting.result import FitResult
from parformer.report.fit_glance import device_words
from parformer.report.page import Html, Part, table
from parformer.report.words import listed, long_time, megabytes


def phases(found: FitResult) -> Part:
    """What was planned, and what it took."""
    by_clock = any(phase.planned for phase in found.phases)
    body: list[tuple[str, str, str]] = []
    out = []
    for phase in found.phases:
        plan = long_time(phase.planned) if phase.planned else "–"
        done = "not finished" if phase.planned else "–"
        if phase.left_out or (not phase.planned and (by_clock or phase.note)):
            out.append(phase.title)
            plan, done = (plan, "left out") if phase.planned else ("left out", "–")
        elif phase.seconds is not None:
            done = long_time(phase.seconds)
        body.append((phase.title, plan, done))
        body += [(f" {note}", "", "") for note in (phase.left_out or phase.note,) if note]
    spent = {p.title: p.seconds for p in found.phases if p.seconds is not None}
    whole = long_time(sum(phase.planned for phase in found.phases))
    see = f"Planned were {whole}" if by_clock else "No time was planned: it was asked for updates"
    if spent:
        longest = max(spent, key=spent.__getitem__)
        see += f"{', taken' if by_clock else '. Taken'} {long_time(sum(spent.values()))}; the "
        see += f"longest was “{longest}” with {long_time(spent[longest])}"
    see += f". Left out: {listed(out)}" if out else ""
    return Part(table(["phase", "planned", "taken"], body), f"{see}.")


def energy(found: FitResult) -> Part:
    """What the job used, estimated."""
    spent = found.energy
    kwh, co2 = spent.kwh, spent.co2_kg
    rows = [
        ("energy, estimated", f"{kwh:.3g} kWh" if kwh >= 1 else f"{1000 * kwh:.3g} Wh"),
        ("CO₂, estimated", f"{co2:.3g} kg" if co2 >= 1 else f"{1000 * co2:.3g} g"),
        ("price, estimated", f"{spent.money:.2g} {spent.currency}".strip()),
    ]
    source = spent.source.removeprefix("estimate: ")
    see = (
        f"Estimates, not measurements: {source}; {spent.watts:g} W for {long_time(spent.seconds)}."
    )
    return Part(table([], rows), see)


def receipts(found: FitResult) -> Part:
    """What was measured, on what, when, with which versions; and on which text."""
    proof, asked, ram = found.receipt, found.asked, found.device.ram_bytes
    rows = [
        ("measured", proof.what if proof else found.step.words if found.step else ""),
        ("device", device_words(found)),
        ("memory of the device", megabytes(ram) if ram else ""),
        ("date", proof.date if proof else found.date),
        ("parformer", proof.parformer if proof else found.version),
        ("text", _text_words(found)),
        ("family", asked.family),
        ("choices for blocks", asked.choices),
        ("seed", str(asked.seed)),
    ]
    see = "No latency was measured."
    if any(model.latency for model in found.models):
        see = "Latencies come from one run in which the models took turns."
    known = found.profile
    if known and known.median_error is not None and known.p90_error is not None:
        see += (
            f" On models it had not seen, the profile of the device was off by "
            f"{known.median_error:.1%} in the median and {known.p90_error:.1%} at the 90th "
            "percentile."
        )
    if known and known.finalists_error is not None:
        see += (
            f" The latencies of the finalists, predicted before they were built, were off by "
            f"{known.finalists_error:.1%} in the median."
        )
    return Part(table([], [row for row in rows if row[1]]), see)


def _text_words(found: FitResult) -> str:
    words, text = [found.corpus], found.text
    if text is not None:
        words += [megabytes(text.bytes), f"{text.tokens:,} tokens"]
        words.append(f"vocabulary {text.vocabulary:,}")
    return ", ".join([*words, f"tokenizer {found.tokenizer}"])


def take_away(found: FitResult) -> Part | None:
    """How the model leaves the house: what was tried, and what has no place for it."""
    if not found.ways:
        return None
    told = [way for way in found.ways if way.possible]
    blocks = "".join(
        f"<p><b>{escape(way.name)}</b>: {escape(way.note)}</p>"
        f'<pre class="command" tabindex="0">{escape(way.command)}</pre>'
        for way in told
    )
    out = "".join(
        f'<p class="soft"><b>{escape(way.name)}</b>: not this model. {escape(way.note)}</p>'
        for way in found.ways
        if not way.possible
    )
    tried = sum(way.works for way in found.ways)
    see = f"{tried} of these commands were tried with this very model when the report was written"
    see += "; exports were thrown away after they agreed with it." if tried else "."
    return Part(Html(blocks + out), see)


def repeat(found: FitResult) -> Part | None:
    """The commands, ready to be copied."""
    kept = [command for command in dict.fromkeys([found.command, *found.repeat]) if command]
    if not kept:
        return None
    blocks = "".join(f'<pre class="command" tabindex="0">{escape(words)}</pre>' for words in kept)
    see = "The first line does it all again"
    see += "; the others take up what it wrote." if len(kept) > 1 else "."
    return Part(Html(blocks), see)
