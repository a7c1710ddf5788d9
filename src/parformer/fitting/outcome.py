"""What has a fit come to: which model is handed over, what is it worth, what is said of it?

After a stop that is the best so far, and what was not done yet is left open.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from parformer import __version__
from parformer.compress.receipt import bytes_of
from parformer.costs import cost
from parformer.fitting.about import (
    about_device,
    about_phases,
    about_profile,
    about_step,
    repeats,
    searched,
    warnings_of,
)
from parformer.fitting.energy import estimate
from parformer.fitting.final import (
    about_final,
    final_run,
    hand_over,
    looks_of,
    samples_of,
    scores_of,
    valid_loss,
)
from parformer.fitting.kinds.language import EVALUATED
from parformer.fitting.phases import (
    BASELINE,
    Baseline,
    Contest,
    Finalist,
    Finalists,
    Rates,
    Seeds,
    TextFacts,
    Winner,
)
from parformer.fitting.result import (
    Asked,
    Compared,
    Energy,
    Final,
    FitResult,
    Held,
    Latency,
    Loss,
    ModelFacts,
    SizesSeen,
    Verdict,
)
from parformer.fitting.running import Running
from parformer.fitting.scored import Metrics
from parformer.fitting.squeezing import SMALL
from parformer.fitting.takeaway import ways_out
from parformer.fitting.verdict import Counted, Limits, compare, judge
from parformer.measure.device import Receipt, describe_device
from parformer.measure.models import PLACEMENT
from parformer.measure.statistics import compare as compare_times
from parformer.report.words import Unit, signed
from parformer.search.limits import in_words
from parformer.train.alike import read_curve
from parformer.train.run import MODEL, read_result

ROUNDS, FEWEST_ROUNDS = 20, 8
"""How often each model is timed for the report, and how often at least on a busy machine."""
APART = 1.3
"""How many times slower or faster a machine is no longer the one that the limits were set on."""


def conclude(fit: Running, *, command: str) -> FitResult:
    """Measure what is there, hand over the best, and say what it is worth."""
    progress, request = fit.progress, fit.request
    finalists = progress.found(Finalists)
    rows = [row_of(fit, one) for one in finalists.models] if finalists else []
    final, receipt, warnings = final_run(fit), None, list[str]()
    known = progress.found(Baseline)
    limits = Limits(known.limits if known else {}, request.multiples)
    if final is not None:
        rows, receipt, warnings = measure(fit, rows, limits)
        hand_over(fit, final)
    taken = next((row for row in rows if final and row.name == final.name), None)
    about = about_final(fit, final, taken) if final and taken else None
    text, unit, scores = progress.found(TextFacts), fit.kind.unit, scores_of(fit, final)
    counted = None if about is None else beside_counting(fit, about, unit)
    finished, held = progress.has(Winner.PHASE), held_against(fit, taken)
    if taken is not None and about is not None:
        taken = since_learned(fit, rows, taken, about)
    base = rows[0] if rows else None
    verdict = judge(base, taken, limits, counted, held=held, finished=finished, scores=scores)
    verdict = with_compression(fit, verdict, taken)
    # what learned nothing is nobody's choice, though it lies there to be looked at
    chosen = None if verdict.kind == "nothing learned" else taken
    return FitResult(
        run=str(fit.path),
        corpus=request.corpus,
        tokenizer=request.tokenizer,
        unit=unit.name,
        unit_words=unit.words,
        command=command,
        version=__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        finished=finished,
        asked=Asked.of(request),
        step=about_step(fit) if known else None,
        limits=dict(limits.most),
        text=text,
        phases=tuple(about_phases(fit)),
        models=tuple(rows),
        baseline=BASELINE,
        chosen=None if chosen is None else chosen.name,
        final=about,
        references=text.references if text else {},
        verdict=verdict,
        samples=tuple(samples_of(fit, final)) if final else (),
        search=None,
        pareto=SizesSeen.of(finalists.pictures) if finalists else None,
        profile=about_profile(fit, rows),
        energy=energy_of(fit),
        receipt=receipt,
        device=about_device(request.threads),
        repeat=tuple(repeats(fit)) if final else (),
        warnings=(*warnings, *warnings_of(fit, chosen, text)),
        held=held,
        trials=searched(fit),
        looks=looks_of(fit, final) if final else None,
        what=fit.kind.what,
        lesson="" if fit.kind.lesson == unit else fit.kind.lesson.words,
        scores=scores,
        ways=ways_out(fit) if chosen is not None else (),
    )


def row_of(fit: Running, one: Finalist) -> ModelFacts:
    """What is known of one model, but for what is measured in the end."""
    progress, figures = fit.progress, one.figures
    rates, contest = progress.found(Rates), progress.found(Contest)
    own = contest.models.get(one.name) if contest else None
    tried = rates.models.get(one.name) if rates else None
    run = fit.alike.root / one.name
    over = {n: figures[n] for n, most in fit.limits.items() if figures[n] > most}
    valid = None
    if own is not None and own.segments is not None:
        valid = Loss(float(np.mean(own.segments)), EVALUATED)
    elif own is None:
        valid = valid_loss(fit, run)
    return ModelFacts(
        name=one.name,
        title=one.title,
        how=one.how,
        pattern=one.config.pattern,
        d_model=one.config.d_model,
        eligible=one.eligible,
        broken={} if one.eligible else over,
        parameters=int(figures["parameters"]),
        decoder_parameters=int(figures["decoder_parameters"]),
        flops=int(figures["flops"]),
        state_bytes=int(figures["state"]),
        latency=None,
        memory=int(figures["memory"]),
        size=int(figures.get("size", 0)),
        rates=tried.rates if tried else (),
        rate=tried.rate if tried else None,
        steps=contest.steps_of(one.name) if contest and own else None,
        dropped=own.dropped if own else None,
        learned=own.learned if own else None,
        predicted=one.predicted,
        valid=valid,
        against=against(fit, one.name),
        curve=read_curve(run, "loss"),
        valid_curve=read_curve(run, "valid_loss"),
        metrics=metrics_of(fit, run),
    )


def metrics_of(fit: Running, run: Path) -> Metrics:
    """The task's figures that a training wrote down in the end."""
    result = read_result(run)
    return (
        {} if result is None or result.valid is None else fit.kind.metrics_of(result.valid.values)
    )


