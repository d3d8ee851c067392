"""What is known of a run, finished or not: its rows and metrics so far, what is missing, and what its files warn of.

Of an unfinished run the scores are those of the questions answered so far.

Bad replies, which no method could use (unparseable ids, no verdict, empty, cut off), are warned of where their share is
too large: figures over them would measure how a model formats, not what it knows. Uses count, not distinct calls, so
that a resumed run and a replay give the same shares. Ids count where a filter read its first reply. Each reply is one
event: an empty or cut one is not unparseable too; only of verdicts it is both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from blendfilter.errors import BadArgument, BadData, RunMismatch, UnknownName
from blendfilter.evaluation.ledger import LedgerEntry, ledger, stored, taken
from blendfilter.evaluation.rescoring import NAMES, Rescored, file_of, rescored
from blendfilter.evaluation.rows import (
    MEASURES,
    NEAR,
    PredictionRow,
    Record,
    failures,
    figures_of,
    how_far,
    key_of,
    misscored,
    repeats_in,
    slim,
    summarise,
)
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import METRICS, PREDICTIONS, iterate_rows
from blendfilter.journal import FILE
from blendfilter.lm.budget import NOTHING, marked
from blendfilter.modules.base import FLAGS

_SHOWN_IDS = 5
_BULK = frozenset({"queries", "branches", "knowledge", "spans", "written", "calls"})
READINGS = ("ids", "judge", "helpful")
"""The stages whose replies ids are read from, first tries."""
_JUDGING = ("consistent", "relevant")
"""The stages that verdicts are read from, first tries."""
BAD = ("unparseable_ids", "empty_reply", "cut_reply")
_DOCTOR = "blendfilter doctor says what to change"
_WARNED_OF = {
    "unparseable_ids": f"id replies could not be read; {_DOCTOR}",
    "empty_reply": f"replies were empty; {_DOCTOR}",
    "cut_reply": f"replies were cut off at their cap (--reply-tokens gives long ones more room); {_DOCTOR}",
    "no_verdict": "judging replies were no verdict (the passages are kept); of CDIT's judge, cdit-components with "
    "--json-schema holds them to a form",
    "prompt_cut": "prompts were cut by the server, which states fewer tokens than they must have: give it a longer "
    "context (Ollama: num_ctx)",
}
_READ_IN = {"unparseable_ids": READINGS, "no_verdict": _JUDGING}


@dataclass
class RunStatus:
    """A run's rows and figures as far as they go; each is read once."""

    run: Run

    @cached_property
    def rows(self) -> list[PredictionRow]:
        """The rows there are, without queries' passages and calls, which would fill the memory of a long run."""
        return [slim(row, _BULK) for row in self.whole_rows()]

    def whole_rows(self) -> Iterator[PredictionRow]:
        """The same with all that is in them, one at a time."""
        if "rows" in vars(self.run):  # read before
            return iter(self.run.rows)
        checked = "rows" in vars(self)
        return iterate_rows(
            self.run.folder / PREDICTIONS, self.run.settings["metrics"], checked=checked
        )

    @cached_property
    def entries(self) -> dict[str, LedgerEntry]:
        """The ledger, read from the journal."""
        if not self._has_journal:  # stopped before any call
            return ledger([], lambda _: None)
        with self.run.journal() as journal:
            return ledger(self.whole_rows(), journal.read_call, self.run.prices)

    @cached_property
    def paid(self) -> str:
        """What the run's own calls took in all, where some belong to no answer yet; else empty."""
        if not self._has_journal:
            return ""
        used = {key for row in self.whole_rows() for _, key in row["calls"]}
        total, unused = NOTHING, False
        with self.run.journal() as journal:
            for record in journal.records("call"):
                if not record.get("reused"):
                    total += taken(record, self.run.prices)
                    unused |= record["key"] not in used
        words = f"paid in all by this run's journal, unfinished questions and failed attempts included: {total.words()}"
        return words if unused else ""

    @cached_property
    def limits(self) -> dict[str, tuple[float, float]]:
        """Of each limit that the last session had: what is gone, and the limit; empty where it had none."""
        budget = self.run.notes.get("budget", {})
        if not budget or not self._has_journal:
            return {}
        with self.run.journal() as journal:
            gone = asdict(marked(journal))
        return {name: (gone[name], limit) for name, limit in budget.items() if name in gone}

    @property
    def _has_journal(self) -> bool:
        return (self.run.folder / FILE).is_file()

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """`metrics.json`, or the same over the rows so far; empty where there is none."""
        if self.run.finished:
            return self.run.metrics
        if not self.rows:
            return {}
        return summarise(self.rows, self.run.settings, stored(self.entries))

    @property
    def headline(self) -> str:
        """The signature; of an unfinished run, that it is none."""
        return (
            str(self.metrics["signature"])
            if self.run.finished
            else f"{self.run.name}: {self.unfinished}"
        )

    @cached_property
    def failures(self) -> str:
        """How many answers ended in an error, and which, in one line that stands with every score; empty for none."""
        line = failures(self.rows, self.repeats)
        return line and f"{line}; the same command asks again"

    @property
    def failed(self) -> bool:
        """Whether every answer so far ended in an error, so that there is no score to show."""
        return bool(self.rows) and all(row["error"] is not None for row in self.rows)

    @property
    def repeats(self) -> int:
        """How many times each question is answered."""
        return repeats_in(self.run.settings)

    @property
    def unfinished(self) -> str:
        """What an unfinished run lacks, in one line; empty for a finished one."""
        if self.run.finished:
            return ""
        questions = self.run.notes.get("questions", [])
        answered = {key_of(row) for row in self.rows}
        repeats = (
            [{"repeat": n} for n in range(1, self.repeats + 1)] if self.repeats > 1 else [{}]
        )
        keys = (key_of({"id": id} | repeat) for repeat in repeats for id in questions)
        missing = [key for key in keys if key not in answered]
        ids = f"; missing: {', '.join(missing[:_SHOWN_IDS])}" if missing else ""
        more = f", … ({len(missing) - _SHOWN_IDS} more)" if len(missing) > _SHOWN_IDS else ""
        answers = int(self.run.settings["data"]["n"]) * self.repeats
        return f"not finished: {how_far(self.rows, answers, self.repeats)}{ids}{more}; the same command goes on"

    @property
    def rescored(self) -> list[Rescored]:
        """Scores by other metrics that the finished run was given afterwards, of its answers as they are now."""
        return [found for found in self._rescored if isinstance(found, Rescored)]

    @property
    def outdated(self) -> list[str]:
        """What is wrong with those of other answers, or in a damaged file: they are left out."""
        return [found for found in self._rescored if isinstance(found, str)]

    @cached_property
    def _rescored(self) -> list[Rescored | str]:
        found: list[Rescored | str] = []
        for name in NAMES if self.run.finished else ():
            if file_of(self.run, name).is_file():
                try:
                    found.append(rescored(self.run, name))
                except (RunMismatch, BadData) as error:
                    found.append(str(error))
        return found

    @cached_property
    def warnings(self) -> list[str]:
        """What its files warn of, and shares of bad replies above `max_bad_replies`, a line each."""
        lines, flags = [*self.disagreements], self.metrics["flags"] if self.metrics else {}
        if not any(flags.get(name) for name in _WARNED_OF):
            return lines
        for name, share in bad_shares(flags, self.whole_rows()).items():
            if share.value > self.run.max_bad_replies:
                lines.append(f"{share.words} of {_WARNED_OF[name]}.")
        return lines

    def below(self, floors: Mapping[str, float]) -> list[str]:
        """A line for each score of the finished run that is below its floor. Raises as `Run.at_least`."""
        metrics, lines = self.run.metrics, []
        retrieved = {
            f"{query}.{name}": {"value": figures[name]}
            for query, figures in metrics["retrieval"].items()
            for name in MEASURES
            if name in figures
        }
        scores = {**metrics["metrics"], **retrieved}
        for name, floor in floors.items():
            check_share(floor, name)
            if name in NAMES and name not in scores:
                scores[name] = rescored(self.run, name).as_dict()
            if name not in scores:
                raise UnknownName.of("score", name, scores, f"in {self.run.folder}")
            score = scores[name]
            ends = [f"{100 * score[end]:.1f}" for end in ("low", "high") if end in score]
            if (value := score["value"]) < floor:
                interval = f" [{', '.join(ends)}]" if ends else ""
                lines.append(
                    f"{name} is {100 * value:.1f} %{interval}, below {100 * floor:g} %"
                )
        return lines

    @cached_property
    def disagreements(self) -> list[str]:
        """Where the run's files contradict each other: they were edited or damaged. A line each; no call is made."""
        lines = []
        wrong = [
            key_of(row) for row in self.rows if misscored(row, self.run.settings["metrics"])
        ]
        mend = "the same command again makes it anew, from the journal"
        if wrong:
            lines.append(
                f"{PREDICTIONS}: {len(wrong)} rows (first '{wrong[0]}') do not score as their answers; {mend}"
            )
        if self.run.finished and (places := [*_contradicted(self.run.metrics, self.rows)]):
            lines.append(
                f"{METRICS}: {', '.join(places[:3])} are not what {PREDICTIONS} gives; {mend}"
            )
        return lines


