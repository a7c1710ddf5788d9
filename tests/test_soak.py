"""Long trials of what the other tests try briefly; `make soak` runs them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
import torch

import parformer as pf
from parformer.config import FAMILIES
from parformer.errors import FolderError, ParformerError, PatternError
from parformer.measure import compare, measure_latency
from parformer.measure.models import PLACEMENT
from parformer.model import Model

pytestmark = pytest.mark.soak

GRAMMAR = "sffiralyq((()))<<>>xx×*0123  [[]]==,,.-+_\n"


@pytest.mark.parametrize("seed", range(10))
def test_a_million_texts_are_refused_or_read_back(seed: int) -> None:
    rng = Random(seed)
    for _ in range(100_000):
        text = "".join(rng.choices(GRAMMAR, k=rng.randint(0, 24)))
        try:
            pattern = pf.Pattern.parse(text)
        except PatternError as error:
            assert "\n" not in str(error)
        else:
            assert pf.Pattern.parse(str(pattern)) == pattern


@pytest.mark.parametrize("seed", range(4))
def test_configurations_from_noise_give_our_own_errors(seed: int) -> None:
    rng = Random(seed)
    good = pf.preset("pocket").to_dict()
    values = [0, 1, -1, 2**70, 3.5, float("nan"), "", "pre", "sf", None, True, [], [1, 2], {}, b"x"]
    for _ in range(25_000):
        fields = {**good, **{name: rng.choice(values) for name in rng.sample(sorted(good), 3)}}
        try:
            config = pf.ModelConfig.from_dict(fields)
            pf.cost(config)
        except ParformerError as error:
            assert "\n" not in str(error)
        else:
            assert pf.ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_thousand_flipped_bits_are_all_caught(tmp_path: Path) -> None:
    path = tmp_path / "model"
    pf.build(pf.preset("pocket", d_model=16, n_head=2, d_inner=8, vocab_size=20)).save(path)
    files = sorted(path.iterdir())
    rng = Random(0)
    for _ in range(1000):
        file = rng.choice(files)
        good = file.read_bytes()
        changed = bytearray(good)
        changed[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
        file.write_bytes(changed)
        with pytest.raises(FolderError):
            pf.load(path)
        file.write_bytes(good)
    pf.load(path)


def random_model(rng: Random) -> Model:
    family = rng.choice([name for name in FAMILIES if name != "bert"])
    letters = "".join(rng.choice(["s", "s[heads=1]", "f", "f[inner=24]", "i"]) for _ in range(8))
    window = {} if family == "transformer-xl" else {"max_len": 64}
    config = pf.ModelConfig(
        family=family,
        pattern=pf.Pattern.parse(f"s{letters}"),
        vocab_size=50,
        d_model=32,
        n_head=rng.choice([1, 2, 4]),
        d_inner=48,
        position_bias="per-layer" if family == "transformer-xl" else "none",
        norm=rng.choice(["pre", "post"]),
        mem_len=64,
        **window,
    )
    return pf.build(config, seed=rng.randrange(1000))


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("batch", [1, 3])
def test_pieces_and_single_steps_give_the_numbers_of_one_piece(seed: int, batch: int) -> None:
    rng = Random(seed)
    model = random_model(rng)
    for length in (1, 17, 60):
        tokens = torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(seed))
        with torch.inference_mode():
            whole = model(tokens).logits
            for most in (1, 9):
                state, parts, at = None, [], 0
                while at < length:
                    out = model(tokens[:, at : (at := at + rng.randint(1, most))], state)
                    state = out.state
                    parts.append(out.logits)
                pieces = torch.cat(parts, dim=1)
                torch.testing.assert_close(pieces, whole, atol=1e-4, rtol=0)
                assert torch.equal(pieces.argmax(-1), whole.argmax(-1))


def test_twenty_copies_of_one_model_are_called_equal() -> None:
    config = pf.preset("pocket")
    tokens = torch.randint(256, (1, 32))
    models = [pf.build(config) for _ in range(20)]

    def step(model: Model) -> None:
        with torch.inference_mode():
            model(tokens)

    different = pairs = 0
    for trial in range(10):
        candidates = {str(i): (lambda m=m: step(m)) for i, m in enumerate(models)}
        result = measure_latency(candidates, rounds=20, threads=1, seed=trial)
        samples = [timing.samples_seconds for timing in result.timings]
        for i in range(20):
            for j in range(i):
                pairs += 1
                found = compare(samples[i], samples[j], smallest=PLACEMENT)
                different += found.verdict != "tie"
    assert pairs == 1900
    assert different <= 0.05 * pairs
