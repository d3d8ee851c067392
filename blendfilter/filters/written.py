"""Filters whose model writes the context: FilCo's trained M_ctx and PSG, BIDER's refiner, and a summariser.

Wang et al. 2023, "Learning to Filter Context for Retrieval-Augmented Generation" (https://arxiv.org/abs/2311.08377),
section 2.3: t_pred = M_ctx(q, P). Jin et al. 2024, "BIDER: Bridging Knowledge Inconsistency for Efficient
Retrieval-Augmented LLMs via Key Supporting Evidence", section 3.3. A fine-tuned model reads the question and the
passages and writes out what the answerer is to read. One call: write.

    select = TrainedFilCoFilter("models/nq-context")        # what `blendfilter train filco --part context` made
    bf.evaluate(bf.Direct(index, filter=select), questions, lm=bf.connect("hf/models/nq-generator"))

What it wrote is looked up in the passages, up to white space, quotes and compatibility forms of characters: what stands
there becomes `Excerpt`s, in the order written; the rest is counted (`not_in_passages`), and kept as `WrittenText` or
dropped. An empty reply keeps nothing. The prompt that training reads is the one that a run sends (`prompt`).

Differs from the papers: both hand what was written to the answerer as it is. An excerpt brings the title of its passage
along, and the passages are lines of ``Title | text``.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import dspy

from blendfilter.asking import STOP, Ask, PromptSettings
from blendfilter.errors import BadArgument, BadData, UnknownName, check_count
from blendfilter.filters.base import Filter, noted, selection
from blendfilter.filters.ids import read_ids
from blendfilter.filters.requests import ID_EVENTS
from blendfilter.lm.checkpoints import Checkpoint
from blendfilter.lm.model import connect
from blendfilter.oracles.candidates import pieces_of
from blendfilter.prompting import OURS, SETS, Prompts
from blendfilter.records import Excerpt, Passage, WrittenText, one_line
from blendfilter.retrieval.callables import as_passages
from blendfilter.text import sentences

INPUT_TOKENS = 1024
"""Tokens of a prompt at most (FilCo, section 4.1)."""
CONTEXT_TOKENS = 512
"""Tokens of a written context at most (the same)."""
CHOICE_TOKENS = 64
"""Tokens of the numbers of passages at most."""
STOPS = [*STOP, "\nContext:"]
"""Where what was written ends: the model begins to invent another question."""
RECIPE = "recipe.json"
ENGINE = "hf/"
"""What a folder's name is for `connect`."""

Unmatched = Literal["keep", "drop"]


