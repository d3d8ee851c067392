"""Folders that bm25s itself made: every query finds what bm25s finds, with the analyser that their words show."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
import Stemmer
from blendfilter.retrieval.vocabulary import PATTERN
from bm25s.tokenization import Tokenizer

from blendfilter.errors import BadData, MissingFile, UnknownName
from blendfilter.records import Passage
from blendfilter.resources import sample
from blendfilter.retrieval.bm25s_folder import open_bm25s
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.retrieval.indexes import open_index

PASSAGES = list(read_corpus(sample("corpus.jsonl")))
LINES = [passage.line for passage in PASSAGES]
QUERIES = [
    *(json.loads(line)["question"] for line in sample("questions.jsonl").read_text(encoding="utf-8").splitlines()[:25]),
    "the THE its being willing", "Lighthouses lighthouse", "of", "which towns are there in it?", "will they be built",
]  # fmt: skip
WAYS = [(stemmer, stopwords) for stemmer in (None, "english") for stopwords in (None, "english", "english_plus")]


def stem(language: str | None) -> Any:
    return Stemmer.Stemmer(language) if language else None


def saved(folder: Path, stemmer: str | None, stopwords: str | None, corpus: Any = LINES, **options: Any) -> bm25s.BM25:
    """A folder as bm25s' own examples make one."""
    lower, pattern = options.pop("lower", True), options.pop("token_pattern", PATTERN)
    texts = [row if isinstance(row, str) else " ".join(map(str, row.values())) for row in corpus]
    tokens = bm25s.tokenize(
        texts, stopwords=stopwords, stemmer=stem(stemmer), lower=lower, token_pattern=pattern, show_progress=False
    )
    retriever = bm25s.BM25(**options)
    retriever.index(tokens, show_progress=False)
    retriever.save(folder, corpus=corpus, show_progress=False)
    return retriever


def retrieved(retriever: bm25s.BM25, query: str, k: int, **how: Any) -> tuple[list[float], set[tuple[str, float]]]:
    """bm25s' own scores, and the passages above the last of them (it breaks ties as they fall)."""
    if isinstance(how.get("stemmer"), str):
        how["stemmer"] = stem(how["stemmer"])
    tokens = bm25s.tokenize([query], return_ids=False, show_progress=False, **how)
    if not tokens[0]:
        return [], set()
    numbers, scores = retriever.retrieve(
        tokens, corpus=np.arange(retriever.scores["num_docs"]), k=k, show_progress=False
    )
    found = [(str(number), float(score)) for number, score in zip(numbers[0], scores[0], strict=True) if score > 0]
    return [score for _, score in found], {each for each in found if each[1] > found[-1][1]}


def same(index: Any, retriever: bm25s.BM25, k: int = 10, **how: Any) -> int:
    """How many hits there were, all as bm25s finds them."""
    count = 0
    for query, found in zip(QUERIES, index.search(QUERIES, k), strict=True):
        scores, above = retrieved(retriever, query, k, **how)
        assert [passage.score for passage in found] == scores, query
        assert above <= {(passage.id, passage.score) for passage in found}, query
        count += len(found)
    return count


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


@pytest.mark.parametrize(("stemmer", "stopwords"), WAYS)
def test_every_query_finds_what_bm25s_finds(tmp_path: Path, stemmer: str | None, stopwords: str | None) -> None:
    retriever = saved(tmp_path / "index", stemmer, stopwords)
    index = open_index(tmp_path / "index")
    assert same(index, retriever, stemmer=stemmer, stopwords=stopwords) > 100
    settings = index.info()["settings"]
    assert settings["analyser"]["stemmer"] == stemmer
    assert settings["analyser_found"] == "from the vocabulary"
    assert (index.info()["kind"], len(index), index.info()["passages"]) == ("bm25s", len(LINES), len(LINES))
    if stemmer:
        assert len(settings["analyser"]["stop_words"]) == {None: 0, "english": 33, "english_plus": 179}[stopwords]


@pytest.mark.parametrize("method", ["robertson", "atire", "bm25l", "bm25+"])
def test_every_method_of_bm25s(tmp_path: Path, method: str) -> None:
    retriever = saved(tmp_path / "index", "english", "english", method=method, k1=1.2, b=0.6)
    index = open_bm25s(tmp_path / "index")
    assert same(index, retriever, stemmer="english", stopwords="english") > 100
    assert (index.info()["settings"]["method"], index.info()["settings"]["k1"]) == (method, 1.2)


def test_capitals_that_were_kept(tmp_path: Path) -> None:
    retriever = saved(tmp_path / "index", None, None, lower=False)
    index = open_bm25s(tmp_path / "index")
    assert index.info()["settings"]["analyser"]["lower"] is False
    assert same(index, retriever, stopwords=None, lower=False) > 100


