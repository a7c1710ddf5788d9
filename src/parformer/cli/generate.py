"""The verb `generate`: its flags, and texts shown as they are written."""

from __future__ import annotations

import argparse
import sys

from parformer.cli.console import harmless, print_json
from parformer.cli.flags import Flag, add_flags, asked
from parformer.errors import ConfigError
from parformer.events import Event, Wrote, nobody
from parformer.generate.request import GenerateRequest, generate

EXAMPLES = """\
  parformer generate first --prompt 'def read(' --tokens 200
  parformer generate first --prompt 'import ' --greedy
  parformer generate translator --source 'Ein Hund läuft.' --beam 5
  parformer generate summaries --input mails.txt --min-len 55 --max-len 140 --no-repeat-ngram 3
  parformer generate first --prompt 'class ' --temperature 0.8 --top-p 0.9 --seed 3"""

FLAGS = {
    "model": Flag(name="RUN"),
    "prompts": Flag(name="--prompt", default="a line end; - is standard input"),
    "sources": Flag(name="--source", metavar="TEXT"),
    "input": Flag(metavar="FILE"),
    "output": Flag(metavar="FILE", default="the screen"),
    "length_penalty": Flag(metavar="X"),
    "prefix": Flag(metavar="TEXT"),
    "tokens": Flag(default="200; of a source, by its length"),
    "temperature": Flag(metavar="T", default="1"),
    "top_k": Flag(metavar="K", default="all"),
    "top_p": Flag(metavar="P", default="1: all"),
    "repetition_penalty": Flag(metavar="X"),
    "longest_copy": Flag(metavar="N", default="12 with recall, else 0"),
    "device": Flag(metavar="NAME"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, GenerateRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    prompts = read_prompts(tuple(arguments.prompts or ("",)))
    told: list[Event] = []

    def tell(event: Event) -> None:
        """The first text is shown while it is written; the others wait for their turn."""
        if isinstance(event, Wrote) and event.place == 0:
            show(event.text if told else prompts[0] + event.text)
            told.append(event)

    written = generate(
        asked(arguments, GenerateRequest, prompts=prompts),
        watch=nobody if arguments.json else tell,
    )
    if arguments.json:
        print_json([one.to_dict() for one in written])
        return
    if arguments.sources or arguments.input is not None:
        for one in written if arguments.output is None else ():
            show(f"{one.text}\n")
        return
    show("\n" if told else f"{prompts[0]}{written[0].text}\n")
    for one in written[1:]:
        show(f"\n{one.prompt}{one.text}\n")


def read_prompts(prompts: tuple[str, ...]) -> tuple[str, ...]:
    """The prompts as they are, with standard input in the place of `-`."""
    if prompts.count("-") > 1:
        raise ConfigError("--prompt - reads standard input to its end; give it once")
    if "-" not in prompts:
        return prompts
    try:
        piped = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"standard input is not UTF-8 at byte {error.start}; convert it, or name a --prompt"
        ) from None
    return tuple(piped if prompt == "-" else prompt for prompt in prompts)


def show(text: str) -> None:
    """Write at once, whatever the encoding can show of it; a terminal gets no control codes."""
    out = sys.stdout
    encoding = out.encoding or "utf-8"
    out.write(
        (harmless(text) if out.isatty() else text).encode(encoding, "replace").decode(encoding)
    )
    out.flush()
