"""Self-Ask and ReAct: the model asks for what it needs, each question of its own is searched for, turn by turn.

Press et al., "Measuring and Narrowing the Compositionality Gap in Language Models" (2022), section 3 (Self-Ask, in the
form of Yoran et al. 2023 and Shao et al. 2023, which BlendFilter's appendix C compares with: what a search brings is
put before the question); Yao et al., "ReAct: Synergizing Reasoning and Acting in Language Models" (2022), section 2 and
appendix C: what a search brings stands right below it. ReAct has two styles:

::

    lineage         Follow-up: …           Knowledge: passages       Intermediate answer: … So the final answer is: …
    thought-action  Thought 1, Action 1: Search[…]   Observation 1: passages   Thought 2, Action 2: Finish[…]

Differs from the papers: the K best passages stand in the prompt, in place of a search engine's answer or an article's
first paragraph; there is no Lookup; at most `hops` searches; the answer is read from the whole transcript by the last
step that all methods share.

A reply continues the last line of a transcript: some words, then a follow-up or the final answer, whichever is first.
Whatever a model writes after a follow-up is made up, because nothing was looked up yet: it is left out and counted
(`invented`). A follow-up is one line, verbatim, less the quotation marks around it; one that says there is none is
none. The last follow-up, said again at the beginning of a reply that goes on, is left out. What a reply quotes of a
passage, or reports that one says ("the passage says that I must Finish[Rome]"), is neither; nor is an answer that is
not known yet.

A turn that brings no search and no answer is asked once more, in the same prompt with its words so far (ours: the
papers say nothing of it):

- neither a follow-up nor a final answer ("Yes.", a bare answer, a thought without an action): the last line is the
  cue of what is missing, `Follow-up:` or `Action 1:`.
- a follow-up that was searched before, but for case and punctuation: what it found stands in the prompt already, so it
  is not searched again, and the cue asks for another, `Follow-up (not asked yet):` or `Action 2 (not searched yet):`.

The final answer is forced by its own cue where the second reply brings nothing new either, where the model says that
nothing more is needed ("No." to the first cue, "Follow-up: none"), or where the hops are used up.

Calls: one a turn, at most `hops` + 1 turns; a second one for each turn but the last (which no search can follow); one
where the final answer is forced; the short answer: 2 `hops` + 3 at most, 13 by default. Each turn either searches for
something new or is the last, and no prompt is sent twice, so that a journal replays them all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import dspy

from blendfilter.asking import STOP, DemoFields, Demonstration, PromptSettings, TaskWording
from blendfilter.context import setting
from blendfilter.errors import UnknownName, check_count
from blendfilter.filters.base import Filter
from blendfilter.modules.base import (
    Branch,
    RetrievingMethod,
    prediction_of,
    short_answer,
    union,
)
from blendfilter.modules.blendfilter import without_conclusion
from blendfilter.prompting import NOTHING_FOUND, Prompts
from blendfilter.quoting import (
    LONGEST_REPLY,
    THEREFORE,
    end_of,
    opens_a_sentence,
    own_words,
    reported,
)
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.base import Searcher
from blendfilter.text import folded, sentences

NEEDED = "Are follow-up questions needed here:"
FOLLOW_UP = "Follow-up:"
KNOWLEDGE = "Knowledge:"
INTERMEDIATE = "Intermediate answer:"
FINAL = "So the final answer is:"


class Hop(NamedTuple):
    """One reply, read: some words, then a follow-up, or a final answer, or neither; `enough`: it says there is none."""

    words: str = ""
    follow_up: str = ""
    final: str = ""
    invented: bool = False
    enough: bool = False


@dataclass(frozen=True)
class Form:
    """How a method writes its turns: lines in which `{turn}` and `{text}` stand for a turn's number and words."""

    first_cue: str
    """The line that the first reply continues; `cue`: those after it."""
    cue: str
    follow_up: str
    again: str
    """The cue of the follow-up alone, for a second request; `anew`: where another is wanted than was searched for."""
    anew: str
    found: str
    """The line above the passages that a follow-up found."""
    forced: str
    """The cue after which only the final answer can follow."""
    concluded: str
    read: Callable[[str], Hop]
    stop: tuple[str, ...]
    """Where a model starts to answer its own follow-up, or to invent what was found."""
    inside: bool
    """Whether the passages found stand in the transcript."""

    def cue_of(self, turn: int) -> str:
        """The line that the reply of a turn continues."""
        return (self.first_cue if turn == 1 else self.cue).format(turn=turn)


