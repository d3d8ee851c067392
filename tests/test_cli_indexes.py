"""`index` and `search` with every source and engine, and where `ask` and `eval` take their passages from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
from checkpoints import tiny_bert, tiny_cross_encoder, tiny_dpr
from refusing import PASSAGES, ROWS, evaluation, lines, refused, untouched, world
from small_world import Command, Outcome, tree

from blendfilter.records import Passage
from blendfilter.resources import sample
from blendfilter.retrieval import indexes
from blendfilter.retrieval.base import Hits, Retriever
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.stored import stored_passages


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return world(tmp_path, monkeypatch)


# folders and chunks


def test_a_folder_of_documents(blendfilter: Command, here: Path) -> None:
    (here / "docs" / "more").mkdir(parents=True)
    (here / "docs" / "guide.md").write_text("# Guide\n\nThe ferry leaves at noon.\n\n## Piers\n\nThere are two piers.")
    (here / "docs" / "more" / "tides.txt").write_text("High water comes twice a day.")
    (here / "docs" / "chart.png").write_bytes(b"\xff\xfe")
    outcome = blendfilter("index", "docs/", "--chunk", "8w", "--out", "made")
    assert outcome.code == 0
    assert outcome.notices == ["blendfilter: docs: 2 text files are read, 1 of other kinds, hidden or links left out"]
    assert re.match(r"made: bm25, 3 passages, ", outcome.out)
    assert [(each.id, each.title) for each in stored_passages(here / "made")] == [
        ("guide.md#0", "Guide"),
        ("guide.md#1", "Guide > Piers"),
        ("more/tides.txt#0", "tides"),
    ]
    assert blendfilter("search", "made", "piers", "-k", 1).out.split("\t")[2] == "guide.md#1"


def test_a_folder_is_a_corpus_and_so_is_one_text(blendfilter: Command, here: Path) -> None:
    (here / "docs").mkdir()
    (here / "docs" / "pier.md").write_text("# Pier\n\nThe pier of Brask was built in 1874.\n")
    assert blendfilter("index", "docs", "--out", "made").out.startswith("made: bm25, 1 passages, ")
    assert blendfilter("index", "docs/pier.md", "--out", "one").out.startswith("one: bm25, 1 passages, ")
    for year in ("1874", "1890"):  # another content, another index
        (here / "docs" / "pier.md").write_text(f"# Pier\n\nThe pier of Brask was built in {year}.\n")
        asked = ("ask", "When was the pier of Brask built?", "--lm", "offline", "--corpus", "docs", "--show-trace")
        assert f"Pier | The pier of Brask was built in {year}." in blendfilter(*asked).out


def test_an_index_in_shards_and_one_of_indexes_built_apart(blendfilter: Command, here: Path) -> None:
    corpus = sample("corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for name, part in (("one", corpus[:100]), ("two", corpus[100:])):
        (here / f"{name}.jsonl").write_text("".join(part), encoding="utf-8")
        assert blendfilter("index", f"{name}.jsonl", "--out", name).code == 0
    assert blendfilter("index", "sample", "--out", "whole").code == 0
    made = blendfilter("index", "sample", "--shards", 3, "--out", "sharded")
    assert made.out.startswith("sharded: sharded, 193 passages, fingerprint ")
    assert blendfilter("index", "--join", "one", "--join", "two", "--out", "joined").code == 0
    found = {name: blendfilter("search", name, "a town with a harbour").out for name in ("whole", "sharded", "joined")}
    assert found["whole"] == found["sharded"] == found["joined"] != ""
    run = ("eval", "qa", "--data", "sample", "--lm", "offline", "--limit", 3, "--method", "direct-retrieval")
    assert blendfilter(*run, "--index", "joined", "--run", "run").code == 0
    assert blendfilter(*run, "--index", "joined", "--run", "run", "--replay").code == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--join", "one", "--engine", "bm25"), "--join makes an index of indexes as they are"),
        (("sample", "--join", "one"), "--join makes an index of indexes as they are"),
        (("--join", "one", "--chunk", "50w"), "--join makes an index of indexes as they are"),
        (("--add", "sample", "--shards", "2"), "--shards makes an index anew"),
        (("--join", "nowhere"), "no index at"),
    ],
)
def test_shards_that_make_no_sense(words: tuple[str, ...], error: str, blendfilter: Command, here: Path) -> None:
    outcome = blendfilter("index", *words, "--out", "out")
    assert (outcome.code, error in outcome.error) == (2, True), outcome.error
    assert not (here / "out").exists()


def test_folders_that_want_something_else(blendfilter: Command, here: Path) -> None:
    (here / "docs").mkdir()
    (here / "docs" / "a.txt").write_text("A pier.")
    (here / "latin").mkdir()
    (here / "latin" / "b.txt").write_bytes(b"caf\xe9")
    assert blendfilter("index", "corpus.jsonl", "--out", "made").code == 0
    before = tree(here)
    for chunk in ([], ["--chunk", "100w"]):
        refused(blendfilter("index", "made", "--out", "new", *chunk), "'made' is an index already (of kind bm25)")
    refused(blendfilter("index", "latin", "--out", "new", "--chunk", "9w"), "latin/b.txt: not UTF-8 (byte 4)")
    done = blendfilter("ask", "Who?", "--lm", "offline", "--corpus", "made")
    refused(done, "'made' is an index already (of kind bm25)")
    outcome = blendfilter("index", "corpus.jsonl", "--out", "new", "--chunk", "100")
    refused(outcome, "--chunk takes a number of words with a w, such as 100w", "'100'")
    untouched(here, before)


# engines and their options


class Recording:
    """An engine that keeps what it was asked to build, and builds BM25."""

    settings: ClassVar[dict[str, Any]] = {}

    @classmethod
    def build(cls, corpus: Any, out: Any = None, *, overwrite: bool, progress: Any, **settings: Any) -> Retriever:
        cls.settings = settings
        return BM25.build(corpus, out, overwrite=overwrite, progress=progress)


GIVEN: dict[str, tuple[list[object], dict[str, Any]]] = {
    "bm25": (["--k1", 1.2, "--b", 0], {"k1": 1.2, "b": 0.0}),
    "colbert": (
        ["--checkpoint", "cp", "--nbits", 4, "--doc-maxlen", 180, "--gpus", 0, "--partitions", 64],
        {"checkpoint": "cp", "nbits": 4, "doc_maxlen": 180, "gpus": 0, "partitions": 64},
    ),
    "dense": (
        ["--encoder", "enc", "--query-encoder", "ask", "--index-type", "ivf", "--similarity", "l2", "--pooling", "cls",
         "--query-prompt", "search", "--passage-prefix", "", "--nlist", 9, "--nprobe", 2],
        {"encoder": "enc", "query_encoder": "ask", "index": "ivf", "similarity": "l2", "pooling": "cls",
         "query_prompt": "search", "passage_prefix": "", "nlist": 9, "nprobe": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("engine", GIVEN)
def test_each_engine_gets_the_options_that_were_given(
    blendfilter: Command, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setitem(indexes.ENGINES, engine, Recording)
    words, settings = GIVEN[engine]
    outcome = blendfilter("index", "corpus.jsonl", "--out", "made", "--engine", engine, *words)
    assert (outcome.code, outcome.err) == (0, "")
    assert Recording.settings == settings
    few = ["--encoder", "enc"] if engine == "dense" else []
    assert blendfilter("index", "corpus.jsonl", "--out", "made", "--engine", engine, "--overwrite", *few).code == 0
    assert Recording.settings == ({"encoder": "enc"} if few else {}), "the engine's own defaults"


@pytest.mark.parametrize(
    ("engine", "words", "stated"),
    [
        ("bm25", ["--nbits", 2], "--nbits is for colbert: take that, or leave it out"),
        ("bm25", ["--index-type", "flat"], "--index-type is for dense"),
        ("colbert", ["--k1", 1], "--k1 is for bm25 and rank-bm25"),
        ("dense", [], "the engine dense wants --encoder"),
        ("bm52", ["--nbits", 2], "no engine 'bm52'. Did you mean 'bm25'?"),
    ],
)
def test_options_of_another_engine(
    blendfilter: Command, here: Path, engine: str, words: list[object], stated: str
) -> None:
    before = tree(here)
    refused(blendfilter("index", "gone.jsonl", "--out", "made", "--engine", engine, *words), stated)
    untouched(here, before)


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (["--query-prompt", "q"], "--query-prefix takes any text"),
        (["--encoder", "question"], "with --encoder and its question encoder with --query-encoder"),
    ],
)
def test_encoders_that_cannot_be_used_so(
    blendfilter: Command, here: Path, words: list[object], stated: str, tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    pytest.importorskip("sentence_transformers")
    tiny_bert(here / "plain")
    tiny_dpr("Question", here / "question")
    before = tree(here)
    given = words if "--encoder" in words else ["--encoder", "plain", *words]
    refused(blendfilter("index", "corpus.jsonl", "--out", "made", "--engine", "dense", *given), stated)
    untouched(here, before)


# search


class Cutting(Retriever):
    """Reads one word of a query."""

    fingerprint = "0" * 16

    def find(self, queries: Any, k: int) -> list[list[Passage]]:
        return [Hits([Passage("a", "Orm Pier", "A pier.", 1.0)], cut=len(query.split()) > 1) for query in queries]


def test_a_notice_says_that_a_query_was_cut(blendfilter: Command, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setitem(indexes.KINDS, "test", lambda where: Cutting())
    notice = "blendfilter: the query is longer than this index reads: it was cut\n"
    assert blendfilter("search", "test://x", "two words") == (0, "1\t1.0000\ta\tOrm Pier | A pier.\n", notice)
    assert blendfilter("search", "test://x", "one").err == ""
    (here / "queries.txt").write_text("one\ntwo words\nthree more words\n")
    outcome = blendfilter("search", "test://x", "--queries", "queries.txt", "--out", "hits.jsonl")
    assert outcome.out == "hits.jsonl: the hits of 3 queries, index 0000000000000000\n"
    assert outcome.notices == [
        "blendfilter: 2 queries are longer than this index reads and were cut (query_cut in hits.jsonl)"
    ]


WHERE = [{"id": row["id"], "question": row["question"]} for row in ROWS]
FILES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "questions": ("\n".join(json.dumps(row) for row in ROWS), WHERE),
    "a list": (json.dumps([{"_id": row["id"], "question": row["question"]} for row in ROWS]), WHERE),
    "queries": (
        '{"query": " a pier "}\n{"query": "a fair", "qid": 7}',
        [{"question": "a pier"}, {"id": 7, "question": "a fair"}],
    ),
    "lines": (" a pier \n\n{fair}\n", [{"question": "a pier"}, {"question": "{fair}"}]),
    "ircot": (
        json.dumps({"question_id": "x", "question_text": "a pier", "contexts": [], "dataset": "hotpotqa",
                    "answers_objects": [{"spans": ["yes"]}]}),
        [{"id": "x", "question": "a pier"}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_many_queries_from_every_kind_of_file(blendfilter: Command, here: Path, kind: str) -> None:
    content, wanted = FILES[kind]
    (here / "asked").write_text(content)
    assert blendfilter("index", "corpus.jsonl", "--out", "made").code == 0
    outcome = blendfilter("search", "made", "--queries", "asked", "--out", "hits.jsonl", "-k", 2)
    assert (outcome.code, outcome.err) == (0, "")
    rows = [json.loads(line) for line in (here / "hits.jsonl").read_text().splitlines()]
    assert [{name: row[name] for name in row if name != "passages"} for row in rows] == wanted
    index = BM25.open(here / "made")
    for row in rows:
        expected = [(each.id, each.title, each.text, each.score) for each in index(row["question"], k=2)]
        assert [tuple(each.values()) for each in row["passages"]] == expected
    assert outcome.out == f"hits.jsonl: the hits of {len(wanted)} queries, index {index.fingerprint}\n"


def test_searches_that_make_no_sense(blendfilter: Command, here: Path) -> None:
    assert blendfilter("index", "corpus.jsonl", "--out", "made").code == 0
    (here / "none.json").write_text("[]")
    (here / "odd.jsonl").write_text('{"query": "a"}\n{"colour": "red"}')
    before = tree(here)
    for words in ([], ["pier", "--queries", "questions.jsonl", "--out", "x"]):
        refused(blendfilter("search", "made", *words), "Give a QUERY in quotes, or a file of them with --queries")
    for words in (["pier", "--out", "x"], ["--queries", "questions.jsonl"]):
        refused(blendfilter("search", "made", *words), "--queries FILE and --out FILE go together")
    refused(blendfilter("search", "made", "--queries", "none.json", "--out", "x"), "none.json has no queries")
    refused(blendfilter("search", "made", "--queries", "odd.jsonl", "--out", "x"), "odd.jsonl, line 2", "'query'")
    outcome = blendfilter("search", "made", "--queries", "questions.jsonl", "--out", "corpus.jsonl")
    refused(outcome, "there is a file at corpus.jsonl already", "--overwrite")
    untouched(here, before)


# eval and ask

MANY = ("search", "made", "--queries", "questions.jsonl", "--out", "hits.jsonl", "-k", 5)


def test_eval_of_hits_found_before(blendfilter: Command, here: Path) -> None:
    """The same answers as with the index itself, with the index gone; the run names the file's content."""
    assert blendfilter("index", "corpus.jsonl", "--out", "made").code == 0
    assert blendfilter(*MANY).code == 0
    same = {"corpus": None, "method": "cot-retrieval"}
    assert blendfilter(*evaluation(**same, index="made", run="one")).code == 0
    for path in sorted((here / "made").iterdir()):
        path.unlink()
    found = blendfilter(*evaluation(**same, retrieved="hits.jsonl", run="two"))
    assert found.code == 0
    assert (here / "two/predictions.jsonl").read_bytes() == (here / "one/predictions.jsonl").read_bytes()
    settings = json.loads((here / "two/run.json").read_text())["settings"]
    assert settings["retrievers"][0]["kind"] == "retrieved"
    again = blendfilter(*evaluation(**same, retrieved="hits.jsonl", run="two", without=None), "--replay")
    assert again.code == 0


