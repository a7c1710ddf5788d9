"""Can blocks of a trained model be replaced as it says, exactly, resumably and honestly told?"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import parformer as pf
from parformer.cli import main
from parformer.compress.recall import answered, probe, to_copy, to_recall
from parformer.compress.replacing import fitting, learning, solving
from parformer.compress.replacing.fitting import RATE, Fitting, share_at
from parformer.compress.replacing.gates import Gating
from parformer.compress.replacing.places import Places, candidates, find_places, swapped
from parformer.compress.replacing.result import Replacement
from parformer.compress.replacing.wanted import read_wanted
from parformer.compress.request import CompressRequest
from parformer.errors import ConfigError, ParformerError
from parformer.model import Model, load
from parformer.recipe import Recipe, read_recipe
from parformer.search.placement.prices import Prices
from parformer.train.checkpoint import in_order, read_checkpoint
from parformer.weights import named_tensors

SMALL = (
    *("model.pattern=(sf)x2", "model.d_model=32", "model.d_inner=48", "train.batch=2"),
    *("train.evaluate_tokens=1024", "train.final_tokens=1024", "train.compile=off"),
    *("train.tgt_len=32", "model.max_len=64"),
)
QUICK = {"tokens": 2048, "rounds": 6, "threads": 1, "updates": 4}
CLIP = 1e-3
"""Below every gradient, so that it matters whose norm is taken."""
TOKENS = torch.arange(40)[None] % 23


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    pf.train(
        model="llama-pocket", corpus="python-docs", steps=8, run=run, changes=SMALL, beside=False
    )
    return run


@pytest.fixture
def model() -> Model:
    made = pf.build(pf.preset("llama-pocket", pattern="sfsf", d_model=32, d_inner=48))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return made


def recipe_of(model: Model, **changes: object) -> Recipe:
    own = {"train.batch": 2, "train.tgt_len": 16, "train.order": "windows"}
    return read_recipe("llama-pocket", own | changes).replaced(
        {"model.pattern": model.config.pattern, "model.d_model": 32, "model.d_inner": 48}
    )


def text(count: int = 4000) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(200, (count,), generator=generator).numpy()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("x=r", "unknown block 'x'"),
        ("s", "write it as s=r,f,i"),
        ("s=", "write it as s=r,f,i"),
        ("s=r,,i", "single block"),
        ("s=rf", "single block"),
        ("s=z", "unknown block 'z'"),
        ("s=(f)x2", "single block"),
    ],
)
def test_what_cannot_be_read_is_refused(given: str, words: str) -> None:
    with pytest.raises(ParformerError, match=words):
        CompressRequest(model=Path("x"), replace=(given,))


def test_wishes_of_several_blocks() -> None:
    wanted = read_wanted(["s=r[full],f[inner=8]", "f=i"])
    assert [str(one) for one in wanted["s"]] == ["r[full]", "f[inner=8]"]
    assert CompressRequest(model=Path("x"), replace="s=i").steps == ("replace",)
    asked = CompressRequest(model=Path("x"), replace="s=i", limits=("size=1MB",))
    assert asked.steps == ("replace", "quantize")
    with pytest.raises(ConfigError, match="twice"):
        read_wanted(["s=r", "s=i"])
    with pytest.raises(ConfigError, match="give one"):
        CompressRequest(model=Path("x"), time=5.0, updates=3)


def run_by_hand(model: Model, blocks: Sequence[torch.nn.Module], tokens: Tensor) -> Tensor:
    """The stream through other blocks than a model's own, written out."""
    from parformer.blocks.base import Context

    x_btd = model.embedding(tokens, None, 0, None, None)
    for block in blocks:
        x_btd = block(x_btd, None, Context(memory=64, tokens=tokens))[0]
    return model.head.logits(model.final_norm(x_btd))


