"""Do results survive being written down, also those of older versions?"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from parformer.config import ModelConfig, preset
from parformer.errors import FolderError
from parformer.pattern import Pattern
from parformer.records import Record, Result


@dataclass(frozen=True)
class Inner(Record):
    size: int
    share: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer(Result):
    FILE: ClassVar[str] = "outer.json"
    FORMAT: ClassVar[str] = "parformer-outer-1"

    pattern: Pattern
    config: ModelConfig
    kind: Literal["good", "bad"] = "good"
    inner: Inner | None = None
    rows: tuple[Inner, ...] = ()
    span: tuple[float, float] = (0.0, 1.0)
    by_name: dict[str, Inner] = field(default_factory=dict)
    path: Path | None = None


WHOLE = Outer(
    pattern=Pattern.parse("(sf)x2"),
    config=preset("pocket"),
    kind="bad",
    inner=Inner(3),
    rows=(Inner(1), Inner(2, 0.25)),
    span=(0.5, 2.0),
    by_name={"a": Inner(7)},
    path=Path("runs/a"),
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    WHOLE.save(tmp_path)
    assert Outer.load(tmp_path) == WHOLE
    assert json.loads((tmp_path / "outer.json").read_text())["format"] == "parformer-outer-1"


def test_what_an_older_version_wrote_is_read() -> None:
    old = {"pattern": "sf", "config": preset("pocket").to_dict(), "rows": [{"size": 4}], "gone": 1}
    assert Outer.from_dict(old).rows == (Inner(4, 0.5),)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"pattern": 3}, "outer.json.pattern must be a pattern, got 3"),
        ({"kind": "ugly"}, "outer.json.kind must be one of 'good', 'bad', got 'ugly'"),
        ({"rows": [{"size": 1}, {"size": True}]}, "rows[1].size must be a whole number"),
        ({"rows": [{}]}, "outer.json.rows[0] lacks 'size'"),
        ({"rows": {}}, "outer.json.rows must be a list"),
        ({"span": [1.0]}, "outer.json.span must be a list of 2"),
        ({"by_name": [1]}, "outer.json.by_name must be a table"),
        ({"inner": "x"}, "outer.json.inner must be a table"),
        ({"format": "another"}, "'another', not ours"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    values = {"format": Outer.FORMAT} | WHOLE.to_dict() | change
    (tmp_path / "outer.json").write_text(json.dumps(values))
    with pytest.raises(FolderError) as caught:
        Outer.load(tmp_path)
    assert complaint in str(caught.value)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(FolderError, match="Outer lacks 'pattern'"):
        Outer.from_dict({})
