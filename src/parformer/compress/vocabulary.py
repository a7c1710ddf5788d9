"""How does a model get a smaller vocabulary?

Tokens that the training text never has go, with their rows of the table and of the head; under a
limit those that it has least go too. Tokenizer and model stay one: tokens are numbered anew, and
whatever was lost is spelled in smaller pieces, or unknown where there are none.

>>> import numpy as np
>>> least_used(np.array([9, 0, 4, 1, 0, 6]), wanted=0, share=0.1).tolist()
[1, 4]
>>> least_used(np.array([9, 0, 4, 1, 0, 6]), wanted=5, share=0.1).tolist()
[1, 4, 3]
"""

# v vocabulary

from __future__ import annotations

from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parformer.blocks.ngrams import NGramMemory
from parformer.compress.coding import coded_maps
from parformer.compress.work import ATTEMPTS, Work, wanted_share
from parformer.compress.worth import price_of
from parformer.data.fewer import fewer
from parformer.data.labelled import Labelled, unpacked
from parformer.data.tokenizers import TOKENIZER, Tokenizer
from parformer.data.tokens import Prepared
from parformer.embedding import has_cluster_tables
from parformer.errors import ConfigError
from parformer.model import Model, build_from
from parformer.store.files import replace_file
from parformer.weights import named_tensors

ROWS = (
    *("embedding.words.tables.0", "head.out.weight", "head.out.bias"),
    *("head.more.weight", "head.tables.0", "head.bias"),
)
"""Weights that have a row for each token."""
CLUSTERS = ("embedding.words.tables", "head.tables")
MARKS = ("pad", "start", "end")
"""Fields of a configuration that name a token."""

Counts = NDArray[np.int64]


def with_tokens(model: Model, kept_v: Tensor) -> Model:
    """The model with these rows of its vocabulary alone, numbered from 0 on."""
    refuse(model)
    config = model.config
    apart = has_cluster_tables(config)
    tensors = {}
    for name, tensor in named_tensors(model).items():
        stem, _, number = name.rpartition(".")
        rows: Tensor | None = None
        if apart and stem in CLUSTERS:
            cluster = config.clusters[int(number)]
            rows = kept_v[(kept_v >= cluster.low) & (kept_v < cluster.high)] - cluster.low
        elif name in ROWS:
            rows = kept_v
        tensors[name] = tensor.detach() if rows is None else tensor.detach()[rows]
    places = {old: new for new, old in enumerate(kept_v.tolist())}
    changes: dict[str, object] = {"vocab_size": len(kept_v)}
    changes["cutoffs"] = tuple(int((kept_v < cut).sum()) for cut in config.cutoffs)
    for name in MARKS:
        if (old := getattr(config, name)) >= 0:
            if old not in places:
                raise ConfigError(f"{name} is token {old}, which would be lost; keep it")
            changes[name] = places[old]
    return build_from(config.replaced(**changes), tensors)


def refuse(model: Model) -> None:
    """Tell whose rows are not all that knows its tokens."""
    config = model.config
    if list(coded_maps(model)):
        raise ConfigError(
            "this model is quantized already; cut its vocabulary first, then quantize"
        )
    told = ""
    if config.counts:
        told = "its table of counts is of the whole vocabulary"
    elif any(isinstance(module, NGramMemory) for module in model.modules()):
        told = "its memory of n-grams finds rows by the numbers of tokens"
    elif config.source_vocab:
        told = "its source has a vocabulary of its own"
    if told:
        raise ConfigError(f"{told}, so the vocabulary stays; leave out that step")


def used(prepared: Prepared, size: int) -> Counts:
    """How often the training text has each token."""
    tokens = prepared.splits["train"].tokens
    if isinstance(prepared, Labelled):
        rows = [row for one in unpacked(tokens) for row, _ in one.rows]
        tokens = np.concatenate([np.asarray(row, np.int64) for row in rows])
    return np.bincount(tokens, minlength=size)


def least_used(counts: Counts, wanted: int, share: float) -> NDArray[np.intp]:
    """What goes: all that never occurs, and more of the rarest until so many went.

    All that goes makes up at most this share of the text.
    """
    order = np.argsort(counts, kind="stable")
    never = int((counts == 0).sum())
    bearable = int((np.cumsum(counts[order]) <= share * counts.sum()).sum())
    return order[: max(never, min(wanted, bearable))]


def without_least(
    model: Model, tokenizer: Tokenizer, counts: Counts, wanted: int, share: float
) -> tuple[Model, Tokenizer, list[int]]:
    """Model and tokenizer without what is used least, and the old numbers of what stays."""
    gone = set(least_used(counts, wanted, share).tolist())
    for cluster in model.config.clusters[1:]:
        gone.discard(cluster.low)  # none of an adaptive vocabulary's parts may be empty
    smaller, kept = fewer(tokenizer, [n for n in range(tokenizer.size) if n not in gone])
    # rows behind the tokenizer's own stand for a mask, or for no token
    rows = [*kept, *range(tokenizer.size, model.config.vocab_size)]
    return with_tokens(model, torch.tensor(rows)), smaller, kept


def cut_vocabulary(model: Model, work: Work) -> tuple[Model, str]:
    """Fewer tokens: those that the text does not use, and under a limit those it uses least."""
    refuse(model)
    tokenizer, whole = work.bench.prepared.tokenizer, model.config.vocab_size
    counts = used(work.bench.prepared, tokenizer.size)[: tokenizer.size]
    # per example or hidden word, losses of texts that are cut otherwise do not compare
    share = work.targets.may_lose if work.bench.reads_on else 0.0
    made, smaller, kept = without_least(model, tokenizer, counts, 0, share)
    if work.targets.latency is not None or work.targets.size is not None:
        price = price_of(work)
        before = price(model)
        most = wanted_share(work) * before
        for _ in range(ATTEMPTS):
            gone, saved = whole - made.config.vocab_size, before - price(made)
            if before - saved <= most:
                break
            each = saved / gone if gone else 0.0
            wanted = ceil((before - most) / each) if each > 0 else gone + whole // 4
            found = without_least(model, tokenizer, counts, wanted, share)
            if found[0].config.vocab_size >= made.config.vocab_size:
                break
            made, smaller, kept = found
    file = work.folder / TOKENIZER
    if made.config.vocab_size == whole:
        file.unlink(missing_ok=True)
        return model, f"the text uses all {whole:,} tokens, or needs them to spell"
    work.folder.mkdir(parents=True, exist_ok=True)
    replace_file(file, smaller.to_json())
    lost = 1 - int(counts[kept].sum()) / int(counts.sum())
    told = f"{made.config.vocab_size:,} of {whole:,} tokens stay"
    return made, f"{told}; {lost:.2%} of the training text is spelled otherwise"
