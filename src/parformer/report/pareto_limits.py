"""Which architecture is the best that keeps to my limits?

A slider for every figure, and a script that fades what breaks a limit in the pictures and in
the table. All words and amounts are written here; the script only compares numbers, so what a
slider says is exactly what the command line reads.

>>> stops("latency", [0.0195, 0.095])[:2]
[(0.02, '20 ms', 'latency=20ms'), (0.021, '21 ms', 'latency=21ms')]
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Any

from parformer.report.page import Html, listed
from parformer.report.pareto_rows import (
    NAMES,
    Found,
    Row,
    baseline_of,
    costs_of,
    finite,
    front_of,
    name_of,
    quality_told,
    sizes,
    value_of,
    words_of,
)
from parformer.search.limits import METRICS, as_option, in_words, read_limit

FEW, MANY = 25, 160
"""Places where a slider may stop: at least, if two digits are too coarse, and at most."""

Stop = tuple[float, str, str]
"""A limit as a number, in words, and as the command line takes it."""


def stops(metric: str, values: Sequence[float]) -> list[Stop]:
    """Round limits from one that lets the cheapest pass to one that rules out the dearest."""
    low, high = min(values), max(values)
    if not 0 < low < high:
        low = min((value for value in values if value > 0), default=high)
    found: list[Stop] = []
    for digits in (2, 3):
        found = [_stop(metric, amount) for amount in _round_amounts(low, high, digits)]
        found = [stop for stop in found if stop[0] >= low]
        if len(found) >= FEW:
            break
    return found[:: math.ceil(len(found) / MANY) or 1]


def _round_amounts(low: float, high: float, digits: int) -> list[float]:
    """Every number of so many digits from low on, below high."""
    if not 0 < low < high:
        return []
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    heads = range(10 ** (digits - 1), 10**digits)
    amounts = (float(f"{head}e{power - digits + 1}") for power in powers for head in heads)
    return [amount for amount in amounts if low <= amount < high]


def _stop(metric: str, amount: float) -> Stop:
    # rounding up, a last binary digit would make it a little larger
    options = [as_option(metric, amount * share) for share in (1, 1 - 1e-9)]
    most, _, option = min((read_limit(option).most, len(option), option) for option in options)
    return most, in_words(metric, most), option


def run_of(command: str) -> str:
    """The run's folder as it was given, ready for a shell; `RUN` where that is not known.

    >>> run_of("parformer search pareto --run 'my runs/a' --seed 1"), run_of("parformer")
    ("'my runs/a'", 'RUN')
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return "RUN"
    for word, after in pairwise([*words, ""]):
        given = after if word == "--run" else word.removeprefix("--run=")
        if word.startswith("--run") and given not in ("", word):
            return shlex.quote(given)
    return "RUN"


def best_words(found: Found, row: Row) -> str:
    """The best that is left, with its figures."""
    figures = [
        f"{words_of(row, m)} {NAMES[m]}" for m in costs_of(found) if value_of(row, m) is not None
    ]
    quality = quality_told(found, row.get("quality"))
    return f"{name_of(row)}: {listed([quality, *figures])} ({sizes(row, found)})"


def sliders(found: Found) -> Html | None:
    """The limits, the best that keeps to them, and the line that picks it, if any can be set."""
    front, everyone = front_of(found), [*front_of(found), *baseline_of(found)]
    offered: dict[str, list[Stop]] = {}
    for metric in [*costs_of(found), *(m for m in METRICS if m not in costs_of(found))]:
        values = [value for row in front if (value := value_of(row, metric)) is not None]
        if values and (places := stops(metric, values)):
            offered[metric] = places
    qualities = [finite(row.get("quality")) for row in front]
    if not offered or not any(quality is not None for quality in qualities):
        return None
    best = max(range(len(front)), key=lambda n: -math.inf if (q := qualities[n]) is None else q)
    known: dict[str, Any] = {
        "quality": qualities,
        "words": [best_words(found, row) for row in front],
        "figures": {m: [value_of(row, m) for row in everyone] for m in offered},
        "stops": offered,
        "pick": f"parformer pick {run_of(str(found.get('command') or ''))}",
    }
    main = [metric for metric in offered if metric in costs_of(found)] or list(offered)
    rest = [metric for metric in offered if metric not in main]
    more = "".join(_slider(metric, offered[metric]) for metric in rest)
    if more:
        more = f'<details><summary>more limits</summary><div class="ranges">{more}</div></details>'
    return Html(
        '<div class="limits" role="group" aria-label="limits" '
        f'data-known="{escape(json.dumps(known))}"><div class="ranges">'
        f"{''.join(_slider(metric, offered[metric]) for metric in main)}</div>{more}"
        f'<p class="answer" role="status"><b>{_left(len(front), len(front))}</b> '
        f"<span>{escape(best_words(found, front[best]))}</span></p>"
        f'<p class="line"><code>{escape(known["pick"])}</code>'
        '<button type="button" class="copy">copy</button>'
        '<button type="button" class="clear">no limits</button></p></div>'
    )


def _slider(metric: str, places: Sequence[Stop]) -> str:
    name = f"limit-{metric}"
    return (
        f'<div><label for="{name}">{NAMES[metric]}</label><output for="{name}">no limit</output>'
        f'<input type="range" id="{name}" name="{metric}" min="0" max="{len(places)}" step="1" '
        f'value="{len(places)}" aria-valuetext="no limit" autocomplete="off"/></div>'
    )


