"""The set of prompts in the papers' shape (`--prompts paper`): their order and slots, in our words.

BlendFilter (Wang et al. 2024), appendix F; CDIT (Ma et al. 2024), Tables 5 to 8; FilCo (Wang et al. 2023), section 2.3;
BIDER (Jin et al. 2024), section 3.3.
What comes first in a prompt, and what after it, is asserted on the prompt as it is sent.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import dspy
import pytest
from isle import CHECK, LINES, QUESTION, REASONING, TASKS, ends_with_its_cue, inputs, nothing, predictors
from small_world import Command, small_eval

from blendfilter import BM25, BlendFilter, connect, evaluate, load
from blendfilter.asking import Ask, TaskWording
from blendfilter.compiling.programs import recipes_in
from blendfilter.errors import BadData, MissingFile, UnknownName
from blendfilter.evaluation.run_settings import settings_of
from blendfilter.filters.cdit import PHI1, PHI2, CDITFilter, Judge
from blendfilter.filters.filco import FilCoFilter
from blendfilter.lm.offline import read
from blendfilter.modules.methods import METHODS, make_method
from blendfilter.modules.ralm import RALM
from blendfilter.prompting import Prompts, own_prompts
from blendfilter.resources import sample

PAPER = "paper"
IN_ITS_SHAPE = {
    "blendfilter/external", "blendfilter/answer", "blendfilter/internal", "blendfilter/topic", "blendfilter/check",
    "blendfilter/ids", "blendfilter/ids_again", "blendfilter/short_answer", "cdit/word", "cdit/word_again",
    "cdit/answer", "filco/sentences", "filco/sentences_again", "filco/passages", "filco/passages_again",
    "filco/context", "filco/keep", "bider/refine",
}  # fmt: skip
"""Those of the set, and the second requests that extend one of them."""
IN_THE_PAPERS = [
    ("external", "hotpotqa", "instructions demos knowledge question", "BlendFilter, appendix F"),
    ("answer", "twowiki", "instructions demos knowledge question", "BlendFilter, appendix F"),
    ("internal", "hotpotqa", "instructions question", "BlendFilter, appendix F"),
    ("topic", "hotpotqa", "instructions question", "BlendFilter, appendix F"),
    ("check", "hotpotqa", "topic knowledge question instructions", "BlendFilter, appendix F, HotPotQA and 2Wiki"),
    ("check", "strategyqa", "instructions question knowledge", "BlendFilter, appendix F, StrategyQA"),
    ("ids", "hotpotqa", "instructions context question knowledge", "BlendFilter, appendix F, second step"),
    ("short_answer", "strategyqa", "instructions context question", "BlendFilter, appendix F, second step"),
    ("consistent_word", "popqa", "rules instructions question passage", "CDIT, appendix B.1, Table 6"),
    ("respond", "popqa", "knowledge question instructions", "CDIT, appendix B.2, Table 7"),
    ("helpful_sentences", "nq", "instructions question knowledge", "FilCo, section 2.3: q, then P"),
    ("helpful_passages", "nq", "instructions question knowledge", "FilCo, section 2.3: q, then P"),
    ("written_filco", "nq", "instructions question knowledge", "FilCo, section 2.3: M_ctx(q, P)"),
    ("written_passages", "nq", "instructions question knowledge", "FilCo, sections 2.3 and 4.2: q, then P"),
    ("written_bider", "nq", "instructions question knowledge", "BIDER, section 3.3: q, then D"),
]
"""The slots of a prompt on a task, in order, and where in the papers (PAPERS.md: what is decided there)."""
YES_NO = "The answer is always Yes or No, and nothing else."


def paper_predictors(task: str) -> dict[str, Ask]:
    """The predictors of the set on `task`, with the answerer of ralm."""
    found = {**predictors(task, prompts=PAPER), "respond": RALM(nothing, task=task, prompts=PAPER).respond}
    return {name: ask for name, ask in found.items() if ask.template.name in IN_ITS_SHAPE}


def given(task: str, ask: Ask, **changed: Any) -> dict[str, Any]:
    wording = TaskWording.of(task)
    switches = {"offer_none": wording.offer_none, "topic": "lighthouses" if wording.ask_topic else ""}
    return inputs(ask, **{**switches, **changed})


def prompt_of(name: str, task: str = "hotpotqa", **changed: Any) -> str:
    ask = paper_predictors(task)[name]
    ask.demos = []
    return ask.render(**given(task, ask, **changed))


def in_order(prompt: str, *parts: str) -> bool:
    """Whether all parts stand in the prompt, once, one behind the other."""
    assert [part for part in parts if prompt.count(part) != 1] == []
    return all(one < other for one, other in pairwise(map(prompt.index, parts)))


KNOWLEDGE = [f"knowledge {number}: {line}" for number, line in enumerate(LINES)]


@pytest.mark.parametrize(
    ("name", "task", "slots", "place"), IN_THE_PAPERS, ids=[f"{name}-{task}" for name, task, *_ in IN_THE_PAPERS]
)
def test_the_order_of_slots_is_the_papers(name: str, task: str, slots: str, place: str) -> None:
    ask = paper_predictors(task)[name]
    values = given(task, ask)
    text = {"instructions": ask.signature.instructions, "demos": "".join(demo.question for demo in ask.demos[:1])}
    for slot, value in values.items():
        text[slot] = value[0] if isinstance(value, list) else str(value)
    absent = {slot for slot in values if slot not in slots.split()} - {"offer_none"}
    assert {slot for slot in absent if text[slot]} == set(), place
    assert in_order(ask.render(**values), *(text[slot] for slot in slots.split())), place


class TestSlots:
    """In the papers' order, whatever the words are."""

    def test_the_external_step_and_the_answer_leave_the_form_to_the_demonstrations(self) -> None:
        external, answer = (paper_predictors("hotpotqa")[name] for name in ("external", "answer"))
        prompt = external.render(**inputs(external))
        assert prompt == answer.render(**inputs(answer))
        assert "So the answer is" not in external.signature.instructions
        demo = external.demos[-1]
        assert in_order(prompt, external.signature.instructions, demo.question, demo.reasoning, *LINES, QUESTION)

    def test_the_topics_cue_is_primed(self) -> None:
        prompt = prompt_of("topic")
        assert in_order(prompt, "general topic", f"Question: {QUESTION}", "Topic: the question belongs to")
        assert prompt.endswith("\nTopic: the question belongs to")

    @pytest.mark.parametrize("task", ["hotpotqa", "twowiki"])
    def test_the_checks_instruction_stands_behind_the_knowledge(self, task: str) -> None:
        prompt = prompt_of("check", task)
        words = paper_predictors(task)["check"].signature.instructions
        asked = (f"Question: {QUESTION}", words, "from 0 to 4", "Several", "Relevance (step by step):")
        assert in_order(prompt, "Forget what you know about lighthouses", *KNOWLEDGE, *asked)

    def test_on_strategyqa_before_it_and_before_the_question(self) -> None:
        prompt = prompt_of("check", "strategyqa")
        words = paper_predictors("strategyqa")["check"].signature.instructions
        asked = (words, "from 0 to 4", "none is relevant", f"Question: {QUESTION}")
        assert in_order(prompt, *asked, *KNOWLEDGE, "Relevance (step by step):")
        assert "Forget" not in prompt

    @pytest.mark.parametrize(("task", "said"), [("hotpotqa", "Several may"), ("strategyqa", "write none")])
    def test_ids_have_context_question_knowledge(self, task: str, said: str) -> None:
        first = (paper_predictors(task)["ids"].signature.instructions, "from 0 to 4", said)
        prompt = prompt_of("ids", task)
        assert in_order(prompt, *first, f"Context:\n{CHECK}", f"Question: {QUESTION}", *KNOWLEDGE, "\nIds:")
        again = prompt_of("ids_again", task)
        assert again.startswith(prompt.removesuffix("\nIds:"))
        assert in_order(again, *KNOWLEDGE, "Write only the relevant numbers", "\nIds:")

    def test_our_check_has_another_order(self) -> None:
        """The question comes first, whatever the task; the ids step has the paper's order in both sets."""
        ours = predictors("hotpotqa")
        for name in ("check", "ids"):
            assert in_order(ours[name].render(**inputs(ours[name])), f"Question: {QUESTION}", *KNOWLEDGE)
        assert prompt_of("check").index(KNOWLEDGE[0]) < prompt_of("check").index(QUESTION)

    def test_where_json_is_wanted_the_prompt_says_so(self) -> None:
        for name in ("blendfilter/ids", "filco/sentences", "filco/passages"):
            template = Prompts(PAPER)[name].compiled
            values = {"instructions": "I", "demos": [], "context": "c", "knowledge": LINES, "question": QUESTION}
            held = template.render(**values, offer_none=True, json=True)
            assert '{"ids": [numbers]}' in held
            assert '{"ids": []}' in held
            assert 'ids": [' not in template.render(**values, offer_none=True, json=False)
            assert '"ids": []' not in template.render(**values, offer_none=False, json=True)

    def test_the_short_answer_has_context_and_question(self) -> None:
        assert in_order(prompt_of("short_answer"), "few words", f"Context:\n{REASONING}", QUESTION, "\nAnswer:")
        assert in_order(prompt_of("short_answer", "strategyqa"), YES_NO, REASONING, QUESTION, "\nAnswer:")

    @pytest.mark.parametrize("rules", [("phi1",), ("phi1", "phi2")])
    def test_cdits_prompts_1_and_2_are_the_judges_with_one_rule_and_with_two(self, rules: tuple[str, ...]) -> None:
        judge = Judge("word", rules, prompts=PAPER)
        lines = [rule.line for rule in judge.rules]
        prompt = judge.consistent.render(**inputs(judge.consistent, rules=lines))
        said = ("### Instructions:", judge.consistent.signature.instructions, f"Question: {QUESTION}")
        assert in_order(prompt, "care", "### Rules:", *lines, *said, f"Passage: {LINES[1]}", "\nVerdict:")
        assert [each.line in prompt for each in (PHI1, PHI2)] == [True, len(rules) == 2]

    def test_cdits_answer_has_background_question_and_what_the_task_says(self) -> None:
        background = [f"[{number}] {line}" for number, line in enumerate(LINES, 1)]
        prompt = prompt_of("respond", "popqa")
        assert in_order(prompt, *background, f"### Instruction:\n{QUESTION}\nAnswer the question.\n\n### Response:")
        ask = RALM(nothing, task="popqa", rewrite=True, prompts=PAPER).respond
        rewritten = ask.render(**inputs(ask, knowledge=LINES[2:]))
        assert in_order(rewritten, QUESTION, LINES[1], "possible answer", "\n### Response:")

    @pytest.mark.parametrize("unit", ["sentence", "passage"])
    def test_filcos_has_the_question_before_the_passages(self, unit: str) -> None:
        numbered = [f"{unit} {number}: {line}" for number, line in enumerate(LINES)]
        first, again = (prompt_of(f"helpful_{unit}s{more}") for more in ("", "_again"))
        assert in_order(first, f"Question: {QUESTION}", *numbered, "\nIds:")
        assert in_order(again, f"Question: {QUESTION}", *numbered, "Reply only with the numbers", "\nIds:")