def _contradicted(metrics: Record, rows: Sequence[PredictionRow]) -> Iterator[str]:
    """Where `metrics.json` does not say what the rows give; intervals and the ledger are not looked at."""
    if not rows:
        yield "n"
        return
    for part, values in figures_of(rows, list(metrics["metrics"])).items():
        yield from _apart(metrics[part], values, part)
    for name, score in metrics["metrics"].items():
        if not score["low"] - NEAR <= score["value"] <= score["high"] + NEAR:
            yield f"metrics.{name}"


def _apart(stored: Any, given: Any, path: str) -> Iterator[str]:
    if isinstance(given, Mapping):
        for name in given.keys() & stored.keys():  # a file of an older version lacks some
            yield from _apart(stored[name], given[name], f"{path}.{name}")
    elif isinstance(given, float) and isinstance(stored, int | float):
        if abs(stored - given) > NEAR:
            yield path
    elif stored != given:
        yield path


# --- bad replies ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """So many of so many; of nothing, the share is 0."""

    count: int
    of: int

    @property
    def value(self) -> float:
        """As a fraction of 1."""
        return self.count / self.of if self.of else 0.0

    @property
    def words(self) -> str:
        """In words.

        >>> Share(12, 220).words
        '5.5 % (12 of 220)'
        """
        return f"{100 * self.value:.1f} % ({self.count} of {self.of})"


def check_share(value: float, name: str) -> float:
    """`value` where it is a share. Raises: BadArgument."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        number = f"{value:g}" if isinstance(value, float) else repr(value)
        raise BadArgument(f"{name} is {number}: give a share from 0 to 1 (0.05 is 5 %)")
    return value


def stage_of(name: str) -> str:
    """The stage without the path of its module: a filter inside a user's own method has the same stages."""
    return name.rpartition(".")[2]


def bad_shares(flags: Mapping[str, int], rows: Iterable[Record]) -> dict[str, Share]:
    """The shares by event; `flags` are the counts over all `rows`."""
    calls, read = 0, dict.fromkeys(_READ_IN, 0)
    for row in rows:
        calls += len(row["calls"])
        if row["error"] is None:  # else how replies were read is lost with the prediction
            for name, stages in _READ_IN.items():
                read[name] += sum(stage_of(stage) in stages for stage, _ in row["calls"])
    names = [name for name in _WARNED_OF if name in FLAGS or name in flags]
    return {name: Share(flags.get(name, 0), read.get(name, calls)) for name in names}
