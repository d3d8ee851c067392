"""`blendfilter trim`: judge what an index finds, gather witnesses for its overlay; look into it, and take it back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from pydantic import Field

from blendfilter.cli.app import State, command
from blendfilter.cli.console import Bars, show
from blendfilter.cli.making import connect, say_unshown, say_what_answers
from blendfilter.cli.options import (
    AllowHosts,
    InData,
    InLimits,
    InModel,
    InOutput,
    Limit,
    MaxRetries,
    ModelOptions,
    PricesFile,
    PromptOptions,
    RuleOptions,
    SpendingOptions,
)
from blendfilter.errors import BadArgument, BlendFilterError, UnknownName
from blendfilter.settings import Argument, Option, Rare, Settings

if TYPE_CHECKING:
    from blendfilter.filters.cdit import Judge, Mode
    from blendfilter.records import Passage, Question
    from blendfilter.retrieval.base import Retriever
    from blendfilter.trimming.folder import TrimFolder

ALL = "ALL"
"""What `--undo` takes for everything."""


class JudgingOptions(RuleOptions, PromptOptions, panel="Method"):
    """What is judged, and how."""

    questions: InData[str | None] = None
    """Questions whose passages to judge: a file (no answers needed; .txt: one question a line), 'hub', or
    'sample'."""
    task: InData[str] = "qa"
    """Layout of the question file; qa: your own JSON Lines."""
    limit: Limit = None
    k: Annotated[int | None, Option("-k --k")] = None
    """Passages to judge for each question (default: the overlay's setting, or 10)."""
    mode: str = "word"
    """The judge's reply. word: True or False; components: what it compared, its reason, its verdict."""
    program: Rare[Path | None] = None
    """A compiled judge (blendfilter compile cdit) of this mode."""
    judge_lm: Rare[InModel[str | None]] = None
    """The same as --lm, which judges here."""
    no_reuse: Rare[bool] = False
    """Judge every question, even one like a question judged before."""
    dry_run: InOutput[bool] = False
    """Judge (calls are kept) and show what would be dropped; the overlay stays as it is."""
    concurrency: InLimits[int] = Field(16, ge=1)
    """Model calls in flight."""
    max_retries: MaxRetries = None


class OverlayOptions(Settings, panel="Method"):
    """Settings of an overlay, which it keeps."""

    threshold: int | None = None
    """Witnesses needed to drop a passage for a question not judged itself, at least 1 (1)."""
    min_similarity: Rare[float | None] = None
    """How similar a judged question must be for its verdicts to count; 1: identical."""
    one_way: Rare[bool | None] = None
    """Count only witnesses that accepted the passage that stays (the default), or all witnesses of a pair, as
    Theorem 1 does."""
    refill: bool | None = None
    """Replace dropped passages by the next ones in the ranking (the default), or return fewer, as the paper
    does."""
    pairing: Annotated[str | None, Option(metavar="theorem|algorithm", rare=True)] = None
    """Pairs that a judged question separates: theorem (each accepted passage from each rejected one) or
    algorithm (a rejected passage from those accepted above it)."""
    similar: Annotated[str | None, Option(metavar="MODEL", rare=True)] = None
    """A cross-encoder (duplicate questions or NLI; a folder or a name on the hub) that decides, besides the
    rules, whether two similar questions ask the same; 'rules': the rules alone (the default)."""


class LookingOptions(Settings, panel="Output"):
    """What is looked at or undone without a model."""

    passage: Annotated[str | None, Option("--show", metavar="PASSAGE")] = None
    """Show what separates a passage (its id) from others: which questions, and when."""
    undo: Annotated[list[str] | None, Option(metavar="QUERY|PAIR|ALL")] = None
    """Undo a judged question (its id or text), a pair (ID,ID), or ALL; may be repeated."""
    export: str | None = None
    """Write the separated pairs and their witnesses to a file (.jsonl or .csv), or - for the screen."""
    overwrite: Annotated[bool, Option(goes_with="export")] = False
    """With --export: replace a file that is there."""


class TrimOptions(
    JudgingOptions, OverlayOptions, LookingOptions, ModelOptions, SpendingOptions
):
    """The settings of `blendfilter trim`."""

    index: Argument[str]
    """An index folder, its overlay (INDEX.trimmed), or a server's URL (with --out)."""
    out: InOutput[Path | None] = None
    """The overlay's folder, where it is not INDEX.trimmed."""
    allow_hosts: AllowHosts = None
    prices: PricesFile = None

    def check(self) -> None:
        """Raise `BadArgument` for options that do not go together."""
        settings = self.given_options(OverlayOptions)
        actions = self.given_options("questions", "passage", "undo", "export")
        if self.questions is None:
            actions += settings
        if len(actions) > 1 and actions[0] not in settings:
            raise BadArgument(
                f"{actions[0]} and {actions[1]} are two things: give one of them, then the other"
            )
        judging = self.given_options(JudgingOptions, ModelOptions, SpendingOptions, "prices")
        if judging and self.questions is None:
            raise BadArgument(
                f"{judging[0]} is for judging: add --questions FILE, or leave it out"
            )
        if self.dry_run and settings:
            raise BadArgument(
                f"--dry-run changes nothing, and {settings[0]} would be kept: leave one of them out"
            )
        if self.judge_lm is not None and self.lm is not None:
            raise BadArgument(
                "--lm and --judge-lm name the same model, the one that judges: give one of them"
            )


@command("trim")
def trim_command(options: TrimOptions) -> None:
    """Trim an index: let a model judge the passages it finds, and drop the rejected ones from later searches.

    The model judges whether each passage found for a question is consistent with it. The same question no longer gets
    the passages rejected for it. A question that accepts one passage and rejects another is a witness that separates
    the two: when a similar search finds both, the rejected one is dropped. The index itself never changes. An overlay
    folder beside it keeps the verdicts, which can be undone, and settings such as --threshold. Repeat the command to
    resume it. Without options, it shows the state of the overlay.

    Example: blendfilter trim indexes/wiki --questions train.jsonl --lm openai/gpt-4o-mini
    then: blendfilter search indexes/wiki.trimmed "Who turned on the radio?"
    and: blendfilter trim indexes/wiki --undo "Who turned on the radio?"
    """
    State.goes_on = options.questions is not None  # before the imports: these take a second
    options.check()
    from blendfilter.text import counted
    from blendfilter.trimming.folder import TrimFolder
    from blendfilter.trimming.summary import STDOUT, export, state_text

    place = _place(options.index, options.out)
    if options.questions is not None:
        _judge(options, place)
        return
    folder = TrimFolder.read(place)
    if options.passage is not None:
        _show_passage(folder, options, options.passage)
    elif options.undo:
        _take_back(folder, options.undo)
    elif options.export is not None:
        file = options.export
        if file != STDOUT and Path(file).suffix.lower() not in (".jsonl", ".csv"):
            raise BadArgument(
                f"--export {file} is no kind of file: name one that ends in .jsonl or .csv, or - (the screen)"
            )
        count = export(
            folder.state(),
            file,
            threshold=folder.threshold,
            one_way=folder.one_way,
            overwrite=options.overwrite,
        )
        if file != STDOUT:
            show(f"{file}: {counted(count, 'row')}, one for each witness of each separation")
    else:
        if settings := options.given(OverlayOptions):  # a trim at work takes them up next time
            folder = folder.set(**settings)
        show(state_text(folder, folder.state()).rstrip("\n"))


def _place(index: str, out: Path | None) -> Path:
    from blendfilter.trimming.folder import default_place, is_trimmed

    if is_trimmed(index):
        if out is not None:
            raise BadArgument(
                f"{index} is an overlay itself: leave --out out, or name the index it is of"
            )
        return Path(index)
    if out is None:
        return Path(default_place(index))
    if out.resolve() == Path(index).resolve():
        raise BadArgument(
            f"--out {out} is the index itself, which is never written to: name another folder"
        )
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not is_trimmed(out)):
        raise BadArgument(f"--out {out} is no overlay: name another folder")
    return out


