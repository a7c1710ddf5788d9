"""A small model that is served, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from parformer.data.characters import Bytes
from parformer.model import Model, build, load
from parformer.serve.request import ServeRequest, address, listen, open_services
from parformer.serve.running import Server
from parformer.serve.services import Services
from tests.conftest import lively, small_config


@dataclass
class Served:
    """Where a model is served, and its parts."""

    url: str
    services: Services

    @property
    def model(self) -> Model:
        return self.services.model

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=30, **more)


def write_model(path: Path, family: str = "llama", **changes: Any) -> Path:
    lively(build(small_config(family, vocab_size=256, **changes))).save(path, Bytes().to_json())
    return path


@contextmanager
def served(folder: Path, **given: Any) -> Iterator[Served]:
    request = ServeRequest(model=folder, port=0, device="cpu", **given)
    services = open_services(request)
    listening = listen(request.host, 0)
    with listening, Server(services).beside(listening):
        yield Served(address(listening), services)


def alone(folder: Path) -> Model:
    return load(folder)
