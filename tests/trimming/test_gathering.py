"""`trim`: Algorithm 1 over a scripted judge; who reuses whom, what is kept, and that nothing is asked twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import AGAIN, PIER, RADIO, WHO_OFF, WHO_ON, Village, read, village
from scripted import ScriptedLM

from blendfilter.errors import (
    BadArgument,
    BadData,
    BudgetSpent,
    EmptyData,
    ModelError,
    RunLocked,
    RunMismatch,
    ServerRefused,
)
from blendfilter.filters.cdit import Judge
from blendfilter.lm.budget import Budget
from blendfilter.modules.ralm import RALM
from blendfilter.records import Passage, Question
from blendfilter.retrieval.bm25 import BM25
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.gathering import atrim, plan_questions, trim
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.similar import ByWords
from blendfilter.trimming.summary import Trimming, state_text
from blendfilter.trimming.witnesses import NO_JUDGE, JudgedQuestion, Witnesses, WitnessWriter, question_id

QUESTIONS = [WHO_ON, AGAIN, WHO_OFF, PIER]


@pytest.fixture
def index() -> BM25:
    return village()


@pytest.fixture
def folder(index: BM25, tmp_path: Path) -> TrimFolder:
    return TrimFolder.create(index, tmp_path / "village.trimmed", k=5, threshold=1)


def trimmed_by(
    judge: Village, index: BM25, folder: TrimFolder, questions: Iterable[str] = QUESTIONS, **how: Any
) -> Trimming:
    return trim(index, list(questions), how.pop("by", None) or Judge(), folder, lm=judge.lm(), **how)


def state(folder: TrimFolder) -> tuple[list[JudgedQuestion], list[Any], str]:
    """All that a witnesses file says, but for the clock."""
    witnesses = Witnesses.read(folder.witnesses)
    judged = [replace(each, at="") for each in witnesses.judged.values()]
    return judged, list(witnesses.separated(1)), witnesses.digest(1)


def busy(prompt: str) -> float:
    """Up to 20 ms, by the prompt: later questions overtake earlier ones."""
    return (sum(prompt.encode()) % 5) * 0.005


# --- Algorithm 1 ----------------------------------------------------------------------------------------------------


def test_every_passage_is_judged_and_what_differs_is_separated(index: BM25, folder: TrimFolder) -> None:
    """`WHO_ON` finds three passages with its words and accepts one: two separations; `WHO_OFF` accepts another of the
    same three, which witnesses on/off again and off/sold for the first time; `PIER` separates pier and fair."""
    judge = Village()
    done = trimmed_by(judge, index, folder, [WHO_ON, WHO_OFF, PIER])
    witnesses = Witnesses.read(folder.witnesses)
    one = witnesses.judged[question_id(WHO_ON)]
    found = [passage.id for passage in index(WHO_ON, 5)]
    assert one.accepted == ("on",)
    assert list(one.rejected) == [each for each in found if each != "on"], "in rank order"
    assert (one.question, one.by.mode, one.by.rules, one.by.model) == (WHO_ON, "word", ("phi1",), "scripted")
    assert one.by.program == Judge().identity()["program"]
    assert set(witnesses.witnesses_of("on", "off")) == {question_id(WHO_ON), question_id(WHO_OFF)}
    assert witnesses.witnesses_of("off", "sold") == (question_id(WHO_OFF),)
    assert witnesses.witnesses_of("on", "sold") == (question_id(WHO_ON),)
    assert witnesses.witnesses_of("pier", "fair") == (question_id(PIER),)
    asked = {(question, passage.id) for question in (WHO_ON, WHO_OFF, PIER) for passage in index(question, 5)}
    assert set(judge.asked) == asked
    assert len(judge.asked) == len(asked) == done.calls
    assert (done.judged, done.accepted, done.rejected, done.silent) == (3, 3, len(asked) - 3, 0)
    assert (done.separations, done.reached) == (witnesses.separations(), witnesses.separations())


def test_what_is_sent_holds_rules_passage_and_question(index: BM25, folder: TrimFolder) -> None:
    lm = Village().lm()
    trim(index, [WHO_ON], Judge(rules=("phi1", "phi2")), folder, lm=lm)
    assert {read(prompt) for prompt in lm.asked("consistent")} == {(each.line, WHO_ON) for each in index(WHO_ON, 5)}
    assert all("subject" in prompt and "adverbial" in prompt for prompt in lm.asked("consistent"))


def test_a_question_of_choice_is_searched_for_as_a_method_searches_for_it(index: BM25, folder: TrimFolder) -> None:
    """Its options have lines of their own; `RALM` asks the index for it on one line, and so must who judges it."""
    asked, find = list[str](), index.find

    def told(queries: Sequence[str], k: int) -> list[list[Passage]]:
        asked.extend(queries)
        return find(queries, k)

    index.find = told  # type: ignore[method-assign]
    choice = f"{WHO_ON}\n(A) Mary\n(B) Jack"
    trimmed_by(Village(), index, folder, [choice])
    with dspy.context(lm=ScriptedLM(["A"])):
        said = RALM(index, k=5, task="arc")(question=choice)
    assert asked == [said.queries["q"]] * 2
    (judged,) = Witnesses.read(folder.witnesses).judged.values()
    assert judged.question == said.queries["q"]
    assert judged.id == question_id(choice)


def test_a_question_that_finds_nothing_is_closed_and_not_looked_at_again(index: BM25, folder: TrimFolder) -> None:
    judge = Village()
    done = trimmed_by(judge, index, folder, ["Xyzzy plugh?"])
    again = trimmed_by(judge, index, folder, ["Xyzzy plugh?"])
    assert (judge.calls, done.judged, again.judged, again.known) == (0, 1, 0, 1)


def test_the_bare_index_is_searched_whatever_was_trimmed(index: BM25, folder: TrimFolder) -> None:
    """The overlay would drop `off` for `AGAIN`; judged without reuse, `AGAIN` is asked about all three all the same."""
    judge = Village({WHO_ON: ["on"], AGAIN: ["on"]})
    trimmed_by(judge, index, folder, [WHO_ON])
    trimmed_by(judge, index, folder, [AGAIN], reuse=False)
    assert [passage for question, passage in judge.asked if question == AGAIN].count("off") == 1
    with pytest.raises(BadArgument, match="trimmed: verdicts are given on the bare one"):
        trimmed_by(judge, Trimmed(index, Witnesses.read(folder.witnesses), threshold=1), folder)  # type: ignore[arg-type]


def test_questions_as_records_and_awaited(index: BM25, folder: TrimFolder) -> None:
    judge = Village()

    async def gather() -> Trimming:
        return await atrim(index, [Question("q", f" {WHO_ON}\n"), WHO_ON], Judge(), folder, lm=judge.lm())

    done = asyncio.run(gather())
    assert (done.judged, done.reused, list(Witnesses.read(folder.witnesses).judged)) == (1, 1, [question_id(WHO_ON)])


# --- reuse ----------------------------------------------------------------------------------------------------------


def test_a_question_like_one_before_asks_no_model_and_records_nothing(index: BM25, folder: TrimFolder) -> None:
    judge = Village()
    done = trimmed_by(judge, index, folder, QUESTIONS)
    assert AGAIN not in {question for question, _ in judge.asked}
    assert question_id(AGAIN) not in Witnesses.read(folder.witnesses).judged
    one = [question for question, _ in judge.asked].count(WHO_ON)
    assert (done.judged, done.reused, done.saved) == (3, 1, one)
    again = trimmed_by(judge, index, folder, QUESTIONS)
    assert (again.judged, again.known, again.reused, again.calls) == (0, 3, 1, 0)


def test_the_opposite_question_reuses_nothing_unless_it_is_left_unguarded(index: BM25, tmp_path: Path) -> None:
    """The two share every word but one: near enough at 0.5, and still told apart by on and off."""
    for guard, judged in ((True, 2), (False, 1)):
        folder = TrimFolder.create(index, tmp_path / f"{guard}.trimmed", k=5, min_similarity=0.5)
        judge = Village()
        done = trimmed_by(judge, index, folder, [WHO_ON, WHO_OFF], guard=guard)
        assert (done.judged, len({question for question, _ in judge.asked})) == (judged, judged)


def test_without_reuse_every_question_is_judged_but_the_same_words_once(index: BM25, folder: TrimFolder) -> None:
    done = trimmed_by(Village({WHO_ON: ["on"], AGAIN: ["on"]}), index, folder, [WHO_ON, AGAIN, WHO_ON], reuse=False)
    assert (done.judged, done.reused) == (2, 1)
    assert len(Witnesses.read(folder.witnesses).witnesses_of("on", "off")) == 2


@pytest.mark.parametrize("concurrency", [2, 16])
def test_the_state_does_not_depend_on_concurrency(concurrency: int, index: BM25, tmp_path: Path) -> None:
    """The same state, reuse and counts with one call in flight and with many that overtake each other."""
    questions = [*QUESTIONS, f"{PIER} {WHO_ON}", "Who sold the radio?", "The radio, who sold?"]
    made: list[Any] = []
    for calls in (1, concurrency):
        folder = TrimFolder.create(index, tmp_path / f"{calls}.trimmed", k=5, threshold=1, min_similarity=0.7)
        judge = Village(wait=busy)
        done = trimmed_by(judge, index, folder, questions, concurrency=calls)
        assert judge.most_in_flight == calls if calls < 16 else judge.most_in_flight > 5
        made.append((state(folder), replace(done, place=""), sorted(judge.asked)))
    assert made[0] == made[1]
    assert made[0][1].reused >= 2


WORDS = st.sampled_from(["radio", "pier", "fair", "harbour", "kitchen", "town"])
ASKED = st.lists(WORDS, min_size=2, max_size=4).map(lambda words: f"Who saw the {' and the '.join(words)}?")


@settings(max_examples=60)
@given(st.lists(ASKED, min_size=1, max_size=10), st.randoms(use_true_random=False))
def test_a_plan_is_the_same_however_far_the_last_sitting_came(questions: list[str], chance: Any) -> None:
    """Of the questions that are to be judged any part may be judged by now: nobody's source changes."""
    whole = plan_questions(questions, {}, ByWords(), 0.8)
    by_id = {turn.id: turn.question for turn in whole if turn.kind == "judge"}
    closed = {name: text for name, text in by_id.items() if chance.random() < 0.5}
    judged = {name: JudgedQuestion(name, text, (), (), (), NO_JUDGE, "") for name, text in closed.items()}
    again = plan_questions(questions, judged, ByWords(), 0.8)
    assert [(turn.id, turn.source) for turn in again] == [(turn.id, turn.source) for turn in whole]
    assert [turn.kind for turn in again] == [
        "known" if turn.kind == "judge" and turn.id in closed else turn.kind for turn in whole
    ]
    assert all(turn.source in by_id for turn in whole if turn.kind == "reuse"), "verdicts are reused of judged ones"


