"""What reads text from a model, a passage or a file takes time in line with its length, whatever the text is."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from blendfilter import metrics
from blendfilter.evaluation.rescoring import read_verdict as read_judges_verdict
from blendfilter.filters.cdit import read_comparison, read_verdict
from blendfilter.filters.filco import unquoted
from blendfilter.filters.ids import negates, read_ids, restates_range
from blendfilter.filters.judgements import read_judgement, unreached
from blendfilter.lm.journaled import is_refusal
from blendfilter.lm.offline import read
from blendfilter.lm.profiles import reply_so_far, split_thinking
from blendfilter.modules.blendfilter import blend, without_conclusion
from blendfilter.modules.multi_hop import (
    FOLLOW_UPS,
    THOUGHTS_AND_ACTIONS,
    conclusion,
    forced_answer,
    read_action,
    read_hop,
    second_reply,
    without_echo,
)
from blendfilter.oracles.measures import lexical, strinc
from blendfilter.prompting import _options, _own_lines
from blendfilter.quoting import LONGEST_REPLY, end_of, own_lines, own_words, without_reports
from blendfilter.replies import short_reply, short_reply_so_far, topic, true_or_false, unwrapped, whole_reply
from blendfilter.report import doctor as reply_counts
from blendfilter.report.doctor import numbered_lines
from blendfilter.report.trace import reasons_of
from blendfilter.retrieval.documents import chunk
from blendfilter.text import choices, normalize_answer, sentences

LENGTH = 200_000
SECONDS = 3.0
"""Of processor time: more than ten times what the slowest takes here; what is quadratic takes minutes."""

SHAPES = [
    "0", "0, ", "Ids: 0, 1\n", "knowledge 0: a\n", "Passage 1 says: ", "a ", " ", "\n", ",", "(((", "[", '"a ', "“",
    "'a ", "```\n", "> 0\n", "(A) ", "true ", "not ", "So the answer is ", "search[", "<think>", "\ue000é",
    "<", "analysis", "<|channel|>", "<|end|>", "<|start|>assistant", "<reasoning>",
]  # fmt: skip
MORE_SHAPES = [
    "12 ", "0-4 ", "1. ", "Ids: ", "a", " \n\t", "[THINK]", '"', "'", "`", "‘a ", "(A) x (B) ", "might be ", "B is ",
    "| ", "supports ", "Follow-up: ", "</think>", "**", "\u2028", "字", '{"ids": [', "\\", "!? ", "says ", "if ",
    "0: relevant\n", "; ids: ", "passage 1 says that I must Finish[",
]  # fmt: skip
BEHIND = ["answer", "A", "True", "Passage 2 says", "Ids:", '"', "```", "("]
"""Openings behind which a run of white space, or of digits, is read."""
RUNS = [" ", "\n", "0", "'"]


def texts(shapes: list[str], length: int) -> list[str]:
    """Each shape over and over, and then once more with an end that is of another kind."""
    whole = [(shape * length)[:length] for shape in shapes]
    return [*whole, *(text[:-8] + "\nx 0?" for text in whole)]


def runs(length: int) -> list[str]:
    return [opening + run * length for opening in BEHIND for run in RUNS]


LINES = ["Light of 1884 | It burned for 30 years.", "Orm | " + "It is a town by the sea. " * 40]


def measured(metric: metrics.Metric, text: str) -> float:
    return metric(text, ["the keeper", "B", "yes"])


def offline(prompt: str) -> Callable[[str], Any]:
    return lambda text: read(prompt.replace("@", " ".join(text.split())).replace("#", text))


READERS: dict[str, Callable[[str], Any]] = {
    "ids": lambda text: read_ids(text, 5),
    "ids of many": lambda text: read_ids(text, 300),
    "ids of a cut reply": lambda text: read_ids(text, 5, cut=True),
    "negates": negates,
    "restates": lambda text: restates_range(text, 5),
    "judgement": lambda text: read_judgement(text, 5),
    "unreached": lambda text: unreached(text, 5),
    "written out": lambda text: unquoted(text, LINES),
    "own words": lambda text: own_lines(end_of(text), own_words(end_of(text)).words),
    "own sentences": without_reports,
    "verdict": read_verdict,
    "true or false": true_or_false,
    "comparison": lambda text: read_comparison(text, ("subject", "predicate")),
    "judge of answers": read_judges_verdict,
    "short reply": short_reply,
    "short reply so far": short_reply_so_far,
    "unwrapped": unwrapped,
    "topic": topic,
    "whole reply": whole_reply,
    "options": choices,
    "options on a line": _options,
    "own lines": _own_lines,
    "normalised": normalize_answer.__wrapped__,
    "hop": read_hop,
    "action": read_action,
    "forced": lambda text: (forced_answer(FOLLOW_UPS, 3, text), forced_answer(THOUGHTS_AND_ACTIONS, 3, text)),
    "second hop": lambda text: [second_reply(form, 3, text) for form in (FOLLOW_UPS, THOUGHTS_AND_ACTIONS)],
    "echo": lambda text: (without_echo(text, "Who?"), without_echo(text, text), without_echo(text, text[:999])),
    "conclusion": conclusion,
    "without conclusion": without_conclusion,
    "blended": lambda text: blend(text, "Who?"),
    "thinking": split_thinking,
    "reply so far": reply_so_far,
    "refusal": is_refusal,
    "seen": lambda text: [
        pattern.search(text[:LONGEST_REPLY])
        for pattern in (reply_counts._MARKDOWN, reply_counts._ALOUD, reply_counts._NEXT)
    ],
    "shown": numbered_lines,
    "reasons": lambda text: reasons_of(text, 5),
    "yes or no": metrics.verdict,
    "label": metrics.label,
    "truth": metrics.truth,
    "choice": metrics.choice,
    **{name: partial(measured, metric) for name, metric in metrics.METRICS.items()},
    "strinc": lambda text: strinc(text, ["old mill"]),
    "lexical": lambda text: lexical(text, ["Who burned the mill?"]),
}  # fmt: skip
SLOWER: dict[str, Callable[[str], Any]] = {
    "sentences": sentences,
    "chunks": chunk,
    "offline: question": offline("Knowledge:\nOrm | A pier.\nQuestion: @\nAnswer:"),
    "offline: passage": offline("Knowledge:\nOrm | @\nQuestion: When did Orm Pier open?\nAnswer:"),
    "offline: judged passage": offline("Rules:\n\nPassage: @\nQuestion: When did Orm Pier open?\nVerdict:"),
    "offline: context": offline("Context: #\nQuestion: When did Orm Pier open?\nAnswer:"),
}
"""The same for whole passages and files, and for the rule-based reader, which does more with each word."""


def longest(reader: Callable[[str], Any], texts: list[str]) -> tuple[float, str]:
    took = []
    for text in texts:
        start = time.thread_time()
        reader(text)
        took.append((time.thread_time() - start, f"{text[:20]!r}…{text[-6:]!r}"))
    return max(took)


@pytest.mark.parametrize("name", READERS)
def test_a_long_reply_is_read_at_once(name: str) -> None:
    seconds, text = longest(READERS[name], [*texts(SHAPES, LENGTH)[: len(SHAPES)], "answer" + " " * LENGTH])
    assert seconds < SECONDS, text


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOWER)
def test_a_long_passage_is_read_in_time(name: str) -> None:
    seconds, text = longest(SLOWER[name], [*texts([*SHAPES, *MORE_SHAPES], LENGTH), *runs(LENGTH)])
    assert seconds < 10 * SECONDS, text


WORDS_READ = (
    "12@word @y @Ids: @So the answer is @None @relevant @irrelevant @knowledge @passage 2 says @not @true @Answer: "
    "@Verdict: @```@0, @1. @- @all @except @Follow-up: @Finish[@\r\n@I ignored the injected line "
)
CLASSES = [*" \n\t\u00a0\u20280aAé字\u0301\u200b😀,.:;!?-—|/\\=()[]{}<>\"'“”’`*_#~$%•✓", *WORDS_READ.split("@")]
"""Classes of characters, and words that readers look for."""
OPENINGS = ["", "a", "0", "\n", '"', "(", "word", "answer", "Ids: 1", "Answer: ", "- "]
RUNS_BEHIND = [
    ("word", "\n"),
    ("word", " "),
    ("answer", " "),
    ("answer", "\n"),
    ("verdict", "\n"),
    ("Ids: 1, 2", "\n"),
    ("; 3 are", " "),
    ("", "$"),
    ("a\n", "a"),
    ("", "y "),
    ("", "b "),
    ("```\na", "\n"),
    ("passage", "\n"),
    ("True", "\n"),
]
"""Runs that some reader once read again from each of their characters: (what stands before, what is repeated)."""


def is_in_line(reader: Callable[[str], Any], opening: str, unit: str, *, alternating: bool = False) -> bool:
    """Whether twice the text takes at most 2.5 times the processor time, the least of some tries.

    8,000 characters that are read once take some 10 ms, and read again from each of them 100 ms or seconds.
    """
    unit = opening + unit if alternating else unit
    half, whole = (opening + unit * (length // len(unit)) + "x" for length in (4_000, 8_000))
    least = {half: float("inf"), whole: float("inf")}
    for attempt in range(12):
        for text in (whole, half):
            own_words.cache_clear()
            start = time.thread_time()
            reader(text)
            least[text] = min(least[text], time.thread_time() - start)
        if least[whole] <= max(0.02, 2.5 * least[half]):
            return True
        if attempt and least[whole] > 0.25:
            break
    return False


QUICK = [name for name in READERS if name not in metrics.METRICS]


@pytest.mark.parametrize("name", QUICK)
def test_twice_as_long_a_run_takes_twice_as_long(name: str) -> None:
    assert [run for run in RUNS_BEHIND if not is_in_line(READERS[name], *run)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_twice_as_long_a_text_of_any_shape_takes_twice_as_long(name: str) -> None:
    shapes = [(opening, unit, both) for opening in OPENINGS for unit in CLASSES for both in (False, True)]
    reader = READERS[name]
    assert [shape for shape in shapes if not is_in_line(reader, *shape[:2], alternating=shape[2])] == []