@dataclass
class HopTrail:
    """One question's hops so far: `transcript`, and `spoken`, the same without the passages."""

    transcript: list[str] = field(default_factory=list)
    spoken: list[str] = field(default_factory=list)
    queries: dict[str, str] = field(default_factory=dict)
    branches: dict[str, Branch] = field(default_factory=dict)
    chosen: list[dspy.Prediction] = field(default_factory=list)

    def add(self, line: str) -> None:
        """A line of the model's, or one around it."""
        self.transcript.append(one_line(line))
        self.spoken.append(one_line(line))

    def searched(self, follow_up: str) -> bool:
        """Whether it was searched for before."""
        return _compared(follow_up) in map(_compared, self.queries.values())

    @property
    def knowledge(self) -> list[Passage]:
        """Everything kept so far, each passage once, the newest search first."""
        return union(branch.kept for branch in reversed(self.branches.values()))


class MultiHop(RetrievingMethod):
    """Base class of the methods that search for follow-up questions, in the lines of a `Form`."""

    def __init__(
        self,
        retriever: Searcher,
        k: int,
        hops: int,
        filter: Filter | str | None,
        settings: PromptSettings,
        form: Form,
        step: tuple[type[dspy.Signature], str, DemoFields],
    ) -> None:
        hops = check_count("hops", hops)
        super().__init__(retriever, k, filter, settings)
        self.hops = hops
        self.form = form
        self.short_answer = short_answer(settings)
        signature, template, worked = step
        self.step = settings.predictor(
            "step", signature, template, stop=form.stop, worked=worked
        )

    def arguments(self) -> dict[str, Any]:
        return {"k": self.k, "hops": self.hops, **super().arguments()}

    async def reply(self, question: str, trail: HopTrail, *cue: str) -> str:
        """What the model writes after the trail and the cue (its last line)."""
        lines = [*trail.transcript, *map(one_line, cue)]
        given = {
            "transcript": lines,
            "trajectory": lines,
            "knowledge": [passage.line for passage in trail.knowledge],
        }
        fields = self.step.signature.input_fields
        taken = {name: value for name, value in given.items() if name in fields}
        return str((await self.step.acall(question=question, **taken)).step)

    async def turn(
        self, question: str, trail: HopTrail, turn: int, events: Counter[str]
    ) -> Hop:
        """One turn: what the model says, asked once more where that is nothing new; `events` counts what went wrong."""
        cue = self.form.cue_of(turn)
        newest = next(reversed(trail.queries.values()), "")
        hop = self.form.read(without_echo(await self.reply(question, trail, cue), newest))
        if cue == NEEDED and _NO.match(hop.words):
            hop = hop._replace(enough=True)
        events["invented_observation"] += hop.invented
        if not (wrong := _wrong_with(hop, trail)):
            return hop
        events[wrong] += 1
        if turn > self.hops:  # no search could follow
            return hop
        again = self.form.again if wrong == "unreadable_hop" else self.form.anew
        again = again.format(turn=turn)
        reply = await self.reply(question, trail, f"{cue} {hop.words}", again)
        second = second_reply(self.form, turn, reply.strip().removeprefix(again))
        second = second._replace(words=hop.words or second.words)
        events["invented_observation"] += second.invented
        if wrong := _wrong_with(second, trail):
            events[wrong] += 1
            return Hop(second.words)
        return second

    async def answer(self, question: str) -> dspy.Prediction:
        """Search by search, until the model concludes or the hops are used up."""
        trail, events = HopTrail(), Counter[str]()
        for turn in count(1):
            hop = await self.turn(question, trail, turn, events)
            trail.add(f"{self.form.cue_of(turn)} {hop.words}")
            if not hop.follow_up or turn > self.hops:
                break
            trail.add(self.form.follow_up.format(turn=turn, text=hop.follow_up))
            name = f"hop_{turn}"
            with setting(branch=name):
                chosen, trail.branches[name] = await self.look_up(hop.follow_up)
            trail.queries[name] = hop.follow_up
            trail.chosen.append(chosen)
            if self.form.inside:
                lines = [transcript_line(passage.line) for passage in chosen.kept]
                trail.transcript += [
                    self.form.found.format(turn=turn),
                    *(lines or [NOTHING_FOUND]),
                ]
        final = hop.final
        if not final:
            events["hops_exhausted"] += turn > self.hops
            forced = await self.reply(question, trail, self.form.forced.format(turn=turn))
            final = forced_answer(self.form, turn, forced)
        trail.add(self.form.concluded.format(turn=turn, text=final))
        reasoning = "\n".join(trail.spoken)
        short = await self.short_answer.acall(context=reasoning, question=question)
        prediction = prediction_of(
            short.answer,
            reasoning,
            trail.knowledge,
            trail.queries,
            trail.branches,
            trail.chosen,
        )
        prediction.flags.update(events)
        return prediction


