"""Do small trainings get equal updates, stay where they were, and compare as they should?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parformer.errors import ConfigError, FolderError, Stopped
from parformer.recipe import Recipe
from parformer.reproduce import job, par_search, trainings
from parformer.reproduce import pairs as pair_trainings
from parformer.reproduce.published import Training
from parformer.reproduce.trainings import pocket, train_pocket
from parformer.reproduce.workbench import Workbench
from parformer.tasks.base import Task, find_task
from parformer.train.alike import Trained
from parformer.train.loop import Outcome
from tests.reproduce.benches import quick_bench, write_models, write_text


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    text = write_text(tmp_path / "text.txt")
    return quick_bench(
        trains=True, folder=tmp_path / "run", corpus=str(text), steps=4, threads=1, rounds=2
    )


def tiny(pattern: str, **changes: Any) -> Any:
    sizes = {"model__d_model": 16, "model__d_inner": 16, "model__n_head": 2}
    lengths = {"model__tgt_len": 16, "model__mem_len": 16, "train__batch": 4}
    return pocket(model__pattern=pattern, **{**sizes, **lengths, **changes})


RECIPES = {"interleaved": tiny("(sf)x2"), "none": tiny("(f)x4")}


def test_all_models_get_as_many_updates_and_are_compared(bench: Workbench) -> None:
    trained = train_pocket(bench, "test", RECIPES)
    assert trained is not None
    curves = {name: curves[0] for name, curves in trained.curves.items()}
    assert {curve.steps for curve in curves.values()} == {4}
    ours = trained.more_loss("none", "interleaved")
    losses = [curves[name].test_loss or 0.0 for name in ("none", "interleaved")]
    expected = 100 * (losses[0] / losses[1] - 1)
    assert ours.value == pytest.approx(expected)
    assert ours.single
    assert "4 updates of 4 × 16 bytes" in ours.how
    # four updates teach nobody more than pairs; feed-forward alone could not learn more anyway
    assert trained.failed == {"interleaved"}
    assert ours.note == "(f)x4; says nothing: interleaved learned less than counting pairs gives"
    assert curves["none"].valid[-1][1] == pytest.approx(curves["none"].loss)
    pace = trained.pace_ratio("none", "interleaved")
    assert pace.interval is not None
    assert pace.interval[0] <= pace.value <= pace.interval[1]


def test_what_was_trained_is_not_trained_again(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train_pocket(bench, "test", RECIPES)
    monkeypatch.setattr(trainings, "time_updates", None)
    monkeypatch.setattr("parformer.train.loop.Session.update", None)
    again = train_pocket(bench, "test", RECIPES)
    assert first is not None
    assert again is not None
    assert again.more_loss("none", "interleaved") == first.more_loss("none", "interleaved")
    assert again.plan == first.plan


def test_several_seeds_give_an_interval(bench: Workbench) -> None:
    bench.seeds = 2
    trained = train_pocket(bench, "test", RECIPES)
    assert trained is not None
    ours = trained.more_loss("none", "interleaved")
    assert not ours.single
    assert ours.interval is not None
    assert ours.interval[0] < ours.value < ours.interval[1]
    assert "2 seeds" in ours.how


def test_a_stopped_training_says_how_to_go_on(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Outcome(3, False, {}, interrupted=True)
    monkeypatch.setattr("parformer.train.alike.train", lambda *_, **__: stopped)
    with pytest.raises(Stopped, match=r"of interleaved, everything is saved; .* --run"):
        train_pocket(bench, "test", RECIPES)


def test_too_little_time_is_refused_with_what_it_takes(bench: Workbench) -> None:
    bench.steps, bench.seconds = 0, 0.001
    with pytest.raises(ConfigError, match=r"0 updates for each of 2 .* at least --time \dm"):
        train_pocket(bench, "test", RECIPES)


def test_time_decides_the_updates_once(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.steps, bench.seconds = 0, 100.0
    paces = {"interleaved": (1.0, 2.0, 1.0), "none": (0.5, 0.5, 0.5)}
    monkeypatch.setattr(trainings, "time_updates", lambda *_: paces)
    plan = trainings.make_plan(bench, "test", RECIPES)
    assert plan.steps == int(100 * (1 - trainings.LOOKING) / 1.5)
    assert trainings.read_plan(bench, "test", RECIPES) == plan
    assert trainings.read_plan(bench, "test", {"none": RECIPES["none"]}) is None


def test_without_leave_nothing_is_trained(bench: Workbench) -> None:
    bench.trains = False
    assert train_pocket(bench, "test", RECIPES) is None
    bench.trains, bench.scale = True, "paper"
    assert train_pocket(bench, "test", RECIPES) is None
    assert bench.folder is not None
    assert not bench.folder.exists()


# Whole studies


def test_a_table_is_trained_in_small(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    (result,) = job.run_studies(["par-table-a3"], bench)
    rows = {row.key: row for row in result.rows}
    for key in ("short-par", "long-par", "short-sandwich", "long-sandwich", "longer"):
        assert rows[key].ours is not None
        assert rows[key].verdict == ""
    assert "5 with one training each" in result.summary
    assert "1 updates" in rows["short-par"].how
    assert rows["ppl-40k-par"].how.startswith("needs ")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Words, and what stands for each in the other language."""
    words = {"ein": "a", "hund": "dog", "frau": "woman", "läuft": "runs", "steht": "stands"}
    folder, known = tmp_path / "pairs", list(words)
    folder.mkdir()
    for split, count in (("train", 60), ("valid", 8), ("test", 8)):
        rows = [[known[(n + k * k) % 5] for k in range(2 + n % 4)] for n in range(count)]
        lines = [f"{' '.join(row)}\t{' '.join(words[one] for one in row)}" for row in rows]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


