"""Bad input, case by case: one clear line (what, where, the next move), the exit code, and nothing left half-written.

Every case goes through the command line as a user would meet it; `tree` holds the folder before and after.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from model_server import MARKER, Server, serve
from small_world import Command, Outcome, tree

from blendfilter import BlendFilter, as_retriever
from blendfilter.asking import Wording
from blendfilter.errors import UseAcall
from blendfilter.lm import bridge

SECRET = "sk-proj-do-not-show-0123456789"
NOBODY = "http://127.0.0.1:9/v1"
"""An address where no server is (the discard port)."""
PASSAGES = [
    {"id": "a", "title": "Orm Pier", "text": "Orm Pier is a pier in Tavenby. Lise Harrow designed it in 1871."},
    {"id": "b", "title": "Lise Harrow", "text": "Lise Harrow was an engineer, born in Ormskerry."},
    {"id": "c", "title": "Tavenby", "text": "Tavenby is a harbour town with a fish market."},
    {"id": "d", "title": "Fell", "text": "Fell is a hill behind the harbour town."},
    {"id": "e", "title": "Tavenby Fair", "text": "The fair is held on the pier each year since 1902."},
    {"id": "f", "title": "Ormskerry", "text": "Ormskerry is an island where an engineer was born."},
]
ROWS = [
    {"id": "one", "question": "Where was the designer of Orm Pier born?", "answer": "Ormskerry"},
    {"id": "two", "question": "In which town does Orm Pier stand?", "answer": "Tavenby"},
    {"id": "three", "question": "When was Orm Pier designed?", "answer": "1871"},
]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a corpus and questions, stood in; indexes are cached in a folder of its own inside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    lines(tmp_path / "corpus.jsonl", PASSAGES)
    lines(tmp_path / "questions.jsonl", ROWS)
    return tmp_path


@pytest.fixture
def blendfilter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture(scope="module")
def served() -> Iterator[Callable[..., Server]]:
    """Servers by their settings, one process each, reset for each test that asks."""
    running: dict[str, Server] = {}

    def get(**settings: Any) -> Server:
        name = json.dumps(settings, sort_keys=True)
        if name not in running:
            running[name] = serve(keep=True, **settings)
        running[name].reset()
        return running[name]

    yield get
    for server in running.values():
        server.stop()


EVAL = ("eval", "hotpotqa", "--lm", "offline", "--run", "run", "--data", "questions.jsonl", "--corpus", "corpus.jsonl")


def evaluation(**other: object) -> list[object]:
    """`EVAL` with options changed (`lm="x"`), added, or left out (None); underscores stand for dashes."""
    words: dict[str, object] = dict(zip(EVAL[2::2], EVAL[3::2], strict=True))
    words |= {f"--{name.replace('_', '-')}": value for name, value in other.items()}
    return [
        "eval",
        other.pop("task", "hotpotqa"),
        *(w for o, v in words.items() if v is not None and o != "--task" for w in (o, v)),
    ]


def refused(outcome: Outcome, *said: str, code: int = 2, notices: int = 0) -> None:
    """One line that says all of `said`, after so many notices; no traceback and no secret."""
    assert outcome.code == code, outcome
    told = [line for line in outcome.notices if not re.match(r"\d+/\d+ questions ", line)]  # a run's progress
    assert len(told) == notices + 1, outcome.err
    assert all(line.startswith("blendfilter: ") for line in told), outcome.err
    for words in said:
        assert words in outcome.error
    assert "Traceback" not in outcome.err + outcome.out
    assert SECRET not in outcome.err + outcome.out
    assert outcome.out == ""


def untouched(here: Path, before: dict[str, bytes], *, indexed: bool = False) -> None:
    """Nothing was written; `indexed`: but for the cached index of the corpus, which is whole."""
    after = tree(here)
    if indexed:
        made = {name for name in after if name.startswith("cache")}
        assert not [name for name in made if "building" in name or ".tmp" in name]
        assert any(name.endswith("manifest.json") for name in made)
        after = {name: data for name, data in after.items() if name not in made}
    assert after == before


# files and rows


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (evaluation(data="gone.jsonl"), "gone.jsonl"),
        (evaluation(corpus="gone.jsonl"), "gone.jsonl"),
        (evaluation(corpus=None, index="gone"), "gone"),
        (evaluation(prompts="gone"), "gone"),
        (evaluation(reuse="gone"), "gone"),
        (["ask", "Who?", "--lm", "offline", "--corpus", "gone.jsonl"], "gone.jsonl"),
        (["index", "gone.jsonl", "--out", "made"], "gone.jsonl"),
        (["search", "gone", "pier"], "gone"),
        (["report", "gone"], "gone"),
        (["compare", "gone", "gone"], "gone"),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, list) else None,
)
def test_a_missing_file(blendfilter: Command, here: Path, words: list[object], where: str) -> None:
    before = tree(here)
    refused(blendfilter(*words), f"{where}", "no ")
    untouched(here, before, indexed=(here / "cache").exists())


def test_a_line_that_does_not_parse_is_named(blendfilter: Command, here: Path) -> None:
    broken = here / "broken.jsonl"
    broken.write_text(json.dumps(ROWS[0]) + "\n\n" + '{"id": "two", "question": \n')
    before = tree(here)
    refused(blendfilter(*evaluation(data="broken.jsonl")), "broken.jsonl, line 3", "does not parse", "one JSON object")
    untouched(here, before)


def test_a_line_of_the_corpus_that_does_not_parse_is_named(blendfilter: Command, here: Path) -> None:
    (here / "broken.jsonl").write_text(json.dumps(PASSAGES[0]) + "\n{oops}\n")
    before = tree(here)
    refused(blendfilter("index", "broken.jsonl", "--out", "made"), "broken.jsonl, line 2", "does not parse")
    untouched(here, before)
    refused(blendfilter(*evaluation(corpus="broken.jsonl")), "broken.jsonl, line 2", "does not parse")
    assert not [name for name in tree(here) if "building" in name or name.startswith("run")]


def test_the_truncated_official_file(blendfilter: Command, here: Path, shared_data: Path) -> None:
    cut = shared_data / "raw/hotpotqa/truncated_official_dev.json"
    before = tree(here)
    told = blendfilter(*evaluation(data=cut, corpus="pooled", limit=1))
    refused(told, cut.name, "cut off", "again")
    untouched(here, before)


@pytest.mark.parametrize("content", ["", "\n\n", "[]"])
def test_an_empty_question_set(blendfilter: Command, here: Path, content: str) -> None:
    (here / "empty.jsonl").write_text(content)
    before = tree(here)
    refused(blendfilter(*evaluation(data="empty.jsonl")), "empty.jsonl has no questions")
    untouched(here, before)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_corpus(blendfilter: Command, here: Path, content: str) -> None:
    (here / "empty.jsonl").write_text(content)
    before = tree(here)
    refused(blendfilter("index", "empty.jsonl", "--out", "made"), "empty.jsonl", "no passages")
    untouched(here, before)
    refused(blendfilter(*evaluation(corpus="empty.jsonl")), "empty.jsonl", "no passages")
    assert not [name for name in tree(here) if "building" in name or name.startswith("run")]


def test_questions_without_paragraphs_have_no_pool(blendfilter: Command, here: Path) -> None:
    before = tree(here)
    refused(blendfilter(*evaluation(corpus="pooled")), "no paragraphs", "corpus")
    untouched(here, before)


def test_a_passage_id_that_occurs_twice(blendfilter: Command, here: Path) -> None:
    lines(here / "twice.jsonl", [*PASSAGES, {**PASSAGES[1], "text": "Another text."}])
    before = tree(here)
    told = blendfilter("index", "twice.jsonl", "--out", "made")
    refused(told, "twice.jsonl, line 7", "id 'b' was used before, at twice.jsonl, line 2", "must differ")
    untouched(here, before)
    refused(blendfilter(*evaluation(corpus="twice.jsonl")), "id 'b' was used before")
    assert not [name for name in tree(here) if "building" in name or name.startswith("run")]


@pytest.mark.parametrize("question", ["", "   ", "\n\t"])
def test_an_empty_question(blendfilter: Command, here: Path, question: str) -> None:
    lines(here / "blank.jsonl", [ROWS[0], {"id": "blank", "question": question, "answer": "x"}])
    before = tree(here)
    refused(blendfilter(*evaluation(data="blank.jsonl")), "blank.jsonl, line 2", "'blank' is empty")
    untouched(here, before)
    refused(blendfilter("ask", question, "--lm", "offline", "--corpus", "corpus.jsonl"), "question")
    refused(blendfilter("ask", question, "--lm", "offline", "--method", "direct"), "question")


def test_an_empty_search(blendfilter: Command, here: Path) -> None:
    assert blendfilter("index", "corpus.jsonl", "--out", "made").code == 0
    refused(blendfilter("search", "made", " "), "the query is empty")


# numbers


@pytest.mark.parametrize("k", [0, -3])
@pytest.mark.parametrize("method", ["direct-retrieval", "cot-retrieval", "blendfilter"])
def test_k_below_one(blendfilter: Command, here: Path, method: str, k: int) -> None:
    before = tree(here)
    refused(blendfilter(*evaluation(method=method, k=k)), "k must be at least 1", str(k))
    untouched(here, before, indexed=(here / "cache").exists())
    refused(blendfilter("ask", "Who?", "--lm", "offline", "--corpus", "corpus.jsonl", "--k", k), "at least 1")


def test_k_below_one_in_a_search(blendfilter: Command) -> None:
    assert blendfilter("index", "corpus.jsonl", "--out", "made").code == 0
    refused(blendfilter("search", "made", "pier", "--k", "0"), "k must be at least 1")


def test_k_above_the_corpus_works_and_says_so(blendfilter: Command, here: Path) -> None:
    told = blendfilter(*evaluation(k=50))
    assert told.code == 0
    said = [line for line in told.notices if line.startswith("blendfilter: ")]
    assert len(said) == 1, "said once, not once a search"
    assert "k=50" in said[0]
    assert "at most 6 passages" in said[0]
    rows = [json.loads(line) for line in (here / "run/predictions.jsonl").read_text().splitlines()]
    assert all(1 <= len(row["branches"]["q"]["retrieved"]) <= 6 for row in rows)
    assert blendfilter("index", "corpus.jsonl", "--out", "made").code == 0
    told = blendfilter("search", "made", "pier harbour engineer", "--k", 50)
    assert (told.code, len(told.out.splitlines())) == (0, 6)
    assert "at most 6 passages" in told.error


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": -1}, "limit is -1: it must be 1 or more"),
        ({"limit": 0}, "limit is 0"),
        ({"concurrency": 0}, "concurrency must be at least 1, got 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_a_number_outside_its_range(blendfilter: Command, here: Path, options: dict[str, int], said: str) -> None:
    before = tree(here)
    refused(blendfilter(*evaluation(**options)), said)
    untouched(here, before, indexed=(here / "cache").exists())


@pytest.mark.parametrize("setting", [("--k1", "-1"), ("--b", "2")])
def test_bm25_settings_outside_their_range(blendfilter: Command, here: Path, setting: tuple[str, str]) -> None:
    before = tree(here)
    refused(blendfilter("index", "corpus.jsonl", "--out", "made", *setting), "BM25's", setting[1])
    untouched(here, before)


def test_words_where_a_number_belongs(blendfilter: Command, here: Path) -> None:
    before = tree(here)
    refused(blendfilter(*evaluation(k="five")), "--k", "valid integer", "(blendfilter eval --help ")
    refused(blendfilter(*EVAL, "--krypton", "5"), "--krypton", "(blendfilter eval --help ")
    refused(blendfilter("evl"), "evl", "--help")
    untouched(here, before)


# names


@pytest.mark.parametrize(
    ("options", "kind", "guess"),
    [
        ({"task": "hotpotq"}, "no task 'hotpotq'", "hotpotqa"),
        ({"method": "blendfiltr"}, "no method 'blendfiltr'", "blendfilter"),
        ({"method": "cot-retreival"}, "no method 'cot-retreival'", "cot-retrieval"),
        ({"lm": "opnai/gpt-4o-mini"}, "no provider 'opnai'", "openai"),
        ({"task": "qa", "metric": "accurcy"}, "no metric 'accurcy'", "accuracy"),
        ({"without": "q_exx"}, "no query 'q_exx'", "q_ex"),
    ],
)
def test_an_unknown_name_comes_with_a_suggestion(
    blendfilter: Command, here: Path, options: dict[str, str], kind: str, guess: str
) -> None:
    before = tree(here)
    refused(blendfilter(*evaluation(**options)), kind, f"Did you mean '{guess}'?")
    untouched(here, before)  # and no index of the corpus was built before it was said


def test_an_unknown_engine(blendfilter: Command, here: Path) -> None:
    before = tree(here)
    told = blendfilter("index", "corpus.jsonl", "--out", "made", "--engine", "bm52")
    refused(told, "no engine 'bm52'", "Did you mean 'bm25'?")
    untouched(here, before)


def test_an_unknown_wording(blendfilter: Command, here: Path) -> None:
    before = tree(here)
    told = blendfilter("ask", "Who?", "--lm", "offline", "--corpus", "corpus.jsonl", "--wording", "hotpot")
    refused(told, "'hotpot'", "Did you mean 'hotpotqa'?")
    untouched(here, before)


def test_an_unknown_endpoint(blendfilter: Command, here: Path) -> None:
    before = tree(here)
    refused(blendfilter(*evaluation(endpoint="responses")), "no endpoint 'responses'", "chat, completions")
    untouched(here, before)


def test_a_template_that_no_stage_reads(blendfilter: Command, here: Path) -> None:
    (here / "mine/blendfilter").mkdir(parents=True)
    (here / "mine/blendfilter/chek.j2").write_text("{{ question }}")
    before = tree(here)
    told = blendfilter(*evaluation(prompts="mine"))
    refused(told, "no prompt 'blendfilter/chek'", "Did you mean 'blendfilter/check'?", "mine")
    untouched(here, before)


def test_a_template_that_is_no_template(blendfilter: Command, here: Path) -> None:
    (here / "mine/blendfilter").mkdir(parents=True)
    (here / "mine/blendfilter/check.j2").write_text("{% if question %}")
    before = tree(here)
    refused(blendfilter(*evaluation(prompts="mine")), "check.j2", "not a Jinja template")
    untouched(here, before)


def test_a_template_that_reads_what_nobody_gives(blendfilter: Command, here: Path) -> None:
    (here / "mine/blendfilter").mkdir(parents=True)
    (here / "mine/blendfilter/internal.j2").write_text("{{ instructions }}\nQuestion: {{ qestion }}\nPassage:")
    before = tree(here)
    refused(blendfilter(*evaluation(prompts="mine")), "internal.j2", "'qestion'", "may read", "question")
    untouched(here, before, indexed=True)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("nowhere:Mine", "no module 'nowhere'"),
        ("json:Mine", "no class 'Mine'"),
        ("json:JSONDecoder", "is no dspy.Module"),
    ],
)
def test_a_method_of_ones_own_that_is_none(blendfilter: Command, here: Path, method: str, said: str) -> None:
    before = tree(here)
    refused(blendfilter(*evaluation(method=method)), said)
    untouched(here, before, indexed=(here / "cache").exists())


def test_without_takes_queries_of_blendfilter_and_leaves_one(blendfilter: Command, here: Path) -> None:
    before = tree(here)
    refused(blendfilter(*evaluation(without="q,q_ex,q_in")), "at least one of q, q_ex and q_in must stay")
    refused(blendfilter(*evaluation(without="q", method="cot-retrieval")), "--without is for blendfilter")
    untouched(here, before)


def test_two_sources_of_passages_or_none(blendfilter: Command, here: Path) -> None:
    before = tree(here)
    refused(blendfilter(*evaluation(index="made")), "--corpus and --index", "give one")
    refused(blendfilter(*evaluation(corpus=None)), "blendfilter retrieves", "--corpus FILE", "--index DIR")
    told = blendfilter("ask", "Who?", "--lm", "offline", "--corpus", "pooled")
    refused(told, "--corpus pooled", "eval")
    untouched(here, before)


# models


def test_no_key_where_no_address_is_given(blendfilter: Command, here: Path) -> None:
    before = tree(here)
    told = blendfilter(*evaluation(lm="openai/gpt-4o-mini"))
    refused(told, "openai/gpt-4o-mini wants a key", "OPENAI_API_KEY", "--api-base")
    untouched(here, before)


def test_no_model_named_at_an_address(blendfilter: Command, here: Path) -> None:
    before = tree(here)
    refused(blendfilter(*evaluation(lm=None, api_base=NOBODY)), "which model", NOBODY, "--lm")
    refused(blendfilter(*evaluation(lm="llama", api_base="localhost:8000")), "no address", "http://host:port/v1")
    refused(blendfilter(*evaluation(lm="llama")), "'llama' names no provider", "--api-base")
    untouched(here, before)


@pytest.mark.parametrize(
    "words", [evaluation(lm="m", api_base=NOBODY), ["ask", "Who?", "--lm", "m", "--api-base", NOBODY]]
)
def test_a_server_that_is_not_there(blendfilter: Command, here: Path, words: list[object]) -> None:
    before = tree(here)
    started = time.monotonic()
    told = blendfilter(*words)
    assert time.monotonic() - started < 10
    refused(told, "no model server answers", NOBODY, "start it", notices=int(words[0] == "ask"))
    untouched(here, before, indexed=True)


def test_a_refused_key(
    blendfilter: Command, here: Path, served: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says the key back; nobody is shown it, and no file holds it."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    server = served(behave="unauthorized")
    before = tree(here)
    told = blendfilter(*evaluation(lm="openai/m", api_base=server.url))
    refused(told, "refuses the key", "401", server.url, "check the key")
    assert "[key]" in told.error, "the server did say the key back"
    untouched(here, before, indexed=True)


def test_a_model_that_is_not_served(blendfilter: Command, here: Path, served: Callable[..., Server]) -> None:
    server = served(behave="no-model")
    before = tree(here)
    refused(blendfilter(*evaluation(lm="mimi", api_base=server.url)), "mimi", "does not serve", "--lm")
    untouched(here, before, indexed=True)  # so the next try, with the right name, finds no run of other settings


def test_a_context_that_is_too_long(blendfilter: Command, here: Path, served: Callable[..., Server]) -> None:
    """That question's error, with its stage; the run goes on, ends with 1 and the count, and asks it again."""
    lines(here / "long.jsonl", [ROWS[0], {**ROWS[1], "question": f"{MARKER} {ROWS[1]['question']}"}, ROWS[2]])
    words = evaluation(data="long.jsonl", lm="m", api_base=served(behave="context", reply="offline").url)
    told = blendfilter(*words)
    assert told.code == 1
    assert told.error.startswith("blendfilter: 1 of 3 questions ended in an error; the same command asks ")
    assert "Traceback" not in told.err + told.out
    rows = [json.loads(line) for line in (here / "run/predictions.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["one", "two", "three"]
    assert rows[0]["error"] is rows[2]["error"] is None
    assert rows[1]["error"]["kind"] == "context_too_long"
    assert rows[1]["error"]["stage"] in ("external", "internal", "topic", "check")
    assert rows[1]["answer"] is None
    metrics = json.loads((here / "run/metrics.json").read_text())
    assert (metrics["n"], metrics["flags"]["errors"]) == (3, 1)
    assert "context_too_long" in told.out
    healthy = served(reply="offline")
    again = blendfilter(*evaluation(data="long.jsonl", lm="m", api_base=healthy.url))
    assert again.code == 0, again
    assert all(MARKER in prompt for prompt in healthy.stats()["prompts"]), "the others were not asked again"


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"reply": ""}, "empty_reply"),
        ({"behave": "empty-at-cap"}, "empty_reply"),
        ({"reply": "word " * 600}, "cut_reply"),
        ({"reply": "Zxqv blorp glim."}, "unparseable_ids"),
        ({"reply": "7, 9 and 12"}, "unparseable_ids"),
    ],
    ids=["nothing", "nothing at the cap", "cut off", "gibberish", "ids out of range"],
)
def test_a_model_that_misbehaves_is_counted(
    blendfilter: Command, here: Path, served: Callable[..., Server], settings: dict[str, str], flag: str
) -> None:
    told = blendfilter(*evaluation(lm="m", api_base=served(**settings).url))
    assert told.code == 0, told
    flags = json.loads((here / "run/metrics.json").read_text())["flags"]
    assert flags[flag] >= 3, flags
    assert flags["errors"] == 0
    assert flag in told.out
    rows = [json.loads(line) for line in (here / "run/predictions.jsonl").read_text().splitlines()]
    for branch in (branch for row in rows for branch in row["branches"].values()):
        assert branch["ids_read"] == "unparseable"
        assert branch["kept"] == branch["retrieved"], "the whole branch is kept"
    if flag != "unparseable_ids":
        assert {"empty_reply": "unparseable_ids", "cut_reply": "empty_reply"}[flag] in flags


