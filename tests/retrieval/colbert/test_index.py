"""The ColBERT index: built, opened (colbert-ai's own folders too), searched with long queries."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import shutil
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from checkpoints import minilm_colbert, tiny_colbert
from colbert_ai import patch_colbert

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval.base import cut_of
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.colbert.compat import gpus_seen
from blendfilter.retrieval.colbert.encoder import TokenEncoder
from blendfilter.retrieval.colbert.index import SearchEffort, collection_passages
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.retrieval.indexes import build, open_index

QUERIES = ["Which river is of 17?", "the king of the island", "castle 88", "hill 5 5 5"]


@pytest.fixture
def copy(index: ColBERT, tmp_path: Path) -> Path:
    assert index.path is not None
    return Path(shutil.copytree(index.path, tmp_path / "copy"))


def brute(vectors: torch.Tensor, lengths: list[int], query: torch.Tensor) -> torch.Tensor:
    """MaxSim of a query and every passage, by the definition: no centroids, no candidates."""
    return torch.stack([(own @ query.T).max(0).values.sum() for own in vectors.split(lengths)])


def test_scores_are_maxsim_over_the_vectors_that_are_kept(index: ColBERT, encoder: TokenEncoder) -> None:
    scorer = index._scorer
    lengths = scorer.doclens.tolist()
    small = type(scorer.embeddings)(
        scorer.embeddings.codes[: sum(lengths)], scorer.embeddings.residuals[: sum(lengths)]
    )
    kept = scorer.codec.decompress(small)
    place = {passage.id: at for at, passage in enumerate(index.passages)}
    wide = SearchEffort(ncells=64, threshold=-1.0, ndocs=4 * len(index))
    for query, hits in zip(QUERIES, ColBERT.open(index.path or "", effort=wide).search(QUERIES, 20), strict=True):
        scores = brute(kept, lengths, encoder.queries([query]).vectors[0])
        for hit in hits:
            assert hit.score == pytest.approx(scores[place[hit.id]].item(), abs=1e-3)
        assert [hit.score for hit in hits] == pytest.approx(scores.topk(20).values.tolist(), abs=1e-3)


def test_equal_scores_keep_corpus_order(checkpoint: Path, towns: list[Passage]) -> None:
    doubles = [Passage(f"d{n}", "", "the king of the island") for n in range(40)]
    index = ColBERT.build([*towns[:30], *doubles, *towns[30:60]], checkpoint=checkpoint)
    found = index("king of the island", k=12)
    assert [hit.id for hit in found] == [f"d{n}" for n in range(12)]
    assert len({hit.score for hit in found}) == 1


# --- folders --------------------------------------------------------------------------------------------------------


def test_opened_by_its_kind_wherever_it_lies(index: ColBERT, copy: Path) -> None:
    again = open_index(copy)
    assert isinstance(again, ColBERT)
    assert again.fingerprint == index.fingerprint
    assert again.search(QUERIES, 5) == index.search(QUERIES, 5)
    result = again.info()
    assert (result["kind"], result["passages"], result["settings"]["nbits"]) == ("colbert", len(again), 4)
    assert (result["path"], result["device"] in ("cpu", "cuda")) == (str(copy), True)


def test_another_checkpoint_is_refused(copy: Path) -> None:
    with pytest.raises(BadData, match=r"was built with another checkpoint than the one at .*: name that one"):
        open_index(copy, checkpoint=tiny_colbert(seed=1))


def test_effort_makes_another_index(index: ColBERT) -> None:
    one, other = (ColBERT.open(index.path or "", effort=SearchEffort(1, 0.5, ndocs)) for ndocs in (256, 16))
    assert len({index.fingerprint, one.fingerprint, other.fingerprint}) == 3
    assert other.info()["fingerprint"] == other.fingerprint
    assert len(other("river", k=4)) == 4
    with pytest.raises(BadArgument, match="ncells of at least 1"):
        ColBERT.open(index.path or "", effort=SearchEffort(0, 0.5, 256))


def test_an_index_of_memory_goes_with_its_folder(checkpoint: Path, towns: list[Passage]) -> None:
    index = build("colbert", towns, checkpoint=checkpoint)
    assert isinstance(index, ColBERT)
    folder = index.path
    assert folder is not None
    assert folder.is_dir()
    assert len(index("river", k=3)) == 3
    del index
    gc.collect()
    assert not folder.exists()


pytest.importorskip("faiss")


class PlaidFolder(NamedTuple):
    folder: Path
    collection: Path


@pytest.fixture(scope="session")
def made(towns: list[Passage], checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> PlaidFolder:
    """colbert-ai's index of the towns, two bits."""
    patch_colbert()
    from colbert import Indexer
    from colbert.infra import ColBERTConfig, Run, RunConfig

    root = tmp_path_factory.mktemp("colbert-ai")
    collection = root / "towns.tsv"
    lines = [f"{n}\t{town.text}" + f"\t{town.title}" * bool(town.title) for n, town in enumerate(towns)]
    collection.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    one_process = RunConfig(nranks=1, gpus=0, avoid_fork_if_possible=True, root=str(root), experiment="e")
    with gpus_seen(0), Run().context(one_process), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = ColBERTConfig(nbits=2, doc_maxlen=60, kmeans_niters=4, root=str(root))
        indexer = Indexer(checkpoint=str(checkpoint), config=config, verbose=0)
        indexer.index(name="towns", collection=str(collection), overwrite="force_silent_overwrite")
    return PlaidFolder(Path(indexer.get_index()), collection)