def _left(count: int, total: int) -> str:
    return f"{count} of {total} left; best quality:"


STYLE = """\
.limits .ranges { display: grid; grid-template-columns: repeat(auto-fit, minmax(230px, 1fr));
  gap: 6px 28px; }
.limits .ranges > div { display: grid; grid-template-columns: 1fr auto; font-size: .93rem; }
.limits output { font-weight: 600; font-variant-numeric: tabular-nums; }
.limits input { grid-column: 1 / -1; width: 100%; height: 26px; margin: 0; accent-color: #7c5cff;
  touch-action: pan-y; }
.limits input:focus-visible { outline: 2px solid #7c5cff; outline-offset: 2px; border-radius: 6px; }
.limits details { font-size: .93rem; margin-top: 2px; color: var(--soft); }
.limits p { margin: 8px 0 0; max-width: none; }
.answer { font-size: .95rem; min-height: 3.2em; }
.line { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; }
.line code { background: var(--page); border: 1px solid var(--line); border-radius: 6px;
  padding: 4px 10px; flex: 1 1 300px; font-size: .85rem; }
.line button { font: inherit; font-size: .85rem; color: var(--ink); background: var(--card);
  border: 1px solid var(--line); border-radius: 6px; padding: 4px 12px; cursor: pointer; }
.line button:disabled { opacity: .5; cursor: default; }
tr[data-row] { transition: opacity .12s; }
tr.out > * { opacity: .28; }
.plot path.point.out { opacity: .12 !important; }
.plot path.point.best { stroke: var(--ink) !important; stroke-width: 3px !important; }
tr.best > * { background: var(--alarm); }
@media print { .line button { display: none; } }
@media screen and (min-width: 700px) and (min-height: 820px) {
  figure:has(> .limits) { position: sticky; top: 0; z-index: 1002; box-shadow: 0 4px 14px #0001; }
}
"""

SCRIPT = """
(() => {
  const group = document.querySelector(".limits");
  if (!group) return;
  const known = JSON.parse(group.dataset.known);
  const find = (selector) => group.querySelector(selector);
  const inputs = [...group.querySelectorAll("input")], total = known.quality.length;
  const rows = [...document.querySelectorAll("tr[data-row]")];
  const count = find(".answer b"), words = find(".answer span"), line = find("code");
  const copy = find(".copy");
  const boxes = [...document.querySelectorAll(".plot")]
    .filter((box) => box.data.some(({ meta }) => meta === "limited"));
  let given = [], best = -1, waiting = false;
  const limits = () => inputs.flatMap((input) => {
    const stop = known.stops[input.name][+input.value];
    return stop ? [{ metric: input.name, most: stop[0], told: stop[1], option: stop[2] }] : [];
  });
  const fits = (row) => given.every(({ metric, most }) => {
    const value = known.figures[metric][row];
    return value !== null && value <= most;
  });
  // a figure redraws thousands of dots for any change; classes of a few points are changed at once
  const mark = (box) => {
    for (const { meta, uid, customdata } of box.data) {
      if (meta !== "limited") continue;
      box.querySelectorAll(".trace" + uid + " path.point").forEach((point, place) => {
        point.classList.toggle("out", !fits(customdata[place]));
        point.classList.toggle("best", given.length > 0 && customdata[place] === best);
      });
    }
  };
  const shade = (box) => {
    const { metric, size } = box.layout.meta;
    const own = given.find((limit) => limit.metric === metric);
    Plotly.relayout(box, { shapes: own ? [{ type: "rect", xref: "x", yref: "paper", layer: "below",
      x0: own.most / size, x1: box.layout.xaxis.range[1], y0: 0, y1: 1, line: { width: 0 },
      fillcolor: "rgba(128, 132, 140, 0.16)" }] : [] });
  };
  const show = () => {
    const left = [];
    given = limits();
    for (const input of inputs) {
      const told = given.find(({ metric }) => metric === input.name)?.told;
      input.parentElement.querySelector("output").value = told ? "at most " + told : "no limit";
      input.setAttribute("aria-valuetext", told ? "at most " + told : "no limit");
    }
    for (let row = 0; row < total; row++)
      if (known.quality[row] !== null && fits(row)) left.push(row);
    best = left.reduce((a, b) => a < 0 || known.quality[b] > known.quality[a] ? b : a, -1);
    count.textContent = left.length ? left.length + " of " + total + " left; best quality:"
      : "Nothing on the front keeps to these limits together; loosen one.";
    words.textContent = best < 0 ? "" : known.words[best];
    line.textContent = [known.pick, ...given.map(({ option }) => "--limit " + option)].join(" ");
    copy.disabled = best < 0;
    copy.textContent = "copy";
    for (const row of rows) {
      row.classList.toggle("out", !left.includes(+row.dataset.row));
      row.classList.toggle("best", given.length > 0 && +row.dataset.row === best);
    }
    for (const box of boxes) { mark(box); shade(box); }
  };
  const soon = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; show(); });
  };
  for (const input of inputs) input.addEventListener("input", soon);
  find(".clear").addEventListener("click", () => {
    for (const input of inputs) input.value = input.max;
    show();
  });
  copy.addEventListener("click", async () => {
    getSelection().selectAllChildren(line);
    try {
      await navigator.clipboard.writeText(line.textContent);
      copy.textContent = "copied";
    } catch { copy.textContent = "selected"; }
  });
  for (const box of boxes) box.on("plotly_afterplot", () => mark(box));
  show();
})();
"""
