"""Does a wheel hold everything that is needed, and does it work by itself?"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "parformer"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place)]
    done = subprocess.run([*command, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = place.glob("parformer-*.whl")
    return found


def test_everything_is_inside(wheel: Path) -> None:
    """Presets, families, spaces, sources of kernels, what exports copy: all that the tree holds."""
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("parformer/")}
    wanted = {
        f"parformer/{path.relative_to(SOURCE)}"
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted == inside
    kinds = {Path(name).suffix for name in inside}
    assert {".py", ".toml", ".cpp"} <= kinds
    assert {"parformer/export/run.py", "parformer/export/modeling.py"} <= inside


def test_it_works_without_the_tree(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import parformer as pf, sys; "
        "print(len(pf.presets()) > 20, pf.cost(pf.preset('par-base')).parameters, pf.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.split() == ["True", "199840218", str(tmp_path / "parformer/__init__.py")]


def test_the_container_serves_as_nobody_in_particular() -> None:
    recipe = (ROOT / "Containerfile").read_text("utf-8")
    user = re.search(r"^USER (\d+)$", recipe, re.MULTILINE)
    assert user is not None
    assert int(user[1]) >= 1000
    assert recipe.index("USER") < recipe.index("ENTRYPOINT")
    assert '"parformer", "serve"' in recipe
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", recipe, re.MULTILINE)
    assert copied
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
