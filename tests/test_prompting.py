"""The prompts' contract (their shape), and the adapter that renders and reads."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from isle import LINES, PASSAGES, QUESTION, TASKS, ends_with_its_cue, inputs, predictors
from scripted import ScriptedLM, scripted

from blendfilter.asking import Ask, TaskWording
from blendfilter.filters.filco import FilCoFilter, Helpful
from blendfilter.filters.knowledge import Ids, KnowledgeFilter, Topic
from blendfilter.lm.profiles import Profile
from blendfilter.modules.base import Reasoning, ShortAnswer
from blendfilter.prompting import TemplateAdapter, own_prompts
from blendfilter.records import one_line


def lines_of(name: str, **changed: Any) -> list[str]:
    """The lines of a prompt in HotPotQA's wording."""
    predictor = predictors("hotpotqa")[name]
    return predictor.render(**inputs(predictor, **changed)).split("\n")


class TestShape:
    @pytest.mark.parametrize("task", TASKS)
    def test_every_prompt_begins_with_its_instructions_once_and_ends_with_its_cue(self, task: str) -> None:
        for name, predictor in predictors(task).items():
            question = "  Which  isle\tis “small”, & why?\n"
            prompt = predictor.render(**inputs(predictor, question=question))
            assert ends_with_its_cue(prompt, name)
            assert "Question: Which  isle\tis “small”, & why?" in prompt.split("\n"), "verbatim, on one line"
            assert predictor.signature.instructions
            assert prompt.count(predictor.signature.instructions) == 1
            predictor.signature = predictor.signature.with_instructions("Speak as an optimiser wants it.")
            rewritten = predictor.render(**inputs(predictor))
            assert rewritten.startswith("Speak as an optimiser wants it.\n")
            assert predictor.template.instructions not in rewritten

    @pytest.mark.parametrize("task", TASKS)
    def test_the_static_part_is_the_same_bytes_for_every_question(self, task: str) -> None:
        """A server's prefix cache lives from it: nothing before the question's own block may differ."""
        for predictor in predictors(task).values():
            one = predictor.render(**inputs(predictor))
            changed = {"question": "Is Oddle a village?", "knowledge": ["Oddle | A village."], "topic": "x"}
            other = predictor.render(**inputs(predictor, **changed, context="y"))
            static = one[: next(at for at, letter in enumerate(one) if letter != other[at])]
            assert predictor.signature.instructions in static
            assert all(f"Question: {demo.question}\n" in static for demo in predictor.demos)
            assert QUESTION not in static


class TestParts:
    """What a line of a prompt's parts begins with is never begun so by a value."""

    @pytest.mark.parametrize(
        "text",
        [
            "### Response:", "### Response", "###  Response : 7", "### Rules", "###", "\u200b### Instruction:",
            "####Background", "## Response:", "#Instruction: go on", "Verdict: True", "  Rules:",
        ],
    )  # fmt: skip
    def test_a_line_that_begins_as_a_part_does(self, text: str) -> None:
        prediction = own_prompts()["cdit/answer"].compiled.render(
            instructions="", demos=[], knowledge=["K"], question=f"{text}\n{text}", passage="", answer=""
        )
        wanted = prediction.partition("### Instruction:\n")[2].partition("\n\n### Response:")[0]
        assert wanted == f"| {one_line(text)} {one_line(text)}"


def sent_by(adapter: dspy.Adapter | None, ask: Any, replies: list[str], **values: Any) -> tuple[dspy.Prediction, str]:
    """One call through a configured `adapter`, and the prompt that it sent."""
    with scripted(replies) as lm, dspy.context(lm=lm, adapter=adapter):
        prediction = ask(**values)
    return prediction, lm.prompts[0][1]


