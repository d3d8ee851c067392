"""`trim`: Algorithm 1 over a scripted judge; who reuses whom, what is kept, what ends a session; kills."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import AGAIN, PIER, WHO_OFF, WHO_ON, Village, village
from model_server import serve

from blendfilter import load, open_index
from blendfilter.errors import (
    BadArgument,
    BudgetSpent,
    CannotWrite,
    EmptyData,
    ModelError,
    RunMismatch,
)
from blendfilter.filters.cdit import Judge
from blendfilter.journal import Journal
from blendfilter.lm.budget import Budget
from blendfilter.lm.model import connect
from blendfilter.records import Question
from blendfilter.resources import sample
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.encoders import Encoded
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.gathering import plan_questions, trim
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.similar import ByVector, ByWords
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
    sent = {(question, passage.id) for question in (WHO_ON, WHO_OFF, PIER) for passage in index(question, 5)}
    assert set(judge.searches) == sent
    assert len(judge.searches) == len(sent) == done.calls
    assert (done.judged, done.accepted, done.rejected, done.silent) == (3, 3, len(sent) - 3, 0)
    assert (done.separations, done.reached) == (witnesses.separations(), witnesses.separations())


def test_the_bare_index_is_searched_whatever_was_trimmed(index: BM25, folder: TrimFolder) -> None:
    """The overlay would drop `off` for `AGAIN`; judged without reuse, `AGAIN` is asked about all three all the same."""
    judge = Village({WHO_ON: ["on"], AGAIN: ["on"]})
    trimmed_by(judge, index, folder, [WHO_ON])
    trimmed_by(judge, index, folder, [AGAIN], reuse=False)
    assert [passage for question, passage in judge.searches if question == AGAIN].count("off") == 1
    with pytest.raises(BadArgument, match="trimmed: verdicts are given on the bare one"):
        trimmed_by(judge, Trimmed(index, Witnesses.read(folder.witnesses), threshold=1), folder)  # type: ignore[arg-type]


def test_questions_as_records(index: BM25, folder: TrimFolder) -> None:
    done = trim(index, [Question("q", f" {WHO_ON}\n"), WHO_ON], Judge(), folder, lm=Village().lm())
    assert (done.judged, done.reused, list(Witnesses.read(folder.witnesses).judged)) == (1, 1, [question_id(WHO_ON)])


def test_a_question_like_one_before_costs_no_call_and_records_nothing(index: BM25, folder: TrimFolder) -> None:
    judge = Village()
    done = trimmed_by(judge, index, folder, QUESTIONS)
    assert AGAIN not in {question for question, _ in judge.searches}
    assert question_id(AGAIN) not in Witnesses.read(folder.witnesses).judged
    one = [question for question, _ in judge.searches].count(WHO_ON)
    assert (done.judged, done.reused, done.saved) == (3, 1, one)
    again = trimmed_by(judge, index, folder, QUESTIONS)
    assert (again.judged, again.known, again.reused, again.calls) == (0, 3, 1, 0)


def test_the_opposite_question_reuses_nothing_unless_it_is_left_unguarded(index: BM25, tmp_path: Path) -> None:
    """The two share every word but one: near enough at 0.5, and still kept apart by on and off."""
    for guard, judged in ((True, 2), (False, 1)):
        folder = TrimFolder.create(index, tmp_path / f"{guard}.trimmed", k=5, min_similarity=0.5)
        judge = Village()
        done = trimmed_by(judge, index, folder, [WHO_ON, WHO_OFF], guard=guard)
        assert (done.judged, len({question for question, _ in judge.searches})) == (judged, judged)


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
        made.append((state(folder), replace(done, place=""), sorted(judge.searches)))
    assert made[0] == made[1]
    assert made[0][1].reused >= 2


WORDS = st.sampled_from(["radio", "pier", "fair", "harbour", "kitchen", "town"])
ASKED = st.lists(WORDS, min_size=2, max_size=4).map(lambda words: f"Who saw the {' and the '.join(words)}?")


@settings(max_examples=60)
@given(st.lists(ASKED, min_size=1, max_size=10), st.randoms(use_true_random=False))
def test_a_plan_is_the_same_however_far_the_last_session_came(questions: list[str], chance: Any) -> None:
    """Of the questions that are to be judged any part may be judged by now: no source changes."""
    whole = plan_questions(questions, {}, ByWords(), 0.8)
    by_id = {turn.id: turn.question for turn in whole if turn.kind == "judge"}
    closed = {name: text for name, text in by_id.items() if chance.random() < 0.5}
    judged = {name: JudgedQuestion(name, text, {}, NO_JUDGE, "") for name, text in closed.items()}
    again = plan_questions(questions, judged, ByWords(), 0.8)
    assert [(turn.id, turn.source) for turn in again] == [(turn.id, turn.source) for turn in whole]
    assert [turn.kind for turn in again] == [
        "known" if turn.kind == "judge" and turn.id in closed else turn.kind for turn in whole
    ]
    assert all(turn.source in by_id for turn in whole if turn.kind == "reuse"), "verdicts are reused of judged ones"


def test_a_plan_by_vectors_encodes_its_questions_in_one_call() -> None:
    calls: list[list[str]] = []

    def encode(texts: Sequence[str]) -> Encoded:
        calls.append(list(texts))
        return Encoded(np.array([[len(text), 1] for text in texts], dtype=np.float32), [False] * len(texts))

    encoder: Any = SimpleNamespace(encode_queries=encode, dimension=2, identity="e")
    known = {"k": JudgedQuestion("k", PIER, {}, NO_JUDGE, "")}
    plan = plan_questions([WHO_ON, AGAIN, WHO_ON], known, ByVector(encoder), 0.9)
    assert ([turn.kind for turn in plan], calls) == (["judge", "reuse", "reuse"], [[PIER, WHO_ON, AGAIN]])


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
    assert {question for question, _ in mended.searches} == {WHO_ON}


class Half(Village):
    """Fails for one passage of `question`."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def reply(self, stage: str, prompt: str) -> Any:
        result = super().reply(stage, prompt)
        return ModelError("no", kind="bad_request") if self.searches[-1] == (self.question, "sold") else result


