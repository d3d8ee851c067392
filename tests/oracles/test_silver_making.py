"""Silver files as they are made: what is written, what stops them, and that going on leaves the same bytes."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from likely import Likely
from refusing import PASSAGES, ROWS

from blendfilter import BM25, Oracle, load, make_silver, read_silver
from blendfilter.errors import BadArgument, BadData, EmptyData, ModelError, RunLocked, RunMismatch
from blendfilter.journal import Journal
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.oracles.silver_making import Places, read_recipe, supported
from blendfilter.records import Passage, Question
from blendfilter.retrieval.base import Retriever
from blendfilter.tasks import Questions

CORPUS = [Passage(each["id"], each["title"], each["text"]) for each in PASSAGES]


class Searching(Retriever):
    """An index that keeps what it was asked; `before` is called ahead of every query."""

    def __init__(self, fingerprint: str = "0" * 16, before: Callable[[str], object] = lambda query: None) -> None:
        self.inner = BM25.build(CORPUS)
        self.fingerprint, self.before = fingerprint, before
        self.searches: list[list[str]] = []

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.searches.append(list(queries))
        for query in queries:
            self.before(query)
        return self.inner.find(queries, k)

    @property
    def queries(self) -> list[str]:
        return [query for batch in self.searches for query in batch]


@pytest.fixture
def questions() -> Questions:
    """Seven questions, of which the first three have an answer in the corpus."""
    more = [{"id": f"more {at}", "question": f"What is harbour town {at}?", "answer": "Ulla"} for at in range(4)]
    return load("qa", [*ROWS, *more])


def strinc(**more: Any) -> Oracle:
    return Oracle("strinc", task="qa", **more)


def whole(questions: Questions, folder: Path, **more: Any) -> bytes:
    """The bytes of a file that nothing stopped."""
    make_silver(questions, strinc(), folder / "whole.jsonl", **{"retriever": Searching(), "k": 3, **more})
    return (folder / "whole.jsonl").read_bytes()


# --- what is written ------------------------------------------------------------------------------------------------


def test_the_rows_and_what_they_come_to(tmp_path: Path) -> None:
    """Of the two sentences that hold Ormskerry the first is chosen, over all passages."""
    found = [[CORPUS[0], CORPUS[1], CORPUS[5]], [CORPUS[3]], []]

    class Fixed(Searching):
        def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
            assert (list(queries), k) == ([row["question"] for row in ROWS], 3)
            return found

    summary = make_silver(load("qa", ROWS), strinc(), tmp_path / "silver.jsonl", retriever=Fixed(), k=3)
    one, two, three = read_silver(tmp_path / "silver.jsonl")
    assert [(each.start, each.end, each.score) for each in one.sentences] == [
        (0, 30, 0.0), (31, 63, 0.0), (0, 47, 1.0), (0, 50, 1.0),
    ]  # fmt: skip
    assert (one.chosen, one.target) == ((2,), "Lise Harrow was an engineer, born in Ormskerry.")
    assert (one.id, one.output, one.golden_answers, one.positive) == ("one", "Ormskerry", ("Ormskerry",), True)
    assert one.passages == tuple(found[0])
    assert (two.chosen, two.target, two.positive, len(two.sentences)) == ((), "", False, 1)
    assert (three.passages, three.sentences, three.target, three.positive) == ((), (), "", False)
    assert (summary.n, summary.no_passages, summary.empty) == (3, 1, pytest.approx(2 / 3))
    assert {path.name for path in tmp_path.iterdir()} == {"silver.jsonl", "silver.recipe.json"}


YES_NO = [
    {"id": "pier", "question": "Is Orm Pier a pier in Tavenby?", "answer": "yes"},
    {"id": "hill", "question": "Is Fell an island?", "answer": "No"},
]


def test_a_yes_or_no_has_no_row_of_strincs_and_is_counted(tmp_path: Path) -> None:
    """As a row without a choice it would teach a filter that nothing helps."""
    out = tmp_path / "silver.jsonl"
    mixed = load("qa", [ROWS[0], YES_NO[0], *ROWS[1:], YES_NO[1]])
    summary = make_silver(mixed, strinc(), out, retriever=Searching(), k=3)
    assert (summary.n, summary.left_out, summary.empty) == (3, 2, 0.0)
    assert [row.id for row in read_silver(out)] == [row["id"] for row in ROWS]
    assert read_recipe(Places.of(out))["summary"]["left_out"] == 2
    assert make_silver(mixed, strinc(), out, retriever=Searching(), k=3) == summary, "finished, it says the same"
    make_silver(mixed, Oracle("lexical", task="qa"), tmp_path / "all.jsonl", retriever=Searching(), k=3)
    by_question = {row.id: row.target for row in read_silver(tmp_path / "all.jsonl")}
    assert len(by_question) == 5
    assert by_question["pier"] == "Orm Pier is a pier in Tavenby."


def test_a_data_set_of_yes_and_no_is_refused_by_strinc_before_any_work(tmp_path: Path) -> None:
    index = Searching()
    with pytest.raises(BadArgument, match=r"strinc cannot label the questions of .*: take the measure lexical .*cxmi"):
        make_silver(load("qa", YES_NO), strinc(), tmp_path / "s.jsonl", retriever=index, k=3)
    assert (index.searches, list(tmp_path.iterdir())) == ([], [])


def test_a_file_that_has_rows_for_them_is_not_gone_on_with(tmp_path: Path) -> None:
    """Earlier versions wrote a row with nothing chosen for a yes or no."""
    out = tmp_path / "silver.jsonl"
    mixed = load("qa", [*ROWS, YES_NO[0]])
    make_silver(mixed, strinc(), out, retriever=Searching(), k=3)
    recipe = json.loads(Places.of(out).recipe.read_bytes())
    del recipe["settings"]["left_out"]
    Places.of(out).recipe.write_text(json.dumps(recipe))
    with pytest.raises(RunMismatch, match="left_out"):
        make_silver(mixed, strinc(), out, retriever=Searching(), k=3)


def test_without_an_index_it_is_the_questions_own_paragraphs(tmp_path: Path) -> None:
    own = {"context": [{"title": "A", "text": "One."}, {"title": "B", "text": "Ulla."}, {"title": "C", "text": "Two."}]}
    rows = [{"id": "a", "question": "Where?", "answer": "Ulla", **own}, {"id": "b", "question": "Who?", "answer": "Bo"}]
    summary = make_silver(load("qa", rows), strinc(), tmp_path / "s.jsonl", k=2)
    one, other = read_silver(tmp_path / "s.jsonl")
    assert ([each.title for each in one.passages], one.target) == (["A", "B"], "Ulla.")
    assert not any(each.metadata for each in one.passages)
    assert (other.passages, summary.no_passages) == ((), 1)
    # other paragraphs under the same questions are other settings, though the questions' fingerprint leaves them out
    own["context"][1]["text"] = "Ulla it is."
    assert load("qa", rows).fingerprint == load("qa", rows[:1] + rows[1:]).fingerprint
    with pytest.raises(RunMismatch, match=r"other settings: passages\.fingerprint was"):
        make_silver(load("qa", rows), strinc(), tmp_path / "s.jsonl", k=2)


def test_whether_passages_support_the_output_is_judged_as_the_task_does() -> None:
    """Section 3.2: by the answer's words where outputs are spans; by the titles that are gold where they are not."""
    ship = [Passage("1", "Skua", "The Skua was built in Tolm."), Passage("2", "Tolm", "A port.")]
    wanted = Question("q", "Where?", ("Tolm",), gold_titles=("Ulla", "Skua"))
    assert supported("nq", wanted, ship) is supported("hotpotqa", wanted, ship) is True
    assert supported("triviaqa", wanted, ship[1:]) is False, "a title is no passage text"
    assert supported("hotpotqa", wanted, ship[1:]) is False
    assert supported("eli5", Question("q", "Why?", ("So.",)), ship) is None


