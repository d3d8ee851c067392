"""Filters and the settings of single methods on the command line: what they change, and what is refused in one line."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from checkpoints import minilm_package, tiny_bert, tiny_cross_encoder
from small_world import Command, Outcome, small_eval, stable

from blendfilter.cli.options import HowToAnswer, K, WhichJudge, WhichModel, spread
from blendfilter.filters.extractive import SCORERS
from blendfilter.filters.registry import FILTERS
from blendfilter.modules.methods import METHODS

QUESTION = "King Corvin had a lighthouse built on a lonely rock. In which town was its designer born?"
SAMPLE = ("--lm", "offline", "--corpus", "sample")


def kept(told: Outcome) -> list[str]:
    return [line for line in told.out.splitlines() if line.startswith("     + ")]


@pytest.mark.parametrize("command", ["ask", "eval"])
def test_the_help_names_every_method_filter_and_scorer(blendfilter: Command, command: str) -> None:
    said = " ".join(blendfilter(command, "--help").out.split())
    for option, names in {"--method": METHODS, "--filter": FILTERS, "--filter-by": SCORERS}.items():
        (text,) = re.findall(rf" {option} <str> (.*?) --", said)
        assert [name for name in names if not re.search(rf"(?<![\w-]){name}(?![\w-])", text)] == []


def test_sentences_are_shown_in_the_trace(blendfilter: Command) -> None:
    told = blendfilter(
        "ask", QUESTION, *SAMPLE, "--method", "cot-retrieval", "--filter", "sentence", "--filter-n", 2, "--show-trace"
    )
    assert (told.code, told.err) == (0, "")
    pieces = [line for line in told.out.splitlines() if line.startswith("         kept: ")]
    assert len(pieces) == 2
    assert 1 <= len(kept(told)) <= 2
    lines = told.out.splitlines()
    assert all(lines[lines.index(each) - 1].startswith(("     + ", "         kept: ")) for each in pieces)


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        (("--method", "direct-retrieval", "--filter", "knowledge"), 4),
        (("--method", "cot-retrieval", "--filter", "one-call"), 3),
        (("--method", "iter-retgen", "--filter", "full", "--iterations", 3), 4),
        (("--filter-union",), 7),
        (("--filter", "one-call", "--filter-union"), 5),
        (("--filter", "full"), 4),
        (("--method", "direct-retrieval", "--filter", "cdit"), 6),
        (("--method", "cot-retrieval", "-k", 3, "--filter", "cdit-components", "--rule", "phi2"), 5),
        (("--method", "self-consistency", "--samples", 3), 4),
        (("--method", "ralm"), 1),
        (("--method", "ralm", "-k", 3, "--filter", "cdit", "--rewrite"), 4),
    ],
)
def test_calls(blendfilter: Command, options: tuple[object, ...], calls: int) -> None:
    told = blendfilter("ask", QUESTION, *SAMPLE, "--show-trace", *options)
    assert (told.code, told.err) == (0, "")
    assert re.match(rf"calls +{calls}\b", told.out.splitlines()[-1])


@pytest.mark.parametrize("options", [("--method", "react"), ("--method", "self-ask")])
def test_hops_are_counted(blendfilter: Command, options: tuple[str, ...]) -> None:
    told = blendfilter("ask", QUESTION, *SAMPLE, "--show-trace", *options, "--hops", 1)
    assert told.code == 0
    assert len(re.findall(r"^     \+ ", told.out, re.MULTILINE)) <= 5
    more = blendfilter("ask", QUESTION, *SAMPLE, "--show-trace", *options, "--hops", 4)
    assert len(kept(more)) > len(kept(told))


@pytest.mark.parametrize("by", ["embedding", "cross-encoder"])
def test_a_real_model_scores(blendfilter: Command, by: str) -> None:
    """Nothing but the answer is printed, on either channel, while it loads and works."""
    model = minilm_package() if by == "embedding" else tiny_cross_encoder()
    words = ("--method", "direct-retrieval", "--filter", "passage", "--filter-by", by, "--filter-model", model)
    told = blendfilter("ask", QUESTION, *SAMPLE, *words)
    assert (told.code, told.err) == (0, "")
    assert len(told.out.splitlines()) == 1


def test_a_filter_of_ones_own(blendfilter: Command, here: Path) -> None:
    (here / "own_filter_of_the_shell.py").write_text(
        "import dspy\nfrom blendfilter import Filter\nclass Last(Filter):\n"
        "    def __init__(self, n=1):\n        super().__init__()\n        self.n = n\n"
        "    async def aforward(self, question, passages):\n        return dspy.Prediction(kept=passages[-self.n:])\n"
    )
    words = ("--method", "direct-retrieval", "--filter", "own_filter_of_the_shell:Last", "--filter-n", 2)
    told = blendfilter("ask", QUESTION, *SAMPLE, "--show-trace", *words)
    assert told.code == 0
    assert [line[5] for line in told.out.splitlines() if re.match(r"     [+-] ", line)] == ["-", "-", "-", "+", "+"]


def test_a_method_of_ones_own_takes_a_filter_if_it_says_so(blendfilter: Command, here: Path) -> None:
    (here / "own_method_of_the_shell.py").write_text(
        "import dspy, blendfilter as bf\nclass Taking(bf.Direct):\n"
        "    def __init__(self, index, *, filter):\n        super().__init__(index, filter=filter)\n"
        "class Plain(bf.Direct):\n    def __init__(self, index):\n        super().__init__(index)\n"
    )
    words = ("--filter", "passage", "--show-trace", "--method")
    told = blendfilter("ask", QUESTION, *SAMPLE, *words, "own_method_of_the_shell:Taking")
    assert len(kept(told)) == 1
    told = blendfilter("ask", QUESTION, *SAMPLE, *words, "own_method_of_the_shell:Plain")
    assert told.code == 2
    assert "own_method_of_the_shell:Plain takes no argument 'filter'" in told.error


OWN_METHODS = """
import dspy, blendfilter as bf
class Mine(dspy.Module):
    def __init__(self, index):
        super().__init__()
        self.index, self.ask = index, dspy.Predict("question -> answer")
    async def aforward(self, question):
        await self.ask.acall(question=question)
        said = await self.ask.acall(question=question + "?")
        return dict(answer=said.answer, knowledge=self.index(question, k=2))
