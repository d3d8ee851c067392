"""Merging: the runs of all shards of a question set become the run that one process would have made.

`predictions.jsonl` and `metrics.json` are that run's, byte for byte, where the same prompt got the same reply in every
shard; the journals are joined, so that the merged run replays, resumes and accounts like any other. Questions were
dealt out one by one (`Questions.shard`), and so they are taken in again. Shards that several versions made are merged
with a warning, and the recipe names all of these.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from blendfilter.errors import BadArgument, BadData, RunMismatch
from blendfilter.evaluation.ledger import OwnPrices, measured
from blendfilter.evaluation.rows import PredictionRow, Record, repeats_in
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import (
    METRICS,
    PREDICTIONS,
    RUN,
    iterate_rows,
    write_json,
)
from blendfilter.evaluation.run_settings import versions
from blendfilter.files import AnyPath, json_line, path_of, paths_of, write_whole
from blendfilter.journal import FILE, Journal
from blendfilter.lm.budget import MARK, NOTHING, marked
from blendfilter.settings_diff import different_settings

_OWN = ("data.fingerprint", "data.n", "data.shard.number", "data.source", "searched", "seeds")
"""Settings in which the shards of one run differ."""


def merge(
    *runs: AnyPath | Sequence[AnyPath],
    out: AnyPath,
    prices: OwnPrices = None,
) -> Run:
    """One run of the finished runs of all shards (or lists of them), in any order, in the new folder `out`.

    A record that several shards journaled under one key (two questions with the same text) is kept as the first of
    them has it. `prices` are for calls that were recorded without a cost. Warns where the shards were made by several
    versions of Python or of a package.

    Raises:
        BadArgument: no runs, one that is no shard, two of the same shard, one that is missing; `out` is there already.
        RunMismatch: shards of different runs. MissingFile: a folder that holds no run, or one that is not finished.
        RunLocked: a shard is still being written. BadData: a file of a shard is damaged, or another shard's.
    """
    shards = _in_order([Run(path) for some in runs for path in paths_of(some)])
    out = path_of(out)
    if out.exists():
        raise BadArgument(
            f"{out} is there already: name a new folder for the merged run (out=)"
        )
    data = shards[0].settings["data"]
    whole = {
        "source": data["source"],
        "fingerprint": data["shard"]["fingerprint"],
        "n": data["shard"]["n"],
    }
    settings = {**shards[0].settings, "data": whole}
    with ExitStack() as opened:
        journals = [
            opened.enter_context(Journal(run.folder / FILE, "replay", exclusive=True))
            for run in shards
        ]
        for run in shards:
            _ = run.metrics  # raises where it is not finished
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = opened.enter_context(
            TemporaryDirectory(prefix=f".{out.name}.merging-", dir=out.parent)
        )
        folder = Path(beside) / out.name
        with Journal(folder / FILE) as joined:
            for journal in journals:
                _join(joined, journal)
            # What each has spent: a call that two of them made was paid for twice, and one that was lost has no record.
            if (spent := sum(map(marked, journals), NOTHING)) != NOTHING:
                joined.append({"key": MARK, "kind": "budget", **asdict(spent)})
            _write(folder, shards, settings, joined, prices)
        folder.rename(out)
    return Run(out)


def _in_order(runs: Sequence[Run]) -> list[Run]:
    """The runs by the numbers of their shards. Raises: BadArgument, RunMismatch."""
    if not runs:
        raise BadArgument(
            "no runs to merge: name the folder of each shard, which `blendfilter eval … --shard 1/4` makes"
        )
    by_number: dict[int, Run] = {}
    for run in runs:
        shard = run.settings["data"].get("shard")
        if shard is None:
            raise BadArgument(
                f"{run.folder} is no shard but a whole run: `blendfilter eval … --shard I/N` makes shards"
            )
        differing = different_settings(runs[0].settings, run.settings, ignored=_OWN)
        if differing:
            raise RunMismatch(
                f"{run.folder} and {runs[0].folder} are not shards of one run: {differing}"
            )
        if (other := by_number.setdefault(shard["number"], run)) is not run:
            raise BadArgument(
                f"{other.folder} and {run.folder} are both shard {shard['number']}/{shard['of']}"
            )
    of = runs[0].settings["data"]["shard"]["of"]
    if missing := [f"{number}/{of}" for number in range(1, of + 1) if number not in by_number]:
        raise BadArgument(
            f"shards are missing: {', '.join(missing)}; run these, or name their folders"
        )
    return [by_number[number] for number in range(1, of + 1)]


def _join(joined: Journal, journal: Journal) -> None:
    """Append what `journal` has that `joined` lacks; a success replaces another shard's failure of the same call."""
    for _, damage in journal.damages():
        raise damage
    own = set[str]()
    for record in journal.records():
        key, there = record["key"], joined.read(record["key"])
        if key in own or there is None or (there.get("error") and not record.get("error")):
            own.add(key)
            joined.append(record)


