"""FilCo and BIDER learned by a small model, and what that is worth on 300 questions which training never saw.

    python eval/learn.py --data DATA --base SMOLLM2 --encoder MINILM --nli NLI --runs runs/learn
    python eval/learn.py … --only train-full rows/SILVER table

Some eight hours of one core in bfloat16 (added up from its parts; FULL's generator: 250 steps of 33 s), and more for
the curve (filters and generators that learn from fewer questions), which comes last. A part that was stopped goes on
where it was (training from its last checkpoint, silver files and runs from their last line), and a part that is done is
not done again; --only names parts, or how their names begin. DATA holds nq/dev_gold.jsonl.gz (questions of Natural
Questions, each with its gold passage) and the corpora nq_gold and wiki18_retrieved under corpus/. A question is given
three passages: its gold one and BM25's two best others, shuffled. 300 questions are held back; no question that is
trained on shares its gold passage with one of them.

Two generators learn from the same 2,000 questions in one pass each: one reads a question's silver sentences or (every
second one) its gold passage, and answers from whatever a filter leaves; the other reads all three passages, and answers
in the row FULL alone, as in FilCo, where no row is read by a model that never saw its kind of context. The filter and
the refiner learn from the first 1,000 in one pass, and begin where the first generator ended (ours): it has learned
where in a passage an answer stands, which they are to copy.
"""

from __future__ import annotations

import argparse
import functools
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import blendfilter as bf
from blendfilter.asking import TaskWording
from blendfilter.errors import one_line
from blendfilter.files import json_line, json_rows, write_whole
from blendfilter.filters.silver import SilverFilter
from blendfilter.oracles.measures import can_label, strinc
from blendfilter.retrieval.precomputed import Precomputed
from blendfilter.statistics import interval, paired_bootstrap

HELD_BACK, TAUGHT, GENERATOR = 300, 1000, 2000
"""Questions of the table, of filter and refiner, and of the generator; a curve has an eighth of these and so on."""
READS = {"generator": "silver,psg", "full": "full"}
"""What each generator learns to answer from."""
SEED = 1
LEARNING = ["--learning-rate", "5e-4", "--batch-size", "8", "--seed", str(SEED)]
"""For a small model and a thousand questions, with one epoch; the papers' 5e-5, three epochs and batches of 32 are for
a hundred thousand."""
STEPS = 200
ALIGNING = ["--demos", "none", "--learning-rate", "2e-5", "--batch-size", "4", "--max-target-tokens", "64"]
"""Small batches of short texts: four questions a step, which two cores sample, answer and learn from in seconds."""


class Row(NamedTuple):
    """A filter, the model of its calls where it has one, the generator (None: that of filtered contexts), the hits."""

    filter: bf.Filter
    filter_lm: str | None = None
    lm: str | None = None
    hits: str = "hits"


