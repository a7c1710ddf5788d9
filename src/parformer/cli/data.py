"""The verb `data`: which text is there, and what does it become?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from parformer.cli.console import make_console, print_json, progress_bar
from parformer.errors import ConfigError

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus
    from parformer.data.tokens import Prepared, Split

COMMON = 12
"""So many of the most frequent tokens are shown."""
EXCERPT = 240
"""So many characters of the text are shown."""
BLOCK = 2**22


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "corpus",
        nargs="?",
        metavar="NAME|PATH",
        help="a corpus by name, or a file, folder or glob of text, such as 'notes/*.txt'; "
        "without it, all corpora that have a name are listed",
    )
    parser.add_argument(
        "--from",
        dest="local",
        metavar="PATH",
        help="a local copy of a published corpus, which is then not downloaded",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="KIND",
        help="what a token is: byte, used-bytes, character, word or bpe (default byte)",
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        metavar="N",
        help="most tokens that character, word or bpe may have (default for bpe: 8192)",
    )
    parser.add_argument(
        "--min-count", type=int, metavar="N", help="rarer characters and words become <unk>"
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.corpus is None:
        list_corpora(arguments)
        return
    corpus, prepared = prepare_corpus(arguments)
    facts = describe(corpus, prepared)
    if arguments.json:
        print_json(facts)
    else:
        show(facts)


def list_corpora(arguments: argparse.Namespace) -> None:
    options = {
        "--from": arguments.local,
        "--tokenizer": arguments.tokenizer,
        "--vocab-size": arguments.vocab_size,
        "--min-count": arguments.min_count,
    }
    for option, value in options.items():
        if value is not None:
            raise ConfigError(f"{option} {value} needs a corpus; name one, such as python-source")
    from dataclasses import asdict

    from parformer.data.corpora import corpora

    listed = corpora()
    if arguments.json:
        print_json([asdict(listing) for listing in listed])
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold", box=None)
    for title in ("corpus", "what it is", "size", "licence", "here"):
        table.add_column(title, justify="right" if title == "size" else "left")
    for listing in listed:
        size = "?" if listing.bytes is None else readable(listing.bytes)
        here = "yes" if listing.present else f"no, {readable(listing.download_bytes)} to fetch"
        row = (listing.name, listing.about, size, listing.licence, here)
        table.add_row(*map(Text, row))
    console = make_console()
    console.print(table)
    console.print(
        "Any other text is a corpus too: give a file, a folder, or a glob such as 'notes/*.txt'."
    )


def prepare_corpus(arguments: argparse.Namespace) -> tuple[Corpus, Prepared]:
    """Fetch and tokenize what the command line names, while a bar shows how far that is."""
    from parformer.data.corpora import find_corpus
    from parformer.data.tokenizers import settings
    from parformer.data.tokens import prepare
    from parformer.durable import cache_folder

    kind, vocab_size = arguments.tokenizer or "byte", arguments.vocab_size or 0
    min_count = arguments.min_count or 0
    # a mistake should be told before anything is fetched
    settings(kind, vocab_size=vocab_size, min_count=min_count)
    with progress_bar() as bar:
        task = bar.add_task("", total=1.0)

        def news(what: str, share: float) -> None:
            bar.update(task, description=what, completed=share)

        corpus = find_corpus(arguments.corpus, local=arguments.local, progress=news)
        prepared = prepare(
            corpus,
            kind,
            vocab_size=vocab_size,
            min_count=min_count,
            cache=cache_folder(),
            progress=news,
        )
    return corpus, prepared


def describe(corpus: Corpus, prepared: Prepared) -> dict[str, Any]:
    """All that there is to know, as JSON has it."""
    tokenizer = prepared.tokenizer
    main = prepared.splits["train" if "train" in prepared.splits else next(iter(prepared.splits))]
    # a character has at most four bytes, so four times as many tokens are always enough
    excerpt = tokenizer.decode(main.tokens[: 4 * EXCERPT])[:EXCERPT]
    return {
        "corpus": prepared.corpus,
        "about": corpus.about,
        "identity": prepared.identity,
        "tokenizer": tokenizer.kind,
        "vocab_size": tokenizer.size,
        "cutoffs": list(tokenizer.cutoffs),
        "splits": {name: measure(split) for name, split in prepared.splits.items()},
        "common": [
            {"token": token, "text": tokenizer.decode([token]), "count": count}
            for token, count in most_frequent(main, tokenizer.size)
        ],
        "excerpt": excerpt,
        "cache": str(prepared.folder),
    }


def measure(split: Split) -> dict[str, Any]:
    tokens = len(split.tokens)
    return {
        "bytes": split.bytes,
        "characters": split.characters,
        "words": split.words,
        "tokens": tokens,
        "bytes_per_token": split.bytes / tokens,
        "tokens_per_word": tokens / split.words,
    }


def most_frequent(split: Split, size: int) -> list[tuple[int, int]]:
    """The most frequent tokens with their counts; of equally frequent ones, the lower first."""
    import numpy as np

    counts = np.zeros(size, np.int64)
    for start in range(0, len(split.tokens), BLOCK):  # counting copies what it counts
        counts += np.bincount(split.tokens[start : start + BLOCK], minlength=size)
    order = np.argsort(-counts, kind="stable")[:COMMON]
    return [(int(token), int(counts[token])) for token in order if counts[token]]


def show(facts: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = make_console()
    console.print(Text.assemble((facts["corpus"], "bold"), f"  {facts['about']}"))
    console.print()
    table = Table("split", header_style="bold", box=None)
    columns = ("bytes", "characters", "words", "tokens", "bytes per token", "tokens per word")
    for column in columns:
        table.add_column(column, justify="right")
    for name, counts in facts["splits"].items():
        whole = (f"{counts[key]:,}" for key in columns[:4])
        ratios = (f"{counts[key.replace(' ', '_')]:.3f}" for key in columns[4:])
        table.add_row(Text(name), *whole, *ratios)
    console.print(table)
    console.print()
    common = "  ".join(f"{row['text']!r} {row['count']:,}" for row in facts["common"])
    cutoffs = ", ".join(map(str, facts["cutoffs"])) or "none: the vocabulary needs no cutting"
    lines = {
        "tokenizer": f"{facts['tokenizer']}, {facts['vocab_size']:,} tokens",
        "cutoffs": cutoffs,
        "common": common,
        "excerpt": repr(facts["excerpt"]),
        "kept in": facts["cache"],
    }
    grid = Table.grid(padding=(0, 2))
    for title, line in lines.items():
        grid.add_row(Text(title, style="bold"), Text(line, overflow="fold"))
    console.print(grid)


def readable(size: int) -> str:
    """Bytes as people say them.

    >>> readable(999), readable(12_345_678), readable(181_000_000_000)
    ('999 B', '12 MB', '181 GB')
    """
    value, units = float(size), ["B", "kB", "MB", "GB"]
    while round(value) >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    small = value < 9.95 and units[0] != "B"
    return f"{value:.{int(small)}f} {units[0]}"
