"""What did a fit take, on what was it measured, and how is it done again?

Tables, each with the sentence that says what to see in it, written from the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from parformer.report.fit_glance import title_of
from parformer.report.fit_rows import Found, figure_of, models_of
from parformer.report.page import Html, Part, listed, table
from parformer.report.pareto import device_words
from parformer.report.pareto_rows import finite
from parformer.report.search import long_time
from parformer.report.tables import megabytes


def phases(found: Found) -> Part | None:
    """What was planned, and what it took."""
    rows = found.get("phases") or []
    if not rows:
        return None
    body = []
    for row in rows:
        planned, took = finite(row.get("planned")) or 0.0, finite(row.get("seconds"))
        plan = long_time(planned) if planned else "left out"
        done = long_time(took) if took is not None else "–" if not planned else "not finished"
        body.append((title_of(row), plan, done))
        body += [(f" {note}", "", "")] if (note := str(row.get("note") or "")) else []
    whole = sum(finite(row.get("planned")) or 0.0 for row in rows)
    spent = {title_of(row): x for row in rows if (x := finite(row.get("seconds"))) is not None}
    see = f"Planned were {long_time(whole)}"
    if spent:
        longest = max(spent, key=spent.__getitem__)
        see += f", taken {long_time(sum(spent.values()))}; the longest was “{longest}” with "
        see += long_time(spent[longest])
    out = [title_of(row) for row in rows if not finite(row.get("planned"))]
    see += f". Left out: {listed(out)}" if out else ""
    return Part(table(["phase", "planned", "taken"], body), f"{see}.")


def energy(found: Found) -> Part | None:
    """What the job used, estimated."""
    spent: Mapping[str, Any] = found.get("energy") or {}
    kwh, watts = finite(spent.get("kwh")), finite(spent.get("watts"))
    if kwh is None:
        return None
    rows = [("energy, estimated", f"{kwh:.3g} kWh" if kwh >= 1 else f"{1000 * kwh:.3g} Wh")]
    co2, money = finite(spent.get("co2_kg")), finite(spent.get("money"))
    currency = str(spent.get("currency") or "")
    if co2 is not None:
        told = f"{co2:.3g} kg" if co2 >= 1 else f"{1000 * co2:.3g} g"
        rows.append(("CO₂, estimated", told))
    if money is not None:
        rows.append(("price, estimated", f"{money:.2g} {currency}".strip()))
    see = "Estimates, not measurements"
    source = str(spent.get("source") or "").removeprefix("estimate: ")
    see += f": {source}" if source else ""
    seconds = finite(spent.get("seconds"))
    if watts is not None and seconds is not None:
        see += f"; {watts:g} W for {long_time(seconds)}"
    grid, price = finite(spent.get("grid")), finite(spent.get("price"))
    named = "kWh" in source
    see += f"; {grid:g} kg CO₂ per kWh" if grid is not None and not named else ""
    see += f"; {price:g} {currency} per kWh" if price is not None and not named else ""
    return Part(table([], rows), f"{see}.")


def receipts(found: Found) -> Part:
    """What was measured, on what, when, with which versions; and on which text."""
    proof: Mapping[str, Any] = found.get("receipt") or {}
    text: Mapping[str, Any] = found.get("text") or {}
    asked: Mapping[str, Any] = found.get("asked") or {}
    device: Mapping[str, Any] = found.get("device") or {}
    rows = [
        ("measured", str(proof.get("what") or (found.get("step") or {}).get("words") or "")),
        ("device", device_words(found)),
        (
            "memory of the device",
            megabytes(ram) if (ram := finite(device.get("ram_bytes"))) else "",
        ),
        ("date", str(proof.get("date") or found.get("date") or "")),
        ("parformer", str(proof.get("parformer") or found.get("version") or "")),
        ("text", _text_words(found, text)),
        ("family", str(asked.get("family") or "")),
        ("choices for blocks", str(asked.get("choices") or "")),
        ("seed", str(asked.get("seed") if asked.get("seed") is not None else "")),
    ]
    profile: Mapping[str, Any] = found.get("profile") or {}
    median, tail = finite(profile.get("median_error")), finite(profile.get("p90_error"))
    timed = any(figure_of(model, "latency") is not None for model in models_of(found))
    see = "No latency was measured."
    if timed:
        see = "Latencies come from one run in which the models took turns."
    if median is not None and tail is not None:
        see += (
            f" On models it had not seen, the profile of the device was off by {median:.1%} in the "
            f"median and {tail:.1%} at the 90th percentile."
        )
    return Part(table([], [row for row in rows if row[1]]), see)


def _text_words(found: Found, text: Mapping[str, Any]) -> str:
    words = [str(found.get("corpus") or "")]
    size, tokens = finite(text.get("bytes")), finite(text.get("tokens"))
    words += [megabytes(size)] if size is not None else []
    words += [f"{tokens:,.0f} tokens"] if tokens is not None else []
    vocabulary = finite(text.get("vocabulary"))
    words += [f"vocabulary {vocabulary:,.0f}"] if vocabulary is not None else []
    words += [f"tokenizer {name}"] if (name := found.get("tokenizer")) else []
    return ", ".join(filter(None, words))


def repeat(found: Found) -> Part | None:
    """The commands, ready to be copied."""
    commands = [found.get("command"), *(found.get("repeat") or ())]
    kept = [str(command) for command in dict.fromkeys(commands) if command]
    if not kept:
        return None
    blocks = "".join(f'<pre class="command" tabindex="0">{escape(words)}</pre>' for words in kept)
    see = "The first line does it all again"
    see += "; the others take up what it wrote." if len(kept) > 1 else "."
    return Part(Html(blocks), see)
