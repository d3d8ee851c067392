"""Prompts of DSPy's own adapters (chat markers, JSON, XML): every requested output field is filled.

So a user's own DSPy module runs offline too. Chat messages are joined by blank lines; the last "Respond with …" line
names the fields. Which value a field gets follows from its type, then from its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from blendfilter.lm.offline.reading import ReadSentence, bare_title, read_passages, stems
from blendfilter.lm.offline.spans import answer_to

_RESPOND = re.compile(r"^Respond with (?:the corresponding output fields|a JSON object)\b")
_FIELD = re.compile(
    r"`(?:\[\[ ## (\w{1,80}) ## \]\]|<(\w{1,80})>|(\w{1,80}))`"
    r"(?: \(must be formatted as a valid Python (.{1,500}?)\)(?=[,.\s]|$))?"
)
_MARKED = re.compile(r"^\[\[ ## (\w{1,80}) ## \]\][ \t]*$|^<(\w{1,80})>[ \t]*$", re.MULTILINE)
_DECLARED = re.compile(r"^\d{1,3}\. `(\w{1,80})` \((.{1,500}?)\):", re.MULTILINE)
_OUTPUTS = "Your output fields are:"
_OBSERVED = re.compile(r"^\[\[ ## observation_\d+ ## \]\]", re.MULTILINE)
_CHOICE = re.compile(r"'([^']{0,200})'|\"([^\"]{0,200})\"")
_TOOL = re.compile(r"^\s*\(\d{1,3}\) ([^\s.,]{1,80})[.,].{0,2000}?It takes arguments \{'(\w{1,80})'", re.MULTILINE)
_ASKING = ("question", "query", "claim", "prompt", "request", "input", "statement", "text")
_REASONING = ("reasoning", "rationale", "thought", "explanation", "justification")
_LISTED = re.compile(r"^\[\d{1,6}\] «(.*)»$")


def reasoning_about(question: str, lines: tuple[str, ...]) -> str:
    """The chosen sentences in one line, each with the name of its subject.

    >>> reasoning_about("When did it open?", ("Orm Pier | It opened in 1871.",))
    'Orm Pier: It opened in 1871.'
    """
    chosen = read_passages(question, lines).chosen
    if not chosen:
        return f"Nothing given here tells about this: {question}" if question else "There is no question to answer."
    return " ".join(map(with_subject, chosen))


def with_subject(sentence: ReadSentence) -> str:
    """A sentence that names what it speaks of."""
    text = " ".join(sentence.text.split())
    text = text if text.endswith((".", "!", "?", '."')) else text + "."
    name = bare_title(sentence.title)
    return f"{name}: {text}" if name and name not in text else text


def relevant_to(question: str, lines: tuple[str, ...]) -> tuple[int, ...]:
    """The numbers of the passages in the chain of reasoning, and of those whose overlap comes close to the best.

    >>> relevant_to("When did Orm Pier open?", ("Orm Pier | Orm Pier opened in 1871.", "Kerry | A town."))
    (0,)
    """
    reading = read_passages(question, lines)
    chain = {sentence.passage for sentence in reading.chosen}
    floor = 0.75 * max(reading.scores, default=0.0)
    return tuple(i for i, score in enumerate(reading.scores) if i in chain or (score > 0.0 and score >= floor))


@dataclass(frozen=True, slots=True)
class ChatForm:
    """A chat prompt taken apart: its inputs by name, and its outputs with their types."""

    inputs: dict[str, str]
    outputs: list[tuple[str, str]]
    tool: re.Match[str] | None
    """The first tool of an agent that has observed nothing yet; the offline reader takes one step only."""

    @property
    def question(self) -> str:
        """The input that asks: by its name, else the last one."""
        named = (value for word in _ASKING for name, value in self.inputs.items() if word in name.lower())
        return next(named, next(reversed(self.inputs.values()), ""))

    @property
    def lines(self) -> tuple[str, ...]:
        """The passages: every line or list item of the other inputs."""
        return tuple(line for value in self.inputs.values() if value != self.question for line in _items(value))


def asks_for_fields(prompt: str) -> bool:
    """Whether the prompt's last line is the one with which DSPy's adapters end."""
    last = prompt.rstrip().rpartition("\n")[2]
    return bool(_RESPOND.match(last) and _FIELD.search(last))


def fill_fields(prompt: str) -> str:
    """The reply that fills every requested field.

    >>> request = "Respond with the corresponding output fields, starting with the field `[[ ## answer ## ]]`."
    >>> print(fill_fields("[[ ## question ## ]]\\nIs it?\\n\\n" + request))
    [[ ## answer ## ]]
    no
    <BLANKLINE>
    [[ ## completed ## ]]
    """
    above, _, request = prompt.rstrip().rpartition("\n")
    types = dict(_DECLARED.findall(above.partition(_OUTPUTS)[2].partition("All interactions will be")[0]))
    named = [(match[1] or match[2] or match[3], match[4]) for match in _FIELD.finditer(request)]
    outputs = [(name, types.get(name) or kind or "str") for name, kind in named if name != "completed"]
    tool = None if _OBSERVED.search(prompt) else _TOOL.search(prompt)
    form = ChatForm(_inputs(above, {name for name, _ in outputs}), outputs, tool)
    values = {name: _value(form, name, kind) for name, kind in outputs}
    if "JSON object" in request[:40]:
        return json.dumps(values, ensure_ascii=False)
    if "XML tags" in request:
        return "\n".join(f"<{name}>\n{_in_xml(value)}\n</{name}>" for name, value in values.items())
    parts = [f"[[ ## {name} ## ]]\n{_as_text(value)}" for name, value in values.items()]
    return "\n\n".join([*parts, "[[ ## completed ## ]]"])


def _inputs(text: str, outputs: set[str]) -> dict[str, str]:
    """The last value of each input field: earlier ones are the layout's and the demonstrations'.

    A marker that names no declared field belongs to the value it stands in (an agent's trajectory holds such).
    """
    head = text.partition(_OUTPUTS)[0] if _OUTPUTS in text else ""
    known = {name for name, _ in _DECLARED.findall(head)} | outputs | {"completed"}
    marks = [mark for mark in _MARKED.finditer(text) if not head or (mark[1] or mark[2]) in known]
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    found: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=True) if marks else ():
        name = mark[1] or mark[2]
        if name not in outputs | {"completed"}:
            found[name] = text[mark.end() : end].partition(f"\n</{name}>")[0].strip()
    return found


def _items(value: str) -> list[str]:
    """A list input's items, one line each; plain text gives its lines."""
    if value.startswith("["):
        try:
            loaded = json.loads(value)
        except (ValueError, RecursionError):
            loaded = None
        if isinstance(loaded, list):
            return [" ".join(str(item).split()) for item in loaded if isinstance(item, (str, int, float))]
    lines = (line.strip() for line in value.split("\n"))
    return [(match[1] if (match := _LISTED.match(line)) else line) for line in lines if line]


def _value(form: ChatForm, name: str, kind: str) -> Any:
    """A value of the type asked for: read from the passages where the type allows it."""
    question, lines = form.question, form.lines
    answer = answer_to(question, lines, kind.startswith("bool"))
    digits = re.search(r"\d{1,15}(?:\.\d{1,6})?", answer)
    number = float(digits[0]) if digits else 0.0
    by_type: dict[str, Callable[[], Any]] = {
        "Literal": lambda: _chosen(form, answer, [a or b for a, b in _CHOICE.findall(kind)]),
        "bool": lambda: answer == "yes",
        "int": lambda: int(number),
        "float": lambda: number,
        "list[int": lambda: list(relevant_to(question, lines)),
        "list": lambda: [answer],
        "dict": lambda: {form.tool[2]: question} if form.tool else {},
    }
    if make := next((make for opening, make in by_type.items() if kind.startswith(opening)), None):
        return make()
    name = name.lower()
    if any(word in name for word in _REASONING):
        return reasoning_about(question, lines)
    if "instruction" in name:  # handed back as it came
        return next((value for key, value in form.inputs.items() if "instruction" in key), question)
    return question if "query" in name or "search" in name else answer


def _chosen(form: ChatForm, answer: str, options: list[str]) -> str:
    """One of the allowed values: a tool while nothing is observed, else the one nearest to the answer."""
    if "finish" in options and len(options) > 1:
        return next(option for option in options if option != "finish") if form.tool else "finish"
    near = read_passages(form.question, form.lines).wanted | stems(answer)
    return max(options, key=lambda option: (option.lower() == answer.lower(), len(stems(option) & near)), default="")


def _in_xml(value: Any) -> str:
    if isinstance(value, list):
        return "".join(f"<item>{escape(str(item))}</item>" for item in value)
    return escape(_as_text(value))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
