"""The overlay: what a search drops, by its definition; fingerprints, explanations; over every kind of index."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from checkpoints import tiny_bert, tiny_colbert
from hypothesis import given, settings
from hypothesis import strategies as st
from index_server import served
from judged import PIER, WHO_OFF, WHO_ON
from judged import RADIO as VILLAGE
from witnessed import Written, ids, judge, witnesses_of

from blendfilter.context import setting
from blendfilter.journal import Journal
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever, cut_of, trim_of
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.dense import Dense
from blendfilter.retrieval.hybrid import Hybrid
from blendfilter.retrieval.indexes import build, open_index
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.similar import ByVector, ByWords
from blendfilter.trimming.witnesses import Witnesses, undone_line

ON, OFF = "Who turned on the radio?", "Who turned off the radio?"
RADIO = {ON: {"jack": True, "mary": False}}


def by_definition(ranking: Sequence[str], k: int, own: bool, known: Mapping[str, bool | None], pairs: Mapping[tuple[str, str], int], threshold: int) -> list[str]:  # fmt: skip # noqa: E501
    """Straight from the definition: every head of the ranking in turn, and in it every pair.

    `known`: the verdicts of the one judged question that applies. `pairs`: how many witnesses count where the first of
    the two is accepted.
    """
    left: list[str] = []
    for m in range(len(ranking) + 1):
        head = ranking[:m]
        gone = {b for b in head if own and known.get(b) is False}
        gone |= {
            b
            for a, b in product(head, head)
            if known.get(a) is True and known.get(b) is not True and pairs.get((a, b), 0) >= threshold
        }
        left = [each for each in head if each not in gone]
        if len(left) >= k:
            break
    return left[:k]


NAMES = [f"p{number}" for number in range(12)]
QUESTIONS = [f"What is the {word} of the harbour?" for word in ("depth", "name", "age", "owner")]
TURNED = {
    f"What of the harbour is the {word}?": question
    for question, word in zip(QUESTIONS, ("depth", "name", "age", "owner"), strict=True)
}
"""The same words in another order, so as near as can be, and not the same question."""
verdicts = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([True, False, False, None]), max_size=8)


@settings(max_examples=300)
@given(
    judged=st.dictionaries(st.sampled_from(QUESTIONS), verdicts, max_size=4),
    rankings=st.tuples(*[st.permutations(NAMES) for _ in [*QUESTIONS, *TURNED]]),
    length=st.integers(0, 12),
    k=st.integers(1, 13),
    threshold=st.integers(1, 3),
    indexed=st.booleans(),
    one_way=st.booleans(),
    refill=st.booleans(),
)
def test_a_search_is_its_definition(
    judged: dict[str, dict[str, bool | None]], rankings: tuple[list[str], ...], length: int, k: int, threshold: int,
    indexed: bool, one_way: bool, refill: bool,
) -> None:  # fmt: skip
    asked = [*QUESTIONS, *TURNED]
    written = {question: found[:length] for question, found in zip(asked, rankings, strict=True)}
    index = Written({**written, "": rankings[0][:length]}, known=indexed)
    witnesses = witnesses_of(judged)
    pairs: Counter[tuple[str, str]] = Counter()
    for found in judged.values():
        for a, b in product(found, found):
            if found[a] is True and found[b] is False:
                pairs.update([(a, b)] if one_way else [(a, b), (b, a)])
    trimmed = Trimmed(index, witnesses, threshold=threshold, one_way=one_way, refill=refill)
    reached = {frozenset(pair) for pair, count in pairs.items() if count >= threshold}
    rejects = any(False in found.values() for found in judged.values())
    assert {frozenset(each.pair) for each in witnesses.separated(threshold, one_way=one_way)} == reached
    assert trimmed.info()["witnesses"]["reached"] == (len(reached) if rejects else 0)
    assert (trimmed.fingerprint == index.fingerprint) == (not rejects)
    sent = [*asked, "Was it raining yesterday?"]
    found = trimmed.find(sent, k)
    assert found == [trimmed.find([query], k)[0] for query in sent]
    for query, passages in zip(sent, found, strict=True):
        bare = index.rankings.get(query, index.rankings[""])
        known = judged.get(TURNED.get(query, query), {})
        near = {name for name in bare[:k] if known.get(name) is not None}
        known = known if query in judged or near else {}
        reading = len(bare) if refill else k
        assert ids(passages) == by_definition(bare[:reading], k, query in judged, known, pairs, threshold)
        # what follows from it
        places = [bare.index(name) for name in ids(passages)]
        assert places == sorted(set(places))
        assert {name for name in bare[:k] if known.get(name)} <= set(ids(passages)), "what was accepted stays"
        if query in judged:
            assert not {name for name in ids(passages) if known.get(name) is False}, "its own verdict counts at once"
        explained = trimmed.explain(query, k)
        assert explained.passages == passages
        dropped = {each.passage.id for each in explained.dropped}
        assert all(len(each.witnesses) == pairs[each.kept, each.passage.id] for each in explained.dropped if each.kept)
        if refill:
            assert len(passages) == min(k, len(bare) - len(dropped))
        trim = trim_of(passages)
        if not dropped:
            assert trim is None
            assert passages == index.find([query], k)[0]
        else:
            assert trim is not None
            assert trim.dropped == {each.passage.id: each.kept for each in explained.dropped}
            assert list(trim.refilled) == [name for name in ids(passages) if name not in bare[:k]]
            assert set(trim.unjudged) == {name for name in trim.refilled if known.get(name) is None}
        stricter = Trimmed(index, witnesses, threshold=threshold + 1, one_way=one_way).explain(query, len(NAMES))
        assert {each.passage.id for each in stricter.dropped} <= {
            each.passage.id
            for each in Trimmed(index, witnesses, threshold=threshold, one_way=one_way)
            .explain(query, len(NAMES))
            .dropped
        }


RADIO_ON, RADIO_OFF = Passage("s1", "", "Mary turned off the radio."), Passage("s2", "", "Jack turned on the radio.")


def test_figure_8_of_the_paper(figure_8: Retriever) -> None:
    """Judged once, at defaults: q and q1 get s_2 alone, and the opposite question is not misled."""
    judged = witnesses_of({ON: {name: name == "s2" for name in ids(figure_8.find([ON], K)[0])}})
    trimmed = Trimmed(figure_8, judged)
    for question in (
        ON,
        "Please tell me who turned on the radio.",
        "who turned on the radio",
        "Who turned the radio on?",
    ):
        assert ids(trimmed.search([question], K)[0]) == ["s2"], question
    for question in (OFF, "Please tell me who turned off the radio."):
        assert trimmed.search([question], K) == figure_8.search([question], K)


def test_judged_questions_that_are_near_vote_and_one_that_is_the_query_decides_alone() -> None:
    index = Written({"": ["a", "b", "c", "d"]})
    wordings = ["Who built the mill?", "Please tell me who built the mill.", "Could you tell me who built the mill?"]
    witnesses = witnesses_of({
        wordings[0]: {"a": True, "b": False, "c": True, "d": False},
        wordings[1]: {"a": True, "b": True, "c": False, "d": False},
        wordings[2]: {"a": True, "b": False, "c": False, "d": True},
    })  # fmt: skip
    trimmed = Trimmed(index, witnesses, refill=False)
    assert [ids(found) for found in trimmed.find(wordings, 4)] == [["a", "c"], ["a", "b"], ["a", "d"]]
    assert ids(trimmed.find(["who built the mill"], 4)[0]) == ["a"], "two of three rejected each of the others"
    assert ids(trimmed.find(["The mill, who built it?"], 4)[0]) == ["a", "b", "c", "d"]
    even = Trimmed(index, witnesses_of({wordings[0]: {"a": True, "b": False}, wordings[1]: {"a": True, "b": True}}))
    assert ids(even.find(["Who built the mill, please?"], 4)[0]) == ["a", "b", "c", "d"], "a draw drops nothing"


def test_what_was_undone_drops_nothing() -> None:
    """A pair that is undone overrules the verdict that made it; another pair of the same passage still counts."""
    index = Written({"": ["a", "b", "c"]})
    witnesses = witnesses_of({ON: {"a": True, "b": False, "c": True}})
    witnesses.apply(undone_line(pair=("a", "b")))
    assert ids(Trimmed(index, witnesses).find([ON], 3)[0]) == ["a", "c"]
    witnesses.apply(undone_line(pair=("b", "c")))
    assert Trimmed(index, witnesses).find([ON], 3) == index.find([ON], 3)
    assert Trimmed(index, witnesses).fingerprint == index.fingerprint


@pytest.mark.parametrize("found", [{"b": False, "a": True, "c": True}, {"a": True, "b": False, "c": True}])
def test_by_algorithm_1_an_undone_pair_overrules_a_verdict_too(found: dict[str, bool]) -> None:
    """The pairs that count are enough; a passage above all accepted ones has none, so there all of Theorem 1's."""
    index, witnesses = Written({"": list(found)}), witnesses_of({ON: found}, "algorithm")
    assert ids(Trimmed(index, witnesses).find([ON], 3)[0]) == ["a", "c"]
    witnesses.apply(undone_line(pair=("a", "b")))
    if next(iter(found)) == "b":
        assert ids(Trimmed(index, witnesses).find([ON], 3)[0]) == ["a", "c"], "b and c are still apart"
        witnesses.apply(undone_line(pair=("b", "c")))
    assert Trimmed(index, witnesses).find([ON], 3) == index.find([ON], 3)
    assert Trimmed(index, witnesses).fingerprint == index.fingerprint
    with pytest.raises(ValueError, match="a pair without witnesses"):
        witnesses.apply(undone_line(pair=("a", "b")))


