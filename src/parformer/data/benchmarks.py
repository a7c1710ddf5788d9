"""Which published tasks are known by name, and how do their own files read?

GLUE (Wang et al. 2018), SuperGLUE (Wang et al. 2019), SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016,
2018) and RACE (Lai et al. 2017), each in the format that its authors publish. `--data` is a folder
with files for train and dev; where it holds several tasks, those that begin with the task's name
count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parformer.data.reading import plain_name
from parformer.data.splits import split_word
from parformer.data.tables import (
    Example,
    Row,
    as_text,
    json_rows,
    parsed_rows,
    read_lines,
    with_splits,
)
from parformer.errors import CorpusError
from parformer.store.files import Json

Kind = Literal["classify", "score", "choice", "span"]
Make = Callable[[Row, str], Iterator[Example]]
"""The examples of a row, and where it stands."""

ENDINGS = (".tsv", ".csv", ".jsonl", ".json", ".txt")
LETTERS = "ABCDEFGH"
NAMED = {"sentence", "sentence1", "question", "question1", "#1 String", "premise"}
"""A first line that has one of these names columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """A task as its authors have it."""

    name: str
    kind: Kind
    metrics: tuple[str, ...]
    make: Make
    columns: tuple[str, ...] = ()
    """The columns of files that do not name them."""
    texts: int = 2
    """How many belong together."""
    length: int = 128
    """Tokens that its texts are cut to unless somebody says otherwise."""
    dev: str = ""
    """Which of several validation files is meant."""
    own: tuple[str, ...] = ()
    """How else its files' names begin."""


def pair(first: str, second: str, *more: tuple[str, str]) -> Make:
    """Two texts and a label, by the names of their columns in one release or another."""

    def make(row: Row, where: str) -> Iterator[Example]:
        names = [(first, second), *more]
        one, two = next((n for n in names if n[0] in row and n[1] in row), names[0])
        texts = (as_text(row.get(one), one, where), as_text(row.get(two), two, where))
        yield Example(texts=texts, label=label_of(row))

    return make


def single(name: str) -> Make:
    def make(row: Row, where: str) -> Iterator[Example]:
        yield Example(texts=(as_text(row.get(name), name, where),), label=label_of(row))

    return make


def label_of(row: Row) -> str:
    for name in ("label", "gold_label", "Quality", "is_duplicate", "score"):
        if row.get(name) not in (None, ""):
            return str(row[name])
    return ""


def wic(row: Row, where: str) -> Iterator[Example]:
    """Does a word mean the same in two sentences? It is named before the first."""
    word, one = (
        as_text(row.get("word"), "word", where),
        as_text(row.get("sentence1"), "sentence1", where),
    )
    two = as_text(row.get("sentence2"), "sentence2", where)
    yield Example(texts=(f"{word}: {one}", two), label=label_of(row))


def wsc(row: Row, where: str) -> Iterator[Example]:
    """Does a pronoun stand for a noun? Both are marked in the text."""
    words, target = as_text(row.get("text"), "text", where).split(), row["target"]
    for place, sign, text in (
        (target["span1_index"], "*", target["span1_text"]),
        (target["span2_index"], "#", target["span2_text"]),
    ):
        last = min(place + len(text.split()) - 1, len(words) - 1)
        words[place] = sign + words[place]
        words[last] += sign
    question = f"{target['span2_text']} = {target['span1_text']}"
    yield Example(texts=(" ".join(words), question), label=label_of(row))


def copa(row: Row, where: str) -> Iterator[Example]:
    asks = {"cause": "What was the cause?", "effect": "What happened as a result?"}
    premise = as_text(row.get("premise"), "premise", where)
    yield Example(
        texts=(f"{premise} {asks.get(str(row.get('question')), '')}".strip(),),
        choices=(str(row.get("choice1")), str(row.get("choice2"))),
        label=label_of(row),
    )


def multirc(row: Row, where: str) -> Iterator[Example]:
    """Every answer of every question by itself; a question's answers are one group."""
    passage = row["passage"]
    text = re.sub(r"<[^>]+>", " ", as_text(passage.get("text"), "passage", where))
    for number, question in enumerate(passage["questions"]):
        for answer in question["answers"]:
            yield Example(
                texts=(text, f"{question['question']} {answer['text']}"),
                label=label_of(answer),
                group=f"{row.get('idx', where)}-{question.get('idx', number)}",
            )


