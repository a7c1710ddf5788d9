"""What does a fit hand over: the model, how to repeat it, and `fit.json` with all its evidence."""

from __future__ import annotations

import datetime
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parformer import __version__, folder
from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.durable import sync
from parformer.evaluate.perplexity import evaluate
from parformer.fit.energy import estimate
from parformer.fit.job import BASELINE, Job
from parformer.fit.trainings import EVALUATED, last_validation, read_curves
from parformer.fit.verdict import compare, judge
from parformer.generate import Sampling, generate_text
from parformer.measure.device import describe_device
from parformer.measure.models import measure_models, step_words
from parformer.model import load
from parformer.search.job import FOUND as SEARCHED
from parformer.train.loop import sample
from parformer.train.run import CONFIG, MODEL, RESULT, TOKENIZER

FORMAT = "parformer-fit-1"
FOUND, REPORT = "fit.json", "report.html"
FINAL = "final"
ROUNDS = 20
"""How often each model is timed for the report."""
TESTED = 131_072
"""Tokens of the test split that the baseline and the result are looked at with."""
PROMPT = 48
WRITTEN = 240
"""Characters of a prompt, and tokens written after it, at most."""
BITS = ("byte", "used-bytes", "character")


def conclude(job: Job, *, command: str) -> dict[str, Any]:
    """Measure what is there, hand over the best, and say what it is worth.

    After a stop that is the best so far, and what was not done yet is left open.
    """
    notes = job.notes
    sized = notes.has("sizes")
    rows = [row_of(job, row) for row in job.result("sizes")["models"]] if sized else []
    final = final_run(job)
    if final is not None:
        rows = measured_rows(job, rows)
        hand_over(job.trainings.root / final["run"], job.path)
    limits = job.limits if notes.has("size") else {}
    baseline = rows[0] if rows else None
    chosen = next((row for row in rows if final and row["name"] == final["name"]), None)
    verdict = judge(baseline, chosen, limits) if baseline else judge({}, None, limits)
    seconds = notes.spent
    ask = job.ask
    cores = describe_device().cores
    return {
        "format": FORMAT,
        "corpus": ask.corpus,
        "tokenizer": ask.tokenizer,
        **unit_of(ask.tokenizer),
        "command": command,
        "version": __version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "finished": notes.has("winner"),
        "asked": {
            name: value
            for name, value in ask.to_dict().items()
            if name in ("limits", "time", "steps", "margin", "family", "choices", "seed")
        },
        "step": step_of(job) if notes.has("size") else None,
        "limits": limits,
        "text": job.result("text") if notes.has("text") else None,
        "phases": [
            phase.to_dict() | {"seconds": notes.seconds(phase.name)} for phase in job.phases
        ],
        "models": rows,
        "baseline": BASELINE,
        "chosen": None if chosen is None else chosen["name"],
        "final": final_of(job, final, chosen),
        "verdict": verdict,
        "samples": samples_of(job, final),
        "search": searched(job),
        "pareto": pareto_of(job) if sized else None,
        "profile": profile_of(job),
        "energy": estimate(
            seconds,
            cores=cores,
            watts=ask.watts,
            grid=ask.grid,
            price=ask.price,
            currency=ask.currency,
        ),
        "receipt": job.receipts.get("receipt"),
        "device": device_of(ask.threads),
        "repeat": repeats(job, final),
        "warnings": warnings_of(job, chosen),
    }


def unit_of(tokenizer: str) -> dict[str, str]:
    if tokenizer in BITS:
        what = "character" if tokenizer == "character" else "byte"
        return {"unit": "bits", "unit_words": f"bits per {what}"}
    return {"unit": "perplexity", "unit_words": "perplexity"}


