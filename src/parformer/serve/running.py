"""How does the server run, and how does it come to an end?

Whoever stops it lets the answers under way be finished, for so long. A connection over which no
whole request comes in time is closed, as is one beyond the number that there may be.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from parformer.serve.app import make_app
from parformer.serve.services import Services

MOST_CONNECTIONS = 512
HEADER_SECONDS = 10.0
"""From a connection's beginning until the first request's headers are there."""
DRAIN_SECONDS = 30
"""For answers under way when the server is stopped."""


class Impatient(H11Protocol):
    """Closes connections over which nothing whole comes."""

    seconds = HEADER_SECONDS

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.patience = self.loop.call_later(self.seconds, self.lose_patience)

    def lose_patience(self) -> None:
        waits = self.cycle is None or self.cycle.response_complete
        if waits and self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.patience.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self.patience.cancel()
            self.patience = self.loop.call_later(self.seconds, self.lose_patience)

    def connection_lost(self, exc: Exception | None) -> None:
        self.patience.cancel()
        super().connection_lost(exc)


class Server:
    """An engine and the HTTP server before it."""

    def __init__(self, services: Services) -> None:
        self.services = services
        config = uvicorn.Config(
            make_app(services),
            http=Impatient,
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=int(HEADER_SECONDS),
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
        self.http = uvicorn.Server(config)

    def run(self, listening: socket.socket) -> None:
        """Serve until somebody stops it."""
        self.services.engine.start()
        try:
            self.http.run(sockets=[listening])
        finally:
            self.services.engine.close()

    @contextlib.contextmanager
    def beside(self, listening: socket.socket) -> Iterator[None]:
        """Serve in a thread of its own, while something else goes on here."""
        self.services.engine.start()
        thread = threading.Thread(target=self._run, args=(listening,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.http.should_exit = True
            thread.join()
            self.services.engine.close()

    def _run(self, listening: socket.socket) -> None:
        asyncio.run(self.http.serve(sockets=[listening]))
