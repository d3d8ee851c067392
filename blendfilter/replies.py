"""Reading short replies: an answer, yes or no, true or false, a claim's label, an option's letter. Pure functions.

Models wrap what they answer: in fences, JSON, tags, ``\\boxed{}``, quotation marks, a repeated cue ("The correct answer
is …"), the tokens of their own chat template. `unwrapped` takes the wrapping off, and each reader is a table of
what then counts. What a reply quotes never decides (`blendfilter.quoting`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from blendfilter.quoting import LONGEST_REPLY, own_lines, own_words
from blendfilter.text import LETTERS

# --- what stands around a reply ---------------------------------------------------------------------------------------

_CHAT_TOKENS = re.compile(r"</?s>|<\|[\w/]*\|?>|<(?:end_of_turn|start_of_turn|eos|bos|pad|im_end)>", re.IGNORECASE)
_INSIDE = tuple(
    re.compile(pattern, re.DOTALL | re.IGNORECASE)
    for pattern in (
        r"\A\s*(?:```|~~~)\w*[^\S\n]*\n(?P<inside>.*?)(?:\n\s*(?:```|~~~).*)?\Z",
        r"\A\s*\\text\w*\{(?P<inside>[^{}]*)\}\s*\Z",
        r"\A\s*\$+(?P<inside>[^$]*)\$+\.?\s*\Z",
    )
)
# At the beginning of a line, behind a cue at most: what stands inside a sentence may be a passage's.
_MARKED = re.compile(
    r"^[ \t]{0,8}(?:(?:(?:so|thus|hence|therefore),?[ ])?(?:(?:the|my)[ ])?(?:(?:final|correct|short)[ ])?"
    r"(?:answer|verdict)(?:[ ]is)?[ ]?:?[ ]?|it[ ]is[ ])?"
    r"(?:<(?P<tag>(?:final_)?answer|verdict)>(?P<tagged>[^<]*+)|\${0,2}\\boxed\{(?P<boxed>(?:[^{}]|\{[^{}]*+\})*+)\})",
    re.IGNORECASE | re.MULTILINE,
)
_FIELDS = ("answer", "final_answer", "short_answer", "verdict", "label", "choice", "result")
_LABEL_OF_REPLY = r"(?:(?:final|short|correct|right|best|my|the)\s+){0,3}(?:answer|topic|verdict|letter)"
_CUE = re.compile(
    r"(?:[#>]+\s*)?[*_]{0,3}(?:[-•]\s+)?"
    rf"(?:(?:(?:final|short|correct|best|my)\s+)*(?:answer|topic|verdict|letter)\s*(?:\([^()\n]*\)\s*)?[*_]{{0,3}}\s*(?::|=|\s[-–—](?=\s))"
    r"|(?:(?:so|thus|hence|therefore|based on [^,:\n]{1,60}|according to [^,:\n]{1,60}|given [^,:\n]{1,60}),?\s+)?"
    rf"{_LABEL_OF_REPLY}(?:\s+to\s+[^:\n]{{1,80}}?)?\s+(?:is|would be|should be)\b(?!\s+(?:that|in|not|to|of)\b):?)"
    r"[*_]{0,3}\s*",
    re.IGNORECASE,
)
_HEADING = re.compile(r"(?:#+\s*[*_]{0,3}|[*_]{2,3})?(?:(?:final|short)\s+)?(?:answer|topic)[*_]{0,3}", re.IGNORECASE)
_ANNOUNCES = re.compile(r"[^\n]*\w[^\n]*:[*_]{0,3}")
_BOLD = re.compile(r"([*_]{1,3})(?P<inner>[^*]+)\1(?P<dot>\.?)")
_BULLET = re.compile(r"\A(?:[-•>]|\*(?=\s))\s+")
_QUOTED = re.compile(r"(?:\"([^\"]+)\"|“([^“”]+)”|„([^„“”]+)[“”]|'([^']+)'|‘([^‘’]+)’|`+([^`]+)`+)\.?")
_QUOTES = re.compile("[>\"“„«‘'`~]")
_A_CUE = re.compile(r"\b(?:answer|topic)\b", re.IGNORECASE)
_OPENS_A_FENCE = re.compile(r"\s*+(?:```|~~~)\w*+\s*+")
# Only the cue itself: "The answer is that …" is a sentence.
_REPEATED_CUE = re.compile(
    r"\A(?:[#>]+\s*)?[*_]{0,3}(?:(?:(?:final|short)\s+)?answer|response)\s*(?:\([^()\n]*\)\s*)?[*_]{0,3}\s*"
    r"(?::[*_]{0,3}\s*|$)",
    re.IGNORECASE | re.MULTILINE,
)


def unwrapped(reply: str) -> str:
    r"""A reply without fences, JSON, tags or ``\boxed{}`` around it, and without tokens of a chat template.

    >>> unwrapped('{"answer": "Tolm"}'), unwrapped("<answer>Tolm</answer></s>"), unwrapped(r"\boxed{\text{Tolm}}.")
    ('Tolm', 'Tolm', 'Tolm')
    """
    text = _CHAT_TOKENS.sub("", reply[:LONGEST_REPLY]).strip()
    if "\\boxed" in text or "<" in text:
        marked = [*_MARKED.finditer(own_words(text).words)][-1:]  # the last one counts
        text = text[slice(*marked[0].span(marked[0].lastgroup or 0))].strip() if marked else text
    for pattern in _INSIDE:
        if found := pattern.match(text):
            text = found["inside"].strip()
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            return text
        values = [fields[name] for name in _FIELDS if name in fields] if isinstance(fields, dict) else []
        if values and isinstance(values[0], str | int | float):
            return str(values[0]).strip()
    return text


def short_reply(reply: str) -> str:
    """What a reply of one or a few words says: its first line, or the line that concludes, without what is around it.

    >>> short_reply("**Answer:** Tolm"), short_reply("Here it is:\\nTolm\\nA port."), short_reply("**Tolm**.")
    ('Tolm', 'Tolm', 'Tolm.')
    """
    text = unwrapped(reply)
    lines = text.splitlines()
    if _QUOTES.search(text) and _A_CUE.search(text):
        words = own_words(text).words
        if words is not text and len(_A_CUE.findall(words)) < len(_A_CUE.findall(text)):
            # What a passage concludes is quoted; where the reply concludes as well, it is the last time that counts.
            lines = [line.strip() for line in "\n".join(own_lines(text, words)).splitlines() if line.strip()] or lines
            lines = lines[next((at for at in range(len(lines) - 1, -1, -1) if _CUE.match(lines[at])), 0) :]
    lines = [line.strip() for line in lines if line.strip() and not _OPENS_A_FENCE.fullmatch(line)]
    if len(lines) > 1:
        if not _CUE.match(lines[0]) and (_HEADING.fullmatch(lines[0]) or _ANNOUNCES.fullmatch(lines[0])):
            del lines[0]
        elif not _CUE.match(lines[0]) and len(lines[0].split()) > 3:
            lines = [line for line in lines[1:] if _CUE.match(line)][-1:] or lines
    return next((value for line in lines if (value := _bare(line))), "")


def _bare(line: str) -> str:
    """A line without a repeated cue, a bullet, and marks or quotation marks around all of it."""
    cue = _CUE.match(line)
    rest = _BULLET.sub("", line[cue.end() :] if cue else line)
    if cue and "*" in cue[0] and not rest.startswith("*"):
        rest = rest.rstrip("*")  # "**Answer: X**"
    if (bold := _BOLD.fullmatch(rest)) is not None:
        rest = bold["inner"] + bold["dot"]
    elif rest.count("**") == 1:
        rest = rest.removeprefix("**").removesuffix("**")
    quoted = _QUOTED.fullmatch(rest)
    return next(filter(None, quoted.groups())).strip() if quoted else rest.strip()


def whole_reply(reply: str) -> str:
    """What a reply of several sentences says: all of it, line breaks too, without a repeated cue before it.

    >>> whole_reply("**Answer:** Tolm is a port.\\nIt has a light.\\n")
    'Tolm is a port.\\nIt has a light.'
    """
    return _REPEATED_CUE.sub("", _CHAT_TOKENS.sub("", reply).strip()).strip()


# --- yes or no, true or false -----------------------------------------------------------------------------------------

_NO_DOUBT = re.compile(r"\b(?:there\s+is\s+)?(?:no|without(?:\s+(?:a|any))?)\s+(?:doubt|question)\b", re.IGNORECASE)
_DECIDES = re.compile(
    r"(?P<no_no>\b(?:not|n't)\s+(?:false|untrue|incorrect|wrong)\b)"
    r"|(?P<not_yes>\b(?:not|never)\s+(?:\w+\s+)?(?:true|correct|right|likely)\b|n't\s+(?:true|correct|right|likely)\b)"
    r"|\A\W*(?:(?:probably|certainly|definitely|surely|absolutely|of course|most likely)\W+)?"
    r"(?P<refuses>not(?=\W*\Z|\s+(?:at all|really|likely|necessarily)\b)|never\b|unlikely\b|n(?=\W*\Z))"
    r"|(?P<no>\b(?:no|nope|nah|false|untrue)\b|(?:\A\W*|\b(?:is|that's|it's)\s+)incorrect\b)"
    r"|(?P<yes>\b(?:yes|yep|yeah|yup|true)\b|(?:\A\W*|\b(?:is|that's|it's)\s+)correct\b|\A\W*y(?=\W*\Z))"
    r"|\A\W*(?P<agrees>certainly|definitely|of course|absolutely|surely|indeed)(?=\W*\Z)",
    re.IGNORECASE,
)


def verdict(text: str) -> str | None:
    """The first yes or no of a reply, in whatever words ("it is not true"); None where it has neither.

    >>> verdict("So the answer is: False."), verdict("There is no doubt: yes"), verdict("Nobody knows")
    ('no', 'yes', None)
    """
    found = _DECIDES.search(_NO_DOUBT.sub(" ", unwrapped(text).replace("’", "'")))
    return None if found is None else "no" if found.lastgroup in ("not_yes", "refuses", "no") else "yes"


_MARKS = r"[\s\"'“”„‘’«»`*_#>(){}\[\]-]*+"
_VERDICT = re.compile(
    rf"{_MARKS}(?:(?:(?:the|my|final)\s+)*(?:verdict|answer|judge?ment)\s*(?:\([^()]*\)\s*)?{_MARKS}(?::|\bis\b:?){_MARKS}"
    rf"|the passage is (?:consistent|inconsistent) with the question{_MARKS}:{_MARKS})?"
    r"(?P<word>true|false)\b(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_GOES_ON = re.compile(r"(?P<marks>[\"'”’»`*_)\]}]*)(?:\s*[.!:;,(\n]|\s[-–—]\s|\s*\Z)", re.DOTALL)
_TAKES_BACK = re.compile(r"[\W_]*(?:but|although|though|or|if|and|in part|partly|actually|however)\b", re.IGNORECASE)


def true_or_false(reply: str) -> bool | None:
    """The verdict that opens a reply: True or False, with reasons behind it at most; None where it is unclear.

    >>> true_or_false("**True.**"), true_or_false("False. It is another town."), true_or_false("Not true")
    (True, False, None)
    >>> true_or_false("True, but the year differs"), true_or_false("True or false?")
    (None, None)
    """
    found = _VERDICT.fullmatch(unwrapped(reply))
    if not found or "/" in found["rest"][:2] or not _GOES_ON.match(found["rest"]) or _TAKES_BACK.match(found["rest"]):
        return None
    value = found["word"].casefold() == "true"
    rest = own_words(found["rest"]).words
    return None if re.search(rf"\b{'false' if value else 'true'}\b", rest, re.IGNORECASE) or "?" in rest[:3] else value


# --- labels of claims, letters of options -----------------------------------------------------------------------------

LABELS = ("SUPPORTS", "REFUTES", "NOT ENOUGH INFO")
"""The labels of a claim, as FEVER's files write them."""
TRUTHS = ("true", "false")
"""The labels of a claim, as PubHealth's files write them."""
_LABEL = re.compile(
    r"(?<![\w-])(?:(?P<NEI>not[ _]?enough[ _]?info(?:rmation)?)|(?P<SUPPORTS>support(?:s|ed)?)|refute[sd]?)"
    r"(?![\w-])(?P<none>\s+(?:by\s+)?(?:no|none|nothing|neither|nobody)\b)?",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|nothing|nobody|neither|nor|cannot|without|hardly|barely|fail(?:s|ed)?|unable|whether|if"
    r"|doubt(?:s|ed|ful)?|unlikely|unclear|uncertain)\b"
    r"|n['’]t\b",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(r"(?<=[.!?;:])\s|\n|\b(?:but|so|therefore|thus|hence)\b", re.IGNORECASE)
_UNTRUE = re.compile(r"(?<!may )(?<!might )(?<!could )(?:\bnot|n't)\s+(?:\w+\s+)?true\b|\buntrue\b", re.IGNORECASE)
_NOT_FALSE = re.compile(r"\bnot\s+(?:\w+\s+)?false\b", re.IGNORECASE)
_TRUTH = re.compile(r"(?<![\w-])(?:true|false)(?![\w-])", re.IGNORECASE)
_HEDGED = re.compile(
    r"\b(?:(?:may|might|could)\s+(?:\w+\s+)?be|part(?:ly|ially)|half|possibly|perhaps|maybe)\s+$", re.IGNORECASE
)
_HEDGE = 80
"""Characters before a word in which it may be hedged."""
_REPLIED = re.compile(r"\W{0,3}(yes|no)\b(?=[^\w\s]|\s*$)", re.IGNORECASE)


def label(text: str) -> str | None:
    """The one label that a reply gives to a claim, None where it gives none or several.

    The labels' own words count ("support" and "supported" too, not "supporting"), and else whether the claim is called
    true or false. A label is not read where a word before it in its clause denies or doubts it ("not supported"),
    where what follows it empties it ("supported by nothing"), or in a question.

    >>> label("The claim is refuted."), label("It is not supported."), label("SUPPORTS, not REFUTES"), label("Untrue")
    ('REFUTES', None, 'SUPPORTS', 'REFUTES')
    """
    text = unwrapped(text)
    found = {
        predicted for clause in _CLAUSE_END.split(text) if not clause.endswith("?") for predicted in _labels_in(clause)
    }
    if not _LABEL.search(text):
        found = {LABELS[TRUTHS.index(called)] for called in _truths_in(text)}
    return found.pop() if len(found) == 1 else None


def _labels_in(clause: str) -> Iterator[str]:
    denied = _denied_from(clause)
    for match in _LABEL.finditer(clause):
        if match["NEI"]:
            yield LABELS[2]
        elif not match["none"] and match.start() < denied:
            yield LABELS[0] if match["SUPPORTS"] else LABELS[1]


def _denied_from(clause: str) -> float:
    """Where the first word that denies or doubts ends; what stands behind it in its clause does not count."""
    denies = _NEGATION.search(clause)
    return denies.end() if denies else float("inf")


def truth(text: str) -> str | None:
    """Whether a reply calls a claim true or false; None where it says neither, or both.

    Read as strictly as a label: a word that is doubted or in a question says nothing. A yes or no that opens the reply
    counts as true or false.

    >>> truth("The claim is false."), truth("It is not true."), truth("No, it is false."), truth("True or false?")
    ('false', 'false', 'false', None)
    """
    text = unwrapped(text)
    opening = _REPLIED.match(text)
    found = {TRUTHS[opening[1].lower() == "no"]} if opening else set()
    found |= _truths_in(text[opening.end() if opening else 0 :])
    return found.pop() if len(found) == 1 else None


def _truths_in(text: str) -> set[str]:
    found = set()
    for clause in _CLAUSE_END.split(_NOT_FALSE.sub(" true", _UNTRUE.sub(" false", text.replace("’", "'")))):
        denied = _denied_from(clause)
        for match in () if clause.endswith("?") else _TRUTH.finditer(clause):
            before = clause[max(0, match.start() - _HEDGE) : match.start()]
            if match.start() < denied and not _HEDGED.search(before):
                found.add(match[0].lower())
    return found


_ALONE = re.compile(rf"\W{{0,4}}([{LETTERS}{LETTERS.lower()}])\W{{0,4}}")
_NO_ARTICLE = r"(?!\s+(?!(?:because|since|is|and|or)\b)[^\W\d_])"
"""Behind the letter A: not where it is the article of a word."""
_ONE = rf"[{LETTERS[1:]}]|{LETTERS[0]}{_NO_ARTICLE}"
_APART = r"(?!\w|['’]\w)"
_LETTER = re.compile(
    rf"\(([{LETTERS}{LETTERS.lower()}])\)"  # (B)
    rf"|^\W{{0,4}}([{LETTERS}])(?:[).:]|\*\*|$)(?=\W*(?:\s|$))"  # B. and B) and B: where a line begins, or all of it
    rf"|^\W{{0,4}}([{LETTERS}])(?=,?\s+(?:because|since)\b|\s+[-–—]\s)"  # B, because and B - ice, where a line begins
    rf"|^\W{{0,4}}([{LETTERS[1:]}])(?=\s+[a-z])(?!\s+(?:or|and)\b)"  # B ice, where a line begins
    rf"|(?<![\w'’-])({_ONE})(?=\s+is\s+(?:the\s+)?(?:correct|right|best)\b)"  # B is correct
    rf"|\b(?i:it\s+is|it['’]s|choose|pick|select)\s+(?:\w+\s+)?({_ONE})(?=\W*$)"  # it is B
    r"|\b(?i:answer|option|choice|letter)(?:\s++(?:is|would be|should be))?(?:\s++|\s*+:\s++)[^\w\s(]{0,3}"
    rf"(?:({_ONE}){_APART}|([{LETTERS.lower()}])(?=\W*$))"  # the answer is B
)
_DENIED = re.compile(r"\W{0,4}\s*(?:is|are|was|were|would be|cannot be)\s+(?:not|wrong|incorrect|false)\b", re.I)
_LINE_OR_SENTENCE = re.compile(r"(?<=[.!?;])\s|\n|\bbut\b", re.IGNORECASE)


def choice(text: str) -> str | None:
    """The one option that a reply chooses, by its letter; None where it chooses none or several.

    Read strictly: the letter alone, in brackets, with a mark or a word behind it where a line begins ("B. ice", "B
    ice"; not "A ice", which has the article), behind "answer", "option", "letter", "it is" or "I choose", or called
    correct; a capital anywhere else is a word of the reply. A letter that is denied counts for nothing.

    >>> choice("B"), choice("The answer is (B)."), choice("B) ice"), choice("A or B"), choice("A stone sinks.")
    ('B', 'B', 'B', None, None)
    """
    text = unwrapped(text)
    if alone := _ALONE.fullmatch(text):
        return alone[1].upper()
    found = set()
    for clause in _LINE_OR_SENTENCE.split(text):
        denied = _denied_from(clause)
        for match in () if clause.endswith("?") else _LETTER.finditer(clause):
            if match.start() < denied and not _DENIED.match(clause, match.end()):
                found.add(next(filter(None, match.groups())).upper())
    return found.pop() if len(found) == 1 else None