def _named_index(folder: TrimFolder, options: TrimOptions) -> Retriever:
    """The index that was named, or, where its overlay was, the one that this names."""
    from blendfilter.retrieval.indexes import open_index
    from blendfilter.trimming.folder import open_base

    hosts = options.allow_hosts or ()
    if folder.place == Path(options.index):
        return open_base(folder.base, folder.place, allow_hosts=hosts)
    return open_index(options.index, allow_hosts=hosts)


# --- judging --------------------------------------------------------------------------------------------------------


def _judge(options: TrimOptions, place: Path) -> None:
    from blendfilter.run_context import RunContext
    from blendfilter.trimming.gathering import trim

    options = options.but(lm=options.lm or options.judge_lm)
    bounds = {**options.given("concurrency", "max_retries"), "budget": options.budget()}
    judge, questions = _judge_of(options)
    lm = connect(options)
    RunContext(lm, **bounds)  # refuses bad limits before there is a folder
    searched, folder = _opened(options, place)
    say_what_answers(options, judge)
    with Bars() as bars:
        done = trim(
            searched,
            questions,
            judge,
            folder,
            lm=lm,
            reuse=not options.no_reuse,
            dry_run=options.dry_run,
            progress=bars,
            **bounds,
        )
    show(done.text().rstrip("\n"))
    if done.errors or done.too_silent:
        raise typer.Exit(1)


