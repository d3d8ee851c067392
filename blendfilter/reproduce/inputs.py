"""What rows need besides their method: compiled programs, silver contexts, and trimmed indexes.

Silver contexts (`<runs>/silver/<what it is>.jsonl`) and overlays (`<runs>/trimmed/<what it is>/`) are made once, beside
the runs, whatever rows share them. The judge of an overlay has seen the very questions of the run: so the CDIT paper
trims (section 4.3), and so these rows measure what a judged question gains, not what a new one does. It is the judge of
`--filter cdit` and is sent the same prompts: runs and overlays take over each other's calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import dspy

from blendfilter.asking import TaskWording, read_demos
from blendfilter.compiling.programs import load_program, read_program, recipes_in
from blendfilter.errors import (
    BadArgument,
    BadData,
    MissingExtra,
    MissingFile,
    ServerRefused,
    UnknownName,
)
from blendfilter.evaluation.plan import spread
from blendfilter.evaluation.run_settings import check_leak
from blendfilter.files import path_of
from blendfilter.filters.base import Filter
from blendfilter.filters.cdit import CDITFilter
from blendfilter.filters.registry import make_filter
from blendfilter.filters.silver import SilverFilter
from blendfilter.journal import FILE, Journal, digest
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.oracles.bider import MEASURE as BIDER
from blendfilter.oracles.measures import MEASURES, Measure, can_label, measure_for
from blendfilter.oracles.oracle import Oracle
from blendfilter.oracles.silver_making import labelled, make_silver, settings_of
from blendfilter.oracles.silver_rows import Stage
from blendfilter.prompting import Prompts
from blendfilter.reproduce.sources import kind_of
from blendfilter.reproduce.tables import PROMPTED, QUESTION_ONLY, PaperRow, PaperTable
from blendfilter.retrieval.base import Retriever
from blendfilter.run_context import CONCURRENCY
from blendfilter.tasks import TASKS, Questions
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.gathering import trim
from blendfilter.trimming.overlay import Trimmed

Say = Callable[[str], object]
SILVER_FOLDER, TRIMMED_FOLDER = "silver", "trimmed"
CXMI: Measure = "cxmi"
JUDGE, JUDGING_STAGES = "cdit", ("consistent", "consistent_again")
FILTER_OF_TEMPLATE: Mapping[str, str] = {
    "filco/sentences": "filco",
    "filco/passages": "filco-passage",
    "cdit/word": "cdit",
    "cdit/components": "cdit-components",
}
"""The filter that a compiled program is for, by the template that it speaks through."""
_PILOT = 5
"""Questions that a plan has the offline reader judge."""


OTHERS = "ask others (--data), or take another model or program"
"""The next move where a table's questions are known to a program or a model."""


class NotHere(Exception):
    """What a row needs is not on this machine, and was not named; the message is the reason that its cells give."""


