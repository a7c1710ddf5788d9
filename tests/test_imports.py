"""Do imports go one way, stay quick, and leave out whatever runs foreign code?"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import parformer

ROOT = Path(parformer.__file__).parent

LEVELS = (
    ("errors", "events", "threads"),
    ("store",),
    ("notation",),
    ("pattern",),
    ("fields", "records"),
    ("grams",),
    ("parts",),
    ("ends",),
    ("config",),
    ("verbs",),
    ("phases", "placing", "shaping"),
    ("recipe",),
    ("naming",),
    ("kernels",),
    ("counts",),
    ("blocks", "embedding", "head"),
    ("state", "first_weights", "weights"),
    ("native",),
    ("costs", "inputs", "model", "convert", "hub"),
    ("data", "measure"),
    ("tasks", "train", "evaluate", "generate", "predict"),
    ("search", "compress", "export", "report", "fitting", "reproduce", "serve"),
    ("cli",),
    ("__main__",),
)
"""A module may import from its own level and from those above it in this list."""

RANK = {name: rank for rank, names in enumerate(LEVELS) for name in names}

Sources = Mapping[str, str]
"""Python source by module name, such as `parformer.blocks.base`."""


def read_sources() -> dict[str, str]:
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = ("parformer", *file.relative_to(ROOT).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = file.read_text("utf-8")
    return found


def packages_of(sources: Sources) -> set[str]:
    """The modules that have others inside."""
    return {name.rpartition(".")[0] for name in sources}


def imports_of(module: str, sources: Sources) -> Iterator[tuple[int, str]]:
    """Line and name of everything a module imports, also late or for type checkers alone."""
    package = module if module in packages_of(sources) else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(sources[module])):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                origin = ".".join([*above, origin] if origin else above)
            for alias in node.names:
                inside = f"{origin}.{alias.name}"
                yield node.lineno, inside if inside in sources else origin


def level_name(module: str) -> str:
    """The part of a module's name that LEVELS knows."""
    return module.split(".")[1] if "." in module else ""


def complaints_about_order(sources: Sources) -> list[str]:
    """Every import that goes the wrong way, and every module without a level."""
    found = []
    for module in sources:
        if module == "parformer":
            continue  # it only re-exports
        if level_name(module) not in RANK:
            found.append(
                f"{module} has no place in the order of imports: add {level_name(module)!r} "
                "to LEVELS in tests/test_imports.py, and to the order in the design"
            )
            continue
        for line, name in imports_of(module, sources):
            if name == "parformer":
                for taken in sorted(taken_from_top(sources[module], sources) - {"__version__"}):
                    found.append(f"{module}:{line} takes {taken!r} from the top; name its module")
            elif name.startswith("parformer.") and level_name(name) in RANK:
                if RANK[level_name(name)] > RANK[level_name(module)]:
                    found.append(f"{module}:{line} imports {name}, which stands below it")
            elif name.startswith("parformer."):
                found.append(f"{module}:{line} imports {name}, which has no level")
    return found


def taken_from_top(source: str, sources: Sources) -> set[str]:
    """What a module asks of `parformer` itself rather than of a module inside."""
    taken = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "parformer":
            taken |= {a.name for a in node.names if f"parformer.{a.name}" not in sources}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            taken |= {node.attr} if node.value.id == "parformer" else set()
    return taken


