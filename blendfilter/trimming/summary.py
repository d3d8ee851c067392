"""What a trim came to and what is on file, as text for people; separations as rows for spreadsheets."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from blendfilter.errors import UnknownName, check_count, guess
from blendfilter.files import path_of, write_whole
from blendfilter.journal import Journal
from blendfilter.lm.prices import Prices, cost_of, price_in
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.terminal import shown_on
from blendfilter.text import shortened
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.witnesses import LISTED, JudgedBy, JudgedQuestion, Witnesses

MOST_SILENT = 0.05
"""The share of no verdicts in a session above which it is warned of, and the command ends with exit code 1."""
STDOUT = "-"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula, or reads over to find one."""


def counted(n: int, one: str, several: str = "") -> str:
    """`n` of something, in words.

    >>> counted(1, "pair"), counted(1200, "witness", "witnesses")
    ('1 pair', '1,200 witnesses')
    """
    return f"{n:,} {one if n == 1 else several or one + 's'}"


class CallCosts(NamedTuple):
    """Calls of models in a journal, their tokens, and dollars: None where any call's price is unknown."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0

    def since(self, earlier: CallCosts) -> CallCosts:
        """What was added to `earlier`."""
        calls, tokens_in, tokens_out = (
            now - then for now, then in zip(self[:3], earlier[:3], strict=True)
        )
        cost = None if self.cost is None or earlier.cost is None else self.cost - earlier.cost
        return CallCosts(calls, tokens_in, tokens_out, cost if calls else 0.0)

    def words(self) -> str:
        """In words.

        >>> CallCosts(1200, 345_000, 1200, 0.021).words()
        '1,200 calls, 345,000 tokens in, 1,200 out, $0.0210'
        """
        cost = (
            ", price unknown" if self.cost is None else f", ${self.cost:.4f}" if self.cost else ""
        )
        return f"{counted(self.calls, 'call')}, {self.tokens_in:,} tokens in, {self.tokens_out:,} out{cost}"


def spent_in(journal: Journal, prices: Prices | None = None) -> CallCosts:
    """What a journal's answered calls took; one that was repeated counts again."""
    calls = tokens_in = tokens_out = 0
    total: float | None = 0.0
    for record in journal.records("call"):
        if record.get("error") or record.get("reused"):
            continue
        cost = cost_of(record, price_in(record, prices) if prices is not None else None)
        if cost is None and not record.get("address"):
            cost = 0.0  # it was answered in this process
        calls += 1
        tokens_in += record.get("tokens_in") or 0
        tokens_out += record.get("tokens_out") or 0
        total = None if cost is None or total is None else total + cost
    return CallCosts(calls, tokens_in, tokens_out, total)


class FailedQuestion(NamedTuple):
    """A question that stays open, and why."""

    question: str
    why: str


class WouldDrop(NamedTuple):
    """A passage that a search for `question` would no longer give, and the accepted one that it is separated from.

    `kept` is empty where the question's own verdict drops it.
    """

    question: str
    passage: str
    kept: str
    witnesses: int


