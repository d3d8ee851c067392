"""Silver contexts as training sets: of FilCo's M_ctx and M_gen, and of BIDER's refiner.

Wang et al. 2023, "Learning to Filter Context for Retrieval-Augmented Generation" (https://arxiv.org/abs/2311.08377):
M_ctx reads the question and the retrieved passages and writes the silver context (section 2.3); the one of PSG writes
which passages hold it (section 4.2); M_gen reads the question and the silver context and writes the output (section
2.4). Jin et al. 2024, "BIDER: Bridging Knowledge Inconsistency for Efficient Retrieval-Augmented LLMs via Key
Supporting Evidence", section 3.3: the refiner reads as M_ctx does and writes the surviving nuggets in the order in
which they were selected.

A prompt is the very one that a run sends: a written filter's own, and `Direct`'s over the context's lines, without
demonstrations (run the generator with ``--demos none``). An empty silver context stays an empty target.

Differs from the paper: a line of M_gen's context begins with its passage's title. Passages that do not fit into M_ctx's
input are cut from the end, and the question stays; the paper does not say what it cuts.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from blendfilter.asking import NO_DEMOS, TaskWording
from blendfilter.errors import BadArgument, EmptyData, Leak, UnknownName
from blendfilter.files import read_whole
from blendfilter.filters.written import (
    BIDERFilter,
    TrainedFilCoFilter,
    TrainedPSGFilter,
    WrittenFilter,
)
from blendfilter.modules.direct import Direct
from blendfilter.oracles.silver_making import oracle_of
from blendfilter.oracles.silver_rows import STAGES, SilverRow, Stage, read_silver
from blendfilter.prompting import Prompts
from blendfilter.records import one_line
from blendfilter.retrieval.callables import as_retriever
from blendfilter.tasks import TASKS
from blendfilter.text import question_digest
from blendfilter.training.examples import Example, prompt_counter
from blendfilter.training.settings import TrainingSettings

Part = Literal["context", "passages", "generator", "bider"]
"""FilCo's M_ctx, of sentences and of passages (PSG), and M_gen; BIDER's refiner."""
READS = ("silver", "psg", "full")
"""What M_gen reads: the silver context, the passages that hold it, or all of them (the paper's FULL, section 4.2)."""
BIDER = "bider"
"""The measure of a silver file that BIDER's synthesis made."""
_FILTERS: dict[str, type[WrittenFilter]] = {
    each.part: each for each in (TrainedFilCoFilter, TrainedPSGFilter, BIDERFilter)
}
TARGET_TOKENS: dict[Part, int] = {
    "context": 512,
    "passages": TrainedPSGFilter.reply_tokens,
    "generator": 128,
    "bider": 512,
}
"""Tokens of a target at most: FilCo, section 4.1; of BIDER, which gives none, M_ctx's."""
_CUT = ("prompts_cut", "targets_shortened")
"""What the recipe counts of prompts over the cap."""


class SilverSet(NamedTuple):
    """Examples of a part, what the recipe says of them, and the rows that they were made of."""

    examples: list[Example]
    recipe: dict[str, Any]
    rows: list[SilverRow]


def silver_set(
    silver: str | Path,
    part: Part,
    base: str | Path,
    settings: TrainingSettings,
    *,
    task: str | None = None,
    reads: str = "silver",
    prompts: Prompts | str | None = None,
    exclude: Iterable[str] = (),
    leave_out: bool = False,
    limit: int | None = None,
    stage: Stage = "cleaned",
) -> SilverSet:
    """The training set of `part` from a silver file.

    Args:
        base: whose tokens count for the input's cap.
        task: the file's, where nothing beside it says so; of another one it is refused.
        reads: of the generator: `silver`, `psg` or `full`, or several with commas, of which each question has the next.
        exclude: questions that the model will be evaluated on. `leave_out`: drop them rather than refuse them.
        limit: the first rows.
        stage: of the refiner: which step of the synthesis it learns to write (the paper's Table 3 has one that learned
            from sentences as they were extracted).

    Raises:
        EmptyData: no row, or none that is left. BadArgument: it was made for another task, or by a measure of another
        command, or has no such stage. Leak: a question of `exclude`. MissingFile, BadData: as `read_silver`.
    """
    for kind in reads.split(","):
        if kind not in READS:
            raise UnknownName.of("reads", kind, READS)
    if reads != "silver" and part != "generator":
        raise BadArgument(
            f"reads={reads} is of the generator: {part} reads all passages as it is"
        )
    rows = [at_stage(row, stage) for row in read_silver(silver)]
    task, measure = _origin(silver, part, task)
    wanted = {question_digest(question) for question in exclude}
    leaked = [row for row in rows if question_digest(row.question) in wanted]
    if leaked and not leave_out:
        first = leaked[0]
        raise Leak(
            f"question '{first.id}' ({first.question!r:.200}) is in {silver} and among those to evaluate on, and "
            f"{len(leaked) - 1} more: leave them out (leave_out=True), or take another silver file"
        )
    kept = [row for row in rows if question_digest(row.question) not in wanted][:limit]
    if not kept:
        raise EmptyData(
            f"{silver} has no row to train on ({len(leaked)} of {len(rows)} are to be evaluated on): take another "
            "silver file"
        )
    if part == "generator":
        examples, about = generator_examples(kept, task, reads=reads, prompts=prompts)
    else:
        select = _FILTERS[part](max_input_tokens=settings.max_input_tokens, prompts=prompts)
        found = len(kept)
        examples, about, kept = written_examples(kept, select, base, settings)
        if not examples:
            raise EmptyData(
                f"none of the {found} prompts has room for a passage within {settings.max_input_tokens} tokens: "
                "raise the cap (max_input_tokens=)"
            )
    data = {
        "task": task,
        "measure": measure,
        "digest": hashlib.sha256(read_whole(silver)).hexdigest()[:16],
        "rows": len(rows),
        "left_out": len(leaked),
        "empty": sum(not row.target for row in kept),
        "stage": stage,
    }
    return SilverSet(examples, {"part": part, **about, "silver": data}, kept)


def at_stage(row: SilverRow, stage: Stage) -> SilverRow:
    """The row with what a stage of BIDER's synthesis left as its target.

    Raises: UnknownName: no such stage. BadArgument: the file of the row has none.
    """
    if stage == "cleaned":
        return row
    if stage not in STAGES:
        raise UnknownName.of("stage", stage, STAGES)
    if row.stages is None:
        raise BadArgument(
            f"question '{row.id}' has no stage {stage}: BIDER's synthesis has stages (measure='bider')"
        )
    candidates, chosen = row.candidates(), getattr(row.stages, stage)
    return replace(
        row, chosen=tuple(chosen), target=" ".join(candidates[at].text for at in chosen)
    )


def written_examples(
    rows: Sequence[SilverRow],
    select: WrittenFilter,
    base: str | Path,
    settings: TrainingSettings,
) -> tuple[list[Example], dict[str, Any], list[SilverRow]]:
    """Question and passages as the filter `select` asks, and the row's target; and the rows that these are of.

    Of a prompt that is cut the target loses the sentences that no longer stand in it. One in which no passage has room
    is no example: a run does not ask it.
    """
    count, counts = prompt_counter(base, settings), dict.fromkeys(_CUT, 0)
    examples: list[Example] = []
    kept: list[SilverRow] = []
    for row in rows:
        places = [at for at, passage in enumerate(row.passages) if passage.text.strip()]
        lines = select.lines(row.question, [row.passages[at] for at in places], count)
        text, candidates = row.target, row.candidates()
        chosen = [candidates[at] for at in row.chosen]
        if lines != [row.passages[at].line for at in places]:
            lines_at = dict(zip(places, lines, strict=False))
            chosen = [
                each
                for each in chosen
                if one_line(each.text) in lines_at.get(each.position, "")
            ]
            text = " ".join(each.text for each in chosen)
            counts["prompts_cut"] += 1
            counts["targets_shortened"] += text != row.target
        if lines or not places:
            prompt = select.write.render(knowledge=lines, question=row.question)
            target = select.target(text, [places.index(each.position) for each in chosen])
            examples.append(Example(prompt, target, row.question))
            kept.append(row)
    about = {**select.recipe, **counts, "left_out_no_room": len(rows) - len(kept)}
    return examples, about, kept


def generator_examples(
    rows: Sequence[SilverRow],
    task: str,
    *,
    reads: str = "silver",
    prompts: Prompts | str | None = None,
) -> tuple[list[Example], dict[str, Any]]:
    """The lines of the context that the generator `reads` as `Direct` shows them, and the row's output."""
    wording = TaskWording.of(TASKS[task].wording).with_demos(NO_DEMOS)
    direct = Direct(as_retriever(lambda query, k: []), task=wording, prompts=prompts).direct
    examples = []
    for row, kind in zip(rows, itertools.cycle(reads.split(",")), strict=False):
        holding = {row.sentences[at].passage for at in row.chosen}
        psg = [passage for at, passage in enumerate(row.passages) if at in holding]
        context = {"silver": row.excerpts(), "psg": psg, "full": row.passages}[kind]
        prompt = direct.render(knowledge=[each.line for each in context], question=row.question)
        examples.append(Example(prompt, row.output, row.question))
    return examples, {"prompt": direct.prompt_digest, "reads": reads, "demos": NO_DEMOS}


def task_of(silver: str | Path, part: Part, task: str | None = None) -> str:
    """The task of a silver file. Raises: as `silver_set` of a file for another task, measure or command."""
    for _ in read_silver(silver):  # is it one?
        break
    return _origin(silver, part, task)[0]


def _origin(silver: str | Path, part: Part, task: str | None) -> tuple[str, str]:
    """Task and measure of a silver file, by the recipe beside it. Raises: BadArgument, UnknownName."""
    if task is not None and task not in TASKS:
        raise UnknownName.of("task", task, TASKS)
    oracle = oracle_of(silver)
    known, measure = oracle.get("task") or task, str(oracle.get("measure", ""))
    if task is not None and known != task:
        raise BadArgument(
            f"{silver} was made for {known}, not for {task}: give task={known}, or another file"
        )
    if measure and (measure == BIDER) != (part == "bider"):
        raise BadArgument(
            f"{silver} was made by the measure {measure}: 'blendfilter train bider' learns from BIDER's synthesis "
            "(measure='bider'), and 'blendfilter train filco' from the oracles of FilCo's"
        )
    if known not in TASKS:
        raise BadArgument(f"nothing beside {silver} says of which task it is: name it (task=)")
    return str(known), measure
