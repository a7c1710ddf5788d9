"""What does llama.cpp make of a GGUF file? Run as a process of its own: it may crash, and it talks.

Reads {"file", "prompts", "context", "threads"} from standard input; writes the log-probabilities of
the likeliest tokens after each prompt, and the seconds that a token takes.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

TOP = 8
"""Likeliest tokens that are told."""


def main() -> None:
    asked = json.load(sys.stdin)
    answer_to = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the library prints is not our answer
    os.dup2(1, 2)
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = asked["file"]
    params.n_ctx = asked["context"]
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.warmup = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked["threads"]
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    found = {"likeliest": [likeliest(server, prompt) for prompt in asked["prompts"]]}
    told = complete(server, asked["prompts"][0], asked["tokens"])
    found["seconds"] = told["timings"]["predicted_per_token_ms"] / 1e3
    with os.fdopen(answer_to, "w") as out:
        json.dump(found, out)
    os._exit(0)  # the library's threads are not waited for


def likeliest(server: Any, prompt: list[int]) -> dict[str, float]:
    """Log-probabilities; none where a token is but the beginning of a character."""
    told = (complete(server, prompt, 1)["choices"][0].get("logprobs") or {}).get("content", [])
    return {str(top["id"]): top["logprob"] for one in told[:1] for top in one["top_logprobs"]}


def complete(server: Any, prompt: list[int], tokens: int) -> Any:
    return server.handle_completions(
        {"prompt": prompt, "n_predict": tokens, "n_probs": TOP, "temperature": 0.0}
    )


if __name__ == "__main__":
    main()