def _wrong_with(hop: Hop, trail: HopTrail) -> str:
    """The event that asks for a second reply: it says nothing, or asks what was searched for before; else empty."""
    if hop.follow_up:
        return "repeated_hop" if trail.searched(hop.follow_up) else ""
    return "" if hop.final or hop.enough else "unreadable_hop"


def _compared(query: str) -> str:
    return folded(query).casefold().strip(" ?.!\"'“”‘’*`")


# --- demonstrations in the same lines ---


def self_asked(demo: Demonstration) -> Mapping[str, Any]:
    """A demonstration as Self-Ask goes through it: its knowledge above the question, the newest first."""
    lines = dict.fromkeys(line for hop in reversed(demo.hops) for line in demo.found(hop))
    return {**followed(demo, FOLLOW_UPS), "knowledge": [*lines]}


def thought_and_acted(demo: Demonstration) -> Mapping[str, Any]:
    """A demonstration in thoughts, actions and observations."""
    form, thoughts = THOUGHTS_AND_ACTIONS, [hop.thought for hop in demo.hops]
    last = len(demo.hops) + 1
    concluded = form.concluded.format(turn=last, text=demo.answer)
    step = f"{without_conclusion(demo.reasoning)}\n{concluded}"
    lines = [*_turns(demo, form, thoughts), form.cue_of(last)]
    return {"question": demo.question, "trajectory": lines, "step": step}


def followed(demo: Demonstration, form: Form) -> dict[str, Any]:
    """A demonstration in follow-ups: the words at each cue are the answer to the follow-up before it."""
    answers = ["Yes.", *(hop.answer for hop in demo.hops)]
    step = f"{answers[-1]}\n{form.concluded.format(text=demo.answer)}"
    lines = [*_turns(demo, form, answers), INTERMEDIATE]
    return {"question": demo.question, "transcript": lines, "step": step}


def _turns(demo: Demonstration, form: Form, words: Sequence[str]) -> Iterator[str]:
    for turn, (hop, own) in enumerate(zip(demo.hops, words, strict=False), 1):
        yield f"{form.cue_of(turn)} {own}"
        yield form.follow_up.format(turn=turn, text=hop.follow_up)
        if form.inside:
            yield form.found.format(turn=turn)
            yield from map(transcript_line, demo.found(hop))


# --- reading replies: pure text ---