@dataclass(frozen=True)
class Trimming:
    """What a trim came to.

    Attributes:
        questions: how many were given. judged: closed by this session; known: closed before; reused: answered by
            another's verdicts (`saved`: the passages that were not judged for it); the rest are in `errors`.
        accepted, rejected, silent: verdicts of the questions that this session closed; `silent` are no verdicts.
        separations: pairs with a witness, in all. reached: those of them that reach the threshold.
        rejects: whether any verdict on file drops a passage.
        spent, total: calls of this session, and of all of them.
        dropped: of a dry run, what would be dropped for these questions; else None.
    """

    place: str
    questions: int
    judged: int
    known: int
    reused: int
    saved: int
    accepted: int
    rejected: int
    silent: int
    separations: int
    reached: int
    rejects: bool
    threshold: int
    one_way: bool
    spent: CallCosts
    total: CallCosts
    errors: tuple[FailedQuestion, ...]
    dropped: tuple[WouldDrop, ...] | None

    @property
    def calls(self) -> int:
        """Model calls that this session made: those that the journal had are not among them."""
        return self.spent.calls

    @property
    def too_silent(self) -> bool:
        """Whether too many of this session's verdicts were none for the work to count as done."""
        return self.silent > MOST_SILENT * (self.accepted + self.rejected + self.silent)

    def text(self) -> str:
        """The summary that the command prints."""
        earlier = (
            ""
            if self.total.calls == self.spent.calls
            else f" (in all sittings: {self.total.words()})"
        )
        lines = [
            f"questions: {self.questions:,}; judged {self.judged:,}, judged before {self.known:,}, answered by "
            f"another's verdicts {self.reused:,} ({counted(self.saved, 'call')} saved), failed {len(self.errors):,}",
            f"verdicts: {self.accepted:,} accepted, {self.rejected:,} rejected, {self.silent:,} no verdict",
            separations_text(self.separations, self.reached, self.threshold, one_way=self.one_way),
            f"judge: {self.spent.words()}{earlier}",
        ]
        if self.dropped is not None:
            lines.append(f"would be dropped for these questions: {len(self.dropped):,}")
            for each in self.dropped:
                beside = f"{each.kept} stays ({counted(each.witnesses, 'witness', 'witnesses')})"
                lines.append(
                    f"  {each.passage} for {each.question!r}: {beside if each.kept else 'rejected for it'}"
                )
        if self.errors:
            lines.append(
                f"still open, and asked again by the same command: {counted(len(self.errors), 'question')}"
            )
            lines += _first([f"  {each.question!r}: {each.why}" for each in self.errors])
        if self.too_silent:
            replies = counted(self.accepted + self.rejected + self.silent, "reply", "replies")
            lines.append(
                f"the judge answered neither True nor False in {self.silent:,} of {replies}: read some in the journal, "
                "then undo those questions (--undo) and judge them with another --mode or model (--lm)"
            )
        if self.dropped is not None:
            then = "a dry run: the witnesses are as they were; without --dry-run the same calls cost nothing again"
        elif self.rejects:
            then = f'use it: blendfilter search {self.place} "…", or --index {self.place} of eval and ask'
        else:
            then = (
                f"no question rejected a passage, so {self.place} answers as the bare index does: "
                "judge more questions"
            )
        return "\n".join([*lines, then]) + "\n"


def _first(lines: list[str], most: int = LISTED) -> list[str]:
    return lines[:most] + [f"  and {len(lines) - most:,} more"] * (len(lines) > most)


def separations_text(
    separations: int, reached: int, threshold: int, *, one_way: bool = True
) -> str:
    """How many pairs have a witness, and how many of them enough."""
    side = " for one side" if one_way else " for either side"
    return (
        f"separations: {counted(separations, 'pair')} with a witness, {reached:,} of them with {threshold} or more"
        f"{side}, which is the threshold"
    )


def judge_name(by: JudgedBy) -> str:
    """Who judged, in words.

    >>> judge_name(JudgedBy("9f00", "word", ("phi1", "phi2"), "gpt-4o-mini", "1f3a"))
    'gpt-4o-mini, word, phi1+phi2, program 1f3a'
    """
    return f"{by.model}, {by.mode}, {'+'.join(by.rules)}, program {by.program}"


