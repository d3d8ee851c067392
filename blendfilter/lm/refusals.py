"""A reply that declines: "I'm sorry, but I can't help with that." Told by how it opens; pure text.

In: a reply. Out: whether it is a refusal, which is an event of its own. One that says it does not know, or that its
knowledge does not tell, answers the question and is no refusal.
"""

from __future__ import annotations

import re

_CANNOT = r"(?:can(?:no|')t|can not|won't|will not|(?:am|'m) (?:unable|not able|not allowed|not comfortable)(?: to)?)"
_HELP = (
    r"(?:(?:help|assist)(?:ing)?(?: you)?(?: (?:with|in|on)\b|\s*[.,;!]|\s*$)"
    r"|comply\b|(?:fulfil+|complete|process|respond to|continue with|engage (?:with|in)|discuss)(?:ing)? "
    r"(?:this|that|these|those|your|such)\b|(?:provide|share|give)(?:ing)? (?:that|this|such|you with that)\b)"
)
_REFUSAL = re.compile(
    r"\W{0,8}(?:(?:i'?m|i am) (?:very |so |really )?(?:sorry|afraid)\W{1,4}|sorry\W{1,4}|(?:i )?apologi[sz]e\W{1,4}"
    r"|unfortunately\W{1,4}|as an? (?:ai|artificial|large|language)[^.\n]{0,40}?,\s?|but |however,? |that )*"
    rf"i(?: {_CANNOT}|'m (?:unable|not able|not allowed|not comfortable)(?: to)?)"
    rf" (?:really |actually )?{_HELP}",
    re.IGNORECASE,
)


def is_refusal(reply: str) -> bool:
    """Whether a reply declines to do what was asked.

    >>> is_refusal("I'm sorry, but I can't help with that."), is_refusal("I cannot tell from the knowledge who it was.")
    (True, False)
    >>> is_refusal("I Can't Help Myself is a song of 1965.")
    False
    """
    return _REFUSAL.match(reply[:_OPENING].replace("’", "'")) is not None


_OPENING = 300
"""Characters of a reply that are looked at."""
