"""The verb `evaluate`: how good is a trained model on text it never saw?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer.cli.beside import add_beside, in_a_line, verdict
from parformer.cli.console import add_device, make_console, print_json, progress_bar
from parformer.errors import ConfigError

if TYPE_CHECKING:
    from parformer.data.tokens import Prepared
    from parformer.evaluate.counting import References
    from parformer.evaluate.perplexity import Score
    from parformer.model import Model
    from parformer.train.run import Opened

LENGTHS = ("mem_len", "clamp_len", "same_length")
"""What an evaluation may change about a model; no weight depends on it."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="RUN", help="folder of a run or of a model")
    parser.add_argument("--corpus", metavar="NAME|PATH", help="text to read (default: the run's)")
    parser.add_argument(
        "--from", dest="local", metavar="PATH", help="a local copy of a published corpus"
    )
    parser.add_argument(
        "--split", default="test", metavar="NAME", help="train, valid or test (default test)"
    )
    parser.add_argument(
        "--tgt-len",
        type=int,
        default=0,
        metavar="N",
        help="new tokens per step (default: the model's)",
    )
    parser.add_argument(
        "--mem-len",
        type=int,
        metavar="N",
        help="remembered tokens before them (default: the model's)",
    )
    parser.add_argument(
        "--clamp-len",
        type=int,
        metavar="N",
        help="distances beyond count as N (default: the model's)",
    )
    parser.add_argument(
        "--same-length",
        action=argparse.BooleanOptionalAction,
        help="every token sees just mem_len others (default: the model's)",
    )
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="places read at once (default 1)"
    )
    parser.add_argument(
        "--tokens", type=int, default=0, metavar="N", help="only the first N (default: all)"
    )
    add_beside(parser)
    add_device(parser)


def run(arguments: argparse.Namespace) -> None:
    from parformer.evaluate.perplexity import evaluate, step_length
    from parformer.measure.device import find_device
    from parformer.model import load
    from parformer.train.run import open_run

    opened = open_run(arguments.model)
    model = load(
        opened.folder,
        device=find_device(arguments.device),
        **{name: value for name in LENGTHS if (value := getattr(arguments, name)) is not None},
    )
    check_memory(model, arguments.mem_len)
    with progress_bar() as bar:
        task = bar.add_task("reading the text", total=1.0)
        prepared = find_tokens(
            opened,
            arguments.corpus,
            arguments.local,
            lambda what, share: bar.update(task, description=what, completed=share),
        )
        if arguments.split not in prepared.splits:
            raise ConfigError(
                f"{prepared.corpus!r} has no split {arguments.split!r}; "
                f"it has {', '.join(prepared.splits)}"
            )
        text = prepared.splits[arguments.split]
        bar.update(task, description="evaluating", completed=0.0)
        score = evaluate(
            model,
            text.tokens,
            tgt_len=arguments.tgt_len,
            batch=arguments.batch,
            limit=arguments.tokens,
            # enwik8's bits per character have always been bits per byte
            characters=text.bytes if "byte" in prepared.tokenizer.kind else text.characters,
            words=text.words if prepared.tokenizer.kind in ("word", "bpe") else 0,
            progress=lambda share: bar.update(task, completed=share),
        )
        counted = None
        tokens = text.tokens[: arguments.tokens or None]
        held_out = arguments.split != "train" and "train" in prepared.splits and len(tokens) > 1
        if arguments.beside and model.config.causal and held_out:
            from parformer.evaluate.counting import references_of

            bar.update(task, description="counting")
            counted = references_of(prepared, {arguments.split: tokens})[arguments.split]
    lengths = {"tgt_len": step_length(model, arguments.tgt_len)}
    lengths |= {name: getattr(model.config, name) for name in LENGTHS}
    if arguments.json:
        source = {"corpus": prepared.corpus, "identity": prepared.identity}
        beside = {} if counted is None else {"beside": counted.to_dict()}
        print_json(score.to_dict() | source | {"split": arguments.split} | lengths | beside)
        return
    show(score, prepared, arguments.split, lengths, counted)


def find_tokens(opened: Opened, corpus: str | None, local: str | None, progress: Any) -> Prepared:
    """The text to read in the model's own tokens: the run's, unless another one is named."""
    from parformer.data.corpora import find_corpus
    from parformer.data.tokens import prepare
    from parformer.store.files import cache_folder

    if opened.tokenizer is None:
        raise ConfigError(
            f"{str(opened.folder)!r} has no tokenizer.json, so no text can be read; "
            "copy it from the run that made the model"
        )
    if corpus is not None:
        found = find_corpus(corpus, local=local, progress=progress)
    elif opened.recipe is None:
        raise ConfigError(f"{str(opened.folder)!r} belongs to no run; name a text with --corpus")
    else:
        data = opened.recipe.data
        found = find_corpus(
            data.corpus,
            local=local or data.local or None,
            progress=progress,
            identity=opened.identity,
        )
    tokens = prepare(
        found,
        opened.tokenizer.kind,
        tokenizer=opened.tokenizer,
        cache=cache_folder(),
        progress=progress,
    )
    if corpus is None and opened.identity and tokens.identity != opened.identity:
        raise ConfigError(
            f"{found.name!r} is not the text of this run any more: SHA-256 "
            f"{tokens.identity[:12]}…, trained on {opened.identity[:12]}…; "
            f"to read it all the same add --corpus {found.name}"
        )
    return tokens


def check_memory(model: Model, mem_len: int | None) -> None:
    positions = model.config.positions
    if mem_len is not None and positions not in ("relative", "none"):
        raise ConfigError(
            f"--mem-len {mem_len} means nothing to {positions} positions, which remember "
            f"their window of {model.config.max_len} tokens; leave it out"
        )


def show(
    score: Score,
    prepared: Prepared,
    split: str,
    lengths: dict[str, Any],
    counted: References | None,
) -> None:
    from rich.table import Table
    from rich.text import Text

    console = make_console()
    console.print(
        Text(
            f"{split} of {prepared.corpus}, {score.tokens:,} tokens "
            f"({prepared.tokenizer.kind}), {lengths['tgt_len']} at a time"
        )
    )
    table = Table(show_header=False, box=None)
    table.add_row(score.kind, f"{score.perplexity:.4g}", style="bold")
    table.add_row("loss", f"{score.loss:.4f} nats per token")
    if score.bits_per_character is not None:
        unit = "byte" if "byte" in prepared.tokenizer.kind else "character"
        table.add_row(f"bits per {unit}", f"{score.bits_per_character:.4f}")
    if score.word_perplexity is not None and prepared.tokenizer.kind == "bpe":
        table.add_row("perplexity per word", f"{score.word_perplexity:.4g}")
    console.print(table)
    if counted is not None:
        unit, per_token = "perplexity", 1.0
        if score.bits_per_character is not None and prepared.tokenizer.kind not in ("word", "bpe"):
            unit, per_token = "bits", score.characters / score.tokens
        console.print(in_a_line(counted, unit, per_token), soft_wrap=True)
        console.print(verdict(score.loss, counted))
    if "note" in (values := score.to_dict()):
        console.print(Text(f"Note: {values['note']}"))
