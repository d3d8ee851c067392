"""The papers' tables as data: printed figures agree with each other, and a file that is wrong is one clear line."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from reproduce_world import HEAD, ROWS, written

from blendfilter.errors import BadData, UnknownName
from blendfilter.reproduce import tables
from blendfilter.reproduce.tables import PaperRow, PaperTable

NAMES = list(tables.names())
LEADING = {"hotpotqa": "em", "twowiki": "em", "strategyqa": "accuracy"}
FILCO_TASKS = ("nq", "triviaqa", "hotpotqa", "eli5", "fever", "wow")
CDIT_TASKS = ("popqa", "triviaqa", "arc", "pubhealth")
INDEXES = ("IndexFlatL2", "IndexHNSWFlat", "IndexIVFFlat")


def row(table: PaperTable, label: str, group: str = "") -> PaperRow:
    (found,) = [each for each in table.rows if (each.label, each.group) == (label, group)]
    return found


def numbers(text: str) -> list[list[float]]:
    return [[float(each) for each in line.split()] for line in text.strip().splitlines()]


def test_every_table_and_figure_is_there() -> None:
    blendfilter = ["fair", "figure2", "figure3", "figure4", *(f"table{number}" for number in range(1, 6))]
    cdit = ["cdit-figure7", *(f"cdit-table{number}" for number in (10, 2, 3, 4, 9))]
    filco = [*(f"filco-figure{number}" for number in (4, 5, 6)), "filco-frontier",
             *(f"filco-table{number}" for number in (3, 4, 5))]  # fmt: skip
    assert sorted(NAMES) == sorted([*blendfilter, *cdit, *filco])


# --- printed figures, once more from the papers ---


@pytest.mark.parametrize("name", ["table1", "table2", "table3"])
def test_the_printed_improvements_follow_from_the_printed_scores(name: str) -> None:
    """IMP = BlendFilter / baseline - 1, in percent: a slip of one digit in either would show.

    All 63 hold to rounding but one: Table 3, StrategyQA, Direct with retrieval is 14.7 and printed as 14.6. Section
    4.2's averages (9.7, 7.4, 14.2) are over the best baseline of each task; Table 1 gives 9.1.
    """
    table, off, least = tables.read(name), [], []
    for task, measure in LEADING.items():
        rows = [each for each in table.rows if task in each.published and each.label != table.against]
        assert len(rows) == 7
        for each in rows:
            reference = table.reference(each)
            assert reference
            ours, theirs = (getattr(one.published[task], measure) for one in (reference, each))
            improvement = each.published[task].imp
            assert ours
            assert theirs
            assert improvement is not None
            recomputed = 100 * (ours / theirs - 1)
            assert recomputed == pytest.approx(improvement, abs=0.1)
            if round(recomputed, 1) != improvement:
                off.append((task, each.group, each.label))
        least.append(min(each.published[task].imp or 0 for each in rows))
    assert off == ([("strategyqa", "With Retrieval", "Direct")] if name == "table3" else [])
    assert round(fmean(least), 1) == {"table1": 9.1, "table2": 7.4, "table3": 14.2}[name]


def test_blendfilters_tables_agree_where_they_print_the_same() -> None:
    one, four, five = (tables.read(name) for name in ("table1", "table4", "table5"))

    def pair(table: PaperTable, group: str, label: str) -> tuple[float | None, float | None]:
        figures = row(table, label, group).published["hotpotqa"]
        return figures.em, figures.f1

    for label in ("Direct", "CoT"):
        assert pair(four, "Without Retrieval", label) == pair(one, "Without Retrieval", label)
    dense, sparse = "Dense Retriever (ColBERT v2)", "Sparse Retriever (BM25)"
    assert pair(five, dense, "BlendFilter") == pair(one, "With Retrieval", "BlendFilter") == (0.508, 0.624)
    assert pair(five, sparse, "BlendFilter") == pair(four, "With Retrieval (BM25)", "BlendFilter") == (0.420, 0.547)
    em, _ = pair(four, "With Retrieval (BM25)", "ITER-RETGEN")
    assert em
    assert round(100 * (0.420 / em - 1)) == 18  # section 4.3's "approximately 18 %"


def test_filcos_figures_are_as_printed() -> None:
    by_task = numbers("""
