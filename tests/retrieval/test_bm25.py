"""BM25 as a user meets it: scores by hand, order, building, opening, the cache, threads, kills.

The worked example. Three passages without titles: p1 = red red fox, p2 = red hen, p3 = blue hen dog egg.
N = 3, average length 3, k1 = 0.9, b = 0.4. `red` is in two of them: idf = ln(1 + 1.5 / 2.5) = ln 1.6 = 0.470004.
p1: tf 2, length 3: 0.9 (0.6 + 0.4 * 3/3) = 0.90, 2 / 2.90 = 0.689655, score 0.324140.
p2: tf 1, length 2: 0.9 (0.6 + 0.4 * 2/3) = 0.78, 1 / 1.78 = 0.561798, score 0.264047.
"""

from __future__ import annotations

import gc
import gzip
import json
import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.bm25 import BM25

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


def test_a_repeated_word_counts_as_often_as_it_occurs() -> None:
    index = BM25.build(HENS)
    once, thrice = index("red hen", k=3), index("red RED hen reds", k=3)
    red = {p.id: p.score or 0 for p in index("red", k=3)}
    assert {p.id: p.score for p in thrice} == pytest.approx({p.id: (p.score or 0) + 2 * red.get(p.id, 0) for p in once})


def test_words_nobody_knows_add_nothing() -> None:
    index = BM25.build(HENS)
    assert index("red zebra quagga", k=3) == index("red", k=3)
    assert index("zebra", k=3) == []
    assert index("and the of", k=3) == [], "stop words alone"
    assert index("?!", k=3) == []


def test_titles_are_searched_too() -> None:
    assert ids(BM25.build(TOWNS)("town 17", k=1)) == ["17"]


def test_ties_keep_corpus_order_at_the_kth_place() -> None:
    index = BM25.build([Passage(f"{n}", "", "hen" if n != 250 else "hen hen") for n in range(300)])
    assert ids(index("hen", k=4)) == ["250", "0", "1", "2"]


def test_a_batch_is_its_queries_one_by_one() -> None:
    index = BM25.build(TOWNS)
    queries = ["town 3", "boats", "nothing known", "mill 12"]
    assert index.search(queries, 5) == [index(query, 5) for query in queries]
    assert index.search([], 5) == []


def test_bad_queries() -> None:
    index = BM25.build(HENS)
    with pytest.raises(BadArgument, match="k must be at least 1, got 0"):
        index("red", k=0)
    with pytest.raises(BadArgument, match="the query is empty"):
        index("  ")


def test_a_k_above_the_corpus_works_and_says_so_once() -> None:
    index = BM25.build(HENS)
    with pytest.warns(UserWarning, match="k=50 is more than the corpus holds: at most 3 passages"):
        assert len(index("red hen", k=50)) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index("red", k=50)


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
        ([], EmptyData, "the corpus has no passages"),
        ([Passage("1", "", "the"), Passage("2", "", "")], EmptyData, "has 2 passages and not one word to index"),
        ([HENS[0], HENS[1], HENS[0]], BadData, "passage id 'p1' occurs twice in the corpus: passages 1 and 3"),
        (["red hen"], BadArgument, "passage 1 of the corpus is a str"),
    ],
)
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_bad_corpus_leaves_nothing(
    tmp_path: Path, passages: list[Passage], error: type[Exception], message: str, on_disk: bool
) -> None:
    with pytest.raises(error, match=message):
        BM25.build(passages, tmp_path / "index" if on_disk else None)
    assert not list(tmp_path.iterdir())


def test_a_corpus_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        BM25.build(tmp_path / "gone.jsonl", tmp_path / "index")
    with pytest.raises(MissingFile):
        BM25.for_corpus(tmp_path / "gone.jsonl", tmp_path / "cache")
    assert not (tmp_path / "index").exists()


def test_building_over_an_index(tmp_path: Path) -> None:
    BM25.build(HENS, tmp_path / "index")
    with pytest.raises(BadArgument, match="there is an index at"):
        BM25.build(TOWNS, tmp_path / "index")
    old = BM25.open(tmp_path / "index")
    assert len(BM25.build(TOWNS, tmp_path / "index", overwrite=True)) == 40
    assert ids(old("hen", k=3)) == ["p2", "p3"], "an index in use goes on with what it opened"


