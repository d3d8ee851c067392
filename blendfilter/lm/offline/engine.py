"""The `offline` reader as an engine: no model, no key, no download; the same reply to the same prompt, always.

It shows the pipeline, not its quality: `offline.read` finds the passages in the rendered prompt, scores sentences by
overlap and copies out an answer span. Tokens are counted as words between white space.
"""

from __future__ import annotations

from dspy import lm15

from blendfilter.lm.journaled import prompt_of
from blendfilter.lm.offline import read


class OfflineEngine:
    """Answers every request from its own prompt."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The reader's reply; never fails."""
        prompt = prompt_of(request)
        text = prompt if isinstance(prompt, str) else "\n\n".join(said for _, said in prompt)
        reply = read(text)
        return lm15.Response(
            id=None,
            model="offline",
            message=lm15.Message(role="assistant", parts=(lm15.TextPart(text=reply),)),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=len(text.split()), output_tokens=len(reply.split())),
        )