def against(fit: Running, name: str, rival: str = BASELINE) -> Compared | None:
    """How a model compares with another one, over segments and seeds."""
    contest, seeds = fit.progress.found(Contest), fit.progress.found(Seeds)
    if name == rival or contest is None:
        return None
    losses: list[dict[int, Any]] = []
    for one in (rival, name):
        own = contest.models[one]
        if not own.segments or not own.learned:
            return None  # what learned nothing is no measure for others
        losses.append({0: np.array(own.segments)})
    if contest.steps_of(rival) != contest.steps_of(name):
        return None  # nor is what was trained for longer
    for seed, trained in (seeds.seeds if seeds else {}).items():
        if name in trained and rival in trained:
            for known, which in zip(losses, (rival, name), strict=True):
                known[seed] = np.array(trained[which])
    return compare(losses[0], losses[1], margin=fit.request.margin, spread=fit.kind.spread)


def held_against(fit: Running, chosen: ModelFacts | None) -> Held | None:
    """The chosen model beside the plain Transformer that one would take instead."""
    contest = fit.progress.found(Contest)
    if contest is None or chosen is None:
        return None
    if chosen.name in (BASELINE, contest.rival) or chosen.name != contest.best:
        return None
    timed, in_time = contest.equal_time, None
    own = contest.models[chosen.name].segments
    if timed is not None and own and timed.segments:
        rival = {0: np.array(timed.segments)}
        in_time = compare(
            rival, {0: np.array(own)}, margin=fit.request.margin, spread=fit.kind.spread
        )
    steps, untold = (timed.steps, timed.untold) if timed else (0, "")
    return Held(contest.rival, against(fit, chosen.name, contest.rival), in_time, steps, untold)


def since_learned(
    fit: Running, rows: list[ModelFacts], chosen: ModelFacts, final: Final
) -> ModelFacts:
    """A model of a task that learned only after the contest did learn: so in its row too."""
    if fit.request.kind != "text" and final.valid.loss is not None:
        place = rows.index(chosen)
        rows[place] = chosen = replace(chosen, learned=fit.learned(final.valid.loss))
    return chosen


