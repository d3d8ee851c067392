"""Which model reads each row of a table, and which one answers its filter.

Wang et al. 2023 (FilCo), sections 4.1 and 4.2, train a generator (M_gen) for each kind of context that they compare,
"to conduct a fair comparison", and a filter (M_ctx) for PSG as for FILCO: a row's `reads` says which kind. As soon as
one row's reader is named, or `--lm` is itself such a generator, a table with such rows reads each by its own model; a
row without one is not run. Until then one model is prompted for all rows, which a note says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from blendfilter.errors import BadArgument, BlendFilterError, UnknownName
from blendfilter.filters.base import filter_predictors
from blendfilter.filters.written import GENERATOR, recipe_of, recipe_of_answerer, worded
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.reproduce.inputs import NotHere
from blendfilter.reproduce.sources import Given
from blendfilter.reproduce.tables import PaperRow, PaperTable

ROW_MODELS: Mapping[str, str] = {
    "lm": "lm",
    "filter-lm": "filter_lm",
    "filter-model": "filter_model",
}
"""What `--row LABEL.KEY=[TASK=]MODEL` names, and the field of a row that has it."""
_NAMED = re.compile(r"(?P<label>.+?)\.(?P<key>[\w-]+)=(?P<value>.*)")


def with_models(
    table: PaperTable, words: Iterable[str] | None
) -> tuple[PaperTable, list[str] | None]:
    """The table whose rows have the models of `words`, and the labels among these; None: there is none.

    Each is `LABEL`, or `LABEL.KEY=[TASK=]MODEL` with a key of `ROW_MODELS`; a label may be a row's full name ("Llama 2
    7B, FULL").

    Raises: UnknownName, BadArgument.
    """
    labels, rows = list[str](), list(table.rows)
    known = dict.fromkeys(name for row in rows for name in (row.label, row.name))
    for word in words or ():
        found = None if word in known else _NAMED.fullmatch(word)
        if found is None:
            labels.append(word)
            continue
        label, key, value = found.groups()
        if label not in known:
            table.named("row", [label], [row.label for row in rows])
        if key not in ROW_MODELS:
            raise UnknownName.of("key", key, ROW_MODELS, f"in '{word}'")
        given = Given.of(value, f"--row {label}.{key}", table.tasks)
        for at, row in enumerate(rows):
            if label in (row.label, row.name):
                rows[at] = row.naming(ROW_MODELS[key], given.task, given.value)
    return table.model_copy(update={"rows": tuple(rows)}), labels or None


@dataclass
class RowReaders:
    """The models of a table's rows.

    Attributes:
        lm: reads the rows that name no reader. filter_lm: answers their filters; None: their readers do.
        connect: makes a model of a name.
        trained: whether each row is read by a model of its own.

    Raises: BadArgument: `lm` was trained to filter, or `filter_lm` to answer.
    """

    table: PaperTable
    lm: ConnectedLM
    filter_lm: ConnectedLM | None = None
    connect: Callable[[str], ConnectedLM] = connect

    def __post_init__(self) -> None:
        self._models = dict[str, ConnectedLM]()
        self._recipe = recipe_of_answerer(self.lm)
        self._generates = self._recipe.get("part") == GENERATOR
        if self.filter_lm is not None:
            _check_filters(self.filter_lm)
        rows = self.table.rows
        self._labels = list(dict.fromkeys(row.label for row in rows if row.reads))
        named = any(row.lm for row in rows)
        self.trained = bool(self._labels) and (named or self._generates)

    def reader(self, row: PaperRow, task: str) -> ConnectedLM:
        """The model that answers in a row.

        Raises: NotHere: none is named that was trained for the row. BadArgument: the one named was trained for
        something else. What `connect` raises.
        """
        if (name := row.model("lm", task)) is not None:
            lm = self._connected(row, "lm", name, recipe_of_answerer)
            recipe = recipe_of(lm)
            if recipe.get("part") == GENERATOR and row.reads and not _fits(row, task, recipe):
                raise BadArgument(
                    f"{row.label}.lm: {lm.name} was trained on other contexts ({_reads(recipe)}) than {row.label} has "
                    f"({row.reads}): name another (blendfilter train filco --part generator --reads {row.reads})"
                )
            return lm
        if self.trained:
            known = self._generates and _fits(row, task, self._recipe)
            other = not row.reads and not self._generates and self.lm.name != "offline"
            if not (known or other):
                raise NotHere(
                    f"no reader is named that was trained for it (--row {row.label}.lm=[TASK=]MODEL; docs/training.md)"
                )
        return self.lm

    def filter_of(
        self, row: PaperRow, task: str, method: dspy.Module, lm: ConnectedLM
    ) -> ConnectedLM | None:
        """The model that answers the filter of a row, whose `method` is read by `lm`; None: that one, or none.

        Raises: NotHere: it would be the generator. BadArgument: the row has no filter that asks a model.
        """
        asks = any(each.lm is None for each in filter_predictors(method).values())
        if (name := row.model("filter_lm", task)) is not None:
            if not asks:
                raise BadArgument(
                    f"{row.label} has no filter that asks a model: leave {row.label}.filter-lm out"
                )
            return self._connected(row, "filter-lm", name, _check_filters)
        if not asks or self.filter_lm is not None:
            return self.filter_lm if asks else None
        if (self.trained and row.reads) or recipe_of(lm).get("part") == GENERATOR:
            raise NotHere(
                f"no filter is named that was trained for it (--row {row.label}.filter-model=[TASK=]DIR; "
                "docs/training.md)"
            )
        return None

    def _connected(
        self, row: PaperRow, key: str, name: str, check: Callable[[ConnectedLM], object]
    ) -> ConnectedLM:
        try:
            if name not in self._models:
                self._models[name] = self.connect(name)
            check(self._models[name])
            return self._models[name]
        except BlendFilterError as error:
            error.args = (f"{row.label}.{key}: {error}",)
            raise

    def notes(self) -> list[str]:
        """That one model reads all rows, where the paper has one for each."""
        if self.trained or not self._labels:
            return []
        *first, last = self._labels
        return [
            f"ONE READER: {self.lm.name} reads every row. The paper trains one for each of {', '.join(first)} and "
            f"{last}, so no difference between them is the paper's (--row {last}.lm=MODEL …; docs/training.md)"
        ]


def _check_filters(lm: ConnectedLM) -> None:
    part = recipe_of(lm).get("part")
    if part is not None:
        why = ", and reads no other prompt: name it as the row's filter-model"
        if part == GENERATOR:
            why = ": it chooses no passages. Name another model for the filter"
        raise BadArgument(f"{lm.name} was trained as {worded(part)}{why}")


def _reads(recipe: Mapping[str, Any]) -> str:
    """The contexts that a generator was trained on; those of earlier versions all read the silver one."""
    return str(recipe.get("reads", "silver"))


def _fits(row: PaperRow, task: str, recipe: Mapping[str, Any]) -> bool:
    """Whether a generator was trained on the contexts of a row, by the row's measure where it names one."""
    measure, own = row.settings(task).get("measure"), recipe.get("silver", {}).get("measure")
    return row.reads in _reads(recipe).split(",") and measure in (None, own)
