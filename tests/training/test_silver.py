"""Silver contexts as training sets: the very prompts of a run, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest
import scoring_models
from scripted import ScriptedLM

from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument, EmptyData, Leak, UnknownName
from blendfilter.filters.written import BIDERFilter, TrainedFilCoFilter, TrainedPSGFilter
from blendfilter.lm.model import connect
from blendfilter.modules.direct import Direct
from blendfilter.oracles.silver_rows import STAGES, SilverRow, SilverSentence, Stages, line_of
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_retriever
from blendfilter.training.settings import TrainingSettings
from blendfilter.training.silver import SilverSet, silver_set

PASSAGES = (
    Passage("p1", "Fell", "Fell is a hill. It rains there."),
    Passage("p2", "Tide Mill", "It grinds rye. Ane Lindqvist runs it."),
)
CHOSEN = SilverRow(
    "m1", "Who runs the mill?", ("Ane Lindqvist", "A. Lindqvist"), "Ane Lindqvist", PASSAGES,
    (SilverSentence(1, 0, 14, 0.0), SilverSentence(1, 15, 37, 1.0)), (1,), "Ane Lindqvist runs it.", True,
)  # fmt: skip
NOTHING = replace(CHOSEN, id="m2", question="Who owns the mill?", chosen=(), target="", output="Nobody")
SETTINGS = TrainingSettings()


def written(folder: Path, rows: list[SilverRow], task: str = "nq", measure: str = "strinc") -> Path:
    """A silver file with its recipe."""
    path = folder / "silver.jsonl"
    path.write_bytes(b"".join(map(line_of, rows)))
    settings = {"oracle": {"task": task, "measure": measure}}
    (folder / "silver.recipe.json").write_text(json.dumps({"format": 1, "settings": settings}))
    return path


def made(path: Path, part: Any, **more: Any) -> SilverSet:
    """The training set of a tiny model."""
    return silver_set(path, part, scoring_models.llama(positions=2048), more.pop("settings", SETTINGS), **more)


@pytest.mark.parametrize(("part", "kind"), [("context", TrainedFilCoFilter), ("bider", BIDERFilter)])
def test_filter_is_trained_on_the_prompt_that_it_sends_in_a_run(part: Any, kind: Any, tmp_path: Path) -> None:
    """Of all passages, with the silver context to be written, which may be empty."""
    examples, recipe, _ = made(
        written(tmp_path, [CHOSEN, NOTHING], measure="bider" if part == "bider" else "strinc"), part
    )
    assert [each.target for each in examples] == ["Ane Lindqvist runs it.", ""]
    assert [each.question for each in examples] == ["Who runs the mill?", "Who owns the mill?"]
    lm = ScriptedLM(["Ane Lindqvist runs it."])
    kind(lm=connect(lm))(question=CHOSEN.question, passages=list(PASSAGES))
    assert lm.prompts == [("write", examples[0].prompt)]
    assert examples[0].prompt.endswith("Context:")
    assert {name: recipe[name] for name in ("part", "prompt")} == kind().recipe
    assert (recipe["prompts_cut"], recipe["silver"]["empty"], recipe["silver"]["rows"]) == (0, 1, 2)


def test_psg_is_trained_to_name_the_passages_that_its_generator_reads(tmp_path: Path) -> None:
    """Of the same silver file; none where nothing was chosen, and none that was cut from the prompt."""
    path = written(tmp_path, [CHOSEN, NOTHING])
    examples, recipe, _ = made(path, "passages")
    assert [each.target for each in examples] == ["1", ""]
    lm = ScriptedLM(["1"])
    kept = TrainedPSGFilter(lm=connect(lm))(question=CHOSEN.question, passages=list(PASSAGES)).kept
    assert lm.prompts == [("write", examples[0].prompt)]
    read = made(path, "generator", reads="psg").examples[0].prompt
    assert [each.line in read for each in PASSAGES] == [each in kept for each in PASSAGES] == [False, True]
    assert {name: recipe[name] for name in ("part", "prompt")} == TrainedPSGFilter().recipe
    cut = made(path, "passages", settings=TrainingSettings(max_input_tokens=115))
    assert (cut.examples[0].target, cut.recipe["targets_shortened"]) == ("", 1)


def test_a_refiner_may_learn_an_earlier_step_of_the_synthesis(tmp_path: Path) -> None:
    """As BIDER's Table 3 has it: sentences as they were extracted, in place of the synthesis."""
    stages = Stages((1, 0), (1,), (0.6,), "supported", (None,), by_target=(0,))
    path = written(tmp_path, [replace(CHOSEN, stages=stages)], measure="bider")
    targets = {stage: made(path, "bider", stage=stage).examples[0].target for stage in STAGES}
    assert targets == {
        "extracted": "Ane Lindqvist runs it. It grinds rye.", "refined": "Ane Lindqvist runs it.",
        "cleaned": "Ane Lindqvist runs it.", "by_target": "It grinds rye.",
    }  # fmt: skip
    assert made(path, "bider", stage="extracted").recipe["silver"]["stage"] == "extracted"
    assert made(path, "bider").recipe["silver"]["stage"] == "cleaned"
    with pytest.raises(UnknownName, match="no stage 'extract'"):
        made(path, "bider", stage="extract")
    with pytest.raises(BadArgument, match="question 'm1' has no stage extracted"):
        made(written(tmp_path, [CHOSEN], measure="bider"), "bider", stage="extracted")


