"""Does a server stand whatever is thrown at it, and keep out who may not ask?"""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from parformer.serve import guard, running
from parformer.serve.request import KEY
from tests.serve.serving import Served, served, write_model

COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "small", "gpt2", max_len=48)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with served(folder, max_tokens=40) as served_model:
        yield served_model


HELLO = [{"role": "user", "content": "Hello."}]
BAD: list[tuple[str, Any, str]] = [
    (COMPLETE, {}, "prompt is missing"),
    (COMPLETE, {"prompt": "x", "best": 3}, "unknown field 'best'; did you mean 'best_of'?"),
    (COMPLETE, {"prompt": "x", "n": 10**30}, "n is a whole number from 1 to 16"),
    (COMPLETE, {"prompt": "x", "n": True}, "n is a whole number from 1 to 16, got True"),
    (COMPLETE, {"prompt": "x", "max_tokens": 0}, "max_tokens is a whole number from 1 to 40"),
    (COMPLETE, {"prompt": "x", "max_tokens": 2**63}, "max_tokens is a whole number"),
    (COMPLETE, {"prompt": "x", "logprobs": 10**6}, "logprobs is a whole number from 0 to 20"),
    (COMPLETE, {"prompt": "x", "best_of": 10**9}, "best_of is a whole number from 1 to 16"),
    (COMPLETE, {"prompt": "x", "best_of": 4}, "best_of 4 is not supported beside n 1"),
    (COMPLETE, {"prompt": "x", "temperature": "hot"}, "temperature is a number from 0 to 2"),
    (COMPLETE, {"prompt": "x", "top_p": 0}, "top_p is a number from 1e-09 to 1"),
    (COMPLETE, {"prompt": "x", "stop": ["a"] * 99}, "stop holds 99 texts, 16 at most"),
    (COMPLETE, {"prompt": "x", "stop": ""}, "texts of 1 to 256 characters"),
    (COMPLETE, {"prompt": "x", "seed": 2**70}, "seed is a whole number"),
    (COMPLETE, {"prompt": "x", "stream": "yes"}, "stream is true or false"),
    (COMPLETE, {"prompt": "x", "suffix": "end"}, "suffix is not supported"),
    (COMPLETE, {"prompt": "x", "logit_bias": {"999": 1}}, "logit_bias holds 999, no token"),
    (COMPLETE, {"prompt": "x", "logit_bias": {"a": 1}}, "no token of 0 … 255"),
    (COMPLETE, {"prompt": "x", "stream_options": {"x": 1}}, "include_usage alone"),
    (COMPLETE, {"prompt": "x" * 60}, "60 tokens, the model's window 48; shorten it"),
    (COMPLETE, {"prompt": "x" * 40, "max_tokens": 20}, "exceed the model's window of 48"),
    (COMPLETE, {"prompt": [300]}, "prompt holds 300, no token of 0 … 255"),
    (COMPLETE, {"prompt": [[-1]]}, "prompt holds -1, no token"),
    (COMPLETE, {"prompt": ["x"] * 65}, "65 texts, 1 to 64 are possible"),
    (COMPLETE, {"prompt": ["x"] * 40, "n": 2}, "n × prompts is 80, 64 at most"),
    (COMPLETE, {"prompt": []}, "0 texts"),
    (COMPLETE, {"prompt": {"a": 1}}, "prompt must be a text, got an object"),
    (COMPLETE, {"prompt": "\ud800"}, "half of a surrogate pair"),
    (CHAT, {"messages": []}, "messages is a list of 1 to 1024"),
    (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "role is one of system"),
    (CHAT, {"messages": ["x"]}, "role is one of"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "file:"}]}]},
        "content is text here, got 'image_url'",
    ),
    (CHAT, {"messages": HELLO, "tools": [{}]}, "tools is not supported"),
    (CHAT, {"messages": HELLO, "top_logprobs": 3}, "top_logprobs needs logprobs"),
    (CHAT, {"messages": HELLO, "response_format": {"type": "json"}}, "response_format is text"),
    ("/tokenize", {"text": 3}, "text must be a text, got a number"),
    ("/detokenize", {"tokens": ["x"]}, "tokens holds 'x', no token"),
    ("/detokenize", {"tokens": 3}, "tokens is a list"),
]


@pytest.mark.parametrize(("path", "body", "says"), BAD, ids=[says for _, _, says in BAD])
def test_bad_requests_are_told_what_is_wrong(
    server: Served, path: str, body: Any, says: str
) -> None:
    raw = json.dumps(body).encode()
    answer = httpx.post(server.url + path, content=raw)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert says in message
    assert "\n" not in message


def test_addresses_that_are_not_here(server: Served) -> None:
    for path in ("/v1/responses", "/..%2f..%2fetc/passwd", "/v1/models/%00"):
        answer = httpx.get(server.url + path)
        assert answer.status_code == 404
        assert answer.json()["error"]["message"]
    assert httpx.get(f"{server.url}/v1/completions").status_code == 405


# Anything at all


