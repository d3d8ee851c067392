"""Where the examples of `blendfilter compile` come from: a silver file or one made of questions, or passages that are
gold and others; and their split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from blendfilter.cli.console import Bars, say
from blendfilter.cli.making import DEFAULT_K, retriever
from blendfilter.cli.options import AllowHost, Corpus, Index, KOfMethod, Retrieved, RuleName, RulesFile
from blendfilter.errors import BadArgument

if TYPE_CHECKING:
    import dspy

    from blendfilter.compiling.splitting import Split
    from blendfilter.filters.cdit.judge import Mode
    from blendfilter.filters.cdit.rules import Rule
    from blendfilter.oracles.measures import Measure


@dataclass(frozen=True)
class Judging:
    """How CDIT's judge is asked, and of which passages it learns."""

    mode: Annotated[
        str | None,
        typer.Option(help="cdit: word (one word, True or False; the default) or components (what was compared too)."),
    ] = None
    rule: RuleName = None
    rules: RulesFile = None
    negatives: Annotated[
        int | None,
        typer.Option(min=1, help="cdit: passages of a question that are not gold (1); gold ones are as many at most."),
    ] = None

    def given(self) -> list[str]:
        """The options that were given."""
        told = {"mode": self.mode, "rule": self.rule, "rules": self.rules, "negatives": self.negatives}
        return [f"--{name}" for name, value in told.items() if value not in (None, [])]

    def mode_of(self, what: str, own: Mode) -> Mode:
        """The mode of the filter called `what`, whose name says `own`. Raises: BadArgument where the option differs."""
        if what != "cdit" and self.mode not in (None, own):
            raise BadArgument(f"{what} is of the mode {own}, --mode says {self.mode}: leave it, or compile cdit")
        return cast("Mode", self.mode or own)  # the judge itself refuses one that it does not know

    def chosen(self) -> tuple[Rule, ...]:
        """The rules. Raises: UnknownName, BadArgument, BadData."""
        from blendfilter.filters.cdit.rules import choose_rules

        return choose_rules(self.rule or (), self.rules)


@dataclass(frozen=True)
class Source:
    """Where the examples come from."""

    data: Annotated[
        str | None, typer.Option(help="A question file with answers; 'hub' (Hugging Face), or 'sample'.")
    ] = None
    silver: Annotated[
        Path | None,
        typer.Option(help="filco: a file that 'blendfilter silver' made; without it, one is made in the run's folder."),
    ] = None
    valid_data: Annotated[
        Path | None,
        typer.Option(help="A file of the same kind whose questions are held back, in place of a part of the first."),
    ] = None
    measure: Annotated[
        str | None,
        typer.Option(help="filco: the oracle, strinc or lexical (cxmi: with --silver). Without it: the task's own."),
    ] = None
    corpus: Corpus = None
    index: Index = None
    allow_host: AllowHost = None
    retrieved: Retrieved = None
    k: KOfMethod = None
    limit: Annotated[int | None, typer.Option(help="The first N questions.")] = None
    allow_empty_answers: Annotated[
        bool,
        typer.Option(
            "--allow-empty-answers",
            help="filco: choose nothing where a question's answers are articles and punctuation alone.",
        ),
    ] = False
    train: Annotated[int, typer.Option(help="Questions that are compiled on.")] = 40
    valid: Annotated[int, typer.Option(help="Questions held back for the scores before and after.")] = 20
    seed: Annotated[int, typer.Option(help="Of the split and of every random choice.")] = 0

    def of_questions(self) -> list[str]:
        """The options that were given and say of which questions and passages a silver file is made."""
        told = {name: getattr(self, name) for name in ("data", "corpus", "index", "retrieved", "k", "limit")}
        given = ["-k" if name == "k" else f"--{name}" for name, value in told.items() if value not in (None, [])]
        return [*given, *["--allow-empty-answers"] * self.allow_empty_answers]


