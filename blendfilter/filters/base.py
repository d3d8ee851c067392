"""What every filter is: a DSPy module from a question and passages to the passages kept, and why.

Any filter fits any method. `await filter.acall(question=…, passages=[…])` gives a `dspy.Prediction` with `kept` (a list
of `Passage`, or of `Excerpt` where only pieces of them are kept, with their places in the source; `passages` is the
same list), `status` (how the decision was read), `reason` (the model's own words, where there are some) and `flags`
(events by name).

Methods call `ask_filter`, which takes any `dspy.Module`: one that is only synchronous too, or that returns the passages
kept as a plain list.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import dspy

from blendfilter import aio
from blendfilter.asking import Ask, check_state
from blendfilter.context import CallNote, asker, noting, rejoined
from blendfilter.dspy_surface import Shared
from blendfilter.errors import BadArgument
from blendfilter.records import Passage, WrittenText
from blendfilter.retrieval.callables import as_passage
from blendfilter.shipped import NO_PROGRAM, programs_for

T = TypeVar("T")


class SharedModel(Shared):
    """A model that `load(*settings)` gives: loaded when it is first needed, shared by the copies that optimisers make.

    `with model as loaded:` one thread uses it at a time.
    """

    def __init__(self, load: Callable[..., Any], *settings: Any) -> None:
        self._load, self._settings = load, settings
        self._turn = threading.RLock()

    @cached_property
    def _loaded(self) -> Any:
        return self._load(*self._settings)

    def __enter__(self) -> Any:
        self._turn.acquire()
        try:
            return self._loaded
        except BaseException:
            self._turn.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._turn.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._load, *self._settings)


class Signed:
    """A class' `__signature__`: what its `__init__` takes, for `help()` and editors.

    DSPy's metaclass would show (*args, **kwargs). An instance has none of its own: there its call is looked at.
    """

    def __get__(self, instance: object | None, owner: type) -> inspect.Signature | None:
        if instance is not None:
            return None
        whole = inspect.signature(owner.__init__)  # type: ignore[misc]
        return whole.replace(
            parameters=list(whole.parameters.values())[1:], return_annotation=whole.empty
        )


class Bridged(dspy.Module):
    """A module whose subclasses write `aforward`; the synchronous call comes over the bridge."""

    __signature__ = Signed()

    def forward(self, *args: Any, **named: Any) -> dspy.Prediction:
        return aio.run(self.aforward(*args, **named), type(self).__name__)

    async def aforward(self, *args: Any, **named: Any) -> dspy.Prediction:
        raise NotImplementedError

    def arguments(self) -> dict[str, Any]:
        """The settings that change what it does, as JSON, for a run's record."""
        return {}

    def __repr__(self) -> str:
        """One line with the settings that are set; DSPy's prints the whole signature of every predictor."""
        arguments = self.arguments().items()
        settings = [f"{name}={value!r}" for name, value in arguments if value not in (None, "")]
        return f"{type(self).__name__}({', '.join(settings)})"

    def load_state(self, state: Mapping[str, Any], **options: Any) -> None:
        """As `dspy.Module.load_state`. Raises: BadData where it was saved from another module."""
        check_state(self, state)
        super().load_state(state, **options)


class Filter(Bridged):
    """Base class of filters; subclasses write `aforward` or `forward`, from `question` and `passages` to those kept.

    The second alone runs in a thread.
    """

    judges_passages = True
    """Its predictors are asked what is kept, so that a run's `filter_lm` answers them; true of a part, too."""
    writes_text = False
    """Whether it may keep `WrittenText`, which stands in none of the passages."""

    def ship(self, name: str, task: str, program: str | None) -> None:
        """Give its predictors the programs of filter `name` that ship (`blendfilter.shipped`), or the one named.

        Raises: UnknownName; BadArgument where the one named was compiled for another filter, or for other templates.
        """
        programs = programs_for(name, task, program)
        fits = False
        for path, predictor in self.named_predictors():
            for kind, shipped in programs.items():
                step = shipped.steps.get(path)
                if (
                    step
                    and step.template
                    == f"{predictor.template.name} {predictor.template.digest}"
                ):
                    predictor.shipped = {**predictor.shipped, kind: step}
                    fits = True
        if program is not None and programs and not fits:
            raise BadArgument(
                f"the program {program} was compiled for another filter than {name}, or for other templates: name one "
                f"of {name}'s, or '{NO_PROGRAM}'"
            )

    def prepare(self) -> None:
        """Load what it needs; what is missing is an error here, before any call is paid for."""


def unship(module: dspy.Module) -> None:
    """Ask by the prompts as they are, without programs that ship."""
    for _, predictor in module.named_sub_modules(Ask):
        predictor.shipped = {}


def filter_predictors(method: dspy.Module) -> dict[str, dspy.Predict]:
    """The predictors in a method that judge passages, by their paths: those of a `Filter`, or of its `select`."""
    parts = [
        path
        for path, part in method.named_sub_modules()
        if getattr(type(part), "judges_passages", False) or path.endswith(".select")
    ]
    inside = tuple(f"{path}{end}" for path in parts if path != "self" for end in ".[")
    return {
        path.removeprefix("self."): predictor
        for path, predictor in method.named_sub_modules(dspy.Predict)
        if path in parts or path.startswith(inside)
    }


