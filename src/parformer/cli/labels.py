"""How is a score of labelled texts told?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parformer.cli.console import make_console, print_lines

if TYPE_CHECKING:
    from parformer.recipe import Recipe
    from parformer.train.request import TrainResult
    from parformer.train.several import Several, Spread


def farewell(result: TrainResult) -> None:
    """How it ended, beside what counting reaches, and what to do next."""
    from parformer.train.run import read_run

    console, outcome = make_console(), result.outcome
    scores = outcome.result.scores if outcome.result is not None else {}
    if result.several is not None:
        told = spread_lines(result.several)
        told += [f"{split:<6} {b}" for split, one in scores.items() if (b := beside(one.values))]
    else:
        told = [line for split, one in scores.items() for line in score_lines(split, one.values)]
    for line in told:
        console.print(line, soft_wrap=True, markup=False)
    print_lines(
        f"model: {result.run / 'model'}",
        f"try:   parformer predict {shlex.quote(str(result.run))} {asking(read_run(result.run))}",
    )


def asking(recipe: Recipe) -> str:
    """How `predict` is asked about such a model."""
    from parformer.tasks.preparing import texts_of

    match recipe.model.label_head:
        case "span":
            return "--question 'Who wrote it?' --passage 'It was written by Ann.'"
        case "choice":
            return "--passage 'It was late.' --choices 'She slept.' --choices 'It rained.'"
        case _:
            pair = " --text-pair 'It was good.'" if texts_of(recipe) == 2 else ""
            return "--text 'A lovely film.'" + pair


def score_lines(split: str, values: Mapping[str, Any]) -> list[str]:
    """A score in lines: the metrics, the loss, and what counting reaches.

    >>> score_lines("test", {"metrics": {"accuracy": 0.9}, "loss": 0.3, "examples": 10})
    ['test   accuracy 0.900  loss 0.3000  10 examples']
    """
    head = f"{split:<6} {in_words(values['metrics'])}  loss {values['loss']:.4f}  "
    head += f"{values['examples']:,} examples"
    if (off := values.get("calibration_error")) is not None:
        head += f"  probabilities off by {off:.1%}"
    told = [head]
    if line := beside(values):
        told.append(f"       {line}")
    return told


def beside(values: Mapping[str, Any]) -> str:
    """What counting reaches on the same examples; empty where nothing was counted."""
    return "; ".join(f"{n}: {in_words(m)}" for n, m in values.get("beside", {}).items())


def in_words(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in metrics.items())


def spread_lines(several: Several) -> list[str]:
    """What was tried, the best first: medians, and from where to where."""
    told = []
    for one in several.tried:
        what = " ".join(change.partition(".")[2] for change in one.changes) or "all seeds"
        for split, spreads in (("valid", one.valid), ("test", one.test)):
            if spreads:
                told.append(f"{split:<6} {what}: {span_words(spreads)}  {len(one.runs)} seeds")
    return told


def span_words(spreads: Mapping[str, Spread]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {one.median:.3f} ({one.low:.3f} … {one.high:.3f})"
        for name, one in spreads.items()
        if name != "score"
    )