def test_generator_is_trained_on_the_prompt_of_a_run_over_the_silver_context(tmp_path: Path) -> None:
    """Without demonstrations, as with --demos none; and an empty context as a run shows one."""
    examples, recipe, _ = made(written(tmp_path, [CHOSEN, NOTHING]), "generator")
    assert [each.target for each in examples] == ["Ane Lindqvist", "Nobody"]
    assert "Tide Mill | Ane Lindqvist runs it." in examples[0].prompt
    assert "It grinds rye" not in examples[0].prompt
    assert "(nothing relevant was found)" in examples[1].prompt
    wording = TaskWording.of("nq").with_demos("none")
    for row, example in zip((CHOSEN, NOTHING), examples, strict=True):
        lm, kept = ScriptedLM(["Ane"]), row.excerpts()
        with dspy.context(lm=connect(lm)):
            Direct(as_retriever(lambda query, k, kept=kept: kept), task=wording)(question=row.question)
        assert lm.prompts == [("direct", example.prompt)]
    assert (recipe["part"], recipe["demos"], recipe["reads"]) == ("generator", "none", "silver")
    full, *_ = made(tmp_path / "silver.jsonl", "generator", reads="full")
    assert "Fell | Fell is a hill." in full[0].prompt


def test_prompt_over_the_cap_loses_passages_from_the_end_and_keeps_the_question(tmp_path: Path) -> None:
    path = written(tmp_path, [CHOSEN])
    examples, recipe, _ = made(path, "context", settings=TrainingSettings(max_input_tokens=110))
    assert recipe["prompts_cut"] == 1
    assert "Fell is a hill." in examples[0].prompt
    assert "Ane Lindqvist runs it." not in examples[0].prompt
    assert "Question: Who runs the mill?" in examples[0].prompt
    assert (examples[0].target, recipe["targets_shortened"]) == ("", 1)  # it cannot copy what it does not see


def test_a_prompt_without_room_for_a_passage_is_no_example(tmp_path: Path) -> None:
    """A run does not ask it."""
    with pytest.raises(EmptyData, match="none of the 1 prompts has room for a passage"):
        made(written(tmp_path, [CHOSEN]), "context", settings=TrainingSettings(max_input_tokens=70))


def test_the_recipe_counts_what_became_of_each_row(tmp_path: Path) -> None:
    """Seven rows under a cap of 110 tokens, of which the first is left out, and then five are taken.

    `far` loses the passage that holds its target, `near` another one; `bare` has passages without a text, which is an
    example; `long` has room for no passage, which is none: so its empty target is not counted either.
    """
    near = replace(CHOSEN, id="near", question="Where is it?", target="Fell is a hill.")
    near = replace(near, sentences=(SilverSentence(0, 0, 15, 1.0),), chosen=(0,))
    blank = (Passage("p1", "Fell", ""), Passage("p2", "Tide Mill", " "))
    bare = replace(NOTHING, id="bare", question="What is there?", passages=blank, sentences=())
    long = replace(NOTHING, id="long", question=" ".join(f"and who runs mill {n}" for n in range(30)))
    far, last = replace(CHOSEN, id="far", question="Who runs it?"), replace(CHOSEN, id="last", question="Who?")
    path = written(tmp_path, [CHOSEN, far, near, bare, NOTHING, long, last])
    done = made(
        path, "context", settings=TrainingSettings(max_input_tokens=110),
        exclude=[CHOSEN.question], leave_out=True, limit=5,
    )  # fmt: skip
    assert [row.id for row in done.rows] == ["far", "near", "bare", "m2"]
    assert [example.target for example in done.examples] == ["", "Fell is a hill.", "", ""]
    counts = ("prompts_cut", "targets_shortened", "left_out_no_room")
    assert {name: done.recipe[name] for name in counts} == dict(zip(counts, (4, 1, 1), strict=True))
    about = {name: done.recipe["silver"][name] for name in ("rows", "left_out", "empty")}
    assert about == {"rows": 7, "left_out": 1, "empty": 2}


def test_question_to_evaluate_on_is_refused_or_left_out(tmp_path: Path) -> None:
    """By its words: another spelling is the same question."""
    path = written(tmp_path, [CHOSEN, NOTHING])
    with pytest.raises(Leak, match=r"question 'm1' \('Who runs the mill\?'\) is in .* and among those to evaluate on"):
        made(path, "context", exclude=["who runs THE mill"])
    examples, recipe, _ = made(path, "context", exclude=["who runs THE mill"], leave_out=True)
    assert [each.question for each in examples] == ["Who owns the mill?"]
    assert recipe["silver"]["left_out"] == 1
    with pytest.raises(EmptyData, match="2 of 2 are to be evaluated on"):
        made(path, "context", exclude=[CHOSEN.question, NOTHING.question], leave_out=True)


@pytest.mark.parametrize(
    ("part", "measure", "task", "error", "words"),
    [
        ("context", "strinc", "triviaqa", BadArgument, "was made for nq, not for triviaqa: give task=nq"),
        (
            "context",
            "bider",
            None,
            BadArgument,
            "by the measure bider: 'blendfilter train bider",
        ),
        (
            "bider",
            "strinc",
            None,
            BadArgument,
            "by the measure strinc: 'blendfilter train bider'",
        ),
        ("context", "strinc", "nqq", UnknownName, "no task 'nqq'"),
    ],
)
def test_silver_of_another_task_or_measure_is_refused(
    part: str, measure: str, task: str | None, error: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        made(written(tmp_path, [CHOSEN], measure=measure), part, task=task)


def test_empty_silver_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmptyData, match="has no row"):
        made(written(tmp_path, []), "context")


def test_file_without_a_recipe_needs_its_task(tmp_path: Path) -> None:
    path = written(tmp_path, [CHOSEN])
    (tmp_path / "silver.recipe.json").unlink()
    with pytest.raises(BadArgument, match=r"nothing beside .* says of which task it is"):
        made(path, "generator")
    assert made(path, "generator", task="nq")[1]["silver"]["task"] == "nq"
