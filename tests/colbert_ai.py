"""colbert-ai's own classes (`Checkpoint`, `Searcher`, `Indexer`) made to load under transformers 5, as oracles.

`HF_ColBERT.__init__` ends with `init_weights()`, and transformers 5 wants `post_init()`.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from blendfilter.retrieval.colbert.compat import load_kernels, parts


def patch_colbert() -> None:
    """Let them load in this process, with their kernels where ours lie."""
    parts()
    load_kernels()  # or they compile them anew, behind a lock that outlives whoever is killed
    factory = importlib.import_module("colbert.modeling.hf_colbert")
    if getattr(factory.class_factory, "func", None) is _made:
        return
    patched = functools.partial(_made, factory.class_factory)
    for name in ("hf_colbert", "base_colbert", "tokenization.doc_tokenization", "tokenization.query_tokenization"):
        importlib.import_module(f"colbert.modeling.{name}").class_factory = patched


def _made(class_factory: Any, folder: str) -> Any:
    made = class_factory(folder)
    plain, init_weights = made.__init__, made.init_weights

    @functools.wraps(plain)
    def initialised(self: Any, *arguments: Any, **settings: Any) -> None:
        plain(self, *arguments, **settings)
        self._built = True
        self.post_init()

    def once_built(self: Any) -> None:  # `plain` calls it before transformers 5 has anything to initialise
        if getattr(self, "_built", False):
            init_weights(self)

    made.__init__, made.init_weights = initialised, once_built
    return made
