"""BIDER's synthesis: each step by hand, then all three over models that say what the example says.

The example: four sentences, in text order c, d (of the first passage), a, b (of the second), and the fact "Who built
the pier? Ane". With f = (1, 0, 0) the vectors make sim(a, f) = sim(b, f) = .8, sim(c, f) = .6, sim(d, f) = 0, so that
K = 3 extracts a, b, c. a joins the pool. Of b and c, b repeats a: .8 - 1 = -.2, and c brings .6 - .48 = .12. The answer
alone is (0, 1, 0): of it a, b (.6) and d (.28) are the nearest, not c (0).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import tiny_bert
from likely import Likely
from refusing import refused, world
from small_world import Command

from blendfilter import Synthesis, load, make_silver, read_silver
from blendfilter.errors import BadArgument, BadData, RunMismatch, UnknownName
from blendfilter.filters.silver import SilverFilter
from blendfilter.journal import Journal
from blendfilter.lm.scoring import EntailmentScorer, Score
from blendfilter.lm.scoring.base import CutScore, Done, TextPair, too_long
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.oracles.bider import clean, evidence_of, gain, nearest, next_nugget, opened, stop_of
from blendfilter.oracles.silver_making import Places, read_recipe
from blendfilter.oracles.silver_rows import STAGES, SilverRow
from blendfilter.records import Passage, Question
from blendfilter.retrieval.encoders import Encoded
from blendfilter.training.silver import at_stage

A, B, C, D = "Ane built the pier.", "The pier was built by Ane.", "Ane was born in Tolm.", "It rains."
ASKED, ANSWER = "Who built the pier?", "Ane"
VECTORS = {
    f"{ASKED} {ANSWER}": (1.0, 0.0, 0.0), ANSWER: (0.0, 1.0, 0.0),
    A: (0.8, 0.6, 0.0), B: (0.8, 0.6, 0.0), C: (0.6, 0.0, 0.8), D: (0.0, 0.28, 0.96),
}  # fmt: skip
PASSAGES = [Passage("p0", "Tolm", f"{C} {D}", 2.0), Passage("p1", "Pier", f"{A} {B}", 1.0)]
ROW = {
    "id": "pier", "question": ASKED, "answer": ANSWER,
    "context": [{"id": each.id, "title": each.title, "text": each.text} for each in PASSAGES],
}  # fmt: skip


class Drawn:
    """An encoder that knows the example's vectors, and keeps what it was asked."""

    identity, on_cpu = "drawn" * 4, True

    def __init__(self) -> None:
        self.queries: list[str] = []

    def encode_queries(self, queries: Sequence[str]) -> Encoded:
        self.queries += queries
        return self.encode_passages(queries)

    def encode_passages(self, passages: Sequence[str], batch_size: int = 64) -> Encoded:
        vectors = [VECTORS.get(text, (0.0, 0.0, 1.0)) for text in passages]
        return Encoded(np.array(vectors, dtype=np.float32).reshape(-1, 3), [False] * len(passages))


class Supporting:
    """An entailment model: what it says of a premise; None is too long. Keeps what it was asked, list by list."""

    name = "supporting"
    identity: Mapping[str, Any] = {"kind": "supporting"}

    def __init__(self, says: Mapping[str, float | None], cut: bool = False) -> None:
        self.says, self.cut = says, cut
        self.lists: list[list[TextPair]] = []

    async def compute(self, pairs: Sequence[TextPair], done: Done) -> None:
        self.lists.append(list(pairs))
        for at, pair in enumerate(pairs):
            sure = self.says.get(pair.prompt, 0.5)
            done(at, too_long(pair, 600, 512) if sure is None else (CutScore if self.cut else Score)(math.log(sure), 1))


def synthesis(says: Mapping[str, float | None], *, answerer: Any = None, task: str = "qa", **more: Any) -> Synthesis:
    more = {"encoder": Drawn(), "nuggets": 3} | more
    nli, scorer = EntailmentScorer(Supporting(says)), KeptScorer(answerer or Likely())
    return Synthesis(task, nli=nli, scorer=scorer, **more)