def test_a_swapped_model_runs_the_blocks_that_were_picked(model: Model) -> None:
    where = find_places(model, read_wanted(["s=r,f[inner=24],i", "f=i"]))
    assert where.paths == ("blocks.0", "blocks.1", "blocks.2", "blocks.3")
    others = candidates(model, where, seed=3)
    fitted = dict(named_tensors(others))
    same = swapped(model, where, where.originals, fitted)
    assert torch.equal(same(TOKENS).logits, model(TOKENS).logits)
    made = swapped(model, where, [1, 0, 2, 1], fitted)
    assert str(made.config.pattern) == "rff[inner=24]"
    own = model.blocks
    wanted = run_by_hand(model, [others[0][0], own[1], others[2][1]], TOKENS)
    torch.testing.assert_close(made(TOKENS).logits, wanted)
    none = swapped(model, where, [3, 1, 3, 1], fitted)
    assert str(none.config.pattern) == "i"
    torch.testing.assert_close(none(TOKENS).logits, run_by_hand(model, [], TOKENS))


def test_all_candidates_learn_in_one_pass_what_each_would_learn_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "CLIP", CLIP)
    where = find_places(model, read_wanted(["s=r,f[inner=24],i"]))
    recipe = recipe_of(model)
    work = Fitting(model, where, recipe, text(), seed=3)
    naive = candidates(model, where, seed=3)
    streams: dict[int, tuple[Tensor, Tensor]] = {}
    for number in (0, 2):
        model.blocks[number].register_forward_hook(
            lambda _, given, out, number=number: streams.update({number: (given[0], out[0])})
        )
    steps = 3
    for step in range(steps):
        batch = work.batches.at(step)
        with torch.no_grad():
            model(batch.tokens_bt)
        for at, number in enumerate((0, 2)):
            x, y = streams[number]
            for block in naive[at][:2]:
                from parformer.blocks.base import Context

                own = block(x, None, Context(memory=64, tokens=batch.tokens_bt))[0]
                error = ((own - y) ** 2).mean() / ((y - x) ** 2).mean()
                weights = list(block.parameters())
                adam = getattr(block, "adam", None) or torch.optim.Adam(weights)
                block.adam = adam
                adam.zero_grad()
                error.backward()
                torch.nn.utils.clip_grad_norm_(weights, CLIP)
                for group in adam.param_groups:
                    group["lr"] = RATE * share_at(step, steps)
                adam.step()
        work.update(step, steps)
    for name, tensor in work.weights().items():
        torch.testing.assert_close(
            tensor, dict(naive.named_parameters())[name], rtol=2e-4, atol=2e-5
        )
    errors = work.errors(1, steps)
    assert all(row[2] == pytest.approx(1.0) for row in errors)  # to do nothing is one
    assert all(min(row[:2]) < 1 for row in errors)


def uneven(where: Places) -> Prices:
    choices = tuple((9, 4, 5, 0)[: len(row)] for row in where.space.layers)
    own = sum(row[0] for row in choices)
    return Prices(metric="latency", choices=choices, fixed=10, baseline=10 + own)


def test_gates_feel_what_a_naive_mixture_feels(model: Model) -> None:
    where = find_places(model, read_wanted(["s=r,f[inner=24],i"]))
    others = candidates(model, where, seed=3)
    prices = uneven(where)
    work = Gating(model, where, others, prices, recipe_of(model), text(), seed=0)
    weights_lc = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]], requires_grad=True)
    work.loss(weights_lc, 0).backward()

    class Mixed(torch.nn.Module):
        def __init__(self, blocks: Sequence[torch.nn.Module], weights_c: Tensor) -> None:
            super().__init__()
            self.blocks, self.weights_c = blocks, weights_c

        def forward(self, x: Tensor, state: object, context: object) -> tuple[Tensor, None]:
            outs = [block(x, None, context)[0] for block in self.blocks]
            return sum(w * y for w, y in zip(self.weights_c, outs, strict=True)), None

    naive_lc = weights_lc.detach().clone().requires_grad_()
    batch = work.batches.at(0)
    mixed = [Mixed([model.blocks[2 * at], *others[at]], naive_lc[at]) for at in (0, 1)]
    order = [mixed[0], model.blocks[1], mixed[1], model.blocks[3]]
    logits = run_by_hand(model, order, batch.tokens_bt)
    torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten().long()
    ).backward()
    torch.testing.assert_close(weights_lc.grad, naive_lc.grad, rtol=1e-4, atol=1e-6)
    assert float(work.cost().detach()) == pytest.approx((10 + 2 * (9 + 4 + 5 + 0) / 4) / 28)


