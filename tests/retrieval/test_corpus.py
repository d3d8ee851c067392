"""Corpora in every layout, streamed; the pooled corpus; passages on disk."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dspy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadArgument, BadData, BlendFilterError, EmptyData
from blendfilter.records import Passage, Question
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.corpus import passages_of, pooled, read_corpus
from blendfilter.retrieval.stored import gather

MILL = Passage("m1", "Tide Mill", "A mill at Bremsund. It turns.")
QUAY = Passage("q2", "", "A quay.")
LAYOUTS = {
    "own": '{"id": "m1", "title": "Tide Mill", "text": "A mill at Bremsund. It turns."}\n\n'
    '{"id": "q2", "text": "A quay."}',
    "beir": '{"_id": "m1", "title": "Tide Mill", "text": "A mill at Bremsund. It turns.", "metadata": {}}\n'
    '{"_id": "q2", "title": "", "text": "A quay."}',
    "flashrag": '{"id": "m1", "contents": "\\"Tide Mill\\"\\nA mill at Bremsund. It turns."}\n'
    '{"id": "q2", "contents": "A quay."}',
    "abstracts": '{"id": "m1", "title": "Tide Mill", "text": ["A mill at Bremsund.", " It turns."]}\n'
    '{"id": "q2", "title": "", "text": ["A quay."]}',
    "kilt": '{"_id": "m1", "wikipedia_id": "m1", "wikipedia_title": "Tide Mill", "anchors": [], '
    '"text": ["Tide Mill\\n", "A mill at Bremsund.\\n", "It turns.\\n"]}\n'
    '{"_id": "q2", "wikipedia_title": "", "text": ["A quay."]}',
    "colbert": "m1\tA mill at Bremsund. It turns.\tTide Mill\nq2\tA quay.\n",
    "colbert with bars": "m1\tTide Mill | A mill at Bremsund. It turns.\r\nq2\tA quay.\r\n",
    "dpr": 'id\ttext\ttitle\nm1\t"A mill at Bremsund. It turns."\tTide Mill\nq2\t"A quay."\t\n',
    "list": '[{"id": "m1", "title": "Tide Mill", "text": "A mill at Bremsund. It turns."},\n'
    ' {"id": "q2", "text": "A quay."}]',
}


def written(folder: Path, text: str | bytes, name: str = "corpus") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_plain_and_packed_gives_the_same_passages(tmp_path: Path, layout: str) -> None:
    data = LAYOUTS[layout].encode()
    assert list(read_corpus(written(tmp_path, data))) == [MILL, QUAY]
    assert list(read_corpus(written(tmp_path, gzip.compress(data)))) == [MILL, QUAY]


@pytest.mark.parametrize("name", ["doc_id", "docno", "passage_id", "psg_id", "corpus_id", "wikipedia_id"])
def test_ids_of_rows_have_the_names_that_they_have_in_tables(name: str, tmp_path: Path) -> None:
    row = json.dumps({name: "m1", "title": "Tide Mill", "body": "A mill."})
    assert list(read_corpus(written(tmp_path, row))) == [Passage("m1", "Tide Mill", "A mill.")]


def test_positions_are_the_ids_where_there_are_none(tmp_path: Path) -> None:
    rows = '[{"title": "Tide Mill", "text": "A mill."}, {"title": "Quay", "text": "A quay."}]'
    assert [one.id for one in read_corpus(written(tmp_path, rows))] == ["0", "1"]
    assert list(read_corpus(written(tmp_path, '["Tide Mill | A mill.", "A quay."]'))) == [
        Passage("0", "Tide Mill", "A mill."),
        Passage("1", "", "A quay."),
    ]


def test_doubled_quotes_of_a_dpr_file_are_single_ones(tmp_path: Path) -> None:
    path = written(tmp_path, 'id\ttext\ttitle\n1\t"The ""Old"" mill."\t"Mill ""A"""\n')
    assert list(read_corpus(path)) == [Passage("1", 'Mill "A"', 'The "Old" mill.')]
    path = written(tmp_path, '1\t"The ""Old"" mill."\n')
    assert next(read_corpus(path)).text == '"The ""Old"" mill."'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"id": "1", "text": "a"}\n{"id": "2", "text": "b"}\n\n{"id": "1", "text": "c"}',
            "line 4: passage id '1'.*line 1",
        ),
        ('{"id": "1", "text": "a"}\n{"id": "2"}', r"line 2: field 'text' is missing \(it has: id\)"),
        ('{"id": "1", "text": "a"}\n{"text": "b"}', r"line 2: field 'id' is missing \(it has: text\)"),
        ('{"id": "1", "text": 5}', "line 1: field 'text' is wrong: expected a text, found 5"),
        ("[1, 2]", "item 1: expected an object"),
        ("1\ta\nno tabs here\n", "line 2: expected an id, a tab and a passage"),
        ("D1\thttps://a.example/mill\tMill\tA mill.\n", "line 1: expected an id, a tab and a passage"),
        ("id\ttext\ttitle\r1\tA mill.\tMill\r", "line 1: its lines end in carriage returns alone"),
        ('id,text,title\n1,"A \\"tide\\" mill.",Mill\n', "line 2: a cell begins with a quote that does not close"),
        ("id\tsummary\n1\ta\n", "line 1: the header names no column 'text'"),
        ("Nr\tInhalt\n1\tEin Berg.\n", r"line 1: the header names no column 'text' \(it names: Nr, Inhalt\)"),
        ("id\ttitle\nm1\tTide Mill\n", "line 1: the header names no column 'text'"),
        ("id\ttext\n1\ta\tb\n", "line 2: 3 cells, where the header names 2"),
        ("id\ttext\ttitle\n1\n", "line 2: 1 cells, where the header names 3"),
        ('id,text\n1,"A mill\nthat turns.\n2,A quay.\n', "line 2: a cell begins with a quote that does not close"),
        ('id,text\n1,"A mill\nthat "turns.\n2,A quay.\n', "line 2: a cell begins with a quote that does not close"),
        (gzip.compress(b'{"id": "1", "text": "a"}' * 99, mtime=0)[:-9], "damaged gzip"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(BadData, match=message) as caught:
        list(read_corpus(written(tmp_path, text)))
    assert "\n" not in str(caught.value)


TABLES = {
    "an id of another name": "doc_id\ttext\ttitle\nm1\tA mill.\tTide Mill\nq2\tA quay.\t\n",
    "TREC's names": "docno\tbody\theading\nm1\tA mill.\tTide Mill\nq2\tA quay.\n",
    "capitals, blanks and hyphens": "Passage ID\tPage-Title\tPassage Text\nm1\tTide Mill\tA mill.\nq2\t\tA quay.\n",
    "title first, and other columns": "title\turl\ttext\tpsg_id\nTide Mill\tx\tA mill.\tm1\n\ty\tA quay.\tq2\n",
    "marks around names": "#ID\ttitle:\tText (plain)\tpassage\nm1\tTide Mill\tx\tA mill.\nq2\t\ty\tA quay.\n",
    "peers' other names": "corpus-id\tsection_title\tbody\nm1\tTide Mill\tA mill.\nq2\t\tA quay.\n",
    "numbered by pandas": ",id,title,content\n0,m1,Tide Mill,A mill.\n1,q2,,A quay.\n",
    "commas and quotes": '\ufeff"ID","Title","Text"\r\n"m1","Tide Mill","A mill."\r\nq2,,A quay.\r\n',
    "semicolons": "id;title;text\nm1;Tide Mill;A mill.\nq2;;A quay.\n",
    "title and text in one": 'id,contents\nm1,"""Tide Mill""\nA mill."\nq2,A quay.\n',
}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_read_by_the_columns_that_its_first_line_names(tmp_path: Path, table: str) -> None:
    data = TABLES[table].encode()
    rows = [Passage("m1", "Tide Mill", "A mill."), Passage("q2", "", "A quay.")]
    assert list(read_corpus(written(tmp_path, data))) == rows
    assert list(read_corpus(written(tmp_path, gzip.compress(data)))) == rows


def test_without_a_column_of_ids_positions_are_the_ids(tmp_path: Path) -> None:
    path = written(tmp_path, "title\ttext\nTide Mill\tA mill.\n\nQuay\tA quay.\n")
    with pytest.warns(UserWarning, match=r"none of the columns is known to hold ids \(it names: title, text\)"):
        passages = list(read_corpus(path))
    assert passages == [Passage("0", "Tide Mill", "A mill."), Passage("1", "Quay", "A quay.")]


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        ('1\tMill\t"A mill,\told.\n\nIt ""turns""."\n2\tQuay\tA quay.\n', ['A mill,\told.\n\nIt "turns".', "A quay."]),
        ('1\tMill\tA "tide" mill, 5" wide\n2\tQuay\tA quay.\n', ['A "tide" mill, 5" wide', "A quay."]),
        ('1\tMill\t"Old," he said. "Yes."\n2\tQuay\tA quay.\n', ['"Old," he said. "Yes."', "A quay."]),
        ('1\tMill\t"Old, he said.\n2\tQuay\t"A quay.\n', ['"Old, he said.', '"A quay.']),
        ('1\t"A" mill\tOld.\n2\tQuay\t"Two\nlines."\n', ["Old.", "Two\nlines."]),
    ],
    ids=["quoted", "within a text", "two pairs in a text", "never closed", "a title"],
)
def test_quotes_of_a_table_are_those_of_csv_or_of_the_text(tmp_path: Path, rows: str, texts: list[str]) -> None:
    path = written(tmp_path, f"id\ttitle\ttext\n{rows}")
    assert [passage.text for passage in read_corpus(path)] == texts


