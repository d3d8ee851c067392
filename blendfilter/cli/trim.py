"""`blendfilter trim`: judge what an index finds, gather witnesses for its overlay; look into it, and take it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blendfilter.cli.app import State, command
from blendfilter.cli.console import Bars, show
from blendfilter.cli.making import connect, prompts_in, say_what_answers
from blendfilter.cli.options import (
    AllowHost,
    Limit,
    MaxRetries,
    ModelOptions,
    PricesFile,
    PromptsDir,
    RuleName,
    RulesFile,
    SpendingOptions,
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
    from blendfilter.trimming.witnesses import Witnesses, WitnessWriter

ALL = "ALL"
"""What `--undo` takes for everything."""
SETTINGS = ("--threshold", "--min-similarity", "--one-way", "--no-one-way")


@dataclass(frozen=True)
class JudgingOptions:
    """What is judged, and how."""

    questions: str | None = option(
        "Judge what the index finds for these: a question file (answers are not needed; .txt: one a line), "
        "'hub', or 'sample'."
    )
    task: str = option("The layout of the question file; qa is anyone's own JSON Lines.", default="qa")
    limit: Limit = None
    k: int | None = option("Passages judged of each question (10); an overlay keeps its own.", "--k", "-k")
    mode: str = option(
        "word: one word, True or False; components: what was compared, the reason, the verdict.", default="word"
    )
    rule: RuleName = None
    rules: RulesFile = None
    program: Path | None = option("A compiled judge (blendfilter compile cdit) of this mode.")
    prompts: PromptsDir = None
    no_reuse: bool = option(
        "Judge every question, near as it may be to one that is judged.", "--no-reuse", default=False
    )
    dry_run: bool = option(
        "Judge (the calls are kept), say what would be dropped, and trim nothing.", "--dry-run", default=False
    )
    concurrency: int = option("Model calls in flight.", default=16, min=1)
    max_retries: MaxRetries = None


@dataclass(frozen=True)
class OverlayOptions:
    """What is looked at or changed without a model."""

    threshold: int | None = option(
        "Witnesses that a pair needs before one of it is dropped, from 1 up (2); it is kept."
    )
    min_similarity: float | None = option(
        "How near a judged question must be for its verdicts to count; 1 is the same."
    )
    one_way: bool | None = option(
        "Count only witnesses that accepted the passage that stays, or, as the paper does, all of a pair's; "
        "it is kept.",
        "--one-way/--no-one-way",
    )
    show_passage: str | None = option(
        "What a passage (its id) is separated from, by whom and when.", "--show", metavar="PASSAGE"
    )
    undo: list[str] | None = option(
        "Take back a judged question (its id or its text), a pair (ID,ID), or ALL; may be given again.",
        metavar="QUERY|PAIR|ALL",
    )
    export: str | None = option(
        "Write the separations with their witnesses: a file (.jsonl or .csv), or - for the screen."
    )

    def settings(self) -> dict[str, Any]:
        """Those of the settings that an overlay keeps which were given."""
        return given_values(self, "threshold", "min_similarity", "one_way")

    def actions(self) -> list[str]:
        """The options that were given: what is done, then what is set."""
        names = {"--show-passage": "--show", "--one-way": "--one-way" if self.one_way else "--no-one-way"}
        options = [names.get(option, option) for option in given(self)]
        return sorted(options, key=lambda option: option in SETTINGS)


@command("trim")
def trim_command(
    index: Annotated[
        str, typer.Argument(help="An index folder, its overlay (INDEX.trimmed), or a server's URL (with --out).")
    ],
    judging: JudgingOptions,
    looking: OverlayOptions,
    model: ModelOptions,
    limits: SpendingOptions,
    *,
    out: Annotated[Path | None, typer.Option(help="The overlay's folder, where it is not INDEX.trimmed.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="With --export: replace a file that is there.")
    ] = False,
    allow_host: AllowHost = None,
    prices: PricesFile = None,
) -> None:
    """Trim an index: have a model judge what it finds, so that later searches drop what was rejected.

    Each question's passages are judged consistent with it or not; a question that accepts one passage and rejects
    another is a witness to their separation. From the threshold up, a search like such a question drops the rejected
    one. The index itself stays as it is: the overlay lies beside it, and everything in it can be taken back. The same
    command again goes on where it stopped. With nothing else given, it says how far an overlay is.

    Example: blendfilter trim indexes/wiki --questions train.jsonl --lm openai/gpt-4o-mini
    then: blendfilter search indexes/wiki.trimmed "Who turned on the radio?"
    and: blendfilter trim indexes/wiki --undo "Who turned on the radio?"
    """
    State.goes_on = judging.questions is not None  # before the imports: these take a second
    _check(judging, looking, [*given(model), *given(limits), *(["--prices"] if prices else [])])
    if overwrite and looking.export is None:
        raise BadArgument("--overwrite goes with --export FILE: add that, or leave it out")
    from blendfilter.trimming.folder import TrimFolder
    from blendfilter.trimming.summary import state_text
    from blendfilter.trimming.witnesses import Witnesses

    hosts = allow_host or ()
    if judging.questions is not None:
        _judge(index, out, judging, looking, model, limits, prices, hosts)
        return
    folder = TrimFolder.read(_place(index, out))
    if looking.show_passage is not None:
        _show_passage(folder, index, looking.show_passage, hosts)
    elif looking.undo:
        _take_back(folder, looking.undo)
    elif looking.export is not None:
        _export(folder, looking.export, overwrite=overwrite)
    else:
        if settings := looking.settings():  # a trim that is at work takes them up next time
            folder = folder.set(**settings)
        show(state_text(folder, Witnesses.read(folder.witnesses)).rstrip("\n"))


def _check(judging: JudgingOptions, looking: OverlayOptions, of_the_model: Sequence[str]) -> None:
    """Raise `BadArgument` for options that do not go together."""
    judges, options = judging.questions is not None, looking.actions()
    actions = [option for option in options if option not in SETTINGS]
    alone = [*(["--questions"] if judges else []), *actions]
    others = alone[1:] or [option for option in options if actions and option in SETTINGS]
    if others:
        raise BadArgument(f"{alone[0]} and {others[0]} are two things: give one of them, then the other")
    needless = [*given(judging), *of_the_model]
    if not judges and needless:
        raise BadArgument(f"{needless[0]} is for judging: add --questions FILE, or leave it out")
    if judges and judging.dry_run and options:
        raise BadArgument(f"--dry-run changes nothing, and {options[0]} would be kept: leave one of them out")


def _place(index: str, out: Path | None) -> Path:
    """The folder of the overlay that is meant, whether or not it is there. Raises: BadArgument."""
    from blendfilter.trimming.folder import default_place, is_trimmed

    if is_trimmed(index):
        if out is not None:
            raise BadArgument(f"{index} is an overlay itself: leave --out out, or name the index it is of")
        return Path(index)
    if out is None:
        return Path(default_place(index))
    if out.resolve() == Path(index).resolve():
        raise BadArgument(f"--out {out} is the index itself, which is never written to: name another folder")
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not is_trimmed(out)):
        raise BadArgument(f"--out {out} is {'a file' if out.is_file() else 'no overlay'}: name another folder")
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
    index: str, out: Path | None, judging: JudgingOptions, looking: OverlayOptions, model: ModelOptions,
    limits: SpendingOptions, prices: Path | None, allow_hosts: Sequence[str],
) -> None:  # fmt: skip
    from blendfilter.run_context import RunContext
    from blendfilter.trimming.gathering import trim
    from blendfilter.trimming.witnesses import check_threshold

    place = _place(index, out)
    if looking.threshold is not None:
        check_threshold(looking.threshold)
    budget = limits.budget()
    questions, wording = _questions(judging)
    judge = _judge_of(judging, wording)
    lm = connect(model, prices)
    bounds: dict[str, Any] = {
        "concurrency": judging.concurrency, "budget": budget, "max_retries": judging.max_retries,
    }  # fmt: skip
    RunContext(lm, **bounds)  # refuses bad limits before there is a folder, which would stay empty
    new = not place.exists() or (place.is_dir() and not any(place.iterdir()))
    searched, folder = (_create if new else _go_on)(index, place, judging, looking, allow_hosts)
    say_what_answers(model)
    with Bars() as bars, _none_empty(folder, new=new):
        done = trim(
            searched, questions, judge, folder, lm=lm, k=judging.k, reuse=not judging.no_reuse,
            dry_run=judging.dry_run, progress=bars, **bounds,
        )  # fmt: skip
    show(done.text().rstrip("\n"))
    if done.errors or done.too_silent:
        raise typer.Exit(1)


def _questions(judging: JudgingOptions) -> tuple[list[Question | str], str]:
    """The questions and their wording; in a user's own file the questions are enough, no answer is looked at."""
    from blendfilter.tasks import TASKS, load
    from blendfilter.tasks.loading import read_questions

    data = str(judging.questions)
    if judging.task == "qa" and data not in ("sample", "hub"):
        return [*read_questions(data, limit=judging.limit)], TASKS["qa"].wording
    questions = load(judging.task, data, limit=judging.limit)
    return [*questions], questions.task.wording


