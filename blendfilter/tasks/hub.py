"""Questions from the Hugging Face hub through the package `datasets` (extra ``[data]``), imported when asked for."""

from __future__ import annotations

from collections.abc import Iterator

from blendfilter.errors import BadArgument, MissingExtra, MissingFile
from blendfilter.extras import how_to_install
from blendfilter.files import JsonRow
from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.reading import given


def place(task: Task) -> Hub:
    """Where the task's data lies on the hub. Raises `BadArgument` where it has none there."""
    if task.hub is None:
        raise BadArgument(f"task '{task.name}' has no data set on the hub: give a file")
    return task.hub


def rows(hub: Hub, split: str | None = None) -> Iterator[JsonRow]:
    """The rows of one split, downloaded once and kept by `datasets`.

    Raises:
        MissingExtra: `datasets` is not installed.
        MissingFile: the hub, the data set or the split cannot be reached.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingExtra(f"data from the hub needs the package 'datasets': {how_to_install('data')}") from error
    import httpx  # comes with the model client; what the hub's own client raises when the network is away

    try:
        found = load_dataset(hub.name, hub.config, split=split or hub.split)
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        label = hub.label(split)
        raise MissingFile(f"cannot load '{label}' from the Hugging Face hub ({reason}): or give a file") from error
    return given(found, hub.label(split))
