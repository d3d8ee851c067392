"""The overlay: what a search drops and what it leaves, against the definition; fingerprints; what it says of itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from witnessed import Written, ids, judge, witnesses_of

from blendfilter.context import JOURNAL, setting
from blendfilter.errors import BadArgument
from blendfilter.journal import Journal
from blendfilter.records import Passage
from blendfilter.retrieval.base import cut_of
from blendfilter.retrieval.hybrid import Hybrid
from blendfilter.trimming import lines
from blendfilter.trimming.by_words import ByWords
from blendfilter.trimming.cutting import trim_ranking
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.witnesses import Witnesses

ON, OFF = "Who turned on the radio?", "Who turned off the radio?"
RADIO = {ON: {"jack": True, "mary": False}}


def by_definition(ranking: Sequence[str], k: int, accepted: set[str], pairs: Mapping[tuple[str, str], int], threshold: int) -> list[str]:  # fmt: skip # noqa: E501
    """Straight from the definition: every head of the ranking in turn, and in it every pair.

    `pairs`: how many witnesses count where the first of the two is accepted.
    """
    left: list[str] = []
    for m in range(len(ranking) + 1):
        head = ranking[:m]
        gone = {
            b
            for a, b in product(head, head)
            if a in accepted and b not in accepted and pairs.get((a, b), 0) >= threshold
        }
        left = [each for each in head if each not in gone]
        if len(left) >= k:
            break
    return left[:k]


NAMES = [f"p{number}" for number in range(12)]
QUESTIONS = [f"What is the {word} of the harbour?" for word in ("depth", "name", "age", "owner")]
verdicts = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([True, False, False, None]), max_size=8)


@settings(max_examples=300)
@given(
    judged=st.dictionaries(st.sampled_from(QUESTIONS), verdicts, max_size=4),
    rankings=st.tuples(*[st.permutations(NAMES) for _ in QUESTIONS]),
    length=st.integers(0, 12),
    k=st.integers(1, 13),
    threshold=st.integers(1, 3),
    known=st.booleans(),
    one_way=st.booleans(),
)
def test_a_search_is_its_definition(
    judged: dict[str, dict[str, bool | None]], rankings: tuple[list[str], ...], length: int, k: int, threshold: int,
    known: bool, one_way: bool,
) -> None:  # fmt: skip
    written = {question: found[:length] for question, found in zip(QUESTIONS, rankings, strict=True)}
    index = Written({**written, "": rankings[0][:length]}, known=known)
    witnesses = witnesses_of(judged)
    pairs: Counter[tuple[str, str]] = Counter()
    for found in judged.values():
        for a, b in product(found, found):
            if found[a] is True and found[b] is False:
                pairs.update([(a, b)] if one_way else [(a, b), (b, a)])
    trimmed = Trimmed(index, witnesses, threshold=threshold, one_way=one_way)
    reached = {frozenset(pair) for pair, count in pairs.items() if count >= threshold}
    assert {frozenset(each.pair) for each in witnesses.separated(threshold, one_way=one_way)} == reached
    assert trimmed.info()["witnesses"]["reached"] == len(reached)
    assert (trimmed.fingerprint == index.fingerprint) == (not reached)
    asked = [*QUESTIONS, "Was it raining yesterday?"]
    found = trimmed.find(asked, k)
    alone = [trimmed.find([query], k)[0] for query in asked]
    assert found == alone
    for query, passages in zip(asked, found, strict=True):
        bare = index.rankings.get(query, index.rankings[""])
        accepted = {name for name, verdict in judged.get(query, {}).items() if verdict}
        assert ids(passages) == by_definition(bare, k, accepted, pairs, threshold)
        # what follows from it
        places = [bare.index(name) for name in ids(passages)]
        assert places == sorted(set(places))
        assert {name for name in bare[:k] if name in accepted} <= set(ids(passages))
        told = trimmed.explain(query, k)
        dropped = {each.passage.id for each in told.dropped}
        assert all(len(each.witnesses) == pairs[each.kept, each.passage.id] for each in told.dropped)
        shown = {frozenset(pair) for pair in combinations(ids(passages), 2)}
        assert {frozenset(each.pair) for each in told.undecided} >= shown & reached
        assert len(passages) == min(k, len(bare) - len(dropped))
        if query not in judged or not dropped:
            assert passages == index.find([query], k)[0]
        stricter = Trimmed(index, witnesses, threshold=threshold + 1, one_way=one_way).explain(query, len(NAMES))
        assert {each.passage.id for each in stricter.dropped} <= {
            each.passage.id for each in trimmed.explain(query, len(NAMES)).dropped
        }


@given(
    ranking=st.lists(st.sampled_from(NAMES), max_size=20),
    dropping=st.dictionaries(st.sampled_from(NAMES[:4]), st.lists(st.sampled_from(NAMES[4:]), unique=True)),
    k=st.integers(1, 12),
)
def test_a_ranking_may_name_a_passage_twice(ranking: list[str], dropping: dict[str, list[str]], k: int) -> None:
    trim = trim_ranking([Passage(name, "", name) for name in ranking], k, dropping)
    accepted, pairs = set(dropping), {(a, b): 1 for a, gone in dropping.items() for b in gone}
    assert ids(trim.kept) == by_definition(ranking, k, accepted, pairs, 1)
    assert trim.full == (len(trim.kept) == k)


def test_the_radio() -> None:
    index = Written({"": ["mary", "jack", "ann", "bob"]})
    trimmed = Trimmed(index, witnesses_of(RADIO), threshold=1)
    assert ids(trimmed.search([ON], 2)[0]) == ["jack", "ann"]
    assert ids(trimmed.search(["Who turned the radio on?"], 2)[0]) == ["jack", "ann"]
    assert ids(trimmed.search([OFF], 2)[0]) == ["mary", "jack"]
    assert ids(trimmed.search(["What is a radio made of?"], 2)[0]) == ["mary", "jack"]


def test_the_guard_is_what_keeps_the_opposite_question_apart() -> None:
    index, witnesses = Written({"": ["mary", "jack", "ann"]}), witnesses_of(RADIO)
    loose = Trimmed(index, witnesses, threshold=1, min_similarity=0.3)
    assert ids(loose.search([OFF], 2)[0]) == ["mary", "jack"]
    unguarded = Trimmed(index, witnesses, threshold=1, min_similarity=0.3, guard=False)
    assert ids(unguarded.search([OFF], 2)[0]) == ["jack", "ann"]
    assert loose.fingerprint != unguarded.fingerprint


def test_opposite_witnesses_the_nearest_wins() -> None:
    index = Written({"": ["mary", "jack"]})
    trimmed = Trimmed(index, witnesses_of({**RADIO, OFF: {"mary": True, "jack": False}}), threshold=2)
    assert ids(trimmed.find([ON], 2)[0]) == ["jack"]
    assert ids(trimmed.find([OFF], 2)[0]) == ["mary"]


MILL, WEIR, FORD = "Who built the mill of Ormskerry?", "How deep is the weir?", "Which ford floods in March?"
DISAGREEING = {MILL: {"a": True, "b": False}, WEIR: {"a": True, "b": False}, FORD: {"b": True, "a": False}}


def test_one_way_only_those_that_saw_it_alike_count() -> None:
    """Two questions say that a stays, one that b does: of three witnesses the paper counts all, for either side."""
    index, witnesses = Written({"": ["a", "b"]}), witnesses_of(DISAGREEING)
    every = Trimmed(index, witnesses, threshold=2)
    alike = Trimmed(index, witnesses, threshold=2, one_way=True)
    assert [ids(found) for found in every.find([MILL, WEIR, FORD], 2)] == [["a"], ["a"], ["b"]]
    assert [ids(found) for found in alike.find([MILL, WEIR, FORD], 2)] == [["a"], ["a"], ["a", "b"]]
    assert len({every.fingerprint, alike.fingerprint, index.fingerprint}) == 3
    assert alike.info()["settings"]["one_way"] is True
    stricter = Trimmed(index, witnesses, threshold=3, one_way=True)  # three witnesses, never three alike
    assert stricter.fingerprint == index.fingerprint != Trimmed(index, witnesses, threshold=3).fingerprint
    assert ids(stricter.find([MILL], 2)[0]) == ["a", "b"]


def test_one_way_a_pair_that_cannot_count_is_no_part_of_the_fingerprint() -> None:
    index, witnesses = Written({"": ["a", "b"]}), witnesses_of(DISAGREEING)
    judge(witnesses, "Who sold the boat?", {"c": True, "d": False})
    judge(witnesses, "Is the boat sold?", {"d": True, "c": False})
    before = [Trimmed(index, witnesses, threshold=2, one_way=one_way).fingerprint for one_way in (False, True)]
    witnesses.apply(lines.undone_pair("c", "d"))
    after = [Trimmed(index, witnesses, threshold=2, one_way=one_way).fingerprint for one_way in (False, True)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True]


def test_as_near_as_asked_for_is_near_enough() -> None:
    trimmed = Trimmed(Written({"": ["mary", "jack", "ann"]}), witnesses_of(RADIO), threshold=1, min_similarity=1)
    assert ids(trimmed.find([ON], 2)[0]) == ["jack", "ann"]
    assert trimmed.explain(ON, 2).nearest.why == ""


def test_one_way_it_says_which_witnesses_count() -> None:
    trimmed = Trimmed(Written({"": ["b", "a"]}), witnesses_of(DISAGREEING), threshold=2, one_way=True)
    told = trimmed.explain(MILL, 2)
    assert told.dropped[0].witnesses == trimmed.witnesses.witnesses_for("a", "b")
    assert len(told.dropped[0].witnesses) == 2
    assert told.lines()[2].startswith("  2 witnesses for a: '")
    (undecided,) = trimmed.explain(FORD, 2).undecided
    assert undecided == (("b", "a"), "3 witnesses, 1 of them for b, and 2 are asked for")
    (undecided,) = trimmed.explain("Zebra", 2).undecided
    assert "not near enough" in undecided.why


def test_what_stands_lower_drops_what_stands_above() -> None:
    index = Written({"": ["mary", "ann", "jack", "bob"]})
    trimmed = Trimmed(index, witnesses_of(RADIO), threshold=1)
    assert ids(trimmed.find([ON], 1)[0]) == ["mary"]  # jack is not among the first, so there is nothing to go by
    assert ids(trimmed.find([ON], 2)[0]) == ["mary", "ann"]
    assert ids(trimmed.find([ON], 3)[0]) == ["ann", "jack", "bob"]


def test_the_index_is_asked_once_a_depth_and_never_deeper_than_it_goes() -> None:
    index = Written({"": ["mary", "jack", *NAMES]})
    trimmed = Trimmed(index, witnesses_of(RADIO), threshold=1)
    trimmed.find(["a pier", ON, "a mill", ON], 3)
    assert index.asked == [(("a pier", "a mill"), 3), ((ON, ON), 4)]
    index.asked.clear()
    trimmed.find([ON], 14)
    assert index.asked == [((ON,), 14)]


def test_a_passage_separated_from_many_costs_depth_only_where_they_stand() -> None:
    many = [f"r{number}" for number in range(200)]
    judged = {ON: {"jack": True, **dict.fromkeys(many, False)}}
    easy = Written({"": ["jack", *NAMES, *many]})
    trimmed = Trimmed(easy, witnesses_of(judged), threshold=1)
    assert ids(trimmed.find([ON], 3)[0]) == ["jack", "p0", "p1"]
    assert [depth for _, depth in easy.asked] == [6]
    hard = Written({"": ["jack", *many, *NAMES]})
    trimmed = Trimmed(hard, witnesses_of(judged), threshold=1)
    assert ids(trimmed.find([ON], 3)[0]) == ["jack", "p0", "p1"]
    assert max(depth for _, depth in hard.asked) == 203


def test_an_index_that_came_to_its_end_is_not_asked_again() -> None:
    judged = {ON: {"jack": True, **dict.fromkeys(NAMES, False)}}
    index = Written({"": ["p0", "jack", "p1"]}, known=False)
    assert ids(Trimmed(index, witnesses_of(judged), threshold=1).find([ON], 3)[0]) == ["jack"]
    assert index.asked == [((ON,), 6)]


def test_a_server_that_gives_no_more_is_not_asked_for_more() -> None:
    index = Written({"": ["mary", "jack", "ann", "bob"]})
    index.max_k = 2  # type: ignore[attr-defined]
    trimmed = Trimmed(index, witnesses_of(RADIO), threshold=1)
    assert ids(trimmed.find([ON], 2)[0]) == ["jack"]
    assert index.asked == [((ON,), 2)]


def test_a_cut_query_stays_flagged() -> None:
    index = Written({"": ["mary", "jack", "ann"]}, cut=True)
    found = Trimmed(index, witnesses_of(RADIO), threshold=1).find([ON, "a pier"], 2)
    assert [ids(each) for each in found] == [["jack", "ann"], ["mary", "jack"]]
    assert all(map(cut_of, found))


def test_without_a_pair_at_the_threshold_it_is_the_index() -> None:
    index = Written({"": ["mary", "jack"]})
    for witnesses in (Witnesses(), witnesses_of(RADIO)):
        trimmed = Trimmed(index, witnesses)
        assert trimmed.fingerprint == index.fingerprint
        assert trimmed.find([ON], 2) == index.find([ON], 2)
        assert trimmed.explain(ON, 2).dropped == ()


class OtherWords(ByWords):
    """A measure of the same name that counts in another way, as vectors of another encoder do."""

    identity = "k1=2 b=0"


def test_fingerprints_tell_states_apart_and_undoing_gives_the_old_one_back() -> None:
    index, witnesses = Written({"": ["mary", "jack"]}), witnesses_of({**RADIO, "Is it on?": {"a": True, "b": False}})
    states = [
        Trimmed(index, witnesses, threshold=1),
        Trimmed(index, witnesses, threshold=1, min_similarity=0.5),
        Trimmed(index, witnesses, threshold=1, guard=False),
        Trimmed(index, witnesses, threshold=1, one_way=True),
        Trimmed(index, witnesses, threshold=1, similar=OtherWords()),
        Trimmed(index, witnesses_of(RADIO), threshold=1),
        Trimmed(Written({"": ["jack"]}), witnesses, threshold=1),
    ]
    names = [each.fingerprint for each in states]
    assert len({*names, index.fingerprint}) == len(names) + 1
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in names)
    assert Trimmed(index, witnesses, threshold=1).fingerprint == names[0]
    witnesses.apply(lines.undone_all())
    assert Trimmed(index, witnesses, threshold=1).fingerprint == index.fingerprint


def test_an_open_index_does_not_change_under_a_search() -> None:
    """A `Trimmed` goes on as it was opened, as its fingerprint says, whatever is written to the state meanwhile."""
    index, witnesses = Written({"": ["mary", "jack", "ann"]}), witnesses_of(RADIO)
    trimmed, name = Trimmed(index, witnesses, threshold=1), Trimmed(index, witnesses, threshold=1).fingerprint
    judge(witnesses, "Who turned the radio on?", {"ann": True, "jack": False})
    assert ids(trimmed.find([ON], 2)[0]) == ["jack", "ann"]
    witnesses.apply(lines.undone_all())
    assert ids(trimmed.find([ON], 2)[0]) == ["jack", "ann"]
    assert trimmed.fingerprint == name


def test_two_states_share_no_search_record(tmp_path: Path) -> None:
    index, witnesses = Written({"": ["mary", "jack", "ann"]}), witnesses_of(RADIO)
    with Journal(tmp_path) as journal, setting(JOURNAL, journal):
        bare = index.search([ON], 2)
        trimmed = Trimmed(index, witnesses, threshold=1).search([ON], 2)
        asked = len(index.asked)
        again = Trimmed(index, witnesses, threshold=1).search([ON], 2)
        witnesses.apply(lines.undone_all())
        undone = Trimmed(index, witnesses, threshold=1).search([ON], 2)
        assert len(index.asked) == asked  # both came out of the journal: the undone state has the index's records
        searches = [record for record in journal.records() if record["kind"] == "search"]
    assert ids(bare[0]) == ids(undone[0]) == ["mary", "jack"]
    assert ids(trimmed[0]) == ids(again[0]) == ["jack", "ann"]
    assert len({record["fingerprint"] for record in searches}) == len(searches) == 2


def test_within_a_hybrid_it_is_an_index_of_its_corpus() -> None:
    index = Written({"": ["mary", "jack", "ann"]})
    trimmed = Trimmed(index, witnesses_of(RADIO), threshold=1)
    hybrid = Hybrid([trimmed, index])
    assert ids(hybrid.search([ON], 3)[0]) == ["jack", "ann", "mary"]  # one corpus: mary is found once, by the other
    assert hybrid.fingerprint != Hybrid([index, index]).fingerprint
    assert len(hybrid) == 3


def test_a_function_can_be_trimmed() -> None:
    trimmed = Trimmed(lambda query, k: ["mary | She did.", "jack | He did."][:k], Witnesses())  # type: ignore[arg-type]
    assert [passage.title for passage in trimmed(ON, k=2)] == ["mary", "jack"]
    with pytest.raises(TypeError):
        len(trimmed)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"threshold": 0}, "a threshold is a whole number of witnesses from 1 up, got 0"),
        ({"threshold": True}, "from 1 up, got True"),
        ({"min_similarity": 1.5}, "min_similarity must lie between 0 and 1, got 1.5"),
        ({"min_similarity": float("nan")}, "between 0 and 1, got nan"),
    ],
)
def test_settings_out_of_range(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(said)):
        Trimmed(Written({}), Witnesses(), **wrong)


def test_it_says_what_it_is() -> None:
    index = Written({"": ["mary", "jack"]})
    info = Trimmed(index, witnesses_of(RADIO), threshold=1).info()
    assert info["kind"] == "trimmed"
    assert info["settings"] == {
        "threshold": 1, "min_similarity": 0.95, "similarity": "words", "guard": True, "one_way": False,
    }  # fmt: skip
    assert info["witnesses"] == {"judged": 1, "separations": 1, "reached": 1}
    assert info["index"] == index.info()
    assert info["corpus"] == index.info()["corpus"]


def test_explaining_what_was_dropped() -> None:
    index, witnesses = Written({"": ["mary", "ann", "jack", "bob"]}), witnesses_of(RADIO)
    trimmed = Trimmed(index, witnesses, threshold=1)
    told = trimmed.explain("Who turned the radio on?", 3)
    assert list(told.passages) == trimmed.find(["Who turned the radio on?"], 3)[0]
    (dropped,) = told.dropped
    assert (dropped.passage.id, dropped.rank, dropped.kept) == ("mary", 1, "jack")
    assert (dropped.judged, dropped.similarity) == (ON, 1.0)
    assert dropped.witnesses == witnesses.witnesses_of("jack", "mary")
    assert told.undecided == ()
    assert told.lines() == [
        "dropped mary (rank 1): Title mary | Text of mary.",
        "  the judged question 'Who turned on the radio?' (1.00 near) accepted jack",
        "  1 witness: 'Who turned on the radio?'",
    ]


BOTH = {ON: {"jack": True, "mary": False}, "Is there a radio?": {"jack": True, "mary": True},
        "Is there a lamp?": {"jack": False, "mary": False}}  # fmt: skip


@pytest.mark.parametrize(
    ("query", "threshold", "why"),
    [
        ("Who painted the harbour?", 1, r"the nearest judged question is not near enough \(0\.\d\d of 0\.95\)"),
        ("Zebra", 1, r"the nearest judged question is not near enough \(0\.00 of 0\.95\)"),
        ("Is there a radio?", 1, "the nearest judged question, 'Is there a radio\\?', accepted both"),
        ("Is there a lamp?", 1, "the nearest judged question, 'Is there a lamp\\?', accepted neither of them"),
        ("Is there no radio?", 1, "the nearest judged question is another one: one of them is negated"),
    ],
)
def test_explaining_what_stayed(query: str, threshold: int, why: str) -> None:
    trimmed = Trimmed(
        Written({"": ["mary", "ann", "jack"]}), witnesses_of(BOTH), threshold=threshold,
        min_similarity=0.4 if "no" in query.split() else None,
    )  # fmt: skip
    told = trimmed.explain(query, 3)
    assert ids(told.passages) == ["mary", "ann", "jack"]
    ((pair, said),) = told.undecided
    assert pair == ("mary", "jack")
    assert re.fullmatch(why, said), said
    assert told.lines() == ["both stay: mary and jack", f"  {said}"]


def test_explaining_too_few_witnesses() -> None:
    judged = {
        ON: {"jack": True, "mary": False, "ann": False},
        "Did Jack turn on a radio?": {"jack": True, "ann": False},
    }
    told = Trimmed(Written({"": ["mary", "jack", "ann"]}), witnesses_of(judged), threshold=2).explain(ON, 3)
    assert [each.passage.id for each in told.dropped] == ["ann"]
    assert told.undecided == ((("mary", "jack"), "1 witness, and 2 are asked for"),)
