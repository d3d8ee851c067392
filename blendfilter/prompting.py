"""Jinja templates as a DSPy adapter: a signature says what goes in and out, a template says what the model reads.

The one file that touches DSPy's adapter interface (which changes in 3.5). A template's default instructions stand in
its `default_instructions` macro; they become the instructions of the predictor's signature and are rendered once, as
``{{ instructions }}``, so that rewriting them (an optimiser does) takes effect. Values are data: a passage can never
become a template, and everything that must stand on one line does.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import dspy
import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.sandbox import SandboxedEnvironment

from blendfilter import resources
from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName
from blendfilter.records import one_line, whole_characters
from blendfilter.replies import short_reply, whole_reply
from blendfilter.text import choices

logger = logging.getLogger(__name__)

Readers: TypeAlias = Mapping[str, Callable[[str], str]]

SHARED = {"blendfilter/answer": "blendfilter/external"}
"""Templates with the text of another one, unless overridden."""
OPTIONAL_FIELDS = frozenset({"offer_none", "topic", "rules"})
"""Inputs that a demonstration may leave out."""
READERS: Readers = {"answer": short_reply, "topic": short_reply}
"""How replies are read, by field; others are taken whole."""
WHOLE_READERS: Readers = {**READERS, "answer": whole_reply}
"""The same where answers are sentences."""


@dataclass(frozen=True)
class Template:
    """One loaded template, its default instructions and the names that it reads.

    `instructs`: whether the instructions are its own; an override without any takes the package's.
    """

    name: str
    path: Path
    overridden: bool
    instructions: str
    instructs: bool
    variables: frozenset[str]
    digest: str
    compiled: jinja2.Template

    def __deepcopy__(self, memo: dict[int, Any]) -> Template:
        return self  # nothing in it changes; a compiled template cannot be copied

    @property
    def takes_instructions(self) -> bool:
        """Whether the template renders ``{{ instructions }}``; without it a compiled program has no effect."""
        return "instructions" in self.variables

    @property
    def keeps_its_words(self) -> bool:
        """Whether a task's instructions are not applied: an override with instructions, or one that renders none."""
        return self.overridden and (self.instructs or not self.takes_instructions)


class Prompts:
    """The templates by name; the files of the folder `override` replace the package's one by one.

    Raises:
        MissingFile: no such folder. UnknownName: it holds a template that no stage reads.
    """

    def __init__(self, override: str | Path | None = None) -> None:
        own = resources.prompts()
        self.override = Path(override) if override is not None else None
        self.names = sorted({*_names_in(own), *SHARED})
        self._folders = [own]
        if self.override is not None:
            if not self.override.is_dir():
                raise MissingFile(f"no folder of prompts at {self.override}: check the path")
            for name in _names_in(self.override):
                if name not in self.names:
                    raise UnknownName.of("prompt", name, self.names, f"(found in {self.override})")
            self._folders = [self.override, own]
        self._environment = SandboxedEnvironment(
            loader=jinja2.FileSystemLoader(self._folders),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
        )
        self._environment.filters |= {
            "line": _on_one_line, "own_line": _own_line, "own_lines": _own_lines, "options": _options,
        }  # fmt: skip
        self._loaded: dict[str, Template] = {}

    def __getitem__(self, name: str) -> Template:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> Template:
        if name not in self.names:
            raise UnknownName.of("prompt", name, self.names, f"(looked in {', '.join(map(str, self._folders))})")
        file = name if self._find(name) else SHARED[name]
        path = self._find(file)
        assert path is not None  # a name in self.names has a file, or shares one
        try:
            source = path.read_text(encoding="utf-8")
            instructions, variables = self._read(source, set())
            compiled = self._environment.get_template(f"{file}.j2")
        except (jinja2.TemplateError, OSError, UnicodeError) as error:
            raise BadData(f"{path}: not a Jinja template: {error}") from error
        return Template(
            name=name,
            path=path,
            overridden=self.override is not None and path.is_relative_to(self.override),
            instructions=instructions or (own_prompts()[name].instructions if self.override else ""),
            instructs=bool(instructions),
            variables=frozenset(variables),
            digest=hashlib.sha256(source.encode()).hexdigest()[:16],
            compiled=compiled,
        )

    def _read(self, source: str, seen: set[str]) -> tuple[str, set[str]]:
        """Default instructions and free variables of a template and of those it extends."""
        tree = self._environment.parse(source)
        variables = jinja2.meta.find_undeclared_variables(tree)
        macros = (macro for macro in tree.find_all(nodes.Macro) if macro.name == "default_instructions")
        texts = ("".join(part.data for part in macro.find_all(nodes.TemplateData)) for macro in macros)
        # As DSPy reads a signature's instructions, or the two would not be equal.
        instructions = next((inspect.cleandoc(text.strip()) for text in texts), "")
        for parent in tree.find_all(nodes.Extends):
            file = parent.template.as_const()
            if file not in seen:
                text, _, _ = self._environment.loader.get_source(self._environment, file)  # type: ignore[union-attr]
                above, more = self._read(text, seen | {file})
                instructions, variables = instructions or above, variables | more
        return instructions, variables

    def _find(self, name: str) -> Path | None:
        return next((path for folder in self._folders if (path := folder / f"{name}.j2").is_file()), None)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits over the text of all templates."""
        return hashlib.sha256("".join(f"{name}:{self[name].digest};" for name in self.names).encode()).hexdigest()[:16]

    def __deepcopy__(self, memo: dict[int, Any]) -> Prompts:
        return self  # immutable once loaded; optimisers deep-copy modules by the dozen


@lru_cache(maxsize=1)
def own_prompts() -> Prompts:
    """The package's own templates, loaded once."""
    return Prompts()


