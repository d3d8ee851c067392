"""A run as plain data: its folder with settings, predictions and metrics, read back as one object.

A run imports nothing that shows it or scores it anew: its methods ask for that by name (`blendfilter.views`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blendfilter.errors import EmptyData, MissingExtra, MissingFile
from blendfilter.evaluation.rows import (
    ERROR,
    LOSSES,
    Json,
    PredictionRow,
    Record,
    filter_lm_of,
    how_far,
    repeats_in,
    with_errors_apart,
)
from blendfilter.evaluation.run_folder import (
    METRICS,
    PREDICTIONS,
    RUN,
    iterate_rows,
    read_json,
    read_rows,
)
from blendfilter.files import AnyPath, path_of
from blendfilter.journal import FILE, Journal
from blendfilter.text import visible
from blendfilter.views import view

if TYPE_CHECKING:
    import pandas as pd

    from blendfilter.lm.prices import Prices

READS_GOLD = "reads the answer: an upper bound"
MAX_BAD_REPLIES = 0.05
"""The share above which replies are warned of, and `eval` ends with exit code 1."""


class Run:
    """A finished (or unfinished) run.

    `rows` are the lines of `predictions.jsonl`, `metrics` is `metrics.json`, `record` is `run.json`, `settings` a part
    of it. Reports warn where more than `max_bad_replies` of its replies were unparseable, empty or cut, and price calls
    that were recorded without a cost by `prices`, where some are given.

    Raises `MissingFile` where the folder holds no run, or is asked for what only a finished one has.
    """

    def __init__(self, folder: AnyPath) -> None:
        self.folder = path_of(folder)
        if not self.folder.is_dir():
            raise MissingFile(
                f"no run folder at {self.folder}: name one that an evaluation made"
            )
        self.record = read_json(self.folder / RUN)
        self.settings: Json = self.record["settings"]
        self.max_bad_replies = MAX_BAD_REPLIES
        self.prices: Prices | None = None

    @classmethod
    def of(cls, run: AnyPath) -> Run:
        """`run` itself, or the run in that folder."""
        return run if isinstance(run, Run) else cls(run)

    def __fspath__(self) -> str:
        return str(self.folder)  # a run does wherever its folder does: `reuse=run`

    @property
    def notes(self) -> Record:
        """What `run.json` says of its last session that is no setting."""
        return self.record.get("notes", {})  # type: ignore[no-any-return]

    def journal(self) -> Journal:
        """Its journal, to read from."""
        return Journal(self.folder / FILE, "replay")

    @property
    def name(self) -> str:
        """The folder's name, as comparisons show it."""
        return self.folder.name

    @property
    def repeats(self) -> int:
        """How many times each question is answered."""
        return repeats_in(self.settings)

    @property
    def answers(self) -> int:
        """How many answers the finished run has."""
        return int(self.settings["data"]["n"]) * self.repeats

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.folder / METRICS).is_file()

    @cached_property
    def metrics(self) -> Json:
        """`metrics.json`."""
        if not self.finished:
            rows = read_rows(self.folder / PREDICTIONS)
            far = how_far(rows, self.answers, self.repeats)
            raise MissingFile(
                f"{self.folder} is not finished: {far}, {self.answers - len(rows)} missing; "
                "run the same command again to go on"
            )
        if not any(iterate_rows(self.folder / PREDICTIONS)):
            raise EmptyData(
                f"{self.folder / PREDICTIONS} is empty or gone: the same command again makes its rows from the journal"
            )
        metrics = read_json(self.folder / METRICS)
        if ERROR in metrics["losses"]:
            return metrics
        return with_errors_apart(metrics, iterate_rows(self.folder / PREDICTIONS))

    @cached_property
    def rows(self) -> list[PredictionRow]:
        """A dictionary an answer, in question order, repeat by repeat."""
        _ = self.metrics  # raises where the run is not finished
        return read_rows(self.folder / PREDICTIONS, self.settings["metrics"])

    @property
    def scores(self) -> dict[str, float]:
        """The value of each metric, as a fraction of 1; `metrics` has the intervals."""
        return {name: score["value"] for name, score in self.metrics["metrics"].items()}

    @property
    def offline(self) -> bool:
        """Whether the rule-based reader answered, or filtered, so that scores say nothing about a model."""
        return "offline" in (self.settings["lm"]["name"], filter_lm_of(self.settings))

    @property
    def models(self) -> str:
        """The model that answers, and the one that filters where it is another."""
        named = filter_lm_of(self.settings)
        return f"{self.settings['lm']['name']}{f', filter {named}' if named else ''}"

    @property
    def reads_gold(self) -> bool:
        """Whether its filter reads the answers (SILVER), so that its scores are an upper bound."""
        arguments = (self.settings.get("method") or {}).get("arguments") or {}
        return bool(arguments.get("filter") == "SilverFilter")

    @property
    def errors(self) -> int:
        """How many answers ended in an error."""
        return int(self.metrics["flags"]["errors"])

    @property
    def failed(self) -> bool:
        """Whether every answer ended in an error: what stands as its score is none."""
        return self.errors >= int(self.metrics["n"]) * self.repeats

    def losses(self) -> dict[str, int]:
        """Where questions are lost: not retrieved, filtered away, answered wrong, an error; and how many are right.

        `unknown` only where there are some: their program shows neither what it searched nor what it read.
        """
        losses = self.metrics["losses"]
        return {name: losses[name] for name in LOSSES if name in losses}

    def frame(self) -> pd.DataFrame:
        """A pandas frame, a row an answer, indexed by id (and by repeat, where there are several)."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtra("frame() wants pandas: pip install pandas") from error
        return pd.DataFrame(self.rows).set_index(["id", "repeat"] if self.repeats > 1 else "id")

    @property
    def warnings(self) -> list[str]:
        """A line for each kind of bad reply (unparseable ids, empty, cut) that is more than `max_bad_replies`."""
        return list(view("status")(self).warnings)

    def at_least(self, **floors: float) -> list[str]:
        """A line for each score that is below a fraction of 1; in a test, `assert not run.at_least(em=0.4)`.

        Names are those of `compare`: metrics, rescored ones too, and figures of retrieval (`**{"kept.recall": 0.8}`).

        Raises: UnknownName or MissingFile where it has no such score. BadArgument: a floor that is no share.
        """
        return list(view("status")(self).below(floors))

    @property
    def disagreements(self) -> list[str]:
        """A line for each of its files that another of them contradicts: it was edited, or damaged."""
        return list(view("status")(self).disagreements)

    def rescore(self, metric: str, **options: Any) -> Any:
        """Score it by another metric (`cover-em`, `llm-judge` with `lm=`, …), as `rescoring.rescore` does."""
        return view("rescore")(self, metric, **options)

    def report(self) -> str:
        """The text report, as `blendfilter report` prints it."""
        return str(view("report")(self))

    def html(self, *others: AnyPath, path: AnyPath | None = None) -> Path:
        """Write the report as a page, `report.html` in the run's folder or at `path`, and return where it is.

        `others` are runs over the same questions, beside this one. The page needs nothing but itself; a run of more
        than 1,000 answers gets a folder of pages beside it.
        """
        return Path(
            view("html")(self, [*map(Run.of, others)], None if path is None else path_of(path))
        )

    def trec(self, folder: AnyPath | None = None) -> tuple[dict[str, Path], Path]:
        """Write its rankings, by query, and gold titles as TREC files, and return the paths.

        `rankings["union"]` is `run.union.trec`, the gold `qrels.trec`.
        """
        rankings, gold = view("trec")(self, None if folder is None else path_of(folder))
        return rankings, gold

    def __repr__(self) -> str:
        return visible(
            f"<run {self.name}: {self.metrics['signature'] if self.finished else 'not finished'}>"
        )

    def _repr_html_(self) -> str:
        return str(view("card")(self))


Runs = AnyPath | Iterable[AnyPath] | Mapping[str, AnyPath]
"""A run or its folder, several, or a mapping from the labels that tables and plots show to them."""


def named_runs(*given: Runs) -> dict[str, Run]:
    """Runs by their labels, else by their names; runs of one name (or one folder twice) are kept apart by number.

    Raises `MissingFile` where a folder holds no run.
    """
    labels: dict[str, Run] = {}
    pairs = list[tuple[str | None, AnyPath]]()
    for runs in given:
        if isinstance(runs, Mapping):
            pairs += runs.items()
        else:
            pairs += [
                (None, run) for run in ([runs] if isinstance(runs, str | os.PathLike) else runs)
            ]
    for number, (label, run) in enumerate(pairs, 1):
        opened = Run.of(run)
        name = opened.name if label is None else label
        while name in labels:
            name = f"{name} ({number})"
        labels[name] = opened
    return labels
