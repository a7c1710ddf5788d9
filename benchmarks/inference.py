"""How fast is a step, beside a textbook Transformer-XL and beside Hugging Face's GPT-2?

Everything of one table runs in one process in interleaved rounds; ratios are medians over
the rounds. `python benchmarks/inference.py` prints the tables (15 minutes on two cores),
`--write` puts them into docs/benchmarks.md, and naming sections runs just those.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from textbook import Textbook

import parformer as pf
from parformer.costs import step_shape
from parformer.measure import Comparison, Receipt, measure_latency, peak_memory
from parformer.measure.models import Reader, typical_tokens
from parformer.model import Model, State
from parformer.report.words import duration, megabytes

NAMES = ("transformer-xl-base", "par-base")
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


class TextbookReader:
    """A textbook step with the same tokens and weights as a Parformer reader."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.textbook = Textbook(reader.model, reader.shape.mem_len, reader.shape.batch)

    def __call__(self) -> None:
        with torch.inference_mode():
            self.textbook.step(self.reader.tokens, self.reader.targets)

    def resident(self) -> Iterator[torch.Tensor]:
        yield from self.reader.model.parameters()
        yield from self.textbook.memory


class Trainer:
    """One training step: forward and backward, memory carried, no optimizer."""

    def __init__(self, model: Model, length: int, batch: int, *, textbook: bool) -> None:
        self.model = model.train()
        generator = torch.Generator().manual_seed(0)
        self.tokens = typical_tokens(model.config, batch, length, generator)
        self.targets = typical_tokens(model.config, batch, length, generator)
        self.textbook = Textbook(model, length, batch) if textbook else None
        self.state: State | None = model.initial_state(batch, length, zeros=True)

    def __call__(self) -> None:
        self.model.zero_grad(set_to_none=True)
        if self.textbook is not None:
            loss = self.textbook.step(self.tokens, self.targets)
        else:
            out = self.model(self.tokens, self.state, self.targets)
            self.state, loss = out.state, out.loss
        loss.backward()


def transformer_xl(rounds: int) -> list[str]:
    """Cached memory against the textbook: fp32 and bf16, with rare words and without."""
    lines = []
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        for rare in (True, False):
            lines += one_transformer_xl_table(precision, dtype, rounds, rare=rare)
            note(f"{precision}, {'rare words' if rare else 'frequent words only'}: done")
    return lines


def one_transformer_xl_table(
    precision: str, dtype: torch.dtype, rounds: int, *, rare: bool
) -> list[str]:
    candidates: dict[str, TextbookReader | Reader] = {}
    for name in NAMES:
        reader = make_reader(name, dtype)
        candidates[f"textbook {name}"] = TextbookReader(reader)
        candidates[f"Parformer {name}"] = reader
        if precision == "fp32":
            packed = make_reader(name, dtype)
            assert packed.model.pack(64)
            candidates[f"Parformer {name}, packed"] = packed
    if not rare:
        last = pf.preset(NAMES[0]).clusters[0].high - 1
        for candidate in candidates.values():
            if isinstance(candidate, Reader):
                candidate.targets = candidate.targets.clamp(max=last)
    result = measure_latency(candidates, rounds=rounds)
    peaks = {
        name: peak_memory(candidate, resident=list(candidate.resident()))
        for name, candidate in candidates.items()
    }
    words = "2 rare words in each of two clusters" if rare else "frequent words only"
    heads = ["", "time per step", "95% interval", "× textbook Transformer-XL", "peak memory"]
    return [
        f"**A step of 64 tokens after 640, batch 1, {precision}; loss of {words}**",
        "",
        *table(
            heads,
            (
                [
                    timing.name,
                    duration(timing.median),
                    f"{duration(timing.low)} – {duration(timing.high)}",
                    f"{result.ratio(timing.name, 'textbook ' + NAMES[0]):.3f}",
                    megabytes(peaks[timing.name].peak_bytes)
                    + (" + packed weights" if timing.name.endswith("packed") else ""),
                ]
                for timing in result.timings
            ),
        ),
        verdict(result, "Parformer par-base", "Parformer transformer-xl-base"),
        "",
    ]