def test_progress_is_told() -> None:
    told: list[tuple[object, ...]] = []
    BM25.build((Passage(str(n), "", f"hen {n}") for n in range(2500)), progress=lambda *each: told.append(each))
    assert told == [("reading passages", 1000), ("reading passages", 2000), ("reading passages", 2500, 2500)]


def test_passages_without_words_are_never_found() -> None:
    index = BM25.build([Passage("0", "", "..."), *HENS])
    assert ids(index("red", k=2)) == ["p1", "p2"]


def test_threads_share_an_index(tmp_path: Path) -> None:
    index = BM25.build(TOWNS, tmp_path / "index")
    queries = [f"town {n} with {n + 1} boats and mills" for n in range(39)]
    expected = index.search(queries, 5)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda n: index(queries[n % 39], 5), range(390))) == expected * 10


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


def test_a_packed_corpus_is_the_same_corpus(corpus: Path, tmp_path: Path) -> None:
    packed = tmp_path / "towns.jsonl.gz"
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    assert BM25.build(packed).fingerprint == BM25.build(corpus).fingerprint


def test_a_damaged_cache_is_built_again(corpus: Path, tmp_path: Path) -> None:
    path = BM25.for_corpus(corpus, tmp_path / "cache").path
    assert path
    (path / "passages.jsonl").write_text("")
    with pytest.warns(UserWarning, match="passages.jsonl has 0 bytes"):
        assert ids(BM25.for_corpus(corpus, tmp_path / "cache")("town 17", k=1)) == ["17"]


def test_what_is_no_whole_index_in_the_cache_is_put_aside(corpus: Path, tmp_path: Path) -> None:
    """A manifest that cannot be read says nothing of the files beside it: they are kept."""
    path = BM25.for_corpus(corpus, tmp_path / "cache").path
    assert path
    (path / "manifest.json").write_text("{")
    with pytest.warns(UserWarning, match=r"put aside as .*\.damaged-"):
        assert ids(BM25.for_corpus(corpus, tmp_path / "cache")("town 17", k=1)) == ["17"]
    (aside,) = set((tmp_path / "cache").iterdir()) - {path}
    assert (aside / "passages.jsonl").is_file()


def test_builders_that_race_end_with_one_index(corpus: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        indexes = list(pool.map(lambda _: BM25.for_corpus(corpus, tmp_path / "cache"), range(4)))
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert all(index("town 5", 3) == indexes[0]("town 5", 3) for index in indexes)


KILLED = """
import os, signal, sys
from blendfilter.records import Passage
from blendfilter.retrieval.bm25 import BM25

def passages():
    for n in range(3000):
        if n == 2000:
            os.kill(os.getpid(), signal.SIGKILL)
        yield Passage(str(n), "Hen", "a hen")

BM25.build(passages(), sys.argv[1])
"""


def test_a_killed_build_leaves_nothing_that_opens(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "index")], check=False, capture_output=True)
    assert done.returncode == -9, done.stderr
    with pytest.raises(MissingFile):
        BM25.open(tmp_path / "index")
    for left in tmp_path.iterdir():
        with pytest.raises(BadData, match="is not an index"):
            BM25.open(left)
    assert len(BM25.build(HENS, tmp_path / "index")) == 3


def test_streaming_holds_no_passages(tmp_path: Path) -> None:
    """While a folder is built, each passage is dropped before the next but one is made."""
    alive: list[int] = []

    def passages() -> Iterator[Passage]:
        class Watched(Passage):
            __slots__ = ("__weakref__",)

        made = weakref.WeakSet[Passage]()
        for n in range(20):
            passage = Watched(str(n), "Hen", f"hen {n}")
            made.add(passage)
            yield passage
            del passage
            gc.collect()
            alive.append(len(made))

    gc.freeze()  # what is there already need not be looked through twenty times
    BM25.build(passages(), tmp_path / "index")
    assert max(alive) <= 2


def test_open_refuses_another_kind(tmp_path: Path) -> None:
    BM25.build(HENS, tmp_path / "index")
    manifest = tmp_path / "index" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"bm25"', '"dense"', 1))
    with pytest.raises(BadData, match="is of kind 'dense', not 'bm25': use open_index"):
        BM25.open(tmp_path / "index")


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
