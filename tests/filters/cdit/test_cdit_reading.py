"""Reading verdicts: True, False, and nothing else; a comparison is held against its own verdict."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.filters.cdit import ComparedComponent, read_comparison, read_verdict

PHI1 = ("subject", "predicate", "object")
TRUE = [
    "True", "true", "TRUE", " True\n", "True.", "**True**", "**True.**", "**True**.", '"True"', "'True'.", "`True`",
    "“True”", "_True_", "# True", "> True", "- True", "* True", "(True)", "[True]", "```\nTrue\n```", "Verdict: True",
    "**Verdict:** True", "Verdict: **True**", "Answer: True.", "Final verdict: True", '{"verdict": true}',
    "<think>False? No: True or False …</think>\nTrue", "it may be False</think>True",
]  # fmt: skip
NEITHER = [
    "", " ", ".", "**", "yes", "Yes.", "no", "No", "Not true", "not False", "True or False", "True/False",
    "True, but only in part", "True; False", "True False", "True\nFalse", "True True", "Truely", "Truth", "untrue",
    "Falsehood", "falsely", "True?", "False!", "!True", "~True", "¬True", "≠ True", "True-ish", "-True", "T", "F", "1",
    "0", "None", "null", "Verdict:", "Verdict: none", "The verdict is True", "It is False.", "True because they agree.",
    "False\n\nPassage: another", "True..", "True, True", "<think>True", "<think>it is</think>", "I cannot tell.",
    "Verdict True", "Answer: Verdict: True and False", "Verdict: True. Verdict: False", "Wahr", "Тrue", "True\x00",
    '{"verdict": "True", "reason": "x"}', "[True, False]",
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

    @given(st.text(max_size=80))
    def test_no_text_crashes_it(self, reply: str) -> None:
        said = read_verdict(reply)
        assert said is None or str(said).casefold() in reply.casefold()

    @given(
        st.lists(
            st.sampled_from(["True", "False", "true.", "**False**", " ", "\n", "or", "not", "Verdict:", '"', "<b>"]),
            max_size=9,
        ).map("".join)
    )
    def test_where_both_words_stand_there_is_none(self, reply: str) -> None:
        words = [word.casefold() for word in re.findall("true|false", reply, re.IGNORECASE)]
        if len(words) != 1 or "not" in reply or "or" in reply:
            assert read_verdict(reply) is None
        elif "<" not in reply:
            assert read_verdict(reply) in (words[0] == "true", None)

    @pytest.mark.parametrize("text", [" ", "*", "\n", "- ", '"', "verdict:", "True", "|"])
    def test_it_takes_no_time_over_long_ones(self, text: str) -> None:
        start = time.monotonic()
        read_verdict(text * 100_000 + "x")
        read_comparison(text * 100_000 + "x", PHI1)
        assert time.monotonic() - start < 5


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
        ],
    )
    def test_its_rows_its_reason_and_its_verdict(self, reply: str) -> None:
        assert read_comparison(reply, PHI1) == (False, COMPARED, "Off is not on.")

    @pytest.mark.parametrize("of_rules", [{"comparison": "by name"}, {"comparison": "listed"}])
    def test_the_same_as_json(self, of_rules: dict[str, str]) -> None:
        cells = [
            {"question": row.question, "passage": row.passage, "alike": alike}
            for row, alike in zip(COMPARED, ("alike", False, None), strict=True)
        ]
        by_name: Any = dict(zip(PHI1, cells, strict=True))
        listed = [{"component": name, **each} for name, each in by_name.items()]
        told = {"comparison": by_name if of_rules["comparison"] == "by name" else listed}
        for verdict in (False, "False", "false."):
            reply = json.dumps({**told, "reason": "Off is not on.", "verdict": verdict})
            assert read_comparison(reply, PHI1) == (False, COMPARED, "Off is not on.")
            assert read_comparison(f"```json\n{reply}\n```", PHI1).verdict is False

    def test_only_components_of_the_rules_are_read(self) -> None:
        said = read_comparison("adverbial | at five | at six | unlike\nVerdict: True", PHI1)
        assert (said.verdict, said.compared) == (True, [])
        told = {"comparison": {"adverbial": {"question": "a", "passage": "b", "alike": "unlike"}}, "verdict": True}
        assert read_comparison(json.dumps(told), PHI1)[:2] == (True, [])

    def test_a_bar_in_what_the_passage_says_is_kept(self) -> None:
        (row,) = read_comparison("object | a | Title | text | alike\nVerdict: True", PHI1).compared
        assert row == ComparedComponent("object", "a", "Title | text", True)

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
        assert read_comparison(reply, PHI1).verdict is None

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
        said = read_comparison(reply, PHI1)
        assert said.verdict is not None
        assert said.contradicts_itself

    @pytest.mark.parametrize(
        ("rows", "verdict"),
        [
            ("subject | a | - | unsaid", "False"), ("subject | a | - | unsaid", "True"), ("", "False"), ("", "True"),
            ("subject | a | b | maybe", "True"), ("subject | a | a | alike", "True"),
            ("subject | a | b | alike in part", "False"), ("subject | a | b | unlikely", "True"),
        ],
    )  # fmt: skip
    def test_what_is_unsaid_contradicts_nothing(self, rows: str, verdict: str) -> None:
        assert read_comparison(f"{rows}\nVerdict: {verdict}", PHI1).verdict is (verdict == "True")

    @given(
        st.one_of(
            st.text(max_size=120),
            st.lists(
                st.sampled_from(
                    [*FALSE.splitlines(), *TRUE[:12], *NEITHER[:12], "Verdict: True", "|", "{", "}", '"verdict":', "\n"]
                ),
                max_size=10,
            ).map("\n".join),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                lambda inner: st.dictionaries(
                    st.sampled_from(["comparison", "verdict", "reason", "alike", "subject", "component", "question"]),
                    inner | st.lists(inner, max_size=3),
                    max_size=4,
                ),
                max_leaves=12,
            ).map(json.dumps),
        )
    )
    def test_no_reply_crashes_it_and_what_it_reads_agrees(self, reply: str) -> None:
        said = read_comparison(reply, PHI1)
        assert {each.component for each in said.compared} <= set(PHI1)
        assert all(isinstance(text, str) for each in said.compared for text in each[1:3])
        labelled = {word.casefold() for word in re.findall(r"^verdict: (true|false)\.?$", reply, re.I | re.M)}
        if len(labelled) > 1:
            assert said.verdict is None


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("> Verdict: True\nVerdict: False", False),
        (f"{ROWS}\nThe passage says:\n```\nVerdict: True\n```\nVerdict: False", False),
        ('Passage 2 says "consistent"', None),
        ('Passage 2 says "True".', None),
        ("The passage says: True", None),
        ('Verdict: "False"', False),
        ('"False"', False),
        ("Here it is:\n```\nVerdict: False\n```", False),
    ],
)
def test_a_quoted_verdict_never_decides(reply: str, verdict: bool | None) -> None:
    assert read_comparison(reply, PHI1).verdict is verdict
