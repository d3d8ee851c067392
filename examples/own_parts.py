"""Put BlendFilter's parts, or a filter behind any retriever, into a program of your own.

What is searched and kept is seen by the run, which says where questions are lost: the program does not.

    blended   …
    filtered  …
"""

import dspy

import blendfilter as bf
from blendfilter.resources import sample

lm = bf.connect("offline")  # rules that read: they show the steps, not how well a model takes them
# lm = bf.connect("openai/gpt-4o-mini")  # a model; or any name with api_base="http://localhost:8000/v1"


class Mine(dspy.Module):
    def __init__(self, find, filter=None):
        super().__init__()
        self.find, self.filter = find, filter
        self.respond = dspy.ChainOfThought("context: list[str], question -> response")

    def forward(self, question):
        passages = self.find(question=question).passages
        if self.filter is not None:
            passages = self.filter(question=question, passages=passages).passages
        return self.respond(context=[passage.line for passage in passages], question=question)


index, questions = bf.BM25.build(sample("corpus.jsonl")), bf.load("qa", "sample", limit=30)
blended = Mine(bf.Blending(index, k=3), bf.KnowledgeFilter())
filtered = Mine(bf.FilteredSearch(index, "filco", k=3))  # any retriever, any filter
for name, program in {"blended": blended, "filtered": filtered}.items():
    run = bf.evaluate(program, questions, lm=lm, run=f"runs/{name}", answer="response", progress=False)
    print(f"{name:9}", {loss: count for loss, count in run.losses().items() if count})
