"""Are translators ranked by what became of them, pair by pair, as LTS's Appendix J does it?"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from parformer.cli import main
from parformer.errors import ConfigError
from parformer.search.ranking.job import proxies
from parformer.search.ranking.rankings import spearman
from parformer.search.ranking.table import numbers
from parformer.search.ranking.translators import read_translators, stack_parameters

BUILT = list(product((1000, 2000), (1, 2, 4), (256, 512), (1024,), (8,), (0.0003, 0.001)))
"""Pieces, layers, width, inner, heads, rate."""


def became(pair: str, line: int) -> tuple[float, ...]:
    """What is good about large models in one pair is bad in the other, and one rate fails."""
    bpe, layers, width, inner, _, rate = BUILT[line]
    size = stack_parameters(layers, width, inner) / 1e6
    good = size if pair == "ja-en" else -size
    bleu = 10 + good / 10 - (5 if rate > 0.0005 else 0)
    return (bleu, 400 + size, 30 - good / 10, 34_000, 2_000, 2 * bpe * width + size * 1e6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for pair in ("ja-en", "so-en"):
        hyps = ["\t".join(map(str, map(float, row))) for row in BUILT]
        evals = ["\t".join(map(str, became(pair, n))) for n in range(len(BUILT))]
        (tmp_path / f"{pair}.hyps").write_text("\n".join(hyps) + "\n")
        (tmp_path / f"{pair}.evals").write_text("\n".join(evals) + "\n")
    return tmp_path


def test_stacks_have_the_counts_of_the_published_models() -> None:
    """so-en's models of one, two and four layers, whose vocabulary and width are the same."""
    one, two, four = 2_613_228, 4_453_356, 8_133_612
    sizes = [stack_parameters(layers, 256, 1024) for layers in (1, 2, 4)]
    assert (sizes[1] - sizes[0], sizes[2] - sizes[0]) == (two - one, four - one)


def test_every_pair_and_vocabulary_is_judged_by_bleu_and_by_perplexity(folder: Path) -> None:
    found = proxies(table=folder, truth="valid_bleu,valid_ppl", best_over="learning_rate")
    names = [f"{pair}, {bpe:,} pieces" for pair in ("ja-en", "so-en") for bpe in (1000, 2000)]
    assert list(found.experiments) == names
    for experiments in (found.experiments, found.also["valid_ppl"]):
        for name, group in experiments.items():
            assert list(group) == ["decoder-parameters", "parameters"]
            sign = 1 if name.startswith("ja-en") else -1
            assert group["decoder-parameters"].spearman == pytest.approx(sign)
            assert group["decoder-parameters"].models == 6  # the better rate alone
    every = proxies(table=folder, truth="valid_bleu")
    models = [one for one in read_translators(folder) if one.experiment == names[0]]
    bleu, sizes = numbers(models, "valid_bleu"), numbers(models, "params_nonembedding")
    ranking = every.experiments[names[0]]["decoder-parameters"]
    assert ranking.models == 12
    assert ranking.spearman == spearman(bleu, sizes) < 0.9


def test_tables_of_pairs_with_any_columns(tmp_path: Path) -> None:
    """A table of one's own: pairs are experiments, and a column chooses among the models."""
    lines = ["pair,model,BLEU,params_nonembedding,params_total,tokens"]
    for pair, sign in (("de-en", 1), ("en-de", -1)):
        for n in range(5):
            lines.append(f"{pair},m{n},{20 + sign * n},{n + 1},{9 - n},{8000 if n else 4000}")
    table = tmp_path / "mine.csv"
    table.write_text("\n".join(lines) + "\n")
    found = proxies(table=table, truth="BLEU").experiments
    told = {name: [one.spearman for one in group.values()] for name, group in found.items()}
    assert told == {"de-en": [1.0, -1.0], "en-de": [-1.0, 1.0]}
    some = proxies(table=table, truth="BLEU", where=("tokens=8000.0",), experiment="de-en")
    assert some.experiments["de-en"]["parameters"].models == 4


def test_the_command_shows_truths_side_by_side(folder: Path, capsys: Any) -> None:
    words = ["proxies", str(folder), "--truth", "valid_bleu,valid_ppl"]
    assert main([*words, "--best-over", "learning_rate"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "ja-en, 1,000 pieces (6) 1.00" in shown
    assert "so-en, 2,000 pieces (6) -1.00" in shown
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["also"]["valid_ppl"]) == set(told["experiments"])
    assert main(["proxies", str(folder), "--truth", "valid_bleu"]) == 0
    assert "correlation with valid_bleu, 1 is best" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"where": ("bpe",)}, "--where takes COLUMN=VALUE, got 'bpe'"),
        ({"where": ("bpe=7",)}, "no model in .* has bpe=7; bpe is '1000.0', '2000.0'"),
        ({"best_over": "rate"}, "has no column 'rate'; it has 'bpe'"),
        ({"truth": "bleu"}, "has no column 'bleu'"),
    ],
)
def test_bad_questions_are_refused(folder: Path, asked: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        proxies(table=folder, **asked)


def test_damaged_tables_are_refused(folder: Path) -> None:
    whole = (folder / "ja-en.evals").read_text()
    for text, problem in (
        (whole[: whole.index("\n") + 1], "has 24 lines and ja-en.evals 1; line n of one"),
        (whole.replace("\t", " ", 1), "line 1 of .* has 5 values for valid_bleu, latency"),
        (whole.replace("34000", "many", 1), "updates in line 1 of .* is no number: 'many'"),
    ):
        (folder / "ja-en.evals").write_text(text)
        with pytest.raises(ConfigError, match=problem):
            read_translators(folder)
    (folder / "ja-en.evals").unlink()
    with pytest.raises(ConfigError, match=r"cannot read .*ja-en\.evals"):
        read_translators(folder)
