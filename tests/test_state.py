"""Can pasts of different lengths stand in one batch, and does each go on as if alone?"""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from parformer.errors import InputError
from parformer.model import Model, build
from parformer.state import State, can_stand_beside, side_by_side, without_absent
from tests.conftest import DIFFERENT, lively, small_config

PATTERNS = ["sf", "rsf", "af", "n[rows=50]lf", "{sf}x2 <sf>"]
CASES = [
    (family, pattern)
    for family in DIFFERENT
    if family not in ("bert", "albert", "mobilebert")
    for pattern in PATTERNS
]


def make(family: str, pattern: str, **changes: object) -> Model:
    memory = {"mem_len": 6} if family in ("transformer-xl", "sru") else {"max_len": 24}
    sizes = {"d_model": 16, "n_head": 2, "d_bottleneck": 8, "pattern": pattern}
    config = small_config(family, **(sizes | memory | changes))
    return lively(build(config, dtype=torch.float64))


def texts(count: int, time: int) -> torch.Tensor:
    return torch.randint(13, (count, time), generator=torch.Generator().manual_seed(count))


def read(model: Model, tokens: torch.Tensor) -> State:
    state = model.initial_state(len(tokens), model.config.memory or 6)
    return model(tokens, state).state


@pytest.mark.parametrize(("family", "pattern"), CASES)
def test_rows_that_began_at_different_times_go_on_as_if_alone(family: str, pattern: str) -> None:
    model = make(family, pattern)
    with torch.inference_mode():
        alone = [read(model, texts(count, time)) for count, time in ((1, 5), (2, 3), (1, 8))]
        assert can_stand_beside(alone[0], alone[1])
        state = side_by_side(alone[:2])
        for step in range(12):
            if step == 3:
                state = side_by_side([state, alone[2]])
            if step == 6:
                state = without_absent(state.rows(torch.tensor([2, 0])))
                alone = [alone[1].rows(torch.tensor([1])), alone[0]]
            tokens = texts(9, 20)[: state.batch, step : step + 1]
            joined = model(tokens, state)
            state = joined.state
            parts = torch.split(tokens, [s.batch for s in alone[: 2 if step < 3 else 3]])
            outs = [model(part, s) for part, s in zip(parts, alone, strict=False)]
            alone = [*(out.state for out in outs), *alone[len(outs) :]]
            assert_close(joined.logits, torch.cat([out.logits for out in outs]))


def test_counts_and_repeats_go_on_as_if_alone() -> None:
    model = make("llama", "sf", recall=9)
    with torch.inference_mode():
        alone = [read(model, texts(1, 4).repeat(1, 2)), read(model, texts(2, 3))]
        state = side_by_side(alone)
        tokens = texts(1, 4).repeat(3, 1)
        for step in range(4):
            joined = model(tokens[:, step : step + 1], state)
            state = joined.state
            outs = [model(tokens[: s.batch, step : step + 1], s) for s in alone]
            alone = [out.state for out in outs]
            assert_close(joined.logits, torch.cat([out.logits for out in outs]))


def test_what_cannot_stand_side_by_side_says_so() -> None:
    model = make("gpt2", "y[random]f")
    with torch.inference_mode():
        short, long = read(model, texts(1, 3)), read(model, texts(1, 5))
        assert not can_stand_beside(short, long)
        assert can_stand_beside(short, read(model, texts(2, 3)))
        counting = make("llama", "sf", counts=4096)
        assert not can_stand_beside(read(counting, texts(1, 1)), read(counting, texts(1, 9)))
        full = make("gpt2", "sf")
        state = side_by_side([read(full, texts(1, 23)), read(full, texts(1, 3))])
        with pytest.raises(InputError, match="cannot read 25 tokens in a window of 24"):
            full(texts(2, 2), state)
