"""A model in this process from `connect()` and the command line, through whole runs and replays without its file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import dspy
import pytest
from local_model import weights
from small_world import Command, journaled, stable

from blendfilter.errors import BadArgument, BadData, MissingFile, ModelError, ReplayMiss
from blendfilter.lm.local.engine import LocalEngine
from blendfilter.lm.local.loading import fingerprint
from blendfilter.lm.local.prefixes import TOGETHER
from blendfilter.lm.model import ConnectedLM, connect


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """SmolLM2's file under a name of the user's own."""
    link = tmp_path / "smol.gguf"
    link.symlink_to(weights())
    return link


@pytest.fixture
def blendfilter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    return Command(monkeypatch, capsys)


def test_names_that_mean_a_model_in_this_process(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    names = {"local": weights().stem, "smol.gguf": "smol", "local/smol.gguf": "smol", str(file): "smol"}
    for name, model in names.items():
        lm = connect(name, context=128)
        assert (lm.name, lm.address, lm.profile.json_schema) == (model, "this process", True)
        assert isinstance(lm.inner, LocalEngine)
        assert lm.terms.retry is None
        assert str(file.parent) not in json.dumps(lm.identity)
    assert lm.identity["options"]["weights"] == fingerprint(file)
    assert lm.identity["options"]["context"] == 128


def test_the_same_weights_elsewhere_are_the_same_model(file: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = (tmp_path / "elsewhere" / "smol.gguf").resolve()
    other.symlink_to(weights())
    assert connect(str(file)).identity == connect(str(other)).identity
    assert connect(str(file)).identity != connect(str(file), context=512).identity


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"context": 10}, "a context must be at least 64 tokens, at most 8,192"),
        ({"context": 10_000}, "at most 8,192"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"extra_body": {"min_p": 0.1}}, "extra_body is for a server's requests"),
        ({"reasoning": "much"}, "no reasoning effort 'much'"),
    ],
)
def test_what_a_local_model_does_not_take(options: dict[str, object], said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        connect("local", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["context", "threads"])
def test_its_options_are_for_no_server(option: str, blendfilter: Command) -> None:
    with pytest.raises(BadArgument, match=f"{option} is for a model in this process"):
        connect("m", api_base="http://127.0.0.1:1/v1", **{option: 512})  # type: ignore[arg-type]
    told = blendfilter("ask", "Who?", "--lm", "offline", f"--{option}", 512)
    assert (told.code, told.error.count(f"{option} is for a model in this process")) == (2, 1)


def test_a_bad_file_is_one_line_and_leaves_no_journal(tmp_path: Path, blendfilter: Command) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    with pytest.raises(BadData, match="is no GGUF file"):
        connect(str(text), journal=tmp_path / "run")
    with pytest.raises(MissingFile):
        connect("absent.gguf", journal=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    told = blendfilter("ask", "Who?", "--lm", "absent.gguf")
    assert (told.code, "no model file absent.gguf" in told.error) == (2, True)


def test_state_keeps_the_name_that_was_given(file: Path) -> None:
    lm = connect(str(file), context=256, label="a", max_tokens=5)
    state = json.loads(json.dumps(lm.dump_state()))
    again = dspy.BaseLM.load_state(state, allow_custom_lm_class=True)
    assert isinstance(again, ConnectedLM)
    assert (again.identity, again.kwargs, again.dump_state()) == (lm.identity, lm.kwargs, state)
    assert connect("local").dump_state()["name"] == "local"


def test_calls_are_journaled_with_what_was_cached_and_replayed_without_the_file(file: Path, tmp_path: Path) -> None:
    lm = connect(str(file), context=256, journal=tmp_path / "run", temperature=1.0, max_tokens=6)
    first, again = lm("Name a colour.", n=3), lm("Name a colour.", n=3)
    assert first == again
    assert len(set(first)) > 1  # three samples, not one thrice
    other = connect(str(file), context=256, temperature=1.0, max_tokens=6)
    assert other("Name a colour.", n=3) == first  # the seed is of the request and its sample
    lm.journal.close()  # type: ignore[union-attr]
    calls = journaled(tmp_path / "run")
    assert len(calls) == 3
    assert sorted(call["tokens_cached"] for call in calls)[1:] == [calls[0]["tokens_in"] - TOGETHER] * 2
    replayed = connect(str(file), context=256, journal=tmp_path / "run", mode="replay", temperature=1.0, max_tokens=6)
    assert replayed("Name a colour.", n=3) == first
    assert isinstance(replayed.inner, LocalEngine)
    assert replayed.inner._opened._model is None  # a replay opens no weights


def test_a_prompt_too_long_is_that_calls_error(file: Path) -> None:
    lm = connect(str(file), context=64)
    with pytest.raises(ModelError, match=r"longer than the model's context: .*--context") as raised:
        lm("word " * 100)
    assert raised.value.kind == "context_too_long"


def test_several_loops_and_synchronous_callers_share_it(file: Path) -> None:
    lm = connect(str(file), context=128, max_tokens=2)
    said = lm("Say hi.")
    assert asyncio.run(lm.acall("Say hi.")) == said
    assert asyncio.run(lm.acall("Say hi.")) == said


@pytest.mark.slow  # 12,000 tokens: under a minute on a quiet machine
@pytest.mark.timeout(900)
def test_a_whole_run_replays_byte_for_byte_when_the_file_is_gone(file: Path, blendfilter: Command) -> None:
    words = ("eval", "hotpotqa", "--data", "sample", "--corpus", "sample", "--limit", 3, "-k", 2, "--run", "run",
             "--context", 4096, "--concurrency", 6, "--max-bad-replies", 1)  # fmt: skip
    told = blendfilter(*words, "--lm", "smol.gguf")
    assert told.code == 0, told.err
    before = stable(Path("run"))
    rows = [json.loads(line) for line in before["predictions.jsonl"].splitlines()]
    assert [row["error"] for row in rows] == [None] * 3
    read = [branch["ids_read"] for row in rows for branch in row["branches"].values()]
    assert set(read) <= {"ids", "none"}  # under the grammar all of them parse
    calls = journaled(Path("run"))
    assert {call["model"] for call in calls} == {"smol"}
    assert any(call["tokens_cached"] > 500 for call in calls)
    assert str(weights().parent) not in Path("run/run.json").read_text()

    file.unlink()
    told = blendfilter(*words, "--lm", "smol.gguf", "--replay")
    assert (told.code, "the model cannot be had (no model file smol.gguf" in told.err) == (0, True)
    assert stable(Path("run")) == before
    missing = blendfilter(*words[:-2], "--limit", 4, "--lm", "smol.gguf", "--replay")
    assert missing.code == 2
    other = blendfilter(*words, "--lm", "another.gguf", "--replay")
    assert (other.code, "no model file another.gguf" in other.error) == (2, True)


def test_what_is_remembered_of_a_model_answers_nothing() -> None:
    from blendfilter.lm.local.connecting import remembered

    known = {"name": "smol", "endpoint": "chat", "options": {"weights": "ab", "context": 64, "json_schema": True}}
    lm = ConnectedLM(**remembered(known, MissingFile("no model file smol.gguf")), temperature=0.0)
    assert (lm.name, lm.profile.json_schema) == ("smol", True)
    with pytest.raises(ReplayMiss, match=r"would have to be asked, and no model file smol\.gguf"):
        lm("Who?")