class WriteContext(dspy.Signature):
    """What the answerer is to read of the passages."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    context: str = dspy.OutputField()


class WrittenFilter(Filter):
    """Keeps what its model writes; subclasses name the prompt and what the model was trained for.

    Args:
        model: a folder that `blendfilter train` made, or any model that `connect("hf/…")` takes. It reads prompts as it
            was trained, in its chat template or without. None: the model of the run (or its `filter_lm`) writes,
            trained or not.
        lm: the model that answers in place of ``hf/MODEL``, such as a server that serves it.
        unmatched: what becomes of text that is in no passage: `keep` or `drop`.
        max_input_tokens: what the prompt may have: passages are cut from the end, at a word; the question stays. None:
            what the model was trained with, or 1,024.
        prompts, adapter: see `blendfilter.asking.Ask`. A model that was trained with our template, or a set's, is asked
            by that one, whichever of these is named.

    `status` is `written`, `none` (an empty reply), or `empty` where there was nothing to read; `flags` counts
    `explicit_none`, `not_in_passages` (sentences) and `input_cut`.

    Raises:
        BadArgument: the model was trained for another part, or with another prompt, or is asked by `lm` through another
            endpoint than it was trained for. BadData: its recipe cannot be read.
        What `connect` raises.
    """

    template: ClassVar[str]
    """The prompt."""
    part: ClassVar[str]
    """What a recipe calls the model that is trained for it."""
    made_by: ClassVar[str]
    """The command that trains one."""
    reply_tokens: ClassVar[int] = CONTEXT_TOKENS
    """Tokens of what it writes, at most."""
    writes_text = True
    """What it keeps may stand in no passage."""
    folder: Path | None = None
    """Where its model lies, whose files say what it was trained on; None for that of the run."""

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        lm: dspy.BaseLM | None = None,
        unmatched: Unmatched = "keep",
        max_input_tokens: int | None = None,
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        if unmatched not in get_args(Unmatched):
            raise UnknownName.of("unmatched", unmatched, get_args(Unmatched))
        name = None if model is None else str(model).removeprefix(ENGINE)
        if max_input_tokens is None:
            trained = {} if name is None else _trained(name)
            max_input_tokens = trained.get("max_input_tokens", INPUT_TOKENS)
        self.unmatched = unmatched
        self.max_input_tokens = check_count("max_input_tokens", max_input_tokens)
        self.write = self._writer(prompts, adapter)
        if name is not None and adapter is None:
            self.write = self._as_trained(recipe_in(name).get("prompt"))
        if name is not None:
            self.check(name, lm)
            self.folder = _folder_of(name)
            how = endpoint_of(name) or "chat"
            lm = lm if lm is not None else connect(f"{ENGINE}{name}", endpoint=how)
        self.write.lm = lm

    def _writer(
        self, prompts: Prompts | str | None, adapter: dspy.Adapter | None = None
    ) -> Ask:
        settings = PromptSettings.of(None, prompts, adapter)
        return settings.predictor(
            "write", WriteContext, self.template, self.reply_tokens, stop=STOPS
        )

    def _as_trained(self, trained: str | None) -> Ask:
        """The predictor with the template of the set, or ours, that a model was trained with; a user's own stays."""
        template = self.write.template
        if trained is None or (template.overridden and not template.of_set):
            return self.write
        every = [self.write, *map(self._writer, (OURS, *SETS))]
        return next((ask for ask in every if ask.prompt_digest == trained), self.write)

    def arguments(self) -> dict[str, Any]:
        """What becomes of unmatched text, and the cap of the prompt; the model is the run's setting `lm.filter`."""
        return {"unmatched": self.unmatched, "filter_max_input_tokens": self.max_input_tokens}

    @property
    def recipe(self) -> dict[str, str]:
        """What the recipe of a model that is trained for this filter says: its part, and a digest of its prompt."""
        return {"part": self.part, "prompt": self.write.prompt_digest}

    def check(self, model: str | Path, lm: dspy.BaseLM | None = None) -> None:
        """Refuse a model whose recipe is another's, or that `lm` does not ask as it was trained.

        One without a recipe was trained elsewhere, and is taken as it is.

        Raises: BadArgument, BadData.
        """
        model = _folder_of(model)
        known, own = recipe_in(model), self.recipe
        if (part := known.get("part")) is not None and part != own["part"]:
            raise BadArgument(
                f"{model} was trained as {worded(part)}, and {type(self).__name__} wants {worded(self.part)}: "
                f"{self.made_by} makes one"
            )
        if (prompt := known.get("prompt")) is not None and prompt != own["prompt"]:
            raise BadArgument(
                f"{model} was trained with another prompt than {self.template} is here: give the templates that it was "
                f"trained with (prompts=), or train it again ({self.made_by})"
            )
        if (how := endpoint_of(model)) is not None and how != getattr(lm, "endpoint", how):
            trained = "in its chat template" if how == "chat" else "on raw prompts"
            raise BadArgument(f"{model} was trained {trained}: ask it so (endpoint {how})")

    def prompt(
        self,
        question: str,
        passages: Sequence[Passage],
        count: Callable[[str], float] | None = None,
    ) -> str:
        """The prompt of a run for this question and these passages: what a model is trained on, too.

        `count` gives the tokens of a prompt, the chat template's own among them; by default as the model counts them.
        """
        return self.write.render(
            knowledge=self.lines(question, passages, count), question=question
        )

    def lines(
        self,
        question: str,
        passages: Sequence[Passage],
        count: Callable[[str], float] | None = None,
    ) -> list[str]:
        """The passages' lines as far as the prompt has room for them; `count` as for `prompt`."""
        read = as_passages(passages)
        return self.write.fitted(read, self.max_input_tokens, count, question=question)

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """What the model writes of these passages."""
        passages = [passage for passage in as_passages(passages) if passage.text.strip()]
        lines = self.lines(question, passages)
        cut = {"input_cut": 1} if lines != [passage.line for passage in passages] else {}
        if not lines:
            return selection(flags=cut)
        with noted() as notes:
            reply = str((await self.write.acall(knowledge=lines, question=question)).context)
            # That nothing helps is a reply as good as any.
            notes[:] = [
                note._replace(event="") if note.event == "empty_reply" else note
                for note in notes
            ]
        if not reply.strip():
            return selection((), "none", flags={"explicit_none": 1, **cut})
        broke_off = any(note.event == "cut_reply" for note in notes)
        read = self.read(reply, passages, len(lines), cut=broke_off)
        read.flags.update(cut)
        return read

    def read(
        self, reply: str, passages: Sequence[Passage], n: int, *, cut: bool
    ) -> dspy.Prediction:
        """What a reply, which may be `cut` off, keeps of the passages, of which the model read the first `n`."""
        found = looked_up(reply, passages, cut=cut)
        unmatched = {"not_in_passages": n} if (n := found.unmatched) else {}
        drops = WrittenText if self.unmatched == "drop" else ()
        kept = [part for part in found.parts if not isinstance(part, drops)]
        # Never a line that begins with a number: a trace would set it under the passage of that number.
        return selection(kept, "written", f"wrote: {one_line(reply)}", flags=unmatched)

    def target(self, text: str, chosen: Iterable[int]) -> str:
        """What its model learns to write: the silver context `text`, or what stands for it.

        `chosen` are the positions of the passages that have it, in the prompt.
        """
        return text


