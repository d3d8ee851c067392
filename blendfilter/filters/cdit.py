"""CDIT as a filter: a judge compares each passage with the question by rules, and what it rejects is dropped.

CDIT ("Context-Driven Index Trimming", Ma et al. 2024, https://arxiv.org/abs/2408.05524): context matching dependencies
(Definition 2: s1[sid] ~ s2[sid] -> s1[X_i] like s2[Y_i] for every i) name the components in which a sentence must be
like the question: phi1 of Example 2 has subject, predicate and object, phi2 of appendix B.1 adds attributive and
adverbial. A model extracts and compares these and decides (section 4.2), one call a passage; inconsistent passages are
discarded (Figure 3, step 4). What verdicts are worth beyond their question is for `blendfilter.trimming`.

Differs from the paper: the words of rules and prompts are ours, and each rule says what its components are. What the
question asks for is open and matches anything; a passage is judged by its nearest sentence. Besides the paper's one
word (`word`) the judge may give its grounds (`components`), which are checked against its verdict. The released code
takes whatever is not True for a rejection; here a reply that is no verdict is asked for once more, and a second one is
None: it is counted, the passage is kept, and it counts for no separation.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from json import dumps, loads
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import dspy

from blendfilter import resources
from blendfilter.asking import (
    REPLY_TOKENS,
    SHORT_TOKENS,
    STOP,
    Ask,
    PromptSettings,
    RawPrompting,
    TaskWording,
    demonstrations,
)
from blendfilter.context import setting
from blendfilter.errors import BadArgument, BadData, UnknownName
from blendfilter.files import read_whole
from blendfilter.filters.base import Bridged, Filter, judged_apart, selection
from blendfilter.filters.ids import once, unfenced
from blendfilter.filters.requests import (
    PredictorReply,
    holds_to_schema,
    object_schema,
    reply_of,
    schema_of,
)
from blendfilter.lm.profiles import split_thinking
from blendfilter.prompting import Prompts, TemplateAdapter
from blendfilter.quoting import LONGEST_REPLY, own_lines, own_words
from blendfilter.records import Passage, one_line
from blendfilter.replies import true_or_false
from blendfilter.retrieval.callables import as_passage, as_passages
from blendfilter.shipped import NO_PROGRAM
from blendfilter.text import shortened

# --- rules ------------------------------------------------------------------------------------------------------------

COMPONENTS: Mapping[str, str] = {
    "subject": "who or what",
    "predicate": "what is done, or not done",
    "object": "to whom or what",
    "attributive": "which, whose, what kind, how many",
    "adverbial": "when, where, how, why",
}
"""The components that our rules compare, and what each is. A user's rule may name others."""
_COMPONENT = re.compile(r"[^\W\d_]+(?:[ -][^\W\d_]+){0,3}")
_EXAMPLE = (
    'write [[rule]] with name = "…", components = ["subject", "predicate"] and sentence = "…"'
)


@dataclass(frozen=True)
class Rule:
    """A context matching dependency: its name, its components, and the sentence that a prompt says it in."""

    name: str
    components: tuple[str, ...]
    sentence: str

    def __post_init__(self) -> None:
        words = () if isinstance(self.components, str) else tuple(self.components)
        # Names are written into records and lists of verdicts, several of them as phi1+phi2.
        if not (
            words
            and all(isinstance(text, str) for text in (self.name, self.sentence, *words))
            and self.sentence.strip()
            and self.name.isprintable()
            and re.fullmatch(r"[^+,\s](?:[^+,]*[^+,\s])?", self.name)
            and all(map(_COMPONENT.fullmatch, words))
            and len({word.casefold() for word in words}) == len(words)
        ):
            raise BadArgument(
                "a rule has a name (a word or two, without '+' or ','), components (words, each once) and a sentence: "
                f"got {self.name!r:.40}, {self.components!r:.60}, {self.sentence!r:.40}"
            )
        object.__setattr__(self, "components", words)

    @property
    def line(self) -> str:
        """The rule in a prompt, on one line: its sentence, then its components and what they are.

        >>> Rule("mine", ("unit",), "Both give the same unit.").line
        'Both give the same unit. Components: unit.'
        """
        sentence = one_line(self.sentence)
        named = ", ".join(
            f"{component} ({COMPONENTS[component]})" if component in COMPONENTS else component
            for component in self.components
        )
        return f"{sentence if sentence.endswith(('.', '!', '?')) else sentence + '.'} Components: {named}."


