"""Predictions in a notebook: the trace as HTML, every text escaped; and for DSPy a prediction like any other."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import dspy
import pytest
from isle import PASSAGES
from report_page import FIERCE

from blendfilter import BM25, BlendFilter, Direct, connect, read_documents
from blendfilter.modules.base import Branch, Citation, MethodPrediction
from blendfilter.records import Excerpt, Passage, WrittenText
from blendfilter.report.trace import trace_text

QUESTION = "Which isle does Ormskerry lie on?"


@pytest.fixture
def answered(fresh_dspy: None) -> dspy.Prediction:
    with dspy.context(lm=connect("offline")):
        return BlendFilter(lambda query, k: PASSAGES[:k], k=2)(question=QUESTION)


def test_a_notebook_shows_the_trace(answered: dspy.Prediction) -> None:
    html = answered._repr_html_()
    for words in (answered.answer, "q_ex", "external reasoning + question", f"{len(answered.calls)} calls"):
        assert words in html
    retrieved = sum(len(branch.retrieved) for branch in answered.branches.values())
    kept = sum(len(branch.kept) for branch in answered.branches.values())
    assert (html.count("+ kept"), html.count("- dropped")) == (kept, retrieved - kept)


def test_ipython_prints_the_trace_and_nothing_that_acts_on_a_terminal(answered: dspy.Prediction) -> None:
    pretty = pytest.importorskip("IPython.lib.pretty").pretty
    printed = pretty(answered)
    assert printed == trace_text(answered).rstrip("\n")
    assert "knowledge  " in printed
    assert pretty(MethodPrediction(answer="\x1b[2Jx")).splitlines()[0] == r"answer     \x1b[2Jx"


def test_what_was_retrieved_and_answered_is_text() -> None:
    passage = Passage("1", FIERCE, FIERCE)
    prediction = MethodPrediction(
        answer=FIERCE,
        reasoning=FIERCE,
        queries={FIERCE: FIERCE, "q": "a"},
        branches={FIERCE: Branch([passage], [Excerpt.of(passage, [(0, len(FIERCE) - 1)])]), "q": Branch([], [])},
        flags={FIERCE: 1},
    )
    html = prediction._repr_html_()
    assert set(re.findall(r"<(\w+)", html)) == {"div", "b", "bdi", "br", "code", "small"}
    assert set(re.findall(r"<\w+([^>]*)>", html)) == {""}, "no attribute"
    assert "document.title" in html


def test_an_answer_cites_the_places_in_documents_that_it_was_read_from(tmp_path: Path, fresh_dspy: None) -> None:
    text = "# Quillmere\n## Harbour\nSkerry Light stands at the harbour. Gulls nest there.\n"
    (tmp_path / "guide.md").write_text(text)
    index = BM25.build(read_documents(tmp_path))
    with dspy.context(lm=connect("offline")):
        whole = Direct(index, k=1)(question="Where does Skerry Light stand?")
        piece = Direct(index, k=1, filter="sentence")(question="Where do gulls nest?")
    for prediction in (whole, piece):
        for cited in prediction.citations():
            assert (cited.title, cited.source) == ("Quillmere > Harbour", "guide.md")
            assert text[cited.start : cited.end] == cited.text
    assert [cited.text for cited in whole.citations()] == ["Skerry Light stands at the harbour. Gulls nest there."]
    assert "Gulls nest there." in "".join(cited.text for cited in piece.citations())
    assert "[1] <bdi>Quillmere &gt; Harbour (guide.md, characters 23-76)</bdi>" in whole._repr_html_()


def test_a_citation_says_what_is_known_of_its_place() -> None:
    def cited(passage: Passage) -> list[Citation]:
        return MethodPrediction(answer="", knowledge=[passage]).citations()

    text = "Orm Pier is old. It rains. It is long."
    piece = Excerpt.of(Passage("p", "Orm Pier", text), [(0, 16), (27, 38)])
    assert cited(piece) == [
        Citation("Orm Pier", "", 0, 16, "Orm Pier is old.", ""), Citation("Orm Pier", "", 27, 38, "It is long.", ""),
    ]  # fmt: skip
    assert cited(Passage("p", "", text, metadata={"source": "a.pdf", "start": "page 3"})) == [
        Citation("", "a.pdf", None, None, text, "")
    ]
    assert str(*cited(Passage(text, metadata={"source": "a.pdf"}))) == f"{text} (a.pdf)"
    assert cited(WrittenText("w", "", "Quillmere sank.")) == []


@pytest.mark.parametrize(
    ("metadata", "followed"),
    [
        ({"url": "https://example.org/a?b=1&c='\"d#e"}, "https://example.org/a?b=1&amp;c=&#x27;&quot;d#e"),
        ({"source": "http://example.org:8080"}, "http://example.org:8080"),
        ({"url": "javascript:alert(1)", "source": "a.md"}, None),
        ({"url": "https://bank.example@evil.example/"}, None),
        ({"url": "//example.org/a"}, None),
        ({"url": "https://example.org/\u202ea"}, None),
        ({"url": 'https://example.org/" onclick="alert(1)'}, None),
        ({"url": ["https://example.org"]}, None),
    ],
)
def test_a_citation_is_a_link_only_to_a_safe_address(metadata: dict[str, object], followed: str | None) -> None:
    passage = Passage("p", "Orm <b>Pier", "It is long.", metadata=metadata)
    html = MethodPrediction(answer="x", knowledge=[passage])._repr_html_()
    assert re.findall(r'<a href="([^"]*)" rel="noopener noreferrer">', html) == [followed] * bool(followed)
    assert html.count("<a") == bool(followed)
    assert "Orm &lt;b&gt;Pier" in html


def test_for_dspy_it_is_a_prediction_like_any_other(answered: dspy.Prediction) -> None:
    assert type(answered) is MethodPrediction
    assert isinstance(answered, dspy.Prediction)
    plain = dspy.Prediction(**dict(answered.items()))
    assert answered.toDict() == plain.toDict()
    assert repr(answered) == repr(plain)
    for copied in (copy.copy(answered), copy.deepcopy(answered), answered.copy(), pickle.loads(pickle.dumps(answered))):
        assert isinstance(copied, MethodPrediction)
        assert copied.toDict() == answered.toDict()
    assert answered.copy(answer="x").answer == "x"
    assert set(answered.keys()) >= {"answer", "queries", "branches", "flags", "calls"}
