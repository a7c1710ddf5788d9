"""How does a report become one page that opens anywhere?

Everything is inside: text, tables, figures and the script that draws them. The page asks no
server for anything, and its policy forbids it to; it follows the reader's light or dark.

>>> made = Made(command="parformer search", date="2026-11-16", version="0.1.0")
>>> "<script>alert" in page(title="<script>alert(1)", lead=Html(""), sections=[], made=made)
False
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from typing import Any, NewType, TypeAlias

from parformer.pattern import ALPHABET, BlockSpec
from parformer.report.stack import COLOURS, colour

Html = NewType("Html", str)
"""Text that is markup already; whatever else comes in is escaped."""

Plot: TypeAlias = dict[str, Any]
"""A plotly figure as plain data: `data`, a list of traces, and `layout`."""

ACCENT = "#7c5cff"
FAINT = "rgba(128, 132, 140, 0.16)"
"""Shades that show on white and on black alike."""

LIGHT = {
    "page": "#fbfbfa",
    "card": "#ffffff",
    "ink": "#1f2328",
    "soft": "#59636e",
    "line": "#e2e5e9",
    "alarm": "#fff4e0",
}
DARK = {
    "page": "#141619",
    "card": "#1b1e23",
    "ink": "#e7e9ec",
    "soft": "#a0a8b2",
    "line": "#31363d",
    "alarm": "#33270f",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """How a report came about."""

    command: str
    date: str
    version: str


@dataclass(frozen=True, slots=True)
class Part:
    """A figure, drawing or table, and the sentence that says what to see in it."""

    content: Plot | Html
    see: str


@dataclass(frozen=True, slots=True)
class Section:
    """A question, and what answers it."""

    heading: str
    parts: Sequence[Part]


def page(
    *,
    title: str,
    lead: Html,
    sections: Sequence[Section],
    made: Made,
    script: str = "",
    style: str = "",
) -> str:
    """The whole page, ready to be written to a file.

    A script of the report's own runs once the figures are there. Script and style are code of
    ours and go in as they are: whatever comes from outside belongs into the other arguments.
    """
    from plotly.offline import get_plotlyjs

    painter = _PAINTER % {"light": json.dumps(LIGHT), "dark": json.dumps(DARK)}
    scripts = [get_plotlyjs(), painter, *[script] * bool(script)]
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src {' '.join(map(_fingerprint, scripts))}"
    )
    numbers = iter(range(1, 1 + sum(len(section.parts) for section in sections)))
    body = "\n".join(
        f"<section><h2>{escape(section.heading)}</h2>"
        + "\n".join(_figure(part, next(numbers)) for part in section.parts)
        + "</section>"
        for section in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
:root {{ {_variables(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
{_STYLE}{style}</style>
</head>
<body>
<header><div><span class="brand">Parformer</span><h1>{escape(title)}</h1></div></header>
<main>
<noscript><p class="warning">The figures are drawn by JavaScript, which is off.</p></noscript>
<div class="lead">{lead}</div>
{body}
</main>
<footer>Made by parformer {escape(made.version)} on {escape(made.date)} with
<code>{escape(made.command)}</code></footer>
{"".join(f"<script>{text}</script>" for text in scripts)}
</body>
</html>
"""


def paragraph(text: str, kind: str = "") -> Html:
    """A paragraph of plain text; the kinds are `verdict`, `soft` and `warning`."""
    return Html(f'<p class="{kind}">{escape(text)}</p>')


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    """A table of plain text whose first column names the rows; without a head, of words.

    A row whose name is indented tells more about the row above it.
    """
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr{" class=more" * name.startswith(" ")}><th scope="row">{escape(name.strip())}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>\n"
        for name, *cells in rows
    )
    kind, above = ("", f"<thead><tr>{top}</tr></thead>") if head else (' class="facts"', "")
    return Html(f'<div class="scroll"><table{kind}>{above}<tbody>\n{body}</tbody></table></div>')