class RowInputs:
    """Makes what rows need, each thing once, and keeps notes of it.

    Args:
        lm: the model that judges for overlays.
        programs: `[TASK=]FILE`, of `blendfilter compile`; each goes into the rows whose filter it was compiled for.
        demos: `[TASK=]FILE`, demonstrations in place of a task's own.
        models: `[MODEL:][TASK=]NAME`, the models of rows' filters, by what the table calls them.
        silver: `[TASK=]FILE`, of BIDER's synthesis over the questions, for rows of its stages.
        measures: what silver contexts are chosen by, by task, in place of the paper's; under "" for all tasks.
        scorer: makes what gives CXMI its log-probabilities, from where its scores are kept.
        scorer_named: a scorer that cannot score is an error, and no reason to leave a row out.
        scratch: the folder of a plan, which calls no model and makes nothing in `folder`.

    Raises: BadArgument for a program that no row takes. MissingFile, BadData: demonstrations that cannot be read.
    """

    def __init__(
        self,
        table: PaperTable,
        lm: ConnectedLM,
        folder: Path,
        *,
        programs: Iterable[str] = (),
        measures: Mapping[str, Measure] | None = None,
        scorer: Callable[[Path], KeptScorer] | None = None,
        scorer_named: bool = False,
        prompts: Prompts | None = None,
        reply_tokens: int | None = None,
        demos: Iterable[str] = (),
        models: Iterable[str] = (),
        silver: Iterable[str] = (),
        scratch: Path | None = None,
        concurrency: int = CONCURRENCY,
        say: Say = lambda line: None,
    ) -> None:
        self.prompts, self.reply_tokens, self.errors = prompts, reply_tokens, 0
        self._lm, self._folder, self._scratch, self._say = lm, folder, scratch, say
        self._measures, self._concurrency = measures or {}, concurrency
        self._scorer, self._scorer_named = None if scratch else scorer, scorer_named
        self._notes = dict[str, None]()
        self._oracles: dict[tuple[str, Measure], Oracle | None] = {}
        self._overlays: dict[tuple[Any, ...], TrimFolder] = {}
        self._programs: dict[tuple[str, str], Path] = {}
        settings = [row.settings(task) for row in table.rows for task in table.tasks]
        used = {each.get("filter") for each in settings} | {
            JUDGE for each in settings if "trimmed" in each
        }
        for words in programs:
            task, path = _task_and_file("a program is", words, table)
            recipe = read_program(path)[1]
            template = next((each.partition(" ")[0] for each in recipe.templates.values()), "")
            name = FILTER_OF_TEMPLATE.get(template, recipe.module)
            if name not in used:
                raise BadArgument(
                    f"{path} was compiled for {name}, which no row of {table.name} has: leave it out"
                )
            self._programs[task, name] = path_of(path)
        named = [_task_and_file("demonstrations are", words, table) for words in demos]
        self._demos = {task: read_demos(path) for task, path in named}
        self._table = table
        self._silver = dict(_task_and_file("silver contexts are", words, table) for words in silver)
        if self._silver and not any("stage" in each for each in settings):
            raise BadArgument(
                f"no row of {table.name} reads a stage of BIDER's synthesis: leave --silver out"
            )
        self._models = dict(_model_and_name(words, table) for words in models)

    def wording(self, name: str, task: str) -> TaskWording:
        """The wording of that name, with the demonstrations given for `task` and the cap of long replies asked for."""
        demos = self._demos.get(task, self._demos.get(""))
        return TaskWording.of(name).with_demos(demos).with_reply_tokens(self.reply_tokens)

    @property
    def notes(self) -> list[str]:
        """What was made, and what could not be, a line each."""
        return list(self._notes)

    # --- filters, and the models that they are made of ---

    def filter(
        self,
        row: PaperRow,
        task: str,
        name: str,
        wording: TaskWording,
        arguments: Mapping[str, Any],
    ) -> dspy.Module:
        """The filter called `name` with a row's `arguments`, ready to be asked.

        Raises: NotHere, for a package that is not installed, and for a model that is not there and was not named.
        """
        arguments = {key.removeprefix("filter_"): value for key, value in arguments.items()}
        named = True
        if "model" in arguments:
            arguments["model"], named = self._model(arguments["model"], task)
            if not named and arguments["model"] == PROMPTED:
                del arguments["model"]
        try:
            select = make_filter(name, wording=wording, prompts=self.prompts, **arguments)
            if isinstance(select, Filter):
                select.prepare()
        except MissingExtra as error:
            raise NotHere(str(error)) from error
        except (MissingFile, BadData) as error:
            if named:
                raise
            model = row.settings(task)["filter_model"]
            raise NotHere(
                f"{error} (name one that is here: --filter-model {model}:NAME)"
            ) from error
        return select

    def _model(self, called: str, task: str) -> tuple[str, bool]:
        """The name of the model that the table has under `called`, and whether the command named it."""
        for place in ((called, task), (called, ""), ("", task), ("", "")):
            if place in self._models:
                return self._models[place], True
        if not (default := self._table.models[called]):
            raise NotHere(
                f"no {called} model is named (--filter-model {called}:[TASK=]FOLDER; docs/training.md)"
            )
        return default, False

    # --- programs ---

    def load_program_into(self, select: dspy.Module, row: PaperRow, task: str, name: str) -> None:
        """Load the program for the filter called `name` into `select`, if there is one.

        Raises:
            BadData: the program was compiled for other fields, other templates or another task's wording.
        """
        path = self._programs.get((task, name)) or self._programs.get(("", name))
        if path is not None:
            recipe = load_program(select, path)
            what = ", ".join(filter(None, (recipe.task, recipe.measure, recipe.lm)))
            gained = f"{recipe.before.value:.3f} before, {recipe.after.value:.3f} after, over {recipe.after.n}"
            compiled = f"{recipe.optimizer} ({what}; {recipe.data.get('n_train')} questions; {gained} held back)"
            words = "; ".join(filter(None, (compiled, recipe.note)))
            self._notes[f"{task}: {row.label} speaks as compiled by {words}"] = None

    # --- silver contexts ---

    def silver(
        self, row: PaperRow, questions: Questions, retriever: Retriever, k: int
    ) -> SilverFilter | None:
        """The filter of a row that reads gold; None where its measure cannot be had, which a note says.

        Raises: NotHere, for a row of a stage of BIDER's synthesis without its file.
        """
        task = questions.task.name
        if (stage := row.settings(task).get("stage")) is not None:
            return self._synthesised(questions, stage)
        own: Measure | None = row.settings(task).get("measure")
        papers = measure_for(task)
        measure = own or self._measures.get(task) or self._measures.get("") or papers
        if own is None and measure != papers:
            self._notes[
                f"{task}: SILVER by {measure}, as asked; the paper's measure for it is {papers}"
            ] = None
        if (task, measure) not in self._oracles:
            self._oracles[task, measure] = self._oracle(questions, measure)
        oracle = self._oracles[task, measure]
        if oracle is None:
            return None
        unlabelled = [
            each.question for each in questions if not can_label(measure, each.golden_answers)
        ]
        if unlabelled:
            share = f"{len(unlabelled):,} of {len(questions):,} questions, which are answered by a verdict (yes or no)"
            if own is not None and len(unlabelled) == len(questions):
                self._notes[f"{task}: {row.label} is left out: {measure} cannot label {share}"] = (
                    None
                )
                return None
            self._notes[f"{task}: SILVER by {measure} keeps everything for {share}"] = None
        what = f"silver contexts of {task}"
        name = digest(
            settings_of(questions[:], oracle, retriever, k) | {"data": questions.fingerprint}
        )[:8]
        folder = (self._scratch or self._folder) / SILVER_FOLDER
        path = folder / f"{task}-{oracle.measure}-k{k}-{len(questions)}-{name}.jsonl"
        if not path.exists() and self._scratch is None:
            self._say(f"{what} by {oracle.measure}, K={k}: {path.name}")

        def progress(phase: str, done: int, total: int | None = None, /) -> None:
            if (
                oracle.measure == CXMI
            ):  # a line a batch where a model is called, which takes its time
                self._say(f"{what}: {done} of {total} questions")

        make_silver(questions, oracle, path, retriever=retriever, k=k, progress=progress)
        # Other queries than the question bring passages that its silver context knows nothing of.
        return SilverFilter(path, partly=row.method not in QUESTION_ONLY, unlabelled=unlabelled)

    def _synthesised(self, questions: Questions, stage: Stage) -> SilverFilter:
        """What a stage of BIDER's synthesis kept, from the file that the command names."""
        task = questions.task.name
        path = self._silver.get(task) or self._silver.get("")
        if path is None:
            raise NotHere(
                "no synthesis of it is named (--silver [TASK=]FILE; blendfilter silver --measure bider)"
            )
        try:
            there = {each.id for each in labelled(questions, BIDER)}
        except BadArgument as error:
            raise NotHere(str(error)) from error
        without = [each.question for each in questions if each.id not in there]
        if without:
            share = (
                f"{len(without):,} of {len(questions):,} questions, whose answers say too little"
            )
            self._notes[f"{task}: the synthesis keeps everything for {share}"] = None
        return SilverFilter(path, stage=stage, unlabelled=without)

    def _oracle(self, questions: Questions, measure: Measure) -> Oracle | None:
        task = questions.task.name
        if measure != CXMI:
            return Oracle(measure, task=task)
        if self._scorer is None:
            self._notes[
                f"{task}: SILVER by cxmi is not in the plan: it scores every sentence of the passages"
            ] = None
            return None
        try:
            scorer = self._scorer(self._folder / SILVER_FOLDER / f"{task}-{CXMI}.journal")
            wording = self.wording(questions.task.wording, task)
            oracle = Oracle(CXMI, task=task, scorer=scorer, wording=wording, prompts=self.prompts)
            oracle.check(questions[:1])
        except (BadArgument, ServerRefused) as error:
            if self._scorer_named:
                raise
            move = "Name a model that does (--scorer), or another measure (--measure)"
            self._notes[f"{task}: SILVER by cxmi is left out: {error}. {move}"] = None
            return None
        self._notes[f"{task}: SILVER's cxmi is what {scorer.backend.name} finds likely"] = None
        return oracle

    # --- trimmed indexes ---

    def trimmed(self, row: PaperRow, questions: Questions, retriever: Retriever, k: int) -> Trimmed:
        """`retriever` as trimmed by `questions`, each judged on its `k` nearest passages, as the row has it.

        Raises: as `trim` does, and what was judged until then stays; Leak: a question that the judge was compiled on.
        """
        settings = row.settings(questions.task.name)
        key = (questions.task.name, retriever.fingerprint, settings.get("rules"), k)
        if key not in self._overlays:
            self._overlays[key] = self._overlay(row, questions, retriever, k)
        folder = self._overlays[key]
        return Trimmed(
            retriever,
            folder.state(),
            min_similarity=folder.min_similarity,
            refill=settings["trimmed"] == "refilled",
        )

    def _overlay(
        self, row: PaperRow, questions: Questions, retriever: Retriever, k: int
    ) -> TrimFolder:
        """Its judge is that of `--filter cdit`, by the row's rules; a compiled one speaks as its program says."""
        task, kind, rules = (
            questions.task.name,
            kind_of(retriever),
            row.settings(questions.task.name).get("rules"),
        )
        wording = self.wording(questions.task.wording, task)
        select = make_filter(JUDGE, wording=wording, prompts=self.prompts, rules=rules)
        assert isinstance(select, CDITFilter)
        self.load_program_into(select, row, task, JUDGE)
        if recipes_in(select):
            check_leak(
                select, questions, OTHERS
            )  # no judge is in a row that searches a trimmed index
        judge = select.judge
        key = digest(
            retriever.fingerprint,
            questions.fingerprint,
            judge.identity(),
            self._lm.name,
            self._lm.identity,
        )
        named = [str(rule["name"]) for rule in judge.identity()["rules"]]
        name = "-".join([task, *named, f"k{k}", kind, str(len(questions)), key[:8]])
        what = f"{task}: {kind} trimmed by {len(questions)} questions under {'+'.join(named)}"
        place = self._folder / TRIMMED_FOLDER / name
        fresh = not place.exists()
        if self._scratch is not None and fresh:
            most = f"{len(questions) * k:,} calls of the judge at most"
            self._notes[f"{what}: {most}; rows that judge share them"] = None
            folder = TrimFolder.create(
                retriever, self._scratch / TRIMMED_FOLDER / name, k=k, threshold=1
            )
            trim(retriever, spread(questions, _PILOT), judge, folder, lm=connect("offline"))
            return folder
        folder = (
            TrimFolder.create(retriever, place, k=k, threshold=1)
            if fresh
            else TrimFolder.read(place)
        )
        failed = 0
        if self._scratch is None:
            self._say(f"trimming: {TRIMMED_FOLDER}/{name}")
            if fresh:
                _take_over(
                    [*journals_of(self._folder, task), *journals_of(place.parent, task)],
                    folder.journal,
                )
            # Not from one question to another: a question that took verdicts over is one that the judge has not seen.
            found = trim(
                retriever,
                questions[:],
                judge,
                folder,
                lm=self._lm,
                concurrency=self._concurrency,
                reuse=False,
            )
            failed = len(found.errors)
            self.errors += failed
        there = folder.state()
        accepted, rejected, silent = (
            sum(len(getattr(verdicts, side)) for verdicts in there.judged.values())
            for side in ("accepted", "rejected", "silent")
        )
        counts = (
            f"{accepted:,} passages accepted, {rejected:,} rejected, {silent:,} without a verdict"
        )
        self._notes[
            f"{what}: {len(there.judged):,} judged, {counts}; pairs separated: {there.separations():,}"
        ] = None
        if failed:
            self._notes[
                f"{what}: {failed} could not be judged, for a call failed; the same command asks again"
            ] = None
        return folder


