"""What does a model with an encoder make of a source?

>>> import parformer as pf, torch
>>> model = pf.build(pf.preset("transformer-pocket-translation", vocab_size=32, pad=1))
>>> source = torch.tensor([[5, 9, 4, 2], [7, 2, 1, 1]])
>>> found = translate(model, source, beam=3, max_len=6)
>>> found.tokens.shape[:2], found.scores.shape
(torch.Size([2, 3]), torch.Size([2, 3]))
"""

# b sentences, k texts of each, s source, t time, v vocabulary

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any

import torch
from torch import Tensor

from parformer.blocks.base import Source
from parformer.convert.translator import Translator
from parformer.embedding import check_tokens
from parformer.errors import ConfigError, InputError
from parformer.evaluate.perplexity import at_rest
from parformer.fields import check_names, need_at_least
from parformer.generate.beam import Found, Marks, Reader, Search, forbid, keep_only
from parformer.generate.decoding import Decoding
from parformer.generate.writing import Sampling
from parformer.model import Model

MARKS = {"fairseq": (2, 2), "imitkd": (2, 3)}
"""Start and end where nobody names them: fairseq starts with the end, imitkd has one of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Translations:
    """The texts that were found for each source."""

    tokens: Tensor
    """(batch, texts, time), filled up with pad: fairseq's with their end, imitkd's with start and
    end and as long as the longest allowed."""
    scores: Tensor
    """(batch, texts): sums of log-probabilities, divided by a power of the length in fairseq."""
    best: Tensor
    """(batch,) which text has the highest score once its length is counted."""
    marks: Marks

    @property
    def translation(self) -> Tensor:
        """(batch, time) the best text of each source."""
        return self.tokens[torch.arange(len(self.tokens)), self.best]

    def plain(self, row: int, text: int | None = None) -> list[int]:
        """The words of a text, its best unless another is asked for: no start, end or pad."""
        chosen = int(self.best[row]) if text is None else text
        marks = {self.marks.start, self.marks.end, self.marks.pad}
        return [token for token in self.tokens[row, chosen].tolist() if token not in marks]


def translate(
    model: Model | Translator,
    source: Tensor,
    *,
    padding: Tensor | None = None,
    prefix: Sequence[Sequence[int]] = (),
    start: int | None = None,
    end: int | None = None,
    pad: int | None = None,
    n_best: int = 0,
    greedy: bool = False,
    sampling: Sampling | None = None,
    seed: int = 0,
    **search: Any,
) -> Translations:
    """Texts for each row of `source` (batch, time), best first, and what each scored.

    `search` are the fields of `Decoding`: beam, style, length_penalty, min_len, max_len,
    no_repeat_ngram. With `greedy` the likeliest token is taken each time, with `sampling` one is
    drawn; then `n_best` texts, one unless more are wanted, stand where beams do. `prefix` holds
    the tokens that each text has to begin with. `padding` is true where there is a token.
    """
    check_names(search, [field.name for field in fields(Decoding)], "field of a search")
    beam = Decoding(**search)
    known = model if isinstance(model, Translator) else None
    if isinstance(model, Translator):
        model = model.model
    marks = find_marks(model, known, beam, (start, end, pad))
    if greedy and sampling is not None:
        raise ConfigError("greedy and sampling contradict each other; give one of them")
    drawn = Sampling(temperature=0.0) if greedy else sampling
    check_search(model, source, beam, n_best, drawn)
    check_prefix(model, len(source), marks, beam, prefix)
    if padding is None:
        padding = source != marks.pad
    with at_rest(model):
        read = model.encode(source, None if bool(padding.all()) else padding)
        if drawn is None:
            found = Search(model, read, marks, beam, prefix).run()
            if n_best:
                found = [sorted(texts, key=lambda one: -one.score)[:n_best] for texts in found]
        else:
            found = draw_texts(model, read, marks, beam, drawn, n_best or 1, seed, prefix)
    return gathered(found, marks, beam, drawn is None and not n_best)


def find_marks(
    model: Model,
    known: Translator | None,
    beam: Decoding,
    given: tuple[int | None, int | None, int | None],
) -> Marks:
    """Start, end and pad: those given, the translator's own, or those of the style."""
    config = model.config
    if known is not None:
        usual = (known.start, known.end, known.pad)
    else:
        first, last = MARKS[beam.style]
        own = (config.start, config.end)
        usual = (*(own if min(own) >= 0 else (first, last)), config.pad)
    names = ("start", "end", "pad")
    chosen = [u if g is None else g for g, u in zip(given, usual, strict=True)]
    for name, token in zip(names, chosen, strict=True):
        if not 0 <= token < config.vocab_size:
            raise InputError(
                f"{name} {token} is no token of a vocabulary of {config.vocab_size:,}; "
                f"name it with {name}="
            )
    return Marks(*chosen)


