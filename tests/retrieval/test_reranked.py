"""Reranking: an index's best passages in the order of a model, around any index; others compute the same scores."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import minilm_colbert, minilm_package, tiny_bert, tiny_colbert, tiny_cross_encoder, tiny_late
from index_server import served
from witnessed import witnesses_of

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.filters.extractive import PassageFilter, SentenceFilter
from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits, Retriever, Trim, cut_of, trim_of
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.hybrid import Hybrid
from blendfilter.retrieval.reranked import Reranked, Reranker, RerankScores, load_reranker
from blendfilter.trimming.overlay import Trimmed

TEXTS = ["the king of the castle", "a king by the sea", "the king was born in a town", "king", "the hill and the king"]
CORPUS = [Passage(f"p{at}", f"Title {at}", text) for at, text in enumerate(TEXTS)]
QUERY = "which king was born in the castle"


class Lengths(Reranker):
    """The shorter the better; passages of one length tie. It keeps what it was asked to score."""

    kind, name, identity = "length", "lengths", "1"

    def __init__(self, longest_query: int = 1000) -> None:
        self.longest_query = longest_query
        self.seen: list[list[list[str]]] = []

    def scores(self, queries: Sequence[str], candidates: Sequence[Sequence[str]]) -> RerankScores:
        self.seen.append([list(texts) for texts in candidates])
        scores = [[-float(len(text)) for text in texts] for texts in candidates]
        return RerankScores(scores, [len(query) > self.longest_query for query in queries])


class Fixed(Retriever):
    """The same passages for every query; it keeps how it was searched."""

    fingerprint = "0123456789abcdef"

    def __init__(self, *texts: str, cut: bool = False) -> None:
        self.passages = [Passage(f"p{at}", "", text, 9.0 - at) for at, text in enumerate(texts)]
        self.cut = cut
        self.searched: list[tuple[int, int]] = []

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.searched.append((len(queries), k))
        return [Hits(self.passages[:k], cut=self.cut) for _ in queries]

    def __len__(self) -> int:
        return len(self.passages)


def ids(found: Sequence[Passage]) -> list[str]:
    return [passage.id for passage in found]


# the order


def test_the_best_of_the_depth_come_with_the_rerankers_scores_and_equal_ones_in_the_order_of_the_index() -> None:
    index = Fixed("long text", "mid1", "mid2", "ab", "a")  # the last one lies below the depth
    found = Reranked(index, Lengths(), depth=4).search(["?"], 3)[0]
    assert [(passage.id, passage.score) for passage in found] == [("p3", -2), ("p1", -4), ("p2", -4)]


def test_many_queries_are_one_search_and_one_scoring() -> None:
    index, lengths = Fixed("b", "a"), Lengths()
    Reranked(index, lengths).search(["one", "two", "three"], 1)
    assert index.searched == [(3, 2)], "all queries at once, and no deeper than the index goes"
    assert lengths.seen == [[["b", "a"]] * 3]


def test_a_query_is_cut_where_the_index_or_the_reranker_cuts_it() -> None:
    for index, longest, cut in ((Fixed("a", cut=True), 99, True), (Fixed("a"), 2, True), (Fixed("a"), 99, False)):
        assert cut_of(Reranked(index, Lengths(longest)).search(["long"], 1)[0]) is cut


def test_what_trimming_dropped_goes_with_the_hits_and_of_what_it_filled_in_what_is_left() -> None:
    class Trimming(Fixed):
        def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
            trim = Trim(judged="q", similarity=1.0, dropped={"x": ""}, refilled=("p0", "p1"), unjudged=("p0",))
            return [Hits(found, trim=trim) for found in super().find(queries, k)]

    (hits,) = Reranked(Trimming("long", "a"), Lengths()).search(["?"], 1)
    assert ids(hits) == ["p1"]
    assert trim_of(hits) == Trim(judged="q", similarity=1.0, dropped={"x": ""}, refilled=("p1",))


# what it is


def test_the_fingerprint_is_of_the_index_the_models_content_and_the_depth(tmp_path: Path) -> None:
    index, other = BM25.build(CORPUS), BM25.build(CORPUS[:3])
    model = tiny_cross_encoder()
    first = Reranked(index, model).fingerprint
    shutil.copytree(model, tmp_path / "moved")
    assert Reranked(index, tmp_path / "moved").fingerprint == first
    changed = [
        Reranked(index, tiny_cross_encoder(seed=1)),
        Reranked(index, tiny_colbert()),
        Reranked(index, model, depth=50),
        Reranked(other, model),
    ]
    assert len({first, index.fingerprint, *(each.fingerprint for each in changed)}) == 6


def test_it_names_the_model_and_the_index() -> None:
    index = BM25.build(CORPUS)
    info = Reranked(index, Lengths(), depth=7).info()
    assert info["settings"] == {"model": "lengths", "by": "length", "depth": 7}
    assert (info["kind"], info["passages"], info["index"]) == ("reranked", 5, index.info())


# the models


def test_a_cross_encoders_scores_are_those_of_transformers() -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = tiny_cross_encoder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = {p.id: model(**tokenizer(QUERY, p.line, return_tensors="pt")).logits.item() for p in CORPUS}
    found = Reranked(BM25.build(CORPUS), folder).search([QUERY], 5)[0]
    assert {p.id: p.score for p in found} == pytest.approx(expected, abs=1e-4)
    assert ids(found) == sorted(expected, key=lambda name: -expected[name])


def test_a_cross_encoder_opens_as_sentence_transformers_saves_it(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    CrossEncoder(str(tiny_cross_encoder())).save_pretrained(str(tmp_path))
    assert (tmp_path / "modules.json").is_file()
    plain, saved = (load_reranker(str(folder)).scores([QUERY], [TEXTS]) for folder in (tiny_cross_encoder(), tmp_path))
    assert saved == plain


def test_late_interactions_scores_are_exhaustive_max_sim() -> None:
    """The sum over the query's vectors of the largest inner product, counted in NumPy, a passage at a time."""
    from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint, TokenEncoder

    encoder = TokenEncoder(ColBERTCheckpoint(tiny_colbert()), "cpu")
    query = encoder.queries([QUERY]).vectors[0].numpy()
    expected = {}
    for passage in CORPUS:
        vectors = encoder.passages([passage.line])[0].float().numpy()
        expected[passage.id] = float(np.max(query @ vectors.T, axis=1).sum())
    reranked = Reranked(BM25.build(CORPUS), tiny_colbert())
    for _ in range(2):  # the second time from what it keeps
        assert {p.id: p.score for p in reranked.search([QUERY], 5)[0]} == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("pylate", [False, True])
