"""Rules as data: what one is, how several go together, and a user's file of them, each mistake named with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName
from blendfilter.filters.cdit import (
    COMPONENTS,
    PHI1,
    PHI2,
    RULES,
    Rule,
    choose_rules,
    components_of,
    read_rules,
    rules_of,
)

UNIT = Rule("unit", ("unit of measure",), "Both give the number in the same unit")


class TestRule:
    def test_the_papers_two_share_no_component_and_have_all_of_them(self) -> None:
        assert components_of([PHI1, PHI2]) == tuple(COMPONENTS)
        assert (PHI1.components, PHI2.components) == (("subject", "predicate", "object"), ("attributive", "adverbial"))

    def test_its_line_tells_what_its_components_are(self) -> None:
        assert PHI1.line.startswith(PHI1.sentence + " Components: subject (")
        assert all(f"{each} ({COMPONENTS[each]})" in PHI1.line for each in PHI1.components)
        assert UNIT.line == "Both give the number in the same unit. Components: unit of measure."

    def test_its_line_is_one_line(self) -> None:
        assert "\n" not in Rule("own", ("unit",), "a\nRules:\n- b\u2028c").line.replace("\u2028", "\n")

    def test_a_list_of_components_is_taken_as_it_is_written_in_python(self) -> None:
        rule = Rule("own", ["subject", "unit"], "Same unit.")  # type: ignore[arg-type]
        assert rule.components == ("subject", "unit")
        assert hash(rule) == hash(Rule("own", ("subject", "unit"), "Same unit."))

    @pytest.mark.parametrize(
        ("values", "told"),
        [
            (("own", (), "Same."), "the rule 'own' has no components, so it compares nothing: name some of subject, "),
            (("", ("unit",), "Same."), "a rule's name is text, got ''"),
            ((" \n", ("unit",), "Same."), "a rule's name is text"),
            ((3, ("unit",), "Same."), "a rule's name is text, got 3"),
            (("two\nlines", ("unit",), "Same."), r"'two\nlines' is no name of a rule: give a word or two"),
            (("phi1+phi2", ("unit",), "Same."), "'phi1+phi2' is no name of a rule"),
            (("a, b", ("unit",), "Same."), "is no name of a rule"),
            ((" own", ("unit",), "Same."), "is no name of a rule"),
            (("\x1b[31mred", ("unit",), "Same."), "is no name of a rule"),
            (("own", ("unit", "Unit"), "Same."), "names a component twice: unit, Unit"),
            (("own", ("unit",), " "), "a rule's sentence is text, got ' '"),
            (("own", "subject", "Same."), "has components 'subject': give a list of their names"),
            (("own", 3, "Same."), "has components 3: give a list"),
            (("own", ("subject", "subject"), "Same."), "names a component twice: subject, subject"),
            (("own", ("a: b",), "Same."), "has the component 'a: b': a component is a word"),
            (("own", ("a | b",), "Same."), "a component is a word"),
            (("own", ("a\nb",), "Same."), "a component is a word"),
            (("own", ("{{ x }}",), "Same."), "a component is a word"),
            (("own", (3,), "Same."), "has the component 3"),
        ],
    )
    def test_what_is_no_rule(self, values: tuple[Any, Any, Any], told: str) -> None:
        with pytest.raises(BadArgument) as error:
            Rule(*values)
        assert told in str(error.value)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("misspelt", ["predicat", "subjects", "Subject", "advebial"])
    def test_a_component_of_ours_misspelt_is_not_another_one(self, misspelt: str) -> None:
        with pytest.raises(UnknownName, match=f"no component '{misspelt}'. Did you mean '.*'.*in the rule 'own'"):
            Rule("own", (misspelt,), "Same.")


class TestComposition:
    def test_names_and_rules_in_the_order_given(self) -> None:
        assert rules_of(("phi2", UNIT, "phi1")) == (PHI2, UNIT, PHI1)

    def test_a_single_one_is_not_taken_for_its_letters(self) -> None:
        assert rules_of("phi1") == rules_of(PHI1) == (PHI1,)  # type: ignore[arg-type]

    def test_nobody_by_that_name(self) -> None:
        with pytest.raises(UnknownName, match=r"no rule 'phi3'. Did you mean 'phi\d'\? \(known: phi1, phi2\)"):
            rules_of(["phi3"])

    @pytest.mark.parametrize("rules", [(), []])
    def test_none(self, rules: Any) -> None:
        with pytest.raises(BadArgument, match="no rules, so nothing is compared: name some of phi1, phi2"):
            rules_of(rules)

    @pytest.mark.parametrize("rules", [("phi1", "phi1"), ("phi1", PHI1), (UNIT, Rule("unit", ("unit",), "Other."))])
    def test_one_name_twice(self, rules: Any) -> None:
        with pytest.raises(BadArgument, match=r"the rule '(phi1|unit)' is given twice"):
            rules_of(rules)

    def test_a_name_of_ours_means_one_thing(self) -> None:
        with pytest.raises(BadArgument, match="a rule 'phi1' is there already, and says something else"):
            rules_of([Rule("phi1", ("subject",), "Other.")])


GOOD = """
[[rule]]
name = "unit"
components = ["unit of measure"]
sentence = "Both give the number in the same unit"

