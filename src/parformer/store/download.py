"""How does a file come over the network, whole and once?

It grows as `NAME.part`, is taken up again where a connection broke, is checked, and only then
gets its name. Of several processes that want the same file one fetches it and the others wait.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from parformer.errors import CorpusError
from parformer.events import Preparing
from parformer.store import files
from parformer.store.lock import lock

BLOCK = 2**18
RETRIED = {408, 425, 429, 500, 502, 503, 504}
"""Answers of a server that may be different next time."""

HEADERS = {"User-Agent": "parformer", "Accept-Encoding": "identity"}

WAY_OUT = "download it yourself and give --from PATH"


def fetch(
    address: str,
    target: Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    progress: Preparing | None = None,
    attempts: int = 5,
    timeout: float = 60.0,
    pause: float = 0.5,
) -> Path:
    """Bring a file to its place, unless it is there and right already.

    `attempts` is how many tries in a row may bring nothing new; between them it waits for
    `pause` seconds, twice as long each time.
    """
    if not _is_web(address):
        raise CorpusError(f"cannot download {address!r}: only http and https are fetched")
    with contextlib.ExitStack() as stack:
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            gate = target.with_name(target.name + ".lock")
            stack.enter_context(lock(gate, waiting=lambda: None))
        if target.is_file():
            if _is_right(target, size, sha256):
                return target
            with _writing(target):
                target.unlink()
        part = _Part(target, address)
        for fresh in (False, True):
            resumed = _grow(part, size, progress, attempts, timeout, pause)
            if sha256 is None or (found := files.sha256(part.file)) == sha256:
                part.finish()
                return target
            part.discard()
            if fresh or not resumed:
                break
        raise CorpusError(
            f"{address} is not the published file: its SHA-256 is {found}, not {sha256}; "
            f"nothing was kept; {WAY_OUT}"
        )


@dataclass(slots=True)
class _Version:
    """What tells one state of a file on a server from another."""

    address: str
    etag: str = ""
    modified: str = ""
    total: int | None = None

    def may_be(self, other: _Version) -> bool:
        """Whether nothing that both know speaks against it."""
        pairs = ((self.etag, other.etag), (self.modified, other.modified))
        return all(not a or not b or a == b for a, b in pairs) and (
            self.total is None or self.total == other.total
        )


class _Part:
    """A file on its way, and what the server said it is a part of."""

    def __init__(self, target: Path, address: str) -> None:
        self.target = target
        self.file = target.with_name(target.name + ".part")
        self._note = target.with_name(target.name + ".part.json")
        self.version = self._read_note(address)

    def _read_note(self, address: str) -> _Version:
        try:
            version = _Version(**json.loads(self._note.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            version = _Version("")
        if version.address != address:
            self.discard()
            version = _Version(address)
        return version

    def length(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0

    def begin(self, version: _Version) -> None:
        """Start over with the file as the server has it now."""
        with _writing(self.target):
            self.file.write_bytes(b"")
            self._note.write_text(json.dumps(asdict(version)), "utf-8")
        self.version = version

    def append(self, stream: IO[bytes], block: bytes) -> None:
        rest = memoryview(block)
        with _writing(self.target):
            while rest:
                rest = rest[stream.write(rest) :]

    def discard(self) -> None:
        with _writing(self.target):
            self.file.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)

    def finish(self) -> None:
        """Make the file durable, then give it its name."""
        with _writing(self.target):
            files.sync(self.file)
            self.file.replace(self.target)
            self._note.unlink(missing_ok=True)
            files.sync(self.target.parent)


def _grow(
    part: _Part,
    size: int | None,
    progress: Preparing | None,
    attempts: int,
    timeout: float,
    pause: float,
) -> bool:
    """Fetch until the part is whole; says whether more than one connection made it."""
    farthest, failures, resumed = part.length(), 0, part.length() > 0
    answered = False
    while True:
        try:
            if _fetch_more(part, size, progress, timeout):
                return resumed
            answered, final = True, False
            trouble = f"the connection broke at byte {part.length():,}"
        except urllib.error.HTTPError as error:
            trouble = f"the server answers {error.code} {error.reason}"
            error.close()
            final = error.code not in RETRIED
        except (OSError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            trouble = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
            final = _is_final(cause) and not answered
        if final:
            raise CorpusError(f"cannot download {part.version.address}: {trouble}; {WAY_OUT}")
        resumed = True
        failures = 0 if part.length() > farthest else failures + 1
        farthest = max(farthest, part.length())
        if failures >= attempts:
            raise CorpusError(
                f"cannot download {part.version.address}: {trouble}; "
                f"{attempts} tries brought nothing more; try again later, or {WAY_OUT}"
            )
        time.sleep(min(pause * 2 ** max(failures - 1, 0), 30.0))


def _fetch_more(part: _Part, size: int | None, progress: Preparing | None, timeout: float) -> bool:
    """One connection: append what it brings; says whether the file is whole now."""
    have = part.length()
    request = urllib.request.Request(part.version.address, headers=HEADERS)
    if have:
        request.add_header("Range", f"bytes={have}-")
        if strong := part.version.etag if not part.version.etag.startswith("W/") else "":
            request.add_header("If-Range", strong)
        elif part.version.modified:
            request.add_header("If-Range", part.version.modified)
    try:
        answer = urllib.request.build_opener(_WebOnly).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        # The part is as long as the file, or the file is another one now.
        if part.version.total == have and _total(error.headers) in (have, None):
            return True
        part.discard()
        return False
    with answer:
        version = _version(part.version.address, answer, have)
        if have and answer.status == 206 and not part.version.may_be(version):
            part.discard()
            return False
        if size is not None and version.total not in (size, None):
            part.discard()
            raise CorpusError(
                f"{version.address} is another file now: {version.total:,} bytes, "
                f"not {size:,}; {WAY_OUT}"
            )
        if answer.status != 206:
            have = 0
            part.begin(version)
        total = version.total if version.total is not None else size
        return _append(part, answer, have, total, progress)


def _append(
    part: _Part, answer: IO[bytes], have: int, total: int | None, progress: Preparing | None
) -> bool:
    with _writing(part.target):
        # Unbuffered: what a broken connection brought is kept, and a full disk shows at once.
        stream = part.file.open("ab", buffering=0)
    with stream:
        while block := answer.read(BLOCK):
            have += len(block)
            if total is not None and have > total:
                part.discard()
                raise CorpusError(
                    f"{part.version.address} sends more than its {total:,} bytes; {WAY_OUT}"
                )
            part.append(stream, block)
            if progress is not None:
                progress(f"downloading {part.target.name}", have / total if total else 0.0)
    return total is None or have == total


def _version(address: str, answer: Any, have: int) -> _Version:
    headers = answer.headers
    if answer.status == 206:
        found = re.match(r"bytes (\d+)-", headers.get("Content-Range", ""))
        total = _total(headers) if found and int(found[1]) == have else -1
    else:
        length = headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
    return _Version(address, headers.get("ETag", ""), headers.get("Last-Modified", ""), total)


def _total(headers: Message) -> int | None:
    """The length of the whole file, as `Content-Range: bytes 5-9/10` says it."""
    found = re.search(r"/(\d+)$", headers.get("Content-Range", ""))
    return int(found[1]) if found else None


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Redirections lead to the web, not to files of this machine."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not _is_web(newurl):
            raise urllib.error.HTTPError(newurl, code, f"and leads to {newurl!r}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_web(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def _is_final(cause: object) -> bool:
    """Whether trying again at once cannot help."""
    return isinstance(
        cause, ConnectionRefusedError | socket.gaierror | ssl.SSLCertVerificationError
    )


def _is_right(file: Path, size: int | None, sha256: str | None) -> bool:
    return size in (None, file.stat().st_size) and sha256 in (None, files.sha256(file))


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Say in one line why a file cannot be written."""
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        raise CorpusError(
            f"cannot write {str(target)!r}: {reason}; choose another folder with PARFORMER_CACHE"
        ) from None
