"""Alignment of BIDER's refiner: what a text is worth to the reader, what a run leaves and refuses, how it goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument, EmptyData, MissingFile, RunLocked, RunMismatch, UnknownName, WorkFailed

pytest.importorskip("peft", reason="training needs the extra [train]")

import scoring_models
from refusing import refused
from small_world import Command
from training.aligned import SETTINGS, answer, distilled, figures, reader, row, silver_file

from blendfilter.filters.written import BIDERFilter
from blendfilter.lm.checkpoints import open_checkpoint, trained_on
from blendfilter.training import alignment
from blendfilter.training.alignment import ReaderReward, align_bider
from blendfilter.training.ppo import Text
from blendfilter.training.recipes import read_recipe

# --- the reward -------------------------------------------------------------------------------------------------------


def rewards(lm: Any, **how: Any) -> ReaderReward:
    return ReaderReward([row(at) for at in range(3)], lm, TaskWording.of("nq").with_demos("none"), **how)


def test_a_text_is_worth_the_f1_that_it_gains_over_the_original_passages():
    """Golden answers "King 0" and "the king". From the original passages: "a king of rain", F1 with "king" 1/2 (of the
    three words king, of, rain one is right: 2 * 1/3 / (1/3 + 1)). From the written context: "King 0", F1 1."""
    lm = reader(lambda stage, prompt: "King 0" if "It rains" not in prompt else "a king of rain")
    assert rewards(lm)([Text(0, "King 0 built the castle.", False)]) == [pytest.approx(1 - 0.5)]


def test_the_reader_reads_what_the_filter_would_give_it():
    """A sentence that stands in a passage comes under its title, other text as it is, or not at all."""
    lm = reader()
    written = "It is long. The king was bored."
    rewards(lm)([Text(1, written, False)])
    rewards(lm, unmatched="drop")([Text(1, written, False)])
    original, kept, _, dropped = (prompt for _, prompt in lm.prompts)
    assert "Town 1 | It rains. King 1 built the castle.\nRiver | It ends in the sea. It is long.\n" in original
    assert "River | It is long.\nThe king was bored.\n" in kept
    assert "It rains" not in kept
    assert "bored" not in dropped
    assert all("Who built castle 1?" in prompt for _, prompt in lm.prompts)


def test_what_is_written_behind_another_question_of_the_models_own_is_not_read():
    """A run stops there too."""
    lm = reader()
    rewards(lm)([Text(1, "It is long.\nQuestion: Who built it?\nContext: The king was bored.", False)])
    assert "bored" not in lm.prompts[1][1]
    assert lm.prompts[1][1].count("Question:") == 1


def test_a_text_without_a_word_is_answered_from_nothing_and_paid_for_all_the_same():
    lm = reader(lambda stage, prompt: "the king" if "It rains" in prompt else "no idea")
    assert rewards(lm)([Text(0, "", False)]) == [-1.0]


def test_original_passages_are_answered_from_once_a_question():
    lm = reader()
    paid = rewards(lm)
    paid([Text(0, "It rains.", False), Text(0, "It is long.", False), Text(1, "It rains.", False)])
    assert lm.calls == 3 + 2
    paid([Text(0, "It ends in the sea.", False)])
    assert lm.calls == 5 + 1


# --- a run ------------------------------------------------------------------------------------------------------------


def aligned(out: Path, lm: Any = None, settings: Any = SETTINGS, model: Path | None = None, **more: Any) -> Path:
    silver = silver_file(out.parent / "data")
    done = align_bider(model or distilled(), silver, out, lm or reader(), settings, device="cpu", demos="none", **more)
    assert done.folder == out
    return out


def weights(folder: Path) -> bytes:
    return next(path.read_bytes() for path in folder.glob("*.safetensors"))


def test_an_aligned_adapter_is_a_filters_model_on_the_same_base(tmp_path: Path):
    out = aligned(tmp_path / "out")
    recipe, before = read_recipe(out), read_recipe(distilled())
    assert open_checkpoint(out, device="cpu").model is not None  # the base is found, and the adapter fits it
    BIDERFilter().check(out)
    assert weights(out) != weights(distilled())
    assert recipe["base"] == before["base"]
    assert recipe["distilled"]["name"] == str(distilled())
    assert recipe["settings"]["clip"] == 0.2
    assert recipe["reader"]["name"] == "scripted"
    assert trained_on(out) == trained_on(distilled())
    assert len(figures(out)) == SETTINGS.steps
    assert {path.name for path in out.iterdir()} >= {"rewards.jsonl", "rewards.png", "reader", "tokenizer.json"}
    assert not {path.name for path in out.iterdir()} & {"ppo.pt", "training.json"}
    assert not (tmp_path / "out.partial").exists()


def test_a_whole_encoder_decoder_is_aligned_in_all_its_weights(tmp_path: Path):
    out = aligned(tmp_path / "out", model=distilled(encoder_decoder=True))
    assert open_checkpoint(out, device="cpu").config.is_encoder_decoder
    assert weights(out) != weights(distilled(encoder_decoder=True))
    assert read_recipe(out)["base"]["name"] == str(distilled(encoder_decoder=True))


def test_questions_that_the_refiner_cannot_read_are_left_out_as_they_were_of_its_distillation(tmp_path: Path):
    """The ninth question alone is longer than the 400 tokens of the distillation."""
    silver = silver_file(tmp_path / "data")
    rows = [json.loads(line) for line in silver.read_text().splitlines()]
    rows[-1]["question"] = "Who built it? " * 200
    silver.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = align_bider(distilled(), silver, tmp_path / "out", reader(), SETTINGS, device="cpu", demos="none").folder
    assert read_recipe(out)["left_out_no_room"] == 1
    assert {place for step in figures(out) for place in step["places"]} == {*range(8)}
    with pytest.raises(EmptyData, match="each of the 9 prompts has more than 12 tokens"):  # of 512 positions
        aligned(tmp_path / "other", settings=SETTINGS.but(max_new_tokens=500))


def test_the_kl_term_compares_with_the_distilled_model(tmp_path: Path):
    out = aligned(tmp_path / "out", settings=SETTINGS.but(kl_coefficient=0.1))
    drifts = [step["kl"] for step in figures(out)]
    assert drifts[0] > 0  # of the second pass over the first batch
    assert max(drifts) < 1


def test_a_finished_run_is_not_made_again_and_other_settings_are_refused(tmp_path: Path):
    out, lm = aligned(tmp_path / "out"), reader()
    aligned(out, lm)
    assert lm.calls == 0
    aligned(out, settings=SETTINGS.but(every=1))  # how often it is kept shapes no weights
    with pytest.raises(RunMismatch, match=r"settings\.clip was 0\.2, now 0\.1"):
        aligned(out, settings=SETTINGS.but(clip=0.1))


def test_a_run_whose_reader_went_away_goes_on_to_the_same_weights_and_pays_for_nothing_twice(tmp_path: Path):
    whole = reader()
    aligned(tmp_path / "whole", whole)
    first, left = reader(lambda stage, prompt: fail_after(18)), 18

    def fail_after(_: int) -> str:
        nonlocal left
        left -= 1
        if left < 0:
            raise ConnectionError
        return answer("", first.prompts[-1][1])

    with pytest.raises(Exception, match="scripted"):
        aligned(tmp_path / "two", first)
    second = reader()
    aligned(tmp_path / "two", second)
    assert_same(tmp_path / "two", tmp_path / "whole")
    assert 18 + second.calls == whole.calls


def test_stopped_after_the_last_step_it_is_finished_without_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """While the weights are saved: the last checkpoint has all steps."""
    aligned(tmp_path / "whole")

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(alignment, "_save", stop)
        with pytest.raises(KeyboardInterrupt):
            aligned(tmp_path / "out")
    lm = reader()
    aligned(tmp_path / "out", lm)
    assert lm.calls == 0
    assert_same(tmp_path / "out", tmp_path / "whole")


def test_a_run_that_was_stopped_may_go_on_with_fewer_tokens_at_a_time(tmp_path: Path):
    """As one whose memory ran out would: they shape no weights."""
    lm = reader(lambda stage, prompt: answer(stage, prompt) if lm.calls <= 25 else None)
    with pytest.raises(Exception, match="scripted"):
        aligned(tmp_path / "out", lm)
    assert (tmp_path / "out.partial" / "ppo.pt").exists()
    aligned(tmp_path / "out", settings=SETTINGS.but(micro_tokens=50))
    aligned(tmp_path / "out")  # finished


def test_until_the_folder_is_there_another_process_is_locked_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    draw = alignment.draw_steps

    def meanwhile(*given: Any) -> None:
        with pytest.raises(RunLocked):
            aligned(tmp_path / "out")
        draw(*given)

    monkeypatch.setattr(alignment, "draw_steps", meanwhile)
    aligned(tmp_path / "out")


def test_what_another_process_finished_meanwhile_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is finished between the look at the folder and the lock."""
    lm, alone_in = reader(), alignment.alone_in

    def after_the_other(*given: Any) -> Any:
        monkeypatch.setattr(alignment, "alone_in", alone_in)
        aligned(tmp_path / "out")
        return alone_in(*given)

    monkeypatch.setattr(alignment, "alone_in", after_the_other)
    with pytest.raises(RunLocked, match="was finished by another training: give the command again"):
        aligned(tmp_path / "out", lm)
    assert lm.calls == 0
    assert not (tmp_path / "out.partial").exists()