def test_a_penalty_closes_gates_and_weights_stay(model: Model) -> None:
    where = find_places(model, read_wanted(["s=r,i"]))
    others = candidates(model, where, seed=3)
    work = Gating(model, where, others, uneven(where), recipe_of(model), text(), seed=0)
    work.gates.penalty.fill_(100.0)
    before = {name: tensor.clone() for name, tensor in named_tensors(work.mixed).items()}
    first = float(work.cost().detach())
    for step in range(3):
        work.update(step, 3)
    assert float(work.cost().detach()) < first
    free = Gating(model, where, others, uneven(where), recipe_of(model), text(), seed=0)
    free.middle = 2.0  # nothing is too dear
    for step in range(3):
        free.update(step, 3)
    assert float(work.cost().detach()) < float(free.cost().detach()) - 0.005
    assert all(torch.equal(before[n], t) for n, t in named_tensors(work.mixed).items())
    assert [sum(row) for row in work.chances()] == pytest.approx([1.0, 1.0])


def test_the_best_few_are_those_of_trying_all() -> None:
    rng = random.Random(0)
    for _ in range(20):
        layers = rng.randint(1, 5)
        rows = [rng.randint(2, 4) for _ in range(layers)]
        prices = tuple(tuple(rng.randint(0, 9) for _ in range(count)) for count in rows)
        gains = [[-rng.random() for _ in range(count)] for count in rows]
        own = Prices(metric="latency", choices=prices, fixed=3, baseline=20)
        limit = rng.choice([0.4, 0.8, 1.2])
        every = [
            picks for picks in itertools.product(*map(range, rows)) if own.total(picks) <= limit
        ]

        def score(picks: Sequence[int], gains: list[list[float]] = gains) -> float:
            return math.fsum(row[pick] for row, pick in zip(gains, picks, strict=True))

        best = sorted(every, key=score, reverse=True)[:3]
        found = solving.best_few(gains, own, limit, 3)
        # of equally good ones any will do, and a dearer twin of a cheaper choice is none
        assert [score(picks) for picks in found[:1]] == pytest.approx([score(p) for p in best[:1]])
        assert len({tuple(p) for p in found}) == len(found)
        assert all(own.total(picks) <= limit for picks in found)