def row_of(of: Synthesis, out: Path, rows: Sequence[Mapping[str, Any]] = (ROW,), task: str = "qa") -> SilverRow:
    make_silver(load(task, [dict(row) for row in rows]), of, out)
    return next(read_silver(out))


# --- the steps, by hand -----------------------------------------------------------------------------------------------


def test_the_nearest_sentences_are_extracted_the_nearest_first() -> None:
    assert nearest([0.6, 0.0, 0.8, 0.8], 3) == (2, 3, 0)
    assert nearest([0.1, 0.2], 7) == (1, 0)
    assert nearest([], 7) == ()


def test_the_gain_is_less_the_mean_similarity_to_the_pool() -> None:
    assert gain(0.8, []) == 0.8, "nothing is subtracted while the pool is empty"
    assert gain(0.6, [0.48]) == pytest.approx(0.12)
    assert gain(0.6, [0.5, 0.1]) == pytest.approx(0.3)
    to_fact = [0.6, 0.0, 0.8, 0.8]
    between = np.eye(4)
    between[2, 3] = between[3, 2] = 1.0
    between[0, 2] = between[2, 0] = between[0, 3] = between[3, 0] = 0.48
    assert next_nugget([], [2, 3, 0], to_fact, between) == 2
    assert next_nugget([2], [3, 0], to_fact, between) == 0


@pytest.mark.parametrize(
    ("supports", "stop"),
    [
        ([0.51], "supported"),
        ([0.5], None),  # it must exceed lambda_max
        ([0.0], None),  # the gain is one between two rounds
        ([0.0, 0.0], "no gain"),
        ([0.2, 0.25, 0.255], "no gain"),
        ([0.2, 0.1], "no gain"),
        ([0.2, 0.21], None),  # just lambda_min, whatever the last digit of the difference
        ([0.3, 0.31], None),
        ([0.01], None),
        ([0.2, 0.3, 0.9], "supported"),
        ([0.45, 0.505], "supported"),  # both cases: the first is named
    ],
)
def test_refinement_ends_by_support_or_by_too_little_of_a_gain(supports: list[float], stop: str | None) -> None:
    assert stop_of(supports) == stop


def test_the_other_reading_counts_the_first_nuggets_gain_too() -> None:
    """With eta_0 = 0 a first nugget that does not entail alone ends the search."""
    assert [stop_of([support], lambda_min_from=1) for support in (0.009, 0.01)] == ["no gain", None]


@pytest.mark.parametrize(
    ("effects", "left"),
    [
        ([], ()),
        ([None], (0,)),
        ([None, -2.0], (0,)),  # equation 4 alone gives it the share 1
        ([None, -3.0, 1.0], (0, 2)),  # there the sum is -2: it would keep the harmful one and drop the other
        ([None, 0.97, 0.03], (0, 1)),  # a share of 3 %
        ([None, 0.95, 0.05], (0, 1, 2)),  # 5 % is not below 5 %
        ([None, None, 4.0, 0.0], (0, 2)),  # too long to be scored, no effect
        ([-9.0, 1.0], (0, 1)),  # the first stays, whatever it does
    ],
)
def test_cleaning_keeps_the_first_and_what_helps_by_its_share(
    effects: list[float | None], left: tuple[int, ...]
) -> None:
    assert clean(effects) == left


# --- evidence ---------------------------------------------------------------------------------------------------------


def test_evidence_is_the_supporting_facts_sentences_or_what_a_row_states() -> None:
    facts = {"supporting_facts": [["Tolm", 0], ["Pier", 1]], "context": [["Tolm", [C, f" {D}"]], ["Pier", [A, B]]]}
    assert evidence_of(load("hotpotqa", [{**ROW, **facts}])[0]) == f"{C} {B}"
    claim = {"id": 1, "claim": "Ane built it.", "label": "SUPPORTS", "evidence": [[[1, 2, "Pier", 4]]]}
    own = {"context": [{"title": "Pier", "sent_id": 4, "sentences": [A]}]}
    assert evidence_of(load("fever", [claim | own])[0]) == A
    assert evidence_of(load("fever", [claim | {"evidence_sentences": [B, B, A]}])[0]) == f"{B} {A}"
    assert evidence_of(load("fever", [claim])[0]) == evidence_of(Question("", ASKED, (ANSWER,))) == ""