def test_an_empty_reply_is_never_called_unparseable(
    blendfilter: Command, here: Path, served: Callable[..., Server]
) -> None:
    assert blendfilter(*evaluation(method="cot-retrieval", lm="m", api_base=served(reply="").url)).code == 0
    flags = json.loads((here / "run/metrics.json").read_text())["flags"]
    assert flags == dict.fromkeys(flags, 0) | {"empty_reply": 6}  # two calls for each of three questions


# runs


@pytest.fixture
def done(blendfilter: Command, here: Path) -> Path:
    """A finished run in `run`."""
    assert blendfilter(*evaluation()).code == 0
    return here / "run"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 3}, "method.arguments.k was 5, now 3"),
        ({"limit": 2}, "data.n was 3, now 2"),
        ({"method": "cot-retrieval"}, "method.name was 'blendfilter', now 'cot-retrieval'"),
        ({"temperature": 0.7}, "lm.parameters.temperature was 0.0, now 0.7"),
        ({"label": "b"}, "lm.label was None, now 'b'"),
        ({"seed": 4}, "seed was 0, now 4"),
        ({"without": "q_in"}, "method.arguments.without was '', now 'q_in'"),
        ({"task": "twowiki"}, "task was 'hotpotqa', now 'twowiki'"),
        ({"lm": "m", "api_base": NOBODY}, "lm.name was 'offline', now 'm'"),
    ],
)
def test_a_run_made_by_other_settings(
    blendfilter: Command, done: Path, here: Path, options: dict[str, object], said: str
) -> None:
    before = tree(done)
    refused(
        blendfilter(*evaluation(**options)), "run holds a run with other settings", said, "another folder", "--reuse"
    )
    assert tree(done) == before