def find_cycle(sources: Sources) -> list[str]:
    """Modules that need each other, or nothing."""
    graph = {
        module: {name for _, name in imports_of(module, sources) if name in sources}
        for module in sources
        if module != "parformer"
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_go_one_way() -> None:
    assert complaints_about_order(read_sources()) == []


def test_no_modules_need_each_other() -> None:
    assert find_cycle(read_sources()) == []


def test_every_module_is_looked_at() -> None:
    names = set(read_sources())
    assert {"parformer", "parformer.blocks", "parformer.blocks.base", "parformer.model"} <= names


@pytest.mark.parametrize(
    ("sources", "complaint"),
    [
        ({"parformer.pattern": "from parformer.config import ModelConfig"}, "below"),
        ({"parformer.pattern": "import parformer.config"}, "below"),
        ({"parformer.pattern": "def late():\n    from parformer import config"}, "below"),
        ({"parformer.blocks.base": "from parformer.model import build"}, "below"),
        ({"parformer.blocks.base": "from ..model import build"}, "below"),
        ({"parformer.store.folder": "from ..model import load"}, "below"),
        ({"parformer.measure.readings": "from parformer import report"}, "below"),
        ({"parformer.model": "from parformer import build"}, "from the top"),
        ({"parformer.model": "import parformer\nparformer.load"}, "from the top"),
        ({"parformer.model": "import parformer\nparformer.report.page"}, "from the top"),
        ({"parformer.utils": ""}, "tests/test_imports.py"),
        ({"parformer.model": "from parformer.utils import helper"}, "no level"),
    ],
    ids=str,
)
def test_an_import_the_wrong_way_is_found(sources: dict[str, str], complaint: str) -> None:
    known = {"parformer.config": "", "parformer.model": "", "parformer.report": ""}
    (found,) = complaints_about_order(known | sources)
    assert complaint in found


def test_the_version_may_come_from_the_top() -> None:
    for source in ("from parformer import __version__", "import parformer\nparformer.__version__"):
        assert complaints_about_order({"parformer.model": source}) == []


def test_a_circle_is_found() -> None:
    assert find_cycle({"parformer.a": "from parformer import b", "parformer.b": ""}) == []
    circle = {"parformer.a": "from parformer import b", "parformer.b": "from . import a"}
    assert set(find_cycle(circle)) == {"parformer.a", "parformer.b"}


# Quick


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "statement",
    [
        "import parformer",
        "import parformer.cli",
        "from parformer import ModelConfig, Pattern, par, preset, presets",
        "import parformer; parformer.preset('par-base'); dir(parformer)",
    ],
)
def test_torch_waits_until_it_is_needed(statement: str) -> None:
    done = run("-c", f"{statement}; import sys; sys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_late_names_do_bring_torch_and_not_its_compiler() -> None:
    done = run("-c", "import parformer, sys; parformer.build; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert "torch" in loaded
    assert "torch._dynamo" not in loaded  # which takes as long as torch itself


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("design", "--par", "32")])
def test_the_command_line_answers_without_torch(arguments: tuple[str, ...]) -> None:
    done = run("-X", "importtime", "-m", "parformer", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "parformer.cli" in imported
    assert not {name for name in imported if name.split(".")[0] in ("torch", "numpy")}


# Harmless

FORBIDDEN_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
}
FORBIDDEN_CALLS = {"eval", "exec", "__import__"}
FORBIDDEN_ATTRIBUTES = {
    ("torch", "load"),
    ("torch", "save"),
    ("yaml", "load"),
    ("yaml", "unsafe_load"),
    ("yaml", "full_load"),
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("os", "system"),
}


def complaints_about_danger(module: str, source: str) -> list[str]:
    """Everything in a source that could run code which came as data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        bad = ""
        if isinstance(node, ast.Import):
            bad = next((a.name for a in node.names if root(a.name) in FORBIDDEN_MODULES), "")
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            pairs = {(origin, alias.name) for alias in node.names} & FORBIDDEN_ATTRIBUTES
            bad = origin if root(origin) in FORBIDDEN_MODULES else " ".join(sum(pairs, ()))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            pair = (node.value.id, node.attr)
            bad = ".".join(pair) if pair in FORBIDDEN_ATTRIBUTES else ""
        elif isinstance(node, ast.Name) and node.id in FORBIDDEN_CALLS:
            bad = node.id
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            bad = "allow_pickle"
        if bad:
            found.append(f"{module}:{getattr(node, 'lineno', '?')} uses {bad}")
    return found


def root(name: str) -> str:
    return name.split(".")[0]


def test_nothing_here_can_run_foreign_code() -> None:
    for module, source in read_sources().items():
        assert complaints_about_danger(module, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, pickle as p",
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "eval('1')",
        "run = exec",
        "__import__('os')",
        "import builtins; builtins.eval('1')",
        "torch.load(path)",
        "from torch import load",
        "yaml.load(text)",
        "from yaml import load as read",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_a_way_to_run_foreign_code_is_found(source: str) -> None:
    assert len(complaints_about_danger("parformer.x", source)) == 1


@pytest.mark.parametrize(
    "source", ["model.eval()", "yaml.safe_load(text)", "safetensors.torch.load(data)", "pf.load(x)"]
)
def test_harmless_code_is_not_complained_about(source: str) -> None:
    assert complaints_about_danger("parformer.x", source) == []


# Public


@pytest.mark.parametrize(
    "package", ["parformer", "parformer.blocks", "parformer.data", "parformer.measure"]
)
def test_public_names_all_resolve(package: str) -> None:
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'parformer' has no attribute 'transformer'"):
        parformer.transformer  # noqa: B018
