"""ColBERTv2 (Santhanam et al. 2022, https://arxiv.org/abs/2112.01488) with PLAID (the same, 2022,
https://arxiv.org/abs/2205.09707): a vector per token, compressed to a centroid and a residual of a few bits; the score
of a passage is the sum, over the query's tokens, of the best match among its own (MaxSim).

On colbert-ai (extra `[colbert]`): its model, its compression, its scorer, its file format.
"""

from __future__ import annotations

from blendfilter.retrieval.colbert.index import ColBERT

__all__ = ["ColBERT"]