def test_a_run_made_by_other_passages_or_prompts(blendfilter: Command, done: Path, here: Path) -> None:
    lines(here / "more.jsonl", [*PASSAGES, {"id": "g", "title": "Ormskerry", "text": "Ormskerry is an island."}])
    refused(blendfilter(*evaluation(corpus="more.jsonl")), "retrievers")
    (here / "mine/blendfilter").mkdir(parents=True)
    (here / "mine/blendfilter/topic.j2").write_text("{{ instructions }}\nQuestion: {{ question }}\nTopic:")
    refused(blendfilter(*evaluation(prompts="mine")), "method.program was ")


def test_a_folder_that_holds_something_else(blendfilter: Command, here: Path) -> None:
    (here / "run").mkdir()
    (here / "run/thesis.tex").write_text("All of it.")
    before = tree(here)
    refused(blendfilter(*evaluation()), "run is not empty and holds no run", "new folder")
    untouched(here, before, indexed=True)
    (here / "file").write_text("x")
    refused(blendfilter(*evaluation(run="file")), "file", "not a folder")
    assert (here / "file").read_text() == "x"


def test_a_second_writer(blendfilter: Command, done: Path) -> None:
    before = tree(done)
    code = "import sys; from blendfilter import Journal; j = Journal(sys.argv[1]); print('open', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(done)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        refused(blendfilter(*evaluation()), "another process is writing to", "journal.jsonl", "wait for it")
    finally:
        holder.kill()
        holder.communicate()
    assert tree(done) == before
    assert blendfilter(*evaluation()).code == 0, "the lock went with its process"


