"""What can one ask about a trained model and a text, and what is the answer?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer.errors import ConfigError
from parformer.events import Listener, Preparing, Watch, nobody
from parformer.fields import need_at_least
from parformer.generate.decoding import Decoding
from parformer.store.files import Json
from parformer.verbs import requested

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from parformer.data.tokens import Prepared, Split
    from parformer.evaluate.against import Against
    from parformer.evaluate.counting import References
    from parformer.evaluate.labels import LabelScore
    from parformer.evaluate.perplexity import Score
    from parformer.evaluate.translation import TranslationScore
    from parformer.evaluate.untrained import TaskScores
    from parformer.model import Model
    from parformer.tasks.pretrain import PretrainScore
    from parformer.train.run import Opened

LENGTHS = ("mem_len", "clamp_len", "same_length")
"""What an evaluation may change about a model; no weight depends on it."""


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(Decoding):
    """A trained model and the text to read."""

    model: Path
    """Folder of a run or of a model."""
    against: Path | None = None
    """Another one, to tell whether it is better on the same text or whether that is chance."""
    corpus: str = ""
    """Text to read."""
    local: str = ""
    """A local copy of a published corpus, or a folder of tasks."""
    tasks: tuple[str, ...] = ()
    """Tasks of lm-eval that it was never trained for, such as piqa or lts-14; may be repeated."""
    shots: int = 0
    """Examples before each question of such a task."""
    split: str = "test"
    """Train, valid or test."""
    tgt_len: int | None = None
    """New tokens per step."""
    mem_len: int | None = None
    """Remembered tokens before them."""
    clamp_len: int | None = None
    """Distances beyond count as this."""
    same_length: bool | None = None
    """Every token sees just mem_len others."""
    batch: int = 1
    """Places read at once."""
    tokens: int | None = None
    """Only the first so many; of tasks, so many questions."""
    data: str = ""
    """Labelled texts or pairs to read, for a model that tells labels or translates."""
    beside: bool = True
    """Tell what counting letters and n-grams, and xz, reach on that text."""
    device: str = "auto"
    """Such as cpu or cuda:0."""

    def __post_init__(self) -> None:
        Decoding.__post_init__(self)
        if self.tokens is not None:
            need_at_least("tokens", self.tokens, 2)
        need_at_least("shots", self.shots, 0)
        if self.shots and not self.tasks:
            raise ConfigError(f"--shots {self.shots} are for --tasks; name some")

    @property
    def lengths(self) -> dict[str, int | bool]:
        """Those that are not the model's own."""
        asked = {name: getattr(self, name) for name in LENGTHS}
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """How good a model is on a text, and what was read how."""

    score: Score | TranslationScore | LabelScore | TaskScores | PretrainScore
    corpus: str
    identity: str
    """SHA-256 of the text."""
    tokenizer: str
    split: str
    tgt_len: int
    mem_len: int
    clamp_len: int
    same_length: bool
    beside: References | None
    """What counting reaches, if asked for."""
    vocabulary: str = ""
    """SHA-256 of the tokenizer, where losses are per token."""
    stretches: NDArray[np.float64] | None = None
    """Mean losses of stretches of the text, where two models are compared."""
    against: Against | None = None
    """How the other model compares, if there is one."""

    def to_dict(self) -> Json:
        """Plain values, ready for JSON."""
        names = ("corpus", "identity", "split", "tgt_len", *LENGTHS)
        beside = {} if self.beside is None else {"beside": self.beside.to_dict()}
        against = {} if self.against is None else {"against": self.against.to_dict()}
        told = {name: getattr(self, name) for name in names}
        return self.score.to_dict() | told | beside | against


def evaluate(
    request: EvaluateRequest | None = None, *, watch: Listener = nobody, **given: Any
) -> Evaluated:
    """How well a trained model predicts a text, and whether another one does it better."""
    asked, told = requested(EvaluateRequest, request, given), Watch(watch)
    from parformer.evaluate.against import compared
    from parformer.train.run import open_run

    if asked.against is not None:
        open_run(Path(asked.against))  # what is missing is told before the first is read
    found = evaluated(asked, told)
    if asked.against is None:
        return found
    other = evaluated(replace(asked, model=asked.against, beside=False), told)
    same = (found.identity, found.vocabulary) == (other.identity, other.vocabulary)
    losses = (found.stretches, other.stretches) if same else None
    return replace(found, against=compared(str(asked.against), found.score, other.score, losses))