class Learning:
    """The files of one `--runs` folder, and what makes each."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.runs = given, given.runs
        self.sizes = {"generator": halved(given.generator), "context": halved(given.train)}
        whole = {"generator": given.generator, "full": given.generator, "context": given.train}
        fewer = [(part, size) for part, sizes in self.sizes.items() for size in sizes[1:]]

        def training(models: Iterable[tuple[str, int]]) -> dict[str, Callable[[], None]]:
            return {f"train-{part}/{size}": partial(self.train, part, size) for part, size in models}

        self.parts: dict[str, Callable[[], None]] = {
            "questions": self.questions,
            "silver": self.silver,
            **training(whole.items()),
            "synthesis/train": partial(self.synthesis, "train"),
            "synthesis/test": partial(self.synthesis, "test"),
            "synthesis/test, from 1": partial(self.synthesis, "test", "bider-from-1", "--lambda-min-from", 1),
            "train-bider": partial(self.train, "refiner", given.train),
            "align-bider": self.align,
            **{f"rows/{name}": partial(self.row, name) for name in self.rows},
            **training(fewer),
            **{f"curve/{name}": partial(self.row, name) for name in self.curve},
            "table": self.table,
        }

    # ---- data

    def questions(self) -> None:
        """The questions of both sides, and three passages for each."""
        source = self.given.data / "nq" / "dev_gold.jsonl.gz"
        rows = [row for row in _lines(source) if can_label("strinc", row["golden_answers"])]
        passages = {
            passage.id: passage
            for name in ("nq_gold", "wiki18_retrieved")
            for passage in bf.read_corpus(self.given.data / "corpus" / f"{name}.jsonl.gz")
        }
        by_text = {_key(passage.title, passage.text): passage for passage in passages.values()}
        random.Random(SEED).shuffle(rows)
        gold = [
            by_text[_key(each["title"], "".join(each["sentences"]))]
            for each in (r["metadata"]["context"][0] for r in rows)
        ]
        held_back = {passage.id for passage in gold[: self.given.test]}
        apart = [at for at in range(self.given.test, len(rows)) if gold[at].id not in held_back]
        apart = apart[: max(self.given.generator, self.given.train)]
        found = bf.BM25.build(list(passages.values())).search([row["question"] for row in rows], 3)
        hits = []
        for at in [*range(self.given.test), *apart]:
            three = [gold[at], *[hit for hit in found[at] if hit.id != gold[at].id][:2]]
            random.Random(rows[at]["id"]).shuffle(three)
            hits.append(_hits(rows[at]["question"], three))
        for name, places in (("test", range(self.given.test)), ("train", apart)):
            _write(self.runs / f"{name}.jsonl", [rows[at] for at in places])
        _write(self.runs / "hits.jsonl", hits)
        _write(self.runs / "gold.jsonl", (_hits(rows[at]["question"], [gold[at]]) for at in range(self.given.test)))

    def silver(self) -> None:
        """What STRINC chooses: the targets of FilCo's filter, and the SILVER row."""
        for name in ("train", "test"):
            self._blendfilter(
                "silver", "nq", "--data", self.runs / f"{name}.jsonl", "--retrieved", self.runs / "hits.jsonl", "-k", 3,
                "--measure", "strinc", "--out", self.runs / "silver" / f"{name}-strinc.jsonl",
            )  # fmt: skip

    def synthesis(self, name: str, measure: str = "bider", *more: object) -> None:
        """What BIDER's synthesis keeps, cleaned by the scores of the generator that reads the rest."""
        self._blendfilter(
            "silver", "nq", "--data", self.runs / f"{name}.jsonl", "--retrieved", self.runs / "hits.jsonl", "-k", 3,
            "--measure", "bider", "--encoder", self.given.encoder, "--nli", self.given.nli,
            "--lm", self.named(self.model("generator")), "--out", self.runs / "silver" / f"{name}-{measure}.jsonl",
            "--limit", self.given.train, "--demos", "none", *more,
        )  # fmt: skip

    # ---- training

    def model(self, part: str, size: int | None = None) -> Path:
        """Where the trained `part` is."""
        most = self.given.generator if part in ("generator", "full") else self.given.train
        return Path(self.runs / "models" / f"{part}-{size or most}")

    def named(self, model: object) -> str:
        """A model of a folder, as it is asked."""
        size = self.given.batch_size
        return f"hf/{model}?dtype={self.given.dtype}" + (f"&batch_size={size}" if size else "")

    def train(self, part: str, size: int) -> None:
        """--epochs passes over the first `size` questions: a generator, a filter or a refiner."""
        base, measure = self.model("generator"), "strinc"
        what: list[object] = ["filco", "--part", "context"]
        if part in READS:
            base, what = self.given.base, ["filco", "--part", "generator", "--reads", READS[part]]
        elif part == "refiner":
            what, measure = ["bider"], "bider"
        self._blendfilter(
            "train", *what, "--base", base, "--silver", self.runs / "silver" / f"train-{measure}.jsonl",
            "--limit", size, "--exclude", self.runs / "test.jsonl", "--out", self.model(part, size), *LEARNING,
            "--epochs", self.given.epochs, "--precision", self.given.precision,
        )  # fmt: skip

    def align(self) -> None:
        """The refiner, towards what the generator answers better from."""
        self._blendfilter(
            "train", "bider", "--align", "--base", self.model("refiner"),
            "--silver", self.runs / "silver" / "train-bider.jsonl", "--reader", self.named(self.model("generator")),
            "--steps", self.given.steps, "--seed", SEED, "--out", self.model("aligned"), *ALIGNING,
        )  # fmt: skip

    # ---- rows

    @cached_property
    def rows(self) -> dict[str, Callable[[], Row]]:
        """What each row of the table is, made when it is run."""
        rows: dict[str, Callable[[], Row]] = {
            "gold passage, untrained": lambda: Row(bf.FullFilter(), lm=str(self.given.base), hits="gold"),
            "gold passage": lambda: Row(bf.FullFilter(), hits="gold"),
            "FULL": lambda: Row(bf.FullFilter(), lm=str(self.model("full"))),
            "FULL, read by the generator of the rest": lambda: Row(bf.FullFilter()),
            "PSG": lambda: Row(bf.PassageFilter(1)),
            "BM25 sentence": lambda: Row(bf.SentenceFilter(1)),
            "embedding sentence": lambda: Row(bf.SentenceFilter(1, by="embedding", model=str(self.given.encoder))),
            "FILCO, prompted": lambda: Row(bf.FilCoFilter(), filter_lm=self.named(self.given.base)),
        }
        return rows | {
            f"FILCO, trained on {self.given.train}": self._filco(self.given.train),
            "SILVER": lambda: Row(self._silver("strinc")),
            "BIDER, synthesised": lambda: Row(self._silver("bider")),
            "BIDER, synthesised, lambda_min from round 1": lambda: Row(self._silver("bider-from-1")),
            "BIDER, distilled": lambda: Row(bf.BIDERFilter(self.named(self.model("refiner")))),
            "BIDER, aligned": lambda: Row(bf.BIDERFilter(self.named(self.model("aligned")))),
        }

    @cached_property
    def curve(self) -> dict[str, Callable[[], Row]]:
        """Rows of filters that learned from fewer questions, and of SILVER read by generators that did."""
        rows = {f"FILCO, trained on {size}": self._filco(size) for size in self.sizes["context"][1:]}
        for size in self.sizes["generator"][1:]:
            rows[f"SILVER, its generator trained on {size}"] = self._fewer(size)
        return rows

    def _fewer(self, size: int) -> Callable[[], Row]:
        return lambda: Row(self._silver("strinc"), lm=str(self.model("generator", size)))

    def _filco(self, size: int) -> Callable[[], Row]:
        return lambda: Row(bf.TrainedFilCoFilter(self.named(self.model("context", size))))

    def _silver(self, measure: str) -> bf.Filter:
        return SilverFilter(self.runs / "silver" / f"test-{measure}.jsonl")

    def row(self, name: str) -> None:
        """One run over the questions that were held back."""
        folder = self._folder(name)
        if (folder / "metrics.json").exists():
            return
        row, resumed = (self.rows | self.curve)[name](), folder.exists()
        hits = Precomputed(self.runs / f"{row.hits}.jsonl")
        method = bf.Direct(hits, k=3, filter=row.filter, task=TaskWording.of("nq").with_demos("none"))
        lm, questions = self._connected(row.lm or str(self.model("generator"))), bf.load("nq", self.runs / "test.jsonl")
        at_once = {"concurrency": size} if (size := self.given.batch_size) else {}
        began = time.monotonic()
        bf.evaluate(method, questions, lm=lm, filter_lm=row.filter_lm, run=folder, name=name, progress=False, **at_once)
        if not resumed:  # else they would be a part of the seconds
            _write(folder / "seconds.jsonl", [{"seconds": time.monotonic() - began}])

    def _folder(self, name: str) -> Path:
        return Path(self.runs / "rows" / name.replace(", ", "-").replace(" ", "-"))

    @functools.cache  # noqa: B019 - one for the whole process: its weights are loaded once
    def _connected(self, name: str) -> Any:
        return bf.connect(self.named(name))

    def table(self) -> None:
        """What every row came to, as Markdown; each against FULL, question by question."""
        full = self._scores("FULL")
        print("| context | EM | F1 | answer in context | tokens in | of FULL's | EM against FULL | seconds |")
        print("| --- " * 8 + "|")
        for name in [*self.rows, *self.curve]:
            if (scores := self._scores(name)) is None:
                continue
            em, f1, inside = (interval(scores[each], seed=SEED) for each in ("em", "f1", "answer in context"))
            tokens = sum(scores["tokens"]) / len(scores["tokens"])
            share, against = "", ""
            if full is not None and name != "FULL":
                test = paired_bootstrap(full["em"], scores["em"], seed=SEED)
                against = f"{100 * test.difference:+.1f} [{100 * test.low:+.1f}, {100 * test.high:+.1f}]"
                share = f"{sum(scores['tokens']) / sum(full['tokens']):.0%}"
            print(
                f"| {name} | {_percent(em)} | {_percent(f1)} | {_percent(inside)} | {tokens:.0f} | {share} | {against} "
                f"| {self._seconds(name)} |"
            )

    def _scores(self, name: str) -> dict[str, list[float]] | None:
        """EM, F1, whether the context holds the answer, and the tokens that the generator read, for each question."""
        folder = self._folder(name)
        if not (folder / "metrics.json").exists():
            return None
        calls = {}
        for record in _lines(folder / "journal.jsonl"):
            if record.get("kind") == "call":
                calls[record["key"]] = record
        found: dict[str, list[float]] = {"em": [], "f1": [], "answer in context": [], "tokens": []}
        for row in sorted(_lines(folder / "predictions.jsonl"), key=lambda row: row["id"]):
            read = [calls[key] for stage, key in row["calls"] if stage == "direct"][-1]
            context = read["prompt"].rpartition("\nKnowledge:\n")[2].rpartition("\nQuestion:")[0]
            found["em"].append(row["em"])
            found["f1"].append(row["f1"])
            found["answer in context"].append(strinc(context, row["golden_answers"]))
            found["tokens"].append(read["tokens_in"])
        return found

    def _seconds(self, name: str) -> str:
        """Seconds a question: of the whole run, filter and generator; its first search and loading among them."""
        file = self._folder(name) / "seconds.jsonl"
        return f"{next(_lines(file))['seconds'] / self.given.test:.2f}" if file.exists() else "-"

    def _blendfilter(self, *words: object) -> None:
        """One command, shown and run."""
        print("blendfilter", *words, file=sys.stderr)
        command = [sys.executable, "-m", "blendfilter.cli", *map(str, words)]
        if code := subprocess.run(command, check=False).returncode:
            sys.exit(code)


