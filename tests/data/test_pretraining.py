"""Are documents cut, paired and hidden as BERT's and ALBERT's published code does?"""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
import torch

from parformer.data.documents import GOES_ON, PLAIN, Documents, continuing, written
from parformer.data.pretraining import (
    Pretraining,
    cuts_of,
    hidden_places,
    trimmed,
    words_of,
)
from parformer.data.sentences import documents, split_sentences
from parformer.embedding import IGNORE
from parformer.errors import CorpusError

MARKS = (1, 2, 3, 500)
"""Start, end, mask, vocabulary."""


def some_documents(count: int = 12, seed: int = 0) -> np.ndarray:
    rng = Random(seed)
    texts = []
    for _ in range(count):
        sentences = [
            [rng.randrange(10, 400) for _ in range(rng.randint(2, 9))]
            for _ in range(rng.randint(1, 9))
        ]
        texts.append(
            [[t | GOES_ON if n and t % 3 == 0 else t for n, t in enumerate(s)] for s in sentences]
        )
    return written(texts, MARKS)


def test_documents_are_told_apart() -> None:
    lines = "One. Two is here.\nThree\n\n\nFour.\n".splitlines(keepends=True)
    assert list(documents(lines)) == [["One.", "Two is here.", "Three"], ["Four."]]
    wiki = [
        '<doc id="1">\n',
        "Title\n",
        "\n",
        "First. Second one.\n",
        "</doc>\n",
        '<doc id="2">\n',
        "B\n",
    ]
    assert list(documents(wiki)) == [["Title", "First.", "Second one."], ["B"]]
    rows = ['{"text": "A b. C d.\\nE"}\n', '{"text": " "}\n']
    assert list(documents(rows, field="text")) == [["A b.", "C d.", "E"]]
    with pytest.raises(CorpusError, match=r"line 1 of here is no JSON with a text 'body'"):
        list(documents(rows, field="body", where="here"))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Mr. Smith went to St. Ives. He met J. R. Hall there!", 2),
        ("It cost 3.5 dollars. 20 came (as Ann said.) Nobody left.", 3),
        ("what? no", 1),
        ("", 0),
    ],
)
def test_sentences_end_where_they_end(text: str, count: int) -> None:
    assert len(split_sentences(text)) == count


def test_sentences_are_found_again() -> None:
    texts = Documents(written([[[5, 6], [7]], [[8, 9, 10]]], MARKS))
    assert (texts.sentences, texts.count) == (3, 2)
    assert [texts.sentence(n).tolist() for n in range(3)] == [[5, 6], [7], [8, 9, 10]]
    assert texts.sentence(0, 1).tolist() == [5, 6, 7]
    assert [texts.of_document(n) for n in range(2)] == [(0, 2), (2, 3)]
    assert (texts.start, texts.end, texts.mask, texts.vocab_size) == MARKS


def test_sentence_order_swaps_half_of_the_pairs() -> None:
    texts = Documents(some_documents(400))
    labels: Counter[int] = Counter()
    for number in range(texts.count):
        low, high = texts.of_document(number)
        for cut in cuts_of(texts, number, 24, "order", Random(number)):
            assert cut.second is not None
            own = low <= cut.second[0] < high and low <= cut.first[0] < high
            if not own:  # a chunk of one sentence: always from elsewhere
                assert cut.label == 1
                assert cut.first[0] == cut.first[1]
                continue
            labels[cut.label] += 1
            one, two = (cut.second, cut.first) if cut.label else (cut.first, cut.second)
            assert one[1] + 1 == two[0]
    assert 0.45 < labels[1] / labels.total() < 0.55


