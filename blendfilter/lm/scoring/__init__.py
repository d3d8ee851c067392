"""Log-probabilities of given text: what a model thinks of words that it did not choose.

In: pairs of a prompt and a continuation. Out: for each, log p(continuation | prompt) in nats and in how many tokens.
CXMI, BIDER's nuggets and constrained filters are made of these; no DSPy model offers them. Models in this process
(Hugging Face, llama.cpp) and servers that tell them are asked alike::

    ask = scorer("local", journal="runs/mine")
    with_passage, without = ask.score([(f"{passage}\\n{question}", answer), (question, answer)])
    cxmi = with_passage.logprob - without.logprob
"""

from blendfilter.lm.scoring.base import Score, Scorer
from blendfilter.lm.scoring.making import score, scorer

__all__ = ["Score", "Scorer", "score", "scorer"]
