"""`connect("local")`, `connect("PATH.gguf")`: from a name to a model in this process, or to what a run knows of one.

In: the name as the user gave it, and how it is opened. Out: a `ConnectedLM`. What tells its calls from another model's
is the file's name, the fingerprint of its weights and the context, never the path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dspy import lm15

from blendfilter.errors import AskedWrong, BadArgument, ReplayMiss
from blendfilter.lm.local.engine import LocalEngine
from blendfilter.lm.local.loading import LOCAL, weights_of
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.profiles import Profile, profile_for
from blendfilter.lm.providers import PROVIDERS

_PREFIX = f"{LOCAL}/"


def is_local(name: str, api_base: object = None) -> bool:
    """Whether `name` says a model in this process: `local`, `local/PATH`, or a path that ends in .gguf.

    >>> is_local("local"), is_local("models/qwen3-4b.gguf"), is_local("llamacpp/qwen3-4b.gguf")
    (True, True, False)
    """
    if api_base is not None:
        return False
    served = name.partition("/")[0] in PROVIDERS
    return name == LOCAL or name.startswith(_PREFIX) or (name.lower().endswith(".gguf") and not served)


def refuse_for_a_server(context: int | None, threads: int | None) -> None:
    """Raise `BadArgument` where an option of a model in this process is given for one that is not."""
    for name, value in {"context": context, "threads": threads}.items():
        if value is not None:
            raise BadArgument(f"{name} is for a model in this process (local, or a .gguf file): leave it out")


def local_model(
    name: str,
    asked: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    context: int | None = None,
    threads: int | None = None,
    deadline: float | None = None,
    json_schema: bool | None = None,
    label: str = "",
) -> ConnectedLM:
    """The model behind `name`; `asked` are endpoint, thinking and reasoning, `settings` the decoding's.

    Raises:
        MissingExtra, MissingFile, BadData, BadArgument: as `LocalEngine`.
    """
    if asked.get("extra_body"):
        raise BadArgument("extra_body is for a server's requests: a model in this process takes none")
    path = weights_of(name.removeprefix(_PREFIX) or None)
    how = {key: asked[key] for key in ("endpoint", "thinking", "reasoning")}
    profile = dataclasses.replace(profile_for(path.stem), json_schema=json_schema is not False)
    engine = LocalEngine(
        path, context=context, threads=1 if threads is None else threads, profile=profile, deadline=deadline, **how
    )
    opened = {"weights": engine.fingerprint, "context": engine.context, "json_schema": profile.json_schema or None}
    return ConnectedLM(
        engine.model,
        engine,
        profile=profile,
        identity={"label": label, "endpoint": how["endpoint"], "options": {**how, "endpoint": None, **opened}},
        address=engine.address,
        state={
            "name": name, **how, "context": context, "threads": threads, "deadline": deadline, "label": label,
            "json_schema": json_schema,
            **settings,
        },
        **settings,
    )  # fmt: skip


class Gone:
    """The engine of a model that is not to be had any more: it answers nothing, and says why."""

    def __init__(self, gone: AskedWrong) -> None:
        self.gone = gone

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Raise `ReplayMiss`."""
        raise ReplayMiss(f"the model would have to be asked, and {self.gone}")


def remembered(known: Mapping[str, Any], gone: AskedWrong, **settings: Any) -> ConnectedLM:
    """The model as a run's settings tell it (`name`, `label`, `endpoint`, `options`), for a replay without the file."""
    identity = {key: known[key] for key in ("label", "endpoint", "options") if key in known}
    schema = bool((known.get("options") or {}).get("json_schema"))
    profile: Profile = dataclasses.replace(profile_for(known["name"]), json_schema=schema)
    return ConnectedLM(known["name"], Gone(gone), profile=profile, identity=identity, **settings)
