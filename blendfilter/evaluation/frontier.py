"""The frontier: how good answers are for how many input tokens, a point a run, with the Pareto front marked.

In: finished runs over the same questions. Out: a `Frontier`, which prints itself and draws itself, as SVG or PNG::

    found = bf.frontier({"everything": "runs/full", "FilCo": "runs/filco"})
    print(found)
    found.draw("frontier.svg")

Tokens are counted twice: those of the one prompt that is read for the answer, which is what a filter shortens, and
those of all calls of a question, a filter's own included, which is what is paid for. A run is on a front where no other
is as good for fewer tokens; one whose filter reads the answer is an upper bound, and never on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from blendfilter.evaluation import plots
from blendfilter.evaluation.contexts import read_tokens
from blendfilter.evaluation.plots import Dot, Runs
from blendfilter.evaluation.run import READS_GOLD, Run

COSTS = ("prompt_tokens", "tokens_in")
HEADER = ("", "score", "answer's prompt", "front", "all calls", "front")


@dataclass(frozen=True, repr=False)
class Frontier:
    """Runs by their scores, the best first. Shown, it is a table."""

    dots: tuple[Dot, ...]
    metric: str
    title: str
    offline: bool

    def front(self, cost: str = "tokens_in") -> list[Dot]:
        """The runs that no other beats for less, cheapest first; empty where not all runs know what they cost."""
        return plots.front(self.dots, cost) if self.known(cost) else []

    def known(self, cost: str) -> bool:
        """Whether all runs know what they cost."""
        return not any(math.isnan(getattr(each, cost)) for each in self.dots)

    def draw(self, *paths: str | Path) -> list[Path]:
        """Draw it into every file of `paths`, .svg or .png.

        Raises: MissingExtra (matplotlib). BadArgument: no panel has a cost that all runs know.
        """
        return plots.draw(
            self.dots, *paths, metric=self.metric, title=self.title, offline=self.offline, panels=COSTS
        )  # fmt: skip

    def text(self) -> str:
        """An aligned table, and below it how to read it."""
        rows = [HEADER, *map(self._cells, self.dots)]
        first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = ["  ".join([name.ljust(first), *map(str.rjust, cells, others)]).rstrip() for name, *cells in rows]
        return "\n".join([self.title, "", lines[0], "-" * max(map(len, lines)), *lines[1:], "", *self._notes()]) + "\n"

    def _cells(self, each: Dot) -> Sequence[str]:
        cells = [f"{each.label} †" if each.bound else each.label]
        cells.append(f"{100 * each.value:.1f} ± {50 * (each.high - each.low):.1f}")
        for cost in COSTS:
            tokens = getattr(each, cost)
            cells += ["-" if math.isnan(tokens) else f"{tokens:,.0f}", "*" if each in self.front(cost) else ""]
        return cells

    def _notes(self) -> list[str]:
        notes = [
            f"score: {self.metric}, percent; ±: half of the 95 % interval; tokens: input tokens a question",
            "*: on the front, no other run is as good for fewer tokens",
        ]
        notes += [f"† {READS_GOLD}, never on the front"] * any(each.bound for each in self.dots)
        return notes + ["the offline reader answered: this shows the pipeline, not its quality"] * self.offline

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()  # what a prompt shows is the table


def frontier(runs: Runs) -> Frontier:
    """The frontier of `runs`: runs or their folders, or a mapping from the names to be shown to them.

    Raises:
        RunMismatch: runs over different questions. BadArgument: none. MissingFile: one that is not finished.
    """
    named = plots.named_runs(runs)
    dots = sorted((dot(label, run) for label, run in named.items()), key=lambda each: (-each.value, each.tokens_in))
    metric = next(iter(next(iter(named.values())).metrics["metrics"]))
    offline = any(run.offline for run in named.values())
    return Frontier(tuple(dots), metric, plots.title_of(named), offline)


def dot(label: str, run: Run) -> Dot:
    """A run's place: its leading metric, and its input tokens a question (nan: the server told none).

    What an answer that failed had cost when it did is no price of an answer: it counts as wrong, and not as cheap.
    """
    read = [tokens for row, tokens in zip(run.rows, read_tokens(run), strict=True) if row["error"] is None]
    prompt, every = ([tokens[at] for tokens in read] for at in (0, 1))
    return plots.dot(label, run)._replace(tokens_in=_mean(every), prompt_tokens=_mean(prompt))


def _mean(tokens: Sequence[int | None]) -> float:
    told = [each for each in tokens if each is not None]
    return fmean(told) if told and len(told) == len(tokens) else math.nan
