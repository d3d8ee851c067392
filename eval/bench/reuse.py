"""What reuse between runs saves: Tables 1, 4 and 5 over one folder of runs, every request counted by a server.

    python eval/bench/reuse.py [--limit N]                                     # the sample world
    python eval/bench/reuse.py --limit 100 --data … --corpus … --index …       # as blendfilter reproduce takes them

The server is `tests/model_server.py` in a process of its own, which answers with the offline reader. Tables 1 and 5
want a dense retriever and BM25. On the sample world BM25 over pieces of words (three letters at a time) stands in for
the dense one: it ranks otherwise, so that its prompts are others, and that is all that matters here.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from model_server import serve

from blendfilter import connect
from blendfilter.reproduce import reproduce

TABLES = ("table1", "table4", "table5")


def calls_of_rows(folder: Path) -> int:
    """The calls of a table if every row were paid for by itself: the sum over its rows of calls a question."""
    lines = json.loads((folder / "table.json").read_text(encoding="utf-8"))["lines"]
    rows = {(line["task"], line["group"], line["label"]): line["calls"] * line["n"] for line in lines}
    return round(sum(rows.values()))


def main() -> None:
    """Run the tables one after the other and print what each really asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=20)
    for name in ("data", "corpus", "index"):
        parser.add_argument(f"--{name}", action="append", default=[])
    args = parser.parse_args()
    used, before = 0, 0
    with serve(reply="offline") as server, tempfile.TemporaryDirectory() as folder:
        for table in TABLES:
            lm = connect("test-model", api_base=server.url, json_schema=False)
            code = reproduce(
                table, lambda table, lm=lm: lm, show=lambda text: None, say=lambda line: None, runs=Path(folder),
                data=args.data or ["sample"], index=args.index, corpus=args.corpus, limit=args.limit, plots=False,
                concurrency=32,
            )  # fmt: skip
            assert code == 0
            (written,) = Path(folder).glob(f"{table}-*")
            requests, alone = server.stats()["requests"], calls_of_rows(written)
            print(f"{table}: {_compared(alone, requests - before)}")
            used, before = used + alone, requests
    print(f"together: {_compared(used, before)}")


def _compared(alone: int, made: int) -> str:
    saved = 100 * (alone - made) / alone
    return f"{alone:,} calls if every row were paid for by itself, {made:,} requests: {saved:.0f} % less"


if __name__ == "__main__":
    main()