def test_what_csv_writes_is_read_back(tmp_path: Path) -> None:
    """Python's own writer as the other side: commas, tabs, quotes, line feeds and blank lines in every place.

    Between tabs but for cells with line feeds and tabs both, whose lines may look like whole records.
    """
    pieces = ["a", '"', ",", "\t", "\n", "\n\n", " b", "é"]
    texts = [f"x{''.join(parts)}x" for parts in itertools.product(pieces, repeat=3)]
    for delimiter, name in ((",", "commas"), ("\t", "tabs")):
        with open(tmp_path / name, "w", encoding="utf-8", newline="") as file:
            kept = [text for text in texts if delimiter == "," or not {"\t", "\n"} <= {*text}]
            writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
            writer.writerow(["id", "text", "title"])
            writer.writerows((str(at), text, text) for at, text in enumerate(kept))
        found = list(read_corpus(tmp_path / name))
        assert [(passage.id, passage.text, passage.title) for passage in found] == [
            (str(at), text, text) for at, text in enumerate(kept)
        ]


TITLES_ALONE = {
    "BEIR": [{"_id": "1", "title": "Tide Mill", "text": ""}, {"_id": "2", "title": "", "text": " "}],
    "FlashRAG": [{"id": "1", "contents": '"Tide Mill"\n'}, {"id": "2", "contents": ""}],
    "sentences": [{"id": "1", "title": "Tide Mill", "text": []}, {"id": "2", "title": "", "text": [""]}],
    "gaps of a frame": [
        {"id": "1", "title": "Tide Mill", "text": float("nan")},
        {"id": "2", "title": None, "text": None},
    ],
}


