"""A run: a folder with what was asked, every call, every prediction and the metrics, read back as one object."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blendfilter.errors import BadArgument, MissingExtra, MissingFile
from blendfilter.evaluation.comparison import Comparison, check_tasks, compare_predictions
from blendfilter.evaluation.files import METRICS, PREDICTIONS, RUN, read_json, read_rows
from blendfilter.evaluation.losses import LOSSES
from blendfilter.evaluation.recipes import differing
from blendfilter.evaluation.repeats import how_far, repeats_in
from blendfilter.evaluation.replies import MAX_BAD_REPLIES
from blendfilter.text import visible

if TYPE_CHECKING:
    import pandas as pd

    from blendfilter.evaluation.rescoring import Rescored
    from blendfilter.lm.prices import Prices

READS_GOLD = "reads the answer: an upper bound"


class Run:
    """A finished (or unfinished) run.

    `rows` are the lines of `predictions.jsonl`, `metrics` is `metrics.json`, `settings` what was asked. Reports warn
    where more than `max_bad_replies` of its replies were unparseable, empty or cut, and reckon calls that were recorded
    without a cost by `prices`, where some are given.

    Raises:
        MissingFile: the folder holds no run, or one that is not finished.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise MissingFile(f"no run folder at {self.folder}: name one that an evaluation made")
        self.record = read_json(self.folder / RUN)
        self.settings: dict[str, Any] = self.record["settings"]
        self.max_bad_replies = MAX_BAD_REPLIES
        self.prices: Prices | None = None

    @property
    def name(self) -> str:
        """The folder's name, as comparisons show it."""
        return self.folder.name

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.folder / METRICS).is_file()

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """`metrics.json`."""
        if not self.finished:
            rows, repeats = read_rows(self.folder / PREDICTIONS), repeats_in(self.settings)
            asked = self.settings["data"]["n"] * repeats
            raise MissingFile(
                f"{self.folder} is not finished: {how_far(rows, asked, repeats)}, {asked - len(rows)} missing; "
                "run the same command again to go on"
            )
        return read_json(self.folder / METRICS)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary an answer, in question order, repeat by repeat."""
        _ = self.metrics  # says so where the run is not finished
        return read_rows(self.folder / PREDICTIONS, self.settings["metrics"])

    @property
    def offline(self) -> bool:
        """Whether the rule-based reader answered, so that scores say nothing about a model."""
        return bool(self.settings["lm"]["name"] == "offline")

    @property
    def reads_gold(self) -> bool:
        """Whether a filter of it has read the answers (SILVER), so that its scores are an upper bound."""
        arguments = (self.settings.get("method") or {}).get("arguments") or {}
        return bool(arguments.get("filter") == "SilverFilter")

    @property
    def errors(self) -> int:
        """How many answers ended in an error."""
        return int(self.metrics["flags"]["errors"])

    @property
    def warnings(self) -> list[str]:
        """A line for each kind of bad reply (unparseable ids, empty, cut) that is more than `max_bad_replies`."""
        from blendfilter.evaluation.known import Known

        return Known(self).warnings

    @property
    def disagreements(self) -> list[str]:
        """A line for each of its files that another of them contradicts: it was edited, or damaged."""
        from blendfilter.evaluation.known import Known

        return Known(self).disagreements

    def losses(self) -> dict[str, int]:
        """Where questions are lost: not retrieved, filtered away, answered wrong; and how many are right."""
        return {name: self.metrics["losses"][name] for name in LOSSES}

    def frame(self) -> pd.DataFrame:
        """A pandas frame, a row an answer, indexed by id (and by repeat, where there are several).

        Raises:
            MissingExtra: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtra("frame() wants pandas: pip install pandas") from error
        return pd.DataFrame(self.rows).set_index(["id", "repeat"] if repeats_in(self.settings) > 1 else "id")

    def rescore(self, metric: str, **options: Any) -> Rescored:
        """This run by another metric (`cover-em`, `llm-judge` with `lm=`, …), kept in its folder: see `rescoring`."""
        from blendfilter.evaluation.rescoring import rescore

        return rescore(self, metric, **options)

    def report(self) -> str:
        """The text report, as `blendfilter report` prints it."""
        from blendfilter.evaluation.report import report_text

        return report_text(self)

    def html(self, *others: Run | str | Path, path: str | Path | None = None) -> Path:
        """Write the report as a page, `report.html` in the run's folder or at `path`, and return where it is.

        `others` are runs over the same questions, shown beside this one. The page needs nothing but itself; a run of
        more than 1,000 answers gets a folder of pages beside it.
        """
        from blendfilter.report.page import write_report

        beside = [run if isinstance(run, Run) else Run(run) for run in others]
        return write_report(self, beside, None if path is None else Path(path))

    def __repr__(self) -> str:
        return visible(f"<run {self.name}: {self.metrics['signature'] if self.finished else 'not finished'}>")

    def _repr_html_(self) -> str:
        from blendfilter.report.card import card

        return card(self)


def compare(
    *runs: Run | str | Path, metrics: list[str] | None = None, seed: int = 0, against: str | Path | None = None
) -> Comparison:
    """Runs over the same questions, each against the first or `against` (a name or a folder among them).

    Paired bootstrap, exact McNemar. `metrics` may be rescored ones, where every run was given them.

    Raises:
        RunMismatch: other questions, golden answers or another task. BadArgument: fewer than two runs. MissingFile: a
        run that is not finished, or was never rescored. UnknownName: no such metric or run.
    """
    opened = [run if isinstance(run, Run) else Run(run) for run in runs]
    if len(opened) < 2:
        raise BadArgument(f"compare wants at least two runs, got {len(opened)}")
    shared = metrics or list(opened[0].settings["metrics"])
    named = labelled(opened)
    baseline = None if against is None else _label_of(str(against), named)
    tasks = {label: run.settings["task"] for label, run in named.items()}
    check_tasks(tasks)
    tables = {label: run.rows for label, run in named.items()}
    judged: list[str] = []
    if any(metric not in rows[0] for rows in tables.values() for metric in shared if rows):
        from blendfilter.evaluation.rescoring import with_rescored

        tables, judged = with_rescored(named, shared)
    return compare_predictions(
        tables,
        metrics=shared,
        seed=seed,
        against=baseline,
        p_values=not any(run.offline for run in opened),
        tasks=tasks,
        also=[
            *differing({label: run.record for label, run in named.items()}),
            *judged,
            *(f"{label}: {line}" for label, run in named.items() for line in run.disagreements),
            *(f"{label}: its filter {READS_GOLD}" for label, run in named.items() if run.reads_gold),
        ],
    )


def _label_of(name: str, named: Mapping[str, Run]) -> str:
    """The label of a run that is named by it, or by its folder."""
    folders = (label for label, run in named.items() if run.folder.resolve() == Path(name).resolve())
    return name if name in named else next(folders, name)


def labelled(runs: list[Run]) -> Mapping[str, Run]:
    """Runs by their names; runs of one name (or the same folder twice) are told apart by number."""
    labels: dict[str, Run] = {}
    for number, run in enumerate(runs, 1):
        label = run.name
        while label in labels:
            label = f"{label} ({number})"
        labels[label] = run
    return labels
