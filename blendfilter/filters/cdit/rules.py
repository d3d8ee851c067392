"""Context matching dependencies: rules that say in which components a sentence must be like the question.

CDIT ("Context-Driven Index Trimming"), Definition 2: s1[sid] ~ s2[sid] -> s1[X_i] like s2[Y_i] for every i; phi1 of
Example 2 has subject, predicate and object, phi2 of appendix B.1 adds attributive and adverbial. A rule is data: a
name, its components, and the sentence that a prompt says it in. Several hold together, as a conjunction. In: names,
`Rule`s, or a file of the user's own. Out: `Rule`s.

Differs from the paper: the sentences are ours, and each is followed by what its components are.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName
from blendfilter.records import one_line

COMPONENTS: Mapping[str, str] = {
    "subject": "who or what does it, has it or is it",
    "predicate": "what is done, had or been: the verb with its particles, its complement and any not or never",
    "object": "whom or what it is done to",
    "attributive": "what tells more of a noun: which, whose, what kind, how many",
    "adverbial": "when, where, how, why or on what condition it happens",
}
"""The components that our rules compare, and what each is. A rule of one's own may name others."""

_COMPONENT = re.compile(r"[^\W\d_]+(?:[ -][^\W\d_]+){0,3}")
_NEARLY = 0.8
"""From this likeness on, an unknown component is one of ours misspelt."""
_EXAMPLE = 'write [[rule]] with name = "…", components = ["subject", "predicate"] and sentence = "…"'


