"""What a run's settings hold, what counts as another program, and what is refused before any call."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import dspy
import pytest
from scripted import ScriptedLM

from blendfilter import (
    BM25,
    BlendFilter,
    ChainOfThought,
    Direct,
    Hybrid,
    Passage,
    Prompts,
    as_retriever,
    connect,
    evaluate,
    load,
    pooled,
)
from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument, BadData, EmptyData, Leak, RunMismatch
from blendfilter.evaluation import checks
from blendfilter.evaluation.checks import (
    check_gold_titles,
    check_leak,
    check_prompts,
    check_reader,
    not_compiled_on,
)
from blendfilter.evaluation.run_folder import check_same
from blendfilter.evaluation.run_settings import program_digest, retrievers_of, searched_of, settings_of
from blendfilter.filters.cdit import CDITFilter
from blendfilter.filters.filco import FilCoFilter
from blendfilter.filters.written import BIDERFilter, TrainedFilCoFilter
from blendfilter.journal import digest
from blendfilter.lm.checkpoints import Checkpoint, write_questions
from blendfilter.resources import sample
from blendfilter.tasks import Questions
from blendfilter.training.silver import generator_examples

INDEX = BM25.build([Passage("a", "Orm Pier", "A pier."), Passage("b", "Fell", "A hill.")])


@pytest.fixture
def questions() -> Questions:
    return load("qa", [{"id": "one", "question": "Which pier?", "answer": "Orm Pier"}])


def settings(method: dspy.Module, questions: Questions, **options: Any) -> dict[str, Any]:
    return settings_of(method, questions, options.pop("lm", ScriptedLM([])), **{"seed": 0, **options})


def test_settings_are_json_without_place_or_haste(questions: Questions) -> None:
    result = settings(BlendFilter(INDEX), questions)
    assert json.loads(json.dumps(result)) == result
    assert result == settings(BlendFilter(INDEX), questions)
    assert not re.search(r"address|concurrency|http|127\.0|path", json.dumps(result))


def test_the_models_settings_are_named_without_its_key() -> None:
    questions = load("qa", [{"question": "?", "answer": "x"}])
    lm = connect(
        "llama", api_base="http://127.0.0.1:9/v1", api_key="sk-secret-123", label="b", thinking=False, top_p=0.9
    )
    result = settings(Direct(INDEX), questions, lm=lm)["lm"]
    assert result["name"] == "llama"
    assert result["label"] == "b"
    assert result["endpoint"] == "chat"
    assert result["options"]["thinking"] is False
    assert result["parameters"] == {"temperature": 0.0, "top_p": 0.9}
    assert "sk-secret" not in json.dumps(result)
    assert "127.0.0.1" not in json.dumps(result)
    plain = settings(Direct(INDEX), questions, lm=connect("llama", api_base="http://127.0.0.1:9/v1"))["lm"]
    assert plain == {"name": "llama", "endpoint": "chat", "parameters": {"temperature": 0.0}}


def test_a_program_is_its_instructions_demonstrations_and_templates(tmp_path: Path) -> None:
    """Whatever shapes a prompt changes the digest; models, and a copy of the same program, do not."""
    plain = program_digest(BlendFilter(INDEX))
    assert re.fullmatch("[0-9a-f]{12}", plain)
    assert program_digest(BlendFilter(INDEX).deepcopy()) == plain
    with_model = BlendFilter(INDEX)
    with_model.set_lm(ScriptedLM([]))
    assert program_digest(with_model) == plain
    demos, instructed = BlendFilter(INDEX), BlendFilter(INDEX)
    demos.answering.answer.demos = []
    asking = instructed.select.check
    asking.signature = asking.signature.with_instructions("Be strict.")
    (tmp_path / "blendfilter").mkdir()
    own = Prompts()["blendfilter/check"].path.read_text()
    (tmp_path / "blendfilter/check.j2").write_text(own + "\n{# changed #}")
    overridden = BlendFilter(INDEX, prompts=Prompts(tmp_path))
    digests = [plain, *map(program_digest, (demos, instructed, overridden, BlendFilter(INDEX, task="strategyqa")))]
    assert len(set(digests)) == 5


@pytest.mark.parametrize("mode", ["word", "components"])
def test_the_words_of_a_judges_second_request_are_part_of_the_program(mode: Any, tmp_path: Path) -> None:
    """They are in a template of their own, which no predictor among the module's parameters has."""
    template = tmp_path / f"cdit/{mode}_again.j2"
    own = Prompts()[f"cdit/{mode}_again"].path.read_text()

    def method() -> ChainOfThought:
        return ChainOfThought(INDEX, filter=CDITFilter(mode, prompts=Prompts(tmp_path)))

    template.parent.mkdir()
    template.write_text(own)
    plain = program_digest(method())
    template.write_text(own + "\n{# changed #}")
    assert program_digest(method()) != plain
    check_prompts(method())
    template.write_text("{{ instructions }} {{ pasage }}")
    with pytest.raises(BadData, match=rf"{mode}_again\.j2: .*pasage"):
        check_prompts(method())


