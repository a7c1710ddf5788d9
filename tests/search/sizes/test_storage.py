"""Can many use one database at the same time?"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from parformer.search.sizes.storage import Address, open_database, read_address


def test_many_may_open_and_close_a_file_at_once(tmp_path: Path) -> None:
    """SQLite refuses at once, instead of waiting, while another makes the file its own."""

    def open_often(address: Address, gate: threading.Barrier) -> None:
        gate.wait()
        for _ in range(6):
            open_database(address, new=True).close()

    for number in range(30):
        address = read_address(f"sqlite:{tmp_path / f'{number}.db'}")
        gate = threading.Barrier(4)
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(open_often, address, gate) for _ in range(4)]:
                done.result()
