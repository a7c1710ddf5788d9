"""Pairs: what is to be written for a source? Translations, mostly."""

# b batch, t time

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from statistics import median
from types import MappingProxyType

import numpy as np

from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.data.corpora import Corpus
from parformer.data.paired import Row
from parformer.data.tokens import Prepared
from parformer.embedding import IGNORE
from parformer.evaluate.counting import references
from parformer.evaluate.perplexity import at_rest
from parformer.evaluate.translation import has_metrics, overlap
from parformer.events import Watch
from parformer.fitting.kinds.answers import short
from parformer.fitting.kinds.base import Kind, Losses
from parformer.fitting.phases import TextFacts
from parformer.fitting.rules import DEPTHS, Placement
from parformer.fitting.scored import FINAL, Metrics, TaskScores
from parformer.generate.request import generate
from parformer.generate.sentences import translate_all
from parformer.measure.readings import Meter, Step, measure_here
from parformer.model import Model
from parformer.pattern import Pattern
from parformer.recipe import Recipe
from parformer.report.words import Unit
from parformer.search.sentences import sentence_flops, sentence_meter
from parformer.search.sizes.objectives import Figures, countable
from parformer.tasks import Translate
from parformer.tasks.translate import READ, entropies, logits_of, within
from parformer.train.job import as_tokens
from parformer.train.plan import fit_vocabulary

LADDER = ((48, 3), (64, 3), (96, 3), (128, 3), (192, 3), (256, 4), (320, 5), (384, 6))
"""Widths, and layers of the encoder and of the decoder."""
TOKENS_PER_PARAMETER = 2.0
"""Tokens that a finalist reads in the contest for each parameter of its stacks."""
BATCH_TOKENS = 2048
EVALUATED = 32_768
"""Tokens of references in the valid split that models are compared on."""
STRETCHES = 64
"""Groups of pairs whose losses are compared."""
TRANSLATED = 500
"""Sentences of a split that are translated for its BLEU."""
SHOWN, MOST_WORDS = 4, 200
"""Pairs that a report shows, and characters of each."""
HOW = "greedy, the likeliest token each time"
COPY = "copying the source"