def strips(
    stacks: Mapping[str, Sequence[BlockSpec]], notes: Mapping[str, str] | None = None
) -> Html:
    """Stacks as rows of coloured cells under each other, first block at the left.

    Unlike the picture of `to_svg` they take the page's colours and shrink to a phone. A note
    stands small under the name of its stack.
    """
    longest = max(len(blocks) for blocks in stacks.values())
    small = {name: f"<small>{escape(note)}</small>" for name, note in (notes or {}).items()}
    rows = "".join(
        f'<div class="name">{escape(name)}{small.get(name, "")}</div>'
        f'<div class="strip" style="--cells:{longest}" role="img" '
        f'aria-label="{escape(" ".join(map(str, blocks)))}">'
        + "".join(_cell(number, block) for number, block in enumerate(blocks, start=1))
        + "</div>\n"
        for name, blocks in stacks.items()
    )
    used = {block.letter for blocks in stacks.values() for block in blocks}
    key = "".join(
        f'<span><i style="background:{colour(letter)}"></i>{letter_name(letter)}</span>'
        for letter in dict.fromkeys([*COLOURS, *sorted(used)])
        if letter in used
    )
    dense = " dense" if longest > 26 else ""
    return Html(f'<div class="strips{dense}">{rows}</div><div class="key">{key}</div>')


def letter_name(letter: str) -> str:
    """What a block letter stands for."""
    return ALPHABET.get(letter, "bottleneck")


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them.

    >>> listed(["one", "two", "three"]), listed(["one"])
    ('one, two and three', 'one')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis that stays put under a finger, so that a page of figures scrolls on a phone."""
    words = {"text": title, "font": {"size": 13}}
    return {"title": words, "fixedrange": True, "automargin": True, "tickangle": 0, **more}


def plot(data: list[dict[str, Any]], *, height: int, **layout: Any) -> Plot:
    """A figure in the page's manner; its colours of text and grid come when it is drawn."""
    shared = {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", "size": 13},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#868e96", "activecolor": ACCENT},
        "dragmode": False,
        "hovermode": "closest",
    }
    return {"data": data, "layout": shared | layout}


def _figure(part: Part, number: int) -> str:
    """One part with its sentence; a figure's data stands beside it, where no markup can end it."""
    content = part.content
    if not isinstance(content, str):
        data = json.dumps(_finite(content), ensure_ascii=False)
        for character in "<>&":
            data = data.replace(character, f"\\u{ord(character):04x}")
        content = Html(
            f'<div class="plot" id="plot-{number}" role="img" aria-label="{escape(part.see)}" '
            f'style="height:{content["layout"]["height"]:d}px"></div>'
            f'<script type="application/json" id="plot-{number}-data">{data}</script>'
        )
    return f"<figure>{content}<figcaption>{escape(part.see)}</figcaption></figure>"


def _finite(value: Any) -> Any:
    """JSON knows no infinities; a gap in the curve shows where one was."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(inside) for name, inside in value.items()}
    return [_finite(inside) for inside in value] if isinstance(value, list | tuple) else value


def _cell(number: int, block: BlockSpec) -> str:
    ink = "#1f2328" if block.letter in "iy" else "#ffffff"  # the two pale ones
    return (
        f'<span style="background:{colour(block.letter)};color:{ink}" '
        f'title="{number}: {letter_name(block.letter)} {escape(str(block))}">'
        f"{escape(block.letter)}</span>"
    )


def _fingerprint(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


_STYLE = """\
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  -webkit-text-size-adjust: 100%; }
header { background: var(--card); border-bottom: 1px solid var(--line); }
header div, main, footer { max-width: 900px; margin: 0 auto; padding: 0 20px; }
header div { padding-top: 22px; padding-bottom: 20px; }
.brand { color: var(--soft); font-size: .8rem; letter-spacing: .09em; text-transform: uppercase; }
h1 { font-size: clamp(1.45rem, 5vw, 2.05rem); line-height: 1.22; letter-spacing: -.015em;
  margin: 4px 0 0; overflow-wrap: anywhere; text-wrap: balance; }
h2 { font-size: 1.22rem; line-height: 1.3; margin: 0 0 6px; letter-spacing: -.005em;
  break-after: avoid; }
section { margin: 44px 0; }
p { max-width: 70ch; margin: 12px 0; }
.lead { margin: 28px 0; }
.verdict { font-size: 1.17rem; line-height: 1.5; }
.soft { color: var(--soft); }
.warning { max-width: none; background: var(--alarm); border-left: 4px solid #e8a200;
  border-radius: 0 8px 8px 0; padding: 10px 16px; overflow-wrap: anywhere; }
