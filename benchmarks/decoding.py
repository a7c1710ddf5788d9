"""How fast does a model write, one token at a time, beside llama.cpp and transformers?

All have the same weights. A round lets each of them write 64 tokens greedily after a prompt of 64,
one after the other; what is told is tokens a second after the prompt, the median over the rounds,
and ratios are medians of the rounds' own. `python benchmarks/decoding.py` prints the tables (some
ten minutes on two cores), `--write` puts them into docs/benchmarks.md, and naming sections runs
just those.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from inference import note, table, write

import parformer as pf
from parformer.generate.writing import Sampling, generate
from parformer.measure import Receipt
from parformer.measure.device import pinned_threads
from parformer.model import Model
from parformer.native.program import Weights
from parformer.threads import Times, times_now

PROMPT, COUNT = 64, 64
GREEDY = Sampling(temperature=0)
BITS: tuple[Weights, ...] = ("float32", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model of both libraries, with the same weights."""

    name: str
    ours: Model
    theirs: Any
    prompt: list[int]


def subjects() -> Iterator[Subject]:
    """From a pocket model to GPT-2 small; one at a time, since the last is large."""
    shapes = {"GPT-2 shape, 5 M": (256, 6, 4), "GPT-2 shape, 20 M": (512, 6, 8)}
    yield llama_subject("Llama shape, 1 M")
    for name, (width, layers, heads) in shapes.items():
        yield gpt2_subject(name, width, layers, heads, 1024)
    yield gpt2_subject("GPT-2 small, 124 M", 768, 12, 12, 50257)


def gpt2_subject(name: str, width: int, layers: int, heads: int, words: int) -> Subject:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=width, n_layer=layers, n_head=heads, vocab_size=words, n_positions=512,
        bos_token_id=0, eos_token_id=None,
    )  # fmt: skip
    theirs = lively(GPT2LMHeadModel(config).eval())
    ours = pf.convert.from_gpt2(theirs.state_dict(), config.to_dict())
    return Subject(name, ours, theirs, prompt_of(words))


def llama_subject(name: str) -> Subject:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128, intermediate_size=288, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=256, max_position_embeddings=512,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    theirs = lively(LlamaForCausalLM(config).eval())
    ours = pf.convert.from_llama(theirs.state_dict(), config.to_dict())
    return Subject(name, ours, theirs, prompt_of(256))


def lively(model: torch.nn.Module) -> torch.nn.Module:
    """Weights so large that texts do not repeat one token for ever."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and (".h." in name or ".layers." in name):
                weight.mul_(6.0)
    return model


def prompt_of(words: int) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(words, (PROMPT,), generator=generator).tolist()


# Who writes: each gives its tokens and the seconds of one


Writer = Callable[[], tuple[list[int], float]]


def per_token(moments: list[float]) -> float:
    return (moments[-1] - moments[0]) / (len(moments) - 1)


def native_writer(subject: Subject, weights: Weights) -> Writer:
    def run() -> tuple[list[int], float]:
        moments: list[float] = []

        def hear(place: int, token: int) -> None:
            moments.append(time.perf_counter())

        [written] = generate(
            subject.ours, [subject.prompt], COUNT, sampling=GREEDY, weights=weights, on_token=hear
        )
        return written, per_token(moments)

    return run


def ordinary_writer(subject: Subject) -> Writer:
    natively = native_writer(subject, "float32")

    def run() -> tuple[list[int], float]:
        with native_off():
            return natively()

    return run


@contextmanager
def native_off() -> Iterator[None]:
    from parformer.native import lending

    lending._waiting.clear()
    os.environ["PARFORMER_NATIVE"] = "off"
    try:
        yield
    finally:
        del os.environ["PARFORMER_NATIVE"]
        lending._waiting.clear()


class Clock:
    """Hears of every token that transformers writes, the prompt first."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.moments.append(time.perf_counter())

    def end(self) -> None:
        return


def their_writer(subject: Subject) -> Writer:
    prompt = torch.tensor([subject.prompt])
    asked: dict[str, Any] = {"max_new_tokens": COUNT, "do_sample": False, "pad_token_id": 0}
    asked["attention_mask"] = torch.ones_like(prompt)

    def run() -> tuple[list[int], float]:
        clock = Clock()
        with torch.inference_mode():
            found = subject.theirs.generate(prompt, streamer=clock, **asked)
        return found[0, PROMPT:].tolist(), per_token(clock.moments[1:])

    return run


