"""The papers' tables and figures, by command: declared as data, planned, run, and put beside what was published.

`papers/` holds the tables (TOML), `tables` reads them; `sources` opens the questions and indexes that a command names,
`inputs` makes what rows need besides, `runs` names and does the runs; `plan` says what they cost, `results` measures
them, `printing` and `drawing` show that. `reproduce` is all of it, one after the other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import get_terminal_size

from blendfilter.errors import BadArgument, MissingExtra, UnknownName, check_count
from blendfilter.journal import digest
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.scoring import scorer
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.oracles.measures import Measure
from blendfilter.prompting import Prompts
from blendfilter.reproduce import drawing, plan, printing, results, runs, sources, tables
from blendfilter.reproduce.inputs import RowInputs, Say, parse_measures
from blendfilter.run_context import CONCURRENCY

__all__ = ["Reproduction", "list_tables", "reproduce"]


@dataclass(frozen=True)
class Reproduction:
    """What a command asks for, as `blendfilter reproduce --help` describes it."""

    table: str
    runs: Path = Path("runs")
    data: Sequence[str] = ()
    index: Sequence[str] = ()
    corpus: Sequence[str] = ()
    allow_host: Sequence[str] = ()
    measure: Sequence[str] = ()
    scorer: str | None = None
    scorer_api_base: str | None = None
    program: Sequence[str] = ()
    prompts: Path | None = None
    limit: int | None = None
    tasks: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    rows: Sequence[str] | None = None
    concurrency: int = CONCURRENCY
    repeats: int = 1
    plan: bool = False
    plots: bool = True


def list_tables() -> str:
    """The tables that can be reproduced, a line each."""
    every = {name: tables.table_of(path) for name, path in tables.names().items()}
    wide = max(map(len, every))
    return "\n".join(f"{name:<{wide}}  {table.title} ({table.paper})" for name, table in every.items())


def reproduce(
    options: Reproduction, connect: Callable[[tables.PaperTable], ConnectedLM], *, show: Say, say: Say
) -> int:  # fmt: skip
    """Reproduce a table: 0, or 1 where questions ended in an error.

    Args:
        connect: opens the reader of the table.
        show: called with what is printed. say: called with notices.

    Raises:
        AskedWrong: an option is wrong; nothing was spent. ServerRefused: the same command goes on.
    """
    table = tables.read(options.table)
    _check(options)
    if options.rows is not None:
        table = table.with_rows(options.rows)
    measures = parse_measures(options.measure)
    _check_silver(table, options, measures)
    lm = connect(table)
    found = sources.gather(
        table, data=options.data, index=options.index, corpus=options.corpus, tasks=options.tasks,
        methods=options.methods, limit=options.limit, allow_hosts=options.allow_host,
    )  # fmt: skip

    def scoring(journal: Path) -> KeptScorer:
        """The source of log-probabilities: the reader itself, unless another was named."""
        if options.scorer is None:
            return scorer(lm, journal=journal)
        return scorer(options.scorer, journal=journal, api_base=options.scorer_api_base)

    make_inputs = partial(
        RowInputs, table, lm, options.runs, methods=options.methods, programs=options.program, measures=measures,
        scorer=scoring, scorer_named=options.scorer is not None,
        prompts=None if options.prompts is None else Prompts(options.prompts), concurrency=options.concurrency,
    )  # fmt: skip

    def wanted(inputs: RowInputs) -> list[runs.TableRun]:
        every = runs.runs_of(
            table, found, lm, options.runs, inputs, methods=options.methods, repeats=options.repeats
        )  # fmt: skip
        if not every:
            raise BadArgument(f"no row of {table.name} can be run: {'; '.join(inputs.notes)}")
        return every

    if options.plan:
        with tempfile.TemporaryDirectory(prefix="blendfilter-planned-") as folder:
            inputs = make_inputs(scratch=Path(folder))
            cost = plan.plan(wanted(inputs), repeats=options.repeats).text().rstrip("\n")
        show("\n".join([cost, *found.notes, *inputs.notes, *_to_serve(table)]))
        return 0
    inputs = make_inputs(say=say)
    every = wanted(inputs)
    if options.scorer is not None and not inputs.scores:
        say(f"--scorer {options.scorer} is not asked: no SILVER here is by cxmi")
    done = runs.do(every, concurrency=options.concurrency, repeats=options.repeats, say=say)
    result = results.result(table, every, done, notes=[*found.notes, *inputs.notes])
    # tables of another model, other questions, rows or repeats lie elsewhere
    most, name = max(len(run.questions) for run in every), runs.file_name(lm.name.rpartition("/")[2])
    place = options.runs / f"{table.name}-{name}-{most}-{digest(sorted({run.folder.name for run in every}))[:8]}"
    written = printing.write(result, place)
    show(printing.text(result, get_terminal_size((100, 24)).columns).rstrip("\n"))
    if options.plots:
        try:
            written += drawing.draw(result, every, done, place)
        except MissingExtra as error:  # the table itself is there
            say(f"no plots: {error}")
    show("\n" + "\n".join(map(str, written)))
    return 1 if result.errors or inputs.errors else 0


def _to_serve(table: tables.PaperTable) -> list[str]:
    """The commands that bring up the paper's own reader, or one near it, where it can still be had."""
    if not table.serve:
        return []
    served = f"near the paper's reader: {table.served}" if table.served else f"the paper's reader, {table.reader}"
    commands = [f"  {command.replace('{papers}', str(tables.PAPERS))}" for command in table.serve]
    return ["", f"{served}:", *commands, f"  blendfilter reproduce {table.name} {table.ask} …"]


def _check(options: Reproduction) -> None:
    for name in ("concurrency", "repeats", "limit"):
        if (value := getattr(options, name)) is not None:
            check_count(f"--{name}", value)
    for name in ("tasks", "methods"):
        if (named := getattr(options, name)) is not None and not named:
            raise BadArgument(f"--{name} names none: name some with commas between, or leave it out for all")
    if options.runs.exists() and not options.runs.is_dir():
        raise BadArgument(f"{options.runs} is a file: --runs names a folder")


def _check_silver(table: tables.PaperTable, options: Reproduction, measures: Mapping[str, Measure]) -> None:
    """Refuse what would change nothing: options of silver contexts that no row of the table takes."""
    if options.scorer is None and options.scorer_api_base:
        raise UnknownName(f"which model at {options.scorer_api_base}? name it with --scorer")
    silver = [row.settings(task) for row in table.of(options.methods) for task in table.tasks if row.reads_gold(task)]
    if options.scorer is not None and not silver:
        raise BadArgument(f"no row of {table.name} reads the answer: leave --scorer out")
    tables.check_names("task", filter(None, measures), table.tasks, table.name)
    if measures and all("measure" in settings for settings in silver):
        why = "its rows name their measures" if silver else "no row of it reads the answer"
        raise BadArgument(f"--measure changes nothing in {table.name}: {why}; leave it out")