def test_half_a_character_in_a_question_is_no_other_question() -> None:
    asked = "Who turned on the \ud83d radio?"
    trimmed = Trimmed(Written({"": ["mary", "jack"]}), witnesses_of({asked: {"mary": False, "jack": None}}))
    assert ids(trimmed.find([asked], 2)[0]) == ["jack"]


def test_line_11_of_algorithm_1_separates_from_what_was_accepted_before() -> None:
    verdicts = {ON: {"s1": False, "s2": True, "s3": False}}
    assert witnesses_of(verdicts, "algorithm").witnesses_of("s2", "s3")
    assert not witnesses_of(verdicts, "algorithm").witnesses_of("s2", "s1"), "it stood above all accepted ones"
    assert witnesses_of(verdicts).witnesses_of("s2", "s1")
    index = Written({"": ["s1", "s2", "s3"]})
    aside = "Who on turned the radio?"
    assert ids(Trimmed(index, witnesses_of(verdicts, "algorithm")).find([aside], 3)[0]) == ["s1", "s2"]
    assert ids(Trimmed(index, witnesses_of(verdicts)).find([aside], 3)[0]) == ["s2"]


def test_the_guard_is_what_keeps_the_opposite_question_apart() -> None:
    index, witnesses = Written({"": ["mary", "jack", "ann"]}), witnesses_of(RADIO)
    loose = Trimmed(index, witnesses, threshold=1, min_similarity=0.3)
    assert ids(loose.search([OFF], 2)[0]) == ["mary", "jack"]
    unguarded = Trimmed(index, witnesses, threshold=1, min_similarity=0.3, guard=False)
    assert ids(unguarded.search([OFF], 2)[0]) == ["jack", "ann"]
    assert loose.fingerprint != unguarded.fingerprint