def row_of(job: Job, row: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of one model, from all phases that looked at it."""
    notes, name = job.notes, row["name"]
    config = ModelConfig.from_dict(row["config"])
    rates = job.result("rates")["models"][name] if notes.has("rates") else {}
    contest = job.result("contest") if notes.has("contest") else {"models": {}}
    trained = contest["models"].get(name, {})
    segments = trained.get("segments")
    run = job.trainings.root / name
    figures = row["figures"]
    limits = job.limits
    return {
        "name": name,
        "title": row["title"],
        "how": row["how"],
        "pattern": str(config.pattern),
        "d_model": config.d_model,
        "eligible": row["eligible"],
        "broken": {n: figures[n] for n in limits if figures[n] > limits[n]}
        if not row["eligible"]
        else {},
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
        "valid": valid_of(run, segments),
        "test": None,
        "against": against(job, name),
        **read_curves(run),
    }


def valid_of(run: Path, segments: list[float] | None) -> dict[str, Any] | None:
    """The loss after the equal training; of one that was stopped in between, if it ended."""
    if segments is not None:
        return {"loss": float(np.mean(segments)), "tokens": EVALUATED}
    if (run / RESULT).is_file():
        return {"loss": last_validation(run), "tokens": 0}
    return None


def against(job: Job, name: str) -> dict[str, Any] | None:
    """How a model compares with the baseline, over segments and seeds."""
    if name == BASELINE or not job.notes.has("contest"):
        return None
    models = job.result("contest")["models"]
    both = [models.get(one, {}).get("segments") for one in (BASELINE, name)]
    if any(one is None for one in both):
        return None
    losses: list[dict[int, Any]] = [{0: np.array(one)} for one in both]
    seeds = job.result("seeds")["seeds"] if job.notes.has("seeds") else {}
    for seed, trained in seeds.items():
        if name in trained:
            for one, own in zip(losses, (BASELINE, name), strict=True):
                one[int(seed)] = np.array(trained[own])
    return compare(losses[0], losses[1], margin=job.ask.margin).to_dict()


def final_run(job: Job) -> dict[str, Any] | None:
    """The training whose model is handed over; before the end, the best that is there."""
    if job.notes.has("winner"):
        return job.result("winner")
    if job.notes.has("contest"):
        contest = job.result("contest")
        best = contest["best"]
        return {"name": best, "run": best, "steps": contest["steps"], "retrained": False}
    if not job.notes.has("sizes"):
        return None
    ended = [n for n in job.models if (job.trainings.root / n / RESULT).is_file()]
    allowed = [n for n in ended if n in job.eligible] or ended
    if not allowed:
        return None
    best = min(allowed, key=lambda n: last_validation(job.trainings.root / n))
    steps = int(folder.read_json(job.trainings.root / best, RESULT)["steps"])
    return {"name": best, "run": best, "steps": steps, "retrained": False}


def hand_over(run: Path, path: Path) -> None:
    """Make the fit's folder a run itself: model, vocabulary, recipe and result of a training.

    The recipe comes last: it makes a folder a run, and by then everything else is there.
    """
    beside = path / f".{MODEL}.new"
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(run / MODEL, beside)
    old = path / f".{MODEL}.old"
    shutil.rmtree(old, ignore_errors=True)
    if (path / MODEL).exists():
        (path / MODEL).rename(old)
    beside.rename(path / MODEL)
    shutil.rmtree(old, ignore_errors=True)
    for name in (TOKENIZER, RESULT, CONFIG):
        new = path / f".{name}.new"
        shutil.copyfile(run / name, new)
        new.rename(path / name)
    sync(path)


def measured_rows(job: Job, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Latency and memory of all finalists in the same rounds, beside the baseline."""
    models, step = job.models, job.step
    measured = measure_models(
        models,
        tgt_len=step.tgt_len,
        mem_len=step.mem_len,
        rounds=ROUNDS,
        threads=step.threads,
        progress=job.watch.preparing,
    )
    job.receipts["receipt"] = measured.latency.receipt.to_dict()
    base = measured.latency[BASELINE].median
    limits = job.limits
    for row in rows:
        name = row["name"]
        timing, apart = measured.latency[name], measured.difference(name, BASELINE)
        row["latency"] = {
            "seconds": timing.median,
            "low": timing.low,
            "high": timing.high,
            "ratio": apart.ratio,
            "ratio_low": apart.low,
            "ratio_high": apart.high,
            "verdict": apart.verdict,
        }
        row["memory"] = measured.models[name].memory.peak_bytes
        if name != BASELINE and "latency" in limits:
            # what the same rounds say of the baseline is what a multiple of it means
            scale = job.result("size")["figures"]["latency"] / base
            if apart.low * base * scale > limits["latency"]:
                row["broken"]["latency"] = apart.ratio * base * scale
                row["eligible"] = False
    return rows


def final_of(
    job: Job, final: Mapping[str, Any] | None, chosen: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    if final is None or chosen is None:
        return None
    losses = {name: test_loss(job, run) for name, run in both_runs(job, final).items()}
    for row_name, loss in losses.items():
        job.receipts[row_name] = loss
    curve = read_curves(job.trainings.root / final["run"])
    return {
        "folder": MODEL,
        "name": final["name"],
        "steps": final["steps"],
        "retrained": final["retrained"],
        "valid": {"loss": last_validation(job.trainings.root / final["run"])},
        "test": losses[FINAL],
        "baseline_test": losses.get(BASELINE),
        "latency": chosen["latency"],
        "memory": chosen["memory"],
        **curve,
    }


def both_runs(job: Job, final: Mapping[str, Any]) -> dict[str, Path]:
    """The trained baseline and the model that is handed over."""
    runs = {FINAL: job.trainings.root / final["run"]}
    base = job.trainings.root / BASELINE
    return ({BASELINE: base} if (base / MODEL).is_dir() else {}) | runs


def test_loss(job: Job, run: Path) -> dict[str, Any] | None:
    """The loss on text that nothing was chosen by."""
    if "test" not in job.prepared.splits:
        return None
    tokens = sample(job.prepared.splits["test"].tokens, TESTED)
    if len(tokens) < 2:
        return None
    score = evaluate(load(run / MODEL), tokens, batch=8)
    return {"loss": score.loss if math.isfinite(score.loss) else None, "tokens": score.tokens}


def samples_of(job: Job, final: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """What both models write after the same words."""
    if final is None:
        return []
    prompt = prompt_of(job)
    sampling = Sampling(temperature=0.8, top_p=0.95)
    return [
        {
            "name": name,
            "prompt": prompt,
            "text": generate_text(
                load(run / MODEL),
                job.prepared.tokenizer,
                [prompt],
                WRITTEN,
                sampling=sampling,
                seed=job.ask.seed,
            )[0],
        }
        for name, run in both_runs(job, final).items()
    ]


def prompt_of(job: Job) -> str:
    """The first words of validation text that make a line."""
    tokens = job.prepared.splits["valid"].tokens[:2048]
    text = job.prepared.tokenizer.decode([int(token) for token in tokens])
    lines = [line for line in text.splitlines() if len(line.split()) > 1]
    return lines[0][:PROMPT] if lines else text[:PROMPT]


def step_of(job: Job) -> dict[str, Any]:
    shape = job.step.shape(job.recipe.model)
    words = f"{step_words(shape.tgt_len, shape.mem_len)}, batch {shape.batch}, fp32"
    return job.step.to_dict() | {
        "tgt_len": shape.tgt_len,
        "mem_len": shape.mem_len,
        "words": words,
    }


def searched(job: Job) -> dict[str, Any] | None:
    place = job.path / "search"
    return folder.read_json(place, SEARCHED) if (place / SEARCHED).is_file() else None


def pareto_of(job: Job) -> dict[str, Any]:
    pictures = job.result("sizes")["pictures"]
    return {
        "objectives": ["quality", "latency", "memory"],
        "visited": {name: one["visited"] for name, one in pictures.items()},
        "front": {name: one["front"] for name, one in pictures.items()},
    }


def profile_of(job: Job) -> dict[str, Any] | None:
    known = job.result("profile") if job.notes.has("profile") else {}
    if not known:
        return None
    return {
        "seconds": job.notes.seconds("profile"),
        "median_error": known["median_error"],
        "p90_error": known["p90_error"],
    }


def device_of(threads: int) -> dict[str, Any]:
    here = describe_device(threads)
    return {
        "cpu": here.cpu,
        "cores": here.cores,
        "threads": threads,
        "torch": here.torch,
        "ram_bytes": here.ram_bytes,
    }


def repeats(job: Job, final: Mapping[str, Any] | None) -> list[str]:
    from shlex import quote

    if final is None:
        return []
    path = quote(str(job.path))
    return [
        f"parformer generate {path} --prompt {quote(prompt_of(job))}",
        f"parformer evaluate {path}",
        f"parformer train {quote(str(job.path / CONFIG))} --run again",
    ]


def warnings_of(job: Job, chosen: Mapping[str, Any] | None) -> list[str]:
    said = []
    if chosen is not None and chosen["broken"]:
        said.append(
            "The model that is handed over breaks a limit by the last measurement; with more time, "
            "or a somewhat lower --limit, the search keeps clear of it."
        )
    if chosen is not None and cost(job.models[chosen["name"]]).state_bytes == 0:
        said.append("The model remembers nothing beyond its step.")
    return said
