"""`report.html` in a real browser: nothing is asked for, nothing complained of, and it can be used with keys alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_page import Browser, browser, missing
from report_page import FIERCE
from small_world import CountingEngine
from stored import write_rows

from blendfilter import BM25, BlendFilter, Direct, Run, evaluate, load
from blendfilter.evaluation.run_folder import METRICS, PREDICTIONS, read_json, read_rows, write_json
from blendfilter.records import Passage
from blendfilter.report import page as pages
from blendfilter.resources import sample
from blendfilter.text import visible

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]

SHOWN = "[...document.querySelectorAll('#list .open')].map(each => each.querySelector('.asked').textContent)"
FOCUSED = "document.activeElement.closest('.row')?.dataset.place"
TARGET, SLACK = 2.0, 2.0  # seconds to a page that can be used; a busy machine gets so many times as long
LONG = 1_000_000


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _nothing_asked_for_or_complained_of(window: Browser) -> Iterator[None]:
    """Around every test, whatever it does."""
    window.requests(), window.complaints()
    window.size(1280, 900)
    yield
    assert [url for url in window.requests() if not url.startswith(("file:", "data:,", "about:"))] == []
    assert window.complaints() == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The sample's questions by two methods and by one that knows nothing, and the first six times over."""
    folder, index = tmp_path_factory.mktemp("runs"), BM25.build(sample("corpus.jsonl"))
    questions = load("hotpotqa", "sample")
    made = {
        "blend": evaluate(BlendFilter(index), questions, lm="offline", run=folder / "blend", progress=False),
        "direct": evaluate(Direct(index), questions, lm="offline", run=folder / "direct", progress=False),
    }
    shutil.copytree(folder / "blend", folder / "many")
    made["many"] = many(folder / "many", 500)
    return made


def many(folder: Path, n: int) -> Run:
    """A run's rows repeated under other ids, until there are `n`; half of its texts are other ones."""
    rows = read_rows(folder / PREDICTIONS)
    again = [{**rows[place % len(rows)], "id": f"{rows[place % len(rows)]['id']}-{place}"} for place in range(n)]
    write_rows(folder / PREDICTIONS, again)
    write_json(folder / METRICS, {**read_json(folder / METRICS), "n": n})
    return Run(folder)


def choose(window: Browser, name: str) -> list[str]:
    """The questions shown under a filter."""
    window.ask(f"document.querySelector('[data-filter={name}]').click()")
    return list(window.ask(SHOWN))


def open_first(window: Browser) -> None:
    window.ask("document.querySelector('#list .open').click()")
    window.wait("document.querySelector('.trace .inside')")


def test_five_hundred_questions_open_at_once(window: Browser, runs: dict[str, Run]) -> None:
    path = runs["many"].html()
    assert path.stat().st_size < 15e6
    window.open(path)
    assert window.interactive() < TARGET * SLACK
    assert window.ask("document.getElementById('count').textContent") == "500 of 500 questions"
    assert "many" in window.driver.title


def test_a_question_opens_into_its_trace(window: Browser, runs: dict[str, Run]) -> None:
    run = runs["blend"]
    window.open(run.html())
    open_first(window)
    row = run.rows[0]
    trace = window.ask("document.querySelector('.trace').textContent")
    for query in row["queries"].values():
        assert query[:400] in trace
    assert row["golden_answers"][0] in trace
    kept = sum(len(branch["kept"]) for branch in row["branches"].values())
    assert len(window.ask("[...document.querySelectorAll('.passage.kept')]")) == kept
    assert trace.count("★ gold") >= 1
    window.ask("document.querySelector('.call').open = true")
    window.wait("document.querySelector('.call pre')")
    prompt, reply = window.ask("[...document.querySelectorAll('.call pre')].map(each => each.textContent)")
    assert row["question"] in prompt
    assert prompt.endswith("Let's think step by step.")
    assert reply


