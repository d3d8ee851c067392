"""What `blendfilter trim` does without a model: show a passage's separations, take something back, export, sum up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blendfilter.cli.console import show
from blendfilter.errors import BadArgument, BlendFilterError

if TYPE_CHECKING:
    from blendfilter.records import Passage
    from blendfilter.retrieval.base import Retriever
    from blendfilter.trimming.folder import TrimFolder
    from blendfilter.trimming.witnesses import Witnesses, WitnessWriter

ALL = "ALL"
"""What `--undo` takes for everything."""


def is_overlay(index: str, folder: TrimFolder) -> bool:
    """Whether what was named is the overlay itself, and not its index."""
    return folder.place == Path(index)


def show_passage(folder: TrimFolder, index: str, passage: str, allow_hosts: Sequence[str] = ()) -> None:
    """What a passage is separated from, by whom and when."""
    from blendfilter.trimming.summary import passage_text, separations_of
    from blendfilter.trimming.witnesses import Witnesses

    witnesses = Witnesses.read(folder.witnesses)
    separations_of(witnesses, passage)  # an unknown id is told before an index is opened, which may take a while
    texts, note = _found(folder, index, witnesses, passage, allow_hosts)
    show(passage_text(folder, witnesses, passage, texts, [note] if note else []).rstrip("\n"))


def named_index(folder: TrimFolder, index: str, allow_hosts: Sequence[str]) -> Retriever:
    """The index that was named, or, where its overlay was, the one that this names."""
    from blendfilter.retrieval.indexes import open_index
    from blendfilter.trimming.folder import open_base

    if is_overlay(index, folder):
        return open_base(folder.base, folder.place, allow_hosts=allow_hosts)
    return open_index(index, allow_hosts=allow_hosts)


def _found(
    folder: TrimFolder, index: str, witnesses: Witnesses, passage: str, allow_hosts: Sequence[str]
) -> tuple[dict[str, Passage], str]:
    """The passages as the index finds them now, and what is to be said where it does not find this one."""
    from blendfilter.trimming.folder import location_of
    from blendfilter.trimming.summary import found_again

    try:
        searched = named_index(folder, index, allow_hosts)
    except BlendFilterError as error:
        return {}, f"the index is not there to look its text up ({error})"
    if searched.fingerprint != folder.base_fingerprint:
        return {}, (
            f"{location_of(searched) or index} is another index now ({searched.fingerprint}, these witnesses are of "
            f"{folder.base_fingerprint}): they are not applied to it, and the passage may be gone"
        )
    texts = found_again(searched, folder.k, witnesses, passage)
    return texts, "" if passage in texts else "the index does not find this passage any more: it is gone from it"


def take_back(folder: TrimFolder, undo: list[str]) -> None:
    """Undo questions, pairs, or ALL."""
    from blendfilter.trimming.witnesses import Witnesses, WitnessWriter

    with WitnessWriter(folder.witnesses) as writer:
        wanted = {_named(writer.witnesses, name): name for name in undo}  # a wrong name among them: none is undone
        for meant, name in wanted.items():
            show(f"undone: {_taken_back(writer, name, meant)}")
    _state_after(folder, Witnesses.read(folder.witnesses))


def _named(witnesses: Witnesses, name: str) -> str | tuple[str, str] | None:
    """The question (its id) or the pair that is meant, None for all of it. Raises: UnknownName, BadArgument."""
    from blendfilter.errors import UnknownName
    from blendfilter.trimming.witnesses import pair_named, question_known

    if name == ALL:
        return None
    try:
        return question_known(witnesses, name)
    except UnknownName:
        if name.strip().upper() == ALL:
            return None
        if "," not in name:
            raise
    return pair_named(witnesses, name)


def _taken_back(writer: WitnessWriter, name: str, meant: str | tuple[str, str] | None) -> str:
    """Take one thing back, unless another one took it along; what it was, in words."""
    from blendfilter.trimming.summary import counted

    state = writer.witnesses
    if meant is None:
        return f"all of it, {counted(writer.undo_all(), 'question')}"
    if isinstance(meant, tuple):
        count = len(state.witnesses_of(*meant))
        if count:
            writer.undo_pair(*meant)
        return f"the separation of {meant[0]} and {meant[1]} ({counted(count, 'witness', 'witnesses')})"
    text = state.judged[meant].question if meant in state.judged else state.halves.get(meant, name)
    if meant in state.judged or meant in state.halves:
        writer.undo_question(meant)
    return f"question {meant}, {text!r}"


def _state_after(folder: TrimFolder, witnesses: Witnesses) -> None:
    """What is left once something was taken back."""
    from blendfilter.trimming.summary import counted

    reached = sum(1 for _ in witnesses.separated(folder.threshold, one_way=folder.one_way))
    left = "" if reached else ": it answers as the bare index does"
    show(
        f"left: {counted(len(witnesses.judged), 'question')}, {counted(witnesses.separations(), 'separation')}, "
        f"{reached:,} at the threshold of {folder.threshold}{left}"
    )


def export_to(folder: TrimFolder, out: str, *, overwrite: bool = False) -> None:
    """Write the separations to a file, or to the screen."""
    from blendfilter.trimming.summary import STDOUT, counted, export
    from blendfilter.trimming.witnesses import Witnesses

    if out != STDOUT and Path(out).suffix.lower() not in (".jsonl", ".csv"):
        raise BadArgument(f"--export {out} is no kind of file: name one that ends in .jsonl or .csv, or - (the screen)")
    count = export(
        Witnesses.read(folder.witnesses), out, threshold=folder.threshold, one_way=folder.one_way, overwrite=overwrite
    )
    if out != STDOUT:
        show(f"{out}: {counted(count, 'row')}, one for each witness of each separation")


def show_state(folder: TrimFolder) -> None:
    """An overlay in short."""
    from blendfilter.trimming.summary import state_text
    from blendfilter.trimming.witnesses import Witnesses

    show(state_text(folder, Witnesses.read(folder.witnesses)).rstrip("\n"))