def journals_of(folder: Path, task: str) -> list[Path]:
    """A task's runs in `folder` that have a journal; in its `trimmed`, the overlays, whose journals a judge filled."""
    return [path.parent for path in sorted(folder.glob(f"{task}-*/{FILE}"))]


def _take_over(others: Iterable[Path], journal: Path) -> None:
    """Copy the verdicts of others: a prompt that was answered once is not paid for again."""
    with Journal(journal) as mine:
        for other in others:
            with Journal(other, "replay") as theirs:
                calls = (
                    call for call in theirs.records("call") if call.get("stage") in JUDGING_STAGES
                )
                mine.append(
                    *(dict(call) | {"reused": True} for call in calls if not call.get("error")),
                    new_only=True,
                )


def parse_measures(words: Iterable[str]) -> dict[str, Measure]:
    """The measures of `[TASK=]MEASURE`, by task; "" for all.

    >>> parse_measures(["hotpotqa=strinc", "lexical"])
    {'hotpotqa': 'strinc', '': 'lexical'}

    Raises:
        UnknownName: no such task or measure.
    """
    found: dict[str, Measure] = {}
    for each in words:
        task, _, name = each.rpartition("=")
        if task and task not in TASKS:
            raise UnknownName.of("task", task, TASKS, f"in '{each}'")
        measure = next((known for known in MEASURES if known == name), None)
        if measure is None:
            raise UnknownName.of("measure", name, MEASURES)
        found[task] = measure
    return found


