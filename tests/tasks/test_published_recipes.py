"""Do published models of translation and summarisation train as their authors did?"""

from __future__ import annotations

import pytest

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
    assert (rate(3_999, talks.train), rate(15_999, talks.train)) == pytest.approx((5e-4, 2.5e-4))
    assert (talks.data.ratio, talks.data.longest, talks.train.average) == (1.5, 175, 10)
    news = read_recipe("lite-summaries-496")
    assert (news.train.task, news.model.dropout, news.model.dropatt) == ("summarise", 0.15, 0.1)