def test_a_replay_that_its_journal_cannot_serve(blendfilter: Command, done: Path) -> None:
    """One call taken out of the journal: the replay names the question and the stage that asks for it."""
    rows = [json.loads(line) for line in (done / "predictions.jsonl").read_text().splitlines()]
    stage, key = rows[1]["calls"][-1]
    assert stage == "short_answer"
    journal = done / "journal.jsonl"
    kept = [line for line in journal.read_text().splitlines(keepends=True) if f'"key":"{key}"' not in line]
    journal.write_text("".join(kept))
    before = tree(done)
    told = blendfilter(*evaluation(), "--replay")
    refused(told, "question 'two'", "stage 'short_answer'", "without --replay")
    assert tree(done) == before


def test_a_replay_of_no_run(blendfilter: Command, here: Path) -> None:
    before = tree(here)
    refused(blendfilter(*evaluation(), "--replay"), "no journal at run/journal.jsonl", "replay")
    untouched(here, before, indexed=True)


def test_a_damaged_line_in_the_middle_of_a_journal(blendfilter: Command, done: Path) -> None:
    journal = done / "journal.jsonl"
    found = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([found[0], b"\x00\x00garbage\n", *found[1:]]))
    before = tree(done)
    refused(blendfilter(*evaluation()), "journal.jsonl, line 2", "not a journal record", "cut the file before it")
    refused(blendfilter("report", "run"), "journal.jsonl, line 2")
    assert tree(done) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", "{"),
        ("run.json", "[]"),
        ("run.json", "{}"),
        ("metrics.json", "nothing"),
        ("metrics.json", "[1]"),
        ("predictions.jsonl", "{}\n"),
        ("predictions.jsonl", "oops\n"),
    ],
)
def test_a_damaged_file_of_a_run(blendfilter: Command, done: Path, name: str, content: str) -> None:
    (done / name).write_text(content)
    before = tree(done)
    refused(blendfilter("report", "run"), name, "restore it" if name == "run.json" else "run")
    assert tree(done) == before


