"""A run: a folder with what was asked, every call, every prediction and the metrics, read back as one object."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blendfilter.errors import BadArgument, MissingExtra, MissingFile
from blendfilter.evaluation.comparison import Comparison, compare_predictions
from blendfilter.evaluation.files import METRICS, PREDICTIONS, RUN, read_json, read_rows
from blendfilter.evaluation.losses import LOSSES

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """A finished (or unfinished) run.

    `rows` are the lines of `predictions.jsonl`, `metrics` is `metrics.json`, `settings` what was asked.

    Raises:
        MissingFile: the folder holds no run, or one that is not finished.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise MissingFile(f"no run folder at {self.folder}: name one that an evaluation made")
        self.record = read_json(self.folder / RUN, "settings")
        self.settings: dict[str, Any] = self.record["settings"]

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
            done = len(read_rows(self.folder / PREDICTIONS))
            raise MissingFile(
                f"{self.folder} is not finished: {done} of {self.settings['data']['n']} questions are answered; "
                "run the same command again to go on"
            )
        return read_json(self.folder / METRICS, "metrics", "flags", "losses", "signature")

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary a question, in question order."""
        _ = self.metrics  # says so where the run is not finished
        return read_rows(self.folder / PREDICTIONS)

    @property
    def offline(self) -> bool:
        """Whether the rule-based reader answered, so that scores say nothing about a model."""
        return bool(self.settings["lm"]["name"] == "offline")

    @property
    def errors(self) -> int:
        """How many questions ended in an error."""
        return int(self.metrics["flags"]["errors"])

    def losses(self) -> dict[str, int]:
        """Where questions are lost: not retrieved, filtered away, answered wrong; and how many are right."""
        return {name: self.metrics["losses"][name] for name in LOSSES}

    def frame(self) -> pd.DataFrame:
        """A pandas frame, a row a question, indexed by id.

        Raises:
            MissingExtra: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtra("frame() wants pandas: pip install pandas") from error
        return pd.DataFrame(self.rows).set_index("id")

    def report(self) -> str:
        """The text report, as `blendfilter report` prints it."""
        from blendfilter.evaluation.report import report_text

        return report_text(self)

    def __repr__(self) -> str:
        return f"<run {self.name}: {self.metrics['signature'] if self.finished else 'not finished'}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.report())}</pre>"


def compare(*runs: Run | str | Path, metrics: list[str] | None = None, seed: int = 0) -> Comparison:
    """Runs over the same questions, each against the first: paired bootstrap, exact McNemar.

    Raises:
        RunMismatch: other questions or another task. BadArgument: fewer than two runs.
    """
    opened = [run if isinstance(run, Run) else Run(run) for run in runs]
    if len(opened) < 2:
        raise BadArgument(f"compare wants at least two runs, got {len(opened)}")
    shared = metrics or list(opened[0].settings["metrics"])
    labelled = _labelled(opened)
    return compare_predictions(
        {label: run.rows for label, run in labelled.items()},
        metrics=shared,
        seed=seed,
        p_values=not any(run.offline for run in opened),
        tasks={label: run.settings["task"] for label, run in labelled.items()},
    )


def _labelled(runs: list[Run]) -> Mapping[str, Run]:
    """Runs by their names; runs of one name (or the same folder twice) are told apart by number."""
    labels: dict[str, Run] = {}
    for number, run in enumerate(runs, 1):
        labels[run.name if run.name not in labels else f"{run.name} ({number})"] = run
    return labels
