"""Filters that shorten a context by how surprising its words are to a small model: plug-ins over two packages.

- `LongLLMLinguaFilter`: Jiang et al. 2023, "LongLLMLingua: Accelerating and Enhancing LLMs in Long Context Scenarios
  via Prompt Compression" (https://arxiv.org/abs/2310.06839), by the authors' package `llmlingua`. Passages are ranked
  by how likely they make the question, and tokens dropped that the question does not make surprising.
- `SelectiveContextFilter`: Li 2023, "Unlocking Context Constraints of LLMs: Enhancing Context Efficiency of LLMs with
  Self-Information-Based Content Filtering" (https://arxiv.org/abs/2304.12102), by the author's package
  `selective-context`. Phrases with the least self-information under GPT-2 are dropped; the question is not read.

Both are baselines of BIDER (Jin et al. 2024, Table 1), which names no settings but the lengths that came of them; here
a budget of tokens is the one setting, and the rest is what the package's own page of LongLLMLingua shows. What is left
is no sentence of any passage, and is kept as one `WrittenText`. No model of the run is asked.

Neither package is in an extra: selective-context pins a spaCy and a click of 2021. They are used where they are
installed. A package's model is loaded once and shared by the copies that optimisers make; threads take turns.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import dspy

from blendfilter import aio
from blendfilter.errors import MissingExtra, MissingFile, check_count, words_of
from blendfilter.filters.base import Filter, SharedModel, selection
from blendfilter.lm.tokenisers import RULE
from blendfilter.records import Passage, WrittenText, one_line
from blendfilter.retrieval.callables import as_passages


class _Compressed(Filter):
    """Keeps what a package's compressor leaves of all passages together, as one text."""

    writes_text = True
    package: ClassVar[str]
    install: ClassVar[str]
    """The command that installs the package."""
    compressor: SharedModel

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = check_count("tokens", tokens)

    def arguments(self) -> dict[str, Any]:
        """The budget, and the package's version."""
        package = self.package
        with contextlib.suppress(PackageNotFoundError):  # a checkout on the path
            package += f" {version(package)}"
        return {"tokens": self.tokens, "package": package}

    def prepare(self) -> None:
        with self.compressor:
            pass

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """What is left of them; the package works in a thread."""
        lines = [passage.line for passage in as_passages(passages) if passage.text.strip()]
        if not lines:
            return selection()
        left = one_line(await aio.in_thread(self.shorten, question, lines))
        before, after = (round(RULE.count(text)) for text in (" ".join(lines), left))
        return selection(
            [WrittenText(left)] if left else [],
            f"kept {after} of {before} tokens",
            f"left: {left}",
        )

    def shorten(self, question: str, lines: list[str]) -> str:
        """What is left of the passages' lines."""
        raise NotImplementedError


def _made(kind: type[_Compressed], maker: str, **settings: Any) -> Any:
    """The package's own object, without what it writes to the terminal meanwhile."""
    try:
        module = import_module(kind.package.replace("-", "_"))
        with contextlib.redirect_stdout(io.StringIO()):
            return getattr(module, maker)(**settings)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{kind.__name__} needs '{error.name}': {kind.install}") from None
    except (OSError, ValueError) as error:
        what = settings.get("model_name", "what it reads with")
        raise MissingFile(
            f"{kind.package} cannot load {what}: {words_of(error)[:200]} ({kind.install})"
        ) from error


class LongLLMLinguaFilter(_Compressed):
    """Keeps the tokens that LongLLMLingua finds worth the most for the question, best passage first.

    Args:
        model: the causal model that finds tokens surprising: a folder, or a name on the hub.
        tokens: about how many are kept, by that model's own tokeniser.

    Raises:
        MissingExtra: `llmlingua` is not installed. MissingFile: the model cannot be loaded. Both when it is first used,
            or prepared.
    """

    package, install = "llmlingua", "pip install llmlingua"

    def __init__(self, *, model: str = "NousResearch/Llama-2-7b-hf", tokens: int = 180) -> None:
        super().__init__(tokens)
        self.model = model
        self.compressor = SharedModel(_long_llm_lingua, model)

    def arguments(self) -> dict[str, Any]:
        """The same, and the model."""
        return {**super().arguments(), "model": self.model}

    def shorten(self, question: str, lines: list[str]) -> str:
        with self.compressor as compressor:
            done = compressor.compress_prompt(
                lines,
                question=question,
                target_token=self.tokens,
                rank_method="longllmlingua",
                concate_question=False,
                condition_in_question="after_condition",
                condition_compare=True,
                reorder_context="sort",
                dynamic_context_compression_ratio=0.3,
                context_budget="+100",
            )
        return str(done["compressed_prompt"])


def _long_llm_lingua(model: str) -> Any:
    try:
        cuda = import_module("torch").cuda.is_available()
    except ModuleNotFoundError:  # the package will say so
        cuda = False
    return _made(
        LongLLMLinguaFilter,
        "PromptCompressor",
        model_name=model,
        device_map="cuda" if cuda else "cpu",
        # its own default would run code that comes with a checkpoint
        model_config={"trust_remote_code": False},
    )


class SelectiveContextFilter(_Compressed):
    """Keeps the phrases that surprise GPT-2 the most, whatever the question is.

    Args:
        tokens: about how many are kept, words times 1.4: as large a share of the phrases is.

    Raises:
        MissingExtra: `selective-context` is not installed. MissingFile: GPT-2 or spaCy's English pipeline is not there.
            Both when it is first used, or prepared.
    """

    package = "selective-context"
    install = "pip install --no-deps selective-context, pip install spacy nltk, python -m spacy download en_core_web_sm"

    def __init__(self, *, tokens: int = 220) -> None:
        super().__init__(tokens)
        self.compressor = SharedModel(_selective_context)

    def shorten(self, question: str, lines: list[str]) -> str:
        text = "\n".join(lines)
        dropped = 1 - self.tokens / RULE.count(text)
        if dropped <= 0:
            return text
        with self.compressor as compressor, warnings.catch_warnings():
            # a phrase without a token of its own has a mean of nothing
            warnings.simplefilter("ignore", RuntimeWarning)
            return str(compressor(text, reduce_ratio=dropped, reduce_level="phrase")[0])


def _selective_context() -> Any:
    return _made(SelectiveContextFilter, "SelectiveContext", model_type="gpt2", lang="en")
