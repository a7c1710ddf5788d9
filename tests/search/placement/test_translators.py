"""Does a supernet of an encoder and a decoder search as one of a single stack does?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor
from torch.testing import assert_close

import parformer as pf
from parformer.blocks.base import Context, Source
from parformer.cli import main
from parformer.data.batches import Batch
from parformer.data.paired import Paired
from parformer.data.pairs import pairs_in
from parformer.embedding import IGNORE
from parformer.errors import CorpusError
from parformer.model import Model
from parformer.pattern import Pattern
from parformer.recipe import Recipe, read_recipe
from parformer.report.search import found_table, search_page, sentences_of
from parformer.search.placement import sentences
from parformer.search.placement.choices import Choices
from parformer.search.placement.decide import find_pace
from parformer.search.placement.job import search_recipe
from parformer.search.placement.prices import exact
from parformer.search.placement.result import PlacementResult
from parformer.search.placement.session import space_of
from parformer.search.placement.shares import share_out
from parformer.search.placement.supernet import Mixture, Supernet, build_supernet
from parformer.tasks import find_task
from parformer.train.checkpoint import read_checkpoint, write_checkpoint
from parformer.train.distributed import Workers
from tests.search.placement.pairs import END, OPEN, PAD, SPACE, START, make_recipe, text
from tests.search.placement.test_job import Stopper
from tests.search.placement.trials import MODES, bits, evidence, make_session, updated

PICKS = [[0, 1, 1, 0, 2], [2, 0, 3, 1, 3], [1, 0, 1, 1, 1], [2, 2, 3, 3, 3]]


def make_supernet(space: Choices = SPACE) -> Supernet:
    made = build_supernet(make_recipe().model, space, seed=1)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # blocks that begin at zero would hide each other's faults
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return made.double()


def some_weights(space: Choices = SPACE) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = len(space.layers), max(map(len, space.layers))
    weights_lc = torch.rand(shape, generator=generator, dtype=torch.float64)
    known_lc = torch.arange(shape[1]) < torch.tensor([[len(row)] for row in space.layers])
    return torch.where(known_lc, weights_lc, 0.0)


def one_hot(picks: Sequence[int]) -> Tensor:
    weights_lc = torch.zeros(len(picks), 4, dtype=torch.float64)
    weights_lc[range(len(picks)), list(picks)] = 1.0
    return weights_lc


def batch_of_pairs() -> Batch:
    """Of several lengths on both sides, so that there is padding."""
    pairs = pairs_in(text(12), START, END)
    batch = Paired(pairs, start=START, end=END, pad=PAD, seed=0, batch=12).at(0)
    assert (batch.inputs["source"] == PAD).any()
    assert (batch.targets == IGNORE).any()
    return batch


def twin_of(supernet: Supernet, picks: Sequence[int]) -> Model:
    """The plain model of a pattern, its weights taken over block by block."""
    config = supernet.config.replaced(pattern=supernet.space.pattern(picks))
    plain = pf.build(config, seed=9).double()
    plain.embedding.load_state_dict(supernet.embedding.state_dict())
    assert plain.encoder is not None
    assert supernet.encoder is not None
    sides = [(plain.encoder, supernet.encoder, picks[:2]), (plain, supernet, picks[2:])]
    for stack, mixed, own in sides:
        assert stack.final_norm is not None
        assert mixed.final_norm is not None
        stack.final_norm.load_state_dict(mixed.final_norm.state_dict())
        chosen = [
            cast(Mixture, layer).choices[pick]
            for layer, pick in zip(mixed.blocks, own, strict=True)
        ]
        chosen = [block for block in chosen if any(True for _ in block.parameters())]
        blocks = [block for block in stack.blocks if any(True for _ in block.parameters())]
        for block, mine in zip(blocks, chosen, strict=True):
            block.load_state_dict(mine.state_dict())
    return plain


# The supernet


@pytest.mark.parametrize("picks", PICKS)
def test_one_choice_of_each_layer_is_the_plain_translator(picks: list[int]) -> None:
    supernet, batch = make_supernet(), batch_of_pairs()
    plain = twin_of(supernet, picks)
    taken = supernet.extract(picks)
    assert str(taken.config.pattern) == str(SPACE.pattern(picks))
    given: dict[str, Any] = {"source": batch.inputs["source"]}
    wanted = plain(batch.tokens_bt, **given).logits
    assert_close(taken(batch.tokens_bt, **given).logits, wanted)
    supernet.mix(one_hot(picks))
    assert_close(supernet(batch.tokens_bt, **given).logits, wanted)
    supernet.mix(one_hot(picks), drawn=picks)
    assert_close(supernet(batch.tokens_bt, **given).logits, wanted, rtol=0, atol=0)


def by_hand(supernet: Supernet, leaf_lc: Tensor, batch: Batch) -> Tensor:
    """The loss of Σ m_i F_i in both stacks, spelled out."""
    source_bs, config = batch.inputs["source"], supernet.config
    there_bs = source_bs != PAD

    def words(tokens: Tensor) -> Tensor:
        return supernet.embedding(tokens, None, 0)

    def run(stack: Any, x_btd: Tensor, rows_lc: Tensor, context: Context) -> Tensor:
        for layer, weights_c in zip(stack.blocks, rows_lc, strict=True):
            answers = [block(x_btd, None, context)[0] for block in layer.choices]
            x_btd = sum(weights_c[n] * y_btd for n, y_btd in enumerate(answers))  # type: ignore[assignment]
        return cast(Tensor, stack.final_norm(x_btd))

    x_bsd = run(
        supernet.encoder, words(source_bs), leaf_lc[:2], Context(memory=0, padding=there_bs)
    )
    context = Context(memory=config.memory, source=Source(x_bsd, there_bs))
    x_btd = run(supernet, words(batch.tokens_bt), leaf_lc[2:], context)
    assert supernet.head is not None
    logits_nv = supernet.head.logits(x_btd).flatten(0, 1)
    return F.cross_entropy(
        logits_nv.float(), batch.targets.flatten(), ignore_index=IGNORE, label_smoothing=0.1
    )


def test_loss_and_gradients_of_both_mixtures_are_those_of_the_sum() -> None:
    supernet, batch, task = make_supernet(), batch_of_pairs(), find_task(make_recipe())
    ours_lc = some_weights().requires_grad_()
    supernet.mix(ours_lc)
    loss = task.loss(supernet, batch, None).total
    parameters = [p for _, p in supernet.named_parameters()]
    ours = torch.autograd.grad(loss, [ours_lc, *parameters], allow_unused=True)
    theirs_lc = some_weights().requires_grad_()
    wanted = by_hand(supernet, theirs_lc, batch)
    assert_close(loss, wanted)
    theirs = torch.autograd.grad(wanted, [theirs_lc, *parameters], allow_unused=True)
    names = ["the mixing", *dict(supernet.named_parameters())]
    for name, own, other in zip(names, ours, theirs, strict=True):
        assert (own is None) == (other is None), name
        assert_close(own, other, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
    assert ours[0] is not None
    known_lc = torch.tensor([[c < len(row) for c in range(4)] for row in SPACE.layers])
    assert (ours[0][known_lc].abs() > 1e-9).all()  # every choice of both sides has a say
    assert not ours[0][~known_lc].any()


def test_only_what_is_drawn_runs_on_both_sides() -> None:
    supernet, batch, picks = make_supernet().train(), batch_of_pairs(), PICKS[0]
    leaf_lc = one_hot(picks).requires_grad_()
    supernet.mix(leaf_lc, drawn=picks)
    find_task(make_recipe()).loss(supernet, batch, None).total.backward()
    ran = {
        name.split(".choices.")[0] + "/" + name.split(".choices.")[1].split(".")[0]
        for name, parameter in supernet.named_parameters()
        if ".choices." in name and parameter.grad is not None
    }
    wanted = {f"encoder.blocks.{n}/{pick}" for n, pick in enumerate(picks[:2])}
    assert ran == wanted | {f"blocks.{n}/{pick}" for n, pick in enumerate(picks[2:])}
    assert leaf_lc.grad is not None
    assert (leaf_lc.grad != 0).nonzero().tolist() == [[n, pick] for n, pick in enumerate(picks)]


# Its text


def test_pairs_are_dealt_out_whole() -> None:
    whole, recipe = text(100), make_recipe()
    lines = ["".join(map(chr, one)) for one in np.split(whole, np.flatnonzero(whole == END) + 1)]
    parts = share_out(whole, recipe)
    own, others = ("".join(map(chr, part)) for part in parts)
    dealt = [[n for n, line in enumerate(lines[:-1]) if line in part] for part in (own, others)]
    assert dealt == [[n for n in range(100) if n % 5 != 4], list(range(4, 100, 5))]
    assert len(own) + len(others) == len(whole)
    for part, count in zip(parts, (80, 20), strict=True):
        assert len(pairs_in(part, START, END)) == count


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(CorpusError, match="has 4 pairs, too few to be shared out: 20% of them"):
        share_out(text(4), make_recipe())
    assert [len(pairs_in(part, START, END)) for part in share_out(text(5), make_recipe())] == [4, 1]


@pytest.mark.parametrize("mode", MODES)
def test_a_session_goes_on_with_the_same_bits(mode: str, tmp_path: Path) -> None:
    recipe = make_recipe(search__mode=mode, search__limit="flops=0.9x", model__dropout=0.1)
    tokens = text(60)
    whole = make_session(recipe, tokens=tokens)
    lines = updated(whole, 0, 6)
    write_checkpoint(tmp_path, whole.checkpoint(6, {}), 1)
    lines += updated(whole, 6, 9)
    (saved,) = (entry for entry in tmp_path.iterdir() if entry.is_dir())
    again = make_session(recipe, read_checkpoint(saved), tokens=tokens)
    assert updated(again, 6, 9) == lines[6:]
    assert bits(again.checkpoint(9, {})) == bits(whole.checkpoint(9, {}))
    assert not torch.equal(whole.architecture.numbers_lc, torch.zeros(5, 4))
    moved_l = (whole.architecture.numbers_lc != 0).any(dim=1)
    assert moved_l[:2].any()
    assert moved_l[2:].any()


def test_updates_are_timed_beside_the_interleaved_translator() -> None:
    pace = find_pace(make_recipe(), text(60), Workers())
    assert min(pace.weights, pace.architecture, pace.baseline) > 0


# Whole searches


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.de").write_text("ein Hund\nzwei Hunde\nein roter Hund\n" * 10)
        (folder / f"{split}.en").write_text("a dog\ntwo dogs\na red dog\n" * 10)
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A clock by which attention takes 3 s, all else 1 s, and what decoders have twice that."""
    from parformer.measure.readings import Reading, Readings
    from tests.measure.test_readings import RECEIPT

    asked: list[Any] = []

    def seconds(pattern: Pattern | None) -> float:
        return sum({"s": 3.0, "c": 3.0, "i": 0.0}.get(spec.letter, 1.0) for spec in pattern or ())

    def meter(configs: Any, step: Any, progress: Any = None) -> Readings:
        asked.append((step.source, step.tgt_len, step.beam))
        taken = {
            name: 1 + seconds(config.pattern.encoder) + 2 * seconds(config.pattern)
            for name, config in configs.items()
        }
        first = next(iter(taken.values()))
        rows = [
            Reading(name=name, median=own, low=0.9 * own, high=1.1 * own, ratio=own / first,
                    samples=(own,), peak_bytes=1, resident_bytes=1)
            for name, own in taken.items()
        ]  # fmt: skip
        return Readings(readings=tuple(rows), receipt=RECEIPT)

    monkeypatch.setattr(sentences, "measure_any", meter)
    return asked


