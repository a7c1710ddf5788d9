"""Do published models of translation and summarisation train as their authors did?"""

from __future__ import annotations

import pytest

import parformer as pf
from parformer.config import presets
from parformer.data.pairs import Filters, read_lines
from parformer.recipe import read_recipe
from parformer.tasks.translate import Translate
from parformer.train.schedule import rate


@pytest.mark.parametrize("decay", [0.1, 0.0])
def test_recipes_of_the_papers(decay: float) -> None:
    """SRU++ (Lei 2021, appendix) and its baseline, and Lite Transformer's yaml files."""
    name = "srupp-translation-iwslt" if decay else "transformer-translation-iwslt"
    own = read_recipe(name)
    train = own.train
    assert (train.optimizer, train.weight_decay, train.epochs) == ("radam", decay, 50)
    assert (train.batch, train.clip, train.label_smoothing) == (128, 5.0, 0.0)
    # 0.1 · step / 10,000^1.5 up to 10,000, then 0.1 / √step
    assert rate(4_999, train) == pytest.approx(0.1 * 5_000 / 10_000**1.5)
    assert rate(39_999, train) == pytest.approx(0.1 / 40_000**0.5)
    assert own.data.vocabularies == "separate"
    assert Translate(own).recipe.data.pair == "de-en"
    lite = read_recipe("lite-translation-496").train
    assert (lite.steps, lite.batch_tokens, lite.label_smoothing) == (50_000, 524_288, 0.1)
    assert (rate(9_999, lite), rate(49_999, lite)) == pytest.approx((1e-3, 1e-7), rel=1e-2)
    talks = read_recipe("lite-translation-iwslt-240")
    drops = (talks.model.dropout, talks.model.dropatt, talks.model.dropkernel)
    assert drops == (0.2, 0.0, 0.1)
    assert (rate(3_999, talks.train), rate(15_999, talks.train)) == pytest.approx((5e-4, 2.5e-4))
    assert (talks.data.ratio, talks.data.longest, talks.train.average) == (1.5, 175, 10)
    news = read_recipe("lite-summaries-496")
    assert (news.train.task, news.model.dropout, news.model.dropatt) == ("summarise", 0.15, 0.1)


@pytest.mark.parametrize(
    ("width", "parameters", "dropout", "attention"),
    [(200, 2_884_400, 0.04, 0.03), (408, 11_739_792, 0.08, 0.07), (496, 17_283_616, 0.1, 0.08)],
)
def test_recipes_into_french(width: int, parameters: int, dropout: float, attention: float) -> None:
    """Lite Transformer's yaml files: a shorter warm-up than into German, 40,000 pieces."""
    own = read_recipe(f"lite-translation-{width}-en-fr")
    config, train = own.model, own.train
    assert (own.data.corpus, own.data.pair) == ("wmt14-en-fr", "en-fr")
    assert pf.cost(config).parameters == parameters + config.vocab_size * width
    assert (config.dropout, config.dropatt, config.dropkernel) == (dropout, attention, -1)
    assert (train.steps, train.warmup, train.batch_tokens) == (50_000, 5_000, 524_288)
    assert (rate(4_999, train), rate(49_999, train)) == pytest.approx((1e-3, 1e-7), rel=1e-2)
    german = read_recipe(f"lite-translation-{width}")
    assert german.train.warmup == 10_000


def test_transformers_and_synthesizers_train_as_vaswanis_base() -> None:
    """d^-½ · min(step^-½, step · 4,000^-1.5), Adam (0.9, 0.98, 1e-9), 100,000 updates."""
    widths = {f"transformer-translation-{d}": d for d in (128, 256, 320, 512)}
    widths |= dict.fromkeys((name for name in presets() if name.startswith("synthesizer-wmt")), 512)
    assert len(widths) == 13
    for name, width in widths.items():
        own = read_recipe(name)
        train = own.train
        for step in (1_000, 4_000, 90_000):
            wanted = width**-0.5 * min(step**-0.5, step * 4_000**-1.5)
            assert rate(step - 1, train) == pytest.approx(wanted, rel=3e-3), name
        assert (train.optimizer, train.beta2, train.eps) == ("adam", 0.98, 1e-9)
        assert (train.steps, train.batch_tokens, train.average) == (100_000, 25_000, 5)
        assert (train.label_smoothing, own.model.dropout) == (0.1, 0.1)


def test_every_translator_knows_its_pairs() -> None:
    """Except for pocket ones, whose pairs are the user's."""
    for name in presets():
        own = read_recipe(name)
        if own.model.source is not None and "pocket" not in name:
            assert own.data.pair, name
            vocabulary = own.data.vocab_size
            own_words = abs(own.model.vocab_size - vocabulary) <= 1
            assert own_words or own.data.vocabularies == "separate", name


def test_long_articles_are_cut_and_not_left_out() -> None:
    data = read_recipe("lite-summaries-496").data
    filters = Filters(longest=data.longest, ratio=data.ratio, source_words=data.source_words)
    article, summary = "word " * 900, "short " * 60
    text, left_out = read_lines([(article, summary), ("a", "much " * 500)], "here", filters)
    source, target = text.decode().split("\n")[0].split("\t")
    assert (len(source.split()), len(target.split())) == (400, 60)
    assert left_out == {"longer than 400 words": 1}
