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

Differs from the paper: see `ppo`; and the reader reads lines of ``Title | text``, as everywhere here.

The files of a run, `OUT.partial`: `training.json` (the recipe, which a resumed call must repeat), `rewards.jsonl`,
`ppo.pt` (the newest checkpoint), and `reader` (the journal). The same call resumes there. `OUT` appears when all is
done: weights and tokeniser, `recipe.json`, `questions.txt`, `rewards.jsonl`, `rewards.png`, and the journal.
"""

from __future__ import annotations

import logging
import math
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import dspy

from blendfilter import aio
from blendfilter.asking import TaskWording
from blendfilter.context import setting
from blendfilter.errors import BadArgument, EmptyData, ModelError, UnknownName
from blendfilter.extras import needed, quiet_transformers
from blendfilter.files import writing
from blendfilter.filters.written import STOPS, BIDERFilter, Unmatched, looked_up, recipe_of_answerer
from blendfilter.journal import Journal
from blendfilter.lm.budget import Budget
from blendfilter.lm.checkpoints import (
    ADAPTER,
    Checkpoint,
    checkpoint_of,
    fingerprint,
    free_memory,
    loading_dtype,
    open_checkpoint,
    open_config,
    open_tokenizer,
    positions_of,
    prompt_ids,
    read_json,
    torch_device,
    trained_on,
    write_questions,
)
from blendfilter.lm.checkpoints import memory_needed as weights_needed
from blendfilter.lm.huggingface import HuggingFaceEngine, settings_in
from blendfilter.lm.local import LocalEngine
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.metrics import f1
from blendfilter.modules.direct import Direct
from blendfilter.oracles.silver_rows import SilverRow
from blendfilter.prompting import Prompts
from blendfilter.records import Passage, WrittenText
from blendfilter.retrieval.callables import as_retriever
from blendfilter.run_context import RunContext
from blendfilter.tasks import TASKS
from blendfilter.training.memory import (
    ENOUGH,
    MemoryNeeded,
    check_free,
    memory_needed,
    out_of_memory,
)
from blendfilter.training.ppo import (
    CHECKPOINT,
    EXTRA,
    REWARDS,
    OnStep,
    Policy,
    PPOSettings,
    StepFigures,
    Text,
    silent_step,
    steps_in,
    train_ppo,
)
from blendfilter.training.recipes import check_recipe, new_folder, read_recipe, write_recipe
from blendfilter.training.silver import silver_set
from blendfilter.training.trainer import BEGUN, GOES_ON, MICRO_TOKENS, TrainingSettings, versions

logger = logging.getLogger(__name__)

CONCURRENCY = 8
"""Calls of the reader in flight: as many as a model in this process answers in one go."""
WINDOW = 20
"""Steps of a moving mean."""
READER, PICTURE = "reader", "rewards.png"
HOW = "blendfilter train bider"
LESS = "read fewer tokens at a time (--micro-tokens), align a smaller refiner, or have a server run the reader"
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
    ignore_memory: bool = False,
    on_step: OnStep = silent_step,
    notice: Callable[[str], None] = logger.info,
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
        ignore_memory: begin also where the estimate says that memory is too little.
        on_step: called with each step's figures and seconds. notice: called with the line of what memory it will take.

    Raises:
        BadArgument: `distilled` is no refiner of BIDER's, or was trained with another prompt; too little memory.
        RunMismatch: `out` was made, or begun, otherwise. RunLocked: another process trains there. WorkFailed: memory
        ran out. What the reader and `silver_set` raise.
    """
    settings, out = settings or PPOSettings(), new_folder(out)
    settings.check()
    check_unmatched(unmatched)
    known = distilled_recipe(distilled, prompts)
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
    asked = data.recipe["silver"]["task"]
    wording = TaskWording.of(TASKS[asked].wording).with_demos(demos)
    context = RunContext(connect(reader), concurrency=CONCURRENCY, budget=budget)
    recipe_of_answerer(context.model)
    checkpoint = checkpoint_of(distilled)
    start = {"name": str(distilled), "fingerprint": fingerprint(checkpoint)}
    shaping = {
        name: value
        for name, value in asdict(settings).items()
        if name not in ("micro_tokens", "every")
    }
    made: dict[str, Any] = {
        **data.recipe,
        "aligned": True,
        "base": known["base"]
        if checkpoint.base
        else start,  # an adapter is checked against its base
        "distilled": start,
        "reader": {
            "name": context.model.name,
            **{k: v for k, v in context.model.identity.items() if v},
        },
        "demos": None if demos is None else str(demos),
        "unmatched": unmatched,
        "settings": {**shaping, "max_input_tokens": reading.max_input_tokens, "chat": reading.chat},
    }
    if check_recipe(out, made):
        _clear(out)
        return Aligned(out, read_recipe(out), steps_in(out))
    tokenizer = open_tokenizer(checkpoint)
    every = [prompt_ids(tokenizer, each.prompt, chat=reading.chat) for each in data.examples]
    most = _most_tokens(checkpoint, reading, settings)
    readable = [at for at, each in enumerate(every) if len(each) <= most]
    if not readable:
        raise EmptyData(
            f"each of the {len(every)} prompts has more than {most:,} tokens, which the refiner reads"
        )
    ids, rows = [every[at] for at in readable], [data.rows[at] for at in readable]
    place = torch_device(device)
    settings, wanted = fitting(checkpoint, context.model, [*map(len, ids)], settings, place)
    notice(check_free(wanted, place, refuse=not ignore_memory, less=LESS))
    partial = out.with_name(f"{out.name}.partial")
    if not check_recipe(partial, made, BEGUN):
        partial.mkdir(parents=True, exist_ok=True)
        write_recipe(partial, made, BEGUN)
    with (
        Journal(partial / READER) as journal,
        writing(partial, GOES_ON),
        _begun(partial, journal),
        context.opened(journal),
        out_of_memory(LESS),
    ):
        if check_recipe(out, made):  # another process finished it meanwhile
            shutil.rmtree(partial, ignore_errors=True)
            return Aligned(out, read_recipe(out), steps_in(out))
        rewards = ReaderReward(rows, context.lm, wording, unmatched=unmatched, prompts=prompts)
        policy = open_policy(distilled, device)
        reference = None
        if settings.kl_coefficient:
            reference = open_checkpoint(distilled, device=device, dtype=_dtype(policy)).model
        steps = train_ppo(
            policy, ids, rewards, partial, settings, reference=reference, on_step=on_step
        )
        change = reward_change([each.reward for each in steps])
        result = {
            **asdict_of(change),
            **rewards.figures(place for each in steps for place in each.places),
            "left_out_too_long": len(every) - len(ids),
        }
        _save(policy, partial)
        write_questions(partial, (row.question for row in rows), trained_on(checkpoint))
        draw_rewards([each.reward for each in steps], partial / PICTURE)
        write_recipe(partial, {**made, "versions": versions(), "result": result})
        partial.rename(out)  # the journal stays open, and locked, until no other process can begin
        _clear(out)
    return Aligned(out, read_recipe(out), steps)


