"""`blendfilter silver`: what an oracle chooses of every question's passages, as a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from blendfilter.cli.app import State, command
from blendfilter.cli.console import Bars, say, show
from blendfilter.cli.making import DEFAULT_K, retriever
from blendfilter.cli.options import AnySources, DemosFile, InOutput, K, Limit, Task
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.settings import Option, Rare, Settings, Weights
from blendfilter.table import Table

if TYPE_CHECKING:
    from blendfilter.asking import TaskWording
    from blendfilter.lm.scoring.kept import KeptScorer
    from blendfilter.oracles.bider import Synthesis
    from blendfilter.oracles.measures import Measure
    from blendfilter.oracles.silver_rows import Summary, SynthesisSummary

MUCH = 0.8
"""Where more than this share of the contexts is empty, a line says so."""
STAGE_NAMES = {
    "full": "FULL", "extracted": "1 extracted", "refined": "2 refined", "cleaned": "3 cleaned",
    "by_target": "by the answer alone",
}  # fmt: skip
STOPS = {
    "supported": "supported", "no gain": "no gain", "all taken": "no nugget left",
    "fact too long": "question and answer too long", "no nuggets": "no sentence at all",
    "no answer": "no answer to look for",
}  # fmt: skip
FILCO = ("strinc", "lexical", "cxmi")
SCORERS = "local (SmolLM2), a .gguf file, hf/NAME, or any name with --api-base"


class ScorerOptions(Weights, panel="Model"):
    """The model that CXMI asks, and BIDER's cleaning."""

    lm: Annotated[
        str | None, Option(help=f"cxmi, bider: the model that scores: {SCORERS}.")
    ] = None
    demos: DemosFile = None


class ThresholdOptions(Settings, panel="Method", of=("bider",)):
    """BIDER's thresholds."""

    nuggets: int | None = None
    """bider: sentences that are extracted, K (7)."""
    lambda_max: Rare[float | None] = None
    """bider: refinement ends with more support than this (0.5)."""
    lambda_min: Rare[float | None] = None
    """bider: refinement ends with less gain in support than this (0.01)."""
    lambda_min_from: Rare[int | None] = None
    """bider: the round from which --lambda-min counts: 2 (between two rounds), or 1 (the first nugget's too)."""
    lambda_lm: Rare[float | None] = None
    """bider: cleaning drops a sentence with less of the effect than this (0.05)."""


class SynthesisOptions(ThresholdOptions, panel="Model", of=("bider",)):
    """BIDER's other models and thresholds."""

    encoder: str | None = None
    """bider: the encoder of sentences, a folder or a hub name; E5 reads its own prefixes."""
    nli: str | None = None
    """bider: the entailment model, a folder or a hub name (google/t5_xxl_true_nli_mixture)."""
    query_prefix: Rare[str | None] = None
    """bider: stands before question and answer for the encoder."""
    passage_prefix: Rare[str | None] = None
    """bider: stands before a sentence for the encoder."""


class SilverOptions(AnySources, ScorerOptions, SynthesisOptions, panel="Data"):
    """The settings of `blendfilter silver`."""

    task: Task
    data: str
    """A question file with answers; 'hub' (Hugging Face), or 'sample', the package's own."""
    out: InOutput[Path]
    """The file to write, JSON Lines; the same command again goes on where it stopped."""
    measure: str | None = None
    """strinc (the first sentence with the answer in it), lexical (the most words in common), cxmi (the one that
    makes the answer likeliest for a model, --lm) or bider (BIDER's synthesis, by --encoder, --nli and --lm).
    Without it: the task's own, as in FilCo's paper."""
    k: K = DEFAULT_K
    limit: Limit = None
    threshold: Annotated[float | None, Option(panel="Method", of=FILCO)] = None
    """Choose only sentences that score above this (strinc 0, lexical 0.5, cxmi 0)."""
    num_sentences: Annotated[int, Option(panel="Method", rare=True, of=FILCO)] = 1
    """Sentences chosen of all passages together, at most."""
    batch: Rare[int] = 32
    """Questions that are scored together."""
    allow_empty_answers: Rare[bool] = False
    """Choose nothing where a question's answers are articles and punctuation alone; else it is refused."""
    tokenizer: Rare[str | None] = None
    """Whose tokens the summary counts: words, or one of tiktoken's (cl100k_base)."""

    def check(self, chosen: str) -> None:
        """Raise `BadArgument` or `UnknownName` for options that do not go with the measure."""
        from blendfilter.oracles.bider import MEASURE
        from blendfilter.oracles.measures import MEASURES

        if chosen not in (*MEASURES, MEASURE):
            raise UnknownName.of("measure", chosen, (*MEASURES, MEASURE))
        self.check_given(chosen)
        if chosen not in ("cxmi", MEASURE) and (needless := self.given_options(ScorerOptions)):
            raise BadArgument(
                f"{chosen} asks no model: leave {needless[0]} out, or take --measure cxmi"
            )