def open_recipe(pairs: Path, **changes: Any) -> Recipe:
    own = {name.replace("__", "."): value for name, value in changes.items()}
    known = {**OPEN, "data.corpus": str(pairs), **own}
    return read_recipe("transformer-pocket-translation", known)


@pytest.mark.parametrize("mode", MODES)
def test_a_broken_search_ends_like_a_whole_one(
    mode: str, pairs: Path, quick: list[Any], tmp_path: Path
) -> None:
    recipe = open_recipe(pairs, search__mode=mode, train__checkpoint_every=2)
    recipe = recipe.replaced({"search.limit": "latency=0.8x"})
    whole = search_recipe(recipe, tmp_path / "whole").found
    for stop, resumed in ((3, 0), (8, 2)):
        watch = Stopper(stop)
        with pytest.raises(KeyboardInterrupt):
            search_recipe(recipe, tmp_path / "broken", watch=watch)
        assert watch.starts == [resumed]
    again = search_recipe(recipe, tmp_path / "broken").found
    assert whole is not None
    assert again is not None
    assert evidence(tmp_path / "broken/seed-0") == evidence(tmp_path / "whole/seed-0")
    assert (again.pattern, again.seeds) == (whole.pattern, whole.seeds)
    assert set(quick) == {(20, 20, 5)}
    assert whole.price is not None
    assert whole.price.found <= 0.8


