"""What stands where in a running batch: prompts that are being read, texts side by side?"""

# b batch, t time, v vocabulary

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from parformer.data.tokenizer import Tokenizer
from parformer.generate.writing import Sampling
from parformer.head import widen
from parformer.model import Model
from parformer.native.decoder import Decoder
from parformer.serve.jobs import Job, Offsets, Piece, Row, told_token
from parformer.state import State, side_by_side, without_absent


class Reading:
    """A prompt that is read piece by piece."""

    def __init__(self, job: Job, model: Model, tokenizer: Tokenizer) -> None:
        self.job, self.model, self.tokenizer = job, model, tokenizer
        config = model.config
        # a model trained without memory still needs to see the text it goes on with
        self.state = model.initial_state(1, config.memory or config.step_len)
        self.read = 0
        self.logits_v = torch.empty(0)
        self.offsets = Offsets(tokenizer, (), told=True)

    @property
    def done(self) -> bool:
        return self.read == len(self.job.prompt)

    def go_on(self, most: int) -> int:
        """Read at most so many tokens, and tell of them where they are to be echoed."""
        tokens = self.job.prompt[self.read : self.read + most]
        scored = self.job.wish.echo and self.job.wish.logprobs is not None
        device = next(self.model.parameters()).device
        tokens_bt = torch.tensor([tokens], device=device)
        out = self.model(tokens_bt, state=self.state, last_only=not scored)
        assert out.logits is not None
        assert out.state is not None
        self.state = out.state
        logits_tv = widen(out.logits[0, :, : self.tokenizer.size].cpu())
        if scored:
            self.tell_scores(tokens, logits_tv)
        self.logits_v = logits_tv[-1]
        self.read += len(tokens)
        if self.done and self.job.wish.echo and not scored:
            self.tell(self.tokenizer.decode(self.job.prompt))
        return len(tokens)

    def tell_scores(self, tokens: Sequence[int], logits_tv: Tensor) -> None:
        before_v = self.logits_v[None] if len(self.logits_v) else logits_tv[:0]
        logs_tv = torch.cat((before_v, logits_tv[:-1])).log_softmax(-1)
        start = len(tokens) - len(logs_tv)  # the very first token follows nothing
        top = self.job.wish.logprobs or 0
        told = tuple(
            told_token(self.offsets, token, None if place < start else logs_tv[place - start], top)
            for place, token in enumerate(tokens)
        )
        text = self.tokenizer.decode(self.job.prompt) if not self.read else ""
        self.tell(text, told)

    def tell(self, text: str, tokens: tuple[Any, ...] = ()) -> None:
        for number in range(self.job.wish.n):
            self.job.tell(Piece(self.job.first + number, text, tokens))


@dataclass(eq=False)
class Cohort:
    """Texts that go on together."""

    state: State
    rows: list[Row]
    logits_bv: Tensor
    """What the model says of the next token of each."""
    next_b1: Tensor = field(default_factory=lambda: torch.empty(0, 1, dtype=torch.long))
    """The tokens that were drawn and not yet read."""
    decoder: Decoder | None = None
    """Who has read on from the state natively, and knows more than it does."""
    ghosts: int = 0
    """Rows of the state behind the texts', there for a batch of the size that is fastest."""

    def settle(self) -> None:
        """Have all that was read in the state, and no more."""
        if self.decoder is not None:
            self.state, self.decoder = self.decoder.state(), None
        if self.ghosts:
            self.state, self.ghosts = self.state.rows(torch.arange(len(self.rows))), 0

    def fill_up(self, batch: int) -> None:
        """Let the last text stand for the ones that are missing."""
        count = len(self.rows)
        if batch // 2 <= count < batch and not self.ghosts:
            self.ghosts = batch - count
            self.state = self.state.rows(torch.arange(batch).clamp(max=count - 1))

    def draw(self) -> list[int]:
        """A token for each text; those that draw alike draw at once."""
        logits_bv = self.logits_bv
        if any(row.job.wish.bias or row.counts for row in self.rows):
            pairs = zip(self.rows, self.logits_bv, strict=True)
            logits_bv = torch.stack([row.adjust(logits_v) for row, logits_v in pairs])
        alike: dict[Sampling, list[int]] = {}
        for place, row in enumerate(self.rows):
            alike.setdefault(row.sampling, []).append(place)
        chosen = [0] * len(self.rows)
        for sampling, places in alike.items():
            own_bv = logits_bv if len(places) == len(chosen) else logits_bv[places]
            uniforms = [self.rows[place].random.random() for place in places]
            for place, token in zip(places, sampling.choose(own_bv, own_bv, uniforms), strict=True):
                chosen[place] = token
        return chosen

    def keep(self, places: list[int]) -> None:
        """Let the other texts go."""
        if len(places) == len(self.rows):
            return
        if self.decoder is None:
            self.settle()
        self.rows = [self.rows[place] for place in places]
        if not places:
            self.decoder = None
            return
        index_b = torch.tensor(places)
        self.logits_bv = self.logits_bv[index_b]
        if self.decoder is not None:
            self.decoder.rows(places)
        else:
            self.state = without_absent(self.state.rows(index_b))


def joined(cohorts: Sequence[Cohort]) -> Cohort:
    return Cohort(
        side_by_side([cohort.state for cohort in cohorts]),
        [row for cohort in cohorts for row in cohort.rows],
        torch.cat([cohort.logits_bv for cohort in cohorts]),
        torch.cat([cohort.next_b1 for cohort in cohorts]),
    )
