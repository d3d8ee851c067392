"""Entailment: probabilities by hand, kept scores, premises that are cut, and models that are refused."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Sequence
from functools import cache
from math import exp, log
from pathlib import Path

import pytest
from checkpoints import classifier, tiny_bert, tiny_cross_encoder
from scoring_models import BOS, EOS, PAD, t5, tokenizer

from blendfilter.errors import BadArgument, BadData, MissingFile, ModelError, ReplayMiss
from blendfilter.journal import Journal
from blendfilter.lm.scoring import EntailmentScorer, KeptScorer, scorer
from blendfilter.lm.scoring.base import TextPair
from blendfilter.lm.scoring.entailment import PairClassifier

pytest.importorskip("transformers", reason="needs the extra [scoring]")
NLI = ("contradiction", "ENTAILMENT", "neutral")
MILL = "The mill burned down in 1871."
PAIRS = [("The pier burned in 1871.", "The pier burned."), ("The mill is old.", "The mill is in the harbour town.")]


def one(folder: Path, outputs: Sequence[float], labels: Sequence[str]) -> float:
    """What a model with these outputs for any pair gives."""
    return scorer("nli", classifier(folder, outputs, labels)).entailment(PAIRS[:1])[0]


@pytest.mark.parametrize(
    ("outputs", "labels", "probability"),
    [
        ([0.0, 3.0, 0.0], NLI, 0.9094),  # e^3 / (e^3 + 2)
        ([3.0, 0.0, 0.0], NLI, 0.0453),  # 1 / (e^3 + 2)
        ([0.0, 1.0], ["entailment", "not_entailment"], 0.2689),  # 1 / (1 + e)
        ([0.0, 1.0], ["REFUTES", "SUPPORTS"], 0.7311),
    ],
)
def test_the_label_for_entailment_counts_however_it_is_spelled(
    outputs: list[float], labels: Sequence[str], probability: float, tmp_path: Path
) -> None:
    assert one(tmp_path / "model", outputs, labels) == pytest.approx(probability, abs=1e-4)


def test_it_is_a_scorer_whose_scores_are_logarithms() -> None:
    nli = scorer("nli", labelled())
    assert isinstance(nli, EntailmentScorer)
    assert isinstance(nli, KeptScorer)
    assert [round(score.logprob, 6) for score in nli.score(PAIRS)] == [round(log(p), 6) for p in nli.entailment(PAIRS)]


def test_a_pair_has_the_same_probability_to_the_last_digit_whatever_stands_beside_it() -> None:
    nli = scorer("nli", labelled())
    turned = [pair[::-1] for pair in PAIRS]
    together = nli.entailment([*PAIRS, *turned])
    assert [scorer("nli", labelled()).entailment([pair])[0] for pair in (*PAIRS, *turned)] == together
    assert len(set(together)) == 4, "premise and hypothesis are not exchanged"


def test_a_premise_that_is_too_long_loses_its_end_and_that_is_said_once(tmp_path: Path) -> None:
    long = ("The river is in the town. " * 200, "The town is on a hill.")
    journal = Journal(tmp_path)
    nli = scorer("nli", labelled(), journal=journal)
    with pytest.warns(UserWarning, match="1 of 2 premises are longer than .* reads: their ends were cut off"):
        first = nli.entailment([PAIRS[0], long])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert nli.entailment([(long[0] + "It rains.", long[1])]) == first[1:], "the hypothesis was read, that end not"
    assert [score.cut for score in nli.score([PAIRS[0], long])] == [False, True]
    assert [score.cut for score in scorer("nli", labelled(), journal=journal).score([long])] == [True], "from the file"
    with pytest.raises(ModelError, match=r"has 1,\d\d\d tokens with its continuation .* more than .* context of 512"):
        nli.entailment([long[::-1]])


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_names_of_control_tokens_in_a_text_are_text(kind: str) -> None:
    """`read` are the ids that the model itself is given; a pair has 3 marks of BERT's and 4 of RoBERTa's."""
    mark, marks = {"bert": ("[SEP]", 3), "roberta": ("</s>", 4)}[kind]
    model = PairClassifier(labelled() if kind == "bert" else roberta())
    own = model._loaded[1].convert_tokens_to_ids(mark)
    for pair in ((f"the mill {mark} is old", "it is old"), ("the mill is old", f"it {mark} is old")):
        read = _given(model, [pair])
        assert read.count(own) == marks - 1, "the first mark begins the pair"
        assert model.lengths(TextPair(*pair))[0] == len(read)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_hypothesis_of_any_length_is_read_whole_or_refused_in_one_line(kind: str) -> None:
    """It is read where its marks and one token of the premise fit beside it."""
    model, marks = (labelled(), 3) if kind == "bert" else (roberta(), 4)
    backend = scorer("nli", model).backend
    classifier_ = backend.model  # type: ignore[attr-defined]
    classifier_.__dict__["_limit"] = 32
    for tokens in range(32 - marks - 3, 34):
        pair = TextPair("the pier is old", " ".join("a" * tokens))
        own = classifier_._loaded[1](pair.continuation, add_special_tokens=False)["input_ids"]
        assert len(own) == tokens
        ((_, found),) = backend.results([pair])  # type: ignore[attr-defined]
        if tokens + marks < 32:
            assert found.cut
            assert _given(classifier_, [pair])[-1 - tokens : -1] == own
        else:
            assert re.search(r"more than the model's context of 32: shorten it", str(found))
    ((_, whole),) = backend.results([TextPair("", " ".join("a" * (32 - marks)))])  # type: ignore[attr-defined]
    assert not whole.cut


def test_probabilities_are_kept_and_known_by_the_weights(tmp_path: Path) -> None:
    moved = Path(shutil.copytree(labelled(), tmp_path / "moved"))
    with Journal(tmp_path / "journal") as journal:
        made = scorer("nli", labelled(), journal=journal).entailment(PAIRS)
        asked = scorer("nli", moved, journal=journal)
        asked.backend.compute = None  # type: ignore[method-assign,assignment]
        assert asked.entailment(PAIRS) == made
        record = next(journal.records("score"))
    assert (record["prompt"], record["continuation"], record["scorer"]["kind"]) == (*PAIRS[0], "entailment")
    replay = scorer("nli", moved, journal=tmp_path / "journal", mode="replay")
    assert replay.entailment(PAIRS) == made
    with pytest.raises(ReplayMiss):
        replay.entailment([("The king was born.", "The king was born.")])


def test_what_names_no_entailment_is_refused_in_one_line(tmp_path: Path) -> None:
    unnamed = classifier(tmp_path / "unnamed", [0.0, 1.0], ["LABEL_0", "LABEL_1"])
    single = classifier(tmp_path / "single", [0.0], ["entailment"])
    headless = Path(shutil.copytree(labelled(), tmp_path / "headless"))
    for weights in headless.glob("*.safetensors"):
        shutil.copy(next(tiny_bert().glob("*.safetensors")), weights)
    broken = Path(shutil.copytree(labelled(), tmp_path / "broken"))
    (broken / "config.json").write_text("{")
    for name, said in (
        (
            unnamed,
            r"of its labels \(LABEL_0, LABEL_1\) not just one names entailment; name one .* or write .* id2label",
        ),
        (single, r"of its labels \(entailment\)"),
        (tiny_bert(), "is no entailment model but a BertModel: name one"),
        (headless, "or not whole: .* of its weights are missing"),
        (broken, "cannot be read"),
    ):
        with pytest.raises(BadData, match=said) as raised:
            scorer("nli", name).entailment(PAIRS)
        assert "\n" not in str(raised.value)
    with pytest.raises(MissingFile, match="no model 'nowhere'"):
        scorer("nli", "nowhere")
    with pytest.raises(BadArgument, match="name the entailment model, such as"):
        scorer("nli")
    with pytest.raises(BadArgument, match=r"a second name is for entailment: scorer\('nli', 'local'\)"):
        scorer("local", "local")  # type: ignore[call-overload]
    with pytest.raises(BadArgument, match="an entailment model has no setting 'bos'"):
        scorer("nli", labelled(), bos=True)  # type: ignore[call-overload]


def test_settings_stand_behind_a_name_and_a_wrong_device_is_one_line() -> None:
    pair = [("The mill burned down.", "A fire.")]
    plain, half = scorer("nli", labelled()), scorer("nli", f"hf/{labelled()}?dtype=bfloat16&device=cpu")
    assert half.backend.identity == {**plain.backend.identity, "dtype": "bfloat16"}
    assert half.entailment(pair) == pytest.approx(plain.entailment(pair), abs=0.02)
    for device in ("gpu", "cuda:99"):
        with pytest.raises(BadArgument, match=f"no device '{device}'"):
            scorer("nli", labelled(), device=device).entailment(pair)


def test_an_encoder_decoder_that_writes_1_or_0_gives_the_probability_of_1() -> None:
    nli = scorer("nli", verdicts())
    same, other = nli.entailment([("a king", "a king"), ("a king", "the coast")])
    assert same > 0.5 > other
    (plain,) = scorer(verdicts()).score([("premise: a king hypothesis: the coast", "1")])
    assert exp(plain.logprob) == pytest.approx(other)


def test_an_encoder_decoder_that_writes_other_things_is_refused() -> None:
    with pytest.raises(BadData, match=r"is no entailment model: after 'premise: .* it writes neither 1 nor 0"):
        scorer("nli", t5()).entailment(PAIRS)


@cache
def labelled() -> Path:
    """A random classifier with the usual three labels."""
    folder = Path(shutil.copytree(tiny_cross_encoder(outputs=3), tiny_cross_encoder().with_name("labelled")))
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": dict(enumerate(NLI)), "label2id": {label: at for at, label in enumerate(NLI)}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@cache
def roberta() -> Path:
    """A random RoBERTa with the usual three labels; `<s> premise </s></s> hypothesis </s>` is how it reads a pair."""
    from tokenizers.processors import RobertaProcessing
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForSequenceClassification

    folder = t5().with_name("roberta")
    words = tokenizer()
    words.post_processor = RobertaProcessing(("</s>", EOS), ("<s>", BOS))
    marks = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "sep_token": "</s>", "cls_token": "<s>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **marks).save_pretrained(folder)
    config = RobertaConfig(
        vocab_size=words.get_vocab_size(), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=128, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD,
        id2label=dict(enumerate(NLI)), label2id={label: at for at, label in enumerate(NLI)},
    )  # fmt: skip
    RobertaForSequenceClassification(config).save_pretrained(folder)
    return folder


def _given(model: PairClassifier, pairs: Sequence[tuple[str, str]]) -> list[int]:
    """The ids that the model itself was given for the last of `pairs`."""
    given: list[list[int]] = []
    hook = model._loaded[0].register_forward_pre_hook(
        lambda _, args, inputs: given.append(inputs["input_ids"][0].tolist()), with_kwargs=True
    )
    try:
        list(model.outputs(pairs))
    finally:
        hook.remove()
    return given[-1]


@cache
def verdicts() -> Path:
    """The tiny T5, taught to write 1 after two pairs and 0 after another."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    folder = Path(shutil.copytree(t5(), t5().with_name("verdicts")))
    words = tokenizer(ends=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        for premise, hypothesis, verdict in (("a king", "a king", 1), ("a king", "the coast", 0), (MILL, MILL, 1)):
            optimiser.zero_grad()
            texts = f"premise: {premise} hypothesis: {hypothesis}", str(verdict)
            read, right = (words.encode(text).ids for text in texts)
            model(input_ids=torch.tensor([read]), labels=torch.tensor([right])).loss.backward()
            optimiser.step()
    model.save_pretrained(folder)
    return folder