PHI1 = Rule(
    "phi1", ("subject", "predicate", "object"), "The same subject, predicate and object."
)
PHI2 = Rule("phi2", ("attributive", "adverbial"), "The same attributives and adverbials.")
RULES: Mapping[str, Rule] = {rule.name: rule for rule in (PHI1, PHI2)}
"""The rules by name."""


def rules_of(
    rules: Sequence[str | Rule], known: Mapping[str, Rule] = RULES
) -> tuple[Rule, ...]:
    """These rules, all of which must hold; names are those of `known`.

    >>> [rule.name for rule in rules_of(["phi1", Rule("mine", ("unit",), "Both give the same unit.")])]
    ['phi1', 'mine']

    Raises: UnknownName; BadArgument for none at all, one twice, or one that takes a name of ours.
    """
    found: dict[str, Rule] = {}
    for given in [rules] if isinstance(rules, str | Rule) else rules:
        if isinstance(given, str) and given not in known:
            raise UnknownName.of("rule", given, known, "- or a Rule of your own (rules=FILE)")
        rule = known[given] if isinstance(given, str) else given
        # Verdicts are kept with the names of their rules: one name must not mean two things.
        if rule != RULES.get(rule.name, rule):
            raise BadArgument(f"a rule '{rule.name}' is there already: give yours another name")
        if rule.name in found:
            raise BadArgument(
                f"the rule '{rule.name}' is given twice: give it once, or the other one another name"
            )
        found[rule.name] = rule
    if not found:
        raise BadArgument(f"no rules, so nothing is compared: name some of {', '.join(known)}")
    return tuple(found.values())


def choose_rules(names: Sequence[str] = (), path: Path | None = None) -> tuple[Rule, ...]:
    """The rules of that name, ours or the file's; without names all of the file's, without a file phi1."""
    own = read_rules(path) if path is not None else ()
    return rules_of(names or own or (PHI1,), {**RULES, **{rule.name: rule for rule in own}})


def components_of(rules: Iterable[Rule]) -> tuple[str, ...]:
    """The components of all these rules, each once, in the order in which they are named."""
    return tuple(dict.fromkeys(component for rule in rules for component in rule.components))


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The rules of a user's TOML file: tables ``[[rule]]`` of name, components and sentence.

    Raises: MissingFile; BadData, which says which rule is wrong.
    """
    rules, where, written = list[Rule](), str(path), read_whole(path)
    try:
        tables = tomllib.loads(written.decode("utf-8")).get("rule", [])
        for number, table in enumerate(tables, 1):
            where = f"{path}, rule {number}"
            rules.append(Rule(**table))
        where = str(path)
        return rules_of(rules)
    except (ValueError, TypeError) as error:  # not TOML, not a table, other fields, no rule
        raise BadData(f"{where}: {error}; {_EXAMPLE}") from None


# --- reading a reply --------------------------------------------------------------------------------------------------
# One word may stand in marks (quotes, Markdown), with a full stop, behind "Verdict:" or "Answer:". A comparison has a
# row for each component and ends with its verdict, or is the same as JSON. Thinking in tags is not read, nor is a line
# that is quoted whole (``> Verdict: True``), unless the reply is nothing but a fence or a quotation.

_MARKS = r"[\s\"'“”„‘’«»`*_#>(){}\[\]]*+"
_IN_BRACKETS = r"(?:\s*\([^()\n]*+\))?"
_ONE_WORD = re.compile(
    rf"{_MARKS}(?:-\s++)?{_MARKS}(?:(?:final\s+)?(?:verdict|answer){_IN_BRACKETS}{_MARKS}:{_MARKS})?(true|false){_MARKS}\.?{_MARKS}",
    re.IGNORECASE,
)
_REASON = re.compile(rf"{_MARKS}(?:-\s++)?{_MARKS}reason{_MARKS}:{_MARKS}(.*)", re.IGNORECASE)
_AROUND = " \t*_`\"'“”-"
_ALIKE = {
    **dict.fromkeys(("alike", "similar", "same", "true", "open"), True),
    **dict.fromkeys(
        ("unlike", "not alike", "dissimilar", "different", "opposite", "false"), False
    ),
}
"""What a row may say of its component; anything else, `unsaid` among it, is neither."""


class ComparedComponent(NamedTuple):
    """One component of the question and of the passage. `alike` is None where the reply leaves it open."""

    component: str
    question: str
    passage: str
    alike: bool | None


class JudgeReply(NamedTuple):
    """A judge's reply: its verdict, the components of the rules that it compared, and its reason."""

    verdict: bool | None
    compared: list[ComparedComponent]
    reason: str

    @property
    def contradicts_itself(self) -> bool:
        """Whether the verdict goes against the comparison: True with a component unlike, False with all alike."""
        alike = [each.alike for each in self.compared]
        return (self.verdict is True and False in alike) or (
            self.verdict is False and bool(alike) and all(alike)
        )


