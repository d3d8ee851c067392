"""The documents run: what README.md and docs/ show is what a reader gets.

- ``console`` blocks: lines with ``$ `` are commands (``> `` continues one, as in a shell); the lines under one are its
  whole output, errors included, and it must succeed (write ``; echo $?`` behind one that is shown to fail).
- ``python`` blocks under ``<!-- run -->`` run too, one after the other in one interpreter; a ``text`` block that
  follows holds what is printed.
- ``…`` stands for any run of characters, line breaks too. ``bash`` blocks want a key or data and are not run.

All blocks of a document share a folder that is empty at first, and no network.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = "<!-- run -->"
NOWHERE = "http://127.0.0.1:9"

INTERPRETER = """
import contextlib, io, json, sys, traceback
space = {"__name__": "__main__"}
for line in sys.stdin:
    printed, failed = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(json.loads(line), "<document>", "exec"), space)
        except Exception:
            failed = traceback.format_exc()
    print(json.dumps([printed.getvalue(), failed]), flush=True)
"""


class Block(NamedTuple):
    """A fenced block: its language, its text, the line of its fence, and whether `RUN` stands above it."""

    language: str
    text: str
    line: int
    marked: bool


class Wrong(AssertionError):
    """A document shows something else than what happens."""


def blocks(markdown: str) -> Iterator[Block]:
    """The fenced blocks of a document."""
    lines = markdown.splitlines()
    at = 0
    while at < len(lines):
        if lines[at].startswith("```"):
            end = next((i for i in range(at + 1, len(lines)) if lines[i].rstrip() == "```"), None)
            if end is None:
                raise Wrong(f"line {at + 1}: a block that is not closed")
            above = next((line for line in reversed(lines[:at]) if line.strip()), "")
            yield Block(lines[at][3:].strip(), "\n".join(lines[at + 1 : end]), at + 1, above.strip() == RUN)
            at = end
        at += 1


def commands(text: str) -> Iterator[tuple[str, str]]:
    """(command, expected output) of a console block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        own = 1
        while own < len(lines) and (lines[own].startswith("> ") or lines[own] == ">" or lines[own - 1].endswith("\\")):
            own += 1
        yield "\n".join(re.sub(r"^> ?", "", line) for line in lines[:own]), "\n".join(lines[own:])


def same(expected: str, got: str) -> bool:
    """Whether output is as expected: spaces at line ends and blank lines around do not count, `…` is anything."""
    pieces = (re.escape(piece) for piece in _tidy(expected).split("…"))
    return re.fullmatch(".*".join(pieces), _tidy(got), re.DOTALL) is not None


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def run_document(markdown: str, folder: Path) -> int:
    """Run a document's blocks in `folder`; how many ran. Raises `Wrong`, with the line and both outputs."""
    found = list(blocks(markdown))
    ran = 0
    with interpreter(folder) as python:
        for number, block in enumerate(found):
            if block.language == "console":
                for command, expected in commands(block.text):
                    check(block, command, expected, *shell(command, folder))
                    ran += 1
            elif block.language == "python" and block.marked:
                view = found[number + 1] if number + 1 < len(found) and found[number + 1].language == "text" else None
                printed, failed = ask(python, block.text)
                check(block, block.text, view.text if view else "…", printed, failed)
                ran += 1
    return ran


def check(block: Block, what: str, expected: str, got: str, failed: str) -> None:
    if failed:
        raise Wrong(f"line {block.line}: {what}\n--- failed: {failed}\n--- and printed\n{got}")
    if not same(expected, got):
        raise Wrong(f"line {block.line}: {what}\n--- the document shows\n{expected}\n--- it prints\n{got}")


def shell(command: str, folder: Path) -> tuple[str, str]:
    """What a command prints, and why it failed if it did."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment(folder),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, check=False, timeout=600,
    )  # fmt: skip
    return done.stdout, f"exit code {done.returncode}" if done.returncode else ""


@contextmanager
def interpreter(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A Python that keeps its names from block to block."""
    with subprocess.Popen(
        [sys.executable, "-c", INTERPRETER], cwd=folder, env=environment(folder),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        yield process


def ask(python: subprocess.Popen[str], code: str) -> tuple[str, str]:
    assert python.stdin
    assert python.stdout
    python.stdin.write(json.dumps(code) + "\n")
    python.stdin.flush()
    answer = python.stdout.readline()
    if not answer:
        raise Wrong(f"the interpreter ended in\n{code}")
    printed, failed = json.loads(answer)
    return printed, failed


def environment(folder: Path) -> dict[str, str]:
    """A new user's environment: nothing cached, no keys, no network but loopback."""
    ours = ("_API_KEY", "_PROXY", "_proxy", "COLUMNS")  # the last is set where tests run side by side
    kept = {name: value for name, value in os.environ.items() if not name.endswith(ours)}
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOWHERE)
    return {
        **kept,
        **proxies,
        "NO_PROXY": "localhost,127.0.0.1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "BLENDFILTER_CACHE": str(folder / ".cache" / "blendfilter"),
        "DSPY_CACHEDIR": str(folder / ".cache" / "dspy"),
        "PYTHONUNBUFFERED": "1",  # or what a command says on two channels would come out of order
        "NO_COLOR": "1",
        "LC_ALL": "C.UTF-8",
    }


# --- the documents --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCUMENTS, ids=[path.name for path in DOCUMENTS])
def test_a_document_shows_what_happens(path: Path, tmp_path: Path) -> None:
    run_document(path.read_text(encoding="utf-8"), tmp_path)


@pytest.mark.parametrize(
    "path", [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda path: path.name
)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", path.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (path.parent / target).exists()]


# --- the check itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("```console\n$ echo one\ntwo\n```", r"line 1: echo one\n--- the document shows\ntwo\n--- it prints\none"),
        ("\n```console\n$ exit 3\n```", "line 2: exit 3\n--- failed: exit code 3"),
        (f"{RUN}\n```python\nprint(1)\n```\n```text\n2\n```", "it prints\n1"),
        (f"{RUN}\n```python\n1 / 0\n```", "ZeroDivisionError"),
    ],
)
def test_an_untrue_document_fails_and_says_where(document: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(Wrong, match=words):
        run_document(document, tmp_path)
