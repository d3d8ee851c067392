"""What can be wrong with a method and its questions, looked at before any call is paid for."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Set
from difflib import get_close_matches
from itertools import chain
from typing import Any

import dspy

from blendfilter.asking import kind_of_model
from blendfilter.compiling.programs import ProgramRecipe, recipes_in
from blendfilter.errors import BadArgument, EmptyData, Leak
from blendfilter.evaluation.run_settings import (
    asked_by,
    parameters_of,
    retrievers_of,
    shipped_in,
)
from blendfilter.filters.written import GENERATOR, WrittenFilter, recipe_in, recipe_of_answerer
from blendfilter.lm.checkpoints import Checkpoint, trained_on
from blendfilter.lm.model import ConnectedLM
from blendfilter.modules.base import Method
from blendfilter.prompting import questions_of
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.stored import Stored
from blendfilter.run_context import connected_lms
from blendfilter.shipped import ShippedProgram, shipped_path
from blendfilter.tasks.base import Questions
from blendfilter.text import folded, normalize_answer, question_digest

LEAVE_OUT = "leave them out (leave_out_compiled=), or ask others (data=)"
"""The next move of `eval` where questions are known to a program or a model."""


def check_leak(
    method: dspy.Module,
    questions: Questions,
    models: Iterable[ConnectedLM] = (),
    move: str = LEAVE_OUT,
) -> None:
    """Raise `Leak` for a question that is a demonstration, or that the method's program or one of the models knows.

    `move` is what the caller's user can do about the second.
    """
    for what, known in learned(method, models):
        for question in questions if known else ():
            if question_digest(question.question) in known:
                raise Leak(
                    f"question '{question.id}' ({question.question!r}) is one of those that {what}: {move}"
                )
    demonstrated = {
        normalize_answer(question): name
        for name, predictor in parameters_of(method).items()
        if isinstance(predictor, dspy.Predict)
        for question in questions_of(predictor.demos)
    }
    for question in questions:
        if (name := demonstrated.get(normalize_answer(question.question))) is not None:
            raise Leak(
                f"question '{question.id}' ({question.question!r}) is also a demonstration of '{name}': "
                "take it out of the questions, or give the program other demonstrations"
            )


def learned(
    method: dspy.Module, models: Iterable[ConnectedLM]
) -> Iterator[tuple[str, Set[str]]]:
    """What was compiled or trained here, in words, and digests of the questions that it was made of.

    The method's programs, `models`, the method's own models and those of its filters that a server answers for; what an
    adapter stands on counts.
    """
    # what it was compiled on, and what chose among its candidates
    for recipe in recipes_in(method):
        yield f"the program of {recipe.module} was compiled on", set(recipe.trained_on)
    models = list(models)
    for name in shipped_in(method, models) if models else ():
        known = ShippedProgram.at(shipped_path(name)).recipe["trained_on"]
        yield f"the program {name}, which ships with the package, was compiled on", set(known)
    for lm in (*models, *connected_lms(method).values()):
        checkpoint = getattr(lm.inner, "checkpoint", None)
        if isinstance(checkpoint, Checkpoint):
            yield f"{lm.name} was trained on", trained_on(checkpoint)
    for _, part in method.named_sub_modules(WrittenFilter):
        if part.folder is not None and part.folder.is_dir():
            yield f"{part.folder.name} was trained on", trained_on(part.folder)


def other_kinds(method: dspy.Module, lm: ConnectedLM) -> Iterator[str]:
    """A line for each program in the method that was compiled for another kind of model than the one that it asks."""
    for _, part in method.named_sub_modules():
        recipe = getattr(part, "compiled_by", None)
        if not isinstance(recipe, ProgramRecipe) or not recipe.kind:
            continue
        own = next((predictor.lm for predictor in part.predictors()), None) or lm
        if (kind := kind_of_model(own)) != recipe.kind:
            yield (
                f"the program of {recipe.module} was compiled for a {recipe.kind} model ({recipe.lm}), and {own.model} "
                f"is a {kind} one: compile another, or leave it out"
            )


def check_reader(method: dspy.Module, lm: ConnectedLM) -> None:
    """Refuse a model that was trained to filter as the one that answers; warn of one that training did not mean.

    That is a generator (FilCo's M_gen) that is asked otherwise than it was trained, or a reader that a refiner of the
    method was not aligned with. A model without a recipe is taken as it is.

    Raises: BadArgument; BadData: its recipe cannot be read.
    """
    for line in other_kinds(method, lm):
        warnings.warn(line, stacklevel=1)
    if not isinstance(method, Method):
        return
    for line in other_readers(method, lm):
        warnings.warn(line, stacklevel=1)
    recipe = recipe_of_answerer(lm)
    asks = [ask for ask in asked_by(method).values() if ask.template.name == "direct"]
    digests = [ask.prompt_digest for ask in asks if "knowledge" in ask.signature.input_fields]
    if recipe.get("part") == GENERATOR and recipe.get("prompt") not in digests:
        warnings.warn(
            f"{lm.name} was trained as FilCo's generator, and is asked with another prompt here: "
            "method='direct-retrieval' demos='none' asks as it was trained, with its task and templates",
            stacklevel=1,  # from wherever it is called: one line
        )


def other_readers(method: dspy.Module, lm: ConnectedLM) -> Iterator[str]:
    """A line for each refiner of the method that was aligned with another reader than `lm`.

    Readers are the same by the last part of their names and by endpoint, wherever they are served.
    """
    for _, part in method.named_sub_modules(WrittenFilter):
        aligned = recipe_in(part.folder).get("reader") if part.folder is not None else None
        if isinstance(aligned, dict):
            own = _reader(aligned["name"], aligned.get("endpoint"))
            if (here := _reader(lm.name, lm.identity.get("endpoint"))) != own:
                yield (
                    f"another reader: {part.folder} was aligned with {own}, and {here} reads what it writes: align it "
                    "with this reader (train bider --align --reader), or answer with that one"
                )


def _reader(name: str, endpoint: str | None) -> str:
    short = name.partition("?")[0].rpartition("/")[2]
    return short + f" ({endpoint})" * (endpoint not in (None, "chat"))


def not_compiled_on(
    method: dspy.Module, questions: Questions, models: Iterable[ConnectedLM] = ()
) -> Questions:
    """The questions that no program of the method was compiled on, and none of its models and `models` trained on.

    Raises:
        EmptyData: none is left. BadArgument: nothing here was compiled or trained.
    """
    trained = frozenset[str]().union(*(known for _, known in learned(method, models)))
    if not trained:
        raise BadArgument(
            "leave_out_compiled= goes with a compiled program or a trained model: add program=FILE, or leave it out"
        )
    left = tuple(
        question for question in questions if question_digest(question.question) not in trained
    )
    if not left:
        raise EmptyData(
            f"the program or model was made of all {len(questions)} questions of {questions.source}: give others "
            "(data=), or make it of fewer (train=, valid=)"
        )
    return Questions(left, questions.task, questions.source)


def check_prompts(method: dspy.Module) -> None:
    """Render every template once with made-up values. Raises: BadData for one that cannot be rendered."""
    made_up: Mapping[Any, Any] = {list[str]: ["? | ?"], bool: False}
    for predictor in asked_by(method).values():
        fields = predictor.signature.input_fields
        predictor.render(
            **{name: made_up.get(field.annotation, "?") for name, field in fields.items()}
        )


MOST_TITLES = 20_000
"""Passages of the largest indexes whose titles are looked at: a larger one is no collection of one's own."""
_MOST_PAIRS = 50_000
"""Gold titles times other titles, up to which misspelt ones are looked for."""


def check_gold_titles(method: dspy.Module, questions: Questions) -> None:
    """Warn once of gold titles that would count as never retrieved, because no passage of the method's index has them.

    A corpus that is only a part of what the questions were made from may lack some. So it warns where a title of the
    index is nearly the same (in case, spacing, punctuation, a letter), or where the index has none of them. Only a
    local index of `MOST_TITLES` passages at the most is looked at.
    """
    gold = dict.fromkeys(
        folded(title) for question in questions for title in question.gold_titles
    )
    retrievers = retrievers_of(method)
    stored = [part for index in retrievers for part in _holding(index)]
    if (
        not gold
        or not stored
        or None in stored
        or sum(map(len, filter(None, stored))) > MOST_TITLES
    ):
        return
    known = dict.fromkeys(
        folded(passage.title) for index in filter(None, stored) for passage in index.passages
    )
    missing = [title for title in gold if title not in known]
    letters = {_letters(title): title for title in known}
    near = [
        (title, letters[_letters(title)]) for title in missing if _letters(title) in letters
    ]
    if len(missing) * len(known) <= _MOST_PAIRS:
        near += [
            (title, other)
            for title in missing
            for other in get_close_matches(title, known, n=1, cutoff=0.85)
        ]
    if near:
        title, other = near[0]
        example = f"{title!r}: did you mean {other!r}?"
    elif missing and len(missing) == len(gold):
        example = (
            f"{missing[0]!r}, where the index has {next(iter(known))!r}"
            if any(known)
            else "it has no titles"
        )
    else:
        return
    counts = f"{len(missing)} of {len(gold)} gold titles are the title of no passage"
    # wherever it is called
    warnings.warn(f"{counts}, so they count as never retrieved; {example}", stacklevel=1)


def _letters(title: str) -> str:
    """A title without case, spacing and punctuation."""
    return "".join(letter for letter in title.casefold() if letter.isalnum())


def _holding(index: Retriever) -> Iterator[Stored | None]:
    """What holds the passages of an index, its parts included; None for a part that is elsewhere."""
    if isinstance(index, Stored):
        yield index
        return
    values = [
        each
        for value in vars(index).values()
        for each in (value if isinstance(value, list) else [value])
    ]
    parts = [value for value in values if isinstance(value, Retriever)]
    yield from chain.from_iterable(map(_holding, parts)) if parts else [None]
