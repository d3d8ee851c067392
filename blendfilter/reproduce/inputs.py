"""What rows need besides their method: compiled programs, silver contexts, and trimmed indexes.

Silver contexts (`<runs>/silver/<what it is>.jsonl`) and overlays (`<runs>/trimmed/<what it is>/`) are made once, beside
the runs, whatever rows share them. The judge of an overlay has seen the very questions of the run: so the CDIT paper
trims (section 4.3), and so these rows measure what a judged question gains, not what a new one does. It is the judge of
`--filter cdit` and is sent the same prompts: runs and overlays take over each other's calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy

from blendfilter.asking import TaskWording
from blendfilter.compiling.programs import load_program, read_program, recipes_in
from blendfilter.errors import BadArgument, ServerRefused, UnknownName
from blendfilter.evaluation.plan import spread
from blendfilter.evaluation.run_settings import check_leak
from blendfilter.filters.cdit import CDITFilter, Judge
from blendfilter.filters.filco import FilCoFilter
from blendfilter.filters.registry import make_filter
from blendfilter.filters.silver import SilverFilter
from blendfilter.journal import FILE, Journal, digest
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.oracles.measures import MEASURES, Measure, measure_for
from blendfilter.oracles.oracle import Oracle
from blendfilter.oracles.silver_making import WITHOUT_MODEL, make_silver, settings_of
from blendfilter.prompting import Prompts
from blendfilter.reproduce.sources import kind_of
from blendfilter.reproduce.tables import JUDGES, QUESTION_ONLY, PaperRow, PaperTable, check_names
from blendfilter.retrieval.base import Retriever
from blendfilter.run_context import CONCURRENCY
from blendfilter.tasks import TASKS, Questions
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.gathering import trim
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.witnesses import Witnesses

Say = Callable[[str], object]
SILVER_FOLDER, TRIMMED_FOLDER = "silver", "trimmed"
CXMI: Measure = "cxmi"
JUDGE, JUDGING_STAGE = JUDGES[0], "consistent"
FILTER_OF_TEMPLATE: Mapping[str, str] = {
    "filco/sentences": "filco",
    "filco/passages": "filco-passage",
    "cdit/word": "cdit",
    "cdit/components": "cdit-components",
}
"""The filter that a compiled program is for, by the template that it speaks through."""
_PLANNED = "not in the plan: it scores every sentence of the passages"
_PILOT = 5
"""Questions that a plan has the offline reader judge."""


class RowInputs:
    """Makes what rows need, each thing once, and keeps notes of it.

    Args:
        lm: the model that judges.
        folder: where silver contexts and overlays lie.
        programs: `[TASK=]FILE`, files of `blendfilter compile filco` or `compile cdit`. A program goes into the rows
            whose filter it was compiled for (sentences, passages, a judge); all others stay as they are.
        measures: what silver contexts are chosen by, by task, in place of the paper's; under "" for all tasks.
        scorer: makes what gives CXMI its log-probabilities, from where its scores are kept.
        scorer_named: a scorer that cannot score is an error, and no reason to leave a row out.
        prompts: templates for filters, judges and oracles.
        scratch: the folder of a plan, which calls no model and makes nothing in `folder`.
        say: called with a line for each thing that is made.

    Raises:
        BadArgument: two programs for the same rows, one that no row takes, or of another module. MissingFile, BadData:
            no program. UnknownName: a task that the table does not have.
    """

    def __init__(
        self,
        table: PaperTable,
        lm: ConnectedLM,
        folder: Path,
        *,
        methods: Iterable[str] | None = None,
        programs: Iterable[str] = (),
        measures: Mapping[str, Measure] | None = None,
        scorer: Callable[[Path], KeptScorer] | None = None,
        scorer_named: bool = False,
        prompts: Prompts | None = None,
        scratch: Path | None = None,
        concurrency: int = CONCURRENCY,
        say: Say = lambda line: None,
    ) -> None:
        self.prompts, self.errors = prompts, 0
        self._lm, self._folder, self._scratch, self._say = lm, folder, scratch, say
        self._measures, self._concurrency = measures or {}, concurrency
        self._scorer, self._scorer_named = None if scratch else scorer, scorer_named
        self._program_notes, self._silver_notes = dict[str, None](), dict[str, None]()
        self._overlay_notes = list[str]()
        self._left_out: dict[tuple[str, bool], list[str]] = {}
        self._silver: dict[tuple[Any, ...], Path | None] = {}
        self._oracles: dict[tuple[str, Measure], Oracle | None] = {}
        self._overlays: dict[tuple[Any, ...], TrimFolder] = {}
        self._programs: dict[tuple[str, str], Path] = {}
        settings = [row.settings(task) for row in table.of(methods) for task in table.tasks]
        used = {each.get("filter") for each in settings} | {JUDGE for each in settings if "trimmed" in each}
        for words in programs:
            task, name, path = parse_program(words)
            check_names("task", [task] if task else [], table.tasks, table.name)
            if name not in used:
                raise BadArgument(f"no row of {table.name} has the filter {name}: leave out --program {path}")
            if (task, name) in self._programs:
                for_all = f" for {task}" * bool(task)
                both = f"{self._programs[task, name]} and {path}"
                raise BadArgument(f"{both} are both programs of {name}{for_all}: name one")
            self._programs[task, name] = path

    @property
    def notes(self) -> list[str]:
        """What was made, and what could not be, a line each; tasks of one reason share theirs."""
        left_out = [_left_out(tasks, *reason) for reason, tasks in self._left_out.items()]
        return [*self._program_notes, *self._silver_notes, *left_out, *self._overlay_notes]

    @property
    def scores(self) -> bool:
        """Whether a row wanted log-probabilities."""
        return any(measure == CXMI for _, measure in self._oracles)

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
            gained = (
                f"{recipe.before.value:.3f} before, {recipe.after.value:.3f} after, over {recipe.after.n} held back"
            )
            compiled = f"{recipe.optimizer} ({what}; {recipe.data.get('n_train')} questions; {gained})"
            words = f"speaks as compiled by {'; '.join(filter(None, (compiled, recipe.note)))}"
        elif any(of == name for _, of in self._programs):
            words = "is not compiled, for no --program is named for it"
        else:
            return
        self._program_notes[f"{task}: {row.label} {words}"] = None

    # --- silver contexts ---

    def silver(self, row: PaperRow, questions: Questions, retriever: Retriever, k: int) -> SilverFilter | None:
        """The filter of a row that reads gold; None where its measure cannot be had, which a note says."""
        task = questions.task.name
        own: Measure | None = row.settings(task).get("measure")
        papers, given = measure_for(task), self._measures.get(task, self._measures.get(""))
        measure = own or given or papers
        if own is None and measure != papers:
            self._silver_notes[f"{task}: SILVER by {measure}, as asked; the paper's measure for it is {papers}"] = None
        key = (task, retriever.fingerprint, k, measure)
        if key not in self._silver:
            if (task, measure) not in self._oracles:
                self._oracles[task, measure] = self._oracle(questions, measure, own is not None)
            oracle = self._oracles[task, measure]
            self._silver[key] = None if oracle is None else self._silver_file(questions, oracle, retriever, k)
        path = self._silver[key]
        # Other queries than the question bring passages that its silver context knows nothing of.
        return None if path is None else SilverFilter(path, partly=row.method not in QUESTION_ONLY)

    def _silver_file(self, questions: Questions, oracle: Oracle, retriever: Retriever, k: int) -> Path:
        what = f"silver contexts of {questions.task.name}"
        name = digest(settings_of(questions[:], oracle, retriever, k) | {"data": questions.fingerprint})[:8]
        folder = (self._scratch or self._folder) / SILVER_FOLDER
        path = folder / f"{questions.task.name}-{oracle.measure}-k{k}-{len(questions)}-{name}.jsonl"
        if not path.exists() and self._scratch is None:
            self._say(f"{what} by {oracle.measure}, K={k}: {path.name}")

        def progress(phase: str, done: int, total: int | None = None, /) -> None:
            if oracle.measure == CXMI:  # a line a batch where a model is called, which takes its time
                self._say(f"{what}: {done} of {total} questions")

        make_silver(questions, oracle, path, retriever=retriever, k=k, progress=progress)
        return path

    def _oracle(self, questions: Questions, measure: Measure, own: bool) -> Oracle | None:
        """The oracle of a task; `own`: the row wants this very measure."""
        task = questions.task.name
        if measure != CXMI:
            return Oracle(measure, task=task)
        if self._scorer is None:
            self._left_out.setdefault((_PLANNED, False), []).append(task)
            return None
        try:
            scorer = self._scorer(self._folder / SILVER_FOLDER / f"{task}-{CXMI}.journal")
            oracle = Oracle(CXMI, task=task, scorer=scorer, prompts=self.prompts).asking(questions.task)
            oracle.check(questions[:1])
        except (BadArgument, ServerRefused) as error:
            if self._scorer_named:
                raise
            self._left_out.setdefault((str(error), own), []).append(task)
            return None
        self._silver_notes[f"{task}: SILVER's cxmi is what {scorer.backend.name} finds likely"] = None
        return oracle

    # --- trimmed indexes ---

    def trimmed(self, row: PaperRow, questions: Questions, retriever: Retriever, k: int) -> Trimmed:
        """`retriever` as trimmed by `questions`, each judged on its `k` nearest passages, at the row's threshold.

        Raises: as `trim` does, and what was judged until then stays; Leak: a question that the judge was compiled on.
        """
        settings = row.settings(questions.task.name)
        key = (questions.task.name, retriever.fingerprint, settings.get("rules"), k)
        if key not in self._overlays:
            self._overlays[key] = self._overlay(row, questions, retriever, k)
        folder = self._overlays[key]
        return Trimmed(
            retriever, Witnesses.read(folder.witnesses), threshold=settings["trimmed"],
            min_similarity=folder.min_similarity,
        )  # fmt: skip

    def _overlay(self, row: PaperRow, questions: Questions, retriever: Retriever, k: int) -> TrimFolder:
        task, kind, judge = questions.task.name, kind_of(retriever), self._judge(row, questions)
        rules = [str(rule["name"]) for rule in judge.identity()["rules"]]
        key = digest(retriever.fingerprint, questions.fingerprint, judge.identity(), self._lm.name, self._lm.identity)
        name = "-".join([task, *rules, f"k{k}", kind, str(len(questions)), key[:8]])
        what = f"{task}: {kind} trimmed by {len(questions)} questions"
        place = self._folder / TRIMMED_FOLDER / name
        fresh = not place.exists()
        if self._scratch is not None and fresh:
            most = f"{len(questions) * k:,} calls of the judge at most"
            self._overlay_notes.append(f"{what}: {most}; rows that judge share them")
            folder = TrimFolder.create(retriever, self._scratch / TRIMMED_FOLDER / name, k=k, threshold=1)
            trim(retriever, spread(questions, _PILOT), judge, folder, lm=connect("offline"))
            return folder
        folder = TrimFolder.create(retriever, place, k=k, threshold=1) if fresh else TrimFolder.read(place)
        failed = 0
        if self._scratch is None:
            self._say(f"trimming: {TRIMMED_FOLDER}/{name}")
            if fresh:
                _take_over([*journals_of(self._folder, task), *journals_of(place.parent, task)], folder.journal)
            # Not from one question to another: a question that took verdicts over is one that the judge has not seen.
            found = trim(
                retriever, questions[:], judge, folder, lm=self._lm, concurrency=self._concurrency, reuse=False
            )
            failed = len(found.errors)
            self.errors += failed
        there = Witnesses.read(folder.witnesses)
        accepted, rejected, silent = (
            sum(len(getattr(verdicts, side)) for verdicts in there.judged.values())
            for side in ("accepted", "rejected", "silent")
        )
        separated = " and ".join(f"{sum(1 for _ in there.separated(least)):,} at {least}" for least in (1, 2))
        self._overlay_notes.append(
            f"{what}: {len(there.judged):,} judged, {accepted:,} passages accepted, {rejected:,} rejected, {silent:,} "
            f"without a verdict; pairs separated: {separated}"
        )
        if failed:
            self._overlay_notes.append(
                f"{what}: {failed} questions are not judged, for a call failed; the same command asks again"
            )
        return folder

    def _judge(self, row: PaperRow, questions: Questions) -> Judge:
        """The judge of `--filter cdit`, by the row's rules; a compiled one speaks as its program says."""
        task = questions.task
        wording, rules = TaskWording.of(task.wording), row.settings(task.name).get("rules")
        select = make_filter(JUDGE, wording=wording, prompts=self.prompts, rules=rules)
        if not isinstance(select, CDITFilter):
            raise BadArgument(f"the filter {JUDGE} is a {type(select).__name__}, and has no judge to trim by")
        self.load_program_into(select, row, task.name, JUDGE)
        if recipes_in(select):
            check_leak(select, questions)  # a row that searches a trimmed index holds no judge that would show it
        return select.judge