def test_a_replay_wants_no_index(blendfilter: Command, here: Path) -> None:
    """An index that is gone, or a server that is down, is named, and the journal answers; a new run is refused."""
    assert blendfilter("index", "corpus.jsonl", "--out", "made").code == 0
    wanted = evaluation(corpus=None, index="made", method="cot-retrieval", run="one", without=None)
    first = blendfilter(*wanted)
    before = tree(here / "one")
    for path in (here / "made").iterdir():
        path.unlink()
    again = blendfilter(*wanted, "--replay")
    assert (again.code, again.out) == (0, first.out)
    assert any("replaying from the journal alone" in line for line in again.notices)
    after = tree(here / "one")
    assert all(after[name] == before[name] for name in ("predictions.jsonl", "metrics.json"))
    assert blendfilter(*wanted).code == 2

    def replayed(**other: object) -> Outcome:
        return blendfilter(
            *evaluation(**{"corpus": None, "method": "cot-retrieval", "run": "one", **other}), "--replay"
        )

    assert replayed(index="http://127.0.0.1:9")[:2] == (0, first.out)
    refused(replayed(corpus="corpus.jsonl", index="made"), "--corpus and --index name 2 sources of passages: give one")
    assert replayed(index="made", k=1).code == 2


def test_questions_without_hits_are_refused_before_any_work(blendfilter: Command, here: Path) -> None:
    lines(here / "hits.jsonl", [{"question": ROWS[0]["question"], "passages": [PASSAGES[0]]}])
    before = tree(here)
    outcome = blendfilter(*evaluation(corpus=None, retrieved="hits.jsonl", method="cot-retrieval"))
    refused(
        outcome, "hits.jsonl holds no hits for 2 of 3 questions, the first of them 'In which town does Orm Pier stand?'"
    )
    untouched(here, before)