def test_of_a_half_judged_question_only_what_is_missing_is_asked(index: BM25, folder: TrimFolder) -> None:
    first, second = Half(WHO_ON), Village()
    trimmed_by(first, index, folder, [WHO_ON])
    assert not Witnesses.read(folder.witnesses).judged
    trimmed_by(second, index, folder, [WHO_ON])
    assert second.searches == [(WHO_ON, "sold")]
    assert Witnesses.read(folder.witnesses).judged[question_id(WHO_ON)].accepted == ("on",)
    assert folder.witnesses.read_bytes().count(b'"kind":"verdict"') == 3, "no verdict is on file twice"


def test_another_judge_judges_what_is_open_anew_and_leaves_what_is_closed(index: BM25, folder: TrimFolder) -> None:
    trimmed_by(Half(WHO_OFF), index, folder, [WHO_ON, WHO_OFF])
    judge = Village()
    trimmed_by(judge, index, folder, [WHO_ON, WHO_OFF], by=Judge(rules=("phi1", "phi2")))
    assert sorted(judge.searches) == sorted((WHO_OFF, passage.id) for passage in index(WHO_OFF, 5))
    judged = Witnesses.read(folder.witnesses).judged
    assert [judged[question_id(each)].by.rules for each in (WHO_ON, WHO_OFF)] == [("phi1",), ("phi1", "phi2")]
    found = state_text(folder, Witnesses.read(folder.witnesses))
    assert "scripted, word, phi1+phi2" in found
    assert "verdicts of 2 judges are mixed" in found


def test_a_budget_ends_it_and_more_of_it_goes_on(index: BM25, folder: TrimFolder) -> None:
    whole = Village()
    trimmed_by(whole, index, TrimFolder.create(index, folder.place.with_name("w"), k=5, threshold=1))
    judge = Village()
    with pytest.raises(BudgetSpent, match=r"; \d of 4 questions are judged, and the same command with a higher limit"):
        trimmed_by(judge, index, folder, budget=Budget(calls=4))
    assert judge.calls == 4
    done = trimmed_by(judge, index, folder, budget=Budget(calls=100))
    assert sorted(judge.searches) == sorted(whole.searches), "nothing is asked twice"
    assert (done.total.calls, done.spent.calls) == (whole.calls, whole.calls - 4)
    assert state(folder) == state(TrimFolder.read(folder.place.with_name("w")))


def test_a_dry_run_keeps_the_calls_and_touches_no_witness(index: BM25, folder: TrimFolder) -> None:
    judge = Village()
    trimmed_by(judge, index, folder, [PIER])
    before = folder.witnesses.read_bytes()
    done = trimmed_by(judge, index, folder, [WHO_ON, PIER], dry_run=True)
    assert folder.witnesses.read_bytes() == before
    assert [(each.question, each.passage, each.kept) for each in done.dropped or ()] == [
        (WHO_ON, passage.id, "") for passage in index(WHO_ON, 5) if passage.id != "on"
    ]
    assert "would be dropped for these questions: 2\n" in done.text()
    calls = judge.calls
    assert trimmed_by(judge, index, folder, [WHO_ON, PIER]).judged == 1
    assert judge.calls == calls
    dropped = Trimmed(index, Witnesses.read(folder.witnesses), threshold=1).explain(WHO_ON, 5).dropped
    assert [each.passage.id for each in dropped] == [each.passage for each in done.dropped or ()]


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


ASKED_FOR = [WHO_OFF, WHO_ON, PIER]


