"""The command line: one verb, one function.

Nothing here imports torch until a verb needs it, so that help answers at once.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from parformer import __version__
from parformer.cli import (
    data,
    evaluate,
    fit,
    generate,
    models,
    pareto,
    proxies,
    reproduce,
    search,
    train,
)
from parformer.errors import ParformerError

DESCRIPTION = """\
Finds where a language model needs attention, and builds the model that does without it
everywhere else. An architecture is a pattern, such as (sfff)x6 (f)x8: s is self-attention,
f is feed-forward.
"""
EXAMPLES = """\
examples:
  parformer fit python-source --time 6m --limit latency=0.8x    the whole job
  parformer show                                      all presets
  parformer show transformer-xl-base par-base         two stacks, drawn
  parformer design --par 32 --p 5                     PAR's rule as a pattern
  parformer cost par-base --tgt-len 64 --mem-len 640  exact parameters, FLOPs, state
  parformer measure transformer-xl-base par-base      both on this machine, side by side
  parformer train pocket --time 3m --run first        a real model, from this Python's source
  parformer evaluate first                            its perplexity on text it never saw
  parformer search differentiable --time 4m           where this text needs attention
  parformer search pareto --run gallery               all sizes worth having on this machine
  parformer pick gallery --limit latency=5ms          the best of them that fits
  parformer generate first --prompt 'def '            what it writes
  parformer reproduce list                            the papers' tables, and ours beside them
"""


class Verb(NamedTuple):
    """A word of the command line."""

    name: str
    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    words: str
    examples: str


VERBS = (
    Verb(
        "fit",
        fit.add,
        fit.run,
        "text and a budget in, the best model that fits out, with proof",
        fit.EXAMPLES,
    ),
    Verb(
        "design",
        models.add_design,
        models.run_design,
        "write a pattern by a paper's rule, or in another notation",
        """\
  parformer design --par 32 --p 5
  parformer design --sandwich 32 --k 6
  parformer design --from-megatron '*-*-' --as layer-types""",
    ),
    Verb(
        "show",
        models.add_show,
        models.run_show,
        "draw presets or patterns and say in words what they are",
        """\
  parformer show
  parformer show par-base '(sf)x16'
  parformer show transformer-xl-base par-base --svg stacks.svg
  parformer show pocket --toml > mine.toml""",
    ),
    Verb(
        "cost",
        models.add_cost,
        models.run_cost,
        "price models exactly without building them",
        """\
  parformer cost par-base
  parformer cost transformer-xl-base par-base
  parformer cost par-base --pattern '(sf)x16' --set d_inner=1024 --json
  parformer cost mine.toml --tgt-len 1 --mem-len 512 --batch 8""",
    ),
    Verb(
        "measure",
        models.add_measure,
        models.run_measure,
        "build models and measure them side by side on this machine",
        """\
  parformer measure transformer-xl-base par-base
  parformer measure pocket llama-pocket --tgt-len 1 --mem-len 128 --threads 1
  parformer measure worker --storage postgresql://me@database/studies""",
    ),
    Verb(
        "data",
        data.add,
        data.run,
        "list corpora, or fetch, tokenize and describe one",
        """\
  parformer data
  parformer data python-source
  parformer data wikitext-2 --from ~/wikitext-2 --tokenizer word
  parformer data 'books/**/*.txt' --tokenizer bpe --vocab-size 4096""",
    ),
    Verb(
        "train",
        train.add,
        train.run,
        "train a model on a text; the same command on the same run goes on where it stopped",
        """\
  parformer train pocket --corpus python-source --time 3m --run first
  parformer train pocket --pattern '(sfff)x2 (f)x4' --steps 2000 --set train.learning_rate=1e-3
  parformer train mine.toml --corpus 'notes/*.txt' --seed 7
  torchrun --nproc-per-node 2 -m -- parformer train par-base --run base --shard""",
    ),
    Verb(
        "search",
        search.add,
        search.run,
        "find out which block belongs where, for a text and a device",
        search.EXAMPLES,
    ),
    Verb(
        "pick",
        pareto.add_pick,
        pareto.run_pick,
        "take the best model within limits from a Pareto search, ready to train",
        pareto.PICK_EXAMPLES,
    ),
    Verb(
        "proxies",
        proxies.add,
        proxies.run,
        "how well cheap scores rank a table of trained models",
        proxies.EXAMPLES,
    ),
    Verb(
        "reproduce",
        reproduce.add,
        reproduce.run,
        "put a paper's table or figure beside what this machine counts, measures and trains",
        reproduce.EXAMPLES,
    ),
    Verb(
        "evaluate",
        evaluate.add,
        evaluate.run,
        "perplexity of a trained model on text it never saw",
        """\
  parformer evaluate first
  parformer evaluate first --split valid --tgt-len 64 --mem-len 640 --clamp-len 400
  parformer evaluate first --corpus other.txt --split train --json""",
    ),
    Verb(
        "generate",
        generate.add,
        generate.run,
        "let a trained model write on",
        """\
  parformer generate first --prompt 'def read(' --tokens 200
  parformer generate first --prompt 'import ' --greedy
  parformer generate first --prompt 'class ' --temperature 0.8 --top-p 0.9 --seed 3""",
    ),
)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and leaves with status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see '{self.prog} --help'\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status is 0, or 2 for input that we cannot take."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = make_parser().parse_args(words)
        arguments.command = shlex.join(["parformer", *words])
        arguments.act(arguments)
    except ParformerError as error:
        print(f"parformer {words[0]}: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # whoever read our output has gone; say nothing more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def make_parser() -> Parser:
    parser = Parser(
        prog="parformer",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"parformer {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for verb in VERBS:
        added = verbs.add_parser(
            verb.name,
            help=verb.words,
            description=f"{verb.words[0].upper()}{verb.words[1:]}.",
            epilog=f"examples:\n{verb.examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.add_argument("--json", action="store_true", help="print JSON for machines")
        added.set_defaults(act=verb.run)
        verb.add(added)
    return parser
