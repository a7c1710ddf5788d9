"""Language models: text in, text that goes on out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.data.batches import sample
from parformer.data.corpora import Corpus
from parformer.data.tokens import Prepared
from parformer.evaluate.stretches import stretch_losses
from parformer.events import Watch
from parformer.fitting.kinds.base import Kind, Losses
from parformer.fitting.phases import TextFacts
from parformer.fitting.rules import Placement, placements
from parformer.fitting.rungs import ladder
from parformer.generate import Sampling, generate_text
from parformer.generate.request import LONGEST_COPY, generate
from parformer.measure.models import step_words
from parformer.measure.readings import Step
from parformer.model import Model
from parformer.recipe import Recipe
from parformer.report.words import Unit
from parformer.train.job import as_tokens
from parformer.train.plan import fit_vocabulary

EVALUATED = 65_536
"""Tokens of the valid split that models are compared on."""
BYTES_PER_PARAMETER = 10.0
"""Text that a finalist reads in the contest for each of its parameters. The winner reads some eight
times as much in the end: what small models beside counts are best with (experiments/sizing.md)."""
PROMPT, WRITTEN = 160, 240
"""Characters of a prompt, and tokens written after it, at most."""


class Language(Kind):
    """A text, token by token."""

    behind = 0.04
    spread = 0.01
    searches = True

    @property
    def what(self) -> str:
        return f"a language model of {self.request.corpus}"

    @property
    def unit(self) -> Unit:
        return Unit.of(self.request.tokenizer)

    def read(
        self, corpus: Corpus | None, watch: Watch, path: Path, identity: str
    ) -> tuple[Recipe, Prepared]:
        assert corpus is not None, "a text was found"
        recipe = self.recipe()
        prepared = as_tokens(corpus, recipe, watch)
        return fit_vocabulary(recipe, prepared.tokenizer, lambda _: None), prepared

    def rungs(self, like: ModelConfig, facts: TextFacts) -> list[ModelConfig]:
        return ladder(like)

    def wanted(self, config: ModelConfig, facts: TextFacts) -> float:
        letters = facts.bytes / facts.tokens
        return BYTES_PER_PARAMETER * trained(config) / letters

    def placements(self, base: ModelConfig, found: str) -> list[Placement]:
        return placements(len(base.pattern), self.request.letters, found)

    def step(self, facts: TextFacts) -> Step:
        asked = self.request
        if asked.runtime == "llama.cpp":  # which tells the time of a token
            return Step(tgt_len=1, threads=asked.threads)
        past = None if asked.mem_len < 0 else asked.mem_len
        return Step(tgt_len=asked.tgt_len or None, mem_len=past, threads=asked.threads)

    def step_words(self, step: Step, base: ModelConfig) -> str:
        shape = step.shape(base)
        return f"{step_words(shape.tgt_len, shape.mem_len)}, batch {shape.batch}, fp32"

    def losses(self, recipe: Recipe, model: Model, prepared: Prepared) -> Losses:
        return stretch_losses(model, sample(prepared.splits["valid"].tokens, EVALUATED))

    def shown(
        self, recipe: Recipe, models: Mapping[str, Model], prepared: Prepared
    ) -> list[tuple[str, str, str]]:
        prompt = prompt_of(prepared)
        sampling = Sampling(temperature=0.8, top_p=0.95, longest_copy=LONGEST_COPY)
        found = []
        for name, model in models.items():
            text, *_ = generate_text(
                model, prepared.tokenizer, [prompt], WRITTEN, sampling=sampling,
                seed=self.request.seed,
            )  # fmt: skip
            found.append((name, prompt, text))
        return found

    def asking(self, run: str, recipe: Recipe, prepared: Prepared) -> tuple[str, Callable[[], str]]:
        words = opening(prompt_of(prepared).splitlines()[0], most=32)

        def ask() -> str:
            (told,) = generate(model=Path(run), prompts=(words,), tokens=8)
            return f"it went on with {told.text!r}"

        return f"parformer generate {quote(run)} --prompt {quote(words)}", ask


def trained(config: ModelConfig) -> int:
    """Parameters that every token trains: all but the tables of `n`, which are looked up."""
    price = cost(config)
    blocks = zip(price.blocks, config.pattern, strict=True)
    return price.parameters - sum(row.cost.parameters for row, spec in blocks if spec.letter == "n")


def prompt_of(prepared: Prepared) -> str:
    """The first lines of validation text, from one with several words on, cut between words."""
    tokens = prepared.splits["valid"].tokens[:2048]
    text = prepared.tokenizer.decode([int(token) for token in tokens])
    return opening(text)


def opening(text: str, most: int = PROMPT) -> str:
    """Some of a text, from its first line of several words to the end of a line or word.

    >>> opening("----\\nIt was late.\\nNobody came.", most=20)
    'It was late.\\n'
    """
    lines = text.splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if len(line.split()) > 1), 0)
    piece = "".join(lines[first:])
    if len(piece) <= most:
        return piece
    line, word = (piece.rfind(space, 0, most) for space in ("\n", " "))
    cut = line if line > most // 3 else max(line, word)
    return piece[: cut + 1] if cut > 0 else piece[:most]
