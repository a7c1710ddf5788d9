"""Which of all texts does a decoder find likeliest? Two published beam searches.

Both read the source once and keep `beam` beginnings of each sentence, which they lengthen token by
token. fairseq takes a finished text out of the beam and compares by the mean of its
log-probabilities; imitkd leaves it in, at no further cost, and compares sums.
"""

# b sentences, k beams, c candidates, t time, v vocabulary

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from parformer.blocks.base import Source
from parformer.errors import InputError
from parformer.generate.decoding import COUNTED_FROM, Decoding
from parformer.model import Model
from parformer.native.decoder import Decoder
from parformer.native.lending import lent


@dataclass(frozen=True, slots=True)
class Marks:
    """The tokens that mean something to a search."""

    start: int
    end: int
    pad: int


@dataclass(frozen=True, slots=True)
class Found:
    """One text, its end included where it has one, and what it was ranked by."""

    tokens: list[int]
    score: float
    total: float
    """Sum of log-probabilities."""


class Reader:
    """A decoder on its way through the texts of a batch; the source is read with the first token.

    Its keys are computed once, and go along when texts are chosen or leave.
    """

    def __init__(self, model: Model, source: Source, places: int) -> None:
        self.model, self.source = model, source
        batch, memory = len(source.vectors_bsd), max(model.config.memory, places)
        self.state = model.initial_state(batch, memory)
        self.decoder: Decoder | None = None

    @contextmanager
    def natively(self, beam: int) -> Iterator[None]:
        """Inside, tokens after the first are read without Python between the matrices."""
        most, memory = self.state.batch * beam, self.state.memory
        make = partial(self.model.native, batch=most, memory=memory)
        with lent(self.model, make, most, memory) as self.decoder:
            yield
        self.decoder = None

    def next(self, tokens_n: Tensor) -> Tensor:
        """Log-probabilities (n, v) of what follows these tokens."""
        logits_nv: Tensor
        if self.decoder is not None and self.state.position > 0:
            logits_nv = self.decoder.step(tokens_n[:, None])
        else:
            fresh = self.source if self.state.position == 0 else None
            out = self.model(tokens_n[:, None], self.state, source=fresh, last_only=True)
            assert out.logits is not None
            assert out.state is not None
            self.state, logits_nv = out.state, out.logits[:, 0].float()
            if self.decoder is not None:
                self.decoder.load(self.state)
        logs_nv = logits_nv.log_softmax(dim=-1)
        if bool(logs_nv[:, 0].isnan().any()):  # one number that is none makes none of its row
            raise InputError(
                "the model's numbers for the next token are not finite; its weights are broken"
            )
        return logs_nv

    def keep(self, index_n: Tensor) -> None:
        """Go on with these texts, in this order."""
        before = self.state.batch if self.decoder is None else self.decoder.batch
        same = len(index_n) == before
        if same and bool((index_n == torch.arange(len(index_n)).to(index_n)).all()):
            return
        if self.decoder is None:
            self.state = self.state.rows(index_n)
        else:
            self.decoder.rows(index_n.tolist())