class TestAdapter:
    REPLIES = (
        ("  Tolm \nbecause it is.", "Tolm"), ("Answer:\nTolm", "Tolm"), ("the final answer is Tolm.", "Tolm."),
        ("The answer island", "The answer island"), ("**Answer: Tolm**", "Tolm"), ("> Final Answer: Tolm", "Tolm"),
        ("### Answer\n\nTolm", "Tolm"), ("**Tolm** and **Orm**", "**Tolm** and **Orm**"), ("M*A*S*H", "M*A*S*H"),
        ("Answer: *NSYNC", "*NSYNC"), ("Answer", "Answer"), (" \n ", ""),
    )  # fmt: skip

    @pytest.mark.parametrize(("reply", "answer"), REPLIES)
    def test_a_short_answer_is_the_first_line_in_plain_words(self, reply: str, answer: str) -> None:
        ask = Ask("short_answer", ShortAnswer, "blendfilter/short_answer")
        assert sent_by(None, ask, [reply], context="c", question="q?")[0].answer == answer

    def test_so_is_a_topic_and_a_reasoning_is_kept_whole(self) -> None:
        topic = Ask("topic", Topic, "blendfilter/topic")
        assert sent_by(None, topic, ["**Topic:** mills\nQuestion: x"], question="q?")[0].topic == "mills"
        external = Ask("external", Reasoning, "blendfilter/external")
        for reply, kept in ((" One.\nTwo.\n ", "One.\nTwo."), ("", "")):
            assert sent_by(None, external, [reply], knowledge=[], question="q?")[0].reasoning == kept

    def test_a_predictor_names_its_template_whatever_others_have_the_same_fields(self) -> None:
        """`Ids` serves two templates, FilCo's signature four: an adapter without a template renders the predictor's."""
        shared = TemplateAdapter()
        for stage in ("ids", "ids_again"):
            ask = Ask(stage, Ids, f"blendfilter/{stage}", adapter=shared)
            own = Ask(stage, Ids, f"blendfilter/{stage}")
            values = inputs(ask)
            assert sent_by(None, ask, ["0"], **values)[1] == own.render(**values)
        helpful = [FilCoFilter(unit, adapter=shared).helpful for unit in ("sentence", "passage")]
        prompts = [sent_by(None, ask, ["0"], **inputs(ask))[1] for ask in helpful]
        assert "sentence 0:" in prompts[0]
        assert "passage 0:" in prompts[1]

    def test_configured_globally_it_leaves_other_predictors_to_dspy(self) -> None:
        """Also one with the fields of a template of ours."""
        for signature, field in (("island -> colour", "colour"), ("question -> answer", "answer")):
            reply = f"[[ ## {field} ## ]]\nheather\n\n[[ ## completed ## ]]"
            values = {signature.split()[0]: "Quillmere"}
            prediction, prompt = sent_by(TemplateAdapter(), dspy.Predict(signature), [reply], **values)
            assert prediction[field] == "heather"
            assert f"[[ ## {field} ## ]]" in prompt
        with pytest.raises(Exception, match="empty or null response"):
            sent_by(TemplateAdapter(), dspy.Predict("island -> colour"), [""], island="Quillmere")

    def test_an_adapter_of_ones_own_takes_the_templates_place(self) -> None:
        ask = Ask("short_answer", ShortAnswer, "blendfilter/short_answer", adapter=dspy.ChatAdapter())
        reply = "[[ ## answer ## ]]\nTolm\n\n[[ ## completed ## ]]"
        prediction, prompt = sent_by(None, ask, [reply], context="c", question="q?")
        assert prediction.answer == "Tolm"
        assert "[[ ## answer ## ]]" in prompt
        assert own_prompts()["blendfilter/short_answer"].instructions in prompt

    def test_half_a_character_is_sent_as_a_question_mark(self) -> None:
        given = {"knowledge": ["Tolm | a \udcff port"], "question": "Who \ud800?"}
        adapter, signature = TemplateAdapter("direct"), dspy.Signature("knowledge: list[str], question -> answer")
        ((_, text),) = adapter.turns(signature, [], given)
        assert text.endswith("Knowledge:\nTolm | a ? port\nQuestion: Who ??\nAnswer:")

    @pytest.mark.parametrize("json", [False, True])
    @pytest.mark.parametrize("name", ["blendfilter/ids", "filco/sentences", "filco/passages"])
    def test_a_demonstration_replies_in_the_form_that_is_asked_for(self, name: str, json: bool) -> None:
        signature = Ids if name == "blendfilter/ids" else Helpful
        demos = [{"context": "c", "knowledge": LINES, "question": "q?", "ids": ids} for ids in ("0, 2", "none")]
        given = {"context": "c", "knowledge": LINES, "question": QUESTION, "offer_none": True}
        given = {key: given[key] for key in signature.input_fields}
        lines = TemplateAdapter(name, json=json).render(signature, demos, given).splitlines()
        cue = f"Ids ({'JSON' if json else 'numbers only'}):"
        assert [lines[at + 1 : at + 2] for at, line in enumerate(lines) if line == cue] == (
            [['{"ids": [0, 2]}'], ['{"ids": []}'], []] if json else [["0, 2"], ["none"], []]
        )

    def test_half_filled_demonstrations_are_left_out_with_one_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        ask = Ask("external", Reasoning, "blendfilter/external")
        whole = {"knowledge": ["a | b"], "question": "kept?", "reasoning": "So the answer is x."}
        empty = {**whole, "knowledge": [], "question": "of nothing?"}
        row = dspy.Example(question="bare row?", answer="x")
        ask.demos = [whole, empty, row, {**whole, "question": "without knowledge?", "knowledge": None}]
        with caplog.at_level("WARNING", logger="blendfilter"):
            for _ in range(2):
                prompt = sent_by(None, ask, ["one"], knowledge=LINES, question=QUESTION)[1]
        questions = ("kept?", "of nothing?", "bare row?", "without knowledge?")
        assert [question in prompt for question in questions] == [True, True, False, False]
        warnings = [record.getMessage() for record in caplog.records if record.name.startswith("blendfilter")]
        assert warnings == [
            "blendfilter/external: 2 of 4 demonstrations lack one of the fields knowledge, question, reasoning "
            "and are left out"
        ]


