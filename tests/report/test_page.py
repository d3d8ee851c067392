"""`report.html` as data: what it says of a run, what it holds of every question, and that nothing breaks out of it."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from report_page import FIERCE, Page, read_page
from small_world import CountingEngine
from stored import write_rows

from blendfilter import BM25, BlendFilter, Direct, Run, evaluate, load
from blendfilter.errors import BadArgument, MissingFile
from blendfilter.evaluation.comparison import chance
from blendfilter.evaluation.run_folder import METRICS, PREDICTIONS, read_rows
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.filters.cdit import CDITFilter
from blendfilter.filters.filco import FilCoFilter
from blendfilter.filters.knowledge import KnowledgeFilter
from blendfilter.filters.written import BIDERFilter
from blendfilter.journal import Journal
from blendfilter.modules.multi_hop import SelfAsk
from blendfilter.records import Passage
from blendfilter.report import page as pages
from blendfilter.report.page import Pieces, head_of, inlined, judgements, packed
from blendfilter.report.run_text import LOSS_WORDS, OFFLINE
from blendfilter.resources import sample
from blendfilter.statistics import mcnemar_exact
from blendfilter.text import folded

pytestmark = pytest.mark.usefixtures("fresh_dspy")
TEXTS = st.lists(
    st.text() | st.sampled_from(["\n", "knowledge 0: ", " | ", "knowledge 12: A | b | c", "|", "\r\n", "\ud800"])
).map("".join)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs over eight questions of the sample, their index forgotten."""
    folder, index = tmp_path_factory.mktemp("runs"), BM25.build(sample("corpus.jsonl"))
    questions = load("hotpotqa", "sample", limit=8)
    methods: dict[str, tuple[Any, Any]] = {
        "blend": (BlendFilter(index), "offline"),
        "direct": (Direct(index), "offline"),
        "model": (BlendFilter(index), CountingEngine().lm()),
        "silly": (Direct(index), CountingEngine(reply=lambda _: "no idea").lm()),
    }
    for name, (method, lm) in methods.items():
        evaluate(method, questions, lm=lm, run=folder / name, progress=False)
    evaluate(Direct(index), questions[:5], lm="offline", run=folder / "fewer", progress=False)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def run(made: dict[str, Path], tmp_path: Path) -> Callable[[str], Run]:
    """A copy of one of them, to be spoiled."""
    return lambda name: Run(shutil.copytree(made[name], tmp_path / name))


def page_of(run: Run, *others: Run) -> Page:
    return read_page(run.html(*others))


def traces_of(page: Page) -> list[dict[str, Any]]:
    assert page.traces is not None
    traces: list[dict[str, Any]] = page.traces["traces"]
    return traces


# --- what every question shows --------------------------------------------------------------------------------------


def test_every_row_is_listed(run: Callable[[str], Run]) -> None:
    blend = run("blend")
    listed = page_of(blend).data["rows"]
    for entry, row in zip(listed, blend.rows, strict=True):
        assert {name: entry[name] for name in ("id", "question", "answer", "loss")}.items() <= row.items()
        assert (entry["golden"], entry["scores"]) == (row["golden_answers"], [row["em"], row["f1"]])
        assert (entry["right"], entry["error"]) == (row["correct"], False)
    assert {entry["right"] for entry in listed} == {True, False}


def test_every_call_is_there_word_for_word(run: Callable[[str], Run]) -> None:
    blend = run("blend")
    page = page_of(blend)
    with Journal(blend.folder, "replay") as journal:
        for trace, row in zip(traces_of(page), blend.rows, strict=True):
            assert [call["stage"] for call in trace["calls"]] == [stage for stage, _ in row["calls"]]
            for call, (_, key) in zip(trace["calls"], row["calls"], strict=True):
                record = journal.read(key)
                assert record is not None
                assert [[role, page.joined(text)] for role, text in call["prompt"]] == [["", record["prompt"]]]
                assert page.joined(call["reply"]) == record["reply"]
                assert call["tokens_in"] == record["tokens_in"]
                assert call["finish"] == record["finish"]


