"""Choices: which of several texts goes with another?

[CLS] passage [SEP] question and choice [SEP], one row for each choice, and one number of what is
pooled; the softmax over a question's choices says which. What does not fit is cut as RACE's
published code does: question and choice keep their last 128 tokens, the passage its first ones.
"""

# n examples, k choices

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from parformer.data.batches import Batch
from parformer.data.labelled import Feature, Labelled, Marks, unpacked
from parformer.data.tables import Example
from parformer.data.tokenizer import Tokenizer
from parformer.errors import CorpusError
from parformer.evaluate import official
from parformer.evaluate.baselines import Bayes, bag_of, buckets_for
from parformer.evaluate.labels import LabelScore
from parformer.tasks.base import task
from parformer.tasks.labelled import LabelTask, note_cut

LONGEST = 128
"""Tokens of a question with a choice."""


@task("choice")
class Choice(LabelTask):
    """One number for each choice, the largest is right."""

    head = "choice"
    usual = ("accuracy",)

    def features(
        self, examples: Sequence[Example], tokenizer: Tokenizer, notes: list[str]
    ) -> list[Feature]:
        marks, window = Marks(tokenizer), self.window()
        passages = tokenizer.encode_all([one.texts[0] for one in examples])
        asked = [" ".join((*one.texts[1:], told)) for one in examples for told in one.choices]
        seconds = iter(tokenizer.encode_all(asked))
        found, cut = [], 0
        for number, one in enumerate(examples):
            if len(one.choices) != len(examples[0].choices):
                raise CorpusError(
                    f"{one.texts[0]!r:.40} has {len(one.choices)} choices, others have "
                    f"{len(examples[0].choices)}; give all as many"
                )
            rows = []
            for _ in one.choices:
                second = next(seconds)[-min(LONGEST, window // 2) :]
                first = passages[number][: max(0, window - 3 - len(second))]
                rows.append(marks.around(first, second, window))
            cut += any(len(tokens) == window for tokens, _ in rows)
            found.append(Feature(tuple(rows), (right_of(one), 0), number))
        note_cut(cut, len(examples), window, notes)
        return found

    def loss_of(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(logits, batch.targets[:, 0])

    def judge(
        self, features: Sequence[Feature], told: list[Tensor], prepared: Labelled, split: str
    ) -> LabelScore:
        logits_nk = torch.stack(told).double()
        truth = torch.tensor([one.targets[0] for one in features])
        sure_nk, right = logits_nk.softmax(-1).numpy(), truth.numpy()
        share = official.accuracy(right, sure_nk.argmax(1))
        return LabelScore(
            loss=float(F.cross_entropy(logits_nk, truth)),
            examples=len(features),
            metrics={"accuracy": share},
            main=share,
            calibration=official.calibration_error(sure_nk.max(1), sure_nk.argmax(1) == right),
        )

    def counted(self, prepared: Labelled, split: str) -> Mapping[str, Mapping[str, float]]:
        """The most frequent place, and naive Bayes of how right choices look."""
        buckets = buckets_for(2)
        train, here = (unpacked(prepared.splits[s].tokens) for s in ("train", split))
        bags, labels = [], []
        for one in train:
            for k in range(len(one.rows)):
                bags.append(bag_of(one, buckets, k))
                labels.append(int(k == one.targets[0]))
        bayes = Bayes(bags, labels, buckets, 2)
        truth, told = [one.targets[0] for one in here], []
        for one in here:
            logs_k2 = bayes.tell([bag_of(one, buckets, k) for k in range(len(one.rows))])
            told.append(int(np.argmax(logs_k2[:, 1] - logs_k2[:, 0])))
        usual = Counter(one.targets[0] for one in train).most_common(1)[0][0]
        return {
            "majority": {"accuracy": official.accuracy(truth, [usual] * len(here))},
            "n-grams": {"accuracy": official.accuracy(truth, told)},
        }


def right_of(example: Example) -> int:
    """The number of the right choice."""
    if not example.label:
        return 0
    if not example.label.isdigit() or int(example.label) >= len(example.choices):
        raise CorpusError(
            f"the label {example.label!r:.40} of {example.texts[0]!r:.40} is no choice: it must be "
            f"a number from 0 to {len(example.choices) - 1}"
        )
    return int(example.label)