_NO_VERDICT = JudgeReply(None, [], "")


def read_verdict(reply: str) -> bool | None:
    """The verdict that opens a reply; None where it is anything but True or False, or takes it back.

    >>> read_verdict("**True.**"), read_verdict("False. It differs."), read_verdict("True, but")
    (True, False, None)
    """
    return true_or_false(split_thinking(reply)[1])


def read_comparison(reply: str, components: Sequence[str]) -> JudgeReply:
    """A reply that compares `components`; its verdict, which its own rows may contradict, is unchecked.

    >>> read = read_comparison("predicate | turned on | turned off | unlike\\nVerdict: True", ["predicate"])
    >>> read.verdict, read.compared[0].passage, read.contradicts_itself
    (True, 'turned off', True)
    """
    plain = split_thinking(reply)[1].strip()
    if (json_text := unfenced(plain)).startswith("{"):
        return _of_json(json_text, components)
    if len(plain) > LONGEST_REPLY:  # its rows are needed as much as its end
        return _NO_VERDICT
    own = own_words(plain)
    read = _of_lines(own_lines(plain, own.words), components)
    if read.verdict is not None or own.announced is None:
        return read
    return _of_lines(own_lines(plain, own.announced), components)


def _of_lines(lines: Iterable[str], components: Sequence[str]) -> JudgeReply:
    compared: list[ComparedComponent] = []
    verdicts: list[bool] = []
    reason, settled = "", True
    for line in chain.from_iterable(map(str.splitlines, lines)):
        if (
            not line.strip()
            or re.fullmatch(r"\s*```\w*\s*", line)
            or re.fullmatch(r"[\s|:-]+", line)
        ):
            continue
        if word := _ONE_WORD.fullmatch(line):
            verdicts.append(word[1].casefold() == "true")
            settled = True
        elif (row := _row(line, components)) is not None:
            compared.append(row)
        elif found := _REASON.fullmatch(line):
            reason = found[1].strip()
        else:
            settled = False  # words after a verdict may take it back
    agreed = len(set(verdicts)) == 1 and settled
    return JudgeReply(verdicts[0] if agreed else None, compared, reason)


def _row(line: str, components: Sequence[str]) -> ComparedComponent | None:
    cells = [cell.strip(_AROUND) for cell in line.strip().strip("|").split("|")]
    if len(cells) < 4:
        return None
    if not (component := _component(cells[0], components)):
        return None
    return ComparedComponent(component, cells[1], " | ".join(cells[2:-1]), _alike(cells[-1]))


def _alike(cell: str) -> bool | None:
    word = cell.strip(_AROUND).rstrip(".").strip(_AROUND).casefold()
    # "unlike (the opposite)" is unlike; "alike in part" is not alike.
    return False if re.match(r"(?:unlike|not alike)\b", word) else _ALIKE.get(word)


def _component(name: str, components: Iterable[str]) -> str:
    return next(
        (component for component in components if component.casefold() == name.casefold()), ""
    )


def _of_json(text: str, components: Sequence[str]) -> JudgeReply:
    try:
        content = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError):
        return _NO_VERDICT
    rows, compared = content.get("comparison"), list[ComparedComponent]()
    for name, cells in rows.items() if isinstance(rows, dict) else ():
        if (component := _component(name, components)) and isinstance(cells, dict):
            alike = cells.get("alike")
            question, passage = (str(cells.get(side) or "") for side in ("question", "passage"))
            found = alike if isinstance(alike, bool) else _alike(str(alike))
            compared.append(ComparedComponent(component, question, passage, found))
    reason, verdict = content.get("reason"), content.get("verdict")
    if not isinstance(verdict, bool):
        verdict = read_verdict(verdict) if isinstance(verdict, str) else None
    return JudgeReply(verdict, compared, reason.strip() if isinstance(reason, str) else "")