def test_what_is_read_of_an_answer_tells_programs_apart() -> None:
    """The same prompts, of whose replies more is read; what is short counts for nothing, as in runs of old."""
    short = TaskWording.of("hotpotqa")
    changes: list[dict[str, Any]] = [{"whole_answer": True}, {"answer_tokens": 64}]
    others = [Direct(task=short.model_copy(update=change)) for change in changes]
    digests = [program_digest(each) for each in (Direct(), *others, Direct(adapter=dspy.ChatAdapter()))]
    assert len(set(digests)) == 4
    (predictor,) = Direct().predictors()
    state = {name: value for name, value in predictor.dump_state().items() if name != "lm"}
    assert digests[0] == digest({"direct": state}, {"direct": predictor.template.digest})[:12]


def test_a_part_that_dspy_compiled_is_seen(questions: Questions) -> None:
    """DSPy shows none of its parameters (it is frozen), and it speaks all the same."""
    select = FilCoFilter()
    select._compiled = True
    method = Direct(INDEX, filter=select)
    plain = program_digest(method)
    select.helpful.demos = [dspy.Example(knowledge=["T | x"], question=" which PIER", ids="0")]
    assert program_digest(method) != plain
    with pytest.raises(Leak, match=r"is also a demonstration of 'select\.helpful'"):
        check_leak(method, questions)


