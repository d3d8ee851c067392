"""BlendFilter on 2WikiMultihopQA: data set, method, metric, run.

    python eval/twowiki.py --data dev.json --corpus wiki.abstracts.jsonl --lm openai/gpt-4o-mini

Without --lm the offline reader answers, which shows the pipeline, not its quality.
"""

import argparse

import blendfilter as bf
from blendfilter.errors import one_line

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", required=True, help="the official file, normalised JSON Lines, or 'hub'")
parser.add_argument("--corpus", default="pooled", help="a file of passages; without it, the questions' own paragraphs")
parser.add_argument("--lm", default="offline", help="provider/model, or any name with --api-base")
parser.add_argument("--api-base", help="an OpenAI-compatible server that has the model")
parser.add_argument("--limit", type=int, help="the first N questions")
parser.add_argument("--run", default="runs/twowiki-blendfilter", help="the run's folder, to stop and go on")
options = parser.parse_args()

with one_line():  # bad input: what, where and the next move, exit code 2
    questions = bf.load("twowiki", options.data, limit=options.limit)
    index = bf.BM25.build(bf.pooled(questions)) if options.corpus == "pooled" else bf.BM25.for_corpus(options.corpus)
    method = bf.BlendFilter(index, k=5, task="twowiki")
    lm = bf.connect(options.lm, api_base=options.api_base)
    run = bf.evaluate(method, questions, lm=lm, run=options.run)
    print(run.report())  # EM and F1 with 95 % intervals, every alias counted