# --- the judge --------------------------------------------------------------------------------------------------------

Mode = Literal["word", "components"]
_ROW_TOKENS = 64
"""Room for a component's row, which as JSON needs some more."""


class Consistent(dspy.Signature):
    """Whether a passage is consistent with a question, in one word."""

    rules: list[str] = dspy.InputField()
    passage: str = dspy.InputField(desc="Title | text")
    question: str = dspy.InputField()
    verdict: str = dspy.OutputField(desc="True or False")


class ComparedWith(dspy.Signature):
    """Whether a passage is consistent with a question: component by component, the reason, the verdict."""

    rules: list[str] = dspy.InputField()
    passage: str = dspy.InputField(desc="Title | text")
    question: str = dspy.InputField()
    comparison: str = dspy.OutputField(
        desc="a line for each component, then Reason: and Verdict: True or False"
    )


class Judge(Bridged):
    """Says of one passage whether it is consistent with a question: a call, `consistent`.

    A reply without a verdict, or with one against its own comparison, is asked for once more, `consistent_again`: the
    same prompt, instructions and demonstrations with one more line.

    Args:
        mode: `word`, the paper's one word, or `components`: what was compared, the reason, the verdict.
        rules: names in `RULES`, or `Rule`s; all of them must hold.
        json_schema: of `components`: hold the reply to a JSON schema; None: where the model's profile says that its
            server can.
        wording: a task's instructions. prompts, adapter: see `blendfilter.asking.Ask`.

    The result has `verdict` (True, False, or None), `reason` and `compared` (in the mode `components`), `reply` (the
    last one), and `flags`: `unread_verdict` where the first reply was no verdict, `contradicted_verdict` where it went
    against its own comparison, `no_verdict` where the second one was none either. A passage of no text at all has no
    verdict, and costs no call.
    """

    judges_passages = True

    def __init__(
        self,
        mode: Mode = "word",
        rules: Sequence[str | Rule] = ("phi1",),
        *,
        json_schema: bool | None = None,
        wording: TaskWording | None = None,
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        if mode not in get_args(Mode):
            raise UnknownName.of("mode", mode, get_args(Mode))
        self.mode = mode
        self.rules = rules_of(rules)
        self.json_schema = json_schema
        self.components = components_of(self.rules)
        room = REPLY_TOKENS + _ROW_TOKENS * max(0, len(self.components) - 3)
        signature, tokens = (
            (Consistent, SHORT_TOKENS) if mode == "word" else (ComparedWith, room)
        )
        stop = [*STOP, "\nPassage:"]  # where a base model goes on with another example
        settings = PromptSettings.of(wording, prompts, adapter)
        self.consistent = settings.predictor(
            "consistent", signature, f"cdit/{mode}", tokens, stop=stop
        )
        self.consistent.raw = RawPrompting(
            *(
                demonstrations(self.consistent, worked_examples(self.components, json=json))
                for json in (False, True)
            )
        )

    async def aforward(self, question: str, passage: Passage) -> dspy.Prediction:
        """The verdict on one passage."""
        passage = as_passage(passage)
        if not passage.line.strip():
            return dspy.Prediction(
                verdict=None,
                reason="there is no text to judge",
                compared=[],
                reply="",
                flags={},
            )
        config: dict[str, Any] = {}
        if self.mode == "components" and holds_to_schema(self.json_schema, self.consistent):
            config = {
                "response_format": schema_of("comparison", comparison_schema(self.components))
            }
        inputs = {
            "rules": [rule.line for rule in self.rules],
            "passage": passage.line,
            "question": question,
        }
        flags: dict[str, int] = {}
        with setting(judged=(passage.id,)):
            verdict, read, reply = await self._judged(self.consistent, inputs, config)
            if verdict is None:
                flags["unread_verdict"] = 1
                if read.contradicts_itself and not reply.cut:
                    flags["contradicted_verdict"] = 1
                verdict, read, reply = await self._judged(self.second_request(), inputs, config)
        if verdict is None:
            flags["no_verdict"] = 1
        return dspy.Prediction(
            verdict=verdict,
            reason=read.reason,
            compared=read.compared,
            reply=reply.text,
            flags=flags,
        )

    async def _judged(
        self, predictor: Ask, inputs: Mapping[str, Any], config: dict[str, Any]
    ) -> tuple[bool | None, JudgeReply, PredictorReply]:
        """The verdict of one call, its reply as it was read, and the reply."""
        reply = await reply_of(predictor, **inputs, config=config)
        if self.mode == "word":
            read = JudgeReply(read_verdict(reply.text), [], "")
            # "False." on a line of its own is whole, wherever its reasons are cut off.
            opening, broken, _ = reply.text.strip().partition("\n")
            cut = reply.cut and not (broken and read_verdict(opening) is read.verdict)
        else:
            read, cut = read_comparison(reply.text, self.components), reply.cut
        return None if cut or read.contradicts_itself else read.verdict, read, reply

    def second_request(self) -> Ask:
        """The predictor of the second request: a copy of the first, so that a compiled one has its words in both."""
        again = copy.copy(self.consistent)
        again.name = "consistent_again"
        if isinstance(again.adapter, TemplateAdapter):
            name = f"{self.consistent.template.name}_again"
            prompts = again.adapter.prompts
            again.adapter, again.template = TemplateAdapter(name, prompts), prompts[name]
        return again

    def arguments(self) -> dict[str, Any]:
        """Its settings, as JSON, for a run's record: a rule of ours by its name, a user's with all its fields."""
        rules = [
            rule.name if RULES.get(rule.name) == rule else record
            for rule, record in zip(self.rules, self.identity()["rules"], strict=True)
        ]
        return {"mode": self.mode, "rules": rules, "json_schema": self.json_schema}

    def identity(self) -> dict[str, Any]:
        """What its verdicts depend on beside the model, as JSON.

        That is: mode, rules, and a digest of its program (instructions, demonstrations, those that base and very small
        models see among them, and template or adapter).
        """
        rules = [{**asdict(rule), "components": list(rule.components)} for rule in self.rules]
        schema = {"json_schema": self.json_schema} if self.mode == "components" else {}
        ask = self.consistent
        spoken: list[str] = [type(ask.adapter).__qualname__]
        if isinstance(ask.adapter, TemplateAdapter):
            spoken = [
                ask.adapter.prompts[name].digest
                for name in (ask.template.name, f"{ask.template.name}_again")
            ]
        demos = [[dict(demo) for demo in each] for each in (ask.demos, *ask.raw[:2])]
        parts = [ask.signature.instructions, *demos, *spoken]
        program = hashlib.sha256(
            json.dumps(parts, sort_keys=True, default=str).encode()
        ).hexdigest()[:16]
        cap = {} if ask.reply_tokens is None else {"reply_tokens": ask.reply_tokens}
        return {"mode": self.mode, "rules": rules, **schema, **cap, "program": program}


def worked_examples(components: Sequence[str], *, json: bool = False) -> list[dict[str, str]]:
    """Demonstrations for a base model, `prompts/cdit/demos.json`, in these components; none where a user's is unknown.

    Each has `passage`, `question`, `verdict` and `comparison` (`json`: as a reply that is held to a schema).

    >>> [each["verdict"] for each in worked_examples(["subject", "predicate", "object"])]
    ['True', 'False']
    """
    file = resources.prompts() / "cdit/demos.json"
    rows = loads(file.read_text(encoding="utf-8"))
    if any(not {*components} <= row["compared"].keys() for row in rows):
        return []
    return [worked_example(row, components, json=json) for row in rows]


def worked_example(
    row: Mapping[str, Any], components: Sequence[str], *, json: bool = False
) -> dict[str, str]:
    """One demonstration in these components, of a row with `passage`, `question`, `compared` and `reasons`."""
    cells = {component: row["compared"][component] for component in components}
    unlike = [component for component, (*_, found) in cells.items() if found == "unlike"]
    reason = "No component that the rules name is unlike."
    if unlike:
        reason = row["reasons"][unlike[0]]
    rows = [" | ".join([component, *cells[component]]) for component in components]
    comparison = "\n".join([*rows, f"Reason: {reason}", f"Verdict: {not unlike}"])
    if json:
        sides = {
            name: dict(zip(("question", "passage", "alike"), each, strict=True))
            for name, each in cells.items()
        }
        comparison = dumps(
            {"comparison": sides, "reason": reason, "verdict": not unlike}, ensure_ascii=False
        )
    return {
        "passage": row["passage"],
        "question": row["question"],
        "verdict": str(not unlike),
        "comparison": comparison,
    }


def comparison_schema(components: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of a comparison: these components and no others, all of them, before reason and verdict."""
    text = {"type": "string"}
    cells = {
        "question": text,
        "passage": text,
        "alike": {"type": "string", "enum": ["alike", "unlike", "unsaid"]},
    }
    rows = object_schema(dict.fromkeys(components, object_schema(cells)))
    return {"comparison": rows, "reason": text, "verdict": {"type": "boolean"}}


# --- the filter -------------------------------------------------------------------------------------------------------

_LONGEST_QUOTE = 200
"""Characters of a reply without a verdict in the reason."""


class CDITFilter(Filter):
    """Drops the passages that the judge finds inconsistent with the question; those accepted stay in rank order.

    Args: as `Judge` takes them, and
        program: the name of a program that ships, or `none`; None: that of the task and the model's kind, where one
            does for this mode and these rules (`blendfilter.shipped`; without a task, popqa's).

    The result has `verdicts`, True, False or None for each passage; `status` is `kept 3 of 5`, with how many of them
    have no verdict, or `empty`; `reason` has a line a passage; `flags` sums those of `Judge`. Passages are judged side
    by side, and those that read the same once. A call that fails is the question's error, not a verdict.
    """

    def __init__(
        self,
        mode: Mode = "word",
        rules: Sequence[str | Rule] = ("phi1",),
        *,
        json_schema: bool | None = None,
        wording: TaskWording | None = None,
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
        program: str | None = None,
    ) -> None:
        super().__init__()
        self.judge = Judge(
            mode,
            rules,
            json_schema=json_schema,
            wording=wording,
            prompts=prompts,
            adapter=adapter,
        )
        if (mode, self.judge.rules) == ("word", (PHI1,)):
            task = wording.task if wording is not None else ""
            self.ship("cdit", task or "popqa", program)
        elif program not in (None, NO_PROGRAM):
            raise BadArgument(
                f"the program {program} is for the mode word under the rule {PHI1.name}: leave it out, or ask so"
            )

    def arguments(self) -> dict[str, Any]:
        """The judge's settings."""
        return self.judge.arguments()

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """The passages that were not rejected."""
        passages = as_passages(passages)
        if not passages:
            return selection(verdicts=[])
        judged = await judged_apart(
            passages, lambda passage: self.judge.acall(question=question, passage=passage)
        )
        verdicts = [each.verdict for each in judged]
        results = list(zip(passages, judged, strict=True))
        kept = [passage for passage, result in results if result.verdict is not False]
        asked = {passage.line: result for passage, result in results}
        flags = Counter(event for result in asked.values() for event in result.flags)
        status = f"kept {len(kept)} of {len(verdicts)}"
        if silent := verdicts.count(None):
            status += f", {silent} without a verdict"
        reason = "\n".join(
            f"knowledge {at}: {_grounds(each)}" for at, each in enumerate(judged)
        )
        return selection(kept, status, reason, flags=dict(flags), verdicts=verdicts)


def _grounds(judged: dspy.Prediction) -> str:
    """A verdict on one line, with its grounds where there are some."""
    words = {True: "consistent", False: "inconsistent", None: "no verdict, kept"}
    verdict = words[judged.verdict]
    unlike = "; ".join(
        f"{each.component}: {each.question or '-'} / {each.passage or '-'}"
        for each in judged.compared
        if each.alike is False
    )
    reply = "" if judged.reason else shortened(one_line(judged.reply), _LONGEST_QUOTE)
    quoted = f"it said {reply!r}" if judged.verdict is None and reply else ""
    parts = (unlike, judged.reason, quoted)
    grounds = "; ".join(one_line(part) for part in parts if part)
    return f"{verdict} ({grounds})" if grounds else verdict
