"""`blendfilter train`: FilCo's models, BIDER's refiner and the pipeline's stages, by transformers' trainers."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from blendfilter.cli.app import State, command, command_group
from blendfilter.cli.console import Bars, say, show
from blendfilter.cli.making import DEFAULT_K, connect, retriever
from blendfilter.cli.options import (
    TASKS,
    AnySources,
    DemosFile,
    InModel,
    InOutput,
    JudgeOptions,
    K,
    Limit,
    PromptsName,
    SpendingOptions,
)
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.settings import Option, Rare, Settings
from blendfilter.training.settings import PPOSettings, PPOTerms, TrainingSettings

if TYPE_CHECKING:
    from blendfilter.training.trainer import Trained

train = command_group(
    "train",
    "Fine-tune filters and generators; on several GPUs by torchrun or accelerate launch.",
)
TARGET_TOKENS = 512
"""Of a stage's target, by default."""
STEPS_SAID = 10
"""Steps of an alignment from one notice to the next."""


class TrainingOptions(TrainingSettings):
    """What every training takes."""

    base: InModel[str]
    """What is trained: a Hugging Face folder or owner/name, a GGUF file, or a LoRA adapter (merged first)."""
    out: InOutput[Path]
    """The folder of the weights, their recipe and the losses. It appears when all is done; the same command again goes
    on where it stopped (OUT.partial)."""
    prompts: PromptsName = None

    def settings(self, target_tokens: int) -> TrainingSettings:
        """As the trainer takes them."""
        given = self.given(TrainingSettings)
        return TrainingSettings(**{"max_target_tokens": target_tokens, **given})


class SilverRowsOptions(Settings, panel="Data"):
    """The silver file, and what of it is left out."""

    silver: Path
    """A file that 'blendfilter silver' made."""
    task: Rare[str | None] = None
    """Its task, where no recipe beside it says so."""
    limit: Limit = None
    exclude: list[Path] | None = None
    """A question file to evaluate on, in the layout of the silver's task: none of its questions may be trained
    on; may be given again."""
    leave_out: bool = False
    """Leave the questions of --exclude out, rather than refuse them."""

    def excluded(self, task: str) -> list[str]:
        """The questions that the files of `--exclude` have."""
        from blendfilter.tasks import load

        files = self.exclude or ()
        return [question.question for file in files for question in load(task, str(file))]


class FilCoOptions(SilverRowsOptions, TrainingOptions, panel="Data"):
    """The settings of `blendfilter train filco`."""

    part: Literal["context", "passages", "generator"]
    """context: the filter, from question and passages to the silver context. passages: the paper's PSG, to the numbers
    of the passages that hold it. generator: the answerer, from question and silver context to the answer."""
    reads: Annotated[str, Option(metavar="silver|psg|full", rare=True)] = "silver"
    """generator: the silver context, the passages that hold it, or all of them (the paper's FULL); several with commas:
    each question has the next of them."""


@command("filco", group=train)
def train_filco(options: FilCoOptions) -> None:
    """Train FilCo's filter (M_ctx, or of whole passages) or its generator (M_gen) on silver contexts, as in the paper.

    Then: --filter filco (or filco-passage) --filter-model OUT, and --lm hf/OUT --method direct-retrieval --demos none.
    Several GPUs: torchrun --nproc-per-node 4 -m blendfilter.cli train filco …, or accelerate launch likewise.

    Example: blendfilter train filco --part context --base google/flan-t5-xl --silver nq.jsonl --out models/nq-context
    """
    _train(options.part, options, options.reads)


class ReaderOptions(Settings, panel="Model", goes_with="align"):
    """The reader that a refiner is aligned with."""

    reader: str | None = None
    """The model that answers from what was written, named as --lm is of 'eval' (hf/DIR, a server's)."""
    reader_api_base: Rare[list[str] | None] = None
    """Its server."""
    reader_endpoint: Rare[str | None] = None
    """chat (the default), or completions where it is a base model."""


class AlignmentOptions(PPOTerms, ReaderOptions, panel="Method", goes_with="align"):
    """What moves a distilled refiner, and the reader that it is moved by."""

    align: bool = False
    """Not distil, but align a distilled refiner (--base) with a reader, by PPO. Then --epochs are passes over a
    step's texts (2), --batch-size its questions (16), --learning-rate 1e-5, --max-target-tokens 128."""
    demos: DemosFile = None
    unmatched: Rare[str | None] = None
    """Text that was written and no passage has: keep (the default), or drop."""


class BiderOptions(
    SilverRowsOptions, TrainingOptions, AlignmentOptions, SpendingOptions, panel="Data"
):
    """The settings of `blendfilter train bider`."""

    stage: Annotated[str, Option(metavar="extracted|refined|cleaned|by_target", rare=True)] = (
        "cleaned"
    )
    """Which step of the synthesis is learned."""


