"""The verb `generate`: what does a trained model write?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from unicodedata import category

from parformer.cli.console import add_device, print_json
from parformer.errors import ConfigError

UNSHOWN = "\ufffd"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="RUN", help="folder of a run or of a model")
    parser.add_argument(
        "--prompt",
        action="append",
        metavar="TEXT",
        help="text to go on with, - for standard input; may be repeated (default: a line end)",
    )
    parser.add_argument(
        "--tokens", type=int, default=200, metavar="N", help="to write at most (default 200)"
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="below 1: likely tokens more so (default 1)"
    )
    parser.add_argument("--greedy", action="store_true", help="always the likeliest token")
    parser.add_argument(
        "--top-k",
        type=int,
        default=0,
        metavar="K",
        help="draw among the K likeliest (default: all)",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="draw among the likeliest that have probability P together (default 1: all)",
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="above 1: tokens seen before become less likely (default 1)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of what is drawn (default 0)"
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; may be repeated",
    )
    add_device(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.greedy and arguments.temperature is not None:
        raise ConfigError(
            f"--greedy and --temperature {arguments.temperature:g} contradict each other; "
            "give one of them"
        )
    prompts = read_prompts(arguments.prompt or [""])
    from parformer.generate import Sampling, generate_text
    from parformer.measure.device import find_device
    from parformer.model import load
    from parformer.train.run import open_run

    temperature = 1.0 if arguments.temperature is None else arguments.temperature
    sampling = Sampling(
        temperature=0.0 if arguments.greedy else temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        repetition_penalty=arguments.repetition_penalty,
    )
    opened = open_run(arguments.model)
    if opened.tokenizer is None:
        raise ConfigError(
            f"{str(opened.folder)!r} has no tokenizer.json, so its tokens cannot be read; "
            "copy it from the run that made the model"
        )
    model = load(opened.folder, device=find_device(arguments.device))
    live = not arguments.json

    def tell(place: int, piece: str) -> None:
        """The first text is shown while it is written; the others wait for their turn."""
        if live and place == 0:
            show(piece if told else prompts[0] + piece)
            told.append(place)

    told: list[int] = []
    texts = generate_text(
        model,
        opened.tokenizer,
        prompts,
        arguments.tokens,
        sampling=sampling,
        seed=arguments.seed,
        stop=arguments.stop,
        on_text=tell,
    )
    if arguments.json:
        pairs = zip(prompts, texts, strict=True)
        print_json([{"prompt": prompt, "text": text} for prompt, text in pairs])
        return
    show("\n" if told else f"{prompts[0]}{texts[0]}\n")
    for prompt, text in zip(prompts[1:], texts[1:], strict=True):
        show(f"\n{prompt}{text}\n")


def read_prompts(given: list[str]) -> list[str]:
    """The prompts as they are, with standard input in the place of `-`."""
    if given.count("-") > 1:
        raise ConfigError("--prompt - reads standard input to its end; give it once")
    if "-" not in given:
        return given
    try:
        piped = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"standard input is not UTF-8 at byte {error.start}; convert it, or name a --prompt"
        ) from None
    return [piped if prompt == "-" else prompt for prompt in given]


def show(text: str) -> None:
    """Write at once, whatever the encoding can show of it; a terminal gets no control codes."""
    out = sys.stdout
    if out.isatty():
        text = "".join(UNSHOWN if category(c) == "Cc" and c not in "\n\t" else c for c in text)
    encoding = out.encoding or "utf-8"
    out.write(text.encode(encoding, "replace").decode(encoding))
    out.flush()
