"""From Python, as a user of DSPy writes it: names for objects, examples, GEPA's metric, a tool, any callable."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest
from dspy.utils import DummyLM

import blendfilter as bf
from blendfilter.errors import BadArgument
from blendfilter.filters.filco import FilCoFilter
from blendfilter.records import Passage

ROOT = Path(__file__).parents[1]
TEXTS = [
    "Oddle Mill | Oddle Mill was built by Jon Brask in 1790.",
    "Jon Brask | Jon Brask was born in Vell.",
    "Tane | The river Tane is 40 km long.",
]
EXAMPLES = [
    dspy.Example(question="Who built Oddle Mill?", answer="Jon Brask", gold_titles={"Oddle Mill"}).with_inputs(
        "question"
    ),
    dspy.Example(question="Where was Jon Brask born?", answers=["Vell", "in Vell"]).with_inputs("question"),
]


@pytest.fixture(scope="module")
def index() -> bf.BM25:
    return bf.BM25.build(TEXTS)


def test_what_is_no_module_prints_as_one_line_too(tmp_path: Path) -> None:
    with bf.Journal(tmp_path) as journal:
        assert repr(journal) == f"Journal('{tmp_path}/journal.jsonl', 'auto')"
    assert [repr(bf.Prompts(given)) for given in (None, "paper")] == ["Prompts()", "Prompts('paper')"]
    assert repr(bf.Oracle("strinc", task="nq")) == "Oracle('strinc', task='nq', threshold=0.0)"


# --- names, as on the command line ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [bf.BlendFilter, bf.Direct, bf.ReAct, bf.RALM, bf.IterRetGen, bf.SelfConsistency])
def test_a_filter_and_a_task_have_names(method: Any, index: bf.BM25) -> None:
    named = method(index, filter="filco", task="strategyqa")
    assert isinstance(named.select, FilCoFilter)
    assert named.arguments() == method(index, filter=FilCoFilter()).arguments()


def test_a_filter_by_name_speaks_as_its_method_does(index: bf.BM25) -> None:
    adapter = dspy.ChatAdapter()
    own, named = bf.BlendFilter(index, task="strategyqa"), bf.BlendFilter(index, task="strategyqa", filter="knowledge")
    assert own.dump_state() == named.dump_state()
    assert bf.BlendFilter(index, filter="one-call", adapter=adapter).select.judge.adapter is adapter


def test_the_questions_of_ones_own_have_a_wording(index: bf.BM25) -> None:
    assert bf.Direct(index, task="qa").dump_state() == bf.Direct(index, task="hotpotqa").dump_state()


def test_an_unknown_name_is_given_the_nearest(index: bf.BM25) -> None:
    with pytest.raises(bf.BlendFilterError, match=r"no filter 'filko'\. Did you mean 'filco'\?"):
        bf.Direct(index, filter="filko")
    with pytest.raises(bf.BlendFilterError, match=r"no task 'hotpoqa'\. Did you mean 'hotpotqa'\?"):
        bf.BlendFilter(index, task="hotpoqa")


# --- examples ---------------------------------------------------------------------------------------------------------


def test_examples_are_questions(index: bf.BM25) -> None:
    questions = bf.load(EXAMPLES)
    assert [one.golden_answers for one in questions] == [("Jon Brask",), ("Vell", "in Vell")]
    assert questions[0].gold_titles == ("Oddle Mill",)
    assert bf.load("hotpotqa", questions.examples())[1].golden_answers == ("Vell", "in Vell")
    run = bf.evaluate(bf.Direct(index, k=1), EXAMPLES, lm="offline", progress=False)
    assert (run.name, len(run.rows), run.metrics["retrieval"]["q"]["recall"]) == ("direct-retrieval", 2, 1.0)


def test_a_run_without_a_folder_is_named_by_its_method(index: bf.BM25) -> None:
    class Mine(dspy.Module):
        def forward(self, question: str) -> dspy.Prediction:
            return dspy.Prediction(answer="Vell")

    a, b = (bf.evaluate(method, EXAMPLES, lm="offline", progress=False) for method in (Mine(), bf.Direct(index)))
    assert (a.name, b.name) == ("Mine", "direct-retrieval")
    assert bf.compare(a, b).n == 2


def test_numbers_of_numpys_are_settings_as_pythons_are(index: bf.BM25, tmp_path: Path) -> None:
    """A run of them is the run of Python's numbers: its settings, journal and rows are the same."""
    assert [passage.title for passage in index("mill", k=np.int64(1))] == ["Oddle Mill"]
    method = bf.SelfConsistency(index, k=np.int64(1), samples=np.int32(2))
    options: dict[str, Any] = {"lm": "offline", "run": tmp_path / "run", "progress": False}
    bf.evaluate(method, EXAMPLES, seed=np.int64(3), concurrency=np.int64(2), **options)
    before = (tmp_path / "run" / "journal.jsonl").read_bytes()
    bf.evaluate(bf.SelfConsistency(index, k=1, samples=2), EXAMPLES, seed=3, concurrency=2, **options)
    assert (tmp_path / "run" / "journal.jsonl").read_bytes() == before