def _most_tokens(checkpoint: Checkpoint, reading: TrainingSettings, settings: PPOSettings) -> int:
    """Tokens of a prompt that the refiner reads: as in its distillation, and with room for what it writes."""
    config, positions = open_config(checkpoint), positions_of(open_config(checkpoint))
    if positions is None:
        return reading.max_input_tokens
    room = positions if config.is_encoder_decoder else positions - settings.max_new_tokens
    return min(reading.max_input_tokens, room)


@contextmanager
def _begun(folder: Path, journal: Journal) -> Iterator[None]:
    """Where the block ends before a step or a paid answer, the folder goes: it would refuse other settings."""
    try:
        yield
    except BaseException:
        if not (folder / REWARDS).exists() and all(
            record.get("error") for record in journal.records("call")
        ):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _clear(out: Path) -> None:
    """Away with what only a resumed call needs."""
    for name in (BEGUN, CHECKPOINT):
        (out / name).unlink(missing_ok=True)


def distilled_recipe(folder: str | Path, prompts: Prompts | str | None = None) -> dict[str, Any]:
    """The recipe of a distilled refiner. Raises: BadArgument where it is none, or reads another prompt."""
    known = read_recipe(folder)
    if known.get("part") != "bider" or "settings" not in known:
        what = (
            f"was trained as {known['part']}"
            if known.get("part")
            else "is none (no recipe of ours in it)"
        )
        raise BadArgument(
            f"alignment begins with a distilled refiner, and {folder} {what}: make one first ({HOW})"
        )
    BIDERFilter(prompts=prompts).check(folder)
    return known


