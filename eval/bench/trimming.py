"""What trimming does to a search: the overlay, cut links (lists closed up, or with holes), and deletion, side by side.

    OMP_NUM_THREADS=1 python eval/bench/trimming.py [--thresholds 1 2 3] [--m 32] [--seed 0] [--json FILE]

The world is simulated. A cluster of 20 passages holds two facets, ten of each, that lie as near to one another as to
themselves, like a radio turned on and one turned off; a question asks for one facet of one cluster, and the oracle
accepts that facet and rejects all else. Four questions a cluster (a third of them for the second facet) are searched
for in the bare HNSW index and judged; their witnesses reach a threshold of 1, 2 or 3 for some pairs. Then three groups
of other questions are asked: `near` (a judged one, worded anew), `new` (nothing judged is near it) and `turned` (near
a judged one, and for the other facet, which its words alone say). The guard reads words.

`rejected` counts passages in the top 10. `still there` is the share of the rejected ones of the bare top 10, `kept`
that of the accepted ones, that are in the top 10 now. `deletion` leaves out passages that were rejected as often as
the threshold says and more often than accepted. `unreached` are nodes that no walk along the links gets to. A violation
is a pair that reached the threshold, was retrieved together and applies, and did not lose its rejected side: counted
from the definition, not by the overlay. What was cut is saved, reloaded and restored, what was gathered is undone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blendfilter.extras import needed
from blendfilter.retrieval.base import Retriever
from blendfilter.trimming import witnesses
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.witnesses import JudgedQuestion

sys.path.insert(0, str(Path(__file__).parent))

import edges
from trimming_world import Asked, Deleted, Found, World, bare_index, deleted, judge, unreached, world_of

K, NEAR = 10, 0.9
Told = dict[str, Any]


class Row(NamedTuple):
    """One state of the index, measured on one group."""

    state: str
    threshold: int
    group: str
    rejected: float
    accepted: float
    still: float
    kept: float


def top(index: Retriever, asked: Asked) -> Found:
    """The positions of the ten best for each question."""
    return [[int(passage.id) for passage in row] for row in index.find(asked.texts, K)]


class Bench:
    """The bare index with all that the states are measured against."""

    def __init__(self, world: World, m: int = 32) -> None:
        self.world, self.index = world, bare_index(world, m)
        self.found = top(self.index, world.judged)
        self.witnesses = judge(world, self.found)
        self.bare = self.all(self.index)
        self.rows: list[Row] = []

    def measure(self, state: str, threshold: int, index: Retriever) -> dict[str, Found]:
        """Add a row for each group; what was found."""
        found = self.all(index)
        for group in found:
            self.rows.append(self._row(state, threshold, group, found[group]))
        return found

    def all(self, index: Retriever) -> dict[str, Found]:
        """What every group finds there."""
        return {group: top(index, asked) for group, asked in self.world.held.items()}

    def as_before(self, index: Retriever) -> Told:
        """Whether a state that was taken back is the bare index again."""
        same = self.all(index) == self.bare
        return {"taken back: same results": same, "same fingerprint": index.fingerprint == self.index.fingerprint}

    def _row(self, state: str, threshold: int, group: str, found: Found) -> Row:
        asked, counts = self.world.held[group], np.zeros(6)
        for at, (before, after) in enumerate(zip(self.bare[group], found, strict=True)):
            for passage in after:
                counts[int(self.world.accepts(asked, at, passage))] += 1
            for passage in before:
                right = int(self.world.accepts(asked, at, passage))
                counts[2 + right] += 1
                counts[4 + right] += passage in after
        rejected, accepted = counts[:2] / len(found)
        still, kept = counts[4:] / np.maximum(1, counts[2:4])
        return Row(state, threshold, group, *map(float, (rejected, accepted, still, kept)))

    def applies(self, group: str, at: int, guard: bool) -> list[JudgedQuestion]:
        """The judged questions that apply to that one: from 0.9 up, and (guard) said alike."""
        held, judged = self.world.held[group], self.world.judged
        near = np.flatnonzero(judged.vectors @ held.vectors[at] >= NEAR)
        alike = [each for each in near if not guard or judged.facet[each] == held.facet[at]]
        return [self.witnesses.judged[witnesses.question_id(judged.texts[each])] for each in alike]

    def trimmed_right(self, found: dict[str, Found], threshold: int, guard: bool) -> dict[str, int]:
        """Rejected sides that had to go, how many did not, and questions to which nothing applies that changed."""
        due = violations = changed = 0
        for group, results in found.items():
            for at, (before, after) in enumerate(zip(self.bare[group], results, strict=True)):
                here = {str(passage) for passage in before}
                near = [each for each in self.applies(group, at, guard) if here & {*each.accepted, *each.rejected}]
                if not near:
                    changed += before != after
                    continue
                votes = {name: sum((name in e.accepted) - (name in e.rejected) for e in near) for name in here}
                known = {name for each in near for name in (*each.accepted, *each.rejected)}
                gone = {
                    b
                    for a in here
                    for b in here
                    if votes[a] > 0 and (votes[b] < 0 or b not in known)
                    and len(self.witnesses.witnesses_for(a, b)) >= threshold
                }  # fmt: skip
                due += len(gone)
                violations += len(gone & {str(passage) for passage in after})
        return {"had to go": due, "violations": violations, "changed where nothing applies": changed}


def overlay(bench: Bench, threshold: int, name: str, guard: bool) -> Told:
    """The overlay, its guard against questions that say the opposite on or off."""
    found = bench.measure(name, threshold, Trimmed(bench.index, bench.witnesses, threshold=threshold, guard=guard))
    return {"state": name, "threshold": threshold, **bench.trimmed_right(found, threshold, guard)}


def cut(bench: Bench, threshold: int, name: str, holes: bool) -> Told:
    """Links cut, saved, reloaded and restored. Of most pairs no link is there to be cut."""
    library, graph = needed("faiss", "dense", "this benchmark"), edges.graph_of(bench.index)
    pairs = edges.positions(bench.index, [each.pair for each in bench.witnesses.separated(threshold, one_way=False)])
    done = edges.cut(graph, pairs, holes=holes)
    found = bench.measure(name, threshold, edges.over(bench.index, graph))
    with tempfile.TemporaryDirectory() as folder:
        library.write_index(graph, str(Path(folder) / "cut.faiss"))
        again = library.read_index(str(Path(folder) / "cut.faiss"))
    told = {
        "state": name, "threshold": threshold, "pairs": len(pairs),
        "of them linked": len({frozenset(link[:2]) for link in done.removed}),
        "links cut, each way": len(done.removed), "spared": len(done.spared), "nodes unreached": unreached(again),
        "reloaded: same results": bench.all(edges.over(bench.index, again)) == found,
    }  # fmt: skip
    edges.restore(again, done)
    restored = edges.over(bench.index, again)
    return {**told, **bench.as_before(restored)}


def run(bench: Bench, thresholds: list[int]) -> Iterator[Told]:
    """All states, and what is to be said of each."""
    bench.measure("bare", 0, bench.index)
    for threshold in thresholds:
        yield overlay(bench, threshold, "overlay", guard=True)
        yield overlay(bench, threshold, "overlay, no guard", guard=False)
        yield cut(bench, threshold, "links cut", holes=False)
        yield cut(bench, threshold, "links cut, holes", holes=True)
        gone = deleted(bench.world, bench.found, threshold)
        bench.measure("deletion", threshold, Deleted(bench.index, gone))
        yield {"state": "deletion", "threshold": threshold, "passages left out": len(gone)}
    bench.witnesses.apply(witnesses.undone_line())
    undone = Trimmed(bench.index, bench.witnesses, threshold=thresholds[0])
    bench.measure("overlay, undone", 0, undone)
    yield {"state": "overlay, undone", "threshold": thresholds[0], **bench.as_before(undone)}


def table(rows: list[Row]) -> str:
    """A line a state, three figures a group."""
    groups = list(dict.fromkeys(row.group for row in rows))
    head = ["state", "threshold"]
    head += [f"{group}: {what}" for group in groups for what in ("rejected", "still there", "kept")]
    lines_of = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for start in range(0, len(rows), len(groups)):
        some = rows[start : start + len(groups)]
        cells = [some[0].state, str(some[0].threshold or "")]
        cells += [cell for row in some for cell in (f"{row.rejected:.2f}", f"{row.still:.1%}", f"{row.kept:.1%}")]
        lines_of.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines_of)


def main() -> None:
    """Simulate, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--held", type=int, default=1000, help="questions in each group")
    parser.add_argument("--thresholds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--m", type=int, default=32, help="links a node; twice as many on the lowest level")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="the same figures, for a program")
    asked = parser.parse_args()
    if asked.json and asked.json.exists():
        parser.error(f"{asked.json} is there already: name another file")
    needed("faiss", "dense", "this benchmark").omp_set_num_threads(1)  # threads link nodes as they come
    started = time.perf_counter()
    bench = Bench(world_of(asked.passages, asked.held, asked.seed), asked.m)
    sizes = f"{asked.passages:,} passages, {len(bench.found):,} judged questions"
    print(f"{sizes}, {bench.witnesses.separations():,} pairs with a witness", flush=True)
    said = list(run(bench, asked.thresholds))
    print(f"\n{table(bench.rows)}\n")
    for each in said:
        figures = [f"{what} {value}" for what, value in each.items() if what not in ("state", "threshold")]
        print(f"{each['state']} at {each['threshold']}: {'; '.join(figures)}")
    print(f"{time.perf_counter() - started:.0f} s in all")
    if asked.json:
        told = {"asked": {**vars(asked), "json": None}, "rows": [row._asdict() for row in bench.rows], "said": said}
        asked.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
