"""Damaged indexes of every kind: what is done to which file, and what opening and searching it then comes to.

`python tests/damaged.py FOLDER FIRST LAST [KIND…]` prints a JSON line before and after each case, so that whoever
started it knows which one ended the process. Case n is the same one every time: everything is drawn from `Random(n)`.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.errors import BlendFilterError
from blendfilter.records import Passage
from blendfilter.retrieval.hybrid import open_indexes
from blendfilter.retrieval.indexes import build
from blendfilter.retrieval.manifest import MANIFEST
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.witnesses import JudgedBy, WitnessWriter

KINDS = ("bm25", "rank-bm25", "trimmed", "flat", "hnsw", "ivf", "trimmed-flat", "hybrid")
LEXICAL = KINDS[:3]
"""Those that need neither torch nor FAISS."""
TOWNS = [Passage(str(n), f"Town {n}", f"A harbour with {n} boats, {n % 7} piers and a mill.") for n in range(60)]
QUERIES = ["Which harbour has 12 boats?", "mill piers"]
_CACHE = "vectors.npz"
"""A copy of what can be computed again, and is: replacing it when it is damaged is its purpose."""


class Outcome(NamedTuple):
    """One case: `what` was done; `error` is empty where the search works; `wrong` says why it may not end so."""

    case: int
    kind: str
    what: str
    error: str
    wrong: str
    seconds: float
    """Of the processor."""


def world(root: Path, kinds: tuple[str, ...]) -> None:
    """Every folder that `kinds` are made of, whole."""
    from checkpoints import tiny_bert

    wanted = {"trimmed": ["bm25"], "trimmed-flat": ["flat"], "hybrid": ["bm25", "flat"], "colbert": []}
    for base in dict.fromkeys(each for kind in kinds for each in wanted.get(kind, [kind])):
        if base in ("bm25", "rank-bm25"):
            build(base, TOWNS, root / base)
        else:
            build("dense", TOWNS, root / base, encoder=tiny_bert(root / "encoder"), index=base, m=4, nlist=4)
    if "colbert" in kinds:
        from checkpoints import tiny_colbert

        build("colbert", TOWNS, root / "colbert", checkpoint=tiny_colbert(root / "checkpoint"), gpus=0)
    for kind, base, similarity in (("trimmed", "bm25", "words"), ("trimmed-flat", "flat", "vectors")):
        if kind in kinds:
            folder = TrimFolder.create(root / base, root / kind, threshold=1, similarity=similarity)
            with WitnessWriter(folder.witnesses) as writer:
                by = JudgedBy("9f3a", "word", ("phi1",), "some-model", "")
                writer.judge(QUERIES[0], {"12": True, "13": False}, by)
            open_indexes([folder.place])  # keeps the questions' vectors


def parts(kind: str) -> list[str]:
    """The folders that a case of `kind` is drawn from, and that are opened together."""
    return {"hybrid": ["bm25", "flat"], "trimmed": ["trimmed", "bm25"], "trimmed-flat": ["trimmed-flat", "flat"]}.get(
        kind, [kind]
    )


# --- what is done to a file -----------------------------------------------------------------------------------------


def flipped(data: bytes, chance: random.Random) -> bytes:
    """Some bits the other way round."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 3, 50])):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def head(data: bytes, chance: random.Random) -> bytes:
    """Other bytes among the first 120, where formats say what follows."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 4])):
        changed[chance.randrange(min(len(changed), 120))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
    return bytes(changed)


def hole(data: bytes, chance: random.Random) -> bytes:
    """Zeros, or ones, in a stretch."""
    start, length = chance.randrange(len(data)), chance.choice([8, 64, 4096])
    return data[:start] + chance.choice([b"\0", b"\xff"]) * len(data[start : start + length]) + data[start + length :]


def cut(data: bytes, chance: random.Random) -> bytes:
    """The beginning alone."""
    return data[: chance.choice([0, 1, len(data) // 2, len(data) - 1, chance.randrange(len(data))])]


def longer(data: bytes, chance: random.Random) -> bytes:
    """Something behind it."""
    return data + chance.randbytes(chance.choice([1, 100, 5000]))


def noise(data: bytes, chance: random.Random) -> bytes:
    """Nothing but noise, of the same length."""
    return chance.randbytes(len(data))


ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 10**30, 2**63, 1e308, float("nan"), float("inf"), "", "x" * 10_000, "\0",
    "../..", "/", "http", "trimmed", "bm25", "\ud800", [], [[]], {}, {"a": 1}, [1, 2, 3], [None], "(a+)+$",
    "0" * 16, "0" * 64,
)  # fmt: skip
"""Values that a reader of JSON may not have thought of."""


def odd_value(data: bytes, chance: random.Random) -> bytes:
    """Somewhere in a JSON value another one, or a name that is gone, or new."""
    value = json.loads(data)
    at, places = value, list[tuple[Any, Any]]()
    while isinstance(at, (dict, list)) and at:
        key = chance.choice(list(at)) if isinstance(at, dict) else chance.randrange(len(at))
        places.append((at, key))
        at = at[key]
    if not places:
        return json.dumps(chance.choice(ODD)).encode()
    inside, key = chance.choice(places)
    if isinstance(inside, dict) and chance.random() < 0.25:
        taken = inside.pop(key)
        if chance.random() < 0.5:
            inside[chance.choice(["", "x", "../x", str(key).upper()])] = taken
    else:
        inside[key] = chance.choice(ODD)
    return json.dumps(value, indent=1).encode()


def huge_json(data: bytes, chance: random.Random) -> bytes:
    """A number of 5,000 digits, brackets without end, or text that is no UTF-8."""
    long, deep = b'{"passages": ' + b"9" * 5000 + b"}", b"[" * 200_000
    return chance.choice([long, deep, b'{"a":' * 50_000, b"\xff\xfe{}", b"1e999"])


Damage = Callable[[bytes, random.Random], bytes]
ANY: tuple[Damage, ...] = (flipped, flipped, head, hole, cut, longer, noise)
JSONS: tuple[Damage, ...] = (odd_value, odd_value, odd_value, huge_json)


def damage(folder: Path, chance: random.Random) -> str:
    """Spoil one thing in an index folder; what that was, in words."""
    names = sorted(path.name for path in folder.iterdir() if path.name != "encoder")
    name = MANIFEST if chance.random() < 0.3 else chance.choice(names)
    path = folder / name
    way = chance.random()
    if way < 0.04:
        path.unlink()
        return f"{name} removed"
    if way < 0.07:
        path.unlink()
        path.mkdir()
        return f"{name} a folder"
    data = path.read_bytes()
    ways = [*ANY, *(JSONS if name.endswith(".json") else ())]
    if name == MANIFEST:
        ways = [*JSONS, *JSONS, flipped, flipped, cut]
    how = chance.choice(ways) if data else longer
    path.write_bytes(how(data, chance))
    return f"{name} {how.__name__}"


# --- what comes of it -----------------------------------------------------------------------------------------------


def outcomes(root: Path, cases: range, kinds: tuple[str, ...], begun: Callable[[int], object]) -> Iterator[Outcome]:
    """One after the other; `begun` is told the number of each before it begins."""
    whole, work = root / "whole", root / "work"
    whole.mkdir(parents=True)
    world(whole, kinds)
    for case in cases:
        begun(case)
        chance, kind = random.Random(case), kinds[case % len(kinds)]
        for name in parts(kind):
            shutil.copytree(whole / name, work / name)
        yield _outcome(case, kind, work, chance)
        shutil.rmtree(work)


def _outcome(case: int, kind: str, work: Path, chance: random.Random) -> Outcome:
    spoilt = work / chance.choice(parts(kind))
    what = f"{spoilt.name}/{damage(spoilt, chance)}"
    opened = parts(kind) if kind == "hybrid" else parts(kind)[:1]
    before, started = tree(work), time.process_time()
    error = wrong = ""
    try:
        with warnings.catch_warnings(record=True) as result:
            warnings.simplefilter("always", UserWarning)
            index = open_indexes([work / name for name in opened])
            for hits in index.search(QUERIES, 5):
                assert all(isinstance(each.line, str) for each in hits)
            index.info()
        wrong = "".join(f"a warning of two lines: {each.message}" for each in result if "\n" in str(each.message))
    except BlendFilterError as refused:
        error = f"{type(refused).__name__}: {refused}"
        if "\n" in error or str(work) not in error or len(error) > 900:
            wrong = "no line that names the folder"
    except BaseException as raw:
        error, wrong = f"{type(raw).__name__}: {raw}"[:300], "a raw error"
    seconds = time.process_time() - started
    if tree(work) != before:
        wrong += " files were changed"
    return Outcome(case, kind, what, error, wrong.strip(), round(seconds, 3))


def tree(folder: Path) -> Mapping[str, str]:
    """Every file with a hash of its content, folders with none."""
    paths = [path for path in sorted(folder.rglob("*")) if path.name != _CACHE]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in paths}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    place, first, last, *chosen = sys.argv[1:]
    cases, named = range(int(first), int(last)), tuple(chosen) or KINDS
    for reported in outcomes(Path(place), cases, named, lambda case: print(json.dumps(case), flush=True)):
        print(json.dumps(reported._asdict()), flush=True)
