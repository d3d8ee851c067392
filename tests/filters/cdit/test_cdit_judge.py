"""The judge: what it sends, how its reply is read, what is no verdict, and what its verdicts depend on.

The radio of the paper's Figure 2, with a question in place of a statement: "Who turned on the radio?" leaves the
subject open, so Jack who turned it on is consistent and Mary who turned it off is not.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedLM, response, scripted

from blendfilter.asking import Wording
from blendfilter.errors import BadArgument, ModelError, UnknownName
from blendfilter.filters.cdit.judge import Judge
from blendfilter.filters.cdit.reading import Compared
from blendfilter.filters.cdit.rules import PHI1, PHI2, Rule
from blendfilter.lm.model import connect
from blendfilter.lm.profiles import Profile
from blendfilter.prompting import Prompts
from blendfilter.records import Excerpt, Passage

QUESTION = "Who turned on the radio?"
OFF = Passage("off", "Radio", "Mary turned off\nthe radio.")
ON = Passage("on", "Radio", "Jack turned on the radio.")
COMPARISON = (
    "subject | open | Mary | alike\npredicate | turned on | turned off | unlike\nobject | the radio | the radio | alike"
    "\nReason: Off is not on.\nVerdict: False"
)
MODES = ("word", "components")


def judged(reply: Any, *settings: Any, passage: Passage = OFF, **more: Any) -> tuple[dspy.Prediction, ScriptedLM]:
    with scripted({"consistent": [reply]}) as lm, dspy.context(lm=lm):
        said = asyncio.run(Judge(*settings, **more).acall(question=QUESTION, passage=passage))
    return said, lm


class TestPrompt:
    @pytest.mark.parametrize(("mode", "cue"), [("word", "Verdict:"), ("components", "Comparison:")])
    def test_it_ends_with_the_passage_the_question_and_the_cue(self, mode: Any, cue: str) -> None:
        _, lm = judged("False", mode, ["phi1", "phi2"])
        ((stage, prompt),) = lm.prompts
        assert stage == "consistent"
        assert prompt.endswith(
            f"\n\nRules:\n- {PHI1.line}\n- {PHI2.line}\n\n"
            f"Passage: Radio | Mary turned off the radio.\nQuestion: {QUESTION}\n{cue}"
        )

    @pytest.mark.parametrize("mode", MODES)
    def test_it_says_what_is_open_which_sentence_counts_and_what_does_not(self, mode: Any) -> None:
        told = Judge(mode).consistent.signature.instructions
        for words in ("it is open, and anything", "if some sentence of it is alike in all", "on and off", "before and",
                      "omponents that the rules do not name do not count", "True if", "False if"):  # fmt: skip
            assert (words in told) or (words.replace(" if", "") in told), words

    @pytest.mark.parametrize("mode", MODES)
    def test_what_stands_before_the_passage_is_the_same_for_every_question(self, mode: Any) -> None:
        ask = Judge(mode, ["phi1", "phi2"]).consistent
        rules = [PHI1.line, PHI2.line]
        one, other = (
            ask.render(rules=rules, passage=passage.line, question=question).rpartition("\nPassage: ")[0]
            for passage, question in ((ON, QUESTION), (OFF, "When?"))
        )
        assert one == other

    def test_a_demonstration_needs_no_rules_of_its_own(self) -> None:
        judge = Judge()
        judge.consistent.demos = [dspy.Example(passage="A | a.", question="b?", verdict="False")]
        with scripted(["True"]) as lm, dspy.context(lm=lm):
            judge(question=QUESTION, passage=ON)
        assert f"\n\nPassage: A | a.\nQuestion: b?\nVerdict:\nFalse\n\nPassage: {ON.line}\n" in lm.prompts[0][1]

    def test_an_excerpt_is_judged_by_its_pieces_alone(self) -> None:
        source = Passage("1", "Radio", "Mary turned off the radio. Jack turned on the radio.")
        _, lm = judged("True", passage=Excerpt.of(source, [(27, 52)]))
        assert f"\nPassage: {ON.line}\n" in lm.prompts[0][1]

    def test_a_base_model_is_stopped_before_another_example(self) -> None:
        _, lm = judged("True")
        assert "\nPassage:" in lm.inner.requests[0].config.stop
        assert lm.inner.requests[0].config.max_tokens == 32

    def test_more_components_have_more_room(self) -> None:
        rooms = [judged("", "components", rules)[1].inner.requests[0].config.max_tokens
                 for rules in (["phi1"], ["phi1", "phi2"])]  # fmt: skip
        assert rooms == [256, 384]

    def test_templates_of_ones_own(self, tmp_path: Any) -> None:
        (tmp_path / "cdit").mkdir()
        (tmp_path / "cdit/word.j2").write_text("{{ question }} {{ passage }} {{ rules | join(' ') }} Just one word:")
        _, lm = judged("False", prompts=Prompts(tmp_path))
        assert lm.prompts[0][1] == f"{QUESTION} {OFF.line} {PHI1.line} Just one word:"


class TestVerdict:
    @pytest.mark.parametrize(("reply", "verdict"), [("True", True), ("**False**.", False), ("Answer: False.", False)])
    def test_one_word(self, reply: str, verdict: bool) -> None:
        said, _ = judged(reply)
        assert (said.verdict, said.flags, said.reply) == (verdict, {}, reply)
        assert (said.reason, said.compared) == ("", [])

    @pytest.mark.parametrize(
        "reply",
        ["yes", "True, but not quite", "", "   ", "True or False", response("False", finish="length"), "<think>True"],
    )
    @pytest.mark.parametrize("mode", MODES)
    def test_all_else_is_no_verdict_and_is_not_asked_again(self, reply: Any, mode: Any) -> None:
        said, lm = judged(reply, mode)
        assert (said.verdict, said.flags, lm.calls) == (None, {"no_verdict": 1}, 1)

    def test_what_was_compared(self) -> None:
        said, _ = judged(COMPARISON, "components")
        assert (said.verdict, said.reason, said.flags) == (False, "Off is not on.", {})
        assert said.compared[1] == Compared("predicate", "turned on", "turned off", False)
        assert [each.component for each in said.compared] == list(PHI1.components)

    def test_a_verdict_against_its_own_comparison_is_none_and_counted_apart(self) -> None:
        said, _ = judged(COMPARISON.replace("Verdict: False", "Verdict: True"), "components")
        assert (said.verdict, said.flags) == (None, {"no_verdict": 1, "contradicted_verdict": 1})
        assert [each.alike for each in said.compared] == [True, False, True]

    def test_a_component_outside_the_rules_contradicts_nothing(self) -> None:
        said, _ = judged("adverbial | at five | at six | unlike\nVerdict: True", "components")
        assert (said.verdict, said.compared) == (True, [])

    def test_a_comparison_that_was_cut_off_has_no_verdict(self) -> None:
        said, _ = judged(response(COMPARISON, finish="length"), "components")
        assert (said.verdict, said.flags) == (None, {"no_verdict": 1})
        assert len(said.compared) == 3

    @pytest.mark.parametrize("passage", [Passage("1", "", ""), Passage("1", " ", "\n \n")])
    def test_no_text_is_no_call(self, passage: Passage) -> None:
        with scripted([]) as lm, dspy.context(lm=lm):
            said = Judge()(question=QUESTION, passage=passage)
        assert (said.verdict, said.flags, lm.calls) == (None, {}, 0)

    def test_a_failing_call_is_an_error(self) -> None:
        with pytest.raises(ModelError, match="no"):
            judged(ModelError("no", kind="bad_request"))

    def test_both_calls_say_the_same(self) -> None:
        judge = Judge("components")
        with scripted([COMPARISON, COMPARISON]) as lm, dspy.context(lm=lm):
            assert (
                judge(question=QUESTION, passage=OFF).toDict()
                == asyncio.run(judge.acall(question=QUESTION, passage=OFF)).toDict()
            )

    @given(st.text(max_size=60))
    def test_no_reply_crashes_it(self, reply: str) -> None:
        for mode in MODES:
            with dspy.context(lm=ScriptedLM([reply])):
                assert Judge(mode)(question=QUESTION, passage=OFF).verdict in (True, False, None)  # type: ignore[arg-type]

    def test_through_dspys_own_adapter(self) -> None:
        reply = "[[ ## verdict ## ]]\nFalse\n\n[[ ## completed ## ]]"
        said, lm = judged(reply, adapter=dspy.ChatAdapter())
        assert said.verdict is False
        assert PHI1.sentence in lm.prompts[0][1]


class TestSchema:
    def schema(self, rules: Any, **settings: Any) -> dict[str, Any] | None:
        _, lm = judged(COMPARISON, "components", rules, **settings)
        form = lm.inner.requests[0].config.response_format
        return form and json.loads(json.dumps(form))["schema"]["properties"]

    @pytest.mark.parametrize(
        ("rules", "components"),
        [
            (("phi1",), ["subject", "predicate", "object"]),
            (("phi2",), ["attributive", "adverbial"]),
            (("phi1", Rule("own", ("object", "unit"), "Same.")), ["subject", "predicate", "object", "unit"]),
        ],
    )
    def test_its_components_are_the_rules(self, rules: Any, components: list[str]) -> None:
        schema = self.schema(rules, json_schema=True)
        assert schema is not None
        compared = schema["comparison"]
        assert (list(compared["properties"]), compared["required"]) == (components, components)
        assert compared["additionalProperties"] is False
        assert list(schema) == ["comparison", "reason", "verdict"]
        assert schema["verdict"] == {"type": "boolean"}

    def test_where_the_profile_says_that_the_server_can(self) -> None:
        for can in (True, False):
            lm = ScriptedLM([COMPARISON])
            lm.profile = Profile(json_schema=can)
            with dspy.context(lm=lm):
                Judge("components")(question=QUESTION, passage=OFF)
            assert bool(lm.inner.requests[0].config.response_format) is can

    def test_never_for_one_word(self) -> None:
        _, lm = judged("False", json_schema=True)
        assert not lm.inner.requests[0].config.response_format


class TestIdentity:
    def test_it_is_json_and_stays_the_same(self) -> None:
        told = Judge("components", ["phi1", "phi2"]).identity()
        assert json.loads(json.dumps(told)) == told == Judge("components", ["phi1", "phi2"]).identity()
        assert [rule["name"] for rule in told["rules"]] == ["phi1", "phi2"]
        assert told["rules"][0] == {
            "name": "phi1", "components": list(PHI1.components), "sentence": PHI1.sentence,
        }  # fmt: skip

    def test_whatever_changes_verdicts_changes_it(self, tmp_path: Any) -> None:
        (tmp_path / "cdit").mkdir()
        (tmp_path / "cdit/word.j2").write_text("{{ question }}{{ passage }}{{ instructions }}")
        compiled, shown = Judge(), Judge()
        compiled.consistent.signature = compiled.consistent.signature.with_instructions("Judge.")
        shown.consistent.demos = [dspy.Example(passage="A", question="b?", verdict="False")]
        judges = [
            Judge(), Judge("components"), Judge(rules=["phi2"]), Judge(rules=["phi2", "phi1"]), compiled, shown,
            Judge(rules=[Rule("own", PHI1.components, PHI1.sentence)]), Judge(prompts=Prompts(tmp_path)),
            Judge(adapter=dspy.ChatAdapter()), Judge("components", json_schema=True),
            Judge(wording=Wording(instructions={"cdit/word": "Judge it."})),
        ]  # fmt: skip
        assert len({json.dumps(judge.identity(), sort_keys=True) for judge in judges}) == len(judges)

    def test_the_adapter_of_another_module_changes_nothing(self) -> None:
        assert Judge().identity() == Judge(wording=Wording.of("hotpotqa")).identity()

    def test_a_runs_record_names_our_rules_and_tells_ones_own(self) -> None:
        own = Rule("own", ("unit",), "Same unit.")
        assert Judge(rules=["phi1", own]).arguments() == {
            "mode": "word",
            "rules": ["phi1", {"name": "own", "components": ["unit"], "sentence": "Same unit."}],
            "json_schema": None,
        }


class TestArguments:
    def test_no_such_mode_rule_or_no_rule(self) -> None:
        with pytest.raises(UnknownName, match=r"no mode 'words'\. Did you mean 'word'"):
            Judge("words")  # type: ignore[arg-type]
        with pytest.raises(UnknownName, match="no rule 'phi3'"):
            Judge(rules=["phi3"])
        with pytest.raises(BadArgument, match="no rules"):
            Judge(rules=[])


class TestOffline:
    """The offline reader shows the pipeline: the radio comes out right, and no prompt of the judge trips it."""

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(
        ("question", "text", "verdict"),
        [
            (QUESTION, "Jack turned on the radio.", True),
            (QUESTION, "Mary turned off the radio.", False),
            (QUESTION, "The radio was turned on by Ann.", True),
            (QUESTION, "Ann never turned on the radio.", False),
            (QUESTION, "Mary turned off the radio. Jack turned on the radio.", True),
            (QUESTION, "The kettle boiled.", False),
            ("Which club won the cup?", "Ormskerry won the cup.", True),
            ("Which club won the cup?", "Ormskerry lost the cup.", False),
            ("What did Ada Brennock keep?", "Ada Brennock kept bees. She kept a light.", True),
        ],
    )
    def test_it_reads_the_prompt(self, mode: Any, question: str, text: str, verdict: bool) -> None:
        with dspy.context(lm=connect("offline")):
            said = Judge(mode)(question=question, passage=Passage("1", "Tolm", text))
        assert said.verdict is verdict
        assert [each.component for each in said.compared] == (list(PHI1.components) if mode == "components" else [])

    def test_what_the_rules_do_not_name_does_not_count(self) -> None:
        question, passage = (
            "Who turned on the radio before noon?",
            Passage("1", "", "Ann turned on the radio after noon."),
        )
        with dspy.context(lm=connect("offline")):
            verdicts = [
                Judge("components", rules)(question=question, passage=passage).verdict
                for rules in (["phi1"], ["phi2"], ["phi1", "phi2"])
            ]
        assert verdicts == [True, False, False]

    @given(st.text(max_size=80), st.text(max_size=80))
    def test_no_text_trips_it(self, question: str, text: str) -> None:
        with dspy.context(lm=connect("offline")):
            for mode in MODES:
                said = Judge(mode, ["phi1", "phi2"])(  # type: ignore[arg-type]
                    question=question, passage=Passage("1", "T", text)
                )
                assert said.verdict in (True, False)
