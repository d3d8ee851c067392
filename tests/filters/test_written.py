"""Filters whose model writes the context: the prompt, its cap, what was written looked up, the model's recipe, runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from isle import INTERNAL, LINES, PASSAGES, QUESTION, Shelf, replies, three_lists
from scripted import ScriptedLM, response, scripted
from small_world import journaled

from blendfilter import connect, evaluate
from blendfilter.asking import fitted
from blendfilter.errors import BadArgument, BadData, UnknownName
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_passages import contexts
from blendfilter.filters.registry import make_filter
from blendfilter.filters.written import (
    BIDERFilter,
    TrainedFilCoFilter,
    TrainedPSGFilter,
    WrittenFilter,
    looked_up,
)
from blendfilter.modules.base import union
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import Direct
from blendfilter.modules.iter_retgen import IterRetGen
from blendfilter.records import Excerpt, Passage, WrittenText
from blendfilter.report.trace import trace_text

TOWN = Passage("1", "Ormskerry", "A town. It has a pier. It rains.", score=2.0)
MILL = Passage("2", "Tide Mill", "It grinds “rye”.  Ane Lindqvist\nruns it.")
KINDS = pytest.mark.parametrize("kind", [TrainedFilCoFilter, BIDERFilter])


def words(text: str) -> float:
    return len(text.split())


def asked(select: WrittenFilter, reply: Any, passages: list[Passage], question: str = "Who runs the mill?") -> Any:
    with scripted([reply]) as lm, dspy.context(lm=lm):
        return select(question=question, passages=passages)


def parts(prediction: Any) -> list[tuple[str, str]]:
    """(id, text) of what is kept; written text has no id here."""
    return [("" if isinstance(each, WrittenText) else each.id, each.text) for each in prediction.kept]


# --- the prompt ---


@KINDS
def test_the_prompt_that_training_reads_is_the_one_that_a_run_sends(kind: type[WrittenFilter]) -> None:
    select = kind()
    with scripted(["A town."]) as lm, dspy.context(lm=lm):
        select(question=QUESTION, passages=list(PASSAGES))
        assert lm.prompts == [("write", select.prompt(QUESTION, PASSAGES))]
    assert select.prompt(QUESTION, PASSAGES).endswith(f"{LINES[-1]}\nQuestion: {QUESTION}\nContext:")


@KINDS
def test_a_prompt_that_is_too_long_loses_words_of_its_last_passages(kind: type[WrittenFilter]) -> None:
    """The question, the cue and what stands above stay whole."""
    whole = kind().prompt(QUESTION, PASSAGES, words)
    for cap in range(50, int(words(whole))):
        prompt = kind(max_input_tokens=cap).prompt(QUESTION, PASSAGES, words)
        assert cap - 5 < words(prompt) <= cap, "a title alone is left out, too"
        *_, question, cue = prompt.split("\n")
        assert (question, cue) == (f"Question: {QUESTION}", "Context:")
        assert whole.startswith(prompt.partition("\nQuestion:")[0])
    assert kind(max_input_tokens=int(words(whole))).prompt(QUESTION, PASSAGES, words) == whole


def test_a_line_is_cut_between_words_and_goes_where_only_its_title_is_left() -> None:
    def left(cap: int) -> list[str]:
        return fitted([TOWN, MILL], lambda lines: words(" ".join(lines)) <= cap)

    assert left(14) == [TOWN.line, "Tide Mill | It"]
    assert left(13) == left(10) == [TOWN.line]
    assert left(9) == ["Ormskerry | A town. It has a pier. It"]
    assert left(2) == []


def test_a_cut_input_is_flagged_and_a_question_without_room_for_passages_asks_nothing() -> None:
    select = TrainedFilCoFilter(max_input_tokens=40)
    prediction = asked(select, "A town.", [TOWN, MILL])
    assert prediction.flags == {"input_cut": 1}
    with scripted([]) as lm, dspy.context(lm=lm):
        prediction = select(question="Who " * 60, passages=[TOWN])
    assert (prediction.kept, prediction.status, prediction.flags) == ([], "empty", {"input_cut": 1})


# --- what was written ---


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        ("It has a pier.", [("1", "It has a pier.")]),
        ("It rains. A town.", [("1", "It rains."), ("1", "A town.")]),
        ("A town. It rains.", [("1", "A town. It rains.")]),
        ("It has a pier. It rains.", [("1", "It has a pier. It rains.")]),
        ("It rains. Ane Lindqvist runs it. A town.",
         [("1", "It rains."), ("2", "Ane Lindqvist\nruns it."), ("1", "A town.")]),
        ('It grinds "rye".', [("2", "It grinds “rye”.")]),
        ("It has a\u00a0pier.", [("1", "It has a pier.")]),
        ("Ormskerry | It rains.", [("1", "It rains.")]),
        ("- It rains.\n- A town.", [("1", "It rains."), ("1", "A town.")]),
        ("It rains. It rains.", [("1", "It rains.")]),
        ("It rains. It sank. Nobody left. A town.",
         [("1", "It rains."), ("", "It sank. Nobody left."), ("1", "A town.")]),
        ("It has a pie.", [("", "It has a pie.")]),
        ("ains.", [("", "ains.")]),
    ],
)  # fmt: skip
def test_what_was_written_is_looked_up_in_the_order_written(reply: str, kept: list[tuple[str, str]]) -> None:
    prediction = asked(BIDERFilter(), reply, [TOWN, MILL])
    assert parts(prediction) == kept
    assert prediction.status == "written"
    unmatched = {"not_in_passages": 2 if "sank" in reply else 1} if any(not id for id, _ in kept) else {}
    assert prediction.flags == unmatched
    for each in prediction.kept:
        assert not isinstance(each, Excerpt) or all(
            each.source.text[span.start : span.end] == span.text for span in each.spans
        )


@pytest.mark.parametrize(
    ("title", "reply"),
    [
        ("Apple Inc.", "Apple Inc. | It rose."),
        ("Martin Luther King Jr.", "- Martin Luther King Jr. | It rose."),
        ("Washington, D.C.", "Washington, D.C. | It rose."),
        ("Oklahoma!", "2. Oklahoma! | It rose."),
        ("Who Framed Roger Rabbit?", "  Who Framed Roger Rabbit? |It rose."),
        ("Rock ’n’ Roll", "Rock 'n' Roll | It rose."),
        ("Café\u00a0Noir", "Cafe\u0301 Noir | It rose."),
        ("1. FC Ormskerry", "1. FC Ormskerry | It rose."),
        ("A | B.", "A | B. | It rose."),
    ],
)
def test_the_title_before_a_sentence_is_left_out_whatever_marks_it_has(title: str, reply: str) -> None:
    passages = [TOWN, Passage("3", title, "1. FC was first. It rose. It fell.")]
    found = looked_up(f"{reply} Ormskerry | It rains. {title} | It fell.\n{title} | 1. FC was first.", passages)
    assert [each.text for each in found.parts] == ["It rose.", "It rains.", "It fell.", "1. FC was first."]
    assert found.unmatched == 0


def test_what_only_ends_as_a_title_does_is_no_title() -> None:
    found = looked_up("Old Ormskerry | It rains.", [TOWN])
    assert (found.parts[0].text, found.unmatched) == ("Old Ormskerry | It rains.", 1)


def test_an_excerpt_has_the_score_of_its_passage_and_lies_in_the_whole_text() -> None:
    piece = Excerpt.of(TOWN, [(8, 32)]).scored(TOWN.score)
    (kept,) = asked(BIDERFilter(), "It rains.", [piece]).kept
    assert (kept.source, kept.spans[0].start, kept.score) == (TOWN, 23, 2.0)


def test_a_sentence_of_two_passages_is_the_one_that_goes_on_or_the_best_ranked() -> None:
    first, second = Passage("a", "A", "He left. It rained."), Passage("b", "B", "She came. It rained.")
    assert [each.id for each in looked_up("It rained.", [first, second]).parts] == ["a"]
    assert [each.id for each in looked_up("She came. It rained.", [first, second]).parts] == ["b"]


def test_a_reply_that_was_cut_ends_with_a_whole_word() -> None:
    prediction = asked(BIDERFilter(), response("It rains. It has a pi", finish="length"), [TOWN])
    assert parts(prediction) == [("1", "It rains."), ("1", "It has a pier")]


def test_text_that_is_in_no_passage_is_dropped_where_that_is_asked_for_and_counted_all_the_same() -> None:
    prediction = asked(BIDERFilter(unmatched="drop"), "It sank. It rains.", [TOWN])
    assert parts(prediction) == [("1", "It rains.")]
    assert prediction.flags == {"not_in_passages": 1}
    with pytest.raises(UnknownName, match="drop"):
        BIDERFilter(unmatched="dropp")  # type: ignore[arg-type]


@pytest.mark.parametrize("reply", ["", "  \n"])
def test_an_empty_reply_keeps_nothing_and_is_no_bad_reply(reply: str) -> None:
    """As at the paper's inference: the answerer is shown an empty block."""
    with scripted({"write": [reply], "direct": ["Ane"]}) as lm, dspy.context(lm=lm):
        prediction = Direct(lambda query, k: [TOWN], filter=TrainedFilCoFilter())(question="Who runs the mill?")
        assert "(nothing relevant was found)" in lm.prompts[-1][1]
    flags = {name: count for name, count in prediction.flags.items() if count}
    assert (prediction.knowledge, flags) == ([], {"explicit_none": 1, "empty_knowledge": 1})