def test_every_index_is_found_once_in_order() -> None:
    other = as_retriever(lambda query, k: [], fingerprint="0123456789abcdef")

    class Two(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = other
            self.inner = BlendFilter(INDEX)
            self.again = INDEX

    assert retrievers_of(Two()) == [other, INDEX]
    assert retrievers_of(Direct()) == []


def _corpus(name: str, passages: int, **more: Any) -> dict[str, Any]:
    return {"kind": "bm25", "corpus": {"name": name}, "passages": passages, **more}


@pytest.mark.parametrize(
    ("info", "searched"),
    [
        (_corpus("", 24), {"passages": 24}),
        (_corpus("w", 24, settings={"index": "hnsw"}), {"corpus": "w", "passages": 24, "type": "hnsw"}),
        (
            {"kind": "trimmed", "index": _corpus("wiki.jsonl", 24)},
            {"type": "bm25", "corpus": "wiki.jsonl", "passages": 24},
        ),
        (
            {"kind": "hybrid", "indexes": [_corpus("a", 24), _corpus("a", 24)]},
            {"corpus": "a", "passages": 24},
        ),
        ({"kind": "hybrid", "indexes": [_corpus("a", 24), _corpus("b", 9)]}, {"corpus": "a+b"}),
        ({"kind": "callable", "name": "f"}, {}),
    ],
)
def test_what_is_known_of_a_corpus(info: dict[str, Any], searched: dict[str, Any]) -> None:
    assert searched_of(info) == searched


def test_pooled_paragraphs_and_the_sample_say_what_they_are() -> None:
    paragraphs = [{"title": "Pier", "text": "It is old."}]
    found = load("qa", [{"question": "Which pier?", "answer": "?", "context": paragraphs}])
    assert searched_of(BM25.build(pooled(found)).info()) == {"corpus": "pooled", "passages": 1}
    assert searched_of(BM25.build(sample("corpus.jsonl")).info()) == {"corpus": "sample", "passages": 193}


def test_a_run_of_an_earlier_version_that_recorded_no_corpus_goes_on(questions: Questions) -> None:
    settings = settings_of(Direct(INDEX), questions, ScriptedLM([]), seed=0)
    old = {name: value for name, value in settings.items() if name != "searched"}
    assert settings != old
    check_same(old, settings, "runs/x")


@pytest.mark.parametrize("written", ["Which pier?", "  which PIER ", "The which pier!?"])
def test_a_demonstration_among_the_questions(written: str, questions: Questions) -> None:
    method = ChainOfThought(INDEX)
    check_leak(method, questions)
    method.answering.answer.demos = [dspy.Example(question=written, reasoning="…")]
    with pytest.raises(Leak, match=r"question 'one' \('Which pier\?'\) is also a demonstration of 'answering.answer'"):
        check_leak(method, questions)


def test_a_question_that_the_model_was_trained_on(questions: Questions, tmp_path: Path) -> None:
    """Of the run's model, of a filter's own, and of what an adapter stands on."""
    write_questions(tmp_path, ["Which PIER?", "Another one?"])
    trained, other = ScriptedLM([]), ScriptedLM([])
    trained.inner.checkpoint = Checkpoint(tmp_path / "adapter", Checkpoint(tmp_path))  # as that of `hf/…`
    method = Direct(INDEX, filter=FilCoFilter())
    check_leak(method, questions, [other])
    with pytest.raises(Leak, match=r"question 'one' \('Which pier\?'\) is one of those that scripted was trained on"):
        check_leak(method, questions, [trained])
    method.select.helpful.lm = trained
    with pytest.raises(Leak):
        check_leak(method, questions, [other])
    with pytest.raises(EmptyData, match="all 1 questions"):
        not_compiled_on(method, questions, [other])
    both = load("qa", [{"question": "Which pier?", "answer": "?"}, {"question": "Which hill?", "answer": "Fell"}])
    assert [each.question for each in not_compiled_on(method, both, [other])] == ["Which hill?"]
    method.select.helpful.lm = None
    with pytest.raises(BadArgument, match="goes with a compiled program or a trained model"):
        not_compiled_on(method, questions, [other])


def test_a_question_that_a_filters_model_was_trained_on_though_a_server_answers(
    questions: Questions, tmp_path: Path
) -> None:
    write_questions(tmp_path, ["Which PIER?"])
    method = Direct(INDEX, filter=TrainedFilCoFilter(f"hf/{tmp_path}?dtype=bfloat16", lm=ScriptedLM([])))
    with pytest.raises(Leak, match=rf"is one of those that {tmp_path.name} was trained on"):
        check_leak(method, questions, [])
    with pytest.raises(EmptyData, match="all 1 questions"):
        not_compiled_on(method, questions)


def reader(folder: Path, **recipe: Any) -> ScriptedLM:
    """A model of `folder`, with that recipe beside it."""
    (folder / "recipe.json").write_text(json.dumps({"format": 1, **recipe}))
    (lm := ScriptedLM([])).inner.checkpoint = Checkpoint(folder)  # as that of `hf/…`
    return lm


def test_the_seed_that_a_model_was_trained_with_is_a_setting(questions: Questions, tmp_path: Path) -> None:
    trained = reader(tmp_path, part="generator", settings={"seed": 7})
    settings = settings_of(Direct(), questions, trained, filter_lm=trained, seed=0)
    assert settings["seeds"] == {"lm": 7, "filter": 7}
    assert "seeds" not in settings_of(Direct(), questions, ScriptedLM([]), seed=0)


@pytest.mark.parametrize(("part", "named"), [("context", "FilCo's context filter"), ("bider", "BIDER")])
def test_a_model_that_was_trained_to_filter_answers_nothing(part: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=f"scripted was trained as {named}: it writes what is to be read"):
        check_reader(Direct(INDEX), reader(tmp_path, part=part))


def test_a_generator_that_is_asked_otherwise_than_it_was_trained_is_warned_of(tmp_path: Path) -> None:
    asked = Direct(INDEX, task=TaskWording.of("nq").with_demos("none"))
    lm = reader(tmp_path, part="generator", **generator_examples([], "nq")[1])
    with warnings.catch_warnings(action="error"):
        check_reader(asked, lm)
        check_reader(Direct(INDEX, task="nq"), ScriptedLM([]))
        check_reader(Direct(INDEX), reader(tmp_path, part="stages"))
    lm = reader(tmp_path, part="generator", **generator_examples([], "nq")[1])
    for method in (Direct(INDEX, task="nq"), Direct(task="nq"), ChainOfThought(INDEX, task="nq")):
        with pytest.warns(UserWarning, match="asked with another prompt here: .* asks as it was trained") as seen:
            check_reader(method, lm)
        assert len(seen) == 1


@pytest.mark.parametrize(
    ("name", "endpoint", "other"),
    [
        ("meta-llama/Llama-2-7b-hf", "completions", ""),  # where it is served does not count
        ("meta-llama/Llama-2-7b-hf", "chat", "aligned with Llama-2-7b-hf (completions), and Llama-2-7b-hf reads"),
        ("meta-llama/Llama-2-7b-chat-hf", "chat", "and Llama-2-7b-chat-hf reads what it writes: align it with this"),
    ],
)
def test_a_refiner_is_warned_of_under_a_reader_that_it_was_not_aligned_with(
    name: str, endpoint: str, other: str, tmp_path: Path
) -> None:
    aligned = {"name": "hf/meta-llama/Llama-2-7b-hf", "endpoint": "completions"}
    (tmp_path / "recipe.json").write_text(json.dumps({"part": "bider", "reader": aligned}))
    method = Direct(INDEX, filter=BIDERFilter(tmp_path, lm=ScriptedLM([])))
    lm = ScriptedLM([])
    lm.name, lm.identity = name, {"endpoint": endpoint}
    with warnings.catch_warnings(record=True, action="always") as seen:
        check_reader(method, lm)
    lines = [str(each.message) for each in seen]
    assert len(lines) == bool(other)
    assert all(line.startswith("another reader: ") and other in line for line in lines)


@pytest.mark.parametrize(
    ("gold", "warning"),
    [
        (["Orm Pier", "fell"], "1 of 2 gold titles are .*; 'fell': did you mean 'Fell'?"),
        (["Orm Pier", "Orm-pier", "Fell"], "1 of 3 .*; 'Orm-pier': did you mean 'Orm Pier'?"),
        (["Orm Pier", "Orm Peir"], "1 of 2 .*; 'Orm Peir': did you mean 'Orm Pier'?"),
        (["Quay", "Dock"], "2 of 2 .*; 'Quay', where the index has 'Orm Pier'"),
        (["Orm  Pier ", "Fell"], ""),
        (["Fell", "Quay"], ""),
        ([], ""),
    ],
    ids=["case", "punctuation", "a letter", "none of them", "white space is nothing", "a part of the corpus", "none"],
)
def test_gold_titles_that_no_passage_has_are_warned_of(gold: list[str], warning: str, tmp_path: Path) -> None:
    """Before any model is called; where a corpus is only a part of the questions' own, some may be missing."""
    rows = load("qa", [{"question": "Which pier?", "answer": "Orm Pier", "gold_titles": gold}])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with pytest.raises(LookupError):
            evaluate(Unready(INDEX), rows, lm="offline", run=tmp_path / "run", progress=False)
    said = [str(each.message) for each in found if "gold titles" in str(each.message)]
    assert len(said) == bool(warning)
    assert not warning or re.search(warning.replace("?", r"\?"), said[0])


class Unready(Direct):
    def arguments(self) -> dict[str, Any]:
        raise LookupError("the run's settings are read after the warning, and before any call")


def test_only_the_titles_of_a_small_local_index_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = load("qa", [{"question": "Which pier?", "answer": "Orm Pier", "gold_titles": ["orm pier"]}])
    both = Hybrid([INDEX, BM25.build(["Quay | A quay."])])
    with pytest.warns(UserWarning, match="did you mean 'Orm Pier'"):
        check_gold_titles(Direct(both), rows)
    untitled = BM25.build(["A pier."])
    with pytest.warns(UserWarning, match="1 of 1 gold titles .*; it has no titles"):
        check_gold_titles(Direct(untitled), rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        elsewhere = as_retriever(lambda query, k: [], fingerprint="0123456789abcdef")
        check_gold_titles(Direct(elsewhere), rows)
        check_gold_titles(Direct(Hybrid([INDEX, elsewhere])), rows)
        check_gold_titles(Direct(), rows)
        monkeypatch.setattr(checks, "MOST_TITLES", 1)
        check_gold_titles(Direct(INDEX), rows)


def test_templates_are_tried_before_any_call(tmp_path: Path) -> None:
    for task in ("hotpotqa", "twowiki", "strategyqa"):
        for method in (
            Direct(task=task),
            ChainOfThought(task=task),
            Direct(INDEX, task=task),
            BlendFilter(INDEX, task=task),
        ):
            check_prompts(method)
    check_prompts(dspy.ChainOfThought("question -> answer"))
    (tmp_path / "direct.j2").write_text("{{ instructions }} {% for d in demos %}{{ d.resoning }}{% endfor %}")
    with pytest.raises(BadData, match=r"direct\.j2: .*resoning"):
        check_prompts(Direct(prompts=Prompts(tmp_path)))


def test_an_argument_that_came_later_and_is_off_differs_from_nothing() -> None:
    """A run of an older version can be taken up and replayed; what it did not know must stay switched off."""
    older = {"method": {"name": "blendfilter", "arguments": {"k": 5, "fallback": False}}}
    newer = {"method": {"name": "blendfilter", "arguments": {"k": 5, "fallback": False, "filter_union": False}}}
    check_same(older, newer, "runs/one")
    on = {"method": {"name": "blendfilter", "arguments": {"k": 5, "fallback": False, "filter_union": True}}}
    with pytest.raises(RunMismatch, match="filter_union was None, now True"):
        check_same(older, on, "runs/one")
    off = {"method": {"name": "blendfilter", "arguments": {"k": 5, "fallback": True}}}
    with pytest.raises(RunMismatch, match="fallback was True, now False"):
        check_same(off, newer, "runs/one")
