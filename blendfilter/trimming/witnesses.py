"""Witnesses: which judged questions separate which passages, in a file that only grows.

CDIT (Ma et al. 2024, https://arxiv.org/abs/2408.05524), section 4, Theorem 1: a judged question that accepts passage a
and rejects passage b is a witness to the separation of a and b. `WitnessWriter` appends verdicts as they come;
`Witnesses` is the state that the lines describe. A file of two verdicts (made up)::

    {"kind":"witnesses","format":1}
    {"kind":"question","id":"5b0c…","text":"Who runs the mill?","by":{"judge":"9f…","mode":"word",…},"at":"2026-…"}
    {"kind":"verdict","question":"5b0c…","passage":"p4","verdict":true,"at":"2026-…"}
    {"kind":"verdict","question":"5b0c…","passage":"p9","verdict":false,"at":"2026-…"}
    {"kind":"closed","question":"5b0c…","passages":["p4","p9"],"at":"2026-…"}
    {"kind":"undone","question":"5b0c…","at":"2026-…"}

Only a closed question counts: half of its verdicts would separate the wrong pairs. (Earlier versions wrote verdicts as
they came; now a question's lines are written together, and the journal of calls keeps the replies until then.) An undo
(of a question, a pair, all) is a line too, so the file tells its whole history, and what was undone can be judged
again. It is read whole when an index is opened (100,000 separations within a second).

Differs from the paper: it counts witnesses and keeps none; here each separation names its questions, the judge, the
model and the time, and any of them can be taken back.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pydantic.dataclasses

from blendfilter.errors import (
    BadArgument,
    BadData,
    CannotWrite,
    MissingFile,
    UnknownName,
    check_count,
    guess,
)
from blendfilter.files import AppendOnly, check_regular, json_line, path_of, whole_lines
from blendfilter.records import one_line, whole_characters

FILE = "witnesses.jsonl"
FORMAT = 1
THRESHOLD = 1
"""Witnesses that a separation takes by default, for another question than those that were judged; measured by
`eval/bench/harm.py`. The authors' released code takes 1."""
Pairing = Literal["theorem", "algorithm"]
"""Which pairs a judged question separates: by Theorem 1 each accepted passage from each rejected one; by line 11 of
Algorithm 1 a rejected one from those accepted before it in the ranking alone."""
Pair = tuple[str, str]
"""Two passages, sorted."""
LISTED = 20
"""Lines of questions that a summary has at most."""


@pydantic.dataclasses.dataclass(frozen=True, slots=True)
class JudgedBy:
    """Who judged: the digest of the judge's identity, its mode and rules by name, the model, the program."""

    judge: str
    mode: str
    rules: tuple[str, ...]
    model: str
    program: str


NO_JUDGE = JudgedBy("", "", (), "", "")
"""The judge of a question that retrieved nothing."""


@dataclass(frozen=True)
class JudgedQuestion:
    """One closed question, and the verdicts on its passages in rank order; `at` is UTC."""

    id: str
    question: str
    verdicts: dict[str, bool | None]
    by: JudgedBy
    at: str

    @cached_property
    def accepted(self) -> tuple[str, ...]:
        return self._with(True)

    @cached_property
    def rejected(self) -> tuple[str, ...]:
        return self._with(False)

    @cached_property
    def silent(self) -> tuple[str, ...]:
        """Passages without a verdict: they are kept and witness nothing."""
        return self._with(None)

    def _with(self, verdict: bool | None) -> tuple[str, ...]:
        return tuple(name for name, own in self.verdicts.items() if own is verdict)


class Separation(NamedTuple):
    """Two passages and the ids of the questions that separate them, both sorted."""

    pair: Pair
    witnesses: tuple[str, ...]


# --- lines ------------------------------------------------------------------------------------------------------------


