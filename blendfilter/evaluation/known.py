"""What is known of a run, finished or not: its rows, its metrics, and what is still missing.

In: a `Run`. Out: a `Known`. A finished run is read as it stands; of an unfinished one the scores are those of the
questions answered so far, and every report of it says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from blendfilter.errors import BadData, RunMismatch
from blendfilter.evaluation.files import METRICS, PREDICTIONS, iterate_rows
from blendfilter.evaluation.ledger import Entry, ledger, taken
from blendfilter.evaluation.repeats import how_far, key_of, repeats_in
from blendfilter.evaluation.replies import warnings_of
from blendfilter.evaluation.rescoring import NAMES, Rescored, file_of, rescored
from blendfilter.evaluation.rows import misscored
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.summary import counted, slim, summarise
from blendfilter.journal import FILE, Journal
from blendfilter.lm.budget import NOTHING, marked

_SHOWN_IDS = 5
_NEAR = 2e-6
"""How far figures may lie apart that were rounded to six decimals."""
_BULK = frozenset({"queries", "branches", "knowledge", "spans", "calls"})


@dataclass
class Known:
    """A run's rows and figures as far as they go; each is read once."""

    run: Run

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows there are, without what each query brought and which calls were made: a long run is not held whole.

        All in question order, or those answered so far in the order of their answers.
        """
        return [slim(row, _BULK) for row in self.whole_rows()]

    def whole_rows(self) -> Iterator[dict[str, Any]]:
        """The same with all that is in them, one at a time."""
        if "rows" in vars(self.run):  # read before
            return iter(self.run.rows)
        return iterate_rows(self.run.folder / PREDICTIONS, self.run.settings["metrics"])

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """The ledger, read from the journal."""
        if not (self.run.folder / FILE).is_file():  # stopped before anything was asked
            return ledger([], lambda _: None)
        with Journal(self.run.folder / FILE, "replay") as journal:
            return ledger(self.whole_rows(), journal.read_call, self.run.prices)

    @cached_property
    def paid(self) -> str:
        """What the run's own calls took in all, where some belong to no answer yet; else empty."""
        if not (self.run.folder / FILE).is_file():
            return ""
        used = {key for row in self.whole_rows() for _, key in row["calls"]}
        total, left_out = NOTHING, False
        with Journal(self.run.folder / FILE, "replay") as journal:
            for record in journal.records("call"):
                if not record.get("reused"):
                    total += taken(record, self.run.prices)
                    left_out |= record["key"] not in used
        told = f"paid in all by this run's journal, unfinished questions and failed attempts included: {total.words()}"
        return told if left_out else ""

    @cached_property
    def limits(self) -> dict[str, tuple[float, float]]:
        """Of each limit that the last sitting had: what is gone, and the limit; empty where it had none."""
        budget = self.run.record.get("notes", {}).get("budget", {})
        if not budget or not (self.run.folder / FILE).is_file():
            return {}
        with Journal(self.run.folder / FILE, "replay") as journal:
            gone = asdict(marked(journal))
        return {name: (gone[name], limit) for name, limit in budget.items() if name in gone}

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """`metrics.json`, or the same over the rows so far; empty where there is none."""
        if self.run.finished:
            return self.run.metrics
        if not self.rows:
            return {}
        settings = self.run.settings
        return summarise(self.rows, settings=settings, entries=self.entries, seed=settings.get("seed", 0))

    @property
    def headline(self) -> str:
        """The signature; of an unfinished run, that it is none."""
        return str(self.metrics["signature"]) if self.run.finished else f"{self.run.name}: {self.unfinished}"

    @property
    def repeats(self) -> int:
        """How many times each question is answered."""
        return repeats_in(self.run.settings)

    @property
    def unfinished(self) -> str:
        """What an unfinished run lacks, in one line; empty for a finished one."""
        if self.run.finished:
            return ""
        missing = self._missing()
        told = f"; missing: {', '.join(missing[:_SHOWN_IDS])}" if missing else ""
        more = f", … ({len(missing) - _SHOWN_IDS} more)" if len(missing) > _SHOWN_IDS else ""
        asked = int(self.run.settings["data"]["n"]) * self.repeats
        return f"not finished: {how_far(self.rows, asked, self.repeats)}{told}{more}; the same command goes on"

    @cached_property
    def rescored(self) -> list[Rescored]:
        """Scores by other metrics that the finished run was given afterwards, of its answers as they are now."""
        return [told for told in self._rescored if isinstance(told, Rescored)]

    @property
    def outdated(self) -> list[str]:
        """What is wrong with those of other answers, or in a damaged file: they are left out."""
        return [told for told in self._rescored if isinstance(told, str)]

    @cached_property
    def _rescored(self) -> list[Rescored | str]:
        names = [name for name in NAMES if file_of(self.run, name).is_file()] if self.run.finished else []
        found: list[Rescored | str] = []
        for name in names:
            try:
                found.append(rescored(self.run, name))
            except (RunMismatch, BadData) as error:
                found.append(str(error))
        return found

    @cached_property
    def warnings(self) -> list[str]:
        """What its files and its replies warn of, a line each."""
        return [*self.disagreements, *warnings_of(self, self.run.max_bad_replies)]

    @cached_property
    def disagreements(self) -> list[str]:
        """Where the run's files contradict each other: they were edited or damaged. A line each; no call is made."""
        lines = []
        wrong = [key_of(row) for row in self.rows if misscored(row, self.run.settings["metrics"])]
        mend = "the same command again makes it anew, from the journal"
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            lines.append(f"{PREDICTIONS}: the scores of '{wrong[0]}'{more} are not those of the answers; {mend}")
        if self.run.finished and (places := [*_contradicted(self.run.metrics, self.rows)]):
            lines.append(f"{METRICS}: {', '.join(places[:3])} are not what {PREDICTIONS} gives; {mend}")
        return lines

    def _missing(self) -> list[str]:
        """The answers that are not there yet, as far as the run's record names the questions."""
        asked = self.run.record.get("notes", {}).get("questions", [])
        answered = {key_of(row) for row in self.rows}
        repeats = range(1, self.repeats + 1) if self.repeats > 1 else [None]
        every = (key_of({"id": name} | ({"repeat": each} if each else {})) for each in repeats for name in asked)
        return [name for name in every if name not in answered]


def _contradicted(metrics: Mapping[str, Any], rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Where `metrics.json` does not say what the rows give; intervals and the ledger are not looked at."""
    if not rows:
        yield "n"
        return
    given = counted(rows, list(metrics["metrics"]))
    for part, values in given.items():
        yield from _apart(metrics[part], values, part)
    for name, score in metrics["metrics"].items():
        if not score["low"] - _NEAR <= score["value"] <= score["high"] + _NEAR:
            yield f"metrics.{name}"


def _apart(stored: Any, given: Any, path: str) -> Iterator[str]:
    if isinstance(given, Mapping):
        for name in given.keys() & stored.keys():  # a file of an older version lacks some
            yield from _apart(stored[name], given[name], f"{path}.{name}")
    elif isinstance(given, float) and isinstance(stored, int | float):
        if abs(stored - given) > _NEAR:
            yield path
    elif stored != given:
        yield path
