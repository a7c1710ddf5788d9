"""Does a file arrive whole through broken connections, and nothing wrong ever stay?"""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import re
import socket
import threading
from collections.abc import Callable, Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest

from parformer.errors import CorpusError
from parformer.store import download
from parformer.store.download import fetch

DATA = Random(1).randbytes(1_500_000)
OTHER = Random(2).randbytes(len(DATA))
SHA256 = hashlib.sha256(DATA).hexdigest()

Answer = Callable[["Handler", int], None]
"""Answers a request, given how many came before."""


class Handler(BaseHTTPRequestHandler):
    answer: Answer
    seen: list[Message]

    def do_GET(self) -> None:
        self.seen.append(self.headers)
        type(self).answer(self, len(self.seen) - 1)

    def log_message(self, *_: Any) -> None:
        pass

    def send(
        self,
        data: bytes,
        *,
        etag: str = '"1"',
        cut: int | None = None,
        ranges: bool = True,
        length: int | None = -1,
        modified: str = "",
    ) -> None:
        """What a good server sends, cut off after so many bytes."""
        asked = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range", "")
        start = 0
        if asked and ranges and condition in ("", etag, modified):
            start = int(asked[1])
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        if etag:
            self.send_header("ETag", etag)
        if modified:
            self.send_header("Last-Modified", modified)
        if length is not None:
            self.send_header("Content-Length", str(len(data) - start if length < 0 else length))
        self.end_headers()
        body = data[start:]
        self.wfile.write(body if cut is None else body[:cut])
        self.wfile.flush()
        self.close_connection = True


class Server:
    def __init__(self, answer: Answer) -> None:
        self.seen: list[Message] = []
        self.handler = type("Mine", (Handler,), {"answer": answer, "seen": self.seen})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self.http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.http.server_port}/data.bin"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def ranges(self) -> list[str | None]:
        return [headers["Range"] for headers in self.seen]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    servers: list[Server] = []

    def start(answer: Answer) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def get(server: Server | str, target: Path, **options: Any) -> Path:
    address = server if isinstance(server, str) else server.address
    options = {"size": len(DATA), "sha256": SHA256, "pause": 0.0, "timeout": 5.0} | options
    return fetch(address, target, **options)


def left(target: Path) -> list[str]:
    """What lies around beside the lock."""
    return sorted(p.name for p in target.parent.iterdir() if not p.name.endswith(".lock"))