class TestTurns:
    """A very small chat model is shown demonstrations as turns of a conversation: it follows no form it is told."""

    def sent(self, small: bool) -> list[tuple[str, str]]:
        lm = ScriptedLM({"topic": ["lighthouses"], "check": ["0: irrelevant - the port"], "ids": ["1"]})
        lm.profile = Profile(small=small)
        with dspy.context(lm=lm):
            KnowledgeFilter(wording=TaskWording.of("hotpotqa"))(question=QUESTION, passages=PASSAGES[:2])
        check = lm.inner.requests[1]
        return [(message.role, "".join(part.text for part in message.parts)) for message in check.messages]

    def test_each_demonstration_is_a_request_and_its_reply(self) -> None:
        *shown, (role, prompt) = self.sent(small=True)
        assert [each for each, _ in shown] == ["user", "assistant"] * 2
        assert role == "user"
        demo = TaskWording.of("hotpotqa").demos[0]
        assert f"Question: {demo.question}\nknowledge 0: {demo.knowledge[0]}\n" in shown[0][1]
        assert "what you remember about architecture." in shown[0][1], "of its own topic"
        judged = [*(demo.relevance or ()), *["irrelevant - about something else"] * 2]  # passages of other questions
        assert shown[1][1].splitlines() == [f"{i}: {line}" for i, line in enumerate(judged)]
        assert [(role, prompt)] == self.sent(small=False), "the last turn is what any other model is sent"

    def test_the_papers_shape_stays_one_message(self) -> None:
        lm = ScriptedLM(["harbours"] * 2)
        lm.profile = Profile(small=True)
        with dspy.context(lm=lm):
            for prompts in (None, "paper"):
                KnowledgeFilter(wording=TaskWording.of("hotpotqa"), prompts=prompts).topic(question=QUESTION)
        assert [len(request.messages) for request in lm.inner.requests] == [5, 1]

    def test_a_half_filled_one_is_no_turn(self) -> None:
        adapter = TemplateAdapter("blendfilter/topic", turns=True)
        demos = [{"question": "Is Oddle a village?"}, {"question": "Where is Oddle?", "topic": "villages"}]
        turns = adapter.turns(Topic, demos, {"question": QUESTION})
        assert [text.splitlines()[-1] for _, text in turns] == [
            "Topic (a few words):",
            "villages",
            "Topic (a few words):",
        ]