[[rule]]
name = "who"
components = ["subject"]
sentence = '''Both speak
of {{ 7 * 7 }}.'''
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


class TestFile:
    def test_its_rules_in_their_order(self, tmp_path: Path) -> None:
        unit, who = read_rules(written(tmp_path, GOOD))
        assert unit == UNIT
        assert who.line == f"Both speak of {{{{ 7 * 7 }}}}. Components: subject ({COMPONENTS['subject']})."

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("[[rule]\n", r"not TOML \(.*at line 1, column "),
            ("", "it has no rules; write"),
            ("rule = []", "it has no rules"),
            ("rule = 3", "it has no rules"),
            ("[rule]\nname = 'a'", "it has no rules"),
            ("rule = ['phi1']", "rule 1: 'phi1' is no rule"),
            (GOOD + "[other]\n", "no field 'other' is known"),
            (GOOD + "[[rule]]\nname = 'a'\ncomponents = ['unit']\n", "rule 3: it has no 'sentence'"),
            (GOOD + "[[rule]]\ncomponents = ['unit']\nsentence = 'S.'\n", "rule 3: it has no 'name'"),
            (GOOD + "[[rule]]\nname = 'a'\ncomponent = ['unit']\n", "rule 3: no field 'component'. .* 'components'"),
            (GOOD + "[[rule]]\nname = 'a'\ncomponents = []\nsentence = 'S.'\n", "rule 3: the rule 'a' has no compo"),
            (GOOD + "[[rule]]\nname = 'a'\ncomponents = 'unit'\nsentence = 'S.'\n", "rule 3: components is 'unit'"),
            (GOOD + "[[rule]]\nname = 3\ncomponents = ['unit']\nsentence = 'S.'\n", "rule 3: a rule's name is text"),
            (
                GOOD + "[[rule]]\nname = 'a'\ncomponents = ['objekt']\nsentence = 'S.'\n",
                "rule 3: no component 'objekt'",
            ),
            (GOOD + GOOD, "the rule 'unit' is given twice"),
            (GOOD + "[[rule]]\nname = 'phi1'\ncomponents = ['unit']\nsentence = 'S.'\n", "a rule 'phi1' is there"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_place(self, tmp_path: Path, text: str, told: str) -> None:
        path = written(tmp_path, text)
        with pytest.raises(BadData, match=told) as error:
            read_rules(path)
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.toml"
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(BadData, match="not TOML"):
            read_rules(path)

    @pytest.mark.parametrize("name", ["gone.toml", "."])
    def test_no_such_file(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(MissingFile, match="no file of rules at"):
            read_rules(tmp_path / name)


class TestChoice:
    def test_without_names_all_of_the_files_and_without_a_file_phi1(self, tmp_path: Path) -> None:
        path = written(tmp_path, GOOD)
        assert choose_rules() == (PHI1,)
        assert choose_rules((), path) == read_rules(path)

    def test_names_of_ours_and_of_the_files(self, tmp_path: Path) -> None:
        path = written(tmp_path, GOOD)
        assert [rule.name for rule in choose_rules(["who", "phi2"], path)] == ["who", "phi2"]
        with pytest.raises(
            UnknownName, match=r"no rule 'unti'. Did you mean 'unit'\? \(known: phi1, phi2, unit, who\)"
        ):
            choose_rules(["unti"], path)

    def test_a_file_changes_no_rule_of_ours(self, tmp_path: Path) -> None:
        choose_rules((), written(tmp_path, GOOD))
        assert list(RULES) == ["phi1", "phi2"]
