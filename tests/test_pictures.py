"""The pictures of the documents: current, well-formed, and with an alt text where a page shows them."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = [
    (page.name, alt, (page.parent / target).resolve())
    for page in PAGES
    for alt, target in re.findall(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8"))
]
TABLE = """
HotPotQA, 3 questions:

| method | F1 | tokens in | EM |
| --- | --- | --- | --- |
| `dear` | 1.0 | 2,000.5 | 50.0 [10.0, 90.0] |
| cheap | 1.0 | 90 | 40.0 |
"""


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["blend.svg", pytest.param("losses.svg", marks=pytest.mark.slow), "frontier.svg", "record.svg"]
)
def test_a_picture_is_what_would_be_drawn_now(name: str, pictures: ModuleType) -> None:
    drawn = pictures.PICTURES[name]()
    assert (IMAGES / name).read_text(encoding="utf-8") == drawn, "run python docs/pictures.py"

    root = ElementTree.fromstring(drawn)  # raises where it is not well-formed
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.findtext("{http://www.w3.org/2000/svg}title")
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "").replace('"https://…"', "")  # loads nothing


def test_a_picture_that_is_out_of_date_is_named(
    pictures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    monkeypatch.setattr(pictures, "PICTURES", {"one.svg": lambda: "<svg/>", "two.svg": lambda: "<svg/>"})
    monkeypatch.setattr(sys, "argv", ["pictures.py"])
    assert pictures.main() == 0
    (tmp_path / "two.svg").write_text("<svg>old</svg>")

    monkeypatch.setattr(sys, "argv", ["pictures.py", "--check"])
    assert pictures.main() == 1
    assert "two.svg is out of date" in (errors := capsys.readouterr().err)
    assert "one.svg" not in errors


def test_the_frontier_reads_a_table_by_the_names_of_its_columns(pictures: ModuleType) -> None:
    caption, (dear, cheap) = pictures.measured(f"| method | n |\n| --- | --- |\n| no | 1 |\n{TABLE}\nAnd so on.")
    assert caption == "HotPotQA, 3 questions."
    assert (dear.label, dear.value, dear.low, dear.high, dear.tokens_in) == ("dear", 0.5, 0.1, 0.9, 2000.5)
    assert (cheap.value, cheap.low, cheap.high, cheap.tokens_in) == (0.4, 0.4, 0.4, 90)


def test_long_text_is_shortened_where_a_word_ends(pictures: ModuleType) -> None:
    assert pictures.fitted("A short one", 500, 13) == "A short one"
    assert pictures.fitted("It has an end, and more", 100, 13) == "It has an end …"
    assert pictures.wrapped("one two three four five six", 60, 13, 2) == ["one two", "three …"]


def test_every_image_is_on_a_page_and_has_an_alt_text() -> None:
    assert {path for _, _, path in SHOWN} == set(IMAGES.iterdir())
    poor = [(page, alt) for page, alt, _ in SHOWN if len(alt.split()) < 5 or len(alt) > 120]
    assert not poor
