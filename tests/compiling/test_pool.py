"""Pools of examples: their rows, what is made of them, and programs whose demonstrations are the pool's alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import dspy
import pytest
from compiled import sample_index
from refusing import refused
from small_world import Command

from blendfilter.compiling.compile import Compiled, compile_program
from blendfilter.compiling.examples import relevance, relevance_examples, relevance_of_order
from blendfilter.compiling.optimisers import complete
from blendfilter.compiling.pool import ROWS, CDITRow, FilCoRow, KnowledgeRow, read_pool
from blendfilter.compiling.programs import Gain
from blendfilter.errors import BadData, EmptyData
from blendfilter.filters.cdit import PHI1, PHI2, CDITFilter, Rule
from blendfilter.filters.filco import FilCoFilter
from blendfilter.filters.knowledge import KnowledgeFilter, OneCallFilter
from blendfilter.records import Passage, Question
from blendfilter.retrieval.callables import as_retriever
from blendfilter.tasks.base import Questions
from blendfilter.tasks.loading import TASKS, load
from blendfilter.text import normalize_answer

FILCO: dict[str, Any] = {
    "question": "when was the pier of Ormskerry built",
    "knowledge": ["Ormskerry | A town. Its pier was built in 1871.", "Oddle | A village without a pier."],
    "keep": ["Its pier was built in 1871."],
    "golden_answers": ["1871"],
}
CDIT: dict[str, Any] = {
    "question": "Who opened the pier in 1871?",
    "passage": "Ormskerry | The mayor closed the pier in 1871.",
    "compared": {
        "subject": ["open", "the mayor", "alike"],
        "predicate": ["opened", "closed", "unlike"],
        "object": ["the pier", "the pier", "alike"],
        "attributive": ["-", "-", "unsaid"],
        "adverbial": ["in 1871", "in 1871", "alike"],
    },
    "reasons": {"predicate": "To close is not to open."},
}
KNOWLEDGE: dict[str, Any] = {
    "question": "Who was the mayor when the pier opened?",
    "knowledge": ["Oddle | A village.", "Pier | It opened in 1871.", "Mayors | Ada Lode was mayor from 1870."],
    "topic": "towns",
    "relevance": ["irrelevant - another place", "relevant - the year", "relevant - the mayor then"],
    "golden_answers": ["Ada Lode"],
}
GIVEN = {"filco": FILCO, "cdit": CDIT, "knowledge": KNOWLEDGE}


def test_a_row_fills_every_field_of_the_filters_it_is_for() -> None:
    filco = FilCoRow.model_validate(FILCO)
    cdit, knowledge = CDITRow.model_validate(CDIT), KnowledgeRow.model_validate(KNOWLEDGE)
    for student, example in (
        (FilCoFilter(), filco.example()),
        (FilCoFilter("passage"), filco.example("passage")),
        (CDITFilter("word"), cdit.example([PHI1])),
        (CDITFilter("components", ["phi1", "phi2"]), cdit.example([PHI1, PHI2])),
        (KnowledgeFilter(), knowledge.example()),
        (OneCallFilter(), knowledge.example()),
    ):
        assert all(complete(example, predictor) for _, predictor in student.named_predictors()), student


def test_sentences_and_passages_that_are_kept_by_number() -> None:
    row = FilCoRow.model_validate(FILCO)
    assert (row.example().ids, row.example().knowledge[1]) == ("1", "Ormskerry | Its pier was built in 1871.")
    assert row.example("passage").ids == "0"
    assert FilCoRow.model_validate({**FILCO, "keep": [], "golden_answers": []}).example().ids == "none"


def test_a_verdict_is_that_of_the_rules() -> None:
    row = CDITRow.model_validate(CDIT)
    assert (row.example([PHI1]).verdict, row.example([PHI2]).verdict) == ("False", "True")
    with pytest.raises(BadData, match="does not compare the unit, which a rule names"):
        row.example([Rule("mine", ("unit",), "Both give the same unit.")])


def test_what_is_judged_relevant_is_what_is_named() -> None:
    example = KnowledgeRow.model_validate(KNOWLEDGE).example()
    assert (example.ids, example.chosen) == ("1, 2", [1, 2])
    assert example.relevance.splitlines()[0] == "0: irrelevant - another place"
    assert example.judgement.endswith("Ids: 1, 2")


@pytest.mark.parametrize(
    ("kind", "row", "words"),
    [
        ("filco", {**FILCO, "keep": ["Its pier was built."]}, "which is no sentence of its knowledge"),
        ("filco", {**FILCO, "golden_answers": []}, "has no answer: give golden_answers"),
        ("filco", {name: FILCO[name] for name in FILCO if name != "golden_answers"}, "golden_answers: Field required"),
        ("cdit", {**CDIT, "reasons": {}}, "predicate is unlike: say why under reasons"),
        ("knowledge", {**KNOWLEDGE, "relevance": ["relevant - why"]}, "relevance has 1 lines, and knowledge 3"),
        ("filco", KNOWLEDGE, "a row of a pool for knowledge, where one for filco is wanted"),
        ("knowledge", CDIT, "a row of a pool for cdit, where one for knowledge is wanted"),
    ],
)
def test_a_row_that_is_wrong_is_named_with_its_line(tmp_path: Path, kind: str, row: Any, words: str) -> None:
    file = tmp_path / "pool.jsonl"
    file.write_text("\n".join(map(json.dumps, (GIVEN[kind], row))), encoding="utf-8")
    with pytest.raises(BadData, match=f"(?s)pool.jsonl.* 2: .*{words}") as caught:
        read_pool(kind, file)
    assert "\n" not in str(caught.value)


def test_an_empty_pool_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pool.jsonl").touch()
    with pytest.raises(EmptyData, match="the pool is empty"):
        read_pool("filco", tmp_path / "pool.jsonl")


@pytest.mark.parametrize(("kind", "least"), [("filco", 80), ("cdit", 80), ("knowledge", 60)])
class TestOwn:
    def test_its_rows_differ(self, kind: str, least: int) -> None:
        rows = read_pool(kind)
        assert len({normalize_answer(row.question) for row in rows}) == len(rows) >= least

    def test_no_text_of_a_data_set_stands_in_it(self, kind: str, least: int, shared_data: Path) -> None:
        """Neither a question nor ten words in a row of a passage."""
        ours = {normalize_answer(row.question) for row in read_pool(kind)}
        runs = {run for row in read_pool(kind) for text in texts(row) for run in runs_of(text)}
        for path in sorted(shared_data.glob("*/*.jsonl.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as file:
                for line in file:
                    row = json.loads(line)
                    assert normalize_answer(row.get("question") or "") not in ours, path
                    if path.parent.name == "corpus":
                        assert runs.isdisjoint(runs_of(row["text"])), (path, row["title"])


def texts(row: Any) -> list[str]:
    lines = [row.passage] if isinstance(row, CDITRow) else row.knowledge
    return [line.partition(" | ")[2] for line in lines]


def runs_of(text: str) -> set[str]:
    words = normalize_answer(text).split()
    return {" ".join(words[at : at + 10]) for at in range(len(words) - 9)}


class TestRelevance:
    """Passages in an order of their own, and what their first would have scored."""

    QUESTIONS = Questions(
        [Question(str(at), f"Who kept light {at}?", ("Ada",), ("Gold",), (("Gold",),)) for at in range(40)],
        TASKS["hotpotqa"],
    )
    RANKED = tuple(Passage(name, name, f"{name} is a light.", 0.5) for name in ("Gold", "Lead", "Tin"))

    def examples(self) -> list[dspy.Example]:
        return relevance_examples(self.QUESTIONS, as_retriever(lambda query, k: list(self.RANKED)), k=3, seed=1)

    def test_the_first_is_not_always_the_best(self) -> None:
        places = [example.chosen[0] for example in self.examples()]
        assert min(places.count(at) for at in range(3)) > 6
        assert all(example.ranked[0] == example.chosen[0] for example in self.examples()), "the retriever's first"

    def test_scores_are_f1_and_beside_them_the_order_at_as_many(self) -> None:
        example = self.examples()[0]
        by_title = {passage.title: passage for passage in example.passages}
        for titles, own, order in ((["Gold"], 1.0, 1.0), (["Tin"], 0.0, 1.0), (["Gold", "Tin"], 2 / 3, 2 / 3)):
            kept = dspy.Prediction(kept=[by_title[title] for title in titles], status="ids", flags={})
            assert relevance(example, kept) == pytest.approx(own)
            assert relevance_of_order(example, kept) == pytest.approx(order)

    def test_what_is_all_gold_or_none_of_it_says_nothing(self) -> None:
        with pytest.raises(EmptyData, match=r"no question of .* has both a gold passage"):
            relevance_examples(self.QUESTIONS, as_retriever(lambda query, k: list(self.RANKED[1:])), k=3)


def test_a_gain_ships_where_its_interval_is_above_0_over_enough_questions() -> None:
    better = [1.0] * 60 + [0.0] * 140
    assert Gain.of("relevance", [0.0] * 200, better, seed=0).ships
    assert not Gain.of("relevance", [0.0] * 199, better[:199], seed=0).ships
    assert not Gain.of("relevance", better, better, seed=0).ships


def compiled(pool: list[dspy.Example], run: Path, **how: Any) -> Compiled:
    """A knowledge filter over the sample world, compiled on a pool."""
    examples = relevance_examples(load("hotpotqa", "sample", limit=24), sample_index(), k=4)
    given: dict[str, Any] = {"optimizer": "search", "candidates": 2, "max_demos": 2, "seed": 1, **how}
    return compile_program(
        OneCallFilter(),
        examples[:6],
        valset=examples[6:10],
        pool=pool,
        run=run,
        lm="offline",
        metric=relevance,
        beside=("the first", relevance_of_order),
        **given,
    )


@pytest.mark.parametrize("optimizer", ["labeled", "bootstrap", "search"])
def test_a_program_shows_rows_of_the_pool_and_no_text_of_the_data(tmp_path: Path, optimizer: str) -> None:
    pool = [row.example() for row in read_pool("knowledge")]
    done = compiled(pool, tmp_path / "run", optimizer=optimizer)
    assert done.recipe.data["n_pool"] == len(pool)
    assert done.recipe.gain is not None
    assert done.recipe.beside is not None
    assert done.recipe.gain.n == done.recipe.beside.n == 4
    shown = {demo.question for _, each in done.program.named_predictors() for demo in each.demos}
    assert shown <= {each.question for each in pool}
    assert shown or optimizer != "labeled"
    again = compiled(pool, tmp_path / "run", optimizer=optimizer)
    assert (again.recipe, again.spent) == (done.recipe, done.spent), "from the journal alone"


class TestCommand:
    SMALL = (
        "--lm",
        "offline",
        "--train",
        4,
        "--valid",
        3,
        "--max-demos",
        1,
        "--run",
        "run",
        "--out",
        "made.json",
        "--optimizer",
        "labeled",
        "--data",
        "sample",
        "--limit",
        30,
    )

    @pytest.mark.parametrize(("what", "task"), [("filco", "nq"), ("cdit", "hotpotqa"), ("one-call", "hotpotqa")])
    def test_from_the_packages_own_pool(self, blendfilter: Command, what: str, task: str) -> None:
        done = blendfilter("compile", what, "--task", task, *self.SMALL, "--pool", "own")
        assert done.code == 0, done
        assert "gain: " in done.out
        recipe = json.loads(Path("made.json").read_text(encoding="utf-8"))["metadata"]["recipe"]
        assert recipe["data"]["n_pool"] == len(read_pool({"one-call": "knowledge"}.get(what, what)))
        assert ("beside that order: " in done.out) is (what == "one-call")

    def test_what_it_would_take_is_said_without_a_key_and_nothing_is_written(self, blendfilter: Command) -> None:
        words = ["openai/gpt-4o-mini" if word == "offline" else word for word in self.SMALL]
        done = blendfilter("compile", "one-call", "--task", "hotpotqa", *words, "--pool", "own", "--plan")
        assert done.code == 0, done
        stage, calls, *_, cost = done.out.splitlines()[4].split()
        assert (stage, cost[0]) == ("judge", "$")
        assert int(calls) == 3 + 3, "three questions held back, before and after"
        assert not Path("run").exists()
        assert not Path("made.json").exists()

    def test_another_filters_pool_is_refused_in_one_line(self, blendfilter: Command) -> None:
        Path("pool.jsonl").write_text(json.dumps(CDIT), encoding="utf-8")
        refused(
            blendfilter("compile", "filco", "--task", "nq", *self.SMALL, "--pool", "pool.jsonl"),
            "pool.jsonl, line 1: a row of a pool for cdit, where one for filco is wanted",
        )


def test_rows_are_those_of_the_pools_that_ship() -> None:
    assert set(ROWS) == set(GIVEN)
