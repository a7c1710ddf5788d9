"""How likely does a model find each of several continuations of a text?

A text that several continuations share is read once, and its state handed to all of them; texts of
different lengths go on side by side in one batch.

>>> import parformer as pf
>>> model = pf.build(pf.preset("pocket"))
>>> scores = score_pairs(model, [([1, 2, 3], [4, 5]), ([1, 2, 3], [6]), ([9], [4, 5, 6])])
>>> [type(score.logprob).__name__ for score in scores]
['float', 'float', 'float']
"""

# b batch, t time, v vocabulary

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from parformer.errors import InputError
from parformer.evaluate.perplexity import at_rest
from parformer.head import widen
from parformer.model import Model
from parformer.state import State, can_stand_beside, side_by_side

PIECE = 512
"""Tokens to read at once at most."""
TOGETHER = 256
"""Continuations whose texts are read before any of them is scored, so that equals are found."""
CONTEXTS = 8192
"""Tokens of texts whose state is kept for that."""
STEP = 2048
"""Tokens of continuations that are scored at once; more do not fit the caches."""


class Likelihood(NamedTuple):
    """The log-probability of a continuation, and whether each of its tokens was the likeliest."""

    logprob: float
    greedy: bool


@dataclass(eq=False)
class Question:
    """A text and its continuations."""

    context: tuple[int, ...]
    places: list[int]
    """Where the answers belong."""
    choices: list[list[int]]
    state: State | None = None
    first_v: Tensor | None = None
    """Log-probabilities of the token after the text."""


def score_pairs(
    model: Model,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    batch: int = TOGETHER,
    progress: Callable[[float], None] | None = None,
) -> list[Likelihood]:
    """The likelihood of each continuation after its text, in the order of the pairs."""
    questions = gather(model, pairs)
    found: list[Likelihood | None] = [None] * len(pairs)
    done = 0
    with at_rest(model):
        for together in in_batches(model, questions, batch):
            read(model, together)
            for question in together:
                answer_at_once(question, found)
            for group in standing_together(together):
                for rows in of_like_length(group):
                    answer(model, rows, found)
            done += sum(len(one.places) for one in together)
            if progress is not None:
                progress(done / len(pairs))
            for one in together:
                one.state = one.first_v = None
    return [one for one in found if one is not None]


def gather(model: Model, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Question]:
    """Continuations by the text that they share; what exceeds a window is cut on the left."""
    config = model.config
    limit = config.max_len if config.numbered else 2**31
    known: dict[tuple[int, ...], Question] = {}
    for place, (context, continuation) in enumerate(pairs):
        if not len(context) or not len(continuation):
            raise InputError(f"pair {place + 1} has no text or no continuation")
        if len(continuation) > limit:
            raise InputError(
                f"a continuation of {len(continuation):,} tokens exceeds the window of {limit:,}"
            )
        kept = tuple([*context, *continuation][-(limit + 1) : -len(continuation)])
        question = known.setdefault(kept, Question(kept, [], []))
        question.places.append(place)
        question.choices.append(list(continuation))
    return sorted(known.values(), key=lambda one: len(one.context))


def in_batches(model: Model, questions: list[Question], batch: int) -> list[list[Question]]:
    """Neighbours in length, as many as fit a batch and a window."""
    config = model.config
    limit = config.max_len if config.numbered else 2**31
    found: list[list[Question]] = []
    for question in questions:
        last = [*found[-1], question] if found else []
        rows = sum(len(one.choices) for one in last)
        longest = max((len(choice) - 1 for one in last for choice in one.choices), default=0)
        texts = sum(len(one.context) for one in last)
        fits = rows <= batch and texts <= CONTEXTS and len(question.context) + longest <= limit
        if last and fits:
            found[-1].append(question)
        else:
            found.append([question])
    return found


def read(model: Model, questions: list[Question]) -> None:
    """Read the texts, those of one length at once."""
    config = model.config
    memory = config.memory or config.step_len
    device = next(model.parameters()).device
    alike: dict[int, list[Question]] = {}
    for question in questions:
        alike.setdefault(len(question.context), []).append(question)
    for some in alike.values():
        tokens_bt = torch.tensor([one.context for one in some], device=device)
        state: State | None = model.initial_state(len(some), memory)
        span = config.max_len if config.numbered else PIECE
        for piece_bt in torch.split(tokens_bt, span, dim=1):
            out = model(piece_bt, state, last_only=True)
            state = out.state
        assert out.logits is not None
        assert state is not None
        logs_bv = widen(out.logits[:, 0]).log_softmax(-1)
        for row, question in enumerate(some):
            question.first_v = logs_bv[row]
            question.state = state.rows(torch.tensor([row], device=device))


def standing_together(questions: list[Question]) -> list[list[Question]]:
    """Questions whose states can go on in one batch."""
    groups: list[list[Question]] = []
    for question in questions:
        assert question.state is not None
        for group in groups:
            other = group[0].state
            assert other is not None
            if can_stand_beside(question.state, other):
                group.append(question)
                break
        else:
            groups.append([question])
    return groups


def answer_at_once(question: Question, found: list[Likelihood | None]) -> None:
    """The continuations of a single token: the text tells."""
    for place, choice in zip(question.places, question.choices, strict=True):
        if len(choice) == 1:
            assert question.first_v is not None
            found[place] = likelihood(question.first_v[None], choice)


Row = tuple[Question, int]
"""One of a question's continuations."""


def of_like_length(questions: list[Question]) -> Iterator[list[Row]]:
    """Continuations of several tokens, neighbours in length, as many as make a step."""
    rows = [(q, n) for q in questions for n, choice in enumerate(q.choices) if len(choice) > 1]
    rows.sort(key=lambda row: len(row[0].choices[row[1]]))
    some: list[Row] = []
    for question, n in rows:
        if some and (len(some) + 1) * len(question.choices[n]) > STEP:
            yield some
            some = []
        some.append((question, n))
    if some:
        yield some


def answer(model: Model, rows: list[Row], found: list[Likelihood | None]) -> None:
    """Read continuations side by side; what is too short is filled up and not counted."""
    by_question: dict[int, list[Row]] = {}
    for row in rows:
        by_question.setdefault(id(row[0]), []).append(row)
    rows = [row for some in by_question.values() for row in some]
    device = next(model.parameters()).device
    states = []
    for some in by_question.values():
        state = some[0][0].state
        assert state is not None
        states.append(state.rows(torch.zeros(len(some), dtype=torch.long, device=device)))
    filled = [question.choices[n][:-1] for question, n in rows]
    longest = max(map(len, filled))
    table = [choice + [choice[-1]] * (longest - len(choice)) for choice in filled]
    out = model(torch.tensor(table, device=device), side_by_side(states))
    assert out.logits is not None
    logs_btv = widen(out.logits).log_softmax(-1)
    for logs_tv, (question, n) in zip(logs_btv, rows, strict=True):
        assert question.first_v is not None
        choice = question.choices[n]
        own_tv = torch.cat((question.first_v[None], logs_tv[: len(choice) - 1]))
        found[question.places[n]] = likelihood(own_tv, choice)


def likelihood(logs_tv: Tensor, choice: list[int]) -> Likelihood:
    tokens_t = torch.tensor(choice, device=logs_tv.device)
    sums = logs_tv.gather(1, tokens_t[:, None]).sum()
    return Likelihood(float(sums), bool((logs_tv.argmax(-1) == tokens_t).all()))