def with_filter_lm(method: dspy.Module, lm: dspy.BaseLM) -> dspy.Module:
    """A copy of `method` in which `lm` answers the calls of its filters.

    Raises:
        BadArgument: no filter in it asks a model, or one has a model of its own.
    """
    copied: dspy.Module = method.deepcopy()
    asking = filter_predictors(copied)
    if not asking:
        raise BadArgument(
            f"filter_lm answers a filter's calls, and no filter of {type(method).__name__} asks a model: "
            "leave it out, or give the method another filter"
        )
    for path, predictor in asking.items():
        own = predictor.lm
        if own is not None and (own.model, _identity(own)) != (lm.model, _identity(lm)):
            raise BadArgument(
                f"{path} has a model of its own, {own.model}: leave filter_lm out, or that one"
            )
        predictor.lm = lm
    return copied


def _identity(lm: dspy.BaseLM) -> Any:
    return getattr(lm, "identity", lm)


def own_filter_lm(method: dspy.Module) -> dspy.BaseLM | None:
    """The model of a filter that writes, where it has one of its own: the run's record names it as its `filter_lm`."""
    parts = [part for _, part in method.named_sub_modules(Filter) if part.writes_text]
    return next((ask.lm for part in parts for _, ask in part.named_predictors()), None)


@contextmanager
def noted() -> Iterator[list[CallNote]]:
    """The notes of the calls inside, which go on to whoever collects them outside."""
    with rejoined():
        outer = asker().notes
        with noting() as notes:
            try:
                yield notes
            finally:
                if outer is not None:
                    outer.extend(notes)


def selection(
    kept: Sequence[Passage] = (), status: str = "empty", reason: str = "", **more: Any
) -> dspy.Prediction:
    """A filter's prediction; without arguments that of nothing to filter. What it keeps is its `passages`, too."""
    kept = list(kept)
    given = {"kept": kept, "passages": kept, "status": status, "reason": reason, "flags": {}}
    return dspy.Prediction(**given | more)


async def judged_apart(
    passages: Sequence[Passage], judge: Callable[[Passage], Coroutine[Any, Any, T]]
) -> list[T]:
    """What `judge` says of each passage, side by side; of those that read the same, once."""
    async with aio.Steps() as steps:
        by_line = {passage.line: passage for passage in passages}
        started = {line: steps.start(judge(passage)) for line, passage in by_line.items()}
    return [await started[passage.line] for passage in passages]


def _own_call(select: dspy.Module) -> str | None:
    """The name of the method that a filter is called by; None where it has neither."""
    for name in ("aforward", "forward"):
        if getattr(type(select), name, None) not in (None, getattr(Filter, name)):
            return name
    return None


def check_call(select: dspy.Module) -> None:
    """Raise `BadArgument` for a filter that does not take what filters are called with."""
    if (name := _own_call(select)) is None:
        return
    try:
        signature = inspect.signature(getattr(select, name))
        signature.bind(question="", passages=[])
    except ValueError:  # written in C, without a signature
        return
    except TypeError as error:
        raise BadArgument(
            f"the filter {type(select).__name__} is called with question=… and passages=…, and has {name}{signature} "
            f"({error}): name its parameters so, and give others a default"
        ) from None


async def ask_filter(
    select: dspy.Module, question: str, passages: Sequence[Passage], **more: Any
) -> dspy.Prediction:
    """The prediction of `select`, `kept` being a list of passages; a synchronous filter runs in a thread.

    Raises:
        BadArgument: nothing in it says what is kept, or it keeps what it was not given. What `select` raises comes
            through as it is.
    """
    if _own_call(select) == "aforward":
        returned = await aio.awaiting(
            select.acall(question=question, passages=passages, **more)
        )
    elif _own_call(select) is None:
        raise BadArgument(
            f"the filter {type(select).__name__} says nothing: write its aforward, or its forward"
        )
    else:
        call = aio.carried(partial(select, question=question, passages=passages, **more))
        # A thread of its own: shared ones could all be taken by filters that wait for a synchronous model.
        returned = await anyio.to_thread.run_sync(call, limiter=anyio.CapacityLimiter(1))
    return _checked(type(select), returned, passages)


def _checked(kind: type, returned: Any, given: Sequence[Passage]) -> dspy.Prediction:
    name, writes = kind.__name__, getattr(kind, "writes_text", False)
    prediction = returned
    if not isinstance(prediction, dspy.Prediction):
        prediction = dspy.Prediction(kept=returned)
    kept, flags = prediction.get("kept"), prediction.get("flags") or {}
    is_list = isinstance(kept, Iterable) and not isinstance(kept, str | bytes | Mapping)
    if not is_list or not isinstance(flags, Mapping):
        raise BadArgument(
            f"the filter {name} must return a list of passages, or a dspy.Prediction with such a list as kept and "
            f"counts by name as flags; it gave {returned!r:.80}"
        )
    prediction["kept"] = [
        item if writes and isinstance(item, WrittenText) else _given(name, item, given)
        for item in kept
    ]
    return prediction


def _given(name: str, item: Any, given: Sequence[Passage]) -> Passage:
    """What a filter kept as one of the passages it was given: by id, or as its line or text."""
    passage = as_passage(item)
    if any(other.id == passage.id for other in given):
        return passage
    for other in given:
        if passage.line == other.line or (not passage.title and passage.text == other.text):
            return other
    raise BadArgument(
        f"the filter {name} kept a passage that it was not given ({passage.line!r:.60}): return some of its passages, "
        "or Excerpts of them"
    )
