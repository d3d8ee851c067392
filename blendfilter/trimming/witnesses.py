"""Witnesses: which judged question told which passages apart, in a file that only grows.

CDIT (Ma et al. 2024), section 4, Theorem 1: a judged question that accepts a and rejects b is a witness to the
separation of a and b. In: verdicts as they come (`Writer`). Out: the separations they imply (`Witnesses`).

A file of four verdicts' worth (made up)::

    {"kind":"witnesses","format":1}
    {"kind":"question","id":"5b0c…","text":"Who runs the mill?","by":{"judge":"9f…","mode":"word",…},"at":"2026-…"}
    {"kind":"verdict","question":"5b0c…","passage":"p4","verdict":true,"at":"2026-…"}
    {"kind":"verdict","question":"5b0c…","passage":"p9","verdict":false,"at":"2026-…"}
    {"kind":"closed","question":"5b0c…","passages":["p4","p9"],"at":"2026-…"}
    {"kind":"undone","question":"5b0c…","at":"2026-…"}

Only a closed question counts: half of its verdicts would separate the wrong pairs. An undo is a line, too (a question,
a pair, all), so that the file tells its whole history and what was undone can be judged again.

Why JSON Lines and no database: the store is written by one process, a line at a time, and read whole when an index is
opened. Appending leaves what stands there alone, so a kill tears the last line at most, and a torn line is dropped; a
person can read the file, count it and cut it with a pager; nothing needs to be repaired, locked for reading or
migrated. What a database would add, a look-up without reading all, is not wanted: 100,000 separations open within a
second.

Differs from the paper: it counts witnesses while it runs and keeps none; here each separation names its questions, the
judge, the model and the time, and any of them can be taken back.
"""

from __future__ import annotations

from blendfilter.trimming.lines import NOBODY, By, Judged, Separation, question_id
from blendfilter.trimming.naming import pair_named, question_known
from blendfilter.trimming.state import Witnesses
from blendfilter.trimming.writing import Writer

FILE = "witnesses.jsonl"

__all__ = [
    "FILE", "NOBODY", "By", "Judged", "Separation", "Witnesses", "Writer", "pair_named", "question_id",
    "question_known",
]  # fmt: skip