class TrainedFilCoFilter(WrittenFilter):
    """FilCo's M_ctx: keeps the sentences that a model, trained on silver contexts, writes out.

    `FilCoFilter` is the same as a prompt, for models that were not trained. Arguments and errors as `WrittenFilter`.
    """

    template = "filco/context"
    part = "context"
    made_by = "blendfilter train filco --part context"


class TrainedPSGFilter(WrittenFilter):
    """FilCo's PSG: keeps whole passages, whose numbers a model writes that was trained on silver contexts.

    It learned to name the passages that hold the silver context. No number keeps nothing. A reply that cannot be read
    keeps everything, with the `status` and the `flags` of `FilCoFilter`, which asks an untrained model for the same.
    Arguments and errors as `WrittenFilter`; there is no unmatched text.

    Differs from the paper: which decides on the top passage alone; here one reply decides on all that were retrieved.
    """

    template = "filco/keep"
    part = "passages"
    made_by = "blendfilter train filco --part passages"
    reply_tokens = CHOICE_TOKENS

    def arguments(self) -> dict[str, Any]:
        """The cap of the prompt."""
        return {"filter_max_input_tokens": self.max_input_tokens}

    def read(
        self, reply: str, passages: Sequence[Passage], n: int, *, cut: bool
    ) -> dspy.Prediction:
        """The passages that a reply names; all where it cannot be read."""
        ids, status = read_ids(reply, n, cut=cut)
        unread = status in ("suspect", "unparseable")
        kept = passages if unread else [passages[at] for at in sorted(ids)]
        reason = f"of {n} passages: {one_line(reply)}"
        event = ID_EVENTS.get(status)
        return selection(kept, status, reason, flags={event: 1} if event else {})

    def target(self, text: str, chosen: Iterable[int]) -> str:
        """The numbers of the passages that hold the silver context."""
        return ", ".join(map(str, sorted(set(chosen))))


class BIDERFilter(WrittenFilter):
    """BIDER's refiner: keeps the key supporting evidence that its model writes, in the order written.

    Arguments and errors as `WrittenFilter`.
    """

    template = "bider/refine"
    part = "bider"
    made_by = "blendfilter train bider"


class SummaryFilter(WrittenFilter):
    """Keeps a summary of the passages: a baseline of BIDER's (section 4.2), by any model that summarises.

    `facebook/bart-large-cnn`, say, or an instruct model of the run. Arguments and errors as `WrittenFilter`.
    """

    template = "bider/summary"
    part = "summary"
    made_by = "a checkpoint that summarises, such as facebook/bart-large-cnn,"


