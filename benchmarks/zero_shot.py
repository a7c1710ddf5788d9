"""How fast are questions of several choices scored, beside lm-eval's own `hf` model?

    python benchmarks/zero_shot.py TASK FOLDER [--questions 100] [--rounds 3]

TASK is a task of lm-eval's whose rows are FOLDER/TASK/validation.jsonl, hellaswag for one. A Llama
with lively weights is exported as one; Parformer and transformers then answer the same questions
through lm-eval, in turns, in this process. What must come out: the same choices, log-likelihoods
equal to the last digits that fp32 has, and at least twice the speed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from inference import table

import parformer as pf
from parformer.data.characters import Bytes
from parformer.evaluate.harness import find_tasks, make_judged, quietly
from parformer.measure import Receipt

WIDTH, LAYERS, WINDOW = 256, 6, 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("task")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="of transformers (default 16)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shots", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    model = lively_model()
    with tempfile.TemporaryDirectory() as folder:
        judges = {
            "Parformer": make_judged(model, Bytes(), None),
            "transformers": hugging_face(model, Path(folder), asked.batch),
        }
        compare(judges, asked)


def lively_model() -> pf.Model:
    """Weights that are all at work: first weights would leave every block without a say."""
    sizes = {"d_model": WIDTH, "n_head": 4, "d_inner": 3 * WIDTH, "max_len": WINDOW}
    model = pf.build(pf.preset("llama-pocket", pattern=f"(sf)x{LAYERS}", **sizes), seed=1).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 1.5 * parameter.shape[1] ** -0.5, generator=generator)
    return model


def hugging_face(model: pf.Model, folder: Path, batch: int) -> Any:
    from lm_eval.models.huggingface import HFLM

    run = folder / "model"
    model.save(run, Bytes().to_json())
    out = folder / "hub"
    pf.export(model=run, hub=out)
    with quietly():
        return HFLM(
            pretrained=str(out),
            device="cpu",
            dtype="float32",
            batch_size=batch,
            max_length=WINDOW,
            prefix_token_id=10,  # bytes have no token of their own for it
        )


def compare(judges: dict[str, Any], asked: argparse.Namespace) -> None:
    import lm_eval

    seconds: dict[str, list[float]] = {name: [] for name in judges}
    answers: dict[str, list[float]] = {}
    for round_ in range(asked.rounds):
        for name in sorted(judges, reverse=round_ % 2 == 1):
            wanted, manager = find_tasks([asked.task], str(asked.folder))
            with quietly():
                began = time.perf_counter()
                told = lm_eval.simple_evaluate(
                    model=judges[name],
                    tasks=wanted,
                    num_fewshot=asked.shots,
                    task_manager=manager,
                    limit=asked.questions,
                    bootstrap_iters=0,
                    log_samples=True,
                )
                seconds[name].append(time.perf_counter() - began)
            rows = [row for some in told["samples"].values() for row in some]
            answers[name] = [float(one[0][0]) for row in rows for one in row["resps"]]
            print(f"round {round_ + 1}, {name}: {seconds[name][-1]:.1f} s", flush=True)
    ours, theirs = answers["Parformer"], answers["transformers"]
    apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    ratios = [b / a for a, b in zip(*seconds.values(), strict=True)]
    rows = [[name, f"{statistics.median(some):.1f} s"] for name, some in seconds.items()]
    print(*table(["", f"{asked.questions} questions"], rows), sep="\n")
    print(
        f"Parformer is {statistics.median(ratios):.2f}× as fast ({min(ratios):.2f} to "
        f"{max(ratios):.2f}); log-likelihoods around {statistics.mean(theirs):.0f} differ by at "
        f"most {apart:.1e}\n{Receipt.issue('zero-shot').line()}"
    )


if __name__ == "__main__":
    main()
