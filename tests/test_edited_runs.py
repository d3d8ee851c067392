"""A run whose files somebody edited or damaged: each reader says so in one line or reads it; nothing good is replaced.

Single values are changed at random (seeded), as a hand, a script or a disk would; what a reader may say is free, how it
may fail is not: a traceback, the last resort of `main`, a hang or a file replaced by a worse one fails the test.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_world import Command, journaled, small_eval, stable, tree

from blendfilter.cli.app import State

VALUES: list[Any] = [
    None, True, False, 0, -1, 7, 2**70, 1e308, 0.5, "", "x", "blendfilter", "\ud800", "\x1b[31m", "a" * 300,
    [], [1], ["x"], [[]], {}, {"x": 1}, {"q": None}, [[["deep"]]],
]  # fmt: skip
GONE = object()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values inside `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*path, name)
        yield from places(inner, (*path, name))


def changed(value: Any, rng: random.Random) -> str:
    """Change one value inside `value`, in place; where."""
    path = rng.choice([*places(value)])
    inside = value
    for name in path[:-1]:
        inside = inside[name]
    new = rng.choice([*VALUES, GONE, GONE])
    if new is GONE:
        del inside[path[-1]]
    else:
        inside[path[-1]] = new
    return f"{'.'.join(map(str, path))} = {'(gone)' if new is GONE else repr(new)[:40]}"


def edited(run: Path, rng: random.Random) -> str:
    """Change one value in one of the files of a run; which file and where."""
    name = rng.choice(["run.json", "metrics.json", "metrics.json", "predictions.jsonl", "predictions.jsonl",
                       "journal.jsonl", "rescore/cover-em.json"])  # fmt: skip
    path = run / name
    if path.suffix == ".json":
        value = json.loads(path.read_bytes())
        where = changed(value, rng)
        path.write_bytes(json.dumps(value, indent=2).encode())
        return f"{name}: {where}"
    lines = path.read_text("utf-8").splitlines()
    at = rng.randrange(len(lines))
    row = json.loads(lines[at])
    where = changed(row, rng)
    lines[at] = json.dumps(row, separators=(",", ":") if name == "journal.jsonl" else None)
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return f"{name}, line {at + 1}: {where}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, one of them rescored."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fresh_dspy: None) -> Command:
    return Command(monkeypatch, capsys)


@pytest.mark.parametrize("count", [12, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(3_000)])])
def test_no_single_edit_brings_a_reader_down_or_makes_a_good_run_worse(
    command: Command, runs: Path, tmp_path: Path, count: int
) -> None:
    if not (runs / "whole").exists():
        assert command(*small_eval("blendfilter", str(runs / "whole"), "--no-html")).code == 0
        assert command(*small_eval("direct", str(runs / "direct"), "--no-html")).code == 0
        assert command("rescore", runs / "whole", "--metric", "cover-em").code == 0
    right = stable(runs / "whole")
    rng = random.Random(count)
    for number in range(count):
        run = tmp_path / f"run{number}"
        shutil.copytree(runs / "whole", run)
        what = edited(run, rng)
        before = tree(run)
        readers: dict[str, tuple[object, ...]] = {
            "report": ("report", run),
            "compare": ("compare", runs / "direct", run),
            "rescore": ("rescore", run, "--metric", "cover-em"),
            "replay": small_eval("blendfilter", str(run), "--no-html", "--replay"),
            "eval": small_eval("blendfilter", str(run), "--no-html"),
        }
        codes = {}
        for name, words in readers.items():
            began = time.process_time()
            outcome = command(*words)
            assert outcome.code in (0, 1, 2), (what, name, outcome)
            assert "Traceback" not in outcome.err, (what, name, outcome.err)
            assert "should not have happened" not in outcome.err, (what, name, outcome.err)
            assert time.process_time() - began < 5, (what, name)
            codes[name], after = outcome.code, tree(run)
            kept = ["run.json", "journal.jsonl"] if name != "eval" else []
            kept += ["predictions.jsonl", "metrics.json"] if outcome.code == 2 else []
            assert {file: after.get(file) for file in kept} == {file: before.get(file) for file in kept}, (what, name)
        # The same command made all of it good again.
        if codes["replay"] == codes["eval"] == 0:
            assert stable(run) == right, what
        shutil.rmtree(run)


def test_rows_whose_scores_are_not_their_answers_are_noticed_and_made_again(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert command(*small_eval("blendfilter", str(run), "--no-html")).code == 0
    before = stable(run)
    path = run / "predictions.jsonl"
    path.write_text(path.read_text("utf-8").replace('"em": 0.0', '"em": 1.0', 1), "utf-8")
    report = command("report", run, "--no-html")
    assert "predictions.jsonl: 1 rows (first '" in " ".join(report.out.split())
    assert "metrics.json: metrics.em.value are not what predictions.jsonl gives" in " ".join(report.out.split())
    assert "predictions.jsonl: 1 rows" in command("compare", run, run).out
    assert command(*small_eval("blendfilter", str(run), "--no-html")).code == 0
    assert stable(run) == before
    assert len(journaled(run)) == 44, "no call was made for it"


def test_a_rescored_file_that_its_answers_contradict_is_refused_by_compare(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert command(*small_eval("direct", str(run), "--no-html")).code == 0
    assert command("rescore", run, "--metric", "cover-em").code == 0
    path = run / "rescore/cover-em.json"
    result = json.loads(path.read_bytes())
    result["rows"] = dict.fromkeys(result["rows"], 1.0)
    path.write_text(json.dumps(result | {"value": 1.0}))
    outcome = command("compare", run, run, "--metric", "cover-em")
    assert outcome.code == 2
    assert "cover-em.json: the scores in it are not those of the answers; make it again" in outcome.error


def test_what_nobody_foresaw_is_one_line_that_names_the_files(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("losses")

    (tmp_path / "run").mkdir()
    monkeypatch.setattr("blendfilter.evaluation.run.Run.__init__", broken)
    outcome = command("report", tmp_path / "run")
    assert outcome.code == 1
    assert outcome.error.startswith(
        f"blendfilter: {tmp_path / 'run'}: this should not have happened (KeyError: 'losses')"
    )
    with pytest.raises(KeyError):
        command("--debug", "report", tmp_path / "run")
    State.debug = False