GENERATOR = "generator"
"""What a recipe calls FilCo's M_gen."""
_PARTS = {
    "context": "FilCo's context filter",
    "passages": "FilCo's passage filter (PSG)",
    GENERATOR: "FilCo's generator (it answers: lm=)",
    "bider": "BIDER",
    "summary": "a summariser",
}


def worded(part: str) -> str:
    """What a model was trained as, in words."""
    return _PARTS.get(part, repr(part))


def _folder_of(model: str | Path) -> Path:
    """The folder that a model's name may be; settings of the engine may stand behind it."""
    return Path(str(model).partition("?")[0]).expanduser()


def endpoint_of(model: str | Path) -> Literal["chat", "completions"] | None:
    """Through which endpoint a model reads prompts as it was trained; None where its recipe leaves that to it."""
    chat = _trained(model).get("chat")
    return None if chat is None else "chat" if chat else "completions"


def _trained(model: str | Path) -> dict[str, Any]:
    """The settings that a model was trained with; nothing of one that was trained elsewhere."""
    settings = recipe_in(model).get("settings")
    return settings if isinstance(settings, dict) else {}


def recipe_in(model: str | Path) -> dict[str, Any]:
    """The recipe beside trained weights; nothing where there is none."""
    path = _folder_of(model) / RECIPE
    try:
        recipe = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise BadData(f"{path} cannot be read: {error}") from None
    return recipe if isinstance(recipe, dict) else {}


def recipe_of(lm: dspy.BaseLM) -> dict[str, Any]:
    """The recipe of a connected model; nothing where it has none. Raises: BadData: it cannot be read."""
    checkpoint = getattr(getattr(lm, "inner", None), "checkpoint", None)
    return recipe_in(checkpoint.path) if isinstance(checkpoint, Checkpoint) else {}


def recipe_of_answerer(lm: dspy.BaseLM) -> dict[str, Any]:
    """The recipe of a model that is to answer; nothing where it has none.

    Raises: BadArgument: it was trained to filter. BadData: its recipe cannot be read.
    """
    recipe = recipe_of(lm)
    filters = (TrainedFilCoFilter, TrainedPSGFilter, BIDERFilter)
    if (part := recipe.get("part")) in [each.part for each in filters]:
        raise BadArgument(
            f"{lm.model} was trained as {worded(part)}: it writes what is to be read, and no answers. Name it as the "
            "filter's (model=), and one that answers as lm="
        )
    return recipe


# --- from what was written to what stands in the passages -------------------------------------------------------------


class LookedUp(NamedTuple):
    """What was written: excerpts and written text in order, and how many sentences of it are in no passage."""

    parts: list[Passage]
    unmatched: int


class _Place(NamedTuple):
    passage: int
    start: int
    end: int


def looked_up(reply: str, passages: Sequence[Passage], *, cut: bool = False) -> LookedUp:
    """What a reply has of the passages, sentence by sentence, in the order written.

    Neighbours in one passage that follow each other there are one excerpt. A sentence that several passages have is
    the one that goes on from the last, else the first by rank that was not written yet. A title that the model wrote
    before its sentence (``Title | text``) is left out. The last word of a reply that was `cut` may be half of one.

    >>> town = Passage("1", "Ormskerry", "A town. It has a pier. It rains.")
    >>> [part.text for part in looked_up("It rains.  A town. It sank.", [town]).parts]
    ['It rains.', 'A town.', 'It sank.']
    """
    folded = [
        [_Folded.of(piece.text, piece.start) for piece in pieces_of(passage)]
        for passage in passages
    ]
    parts = _without_titles(reply, passages)
    written = [sentence.text for part in parts for sentence in sentences(part)]
    found: list[_Place | str] = []
    taken: dict[_Place, None] = {}
    for at, text in enumerate(written):
        half = cut and at == len(written) - 1
        place = _place_of(text, folded, taken, half)
        found.append(text if place is None else place)
        if place is not None:
            taken.pop(place, None)  # the last one stands last
            taken[place] = None
    return LookedUp(_joined(found, passages), sum(isinstance(each, str) for each in found))