def test_a_full_disk_ends_it_and_the_same_call_goes_on(
    index: BM25, folder: TrimFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What every question would meet alike is no error of one question: no more calls are paid for."""
    judge, write = Village(), WitnessWriter.judge

    def full(writer: WitnessWriter, question: str, *result: Any) -> None:
        if question == WHO_OFF:
            raise CannotWrite("no room")
        write(writer, question, *result)

    monkeypatch.setattr(WitnessWriter, "judge", full)
    with pytest.raises(CannotWrite, match="no room"):
        trimmed_by(judge, index, folder, ASKED_FOR)
    monkeypatch.undo()
    again = Village()
    assert trimmed_by(again, index, folder, ASKED_FOR).errors == ()
    assert not set(again.searches).intersection(judge.searches)


OTHER = Judge(rules=("phi1", "phi2"))


def test_another_judge_judges_anew_what_has_no_verdict_at_all(index: BM25, folder: TrimFolder) -> None:
    """The same one does not, and of a question with any verdict nothing is touched."""
    trimmed_by(Village(silent=[WHO_ON]), index, folder, [WHO_ON, WHO_OFF])
    again = Village()
    assert (trimmed_by(again, index, folder, [WHO_ON, WHO_OFF]).known, again.calls) == (2, 0)
    other = Village()
    done = trimmed_by(other, index, folder, [WHO_ON, WHO_OFF], by=OTHER)
    assert (done.judged, done.known) == (1, 1)
    assert {question for question, _ in other.searches} == {WHO_ON}
    judged = Witnesses.read(folder.witnesses).judged
    assert judged[question_id(WHO_ON)].accepted == ("on",)
    assert [judged[question_id(each)].by.rules for each in (WHO_ON, WHO_OFF)] == [("phi1", "phi2"), ("phi1",)]


def test_the_folder_may_be_a_path(index: BM25, tmp_path: Path) -> None:
    for known in (0, 1):
        assert trim(index, [WHO_ON], Judge(), str(tmp_path / "new"), lm=Village().lm(), k=2).known == known
    assert TrimFolder.read(tmp_path / "new").k == 2


KILLS, IN_FLIGHT = 20, 4
SAMPLE = [*load("qa", "sample", limit=12)]


def gather(place: Path, url: str) -> None:
    folder = TrimFolder.read(place)
    index = open_index(folder.base)
    trim(index, SAMPLE, Judge(), folder, lm=connect("test-model", api_base=url), concurrency=IN_FLIGHT)


def journaled(place: Path) -> Counter[str]:
    """How many calls the journal holds of each prompt."""
    if not (place / "journal.jsonl").is_file():
        return Counter()
    with Journal(place, "replay") as journal:
        return Counter(str(each["prompt"]) for each in journal.records("call"))


def verdicts(place: Path) -> dict[tuple[str, str], bool | None]:
    """Every verdict on file."""
    witnesses = Witnesses.read(place / "witnesses.jsonl")
    made: dict[tuple[str, str], bool | None] = {}
    for each in witnesses.judged.values():
        for verdict, names in ((True, each.accepted), (False, each.rejected), (None, each.silent)):
            made |= {(each.id, name): verdict for name in names}
    return made


def killed(place: Path, url: str, wanted: int) -> None:
    """Trim in a process of its own, and kill it once so many calls are on file; a fork is at work at once."""
    process = multiprocessing.get_context("fork").Process(target=gather, args=(place, url))
    process.start()
    deadline = time.monotonic() + 600
    path = place / "journal.jsonl"
    while process.is_alive() and time.monotonic() < deadline:
        if path.is_file() and path.read_bytes().count(b'"kind":"call"') >= wanted:
            break
        time.sleep(0.001)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(20)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_killed_at_twenty_moments(tmp_path: Path) -> None:
    BM25.build(sample("corpus.jsonl"), tmp_path / "isles")
    calm, rough = (
        TrimFolder.create(tmp_path / "isles", tmp_path / name, k=10, threshold=1).place for name in ("calm", "rough")
    )
    bare = open_index(tmp_path / "isles")
    sent = [each.question for each in SAMPLE]
    before = bare.search(sent, 5)
    with serve(reply="offline", delay=0.004, keep=True) as server:
        gather(calm, server.url)
        needed, right = journaled(calm), verdicts(calm)
        server.reset()
        chance = random.Random(7)
        total, lost, kept = needed.total(), 0, 0
        seen = dict[tuple[str, str], bool | None]()
        for at in sorted(chance.sample(range(1, total - IN_FLIGHT), KILLS)):
            killed(rough, server.url, max(at, kept + 1))
            time.sleep(0.03)  # what the server had in flight
            valid, result = journaled(rough), verdicts(rough)
            assert valid.total() >= kept, "nothing that was on file is gone"
            assert result.items() <= right.items(), "and nothing is on file that was no verdict"
            assert result.items() >= seen.items(), "no verdict that was on file is gone"
            seen = result
            assert bare.search(sent, 5) == before
            assert open_index(tmp_path / "isles").search(sent, 5) == before
            trimmed = open_index(rough).search(sent, 5)
            assert all(len(some) <= 5 and some for some in trimmed)
            kept, lost = valid.total(), lost + IN_FLIGHT
            if kept == total:
                break
        gather(rough, server.url)
        prompts = Counter(server.stats()["prompts"])
    assert needed <= prompts
    assert prompts.total() <= total + lost, "only what was in flight at a kill is asked again"
    assert journaled(rough) == needed, "no call that was on file is there twice"
    assert state(TrimFolder.read(rough)) == state(TrimFolder.read(calm))
    assert open_index(rough).fingerprint == open_index(calm).fingerprint
