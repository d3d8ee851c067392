"""The one writer of a witnesses file: a line is appended and flushed before it counts.

In: verdicts, closed questions, what is undone. Out: lines at the end of the file, and the state after them.

No kill loses what was written: the system holds it. A power cut may, so the file is synced to the disk where something
is undone, and where the writer ends. Not where a question closes: that waits some milliseconds for the disk while other
questions' calls are in flight, and all it could save can be had again from the journal of calls, without a call. An
undo could be had again from nowhere.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blendfilter.append_only import AppendOnly
from blendfilter.errors import BadArgument, CannotWrite
from blendfilter.trimming import lines
from blendfilter.trimming.lines import NOBODY, By, question_id, text_of
from blendfilter.trimming.naming import pair_known, question_known
from blendfilter.trimming.replaying import BEGINS, FIRST, not_a_line, replay
from blendfilter.trimming.state import Witnesses


class Writer:
    """An open witnesses file; threads may share it. `witnesses` is the state after all that was written.

    A torn last line, left by a kill, is cut off when the next one is written.

    Raises:
        RunLocked: another writer is at work. BadData: the file is damaged. CannotWrite: the system refuses a line (a
        full disk); nothing of it stays.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.witnesses = Witnesses()
        self._lock = threading.Lock()
        self._unsynced = False
        self._log = _opened(self.path)
        try:
            replay((line for _, line in self._log.lines()), self.path, self.witnesses.apply)
        except BaseException:
            self._log.close()
            raise

    def verdict(self, question: str, passage_id: str, verdict: bool | None, by: By) -> None:
        """One passage's verdict for `question` (its text). Where another judge had begun, `by` begins anew.

        Raises `BadArgument` where the question is closed: it is undone first.
        """
        name = question_id(question)
        if not isinstance(passage_id, str) or not (verdict is None or isinstance(verdict, bool)):
            raise BadArgument(f"a verdict on passage {passage_id!r} is True, False or None, got {verdict!r}")
        with self._lock:
            self._check_open(name, question)
            records = [lines.verdict_on(name, passage_id, verdict)]
            if self.witnesses.judge_of(name) != by:
                records.insert(0, lines.taken_up(question, by))
            self._append(records)

    def close(self, question: str, retrieved: Sequence[str], by: By = NOBODY) -> None:
        """The question (its text) is judged: its verdicts count from here on. `retrieved` are ids in rank order.

        `by` is only needed where nothing was retrieved. Raises `BadArgument`: a passage without a verdict, one named
        twice, a question that is closed.
        """
        name = question_id(question)
        with self._lock:
            self._check_open(name, question)
            verdicts = self.witnesses.half(name)
            for at, passage in enumerate(retrieved):
                if passage not in verdicts:
                    raise BadArgument(f"passage '{passage}' has no verdict for '{text_of(question)}': judge it first")
                if passage in retrieved[:at]:
                    raise BadArgument(f"passage '{passage}' was retrieved twice for '{text_of(question)}'")
            records = [lines.closed(name, retrieved)]
            if self.witnesses.judge_of(name) is None:
                records.insert(0, lines.taken_up(question, by))
            self._append(records)

    def undo_question(self, question: str) -> None:
        """Take back what a question (its id or text) says, closed or not. Raises `UnknownName`."""
        with self._lock:
            self._append([lines.undone_question(question_known(self.witnesses, question))], sync=True)

    def undo_pair(self, a: str, b: str) -> None:
        """Take back all witnesses of a pair so far; later questions may witness it anew. Raises `UnknownName`."""
        with self._lock:
            self._append([lines.undone_pair(*pair_known(self.witnesses, a, b))], sync=True)

    def undo_all(self) -> int:
        """Take back everything; how many questions that were. Nothing is written where nothing is there."""
        with self._lock:
            known = len(self.witnesses.judged) + len(self.witnesses.halves)
            if known:
                self._append([lines.undone_all()], sync=True)
            return known

    def close_file(self) -> None:
        """Sync the file, and release it and the lock. Raises `CannotWrite` where the disk refuses to take it."""
        try:
            if not self._log.closed and self._unsynced:
                self._log.sync()
        except OSError as error:
            why = error.strerror or error
            raise CannotWrite(f"{self.path} may not be whole on the disk ({why}): look after the disk") from error
        finally:
            self._log.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_file()

    def __del__(self) -> None:
        # A notebook's cell run again drops its writer: the lock must not outlive it.
        if hasattr(self, "_log"):
            self._log.close()

    def _check_open(self, name: str, question: str) -> None:
        if self.witnesses.is_judged(name):
            raise BadArgument(f"'{text_of(question)}' is judged already ({name}): undo it first, then judge it again")

    def _append(self, records: Sequence[Mapping[str, Any]], *, sync: bool = False) -> None:
        if self._log.closed:
            raise BadArgument(f"{self.path} is closed and takes no verdicts: open it again")
        first = [] if self._log.end else [lines.first_line()]
        self._log.append(b"".join(map(lines.line_of, [*first, *records])), sync=sync)
        self._unsynced = not sync
        for record in records:
            self.witnesses.apply(record)


def _opened(path: Path) -> AppendOnly:
    busy = (
        "by another trim or by a writer still open in this process: wait for it or close it, or trim into a folder of "
        "your own (--out)"
    )
    try:
        return AppendOnly(
            path, begins=BEGINS, first=FIRST, refuse=lambda at: not_a_line(path, at), contents="verdicts", busy=busy
        )
    except OSError as error:
        why = error.strerror or error
        raise BadArgument(f"{path} cannot be written ({why}): trim into a folder of your own (--out DIR)") from error
