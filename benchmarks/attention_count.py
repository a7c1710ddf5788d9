"""How many attention blocks does a small model need? Table 1 of PAR Transformer, in pocket size.

    python benchmarks/attention_count.py --folder FOLDER [--enwik8 FILE] [--jobs 2]
    python benchmarks/attention_count.py --folder FOLDER [--enwik8 FILE] --write

The first trains whatever is missing (it may be stopped and started again); the second writes
docs/experiments/attention-count.md and its pictures from the results.

Three learning rates are tried with interleaved attention on every corpus; the best is every
pattern's. All patterns get as many updates; some are trained once more with as much *time* as
interleaved takes for them, at paces that are measured first, in turns.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learns import into_document
from search import Updates

from parformer.costs import cost
from parformer.evaluate.counting import References
from parformer.measure import measure_latency
from parformer.measure.device import describe_device
from parformer.pattern import Pattern, par, sandwich
from parformer.recipe import read_recipe
from parformer.train.allocator import keep_memory
from parformer.train.distributed import Workers
from parformer.train.schedule import rate_for
from parformer.train.session import Session

DOCUMENT = Path(__file__).parents[1] / "docs" / "experiments" / "attention-count.md"
SCORE = "test.json"
PACE = "pace.json"
BLOCKS = 16
NONE, RULE, INTERLEAVED = "(f)x16", str(par(BLOCKS, 5)), "(sf)x8"
PATTERNS = {
    NONE: "no attention",
    "(sfff)x1 (f)x12": "",
    "(sfff)x2 (f)x8": "",
    RULE: "PAR's rule, p = 5",
    "(sfff)x4": "",
    "(sff)x5 f": "",
    str(sandwich(BLOCKS, 3)): "Sandwich, k = 3",
    INTERLEAVED: "interleaved",
}
SEEDS = 3
REPEATED = (NONE, RULE, INTERLEAVED)
"""What is trained with all seeds; the rest with one."""
TIMED = {RULE: SEEDS, NONE: 1}
"""What is trained once more, for the time of interleaved, with how many seeds."""
STEPS, TRIAL_STEPS = 400, 200
WARMUP = 0.1
"""The share of the updates over which the rate rises."""
FACTORS = (0.5, 1.0, 2.0)
"""Learning rates that are tried, of what the preset's comes to at this width."""
SETTINGS: dict[str, Any] = {
    "model.d_model": 96,
    "model.d_inner": 288,
    "model.tgt_len": 64,
    "model.mem_len": 64,
    "train.batch": 16,
    "train.precision": "fp32",
    "train.compile": "off",
    "train.kernels": "native",
    "train.threads": 1,
    "train.final_tokens": 1024,
}
LOST = "†"
"""Marks what is no better than a bigram."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training, and where it is kept."""

    path: Path
    corpus: str
    pattern: str
    rate: float
    steps: int = STEPS
    seed: int = 0
    beside: bool = False
    """Whether the references are counted with its score."""


def rates() -> list[float]:
    """The learning rates to try."""
    known = read_recipe("pocket")
    own = {name: value for name, value in SETTINGS.items() if name.startswith("model.")}
    model = read_recipe("pocket", {**own, "model.pattern": INTERLEAVED}).model
    once = rate_for(model, known.train.learning_rate, known.model)
    return [float(f"{factor * once:.2g}") for factor in FACTORS]


def trials(root: Path, corpus: str) -> list[Job]:
    name = title_of(corpus)
    return [
        Job(root / f"{name}-rate-{rate:g}", corpus, INTERLEAVED, rate, TRIAL_STEPS)
        for rate in rates()
    ]


def tried(root: Path, corpus: str) -> dict[float, float]:
    """Validation bits of every learning rate."""
    return {job.rate: valid_bits(job.path) for job in trials(root, corpus)}