def test_filters(window: Browser, runs: dict[str, Run]) -> None:
    run = runs["blend"]
    window.open(run.html(runs["direct"]))
    other = {row["id"]: row for row in runs["direct"].rows}
    expected = {
        "all": run.rows,
        "right": [row for row in run.rows if row["correct"]],
        "wrong": [row for row in run.rows if not row["correct"]],
        "not_retrieved": [row for row in run.rows if row["loss"] == "not_retrieved"],
        "filtered_away": [row for row in run.rows if row["loss"] == "filtered_away"],
        "changed": [row for row in run.rows if row["correct"] != other[row["id"]]["correct"]],
    }
    assert all(expected.values()), "the sample shows every one of them"
    for name, rows in expected.items():
        assert choose(window, name) == [row["question"] for row in rows], name
    assert window.ask("document.querySelector('[data-filter=errors]').disabled")
    open_first(window)
    assert "direct" in window.ask("document.querySelector('.trace .answers').textContent")


def test_errors_are_no_wrong_answers(window: Browser, tmp_path: Path) -> None:
    """Two of six questions fail: a red banner above, a filter of their own, nothing said of their gold."""
    questions = load("hotpotqa", "sample", limit=6)

    async def refuse(stage: str, prompt: str) -> None:
        if any(question.question in prompt for question in questions[:2]):
            raise RuntimeError("out of luck")

    method = BlendFilter(BM25.build(sample("corpus.jsonl")))
    with pytest.warns(UserWarning, match="2 of 6 questions ended in an error"):
        run = evaluate(method, questions, lm=CountingEngine(refuse).lm(), run=tmp_path / "run", progress=False)
    window.open(run.html())
    banner = "document.querySelector('.failure')"
    assert window.ask(f"{banner}.textContent").startswith("Failed: 2 of 6 questions ended in an error")
    assert window.ask(f"getComputedStyle({banner}).backgroundColor") == "rgb(179, 38, 30)"
    asked = [row["question"] for row in run.rows]
    assert choose(window, "errors") == asked[:2]
    open_first(window)
    trace = window.ask("document.querySelector('.trace').textContent")
    assert "ended in an error" in trace
    assert "out of luck" in trace
    assert "? unknown" in trace
    assert "not retrieved" not in trace
    wrong = [row["question"] for row in run.rows if not row["correct"] and row["error"] is None]
    for name in ("wrong", "not_retrieved", "filtered_away"):
        if not window.ask(f"document.querySelector('[data-filter={name}]').disabled"):
            assert set(choose(window, name)) <= set(wrong)


def test_search_in_questions_and_in_prompts(window: Browser, runs: dict[str, Run]) -> None:
    run = runs["blend"]
    window.open(run.html())
    word = run.rows[3]["golden_answers"][0]
    window.ask("document.getElementById('search').focus()")
    window.press(*word)
    window.wait("!document.getElementById('count').textContent.startsWith('84')")
    found = window.ask(SHOWN)
    assert run.rows[3]["question"] in found
    window.press("\ue00c")  # Escape empties it
    window.wait("document.getElementById('count').textContent.startsWith('84')")
    window.press(*"Ids (numbers only):")  # the cue of a prompt, in no question
    window.wait("document.getElementById('count').textContent.startsWith('0')")
    window.ask("document.getElementById('deep').click()")
    window.wait("document.getElementById('count').textContent.startsWith('84')")


