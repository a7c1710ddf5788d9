"""What does a fit say: `fit.json`, with everything the verdict rests on."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from parformer import __version__
from parformer.config import ModelConfig
from parformer.data.overlap import WARN
from parformer.fitting.ask import NO_MORE
from parformer.fitting.desk import BASELINE, Desk
from parformer.fitting.energy import estimate
from parformer.fitting.handover import (
    about_final,
    final_run,
    hand_over,
    opening,
    prompt_of,
    samples_of,
)
from parformer.fitting.trainings import EVALUATED, last_validation, read_curves
from parformer.fitting.verdict import Counted, compare, judge
from parformer.measure.device import Receipt, describe_device
from parformer.measure.models import PLACEMENT, step_words
from parformer.measure.statistics import compare as compare_times
from parformer.report.fit_rows import quality_told
from parformer.search.placement.job import FOUND as SEARCHED
from parformer.store import folder
from parformer.train.run import CONFIG, RESULT

FORMAT = "parformer-fit-1"
FOUND, REPORT = "fit.json", "report.html"
ROUNDS = 20
"""How often each model is timed for the report."""
BITS = ("byte", "used-bytes", "character")
ASKED = ("limits", "time", "steps", "margin", "family", "choices", "seed")

Row = dict[str, Any]


def conclude(desk: Desk, *, command: str) -> dict[str, Any]:
    """Measure what is there, hand over the best, and say what it is worth.

    After a stop that is the best so far, and what was not done yet is left open.
    """
    notes, ask = desk.notes, desk.ask
    rows = [row_of(desk, row) for row in desk.result("sizes")["models"]] if desk.sized else []
    final, receipt = final_run(desk), None
    if final is not None:
        receipt = measure_rows(desk, rows)
        hand_over(desk, final)
    limits = desk.limits if notes.has("size") else {}
    multiples = {bound.metric: bound.most for bound in ask.bounds if bound.relative}
    taken = next((row for row in rows if final and row["name"] == final["name"]), None)
    about = about_final(desk, final, taken) if final and taken else None
    counted = None if about is None else beside_counting(desk, about)
    verdict = judge(rows[0] if rows else {}, taken, limits, multiples, counted)
    # what learned nothing is nobody's choice, though it lies there to be looked at
    chosen = None if verdict["kind"] == "nothing learned" else taken
    return {
        "format": FORMAT,
        "corpus": ask.corpus,
        "tokenizer": ask.tokenizer,
        **unit_of(ask.tokenizer),
        "command": command,
        "version": __version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "finished": notes.has("winner"),
        "asked": {name: value for name, value in ask.to_dict().items() if name in ASKED}
        | {"limits": list(ask.limits or (NO_MORE,))},
        "step": about_step(desk) if notes.has("size") else None,
        "limits": limits,
        "text": desk.result("text") if notes.has("text") else None,
        "phases": [asdict(p) | {"seconds": notes.seconds(p.name)} for p in desk.phases],
        "models": rows,
        "baseline": BASELINE,
        "chosen": None if chosen is None else chosen["name"],
        "final": about,
        "references": {s: r.to_dict() for s, r in desk.references.items()}
        if notes.has("text")
        else {},
        "verdict": verdict,
        "samples": samples_of(desk, final) if final else [],
        "search": searched(desk),
        "pareto": about_sizes(desk) if desk.sized else None,
        "profile": about_profile(desk),
        "energy": estimate(
            notes.spent,
            cores=describe_device().cores,
            watts=ask.watts,
            grid=ask.grid,
            price=ask.price,
            currency=ask.currency,
        ),
        "receipt": None if receipt is None else receipt.to_dict(),
        "device": about_device(ask.threads),
        "repeat": repeats(desk) if final else [],
        "warnings": warnings_of(desk, chosen),
    }  # fmt: skip


def unit_of(tokenizer: str) -> dict[str, str]:
    """What a loss is told in."""
    if tokenizer in BITS:
        what = "character" if tokenizer == "character" else "byte"
        return {"unit": "bits", "unit_words": f"bits per {what}"}
    return {"unit": "perplexity", "unit_words": "perplexity"}


def row_of(desk: Desk, row: Mapping[str, Any]) -> Row:
    """What is known of one model, from all phases that looked at it."""
    notes, name, figures = desk.notes, row["name"], row["figures"]
    config = ModelConfig.from_dict(row["config"])
    rates = desk.result("rates")["models"][name] if notes.has("rates") else {}
    contest = desk.result("contest") if notes.has("contest") else {"models": {}}
    trained = contest["models"].get(name, {})
    run = desk.trainings.root / name
    over = (
        {} if row["eligible"] else {n: figures[n] for n, m in desk.limits.items() if figures[n] > m}
    )
    return {
        "name": name,
        "title": row["title"],
        "how": row["how"],
        "pattern": str(config.pattern),
        "d_model": config.d_model,
        "eligible": row["eligible"],
        "broken": over,
        "parameters": int(figures["parameters"]),
        "decoder_parameters": int(figures["decoder_parameters"]),
        "flops": int(figures["flops"]),
        "state_bytes": int(figures["state"]),
        "latency": None,
        "memory": int(figures["memory"]),
        "rates": rates.get("rates", []),
        "rate": rates.get("rate"),
        "steps": contest.get("steps"),
        "dropped": trained.get("dropped"),
        "learned": trained.get("learned"),
        "valid": valid_of(run, trained.get("segments")),
        "against": against(desk, name),
        **read_curves(run),
    }  # fmt: skip


def valid_of(run: Path, segments: list[float] | None) -> dict[str, Any] | None:
    """The loss after the equal training; of one that was stopped in between, if it ended."""
    if segments is not None:
        return {"loss": float(np.mean(segments)), "tokens": EVALUATED}
    if (run / RESULT).is_file():
        return {"loss": last_validation(run), "tokens": 0}
    return None


def against(desk: Desk, name: str) -> dict[str, Any] | None:
    """How a model compares with the baseline, over segments and seeds."""
    if name == BASELINE or not desk.notes.has("contest"):
        return None
    models = desk.result("contest")["models"]
    both = [models.get(one, {}).get("segments") for one in (BASELINE, name)]
    if any(one is None for one in both):
        return None
    if not all(models[one].get("learned", True) for one in (BASELINE, name)):
        return None  # what learned nothing is no measure for others
    losses: list[dict[int, Any]] = [{0: np.array(one)} for one in both]
    seeds = desk.result("seeds")["seeds"] if desk.notes.has("seeds") else {}
    for seed, trained in seeds.items():
        if name in trained:
            for one, own in zip(losses, (BASELINE, name), strict=True):
                one[int(seed)] = np.array(trained[own])
    return compare(losses[0], losses[1], margin=desk.ask.margin).to_dict()


def measure_rows(desk: Desk, rows: list[Row]) -> Receipt:
    """Latency and memory of all finalists in the same rounds, written into the rows.

    A limit is broken if the whole interval lies beyond it, with the baseline at the speed that
    the limits were settled by.
    """
    step = replace(desk.step, rounds=ROUNDS)
    readings = desk.meter(desk.models, step, desk.watch.preparing)
    base = readings[BASELINE].samples
    usual, most = desk.result("size")["figures"]["latency"], desk.limits.get("latency")
    for row in rows:
        reading = readings[row["name"]]
        apart = compare_times(reading.samples, base, smallest=PLACEMENT)
        row["latency"] = {
            "seconds": reading.median,
            "low": reading.low,
            "high": reading.high,
            "ratio": apart.ratio,
            "ratio_low": apart.low,
            "ratio_high": apart.high,
            "verdict": apart.verdict,
        }
        row["memory"] = reading.peak_bytes
        if row["name"] != BASELINE and most is not None and apart.low * usual > most:
            row["broken"]["latency"] = apart.ratio * usual
            row["eligible"] = False
    return readings.receipt


def about_step(desk: Desk) -> dict[str, Any]:
    shape = desk.step.shape(desk.recipe.model)
    words = f"{step_words(shape.tgt_len, shape.mem_len)}, batch {shape.batch}, fp32"
    lengths = {"tgt_len": shape.tgt_len, "mem_len": shape.mem_len}
    return desk.step.to_dict() | lengths | {"words": words}


def searched(desk: Desk) -> dict[str, Any] | None:
    """What the search for placements found."""
    place = desk.path / "search"
    return folder.read_json(place, SEARCHED) if (place / SEARCHED).is_file() else None


def about_sizes(desk: Desk) -> dict[str, Any]:
    pictures = desk.result("sizes")["pictures"]
    return {
        "objectives": ["quality", "latency", "memory"],
        "proxy": "decoder-parameters",
        "visited": {name: one["visited"] for name, one in pictures.items()},
        "front": {name: one["front"] for name, one in pictures.items()},
    }


def about_profile(desk: Desk) -> dict[str, Any] | None:
    known = desk.result("profile") if desk.notes.has("profile") else {}
    if not known:
        return None
    errors = {name: known[name] for name in ("median_error", "p90_error")}
    return {"seconds": desk.notes.seconds("profile"), **errors}


def about_device(threads: int) -> dict[str, Any]:
    here = describe_device(threads).to_dict()
    return {name: here[name] for name in ("cpu", "cores", "threads", "torch", "ram_bytes")}


def repeats(desk: Desk) -> list[str]:
    path, words = quote(str(desk.path)), opening(prompt_of(desk).splitlines()[0], most=32)
    return [
        f"parformer generate {path} --prompt {quote(words)}",
        f"parformer evaluate {path}",
        f"parformer train {quote(str(desk.path / CONFIG))} --run again",
    ]


def warnings_of(desk: Desk, chosen: Mapping[str, Any] | None) -> list[str]:
    said = []
    if chosen is not None and chosen["broken"]:
        said.append(
            "The model that is handed over breaks a limit by the last measurement; with more time, "
            "or a somewhat lower --limit, the search keeps clear of it."
        )
    known = desk.result("text").get("overlap", {}) if desk.notes.has("text") else {}
    for split, one in known.items():
        if one["shared"] > WARN:
            said.append(
                f"{one['shared']:.1%} of the {split} text's 50-byte windows stand in the training "
                "text word for word: whoever copies looks better here than on new text "
                f"(parformer data {quote(desk.ask.corpus)})."
            )
    return said


def beside_counting(desk: Desk, final: Mapping[str, Any]) -> Counted | None:
    """The model that is handed over beside the counts, on test text where there is some."""
    for split, words in (("test", "test"), ("valid", "validation")):
        loss = (final.get(split) or {}).get("loss")
        if loss is not None and split in desk.references:
            known, unit = desk.references[split], unit_of(desk.ask.tokenizer)
            told = partial(quality_told, unit)
            return Counted(loss, known.bigram, known.ngram, known.order, words, told)
    return None