def words_for(pairs: Path, run: Path, *more: str) -> list[str]:
    settings = {n: v for n, v in OPEN.items() if not n.startswith(("search.c", "train.steps"))}
    settings.pop("data.pair")
    return [
        *("search", "placement", "transformer-pocket-translation", "--corpus", str(pairs)),
        *("--pair", "de-en", "--steps", "9", "--run", str(run), "--set", "search.cycle=3"),
        *(f"--set={name}={value}" for name, value in settings.items()),
        *more,
    ]


def test_the_command_line_searches_and_trains_anew(
    pairs: Path, quick: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    more = ("--by", "supernet", "--choices", "sfi | scfi", "--seeds", "2", "--retrain")
    assert main(words_for(pairs, run, *more, "--limit", "latency=0.9x")) == 0
    told = capsys.readouterr().out
    found = PlacementResult.load(run)
    encoder = found.pattern.encoder
    assert encoder is not None
    assert "s" in encoder.letters
    assert "c" in found.pattern.letters
    assert (found.layers, found.choices) == (3, ("s", "c", "f", "i"))
    assert found.encoder is not None
    assert (found.encoder.layers, found.encoder.choices) == (2, ("s", "f", "i"))
    assert [len(row) for row in found.probabilities] == [3, 3, 4, 4, 4]
    assert space_of(read_recipe(str(run / "config.toml"))).pattern(found.picks) == found.pattern
    rivals = {row.name: str(row.pattern) for row in found.compared}
    assert rivals["interleaved"] == "sf | scf"
    assert {row.name for row in found.retrained or ()} == {*rivals}
    assert (run / "retrain/found/model").is_dir()
    assert pf.load(run / "retrain/found/model").config.pattern == found.pattern
    for words in ("encoder layers 1–2", "decoder layers 1–3", f"--pattern '{found.pattern}'"):
        assert words in told
    assert "--pair de-en" in told
    assert json.loads((run / "device.json").read_text())["prices"]["metric"] == "latency"
    page = (run / "report.html").read_text()
    for drawn in ("found, encoder", "The encoder. The stronger", "The decoder. The stronger"):
        assert drawn in page
    assert main([*words_for(pairs, run, *more), "--json", "--limit", "latency=0.9x"]) == 0
    assert json.loads(capsys.readouterr().out)["pattern"] == str(found.pattern)


@pytest.mark.parametrize("metric", ["flops", "parameters", "state"])
def test_a_penalty_may_be_of_anything_that_is_counted(
    metric: str, pairs: Path, quick: list[Any], tmp_path: Path
) -> None:
    recipe = open_recipe(pairs, search__penalty=f"{metric}=0.1")
    found = search_recipe(recipe, tmp_path / "run").found
    assert found is not None
    assert found.price is not None
    assert found.price.metric == metric
    assert found.price.found == pytest.approx(
        exact(metric, read_model(tmp_path), space_of(recipe)).total(found.picks)
    )


def read_model(folder: Path) -> Any:
    return read_recipe(str(folder / "run/config.toml")).model


def test_what_no_layer_settled_on_is_said(pairs: Path, quick: list[Any], tmp_path: Path) -> None:
    """At first all choices are alike, and the first of each layer is taken: none looks."""
    recipe = open_recipe(pairs, search__learning_rate=1e-9, search__choices="fsi | fsci")
    found = search_recipe(recipe, tmp_path / "run").found
    assert found is not None
    assert "c" in found.pattern.letters
    assert found.pattern.encoder is not None
    assert "s" in found.pattern.encoder.letters
    for words in ("can look at the source", "can mix tokens"):
        assert any(words in warning for warning in found.warnings)
        assert words in search_page(found)


def test_a_table_and_sentences_tell_of_both_sides(
    pairs: Path, quick: list[Any], tmp_path: Path
) -> None:
    found = search_recipe(open_recipe(pairs), tmp_path / "run").found
    assert found is not None
    console = Console(width=200, record=True, file=StringIO())
    console.print(found_table(found))
    shown = console.export_text()
    assert "encoder layers 1–2" in shown
    assert "cross-attention" in shown.split("decoder layers 1–3")[1].split("self-attention  ")[1]
    first = sentences_of(found)[0]
    assert first.startswith("Of 2 encoder layers, ")
    assert "Of 3 decoder layers, " in first
    assert PlacementResult.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize(
    ("preset", "choices", "problem"),
    [
        ("transformer-pocket-translation", "sfc", "write those of a translator as encoder | deco"),
        ("pocket-search", "sfi | scfi", "and those of one stack as 'sfi'"),
        ("transformer-pocket-translation", "sfi | sfi", "'sfi', looks at the source; give it c"),
        ("transformer-pocket-translation", "sci | sci", "c in the encoder of"),
        ("pocket-search", "sci", "looks at an encoder, and there is none"),
    ],
)
def test_choices_that_do_not_fit_are_refused_in_a_line(
    preset: str, choices: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["search", "placement", preset, "--choices", choices, "--run", str(tmp_path / "run")]
    assert main([*words, "--corpus", "nowhere", "--pair", "de-en"]) == 2
    said = capsys.readouterr().err.strip()
    assert problem in said
    assert said.count("\n") == 0
    assert not (tmp_path / "run").exists()