@command("bider", group=train)
def train_bider(options: BiderOptions) -> None:
    """Distil BIDER's refiner: from question and passages to the nuggets of 'blendfilter silver --measure bider'.

    Then: --filter bider --filter-model OUT. Several GPUs: torchrun --nproc-per-node 4 -m blendfilter.cli train bider ….
    With --align and a --reader, a distilled refiner learns by PPO what helps the reader; one process.

    Example: blendfilter train bider --base facebook/bart-large --silver nq-bider.jsonl --out models/nq-bider
    """
    if options.align:
        _align(options)
        return
    if needless := options.given_options(SpendingOptions):
        raise BadArgument(
            f"{needless[0]} is of the alignment: give --align too, or leave it out"
        )
    _train("bider", options, "silver", options.stage)


class StagesOptions(AnySources, TrainingOptions, panel="Data"):
    """The settings of `blendfilter train stages`."""

    task: Annotated[str, Option(help=f"Whose words and gold: {', '.join(TASKS)}.")]
    data: str
    """A question file with gold titles; 'hub' (Hugging Face), or 'sample', our own."""
    k: K = DEFAULT_K
    limit: Limit = None
    examples: int = Field(1500, ge=1)
    """Prompts to train on, of all stages together."""
    stage: list[str] | None = None
    """Only this stage (relevant: a filter alone, for --filter-lm); may be given again."""
    add_gold: float = 0.5
    """Share of the questions whose gold passages are put among the hits that miss them."""
    exclude: list[Path] | None = None
    """A question file of the task to evaluate on: questions that are in it, or share a gold passage with one of it, are
    left out; may be given again."""


@command("stages", group=train)
def train_stages(options: StagesOptions) -> None:
    """Train one model on the stages of BlendFilter, its filters and baselines, with targets made of gold.

    The methods are run over the questions by what knows the answer, and their own prompts are the examples. Then:
    --lm hf/OUT --demos none, with any of these methods. For a base of 135M parameters: --epochs 1 --batch-size 16
    --learning-rate 3e-4.

    Example: blendfilter train stages --task hotpotqa --data train.json --index wiki --base Qwen/Qwen3-0.6B --out stages
    """
    State.goes_on = True
    from blendfilter.lm.checkpoints import checkpoint_of
    from blendfilter.retrieval.base import silent
    from blendfilter.tasks import load
    from blendfilter.training.stages import SHARES, apart, drawn, recipe_of, stage_examples
    from blendfilter.training.trainer import is_first, train_model

    settings = options.settings(TARGET_TOKENS)
    if options.prompts is not None:
        raise BadArgument("train stages learns the package's own prompts: leave --prompts out")
    for name in options.stage or ():
        if name not in SHARES:
            raise UnknownName.of("stage", name, SHARES)
    checkpoint_of(options.base)  # what is wrong with it is an error now: examples take minutes
    notice = say if is_first() else _nothing
    questions = load(options.task, options.data, limit=options.limit)
    excluded = [
        question for file in options.exclude or () for question in load(options.task, str(file))
    ]
    left = apart(questions, excluded) if excluded else questions
    if len(left) < len(questions):
        notice(
            f"{len(questions) - len(left)} of {len(questions)} questions are left out, as --exclude says"
        )
    index = retriever(options, left, k=options.k, sample=options.data == "sample")
    if index is None:
        raise BadArgument(
            "the stages search: give them passages (--corpus FILE, --corpus pooled or --index DIR)"
        )
    finished = options.out.exists()
    shape: dict[str, Any] = {"k": options.k, "add_gold": options.add_gold}
    with Bars() as bars:
        progress = bars if is_first() else silent
        made = drawn(
            stage_examples(left, index, **shape, seed=options.seed, progress=progress),
            options.examples,
            shares={name: SHARES[name] for name in options.stage or SHARES},
            seed=options.seed,
        )
        recipe = recipe_of(made, left, index, **shape)
        counts = (f"{stage} {count:,}" for stage, count in recipe["stages"].items())
        notice(f"examples: {', '.join(counts)}")
        done = train_model(
            options.base,
            [example.example for example in made],
            options.out,
            settings,
            recipe=recipe,
            progress=progress,
        )
    if is_first():
        show_trained(done, finished=finished)


_OF_PPO = {
    "epochs": "epochs", "batch_size": "batch", "learning_rate": "learning_rate", "max_grad_norm": "max_norm",
    "max_target_tokens": "max_new_tokens", "micro_tokens": "micro_tokens", "save_every": "every", "seed": "seed",
}  # fmt: skip
"""Options of any training that PPO takes, and what it calls them."""
_OF_ALIGNMENT = {"base", "out", "prompts", "device", *_OF_PPO}


