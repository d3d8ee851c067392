"""Write a metric of your own, and use the same function in a run, in `dspy.Evaluate` and in an optimiser.

A metric takes an example and a prediction and returns a fraction of 1, or true or false. Put yours in place of
`supported`. An optimiser calls it with a trace, and takes as demonstrations what it then finds good.

    bf.evaluate: supported 66.7%, em 33.3%
    dspy.Evaluate: supported 66.7%
    …
    demonstration: Which guild owns the largest picture by the sailor from Hathermouth who taught …
"""

import dspy
from dspy.evaluate import normalize_text

import blendfilter as bf
from blendfilter.resources import sample

lm = bf.connect("offline")  # rules that read: they show the steps, not how well a model takes them
# lm = bf.connect("openai/gpt-4o-mini")  # a model; or any name with api_base="http://localhost:8000/v1"


def supported(example, prediction, trace=None):
    """Whether the answer stands in a passage that was read, and, for a demonstration, whether it is right as well."""
    answer = normalize_text(prediction.answer)
    stands = answer != "" and any(answer in normalize_text(passage.text) for passage in prediction.knowledge)
    return stands and (trace is None or answer in map(normalize_text, example.golden_answers))


method, questions = bf.ChainOfThought(bf.BM25.build(sample("corpus.jsonl")), k=3), bf.load("qa", "sample")
run = bf.evaluate(method, questions, lm=lm, run="runs/supported", metrics=[supported, "em"], progress=False)
print(f"bf.evaluate: supported {run.scores['supported']:.1%}, em {run.scores['em']:.1%}")

dspy.configure(lm=lm)
print(f"dspy.Evaluate: supported {dspy.Evaluate(devset=questions.examples(), metric=supported)(method).score:.1f}%")

optimiser = dspy.BootstrapFewShot(metric=supported, max_bootstrapped_demos=2, max_labeled_demos=0)
compiled = optimiser.compile(method, trainset=questions.examples()[:10])
for demo in compiled.answering.answer.demos:
    print("demonstration:", demo.question)