_MARKS = r"[ \t*_`]{0,8}"
"""What chat models put around words to set them in bold or as code."""
# A line's opening, with such marks or a number; or the place after a sentence.
_OPENING = r"(?:^|(?<=[.!?]\s)|(?<=[.!?]\*\*\s))[ \t>*_#-]{0,8}(?:\d{1,2}[.)][ \t*_]{0,4})?"
_FOLLOWING = re.compile(
    rf"{_OPENING}(?:(?:(?:first|next)\s)?follow[-\s‐‑–]?ups?(?:\squestions?)?|(?:first|next)\squestion|sub-?\s?questions?)"
    rf"(?:\s?[#(]?\d{{1,2}}\)?)?{_MARKS}(?::|\s[-–—](?=\s)){_MARKS}",
    re.IGNORECASE | re.MULTILINE,
)
_FINAL = r"final\s{1,3}"
_IS = rf"answer{_MARKS}(?:\([^()\n]{{1,40}}\){_MARKS})?(?:is\b|:)[ \t:*_`]{{0,8}}"
_CONCLUDING = re.compile(
    rf"\b{THEREFORE}{_FINAL}{_IS}|{_OPENING}(?:{THEREFORE}(?:{_FINAL})?|(?:the\s{{1,3}})?{_FINAL}){_IS}"
    rf"|{_OPENING}answer{_MARKS}\((?:final|best guess)\){_MARKS}:{_MARKS}",
    re.IGNORECASE | re.MULTILINE,
)
_NOT_YET = re.compile(
    r"\W{0,4}(?:(?:as\s)?yet\s|still\s|currently\s|so far\s){0,2}"
    r"(?:(?:not|un)[-\s]?(?:yet\s|fully\s|entirely\s){0,2}(?:known|clear|certain|determined|available|decided|established"
    r"|stated|given|found|identified)|missing|open|pending|to be (?:determined|found|decided))"
    r"(?:\s(?:at this point|at the moment|for now|so far|now|(?:as )?yet))?\b",
    re.IGNORECASE,
)
"""What stands in place of a final answer that a model has not found; alone, "unknown" is an answer."""
_NEXT_PART = re.compile(
    r"(?<=[.?!\"”’*)\]])\s{1,3}\*{0,2}(?:(?:first |next )?follow-?ups?(?: questions?)?|intermediate answer|question"
    r"|so the final answer|(?:knowledge|thought|action|observation)(?: \d{1,2})?)\s?(?:\d{1,2})?\*{0,2}(?:\sis)?:",
    re.IGNORECASE,
)
"""The next part of a transcript, in the line of the part before it."""
_HELD_BACK = re.compile(
    r"(?:\bnot|n['’]t|\bcannot|\bnever|\bbefore I(?: can)?)(?: yet)?[^\w.!?\n]{0,4}$",
    re.IGNORECASE,
)
"""Before an action that a thought speaks of and does not take."""
# At the end of a reasoning, where no answer to a follow-up can be meant: inside a sentence too; else in fewer words.
_ANSWERING = (
    re.compile(rf"\b{THEREFORE}(?:{_FINAL})?{_IS}|\b{_FINAL}{_IS}", re.IGNORECASE),
    re.compile(
        rf"{_OPENING}(?:the\s{{1,3}}(?:correct\s)?)?{_IS}", re.IGNORECASE | re.MULTILINE
    ),
)
_ITEM = re.compile(r"^\s*(?:\d{1,2}[.)]|[-*•])\s")
_NOTHING_MORE = re.compile(
    r"(?:none|n/?a|no|nothing)(?: (?:is |are )?(?:needed|necessary|required|more|else|further))?\W{0,8}"
    r"|no (?:(?:further|more|other|additional) ){0,2}(?:follow-?ups?|questions?)\b[^?]{0,60}",
    re.IGNORECASE,
)
_NONE_NEEDED = re.compile(
    r"\bno (?:(?:further|more|other|additional) ){0,2}(?:follow-?ups?(?: questions?)?|questions?)"
    r" (?:is |are )?(?:needed|necessary|required)\b",
    re.IGNORECASE,
)
_NO = re.compile(r"\W{0,8}no(?=\s*(?:$|[.,;:!*]|[-–—]\s))", re.IGNORECASE)
"""An answer to the first cue."""
_TELLS_TO = re.compile(
    r"(?:find|identify|determine|search|look up|check|tell|name|list)\b", re.IGNORECASE
)
_VERBS = "search|look ?up|finish|answer"
_ACTION = rf"\baction(?:\s\d{{1,3}})?{_MARKS}:{_MARKS}\n?"
_ACTING = (  # where an action should stand, for a thought may speak of others before it; else anywhere
    re.compile(
        rf"{_MARKS}{_ACTION}(?P<verb>{_VERBS}){_MARKS}(?P<opens>[\[(:]|(?=[\"“'‘\ufffc])|\s{{1,3}}for\s{{1,3}}"
        r"|(?<=ch\s|up\s)(?:for\s{1,3})?(?=[\w\"“'‘\ufffc]))"
        rf"|^{_MARKS}(?P<bare>{_VERBS}){_MARKS}(?P<mark>\[|\((?![^()\n]{{0,40}}\){_MARKS}:)|(?<=h)(?:\s{{1,3}}for\s{{1,3}}|\s{{1,3}}(?=[\"“\ufffc])))",
        re.IGNORECASE | re.MULTILINE,
    ),
    re.compile(rf"\b(?P<bare>{_VERBS})\[", re.IGNORECASE),
)
_ASKED_AGAIN = (
    r"\W{0,8}(?:(?:intermediate answer|thought(?:\s\d{1,3})?)\s?:\W{0,8})?"
    r"(?:(?:follow[-\s]?up|action)[^:\n]{0,24}:\W{0,8})?(?:search\W{1,4})?"
)
_LONGEST_ECHO = 1_000
_CUE_AGAIN = re.compile(
    r"\A\W{0,8}(?:are follow[- ]?up questions needed here|intermediate answer|thought(?:\s\d{1,3})?)\s?:[ \t*_]*",
    re.IGNORECASE,
)
_POSING = re.compile(
    r"(?:are follow-?up|follow-?up|intermediate answer|so the |question|knowledge|thought|action|observation)"
    rf"[^|:]{{0,40}}:|{re.escape(NOTHING_FOUND)}",
    re.IGNORECASE,
)


