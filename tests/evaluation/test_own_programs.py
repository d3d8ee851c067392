"""Programs as users bring them: any signature, any rows, and loss tables that say what the journal shows."""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import pytest
from small_world import CountingEngine, done_by, journaled, slowly, stable

import blendfilter as bf
from blendfilter import BM25, Passage, evaluate, load
from blendfilter.errors import BadArgument, BadData, RunFailed, RunMismatch
from blendfilter.evaluation.provenance import TracedStep, called, provenance, traced
from blendfilter.evaluation.run import Run
from blendfilter.tasks import Questions

K = 3


@pytest.fixture(scope="module")
def every() -> Questions:
    return load("hotpotqa", "sample", limit=40)


@pytest.fixture
def ran(tmp_path: Path) -> Callable[..., Run]:
    """A run by the offline reader."""

    def run(method: Any, questions: Any, name: str = "run", **options: Any) -> Run:
        return evaluate(method, questions, lm="offline", run=tmp_path / name, progress=False, **options)

    return run


# --- where questions are lost -----------------------------------------------------------------------------------------


class Plain(dspy.Module):
    """As docs/dspy.md has it: what is searched is whatever is configured."""

    def __init__(self, _index: BM25) -> None:
        super().__init__()
        self.retrieve = dspy.Retrieve(k=K)
        self.generate = dspy.ChainOfThought("context, question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.generate(context=self.retrieve(question).passages, question=question)


class Searching(dspy.Module):
    """A search that no part of the module shows."""

    def __init__(self, index: BM25) -> None:
        super().__init__()
        self.generate = dspy.ChainOfThought("context, question -> answer")
        self.find = [lambda query: [passage.text for passage in index(query, k=K)]]

    def forward(self, question: str) -> dspy.Prediction:
        return self.generate(context="\n\n".join(self.find[0](question)), question=question)


class Parts(dspy.Module):
    """Algorithm 1 of its parts, which returns what `Answering` returns."""

    def __init__(self, index: BM25) -> None:
        super().__init__()
        self.blending, self.select = bf.Blending(index, k=K), bf.KnowledgeFilter()
        self.answering = bf.Answering()

    def forward(self, question: str) -> dspy.Prediction:
        retrieved = self.blending(question=question).retrieved.values()
        kept = [self.select(question=question, passages=passages).passages for passages in retrieved]
        return self.answering(question=question, knowledge=bf.union(kept))


class Stating(Parts):
    """The same, which says what it kept, and not what it searched."""

    def forward(self, question: str) -> dspy.Prediction:
        retrieved = self.blending(question=question).retrieved.values()
        kept = bf.union(self.select(question=question, passages=passages).kept for passages in retrieved)
        return dspy.Prediction(**self.answering(question=question, knowledge=kept), knowledge=kept)


class TwoHops(dspy.Module):
    """ITER-RETGEN by hand, in an own `aforward`."""

    def __init__(self, index: BM25) -> None:
        super().__init__()
        self.index, self.answering = [index], bf.Answering("blendfilter/external")

    async def aforward(self, question: str) -> dspy.Prediction:
        first = self.index[0](question, k=K)
        reasoning = await self.answering.reasoning(question, first)
        second = self.index[0](f"{' '.join(reasoning.split())} {question}", k=K)
        reasoning = await self.answering.reasoning(question, second)
        return dspy.Prediction(answer=await self.answering.conclude(question, reasoning))


@pytest.mark.parametrize(
    ("program", "method"),
    [
        (Plain, lambda index: bf.ChainOfThought(index, k=K)),
        (Searching, lambda index: bf.ChainOfThought(index, k=K)),
        (Parts, lambda index: bf.BlendFilter(index, k=K)),
        (Stating, lambda index: bf.BlendFilter(index, k=K)),
        (TwoHops, lambda index: bf.IterRetGen(index, k=K)),
    ],
    ids=["dspy.Retrieve", "a function", "Blending and KnowledgeFilter", "knowledge", "two hops"],
)
def test_losses_are_those_of_the_method_that_says_what_it_does(
    program: Callable[..., Any], method: Callable[..., Any], index: BM25, every: Questions, ran: Callable[..., Run]
) -> None:
    """Whether gold was retrieved and kept; the answers may differ, where the prompts do."""
    with dspy.context(rm=index):
        own = ran(program(index), every, "own")
    ours = ran(method(index), every, "ours")
    reached = {"not_retrieved": 0, "right_without_gold": 0, "filtered_away": 1, "answered_wrong": 2, "right": 2}
    for row, known in zip(own.rows, ours.rows, strict=True):
        if row["correct"] == known["correct"]:
            assert row["loss"] == known["loss"], row["id"]
        elif "right_without_gold" not in (row["loss"], known["loss"]):  # which tells not where it was lost
            assert reached[row["loss"]] == reached[known["loss"]], row["id"]
        assert {*row["knowledge"]} == {*known["knowledge"]}, row["id"]
    assert own.metrics["retrieval"]["union"]["recall"] == ours.metrics["retrieval"]["union"]["recall"]
    assert own.metrics["retrieval"]["kept"]["recall"] == ours.metrics["retrieval"]["kept"]["recall"]


def test_losses_are_what_the_journal_shows(index: BM25, every: Questions, ran: Callable[..., Run]) -> None:
    """Reckoned anew from the searches and prompts on file."""
    run = ran(Searching(index), every)
    titles = {record["key"]: record["title"] for record in journaled(run.folder, "passage")}
    found = {record["query"]: {titles[key] for key in record["passages"]} for record in journaled(run.folder, "search")}
    for row in run.rows:
        gold = {*row["gold_titles"]} <= found[row["question"]]
        assert (
            row["loss"]
            == {
                (True, True): "right",
                (True, False): "right_without_gold",
                (False, True): "answered_wrong",
                (False, False): "not_retrieved",
            }[row["correct"], gold]
        )
    assert run.losses()["not_retrieved"] < sum(not row["correct"] for row in run.rows)
    assert [passage.title for context in [next(iter(_contexts(run)))] for passage in context.kept]


def _contexts(run: Run) -> Any:
    from blendfilter.evaluation.run_passages import contexts

    return contexts(run)


def test_two_indexes_are_asked_the_same(index: BM25, questions: Questions, ran: Callable[..., Run]) -> None:
    passages = index.passages
    halves = [BM25.build(passages[: len(passages) // 2]), BM25.build(passages[len(passages) // 2 :])]

    class Both(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generate = dspy.ChainOfThought("context: list[str], question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            found = [passage for half in halves for passage in half(question, k=K)]
            return self.generate(context=[passage.line for passage in found], question=question)

    run = ran(Both(), questions)
    for row in run.rows:
        assert len(row["knowledge"]) == len(halves) * K
        assert [*row["queries"].values()] == [row["question"]] * 2


def test_a_last_hop_that_lost_what_the_first_one_found_filtered_nothing(
    index: BM25, every: Questions, ran: Callable[..., Run]
) -> None:
    run = ran(bf.IterRetGen(index, k=2), every)
    assert run.losses()["filtered_away"] == 0
    lost = [
        row
        for row in run.rows
        if row["retrieval"]["q"]["recall"] == 1 > row["retrieval"]["iter_2"]["recall"] and not row["correct"]
    ]
    assert lost, "the sample has such questions"
    assert {row["loss"] for row in lost} == {"not_retrieved"}


def test_what_no_search_and_no_title_shows_is_unknown(index: BM25, every: Questions, ran: Callable[..., Run]) -> None:
    towns = [passage.text for passage in index.passages if "town" in passage.text][:4]

    class Elsewhere(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generate = dspy.ChainOfThought("context: list[str], question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            return self.generate(context=towns, question=question)

    run = ran(Elsewhere(), every)
    assert run.losses() == dict.fromkeys(run.losses(), 0) | {"unknown": len(every)}
    assert run.metrics["retrieval"] == {}
    assert "unknown: the program shows no passages         40  100.0" in run.report()
    titled = ran(Elsewhere(), every, "titled")
    assert titled.losses() == run.losses()
    towns[:] = [f"Town {at} | {text}" for at, text in enumerate(towns)]
    lines = ran(Elsewhere(), every, "lines")
    assert "unknown" not in lines.losses()
    assert lines.losses()["filtered_away"] == 0


def test_a_run_with_unknown_losses_is_resumed_replayed_and_compared(
    index: BM25, questions: Questions, tmp_path: Path, ran: Callable[..., Run]
) -> None:
    program = dspy.ChainOfThought("facts, question -> answer")
    rows = [{"question": each.question, "answer": "x", "gold_titles": ["T"], "facts": "w " * 40} for each in questions]
    run = ran(program, rows, inputs=["question", "facts"])
    assert run.losses()["unknown"] == 6
    before = stable(run.folder)
    ran(program, rows, inputs=["question", "facts"])
    ran(program, rows, inputs=["question", "facts"], replay=True)
    assert stable(run.folder) == before
    assert bf.compare(run, ran(program, rows, "other", inputs=["facts", "question"])).n == 6
    assert run.html(path=tmp_path / "page.html").is_file()


def test_unknown_losses_are_drawn(index: BM25, questions: Questions, tmp_path: Path, ran: Callable[..., Run]) -> None:
    pytest.importorskip("matplotlib")
    rows = [{"question": each.question, "answer": "x", "gold_titles": ["T"], "facts": "w " * 40} for each in questions]
    run = ran(dspy.ChainOfThought("facts, question -> answer"), rows, inputs=["question", "facts"])
    drawn = bf.plot(run, tmp_path / "losses.svg", "losses")
    assert "#c4c4c4" in drawn.read_text(), "the colour of what is unknown"


# --- provenance, step by step -----------------------------------------------------------------------------------------

LONG = "The light on Skerry Rock was kept for thirty years by Ada Brennock, who came from Tolm in a rowing boat."
OTHER = "Heather honey of Quillmere is sold in both of its villages on every market day but one in the month of May."
A, B = Passage("a", "Skerry Light", LONG), Passage("b", "Honey", OTHER)
ASKED = "Who kept the light?"


@dataclass
class Citing:
    text: str


def read_from(answer: Any, *steps: TracedStep, found: Any = None) -> tuple[list[str], bool]:
    seen = provenance(ASKED, answer, {("light", 2, ""): [A, B]} if found is None else found, steps, ())
    return [passage.id for passage in seen.kept], seen.whole


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([A, B], ["a", "b"]),
        ([A.line], ["a"]),
        (f"[1] «{B.text.upper()}»", ["b"]),
        ({"Skerry Light": LONG}, ["a"]),
        ([{"text": LONG[20:95]}], ["a"]),
        ([dspy.Example(title="Skerry Light", text=LONG)], ["a"]),
        ([Citing(LONG)], ["a"]),
        ("Skerry Light and Honey", []),
        ([], []),
    ],
    ids=[
        "passages",
        "a line",
        "in a text",
        "by title",
        "a piece",
        "an example",
        "a dataclass",
        "titles alone",
        "nothing",
    ],
)
def test_a_passage_is_kept_where_the_input_holds_it(given: Any, kept: list[str]) -> None:
    assert read_from("Ada", TracedStep([ASKED, given], ["Ada"])) == (kept, True)


@pytest.mark.parametrize(
    ("given", "titles"),
    [
        ([A.line, B.line], ["Skerry Light", "Honey"]),
        (f"{A.line}\n\n{B.line}", ["Skerry Light", "Honey"]),
        ([f"[1] {A.line}", f"[2] {B.line}"], ["Skerry Light", "Honey"]),
        (f"1. {A.line}\n2. {B.line}", ["Skerry Light", "Honey"]),
        ([f"1. FC {A.line}", B.line], ["1. FC Skerry Light", "Honey"]),
        ([{"title": "Honey", "text": OTHER}], ["Honey"]),
        ([{"text": OTHER}], None),
        ([{"words": OTHER}], None),
        (f"Honey: {OTHER}", None),
    ],
)
def test_without_a_search_passages_are_known_by_their_titles(given: Any, titles: list[str] | None) -> None:
    seen = provenance(ASKED, "Ada", {}, [TracedStep([given, ASKED], ["Ada"])], ())
    assert ([passage.title for passage in seen.kept], seen.whole) == (titles or [], titles is not None)


def test_a_script_without_spaces() -> None:
    one = Passage(
        "1", "灯塔", "斯凯里岩上的灯塔由艾达看守了三十年，她从托尔姆乘船而来。灯塔由灰色石头建成，她从未结婚。"
    )
    two = Passage("2", "托尔姆", "托尔姆是奥姆兰西岸的一个港口小镇，每逢星期四在老榆树下举行集市，离码头不远。")
    step = TracedStep([[one.text[:20], "谁看守灯塔？"]], ["艾达"])
    assert read_from("艾达", step, found={("灯塔", 2, ""): [one, two]}) == (["1"], True)


def test_a_sentence_that_two_passages_share_is_of_the_one_that_is_there_whole() -> None:
    shared = "The church bell was saved by the villagers and taken to Upper Quill."
    one, two = Passage("1", "Bells", f"A film. {shared}"), Passage("2", "Harrup", f"A village below a dam. {shared}")
    step = TracedStep([[one.line], ASKED], ["Ada"])
    assert [each.id for each in step.reads([two, one])] == ["1"]
    assert {each.id for each in TracedStep([[shared]], ["Ada"]).reads([two, one])} == {"1", "2"}, "either may be meant"


def test_a_phrase_in_the_piece_of_one_passage_is_not_of_another() -> None:
    phrase = "is one of the many small islands in the sea to the west of it"
    one = Passage("1", "Tolm", f"Tolm {phrase}, and has a lighthouse. Nobody lives there.")
    two = Passage("2", "Quill", f"Quill {phrase}. Honey is made there.")
    step = TracedStep([[one.text[:90]]], ["Ada"])
    assert [each.id for each in step.reads([one, two])] == ["1"]
    assert {each.id for each in TracedStep([[one.text[:90], two.text[:90]]], ["Ada"]).reads([one, two])} == {"1", "2"}
    short = Passage("3", "Ern", "Ern is an isle. It has a church that was built in the year of the great storm.")
    assert TracedStep([["Ern: Ern is an isle."]], ["Ada"]).reads([one, short]) == [short], "a line with its title"


def test_escaped_texts_are_read_as_they_were() -> None:
    text = 'The "Café" – of Tolm & Quill – is open in May; and "more" – so they say – in the "summer" – till one.'
    passage = Passage("1", "Café", text)
    for given in (json.dumps({"text": text}), f"<p>{html.escape(text)}</p>", json.dumps(f"a\n{text}")):
        step = TracedStep([given], ["Ada"])
        assert read_from("Ada", step, found={("open", 1, ""): [passage]}) == (["1"], True)
        assert step.read.hold_whole(TracedStep([text], []).read.texts[0])


def test_a_piece_that_a_step_was_told_is_not_of_another_passage() -> None:
    said = f"{LONG[:60]} So the answer is Ada."
    like = Passage("c", "Light", f"{LONG[:60]} and so on.")
    found = {("light", 3, ""): [A, B, like]}
    answer, short = TracedStep([[A.line]], [said]), TracedStep([said], ["Ada"])
    assert read_from("Ada", answer, short, found=found) == (["a"], True)


def test_the_words_of_a_step_lead_to_what_it_read() -> None:
    notes = TracedStep([[A.line], ASKED], ["Brennock kept the rock's light, says the passage."])
    answer = TracedStep([[notes_text(notes)], ASKED], ["Ada Brennock"])
    assert read_from("Ada Brennock", notes, answer) == (["a"], True)
    judge = TracedStep([[A.line, B.line], ASKED], ["0 is relevant, 1 is not relevant to it at all."])
    assert read_from("Ada Brennock", judge, TracedStep([[B.line]], ["Ada Brennock"])) == (["b"], True)
    copied = TracedStep([[A.line, B.line]], [B.text])  # a filter that copies what it keeps
    assert read_from("Ada", copied, TracedStep([[B.text]], ["Ada"])) == (["b"], True)


@pytest.mark.parametrize("line", ["Tolm", "A: Tolm", "[1] Tolm.", "Whence did she come? Tolm", "Notes:\nTolm\nOrm"])
def test_a_short_answer_is_read_where_a_line_ends_with_it(line: str) -> None:
    first, last = TracedStep([A.line, ASKED], ["Tolm"], "reply"), TracedStep([line, ASKED], ["Ada"], "answer")
    assert read_from("Ada", first, last) == (["a"], True)


@pytest.mark.parametrize("line", ["Tolm Harbour", f"[1] {B.line[:60]} in Tolm", ASKED])
def test_a_word_inside_of_a_line_is_not_an_answer_that_was_read(line: str) -> None:
    first, last = TracedStep([A.line, ASKED], ["Tolm"], "reply"), TracedStep([line, ASKED], ["Ada"], "answer")
    assert "a" not in read_from("Ada", first, last)[0]


def notes_text(step: TracedStep) -> str:
    return " ".join(step.outputs[0])


def test_of_steps_that_said_the_same_the_one_that_the_other_led_to_was_read() -> None:
    said = "They kept it together for many long years, so they did."
    first, second = TracedStep([[A.line]], [said]), TracedStep([[B.line]], [said])
    asked_on = {(ASKED, 1, ""): [A], (f"{said} {ASKED}", 1, ""): [B]}
    assert read_from("Ada", first, second, TracedStep([said], ["Ada"]), found=asked_on) == (["b"], True)
    assert read_from("They kept it", first, second, found=asked_on) == (["b"], True)


def test_which_of_several_steps_side_by_side_came_first_changes_nothing() -> None:
    said = "Nothing in this passage bears upon the question that was asked."
    one, two = TracedStep([A.line], [said], "note"), TracedStep([B.line], [said], "note")
    last = TracedStep([[said, said]], ["Ada"], "answer")
    assert read_from("Ada", one, two, last) == read_from("Ada", two, one, last) == (["a", "b"], True)
    yes = [TracedStep([[passage.line]], ["Ada"], "answer") for passage in (A, B)]
    assert read_from("Ada", *yes) == read_from("Ada", *reversed(yes)) == (["a", "b"], True), "a vote"
    judges = [TracedStep([passage.line], ["yes"], "relevant") for passage in (A, B)]
    assert read_from("yes", *judges, TracedStep([[B.line]], ["yes"], "answer")) == (["b"], True), "no vote"


def test_an_answer_that_code_made() -> None:
    parts = [TracedStep([A.line], ["Ada Brennock"], "item"), TracedStep([B.line], ["heather"], "item")]
    none = TracedStep(["Another passage."], ["none"], "item")
    found = {("light", 2, ""): [A, B, Passage("c", "Another", "Another passage.")]}
    for answer in (["Ada Brennock", "heather"], "Ada Brennock; Heather"):
        assert read_from(answer, *parts, none, found=found) == (["a", "b"], True), "of what several steps said"
    query = TracedStep([ASKED], ["keeper of the rock's light"], "query")
    assert read_from("Tolm", query) == (["a", "b"], True), "of what was found, which no model read"


def test_lines_of_few_words_are_known_where_they_are_lines_of_their_own() -> None:
    short = Passage("s", "Quill", f"{LONG} She never married anybody. It rained.")
    found = {("what was found", 2, ""): [short, B]}
    for given in (
        ["She never married anybody."],
        "Of old:\nShe never married anybody.",
        ["It rained, and", "she never married anybody"],
    ):
        assert read_from("Ada", TracedStep([given, ASKED], ["Ada"]), found=found)[0] == ["s"]
    for given in ("Nobody: she never married anybody.", ["It rained."], ["she never married Tom"]):
        assert read_from("Ada", TracedStep([given, ASKED], ["Ada"]), found=found)[0] == []
    named = Passage(
        "n", "The Isle of Quill", "Of the Isle of Quill little is known, and of its light even less than that."
    )
    titles = TracedStep([["The Isle of Quill", "Honey"], ASKED], ["Ada"])
    assert read_from("Ada", titles, found={("isle", 2, ""): [named, B]}) == ([], True)


def test_the_answer_is_found_by_its_words_else_it_is_the_last_step() -> None:
    first, last = TracedStep([[A.line]], ["So it was Ada Brennock."], "one"), TracedStep([[B.line]], ["No idea."])
    assert read_from("ADA  brennock", first, last)[0] == ["a"]
    assert read_from("Somebody else", first, last)[0] == ["b"]
    assert read_from(["Ada Brennock"], first, last)[0] == ["a"]
    calls = called([{"prompt": [["user", A.line]], "reply": "Ada"}])
    assert [each.id for each in provenance(ASKED, "Ada", {("light", 2, ""): [A, B]}, [last], calls).kept] == ["a"]


def test_text_from_elsewhere_leaves_open_what_was_kept() -> None:
    looked_up = "Tolm Harbour is the only port of the island and lies in the lee of the rock that bears the light."
    assert read_from("Ada", TracedStep([[A.line, looked_up]], ["Ada"])) == (["a"], False)
    assert read_from("Ada", TracedStep([[A.line, "Nothing was found."]], ["Ada"])) == (["a"], True)
    assert read_from("Ada", TracedStep([[looked_up]], ["Ada"]), found={}) == ([], False)
    assert read_from("Ada", TracedStep([ASKED], ["Ada"]), found={}) == ([], True)
    many = [Passage(str(at), f"Town {word} of Ormland", f"{word} {OTHER}") for at, word in enumerate("abcdefgh")]
    titles = f"Other pages: {', '.join(passage.title for passage in many)}."
    assert read_from("Ada", TracedStep([A.line, titles], ["Ada"]), found={("towns", 9, ""): [A, *many]}) == (
        ["a"],
        True,
    )
    failed = f"[[ ## observation_0 ## ]]\nExecution error in search: {looked_up}\n\n[[ ## observation_1 ## ]]\n"
    assert read_from("Ada", TracedStep([failed + A.line], ["Ada"])) == (["a"], True)
    assert read_from("Ada", TracedStep([failed + looked_up], ["Ada"])) == ([], False)
    assert read_from("Ada", found={}) == ([], False)
    assert read_from("Ada") == (["a", "b"], True), "code alone read what was found"


def test_a_search_that_only_served_to_ask_on_found_nothing_for_the_answer() -> None:
    hop = TracedStep([[A.line], ASKED], ["Where did the keeper of the rock's light come from?"])
    found = {(ASKED, 1, ""): [A], (" ".join(hop.outputs[0]), 1, ""): [B]}
    answer = TracedStep([[B.line], ASKED], ["Ada"])
    seen = provenance(ASKED, "Ada", found, [hop, answer], ())
    assert [each.id for each in seen.retrieved] == ["b"]
    assert seen.queries == {"q": ASKED, "search_2": " ".join(hop.outputs[0])}
    entity = TracedStep([[A.line], ASKED], ["Quillmere"])
    of_it = {(ASKED, 1, ""): [A], ("what Quillmere sells", 1, ""): [B]}
    assert provenance(ASKED, "Ada", of_it, [entity, answer], ()).retrieved == [B]
    judge = TracedStep([[A.line], ASKED], ["It is irrelevant to what was asked here."])
    seen = provenance(ASKED, "Ada", found, [hop, judge, answer], ())
    assert [each.id for each in seen.retrieved] == ["a", "b"], "a filter read it too"


def test_calls_that_dspy_does_not_trace(index: BM25, questions: Questions, tmp_path: Path) -> None:
    """They are read in the order in which they came; the names in the journal say nothing of it."""

    class Raw(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.imagine = dspy.Predict("question -> passage")

        def forward(self, question: str) -> dspy.Prediction:
            found = index(self.imagine(question=question).passage, k=K)
            lines = "\n".join(passage.line for passage in found)
            notes = dspy.settings.lm(f"Sum up: {lines}")[0]
            return dspy.Prediction(answer=dspy.settings.lm(f"{notes}\nIn a word?")[0].split(": ")[1])

    def say(prompt: str) -> str:
        if "Sum up" in prompt:
            return f"In these lines we are told of things that were so {len(prompt)} years ago."
        if "In a word" in prompt:
            return f"In a word: Ada {prompt[:60].split()[-2]}"
        asked = prompt.rsplit("[[ ## question ## ]]", maxsplit=1)[-1].split("Respond", maxsplit=1)[0].strip()
        return f"[[ ## passage ## ]]\nIn a word: Ada. {asked}\n\n[[ ## completed ## ]]"

    with dspy.context(adapter=dspy.ChatAdapter()):
        run, _ = done_by(Raw(), questions, tmp_path / "raw", engine=CountingEngine(reply=say))
    assert run.errors == 0
    assert all(len(row["knowledge"]) == K for row in run.rows)


def test_what_runs_side_by_side_gives_the_same_bytes(index: BM25, questions: Questions, tmp_path: Path) -> None:
    class MapReduce(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.note = dspy.Predict("passage, question -> note")
            self.answer = dspy.Predict("notes: list[str], question -> answer")

        async def aforward(self, question: str) -> dspy.Prediction:
            lines = [passage.line for passage in index(question, k=K)]
            notes = await asyncio.gather(*(self.note.acall(passage=line, question=question) for line in lines))
            return await self.answer.acall(notes=[each.note for each in notes], question=question)

    def say(prompt: str) -> str:
        said = "It says nothing at all of what was asked here of me." if "`note`" in prompt else "none"
        name = "note" if "`note`" in prompt else "answer"
        return f"[[ ## {name} ## ]]\n{said}\n\n[[ ## completed ## ]]"

    with dspy.context(adapter=dspy.ChatAdapter()):
        run, _ = done_by(MapReduce(), questions, tmp_path / "run", engine=CountingEngine(slowly(0.003), say))
        before = stable(run.folder)
        assert all(len(row["knowledge"]) == K for row in run.rows)
        done_by(MapReduce(), questions, tmp_path / "run", engine=CountingEngine(reply=say), replay=True)
        again, _ = done_by(MapReduce(), questions, tmp_path / "again", engine=CountingEngine(reply=say))
    assert stable(run.folder) == stable(again.folder) == before


def test_a_trace_of_dspys_gives_the_fields_of_the_signature() -> None:
    predictor = dspy.Predict("context, question -> answer")
    (step,) = traced([(predictor, {"context": LONG, "note": OTHER}, dspy.Prediction(answer="Ada"))])
    assert (step.reads([A, B]), step.outputs) == ([A], [("ada",)])


# --- any signature, any rows ------------------------------------------------------------------------------------------


class Rag(dspy.Module):
    """One search and one predictor, whose output is its `response`."""

    def __init__(self, search: Callable[[str], list[str]]) -> None:
        super().__init__()
        self.search = [search]
        self.respond = dspy.ChainOfThought("context, question -> response")

    def forward(self, question: str) -> dspy.Prediction:
        return self.respond(context=self.search[0](question), question=question)


class Hops(dspy.Module):
    """Queries and notes, hop by hop, for a claim."""

    def __init__(self, search: Callable[[str], dict[str, str]], hops: int = 2) -> None:
        super().__init__()
        self.search, self.hops = [search], hops
        self.generate_query = dspy.ChainOfThought("claim, notes -> query")
        self.append_notes = dspy.ChainOfThought("claim, notes, context -> new_notes: list[str], titles: list[str]")

    def forward(self, claim: str) -> dspy.Prediction:
        notes, titles = list[str](), list[str]()
        for _ in range(self.hops):
            query = self.generate_query(claim=claim, notes=notes).query
            found = self.append_notes(claim=claim, notes=notes, context=self.search[0](query))
            notes += found.new_notes
            titles += found.titles
        return dspy.Prediction(notes=notes, titles=titles)


def recalled(example: Any, prediction: Any, trace: Any = None) -> Any:
    """The share of an example's titles among a program's first five."""
    return sum(title in prediction.titles[:5] for title in example.titles) / len(example.titles)


@pytest.fixture
def claims(questions: Questions) -> list[Any]:
    """Rows as DSPy's tutorials have them: their inputs are named, and no answer is there."""
    return [dspy.Example(claim=each.question, titles=list(each.gold_titles)).with_inputs("claim") for each in questions]


def test_the_question_is_the_first_input_that_is_a_text(questions: Questions, ran: Callable[..., Run]) -> None:
    """Of rows without a field of that name; what stands beside it may come first in the alphabet, or in the row."""
    rows = [
        dspy.Example(contexts=["A line."], query=each.question, answer="x").with_inputs("query", "contexts")
        for each in questions
    ]
    run = ran(lambda query, contexts: contexts[0], rows)
    assert [(row["question"], row["answer"]) for row in run.rows] == [(row.query, "A line.") for row in rows]


def test_a_rag_program_whose_output_is_a_response(index: BM25, questions: Questions, ran: Callable[..., Run]) -> None:
    rows = [
        dspy.Example(question=each.question, response=each.golden_answers[0]).with_inputs("question")
        for each in questions
    ]
    rag = Rag(lambda query: [passage.line for passage in index(query, k=K)])
    run = ran(rag, rows, answer="response")
    assert (run.errors, run.metrics["n"]) == (0, 6)
    assert [row["golden_answers"] for row in run.rows] == [[row.response] for row in rows]
    assert {row["answer"] for row in run.rows} != {""}
    assert run.settings["method"]["call"] == {"inputs": {"question": "question"}, "answer": "response"}
    with pytest.raises(BadArgument, match=r"without 'answer' \(it has: reasoning, response; answer= names"):
        ran(rag, questions, "unnamed")


def test_a_multi_hop_program_for_claims(index: BM25, claims: list[Any], ran: Callable[..., Run]) -> None:
    hops = Hops(lambda query: {passage.title: passage.text for passage in index(query, k=K)})
    run = ran(hops, claims, metrics=[recalled], answer="titles")
    assert (run.errors, [*run.scores]) == (0, ["recalled"])
    assert [row["question"] for row in run.rows] == [row.claim for row in claims]
    assert all(row["queries"] and row["golden_answers"] == [] for row in run.rows)
    by_hand = [
        sum(title in row["answer"] for title in each.titles) / 2 for each, row in zip(claims, run.rows, strict=True)
    ]
    assert [row["recalled"] for row in run.rows] == pytest.approx(by_hand, abs=1e-6)
    assert "[" not in run.rows[0]["answer"], "titles as a reader would say them"


def test_an_agent_with_tools(index: BM25, claims: list[Any], ran: Callable[..., Run]) -> None:
    def search_wikipedia(query: str) -> list[str]:
        """Find passages."""
        return [passage.line for passage in index(query, k=K)]

    agent = dspy.ReAct("claim -> titles: list[str]", tools=[search_wikipedia], max_iters=3)
    run = ran(agent, claims, metrics=[recalled], answer="titles")
    assert run.errors == 0
    assert all(row["queries"] for row in run.rows)


def test_rows_of_ours_under_the_names_of_a_program(index: BM25, questions: Questions, ran: Callable[..., Run]) -> None:
    hops = Hops(lambda query: {passage.title: passage.text for passage in index(query, k=K)})

    def any_title(example: Any, prediction: Any, trace: Any = None) -> bool:
        return bool({*prediction.titles} & {*example.gold_titles})

    run = ran(hops, questions, inputs={"claim": "question"}, answer="titles", metrics=[any_title])
    assert [row["id"] for row in run.rows] == [each.id for each in questions]
    assert sum(run.losses().values()) == 6


async def coroutine(ask: str) -> str:
    return "yes" if "?" in ask else "no"


PARTLY = partial(lambda k, question: "yes", 3)


@pytest.mark.parametrize("function", [lambda question: "yes", coroutine, lambda q, k=3: {"answer": "yes"}, PARTLY])
def test_a_plain_function_is_a_program(function: Any, questions: Questions, ran: Callable[..., Run]) -> None:
    run = ran(function, questions)
    assert [row["answer"] for row in run.rows] == ["yes"] * 6
    assert "test_own_programs" in run.settings["method"]["name"]


def test_rows_may_bring_the_context_that_a_program_reads(ran: Callable[..., Run]) -> None:
    """DSPy's commonest signature: "context, question -> answer", over rows that have both."""
    rows = [
        {"question": "Who?", "context": "Ane keeps the mill.", "answer": "Ane", "gold_titles": ["Mill"]},
        {
            "question": "What?",
            "context": [{"title": "Mill", "text": "A mill."}],
            "answer": "A",
            "gold_titles": ["Mill"],
        },
    ]
    run = ran(lambda context, question: context[0].split()[0], rows, inputs=["context", "question"])
    assert [row["answer"] for row in run.rows] == ["Ane", "Mill"]
    predict = dspy.Predict("context, question -> answer")
    examples = [dspy.Example(**row).with_inputs("context", "question") for row in rows]
    run = ran(predict, examples, "predicted")
    prompts = json.dumps([call["prompt"] for call in journaled(run.folder)])
    assert (prompts.count("Mill | A mill."), prompts.count("Ane keeps the mill.")) == (1, 1)


@pytest.mark.parametrize(("said", "right"), [(True, True), (False, "no"), (1790.0, 1790), (3.5, "3.5"), (None, "")])
def test_an_answer_is_read_as_golden_ones_are(said: Any, right: Any, ran: Callable[..., Run]) -> None:
    """`answer: bool` is yes or no, and a float of a whole number is that number."""
    rows = [{"question": "Is it?", "answer": right or "no"}]
    run = ran(lambda question: {"answer": said}, rows)
    assert run.scores["em"] == (said is not None)


def test_another_function_is_another_run(questions: Questions, ran: Callable[..., Run]) -> None:
    ran(lambda question: "yes", questions)
    with pytest.raises(RunMismatch, match="code"):
        ran(lambda question: "no", questions)


def test_a_mended_program_goes_on_in_the_folder_where_every_question_failed(
    questions: Questions, ran: Callable[..., Run]
) -> None:
    """What stands in the way of a first success is a mistake: its settings are worth nothing, its calls are."""

    class Responding(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.respond = dspy.Predict("question -> response")

        def forward(self, question: str) -> dspy.Prediction:
            return self.respond(question=question)

    with pytest.raises(BadArgument, match="it has: response; answer= names the one to score"):
        ran(Responding(), questions)
    with pytest.raises(RunFailed, match="the metric nothing raised"):
        ran(Responding(), questions, answer="response", metrics=[nothing])
    run = ran(Responding(), questions, answer="response", metrics=["f1"])
    assert (run.errors, list(run.scores), run.settings["metrics"]) == (0, ["f1"], ["f1"])
    assert len(journaled(run.folder)) == len(questions), "no call is made twice"
    with pytest.raises(RunMismatch, match=r"metrics was \['f1'\]"):  # answers, now, that other settings would mix with
        ran(Responding(), questions, answer="response")


@pytest.mark.parametrize("package", ["pandas", "polars", "datasets"])
def test_rows_of_a_frame(package: str, questions: Questions, ran: Callable[..., Run]) -> None:
    library = pytest.importorskip(package)
    columns = {
        "question": [each.question for each in questions],
        "answer": [each.golden_answers[0] for each in questions],
    }
    frame = library.Dataset.from_dict(columns) if package == "datasets" else library.DataFrame(columns)
    run = ran(lambda question: "yes", frame)
    assert [row["question"] for row in run.rows] == columns["question"]


class Async(dspy.Module):
    async def forward(self, claim: str) -> dspy.Prediction:
        return dspy.Prediction(titles=[])


def test_an_async_forward_is_refused_before_anything_is_made(
    questions: Questions, ran: Callable[..., Run], tmp_path: Path
) -> None:
    with pytest.raises(BadArgument, match=r"^Async's forward is async, and nothing awaits it: name it aforward$"):
        ran(Async(), questions, inputs={"claim": "question"}, answer="titles")
    assert not (tmp_path / "run").exists()


def nothing(example: Any, prediction: Any, trace: Any = None) -> float:
    return float(prediction.nowhere)


@pytest.mark.parametrize(
    ("options", "error", "line"),
    [
        (
            {"inputs": {"claim": "klaim"}},
            BadArgument,
            "no row has a field 'klaim' for the input 'claim' .they have",
        ),
        ({"inputs": {"question": "claim"}}, BadArgument, r"Hops takes \(claim\) and is called with question "),
        ({"inputs": "claim"}, BadArgument, "inputs names the program's inputs and the fields for them"),
        ({"inputs": []}, BadArgument, "inputs names the program's inputs"),
        ({"answer": "title"}, BadArgument, r"without 'title' \(it has: notes, titles; answer= names"),
        ({"metrics": [nothing]}, RunFailed, "the metric nothing raised AttributeError"),
        ({"metrics": None}, BadData, "item 1: field 'answer' is missing"),
    ],
)
def test_what_cannot_be_is_one_line(
    options: dict[str, Any], error: type[Exception], line: str, index: BM25, claims: list[Any], ran: Callable[..., Run]
) -> None:
    hops = Hops(lambda query: {passage.title: passage.text for passage in index(query, k=K)}, hops=1)
    with pytest.raises(error, match=line) as raised:
        ran(hops, claims, **{"answer": "titles", "metrics": [recalled], **options})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (dspy.Predict("claim -> titles"), r"Predict takes \(claim\) and is called with question"),
        (dspy.ChainOfThought("claim -> titles"), r"ChainOfThought takes \(claim\)"),
        (dspy.ReAct("claim -> titles", tools=[]), r"ReAct takes \(claim\)"),
        (lambda claim, notes: "yes", r"takes \(claim, notes\) and is called with question \(missing"),
    ],
    ids=["Predict", "ChainOfThought", "ReAct", "function"],
)
def test_a_call_that_a_program_does_not_take_is_refused_before_it(
    program: Any, line: str, questions: Questions, ran: Callable[..., Run]
) -> None:
    with pytest.raises(BadArgument, match=line):
        ran(program, questions)


def test_a_question_without_the_field_is_named(questions: Questions) -> None:
    with pytest.raises(BadArgument, match=r"question 'sw-q-000' has no field 'claim' for the input 'claim' \(it has: "):
        evaluate(Hops(dict), questions, lm="offline", inputs=["claim"], progress=False)


def test_a_program_that_returns_text_gives_its_answer(questions: Questions, ran: Callable[..., Run]) -> None:
    class Text(dspy.Module):
        def forward(self, question: str) -> str:
            return "yes"

    assert [row["answer"] for row in ran(Text(), questions, answer="response").rows] == ["yes"] * 6


@pytest.mark.parametrize(("answer", "said"), [(1871, "1871"), (True, "yes"), (["Tolm", "Quill"], "Tolm, Quill")])
def test_a_function_may_return_any_answer(
    answer: Any, said: str, questions: Questions, ran: Callable[..., Run]
) -> None:
    assert [row["answer"] for row in ran(lambda question: answer, questions).rows] == [said] * 6


def test_fields_of_a_program_that_have_our_names(index: BM25, questions: Questions, ran: Callable[..., Run]) -> None:
    """What a model was asked for is no statement of what was searched and read."""

    class Own(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generate = dspy.ChainOfThought("context: list[str], question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            lines = [passage.line for passage in index(question, k=K)]
            own = {"knowledge": "What I know.", "queries": [question], "branches": ["one"], "flags": ["sure"]}
            return dspy.Prediction(answer=self.generate(context=lines, question=question).answer, **own)

    run = ran(Own(), questions)
    assert run.errors == 0
    assert all(len(row["knowledge"]) == K and [*row["queries"]] == ["q"] for row in run.rows)


def test_a_plan_takes_the_same_arguments(index: BM25, claims: list[Any], questions: Questions) -> None:
    hops = Hops(lambda query: {passage.title: passage.text for passage in index(query, k=K)}, hops=1)
    planned = bf.plan(hops, questions, "offline", inputs={"claim": "question"}, answer="titles", sample=2)
    assert {stage.stage for stage in planned.stages} == {"generate_query", "append_notes"}


def test_the_record_of_a_usual_call_is_as_it_was(questions: Questions, ran: Callable[..., Run]) -> None:
    run = ran(dspy.Predict("question -> answer"), questions)
    assert "call" not in json.loads((run.folder / "run.json").read_text())["settings"]["method"]


# --- parts ------------------------------------------------------------------------------------------------------------


def test_parts_name_their_passages_alike(index: BM25) -> None:
    with dspy.context(lm=bf.connect("offline")):
        blended = bf.Blending(index, k=K)(question=ASKED)
        chosen = bf.KnowledgeFilter()(question=ASKED, passages=blended.passages)
        filtered = bf.FilteredSearch(index, "filco", k=K)(question=ASKED)
    assert blended.passages == bf.union(blended.retrieved.values())
    assert chosen.passages == chosen.kept
    assert filtered.passages == filtered.kept
    assert len(filtered.retrieved) == K


def test_a_filter_between_any_two(every: Questions, index: BM25, ran: Callable[..., Run]) -> None:
    class Mine(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.search = bf.FilteredSearch(index, bf.PassageFilter(1), k=K)
            self.respond = dspy.ChainOfThought("context: list[str], question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            passages = self.search(question=question).passages
            return self.respond(context=[passage.line for passage in passages], question=question)

    own = ran(Mine(), every, "own")
    ours = ran(bf.ChainOfThought(index, k=K, filter=bf.PassageFilter(1)), every, "ours")
    assert [row["knowledge"] for row in own.rows] == [row["knowledge"] for row in ours.rows]
    assert own.losses()["filtered_away"] > 0
    assert own.settings["retrievers"] == ours.settings["retrievers"]