def test_late_interaction_as_sentence_transformers_and_pylate_save_it(pylate: bool) -> None:
    found = Reranked(BM25.build(CORPUS), tiny_late(pylate=pylate)).search([QUERY], 5)[0]
    assert len({passage.score for passage in found}) == 5


def test_a_querys_order_does_not_depend_on_what_else_was_asked() -> None:
    """Nor on whether a passage's vectors were kept. Some processors' last bits depend on where a number lies."""
    long = Passage("long", "", "walrus " * 90)
    index = BM25.build([*CORPUS, long])
    alone, together = (Reranked(index, minilm_colbert()) for _ in range(2))
    after = together.search([f"walrus {QUERY}", QUERY], 5)[-1]
    first, again = (alone.search([QUERY], 5)[0] for _ in range(2))
    assert [hit.id for hit in first] == [hit.id for hit in after] == [hit.id for hit in again]
    for other in (after, again):
        assert [hit.score for hit in other] == pytest.approx([hit.score for hit in first], abs=2e-5)


def test_passages_that_do_not_fit_in_memory_are_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from blendfilter.retrieval import reranked

    plain = load_reranker(str(tiny_colbert())).scores([QUERY], [TEXTS])
    monkeypatch.setattr(reranked, "_KEPT_BYTES", 1000)
    small: Any = load_reranker(str(tiny_colbert()))
    for texts in (TEXTS, TEXTS[::-1], TEXTS):
        last = small.scores([QUERY], [texts])
    assert last == plain
    assert 0 <= small._bytes <= 1000


def test_a_long_query_keeps_its_end_in_a_cross_encoder_and_is_cut_no_more_than_it_must() -> None:
    reranker = load_reranker(str(tiny_cross_encoder()))
    end, long = "king " * 300, "castle " * 600

    def scored(query: str, text: str) -> tuple[float, bool]:
        scores, cut = reranker.scores([query], [[text]])
        return scores[0][0], cut[0]

    assert scored("town " * 300 + end, long) == (scored("river " * 300 + end, long)[0], True)
    one, other = scored("town " * 150 + end, "short"), scored("river " * 150 + end, "short")
    assert (one[1], other[1]) == (False, False), "450 of 512 tokens leave a short passage room"
    assert one[0] != other[0]
    assert scored("which town?", long)[1] is False, "a long passage loses its end, not the query its beginning"


@pytest.mark.parametrize(
    ("model", "error", "stated"),
    [
        (lambda: "gone", MissingFile, "no reranker 'gone': it is no folder"),
        (lambda: "nobody/nothing", MissingFile, "no reranker 'nobody/nothing': no folder here"),
        (lambda: Path(__file__).parent, BadData, r"no reranker in .*: a Hugging Face folder has"),
        (tiny_bert, BadData, r"is no cross-encoder, or not whole: 2 of its weights are missing, classifier\.bias"),
        (minilm_package, BadData, r"another kind \(encoder\) and no reranker: name one, such as"),
        (lambda: tiny_cross_encoder(outputs=3), BadData, "gives 3 numbers for a text"),
    ],
)
def test_what_is_no_reranker_is_refused_in_one_line(model: Any, error: type[Exception], stated: str) -> None:
    with pytest.raises(error, match=stated) as refused:
        Reranked(Fixed("a"), model())
    assert "\n" not in str(refused.value)


