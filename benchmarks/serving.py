"""How much more does a server write for many clients at once than for one after the other?

A model with random weights is served in this process; the clients are threads that ask over HTTP.
Each round has the same requests, of different lengths, one after the other and all at once, in an
order drawn anew; medians of tokens a second, and the ratio of each round. A late request's wait is
told in turns of the engine. `python benchmarks/serving.py` prints the table; `--rounds 1 --tokens
16` is a quick look. The machine should have nothing else to do.

What is wanted: at least four times as many tokens a second for 16 clients on 5 to 20 M parameters.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import parformer as pf
from parformer.data.characters import Bytes
from parformer.serve.request import ServeRequest, address, listen, open_services
from parformer.serve.running import Server

MODELS = {
    "llama": "(sf)x6",
    "recurrent": "(rfsf)x3",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {name: measure(name, arguments) for name in arguments.models}
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for name, figures in found.items():
        print(
            f"{name:10} {figures['parameters'] / 1e6:5.1f} M  one after the other "
            f"{figures['serial']:7.1f} tok/s  {arguments.clients} at once "
            f"{figures['together']:7.1f} tok/s  {figures['ratio']:.2f}x "
            f"({figures['least']:.2f} to {figures['most']:.2f})"
        )


def measure(name: str, arguments: argparse.Namespace) -> dict[str, float]:
    width = arguments.width
    config = pf.preset(
        "llama-pocket",
        pattern=MODELS[name],
        d_model=width,
        n_head=width // 64,
        n_kv_head=0,
        d_inner=width * 4,
        max_len=512,
    )
    serial, together = [], []
    with tempfile.TemporaryDirectory() as folder:
        pf.build(config).save(Path(folder) / "model", Bytes().to_json())
        request = ServeRequest(
            model=Path(folder) / "model", port=0, batch=arguments.clients, device="cpu"
        )
        services, listening = open_services(request), listen("127.0.0.1", 0)
        with listening, Server(services).beside(listening):
            url = f"{address(listening)}/v1/completions"
            rng = random.Random(0)
            for number in range(arguments.rounds + 1):
                ways = [("serial", 1), ("together", arguments.clients)]
                rng.shuffle(ways)
                for way, workers in ways:
                    speed = ask(url, arguments, workers)
                    if number:  # the first round warms up
                        (serial if way == "serial" else together).append(speed)
    ratios = [many / one for one, many in zip(serial, together, strict=True)]
    return {
        "parameters": pf.cost(config).parameters,
        "serial": statistics.median(serial),
        "together": statistics.median(together),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }


def ask(url: str, arguments: argparse.Namespace, workers: int) -> float:
    """Tokens a second over all requests."""

    def one(number: int) -> int:
        body = {
            "prompt": "def read(self):\n" * (1 + number % 4),
            "max_tokens": arguments.tokens // 2 + number * arguments.tokens // arguments.clients,
            "temperature": 0.8,
            "seed": number,
        }
        asked = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(asked, timeout=600) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"])

    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        tokens = sum(pool.map(one, range(arguments.clients)))
    return tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