@pytest.fixture
def plaid(made: PlaidFolder, tmp_path: Path) -> PlaidFolder:
    folder = Path(shutil.copytree(made.folder, tmp_path / "index"))
    return PlaidFolder(folder, Path(shutil.copy(made.collection, tmp_path)))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    result = json.loads((folder / "metadata.json").read_text())
    change(result)
    (folder / "metadata.json").write_text(json.dumps(result))


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.iterdir())}


def test_it_opens_and_finds_what_colbert_ai_finds(made: PlaidFolder, checkpoint: Path, towns: list[Passage]) -> None:
    from colbert import Searcher

    before = tree(made.folder)
    index = open_index(made.folder, effort=SearchEffort(1, 0.5, 256))
    assert isinstance(index, ColBERT)
    assert len(index) == len(towns)
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = Searcher(index=made.folder.name, index_root=str(made.folder.parent), verbose=0)
    for query in QUERIES:
        numbers, _, scores = theirs.search(query, k=10)
        ours = index(query, k=10)
        assert [hit.id for hit in ours] == [str(number) for number in numbers]
        assert [hit.score for hit in ours] == pytest.approx(scores, abs=1e-4)
        assert [theirs.collection[number] for number in numbers] == [hit.line for hit in ours]
    assert tree(made.folder) == before, "nothing was written"


def test_a_collection_that_moved(plaid: PlaidFolder) -> None:
    edit(plaid.folder, lambda reported: reported["config"].update(collection="/nowhere/towns.tsv"))
    with pytest.raises(
        MissingFile, match=r"no collection at /nowhere/towns.tsv, .*: say where it lies \(collection=\)"
    ):
        open_index(plaid.folder)
    assert len(open_index(plaid.folder, collection=plaid.collection)("river", k=3)) == 3


def test_a_collection_of_another_length(plaid: PlaidFolder) -> None:
    lines = plaid.collection.read_text().splitlines(keepends=True)
    plaid.collection.write_text("".join(lines[:-1]))
    with pytest.raises(BadData, match=r"holds 150 passages and its collection .* 149: name the collection"):
        open_index(plaid.folder, collection=plaid.collection)


def test_files_that_are_missing(plaid: PlaidFolder) -> None:
    (plaid.folder / "buckets.pt").unlink()
    with pytest.raises(BadData, match=r"is not whole \(buckets.pt\): build it again"):
        open_index(plaid.folder, collection=plaid.collection)


# --- the collection -------------------------------------------------------------------------------------------------


def test_lines_of_a_collection(tmp_path: Path) -> None:
    path = tmp_path / "c.tsv"
    path.write_bytes("0\tA river.\n1\tTown | A hill.\r\n2\ttext\tTitle\n3\t é \n".encode())
    passages = collection_passages(path)
    assert [(each.id, each.title, each.text) for each in passages] == [
        ("0", "", "A river."), ("1", "Town", "A hill."), ("2", "Title", "text"), ("3", "", "é"),
    ]  # fmt: skip
    assert passages[-1] == passages[3]
    assert passages[1:3] == [passages[1], passages[2]]
    with pytest.raises(IndexError):
        passages[4]


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
        beginnings.add(tuple(villages.encoder.model.tokenizer(query)["input_ids"][:32]))
    assert best == {name: name for name in PLACES}
    assert len(beginnings) == 1


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