def best_rate(root: Path, corpus: str) -> float:
    """The best of them, which is kept beside the trials."""
    bits = tried(root, corpus)
    best = min(bits, key=lambda rate: bits[rate])
    chosen = {"tried": bits, "best": best}
    (root / f"{title_of(corpus)}-rates.json").write_text(json.dumps(chosen, indent=1), "utf-8")
    return best


def trainings(root: Path, corpora: list[str]) -> list[Job]:
    """Every training of the comparison, seed by seed."""
    best = {corpus: best_rate(root, corpus) for corpus in corpora}
    pace = measure_pace(root)
    wanted = []
    for seed in range(SEEDS):
        for pattern in PATTERNS:
            for corpus in corpora:
                path = run_folder(root, corpus, pattern, seed)
                first = pattern == INTERLEAVED and seed == 0
                if seed == 0 or pattern in REPEATED:
                    job = Job(path, corpus, pattern, best[corpus], seed=seed, beside=first)
                    wanted.append(job)
                if seed < TIMED.get(pattern, 0):
                    steps = timed_steps(pace, pattern)
                    path = run_folder(root, corpus, pattern, seed, timed=True)
                    wanted.append(Job(path, corpus, pattern, best[corpus], steps, seed))
    return wanted


def run_folder(root: Path, corpus: str, pattern: str, seed: int, *, timed: bool = False) -> Path:
    letters = Pattern.parse(pattern).letters
    return root / f"{title_of(corpus)}-{letters}-{seed}{'-timed' if timed else ''}"


def measure_pace(root: Path) -> dict[str, float]:
    """Seconds per update, in turns; measured once, while none of our trainings runs."""
    file = root / PACE
    if not file.is_file():
        torch.set_num_threads(1)
        keep_memory()
        tokens = np.random.default_rng(0).integers(0, 256, 1_000_000).astype(np.uint8)
        work = {}
        for pattern in REPEATED:
            changes = {**SETTINGS, "model.pattern": pattern, "train.steps": STEPS}
            session = Session(read_recipe("pocket", changes), tokens, workers=Workers())
            work[pattern] = Updates(session, count=1)
        found = measure_latency(work, rounds=30, warmup=2, what="an update")
        base = found[INTERLEAVED].median
        pace = {pattern: base * found.ratio(pattern, INTERLEAVED) for pattern in REPEATED}
        file.write_text(json.dumps(pace, indent=1), "utf-8")
    return dict(json.loads(file.read_text()))


def timed_steps(pace: dict[str, float], pattern: str) -> int:
    """Updates that fit into the time of interleaved's."""
    return round(STEPS * pace[INTERLEAVED] / pace[pattern])


def train_one(job: Job) -> None:
    """Train one model; what is done is done."""
    if (job.path / "result.json").is_file():
        return
    words = ["train", "pocket", "--corpus", job.corpus, "--pattern", job.pattern]
    words += ["--seed", str(job.seed), "--run", str(job.path), "--json", "--no-beside"]
    own = {
        "train.steps": job.steps,
        "train.warmup": round(WARMUP * job.steps),
        "train.learning_rate": job.rate,
    }
    for name, value in {**SETTINGS, **own}.items():
        words += ["--set", f"{name}={value}"]
    began = time.monotonic()
    call(words)
    took = time.monotonic() - began
    print(
        f"{job.path.name}: {valid_bits(job.path):.3f} bits in validation, {took:,.0f} s", flush=True
    )


def train_and_score(job: Job) -> None:
    """Train one model, then read the whole test split with it."""
    train_one(job)
    score(job.path, beside=job.beside)


def score(path: Path, *, beside: bool) -> None:
    """Read the whole test split, from 16 places at once; what is done is done."""
    if (path / SCORE).is_file():
        return
    words = ["evaluate", str(path), "--batch", "16", "--json"]
    began = time.monotonic()
    found = call(words if beside else [*words, "--no-beside"])
    (path / SCORE).write_text(found, "utf-8")
    took = time.monotonic() - began
    print(f"{path.name}: {test_bits(path):.3f} bits in the test, {took:,.0f} s", flush=True)