def evaluated(asked: EvaluateRequest, watch: Watch) -> Evaluated:
    """How good one model is."""
    preparing = watch.preparing
    from parformer.evaluate import perplexity
    from parformer.evaluate.stretches import Stretches
    from parformer.measure.device import find_device
    from parformer.model import load
    from parformer.train.run import open_run

    opened = open_run(Path(asked.model))
    model = load(opened.folder, device=find_device(asked.device), **asked.lengths)
    if model.encoder is None and asked.flags:
        raise ConfigError(
            f"{asked.flags[0]} is for models that translate, and {str(asked.model)!r} has no "
            "encoder; leave it out"
        )
    if asked.tasks:
        return untrained(asked, opened, model, preparing)
    if model.config.label_head != "none":
        return labels(asked, opened, model, watch)
    if opened.recipe is not None and opened.recipe.train.task == "pretrain":
        return pretrained(asked, opened, model, preparing)
    if asked.data:
        if model.encoder is None or asked.corpus:
            raise ConfigError(f"{str(asked.model)!r} tells no labels; name a text with --corpus")
        asked = replace(asked, corpus=asked.data, data="")
    check_memory(model, asked.mem_len)
    prepared = find_tokens(opened, asked.corpus, asked.local, preparing)
    if asked.split not in prepared.splits:
        raise ConfigError(
            f"{prepared.corpus!r} has no split {asked.split!r}; it has {', '.join(prepared.splits)}"
        )
    if model.encoder is not None:
        return translations(asked, opened, model, prepared)
    text, kind = prepared.splits[asked.split], prepared.tokenizer.kind
    kept = Stretches()
    score = perplexity.evaluate(
        model,
        text.tokens,
        tgt_len=asked.tgt_len or 0,
        batch=asked.batch,
        limit=asked.tokens or 0,
        # enwik8's bits per character have always been bits per byte
        characters=text.bytes if prepared.tokenizer.made_of == "bytes" else text.characters,
        words=text.words if prepared.tokenizer.made_of == "words" else 0,
        progress=lambda share: preparing("evaluating", share),
        each=None if asked.against is None else kept.keep,
    )
    beside = None
    if asked.beside and model.config.causal and asked.split != "train":
        preparing("counting", 1.0)
        size = model.config.counts
        beside = count_beside(prepared, asked.split, text, asked.tokens, size)
    config = model.config
    return Evaluated(
        score=score,
        corpus=prepared.corpus,
        identity=prepared.identity,
        tokenizer=kind,
        split=asked.split,
        tgt_len=perplexity.step_length(model, asked.tgt_len or 0),
        mem_len=config.mem_len,
        clamp_len=config.clamp_len,
        same_length=config.same_length,
        beside=beside,
        stretches=None if asked.against is None else kept.means(),
        vocabulary=sha256(prepared.tokenizer.to_json().encode()).hexdigest(),
    )


def untrained(
    asked: EvaluateRequest, opened: Opened, model: Model, preparing: Preparing
) -> Evaluated:
    """What lm-eval counts on tasks that the model was never trained for."""
    from parformer.evaluate.harness import score_tasks

    tokenizer, config = opened.need_tokenizer(), model.config
    names = [name.strip() for task in asked.tasks for name in task.split(",") if name.strip()]
    score = score_tasks(
        model,
        tokenizer,
        names,
        shots=asked.shots,
        local=asked.local,
        limit=asked.tokens,
        preparing=preparing,
    )
    return Evaluated(
        score=score,
        corpus=", ".join(names),
        identity="",
        tokenizer=tokenizer.kind,
        split="validation",
        tgt_len=config.step_len,
        mem_len=config.mem_len,
        clamp_len=config.clamp_len,
        same_length=config.same_length,
        beside=None,
    )


def labels(asked: EvaluateRequest, opened: Opened, model: Model, watch: Watch) -> Evaluated:
    """What a task's authors count, and what counting words reaches beside it."""
    from parformer.tasks import find_task
    from parformer.tasks.labelled import LabelTask
    from parformer.tasks.preparing import read_labelled

    recipe = opened.recipe
    if recipe is None:
        raise ConfigError(
            f"{str(opened.folder)!r} belongs to no run, which would say what its columns are; name "
            "the run"
        )
    if asked.corpus:
        raise ConfigError(f"--corpus {asked.corpus} is for texts without labels; say --data")
    if asked.data:
        recipe = recipe.replaced({"data.corpus": asked.data, "data.identity": ""})
    recipe, prepared = read_labelled(recipe, opened.need_tokenizer(), watch.preparing)
    if recipe.data.identity and recipe.data.identity != prepared.identity:
        raise ConfigError(
            f"{recipe.data.corpus!r} has changed since the run was trained on it; to read it all "
            f"the same say --data {recipe.data.corpus}"
        )
    split = asked.split
    if split == "test" and "test" not in prepared.splits:
        split = "valid"  # published tests often come without labels
    if split not in prepared.splits:
        known = ", ".join(prepared.splits)
        raise ConfigError(f"{prepared.corpus!r} has no split {split!r}; it has {known}")
    for note in prepared.notes:
        if note.startswith(f"{split}:"):
            watch.notice(note)
    task = find_task(replace(recipe, model=model.config))
    assert isinstance(task, LabelTask)
    score = task.score(model, prepared, split, asked.tokens or 0)
    if asked.beside:
        watch.preparing("counting", 1.0)
        score = task.with_beside(score, prepared, split)
    return Evaluated(
        score=score,
        corpus=prepared.corpus,
        identity=prepared.identity,
        tokenizer=prepared.tokenizer.kind,
        split=split,
        tgt_len=task.window(),
        mem_len=0,
        clamp_len=-1,
        same_length=False,
        beside=None,
    )


