"""Filters and the settings of single methods on the command line: what they change, and what is refused in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from refusing import refused
from small_world import Command, Outcome, small_eval, stable

from blendfilter import cli
from blendfilter.cli import options
from blendfilter.filters.extractive import SCORERS
from blendfilter.filters.registry import FILTERS
from blendfilter.metrics import METRICS
from blendfilter.modules.methods import METHODS
from blendfilter.retrieval.indexes import ENGINES
from blendfilter.tasks import TASKS

QUESTION = "King Corvin had a lighthouse built on a lonely rock. In which town was its designer born?"
SAMPLE = ("--lm", "offline", "--corpus", "sample")


def kept(outcome: Outcome) -> list[str]:
    return [line for line in outcome.out.splitlines() if line.startswith("     + ")]


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        (("--method", "direct-retrieval", "--filter", "knowledge"), 4),
        (("--method", "cot-retrieval", "--filter", "one-call"), 3),
        (("--method", "direct-retrieval", "--filter", "pointwise"), 6),
        (("--method", "iter-retgen", "--filter", "full", "--iterations", 3), 4),
        (("--filter", "one-call", "--filter-union"), 5),
        (("--method", "cot-retrieval", "-k", 3, "--filter", "cdit-components", "--rule", "phi2"), 5),
        (("--method", "self-consistency", "--samples", 3), 4),
        (("--method", "ralm", "-k", 3, "--filter", "cdit", "--rewrite"), 4),
    ],
)
def test_calls(blendfilter: Command, options: tuple[object, ...], calls: int) -> None:
    outcome = blendfilter("ask", QUESTION, *SAMPLE, "--show-trace", *options)
    assert (outcome.code, outcome.err) == (0, "")
    assert re.match(rf"calls +{calls}\b", outcome.out.splitlines()[-1])


def test_a_filter_of_ones_own(blendfilter: Command, here: Path) -> None:
    (here / "own_filter_of_the_shell.py").write_text(
        "import dspy\nfrom blendfilter import Filter\nclass Last(Filter):\n"
        "    def __init__(self, n=1):\n        super().__init__()\n        self.n = n\n"
        "    async def aforward(self, question, passages):\n        return dspy.Prediction(kept=passages[-self.n:])\n"
    )
    words = ("--method", "direct-retrieval", "--filter", "own_filter_of_the_shell:Last", "--filter-n", 2)
    outcome = blendfilter("ask", QUESTION, *SAMPLE, "--show-trace", *words)
    assert outcome.code == 0
    assert [line[5] for line in outcome.out.splitlines() if re.match(r"     [+-] ", line)] == ["-", "-", "-", "+", "+"]


OWN_METHODS = """
import dspy, blendfilter as bf
class Mine(dspy.Module):
    def __init__(self, index):
        super().__init__()
        self.index, self.ask = index, dspy.Predict("question -> answer")
    async def aforward(self, question):
        await self.ask.acall(question=question)
        second = await self.ask.acall(question=question + "?")
        return dict(answer=second.answer, knowledge=self.index(question, k=2))
class Fitted(Mine):
    def __init__(self, index, k):
        super().__init__(index)
