"""The folder of overrides: templates of one's own, one by one, and what is wrong with them in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from isle import TASKS, predictors

from blendfilter.errors import BadData
from blendfilter.prompting import Prompts, own_prompts


def override(folder: Path, **templates: str) -> Prompts:
    """`folder` filled with `templates` (`blendfilter__external` is blendfilter/external), as prompts."""
    for name, text in templates.items():
        path = folder / f"{name.replace('__', '/')}.j2"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Prompts(folder)


class TestOverrides:
    def test_an_external_of_ones_own_is_the_answer_prompt_too(self, tmp_path: Path) -> None:
        prompts = override(tmp_path, blendfilter__external="Mine: {{ question }}")
        mine = predictors("hotpotqa", prompts=prompts)
        for name in ("external", "answer", "cot_retrieval"):
            assert mine[name].template.overridden
            assert mine[name].render(knowledge=[], question="why?") == "Mine: why?"
        assert not mine["internal"].template.overridden
        plain = predictors("hotpotqa")
        assert mine["internal"].render(question="why?") == plain["internal"].render(question="why?")

    def test_ids_again_follows_ids(self, tmp_path: Path) -> None:
        own = "{{ instructions }} I {{ context }} {{ knowledge | join }} {{ question }} {% block again %}{% endblock %}"
        mine = predictors("hotpotqa", prompts=override(tmp_path, blendfilter__ids=own))
        again = mine["ids_again"].render(context="c", knowledge=["a", "b"], question="why?", offer_none=False)
        assert " I c ab why? " in f" {again} "
        assert "Write only the relevant numbers from 0 to 1" in again

    def test_default_instructions_of_an_override_become_the_predictors(self, tmp_path: Path) -> None:
        own = "{% macro default_instructions() %}\nAnswer drily.\n{% endmacro %}\n{{ instructions }}\n{{ question }}"
        for task in TASKS:  # StrategyQA's own words must not push out those of the researcher's file
            mine = predictors(task, prompts=override(tmp_path / task, blendfilter__external=own))["external"]
            assert mine.signature.instructions == "Answer drily."
            assert mine.render(knowledge=[], question="why?") == "Answer drily.\nwhy?"

    def test_an_override_without_words_of_its_own_speaks_the_tasks(self, tmp_path: Path) -> None:
        prompts = override(tmp_path, blendfilter__external="{{ instructions }}|{{ question }}")
        for task in TASKS:
            words = predictors(task)["external"].signature.instructions
            assert predictors(task, prompts=prompts)["external"].render(knowledge=[], question="q") == f"{words}|q"

    def test_a_template_without_instructions_works_until_somebody_rewrites_them(self, tmp_path: Path) -> None:
        mine = predictors("hotpotqa", prompts=override(tmp_path, cot="Verbatim. {{ question }}"))["cot"]
        assert mine.render(question="why?") == "Verbatim. why?"
        mine.signature = mine.signature.with_instructions("Optimised.")
        with pytest.raises(BadData, match=r"cot\.j2 does not render {{ instructions }}.*add it to the template"):
            mine.render(question="why?")

    def test_a_file_that_is_no_template(self, tmp_path: Path) -> None:
        prompts = override(tmp_path, cot="{% if %}")
        with pytest.raises(BadData, match=r"cot\.j2: not a Jinja template"):
            prompts["cot"]

    def test_a_folder_without_a_prompt_is_a_mistake(self, tmp_path: Path) -> None:
        (tmp_path / "direct.txt").write_text("Mine: {{ question }}", encoding="utf-8")
        with pytest.raises(BadData, match=r"has no prompt in it: no NAME\.j2"):
            Prompts(tmp_path)
        (tmp_path / "instructions.json").write_text("{}", encoding="utf-8")
        assert Prompts(tmp_path).overridden == []

    def test_the_digest_changes_with_any_template(self, tmp_path: Path) -> None:
        (tmp_path / "instructions.json").write_text("{}", encoding="utf-8")
        assert Prompts(tmp_path).digest == own_prompts().digest, "it replaces nothing"
        assert override(tmp_path, blendfilter__topic="T {{ question }}").digest != own_prompts().digest

    def test_a_template_can_not_reach_into_python(self, tmp_path: Path) -> None:
        text = "{{ instructions }} {{ question.__class__.__mro__ }}"
        mine = predictors("hotpotqa", prompts=override(tmp_path, cot=text))["cot"]
        with pytest.raises(BadData, match=r"cot\.j2"):
            mine.render(question="why?")
