"""What can one ask of a model that writes, and what does it answer?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parformer.errors import ConfigError
from parformer.events import Listener, Watch, nobody
from parformer.records import Record
from parformer.verbs import requested

ONE_THREAD = 20_000_000
"""FLOPs of a step below which one thread writes as fast as two, and beside other work much faster
(`python benchmarks/busy.py`)."""


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """A trained model, and how it is to write on."""

    model: Path
    """Folder of a run or of a model."""
    prompts: tuple[str, ...] = ("",)
    """Text to go on with; may be repeated."""
    tokens: int = 200
    """To write at most."""
    temperature: float | None = None
    """Below 1: likely tokens more so."""
    greedy: bool = False
    """Always the likeliest token."""
    top_k: int = 0
    """Draw among the K likeliest."""
    top_p: float = 1.0
    """Draw among the likeliest that have probability P together."""
    repetition_penalty: float = 1.0
    """Above 1: tokens seen before become less likely."""
    seed: int = 0
    """Of what is drawn."""
    stop: tuple[str, ...] = ()
    """End before this text; may be repeated."""
    device: str = "auto"
    """Such as cpu or cuda:0."""

    def __post_init__(self) -> None:
        if self.greedy and self.temperature is not None:
            raise ConfigError(
                f"--greedy and --temperature {self.temperature:g} contradict each other; "
                "give one of them"
            )


@dataclass(frozen=True, slots=True)
class Written(Record):
    """A prompt and what follows it."""

    prompt: str
    text: str


def generate(
    request: GenerateRequest | None = None, *, watch: Listener = nobody, **given: Any
) -> tuple[Written, ...]:
    """Let a trained model write on; `watch` hears of every piece as soon as it is certain."""
    asked = requested(GenerateRequest, request, given)
    from parformer.costs import cost
    from parformer.generate.writing import Sampling, generate_text
    from parformer.measure.device import find_device, pinned_threads
    from parformer.model import load
    from parformer.train.run import open_run

    sampling = Sampling(
        temperature=0.0
        if asked.greedy
        else 1.0
        if asked.temperature is None
        else asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        repetition_penalty=asked.repetition_penalty,
    )
    opened = open_run(Path(asked.model))
    model = load(opened.folder, device=find_device(asked.device))
    small = cost(model.config, tgt_len=1).flops_cached * len(asked.prompts) < ONE_THREAD
    with pinned_threads(1 if small else None):
        texts = generate_text(
            model,
            opened.need_tokenizer(),
            asked.prompts,
            asked.tokens,
            sampling=sampling,
            seed=asked.seed,
            stop=asked.stop,
            on_text=Watch(watch).wrote,
        )
    return tuple(map(Written, asked.prompts, texts))
