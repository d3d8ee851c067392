"""Settings of a model's calls, by name: which there are, and what a mistyped one was meant to be.

In: names as a user gave them. Out: nothing, or one line. A name that nobody knows would fail at the first call, in
words about wire formats, and after other calls may have been paid for.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from blendfilter.errors import UnknownName

DECODING = frozenset({
    "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed", "stop", "n", "rollout_id",
    "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "reasoning_effort", "response_format",
})  # fmt: skip
"""What decides a reply, beside the prompt: taken over from a user's own `dspy.LM`."""
_WIRE = frozenset({
    "num_generations", "callbacks", "logit_bias", "metadata", "moderation", "prediction", "provider", "verbosity",
    "service_tier", "store", "user", "user_id", "safety_identifier", "tools", "tool_choice", "parallel_tool_calls",
    "functions", "function_call", "prompt_cache", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    "reasoning_format", "enable_thinking", "chat_template_kwargs",
})  # fmt: skip
"""What DSPy hands on as well."""
_SHORT = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute", "max_new_tokens": "max_tokens"}


def refuse_unknown(names: Iterable[str], arguments: Iterable[str]) -> None:
    """Raise `UnknownName` for a setting that is neither one of a call nor among `arguments`, those of the caller.

    >>> refuse_unknown(["seed", "temprature"], ["top_p"])
    Traceback (most recent call last):
    blendfilter.errors.UnknownName: no setting 'temprature'. Did you mean 'temperature'? (fields of a server's own: ex\
tra_body={'temprature': …})
    """
    known = DECODING | _WIRE | set(arguments)
    for name in sorted(set(names) - known):
        near = [_SHORT[name]] if name in _SHORT else difflib.get_close_matches(name, sorted(known), n=1)
        guess = f" Did you mean '{near[0]}'?" if near else ""
        raise UnknownName(f"no setting '{name}'.{guess} (fields of a server's own: extra_body={{'{name}': …}})")