def tiny_reader(pattern: str) -> Recipe:
    sizes = {"model__d_model": 16, "model__d_inner": 16, "model__n_head": 2}
    text = {"data__vocab_size": 280, "train__batch_tokens": 64}
    return pair_trainings.reader("transformer-pocket-translation", pattern, **sizes, **text)


READERS = {"attention": tiny_reader("sf | scf"), "memory": tiny_reader("rf | rcf")}


@pytest.mark.parametrize(
    ("score", "task"), [("bleu", "translate"), ("rougeL", "summarise")], ids=["bleu", "rouge"]
)
def test_pairs_are_compared_in_points(
    bench: Workbench, pairs: Path, score: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = iter((30.0, 41.5))
    monkeypatch.setattr(pair_trainings, "points_of", lambda *_: next(points))
    bench.pairs = str(pairs)
    found = pair_trainings.compare_pairs(bench, "test", READERS, "attention", score, task=task)
    ours = found[f"{score}-memory-more"]
    assert ours.value == 11.5
    assert ours.single
    assert ours.note == "rf | rcf: 41.5 beside 30.0"
    assert "4 updates of 64 tokens, " in ours.how
    assert bench.folder is not None
    (run,) = (bench.folder / "trainings" / "test-pairs").glob("memory-*")
    monkeypatch.undo()
    training = Trained(run, 4, True, ())
    told = json.loads((run / "result.json").read_text("utf-8"))["test"]
    assert pair_trainings.points_of(training, score) == told[score]
    assert 0 <= told[score] <= 100


def test_without_pairs_none_are_trained(bench: Workbench) -> None:
    (study,) = job.run_studies(["srupp-table-8"], bench)
    rows = {row.key: row for row in study.rows}
    assert rows["bleu-k2-more"].ours is None
    assert rows["bleu-k2-more"].how == "needs --pairs, such as multi30k, for pocket trainings"
    assert rows["bleu-srupp-more"].published is not None
    assert rows["bleu-srupp-more"].published.value == pytest.approx(0.4)


def test_pairs_without_a_test_split_are_refused(bench: Workbench, pairs: Path) -> None:
    (pairs / "test.tsv").unlink()
    bench.pairs = str(pairs)
    with pytest.raises(ConfigError, match=r"no test split to compare models on; they have"):
        pair_trainings.compare_pairs(bench, "test", READERS, "attention")


def test_sentence_tasks_are_compared_by_what_they_teach(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden words of all, and pairs of both kinds of those that have a head for pairs."""
    from parformer.reproduce import encoders

    sizes = {"model__d_model": 16, "model__d_inner": 16, "model__n_head": 2, "model__d_embed": 8}
    small = {"data__vocab_size": 150, "train__tgt_len": 32, "train__batch": 4}
    monkeypatch.setattr(encoders, "SMALL", {"model__pattern": "{sf}x2", **sizes, **small})
    lines = (f"Line {i % 97} says {i * i % 89}.\n" + "\n" * (i % 4 == 3) for i in range(1200))
    (tmp_path / "documents.txt").write_text("".join(lines))
    bench.corpus = str(tmp_path / "documents.txt")
    bench.seeds = 2
    asked: list[str] = []

    def listening(recipe: Recipe) -> Task:
        asked.append(recipe.model.pair_head)
        return find_task(recipe)

    monkeypatch.setattr(encoders, "find_task", listening)
    (result,) = job.run_studies(["albert-table-5"], bench)
    assert asked == ["none", "next", "order"] * 6  # three models, two seeds
    rows = {row.key: row for row in result.rows}
    for name in ("none", "nsp", "sop"):
        for key in ("mlm", "nsp", "sop"):
            row = rows[f"{name}-{key}"]
            if name == "none" and key != "mlm":
                assert row.how.startswith("needs a head for pairs")
                continue
            assert row.ours is not None
            assert 0 <= row.ours <= 100
    folders = sorted((tmp_path / "run" / "trainings" / "albert-table-5").iterdir())
    told = [json.loads((one / "result.json").read_text())["test"]["metrics"] for one in folders]
    heads: dict[str, list[dict[str, float]]] = {}
    for one, metrics in zip(folders, told, strict=True):
        heads.setdefault(one.name.partition("-")[0], []).append(metrics)
    for name in ("nsp", "sop"):
        mean = sum(metrics["pair_accuracy"] for metrics in heads[name]) / 2
        assert rows[f"{name}-{name}"].ours == pytest.approx(100 * mean)
        mean = sum(metrics["masked_accuracy"] for metrics in heads[name]) / 2
        assert rows[f"{name}-mlm"].ours == pytest.approx(100 * mean)


def test_a_search_is_told_in_thirds(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.steps = 12
    small = {
        "model.d_model": 16,
        "model.d_inner": 16,
        "model.n_head": 2,
        "model.tgt_len": 16,
        "model.mem_len": 16,
        "train.batch": 4,
        "search.layers": 4,
        "search.cycle": 3,
    }
    plain = par_search.pocket
    monkeypatch.setattr(par_search, "pocket", lambda *a, **k: plain(*a, **k).replaced(small))
    results = job.run_studies(["par-figure-2", "par-figure-3", "par-first-figure-2"], bench)
    rows = {row.key: row for result in results[1:] for row in result.rows}
    thirds = [rows[key].ours for key in ("first", "second", "last")]
    assert all(one is not None and 0 <= one <= 2 for one in thirds)
    assert "2 seeds" in rows["first"].how
    former, latter = rows["former"].ours, rows["latter"].ours
    assert former is not None
    assert latter is not None
    assert 0 < former < 1
    assert 0 < latter < 1
    best = next(row for row in results[0].rows if row.key == "best-loss")
    assert best.ours is not None
    assert "attention blocks of" in best.note


def test_thirds_of_a_stack() -> None:
    assert par_search.thirds(list("ssfsfffsf")) == [2, 1, 1]


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pocket models become toys."""
    from parformer.reproduce import par

    sizes = {"model.d_model": 16, "model.d_inner": 16, "model.n_head": 2, "train.batch": 4}
    lengths = {"model.tgt_len": 16, "model.mem_len": 16}
    plain = par.pocket
    monkeypatch.setattr(
        par, "pocket", lambda *a, **k: plain(*a, **k).replaced({**sizes, **lengths})
    )


# The paper's scale


def finished_run(path: Path, training: Training, result: dict[str, Any], **changes: Any) -> None:
    import tomli_w

    from parformer.reproduce.paper_scale import recipe_of

    path.mkdir(parents=True)
    recipe = recipe_of(training).replaced(changes)
    (path / "config.toml").write_text(tomli_w.dumps(recipe.to_dict()))
    (path / "result.json").write_text(json.dumps(result))


BASE = Training(preset="par-base")


def test_the_papers_scale_prints_the_command(tmp_path: Path) -> None:
    (result,) = job.run_studies(["par-table-1"], quick_bench(scale="paper", folder=tmp_path))
    rows = {row.key: row for row in result.rows}
    command = rows["ppl-par"].command
    assert command.startswith("torchrun --nproc-per-node 8 -m -- parformer train par-base --run ")
    assert command in rows["ppl-par"].how
    assert rows["ppl-par"].ours is None
    assert rows["latency-par"].ours is not None
    assert "loss-par" not in rows


def test_the_commands_can_be_parsed() -> None:
    import shlex

    from parformer.cli import make_parser
    from parformer.reproduce.paper_scale import command_of, machine_words, recipe_of
    from parformer.reproduce.published import read_pages

    seen: dict[str, Training] = {}
    for page in read_pages().values():
        for line in page.lines:
            if line.training is None:
                continue
            words = shlex.split(command_of(line.training, None))
            make_parser().parse_args(words[words.index("parformer") + 1 :])
            recipe_of(line.training)
            assert "GPU" in machine_words(line.training)
            known = seen.setdefault(line.training.folder, line.training)
            assert recipe_of(known) == recipe_of(line.training), "one folder, two trainings"


def test_a_finished_run_fills_ours(tmp_path: Path) -> None:
    finished_run(tmp_path / "par-base", BASE, {"steps": 40000, "test": {"perplexity": 23.1}})
    (result,) = job.run_studies(["par-table-1"], quick_bench(scale="paper", folder=tmp_path))
    row = next(row for row in result.rows if row.key == "ppl-par")
    assert (row.ours, row.note) == (23.1, "")
    assert row.how == "run par-base: 40,000 updates, wikitext-103"
    assert row.verdict == ""


def test_a_run_that_was_cut_short_says_so(tmp_path: Path) -> None:
    short = {"train.steps": 500}
    result = {"steps": 500, "test": {"perplexity": 90.0}}
    finished_run(tmp_path / "par-base", BASE, result, **short)
    (found,) = job.run_studies(["par-table-1"], quick_bench(scale="paper", folder=tmp_path))
    row = next(row for row in found.rows if row.key == "ppl-par")
    assert row.ours is not None
    assert row.note == "the paper's training has 40,000 updates"


def test_another_training_is_refused(tmp_path: Path) -> None:
    changes = {"model.pattern": "(sf)x16"}
    result = {"steps": 40000, "test": {"perplexity": 22.0}}
    finished_run(tmp_path / "par-base", BASE, result, **changes)
    with pytest.raises(FolderError, match="has pattern '\\(sf\\)x16' where the paper has"):
        job.run_studies(["par-table-1"], quick_bench(scale="paper", folder=tmp_path))


def test_a_run_without_the_score_is_refused(tmp_path: Path) -> None:
    finished_run(tmp_path / "par-base", BASE, {"steps": 40000, "valid": {}})
    with pytest.raises(FolderError, match=r"no test\.perplexity in its result"):
        job.run_studies(["par-table-1"], quick_bench(scale="paper", folder=tmp_path))


# Measurements and tables


def test_measurements_are_kept_in_the_run(tmp_path: Path) -> None:
    calls: list[int] = []
    bench = quick_bench(folder=tmp_path)
    plain = bench.meter

    def counting(configs: Any, step: Any, progress: Any = None) -> Any:
        calls.append(len(configs))
        return plain(configs, step, progress)

    bench.meter = counting
    job.run_studies(["par-table-a2", "par-table-1"], bench)
    assert calls == [3], "the second table asks for what was measured for the first"


def test_a_table_without_the_backbone_is_refused(tmp_path: Path) -> None:
    table = write_models(tmp_path / "models.csv", experiments=("GPT2",))
    with pytest.raises(ConfigError, match="has no transformer-xl models"):
        job.run_studies(["lts-table-1"], quick_bench(models=table))
