"""`blendfilter trim`: judge what an index finds, gather witnesses for its overlay; look into it, and take it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blendfilter.cli.app import State, app
from blendfilter.cli.console import Bars, show
from blendfilter.cli.making import connect, say_what_answers
from blendfilter.cli.options import AllowHost, Limits, MaxRetries, PricesFile, PromptsDir, WhichModel, spread
from blendfilter.cli.overlays import export_to, named_index, show_passage, show_state, take_back
from blendfilter.errors import BadArgument, BlendFilterError

if TYPE_CHECKING:
    from blendfilter.filters.cdit.judge import Judge
    from blendfilter.records import Question
    from blendfilter.retrieval.base import Retriever
    from blendfilter.trimming.folder import TrimFolder


@dataclass(frozen=True)
class Judging:
    """What is judged, and how."""

    questions: Annotated[
        str | None,
        typer.Option(
            help="Judge what the index finds for these: a question file (answers are not needed; .txt: one a line), "
            "'hub', or 'sample'."
        ),
    ] = None
    task: Annotated[str, typer.Option(help="The layout of the question file; qa is anyone's own JSON Lines.")] = "qa"
    limit: Annotated[int | None, typer.Option(help="The first N questions.")] = None
    k: Annotated[
        int | None, typer.Option("--k", "-k", help="Passages judged of each question (10); an overlay keeps its own.")
    ] = None
    mode: Annotated[
        str, typer.Option(help="word: one word, True or False; components: what was compared, the reason, the verdict.")
    ] = "word"
    rule: Annotated[
        list[str] | None,
        typer.Option(help="phi1 (subject, predicate, object), phi2 (attributive, adverbial), or one of --rules; "
                     "several hold together (phi1)."),
    ] = None  # fmt: skip
    rules: Annotated[
        Path | None, typer.Option(help="Rules of your own: TOML, [[rule]] with name, components and sentence.")
    ] = None
    program: Annotated[Path | None, typer.Option(help="A compiled judge (blendfilter compile cdit) of this mode.")] = (
        None
    )
    prompts: PromptsDir = None
    no_reuse: Annotated[
        bool, typer.Option("--no-reuse", help="Judge every question, near as it may be to one that is judged.")
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Judge (the calls are kept), say what would be dropped, and trim nothing."),
    ] = False
    concurrency: Annotated[int, typer.Option(min=1, help="Model calls in flight.")] = 16
    max_retries: MaxRetries = None


@dataclass(frozen=True)
class Looking:
    """What is looked at or changed without a model."""

    threshold: Annotated[
        int | None,
        typer.Option(help="Witnesses that a pair needs before one of it is dropped, from 1 up (2); it is kept."),
    ] = None
    min_similarity: Annotated[
        float | None,
        typer.Option(help="How near a judged question must be for its verdicts to count; 1 is the same."),
    ] = None
    one_way: Annotated[
        bool | None,
        typer.Option(
            "--one-way/--no-one-way",
            help="Count only witnesses that accepted the passage that stays, or, as the paper does, all of a pair's; "
                 "it is kept.",
        ),
    ] = None  # fmt: skip
    show_passage: Annotated[
        str | None,
        typer.Option("--show", metavar="PASSAGE", help="What a passage (its id) is separated from, by whom and when."),
    ] = None
    undo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="QUERY|PAIR|ALL",
            help="Take back a judged question (its id or its text), a pair (ID,ID), or ALL; may be given again.",
        ),
    ] = None
    export: Annotated[
        str | None,
        typer.Option(help="Write the separations with their witnesses: a file (.jsonl or .csv), or - for the screen."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """What an overlay keeps; None for what was not given."""
        return {"threshold": self.threshold, "min_similarity": self.min_similarity, "one_way": self.one_way}

    def actions(self) -> dict[str, bool]:
        """What was asked for, by its option."""
        return {
            "--show": self.show_passage is not None, "--undo": bool(self.undo), "--export": self.export is not None,
            "--threshold": self.threshold is not None, "--min-similarity": self.min_similarity is not None,
            "--one-way": self.one_way is True, "--no-one-way": self.one_way is False,
        }  # fmt: skip


SETTINGS = ("--threshold", "--min-similarity", "--one-way", "--no-one-way")


@app.command(name="trim")
@spread
def trim_command(
    index: Annotated[
        str,
        typer.Argument(help="An index folder, its overlay (INDEX.trimmed), or a server's URL (with --out)."),
    ],
    judging: Judging,
    looking: Looking,
    model: WhichModel,
    limits: Limits,
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
    _check(judging, looking, model, limits, prices)
    if overwrite and looking.export is None:
        raise BadArgument("--overwrite goes with --export FILE: add that, or leave it out")
    if judging.questions is not None:
        _judge(index, out, judging, looking, model, limits, prices, allow_host or ())
        return
    folder = _there(index, out)
    if looking.show_passage is not None:
        show_passage(folder, index, looking.show_passage, allow_host or ())
    elif looking.undo:
        take_back(folder, looking.undo)
    elif looking.export is not None:
        export_to(folder, looking.export, overwrite=overwrite)
    else:
        folder = _set(folder, looking)
        show_state(folder)


def _check(judging: Judging, looking: Looking, model: WhichModel, limits: Limits, prices: Path | None) -> None:
    """What does not go together, in one line."""
    given = [name for name, told in looking.actions().items() if told]
    alone = [name for name in given if name not in SETTINGS]
    if judging.questions is not None:
        alone.insert(0, "--questions")
    others = alone[1:] or [name for name in given if name in SETTINGS and alone and alone[0] != "--questions"]
    if others:
        raise BadArgument(f"{alone[0]} and {others[0]} are two things: give one of them, then the other")
    if judging.questions is None:
        needless = [*_changed(judging), *_changed(model), *_changed(limits), *(["--prices"] if prices else [])]
        if needless:
            raise BadArgument(f"{needless[0]} is for judging: add --questions FILE, or leave it out")
    elif judging.dry_run and given:
        raise BadArgument(f"--dry-run changes nothing, and {given[0]} would be kept: leave one of them out")


def _changed(group: Any) -> list[str]:
    """The options of a group that were given."""
    told = [each.name for each in fields(group) if getattr(group, each.name) not in (each.default, [])]
    return ["-k" if name == "k" else f"--{name.replace('_', '-')}" for name in told if name != "questions"]


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


def _there(index: str, out: Path | None) -> TrimFolder:
    """The overlay that is there. Raises: MissingFile, BadData."""
    from blendfilter.trimming.folder import TrimFolder

    return TrimFolder.read(_place(index, out))


def _asked(judging: Judging) -> tuple[list[Question | str], str]:
    """What is judged for, and its wording. Of one's own file the questions are enough: no answer is looked at."""
    from blendfilter.tasks import TASKS, load
    from blendfilter.tasks.asked import read_asked

    data = str(judging.questions)
    if judging.task == "qa" and data not in ("sample", "hub"):
        return [*read_asked(data, limit=judging.limit)], TASKS["qa"].wording
    questions = load(judging.task, data, limit=judging.limit)
    return [*questions], questions.task.wording