@pytest.mark.parametrize("layout", TITLES_ALONE)
def test_a_title_alone_is_a_passage_and_an_empty_row_is_counted(tmp_path: Path, layout: str) -> None:
    rows = [*TITLES_ALONE[layout], *TITLES_ALONE[layout][1:]]
    path = written(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    for corpus in (path, rows):
        with pytest.warns(UserWarning, match="2 rows with neither title nor text left out, the first at .*2") as warned:
            found = list(passages_of(corpus))
        assert (found, len(warned)) == ([Passage("1", "Tide Mill", "Tide Mill")], 1)
    for empty in (written(tmp_path, json.dumps(rows[1])), rows[1:]):
        with pytest.raises(EmptyData, match="neither title nor text, nor has any other"):
            list(passages_of(empty))


@pytest.mark.parametrize("text", ["", " \n", "[]", "id\ttext\n"])
def test_nothing_in_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(EmptyData, match="has no passages"):
        list(read_corpus(written(tmp_path, text)))


@given(st.binary(max_size=80) | st.text(st.sampled_from('{}[]":,\t\n |id text1'), max_size=60).map(str.encode))
def test_any_bytes_are_passages_or_one_clear_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = written(tmp_path_factory.getbasetemp(), data, "any")
    message = ""
    try:
        assert all(one.text for one in read_corpus(path))
    except BlendFilterError as error:
        message = str(error)
    assert "\n" not in message


def test_a_large_corpus_is_never_whole_in_memory(tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join(json.dumps({"id": str(n), "text": "x" * 2000}) for n in range(8000)))
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_corpus(path)) == 8000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 2


def question(name: str, *context: Passage) -> Question:
    return Question(name, "?", ("x",), context=context)


def test_pooling_keeps_each_paragraph_once() -> None:
    twin = Passage("other", "Tide  Mill", "A mill at Bremsund.\nIt turns.", metadata={"is_supporting": True})
    assert pooled([question("1", MILL, QUAY), question("2", twin, QUAY)]) == [MILL, QUAY]
    assert pooled([question("2", twin)])[0].metadata == {}


def test_pooling_gives_two_texts_under_one_id_two_ids() -> None:
    shorter = Passage("m1", "Tide Mill", "A mill.")
    found = pooled([question("1", MILL), question("2", shorter), question("2", Passage("m1", "Tide Mill", "It."))])
    assert [one.id for one in found] == ["m1", "m1@2", "m1@2+"]


any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates too
records = st.builds(Passage, any_text, any_text, any_text)


@given(st.lists(records, min_size=1, max_size=8, unique_by=lambda passage: passage.id))
def test_passages_on_disk_come_back_as_they_were_whatever_is_in_them(passages: list[Passage]) -> None:
    with TemporaryDirectory() as folder:
        stored, _ = gather(passages, Path(folder))
        assert list(stored) == passages
        assert stored[-1] == passages[-1]
        assert stored[1:] == passages[1:]
        with pytest.raises(IndexError):
            stored[len(passages)]


