"""Labelled texts that a tiny model can learn, and the folder that it is trained in."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from random import Random

GOOD, BAD = ("good", "great", "fine"), ("bad", "awful", "poor")
FILL = [
    "the",
    "film",
    "was",
    "a",
    "story",
    "of",
    "two",
    "people",
    "in",
    "some",
    "town",
    "with",
    "much",
    "music",
]
SMALL = (
    "--set", "model.d_model=16", "--set", "model.d_inner=24", "--set", "model.n_head=2",
    "--set", "model.pattern=sf", "--set", "data.vocab_size=120", "--set", "train.precision=fp32",
    "--set", "train.kernels=plain", "--set", "train.threads=1", "--set", "train.log_every=1",
    "--set", "train.checkpoint_every=2", "--set", "model.trigrams=none",
)  # fmt: skip
"""A model of bert-pocket's that trains in a moment."""


def reviews(count: int = 60, seed: int = 0) -> list[tuple[str, str]]:
    rng = Random(seed)
    rows = []
    for number in range(count):
        words = rng.choices(FILL, k=rng.randint(3, 9))
        words.insert(rng.randrange(len(words) + 1), rng.choice(GOOD if number % 2 else BAD))
        rows.append((" ".join(words), "5" if number % 2 else "1"))
    return rows


def write_reviews(file: Path, count: int = 60) -> Path:
    with file.open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["body", "stars"])
        out.writerows(reviews(count))
    return file


def write_questions(file: Path, count: int = 40) -> Path:
    """Questions whose answer is the word after the one that they ask for."""
    rng = Random(1)
    with file.open("w") as stream:
        for number in range(count):
            words = rng.sample(FILL, 6)
            place = rng.randrange(5)
            start = len(" ".join(words[: place + 1])) + 1
            row = {"id": f"q{number}", "question": words[place], "passage": " ".join(words)}
            answer = {"text": words[place + 1], "answer_start": start}
            stream.write(json.dumps(row | {"answers": [answer]}) + "\n")
    return file


def write_choices(file: Path, count: int = 40) -> Path:
    rng = Random(2)
    with file.open("w") as stream:
        for number in range(count):
            right = number % 3
            choices = [rng.choice(BAD) for _ in range(3)]
            choices[right] = rng.choice(GOOD)
            row = {"text": " ".join(rng.choices(FILL, k=4)), "choices": choices, "label": right}
            stream.write(json.dumps(row) + "\n")
    return file
