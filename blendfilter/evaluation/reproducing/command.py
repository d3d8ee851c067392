"""One table from beginning to end: read, gather, plan or run, hold against the paper, write, draw.

In: what a command asked. Out: the exit code; what is shown and said goes through two functions of the caller's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import Literal

from blendfilter.errors import BadArgument, MissingExtra, NoKey, UnknownName
from blendfilter.evaluation.reproducing import doing, drawing, papers, plan, printing, results, runs, sources
from blendfilter.evaluation.reproducing.programs import Programs
from blendfilter.evaluation.reproducing.silver import Silver, measures_of
from blendfilter.evaluation.reproducing.trimmed import Overlays
from blendfilter.evaluation.runner import CONCURRENCY
from blendfilter.journal import Journal, digest
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.scoring import scorer
from blendfilter.lm.scoring.kept import KeptScorer


@dataclass(frozen=True)
class Asked:
    """What a command asked for; see the options of `eval/reproduce.py`."""

    table: str
    papers: Path
    runs: Path = Path("runs")
    data: Sequence[str] = ()
    index: Sequence[str] = ()
    corpus: Sequence[str] = ()
    allow_host: Sequence[str] = ()
    lm: str = "offline"
    api_base: str | Sequence[str] | None = None
    endpoint: Literal["chat", "completions"] = "chat"
    label: str = ""
    reasoning: str | None = None
    thinking: bool | None = None
    json_schema: bool = False
    timeout: float | None = None
    attempts: int | None = None
    deadline: float | None = None
    rpm: int | None = None
    tpm: int | None = None
    prices: Path | None = None
    measure: Sequence[str] = ()
    scorer: str | None = None
    scorer_api_base: str | None = None
    program: Sequence[str] = ()
    limit: int | None = None
    tasks: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    rows: Sequence[str] | None = None
    concurrency: int = CONCURRENCY
    repeats: int = 1
    plan: bool = False
    plots: bool = True


def tables(folder: Path) -> str:
    """What there is to reproduce, a line each."""
    every = _all(folder)
    wide = max(map(len, every), default=0)
    return "".join(f"{name:<{wide}}  {table.title} ({table.paper})\n" for name, table in every.items())


def _all(folder: Path) -> dict[str, papers.Table]:
    return {name: papers.table_of(path) for name, path in papers.names(folder).items()}


def reproduce(asked: Asked, *, show: doing.Say, say: doing.Say) -> int:
    """Do it; 0, or 1 where questions ended in an error.

    Raises:
        AskedWrong: what was asked cannot be done; nothing was spent. ServerRefused: the same command goes on.
    """
    table = papers.read(asked.papers, asked.table)
    _check(asked)
    if asked.rows is not None:
        table = table.with_rows(asked.rows)
    _check_silver(table, asked)
    lm = model(table, asked)
    found = sources.gather(
        table, data=asked.data, index=asked.index, corpus=asked.corpus, tasks=asked.tasks, methods=asked.methods,
        limit=asked.limit, allow_hosts=asked.allow_host,
    )  # fmt: skip
    programs = Programs(asked.program, table, asked.methods)
    wants = partial(
        runs.wanted, table, found, lm, asked.runs, methods=asked.methods, repeats=asked.repeats, programs=programs
    )
    measures = measures_of(asked.measure)
    if asked.plan:
        with tempfile.TemporaryDirectory(prefix="blendfilter-planned-") as folder:
            silver = Silver(Path(folder), None, measures)
            overlays = Overlays(asked.runs, lm, programs=programs, scratch=Path(folder))
            wanted = _some(table, wants(silver=silver, overlays=overlays), silver)
            planned = plan.plan(wanted, repeats=asked.repeats).text().rstrip("\n")
        show("\n".join([planned, *_notes(found, programs, silver, overlays), *_to_serve(table)]))
        return 0
    silver = Silver(asked.runs, partial(_scorer, asked, lm), measures, say, named=asked.scorer is not None)
    overlays = Overlays(asked.runs, lm, programs=programs, concurrency=asked.concurrency, say=say)
    wanted = _some(table, wants(silver=silver, overlays=overlays), silver)
    if asked.scorer is not None and not silver.scores:
        say(f"--scorer {asked.scorer} is not asked: no SILVER here is by cxmi")
    done = doing.do(wanted, concurrency=asked.concurrency, repeats=asked.repeats, say=say)
    result = results.result(table, wanted, done, notes=_notes(found, programs, silver, overlays))
    place = asked.runs / _folder(table, wanted, lm)
    written = printing.write(result, place)
    show(printing.text(result, get_terminal_size((100, 24)).columns).rstrip("\n"))
    if asked.plots:
        try:
            written += drawing.draw(result, wanted, done, place)
        except MissingExtra as error:  # the table is what was asked for, and it is there
            say(f"no plots: {error}")
    show("\n" + "\n".join(str(path) for path in written))
    return 1 if result.errors or overlays.errors else 0


def _notes(*parts: sources.Sources | Programs | Silver | Overlays) -> list[str]:
    return [line for part in parts for line in part.notes]


def _some(table: papers.Table, wanted: list[runs.Wanted], silver: Silver) -> list[runs.Wanted]:
    """`wanted`, where that is something."""
    if not wanted:
        raise BadArgument(f"no row of {table.name} can be run: {'; '.join(silver.notes)}")
    return wanted


def _folder(table: papers.Table, wanted: Sequence[runs.Wanted], lm: ConnectedLM) -> str:
    """Where the table lies: tables of another model, other questions, rows or repeats lie elsewhere."""
    n, name = max(len(each.questions) for each in wanted), runs.worded(lm.name.rpartition("/")[2])
    return f"{table.name}-{name}-{n}-{digest(sorted({each.folder.name for each in wanted}))[:8]}"


def model(table: papers.Table, asked: Asked) -> ConnectedLM:
    """The reader; where it is the paper's own open one, requests hold what that needs besides.

    Its ids are free text, as the paper reads them: a JSON schema, elsewhere the default where a server takes one, would
    be a better filter than the published one.
    """
    own = table.request if asked.lm.rpartition("/")[2].casefold() == table.reader.casefold() else {}
    connected = partial(
        connect, asked.lm, api_base=asked.api_base, endpoint=asked.endpoint, label=asked.label,
        reasoning=asked.reasoning, thinking=asked.thinking, extra_body=own or None, json_schema=asked.json_schema,
        timeout=asked.timeout, attempts=asked.attempts, deadline=asked.deadline, requests_per_minute=asked.rpm,
        tokens_per_minute=asked.tpm, prices=asked.prices,
    )  # fmt: skip
    try:
        return connected()
    except NoKey:
        if not asked.plan:
            raise
        return connected(api_key="none")  # a plan asks nothing


def _scorer(asked: Asked, lm: ConnectedLM, journal: Journal | Path) -> KeptScorer:
    """What gives log-probabilities: the reader itself, unless another was named."""
    if asked.scorer is None:
        return scorer(lm, journal=journal)
    return scorer(asked.scorer, journal=journal, api_base=asked.scorer_api_base)


def _to_serve(table: papers.Table) -> list[str]:
    """The commands that bring up the paper's own reader, or one near it, where it can still be had."""
    if not table.serve:
        return []
    named = f"  eval/reproduce.py {table.name} {table.ask} …"
    served = f"near the paper's reader: {table.served}" if table.served else f"the paper's reader, {table.reader}"
    return ["", f"{served}:", *(f"  {command}" for command in table.serve), named]