def state_text(folder: TrimFolder, witnesses: Witnesses) -> str:
    """An overlay in short: of which index, how far it is, who judged, and the first of its questions."""
    judged = witnesses.judged.values()
    accepted, rejected, silent = (
        sum(len(getattr(each, side)) for each in judged)
        for side in ("accepted", "rejected", "silent")
    )
    reached = sum(1 for _ in witnesses.separated(folder.threshold, one_way=folder.one_way))
    judges = Counter(judge_name(each.by) for each in judged if each.by.judge)
    half = f"; {len(witnesses.halves):,} begun and still open" if witnesses.halves else ""
    lines = [
        f"{folder.place}: an overlay of {folder.base} ({folder.base_fingerprint})",
        f"questions judged: {len(judged):,}, {folder.k} passages each at most{half}",
        f"verdicts: {accepted:,} accepted, {rejected:,} rejected, {silent:,} no verdict",
        separations_text(
            witnesses.separations(), reached, folder.threshold, one_way=folder.one_way
        ),
        *([] if folder.one_way else ["no-one-way: all of a pair's witnesses count"]),
        *([] if folder.refill else ["no-refill: freed places stay free"]),
        *([] if folder.pairing == "theorem" else [f"pairing: {folder.pairing}"]),
        *([] if folder.min_similarity is None else [f"min_similarity: {folder.min_similarity:g}"]),
        *([f"similar: {folder.similar}"] if folder.similar else []),
        *(f"judged by {who}: {counted(count, 'question')}" for who, count in judges.most_common()),
    ]
    if len(judges) > 1:
        lines.append(
            f"note: verdicts of {len(judges)} judges are mixed; --undo a question to have it judged anew"
        )
    listed = [
        f"  {each.id} {each.question!r}: {len(each.accepted):,} accepted, {len(each.rejected):,} rejected, "
        f"{len(each.silent):,} no verdict"
        for each in judged
    ]
    listed += [f"  {name} {text!r}: still open" for name, text in witnesses.halves.items()]
    return "\n".join([*lines, *_first(listed)]) + "\n"


# --- one passage ------------------------------------------------------------------------------------------------------


def found_again(index: Retriever, k: int, witnesses: Witnesses, passage: str) -> dict[str, Passage]:
    """The passage and those it is separated from, as the index finds them now for the questions that judged them.

    No kind of index looks passages up by their ids. One that is found no more is gone, or has another id.
    """
    questions = [each.question for each in witnesses.judged.values() if passage in each.passages]
    return {each.id: each for hits in index.search(questions, k) for each in hits}


def passage_text(
    folder: TrimFolder,
    witnesses: Witnesses,
    passage: str,
    texts: Mapping[str, Passage],
    note: str = "",
) -> str:
    """All that is known of one passage; `note` is about the index.

    Raises `UnknownName` where no judged question ever retrieved it.
    """
    one_way, judged = folder.one_way, witnesses.judged
    known = {name for each in judged.values() for name in each.passages}
    if passage not in known:
        near = guess(passage, known)
        raise UnknownName(
            f"no judged question retrieved a passage '{passage}'.{near} (--export - lists those that are separated)"
        )
    separations = list[tuple[int, str, list[JudgedQuestion], list[JudgedQuestion]]]()
    for other in witnesses.partners(passage, 1):
        questions = [judged[name] for name in witnesses.witnesses_of(passage, other)]
        won, lost = (
            [each for each in questions if (passage in each.accepted) is side]
            for side in (True, False)
        )
        separations.append(
            (max(len(won), len(lost)) if one_way else len(questions), other, won, lost)
        )
    separations.sort(key=lambda each: -each[0])
    accepted, rejected, silent = (
        sum(passage in getattr(each, side) for each in judged.values())
        for side in ("accepted", "rejected", "silent")
    )
    reached = sum(counting >= folder.threshold for counting, *_ in separations)
    lines = [
        f"passage {_named(passage, texts)}",
        *([f"note: {note}"] if note else []),
        f"judged for {counted(accepted + rejected + silent, 'question')}: {accepted:,} accepted it, {rejected:,} "
        f"rejected it, {silent:,} no verdict",
        f"separated from {counted(len(separations), 'passage')}, often enough from {reached:,} of them (the threshold "
        f"is {folder.threshold}, counted for {'one' if one_way else 'either'} side)",
    ]
    for counting, other, won, lost in separations:
        state = (
            "the threshold is reached" if counting >= folder.threshold else "below the threshold"
        )
        witnessed = counted(len(won) + len(lost), "witness", "witnesses")
        sides = f" ({len(won):,} for {passage}, {len(lost):,} for {other})" if one_way else ""
        lines += ["", f"from {_named(other, texts)}", f"  {witnessed}{sides}, {state}"]
        for side, questions in ((passage, won), (other, lost)):
            lines += [f"  {side} won for:"] * bool(questions)
            lines += [
                f"    {one.id} {one.question!r} ({judge_name(one.by)}, {one.at})"
                for one in questions
            ]
    return "\n".join(lines) + "\n"


