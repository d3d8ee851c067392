"""Names of models in this process, and what a model of one is made with.

What tells its calls from another's is the file's name, the fingerprint of its weights and the context, never the path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dspy import lm15

from blendfilter.errors import AskedWrong, BadArgument, ReplayMiss
from blendfilter.lm.local.engine import LocalEngine
from blendfilter.lm.local.loading import LOCAL, weights_of
from blendfilter.lm.profiles import profile_for
from blendfilter.lm.providers import PROVIDERS


def is_local(name: str, api_base: object = None) -> bool:
    """Whether `name` means a model in this process: `local`, `local/PATH`, or a path that ends in .gguf.

    >>> is_local("local"), is_local("models/qwen3-4b.gguf"), is_local("llamacpp/qwen3-4b.gguf")
    (True, True, False)
    """
    if api_base is not None:
        return False
    served = name.partition("/")[0] in PROVIDERS
    return name == LOCAL or name.startswith(f"{LOCAL}/") or (name.lower().endswith(".gguf") and not served)


def refuse_for_a_server(context: int | None, threads: int | None) -> None:
    """Raise `BadArgument` where an option of a model in this process is given for one that is not."""
    for name, value in {"context": context, "threads": threads}.items():
        if value is not None:
            raise BadArgument(f"{name} is for a model in this process (local, or a .gguf file): leave it out")


def local_model(
    name: str,
    how: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    context: int | None = None,
    threads: int | None = None,
    deadline: float | None = None,
    json_schema: bool | None = None,
    label: str = "",
) -> dict[str, Any]:
    """The arguments of the `ConnectedLM` behind `name`.

    Args:
        name: see `is_local`.
        how: endpoint, thinking and reasoning.
        settings: of the decoding.
        context, threads, deadline, json_schema, label: as for `connect`.

    Raises:
        MissingExtra, MissingFile, BadData, BadArgument: as `LocalEngine`.
    """
    if how.get("extra_body"):
        raise BadArgument("extra_body is for a server's requests: a model in this process takes none")
    path = weights_of(name.removeprefix(f"{LOCAL}/") or None)
    how = {key: how[key] for key in ("endpoint", "thinking", "reasoning")}
    profile = dataclasses.replace(profile_for(path.stem), json_schema=json_schema is not False)
    engine = LocalEngine(
        path, context=context, threads=1 if threads is None else threads, profile=profile, deadline=deadline, **how
    )
    opened = {"weights": engine.fingerprint, "context": engine.context, "json_schema": profile.json_schema or None}
    return {
        "model": engine.model,
        "engine": engine,
        "profile": profile,
        "identity": {"label": label, "endpoint": how["endpoint"], "options": {**how, "endpoint": None, **opened}},
        "address": engine.address,
        "state": {
            "name": name, **how, "context": context, "threads": threads, "deadline": deadline, "label": label,
            "json_schema": json_schema,
            **settings,
        },
        **settings,
    }  # fmt: skip


class MissingEngine:
    """The engine of a model whose file is gone: it answers nothing, and says why."""

    def __init__(self, gone: AskedWrong) -> None:
        self.gone = gone

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Raise `ReplayMiss`."""
        raise ReplayMiss(f"the model would have to be asked, and {self.gone}")


def remembered(known: Mapping[str, Any], gone: AskedWrong) -> dict[str, Any]:
    """The arguments of the `ConnectedLM` that a run's settings describe, for a replay without the file.

    Args:
        known: `name`, `label`, `endpoint` and `options` of the model, as a run recorded them.
        gone: why the model itself cannot be had.
    """
    schema = bool((known.get("options") or {}).get("json_schema"))
    return {
        "model": known["name"],
        "engine": MissingEngine(gone),
        "profile": dataclasses.replace(profile_for(known["name"]), json_schema=schema),
        "identity": {key: known[key] for key in ("label", "endpoint", "options") if key in known},
    }