class TestEveryTask:
    @pytest.mark.parametrize("task", TASKS)
    def test_each_template_renders_with_its_wording(self, task: str) -> None:
        every = paper_predictors(task)
        assert {ask.template.name for ask in every.values()} == IN_ITS_SHAPE
        for name, ask in every.items():
            prompt = ask.render(**given(task, ask))
            assert prompt.count(QUESTION) == 1
            assert prompt.count(ask.signature.instructions) == 1
            assert prompt.endswith("\n### Response:") if name == "respond" else ends_with_its_cue(prompt, name)
            if "knowledge" in ask.signature.input_fields:
                assert all(prompt.count(line) == 1 for line in LINES)
            for demo in ask.demos:
                assert f"Question: {demo.question}\n" in prompt
            ask.signature = ask.signature.with_instructions("Speak as an optimiser wants it.")
            assert "Speak as an optimiser wants it." in ask.render(**given(task, ask))

    def test_one_passage_is_no_range(self) -> None:
        for name in ("check", "ids", "ids_again", "helpful_sentences"):
            assert "from 0 to 0" not in prompt_of(name, knowledge=LINES[:1])

    def test_a_papers_tasks_speak_the_sets_words_and_others_their_own(self) -> None:
        """Otherwise a claim would not be answered with its label, or a question of choice with its letter."""
        own = own_prompts()["blendfilter/external"].instructions
        words = {task: {name: ask.signature.instructions for name, ask in paper_predictors(task).items()}
                 for task in TASKS}  # fmt: skip
        for name in ("external", "check", "ids", "internal"):
            assert words["strategyqa"][name] == words["hotpotqa"][name] != own
        assert words["strategyqa"]["short_answer"].endswith(YES_NO)
        for name in ("external", "short_answer", "respond"):
            assert "SUPPORTS" in words["fever"][name]
        assert words["fever"]["check"].startswith(f"Each question is a claim. {words['hotpotqa']['check']} ")
        said = {task: words[task]["respond"] for task in ("popqa", "triviaqa", "pubhealth", "arc")}
        assert "the letter of the best option" in said.pop("arc")
        assert set(said.values()) == {"Answer the question."}

    def test_what_the_papers_print_no_prompt_of_is_ours(self) -> None:
        for task in TASKS:
            ours, theirs = predictors(task), predictors(task, prompts=PAPER)
            rest = [name for name, ask in theirs.items() if ask.template.name not in IN_ITS_SHAPE]
            assert {"direct", "cot", "self_ask", "react", "judge", "consistent_components"} <= set(rest)
            for name in rest:
                ours[name].demos = ours[name].demos[:3]
                assert theirs[name].render(**inputs(theirs[name])) == ours[name].render(**inputs(ours[name]))

    def test_three_demonstrations_are_shown_where_the_paper_shows_some(self) -> None:
        """BlendFilter, appendix D: three shots in all experiments. Of a user's own demonstrations all are shown."""
        for task in TASKS:
            counts = {len(ask.demos) for ask in predictors(task, prompts=PAPER).values()}
            assert counts == {0, 3}
        assert len(predictors("hotpotqa")["external"].demos) == 4
        four = TaskWording.of("hotpotqa").with_demos(TaskWording.of("hotpotqa").demos)
        assert len(predictors(four, prompts=PAPER)["external"].demos) == 4


