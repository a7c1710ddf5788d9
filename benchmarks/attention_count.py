"""How many attention blocks does a small model need? Table 1 of PAR Transformer, in pocket size.

    python benchmarks/attention_count.py --folder FOLDER [--enwik8 FILE] [--jobs 2]
    python benchmarks/attention_count.py --folder FOLDER --write

The first trains whatever is missing (it may be stopped and started again); the second writes
docs/experiments/attention-count.md and its pictures from the results.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

from parformer.costs import cost
from parformer.measure.device import describe_device
from parformer.pattern import Pattern, par, sandwich
from parformer.recipe import read_recipe

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "attention-count.md"
SCORE = "test.json"
BLOCKS = 16
PATTERNS = {
    "(f)x16": "no attention",
    "(sfff)x1 (f)x12": "",
    "(sfff)x2 (f)x8": "",
    str(par(BLOCKS, 5)): "PAR's rule, p = 5",
    "(sfff)x4": "",
    "(sff)x5 f": "",
    str(sandwich(BLOCKS, 3)): "Sandwich, k = 3",
    "(sf)x8": "interleaved",
}
REPEATED = ("(f)x16", str(par(BLOCKS, 5)), "(sf)x8")
"""What is trained with three seeds; the rest with one."""
SETTINGS = {
    "model.d_model": 96,
    "model.d_inner": 288,
    "model.tgt_len": 64,
    "model.mem_len": 64,
    "train.steps": 1200,
    "train.batch": 16,
    "train.learning_rate": 2e-3,
    "train.warmup": 100,
    "train.precision": "fp32",
    "train.compile": "off",
    "train.kernels": "plain",
    "train.threads": 1,
    "train.evaluate_tokens": 16_384,
}


def jobs(corpora: list[str]) -> list[tuple[str, str, int]]:
    """Corpus, pattern and seed of every training, the ends first."""
    wanted = [
        (pattern, seed)
        for seed in range(3)
        for pattern in PATTERNS
        if seed == 0 or pattern in REPEATED
    ]
    return [(corpus, pattern, seed) for pattern, seed in wanted for corpus in corpora]


def run_folder(root: Path, corpus: str, pattern: str, seed: int) -> Path:
    letters = Pattern.parse(pattern).letters
    return root / f"{title_of(corpus)}-{letters}-{seed}"


def train_one(root: Path, corpus: str, pattern: str, seed: int) -> str:
    """Train one model, then read the whole test split with it; what is done is done."""
    path = run_folder(root, corpus, pattern, seed)
    if (path / SCORE).is_file():
        return f"{path.name}: there already"
    words = ["train", "pocket", "--corpus", corpus, "--pattern", pattern, "--seed", str(seed)]
    words += ["--run", str(path), "--json"]
    for name, value in SETTINGS.items():
        words += ["--set", f"{name}={value}"]
    began = time.monotonic()
    if not (path / "result.json").is_file():
        call(words)
    score = call(["evaluate", str(path), "--json"])
    (path / SCORE).write_text(score, "utf-8")
    bits = json.loads(score)["bits_per_character"]
    return f"{path.name}: {bits:.3f} bits, {time.monotonic() - began:,.0f} s"


def call(words: list[str]) -> str:
    """What a command of Parformer answers."""
    command = [sys.executable, "-m", "parformer", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    return done.stdout


def read_bits(root: Path, corpus: str, pattern: str) -> list[float]:
    """Test bits per byte of every seed that is done."""
    found = []
    for seed in range(3):
        score = run_folder(root, corpus, pattern, seed) / SCORE
        if score.is_file():
            found.append(json.loads(score.read_text())["bits_per_character"])
    return found


def shown(values: list[float]) -> str:
    if len(values) < 2:
        return ""
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def table(root: Path, corpora: list[str]) -> str:
    """One row per pattern: attention blocks, price, bits on every corpus."""
    titles = [title_of(corpus) for corpus in corpora]
    columns = " | ".join(f"{title}, seed 0 | three seeds" for title in titles)
    lines = [
        f"| attention | pattern | | parameters | MFLOPs per token | {columns} |",
        f"|---:|---|---|---:|---:|{'---:|' * 2 * len(titles)}",
    ]
    model = {name: value for name, value in SETTINGS.items() if name.startswith("model.")}
    for pattern, words in sorted(PATTERNS.items(), key=lambda item: attention(item[0])):
        price = cost(read_recipe("pocket", {**model, "model.pattern": pattern}).model)
        found = [read_bits(root, corpus, pattern) for corpus in corpora]
        bits = " | ".join(f"{values[0]:.3f} | {shown(values)}" for values in found)
        lines.append(
            f"| {attention(pattern)} | `{Pattern.parse(pattern)}` | {words} | "
            f"{price.parameters:,} | {price.flops / 64 / 1e6:.2f} | {bits} |"
        )
    for corpus in corpora:
        lines += ["", paired(root, corpus)]
    return "\n".join(lines)


def paired(root: Path, corpus: str) -> str:
    """PAR against interleaved, seed by seed: both saw the same text in the same order."""
    _, rule, baseline = (read_bits(root, corpus, pattern) for pattern in REPEATED)
    gaps = [ours - theirs for ours, theirs in zip(rule, baseline, strict=True)]
    each = ", ".join(f"{gap:+.3f}" for gap in gaps)
    share = 100 * statistics.mean(gaps) / statistics.mean(baseline)
    return (
        f"{title_of(corpus)}: PAR's rule minus interleaved, seed by seed: {each}; "
        f"mean {shown(gaps)} bits, {share:+.1f}%."
    )


def title_of(corpus: str) -> str:
    return Path(corpus).name.split(".")[0]


def attention(pattern: str) -> int:
    return Pattern.parse(pattern).letters.count("s")


def picture(root: Path, corpus: str) -> str:
    """Bits against the number of attention blocks, as SVG; a point per seed, a line of means."""
    points = {p: bits for p in PATTERNS if (bits := read_bits(root, corpus, p))}
    attended = {p: bits for p, bits in points.items() if attention(p)}
    low = math.floor(10 * min(min(b) for b in attended.values())) / 10
    high = math.ceil(10 * max(max(b) for b in attended.values())) / 10 + 0.1
    width, height, left, top = 640, 360, 64, 40

    def x(count: float) -> float:
        return left + count / (BLOCKS / 2) * (width - left - 32)

    def y(bits: float) -> float:
        return top + (high - min(bits, high)) / (high - low) * (height - top - 56)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13" fill="#334">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="22" font-size="15" fill="#112">'
        f"Test bits per byte by number of attention blocks, {title_of(corpus)}"
        "</text>",
        f'<text x="{width - 24}" y="{height - 8}" text-anchor="end" font-size="11">'
        "line and large dots: seed 0; small dots: other seeds</text>",
    ]
    for tick in range(round((high - low) * 10) + 1):
        bits = low + tick / 10
        parts.append(
            f'<line x1="{left}" x2="{width - 24}" y1="{y(bits):.1f}" y2="{y(bits):.1f}" '
            f'stroke="#dde"/><text x="{left - 8}" y="{y(bits) + 4:.1f}" text-anchor="end">'
            f"{bits:.1f}</text>"
        )
    for count in range(BLOCKS // 2 + 1):
        parts.append(
            f'<text x="{x(count):.1f}" y="{height - 30}" text-anchor="middle">{count}</text>'
        )
    parts.append(f'<text x="{left}" y="{height - 8}">attention blocks of {BLOCKS}</text>')
    line = [p for p in PATTERNS if p in attended and "Sandwich" not in PATTERNS[p]]
    line.sort(key=attention)
    path = " ".join(f"{x(attention(p)):.1f},{y(points[p][0]):.1f}" for p in line)
    parts.append(f'<polyline points="{path}" fill="none" stroke="#7a5cff" stroke-width="2"/>')
    for pattern, bits in points.items():
        across, words = x(attention(pattern)), PATTERNS[pattern].split(",")[0]
        if not attention(pattern):
            words = f"{bits[0]:.2f} without attention, off the chart"
            parts.append(f'<text x="{across + 8:.1f}" y="{y(high) + 16:.1f}">↑ {words}</text>')
            continue
        colour = "#e0662f" if words == "Sandwich" else "#7a5cff"
        for number, value in enumerate(bits):
            parts.append(
                f'<circle cx="{across:.1f}" cy="{y(value):.1f}" r="{3 if number else 5}" '
                f'fill="{colour}" fill-opacity="{0.45 if number else 1}"/>'
            )
        rivals = [points[p][0] for p in attended if attention(p) == attention(pattern)]
        below = len(rivals) > 1 and bits[0] == min(rivals)
        crowded = len(rivals) > 1
        if words:
            parts.append(
                f'<text x="{across + (-9 if crowded else 9):.1f}" '
                f'y="{y(bits[0]) + (20 if below else -14):.1f}" fill="#112" '
                f'text-anchor="{"end" if crowded else "start"}">{words}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def write(root: Path, corpora: list[str]) -> None:
    """Put the table between the document's marks, and the pictures beside it."""
    text = DOCUMENT.read_text("utf-8")
    start, end = "<!-- table -->", "<!-- end -->"
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    device = describe_device(1)
    receipt = f"{device.cpu}, one thread each, torch {device.torch}, {date.today()}."
    body = f"{start}\n{table(root, corpora)}\n\n{receipt}\n{end}"
    DOCUMENT.write_text(before + body + after, "utf-8")
    for corpus in corpora:
        file = DOCUMENT.with_name(f"attention-count-{title_of(corpus)}.svg")
        file.write_text(picture(root, corpus), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--enwik8", help="a file with the first bytes of enwik8")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time (default 2)")
    parser.add_argument("--write", action="store_true", help="write the document")
    arguments = parser.parse_args()
    corpora = [*([arguments.enwik8] if arguments.enwik8 else []), "python-source"]
    if arguments.write:
        write(arguments.folder, corpora)
        return
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for line in pool.map(lambda job: train_one(arguments.folder, *job), jobs(corpora)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