def memory_length(rounds: int) -> list[str]:
    """Attention grows with the memory, feed-forward does not."""
    rows = []
    for mem_len in (64, 256, 640, 1024, 2048, 4096):
        readers = {name: make_reader(name, torch.float32, mem_len) for name in NAMES}
        result = measure_latency(readers, rounds=rounds)
        state = {name: pf.cost(pf.preset(name), mem_len=mem_len).state_bytes for name in NAMES}
        rows.append(
            [
                str(mem_len),
                *(duration(result[name].median) for name in NAMES),
                f"{result.ratio(NAMES[1], NAMES[0]):.2f}",
                *(megabytes(state[name]) for name in NAMES),
            ]
        )
        note(f"memory {mem_len} done")
    heads = ["memory", "Transformer-XL Base", "PAR Base", "PAR / XL", "XL state", "PAR state"]
    return [
        "**Time per step of 64 tokens against memory length, fp32**",
        "",
        *table(heads, rows),
        "",
    ]


def training(rounds: int) -> list[str]:
    """Forward and backward with memory carried, for a large vocabulary and for bytes."""
    return [
        line
        for names in (NAMES, ("transformer-xl-24b-enwik8", "par-24b-enwik8"))
        for line in one_training_table(names, rounds)
    ]


def one_training_table(names: tuple[str, str], rounds: int) -> list[str]:
    batch, length = 2, 192
    candidates: dict[str, Callable[[], None]] = {}
    for name in names:
        config = pf.preset(name, dropout=0.0, clamp_len=-1, same_length=False)
        plain, ours = pf.build(config), pf.build(config)
        if config.cutoffs:
            candidates[f"textbook {name}"] = Trainer(plain, length, batch, textbook=True)
        candidates[f"Parformer {name}"] = Trainer(ours, length, batch, textbook=False)
    result = measure_latency(candidates, rounds=rounds, warmup=1)
    first = next(iter(candidates))
    rows = (
        [t.name, duration(t.median), f"{result.ratio(t.name, first):.3f}"] for t in result.timings
    )
    vocabulary = pf.preset(names[0]).vocab_size
    return [
        f"**A training step (forward and backward), {length} tokens after {length}, batch {batch}, "
        f"fp32, vocabulary {vocabulary:,}**",
        "",
        *table(["", "time per step", f"× {first}"], rows),
        verdict(result, f"Parformer {names[1]}", f"Parformer {names[0]}"),
        "",
    ]