class Search:
    """Texts that grow side by side; a sentence whose search is over leaves the batch."""

    def __init__(
        self,
        model: Model,
        source: Source,
        marks: Marks,
        beam: Decoding,
        prefix: Sequence[Sequence[int]] = (),
    ) -> None:
        self.marks, self.beam = marks, beam
        self.places = beam.places(model)
        self.reader = Reader(model, source, self.places)
        count, device = len(source.vectors_bsd), source.vectors_bsd.device
        self.prefix = prefix or [()] * count
        self.live = list(range(count))
        """The numbers of the sentences that are still looked for."""
        self.tokens_bkt = torch.full((count, 1, 1), marks.start, device=device)
        self.sums_bk = torch.zeros(count, 1, device=device)
        self.found: list[list[Found]] = [[] for _ in range(count)]

    def run(self) -> list[list[Found]]:
        """The texts of every sentence, best first."""
        lengthen = self.as_fairseq if self.beam.style == "fairseq" else self.as_imitkd
        last = self.places - 1 if self.beam.style == "fairseq" else self.places - 2
        with self.reader.natively(self.beam.beam):
            for step in range(last + 1):
                lengthen(step, last=step == last)
                if not self.live:
                    break
        return self.found

    def next_scores(self) -> Tensor:
        """Log-probabilities (b, k, v) of every next token."""
        sentences, beams, _ = self.tokens_bkt.shape
        return self.reader.next(self.tokens_bkt[..., -1].flatten()).view(sentences, beams, -1)

    def as_fairseq(self, step: int, *, last: bool) -> None:
        beam, end = self.beam.beam, self.marks.end
        logs_bkv = self.next_scores()
        if last:
            keep_only(logs_bkv, end)
        else:
            logs_bkv[..., self.marks.pad] = -math.inf
            self.restrict(logs_bkv, step)
        every_bn = (logs_bkv + self.sums_bk[..., None]).flatten(1)
        sums_bc, place_bc = every_bn.topk(min(2 * beam, every_bn.shape[1] - 1))
        size = logs_bkv.shape[-1]
        from_bc, token_bc = place_bc // size, place_bc % size
        ends_bc = (token_bc == end) & sums_bc.isfinite()
        for row, column in ends_bc[:, :beam].nonzero().tolist():
            text = self.tokens_bkt[row, from_bc[row, column], 1:].tolist()
            self.finish(self.live[row], [*text, end], float(sums_bc[row, column]), step + 1)
        going = [row for row, n in enumerate(self.live) if len(self.found[n]) < beam and not last]
        for number in {*self.live} - {self.live[row] for row in going}:
            self.found[number].sort(key=lambda one: -one.score)
        # those that do not end, best first: what ends is moved behind all others
        count = sums_bc.shape[1]
        order_bc = ends_bc.long() * count + torch.arange(count, device=ends_bc.device)
        chosen_bk = order_bc.topk(beam, largest=False).indices
        self.go_on(
            going, from_bc.gather(1, chosen_bk), token_bc.gather(1, chosen_bk),
            sums_bc.gather(1, chosen_bk),
        )  # fmt: skip

    def finish(self, number: int, text: list[int], total: float, length: int) -> None:
        """A text is complete; a sentence has no more of them than beams."""
        if len(self.found[number]) < self.beam.beam:
            self.found[number].append(Found(text, total / length**self.beam.penalty, total))

    def as_imitkd(self, step: int, *, last: bool) -> None:
        logs_bkv, marks = self.next_scores(), self.marks
        self.restrict(logs_bkv, step)
        done_bk = self.done_bk
        logs_bkv[done_bk] = -math.inf
        pads_bk = logs_bkv[..., marks.pad]
        logs_bkv[..., marks.pad] = pads_bk.masked_fill(done_bk, 0.0)
        every_bn = (logs_bkv + self.sums_bk[..., None]).flatten(1)
        sums_bk, place_bk = every_bn.topk(self.beam.beam)
        size = logs_bkv.shape[-1]
        self.go_on(list(range(len(self.live))), place_bk // size, place_bk % size, sums_bk)
        over_b = self.done_bk.all(dim=1)
        for row in over_b.nonzero()[:, 0].tolist() if not last else range(len(self.live)):
            self.close(row)
        self.stay([] if last else (~over_b).nonzero()[:, 0].tolist())

    @property
    def done_bk(self) -> Tensor:
        """Which texts have come to their end."""
        tokens_bkt = self.tokens_bkt[..., 1:]
        return (tokens_bkt == self.marks.end).any(dim=2)

    def close(self, row: int) -> None:
        """All texts of a sentence, best sum first."""
        for tokens, total in zip(self.tokens_bkt[row].tolist(), self.sums_bk[row], strict=True):
            end = tokens.index(self.marks.end, 1) + 1 if self.marks.end in tokens[1:] else None
            sum_ = float(total)
            score = sum_ / len(tokens[:end]) ** self.beam.penalty
            self.found[self.live[row]].append(Found(tokens[:end], score, sum_))

    def restrict(self, logs_bkv: Tensor, step: int) -> None:
        """Forbid an early end and repeated n-grams, except where a prefix says what comes."""
        free = []
        for row, number in enumerate(self.live):
            if step < len(self.prefix[number]):
                keep_only(logs_bkv[row], self.prefix[number][step])
            else:
                free.append(row)
        if self.beam.no_repeat_ngram:
            for row in free:
                for k, tokens in enumerate(self.tokens_bkt[row].tolist()):
                    forbid(logs_bkv[row, k], tokens, step, self.marks.end, self.beam)
        elif step < self.beam.shortest:
            logs_bkv[free, :, self.marks.end] = -math.inf

    def go_on(self, rows: list[int], from_bk: Tensor, token_bk: Tensor, sums_bk: Tensor) -> None:
        """Lengthen these rows: from which beam each text comes, and by which token."""
        self.live = [self.live[row] for row in rows]
        if not rows:
            return
        row_b = torch.tensor(rows, device=from_bk.device)
        beams = self.tokens_bkt.shape[1]
        index_bk = (torch.arange(len(from_bk)).to(from_bk)[:, None] * beams + from_bk)[row_b]
        before_nt = self.tokens_bkt.flatten(0, 1)[index_bk.flatten()]
        tokens_nt = torch.cat((before_nt, token_bk[row_b].flatten()[:, None]), dim=1)
        self.tokens_bkt = tokens_nt.view(*index_bk.shape, -1)
        self.sums_bk = sums_bk[row_b]
        self.reader.keep(index_bk.flatten())

    def stay(self, rows: list[int]) -> None:
        """Only these sentences go on."""
        if len(rows) == len(self.live):
            return
        beams = self.tokens_bkt.shape[1]
        self.live = [self.live[row] for row in rows]
        if rows:
            row_b = torch.tensor(rows, device=self.sums_bk.device)
            self.tokens_bkt, self.sums_bk = self.tokens_bkt[row_b], self.sums_bk[row_b]
            own_bk = row_b[:, None] * beams + torch.arange(beams).to(row_b)
            self.reader.keep(own_bk.flatten())


def keep_only(logs: Tensor, token: int) -> None:
    """Every other token becomes impossible."""
    own = logs[..., token].clone()
    logs.fill_(-math.inf)
    logs[..., token] = own


def forbid(logs_v: Tensor, tokens: list[int], step: int, end: int, asked: Decoding) -> None:
    """No early end and no n-gram twice; a text that could not go on at all ends."""
    own = logs_v[end].clone()
    if step < asked.shortest:
        logs_v[end] = -math.inf
    if asked.no_repeat_ngram:
        first = COUNTED_FROM[asked.style]
        logs_v[repeats(tokens, asked.no_repeat_ngram, first)] = -math.inf
        if bool(logs_v.max() == -math.inf):
            logs_v[end] = own


def repeats(tokens: list[int], size: int, first: int) -> list[int]:
    """Tokens that would complete an n-gram of `tokens` again.

    n-grams that end before place `first` do not count.

    >>> repeats([2, 7, 8, 7], 2, 0), repeats([2, 7, 2], 2, 2)
    ([8], [])
    """
    last = tuple(tokens[len(tokens) - size + 1 :])
    ends = range(max(size - 1, first), len(tokens))
    return [tokens[end] for end in ends if tuple(tokens[end - size + 1 : end]) == last]
