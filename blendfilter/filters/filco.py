"""FilCo's filter as a prompt: the model names the sentences from which the question can be answered.

Wang et al. 2023, "Learning to Filter Context for Retrieval-Augmented Generation" (https://arxiv.org/abs/2311.08377),
section 2.3: M_ctx reads the question and the retrieved passages and gives the context that the answerer reads. What is
kept are excerpts (`unit="passage"`, the paper's PSG: whole passages), in rank order. Calls: helpful.

Differs from the paper: M_ctx is fine-tuned and writes the sentences out; here any model names them by number, after
instructions and demonstrations that an optimiser may find, so what is kept is verbatim by construction. The paper's
silver context is one sentence; a reply may name several, as its trained model may write several. A reply that cannot be
read is requested once more with one added line (`ids_again`), then everything is kept, which is FULL; a "none" keeps
nothing. Both are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, get_args

import dspy

from blendfilter.asking import SHORT_TOKENS, STOP, PromptSettings, TaskWording
from blendfilter.errors import UnknownName
from blendfilter.filters.base import Filter, selection
from blendfilter.filters.requests import ask_ids, choose_ids
from blendfilter.oracles.candidates import Candidate, excerpts, passages_of, sentences_of
from blendfilter.prompting import Prompts
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.callables import as_passages

Unit = Literal["sentence", "passage"]
_MARKS = ".!?…\"'”’)]"
_NO_WORDS = frozenset(
    {
        "sentence",
        "sentences",
        "passage",
        "passages",
        "knowledge",
        "id",
        "ids",
        "and",
        "none",
        "to",
    }
)


class Helpful(dspy.Signature):
    """The numbers of the sentences, or passages, from which the question can be answered."""

    offer_none: bool = dspy.InputField(default=False)
    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    ids: str = dspy.OutputField(desc="numbers separated by commas, or none")


class FilCoFilter(Filter):
    """Keeps, verbatim, the sentences from which the model says that the question can be answered.

    Args:
        unit: `sentence`, or `passage`: whole passages are named and kept.
        offer_none: whether the prompt allows that nothing helps.
        json_schema: hold the reply to a JSON schema; None: where the model's profile says that its server can.
        wording: a task's instructions. prompts, adapter: see `blendfilter.asking.Ask`.
        program: the name of a program that ships, or `none`; None: that of the task and the model's kind, where one
            does (`blendfilter.shipped`; without a task, nq's).

    `status` is `ids`, `none`, `suspect` or `unparseable` (the last two: everything was kept), or `empty` where there
    was nothing to choose from; `chosen` are the positions of what was kept in `candidates_of(passages, unit)`; `flags`
    are those of `KnowledgeFilter`.
    """

    def __init__(
        self,
        unit: Unit = "sentence",
        *,
        offer_none: bool = True,
        json_schema: bool | None = None,
        wording: TaskWording | None = None,
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
        program: str | None = None,
    ) -> None:
        super().__init__()
        if unit not in get_args(Unit):
            raise UnknownName.of("unit", unit, get_args(Unit))
        self.unit = unit
        self.offer_none = offer_none
        self.json_schema = json_schema
        settings = PromptSettings.of(wording, prompts, adapter)
        template = f"filco/{unit}s"
        # A base model goes on with another example, whose numbers are not its reply.
        stop = [*STOP, "\n\nTitle:", f"\n\n{unit} 0:"]
        self.helpful = settings.predictor("helpful", Helpful, template, SHORT_TOKENS, stop=stop)
        self.ids_again = settings.predictor(
            "ids_again", Helpful, f"{template}_again", SHORT_TOKENS, stop=stop
        )
        name = "filco" if unit == "sentence" else "filco-passage"
        self.ship(name, settings.wording.task or "nq", program)

    def arguments(self) -> dict[str, Any]:
        """Its three switches."""
        return {
            "unit": self.unit,
            "offer_none": self.offer_none,
            "json_schema": self.json_schema,
        }

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """What is kept, as excerpts or whole passages."""
        passages = as_passages(passages)
        candidates = candidates_of(passages, self.unit)
        if not any(candidate.line for candidate in candidates):
            return selection(chosen=[])
        lines, replies = [candidate.line for candidate in candidates], list[str]()

        def own(reply: str) -> str:
            replies.append(reply)
            return unquoted(reply, lines)

        inputs: dict[str, Any] = {
            "offer_none": self.offer_none,
            "knowledge": lines,
            "question": question,
        }
        ask: Any = partial(ask_ids, json_schema=self.json_schema, own=own, **inputs)
        read, flags = await choose_ids(await ask(self.helpful), partial(ask, self.ids_again))
        # Never a line that begins with a number: a trace would set it under the passage of that number.
        reason = "\n".join(
            f"of {len(candidates)} {self.unit}s: {one_line(reply)}" for reply in replies
        )
        if read.status in ("suspect", "unparseable"):
            return selection(
                passages, read.status, reason, flags=flags, chosen=list(range(len(candidates)))
            )
        ids = sorted(read.ids)
        chosen = [candidates[at] for at in ids]
        kept: list[Passage] = [passages[candidate.position] for candidate in chosen]
        if self.unit == "sentence":
            kept = excerpts(passages, chosen)
        return selection(kept, read.status, reason, flags=flags, chosen=ids)


def candidates_of(passages: Sequence[Passage], unit: Unit) -> list[Candidate]:
    """The candidates, in the numbering of the prompt.

    >>> [each.text for each in candidates_of([Passage("1", "Ormskerry", "A town. It has a pier.")], "sentence")]
    ['A town.', 'It has a pier.']
    """
    return passages_of(passages) if unit == "passage" else sentences_of(passages)


def unquoted(reply: str, lines: Iterable[str]) -> str:
    """`reply` without what it writes out of the prompt's `lines`: the numbers in there are no ids.

    A line goes with its title or without, and with its last mark or without; so does a title, by itself or as the
    prompt has it. What holds too few words to be known as a quotation stays: a sentence "3 and 7" must not take a reply
    apart.

    >>> unquoted("Title: Light of 1884\\n2: It burned for 30 years.", ["Light of 1884 | It burned for 30 years."])
    '\\n2: '
    """
    parts = [(line, *line.partition(" | ")) for line in lines]
    quotable = {whole for part in parts for whole in part}
    quotable |= {whole.rstrip(_MARKS) for whole in quotable}
    titles = {f"Title: {title}" for _, title, bar, _ in parts if bar}
    reply = "\n".join("" if line.strip(" *") in titles else line for line in reply.split("\n"))
    for part in sorted(quotable, key=len, reverse=True):
        if (
            part in reply
            and len({word.lower() for word in re.findall(r"[^\W\d_]{2,}", part)} - _NO_WORDS)
            > 2
        ):
            reply = reply.replace(part, "")
    return reply
