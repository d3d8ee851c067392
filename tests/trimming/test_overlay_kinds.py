"""The overlay over every kind of index: the same passages less what is dropped; served, journaled, end to end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dspy
import pytest
from checkpoints import minilm_package, tiny_bert, tiny_colbert
from index_server import served
from judged import AGAIN, PIER, RADIO, WHO_OFF, WHO_ON, Village, village
from witnessed import ids, witnesses_of

from blendfilter.context import JOURNAL, setting
from blendfilter.filters.cdit.judge import Judge
from blendfilter.journal import Journal
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever, cut_of
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.dense import Dense
from blendfilter.retrieval.hybrid import Hybrid
from blendfilter.retrieval.indexes import build, open_index
from blendfilter.trimming.by_vector import ByVector
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.gathering import trim
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.witnesses import Witnesses

MORE = [Passage(f"m{number}", f"Mill {number}", f"The mill {number} stands by the radio.") for number in range(25)]
PASSAGES = [*RADIO, *MORE]
K = 4
Maker = Callable[[Path, ExitStack], Retriever]


def engine(name: str, **settings: Any) -> Maker:
    def make(folder: Path, _: ExitStack) -> Retriever:
        extra = {key: value() if callable(value) else value for key, value in settings.items()}
        build(name, PASSAGES, folder / "index", **extra)
        return open_index(folder / "index")

    return make


def remote(folder: Path, stack: ExitStack) -> Retriever:
    return open_index(stack.enter_context(served(build("bm25", PASSAGES))).url)


def function(folder: Path, _: ExitStack) -> Retriever:
    index = build("bm25", PASSAGES)
    return as_retriever(lambda query, k: index.find([query], k)[0], fingerprint="0123456789abcdef")


KINDS: dict[str, Maker] = {
    "bm25": engine("bm25"),
    "rank-bm25": engine("rank-bm25"),
    "colbert": engine("colbert", checkpoint=tiny_colbert),
    "dense-flat": engine("dense", encoder=tiny_bert),
    "dense-hnsw": engine("dense", encoder=tiny_bert, index="hnsw"),
    "dense-ivf": engine("dense", encoder=tiny_bert, index="ivf", nlist=2, nprobe=2),
    "hybrid": lambda folder, stack: Hybrid([build("bm25", PASSAGES), build("rank-bm25", PASSAGES)]),
    "remote": remote,
    "function": function,
}


@pytest.fixture(scope="module", params=KINDS)
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield KINDS[request.param](tmp_path_factory.mktemp(request.param), stack)


@pytest.fixture
def judged(index: Retriever) -> Witnesses:
    """Of what the index finds for the question, the last is accepted, the first and the third are rejected."""
    found = ids(index.find([WHO_ON], K)[0])
    assert len(found) == K
    return witnesses_of({WHO_ON: {found[0]: False, found[1]: None, found[2]: False, found[3]: True}})


def test_rejected_ones_go_and_others_follow(index: Retriever, judged: Witnesses) -> None:
    trimmed = Trimmed(index, judged, threshold=1)
    bare = index.search([WHO_ON], K + 2)[0]
    found = trimmed.search([WHO_ON], K)[0]
    assert found == [bare[1], *bare[3:6]]  # with their scores
    assert trimmed.search([WHO_ON, PIER, WHO_OFF], K) == [found, *index.search([PIER, WHO_OFF], K)]
    told = trimmed.explain(WHO_ON, K)
    assert list(told.passages) == found
    assert [(each.passage.id, each.rank, each.kept) for each in told.dropped] == [
        (bare[0].id, 1, bare[3].id),
        (bare[2].id, 3, bare[3].id),
    ]
    assert trimmed.fingerprint != index.fingerprint
    assert trimmed.info()["index"]["fingerprint"] == index.fingerprint


def test_at_another_threshold_it_is_the_index(index: Retriever, judged: Witnesses) -> None:
    trimmed = Trimmed(index, judged, threshold=2)
    assert trimmed.fingerprint == index.fingerprint
    assert trimmed.search([WHO_ON, PIER], K) == index.search([WHO_ON, PIER], K)


def test_served_it_gives_what_it_gives_here(index: Retriever, judged: Witnesses) -> None:
    trimmed = Trimmed(index, judged, threshold=1)
    with served(trimmed) as server:
        there = open_index(server.url)
        assert there.fingerprint == trimmed.fingerprint
        assert there.info()["of"] == "trimmed"
        assert there.search([WHO_ON, PIER], K) == trimmed.search([WHO_ON, PIER], K)


def test_journaled_and_replayed(index: Retriever, judged: Witnesses, tmp_path: Path) -> None:
    trimmed = Trimmed(index, judged, threshold=1)
    with Journal(tmp_path) as journal, setting(JOURNAL, journal):
        bare, live = index.search([WHO_ON], K), trimmed.search([WHO_ON], K)
    with Journal(tmp_path, "replay") as journal, setting(JOURNAL, journal):
        assert (index.search([WHO_ON], K), trimmed.search([WHO_ON], K)) == (bare, live)
    assert ids(bare[0]) != ids(live[0])


def test_a_server_that_gives_few_is_not_asked_for_more() -> None:
    from blendfilter.server.exchange import ServerLimits

    bare = build("bm25", PASSAGES)
    found = ids(bare.find([WHO_ON], K)[0])
    witnesses = witnesses_of({WHO_ON: {found[0]: True, found[1]: False}})
    with served(bare, limits=ServerLimits(max_k=K)) as server:
        trimmed = Trimmed(open_index(server.url), witnesses, threshold=1)
        assert ids(trimmed.search([WHO_ON], K)[0]) == [found[0], *found[2:]]


def test_a_server_behind_a_hybrid_is_not_asked_for_more_either() -> None:
    from blendfilter.server.exchange import ServerLimits

    bare = build("bm25", PASSAGES)
    found = ids(bare.find([WHO_ON], K)[0])
    witnesses = witnesses_of({WHO_ON: {found[0]: True, found[1]: False}})
    with served(bare, limits=ServerLimits(max_k=K)) as server:
        for index in (Hybrid([open_index(server.url), bare], depth=1), Trimmed(open_index(server.url), Witnesses())):
            trimmed = Trimmed(index, witnesses, threshold=1)
            assert ids(trimmed.search([WHO_ON], K)[0]) == [found[0], *found[2:]]


def test_a_trimmed_dense_index_says_that_there_are_no_more() -> None:
    dense = Dense.build(PASSAGES, encoder=tiny_bert())
    trimmed = Trimmed(dense, witnesses_of({WHO_ON: {PASSAGES[0].id: False, PASSAGES[1].id: True}}), threshold=1)
    with pytest.warns(UserWarning, match=f"k={len(PASSAGES) + 1} is more than the corpus holds"):
        trimmed.search([PIER], len(PASSAGES) + 1)
    again = Trimmed(Dense.build(PASSAGES, encoder=tiny_bert()), trimmed.witnesses, threshold=1)
    with pytest.warns(UserWarning, match=f"k={len(PASSAGES) + 1} is more than the corpus holds"):
        assert len(again.search([WHO_ON], len(PASSAGES) + 1)[0]) == len(PASSAGES) - 1


def test_a_dense_index_encodes_a_query_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = Dense.build(PASSAGES, encoder=tiny_bert())
    found = ids(dense.find([WHO_ON], K)[0])
    trimmed = Trimmed(dense, witnesses_of({WHO_ON: {found[0]: False, found[1]: True}}), threshold=1)
    assert isinstance(trimmed.similar, ByVector)
    encoded: list[list[str]] = []
    encode = dense.encoder.encode_queries

    def counted(queries: Any) -> Any:
        encoded.append(list(queries))
        return encode(queries)

    monkeypatch.setattr(dense.encoder, "encode_queries", counted)
    assert ids(trimmed.search([WHO_ON, PIER], K)[0])[0] == found[1]
    trimmed.explain(WHO_ON, K)
    assert encoded == [[WHO_ON, PIER], [WHO_ON]]


def test_a_query_that_an_encoder_cuts_is_flagged() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of passages that are cut
        dense = Dense.build(PASSAGES, encoder=tiny_bert(), max_length=16)
    long = "Who turned on the radio in the kitchen of the castle by the sea?"
    with pytest.warns(UserWarning, match="was cut"):
        (found,) = dense.find([long], K)
    trimmed = Trimmed(dense, witnesses_of({long: {found[0].id: False, found[1].id: True}}), threshold=1)
    hits, others = trimmed.find([long, "the sea"], K)
    assert (hits[0], cut_of(hits), cut_of(others)) == (found[1], True, False)


def test_the_radio_end_to_end(tmp_path: Path, fresh_dspy: None) -> None:
    """A judge's one question, at threshold 1: its paraphrase is trimmed without a call, and no other question is."""
    index = village()
    place = tmp_path / "village.trimmed"
    folder = TrimFolder.create(index, place, k=5, threshold=1)
    lamp = "Which lamp and radio does the kitchen of the village have?"
    for question in (WHO_ON, AGAIN, WHO_OFF, lamp):
        assert {"on", "off"} <= set(ids(index(question, k=3)))
    judge = Village()
    trim(index, [WHO_ON], Judge(), folder, lm=judge.lm())
    asked = len(judge.asked)
    assert asked > 0
    trimmed = Trimmed(index, Witnesses.read(folder.witnesses), threshold=1)
    with dspy.context(lm=judge.lm()):
        found = ids(trimmed(AGAIN, k=3))
        assert "on" in found
        assert "off" not in found
        assert {"on", "off"} <= set(ids(trimmed(lamp, k=3)))
        assert {"on", "off"} <= set(ids(trimmed(WHO_OFF, k=3)))
    assert len(judge.asked) == asked
    again = trim(index, [AGAIN], Judge(), folder, lm=judge.lm())
    assert (again.reused, again.calls, len(judge.asked)) == (1, 0, asked)


def test_vectors_call_opposites_neighbours_and_the_guard_does_not() -> None:
    """CDIT's own problem, with a real encoder: the opposite question is as near as a paraphrase."""
    index = Dense.build(PASSAGES, encoder=minilm_package())
    witnesses = witnesses_of({WHO_ON: {"on": True, "off": False}})
    trimmed, unguarded = (Trimmed(index, witnesses, threshold=1, guard=guard) for guard in (True, False))
    near = trimmed.similar.nearest([WHO_OFF])[0]
    assert near is not None
    assert near.similarity > trimmed.min_similarity
    assert "off" not in ids(trimmed("Who turned the radio on in the kitchen?", k=3))
    assert "off" in ids(trimmed(WHO_OFF, k=3))
    assert "off" not in ids(unguarded(WHO_OFF, k=3))
