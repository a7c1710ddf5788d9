"""The command line: one verb, one function.

Only the verb that was named is loaded, and nothing imports torch until a verb needs it, so that
help answers at once.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import shlex
import sys
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, NoReturn

from parformer import __version__
from parformer.cli.console import shown
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
  parformer search placement --time 4m                where this text needs attention
  parformer search sizes --run gallery                all sizes worth having on this machine
  parformer pick gallery --limit latency=5ms          the best of them that fits
  parformer generate first --prompt 'def '            what it writes
  parformer compress first --limit size=1MB           smaller, and what that costs
  parformer serve first                               for clients of OpenAI's API
  parformer reproduce list                            the papers' tables, and ours beside them
"""


class Verb(NamedTuple):
    """A word of the command line; its module has EXAMPLES, `add` and `run`."""

    name: str
    words: str
    module: str = ""
    """In `parformer.cli`, if it is not called as the verb is."""

    def part(self, name: str) -> Any:
        """What the verb's module calls `add` or, where it has several verbs, `add_VERB`."""
        module = importlib.import_module(f"parformer.cli.{self.module or self.name}")
        own = {"EXAMPLES": f"{self.name.upper()}_EXAMPLES"}.get(name, f"{name}_{self.name}")
        return getattr(module, own if self.module else name)


VERBS = (
    Verb("fit", "text and a budget in, the best model that fits out, with proof"),
    Verb("design", "write a pattern by a paper's rule, or in another notation"),
    Verb("show", "draw presets or patterns and say in words what they are"),
    Verb("cost", "price models exactly without building them"),
    Verb("measure", "build models and measure them side by side on this machine"),
    Verb("data", "list corpora, or fetch, tokenize and describe one"),
    Verb(
        "train",
        "train a model on a text; the same command on the same run goes on where it stopped",
    ),
    Verb("search", "find out which block belongs where, for a text and a device"),
    Verb("pick", "take the best model within limits from a search for sizes, ready to train"),
    Verb("proxies", "how well cheap scores rank a table of trained models"),
    Verb(
        "reproduce",
        "put a paper's table or figure beside what this machine counts, measures and trains",
    ),
    Verb("compress", "make a trained model smaller and faster, with a receipt for every step"),
    Verb("teach", "write what a translator makes of its sources, for others to learn from"),
    Verb("evaluate", "perplexity of a trained model on text it never saw"),
    Verb("generate", "let a trained model write on"),
    Verb("predict", "what a trained model tells of a text: classes, scores, choices, answers"),
    Verb("export", "write a trained model in a form that others run, compared in the act"),
    Verb("push", "upload an exported folder to Hugging Face's hub"),
    Verb("serve", "serve a trained model by OpenAI's API, to many clients at once"),
    Verb("kernels", "how compiled kernels come about here, and a wheel of them for elsewhere"),
)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and leaves with status 2."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is left over here, where it is known whose help to name."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {shown(message)}; see '{self.prog} --help'\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status is 0, or 2 for input that we cannot take."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = make_parser(words[:1]).parse_args(words)
        arguments.command = shlex.join(["parformer", *words])
        arguments.act(arguments)
        sys.stdout.flush()
    except ParformerError as error:
        print(f"parformer {words[0]}: {shown(str(error))}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        silence()  # whoever read our output has gone; say nothing more
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        silence()
        print(f"parformer {words[0]}: no room for the output: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def silence() -> None:
    """Let what could not be written go; Python would try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_parser(wanted: Collection[str] | None = None) -> Parser:
    """All verbs by name and purpose; those that are wanted, else all, with their flags."""
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
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if wanted is None or verb.name in wanted:
            added.epilog = f"examples:\n{verb.part('EXAMPLES')}"
            added.add_argument("--json", action="store_true", help="print JSON for machines")
            added.set_defaults(act=verb.part("run"))
            verb.part("add")(added)
    return parser
