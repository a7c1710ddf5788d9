"""Which training's model is handed over, and what does it do on text that nobody chose by?"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from parformer.data.batches import sample
from parformer.evaluate.attention import (
    AttentionRequest,
    AttentionResult,
    attends,
    most_tokens,
    see,
)
from parformer.evaluate.perplexity import evaluate
from parformer.fitting.kinds.language import prompt_of
from parformer.fitting.phases import BASELINE, Contest, Finalists, Winner
from parformer.fitting.result import Final, Loss, ModelFacts, Sample
from parformer.fitting.running import TESTED, Running
from parformer.fitting.scored import FINAL, TaskScores
from parformer.model import Model, load
from parformer.store.files import sync
from parformer.train.alike import read_curve
from parformer.train.run import CONFIG, MODEL, RESULT, TOKENIZER, read_result

LOOKED_AT = 48
"""Tokens of a text that attention is shown for."""


def final_run(fit: Running) -> Winner | None:
    """The training whose model is handed over; before the end, the best that is there."""
    if (ended := fit.progress.found(Winner)) is not None:
        return ended
    if (contest := fit.progress.found(Contest)) is not None:
        return Winner(contest.best, contest.best, contest.steps_of(contest.best), False)
    if fit.progress.found(Finalists) is None:
        return None
    results = {name: read_result(fit.alike.root / name) for name in fit.finalists}
    losses = {name: one.loss_on("valid") for name, one in results.items() if one}
    allowed = {name: loss for name, loss in losses.items() if name in fit.eligible} or losses
    if not allowed:
        return None
    best = min(allowed, key=allowed.__getitem__)
    result = results[best]
    assert result is not None, "it has a loss"
    return Winner(best, best, result.steps, False)


def hand_over(fit: Running, final: Winner) -> None:
    """Make the fit's folder a run itself: model, vocabulary, recipe and result of a training.

    The recipe comes last: it makes a folder a run, and by then everything else is there.
    """
    run, path = fit.alike.root / final.run, fit.path
    new, old = path / f".{MODEL}.new", path / f".{MODEL}.old"
    for rest in (new, old):
        shutil.rmtree(rest, ignore_errors=True)
    if fit.request.compress:
        fit.load(run).save(new, fit.prepared.tokenizer.to_json())
    else:
        shutil.copytree(run / MODEL, new)
    if (path / MODEL).exists():
        (path / MODEL).rename(old)
    new.rename(path / MODEL)
    shutil.rmtree(old, ignore_errors=True)
    for name in (TOKENIZER, RESULT, CONFIG):
        beside = path / f".{name}.new"
        shutil.copyfile(run / name, beside)
        beside.rename(path / name)
    sync(path)


def both_runs(fit: Running, final: Winner) -> dict[str, Path]:
    """The trained baseline, if there is one, and the model that is handed over."""
    root = fit.alike.root
    runs = {FINAL: root / final.run}
    trained = (root / BASELINE / MODEL).is_dir()
    return {BASELINE: root / BASELINE, **runs} if trained else runs


def about_final(fit: Running, final: Winner, row: ModelFacts) -> Final:
    """The model that is handed over, for the report."""
    run = fit.alike.root / final.run
    losses = {name: loss_on_test(fit, path) for name, path in both_runs(fit, final).items()}
    valid = valid_loss(fit, run)
    assert valid is not None, "what is handed over is finished"
    return Final(
        folder=MODEL,
        name=final.name,
        steps=final.steps,
        retrained=final.retrained,
        valid=valid,
        test=losses[FINAL],
        baseline_test=losses.get(BASELINE),
        latency=row.latency,
        memory=row.memory,
        curve=read_curve(run, "loss"),
        valid_curve=read_curve(run, "valid_loss"),
    )


def valid_loss(fit: Running, run: Path) -> Loss | None:
    """What models are compared by, of the one in a run."""
    result = read_result(run)
    if fit.request.kind == "text" or result is None:
        return None if result is None else Loss(result.loss_on("valid"))
    losses = fit.kind.losses(fit.baseline.recipe, fit.load(run), fit.prepared)
    return Loss(float(losses.mean()), len(losses))


def loss_on_test(fit: Running, run: Path) -> Loss | None:
    """The loss on text that nothing was chosen by."""
    if "test" not in fit.prepared.splits or fit.request.kind != "text":
        return None  # a task has scores
    tokens = sample(fit.prepared.splits["test"].tokens, TESTED)
    if len(tokens) < 2:
        return None
    score = evaluate(fit.load(run), tokens, batch=8)
    return Loss(score.loss if math.isfinite(score.loss) else None, score.tokens)


def samples_of(fit: Running, final: Winner) -> list[Sample]:
    """What both models make of the same words."""
    shown = fit.kind.shown(fit.baseline.recipe, both_models(fit, final), fit.prepared)
    return [Sample(*one) for one in shown]


def scores_of(fit: Running, final: Winner | None) -> TaskScores | None:
    """What both are worth at their task, beside what needs no network."""
    if final is None:
        return None
    models = both_models(fit, final)
    return fit.kind.scores(fit.baseline.recipe, models, fit.prepared, fit.facts)


def both_models(fit: Running, final: Winner) -> dict[str, Model]:
    return {name: fit.load(run) for name, run in both_runs(fit, final).items()}


def looks_of(fit: Running, final: Winner) -> AttentionResult | None:
    """What the model that is handed over attends to in the beginning of that prompt."""
    if fit.request.kind != "text":
        return None
    model, tokenizer = load(fit.alike.root / final.run / MODEL), fit.prepared.tokenizer
    tokens = tokenizer.encode(prompt_of(fit.prepared))[: min(LOOKED_AT, most_tokens(model.config))]
    text = tokenizer.decode(tokens)
    # a text that is cut may be read as other tokens, and then as too many
    if not attends(model) or not 0 < len(tokenizer.encode(text)) <= LOOKED_AT:
        return None
    return see(model, tokenizer, AttentionRequest(model=fit.path, text=text))
