"""`blendfilter trim`: judge what an index finds, gather witnesses for its overlay; look into it, and take it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blendfilter.cli.app import State, command
from blendfilter.cli.console import Bars, show
from blendfilter.cli.making import connect, prompts_in, say_unshown, say_what_answers
from blendfilter.cli.options import (
    AllowHost,
    DemosFile,
    Limit,
    MaxRetries,
    ModelOptions,
    PricesFile,
    PromptsName,
    ReplyTokens,
    RuleName,
    RulesFile,
    SpendingOptions,
    declared,
    given,
    given_values,
    option,
)
from blendfilter.errors import BadArgument, BlendFilterError, UnknownName

if TYPE_CHECKING:
    from blendfilter.filters.cdit import Judge
    from blendfilter.records import Passage, Question
    from blendfilter.retrieval.base import Retriever
    from blendfilter.trimming.folder import TrimFolder

ALL = "ALL"
"""What `--undo` takes for everything."""


@dataclass(frozen=True)
class JudgingOptions:
    """What is judged, and how."""

    questions: str | None = option(
        "Data",
        "Questions whose passages to judge: a file (no answers needed; .txt: one question a line), 'hub', or 'sample'.",
    )
    task: str = option(
        "Data", "Layout of the question file; qa: your own JSON Lines.", default="qa"
    )
    limit: Limit = None
    k: int | None = option(
        "Method",
        "Passages to judge for each question (default: the overlay's setting, or 10).",
        "--k",
        "-k",
    )
    mode: str = option(
        "Method",
        "The judge's reply. word: True or False; components: what it compared, its reason, its verdict.",
        default="word",
    )
    rule: RuleName = None
    rules: RulesFile = None
    program: Path | None = option(
        "Method", "A compiled judge (blendfilter compile cdit) of this mode.", rare=True
    )
    judge_lm: str | None = option("Model", "The same as --lm, which judges here.", rare=True)
    prompts: PromptsName = None
    demos: DemosFile = None
    reply_tokens: ReplyTokens = None
    no_reuse: bool = option(
        "Method",
        "Judge every question, even one like a question judged before.",
        "--no-reuse",
        default=False,
        rare=True,
    )
    dry_run: bool = option(
        "Output",
        "Judge (calls are kept) and show what would be dropped; the overlay stays as it is.",
        "--dry-run",
        default=False,
    )
    concurrency: int = option("Limits", "Model calls in flight.", default=16, min=1)
    max_retries: MaxRetries = None


@dataclass(frozen=True)
class OverlayOptions:
    """Settings of an overlay, which it keeps, and what is looked at or undone without a model."""

    threshold: int | None = option(
        "Method",
        "Witnesses needed to drop a passage for a question not judged itself, at least 1 (1).",
    )
    min_similarity: float | None = option(
        "Method",
        "How similar a judged question must be for its verdicts to count; 1: identical.",
        rare=True,
    )
    one_way: bool | None = option(
        "Method",
        "Count only witnesses that accepted the passage that stays (the default), or all witnesses of a pair, as "
        "Theorem 1 does.",
        "--one-way/--no-one-way",
        rare=True,
    )
    refill: bool | None = option(
        "Method",
        "Replace dropped passages by the next ones in the ranking (the default), or return fewer, as the paper does.",
        "--refill/--no-refill",
    )
    pairing: str | None = option(
        "Method",
        "Pairs that a judged question separates: theorem (each accepted passage from each rejected one) or algorithm "
        "(a rejected passage from those accepted above it).",
        metavar="theorem|algorithm",
        rare=True,
    )
    similar: str | None = option(
        "Method",
        "A cross-encoder (duplicate questions or NLI; a folder or a name on the hub) that decides, besides the rules, "
        "whether two similar questions ask the same; 'rules': the rules alone (the default).",
        metavar="MODEL",
        rare=True,
    )
    show: str | None = option(
        "Output",
        "Show what separates a passage (its id) from others: which questions, and when.",
        "--show",
        metavar="PASSAGE",
    )
    undo: list[str] | None = option(
        "Output",
        "Undo a judged question (its id or text), a pair (ID,ID), or ALL; may be repeated.",
        metavar="QUERY|PAIR|ALL",
    )
    export: str | None = option(
        "Output",
        "Write the separated pairs and their witnesses to a file (.jsonl or .csv), or - for the screen.",
    )


@command("trim")
def trim_command(
    index: Annotated[
        str,
        typer.Argument(
            help="An index folder, its overlay (INDEX.trimmed), or a server's URL (with --out)."
        ),
    ],
    judging: JudgingOptions,
    looking: OverlayOptions,
    model: ModelOptions,
    limits: SpendingOptions,
    *,
    out: Annotated[
        Path | None, declared("Output", help="The overlay's folder, where it is not INDEX.trimmed.")
    ] = None,
    overwrite: Annotated[
        bool, declared("Output", "--overwrite", help="With --export: replace a file that is there.")
    ] = False,
    allow_host: AllowHost = None,
    prices: PricesFile = None,
) -> None:
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
    State.goes_on = judging.questions is not None  # before the imports: these take a second
    settings = given_values(
        looking, "threshold", "min_similarity", "one_way", "refill", "pairing", "similar"
    )
    actions = [*given(judging, "questions"), *given(looking, "show", "undo", "export")]
    if len(actions) > 1 or (settings and actions and not State.goes_on):
        other = actions[1] if len(actions) > 1 else given(looking, *settings)[0]
        raise BadArgument(
            f"{actions[0]} and {other} are two things: give one of them, then the other"
        )
    needless = [*given(judging), *given(model), *given(limits), *(["--prices"] if prices else [])]
    if needless and not State.goes_on:
        raise BadArgument(f"{needless[0]} is for judging: add --questions FILE, or leave it out")
    if judging.dry_run and settings:
        raise BadArgument(
            f"--dry-run changes nothing, and {given(looking)[0]} would be kept: leave one of them out"
        )
    if overwrite and looking.export is None:
        raise BadArgument("--overwrite goes with --export FILE: add that, or leave it out")
    from blendfilter.text import counted
    from blendfilter.trimming.folder import TrimFolder
    from blendfilter.trimming.summary import STDOUT, export, state_text

    hosts, place = allow_host or (), _place(index, out)
    if judging.questions is not None:
        _judge(index, place, judging, settings, model, limits, prices, hosts)
        return
    folder = TrimFolder.read(place)
    if looking.show is not None:
        _show_passage(folder, index, looking.show, hosts)
    elif looking.undo:
        _take_back(folder, looking.undo)
    elif looking.export is not None:
        out_file = looking.export
        if out_file != STDOUT and Path(out_file).suffix.lower() not in (".jsonl", ".csv"):
            raise BadArgument(
                f"--export {out_file} is no kind of file: name one that ends in .jsonl or .csv, or - (the screen)"
            )
        witnesses = folder.state()
        count = export(
            witnesses,
            out_file,
            threshold=folder.threshold,
            one_way=folder.one_way,
            overwrite=overwrite,
        )
        if out_file != STDOUT:
            show(f"{out_file}: {counted(count, 'row')}, one for each witness of each separation")
    else:
        if settings:  # a trim that is at work takes them up next time
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


def _named_index(folder: TrimFolder, index: str, allow_hosts: Sequence[str]) -> Retriever:
    """The index that was named, or, where its overlay was, the one that this names."""
    from blendfilter.retrieval.indexes import open_index
    from blendfilter.trimming.folder import open_base

    if folder.place == Path(index):
        return open_base(folder.base, folder.place, allow_hosts=allow_hosts)
    return open_index(index, allow_hosts=allow_hosts)


# --- judging --------------------------------------------------------------------------------------------------------


def _judge(
    index: str,
    place: Path,
    judging: JudgingOptions,
    settings: dict[str, Any],
    model: ModelOptions,
    limits: SpendingOptions,
    prices: Path | None,
    allow_hosts: Sequence[str],
) -> None:
    from blendfilter.errors import check_count
    from blendfilter.run_context import RunContext
    from blendfilter.trimming.gathering import trim

    if judging.judge_lm is not None:
        if model.lm is not None:
            raise BadArgument(
                "--lm and --judge-lm name the same model, the one that judges: give one of them"
            )
        model = replace(model, lm=judging.judge_lm)
    check_count("threshold", settings.get("threshold", 1))
    bounds: dict[str, Any] = {
        "concurrency": judging.concurrency,
        "budget": limits.budget(),
        "max_retries": judging.max_retries,
    }
    judge, questions = _judge_of(judging)
    lm = connect(model, prices)
    RunContext(lm, **bounds)  # refuses bad limits before there is a folder
    searched, folder = _opened(index, place, judging.k, settings, allow_hosts)
    say_what_answers(model, judging.prompts, judge)
    with Bars() as bars:
        done = trim(
            searched,
            questions,
            judge,
            folder,
            lm=lm,
            reuse=not judging.no_reuse,
            dry_run=judging.dry_run,
            progress=bars,
            **bounds,
        )
    show(done.text().rstrip("\n"))
    if done.errors or done.too_silent:
        raise typer.Exit(1)


def _judge_of(judging: JudgingOptions) -> tuple[Judge, list[Question | str]]:
    """The judge, as a compiled program says where one is named, and the questions, of which no answer is looked at."""
    from blendfilter.asking import TaskWording
    from blendfilter.compiling.programs import load_program
    from blendfilter.filters.cdit import CDITFilter, choose_rules
    from blendfilter.tasks import TASKS, load
    from blendfilter.tasks.loading import read_questions

    data, task = str(judging.questions), TASKS["qa"]
    questions: Sequence[Question | str]
    if judging.task == "qa" and data not in ("sample", "hub"):
        questions = [*read_questions(data, limit=judging.limit)]
    else:
        questions = loaded = load(judging.task, data, limit=judging.limit)
        task = loaded.task
    templates, rules = prompts_in(judging.prompts), choose_rules(judging.rule or (), judging.rules)
    wording = (
        TaskWording.of(task.wording)
        .with_demos(judging.demos)
        .with_reply_tokens(judging.reply_tokens)
    )
    filter_ = CDITFilter(judging.mode, rules, wording=wording, prompts=templates)  # type: ignore[arg-type]
    if judging.program is not None:
        load_program(filter_, judging.program)
    say_unshown(judging.demos, filter_, "the judge")
    return filter_.judge, [*questions]


def _opened(
    index: str, place: Path, k: int | None, settings: dict[str, Any], allow_hosts: Sequence[str]
) -> tuple[Retriever, TrimFolder]:
    """The index and its overlay, with the settings that were given: a new one, or the one that is there."""
    from blendfilter.retrieval.indexes import open_index
    from blendfilter.trimming.folder import TrimFolder
    from blendfilter.trimming.witnesses import WitnessWriter

    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        searched = open_index(index, allow_hosts=allow_hosts)
        settings |= {} if k is None else {"k": k}
        return searched, TrimFolder.create(searched, place, **settings)
    folder = TrimFolder.read(place)
    searched = _named_index(folder, index, allow_hosts)
    folder.check(searched, k)
    if settings:
        with WitnessWriter(
            folder.witnesses
        ):  # where another one writes, or the file is damaged, the settings stay
            folder = folder.set(**settings)
    return searched, folder


# --- without a model ------------------------------------------------------------------------------------------------


def _show_passage(folder: TrimFolder, index: str, passage: str, allow_hosts: Sequence[str]) -> None:
    """What a passage is separated from, by whom and when; its text where the index is there."""
    from blendfilter.trimming.summary import found_again, passage_text

    witnesses = folder.state()
    texts: dict[str, Passage] = {}
    note = ""
    try:
        searched = _named_index(folder, index, allow_hosts)
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