MILL, WEIR, FORD = "Who built the mill of Ormskerry?", "How deep is the weir?", "Which ford floods in March?"
DISAGREEING = {MILL: {"a": True, "b": False}, WEIR: {"a": True, "b": False}, FORD: {"b": True, "a": False}}


def test_the_index_is_asked_once_a_depth_and_never_deeper_than_it_goes() -> None:
    index = Written({"": ["mary", "jack", *NAMES]})
    trimmed = Trimmed(index, witnesses_of(RADIO), threshold=1)
    trimmed.find(["a pier", ON, "a mill", ON], 3)
    assert index.searches == [(("a pier", ON, "a mill", ON), 3), ((ON,), 4), ((ON,), 4)]
    index.searches.clear()
    trimmed.find([ON], 14)
    assert index.searches == [((ON,), 14)]


def test_a_server_that_gives_no_more_is_not_asked_for_more() -> None:
    index = Written({"": ["mary", "jack", "ann", "bob"]})
    index.max_k = 2  # type: ignore[attr-defined]
    trimmed = Trimmed(index, witnesses_of(RADIO), threshold=1)
    assert ids(trimmed.find([ON], 2)[0]) == ["jack"]
    assert index.searches == [((ON,), 2)]


def test_a_cut_query_stays_flagged() -> None:
    index = Written({"": ["mary", "jack", "ann"]}, cut=True)
    found = Trimmed(index, witnesses_of(RADIO), threshold=1).find([ON, "a pier"], 2)
    assert [ids(each) for each in found] == [["jack", "ann"], ["mary", "jack"]]
    assert all(map(cut_of, found))