def call(words: list[str]) -> str:
    """What a command of Parformer answers."""
    command = [sys.executable, "-m", "parformer", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    return done.stdout


def do_all(work: Iterable[Callable[[], object]], at_a_time: int) -> None:
    """Some at a time; the first that fails ends it."""
    with ThreadPoolExecutor(at_a_time) as pool:
        doing = [pool.submit(one) for one in work]
        try:
            for one in doing:
                one.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def valid_bits(path: Path) -> float:
    """Bits per byte on the sample of the valid split, when training was done."""
    result = json.loads((path / "result.json").read_text())
    return float(result["valid"]["bits_per_character"])


def test_bits(path: Path) -> float:
    return float(json.loads((path / SCORE).read_text())["bits_per_character"])


def read_bits(root: Path, corpus: str, pattern: str, *, timed: bool = False) -> list[float]:
    """Test bits per byte of every seed that is done."""
    paths = [run_folder(root, corpus, pattern, seed, timed=timed) for seed in range(SEEDS)]
    return [test_bits(path) for path in paths if (path / SCORE).is_file()]


def read_references(path: Path, file: str = SCORE) -> dict[str, float]:
    """Bits per byte of whoever only counts, by name, on the text that a run was scored on."""
    counted = References.from_dict(json.loads((path / file).read_text())["beside"])
    return {name: nats / math.log(2) for name, nats in counted.lines() if name != "uniform"}


def references_of(root: Path, corpus: str) -> dict[str, float]:
    return read_references(run_folder(root, corpus, INTERLEAVED, 0))


def spread_of(values: list[float]) -> str:
    if len(values) < 2:
        return ""
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def table(root: Path, corpora: list[str]) -> str:
    """One row per pattern: attention blocks, price, bits on every corpus; then the references."""
    titles = [title_of(corpus) for corpus in corpora]
    columns = " | ".join(f"{title}, seed 0 | three seeds | equal time" for title in titles)
    lines = [
        f"| attention | pattern | | parameters | MFLOPs per token | {columns} |",
        f"|---:|---|---|---:|---:|{'---:|' * 3 * len(titles)}",
    ]
    model = {name: value for name, value in SETTINGS.items() if name.startswith("model.")}
    for pattern, words in sorted(PATTERNS.items(), key=lambda item: attention(item[0])):
        price = cost(read_recipe("pocket", {**model, "model.pattern": pattern}).model)
        bits = " | ".join(cells(root, corpus, pattern) for corpus in corpora)
        lines.append(
            f"| {attention(pattern)} | `{Pattern.parse(pattern)}` | {words} | "
            f"{price.parameters:,} | {price.flops / 64 / 1e6:.2f} | {bits} |"
        )
    known = [references_of(root, corpus) for corpus in corpora]
    for kind, names in enumerate(zip(*known, strict=True)):
        bits = " | ".join(f"{list(own.values())[kind]:.3f} | | " for own in known)
        lines.append(f"| | | *{' and '.join(dict.fromkeys(names))}* | | | {bits} |")
    lines = noted(lines)
    for corpus in corpora:
        lines += ["", paired(root, corpus), "", paired(root, corpus, timed=True)]
    return "\n".join(lines)


def noted(lines: list[str]) -> list[str]:
    """A table, and what its mark means where it is there."""
    if not any(LOST in line for line in lines):
        return lines
    return [*lines, "", f"{LOST} no better than a counted bigram."]


def cells(root: Path, corpus: str, pattern: str) -> str:
    """What one pattern reached on one corpus: with seed 0, with all seeds, in equal time."""
    bits, timed = (read_bits(root, corpus, pattern, timed=timed) for timed in (False, True))
    steps = timed_steps(measure_pace(root), pattern) if timed else STEPS
    if pattern == INTERLEAVED:
        timed = bits
    bigram = references_of(root, corpus)["bigram"]

    def marked(values: list[float], words: str) -> str:
        lost = bool(words) and statistics.mean(values) >= bigram
        return f"{words} {LOST}" if lost else words

    equal = marked(timed, spread_of(timed) or f"{timed[0]:.3f}") if timed else ""
    told = f"{equal}; {steps:,} updates" if equal else ""
    return f"{marked(bits[:1], f'{bits[0]:.3f}')} | {marked(bits, spread_of(bits))} | {told}"


def paired(root: Path, corpus: str, *, timed: bool = False) -> str:
    """PAR against interleaved, seed by seed: both saw the same text in the same order."""
    rule = read_bits(root, corpus, RULE, timed=timed)
    baseline = read_bits(root, corpus, INTERLEAVED)
    gaps = [ours - theirs for ours, theirs in zip(rule, baseline, strict=True)]
    each = ", ".join(f"{gap:+.3f}" for gap in gaps)
    share = 100 * statistics.mean(gaps) / statistics.mean(baseline)
    pace = measure_pace(root)
    equal = f"{STEPS} updates each"
    if timed:
        quicker = 1 - pace[RULE] / pace[INTERLEAVED]
        equal = (
            f"equal time, {timed_steps(pace, RULE)} updates of {1000 * pace[RULE]:.0f} ms "
            f"against {STEPS} of {1000 * pace[INTERLEAVED]:.0f} ms ({quicker:.0%} less)"
        )
    return (
        f"{title_of(corpus)}, {equal}: PAR's rule minus interleaved, seed by seed: {each}; "
        f"mean {spread_of(gaps)} bits, {share:+.1f}%."
    )


def rates_table(root: Path, corpora: list[str]) -> str:
    """Validation bits of every learning rate; bold is the one that was used."""
    lines = [f"| | {' | '.join(f'{rate:g}' for rate in rates())} |", "|---|---:|---:|---:|"]
    for corpus in corpora:
        bits = tried(root, corpus)
        best = min(bits.values())
        own = [f"**{value:.3f}**" if value == best else f"{value:.3f}" for value in bits.values()]
        lines.append(f"| {title_of(corpus)} | {' | '.join(own)} |")
    return "\n".join(lines)


def title_of(corpus: str) -> str:
    return Path(corpus).name.split(".")[0]


def attention(pattern: str) -> int:
    return Pattern.parse(pattern).letters.count("s")


def picture(root: Path, corpus: str) -> str:
    """Bits against the number of attention blocks, as SVG, with the references beside them."""
    points = {p: bits for p in PATTERNS if (bits := read_bits(root, corpus, p))}
    known = references_of(root, corpus)
    frequencies, bigram, *_ = known.values()
    shown = [*(value for bits in points.values() for value in bits), *list(known.values())[1:]]
    low, high = math.floor(5 * min(shown)) / 5, math.ceil(5 * max(shown)) / 5
    width, height, left, right, top = 720, 400, 64, 104, 44

    def x(count: float) -> float:
        return left + 16 + count / (BLOCKS / 2) * (width - left - right - 32)

    def y(bits: float) -> float:
        return top + (high - bits) / (high - low) * (height - top - 56)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13" fill="#334">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="22" font-size="15" fill="#112">'
        f"Test bits per byte by number of attention blocks, {title_of(corpus)}"
        "</text>",
        f'<text x="{width - right}" y="38" text-anchor="end" font-size="11">'
        f"letter frequencies: {frequencies:.2f}, off the chart</text>",
        f'<text x="{width - 8}" y="{height - 8}" text-anchor="end" font-size="11">'
        "line and large dots: seed 0; small dots: other seeds; hollow: lost to the bigram</text>",
    ]
    for tick in range(round((high - low) * 5) + 1):
        level = low + tick / 5
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y(level):.1f}" y2="{y(level):.1f}" '
            f'stroke="#dde"/><text x="{left - 8}" y="{y(level) + 4:.1f}" text-anchor="end">'
            f"{level:.1f}</text>"
        )
    for count in range(BLOCKS // 2 + 1):
        parts.append(
            f'<text x="{x(count):.1f}" y="{height - 30}" text-anchor="middle">{count}</text>'
        )
    parts.append(f'<text x="{left}" y="{height - 8}">attention blocks of {BLOCKS}</text>')
    across = (left, width - right)
    parts += reference_lines(list(known.items())[1:], y, across, width - right + 6, height - 56)
    line = sorted((p for p in points if "Sandwich" not in PATTERNS[p]), key=attention)
    path = " ".join(f"{x(attention(p)):.1f},{y(points[p][0]):.1f}" for p in line)
    parts.append(f'<polyline points="{path}" fill="none" stroke="#7a5cff" stroke-width="2"/>')
    for pattern, bits in points.items():
        centre, words = x(attention(pattern)), PATTERNS[pattern].split(",")[0]
        colour = "#e0662f" if words == "Sandwich" else "#7a5cff"
        for number, value in enumerate(bits):
            fill = "#fff" if value >= bigram else colour
            parts.append(
                f'<circle cx="{centre:.1f}" cy="{y(value):.1f}" r="{3 if number else 5}" '
                f'fill="{fill}" stroke="{colour}" opacity="{0.45 if number else 1}"/>'
            )
        rivals = [points[p][0] for p in points if attention(p) == attention(pattern)]
        crowded = len(rivals) > 1
        below = crowded and bits[0] == min(rivals)
        if words:
            parts.append(
                f'<text x="{centre + (-9 if crowded else 9):.1f}" '
                f'y="{y(bits[0]) + (20 if below else -14):.1f}" fill="#112" '
                f'text-anchor="{"end" if crowded else "start"}">{words}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def reference_lines(
    known: list[tuple[str, float]],
    y: Callable[[float], float],
    across: tuple[float, float],
    names: float,
    lowest: float,
) -> list[str]:
    """Dashed lines at what counting reaches, with their names beside them."""
    ordered = sorted(known, key=lambda item: -item[1])
    levels = spread([y(bits) for _, bits in ordered], lowest)
    return [
        f'<line x1="{across[0]}" x2="{across[1]:.1f}" y1="{y(bits):.1f}" y2="{y(bits):.1f}" '
        f'stroke="#778" stroke-dasharray="5 4"/><text x="{names}" y="{level + 4:.1f}" '
        f'fill="#667" font-size="12">{bits:.2f} {name}</text>'
        for (name, bits), level in zip(ordered, levels, strict=True)
    ]


def spread(heights: list[float], lowest: float, gap: float = 18) -> list[float]:
    """Heights in their order, moved apart so that names can be read."""
    levels = list(heights)
    for number in range(1, len(levels)):
        levels[number] = max(levels[number], levels[number - 1] + gap)
    levels[-1] = min(levels[-1], lowest)
    for number in reversed(range(len(levels) - 1)):
        levels[number] = min(levels[number], levels[number + 1] - gap)
    return levels


def run(root: Path, corpora: list[str], at_a_time: int) -> None:
    """Everything that is missing."""
    root.mkdir(parents=True, exist_ok=True)
    tries = [job for corpus in corpora for job in trials(root, corpus)]
    do_all((partial(train_one, job) for job in tries), at_a_time)
    do_all((partial(train_and_score, job) for job in trainings(root, corpora)), at_a_time)


def write(root: Path, corpora: list[str]) -> None:
    """Put the tables between the document's marks, and the pictures beside it."""
    into_document(DOCUMENT, "rates", rates_table(root, corpora))
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
    run(arguments.folder, corpora, arguments.jobs)


if __name__ == "__main__":
    main()
