"""Does attention inside a recurrence learn what the recurrence alone cannot: to look far back?

Sixteen tokens name a key and its value in any order, then each key is asked for: the answer
stood exactly 16 tokens ago. A narrow cell does not learn to hold all of them; attention need not.
"""

# b batch, t time, k keys

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from parformer.model import Model, build
from tests.conftest import small_config

KEYS, VALUES, BATCH = 16, 4, 32
WARMUP, RATE = 50, 8e-3


def text(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and the values that are asked for at their end."""
    key_bk = torch.rand(BATCH, KEYS, generator=generator).argsort(1)
    value_bk = torch.randint(VALUES, (BATCH, KEYS), generator=generator)
    return torch.cat((VALUES * key_bk + value_bk, KEYS * VALUES + key_bk), 1), value_bk


def recalled(pattern: str, steps: int) -> tuple[float, Model]:
    """The share of right answers to new questions after so many updates."""
    sizes = {"d_model": 48, "d_attention": 24, "d_inner": 48, "n_head": 1}
    words = {"vocab_size": KEYS * VALUES + KEYS, "tie_weights": False, "max_len": 0}
    config = small_config("sru", pattern=pattern, **words, **sizes)
    model = build(config, seed=0).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / WARMUP)
        tokens, value_bk = text(generator)
        logits_bkv = model(tokens).logits[:, -KEYS:]
        optimizer.zero_grad()
        F.cross_entropy(logits_bkv.flatten(0, 1), value_bk.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        tokens, value_bk = text(generator)
        answers_bk = model.eval()(tokens).logits[:, -KEYS:].argmax(-1)
    return float((answers_bk == value_bk).float().mean()), model


@pytest.mark.soak
def test_attention_recalls_what_a_narrow_recurrence_forgets() -> None:
    share, model = recalled("a", 400)
    assert share > 0.95
    assert abs(model.get_parameter("blocks.0.alpha").item()) > 0.1
    assert recalled("r", 400)[0] < 0.7