def test_words_of_one_character(tmp_path: Path) -> None:
    retriever = saved(tmp_path / "index", "english", None, token_pattern=r"\w+")
    index = open_bm25s(tmp_path / "index")
    assert index.info()["settings"]["analyser"]["pattern"] == r"\w+"
    assert same(index, retriever, stopwords=None, stemmer="english", token_pattern=r"\w+") > 100


def test_other_words_are_told(tmp_path: Path) -> None:
    retriever = saved(tmp_path / "index", None, None, token_pattern=r"\S+")
    with pytest.warns(UserWarning, match="so queries are parted at white space; index its texts again"):
        index = open_bm25s(tmp_path / "index")
    assert same(index, retriever, stopwords=None, token_pattern=r"\S+") > 100


def test_too_few_words_to_tell(tmp_path: Path) -> None:
    saved(tmp_path / "index", None, None, ["a cat is a feline and likes to purr", "a dog plays"])
    with pytest.warns(UserWarning, match="its 9 words hardly show whether they were stemmed; say it, open_index"):
        open_bm25s(tmp_path / "index")
    index = open_index(tmp_path / "index", stemmer="none", stopwords="none")
    assert [passage.text for passage in index("which one is it", k=2)] == ["a cat is a feline and likes to purr"]
    assert index.info()["settings"]["analyser_found"] == "as given"


def test_what_is_given_is_taken(tmp_path: Path) -> None:
    saved(tmp_path / "index", None, None)
    found = open_bm25s(tmp_path / "index")
    given = open_bm25s(tmp_path / "index", stopwords=["pier"], stemmer="porter")
    assert (given.analyser.stop_words, given.analyser.stemmer) == (("pier",), "porter")
    assert given.fingerprint != found.fingerprint
    assert open_bm25s(tmp_path / "index", stopwords="german").analyser.stop_words[0] == "aber"
    with pytest.raises(UnknownName, match=r"no list of stop words 'englisch'\. Did you mean 'english'"):
        open_bm25s(tmp_path / "index", stopwords="englisch")
    with pytest.raises(UnknownName, match=r"no stemmer 'englisch'\. Did you mean 'english'"):
        open_bm25s(tmp_path / "index", stemmer="englisch")


@pytest.mark.parametrize("language", [None, "english", "porter", "french"])
def test_what_a_tokenizer_left_in_the_folder(tmp_path: Path, language: str | None) -> None:
    words = ["the", "lighthouse", "towns"]
    tokenizer = Tokenizer(stemmer=stem(language), stopwords=words)
    retriever = bm25s.BM25()
    retriever.index(tokenizer.tokenize(LINES, return_as="tuple", show_progress=False), show_progress=False)
    retriever.save(tmp_path / "index", corpus=LINES, show_progress=False)
    tokenizer.save_vocab(tmp_path / "index")
    tokenizer.save_stopwords(tmp_path / "index")
    index = open_bm25s(tmp_path / "index")
    assert same(index, retriever, stopwords=words, stemmer=language) > 100
    assert (index.analyser.stop_words, index.analyser.stemmer) == (tuple(words), language)
    assert index.info()["settings"]["analyser_found"] == "from the tokenizer's files"


def test_a_stemmer_that_is_not_snowballs(tmp_path: Path) -> None:
    tokenizer = Tokenizer(stemmer=lambda word: word[:4], stopwords=None)
    retriever = bm25s.BM25()
    retriever.index(tokenizer.tokenize(LINES, return_as="tuple", show_progress=False), show_progress=False)
    retriever.save(tmp_path / "index", corpus=LINES, show_progress=False)
    tokenizer.save_vocab(tmp_path / "index")
    with pytest.warns(UserWarning, match=r"no stemmer of Snowball's makes the stems of vocab\.tokenizer\.json; say it"):
        open_bm25s(tmp_path / "index")


ROWS: list[tuple[Any, Passage]] = [
    ("Orm Pier | A pier.", Passage("0", "Orm Pier", "A pier.")),
    ({"id": "x7", "title": "Orm Pier", "text": "A pier."}, Passage("x7", "Orm Pier", "A pier.")),
    ({"title": "Orm Pier", "text": "A pier – île."}, Passage("0", "Orm Pier", "A pier – île.")),
    ({"docid": 7, "contents": '"Orm Pier"\nA pier.'}, Passage("7", "Orm Pier", "A pier.")),
]


