"""The paper's tables as files: what was printed agrees with itself, and a file with a wrong name is one clear line."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from blendfilter.evaluation.reproducing import papers
from blendfilter.evaluation.reproducing.papers import Row, Table

from blendfilter.errors import AskedWrong, BadData, UnknownName

PAPERS = Path(__file__).parents[2] / "eval" / "papers"
NAMES = [name for name in papers.names(PAPERS) if not name.startswith(("filco-", "cdit-"))]
"""FilCo's are looked at in test_reproducing_filco.py, CDIT's in test_reproducing_cdit.py."""
LEADING = {"hotpotqa": "em", "twowiki": "em", "strategyqa": "accuracy"}


def table(name: str) -> Table:
    return papers.read(PAPERS, name)


def printed(of: Table, task: str) -> list[Row]:
    return [row for row in of.rows if task in row.published]


def test_every_table_and_figure_is_there() -> None:
    tables = [f"table{number}" for number in range(1, 6)]
    assert sorted(NAMES) == sorted([*tables, "figure2", "figure3", "figure4", "fair"])


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_whole(name: str) -> None:
    read = table(name)
    assert (read.n, read.k, read.name) == (500, 5, name)
    for row in read.rows:
        assert row.ours is not bool(row.published) or name.startswith("figure")


# --- the figures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["table1", "table2", "table3"])
def test_the_printed_improvements_follow_from_the_printed_scores(name: str) -> None:
    """IMP = BlendFilter / baseline - 1, in percent: a slip of one digit in either would show.

    All 63 hold to rounding but one: Table 3, StrategyQA, Direct with retrieval is 14.7 and printed as 14.6.
    """
    read, off = table(name), []
    for task, measure in LEADING.items():
        rows = [row for row in printed(read, task) if row.label != read.against]
        assert len(rows) == 7
        for row in rows:
            ours, theirs = (each.published[task].score(measure) for each in (read.reference(row), row))
            improvement = row.published[task].imp
            assert ours
            assert theirs
            assert improvement is not None
            recomputed = 100 * (ours / theirs - 1)
            assert recomputed == pytest.approx(improvement, abs=0.1)
            if round(recomputed, 1) != improvement:
                off.append((task, row.group, row.label))
    assert off == ([("strategyqa", "With Retrieval", "Direct")] if name == "table3" else [])


@pytest.mark.parametrize(
    ("name", "said", "follows"), [("table1", 9.7, 9.1), ("table2", 7.4, 7.4), ("table3", 14.2, 14.2)]
)
def test_the_average_improvements_in_the_text(name: str, said: float, follows: float) -> None:
    """Section 4.2's averages are over the best baseline of each task; Table 1 gives 9.1 where the text says 9.7."""
    read = table(name)
    least = [
        min(row.published[task].imp or 0 for row in printed(read, task) if row.label != read.against)
        for task in LEADING
    ]
    assert round(fmean(least), 1) == follows
    assert (follows == said) is (name != "table1")


def test_tables_agree_where_they_print_the_same() -> None:
    one, four, five = table("table1"), table("table4"), table("table5")
    figures = {name: {(row.group, row.label): row.published.get("hotpotqa") for row in read.rows}
               for name, read in (("one", one), ("four", four), ("five", five))}  # fmt: skip

    def pair(name: str, *key: str) -> tuple[float | None, float | None]:
        found = figures[name][key[0], key[1]]
        assert found
        return found.em, found.f1

    for label in ("Direct", "CoT"):
        assert pair("four", "Without Retrieval", label) == pair("one", "Without Retrieval", label)
    dense, sparse = "Dense Retriever (ColBERT v2)", "Sparse Retriever (BM25)"
    assert pair("five", dense, "BlendFilter") == pair("one", "With Retrieval", "BlendFilter") == (0.508, 0.624)
    assert pair("five", sparse, "BlendFilter") == pair("four", "With Retrieval (BM25)", "BlendFilter") == (0.420, 0.547)
    em, _ = pair("four", "With Retrieval (BM25)", "ITER-RETGEN")
    assert em
    assert round(100 * (0.420 / em - 1)) == 18  # section 4.3's "approximately 18 %"


