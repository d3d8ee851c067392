"""A run's rankings and gold as TREC files, for trec_eval, ir_measures and whatever else reads them.

A document is a title, as in the report's figures: it stands where its first passage does. The files name it (and a
question, and a query) with white space and percent signs as `%20`, `%25`: `urllib.parse.unquote` gives it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from blendfilter.errors import BadArgument, EmptyData
from blendfilter.evaluation.rows import key_of, retrieval_known
from blendfilter.evaluation.run_passages import rankings
from blendfilter.files import write_whole
from blendfilter.text import folded

if TYPE_CHECKING:
    from blendfilter.evaluation.run import Run

RANKINGS, GOLD = "run.{}.trec", "qrels.trec"
"""One file of rankings a query, because tools take a file for one system whatever its last field says."""


def write_trec(run: Run, folder: Path | None = None) -> tuple[dict[str, Path], Path]:
    """Write `run.<query>.trec` and `qrels.trec` into `folder` (default: the run's), all or none; return the paths.

    The query is the one that brought a ranking: q, q_ex, q_in, a hop's; union: all together; kept: what the answer was
    read from. Answers that ended in an error, and those without known gold, are in no file.

    In the run's folder they replace those of an earlier call; a folder that is named may hold none of them.

    Raises:
        BadArgument: one of them is there already. EmptyData: no gold titles are known. MissingFile: the run is not
        finished. BadData: its journal lacks a passage.
    """
    ranked: dict[str, list[str]] = {}
    gold: list[str] = []
    for row, titles_of in rankings(run):
        if not retrieval_known(row) or not row["gold_titles"]:
            continue
        question = _field(key_of(row))
        gold += [f"{question} 0 {document} 1\n" for document in _documents(row["gold_titles"])]
        for query, titles in titles_of.items():
            documents = _documents(titles)
            ranked.setdefault(query, []).extend(
                f"{question} Q0 {document} {rank} {len(documents) + 1 - rank} {_field(query)}\n"
                for rank, document in enumerate(documents, 1)
            )
    if not gold:
        raise EmptyData(
            f"{run.folder}: no gold titles are known, so there are no qrels: evaluate on data that has some"
        )
    own, folder = folder is None, run.folder if folder is None else folder
    places = {
        query: folder / RANKINGS.format(quote(query, "@", "utf-8", "backslashreplace"))
        for query in ranked
    }
    files = {places[query]: lines for query, lines in ranked.items()} | {folder / GOLD: gold}
    folder.mkdir(parents=True, exist_ok=True)
    new = [place for place in files if not place.exists()]
    if not own and len(new) < len(files):
        there = next(place for place in files if place not in new)
        raise BadArgument(f"{there} is there already: name another folder, or remove it")
    try:
        for place, lines in files.items():
            write_whole(place, (line.encode("utf-8", "backslashreplace") for line in lines))
    except OSError:
        for place in new:
            place.unlink(missing_ok=True)
        raise
    return places, folder / GOLD


def _documents(titles: Iterable[str]) -> list[str]:
    return [_field(title) for title in dict.fromkeys(map(folded, titles))]


def _field(text: str) -> str:
    """`text` as one field of a line.

    >>> _field("Orm Pier, 100 %")
    'Orm%20Pier,%20100%20%25'
    """
    letters = (quote(each) if each.isspace() or each == "%" else each for each in text)
    return "".join(letters) or "%20"
