"""Hits found before: read in every layout, looked up by the question, written whole, refused where they are wrong."""

from __future__ import annotations

import gzip
import json
import os
import re
import tracemalloc
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits, Retriever, cut_of
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.precomputed import Precomputed, write_hits

MILL = Passage("m1", "Tide Mill", "A mill at Bremsund.", 9.5)
QUAY = Passage("q2", "Quay", "A quay – île.", 7.25)
MILLS = {"id": "m1", "title": "Tide Mill", "text": "A mill at Bremsund.", "score": 9.5}
QUAYS = {"id": "q2", "title": "Quay", "text": "A quay – île.", "score": 7.25}
WHO, WHERE = "Who runs the mill?", "Where is the quay — île?"

LAYOUTS: dict[str, list[dict[str, Any]]] = {
    "own": [{"id": "1", "question": WHO, "passages": [MILLS, QUAYS]}, {"question": WHERE, "passages": [QUAYS]}],
    "dpr": [
        {"question": f" {WHO}\n", "answers": ["x"], "ctxs": [{**MILLS, "score": "9.5"}, QUAYS]},
        {"question": WHERE, "ctxs": [QUAYS]},
    ],
    "dspy": [
        {"query": WHO, "topk": [{"text": "Tide Mill | A mill at Bremsund.", "pid": "m1", "score": 9.5}, QUAYS]},
        {"query": WHERE, "topk": [QUAYS]},
    ],
    "flashrag": [
        {
            "question": WHO,
            "retrieved": [{"id": "m1", "contents": '"Tide Mill"\nA mill at Bremsund.', "score": 9.5}, QUAYS],
        },
        {"question": WHERE, "context": [QUAYS]},
    ],
    "flashrag's intermediate data": [
        {"id": "test_0", "question": WHO, "output": {"retrieval_result": [MILLS, QUAYS], "pred": "x"}},
        {"id": "test_1", "question": WHERE, "output": {"retrieval_result": [QUAYS]}},
    ],
}  # fmt: skip