def test_passages_are_marked_kept_and_gold(run: Callable[[str], Run]) -> None:
    blend = run("blend")
    page = page_of(blend)
    seen = set()
    for trace, row in zip(traces_of(page), blend.rows, strict=True):
        gold = set(map(folded, row["gold_titles"]))
        for branch in trace["branches"]:
            stored = row["branches"][branch["name"]]
            assert page.joined(branch["query"]) == row["queries"][branch["name"]]
            assert [page.passage(each)[0] for each in branch["passages"]] == stored["retrieved"]
            for marked in branch["passages"]:
                name, title, text = page.passage(marked)
                assert bool(marked[1] & 1) == (name in stored["kept"])
                assert bool(marked[1] & 2) == (folded(title) in gold)
                assert text
                seen.add(marked[1])
        fates = {title: fate for title, fate, _ in trace["gold"]}
        assert set(fates) == set(row["gold_titles"])
        kept = {page.passage(each)[1] for each in trace["knowledge"]}
        assert {title for title, fate in fates.items() if fate == "kept"} == {t for t in fates if t in kept}
    assert seen == {0, 1, 2, 3}


def test_the_checks_words_stand_under_their_passages(run: Callable[[str], Run]) -> None:
    page = page_of(run("blend"))
    for trace in traces_of(page):
        checks = [call for call in trace["calls"] if call["stage"].endswith("check")]
        of = sorted(name for call in checks for name in call["of"])
        assert of == ["q", "q_ex", "q_in"], "each query has one check"
        for branch in trace["branches"]:
            (reply,) = [page.joined(call["reply"]) for call in checks if branch["name"] in call["of"]]
            for number, (reason, marked) in enumerate(zip(branch["reasons"], branch["passages"], strict=True)):
                assert f"{number}: {reason}" in reply
                assert reason.startswith("relevant - " if marked[1] & 1 else "irrelevant - ")


def test_an_error_and_what_the_journal_lacks(run: Callable[[str], Run]) -> None:
    direct = run("direct")
    rows = read_rows(direct.folder / PREDICTIONS)
    rows[0] |= {"answer": None, "correct": False, "error": {"kind": "timeout", "stage": "direct", "message": "late"}}
    rows[1]["calls"] = [["direct", "0" * 32]]
    rows[2]["branches"]["q"]["retrieved"] = ["nowhere"]
    write_rows(direct.folder / PREDICTIONS, rows)
    page = page_of(Run(direct.folder))
    traces = traces_of(page)
    assert page.data["rows"][0]["error"]
    assert page.data["rows"][0]["answer"] is None
    assert traces[0]["error"]["message"] == "late"
    assert traces[1]["calls"] == [{"stage": "direct", "gone": True}]
    assert page.passage(traces[2]["branches"][0]["passages"][0]) == ("nowhere", "nowhere", None)


# --- the head -------------------------------------------------------------------------------------------------------


def test_the_head_has_headline_recipe_losses_and_ledger(run: Callable[[str], Run]) -> None:
    blend = run("blend")
    page = page_of(blend)
    assert blend.metrics["signature"] in page.text
    assert OFFLINE in page.text
    assert "method blendfilter" in page.text
    for name, count in blend.losses().items():
        assert re.search(rf"{LOSS_WORDS[name]} {count} ", page.text)
    for stage in blend.metrics["ledger"]:
        assert stage in page.text
    assert OFFLINE not in page_of(run("model")).text
    some = [{**row, "gold_titles": row["gold_titles"] * (i > 2)} for i, row in enumerate(blend.rows)]
    write_rows(blend.folder / PREDICTIONS, some)
    assert "Gold titles are known for 5 of 8; the others count as kept." in page_of(Run(blend.folder)).text


def test_runs_side_by_side(run: Callable[[str], Run]) -> None:
    model, silly = run("model"), run("silly")
    page = page_of(silly, model)
    right = sum(row["correct"] for row in model.rows)
    assert f"{right} / 0" in page.text
    assert "exact McNemar" in page.text
    p = mcnemar_exact([row["correct"] for row in silly.rows], [row["correct"] for row in model.rows]).p
    sides = head_of(RunStatus(silly), [RunStatus(model)])["figures"]["sides"]
    assert [line[sides.header.index("p")] for line in sides.rows] == ["", chance(p)]
    assert page.data["beside"] == ["model"]
    for entry, row in zip(page.data["rows"], model.rows, strict=True):
        assert entry["others"] == [[row["answer"], row["correct"]]]
    assert "no p-value" in page_of(run("blend"), model).text, "beside the offline reader"