def nonsense(random: Random) -> tuple[str, bytes]:
    """An address and a body, of which hardly any is right."""
    path, body, _ = random.choice(BAD)
    values: list[Any] = [
        *(None, True, -1, 0, 10**400, 1e308, "", "x" * 10_000, [], {}, [[]], {"a": {}}),
        *(["x"] * 100, "\ud83d", "\x00", 0.5, [1, "x"], {"type": "text"}),
    ]
    for _ in range(random.randrange(3)):
        name = random.choice([*body, "n", "stop", "max_tokens", "prompt", "messages", "logprobs"])
        body = body | {name: random.choice(values)}
    raw = json.dumps(body).encode()
    way = random.randrange(6)
    if way == 0:
        raw = raw[: random.randrange(len(raw))]
    elif way == 1:
        at = random.randrange(len(raw))
        raw = raw[:at] + random.randbytes(random.randrange(1, 9)) + raw[at:]
    elif way == 2:
        raw = b"[" * random.choice([10, 100_000]) + raw
    elif way == 3:
        raw = raw.replace(b":", b": NaN,", 1)
    return random.choice([path, COMPLETE, CHAT, "/tokenize", "/nowhere"]), raw


def throw(server: Served, times: int, seed: int) -> None:
    random = Random(seed)
    with httpx.Client(timeout=30) as client:
        for _ in range(times):
            path, raw = nonsense(random)
            answer = client.post(server.url + path, content=raw)
            assert answer.status_code == 200 or 400 <= answer.status_code < 500, (path, raw[:200])
            if answer.status_code != 200:
                assert answer.json()["error"]["message"]
    assert server.services.engine.idle
    assert httpx.get(f"{server.url}/health").status_code == 200


def cut_off(server: Served, random: Random) -> None:
    """A connection that ends, or says something else than HTTP."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        whole = (
            f"POST {COMPLETE} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 90\r\n\r\n"
            + json.dumps({"prompt": "x", "max_tokens": 40})
        ).encode()
        raw = random.choice(
            [
                whole[: random.randrange(len(whole))],
                random.randbytes(200),
                b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000,
                b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
            ]
        )
        connection.sendall(raw)


def test_nonsense_never_breaks_the_server(server: Served) -> None:
    throw(server, 60, seed=0)
    random = Random(1)
    for _ in range(25):
        cut_off(server, random)
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.soak
def test_a_thousand_bad_requests_break_nothing(server: Served) -> None:
    throw(server, 100, seed=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    throw(server, 1000, seed=3)
    random = Random(4)
    for _ in range(300):
        cut_off(server, random)
    assert httpx.get(f"{server.url}/health").status_code == 200
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after < before + 64 * 1024  # kB


def test_a_body_is_bounded_in_size_and_time(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = httpx.post(server.url + COMPLETE, content=b"x" * (guard.MAX_BODY + 1))
    assert large.status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(5000):
            yield b"x" * 2**10

    assert httpx.post(server.url + COMPLETE, content=pieces()).status_code == 413
    monkeypatch.setattr(guard.read_body, "__defaults__", (guard.MAX_BODY, 0.2))
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            f"POST {COMPLETE} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 90\r\n\r\n".encode()
        )
        assert b"408" in connection.recv(4096)


def test_a_connection_without_a_request_is_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.Impatient, "seconds", 0.2)
    with served(folder) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHos")
            assert connection.recv(100) == b""


# Who may ask


def ask(server: Served, path: str = "/v1/models", **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.get(server.url + path, headers=named).status_code


def test_other_hosts_and_origins_are_refused(server: Served) -> None:
    own = server.url.removeprefix("http://")
    assert ask(server, host="localhost:1") == ask(server, host="[::1]:80") == 200
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", ""):
        assert ask(server, host=host) == 403, host
    assert ask(server, origin=server.url) == 200
    for origin in ("http://evil.example", "null", "http://localhost:1", f"http://x@{own}"):
        assert ask(server, origin=origin) == 403, origin
        assert ask(server, "/", origin=origin) == 403
        assert ask(server, "/health", origin=origin) == 403


def test_hosts_can_be_allowed_and_keys_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "sesame")
    with served(folder, allow_host=("models.example",)) as server:
        right = {"authorization": "Bearer sesame"}
        assert ask(server, host="models.example", **right) == 200
        for wrong in ("", "sesame", "Bearer sesam", "Bearer sesamee", "Basic sesame", "Bearer ü"):
            assert httpx.get(
                f"{server.url}/v1/models", headers={"authorization": wrong.encode()}
            ).status_code == (401)
        assert ask(server, "/metrics") == 401
        assert ask(server, "/health") == ask(server, "/") == 200


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = guard.hmac.compare_digest
    monkeypatch.setattr(
        guard.hmac, "compare_digest", lambda a, b: (compared.append((a, b)), real(a, b))[1]
    )
    keeper = guard.Guard(None, refuse=None, figures=None, key="sesame")  # type: ignore[arg-type]
    keeper.check_key(b"Bearer sesame")
    assert compared == [(b"sesame", b"sesame")]


def test_ctrl_c_drains_and_leaves_in_peace(folder: Path) -> None:
    command = [sys.executable, "-m", "parformer", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.split(" at ")[1].split(";")[0]
        body = {"prompt": "x", "max_tokens": 40, "stream": True}
        with httpx.stream("POST", url + COMPLETE, json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            assert [one for one in lines if one][-1] == "data: [DONE]"
        began = time.monotonic()
        assert process.wait(20) == 0
        assert time.monotonic() - began < 10
        assert process.stderr is not None
        said = process.stderr.read().splitlines()
        assert [line for line in said if "building the" not in line] == []
