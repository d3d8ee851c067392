"""Merging: the runs of all shards of a question set become the run that one process would have made.

`predictions.jsonl` and `metrics.json` are that run's, byte for byte, where the same prompt got the same reply in every
shard; the journals are joined, so that the merged run replays, resumes and accounts like any other. Questions were
dealt out one by one (`Questions.shard`), and so they are taken in again. Shards that several versions made are merged
with a warning, and the recipe names all of these.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from blendfilter.errors import BadArgument, BadData, RunMismatch
from blendfilter.evaluation.ledger import OwnPrices, ledger, stored
from blendfilter.evaluation.rows import repeats_in, slim, summarise
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import (
    PREDICTIONS,
    RUN,
    RunFolder,
    iterate_rows,
    write_json,
    write_rows,
)
from blendfilter.evaluation.run_settings import versions
from blendfilter.files import path_of
from blendfilter.journal import FILE, Journal
from blendfilter.lm.budget import MARK, NOTHING, marked
from blendfilter.settings_diff import different_settings

_OWN = ("data.fingerprint", "data.n", "data.shard.number", "data.source")
"""Settings in which the shards of one run differ."""


def merge(
    *runs: Run | str | Path | Sequence[Run | str | Path],
    out: str | Path,
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
    each = [
        run for some in runs for run in ([some] if isinstance(some, Run | str | Path) else some)
    ]
    shards = _in_order([Run.of(run) for run in each])
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
        _check_finished(shards)
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


def _check_finished(shards: Sequence[Run]) -> None:
    for run in shards:
        _ = run.metrics  # raises where it is not finished


def _join(joined: Journal, journal: Journal) -> None:
    """Append what `journal` has that `joined` lacks; a success replaces another shard's failure of the same call."""
    for _, damage in journal.damages():
        raise damage
    own = set[str]()
    for record in journal.records():
        key = record["key"]
        if (
            key in own
            or key not in joined
            or (_failed(joined.read(key)) and not _failed(record))
        ):
            own.add(key)
            joined.append(record)


def _failed(record: Mapping[str, Any] | None) -> bool:
    return record is not None and bool(record.get("error"))


def _write(
    folder: Path,
    shards: Sequence[Run],
    settings: dict[str, Any],
    journal: Journal,
    prices: OwnPrices,
) -> None:
    """The files of the merged run."""
    notes = shards[0].record.get("notes", {})
    asked = [run.record.get("notes", {}).get("questions", []) for run in shards]
    notes = {**notes, "questions": _dealt(asked), "shards": [run.name for run in shards]}
    notes.pop("budget", None)  # a shard's part of it
    if "options" in notes:  # of `eval`: the merged run is no shard
        notes["options"] = {
            name: value for name, value in notes["options"].items() if name != "shard"
        }
    made_by = _versions(shards)
    recorded = {package: ", ".join(found) for package, found in made_by.items()}
    write_json(
        folder / RUN,
        {**shards[0].record, "settings": settings, "versions": recorded, "notes": notes},
    )
    path = folder / PREDICTIONS
    write_rows(path, _rows(shards, asked, settings))
    entries = ledger(iterate_rows(path), journal.read_call, prices)
    rows = [*map(slim, iterate_rows(path))]
    figures = summarise(rows, settings, stored(entries), made_by=made_by["blendfilter"])
    RunFolder(folder, settings, replay=False).write_metrics(figures)


def _rows(
    shards: Sequence[Run], asked: Sequence[Sequence[str]], settings: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The rows of all shards, in the order of their questions. Raises: BadData where a shard has not its own."""
    n = settings["data"]["n"]
    rows = [iterate_rows(run.folder / PREDICTIONS, settings["metrics"]) for run in shards]
    for at in range(n * repeats_in(settings)):
        place, number = divmod(at % n, len(shards))
        run, ids = shards[number], asked[number]
        if (row := next(rows[number], None)) is None:
            raise _other_rows(run, "has not a row for each answer")
        if ids and row["id"] != ids[place]:  # the oldest runs do not note their questions
            owner = next(
                (
                    other.name
                    for other, known in zip(shards, asked, strict=True)
                    if row["id"] in known
                ),
                "",
            )
            whose = f", which is {owner}'s" if owner not in ("", run.name) else ""
            raise _other_rows(
                run,
                f"has a row of question '{row['id']}'{whose}, in the place of '{ids[place]}'",
            )
        yield row
    for left, run in zip(rows, shards, strict=True):
        if next(left, None) is not None:
            raise _other_rows(run, "has not a row for each answer")


def _other_rows(run: Run, what: str) -> BadData:
    return BadData(
        f"{run.folder / PREDICTIONS} {what}: run the shard again, and its rows are made again"
    )


def _versions(shards: Sequence[Run]) -> dict[str, list[str]]:
    """By package, the versions that made the shards, and of this one that which merges them. Warns of differences."""
    known = {str(run.folder): run.record.get("versions", {}) for run in shards}
    found, differing = dict[str, list[str]](), list[str]()
    for package in dict.fromkeys(chain.from_iterable(known.values())):
        made = {name: by[package] for name, by in known.items() if package in by}
        found[package] = sorted({*made.values()})
        if len(found[package]) > 1:
            first = {version: name for name, version in reversed(made.items())}
            differing.append(
                " and ".join(f"{package} {each} ({first[each]})" for each in found[package])
            )
    if differing:
        warnings.warn(
            f"the shards were made by different versions, whose answers may differ: {'; '.join(differing)}",
            stacklevel=4,  # whoever merges
        )
    found["blendfilter"] = sorted({*found.get("blendfilter", ()), versions()["blendfilter"]})
    return found


def _dealt(parts: Sequence[Sequence[str]]) -> list[str]:
    """The items of all parts, one of each in turn."""
    longest = max(map(len, parts))
    return [part[at] for at in range(longest) for part in parts if at < len(part)]