def refused(server: Server | str, target: Path, **options: Any) -> str:
    with pytest.raises(CorpusError) as caught:
        get(server, target, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


Serve = Callable[[Answer], Server]


def test_a_file_arrives(serve: Serve, tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    server = serve(lambda self, n: self.send(DATA))
    target = tmp_path / "new" / "data.bin"
    assert get(server, target, progress=lambda *step: told.append(step)) == target
    assert target.read_bytes() == DATA
    assert left(target) == ["data.bin"]
    assert told[-1] == ("downloading data.bin", 1.0)
    assert [share for _, share in told] == sorted(share for _, share in told)


def test_what_is_there_is_not_fetched_again(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda self, n: self.send(DATA))
    target = tmp_path / "data.bin"
    target.write_bytes(DATA)
    get(server, target)
    assert server.seen == []


@pytest.mark.parametrize("there", [OTHER, DATA[:-1]], ids=["other bytes", "too short"])
def test_what_is_wrong_is_fetched_again(serve: Serve, tmp_path: Path, there: bytes) -> None:
    target = tmp_path / "data.bin"
    target.write_bytes(there)
    get(serve(lambda self, n: self.send(DATA)), target)
    assert target.read_bytes() == DATA


def test_broken_connections_are_taken_up_where_they_broke(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda self, n: self.send(DATA, cut=300_000))
    get(server, tmp_path / "data.bin", attempts=1)
    assert (tmp_path / "data.bin").read_bytes() == DATA
    assert server.ranges() == [None, *(f"bytes={n * 300_000}-" for n in range(1, 5))]
    assert {headers["If-Range"] for headers in server.seen[1:]} == {'"1"'}


def test_a_later_process_goes_on(serve: Serve, tmp_path: Path) -> None:
    def answer(self: Handler, n: int) -> None:
        self.send(DATA, cut=400_000 if n == 0 else 0 if n < 3 else None)

    server = serve(answer)
    said = refused(server, tmp_path / "data.bin", attempts=2)
    assert "broke at byte 400,000" in said
    assert "--from PATH" in said
    assert left(tmp_path / "data.bin") == ["data.bin.part", "data.bin.part.json"]
    get(server, tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == DATA
    assert server.ranges()[-1] == "bytes=400000-"
    assert left(tmp_path / "data.bin") == ["data.bin"]


def test_a_part_of_another_address_is_not_built_upon(serve: Serve, tmp_path: Path) -> None:
    first = serve(lambda self, n: self.send(OTHER, cut=1000 if n == 0 else 0))
    refused(first, tmp_path / "data.bin", attempts=1)
    second = serve(lambda self, n: self.send(DATA))
    get(second, tmp_path / "data.bin")
    assert second.ranges() == [None]


@pytest.mark.parametrize("note", ["", "{", "[]", '{"address": 1}', '{"who": 2}'])
def test_a_damaged_note_starts_over(serve: Serve, tmp_path: Path, note: str) -> None:
    (tmp_path / "data.bin.part").write_bytes(OTHER[:5000])
    (tmp_path / "data.bin.part.json").write_text(note)
    server = serve(lambda self, n: self.send(DATA))
    get(server, tmp_path / "data.bin")
    assert server.ranges() == [None]


def test_a_server_without_ranges_starts_over(serve: Serve, tmp_path: Path) -> None:
    def answer(self: Handler, n: int) -> None:
        self.send(DATA, ranges=False, cut=500_000 if n == 0 else None)

    server = serve(answer)
    get(server, tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == DATA
    assert server.ranges() == [None, "bytes=500000-"]


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_file_that_changes_meanwhile_starts_over(
    serve: Serve, tmp_path: Path, ranges: bool, sha256: str | None
) -> None:
    def answer(self: Handler, n: int) -> None:
        if n == 0:
            self.send(OTHER, etag='"old"', cut=500_000)
        else:
            self.send(DATA, etag='"new"', ranges=ranges)

    get(serve(answer), tmp_path / "data.bin", sha256=sha256)
    assert (tmp_path / "data.bin").read_bytes() == DATA


@pytest.mark.parametrize("tag", ["W/", ""], ids=["weak", "ignored"])
def test_a_changed_file_is_noticed_though_the_condition_is_not(
    serve: Serve, tmp_path: Path, tag: str
) -> None:
    """A weak tag cannot be asked for, and some servers do not look at conditions."""

    def answer(self: Handler, n: int) -> None:
        del self.headers["If-Range"]
        if n == 0:
            self.send(OTHER, etag=f'{tag}"old"', cut=500_000)
        else:
            self.send(DATA, etag=f'{tag}"new"')

    server = serve(answer)
    get(server, tmp_path / "data.bin", sha256=None)
    assert (tmp_path / "data.bin").read_bytes() == DATA
    assert server.ranges() == [None, "bytes=500000-", None]


def test_the_date_is_asked_for_where_there_is_no_tag(serve: Serve, tmp_path: Path) -> None:
    date = "Mon, 01 Jan 2024 00:00:00 GMT"

    def answer(self: Handler, n: int) -> None:
        self.send(DATA, etag="", modified=date, cut=None if n else 10)

    server = serve(answer)
    get(server, tmp_path / "data.bin")
    assert server.seen[1]["If-Range"] == date


def test_a_mixture_is_found_by_its_checksum_and_fetched_anew(serve: Serve, tmp_path: Path) -> None:
    def answer(self: Handler, n: int) -> None:
        self.send(OTHER if n == 0 else DATA, etag="", cut=500_000 if n == 0 else None)

    server = serve(answer)
    get(server, tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == DATA
    assert server.ranges() == [None, "bytes=500000-", None]


def test_a_finished_part_needs_no_more(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda self, n: self.send(DATA))
    get(server, tmp_path / "data.bin")
    (tmp_path / "data.bin").rename(tmp_path / "data.bin.part")
    note = {"address": server.address, "etag": '"1"', "total": len(DATA)}
    (tmp_path / "data.bin.part.json").write_text(json.dumps(note))
    get(server, tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == DATA
    assert server.ranges()[1:] == [f"bytes={len(DATA)}-"]


def test_a_part_that_is_too_long_starts_over(serve: Serve, tmp_path: Path) -> None:
    def answer(self: Handler, n: int) -> None:
        self.send(DATA, cut=1000 if n == 0 else None)
        with (tmp_path / "data.bin.part").open("ab") as part:
            part.write(bytes(len(DATA)) if n == 0 else b"")

    server = serve(answer)
    get(server, tmp_path / "data.bin", attempts=3)
    assert (tmp_path / "data.bin").read_bytes() == DATA


def test_wrong_bytes_are_refused_and_not_kept(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda self, n: self.send(OTHER))
    said = refused(server, tmp_path / "data.bin")
    assert hashlib.sha256(OTHER).hexdigest() in said
    assert SHA256 in said
    assert left(tmp_path / "data.bin") == []
    assert len(server.seen) == 1


def test_another_length_is_refused_before_it_is_read(serve: Serve, tmp_path: Path) -> None:
    said = refused(serve(lambda self, n: self.send(DATA + b"x")), tmp_path / "data.bin")
    assert "1,500,001 bytes, not 1,500,000" in said
    assert left(tmp_path / "data.bin") == []


def test_a_body_that_does_not_end_is_cut_short(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda self, n: self.send(DATA + OTHER, length=None))
    assert "more than its 1,500,000 bytes" in refused(server, tmp_path / "data.bin")
    assert left(tmp_path / "data.bin") == []


def test_a_short_body_without_a_length_is_not_taken_for_whole(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda self, n: self.send(DATA, length=None, cut=600_000))
    get(server, tmp_path / "data.bin", sha256=None)
    assert (tmp_path / "data.bin").read_bytes() == DATA
    assert len(server.seen) == 3


def test_a_file_of_unknown_length_is_taken_as_it_comes(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda self, n: self.send(DATA, length=None))
    get(server, tmp_path / "data.bin", sha256=None, size=None)
    assert (tmp_path / "data.bin").read_bytes() == DATA


@pytest.mark.parametrize("code", [404, 403, 410])
def test_a_missing_file_is_not_asked_for_twice(serve: Serve, tmp_path: Path, code: int) -> None:
    server = serve(lambda self, n: self.send_error(code))
    said = refused(server, tmp_path / "data.bin")
    assert f"the server answers {code}" in said
    assert server.address in said
    assert "--from PATH" in said
    assert len(server.seen) == 1


@pytest.mark.parametrize("code", [503, 500, 429])
def test_a_busy_server_is_asked_again(serve: Serve, tmp_path: Path, code: int) -> None:
    server = serve(lambda self, n: self.send(DATA) if n == 2 else self.send_error(code))
    get(server, tmp_path / "data.bin", attempts=3)
    assert (tmp_path / "data.bin").read_bytes() == DATA


def test_a_server_that_stays_busy_is_given_up(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda self, n: self.send_error(503))
    assert "answers 503" in refused(server, tmp_path / "data.bin", attempts=3)
    assert len(server.seen) == 3


def test_waiting_grows(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(download.time, "sleep", waited.append)
    server = serve(lambda self, n: self.send_error(503))
    refused(server, tmp_path / "data.bin", attempts=4, pause=8.0)
    assert waited == [8.0, 16.0, 30.0]


def redirect(place: str) -> Answer:
    def answer(self: Handler, n: int) -> None:
        self.send_response(302)
        self.send_header("Location", place)
        self.end_headers()

    return answer


def test_redirections_are_followed_and_taken_up(serve: Serve, tmp_path: Path) -> None:
    there = serve(lambda self, n: self.send(DATA, cut=800_000))
    here = serve(redirect(there.address))
    get(here, tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == DATA
    assert there.ranges() == [None, "bytes=800000-"]


def test_redirections_to_files_are_refused(serve: Serve, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(DATA)
    for place in (secret.as_uri(), "ftp://127.0.0.1/data.bin", "data:,text"):
        said = refused(serve(redirect(place)), tmp_path / "got" / "data.bin", size=None)
        assert place in said
        assert left(tmp_path / "got" / "data.bin") == []


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://x/y", "data.bin", "http://"])
def test_only_the_web_is_fetched(tmp_path: Path, address: str) -> None:
    assert "only http and https" in refused(address, tmp_path / "data.bin")


def test_a_refused_connection_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/data.bin"
        said = refused(address, tmp_path / "data.bin", pause=100.0)
    assert "Connection refused" in said
    assert "download it yourself and give --from PATH" in said


def test_no_network_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    said = refused("http://example.invalid/data.bin", tmp_path / "data.bin", pause=100.0)
    assert "Name or service not known" in said


def test_a_server_that_falls_silent_is_left(serve: Serve, tmp_path: Path) -> None:
    release = threading.Event()

    def answer(self: Handler, n: int) -> None:
        if n == 0:
            self.send_response(200)
            self.send_header("Content-Length", str(len(DATA)))
            self.end_headers()
            self.wfile.write(DATA[:100])
            release.wait(10)
        else:
            release.set()
            self.send(DATA)

    get(serve(answer), tmp_path / "data.bin", timeout=0.2)
    assert (tmp_path / "data.bin").read_bytes() == DATA


def test_a_full_disk_is_said(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, data: memoryview) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    real = Path.open

    def full(self: Path, mode: str = "r", **options: Any) -> Any:
        return Full() if self.suffix == ".part" and "a" in mode else real(self, mode, **options)

    monkeypatch.setattr(Path, "open", full)
    server = serve(lambda self, n: self.send(DATA))
    said = refused(server, tmp_path / "data.bin")
    assert "the disk is full" in said
    assert str(tmp_path / "data.bin") in said
    assert len(server.seen) == 1


def test_a_disk_that_takes_little_at_a_time_loses_nothing(tmp_path: Path) -> None:
    class Slow:
        taken = b""

        def write(self, data: memoryview) -> int:
            self.taken += bytes(data[:7])
            return len(data[:7])

    slow = Slow()
    part = download._Part(tmp_path / "data.bin", "http://x/y")
    part.append(slow, DATA[:100])  # type: ignore[arg-type]
    assert slow.taken == DATA[:100]


def test_a_folder_that_cannot_be_written_is_said(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    server = serve(lambda self, n: self.send(DATA))
    said = refused(server, tmp_path / "file" / "data.bin")
    assert "cannot write" in said
    assert "PARFORMER_CACHE" in said
    assert server.seen == []


def _fetch_in_a_process(address: str, target: str) -> None:
    get(address, Path(target), timeout=20.0)


def test_only_one_process_fetches(serve: Serve, tmp_path: Path) -> None:
    started, release = threading.Event(), threading.Event()

    def answer(self: Handler, n: int) -> None:
        started.set()
        release.wait(20)
        self.send(DATA)

    server = serve(answer)
    context = multiprocessing.get_context("forkserver")
    arguments = (server.address, str(tmp_path / "data.bin"))
    workers = [context.Process(target=_fetch_in_a_process, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    started.wait(20)
    workers[0].join(0.3)
    release.set()
    for worker in workers:
        worker.join(20)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(server.seen) == 1
    assert (tmp_path / "data.bin").read_bytes() == DATA
