"""The site of the documents: it is built without a warning, and its search answers what users ask."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
WORDS_OF_README, WORDS_OF_PAGES = 900, 25_000

QUESTIONS = {
    "How do I use Claude?": "models.html",
    "Why did it ask the model again?": "runs.html",
    "What does EM ± mean?": "statistics.html",
    "Which method should I use?": "which-method.html",
    "Where do I get a corpus?": "retrieval.html",
    "How do I add my own metric?": "tasks.html",
    "How do I evaluate my own questions?": "tasks.html",
    "How do I resume a killed run?": "runs.html",
    "How much will a run cost?": "costs.html",
    "How does this differ from the paper?": "exact.html",
    "index as a tool": "deploy.html",
    "MLflow": "deploy.html",
    "OpenTelemetry": "deploy.html",
    "streaming": "deploy.html",
    "own task": "tasks.html",
    "own filter": "filters.html",
    "Ollama": "models.html",
}
"""What users ask, in their words, and the page that answers. The first ten were written down before the pages were."""


def words(*files: Path) -> int:
    return sum(len(file.read_text(encoding="utf-8").split()) for file in files)


def test_readme_and_pages_stay_short() -> None:
    assert words(ROOT / "README.md") <= WORDS_OF_README
    assert words(*(ROOT / "docs").glob("*.md")) <= WORDS_OF_PAGES


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: a dead link, a page outside of the menu or a warning fails."""
    pytest.importorskip("mkdocs", reason="the site wants blendfilter[docs]")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    command += ["--config-file", str(ROOT / "mkdocs.yml")]
    elsewhere = tmp_path_factory.mktemp("cache")  # of notebooks: two workers may build the site at once
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=elsewhere, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def search(site: Path) -> Any:
    """The site's own search: lunr, over what the site gives it."""
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    documents = [
        {key: unescape(re.sub(r"<[^>]+>", " ", each[key])) for key in ("location", "title", "text")}
        for each in found["docs"]
    ]
    boosts = {name: field["boost"] for name, field in found["config"]["fields"].items() if name != "tags"}
    fields = [{"field_name": name, "boost": boost} for name, boost in boosts.items()]
    return pytest.importorskip("lunr").lunr(ref="location", fields=fields, documents=documents)


@pytest.mark.slow
@pytest.mark.parametrize(("question", "page"), QUESTIONS.items())
def test_the_page_that_answers_is_what_the_search_finds_first(search: Any, question: str, page: str) -> None:
    pages = list(dict.fromkeys(hit["ref"].partition("#")[0] for hit in search.search(question.rstrip("?"))))
    assert pages[0] == page


@pytest.mark.slow
def test_every_command_and_every_public_name_has_its_place(site: Path) -> None:
    import blendfilter as bf
    from blendfilter.cli.app import COMMANDS

    commands = (site / "cli.html").read_text(encoding="utf-8")
    assert not [name for name in COMMANDS if f"blendfilter {name}" not in commands]
    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    assert not [name for name in bf.__all__ if f'id="{bf._HOME[name]}.{name}"' not in reference]


@pytest.mark.slow
def test_links_inside_the_site_lead_somewhere(site: Path) -> None:
    """Generated pages and notebooks too, whose links MkDocs does not check."""
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html") if page.name != "404.html"}
    dead = []
    for page, html in pages.items():
        for target in re.findall(r'(?:href|src)="([^"#?:]*)(?:#[^"]*)?"', html):
            if target and not (page.parent / target).exists():
                dead.append(f"{page.relative_to(site)}: {target}")
    assert not dead