def test_the_rows_do_not_depend_on_the_batch(questions: Questions, tmp_path: Path) -> None:
    index = Searching()
    assert whole(questions, tmp_path) == whole(questions, tmp_path / "other", retriever=index, batch=3)
    assert [len(each) for each in index.searches] == [3, 3, 1]


# --- stopping and going on ------------------------------------------------------------------------------------------

SLOWLY = """
import sys, time
sys.path[:0] = {paths!r}
from test_silver_making import Searching, strinc
from refusing import ROWS
from blendfilter import load, make_silver
more = [{{"id": f"more {{at}}", "question": f"What is harbour town {{at}}?", "answer": "Ulla"}} for at in range(4)]
index = Searching(before=lambda query: time.sleep(0.2))
make_silver(load("qa", [*ROWS, *more]), strinc(), {out!r}, retriever=index, k=3, batch=2)
"""


def rows_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_killed_one_goes_on_with_the_next_question_and_leaves_the_same_bytes(
    questions: Questions, tmp_path: Path
) -> None:
    expected = whole(questions, tmp_path)
    out, partial = tmp_path / "s.jsonl", tmp_path / "s.jsonl.partial"
    here = Path(__file__).parent
    code = SLOWLY.format(paths=[str(here), str(here.parent)], out=str(out))
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 600
    while rows_in(partial) < 4:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    there = rows_in(partial)
    assert 4 <= there < 7
    assert not out.exists()
    with partial.open("ab") as file:
        file.write(b'{"id": "torn')
    index = Searching()
    make_silver(questions, strinc(), out, retriever=index, k=3)
    assert out.read_bytes() == expected
    assert index.queries == [each.question for each in questions[there:]]
    assert not partial.exists()


