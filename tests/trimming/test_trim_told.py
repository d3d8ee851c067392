"""What a trim says of a judge that taught little, of another one before it, and of how far a budget came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from judged import PIER, WHO_OFF, WHO_ON, Village, village

from blendfilter.errors import BadArgument, BudgetSpent
from blendfilter.filters.cdit import Judge
from blendfilter.lm.budget import Budget
from blendfilter.retrieval.bm25 import BM25
from blendfilter.trimming.folder import DEPTH, TrimFolder
from blendfilter.trimming.gathering import trim
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.summary import Trimming, state_text
from blendfilter.trimming.witnesses import Witnesses, WitnessWriter, question_id

OTHER = Judge(rules=("phi1", "phi2"))
IDS = frozenset({"on", "off", "sold", "pier", "fair"})


@pytest.fixture
def index() -> BM25:
    return village()


@pytest.fixture
def folder(index: BM25, tmp_path: Path) -> TrimFolder:
    return TrimFolder.create(index, tmp_path / "village.trimmed", k=5, threshold=1)


def said(index: BM25, folder: TrimFolder, judge: Village, *questions: str, by: Judge | None = None) -> Trimming:
    return trim(index, list(questions), by or Judge(), folder, lm=judge.lm())


# --- no verdicts ------------------------------------------------------------------------------------------------------


def test_some_silence_is_warned_of_with_the_next_move(index: BM25, folder: TrimFolder) -> None:
    done = said(index, folder, Village(silent=[PIER]), WHO_ON, PIER)
    assert done.too_silent
    assert f"neither True nor False in {done.silent} of {done.calls} replies, which separate nothing" in done.text()
    assert "then undo those questions (--undo, ALL for all) and judge them with --mode components" in done.text()
    assert done.text().splitlines()[-1].startswith("use it: "), "what was learned may be used all the same"
    assert not said(index, folder, Village(), WHO_OFF).too_silent


@pytest.mark.parametrize(("silent", "warned"), [(5, False), (6, True)])
def test_a_twentieth_is_not_too_much(silent: int, warned: bool, index: BM25, folder: TrimFolder) -> None:
    done = said(index, folder, Village(), WHO_ON)
    told: dict[str, Any] = vars(done) | {"accepted": 50, "rejected": 100 - 50 - silent, "silent": silent}
    assert Trimming(**told).too_silent is warned


def test_another_judge_judges_anew_what_has_no_verdict_at_all(index: BM25, folder: TrimFolder) -> None:
    """The same one does not, and of a question with any verdict nothing is touched."""
    said(index, folder, Village(silent=[WHO_ON]), WHO_ON, WHO_OFF)
    again = Village()
    assert (said(index, folder, again, WHO_ON, WHO_OFF).known, again.calls) == (2, 0)
    other = Village()
    done = said(index, folder, other, WHO_ON, WHO_OFF, by=OTHER)
    assert (done.judged, done.known) == (1, 1)
    assert {question for question, _ in other.asked} == {WHO_ON}
    judged = Witnesses.read(folder.witnesses).judged
    assert judged[question_id(WHO_ON)].accepted == ("on",)
    assert [judged[question_id(each)].by.rules for each in (WHO_ON, WHO_OFF)] == [("phi1", "phi2"), ("phi1",)]
    assert "judged before by scripted, word, phi1, program" in done.text()


def test_a_question_with_any_verdict_is_left_to_whoever_gave_it(index: BM25, folder: TrimFolder) -> None:
    class Shy(Village):
        def reply(self, stage: str, prompt: str) -> Any:
            said = super().reply(stage, prompt)
            return said if self.asked[-1][1] == "on" else "It depends."

    said(index, folder, Shy(), WHO_ON)
    other = Village()
    assert (said(index, folder, other, WHO_ON, by=OTHER).known, other.calls) == (1, 0)


@pytest.mark.parametrize(
    ("judge", "why"),
    [
        (Village({PIER: IDS}), "the judge rejected nothing"),
        (Village({}), "the judge accepted nothing"),
        (Village(silent=[PIER]), "the judge gave no verdict"),
    ],
)
def test_why_nothing_is_separated(judge: Village, why: str, index: BM25, folder: TrimFolder) -> None:
    said(index, folder, judge, PIER)
    again = said(index, folder, judge, PIER).text()
    assert f"no pair is separated, so {folder.place} answers as the bare index does: {why}; judge other" in again
    assert "threshold: " not in again
    assert "lower it" not in again


# --- another judge, and a budget --------------------------------------------------------------------------------------


def test_who_judged_before_is_named(index: BM25, folder: TrimFolder) -> None:
    said(index, folder, Village(), WHO_ON, PIER, "Xyzzy plugh?")
    assert "judged before by" not in said(index, folder, Village(), WHO_ON, PIER).text(), "it was this one"
    told = said(index, folder, Village(), WHO_ON, PIER, "Xyzzy plugh?", by=OTHER).text()
    program = next(iter(Witnesses.read(folder.witnesses).judged.values())).by.program
    assert (
        f"\njudged before by scripted, word, phi1, program {program}: 2; to judge them anew by this judge, undo them "
        "(--undo) or name another folder (--out)\n"
    ) in told
    assert told.count("judged before by") == 1, "nobody judged what finds nothing"


def test_a_spent_budget_says_how_far_it_came(index: BM25, folder: TrimFolder) -> None:
    said(index, folder, Village(), WHO_ON)
    with pytest.raises(BudgetSpent, match="; 1 of 3 questions are judged, and the same command with a higher limit"):
        trim(index, [WHO_ON, WHO_OFF, PIER], Judge(), folder, lm=Village().lm(), budget=Budget(calls=4), concurrency=1)


# --- a folder by its path, and the state ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:k=10 is more")
def test_the_folder_may_be_a_path(index: BM25, tmp_path: Path) -> None:
    for place in (tmp_path / "new", str(tmp_path / "other")):
        done = trim(index, [WHO_ON], Judge(), place, lm=Village().lm())
        assert (done.judged, TrimFolder.read(place).k) == (1, DEPTH)
        assert trim(index, [WHO_ON], Judge(), place, lm=Village().lm()).known == 1
    trim(index, [WHO_ON], Judge(), tmp_path / "small", lm=Village().lm(), k=2)
    assert TrimFolder.read(tmp_path / "small").k == 2


@pytest.mark.parametrize("place", ["", 7, None])
def test_what_is_no_folder_is_refused(place: Any, index: BM25) -> None:
    with pytest.raises(BadArgument, match="trim wants the overlay's folder: a path, or TrimFolder"):
        trim(index, [WHO_ON], Judge(), place, lm=Village().lm())


def test_a_name_is_no_index(folder: TrimFolder) -> None:
    with pytest.raises(BadArgument, match="open_index"):
        trim("kitchen", [WHO_ON], Judge(), folder, lm=Village().lm())  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match=r"open_index\('INDEX.trimmed'\) opens an overlay"):
        Trimmed("kitchen")  # type: ignore[arg-type]


def test_the_state_lists_its_questions_and_settings(index: BM25, folder: TrimFolder) -> None:
    said(index, folder, Village(), PIER)
    told = state_text(folder, Witnesses.read(folder.witnesses))
    assert told.endswith(f"  {question_id(PIER)} {PIER!r}: 1 accepted, 1 rejected, 0 no verdict\n")
    assert "min_similarity" not in told
    with WitnessWriter(folder.witnesses) as writer:
        for at in range(22):
            writer.close(f"Question {at}?", [])
    told = state_text(folder.set(min_similarity=0.8), Witnesses.read(folder.witnesses))
    assert told.count("no verdict\n") == 1 + 20
    assert told.endswith("\n  and 3 more\n")
    assert "\nmin_similarity: 0.8\n" in told