def _judge_of(judging: JudgingOptions, wording: str) -> Judge:
    """The judge, speaking as a compiled program says where one is named."""
    from blendfilter.asking import TaskWording
    from blendfilter.compiling.programs import load_program
    from blendfilter.filters.cdit import CDITFilter, choose_rules

    templates, rules = prompts_in(judging.prompts), choose_rules(judging.rule or (), judging.rules)
    filter_ = CDITFilter(judging.mode, rules, wording=TaskWording.of(wording), prompts=templates)  # type: ignore[arg-type]
    if judging.program is not None:
        load_program(filter_, judging.program)
    return filter_.judge


def _create(
    index: str, place: Path, judging: JudgingOptions, looking: OverlayOptions, allow_hosts: Sequence[str]
) -> tuple[Retriever, TrimFolder]:
    """The index, and a new overlay of it."""
    from blendfilter.retrieval.indexes import open_index
    from blendfilter.trimming.folder import TrimFolder
    from blendfilter.trimming.similar import similar_for

    searched = open_index(index, allow_hosts=allow_hosts)
    settings: dict[str, Any] = looking.settings() | ({} if judging.k is None else {"k": judging.k})
    return searched, TrimFolder.create(searched, place, similarity=similar_for(searched).name, **settings)


def _go_on(
    index: str, place: Path, judging: JudgingOptions, looking: OverlayOptions, allow_hosts: Sequence[str]
) -> tuple[Retriever, TrimFolder]:
    """The index, and the overlay of it that is there, with the settings that were given."""
    from blendfilter.trimming.folder import TrimFolder
    from blendfilter.trimming.gathering import check_base, check_k
    from blendfilter.trimming.witnesses import WitnessWriter

    folder = TrimFolder.read(place)
    searched = _named_index(folder, index, allow_hosts)
    check_base(searched, folder)
    check_k(folder, judging.k)
    if settings := looking.settings():
        with WitnessWriter(folder.witnesses):  # where another one writes, or the file is damaged, the settings stay
            folder = folder.set(**settings)
    return searched, folder


