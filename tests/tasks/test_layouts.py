"""Layouts: HotPotQA, 2Wiki, NQ and anyone's own in every one of them, by hand and real files against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadData
from blendfilter.metrics import Retrieval, retrieval
from blendfilter.records import Passage, Question
from blendfilter.retrieval.corpus import pooled
from blendfilter.tasks import TASKS, load

# --- HotPotQA: official, hub, normalised, IRCoT ---

FACTS = [["Mira Tolland", 0], ["Skerry Light", 1], ["Skerry Light", 0]]
CONTEXT = [
    ["Mira Tolland", ["Mira Tolland paints.", " She lives in Bremsund."]],
    ["Skerry Light", [" A light on Ulla.", " Karl Ostrander drew it."]],
]
BASE = {"question": " Who designed the light? ", "answer": "Karl Ostrander", "type": "bridge", "level": "hard"}
OFFICIAL = {"_id": "5a7f", **BASE, "supporting_facts": FACTS, "context": CONTEXT}
HUB = {
    "id": "5a7f", **BASE,
    "supporting_facts": {"title": [title for title, _ in FACTS], "sent_id": [number for _, number in FACTS]},
    "context": {"title": [title for title, _ in CONTEXT], "sentences": [texts for _, texts in CONTEXT]},
}  # fmt: skip
NORMALISED = {
    "id": "5a7f", "question": "Who designed the light?", "golden_answers": ["Karl Ostrander"],
    "metadata": {"type": "bridge", "level": "hard", "supporting_facts": FACTS,
                 "gold_titles": ["Mira Tolland", "Skerry Light"],
                 "context": [{"title": title, "sentences": texts} for title, texts in CONTEXT]},
}  # fmt: skip
EXPECTED = Question(
    id="5a7f",
    question="Who designed the light?",
    golden_answers=("Karl Ostrander",),
    gold_titles=("Mira Tolland", "Skerry Light"),
    evidence=(("Mira Tolland", "Skerry Light"),),
    supporting_facts=(("Mira Tolland", 0), ("Skerry Light", 1), ("Skerry Light", 0)),
    context=(
        Passage("5a7f:0", "Mira Tolland", "Mira Tolland paints. She lives in Bremsund."),
        Passage("5a7f:1", "Skerry Light", "A light on Ulla. Karl Ostrander drew it."),
    ),
    type="bridge",
)


@pytest.mark.parametrize("row", [OFFICIAL, HUB, NORMALISED], ids=["official", "hub", "normalised"])
def test_every_layout_of_hotpotqa_gives_the_same_question(row: dict[str, object], tmp_path: Path) -> None:
    as_list, as_lines = tmp_path / "list.json", tmp_path / "lines.jsonl"
    as_list.write_text(json.dumps([row], indent=1))
    as_lines.write_text(json.dumps(row) + "\n")
    for data in (as_list, str(as_lines), [row]):
        (question,) = load("hotpotqa", data)
        assert question == EXPECTED
        assert question.metadata["level"] == "hard"
        assert question.context[1].metadata["sentences"] == (" A light on Ulla.", " Karl Ostrander drew it.")


def test_ircot_marks_gold_on_the_paragraphs() -> None:
    row = {
        "question_id": "i1", "question_text": "Who designed the light?",
        "answers_objects": [{"number": "", "spans": ["Karl Ostrander", "Ostrander"]}],
        "contexts": [{"id": "0", "title": "Quay", "paragraph_text": "A quay.", "is_supporting": False},
                     {"id": "1", "title": "Skerry Light", "paragraph_text": "A light.", "is_supporting": True}],
    }  # fmt: skip
    (question,) = load("hotpotqa", [row])
    assert question.golden_answers == ("Karl Ostrander", "Ostrander")
    assert question.gold_titles == ("Skerry Light",)
    assert question.context[1] == Passage("i1:1", "Skerry Light", "A light.")


# --- 2WikiMultihopQA: aliases from three places ---

TWOWIKI = {
    "_id": "8f1c", "type": "compositional", "question": "Where was the director born?", "answer": "Bremsund",
    "answer_id": "Q990017", "supporting_facts": [["The Salt Road", 0], ["Ane Lindqvist", 0]],
    "evidences": [["The Salt Road", "director", "Ane Lindqvist"]],
    "context": [["The Salt Road", ["A film.", "It opened in 1961."]]],
}  # fmt: skip


def test_2wikis_sentences_join_with_a_space_and_aliases_in_the_row_are_answers() -> None:
    (question,) = load("twowiki", [{**TWOWIKI, "aliases": ["Bremsund Town", "Bremsund"]}])
    assert question.context[0].text == "A film. It opened in 1961."
    assert question.metadata["evidences"] == [["The Salt Road", "director", "Ane Lindqvist"]]
    assert question.golden_answers == ("Bremsund", "Bremsund Town")


def test_the_alias_file_beside_the_data_is_used(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text(json.dumps([TWOWIKI, {**TWOWIKI, "_id": "2", "answer_id": None}]))
    entity = {"Q_id": "Q990017", "aliases": ["Port of Bremsund"], "demonyms": ["Bremsunder"]}
    (tmp_path / "id_aliases.json").write_text(json.dumps(entity) + "\n" + json.dumps({"Q_id": "Q1", "aliases": []}))
    first, second = load("twowiki", tmp_path / "dev.json")
    assert first.golden_answers == ("Bremsund", "Port of Bremsund", "Bremsunder")
    assert second.golden_answers == ("Bremsund",)
    row = {"id": "3", "question": "Where?", "golden_answers": ["Bremsund"], "metadata": {"answer_id": "Q990017"}}
    (tmp_path / "normalised.jsonl").write_text(json.dumps(row))
    assert load("twowiki", tmp_path / "normalised.jsonl")[0].golden_answers == first.golden_answers


# --- KILT: outputs are aliases, each output's provenance a way to the answer of its own ---

ASKS, ANSWERS = "who keeps the light on skerry rock", ["Ada Brennock", "Brennock"]


def kilt(**changed: Any) -> dict[str, Any]:
    light = {"title": "Skerry Light", "wikipedia_id": "417", "start_paragraph_id": 2, "start_character": 0}
    return {
        "id": "6d1c", "input": f"{ASKS} ", "meta": {"left_context": ""},
        "output": [
            {"answer": "Ada Brennock", "provenance": [light, {**light, "start_paragraph_id": 3}]},
            {"answer": "Brennock"},
            {"provenance": [{"title": "Ada Brennock", "wikipedia_id": "93"}, light]},
            {"answer": "", "provenance": [{"title": "Skerry Light"}]},
        ],
        **changed,
    }  # fmt: skip


def test_kilts_answers_are_aliases_and_provenances_ways_to_them() -> None:
    (question,) = load("triviaqa", [kilt()])
    assert (question.id, question.question) == ("6d1c", ASKS)
    assert question.golden_answers == tuple(ANSWERS)
    assert question.evidence == (("Skerry Light",), ("Ada Brennock", "Skerry Light"))
    assert question.gold_titles == ("Skerry Light", "Ada Brennock")
    assert question.metadata["meta"] == {"left_context": ""}
    assert question.metadata["provenance"][0]["start_paragraph_id"] == 2
    assert retrieval(["Skerry Light"], question) == Retrieval(1.0, 1.0, 1.0, 1.0, 1.0)
    assert retrieval(["Ada Brennock"], question)[:3] == (0.5, 1.0, 0.0)


# --- Natural Questions and DPR ---


def dpr(**changed: Any) -> dict[str, Any]:
    return {
        "dataset": "nq_dev_psgs_w100", "question": ASKS, "answers": ANSWERS,
        "positive_ctxs": [
            {"title": "Skerry Light", "text": "Ada Brennock keeps it.", "score": 1000, "passage_id": "417"},
            {"title": "Ada Brennock", "text": "A keeper.", "score": 12.5, "passage_id": 93},
            {"title": "Skerry Light", "text": "More of it.", "score": 3, "passage_id": "418"},
        ],
        "negative_ctxs": [{"title": "Quay", "text": "A quay.", "score": 0, "passage_id": "7"}],
        "hard_negative_ctxs": [{"title": "Skerry", "text": "A rock.", "score": 9, "passage_id": "8"}],
        **changed,
    }  # fmt: skip


def test_dprs_positive_passages_are_gold_each_by_itself_and_what_was_retrieved_is_none() -> None:
    (question,) = load("nq", [dpr()])
    assert question.gold_titles == ("Skerry Light", "Ada Brennock")
    assert question.evidence == (("Skerry Light",), ("Ada Brennock",))
    assert [(one.id, one.title) for one in question.context] == [
        ("417", "Skerry Light"), ("93", "Ada Brennock"), ("418", "Skerry Light"), ("8", "Skerry"), ("7", "Quay"),
    ]  # fmt: skip
    assert question.context[0].text == "Ada Brennock keeps it."
    assert question.metadata["dataset"] == "nq_dev_psgs_w100"
    found = [{"id": "417", "title": "Skerry Light", "text": "x", "score": "81.2", "has_answer": True}]
    (question,) = load("nq", [{"question": ASKS, "answers": ANSWERS, "ctxs": found}])
    assert (question.gold_titles, question.evidence) == ((), ())
    assert question.context[0].metadata["has_answer"] is True


# --- anyone's own ---


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"answer": "Ane"}, ("Ane",)),
        ({"answer": ["Ane", "A. L.", "Ane", " "]}, ("Ane", "A. L.")),
        ({"answers": ["Ane"]}, ("Ane",)),
        ({"answers": {"text": ["Ane"], "answer_start": [3]}}, ("Ane",)),
        ({"answer": True}, ("yes",)),
        ({"answer": 1961}, ("1961",)),
        # several columns: all count, and an empty one is none
        ({"answers": ["A. L."], "answer": "Ane"}, ("Ane", "A. L.")),
        ({"answer": "Ane", "answers": {"text": [], "answer_start": []}}, ("Ane",)),
        ({"answer": [], "answers": ["Ane"], "aliases": None}, ("Ane",)),
        ({"golden_answers": ["Ane"], "metadata": {"answer_aliases": ["A. L."]}}, ("Ane", "A. L.")),
        ({"golden_answers": ["Ane"], "answer": "ane!"}, ("Ane",)),  # the same, as every metric reads it
        ({"golden_answers": [" "], "answer": "Ane"}, ("Ane",)),
        ({"answer": "Ane", "possible_answers": '["Ane", "A. L."]', "o_aliases": '["L."]'}, ("Ane", "A. L.", "L.")),
        ({"answer": {"value": "Ane", "aliases": ["A. L.", "ane"]}, "aliases": ["L."]}, ("Ane", "A. L.", "L.")),
        ({"Answer": "Ane", "Aliases": ["A. L."]}, ("Ane", "A. L.")),
        ({"answer": {"text": "Ane", "aliases": ["A. L."]}}, ("Ane", "A. L.")),
        ({"answer": "Ane", "answerAliases": ["A. L."], "metadata": {"answer-alias": "L."}}, ("Ane", "A. L.", "L.")),
        ({"answer": "Ane", "Correct Answers": ["A. L.", "Ane"]}, ("A. L.", "Ane")),
        ({"answer": "Ane", "possibleAnswers": '["A. L."]'}, ("Ane", "A. L.")),
        ({"answer": "Ane", "all_answers": ["Ane", "L."], "valid_answers": ["A. L."]}, ("Ane", "L.", "A. L.")),
        # aliases of something else
        ({"answer": "Ane", "s_aliases": '["Mill"]', "question_aliases": ["Who is it?"]}, ("Ane",)),
        ({"answer": "Ane", "incorrect_answers": ["Jon"], "long_answer": "Ane did.", "answer_id": "Q1"}, ("Ane",)),
        # cells of tables
        ({"answer": [1790.0, float("nan")], "answers": float("nan")}, ("1790",)),
        ({"answer": "1790.0", "aliases": [3.5]}, ("1790.0", "3.5")),
        ({"answer": np.array([["Ane", "A. L."]], dtype=object), "aliases": np.float32(3)}, ("Ane", "A. L.", "3")),
        ({"answer": np.bool_(False)}, ("no",)),
        # lists in a text
        ({"answer": "[1790, 1791]"}, ("1790", "1791")),
        ({"answer": "[-1.5]"}, ("-1.5",)),
        ({"answer": "[1790 or so]"}, ("[1790 or so]",)),
        ({"answer": "[3-4]"}, ("[3-4]",)),
    ],
)
def test_answers_in_every_form(answers: dict[str, object], expected: tuple[str, ...]) -> None:
    (question,) = load("qa", [{"question": "Who?", **answers}])
    assert (question.id, question.golden_answers, question.evidence) == ("row-0", expected, ())


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


@pytest.mark.parametrize("task", ["hotpotqa", "twowiki", "nq", "triviaqa", "popqa", "eli5", "wow", "qa"])
def test_every_task_reads_every_column_of_answers(task: str) -> None:
    row = {"question": "Who?", "answer": "Ane", "answers": ["A"], "aliases": ["B"], "answer_aliases": ["C", "Ane"],
           "possible_answers": '["D"]', "short_answers": ["E"], "normalized_aliases": ["f"],
           "o_aliases": '["G"]', "alias": "H", "answer_alias": "I", "golden_aliases": ["J"],
           "acceptable_answers": ["K"], "alternative_answers": ["L"], "other_answers": ["M"],
           "valid_answers": ["N"], "accepted_answers": ["O"]}  # fmt: skip
    (question,) = load(task, [row])
    assert question.golden_answers == (
        *("Ane", "D", "A", "E", "N", "K", "O", "L", "M", "C", "I", "J", "B", "H", "f", "G"),
    )


@pytest.mark.parametrize("task", ["qa", "hotpotqa", "twowiki"])
@pytest.mark.parametrize("column", ["content", "sentences"])
def test_flashrags_contexts_have_either_column(task: str, column: str) -> None:
    context = {"title": ["The Salt Road", "Quay"], column: [["A film."], ["A quay."]]}
    facts = {"title": ["The Salt Road"], "sent_id": [0]}
    row = {"id": "dev_0", "question": "Where?", "golden_answers": ["Bremsund"],
           "metadata": {"type": "compositional", "supporting_facts": facts, "context": context}}  # fmt: skip
    (question,) = load(task, [row])
    assert question.context == (Passage("dev_0:0", "The Salt Road", "A film."), Passage("dev_0:1", "Quay", "A quay."))
    assert question.gold_titles == ("The Salt Road",)


def test_columns_of_a_parquet_file_are_arrays() -> None:
    def array(*items: Any) -> Any:
        return np.array(items, dtype=object)

    facts = {"title": array("Mill", "Quay"), "sent_id": np.array([0, 1])}
    context = {"title": array("Mill", "Quay"), "sentences": array(array("A.", "B."), array("C."))}
    row = {"id": np.int64(3), "question": "Who?", "answer": "Ane", "supporting_facts": facts, "context": context}
    (question,) = load("hotpotqa", [row])
    assert question.supporting_facts == (("Mill", 0), ("Quay", 1))
    assert question.context == (Passage("3:0", "Mill", "A.B."), Passage("3:1", "Quay", "C."))
    evidence = array(array(array("Ulla-3"), array("operation")), array(array("no_evidence")))
    (question,) = load("strategyqa", [{"question": "Is it?", "answer": np.bool_(True), "evidence": evidence}])
    assert (question.golden_answers, question.evidence) == (("yes",), (("Ulla",),))


def test_a_frame_with_gaps_is_read_as_it_was_before_it_was_a_frame() -> None:
    frame = pytest.importorskip("pandas").DataFrame(
        [
            {"id": 7, "question": "When?", "answer": 1790, "type": "bridge", "gold_titles": ["Mill", None, 1790.0]},
            {"question": "Who?", "answers": ["Ane"], "context": [{"title": None, "text": "A mill."}], "note": 1.0},
        ]
    )
    for rows in (frame, frame.to_dict("records"), frame.convert_dtypes().to_dict("records")):
        first, second = load(rows)
        assert first == Question("7", "When?", ("1790",), ("Mill", "1790"), (("Mill", "1790"),), type="bridge")
        assert second == Question("row-1", "Who?", ("Ane",), context=(Passage("row-1:0", "", "A mill."),))
        assert (first.metadata, second.metadata) == ({}, {"note": 1.0})


def test_plain_texts_ids_and_gold_of_ones_own() -> None:
    row = {"id": "7", "question": "Who?", "answer": "Ane", "note": "mine"}
    (question,) = load("qa", [{**row, "context": ["A mill.", {"id": "p9", "text": "A quay."}]}])
    assert question.context == (Passage("7:0", "", "A mill."), Passage("p9", "", "A quay."))
    for name in ("_id", "pid", "docid", "doc_id"):
        (question,) = load("qa", [{**row, "ctxs": [{name: 9, "text": "A quay."}]}])
        assert question.context == (Passage("9", "", "A quay."),)
    assert load("qa", [{**row, "gold_titles": ["Mill", "Mill"]}])[0].gold_titles == ("Mill",)
    assert load("qa", [{**row, "gold_title": "Mill"}])[0].gold_titles == ("Mill",)
    (question,) = load("qa", [{**row, "supporting_facts": [["Mill", 1], ["Quay", 0]]}])
    assert question.evidence == (("Mill", "Quay"),)
    assert question.metadata == {"note": "mine"}


# --- what is wrong, and anything at all ---


@pytest.mark.parametrize(
    ("task", "row", "problem"),
    [
        ("hotpotqa", {**OFFICIAL, "supporting_facts": [["Quay", "first"]]}, "'supporting_facts.0.1' is wrong.*'first'"),
        ("hotpotqa", {**OFFICIAL, "context": {"title": ["Quay"], "sentences": []}}, "'context' is wrong: .*columns"),
        ("hotpotqa", {"_id": "1", "question": "Who?"}, r"field 'answer' is missing .it has: _id, question"),
        ("triviaqa", kilt(output=[]), "has no answer"),
        ("triviaqa", kilt(output=[{"answer": ["Tolm"]}]), r"field 'output\.0\.answer' is wrong"),
        ("triviaqa", kilt(input=""), r"field 'input' is empty: .*get_triviaqa_input\.py"),
        ("nq", {"question": ASKS, "answer": [""]}, "has no answer"),
        ("nq", {"answer": ANSWERS}, "field 'question' is missing"),
        ("nq", {"question": " ", "answer": ANSWERS}, "question 'row-0' is empty"),
        ("qa", {"question": "Who?", "answer": "Ane", "aliases": [{}]}, "field 'aliases' is wrong: .*found {}"),
        (
            "qa",
            {"question": "Who?", "golden_answers": ["Ane"], "answer": "Jon"},
            "'answer' is 'Jon', .*not among the go",
        ),
        ("qa", {"question": "Who?", "ground_truth": "Ane", "answer": "Jon"}, "'answer' is 'Jon', which is not among"),
        ("qa", {"question": "Who?", "answers": "['Ane', 'A. L.']"}, "field 'answers' is wrong: .*a JSON list"),
        ("qa", {"question": "Who?", "answer": None, "aliases": []}, "has no answer"),
        ("qa", {"question": "Who?", "answer": None}, "field 'answer' is missing"),
        ("qa", {"question": "Who?", "answer": float("inf")}, "field 'answer' is wrong: .*found inf"),
        ("qa", {"question": "Who?", "expectedAnswer": "Ane", "answer": "Jon"}, "'answer' is 'Jon', which is not among"),
        ("triviaqa", {"question": "Who?", "answer": {"value": "<unk>", "aliases": []}}, "has no answer"),
        ("qa", {"question": float("nan"), "answer": "Ane"}, "field 'question' is missing"),
        (
            "qa",
            {"question": "Who?", "answer": "Ane", "context": [{"title": "Mill"}]},
            r"'context\.0\.sentences' is miss",
        ),
        ("qa", {"question": "Who?", "answer": "Ane", "context": 3}, "field 'context' is wrong"),
        ("qa", "Who?", "expected an object with fields such as 'question', found a str"),
    ],
)
def test_a_wrong_field_is_named_with_its_place(task: str, row: Any, problem: str, tmp_path: Path) -> None:
    (path := tmp_path / "mine.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(BadData, match=rf"mine\.jsonl, line 1\b.*{problem}"):
        load(task, path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["answer", "provenance", "title", "text", "label"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = ("id", "input", "output", "question", "answer", "answers", "claim", "label", "evidence", "title", "metadata",
          "golden_answers", "Question", "Answer", "dialog", "positive_ctxs", "docs", "context", "gold_titles",
          "gold_title", "supporting_facts")  # fmt: skip


@pytest.mark.parametrize("task", ["triviaqa", "fever", "eli5", "arc", "qa"])
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
def test_any_row_is_a_question_or_one_line_that_names_it(task: str, row: dict[str, Any]) -> None:
    problem, texts = "the given rows, item 1", ["?"]
    try:
        texts = [part for one in load(TASKS[task], [row]) for part in (one.question, *one.golden_answers)]
    except BadData as error:
        problem = str(error)
    assert problem.startswith("the given rows, item 1")
    assert "\n" not in problem
    assert all(part.strip() for part in texts)


# --- real files ---


@pytest.mark.parametrize(
    ("task", "name", "many", "gold"),
    [
        ("hotpotqa", "hotpotqa/dev.jsonl.gz", 1125, 1125),
        ("nq", "nq/dev_gold.jsonl.gz", 2455, 2455),
        ("nq", "nq/dev_qa_only.jsonl.gz", 3410, 0),
        ("nq", "nq/test_retrieved.jsonl.gz", 954, 0),
        ("nq", "raw/nq_open/NQ-open.efficientqa.dev.1.1.jsonl", 1800, 0),
        ("nq", "raw/flashrag/nq_test.jsonl", 17, 0),
        ("qa", "nq/dev_gold.jsonl.gz", 2455, 2455),
        ("qa", "popqa/test.jsonl.gz", 800, 800),
        ("qa", "triviaqa/test_retrieved.jsonl.gz", 800, 0),
        ("qa", "raw/hotpotqa/hipporag_hotpotqa_train.json", 100, 100),
        ("qa", "raw/ircot/hotpotqa_dev_subsampled.jsonl.gz", 500, 500),
    ],
)
def test_real_files_of_many_layouts_read(shared_data: Path, task: str, name: str, many: int, gold: int) -> None:
    questions = load(task, shared_data / name)
    assert (len(questions), sum(bool(one.gold_titles) for one in questions)) == (many, gold)
    assert all(one.golden_answers and "\n" not in one.question for one in questions)
    if name == "nq/test_retrieved.jsonl.gz":
        assert sum(bool(one.context) for one in questions) == 919
        assert len(list(pooled(questions))) > 1000
