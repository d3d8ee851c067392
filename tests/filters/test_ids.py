"""`read_ids`: a table of replies as models write them, and properties that hold for any text."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blendfilter.filters.ids import IdsRead, read_ids

K = 5

IDS: dict[tuple[int, ...], list[str]] = {
    (0, 3): [
        "0, 3", "0,3", "0 3", "0 and 3", "0; 3", "0,3,", "0, 0, 3, 3", "Ids: 0, 3", "Answer: 0, 3",
        "The relevant ones are 0 and 3.", "knowledge 0 and knowledge 3 are relevant.", "knowledge0, knowledge3",
        "sentence 0\nsentence 3", "Sentence 0: it names the light.\nSentence 3: it names the keeper.",
        "sentences 0 and 3", "#0, #3", "**0**, **3**", "**Ids:** 0, 3", "`0`, `3`", "(0), (3)", "0) and 3)", "[0][3]",
        '"0", "3"', "\\boxed{0, 3}", "0, 3</s>", "0, 3 <|im_end|>", "[0, 3]", '{"ids": [0, 3]}',
        '{"ids": ["0", "3"]}', "```json\n[0, 3]\n```", "Sure! [0, 3]", '{"relevant": [0, 3]}', "2 of the 5: 0 and 3",
        "There are 2 relevant: 0, 3", "0, 3 (2 of 5)", "0\n3", "- 0\n- 3", "Ids:\n0\n3",
        "0\n3\n\nThese name the keeper.", "```\n0\n3\n```", "1. 0\n2. 3",
        "1. Knowledge 0 is relevant.\n2. Knowledge 3 is relevant.", "1. 0, 3",
        "Knowledge 0: Tolm Harbour\nKnowledge 3: Ada Brennock", "0 - Tolm Harbour\n3 - Ada Brennock",
        "[0] Tolm Harbour\n[3] Ada Brennock", "0: relevant\n1: irrelevant\n3: relevant",
        "0 (relevant)\n1 (irrelevant)\n3 (relevant)", "0, 3\n\nThese tell where the light is.",
        "Irrelevant: 1, 2, 4\nRelevant: 0, 3", "Relevant: 0, 3\nIrrelevant: 1, 2, 4",
        "0: relevant, while 1 is irrelevant\n3: relevant",
    ],
    (0, 2): ["0 and 2 are relevant, 1 is not"],
    (0, 1, 3, 4): ["all except 2", "everything other than 2"],
    (3,): ["3", '```\n{"ids": [3]}\n```', "Of the knowledge numbered from 0 to 4, only 3 is relevant."],
    (0,): [
        "0.", "Only 0.", "0 is relevant; 1, 2 are irrelevant.",
        "0 | Tolm Harbour", "0 is relevant because it was built in 1884.", "0 (1884)",
        "Step 1: read. Step 2: judge. Ids: 0", "0, 7", "0, 1884", "0 is relevant.\n1 is not relevant.",
        "**Knowledge 0**: relevant\n**Knowledge 1**: irrelevant",
    ],
    (3, 0): ["3, 0"],
    (0, 1, 2): ["0-2", "0 to 2"],
    (1, 2, 3): ["1–3", "1 through 3 are relevant"],
    (0, 2, 3, 4): ["0, 2-4"],
    (0, 1, 2, 3, 4): ["0-4", "They are all relevant."],
    (1, 2): ["The relevant knowledge ids (0-4) are 1 and 2.", "Of knowledges 0-4, the relevant are 1, 2."],
    (0, 1, 4): ["3 relevant passages: 0, 1, 4"],
    (2,): ["0.5, 2"],
    (1,): ["knowledge 0: a harbour\nknowledge 1: a light\nIds: 1"],
    (2, 3): ["0, 1\nNo, wait:\n2, 3"],
}  # fmt: skip
"""Replies by the ids that they name: bare, with words around, in markdown or JSON, ranges, counts, lists, verdicts."""

SUSPECT = [
    "1, 3 and 4 are irrelevant", "1 is not relevant", "1 isn't relevant", "1 isn’t relevant",
    "All but 2", "Remove 1 and 2.",
    "0, 3\n\nThe other 3 are irrelevant.", "0 or none", "0: irrelevant\n1: irrelevant",
    "0: not irrelevant\n3: relevant",
    "1. Relevant\n2. Irrelevant\n3. Relevant", "1. Tolm Harbour\n2. Skerry Light", "None of them is irrelevant.",
    "None of these can be removed.",
]  # fmt: skip

NONE = [
    "none", "None.", "Ids: none", "None of the knowledge is relevant.", "There is no relevant knowledge.",
    "No sentence helps.", "No relevant ids", "There are none relevant.", "Nothing.", "Nothing here is relevant.",
    "N/A", "null", "[]", '{"ids": []}', "```json\n[]\n```",
]  # fmt: skip

UNPARSEABLE = [
    "", " \n ", "banana", "I cannot say.", "No.", "No sentence, no explanation.",
    "Not all are relevant.", "The first is not relevant.", "I have no doubt the passages help.",
    "The harbour is empty.", "There is nothing wrong with them.", "Still nothing to say.", "zero and three", "5",
    "7, 9", "[7]", '{"ids": [9]}', "[true]", "-1", "1.5", "1,000", "100%", "1884",
    "In 1884 the lighthouse was built.", "0-9", "4-1", "2 of the 5", "numbers from 0 to 4",
    "The question cannot be answered from knowledge 0-4.", "knowledge 7: relevant\nknowledge 8: relevant",
]  # fmt: skip


@pytest.mark.parametrize(("reply", "ids"), [(reply, ids) for ids, replies in IDS.items() for reply in replies])
def test_ids(reply: str, ids: tuple[int, ...]) -> None:
    assert read_ids(reply, K) == IdsRead(ids, "ids")


@pytest.mark.parametrize("reply", SUSPECT)
def test_suspect(reply: str) -> None:
    assert read_ids(reply, K) == IdsRead((), "suspect")


@pytest.mark.parametrize("reply", NONE)
def test_none(reply: str) -> None:
    assert read_ids(reply, K) == IdsRead((), "none")


@pytest.mark.parametrize("reply", UNPARSEABLE)
def test_unparseable(reply: str) -> None:
    assert read_ids(reply, K) == IdsRead((), "unparseable")


@pytest.mark.parametrize(
    ("reply", "k", "ids"),
    [
        ("0", 1, (0,)),
        ("1", 1, ()),
        ("0-1", 2, (0, 1)),
        ("9, 10, 11", 11, (9, 10)),
        ("0-9", 10, tuple(range(10))),
        ("ids (0-9): 3", 10, (3,)),
        ("0,3,150,299", 300, (0, 3, 150, 299)),
        ("Ids: 12,150", 300, (12, 150)),
        ("1,000", 300, ()),
        ("150,000 lamps", 300, ()),
        ("12,150", 5, ()),
        # five passages: not the range of ten
        ("knowledge 0-4", 10, (0, 1, 2, 3, 4)),
    ],
)
def test_range_is_of_the_passages_shown(reply: str, k: int, ids: tuple[int, ...]) -> None:
    assert read_ids(reply, k).ids == ids


SCRAPS = st.sampled_from(
    [
        *("0", "1", "4", "7", "1884", "1.5", ", ", " and ", "-", "–", " to ", ": ", ". ", "\n", "- ", "1. "),
        *("[", "]", "{", "}", '"ids"', "none", "not ", "irrelevant", "relevant", "knowledge ", "Ids:", "of the 5"),
        *("(0-4)", "```", "**", "’"),
    ]
)
REPLIES = st.text() | st.lists(SCRAPS).map("".join) | st.text(alphabet="0123456789,.-: \n[]{}()")


@given(reply=REPLIES, k=st.integers(1, 12))
@example(reply="[" * 100_000, k=5)
@example(reply="[" + "9" * 5_000 + "]", k=5)
@example(reply="\x00\ud800 0", k=5)
def test_any_text_is_read_without_raising(reply: str, k: int) -> None:
    ids, status = read_ids(reply, k)
    assert status in ("ids", "none", "suspect", "unparseable")
    assert bool(ids) == (status == "ids")
    assert all(0 <= number < k for number in ids)
    assert len(set(ids)) == len(ids)


@given(ids=st.lists(st.integers(0, K - 1), min_size=1, unique=True))
@pytest.mark.parametrize("join", [", ", ",", " ", "\n", " and ", "; ", "\n- "])
def test_what_was_asked_for_reads_back(join: str, ids: list[int]) -> None:
    assert read_ids(join.join(map(str, ids)), K) == IdsRead(tuple(ids), "ids")


@given(ids=st.lists(st.integers(0, K - 1), unique=True))
def test_json_reads_back(ids: list[int]) -> None:
    for reply in (json.dumps(ids), json.dumps({"ids": ids}), f"```json\n{json.dumps(ids)}\n```"):
        assert read_ids(reply, K) == IdsRead(tuple(ids), "ids" if ids else "none")


@pytest.mark.parametrize(
    ("reply", "ids"),
    [
        ("0, 1\n\nKnowledge 2 talks about another subject.", None),
        ("Ids: 2, 4\n\nThe film was made in 3 parts.", (2, 4)),
        ("Ids: 2, 4\n\nThe film was made in 3 harbours.", (2, 4)),
        ("None.\n\nKnowledge 0 describes a different film.", None),
        ("0, 1\n\nKnowledge 2: about a ship\nKnowledge 3: about a bird", None),
        ("0, 3\nSo 0 and 3 are relevant.", (0, 3)),
        ("Knowledge 0 and 3 matter.\n0, 3", (0, 3)),
        ("0, 1\nFinal: 2", (2,)),
    ],
)
def test_words_after_a_statement_do_not_overrule_it(reply: str, ids: tuple[int, ...] | None) -> None:
    assert read_ids(reply, 5) == (IdsRead((), "suspect") if ids is None else IdsRead(ids, "ids"))


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        ("There are 3 lighthouses in the text.", "suspect"),
        ("In 1884 there were 3 lighthouses on 2 islands.", "suspect"),
        ("3 lighthouses stand there.\n2 keepers lived there.", "suspect"),
        ("2 are relevant.", "suspect"),
        ("2 passages are relevant.", "unparseable"),
        ("I would keep 3 of them.", "unparseable"),
        ("I found 4 relevant passages.", "unparseable"),
        ("The question has 2 parts.", "unparseable"),
        ("Step 1: I read.\nStep 2: I judge.", "unparseable"),
        ("<think>1 or 2, then", "unparseable"),
    ],
)
def test_how_many_there_are_of_something_is_no_id(reply: str, status: str) -> None:
    assert read_ids(reply, 5) == IdsRead((), status)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reply", "ids"),
    [
        ("0 names the harbour and 3 tells who kept the light.", (0, 3)),
        ("Of the 2 lines that matter, knowledge 3 gives the keeper: 0, 3", (0, 3)),
        ("0 and 3 are relevant.", (0, 3)),
        ("Passage 3 lists the keepers.", (3,)),
        ("Step 1: read.\nStep 2: judge.\nIds: 0, 3", (0, 3)),
        ("0, 3\n\nLet me know if you need 1 more thing.", (0, 3)),
        ("<think>1 or 2?</think>0", (0,)),
        ('{"0": true, "1": false, "3": true}', (0, 3)),
        ('{"ids": {"0": false, "3": true}}', (3,)),
        ('{"relevant": true, "id": 3}', (3,)),
    ],
)
def test_an_id_in_a_sentence_is_read_where_it_can_be_nothing_else(reply: str, ids: tuple[int, ...]) -> None:
    assert read_ids(reply, 5) == IdsRead(ids, "ids")


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        ("1\n\nKnowledge 0: about the town, off topic.", (1,)),
        ("0\n3\n\nKnowledge 1: irrelevant\nKnowledge 2: off topic.", (0, 3)),
        ("0\n3\n\nKnowledge 0: the town\nKnowledge 3: the keeper", (0, 3)),
        ("0\n3\n\nKnowledge 3: irrelevant", "suspect"),
        ("1\n\nKnowledge 0: about the town.", "suspect"),
        ("Knowledge 0: names the town\nKnowledge 1: about a hill\n\n1", (1,)),
        ("0: relevant\n3", "suspect"),
        ("0: relevant\n1: about a ship", "suspect"),
        ("None.\n\nKnowledge 0 is irrelevant.", "none"),
        ("Irrelevant: 1\nKnowledge 1: about the town", "suspect"),
    ],
)
def test_what_is_said_of_a_passage_bears_a_statement_out_or_makes_it_suspect(
    reply: str, read: tuple[int, ...] | str
) -> None:
    """Ids that stand alone are a statement; words about one passage without a verdict never add it."""
    expected = IdsRead(read, "ids") if isinstance(read, tuple) else IdsRead((), read)  # type: ignore[arg-type]
    assert read_ids(reply, K) == expected


QUOTING = [
    "(Passage 2 says: @)", "> @", "\n> @", "Passage 2 says:\n```\n@\n```", '"@"', "“@”", "„@“", "«@»", "‘@’", "`@`",
    "'@'",    'The passage says "@".', "~~~\n@\n~~~",
]  # fmt: skip
STATED = ["0, 3", "Ids: 0, 3", "The relevant ones are 0 and 3.", "0\n3", "None.", "0: relevant\n1: irrelevant"]
SAID = st.lists(
    st.sampled_from(["Ids: ", "0", "1", "4", ", ", "none", "relevant", "knowledge 2: ", "not ", "So the answer is "]),
    min_size=1,
).map("".join)


@given(phrase=SAID, form=st.sampled_from(QUOTING), stated=st.sampled_from(STATED))
def test_quoted_text_never_changes_the_ids_that_are_read(phrase: str, form: str, stated: str) -> None:
    quotation = form.replace("@", phrase.strip())
    assert read_ids(f"{stated}\n\n{quotation}", K) == read_ids(stated, K)
    if quotation[0] in "(>\nPT":  # in no case the reply itself
        assert read_ids(f"{quotation}\n\n{stated}", K) == read_ids(stated, K)
        assert read_ids(quotation, K).ids == ()
    else:  # what opens a reply may be its own: then it is in doubt, where the two differ
        assert read_ids(f"{quotation}\n\n{stated}", K) in (read_ids(stated, K), IdsRead((), "suspect"))


@pytest.mark.parametrize(
    "reply",
    [
        "(Passage 2 says: Ids: 0, 1, 2, 3, 4)", "> Ids: 0, 3, 4", "Passage 2 says Ids: 0, 3",
        'Passage 2 says "Ids: 0, 3".',
        "Passage 2 contains this instruction:\n```\nIds: 0, 3\n```", 'I cannot say. "Ids: 0, 3"',
    ],
)  # fmt: skip
def test_a_reply_that_only_quotes_ids_is_suspect(reply: str) -> None:
    assert read_ids(reply, K) == IdsRead((), "suspect")


@pytest.mark.parametrize(
    "reply",
    [
        "```\n0, 3\n```", "```\n0, 3", '"0, 3"', "“0, 3”", "`0, 3`", "'0', '3'", 'Ids: "0, 3"',
        'The ids are "0" and "3".',
        'Passage "0" and passage "3" are relevant.', 'I choose "0" and "3".', "Here are the ids:\n```json\n[0, 3]\n```",
        "```json\n[0, 3]\n```\nThese name the keeper.", 'Sure! {"ids": ["0", "3"]}', "**Ids:** `0, 3`", '- "0"\n- "3"',
        '0 ("Apollo 2") and 3', '"Tolm Harbour" (0)\n"Apollo" (3)', 'Passage 0 says "1871", and 0 and 3 are relevant.',
        'Ids: 0, 3 (Passage 2 says: "Ids: 1")', "The keepers' names are in 0; the lights' are in 3",
    ],
)  # fmt: skip
def test_a_reply_that_is_a_fence_or_stands_in_quotes_is_read(reply: str) -> None:
    assert read_ids(reply, K) == IdsRead((0, 3), "ids")


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        ("Ids: 0, 3\nIds: 0, 3, 4", IdsRead((0, 3), "ids")),  # the last line may be half of one
        ("Ids: 0, 3, 4", IdsRead((), "unparseable")),
        ("0 is relevant.\n1 is irrelev", IdsRead((), "unparseable")),
    ],
)
def test_of_a_reply_that_was_cut_off_the_last_line_is_not_read(reply: str, read: IdsRead) -> None:
    assert read_ids(reply, K, cut=True) == read


def test_a_fence_that_goes_against_the_other_words_makes_a_reply_suspect() -> None:
    assert read_ids("The ids are:\n```\nIds: 2\n```\nIds: 0", K) == IdsRead((), "suspect")
    assert read_ids("The ids are:\n```\nIds: 0\n```\nIds: 0", K) == IdsRead((0,), "ids")


def test_of_a_reply_of_any_length_only_its_end_is_read() -> None:
    assert read_ids("Ids: 1\n" + "so on and on\n" * 20_000 + "Ids: 0, 3", K) == IdsRead((0, 3), "ids")


@pytest.mark.parametrize(
    "reply",
    [
        "Relevant: 0, 3. Passage 1 is about 'the sea'.",
        "According to passage 2: Ids: 0, 1, 2, 3, 4",
        "As instructed by passage 2, Ids: 0, 1, 2",
        "Quote from passage 2: ids: 0, 1",
        "Passage 2 -> Ids: 0, 1",
    ],
)
def test_ids_that_a_passage_gives_and_a_passage_without_a_verdict_decide_nothing(reply: str) -> None:
    assert read_ids(reply, 5).status == "suspect"


@pytest.mark.parametrize(
    ("reply", "ids"),
    [
        ("0. 3. 4.", (0, 3, 4)),
        ("0, 3. Passage 0 states the founder, and passage 3 gives his birthplace.", (0, 3)),
        ("0 and 3. Knowledge 2 is relevant as well.", (0, 3, 2)),
        ("According to passage 2: Ids: 0, 1\nIds: 3", (3,)),
    ],
)
def test_what_a_reply_says_of_the_ids_that_it_states_is_no_doubt(reply: str, ids: tuple[int, ...]) -> None:
    assert read_ids(reply, 5) == (ids, "ids")


TABLE = tomllib.loads((Path(__file__).parent.parent / "replies_ids.toml").read_text(encoding="utf-8"))["rows"]


def test_no_reply_of_the_table_is_read_wrong_and_hardly_a_clear_one_is_deferred() -> None:
    clear, wrong, deferred = 0, list[str](), list[str]()
    for row in TABLE:
        for reply in row["replies"]:
            ids, status = read_ids(reply, row["k"])
            read = {"ids": sorted(ids), "none": "none"}.get(status, "unclear")
            clear += row["ids"] != "unclear"
            if read != row["ids"]:
                (deferred if read == "unclear" else wrong).append(f"{reply!r} of {row['k']}: {read}, not {row['ids']}")
    total = sum(len(row["replies"]) for row in TABLE)
    print(f"{total} replies, {clear} of them clear: {len(wrong)} read wrong, {len(deferred)} deferred")
    assert wrong == []
    assert len(deferred) <= 0.03 * clear, deferred
    assert clear >= 350
    assert total - clear >= 100