def assert_same(folder: Path, other: Path) -> None:
    """The same weights, the same steps, and a recipe that says the same."""
    for name in ("adapter_model.safetensors", "rewards.jsonl"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()
    assert read_recipe(folder) == read_recipe(other)


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from dataclasses import replace
from blendfilter.training.alignment import align_bider
from training.aligned import SETTINGS, reader
def wait(figures, seconds):
    if figures.step >= {last}:
        time.sleep(600)
align_bider({model!r}, {silver!r}, {out!r}, reader(), SETTINGS.but(steps=20), device="cpu", demos="none",
            on_step=wait)
"""


@pytest.mark.slow
def test_killed_at_five_random_moments_it_comes_to_the_same_weights(tmp_path: Path):
    """One step behind the moment it waits to be killed, however late that comes."""
    out, log, chance = tmp_path / "out", tmp_path / "out.partial" / "rewards.jsonl", random.Random(0)
    assert started(tmp_path / "whole").wait() == 0
    wanted = 0
    for kill in range(6):
        wanted = max(wanted, lines_of(log)) + chance.randint(1, 3)
        last = wanted + 1 if kill < 5 else 21
        child = started(out, last)
        if kill < 5:
            while child.poll() is None and lines_of(log) < wanted:
                time.sleep(0.005)
            time.sleep(chance.random() * 0.1)
            child.send_signal(signal.SIGKILL)
        assert child.wait() == (-signal.SIGKILL if kill < 5 else 0)
    assert_same(out, tmp_path / "whole")


def started(out: Path, last: int = 21) -> subprocess.Popen[bytes]:
    """An alignment in a process of its own that waits behind step `last`; on one thread, as every one here: another
    number of threads adds up in another order."""
    tests, model, silver = str(Path(__file__).parents[1]), str(distilled()), str(silver_file(out.parent / "data"))
    script = SCRIPT.format(tests=tests, model=model, silver=silver, out=str(out), last=last)
    return subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "OMP_NUM_THREADS": "1"})


def lines_of(log: Path) -> int:
    return len(log.read_bytes().splitlines()) if log.exists() else 0


# --- what is refused --------------------------------------------------------------------------------------------------


def test_alignment_begins_with_a_distilled_refiner(tmp_path: Path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "recipe.json").write_text('{"format": 1, "part": "context", "settings": {}}')
    with pytest.raises(BadArgument, match=r"other was trained as context: make one first \(blendfilter train bider"):
        aligned(tmp_path / "out", model=tmp_path / "other")
    with pytest.raises(BadArgument, match="no recipe of ours"):
        aligned(tmp_path / "out", model=tmp_path / "nothing")
    assert not (tmp_path / "out.partial").exists()


def test_where_memory_runs_out_a_line_says_so_and_the_same_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_more(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("blendfilter.training.ppo.learn", no_more)
        with pytest.raises(WorkFailed, match=r"memory ran out .*micro_tokens"):
            aligned(tmp_path / "out")
    aligned(tmp_path / "out")


# --- whether the reward rose ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("means", "words"),
    [
        ([0.0, 0.1, 0.5, 0.5, 0.5, 0.5, 0.9, 1.0], "it rose"),
        ([0.9, 1.0, 0.5, 0.5, 0.5, 0.5, 0.0, 0.1], "it fell"),
        ([0.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.1, 1.0], "it neither rose nor fell for certain"),
        ([0.0, 1.0], "mean reward +0.000 in the first and +1.000 in the last of 2 steps"),
    ],
)
def test_the_statement_says_whether_the_interval_excludes_0(means: list[float], words: str):
    assert alignment.reward_words(alignment.reward_change(means)).endswith(words)


def test_the_interval_is_that_of_welch_for_large_samples():
    """scipy's unequal-variance interval, with the normal in place of Student's quantile."""
    stats = pytest.importorskip("scipy.stats")
    chance = random.Random(0)
    means = [chance.gauss(0.1 * (at > 500), 0.3) for at in range(1000)]
    found = alignment.reward_change(means)
    theirs = stats.ttest_ind(means[-250:], means[:250], equal_var=False).confidence_interval(0.95)
    assert found["reward_low"] == pytest.approx(theirs.low, abs=5e-4)
    assert found["reward_high"] == pytest.approx(theirs.high, abs=5e-4)


# --- the command ------------------------------------------------------------------------------------------------------


def command(*more: str) -> tuple[int, str]:
    """Exit code and output of `blendfilter train bider`."""
    made = subprocess.run([sys.executable, "-m", "blendfilter.cli", "train", "bider", *more],
                          capture_output=True, text=True, check=False)  # fmt: skip
    return made.returncode, made.stdout + made.stderr


@pytest.mark.slow
def test_the_command_aligns_with_a_reader_says_what_came_of_it_and_goes_on(tmp_path: Path):
    silver, out = silver_file(tmp_path), tmp_path / "out"
    given = ["--base", str(distilled()), "--silver", str(silver), "--out", str(out), "--align"]
    code, said = command(*given)
    assert (code, "name it with --reader" in said) == (2, True)
    code, said = command("--base", str(tmp_path), *given[2:], "--reader", "offline")
    assert (code, said.count("\n"), "alignment begins with a distilled refiner" in said) == (2, 1, True)
    code, said = command(*given, "--reader", "offline", "--lora-rank", "4")
    assert (code, "--lora-rank is of the distillation" in said) == (2, True)
    code, said = command(*given[:-1], "--clip", "0.1")
    assert (code, "--clip goes with --align: add that" in said) == (2, True)
    code, said = command(*given, "--reader", "offline", "--steps", "4", "--batch-size", "4", "--epochs", "1",
                         "--max-target-tokens", "6", "--device", "cpu")  # fmt: skip
    assert code == 0, said
    assert "step 4 of 4: mean reward" in said
    assert "in the last of 4 steps" in said
    recipe = read_recipe(out)
    assert (recipe["settings"]["batch"], recipe["settings"]["epochs"], recipe["result"]["steps"]) == (4, 1, 4)


def test_what_is_refused_before_the_first_step_leaves_nothing(tmp_path: Path):
    out = tmp_path / "out"
    for wrong, words in [({"unmatched": "odd"}, "unmatched"), ({"demos": str(tmp_path / "none.json")}, "none.json")]:
        with pytest.raises((BadArgument, MissingFile, UnknownName), match=words):
            align_bider(distilled(), silver_file(tmp_path / "data"), out, reader(), SETTINGS, device="cpu", **wrong)
        assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_filters_model_is_no_reader(tmp_path: Path):
    with pytest.raises(BadArgument, match="it writes what is to be read, and no answers"):
        aligned(tmp_path / "out", lm=f"hf/{distilled()}?device=cpu")
    assert not (tmp_path / "out.partial").exists()


def test_a_filters_model_is_not_asked_either(blendfilter: Command, here: Path):
    words = ("ask", "Who built castle 1?", "--corpus", "sample", "--method", "direct-retrieval")
    refused(blendfilter(*words, "--lm", f"hf/{distilled()}?device=cpu"), "it writes what is to be read, and no answers")


def test_a_prompt_that_the_reader_cannot_read_names_its_question(tmp_path: Path):
    short = f"hf/{scoring_models.gpt2()}?device=cpu"  # 256 tokens, and the demonstrations have more
    with pytest.raises(BadArgument, match=r"answer question 'q\d' from: .*the model's context.*reads more"):
        align_bider(distilled(), silver_file(tmp_path / "data"), tmp_path / "out", short, SETTINGS, device="cpu")
    assert not (tmp_path / "out.partial").exists()
