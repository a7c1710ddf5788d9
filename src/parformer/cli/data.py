"""The verb `data`: which text is there, and what does it become?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from parformer.cli.console import make_console, print_json, progress_bar
from parformer.errors import ConfigError

if TYPE_CHECKING:
    from parformer.data.corpora import Corpus
    from parformer.data.overlap import Overlap
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
    facts = describe(*prepare_corpus(arguments))
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


def prepare_corpus(
    arguments: argparse.Namespace,
) -> tuple[Corpus, Prepared, dict[str, Overlap]]:
    """Fetch, tokenize and compare what the command line names; a bar shows how far that is."""
    from parformer.data.corpora import find_corpus
    from parformer.data.overlap import overlaps
    from parformer.data.tokenizers import settings
    from parformer.data.tokens import prepare
    from parformer.store.files import cache_folder

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
        shared = overlaps(corpus, news)
    return corpus, prepared, shared


def describe(corpus: Corpus, prepared: Prepared, shared: dict[str, Overlap]) -> dict[str, Any]:
    """All that there is to know, as JSON has it."""
    from dataclasses import asdict

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
        "overlap": {name: asdict(o) | {"crowded": o.crowded} for name, o in shared.items()},
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
    if facts["overlap"]:
        grid = Table.grid(padding=(0, 2))
        for name, found in facts["overlap"].items():
            line = compared(found, facts["splits"][name]["bytes"])
            grid.add_row(Text(name, style="bold"), Text(line))
        console.print(grid)
        if text := warning(facts["overlap"]):
            console.print(Text(text))
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


def compared(found: dict[str, Any], size: int) -> str:
    """What a split of so many bytes has in common with train.

    >>> compared({"windows": 951, "shared": 0.235, "longest": 345}, 1000)
    '23.5% of its 50-byte windows stand in train word for word; longest match 345 bytes'
    """
    from parformer.data.overlap import WINDOW

    if not found["windows"]:
        return f"shorter than {WINDOW} bytes, so not looked for in train"
    if not found["longest"]:
        return f"none of its {WINDOW}-byte windows stands in train word for word"
    seen = found["windows"] + WINDOW - 1
    return (
        f"{found['shared']:.1%} of its {WINDOW}-byte windows stand in train word for word; "
        f"longest match {found['longest']:,} bytes"
        + (f" (its first {readable(seen)} were looked for)" if seen < size else "")
    )


def warning(overlap: dict[str, dict[str, Any]]) -> str:
    """What it means that splits have much in common with train, or nothing where none has."""
    from parformer.data.overlap import WARN

    crowded = " and ".join(name for name, found in overlap.items() if found["crowded"])
    return crowded and (
        f"Warning: more than {WARN:.0%} of {crowded} stands in train, where a model that copies "
        "looks better than it is; remove copies, or split by document or date into files named "
        "train, valid and test."
    )


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
