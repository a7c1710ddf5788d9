"""The verb `data`: which text is there, and what does it become?"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from parformer.cli.console import make_console, print_json
from parformer.cli.flags import Flag, add_flags, asked, given
from parformer.cli.screen import Screen
from parformer.data.request import PrepareRequest, PrepareResult, prepare
from parformer.errors import ConfigError

if TYPE_CHECKING:
    from parformer.data.overlap import Overlap

EXAMPLES = """\
  parformer data
  parformer data python-source
  parformer data wikitext-2 --from ~/wikitext-2 --tokenizer word
  parformer data 'books/**/*.txt' --tokenizer bpe --vocab-size 4096"""

FLAGS = {
    "corpus": Flag(hidden=True),
    "local": Flag(name="--from", metavar="PATH"),
    "tokenizer": Flag(metavar="KIND"),
    "vocab_size": Flag(default="8192 for pieces, else all"),
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "corpus",
        nargs="?",
        metavar="NAME|PATH",
        help="a corpus by name, or a file, folder or glob of text, such as 'notes/*.txt'; "
        "without it, all corpora that have a name are listed",
    )
    add_flags(parser, PrepareRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    values = given(arguments, PrepareRequest)
    if "corpus" not in values:
        for name, value in values.items():
            flag = FLAGS.get(name, Flag()).name or f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} {value} needs a corpus; name one, such as python-source")
        list_corpora(json=arguments.json)
        return
    screen = Screen(quiet=arguments.json)
    with screen.bar:
        found = prepare(asked(arguments, PrepareRequest), watch=screen)
    if arguments.json:
        print_json(found.to_dict())
    else:
        show(found)


def list_corpora(*, json: bool) -> None:
    from parformer.data.corpora import corpora

    listed = corpora()
    if json:
        print_json([asdict(listing) for listing in listed])
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold", box=None)
    for title in ("corpus", "what it is", "size", "licence", "here"):
        table.add_column(title, justify="right" if title == "size" else "left")
    for listing in listed:
        size = "?" if listing.bytes is None else readable(listing.bytes)
        much = f", {readable(listing.download_bytes)} to fetch" if listing.download_bytes else ""
        here = "yes" if listing.present else f"no{much}"
        row = (listing.name, listing.about, size, listing.licence, here)
        table.add_row(*map(Text, row))
    console = make_console()
    console.print(table)
    console.print(
        "Any other text is a corpus too: give a file, a folder, or a glob such as 'notes/*.txt'."
    )


def show(found: PrepareResult) -> None:
    from rich.table import Table
    from rich.text import Text

    console, prepared, tokenizer = make_console(), found.prepared, found.prepared.tokenizer
    console.print(Text.assemble((prepared.corpus, "bold"), f"  {found.about}"))
    console.print()
    table = Table("split", header_style="bold", box=None)
    columns = ("bytes", "characters", "words", "tokens", "bytes per token", "tokens per word")
    for column in columns:
        table.add_column(column, justify="right")
    for name, split in prepared.splits.items():
        counts = split.measured()
        whole = (f"{counts[key]:,}" for key in columns[:4])
        ratios = (f"{counts[key.replace(' ', '_')]:.3f}" for key in columns[4:])
        table.add_row(Text(name), *whole, *ratios)
    console.print(table)
    console.print()
    if found.overlap:
        grid = Table.grid(padding=(0, 2))
        for name, shared in found.overlap.items():
            line = compared(shared, prepared.splits[name].bytes)
            grid.add_row(Text(name, style="bold"), Text(line))
        console.print(grid)
        if text := warning(found.overlap):
            console.print(Text(text))
        console.print()
    cutoffs = ", ".join(map(str, tokenizer.cutoffs)) or "none: the vocabulary needs no cutting"
    lines = {
        "tokenizer": f"{tokenizer.kind}, {tokenizer.size:,} tokens",
        "cutoffs": cutoffs,
        "common": "  ".join(f"{one.text!r} {one.count:,}" for one in found.common),
        "excerpt": repr(found.excerpt),
        "kept in": str(prepared.folder),
    }
    grid = Table.grid(padding=(0, 2))
    for title, line in lines.items():
        grid.add_row(Text(title, style="bold"), Text(line, overflow="fold"))
    console.print(grid)


def compared(found: Overlap, size: int) -> str:
    """What a split of so many bytes has in common with train.

    >>> from parformer.data.overlap import Overlap
    >>> compared(Overlap(windows=951, shared=0.235, longest=345), 1000)
    '23.5% of its 50-byte windows stand in train word for word; longest match 345 bytes'
    """
    from parformer.data.overlap import WINDOW

    if not found.windows:
        return f"shorter than {WINDOW} bytes, so not looked for in train"
    if not found.longest:
        return f"none of its {WINDOW}-byte windows stands in train word for word"
    seen = found.windows + WINDOW - 1
    return (
        f"{found.shared:.1%} of its {WINDOW}-byte windows stand in train word for word; "
        f"longest match {found.longest:,} bytes"
        + (f" (its first {readable(seen)} were looked for)" if seen < size else "")
    )


def warning(overlap: dict[str, Overlap]) -> str:
    """What it means that splits have much in common with train, or nothing where none has."""
    from parformer.data.overlap import WARN

    crowded = " and ".join(name for name, found in overlap.items() if found.crowded)
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