def halved(size: int) -> list[int]:
    """A size and its halves, four or five of them, down to 125 questions at the least."""
    return [size >> times for times in range(5) if not times or size >> times >= 125]


def _key(title: str, text: str) -> tuple[str, str]:
    return title.strip().casefold(), " ".join(text.split()).casefold()[:80]


def _hits(question: str, passages: Iterable[bf.Passage]) -> dict[str, Any]:
    given = [{"id": each.id, "title": each.title, "text": each.text} for each in passages]
    return {"question": question, "passages": given}


def _percent(found: tuple[float, float, float]) -> str:
    value, low, high = (100 * each for each in found)
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    return (row.value for row in json_rows(file))


def _write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, map(json_line, rows))


def main() -> None:
    """Run the parts that are chosen, in their order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wanted = partial(parser.add_argument, type=Path, required=True)
    wanted("--data", help="the folder of questions and corpora")
    wanted("--base", help="the folder of the model that is trained (SmolLM2-135M-Instruct)")
    wanted("--encoder", help="the encoder of embedding-sentence and of BIDER's synthesis")
    wanted("--nli", help="BIDER's entailment model (eval/train_nli.py makes one)")
    parser.add_argument("--runs", type=Path, default=Path("runs/learn"))
    parser.add_argument("--test", type=int, default=HELD_BACK, help="questions held back (300)")
    parser.add_argument("--train", type=int, default=TAUGHT, help="questions that filters are trained on (1000)")
    parser.add_argument("--generator", type=int, default=GENERATOR, help="those of the generator (2000)")
    parser.add_argument("--epochs", type=int, default=1, help="passes of a training over its questions (1)")
    parser.add_argument("--precision", default="float32", help="of training; bf16 is faster on some processors")
    parser.add_argument("--dtype", default="float32", help="of reading and answering; bfloat16 is faster")
    parser.add_argument("--batch-size", type=int, help="replies that are written at a time (8); a GPU writes 64")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of the alignment (200)")
    parser.add_argument("--only", nargs="*", default=[""], help="parts, by their names or how these begin")
    parser.add_argument("--parts", action="store_true", help="list the parts and stop")
    learning = Learning(parser.parse_args())
    only = learning.given.only
    with one_line():  # bad input: what, where and the next move, exit code 2
        for name, part in learning.parts.items():
            if learning.given.parts:
                print(name)
            elif any(name == each or (each not in learning.parts and name.startswith(each)) for each in only):
                part()


if __name__ == "__main__":
    main()
