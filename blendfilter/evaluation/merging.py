"""Merging: the runs of all shards of a question set become the run that one process would have made.

`predictions.jsonl` and `metrics.json` are that run's, byte for byte, where the same prompt got the same reply in every
shard; the journals are joined, so that the merged run replays, resumes and accounts like any other. Questions were
dealt out one by one (`Questions.shard`), and so they are taken in again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
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
from blendfilter.files import path_of
from blendfilter.journal import FILE, Journal
from blendfilter.settings_diff import different_settings

_OWN = ("data.fingerprint", "data.n", "data.shard.number", "data.source")
"""Settings in which the shards of one run differ."""


def merge(*runs: Run | str | Path | Sequence[Run | str | Path], out: str | Path, prices: OwnPrices = None) -> Run:
    """One run of the finished runs of all shards (or lists of them), in any order, in the new folder `out`.

    A record that several shards journaled under one key (two questions with the same text) is kept as the first of
    them has it. `prices` are for calls that were recorded without a cost.

    Raises:
        BadArgument: no runs, one that is no shard, two of the same shard, one that is missing; `out` is there already.
        RunMismatch: shards of different runs. MissingFile: a folder that holds no run, or one that is not finished.
        RunLocked: a shard is still being written. BadData: a file of a shard is damaged.
    """
    each = [run for some in runs for run in ([some] if isinstance(some, Run | str | Path) else some)]
    shards = _in_order([Run.of(run) for run in each])
    out = path_of(out)
    if out.exists():
        raise BadArgument(f"{out} is there already: name a new folder for the merged run (--out)")
    data = shards[0].settings["data"]
    whole = {"source": data["source"], "fingerprint": data["shard"]["fingerprint"], "n": data["shard"]["n"]}
    settings = {**shards[0].settings, "data": whole}
    with ExitStack() as opened:
        journals = [opened.enter_context(Journal(run.folder / FILE, "replay", exclusive=True)) for run in shards]
        _check_finished(shards)
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = opened.enter_context(TemporaryDirectory(prefix=f".{out.name}.merging-", dir=out.parent))
        folder = Path(beside) / out.name
        with Journal(folder / FILE) as joined:
            for journal in journals:
                _join(joined, journal)
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
            raise RunMismatch(f"{run.folder} and {runs[0].folder} are not shards of one run: {differing}")
        if (other := by_number.setdefault(shard["number"], run)) is not run:
            raise BadArgument(f"{other.folder} and {run.folder} are both shard {shard['number']}/{shard['of']}")
    of = runs[0].settings["data"]["shard"]["of"]
    if missing := [f"{number}/{of}" for number in range(1, of + 1) if number not in by_number]:
        raise BadArgument(f"shards are missing: {', '.join(missing)}; run these, or name their folders")
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
        if key in own or key not in joined or (_failed(joined.read(key)) and not _failed(record)):
            own.add(key)
            joined.append(record)


def _failed(record: Mapping[str, Any] | None) -> bool:
    return record is not None and bool(record.get("error"))


def _write(folder: Path, shards: Sequence[Run], settings: dict[str, Any], journal: Journal, prices: OwnPrices) -> None:
    """The files of the merged run."""
    notes = shards[0].record.get("notes", {})
    asked = [run.record.get("notes", {}).get("questions", []) for run in shards]
    notes = {**notes, "questions": _dealt(asked), "shards": [run.name for run in shards]}
    if "options" in notes:  # of `eval`: the merged run is no shard
        notes["options"] = {name: value for name, value in notes["options"].items() if name != "shard"}
    write_json(folder / RUN, {**shards[0].record, "settings": settings, "notes": notes})
    n, repeats = settings["data"]["n"], repeats_in(settings)
    rows = [iterate_rows(run.folder / PREDICTIONS, settings["metrics"]) for run in shards]
    path = folder / PREDICTIONS
    write_rows(path, (_next(rows[at % n % len(rows)], shards[at % n % len(rows)]) for at in range(n * repeats)))
    for left, run in zip(rows, shards, strict=True):
        if next(left, None) is not None:
            raise _other_rows(run)
    entries = ledger(iterate_rows(path), journal.read_call, prices)
    figures = summarise([*map(slim, iterate_rows(path))], settings, stored(entries))
    RunFolder(folder, settings, replay=False).write_metrics(figures)


def _next(rows: Iterator[dict[str, Any]], run: Run) -> dict[str, Any]:
    if (row := next(rows, None)) is None:
        raise _other_rows(run)
    return row


def _other_rows(run: Run) -> BadData:
    return BadData(
        f"{run.folder / PREDICTIONS} has not a row for each answer: run the shard again, and its rows are made again"
    )


def _dealt(parts: Sequence[Sequence[str]]) -> list[str]:
    """The items of all parts, one of each in turn."""
    longest = max(map(len, parts))
    return [part[at] for at in range(longest) for part in parts if at < len(part)]