def test_the_hash_is_over_the_passages_in_order() -> None:
    def sha256(*passages: Passage) -> str:
        return gather(passages, None)[1].sha256

    one, two = Passage("1", "T", "x"), Passage("2", "T", "y")
    assert sha256(one, two) == sha256(one.scored(4.0), two)
    assert len({sha256(one, two), sha256(two, one), sha256(one), sha256(Passage("1", "Tx", ""))}) == 4


def test_an_id_that_occurs_twice_is_named_with_both_places() -> None:
    passages = [Passage(name, "T", "x") for name in ("a", "b", "c", "b", "a")]
    with pytest.raises(BadData, match="passage id 'b' occurs twice in the corpus: passages 2 and 4"):
        gather(passages, None)


def test_passages_without_an_id_may_be_equal_as_texts_may(tmp_path: Path) -> None:
    same, other = Passage("A mill."), Passage("A quay.")
    index = BM25.build([same, other, same, same], tmp_path / "index")
    assert [passage.text for passage in index.passages] == ["A mill.", "A quay.", "A mill.", "A mill."]
    assert [passage.id for passage in index.passages] == [same.id, other.id, f"{same.id}-2", f"{same.id}-3"]


def test_what_is_no_passage() -> None:
    with pytest.raises(BadData, match="passage 2 of the corpus: field 'text' is missing"):
        gather([Passage("1", "T", "x"), {"id": "2"}], None)
    with pytest.raises(BadData, match="passage '1' has metadata that JSON cannot hold"):
        gather([Passage("1", "T", "x", metadata={"a": {1}})], None)


# --- what people have -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "corpus",
    [
        ["Tide Mill | A mill.", "A quay."],
        [{"title": "Tide Mill", "text": "A mill."}, {"title": "", "text": "A quay."}],
        [{"contents": '"Tide Mill"\nA mill.'}, {"contents": "A quay."}],
        [("Tide Mill", "A mill."), ("", "A quay.")],
        [("0", "Tide Mill", "A mill."), (np.int64(1), "", "A quay.")],
        [{"id": np.int64(0), "title": "Tide Mill", "text": ["A mill."]}, {"id": 1.0, "text": np.array(["A quay."])}],
        [Passage("0", "Tide Mill", "A mill."), "A quay."],
        [dspy.Example(title="Tide Mill", text="A mill."), dspy.Example(title="", text="A quay.")],
        (text for text in ("Tide Mill | A mill.", "A quay.")),
    ],
    ids=["texts", "rows", "FlashRAG's rows", "pairs", "triples", "arrays", "mixed", "examples", "a generator"],
)
def test_an_index_is_built_of_what_people_have(corpus: list[str]) -> None:
    index = BM25.build(corpus)
    assert list(index.passages) == [Passage("0", "Tide Mill", "A mill."), Passage("1", "", "A quay.")]


def test_a_folder_and_a_text_are_documents(tmp_path: Path) -> None:
    written(tmp_path, "# Mills\n\nA mill turns.\n", "mills.md")
    for corpus in (tmp_path, str(tmp_path), tmp_path / "mills.md"):
        (passage,) = BM25.build(corpus).passages
        assert (passage.id, passage.title, passage.metadata["source"]) == ("mills.md#0", "Mills", "mills.md")
    assert [passage.text for passage in passages_of(tmp_path / "mills.md", words=2)] == ["A mill", "turns."]


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ("The mill turns twice a day.", r"no file or folder 'The mill turns twice a day.': a text goes in a list"),
        ("mill " * 200, r"no file or folder 'mill .*…': a text goes in a list"),
        ("mills.jsonl", "no file or folder 'mills.jsonl': check the path"),
        ({"Tide Mill": "A mill."}, "a corpus is a path or a list, each item a text .*; got dict"),
        (None, "got NoneType"),
        ([("A mill.",)], r"passage 1 of the corpus: expected \(title, text\) or \(id, title, text\), found"),
        (["A mill.", 7], "passage 2 of the corpus: expected an object with"),
        (["", " "], "passage 1 of the corpus: this row has neither title nor text, nor has any other"),
        (["A mill.", {"words": "A quay."}], r"passage 2 of the corpus: field 'text' is missing \(it has: words\)"),
    ],
)
def test_what_is_no_corpus_is_named(corpus: Any, message: str) -> None:
    with pytest.raises(BlendFilterError, match=message):
        BM25.build(corpus)


def test_a_frame_is_given_row_by_row() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([{"title": "Tide Mill", "text": "A mill."}])
    with pytest.raises(BadArgument, match=r"pass its rows, frame\.to_dict\('records'\)"):
        BM25.build(frame)
    assert [*BM25.build(frame.to_dict("records")).passages] == [Passage("0", "Tide Mill", "A mill.")]