# --- what fails, stops and goes on ------------------------------------------------------------------------------------


def test_a_failed_call_leaves_its_question_open_and_those_that_wait_for_it(index: BM25, folder: TrimFolder) -> None:
    judge = Village(failing={WHO_ON: ModelError("no", kind="bad_request")})
    done = trimmed_by(judge, index, folder, QUESTIONS)
    assert [each.question for each in done.errors] == [WHO_ON, AGAIN]
    assert (done.judged, done.reused) == (2, 0)
    assert set(Witnesses.read(folder.witnesses).judged) == {question_id(WHO_OFF), question_id(PIER)}
    assert "still open, and asked again by the same command: 2 questions" in done.text()
    mended = Village()
    done = trimmed_by(mended, index, folder, QUESTIONS)
    assert (done.judged, done.known, done.reused, done.errors) == (1, 2, 1, ())
    assert {question for question, _ in mended.asked} == {WHO_ON}


def test_of_a_half_judged_question_only_what_is_missing_is_asked(index: BM25, folder: TrimFolder) -> None:
    class Half(Village):
        def reply(self, stage: str, prompt: str) -> Any:
            said = super().reply(stage, prompt)
            return ModelError("no", kind="bad_request") if self.asked[-1] == (WHO_ON, "sold") else said

    first, second = Half(), Village()
    trimmed_by(first, index, folder, [WHO_ON])
    assert set(Witnesses.read(folder.witnesses).half(question_id(WHO_ON))) == {"on", "off"}
    trimmed_by(second, index, folder, [WHO_ON])
    assert second.asked == [(WHO_ON, "sold")]
    assert Witnesses.read(folder.witnesses).judged[question_id(WHO_ON)].accepted == ("on",)
    assert folder.witnesses.read_bytes().count(b'"kind":"verdict"') == 3, "no verdict is on file twice"