.warning::before { content: "Warning: "; font-weight: 650; }
figure { margin: 14px 0 26px; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; padding: 16px 18px 14px; break-inside: avoid; }
figcaption { color: var(--soft); font-size: .94rem; line-height: 1.5; margin-top: 10px;
  max-width: 76ch; }
.plot { width: 100%; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .93rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: 7px 12px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
tr > :first-child { text-align: left; padding-left: 2px; position: sticky; left: 0;
  background: var(--card); }
tr > :last-child { padding-right: 2px; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 500; vertical-align: bottom; white-space: normal; }
tbody th { font-weight: 600; }
.more th, .more td { color: var(--soft); font-weight: 400; }
tr > th:first-child { min-width: 7.5em; }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.facts th { vertical-align: top; font-weight: 500; color: var(--soft); }
.strips { display: grid; grid-template-columns: max-content 1fr; gap: 8px 14px;
  align-items: center; }
.name { font-size: .93rem; line-height: 1.35; }
.name small { display: block; color: var(--soft); }
.strip { display: grid; grid-template-columns: repeat(var(--cells), minmax(0, 34px)); gap: 3px; }
.strip span { border-radius: 4px; height: 28px; font: 600 13px/28px ui-monospace, monospace;
  text-align: center; overflow: hidden; -webkit-print-color-adjust: exact;
  print-color-adjust: exact; }
.dense .strip { gap: 2px; }
.dense .strip span { font-size: 0; border-radius: 3px; }
.key { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 12px; font-size: .86rem;
  color: var(--soft); }
.key i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 6px;
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
footer { color: var(--soft); font-size: .86rem; border-top: 1px solid var(--line);
  padding-top: 16px; padding-bottom: 40px; }
code { font: .92em ui-monospace, SFMono-Regular, Menlo, monospace; overflow-wrap: anywhere; }
@media (max-width: 600px) {
  header div, main, footer { padding-left: 14px; padding-right: 14px; }
  figure { padding: 12px 10px; border-radius: 10px; }
  .strips { grid-template-columns: 1fr; gap: 3px; }
  .strip { gap: 2px; margin-bottom: 8px; }
  table { font-size: .84rem; }
  th, td { padding: 6px 7px; }
  tbody th { white-space: normal; }
}
@media print { body { font-size: 11pt; } section { margin: 24px 0; } }
"""

_PAINTER = """
(() => {
  const colours = { light: %(light)s, dark: %(dark)s };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const boxes = [...document.querySelectorAll(".plot")];
  const paint = (layout, ink) => {
    const changes = { "font.color": ink.ink, "hoverlabel.bgcolor": ink.card,
      "hoverlabel.bordercolor": ink.soft, "hoverlabel.font.color": ink.ink };
    for (const name of Object.keys(layout).filter((key) => /^[xy]axis[0-9]*$/.test(key)))
      for (const part of ["gridcolor", "zerolinecolor", "linecolor", "tickcolor"])
        changes[name + "." + part] = ink.line;
    return changes;
  };
  const repaint = (ink, more) => boxes.map((box) =>
    Plotly.relayout(box, { ...paint(box.layout, ink), ...more }));
  const current = () => dark.matches ? colours.dark : colours.light;
  const options = { responsive: true, displaylogo: false, modeBarButtons: [["toImage"]],
    displayModeBar: innerWidth > 600 ? "hover" : false };
  for (const box of boxes) {
    const { data, layout } = JSON.parse(document.getElementById(box.id + "-data").textContent);
    for (const [path, colour] of Object.entries(paint(layout, current()))) {
      const names = path.split("."), last = names.pop();
      names.reduce((part, name) => part[name] ??= {}, layout)[last] = colour;
    }
    Plotly.newPlot(box, data, layout, options);
  }
  dark.addEventListener("change", () => repaint(current()));
  addEventListener("beforeprint", () => repaint(colours.light, { width: 620 }));
  addEventListener("afterprint", () => repaint(current(), { width: null, autosize: true }));
})();
"""
