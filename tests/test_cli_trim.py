"""`blendfilter trim` as a user meets it: what it prints, what it keeps and takes back, one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from index_server import served
from judged import AGAIN, PIER, WHO_OFF, WHO_ON
from radio import TRIM
from refusing import lines
from small_world import Command, tree

from blendfilter import open_index
from blendfilter.journal import Journal
from blendfilter.trimming.witnesses import Witnesses, WitnessWriter, question_id

# --- trimming, and what it is good for --------------------------------------------------------------------------------


def test_what_it_prints(radio: Command, here: Path) -> None:
    told = radio(*TRIM)
    assert (told.code, told.err) == (0, "")
    first, verdicts, separations, judge, use = told.out.splitlines()
    assert (
        first == "questions: 3; judged 3, judged before 0, answered by another's verdicts 0 (0 calls saved), failed 0"
    )
    assert verdicts == "verdicts: 6 accepted, 2 rejected, 0 no verdict"
    assert separations.endswith("with 1 or more, which is the threshold")
    assert judge.startswith("judge: ")
    assert use == 'use it: blendfilter search radio.trimmed "…", or --index radio.trimmed of eval and ask'
    assert {path.name for path in (here / "radio.trimmed").iterdir()} == {
        "manifest.json", "witnesses.jsonl", "journal.jsonl",
    }  # fmt: skip


def test_the_radio_is_turned_on(trimmed: Command, here: Path) -> None:
    """Before, both passages; afterwards the question in other words gets the one that fits, and no model is asked."""
    bare = trimmed("search", "radio", AGAIN)
    calls = len(Journal(here / "radio.trimmed", "replay"))
    told = trimmed("search", "radio.trimmed", AGAIN)
    assert "turned off" in bare.out
    assert "turned on" in bare.out
    assert "turned off" not in told.out.partition("dropped")[0]
    assert "turned on" in told.out
    assert len(Journal(here / "radio.trimmed", "replay")) == calls
    both = trimmed("search", "radio.trimmed", "kitchen radio")
    assert "turned off" in both.out
    assert "turned on" in both.out


def test_the_same_again_asks_nothing_and_says_so(trimmed: Command, here: Path) -> None:
    before = (here / "radio.trimmed" / "witnesses.jsonl").read_bytes()
    told = trimmed(*TRIM)
    assert told.out.startswith("questions: 3; judged 0, judged before 3, ")
    assert "judge: 0 calls, 0 tokens in, 0 out (in all sittings: " in told.out
    assert (here / "radio.trimmed" / "witnesses.jsonl").read_bytes() == before


def test_the_overlays_own_folder_may_be_named(trimmed: Command, here: Path) -> None:
    lines(here / "more.jsonl", [{"id": "m", "question": "Who sold the radio of the kitchen?", "answer": "Hal"}])
    told = trimmed("trim", "radio.trimmed", "--questions", "more.jsonl", "--lm", "offline")
    assert told.code == 0, told.err
    assert len(Witnesses.read(here / "radio.trimmed" / "witnesses.jsonl").judged) == 4


def test_nothing_asked_is_a_summary(trimmed: Command) -> None:
    for place in ("radio", "radio.trimmed"):
        told = trimmed("trim", place)
        assert told.code == 0, told.err
        assert told.out.startswith("radio.trimmed: an overlay of ")
        assert "questions judged: 3, 5 passages each at most\n" in told.out
        assert "judged by offline, word, phi1, program " in told.out


def test_a_threshold_is_kept(trimmed: Command) -> None:
    bare = trimmed("search", "radio", WHO_ON).out
    assert "of them with 3 or more, which is the threshold" in trimmed("trim", "radio", "--threshold", 3).out
    assert "3 or more" in trimmed("trim", "radio").out
    assert trimmed("search", "radio.trimmed", WHO_ON).out == bare, "no pair has three witnesses"


def test_witnesses_are_counted_one_way(trimmed: Command) -> None:
    """`on` and `off` have two witnesses, one for each: enough by the paper, too few one way."""
    bare = trimmed("search", "radio", WHO_ON).out
    assert trimmed("trim", "radio", "--threshold", 2).code == 0
    assert trimmed("search", "radio.trimmed", WHO_ON).out != bare
    told = trimmed("trim", "radio", "--one-way")
    assert told.code == 0, told.err
    assert "0 of them with 2 or more for one side (one way), which is the threshold\n" in told.out
    assert "one side" in trimmed("trim", "radio").out, "it is kept"
    shown = trimmed("trim", "radio", "--show", "off").out
    assert "often enough from 0 of them (the threshold is 2, counted one way)\n" in shown
    assert "  2 witnesses (1 for off, 1 for on), below the threshold\n" in shown
    told = trimmed("search", "radio.trimmed", WHO_ON)
    assert (told.out, told.err) == (bare, "")
    rows = [json.loads(line) for line in trimmed("trim", "radio", "--export", "-").out.splitlines()]
    assert {row["reached"] for row in rows} == {False}
    assert "left: 3 questions, 2 separations, 0 at" in trimmed("trim", "radio", "--undo", "sold,on").out
    again = trimmed(*TRIM[:-2], "--one-way")
    assert "0 of them with 2 or more for one side" in again.out
    again = trimmed(*TRIM[:-2], "--no-one-way")
    assert "1 of them with 2 or more, which is the threshold" in again.out
    assert trimmed("search", "radio.trimmed", WHO_ON).out != bare
    told = trimmed("trim", "radio", "--one-way", "--show", "off")
    assert (told.code, told.err) == (2, told.err)
    assert "--show and --one-way are two things" in told.err


def test_a_rehearsal_counts_as_the_overlay_does(trimmed: Command) -> None:
    assert trimmed("trim", "radio", "--undo", "ALL").code == 0
    for way, none in (("--one-way", True), ("--no-one-way", False)):
        assert trimmed("trim", "radio", "--threshold", 2, way).code == 0
        told = trimmed(*TRIM[:-2], "--dry-run")
        assert ("would be dropped for these questions: 0" in told.out) is none


def test_an_overlay_may_begin_one_way(radio: Command) -> None:
    told = radio(*TRIM, "--one-way")
    assert "with 1 or more for one side (one way), which is the threshold" in told.out
    assert open_index("radio.trimmed").info()["settings"]["one_way"] is True
    assert open_index("radio.trimmed", one_way=False).info()["settings"]["one_way"] is False
    told = radio("search", "radio.trimmed", WHO_ON)
    assert "  1 witness for on: '" in told.err


def test_a_rehearsal_says_what_would_be_dropped(radio: Command, here: Path) -> None:
    told = radio(*TRIM[:-2], "--dry-run")
    assert told.code == 0, told.err
    assert "a dry run: the witnesses are as they were" in told.out
    assert Witnesses.read(here / "radio.trimmed" / "witnesses.jsonl").judged == {}
    assert radio("trim", "radio", "--threshold", 1).code == 0
    told = radio(*TRIM[:-2], "--dry-run")
    assert "would be dropped for these questions: 0" not in told.out
    assert "judge: 0 calls" in told.out, "the journal has them"


def test_rules_of_ones_own_and_components(radio: Command, here: Path) -> None:
    (here / "rules.toml").write_text(
        '[[rule]]\nname = "place"\ncomponents = ["adverbial"]\nsentence = "Both name the same place."\n'
    )
    told = radio(*TRIM, "--rules", "rules.toml", "--rule", "phi1", "--rule", "place", "--mode", "components")
    assert told.code == 0, told.err
    assert "judged by offline, components, phi1+place, program " in radio("trim", "radio").out
    with Journal(here / "radio.trimmed", "replay") as journal:
        assert all("Both name the same place." in str(each["prompt"]) for each in journal.records("call"))


def test_the_help_teaches(blendfilter: Command) -> None:
    said = " ".join(blendfilter("trim", "--help").out.split())
    assert "Example: blendfilter trim indexes/wiki --questions train.jsonl --lm openai/gpt-4o-mini" in said
    assert 'then: blendfilter search indexes/wiki.trimmed "Who turned on the radio?"' in said
    for word in ("QUERY|PAIR|ALL", "--show PASSAGE", "goes on where it stopped", "The index itself stays as it is"):
        assert word in said


# --- looking into it ------------------------------------------------------------------------------------------------


def test_a_passage_is_shown_with_whoever_separated_it(trimmed: Command) -> None:
    told = trimmed("trim", "radio", "--show", "off")
    assert told.code == 0, told.err
    assert told.out.startswith("passage off: Morning in Tolm | Mary turned off the radio in the kitchen.\n")
    assert "\nfrom on: Evening in Tolm | Jack turned on the radio in the kitchen.\n  2 witnesses, the thr" in told.out
    won, lost = told.out.index("  off won for:"), told.out.index("  on won for:")
    assert f"    {question_id(WHO_OFF)} '{WHO_OFF}' (offline, word, phi1, program " in told.out[won:lost]
    assert f"    {question_id(WHO_ON)} '{WHO_ON}' (offline, word, phi1, program " in told.out[lost:]
    trimmed("trim", "radio", "--threshold", 3)
    assert "2 witnesses, below the threshold" in trimmed("trim", "radio", "--show", "off").out


def test_of_many_separations_those_below_the_threshold_are_cut_short(trimmed: Command, here: Path) -> None:
    with WitnessWriter(here / "radio.trimmed" / "witnesses.jsonl") as writer:
        by = next(iter(writer.witnesses.judged.values())).by
        others = [f"other {at}" for at in range(8)]
        for name in ["on", *others]:
            writer.verdict("Who?", name, name == "on", by)
        writer.close("Who?", ["on", *others])
    assert "and from" not in trimmed("trim", "radio", "--show", "on").out, "at threshold 1 all of them count"
    trimmed("trim", "radio", "--threshold", 2)
    told = trimmed("trim", "radio", "--show", "on").out
    assert told.count("the threshold is reached") == 1
    assert told.count("below the threshold\n") == 5
    assert "more, below the threshold (--export lists them)" in told


def test_a_passage_nobody_judged_is_named_with_the_nearest(trimmed: Command) -> None:
    told = trimmed("trim", "radio", "--show", "of")
    assert (told.code, told.out) == (2, "")
    assert "no judged question retrieved a passage 'of'. Did you mean 'off'?" in told.error


def test_a_passage_that_is_gone_from_the_index_is_shown_with_a_note(trimmed: Command, here: Path) -> None:
    with WitnessWriter(here / "radio.trimmed" / "witnesses.jsonl") as writer:  # a passage that an index once had
        by = next(iter(writer.witnesses.judged.values())).by
        writer.verdict("Who hid the radio?", "gone", False, by)
        writer.verdict("Who hid the radio?", "on", True, by)
        writer.close("Who hid the radio?", ["on", "gone"])
    told = trimmed("trim", "radio", "--show", "gone")
    assert told.code == 0, told.err
    assert told.out.startswith("passage gone (not found by the index)\nnote: the index does not find this passage any")
    assert "on won for:" in told.out
    assert trimmed("search", "radio.trimmed", "Who hid the radio?").code == 0, "a search does not mind"
    trimmed("index", "corpus.jsonl", "--out", "radio", "--overwrite", "--k1", 2)
    told = trimmed("trim", "radio", "--show", "off")
    assert (told.code, "note: radio is another index now" in told.out) == (0, True)


def test_separations_are_exported(trimmed: Command, here: Path) -> None:
    rows = [json.loads(line) for line in trimmed("trim", "radio", "--export", "-").out.splitlines()]
    assert {(row["accepted"], row["rejected"]) for row in rows} >= {("on", "off"), ("off", "on")}
    told = trimmed("trim", "radio", "--export", "out.csv")
    assert told.out == f"out.csv: {len(rows)} rows, one for each witness of each separation\n"
    assert (here / "out.csv").read_text().startswith("accepted,rejected,witnesses,")


def test_an_export_asks_before_it_replaces_a_file(trimmed: Command, here: Path) -> None:
    (here / "thesis.csv").write_text("mine")
    told = trimmed("trim", "radio", "--export", "thesis.csv")
    assert told.code == 2
    line = "blendfilter: there is a file at thesis.csv already: name another, or overwrite it (--overwrite)\n"
    assert told.err == line
    assert (here / "thesis.csv").read_text() == "mine"
    assert trimmed("trim", "radio", "--export", "thesis.csv", "--overwrite").code == 0
    assert (here / "thesis.csv").read_text().startswith("accepted,rejected,")
    alone = trimmed("trim", "radio", "--overwrite")
    assert (alone.code, "--overwrite goes with --export FILE" in alone.err) == (2, True)


# --- taking it back -------------------------------------------------------------------------------------------------


def searched(command: Command, place: str) -> list[str]:
    return [command("search", place, question, "-k", 3).out for question in (WHO_ON, WHO_OFF, AGAIN, PIER, "radio")]


@pytest.mark.parametrize(
    "undo", [["ALL"], [WHO_ON, WHO_OFF, PIER], [question_id(each) for each in (PIER, WHO_ON, WHO_OFF)]]
)
def test_after_undoing_everything_results_and_fingerprint_are_those_before(
    undo: list[str], trimmed: Command, here: Path
) -> None:
    bare, calls = searched(trimmed, "radio"), (here / "radio.trimmed" / "journal.jsonl").read_bytes()
    assert searched(trimmed, "radio.trimmed") != bare
    assert open_index("radio.trimmed").fingerprint != open_index("radio").fingerprint
    told = trimmed("trim", "radio", *(word for name in undo for word in ("--undo", name)))
    assert told.code == 0, told.err
    assert told.out.endswith(
        "left: 0 questions, 0 separations, 0 at the threshold of 1: it answers as the bare index does\n"
    )
    assert searched(trimmed, "radio.trimmed") == bare, "byte for byte"
    assert open_index("radio.trimmed").fingerprint == open_index("radio").fingerprint
    assert (here / "radio.trimmed" / "journal.jsonl").read_bytes() == calls
    again = trimmed(*TRIM)
    assert "judged 3" in again.out
    assert "judge: 0 calls" in again.out, "what was paid for is there"
    assert searched(trimmed, "radio.trimmed") != bare


def test_what_another_undo_took_along_is_no_error_and_a_wrong_name_undoes_nothing(trimmed: Command, here: Path) -> None:
    path = here / "radio.trimmed" / "witnesses.jsonl"
    before = path.read_bytes()
    told = trimmed("trim", "radio", "--undo", WHO_ON, "--undo", "off,pier")
    assert (told.code, told.out) == (2, "")
    assert path.read_bytes() == before
    told = trimmed("trim", "radio", "--undo", WHO_ON, "--undo", "off,sold", "--undo", question_id(WHO_ON))
    assert told.code == 0, told.err
    assert "undone: the separation of off and sold (0 witnesses)" in told.out
    assert "left: 2 questions, " in told.out


def test_a_pair_is_taken_back(trimmed: Command) -> None:
    assert "turned off" not in trimmed("search", "radio.trimmed", WHO_ON).out
    told = trimmed("trim", "radio", "--undo", "off,on", "--undo", "off,sold")
    assert told.out.startswith(
        "undone: the separation of off and on (2 witnesses)\n"
        "undone: the separation of off and sold (1 witness)\nleft: 3 questions, "
    )
    assert "turned off" in trimmed("search", "radio.trimmed", WHO_ON).out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Who turned the radio on in the kitchen?", "Did you mean"),
        ("on,pier", "no question separates 'on' and 'pier'."),
        ("every", "no judged question 'every'. (3 questions are judged: blendfilter trim INDEX lists them)"),
    ],
)
def test_what_is_not_there_cannot_be_taken_back(name: str, said: str, trimmed: Command, here: Path) -> None:
    before = tree(here)
    told = trimmed("trim", "radio", "--undo", name)
    assert (told.code, told.out) == (2, "")
    assert said in told.error
    assert tree(here) == before


def test_an_index_behind_an_address_is_trimmed_from_a_folder(trimmed: Command, here: Path) -> None:
    """The same verdicts as on the index itself, by another name; going on, it is named by its folder or address."""
    words = ("--questions", "questions.jsonl", "--lm", "offline", "-k", 5, "--threshold", 1)
    with served(open_index("radio")) as server:
        allowed = ("--allow-host", "127.0.0.1")
        told = trimmed("trim", server.url, *words, "--out", "far")
        assert told.code == 0, told.err
        near, far = (Witnesses.read(here / place / "witnesses.jsonl") for place in ("radio.trimmed", "far"))
        assert far.digest(1) == near.digest(1)
        assert "turned off" not in trimmed("search", "far", AGAIN, *allowed).out.partition("dropped")[0]
        assert "turned off" in trimmed("trim", "far", "--show", "off", *allowed).out
        again = trimmed("trim", "far", "--questions", "questions.jsonl", "--lm", "offline", *allowed)
        assert "judged before 3" in again.out
    told = trimmed("trim", "far", "--show", "off")
    assert told.code == 0, told.err
    assert "note: the index is not there to look its text up" in told.out
    assert trimmed("trim", "far", "--undo", "ALL").code == 0