@pytest.mark.parametrize(("row", "passage"), ROWS)
@pytest.mark.parametrize("listed", [True, False])
def test_its_rows_in_every_shape(tmp_path: Path, row: Any, passage: Passage, listed: bool) -> None:
    corpus = [row, *({"text": f"hill {n} ü", "id": str(n)} if isinstance(row, dict) else f"hill {n}" for n in range(3))]
    saved(tmp_path / "index", None, None, corpus)
    if not listed:
        (tmp_path / "index" / "corpus.mmindex.json").unlink()
    index = open_bm25s(tmp_path / "index", stemmer="none", stopwords="none")
    assert index("pier", k=4)[0].scored(None) == passage
    assert len(index.passages[-2:]) == 2
    assert not listed or sorted(path.name for path in (tmp_path / "index").iterdir())[0] == "corpus.jsonl"


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    def fingerprint(name: str, corpus: list[str] = LINES, **options: Any) -> str:
        saved(tmp_path / name, "english", "english", corpus, **options)
        return open_bm25s(tmp_path / name).fingerprint

    first = fingerprint("a")
    assert re.fullmatch("[0-9a-f]{16}", first)
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert open_bm25s(tmp_path / "copy").fingerprint == first
    others = {
        fingerprint("b", k1=1.2),
        fingerprint("c", method="robertson"),
        fingerprint("d", LINES[:-1]),
        fingerprint("e", [LINES[0] + "s", *LINES[1:]]),
        fingerprint("f", [LINES[1], LINES[0], *LINES[2:]]),
    }
    assert len(others | {first}) == 6


def cut_array(folder: Path) -> None:
    data = (folder / "data.csc.index.npy").read_bytes()
    (folder / "data.csc.index.npy").write_bytes(data[:-400])


def other_array(folder: Path) -> None:
    np.save(folder / "data.csc.index.npy", np.zeros(5, dtype=np.float32))


def one_row_less(folder: Path) -> None:
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "corpus.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    (folder / "corpus.mmindex.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "corpus.jsonl").unlink(), "holds no passages: save it with retriever.save(DIR"),
        (lambda folder: (folder / "indptr.csc.index.npy").unlink(), "indptr.csc.index.npy is missing; save it again"),
        (cut_array, "cannot be read (data.csc.index.npy is no list of numbers of the length that it"),
        (other_array, "do not fit each other): save it again"),
        (lambda folder: (folder / "vocab.index.json").write_text("{"), "cannot be read ("),
        (lambda folder: (folder / "params.index.json").write_text('{"colour": "red"}'), "cannot be read ("),
        (lambda folder: (folder / "params.index.json").write_text("[]"), "cannot be read ("),
        (one_row_less, f"holds {len(LINES) - 1} passages and an index of {len(LINES)}"),
        (lambda folder: (folder / "corpus.jsonl").write_text("{}"), "corpus.mmindex.json does not fit corpus.jsonl"),
        (lambda folder: (folder / "corpus.mmindex.json").write_text("7x"), "corpus.mmindex.json is no list of numbers"),
        (lambda folder: (folder / "corpus.mmindex.json").write_text('["a"]'), "is no list of numbers"),
        (lambda folder: (folder / "stopwords.tokenizer.json").write_text("{]"), "stopwords.tokenizer.json is not JSON"),
        (lambda folder: (folder / "stopwords.tokenizer.json").write_text("[1]"), "is no list of words"),
        (lambda folder: (folder / "vocab.tokenizer.json").write_text("[]"), "is no vocabulary of a Tokenizer"),
    ],
)  # fmt: skip
def test_folders_that_are_damaged(tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    saved(tmp_path / "index", None, None)
    spoil(tmp_path / "index")
    with pytest.raises(BadData, match=re.escape(message)):
        open_bm25s(tmp_path / "index")


def test_no_folder_and_a_corpus_of_other_things(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no folder of bm25s at"):
        open_bm25s(tmp_path / "gone")
    saved(tmp_path / "index", None, None, [{"page": f"pier {n}"} for n in range(3)])
    index = open_bm25s(tmp_path / "index", stemmer="none")
    with pytest.raises(
        BadData, match=re.escape("corpus.jsonl, line 1: cannot read a mapping with the keys ['id', 'page']")
    ):
        index("pier", k=1)


def test_an_index_of_token_numbers(tmp_path: Path) -> None:
    retriever = bm25s.BM25()
    retriever.index(Tokenizer().tokenize(LINES, show_progress=False), show_progress=False)
    retriever.vocab_dict = {str(word): number for word, number in retriever.vocab_dict.items()}
    retriever.save(tmp_path / "index", corpus=LINES, show_progress=False)
    with pytest.raises(BadData, match="was indexed by token numbers and does not hold the words"):
        open_bm25s(tmp_path / "index")
