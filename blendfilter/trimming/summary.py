"""What a trim came to and what is on file, as text for people; separations as rows for spreadsheets."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from blendfilter.errors import UnknownName, guess
from blendfilter.files import path_of, write_whole
from blendfilter.journal import Journal
from blendfilter.lm.budget import NOTHING, Amount
from blendfilter.lm.prices import Prices, cost_of, price_in
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.terminal import shown_on
from blendfilter.text import counted, shortened
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.witnesses import LISTED, JudgedBy, Witnesses

MOST_SILENT = 0.05
"""The share of no verdicts in a session above which it is warned of, and the command ends with exit code 1."""
STDOUT = "-"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula, or reads over to find one."""


def spent_in(journal: Journal, prices: Prices | None = None) -> Amount:
    """What a journal's answered calls took; a price that is unknown counts nothing."""
    total = NOTHING
    for record in journal.records("call"):
        if not (record.get("error") or record.get("reused")):
            cost = cost_of(record, price_in(record, prices) if prices is not None else None)
            tokens = (record.get("tokens_in") or 0) + (record.get("tokens_out") or 0)
            total += Amount(1, tokens, cost or 0.0)
    return total


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
    spent: Amount
    total: Amount
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
        earlier = ""
        if self.total.calls != self.spent.calls:
            earlier = f" (in all sessions: {self.total.words()})"
        lines = [
            f"questions: {self.questions:,}; judged {self.judged:,}, judged before {self.known:,}, answered by "
            f"another's verdicts {self.reused:,} ({counted(self.saved, 'call')} saved), failed {len(self.errors):,}",
            _verdicts_text(self.accepted, self.rejected, self.silent),
            separations_text(
                self.separations, self.reached, self.threshold, one_way=self.one_way
            ),
            f"judge: {self.spent.words()}{earlier}",
        ]
        if self.dropped is not None:
            lines.append(f"would be dropped for these questions: {len(self.dropped):,}")
            for drop in self.dropped:
                why = "rejected for it"
                if drop.kept:
                    why = (
                        f"{drop.kept} stays ({counted(drop.witnesses, 'witness', 'witnesses')})"
                    )
                lines.append(f"  {drop.passage} for {drop.question!r}: {why}")
        if self.errors:
            lines.append(
                f"still open, and asked again by the same command: {counted(len(self.errors), 'question')}"
            )
            lines += _first([f"  {failed.question!r}: {failed.why}" for failed in self.errors])
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


def _verdicts_text(accepted: int, rejected: int, silent: int) -> str:
    return f"verdicts: {accepted:,} accepted, {rejected:,} rejected, {silent:,} no verdict"


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - LISTED
    return lines[:LISTED] + [f"  and {more:,} more"] * (more > 0)


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
    counts = Counter(verdict for question in judged for verdict in question.verdicts.values())
    reached = sum(1 for _ in witnesses.separated(folder.threshold, one_way=folder.one_way))
    judges = Counter(judge_name(question.by) for question in judged if question.by.judge)
    lines = [
        f"{folder.place}: an overlay of {folder.base} ({folder.base_fingerprint})",
        f"questions judged: {len(judged):,}, {folder.k} passages each at most",
        _verdicts_text(counts[True], counts[False], counts[None]),
        separations_text(
            witnesses.separations(), reached, folder.threshold, one_way=folder.one_way
        ),
    ]
    settings = {
        "no-one-way: all of a pair's witnesses count": not folder.one_way,
        "no-refill: freed places stay free": not folder.refill,
        f"pairing: {folder.pairing}": folder.pairing != "theorem",
        f"min_similarity: {folder.min_similarity or 0:g}": folder.min_similarity is not None,
        f"similar: {folder.similar}": folder.similar,
    }
    lines += [line for line, stands in settings.items() if stands]
    lines += [f"judged by {who}: {counted(n, 'question')}" for who, n in judges.most_common()]
    if len(judges) > 1:
        lines.append(
            f"note: verdicts of {len(judges)} judges are mixed; --undo a question to have it judged anew"
        )
    listed = [
        f"  {question.id} {question.question!r}: {len(question.accepted):,} accepted, "
        f"{len(question.rejected):,} rejected, {len(question.silent):,} no verdict"
        for question in judged
    ]
    return "\n".join([*lines, *_first(listed)]) + "\n"


