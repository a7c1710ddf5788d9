"""The verb `evaluate`: its flags, and how a score is told."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from parformer.cli.beside import in_a_line, verdict
from parformer.cli.console import make_console, print_json
from parformer.cli.flags import Flag, add_flags, asked
from parformer.cli.labels import in_words, score_lines
from parformer.cli.screen import Screen
from parformer.evaluate.labels import LabelScore
from parformer.evaluate.perplexity import Score
from parformer.evaluate.request import Evaluated, EvaluateRequest, evaluate
from parformer.evaluate.summaries import Rouge
from parformer.evaluate.translation import TranslationScore
from parformer.evaluate.untrained import TaskScores

if TYPE_CHECKING:
    from rich.table import Table

    from parformer.evaluate.against import Against

EXAMPLES = """\
  parformer evaluate first
  parformer evaluate first --split valid --tgt-len 64 --mem-len 640 --clamp-len 400
  parformer evaluate first second                     # is the second better, or is it chance?
  parformer evaluate first --corpus other.txt --split train --json
  parformer evaluate de-en --data news                # pairs, such as test.de and test.en
  parformer evaluate first --tasks piqa,hellaswag --shots 1 --from tasks"""

OWN = "the model's"
FLAGS = {
    "model": Flag(name="RUN"),
    "against": Flag(name="OTHER"),
    "corpus": Flag(metavar="NAME|PATH", default="the run's"),
    "local": Flag(name="--from", metavar="PATH"),
    "tasks": Flag(metavar="NAMES"),
    "split": Flag(metavar="NAME"),
    "data": Flag(metavar="PATH", default="the run's"),
    "tgt_len": Flag(default=OWN),
    "mem_len": Flag(default=OWN),
    "clamp_len": Flag(default=OWN),
    "same_length": Flag(default=OWN),
    "tokens": Flag(default="all"),
    "device": Flag(metavar="NAME"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, EvaluateRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    screen = Screen(quiet=arguments.json)
    with screen.bar:
        found = evaluate(asked(arguments, EvaluateRequest), watch=screen)
    if arguments.json:
        print_json(found.to_dict())
    else:
        show(found)
        if found.against is not None:
            show_against(found.against)


def show(found: Evaluated) -> None:
    from rich.table import Table
    from rich.text import Text

    console, score = make_console(), found.score
    if isinstance(score, TranslationScore):
        show_translation(found, score)
        return
    if isinstance(score, TaskScores):
        show_tasks(score)
        return
    if isinstance(score, LabelScore):
        for line in score_lines(found.split, score.to_dict()):
            console.print(Text(line), soft_wrap=True)
        return
    if not isinstance(score, Score):
        told = score.to_dict()
        line = f"{found.split:<6} {told['kind']} {told['perplexity']:.4g}, "
        console.print(Text(line + in_words(told["metrics"])), soft_wrap=True)  # type: ignore[arg-type]
        return
    console.print(
        Text(
            f"{found.split} of {found.corpus}, {score.tokens:,} tokens "
            f"({found.tokenizer}), {found.tgt_len} at a time"
        )
    )
    table = Table(show_header=False, box=None)
    table.add_row(score.kind, f"{score.perplexity:.4g}", style="bold")
    table.add_row("loss", f"{score.loss:.4f} nats per token")
    if score.bits_per_character is not None:
        unit = "byte" if "byte" in found.tokenizer else "character"
        table.add_row(f"bits per {unit}", f"{score.bits_per_character:.4f}")
    if score.word_perplexity is not None and found.tokenizer != "word":
        table.add_row("perplexity per word", f"{score.word_perplexity:.4g}")
    console.print(table)
    if found.beside is not None:
        unit, per_token = "perplexity", 1.0
        if score.bits_per_character is not None and not score.words:
            unit, per_token = "bits", score.characters / score.tokens
        console.print(in_a_line(found.beside, unit, per_token), soft_wrap=True)
        console.print(verdict(score.loss, found.beside))
    if "note" in (values := score.to_dict()):
        console.print(Text(f"Note: {values['note']}"))


def show_tasks(found: TaskScores) -> None:
    from rich.table import Table

    table = Table(box=None)
    for name in ("task", "", "score", "± 1.96 errors", "by chance", "questions"):
        table.add_column(name, justify="left" if name in ("task", "") else "right")
    for one in found.scores:
        error = "" if one.error is None else f"± {1.96 * one.error:.4f}"
        chance = "" if one.chance is None else f"{one.chance:.4f}"
        told = (one.task, one.measure, f"{one.value:.4f}", error, chance, f"{one.count:,}")
        table.add_row(*told)
    if len(found.scores) > 1:
        table.add_row("mean", "", f"{found.mean:.4f}", "", "", "", style="bold")
    console = make_console()
    console.print(f"{found.shots} examples before each question")
    console.print(table)


def show_translation(found: Evaluated, score: TranslationScore) -> None:
    from rich.table import Table
    from rich.text import Text

    console, common = make_console(), score.overlap
    assert common is not None
    console.print(
        Text(f"{found.split} of {found.corpus}, {common.sentences:,} pairs ({found.tokenizer})")
    )
    table = Table(show_header=False, box=None)
    if isinstance(common, Rouge):
        add_rouge(table, common)
    else:
        sure = "" if common.low is None else f"  95% {common.low:.2f} … {common.high:.2f}"
        table.add_row("BLEU", f"{common.bleu:.2f}{sure}", style="bold")
        if common.tokenised is not None:
            table.add_row("BLEU, tokenised", f"{common.tokenised:.2f}")
        table.add_row("chrF", f"{common.chrf:.2f}")
    table.add_row("loss", f"{score.loss:.4f} nats per token")
    console.print(table)
    if isinstance(common, Rouge):
        console.print(Text(f"ROUGE {common.signature}"), soft_wrap=True)
        console.print(Text(common.verdict), soft_wrap=True)
        return
    console.print(Text(f"BLEU {common.signature}"), soft_wrap=True)
    if common.tokenised is not None:
        told = f"BLEU, tokenised {common.tokenised_signature}; not to be compared with the other"
        console.print(Text(told), soft_wrap=True)
    console.print(Text(f"chrF {common.chrf_signature}"), soft_wrap=True)


def add_rouge(table: Table, common: Rouge) -> None:
    """ROUGE-1, 2 and L of the model and of the beginnings of its sources."""
    own = {"ROUGE-1, 2, L": (common.rouge1, common.rouge2, common.rougeL)}
    rows = own | {name: tuple(lead.to_dict().values()) for name, lead in common.leads.items()}
    for name, values in rows.items():
        told = "  ".join(f"{value:.2f}" for value in values)
        table.add_row(name, told, style="bold" if name.startswith("ROUGE") else "")


def show_against(found: Against) -> None:
    """Both models' figures, and whether chance alone would make them differ so."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("", "first", "second", "difference", "p", ""):
        table.add_column(name, justify="right" if name else "left")
    for one in found.differences:
        sure = "" if one.low is None else f" ({one.low:+.3f} … {one.high:+.3f})"
        figures = (f"{one.first:.3f}", f"{one.second:.3f}", f"{one.difference:+.3f}{sure}")
        table.add_row(one.measure, *figures, f"{one.p:.3f}", one.verdict)
    console = make_console()
    console.print()
    told = f"second: {found.model}, on the same {found.count:,} {found.unit}"
    console.print(Text(told), soft_wrap=True)
    console.print(table)
    console.print(f"p: how often another choice of {found.unit} makes such a difference by chance")