def test_an_unfinished_run_says_so(run: Callable[[str], Run]) -> None:
    blend = run("blend")
    (blend.folder / METRICS).unlink()
    write_rows(blend.folder / PREDICTIONS, read_rows(blend.folder / PREDICTIONS)[:3])
    half = Run(blend.folder)
    page = page_of(half)
    missing = [row["id"] for row in run("direct").rows[3:]]
    assert f"Not finished: 3 of 8 questions are answered; missing: {', '.join(missing)}; the same" in page.text
    assert "Partial" in page.text
    assert len(page.data["rows"]) == 3
    result = half.report()
    assert "not finished: 3 of 8 questions are answered" in result
    assert "Partial" in result
    assert "Scores over 3 questions" in result
    with pytest.raises(MissingFile, match="not finished"):
        half.html(run("model"))
    (blend.folder / PREDICTIONS).unlink()
    page = page_of(Run(blend.folder))
    assert "Nothing is answered yet." in page.text
    assert page.data["rows"] == []


# --- the file -------------------------------------------------------------------------------------------------------


def test_the_same_run_gives_the_same_bytes(run: Callable[[str], Run]) -> None:
    blend = run("blend")
    first = blend.html().read_bytes()
    assert Run(blend.folder).html().read_bytes() == first
    assert sorted(path.name for path in blend.folder.glob(".*")) == []


def test_a_file_of_somebody_elses_is_no_report_to_be_replaced(run: Callable[[str], Run], tmp_path: Path) -> None:
    blend = run("blend")
    for path in (blend.folder / "report.html", tmp_path / "thesis.html"):
        path.write_text("<p>mine</p>")
        with pytest.raises(BadArgument, match=r"html is there, and is no report: move it away, or name another file"):
            blend.html(path=path)
        assert path.read_text() == "<p>mine</p>"
        path.unlink()
        assert blend.html(path=path) == blend.html(path=path), "our own is"


def test_nothing_is_loaded_and_only_this_script_runs(run: Callable[[str], Run]) -> None:
    text = run("blend").html().read_text("utf-8")
    assert not re.search(r"(?:src|href)=\"(?!#|data:,\")", text.partition("<script")[0])
    assert "http" not in text.partition('id="data"')[0].replace("http-equiv", "").replace(FIERCE, "")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    result = policy[1].replace("&#39;", "'")
    assert result.startswith("default-src 'none'; ")
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in result
    assert "innerHTML" not in script[1]
    assert "unsafe" not in result


def test_the_fiercest_texts_stay_data(tmp_path: Path) -> None:
    long = "1 MB of text " * 80_000
    index = [Passage("1", FIERCE, f"{FIERCE} about the question"), Passage("2", "long", long)]
    engine = CountingEngine(reply=lambda _: f"{FIERCE} \ud800")
    wanted = [{"id": FIERCE, "question": f"What is {FIERCE}?", "answers": ["<b>x</b>"]}]
    made = evaluate(Direct(lambda query, k: index), load("qa", wanted), lm=engine.lm("<i>m</i>"), run=tmp_path / "r&<d")
    page = page_of(made)
    assert page.scripts == 3, "no text began a script of its own"
    assert page.data["rows"][0]["answer"] == made.rows[0]["answer"]
    view = [page.passage(each) for each in traces_of(page)[0]["branches"][0]["passages"]]
    assert view == [("1", FIERCE, f"{FIERCE} about the question"), ("2", "long", long)]
    raw = (made.folder / "report.html").read_text("utf-8")
    assert "<i>m" not in raw
    assert "\0" not in raw
    assert "r&<d" not in raw
    assert "broken" not in re.sub(r"\\u[0-9a-f]{4}", "", raw.partition('id="data"')[0])


# --- a folder of pages ----------------------------------------------------------------------------------------------


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SINGLE", 4)
    monkeypatch.setattr(pages, "PAGE", 3)


