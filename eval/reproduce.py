"""A table or figure of a paper: published beside measured, with intervals and paired tests, at a known cost.

    python eval/reproduce.py table1 --data hotpotqa=dev.json --data twowiki=dev2.json --data strategyqa=train.json \
        --index indexes/wiki17 --lm openai/gpt-4o-mini --plan        # what it will cost; without --plan it is done
    python eval/reproduce.py table1 --data sample --limit 20         # the sample world and the offline reader: free

The same command goes on where it was stopped. Tables share their runs, and each run takes over the calls of the others.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from blendfilter.errors import BlendFilterError
from blendfilter.evaluation.reproducing.command import Asked, reproduce, tables
from blendfilter.terminal import guarded

PAPERS = Path(__file__).parent / "papers"


def parser() -> argparse.ArgumentParser:
    """Every option."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    place = "[TASK=]PLACE"
    made.add_argument("table", nargs="?", help="table1 to table5, fair, filco-table3, cdit-table2 … (--list)")
    made.add_argument("--list", action="store_true", help="what there is, and stop")
    made.add_argument("--data", action="append", default=[], metavar=place, help="questions; 'sample' for all tasks")
    by_role = "[colbert:|bm25:|dpr:|flat:|hnsw:|ivf:]" + place
    passages = "passages; 'own': each question's own paragraphs, 'pooled': those of all questions"
    made.add_argument("--corpus", action="append", default=[], metavar=by_role, help=passages)
    made.add_argument("--index", action="append", default=[], metavar=by_role, help="folder or URL")
    allowed = "a host that a trimmed index may call (HOST or HOST:PORT); may be repeated"
    made.add_argument("--allow-host", action="append", default=[], metavar="HOST", help=allowed)
    made.add_argument("--lm", default="offline", help="provider/model, or any name with --api-base")
    made.add_argument("--api-base", action="append", help="an OpenAI-compatible server; several share the calls")
    made.add_argument("--endpoint", default="chat", choices=["chat", "completions"])
    made.add_argument("--label", default="", help="tells two servers apart that serve other weights under one name")
    made.add_argument("--reasoning", help="effort of a reasoning model: low, medium or high")
    made.add_argument("--thinking", action=argparse.BooleanOptionalAction, help="for a model that thinks by default")
    schema = "hold the ids to a JSON schema; without it they are free text, as in the paper"
    made.add_argument("--json-schema", action=argparse.BooleanOptionalAction, default=False, help=schema)
    made.add_argument("--timeout", type=float, metavar="SECONDS", help="that one attempt at a call may take (120)")
    made.add_argument("--attempts", type=int, metavar="N", help="attempts that a call has (6)")
    made.add_argument("--deadline", type=float, metavar="SECONDS", help="that all attempts at a call may take (600)")
    made.add_argument("--rpm", type=int, metavar="N", help="requests a minute that the server is sent at the most")
    made.add_argument("--tpm", type=int, metavar="N", help="tokens a minute, of prompts and replies")
    made.add_argument("--prices", type=Path, help="a file of your own prices (docs/costs.md)")
    measure = "what SILVER is chosen by, in place of the paper's: strinc, lexical or cxmi"
    made.add_argument("--measure", action="append", default=[], metavar="[TASK=]MEASURE", help=measure)
    made.add_argument("--scorer", metavar="NAME", help="what gives cxmi log-probabilities; else the reader itself")
    made.add_argument("--scorer-api-base", metavar="URL", help="a server of that model")
    program = "FILCO speaks as this compiled program (blendfilter compile filco)"
    made.add_argument("--program", action="append", default=[], metavar="[TASK=]FILE", help=program)
    made.add_argument("--limit", type=int, help="the first N questions in place of the paper's 500")
    made.add_argument("--tasks", type=_names, help="some of the table's tasks, with commas between")
    made.add_argument("--methods", type=_names, help="the rows of these methods alone")
    row = "the rows of this label, FILCO say, and those that they are tested against; may be repeated"
    made.add_argument("--row", action="append", dest="rows", metavar="LABEL", help=row)
    made.add_argument("--concurrency", type=int, default=16, help="model calls in flight")
    made.add_argument("--repeats", type=int, default=1, help="answer every question R times")
    made.add_argument("--runs", type=Path, default=Path("runs"), help="where runs lie, and the table under its name")
    made.add_argument("--plan", action="store_true", help="print calls, tokens and cost, and stop: nothing is spent")
    made.add_argument("--no-plots", dest="plots", action="store_false", help="draw nothing")
    return made


def _names(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


def main(words: list[str] | None = None) -> int:
    """The exit code: 0 done, 1 some questions failed, 2 what was asked is wrong."""
    asked = vars(parser().parse_args(words))
    try:
        if asked.pop("list") or asked["table"] is None:
            print(tables(PAPERS), end="")
            return 0
        return reproduce(Asked(papers=PAPERS, **asked), show=print, say=_say)
    except KeyboardInterrupt:
        _say("stopped; the same command goes on where it was")
        return 130
    except BlendFilterError as error:
        _say(" ".join(str(error).split()))
        return error.exit_code


def _say(line: str) -> None:
    print(f"reproduce: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    with guarded():
        sys.exit(main())
