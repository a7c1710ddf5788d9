"""Who may ask, and how much?

A page somewhere else must not reach a server on this machine through its reader's browser: the
host that a request names is an address, `localhost` or one that was allowed by name, and its
origin is this server. Bodies are read up to a bound and for so long only.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from parformer.serve.figures import Figures
from parformer.serve.refusing import MAX_BODY, Refused

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = Message
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse: TypeAlias = Callable[[Refused], App]

OPEN_ROUTES = ("/", "/health")
"""What needs no key: the page asks for one itself."""
BODY_SECONDS = 20.0
"""A request must have arrived by then."""


class Guard:
    """Looks at every request before anything else does, and counts the answers."""

    def __init__(
        self,
        app: App,
        *,
        refuse: Refuse,
        figures: Figures,
        hosts: Iterable[str] = (),
        key: str = "",
        routes: Iterable[str] = (),
    ) -> None:
        self.app, self.refuse, self.figures = app, refuse, figures
        self.hosts = {host.lower() for host in hosts}
        self.key, self.routes = key.encode("utf-8"), {*routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 499

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            app = self.app
            try:
                self.check(scope)
            except Refused as error:
                app = self.refuse(error)
            await app(scope, receive, noting)
        finally:
            route = scope["path"] if scope["path"] in self.routes else "other"
            method = scope["method"] if scope["method"] in ("GET", "POST") else "other"
            self.figures.count(method, route, status, time.monotonic() - began)

    def check(self, scope: Scope) -> None:
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        host = headers.get("host", b"").decode("latin-1")
        if not self.allowed(host):
            raise Refused(
                f"the host {host!r:.80} is not this server; allow it with --allow-host", status=403
            )
        origin = headers.get("origin", b"").decode("latin-1")
        if origin and urlsplit_host(origin) not in {host.lower(), *self.hosts}:
            raise Refused(f"the origin {origin!r:.80} may not ask this server", status=403)
        if self.key and scope["path"] not in OPEN_ROUTES:
            self.check_key(headers.get("authorization", b""))

    def check_key(self, given: bytes) -> None:
        scheme, _, key = given.partition(b" ")
        right = hmac.compare_digest(key.strip(), self.key)
        if scheme.lower() != b"bearer" or not right:
            raise Refused(
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
            )

    def allowed(self, host: str) -> bool:
        name = name_of(host)
        return name == "localhost" or name in self.hosts or is_address(name)


def name_of(host: str) -> str:
    """A host without its port.

    >>> name_of("[::1]:8000"), name_of("LocalHost:80")
    ('::1', 'localhost')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def urlsplit_host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


FORGOTTEN = 4
"""Times the largest body that is read on and forgotten, where it is too large."""
PATIENCE = 2.0
"""Seconds for that."""


async def read_body(
    stream: Any, declared: str | None, most: int = MAX_BODY, seconds: float = BODY_SECONDS
) -> bytes:
    """A request's body, if it is small enough and comes in time.

    Of one that is too large some more is read and forgotten: whoever is still sending when the
    connection closes may never see the answer.
    """
    too_much = Refused(f"the body exceeds {most:,} bytes; send less", status=413)
    known = declared is not None and (not declared.isdecimal() or int(declared[:20]) > most)
    found, size = bytearray(), 0
    try:
        async with asyncio.timeout(min(seconds, PATIENCE) if known else seconds):
            async for chunk in stream:
                size += len(chunk)
                if size > FORGOTTEN * most:
                    raise too_much
                if not known and size <= most:
                    found += chunk
        if known or size > most:
            raise too_much
    except TimeoutError:
        if known or size > most:
            raise too_much from None
        raise Refused(f"the body did not arrive within {seconds:g} s", status=408) from None
    return bytes(found)