def record(row: Row, where: str) -> Iterator[Example]:
    """Every entity in the place of the gap; the likeliest of a question's is its answer."""
    passage = row["passage"]
    text = as_text(passage.get("text"), "passage", where)
    spans = [(one["start"], one["end"]) for one in passage["entities"]]
    entities = list(dict.fromkeys(text[start : end + 1] for start, end in spans))
    for number, question in enumerate(row["qas"]):
        known = tuple((one["start"], one["text"]) for one in question.get("answers", ()))
        right = {told for _, told in known}
        for entity in entities:
            yield Example(
                texts=(
                    text.replace("@highlight", " "),
                    question["query"].replace("@placeholder", entity),
                ),
                label=str(int(entity in right)) if known else "",
                answers=known,
                name=entity,
                group=f"{row.get('idx', where)}-{question.get('idx', number)}",
            )


def race(row: Row, where: str) -> Iterator[Example]:
    passage = as_text(row.get("article"), "article", where)
    both = zip(row["questions"], row["options"], strict=True)
    for number, (question, options) in enumerate(both):
        answers = row.get("answers", ())
        yield Example(
            texts=(passage, question),
            choices=tuple(options),
            label=str(LETTERS.index(answers[number])) if number < len(answers) else "",
            name=f"{row.get('id', where)}-{number}",
        )


def squad(row: Row, where: str) -> Iterator[Example]:
    """A paragraph of SQuAD, or a question of ours: passage, question, answers."""
    if "qas" in row:
        for one in row["qas"]:
            yield asked(row["context"], one["question"], one.get("answers", ()), str(one.get("id")))
        return
    passage = row.get("context", row.get("passage"))
    answers = row.get("answers", [row["answer"]] if "answer" in row else ())
    name = str(row.get("id", where))
    question = as_text(row.get("question"), "question", where)
    yield asked(as_text(passage, "passage", where), question, answers, name)


