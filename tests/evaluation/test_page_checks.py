"""Which call judged which query's passages: known by what stands in its prompt."""

from __future__ import annotations

from blendfilter.evaluation.page.checks import Asked, judged

A, B, C = "Orm Pier | A pier.", "Fair | A fair.", "Town | A town."
DEMO = "knowledge 0: Demo | x\nknowledge 1: Fair | A fair.\nQuestion: y?\nRelevance:\nNone.\n\n"


def check(*lines: str, reply: str = "knowledge 0: yes\nknowledge 1: no", stage: str = "select.check") -> Asked:
    numbered = "\n".join(f"knowledge {number}: {line}" for number, line in enumerate(lines))
    return Asked.of(stage, {"prompt": f"{DEMO}{numbered}\nQuestion: z?\nRelevance:", "reply": reply})


def ids(reply: str) -> Asked:
    return Asked.of("select.ids", {"prompt": f"Context:\n{reply}\n\nIds:", "reply": "0"})


def test_each_query_has_the_check_of_its_passages() -> None:
    other = "knowledge 0: none of it\nknowledge 1: perhaps"
    calls = [Asked.of("external", None), check(B, A, reply=other), check(A, B), ids(other), ids("knowledge 0: yes")]
    told = judged(calls, {"q": [A, B], "q_ex": [B, A], "q_in": []})
    assert told.reasons == {"q": ["yes", "no"], "q_ex": ["none of it", "perhaps"]}
    assert told.queries == [[], ["q_ex"], ["q"], ["q_ex"], []]


def test_equal_lists_share_a_check_and_a_union_serves_all() -> None:
    told = judged([check(A, B)], {"q": [A, B], "q_ex": [A, B]})
    assert (told.reasons["q_ex"], told.queries) == (["yes", "no"], [["q", "q_ex"]])
    said = "0 is good.\n1 is bad.\n2 is a town.\nIds: 0"
    told = judged([check(A, B, C, reply=said, stage="judge")], {"q": [A], "q_ex": [C, B]})
    assert told.reasons == {"q": ["is good."], "q_ex": ["is a town.", "is bad."]}
    assert told.queries == [["q", "q_ex"]]


def test_a_filter_without_a_check_and_a_call_that_is_gone() -> None:
    gone = Asked.of("check", None)
    told = judged([gone, Asked.of("answer", {"prompt": [["user", "?"]], "reply": None})], {"q": [A]})
    assert (told.reasons, told.queries) == ({}, [[], []])
    assert judged([check(B)], {"q": [A]}).reasons == {}, "another one's passages"
