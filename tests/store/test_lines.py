"""Do files of lines survive whoever writes them, and notice what was changed in them?"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from parformer.errors import FolderError
from parformer.store.lines import SEAL, Lines, seal, unseal


def written(file: Path, *bodies: str) -> bytes:
    lines = Lines(file, SEAL, unseal)
    for body in bodies:
        lines.add(seal(body))
    lines.settle()
    lines.close()
    return file.read_bytes()


def read(file: Path) -> list[object]:
    lines = Lines(file, SEAL, unseal)
    lines.close()
    return list(lines.found)


def test_a_cut_at_every_byte_loses_the_last_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    data = written(file, "1", '{"a": 2}')
    last = data[:-1].rfind(b"\n") + 1
    for cut in range(last, len(data)):
        file.write_bytes(data[:cut])
        assert read(file) == [1]
        written(file, "3")
        assert read(file) == [1, 3]


def test_a_flipped_bit_never_goes_unseen(tmp_path: Path) -> None:
    file = tmp_path / "file"
    data = written(file, *map(str, range(8)))
    last = data[:-1].rfind(b"\n") + 1
    rng = Random(5)
    for _ in range(200):
        place, bit = rng.randrange(len(data)), rng.randrange(8)
        damaged = bytearray(data)
        damaged[place] ^= 1 << bit
        file.write_bytes(damaged)
        try:
            found = read(file)
        except FolderError as error:
            assert "is damaged; copy the file back" in str(error)
            assert place < last
        else:  # the last line may be half a line that was being written
            assert place >= last - 1
            assert found == list(range(len(found)))


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines(tmp_path / "file", SEAL, unseal)
    lines.add(seal("1"))
    write = os.write
    calls = iter([3])

    def half(handle: int, data: bytes) -> int:
        for count in calls:
            return write(handle, data[:count])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(FolderError, match=r"file' \(8\d bytes needed\): No space left"):
            lines.add(seal("2"))
    lines.add(seal("3"))
    lines.close()
    assert read(tmp_path / "file") == [1, 3]


def test_a_file_has_one_owner(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "file", SEAL, unseal)
    with pytest.raises(FolderError, match="another process is working on"):
        Lines(tmp_path / "file", SEAL, unseal)
    lines.close()
    assert read(tmp_path / "file") == []


@pytest.mark.parametrize("text", ["just\nsome\ntext\n", "one line\n", "x", "{}\n"])
def test_a_file_of_something_else_is_not_touched(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(FolderError):
        Lines(tmp_path / "file", SEAL, unseal)
    assert (tmp_path / "file").read_text() == text
