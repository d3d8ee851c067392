"""One analyser for both sides: what it keeps, that threads may share it, and that settings bring it back."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadArgument, UnknownName
from blendfilter.retrieval.analyser import STOP_WORDS, Analyser, snowball

ANALYSER = Analyser()


def test_lower_case_stop_words_stems() -> None:
    """By Snowball's English rules: -ing and -s go, -ies becomes -i, `generalization` loses its ending to `general`."""
    assert Analyser()("The running of the Ferries, and a GENERALIZATION") == ["run", "ferri", "general"]


def test_single_characters_numbers_and_other_scripts_stay() -> None:
    assert Analyser()("Plan 9 by Malcolm X — Île, Ωμέγα 東京") == ["plan", "9", "malcolm", "x", "île", "ωμέγα", "東京"]


def test_stop_words_are_lucenes_33() -> None:
    assert len(STOP_WORDS) == len(set(STOP_WORDS)) == 33
    assert Analyser()(" ".join(STOP_WORDS).upper()) == []


def test_repeats_are_kept_in_order() -> None:
    assert Analyser()("hen, hens and a hen") == ["hen", "hen", "hen"]


def test_every_part_can_be_changed() -> None:
    assert Analyser(pattern=r"[a-z]{3,}", stop_words=("hens",), stemmer=None)("The 12 hens ran") == ["the", "ran"]
    assert Analyser(stemmer="german")("Häuser") == ["haus"]
    assert Analyser(stemmer=None, lower=False)("The Orm Pier the") == ["The", "Orm", "Pier"]


@pytest.mark.parametrize("analyser", [Analyser(), Analyser(r"[a-z]+", ("x",), None), Analyser(lower=False)])
def test_settings_and_pickle_bring_it_back(analyser: Analyser) -> None:
    assert Analyser.from_settings(json.loads(json.dumps(analyser.settings()))) == analyser
    assert pickle.loads(pickle.dumps(analyser))("Running x") == analyser("Running x")


def test_the_settings_of_old_indexes_stay_what_they_were() -> None:
    """Their fingerprints are made of these."""
    assert set(Analyser().settings()) == {"pattern", "stop_words", "stemmer"}
    assert Analyser.from_settings(Analyser().settings()).lower is True
    assert Analyser(lower=False).settings()["lower"] is False


def test_bad_settings() -> None:
    with pytest.raises(BadArgument, match=r"pattern '\(' is no regular expression"):
        Analyser(pattern="(")
    with pytest.raises(UnknownName, match=r"no stemmer 'englisch'\. Did you mean 'english'"):
        Analyser(stemmer="englisch")


@given(st.text())
def test_any_text_gives_terms(text: str) -> None:
    terms = ANALYSER(text)
    assert all(isinstance(term, str) and term for term in terms)


def test_threads_share_one_stemmer() -> None:
    endings = ("ing", "ed", "s", "al", "ation")
    words = [f"{stem}{ending}" for stem in ("walk", "jump", "harbour", "relat", "nation") for ending in endings] * 40
    alone = [snowball("english")(word) for word in words]
    shared = snowball("english")
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: [shared(word) for word in words], range(32)):
            assert got == alone
