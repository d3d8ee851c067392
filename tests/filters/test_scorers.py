"""Scorers: by BM25, by a function, by real models of both kinds; what each refuses."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from checkpoints import minilm_package, tiny_bert, tiny_cross_encoder

from blendfilter import BM25
from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName
from blendfilter.filters import extractive
from blendfilter.filters.extractive import scorer_of
from blendfilter.records import Passage

TEXTS = ["The river runs.", "A castle on the hill.", "The king was born in the castle.", "Sea."]


class TestBM25:
    def test_it_is_our_indexes_bm25_over_the_candidates(self) -> None:
        question = "Which king was born in a castle by the sea?"
        index = BM25.build([Passage(str(i), "", text) for i, text in enumerate(TEXTS)])
        found = {int(passage.id): passage.score for passage in index.search([question], 4)[0]}
        expected = [found.get(i, 0.0) for i in range(len(TEXTS))]
        assert scorer_of("bm25")(question, TEXTS) == pytest.approx(expected, rel=1e-5)
        assert sum(score > 0 for score in expected) == 3


class TestFunctions:
    def test_its_scores_are_taken(self) -> None:
        assert scorer_of(lambda question, texts: [len(text) for text in texts])("q", ["a", "bcd"]) == [1.0, 3.0]

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ([1.0], "gave 1 scores for 2 texts"),
            ([], "gave 0 scores for 2 texts"),
            ([1.0, None], "no numbers"),
            (["x", "y"], "no numbers"),
            ([0.0, float("nan")], "NaN"),
        ],
    )
    def test_what_it_gives_is_checked(self, given: list[Any], told: str) -> None:
        with pytest.raises(BadArgument, match=f"scorers.*{told}"):
            scorer_of(lambda question, texts: given)("q", ["a", "b"])

    async def _asynchronous(self, question: str, texts: list[str]) -> list[float]:
        return []

    @pytest.mark.parametrize("by", [3, None, dict])
    def test_what_cannot_score(self, by: Any) -> None:
        with pytest.raises(BadArgument, match="cannot score"):
            scorer_of(by)

    def test_an_async_function_cannot(self) -> None:
        with pytest.raises(BadArgument, match="cannot score"):
            scorer_of(self._asynchronous)


class TestNames:
    def test_an_unknown_name_suggests(self) -> None:
        with pytest.raises(UnknownName, match=r"no scorer 'embeding'\. Did you mean 'embedding'"):
            scorer_of("embeding")  # type: ignore[arg-type]

    @pytest.mark.parametrize("by", ["embedding", "cross-encoder"])
    def test_a_model_is_needed(self, by: Any) -> None:
        with pytest.raises(BadArgument, match=f"scoring by {by} needs a model.*such as [\\w-]+/"):
            scorer_of(by)

    @pytest.mark.parametrize("by", ["bm25", max])
    def test_or_not_taken(self, by: Any) -> None:
        with pytest.raises(BadArgument, match="takes no model"):
            scorer_of(by, "some/model")


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
        told = score("which king?", texts)
        assert len({*told[:40], *told[41:]}) == 1
        assert score("which king?", []) == []
        assert len(score("half \ud800", ["a half \udfff"])) == 1

    @pytest.mark.parametrize(
        ("by", "folder", "loader"),
        [("embedding", tiny_bert, "load_encoder"), ("cross-encoder", tiny_cross_encoder, "_cross_encoder")],
    )
    def test_a_model_is_loaded_once_and_late_and_shared(
        self, by: Any, folder: Any, loader: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loads: list[str] = []
        load = getattr(extractive, loader)
        monkeypatch.setattr(extractive, loader, lambda name, **more: loads.append(name) or load(name, **more))
        score = scorer_of(by, str(folder()))
        assert loads == []
        twin = copy.deepcopy(score)
        start = threading.Barrier(8)

        def work(number: int) -> list[float]:
            start.wait()
            return (score if number % 2 else twin)("which king?", TEXTS)

        with ThreadPoolExecutor(8) as pool:
            told = list(pool.map(work, range(8)))
        assert len(loads) == 1
        assert all(each == told[0] for each in told)
        assert pickle.loads(pickle.dumps(score))("which king?", TEXTS) == told[0]

    @pytest.mark.parametrize("by", ["embedding", "cross-encoder"])
    def test_one_that_is_not_there_is_said_beforehand(self, by: Any, tmp_path: Path) -> None:
        with pytest.raises(MissingFile, match="no encoder"):
            scorer_of(by, str(tmp_path / "gone")).prepare()
        with pytest.raises(BadData, match="no encoder in"):
            scorer_of(by, str(tmp_path)).prepare()

    def test_an_encoder_is_no_cross_encoder(self) -> None:
        """Its head would be made up at random, and other in every run."""
        with pytest.raises(BadData, match=r"is no cross-encoder.*classifier"):
            scorer_of("cross-encoder", str(tiny_bert())).prepare()

    def test_one_that_is_damaged(self, tmp_path: Path) -> None:
        folder = tiny_cross_encoder(tmp_path / "damaged")
        (folder / "model.safetensors").write_bytes(b"no weights")
        with pytest.raises(BadData, match="cannot be loaded"):
            scorer_of("cross-encoder", str(folder)).prepare()

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