def test_a_row_is_tested_against_the_reference_over_its_own_retriever() -> None:
    five = table("table5")
    sparse = [row for row in five.rows if five.role(row) == "bm25"]
    assert {five.reference(row).group for row in sparse} == {"Sparse Retriever (BM25)"}
    four = table("table4")
    assert four.reference(four.rows[0]).method == "blendfilter"


def test_an_argument_for_one_task_goes_over_the_rows_own() -> None:
    (voting,) = (row for row in table("table1").rows if row.method == "self-consistency")
    assert [voting.settings(task)["samples"] for task in LEADING] == [10, 10, 9]


# --- files that are wrong -------------------------------------------------------------------------------------------

GOOD = """
title = "T"
paper = "P, Table 1"
kind = "scores"
reader = "r"
retriever = "bm25"
n = 5
k = 5
tasks = ["hotpotqa"]
against = "A"

[[rows]]
label = "A"
method = "direct-retrieval"
arguments = { filter = "sentence" }
published.hotpotqa = { em = 0.5 }
"""


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        ("k = 5", "k = 5\nkk = 5", BadData, r"unknown key 'kk'"),
        ('label = "A"', 'label = "A"\nlable = "A"', BadData, r"unknown key 'rows\.1\.lable'"),
        ('title = "T"', "", BadData, "'title' is missing"),
        ("em = 0.5", "em = 50", BadData, r"'rows\.1\.published\.hotpotqa\.em' is wrong"),
        ("em = 0.5", "accuracy = 0.5", BadData, r"row 'A' has accuracy for hotpotqa \(em, f1\)"),
        ("em = 0.5", "imp = 5.0", BadData, "row 'A' has no figure for hotpotqa"),
        ("direct-retrieval", "direct-retreival", UnknownName, "Did you mean 'direct-retrieval'"),
        ('"sentence"', '"sentense"', UnknownName, "no filter 'sentense'. Did you mean 'sentence'"),
        ('["hotpotqa"]', '["hotpoqa"]', UnknownName, "no task 'hotpoqa'. Did you mean 'hotpotqa'"),
        ("published.hotpotqa", "published.twowiki", UnknownName, r"no task 'twowiki'.* row 'A'"),
        ('against = "A"', 'against = "B"', UnknownName, "no row 'B'"),
        ('kind = "scores"', 'kind = "sweep"', BadData, "kind 'sweep' does not fit"),
        ("[[rows]]", "[[rows]", BadData, "not TOML"),
        ('"sentence"', '"sentence", iterations = 2', BadData, "row 'A': direct-retrieval takes no iterations"),
        ('filter = "sentence"', "filter_n = 2", BadData, "row 'A' has filter_n and no filter"),
        ('title = "T"', 'title = "T"\nname = "B"', BadData, "unknown key 'name'"),
        ('method = "direct', 'group = ""\nmethod = "direct', None, ""),
        ('"sentence"', '"sentence", filter_n = 2, k = 3', None, ""),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line(tmp_path: Path, old: str, new: str, kind: type[AskedWrong] | None, said: str) -> None:
    path = tmp_path / "mine" / "table9.toml"
    path.parent.mkdir()
    assert GOOD.count(old) >= 1
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    if kind is None:
        assert papers.read(tmp_path, "table9").rows
        return
    with pytest.raises(kind, match=said) as wrong:
        papers.read(tmp_path, "table9")
    assert "table9.toml" in str(wrong.value)
    assert len(str(wrong.value).splitlines()) == 1


def test_two_rows_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table9.toml"
    path.write_text(f'{GOOD}\n[[rows]]\nlabel = "A"\nmethod = "cot"\n', encoding="utf-8")
    with pytest.raises(BadData, match="two rows are called 'A'"):
        papers.table_of(path)


def test_an_unknown_table_is_told_what_there_is() -> None:
    with pytest.raises(UnknownName, match=r"no table 'tabel1'. Did you mean 'table1'\?"):
        papers.read(PAPERS, "tabel1")