def _named(passage: str, texts: Mapping[str, Passage]) -> str:
    if passage in texts:
        return f"{passage}: {shortened(texts[passage].line, 90)}"
    return f"{passage} (not found by the index)" if texts else passage


# --- rows -------------------------------------------------------------------------------------------------------------


class WitnessRow(NamedTuple):
    """One witness of one separation: `question` accepted the one passage and rejected the other.

    `witnesses` counts the pair's, `reached` is whether they are as many as the threshold; counted one way, whether
    those are that accepted the same passage as this one.
    """

    accepted: str
    rejected: str
    witnesses: int
    reached: bool
    question_id: str
    question: str
    judge: str
    mode: str
    rules: tuple[str, ...]
    model: str
    program: str
    at: str


def rows(witnesses: Witnesses, threshold: int, *, one_way: bool = True) -> Iterator[WitnessRow]:
    """Every separation with any witness, below the threshold too, sorted."""
    threshold = check_count("threshold", threshold)
    for separation in witnesses.separated(1):
        a, b = separation.pair
        count = len(separation.witnesses)
        for_a, for_b = witnesses.sides(separation) if one_way else (count, count)
        for name in separation.witnesses:
            judged = witnesses.judged[name]
            won, lost, counting = (a, b, for_a) if a in judged.accepted else (b, a, for_b)
            by = judged.by
            yield WitnessRow(
                won,
                lost,
                count,
                counting >= threshold,
                name,
                judged.question,
                by.judge,
                by.mode,
                by.rules,
                by.model,
                by.program,
                judged.at,
            )


def export(
    witnesses: Witnesses,
    target: str | Path,
    *,
    threshold: int,
    one_way: bool = True,
    overwrite: bool = False,
) -> int:
    """Write the rows to `target`: CSV where its name ends in .csv, else JSON Lines; `-` is standard output.

    Returns how many rows that were. Raises `BadArgument` where a file is there already and `overwrite` is not set, and
    OSError (a full disk): then what was there before still is.
    """
    written = list(rows(witnesses, threshold, one_way=one_way))
    lines: Iterable[str] = (json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in written)
    if Path(target).suffix.lower() == ".csv":
        lines = as_csv(written)
    # half a character in a passage's id becomes an escape: no terminal takes it, and no file
    encoded = (line.encode("utf-8", "backslashreplace") for line in lines)
    if str(target) == STDOUT:
        sys.stdout.writelines(shown_on(sys.stdout, line.decode()) for line in encoded)
    else:
        write_whole(path_of(target), encoded, overwrite=overwrite)
    return len(written)


def as_csv(written: Iterable[WitnessRow]) -> Iterator[str]:
    """A header and a record each (RFC 4180); rules are joined by spaces.

    A text that a spreadsheet would run as a formula (it begins with =, +, -, @, a tab or a carriage return) has an
    apostrophe before it, because ids and questions are others' data. JSON Lines has every text as it is.
    """
    for row in (WitnessRow._fields, *written):
        cells = (" ".join(cell) if isinstance(cell, tuple) else cell for cell in row)
        harmless = (
            f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
            for cell in cells
        )
        line = StringIO()
        csv.writer(line, lineterminator="\r\n").writerow(harmless)
        yield line.getvalue()
