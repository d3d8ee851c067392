"""CDIT: rules, replies read strictly, the judge and its identity, and the filter over it."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isle import LINES, PASSAGES, QUESTION, replies
from scripted import ScriptedLM, response, scripted

from blendfilter import BM25, BlendFilter, ChainOfThought, IterRetGen
from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument, BadData, ModelError, UnknownName
from blendfilter.filters.cdit import (
    COMPONENTS,
    PHI1,
    PHI2,
    CDITFilter,
    ComparedComponent,
    Judge,
    Rule,
    choose_rules,
    read_comparison,
    read_rules,
    read_verdict,
    worked_examples,
)
from blendfilter.lm.profiles import THINKING_TOKENS
from blendfilter.prompting import Prompts
from blendfilter.records import Passage
from blendfilter.report.trace import trace_text

UNIT = Rule("unit", ("unit of measure",), "Both give the number in the same unit")


class TestRule:
    @pytest.mark.parametrize(
        "values",
        [
            ("own", (), "Same."),
            ("", ("unit",), "Same."),
            ("two\nlines", ("unit",), "Same."),
            ("phi1+phi2", ("unit",), "Same."),
            ("own", ("unit", "Unit"), "Same."),
            ("own", ("unit",), " "),
            ("own", "subject", "Same."),
            ("own", ("a | b",), "Same."),
        ],
    )
    def test_what_is_no_rule(self, values: tuple[Any, Any, Any]) -> None:
        with pytest.raises(BadArgument, match=r"a rule has a name .*: got '") as error:
            Rule(*values)
        assert "\n" not in str(error.value)


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
        ("text", "message"),
        [
            ("[[rule]\n", "at line 1, column "),
            ("", "no rules, so nothing is compared"),
            ("rule = ['phi1']", "rule 1: .* must be a mapping"),
            (GOOD + "[[rule]]\nname = 'a'\ncomponents = ['unit']\n", "rule 3: .*'sentence'"),
            (GOOD + "[[rule]]\nname = 'a'\ncomponent = ['unit']\n", "rule 3: .*'component'"),
            (GOOD + "[[rule]]\nname = 'a'\ncomponents = []\nsentence = 'S.'\n", "rule 3: a rule has a name"),
            (GOOD + GOOD, "the rule 'unit' is given twice"),
            (GOOD + "[[rule]]\nname = 'phi1'\ncomponents = ['unit']\nsentence = 'S.'\n", "a rule 'phi1' is there"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_place(self, tmp_path: Path, text: str, message: str) -> None:
        path = written(tmp_path, text)
        with pytest.raises(BadData, match=message) as error:
            read_rules(path)
        assert str(error.value).startswith(str(path))
        assert "\n" not in str(error.value)


class TestChoice:
    def test_names_of_ours_and_of_the_files(self, tmp_path: Path) -> None:
        path = written(tmp_path, GOOD)
        assert [rule.name for rule in choose_rules(["who", "phi2"], path)] == ["who", "phi2"]
        with pytest.raises(
            UnknownName, match=r"no rule 'unti'. Did you mean 'unit'\? \(known: phi1, phi2, unit, who\)"
        ):
            choose_rules(["unti"], path)


COMPONENTS1 = ("subject", "predicate", "object")
TRUE = [
    "True", "true", " True\n", "True.", "**True**", "**True.**", "**True**.", '"True"', "`True`", "“True”", "# True",
    "> True", "- True", "(True)", "[True]", "```\nTrue\n```", "Verdict: True", "**Verdict:** True", "Verdict: **True**",
    "Answer: True.", "Final verdict: True", '{"verdict": true}', "<think>False? No: True or False …</think>\nTrue",
    "it may be False</think>True",
]  # fmt: skip
NEITHER = [
    "", " ", ".", "**", "Yes.", "No", "Not true", "True or False", "True/False", "True, but only in part",
    "True; False", "True\nFalse", "True True", "Truth", "untrue", "Falsehood", "True?", "!True", "¬True", "True-ish",
    "T", "1", "null", "Verdict:", "Verdict: none", "It is False.",
    "True because they agree.", "<think>True", "<think>it is</think>",
    "Verdict True", "Answer: Verdict: True and False", "Verdict: True. Verdict: False", "Wahr", "Тrue", "True\x00",
    "[True, False]",
]  # fmt: skip


class TestOneWord:
    @pytest.mark.parametrize("reply", TRUE)
    def test_marks_around_a_word_do_no_harm(self, reply: str) -> None:
        assert read_verdict(reply) is True
        swapped = re.sub("true", "@", reply, flags=re.IGNORECASE)
        swapped = re.sub("false", "True", swapped, flags=re.IGNORECASE).replace("@", "False")
        assert read_verdict(swapped) is False

    @pytest.mark.parametrize("reply", NEITHER)
    def test_all_else_is_no_verdict(self, reply: str) -> None:
        assert read_verdict(reply) is None


ROWS = "subject | open | Mary | alike\npredicate | turned on | turned off | unlike\nobject | radio | it | unsaid"
COMPARED = [
    ComparedComponent("subject", "open", "Mary", True),
    ComparedComponent("predicate", "turned on", "turned off", False),
    ComparedComponent("object", "radio", "it", None),
]
FALSE = f"{ROWS}\nReason: Off is not on.\nVerdict: False"


class TestComparison:
    @pytest.mark.parametrize(
        "reply",
        [
            FALSE,
            FALSE + ".\n",
            f"{ROWS}\nVerdict: False\nReason: Off is not on.",
            f"{ROWS}\n\n**Reason:** Off is not on.\n\n**Verdict:** False",
            f"```\n{FALSE}\n```",
            f"<think>Verdict: True?</think>{FALSE}",
            "| component | question | passage | |\n|---|---|---|---|\n"
            + "\n".join(f"| **{line.replace(' | ', '** | ', 1)} |" for line in ROWS.splitlines())
            + "\nReason: Off is not on.\nVerdict: False",
            "\n".join(f"- {line}" for line in FALSE.splitlines()),
            FALSE.replace("alike", "Alike.").replace("unAlike.", "Unlike"),
            FALSE.replace("predicate", "Predicate").replace("unlike", "different"),
            f"{ROWS}\nReason: Off is not on.\nFalse",
            f"{ROWS}\nReason: Off is not on.\nVerdict (True or False): False",
        ],
    )
    def test_its_rows_its_reason_and_its_verdict(self, reply: str) -> None:
        assert read_comparison(reply, COMPONENTS1) == (False, COMPARED, "Off is not on.")

    def test_the_same_as_json(self) -> None:
        cells = {
            row.component: {"question": row.question, "passage": row.passage, "alike": alike}
            for row, alike in zip(COMPARED, ("alike", False, None), strict=True)
        }
        for verdict in (False, "False", "false."):
            reply = json.dumps({"comparison": cells, "reason": "Off is not on.", "verdict": verdict})
            assert read_comparison(reply, COMPONENTS1) == (False, COMPARED, "Off is not on.")
            assert read_comparison(f"```json\n{reply}\n```", COMPONENTS1).verdict is False

    def test_only_components_of_the_rules_are_read(self) -> None:
        result = read_comparison("adverbial | at five | at six | unlike\nVerdict: True", COMPONENTS1)
        assert (result.verdict, result.compared) == (True, [])
        found = {"comparison": {"adverbial": {"question": "a", "passage": "b", "alike": "unlike"}}, "verdict": True}
        assert read_comparison(json.dumps(found), COMPONENTS1)[:2] == (True, [])

    @pytest.mark.parametrize(
        "reply",
        [
            "", ROWS, "Verdict:", f"{ROWS}\nVerdict: True or False", f"{ROWS}\nVerdict: unclear",
            f"{ROWS}\nVerdict: False\nVerdict: True", f"{ROWS}\nTrue\nVerdict: False", "True\nFalse",
            f"{ROWS}\nVerdict: False\nOn reflection it is consistent.", f"{ROWS}\nThe verdict is False.",
            f"{ROWS}\nVerdict: Not False", '{"verdict": null}', '{"verdict": 0}', '{"verdict": "no"}', "{}", "{",
            '{"verdict": true, "verdict": false}', '{"verdict": [false]}', '{"verdict": "True or False"}',
            '{"comparison": 3, "verdict": "maybe"}', "[1, 2]", '{"comparison": {"verdict": false}}', "{" * 100_000,
        ],
    )  # fmt: skip
    def test_no_verdict(self, reply: str) -> None:
        assert read_comparison(reply, COMPONENTS1).verdict is None

    @pytest.mark.parametrize(
        "reply",
        [
            f"{ROWS}\nReason: x\nVerdict: True",
            "subject | a | a | alike\npredicate | b | b | alike\nVerdict: False",
            "predicate | turned on | turned off | unlike (the opposite)\nVerdict: True",
            "predicate | turned on | turned off | **Not alike**: opposites\nVerdict: True",
            '{"comparison": {"object": {"question": "a", "passage": "b", "alike": "unlike"}}, "verdict": true}',
            '{"comparison": {"object": {"question": "a", "passage": "b", "alike": "unlike, yet"}}, "verdict": true}',
            '{"comparison": {"object": {"question": "a", "passage": "a", "alike": true}}, "verdict": false}',
        ],
    )
    def test_a_verdict_against_its_own_rows_is_none(self, reply: str) -> None:
        result = read_comparison(reply, COMPONENTS1)
        assert result.verdict is not None
        assert result.contradicts_itself

    @pytest.mark.parametrize(
        ("rows", "verdict"),
        [
            ("subject | a | - | unsaid", "False"), ("subject | a | - | unsaid", "True"), ("", "False"), ("", "True"),
            ("subject | a | b | maybe", "True"), ("subject | a | a | alike", "True"),
            ("subject | a | b | alike in part", "False"), ("subject | a | b | unlikely", "True"),
        ],
    )  # fmt: skip
    def test_what_is_unsaid_contradicts_nothing(self, rows: str, verdict: str) -> None:
        assert read_comparison(f"{rows}\nVerdict: {verdict}", COMPONENTS1).verdict is (verdict == "True")

    @given(
        st.text(max_size=120)
        | st.lists(
            st.sampled_from(
                [*FALSE.splitlines(), *TRUE[:12], *NEITHER[:12], "Verdict: True", "|", "{", "}", '"verdict":', "\n"]
            ),
            max_size=10,
        ).map("\n".join)
    )
    def test_no_reply_crashes_it_and_what_it_reads_agrees(self, reply: str) -> None:
        result = read_comparison(reply, COMPONENTS1)
        assert {each.component for each in result.compared} <= set(COMPONENTS1)
        assert all(isinstance(text, str) for each in result.compared for text in each[1:3])
        labelled = {word.casefold() for word in re.findall(r"^verdict: (true|false)\.?$", reply, re.I | re.M)}
        if len(labelled) > 1:
            assert result.verdict is None


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("> Verdict: True\nVerdict: False", False),
        (f"{ROWS}\nThe passage says:\n```\nVerdict: True\n```\nVerdict: False", False),
        ('Passage 2 says "consistent"', None),
        ('Passage 2 says "True".', None),
        ("The passage says: True", None),
        (f"{ROWS}\nReason: the passage reads:\nVerdict: True", None),
        ("The passage says:\nVerdict: True\n\nVerdict: False", False),
        ('Verdict: "False"', False),
        ('"False"', False),
        ("Here it is:\n```\nVerdict: False\n```", False),
    ],
)
def test_a_quoted_verdict_never_decides(reply: str, verdict: bool | None) -> None:
    assert read_comparison(reply, COMPONENTS1).verdict is verdict


ON_QUESTION = "Who turned on the radio?"
OFF = Passage("off", "Radio", "Mary turned off\nthe radio.")
ON = Passage("on", "Radio", "Jack turned on the radio.")
COMPARISON = (
    "subject | open | Mary | alike\npredicate | turned on | turned off | unlike\nobject | the radio | the radio | alike"
    "\nReason: Off is not on.\nVerdict: False"
)
MODES = ("word", "components")


def judged(
    reply: Any, *settings: Any, again: Any = None, passage: Passage = OFF, **more: Any
) -> tuple[dspy.Prediction, ScriptedLM]:
    """The verdict on a `reply`, or on the second one, `again`."""
    replies = {"consistent": [reply], "consistent_again": [] if again is None else [again]}
    with scripted(replies) as lm, dspy.context(lm=lm):
        result = asyncio.run(Judge(*settings, **more).acall(question=ON_QUESTION, passage=passage))
    return result, lm


class TestPrompt:
    @pytest.mark.parametrize(("mode", "cue"), [("word", "Verdict (True or False):"), ("components", "Comparison:")])
    def test_it_ends_with_the_passage_the_question_and_the_cue(self, mode: Any, cue: str) -> None:
        _, lm = judged("False", mode, ["phi1", "phi2"])
        ((stage, prompt),) = lm.prompts
        assert stage == "consistent"
        assert prompt.endswith(
            f"\n\nRules:\n- {PHI1.line}\n- {PHI2.line}\n\n"
            f"Passage: Radio | Mary turned off the radio.\nQuestion: {ON_QUESTION}\n{cue}"
        )


UNREAD = ["yes", "True, but not quite", "", "   ", "True or False", response("False", finish="length")]


class TestRawPrompts:
    """A base model learns the form of a verdict from two demonstrations, which a chat model is not shown."""

    def sent(self, endpoint: str, *settings: Any, **more: Any) -> str:
        lm = ScriptedLM(["True"] * 2)
        lm.identity = {"endpoint": endpoint}
        with dspy.context(lm=lm):
            asyncio.run(Judge(*settings, **more).acall(question="Who turned on the lamp?", passage=OFF))
        return lm.prompts[0][1]

    def test_two_in_one_word(self) -> None:
        raw, chat = self.sent("completions", "word"), self.sent("chat", "word")
        assert [line for line in raw.splitlines() if line in ("True", "False")] == ["True", "False"]
        assert raw.index("By whom was the opera house") < raw.index("Who turned on the lamp?")
        assert "opera house" not in chat

    @pytest.mark.parametrize(
        ("rules", "verdicts"), [((PHI1,), [True, False]), ((PHI2,), [True, False]), ((PHI1, PHI2), [True, False])]
    )
    @pytest.mark.parametrize("json_schema", [False, True])
    def test_their_comparisons_are_of_the_rules_and_read_as_what_they_say(
        self, rules: tuple[Rule, ...], verdicts: list[bool], json_schema: bool
    ) -> None:
        components = Judge("components", rules).components
        shown = worked_examples(components, json=json_schema)
        for example, verdict in zip(shown, verdicts, strict=True):
            read = read_comparison(example["comparison"], components)
            assert (read.verdict, read.contradicts_itself) == (verdict, False)
            assert [row.component for row in read.compared] == list(components)
            assert read.reason
            assert example["verdict"] == str(verdict)
        raw = self.sent("completions", "components", rules, json_schema=json_schema)
        assert all(example["comparison"] in raw for example in shown)

    def test_of_components_that_they_do_not_have_there_is_none(self) -> None:
        assert worked_examples(UNIT.components) == []
        assert "opera house" not in self.sent("completions", "components", (UNIT,))


class TestVerdict:
    @pytest.mark.parametrize("reply", UNREAD)
    @pytest.mark.parametrize("mode", MODES)
    def test_all_else_is_asked_for_once_more(self, reply: Any, mode: Any) -> None:
        result, lm = judged(reply, mode, again="Verdict: False")
        assert (result.verdict, result.flags, lm.calls) == (False, {"unread_verdict": 1}, 2)
        (_, first), (stage, second) = lm.prompts
        above, cue = first.rsplit("\n", 1)
        assert (stage, second.startswith(f"{above}\n"), second.endswith(f"\n{cue}")) == ("consistent_again", True, True)
        assert second.count("\n") == first.count("\n") + 1, "the same prompt and one more line"

    @pytest.mark.parametrize("reply", UNREAD)
    @pytest.mark.parametrize("mode", MODES)
    def test_a_second_such_reply_is_no_verdict(self, reply: Any, mode: Any) -> None:
        result, lm = judged(reply, mode, again=reply)
        assert (result.verdict, result.flags, lm.calls) == (None, {"unread_verdict": 1, "no_verdict": 1}, 2)

    def test_thoughts_that_do_not_end_are_no_verdict_with_more_room_either(self) -> None:
        with scripted(["<think>True"] * 4) as lm, dspy.context(lm=lm):
            result = Judge()(question=ON_QUESTION, passage=OFF)
        assert (result.verdict, result.flags) == (None, {"unread_verdict": 1, "no_verdict": 1})
        room = 32 + THINKING_TOKENS  # of the second attempt at each request
        assert [request.config.max_tokens for request in lm.inner.requests] == [32, room, 32, room]

    @pytest.mark.parametrize(
        ("reply", "at_once"),
        [
            ("False.\n\nThe passage is inconsistent with", True),
            ("False. The passage is inconsistent with", False),
            ("False\nReason: on reflection it is True, as", False),
        ],
    )
    def test_a_verdict_on_its_own_line_is_whole_though_its_reasons_are_cut(self, reply: str, at_once: bool) -> None:
        result, lm = judged(response(reply, finish="length"), again=None if at_once else "False")
        assert (result.verdict, lm.calls) == (False, 1 if at_once else 2)

    def test_a_verdict_against_its_own_comparison_is_none_and_counted_apart(self) -> None:
        against = COMPARISON.replace("Verdict: False", "Verdict: True")
        result, _ = judged(against, "components", again=COMPARISON)
        assert (result.verdict, result.flags) == (False, {"unread_verdict": 1, "contradicted_verdict": 1})
        result, _ = judged(against, "components", again=against)
        assert (result.verdict, result.flags.keys()) == (
            None, {"unread_verdict", "contradicted_verdict", "no_verdict"},
        )  # fmt: skip
        assert [each.alike for each in result.compared] == [True, False, True]

    def test_the_second_request_has_the_words_of_a_compiled_judge(self) -> None:
        judge = Judge()
        judge.consistent.signature = judge.consistent.signature.with_instructions("Judge as in court.")
        judge.consistent.demos = [dspy.Example(passage="A | B.", question="C?", verdict="False")]
        with scripted({"consistent": ["?"], "consistent_again": ["True"]}) as lm, dspy.context(lm=lm):
            assert judge(question=ON_QUESTION, passage=OFF).verdict is True
        for _, prompt in lm.prompts:
            assert prompt.startswith("Judge as in court.\n")
            assert "Passage: A | B.\nQuestion: C?\nVerdict (True or False):\nFalse\n" in prompt
        assert [name for name, _ in judge.named_predictors()] == ["consistent"]

    @pytest.mark.parametrize("passage", [Passage("1", "", ""), Passage("1", " ", "\n \n")])
    def test_no_text_is_no_call(self, passage: Passage) -> None:
        with scripted([]) as lm, dspy.context(lm=lm):
            result = Judge()(question=ON_QUESTION, passage=passage)
        assert (result.verdict, result.flags, lm.calls) == (None, {}, 0)


class TestSchema:
    def schema(self, rules: Any, **settings: Any) -> dict[str, Any] | None:
        _, lm = judged(COMPARISON, "components", rules, **settings)
        form = lm.inner.requests[0].config.response_format
        return form and json.loads(json.dumps(form))["schema"]["properties"]

    def test_its_components_are_the_rules(self) -> None:
        components = ["subject", "predicate", "object", "unit"]
        schema = self.schema(("phi1", Rule("own", ("object", "unit"), "Same.")), json_schema=True)
        assert schema is not None
        compared = schema["comparison"]
        assert (list(compared["properties"]), compared["required"]) == (components, components)
        assert compared["additionalProperties"] is False
        assert list(schema) == ["comparison", "reason", "verdict"]


class TestIdentity:
    def test_whatever_changes_verdicts_changes_it(self, tmp_path: Any) -> None:
        (tmp_path / "cdit").mkdir()
        (tmp_path / "cdit/word.j2").write_text("{{ question }}{{ passage }}{{ instructions }}")
        compiled, listed = Judge(), Judge()
        compiled.consistent.signature = compiled.consistent.signature.with_instructions("Judge.")
        listed.consistent.demos = [dspy.Example(passage="A", question="b?", verdict="False")]
        # What base and very small models see more, and models that are held to a schema.
        raw, held = Judge(), Judge()
        raw.consistent.raw = raw.consistent.raw._replace(demos=raw.consistent.raw.demos[:1])
        held.consistent.raw = held.consistent.raw._replace(json_demos=())
        short, longer = Judge(), Judge()  # a cut reply is no verdict
        short.consistent.reply_tokens, longer.consistent.reply_tokens = 8, 16
        judges = [
            Judge(), short, longer, Judge("components"),
            Judge(rules=["phi2"]), Judge(rules=["phi2", "phi1"]), compiled, listed,
            Judge(rules=[Rule("own", PHI1.components, PHI1.sentence)]), Judge(prompts=Prompts(tmp_path)),
            Judge(adapter=dspy.ChatAdapter()), Judge("components", json_schema=True),
            Judge(wording=TaskWording(instructions={"cdit/word": "Judge it."})), raw, held,
        ]  # fmt: skip
        assert len({json.dumps(judge.identity(), sort_keys=True) for judge in judges}) == len(judges)

    def test_a_runs_record_names_our_rules_and_writes_out_others(self) -> None:
        own = Rule("own", ("unit",), "Same unit.")
        assert Judge(rules=["phi1", own]).arguments() == {
            "mode": "word",
            "rules": ["phi1", {"name": "own", "components": ["unit"], "sentence": "Same unit."}],
            "json_schema": None,
        }


FIVE = list(PASSAGES)


def says(*verdicts: Any) -> Any:
    """A script by passage: what is said of the n-th of `FIVE`."""
    by_line = dict(zip(LINES, verdicts, strict=True))

    def reply(stage: str, prompt: str) -> Any:
        result = by_line[prompt.rpartition("\nPassage: ")[2].partition("\nQuestion: ")[0]]
        return result() if callable(result) else result

    return reply


def filtered(script: Any, passages: Any = FIVE, *settings: Any, **more: Any) -> tuple[dspy.Prediction, ScriptedLM]:
    lm = ScriptedLM(script)
    with dspy.context(lm=lm):
        result = asyncio.run(CDITFilter(*settings, **more).acall(question=QUESTION, passages=passages))
    return result, lm


def ids(message: Any) -> list[str]:
    return [passage.id for passage in message]


class TestFilter:
    def test_the_rejected_are_dropped_and_the_rest_keep_their_order(self) -> None:
        result, lm = filtered(says("True", "False", "I cannot tell", "False", "True"))
        assert ids(result.kept) == ["p0", "p2", "p4"]
        assert result.verdicts == [True, False, None, False, True]
        assert result.status == "kept 3 of 5, 1 without a verdict"
        assert result.flags == {"unread_verdict": 1, "no_verdict": 1}
        assert Counter(stage for stage, _ in lm.prompts) == {"consistent": 5, "consistent_again": 1}
        assert result.reason.splitlines() == [
            "knowledge 0: consistent",
            "knowledge 1: inconsistent",
            "knowledge 2: no verdict, kept (it said 'I cannot tell')",
            "knowledge 3: inconsistent",
            "knowledge 4: consistent",
        ]

    @pytest.mark.parametrize(
        ("verdict", "message"), [("False", "inconsistent"), ("True", "no verdict, kept"), ("?", "no verdict, kept")]
    )
    def test_what_differs_is_reported(self, verdict: str, message: str) -> None:
        reply = f"predicate | kept | sold | unlike\nReason: It was sold.\nVerdict: {verdict}"
        result, _ = filtered(lambda stage, prompt: reply, FIVE[:1], "components")
        assert result.reason == f"knowledge 0: {message} (predicate: kept / sold; It was sold.)"


class TestWhatIsJudged:
    def test_passages_that_read_the_same_are_judged_once(self) -> None:
        twice = [FIVE[0], Passage("other", FIVE[0].title, FIVE[0].text), FIVE[1], FIVE[0]]
        result, lm = filtered(says("perhaps", "True", "", "", ""), twice)
        assert Counter(stage for stage, _ in lm.prompts) == {"consistent": 2, "consistent_again": 1}
        assert result.verdicts == [None, None, True, None]
        assert result.flags == {"unread_verdict": 1, "no_verdict": 1}
        assert ids(result.kept) == ["p0", "other", "p1", "p0"]


class TestErrors:
    @pytest.mark.parametrize("place", [0, 4])
    def test_a_call_that_fails_is_an_error_and_no_verdict(self, place: int) -> None:
        def fails() -> Any:
            return ModelError(f"gone at {place}", kind="server_error")

        verdicts: list[Any] = ["True"] * 5
        verdicts[place] = fails
        with pytest.raises(ModelError, match=f"gone at {place}"):
            filtered(says(*verdicts))


class TestMethods:
    @pytest.mark.parametrize("make", [ChainOfThought, IterRetGen, BlendFilter])
    def test_no_verdict_is_counted_and_reported(self, make: Any) -> None:
        unread = replies(consistent="Hard to tell.", consistent_again="Hard to tell.")
        with scripted(unread) as lm, dspy.context(lm=lm):
            result = make(BM25.build(PASSAGES), k=2, filter=CDITFilter())(question=QUESTION)
        assert result.flags["no_verdict"] == len(lm.prompts_of("consistent")) > 0
        assert f"no_verdict {result.flags['no_verdict']}" in trace_text(result)
        assert "no verdict, kept (it said 'Hard to tell.')" in trace_text(result)
