"""Folders that bm25s itself made: every query finds what bm25s finds, with the analyser that the user names."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
import Stemmer
from bm25s.tokenization import Tokenizer

from blendfilter.errors import BadArgument, BadData
from blendfilter.records import Passage
from blendfilter.resources import sample
from blendfilter.retrieval.analyser import BM25S_PATTERN, Analyser
from blendfilter.retrieval.bm25s_folder import open_bm25s
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.retrieval.indexes import open_index

LINES = [passage.line for passage in read_corpus(sample("corpus.jsonl"))]
QUERIES = [
    *(json.loads(line)["question"] for line in sample("questions.jsonl").read_text(encoding="utf-8").splitlines()[:25]),
    "the THE its being willing", "Lighthouses lighthouse", "of", "which towns are there in it?", "will they be built",
]  # fmt: skip


def saved(folder: Path, stemmer: str | None, stopwords: str | None, corpus: Any = LINES, **options: Any) -> bm25s.BM25:
    """A folder as bm25s' own examples make one."""
    lower, pattern = options.pop("lower", True), options.pop("token_pattern", BM25S_PATTERN)
    texts = [row if isinstance(row, str) else " ".join(map(str, row.values())) for row in corpus]
    tokens = bm25s.tokenize(
        texts, stopwords=stopwords, stemmer=stemmer and Stemmer.Stemmer(stemmer), lower=lower, token_pattern=pattern,
        show_progress=False,
    )  # fmt: skip
    retriever = bm25s.BM25(**options)
    retriever.index(tokens, show_progress=False)
    retriever.save(folder, corpus=corpus, show_progress=False)
    return retriever


def same(index: Any, retriever: bm25s.BM25, stemmer: str | None, **how: Any) -> int:
    """How many hits there were, all with bm25s' own scores (it breaks ties as they fall)."""
    count = 0
    for query, found in zip(QUERIES, index.search(QUERIES, 10), strict=True):
        how["stemmer"] = stemmer and Stemmer.Stemmer(stemmer)
        tokens = bm25s.tokenize([query], return_ids=False, show_progress=False, **how)
        theirs: list[tuple[str, float]] = []
        if tokens[0]:
            every = np.arange(retriever.scores["num_docs"])
            numbers, scores = retriever.retrieve(tokens, corpus=every, k=10, show_progress=False)
            theirs = [(str(at), float(score)) for at, score in zip(numbers[0], scores[0], strict=True) if score > 0]
        assert [passage.score for passage in found] == [score for _, score in theirs], query
        above = {hit for hit in theirs if hit[1] > theirs[-1][1]}
        assert above <= {(passage.id, passage.score) for passage in found}, query
        count += len(found)
    return count


@pytest.mark.parametrize("stemmer", [None, "english"])
@pytest.mark.parametrize("stopwords", [None, "english", "english_plus"])
def test_every_query_finds_what_bm25s_finds(tmp_path: Path, stemmer: str | None, stopwords: str | None) -> None:
    retriever = saved(tmp_path / "index", stemmer, stopwords)
    index = open_index(tmp_path / "index", stemmer=stemmer or "none", stopwords=stopwords or "none")
    assert same(index, retriever, stemmer, stopwords=stopwords) > 100
    analyser = index.info()["settings"]["analyser"]
    assert (index.info()["kind"], index.info()["passages"], analyser["stemmer"]) == ("bm25s", len(LINES), stemmer)
    assert len(analyser["stop_words"]) == {None: 0, "english": 33, "english_plus": 179}[stopwords]


@pytest.mark.parametrize("method", ["robertson", "atire", "bm25l", "bm25+"])
def test_every_method_of_bm25s(tmp_path: Path, method: str) -> None:
    retriever = saved(tmp_path / "index", "english", "english", method=method, k1=1.2, b=0.6)
    index = open_bm25s(tmp_path / "index", stemmer="english", stopwords="english")
    assert same(index, retriever, "english", stopwords="english") > 100
    assert (index.info()["settings"]["method"], index.info()["settings"]["k1"]) == (method, 1.2)


@pytest.mark.parametrize(
    ("analyser", "how"),
    [
        (Analyser(BM25S_PATTERN, (), None, lower=False), {"lower": False}),
        (Analyser(r"\w+", (), "english"), {"token_pattern": r"\w+"}),
        (Analyser(r"\S+", (), None), {"token_pattern": r"\S+"}),
    ],
)
def test_an_analyser_of_any_kind(tmp_path: Path, analyser: Analyser, how: dict[str, Any]) -> None:
    retriever = saved(tmp_path / "index", analyser.stemmer, None, **how)
    index = open_index(tmp_path / "index", analyser=analyser)
    assert same(index, retriever, analyser.stemmer, stopwords=None, **how) > 100


def test_without_a_stemmer_the_error_names_the_ways_to_give_one(tmp_path: Path) -> None:
    saved(tmp_path / "index", "english", "english")
    for given in ({}, {"stopwords": "english"}):
        with pytest.raises(BadArgument, match=r'does not say how .*: open_index\(DIR, stemmer="engl.*analyser\.json'):
            open_index(tmp_path / "index", **given)