def read_hop(reply: str) -> Hop:
    r"""A reply in Self-Ask's lines.

    >>> read_hop("Jørn Utzon.\nFollow-up: Where was he born?\nIntermediate answer: Rome.")
    Hop(words='Jørn Utzon.', follow_up='Where was he born?', final='', invented=True, enough=False)
    >>> read_hop("Copenhagen.\nSo the final answer is: Copenhagen").final
    'Copenhagen'
    """
    text = _CUE_AGAIN.sub("", reply[:LONGEST_REPLY])
    following, concluding = _first_of(text, _FOLLOWING, _CONCLUDING)
    end = len(text)
    enough = False
    # "Follow-up: none"
    if following and _NOTHING_MORE.fullmatch(_first_line(text[following.end() :])[0]):
        end, following, enough = following.start(), None, True
    if concluding and _undecided(text[concluding.end() :], bool(following)):
        concluding = None
    if following and not (concluding and concluding.start() < following.start()):
        query, rest = _first_line(text[following.end() :])
        return Hop(
            text[: following.start()].strip(),
            follow_up=_bare(query),
            invented=bool(query and rest.strip()),
        )
    if concluding:
        words = text[: min(end, concluding.start())].strip()
        return Hop(words, final=_first_line(text[concluding.end() :])[0])
    if question := _bare_question(text[:end]):
        return Hop(follow_up=question)
    return Hop(
        text[:end].strip(),
        enough=enough or _own(_NONE_NEEDED, own_words(text).words) is not None,
    )


def _undecided(answer: str, follows: bool) -> bool:
    """Whether a reply concludes that there is no answer yet; "unknown" alone does so where a follow-up `follows`."""
    line, _ = _first_line(answer)
    found = _NOT_YET.match(line)
    if found is None or re.match(r"\s[A-Z]", line[found.end() :]):  # "Unknown Pleasures"
        return False
    return (
        follows or re.search(r"\b(?:yet|still|so far|not)\b", line, re.IGNORECASE) is not None
    )


def _bare(query: str) -> str:
    """A query without the quotation marks around all of it."""
    inside = query[1:-1].strip()
    marks = query[:1] + query[-1:]
    whole = marks in ('""', "“”", "''", "‘’", "«»") and not set(marks) & set(inside)
    return inside if whole and inside else query