@command()
def silver(options: SilverOptions) -> None:
    """Choose of every question's passages the sentences that hold the answer, by an oracle that knows it.

    Without --corpus, --index or --retrieved these are the paragraphs that came with the question (of the sample: its
    corpus). Filters are compiled from the file, and measured against it as an upper bound; a table sums it up.

    Example: blendfilter silver hotpotqa --data hotpot_dev_distractor_v1.json --measure strinc --out silver.jsonl
    """
    State.goes_on = (
        True  # before the imports: these take a second, in which one may stop the command
    )
    from blendfilter.asking import TaskWording
    from blendfilter.lm.tokenisers import tokeniser
    from blendfilter.oracles.bider import MEASURE, Synthesis
    from blendfilter.oracles.measures import measure_for
    from blendfilter.oracles.oracle import Oracle
    from blendfilter.oracles.silver_making import Places, labelled, make_silver
    from blendfilter.tasks import TASKS, load

    out, task, places = options.out, options.task, Places.of(options.out)
    counting = tokeniser(options.tokenizer)
    if task not in TASKS:
        raise UnknownName.of("task", task, TASKS)
    chosen: str = options.measure or measure_for(task)
    options.check(chosen)
    wording = None
    if options.demos is not None:
        wording = TaskWording.of(TASKS[task].wording).with_demos(options.demos)
    scoring = _scorer(options, chosen) if chosen in ("cxmi", MEASURE) else None
    questions = load(task, options.data, limit=options.limit)  # before models are opened
    labelled(questions, chosen)
    oracle: Oracle | Synthesis
    if scoring is not None and chosen == MEASURE:
        oracle = _synthesis(options, scoring, wording)
    else:
        oracle = Oracle(
            cast("Measure", chosen),
            task=task,
            **options.given("threshold", "num_sentences"),
            scorer=scoring,
            wording=wording,
        )
    if options.measure is None:
        say(f"no --measure: {chosen}, which is the one for {task}")
    searched = retriever(options, questions, k=options.k, sample=options.data == "sample")
    finished = places.out.exists()
    scorers: Sequence[KeptScorer] = () if scoring is None else (scoring,)
    if isinstance(oracle, Synthesis):
        scorers = oracle.scorers
    with _journaled(scorers, places.journal), Bars() as bars:
        summary = make_silver(
            questions,
            oracle,
            out,
            retriever=searched,
            k=options.k,
            batch=options.batch,
            allow_empty_answers=options.allow_empty_answers,
            tokeniser=counting,
            progress=bars,
        )
    if finished:
        say(f"{out} was finished before: nothing was asked")
    say_left_out(chosen, summary.left_out, summary.n)
    _show(summary)
    show(f"silver: {out}, chosen by {chosen}")
    if summary.empty > MUCH:
        say(
            f"{chosen} chose nothing for {summary.empty:.0%} of the questions: SILVER is no upper bound here, and a "
            "filter learns from it to keep nothing; take another measure, a lower threshold or other passages"
        )


def say_left_out(measure: str, left_out: int, n: int) -> None:
    """Say of how many questions a measure can say nothing."""
    if left_out and measure == "bider":
        say(
            f"{left_out} of {left_out + n} questions are left out: their answers say too little (a label, a yes or no; "
            "all of fever and hotpotqa), and they bring no annotated evidence to stand in, or only a part of it"
        )
    elif left_out:
        say(
            f"{left_out} of {left_out + n} questions are left out: {measure} cannot label an answer of yes or no, "
            "which no passage says (lexical and cxmi can)"
        )