class TestTheSet:
    def test_its_files_are_no_templates_of_ours(self) -> None:
        assert not [name for name in own_prompts().names if PAPER in name]
        assert Prompts(PAPER).names == own_prompts().names
        assert set(Prompts(PAPER).overridden) == IN_ITS_SHAPE
        assert Prompts(PAPER).digest != own_prompts().digest

    def test_it_is_named_by_a_word_wherever_prompts_are_taken(self) -> None:
        wanted = Prompts(PAPER)["blendfilter/check"].digest
        assert Prompts.of("ours") is own_prompts()
        assert Prompts.of("") is own_prompts()
        for prompts in (PAPER, Prompts(PAPER)):
            assert BlendFilter(nothing, prompts=prompts).select.check.template.digest == wanted
        assert FilCoFilter(prompts=PAPER).helpful.template.of_set == PAPER
        assert CDITFilter("word", prompts=PAPER).judge.consistent.template.of_set == PAPER

    def test_a_folder_of_that_name_is_a_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("paper").mkdir()
        Path("paper/cot.j2").write_text("Mine. {{ question }}")
        for prompts in (Prompts("./paper"), Prompts(Path("paper"))):
            assert prompts["cot"].instructions == own_prompts()["cot"].instructions
            assert prompts.overridden == ["cot"]
        assert "cot" not in Prompts("paper").overridden

    def test_it_is_a_setting_of_a_run_and_stands_in_its_signature(self) -> None:
        questions, lm = load("hotpotqa", "sample", limit=2), connect("offline")
        index = BM25.for_corpus(sample("corpus.jsonl"))
        ours, theirs = (BlendFilter(index, prompts=prompts) for prompts in (None, PAPER))
        before, after = (settings_of(method, questions, lm, seed=0)["method"] for method in (ours, theirs))
        assert "prompts" not in before
        assert after["prompts"] == PAPER
        assert before["program"] != after["program"]
        assert not recipes_in(theirs)