2.5 1.3 5.1 7.3
4.5 3.0 8.4 4.6
2.6 2.6 10.8 17.1
92.9 92.5 98.8 98.8
1.2 1.2 5.1 4.4
10.8 35.5 62.9 71.5
""")
    top_1, *top_5 = numbers("""
44.7 59.0 60.0 73.8 94.2 68.3
47.6 67.3 61.5 72.7 88.0 64.8
52.9 69.1 62.3 73.7 90.7 64.6
61.8 71.1 65.0 73.9 91.4 66.0
62.0 71.1 65.2 73.9 92.2 66.1
""")
    readers = numbers("""
44.7 30.0 39.9 59.2 39.0 45.3 59.2 57.4 60.0 73.6 73.9 74.2 80.9 86.4 95.8 63.4 69.3 66.6
43.3 35.2 41.8 60.7 57.1 60.7 59.5 61.1 61.3 78.6 78.8 72.8 86.6 88.4 92.3 65.5 66.0 65.4
""")

    def printed(table: PaperTable, group: str, label: str) -> list[float]:
        figures = [row(table, label, group).published[task].model_dump(exclude_none=True) for task in FILCO_TASKS]
        assert {len(each) for each in figures} == {1}
        return [round(100 * next(iter(each.values())), 1) for each in figures]

    three, four, five = (tables.read(f"filco-table{number}") for number in (3, 4, 5))
    for place, label in enumerate(("FULL", "PSG", "FILCO", "SILVER")):
        assert printed(three, "Top 1", label) == [each[place] for each in by_task]
        assert printed(four, "FilCo, top 5", label) == top_5[place]
    assert printed(four, "FilCo, top 1", "FILCO") == top_1
    for group, figures in zip(("FLAN-T5", "Llama 2"), readers, strict=True):
        for place, label in enumerate(("STRINC", "LEXICAL", "CXMI")):
            assert printed(five, group, label) == figures[place::3]


CDIT_TABLE_2 = """
15.76 17.85 22.61 30.52 27.47 29.35 24.51 26.24
19.52 27.61 24.49 32.33 28.16 29.27 23.30 26.13
20.26 25.44 26.45 30.78 30.80 31.06 26.34 28.74
"""
CDIT_TABLE_9 = """
15.76 29.94 34.03 36.36 36.61 36.54
17.85 32.28 36.86 37.11 38.28 38.12
19.52 30.52 34.61 34.52 35.69 34.19
27.61 34.62 36.03 36.61 36.11 35.11
20.26 31.35 34.78 35.94 36.86 37.78
25.44 35.03 35.94 37.86 36.20 37.61
"""


def percents(series: PaperRow) -> list[float]:
    """A series' printed figures, from the largest K down, as the paper prints them."""
    return [round(100 * (series.at[k]["popqa"].inclusion or 0), 2) for k in sorted(series.at, reverse=True)]


def test_cdits_figures_are_as_printed_and_agree_with_each_other() -> None:
    """Table 9 at k = 10 is Table 2's PopQA, and its flat rows are Table 10's without a rule and with phi1."""
    two, three, four, nine, ten = (tables.read(f"cdit-table{number}") for number in (2, 3, 4, 9, 10))
    measures = ["inclusion", "inclusion", "accuracy", "accuracy"]
    for group, line in zip(INDEXES, numbers(CDIT_TABLE_2), strict=True):
        for label, printed in (("original", line[::2]), ("CDIT", line[1::2])):
            figures = row(two, label, group).published
            assert [figures[task].model_fields_set for task in CDIT_TASKS] == [{measure} for measure in measures]
            shares = [getattr(figures[task], measure) for task, measure in zip(CDIT_TASKS, measures, strict=True)]
            assert [round(100 * (each or 0), 2) for each in shares] == printed
            assert row(nine, label, group).printed("popqa", 10) == figures["popqa"]
    assert [percents(row(three, label))[::-1] for label in ("original", "CDIT")] == [
        [42.20, 41.03, 41.20, 39.86, 16.51], [42.37, 41.25, 41.45, 40.95, 24.35],
    ]  # fmt: skip
    seconds = [row(four, "CDIT").published[task].seconds_in_all for task in CDIT_TASKS]
    assert seconds == [59.94, 351.05, 58.62, 29.61]
    series = [row(nine, label, group) for group in INDEXES for label in ("original", "CDIT")]
    assert [percents(each) for each in series] == numbers(CDIT_TABLE_9)
    assert percents(row(ten, "phi1 and phi2")) == [20.02, 33.53, 36.53, 36.86, 36.78, 37.70]
    for label, other in (("original", "no rule"), ("CDIT", "phi1")):
        assert row(nine, label, INDEXES[0]).at == row(ten, other).at


