"""Prompts of DSPy's own adapters (chat markers, JSON, XML): every requested output field is filled.

So a user's own DSPy module runs offline too. Input: chat messages joined by blank lines. Output: a reply in the format
that the last "Respond with …" line asks for. Which value a field gets follows from its type, then from its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from blendfilter.lm.offline.answers import answer_to, reading_of, reasoning_about, relevant_to
from blendfilter.lm.offline.reading import stems

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


@dataclass(frozen=True, slots=True)
class _Form:
    """A chat prompt taken apart: the inputs by name, the outputs with their types, and all of the prompt."""

    inputs: dict[str, str]
    outputs: list[tuple[str, str]]
    style: str
    prompt: str

    @property
    def question(self) -> str:
        """The input that asks: by its name, else the last one."""
        for word in _ASKING:
            for name, value in self.inputs.items():
                if word in name.lower():
                    return value
        return next(reversed(self.inputs.values()), "")

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

    >>> asked = "Respond with the corresponding output fields, starting with the field `[[ ## answer ## ]]`."
    >>> print(fill_fields("[[ ## question ## ]]\\nIs it?\\n\\n" + asked))
    [[ ## answer ## ]]
    no
    <BLANKLINE>
    [[ ## completed ## ]]
    """
    form = _take_apart(prompt)
    values = {name: _value(form, name, kind) for name, kind in form.outputs}
    if form.style == "json":
        return json.dumps(values, ensure_ascii=False)
    if form.style == "xml":
        return "\n".join(f"<{name}>\n{_in_xml(value)}\n</{name}>" for name, value in values.items())
    parts = [f"[[ ## {name} ## ]]\n{_shown(value)}" for name, value in values.items()]
    return "\n\n".join([*parts, "[[ ## completed ## ]]"])


def _take_apart(prompt: str) -> _Form:
    above, _, request = prompt.rstrip().rpartition("\n")
    declared, _, _ = above.partition(_OUTPUTS)[2].partition("All interactions will be")
    types = dict(_DECLARED.findall(declared))
    outputs = [
        (name, types.get(name) or match[4] or "str")
        for match in _FIELD.finditer(request)
        if (name := match[1] or match[2] or match[3]) != "completed"
    ]
    style = "json" if "JSON object" in request[:40] else "xml" if "XML tags" in request else "chat"
    return _Form(_inputs(above, {name for name, _ in outputs}), outputs, style, prompt)


def _inputs(text: str, outputs: set[str]) -> dict[str, str]:
    """The last value of each input field: earlier ones are the layout's and the demonstrations'.

    A marker that names no declared field belongs to the value it stands in (an agent's trajectory holds such).
    """
    head = text.partition(_OUTPUTS)[0] if _OUTPUTS in text else ""
    known = {name for name, _ in _DECLARED.findall(head)} | outputs | {"completed"}
    marks = [mark for mark in _MARKED.finditer(text) if not head or (mark[1] or mark[2]) in known]
    found: dict[str, str] = {}
    for i, mark in enumerate(marks):
        end = marks[i + 1].start() if i + 1 < len(marks) else len(text)
        name = mark[1] or mark[2]
        if name not in outputs and name != "completed":
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


def _value(form: _Form, name: str, kind: str) -> Any:
    """A value of the type asked for: read from the passages where the type allows it."""
    of_type = next((make for opening, make in _OF_TYPE if kind.startswith(opening)), None)
    return of_type(form, kind) if of_type else _text(form, name.lower())


def _number(form: _Form, kind: str) -> int | float:
    """The first number of the answer, else 0."""
    number = re.search(r"\d{1,15}(?:\.\d{1,6})?", answer_to(form.question, form.lines))
    value = float(number[0]) if number else 0.0
    return int(value) if kind.startswith("int") else value


def _text(form: _Form, name: str) -> str:
    """A text field: an instruction is handed back as it came, a query is the question, anything else the answer."""
    if any(word in name for word in _REASONING):
        return reasoning_about(form.question, form.lines)
    if "instruction" in name:
        return next((value for key, value in form.inputs.items() if "instruction" in key), form.question)
    if "query" in name or "search" in name:
        return form.question
    return answer_to(form.question, form.lines)


def _finished(form: _Form) -> bool:
    """An agent that has observed something is done; the offline reader takes one step only."""
    return bool(_OBSERVED.search(form.prompt)) or not _TOOL.search(form.prompt)


def _chosen(form: _Form, kind: str) -> str:
    """One of the allowed values: a tool while nothing is observed, else the one nearest to the answer."""
    options = [a or b for a, b in _CHOICE.findall(kind)]
    if "finish" in options and len(options) > 1:
        return "finish" if _finished(form) else next(option for option in options if option != "finish")
    answer = answer_to(form.question, form.lines)
    shown = reading_of(form.question, form.lines).wanted | stems(answer)
    return max(options, key=lambda option: (option.lower() == answer.lower(), len(stems(option) & shown)), default="")


def _arguments(form: _Form) -> dict[str, str]:
    """Arguments of the first tool: its first parameter gets the question."""
    tool = None if _finished(form) else _TOOL.search(form.prompt)
    return {tool[2]: form.question} if tool else {}


_OF_TYPE: tuple[tuple[str, Callable[[_Form, str], Any]], ...] = (
    ("Literal", _chosen),
    ("bool", lambda form, _: answer_to(form.question, form.lines, True) == "yes"),
    ("int", _number),
    ("float", _number),
    ("list[int", lambda form, _: list(relevant_to(form.question, form.lines))),
    ("list", lambda form, _: [answer_to(form.question, form.lines)]),
    ("dict", lambda form, _: _arguments(form)),
)


def _in_xml(value: Any) -> str:
    if isinstance(value, list):
        return "".join(f"<item>{escape(str(item))}</item>" for item in value)
    return escape(_shown(value))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