# reranking


def test_search_and_ask_put_an_index_into_a_models_order(blendfilter: Command, here: Path) -> None:
    assert blendfilter("index", "corpus.jsonl", "--out", "made").code == 0
    rerank = ("--rerank", tiny_cross_encoder(), "--rerank-from", 4)
    plain, done = (
        blendfilter("search", "made", "harbour town", "-k", 4),
        blendfilter("search", "made", "harbour town", "-k", 4, *rerank),
    )
    assert (done.code, done.err) == (0, "")
    rows, before = ([line.split("\t") for line in each.out.splitlines()] for each in (done, plain))
    assert sorted(row[2] for row in rows) == sorted(row[2] for row in before)
    assert [float(row[1]) for row in rows] == sorted((float(row[1]) for row in rows), reverse=True)
    assert [row[1] for row in rows] != [row[1] for row in before]
    shown = blendfilter("ask", "harbour town", "--index", "made", "-k", 2, *rerank, "--lm", "offline", "--show-trace",
                        "--method", "direct-retrieval")  # fmt: skip
    assert [shown.out.index(row[3].partition(" | ")[0] + " | ") > 0 for row in rows[:2]] == [True, True]


def test_a_reranked_run_names_its_model_and_is_replayed_and_repeated(blendfilter: Command, here: Path) -> None:
    """Also by its recorded options, and with the model gone."""
    model = tiny_cross_encoder(here / "model")
    words = evaluation(task="qa", method="direct-retrieval", rerank=model, rerank_from=5)
    assert blendfilter(*words).code == 0
    record = json.loads((here / "run/run.json").read_text())
    assert [index["kind"] for index in record["settings"]["retrievers"]] == ["reranked"]
    assert record["notes"]["reranked"] == [{"model": str(model), "by": "cross-encoder", "depth": 5}]
    assert blendfilter("eval", "--like", "run", "--run", "again").code == 0
    assert (here / "again/predictions.jsonl").read_bytes() == (here / "run/predictions.jsonl").read_bytes()
    model.rename(here / "elsewhere")
    done = blendfilter(*words, "--replay")
    assert done.code == 0
    assert "no reranker" in done.err


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (("--rerank", "gone"), "no reranker 'gone': it is no folder"),
        (("--rerank", tiny_cross_encoder, "--rerank-from", 3, "-k", 4), "-k 4 is more than --rerank-from 3"),
        (("--rerank", tiny_cross_encoder, "--rerank-from", 0), "--rerank-from is 0: give a whole number of 1 or more"),
        (("--rerank-from", 50), "--rerank-from goes with --rerank: add that"),
    ],
)
def test_rerankers_that_are_refused(blendfilter: Command, here: Path, words: Any, stated: str) -> None:
    given = [word() if callable(word) else word for word in words]
    assert blendfilter("index", "corpus.jsonl", "--out", "made").code == 0
    refused(blendfilter("search", "made", "harbour", *given), stated)
    refused(blendfilter(*evaluation(task="qa", method="direct-retrieval"), *given), stated)


