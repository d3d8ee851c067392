"""PopQA: the authors' table, the hub's rows and those with passages, and what a table may do wrong."""

from __future__ import annotations

import csv
import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blendfilter.errors import BadData
from blendfilter.tasks import load
from blendfilter.tasks.layouts import table_rows


def fact(**changed: Any) -> dict[str, Any]:
    return {
        "id": 417, "subj": "Ada Brennock", "prop": "occupation", "obj": "beekeeper", "s_pop": 142, "o_pop": 25692,
        "s_wiki_title": "Ada Brennock", "o_wiki_title": "Beekeeper",
        "question": "What is Ada Brennock's occupation?",
        "possible_answers": '["beekeeper", "apiarist", "keeper of bees"]', **changed,
    }  # fmt: skip


def table(path: Path, *facts: dict[str, Any], pack: bool = False) -> Path:
    with (gzip.open if pack else open)(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(facts[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(facts)
    return path


@pytest.mark.parametrize("pack", [False, True])
def test_the_authors_table(tmp_path: Path, pack: bool) -> None:
    """Quotes inside the JSON list are doubled in the table; the object leads, and is there once."""
    second = fact(id=418, question='What is "The Skerry"?', obj="ale\nand stout", possible_answers='["ale"]')
    one, other = load("popqa", table(tmp_path / "popQA.tsv", fact(), second, pack=pack))
    assert (one.id, one.question, one.type) == ("417", "What is Ada Brennock's occupation?", "occupation")
    assert one.golden_answers == ("beekeeper", "apiarist", "keeper of bees")
    assert (one.metadata["s_pop"], one.metadata["o_pop"]) == (142, 25692)
    assert (one.gold_titles, one.metadata["s_wiki_title"]) == ((), "Ada Brennock")
    assert (other.question, other.golden_answers) == ('What is "The Skerry"?', ("ale\nand stout", "ale"))


def test_a_frame_of_the_table_has_its_whole_numbers_with_decimals_and_the_objects_aliases_count() -> None:
    row = fact(id=417.0, s_pop=142.0, o_pop=float("nan"), o_aliases='["bee man"]', s_aliases='["Ada B."]')
    (question,) = load("popqa", [row])
    assert (question.id, repr(question.metadata["s_pop"])) == ("417", "142")
    assert question.golden_answers == ("beekeeper", "apiarist", "keeper of bees", "bee man")


@pytest.mark.parametrize("field", ["ctxs", "docs"])
def test_passages_that_come_along_are_context_and_no_gold(field: str) -> None:
    row = fact(
        answers=["bee-keeper"], **{field: [{"id": "93", "title": "Ada", "text": "She kept bees.", "score": "1.6"}]}
    )
    (question,) = load("popqa", [row])
    assert question.golden_answers == ("beekeeper", "apiarist", "keeper of bees", "bee-keeper")
    assert [(one.id, one.title, one.text) for one in question.context] == [("93", "Ada", "She kept bees.")]
    assert question.gold_titles == ()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (fact(o_aliases="['apiarist']"), r"field 'o_aliases' is wrong: .*JSON list"),
        (fact(possible_answers="beekeeper"), r"field 'possible_answers' is wrong: .*JSON list"),
        (fact(possible_answers="[" * 100_000), "field 'possible_answers' is wrong"),
        (fact(possible_answers="[]", obj=" "), "has no answer"),
    ],
)
def test_what_is_wrong_is_named(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadData, match=f"the given rows, item 1: .*{problem}"):
        load("popqa", [row])


class TestTables:
    def test_an_article_in_one_field_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "t.tsv"
        path.write_text("a\tb\n" + "x" * 200_000 + "\t2\n")
        assert len(next(table_rows(path)).value["a"]) == 200_000

    def test_what_is_no_text_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "t.tsv"
        path.write_bytes(b"question\tpossible_answers\nWho\xff\t[]\n")
        with pytest.raises(BadData, match=r"t\.tsv, line 2: not UTF-8 .*save the file as UTF-8"):
            load("popqa", path)


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)


@example([("\r\n", "\r\r\n"), ("a\r\nb", "\n\r")])
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4))
def test_a_table_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, cells: list[Any]) -> None:
    path = table(tmp_path_factory.mktemp("t") / "t.tsv", *({"a": f"x{a}", "b": b} for a, b in cells))
    written = [tuple(re.sub(r"\r+\n", "\n", cell) for cell in (f"x{a}", b)) for a, b in cells]
    assert [(row.value["a"], row.value["b"]) for row in table_rows(path)] == written
