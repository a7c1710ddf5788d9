"""From a recipe to a trained model: the whole job, as the command line and a notebook call it.

>>> import tempfile
>>> from pathlib import Path
>>> from parformer.recipe import read_recipe
>>> small = {"model.d_model": 16, "model.d_inner": 16, "train.steps": 2, "train.batch": 2}
>>> less = {"data.corpus": "python-docs", "train.evaluate_tokens": 256, "train.final_tokens": 256}
>>> recipe = read_recipe("pocket", {**small, **less, "train.compile": "off"})
>>> with tempfile.TemporaryDirectory() as folder:
...     outcome = train_model(recipe, Path(folder) / "run")
>>> outcome.finished, sorted(outcome.result.scores)
(True, ['test', 'valid'])
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from parformer.costs import cost
from parformer.data.batches import sample
from parformer.data.corpora import Corpus, find_corpus
from parformer.data.documents import prepare_documents
from parformer.data.labelled import Labelled
from parformer.data.pairs import Filters, find_pairs, sides_of
from parformer.data.tokenizers import Tokenizer
from parformer.data.tokens import Prepared, prepare
from parformer.errors import ConfigError, CorpusError, FolderError
from parformer.evaluate.counting import References, references_of
from parformer.events import Preparing, Watch
from parformer.recipe import DataConfig, Recipe
from parformer.store.files import cache_folder
from parformer.tasks.preparing import kind_of, read_labelled
from parformer.tasks.translate import need_pair
from parformer.train import overfit
from parformer.train.alike import read_curve
from parformer.train.allocator import keep_memory
from parformer.train.distributed import Workers
from parformer.train.loop import Outcome, train
from parformer.train.objective import teacher_identity
from parformer.train.plan import decide, fit_vocabulary
from parformer.train.run import (
    agree,
    is_run,
    make_folder,
    only_one,
    open_run,
    read_run,
    read_run_tokenizer,
    start_run,
)
from parformer.train.session import refuse_misfits
from parformer.train.start import open_start


def train_model(
    recipe: Recipe | None,
    path: Path,
    *,
    chosen: Collection[str] = (),
    workers: Workers | None = None,
    watch: Watch | None = None,
    until: int | None = None,
    beside: bool = False,
    prepared: Prepared | None = None,
) -> Outcome:
    """Train by a recipe in a run folder; a run that is there already goes on.

    Without a recipe the run's own is followed. `chosen` names the fields that the caller set
    by hand, which a run must agree to. `until` stops after that step, to go on another time.
    With `beside` the outcome also tells what counting reaches. Who has the text open already
    gives it as `prepared`.
    """
    workers, watch = workers or Workers(), watch or Watch()

    def settle(recipe: Recipe, prepared: Prepared) -> Recipe:
        tokens = prepared.splits["train"].tokens
        refuse_misfits(recipe, tokens, workers)
        refuse_teacher(recipe, prepared.tokenizer)
        if recipe.compress is not None and recipe.compress.teacher:
            known = teacher_identity(recipe.compress.teacher)
            recipe = recipe.replaced({"compress.teacher_identity": known})
        return decide(recipe, tokens, workers, watch.notice)

    if recipe is not None:
        recipe = replace(recipe, search=None)
    with running(recipe, path, settle, chosen, workers, watch, prepared) as (recipe, prepared):
        if recipe.search is not None:
            raise ConfigError(
                f"the run {str(path)!r} holds a search; go on with: "
                f"parformer search differentiable --run {path}"
            )
        outcome = train(recipe, prepared, path, workers=workers, watch=watch, until=until)
        if workers.first and outcome.finished and not recipe.train.patience:
            tell_overfit(prepared, path, watch)
        if beside and workers.first and outcome.finished:
            outcome = replace(outcome, beside=count_beside(recipe, prepared))
        return outcome


def tell_overfit(prepared: Prepared, path: Path, watch: Watch) -> None:
    """Say so where a loss was lower on the way; what tells labels is not judged by its loss."""
    if isinstance(prepared, Labelled):
        return
    if found := overfit.advice(read_curve(path, "valid_loss")):
        watch.notice(found)


def refuse_teacher(recipe: Recipe, tokenizer: Tokenizer) -> None:
    """As many words need not be the same words: a teacher has to read with the same tokenizer."""
    teacher = "" if recipe.compress is None else recipe.compress.teacher
    known = open_run(Path(teacher)).tokenizer if teacher else None
    if known is not None and known != tokenizer:
        raise FolderError(
            f"the teacher {teacher!r} reads {known.size:,} {known.kind} tokens, the student "
            f"{tokenizer.size:,} {tokenizer.kind} tokens of another vocabulary; take a teacher of "
            "the same vocabulary"
        )


def count_beside(recipe: Recipe, prepared: Prepared) -> dict[str, References]:
    """What counting reaches on the tokens that the model is scored on in the end."""
    if not recipe.model.causal or recipe.model.source is not None:
        return {}  # a masked model sees both sides of what it guesses, a translator its source
    limits = {"valid": recipe.train.evaluate_tokens, "test": recipe.train.final_tokens}
    samples = {
        split: sample(prepared.splits[split].tokens, limit)
        for split, limit in limits.items()
        if split in prepared.splits
    }
    known = {split: tokens for split, tokens in samples.items() if len(tokens) > 1}
    return references_of(prepared, known, size=recipe.model.counts)


@contextmanager
def running(
    recipe: Recipe | None,
    path: Path,
    settle: Callable[[Recipe, Prepared], Recipe],
    chosen: Collection[str],
    workers: Workers,
    watch: Watch,
    prepared: Prepared | None = None,
) -> Iterator[tuple[Recipe, Prepared]]:
    """A run that is this process' own for the while, with its recipe and its text.

    What a new run's recipe leaves open, `settle` decides; it refuses what cannot be done
    before anything is written down. Who has the text open already gives it as `prepared`.
    """
    keep_memory()
    with ExitStack() as stack:
        if workers.first:
            if recipe is None and not is_run(path):
                raise ConfigError(f"there is no run at {str(path)!r} yet; name a MODEL to train")
            make_folder(path)
            stack.enter_context(only_one(path))
        known = workers.share("yes" if is_run(path) else "") == "yes"
        if known:
            stored = read_run(path)
            recipe = stored if recipe is None else agree(stored, recipe, set(chosen), path)
            tokenizer = read_run_tokenizer(path)
            if prepared is None:
                recipe, prepared = read_data(recipe, workers, watch, tokenizer, path)
        else:
            assert recipe is not None
            if prepared is None:
                own = starting_tokenizer(recipe)
                recipe, prepared = read_data(recipe, workers, watch, own, path)
            if not isinstance(prepared, Labelled):
                recipe = fit_vocabulary(recipe, prepared.tokenizer, watch.notice)
            recipe = recipe.replaced({"data.identity": prepared.identity})
            recipe = settle(recipe, prepared)
            if workers.first:
                start_run(path, recipe, prepared.tokenizer)
        watch.training(in_a_line(recipe, prepared, path), unit_of(recipe, prepared.tokenizer))
        yield recipe, prepared


def in_a_line(recipe: Recipe, prepared: Prepared, path: Path) -> str:
    """What is about to be trained."""
    train, search = recipe.train, recipe.search
    amount = f"{train.batch} × {train.tgt_len or recipe.model.step_len} tokens"
    if recipe.data.pair:
        amount = f"{train.batch_tokens:,} tokens" if train.batch_tokens else f"{train.batch} pairs"
    much = f"{prepared.splits['train'].tokens.size:,} {prepared.tokenizer.kind} tokens"
    if isinstance(prepared, Labelled):
        amount, much = f"{train.batch}", f"{len(prepared.examples['train']):,} examples"
    text = f"{much} of {recipe.data.corpus}, {train.steps:,} updates of {amount}"
    if search is not None:
        layers = search.layers or len(recipe.model.pattern)
        seeds = f"{search.seeds} {'seed' if search.seeds == 1 else 'seeds'}"
        choices = f"{layers} layers choose from {search.choices}, {search.mode}"
        return f"{choices}; {text}, {seeds}, run {path}"
    return (
        f"{recipe.model.pattern}  {cost(recipe.model).parameters:,} parameters, {text}, "
        f"{train.optimizer} at {train.learning_rate:g}, {train.precision}, run {path}"
    )


def starting_tokenizer(recipe: Recipe) -> Tokenizer | None:
    """The tokenizer of the model that a new run starts from, if it starts from one."""
    return open_start(Path(recipe.train.start)).tokenizer if recipe.train.start else None


def unit_of(recipe: Recipe, tokenizer: Tokenizer) -> str:
    """What people read losses in."""
    if recipe.model.label_head != "none":
        return "loss"
    return "perplexity" if tokenizer.made_of == "words" else "bits"


def read_data(
    recipe: Recipe, workers: Workers, watch: Watch, tokenizer: Tokenizer | None, path: Path
) -> tuple[Recipe, Prepared]:
    """Text or labelled texts as tokens; labels also say what the model has to tell apart."""
    if not kind_of(recipe.train.task):
        return recipe, read_text(recipe, workers, watch, tokenizer, path)
    recipe, found = read_labelled(recipe, tokenizer, watch.preparing)
    for note in found.notes:
        watch.notice(note)
    refuse_other_text(recipe.data, found.identity, path)
    return recipe, found


def read_text(
    recipe: Recipe, workers: Workers, watch: Watch, tokenizer: Tokenizer | None, path: Path
) -> Prepared:
    """The text as tokens; the first process makes them, the others find them made."""
    need_pair(recipe)
    if not workers.first:
        workers.share("")
    corpus = find_text(recipe, watch, path)
    if recipe.train.task == "pretrain":
        prepared = as_documents(corpus, recipe, watch, tokenizer)
    else:
        prepared = as_tokens(corpus, recipe, watch, tokenizer)
    if workers.first:
        workers.share("ready")
    return prepared


def find_text(recipe: Recipe, watch: Watch, path: Path) -> Corpus:
    """The text that a recipe names; another one than a run began with is refused."""
    data = recipe.data
    corpus = corpus_of(data, watch.preparing)
    if corpus.left_out:
        watch.notice(f"{data.corpus} is {corpus.about}.")
    if corpus.note:
        watch.notice(f"{data.corpus}: {corpus.note}.")
    refuse_other_text(data, corpus.identity() if data.identity else "", path)
    return corpus


def refuse_other_text(data: DataConfig, identity: str, path: Path) -> None:
    if data.identity and identity != data.identity:
        raise CorpusError(
            f"the text of {data.corpus!r} is not the one that the run {str(path)!r} was "
            "started with; restore it, or choose another --run"
        )


def corpus_of(data: DataConfig, progress: Preparing, *, training: bool = True) -> Corpus:
    """The text that a recipe names, or its pairs, those for training among them."""
    if data.pair:
        filters = Filters(
            longest=data.longest,
            ratio=data.ratio,
            lower=data.lower,
            source_words=data.source_words,
        )
        return find_pairs(
            data.corpus,
            data.pair,
            filters,
            local=data.local or None,
            progress=progress,
            training=training,
        )
    local = data.local or None
    return find_corpus(data.corpus, local=local, progress=progress, identity=data.identity)


MANY_FILES = 20
"""From so many files on each is taken for a document."""


def as_documents(
    corpus: Corpus, recipe: Recipe, watch: Watch, tokenizer: Tokenizer | None
) -> Prepared:
    """A text as documents and sentences."""
    data, how = recipe.data, recipe.data.documents
    if tokenizer is None:
        found = as_tokens(corpus, recipe, watch)  # which keeps the tokenizer that it learns
        tokenizer = found.tokenizer
    files = how == "files" or (how == "auto" and len(corpus.texts["train"]) >= MANY_FILES)
    return prepare_documents(
        corpus,
        tokenizer,
        files=files and not data.field,
        field=data.field,
        cache=cache_folder(),
        progress=watch.preparing,
    )


def as_tokens(
    corpus: Corpus, recipe: Recipe, watch: Watch, tokenizer: Tokenizer | None = None
) -> Prepared:
    """A text as tokens, with what training needs of it."""
    data = recipe.data
    prepared = prepare(
        corpus,
        data.tokenizer,
        vocab_size=data.vocab_size,
        min_count=data.min_count,
        sides=sides_of(data.tokenizer, data.vocabularies) if data.pair else 0,
        tokenizer=tokenizer,
        cache=cache_folder(),
        progress=watch.preparing,
    )
    for split in ("train", "valid"):
        if split not in prepared.splits:
            raise CorpusError(
                f"{data.corpus!r} has no {split} split; training needs train and valid"
            )
        if len(prepared.splits[split].tokens) < 2:
            raise CorpusError(
                f"the {split} split of {data.corpus!r} has a single token; give a longer text"
            )
    return prepared