def check_unmatched(unmatched: str) -> None:
    """Raise `UnknownName` for a choice that there is not."""
    if unmatched not in ("keep", "drop"):
        raise UnknownName.of("unmatched", unmatched, ("keep", "drop"))


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
        check_unmatched(unmatched)
        self.rows, self.reader, self.unmatched = rows, reader, unmatched
        self.method = Direct(as_retriever(lambda query, k: []), task=wording, prompts=prompts)
        self.original: dict[int, float] = {}

    def __call__(self, texts: Sequence[Text]) -> list[float]:
        return aio.run(self.rewards(texts), "alignment")

    async def rewards(self, texts: Sequence[Text]) -> list[float]:
        """The rewards of `texts`; the reader's calls are in flight together."""
        found = await self._answered((each.place for each in texts), texts)
        return [after - self.original[each.place] for after, each in zip(found, texts, strict=True)]

    def context(self, text: Text) -> list[Passage]:
        """What the reader is given of a written text, as the filter gives it."""
        passages = [each for each in self.rows[text.place].passages if each.text.strip()]
        written = text.text
        for stop in STOPS:
            written = written.partition(stop)[0]
        parts = looked_up(written, passages, cut=text.cut and written == text.text).parts
        return [
            each for each in parts if self.unmatched == "keep" or not isinstance(each, WrittenText)
        ]

    def figures(self, places: Iterable[int]) -> dict[str, Any]:
        """For the recipe: the mean F1 from the original passages of the questions at `places`.

        What an earlier session asked is in the reader's journal, and asked again it costs no call.
        """
        places = set(places)
        aio.run(self._answered(places), "alignment")
        return {
            "questions": len(places),
            "f1_original": round(fmean(self.original[at] for at in places), 6),
        }

    async def _answered(self, places: Iterable[int], texts: Sequence[Text] = ()) -> list[float]:
        """F1 from each of `texts`; and, into `original`, from the original passages at `places`, once a question."""
        missing = sorted({*places} - self.original.keys())
        async with aio.together() as group:
            before = [
                group.create_task(self._f1(place, self.rows[place].passages)) for place in missing
            ]
            after = [group.create_task(self._f1(each.place, self.context(each))) for each in texts]
        self.original.update(zip(missing, (task.result() for task in before), strict=True))
        return [task.result() for task in after]

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
                    "another folder without its demonstrations (--demos none), without the question (--exclude FILE "
                    "--leave-out), or with a reader that reads more"
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


def fitting(
    distilled: Checkpoint,
    reader: ConnectedLM,
    prompts: Sequence[int],
    settings: PPOSettings,
    place: Any,
) -> tuple[PPOSettings, MemoryNeeded]:
    """The settings with their `micro_tokens`, and what they take; on a GPU by default as many tokens as fit.

    On a processor by default always as many: there the weights are the same to the last digit.

    Args:
        prompts: tokens of each. place: a torch device.
    """
    free, kind = free_memory(place), "cpu" if place.type == "cpu" else "cuda"
    at_a_time = [MICRO_TOKENS[kind] >> halved for halved in range(1 if kind == "cpu" else 5)]
    for tokens in [settings.micro_tokens] if settings.micro_tokens else at_a_time:
        made = replace(settings, micro_tokens=tokens)
        wanted = alignment_memory(distilled, reader, prompts, made, place)
        if free is None or wanted.total < ENOUGH * free:
            break
    return made, wanted


def alignment_memory(
    distilled: Checkpoint,
    reader: ConnectedLM,
    prompts: Sequence[int],
    settings: PPOSettings,
    place: Any,
) -> MemoryNeeded:
    """What an alignment takes at a torch device; its weights are those of reference and reader, too.

    Args:
        prompts: tokens of each. settings: with `micro_tokens`.
    """
    dtype = "float32" if distilled.base is None or place.type == "cpu" else None
    config = open_config(distilled)
    longest = max(prompts) + settings.max_new_tokens
    tokens = max(longest, min(settings.micro_tokens or 0, settings.batch * longest))
    texts = round(tokens / (fmean(prompts) + settings.max_new_tokens))
    own = memory_needed(
        config,
        lora_rank=read_json(distilled.path / ADAPTER)["r"] if distilled.base else None,
        bf16=dtype is None and str(config.dtype).endswith("16"),
        tokens=tokens,
        longest=longest,
        targets=min(settings.batch, texts) * settings.max_new_tokens,
        checkpointing=False,
    )
    reference = weights_needed(distilled, dtype) if settings.kl_coefficient else 0
    return own._replace(weights=own.weights + reference + _reader_weights(reader, place))


def _reader_weights(reader: ConnectedLM, place: Any) -> int:
    """Bytes that the reader's weights will take at a torch device; 0 where it computes elsewhere."""
    engine = reader.inner
    if isinstance(engine, LocalEngine):
        return engine.path.stat().st_size if place.type == "cpu" else 0
    if not isinstance(engine, HuggingFaceEngine):
        return 0
    how = settings_in(reader.state["name"])[1]
    its = torch_device(how.get("device"))
    if (its.type, its.index or 0) != (place.type, place.index or 0):
        return 0
    dtype, rounded = loading_dtype(how.get("dtype"), its)
    weights = weights_needed(engine.checkpoint, dtype or ("float32" if its.type == "cpu" else None))
    return weights // 4 if rounded else weights  # int8


def _dtype(policy: Policy) -> str:
    return str(policy.model.get_output_embeddings().weight.dtype).removeprefix("torch.")


def _save(policy: Policy, folder: Path) -> None:
    """Weights and tokeniser, as `train bider` leaves them."""
    with quiet_transformers(EXTRA, "training"):
        policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


# --- whether the reward rose ------------------------------------------------------------------------------------------