class Fitted(Mine):
    def __init__(self, index, k):
        super().__init__(index)
"""


def test_a_method_of_ones_own_in_the_trace(blendfilter: Command, here: Path) -> None:
    """What it knew and how often it asked; that a number of passages goes nowhere is said."""
    (here / "own_traced.py").write_text(OWN_METHODS)
    told = blendfilter("ask", QUESTION, *SAMPLE, "--show-trace", "--method", "own_traced:Mine", "-k", 3)
    assert told.code == 0
    assert told.notices == ["blendfilter: own_traced:Mine takes no argument 'k': -k 3 changes nothing in it"]
    lines = told.out.splitlines()
    assert lines[0].startswith("knowledge  ")
    assert [len(kept(told)), lines[-1]] == [2, "calls      2"]
    assert blendfilter("ask", QUESTION, *SAMPLE, "--method", "own_traced:Mine").notices == []
    assert blendfilter("ask", QUESTION, *SAMPLE, "--method", "own_traced:Fitted", "-k", 3).notices == []
    told = blendfilter(*small_eval("own_traced:Mine", "run", "-k", 3))
    assert [each for each in told.notices if "takes no argument" in each] == told.notices[:1] != []


def test_known_classes_are_modules(blendfilter: Command, here: Path) -> None:
    (here / "own_named.py").write_text(OWN_METHODS + "from dataclasses import dataclass\nLIMIT = 3\n")
    told = blendfilter("ask", QUESTION, *SAMPLE, "--method", "own_named:Mien")
    assert told.error.endswith("no class 'Mien'. Did you mean 'Mine'? (known: Fitted, Mine) in own_named")


def test_full_cuts_nothing(blendfilter: Command) -> None:
    cut, whole = (blendfilter("ask", QUESTION, *SAMPLE, each) for each in ("--show-trace", "--full"))
    assert " …" in cut.out
    assert " …" not in whole.out
    assert "[...]" not in whole.out
    assert whole.out.count("the filter said") == 3


def test_a_usage_error_stands_alone(blendfilter: Command) -> None:
    told = blendfilter("ask", QUESTION, "--hops", 3)
    assert (told.code, len(told.notices)) == (2, 1)


REFUSED: list[tuple[tuple[object, ...], str]] = [
    (("--rule", "phi1"), "--rule goes with a filter: add --filter cdit or --filter cdit-components"),
    (("--rules", "mine.toml"), "--rules goes with a filter: add --filter cdit or --filter cdit-components"),
    (("--filter", "full", "--rule", "phi1"), "--rule is for the filters cdit and cdit-components; full does not take"),
    (("--filter", "cdit", "--filter-n", 2), "--filter-n is for the filters passage and sentence; cdit does not take"),
    (("--filter", "cdit", "--rule", "phi3"), r"no rule 'phi3'\. Did you mean 'phi\d'\? \(known: phi1, phi2\)"),
    (("--filter", "cdit", "--rule", ""), "no rule ''"),
    (("--filter", "cdit", "--rule", "phi1", "--rule", "phi1"), "the rule 'phi1' is given twice"),
    (("--filter", "cdit", "--rules", "gone.toml"), "no file of rules at gone.toml: write one"),
    (
        ("--filter", "sentense"),
        r"no filter 'sentense'\. Did you mean 'sentence'\? \(known: cdit, cdit-components, filco, ",
    ),
    (("--filter", ""), "no filter ''"),
    (("--filter", "nowhere_at_all:Mine"), "no module 'nowhere_at_all' for filter"),
    (("--filter", "json:JSONDecoder"), "json:JSONDecoder is no dspy.Module: a filter is "),
    (("--method", "direct", "--filter", "full"), "--filter is for direct-retrieval, .* and .*; direct does not take"),
    (("--method", "cot", "--filter", "full"), "--filter is for direct-retrieval, .*; cot does not take it"),
    (("--filter-n", 2), "--filter-n goes with a filter: add --filter passage or --filter sentence"),
    (("--filter-by", "bm25"), "--filter-by goes with a filter"),
    (("--filter-model", "a/b"), "--filter-model goes with a filter"),
    (("--filter", "full", "--filter-n", 2), "--filter-n is for the filters passage and sentence; full does not take"),
    (("--filter", "one-call", "--filter-by", "bm25"), "--filter-by is for the filters passage and sentence; one-call"),
    (("--filter", "sentence", "--filter-n", 0), "n must be at least 1, got 0"),
    (("--filter", "sentence", "--filter-by", "embeding"), "no scorer 'embeding'. Did you mean 'embedding'"),
    (("--filter", "sentence", "--filter-by", "embedding"), r"needs a model \(--filter-model\)"),
    (("--filter", "sentence", "--filter-model", "a/b"), "scoring by bm25 takes no model"),
    (("--filter", "passage", "--filter-by", "cross-encoder", "--filter-model", "gone"), "no encoder 'gone'"),
    (("--method", "cot-retrieval", "--filter-union"), "--filter-union is for blendfilter; cot-retrieval does not"),
    (("--hops", 3), "--hops is for react and self-ask; blendfilter does not take it"),
    (("--hops", 0), "--hops is for react and self-ask"),
    (("--method", "self-ask", "--style", "lineage"), "--style is for react; self-ask does not take it"),
    (("--method", "react", "--style", "lineages"), "no style 'lineages'. Did you mean 'lineage'"),
    (("--method", "react", "--style", ""), "no style ''"),
    (("--filter", "sentence", "--filter-by", ""), "no scorer ''"),
    (("--method", "self-consistency", "--top-p", 0), "--top-p 0 makes all samples of self-consistency alike"),
    (("--method", "react", "--iterations", 3), "--iterations is for iter-retgen; react does not take it"),
    (("--method", "iter-retgen", "--iterations", 0), "iterations must be at least 1"),
    (("--method", "react", "--hops", 0), "hops must be .*at least 1"),
    (("--rewrite",), "--rewrite is for ralm; blendfilter does not take it"),
    (("--method", "ralm", "--filter-union"), "--filter-union is for blendfilter; ralm does not take it"),
    (("--samples", 3), "--samples is for self-consistency; blendfilter does not take it"),
    (("--method", "self-consistency", "--samples", 0), "samples must be "),
    (("--method", "blendfiltr", "--hops", 3), "no method 'blendfiltr'. Did you mean 'blendfilter'"),
    (("--method", "json:JSONDecoder", "--hops", 3), "--hops is for react and self-ask; json:JSONDecoder does not"),
]


MINE = """
[[rule]]
name = "unit"
components = ["unit"]
sentence = "Both give the number in the same unit."
"""


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ((), ["phi1"]),
        (("--rule", "phi2", "--rule", "phi1"), ["phi2", "phi1"]),
        (("--rules", "mine.toml"), ["unit"]),
        (("--rules", "mine.toml", "--rule", "phi1", "--rule", "unit"), ["phi1", "unit"]),
    ],
)
def test_a_run_is_judged_by_the_rules_asked_for(
    blendfilter: Command, here: Path, options: tuple[str, ...], rules: list[str]
) -> None:
    (here / "mine.toml").write_text(MINE)
    words = ("--filter", "cdit-components", *options)
    assert blendfilter(*small_eval("direct-retrieval", "run", *words)).code == 0
    arguments = json.loads((here / "run/run.json").read_text())["settings"]["method"]["arguments"]
    assert [each if isinstance(each, str) else each["name"] for each in arguments["rules"]] == rules
    assert json.loads((here / "run/metrics.json").read_text())["flags"]["no_verdict"] == 0
    rows = [json.loads(line) for line in (here / "run/predictions.jsonl").read_text().splitlines()]
    assert all(row["branches"]["q"]["ids_read"].startswith("kept ") for row in rows)
    before = stable(here / "run")
    assert blendfilter(*small_eval("direct-retrieval", "run", *words, "--replay")).code == 0
    assert stable(here / "run") == before


def test_a_rule_that_says_something_else_is_another_run(blendfilter: Command, here: Path) -> None:
    words = ("--filter", "cdit", "--rules", "mine.toml")
    for text, code in ((MINE, 0), (MINE.replace("same unit", "same measure"), 2)):
        (here / "mine.toml").write_text(text)
        told = blendfilter(*small_eval("direct-retrieval", "run", *words))
        assert told.code == code
    assert "method.arguments.rules" in told.error


def test_a_bad_file_of_rules_is_named_before_anything_is_made(blendfilter: Command, here: Path) -> None:
    (here / "mine.toml").write_text(MINE.replace("components", "component"))
    told = blendfilter(*small_eval("direct-retrieval", "run", "--filter", "cdit", "--rules", "mine.toml"))
    assert (told.code, len(told.notices)) == (2, 1)
    assert "mine.toml, rule 1: no field 'component'. Did you mean 'components'?" in told.error
    assert not (here / "run").exists()


@pytest.mark.parametrize(("options", "told"), REFUSED)
def test_what_does_not_fit_is_refused(blendfilter: Command, options: tuple[object, ...], told: str) -> None:
    said = blendfilter("ask", QUESTION, *SAMPLE, *options)
    assert (said.code, said.out, len(said.notices)) == (2, "", 1)
    assert re.search(told, said.error)


def test_it_is_refused_before_anything_is_made(blendfilter: Command, here: Path, tmp_path: Path) -> None:
    said = blendfilter(
        "eval", "qa", "--data", "sample", "--lm", "offline", "--run", "run",
        "--filter", "passage", "--filter-by", "cross-encoder", "--filter-model", tiny_bert(),
    )  # fmt: skip
    assert said.code == 2
    assert "is no cross-encoder, or not whole" in said.error
    assert not (here / "run").exists()


def test_eval_records_and_replays_the_filter(blendfilter: Command, here: Path) -> None:
    words = ("--filter", "sentence", "--filter-n", 2, "--filter-union")
    assert blendfilter(*small_eval("blendfilter", "run", *words)).code == 0
    arguments = json.loads((here / "run/run.json").read_text())["settings"]["method"]["arguments"]
    assert arguments | {"filter": "SentenceFilter", "n": 2, "by": "bm25", "filter_union": True} == arguments
    before = stable(here / "run")
    assert blendfilter(*small_eval("blendfilter", "run", *words, "--replay")).code == 0
    assert stable(here / "run") == before
    other = blendfilter(*small_eval("blendfilter", "run", *words[:2], "--filter-n", 3, "--filter-union"))
    assert (other.code, "method.arguments.n was 2, now 3" in other.error) == (2, True)


def test_other_filters_have_other_folders(blendfilter: Command, here: Path) -> None:
    words = [word for word in small_eval("cot-retrieval", "x") if word not in ("--run", "x")]
    for more in ((), ("--filter", "full"), ("--filter", "passage"), ("--filter", "passage", "--filter-n", 2)):
        assert blendfilter(*words, *more).code == 0
    assert len(list((here / "runs").iterdir())) == 4


class TestSpread:
    def test_a_group_stands_for_its_options_in_its_place(self) -> None:
        taken: dict[str, Any] = {}

        @spread
        def command(first: Annotated[str, typer.Argument()], how: HowToAnswer, model: WhichModel, last: K = 7) -> None:
            """What it does."""
            taken.update(first=first, how=how, model=model, last=last)

        names = list(inspect.signature(command).parameters)
        assert (names[0], names[1], names[-1], command.__doc__) == ("first", "method", "last", "What it does.")
        defaults = {name: each.default for name, each in inspect.signature(command).parameters.items()}
        command(**{**defaults, "first": "a", "hops": 0, "lm": "offline"})
        assert taken == {"first": "a", "how": HowToAnswer(hops=0), "model": WhichModel(lm="offline"), "last": 7}

    def test_help_shows_how_a_model_is_asked_in_this_order(self) -> None:
        @spread
        def asked(model: WhichModel) -> None: ...

        @spread
        def judged(judge: WhichJudge) -> None: ...

        shown = [
            "lm", "api_base", "endpoint", "temperature", "top_p", "thinking", "reasoning", "json_schema", "label",
            "timeout", "attempts", "deadline", "rpm", "tpm", "context", "threads",
        ]  # fmt: skip
        assert list(inspect.signature(asked).parameters) == shown
        left = [name for name in shown if name not in ("temperature", "top_p", "json_schema")]
        assert list(inspect.signature(judged).parameters) == left

    def test_a_judge_is_a_model_at_temperature_0(self) -> None:
        judge = WhichJudge(lm="m", timeout=3.0, threads=2)
        assert judge.model() == WhichModel(lm="m", timeout=3.0, threads=2, temperature=0.0)

    def test_zero_is_given_and_an_absent_option_is_not(self) -> None:
        how = HowToAnswer(hops=0, without="", filter_n=2)
        assert how.given("hops", "without", "filter_n", "filter_union", "samples") == {"hops": 0, "filter_n": 2}
        assert HowToAnswer(style="", filter_by="").given("style", "filter_by") == {"style": "", "filter_by": ""}
