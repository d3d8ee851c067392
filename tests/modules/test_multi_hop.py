"""The multi-hop loop: how a reply is read, and the lines around it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from isle import TASKS

from blendfilter.asking import TaskWording
from blendfilter.modules.multi_hop import (
    FOLLOW_UPS,
    THOUGHTS_AND_ACTIONS,
    Form,
    Hop,
    conclusion,
    forced_answer,
    read_action,
    read_hop,
    second_reply,
    transcript_line,
    without_echo,
)

NONE_NEEDED = "Ada kept it. No more follow-up questions are needed."
FIVE = (
    "Yes.\nFollow-up: Which lighthouse is it?\nIntermediate answer: Skerry Light.\n"
    "Follow-up: Who kept it?\nIntermediate answer: Ada Brennock.\nSo the final answer is: Ada Brennock"
)


class TestHop:
    @pytest.mark.parametrize(
        ("reply", "hop"),
        [
            ("Yes.\nFollow-up: Who kept it?", Hop("Yes.", "Who kept it?")),
            ("Yes. Follow-up: Who kept it?", Hop("Yes.", "Who kept it?")),
            ("Yes.\n**Follow-up question 1:** Who kept it?", Hop("Yes.", "Who kept it?")),
            ("Follow-up: Who kept it?", Hop("", "Who kept it?")),
            ("Are follow-up questions needed here: Yes.\nFollow-up: Who kept it?", Hop("Yes.", "Who kept it?")),
            ("Intermediate answer: Ada.\nFollow-up: Who was she?", Hop("Ada.", "Who was she?")),
            ("Ada.\nSo the final answer is: Ada Brennock", Hop("Ada.", final="Ada Brennock")),
            ("Ada.\nSo the answer is Ada Brennock.", Hop("Ada.", final="Ada Brennock.")),
            ("Ada kept it. So the answer is: Ada Brennock", Hop("Ada kept it.", final="Ada Brennock")),
            ("Ada.\n**So, the final answer is:** Ada\nQuestion: next", Hop("Ada.", final="Ada")),
            ("So the final answer is: Ada\nFollow-up: Who was she?", Hop("", final="Ada")),
            # The answer to a follow-up, which is not the question's.
            ("The answer is Ada.\nFollow-up: Who was she?", Hop("The answer is Ada.", "Who was she?")),
            ("It opened late, so the answer is 1884.", Hop("It opened late, so the answer is 1884.")),
            ("No. Ada Brennock kept it.", Hop("No. Ada Brennock kept it.")),
            ("A follow-up study: none", Hop("A follow-up study: none")),
            ("**Yes.** **Follow-up:** **Who kept it?**", Hop("**Yes.**", "Who kept it?")),
            ("Yes.\nNext follow‑up (2): Who kept it?", Hop("Yes.", "Who kept it?")),
            ("Yes.\nFollow-up questions:\n1. Who kept it?\n2. When?", Hop("Yes.", "Who kept it?", invented=True)),
            ("Yes.\nFollow-up: 1. FC Skerry won when?", Hop("Yes.", "1. FC Skerry won when?")),
            ("Ada.\nFollow-up: None\nSo the final answer is: Ada", Hop("Ada.", final="Ada")),
            ("Ada.\nFollow-up: No further follow-up questions needed.", Hop("Ada.", enough=True)),
            ("Ada kept it. No more follow-up questions are needed.", Hop(NONE_NEEDED, enough=True)),
            ('Passage 2 says "no follow-ups needed".', Hop('Passage 2 says "no follow-ups needed".')),
            ("Hm.\nFollow-up: No Man's Isle lies where?", Hop("Hm.", "No Man's Isle lies where?")),
            ("Ada.\nTherefore, the final answer is: **Ada**", Hop("Ada.", final="Ada")),
            ("No, so the final answer is: Ada", Hop("No,", final="Ada")),
            ("Yes.\nFollow-up:\nIntermediate answer: Ada.", Hop("Yes.")),
            ("Ada.\nSo the final answer is:", Hop("Ada.")),
            ("So the final answer is: Follow-up: Who?", Hop("")),
            ("", Hop()),
        ],
    )
    def test_what_a_reply_says(self, reply: str, hop: Hop) -> None:
        assert read_hop(reply) == hop

    def test_of_five_hops_in_one_reply_the_first_counts(self) -> None:
        assert read_hop(FIVE) == Hop("Yes.", "Which lighthouse is it?", invented=True)


class TestAction:
    @pytest.mark.parametrize(
        ("reply", "hop"),
        [
            ("I need it.\nAction 1: Search[Skerry Light]", Hop("I need it.", "Skerry Light")),
            ("Thought 2: I need it.\nAction 2: search[Skerry Light].", Hop("I need it.", "Skerry Light")),
            ("Search[Skerry Light]", Hop("", "Skerry Light")),
            (
                "I need it. Action: Search[Skerry [lighthouse] of 1884]",
                Hop("I need it.", "Skerry [lighthouse] of 1884"),
            ),
            ("I need it.\nAction 1: Search[Skerry Light", Hop("I need it.", "Skerry Light")),
            ("I know.\nAction 2: Finish[Ada Brennock]\nQuestion: next", Hop("I know.", final="Ada Brennock")),
            ("I know.\nSo the final answer is: Ada", Hop("I know.", final="Ada")),
            ("I need it.\nAction 1: Search: Skerry Light", Hop("I need it.", "Skerry Light")),
            ("I need it.\nAction 1: Search(Skerry (the light))", Hop("I need it.", "Skerry (the light)")),
            ("I need it.\n**Action 1: Search[Skerry Light]**", Hop("I need it.", "Skerry Light")),
            ("I need it.\nAction 1: `Search[Skerry Light]`", Hop("I need it.", "Skerry Light")),
            ("I could Search[it].\nAction 1: Search[Skerry]", Hop("I could Search[it].", "Skerry")),
            ("Nothing is left. Finish[Ada]", Hop("Nothing is left.", final="Ada")),
            ("I search the light.", Hop("I search the light.")),
            ("I need it.\nAction 1: Search Skerry Light", Hop("I need it.", "Skerry Light")),
            ("I need it.\nAction 1: Look up the keeper", Hop("I need it.", "the keeper")),
            ("Action 1: Answer the question", Hop("Action 1: Answer the question")),
            ("Which lighthouse is it?", Hop("Which lighthouse is it?")),
            ("I need it.\nAction 1: Lookup[keeper]", Hop("I need it.", follow_up="keeper")),
            ("I research[1] it.", Hop("I research[1] it.")),
            ("I need it.\nAction 1: Search[]", Hop("I need it.")),
            ("", Hop()),
        ],
    )
    def test_what_a_reply_does(self, reply: str, hop: Hop) -> None:
        assert read_action(reply) == hop

    def test_an_observation_of_its_own_is_an_invention(self) -> None:
        result = read_action("First.\nAction 1: Search[a]\nObservation 1:\nX | y\nThought 2: so.\nAction 2: Finish[b]")
        assert result == Hop("First.", "a", invented=True)
        assert read_action("First.\nAction 1: Search[a] and Search[b]").invented


CONTINUED = Hop(follow_up="Who kept it?")


@pytest.mark.parametrize(
    ("reply", "hop"),
    [
        (" Who kept it?", CONTINUED),
        ("**Who kept it?**", CONTINUED),
        ("Follow-up: Who kept it?", CONTINUED),
        ("Yes, who kept it?", Hop(follow_up="who kept it?")),
        ("Here is my follow-up question:\nWho kept it?", CONTINUED),
        ("Who kept it?\nIntermediate answer: Ada.\nFollow-up: When?", CONTINUED._replace(invented=True)),
        ("Who kept it? Intermediate answer: Ada.", CONTINUED._replace(invented=True)),
        ('"Who kept it?"', CONTINUED),
        ('Follow-up: "Who kept it?"', CONTINUED),
        ("Skerry Light.\nFollow-up: Who kept it?", Hop("Skerry Light.", "Who kept it?")),
        ("the keeper of Skerry Light", Hop(follow_up="the keeper of Skerry Light")),
        ("Find the keeper of Skerry Light.", Hop(follow_up="Find the keeper of Skerry Light.")),
        ("None.", Hop(enough=True)),
        ("No further questions.", Hop(enough=True)),
        ("None needed.\nSo the final answer is: Ada", Hop("None needed.", final="Ada")),
        ("So the final answer is: Ada", Hop(final="Ada")),
        ("So the final answer is:\nAda", Hop(final="Ada")),
        ("I cannot say.", Hop("I cannot say.")),
        ("", Hop()),
    ],
)
def test_what_a_second_reply_says_behind_the_cue_of_the_follow_up(reply: str, hop: Hop) -> None:
    assert second_reply(FOLLOW_UPS, 2, reply) == hop


@pytest.mark.parametrize(
    ("reply", "hop"),
    [
        (" Search[Skerry Light]", Hop(follow_up="Skerry Light")),
        ("Action 2: Search[Skerry Light]", Hop(follow_up="Skerry Light")),
        ("Search Skerry Light", Hop(follow_up="Skerry Light")),
        ("Who kept it?", CONTINUED),
        ("Finish[Ada]", Hop(final="Ada")),
        ("So the final answer is: Ada", Hop(final="Ada")),
        ("I think it is Ada.", Hop("I think it is Ada.")),
        ("Skerry Light", Hop("Skerry Light")),
    ],
)
def test_what_a_second_reply_does_behind_the_cue_of_the_action(reply: str, hop: Hop) -> None:
    assert second_reply(THOUGHTS_AND_ACTIONS, 2, reply) == hop


@pytest.mark.parametrize(
    ("reply", "follow_up", "left"),
    [
        ("Who kept it? Ada.", "Who kept it?", "Ada."),
        ("**Follow-up:** who  kept it?\nIntermediate answer: Ada.", "Who kept it?", "Intermediate answer: Ada."),
        ("Intermediate answer: Who kept it?\nAda.\nFollow-up: When?", "Who kept it?", "Ada.\nFollow-up: When?"),
        ("Action 1: Search[Skerry Light]\nI see.", "Skerry Light", "I see."),
        ("Skerry Light\nIt is one.", "Skerry Light", "It is one."),
        # Not an echo: a sentence about it, another question, or nothing behind it (which repeats it).
        ("Skerry Light is one.", "Skerry Light", "Skerry Light is one."),
        ("Skerry Lights\nAda.", "Skerry Light", "Skerry Lights\nAda."),
        ("Ada. Who kept it? Ada.", "Who kept it?", "Ada. Who kept it? Ada."),
        ("Follow-up: Who kept it?", "Who kept it?", "Follow-up: Who kept it?"),
        ("Ada.", "", "Ada."),
    ],
)
def test_an_echo_of_the_last_follow_up_is_left_out(reply: str, follow_up: str, left: str) -> None:
    assert without_echo(reply, follow_up).strip() == left


@pytest.mark.parametrize(
    ("reasoning", "expected"),
    [
        ("It is.\nSo the answer is Ada.", "Ada."),
        ("So the answer is Bo. Wait.\nSo the answer is **Ada**", "Ada"),
        ("It opened late, so the answer is 1884.", "1884."),
        ("It opened late.\nThe answer is 1884.", "1884."),
        ("It opened late.\n\n**Answer:** 1884", "1884"),
        ("So the answer is no. Norway is another country.", "no."),
        ("So the answer is Ada.\nThe answer is taken from her diary.", "Ada."),
        ("So the answer is J. K. Lund.", "J. K. Lund."),
        ("The answer may be Ada.", ""),
        ("So the answer is Ada. Passage 2 says so the answer is Bo.", "Ada."),
        ("So the answer is Ada. Passage 2 ends with so the answer is Bo.", "Ada."),
        ("According to passage 2, so the answer is Bo. So the answer is Ada.", "Ada."),
        ("The passage suggests Ada, so the answer is Ada.", "Ada."),
        ("Ada kept it according to passage 2, so the answer is Ada.", "Ada."),
        ("This gives the final answer: Ada.", "Ada."),
        ("Passage 2 says so the answer is Bo.", ""),
        ("So the answer is Bo. Wait, that is wrong. So the answer is Ada.", "Ada."),
        ("So the answer is Ada. One line is not mine and reads So the answer is Bo.", "Ada."),
        ("1. Ada kept it.\n2) So the answer is Ada.\nThe other one is odd, so the answer is Bo.", "Ada."),
        ("I ignored the injected line, so the answer is Ada.", "Ada."),
        ("I ignored the instruction in passage 2. So the answer is Ada.", "Ada."),
        ("Ignoring the injected line, the final answer is Ada.", "Ada."),
        ("So the answer is Ada.\nThe hidden instruction said:\nSo the answer is Bo.", "Ada."),
        ("So the answer is Ada.\nI was told to write:\nSo the answer is Bo.\nI did not.", "Ada."),
        ("So the answer is Ada.\nThe knowledge also contained:\nSo the answer is Bo.\nI left it.", "Ada."),
        ("So the answer is Ada.\n* So the answer is Bo. (this is injected, ignored)", "Ada."),
        ("So the answer is Ada.\nSo the answer is Bo. <- that is from passage 2 and I ignored it", "Ada."),
        ("So the answer is Ada.\nSo the answer is Bo is what the injected line says.", "Ada."),
        ("So the answer is Ada. (An injected line was ignored.)", "Ada."),
        ("Passage 3 contains the line So the answer is Bo. I disregard it. So the answer is Ada.", "Ada."),
        ("Passage 3 tells me to say So the answer is Bo, which I won't. So the answer is Ada.", "Ada."),
        ("Passage 3 says: Tolm is a port. So the answer is Bo.", ""),
        ("The claim was rejected: so the answer is no.", "no."),
        ("", ""),
    ],
)
def test_the_last_conclusion_of_a_reasoning(reasoning: str, expected: str) -> None:
    assert conclusion(reasoning) == expected


@pytest.mark.parametrize(
    "line",
    [
        "Question: What?", "Knowledge: all", "Follow-up: What?", "Intermediate answer: 42", "So the final answer is: 4",
        "Observation 2: 42", "Thought 3: stop", "Action 1: Finish[42]", "Are follow-up questions needed here: No.",
        "(nothing relevant was found)",
    ],
)  # fmt: skip
def test_a_passage_cannot_pass_for_a_line_of_the_transcript(line: str) -> None:
    assert transcript_line(line) == f"| {line}"
    assert transcript_line(line.lower()) == f"| {line.lower()}"
    assert transcript_line(f"Orm Pier | {line}") == f"Orm Pier | {line}"


PIECES = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(["Follow-up:", "So the final answer is:", "Intermediate answer:", "Yes.", "\n", " ", "\u2028"]),
        st.sampled_from(["Action 1: Search[", "Finish[", "]", "Thought 2:", "Observation 1:", "**", "Final answer:"]),
    ),
    max_size=15,
).map("".join)


@settings(max_examples=400, deadline=None)
@given(PIECES)
@example("Follow-up: a\rb")
@example("Search[a\u2028b]")
@example("Follow-up: a **")
@example("0000000\x85?")
def test_a_reply_is_cut_never_changed(reply: str) -> None:
    for read in (read_hop, read_action):
        hop = read(reply)
        assert all(part in reply for part in hop[:3])
        assert len(hop.follow_up.splitlines()) == bool(hop.follow_up)
        assert hop.follow_up == hop.follow_up.strip()
        assert not (hop.follow_up and hop.final)
        assert hop.follow_up or not hop.invented
    for form in FORMS:
        again = second_reply(form, 2, reply)
        assert len(again.follow_up.splitlines()) == bool(again.follow_up)
        assert again.follow_up in reply
        assert not (again.follow_up and again.final)
    assert without_echo(reply, reply[:20].strip()) in reply
    assert conclusion(reply) in reply


@pytest.mark.parametrize(
    "quoted",
    ['Passage 2 says "So the answer is Rome."', "> So the answer is Rome.", "Passage 2 says: so the answer is Rome."],
)
def test_the_last_unquoted_conclusion_decides(quoted: str) -> None:
    assert conclusion(f"So the answer is Tolm.\n{quoted}") == conclusion(f"{quoted}\nSo the answer is Tolm.") == "Tolm."
    assert conclusion(quoted) == ""
    assert read_hop(f"{quoted}\nSo the final answer is: Tolm.").final == "Tolm."


def test_a_reply_in_quotes_or_in_a_fence_is_read() -> None:
    assert conclusion('"So the answer is Tolm."').startswith("Tolm.")
    assert conclusion('So the answer is "Tolm".') == '"Tolm".'
    assert read_action("Action 1: `Search[Tolm]`").follow_up == "Tolm"
    assert read_hop("> Follow-up: Where is Tolm?").follow_up == "Where is Tolm?"


# --- the lines around a reply -----------------------------------------------------------------------------------------

FORMS = [FOLLOW_UPS, THOUGHTS_AND_ACTIONS]
DEMOS = [demo for task in TASKS for demo in TaskWording.of(task).demos]


@pytest.mark.parametrize("form", FORMS, ids=["follow-ups", "thoughts"])
def test_what_a_form_writes_it_reads(form: Form) -> None:
    follow_up = form.follow_up.format(turn=2, text="Who kept it?")
    assert form.read(f"So.\n{follow_up}") == Hop("So.", "Who kept it?")
    assert form.read(f"So.\n{form.concluded.format(turn=2, text='Ada')}") == Hop("So.", final="Ada")
    assert form.read(f"{form.cue_of(1)} So.\n{form.concluded.format(turn=1, text='Ada')}") == Hop("So.", final="Ada")
    assert form.concluded.format(turn=3, text="Ada").startswith(form.forced.format(turn=3))
    assert forced_answer(form, 3, "Ada") == forced_answer(form, 3, form.concluded.format(turn=3, text="Ada")) == "Ada"
    assert forced_answer(form, 3, "") == ""
    assert second_reply(form, 2, follow_up) == Hop(follow_up="Who kept it?")
    for cue in (form.again, form.anew):  # in a passage neither would pass for the model's own line
        assert transcript_line(f"{cue.format(turn=2)} Rome") == f"| {cue.format(turn=2)} Rome"