class TestOffline:
    def test_the_reader_reads_both_orders_alike(self) -> None:
        """The passages that it finds, and what it says of them, are the same."""
        for task in ("hotpotqa", "strategyqa"):
            ours, theirs = predictors(task), paper_predictors(task)
            names = ("check", "ids", "topic", "helpful_sentences", "consistent_word", "written_filco", "written_bider")
            for name in names:
                ours[name].demos = theirs[name].demos = []
                replies = [read(ask.render(**given(task, ask))) for ask in (ours[name], theirs[name])]
                assert replies[0] == replies[1] != ""

    @pytest.mark.parametrize("name", METHODS)
    def test_each_method_runs_in_that_shape(self, name: str, tmp_path: Path) -> None:
        index = BM25.for_corpus(sample("corpus.jsonl"))
        method = make_method(name, index if METHODS[name].retrieves else None, prompts=PAPER)
        run = evaluate(method, load("hotpotqa", "sample", limit=3), lm="offline", run=tmp_path / "run", progress=False)
        assert [row["error"] for row in run.rows] == [None] * 3
        assert all(row["answer"] for row in run.rows)
        bad = ("unparseable_ids", "suspect_ids", "empty_reply", "cut_reply", "unreadable_hop")
        assert not [row["flags"] for row in run.rows if set(bad) & {key for key, n in row["flags"].items() if n}]
        wanted = None if name in ("direct", "direct-retrieval") else PAPER
        assert run.settings["method"].get("prompts") == wanted
        assert ("|prompts:paper|" in run.report()) is (wanted is not None)

    @pytest.mark.parametrize("name", ["filco", "filco-passage", "cdit"])
    def test_each_filter_that_a_paper_has_judges_in_that_shape(self, name: str, tmp_path: Path) -> None:
        from blendfilter.filters.registry import make_filter

        select = make_filter(name, prompts=PAPER)
        method = make_method("direct-retrieval", BM25.for_corpus(sample("corpus.jsonl")), filter=select, prompts=PAPER)
        run = evaluate(method, load("hotpotqa", "sample", limit=3), lm="offline", run=tmp_path / "run", progress=False)
        assert [row["error"] for row in run.rows] == [None] * 3
        assert not any(row["flags"].get("no_verdict") or row["flags"].get("unparseable_ids") for row in run.rows)
        assert any(row["knowledge"] for row in run.rows)


