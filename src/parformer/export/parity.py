"""Does what was exported compute what the model computes, and how fast?

Texts of several lengths, one and three at a time, in one piece and token by token: numbers within
1e-4, and the same 200 greedy tokens. A difference is an error, not a warning.
"""

# b batch, t time, v vocabulary

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parformer.errors import FolderError
from parformer.evaluate.perplexity import at_rest
from parformer.export.run import Runner
from parformer.generate.writing import Sampling, generate
from parformer.measure.latency import measure_latency
from parformer.model import Model
from parformer.native.program import NoForm
from parformer.state import State
from parformer.store.files import Json

CLOSE = 1e-4
GREEDY = 200
LONGEST = 96


class Differs(FolderError):
    """An export that does not compute what its model computes; nothing is written."""


def check_onnx(model: Model, runner: Runner) -> Json:
    """Refuse graphs that give other numbers; the largest difference, and what was compared."""
    kind = runner.told["kind"]
    with at_rest(model):
        if kind == "encoder":
            return check_reader(model, runner)
        if kind == "translator":
            return check_translator(model, runner)
        return check_decoder(model, runner)


def texts(model: Model, batch: int, time: int, size: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch * 1000 + time)
    size = size or model.config.vocab_size
    tokens = torch.randint(size, (batch, time), generator=generator)
    return torch.where(tokens == model.config.pad, (tokens + 1) % size, tokens)


