"""What an overlay knows, for people: of one passage who separated it from which others, and of all of it in short.

In: the witnesses, and the passages as the index finds them now. Out: lines of text. Questions, titles and texts are
shown as they stand.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from blendfilter.errors import UnknownName
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.naming import LISTED
from blendfilter.trimming.summary import Verdicts, counted, separations_text
from blendfilter.trimming.witnesses import By, Judged, Witnesses

LONGEST = 90
"""Characters of a passage that are shown."""
BELOW = 5
"""Separations below the threshold that are written out; those that reached it all are."""


class Seen(NamedTuple):
    """One separation as a passage sees it: the other side, and the questions by who won."""

    other: str
    won: tuple[Judged, ...]
    """They accepted the passage and rejected the other."""
    lost: tuple[Judged, ...]

    @property
    def witnesses(self) -> int:
        """How many questions separate the two."""
        return len(self.won) + len(self.lost)

    def counting(self, one_way: bool) -> int:
        """How many of them count together: all, or one way those of the side that has more."""
        return max(len(self.won), len(self.lost)) if one_way else self.witnesses


def seen_from(witnesses: Witnesses, passage: str) -> list[Seen]:
    """The separations that a passage stands in, most witnesses first.

    Raises:
        UnknownName: no judged question ever retrieved it; with the nearest id that there is.
    """
    known = {name for each in witnesses.judged.values() for name in (*each.accepted, *each.rejected, *each.silent)}
    if passage not in known:
        near = difflib.get_close_matches(passage, known, n=1)
        guess = f" Did you mean '{near[0]}'?" if near else ""
        raise UnknownName(
            f"no judged question retrieved a passage '{passage}'.{guess} ({counted(len(known), 'passage')} judged; "
            "--export - lists those that are separated)"
        )
    made = []
    for other in witnesses.partners(passage, 1):
        judged = [witnesses.judged[name] for name in witnesses.witnesses_of(passage, other)]
        won = tuple(each for each in judged if passage in each.accepted)
        made.append(Seen(other, won, tuple(each for each in judged if passage not in each.accepted)))
    return sorted(made, key=lambda seen: (-seen.witnesses, seen.other))


def found_again(index: Retriever, k: int, witnesses: Witnesses, passage: str) -> dict[str, Passage]:
    """The passage and those it is separated from, as the index finds them now for the questions that judged them.

    No kind of index looks passages up by their ids, and none needs to: what was judged was found by a question. One
    that is found no more is gone, or has another id.
    """
    questions = [each.question for each in witnesses.judged.values() if passage in _passages(each)]
    return {each.id: each for hits in index.search(questions, k) for each in hits} if questions else {}


def passage_text(
    folder: TrimFolder, witnesses: Witnesses, passage: str, texts: Mapping[str, Passage], notes: Iterable[str] = ()
) -> str:
    """All that is known of one passage. `notes` are said of the index; a passage not among `texts` is gone from it."""
    one_way = folder.one_way
    seen = sorted(seen_from(witnesses, passage), key=lambda each: -each.counting(one_way))
    of_it = Counter(verdict for each in witnesses.judged.values() if (verdict := _verdict(each, passage)) is not None)
    reached = sum(each.counting(one_way) >= folder.threshold for each in seen)
    told = [
        f"passage {_named(passage, texts)}",
        *(f"note: {each}" for each in notes),
        f"judged for {counted(of_it.total(), 'question')}: {of_it['accepted']:,} accepted it, {of_it['rejected']:,} "
        f"rejected it, {of_it['no verdict']:,} no verdict",
        f"separated from {counted(len(seen), 'passage')}, often enough from {reached:,} of them (the threshold is "
        f"{folder.threshold}{', counted one way' if one_way else ''})",
    ]
    for each in seen[: reached + BELOW]:
        state = "the threshold is reached" if each.counting(one_way) >= folder.threshold else "below the threshold"
        told += [
            "",
            f"from {_named(each.other, texts)}",
            f"  {counted(each.witnesses, 'witness', 'witnesses')}{_sides(passage, each, one_way)}, {state}",
        ]
        for side, judged in ((passage, each.won), (each.other, each.lost)):
            told += [f"  {side} won for:"] * bool(judged)
            told += [f"    {one.id} {one.question!r} ({by_words(one.by)}, {one.at})" for one in judged]
    if len(seen) > reached + BELOW:
        told += ["", f"and from {len(seen) - reached - BELOW:,} more, below the threshold (--export lists them)"]
    return "\n".join(told) + "\n"


def _sides(passage: str, seen: Seen, one_way: bool) -> str:
    return f" ({len(seen.won):,} for {passage}, {len(seen.lost):,} for {seen.other})" if one_way else ""


def state_text(folder: TrimFolder, witnesses: Witnesses) -> str:
    """An overlay in short: of which index, how far it is, who judged, and how it is used."""
    judged = witnesses.judged.values()
    verdicts = verdicts_in(witnesses)
    reached = sum(1 for _ in witnesses.separated(folder.threshold, one_way=folder.one_way))
    judges = Counter(each.by for each in judged if each.by.judge)
    half = f"; {len(witnesses.halves):,} begun and still open" if witnesses.halves else ""
    told = [
        f"{folder.place}: an overlay of {folder.base} ({folder.base_fingerprint})",
        f"questions judged: {len(judged):,}, {folder.k} passages each at most{half}",
        f"verdicts: {verdicts.accepted:,} accepted, {verdicts.rejected:,} rejected, {verdicts.silent:,} no verdict",
        separations_text(witnesses.separations(), reached, folder.threshold, one_way=folder.one_way),
        *([] if folder.min_similarity is None else [f"min_similarity: {folder.min_similarity:g}"]),
        *(f"judged by {by_words(by)}: {counted(count, 'question')}" for by, count in sorted(judges.items(), key=_most)),
    ]
    if len(judges) > 1:
        told.append(f"note: verdicts of {len(judges)} judges are mixed; --undo a question to have it judged anew")
    return "\n".join([*told, *_listed(witnesses)]) + "\n"


def _listed(witnesses: Witnesses) -> list[str]:
    """The questions that can be taken back, by id: those that are closed, then those that are still open."""
    closed = [
        f"  {each.id} {each.question!r}: {len(each.accepted):,} accepted, {len(each.rejected):,} rejected, "
        f"{len(each.silent):,} no verdict"
        for each in witnesses.judged.values()
    ]
    lines = [*closed, *(f"  {name} {text!r}: still open" for name, text in witnesses.halves.items())]
    return lines[:LISTED] + [f"  and {len(lines) - LISTED:,} more"] * (len(lines) > LISTED)


def verdicts_in(witnesses: Witnesses) -> Verdicts:
    """The verdicts on file, of closed questions."""
    judged = witnesses.judged.values()
    return Verdicts(*(sum(len(getattr(each, name)) for each in judged) for name in Verdicts._fields))


def by_words(by: By) -> str:
    """Who judged, as one reads it.

    >>> by_words(By("9f00", "word", ("phi1", "phi2"), "gpt-4o-mini", "1f3a"))
    'gpt-4o-mini, word, phi1+phi2, program 1f3a'
    """
    return f"{by.model}, {by.mode}, {'+'.join(by.rules)}, program {by.program}" if by.judge else "nothing was retrieved"


def _most(item: tuple[By, int]) -> tuple[int, str]:
    return -item[1], by_words(item[0])


def _passages(judged: Judged) -> tuple[str, ...]:
    return (*judged.accepted, *judged.rejected, *judged.silent)


def _verdict(judged: Judged, passage: str) -> str | None:
    if passage in judged.accepted:
        return "accepted"
    if passage in judged.rejected:
        return "rejected"
    return "no verdict" if passage in judged.silent else None


def _named(passage: str, texts: Mapping[str, Passage]) -> str:
    found = texts.get(passage)
    if found is None:
        return f"{passage} (not found by the index)" if texts else passage
    line = found.line
    return f"{passage}: {line if len(line) <= LONGEST else line[: LONGEST - 1] + '…'}"