class OtherWords(ByWords):
    """A measure of the same name that counts in another way, as vectors of another encoder do."""

    identity = "k1=2 b=0"


def test_fingerprints_tell_states_apart_and_undoing_gives_the_old_one_back() -> None:
    index, witnesses = Written({"": ["mary", "jack"]}), witnesses_of({**RADIO, "Is it on?": {"a": True, "b": False}})
    states = [
        Trimmed(index, witnesses, threshold=1),
        Trimmed(index, witnesses, threshold=1, min_similarity=0.5),
        Trimmed(index, witnesses, threshold=1, guard=False),
        Trimmed(index, witnesses, threshold=1, one_way=False),
        Trimmed(index, witnesses, threshold=1, refill=False),
        Trimmed(index, witnesses, threshold=1, similar=OtherWords()),
        Trimmed(index, witnesses_of(RADIO), threshold=1),
        Trimmed(Written({"": ["jack"]}), witnesses, threshold=1),
    ]
    names = [each.fingerprint for each in states]
    assert len({*names, index.fingerprint}) == len(names) + 1
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in names)
    assert Trimmed(index, witnesses, threshold=1).fingerprint == names[0]
    witnesses.apply(undone_line())
    assert Trimmed(index, witnesses, threshold=1).fingerprint == index.fingerprint


def test_an_open_index_does_not_change_under_a_search() -> None:
    """A `Trimmed` goes on as it was opened, as its fingerprint says, whatever is written to the state meanwhile."""
    index, witnesses = Written({"": ["mary", "jack", "ann"]}), witnesses_of(RADIO)
    trimmed, name = Trimmed(index, witnesses, threshold=1), Trimmed(index, witnesses, threshold=1).fingerprint
    judge(witnesses, "Who turned the radio on?", {"ann": True, "jack": False})
    assert ids(trimmed.find([ON], 2)[0]) == ["jack", "ann"]
    witnesses.apply(undone_line())
    assert ids(trimmed.find([ON], 2)[0]) == ["jack", "ann"]
    assert trimmed.fingerprint == name


def test_two_states_share_no_search_record(tmp_path: Path) -> None:
    index, witnesses = Written({"": ["mary", "jack", "ann"]}), witnesses_of(RADIO)
    with Journal(tmp_path) as journal, setting(journal=journal):
        bare = index.search([ON], 2)
        trimmed = Trimmed(index, witnesses, threshold=1).search([ON], 2)
        sent = len(index.searches)
        again = Trimmed(index, witnesses, threshold=1).search([ON], 2)
        witnesses.apply(undone_line())
        undone = Trimmed(index, witnesses, threshold=1).search([ON], 2)
        assert len(index.searches) == sent  # both came out of the journal: the undone state has the index's records
        searches = [record for record in journal.records() if record["kind"] == "search"]
    assert ids(bare[0]) == ids(undone[0]) == ["mary", "jack"]
    assert ids(trimmed[0]) == ids(again[0]) == ["jack", "ann"]
    assert len({record["fingerprint"] for record in searches}) == len(searches) == 2


