"""The notebooks run, from the first cell to the last, and show what they are kept with."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
VARIES = "varies"
"""Tag of a cell that shows replies of a real model, which another processor's rounding may change."""


def visible(notebook: Any) -> list[list[dict[str, str]]]:
    """What each cell of code shows: printed text, and results by their kind; no progress bars.

    Neighbouring prints are one text: timing decides into how many outputs the kernel cuts them. Of a cell tagged
    `varies` only the kinds count: it must show as much, in whatever words.
    """
    cells: list[list[dict[str, str]]] = []
    for cell in notebook.cells:
        if cell["cell_type"] != "code":
            continue
        cells.append([])
        shown = (out for out in cell["outputs"] if out.get("name") != "stderr")
        for printed, outputs in groupby(shown, key=lambda out: out["output_type"] == "stream"):
            texts = [out["text"] if printed else dict(out["data"]) for out in outputs]
            cells[-1] += [{"text": "".join(texts)}] if printed else texts
        if VARIES in cell["metadata"].get("tags", []):
            cells[-1] = [dict.fromkeys(kinds, VARIES) for kinds in cells[-1]]
    return cells


def test_prints_of_a_cell_are_one_text_however_they_were_cut() -> None:
    def shown(*printed: str) -> list[list[dict[str, str]]]:
        outputs = [nbformat.v4.new_output("stream", name="stdout", text=text) for text in printed]
        bar = nbformat.v4.new_output("stream", name="stderr", text="50 %")
        result = nbformat.v4.new_output("execute_result", {"text/plain": "2"})
        cell = nbformat.v4.new_code_cell("…", outputs=[*outputs[:1], bar, *outputs[1:], result])
        return visible(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("#"), cell]))

    assert shown("one\n", "two\n") == shown("one\ntwo\n") == [[{"text": "one\ntwo\n"}, {"text/plain": "2"}]]


def test_a_cell_tagged_varies_is_known_by_the_kinds_that_it_shows() -> None:
    def shown(text: str, *tags: str) -> list[list[dict[str, str]]]:
        result = nbformat.v4.new_output("execute_result", {"text/plain": text, "text/html": text})
        cell = nbformat.v4.new_code_cell("…", outputs=[result], metadata={"tags": list(tags)})
        return visible(nbformat.v4.new_notebook(cells=[cell]))

    assert shown("49.5", "varies") == shown("49.4", "varies") == [[{"text/plain": "varies", "text/html": "varies"}]]
    assert shown("49.5") != shown("49.4")


def run(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The notebook executed in `folder`; a cell that fails raises with its traceback."""
    monkeypatch.setenv("BLENDFILTER_CACHE", str(folder / "cache"))
    monkeypatch.setenv("DSPY_CACHEDIR", str(folder / "dspy"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell["cell_type"] == "code":
            cell["outputs"] = []
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=place).execute()
    return notebook


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_happens(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = nbformat.read(path, as_version=4)
    nbformat.validate(kept)
    assert visible(run(path, tmp_path, monkeypatch)) == visible(kept)
