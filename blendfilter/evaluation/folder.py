"""A run's folder over its sittings: what must hold before one, what is open during one, what one leaves behind.

In: where the run lies and the settings that are asked for. Out: its journal and purse while nobody else writes there,
and its files. A first sitting that came to nothing leaves no settings that would stand in the way of the next.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.errors import AskedWrong, BadArgument, BudgetSpent, RunMismatch, ServerRefused
from blendfilter.evaluation.files import (
    METRICS,
    PREDICTIONS,
    RUN,
    dumped,
    iterate_rows,
    read_json,
    read_rows,
    stale,
    write_json,
    write_lines,
)
from blendfilter.evaluation.ledger import ledger
from blendfilter.evaluation.repeats import how_far, key_of, repeat_of, repeats_in
from blendfilter.evaluation.rows import lost, misscored
from blendfilter.evaluation.settings import check_same, versions
from blendfilter.evaluation.summary import slim, summarise
from blendfilter.journal import FILE, Journal, Mode
from blendfilter.lm.budget import Budget, BudgetAccount, purse_for
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.prices import Price, Prices


class Opened(NamedTuple):
    """What a sitting works with; `fresh` says that no sitting before it left settings."""

    journal: Journal
    purse: BudgetAccount | None
    fresh: bool


class RunFolder:
    """The folder `run`, or a temporary one, for a run with these settings.

    Raises:
        BadArgument: a replay without a folder. MissingFile, BadData: nothing there to replay.
    """

    def __init__(self, run: str | Path | None, settings: dict[str, Any], *, replay: bool) -> None:
        if run is None and replay:
            raise BadArgument("a replay needs the run's folder: run=…")
        self.path = Path(run) if run is not None else Path(tempfile.mkdtemp(prefix="blendfilter-run-"))
        self.settings, self.replay = settings, replay
        if replay:
            read_json(self.path / RUN)  # nothing to replay is said before anything is done

    def check(self) -> None:
        """Raise `RunMismatch` where it holds a run with other settings, `BadArgument` where it can hold none."""
        path = self.path / RUN
        if path.is_file():
            stored = read_json(path)["settings"]
            check_same(stored, self.settings, str(self.path), repeats=self._repeats(stored))
        elif self.path.exists() and not self.path.is_dir():
            raise BadArgument(f"{self.path} is a file, not a folder: name a folder for this run")
        elif self.path.is_dir() and {item for item in self.path.iterdir() if item.name != FILE} - set(stale(self.path)):
            raise BadArgument(f"{self.path} is not empty and holds no run: name a new folder for this one")

    @contextmanager
    def opened(
        self, reuse: Iterable[str | Path], budget: Budget | None, prices: dict[str, Price | None]
    ) -> Iterator[Opened]:
        """Journal and purse, checked again now that nobody else can write; what a kill left half written is gone."""
        with ExitStack() as stack:
            mode: Mode = "replay" if self.replay else "auto"
            journal = stack.enter_context(Journal(self.path / FILE, mode, reuse, exclusive=True))
            self.check()
            fresh = not self.replay and not (self.path / RUN).is_file()
            for left in stale(self.path) if not self.replay else ():
                left.unlink(missing_ok=True)
            purse = None if self.replay else purse_for(journal, budget, prices)
            if purse is not None:
                stack.callback(purse.close)
            yield Opened(journal, purse, fresh)

    def write_record(self, lm: ConnectedLM, concurrency: int, asked: Sequence[str], budget: Budget | None) -> None:
        """`run.json`: settings stay as first asked (more repeats apart); notes are those of the last sitting."""
        notes = {"address": lm.address, "concurrency": concurrency, "questions": asked}
        if budget is not None:
            notes["budget"] = budget.given()
        write_json(self.path / RUN, {"settings": self.settings, "versions": versions(), "notes": notes})

    @contextmanager
    def stopping(self, opened: Opened, answers: int) -> Iterator[None]:
        """What stops a sitting at once leaves nothing in the way, and says how far the run is."""
        try:
            yield
        except AskedWrong as error:
            if opened.fresh:
                self._forget(opened)
            if isinstance(error, ServerRefused) and (rows := read_rows(self.path / PREDICTIONS)):
                raise ServerRefused(f"{error} ({how_far(rows, answers)}; the same command goes on there)") from error
            raise
        except BudgetSpent as error:
            done, purse = how_far(iterate_rows(self.path / PREDICTIONS), answers), opened.purse
            raise BudgetSpent(
                f"{error}; {done}, and the same command with a higher limit goes on"
                + ("" if purse is None else f"; paid in all, unfinished questions included: {purse.spent.words()}")
            ) from error

    def write_lines(self, lines: Sequence[bytes]) -> None:
        """`predictions.jsonl`, whole and in order. A replay touches nothing where the same is there already.

        Raises:
            RunMismatch: a replay would replace rows with others that say less, or something else.
        """
        path = self.path / PREDICTIONS
        if self.replay and self._is_there(lines):
            return
        write_lines(path, lines)

    def _is_there(self, lines: Sequence[bytes]) -> bool:
        """Whether a replay's rows are those on file."""
        replayed = {key_of(row): row for row in map(json.loads, lines)}
        same, differing = True, []
        count = 0
        for stored in iterate_rows(self.path / PREDICTIONS, self.settings["metrics"]):
            count += 1
            new = replayed.get(key_of(stored), {})
            same = same and stored == new
            # An error, and a row whose scores are not its answer's, are nothing to hold on to.
            sound = new and stored["error"] is None and not misscored(stored, self.settings["metrics"])
            known = {name: value for name, value in stored.items() if name != "unsearched"}  # it may be made up now
            if sound and (what := lost(known, new)):
                differing.append(f"'{key_of(stored)}' in {what}")
        if differing:
            more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
            raise RunMismatch(
                f"a replay does not give the rows of {self.path / PREDICTIONS} ({differing[0]}{more}), so nothing was "
                "replaced: the journal lacks records, or other code reads it; run it without --replay, or delete "
                f"{PREDICTIONS} to have the rows that the journal gives"
            )
        return same and count == len(lines)

    def write_metrics(self, journal: Journal, prices: Prices | None) -> None:
        """`metrics.json` of the rows on file, which are read one by one: a long run's rows are not held whole."""
        path = self.path / PREDICTIONS
        entries = ledger(iterate_rows(path), journal.read_call, prices)
        rows = [*map(slim, iterate_rows(path))]
        metrics = summarise(rows, settings=self.settings, entries=entries, seed=self.settings["seed"])
        path = self.path / METRICS
        if not (self.replay and path.is_file() and path.read_bytes() == dumped(metrics)):
            write_json(path, metrics)

    def _repeats(self, stored: dict[str, Any]) -> int:
        """How many repeats it is bound to: those of its settings, or fewer where the others were never answered.

        A sitting that found no server must not bind the run to the repeats that it asked for.
        """
        known = repeats_in(stored)
        if self.replay or known <= repeats_in(self.settings):
            return known
        return max(map(repeat_of, read_rows(self.path / PREDICTIONS)), default=1)

    def _forget(self, opened: Opened) -> None:
        """Take away what a first sitting left that got no call and no row done, or its settings would stand in the way.

        Not the journal where it holds what counts in the run's limits: calls that were refused, or came to nothing.
        """
        journal, purse, _ = opened
        if not read_rows(self.path / PREDICTIONS) and next(journal.records("call"), None) is None:
            for name in (RUN, PREDICTIONS, *(() if purse is not None and purse.touched else (FILE,))):
                (self.path / name).unlink(missing_ok=True)
            with suppress(OSError):
                self.path.rmdir()