class TemplateAdapter(dspy.Adapter):
    """Renders a predictor's template as one user message and reads the reply as its one output field.

    Args:
        template: a template's name. Without one, an `Ask` renders the template that it names, and any other predictor
            goes to `dspy.ChatAdapter` (so this adapter can be configured globally without harm to optimisers).
        prompts: the package's own by default.
        readers: how replies are read, by field.
    """

    def __init__(
        self, template: str | None = None, prompts: Prompts | None = None, readers: Readers | None = None
    ) -> None:
        super().__init__()
        self.prompts = prompts or own_prompts()
        self.template = self.prompts[template] if template is not None else None
        self.readers = READERS if readers is None else readers
        self._warned = False

    def with_template(self, template: str) -> TemplateAdapter:
        """This adapter for `template`; itself where it has one already."""
        return self if self.template is not None else TemplateAdapter(template, self.prompts, self.readers)

    def with_readers(self, readers: Readers) -> TemplateAdapter:
        """This adapter with other readers of replies."""
        return TemplateAdapter(self.template.name if self.template else None, self.prompts, readers)

    @property
    def reads(self) -> str:
        """How much of an answer is read: its first line, or all of it."""
        return "all of it" if self.readers == WHOLE_READERS else "its first line"

    def format(
        self, signature: type[dspy.Signature], demos: Sequence[Mapping[str, Any]], inputs: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        if self.template is None:
            return _chat().format(signature, demos, inputs)  # type: ignore[no-any-return]
        return [{"role": "user", "content": self.render(signature, demos, inputs)}]

    def render(
        self, signature: type[dspy.Signature], demos: Sequence[Mapping[str, Any]], inputs: Mapping[str, Any]
    ) -> str:
        """The text that a model reads.

        Raises:
            BadData: a value that the template wants is missing, or it does not render an optimiser's instructions.
        """
        template = self.template
        if template is None:
            raise BadArgument("this adapter has no template: name one, TemplateAdapter('direct')")
        if signature.instructions != template.instructions and not template.takes_instructions:
            raise BadData(
                f"{template.path} does not render {{{{ instructions }}}}: this program's instructions would be lost; "
                "add it to the template, or use the program without this override"
            )
        # Half-filled demonstrations would teach the model to leave slots empty: an optimiser may hand over bare
        # training rows beside those that it bootstrapped.
        wanted = [*(name for name in inputs if name not in OPTIONAL_FIELDS), *signature.output_fields]
        complete = [demo for demo in demos if all(demo.get(name) is not None for name in wanted)]
        if len(complete) < len(demos) and not self._warned:
            self._warned = True
            logger.warning(
                "%s: %d of %d demonstrations lack one of the fields %s and are left out",
                template.name, len(demos) - len(complete), len(demos), ", ".join(wanted),
            )  # fmt: skip
        try:
            text = template.compiled.render(instructions=signature.instructions, demos=complete, **inputs)
            return whole_characters(text.strip())
        except jinja2.UndefinedError as error:
            readable = ", ".join(["instructions", "demos", *signature.input_fields])
            raise BadData(f"{template.path}: {error.message}; a template may read {readable}") from error
        except (jinja2.TemplateError, TypeError) as error:
            raise BadData(f"{template.path}: cannot be rendered: {error}") from error

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        if self.template is None:
            return _chat().parse(signature, completion)  # type: ignore[no-any-return]
        (name,) = signature.output_fields
        return {name: self.readers.get(name, str.strip)(completion)}

    def _call_postprocess(
        self, processed_signature: Any, original_signature: Any, outputs: Any, lm: Any, lm_kwargs: Any
    ) -> list[dict[str, Any]]:
        if self.template is None:
            return super()._call_postprocess(  # type: ignore[no-any-return]
                processed_signature, original_signature, outputs, lm, lm_kwargs
            )
        # DSPy raises on an empty reply; here it is an event, noted where the call is journaled.
        values = []
        for output in outputs:
            text = output.get("text") if isinstance(output, dict) else output
            value = self.parse(original_signature, text or "")
            if isinstance(output, dict) and output.get("logprobs"):
                value["logprobs"] = output["logprobs"]
            values.append(value)
        return values

    def __deepcopy__(self, memo: dict[int, Any]) -> TemplateAdapter:
        return self


def _on_one_line(value: Any) -> str:
    if isinstance(value, jinja2.Undefined):
        return str(value)  # raises, naming what is missing
    return one_line(str(value))


def _own_line(value: Any) -> str:
    """A passage at the beginning of a line, behind a bar where it could pass for a part of the prompt."""
    line = _on_one_line(value)
    return f"| {line}" if _PART.match(line) else line


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
    r"((?:Question|Knowledge|(?:knowledge|sentence|passage) \d+|The knowledge(?:, numbered .*)?|Context|Passage|Topic"
    r"|Relevance|Ids|Judgement|Answer|Golden answers|Rules|Comparison|Verdict"
    r"):|#{3}|# ?#? ?(?:Background|Instruction|Response):|Let's think step by step)"
)


def _names_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.j2"))


@lru_cache(maxsize=1)
def _chat() -> dspy.Adapter:
    return dspy.ChatAdapter(use_json_adapter_fallback=False)


def questions_of(demos: Iterable[Mapping[str, Any]]) -> list[str]:
    """The questions that demonstrations use; an evaluation must not ask them."""
    return [str(question) for demo in demos if (question := demo.get("question"))]
