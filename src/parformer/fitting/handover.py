"""Which training's model is handed over, and what does it do on text that nobody chose by?"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parformer.evaluate.perplexity import evaluate
from parformer.fitting.desk import BASELINE, Desk
from parformer.fitting.trainings import TESTED, last_validation, read_curves
from parformer.generate import Sampling, generate_text
from parformer.model import load
from parformer.store import folder
from parformer.store.files import sync
from parformer.train.loop import sample
from parformer.train.run import CONFIG, MODEL, RESULT, TOKENIZER

FINAL = "final"
"""What the model that is handed over is called beside the baseline."""
PROMPT, WRITTEN = 160, 240
"""Characters of a prompt, and tokens written after it, at most."""


def final_run(desk: Desk) -> dict[str, Any] | None:
    """The training whose model is handed over; before the end, the best that is there."""
    notes, root = desk.notes, desk.path / "trainings"
    if notes.has("winner"):
        return desk.result("winner")
    if notes.has("contest"):
        contest = desk.result("contest")
        best = contest["best"]
        return {"name": best, "run": best, "steps": contest["steps"], "retrained": False}
    if not notes.has("sizes"):
        return None
    ended = [name for name in desk.models if (root / name / RESULT).is_file()]
    allowed = [name for name in ended if name in desk.eligible] or ended
    if not allowed:
        return None
    best = min(allowed, key=lambda name: last_validation(root / name))
    steps = int(folder.read_json(root / best, RESULT)["steps"])
    return {"name": best, "run": best, "steps": steps, "retrained": False}


def hand_over(desk: Desk, final: Mapping[str, Any]) -> None:
    """Make the fit's folder a run itself: model, vocabulary, recipe and result of a training.

    The recipe comes last: it makes a folder a run, and by then everything else is there.
    """
    run, path = desk.trainings.root / final["run"], desk.path
    new, old = path / f".{MODEL}.new", path / f".{MODEL}.old"
    for rest in (new, old):
        shutil.rmtree(rest, ignore_errors=True)
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


def both_runs(desk: Desk, final: Mapping[str, Any]) -> dict[str, Path]:
    """The trained baseline, if there is one, and the model that is handed over."""
    root = desk.trainings.root
    runs = {FINAL: root / final["run"]}
    trained = (root / BASELINE / MODEL).is_dir()
    return {BASELINE: root / BASELINE, **runs} if trained else runs


def about_final(desk: Desk, final: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The model that is handed over, for the report."""
    run = desk.trainings.root / final["run"]
    losses = {name: loss_on_test(desk, path) for name, path in both_runs(desk, final).items()}
    return {
        "folder": MODEL,
        "name": final["name"],
        "steps": final["steps"],
        "retrained": final["retrained"],
        "valid": {"loss": last_validation(run)},
        "test": losses[FINAL],
        "baseline_test": losses.get(BASELINE),
        "latency": chosen["latency"],
        "memory": chosen["memory"],
        **read_curves(run),
    }


def loss_on_test(desk: Desk, run: Path) -> dict[str, Any] | None:
    """The loss on text that nothing was chosen by."""
    if "test" not in desk.prepared.splits:
        return None
    tokens = sample(desk.prepared.splits["test"].tokens, TESTED)
    if len(tokens) < 2:
        return None
    score = evaluate(load(run / MODEL), tokens, batch=8)
    return {"loss": score.loss if math.isfinite(score.loss) else None, "tokens": score.tokens}


def samples_of(desk: Desk, final: Mapping[str, Any]) -> list[dict[str, str]]:
    """What both models write after the same words."""
    prompt, sampling = prompt_of(desk), Sampling(temperature=0.8, top_p=0.95)
    tokenizer, seed = desk.prepared.tokenizer, desk.ask.seed
    found = []
    for name, run in both_runs(desk, final).items():
        model = load(run / MODEL)
        text, *_ = generate_text(model, tokenizer, [prompt], WRITTEN, sampling=sampling, seed=seed)
        found.append({"name": name, "prompt": prompt, "text": text})
    return found


def prompt_of(desk: Desk) -> str:
    """The first lines of validation text, from one with several words on, cut between words."""
    tokens = desk.prepared.splits["valid"].tokens[:2048]
    text = desk.prepared.tokenizer.decode([int(token) for token in tokens])
    return opening(text)


def opening(text: str, most: int = PROMPT) -> str:
    """Some of a text, from its first line of several words to the end of a line or word.

    >>> opening("----\\nIt was late.\\nNobody came.", most=20)
    'It was late.\\n'
    """
    lines = text.splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if len(line.split()) > 1), 0)
    piece = "".join(lines[first:])
    if len(piece) <= most:
        return piece
    line, word = (piece.rfind(space, 0, most) for space in ("\n", " "))
    cut = line if line > most // 3 else max(line, word)
    return piece[: cut + 1] if cut > 0 else piece[:most]
