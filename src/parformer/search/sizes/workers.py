"""Who works on a search: this process, several of them, or other machines?

A study in a database may be worked on from anywhere. Processes of this machine are started here;
on another one `parformer search join --storage ADDRESS` does the same.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from parformer.errors import ConfigError, ParformerError
from parformer.events import Watch
from parformer.measure.device import Device
from parformer.measure.readings import Meter, measure_here
from parformer.search.sizes.engine import (
    NAME,
    Ended,
    default_storage,
    join_search,
    search_front,
)
from parformer.search.sizes.storage import read_address
from parformer.search.sizes.study import join_study
from parformer.search.sizes.wanted import Wanted

PATIENCE = 10.0
"""Seconds that helpers get to finish what they are at."""


def search_together(
    wanted: Wanted,
    path: Path,
    *,
    storage: str = "",
    name: str = NAME,
    workers: int = 1,
    again: bool = False,
    meter: Meter = measure_here,
    device: Device | None = None,
    watch: Watch | None = None,
) -> Ended:
    """Search with so many processes of this machine; the others help with what is proposed."""
    address = storage or default_storage(path)
    if workers > 1 and read_address(address).kind == "memory":
        raise ConfigError(
            f"{workers} workers need a study that several processes can write to; "
            "give --storage sqlite:FILE or postgresql://…"
        )

    def begin() -> Callable[[], None]:
        return start_helpers(address, name, workers - 1)

    return search_front(
        wanted, path, storage=address, name=name, again=again, meter=meter, device=device,
        watch=watch,
        opened=begin,
    )  # fmt: skip


def start_helpers(storage: str, name: str, count: int) -> Callable[[], None]:
    """Start processes that help with a study; what is returned ends them."""
    context = multiprocessing.get_context("spawn")
    helpers = [
        context.Process(target=help_with, args=(storage, name, os.getpid()), daemon=True)
        for _ in range(count)
    ]
    for helper in helpers:
        helper.start()

    def end() -> None:
        for helper in helpers:
            helper.join(PATIENCE)
            if helper.is_alive():
                helper.terminate()
                helper.join(PATIENCE)

    return end


def help_with(storage: str, name: str, parent: int) -> None:
    """One helper's whole life; it ends with the process that started it."""
    import torch

    torch.set_num_threads(1)
    # Ctrl-C reaches all processes of a terminal, and the first one speaks for all
    with suppress(KeyboardInterrupt, ParformerError), join_study(storage, name) as study:
        join_search(study, stop=lambda: os.getppid() != parent)
