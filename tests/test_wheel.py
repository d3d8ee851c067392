"""The wheel: what it holds, and that it works from elsewhere, without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from test_docs import run_document

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, as an index of packages would; with the installed hatchling, no network."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT), cwd=out)
    (built,) = out.glob("blendfilter-*.whl")
    return built


def test_wheel_and_source_distribution_are_fit_to_be_published(wheel: Path) -> None:
    built = sorted(str(path) for path in wheel.parent.glob("blendfilter-*"))
    assert len(built) == 2
    run(sys.executable, "-m", "twine", "check", "--strict", *built, cwd=wheel.parent)


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed, and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    run(*pip, "--disable-pip-version-check", "--target", str(folder), str(wheel), cwd=folder)
    return folder


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(folder: str, pattern: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob(pattern)}


def test_it_holds_the_package_and_its_files_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"blendfilter/_data/{name}" for name in files("prompts", "*.*") | files("programs", "*.json")} <= names
    assert files("blendfilter", "*.py") | files("blendfilter", "*.jsonl") | {"blendfilter/py.typed"} <= names
    assert files("blendfilter/reproduce/papers", "*.*") <= names
    assert files("blendfilter/report/assets", "*.*") <= names
    sample = ("corpus", "questions", "claims", "dialogues", "long", "opposites")
    assert {f"blendfilter/sample/{name}.jsonl" for name in sample} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"blendfilter"}
    assert not [name for name in names if name.endswith(".pyc")]


def test_installed_elsewhere_it_answers(elsewhere: Path, tmp_path: Path) -> None:
    question = "Is Isk Varra smaller than Pellisand?"
    result = run(
        sys.executable, "-m", "blendfilter.cli", "ask", question, "--corpus", "sample", "--lm", "offline",
        cwd=tmp_path, PYTHONPATH=str(elsewhere), BLENDFILTER_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    assert result.strip().casefold() in ("yes", "no")


def test_every_line_of_the_readme_runs_from_it(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    which = "import blendfilter; print(blendfilter.__file__)"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    proof = f"```console\n$ python -c '{which}'\n{elsewhere}/blendfilter/__init__.py\n```\n"
    assert run_document(proof + readme, tmp_path) == 4