def question_text(question: str) -> str:
    """A question as it is stored: on one line, of whole characters. Raises `BadArgument` where nothing is left."""
    text = whole_characters(one_line(question))
    if not text:
        raise BadArgument(
            f"the question is empty ({question!r}): there is nothing to judge for it"
        )
    return text


def question_id(question: str) -> str:
    """12 hex digits of a question's text."""
    return hashlib.sha256(question_text(question).encode()).hexdigest()[:12]


def verdict_line(question: str, passage: str, verdict: bool | None) -> dict[str, Any]:
    """One verdict; `question` is an id. Raises `BadArgument` for another type."""
    if not isinstance(passage, str) or not (verdict is None or isinstance(verdict, bool)):
        raise BadArgument(
            f"a verdict on passage {passage!r} is True, False or None, got {verdict!r}"
        )
    return _line("verdict", question=question, passage=passage, verdict=verdict)


def judged_lines(
    question: str, verdicts: Mapping[str, bool | None], by: JudgedBy
) -> list[dict[str, Any]]:
    """`by` begins to judge a question (what another judge had begun with no longer counts), the verdicts on its
    passages in rank order, and that it is closed: all that was retrieved has its verdict."""
    text = question_text(question)
    name = question_id(text)
    begins = _line("question", id=name, text=text, by=asdict(by))
    given = [verdict_line(name, passage, verdict) for passage, verdict in verdicts.items()]
    return [begins, *given, _line("closed", question=name, passages=[*verdicts])]


def undone_line(question: str | None = None, pair: Pair | None = None) -> dict[str, Any]:
    """A question's verdicts, or a pair's witnesses so far, or, with neither, everything above no longer counts."""
    if question is not None:
        return _line("undone", question=question)
    return _line("undone", pair=sorted(pair)) if pair else _line("undone", all=True)


