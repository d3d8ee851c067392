"""By name: engines that build, kinds that open, and several indexes as one by reciprocal rank fusion.

The worked example, constant 60. One index ranks A B C, the other C A D.
A: 1/61 + 1/62 = 0.0163934 + 0.0161290 = 0.0325225.   C: 1/63 + 1/61 = 0.0158730 + 0.0163934 = 0.0322665.
B: 1/62 = 0.0161290.   D: 1/63 = 0.0158730.   So: A C B D.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.context import setting
from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName
from blendfilter.journal import Journal
from blendfilter.modules.base import union
from blendfilter.records import Passage
from blendfilter.retrieval import indexes
from blendfilter.retrieval.base import Hits, Retriever, cut_of, fingerprint_of
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.hybrid import Hybrid, fuse, open_indexes
from blendfilter.retrieval.indexes import open_index, register_kind

CORPUS = [Passage("1", "Fell", "A hill."), Passage("2", "Ormskerry", "A harbour town.")]


@pytest.fixture(autouse=True)
def kinds() -> Iterator[None]:
    before = dict(indexes.KINDS)
    yield
    indexes.KINDS.clear()
    indexes.KINDS.update(before)


def test_an_unknown_kind_opens_once_it_is_registered(tmp_path: Path) -> None:
    BM25.build(CORPUS, tmp_path / "index")
    manifest = tmp_path / "index" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"bm25"', '"bm25+"', 1))
    with pytest.raises(UnknownName, match=r"no kind of index 'bm25\+'. Did you mean 'bm25'.*: register_kind adds one"):
        open_index(tmp_path / "index")
    register_kind("bm25+", lambda where: as_retriever(lambda query, k: [f"{where} | {query}"]))
    assert open_index(tmp_path / "index")("q")[0].title == str(tmp_path / "index")


def test_addresses_go_by_scheme() -> None:
    with pytest.raises(UnknownName, match=r"no kind of address 'ftp'.*at ftp://localhost:9/wiki"):
        open_index("ftp://localhost:9/wiki")
    register_kind("ftp", lambda where: as_retriever(lambda query, k: [where]))
    assert open_index("ftp://localhost:9/wiki")("q")[0].text == "ftp://localhost:9/wiki"


def test_what_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no index at"):
        open_index(tmp_path / "gone")
    for address in ("localhost:8893", "me:s3cret@localhost:8893"):
        with pytest.raises(MissingFile, match=r"at localhost:8893: if a server is meant, write http://host:port$"):
            open_index(address)
    with pytest.raises(BadData, match="is not an index"):
        open_index(tmp_path)


HENS = [Passage("p1", "", "red red fox"), Passage("p2", "", "red hen"), Passage("p3", "", "blue hen dog egg")]


def named(names: str) -> list[Passage]:
    return [Passage(name, "", f"text {name}") for name in names]


def ids(passages: Sequence[Passage]) -> list[str]:
    return [passage.id for passage in passages]


class Fixed(Retriever):
    """An index that always answers the same, keeps what it was asked, and may say that it cut."""

    def __init__(self, names: str, cut: bool = False) -> None:
        self.hits = Hits(named(names), cut=cut)
        self.searches: list[tuple[list[str], int]] = []
        self.fingerprint = fingerprint_of("fixed", names)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.searches.append((list(queries), k))
        return [Hits(self.hits[:k], cut=self.hits.cut) for _ in queries]


def test_the_worked_example() -> None:
    found = Hybrid([Fixed("ABC"), Fixed("CAD")])("q", k=4)
    assert ids(found) == ["A", "C", "B", "D@2"]
    assert [p.score for p in found] == pytest.approx([0.0325225, 0.0322665, 0.0161290, 0.0158730], abs=1e-7)


def test_each_index_is_searched_as_deep_as_the_hits_that_are_wanted() -> None:
    """A depth below k: the ten hits come from rankings of ten, not of two."""
    letters = "ABCDEFGHIJ"
    index = Hybrid([Fixed(letters), Fixed(letters)], depth=2)
    assert ids(index("q", k=10)) == [*letters]
    assert [member.searches for member in index.indexes] == [[(["q"], 10)], [(["q"], 10)]]  # type: ignore[attr-defined]


def test_a_passage_that_one_ranking_holds_twice_counts_at_its_better_place() -> None:
    """a: 1/61 + 1/62. b: 1/62 + 1/61, and nothing for its third place in the first ranking."""
    a, b = named("AB")
    found = fuse([[a, b, b], [b, a]], 2, 60, lambda passage: passage.id)
    assert [(p.id, p.score) for p in found] == [("A", 1 / 61 + 1 / 62), ("B", 1 / 61 + 1 / 62)]


def test_over_one_corpus_ids_say_what_is_the_same() -> None:
    """Two passages with equal words are two, for their ids differ and both indexes mean the same by them."""
    twins = [Passage("1", "", "hen"), Passage("2", "", "hen")]
    index = Hybrid([BM25.build(twins), BM25.build(twins, b=0.5)])
    assert ids(index("hen", k=2)) == ["1", "2"]
    assert len(index) == 2


def test_over_several_corpora_words_say_what_is_the_same() -> None:
    left = [Passage("1", "Fell", "A hen on a hill."), Passage("2", "Hen", "A bird.")]
    right = [Passage("1", "Hen", "Not the same hen."), Passage("x", "FELL", "a  hen on a HILL.")]
    index = Hybrid([BM25.build(left), BM25.build(right)])
    found = index("a hen on a hill", k=4)
    assert found[0].text == "A hen on a hill.", "the first index' copy of what both hold"
    assert found[0].score == pytest.approx(2 / 61)
    assert [p.text for p in found].count("Not the same hen.") == 1
    assert len(found) == 3
    with pytest.raises(TypeError, match="does not know how many"):
        len(index)


def test_over_several_corpora_an_id_names_one_passage() -> None:
    """Corpora without ids are numbered from 0: a method that joins the hits of two queries by id must lose none."""
    left = BM25.build([Passage("0", "", "red fox in the wood"), Passage("1", "", "red hen on a farm")])
    right = BM25.build([Passage("0", "", "a red lighthouse tower"), Passage("1", "", "blue sea whale")])
    index = Hybrid([left, right])
    found = union(index.search(["red", "whale"], 4))
    assert ids(found) == ["0", "0@2", "1", "1@2"]
    assert len({p.text for p in found}) == 4
    same = Hybrid([left, BM25.build(list(left.passages), k1=2.0)])
    assert ids(same("red", 2)) == ["0", "1"], "one corpus: its ids as they are"


def test_cut_where_any_index_cut() -> None:
    notes: list[object] = []
    with setting(notes=notes):
        assert cut_of(Hybrid([Fixed("A"), Fixed("B", cut=True)])("q", k=1))
    assert len(notes) == 1, "noted once, by the hybrid"
    assert not cut_of(Hybrid([Fixed("A"), Fixed("B")])("q", k=1))


def test_a_journal_keeps_one_record_of_a_query(tmp_path: Path) -> None:
    index = Hybrid([BM25.build(HENS), Fixed("AB")])
    with Journal(tmp_path) as journal, setting(journal=journal):
        first = index("red", 3)
        assert index("red", 3) == first
        records = [record for record in journal.records() if record["kind"] == "search"]
    assert [(record["fingerprint"], record["query"]) for record in records] == [(index.fingerprint, "red")]
    assert len(index.indexes[1].searches) == 1  # type: ignore[attr-defined]


def test_the_fingerprint_changes_with_what_changes_results() -> None:
    a, b = Fixed("A"), Fixed("B")
    same = {Hybrid([a, b]).fingerprint, Hybrid((a, b), constant=60.0, depth=100).fingerprint}
    others = [Hybrid([b, a]), Hybrid([a, b], constant=30), Hybrid([a, b], depth=10), Hybrid([a, b, a])]
    assert len(same) == 1
    assert len({index.fingerprint for index in others} | same) == len(others) + 1


@pytest.mark.parametrize(
    ("members", "settings", "message"),
    [
        (1, {}, "a hybrid joins at least two indexes, got 1"),
        (2, {"constant": -1}, "must be 0 or more, got -1"),
        (2, {"constant": float("nan")}, "must be 0 or more, got nan"),
        (2, {"depth": 0}, "depth is 0: give a whole number of 1 or more"),
    ],
)
def test_bad_hybrids(members: int, settings: dict[str, float], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        Hybrid([Fixed("A")] * members, **settings)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="k is 0: give a whole number of 1 or more"):
        Hybrid([Fixed("A")] * 2)("q", k=0)


def test_one_location_is_its_index_and_several_are_a_hybrid(tmp_path: Path) -> None:
    BM25.build(HENS, tmp_path / "a")
    BM25.build(HENS, tmp_path / "b", k1=2.0)
    assert isinstance(open_indexes([tmp_path / "a"]), BM25)
    both = open_indexes([str(tmp_path / "a"), tmp_path / "b"])
    assert isinstance(both, Hybrid)
    assert ids(both("red", k=2)) == ["p1", "p2"]
    with pytest.raises(MissingFile, match="no index at"):
        open_indexes([tmp_path / "a", tmp_path / "c"])
    with pytest.raises(BadArgument, match="no index named"):
        open_indexes([])


RANKINGS = st.lists(st.lists(st.sampled_from("ABCDEFGH"), unique=True), min_size=2, max_size=4)


@given(RANKINGS, st.integers(1, 9))
def test_fusion_loses_nothing_and_orders_by_the_sum(rankings: list[list[str]], k: int) -> None:
    found = fuse([named("".join(ranking)) for ranking in rankings], k, 60, lambda passage: passage.id)
    kept = {name for ranking in rankings for name in ranking}
    scores = [passage.score or 0 for passage in found]
    assert len(found) == min(k, len(kept)) == len(set(ids(found)))
    assert scores == sorted(scores, reverse=True)
    for passage in found:
        expected = sum(1 / (61 + ranking.index(passage.id)) for ranking in rankings if passage.id in ranking)
        assert passage.score == pytest.approx(expected)