def journals_of(folder: Path, task: str) -> list[Path]:
    """A task's runs in `folder` that have a journal; in its `trimmed`, the overlays, whose journals a judge filled."""
    return [path.parent for path in sorted(folder.glob(f"{task}-*/{FILE}"))]


def _take_over(others: Iterable[Path], journal: Path) -> None:
    """Copy the verdicts of others: a prompt that was answered once is not paid for again."""
    with Journal(journal) as mine:
        for other in others:
            with Journal(other, "replay") as theirs:
                calls = (call for call in theirs.records("call") if call.get("stage") == JUDGING_STAGE)
                mine.append(*(dict(call) | {"reused": True} for call in calls if not call.get("error")), new_only=True)


def _left_out(tasks: Sequence[str], why: str, own: bool) -> str:
    """The line on the tasks whose SILVER by cxmi is left out for one reason; `own`: the rows want this very measure."""
    named = f"{', '.join(tasks)}: SILVER by cxmi is"
    if why == _PLANNED:
        return f"{named} {why}"
    others = " ".join(f"--measure {task}={WITHOUT_MODEL[task]}" for task in tasks if task in WITHOUT_MODEL and not own)
    other = f", or another measure ({others})" if others else ""
    return f"{named} left out: {why}. Name a model that does (--scorer){other}"


