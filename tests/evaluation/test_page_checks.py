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


class TestSentences:
    """FilCo's filter: its call shows sentences, and replies with numbers."""

    TWO, TITLED = "Orm Pier | A pier. It is long.", "Fair | Old | A fair."

    @staticmethod
    def helpful(*lines: str, stage: str = "helpful", noun: str = "sentence") -> Asked:
        numbered = "\n".join(f"{noun} {number}: {line}" for number, line in enumerate(lines))
        return Asked.of(f"select.{stage}", {"prompt": f"{numbered}\nQuestion: z?\nIds:", "reply": "Hm."})

    def test_a_call_is_of_the_query_whose_passages_its_sentences_are(self) -> None:
        parts = ["Orm Pier | A pier.", "Orm Pier | It is long."]
        one, other = self.helpful(*parts, self.TITLED), self.helpful(self.TITLED, *parts)
        again = self.helpful(*parts, self.TITLED, stage="ids_again")
        brought = {"q": [self.TITLED, self.TWO], "q_ex": [self.TWO, self.TITLED], "q_in": [C]}
        told = judged([one, other, again, self.helpful(B)], brought)
        assert told.queries == [["q_ex"], ["q"], ["q_ex"], []]
        assert told.reasons == {}

    def test_a_call_that_saw_fewer_passages_is_another_querys(self) -> None:
        fewer, all_of_them = self.helpful("Orm Pier | A pier."), self.helpful("Orm Pier | A pier.", B)
        assert judged([fewer, all_of_them], {"q": [self.TWO, B], "q_ex": [A]}).queries == [["q_ex"], ["q"]]

    def test_one_over_a_union_serves_all_and_a_text_less_passage_has_no_sentence(self) -> None:
        call = self.helpful("Orm Pier | A pier.", "Orm Pier | It is long.", B)
        told = judged([call], {"q": [self.TWO, "Bare | "], "q_ex": [B], "q_in": [C]})
        assert told.queries == [["q", "q_ex"]]

    def test_whole_passages(self) -> None:
        told = judged([self.helpful(A, B, noun="passage")], {"q": [A, B], "q_ex": [B, A]})
        assert (told.queries, told.reasons) == ([["q", "q_ex"]], {})

    def test_a_check_of_another_passage_that_begins_alike_is_not_taken_for_one_of_sentences(self) -> None:
        assert judged([check("Orm Pier | A pier.")], {"q": [self.TWO]}).queries == [[]]


class TestVerdicts:
    """CDIT's judge: a call a passage."""

    @staticmethod
    def verdict(line: str, reply: str) -> Asked:
        demo = "Passage: Fair | A fair.\nQuestion: y?\nVerdict:\nTrue\n\n"
        prompt = f"{demo}Passage: {line}\nQuestion: z?\nVerdict:"
        return Asked.of("select.judge.consistent", {"prompt": prompt, "reply": reply})

    def test_a_call_is_of_every_query_that_brings_its_passage(self) -> None:
        calls = [self.verdict(A, "True"), self.verdict(B, "predicate | on | off | unlike\nVerdict: False")]
        told = judged(calls, {"q": [A, B], "q_ex": [B, C], "q_in": [C]})
        both = "predicate | on | off | unlike; Verdict: False"
        assert told.reasons == {"q": ["True", both], "q_ex": [both, ""]}
        assert told.queries == [["q"], ["q", "q_ex"]]

    def test_a_call_that_is_gone_says_nothing(self) -> None:
        gone = Asked.of("consistent", None)
        assert judged([gone, self.verdict(C, "True")], {"q": [A]}) == ({}, [[], []])
