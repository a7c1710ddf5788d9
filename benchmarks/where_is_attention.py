"""Where do small models of English and of Python need attention?

    parformer search differentiable --corpus CORPUS --seeds 3 --retrain --run FOLDER/NAME
    python benchmarks/where_is_attention.py FOLDER/NAME … --svg FILE

reads what searches have found and prints the tables of docs/experiments/where-is-attention.md;
`--svg` draws how likely every block is in every layer.
"""

from __future__ import annotations

import argparse
import json
import math
from html import escape
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from inference import table

from parformer.evaluate.counting import References
from parformer.pattern import ALPHABET

CELL, LEFT, TOP, GAP = 34, 130, 46, 58
LOST = "†"
"""Marks what learned less than counting pairs gives."""
Found = dict[str, Any]


def patterns(found: Found) -> list[str]:
    rows = [[f"seed {seed['seed']}", f"`{seed['pattern']}`"] for seed in found["seeds"]]
    return table(["", "pattern"], [*rows, ["**averaged**", f"**`{found['pattern']}`**"]])


def thirds(found: Found) -> list[str]:
    """Blocks of each kind in thirds of the depth: mean and deviation over seeds."""
    layers, choices = found["layers"], found["choices"]
    rows = []
    for number, choice in enumerate(choices):
        cells = [ALPHABET[choice[0]]]
        for third in range(3):
            own = [layer for layer in range(layers) if 3 * layer // layers == third]
            counts = [sum(seed["picks"][la] == number for la in own) for seed in found["seeds"]]
            spread = f" ± {stdev(counts):.1f}" if len(counts) > 1 else ""
            cells.append(f"{mean(counts):.1f}{spread}")
        rows.append(cells)
    return table(["", "first third", "second third", "last third"], rows)


def retrained(found: Found) -> list[str]:
    costs = {row["name"]: row for row in found["compared"]}
    base = next(row for row in found["retrained"] if row["name"] == "interleaved")
    rows = []
    for row in found["retrained"]:
        bits, price = row["test"]["bits"], costs[row["name"]]
        first = costs["interleaved"]
        against = 100 * (bits / base["test"]["bits"] - 1)
        rows.append(
            [
                row["name"],
                f"`{row['pattern']}`",
                f"{bits:.3f}" if row.get("learned", True) else f"{bits:.3f} {LOST}",
                "" if row is base else f"{against:+.1f}%",
                f"{price['flops'] / first['flops']:.2f}",
                f"{price['state_bytes'] / first['state_bytes']:.2f}",
                f"{price['latency_seconds'] / first['latency_seconds']:.2f}",
            ]
        )
    heads = ["", "pattern", "test bits", "", "FLOPs ×", "state ×", "latency ×"]
    return [*table(heads, rows), *beside(found)]


def beside(found: Found) -> list[str]:
    """What plain counting reaches on validation text, in the bits of the table."""
    if not found.get("references"):
        return []
    # where there are bits, tokens are bytes or characters: these are bits per token
    named = References.from_dict(found["references"]).lines()
    told = ", ".join(f"{name} {nats / math.log(2):.3f}" for name, nats in named)
    lost = any(not row.get("learned", True) for row in found["retrained"])
    note = ["", f"{LOST} learned less than counting pairs gives"] if lost else []
    return ["", f"counting, on validation text: {told} bits", *note]


def draw(searches: dict[str, Found]) -> str:
    """Heat maps, one below the other, with a dot where the averaged search decided."""
    parts, top = [], TOP
    widest = max(found["layers"] for found in searches.values())
    for name, found in searches.items():
        parts.append(text(LEFT, top - 14, name, weight="600"))
        for row, choice in enumerate(found["choices"]):
            y = top + row * CELL
            parts.append(text(LEFT - 10, y + CELL * 0.62, ALPHABET[choice[0]], anchor="end"))
            for layer, shares in enumerate(found["probabilities"]):
                x, share = LEFT + layer * CELL, shares[row]
                parts.append(
                    f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" rx="3" '
                    f'fill="#4b3fd1" fill-opacity="{0.04 + 0.96 * share:.3f}">'
                    f"<title>layer {layer + 1}: {share:.0%}</title></rect>"
                )
                if found["picks"][layer] == row:
                    parts.append(
                        f'<circle cx="{x + CELL / 2 - 1}" cy="{y + CELL / 2 - 1}" r="4" '
                        'fill="#fff" stroke="#1b1b2f"/>'
                    )
        bottom = top + len(found["choices"]) * CELL
        for layer in range(found["layers"]):
            middle = LEFT + layer * CELL + CELL / 2 - 1
            parts.append(text(middle, bottom + 14, str(layer + 1), anchor="middle", size=11))
        top = bottom + GAP
    width, height = LEFT + widest * CELL + 20, top - GAP + 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif"><rect width="100%" height="100%" fill="#fff"/>'
        + "".join(parts)
        + "</svg>\n"
    )


def text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 13, weight: str = "400"
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="#1b1b2f" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--svg", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    searches = {}
    for run in given.runs:
        found = json.loads((run / "search.json").read_text("utf-8"))
        searches[run.name] = found
        print(f"## {run.name}\n")
        for lines in (patterns(found), thirds(found)):
            print("\n".join(lines), end="\n\n")
        if found["agreement"] is not None:
            print(f"agreement of seeds: {found['agreement']:.0%}\n")
        if found["retrained"]:
            print("\n".join(retrained(found)), end="\n\n")
        for warning in found["warnings"]:
            print(f"- {warning}")
        print(json.dumps(found["effort"]), end="\n\n")
    if given.svg is not None:
        given.svg.write_text(draw(searches), "utf-8")


if __name__ == "__main__":
    main()