def test_an_analyser_that_the_folder_records(tmp_path: Path) -> None:
    saved(tmp_path / "index", "english", "english")
    record = tmp_path / "index" / "analyser.json"
    record.write_text('{"stemmer": "english", "stopwords": "english"}')
    given = open_bm25s(tmp_path / "index", stemmer="english", stopwords="english")
    assert open_index(tmp_path / "index").fingerprint == given.fingerprint
    assert open_bm25s(tmp_path / "index", stemmer="none").analyser.stemmer is None, "what is given goes first"
    record.write_text('{"stemmer": "none", "stopwords": ["pier"], "pattern": "\\\\w+", "lower": false}')
    assert open_bm25s(tmp_path / "index").analyser == Analyser(r"\w+", ("pier",), None, False, form=None)


@pytest.mark.parametrize("content", ["{", '{"stemmer": "english", "stopwords": "none", "x": 1}'])
def test_a_record_that_is_none(tmp_path: Path, content: str) -> None:
    saved(tmp_path / "index", None, None)
    (tmp_path / "index" / "analyser.json").write_text(content)
    with pytest.raises(BadData, match=r"analyser\.json is no record of an analyser .*: correct it$"):
        open_bm25s(tmp_path / "index")


def test_no_regular_expression_is_run_out_of_a_record(tmp_path: Path) -> None:
    saved(tmp_path / "index", None, None)
    record = {"stemmer": "none", "stopwords": "none", "pattern": r"(\w+)+!"}
    (tmp_path / "index" / "analyser.json").write_text(json.dumps(record))
    with pytest.raises(BadData, match="its pattern must be one of"):
        open_bm25s(tmp_path / "index")


@pytest.mark.parametrize(
    ("row", "passage"),
    [
        ("Orm Pier | A pier.", Passage("0", "Orm Pier", "A pier.")),
        ({"title": "Orm Pier", "text": "A pier – île."}, Passage("0", "Orm Pier", "A pier – île.")),
        ({"docid": 7, "contents": '"Orm Pier"\nA pier.'}, Passage("7", "Orm Pier", "A pier.")),
    ],
)
def test_its_rows_in_every_shape(tmp_path: Path, row: Any, passage: Passage) -> None:
    corpus = [row, *({"text": f"hill {n} ü", "id": str(n)} if isinstance(row, dict) else f"hill {n}" for n in range(3))]
    saved(tmp_path / "index", None, None, corpus)
    index = open_bm25s(tmp_path / "index", stemmer="none")
    assert index("pier", k=4)[0].scored(None) == passage
    assert len(index.passages[-2:]) == 2


def test_the_fingerprint_follows_the_content_and_the_analyser(tmp_path: Path) -> None:
    def fingerprint(name: str, corpus: list[str] = LINES, **options: Any) -> str:
        saved(tmp_path / name, "english", "english", corpus, **options)
        return open_bm25s(tmp_path / name, stemmer="english", stopwords="english").fingerprint

    first = fingerprint("a")
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert open_bm25s(tmp_path / "copy", stemmer="english", stopwords="english").fingerprint == first
    others = {
        open_bm25s(tmp_path / "a", stemmer="porter", stopwords="english").fingerprint,
        fingerprint("b", k1=1.2),
        fingerprint("c", method="robertson"),
        fingerprint("d", LINES[:-1]),
        fingerprint("e", [LINES[0] + "s", *LINES[1:]]),
        fingerprint("f", [LINES[1], LINES[0], *LINES[2:]]),
    }
    assert len(others | {first}) == 7


def one_row_less(folder: Path) -> None:
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "corpus.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    (folder / "corpus.mmindex.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "corpus.jsonl").unlink(), "holds no passages: save it with retriever.save(DIR"),
        (lambda folder: (folder / "indptr.csc.index.npy").unlink(), "cannot be read ("),
        (lambda folder: np.save(folder / "data.csc.index.npy", np.zeros(5, np.float32)), "do not fit each other"),
        (one_row_less, f"holds {len(LINES) - 1} passages and an index of {len(LINES)}"),
    ],
)  # fmt: skip
def test_folders_that_are_damaged(tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    saved(tmp_path / "index", None, None)
    spoil(tmp_path / "index")
    with pytest.raises(BadData, match=re.escape(message)):
        open_bm25s(tmp_path / "index", stemmer="none")


def test_an_index_of_token_numbers(tmp_path: Path) -> None:
    retriever = bm25s.BM25()
    retriever.index(Tokenizer().tokenize(LINES, show_progress=False), show_progress=False)
    retriever.vocab_dict = {str(word): number for word, number in retriever.vocab_dict.items()}
    retriever.save(tmp_path / "index", corpus=LINES, show_progress=False)
    with pytest.raises(BadData, match="was indexed by token numbers and does not hold the words"):
        open_bm25s(tmp_path / "index", stemmer="none")