def written(folder: Path, rows: Sequence[Any], packing: str = "lines") -> Path:
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"
    data = {
        "lines": text.encode(),
        "list": json.dumps(rows, indent=1).encode(),
        "gzipped list": gzip.compress(json.dumps(rows).encode()),
    }[packing]
    path = folder / "hits.jsonl"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("packing", ["lines", "gzipped list"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_in_every_packing(tmp_path: Path, layout: str, packing: str) -> None:
    hits = Precomputed(written(tmp_path, LAYOUTS[layout], packing))
    found = hits.search([WHERE, WHO, f" {WHO} "], 1)
    assert found == [[QUAY], [MILL], [MILL]]
    assert [passage.score for (passage,) in found] == [7.25, 9.5, 9.5]
    assert hits.search([WHO], 2) == [[MILL, QUAY]]
    assert hits.missing([WHO, f"{WHERE} ", "Why?", WHO.lower()]) == ["Why?", WHO.lower()]


@pytest.mark.parametrize("indent", [4, None])
def test_a_cache_of_flashrag_is_one_object_of_queries(tmp_path: Path, indent: int | None) -> None:
    mill = {"id": "m1", "contents": '"Tide Mill"\nA mill at Bremsund.', "score": 9.5}
    path = tmp_path / "retrieval_cache.json"
    path.write_text(json.dumps({WHO: [mill, QUAYS], WHERE: [QUAYS]}, indent=indent))
    hits = Precomputed(path)
    assert hits.search([WHO, WHERE], 1) == [[MILL], [QUAY]]
    assert hits.search([WHO], 2) == [[MILL, QUAY]]
    path.write_text(json.dumps({WHO: [mill], WHERE: [{"title": "x"}]}, indent=indent))
    with pytest.raises(BadData, match=r"retrieval_cache\.json, query 2, passage 1: cannot read a mapping"):
        Precomputed(path)
    path.write_text(json.dumps({WHO: [mill]}, indent=4)[:-3])
    with pytest.raises(BadData, match="cut off"):
        Precomputed(path)


@pytest.mark.parametrize("other", [{"context": "A paragraph."}, {"passages": None}])
def test_the_hits_are_the_first_list_among_the_fields_that_may_hold_them(other: Any, tmp_path: Path) -> None:
    hits = Precomputed(written(tmp_path, [{"question": WHO, **other, "retrieved": [QUAYS]}]))
    assert hits.search([WHO], 1) == [[QUAY]]


def test_a_question_is_found_in_either_form_of_its_letters(tmp_path: Path) -> None:
    forms = [unicodedata.normalize(form, WHERE) for form in ("NFD", "NFC")]
    assert forms[0] != forms[1]
    for held, query in (forms, forms[::-1]):
        hits = Precomputed(written(tmp_path, [{"question": held, "passages": [QUAYS]}]))
        assert hits.search([query], 1) == [[QUAY]]
        assert hits.missing([query]) == []
    by_id = Precomputed(written(tmp_path, [{"id": "7", "passages": [QUAYS]}]), {"7": forms[0]})
    assert by_id.search([forms[1]], 1) == [[QUAY]]


def test_its_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    hits = Precomputed(written(tmp_path, LAYOUTS["own"]))
    assert re.fullmatch("[0-9a-f]{16}", hits.fingerprint)
    path = str(tmp_path / "hits.jsonl")
    assert hits.info() == {"kind": "retrieved", "fingerprint": hits.fingerprint, "queries": 2, "path": path}
    (tmp_path / "other").mkdir()
    assert Precomputed(written(tmp_path / "other", LAYOUTS["own"])).fingerprint == hits.fingerprint
    assert Precomputed(written(tmp_path, LAYOUTS["own"][:1])).fingerprint != hits.fingerprint


def test_a_query_that_is_not_there(tmp_path: Path) -> None:
    hits = Precomputed(written(tmp_path, LAYOUTS["own"]))
    with pytest.raises(
        BadArgument, match=r"no hits in .*hits\.jsonl for the query 'Why\?': .*\(direct-retrieval, cot-"
    ):
        hits.search([WHO, "Why?"], 1)


def test_one_query_twice(tmp_path: Path) -> None:
    rows = LAYOUTS["own"]
    same = Precomputed(written(tmp_path, [*rows, {"query": f"{WHO} ", "ctxs": [MILLS, QUAYS]}]))
    assert same.search([WHO], 2) == [[MILL, QUAY]]
    for other in ([QUAYS], [{**MILLS, "score": 1}, QUAYS]):
        file = written(tmp_path, [*rows, {"query": WHO, "ctxs": other}], "list")
        with pytest.raises(BadData, match=rf"item 3: the query '{re.escape(WHO)}' has other .* item 1: leave"):
            Precomputed(file)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["x"], "line 3: expected an object with 'question' and 'passages', found ['x']"),
        ({"passages": []}, "line 3: field 'question' (or 'query') is missing (it has: passages)"),
        ({"question": "a"}, "line 3: field 'passages' (or 'ctxs', 'context', 'retrieved', "),
        ({"question": "a", "ctxs": [{"title": "b"}]}, "line 3, passage 1: cannot read a mapping with the keys"),
        ({"question": "a", "ctxs": [{"text": "b", "score": "nan"}]}, "line 3, passage 1: its score is nan"),
        ({"question": "a", "ctxs": [{"title": "", "text": " "}]}, "line 3, passage 1 has neither title nor text"),
    ],
)  # fmt: skip
def test_rows_that_are_wrong(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(BadData, match=re.escape(message)):
        Precomputed(written(tmp_path, [LAYOUTS["own"][0], row]))


def test_files_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        Precomputed(tmp_path / "gone")
    path = tmp_path / "hits.jsonl"
    path.write_bytes(b"[]")
    with pytest.raises(EmptyData, match="has no queries"):
        Precomputed(path)


def test_passages_stay_on_disk(tmp_path: Path) -> None:
    rows = [
        {"question": f"q{n}", "passages": [{"text": f"{n}-{i} " + "x" * 2000} for i in range(20)]} for n in range(500)
    ]
    path = written(tmp_path, rows)
    del rows
    tracemalloc.start()
    hits = Precomputed(path)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1e6
    assert peak < 4e6, "20 MB of passages"
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: hits(f"q{n}", k=20)[19].text[:8].split()[0], range(500)))
    assert found == [f"{n}-19" for n in range(500)]


