"""The papers' settings as files: each is what its paper says, and a command takes it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from small_world import Command

PAPERS = Path(__file__).parents[2] / "eval" / "papers"
FILES = sorted(path.relative_to(PAPERS).as_posix() for path in PAPERS.glob("*/*.toml"))


def read(name: str) -> dict[str, Any]:
    return tomllib.loads((PAPERS / name).read_text(encoding="utf-8"))


def command_of(name: str) -> list[str]:
    """The command that a file's own comment shows, without its words."""
    shown = next(line for line in (PAPERS / name).read_text(encoding="utf-8").splitlines() if "# blendfilter " in line)
    words = shown.removeprefix("# blendfilter ").split()
    assert words[words.index("--config") + 1] == f"eval/papers/{name}"
    return words[: words.index("--config")]


def test_every_paper_and_part_is_there() -> None:
    assert FILES == [
        "bider/align.toml", "bider/bart-large.toml", "bider/silver.toml", "filco/flan-t5-xl.toml",
        "filco/llama-2-7b.toml", "filco/silver-cxmi.toml", "filco/silver-lexical.toml", "filco/silver-strinc.toml",
    ]  # fmt: skip


def test_they_say_what_the_papers_say() -> None:
    """FilCo, section 4.1: 3 epochs, 5e-5, batches of 32, 1,024 tokens; BIDER, section 4.3."""
    for name in ("filco/flan-t5-xl.toml", "filco/llama-2-7b.toml"):
        found = read(name)
        settings = [found[key] for key in ("epochs", "learning-rate", "batch-size", "max-input-tokens")]
        assert settings == [3, 5e-5, 32, 1024]
    assert [read(f"filco/{name}.toml")["method"] for name in ("flan-t5-xl", "llama-2-7b")] == ["full", "lora"]
    silver = {name: read(f"filco/silver-{name}.toml") for name in ("strinc", "lexical", "cxmi")}
    assert {name: (each["measure"], each["threshold"]) for name, each in silver.items()} == {
        "strinc": ("strinc", 0.0), "lexical": ("lexical", 0.5), "cxmi": ("cxmi", 0.0),
    }  # fmt: skip
    synthesis = read("bider/silver.toml")
    assert [synthesis[key] for key in ("nuggets", "lambda-max", "lambda-min", "lambda-lm", "k")] == [
        7,
        0.5,
        0.01,
        0.05,
        5,
    ]
    refiner, aligned = read("bider/bart-large.toml"), read("bider/align.toml")
    assert (refiner["base"], refiner["learning-rate"], refiner["batch-size"]) == ("facebook/bart-large", 5e-5, 32)
    assert (aligned["top-k"], aligned["top-p"]) == (10, 0.95)


@pytest.mark.parametrize("name", FILES)
def test_a_command_takes_the_file(name: str, blendfilter: Command) -> None:
    """What is missing is the data or the model, and not an option: the file's words are the command's."""
    words = [*command_of(name), "--config", str(PAPERS / name), "--out", "out"]
    if words[0] == "silver":
        words += ["--data", "gone.jsonl"]
    else:
        words += ["--silver", "gone.jsonl"] + ["--base", "gone"] * ("base" not in read(name))
    outcome = blendfilter(*words)
    assert outcome.code == 2
    assert any(gone in outcome.err for gone in ("gone", "flan-t5-xl", "e5-base-v2", "t5_xxl", "Llama-2-7b"))
    assert "option" not in outcome.err
    assert "expected" not in outcome.err