def test_only_a_filter_that_writes_may_keep_what_it_was_not_given() -> None:
    class Quiet(dspy.Module):
        def forward(self, question: str, passages: list[Passage]) -> list[Passage]:
            return [WrittenText("It sank.")]

    class Writing(Quiet):
        writes_text = True

    with scripted({"direct": ["x"]}) as lm, dspy.context(lm=lm):
        assert Direct(lambda query, k: [TOWN], filter=Writing())(question="Who?").context == ["It sank."]
        with pytest.raises(BadArgument, match="was not given"):
            Direct(lambda query, k: [TOWN], filter=Quiet())(question="Who?")


# --- the model ---


def trained(folder: Path, **recipe: Any) -> Path:
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps({"format": 1, **recipe}))
    return folder


@KINDS
def test_a_model_answers_for_the_filter_that_it_was_trained_for(kind: type[WrittenFilter], tmp_path: Path) -> None:
    model = ScriptedLM(["A town."])
    select = kind(trained(tmp_path / "own", **kind().recipe), lm=model)
    with scripted({"direct": ["x"]}) as lm, dspy.context(lm=lm):
        Direct(lambda query, k: [TOWN], filter=select)(question="Who?")
    assert [stage for stage, _ in model.prompts] == ["write"]
    kind(tmp_path / "elsewhere", lm=model)  # trained elsewhere: no recipe
    with pytest.raises(BadArgument, match="was trained as"):
        kind(f"{trained(tmp_path / 'other', part='generator')}?dtype=bfloat16", lm=model)