class Pairs(Kind):
    """Sources, and what was written for them."""

    behind = 0.06
    spread = 0.01
    without = MappingProxyType(
        {"search": "encoders and decoders are not searched: the placements by rule take part"}
    )

    @property
    def what(self) -> str:
        return f"a translator {self.request.pair} of texts like those of {self.request.corpus}"

    @property
    def unit(self) -> Unit:
        return Unit("perplexity", "perplexity")

    def recipe(self) -> Recipe:
        own: dict[str, object] = {
            "data.pair": self.request.pair,
            "train.task": "translate",
            "train.batch_tokens": BATCH_TOKENS,
            "train.average": 0,  # the best weights are kept in its place
        }
        return self.request.recipe().replaced(own)

    def read(
        self, corpus: Corpus | None, watch: Watch, path: Path, identity: str
    ) -> tuple[Recipe, Prepared]:
        assert corpus is not None, "pairs were found"
        recipe = self.recipe()
        prepared = as_tokens(corpus, recipe, watch)
        return fit_vocabulary(recipe, prepared.tokenizer, lambda _: None), prepared

    def facts(self, recipe: Recipe, prepared: Prepared) -> TextFacts:
        task = Translate(recipe)
        pairs = {split: task.pairs(one.tokens) for split, one in prepared.splits.items()}
        train = pairs["train"]
        counted = references(
            targets_of(train, recipe), {"valid": targets_of(pairs["valid"], recipe)},
            vocab_size=recipe.model.vocab_size, orders=2,
        )["valid"]  # fmt: skip
        return TextFacts(
            identity=prepared.identity,
            tokens=sum(len(source) + len(target) for source, target in train),
            bytes=prepared.splits["train"].bytes,
            vocabulary=prepared.tokenizer.size,
            overlap={},
            references={},
            examples={split: len(some) for split, some in pairs.items()},
            length=max(2, int(median(len(target) for _, target in train))),
            source=max(2, int(median(len(source) for source, _ in train))),
            ignorance=counted.unigram,
            to_beat=counted.bigram,
            plain=copied(pairs, prepared) if has_metrics() else {},
        )

    def rungs(self, like: ModelConfig, facts: TextFacts) -> list[ModelConfig]:
        return [translator_rung(like, *size) for size in LADDER]

    def wanted(self, config: ModelConfig, facts: TextFacts) -> float:
        return TOKENS_PER_PARAMETER * cost(config).decoder_parameters  # of the stacks

    def placements(self, base: ModelConfig, found: str) -> list[Placement]:
        return translator_placements(len(base.pattern) // 3, self.request.letters)

    def step_words(self, step: Step, base: ModelConfig) -> str:
        return f"a whole sentence of {step.tgt_len} tokens, {HOW}, fp32"

    def price(self, config: ModelConfig, step: Step, facts: TextFacts) -> Figures:
        """Reading the source once, and a step for each token."""
        length = step.tgt_len or 1
        one = cost(config, tgt_len=1, mem_len=length // 2, src_len=facts.source)
        return countable(one) | {"flops": float(sentence_flops(config, length, facts.source))}

    def meter(self, usual: Meter, facts: TextFacts) -> Meter:
        return sentence_meter(facts.source) if usual is measure_here else usual

    def training(self, config: ModelConfig, root: Path) -> Mapping[str, object]:
        return {"train.final_tokens": 256}

    def losses(self, recipe: Recipe, model: Model, prepared: Prepared) -> Losses:
        task = Translate(recipe)
        pairs = within(task.pairs(prepared.splits["valid"].tokens), EVALUATED)
        groups = min(STRETCHES, len(pairs))
        sums, counts = np.zeros(groups), np.zeros(groups)
        with at_rest(model):
            for numbers, batch in task.paired(pairs, seed=0, tokens=READ).in_order():
                lost_bt = entropies(logits_of(model, batch), batch.targets)
                lost_bt = lost_bt.view(batch.targets.shape)
                there_bt = batch.targets != IGNORE
                for row, number in enumerate(numbers):
                    sums[number % groups] += float(lost_bt[row][there_bt[row]].double().sum())
                    counts[number % groups] += int(there_bt[row].sum())
        return np.asarray(sums / np.maximum(counts, 1))

    def scores(
        self, recipe: Recipe, models: Mapping[str, Model], prepared: Prepared, facts: TextFacts
    ) -> TaskScores | None:
        if not has_metrics():
            return None
        task, splits = Translate(recipe), dict[str, dict[str, Metrics]]()
        between: dict[str, tuple[float, float]] = {}
        for split in ("valid", "test"):
            if split not in prepared.splits:
                continue
            pairs = some_of(task.pairs(prepared.splits[split].tokens))
            splits[split] = dict(facts.plain.get(split, {}))
            for name, model in models.items():
                sure = name == FINAL and split == "test"
                texts = task.written(model, prepared, pairs, greedy=True)
                found = overlap(texts.written, texts.references, bootstrap=sure)
                splits[split][name] = {"bleu": found.bleu, "chrf": found.chrf}
                if found.low is not None and found.high is not None:
                    between[split] = found.low, found.high
        sizes = {split: min(TRANSLATED, facts.examples[split]) for split in splits}
        return TaskScores("translate", ("bleu",), splits, between, sizes, HOW)

    def metrics_of(self, values: Mapping[str, object]) -> Metrics:
        return {}  # translating takes longer than a look on the way may

    def shown(
        self, recipe: Recipe, models: Mapping[str, Model], prepared: Prepared
    ) -> list[tuple[str, str, str]]:
        split = "test" if "test" in prepared.splits else "valid"
        pairs = Translate(recipe).pairs(prepared.splits[split].tokens)
        some = pairs[:: max(1, len(pairs) // SHOWN)][:SHOWN]
        read, words = prepared.tokenizer.source.decode, prepared.tokenizer.target.decode
        found = []
        for name, model in models.items():
            texts = translate_all(model, [source.tolist() for source, _ in some], greedy=True)
            rows = [
                f"“{short(read(source.tolist()), MOST_WORDS)}”\n→ {words(text)}\n"
                f"   by a person: {short(words(target.tolist()), MOST_WORDS)}\n"
                for (source, target), text in zip(some, texts, strict=True)
            ]
            found.append((name, "", "\n".join(rows)))
        return found

    def asking(self, run: str, recipe: Recipe, prepared: Prepared) -> tuple[str, Callable[[], str]]:
        split = "test" if "test" in prepared.splits else "valid"
        source, _ = Translate(recipe).pairs(prepared.splits[split].tokens)[0]
        words = prepared.tokenizer.source.decode(source.tolist())

        def ask() -> str:
            (told,) = generate(model=Path(run), sources=(words,), greedy=True)
            return f"it wrote {told.text!r}"

        return f"parformer generate {quote(run)} --source {quote(words)} --greedy", ask


def targets_of(pairs: Sequence[Row], recipe: Recipe) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """All targets with their ends, one after the other."""
    end = np.array([recipe.model.end])
    return np.concatenate([part for _, target in pairs for part in (target, end)]).astype(np.int64)


def some_of(pairs: list[Row], most: int = TRANSLATED) -> list[Row]:
    """Pairs from all over a split."""
    places = np.linspace(0, len(pairs) - 1, min(most, len(pairs))).astype(int)
    return [pairs[n] for n in places]


def copied(
    pairs: Mapping[str, list[Row]], prepared: Prepared
) -> dict[str, dict[str, dict[str, float]]]:
    """What it is worth to write down the source as it is."""
    found, known = {}, prepared.tokenizer
    for split, rows in pairs.items():
        if split != "train":
            some = some_of(rows)
            sources = [known.source.decode(source.tolist()) for source, _ in some]
            same = overlap(sources, [known.target.decode(target.tolist()) for _, target in some])
            found[split] = {COPY: {"bleu": same.bleu, "chrf": same.chrf}}
    return found


def translator_rung(like: ModelConfig, width: int, layers: int) -> ModelConfig:
    """Vaswani's model of this size."""
    heads = 2 if width < 64 else 4 if width < 256 else 8
    sizes: dict[str, object] = {"d_model": width, "n_head": heads, "d_inner": 4 * width}
    return like.replaced(**sizes, pattern=Pattern.parse(f"(sf)x{layers} | (scf)x{layers}"))


def translator_placements(layers: int, letters: str) -> list[Placement]:
    """What may read a source and write.

    >>> for one in translator_placements(3, "sflr"):
    ...     print(one.name, one.patterns[0])
    interleaved (sf)x3 | (scf)x3
    deep (sf)x5 | scf
    lsra (l[kernel=7]f)x3 | (l[kernel=7]cf)x3
    recurrent (sf)x3 | (rcf)x3
    """
    depths = list(dict.fromkeys(max(1, round(share * layers)) for share in DEPTHS))

    def of(pattern: str) -> tuple[Pattern, ...]:
        return tuple(Pattern.parse(pattern.format(n=n, more=max(2, 2 * n - 1))) for n in depths)

    turns = "attention and feed-forward in turn, in encoder and decoder"
    deep = "most layers in the encoder, which reads once; one in the decoder, which runs for every"
    found = [
        Placement("interleaved", "Interleaved, resized", turns, of("(sf)x{n} | (scf)x{n}")),
        Placement(
            "deep", "Deep encoder, shallow decoder", f"{deep} token (Kasai et al. 2021)",
            of("(sf)x{more} | scf"),
        ),
    ]  # fmt: skip
    if "l" in letters:
        how = "attention with half of the channels, convolution with the others (Lite Transformer)"
        near = of("(l[kernel=7]f)x{n} | (l[kernel=7]cf)x{n}")
        found.append(Placement("lsra", "LSRA", how, near))
    if "r" in letters:
        how = "recurrence in the place of the decoder's own attention"
        found.append(Placement("recurrent", "Recurrent decoder", how, of("(sf)x{n} | (rcf)x{n}")))
    return found