def _show(summary: Summary) -> None:
    rows = []
    for name, group in summary.groups.items():
        for context in ("full", "psg", "silver"):
            *shares, tokens = astuple(getattr(group, context))
            rows.append(
                [
                    f"{name} ({group.n:,})" if context == "full" else "",
                    context.upper(),
                    *(f"{100 * share:.1f}" for share in shares),
                    f"{tokens:,.1f}",
                    f"{100 * tokens / group.full.tokens:.0f} %" if group.full.tokens else "-",
                ]
            )
    figures = ["empty", "precision", "not empty", "by characters", "tokens", "of FULL"]
    show(Table(["questions", "context", *figures], rows, left=2))
    if summary.synthesis is not None:
        _show_synthesis(summary.synthesis, summary.n)
    if summary.positive is not None:
        known = summary.n - summary.unknown
        show(
            f"positive: {summary.positive:.1%} of {known:,} questions, where the passages support the output"
        )
    for what, count in (
        (
            "questions not known to be positive or negative, for want of gold titles",
            summary.unknown,
        ),
        ("questions without any passage, their contexts empty", summary.no_passages),
        (
            "sentences without a score, too long for the model's context, never chosen",
            summary.unscored,
        ),
    ):
        if count:
            show(f"{what}: {count:,}")
    show(
        "precision: words of the context that are the output's, in %; an empty context has 0",
        "by characters: the same of characters, as the paper's released code counts",
        f"tokens: question and context, mean; {summary.tokeniser}",
        "PSG and SILVER read the answer: upper bounds",
    )


def _show_synthesis(found: SynthesisSummary, n: int) -> None:
    """What each step of BIDER's synthesis left."""
    full = found.stages["full"]
    rows = [
        [
            STAGE_NAMES[name],
            f"{stage.nuggets:.1f}",
            f"{stage.tokens:.1f}",
            f"{100 * stage.tokens / full.tokens:.0f} %" if full.tokens else "-",
            f"{100 * stage.holds:.1f} %",
            f"{100 * stage.words:.1f} %",
            f"{stage.words_per_token / full.words_per_token:.2f}"
            if full.words_per_token
            else "-",
        ]
        for name, stage in found.stages.items()
    ]
    figures = ["sentences", "tokens", "of FULL", "holds the answer", "answer's words"]
    show(Table(["BIDER's synthesis", *figures, "per token, x FULL"], rows))
    stops = ", ".join(f"{STOPS[name]} {count:,}" for name, count in found.stops.items())
    show(
        f"refinement of {n:,} questions ended: {stops}; mean support in the end {found.support:.2f}"
    )
    for what, count in (
        ("questions with annotated evidence in place of the answer", found.with_evidence),
        (
            "questions with a pool that was too long for the entailment model, which read its beginning",
            found.cut,
        ),
        ("nuggets too long for the answerer's context, dropped", found.unscored),
    ):
        if count:
            show(f"{what}: {count:,}")


def _synthesis(
    options: SilverOptions, scoring: KeptScorer, wording: TaskWording | None
) -> Synthesis:
    """BIDER's synthesis by the models that are named."""
    from blendfilter.lm.scoring import scorer
    from blendfilter.oracles.bider import Synthesis, opened

    if options.encoder is None:
        raise BadArgument(
            "bider asks three models: name --encoder (an encoder, such as intfloat/e5-base-v2)"
        )
    if options.nli is None:
        raise BadArgument(
            "bider asks three models: name --nli (an entailment model, such as google/t5_xxl_true_nli_mixture)"
        )
    # its labels are read, and it is refused, before an encoder is loaded
    nli = scorer("nli", options.nli)
    encoder = opened(options.encoder, options.query_prefix, options.passage_prefix)
    return Synthesis(
        options.task,
        encoder=encoder,
        nli=nli,
        scorer=scoring,
        wording=wording,
        **options.given(ThresholdOptions),
    )


def _scorer(options: SilverOptions, measure: str) -> KeptScorer:
    """The model that scores. Raises: BadArgument, naming what can, and what asks none."""
    from blendfilter.lm.scoring import scorer

    if options.lm is None:
        raise BadArgument(
            f"{measure} asks a model how likely it finds the answer: name it (--lm: {SCORERS}); --measure strinc and "
            "lexical ask none"
        )
    return scorer(options.lm, **options.given(Weights))


@contextmanager
def _journaled(scorers: Sequence[KeptScorer], folder: Path) -> Iterator[None]:
    """Inside the block, scores are kept in `folder`; where none came about, nothing of it is left."""
    from blendfilter.journal import Journal

    if not scorers:
        yield
        return
    with Journal(folder) as journal:
        for each in scorers:
            each.journal = journal
        try:
            yield
        finally:
            if not len(journal):
                journal.path.unlink()
                with suppress(OSError):  # something else lies in it
                    folder.rmdir()
