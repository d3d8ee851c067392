"""The compiled programs that a command names for FilCo's filter and CDIT's judge, by task and by what they choose.

In: the words of `--program`, each `[TASK=]FILE`, a file of `blendfilter compile`. Out: `Programs`, which has the filter
of a row speak as the program for it says. A program that was compiled for sentences goes into the rows with the filter
`filco`, one for passages into those with `filco-passage`, a judge's into those that it judges; all else stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import dspy

from blendfilter.compiling.programs import load_program, read_program
from blendfilter.compiling.recipe import Recipe
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.evaluation.reproducing.papers import JUDGES, Row, Table
from blendfilter.filters.cdit.filter import CDITFilter
from blendfilter.filters.filco import FilCoFilter
from blendfilter.tasks import TASKS

FILTERS: Mapping[str, str] = {
    "filco/sentences": "filco",
    "filco/passages": "filco-passage",
    "cdit/word": "cdit",
    "cdit/components": "cdit-components",
}
"""By the template that a program speaks through, the filter that it is for."""
_WORDS = re.compile(r"(?:(\w*)=)?(.*)", re.DOTALL)


class Program(NamedTuple):
    """A saved program: the task it is named for ("": for all), the filter it goes into, where it lies."""

    task: str
    filter: str
    path: Path
    recipe: Recipe

    @classmethod
    def of(cls, words: str) -> Program:
        """What `[TASK=]FILE` says.

        Raises:
            UnknownName: no such task. MissingFile, BadData: no program. BadArgument: one of another filter.
        """
        task, name = _WORDS.fullmatch(words).groups(default="")  # type: ignore[union-attr]
        if task and task not in TASKS:
            raise UnknownName.of("task", task, TASKS, f"in '{words}'")
        if not name:
            raise BadArgument("a program is written [TASK=]FILE, and this one names no file")
        recipe = read_program(name)[1]
        template = next((each.partition(" ")[0] for each in recipe.templates.values()), "")
        if recipe.module not in (FilCoFilter.__name__, CDITFilter.__name__) or template not in FILTERS:
            raise BadArgument(
                f"{name} was compiled for {recipe.module}: --program takes those of FilCo's filter (blendfilter "
                "compile filco) and of CDIT's (compile cdit); blendfilter eval --program runs any"
            )
        return cls(task, FILTERS[template], Path(name), recipe)


class Programs:
    """The programs of a command.

    Raises:
        BadArgument: two for the same rows, or one that no row takes. UnknownName: a task that the table does not have.
    """

    def __init__(self, words: Iterable[str], table: Table, methods: Iterable[str] | None = None) -> None:
        self.notes: list[str] = []
        self._programs: dict[tuple[str, str], Program] = {}
        asked = [row.settings(task) for row in table.of(methods) for task in table.tasks]
        used = {each.get("filter") for each in asked} | {JUDGES[0] for each in asked if "trimmed" in each}
        for each in map(Program.of, words):
            if each.task and each.task not in table.tasks:
                raise UnknownName.of("task", each.task, table.tasks, f"in {table.name}")
            if each.filter not in used:
                raise BadArgument(
                    f"no row of {table.name} has the filter {each.filter}: leave out --program {each.path}"
                )
            if (other := self._programs.setdefault((each.task, each.filter), each)) is not each:
                for_all = f" for {each.task}" * bool(each.task)
                raise BadArgument(f"{other.path} and {each.path} are both programs of {each.filter}{for_all}: name one")

    def into(self, select: dspy.Module, row: Row, task: str, of: str = "") -> None:
        """Have `select`, the filter of `row` (or `of` that name), speak as its program says, if there is one for it.

        Raises:
            BadData: the program was compiled for other fields, other templates or another task's wording.
        """
        name = of or str(row.settings(task).get("filter"))
        found = self._programs.get((task, name)) or self._programs.get(("", name))
        if found is None:
            if any(each.filter == name for each in self._programs.values()):
                self._note(f"{task}: {row.label} is not compiled, for no --program is named for it")
            return
        recipe = load_program(select, found.path)
        self._note(f"{task}: {row.label} speaks as {_said(recipe)}")

    def _note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)


def _said(recipe: Recipe) -> str:
    """A program in a few words: by what, for what, with whom, over how much, and what was gained."""
    what = ", ".join(filter(None, (recipe.task, recipe.measure, recipe.lm)))
    gained = f"{recipe.before.value:.3f} before, {recipe.after.value:.3f} after, over {recipe.after.n} held back"
    note = f"; {recipe.note}" * bool(recipe.note)
    return f"compiled by {recipe.optimizer} ({what}; {recipe.data.get('n_train')} questions; {gained}){note}"