def test_next_sentence_uses_every_sentence_and_half_from_elsewhere() -> None:
    texts = Documents(some_documents(400))
    labels: Counter[int] = Counter()
    for number in range(texts.count):
        low, high = texts.of_document(number)
        used: set[int] = set()
        cuts = cuts_of(texts, number, 24, "next", Random(number))
        for cut in cuts:
            assert cut.second is not None
            used |= set(range(cut.first[0], cut.first[1] + 1))
            if low <= cut.second[0] < high:
                assert cut.label == 0
                assert cut.first[1] + 1 == cut.second[0]
                used |= set(range(cut.second[0], cut.second[1] + 1))
            else:
                assert cut.label == 1
            if high - low > 1:
                labels[cut.label] += 1
        assert used == set(range(low, high))  # what was put back came again
    assert 0.4 < labels[1] / labels.total() < 0.8  # single sentences at the end add to it


def test_pairs_are_trimmed_at_the_longer_side() -> None:
    one, two = np.arange(20, dtype=np.int32), np.arange(100, 106, dtype=np.int32)
    a, b = trimmed(one, two, 12, Random(0))
    assert len(a) + len(b) == 12
    assert abs(len(a) - len(b)) <= 1
    assert a.tolist() == list(range(a[0], a[0] + len(a)))  # of one piece


def test_whole_words_are_hidden_together() -> None:
    row = np.array([5, 6, 7 | GOES_ON, 8 | GOES_ON, 9, 10 | GOES_ON], np.int32)
    places = list(range(6))
    assert words_of(row, places, "piece") == [[n] for n in places]
    assert words_of(row, places, "word") == [[0], [1, 2, 3], [4, 5]]
    for seed in range(20):
        found = hidden_places(words_of(row, places, "word"), 3, "word", Random(seed))
        assert len(found) <= 3
        assert not {1, 2, 3} & set(found) or {1, 2, 3} <= set(found)
    assert hidden_places([[0, 1, 2]], 1, "word", Random(0)) == [0]  # never nothing


def test_n_grams_are_as_long_as_albert_draws_them() -> None:
    """6/11, 3/11 and 2/11, and shorter where there is no room."""
    drawn: Counter[int] = Counter()

    class Heard(Random):
        def choices(self, population, weights=None, **how):  # type: ignore[no-untyped-def, override]
            found = super().choices(population, weights, **how)
            drawn[found[0]] += 1
            return found

    words = [[n] for n in range(300)]
    for seed in range(400):
        found = hidden_places(words, 45, "n-gram", Heard(seed))
        assert len(found) == 45
    assert drawn[1] / drawn.total() == pytest.approx(6 / 11, abs=0.02)
    assert drawn[2] / drawn.total() == pytest.approx(3 / 11, abs=0.02)
    assert drawn[3] / drawn.total() == pytest.approx(2 / 11, abs=0.02)