def _model_and_name(words: str, table: PaperTable) -> tuple[tuple[str, str], str]:
    """The model and task of a `[MODEL:][TASK=]NAME`, each "" for all, and the name.

    Raises: UnknownName, BadArgument: a model or task that the table does not have, or no name.
    """
    parts = re.fullmatch(r"(?:(\w[\w-]*):)?(?:(\w+)=)?(.*)", words, re.DOTALL)
    assert parts is not None  # it matches any text
    called, task, name = parts.groups(default="")
    if not table.models:
        raise BadArgument(
            f"no filter of {table.name} has a model of its own: leave --filter-model {words} out"
        )
    table.named("model", [called] if called else [], table.models)
    table.named("task", [task] if task else [], table.tasks)
    if not name:
        raise BadArgument(
            f"--filter-model is written [MODEL:][TASK=]NAME, and {words!r} names none"
        )
    if not called and len(table.models) > 1:
        first, *others = table.models
        raise BadArgument(
            f"which model of {table.name} is {name}? Write {first}:{name}, or {', '.join(others)}"
        )
    return (called, task), name


def _task_and_file(what: str, words: str, table: PaperTable) -> tuple[str, str]:
    """A `[TASK=]FILE`; the task is "" for all. Raises: BadArgument for another task than the table's, or no file."""
    task, path = re.fullmatch(r"(?:(\w*)=)?(.*)", words, re.DOTALL).groups(default="")  # type: ignore[union-attr]
    table.named("task", [task] if task else [], table.tasks)
    if not path:
        raise BadArgument(f"{what} written [TASK=]FILE, and {words!r} names no file")
    return task, path
