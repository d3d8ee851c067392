"""BIDER's preference alignment: its distilled refiner learns what a reader can make use of.

Jin et al., "BIDER: Bridging Knowledge Inconsistency for Efficient Retrieval-Augmented LLMs via Key Supporting Evidence"
(2024), section 3.4. The refiner writes a context for each question of a silver file, sampled; a reader answers from it,
and from the original passages; the reward, at the end of the text, is ::

    R = F1(a_pred, o) - F1(a_ori, o)

with F1 of `blendfilter.metrics`, the best over the golden answers o. `ppo` moves the refiner.

The reader is any model, in this process or served, asked as ``--method direct-retrieval`` asks it over the filter
``bider``: what was written becomes excerpts of the passages where it stands in them (`filters.written`), and these are
the lines of its prompt. Its answers are kept in a journal, so that what was answered once is not paid for again; the
original passages are answered from once a question.

A distilled adapter is trained on as it is, on its own base; a whole model in all its weights. One process trains.

The paper's generator is LLAMA2-7B: the base model, as we read it. It never says chat, takes log-probabilities of it
(equation 3) and prints no chat prompt. One reader goes through all: it cleans, it aligns, and it answers
(`eval/papers/bider`); a refiner's recipe names its reader, and another one is warned of where it answers.

Differs from the paper: see `ppo`; and the reader reads lines of ``Title | text``, as everywhere here.

The files of a run, `OUT.partial`: `training.json` (the recipe, which a resumed call must repeat), `rewards.jsonl`,
`ppo.pt` (the newest checkpoint), and `reader` (the journal). The same call resumes there. `OUT` appears when all is
done: weights and tokeniser, `recipe.json`, `questions.txt`, `rewards.jsonl`, `rewards.png`, and the journal.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import dspy

from blendfilter import aio
from blendfilter.asking import TaskWording
from blendfilter.context import setting
from blendfilter.errors import BadArgument, EmptyData, ModelError
from blendfilter.extras import needed, quiet_transformers
from blendfilter.files import writing
from blendfilter.filters.written import (
    STOPS,
    BIDERFilter,
    Unmatched,
    looked_up,
    recipe_of_answerer,
)
from blendfilter.journal import FILE, Journal
from blendfilter.lm.budget import Budget
from blendfilter.lm.checkpoints import (
    Checkpoint,
    checkpoint_of,
    fingerprint,
    open_checkpoint,
    open_config,
    open_tokenizer,
    positions_of,
    prompt_ids,
    trained_on,
    write_questions,
)
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.metrics import f1
from blendfilter.modules.direct import Direct
from blendfilter.oracles.silver_rows import SilverRow
from blendfilter.prompting import Prompts
from blendfilter.records import Passage, WrittenText
from blendfilter.retrieval.callables import as_retriever
from blendfilter.run_context import RunContext
from blendfilter.tasks import TASKS
from blendfilter.training.ppo import (
    CHECKPOINT,
    EXTRA,
    OnStep,
    Policy,
    StepFigures,
    Text,
    silent_step,
    steps_in,
    train_ppo,
)
from blendfilter.training.recipes import (
    BEGUN,
    LOCK,
    alone_in,
    check_recipe,
    draw_steps,
    new_folder,
    read_recipe,
    versions,
    write_recipe,
)
from blendfilter.training.settings import PPOSettings, TrainingSettings
from blendfilter.training.silver import SilverSet, silver_set
from blendfilter.training.trainer import GOES_ON, out_of_memory

CONCURRENCY = 8
"""Calls of the reader in flight: as many as a model in this process answers in one go."""
READER, PICTURE = "reader", "rewards.png"
HOW = "blendfilter train bider"
LESS = "read fewer tokens at a time (micro_tokens=), align a smaller refiner, or have a server run the reader"
"""What takes less memory."""
_Z = 1.96


class Aligned(NamedTuple):
    """An aligned refiner: its folder, the recipe that lies in it, and what each step came to."""

    folder: Path
    recipe: dict[str, Any]
    steps: list[StepFigures]


def align_bider(
    distilled: str | Path,
    silver: str | Path,
    out: str | Path,
    reader: dspy.BaseLM | str,
    settings: PPOSettings | None = None,
    *,
    task: str | None = None,
    demos: str | Path | None = None,
    prompts: Prompts | str | None = None,
    unmatched: Unmatched = "keep",
    exclude: Iterable[str] = (),
    leave_out: bool = False,
    limit: int | None = None,
    budget: Budget | None = None,
    device: str | None = None,
    on_step: OnStep = silent_step,
) -> Aligned:
    """Align the refiner in the folder `distilled` with `reader`, into the folder `out`, which appears when all is done.

    The same call goes on where it was stopped, to the same weights (on one processor, with a fixed seed); it may read
    fewer tokens at a time (`micro_tokens`). A finished `out` is not made again.

    Args:
        distilled: what `train bider` made.
        silver: the questions, their passages and their answers, as `blendfilter silver --measure bider` writes them.
        reader: the model that answers, or its name for `connect`.
        task: the file's, where nothing beside it says so.
        demos: demonstrations of the reader, a JSON file, or `none`; by default the task's own.
        unmatched: what becomes of text that stands in no passage, as for the filter: `keep` or `drop`.
        exclude, leave_out, limit: as for `silver_set`.
        budget: what the reader may take, in all sessions.
        device: `cpu` or `cuda`; by default a GPU where there is one.
        on_step: called with each step's figures and seconds.

    Raises:
        BadArgument: `distilled` is no refiner of BIDER's, or was trained with another prompt.
        RunMismatch: `out` was made, or begun, otherwise. RunLocked: another process trains there. WorkFailed: memory
        ran out. What the reader and `silver_set` raise.
    """
    settings, out = settings or PPOSettings(), new_folder(out)
    known = distilled_recipe(distilled)
    BIDERFilter(prompts=prompts, unmatched=unmatched).check(distilled)
    before = known["settings"]
    reading = TrainingSettings(max_input_tokens=before["max_input_tokens"], chat=before["chat"])
    data = silver_set(
        silver,
        "bider",
        distilled,
        reading,
        task=task,
        prompts=prompts,
        exclude=exclude,
        leave_out=leave_out,
        limit=limit,
    )
    wording = TaskWording.of(TASKS[data.recipe["silver"]["task"]].wording).with_demos(demos)
    context = RunContext(connect(reader), concurrency=CONCURRENCY, budget=budget)
    recipe_of_answerer(context.model)
    checkpoint = checkpoint_of(distilled)
    start = {"name": str(distilled), "fingerprint": fingerprint(checkpoint)}
    identity = {name: value for name, value in context.model.identity.items() if value}
    made: dict[str, Any] = {
        **data.recipe,
        "aligned": True,
        # an adapter is checked against its base
        "base": known["base"] if checkpoint.base else start,
        "distilled": start,
        "reader": {"name": context.model.name, **identity},
        "demos": None if demos is None else str(demos),
        "unmatched": unmatched,
        "settings": {
            **settings.model_dump(exclude={"micro_tokens", "every"}),
            **reading.model_dump(include={"max_input_tokens", "chat"}),
        },
    }
    if check_recipe(out, made):
        _clear(out)
        return Aligned(out, read_recipe(out), steps_in(out))
    readable = _readable(data, checkpoint, reading, settings.max_new_tokens)
    ids, rows = list(readable.values()), [data.rows[at] for at in readable]
    partial = out.with_name(f"{out.name}.partial")
    with (
        writing(partial, GOES_ON),
        alone_in(partial, made, out, lambda: _has_answered(partial)),
        Journal(partial / READER) as journal,
        context.opened(journal),
        out_of_memory(LESS),
    ):
        rewards = ReaderReward(rows, context.lm, wording, unmatched=unmatched, prompts=prompts)
        policy = open_policy(distilled, device)
        reference = None
        if settings.kl_coefficient:
            dtype = None if checkpoint.base else "float32"
            reference = open_checkpoint(distilled, device=device, dtype=dtype).model
        steps = train_ppo(
            policy, ids, rewards, partial, settings, reference=reference, on_step=on_step
        )
        rewards_by_step = [step.reward for step in steps]
        result = {
            **reward_change(rewards_by_step),
            **rewards.figures({place for step in steps for place in step.places}),
            "left_out_too_long": len(data.rows) - len(rows),
        }
        _save(policy, partial)
        write_questions(partial, (row.question for row in rows), trained_on(checkpoint))
        draw_steps(rewards_by_step, partial / PICTURE, "F1(written) - F1(original)")
        write_recipe(partial, {**made, "versions": versions(), "result": result})
        # the journal stays open, and locked, until no other process can begin
        partial.rename(out)
        _clear(out)
    return Aligned(out, read_recipe(out), steps)


def _readable(
    data: SilverSet, checkpoint: Checkpoint, reading: TrainingSettings, written: int
) -> dict[int, list[int]]:
    """The prompts that the refiner reads, with room for what is `written`, by place. Raises: EmptyData for none."""
    tokenizer, config = open_tokenizer(checkpoint), open_config(checkpoint)
    most = reading.max_input_tokens
    if positions := positions_of(config):  # as in the distillation
        most = min(most, positions - written * (not config.is_encoder_decoder))
    every = (
        prompt_ids(tokenizer, example.prompt, chat=reading.chat) for example in data.examples
    )
    readable = {at: ids for at, ids in enumerate(every) if len(ids) <= most}
    if not readable:
        raise EmptyData(
            f"each of the {len(data.examples)} prompts has more than {most:,} tokens, which the refiner reads"
        )
    return readable


def _has_answered(partial: Path) -> bool:
    """Whether the reader answered: what was paid for is kept."""
    if not (partial / READER / FILE).exists():
        return False
    with Journal(partial / READER, "replay") as answers:
        return any(not record.get("error") for record in answers.records("call"))


def _clear(out: Path) -> None:
    """Away with what only a resumed call needs."""
    for name in (BEGUN, LOCK, CHECKPOINT):
        (out / name).unlink(missing_ok=True)


def distilled_recipe(folder: str | Path) -> dict[str, Any]:
    """The recipe of a distilled refiner. Raises: BadArgument where it is none."""
    known = read_recipe(folder)
    part = known.get("part")
    if part != "bider" or "settings" not in known:
        what = f"was trained as {part}" if part else "is none (no recipe of ours in it)"
        raise BadArgument(
            f"alignment begins with a distilled refiner, and {folder} {what}: make one first ({HOW})"
        )
    return known


# --- the reward -------------------------------------------------------------------------------------------------------


class ReaderReward:
    """F1 of a reader's answer from what was written, less that of its answer from the original passages.

    A reward of `ppo.train_ppo` over the questions of `rows`, by place.

    Args:
        reader: the model, its calls in a journal.
        wording: the words and demonstrations of its prompt.
    """

    def __init__(
        self,
        rows: Sequence[SilverRow],
        reader: ConnectedLM,
        wording: TaskWording,
        *,
        unmatched: Unmatched = "keep",
        prompts: Prompts | str | None = None,
    ) -> None:
        self.rows, self.reader, self.unmatched = rows, reader, unmatched
        self.method = Direct(as_retriever(lambda query, k: []), task=wording, prompts=prompts)
        self.original: dict[int, float] = {}

    def __call__(self, texts: Sequence[Text]) -> list[float]:
        return aio.run(self.rewards(texts), "alignment")

    async def rewards(self, texts: Sequence[Text]) -> list[float]:
        """The rewards of `texts`; the reader's calls are in flight together."""
        await self._answer_originals({text.place for text in texts})
        async with aio.together() as group:
            tasks = [
                group.create_task(self._f1(text.place, self.context(text))) for text in texts
            ]
        scores = [task.result() for task in tasks]
        return [
            score - self.original[each.place] for score, each in zip(scores, texts, strict=True)
        ]

    def context(self, text: Text) -> list[Passage]:
        """What the reader is given of a written text, as the filter gives it."""
        passages = [
            passage for passage in self.rows[text.place].passages if passage.text.strip()
        ]
        written = text.text
        for stop in STOPS:
            written = written.partition(stop)[0]
        parts = looked_up(written, passages, cut=text.cut and written == text.text).parts
        keep = self.unmatched == "keep"
        return [part for part in parts if keep or not isinstance(part, WrittenText)]

    def figures(self, places: set[int]) -> dict[str, Any]:
        """For the recipe: the mean F1 from the original passages of the questions at `places`.

        What an earlier session asked is in the reader's journal, and asked again it costs no call.
        """
        aio.run(self._answer_originals(places), "alignment")
        mean = fmean(self.original[at] for at in places)
        return {"questions": len(places), "f1_original": round(mean, 6)}

    async def _answer_originals(self, places: set[int]) -> None:
        """F1 from the original passages at `places`, once a question."""
        missing = sorted(places - self.original.keys())
        async with aio.together() as group:
            tasks = [group.create_task(self._f1(at, self.rows[at].passages)) for at in missing]
        self.original |= zip(missing, (task.result() for task in tasks), strict=True)

    async def _f1(self, place: int, passages: Sequence[Passage]) -> float:
        row = self.rows[place]
        with (
            setting(question=row.id, order=place, notes=[]),
            dspy.context(lm=self.reader, trace=[], disable_history=True),
        ):
            try:
                answer, _ = await self.method.respond(row.question, list(passages))
            except ModelError as error:
                if error.kind != "context_too_long":
                    raise
                raise BadArgument(
                    f"the reader cannot read what it is to answer question '{row.id}' from: {error}; align into "
                    "another folder without its demonstrations (demos='none'), without the question (exclude=FILE "
                    "leave_out=True), or with a reader that reads more"
                ) from error
        return f1(answer, row.golden_answers)