def llama_writer(subject: Subject, folder: Path, weights: str, threads: int) -> Writer:
    from llamacpp import Llama, write_gguf

    path = folder / f"{weights}.gguf"
    if not path.exists():
        write_gguf(subject.ours, path, weights)
    llama = Llama(path, threads, PROMPT + COUNT + 64)
    return lambda: llama.write(subject.prompt, COUNT)


# Rounds


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second of every writer, round by round."""

    rates: Mapping[str, list[float]]
    texts: Mapping[str, list[int]]

    def __getitem__(self, name: str) -> float:
        return median(self.rates[name])

    def ratio(self, one: str, other: str) -> float:
        pairs = zip(self.rates[one], self.rates[other], strict=True)
        return median(a / b for a, b in pairs)


def race(writers: Mapping[str, Writer], rounds: int, threads: int) -> Rates:
    rates: dict[str, list[float]] = {name: [] for name in writers}
    texts: dict[str, list[int]] = {}
    with pinned_threads(threads):
        for name, run in writers.items():
            texts[name] = run()[0]  # the first one warms up
        for _ in range(rounds):
            for name, run in writers.items():
                rates[name].append(1 / run()[1])
    return Rates(rates, texts)


def whole_and_in_bits(rounds: int) -> dict[str, list[str]]:
    """All models and widths of weights, each round one after the other."""
    whole, few = [], []
    for subject in subjects():
        with tempfile.TemporaryDirectory() as folder:
            for threads in (1, 2):
                writers: dict[str, Writer] = {
                    "transformers": their_writer(subject),
                    "torch": ordinary_writer(subject),
                }
                for weights in BITS:
                    writers[weights] = native_writer(subject, weights)
                    llama = llama_writer(subject, Path(folder), weights, threads)
                    writers[f"llama.cpp {weights}"] = llama
                found = race(writers, rounds, threads)
                whole.append(whole_row(subject, threads, found))
                few.append(bits_row(subject, threads, found))
                note(f"{subject.name}, {threads} threads: done")
    return {"decoding": whole_table(whole), "decoding-bits": bits_table(few)}


def whole_row(subject: Subject, threads: int, found: Rates) -> list[str]:
    same = found.texts["float32"] == found.texts["transformers"] == found.texts["torch"]
    names = ("transformers", "torch", "llama.cpp float32", "float32")
    return [
        *(subject.name, f"{threads}"),
        *(f"{found[name]:,.0f}" for name in names),
        f"{found.ratio('float32', 'llama.cpp float32'):.2f}×",
        f"{found.ratio('float32', 'transformers'):.1f}×",
        "yes" if same else "no",
    ]


def whole_table(rows: list[list[str]]) -> list[str]:
    heads = [
        "", "threads", "`transformers`", "Parformer, torch step", "llama.cpp F32",
        "Parformer, native", "× llama.cpp", "× `transformers`", "same tokens",
    ]  # fmt: skip
    title = f"**Tokens a second, {COUNT} after a prompt of {PROMPT}, greedily, batch 1, fp32**"
    return [title, "", *table(heads, rows), ""]


def bits_row(subject: Subject, threads: int, found: Rates) -> list[str]:
    cells = [subject.name, f"{threads}"]
    for weights in BITS[1:]:
        theirs = f"llama.cpp {weights}"
        cells += [f"{found[theirs]:,.0f}", f"{found[weights]:,.0f}"]
        cells += [f"{found.ratio(weights, theirs):.2f}×", f"{found.ratio(weights, 'float32'):.2f}×"]
    return cells


def bits_table(rows: list[list[str]]) -> list[str]:
    heads = [
        "", "threads", "llama.cpp Q8_0", "Parformer int8", "× llama.cpp", "× our fp32",
        "llama.cpp Q4_0", "Parformer int4", "× llama.cpp", "× our fp32",
    ]  # fmt: skip
    return ["**The same in fewer bits**", "", *table(heads, rows), ""]


# Where the time goes


def limits(rounds: int) -> dict[str, list[str]]:
    """Bytes of weights that a token reads, how fast, and what Python takes."""
    rows = []
    for subject in subjects():
        for threads in (1, 2):
            with pinned_threads(threads):
                speed = reading_speed(threads)
                for weights in BITS:
                    rows.append(limit_row(subject, weights, threads, speed, rounds))
        note(f"{subject.name}: done")
    heads = [
        "", "weights", "threads", "read per token", "step in C++", "GB/s",
        "of what memory gives", "with Python around it", "Python's share",
    ]  # fmt: skip
    lines = ["**Where a token's time goes**", "", *table(heads, rows), ""]
    words = (
        "What memory gives is the speed of adding up 512 MB in the same minute. Models that lie "
        "in the caches (32 MB here) read faster than memory gives."
    )
    return {"decoding-limits": [*lines, words, ""]}


def limit_row(
    subject: Subject, weights: Weights, threads: int, speed: float, rounds: int
) -> list[str]:
    run = native_writer(subject, weights)
    run()
    whole = median(run()[1] for _ in range(rounds))
    with torch.inference_mode():
        state = subject.ours(torch.tensor([subject.prompt])).state
        decoder = subject.ours.native(weights=weights, memory=state.memory, threads=threads)
        steps = median(step_seconds(decoder, state) for _ in range(rounds))
    rate = decoder.bytes / steps
    return [
        *(subject.name, weights, f"{threads}", f"{decoder.bytes / 1e6:,.1f} MB"),
        *(f"{steps * 1e6:,.0f} µs", f"{rate / 1e9:.1f}", f"{100 * rate / speed:.0f}%"),
        *(f"{whole * 1e6:,.0f} µs", f"{100 * max(0.0, 1 - steps / whole):.0f}%"),
    ]


def step_seconds(decoder: pf.native.Decoder, state: Any) -> float:
    """Of one call into C++, without what checks and hands over."""
    decoder.load(state)
    engine, start = decoder.engine, 0.0
    for number in range(COUNT):
        begun = time.perf_counter()
        engine.functions.step(engine.handle, decoder._tokens, 1, 1, state.position + number)
        start += time.perf_counter() - begun
    return start / COUNT


def reading_speed(threads: int) -> float:
    numbers = torch.ones(2**27)
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        numbers.sum()
        seconds.append(time.perf_counter() - begun)
    return 4 * len(numbers) / min(seconds)


# After long texts


PATTERNS = {
    "(sf)x6": "attention in every layer",
    "(sffff)x2": "PAR: two attention blocks, eight feed-forward ones",
    "(r[full]f)x6": "recurrence in the place of attention",
}


def long_texts(rounds: int) -> dict[str, list[str]]:
    """The same parameters after 100 and after 10,000 tokens, in fp32 with one thread."""
    rows = []
    lengths = (100, 10_000)
    with pinned_threads(1), torch.inference_mode():
        for pattern, words in PATTERNS.items():
            model = pf.build(pf.preset("llama-pocket", pattern=pattern, max_len=16_384))
            cells = [f"`{pattern}`", words, f"{pf.cost(model.config).parameters:,}"]
            for length in lengths:
                state = read_long(model, length)
                decoder = model.native(memory=state.memory, threads=1)
                seconds = median(step_seconds(decoder, state) for _ in range(rounds))
                decoder.load(state)
                cells += [f"{1 / seconds:,.0f}", f"{state.bytes / 1e6:.1f} MB"]
            rows.append(cells)
    heads = ["pattern", "", "parameters"]
    for length in lengths:
        heads += [f"tokens/s after {length:,}", "state"]
    return {
        "decoding-long": [
            "**Patterns of equal parameters after short and long texts, fp32, 1 thread**",
            "",
            *table(heads, rows),
            "",
        ]
    }


def read_long(model: Model, length: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(256, (1, length), generator=generator)
    state = None
    for piece in torch.split(tokens, 500, dim=1):
        state = model(piece, state, last_only=True).state
    return state


def others_since(before: Times | None) -> float | None:
    """The share of the processor that others took."""
    now = times_now()
    if before is None or now is None:
        return None
    return (now.busy - before.busy - (now.own - before.own)) / (now.total - before.total)


SECTIONS: Mapping[str, tuple[Callable[[int], dict[str, list[str]]], int]] = {
    "decoding": (whole_and_in_bits, 5),
    "decoding-limits": (limits, 3),
    "decoding-long": (long_texts, 5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, help="rounds per table (default: the section's own)")
    parser.add_argument("--write", action="store_true", help="write into benchmarks.md")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {unknown.pop()!r}; known: {', '.join(SECTIONS)}")
    for name in arguments.sections or SECTIONS:
        note(f"{name} …")
        section, rounds = SECTIONS[name]
        before = times_now()
        for part, lines in section(arguments.rounds or rounds).items():
            receipt = Receipt.issue(part, others=others_since(before)).line()
            text = "\n".join([*lines, f"`python benchmarks/decoding.py {name}` — {receipt}"])
            print(text, end="\n\n", flush=True)
            if arguments.write:
                write(part, text)


if __name__ == "__main__":
    main()
