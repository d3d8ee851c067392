"""Jinja templates as a DSPy adapter: a signature says what goes in and out, a template says what the model reads.

A template's default instructions stand in its `default_instructions` macro; they become the instructions of the
predictor's signature and are rendered once, as ``{{ instructions }}``, so that rewriting them (an optimiser does) takes
effect. Values are data: a passage can never become a template, and everything that must stand on one line does.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import logging
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import dspy
import jinja2
import jinja2.meta
import pydantic
from jinja2 import nodes
from jinja2.sandbox import SandboxedEnvironment

from blendfilter import resources
from blendfilter.dspy_surface import Shared, TextAdapter
from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName, guess
from blendfilter.files import path_of
from blendfilter.records import one_line, whole_characters
from blendfilter.replies import (
    short_reply,
    short_reply_so_far,
    topic,
    whole_reply,
    whole_reply_so_far,
)
from blendfilter.text import choices

logger = logging.getLogger(__name__)

Readers: TypeAlias = Mapping[str, Callable[[str], str]]

OURS, PAPER = "ours", "paper"
"""What our own templates are called, and the set that has the papers' order and slots, in our words."""
SETS = (PAPER,)
"""Sets of templates beside our own, by name."""
INSTRUCTIONS = "instructions.json"
"""The file of a set or a folder that has instructions by task and template."""
_Words: TypeAlias = (
    Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=1)] | None
)
_WORDS = pydantic.TypeAdapter(dict[str, dict[str, _Words]])
SHARED = {"blendfilter/answer": "blendfilter/external"}
"""Templates with the text of another one, unless overridden."""
OPTIONAL_FIELDS = frozenset({"offer_none", "topic", "rules", "json"})
"""Inputs that a demonstration may leave out."""
READERS: Readers = {"answer": short_reply, "topic": topic}
"""How replies are read, by field; others are taken whole."""
WHOLE_READERS: Readers = {**READERS, "answer": whole_reply}
"""The same where answers are sentences."""
SO_FAR: Mapping[Callable[[str], str], Callable[[str], str]] = {
    str.strip: str.strip,
    short_reply: short_reply_so_far,
    whole_reply: whole_reply_so_far,
}
"""What a reader of replies is certain of before a reply is whole."""
NOTHING_FOUND = "(nothing relevant was found)"
"""The line that stands where passages would, after a search that found or kept none."""
ANSWER_FORM = "one or a few words"
"""What an answer looks like where a task does not say: the reminder in the cue of an answer."""