def folder_with(folder: Path, words: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "instructions.json").write_text(words, encoding="utf-8")
    return folder


class TestInstructionsByTask:
    """`instructions.json` in a folder of one's own, as in the set: what the papers word by task."""

    def test_it_words_a_template_on_one_task(self, tmp_path: Path) -> None:
        prompts = Prompts(folder_with(tmp_path, '{"strategyqa": {"blendfilter/short_answer": "Yes or No?"}}'))
        for task in TASKS:
            words = predictors(task, prompts=prompts)["short_answer"].signature.instructions
            assert (words == "Yes or No?") is (task == "strategyqa")
        assert prompts.digest != own_prompts().digest

    def test_null_is_the_templates_own_words(self, tmp_path: Path) -> None:
        prompts = Prompts(folder_with(tmp_path, '{"strategyqa": {"blendfilter/external": null}}'))
        for name in ("external", "answer", "cot_retrieval"):
            words = predictors("strategyqa", prompts=prompts)[name].signature.instructions
            assert words == own_prompts()["blendfilter/external"].instructions

    @pytest.mark.parametrize(
        ("words", "error", "message"),
        [
            ("{", BadData, r"instructions\.json: Invalid JSON"),
            ('{"nq": {"direct": 1}}', BadData, r"instructions\.json: nq\.direct: .*string"),
            ('{"nq": {"direct": " "}}', BadData, r"nq\.direct: .*at least 1 character"),
            ('["direct"]', BadData, r"instructions\.json: .*it is {\"TASK\": {\"TEMPLATE\": "),
            ('{"squad": {"direct": "x"}}', UnknownName, r"no task 'squad'.*found in .*instructions\.json"),
            ('{"nq": {"dirct": "x"}}', UnknownName, r"no prompt 'dirct'. Did you mean 'direct'\?"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_place(
        self, tmp_path: Path, words: str, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            Prompts(folder_with(tmp_path, words))


DEMO = {
    "question": "Where does the Tolm rise?",
    "knowledge": ["Tolm | The Tolm is a brook. It rises at Oddle."],
    "reasoning": "The Tolm rises at Oddle.\nSo the answer is Oddle.",
    "hops": [{"thought": "I need its source.", "follow_up": "Where is the Tolm's source?", "knowledge": [0],
              "answer": "At Oddle."}],
    "answer": "Oddle",
}  # fmt: skip


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    """A file of two demonstrations."""
    path = tmp_path / "demos.json"
    path.write_text(json.dumps([DEMO, {**DEMO, "question": "Where does the brook of Oddle rise?"}]), encoding="utf-8")
    return path


class TestDemos:
    def test_a_file_takes_the_place_of_the_tasks_own(self, demos: Path) -> None:
        wording = TaskWording.of("strategyqa").with_demos(demos)
        assert wording.instructions == TaskWording.of("strategyqa").instructions
        for prompts in (None, PAPER):
            for name, ask in predictors(wording, prompts=prompts).items():
                shown = {demo.get("question") for demo in ask.demos}
                assert bool(shown) is bool(predictors("strategyqa")[name].demos)
                assert shown <= {DEMO["question"], "Where does the brook of Oddle rise?"}

    def test_none_shows_none_to_very_small_models_neither(self) -> None:
        for ask in predictors(TaskWording.of("hotpotqa").with_demos("none")).values():
            assert not ask.demos
            assert ask.name.startswith("consistent") or not [*ask.raw.demos, *ask.raw.json_demos]

    def test_a_command_takes_none_too_and_says_nothing_of_it(self, blendfilter: Command) -> None:
        given = small_eval("direct", "run")
        outcome = blendfilter(*given, "--demos", "none")
        assert outcome.code == 0
        assert "--demos" not in outcome.err
        assert "method.program was " in blendfilter(*given).err

    def test_they_count_as_settings_of_a_run_and_may_not_be_asked(self, demos: Path, blendfilter: Command) -> None:
        given = [*small_eval("direct", "run"), "--demos", str(demos)]
        assert blendfilter(*given).code == 0
        assert blendfilter(*given).code == 0
        outcome = blendfilter(*small_eval("direct", "run"))
        assert outcome.code == 2
        assert "method.program was " in outcome.err
        row = next(iter(load("hotpotqa", "sample")))
        demos.write_text(json.dumps([{**DEMO, "question": row.question}]))
        asked = blendfilter(*small_eval("direct", "other"), "--demos", str(demos))
        assert asked.code == 2
        assert "is also a demonstration" in asked.err

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("[", "demos.json: Invalid JSON"),
            ("[]", "demos.json: List should have at least 1 item"),
            (json.dumps({"demos": [DEMO]}), "demos.json: Input should be a valid array"),
            (json.dumps([DEMO, {**DEMO, "answer": ""}]), "demos.json: 1.answer: String should have at least 1 char"),
            (json.dumps([{**DEMO, "knowledge": []}]), "demos.json: 0.knowledge: List should have at least 1 item"),
            (json.dumps([{**DEMO, "hops": [{**DEMO["hops"][0], "knowledge": [1]}]}]), "demos.json: 0: Value error, "),
            (json.dumps([{**DEMO, "hop": 1}]), "demos.json: 0.hop: Extra inputs are not permitted"),
            (json.dumps([{k: v for k, v in DEMO.items() if k != "reasoning"}]), "demos.json: 0.reasoning: Field requi"),
        ],
    )
    def test_what_is_wrong_with_a_file_is_one_line_with_its_place(
        self, demos: Path, blendfilter: Command, content: str, message: str
    ) -> None:
        demos.write_text(content, encoding="utf-8")
        outcome = blendfilter("ask", "Where is Tolm?", "--corpus", "sample", "--lm", "offline", "--demos", str(demos))
        assert outcome.code == 2
        (line,) = outcome.notices
        assert message in line

    def test_a_missing_file_is_said_in_python_too(self) -> None:
        with pytest.raises(MissingFile, match=r"no file 'gone\.json': check the path"):
            TaskWording.of("nq").with_demos("gone.json")

    def test_where_nothing_is_demonstrated_it_is_said(self, demos: Path, blendfilter: Command) -> None:
        asked = ("ask", "Where is Tolm?", "--corpus", "sample", "--lm", "offline", "--demos", str(demos))
        assert blendfilter(*asked).err == ""
        outcome = blendfilter(*asked, "--method", "ralm")
        assert (outcome.code, outcome.notices) == (
            0,
            ["blendfilter: --demos changes nothing: ralm shows no demonstrations"],
        )

    def test_a_cap_of_long_replies_where_there_is_none(self, blendfilter: Command) -> None:
        given = ("ask", "Where is Tolm?", "--corpus", "sample", "--lm", "offline", "--reply-tokens", "300")
        assert blendfilter(*given, "--method", "cot-retrieval").err == ""
        outcome = blendfilter(*given, "--method", "direct")
        line = "blendfilter: --reply-tokens changes nothing: direct writes short replies alone"
        assert (outcome.code, outcome.notices) == (0, [line])


class TestCommands:
    def test_ask_and_eval_say_which_prompts_are_in_that_shape(self, blendfilter: Command) -> None:
        asked = ("ask", "Where is Tolm?", "--corpus", "sample", "--lm", "offline", "--prompts", PAPER)
        (line,) = blendfilter(*asked, "--method", "cot-retrieval", "--filter", "one-call").notices
        assert line == (
            "blendfilter: --prompts paper: the papers' shape in blendfilter/external, blendfilter/ids_again, "
            "blendfilter/short_answer; ours in blendfilter/judge"
        )
        outcome = blendfilter(*asked, "--method", "direct")
        assert outcome.notices == [
            "blendfilter: --prompts paper: the papers' shape in none of its prompts; ours in direct"
        ]

    def test_a_run_in_that_shape_goes_on_in_no_other(self, blendfilter: Command) -> None:
        given = small_eval("cot-retrieval", "run")
        assert blendfilter(*given, "--prompts", PAPER).code == 0
        assert json.loads(Path("run/run.json").read_text())["settings"]["method"]["prompts"] == PAPER
        assert blendfilter(*given, "--prompts", PAPER).code == 0
        outcome = blendfilter(*given)
        assert outcome.code == 2
        assert "method.prompts was 'paper', now None" in outcome.err

    def test_doctor_examines_a_model_in_that_shape(self, blendfilter: Command, demos: Path) -> None:
        words = ("doctor", "--lm", "offline", "--questions", 2, "--run", "examined", "--prompts", PAPER)
        assert blendfilter(*words, "--demos", str(demos)).code == 0
        run = json.loads(Path("examined/run.json").read_text())
        assert run["settings"]["method"]["prompts"] == PAPER
        assert DEMO["question"] in Path("examined/journal.jsonl").read_text()

    def test_a_table_is_reproduced_in_that_shape(self, blendfilter: Command, demos: Path) -> None:
        words = ("reproduce", "table1", "--data", "sample", "--limit", 2, "--tasks", "hotpotqa", "--methods",
                 "blendfilter,iter-retgen", "--no-plots")  # fmt: skip
        outcome = blendfilter(*words)
        assert outcome.code == 0
        assert "prompts: the papers' order and slots in our words (--prompts paper)\n" in outcome.out
        assert "demonstrations, ours: 3; the paper shows 3\n" in outcome.out
        assert "ITER-RETGEN: T = 2 iterations; the paper does not print its T\n" in outcome.out
        assert "demonstrations, ours: 4; the paper shows 3\n" in blendfilter(*words, "--prompts", "ours").out
        outcome = blendfilter(*words, "--demos", f"hotpotqa={demos}")
        assert "demonstrations, ours: 2; the paper shows 3\n" in outcome.out
        journals = [path.read_text() for path in Path("runs").glob("hotpotqa-*/journal.jsonl")]
        assert any(DEMO["question"] in journal for journal in journals)
        refused = blendfilter(*words, "--demos", f"nq={demos}")
        assert refused.code == 2
        assert "no task 'nq'" in refused.err

    def test_a_compiled_filter_speaks_in_that_shape(self, blendfilter: Command) -> None:
        words = ("compile", "filco", "--task", "nq", "--data", "sample", "--corpus", "sample", "--optimizer", "labeled",
                 "--train", 4, "--valid", 4, "--lm", "offline", "--run", "made", "--out", "filco.json")  # fmt: skip
        outcome = blendfilter(*words, "--prompts", PAPER)
        assert outcome.code == 0, outcome.err
        spoken = dspy.Example(json.loads(Path("filco.json").read_text())["metadata"]["recipe"]["templates"])
        digest = Prompts(PAPER)["filco/sentences"].digest
        assert f"filco/sentences {digest}" in spoken.values()