def gpt2(rounds: int) -> list[str]:
    """GPT-2 small beside transformers, same weights: prefill and single-token steps."""
    lines = []
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        theirs, ours = gpt2_pair(dtype)
        tokens = torch.randint(50257, (1, 512), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            difference = (theirs(tokens).logits - ours(tokens).logits).abs().max()
        note(f"gpt2 {precision}: largest difference of logits {difference:.1e}")
        for what, pair in (
            ("prefill of 512", prefills(theirs, ours, tokens)),
            ("one token after 512", single_steps(theirs, ours, tokens)),
        ):
            result = measure_latency(pair, rounds=rounds)
            lines.append([f"{what}, {precision}", *against(result)])
    return [
        "**GPT-2 small beside `transformers`, same weights**",
        "",
        *table(["", "transformers", "Parformer", "Parformer / transformers", "verdict"], lines),
        "",
    ]


def generation(rounds: int) -> list[str]:
    """A GPT-2 of 5 M parameters, one token at a time, beside transformers' generate."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=256, n_layer=6, n_head=4, vocab_size=1024, n_positions=512,
        bos_token_id=0, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = GPT2LMHeadModel(config).eval()
    ours = pf.convert.from_gpt2(theirs.state_dict(), config.to_dict())
    prompt, new = torch.randint(1024, (1, 8), generator=torch.Generator().manual_seed(0)), 100

    def their_way() -> torch.Tensor:
        with torch.inference_mode():
            return theirs.generate(prompt, max_new_tokens=new, do_sample=False, pad_token_id=0)

    def our_way() -> torch.Tensor:
        with torch.inference_mode():
            return greedy(ours, prompt, new)

    assert torch.equal(their_way(), our_way()), "the two do not write the same tokens"
    rows = []
    for threads in (1, 2):
        result = measure_latency(
            {"transformers": their_way, "Parformer": our_way}, rounds=rounds, threads=threads
        )
        speeds = [f"{new / result[name].median:.0f}" for name in ("transformers", "Parformer")]
        gain = 1 / result.ratio("Parformer", "transformers")
        rows.append([f"{threads}", *speeds, f"{gain:.2f}×"])
    heads = ["threads", "transformers, tokens/s", "Parformer, tokens/s", "Parformer is faster by"]
    return [
        "**Generating 100 tokens greedily: GPT-2 of width 256, 6 layers, vocabulary 1,024**",
        "",
        *table(heads, rows),
        "",
    ]


def make_reader(name: str, dtype: torch.dtype, mem_len: int | None = None) -> Reader:
    changes = {} if mem_len is None else {"mem_len": mem_len}
    model = pf.build(pf.preset(name, **changes), dtype=dtype)
    return Reader(model, step_shape(model.config, None, None, 1))


def gpt2_pair(dtype: torch.dtype) -> tuple[torch.nn.Module, Model]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config()
    theirs = GPT2LMHeadModel(config).eval()
    ours = pf.convert.from_gpt2(theirs.state_dict(), config.to_dict())
    return theirs.to(dtype), ours.to(dtype)


def prefills(
    theirs: torch.nn.Module, ours: Model, tokens: torch.Tensor
) -> dict[str, Callable[[], None]]:
    def run(model: torch.nn.Module) -> Callable[[], None]:
        def step() -> None:
            with torch.inference_mode():
                model(tokens)

        return step

    return {"transformers": run(theirs), "Parformer": run(ours)}


def single_steps(
    theirs: torch.nn.Module, ours: Model, tokens: torch.Tensor
) -> dict[str, Callable[[], None]]:
    """Both read on from 512 tokens, and start again there when the window is full."""
    one = tokens[:, :1]
    with torch.inference_mode():
        cache = theirs(tokens, use_cache=True).past_key_values
        start = state = ours(tokens).state

    def their_step() -> None:
        if cache.get_seq_length() >= 1000:
            cache.crop(512)
        with torch.inference_mode():
            theirs(one, past_key_values=cache, use_cache=True)

    def our_step() -> None:
        nonlocal state
        if state.position >= 1000:
            state = start
        with torch.inference_mode():
            state = ours(one, state).state

    return {"transformers": their_step, "Parformer": our_step}


def greedy(model: Model, prompt: torch.Tensor, new: int) -> torch.Tensor:
    out = model(prompt, last_only=True)
    drawn = [out.logits[:, -1].argmax(-1, keepdim=True)]
    for _ in range(new - 1):
        out = model(drawn[-1], out.state, last_only=True)
        drawn.append(out.logits[:, -1].argmax(-1, keepdim=True))
    return torch.cat([prompt, *drawn], dim=1)


def against(result: Comparison) -> list[str]:
    difference = result.difference("Parformer", "transformers")
    times = [duration(result[name].median) for name in ("transformers", "Parformer")]
    words = "a tie" if difference.verdict == "tie" else f"Parformer {difference.verdict}"
    return [*times, f"{difference.ratio:.2f}", words]


def verdict(result: Comparison, ours: str, theirs: str) -> str:
    difference = result.difference(ours, theirs)
    return f"\n{ours} against {theirs}: {difference}."


def table(heads: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def note(text: str) -> None:
    print(text, file=sys.stderr)


SECTIONS = {
    "transformer-xl": (transformer_xl, 20),
    "memory-length": (memory_length, 10),
    "training": (training, 10),
    "gpt2": (gpt2, 20),
    "generation": (generation, 20),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, help="rounds per table (default: the section's own)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--write", action="store_true", help=f"write into {PAGE.name}")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {unknown.pop()!r}; known: {', '.join(SECTIONS)}")
    torch.set_num_threads(arguments.threads)
    for name in arguments.sections or SECTIONS:
        note(f"{name} …")
        section, rounds = SECTIONS[name]
        lines = section(arguments.rounds or rounds)
        receipt = Receipt.issue(name).line()
        text = "\n".join([*lines, f"`python benchmarks/inference.py {name}` — {receipt}"])
        print(text, end="\n\n")
        if arguments.write:
            write(name, text)


def write(name: str, text: str) -> None:
    """Put a section between its marks on the page."""
    page = PAGE.read_text("utf-8")
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = page.split(start)
    PAGE.write_text(f"{before}{start}\n\n{text}\n\n{end}{rest.split(end)[1]}", "utf-8")


if __name__ == "__main__":
    main()