@dataclass(frozen=True)
class Template(Shared):
    """One loaded template, its default instructions and the names that it reads.

    `instructs`: whether the instructions are its own; an override without any takes the package's. `of_set`: the set
    that it belongs to, "" of our own and of a user's. `for_tasks`: what its set or folder says in place of the
    instructions on some tasks; None: the template's own.
    """

    name: str
    path: Path
    overridden: bool
    instructions: str
    instructs: bool
    variables: frozenset[str]
    digest: str
    compiled: jinja2.Template
    of_set: str
    for_tasks: Mapping[str, str | None]
    among: Prompts = field(repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, (self.among, self.name)

    @property
    def takes_instructions(self) -> bool:
        """Whether the template renders ``{{ instructions }}``; without it a compiled program has no effect."""
        return "instructions" in self.variables

    @property
    def keeps_its_words(self) -> bool:
        """Whether a task's instructions are not applied: a user's template that has some, or that renders none."""
        return (
            self.overridden
            and not self.of_set
            and (self.instructs or not self.takes_instructions)
        )


class Prompts(Shared):
    """The templates by name; those of `override` replace the package's one by one.

    Args:
        override: the name of a set (`paper`), or a folder of one's own. (A folder called ``paper`` is ``./paper``, or
            a `Path`.)

    Raises:
        MissingFile: no such folder. UnknownName: it holds a template that no stage reads. BadData: it has none, or its
            instructions by task (`instructions.json`) are not to be read.
    """

    def __init__(self, override: str | Path | None = None) -> None:
        own = resources.prompts()
        self.set_name = override if isinstance(override, str) and override in SETS else ""
        self.override = None
        if override is not None:
            self.override = own / self.set_name if self.set_name else path_of(override)
        ours = {name for name in _names_in(own) if name.partition("/")[0] not in SETS}
        self.names = sorted(ours | SHARED.keys())
        self._folders = [own]
        self._instructions: dict[str, dict[str, str | None]] = {}
        if self.override is not None:
            if not self.override.is_dir():
                near = guess(str(override), SETS)
                raise MissingFile(
                    f"no folder of prompts at {self.override}: check the path, or name a set ({', '.join(SETS)})"
                    f"{'.' * bool(near)}{near}"
                )
            found = _names_in(self.override)
            if not found and not (self.override / INSTRUCTIONS).is_file():
                raise BadData(
                    f"{self.override} has no prompt in it: no NAME.j2 (such as direct.j2), no {INSTRUCTIONS}"
                )
            self._check_names(found, self.override)
            self._folders = [self.override, own]
            self._instructions = self._instructions_in(self.override / INSTRUCTIONS)
        self._environment = SandboxedEnvironment(
            loader=jinja2.FileSystemLoader(self._folders),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
        )
        self._environment.filters |= {
            "line": _on_one_line,
            "own_line": _own_line,
            "own_lines": _own_lines,
            "options": _options,
            "ids_reply": _ids_reply,
        }
        self._loaded: dict[str, Template] = {}

    def __repr__(self) -> str:
        named = self.set_name or (self.override and str(self.override))
        return f"Prompts({named!r})" if named else "Prompts()"

    @staticmethod
    def of(prompts: Prompts | str | Path | None) -> Prompts:
        """`prompts` themselves, those of a set or a folder, or (None, empty, `ours`) the package's own."""
        if prompts in (OURS, ""):  # --prompts "$UNSET" names no folder
            return own_prompts()
        if isinstance(prompts, Prompts):
            return prompts
        return _known_prompts(prompts) if prompts in (None, *SETS) else Prompts(prompts)

    def _check_names(self, names: Iterable[str], where: Path) -> None:
        for name in names:
            if name not in self.names:
                raise UnknownName.of("prompt", name, self.names, f"(found in {where})")

    @property
    def overridden(self) -> list[str]:
        """The names of the templates that do not come from the package's own set."""
        return [name for name in self.names if self[name].overridden]

    def __getitem__(self, name: str) -> Template:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _instructions_in(self, path: Path) -> dict[str, dict[str, str | None]]:
        """Instructions by task and template; none where there is no such file."""
        if not path.is_file():
            return {}
        try:
            found = _WORDS.validate_json(path.read_bytes())
        except (pydantic.ValidationError, OSError) as error:
            form = '{"TASK": {"TEMPLATE": "instructions, or null for the template\'s own"}}'
            raise BadData(f"{path}: {what_is_wrong(error)}; it is {form}") from None
        tasks = sorted(each.parent.name for each in resources.programs().glob("*/default.json"))
        for task, words in found.items():
            if task not in tasks:
                raise UnknownName.of("task", task, tasks, f"(found in {path})")
            self._check_names(words, path)
        return found

    def _load(self, name: str) -> Template:
        if name not in self.names:
            raise UnknownName.of(
                "prompt", name, self.names, f"(looked in {', '.join(map(str, self._folders))})"
            )
        file = name if self._find(name) else SHARED[name]
        path = self._find(file)
        assert path is not None  # a name in self.names has a file, or shares one
        try:
            source = path.read_text(encoding="utf-8")
            files = {f"{file}.j2"}  # and those that it extends
            instructions, variables = self._read(source, files)
            compiled = self._environment.get_template(f"{file}.j2")
        except (jinja2.TemplateError, OSError, UnicodeError) as error:
            raise BadData(f"{path}: not a Jinja template: {error}") from error
        overridden = self.override is not None and any(
            (self.override / each).is_file() for each in files
        )
        inherited = own_prompts()[name].instructions if self.override else ""
        words_of = {task: worded_as(name, of) for task, of in self._instructions.items()}
        return Template(
            name=name,
            path=path,
            overridden=overridden,
            instructions=instructions or inherited,
            instructs=bool(instructions),
            variables=frozenset(variables),
            digest=hashlib.sha256(source.encode()).hexdigest()[:16],
            compiled=compiled,
            of_set=self.set_name if overridden else "",
            for_tasks={
                task: self._instructions[task][at] for task, at in words_of.items() if at
            },
            among=self,
        )

    def _read(self, source: str, seen: set[str]) -> tuple[str, set[str]]:
        """Default instructions and free variables of a template and of those it extends, whose files `seen` takes."""
        tree = self._environment.parse(source)
        variables = jinja2.meta.find_undeclared_variables(tree)
        instructions = ""
        for macro in tree.find_all(nodes.Macro):
            if macro.name == "default_instructions":
                text = "".join(part.data for part in macro.find_all(nodes.TemplateData))
                # As DSPy reads a signature's instructions, or the two would not be equal.
                instructions = inspect.cleandoc(text.strip())
        for parent in tree.find_all(nodes.Extends):
            file = parent.template.as_const()
            if file not in seen:
                text, _, _ = self._environment.loader.get_source(self._environment, file)  # type: ignore[union-attr]
                seen.add(file)
                above, more = self._read(text, seen)
                instructions, variables = instructions or above, variables | more
        return instructions, variables

    def _find(self, name: str) -> Path | None:
        return next(
            (path for folder in self._folders if (path := folder / f"{name}.j2").is_file()),
            None,
        )

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits over the text of all templates, and over instructions by task."""
        text = "".join(f"{name}:{self[name].digest};" for name in self.names)
        by_task = json.dumps(self._instructions, sort_keys=True) if self._instructions else ""
        return hashlib.sha256((text + by_task).encode()).hexdigest()[:16]

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle names its templates: the package's own, a set, or a folder, which must be there where it is loaded.
        own = self.override is None or self.set_name
        return Prompts.of, (self.set_name or None if own else self.override.resolve(),)  # type: ignore[union-attr]


def own_prompts() -> Prompts:
    """The package's own templates, loaded once."""
    return _known_prompts(None)


@lru_cache
def _known_prompts(name: str | None) -> Prompts:
    """Our own templates, or a set by its name."""
    return Prompts(name)


def worded_as(name: str, words: Mapping[str, Any]) -> str | None:
    """The name in `words` under which instructions of the template `name` stand, if there are some.

    The answer speaks as the external step does, a second request for the same thing as the first.
    """
    names = (name, SHARED.get(name, ""), name.removesuffix("_again"))
    return next((spoken for spoken in names if spoken in words), None)


def what_is_wrong(error: Exception) -> str:
    """An error of a file of JSON in a few words, with its place (``1.hops.0.answer: …``)."""
    if not isinstance(error, pydantic.ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


class TemplateAdapter(Shared, TextAdapter):
    """Renders a predictor's template as one user message and reads the reply as its one output field.

    Args:
        template: a template's name. Without one, an `Ask` renders the template that it names, and any other predictor
            goes to `dspy.ChatAdapter` (so this adapter can be configured globally without harm to optimisers).
        prompts: the package's own by default; `Prompts`, a set (``"paper"``) or a folder.
        readers: how replies are read, by field.
        json: the reply is held to a JSON schema; templates read it as the variable of that name.
        turns: demonstrations are turns of a conversation, not parts of one message.
    """

    def __init__(
        self,
        template: str | None = None,
        prompts: Prompts | str | None = None,
        readers: Readers | None = None,
        *,
        json: bool = False,
        turns: bool = False,
    ) -> None:
        super().__init__()
        self.json, self.as_turns = json, turns
        self.prompts = Prompts.of(prompts)
        self.template = self.prompts[template] if template is not None else None
        self.readers = READERS if readers is None else readers
        self._warned = set[str]()

    def with_template(self, template: str) -> TemplateAdapter:
        """This adapter for `template`; itself where it has one already."""
        return self if self.template is not None else self._as(template=self.prompts[template])

    def with_readers(self, readers: Readers) -> TemplateAdapter:
        """This adapter with other readers of replies."""
        return self._as(readers=readers)

    def for_call(self, *, json: bool, turns: bool) -> TemplateAdapter:
        """This adapter for one call: whether its reply is held to a JSON schema, its demonstrations are turns."""
        return self._as(json=json, as_turns=turns)

    def _as(self, **changed: Any) -> TemplateAdapter:
        other = copy.copy(self)
        other.__dict__.update(changed)
        return other

    @property
    def reads(self) -> str:
        """How much of an answer is read: its first line, or all of it."""
        return "all of it" if self.readers == WHOLE_READERS else "its first line"

    @property
    def delegates(self) -> bool:  # type: ignore[override]
        """Whether DSPy's chat adapter writes the prompts and reads the replies: there is no template."""
        return self.template is None

    def turns(
        self,
        signature: type[dspy.Signature],
        demos: Sequence[Mapping[str, Any]],
        inputs: Mapping[str, Any],
    ) -> list[tuple[str, str]]:
        """The prompt as messages: a single one, or demonstrations as turns of a conversation before it."""
        if not self.as_turns:
            return [("user", self.render(signature, demos, inputs))]
        (reply,) = signature.output_fields
        same = {name: inputs[name] for name in OPTIONAL_FIELDS if name in inputs}
        messages = list[tuple[str, str]]()
        for demo in self._complete(signature, demos):
            given = {**same, "topic": "", **demo}
            read = {name: given[name] for name in signature.input_fields if name in given}
            messages.append(("user", self.render(signature, [], read)))
            messages.append(("assistant", whole_characters(str(demo[reply]).strip())))
        return [*messages, ("user", self.render(signature, [], inputs))]

    def render(
        self,
        signature: type[dspy.Signature],
        demos: Sequence[Mapping[str, Any]],
        inputs: Mapping[str, Any],
    ) -> str:
        """The text that a model reads; beside the signature's inputs a template may read `answer_form` and `json`.

        Raises:
            BadData: a value that the template wants is missing, or it does not render an optimiser's instructions.
        """
        template = self.template
        if template is None:  # DSPy's chat adapter writes the prompts of such a one
            raise BadArgument(
                "this adapter has no template: name one, TemplateAdapter('direct')"
            )
        if signature.instructions != template.instructions and not template.takes_instructions:
            raise BadData(
                f"{template.path} does not render {{{{ instructions }}}}: this program's instructions would be lost; "
                "add it to the template, or use the program without this override"
            )
        variables = {
            "instructions": signature.instructions,
            "demos": self._complete(signature, demos),
            "answer_form": _answer_form(signature),
            "json": self.json,
            **inputs,
        }
        try:
            return whole_characters(template.compiled.render(variables).strip())
        except jinja2.UndefinedError as error:
            raise BadData(
                f"{template.path}: {error.message}; a template may read {', '.join(variables)}"
            ) from error
        except (jinja2.TemplateError, TypeError) as error:
            raise BadData(f"{template.path}: cannot be rendered: {error}") from error

    def _complete(
        self, signature: type[dspy.Signature], demos: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """The demonstrations that have every field.

        Half-filled ones would teach the model to leave slots empty: an optimiser may hand over bare training rows
        beside those that it bootstrapped.
        """
        complete = [demo for demo in demos if fills(demo, signature)]
        name = self.template.name  # type: ignore[union-attr]
        if len(complete) < len(demos) and name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "%s: %d of %d demonstrations lack one of the fields %s and are left out",
                name,
                len(demos) - len(complete),
                len(demos),
                ", ".join(field_names(signature)),
            )
        return complete

    def read(self, signature: type[dspy.Signature], text: str) -> dict[str, Any]:
        """The one output field, read from a reply."""
        (name,) = signature.output_fields
        return {name: self.readers.get(name, str.strip)(text)}

    def read_so_far(self, signature: type[dspy.Signature], text: str) -> str:
        """What is certain of the output field while its reply has come to `text`."""
        (name,) = signature.output_fields
        read = SO_FAR.get(self.readers.get(name, str.strip))
        return read(text) if read else ""


def field_names(signature: type[dspy.Signature]) -> list[str]:
    """The fields that a demonstration of `signature` must have."""
    return [
        *(name for name in signature.input_fields if name not in OPTIONAL_FIELDS),
        *signature.output_fields,
    ]


def fills(demo: Mapping[str, Any], signature: type[dspy.Signature]) -> bool:
    """Whether a demonstration has every field that a template shows."""
    return all(demo.get(name) is not None for name in field_names(signature))


def _answer_form(signature: type[dspy.Signature]) -> str:
    """What the description of the field `answer` says that an answer looks like; a saved program keeps it."""
    field = signature.output_fields.get("answer")
    description = str(field.json_schema_extra["desc"]) if field else ""
    return ANSWER_FORM if description in ("", "${answer}") else description


def _on_one_line(value: Any) -> str:
    if isinstance(value, jinja2.Undefined):
        return str(value)  # raises, naming what is missing
    return one_line(str(value))


def _own_line(value: Any) -> str:
    """A passage at the beginning of a line, behind a bar where it could pass for a part of the prompt."""
    line = _on_one_line(value)
    return f"| {line}" if _PART.match(line) else line


def _ids_reply(value: Any, json_held: bool) -> str:
    """A demonstration's ids as a reply: in JSON where replies are held to it and the ids are plain numbers."""
    text = _own_line(value)
    numbers = "" if text == "none" else text
    plain = re.fullmatch("[0-9, ]*", numbers)
    return f'{{"ids": [{numbers}]}}' if json_held and plain else text


def _options(value: Any) -> list[str]:
    """A question on one line, and each of its options on another."""
    parts = choices(_on_one_line(value))
    return [parts.stem, *parts.lines]


def _own_lines(value: Any, *allowed: str) -> str:
    """A model's earlier reply, guarded as `_own_line` guards a passage; `allowed` parts may open a line."""
    if isinstance(value, jinja2.Undefined):
        return str(value)
    return "\n".join(
        f"| {line}" if (part := _PART.match(line)) and part[1] not in allowed else line
        for line in str(value).strip().splitlines()
    )


# What the lines of our prompts begin with: their parts, and the cues at their ends; invisible marks may stand before.
_PART = re.compile(
    r"[\s\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]*"
    r"((?:Question|Title|Knowledge|(?:knowledge|sentence|passage) \d+|The (?:knowledge|passages)(?:, numbered .*)?"
    r"|Context|Passage|Topic|Relevance|Relevant|Ids|Judgement|Answer|Golden answers|Rules|Comparison|Verdict"
    rf")(?: \([^()\n]{{1,60}}\))?:|{re.escape(NOTHING_FOUND)}"
    r"|#{3}|# ?#? ?(?:Background|Instruction|Response):|Let's think step by step)"
)


def _names_in(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.j2")
    )


def questions_of(demos: Iterable[Mapping[str, Any]]) -> list[str]:
    """The questions that demonstrations use; an evaluation must not ask them."""
    return [str(question) for demo in demos if (question := demo.get("question"))]