# --- the metric of DSPy's optimisers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"), [(42, "42"), (0, "0"), (2.5, "2.5"), (True, "yes"), (False, "no"), ([6, 7], "7"), (42.0, "42")]
)
def test_the_metric_reads_an_answer_as_load_does(answer: Any, said: str) -> None:
    example = dspy.Example(question="6*7?", answer=answer).with_inputs("question")
    questions = bf.load("qa", [example])
    assert said in questions[0].golden_answers
    assert questions.metric(example, dspy.Prediction(answer=said)) == 1.0
    assert questions.metric(example, dspy.Prediction(answer="13")) == 0.0


def test_the_metric_says_what_was_wrong_where_gepa_asks() -> None:
    questions = bf.load(EXAMPLES)
    wrong, right = dspy.Prediction(answer="Orm"), dspy.Prediction(answer="Vell")
    gold = questions.examples()[1]
    assert questions.metric(gold, right) == 1.0
    assert questions.metric(EXAMPLES[1], right) == 1.0, "of a user's own example too"
    assert questions.metric(gold, wrong, trace=[]) is False
    told = questions.metric(gold, wrong, None, "direct", [])
    assert (told.score, told.feedback) == (0.0, "The answer was 'Orm'. The right answer is 'Vell' or 'in Vell'.")


def test_gepa_compiles_with_the_metric(index: bf.BM25) -> None:
    questions = bf.load(EXAMPLES)
    reflecting = DummyLM([{"response": "```\nAnswer with a name from the knowledge.\n```"}] * 20)
    optimiser = dspy.GEPA(metric=questions.metric, max_metric_calls=8, reflection_lm=reflecting, num_threads=1)
    with dspy.context(lm=bf.connect("offline")), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        examples = questions.examples()
        compiled = optimiser.compile(bf.Direct(index, k=1), trainset=examples, valset=examples)
    assert isinstance(compiled, bf.Direct)


# --- searching --------------------------------------------------------------------------------------------------------


def test_react_searches_with_an_index_as_its_tool(index: bf.BM25) -> None:
    tool = index.as_tool(k=1)
    assert tool.name == "search"
    assert "Title | text" in tool.desc
    assert list(tool.args) == ["query"]
    scripted = DummyLM(
        [
            {"next_thought": "Who built it?", "next_tool_name": "search", "next_tool_args": '{"query": "Oddle Mill"}'},
            {"next_thought": "No such word.", "next_tool_name": "search", "next_tool_args": '{"query": "zyx"}'},
            {"next_thought": "I know.", "next_tool_name": "finish", "next_tool_args": "{}"},
            {"reasoning": "It is in the passage.", "answer": "Jon Brask"},
        ]
    )
    react = dspy.ReAct("question -> answer", tools=[tool])
    with dspy.context(lm=scripted, adapter=dspy.ChatAdapter()):
        prediction = react(question="Who built Oddle Mill?")
    assert prediction.answer == "Jon Brask"
    assert prediction.trajectory["observation_0"] == TEXTS[:1]
    assert prediction.trajectory["observation_1"] == ["No passage matches this query: try other words."]
    rewritten = index.as_tool("mills", "Everything about mills.", k=2)
    assert (rewritten.name, rewritten.desc, len(rewritten(query="Jon Brask"))) == (
        "mills",
        "Everything about mills.",
        2,
    )


