"""What rows need besides their method: compiled programs, silver contexts, and trimmed indexes.

Silver contexts (`<runs>/silver/<what it is>.jsonl`) and overlays (`<runs>/trimmed/<what it is>/`) are made once, beside
the runs, whatever rows share them. The judge of an overlay has seen the very questions of the run: so the CDIT paper
trims (section 4.3), and so these rows measure what a judged question gains, not what a new one does. It is the judge of
`--filter cdit` and is sent the same prompts: runs and overlays take over each other's calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from blendfilter.evaluation.checks import check_leak
from blendfilter.evaluation.plan import spread
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
from blendfilter.reproduce.sources import Given, kind_of, value_for
from blendfilter.reproduce.tables import (
    OF_FILTERS,
    PROMPTED,
    QUESTION_ONLY,
    PaperRow,
    PaperTable,
)
from blendfilter.retrieval.base import Retriever
from blendfilter.run_context import CONCURRENCY
from blendfilter.tasks import Questions
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


@dataclass(frozen=True)
class RowOptions:
    """What a command gives for the rows of a table.

    Attributes:
        programs: `[TASK=]FILE`, of `blendfilter compile`; each goes into the rows whose filter it was compiled for.
        demos: `[TASK=]FILE`, demonstrations in place of a task's own.
        models: `[MODEL:][TASK=]NAME`, the models of rows' filters, by what the table calls them.
        silver: `[TASK=]FILE`, of BIDER's synthesis over the questions, for rows of its stages.
        measures: `[TASK=]MEASURE`, what silver contexts are chosen by in place of the paper's.
        scorer: the model that gives CXMI its log-probabilities; where it cannot, that is an error. None: the table's
            own reader, and where it cannot, the row is left out.
        prompts: the templates; None: the table's. reply_tokens: the cap of long replies. concurrency: calls in flight.
    """

    programs: Sequence[str] = ()
    demos: Sequence[str] = ()
    models: Sequence[str] = ()
    silver: Sequence[str] = ()
    measures: Sequence[str] = ()
    scorer: str | None = None
    scorer_api_base: str | None = None
    prompts: Prompts | None = None
    reply_tokens: int | None = None
    concurrency: int = CONCURRENCY


@dataclass
class RowInputs:
    """Makes what rows need, each thing once, and keeps notes of it.

    Attributes:
        lm: the model that judges for overlays.
        make_scorer: makes what gives CXMI its log-probabilities, from where its scores are kept.
        scratch: the folder of a plan, which calls no model and makes nothing in `folder`.
        notes: what was made, and what could not be, a line each.
        errors: questions that could not be judged.

    Raises: BadArgument for a program that no row takes. MissingFile, BadData: demonstrations that cannot be read.
    UnknownName: a task, a measure or a model that there is none of.
    """

    table: PaperTable
    lm: ConnectedLM
    folder: Path
    options: RowOptions = RowOptions()
    make_scorer: Callable[[Path], KeptScorer] | None = None
    scratch: Path | None = None
    say: Say = lambda line: None
    notes: list[str] = field(default_factory=list)
    errors: int = 0

    def __post_init__(self) -> None:
        table, options, tasks = self.table, self.options, self.table.tasks
        if self.scratch is not None:
            self.say, self.make_scorer = lambda line: None, None
        self._oracles: dict[tuple[str, Measure], Oracle | NotHere] = {}
        self._overlays: dict[tuple[Any, ...], TrimFolder] = {}
        settings = [row.settings(task) for row in table.rows for task in tasks]
        filters = {setting.get("filter") for setting in settings}
        if any("trimmed" in setting for setting in settings):
            filters.add(JUDGE)
        self._programs = [
            given._replace(prefix=_filter_of(given.value))
            for given in Given.each(options.programs, "--program", tasks)
        ]
        for given in self._programs:
            if given.prefix not in filters:
                raise BadArgument(
                    f"{given.value} was compiled for {given.prefix}, which no row of {table.name} has: leave it out"
                )
        self._demos = [
            given._replace(value=read_demos(given.value))
            for given in Given.each(options.demos, "--demos", tasks)
        ]
        self._silver = Given.each(options.silver, "--silver", tasks)
        if self._silver and not any("stage" in setting for setting in settings):
            raise BadArgument(
                f"no row of {table.name} reads a stage of BIDER's synthesis: leave silver= out"
            )
        self._measures = Given.each(options.measures, "--measure", tasks)
        for given in self._measures:
            if given.value not in MEASURES:
                raise UnknownName.of("measure", given.value, MEASURES)
        self._models = Given.each(options.models, "--filter-model", tasks, r"\w[\w-]*")
        for given in self._models:
            if not table.models:
                raise BadArgument(
                    f"no filter of {table.name} has a model of its own: leave models='{given.value}' out"
                )
            table.named("model", filter(None, [given.prefix]), table.models)
            if not given.prefix and len(table.models) > 1:
                first, *others = table.models
                raise BadArgument(
                    f"which model of {table.name} is {given.value}? "
                    f"Write {first}:{given.value}, or {', '.join(others)}"
                )

    def _note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)

    def wording(self, name: str, task: str, *, trained: bool = False) -> TaskWording:
        """The wording of that name, with the demonstrations given for `task` and the cap of long replies asked for.

        `trained`: without demonstrations, unless some are given.
        """
        demos = value_for(self._demos, task)
        if demos is None and trained:
            demos = []
        return (
            TaskWording.of(name).with_demos(demos).with_reply_tokens(self.options.reply_tokens)
        )

    # --- filters, and the models and programs that they are made of ---

    def filter(self, row: PaperRow, task: str, wording: TaskWording) -> dspy.Module:
        """The filter of a row with its arguments, ready to be asked.

        Raises: NotHere, for a package that is not installed, and for a model that is not there and was not named.
        """
        settings = row.settings(task)
        name = settings["filter"]
        arguments = {
            key.removeprefix("filter_"): settings[key] for key in OF_FILTERS if key in settings
        }
        called, default = arguments.pop("model", ""), None
        model = row.model("filter_model", task)
        if model is None and called and row.model("filter_lm", task) is None:
            model = value_for(self._models, task, called)
            if model is None:
                model = default = self.table.models[called]
        if model == "":
            raise NotHere(
                f"no {called} model is named (--filter-model {called}:[TASK=]FOLDER; docs/training.md)"
            )
        if model is not None and default != PROMPTED:
            arguments["model"] = model
        try:
            select = make_filter(
                name, wording=wording, prompts=self.options.prompts, **arguments
            )
            if isinstance(select, Filter):
                select.prepare()
        except MissingExtra as error:
            raise NotHere(str(error)) from error
        except (MissingFile, BadData) as error:
            if default is None:
                raise
            raise NotHere(
                f"{error} (name one that is here: --filter-model {called}:NAME)"
            ) from error
        self.load_program_into(select, row, task, name)
        return select

    def load_program_into(
        self, select: dspy.Module, row: PaperRow, task: str, name: str
    ) -> None:
        """Load the program for the filter called `name` into `select`, if there is one.

        Raises:
            BadData: the program was compiled for other fields, other templates or another task's wording.
        """
        path = value_for(self._programs, task, name)
        if path is not None:
            recipe = load_program(select, path_of(path))
            what = ", ".join(filter(None, (recipe.task, recipe.measure, recipe.lm)))
            gained = f"{recipe.before.value:.3f} before, {recipe.after.value:.3f} after, over {recipe.after.n}"
            compiled = f"{recipe.optimizer} ({what}; {recipe.data.get('n_train')} questions; {gained} held back)"
            words = "; ".join(filter(None, (compiled, recipe.note)))
            self._note(f"{task}: {row.label} speaks as compiled by {words}")

    # --- silver contexts ---

    def silver(
        self, row: PaperRow, questions: Questions, retriever: Retriever, k: int
    ) -> SilverFilter:
        """The filter of a row that reads gold.

        Where STRINC has nothing to look for (a yes or no, a label) its own row keeps nothing, as in FilCo.

        Raises: NotHere, for a row of a stage of BIDER's synthesis without its file, and for cxmi without a scorer.
        """
        task = questions.task.name
        settings = row.settings(task)
        if "stage" in settings:
            return self._synthesised(questions, settings["stage"])
        own: Measure | None = settings.get("measure")
        papers = measure_for(task)
        measure = own or value_for(self._measures, task) or papers
        if own is None and measure != papers:
            self._note(
                f"{task}: SILVER by {measure}, as asked; the paper's measure for it is {papers}"
            )
        if (task, measure) not in self._oracles:
            self._oracles[task, measure] = self._oracle(questions, measure)
        oracle = self._oracles[task, measure]
        if isinstance(oracle, NotHere):
            raise NotHere(*oracle.args)
        unlabelled = [
            question.question
            for question in questions
            if not can_label(measure, question.golden_answers)
        ]
        if unlabelled:
            share = f"{len(unlabelled):,} of {len(questions):,} questions, which are answered by a verdict (yes or no)"
            kept = f"SILVER by {measure} keeps everything for {share}"
            if own is not None:
                kept = f"{own} keeps nothing for {share}: as in the paper, the context is empty"
            self._note(f"{task}: {kept}")
        path = None
        if own is None or len(unlabelled) < len(questions):
            path = self._silver_file(questions, oracle, retriever, k)
        # Other queries than the question bring passages that its silver context knows nothing of.
        return SilverFilter(
            path,
            partly=row.method not in QUESTION_ONLY,
            unlabelled=unlabelled,
            keep_unlabelled=own is None,
        )

    def _silver_file(
        self, questions: Questions, oracle: Oracle, retriever: Retriever, k: int
    ) -> Path:
        """The file of silver contexts, made where it is not there."""
        task = questions.task.name
        what = f"silver contexts of {task}"
        settings = settings_of(questions[:], oracle, retriever, k)
        name = digest(settings | {"data": questions.fingerprint})[:8]
        folder = (self.scratch or self.folder) / SILVER_FOLDER
        path = folder / f"{task}-{oracle.measure}-k{k}-{len(questions)}-{name}.jsonl"
        if not path.exists():
            self.say(f"{what} by {oracle.measure}, K={k}: {path.name}")

        def progress(phase: str, done: int, total: int | None = None, /) -> None:
            # a line a batch where a model is called, which takes its time
            if oracle.measure == CXMI:
                self.say(f"{what}: {done} of {total} questions")

        make_silver(questions, oracle, path, retriever=retriever, k=k, progress=progress)
        return path

    def _synthesised(self, questions: Questions, stage: Stage) -> SilverFilter:
        """What a stage of BIDER's synthesis kept, from the file that the command names."""
        task = questions.task.name
        path = value_for(self._silver, task)
        if path is None:
            raise NotHere(
                "no synthesis of it is named (--silver [TASK=]FILE; blendfilter silver --measure bider)"
            )
        try:
            there = {each.id for each in labelled(questions, BIDER)}
        except BadArgument as error:
            raise NotHere(str(error)) from error
        without = [question.question for question in questions if question.id not in there]
        if without:
            share = f"{len(without):,} of {len(questions):,} questions, whose answers say too little"
            self._note(f"{task}: the synthesis keeps everything for {share}")
        return SilverFilter(path, stage=stage, unlabelled=without)

    def _oracle(self, questions: Questions, measure: Measure) -> Oracle | NotHere:
        task = questions.task.name
        if measure != CXMI:
            return Oracle(measure, task=task)
        if self.make_scorer is None:
            return NotHere("no plan does it: cxmi scores every sentence of the passages")
        try:
            scorer = self.make_scorer(self.folder / SILVER_FOLDER / f"{task}-{CXMI}.journal")
            wording = self.wording(questions.task.wording, task)
            oracle = Oracle(
                CXMI, task=task, scorer=scorer, wording=wording, prompts=self.options.prompts
            )
            oracle.check(questions[:1])
        except (BadArgument, ServerRefused) as error:
            if self.options.scorer is not None:
                raise
            return NotHere(
                f"cxmi: {error}. Name a model that does (--scorer), or another measure (--measure)"
            )
        self._note(f"{task}: SILVER's cxmi is what {scorer.backend.name} finds likely")
        return oracle

    # --- trimmed indexes ---

    def trimmed(
        self, row: PaperRow, questions: Questions, retriever: Retriever, k: int
    ) -> Trimmed:
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
        task, kind = questions.task.name, kind_of(retriever)
        wording = self.wording(questions.task.wording, task)
        rules = row.settings(task).get("rules")
        select = make_filter(JUDGE, wording=wording, prompts=self.options.prompts, rules=rules)
        assert isinstance(select, CDITFilter)
        self.load_program_into(select, row, task, JUDGE)
        if recipes_in(select):
            # no judge is in a row that searches a trimmed index
            check_leak(select, questions, (), OTHERS)
        judge = select.judge
        of = (retriever.fingerprint, questions.fingerprint, judge.identity())
        key = digest(*of, self.lm.name, self.lm.identity)
        named = [str(rule["name"]) for rule in judge.identity()["rules"]]
        name = "-".join([task, *named, f"k{k}", kind, str(len(questions)), key[:8]])
        what = f"{task}: {kind} trimmed by {len(questions)} questions under {'+'.join(named)}"
        place = self.folder / TRIMMED_FOLDER / name
        fresh = not place.exists()
        if fresh and self.scratch is not None:
            most = f"{len(questions) * k:,} calls of the judge at most"
            self._note(f"{what}: {most}; rows that judge share them")
            place = self.scratch / TRIMMED_FOLDER / name
        folder = (
            TrimFolder.create(retriever, place, k=k, threshold=1)
            if fresh
            else TrimFolder.read(place)
        )
        if fresh and self.scratch is not None:
            trim(retriever, spread(questions, _PILOT), judge, folder, lm=connect("offline"))
            return folder
        failed = 0
        if self.scratch is None:
            self.say(f"trimming: {TRIMMED_FOLDER}/{name}")
            if fresh:
                others = [*journals_of(self.folder, task), *journals_of(place.parent, task)]
                # a prompt that was answered once is not paid for again
                with Journal(folder.journal) as mine:
                    for other in others:
                        with Journal(other, "replay") as theirs:
                            mine.append(*_verdicts(theirs), new_only=True)
            # Not from one question to another: a question that took verdicts over is one that the judge has not seen.
            found = trim(
                retriever,
                questions[:],
                judge,
                folder,
                lm=self.lm,
                concurrency=self.options.concurrency,
                reuse=False,
            )
            failed = len(found.errors)
            self.errors += failed
        there = folder.state()
        verdicts = Counter(
            verdict for judged in there.judged.values() for verdict in judged.verdicts.values()
        )
        counts = (
            f"{verdicts[True]:,} passages accepted, {verdicts[False]:,} rejected, "
            f"{verdicts[None]:,} without a verdict"
        )
        self._note(
            f"{what}: {len(there.judged):,} judged, {counts}; pairs separated: {there.separations():,}"
        )
        if failed:
            self._note(
                f"{what}: {failed} could not be judged, for a call failed; the same command asks again"
            )
        return folder


def _filter_of(program: str) -> str:
    """The filter that a compiled program is for."""
    recipe = read_program(program)[1]
    template = next((each.partition(" ")[0] for each in recipe.templates.values()), "")
    return FILTER_OF_TEMPLATE.get(template, recipe.module)


def journals_of(folder: Path, task: str) -> list[Path]:
    """A task's runs in `folder` that have a journal; in its `trimmed`, the overlays, whose journals a judge filled."""
    return [path.parent for path in sorted(folder.glob(f"{task}-*/{FILE}"))]


def _verdicts(journal: Journal) -> Iterator[dict[str, Any]]:
    """The judge's calls of another journal, as this one keeps them."""
    for call in journal.records("call"):
        if call.get("stage") in JUDGING_STAGES and not call.get("error"):
            yield dict(call) | {"reused": True}