@pytest.mark.parametrize(
    ("settings", "endpoint", "tokens"),
    [
        ({"chat": False, "max_input_tokens": 150}, "completions", 150),
        ({"chat": True, "max_input_tokens": 512}, "chat", 512),
        ({"chat": None}, "chat", 1024),
        (None, "chat", 1024),
    ],
)
def test_a_model_reads_as_it_was_trained(
    settings: dict[str, Any] | None, endpoint: str, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its chat template or without, and as many tokens; the caller may want fewer."""
    endpoints = list[str]()
    monkeypatch.setattr(
        "blendfilter.filters.written.connect", lambda _, endpoint: endpoints.append(endpoint) or ScriptedLM([])
    )
    model = f"{trained(tmp_path / 'm', settings=settings)}?dtype=bfloat16"
    assert BIDERFilter(model).max_input_tokens == tokens
    assert make_filter("filco", model=model, max_input_tokens=64).max_input_tokens == 64
    assert endpoints == [endpoint] * 2
    other = ({"chat", "completions"} - {endpoint}).pop()
    asked = connect("m", api_base="http://localhost:1/v1", endpoint=other, cache=False)
    if settings is None or settings["chat"] is None:
        BIDERFilter(model, lm=asked)
        return
    with pytest.raises(BadArgument, match=rf"m was trained .*: ask it so \(endpoint {endpoint}\)"):
        BIDERFilter(model, lm=asked)


@pytest.mark.parametrize(
    ("kind", "recipe", "reason"),
    [
        (TrainedFilCoFilter, {"part": "generator"}, "was trained as FilCo's generator .* --part context makes one"),
        (TrainedPSGFilter, {"part": "context"}, "was trained as FilCo's context filter.* --part passages makes one"),
        (TrainedPSGFilter, {"part": "passages", "prompt": "0"}, "with another prompt than filco/keep is here"),
        (TrainedFilCoFilter, {"part": "bider"}, "was trained as BIDER, and TrainedFilCoFilter wants"),
        (BIDERFilter, {"part": "context"}, "blendfilter train bider makes one"),
        (BIDERFilter, {"part": "bider", "prompt": "0123"}, "with another prompt than bider/refine is here"),
    ],
)
def test_a_model_that_was_trained_for_something_else_is_refused(
    kind: type[WrittenFilter], recipe: dict[str, str], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(BadArgument, match=reason) as error:
        kind(trained(tmp_path / "other", **recipe), lm=ScriptedLM([]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [TrainedFilCoFilter, TrainedPSGFilter, BIDERFilter])
def test_a_model_is_asked_by_the_set_that_it_was_trained_with(kind: type[WrittenFilter], tmp_path: Path) -> None:
    """A template is no choice of a trained model's, so `reproduce` may read any. A user's own template is one."""
    for at, trained_with in enumerate(("ours", "paper")):
        model = trained(tmp_path / f"m{at}", **kind(prompts=trained_with).recipe)
        for prompts in (None, "ours", "paper"):
            select = kind(model, lm=ScriptedLM([]), prompts=prompts)
            assert select.write.template.of_set == trained_with.removeprefix("ours")
        own = tmp_path / "own" / f"{kind.template}.j2"
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text("{{ knowledge | join }} {{ question }}")
        with pytest.raises(BadArgument, match="was trained with another prompt"):
            kind(model, lm=ScriptedLM([]), prompts=str(tmp_path / "own"))


def test_a_recipe_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (trained(tmp_path / "broken") / "recipe.json").write_text("{")
    with pytest.raises(BadData, match=r"recipe\.json"):
        BIDERFilter(tmp_path / "broken", lm=ScriptedLM([]))


def test_filco_by_name_is_the_trained_one_where_a_model_is_named(tmp_path: Path) -> None:
    model = ScriptedLM([])
    assert isinstance(make_filter("filco", model=str(tmp_path / "m"), lm=model), TrainedFilCoFilter)
    select = make_filter("bider", model=str(tmp_path / "m"), lm=model, unmatched="drop", max_input_tokens=512)
    assert select.arguments() == {"unmatched": "drop", "filter_max_input_tokens": 512}
    with pytest.raises(BadArgument, match="name it as model=; blendfilter train bider makes one"):
        make_filter("bider")
    with pytest.raises(BadArgument, match="unmatched is for a trained model"):
        make_filter("filco", unmatched="drop")
    assert isinstance(make_filter("filco-passage", model=str(tmp_path / "m"), lm=model), TrainedPSGFilter)
    with pytest.raises(BadArgument, match="max_input_tokens is for a trained model"):
        make_filter("filco-passage", max_input_tokens=512)
    with pytest.raises(BadArgument, match="the filter filco-passage takes no unmatched"):
        make_filter("filco-passage", model="m", unmatched="drop")


# --- whole passages ---


@pytest.mark.parametrize(
    ("reply", "kept", "status", "flags"),
    [
        ("1", [MILL], "ids", {}),
        ("0, 1", [TOWN, MILL], "ids", {}),
        ("", [], "none", {"explicit_none": 1}),
        ("none", [], "none", {"explicit_none": 1}),
        ("It rains.", [TOWN, MILL], "unparseable", {"unparseable_ids": 1}),
    ],
)
def test_a_trained_psg_keeps_the_passages_whose_numbers_it_writes(
    reply: str, kept: list[Passage], status: str, flags: dict[str, int]
) -> None:
    found = asked(TrainedPSGFilter(), reply, [TOWN, MILL])
    assert (list(found.kept), found.status, found.flags) == (kept, status, flags)


def test_a_trained_psg_names_no_passage_that_it_did_not_read() -> None:
    """The prompt has room for the first; the second's number is none of its replies."""
    found = asked(TrainedPSGFilter(max_input_tokens=40), "0, 1", [TOWN, MILL])
    assert [each.id for each in found.kept] == [TOWN.id]
    assert found.flags["input_cut"] == 1


# --- in methods and runs ---


METHODS: dict[str, Callable[[WrittenFilter, Any], Any]] = {
    "direct": lambda select, index: Direct(index, k=2, filter=select),
    "blendfilter": lambda select, index: BlendFilter(index, k=2, filter=select),
    "blendfilter, the union": lambda select, index: BlendFilter(index, k=2, filter=select, filter_union=True),
    "iter-retgen": lambda select, index: IterRetGen(index, k=2, filter=select),
}


@pytest.mark.parametrize("method", METHODS)
def test_any_method_has_any_of_them(method: str) -> None:
    lm = ScriptedLM(replies(write=lambda prompt: "Quillmere sank. " + prompt.split(" | ")[1].split(".")[0] + "."))
    with dspy.context(lm=lm):
        prediction = METHODS[method](BIDERFilter(), three_lists())(question=QUESTION)
    assert "Quillmere sank." in prediction.context
    assert prediction.flags["not_in_passages"] == sum(stage == "write" for stage, _ in lm.prompts)
    assert "written, in no passage: Quillmere sank." in trace_text(prediction)
    assert "written, in no passage: <bdi>Quillmere sank." in prediction._repr_html_()


def test_one_list_keeps_the_order_written_and_several_join_their_pieces() -> None:
    first, second = (Excerpt.of(TOWN, [place]) for place in ((23, 32), (0, 7)))
    mill = Excerpt.of(MILL, [(0, 16)])
    assert union([[first, mill, second], []]) == [first, mill, second]
    assert union([[first, mill], [second]]) == [Excerpt.of(TOWN, [(0, 7), (23, 32)]), mill]


def test_blendfilter_with_one_branch_reads_in_the_order_written() -> None:
    shelf = Shelf([TOWN, MILL], [TOWN], [TOWN])
    with scripted(replies(write='It rains. It grinds "rye". A town.')) as lm, dspy.context(lm=lm):
        prediction = BlendFilter(shelf, k=2, filter=BIDERFilter(), without=("q_ex", "q_in"))(question=QUESTION)
    assert prediction.context == ["Ormskerry | It rains.", "Tide Mill | It grinds “rye”.", "Ormskerry | A town."]
    assert INTERNAL not in prediction.queries.values()


def test_a_run_says_what_was_read_and_by_which_model(tmp_path: Path) -> None:
    """The filter's calls are in the run's journal; its model is the run's `lm.filter`, as one of --filter-lm is."""
    refiner = ScriptedLM(lambda stage, prompt: "It rains. It sank. A town.")
    rows = [{"question": "Who runs the mill?", "answer": "Ane"}]

    def found(query: str, k: int) -> list[Passage]:
        return [TOWN, MILL][:k]

    lm = ScriptedLM({"direct": ["Ane"]})
    run = evaluate(
        Direct(found, k=2, filter=BIDERFilter(lm=refiner)), rows, lm=lm,
        run=tmp_path / "run", progress=False,
    )  # fmt: skip
    assert [call["stage"] for call in journaled(tmp_path / "run", "call")] == ["write", "direct"]
    assert run.settings["lm"]["filter"]["name"] == "scripted"
    assert "of" not in run.settings["lm"]
    assert "filter-lm:scripted" in run.metrics["signature"]
    (row,) = run.rows
    assert row["knowledge"] == row["branches"]["q"]["kept"] == ["1"]
    assert row["spans"] == {"1": [[0, 7], [23, 32]]}
    assert row["written"] == [["1", [[23, 32]]], "It sank.", ["1", [[0, 7]]]]
    assert run.metrics["flags"]["not_in_passages"] == 1
    (context,) = contexts(run)
    assert [each.line for each in context.kept] == ["Ormskerry | It rains.", "It sank.", "Ormskerry | A town."]
    again = evaluate(
        Direct(found, k=2, filter=BIDERFilter(lm=ScriptedLM([]))), rows,
        lm=ScriptedLM([]), run=tmp_path / "run", replay=True, progress=False,
    )  # fmt: skip
    assert again.rows == run.rows
    assert Run(tmp_path / "run").models == "scripted, filter scripted"
