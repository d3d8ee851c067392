"""From messages to tokens, through the chat template that a GGUF file carries; what was said stays data.

In: [role, text] rows, or a raw prompt. Out: token ids. A template is code from a file: it runs in llama-cpp-python's
Jinja sandbox. Only the template's own text may become control tokens: a passage that says `<|im_end|>` is read as those
ten characters and ends nobody's turn.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dspy import lm15

from blendfilter.lm.local.loading import native

if TYPE_CHECKING:
    from llama_cpp import Llama

_MARKUP = re.compile(r"[<\[].*[>\]]", re.DOTALL)
_TODAY = datetime.datetime(2024, 7, 26, tzinfo=datetime.UTC)
"""What a template is told that asks for the date: the same prompt every day gets the same reply."""


class Piece(NamedTuple):
    """A stretch of a rendered prompt; `said` where it came in a message, not from the template."""

    text: str
    said: bool


class Wording:
    """How one model is spoken to."""

    def __init__(self, llama: Llama) -> None:
        self._llama = llama
        vocabulary = _Vocabulary(llama)
        self._specials = vocabulary.specials
        self._add_bos, self._bos = vocabulary.add_bos, vocabulary.bos
        self._bos_text, self._eos_text = vocabulary.bos_text, vocabulary.eos_text
        self._render = self._formatter(llama.metadata.get("tokenizer.chat_template"))

    def raw(self, text: str) -> list[int]:
        """The tokens of a prompt that passes no template: all of it is data."""
        return self._begun(self._tokens_of([Piece(text, said=True)]), text)

    def chat(self, rows: Sequence[Sequence[str]], told: Mapping[str, Any] | None = None) -> list[int]:
        """The tokens of a conversation, up to where the model replies; `told` are the template's own switches.

        Raises:
            lm15.InvalidRequestError: the file carries no template, or its template refuses these messages.
        """
        pieces = self._pieces(rows, told or {})
        return self._begun(self._tokens_of(pieces), "".join(piece.text for piece in pieces))

    def _begun(self, tokens: list[int], text: str) -> list[int]:
        bare = not self._add_bos or (self._bos_text and text.startswith(self._bos_text) and tokens[:1] == [self._bos])
        return tokens if bare else [self._bos, *tokens]

    # ---- template

    def _formatter(self, template: str | None) -> Any:
        if template is None:
            return None
        formatter = native("llama_chat_format").Jinja2ChatFormatter(
            template=template, eos_token=self._eos_text, bos_token=self._bos_text
        )
        formatter.strftime_now = _TODAY.strftime
        return formatter

    def _pieces(self, rows: Sequence[Sequence[str]], told: Mapping[str, Any]) -> list[Piece]:
        if self._render is None:
            raise lm15.InvalidRequestError(
                "this model's file carries no chat template: ask it with raw prompts (--endpoint completions)"
            )
        start, end = _marks("".join(text for _, text in rows))
        messages = [{"role": role, "content": _marked(text, start, end)} for role, text in rows]
        try:
            rendered = self._rendered(messages, told)
        except Exception as error:  # noqa: BLE001 - whatever a template from a file raises
            raise lm15.InvalidRequestError(f"this model's chat template refuses the messages: {error}") from None
        return [*_parted(rendered, start, end)]

    def _rendered(self, messages: list[dict[str, str]], told: Mapping[str, Any]) -> str:
        try:
            return str(self._render(messages=messages, **told).prompt)
        except Exception:
            if messages[0]["role"] != "system" or len(messages) == 1:
                raise
        # Templates exist that know no system role (Gemma's): it is said with the first message instead.
        system, first, *others = messages
        joined = {"role": first["role"], "content": f"{system['content']}\n\n{first['content']}"}
        return str(self._render(messages=[joined, *others], **told).prompt)

    # ---- tokens

    def _tokens_of(self, pieces: Sequence[Piece]) -> list[int]:
        """Tokens of the pieces together: as llama.cpp reads the whole text, unless what was said looks like control."""
        text = "".join(piece.text for piece in pieces)
        said = _stretches(pieces)
        if not any(_meet(found, said) for found in _found(text, self._specials)):
            return self._tokenize(text, special=True)
        return [token for part, special in self._cut(text, said) for token in self._tokenize(part, special=special)]

    def _cut(self, text: str, said: Sequence[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
        """The text in parts: the template's control tokens alone, what was said and looks like one in two halves."""
        pattern = re.compile("|".join(map(re.escape, sorted(self._specials, key=len, reverse=True))))
        at = done = 0
        while match := pattern.search(text, at):
            start, end = match.span()
            if _meet((start, end), said):
                yield text[done : start + 1], False
                at = done = start + 1
            else:
                yield text[done:start], False
                yield match.group(), True
                at = done = end
        yield text[done:], False

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        if not text:
            return []
        return self._llama.tokenize(text.encode("utf-8", "replace"), add_bos=False, special=special)


class _Vocabulary:
    """What the vocabulary says of its special tokens."""

    def __init__(self, llama: Llama) -> None:
        c = native("llama_cpp")
        vocabulary = c.llama_model_get_vocab(llama.model)
        self.add_bos = bool(c.llama_vocab_get_add_bos(vocabulary))
        self.bos = int(c.llama_vocab_bos(vocabulary))
        self.specials: list[str] = []
        for token in range(llama.n_vocab()):
            kind = c.llama_vocab_get_attr(vocabulary, token)
            if kind & (c.LLAMA_TOKEN_ATTR_CONTROL | c.LLAMA_TOKEN_ATTR_USER_DEFINED):
                text = c.llama_vocab_get_text(vocabulary, token).decode("utf-8", "replace")
                # A vocabulary may list runs of blanks beside its markup: those are text.
                if text and (kind & c.LLAMA_TOKEN_ATTR_CONTROL or _MARKUP.fullmatch(text)):
                    self.specials.append(text)
        self.bos_text, self.eos_text = (
            "" if token < 0 else c.llama_vocab_get_text(vocabulary, token).decode("utf-8", "replace")
            for token in (self.bos, int(c.llama_vocab_eos(vocabulary)))
        )


def _marks(text: str) -> tuple[str, str]:
    """Two strings of private-use characters that the text does not hold, whichever of them it does hold.

    They spell the text's own digest, which no text can contain, and a template that changes case leaves them alone.
    """
    digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()[:16]
    own = "".join(chr(0xE000 + byte) for byte in digest)
    return f"\ue100{own}", f"\ue101{own}"


def _marked(text: str, start: str, end: str) -> str:
    """`text` between marks; white space at its ends stays outside, where a template may trim it."""
    inner = text.strip()
    before, _, after = text.partition(inner) if inner else (text, "", "")
    return f"{before}{start}{inner}{end}{after}"


def _parted(rendered: str, start: str, end: str) -> Iterator[Piece]:
    said = False
    for part in re.split(f"({start}|{end})", rendered):
        if part in (start, end):
            said = part == start
        elif part:
            yield Piece(part, said)


def _stretches(pieces: Sequence[Piece]) -> list[tuple[int, int]]:
    """Where in the whole text the pieces that were said lie."""
    at, stretches = 0, []
    for piece in pieces:
        if piece.said:
            stretches.append((at, at + len(piece.text)))
        at += len(piece.text)
    return stretches


def _found(text: str, names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Each place of each name in the text, those that overlap included."""
    for name in names:
        at = text.find(name)
        while at >= 0:
            yield at, at + len(name)
            at = text.find(name, at + 1)


def _meet(span: tuple[int, int], stretches: Sequence[tuple[int, int]]) -> bool:
    return any(start < span[1] and span[0] < end for start, end in stretches)