CORPUS = [Passage("1", "Orm Pier", "A pier – île.", metadata={"page": 3}), Passage("2", "Fell", "A hill.")]


class Cutting(Retriever):
    """Says of long queries that it cut them, and counts what it is asked."""

    fingerprint = "0" * 16

    def __init__(self, fails_at: int = 1000) -> None:
        self.searches: list[int] = []
        self.fails_at = fails_at

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.searches.append(len(queries))
        if len(self.searches) >= self.fails_at:
            raise OSError(28, "No space left on device")
        return [Hits([CORPUS[0].scored(None)], cut=len(query) > 8) for query in queries]


def test_written_hits_are_read_back_as_they_were_found(tmp_path: Path) -> None:
    index = BM25.build(CORPUS)
    result: list[tuple[str, int, int | None]] = []
    rows = [{"id": "a", "question": "which pier?"}, {"question": "hill pier"}, {"question": "zebra"}]
    out = tmp_path / "new" / "hits.jsonl"
    with pytest.warns(UserWarning, match="k=5"):
        count = write_hits(index, rows, out, 5, progress=lambda *words: result.append(words))  # type: ignore[arg-type]
    assert count == (3, 0)
    assert result == [("searching", 3, 3)]
    queries = [str(row["question"]) for row in rows]
    live = index.search(queries, 5)
    with pytest.warns(UserWarning, match="k=5"):
        read = Precomputed(out).search(queries, 5)
    assert read == live
    assert [[each.metadata for each in hits] for hits in read] == [[each.metadata for each in hits] for hits in live]
    first = json.loads(out.read_text(encoding="utf-8").splitlines()[0])
    assert list(first) == ["id", "question", "passages"]
    assert [path.name for path in out.parent.iterdir()] == ["hits.jsonl"]


def test_batches_and_cut_queries(tmp_path: Path) -> None:
    index = Cutting()
    rows = [{"question": f"q{n}" * (1 + 4 * (n == 70))} for n in range(150)]
    assert write_hits(index, rows, tmp_path / "hits.jsonl", 1) == (150, 1)
    assert index.searches == [64, 64, 22]
    hits = Precomputed(tmp_path / "hits.jsonl")
    found = hits.search([row["question"] for row in rows], 1)
    assert [n for n, each in enumerate(found) if cut_of(each)] == [70]


def test_written_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "hits.jsonl"
    rows = [{"question": f"q{n}"} for n in range(150)]
    with pytest.raises(OSError, match=r"No space.*hits\.jsonl"):
        write_hits(Cutting(fails_at=2), rows, out)
    assert os.listdir(tmp_path) == []
    write_hits(Cutting(), rows, out)
    before = out.read_bytes()
    untouched = Cutting()
    with pytest.raises(BadArgument, match=r"there is a file at .*hits.jsonl already"):
        write_hits(untouched, rows[:1], out)
    assert untouched.searches == []
    with pytest.raises(OSError, match="No space"):
        write_hits(Cutting(fails_at=2), rows, out, overwrite=True)
    assert out.read_bytes() == before
    assert write_hits(Cutting(), rows[:1], out, overwrite=True) == (1, 0)
    assert len(out.read_text().splitlines()) == 1


def test_rows_may_name_a_question_by_its_id(tmp_path: Path) -> None:
    file = tmp_path / "hits.jsonl"
    rows = [
        {"id": "q1", "passages": ["Mill | It turns."]},
        {"qid": 2.0, "ctxs": ["Pier | It stands."]},
        {"id": "of another split", "hits": ["Fell | A hill."]},
        {"id": "q1", "question": "and a text of its own?", "passages": ["Fell | A hill."]},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hits = Precomputed(file, {"q1": "What turns? ", "2": "What stands?"})
    assert [hits(query, k=1)[0].title for query in ("What turns?", "What stands?", "and a text of its own?")] == [
        "Mill", "Pier", "Fell",
    ]  # fmt: skip
    assert hits.info()["queries"] == 3
    with pytest.raises(BadData, match=r"line 1: field 'question' \(or 'query'\) is missing"):
        Precomputed(file)