def test_a_report_of_a_run_that_is_not_finished(blendfilter: Command, done: Path) -> None:
    (done / "metrics.json").unlink()
    predictions = done / "predictions.jsonl"
    predictions.write_text("".join(predictions.read_text().splitlines(keepends=True)[:2]))
    refused(blendfilter("report", "run"), "run is not finished", "2 of 3", "run the same command again")
    refused(blendfilter("compare", "run", "run"), "run is not finished")


def test_a_folder_that_is_no_run(blendfilter: Command, here: Path) -> None:
    (here / "empty").mkdir()
    refused(blendfilter("report", "empty"), "no run there", "empty/run.json")


def test_runs_that_cannot_be_compared(blendfilter: Command, done: Path) -> None:
    assert blendfilter(*evaluation(run="fewer", limit=2)).code == 0
    refused(blendfilter("compare", "run", "fewer"), "different questions", "'three'", "only in 'run'")
    refused(blendfilter("compare", "run"), "at least two runs")
    refused(blendfilter("compare", "run", "run", "--metric", "rouge"), "no 'rouge'", "em, f1")


@pytest.mark.parametrize("made", ["empty folder", "file", "other folder"])
def test_an_index_that_is_none(blendfilter: Command, here: Path, made: str) -> None:
    if made == "file":
        (here / "index").write_text("x")
    else:
        (here / "index").mkdir()
    if made == "other folder":
        (here / "index/notes.txt").write_text("x")
    before = tree(here)
    refused(blendfilter("search", "index", "pier"), "index is not an index", "build one")
    refused(blendfilter(*evaluation(corpus=None, index="index")), "index is not an index", "build one")
    untouched(here, before)


