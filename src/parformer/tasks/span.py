"""Spans: where in a passage does the answer to a question stand?

[CLS] question [SEP] piece of the passage [SEP]. A long passage is read in pieces that overlap;
every token is judged in the piece that shows most around it, and the best pair of a start and an
end is the answer, as in BERT's published code. Where there may be no answer, [CLS] stands for it.

>>> piece_starts(10, 4, 3)
[(0, 4), (3, 4), (6, 4)]
"""

# n features, t time

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from parformer.data.batches import Batch
from parformer.data.labelled import Feature, Labelled, Marks
from parformer.data.tables import Example
from parformer.data.tokenizer import Tokenizer
from parformer.errors import ConfigError
from parformer.evaluate import official
from parformer.evaluate.baselines import Nearby
from parformer.evaluate.labels import LabelScore
from parformer.tasks.base import task
from parformer.tasks.labelled import LabelTask

QUESTION = 64
"""Tokens of a question at most."""
BEST = 20
"""Starts and ends that are tried with each other."""
LONGEST = 30
"""Tokens of an answer at most."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model found."""

    text: str
    start: int
    """Its place in the passage, in characters; 0 where there is none."""
    score: float
    """The logits of its start and its end together."""
    null: float
    """Those of there being no answer."""


def piece_starts(count: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Where pieces of a passage start, and how long they are."""
    found, start = [], 0
    while True:
        length = min(room, count - start)
        found.append((start, length))
        if start + length >= count:
            return found
        start += min(length, stride)


@task("span")
class Span(LabelTask):
    """The first and the last token of an answer."""

    head = "span"
    usual = ("f1", "exact")

    def features(
        self, examples: Sequence[Example], tokenizer: Tokenizer, notes: list[str]
    ) -> list[Feature]:
        marks, found = Marks(tokenizer), []
        questions = tokenizer.encode_all([one.texts[1] for one in examples])
        wrong = []
        for number, one in enumerate(examples):
            answer = one.answers[0] if one.answers else None
            if not usable(one):
                wrong.append(one.name or one.texts[1])
                continue
            passage = pieces_of(tokenizer, one.texts[0])
            question = questions[number][:QUESTION]
            for start, length in self.cut(len(passage), len(question), one):
                body = [token for token, _, _ in passage[start : start + length]]
                row = [marks.start, *question, marks.end, *body, marks.end]
                targets = (0, 0)
                if answer is not None:
                    targets = place(passage[start : start + length], answer, len(question) + 2)
                found.append(Feature(((row, len(question) + 2),), targets, number))
        if wrong:
            notes.append(
                f"{len(wrong):,} of {len(examples):,} examples were left out, as their answers do "
                f"not stand in their passages; the first is {wrong[0]!r:.60}."
            )
        return found

    def cut(self, count: int, question: int, example: Example) -> list[tuple[int, int]]:
        """The pieces of a passage of so many tokens."""
        room, stride = self.window() - question - 3, self.recipe.data.stride
        if room < 1:
            raise ConfigError(
                f"a window of {self.window()} tokens has no room beside a question of {question}; "
                "raise train.tgt_len"
            )
        if not stride and count > room:
            raise ConfigError(
                f"the passage of {example.name or example.texts[1]!r:.60} has {count:,} tokens, "
                f"its window room for {room}, and data.stride is 0; set it, such as to 128"
            )
        return piece_starts(count, room, stride or room)

    def loss_of(self, logits: Tensor, batch: Batch) -> Tensor:
        """The mean of start's and end's cross entropy, over the places that hold a token."""
        logits_bt2 = logits.masked_fill(~batch.inputs["padding"][..., None], float("-inf"))
        start, end = (
            F.cross_entropy(logits_bt2[..., side], batch.targets[:, side]) for side in (0, 1)
        )
        return (start + end) / 2

    def judge(
        self, features: Sequence[Feature], told: list[Tensor], prepared: Labelled, split: str
    ) -> LabelScore:
        losses = [feature_loss(one, logits) for one, logits in zip(features, told, strict=True)]
        examples = prepared.examples[split]
        found = self.answers(features, told, examples, prepared.tokenizer)
        numbers = sorted(found)
        wanted = [[text for _, text in examples[n].answers] for n in numbers]
        nulls = any(not some for some in wanted)
        threshold = 0.0
        if nulls:
            texts = [found[n].text for n in numbers]
            over = [found[n].null - found[n].score for n in numbers]
            best, threshold = official.best_threshold(wanted, texts, over)
        texts = [self.settled(found[n], nulls, 0.0) for n in numbers]
        metrics = official.squad(wanted, texts, nulls=nulls)
        if nulls:
            metrics |= {"best_f1": best, "best_threshold": threshold}
        loss = sum(losses) / len(losses)
        return LabelScore(loss, len(numbers), metrics, metrics["f1"])

    def settled(self, answer: Answer, nulls: bool, threshold: float) -> str:
        """The answer's text, empty where none is likelier by more than the threshold."""
        return "" if nulls and answer.null - answer.score > threshold else answer.text

    def answers(
        self,
        features: Sequence[Feature],
        told: Sequence[Tensor],
        examples: Sequence[Example],
        tokenizer: Tokenizer,
    ) -> dict[int, Answer]:
        """The best answer of every example, by its number."""
        places: dict[int, list[int]] = defaultdict(list)
        for n, one in enumerate(features):
            places[one.number].append(n)
        found = {}
        for number, some in places.items():
            passage = pieces_of(tokenizer, examples[number].texts[0])
            question = features[some[0]].rows[0][1] - 2
            cut = self.cut(len(passage), question, examples[number])
            if len(cut) == len(some):  # else only some of its pieces were asked for
                text, logits = examples[number].texts[0], [told[n] for n in some]
                found[number] = best_answer(text, passage, cut, logits, question + 2)
        return found

    def counted(self, prepared: Labelled, split: str) -> Mapping[str, Mapping[str, float]]:
        """No answer to anything, and the stretches with most words of the questions around."""
        train, here = (
            [one for one in prepared.examples[s] if usable(one)] for s in ("train", split)
        )
        wanted = [[text for _, text in one.answers] for one in here]
        nulls = any(not some for some in wanted)
        told = {"no answer": [""] * len(here), "n-grams": nearby(train, here, prepared.tokenizer)}
        return {name: official.squad(wanted, texts, nulls=nulls) for name, texts in told.items()}


def pieces_of(tokenizer: Tokenizer, passage: str) -> list[tuple[int, int, int]]:
    return tokenizer.pieces(passage)


def usable(example: Example) -> bool:
    """Whether its answer stands in its passage; it may have none."""
    return not example.answers or stands(example.texts[0], example.answers[0])


def nearby(
    train: Sequence[Example], examples: Sequence[Example], tokenizer: Tokenizer
) -> list[str]:
    """Whole words of each passage, about as many tokens as an answer of train usually has."""
    known = [tokenizer.pieces(text) for text in dict.fromkeys(one.texts[0] for one in train)]
    answers = tokenizer.encode_all([one.answers[0][1] for one in train if one.answers])
    length = round(median(map(len, answers))) if answers else 1
    counted = Nearby([tokens_of(one) for one in known], max(1, length))
    questions = tokenizer.encode_all([one.texts[1] for one in examples])
    found = []
    for one, question in zip(examples, questions, strict=True):
        text, pieces = one.texts[0], tokenizer.pieces(one.texts[0])
        place = counted.tell(tokens_of(pieces), np.array(question, np.int64)) if pieces else 0
        inside = pieces[place : place + counted.length]
        low, high = (inside[0][1], inside[-1][2]) if inside else (0, 0)
        low = max(text.rfind(" ", 0, low + 1) + 1, 0)
        high = text.find(" ", high) if " " in text[high:] else len(text)
        found.append(text[low:high])
    return found


def tokens_of(pieces: Sequence[tuple[int, int, int]]) -> NDArray[np.int64]:
    return np.array([token for token, _, _ in pieces], np.int64)


def stands(passage: str, answer: tuple[int, str]) -> bool:
    """Whether an answer stands where it says."""
    start, text = answer
    return bool(text) and start >= 0 and passage[start : start + len(text)] == text


def place(
    piece: Sequence[tuple[int, int, int]], answer: tuple[int, str], first: int
) -> tuple[int, int]:
    """The first and last token of an answer in a row; [CLS] if it is not all in this piece."""
    low, high = answer[0], answer[0] + len(answer[1])
    inside = [n for n, (_, start, end) in enumerate(piece) if start < high and end > low]
    whole = piece and piece[0][1] <= low and piece[-1][2] >= high
    return (first + inside[0], first + inside[-1]) if inside and whole else (0, 0)


def feature_loss(feature: Feature, logits: Tensor) -> float:
    """The loss of one row, which the longest of its batch may have made wider."""
    length = feature.length
    sides = [F.cross_entropy(logits[:length, s], torch.tensor(feature.targets[s])) for s in (0, 1)]
    return float(sum(sides)) / 2


def shows_most(place: int, cut: Sequence[tuple[int, int]]) -> int:
    """The piece that shows most around a token: the smaller side counts, then its length.

    >>> [shows_most(place, [(0, 4), (2, 4)]) for place in range(6)]
    [0, 0, 0, 1, 1, 1]
    """
    best, score = -1, float("-inf")
    for n, (start, length) in enumerate(cut):
        if start <= place < start + length:
            around = min(place - start, start + length - 1 - place) + 0.01 * length
            if around > score:
                best, score = n, around
    return best


def best_answer(
    text: str,
    passage: Sequence[tuple[int, int, int]],
    cut: Sequence[tuple[int, int]],
    logits: Sequence[Tensor],
    first: int,
) -> Answer:
    """The likeliest start and end of all pieces, both inside the passage."""
    null = min(float(one[0, 0] + one[0, 1]) for one in logits)
    best, span = float("-inf"), (0, -1)
    for number, ((start, length), told) in enumerate(zip(cut, logits, strict=True)):
        inside = told[first : first + length]
        starts, ends = (inside[:, side].topk(min(BEST, length)).indices.tolist() for side in (0, 1))
        for s in starts:
            if shows_most(start + s, cut) != number:
                continue
            for e in ends:
                score = float(inside[s, 0] + inside[e, 1])
                if s <= e < s + LONGEST and score > best:
                    best, span = score, (start + s, start + e)
    if span[1] < span[0]:
        return Answer("", 0, float("-inf"), null)
    low, high = passage[span[0]][1], passage[span[1]][2]
    return Answer(text[low:high], low, best, null)