# --- the refiner ------------------------------------------------------------------------------------------------------


def open_policy(distilled: str | Path, device: str | None = None) -> Policy:
    """A distilled refiner, ready to be trained on: its adapter, or all its weights (in 32 bits).

    Raises: as `open_checkpoint`.
    """
    found = checkpoint_of(distilled)
    if found.base is None:
        loaded = open_checkpoint(found, device=device, dtype="float32")
        loaded.model.requires_grad_(True)
        return Policy(loaded.model, loaded.tokenizer)
    loaded = open_checkpoint(found.base, device=device)
    peft = needed("peft", EXTRA, "a LoRA adapter")
    with quiet_transformers(EXTRA, "a LoRA adapter"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.PeftModel.from_pretrained(loaded.model, str(found.path), is_trainable=True)
    return Policy(model, open_tokenizer(found))


def _save(policy: Policy, folder: Path) -> None:
    """Weights and tokeniser, as `train bider` leaves them."""
    with quiet_transformers(EXTRA, "training"):
        policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


# --- whether the reward rose ------------------------------------------------------------------------------------------


def reward_change(means: Sequence[float]) -> dict[str, Any]:
    """What `means`, one a step, come to, for a recipe: the mean of the first and the last quarter of the steps, and
    their difference with its 95 % interval; rounded.

    The interval is normal, of the spread of the steps' means; None where a quarter has fewer than two steps.

    By hand: 0, 2, 5, 5, 5, 5, 4, 6 have the quarters (0, 2) and (4, 6), means 1 and 5, each of variance 2, so that the
    difference 4 has the standard error sqrt(2/2 + 2/2) = 1.41.

    >>> change = reward_change([0, 2, 5, 5, 5, 5, 4, 6])
    >>> change["reward_difference"], change["reward_low"], change["reward_high"]
    (4.0, 1.228141, 6.771859)
    """
    quarter = max(1, len(means) // 4)
    (first, before), (last, after) = mean_of(means[:quarter]), mean_of(means[-quarter:])
    change, half = last - first, math.hypot(before, after)
    figures = {
        "first": first,
        "last": last,
        "difference": change,
        "low": change - half,
        "high": change + half,
    }
    rounded = {
        f"reward_{name}": None if math.isnan(value) else round(value, 6)
        for name, value in figures.items()
    }
    return {"steps": len(means), "quarter": quarter, **rounded}


def reward_words(change: Mapping[str, Any]) -> str:
    """What `reward_change` found, as a statement."""
    first, last, low, high = (
        change[f"reward_{name}"] for name in ("first", "last", "low", "high")
    )
    if low is None:
        steps = change["steps"]
        return f"mean reward {first:+.3f} in the first and {last:+.3f} in the last of {steps} steps"
    verdict = "rose" if low > 0 else "fell" if high < 0 else "neither rose nor fell for certain"
    return (
        f"mean reward of the first {change['quarter']} steps {first:+.3f}, of the last {last:+.3f}: "
        f"{change['reward_difference']:+.3f} [{low:+.3f}, {high:+.3f}] (95 % interval); it {verdict}"
    )


def mean_of(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the half width of its normal 95 % interval (nan of a single value).

    >>> mean, half = mean_of([0, 2, 4])
    >>> mean, round(half, 2)
    (2.0, 2.26)
    """
    half = _Z * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return fmean(values), half


def reward_lines(means: Sequence[float], lines: int = 10, width: int = 40) -> list[str]:
    """The curve as lines of text: a tenth of the steps each, its mean, the interval, and where it lies.

    >>> print("\\n".join(reward_lines([0.0, 0.0, 0.5, 0.5], lines=2, width=10)))
    steps      1 to 2      +0.000 [+0.000, +0.000] *
    steps      3 to 4      +0.500 [+0.500, +0.500]          *
    """
    size = min(lines, len(means))
    edges = [round(at * len(means) / size) for at in range(size + 1)]
    parts = [means[start:end] for start, end in pairwise(edges)]
    figures = [mean_of(part) for part in parts]
    low, high = min(figures)[0], max(figures)[0]
    found = []
    for start, end, (mean, half) in zip(edges, edges[1:], figures, strict=False):
        ends = "" if math.isnan(half) else f"[{mean - half:+.3f}, {mean + half:+.3f}]"
        place = round((width - 1) * (mean - low) / (high - low)) if high > low else 0
        found.append(
            f"steps {start + 1:>6,} to {end:<6,} {mean:+.3f} {ends:<16} {' ' * place}*"
        )
    return found