def _joined(found: Sequence[_Place | str], passages: Sequence[Passage]) -> list[Passage]:
    runs: list[list[Any]] = []
    for item in found:
        if runs and _goes_on(item, runs[-1][-1]):
            runs[-1].append(item)
        else:
            runs.append([item])
    parts = [_part(run, passages) for run in runs]
    once = {(part.id, getattr(part, "spans", ())): part for part in parts}
    return list(once.values())  # written twice is read once


def _part(run: Sequence[Any], passages: Sequence[Passage]) -> Passage:
    if isinstance(run[0], str):
        return WrittenText(" ".join(run))
    passage = passages[run[0].passage]
    source = passage.source if isinstance(passage, Excerpt) else passage
    return Excerpt.of(source, [place[1:] for place in run]).scored(passage.score)


def _goes_on(item: _Place | str, before: _Place | str) -> bool:
    if isinstance(item, str) or isinstance(before, str):
        return type(item) is type(before)
    return item.passage == before.passage and item.start >= before.end


def _place_of(
    sentence: str, folded: Sequence[Sequence[_Folded]], taken: dict[_Place, None], half: bool
) -> _Place | None:
    """Where a sentence stands: after the last place, else where nothing was taken yet, else anywhere."""
    text = _Folded.of(sentence).text
    places = [
        _Place(at, *place)
        for at, pieces in enumerate(folded)
        for piece in pieces
        for place in piece.find(text, half)
    ]
    after = [place for last in [*taken][-1:] for place in places if _goes_on(place, last)]
    new = [place for place in places if place not in taken]
    return next(iter([*after, *new, *places]), None)


def _without_titles(reply: str, passages: Sequence[Passage]) -> Iterator[str]:
    """The lines of a reply without the marks of lists and without the titles before sentences, parted there.

    To be parted into sentences only then: many a title has a full stop in it.
    """
    titles = {
        _Folded.of(one_line(passage.title)).text
        for passage in passages
        if passage.title.strip()
    }
    before = "|".join(map(re.escape, sorted(titles, key=len, reverse=True)))
    heading = re.compile(rf"(?:^ ?(?:{_ITEM} )?|[.!?][\"')\]]* )(?P<title>(?:{before}) ?\|)")
    for line in reply.splitlines():
        shown, parts, done = _Folded.of(line), [], 0
        for match in heading.finditer(shown.text) if titles else ():
            start, end = match.span("title")
            parts.append(line[done : shown.starts[start]])
            done = shown.ends[end - 1]
        first, *others = *parts, line[done:]
        yield from (_MARK.sub("", first), *others)


_ITEM = r"(?:[-*•]|\d{1,2}[.)])"
"""What an item of a list begins with."""
_MARK = re.compile(rf"^\s*{_ITEM}\s+")
_CLUSTER = re.compile(r"\s+|[^\s\u0300-\u036f][\u0300-\u036f]*|[\u0300-\u036f]+")
_QUOTES = str.maketrans({**dict.fromkeys("‘’‚‛`´", "'"), **dict.fromkeys("“”„‟«»", '"')})


class _Folded(NamedTuple):
    """A text as it is compared: white space is one space, quotes are straight, characters in their plain form (NFKC).

    The character `text[i]` came of those from `starts[i]` to `ends[i]`.
    """

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    @classmethod
    def of(cls, text: str, offset: int = 0) -> _Folded:
        """`text`, which lies at `offset`."""
        plain, starts, ends = list[str](), list[int](), list[int]()
        for cluster in _CLUSTER.finditer(text):
            form = unicodedata.normalize("NFKC", cluster[0].translate(_QUOTES))
            form = " " if form.isspace() else form
            plain.append(form)
            starts += [cluster.start() + offset] * len(form)
            ends += [cluster.end() + offset] * len(form)
        return cls("".join(plain), starts, ends)

    def find(self, sentence: str, half: bool) -> Iterator[tuple[int, int]]:
        """The places of a folded sentence, from word to word; where its last word may be `half` of one, to its end."""
        pattern = (r"(?<!\w)" if sentence[:1].isalnum() else "") + re.escape(sentence)
        pattern += r"\w*" if half else r"(?!\w)" if sentence[-1:].isalnum() else ""
        for match in re.finditer(pattern, self.text):
            yield self.starts[match.start()], self.ends[match.end() - 1]