def measure_of(silver: Path, task: str, measure: str | None) -> str:
    """What chose in a silver file: as its recipe says, else as was asked. Raises: BadArgument where they differ."""
    from blendfilter.oracles.silver_making import Places

    oracle = _settings_of(silver).get("oracle", {})
    for name, asked in (("task", task), ("measure", measure)):
        if asked is not None and asked != (known := oracle.get(name, asked)):
            raise BadArgument(
                f"{silver} was made with {name} {known}, not {asked}: give --{name} {known}, or another file"
            )
    chosen = measure or str(oracle.get("measure", ""))
    if not chosen and silver.is_file():
        raise BadArgument(
            f"nothing says which measure chose in {silver} ({Places.of(silver).recipe.name} is missing): name it "
            "(--measure), or put the recipe beside it"
        )
    return chosen


def of_sample(source: Source) -> bool:
    """Whether the examples are the sample world's."""
    told = {} if source.silver is None else _settings_of(source.silver).get("data", {})
    return "sample" in (source.data, told.get("source"))


def _settings_of(silver: Path) -> dict[str, Any]:
    """What the recipe of a silver file says of how it was made; nothing where it has none."""
    from blendfilter.oracles.silver_making import Places, read_recipe

    places = Places.of(silver)
    return dict(read_recipe(places).get("settings", {})) if places.recipe.is_file() else {}


def silver_file(task: str, source: Source, measure: Measure, out: Path, bars: Bars) -> Path:
    """A silver file in the run's folder."""
    from blendfilter.oracles.oracle import Oracle
    from blendfilter.oracles.silver_making import make_silver
    from blendfilter.tasks import load

    if measure == "cxmi":
        of_task = "" if source.measure else f", the measure of {task},"
        raise BadArgument(
            f"cxmi{of_task} asks a model that can score: make the file first (blendfilter silver {task} --measure cxmi "
            "--lm NAME --out silver.jsonl) and give it as --silver, or take --measure strinc or lexical"
        )
    questions = load(task, source.data, limit=source.limit)
    out.parent.mkdir(parents=True, exist_ok=True)
    oracle = Oracle(measure, task=task)
    searched = retriever(corpus_of(source), source.index, questions, source.retrieved, allow_host=source.allow_host)
    make_silver(
        questions, oracle, out, retriever=searched, k=source.k or DEFAULT_K,
        allow_empty_answers=source.allow_empty_answers, progress=bars,
    )  # fmt: skip
    return out


def consistent_pairs(task: str, source: Source, judging: Judging) -> Split:
    """Questions with passages that are gold and others, split by question."""
    from blendfilter.compiling.consistency import consistency_examples, pairs_of
    from blendfilter.tasks import load

    def examples(data: str | Path | None, limit: int | None = None) -> list[dspy.Example]:
        questions = load(task, data, limit=limit)
        searched = retriever(corpus_of(source), source.index, questions, source.retrieved, allow_host=source.allow_host)
        made = consistency_examples(
            questions, rules=judging.chosen(), retriever=searched, k=source.k or DEFAULT_K,
            negatives=judging.negatives or 1, seed=source.seed,
        )  # fmt: skip
        if len(made) < len(questions):
            say(
                f"{len(questions) - len(made)} of {len(questions)} questions are left out: among what is found for "
                "them there is no gold passage, or no other"
            )
        return made

    return pairs_of(split_of(source, examples(source.data, source.limit), examples))


def corpus_of(source: Source) -> str | None:
    """The corpus; of the sample's questions, the sample world."""
    unnamed = source.corpus is None and not source.index and source.retrieved is None
    return "sample" if unnamed and source.data == "sample" else source.corpus


def split_of(source: Source, examples: list[dspy.Example], read: Callable[[Path], list[dspy.Example]]) -> Split:
    """What is compiled on and what is held back; `read` makes examples of a file."""
    from blendfilter.compiling.splitting import Split, drawn, split

    if source.valid_data is None:
        return split(examples, source.train, source.valid, source.seed)
    held_back = drawn(read(source.valid_data), source.valid, source.seed, "valid")
    return Split(drawn(examples, source.train, source.seed, "train"), held_back)
