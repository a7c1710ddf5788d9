"""Do kernels that were compiled elsewhere serve a machine without a compiler?"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from parformer.cli import main
from parformer.errors import ConfigError
from parformer.kernels import extension, prebuilt, wheel
from parformer.kernels.request import KernelsRequest, kernels

pytestmark = pytest.mark.skipif(not extension.find_compilers(), reason="needs a C++ compiler")
CODE = 'extern "C" int level() {\n#ifdef __AVX2__\n  return 2;\n#else\n  return 1;\n#endif\n}\n'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "small.cpp"
    file.write_text(CODE)
    monkeypatch.setattr(wheel, "kernels", lambda: iter([wheel.Kernel(file, ("-DX=1",))]))
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "cache"))
    return file


@pytest.fixture
def site(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheel, as pip lays it out, and no compiler."""
    made = kernels(action="build", wheel=tmp_path / "wheels", level=("x86-64-v3", "x86-64"))
    assert [one.level for one in made.libraries] == ["x86-64-v3", "x86-64"]
    folder = tmp_path / "site"
    zipfile.ZipFile(made.wheel).extractall(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(extension, "find_compilers", list)
    return folder


def level_of(source: Path) -> int:
    return int(extension.load(source, flags=("-DX=1",), seconds=1).level())


def test_the_best_level_that_the_cpu_has_is_taken(
    source: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prebuilt, "cpu_flags", lambda: {"sse2"})
    assert level_of(source) == 1
    if "avx2" in extension.describe_cpu():
        monkeypatch.setattr(prebuilt, "cpu_flags", lambda: prebuilt.LEVELS["x86-64-v3"])
        assert level_of(source) == 2


def test_another_source_or_a_damaged_library_is_not_taken(source: Path, site: Path) -> None:
    for library in (site / prebuilt.PACKAGE).glob("*.so"):
        library.write_bytes(library.read_bytes()[:-1] + b"?")
    with pytest.raises(extension.Unavailable, match="kernels build --wheel FOLDER"):
        level_of(source)
    source.write_text(CODE + "// changed\n")
    with pytest.raises(extension.Unavailable, match="no C\\+\\+ compiler"):
        level_of(source)


def test_pip_installs_the_wheel(source: Path, tmp_path: Path) -> None:
    made = kernels(action="build", wheel=tmp_path / "wheels", level=("x86-64",))
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*command, "--target", str(tmp_path / "there"), made.wheel], check=True)
    index = json.loads((tmp_path / "there" / prebuilt.PACKAGE / prebuilt.INDEX).read_text())
    assert [one["name"] for one in index["libraries"]] == ["small"]


def test_all_are_built_before_they_are_needed(source: Path) -> None:
    assert kernels(action="build").built == 1
    assert len(list((extension.cache_folder() / "kernels").glob("small-*.so"))) == 1


def test_every_kernel_is_in_it() -> None:
    package = Path(prebuilt.__file__).parents[1]
    assert {one.source for one in wheel.kernels()} == set(package.rglob("*.cpp"))
    # and is known by what it is loaded with
    names = {one.source.stem: one for one in wheel.kernels()}
    assert names["recurrence"].flags[0] == "-ffp-contract=off"
    assert names["decoder"].parts == names["coded"].parts != ()


def test_the_verb_tells_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels"]) == 0
    assert "instructions: " in capsys.readouterr().out
    with pytest.raises(ConfigError, match="kernels build --wheel FOLDER"):
        KernelsRequest(wheel=Path("wheels"))
    with pytest.raises(ConfigError, match="known: x86-64-v4"):
        KernelsRequest(level=("sse",))
    with pytest.raises(ConfigError, match="give --wheel FOLDER too"):
        KernelsRequest(level=("x86-64",))
