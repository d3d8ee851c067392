"""The notebooks run, from the first cell to the last, and show what they are kept with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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


def run(notebook: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """The notebook executed in `folder`; a cell that fails raises with its traceback, unless `options` allow it."""
    monkeypatch.setenv("BLENDFILTER_CACHE", str(folder / "cache"))
    monkeypatch.setenv("DSPY_CACHEDIR", str(folder / "dspy"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for cell in notebook.cells:
        if cell["cell_type"] == "code":
            cell["outputs"] = []
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=place, **options).execute()
    return notebook


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_happens(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = nbformat.read(path, as_version=4)
    nbformat.validate(kept)
    assert visible(run(nbformat.read(path, as_version=4), tmp_path, monkeypatch)) == visible(kept)


PRESSES_STOP = '''
import signal, threading
import dspy, blendfilter as bf

presses, over = [], threading.Event()

def pressing(query, k):
    """Stops the cell, once, and does not end before the next cell begins."""
    waits = over
    if presses and presses.pop():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    waits.wait(60)
    return []

def begin():
    global over
    over.set()
    presses[:], over = [True], threading.Event()

questions = bf.load("nq", "sample", limit=4)
examples = [dspy.Example(question=q.question, answer="").with_inputs("question") for q in questions]
method, metric = bf.Direct(pressing), lambda example, prediction, trace=None: True
'''
GOES_ON = "stopped; run it again to go on where it was"
STOPPED = {
    "method(question='Who?')": "Direct was stopped",
    "bf.evaluate(method, questions, lm='offline')": "stopped; with a folder (run='DIR') it would go on where it was",
    "bf.evaluate(method, questions, lm='offline', run='run')": GOES_ON,
    "bf.compile_program(method, examples[:2], metric=metric, valset=examples[2:], run='compiled')": GOES_ON,
    "bf.trim(pressing, questions, bf.Judge(), 'trimmed')": GOES_ON,
    "bf.make_silver(questions, bf.Oracle('strinc', task='nq'), 'silver.jsonl', retriever=pressing)": GOES_ON,
}
"""What is interrupted, and what its cell shows."""


@pytest.mark.slow
def test_an_interrupted_cell_says_what_to_do_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = [source for source, words in STOPPED.items() if words == GOES_ON]
    again = "\n".join(["begin()", "presses.clear()", "over.set()", *goes_on])
    sources = [PRESSES_STOP, *(f"begin()\n{source}" for source in STOPPED), again]
    cells = list(map(nbformat.v4.new_code_cell, sources))
    notebook = run(nbformat.v4.new_notebook(cells=cells), tmp_path, monkeypatch, allow_errors=True)
    for cell, words in zip(notebook.cells[1:-1], STOPPED.values(), strict=True):
        (error,) = (out for out in cell["outputs"] if out["output_type"] == "error")
        assert (error["ename"], error["traceback"]) == ("KeyboardInterrupt", [f"KeyboardInterrupt: {words}"])
    assert not [out for out in notebook.cells[-1]["outputs"] if out["output_type"] == "error"], "all of them go on"


@pytest.mark.slow
def test_an_interrupted_script_ends_by_the_signal(tmp_path: Path) -> None:
    script = f"{PRESSES_STOP}\nbegin()\nbf.evaluate(method, questions, lm='offline', run='run')"
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt"