def parse_program(words: str) -> tuple[str, str, Path]:
    """The task ("": all), the filter and the file of `[TASK=]FILE`.

    Raises:
        UnknownName: no such task. MissingFile, BadData: no program. BadArgument: one of another filter.
    """
    task, name = re.fullmatch(r"(?:(\w*)=)?(.*)", words, re.DOTALL).groups(default="")  # type: ignore[union-attr]
    check_names("task", [task] if task else [], TASKS, f"'{words}'")
    if not name:
        raise BadArgument("a program is written [TASK=]FILE, and this one names no file")
    recipe = read_program(name)[1]
    template = next((each.partition(" ")[0] for each in recipe.templates.values()), "")
    if recipe.module not in (FilCoFilter.__name__, CDITFilter.__name__) or template not in FILTER_OF_TEMPLATE:
        raise BadArgument(
            f"{name} was compiled for {recipe.module}: --program takes those of FilCo's filter (blendfilter compile "
            "filco) and of CDIT's (compile cdit); blendfilter eval --program runs any"
        )
    return task, FILTER_OF_TEMPLATE[template], Path(name)


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
        check_names("task", [task] if task else [], TASKS, f"'{each}'")
        measure = next((known for known in MEASURES if known == name), None)
        if measure is None:
            raise UnknownName.of("measure", name, MEASURES)
        found[task] = measure
    return found
