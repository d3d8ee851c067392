"""The runs of a table, one after the other; each takes over what earlier ones have asked already.

In: the runs that are wanted. Out: their `Run`s. The same call goes on where an earlier one was stopped; a run that is
finished without an error is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from blendfilter.evaluation.reproducing.runs import Wanted
from blendfilter.evaluation.reproducing.trimmed import journals_in
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import RUN, read_json
from blendfilter.evaluation.run_progress import RunProgress
from blendfilter.evaluation.runner import evaluate
from blendfilter.journal import FILE
from blendfilter.run_context import CONCURRENCY

Say = Callable[[str], object]


def do(
    runs: Sequence[Wanted],
    *,
    concurrency: int = CONCURRENCY,
    repeats: int = 1,
    seed: int = 0,
    say: Say = lambda line: None,
    progress: RunProgress | bool = True,
) -> dict[Path, Run]:
    """Every run of `runs`, finished, by its folder. `say` is told which run of how many is under way.

    Raises:
        ServerRefused and the like, as `evaluate`: what is done so far stays, and the same call goes on there.
    """
    distinct = {each.folder: each for each in runs}
    done: dict[Path, Run] = {}
    for number, (folder, each) in enumerate(distinct.items(), 1):
        where = f"run {number} of {len(distinct)}: {folder.name}"
        if (there := finished(folder)) is not None and not there.errors:
            say(f"{where} (finished before)")
            done[folder] = there
            continue
        earlier = [*reusable(folder, each.task, each.lm.name), *journals_in(folder.parent, each.task)]
        say(where)
        options: dict[str, Any] = {"repeats": repeats} if repeats > 1 else {}
        done[folder] = evaluate(
            each.method, each.questions, lm=each.lm, run=folder, concurrency=concurrency, reuse=earlier, seed=seed,
            name=each.row.method, progress=progress, **options,
        )  # fmt: skip
        if errors := done[folder].errors:
            say(f"{folder.name}: {errors} of {len(each.questions)} questions ended in an error")
    return done


def finished(folder: Path) -> Run | None:
    """The finished run in a folder, if there is one."""
    if not (folder / RUN).is_file():
        return None
    run = Run(folder)
    return run if run.finished else None


def reusable(folder: Path, task: str, lm: str) -> list[Path]:
    """The runs beside `folder` that may hold calls of its own: the same task, the same model."""
    others = [path.parent for path in sorted(folder.parent.glob(f"{task}-*/{FILE}")) if path.parent != folder]
    return [other for other in others if (other / RUN).is_file() and _asked_of(other) == lm]


def _asked_of(folder: Path) -> str:
    """The model's name; empty in a record that holds none: such a folder is nobody's earlier run."""
    lm = read_json(folder / RUN, dict[str, dict[str, Any]])["settings"].get("lm")
    return str(lm.get("name", "")) if isinstance(lm, dict) else ""
