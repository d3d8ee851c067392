"""Small tables of papers that do not exist, and the shipped ones, over the sample world."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter import Run, connect
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.offline import read
from blendfilter.reproduce import results, runs, sources, tables
from blendfilter.reproduce.inputs import RowInputs, RowOptions
from blendfilter.reproduce.readers import RowReaders, with_models
from blendfilter.reproduce.results import ResultLine, TableResult
from blendfilter.reproduce.runs import LeftOut, TableRun
from blendfilter.reproduce.tables import PaperTable

HEAD = """
title = "A small table"
paper = "P, Table 9"
kind = "scores"
reader = "counted"
retriever = "bm25"
n = 500
k = 5
tasks = ["hotpotqa", "strategyqa"]
against = "Whole"
"""
ROWS = """
[[rows]]
label = "Alone"
method = "direct"
published.hotpotqa = { em = 0.3, f1 = 0.4 }

[[rows]]
label = "Chain"
method = "cot-retrieval"
published.hotpotqa = { em = 0.25, f1 = 0.4 }
published.strategyqa = { accuracy = 0.6 }

[[rows]]
label = "Again"
method = "iter-retgen"
arguments = { iterations = 2 }

[[rows]]
label = "Whole"
method = "blendfilter"
published.hotpotqa = { em = 0.5, f1 = 0.6 }
"""
JUDGED_HEAD = """
title = "Judged"
paper = "P, Table 9"
kind = "scores"
reader = "counted"
retriever = "flat"
n = 500
k = 5
tasks = ["popqa"]
against = "original"
"""
JUDGED_ROWS = """
[[rows]]
label = "original"
method = "ralm"
published.popqa = { inclusion = 0.4 }

[[rows]]
label = "CDIT"
method = "ralm"
arguments = { filter = "cdit" }

[[rows]]
label = "trimmed"
method = "ralm"
arguments = { trimmed = "left" }

[[rows]]
label = "trimmed, refilled"
method = "ralm"
arguments = { trimmed = "refilled" }
"""


def written(folder: Path, text: str, name: str = "small") -> PaperTable:
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return tables.read(str(path))


class Wanted(NamedTuple):
    """The runs of a table, before any is made."""

    runs: list[TableRun]
    inputs: RowInputs
    notes: list[str]
    left_out: list[LeftOut]


class Made(NamedTuple):
    """A table that was run."""

    result: TableResult
    runs: list[TableRun]
    done: dict[Path, Run]
    inputs: RowInputs

    def run(self, label: str) -> Run:
        """The first run of that label."""
        return next(self.done[one.folder] for one in self.runs if one.row.label == label)

    def line(self, label: str, measure: str, group: str = "", point: str = "") -> ResultLine:
        """The one line at that place."""
        (found,) = (
            each
            for each in self.result.lines
            if (each.label, each.measure) == (label, measure) and group in each.group and each.point.startswith(point)
        )
        return found


def wanted(
    table: PaperTable | str, folder: Path, lm: ConnectedLM | None = None, *, limit: int = 4,
    data: Sequence[str] = ("sample",), tasks: Sequence[str] | None = None, rows: Sequence[str] | None = None,
    methods: Sequence[str] | None = None, repeats: int = 1, corpus: Sequence[str] = (), index: Sequence[str] = (),
    **inputs: Any,
) -> Wanted:  # fmt: skip
    """The runs of a table (a shipped one by its name) over the sample world, in `folder`."""
    named, labels = with_models(tables.read(table) if isinstance(table, str) else table, rows)
    paper = named.cut(methods, labels)
    readers = RowReaders(paper, lm := lm or connect("offline"))
    found = sources.gather(paper, data=data, tasks=tasks, limit=limit, corpus=corpus, index=index)
    made_by = {name: inputs.pop(name) for name in ("make_scorer", "scratch", "say") if name in inputs}
    made_of = RowInputs(paper, lm, folder, RowOptions(**inputs), **made_by)
    every, left_out = runs.runs_of(paper, found, readers, folder, made_of, repeats=repeats)
    return Wanted(every, made_of, [*found.notes, *readers.notes(), *runs.read_by(every)], left_out)


def made(
    table: PaperTable | str, folder: Path, lm: ConnectedLM | None = None, *, repeats: int = 1, **more: Any
) -> Made:  # fmt: skip
    """The same, run and measured."""
    whole = tables.read(table) if isinstance(table, str) else table
    every = wanted(whole, folder, lm, repeats=repeats, **more)
    done = runs.do(every.runs, progress=False, repeats=repeats)
    notes = [*every.notes, *every.inputs.notes]
    result = results.result(whole, every.runs, done, notes=notes, left_out=every.left_out)
    return Made(result, every.runs, done, every.inputs)


def verdicts(prompts: Sequence[str]) -> list[str]:
    """The prompts in which a judge is called."""
    return [prompt for prompt in prompts if prompt.rstrip().endswith("\nVerdict (True or False):")]


def consistent_for_odd(prompt: str) -> str:
    """The offline reader, but for its verdicts: True or False by the passage's length, so that there are both."""
    if not verdicts([prompt]):
        return read(prompt)
    passage = next(line for line in reversed(prompt.splitlines()) if line.startswith("Passage:"))
    return str(len(passage) % 2 == 0)
