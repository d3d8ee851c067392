"""A trace reads as the pipeline went: queries, what each brought, what was kept and why, the answer."""

from __future__ import annotations

from textwrap import dedent

import dspy
import pytest

from blendfilter import Passage
from blendfilter.modules.base import Branch
from blendfilter.records import Excerpt
from blendfilter.report.trace import reasons_of, trace_text

PIER = Passage("p", "Orm Pier", "Orm Pier is a pier in Tavenby.")
FAIR = Passage("f", "Fair", "The fair is on the pier.")


def test_a_whole_trace() -> None:
    prediction = dspy.Prediction(
        answer="Tavenby",
        reasoning="The pier is in Tavenby.\nSo the answer is Tavenby.",
        knowledge=[PIER],
        queries={"q": "Where is Orm Pier?", "q_ex": "It is in Tavenby. Where is Orm Pier?", "q_in": "A pier. Where?"},
        branches={
            "q": Branch([PIER, FAIR], [PIER], "ids", "Knowledge 1 is irrelevant.\nknowledge 0: it names the pier"),
            "q_ex": Branch([FAIR], [FAIR], "unparseable", "hm"),
            "q_in": Branch([], [], "empty"),
        },
        flags={"unparseable_ids": 1, "cut_reply": 0},
        calls=[("external", "a"), ("ids", "b")],
    )
    assert trace_text(prediction) == dedent("""\
        each query and what it brings (+ kept, - dropped)

        q    the question
             Where is Orm Pier?
             + Orm Pier | Orm Pier is a pier in Tavenby.
                 it names the pier
             - Fair | The fair is on the pier.
                 is irrelevant.

        q_ex external reasoning + question
             It is in Tavenby. Where is Orm Pier?
             + Fair | The fair is on the pier.
               the filter's reply was unparseable: the whole branch is kept

        q_in internal knowledge + question
             A pier. Where?
               nothing retrieved

        knowledge  Orm Pier
        reasoning  The pier is in Tavenby. So the answer is Tavenby.
        answer     Tavenby
        calls      2  (unparseable_ids 1)
        """)


def test_nothing_is_cut_without_a_width() -> None:
    long = Passage("l", "Long", "word " * 100)
    branch = Branch([long], [], "ids", "The first of them.\nknowledge 0: " + "no " * 99)
    reply = "It is so.\n" + "because " * 99
    prediction = dspy.Prediction(answer="x", reasoning=reply, queries={"q": "word " * 100}, branches={"q": branch})
    result = trace_text(prediction, None)
    assert "…" not in result
    assert "[...]" not in result
    assert result.count("word") == 200
    assert "     the filter said  The first of them.\n                      knowledge 0: no no " in result
    assert "reasoning  It is so.\n           because because" in result
    assert result.count("because") == 99


def test_pieces_that_were_kept_are_shown_under_their_passage() -> None:
    pier = Passage("p", "Orm Pier", "Orm Pier is in Tavenby. It rains. It is old.")
    piece = Excerpt.of(pier, [(0, 23), (34, 44)])
    branch = Branch([pier, FAIR], [piece], "kept 2 of 4", "0.9 in knowledge 0: Orm Pier | Orm Pier is in Tavenby.")
    prediction = dspy.Prediction(answer="x", queries={"q": "Where?"}, branches={"q": branch}, knowledge=[piece])
    assert dedent("""\
             + Orm Pier | Orm Pier is in Tavenby. It rains. It is old.
                 kept: Orm Pier is in Tavenby.
                 kept: It is old.
             - Fair | The fair is on the pier.

        knowledge  Orm Pier
        """) in trace_text(prediction)


def test_knowledge_out_of_documents_is_cited_by_file_and_place() -> None:
    text = "Orm Pier is in Tavenby. It rains."
    pier = Passage("g#4", "Orm Pier", text, metadata={"source": "guide.md", "start": 1000, "end": 1000 + len(text)})
    knowledge = [FAIR, Excerpt.of(pier, [(24, 33)])]
    line = "knowledge  Fair, Orm Pier (guide.md, characters 1,024-1,033)\n"
    assert line in trace_text(dspy.Prediction(answer="x", queries={"q": "Where?"}, knowledge=knowledge))


@pytest.mark.parametrize(
    ("reason", "result"),
    [
        ("knowledge 0: relevant\nknowledge 1: not", ["relevant", "not"]),
        ("Knowledge 1 is irrelevant.", ["", "is irrelevant."]),
        ("- **Knowledge 0** - yes", ["yes", ""]),
        ("* knowledge [1]: no", ["", "no"]),
        ("Knowledge 7: out of range", ["", ""]),
        ("0 names the town: relevant.\n1 is about a hill.\nIds: 0", ["names the town: relevant.", "is about a hill."]),
        ("0.9 in knowledge 0: Orm Pier | A pier.\n1.3 in knowledge 1: x", ["", ""]),
        ("knowledge 1: 14 words", ["", "14 words"]),
        ("1, 0", ["", ""]),
        ("I cannot say.", ["", ""]),
        ("", ["", ""]),
    ],
)
def test_reasons_are_read_where_a_line_gives_one(reason: str, result: list[str]) -> None:
    assert list(reasons_of(reason, 2)) == result
