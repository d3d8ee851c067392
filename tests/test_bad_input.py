"""Bad input, case by case: one clear line (what, where, the next move), the exit code, and nothing left half-written.

Every case goes through the command line as a user would meet it; `tree` holds the folder before and after.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from refusing import EVAL, PASSAGES, ROWS, evaluation, lines, refused, untouched, world
from small_world import Command, tree


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return world(tmp_path, monkeypatch)


WRONG: list[tuple[list[object], tuple[str, ...]]] = [
    # files
    (evaluation(data="gone.jsonl"), ("no file 'gone.jsonl'",)),
    (evaluation(corpus="gone.jsonl"), ("no ", "gone.jsonl")),
    (evaluation(prompts="gone"), ("no ", "gone")),
    (["index", "gone.jsonl", "--out", "made"], ("no ", "gone.jsonl")),
    # rows
    (evaluation(data="broken.jsonl"), ("broken.jsonl, line 3", "does not parse", "one JSON object")),
    (evaluation(data="empty.jsonl"), ("empty.jsonl has no questions",)),
    (evaluation(data="blank.jsonl"), ("blank.jsonl, line 2", "'blank' is empty")),
    (evaluation(corpus="pooled"), ("no paragraphs", "corpus")),
    (["index", "empty.jsonl", "--out", "made"], ("empty.jsonl", "no passages")),
    (["index", "twice.jsonl", "--out", "made"],
     ("twice.jsonl, line 7", "id 'b' was used before, at twice.jsonl, line 2", "must differ")),
    # numbers
    (evaluation(method="cot-retrieval", k=0), ("k is 0: give a whole number of 1 or more",)),
    (evaluation(temperature=3), ("--temperature", "less than or equal to 2")),
    (evaluation(max_bad_replies="nan"), ("max-bad-replies",)),
    (evaluation(k="five"), ("--k", "valid integer", "(blendfilter eval --help ")),
    # names
    ([*EVAL, "--krypton", "5"], ("--krypton", "(blendfilter eval --help ")),
    (evaluation(task="hotpotq"), ("no task 'hotpotq'", "Did you mean 'hotpotqa'?")),
    (evaluation(lm="opnai/gpt-4o-mini"), ("no provider 'opnai'", "Did you mean 'openai'?")),
    (evaluation(method="json:Mine"), ("no class 'Mine'",)),
    # templates
    (evaluation(prompts="unread"), ("no prompt 'blendfilter/chek'", "Did you mean 'blendfilter/check'?", "unread")),
    (evaluation(prompts="unknown"), ("internal.j2", "'qestion'", "may read", "question")),
    # what does not go together
    (evaluation(without="q,q_ex,q_in"), ("at least one of q, q_ex and q_in must stay",)),
    (evaluation(without="q", method="cot-retrieval"), ("--without is for blendfilter",)),
    (evaluation(index="made"), ("--corpus and --index", "give one")),
    (evaluation(corpus=None), ("blendfilter retrieves", "--corpus FILE", "--index DIR")),
    (["ask", "Who?", "--lm", "offline", "--corpus", "pooled"], ("--corpus pooled", "eval")),
    (["ask", " ", "--lm", "offline", "--method", "direct"], ("question",)),
]  # fmt: skip


@pytest.mark.parametrize(("words", "errors"), WRONG, ids=lambda value: " ".join(map(str, value))[-60:])
def test_one_line_says_what_is_wrong_and_nothing_is_written(
    blendfilter: Command, here: Path, words: list[object], errors: tuple[str, ...]
) -> None:
    (here / "broken.jsonl").write_text(json.dumps(ROWS[0]) + "\n\n" + '{"id": "two", "question": \n')
    (here / "empty.jsonl").write_text("\n\n")
    lines(here / "blank.jsonl", [ROWS[0], {"id": "blank", "question": "\n\t", "answer": "x"}])
    lines(here / "twice.jsonl", [*PASSAGES, {**PASSAGES[1], "text": "Another text."}])
    for folder, template, text in (
        ("unread", "chek", "{{ question }}"),
        ("unknown", "internal", "{{ instructions }}\nQuestion: {{ qestion }}\nPassage:"),
    ):
        (here / folder / "blendfilter").mkdir(parents=True)
        (here / folder / "blendfilter" / f"{template}.j2").write_text(text)
    before = tree(here)
    refused(blendfilter(*words), *errors)
    untouched(here, before, indexed=(here / "cache").exists())


# numbers


def test_k_above_the_corpus_works_and_says_so(blendfilter: Command, here: Path) -> None:
    outcome = blendfilter(*evaluation(k=50))
    assert outcome.code == 0
    (notice,) = [line for line in outcome.notices if line.startswith("blendfilter: ")]
    assert "-k 50" in notice
    assert "at most 6 passages" in notice
    rows = [json.loads(line) for line in (here / "run/predictions.jsonl").read_text().splitlines()]
    assert all(1 <= len(row["branches"]["q"]["retrieved"]) <= 6 for row in rows)
    assert blendfilter("index", "corpus.jsonl", "--out", "made").code == 0
    outcome = blendfilter("search", "made", "pier harbour engineer", "--k", 50)
    assert (outcome.code, len(outcome.out.splitlines())) == (0, 6)
    assert "at most 6 passages" in outcome.error


# names


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def Mine(index):\n    return 1 / 0\n", "cannot be made (ZeroDivisionError: division by zero): mend it"),
        ("class Mine(:\n", "module 'broken_methods' cannot be imported (SyntaxError: "),
        ("import dspy\nclass Mien(dspy.Module):\n    pass\n", "Did you mean 'Mien'?"),
    ],
)
def test_a_method_of_ones_own_with_a_mistake(blendfilter: Command, here: Path, code: str, error: str) -> None:
    (here / "broken_methods.py").write_text(code)
    sys.modules.pop("broken_methods", None)
    refused(blendfilter(*evaluation(method="broken_methods:Mine")), error)
    assert not (here / "run").exists()