def lengths_of(model: Model, limit: int = 0) -> tuple[int, ...]:
    """Lengths {1, middle, longest}."""
    longest = min(LONGEST, limit or LONGEST)
    return tuple(sorted({1, max(1, longest // 2), longest}))


def check_decoder(model: Model, runner: Runner) -> Json:
    worst, compared = 0.0, []
    for batch in (1, 3):
        for time in lengths_of(model, runner.told["window"]):
            tokens = texts(model, batch, time)
            for pieces in ([time], [1] * time, [time // 3, time - time // 3]):
                if 0 in pieces:
                    continue
                ours = in_pieces(model, tokens, pieces, runner.told["memory"])
                theirs = run_pieces(runner, tokens, pieces)
                what = f"a batch of {batch} × {time} tokens in {len(pieces)} pieces"
                worst = max(worst, difference(ours, theirs, what))
                compared.append(what)
    count = check_greedy(model, runner)
    return {"largest_difference": worst, "compared": compared, "greedy_tokens_equal": count}


def in_pieces(model: Model, tokens: torch.Tensor, pieces: list[int], memory: int) -> NDArray[Any]:
    state: State | None = model.initial_state(len(tokens), memory)
    found = []
    for piece in torch.split(tokens, pieces, dim=1):
        out = model(piece, state)
        assert out.logits is not None
        found.append(out.logits)
        state = out.state
    return torch.cat(found, dim=1).float().numpy()


def run_pieces(runner: Runner, tokens: torch.Tensor, pieces: list[int]) -> NDArray[Any]:
    state, found = runner.start(len(tokens)), []
    for piece in torch.split(tokens, pieces, dim=1):
        logits, state = runner.step(piece.numpy(), state)
        found.append(logits)
    return np.concatenate(found, 1)


def check_greedy(model: Model, runner: Runner) -> int:
    """How many greedy tokens are the same: all, or nearly equal chances decided otherwise."""
    prompt = texts(model, 1, 4)[0].tolist()
    greedy = Sampling(temperature=0)
    size = runner.told["size"]
    (ours,) = generate(model, [prompt], GREEDY, sampling=greedy, size=size)
    theirs = runner.generate(prompt, GREEDY, temperature=0)
    if ours != theirs:
        at = next(n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        raise Differs(
            f"the exported model writes {theirs[at]} where the model writes {ours[at]}, after {at} "
            "equal tokens; nothing was written"
        )
    return len(ours)


def check_reader(model: Model, runner: Runner) -> Json:
    worst, compared = 0.0, []
    for batch in (1, 3):
        for time in lengths_of(model, model.config.max_len):
            tokens = texts(model, batch, time)
            present = torch.arange(time) < torch.arange(time, time - batch, -1)[:, None].clamp(1)
            out = model(tokens, padding=None if bool(present.all()) else present)
            told = runner.look(tokens.numpy(), present.long().numpy())
            what = f"a batch of {batch} × {time} tokens"
            for name, ours in (("last_hidden_state", out.hidden), ("logits", out.logits)):
                if ours is not None:
                    where = present.numpy()
                    found = difference(ours.float().numpy()[where], told[name][where], what)
                    worst = max(worst, found)
            ends = {"pooler_output": out.pooled, "pair_logits": out.pair_logits}
            if model.config.label_head != "span":
                ends["label_logits"] = out.label_logits
            for name, ours in ends.items():
                if ours is not None:
                    worst = max(worst, difference(ours.float().numpy(), told[name], what))
            compared.append(what)
    return {"largest_difference": worst, "compared": compared}


def check_translator(model: Model, runner: Runner) -> Json:
    worst, compared = 0.0, []
    limit = model.config.max_len if model.config.numbered else 0
    size = model.config.source_words.vocab_size
    for batch in (1, 3):
        for time in lengths_of(model, limit):
            source, tokens = texts(model, batch, time, size), texts(model, batch, time)
            present = torch.ones(source.shape, dtype=torch.long)
            read = runner.run(
                "encoder", {"input_ids": source.numpy(), "attention_mask": present.numpy()}
            )
            begun = {name.removeprefix("present."): value for name, value in read.items()}
            for pieces in ([time], [1] * time):
                encoded = model.encode(source, present > 0)
                state: State | None = model.initial_state(batch, 2**31)
                own, theirs, given = [], [], runner.start(batch) | begun
                given["source"] = present.numpy()
                for piece in torch.split(tokens, pieces, dim=1):
                    out = model(piece, state, source=encoded)
                    state, encoded = out.state, None  # type: ignore[assignment]
                    logits, given = runner.step(piece.numpy(), given)
                    own.append(out.logits.float().numpy())
                    theirs.append(logits)
                what = f"a batch of {batch} × {time} tokens in {len(pieces)} pieces"
                both = np.concatenate(own, 1), np.concatenate(theirs, 1)
                worst = max(worst, difference(*both, what))
                compared.append(what)
    return {"largest_difference": worst, "compared": compared}


def difference(ours: NDArray[Any], theirs: NDArray[Any], what: str) -> float:
    """The largest, relative to numbers above one."""
    if ours.shape != theirs.shape:
        raise Differs(f"the exported model gives {theirs.shape} for {what}, not {ours.shape}")
    found = float((np.abs(ours - theirs) / np.maximum(1, np.abs(ours))).max(initial=0))
    if not found <= CLOSE:
        raise Differs(
            f"the exported model's numbers differ by {found:.2g} for {what}; nothing was written"
        )
    return found


def moved(model: Model, exact: Runner, rounded: Runner) -> float:
    """How far apart two runners' numbers are on average, of how much they spread."""
    time = min(LONGEST, exact.told["window"] or LONGEST, model.config.max_len or LONGEST)
    tokens = texts(model, 2, time)
    kind, answers = exact.told["kind"], []
    for runner in (exact, rounded):
        if kind == "encoder":
            answers.append(runner.look(tokens.numpy())["last_hidden_state"])
            continue
        begun = runner.start(len(tokens))
        if kind == "translator":
            source = texts(model, 2, time, model.config.source_words.vocab_size).numpy()
            mask = np.ones(source.shape, np.int64)
            read = runner.run("encoder", {"input_ids": source, "attention_mask": mask})
            begun |= {name.removeprefix("present."): value for name, value in read.items()}
            begun["source"] = mask
        answers.append(runner.step(tokens.numpy(), begun)[0])
    return float(np.abs(answers[0] - answers[1]).mean() / max(answers[0].std(), 1e-9))


def time_onnx(model: Model, folder: str | Path, rounds: int = 12) -> Json:
    """Seconds of a step, in onnxruntime and in Parformer, with one thread and with two."""
    found: dict[str, Any] = {}
    for threads in (1, 2):
        runner = Runner(folder, threads)
        works = steps_of(model, runner)
        with at_rest(model):
            measured = measure_latency(works, rounds=rounds, threads=threads, what="a step")
        times = {timing.name: timing.median for timing in measured.timings}
        times["ratio"] = measured.ratio("onnxruntime", "parformer")
        found[f"{threads} thread{'s' * (threads > 1)}"] = times
    found["receipt"] = measured.receipt.to_dict()
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def steps_of(model: Model, runner: Runner) -> dict[str, Callable[[], object]]:
    """The same step both ways: a token after 64 others, or a text of 64."""
    time = min(64, (runner.told["window"] or 65) - 1, model.config.max_len or 64)
    tokens = texts(model, 1, max(time, 1))
    plain = tokens.numpy()
    if runner.told["kind"] == "encoder":
        return {"parformer": lambda: model(tokens), "onnxruntime": lambda: runner.look(plain)}
    begun, source = runner.start(1), None
    if runner.told["kind"] == "translator":
        source = texts(model, 1, max(time, 1), model.config.source_words.vocab_size)
        mask = np.ones(source.shape, np.int64)
        read = runner.run("encoder", {"input_ids": source.numpy(), "attention_mask": mask})
        begun |= {name.removeprefix("present."): value for name, value in read.items()}
        begun["source"] = mask
    with at_rest(model):
        first = model.initial_state(1, min(runner.told["memory"], 2**20))
        state = model(tokens, first, source=source).state
    _, given = runner.step(plain, begun)
    works: dict[str, Callable[[], object]] = {
        "parformer": lambda: model(tokens[:, :1], state, last_only=True),
        "onnxruntime": lambda: runner.step(plain[:, :1], given),
    }
    written = native_step(model, tokens) if source is None else None
    return works if written is None else {**works, NATIVE: written}


NATIVE = "parformer, native"
AGAIN = 64
"""Tokens after which a text that is only timed begins anew."""


def native_step(model: Model, tokens: Tensor) -> Callable[[], object] | None:
    """The step that `generate` takes, where the model has such a step."""
    memory = model.config.memory or tokens.shape[1] + AGAIN
    try:
        decoder = model.native(memory=memory)
    except NoForm:
        return None
    with at_rest(model):
        state = model(tokens, model.initial_state(1, decoder.memory)).state
    assert state is not None
    counted = itertools.count()

    def write() -> object:
        if next(counted) % AGAIN == 0 or decoder.full:
            decoder.load(state)
        return decoder.step([[1]])

    return write
