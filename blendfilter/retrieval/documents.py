"""One's own documents as passages: a folder of text files, or a corpus whose texts are too long, cut by `chunking`.

In: a folder, or passages. Out: passages one by one, with one file in memory at a time. Each says where it comes from in
`metadata`: `source` (the file's path in the folder, or the id of the passage that was cut), `start` and `end`
(characters of that file or text). A file's bytes are taken as they are: its line ends count as they lie on disk.
"""

from __future__ import annotations

import os
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile
from blendfilter.files import opened
from blendfilter.files import LONGEST, too_long
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.chunking import WORDS, Heading, Span, chunk, headings
from blendfilter.retrieval.manifest import read_manifest

MARKUP = (".md", ".markdown", ".rst")
SUFFIXES = (".txt", *MARKUP)
"""The files that are read; a file's suffix may be in capitals."""
_BOM = "\ufeff"


def read_documents(folder: str | os.PathLike[str], words: int = WORDS) -> Iterator[Passage]:
    """The passages of the text files under `folder`, at most `words` words each; files of a folder before its folders.

    Ids are `path#0`, `path#1`, …; the title is the way through the headings to the passage's first line of text
    (`Guide > Install`), or the file's name without its suffix where there are none above it. Hidden files, other
    suffixes and links are left out, and one warning says how many.

    Raises:
        MissingFile, BadData: no such folder, or it is a file. BadArgument: it is an index, or `words` is below 1.
        EmptyData: no text files in it. BadData: a file that is not UTF-8 (which byte), while the passages are read.
    """
    where = Path(folder)
    if not where.exists():
        raise MissingFile(f"no folder '{folder}': check the path")
    if not where.is_dir():
        raise BadData(f"'{folder}' is a file, not a folder of documents: read_corpus reads a file of passages")
    refuse_index(where)
    chunk("", words)  # what is wrong with it is said now, not at the first file
    files, left_out = _survey(where)
    told = ", ".join(f"{count} {what}" for what, count in sorted(left_out.items()))
    if not files:
        raise EmptyData(f"'{folder}' has no text files ({', '.join(SUFFIXES)}){f'; it has {told}' if told else ''}")
    if told:
        warnings.warn(f"{folder}: {len(files)} text files are read; left out: {told}", stacklevel=2)
    return (passage for path in files for passage in _document(where, path, words))


def chunked(passages: Iterable[Passage], words: int = WORDS) -> Iterator[Passage]:
    """`passages`, each cut into passages of at most `words` words under the same title: `id#0`, `id#1`, …

    >>> [(p.id, p.text, p.metadata["start"]) for p in chunked([Passage("m", "Mill", "It turns. It stops.")], words=2)]
    [('m#0', 'It turns.', 0), ('m#1', 'It stops.', 10)]
    """
    for passage in passages:
        for number, span in enumerate(chunk(passage.text, words)):
            metadata = {**passage.metadata, **_place(passage.id, span)}
            yield replace(
                passage,
                id=f"{passage.id}#{number}",
                text=passage.text[span.start : span.end],
                score=None,
                metadata=metadata,
            )


def refuse_index(folder: Path) -> None:
    """Raise `BadArgument` where `folder` is an index, whose files nobody means to index again."""
    try:
        kind = read_manifest(folder).kind
    except (BadData, MissingFile):
        return
    raise BadArgument(
        f"'{folder}' is an index already (of kind {kind}): search it as it is, or name the folder of its texts"
    )


class _Survey(NamedTuple):
    files: list[Path]
    left_out: Counter[str]


def _survey(folder: Path) -> _Survey:
    """The text files under `folder`, sorted, and how many others there are, by what they are."""
    found = _Survey([], Counter())
    for parent, folders, names in os.walk(folder, onerror=_fail):
        here = Path(parent)
        for name in [*sorted(names), *(name for name in folders if _reason(here / name, folder=True))]:
            reason = _reason(here / name, folder=name in folders)
            if reason:
                found.left_out[reason] += 1
            else:
                found.files.append(here / name)
        folders[:] = sorted(name for name in folders if not _reason(here / name, folder=True))
    return found


def _fail(error: OSError) -> None:
    raise error


def _reason(path: Path, *, folder: bool) -> str:
    """Why `path` is left out; empty where it is not."""
    if path.name.startswith("."):
        return "hidden"
    if path.is_symlink():
        return "links"
    return "" if folder or path.suffix.lower() in SUFFIXES else "of other kinds"


def _document(folder: Path, path: Path, words: int) -> Iterator[Passage]:
    name = path.relative_to(folder).as_posix()
    text = _text(path)
    above = headings(text) if path.suffix.lower() in MARKUP else []
    titles = _Titles(path.stem, text, above)
    for number, span in enumerate(chunk(text, words)):
        body = text[span.start : span.end]
        yield Passage(f"{name}#{number}", titles.of(span), body, metadata=_place(name, span))


def _text(path: Path) -> str:
    try:
        path.name.encode("utf-8")
    except UnicodeEncodeError:
        raise BadData(f"the name of {os.fsencode(path)!r} is not UTF-8: rename the file") from None
    with opened(path, unpack=False) as stream:
        data = stream.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise BadData(f"{path}: {too_long('the document')}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadData(
            f"{path}: not UTF-8 (byte {error.start + 1:,}): save the file as UTF-8, or move it out of the folder"
        ) from None
    # an empty line in place of the byte order mark: it is no part of a word or heading, and every offset stays
    return f"\n{text[1:]}" if text.startswith(_BOM) else text


class _Titles:
    """What the passages of one file are called."""

    def __init__(self, stem: str, text: str, above: list[Heading]) -> None:
        self._stem, self._text, self._above = stem, text, above
        self._starts = [heading.start for heading in above]
        self._ways: list[str] = []
        way: list[Heading] = []
        for heading in above:
            way = [*(each for each in way if each.level < heading.level), heading]
            self._ways.append(" > ".join(one_line(each.title) for each in way))

    def of(self, span: Span) -> str:
        """The way through the headings to the first line of the passage that is none."""
        at = bisect_right(self._starts, span.start) - 1
        if at < 0:
            return self._stem
        if span.start < self._above[at].end:  # it begins with headings, and its text stands below the last of them
            while at + 1 < len(self._above) and self._starts[at + 1] < span.end and self._joined(at):
                at += 1
        return self._ways[at]

    def _joined(self, at: int) -> bool:
        """Whether nothing stands between this heading and the next."""
        return not self._text[self._above[at].end : self._starts[at + 1]].strip()


def _place(source: str, span: Span) -> dict[str, str | int]:
    return {"source": source, "start": span.start, "end": span.end}
