"""`blendfilter trim`: what it prints, keeps and takes back; one line and an exit code for what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from index_server import served
from judged import AGAIN, PIER, RADIO, WHO_OFF, WHO_ON
from model_server import serve
from refusing import NOBODY, lines, refused
from small_world import Command, tree

from blendfilter import open_index
from blendfilter.journal import Journal
from blendfilter.trimming.witnesses import Witnesses, WitnessWriter, question_id

TRIM = ("trim", "radio", "--questions", "questions.jsonl", "--lm", "offline", "-k", 5, "--threshold", 1)
WITNESSES = Path("radio.trimmed/witnesses.jsonl")


def judge(*words: object) -> tuple[object, ...]:
    """`TRIM` by a model behind a server."""
    return ("trim", "radio", "--questions", "questions.jsonl", "-k", 5, "--lm", "m", *words)


@pytest.fixture
def radio(blendfilter: Command, here: Path) -> Command:
    """An index `radio` and its questions, and nothing trimmed."""
    lines(here / "corpus.jsonl", [{"id": each.id, "title": each.title, "text": each.text} for each in RADIO])
    wanted = [WHO_ON, WHO_OFF, PIER]
    lines(here / "questions.jsonl", [{"id": f"q{at}", "question": text} for at, text in enumerate(wanted)])
    assert blendfilter("index", "corpus.jsonl", "--out", "radio").code == 0
    return blendfilter


@pytest.fixture
def trimmed(radio: Command) -> Command:
    """An overlay `radio.trimmed` at threshold 1, gathered by the offline reader."""
    result = radio(*TRIM)
    assert result.code == 0, result.err
    return radio


# --- trimming, and what it is good for --------------------------------------------------------------------------------


def test_what_it_prints(radio: Command, here: Path) -> None:
    outcome = radio(*TRIM)
    assert (outcome.code, outcome.err) == (0, "")
    questions, verdicts, separations, calls, use = outcome.out.splitlines()
    assert questions.startswith("questions: 3; judged 3, judged before 0, ")
    assert verdicts == "verdicts: 6 accepted, 2 rejected, 0 no verdict"
    assert separations.endswith("with 1 or more for one side, which is the threshold")
    assert calls.startswith("judge: ")
    assert use == 'use it: blendfilter search radio.trimmed "…", or --index radio.trimmed of eval and ask'
    assert {*tree(here / "radio.trimmed")} == {"manifest.json", "witnesses.jsonl", "journal.jsonl"}


def test_the_radio_is_turned_on(trimmed: Command) -> None:
    """The question in other words gets only the passage that fits, and no model is asked."""
    bare, calls = trimmed("search", "radio", AGAIN).out, len(Journal("radio.trimmed", "replay"))
    outcome = trimmed("search", "radio.trimmed", AGAIN)
    assert "turned off" in bare
    assert "turned on" in bare
    assert "turned off" not in outcome.out.partition("dropped")[0]
    assert "turned on" in outcome.out
    assert len(Journal("radio.trimmed", "replay")) == calls
    assert "turned off" in trimmed("search", "radio.trimmed", "kitchen radio").out


def test_the_same_again_calls_no_model_and_more_questions_are_added(trimmed: Command, here: Path) -> None:
    before = WITNESSES.read_bytes()
    outcome = trimmed(*TRIM)
    assert outcome.out.startswith("questions: 3; judged 0, judged before 3, ")
    assert "judge: 0 calls, 0 tokens (in all sessions: " in outcome.out
    assert WITNESSES.read_bytes() == before
    lines(here / "more.jsonl", [{"id": "m", "question": "Who sold the radio of the kitchen?", "answer": "Hal"}])
    assert trimmed("trim", "radio.trimmed", "--questions", "more.jsonl", "--lm", "offline").code == 0
    assert len(Witnesses.read(WITNESSES).judged) == 4


def test_nothing_asked_is_a_summary_and_a_threshold_is_kept(trimmed: Command) -> None:
    for place in ("radio", "radio.trimmed"):
        outcome = trimmed("trim", place)
        assert outcome.code == 0, outcome.err
        assert outcome.out.startswith("radio.trimmed: an overlay of ")
        assert "questions judged: 3, 5 passages each at most\n" in outcome.out
        assert "judged by offline, word, phi1, program " in outcome.out
    bare = trimmed("search", "radio", WHO_ON).out
    assert (
        "of them with 3 or more for one side, which is the threshold" in trimmed("trim", "radio", "--threshold", 3).out
    )
    assert "3 or more" in trimmed("trim", "radio").out
    assert trimmed("search", "radio.trimmed", AGAIN).out == trimmed("search", "radio", AGAIN).out, "no pair has three"
    assert trimmed("search", "radio.trimmed", WHO_ON).out != bare, "its own verdicts count at once"


def test_freed_places_stay_free_as_in_the_paper(trimmed: Command) -> None:
    filled = trimmed("search", "radio.trimmed", WHO_ON, "-k", 2)
    assert [line.split("\t")[2] for line in filled.out.splitlines()] == ["on", "sold"]
    assert "blendfilter: filled in sold: not rejected\n" in filled.err
    assert trimmed("trim", "radio", "--no-refill").code == 0
    left = trimmed("search", "radio.trimmed", WHO_ON, "-k", 2)
    assert [line.split("\t")[2] for line in left.out.splitlines()] == ["on"]
    assert "filled in" not in left.err


def test_a_run_says_what_its_index_dropped_and_filled_in(trimmed: Command, here: Path) -> None:
    """Its rows, its report and its traces; a replay has the same out of the journal."""
    asked = [{"id": "on", "question": WHO_ON, "answer": "Jack"}, {"id": "when", "question": "When?", "answer": "noon"}]
    lines(here / "asked.jsonl", asked)
    run = ("eval", "qa", "--data", "asked.jsonl", "--method", "direct-retrieval", "--index", "radio.trimmed", "-k", 2,
           "--lm", "offline", "--run", "run")  # fmt: skip
    assert trimmed(*run).code == 0
    rows = [json.loads(line) for line in (here / "run/predictions.jsonl").read_text().splitlines()]
    assert [row["branches"]["q"].get("trim") for row in rows] == [
        {"judged": WHO_ON, "similarity": 1.0, "dropped": {"off": ""}, "refilled": ["sold"], "unjudged": []}, None
    ]  # fmt: skip
    report = trimmed("report", "run").out
    assert (
        "Trimmed index: 1 of 2 searches changed; dropped 1 passages (1 by the question's own verdict, 0 beside an "
        "accepted one), filled in 1 (0 never judged)\n" in report
    )
    before = (here / "run/predictions.jsonl").read_bytes()
    assert trimmed(*run, "--replay").code == 0
    assert (here / "run/predictions.jsonl").read_bytes() == before
    again = ("ask", WHO_ON, "--index", "radio.trimmed", "--k", 2, "--lm", "offline", "--method", "direct-retrieval")
    trace = trimmed(*again, "--show-trace").out
    assert (
        "     trimmed: dropped off; filled in sold (verdicts on 'Who turned on the radio in the kitchen?')\n" in trace
    )


def test_witnesses_are_counted_for_one_side(trimmed: Command) -> None:
    """`on` and `off` have two witnesses, one for each: enough by Theorem 1, too few for the passage that stays."""
    bare = trimmed("search", "radio", AGAIN).out
    outcome = trimmed("trim", "radio", "--threshold", 2)
    assert "0 of them with 2 or more for one side, which is the threshold\n" in outcome.out
    view = trimmed("trim", "radio", "--show", "off").out
    assert "often enough from 0 of them (the threshold is 2, counted for one side)\n" in view
    assert "  2 witnesses (1 for off, 1 for on), below the threshold\n" in view
    rows = [json.loads(line) for line in trimmed("trim", "radio", "--export", "-").out.splitlines()]
    assert {row["reached"] for row in rows} == {False}
    assert trimmed("search", "radio.trimmed", AGAIN).out == bare
    assert "1 of them with 2 or more for either side, which is" in trimmed(*TRIM[:-2], "--no-one-way").out
    assert trimmed("search", "radio.trimmed", AGAIN).out != bare


def test_pairs_by_line_11_of_algorithm_1(trimmed: Command) -> None:
    every = trimmed("trim", "radio").out
    assert "separations: 3 pairs" in every
    fewer = trimmed("trim", "radio", "--pairing", "algorithm").out
    assert "separations: 1 pair " in fewer
    refused(trimmed("trim", "radio", "--pairing", "lemma"), "'theorem' or 'algorithm', got 'lemma'")


def test_a_model_of_pairs_is_kept_and_one_that_is_none_leaves_nothing(radio: Command, here: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra [dense]")
    from checkpoints import tiny_bert, tiny_cross_encoder

    for wrong, error in (("nowhere", "the model 'nowhere' of pairs of questions cannot be opened"),
                         (str(tiny_bert()), "is no model that says whether two questions ask the same")):  # fmt: skip
        refused = radio(*TRIM, "--similar", wrong)
        assert refused.code == 2
        assert error in refused.err
        assert "Traceback" not in refused.err
        assert not (here / "radio.trimmed").exists()
    model = str(tiny_cross_encoder())
    assert radio(*TRIM, "--similar", model).code == 0
    assert f"similar: {model}" in radio("trim", "radio").out
    assert "similar:" not in radio("trim", "radio", "--similar", "rules").out


def test_a_users_rules_and_components(radio: Command, here: Path) -> None:
    (here / "rules.toml").write_text(
        '[[rule]]\nname = "place"\ncomponents = ["adverbial"]\nsentence = "Both name the same place."\n'
    )
    words = ("--rules", "rules.toml", "--rule", "phi1", "--rule", "place", "--mode", "components")
    assert radio(*TRIM, *words).code == 0
    assert "judged by offline, components, phi1+place, program " in radio("trim", "radio").out
    with Journal(here / "radio.trimmed", "replay") as journal:
        assert all("Both name the same place." in str(call["prompt"]) for call in journal.records("call"))


def test_an_index_behind_an_address_is_trimmed_from_a_folder(trimmed: Command, here: Path) -> None:
    """The same verdicts as on the index itself; going on, it is named by its folder or its address."""
    words = ("--questions", "questions.jsonl", "--lm", "offline", "-k", 5, "--threshold", 1)
    with served(open_index("radio")) as server:
        allowed = ("--allow-host", "127.0.0.1")
        assert trimmed("trim", server.url, *words, "--out", "far").code == 0
        near, far = (Witnesses.read(here / place / "witnesses.jsonl") for place in ("radio.trimmed", "far"))
        assert far.digest(1) == near.digest(1)
        assert "turned off" not in trimmed("search", "far", AGAIN, *allowed).out.partition("dropped")[0]
        assert "turned off" in trimmed("trim", "far", "--show", "off", *allowed).out
        again = trimmed("trim", "far", "--questions", "questions.jsonl", "--lm", "offline", *allowed)
        assert "judged before 3" in again.out
    outcome = trimmed("trim", "far", "--show", "off")
    assert outcome.code == 0, outcome.err
    assert "note: its text cannot be looked up" in outcome.out
    assert trimmed("trim", "far", "--undo", "ALL").code == 0


# --- looking into it ------------------------------------------------------------------------------------------------


def test_a_passage_is_shown_with_its_separations(trimmed: Command) -> None:
    outcome = trimmed("trim", "radio", "--show", "off")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("passage off: Morning in Tolm | Mary turned off the radio in the kitchen.\n")
    assert "\nfrom on: Evening in Tolm | Jack turned on the radio in the kitchen.\n" in outcome.out
    assert "  2 witnesses (1 for off, 1 for on), the threshold is reached\n" in outcome.out
    won, lost = outcome.out.index("  off won for:"), outcome.out.index("  on won for:")
    assert f"    {question_id(WHO_OFF)} '{WHO_OFF}' (offline, word, phi1, program " in outcome.out[won:lost]
    assert f"    {question_id(WHO_ON)} '{WHO_ON}' (offline, word, phi1, program " in outcome.out[lost:]
    trimmed("trim", "radio", "--threshold", 3)
    assert "2 witnesses (1 for off, 1 for on), below the threshold" in trimmed("trim", "radio", "--show", "off").out
    unknown = trimmed("trim", "radio", "--show", "of")
    refused(unknown, "no judged question retrieved a passage 'of'. Did you mean 'off'?")


def test_a_passage_that_is_gone_from_the_index_is_shown_with_a_note(trimmed: Command) -> None:
    with WitnessWriter(WITNESSES) as writer:  # a passage that an index once had
        by = next(iter(writer.witnesses.judged.values())).by
        writer.judge("Who hid the radio?", {"on": True, "gone": False}, by)
    outcome = trimmed("trim", "radio", "--show", "gone")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("passage gone (not found by the index)\n")
    trimmed("index", "corpus.jsonl", "--out", "radio", "--overwrite", "--k1", 2)
    outcome = trimmed("trim", "radio", "--show", "off")
    assert outcome.code == 0, outcome.err
    assert "note: its text cannot be looked up: radio.trimmed was made for the" in outcome.out
    before = WITNESSES.read_bytes()
    refused(trimmed(*TRIM), "was made for the index")
    assert WITNESSES.read_bytes() == before


def test_separations_are_exported_and_no_file_is_replaced_unasked(trimmed: Command, here: Path) -> None:
    rows = [json.loads(line) for line in trimmed("trim", "radio", "--export", "-").out.splitlines()]
    assert {(row["accepted"], row["rejected"]) for row in rows} >= {("on", "off"), ("off", "on")}
    outcome = trimmed("trim", "radio", "--export", "out.csv")
    assert outcome.out == f"out.csv: {len(rows)} rows, one for each witness of each separation\n"
    assert (here / "out.csv").read_text().startswith("accepted,rejected,witnesses,")
    (here / "thesis.csv").write_text("mine")
    refused(trimmed("trim", "radio", "--export", "thesis.csv"), "there is a file at thesis.csv already", "--overwrite")
    assert (here / "thesis.csv").read_text() == "mine"
    assert trimmed("trim", "radio", "--export", "thesis.csv", "--overwrite").code == 0
    assert (here / "thesis.csv").read_text().startswith("accepted,rejected,")


# --- taking it back -------------------------------------------------------------------------------------------------


def searched(command: Command, place: str) -> list[str]:
    return [command("search", place, question, "-k", 3).out for question in (WHO_ON, WHO_OFF, AGAIN, PIER, "radio")]


@pytest.mark.parametrize(
    "undo", [["ALL"], [WHO_ON, WHO_OFF, PIER], [question_id(wanted) for wanted in (PIER, WHO_ON, WHO_OFF)]]
)
def test_after_undoing_everything_results_and_fingerprint_are_those_before(undo: list[str], trimmed: Command) -> None:
    journal = Path("radio.trimmed/journal.jsonl")
    bare, calls = searched(trimmed, "radio"), journal.read_bytes()
    assert searched(trimmed, "radio.trimmed") != bare
    outcome = trimmed("trim", "radio", *(word for name in undo for word in ("--undo", name)))
    assert outcome.out.endswith("0 at the threshold of 1: it answers as the bare index does\n"), outcome.err
    assert searched(trimmed, "radio.trimmed") == bare, "byte for byte"
    assert open_index("radio.trimmed").fingerprint == open_index("radio").fingerprint
    assert journal.read_bytes() == calls
    again = trimmed(*TRIM)
    assert "judged 3" in again.out
    assert "judge: 0 calls" in again.out, "what was paid for is there"
    assert searched(trimmed, "radio.trimmed") != bare


def test_a_pair_is_taken_back(trimmed: Command) -> None:
    outcome = trimmed("trim", "radio", "--undo", "off,on", "--undo", "on,off", "--undo", "off,sold")
    assert outcome.out.startswith(
        "undone: the separation of off and on (2 witnesses)\n"
        "undone: the separation of off and sold (1 witness)\nleft: 3 questions, "
    )
    assert "turned off" in trimmed("search", "radio.trimmed", WHO_ON).out


def test_the_summary_says_which_settings_were_changed(trimmed: Command) -> None:
    changed = ("no-one-way: all of a pair's", "no-refill: freed places stay free", "pairing: algorithm")
    assert not any(each in trimmed("trim", "radio").out for each in changed)
    out = trimmed("trim", "radio", "--no-one-way", "--no-refill", "--pairing", "algorithm").out
    assert all(each in out for each in changed)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("Who turned the radio on in the kitchen?", "Did you mean"),
        ("on,pier", "no question separates the pair 'on,pier'"),
        ("ALL", "--undo ALL takes everything back: leave the other --undo out"),
    ],
)
def test_one_wrong_name_undoes_nothing(name: str, error: str, trimmed: Command, here: Path) -> None:
    before = tree(here)
    refused(trimmed("trim", "radio", "--undo", WHO_ON, "--undo", name), error)
    assert tree(here) == before


# --- one line, exit code 2 ------------------------------------------------------------------------------------------

JUDGED = ("--questions", "sample")
BAD: list[tuple[tuple[object, ...], str]] = [
    (("--threshold", 0), "threshold: Input should be greater than or equal to 1, got 0"),
    (("--show", "on", "--undo", "ALL"), "--show and --undo are two things"),
    ((*JUDGED, "--export", "-"), "--questions and --export are two things"),
    (("--lm", "offline"), "--lm is for judging: add --questions FILE"),
    (("--dry-run",), "--dry-run is for judging"),
    ((*JUDGED, "--dry-run", "--threshold", 2), "--dry-run changes nothing, and --threshold would be kept"),
    (("--overwrite",), "--overwrite goes with --export: add that"),
    (("--questions", "questions.jsonl", "-k", 7), "was made with -k 5, not 7"),
    (("--show", "on", "--out", "elsewhere"), "no trimmed index at elsewhere"),
    ((*JUDGED, "--max-cost", 1, "--threshold", 3), "no price is known"),
    ((*JUDGED, "--out", "radio"), "--out radio is the index itself, which is never"),
    ((*JUDGED, "--out", "corpus.jsonl"), "--out corpus.jsonl is no overlay: name another"),
    (("--out", "other"), "--out other is no overlay: name another folder"),
    (("--export", "x.txt"), "name one that ends in .jsonl or .csv, or -"),
]


@pytest.mark.parametrize(("words", "error"), BAD)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    words: tuple[object, ...], error: str, trimmed: Command, here: Path
) -> None:
    (here / "other").mkdir()
    (here / "other" / "notes.txt").write_text("mine")
    before = tree(here)
    refused(trimmed("trim", "radio", *words), error)
    assert tree(here) == before


@pytest.mark.parametrize("words", [["--max-cost", 1], ["--max-retries", -1], ["-k", 0], ["--threshold", 0]])
def test_what_is_wrong_leaves_no_empty_overlay(words: list[object], radio: Command, here: Path) -> None:
    refused(radio("trim", "radio", "--questions", "questions.jsonl", "--lm", "offline", *words))
    assert not (here / "radio.trimmed").exists()


def test_two_at_once(trimmed: Command, here: Path) -> None:
    with WitnessWriter(WITNESSES):
        for words in (TRIM, ("trim", "radio", "--undo", "ALL")):
            refused(trimmed(*words), "another trim")
        before = tree(here)
        assert trimmed(*TRIM[:-1], 3).code == 2
        assert tree(here) == before, "a trim that is refused leaves the threshold as it was"
        assert trimmed("trim", "radio").code == 0, "one may look meanwhile"


def test_a_damaged_overlay_is_refused_and_the_index_is_there(trimmed: Command) -> None:
    WITNESSES.write_bytes(b"{}\n" + WITNESSES.read_bytes())
    for words in (TRIM, ("trim", "radio"), ("trim", "radio", "--undo", "ALL"), ("trim", "radio", "--show", "on")):
        refused(trimmed(*words), "witnesses.jsonl, line 1")
    assert trimmed("search", "radio.trimmed", WHO_ON).out.startswith("1\t")


# --- stopped ----------------------------------------------------------------------------------------------------------


def test_no_server_and_no_budget(radio: Command, here: Path) -> None:
    refused(radio(*judge("--api-base", NOBODY, "--attempts", 1)), "127.0.0.1:9")
    with serve(reply="offline") as server:
        outcome = radio(*judge("--api-base", server.url, "--max-calls", 3))
        assert outcome.code == 3
        assert "the budget is spent: 3 of 3 calls are gone" in outcome.error
        assert server.stats()["requests"] == 3
        assert radio(*judge("--api-base", server.url, "--max-calls", 100)).code == 0
        made = server.stats()["requests"]
        assert radio(*judge("--api-base", server.url)).code == 0
        assert server.stats()["requests"] == made


def test_failed_questions_and_a_judge_without_verdicts_end_with_1_and_another_goes_on(radio: Command) -> None:
    with serve(reply="offline", context_limit=10) as server:
        outcome = radio(*judge("--api-base", server.url, "--attempts", 1))
    assert (outcome.code, "failed 3" in outcome.out) == (1, True)
    assert "still open, and asked again by the same command: 3 questions" in outcome.out
    with serve(reply="It depends.") as server:
        outcome = radio(*judge("--api-base", server.url, "--threshold", 1, "--label", "b"))
    assert outcome.code == 1
    assert "the judge answered neither True nor False in 8 of 8 replies" in outcome.out
    assert "judged 3, judged before 0" in radio(*TRIM).out
    assert Witnesses.read(WITNESSES).separations() == 3


def test_ctrl_c_says_that_it_goes_on(radio: Command, here: Path) -> None:
    with serve(reply="offline", delay=0.3) as server:
        words = [str(word) for word in judge("--concurrency", 1, "--api-base", server.url)]
        command = [sys.executable, "-m", "blendfilter.cli", *words]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        while server.stats()["requests"] < 2 and process.poll() is None:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "blendfilter: stopped; the same command goes on where it was"
    with Journal(here / "radio.trimmed", "replay") as journal:
        assert sum(1 for _ in journal.records("call")) >= 1
