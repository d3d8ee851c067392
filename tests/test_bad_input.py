"""Bad input, case by case: one clear line (what, where, the next move), the exit code, and nothing left half-written.

Every case goes through the command line as a user would meet it; `tree` holds the folder before and after.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from refusing import EVAL, PASSAGES, ROWS, evaluation, lines, refused, untouched, world
from small_world import Command, tree


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return world(tmp_path, monkeypatch)


@pytest.fixture
def blendfilter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path) -> Command:
    return Command(monkeypatch, capsys)


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
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1, got 0"),
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


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Mine:\n    pass\n", "is no dspy.Module"),
        ("def Mine(index):\n    return index\n", "makes no dspy.Module"),
        ("def Mine(index):\n    return 1 / 0\n", "cannot be made (ZeroDivisionError: division by zero): mend it"),
        ("import nowhere_at_all\n", "no module 'nowhere_at_all' for method 'broken_methods:Mine'"),
        ("class Mine(:\n", "module 'broken_methods' cannot be imported (SyntaxError: "),
        ("import dspy\nclass Mien(dspy.Module):\n    pass\n", "Did you mean 'Mien'?"),
    ],
)
def test_a_method_of_ones_own_with_a_mistake(blendfilter: Command, here: Path, code: str, said: str) -> None:
    (here / "broken_methods.py").write_text(code)
    sys.modules.pop("broken_methods", None)
    refused(blendfilter(*evaluation(method="broken_methods:Mine")), said)
    assert not (here / "run").exists()


@pytest.mark.parametrize("option", [{"without": "q"}, {"prompts": "nowhere"}])
def test_a_class_of_ones_own_brings_its_own_prompts(
    blendfilter: Command, here: Path, option: dict[str, object]
) -> None:
    """What would have no effect is refused, not ignored."""
    (here / "own_prompted.py").write_text(
        "import dspy\nclass Mine(dspy.Module):\n    def forward(self, question):\n"
        "        return dspy.Prediction(answer='x')\n"
    )
    sys.modules.pop("own_prompted", None)
    said = ("--without and --prompts are for our own methods", "own_prompted:Mine brings its own")
    refused(blendfilter(*evaluation(method="own_prompted:Mine", **option)), *said)
    assert not (here / "run").exists()
    told = blendfilter("ask", "Who?", "--lm", "offline", "--method", "own_prompted:Mine", "--without", "q")
    refused(told, *said, notices=len(told.notices) - 1)


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


# through the shell


def test_the_shell_sees_the_same(here: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "blendfilter.cli", *map(str, evaluation(data="gone.jsonl"))],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert re.fullmatch(r"blendfilter: no file 'gone\.jsonl': check the path\n", ended.stderr)
