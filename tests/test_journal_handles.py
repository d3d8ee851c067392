"""Who holds a journal: a handle that is dropped lets go of it, a process that was forked has none."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import RunLocked
from blendfilter.journal import Journal, digest
from blendfilter.lm.model import connect


def made(name: Any, **fields: Any) -> dict[str, Any]:
    return {"kind": "call", "key": digest(name), **fields}


def in_a_child(work: Any) -> str:
    """What `work` says in a process forked from this one."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read().decode()


def test_a_journal_that_is_dropped_lets_go_of_its_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(made(1))
    gc.disable()  # it must not take a collection: the next cell of a notebook comes at once
    try:
        del journal
        Journal(tmp_path).close()
    finally:
        gc.enable()
    with Journal(tmp_path) as again:
        assert len(again) == 1


def test_a_notebook_cell_run_again_connects_again(tmp_path: Path) -> None:
    """Without a word about the journal of the first time, which nobody can reach any more."""
    lm = connect("offline", journal=tmp_path)
    lm("Question: Where is Orm Pier?\nTopic:")
    del lm
    gc.collect()
    lm = connect("offline", journal=tmp_path)
    assert lm.journal is not None
    assert len(lm.journal) == 1
    lm.journal.close()


def test_a_forked_process_may_not_write(tmp_path: Path) -> None:
    """Two processes would not see each other's records; its parent's lock it holds as well."""
    with Journal(tmp_path) as journal:
        journal.append(made(1, reply="one"))
        said = in_a_child(lambda: str(journal.append(made("child"))))
        assert said.startswith("RunLocked: ")
        assert "opened by the process that this one was forked from: open it anew" in said
        journal.append(made(2, reply="two"))
        assert [record["reply"] for record in journal.records()] == ["one", "two"]
        found = journal.find(digest(2))
        assert found is not None
        assert found["reply"] == "two"
    with Journal(tmp_path, "replay") as journal:
        assert [record["reply"] for record in journal.records()] == ["one", "two"]


def test_what_a_forked_process_drops_stays_open_in_its_parent(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:

        def drop() -> str:
            journal.__del__()
            return str(journal.closed)

        assert in_a_child(drop) == "False"
        with pytest.raises(RunLocked):
            Journal(tmp_path)
        journal.append(made(1))
    assert journal.closed
