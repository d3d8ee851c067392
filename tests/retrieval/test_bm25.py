"""BM25 as a user meets it: the analyser, scores by hand, building, opening, the cache, threads, kills, damage.

The worked example. Three passages without titles: p1 = red red fox, p2 = red hen, p3 = blue hen dog egg.
N = 3, average length 3, k1 = 0.9, b = 0.4. `red` is in two of them: idf = ln(1 + 1.5 / 2.5) = ln 1.6 = 0.470004.
p1: tf 2, length 3: 0.9 (0.6 + 0.4 * 3/3) = 0.90, 2 / 2.90 = 0.689655, score 0.324140.
p2: tf 1, length 2: 0.9 (0.6 + 0.4 * 2/3) = 0.78, 1 / 1.78 = 0.561798, score 0.264047.

The two engines are one formula: equal scores up to the factor (k1 + 1), the same order, the same ties. bm25s adds up
columns that were counted at building time, rank-bm25 counts while it answers: neither knows the other.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import pickle
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import bm25s
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blendfilter.errors import BadArgument, BadData, EmptyData
from blendfilter.records import Passage
from blendfilter.retrieval import bm25
from blendfilter.retrieval.analyser import Analyser, snowball
from blendfilter.retrieval.bm25 import BM25, Lexical, RankBM25
from blendfilter.retrieval.indexes import open_index

HENS = [Passage("p1", "", "red red fox"), Passage("p2", "", "red hen"), Passage("p3", "", "blue hen dog egg")]
TOWNS = [Passage(str(n), f"Town {n}", f"A harbour with {n} boats and a mill.") for n in range(40)]


def ids(passages: list[Passage]) -> list[str]:
    return [passage.id for passage in passages]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "towns.jsonl"
    path.write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in TOWNS))
    return path


def test_the_worked_example() -> None:
    found = BM25.build(HENS)("red", k=3)
    assert ids(found) == ["p1", "p2"], "only what shares a word with the query"
    assert [p.score for p in found] == pytest.approx([0.324140, 0.264047], abs=1e-6)


def test_built_in_a_folder_and_opened_again(tmp_path: Path) -> None:
    built = BM25.build(iter(TOWNS), tmp_path / "index")
    opened, memory = BM25.open(tmp_path / "index"), BM25.build(TOWNS)
    queries = ["town 3", "boats and mills", "harbour 39"]
    assert built.search(queries, 9) == opened.search(queries, 9) == memory.search(queries, 9)
    assert built.fingerprint == opened.fingerprint == memory.fingerprint
    assert len(opened) == 40
    assert opened.info()["settings"]["k1"] == 0.9
    assert opened.info()["path"] == str(tmp_path / "index")
    assert "path" not in memory.info()
    assert opened.passages[7] == TOWNS[7]


def test_the_fingerprint_changes_with_what_changes_results() -> None:
    def fingerprint(passages: list[Passage] = HENS, **settings: float | Analyser) -> str:
        return BM25.build(passages, **settings).fingerprint  # type: ignore[arg-type]

    same = {fingerprint(), fingerprint([p.scored(1.0) for p in HENS]), fingerprint(k1=0.9, b=0.4)}
    other = {
        fingerprint(k1=1.2),
        fingerprint(b=0.5),
        fingerprint(analyser=Analyser(stemmer=None)),
        fingerprint(HENS[::-1]),
        fingerprint([*HENS[:2], Passage("p4", "", HENS[2].text)]),
    }
    assert len(same) == 1
    assert len(other - same) == 5


def test_settings_reach_the_scores(tmp_path: Path) -> None:
    """b = 0 takes length out: p2 scores ln 1.6 / (1 + 0.9); the opened index still knows its own analyser."""
    assert BM25.build(HENS, b=0)("red", k=2)[1].score == pytest.approx(0.470004 / 1.9, abs=1e-6)
    BM25.build(HENS, tmp_path / "index", analyser=Analyser(stop_words=("red",)))
    assert BM25.open(tmp_path / "index")("red", k=2) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"k1": 0}, "k1 must be above 0, got 0"), ({"k1": float("nan")}, "k1 must"), ({"b": 1.1}, "b must lie between")],
)
def test_bad_settings(tmp_path: Path, settings: dict[str, float], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        BM25.build(HENS, tmp_path / "index", **settings)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("passages", "error", "message"),
    [
        ([], EmptyData, "has no passages"),
        ([Passage("1", "", "the"), Passage("2", "", "")], EmptyData, "has 2 passages and not one word to index"),
        ([HENS[0], HENS[1], HENS[0]], BadData, "passage id 'p1' occurs twice in the corpus: passages 1 and 3"),
    ],
)
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_bad_corpus_leaves_nothing(
    tmp_path: Path, passages: list[Passage], error: type[Exception], message: str, on_disk: bool
) -> None:
    with pytest.raises(error, match=message):
        BM25.build(passages, tmp_path / "index" if on_disk else None)
    assert not list(tmp_path.iterdir())


def test_building_over_an_index(tmp_path: Path) -> None:
    BM25.build(HENS, tmp_path / "index")
    with pytest.raises(BadArgument, match="there is an index at"):
        BM25.build(TOWNS, tmp_path / "index")
    old = BM25.open(tmp_path / "index")
    assert len(BM25.build(TOWNS, tmp_path / "index", overwrite=True)) == 40
    assert ids(old("hen", k=3)) == ["p2", "p3"], "an index in use goes on with what it opened"


def test_a_corpus_file_is_indexed_once(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    first = BM25.for_corpus(corpus)
    assert first.path is not None
    assert first.path.parent == tmp_path / "cache" / "indexes"
    assert first.path.name.startswith("bm25-towns-")
    stamp = (first.path / "manifest.json").stat().st_mtime_ns
    assert BM25.for_corpus(corpus).path == first.path
    assert (first.path / "manifest.json").stat().st_mtime_ns == stamp, "used again, not built again"
    assert first.manifest.corpus.name == "towns.jsonl"
    assert first.fingerprint == BM25.build(TOWNS).fingerprint, "the passages count, not how they were packed"
    assert BM25.for_corpus(corpus, k1=1.2).path != first.path
    with open(corpus, "a") as file:
        file.write('{"id": "new", "title": "Fell", "text": "A hill."}\n')
    assert len(BM25.for_corpus(corpus)) == 41


def test_of_two_builders_at_once_the_slower_one_takes_the_other_ones_index(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather, faster = bm25.gather, list[BM25]()

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(bm25, "gather", gather)
        faster.append(BM25.for_corpus(corpus, tmp_path))
        return gather(*arguments)

    monkeypatch.setattr(bm25, "gather", meanwhile)
    slower = BM25.for_corpus(corpus, tmp_path)
    assert (slower.path, slower.stamp) == (faster[0].path, faster[0].stamp)


def test_a_damaged_cache_is_built_again(corpus: Path, tmp_path: Path) -> None:
    path = BM25.for_corpus(corpus, tmp_path / "cache").path
    assert path
    (path / "passages.jsonl").write_text("")
    with pytest.warns(UserWarning, match="passages.jsonl has 0 bytes"):
        assert ids(BM25.for_corpus(corpus, tmp_path / "cache")("town 17", k=1)) == ["17"]
    for name in sorted(file.name for file in path.iterdir()):
        (path / name).unlink()
        (path / "left by another program").touch()
        with pytest.warns(UserWarning, match="doing so now"):
            assert ids(BM25.for_corpus(corpus, tmp_path / "cache")("town 17", k=1)) == ["17"]
    (path / "manifest.json").write_text("{}")
    with pytest.warns(UserWarning, match="doing so now"):
        BM25.for_corpus(corpus, tmp_path / "cache")
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing of the damaged ones is left"


@pytest.mark.slow
def test_recall_of_gold_titles_on_real_questions(shared_data: Path, tmp_path: Path) -> None:
    """200 HotPotQA questions; benchmarks.md has all 1,125. The bar is the published one less sampling noise."""
    with gzip.open(shared_data / "hotpotqa" / "dev.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(next(lines)) for _ in range(200)]
    index = BM25.for_corpus(shared_data / "corpus" / "hotpotqa.jsonl.gz", os.environ.get("BLENDFILTER_CACHE", tmp_path))
    shares = []
    for row, found in zip(rows, index.search([row["question"] for row in rows], 10), strict=True):
        gold = set(row["metadata"]["gold_titles"])
        shares.append(len(gold & {passage.title for passage in found}) / len(gold))
    assert sum(shares) / len(shares) >= 0.78


words = st.lists(st.sampled_from(["red", "hen", "fox", "dog", "egg"]), max_size=7).map(" ".join)


def agree(one: list[list[Passage]], other: list[list[Passage]], factor: float) -> None:
    for ours, theirs in zip(one, other, strict=True):
        assert [p.id for p in ours] == [p.id for p in theirs]
        assert [p.score for p in theirs] == pytest.approx([(p.score or 0) * factor for p in ours], rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(words, min_size=1, max_size=12),
    st.lists(words.filter(bool), min_size=1, max_size=3),
    st.integers(1, 6),
    st.sampled_from([0.3, 0.9, 1.5]),
    st.sampled_from([0.0, 0.4, 0.75, 1.0]),
)
def test_tiny_corpora_full_of_ties(texts: list[str], queries: list[str], k: int, k1: float, b: float) -> None:
    assume(any(texts))
    corpus = [Passage(str(n), "", text) for n, text in enumerate(texts)]
    k = min(k, len(corpus))
    one, other = BM25.build(corpus, k1=k1, b=b), RankBM25.build(corpus, k1=k1, b=b)
    agree(one.search(queries, k), other.search(queries, k), k1 + 1)


@pytest.mark.parametrize("block", [1, 2, 2**13])
@pytest.mark.parametrize("b", [0.0, 0.4, 1.0])
def test_the_matrix_is_the_one_that_bm25s_makes(b: float, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, in every block size, a document without a term among them."""
    monkeypatch.setattr(bm25, "_BLOCK", block)
    documents = bm25.AnalysedPassages()
    lists = [text.split() for text in ("red red fox", "red hen", "", "blue hen dog egg hen", "fox")]
    for terms in lists:
        documents.add(terms)
    engine = bm25s.BM25(k1=0.9, b=b, method="lucene", dtype="float64", backend="numpy")
    numbers = [[documents.words[term] for term in terms] for terms in lists]
    theirs = engine.build_index_from_ids(range(len(documents.words)), numbers, show_progress=False)
    ours = documents.postings().engine(0.9, b).scores
    assert ours["num_docs"] == theirs["num_docs"] == 5
    for name in ("data", "indices", "indptr"):
        assert ours[name].dtype == theirs[name].dtype
        assert ours[name].tobytes() == theirs[name].tobytes()


