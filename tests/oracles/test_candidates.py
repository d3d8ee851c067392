"""Candidates: which places of passages and of excerpts they are, and that what is chosen comes back verbatim."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.oracles.candidates import Candidate, excerpts, passages_of, sentences_of
from blendfilter.records import Excerpt, Passage

TOWN = Passage("t", "Tolm\nHarbour", "A port. It has\na pier. It rains.", 2.0)
LIGHT = Passage("l", " ", "Skerry Light burns.", 1.0)
BARE = Passage("b", "A title. Of two sentences.", " \n ", 0.5)
TEXTS = st.text(st.sampled_from("Aa .!?\n\u2028\u00a0é字\ud800"), max_size=40)


def test_sentences_have_their_places_and_their_passages_title() -> None:
    assert sentences_of([TOWN, BARE, LIGHT]) == [
        Candidate(0, 0, 7, "A port.", "Tolm Harbour | A port."),
        Candidate(0, 8, 22, "It has\na pier.", "Tolm Harbour | It has a pier."),
        Candidate(0, 23, 32, "It rains.", "Tolm Harbour | It rains."),
        Candidate(2, 0, 19, "Skerry Light burns.", "Skerry Light burns."),
    ]


def test_sentences_of_an_excerpt_lie_in_its_source() -> None:
    """The second piece begins inside a sentence: what stands there is what there is."""
    piece = Excerpt.of(TOWN, [(0, 7), (15, 32)])
    found = sentences_of([piece])
    assert [(each.start, each.end, each.text) for each in found] == [
        (0, 7, "A port."),
        (15, 22, "a pier."),
        (23, 32, "It rains."),
    ]
    assert excerpts([piece], found[1:2]) == [Excerpt.of(TOWN, [(15, 22)])]


def test_a_whole_excerpt_keeps_its_gaps() -> None:
    """From its first piece to its last; what it left out does not come back in."""
    piece = Excerpt.of(TOWN, [(0, 7), (23, 32)])
    (candidate,) = passages_of([piece])
    assert candidate[:4] == (0, 0, 32, "A port. It rains.")
    assert excerpts([piece], [candidate]) == [piece]
    nothing = Excerpt.of(TOWN, [])
    assert passages_of([nothing])[0][:4] == (0, 0, 0, "")
    assert excerpts([nothing], passages_of([nothing])) == [nothing]


def test_excerpts_are_in_rank_order_with_the_scores_of_their_passages() -> None:
    found = sentences_of([TOWN, LIGHT])
    kept = excerpts([TOWN, LIGHT], [found[3], found[2], found[0]])
    assert [(each.id, each.text, each.score) for each in kept] == [
        ("t", "A port. It rains.", 2.0),
        ("l", "Skerry Light burns.", 1.0),
    ]


def test_excerpts_as_chosen_keep_that_order_and_join_what_goes_on() -> None:
    port, pier, rains, light = sentences_of([TOWN, LIGHT])
    kept = excerpts([TOWN, LIGHT], [pier, rains, light, port], as_chosen=True)
    assert [(each.id, each.text) for each in kept] == [
        ("t", "It has\na pier. It rains."),
        ("l", "Skerry Light burns."),
        ("t", "A port."),
    ]
    backwards = excerpts([TOWN], [rains, pier], as_chosen=True)
    assert [each.text for each in backwards] == ["It rains.", "It has\na pier."]


@pytest.mark.parametrize("of", [sentences_of, passages_of])
@given(st.lists(TEXTS, max_size=4))
def test_candidates_are_verbatim(of: object, texts: list[str]) -> None:
    passages = [Passage(str(at), "", text) for at, text in enumerate(texts)]
    found = of(passages)  # type: ignore[operator]
    assert found == sorted(found)
    assert all(each.text == texts[each.position][each.start : each.end] for each in found)
    for kept in excerpts(passages, found):
        assert isinstance(kept, Excerpt)
        assert kept.source is passages[int(kept.id)]
        assert "".join(kept.text.split()) == "".join(kept.source.text.split())
