"""Anyone's own questions: every form of answer and paragraph, and the errors they may run into."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.records import Passage
from blendfilter.tasks import load
from blendfilter.tasks.generic import parse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "title"]), inner, max_size=2),
    max_leaves=8,
)
FIELDS = ["id", "question", "answer", "golden_answers", "metadata", "context", "gold_titles", "supporting_facts"]


def test_the_least_possible_row() -> None:
    (question,) = load("qa", [{"question": "Who runs the mill?", "answer": "Ane"}])
    assert (question.id, question.golden_answers, question.evidence) == ("row-0", ("Ane",), ())


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"answer": "Ane"}, ("Ane",)),
        ({"answer": ["Ane", "A. L.", "Ane", " "]}, ("Ane", "A. L.")),
        ({"answers": ["Ane"]}, ("Ane",)),
        ({"golden_answers": "Ane", "answer": "other"}, ("Ane",)),
        ({"answers": {"text": ["Ane"], "answer_start": [3]}}, ("Ane",)),
        ({"answer": True}, ("yes",)),
        ({"answer": 1961}, ("1961",)),
    ],
)
def test_answers_in_every_form(answers: dict[str, object], expected: tuple[str, ...]) -> None:
    assert load("qa", [{"question": "Who?", **answers}])[0].golden_answers == expected


@pytest.mark.parametrize(
    "context",
    [
        [{"title": "Tide Mill", "text": "A mill. It turns."}],
        [{"title": "Tide Mill", "sentences": ["A mill.", "It turns."]}],
        [["Tide Mill", ["A mill.", "It turns."]]],
        {"title": ["Tide Mill"], "sentences": [["A mill.", "It turns."]]},
    ],
)
def test_paragraphs_in_every_form(context: object) -> None:
    (question,) = load("qa", [{"id": 7, "question": "Who?", "answer": "Ane", "context": context}])
    assert question.context == (Passage("7:0", "Tide Mill", "A mill. It turns."),)


def test_plain_texts_and_ids_of_ones_own() -> None:
    row = {"id": "7", "question": "Who?", "answer": "Ane", "context": ["A mill.", {"id": "p9", "text": "A quay."}]}
    assert load("qa", [row])[0].context == (Passage("7:0", "", "A mill."), Passage("p9", "", "A quay."))


def test_gold_may_be_titles_or_supporting_facts() -> None:
    row = {"question": "Who?", "answer": "Ane", "note": "mine"}
    assert load("qa", [{**row, "gold_titles": ["Mill", "Mill"]}])[0].gold_titles == ("Mill",)
    (question,) = load("qa", [{**row, "supporting_facts": [["Mill", 1], ["Quay", 0]]}])
    assert question.evidence == (("Mill", "Quay"),)
    assert question.metadata == {"note": "mine"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"answer": "Ane"}', r"line 2: field 'question' is missing \(it has: answer\)"),
        ('{"question": "Who?"}', r"line 2: field 'answer' \(or 'answers', 'golden_answers'\) is missing"),
        ('{"question": "Who?", "answer": []}', "line 2: has no answer"),
        ('{"question": "Who?", "answer": [{}]}', "line 2: field 'answer' is wrong"),
        ('{"question": ["Who?"], "answer": "Ane"}', "line 2: field 'question' is wrong"),
        ('{"question": "Who?", "answer": "Ane", "context": [{"title": "Mill"}]}', "line 2, context 0: field 'text'"),
        ('{"question": "Who?", "answer": "Ane", "context": 3}', "line 2: field 'context' is wrong"),
        ('["Who?", "Ane"]', "line 2: expected an object with fields such as 'question', found a list"),
    ],
)
def test_a_wrong_row_names_its_line_and_field(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "Where?", "answer": "here"}\n' + line + "\n")
    with pytest.raises(BadData, match=message) as caught:
        load(path)
    assert "mine.jsonl" in str(caught.value)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON) | JSON)
def test_any_json_is_a_question_or_one_clear_error(value: object) -> None:
    message = "here"
    try:
        question = parse(JsonRow("here", 0, value))
    except BadData as error:
        message = str(error)
    else:
        assert all(isinstance(text, str) for text in (question.id, question.question, *question.golden_answers))
    assert message.startswith("here")


@pytest.mark.parametrize(
    ("file", "count"),
    [
        ("nq/dev_gold.jsonl.gz", 2455),
        ("popqa/test.jsonl.gz", 800),
        ("triviaqa/test_retrieved.jsonl.gz", 800),
        ("raw/nq_open/NQ-open.efficientqa.dev.1.1.jsonl", 1800),
        ("raw/flashrag/nq_test.jsonl", 17),
        ("raw/hotpotqa/hipporag_hotpotqa_train.json", 100),
        ("raw/ircot/hotpotqa_dev_subsampled.jsonl.gz", 500),
    ],
)
def test_real_files_of_many_layouts_read(shared_data: Path, file: str, count: int) -> None:
    assert len(load("qa", shared_data / file)) == count