def _bare_question(text: str) -> str:
    """A reply that is one question: a follow-up without its label ("Yes, which lighthouse is it?"); else empty."""
    line = (text.strip().splitlines() or [""])[0].strip(" \t*_")
    line = re.sub(r"\A(?:yes|no)[.,:;!]?\s", "", line, flags=re.IGNORECASE).strip()
    one = line.find("?") == len(line) - 1 > 7 and not re.search(r"[.!]\s", line)
    return line if one else ""


def read_action(reply: str) -> Hop:
    r"""A reply in ReAct's own form: a thought, then `Search[…]` or `Finish[…]`.

    >>> read_action("The architect first.\nAction 1: Search[Sydney Opera House]").follow_up
    'Sydney Opera House'
    """
    text = _CUE_AGAIN.sub("", reply[:LONGEST_REPLY])
    acting = next(filter(None, _first_of(text, *_ACTING)), None)
    if acting is None:
        hop = read_hop(text)
        return Hop(text.strip()) if hop.follow_up else hop
    parts = acting.groupdict()
    opens = parts.get("opens") or parts.get("mark") or ("[" if acting[0].endswith("[") else ":")
    value, rest = _bracketed(text[acting.end() :], opens)
    value = value.strip("\"“”'‘’ ")
    words = text[: acting.start()].strip()
    if (parts.get("verb") or parts["bare"]).lower() in ("finish", "answer"):
        return Hop(words, final=value)
    return Hop(words, follow_up=value, invented=bool(value and rest.strip(" \t\r\n.*`")))


def second_reply(form: Form, turn: int, reply: str) -> Hop:
    """A reply to the cue of the follow-up alone, whether or not it repeats that.

    >>> second_reply(FOLLOW_UPS, 1, "Who kept it?").follow_up, second_reply(FOLLOW_UPS, 1, "None needed.").enough
    ('Who kept it?', True)
    >>> second_reply(THOUGHTS_AND_ACTIONS, 2, 'Search "Skerry Light"').follow_up
    'Skerry Light'
    """
    lines = reply[:LONGEST_REPLY].strip().splitlines()
    if (
        len(lines) > 1
        and lines[0].rstrip(" *_").endswith(":")
        and not _CONCLUDING.search(lines[0])
    ):
        del lines[0]  # "Here is my follow-up question:"
    text = "\n".join(lines).strip()
    line, rest = _first_line(text)
    if line.rstrip(' *_`"”').endswith("?"):  # the follow-up, whatever was made up below it
        return Hop(
            follow_up=read_hop(line).follow_up or line.strip(' *_`"“”'),
            invented=bool(rest.strip()),
        )
    hop = form.read(text)
    if hop.follow_up or hop.final or hop.enough:
        return hop
    hop = form.read(f"{form.again.format(turn=turn)} {text}")
    # "I cannot say."
    statement = hop.follow_up.endswith((".", "!")) and not _TELLS_TO.match(hop.follow_up)
    return Hop(text) if statement or not any((hop.follow_up, hop.final, hop.enough)) else hop


def without_echo(reply: str, follow_up: str) -> str:
    """A reply less the last follow-up at its beginning, where it goes on after that.

    >>> without_echo("Follow-up: Who kept it?\\nIntermediate answer: Ada.", "Who kept it?").strip()
    'Intermediate answer: Ada.'
    >>> without_echo("Skerry Light is a lighthouse.", "Skerry Light")
    'Skerry Light is a lighthouse.'
    """
    if not 0 < len(follow_up) < _LONGEST_ECHO:
        return reply
    words = r"\s+".join(map(re.escape, follow_up.split()))
    # a name may well begin a sentence
    after = "" if follow_up.endswith("?") else r"[^\S\n]{0,8}$"
    echo = re.match(
        rf"{_ASKED_AGAIN}{words}[\])\"'”*`.]{{0,6}}{after}", reply, re.IGNORECASE | re.MULTILINE
    )
    return reply[echo.end() :] if echo and re.search(r"\w", reply[echo.end() :]) else reply


