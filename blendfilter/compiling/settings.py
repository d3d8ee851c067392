"""How an optimiser searches, each setting declared and validated once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt

from blendfilter.settings import Option, Rare, Settings


class SearchSettings(Settings, panel="Method"):
    """Which optimiser, how far it goes, and what its demonstrations may take.

    Raises: BadArgument for a value outside its range.
    """

    optimizer: str = "bootstrap"
    """labeled (training rows as demonstrations), bootstrap (answers of the model that the metric accepts), search (the
    best of several sets of either), mipro (instructions and demonstrations, searched; wants optuna), gepa
    (instructions, by reflection)."""
    max_demos: Rare[NonNegativeInt] = 4
    """Demonstrations a predictor gets at the most."""
    max_demo_tokens: Rare[int | None] = Field(None, ge=0)
    """Tokens that a predictor's demonstrations may have; the longest are dropped first."""
    candidates: Annotated[int, Option(rare=True, of=("search", "mipro"))] = Field(4, ge=2)
    """search, mipro: sets of demonstrations (mipro: and instructions) to choose from."""
    trials: Annotated[int, Option(rare=True, of=("mipro",))] = Field(8, ge=1)
    """mipro: combinations tried."""
    metric_calls: Annotated[int | None, Option(rare=True, of=("gepa",))] = Field(None, ge=1)
    """gepa: answers measured. Without it: by the data's size."""
    seed: Annotated[NonNegativeInt, Option(panel="Data", rare=True)] = 0
    """Of the split and of every random choice."""

    def shaping(self) -> dict[str, int | None]:
        """What shapes the program beside the seed, for its recipe: the optimiser's own settings alone."""
        own = {
            name: getattr(self, name)
            for name, how in self.declared().items()
            if self.optimizer in how.of
        }
        return {"max_demos": self.max_demos, **own}