def test_another_judge_judges_what_is_open_anew_and_leaves_what_is_closed(index: BM25, folder: TrimFolder) -> None:
    class Half(Village):
        def reply(self, stage: str, prompt: str) -> Any:
            said = super().reply(stage, prompt)
            return ModelError("no", kind="bad_request") if self.asked[-1] == (WHO_OFF, "sold") else said

    trimmed_by(Half(), index, folder, [WHO_ON, WHO_OFF])
    judge = Village()
    trimmed_by(judge, index, folder, [WHO_ON, WHO_OFF], by=Judge(rules=("phi1", "phi2")))
    assert sorted(judge.asked) == sorted((WHO_OFF, passage.id) for passage in index(WHO_OFF, 5)), (
        "all of it, and no more"
    )
    judged = Witnesses.read(folder.witnesses).judged
    assert [judged[question_id(each)].by.rules for each in (WHO_ON, WHO_OFF)] == [("phi1",), ("phi1", "phi2")]
    told = state_text(folder, Witnesses.read(folder.witnesses))
    assert "scripted, word, phi1+phi2" in told
    assert "verdicts of 2 judges are mixed" in told


def test_a_budget_ends_it_and_more_of_it_goes_on(index: BM25, folder: TrimFolder) -> None:
    whole = Village()
    trimmed_by(whole, index, TrimFolder.create(index, folder.place.with_name("w"), k=5, threshold=1))
    judge = Village()
    with pytest.raises(BudgetSpent):
        trimmed_by(judge, index, folder, budget=Budget(calls=4))
    assert judge.calls == 4
    done = trimmed_by(judge, index, folder, budget=Budget(calls=100))
    assert sorted(judge.asked) == sorted(whole.asked), "nothing is asked twice"
    assert (done.total.calls, done.spent.calls) == (whole.calls, whole.calls - 4)
    assert state(folder) == state(TrimFolder.read(folder.place.with_name("w")))