@contextmanager
def _none_empty(folder: TrimFolder, *, new: bool) -> Iterator[None]:
    """Remove a new folder in which nothing could be gathered."""
    try:
        yield
    except BaseException:
        if new:
            with suppress(BlendFilterError, OSError):  # the error to raise is what ended the work, not this
                folder.remove_empty()
        raise


# --- without a model ------------------------------------------------------------------------------------------------


def _show_passage(folder: TrimFolder, index: str, passage: str, allow_hosts: Sequence[str]) -> None:
    """What a passage is separated from, by whom and when."""
    from blendfilter.trimming.summary import passage_text, separations_of
    from blendfilter.trimming.witnesses import Witnesses

    witnesses = Witnesses.read(folder.witnesses)
    separations_of(witnesses, passage)  # an unknown id is an error before an index is opened, which may take a while
    texts, note = _found(folder, index, witnesses, passage, allow_hosts)
    show(passage_text(folder, witnesses, passage, texts, [note] if note else []).rstrip("\n"))


def _found(
    folder: TrimFolder, index: str, witnesses: Witnesses, passage: str, allow_hosts: Sequence[str]
) -> tuple[dict[str, Passage], str]:
    """The passages as the index finds them now, and a note where it does not find this one."""
    from blendfilter.trimming.folder import location_of
    from blendfilter.trimming.summary import found_again

    try:
        searched = _named_index(folder, index, allow_hosts)
    except BlendFilterError as error:
        return {}, f"the index is not there to look its text up ({error})"
    if searched.fingerprint != folder.base_fingerprint:
        return {}, (
            f"{location_of(searched) or index} is another index now ({searched.fingerprint}, these witnesses are of "
            f"{folder.base_fingerprint}): they are not applied to it, and the passage may be gone"
        )
    texts = found_again(searched, folder.k, witnesses, passage)
    return texts, "" if passage in texts else "the index does not find this passage any more: it is gone from it"