class RewardChange(NamedTuple):
    """The mean reward of the first and the last quarter of the steps, and their difference with its 95 % interval.

    The interval is normal, of the spread of the steps' means; nan where a quarter has fewer than two steps.
    """

    steps: int
    quarter: int
    first: float
    last: float
    difference: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """The statement for a reader."""
        if math.isnan(self.low):
            return f"mean reward {self.first:+.3f} in the first and {self.last:+.3f} in the last of {self.steps} steps"
        verdict = (
            "rose"
            if self.low > 0
            else "fell"
            if self.high < 0
            else "neither rose nor fell for certain"
        )
        return (
            f"mean reward of the first {self.quarter} steps {self.first:+.3f}, of the last {self.last:+.3f}: "
            f"{self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}] (95 % interval); it {verdict}"
        )


def reward_change(means: Sequence[float]) -> RewardChange:
    """What `means`, one a step, come to.

    By hand: 0, 2, 5, 5, 5, 5, 4, 6 have the quarters (0, 2) and (4, 6), means 1 and 5, each of variance 2, so that the
    difference 4 has the standard error sqrt(2/2 + 2/2) = 1.41.

    >>> change = reward_change([0, 2, 5, 5, 5, 5, 4, 6])
    >>> change.difference, round((change.high - change.low) / 2, 2)
    (4.0, 2.77)
    """
    quarter = max(1, len(means) // 4)
    first, last = means[:quarter], means[-quarter:]
    difference, half = fmean(last) - fmean(first), math.nan
    if quarter > 1:
        half = _Z * math.sqrt((stdev(first) ** 2 + stdev(last) ** 2) / quarter)
    return RewardChange(
        len(means),
        quarter,
        fmean(first),
        fmean(last),
        difference,
        difference - half,
        difference + half,
    )


def asdict_of(change: RewardChange) -> dict[str, Any]:
    """For a recipe, rounded; None in place of nan."""
    found = {
        f"reward_{name}": value
        for name, value in change._asdict().items()
        if name not in ("steps", "quarter")
    }
    rounded = {
        name: None if math.isnan(value) else round(value, 6) for name, value in found.items()
    }
    return {"steps": change.steps, "quarter": change.quarter, **rounded}


def moving_means(means: Sequence[float], window: int = WINDOW) -> list[tuple[float, float]]:
    """For each step the mean of the last `window`, and the half width of its 95 % interval (nan of a single one).

    >>> [(mean, round(half, 2)) for mean, half in moving_means([0, 2, 4], window=2)]
    [(0.0, nan), (1.0, 1.96), (3.0, 1.96)]
    """
    found = []
    for at in range(len(means)):
        some = means[max(0, at + 1 - window) : at + 1]
        half = _Z * stdev(some) / math.sqrt(len(some)) if len(some) > 1 else math.nan
        found.append((fmean(some), half))
    return found


def reward_lines(means: Sequence[float], lines: int = 10, width: int = 40) -> list[str]:
    """The curve as lines of text: a tenth of the steps each, its mean, the interval, and where it lies.

    >>> print("\\n".join(reward_lines([0.0, 0.0, 0.5, 0.5], lines=2, width=10)))
    steps      1 to 2      +0.000 [+0.000, +0.000] *
    steps      3 to 4      +0.500 [+0.500, +0.500]          *
    """
    size = min(lines, len(means))
    edges = [round(at * len(means) / size) for at in range(size + 1)]
    parts = [means[start:end] for start, end in pairwise(edges)]
    centres = [fmean(part) for part in parts]
    low, high = min(centres), max(centres)
    found = []
    for start, part, centre in zip(edges, parts, centres, strict=False):
        _, half = moving_means(part, len(part))[-1]
        ends = "" if math.isnan(half) else f"[{centre - half:+.3f}, {centre + half:+.3f}]"
        place = round((width - 1) * (centre - low) / (high - low)) if high > low else 0
        found.append(
            f"steps {start + 1:>6,} to {start + len(part):<6,} {centre:+.3f} {ends:<16} {' ' * place}*"
        )
    return found


def draw_rewards(means: Sequence[float], path: Path, window: int = WINDOW) -> None:
    """The rewards as a picture, with their moving mean and its interval; where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    smooth = moving_means(means, window)
    steps = [*range(1, len(means) + 1)]
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, means, ".", color="#767676", markersize=3, label="a step")
    axes.plot(
        steps,
        [mean for mean, _ in smooth],
        color="#0072B2",
        linewidth=1.5,
        label=f"mean of {window} steps",
    )
    axes.fill_between(
        steps,
        [mean - half for mean, half in smooth],
        [mean + half for mean, half in smooth],
        color="#0072B2",
        alpha=0.2,
        linewidth=0,
    )
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xlabel("step")
    axes.set_ylabel("F1(written) - F1(original)")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})
