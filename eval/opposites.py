"""A judge on the sample world's opposites: question and passage with nearly the same words.

    python eval/opposites.py --lm openai/gpt-4o-mini --mode components --run runs/opposites

Each pair is judged once by each set of rules (phi1, phi1+phi2; or that of --rule), 288 calls. The same command goes on
where it was stopped, and once done it replays without a call. Without --lm the offline reader judges by word lists,
which shows the pipeline, not its quality.
"""

import argparse
import json
import sys
from pathlib import Path

import dspy

import blendfilter as bf
from blendfilter.errors import BlendFilterError
from blendfilter.evaluation.opposites import BOTH, confusion, judging, load_opposites
from blendfilter.journal import Journal

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lm", default="offline", help="provider/model, or any name with --api-base")
parser.add_argument("--api-base", help="an OpenAI-compatible server that has the model")
parser.add_argument("--mode", default="word", choices=["word", "components"], help="one word, or with its grounds")
parser.add_argument("--rule", action="append", help="a rule; all that are given hold together (phi1, phi1+phi2 apart)")
parser.add_argument("--program", help="a compiled program (blendfilter compile cdit); --rule: those it is of")
parser.add_argument("--limit", type=int, help="the first N pairs")
parser.add_argument("--run", default="runs/opposites", help="the folder of the journal, and of confusion.json")
options = parser.parse_args()
kept = Path(options.run, "confusion.json")
if kept.exists() and b'"tables"' not in kept.read_bytes():
    parser.error(f"{kept} is there, and is no table of this script: name another folder (--run)")

try:
    with Journal(options.run) as journal:
        lm = bf.connect(options.lm, api_base=options.api_base, journal=journal)
        sets = [options.rule] if options.rule else BOTH
        with dspy.context(lm=lm):
            tables = confusion(judging(options.mode, options.program), load_opposites()[: options.limit], sets)
except BlendFilterError as error:
    print(f"opposites: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
kept.write_text(json.dumps({"lm": options.lm, "tables": [table.to_json() for table in tables]}, indent=2) + "\n")
print("\n\n".join(table.text() for table in tables))