def _judge(
    index: str, out: Path | None, judging: Judging, looking: Looking, model: WhichModel, limits: Limits,
    prices: Path | None, allow_hosts: Sequence[str],
) -> None:  # fmt: skip
    from blendfilter.lm.attempts import RetryBudget
    from blendfilter.lm.budget import check_priced
    from blendfilter.trimming.gathering import trim
    from blendfilter.trimming.lines import check_threshold

    place = _place(index, out)
    if looking.threshold is not None:
        check_threshold(looking.threshold)
    budget = limits.budget()
    questions, wording = _asked(judging)
    judge = _judge_of(judging, wording)
    lm = connect(model, prices)
    check_priced(budget, {lm.name: lm.terms.price})  # these two before a folder is made, which they would leave empty
    RetryBudget(judging.max_retries)
    new = not place.exists() or (place.is_dir() and not any(place.iterdir()))
    searched, folder = (_made if new else _gone_on)(index, place, judging, looking, allow_hosts)
    say_what_answers(model)
    with Bars() as bars, _none_empty(folder, new=new):
        done = trim(
            searched, questions, judge, folder, lm=lm, k=judging.k, reuse=not judging.no_reuse,
            concurrency=judging.concurrency, budget=budget, max_retries=judging.max_retries, dry_run=judging.dry_run,
            progress=bars,
        )  # fmt: skip
    show(done.text().rstrip("\n"))
    if done.errors or done.too_silent:
        raise typer.Exit(1)


def _made(
    index: str, place: Path, judging: Judging, looking: Looking, allow_hosts: Sequence[str]
) -> tuple[Retriever, TrimFolder]:
    """The index, and a new overlay of it."""
    from blendfilter.retrieval.indexes import open_index
    from blendfilter.trimming.folder import TrimFolder
    from blendfilter.trimming.similar import similar_for

    searched = open_index(index, allow_hosts=allow_hosts)
    asked = {"k": judging.k, **looking.settings()}
    settings: dict[str, Any] = {name: told for name, told in asked.items() if told is not None}
    return searched, TrimFolder.create(searched, place, similarity=similar_for(searched).name, **settings)


def _gone_on(
    index: str, place: Path, judging: Judging, looking: Looking, allow_hosts: Sequence[str]
) -> tuple[Retriever, TrimFolder]:
    """The index, and the overlay of it that is there, with the settings that were given."""
    from blendfilter.trimming.folder import TrimFolder
    from blendfilter.trimming.gathering import check_base, check_k
    from blendfilter.trimming.witnesses import Writer

    folder = TrimFolder.read(place)
    searched = named_index(folder, index, allow_hosts)
    check_base(searched, folder)
    check_k(folder, judging.k)
    if any(told is not None for told in looking.settings().values()):
        with Writer(folder.witnesses):  # where another one writes, or the file is damaged, the settings stay, too
            folder = _set(folder, looking)
    return searched, folder


@contextmanager
def _none_empty(folder: TrimFolder, *, new: bool) -> Iterator[None]:
    """A new folder in which nothing could be gathered (nobody answered) is not left behind."""
    try:
        yield
    except BaseException:
        if new:
            with suppress(BlendFilterError, OSError):  # what ended the work is to be told, not this
                folder.remove_empty()
        raise


def _judge_of(judging: Judging, wording: str) -> Judge:
    """The judge, speaking as a compiled program says where one is named."""
    from blendfilter.asking import Wording
    from blendfilter.compiling.programs import load_program
    from blendfilter.filters.cdit.filter import CDITFilter
    from blendfilter.filters.cdit.rules import choose_rules
    from blendfilter.prompting import Prompts

    templates = Prompts(judging.prompts) if judging.prompts else None
    rules = choose_rules(judging.rule or (), judging.rules)
    judging_filter = CDITFilter(judging.mode, rules, wording=Wording.of(wording), prompts=templates)  # type: ignore[arg-type]
    if judging.program is not None:
        load_program(judging_filter, judging.program)
    return judging_filter.judge


def _set(folder: TrimFolder, looking: Looking) -> TrimFolder:
    """The overlay with the settings that were given; one that judges meanwhile takes them up next time."""
    told = looking.settings()
    return folder if set(told.values()) == {None} else folder.set(**told)