def test_a_finished_one_asks_nothing(questions: Questions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = whole(questions, tmp_path)
    first = (tmp_path / "whole.recipe.json").read_bytes()
    monkeypatch.setattr(Oracle, "check", lambda *_: pytest.fail("the oracle was asked"))
    index = Searching()
    again = make_silver(questions, strinc(), tmp_path / "whole.jsonl", retriever=index, k=3)
    assert index.searches == []
    assert again.n == 7
    assert ((tmp_path / "whole.jsonl").read_bytes(), (tmp_path / "whole.recipe.json").read_bytes()) == (expected, first)


CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "k": ({"k": 2}, "passages.k was 3, now 2"),
    "index": ({"retriever": Searching("1" * 16)}, "passages.fingerprint was '0000000000000000', now"),
    "measure": ({"oracle": Oracle("lexical", task="qa")}, "oracle.measure was 'strinc', now 'lexical'"),
    "data": ({"questions": load("qa", ROWS)}, "data.fingerprint was"),
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("finished", [True, False])
def test_other_settings_are_refused(name: str, finished: bool, questions: Questions, tmp_path: Path) -> None:
    change, result = CHANGED[name]
    wanted: dict[str, Any] = {"questions": questions, "oracle": strinc(), "retriever": Searching(), "k": 3}
    out = tmp_path / "s.jsonl"
    if finished:
        make_silver(out=out, **wanted)
    else:
        begun(questions, out)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunMismatch) as refused:
        make_silver(out=out, **{**wanted, **change})
    line = str(refused.value)
    assert result in line
    assert f"Name another file, or delete {out.name if finished else 's.jsonl.partial'} and s.recipe.json" in line
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def begun(questions: Questions, out: Path, rows: int = 2) -> None:
    """A file that was stopped after so many rows."""

    class Stop(Exception):
        pass

    def stop(query: str) -> None:
        if query == questions[rows].question:
            raise Stop

    with pytest.raises(Stop):
        make_silver(questions, strinc(), out, retriever=Searching(before=stop), k=3, batch=1)
    assert rows_in(Places.of(out).partial) == rows