def _write(
    folder: Path,
    shards: Sequence[Run],
    settings: dict[str, Any],
    journal: Journal,
    prices: OwnPrices,
) -> None:
    """The files of the merged run."""
    notes = shards[0].notes
    questions = [run.notes.get("questions", []) for run in shards]
    dealt = chain.from_iterable(zip_longest(*questions))
    ids = [question for question in dealt if question is not None]
    notes = {**notes, "questions": ids, "shards": [run.name for run in shards]}
    notes.pop("budget", None)  # a shard's part of it
    if "options" in notes:  # of `eval`: the merged run is no shard
        notes["options"] = {**notes["options"]}
        notes["options"].pop("shard", None)
    made_by = _versions(shards)
    recorded = {package: ", ".join(found) for package, found in made_by.items()}
    write_json(
        folder / RUN,
        {**shards[0].record, "settings": settings, "versions": recorded, "notes": notes},
    )
    write_whole(folder / PREDICTIONS, map(json_line, _rows(shards, questions, settings)))
    figures = measured(folder, settings, journal, prices, made_by["blendfilter"])
    write_json(folder / METRICS, figures)


def _rows(
    shards: Sequence[Run], questions: Sequence[Sequence[str]], settings: Record
) -> Iterator[PredictionRow]:
    """The rows of all shards, in the order of their questions. Raises: BadData where a shard has not its own."""
    n = settings["data"]["n"]
    rows = [iterate_rows(run.folder / PREDICTIONS, settings["metrics"]) for run in shards]
    for at in range(n * repeats_in(settings)):
        place, number = divmod(at % n, len(shards))
        ids, row = questions[number], next(rows[number], None)
        # the oldest runs do not note their questions
        if row is None or (ids and row["id"] != ids[place]):
            raise _other_rows(shards[number])
        yield row
    for left, run in zip(rows, shards, strict=True):
        if next(left, None) is not None:
            raise _other_rows(run)


def _other_rows(run: Run) -> BadData:
    return BadData(
        f"{run.folder / PREDICTIONS} has not one row for each answer, in their order: run the shard again, and its "
        "rows are made again"
    )


def _versions(shards: Sequence[Run]) -> dict[str, list[str]]:
    """By package, the versions that made the shards, and of this one that which merges them. Warns of differences."""
    known = {run.folder: run.record.get("versions", {}) for run in shards}
    found, differing = dict[str, list[str]](), list[str]()
    for package in dict.fromkeys(chain.from_iterable(known.values())):
        first = {by[package]: path for path, by in reversed(known.items()) if package in by}
        found[package] = sorted(first)
        if len(first) > 1:
            made = (f"{package} {version} ({first[version]})" for version in found[package])
            differing.append(" and ".join(made))
    if differing:
        warnings.warn(
            f"the shards were made by different versions, whose answers may differ: {'; '.join(differing)}",
            stacklevel=4,  # whoever merges
        )
    found["blendfilter"] = sorted({*found.get("blendfilter", ()), versions()["blendfilter"]})
    return found