def test_a_language_model_is_no_reranker(tmp_path: Path) -> None:
    """sentence-transformers would ask it for the words yes and no."""
    folder = tiny_cross_encoder(tmp_path / "causal")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(BadData, match=r"\(language model\) and no reranker"):
        load_reranker(str(folder))


def test_a_depth_below_k_and_one_that_the_index_refuses() -> None:
    with pytest.raises(BadArgument, match=r"k=3 is more than the 2 passages that are reranked.*\(depth=3\)"):
        Reranked(Fixed("a", "b", "c"), Lengths(), depth=2).search(["?"], 3)
    with pytest.raises(BadArgument, match="depth is 0"):
        Reranked(Fixed("a"), Lengths(), depth=0)
    limited = Fixed("a")
    limited.max_k = 50  # type: ignore[attr-defined]
    with pytest.raises(BadArgument, match=r"gives at most 50 passages a query.*\(depth=50\)"):
        Reranked(limited, Lengths())


@pytest.mark.parametrize("scores", [[1.0], [1.0, float("nan")]])
def test_a_reranker_of_ones_own_gives_a_number_for_each_passage(scores: list[float]) -> None:
    class Short(Lengths):
        def scores(self, queries: Sequence[str], candidates: Sequence[Sequence[str]]) -> RerankScores:
            return RerankScores([scores], [False])

    with pytest.raises(BadArgument, match="lengths must give one number for each of 2 passages"):
        Reranked(Fixed("a", "b"), Short()).search(["?"], 1)


# around and inside other indexes


def test_before_or_after_trimming() -> None:
    bare = BM25.build(CORPUS)
    witnesses = witnesses_of({QUERY: {"p4": True, "p3": False}})
    after = Reranked(Trimmed(bare, witnesses, threshold=1), Lengths())
    before = Trimmed(Reranked(bare, Lengths()), witnesses, threshold=1)
    assert "p3" in ids(Reranked(bare, Lengths()).search([QUERY], 5)[0])
    for index in (after, before):
        assert "p3" not in ids(index.search([QUERY], 5)[0])
    assert after.fingerprint != before.fingerprint


def test_behind_a_server_and_over_one() -> None:
    bare = BM25.build(CORPUS)
    inside = Reranked(bare, tiny_cross_encoder(), depth=4)
    with served(inside) as server:
        from blendfilter.retrieval.indexes import open_index

        remote = open_index(server.url)
        assert remote.fingerprint == inside.fingerprint
        assert remote.search([QUERY], 3) == inside.search([QUERY], 3)
    with served(bare) as server:
        over = Reranked(open_index(server.url), tiny_cross_encoder(), depth=4)
        assert over.search([QUERY], 3) == inside.search([QUERY], 3)
        assert over.fingerprint == inside.fingerprint, "its journal is that of the folder"


def test_of_a_hybrid_and_in_one() -> None:
    bare = BM25.build(CORPUS)
    hybrid = Hybrid([bare, BM25.build(CORPUS, k1=2.0)])
    assert ids(Reranked(hybrid, Lengths()).search([QUERY], 1)[0]) == ["p3"]
    assert len(Hybrid([bare, Reranked(bare, Lengths())]).search([QUERY], 5)[0]) == 5


# the filter that goes by its scores


def filtered(filter: Any, passages: Sequence[Passage]) -> list[str]:
    return ids(filter(question=QUERY, passages=list(passages)).kept)


def test_a_filter_keeps_the_rerankers_best_above_a_score() -> None:
    found = Reranked(Fixed("long text", "mid1", "ab", "a"), Lengths()).search([QUERY], 4)[0]
    assert filtered(PassageFilter(n=2, by="retriever"), found) == ["p3", "p2"]
    assert filtered(PassageFilter(n=9, by="retriever", min_score=-4), found) == ["p3", "p2", "p1"]
    assert filtered(PassageFilter(n=9, by="retriever", min_score=0), found) == []
    assert "min_score" not in PassageFilter(n=2).arguments(), "runs made before keep their settings"


def test_a_filter_by_scores_that_are_not_there_is_refused() -> None:
    with pytest.raises(BadArgument, match="1 of 2 passages carry no score of their retriever"):
        filtered(PassageFilter(by="retriever"), [Passage("a", "", "b", 1.0), Passage("c", "", "d")])
    with pytest.raises(BadArgument, match="a retriever scores passages and no sentences"):
        SentenceFilter(by="retriever")
    with pytest.raises(BadArgument, match="min_score is a number"):
        PassageFilter(min_score=float("nan"))