def test_real_passages_and_questions(shared_data: Path, tmp_path: Path) -> None:
    """2,000 passages, 100 questions, and the questions again with five times their length of text before them."""
    with gzip.open(shared_data / "corpus" / "hotpotqa.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, 2000)]
    corpus = [Passage(row["id"], row["title"], row["text"]) for row in rows]
    with gzip.open(shared_data / "hotpotqa" / "dev.jsonl.gz", "rt", encoding="utf-8") as lines:
        questions = [json.loads(line)["question"] for line in itertools.islice(lines, 100)]
    blended = [f"{corpus[n].text} {question}" for n, question in enumerate(questions[:10])]
    one, other = BM25.build(corpus, tmp_path / "index"), RankBM25.build(corpus)
    agree(one.search(questions + blended, 10), other.search(questions + blended, 10), 1.9)


@pytest.mark.parametrize("engine", [BM25, RankBM25])
def test_no_regular_expression_is_run_out_of_a_file(engine: type[Lexical], tmp_path: Path) -> None:
    """`(\\w+)+\\b!` takes longer than anybody lives over a word of forty letters; its own builder may open it."""
    endless = Analyser(pattern=r"(\w+)+!")
    built = engine.build([Passage("1", "Mill!", "It turns!")], tmp_path / "index", analyser=endless)
    assert len(built) == 1
    with pytest.raises(BadArgument, match=r"by a regular expression .*none is run out of a file") as raised:
        open_index(tmp_path / "index")
    assert "\n" not in str(raised.value)
    assert open_index(tmp_path / "index", analyser=endless)("turns!", k=1)[0].id == "1"
    with pytest.raises(BadArgument, match="built with another analyser than the one given"):
        open_index(tmp_path / "index", analyser=Analyser())


ANALYSER = Analyser()


def test_lower_case_stop_words_stems() -> None:
    """By Snowball's English rules: -ing and -s go, -ies becomes -i, `generalization` loses its ending to `general`."""
    assert Analyser()("The running of the Ferries, and a GENERALIZATION") == ["run", "ferri", "general"]


@pytest.mark.parametrize("analyser", [Analyser(), Analyser(r"[a-z]+", ("x",), None), Analyser(lower=False)])
def test_settings_and_pickle_bring_it_back(analyser: Analyser) -> None:
    assert Analyser.from_settings(json.loads(json.dumps(analyser.settings()))) == analyser
    assert pickle.loads(pickle.dumps(analyser))("Running x") == analyser("Running x")


def test_the_settings_of_old_indexes_stay_what_they_were() -> None:
    """Their fingerprints are made of these; this one was computed before words had a Unicode form."""
    old = Analyser(form=None)
    assert set(old.settings()) == {"pattern", "stop_words", "stemmer"}
    assert Analyser.from_settings(old.settings()) == old
    assert Analyser(lower=False).settings()["lower"] is False
    assert BM25.build(HENS, analyser=old).fingerprint == "aca372e485264d5f"


def test_an_old_index_answers_as_before_and_says_what_it_is(tmp_path: Path) -> None:
    """Characters as they come: the two forms of a word are two, as they were when it was built."""
    town = Passage("1", "", "Café Noir")
    BM25.build([town], tmp_path / "old", analyser=Analyser(form=None))
    with pytest.warns(UserWarning, match="an index of an earlier version: it answers as before") as warned:
        old = open_index(tmp_path / "old")
    assert len(warned) == 1
    assert (len(old("café", k=1)), old("Cafe\u0301", k=1)) == (1, [])
    with pytest.warns(UserWarning, match="earlier version"):
        grown = BM25.open(tmp_path / "old").update([Passage("2", "", "Café Vert")])
    assert "form" not in grown.info()["settings"]["analyser"]
    with pytest.warns(UserWarning, match="earlier version"):
        assert open_index(tmp_path / "old", analyser=Analyser())("café", k=2), (
            "whoever gives its analyser means its own"
        )


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Dvorˇák Dvořák Dvor\u030ca\u0301k", ["dvorˇák", "dvořák", "dvořák"]),
        ("दान दिन दीन", ["दान", "दिन", "दीन"]),
        ("தமிழ் বাংলা ภาษาไทย", ["தமிழ்", "বাংলা", "ภาษาไทย"]),
        ("नम\u094d\u200dते नम\u094dते co\u00adoperate", ["नम\u094dते", "नम\u094dते", "cooperate"]),
        ("İzmir I\u0307zmir", ["izmir", "izmir"]),
        ("\u0301 ❤\ufe0f – “x”", ["x"]),
    ],
    ids=[
        "two forms of one word",
        "vowel signs",
        "other scripts",
        "joiners and soft hyphens",
        "a capital of two",
        "none",
    ],
)
def test_words_of_any_script_keep_their_marks(text: str, terms: list[str]) -> None:
    assert Analyser(stemmer=None)(text) == terms