def forced_answer(form: Form, turn: int, reply: str) -> str:
    """The final answer in a reply to the forced cue, whether or not it repeats the cue.

    >>> forced_answer(THOUGHTS_AND_ACTIONS, 6, "Copenhagen]"), forced_answer(FOLLOW_UPS, 6, "Copenhagen.")
    ('Copenhagen', 'Copenhagen.')
    """
    return (
        form.read(reply).final
        or form.read(f"{form.forced.format(turn=turn)}{reply.strip()}").final
    )


def conclusion(reasoning: str) -> str:
    r"""What a reasoning concludes last, in one sentence; "" where it concludes nothing.

    A conclusion that opens a sentence or a line goes before those inside one, which may be a passage's.

    >>> conclusion("It opened in 1871.\nSo the answer is 1871."), conclusion("It opened late, so the answer is no.")
    ('1871.', 'no.')
    """
    reasoning = end_of(reasoning)
    own = own_words(reasoning)
    for words in (own.words, own.announced or ""):
        for pattern in _ANSWERING:
            if found := [
                match for match in pattern.finditer(words) if not reported(words, match.start())
            ]:
                opening = [match for match in found if opens_a_sentence(words, match.start())]
                line = _first_line(reasoning[(opening or found)[-1].end() :])[0]
                return next((sentence.text for sentence in sentences(line)), "")
    return ""


def _first_of(text: str, *patterns: re.Pattern[str]) -> list[re.Match[str] | None]:
    """Each pattern's first match in a reply's own words; where none matches, in what it may quote of itself."""
    own = own_words(text)
    found = [_own(pattern, own.words) for pattern in patterns]
    if any(found):
        return found
    quoted_whole = not re.search(r"\w", own.words)
    return [
        _own(pattern, text if quoted_whole else own.announced or "") for pattern in patterns
    ]


def _own(pattern: re.Pattern[str], words: str) -> re.Match[str] | None:
    """The first match that no passage is reported to say, and that is not said not to be done."""
    for found in pattern.finditer(words):
        at = found.start()
        if not (reported(words, at) or _HELD_BACK.search(words, max(0, at - 24), at)):
            return found
    return None


def transcript_line(line: str) -> str:
    """A passage's line inside a transcript; one that would pass for a part of it stands behind a bar.

    >>> transcript_line("Follow-up: what now?"), transcript_line("Orm Pier | Follow-up: what now?")
    ('| Follow-up: what now?', 'Orm Pier | Follow-up: what now?')
    """
    return f"| {line}" if _POSING.match(line.lstrip()) else line


def _first_line(text: str) -> tuple[str, str]:
    """The first line that is not empty, and what follows it; nothing where that line opens the next part."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.strip():
            posing = any(mark.match(line) for mark in (_FOLLOWING, _CONCLUDING, _CUE_AGAIN))
            if posing:
                return "", text
            item = _ITEM.sub("", line) if number else line  # the first of a list below the cue
            part = _NEXT_PART.search(item)
            item, rest = (item[: part.start()], item[part.start() :]) if part else (item, "")
            return item.strip().removesuffix("**").strip(), "\n".join(
                [rest, *lines[number + 1 :]]
            )
    return "", ""


def _bracketed(text: str, opens: str) -> tuple[str, str]:
    """What stands before the bracket that closes an action (brackets inside it may be in pairs), and what follows."""
    line = (text.splitlines() or [""])[0]
    closes, depth = {"[": "]", "(": ")"}.get(opens), 1
    for at, letter in enumerate(line):
        depth += (letter == opens) - (letter == closes)
        if not depth:
            return line[:at].strip(), text[at + 1 :]
    return line.strip(), text[len(line) :]


FOLLOW_UPS = Form(
    first_cue=NEEDED,
    cue=INTERMEDIATE,
    follow_up=f"{FOLLOW_UP} {{text}}",
    again=FOLLOW_UP,
    anew="Follow-up (not asked yet):",
    found=KNOWLEDGE,
    forced=FINAL,
    concluded=f"{FINAL} {{text}}",
    read=read_hop,
    stop=(f"\n{INTERMEDIATE}", *STOP),
    inside=False,
)
"""Follow-up questions and intermediate answers: Self-Ask."""
FOLLOW_UPS_INSIDE = replace(FOLLOW_UPS, inside=True)
"""ReAct in the BlendFilter lineage."""
THOUGHTS_AND_ACTIONS = Form(
    first_cue="Thought {turn}:",
    cue="Thought {turn}:",
    follow_up="Action {turn}: Search[{text}]",
    again="Action {turn}:",
    anew="Action {turn} (not searched yet):",
    found="Observation {turn}:",
    forced="Action {turn}: Finish[",
    concluded="Action {turn}: Finish[{text}]",
    read=read_action,
    stop=("\nObservation", *STOP),
    inside=True,
)
"""Thought, action, observation: ReAct as its authors write it."""


# --- the methods ---


class SelfAskStep(dspy.Signature):
    """The next lines of a transcript of follow-up questions, with the knowledge found so far."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text, the newest first")
    question: str = dspy.InputField()
    transcript: list[str] = dspy.InputField(
        desc="the lines so far; the last one is to be continued"
    )
    step: str = dspy.OutputField(
        desc="what the last line goes on with, up to a follow-up or the final answer"
    )


