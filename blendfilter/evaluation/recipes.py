"""What besides the method differs between runs that are held against each other, so that nobody misreads a table.

In: the records (`run.json`) of the runs by label. Out: a line for each thing that differs, with its value in every run:
``lm gpt-x (direct) / gpt-y (blend, cot)``. The program (instructions, demonstrations, templates) and a user's own code
are named where runs are of one method with the same arguments: nothing else tells those apart. What a run has no use
for (an index, where nothing is searched) is left out, and differs from nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Record = Mapping[str, Any]


def differing(records: Mapping[str, Record]) -> list[str]:
    """The lines.

    >>> run = {"settings": {"lm": {"name": "a"}, "seed": 0}}
    >>> differing({"plain": run, "blend": {"settings": {"lm": {"name": "b"}, "seed": 0}}})
    ['lm a (plain) / b (blend)']
    """
    lines = []
    for name, read in _READ.items():
        lines += told_apart(name, {label: read(record) for label, record in records.items()})
    for name in ("program", "code"):
        lines += told_apart(name, _of_one_method(records, name))
    decoding = {label: record["settings"]["lm"].get("parameters", {}) for label, record in records.items()}
    for name in dict.fromkeys(name for each in decoding.values() for name in each):
        lines += told_apart(name, {label: str(each.get(name, "as served")) for label, each in decoding.items()})
    return lines


def told_apart(name: str, values: Mapping[str, str]) -> list[str]:
    """One line where the values differ, none where they do not; an empty value is none.

    >>> told_apart("k", {"direct": "5", "cot": "", "blend": "15"}), told_apart("k", {"direct": "5", "cot": ""})
    (['k 5 (direct) / 15 (blend)'], [])
    """
    groups: dict[str, list[str]] = {}
    for label, value in values.items():
        if value:
            groups.setdefault(value, []).append(label)
    told = " / ".join(f"{value} ({', '.join(labels)})" for value, labels in groups.items())
    return [f"{name} {told}"] if len(groups) > 1 else []


def _of_one_method(records: Mapping[str, Record], name: str) -> dict[str, str]:
    """This digest of every run beside which another is of the same method, called the same way."""
    methods = {label: record["settings"].get("method") or {} for label, record in records.items()}
    called = {label: f"{each.get('name')} {sorted((each.get('arguments') or {}).items())}"
              for label, each in methods.items()}  # fmt: skip
    digests: dict[str, set[str]] = {}
    for label, each in methods.items():
        digests.setdefault(called[label], set()).add(str(each.get(name) or ""))
    return {label: str(each.get(name) or "") for label, each in methods.items() if len(digests[called[label]]) > 1}


def _lm(record: Record) -> str:
    lm = record["settings"]["lm"]
    return " ".join(str(lm[key]) for key in ("name", "label") if lm.get(key))


def _endpoint(record: Record) -> str:
    lm = record["settings"]["lm"]
    options = [f"{key} {value}" for key, value in sorted((lm.get("options") or {}).items())]
    return " ".join([str(lm.get("endpoint") or ""), *options]).strip()


def _index(record: Record) -> str:
    return "+".join(f"{each['kind']}/{each['fingerprint']}" for each in record["settings"].get("retrievers", []))


def _setting(*path: str) -> Callable[[Record], str]:
    def read(record: Record) -> str:
        value: Any = record
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return "" if value is None else str(value)

    return read


_READ: Mapping[str, Callable[[Record], str]] = {
    "lm": _lm,
    "endpoint": _endpoint,
    "index": _index,
    "k": _setting("settings", "method", "arguments", "k"),
    "data": _setting("settings", "data", "fingerprint"),
    "seed": _setting("settings", "seed"),
    "version": _setting("versions", "blendfilter"),
}