def test_what_a_reranker_has_nothing_to_order_in(blendfilter: Command, here: Path) -> None:
    words = evaluation(task="qa", method="direct", corpus=None, rerank=tiny_cross_encoder())
    refused(blendfilter(*words), "none is named: add --index or --corpus")


# --- updates ----------------------------------------------------------------------------------------------------------


def test_passages_are_added_to_an_index_and_deleted_from_it(blendfilter: Command, here: Path) -> None:
    (here / "new.jsonl").write_text(
        '{"id": "n1", "title": "Zoo", "text": "A zebra."}\n{"id": "n2", "text": "A gnu."}\n'
    )
    (here / "ids.txt").write_text("n1\n\nsw-000\n")
    first = blendfilter("index", "sample", "--out", "made").out
    added = blendfilter("index", "--add", "new.jsonl", "--out", "made").out
    assert re.fullmatch(r"made: bm25, 195 passages \(193 before\), fingerprint [0-9a-f]{16}\n", added)
    assert blendfilter("search", "made", "zebra").out.endswith("\tn1\tZoo | A zebra.\n")
    same = blendfilter("index", "--add", "new.jsonl", "--out", "made")
    assert (same.code, same.out) == (0, added.replace("passages (193 before)", "passages as before"))
    assert same.err == "blendfilter: 2 passages are in the index already and stay as they are\n"
    deleted = blendfilter("index", "--delete", "n1, n2", "--out", "made").out
    assert deleted.rpartition(" ")[2] == first.rpartition(" ")[2], "it holds what it held before"
    assert "195 passages (193 before)" in blendfilter("index", "--add", "new.jsonl", "--out", "made").out
    assert "193 passages (195 before)" in blendfilter("index", "--delete", "ids.txt", "--out", "made").out


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (["--out", "made"], "index what? Name a CORPUS, or update the index at --out with --add FILE or --delete IDS"),
        (["sample", "--add", "sample", "--out", "made"], "the corpus sample makes an index anew; --add and --delete"),
        (["--add", "sample", "--k1", 2, "--out", "made"], "--k1 makes an index anew; --add and --delete change one"),
        (["--add", "sample", "--engine", "bm25", "--out", "made"], "--engine makes an index anew"),
        (["--delete", "x", "--replace", "--out", "made"], "--replace goes with --add: add that"),
        (["--delete", " ,", "--out", "made"], "--delete ,: there are no ids"),
        (["--delete", "x", "--out", "made"], "no passage 'x' in the index at made: nothing was deleted or added"),
    ],
)
def test_an_update_that_cannot_be(blendfilter: Command, here: Path, words: list[object], stated: str) -> None:
    made = BM25.build([("sw-000", "Fell", "A hill.")], here / "made")
    refused(blendfilter("index", *words), stated)
    assert BM25.open(here / "made").fingerprint == made.fingerprint