class ReActStep(dspy.Signature):
    """The next lines of a transcript of follow-up questions, with the knowledge that each found."""

    question: str = dspy.InputField()
    transcript: list[str] = dspy.InputField(
        desc="the lines so far; the last one is to be continued"
    )
    step: str = dspy.OutputField(
        desc="what the last line goes on with, up to a follow-up or the final answer"
    )


class ThoughtActionStep(dspy.Signature):
    """The next thought and action."""

    question: str = dspy.InputField()
    trajectory: list[str] = dspy.InputField(
        desc="thoughts, actions and observations so far; the last is continued"
    )
    step: str = dspy.OutputField(desc="a thought, then Search[query] or Finish[answer]")


class SelfAsk(MultiHop):
    """Self-Ask with retrieval.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per follow-up.
        hops: searches at most; then the final answer is forced.
        filter: any filter; it judges passages by the follow-up that found them.
        task, prompts, adapter: as in `BlendFilter`.

    The prediction's queries and branches are `hop_1`, `hop_2` …; its flags count `unreadable_hop` (replies that neither
    ask nor conclude), `repeated_hop` (those that ask what was searched for before), `invented_observation` (those that
    went on after their follow-up), and `hops_exhausted` (the final answer was forced because no search was left).
    """

    method_name = "self-ask"

    def __init__(
        self,
        retriever: Searcher,
        k: int = 5,
        *,
        hops: int = 5,
        filter: Filter | str | None = None,
        task: TaskWording | str = "hotpotqa",
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        settings = PromptSettings.of(task, prompts, adapter)
        step = (SelfAskStep, "self_ask/step", self_asked)
        super().__init__(retriever, k, hops, filter, settings, FOLLOW_UPS, step)


STYLES: Mapping[str, tuple[Form, tuple[type[dspy.Signature], str, DemoFields]]] = {
    "lineage": (
        FOLLOW_UPS_INSIDE,
        (ReActStep, "react/step", partial(followed, form=FOLLOW_UPS_INSIDE)),
    ),
    "thought-action": (
        THOUGHTS_AND_ACTIONS,
        (ThoughtActionStep, "react/thought_action", thought_and_acted),
    ),
}


class ReAct(MultiHop):
    """ReAct over an index.

    Args:
        retriever, k, hops, filter, task, prompts, adapter: as in `SelfAsk`.
        style: `lineage` (follow-up questions, as BlendFilter's tables have it) or `thought-action` (the paper's own).

    The prediction's queries, branches and flags are those of `SelfAsk`.

    Raises:
        UnknownName: no such style.
    """

    method_name = "react"

    def __init__(
        self,
        retriever: Searcher,
        k: int = 5,
        *,
        hops: int = 5,
        style: str = "lineage",
        filter: Filter | str | None = None,
        task: TaskWording | str = "hotpotqa",
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        if style not in STYLES:
            raise UnknownName.of("style", style, STYLES)
        super().__init__(
            retriever,
            k,
            hops,
            filter,
            PromptSettings.of(task, prompts, adapter),
            *STYLES[style],
        )
        self.style = style

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "style": self.style}