# --- rows ---


def test_a_row_is_tested_against_the_reference_over_its_own_retriever() -> None:
    five, four = tables.read("table5"), tables.read("table4")
    groups = {role: {found.group for each in five.rows if five.role(each) == role and (found := five.reference(each))}
              for role in ("colbert", "bm25")}  # fmt: skip
    assert groups == {"colbert": {"Dense Retriever (ColBERT v2)"}, "bm25": {"Sparse Retriever (BM25)"}}
    assert four.reference(four.rows[0]) in four.cut(methods=["blendfilter"]).rows
    assert four.cut(methods=["direct"]).reference(four.rows[0]) is None


def test_rows_by_label_bring_what_they_are_tested_against() -> None:
    table = tables.read("filco-table3")
    assert [(each.group, each.label) for each in table.cut(labels=["FILCO"]).rows] == [
        (group, label) for group in dict.fromkeys(each.group for each in table.rows) for label in ("FULL", "FILCO")
    ]
    with pytest.raises(UnknownName, match=r"no row 'FILCOO'.*'FILCO'"):
        table.cut(labels=["FILCOO"])


# --- files that are wrong ---

GOOD = HEAD.replace("Whole", "A").replace(', "strategyqa"', "") + """
[[rows]]
label = "A"
method = "direct-retrieval"
arguments = { filter = "sentence" }
published.hotpotqa = { em = 0.5 }
"""  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("k = 5", "k = 5\nkk = 5", "kk: Extra inputs are not permitted"),
        ('label = "A"', 'label = "A"\nlable = "A"', r"rows\.1\.lable: Extra"),
        ('title = "A small table"', "", "title: Field required"),
        ("em = 0.5", "em = 50", r"rows\.1\.published\.hotpotqa\.em: .* less than or equal to 1"),
        ("published.hotpotqa", "published.twowikki", "no task 'twowikki'. Did you mean 'twowiki'"),
        ("direct-retrieval", "direct-retreival", "no method .* Did you mean 'direct-retrieval'"),
        ('against = "A"', 'against = "B"', "no row 'B'"),
        ('kind = "scores"', 'kind = "sweep"', "kind 'sweep' does not fit"),
        ("[[rows]]", "[[rows]", "not TOML"),
        ('"sentence"', '"sentence", iterations = 2', "direct-retrieval takes no iterations"),
        ('"sentence"', '"cdit", rules = ["phi3"]', "no rule 'phi3'"),
        ("[[rows]]", '[[rows]]\nlabel = "A"\nmethod = "cot"\n[[rows]]', "two rows of one group have the same label"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert written(tmp_path, GOOD).rows
    assert old in GOOD
    with pytest.raises(BadData, match=f"^table9.toml: .*{problem}") as wrong:
        written(tmp_path, GOOD.replace(old, new, 1), "table9")
    assert len(str(wrong.value).splitlines()) == 1


def test_a_table_is_found_by_name_or_as_ones_own_file(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"no table 'tabel1'. Did you mean 'table1'\?"):
        tables.read("tabel1")
    assert written(tmp_path, HEAD + ROWS, "mine").name == "mine"