@pytest.mark.parametrize("missing", [["Tolm", 9], ["Gone", 0]], ids=["sentence", "paragraph"])
def test_a_part_of_the_evidence_is_none(missing: list[Any]) -> None:
    """It would stand in for an answer that it does not give."""
    facts = {"supporting_facts": [["Tolm", 0], missing], "context": [["Tolm", [C, D]]]}
    assert evidence_of(load("hotpotqa", [{**ROW, **facts}])[0]) == ""


def test_of_fevers_sets_those_count_that_are_whole() -> None:
    """Each set decides by itself, its sentences together."""
    sets = [[[1, 2, "Pier", 0], [1, 3, "Gone", 0]], [[1, 4, "Pier", 1], [1, 5, "Tolm", 0]]]
    claim = {"id": 1, "claim": "Ane built it.", "label": "SUPPORTS", "evidence": sets}
    context = [{"title": "Pier", "sentences": [A, B]}, {"title": "Tolm", "sentences": [C]}]
    assert evidence_of(load("fever", [claim | {"context": context}])[0]) == f"{B} {C}"
    assert evidence_of(load("fever", [claim | {"context": context[:1]}])[0]) == ""


def test_evidence_stands_in_for_answers_that_say_too_little(tmp_path: Path) -> None:
    """The encoder and the entailment model read it; the answerer is asked for the answer; who has none is left out."""
    model, encoder = Likely(), Drawn()
    of = synthesis({}, task="hotpotqa", answerer=model, encoder=encoder)
    facts = {"supporting_facts": [["Pier", 0]], "context": [["Tolm", [C, D]], ["Pier", [A, B]]]}
    rows = [{**ROW, **facts}, {**ROW, "id": "none", "question": "Who?"}]
    rows += [{**ROW, **facts, "id": "part", "question": "Where?", "supporting_facts": [["Pier", 0], ["Gone", 0]]}]
    row = row_of(of, tmp_path / "out.jsonl", rows, "hotpotqa")
    assert row.stages is not None
    assert (row.stages.evidence, row.output) == (A, ANSWER)
    assert {f"{ASKED} {A}", A} <= set(encoder.queries)
    assert {pair.continuation for asked in of.nli.backend.lists[1:] for pair in asked} == {f"{ASKED} {A}"}  # type: ignore[attr-defined]
    assert {pair.continuation.strip() for pair in model.scored} == {ANSWER}
    assert len(list(read_silver(tmp_path / "out.jsonl"))) == 1
    assert read_recipe(Places.of(tmp_path / "out.jsonl"))["summary"]["left_out"] == 2
    with pytest.raises(BadArgument, match=r"bider cannot label the questions of .* annotated evidence"):
        make_silver(load("hotpotqa", [ROW]), of, tmp_path / "nothing.jsonl")


def test_a_file_is_bound_to_the_evidence_that_it_was_made_with(tmp_path: Path) -> None:
    """The claims, their passages and the fingerprint are the same; begun or finished, the file is refused."""
    claims = [{**ROW, "id": id, "answer": "SUPPORTS", "evidence_sentences": [A]} for id in ("one", "two")]
    questions, others = load("fever", claims), load("fever", [claim | {"evidence_sentences": [B]} for claim in claims])
    assert questions.fingerprint == others.fingerprint
    refusal = r"was made with other settings: data\.evidence was "

    def stop(*_: object) -> None:
        raise OSError("the plug")

    with pytest.raises(OSError, match="the plug"):
        make_silver(questions, synthesis({}, task="fever"), tmp_path / "out.jsonl", batch=1, progress=stop)
    assert (tmp_path / "out.jsonl.partial").stat().st_size
    with pytest.raises(RunMismatch, match=refusal):
        make_silver(others, synthesis({}, task="fever"), tmp_path / "out.jsonl")
    make_silver(questions, synthesis({}, task="fever"), tmp_path / "out.jsonl")
    with pytest.raises(RunMismatch, match=refusal):
        make_silver(others, synthesis({}, task="fever"), tmp_path / "out.jsonl")


