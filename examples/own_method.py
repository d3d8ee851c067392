"""Write a method of your own and compare it with BlendFilter, question by question.

A method is any `dspy.Module` that takes a question and returns a `dspy.Prediction` with an `answer`. Put yours in
place of `AskTwice`, and files of yours in place of "sample" (docs/tasks.md has their formats).

    against blendfilter, the same 84 questions, in %
    …
    ask-twice …
    …
"""

import dspy

import blendfilter as bf
from blendfilter.resources import sample

lm = bf.connect("offline")  # rules that read: they show the steps, not how well a model takes them
# lm = bf.connect("openai/gpt-4o-mini")  # a model; or any name with api_base="http://localhost:8000/v1"


class AskTwice(dspy.Module):
    def __init__(self, index, k=3):
        super().__init__()
        self.index, self.k = index, k
        self.missing = dspy.Predict("knowledge: list[str], question -> search_query")
        self.answering = bf.Answering()  # reasons over the knowledge, then answers, as the built-in methods do

    def forward(self, question):
        first = self.index(question, k=self.k)
        query = self.missing(knowledge=[passage.line for passage in first], question=question).search_query
        knowledge = first + [passage for passage in self.index(query, k=self.k) if passage not in first]
        answer = self.answering(question=question, knowledge=knowledge).answer
        return dspy.Prediction(answer=answer, knowledge=knowledge)


index, questions = bf.BM25.build(sample("corpus.jsonl")), bf.load("qa", "sample")
mine = bf.evaluate(AskTwice(index), questions, lm=lm, run="runs/ask-twice", progress=False)
blend = bf.evaluate(bf.BlendFilter(index, k=3), questions, lm=lm, run="runs/blendfilter", progress=False)
print(bf.compare(blend, mine))