def test_explaining_what_was_dropped() -> None:
    index, witnesses = Written({"": ["mary", "ann", "jack", "bob"]}), witnesses_of(RADIO)
    trimmed = Trimmed(index, witnesses, threshold=1)
    explained = trimmed.explain("Who turned the radio on?", 3)
    assert list(explained.passages) == trimmed.find(["Who turned the radio on?"], 3)[0]
    (dropped,) = explained.dropped
    assert (dropped.passage.id, dropped.rank, dropped.kept) == ("mary", 1, "jack")  # another order: a question near it
    assert (dropped.judged, dropped.similarity) == (ON, 1.0)
    assert dropped.witnesses == witnesses.witnesses_of("jack", "mary")
    assert explained.lines() == [
        "dropped mary (rank 1): Title mary | Text of mary.",
        "  the judged question 'Who turned on the radio?' (1.00 near) accepted jack",
        "  1 witness: 'Who turned on the radio?'",
        "filled in bob: not judged for such a question",
    ]
    assert trimmed.explain("Please tell me who turned on the radio.", 3).lines() == [
        "dropped mary (rank 1): Title mary | Text of mary.",
        "  rejected for the judged question 'Who turned on the radio?', which this one is",
        "filled in bob: not judged for such a question",
    ]


def test_an_explanation_names_a_question_that_voted_so() -> None:
    """Of several that are equally near, the first may have voted otherwise, or not at all."""
    index = Written({"": ["mary", "jack", "ann"]})
    wordings = [ON, "Please tell me who turned on the radio.", "Could you tell me who turned on the radio?"]
    for first in wordings:
        votes = {each: {"mary": each == first, "jack": True, "ann": True} for each in wordings}
        explained = Trimmed(index, witnesses_of(votes)).explain("I'd like to know who turned on the radio.", 3)
        (dropped,) = explained.dropped
        assert dropped.judged in set(wordings) - {first}
    turned = "Who turned the radio on?"
    for silent, loud in ((ON, turned), (turned, ON)):
        witnesses = witnesses_of({silent: {"mary": False}, loud: {"mary": False, "jack": True}})
        (dropped,) = Trimmed(index, witnesses).explain("Who on the radio turned?", 3).dropped
        assert (dropped.kept, dropped.judged) == ("jack", loud)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("Who painted the harbour?", r"the nearest judged question is not near enough \(0\.\d\d of 0\.95\)"),
        (ON, "all that was found is accepted"),
    ],
)
def test_explaining_why_nothing_was_dropped(query: str, why: str) -> None:
    explained = Trimmed(Written({"": ["ann", "jack"]}), witnesses_of(RADIO), threshold=1).explain(query, 3)
    assert ids(explained.passages) == ["ann", "jack"]
    (line,) = explained.lines()
    assert re.fullmatch(f"nothing was dropped: {why}", line), line


MORE = [Passage(f"m{number}", f"Mill {number}", f"The mill {number} stands by the radio.") for number in range(25)]
PASSAGES = [*VILLAGE, *MORE]
K = 4
Maker = Callable[..., Retriever]


def engine(name: str, **settings: Any) -> Maker:
    def make(folder: Path, _: ExitStack, passages: Sequence[Passage] = PASSAGES) -> Retriever:
        extra = {key: value() if callable(value) else value for key, value in settings.items()}
        build(name, [*passages], folder / "index", **extra)
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


@pytest.fixture(params=["bm25", "dense-flat", "dense-hnsw", "colbert"])
def figure_8(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Retriever]:
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield KINDS[request.param](tmp_path, stack, [RADIO_ON, RADIO_OFF])


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
    explained = trimmed.explain(WHO_ON, K)
    assert list(explained.passages) == found
    assert [(each.passage.id, each.rank, each.kept) for each in explained.dropped] == [
        (bare[0].id, 1, ""),
        (bare[2].id, 3, ""),
    ]
    assert trimmed.fingerprint != index.fingerprint
    assert trimmed.info()["index"]["fingerprint"] == index.fingerprint


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