# --- together ---------------------------------------------------------------------------------------------------------


def test_the_example(tmp_path: Path) -> None:
    """Support .3 of a, then .6 of a and c: supported. c does not name who built the pier, but Ane: it helps."""
    of = synthesis({A: 0.3, f"{A} {C}": 0.6})
    row = row_of(of, tmp_path / "out.jsonl")
    assert [row.candidates()[at].text for at in row.chosen] == [A, C], "in the order of selection"
    assert row.target == f"{A} {C}"
    assert [score.score for score in row.sentences] == pytest.approx([0.6, 0.0, 0.8, 0.8])
    assert row.stages is not None
    assert (row.stages.extracted, row.stages.refined, row.stages.by_target) == ((2, 3, 0), (2, 0), (2, 3, 1))
    assert (row.stages.support, row.stages.stop) == ((0.3, 0.6), "supported")
    assert row.stages.effects == (None, 3.0)
    assert [each.line for each in row.excerpts()] == [f"Pier | {A}", f"Tolm | {C}"]
    assert [each.line for each in row.excerpts("extracted")] == [f"Pier | {A} {B}", f"Tolm | {C}"]


def test_what_harms_the_answerer_goes(tmp_path: Path) -> None:
    class Harmed(Likely):
        async def compute(self, pairs: Sequence[TextPair], done: Done) -> None:
            for at, pair in enumerate(pairs):
                done(at, Score(-9.0 if C in pair.prompt else -1.0, 1))

    row = row_of(synthesis({A: 0.3, f"{A} {C}": 0.6}, answerer=Harmed()), tmp_path / "out.jsonl")
    assert row.stages is not None
    assert (row.stages.refined, row.stages.effects, row.chosen, row.target) == ((2, 0), (None, -8.0), (2,), A)


@pytest.mark.parametrize(
    ("says", "stop", "refined"),
    [
        ({A: 0.3, f"{A} {C}": 0.305}, "no gain", (2, 0)),  # the nugget that brought too little stays
        ({A: 0.2, f"{A} {C}": 0.3, f"{A} {C} {B}": 0.4}, "all taken", (2, 0, 3)),
        ({A: None}, "fact too long", (2,)),
    ],
)
def test_why_refinement_ended_is_kept(
    says: dict[str, float | None], stop: str, refined: tuple[int, ...], tmp_path: Path
) -> None:
    row = row_of(synthesis(says), tmp_path / "out.jsonl")
    assert row.stages is not None
    assert (row.stages.stop, row.stages.refined) == (stop, refined)


def test_a_batch_refines_together_and_a_question_without_passages_has_an_empty_context(tmp_path: Path) -> None:
    of = synthesis({A: 0.3, f"{A} {C}": 0.6})
    rows = [ROW, {**ROW, "id": "bare", "question": "Who?", "context": []}, {**ROW, "id": "again"}]
    make_silver(load("qa", rows), of, tmp_path / "out.jsonl")
    first, bare, again = read_silver(tmp_path / "out.jsonl")
    assert bare.stages is not None
    assert (bare.stages.stop, bare.target, bare.excerpts()) == ("no nuggets", "", [])
    assert first.chosen == again.chosen
    assert [len(asked) for asked in of.nli.backend.lists] == [1, 1, 1], "what is asked twice is asked once"  # type: ignore[attr-defined]


def test_an_empty_answer_that_is_allowed_has_empty_stages(tmp_path: Path) -> None:
    """So that every row of the file has stages: a filter takes any of them, and each question's end is counted."""
    rows, out = [ROW, {**ROW, "id": "bad", "question": "Which pier?", "answer": "the"}], tmp_path / "out.jsonl"
    questions, of = load("qa", rows), synthesis({A: 0.3, f"{A} {C}": 0.6})
    found = make_silver(questions, of, out, allow_empty_answers=True).synthesis
    assert found is not None
    assert found.stops == {"supported": 1, "no answer": 1}
    for stage in STAGES:
        kept = SilverFilter(out, stage=stage)(question="Which pier?", passages=questions[1].context).kept
        assert kept == []
        assert [at_stage(row, stage).target == "" for row in read_silver(out)] == [False, True]


