"""Can many use one database at the same time?"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from parformer.search.sizes.storage import Address, open_database, read_address


def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    """SQLite refuses at once, instead of waiting, while another makes the file its own."""
    for number in range(15):
        address = read_address(f"sqlite:{tmp_path / f'{number}.db'}")
        gate = threading.Barrier(6)

        def open_one(address: Address = address, gate: threading.Barrier = gate) -> None:
            gate.wait()
            open_database(address, new=True).close()

        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(open_one) for _ in range(6)]:
                done.result()
