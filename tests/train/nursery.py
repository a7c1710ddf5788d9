"""Many short-lived `parformer` processes, without waiting for torch each time.

One helper process imports everything and then forks for every command: a child is as fresh
as a process of its own, may be killed at any moment, and starts in a few milliseconds.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
"""Seconds after which a child that hangs is killed."""


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status, or minus the signal that killed it."""

    status: int
    out: str
    err: str
    seconds: float


class Nursery:
    """The helper process, seen from a test."""

    def __init__(self) -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (*sys.path, str(ROOT)))),
            "PYTHONWARNINGS": "error::UserWarning:parformer",
        }
        environment.pop("PARFORMER_FAILPOINT", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.train.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def run(
        self,
        *argv: object,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        failpoint: str = "",
        file_limit: int = 0,
        kill_after: float = 0.0,
        signal_at: tuple[int, Path, int] | None = None,
    ) -> Ended:
        """One `parformer` command to its end.

        `file_limit` is the largest file it may write; `kill_after` kills it after so many
        seconds; `signal_at` sends a signal once a file has so many lines.
        """
        (ended,) = self.run_together(
            [argv],
            cwd=cwd,
            env=env,
            failpoint=failpoint,
            file_limit=file_limit,
            kill_after=kill_after,
            signal_at=signal_at,
        )
        return ended

    def run_together(
        self,
        commands: Sequence[Sequence[object]],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        ranks: bool = False,
        failpoint: str = "",
        file_limit: int = 0,
        kill_after: float = 0.0,
        signal_at: tuple[int, Path, int] | None = None,
    ) -> list[Ended]:
        """Several at once; with `ranks` they find each other as torchrun's processes do."""
        wish = {
            "commands": [[str(word) for word in argv] for argv in commands],
            "cwd": str(cwd),
            "env": {
                "PARFORMER_CACHE": str(cwd / "cache"),
                "PARFORMER_FAILPOINT": failpoint,
                **(env or {}),
            },
            "ranks": ranks,
            "file_limit": file_limit,
            "kill_after": kill_after,
            "signal_at": signal_at and [signal_at[0], str(signal_at[1]), signal_at[2]],
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(wish) + "\n")
        self.process.stdin.flush()
        return [Ended(**answer) for answer in json.loads(self.process.stdout.readline())]


@cache
def shared_nursery() -> Nursery:
    """One for all tests of this process."""
    nursery = Nursery()
    atexit.register(nursery.__exit__)
    return nursery


def serve() -> None:
    """The helper's own part: fork for every line of wishes."""
    warm_up()
    for line in sys.stdin:
        print(json.dumps(grant(json.loads(line))), flush=True)


def warm_up() -> None:
    """Import what `parformer train` imports; start no thread."""
    for name in (
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.nn.parallel",
        "parformer.cli",
        "parformer.train.job",
    ):
        importlib.import_module(name)


def grant(wish: dict[str, Any]) -> list[dict[str, Any]]:
    began = time.monotonic()
    count = len(wish["commands"])
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        children = []
        for rank in range(count):
            for kind in ("out", "err"):
                (place / f"{rank}.{kind}").touch()  # a child may not live long enough to do it
            child = os.fork()
            if child == 0:
                live(wish, rank, place)
            children.append(child)
        results = watch(children, wish, began)
        return [
            {
                "status": os.waitstatus_to_exitcode(status),
                "out": (place / f"{rank}.out").read_text("utf-8"),
                "err": (place / f"{rank}.err").read_text("utf-8"),
                "seconds": seconds,
            }
            for rank, (status, seconds) in enumerate(results)
        ]


def watch(children: list[int], wish: dict[str, Any], began: float) -> list[tuple[int, float]]:
    """Wait for all, with the signals that were asked for on the way."""
    results: dict[int, tuple[int, float]] = {}
    signalled = False
    while len(results) < len(children):
        now = time.monotonic() - began
        for child in children:
            if child in results:
                continue
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                results[child] = (status, now)
            elif now > PATIENCE or 0 < wish["kill_after"] <= now:
                os.kill(child, signal.SIGKILL)
            elif wish["signal_at"] and not signalled:
                number, path, lines = wish["signal_at"]
                if Path(path).is_file() and Path(path).read_bytes().count(b"\n") >= lines:
                    os.kill(child, number)
                    signalled = True
        time.sleep(0.001)
    return [results[child] for child in children]


def live(wish: dict[str, Any], rank: int, place: Path) -> None:
    """A child's whole life; it never returns."""
    import parformer.cli
    import parformer.store.faults

    status = 1
    try:
        os.chdir(wish["cwd"])
        os.environ.update(wish["env"])
        if wish["ranks"]:
            os.environ.update(
                {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(len(wish["commands"])),
                    "MASTER_ADDR": "127.0.0.1",
                }
            )
        # the same module again: whoever imported its function sees the new wish
        importlib.reload(parformer.store.faults)
        for number, kind in ((0, "in"), (1, "out"), (2, "err")):
            file = "/dev/null" if kind == "in" else place / f"{rank}.{kind}"
            handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
            os.dup2(handle, number)
        if wish["file_limit"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (wish["file_limit"], wish["file_limit"]))
        status = parformer.cli.main(wish["commands"][rank])
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    serve()
