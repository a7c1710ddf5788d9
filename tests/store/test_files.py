"""Does a small file survive, and where are caches?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parformer.errors import FolderError
from parformer.store import files
from parformer.store.files import replace_file


@pytest.mark.parametrize("what", ["sync", "rename"])
def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    file = tmp_path / "result.json"
    replace_file(file, "old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((files, "sync") if what == "sync" else (Path, "rename")), full)
    with pytest.raises(FolderError, match=r"result.json' \(4 bytes needed\): No space left"):
        replace_file(file, "für")
    assert file.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