def _line(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, **fields, "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


_encoded = partial(json_line, separators=(",", ":"))
_BEGINS = b'{"kind":"'
_FIRST = {"kind": "witnesses", "format": FORMAT}
_FIRST_BEGINS = _encoded(_FIRST)[:-1]


# --- the state --------------------------------------------------------------------------------------------------------


class Witnesses:
    """The state that a witnesses file describes; a new one is empty.

    By the `pairing` of Algorithm 1 a passage that ranks above all accepted ones, as in the paper's own Figure 8, is
    separated from none; so that of Theorem 1 is the default.
    """

    def __init__(self, pairing: Pairing = "theorem") -> None:
        self.pairing: Pairing = pairing
        self._judged: dict[str, JudgedQuestion] = {}
        self._open: dict[str, JudgedQuestion] = {}
        self._undone: dict[str, set[Pair]] = defaultdict(set)
        """The pairs that a judged question separated, and that were undone."""

    @classmethod
    def read(cls, path: str | Path, pairing: Pairing = "theorem") -> Witnesses:
        """The state of the file at `path`; a last line that a kill tore is left out.

        Raises:
            MissingFile: there is none. BadData: a line that no torn write explains, or that a newer version wrote.
        """
        state, path = cls(pairing), path_of(path)
        try:
            check_regular(path)
            with open(path, "rb") as file:
                found = whole_lines(
                    file.fileno(),
                    _BEGINS,
                    lambda number: _not_a_line(path, number),
                    _FIRST_BEGINS,
                )
                state._replay((line for _, line in found), path)
        except FileNotFoundError:
            raise MissingFile(
                f"no witnesses at {path}: gather some (blendfilter trim), or open the bare index"
            ) from None
        except OSError as error:
            raise BadData(
                f"{path} cannot be read: {error.strerror or error}; the bare index opens as before"
            ) from None
        return state

    @cached_property
    def judged(self) -> Mapping[str, JudgedQuestion]:
        """The questions that are closed and not undone, by id.

        In the order of their ids, not of the file: among equally near questions a search must not depend on history.
        """
        return dict(sorted(self._judged.items()))

    def is_judged(self, question_id: str) -> bool:
        """Whether a question is closed and not undone, at no cost while questions keep closing."""
        return question_id in self._judged

    def rejected_by(self, question_id: str) -> frozenset[str]:
        """What a judged question rejected; without the passages of which all its separations were undone.

        A passage that no pair of Algorithm 1 separates has none that counts: all of Theorem 1's must be undone.
        """
        judged, undone = self._judged[question_id], self._undone.get(question_id)
        if not undone:
            return frozenset(judged.rejected)
        counted = _separated(judged, self.pairing)
        left = set[str]()
        for rejected in judged.rejected:
            pairs = {_pair(a, rejected) for a in judged.accepted}
            if not pairs or not (pairs & counted or pairs) <= undone:
                left.add(rejected)
        return frozenset(left)

    def rejects(self) -> bool:
        """Whether any verdict drops a passage."""
        return any(self.rejected_by(name) for name in self._judged)

    def witnesses_of(self, a: str, b: str) -> tuple[str, ...]:
        """The sorted ids of the questions that separate two passages, in either order; none for unknown passages."""
        return self._by_pair.get(_pair(a, b), ())

    def witnesses_for(self, a: str, b: str) -> tuple[str, ...]:
        """Those of `witnesses_of` that accepted `a`, and rejected `b`."""
        return tuple(name for name in self.witnesses_of(a, b) if self._judged[name].verdicts[a])

    def separated(self, threshold: int, *, one_way: bool = True) -> Iterator[Separation]:
        """The pairs with at least `threshold` witnesses, sorted; `one_way`: so many that accepted the same one."""
        check_count("threshold", threshold)
        for (a, b), names in sorted(self._by_pair.items()):
            count = len(names)
            if one_way:
                for_a = len(self.witnesses_for(a, b))
                count = max(for_a, count - for_a)
            if count >= threshold:
                yield Separation((a, b), names)

    def separations(self) -> int:
        """How many pairs have any witness."""
        return len(self._by_pair)

    def partners(self, passage: str, threshold: int) -> tuple[str, ...]:
        """The passages that at least `threshold` witnesses separate from this one, sorted."""
        reached = (
            pair
            for pair, names in self._by_pair.items()
            if passage in pair and len(names) >= threshold
        )
        return tuple(sorted(b if a == passage else a for a, b in reached))

    def digest(self, threshold: int, *, one_way: bool = True) -> str:
        """16 hex digits over what a search can see of this state, however it came about.

        That is: the text of every judged question, what it accepted and rejected, and the pairs that reach `threshold`
        (see `separated`) with their witnesses. Empty where no question rejected anything.
        """
        if not self.rejects():
            return ""
        seen: list[Any] = list(self.separated(threshold, one_way=one_way))
        for name, judged in self.judged.items():
            rejected = sorted(self.rejected_by(name))
            seen.append((judged.question, sorted(judged.accepted), rejected))
        hashed = hashlib.sha256()
        for value in seen:
            hashed.update(json.dumps(value, separators=(",", ":")).encode() + b"\n")
        return hashed.hexdigest()[:16]

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take in one more line. Raises ValueError, TypeError, LookupError: it cannot follow those before."""
        match record["kind"]:
            case "verdict":
                verdict = verdict_line(record["question"], record["passage"], record["verdict"])
                self._open[record["question"]].verdicts[record["passage"]] = verdict["verdict"]
                return
            case "question":
                name, text = record["id"], record["text"]
                if name != question_id(text) or name in self._judged:
                    raise ValueError("another question's id, or one that is closed")
                self._open[name] = JudgedQuestion(name, text, {}, JudgedBy(**record["by"]), "")
            case "closed":
                name, passages = record["question"], record["passages"]
                given = self._open[name].verdicts
                verdicts = {sys.intern(passage): given[passage] for passage in passages}
                if len(verdicts) < len(passages):
                    raise ValueError("a passage twice")
                closed = replace(self._open.pop(name), verdicts=verdicts, at=record["at"])
                self._judged[name] = closed
            case "undone":
                self._undo(record)
            case kind:
                raise ValueError(f"no kind of line '{kind}'")
        for made in ("judged", "_by_pair"):  # they are made anew when they are needed
            self.__dict__.pop(made, None)

    def _undo(self, record: Mapping[str, Any]) -> None:
        if record.get("all") is True:
            for state in (self._judged, self._open, self._undone):
                state.clear()
        elif "pair" in record:
            pair = _pair(*record["pair"])
            # Also where it does not count by Algorithm 1: see `rejected_by`.
            separating = [
                name
                for name, judged in self._judged.items()
                if {judged.verdicts.get(passage) for passage in pair} == {True, False}
                and pair not in self._undone.get(name, ())
            ]
            if not separating:
                raise ValueError("a pair without witnesses")
            for name in separating:
                self._undone[name].add(pair)
        elif record["question"] in self._open:
            del self._open[record["question"]]
        else:
            del self._judged[record["question"]]
            self._undone.pop(record["question"], None)

    @cached_property
    def _by_pair(self) -> Mapping[Pair, tuple[str, ...]]:
        pairs: dict[Pair, list[str]] = defaultdict(list)
        for name, judged in self.judged.items():
            for pair in _separated(judged, self.pairing) - self._undone.get(name, set()):
                pairs[pair].append(name)
        return {pair: tuple(names) for pair, names in pairs.items()}

    def _replay(self, lines: Iterable[bytes], path: Path) -> None:
        """Apply the lines of a file. Raises `BadData` for one that cannot be."""
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line.decode())
                if number > 1:
                    self.apply(record)
                elif record["kind"] != "witnesses":
                    raise ValueError("the first line says what the file is")
                elif record["format"] != FORMAT:
                    raise BadData(
                        f"{path} has format {record['format']!r:.40}, and this version reads format {FORMAT}: upgrade "
                        "blendfilter, or open the bare index"
                    )
            except (ValueError, TypeError, LookupError, RecursionError) as error:
                raise _not_a_line(path, number) from error


def _pair(a: str, b: str) -> Pair:
    return (a, b) if a < b else (b, a)


def _separated(judged: JudgedQuestion, pairing: Pairing) -> set[Pair]:
    """The pairs that a question separates: see `Pairing`."""
    in_order = pairing == "algorithm"
    pairs, accepted = set[Pair](), [] if in_order else [*judged.accepted]
    for passage, verdict in judged.verdicts.items():
        if verdict is False:
            pairs.update(_pair(other, passage) for other in accepted)
        elif verdict and in_order:
            accepted.append(passage)
    return pairs


def _not_a_line(path: Path, number: int) -> BadData:
    return BadData(
        f"{path}, line {number}: not a line of a witnesses file; cut the file before it and trim again (the journal "
        "beside it still has the verdicts)"
    )


# --- the writer -------------------------------------------------------------------------------------------------------


class WitnessWriter:
    """The one writer of a witnesses file; threads may share it. `witnesses` is the state after all that was written.

    A line is appended and flushed before it counts, so no kill loses it. A power cut may lose verdicts, which the
    journal of calls gives again: the file is synced where something is undone, and where the writer ends.

    Raises:
        RunLocked: another writer is at work. BadData: the file is damaged. CannotWrite: the system refuses a line (a
        full disk); nothing of it stays. BadArgument: the place cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = path_of(path)
        self.witnesses = Witnesses()
        self._lock = threading.Lock()
        self._unsynced = False
        try:
            self._log = AppendOnly(
                path,
                begins=_BEGINS,
                first=_FIRST_BEGINS,
                refuse=lambda number: _not_a_line(path, number),
                contents="verdicts",
                busy="by another trim or by a writer still open in this process: wait for it or close it, or trim into "
                "a folder of your own (out=)",
            )
        except OSError as error:
            why = error.strerror or error
            raise BadArgument(
                f"{path} cannot be written ({why}): trim into a folder of your own (out=DIR)"
            ) from error
        try:
            self.witnesses._replay((line for _, line in self._log.lines()), path)
        except BaseException:
            self._log.close()
            raise

    def judge(self, question: str, verdicts: Mapping[str, bool | None], by: JudgedBy) -> None:
        """The question (its text) is judged: `verdicts` by passage, in rank order.

        Raises `BadArgument`: what is no verdict, or a question that is judged already.
        """
        with self._lock:
            name = question_id(question)
            if self.witnesses.is_judged(name):
                raise BadArgument(
                    f"{question!r} is judged already ({name}): undo it first, then judge it again"
                )
            self._append(*judged_lines(question, verdicts, by))

    def undo_question(self, question: str) -> None:
        """Take back the verdicts of a question (its id or text). Raises `UnknownName`."""
        with self._lock:
            self._append(
                undone_line(question=question_known(self.witnesses, question)), sync=True
            )

    def undo_pair(self, a: str, b: str) -> None:
        """Take back all witnesses of a pair so far; later questions may witness it anew. Raises `UnknownName`."""
        with self._lock:
            if not self.witnesses.witnesses_of(a, b):
                raise UnknownName(f"no question separates '{a}' and '{b}'")
            self._append(undone_line(pair=(a, b)), sync=True)

    def undo_all(self) -> int:
        """Take back everything; how many questions that were. Nothing is written where nothing is there."""
        with self._lock:
            known = len(self.witnesses.judged)
            if known:
                self._append(undone_line(), sync=True)
            return known

    def close_file(self) -> None:
        """Sync the file, and release it and the lock. Raises `CannotWrite` where the disk refuses to take it."""
        try:
            if not self._log.closed and self._unsynced:
                self._log.sync()
        except OSError as error:
            why = error.strerror or error
            raise CannotWrite(
                f"{self.path} may not be whole on the disk ({why}): look after the disk"
            ) from error
        finally:
            self._log.close()

    def __enter__(self) -> WitnessWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_file()

    def __del__(self) -> None:
        # A notebook's cell run again drops its writer: the lock must not outlive it.
        if hasattr(self, "_log"):
            self._log.close()

    def _append(self, *records: Mapping[str, Any], sync: bool = False) -> None:
        if self._log.closed:
            raise BadArgument(f"{self.path} is closed and takes no verdicts: open it again")
        first = [] if self._log.end else [_FIRST]
        self._log.append(b"".join(map(_encoded, [*first, *records])), sync=sync)
        self._unsynced = not sync
        for record in records:
            self.witnesses.apply(record)


# --- names of questions and pairs -------------------------------------------------------------------------------------


def question_known(witnesses: Witnesses, name: str) -> str:
    """The id of the judged question with that id or text. Raises `UnknownName` with the nearest one."""
    wanted = question_text(name)
    for known in (wanted, question_id(wanted)):
        if witnesses.is_judged(known):
            return known
    texts = {known: judged.question for known, judged in witnesses.judged.items()}
    near = guess(wanted, [*texts.values(), *texts])
    raise UnknownName(
        f"no judged question '{wanted}'.{near} (blendfilter trim INDEX lists {LISTED} of {len(texts):,})"
    )


def pair_named(witnesses: Witnesses, name: str) -> tuple[str, str]:
    """The separated pair that `ID,ID` means, sorted; an id may hold commas itself. Raises `UnknownName`."""
    parts = name.split(",")
    for at in range(1, len(parts)):
        a, b = ",".join(parts[:at]).strip(), ",".join(parts[at:]).strip()
        if witnesses.witnesses_of(a, b):
            return _pair(a, b)
    raise UnknownName(
        f"no question separates the pair '{name}' (export='-' lists those that are separated)"
    )