def pretrained(
    asked: EvaluateRequest, opened: Opened, model: Model, preparing: Preparing
) -> Evaluated:
    """How well hidden words of documents are guessed, and pairs of segments told apart."""
    from parformer.tasks.pretrain import Pretrain
    from parformer.train.job import as_documents, corpus_of

    recipe = opened.recipe
    assert recipe is not None
    if asked.corpus:
        recipe = recipe.replaced({"data.corpus": asked.corpus, "data.identity": ""})
    watch = Watch(lambda event: None)
    corpus = corpus_of(recipe.data, preparing)
    prepared = as_documents(corpus, recipe, watch, opened.need_tokenizer())
    if asked.split not in prepared.splits:
        known = ", ".join(prepared.splits)
        raise ConfigError(f"{prepared.corpus!r} has no split {asked.split!r}; it has {known}")
    task = Pretrain(recipe)
    return Evaluated(
        score=task.score(model, prepared, asked.split, asked.tokens or 0),
        corpus=prepared.corpus,
        identity=prepared.identity,
        tokenizer=prepared.tokenizer.kind,
        split=asked.split,
        tgt_len=task.shape.tgt_len,
        mem_len=0,
        clamp_len=-1,
        same_length=False,
        beside=None,
    )


def translations(
    asked: EvaluateRequest, opened: Opened, model: Model, prepared: Prepared
) -> Evaluated:
    """The loss of references, and BLEU and chrF of what the model makes of their sources."""
    from parformer.evaluate.translation import TranslationScore
    from parformer.tasks import find_task
    from parformer.tasks.translate import Translate, within

    if opened.recipe is None:
        raise ConfigError(
            f"{str(opened.folder)!r} belongs to no run, which would say what its pairs are; name "
            "the run"
        )
    task, limit = find_task(opened.recipe), asked.tokens or 0
    assert isinstance(task, Translate)
    found = task.reference_loss(model, prepared, asked.split, limit)
    pairs = within(task.pairs(prepared.splits[asked.split].tokens), limit)
    texts = task.written(model, prepared, pairs, **asked.decoding)
    common = task.judged(texts, bootstrap=True)
    return Evaluated(
        score=TranslationScore(found.loss, found.tokens, common, texts),
        corpus=prepared.corpus,
        identity=prepared.identity,
        tokenizer=prepared.tokenizer.kinds[-1],
        split=asked.split,
        tgt_len=0,
        mem_len=0,
        clamp_len=-1,
        same_length=False,
        beside=None,
    )


def count_beside(
    prepared: Prepared, split: str, text: Split, limit: int | None, size: int
) -> References | None:
    """What counting train reaches on the tokens that were read."""
    from parformer.evaluate.counting import references_of

    tokens = text.tokens[:limit]
    if "train" not in prepared.splits or len(tokens) < 2:
        return None
    return references_of(prepared, {split: tokens}, size=size)[split]


def find_tokens(opened: Opened, corpus: str, local: str, progress: Preparing) -> Prepared:
    """The text to read in the model's own tokens: the run's, unless another one is named."""
    from parformer.data.corpora import find_corpus
    from parformer.data.tokens import prepare
    from parformer.store.files import cache_folder
    from parformer.train.job import corpus_of

    tokenizer = opened.need_tokenizer()
    if opened.recipe is not None and opened.recipe.data.pair:
        data = opened.recipe.data
        own = "" if corpus and corpus != data.corpus else data.local
        data = replace(data, corpus=corpus or data.corpus, local=local or own)
        found = corpus_of(data, progress, training=False)
    elif corpus:
        found = find_corpus(corpus, local=local or None, progress=progress)
    elif opened.recipe is None:
        raise ConfigError(f"{str(opened.folder)!r} belongs to no run; name a text with --corpus")
    else:
        data = opened.recipe.data
        found = find_corpus(
            data.corpus,
            local=local or data.local or None,
            progress=progress,
            identity=opened.identity,
        )
    tokens = prepare(
        found, tokenizer.kind, tokenizer=tokenizer, cache=cache_folder(), progress=progress
    )
    if not corpus and opened.identity and tokens.identity != opened.identity:
        raise ConfigError(
            f"{found.name!r} is not the text of this run any more: SHA-256 "
            f"{tokens.identity[:12]}…, trained on {opened.identity[:12]}…; "
            f"to read it all the same add --corpus {found.name}"
        )
    return tokens


def check_memory(model: Model, mem_len: int | None) -> None:
    positions = model.config.positions
    if mem_len is not None and positions not in ("relative", "none"):
        raise ConfigError(
            f"--mem-len {mem_len} means nothing to {positions} positions, which remember "
            f"their window of {model.config.max_len} tokens; leave it out"
        )
