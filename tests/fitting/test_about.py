"""Is it said how far predictions were off?"""

from __future__ import annotations

import pytest

from parformer.fitting.about import off_by
from tests.fitting.test_verdict import latency, row


def test_predictions_are_off_by_their_median() -> None:
    """Too much and too little count alike; what was not predicted or not measured does not."""
    measured = latency(1.0)
    rows = [
        row("baseline", latency=measured),
        row("par", latency=measured, predicted=0.0102),
        row("recurrent", latency=measured, predicted=0.0090),
        row("hybrid", latency=measured, predicted=0.0104),
        row("found", latency=None, predicted=0.5),
    ]
    assert off_by(rows) == pytest.approx(0.04)
    assert off_by(rows[:1]) is None
