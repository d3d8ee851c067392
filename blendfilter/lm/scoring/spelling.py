"""Which of a server's tokens are the continuation's, told from their texts alone.

In: the text that was sent, the texts of the tokens that came back, and where the prompt ends. Out: the range of the
continuation's tokens by the rule of `seam`, or None where the texts do not tell: never a guess.

Servers differ. A character cut into several tokens comes back as empty texts (llama-cpp-python), as U+FFFD (vLLM) or
as `bytes:\\xe2` (OpenAI); a mark that begins every text is echoed by some; `▁` stands for a space in others; behind the
text may follow a token that the server had to generate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_LONGEST_FIRST = 64
"""Characters that a first token of unknown text may hold."""


class _Place(NamedTuple):
    """Where a token stands in the text; `cut`: it is one of several that share the characters from start to end."""

    start: int
    end: int
    cut: bool = False


class Told(NamedTuple):
    """Tokens as a server tells them.

    Attributes:
        words: their texts; None is one that the server did not tell.
        logprobs: None where there is none.
        offsets: how many whole characters stand before each, where the server says so.
        tail: how many at the end were generated, where the server says so.
    """

    words: Sequence[str | None]
    logprobs: Sequence[float | None] = ()
    offsets: Sequence[int] = ()
    tail: int | None = None


def continuation(text: str, told: Told, seam: int) -> range | None:
    """The indices of the tokens that end behind `seam`, those of the continuation.

    Where `text` is prompt + continuation, and `seam` the prompt's length.

    >>> continuation("Answer: Paris", Told(["Answer", ":", " Paris", "."]), 8)
    range(2, 3)
    """
    for skipped, start in _beginnings(text, told.words):
        rest = told._replace(words=told.words[skipped:], offsets=told.offsets[skipped:])
        places = _spelled(text, rest, start)
        if places is not None:
            inside = _continues(text, places, seam)
            return None if inside is None else range(skipped + inside, skipped + len(places))
    return None


def _beginnings(text: str, words: Sequence[str | None]) -> list[tuple[int, int]]:
    """How the text may begin: (tokens to leave out, characters that they hold), likeliest first."""
    if not words:
        return []
    if words[0] is None:  # a mark, or the text's first token
        return [(1, size) for size in range(min(_LONGEST_FIRST, len(text)) + 1)]
    return [(0, 0), (1, 0)]


def _spelled(text: str, told: Told, at: int) -> list[_Place] | None:
    """Each token's place, as far as the text goes, or None where they do not spell it from `at` to its end."""
    places: list[_Place] = []
    cut: list[str] = []
    for word in told.words:
        if at == len(text) and not cut:
            break
        if word is None:
            return None
        after = at if not cut else _after_cut(text, at, cut, word)
        size = _match(text, after, word) if after is not None else 0
        if after is not None and size:
            places += [_Place(at, after, cut=True)] * len(cut)
            places.append(_Place(after, after + size))
            at, cut = after + size, []
        elif _is_cut(word):
            cut.append(word)
        elif cut:
            break  # a generated one, if the text ends in the cut characters
        else:
            return None
    if cut:
        own = _own(text, cut, len(places), told)
        if own < 1 or not 1 <= len(text) - at <= _most(cut):
            return None
        places += [_Place(at, len(text), cut=True)] * own
        at = len(text)
    return places if at == len(text) and len(told.words) - len(places) <= max(1, told.tail or 0) else None


def _own(text: str, cut: Sequence[str], before: int, told: Told) -> int:
    """How many of the cut tokens at the text's end are its own; those generated behind them may look the same."""
    if any(cut):
        return 0 if told.tail is None else min(len(cut), len(told.words) - told.tail - before)
    # Empty texts come from llama-cpp-python, which counts whole characters, and generates on until one is whole.
    return sum(offset < len(text) for offset in told.offsets[before : before + len(cut)])


def _match(text: str, at: int, word: str) -> int:
    """How many characters of `text` from `at` on are `word`."""
    for form in dict.fromkeys((word, word.replace("▁", " "))):
        if form and text.startswith(form, at):
            return len(form)
        if at == 0 and len(form) > 1 and form[0] == " " and text.startswith(form[1:]):
            return len(form) - 1
    return 0


def _is_cut(word: str) -> bool:
    return not word or "\ufffd" in word or word.startswith(("bytes:\\x", "<0x"))


def _after_cut(text: str, at: int, cut: Sequence[str], word: str) -> int | None:
    """Where the text goes on with `word` behind the characters, one at least, that the tokens in `cut` make up."""
    found = (at + size for size in range(1, _most(cut) + 1) if _match(text, at + size, word))
    return next(found, None)


def _most(cut: Sequence[str]) -> int:
    """How many characters cut tokens can make up."""
    return sum(max(1, len(each)) for each in cut)


def _continues(text: str, places: Sequence[_Place], seam: int) -> int | None:
    """The index of the first token behind the seam, or None where a cut character hides which one that is."""
    first = next((i for i, place in enumerate(places) if place.end > seam), len(places))
    if first == len(places) or not places[first].cut:
        return first
    start, end, _ = places[first]
    if start < seam:
        return None
    # The token before may carry the character's first byte unseen, unless each byte has a token of its own here.
    pieces = sum(place == places[first] for place in places)
    return first if pieces == len(text[start:end].encode()) else None