def _judge_of(options: TrimOptions) -> tuple[Judge, list[Question | str]]:
    """The judge, as a compiled program says where one is named, and the questions, of which no answer is looked at."""
    from blendfilter.compiling.programs import load_program
    from blendfilter.filters.cdit import CDITFilter
    from blendfilter.tasks import TASKS, load
    from blendfilter.tasks.loading import read_questions

    data, task = str(options.questions), TASKS["qa"]
    questions: Sequence[Question | str]
    if options.task == "qa" and data not in ("sample", "hub"):
        questions = [*read_questions(data, limit=options.limit)]
    else:
        questions = loaded = load(options.task, data, limit=options.limit)
        task = loaded.task
    wording = options.worded(task.wording)
    rules, mode = options.chosen_rules(), cast("Mode", options.mode)
    filter_ = CDITFilter(mode, rules, wording=wording, prompts=options.prompts)
    if options.program is not None:
        load_program(filter_, options.program)
    say_unshown(options.demos, filter_, "the judge")
    return filter_.judge, [*questions]


def _opened(options: TrimOptions, place: Path) -> tuple[Retriever, TrimFolder]:
    """The index and its overlay, with the settings that were given: a new one, or the one that is there."""
    from blendfilter.retrieval.indexes import open_index
    from blendfilter.trimming.folder import TrimFolder
    from blendfilter.trimming.witnesses import WitnessWriter

    settings = options.given(OverlayOptions)
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        searched = open_index(options.index, allow_hosts=options.allow_hosts or ())
        settings |= options.given("k")
        return searched, TrimFolder.create(searched, place, **settings)
    folder = TrimFolder.read(place)
    searched = _named_index(folder, options)
    folder.check(searched, options.k)
    if settings:
        # where another one writes, or the file is damaged, the settings stay
        with WitnessWriter(folder.witnesses):
            folder = folder.set(**settings)
    return searched, folder


# --- without a model ------------------------------------------------------------------------------------------------


def _show_passage(folder: TrimFolder, options: TrimOptions, passage: str) -> None:
    """What a passage is separated from, by whom and when; its text where the index is there."""
    from blendfilter.trimming.summary import found_again, passage_text

    witnesses = folder.state()
    texts: dict[str, Passage] = {}
    note = ""
    try:
        searched = _named_index(folder, options)
        folder.check(searched)
        texts = found_again(searched, folder.k, witnesses, passage)
    except BlendFilterError as error:
        note = f"its text cannot be looked up: {error}"
    show(passage_text(folder, witnesses, passage, texts, note).rstrip("\n"))


def _take_back(folder: TrimFolder, undo: list[str]) -> None:
    """Undo questions, pairs, or ALL; where one name is wrong, nothing is undone."""
    from blendfilter.text import counted
    from blendfilter.trimming.witnesses import WitnessWriter, pair_named, question_known

    if ALL in undo and set(undo) != {ALL}:
        raise BadArgument(f"--undo {ALL} takes everything back: leave the other --undo out")
    with WitnessWriter(folder.witnesses) as writer:
        state = writer.witnesses
        if ALL in undo:
            show(f"undone: all of it, {counted(writer.undo_all(), 'question')}")
            undo = []
        questions, pairs = dict[str, str](), dict[tuple[str, str], int]()
        for name in undo:
            try:
                known = question_known(state, name)
                questions[known] = state.judged[known].question
            except UnknownName:
                if "," not in name:
                    raise
                pair = pair_named(state, name)
                pairs[pair] = len(state.witnesses_of(*pair))
        for (a, b), count in pairs.items():
            writer.undo_pair(a, b)
            show(
                f"undone: the separation of {a} and {b} ({counted(count, 'witness', 'witnesses')})"
            )
        for known, text in questions.items():
            writer.undo_question(known)
            show(f"undone: question {known}, {text!r}")
    left = folder.state()
    inert = "" if left.rejects() else ": it answers as the bare index does"
    reached = sum(1 for _ in left.separated(folder.threshold, one_way=folder.one_way))
    show(
        f"left: {counted(len(left.judged), 'question')}, {counted(left.separations(), 'separation')}, "
        f"{reached:,} at the threshold of {folder.threshold}{inert}"
    )