def test_a_server_that_is_gone_ends_it_with_everything_kept(index: BM25, folder: TrimFolder) -> None:
    judge = Village(failing={PIER: ServerRefused("nobody there")})
    trimmed_by(judge, index, folder, [WHO_ON])
    with pytest.raises(ServerRefused):
        trimmed_by(judge, index, folder, [WHO_ON, PIER, WHO_OFF], concurrency=1)
    answered = {each for each in judge.asked if each[0] != PIER}  # WHO_OFF's search may overtake the other one
    mended = Village()
    assert trimmed_by(mended, index, folder, [WHO_ON, PIER, WHO_OFF]).errors == ()
    assert {each for each in answered if each[0] == WHO_ON} == {(WHO_ON, passage.id) for passage in index(WHO_ON, 5)}
    assert not answered.intersection(mended.asked)


def test_undone_and_trimmed_again_nothing_is_asked(index: BM25, folder: TrimFolder) -> None:
    judge = Village()
    trimmed_by(judge, index, folder)
    before, calls = state(folder), judge.calls
    with WitnessWriter(folder.witnesses) as writer:
        writer.undo_all()
    assert state(folder) == ([], [], "")
    done = trimmed_by(judge, index, folder)
    assert (judge.calls, done.calls, done.judged) == (calls, 0, 3)
    assert state(folder) == before


def test_a_dry_run_keeps_the_calls_and_touches_no_witness(index: BM25, folder: TrimFolder) -> None:
    judge = Village()
    trimmed_by(judge, index, folder, [PIER])
    before = folder.witnesses.read_bytes()
    done = trimmed_by(judge, index, folder, [WHO_ON, PIER], dry_run=True)
    assert folder.witnesses.read_bytes() == before
    assert done.dry_run
    assert [(each.question, each.passage, each.kept) for each in done.dropped or ()] == [
        (WHO_ON, passage.id, "on") for passage in index(WHO_ON, 5) if passage.id != "on"
    ]
    assert "would be dropped for these questions: 2\n" in done.text()
    calls = judge.calls
    assert trimmed_by(judge, index, folder, [WHO_ON, PIER]).judged == 1
    assert judge.calls == calls
    dropped = Trimmed(index, Witnesses.read(folder.witnesses), threshold=1).explain(WHO_ON, 5).dropped
    assert [each.passage.id for each in dropped] == [each.passage for each in done.dropped or ()]


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_judge_that_says_neither_true_nor_false(index: BM25, folder: TrimFolder) -> None:
    judge = Village(silent=QUESTIONS)
    done = trimmed_by(judge, index, folder, [WHO_ON])
    assert (done.accepted, done.rejected, done.silent, done.separations) == (0, 0, judge.calls, 0)
    assert "neither True nor False in any of 3 replies" in done.text()
    assert "--mode components or another model" in done.text()
    assert Trimmed(index, Witnesses.read(folder.witnesses), threshold=1).fingerprint == index.fingerprint


def test_two_trims_at_once(index: BM25, folder: TrimFolder) -> None:
    judge = Village()
    with WitnessWriter(folder.witnesses), pytest.raises(RunLocked, match="another trim"):
        trimmed_by(judge, index, folder)
    assert judge.calls == 0


def test_an_overlay_of_another_index(folder: TrimFolder) -> None:
    other = village([*RADIO, Passage("new", "New", "A new passage of the radio.")])
    judge = Village()
    with pytest.raises(BadData, match=f"{folder.base_fingerprint}.*{other.fingerprint}"):
        trimmed_by(judge, other, folder)
    assert judge.calls == 0


def test_what_is_refused_before_any_call(index: BM25, folder: TrimFolder) -> None:
    judge = Village()
    with pytest.raises(RunMismatch, match="made with k=5, not 7"):
        trimmed_by(judge, index, folder, k=7)
    with pytest.raises(EmptyData):
        trimmed_by(judge, index, folder, [])
    with pytest.raises(BadArgument, match="query 2 of 2 is empty"):
        trimmed_by(judge, index, folder, [WHO_ON, "  "])
    with pytest.raises(BadArgument, match="got one string"):
        trim(index, WHO_ON, Judge(), folder, lm=judge.lm())  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="concurrency"):
        trimmed_by(judge, index, folder, concurrency=0)
    with pytest.raises(BadArgument, match="no price"):
        trimmed_by(judge, index, folder, budget=Budget(dollars=1))
    assert judge.calls == 0
    assert not folder.journal.exists()