def test_the_summary_has_every_steps_figures(tmp_path: Path) -> None:
    """FULL has 15 words but for articles, a and c have 8; one of them is matched by the answer's one word."""
    of = synthesis({A: 0.3, f"{A} {C}": 0.6})
    from blendfilter.lm.tokenisers import tokeniser

    found = make_silver(load("qa", [ROW]), of, tmp_path / "out.jsonl", tokeniser=tokeniser("words")).synthesis
    assert found is not None
    full, refined, cleaned = (found.stages[name] for name in ("full", "refined", "cleaned"))
    assert (full.nuggets, found.stages["extracted"].nuggets, refined.nuggets, cleaned.nuggets) == (4, 3, 2, 2)
    assert (full.holds, cleaned.holds) == (1.0, 1.0)
    assert (full.words, cleaned.words) == (pytest.approx(1 / 15), pytest.approx(1 / 8))
    assert cleaned.words_per_token > full.words_per_token
    assert (found.stops, found.support, found.cut, found.unscored) == ({"supported": 1}, 0.6, 0, 0)
    recipe = json.loads((tmp_path / "out.recipe.json").read_text())
    assert recipe["summary"]["synthesis"]["stops"] == {"supported": 1}
    assert recipe["settings"]["oracle"]["measure"] == "bider"


def test_resumed_it_leaves_the_same_bytes_and_other_thresholds_are_refused(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "id": "b", "question": "Who built it?"}, {**ROW, "id": "c", "question": "Which Ane?"}]
    questions, says = load("qa", rows), {A: 0.3, f"{A} {C}": 0.6}
    make_silver(questions, synthesis(says), tmp_path / "whole.jsonl")
    with Journal(tmp_path / "journal") as journal:
        fault = OSError("the plug")
        stopped = synthesis(says, answerer=Likely(fault, after=4))
        for each in stopped.scorers:
            each.journal = journal
        with pytest.raises(OSError, match="the plug"):
            make_silver(questions, stopped, tmp_path / "out.jsonl", batch=1)
        assert (tmp_path / "out.jsonl.partial").stat().st_size
        again = synthesis(says)
        for each in again.scorers:
            each.journal = journal
        make_silver(questions, again, tmp_path / "out.jsonl", batch=2)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    with pytest.raises(RunMismatch, match=r"oracle\.lambda_max was 0\.5, now 0\.9"):
        make_silver(questions, synthesis(says, lambda_max=0.9), tmp_path / "out.jsonl")
    with pytest.raises(RunMismatch, match=r"oracle\.lambda_min_from was 2, now 1"):
        make_silver(questions, synthesis(says, lambda_min_from=1), tmp_path / "out.jsonl")


def test_silver_as_a_filter_keeps_the_order_of_selection_and_any_stage(tmp_path: Path) -> None:
    row_of(synthesis({A: 0.3, f"{A} {C}": 0.6}), tmp_path / "out.jsonl")

    def kept(**more: Any) -> list[str]:
        select = SilverFilter(tmp_path / "out.jsonl", **more)
        given = load("qa", [ROW])[0].context
        return [each.line for each in select(question=ASKED, passages=given).kept]

    assert kept() == kept(stage="cleaned") == [f"Pier | {A}", f"Tolm | {C}"]
    assert kept(stage="extracted") == [f"Pier | {A} {B}", f"Tolm | {C}"]
    assert (
        SilverFilter(tmp_path / "out.jsonl").arguments()
        != SilverFilter(tmp_path / "out.jsonl", stage="extracted").arguments()
    )
    with pytest.raises(UnknownName, match="no stage 'extract'"):
        kept(stage="extract")
    from blendfilter import Oracle

    make_silver(load("qa", [ROW]), Oracle("strinc", task="qa"), tmp_path / "strinc.jsonl")
    with pytest.raises(BadArgument, match="has no stages: the measure bider makes such files"):
        SilverFilter(tmp_path / "strinc.jsonl", stage="refined")