def _align(options: BiderOptions) -> None:
    State.goes_on = True
    if needless := options.given(TrainingOptions, "stage").keys() - _OF_ALIGNMENT:
        raise BadArgument(
            f"{options.option(min(needless))} is of the distillation, whose settings the alignment keeps: leave it out"
        )
    if options.reader is None:
        raise BadArgument(
            "--align asks a model what it answers from the refined contexts: name it with --reader"
        )
    from blendfilter.training.alignment import (
        align_bider,
        distilled_recipe,
        reward_lines,
        reward_words,
    )
    from blendfilter.training.ppo import StepFigures
    from blendfilter.training.silver import task_of

    distilled_recipe(options.base)
    shared = {_OF_PPO[name]: value for name, value in options.given(*_OF_PPO).items()}
    settings = PPOSettings(**options.given(PPOTerms), **shared)
    task = task_of(options.silver, "bider", options.task)
    excluded = options.excluded(task)
    reader = connect(
        JudgeOptions(
            lm=options.reader,
            api_base=options.reader_api_base,
            endpoint=options.reader_endpoint or "chat",
        )
    )
    finished = options.out.exists()

    def on_step(figures: StepFigures, seconds: float) -> None:
        if figures.step % STEPS_SAID == 0 or figures.step == settings.steps:
            say(
                f"step {figures.step:,} of {settings.steps:,}: mean reward "
                f"{figures.reward:+.3f}, {seconds:.1f} s a step"
            )

    done = align_bider(
        options.base,
        options.silver,
        options.out,
        reader,
        settings,
        task=task,
        prompts=options.prompts,
        exclude=excluded,
        budget=options.budget(),
        on_step=on_step,
        **options.given("demos", "unmatched", "leave_out", "limit", "device"),
    )
    if finished:
        say(f"{done.folder} was finished before: nothing was trained")
    result = done.recipe["result"]
    for line in reward_lines([step.reward for step in done.steps]):
        show(line)
    show(
        reward_words(result),
        f"F1 from the original passages: {result['f1_original']:.3f}, mean of {result['questions']:,} questions",
        f"model: {done.folder} (hf/{done.folder})",
    )


def _train(
    part: Any, options: FilCoOptions | BiderOptions, reads: Any, stage: Any = "cleaned"
) -> None:
    State.goes_on = (
        True  # before the imports: these take a second, in which one may stop the command
    )
    from blendfilter.retrieval.base import silent
    from blendfilter.training.silver import TARGET_TOKENS, silver_set, task_of
    from blendfilter.training.trainer import is_first, train_model

    settings = options.settings(TARGET_TOKENS[part])
    task = task_of(options.silver, part, options.task)
    made = silver_set(
        options.silver,
        part,
        options.base,
        settings,
        task=task,
        reads=reads,
        prompts=options.prompts,
        exclude=options.excluded(task),
        leave_out=options.leave_out,
        limit=options.limit,
        stage=stage,
    )
    notice = say if is_first() else _nothing
    if left_out := made.recipe["silver"]["left_out"]:
        notice(
            f"{left_out} questions of {options.silver} are left out: they are to be evaluated on"
        )
    if cut := made.recipe.get("prompts_cut"):
        notice(
            f"{cut} of {len(made.examples)} prompts were cut to {settings.max_input_tokens} tokens, from the end"
        )
    finished = options.out.exists()
    with Bars() as bars:
        done = train_model(
            options.base,
            made.examples,
            options.out,
            settings,
            recipe=made.recipe,
            progress=bars if is_first() else silent,
        )
    if is_first():
        show_trained(done, finished=finished)


def show_trained(done: Trained, *, finished: bool = False) -> None:
    """What came of a training."""
    import json

    from blendfilter.training.recipes import LOSSES

    if finished:
        say(f"{done.folder} was finished before: nothing was trained")
    result, examples = done.recipe["result"], done.recipe["examples"]["n"]
    losses = [
        json.loads(line)["loss"]
        for line in (done.folder / LOSSES).read_text(encoding="utf-8").splitlines()
    ]
    tenth = max(1, len(losses) // 10)
    first, last = fmean(losses[:tenth]), fmean(losses[-tenth:])
    show(f"loss: {first:.2f} in the first tenth of the steps, {last:.2f} in the last")
    for name, words in (
        ("left_out_too_long", "examples left out, whose prompts are over the cap"),
        ("targets_cut", "targets cut at the cap"),
    ):
        if result[name]:
            show(f"{words}: {result[name]:,}")
    show(
        f"trained ({result['method']}) on {result['trained_on']:,} of {examples:,} examples: {result['steps']:,} "
        f"steps, {result['tokens']:,} tokens, {result['seconds']:,.0f} s",
        f"model: {done.folder} (hf/{done.folder})",
    )


def _nothing(line: str) -> None:
    """Of the processes that are not the first."""
