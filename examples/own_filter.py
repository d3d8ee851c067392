"""Write a filter of your own and measure what it keeps.

A filter takes a question and passages, best first, and returns those to read. Put yours in place of `NearTheBest`.
Precision and recall are of the questions' gold titles; tokens are those of the prompt that reads the passages.

    filter       precision  recall  tokens     EM
    none             36.7%   87.8% …
    the first 2      63.7%   61.8% …
    near the best    68.6%   68.0% …
"""

import blendfilter as bf
from blendfilter.resources import sample

lm = bf.connect("offline")  # rules that read: they show the steps, not how well a model takes them
# lm = bf.connect("openai/gpt-4o-mini")  # a model; or any name with api_base="http://localhost:8000/v1"


class NearTheBest(bf.Filter):
    """Keeps the passages that score at least a share of the best one's score."""

    def __init__(self, share=0.7):
        super().__init__()
        self.share = share

    def arguments(self):
        return {"share": self.share}  # recorded with a run

    async def aforward(self, question, passages):
        return [passage for passage in passages if passage.score >= self.share * passages[0].score]


index, questions = bf.BM25.build(sample("corpus.jsonl")), bf.load("qa", "sample")
print("filter       precision  recall  tokens     EM")
for name, select in {"none": None, "the first 2": bf.PassageFilter(2), "near the best": NearTheBest()}.items():
    method = bf.ChainOfThought(index, k=5, filter=select)
    run = bf.evaluate(method, questions, lm=lm, run=f"runs/filter/{name}", progress=False)
    kept, tokens = run.metrics["retrieval"]["kept"], run.metrics["ledger"]["answer"]["tokens_in"] / len(questions)
    print(f"{name:13}{kept['precision']:9.1%}{kept['recall']:8.1%}{tokens:8.0f}{run.scores['em']:7.1%}")