# --- one passage ------------------------------------------------------------------------------------------------------


def found_again(
    index: Retriever, k: int, witnesses: Witnesses, passage: str
) -> dict[str, Passage]:
    """The passage and those it is separated from, as the index finds them now for the questions that judged them.

    No kind of index looks passages up by their ids. One that is found no more is gone, or has another id.
    """
    questions = [
        judged.question for judged in witnesses.judged.values() if passage in judged.verdicts
    ]
    return {found.id: found for hits in index.search(questions, k) for found in hits}


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
    judged = witnesses.judged
    counts = Counter(
        question.verdicts[passage]
        for question in judged.values()
        if passage in question.verdicts
    )
    if not counts:
        near = guess(
            passage, {name for question in judged.values() for name in question.verdicts}
        )
        raise UnknownName(
            f"no judged question retrieved a passage '{passage}'.{near} (export='-' lists those that are separated)"
        )
    separations = list[tuple[int, str, tuple[str, ...], tuple[str, ...]]]()
    for other in witnesses.partners(passage, 1):
        won = witnesses.witnesses_for(passage, other)
        lost = witnesses.witnesses_for(other, passage)
        count = max(len(won), len(lost)) if folder.one_way else len(won) + len(lost)
        separations.append((count, other, won, lost))
    reached = sum(separation[0] >= folder.threshold for separation in separations)
    lines = [f"passage {_named(passage, texts)}"]
    if note:
        lines.append(f"note: {note}")
    lines += [
        f"judged for {counted(counts.total(), 'question')}: {counts[True]:,} accepted it, {counts[False]:,} "
        f"rejected it, {counts[None]:,} no verdict",
        f"separated from {counted(len(separations), 'passage')}, often enough from {reached:,} of them (the threshold "
        f"is {folder.threshold}, counted for {'one' if folder.one_way else 'either'} side)",
    ]
    for count, other, won, lost in sorted(separations, key=lambda found: -found[0]):
        state = (
            "the threshold is reached" if count >= folder.threshold else "below the threshold"
        )
        witnessed = counted(len(won) + len(lost), "witness", "witnesses")
        if folder.one_way:
            witnessed += f" ({len(won):,} for {passage}, {len(lost):,} for {other})"
        lines += ["", f"from {_named(other, texts)}", f"  {witnessed}, {state}"]
        for side, names in ((passage, won), (other, lost)):
            if names:
                lines.append(f"  {side} won for:")
            for name in names:
                question = judged[name]
                lines.append(
                    f"    {name} {question.question!r} ({judge_name(question.by)}, {question.at})"
                )
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
    for (a, b), names in witnesses.separated(1):
        for name in names:
            judged = witnesses.judged[name]
            won, lost = (a, b) if judged.verdicts[a] else (b, a)
            counting = witnesses.witnesses_for(won, lost) if one_way else names
            yield WitnessRow(
                accepted=won,
                rejected=lost,
                witnesses=len(names),
                reached=len(counting) >= threshold,
                question_id=name,
                question=judged.question,
                **asdict(judged.by),
                at=judged.at,
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
    if Path(target).suffix.lower() == ".csv":
        text = as_csv(written)
    else:
        text = "".join(json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in written)
    # half a character in a passage's id becomes an escape: no terminal takes it, and no file
    encoded = text.encode("utf-8", "backslashreplace")
    if str(target) == STDOUT:
        sys.stdout.write(shown_on(sys.stdout, encoded.decode()))
    else:
        write_whole(path_of(target), [encoded], overwrite=overwrite)
    return len(written)


def as_csv(written: Iterable[WitnessRow]) -> str:
    """A header and a record each (RFC 4180); rules are joined by spaces.

    A text that a spreadsheet would run as a formula (it begins with =, +, -, @, a tab or a carriage return) has an
    apostrophe before it, because ids and questions are others' data. JSON Lines has every text as it is.
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(WitnessRow._fields)
    for row in written:
        cells = row._replace(rules=" ".join(row.rules))  # type: ignore[arg-type]
        writer.writerow(
            f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
            for cell in cells
        )
    return text.getvalue()