def test_a_long_run_is_a_folder_of_pages(run: Callable[[str], Run], small_pages: None) -> None:
    blend = run("blend")
    path = blend.html()
    folder = blend.folder / "report"
    assert path == blend.folder / "report.html"
    names = ["questions-1.html", "questions-2.html", "questions-3.html"]
    assert sorted(each.name for each in folder.iterdir()) == names
    index = read_page(path)
    assert index.traces is None
    assert (index.data["pages"], index.data["size"]) == ([f"report/{name}" for name in names], 3)
    assert 'href="../report.html"' in (folder / names[0]).read_text("utf-8")
    assert [entry["id"] for entry in index.data["rows"]] == [row["id"] for row in blend.rows]
    assert blend.metrics["signature"] in index.text
    parts = [read_page(folder / name) for name in names]
    assert [part.data["first"] for part in parts] == [0, 3, 6]
    assert [entry for part in parts for entry in part.data["rows"]] == index.data["rows"]
    traces = [trace for part in parts for trace in (part.traces or {})["traces"]]
    assert [len(trace["calls"]) for trace in traces] == [len(row["calls"]) for row in blend.rows]


def test_pages_that_are_no_more_are_taken_away(
    run: Callable[[str], Run], small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    blend = run("blend")
    folder = blend.html().with_suffix("")
    mine = folder / "questions-of-mine.html"
    mine.write_text("my notes")
    monkeypatch.setattr(pages, "PAGE", 4)
    blend.html()
    assert sorted(path.name for path in folder.iterdir()) == ["questions-1.html", "questions-2.html", mine.name]
    monkeypatch.setattr(pages, "SINGLE", 1000)
    blend.html()
    assert [path.name for path in folder.iterdir()] == [mine.name], "what is not a report's is left"
    mine.unlink()
    blend.html()
    assert not folder.exists()


# --- which call judged what -------------------------------------------------------------------------------------------


def called(stage: str, judged: list[str], reply: str = "", **more: Any) -> tuple[str, dict[str, Any]]:
    return stage, {"judged": judged, "reply": reply, **more}


CHECK = "knowledge 0: yes\nknowledge 1: no"


@pytest.mark.parametrize(
    ("calls", "retrieved", "judged_for", "reasons"),
    [
        pytest.param(
            [("external", None), called("s.check", ["b", "a"], "knowledge 0: one\nknowledge 1: other"),
             called("s.check", ["a", "b"], CHECK), called("s.ids", ["b", "a"], "0")],
            {"q": ["a", "b"], "q_ex": ["b", "a"], "q_in": []},
            [[], ["q_ex"], ["q"], ["q_ex"]],
            {"q": ["yes", "no"], "q_ex": ["one", "other"], "q_in": []},
            id="a branch has the calls over its own passages, in their order",
        ),
        pytest.param(
            [called("s.check", ["a", "b"], CHECK)], {"q": ["a", "b"], "q_ex": ["a", "b"]},
            [["q", "q_ex"]], {"q": ["yes", "no"], "q_ex": ["yes", "no"]}, id="equal branches share a check",
        ),
        pytest.param(
            [called("judge", ["a", "b", "c"], "0 is good.\n1 is bad.\n2 is a town.\nIds: 0")],
            {"q": ["a"], "q_ex": ["c", "b"]},
            [["q", "q_ex"]], {"q": ["is good."], "q_ex": ["is a town.", "is bad."]}, id="a union serves all",
        ),
        pytest.param(
            [called("s.check", ["a"], "knowledge 0: first", branch="hop_1"),
             called("s.check", ["a"], "knowledge 0: second", branch="hop_2")],
            {"hop_1": ["a"], "hop_2": ["a"]},
            [["hop_1"], ["hop_2"]], {"hop_1": ["first"], "hop_2": ["second"]}, id="two hops to the same passages",
        ),
        pytest.param(
            [called("s.judge.consistent", ["a"], "True"), called("s.judge.consistent", ["b"], "far\nVerdict: False")],
            {"q": ["a", "b"], "q_ex": ["b", "c"], "q_in": ["c"]},
            [["q"], ["q", "q_ex"]],
            {"q": ["True", "far; Verdict: False"], "q_ex": ["far; Verdict: False", ""], "q_in": []},
            id="CDIT's judge reads a passage a call",
        ),
        pytest.param(
            [called("helpful", ["a", "b"], "0, 4")], {"q": ["a", "b"]}, [["q"]], {"q": []}, id="numbers give no reason",
        ),
        pytest.param(
            [("check", {"reply": CHECK}), called("check", ["z"], CHECK)], {"q": ["a", "b"]}, [[], []], {"q": []},
            id="an older record, and other passages",
        ),
    ],
)  # fmt: skip
def test_calls_are_matched_by_the_passages_that_they_judged(
    calls: list[Any], retrieved: dict[str, list[str]], judged_for: list[list[str]], reasons: dict[str, list[str]]
) -> None:
    assert judgements(calls, retrieved) == (judged_for, reasons)


@pytest.mark.parametrize(
    ("method", "stages"),
    [
        (lambda index: SelfAsk(index, k=2, filter=KnowledgeFilter()), {"check", "ids"}),
        (lambda index: Direct(index, k=2, filter=CDITFilter()), {"consistent"}),
        (lambda index: BlendFilter(index, k=2, filter=FilCoFilter(), filter_union=True), {"helpful"}),
    ],
)
def test_a_filters_calls_record_what_they_judge(method: Any, stages: set[str], tmp_path: Path) -> None:
    index = BM25.build(sample("corpus.jsonl"))
    run = evaluate(method(index), load("hotpotqa", "sample", limit=1), lm="offline", run=tmp_path / "r", progress=False)
    page = page_of(run)
    (trace,) = traces_of(page)
    calls = [call for call in trace["calls"] if call["stage"].rpartition(".")[2] in stages]
    assert calls
    names = [branch["name"] for branch in trace["branches"]]
    assert {name for call in calls for name in call["of"]} == set(names)
    assert not any(call["of"] for call in trace["calls"] if call["stage"].rpartition(".")[2] in ("step", "answer"))


# --- texts in a page --------------------------------------------------------------------------------------------------


@given(st.lists(TEXTS))
def test_the_pieces_of_a_text_joined_are_the_text(texts: list[str]) -> None:
    pieces = Pieces()
    numbers = [pieces.of(text) for text in texts]
    table = pieces.table
    assert ["".join(table[number] for number in text) for text in numbers] == texts
    assert len(set(table)) == len(table)


@example("<!-- <script> & </script>")
@given(TEXTS)
def test_data_in_a_page_neither_opens_nor_closes_a_tag(text: str) -> None:
    assert not set(inlined([text])) & set("<>&")
    assert inlined([text]).isascii()
    assert "<" not in packed([text])


# --- the card in a notebook -------------------------------------------------------------------------------------------


def test_a_card_shows_the_run(run: Callable[[str], Run], tmp_path: Path) -> None:
    folder = shutil.copytree(run("blend").folder, tmp_path / "<b>blend & co")
    blend = Run(folder)
    view = blend._repr_html_()
    assert blend.metrics["signature"] in view
    assert OFFLINE in view
    assert "&lt;b&gt;blend &amp; co" in view
    for score in blend.metrics["metrics"].values():
        assert f"{100 * score['value']:.1f}" in view
    assert view.count("<rect") == 2 * sum(count > 0 for count in blend.losses().values()), "a bar and its legend"
    assert not re.search("<b>blend|<script|http", view)
    assert "run.html() writes" in view
    blend.html()
    assert "the whole report:" in blend._repr_html_()
    for row in blend.rows:
        row["gold_titles"] = []
    assert "<svg" not in blend._repr_html_(), "without gold no losses are drawn"
    (folder / METRICS).unlink()
    write_rows(folder / PREDICTIONS, read_rows(folder / PREDICTIONS)[:2])
    assert "not finished: 2 of 8 questions are answered" in Run(folder)._repr_html_()


def test_what_a_filter_wrote_stands_beside_the_pieces_that_it_kept(tmp_path: Path) -> None:
    """The passage once, with its pieces marked; then the text that is in no passage."""
    found = Passage("p1", "Skerry Light", "A lighthouse of 1884. Ada Brennock kept it.")
    engine = CountingEngine(reply=lambda _: "Ada Brennock kept it. It sank. A lighthouse of 1884.")
    method = Direct(lambda query, k: [found], k=1, filter=BIDERFilter())
    run = evaluate(method, [{"question": "Who kept it?", "answer": "Ada"}], lm=engine.lm(), run=tmp_path / "run",
                   progress=False)  # fmt: skip
    page = read_page(run.html())
    (trace,) = page.traces["traces"]
    assert [page.joined(pieces) for pieces in trace["written"]] == ["It sank."]
    ((_, marks, spans),) = trace["knowledge"]
    assert (marks & pages.KEPT, spans) == (pages.KEPT, [[0, 21], [22, 43]])
    assert trace["flags"] == {"not_in_passages": 1}