def test_prices_add_up_to_what_the_clock_says(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock of which all is known: each block has its nanoseconds."""
    each = {"s": 500, "r": 200, "f": 300}

    def seconds(pattern: object) -> float:
        return 1e-9 * (1000 + sum(each[block.letter] for block in pattern))  # type: ignore[attr-defined]

    class Times(dict[str, SimpleNamespace]):
        def ratio(self, one: str, other: str) -> float:
            return float(self[one].median / self[other].median)

    def clock(models: Mapping[str, Model], *_: object) -> tuple[Times, None]:
        times = {
            name: SimpleNamespace(median=seconds(m.config.pattern)) for name, m in models.items()
        }
        return Times(times), None

    monkeypatch.setattr(solving, "clock", clock)
    where = find_places(model, read_wanted(["s=r,f[inner=24],i"]))
    fitted = dict(named_tensors(candidates(model, where, seed=0)))
    found = solving.timed_prices(
        where, lambda picks: swapped(model, where, picks, fitted), None, lambda share: None
    )
    assert found.choices == ((500, 200, 300, 0),) * 2
    assert found.fixed == 1600
    assert found.total([1, 3]) == pytest.approx(1800 / 2600)
    with pytest.raises(ConfigError, match=r"the nearest .s→i s→i. has 0.615x.*0.62x"):
        solving.refuse_too_little(found, 0.5, where.space.layers)
    counted = solving.counted_prices(where, model)
    made = swapped(model, where, [2, 3], fitted)
    assert (
        counted.total([2, 3]) * pf.cost(model.config).parameters == pf.cost(made.config).parameters
    )


class Inductive:
    """Knows nothing but what followed a token the last time; or, forgetful, nothing at all."""

    def __init__(self, size: int, *, forgets: bool = False) -> None:
        self.config = SimpleNamespace(vocab_size=size, max_len=64)
        self.size, self.forgets = size, forgets

    def __call__(self, tokens_bt: Tensor) -> SimpleNamespace:
        logits = torch.zeros(*tokens_bt.shape, self.size)
        for row, line in enumerate(tokens_bt.tolist()):
            for at, token in enumerate(line):
                earlier = [n for n in range(at) if line[n] == token]
                if earlier and not self.forgets:
                    logits[row, at, line[earlier[-1] + 1]] = 1.0
        return SimpleNamespace(logits=logits)


def test_recall_is_what_only_recall_can_do() -> None:
    found = probe(Inductive(60), text() % 60)  # type: ignore[arg-type]
    assert (found.copying, found.recall) == (1.0, 1.0)
    none = probe(Inductive(60, forgets=True), text() % 60)  # type: ignore[arg-type]
    assert none.copying < 0.1
    assert abs(none.recall - 1 / 8) < 0.06
    assert none.error("recall") == pytest.approx(
        1.96 * (none.recall * (1 - none.recall) / 512) ** 0.5
    )
    assert probe(Inductive(60), text() % 4) is None  # type: ignore[arg-type]


def test_answers_are_counted_as_a_loop_counts_them(model: Model) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.stack([torch.randperm(200, generator=generator)[:8] for _ in range(11)])
    orders = torch.stack([torch.randperm(4, generator=generator) for _ in range(11)])
    for tokens, places, options, right in (to_copy(rows), to_recall(rows, orders)):
        count = total = 0
        for row in range(len(tokens)):
            logits = model(tokens[row : row + 1]).logits[0].detach()
            for place, answer in zip(places[row].tolist(), right[row].tolist(), strict=True):
                told = max(
                    range(options.shape[1]), key=lambda n: float(logits[place, options[row, n]])
                )
                wanted = tokens[row, place + 1] if place + 1 < tokens.shape[1] else None
                assert wanted is None or wanted == options[row, answer]
                count += told == answer
                total += 1
        assert answered(model, tokens, places, options, right) == pytest.approx(count / total)


def test_a_replaced_model_is_an_ordinary_one_with_its_receipt(
    trained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "less"
    result = pf.compress(
        model=trained, run=run, replace="s=r,i", by="replace", limits=("size=0.9x",), **QUICK
    )
    found = result.stairs[1].replacement
    assert found is not None
    assert found == Replacement.load(run / "steps" / "1-replace")
    chosen = found.candidates[found.chosen]
    made = load(run / "model")
    assert str(made.config.pattern) == chosen.pattern
    assert made.config.pattern.letters.count("s") < 2
    assert chosen.cost <= 0.9
    taught = [one.after for one in found.candidates]
    assert chosen.after == min(taught)  # type: ignore[type-var]
    assert result.stairs[1].figures.loss == pytest.approx(chosen.after)
    assert result.stairs[0].figures.recalled is not None
    assert "Of what it has just read: copying" in result.verdict()
    page = (run / "report.html").read_text("utf-8")
    assert "Which blocks can go?" in page
    assert "copying, recall" in page
    assert pf.generate(model=run, prompts=("def ",), tokens=5)[0].text


def learned_last(run: Path, what: str) -> Mapping[str, Tensor]:
    [folder] = (run / "steps" / "1-replace").glob(f"*/{what}")
    return read_checkpoint(in_order(folder)[-1]).weights


def bits(run: Path) -> dict[str, Tensor]:
    return dict(named_tensors(load(run / "model")))


def test_stopped_anywhere_it_ends_with_the_same_bits_and_another_limit_is_quick(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"model": trained, "replace": ("s=r,i",), "by": "replace", **QUICK}
    limit = {"limits": ("size=0.9x",)}
    pf.compress(run=tmp_path / "whole", **asked, **limit)
    monkeypatch.setattr(learning, "SAVED_EVERY", 0.0)
    visits = itertools.count(1)

    def stop(name: str) -> None:
        if next(visits) in (3, 19):  # while candidates learn, and while gates do
            raise KeyboardInterrupt

    monkeypatch.setattr(learning, "failpoint", stop)
    run = tmp_path / "stopped"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            pf.compress(run=run, **asked, **limit)
    pf.compress(run=run, **asked, **limit)
    assert next(visits) > 19
    for what in ("fitting", "gates"):
        ends = [learned_last(tmp_path / name, what) for name in ("whole", "stopped")]
        assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
    whole, again = bits(tmp_path / "whole"), bits(run)
    assert whole.keys() == again.keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.items())

    def nothing(name: str) -> None:
        raise AssertionError("nothing is fitted again for another limit")

    monkeypatch.setattr(learning, "failpoint", nothing)
    other = pf.compress(run=run, **asked, limits=("size=0.95x",))
    assert other.stairs[1].replacement.limit == 0.95


def test_bad_input_is_one_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--tokens", "2048", "--rounds", "6", "--threads", "1", "--updates", "2"]
    for more, words in (
        (["--replace", "x=r"], "unknown block 'x'"),
        (["--replace", "r=i"], "no block 'r' to replace"),
        (["--replace", "s=i", "--by", "replace", "--limit", "size=0.01x"], "the nearest"),
    ):
        run = ["--run", str(tmp_path / "no")]
        assert main(["compress", str(trained), *run, *more, *quick]) == 2
        told = capsys.readouterr().err.strip().splitlines()[-1]
        assert told.startswith("parformer compress: ")
        assert words in told
        assert (tmp_path / "no").exists() == ("nearest" in words)


def test_a_folder_of_hugging_face_is_a_checkpoint(trained: Path, tmp_path: Path) -> None:
    pf.export(model=trained, hub=tmp_path / "hub")
    result = pf.compress(
        model=tmp_path / "hub",
        run=tmp_path / "less",
        corpus="python-docs",
        replace="s=i",
        by="replace",
        limits=("size=0.9x",),
        **QUICK,
    )
    assert result.stairs[1].replacement is not None
    assert load(tmp_path / "less" / "model").config.pattern.letters.count("s") < 2


def test_encoders_take_what_reads_both_sides() -> None:
    config = pf.preset("bert-pocket", pattern="sfsf", d_model=32, d_inner=48)
    model = pf.build(config)
    where = find_places(model, read_wanted(["s=f[inner=24],i"]))
    fitted = dict(named_tensors(candidates(model, where, seed=0)))
    assert str(swapped(model, where, [1, 2], fitted).config.pattern) == "f[inner=24] (f)x2"
    pattern = "sf | scf"
    both = pf.build(pf.preset("transformer-pocket-translation", pattern=pattern, d_model=32))
    where = find_places(both, read_wanted(["s=f[inner=24],i"]))
    assert where.paths == ("blocks.0", "encoder.blocks.0")
    fitted = dict(named_tensors(candidates(both, where, seed=0)))
    made = swapped(both, where, [2, 1], fitted)
    assert str(made.config.pattern) == "f[inner=24]f | cf"
    assert torch.equal(made.encoder.blocks[0].out.weight, fitted["1.0.out.weight"])
    with pytest.raises(ConfigError, match="sees both sides"):
        candidates(model, find_places(model, read_wanted(["s=r"])), seed=0)
    alone = pf.build(pf.preset("llama-pocket", pattern="ff", d_model=32, d_inner=48))
    with pytest.raises(ConfigError, match="no block 's' to replace"):
        find_places(alone, read_wanted(["s=i"]))
