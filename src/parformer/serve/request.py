"""What can one say of a server, and how is it started and stopped?"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer.errors import ConfigError, need
from parformer.events import Listener, Watch, nobody
from parformer.fields import need_at_least
from parformer.verbs import requested

if TYPE_CHECKING:
    from parformer.serve.services import Services

KEY = "PARFORMER_API_KEY"
"""The variable of the environment that an API key is taken from."""


@dataclass(frozen=True, kw_only=True)
class ServeRequest:
    """A trained model, and how it is served."""

    model: Path
    """Folder of a run or of a model."""
    host: str = "127.0.0.1"
    """Address to listen at; others than this machine's own reach no loopback address."""
    port: int = 8000
    """To listen at; 0 takes one that is free."""
    name: str = ""
    """What clients call the model; the folder's name unless given."""
    batch: int = 16
    """Texts that are written side by side at most."""
    queue: int = 64
    """Requests that may wait; more are told to come back."""
    max_tokens: int = 4096
    """That one answer may have."""
    timeout: float = 300.0
    """Seconds that an answer may take."""
    allow_host: tuple[str, ...] = ()
    """A name that this server may be asked by, beside addresses and localhost; may be repeated."""
    device: str = "auto"
    """Such as cpu or cuda:0."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ConfigError(f"port is a number from 0 to 65535, got {self.port}")
        for name, least in (("batch", 1), ("queue", 1), ("max_tokens", 1)):
            need_at_least(name, getattr(self, name), least)
        if not 0 < self.timeout < 1e6:
            raise ConfigError(f"timeout must be above 0 seconds, got {self.timeout:g}")


def serve(request: ServeRequest | None = None, *, watch: Listener = nobody, **given: Any) -> None:
    """Serve a trained model over HTTP until it is stopped; `watch` hears where it listens."""
    asked = requested(ServeRequest, request, given)
    need("uvicorn", extra="serve")
    from parformer.serve.running import Server

    services = open_services(asked)
    with listen(asked.host, asked.port) as listening, contextlib.suppress(KeyboardInterrupt):
        Watch(watch).notice(f"serving {services.name} at {address(listening)}")
        Server(services).run(listening)


def open_services(asked: ServeRequest) -> Services:
    """The model, ready to be asked."""
    from parformer.measure.device import find_device
    from parformer.model import load
    from parformer.predict.telling import open_teller
    from parformer.serve.engine import Engine
    from parformer.serve.services import Services
    from parformer.train.run import open_run

    folder = Path(asked.model)
    opened = open_run(folder)
    tokenizer = opened.need_tokenizer()
    device = find_device(asked.device)
    model, teller = load(opened.folder, device=device), None
    if model.config.label_head != "none":
        teller = open_teller(folder, device, tokens=4096)
        model = teller.model
    if tokenizer.size > model.config.vocab_size:
        raise ConfigError(
            f"the tokenizer in {str(folder)!r} has {tokenizer.size:,} tokens, the model "
            f"{model.config.vocab_size:,}; they belong to different models"
        )
    return Services(
        model=model,
        tokenizer=tokenizer,
        engine=Engine(model, tokenizer, batch=asked.batch, queue=asked.queue),
        name=asked.name or folder.resolve().name,
        most=asked.max_tokens,
        timeout=asked.timeout,
        hosts=asked.allow_host,
        teller=teller,
        lower=opened.recipe is not None and opened.recipe.data.lower,
        source_words=0 if opened.recipe is None else opened.recipe.data.source_words,
        key=os.environ.get(KEY, ""),
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, or one line that says why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, UnicodeError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen at {host}:{port}: {why}; choose another --port or --host"
        ) from None
    return listening


def address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
