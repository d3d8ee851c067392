"""Models that say whether two questions ask the same: their decisions, which are refused, how an overlay keeps one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from checkpoints import classifier, tiny_bert, tiny_cross_encoder
from judged import RADIO, WHO_OFF, WHO_ON, village

from blendfilter import open_index
from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.retrieval.bm25 import BM25
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.gathering import plan_questions
from blendfilter.trimming.guard import PairModel, Rules, guard_of
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.similar import ByWords
from blendfilter.trimming.witnesses import Witnesses

pytest.importorskip("sentence_transformers", reason="needs the extra [dense]")
NLI = ("contradiction", "ENTAILMENT", "neutral")
PIER, MILL = "who built the pier?", "who built the mill?"


def pair_model(folder: Path, outputs: Sequence[float], labels: Sequence[str] = ("LABEL_0",)) -> str:
    """The name of a classifier that gives every pair these outputs."""
    return str(classifier(folder, outputs, labels))


@pytest.mark.parametrize(
    ("outputs", "labels", "sure"),
    [
        ([2.0], ["LABEL_0"], 0.8808),
        ([-2.0], ["LABEL_0"], 0.1192),
        ([0.0, 3.0, 0.0], NLI, 0.9094),
        ([3.0, 0.0, 0.0], NLI, 0.0453),
        ([0.0, 1.0], ["not_duplicate", "duplicate"], 0.7311),
    ],
)
def test_one_output_is_a_score_and_of_labels_the_one_for_the_same_counts(
    outputs: list[float], labels: list[str], sure: float, tmp_path: Path
) -> None:
    model = PairModel(pair_model(tmp_path / "model", outputs, labels))
    assert model.same([(PIER, MILL)]) == [pytest.approx(sure, abs=1e-4)]
    why = "" if sure > 0.5 else f"the model is {sure:.2f} sure that they ask the same, 0.5 are needed"
    assert model.apart(PIER, [MILL]) == [why]
    assert PairModel(str(tmp_path / "model"), threshold=0.95).apart(PIER, [MILL]) != [""]


def test_the_rules_go_first_and_the_same_question_needs_no_model(tmp_path: Path) -> None:
    yes, no = (PairModel(pair_model(tmp_path / name, [out])) for name, out in (("yes", 9.0), ("no", -9.0)))
    assert yes.apart(WHO_ON, [WHO_OFF, PIER]) == [Rules().apart(WHO_ON, [WHO_OFF])[0], ""]
    assert no.apart(PIER, [f"Please tell me, {PIER}", MILL])[0] == ""
    assert no.apart(PIER, []) == []


def test_a_pair_decides_alone_whichever_comes_first_and_from_any_thread() -> None:
    model, again = (PairModel(str(tiny_cross_encoder())) for _ in range(2))
    pairs = [
        (f"who built the {thing}?", f"who sold the old {thing}, and why?") for thing in ("pier", "river town", "mill")
    ]
    together = model.same(pairs)
    assert [again.same([(b, a)])[0] for a, b in pairs] == together
    assert len(set(together)) == 3
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(PairModel(str(tiny_cross_encoder())).same, [pairs] * 16)) == [together] * 16


def test_what_is_no_model_of_pairs_is_refused_in_one_line(tmp_path: Path) -> None:
    reranker = Path(pair_model(tmp_path / "reranker", [1.0]))
    config = json.loads((reranker / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (reranker / "config.json").write_text(json.dumps(config))
    unnamed = pair_model(tmp_path / "unnamed", [0.0, 1.0], ["LABEL_0", "LABEL_1"])
    headless = Path(pair_model(tmp_path / "headless", [1.0]))
    for weights in headless.glob("*.safetensors"):
        shutil.copy(next(tiny_bert().glob("*.safetensors")), weights)
    for name, error in (
        (str(tiny_bert()), "but a BertModel"),
        (str(reranker), "but a reranker, whose scores have no bounds"),
        (unnamed, r"of its labels \(LABEL_0, LABEL_1\) not just one is for it"),
        (str(headless), "or not whole: .* of its weights are missing"),
    ):
        with pytest.raises(BadData, match=error) as raised:
            PairModel(name).check()
        assert "\n" not in str(raised.value)
    with pytest.raises(MissingFile, match="the model 'nowhere' of pairs of questions cannot be opened"):
        PairModel("nowhere")
    with pytest.raises(BadArgument, match="threshold lies between 0 and 1"):
        PairModel(str(tiny_cross_encoder()), threshold=1)


def test_a_model_is_known_by_its_files_and_not_by_its_place(tmp_path: Path) -> None:
    first = PairModel(pair_model(tmp_path / "a", [1.0]))
    assert PairModel(str(shutil.copytree(tmp_path / "a", tmp_path / "b"))).identity == first.identity
    assert PairModel(pair_model(tmp_path / "c", [1.5])).identity != first.identity
    same = guard_of(True, first.name, first.files)
    assert isinstance(same, PairModel)
    assert same.identity == first.identity
    assert guard_of(False, first.name, "") is None
    with pytest.raises(BadData, match="is not the one that this overlay was made with"):
        guard_of(True, str(tmp_path / "c"), first.files)


def test_questions_that_the_model_keeps_apart_share_no_verdicts(tmp_path: Path) -> None:
    yes, no = (PairModel(pair_model(tmp_path / name, [out])) for name, out in (("yes", 9.0), ("no", -9.0)))
    questions = ["who built the old pier of orm?", "who built the old mill of orm?"]
    for guard, kind in ((True, "reuse"), (yes, "reuse"), (no, "judge")):
        assert [each.kind for each in plan_questions(questions, {}, ByWords(), 0.5, guard=guard)] == ["judge", kind]


def test_an_overlay_keeps_its_model_by_content_and_says_where_it_is_gone(tmp_path: Path) -> None:
    model = Path(pair_model(tmp_path / "model", [-9.0]))
    BM25.build(RADIO, tmp_path / "village")
    bare = open_index(tmp_path / "village")
    folder = TrimFolder.create(bare, threshold=1, similar=str(model))
    assert TrimFolder.read(folder.place).similar == str(model.resolve())
    plain = TrimFolder.create(bare, tmp_path / "plain", threshold=1)
    assert plain.similar == plain.set(similar="rules").similar == ""
    trimmed = open_index(folder.place)
    assert isinstance(trimmed, Trimmed)
    assert trimmed.info()["settings"]["similar"] == str(model.resolve())
    shutil.move(model, tmp_path / "away")
    with pytest.warns(UserWarning, match=r"nothing is trimmed.*model.*cannot be opened"):
        assert open_index(folder.place).fingerprint == bare.fingerprint
    pair_model(model, [9.0])
    with pytest.warns(UserWarning, match=r"nothing is trimmed.*is not the one that this overlay was made with"):
        assert open_index(folder.place).fingerprint == bare.fingerprint


def test_the_model_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    from blendfilter.trimming.witnesses import NO_JUDGE, WitnessWriter

    index = village()
    with WitnessWriter(tmp_path / "witnesses.jsonl") as writer:
        writer.judge(WHO_ON, {"on": True, "off": False}, NO_JUDGE)
    witnesses = Witnesses.read(tmp_path / "witnesses.jsonl")
    models = [pair_model(tmp_path / name, [out]) for name, out in (("yes", 9.0), ("no", -9.0))]
    guards = [True, False, *map(PairModel, models)]
    overlays = [Trimmed(index, witnesses, threshold=1, min_similarity=0.5, guard=guard) for guard in guards]
    assert len({overlay.fingerprint for overlay in overlays}) == 4
    assert overlays[2].fingerprint == Trimmed(
        index, witnesses, threshold=1, min_similarity=0.5, guard=PairModel(models[0])
    ).fingerprint  # fmt: skip
    assert [len(overlay.explain(f"{WHO_ON} at home", 3).dropped) for overlay in overlays[2:]] == [1, 0]