def asked(passage: str, question: str, answers: Any, name: str) -> Example:
    if isinstance(answers, dict):  # as Hugging Face keeps them: a column for each part
        both = zip(answers["text"], answers["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in both]
    found = [{"text": one} if isinstance(one, str) else one for one in answers]
    known = [(int(one.get("answer_start", -1)), str(one["text"])) for one in found]
    # without a place the first one that there is
    placed = tuple((passage.find(text) if at < 0 else at, text) for at, text in known)
    return Example(texts=(passage, question), answers=placed, name=name)


def choice(row: Row, where: str) -> Iterator[Example]:
    """A choice of ours: text or passage, a question where there is one, choices, label."""
    text = as_text(row.get("text", row.get("passage")), "text", where)
    choices = row.get("choices")
    if not isinstance(choices, list) or len(choices) < 2:
        raise CorpusError(f"{where} needs 'choices', a list of two texts or more")
    texts = (text, str(row["question"])) if row.get("question") else (text,)
    label = str(row.get("label", ""))
    label = str(LETTERS.index(label)) if label and label in LETTERS else label
    yield Example(texts=texts, choices=tuple(map(str, choices)), label=label)


SENTENCES = ("sentence1", "sentence2")
NLI = pair(*SENTENCES, ("premise", "hypothesis"))
COLA = ("source", "label", "star", "sentence")
STSB = ("genre", "file", "year", "number", "score", "sentence1", "sentence2")
QQP = ("label", "question1", "question2", "id")
ACCURACY, BOTH = ("accuracy",), ("accuracy", "f1")


def known(name: str, make: Make, metrics: tuple[str, ...] = ACCURACY, **more: Any) -> Benchmark:
    return Benchmark(name=name, make=make, metrics=metrics, **{"kind": "classify"} | more)


SPAN: Json = {"kind": "span", "length": 384}
CHOICE: Json = {"kind": "choice", "length": 512}

KNOWN: Sequence[Benchmark] = (
    known("cola", single("sentence"), ("matthews",), columns=COLA, texts=1),
    known("sst2", single("sentence"), own=("SST-2",), texts=1),
    known("mrpc", pair("#1 String", "#2 String", SENTENCES), BOTH, own=("msr_paraphrase",)),
    known("stsb", NLI, ("pearson", "spearman"), kind="score", columns=STSB, own=("sts",)),
    known("qqp", pair("question1", "question2"), BOTH, columns=QQP),
    known("mnli", NLI, dev="_matched"),
    known("mnli-mm", NLI, dev="_mismatched", own=("mnli",)),
    known("qnli", pair("question", "sentence")),
    known("rte", NLI, length=256),
    known("wnli", NLI),
    known("boolq", pair("passage", "question"), length=256),
    known("cb", NLI, ("accuracy", "macro_f1"), length=256),
    known("copa", copa, kind="choice"),
    known("multirc", multirc, ("f1a", "em"), length=512),
    known("record", record, ("record_f1", "record_em"), length=384),
    known("wic", wic),
    known("wsc", wsc),
    known("squad", squad, ("f1", "exact"), dev="v1.1", **SPAN),
    known("squad2", squad, ("f1", "exact"), dev="v2.0", own=("squad",), **SPAN),
    known("race", race, **CHOICE),
    known("race-middle", race, dev="middle", own=("race",), **CHOICE),
    known("race-high", race, dev="high", own=("race",), **CHOICE),
)
BENCHMARKS = {one.name: one for one in KNOWN}


def read_benchmark(task: Benchmark, source: str) -> dict[str, list[Example]]:
    """The examples of a task by split; a split without labels is left out."""
    root = Path(source).expanduser()
    if not root.is_dir():
        raise CorpusError(f"--data for {task.name} is a folder with its files, got {source!r}")
    found: dict[str, list[Example]] = {}
    for split, files in task_files(task, root).items():
        rows = [one for file in files for one in read_file(task.make, task.columns, file)]
        if any(one.label or one.answers for one in rows):
            found[split] = rows
    if "train" not in found:
        raise CorpusError(f"{source!r} has no labelled train file for {task.name}")
    return with_splits(found, source)


def task_files(task: Benchmark, root: Path) -> dict[str, list[Path]]:
    """The task's files in a folder, by split; validation by its own name where there are two."""
    files = [file for file in sorted(root.iterdir()) if not file.name.startswith(".")]
    names = tuple(bare(name) for name in (task.name, *task.own))
    own = [file for file in files if bare(file.name).startswith(names)]
    found: dict[str, list[Path]] = {}
    for file in own or files:
        split = split_word(plain_name(file.name))
        if split and Path(plain_name(file.name)).suffix in ENDINGS:
            found.setdefault(split, []).append(file)
    for split, some in found.items():
        meant = [file for file in some if task.dev and task.dev in file.name]
        # of MNLI the validation alone is told apart, of RACE and SQuAD everything
        some = meant if meant and (split != "train" or task.kind != "classify") else some
        if len(some) > 1 and split != "train" and task.name != "race":
            some = [file for file in some if re.search(r"(?:^|[._-])dev", file.name)] or some
            some = some[:1]
        found[split] = some
    return found


def bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def read_file(make: Make, columns: Sequence[str], file: Path) -> list[Example]:
    """The examples of one file, in its authors' format."""
    ending, where = Path(plain_name(file.name)).suffix, repr(str(file))
    lines = list(read_lines(file))
    rows: list[tuple[int, Row]]
    if ending == ".json":
        rows = list(enumerate(paragraphs("".join(lines), where), 1))
    elif ending == ".jsonl":
        rows = list(json_rows(lines, where))
    else:
        first = {name.strip() for name in lines[0].split("\t")} if lines else set()
        if columns and not NAMED & first:
            rows = [(n, unnamed(line, columns)) for n, line in enumerate(lines, 1) if line.strip()]
        else:
            rows = list(parsed_rows(lines, "\t", where))
    try:
        return [one for n, row in rows for one in make(row, f"line {n:,} of {where}")]
    except (KeyError, TypeError, AttributeError) as error:
        raise CorpusError(f"{where} is not in the format of its task: {error!r:.80}") from None


def unnamed(line: str, columns: Sequence[str]) -> Row:
    """A line without names for its columns; whatever follows the last one is passed over."""
    return dict(zip(columns, line.rstrip("\r\n").split("\t"), strict=False))


def paragraphs(text: str, where: str) -> Iterator[Row]:
    """The paragraphs of a file of SQuAD's."""
    try:
        whole = json.loads(text)
        articles = whole["data"]
        yield from (paragraph for article in articles for paragraph in article["paragraphs"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CorpusError(f"{where} is no file of SQuAD's: it needs data and paragraphs") from None