def _check(asked: Asked) -> None:
    for name in ("concurrency", "repeats", "limit"):
        if (value := getattr(asked, name)) is not None and value < 1:
            raise BadArgument(f"--{name} is {value}: it must be 1 or more")
    for name in ("tasks", "methods"):
        if (named := getattr(asked, name)) is not None and not named:
            raise BadArgument(f"--{name} names none: name some with commas between, or leave it out for all")
    if asked.runs.exists() and not asked.runs.is_dir():
        raise BadArgument(f"{asked.runs} is a file: --runs names a folder")
    if asked.lm == "offline" and asked.api_base:
        first = asked.api_base if isinstance(asked.api_base, str) else asked.api_base[0]
        raise UnknownName(f"which model at {first}? name it with --lm")


def _check_silver(table: papers.Table, asked: Asked) -> None:
    """Refuse what would change nothing: options of silver contexts that no row of the table takes."""
    if asked.scorer is None and asked.scorer_api_base:
        raise UnknownName(f"which model at {asked.scorer_api_base}? name it with --scorer")
    rows = table.of(asked.methods)
    silver = [row.settings(task) for row in rows for task in table.tasks if row.reads_gold(task)]
    if asked.scorer is not None and not silver:
        raise BadArgument(f"no row of {table.name} reads the answer: leave --scorer out")
    for task in measures_of(asked.measure):
        if task and task not in table.tasks:
            raise UnknownName.of("task", task, table.tasks, f"in {table.name}")
    if asked.measure and all("measure" in each for each in silver):
        why = "its rows name their measures" if silver else "no row of it reads the answer"
        raise BadArgument(f"--measure changes nothing in {table.name}: {why}; leave it out")
