"""Do as many matrices become four bits as bytes ask for and quality bears?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parformer.blocks.coded import NARROW, WIDE
from parformer.compress import steps
from parformer.compress.bits import Borne
from parformer.compress.request import CompressRequest
from parformer.compress.steps import borne_by, choose_bits
from parformer.compress.work import Work
from parformer.model import Model
from parformer.weights import matrices
from tests.compress.test_job import unwanted
from tests.compress.test_shrinking import alive
from tests.compress.test_worth import work_for


@pytest.fixture
def model() -> Model:
    return alive("gpt2-pocket", pattern="sf")


def limited(work: Work, *limits: str, grown: float = 0.0) -> Work:
    request = CompressRequest(model=Path("x"), limits=limits)
    return replace(work, request=request, targets=request.targets, grown=grown)


def test_bits_stop_where_quality_does(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = work_for(model, tmp_path, "gradient")
    each = Borne(plain=400, wide=100, narrow=50, loses=0.02)
    monkeypatch.setattr(steps, "borne_by", lambda *_: dict.fromkeys(matrices(model), each))

    def narrow(*limits: str, grown: float = 0.0) -> int:
        bits = choose_bits(model, limited(work, *limits, grown=grown))
        assert set(bits) == set(matrices(model))
        assert set(bits.values()) <= {NARROW, WIDE}
        return sum(one == NARROW for one in bits.values())

    every = len(matrices(model))
    assert every > 3
    assert narrow("size=1kB") == every
    assert narrow("size=1kB", "loss=+90%") == every
    assert narrow("size=1kB", "loss=+5%") == 1, "as many as may, not none at all"
    assert narrow("loss=+5%") == 1
    assert narrow("loss=+5%", grown=0.045) == 0, "the steps before have lost already"
    assert narrow("latency=0.5x") == 0


def test_what_matrices_bear_is_found_out_once(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "TRIED", 512)
    work = replace(work_for(model, tmp_path, "gradient"), folder=tmp_path / "steps" / "1-quantize")
    found = borne_by(model, work)
    assert set(found) == set(matrices(model))
    monkeypatch.setattr(steps, "sensitivity", unwanted)
    assert borne_by(model, replace(work, folder=tmp_path / "steps" / "3-quantize")) == found
    with pytest.raises(AssertionError):
        borne_by(alive("gpt2-pocket", pattern="sff"), work)
