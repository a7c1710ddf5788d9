"""The report of a fit says what was found, and nothing more than that."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from test_search import sample as search_sample

from parformer.pattern import Pattern


def sample(**changes: Any) -> dict[str, Any]:
    """What a fit writes, made up but coherent; changes replace whole entries."""
    rng = Random(7)
    baseline = _model(
        "baseline", "(sf)x6", 1.520, 0.0039, title="Interleaved Transformer",
        how="attention and feed-forward in turn, all alike; sized for the time there is",
        eligible=False, broken={"latency": 0.0039}, against=None, memory=7_000_000, rng=rng,
    )  # fmt: skip
    models = [
        baseline,
        _model(
            "par", "(sfff)x2 (f)x4", 1.549, 0.00292, title="PAR’s rule", rng=rng,
            how="attention in the first two thirds only, every fourth block",
            against=_against(0.019, 0.008, 0.030, "worse"), memory=5_600_000,
        ),
        _model(
            "found", "sfsffsffffff", 1.529, 0.00271, title="Found by search", rng=rng,
            how="blocks placed by the differentiable search",
            against=_against(0.006, -0.002, 0.0094, "at par"), memory=5_700_000,
        ),
        _model(
            "found-sized", "s[heads=2]f[inner=448]s[heads=4]f[inner=640]f[inner=512]s[heads=2]"
            "f[inner=768]f[inner=512]f[inner=512]f[inner=384]", 1.541, 0.00252, rng=rng,
            title="Found, sizes searched", how="the found placement, every block its own size",
            against=_against(0.0138, 0.004, 0.0236, "unclear"), memory=5_100_000,
        ),
        _model(
            "recurrent", "(rf)x6", 1.83, 0.0033, title="Recurrence only", rng=rng, steps=600,
            how="SRU in place of attention", eligible=False, broken={"latency": 0.0033},
            dropped={"step": 200, "loss": 1.98, "why": "6.1% behind the best after a third"},
        ),
    ]  # fmt: skip
    return {
        "format": "parformer-fit-1",
        "corpus": "python-source",
        "tokenizer": "byte",
        "unit": "bits",
        "unit_words": "bits per byte",
        "command": "parformer fit python-source --time 6m --limit latency=0.8x",
        "version": "0.1.0",
        "date": "2026-11-16",
        "finished": True,
        "asked": {
            "limits": ["latency=0.8x"], "time": 360.0, "margin": 0.01,
            "family": "transformer-xl", "choices": "rsfi", "seed": 0,
        },
        "step": {
            "tgt_len": 128, "mem_len": 128, "batch": 1, "threads": 1, "precision": "fp32",
            "words": "128 tokens after 128, batch 1, fp32",
        },
        "limits": {"latency": 0.00312},
        "text": {"bytes": 12_000_000, "tokens": 10_800_000, "vocabulary": 256},
        "phases": [
            _phase("read", "read and tokenize", 6.0, 4.8),
            _phase("profile", "profile this device", 30.0, 28.1,
                   "shrunk: 8 whole models instead of 24"),
            _phase("search", "search where attention is required", 60.0, 58.7),
            _phase("pareto", "search sizes under the limits", 20.0, 18.0),
            _phase("sweep", "find learning rates", 40.0, 41.3),
            _phase("train", "train the finalists alike", 110.0, 108.2),
            _phase("seeds", "train with more seeds", 0.0, None, "left out: 6 min are too short"),
            _phase("final", "train the winner on", 70.0, 71.5),
            _phase("measure", "measure all of them", 20.0, 19.6),
        ],
        "models": models,
        "baseline": "baseline",
        "chosen": "found",
        "final": {
            "folder": "model", "steps": 1900, "seconds": 71.5, "retrained": False,
            "valid": {"loss": 1.402, "tokens": 65_535}, "test": {"loss": 1.391, "tokens": 200_000},
            "latency": models[2]["latency"], "memory": 5_700_000,
        },
        "verdict": {
            "kind": "at par",
            "headline": "At par with the interleaved Transformer, and 31% faster.",
            "sentences": [
                "Attention in 3 of 12 blocks is enough: the loss is 0.6% higher (−0.2% to +0.9%), "
                "within the margin of 1%, and a step takes 2.71 ms instead of 3.9 ms.",
                "It also needs 19% less memory at its peak and half the state.",
            ],
        },
        "samples": [
            {"name": "baseline", "prompt": "def read(",
             "text": 'self, size=-1):\n        """Return the <b>next</b> line."""\n'
                     "        if self.closed:\n            raise ValueError('I/O on closed file')\n"
                     "        return self._read(size)\n"},
            {"name": "final", "prompt": "def read(",
             "text": "self, path, mode='r', encoding=None):\n"
                     "        with open(path, mode) as file:\n"
                     "            for line in file:\n                yield line.rstrip()\n\n"
                     "    def _close(self):\n        self.file.close()\n"},
        ],
        "search": search_sample(12, picks=[[0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1]] * 2),
        "pareto": _pareto(rng),
        "profile": {"seconds": 28.1, "median_error": 0.03, "p90_error": 0.08},
        "energy": {
            "seconds": 351.0, "watts": 30.0, "kwh": 0.002925, "co2_kg": 0.00117,
            "money": 0.00088, "currency": "EUR", "grid": 0.4, "price": 0.3,
            "source": "15 W for each of 2 busy cores",
        },
        "receipt": {
            "what": "a step of 128 tokens after 128, batch 1, fp32", "date": "2026-11-16T20:11:05Z",
            "parformer": "0.1.0", "torch": "2.13.0+cpu", "threads": 1,
            "device": {"cpu": "AMD EPYC 9R14"},
        },
        "device": {
            "cpu": "AMD EPYC 9R14", "cores": 2, "threads": 1, "torch": "2.13.0+cpu",
            "ram_bytes": 8_000_000_000,
        },
        "repeat": [
            "parformer train config.toml --run again",
            "parformer evaluate model --corpus python-source",
            "parformer generate model --prompt 'def read('",
        ],
        "warnings": [],
    } | changes  # fmt: skip


def _phase(
    name: str, title: str, planned: float, seconds: float | None, note: str = ""
) -> dict[str, Any]:
    return {"name": name, "title": title, "planned": planned, "seconds": seconds, "note": note}


def _against(difference: float, low: float, high: float, verdict: str) -> dict[str, Any]:
    ends = {"difference": difference, "low": low, "high": high}
    return ends | {"seeds": 2, "segments": 128, "verdict": verdict}


def _model(
    name: str, pattern: str, loss: float, time: float, *, rng: Random, steps: int = 600,
    against: Any = None, dropped: Any = None, memory: int | None = None, **changes: Any
) -> dict[str, Any]:  # fmt: skip
    ratio = time / 0.0039
    done = 200 if dropped else steps
    at = [(step, loss + 2.6 * math.exp(-step / 75) + 0.09 * (1 - step / 600))
          for step in range(10, done + 1, 10)]  # fmt: skip
    blocks = Pattern.parse(pattern)
    count = 66_000 + 68_000 * blocks.count("s") + 132_000 * blocks.count("f")
    return {
        "name": name,
        "pattern": pattern,
        "d_model": 128,
        "eligible": True,
        "broken": None,
        "parameters": count,
        "decoder_parameters": count - 66_000,
        "flops": 280_000_000,
        "state_bytes": 262_144 * blocks.count("s") + 512 * blocks.count("r"),
        "latency": {
            "seconds": time, "low": time * 0.985, "high": time * 1.02,
            "ratio": ratio, "ratio_low": ratio * 0.98, "ratio_high": ratio * 1.03,
            "verdict": "tie" if abs(ratio - 1) < 0.03 else "faster" if ratio < 1 else "slower",
        },
        "memory": memory,
        "rates": [
            {"rate": 0.001, "loss": loss + 0.62}, {"rate": 0.002, "loss": loss + 0.55},
            {"rate": 0.004, "loss": loss + 0.58 if name != "par" else None},
        ],
        "rate": 0.002,
        "steps": steps,
        "dropped": dropped,
        "valid": None if dropped else {"loss": loss, "tokens": 65_535},
        "test": None if dropped else {"loss": loss - 0.021, "tokens": 200_000},
        "against": against,
        "curve": [[step, y + rng.gauss(0, 0.03)] for step, y in at],
        "valid_curve": [[step, y] for step, y in at if step % 100 == 0],
        "seconds": 41.2 if not dropped else 13.0,
    } | changes  # fmt: skip


def _pareto(rng: Random) -> dict[str, Any]:
    visited, front = {}, {}
    for name, cost in (("par", 2.3), ("found", 2.05)):
        sizes = [rng.uniform(3e5, 1.35e6) for _ in range(220)]
        times = [x * cost * 1e-9 * rng.uniform(0.95, 1.5) for x in sizes]
        bytes_ = [2.8e6 + 2.9 * x for x in sizes]
        visited[name] = {"quality": sizes, "latency": times, "memory": bytes_}
        rows = sorted(zip(times, sizes, bytes_, strict=True))
        best = [row for row in rows if not any(o[0] < row[0] and o[1] > row[1] for o in rows)]
        front[name] = [{"quality": y, "latency": x, "memory": z} for x, y, z in best]
    return {"objectives": ["quality", "latency", "memory"], "visited": visited, "front": front}