def check_search(
    model: Model,
    source: Tensor,
    beam: Decoding,
    n_best: int,
    drawn: Sampling | None,
) -> None:
    """Refuse what cannot be looked for."""
    config = model.config
    if model.encoder is None:
        raise InputError(
            f"a model without an encoder ({str(config.pattern)!r}) reads no source; take one "
            "whose pattern is encoder | decoder"
        )
    need_at_least("n_best", n_best, 0)
    if drawn is None and n_best > beam.beam:
        raise ConfigError(f"n_best {n_best} exceeds beam {beam.beam}; raise beam")
    least = beam.beam + 2 if beam.style == "fairseq" else beam.beam
    if drawn is None and least > config.vocab_size:
        raise InputError(
            f"beam {beam.beam} is too wide for a vocabulary of {config.vocab_size}; lower it"
        )
    check_tokens(source, config.source_words.vocab_size, "the source's tokens")
    if config.numbered and source.shape[1] > config.max_len:
        raise InputError(
            f"a source of {source.shape[1]} tokens exceeds the {config.max_len} places of this "
            "model; cut it, or take a model with a larger max_len"
        )


def check_prefix(
    model: Model,
    sources: int,
    marks: Marks,
    beam: Decoding,
    prefix: Sequence[Sequence[int]],
) -> None:
    """Refuse beginnings that no text can have."""
    if prefix and len(prefix) != sources:
        raise InputError(f"there are {len(prefix)} prefixes for {sources} sources")
    room = beam.places(model) - 1
    for row, tokens in enumerate(prefix, 1):
        size = model.config.vocab_size
        if any(not 0 <= token < size for token in tokens):
            raise InputError(f"prefix {row} is not within the vocabulary of {size}")
        if {marks.end, marks.pad} & {*tokens}:
            raise InputError(
                f"prefix {row} holds the end {marks.end} or the pad {marks.pad}, after which "
                "nothing comes; leave it out"
            )
        if len(tokens) > room:
            raise InputError(
                f"prefix {row} has {len(tokens)} tokens, and a text {room} at most; shorten it, "
                "or raise max_len"
            )


def draw_texts(
    model: Model,
    source: Source,
    marks: Marks,
    beam: Decoding,
    sampling: Sampling,
    count: int,
    seed: int,
    prefix: Sequence[Sequence[int]],
) -> list[list[Found]]:
    """`count` texts of each source, drawn token by token; a finished one leaves the batch."""
    sentences, places = len(source.vectors_bsd), beam.places(model)
    reader = Reader(model, source, places)
    device = source.vectors_bsd.device
    rows = [(n, k) for n in range(sentences) for k in range(count)]
    randoms = {row: Random(f"{seed} {row[0]} {row[1]}") for row in rows}
    texts: dict[tuple[int, int], list[int]] = {row: [marks.start] for row in rows}
    sums = dict.fromkeys(rows, 0.0)
    with reader.natively(count):
        logs_nv = reader.next(torch.full((sentences,), marks.start, device=device))
        first_n = torch.arange(sentences, device=device).repeat_interleave(count)
        reader.keep(first_n)
        logs_nv = logs_nv[first_n]
        last = places - 1 if beam.style == "fairseq" else places - 2
        for step in range(last + 1):
            seen_nv = torch.zeros(logs_nv.shape, dtype=torch.bool)
            for place, (n, k) in enumerate(rows):
                seen_nv[place, texts[n, k]] = True
                forced = prefix[n] if prefix else ()
                limit(logs_nv[place], texts[n, k], marks, beam, forced, last=step == last)
            uniforms = [randoms[row].random() for row in rows]
            chosen = sampling.choose(logs_nv.cpu(), seen_nv, uniforms)
            for place, (row, token) in enumerate(zip(rows, chosen, strict=True)):
                texts[row].append(token)
                sums[row] += float(logs_nv[place, token])
            going = [place for place, token in enumerate(chosen) if token != marks.end]
            if not going or step == last:
                break
            rows = [rows[place] for place in going]
            reader.keep(torch.tensor(going, device=device))
            logs_nv = reader.next(torch.tensor([chosen[place] for place in going], device=device))
    bare = 1 if beam.style == "fairseq" else 0
    found = {
        row: Found(text[bare:], sums[row] / (len(text) - bare) ** beam.penalty, sums[row])
        for row, text in texts.items()
    }
    return [[found[n, k] for k in range(count)] for n in range(sentences)]


def limit(
    logs_v: Tensor,
    text: list[int],
    marks: Marks,
    beam: Decoding,
    prefix: Sequence[int],
    *,
    last: bool,
) -> None:
    """What a text, its start counted, may not go on with, where it is drawn."""
    step = len(text) - 1
    if last and beam.style == "fairseq":
        keep_only(logs_v, marks.end)
    elif step < len(prefix):
        keep_only(logs_v, prefix[step])
    else:
        logs_v[marks.pad] = -math.inf
        forbid(logs_v, text, step, marks.end, beam)


def gathered(
    found: Sequence[Sequence[Found]], marks: Marks, beam: Decoding, whole: bool
) -> Translations:
    """Texts of different lengths as one table."""
    fairseq = beam.style == "fairseq"
    count = beam.beam if whole else max(map(len, found))
    longest = max((len(one.tokens) for texts in found for one in texts), default=1)
    time = longest if fairseq else max(longest, beam.longest if beam.max_len else longest)
    tokens_bkt = torch.full((len(found), count, time), marks.pad)
    scores_bk = torch.full((len(found), count), -math.inf)
    for row, texts in enumerate(found):
        for k, one in enumerate(texts):
            tokens_bkt[row, k, : len(one.tokens)] = torch.tensor(one.tokens)
            scores_bk[row, k] = one.score if fairseq else one.total
    ranks = [max(range(len(texts)), key=lambda k: texts[k].score) for texts in found]
    return Translations(tokens_bkt, scores_bk, torch.tensor(ranks), marks)
