"""Room for thoughts: an engine around an engine, for models that think though their family is not known to.

Thoughts count against a reply's cap, and ids and answers have 32 tokens. A reply that its own thoughts (a part of its
own, tags, reasoning tokens in the usage; a 400 that says so) left empty or cut is asked for once more with
`THINKING_TOKENS` more, as another attempt at the same call. Nothing is learned for other calls: what a call comes to
depends neither on the order in which replies come nor on which process asks. A call's key has the cap that was asked
for; its record says what was added (`room`), that it took two attempts, and what the first one took (`tokens_lost`,
`first`). Where the server refuses a cap that large, the first reply stands. Engines that give a reply room themselves
(`Profile.thinks`) are left alone.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import threading

from blendfilter.dspy_surface import lm15
from blendfilter.lm.attempts import ModelEngine
from blendfilter.lm.budget import reply_cap, tally
from blendfilter.lm.outcome import texts_of
from blendfilter.lm.profiles import THINKING_TOKENS, Profile, split_thinking
from blendfilter.lm.tokens import tokens_of

logger = logging.getLogger(__name__)

_SWITCH = "thinking=False asks it not to; where that was given, its server ignores it. reply_tokens= caps long replies"
_NO_SWITCH = (
    "No switch that turns it off is known: thinking=False sends nothing. Turn it off at its server, or send the "
    "server's own field: in Python connect(…, extra_body=…). reply_tokens= caps long replies"
)


_NO_ROOM = re.compile(
    r"(?:max_tokens|output limit) (?:or [a-z ]{1,30})?was reached", re.IGNORECASE
)
"""How OpenAI says, in a 400, that the cap was used up before the reply had begun."""


class ThoughtfulEngine:
    """`inner`, which is asked once more, with room, where thoughts left a reply empty or cut.

    Args:
        inner: the engine that calls.
        model, profile: its name, and what is known of its family, for the one notice.
        noticed: whether that was given, shared by the model's copies.
    """

    def __init__(
        self, inner: ModelEngine, model: str, profile: Profile, noticed: threading.Event
    ) -> None:
        self.inner, self.model, self.profile, self.noticed = inner, model, profile, noticed

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The response, with its room as ``provider_data["room"]``. Raises: as `inner` does."""
        config = request.config
        first: lm15.Response | lm15.LM15Error
        try:
            first = await self.inner.complete(request)
        except lm15.InvalidRequestError as error:
            if _NO_ROOM.search(str(error)) is None or self._has_room(request):
                raise
            first = error
        else:
            if self._has_room(request) or not thinks(first):
                return first
        if not self.noticed.is_set():
            self.noticed.set()
            logger.warning(
                "%s thinks before it replies: a reply that its thoughts leave empty or cut is asked for once more, "
                "with %s tokens more. thinking=True (or reasoning='low') gives every reply that room at once, which "
                "saves the second call. %s",
                self.model,
                f"{THINKING_TOKENS:,}",
                _SWITCH if self.profile.switch else _NO_SWITCH,
            )
        account, lost = tally(), 0
        if isinstance(first, lm15.Response):
            if first.finish_reason != "length" and _spoken(first):
                return first
            account.first, lost = first, tokens_of(first)
            account.lost += lost
        more = dataclasses.replace(
            config, max_tokens=(config.max_tokens or 0) + THINKING_TOKENS
        )
        try:
            reply = await self.inner.complete(dataclasses.replace(request, config=more))
        except lm15.InvalidRequestError as error:
            if error.status not in (None, 400, 413, 422):
                raise
        else:
            data = {**(reply.provider_data or {}), "room": THINKING_TOKENS}
            return dataclasses.replace(reply, provider_data=data)
        # the first reply stands: none of it is lost
        account.first = None
        account.lost -= lost
        if isinstance(first, lm15.LM15Error):
            raise first
        return first

    def reply_cap(self, request: lm15.Request) -> int | None:
        """Tokens that the reply of one attempt has at the most; None: it is sent without a cap."""
        return reply_cap(self.inner, request)

    def _has_room(self, request: lm15.Request) -> bool:
        wanted, cap = request.config.max_tokens, self.reply_cap(request)
        return wanted is None or cap is None or cap > wanted


def thinks(response: lm15.Response) -> bool:
    """Whether there are thoughts in a response: in a part of their own, in tags, or in its usage."""
    _, apart = texts_of(response)
    texts = response.message.parts_of(lm15.TextPart)
    in_tags = any(split_thinking(part.text)[0] for part in texts)
    return bool(response.usage.reasoning_tokens or apart or in_tags)


def _spoken(response: lm15.Response) -> bool:
    parts = [part for part in response.message.parts if not isinstance(part, lm15.ThinkingPart)]
    return any(
        not isinstance(part, lm15.TextPart) or split_thinking(part.text)[1].strip()
        for part in parts
    )
