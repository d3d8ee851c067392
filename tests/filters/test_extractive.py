"""Filters that ask no model: what stays, in which order and with which places; their scorers and what each refuses."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dspy
import pytest
from checkpoints import minilm_package, tiny_bert, tiny_cross_encoder
from hypothesis import given
from hypothesis import strategies as st
from isle import PASSAGES, QUESTION

from blendfilter.errors import BadArgument, BadData
from blendfilter.filters import extractive
from blendfilter.filters.extractive import PassageFilter, SentenceFilter, scorer_of
from blendfilter.records import Passage
from blendfilter.text import sentences

FIVE = list(PASSAGES)


def filtered(filter: Any, passages: Sequence[Any] = FIVE, question: str = QUESTION) -> dspy.Prediction:
    """No model is connected: an extractive filter asks none."""
    return asyncio.run(filter.acall(question=question, passages=list(passages)))


class TestWorkedExample:
    """BM25 (k1 = 0.9, b = 0.4) over three sentences without titles, by hand.

    Question "red boat". After stop words and stemming the sentences are red boat sail, red hous stood, boat boat:
    of 3, 3 and 2 terms, 8/3 on average. Both words stand in two of three: idf = ln(1 + 1.5 / 2.5) = ln 1.6 = 0.470004.
    A term once in 3: 1 / (1 + 0.9 (0.6 + 0.4 * 9/8)) = 1 / 1.945.
    A term twice in 2: 2 / (2 + 0.9 (0.6 + 0.4 * 6/8)) = 2 / 2.81.

    ====================  =====================  ========
    The red boat sailed.  ln 1.6 (2 / 1.945)     0.4833
    A red house stood.    ln 1.6 (1 / 1.945)     0.2416
    The boat, the boat!   ln 1.6 (2 / 2.81)      0.3345
    ====================  =====================  ========
    """

    PASSAGES = (
        Passage("a", "", "The red boat sailed. A red house stood.", 2.0),
        Passage("b", "", "The boat, the boat!", 1.0),
    )

    def test_the_scores(self) -> None:
        result = filtered(SentenceFilter(n=3), self.PASSAGES, "red boat")
        assert result.reason.splitlines() == [
            "0.4833 in knowledge 0: The red boat sailed.",
            "0.2416 in knowledge 0: A red house stood.",
            "0.3345 in knowledge 1: The boat, the boat!",
        ]

    @pytest.mark.parametrize(
        ("n", "kept"),
        [
            (1, [("a", "The red boat sailed.")]),
            (2, [("a", "The red boat sailed."), ("b", "The boat, the boat!")]),
            (3, [("a", "The red boat sailed. A red house stood."), ("b", "The boat, the boat!")]),
            (9, [("a", "The red boat sailed. A red house stood."), ("b", "The boat, the boat!")]),
        ],
    )
    def test_the_best_stay(self, n: int, kept: list[tuple[str, str]]) -> None:
        result = filtered(SentenceFilter(n=n), self.PASSAGES, "red boat")
        assert [(passage.id, passage.text) for passage in result.kept] == kept
        assert result.status == f"kept {min(n, 3)} of 3"
        assert result.flags == {}

    def test_the_passages_as_wholes(self) -> None:
        """Of 6 and 2 terms, 4 on average: red stands in one passage, idf ln 2; boat in both, idf ln 1.2.

        The first: ln 2 * 2 / (2 + 0.9 (0.6 + 0.4 * 6/4)) + ln 1.2 * 1 / (1 + 1.08) = 0.450096 + 0.087655.
        The second: ln 1.2 * 2 / (2 + 0.9 (0.6 + 0.4 * 2/4)) = 0.134060.
        """
        result = filtered(PassageFilter(n=1), self.PASSAGES, "red boat")
        assert result.kept == [self.PASSAGES[0]]
        assert result.reason.splitlines() == ["knowledge 0: 0.5378", "knowledge 1: 0.1341"]
        assert result.status == "kept 1 of 2"


class TestSentences:
    def test_the_title_is_shown_and_never_kept(self) -> None:
        seen: list[tuple[str, list[str]]] = []

        def remember(question: str, texts: Sequence[str]) -> list[float]:
            seen.append((question, list(texts)))
            return [0.0] * len(texts)

        result = filtered(SentenceFilter(n=9, by=remember), [FIVE[0], Passage("x", " ", "No\ntitle.")])
        lines = ["Tolm Harbour | Tolm Harbour is the only port of Quillmere.",
                 "Tolm Harbour | Skerry Light stands beside it.", "No title."]  # fmt: skip
        assert seen == [(QUESTION, lines)]
        assert [passage.text for passage in result.kept] == [FIVE[0].text, "No\ntitle."]

    @pytest.mark.parametrize(
        ("tokens", "kept"),
        [
            (1, {"a": "The red boat sailed."}),
            (13, {"a": "The red boat sailed."}),
            (14, {"a": "The red boat sailed.", "b": "The boat, the boat!"}),
            (19, {"a": "The red boat sailed.", "b": "The boat, the boat!"}),
            (20, {"a": "The red boat sailed. A red house stood.", "b": "The boat, the boat!"}),
        ],
    )
    def test_a_budget_of_tokens_counts_sentences_and_their_titles_once(self, tokens: int, kept: dict[str, str]) -> None:
        """Best first, at 1.4 tokens a word: 4 + 1 (the title), 4 + 1, 4: 7, 14 and 19.6 tokens together.

        The best sentence stays though it alone is over the budget.
        """
        passages = [replace(passage, title="Skerry") for passage in TestWorkedExample.PASSAGES]
        result = filtered(SentenceFilter(tokens=tokens), passages, "red boat")
        assert {passage.id: passage.text for passage in result.kept} == kept
        most = SentenceFilter(1, tokens=tokens)
        assert [passage.text for passage in filtered(most, passages, "red boat").kept] == ["The red boat sailed."]
        assert most.arguments() == {"n": 1, "by": "bm25", "model": None, "tokens": tokens}

    @given(
        texts=st.lists(st.text(st.sampled_from("ab .!?\n’é🙂"), max_size=60), max_size=4),
        n=st.integers(1, 5),
        question=st.text(max_size=20),
    )
    def test_what_is_kept_is_verbatim_and_at_most_n(self, texts: list[str], n: int, question: str) -> None:
        passages = [Passage(str(i), "T", text) for i, text in enumerate(texts)]
        result = filtered(SentenceFilter(n=n), passages, question)
        spans = [(kept.source, span) for kept in result.kept for span in kept.spans]
        assert len(spans) == min(n, sum(len(sentences(text)) for text in texts))
        assert all(source.text[span.start : span.end] == span.text for source, span in spans)
        assert all(source in passages for source, _ in spans)
        assert [kept.id for kept in result.kept] == sorted(kept.id for kept in result.kept)


TEXTS = ["The river runs.", "A castle on the hill.", "The king was born in the castle.", "Sea."]


class TestFunctions:
    @pytest.mark.parametrize(
        ("given", "reported"),
        [
            ([1.0], "one number for each of 2 texts"),
            ([0.0, float("nan")], "one number for each of 2 texts"),
        ],
    )
    def test_what_it_gives_is_checked(self, given: list[Any], reported: str) -> None:
        with pytest.raises(BadArgument, match=f"lambda.*{reported}"):
            scorer_of(lambda question, texts: given)("q", ["a", "b"])


class TestNames:
    @pytest.mark.parametrize("by", ["embedding", "cross-encoder"])
    def test_a_model_is_needed(self, by: Any) -> None:
        with pytest.raises(BadArgument, match=f"scoring by {by} needs a model.*such as [\\w-]+/"):
            scorer_of(by)


@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="needs the extra [dense]")
class TestModels:
    def test_embeddings_are_compared_by_their_cosine(self) -> None:
        """The question's own text has the cosine 1; a paraphrase is nearer than what merely shares a word."""
        score = scorer_of("embedding", str(minilm_package()))
        question = "Where was the queen born?"
        same, paraphrase, word = score(question, [question, "The birthplace of the queen", "Queen bees make honey."])
        assert same == pytest.approx(1.0, abs=1e-5)
        assert same > paraphrase > word > -1

    def test_a_cross_encoder_reads_both_together(self) -> None:
        """Against transformers itself, and raw: no score is squeezed between 0 and 1."""
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        folder = tiny_cross_encoder()
        question = "who was born in the castle"
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        with torch.no_grad():
            expected = [model(**tokenizer(question, text, return_tensors="pt")).logits.item() for text in TEXTS]
        scores = scorer_of("cross-encoder", str(folder))(question, TEXTS)
        assert scores == pytest.approx(expected, abs=1e-4)
        assert any(not 0 <= score <= 1 for score in scores)
        assert len(set(scores)) == len(TEXTS)

    @pytest.mark.parametrize(("by", "folder"), [("embedding", tiny_bert), ("cross-encoder", tiny_cross_encoder)])
    def test_equal_texts_tie_whatever_stands_beside_them(self, by: Any, folder: Any) -> None:
        score = scorer_of(by, str(folder()))
        texts = [*(["a king"] * 40), "the " * 60, *(["a king"] * 40)]
        result = score("which king?", texts)
        assert len({*result[:40], *result[41:]}) == 1
        assert score("which king?", []) == []
        assert len(score("half \ud800", ["a half \udfff"])) == 1

    def test_an_encoder_is_no_cross_encoder(self) -> None:
        """Its head would be made up at random, and other in every run."""
        with pytest.raises(BadData, match=r"is no cross-encoder.*classifier"):
            scorer_of("cross-encoder", str(tiny_bert())).prepare()

    def test_code_that_comes_with_it_is_not_run(self, tmp_path: Path) -> None:
        folder = tiny_cross_encoder(tmp_path / "evil")
        config = json.loads((folder / "config.json").read_text())
        config["auto_map"] = {"AutoModelForSequenceClassification": "evil.Model", "AutoConfig": "evil.Config"}
        config["model_type"] = "never_heard_of"
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        with pytest.raises(BadData):
            scorer_of("cross-encoder", str(folder)).prepare()
        assert not (tmp_path / "ran").exists()

    def test_a_model_is_loaded_once_and_late_and_shared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loads: list[str] = []
        load = extractive.load_encoder
        monkeypatch.setattr(extractive, "load_encoder", lambda name, **more: loads.append(name) or load(name, **more))
        score = scorer_of("embedding", str(tiny_bert()))
        twin = copy.deepcopy(score)
        assert loads == []
        with ThreadPoolExecutor(8) as pool:
            result = list(pool.map(lambda number: (score if number % 2 else twin)("which king?", TEXTS), range(8)))
        assert len(loads) == 1
        assert all(each == result[0] for each in result)
        assert pickle.loads(pickle.dumps(score))("which king?", TEXTS) == result[0]