def test_e5_has_its_prefixes_and_others_have_their_own() -> None:
    import shutil

    pytest.importorskip("sentence_transformers", reason="needs the extra [dense]")
    own = tiny_bert()
    named = own.with_name("e5-base-v2")
    if not named.exists():
        shutil.copytree(own, named)
    e5, plain = opened(named), opened(own)
    assert (e5.reading.query_prefix, e5.reading.passage_prefix) == ("query: ", "passage: ")
    assert (plain.reading.query_prefix, plain.reading.passage_prefix) == ("", "")
    assert opened(named, "", "").reading.query_prefix == ""
    assert {e5.reading.similarity, plain.reading.similarity} == {"cosine"}


def test_bad_arguments_are_one_line() -> None:
    for more, said in (
        ({"nuggets": 0}, "nuggets is 0"),
        ({"lambda_max": 1.5}, "lambda_max is a probability or a share, from 0 to 1: got 1.5"),
        ({"lambda_min_from": 3}, r"2 \(the gain between two rounds\) or 1 .*, got 3"),
        ({"task": "hotpoqa"}, "Did you mean 'hotpotqa'"),
    ):
        with pytest.raises((BadArgument, UnknownName), match=said):
            synthesis({}, **more)  # type: ignore[arg-type]
    with pytest.raises(BadData, match="'pier' has no golden answers"):
        synthesis({}).check([Question("pier", ASKED)])


# --- the command ------------------------------------------------------------------------------------------------------

COMMAND = ("silver", "qa", "--data", "questions.jsonl", "--corpus", "corpus.jsonl", "--out", "out.jsonl", "--measure")


def test_the_command_shows_every_step(blendfilter: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra [dense]")
    here = world(tmp_path, monkeypatch)

    def scorer(model: str, name: str = "", **given: Any) -> KeptScorer:
        return EntailmentScorer(Supporting({})) if model == "nli" else KeptScorer(Likely())

    monkeypatch.setattr("blendfilter.lm.scoring.scorer", scorer)
    outcome = blendfilter(*COMMAND, "bider", "--encoder", tiny_bert(), "--nli", "n", "--lm", "m", "--nuggets", "2")
    assert outcome.code == 0, outcome.err
    for name in ("FULL", "1 extracted", "2 refined", "3 cleaned", "by the answer alone"):
        assert name in outcome.out
    assert "refinement of 3 questions ended: " in outcome.out
    assert outcome.out.endswith("silver: out.jsonl, chosen by bider\n")
    rows = list(read_silver(here / "out.jsonl"))
    assert all(row.stages is not None and len(row.stages.extracted) == 2 for row in rows)
    with Journal(here / "out.journal", "replay") as journal:
        stages = {record["stage"] for record in journal.records("score")}
    assert {"support", "cxmi"} <= stages


def test_what_is_missing_or_needless_is_one_line(
    blendfilter: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp", reason="needs the extra [local]")
    here = world(tmp_path, monkeypatch)
    for words, said in (
        (("bider",), "bider asks a model how likely it finds the answer: name it (--lm"),
        (
            ("bider", "--lm", "local"),
            "bider asks three models: name --encoder (an encoder, such as intfloat/e5-base-v2)",
        ),
        (("bider", "--lm", "local", "--encoder", "e"), "name --nli (an entailment model, such as google/t5_xxl"),
        (("bider", "--lm", "local", "--encoder", "e", "--nli", "nowhere"), "no model 'nowhere'"),
        (("bider", "--lm", "local", "--threshold", "0.1"), "--threshold is for strinc and lexical and cxmi"),
        (("bider", "--num-sentences", "2"), "--num-sentences is for strinc"),
        (("strinc", "--nli", "n"), "--nli is for bider: take that, or leave it out"),
        (("bidr",), "no measure 'bidr'. Did you mean 'bider'?"),
    ):
        refused(blendfilter(*COMMAND, *words), said)
    assert not (here / "out.jsonl").exists()