def batches(**changes: object) -> Pretraining:
    how = {"batch": 4, "window": 24, "seed": 3, "share": 0.25, "unit": "piece", "pairing": "order"}
    return Pretraining(some_documents(40), **how | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", ["piece", "word", "n-gram"])
@pytest.mark.parametrize("pairing", ["none", "next", "order"])
def test_a_row_is_what_its_documents_say(unit: str, pairing: str) -> None:
    found = batches(unit=unit, pairing=pairing)
    fates: Counter[str] = Counter()
    for index in range(found.per_epoch):
        batch = found.at(index)
        for b in range(4):
            there = batch.inputs["padding"][b]
            tokens, targets = batch.tokens_bt[b][there], batch.targets[b][there]
            length = len(tokens)
            ends = (tokens == 2).nonzero()[:, 0].tolist()
            assert int(tokens[0]) == 1
            assert length - 1 in ends
            chosen = targets != IGNORE
            assert 1 <= int(chosen.sum()) <= max(1, round(0.25 * length))
            assert not bool(chosen[0] | chosen[-1])
            assert bool((batch.targets[b][~there] == IGNORE).all())
            types = batch.inputs["types"][b][there]
            assert bool((types.diff() >= 0).all())
            assert bool(types[-1]) == (pairing != "none")
            for token, target in zip(
                tokens[chosen].tolist(), targets[chosen].tolist(), strict=True
            ):
                assert 10 <= target < 400
                fates["mask" if token == 3 else "same" if token == target else "other"] += 1
    total = fates.total()
    assert fates["mask"] / total == pytest.approx(0.8, abs=0.08)
    assert fates["same"] / total == pytest.approx(0.1, abs=0.06)


def test_packed_rows_are_full_of_whole_sentences() -> None:
    found = batches(pairing="none", packed=True)
    texts, plan = found.texts, found._plan(0)
    spans = [span for cut in plan for span in (cut.first, *cut.others)]
    read = Counter(n for first, last in spans for n in range(first, last + 1))
    assert read == Counter(range(texts.sentences))  # each once
    sizes = [
        1 + sum(len(texts.sentence(*span)) + 1 for span in (cut.first, *cut.others)) for cut in plan
    ]
    assert max(sizes) <= 24
    assert sum(sizes) > 0.8 * 24 * len(sizes)  # a sentence has nine tokens at most
    for cut in plan:
        first = np.array([span[0] for span in (cut.first, *cut.others)])
        owners = np.searchsorted(texts.firsts, first, "right")
        assert len(set(owners)) == len(owners)  # marks stand behind documents alone
    batch = found.at(0)
    for b, cut in enumerate(plan[:4]):
        tokens, there = batch.tokens_bt[b].numpy(), batch.inputs["padding"][b]
        told = np.where(batch.targets[b] == IGNORE, tokens, batch.targets[b])[there]
        parts = [texts.sentence(*span) & PLAIN for span in (cut.first, *cut.others)]
        assert told.tolist() == [1, *(t for part in parts for t in [*part.tolist(), 2])]
    assert not bool(batch.inputs["types"].any())
    fuller = batch.inputs["padding"].double().mean()
    assert fuller > batches(pairing="none").at(0).inputs["padding"].double().mean()


def test_a_sentence_longer_than_a_packed_row_is_cut() -> None:
    flat = written([[[5] * 30, [6, 7]], [[8]]], MARKS)
    found = Pretraining(flat, batch=2, window=8, seed=0, share=0.2, unit="piece", pairing="none",
                        packed=True)  # fmt: skip
    lengths = sorted(int(n) for n in found.at(0).inputs["padding"].sum(1))
    assert lengths[-1] == 8


def test_batches_follow_from_their_number_alone() -> None:
    one, two = batches(), batches()
    last = one.per_epoch
    for index in (last + 1, 0, 2, last):
        a, b = one.at(index), two.at(index)
        assert all(torch.equal(a.inputs[name], b.inputs[name]) for name in a.inputs)
        assert torch.equal(a.targets, b.targets)
        rows = two.at(index, slice(1, 3))
        assert torch.equal(rows.tokens_bt, a.tokens_bt[1:3])
    assert not torch.equal(one.at(0).tokens_bt, one.at(last).tokens_bt)
    assert not torch.equal(one.at(0).tokens_bt, batches(seed=4).at(0).tokens_bt)


def test_few_may_be_hidden_at_most() -> None:
    found = batches(most=2)
    assert int((found.at(0).targets != IGNORE).sum(1).max()) <= 2


def test_pairs_need_documents() -> None:
    with pytest.raises(CorpusError, match="two documents at least"):
        Pretraining(written([[[5, 6]]], MARKS), batch=1, window=8, seed=0, share=0.2, unit="piece",
                    pairing="next")  # fmt: skip
    with pytest.raises(CorpusError, match="but a batch has 4000"):
        batches(batch=4000)


def test_pieces_of_words_are_known_by_their_marks() -> None:
    class Named:
        size = 4

        def __init__(self, *names: str) -> None:
            self.own = names

        def names(self) -> dict[int, str]:
            return dict(enumerate(self.own))

    assert continuing(Named("[CLS]", "a", "##b", "c")).tolist() == [False, False, True, False]  # type: ignore[arg-type]
    assert continuing(Named("<unk>", "▁a", "b", "▁")).tolist() == [False, False, True, False]  # type: ignore[arg-type]
    assert PLAIN & GOES_ON == 0