def _take_back(folder: TrimFolder, undo: list[str]) -> None:
    """Undo questions, pairs, or ALL; where one name is wrong, nothing is undone."""
    from blendfilter.trimming.summary import counted
    from blendfilter.trimming.witnesses import Witnesses, WitnessWriter

    with WitnessWriter(folder.witnesses) as writer:
        wanted = {_meant(writer.witnesses, name): name for name in undo}
        for meant, name in wanted.items():
            show(f"undone: {_taken_back(writer, name, meant)}")
    left = Witnesses.read(folder.witnesses)
    reached = sum(1 for _ in left.separated(folder.threshold, one_way=folder.one_way))
    show(
        f"left: {counted(len(left.judged), 'question')}, {counted(left.separations(), 'separation')}, "
        f"{reached:,} at the threshold of {folder.threshold}{'' if reached else ': it answers as the bare index does'}"
    )


def _meant(witnesses: Witnesses, name: str) -> str | tuple[str, str] | None:
    """The question (its id) or the pair that is meant, None for all of it. Raises: UnknownName, BadArgument."""
    from blendfilter.trimming.witnesses import pair_named, question_known

    if name == ALL:
        return None
    try:
        return question_known(witnesses, name)
    except UnknownName:
        if name.strip().upper() == ALL:
            return None
        if "," not in name:
            raise
    return pair_named(witnesses, name)


def _taken_back(writer: WitnessWriter, name: str, meant: str | tuple[str, str] | None) -> str:
    """Take one thing back, unless another one took it along; what it was, in words."""
    from blendfilter.trimming.summary import counted

    state = writer.witnesses
    if meant is None:
        return f"all of it, {counted(writer.undo_all(), 'question')}"
    if isinstance(meant, tuple):
        count = len(state.witnesses_of(*meant))
        if count:
            writer.undo_pair(*meant)
        return f"the separation of {meant[0]} and {meant[1]} ({counted(count, 'witness', 'witnesses')})"
    text = state.judged[meant].question if meant in state.judged else state.halves.get(meant, name)
    if meant in state.judged or meant in state.halves:
        writer.undo_question(meant)
    return f"question {meant}, {text!r}"


def _export(folder: TrimFolder, out: str, *, overwrite: bool) -> None:
    """Write the separations to a file, or to the screen."""
    from blendfilter.trimming.summary import STDOUT, counted, export
    from blendfilter.trimming.witnesses import Witnesses

    if out != STDOUT and Path(out).suffix.lower() not in (".jsonl", ".csv"):
        raise BadArgument(f"--export {out} is no kind of file: name one that ends in .jsonl or .csv, or - (the screen)")
    witnesses = Witnesses.read(folder.witnesses)
    count = export(witnesses, out, threshold=folder.threshold, one_way=folder.one_way, overwrite=overwrite)
    if out != STDOUT:
        show(f"{out}: {counted(count, 'row')}, one for each witness of each separation")