def test_keys_alone(window: Browser, runs: dict[str, Run]) -> None:
    window.open(runs["blend"].html())
    window.press("j")
    assert window.ask(FOCUSED) == "0"
    window.press("j", "\ue015")  # down
    assert window.ask(FOCUSED) == "2"
    assert window.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    window.press("k", "\ue007")  # Enter
    window.wait("document.querySelector('.trace .inside')")
    assert window.ask("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert "#q=" in window.ask("location.href")
    for _ in range(4):  # into the trace: link, passages
        window.press("\ue004")
    assert window.ask("Boolean(document.activeElement.closest('.trace'))")
    window.press("\ue00c")
    assert window.ask("document.querySelectorAll('.trace').length") == 0
    assert window.ask(FOCUSED) == "1"
    window.press("/")
    assert window.ask("document.activeElement.id") == "search"
    window.press("j")
    assert window.ask("document.activeElement.value") == "j", "in a text field a letter is a letter"


def test_an_address_opens_a_question(window: Browser, runs: dict[str, Run]) -> None:
    run = runs["many"]
    row = run.rows[412]
    window.open(run.html(), f"#q={row['id']}")
    window.wait("document.querySelector('.trace .inside')")
    assert window.ask(FOCUSED) == "412"
    assert row["id"] in window.ask("document.querySelector('.trace').textContent")
    window.open(run.html(), "#q=nobody")
    assert window.ask("document.querySelectorAll('.trace').length") == 0


@pytest.mark.parametrize("width", [320, 390])
def test_a_narrow_window_scrolls_down_only(window: Browser, runs: dict[str, Run], width: int) -> None:
    window.size(width, 800)
    window.open(runs["blend"].html(runs["direct"]))
    open_first(window)
    window.ask("document.querySelectorAll('.trace details').forEach(each => { each.open = true; })")
    window.wait("document.querySelectorAll('.call pre').length > 10")
    assert window.ask("document.documentElement.scrollWidth") == width


def test_the_fiercest_passage_is_shown_as_text(window: Browser, tmp_path: Path) -> None:
    found = [Passage("1", FIERCE, f"{FIERCE} text"), Passage("2", "long", "word " * (LONG // 5))]
    engine = CountingEngine(reply=lambda _: FIERCE)
    wanted = [{"id": "<i>", "question": f"What is {FIERCE}?", "answers": [FIERCE], "gold_titles": [FIERCE]}]
    folder = tmp_path / "<b>run"
    run = evaluate(Direct(lambda query, k: found), load("qa", wanted), lm=engine.lm(), run=folder, progress=False)
    assert not run.errors
    window.open(run.html())
    open_first(window)
    window.ask("document.querySelectorAll('.trace details').forEach(each => { each.open = true; })")
    window.wait("document.querySelector('.call pre')")
    view = window.ask("document.querySelector('.passage .data').textContent")
    assert view == visible(f"{FIERCE} text")
    assert window.ask("document.querySelectorAll('.trace script, .trace img, .trace b b').length") == 0
    assert "broken" not in window.driver.title
    cut, *_ = window.ask(
        "[...document.querySelectorAll('.passage .data')].slice(1).map(each => each.textContent.length)"
    )
    assert cut < 5_000
    window.ask("document.querySelector('.passage .all').click()")
    assert window.ask("document.querySelectorAll('.passage .data')[1].textContent.length") == LONG
    assert window.ask("document.documentElement.scrollWidth") <= 1280


def test_a_folder_of_pages(
    window: Browser, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pages, "SINGLE", 100)
    monkeypatch.setattr(pages, "PAGE", 200)
    run = Run(shutil.copytree(runs["many"].folder, tmp_path / "long"))
    window.open(run.html())
    window.interactive()
    assert window.ask("document.getElementById('count').textContent") == "500 of 500 questions"
    row = run.rows[431]
    window.ask("document.getElementById('search').focus()")
    window.press(*row["id"])
    window.wait("document.querySelectorAll('.row').length === 1")
    window.ask("document.querySelector('.open').click()")
    window.wait("location.pathname.endsWith('/questions-3.html') && document.querySelector('.trace .inside')")
    assert row["id"] in window.ask("document.querySelector('.trace').textContent")
    assert window.ask("document.querySelector('.row .place').textContent") == "401"
    window.open(run.folder / "report.html", f"#q={run.rows[250]['id']}")
    window.wait("location.pathname.endsWith('/questions-2.html') && document.querySelector('.trace .inside')")
    assert window.ask(FOCUSED) == "50"


def test_the_pieces_that_were_kept_are_marked(window: Browser, tmp_path: Path) -> None:
    text = "\U0001f600\U0001f600 Not this. Ormskerry has a pier. Nor that."
    index = [Passage("1", "Ormskerry", text)]
    wanted = load("qa", [{"question": "What has Ormskerry?", "answers": ["a pier"]}])
    run = evaluate(Direct(lambda query, k: index), wanted, lm="offline", run=tmp_path / "run", progress=False)
    start = text.index("Ormskerry")
    run.rows[0]["branches"]["q"]["spans"] = {"1": [[0, 2], [start, start + 21]]}
    window.open(run.html())
    open_first(window)
    window.ask("document.querySelector('.passage').open = true")
    window.wait("document.querySelector('.passage .data')")
    assert window.ask("[...document.querySelectorAll('mark')].map(each => each.textContent)") == [
        "\U0001f600\U0001f600",
        "Ormskerry has a pier.",
    ]
    assert window.ask("document.querySelector('.passage .data').textContent") == text
