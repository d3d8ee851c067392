"""The examples run for a new user, are short, and print what their docstrings end with (`…` is anything)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from test_docs import environment, same

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


def run(script: Path, folder: Path, *arguments: str) -> str:
    """What a script prints in an empty folder, where its temporary files go too."""
    done = subprocess.run(
        [sys.executable, script, *arguments], cwd=folder, env={**environment(folder), "TMPDIR": str(folder)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_prints_what_its_docstring_ends_with(script: Path, tmp_path: Path) -> None:
    source = script.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source))
    assert docstring
    expected, printed = dedent(docstring.rpartition("\n\n")[2]), run(script, tmp_path)
    assert same(expected, printed), f"--- the docstring shows\n{expected}\n--- it prints\n{printed}"
    assert len(source.splitlines()) < 40
    assert {path.suffix for path in EXAMPLES.iterdir()} == {".py", ".md"}, "it wrote beside itself"


def test_documents_of_the_users_own_are_read(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "light.md").write_text("# Skerry Light\n\nSkerry Light was kept by Ada Brennock.\n")
    printed = run(EXAMPLES / "your_documents.py", tmp_path, "notes", "Who kept Skerry Light?")
    assert "light.md, characters 16 to 54: Skerry Light | Skerry Light was kept" in printed, "behind its heading"


def test_the_list_names_every_example() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in SCRIPTS if f"]({path.name})" not in listed] == []
