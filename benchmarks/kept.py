"""What came out of experiments so far: a line of JSON each, kept beside the script that made it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from parformer.measure.device import describe_device


def known(file: Path, **like: object) -> list[dict[str, Any]]:
    """The results of a file, or those of them that say all this of themselves."""
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    return [one for one in map(json.loads, lines) if like.items() <= one.items()]


def keep(file: Path, found: Mapping[str, Any], threads: int | None = None) -> None:
    """Add a result, with the machine and the day that it is of, and print it."""
    line = {**found, "cpu": describe_device(threads).cpu, "date": str(date.today())}
    with file.open("a", encoding="utf-8") as results:
        results.write(json.dumps(line) + "\n")
    print(json.dumps(found), flush=True)


def made_on(every: list[dict[str, Any]], how: str) -> str:
    """The line below a table: where, how and when."""
    where = " and ".join(sorted({one["cpu"] for one in every}))
    return f"{where}, {how}, {max(one['date'] for one in every)}."
