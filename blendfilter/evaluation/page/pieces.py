"""Texts stored once: prompts repeat their instructions, demonstrations and passages hundreds of times.

In: texts. Out: a table of pieces, and for each text the numbers of its pieces; joined, they are the text again.
"""

from __future__ import annotations

import re

_LINE = re.compile(r"(knowledge \d+: )?(?:([^|]*?)( \| ))?(.*)", re.DOTALL)
"""A passage in a prompt: its number, its title, the bar, its text; so a passage's own pieces serve every prompt."""


class Pieces:
    """The table. Piece 0 is the line break.

    >>> pieces = Pieces()
    >>> pieces.of("knowledge 0: Ormskerry | A town."), pieces.of("Ormskerry | A town.")
    ([1, 2, 3, 4], [2, 3, 4])
    >>> pieces.table
    ['\\n', 'knowledge 0: ', 'Ormskerry', ' | ', 'A town.']
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"\n": 0}

    @property
    def table(self) -> list[str]:
        """All pieces, by number."""
        return list(self._numbers)

    def one(self, text: str) -> int:
        """The number of `text` as one piece."""
        return self._numbers.setdefault(text, len(self._numbers))

    def of(self, text: str) -> list[int]:
        """The numbers of the pieces of `text`."""
        numbers: list[int] = []
        for place, line in enumerate(text.split("\n")):
            if place:
                numbers.append(0)
            match = _LINE.fullmatch(line)
            parts = match.groups() if match else (line,)
            numbers += [self.one(part) for part in parts if part]
        return numbers
