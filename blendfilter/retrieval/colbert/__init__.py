"""Late interaction as ColBERTv2 (Santhanam et al. 2022, https://arxiv.org/abs/2112.01488) and PLAID (the same, 2022,
https://arxiv.org/abs/2205.09707) do it: a vector per token, compressed to a centroid and a residual of a few bits; the
score of a passage is the sum, over the query's tokens, of the best match among its own (MaxSim).

On sentence-transformers' `MultiVectorEncoder`, which reads Stanford's, PyLate's and its own checkpoints, and on
colbert-ai's compression, scorer and file format (extra `[colbert]`).
"""

from __future__ import annotations

from blendfilter.retrieval.colbert.index import ColBERT

__all__ = ["ColBERT"]
