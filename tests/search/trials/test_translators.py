"""Are blocks placed in encoders and in decoders, by trials and within a limit?"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

import parformer as pf
from parformer.cli import main
from parformer.costs import cost
from parformer.errors import ConfigError
from parformer.pattern import Pattern
from parformer.recipe import read_recipe
from parformer.search.placement.choices import Choices
from parformer.search.placement.prices import baseline_of, exact
from parformer.search.placement.sentences import measured_sentences
from parformer.search.placement.session import space_of
from parformer.search.trials import job
from parformer.search.trials.result import TrialsResult
from parformer.search.trials.stacks import Side, Stacks

SMALL = (
    "model.d_model=16", "model.d_inner=32", "model.n_head=2", "model.max_len=32",
    "data.tokenizer=character", "data.vocab_size=0", "train.batch_tokens=64",
    "train.precision=fp32", "train.kernels=plain",
)  # fmt: skip
BOTH = Stacks((Side(4, "sfi"), Side(6, "scfi")))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.de").write_text("ein Hund\nzwei Hunde\n" * 10)
        (folder / f"{split}.en").write_text("a dog\ntwo dogs\n" * 10)
    return folder


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "FIRST", 4)
    monkeypatch.setattr(job, "EXPECTED", 2)


def search(pairs: Path, run: Path, **changes: Any) -> TrialsResult:
    usual: dict[str, Any] = {
        "recipe": "transformer-pocket-translation", "corpus": str(pairs), "pair": "de-en",
        "run": run, "by": "trials", "choices": "sfi | scfi", "encoder_layers": 2, "layers": 3,
        "steps": 8, "changes": SMALL,
    }  # fmt: skip
    found = pf.search_placement(**(usual | changes))
    assert isinstance(found, TrialsResult)
    return found


def test_every_pattern_that_is_tried_translates(pairs: Path, tmp_path: Path) -> None:
    found = search(pairs, tmp_path / "run", limit="flops=0.95x")
    assert {one.how for one in found.trials} >= {"random", "expected"}
    for one in found.trials:
        assert one.pattern.encoder is not None
        assert "s" in one.pattern.encoder.letters
        assert "c" in one.pattern.letters
        assert one.cost is not None
        assert one.cost <= 0.95
    assert found.choices == "sfi | scfi"
    assert TrialsResult.load(tmp_path / "run") == found
    best = tmp_path / "run/trials"
    assert len([*best.iterdir()]) == len(found.trials)


def test_the_command_line_searches_translators(pairs: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["search", "placement", "transformer-pocket-translation", "--corpus", str(pairs)]
    words += [
        "--pair",
        "de-en",
        "--choices",
        "sfi | scfi",
        "--encoder-layers",
        "2",
        "--layers",
        "3",
    ]
    words += ["--steps", "8", "--run", str(tmp_path / "run"), *(f"--set={one}" for one in SMALL)]
    assert main([*words, "--by", "usual"]) == 0
    assert "sf | scf" in capsys.readouterr().out


def test_stacks_are_drawn_and_changed_by_themselves() -> None:
    rng = Random(0)
    changed = []
    for _ in range(60):
        picks = BOTH.draw(rng)
        near = BOTH.neighbour(picks, rng)
        for one in (picks, near):
            assert [len(own) for own, _ in BOTH.cut(one)] == [4, 6]
            assert all(pick < len(side.letters) for own, side in BOTH.cut(one) for pick in own)
        changed.append(
            [a != b for (a, _), (b, _) in zip(BOTH.cut(picks), BOTH.cut(near), strict=True)]
        )
    assert not any(all(both) for both in changed)
    assert any(one for one, _ in changed)
    assert any(other for _, other in changed)
    assert len(BOTH.features(picks)) == len(Stacks(BOTH.sides[:1]).features(picks[:4])) + len(
        Stacks(BOTH.sides[1:]).features(picks[4:])
    )


@pytest.mark.parametrize(
    ("word", "wanted"), [("sfii-scfiii", True), ("ffii-scfiii", False), ("sfii-sffiii", False)]
)
def test_a_translator_reads_and_looks(word: str, wanted: bool) -> None:
    sides = zip(word.split("-"), BOTH.sides, strict=True)
    picks = tuple(side.letters.index(letter) for own, side in sides for letter in own)
    assert BOTH.spelled(picks) == word
    assert BOTH.looks(picks) is wanted


@pytest.mark.parametrize("metric", ["flops", "parameters"])
def test_prices_are_those_of_whole_translators(metric: str) -> None:
    model = pf.preset("transformer-pocket-translation", encoder={"d_inner": 64, "max_len": 32})
    space = Choices.of_sides([(4, "sfi"), (6, "scfi")])
    prices = exact(metric, model, space)
    rng = Random(1)
    base = getattr(cost(model.replaced(pattern=baseline_of(space))), metric)
    for _ in range(5):
        picks = BOTH.draw(rng)
        whole = getattr(cost(model.replaced(pattern=space.pattern(picks))), metric)
        assert prices.total(picks) == pytest.approx(whole / base)


def test_blocks_of_translators_are_timed_by_whole_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a meter that takes 1 s for a model, 2 for a block that reads, 3 for one that writes."""
    from parformer.measure.readings import Reading, Readings
    from parformer.search.placement import sentences
    from tests.measure.test_readings import RECEIPT

    heard = []

    def meter(configs: Any, step: Any, progress: Any = None) -> Readings:
        heard.append((step.source, step.tgt_len, step.beam))
        seconds = {
            name: 1.0 + 2 * len(config.pattern.encoder.letters.replace("i", ""))
            + 3 * len(config.pattern.letters.replace("i", ""))
            for name, config in configs.items()
        }  # fmt: skip
        first = next(iter(seconds.values()))
        rows = [
            Reading(name=name, median=own, low=own, high=own, ratio=own / first, samples=(own,),
                    peak_bytes=1, resident_bytes=1)
            for name, own in seconds.items()
        ]  # fmt: skip
        return Readings(readings=tuple(rows), receipt=RECEIPT)

    monkeypatch.setattr(sentences, "measure_any", meter)
    space = Choices.of_sides([(2, "sfi"), (3, "scfi")])
    prices = measured_sentences(pf.preset("transformer-pocket-translation"), space)
    second = 1_000_000_000
    assert heard == [(20, 20, 5)]
    assert prices.choices == ((2 * second, 2 * second, 0),) * 2 + ((3 * second,) * 3 + (0,),) * 3
    assert (prices.fixed, prices.baseline, prices.measured) == (second, 14 * second, 14 * second)


@pytest.mark.parametrize(
    ("preset", "choices", "problem"),
    [
        (
            "transformer-pocket-translation",
            "sfli",
            "write those of a translator as encoder | decoder",
        ),
        ("transformer-pocket-translation", "sfi |", "such as 'sfi | scfi'"),
        ("pocket", "sfi | scfi", "and those of one stack as 'sfi'"),
        ("transformer-pocket-translation", "sfi | s", "has only one choice"),
    ],
)
def test_choices_that_do_not_fit_are_refused(preset: str, choices: str, problem: str) -> None:
    recipe = read_recipe(preset, {"search.choices": choices})
    with pytest.raises(ConfigError, match=problem.replace("|", r"\|")):
        space_of(recipe)


def test_places_and_choices_are_usual_unless_said() -> None:
    space = space_of(read_recipe("transformer-pocket-translation", {"search.seeds": 1}))
    assert (space.encoder, len(space.layers)) == (6, 15)
    assert space.pattern([0] * 6 + [1] * 9) == Pattern.parse("(s)x6 | (c)x9")
    assert space.pattern([2] * 6 + [3] * 8 + [1]) == Pattern.parse("i | c")
