"""Settings that a model's server refuses: found out by leaving them out, and remembered once that was answered.

Profiles know what families refuse; this is for the rest. A refusal (HTTP 400 or 422) that names a setting is answered
by another attempt without it, or with the value next to it. That the server's words were understood shows in the
answer: a setting whose absence changed nothing is sent again with the next call. A value that its user chose is left
out only where the server says that it does not know the setting.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from blendfilter.dspy_surface import lm15
from blendfilter.lm.budget import tally

logger = logging.getLogger(__name__)

MAX_ADAPTATIONS = 5
"""Refused settings that one call may give up before the refusal counts as its error."""
NEARLY_ZERO = 0.01
"""The temperature in place of a 0 that a server refuses. Left out, its default would sample; this draws the likeliest
token as good as always. vLLM raises what is smaller to it, and no known server asks for more."""
_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
_LARGEST_LEAST = 1024
"""Tokens to which a cap is raised at the most, whatever its server asks for."""
_NEUTRAL: Mapping[str, float] = {"top_p": 1, "frequency_penalty": 0, "presence_penalty": 0}
"""Values that change nothing, so that the setting can be left out as well."""
_DISPENSABLE = frozenset({"stop", "stop_sequences", "stopSequences", "top_logprobs"})
"""What is left out whatever its value: a reply is cut at its stop strings on this end anyway."""
_UNKNOWN = re.compile(
    r"unsupported|not supported|(?:does not|doesn't) support|unrecogni[sz]ed|unknown|unexpected|not permitted"
    r"|not allowed|only \S+ (?:is|are) (?:allowed|supported)|extra inputs|extra fields|deprecated|may only be set"
    r"|cannot both be",
    re.IGNORECASE,
)
_LEAST = re.compile(
    r"(?:>=|at least|greater than or equal to|minimum(?: value)?(?: of| is)|\[(?=\d{1,9},)) ?(\d{1,6})",
    re.IGNORECASE,
)
_SPELLED: Mapping[str, str] = {
    "stop": r"stop(?:[ _]?(?:sequence|string|word)s?)?",
    "response_format": r"response[ _]format(?:[. ]type)?",
    **dict.fromkeys(_CAPS, "|".join(_CAPS)),
}
"""How a message may spell a setting otherwise."""


class Refusals(dict[str, float | None]):
    """What a model's server is known to refuse: a setting, and the least value that it takes (None: it is left out)."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    async def around(
        self,
        fit: Callable[[Mapping[str, float | None]], Any],
        ask: Callable[[Any], Awaitable[lm15.Response]],
        named: Callable[[Any], Mapping[str, tuple[str, Any]]],
    ) -> lm15.Response:
        """What `ask` answers, asked again without what is refused; each time is an attempt of its own.

        Args:
            fit: the request without what is refused.
            ask: sends it.
            named: what a message may call the request's settings, which settings these are, and their values.

        Raises: what `ask` raises, where nothing is to be left out.
        """
        trial = dict(self)
        request = fit(trial)
        for adapted in range(MAX_ADAPTATIONS + 1):
            try:
                answer = await ask(request)
            except lm15.LM15Error as error:
                fault = error
            else:
                self._learn(trial)
                return answer
            refusal = refused(fault, named(request))
            if refusal is None or adapted == MAX_ADAPTATIONS:
                break
            trial |= [refusal]
            before, request = request, fit(trial)
            if request == before:  # it is a setting that is never left out
                break
            if (again := tally().again) is not None:
                await again(fault)
        raise fault

    def _learn(self, trial: Mapping[str, float | None]) -> None:
        """Remember what was left out of an answered request, and warn of a temperature: replies depend on it."""
        for name, least in trial.items():
            if name in self and self[name] in (None, least):  # another call was quicker
                continue
            self[name] = least
            if name == "temperature":
                instead = "its own is used, so replies may differ"
                if least is not None:
                    instead = f"{least:g} is sent"
                logger.warning("%s refuses its temperature: %s", self._model, instead)


def refused(
    fault: lm15.LM15Error, sent: Mapping[str, tuple[str, Any]]
) -> tuple[str, float | None] | None:
    """The setting among `sent` to ask again without, and the least value in its place; None where there is none."""
    if isinstance(fault, lm15.UnsupportedFeatureError):
        feature = str(getattr(fault, "feature", "") or "").removeprefix("config.")
        return (sent[feature][0], None) if feature in sent else None
    status = getattr(fault, "status", None)
    if status is None and isinstance(fault, lm15.InvalidRequestError):
        status = 400
    elsewhere = isinstance(fault, lm15.ContextLengthError | lm15.UnsupportedModelError)
    if status not in (400, 422, 500) or elsewhere:
        return None
    message = str(getattr(fault, "message", "") or fault)
    param = getattr(fault, "param", "")
    spelling = param if param in sent else _first_named(message, sent)
    if spelling is None:
        return None
    name, value = sent[spelling]
    # the server does not have the setting at all
    code = str(getattr(fault, "provider_code", "") or "")
    unknown = code.startswith(("unsupported_", "unknown_parameter")) or _UNKNOWN.search(message)
    if name == "temperature" and value == 0 and not unknown:
        return name, NEARLY_ZERO
    least = None
    if name in _CAPS and not unknown:
        stated = _LEAST.search(message)
        least = int(stated[1]) if stated else 0
        may_change = value < least <= _LARGEST_LEAST
    else:
        may_change = bool(unknown) or _is_ours(name, value)
    # a server that looks at nothing answers 500 to a temperature; its other faults pass
    return (name, least) if may_change and status != 500 else None


def _is_ours(name: str, value: Any) -> bool:
    """Whether a reply comes to the same without a setting of this value."""
    if name == "response_format":  # the schema of a stage, whose replies are read in any form
        return isinstance(value, Mapping) and value.get("type") == "json_schema"
    if name == "temperature":
        return isinstance(value, int | float) and value <= NEARLY_ZERO
    return name in _DISPENSABLE or (name in _NEUTRAL and value == _NEUTRAL[name])


def _first_named(message: str, names: Iterable[str]) -> str | None:
    """The name that stands first in a message."""
    found = list[tuple[int, str]]()
    for name in names:
        spelled = _SPELLED.get(name) or re.escape(name)
        pattern = rf"(?<![A-Za-z0-9_])(?:{spelled})(?![A-Za-z0-9_])"
        if place := re.search(pattern, message, re.IGNORECASE):
            found.append((place.start(), name))
    return min(found, key=lambda one: one[0])[1] if found else None
