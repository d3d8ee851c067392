"""DSPy's `BootstrapFinetune` over models of Hugging Face in this process: what it collects is trained on here.

    lm = finetunable(bf.connect("hf/models/smollm2"), "models/answers", epochs=2)
    program.set_lm(lm)
    better = dspy.BootstrapFinetune(metric=…).compile(program, trainset, teacher=…)

The predictors of `better` use `hf/models/answers`.

The prompts are those of DSPy's chat adapter, whole conversations, and are read in training as a call reads them. (The
methods of this package have prompts of their own, which `BootstrapFinetune` does not know: `blendfilter train stages`
trains those.)
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blendfilter.dspy_surface import Provider, TrainingJob
from blendfilter.errors import BadArgument, EmptyData, UnknownName
from blendfilter.files import path_of
from blendfilter.journal import digest
from blendfilter.lm.checkpoints import HUGGING_FACE
from blendfilter.lm.huggingface import HuggingFaceEngine, settings_in
from blendfilter.lm.model import ConnectedLM
from blendfilter.training.examples import Example
from blendfilter.training.settings import TrainingSettings
from blendfilter.training.trainer import train_model

_SETTINGS = TrainingSettings.model_fields.keys()


def finetunable(lm: ConnectedLM, out: str | Path, **settings: Any) -> ConnectedLM:
    """A copy of `lm` that DSPy can fine-tune, into the folder `out`.

    Args:
        lm: what `connect("hf/…")` gave.
        out: where the trained model goes. A second one that is trained on other data goes to `OUT-2`, and so on
            (`BootstrapFinetune(multitask=False)` trains one for each predictor).
        settings: fields of `TrainingSettings`; `BootstrapFinetune(train_kwargs=…)` goes before them.

    Raises:
        BadArgument: a model that is not trained in this process, or a setting. UnknownName: no such setting.
    """
    name = str(lm.state.get("name", ""))
    if not isinstance(lm.inner, HuggingFaceEngine) or not name:
        raise BadArgument(
            f"{lm.name} cannot be trained in this process: connect a model of Hugging Face ('hf/NAME')"
        )
    copied = lm.copy()
    copied.provider, copied.finetuning_model = FinetuneProvider(out, settings), name
    return copied


class FinetuneProvider(Provider):
    """Trains what DSPy's optimisers have collected, one model at a time; see `finetunable`."""

    def __init__(self, out: str | Path, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.finetunable, self.TrainingJob = True, self._job
        training_settings(settings)  # what is wrong with them is an error now
        self._out, self._settings = path_of(out), dict(settings)
        self._folders: dict[str, Path] = {}
        self._turn = threading.Lock()

    def _job(self, **what: Any) -> FinetuneJob:
        """A job with its folder. DSPy makes its jobs one after the other, and runs them side by side."""
        key = digest([what["model"], what["train_data"], what["train_kwargs"]])
        number = len(self._folders) + 1
        folder = self._out if number == 1 else self._out.with_name(f"{self._out.name}-{number}")
        return FinetuneJob(self._folders.setdefault(key, folder), **what)

    def kill(self, lm: ConnectedLM, launch_kwargs: Mapping[str, Any] | None = None) -> None:
        """Free the memory that the model takes."""
        if isinstance(lm.inner, HuggingFaceEngine):
            lm.inner.unload()

    def finetune(
        self,
        job: FinetuneJob,
        model: str,
        train_data: Sequence[Mapping[str, Any]],
        train_data_format: Any,
        train_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The name of the model that came of it. Raises: as `train_model`."""
        base, own = settings_in(model)
        given = {"device": own.get("device"), **self._settings, **(train_kwargs or {})}
        settings = training_settings(given)
        examples = examples_of(train_data)
        job.began = True
        with self._turn:  # a seed is of the whole process
            trained = train_model(
                base.removeprefix(HUGGING_FACE),
                examples,
                job.folder,
                settings,
                recipe={"part": "finetune", "by": "dspy.BootstrapFinetune"},
            )
        query = model.partition("?")[2]
        return f"{HUGGING_FACE}{trained.folder}{f'?{query}' if query else ''}"


class FinetuneJob(TrainingJob):
    """One training, and the folder that it is to fill."""

    def __init__(self, folder: Path, **what: Any) -> None:
        super().__init__(**what)
        self.folder, self.began = folder, False

    def status(self) -> str:
        """How far it is: `pending`, `running`, `succeeded` or `failed`."""
        if not self.done():
            return "running" if self.began else "pending"
        return "failed" if isinstance(self.result(), Exception) else "succeeded"


def examples_of(rows: Sequence[Mapping[str, Any]]) -> list[Example]:
    """What DSPy collected as examples: conversations that end with the assistant's turn, or prompts with completions.

    >>> examples_of([{"prompt": "2 + 2 =", "completion": " 4"}])
    [Example(prompt='2 + 2 =', target=' 4', question='')]

    Raises:
        EmptyData: there is none.
    """
    if not rows:
        raise EmptyData("nothing to train on: no call of the program passed the metric")
    examples = []
    for row in rows:
        if "messages" not in row:
            examples.append(Example(row["prompt"], row["completion"]))
            continue
        *before, (_, reply) = [(turn["role"], str(turn["content"])) for turn in row["messages"]]
        alone = [role for role, _ in before] == ["user"]
        examples.append(Example(before[0][1] if alone else tuple(before), reply))
    return examples


def training_settings(given: Mapping[str, Any]) -> TrainingSettings:
    """Settings by their names. Raises: UnknownName, BadArgument."""
    for name in given.keys() - _SETTINGS:
        raise UnknownName.of("setting of a training", name, sorted(_SETTINGS))
    return TrainingSettings(**given)