@dataclass(frozen=True)
class Rule:
    """One rule. `sentence` is how the prompt says it.

    Raises:
        BadArgument: no name, or one of several lines; no sentence, no components, one twice, or one that is no word.
    """

    name: str
    components: tuple[str, ...]
    sentence: str

    def __post_init__(self) -> None:
        for field in ("name", "sentence"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value.strip():
                raise BadArgument(f"a rule's {field} is text, got {value!r:.60}: {_EXAMPLE}")
        # Names are written into records and lists of verdicts, several of them as phi1+phi2.
        if not self.name.isprintable() or self.name != self.name.strip() or {*self.name} & {*"+,"}:
            raise BadArgument(f"{self.name!r:.60} is no name of a rule: give a word or two, without '+' or ','")
        if isinstance(self.components, str) or not isinstance(self.components, Iterable):
            raise BadArgument(
                f"the rule '{self.name:.60}' has components {self.components!r:.60}: give a list of their names, such "
                f"as {', '.join(COMPONENTS)}"
            )
        object.__setattr__(self, "components", tuple(self.components))
        self._check_components()

    def _check_components(self) -> None:
        if not self.components:
            raise BadArgument(
                f"the rule '{self.name:.60}' has no components, so it compares nothing: name some of "
                f"{', '.join(COMPONENTS)}"
            )
        for each in self.components:
            if not isinstance(each, str) or not _COMPONENT.fullmatch(each):
                raise BadArgument(f"the rule '{self.name:.60}' has the component {each!r:.60}: a component is a word")
            near = difflib.get_close_matches(each.casefold(), COMPONENTS, n=1, cutoff=_NEARLY)
            if near and each != near[0]:
                raise UnknownName.of("component", each, COMPONENTS, f"(in the rule '{self.name:.60}')")
        if len({each.casefold() for each in self.components}) < len(self.components):
            raise BadArgument(f"the rule '{self.name:.60}' names a component twice: {', '.join(self.components)}")

    @property
    def line(self) -> str:
        """The rule as a prompt says it, on one line: its sentence, then its components and what they are.

        >>> Rule("mine", ("unit",), "Both give the same unit.").line
        'Both give the same unit. Components: unit.'
        """
        said = one_line(self.sentence)
        told = ", ".join(f"{each} ({COMPONENTS[each]})" if each in COMPONENTS else each for each in self.components)
        return f"{said if said.endswith(('.', '!', '?')) else said + '.'} Components: {told}."


PHI1 = Rule(
    "phi1",
    ("subject", "predicate", "object"),
    "A sentence is consistent with the question only if both speak of the same subject, say the same predicate of it, "
    "and name the same object.",
)
PHI2 = Rule(
    "phi2",
    ("attributive", "adverbial"),
    "A sentence is consistent with the question only if both give the same attributives to the things they name, and "
    "the same adverbials to what happens.",
)
RULES: Mapping[str, Rule] = {rule.name: rule for rule in (PHI1, PHI2)}
"""The rules by name."""


def rules_of(rules: Sequence[str | Rule]) -> tuple[Rule, ...]:
    """These rules, all of which must hold; names are those of `RULES`.

    >>> [rule.name for rule in rules_of(["phi1", Rule("mine", ("unit",), "Both give the same unit.")])]
    ['phi1', 'mine']

    Raises:
        UnknownName: no rule by that name. BadArgument: none at all, one twice, or one that takes a name of ours.
    """
    return _composed(rules, RULES)


def choose_rules(names: Sequence[str] = (), path: Path | None = None) -> tuple[Rule, ...]:
    """The rules of that name, ours or the file's; without names all of the file's, without a file phi1.

    >>> [rule.name for rule in choose_rules()]
    ['phi1']

    Raises: as `rules_of` and `read_rules` do.
    """
    own = read_rules(path) if path is not None else ()
    return _composed(names or own or (PHI1,), {**RULES, **{rule.name: rule for rule in own}})


def components_of(rules: Iterable[Rule]) -> tuple[str, ...]:
    """The components of all these rules, each once, in the order in which they are named.

    >>> components_of([PHI1, Rule("mine", ("object", "unit"), "…")])
    ('subject', 'predicate', 'object', 'unit')
    """
    return tuple(dict.fromkeys(component for rule in rules for component in rule.components))


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The rules of a TOML file of the user's own: tables ``[[rule]]`` of name, components and sentence.

    Raises:
        MissingFile: it is not there. BadData: it is no such file; the line says which rule and which field.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFile(f"no file of rules at {path}: write one; {_EXAMPLE}")
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadData(f"{path}: not TOML ({error}); {_EXAMPLE}") from None
    if unknown := sorted(told.keys() - {"rule"}):
        raise BadData(f"{path}: no field '{unknown[0]}' is known; {_EXAMPLE}")
    tables = told.get("rule")
    if not isinstance(tables, list) or not tables:
        raise BadData(f"{path}: it has no rules; {_EXAMPLE}")
    rules = [_rule(f"{path}, rule {number}", table) for number, table in enumerate(tables, 1)]
    try:
        return rules_of(rules)
    except BadArgument as error:
        raise BadData(f"{path}: {error}") from None


def _rule(where: str, table: Any) -> Rule:
    known = [field.name for field in fields(Rule)]
    if not isinstance(table, dict):
        raise BadData(f"{where}: {table!r:.60} is no rule; {_EXAMPLE}")
    for name in table:
        if name not in known:
            raise BadData(f"{where}: {UnknownName.of('field', name, known)}")
    if missing := [name for name in known if name not in table]:
        raise BadData(f"{where}: it has no '{missing[0]}'; {_EXAMPLE}")
    if not isinstance(table["components"], list):
        raise BadData(f"{where}: components is {table['components']!r:.60}: give a list; {_EXAMPLE}")
    try:
        return Rule(table["name"], tuple(table["components"]), table["sentence"])
    except (BadArgument, UnknownName) as error:
        raise BadData(f"{where}: {error}") from None


def _composed(rules: Sequence[str | Rule], known: Mapping[str, Rule]) -> tuple[Rule, ...]:
    asked = [rules] if isinstance(rules, str | Rule) else list(rules)
    if not asked:
        raise BadArgument(f"no rules, so nothing is compared: name some of {', '.join(known)}")
    found = [_known(each, known) for each in asked]
    names = [rule.name for rule in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadArgument(f"the rule '{twice}' is given twice: give it once, or the other one another name")
    return tuple(found)


def _known(rule: str | Rule, known: Mapping[str, Rule]) -> Rule:
    if isinstance(rule, Rule):
        # Verdicts are kept with the names of their rules: one name must not mean two things.
        if rule.name in RULES and rule != RULES[rule.name]:
            raise BadArgument(
                f"a rule '{rule.name}' is there already, and says something else: give yours another name"
            )
        return rule
    if rule not in known:
        raise UnknownName.of("rule", rule, known, "- or a Rule of your own (--rules FILE)")
    return known[rule]