def test_one_process_writes(questions: Questions, tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    begun(questions, out)
    with Places.of(out).partial.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        with pytest.raises(RunLocked, match=r"s\.jsonl\.partial is being written to"):
            make_silver(questions, strinc(), out, retriever=Searching(), k=3)
    make_silver(questions, strinc(), out, retriever=Searching(), k=3)


def test_damage_is_reported(questions: Questions, tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    begun(questions, out)
    partial = Places.of(out).partial
    lines = partial.read_bytes().splitlines(keepends=True)
    for damaged in (lines[1] + lines[0], lines[0][:20] + b"\n" + lines[1]):
        partial.write_bytes(damaged)
        with pytest.raises(
            BadData, match=r"s\.jsonl\.partial, line \d: not the row that belongs there; delete the file"
        ):
            make_silver(questions, strinc(), out, retriever=Searching(), k=3)
    partial.write_bytes(b"".join(lines))
    Places.of(out).recipe.unlink()
    with pytest.raises(BadData, match=r"s\.recipe\.json is missing"):
        make_silver(questions, strinc(), out, retriever=Searching(), k=3)


# --- CXMI -----------------------------------------------------------------------------------------------------------


GONE = ModelError("the server is gone", kind="server_error")


def cxmi(model: Likely, journal: Journal | None = None) -> Oracle:
    return Oracle("cxmi", task="hotpotqa", scorer=KeptScorer(model, journal))


def test_cxmi_scores_a_batch_as_one_list_and_goes_on_from_its_journal(questions: Questions, tmp_path: Path) -> None:
    undisturbed = Likely()
    with Journal(tmp_path / "whole.journal") as journal:
        make_silver(questions, cxmi(undisturbed, journal), tmp_path / "whole.jsonl", retriever=Searching(), batch=4)
    expected = (tmp_path / "whole.jsonl").read_bytes()
    assert len(undisturbed.lists) == 3  # the self-test's one score, and a list a batch
    total = sum(map(len, undisturbed.lists))
    out = tmp_path / "s.jsonl"
    stopped = Likely(GONE, after=total // 2)
    with Journal(tmp_path / "s.journal") as journal, pytest.raises(ModelError):
        make_silver(questions, cxmi(stopped, journal), out, retriever=Searching(), batch=4)
    again = Likely()
    with Journal(tmp_path / "s.journal") as journal:
        make_silver(questions, cxmi(again, journal), out, retriever=Searching(), batch=4)
    assert out.read_bytes() == expected
    assert sum(map(len, again.lists)) == total - total // 2, "a journaled score was computed again"


# --- what is refused ------------------------------------------------------------------------------------------------


def refused(folder: Path, what: type[Exception], words: str, **changed: Any) -> None:
    """Refused in one line, and nothing was made."""
    given = {"questions": load("qa", ROWS), "oracle": strinc(), "out": folder / "s.jsonl", "retriever": Searching()}
    before = sorted(folder.rglob("*"))
    with pytest.raises(what) as error:
        make_silver(**{**given, **changed})
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(folder.rglob("*")) == before


def test_bad_input(tmp_path: Path) -> None:
    refused(tmp_path, BadArgument, "is a folder: name a file", out=tmp_path)
    refused(tmp_path, BadArgument, "written unpacked: name it", out=tmp_path / "s.jsonl.gz")
    refused(tmp_path, BadArgument, "k is 0: give a whole number of 1 or more", k=0)
    refused(tmp_path, BadArgument, "batch is 0", batch=0)
    refused(tmp_path, EmptyData, "bring no paragraphs of their own", retriever=None)
    the = load("qa", [*ROWS, {"id": "bad", "question": "Which?", "answer": "the"}])
    refused(tmp_path, BadData, "question 'bad'", questions=the)
    (tmp_path / "mine.jsonl").write_text("{}\n")
    refused(tmp_path, BadData, "is there, and nothing says that it is a silver file", out=tmp_path / "mine.jsonl")
    bare = Questions((Question("bare", "Which harbour town?", ()),), load("qa", ROWS).task)
    refused(tmp_path, BadData, "question 'bare' has no golden answers", questions=bare, allow_empty_answers=True)
    refused(tmp_path, ModelError, "the server is gone", oracle=cxmi(Likely(GONE)))


def test_a_file_that_may_be_anyones_stays(questions: Questions, tmp_path: Path) -> None:
    """A finished silver file may go; a file of questions under its name stays, and so does another recipe."""
    out = tmp_path / "s.jsonl"
    make_silver(questions, strinc(), out, retriever=Searching(), k=3)
    recipe = Places.of(out).recipe
    kept = recipe.read_bytes()
    recipe.unlink()
    with pytest.raises(BadData, match=r"s\.recipe\.json is missing\): name another file$"):
        make_silver(questions, strinc(), out, retriever=Searching(), k=3)
    recipe.write_bytes(kept)
    out.write_text('{"id": "one", "question": "Which?", "answer": "That one"}\n')
    with pytest.raises(BadData, match=r"s\.jsonl, line 1: field .* is missing"):
        make_silver(questions, strinc(), out, retriever=Searching(), k=3)
    out.unlink()
    for content in ('{"flour": "500 g"}', "[1]", "Mix and bake."):
        recipe.write_text(content)
        with pytest.raises(BadData, match=r"s\.recipe\.json is there, and is no recipe of a silver file: name another"):
            make_silver(questions, strinc(), out, retriever=Searching(), k=3)
        assert recipe.read_text() == content
    assert list(tmp_path.iterdir()) == [recipe]


def test_empty_answers_may_be_allowed(tmp_path: Path) -> None:
    rows = [*ROWS[:1], {"id": "bad", "question": "Which harbour town?", "answer": "the"}, *ROWS[1:]]
    make_silver(
        load("qa", rows), strinc(), tmp_path / "s.jsonl", retriever=Searching(), k=2, allow_empty_answers=True
    )  # fmt: skip
    one, bad, two, three = read_silver(tmp_path / "s.jsonl")
    assert (bad.id, bad.chosen, bad.target, {each.score for each in bad.sentences}) == ("bad", (), "", {0.0})
    assert len(bad.passages) == 2
    assert [each.target for each in (one, two, three)] == [
        "Ormskerry is an island where an engineer was born.", "Orm Pier is a pier in Tavenby.",
        "Lise Harrow designed it in 1871.",
    ]  # fmt: skip