"""


def test_a_method_of_ones_own_in_the_trace(blendfilter: Command, here: Path) -> None:
    """Its passages and the number of its calls; a number of passages that it does not take is a notice."""
    (here / "own_traced.py").write_text(OWN_METHODS)
    outcome = blendfilter("ask", QUESTION, *SAMPLE, "--show-trace", "--method", "own_traced:Mine", "-k", 3)
    assert outcome.code == 0
    assert outcome.notices == ["blendfilter: own_traced:Mine takes no argument 'k': -k 3 changes nothing in it"]
    lines = outcome.out.splitlines()
    assert lines[0].startswith("knowledge  ")
    assert [len(kept(outcome)), lines[-1]] == [2, "calls      2"]
    assert blendfilter("ask", QUESTION, *SAMPLE, "--method", "own_traced:Mine").notices == []
    assert blendfilter("ask", QUESTION, *SAMPLE, "--method", "own_traced:Fitted", "-k", 3).notices == []
    outcome = blendfilter(*small_eval("own_traced:Mine", "run", "-k", 3))
    assert [each for each in outcome.notices if "takes no argument" in each] == outcome.notices[:1] != []


REFUSED: list[tuple[tuple[object, ...], str]] = [
    (("--rule", "phi1"), "--rule goes with a filter: add --filter cdit or --filter cdit-components"),
    (("--filter", "full", "--rules", "x"), "--rules is for the filters cdit and cdit-components; full does not take"),
    (("--filter", "cdit", "--rule", "phi3"), r"no rule 'phi3'\. Did you mean 'phi\d'\? \(known: phi1, phi2\)"),
    (("--filter", "cdit", "--rules", "gone.toml"), "no file 'gone.toml': check the path"),
    (
        ("--filter", "sentense"),
        r"no filter 'sentense'\. Did you mean 'sentence'\? \(known: bider, cdit, cdit-components, fi",
    ),
    (("--filter", "nowhere_at_all:Mine"), "no module 'nowhere_at_all' for filter"),
    (("--method", "direct", "--filter", "full"), "--filter is for direct-retrieval, .* and .*; direct does not take"),
    (("--filter-n", 2), "--filter-n goes with a filter: add --filter passage or --filter sentence"),
    (("--filter", "full", "--filter-n", 2), "--filter-n is for the filters passage and sentence; full does not take"),
    (("--filter", "sentence", "--filter-n", 0), "n is 0: give a whole number of 1 or more"),
    (("--filter", "sentence", "--filter-by", "embeding"), "no scorer 'embeding'. Did you mean 'embedding'"),
    (("--filter", "sentence", "--filter-by", "embedding"), r"needs a model: name one \(--filter-model\)"),
    (("--filter", "passage", "--filter-by", "cross-encoder", "--filter-model", "gone"), "no cross-encoder 'gone'"),
    (("--method", "cot-retrieval", "--filter-union"), "--filter-union is for blendfilter; cot-retrieval does not"),
    (
        ("--method", "iter-retgen", "--drop-conclusion"),
        "--drop-conclusion is for blendfilter; iter-retgen does not take",
    ),
    (("--method", "direct", "--drop-conclusion"), "--drop-conclusion is for blendfilter; direct does not take it"),
    (("--without", "q_ex", "--drop-conclusion"), "drop_conclusion changes q_ex, which without leaves out"),
    (("--hops", 0), "--hops is for react and self-ask; blendfilter does not take it"),
    (("--method", "self-consistency", "--top-p", 0), "--top-p 0 makes all samples of self-consistency alike"),
    (("--method", "iter-retgen", "--iterations", 0), "iterations is 0"),
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


@pytest.mark.parametrize(("options", "error"), REFUSED)
def test_what_does_not_fit_is_refused(blendfilter: Command, options: tuple[object, ...], error: str) -> None:
    outcome = blendfilter("ask", QUESTION, *SAMPLE, *options)
    refused(outcome)
    assert re.search(error, outcome.error)


def test_the_help_names_all_that_is_registered() -> None:
    """Read in their sources, so that --help does not wait for dspy; these are the registries."""
    registered = {
        options.TASKS: TASKS, options.METHODS: METHODS, options.FILTERS: FILTERS, options.ENGINES: ENGINES,
    }  # fmt: skip
    for names, registry in registered.items():
        assert sorted(names) == sorted(registry)
    commands = typer.main.get_command(cli.app).commands
    for command, option, names in (
        ("eval", "task", TASKS), ("silver", "task", TASKS), ("compile", "task", TASKS), ("compile", "what", METHODS),
        ("eval", "method", METHODS), ("eval", "metric", METRICS), ("rescore", "metric", METRICS),
        ("eval", "filter", FILTERS), ("ask", "filter_by", SCORERS), ("ask", "wording", options.WORDINGS),
    ):  # fmt: skip
        (text,) = (param.help for param in commands[command].params if param.name == option)
        assert [name for name in names if not re.search(rf"(?<![\w-]){name}(?![\w-])", text)] == []
