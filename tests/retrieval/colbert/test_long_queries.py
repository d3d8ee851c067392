"""Queries longer than colbert-ai reads, and what search finds of what exhaustive scoring finds, with a model that means
something (MiniLM as a ColBERT checkpoint: untrained for late interaction, and near enough)."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from checkpoints import minilm_colbert

from blendfilter import Direct, evaluate, load
from blendfilter.records import Passage
from blendfilter.retrieval.base import cut_of
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.colbert.index import SearchEffort
from blendfilter.retrieval.corpus import read_corpus

SAMPLE = Path(__file__).parents[3] / "blendfilter" / "sample" / "corpus.jsonl"
PLACES = {
    "volcano": "a mountain that throws out fire and lava",
    "beehive": "a home of insects that make honey",
    "railway": "trains that run on iron tracks",
    "hospital": "a house where doctors heal the sick",
    "desert": "a land of sand where it never rains",
    "library": "a building full of books to borrow",
    "prison": "a house where criminals are locked up",
    "mosque": "a house where Muslims pray",
}
REASONING = (
    "people there bake bread, so flour is mixed with water, salt and yeast, the dough rests, and the bread is baked "
    "near the village. "
)


def blended(question: str, words: int = 300) -> str:
    """So many words of reasoning, which is about bread all along, and then the question."""
    return " ".join([*(REASONING * 40).split()[: words - len(question.split())], question])


@pytest.fixture(scope="module")
def villages() -> ColBERT:
    """Eight passages that differ in one word."""
    baking = "near the village where people bake bread of flour, water, salt and yeast."
    passages = [Passage(name, name.title(), f"The {name} is {baking}") for name in PLACES]
    return ColBERT.build(passages, checkpoint=minilm_colbert())


@pytest.fixture(scope="module")
def isles() -> ColBERT:
    """The first sentences of the sample, with a centroid for every vector: each cell holds what is nearest alone."""
    passages = [
        Passage(passage.id, passage.title, passage.text.partition(". ")[0])
        for passage in islice(read_corpus(SAMPLE), 100)
    ]
    return ColBERT.build(passages, checkpoint=minilm_colbert(), partitions=100_000)


@pytest.mark.slow
def test_the_last_words_of_300_decide_the_ranking(villages: ColBERT) -> None:
    """Colbert-ai would read the first 32 tokens, which all of these queries have in common."""
    best, beginnings = {}, set()
    for name, what in PLACES.items():
        query = blended(f"So which one has the {name}, a {name}, the {name}? Not bread but the {name}: {what}.")
        assert len(query.split()) == 300
        (found,) = villages.search([query], 8)
        best[name] = found[0].id
        assert not cut_of(found)
        assert len(villages.encoder.queries([query]).vectors[0]) > 320
        beginnings.add(tuple(villages.encoder.tokenizer(query)["input_ids"][:32]))
    assert best == {name: name for name in PLACES}
    assert len(beginnings) == 1


def candidates(index: ColBERT, query: str, tokens: int | None = None) -> set[str]:
    """The passages that the scorer looks at, where it seeks them for the first `tokens` of a query."""
    vectors = index.encoder.queries([query]).vectors[0]
    settings = SimpleNamespace(
        query_maxlen=tokens or len(vectors), ncells=1, centroid_score_threshold=0.0, ndocs=4 * len(index),
        interaction="colbert", total_visible_gpus=0,
    )  # fmt: skip
    positions, _ = index._scorer._scorer.rank(settings, vectors.unsqueeze(0))
    return {index.passages[at].id for at in positions}


def test_candidates_are_sought_for_the_last_words_too(isles: ColBERT) -> None:
    asked = {
        "sw-000": "an archipelago of seven inhabited islands and some two hundred skerries in the Sillen Sea",
        "sw-003": "Pellisand, the southernmost of the Ondrell Isles, covers 940 square kilometres",
        "sw-008": "Fallow Tooth, a bare rock in the Sillen Sea, eleven kilometres east of Hathermouth",
        "sw-024": "The River Sallow flows for 39 kilometres through the orchards",
        "sw-096": "Anwen Skarl was a painter born at Gravenloe",
    }
    found = ColBERT.open(isles.path or "", effort=SearchEffort(1, 0.0, 400))
    missed = 0
    for name, words in asked.items():
        query = blended(words)
        assert name in candidates(isles, query)
        assert name in {hit.id for hit in found(query, k=100)}
        missed += name not in candidates(isles, query, tokens=32)
    assert missed >= 4, "the first 32 tokens, colbert-ai's limit, lead to other passages"


def test_a_run_flags_the_query_that_was_cut_and_no_other(villages: ColBERT, tmp_path: Path) -> None:
    asked = "So which village is near a volcano?"
    questions = load([{"question": blended(asked, words), "answer": "x"} for words in (300, 900)])
    with pytest.warns(
        UserWarning, match=r"a query of 900 words was cut: this checkpoint reads 512 tokens, .* end was kept"
    ):
        run = evaluate(Direct(villages), questions, lm="offline", run=tmp_path / "run", progress=False)
    assert [row["flags"]["query_cut"] for row in run.rows] == [0, 1]
    assert run.metrics["flags"]["query_cut"] == 1


def test_ten_thousand_words_are_searched_by_their_end(villages: ColBERT) -> None:
    end = "So which one has the volcano, a volcano, the volcano? Not bread but the volcano: a mountain of fire."
    (found,) = villages.search([blended(end, 10_000)], 3)
    assert cut_of(found)
    assert found[0].id == "volcano"


@pytest.mark.parametrize("partitions", [None, 32])
def test_search_finds_what_exhaustive_scoring_finds(partitions: int | None) -> None:
    passages = list(islice(read_corpus(SAMPLE), 100))
    short = [Passage(each.id, each.title, each.text.partition(". ")[0]) for each in passages]
    index = ColBERT.build(short, checkpoint=minilm_colbert(), partitions=partitions)
    questions = [each.text.partition(". ")[2].split(". ")[0] for each in passages[::5]]
    vectors, lengths = index.encoder.passages([each.line for each in short])
    shared = 0
    for question, hits in zip(questions, index.search(questions, 10), strict=True):
        (query,) = index.encoder.queries([question]).vectors
        scores = torch.stack([(own.float() @ query.T).max(0).values.sum() for own in vectors.split(lengths)])
        shared += len({hit.id for hit in hits} & {short[at].id for at in scores.topk(10).indices.tolist()})
    assert shared / (10 * len(questions)) >= 0.85