USER = """
import blendfilter as bf

def search(query: str, k: int) -> list[str]:
    return ["Oddle Mill | Built in 1790."][:k]

class Service:
    def __call__(self, question: str, top: int = 10) -> list[bf.Passage]:
        return [bf.Passage("Built in 1790."), bf.Passage("1", "Oddle Mill", "Built in 1790.")][:top]

def used(index: bf.Searcher) -> bf.BlendFilter:
    return bf.BlendFilter(index, k=3, filter="filco", task="qa")

for searcher in (search, Service(), lambda query, k: ["A mill."], bf.BM25.build(["A mill.", ("Title", "Text")])):
    used(searcher)
bf.Direct(search)
bf.ReAct(bf.BM25.build([{"title": "Mill", "text": "A mill."}]), k=2)
"""


@pytest.mark.slow
def test_type_checkers_accept_what_runs(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", tmp_path / "user.py"],  # with the cache of `make lint`
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.stdout == "Success: no issues found in 1 source file\n", checked.stdout + checked.stderr
    subprocess.run([sys.executable, tmp_path / "user.py"], cwd=ROOT, check=True)


def test_a_passage_of_a_text_alone_can_be_searched() -> None:
    assert bf.BM25.build([Passage("A mill."), Passage("A quay.")])("mill", k=1)[0].text == "A mill."


# --- paths ------------------------------------------------------------------------------------------------------------


def test_a_tilde_is_the_home_folder_wherever_a_path_is_taken(
    index: bf.BM25, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    (home / "q.jsonl").write_text('{"id": "a", "question": "Who built Oddle Mill?", "answer": "Jon Brask"}\n')
    (home / "c.jsonl").write_text('{"id": "1", "title": "Tane", "text": "The Tane is 40 km long."}\n')
    (home / "prompts").mkdir()
    questions = bf.load("qa", "~/q.jsonl")
    run = bf.evaluate(bf.Direct(index, k=1), questions, lm="offline", run="~/runs/a", progress=False)
    again = bf.evaluate(
        bf.Direct(index, k=1), questions, lm="offline", run="~/runs/b", reuse="~/runs/a", progress=False
    )
    assert (run.folder, again.folder) == (home / "runs/a", bf.Run("~/runs/b").folder)
    assert again.html(path="~/page.html") == home / "page.html"
    assert bf.BM25.build("~/c.jsonl", "~/index").path == home / "index"
    assert len(bf.open_index("~/index")) == len(bf.open_index(Path("~/index"))) == 1
    assert bf.Journal("~/runs/a", "replay").path == home / "runs/a/journal.jsonl"
    with pytest.raises(bf.BlendFilterError, match=str(home / "prompts")):
        bf.Prompts("~/prompts")
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (7, "is no dspy.Module but 7"),
        (bf.Direct, "the class Direct"),
        ("direct", "is no dspy.Module but 'direct'"),
        (bf.BM25.build(["Fell | A hill."]), "is no dspy.Module but <BM25: 1 passages"),
    ],
)
@pytest.mark.parametrize("does", [bf.evaluate, bf.plan])
def test_what_is_no_module_is_one_line(given: Any, words: str, does: Any) -> None:
    with pytest.raises(BadArgument, match=words):
        does(given, EXAMPLES, lm="offline")
