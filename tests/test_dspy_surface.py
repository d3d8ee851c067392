"""DSPy's private and changing names stand in one file, which speaks to DSPy 3.4 and 3.5."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dspy
import pytest
from dspy.utils.callback import BaseCallback
from model_server import serve

from blendfilter import Direct, connect, dspy_surface
from blendfilter.dspy_surface import LITELLM_KEYS, key_variables, known_providers, listed_rates
from blendfilter.prompting import TemplateAdapter

ROOT = Path(__file__).parents[1]
SURFACE = ROOT / "blendfilter" / "dspy_surface.py"
OTHERS = sorted({*(ROOT / "blendfilter").rglob("*.py"), *(ROOT / "eval").rglob("*.py")} - {SURFACE})
OF_DSPY = {
    "lm15", "clients", "adapters", "utils", "core", "dsp", "retrievers", "teleprompt", "predict", "primitives",
    "signatures", "propose", "Retrieve", "ColBERTv2", "ChatAdapter", "JSONAdapter", "XMLAdapter",
    "TwoStepAdapter", "Adapter",
}  # fmt: skip
"""Attributes of `dspy`: its modules but the documented `dspy.streaming`, and what 3.5 changes; types may be named."""
OF_SETTINGS = {"send_stream", "caller_modules", "caller_predict", "usage_tracker", "rm"}
"""Settings that DSPy keeps for itself, and that of `Retrieve`."""
OF_OBJECTS = {
    "_call_postprocess", "_call_preprocess", "_engine_spec", "_async_engine_spec", "_get_initial_kwargs", "_compiled",
    "update_history", "forward_contract", "complete_legacy",
}  # fmt: skip
"""Attributes and methods of DSPy's objects that are private or go."""


def private_names(source: str) -> Iterator[str]:
    """What a file names of DSPy, or of litellm, that only the one file may."""
    tree = ast.parse(source)
    types = {id(node) for found in ast.walk(tree) for node in _annotations(found)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if re.match(r"dspy\.|litellm\b", name.name))
        elif isinstance(node, ast.ImportFrom) and re.match(r"(dspy|litellm)\b", node.module or ""):
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner == "dspy" and (node.attr in OF_DSPY or node.attr.startswith("_")) and id(node) not in types:
                yield f"dspy.{node.attr}"
            if node.attr in OF_OBJECTS or (owner == "dspy.settings" and node.attr in OF_SETTINGS):
                yield f"{owner}.{node.attr}"
            if owner in ("dspy.BaseLM", "dspy.LM") and node.attr in ("forward", "aforward"):
                yield f"{owner}.{node.attr}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in OF_OBJECTS - {"_compiled"}:
            yield f"def {node.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "dspy.context":
            yield from (f"dspy.context({word.arg}=)" for word in node.keywords if word.arg in OF_SETTINGS)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^dspy\.(?:clients|adapters|_vendor)[\w.]*$", node.value)


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    for each in (getattr(node, "annotation", None), getattr(node, "returns", None)):
        if isinstance(each, ast.AST):
            yield from ast.walk(each)


def test_no_other_file_names_what_is_private_in_dspy() -> None:
    found = {str(path): [*private_names(path.read_text(encoding="utf-8"))] for path in OTHERS}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from dspy import lm15", "import dspy.clients.lm", "from dspy._vendor.lm15.serde import response_to_dict",
        "import litellm", "x = dspy.lm15.Request", "dspy._vendor", "lm._async_engine_spec", "lm.update_history = f",
        "class A(dspy.Adapter):\n    def _call_postprocess(self): ...", "dspy.settings.caller_modules",
        "with dspy.context(send_stream=None): ...", "isinstance(part, dspy.Retrieve)",
        "type(lm) is dspy.BaseLM.aforward",
        "logging.getLogger('dspy.clients.lm')",
    ],
)  # fmt: skip
def test_the_search_finds_each_kind(line: str) -> None:
    assert list(private_names(line))


def test_what_dspy_documents_may_be_named_anywhere() -> None:
    source = "def f(lm: dspy.BaseLM, adapter: dspy.Adapter) -> dspy.Prediction:\n    return dspy.settings.lm\n"
    assert list(private_names(source)) == []


def test_what_goes_with_34_is_listed_and_there() -> None:
    """One place names what nothing but DSPy 3.4 needs, so that it can be deleted."""
    source = SURFACE.read_text(encoding="utf-8")
    (listed,) = re.findall(r"^Goes when 3\.4 goes: ((?:.+\n)+)", source, re.MULTILINE)
    names = re.findall(r"`(\w+)`", listed)
    assert "_BY_REQUEST" in names
    assert [name for name in names if not hasattr(dspy_surface, name)] == []


# --- what the file does -----------------------------------------------------------------------------------------------


def test_callbacks_see_an_adapter_write_and_read_once() -> None:
    """DSPy wraps the methods of each subclass, and would wrap inherited ones twice."""

    class Counting(BaseCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_adapter_format_start(self, call_id: str, instance: object, inputs: object) -> None:
            self.seen.append("format")

        def on_adapter_parse_start(self, call_id: str, instance: object, inputs: object) -> None:
            self.seen.append("parse")

    callback = Counting()
    with dspy.context(lm=connect("offline"), callbacks=[callback]):
        Direct()(question="Who?")
    assert callback.seen == ["format", "parse"]


def test_without_a_template_dspys_chat_adapter_speaks() -> None:
    signature = dspy.Signature("question -> answer")
    with serve(reply="[[ ## answer ## ]]\nAda\n[[ ## completed ## ]]", keep=True) as server:
        lm = connect("m", api_base=server.url)
        with dspy.context(lm=lm, adapter=TemplateAdapter()):
            assert dspy.Predict(signature)(question="Who?").answer == "Ada"
        (prompt,) = server.stats()["prompts"]
    assert "[[ ## question ## ]]" in prompt


@pytest.mark.parametrize("provider", LITELLM_KEYS)
def test_the_keys_of_litellms_providers_are_those_that_it_looks_for(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    (wanted,) = litellm.validate_environment(f"{provider}/m")["missing_keys"]
    assert wanted == key_variables(provider)[0]


def test_a_stored_login_to_xai_wants_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blendfilter.dspy_surface.has_stored_credential", lambda _: True)
    assert key_variables("xai") == ()


def test_providers_keys_and_prices_are_read_without_importing_litellm() -> None:
    assert {"anthropic", "gemini", "azure", "bedrock", "vertex_ai", "fireworks_ai"} <= known_providers()
    assert (key_variables("anthropic"), key_variables("bedrock")) == (("ANTHROPIC_API_KEY",), ())
    assert key_variables("xai") == ("XAI_API_KEY",)
    assert listed_rates("vertex_ai", "gemini-2.5-pro") == listed_rates("gemini", "gemini-2.5-pro")
    assert listed_rates("azure", "claude-sonnet-4-5") is None, "another provider's price is none"


COLLECTING = """
import gc, threading
from blendfilter.dspy_surface import optimisers_at_work

class Node:
    def __init__(self):
        self.itself, self.local = self, threading.local()

for threshold in range(20, 120):
    gc.collect()
    gc.set_threshold(threshold)
    nodes = [Node() for _ in range(6)] and None
    assert not optimisers_at_work()
    gc.set_threshold(700)
assert gc.isenabled()
"""


def test_whether_an_optimiser_is_at_work_is_told_while_garbage_is_collected() -> None:
    """Python waits for ever where a collection inside of `sys._current_frames` meets the locals of a thread."""
    done = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