def energy_of(fit: Running) -> Energy:
    asked = fit.request
    return estimate(
        fit.progress.spent,
        cores=describe_device().cores,
        watts=asked.watts,
        grid=asked.grid,
        price=asked.price,
        currency=asked.currency,
    )


def with_compression(fit: Running, verdict: Verdict, chosen: ModelFacts | None) -> Verdict:
    """The verdict with what compression was worth, where it was asked for."""
    if not fit.request.compress or chosen is None:
        return verdict
    return replace(verdict, sentences=(*squeezed_words(fit, chosen), *verdict.sentences))


def squeezed_words(fit: Running, chosen: ModelFacts) -> list[str]:
    """Whether to train a larger model and compress it beat training a small one."""
    most, finalist = fit.limits.get("size", math.inf), fit.finalists[chosen.name]
    config = finalist.config
    if cost(config).size <= most and not finalist.bits:
        if fit.in_bits != 1 and not fit.quicker:
            told = f"8 bits take {fit.in_bits:.2f} times as long as what was trained"
            return [f"Nothing larger came into the latency: on this machine {told}."]
        if chosen.name == SMALL or SMALL not in fit.finalists:
            what = "size" if "size" in fit.limits else "latency"
            return [f"Nothing larger in 8 bits beat it: it is within the {what} as it is."]
        return []
    real = bytes_of(fit.path / MODEL)
    words = f"Compressed to 8 bits it has {in_words('size', real)}, "
    words += f"{in_words('size', cost(config).size)} before"
    if finalist.bits and chosen.latency is not None:
        words += f", and takes {in_words('latency', chosen.latency.seconds)}, as it was trained "
        words += f"about {in_words('latency', chosen.latency.seconds / fit.in_bits)}"
    found = against(fit, chosen.name, SMALL) if SMALL in fit.finalists else None
    if found is None:
        return [f"{words}; with the small model that needs no compression it was not compared."]
    words += (
        f"; beside the small model that needs no compression its loss differs by "
        f"{signed(found.difference)} ({signed(found.low)} to {signed(found.high)}): "
    )
    kinds = {"better": "that beat training a small one.", "worse": "a small one is better."}
    return [words + kinds.get(found.verdict, "the two ways are not told apart.")]


def measure(
    fit: Running, rows: list[ModelFacts], limits: Limits
) -> tuple[list[ModelFacts], Receipt, list[str]]:
    """Latency and memory of all finalists in the same rounds, written into the rows.

    What is shown is what is judged: a limit is broken if the whole interval lies beyond it.
    """
    rounds = max(FEWEST_ROUNDS, round(ROUNDS / max(fit.slowness, 1.0)))
    configs = {name: one.config for name, one in fit.finalists.items()}
    coded = {one.config for one in fit.finalists.values() if one.bits}
    step = replace(fit.step, rounds=rounds)
    readings = fit.measure(configs, step, fit.watch.preparing, coded=coded)
    base, measured = readings[BASELINE], []
    for row in rows:
        reading = readings[row.name]
        apart = compare_times(reading.samples, base.samples, smallest=PLACEMENT)
        latency = Latency(
            seconds=reading.median,
            low=reading.low,
            high=reading.high,
            ratio=apart.ratio,
            ratio_low=apart.low,
            ratio_high=apart.high,
            verdict=apart.verdict,
        )
        row = replace(row, latency=latency, memory=reading.peak_bytes)
        broken = limits.broken_by(row)
        measured.append(replace(row, broken=broken, eligible=row.eligible and not broken))
    pace = base.median / fit.baseline.figures["latency"]
    said = []
    if "latency" in limits.most and not 1 / APART < pace < APART:
        slower = f"{pace:.1f} times" if pace > 1 else f"{pace:.0%} of"
        said.append(
            f"In the last measurement a step of the baseline took {slower} the time that it took "
            "when the limits were set: this machine was not equally busy. Measure again before "
            "you rely on a latency."
        )
    return measured, readings.receipt, said


def beside_counting(fit: Running, final: Final, unit: Unit) -> Counted | None:
    """The model that is handed over beside the counts, on test text where there is some."""
    for split, words in (("test", "test"), ("valid", "validation")):
        loss = final.loss(split)
        if loss is not None and split in fit.references:
            known = fit.references[split]
            return Counted(loss, known.bigram, known.to_beat, known.best, words, unit.told)
    return None
