"""The house as a whole: public names, light imports, layers, examples in docstrings, dependencies."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import itertools
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import blendfilter

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "blendfilter"
BIN = Path(sys.executable).parent
HEAVY = {
    "dspy", "litellm", "torch", "transformers", "numpy", "scipy", "pandas", "openai", "bm25s", "datasets", "colbert",
    "faiss", "sentence_transformers", "starlette", "uvicorn", "httpx", "matplotlib",
}  # fmt: skip
SOURCES = sorted(PACKAGE.rglob("*.py"))
MODULES = ["blendfilter", *(found.name for found in pkgutil.walk_packages(blendfilter.__path__, "blendfilter."))]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, waited for."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=600, check=True
    )


# --- public names ---------------------------------------------------------------------------------------------------


def typed_names() -> dict[str, str]:
    """The names that `blendfilter/__init__.pyi` has for type checkers, and the modules they are in."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "blendfilter"]
    return {alias.name: str(node.module) for node in found for alias in node.names}


def test_all_is_exact() -> None:
    assert blendfilter.__all__ == sorted(set(blendfilter.__all__))
    assert typed_names() == blendfilter._HOME
    assert set(dir(blendfilter)) == {*blendfilter.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'Blendfilter'"):
        _ = blendfilter.Blendfilter
    assert [name for name in blendfilter.__all__ if not callable(getattr(blendfilter, name))] == []


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == blendfilter.__version__
    assert f"## {blendfilter.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


# --- light imports --------------------------------------------------------------------------------------------------


def roots_imported(*arguments: str) -> set[str]:
    """Top-level packages that a fresh interpreter imports on the way."""
    lines = python("-X", "importtime", *arguments).stderr.splitlines()
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if line.startswith("import time:")}


def test_importing_the_package_is_light() -> None:
    imported = roots_imported("-c", "import blendfilter")
    assert "blendfilter" in imported
    assert not imported & (HEAVY | {"pydantic", "typer", "rich", "jinja2"})


@pytest.mark.parametrize("command", ["", "ask", "eval", "trim"])
def test_help_imports_nothing_heavy(command: str) -> None:
    imported = roots_imported("-m", "blendfilter.cli", *command.split(), "--help")
    assert "typer" in imported
    assert not imported & HEAVY


def test_an_offline_question_imports_no_client_of_servers() -> None:
    """Most of a second of imports, for what an offline reader never needs."""
    imported = roots_imported("-m", "blendfilter.cli", "ask", "Who?", "--lm", "offline", "--corpus", "sample")
    assert "dspy" in imported
    assert not imported & {"openai", "httpx", "litellm", "rich", "pandas", "torch"}


# --- layers ---------------------------------------------------------------------------------------------------------


def test_the_layers_hold() -> None:
    done = subprocess.run(
        [BIN / "lint-imports", "--no-logo", "--no-cache"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    machine = re.compile(r"(?<![\w.])/(?:work|root|Users|home)/(?!\.)|\.\./shared\b|[A-Z]:\\Users")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    for path in (ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()):
        hit = machine.search(path.read_text(encoding="utf-8", errors="replace"))
        assert not hit, f"{path.relative_to(ROOT)}: {hit.group()}"


# --- examples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_hold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


# --- dependencies and commands --------------------------------------------------------------------------------------


def test_the_core_is_light_and_every_dependency_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    heavy = {"torch", "transformers", "datasets", "pandas", "scipy", "faiss-cpu", "colbert-ai", "starlette"}
    assert not heavy & {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    named = (line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in named}
    for line in itertools.chain(project["dependencies"], *project["optional-dependencies"].values()):
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        if name != "blendfilter":  # an extra made of others
            assert name in pinned, f"constraints.txt does not pin {name}: run `make constraints`"
            assert wanted.specifier.contains(pinned[name]), line
    assert "torch" in pinned


# --- circles --------------------------------------------------------------------------------------------------------


def test_there_are_no_import_circles() -> None:
    """Data sits below what displays it; an import inside a function is no way around that."""
    graph = grimp.build_graph("blendfilter", exclude_type_checking_imports=True)
    below = {name: graph.find_upstream_modules(name) for name in graph.modules}
    assert not [(name, other) for name, seen in below.items() for other in seen if name in below[other]]