def test_an_index_where_something_is_already(blendfilter: Command, here: Path) -> None:
    (here / "made").mkdir()
    (here / "made/thesis.tex").write_text("All of it.")
    before = tree(here)
    refused(blendfilter("index", "corpus.jsonl", "--out", "made"), "made", "not an index", "another folder")
    refused(blendfilter("index", "corpus.jsonl", "--out", "made", "--overwrite"), "made", "not an index")
    untouched(here, before)
    shutil.rmtree(here / "made")
    assert blendfilter("index", "corpus.jsonl", "--out", "made").code == 0
    refused(blendfilter("index", "corpus.jsonl", "--out", "made"), "already", "overwrite")


def test_a_question_that_is_also_a_demonstration(blendfilter: Command, here: Path) -> None:
    shown = Wording.of("hotpotqa").demos[0].question
    lines(here / "leak.jsonl", [ROWS[0], {"id": "leak", "question": shown.upper(), "answer": "x"}])
    before = tree(here)
    told = blendfilter(*evaluation(data="leak.jsonl"))
    refused(told, "question 'leak'", "also a demonstration of", "take it out")
    untouched(here, before, indexed=True)


# the loop thread


def test_forward_called_on_the_loop_thread() -> None:
    module = BlendFilter(as_retriever(lambda query, k: ["A | b"]), k=1)

    async def on_the_loop() -> dspy.Prediction:
        return module(question="Who?")

    with pytest.raises(UseAcall, match=r"BlendFilter was called .* on the loop thread: write `await .*acall"):
        bridge.submit(on_the_loop()).result(10)


def test_a_method_of_ones_own_that_calls_forward_on_the_loop_thread(blendfilter: Command, here: Path) -> None:
    (here / "wrapping.py").write_text(
        "import dspy, blendfilter as bf\n"
        "class Wrapping(dspy.Module):\n"
        "    def __init__(self, index):\n"
        "        super().__init__()\n"
        "        self.inner = bf.ChainOfThought(index)\n"
        "    async def aforward(self, question):\n"
        "        return self.inner(question=question)\n"
    )
    before = tree(here)
    sys.modules.pop("wrapping", None)
    told = blendfilter(*evaluation(method="wrapping:Wrapping"))
    refused(told, "ChainOfThought was called synchronously on the loop thread", "await", "acall")
    after = {name: data for name, data in tree(here).items() if "__pycache__" not in name}
    assert {name for name in after if not name.startswith("cache")} == set(before)


# through the shell


def test_the_shell_sees_the_same(here: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "blendfilter.cli", *map(str, evaluation(data="gone.jsonl"))],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert re.fullmatch(r"blendfilter: no file 'gone\.jsonl': check the path\n", ended.stderr)