@given(st.text(max_size=20))
def test_the_form_of_a_text_changes_no_word(text: str) -> None:
    words = Analyser()
    assert words(unicodedata.normalize("NFD", text)) == words(unicodedata.normalize("NFC", text))
    if text.isascii():
        assert words(text) == Analyser(form=None)(text)


def test_queries_and_passages_meet_in_one_form() -> None:
    decomposed = unicodedata.normalize("NFD", "Dvořák")
    for held, query in (("Dvořák", decomposed), (decomposed, "Dvořák")):
        for engine in (BM25, RankBM25):
            index = engine.build(
                [Passage("1", held, f"{held} wrote it."), Passage("2", "Smetana", "He wrote nothing.")]
            )
            assert ids(index(query, k=2)) == ["1"]
    assert Analyser(stop_words=(decomposed.lower(),))("Dvořák") == []
    assert Analyser(stemmer=None, lower=False)("\u212bngström") == ["Ångström"], "the sign of the unit is the letter"


def test_threads_share_one_stemmer() -> None:
    endings = ("ing", "ed", "s", "al", "ation")
    words = [f"{stem}{ending}" for stem in ("walk", "jump", "harbour", "relat", "nation") for ending in endings] * 40
    alone = [snowball("english")(word) for word in words]
    shared = snowball("english")
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: [shared(word) for word in words], range(32)):
            assert got == alone


def test_where_no_index_can_be_kept_it_is_made_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that is a file, as for a container's user: nothing can be made below it."""
    (tmp_path / "home").touch()
    (tmp_path / "c.jsonl").write_text('{"id": "1", "title": "Mill", "text": "A tide mill."}\n')
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "home" / "cache"))
    with pytest.warns(UserWarning, match=r"is not kept: .*home.*: Not a directory; name another folder in BLENDFILTER"):
        index = BM25.for_corpus(tmp_path / "c.jsonl")
    assert (index.path, [passage.id for passage in index("mill", k=1)]) == (None, ["1"])


def test_where_there_is_no_home_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "1", "title": "Mill", "text": "A tide mill."}\n')
    monkeypatch.setenv("BLENDFILTER_CACHE", "relative")
    with pytest.warns(UserWarning, match="is not kept: BLENDFILTER_CACHE is 'relative'"):
        assert len(BM25.for_corpus(tmp_path / "c.jsonl")) == 1
