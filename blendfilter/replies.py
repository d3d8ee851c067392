"""Reading short replies: an answer, yes or no, true or false, a claim's label, an option's letter. Pure functions.

Models wrap what they answer: in fences, JSON, tags, ``\\boxed{}``, quotation marks, a repeated cue ("The correct answer
is …"), the tokens of their own chat template. `unwrapped` takes the wrapping off, and each reader is a table of
what then counts. What a reply quotes never decides (`blendfilter.quoting`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from blendfilter.quoting import (
    LONGEST_REPLY,
    names_a_speaker,
    own_lines,
    own_words,
    unreported,
    without_reports,
)
from blendfilter.text import LETTERS

# --- what stands around a reply ---------------------------------------------------------------------------------------

_CHAT_TOKENS = re.compile(
    r"</?s>|<\|[\w/]*\|?>|<(?:end_of_turn|start_of_turn|eos|bos|pad|im_end)>|\[/?INST\]",
    re.IGNORECASE,
)
_TURN_ENDS = re.compile(
    r"</s>|<\|(?:endoftext|end_of_text|im_end|eot_id|end)\|>|<(?:end_of_turn|eos|im_end)>",
    re.IGNORECASE,
)
_ROLE = re.compile(
    r"\A\s*(?:<s>\s*)?(?:(?:<\|(?:im_start|start_header_id)\|>|<start_of_turn>)\s*(?:assistant|model)\b|<\|assistant\|>"
    r"|assistant[^\S\n]*\n)(?:<\|end_header_id\|>)?",
    re.IGNORECASE,
)
_INSIDE = tuple(
    re.compile(pattern, re.DOTALL | re.IGNORECASE)
    for pattern in (
        r"\A\s*(?:```|~~~)\w*[^\S\n]*\n(?P<inside>.*?)(?:\n[^\S\n]*+(?:```|~~~).*)?\Z",
        r"\A\s*\\text\w*\{(?P<inside>[^{}]*)\}\s*\Z",
    )
)
# At the beginning of a line, behind a cue at most: what stands inside a sentence may be a passage's.
_MARKED = re.compile(
    r"^[ \t]{0,8}(?:(?:(?:so|thus|hence|therefore),?[ ])?(?:(?:the|my)[ ])?(?:(?:final|correct|short)[ ])?"
    r"(?:answer|verdict)(?:[ ]is)?[ ]?:?[ ]?|it[ ]is[ ])?"
    r"(?:<(?P<tag>(?:final_)?answer|response|verdict)>(?P<tagged>[^<]*+)"
    r"|(?:\${0,2}|\\[(\[][ ]?)\\boxed\{(?P<boxed>(?:[^{}]|\{[^{}]*+\})*+)\})",
    re.IGNORECASE | re.MULTILINE,
)
_FIELDS = ("answer", "final_answer", "short_answer", "verdict", "label", "choice", "result")
_LABEL_OF_REPLY = r"(?:(?:final|short|correct|right|best|my|the)\s+){0,3}(?:answer|topic|verdict|letter|best\s+guess)"
_LEADS_TO_IT = (
    r"(?:(?:so|thus|hence|therefore|ok(?:ay)?|sure|in conclusion|based on [^,:\n]{1,60}|according to [^,:\n]{1,60}"
    r"|given [^,:\n]{1,60}|since [^,:\n]{1,80}|[^\n]{1,80}, but),?\s+"
    r"|(?:i\s+(?:believe|think|would\s+say)|the\s+(?:reasoning|context)\s+(?:concludes|shows))(?:\s+that)?\s+)?"
)
"""What may stand before "the answer is"."""
_CUE = re.compile(
    r"(?:[#>]+\s*)?[*_]{0,3}(?:[-•]\s++)?"
    rf"(?:(?:(?:final|short|correct|best|my)\s+)*(?:answer|topic|verdict|letter|(?<=best )guess)\s*+"
    r"(?:\([^()\n]*\)\s*+)?[*_]{0,3}\s*+(?::|=|(?<=\s)[-–—](?=\s))"
    r"|(?:output|response|result)[*_]{0,3}\s*:"
    rf"|{_LEADS_TO_IT}"
    rf"{_LABEL_OF_REPLY}(?:\s++to\s++[^:\n]{{1,80}}?)?(?<!\s)\s++(?:is|would be|should be)\b"
    r"(?!\s+(?:that|in|not|to|of)\b):?)"
    r"[*_]{0,3}\s*",
    re.IGNORECASE,
)
_FORM = re.compile(
    r"\A(?:\([^()\n]{1,60}\)\s*:|\(?one or a few words\)?\s*:?)[*_]{0,3}\s*(?=\S)",
    re.IGNORECASE,
)
"""The reminder of the form that stands in a cue, repeated without the cue."""
_WITH_REASONS = re.compile(
    r"(?:,\s+(?:because|since)\b|[.;]\s+(?:explanation|reason(?:ing)?)\s*:|(?<!\s)\s+\(best guess\)).*\Z",
    re.IGNORECASE,
)
"""What an answer behind its cue is followed by."""
_CALLED_SO = re.compile(
    r"\A(?!(?:it|this|that|which)\b)([^\n]{1,60}?)(?<!\s)(?:\s++is\s+(?:the|my)\s+(?:(?:final|correct|short|best)\s+)?(?:answer|guess)\.?"
    r"|\s++\(best guess\)\.?)\Z",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    r"[*_#\s]{0,4}(?:(?:next )?question|context|knowledge|q)(?:\s\d{1,3})?[*_]{0,3}:",
    re.IGNORECASE,
)
"""A part of a prompt: an echo where the reply begins, and else the beginning of an invented example."""
_POLITE = re.compile(
    r"(?:sure(?: thing)?|ok(?:ay)?|alright|great(?: question)?|got it)[!.,]?", re.IGNORECASE
)

_OPTION = re.compile(rf"\W{{0,4}}[{LETTERS}](?:[).:]|\*\*)\s")
_SENTENCE = re.compile(r"(?:\S+\s+){2,}\S+[.!]|not\s.*", re.IGNORECASE | re.DOTALL)
_HEADING = re.compile(
    r"(?:#+\s*[*_]{0,3}|[*_]{2,3})?(?:(?:final|short)\s+)?(?:answer|topic)[*_]{0,3}",
    re.IGNORECASE,
)
_QUOTED = re.compile(
    r"(?:\"([^\"]+)\"|“([^“”]+)”|„([^„“”]+)[“”]|'([^']+)'|‘([^‘’]+)’|`+([^`]+)`+)\.?"
)

_A_CUE = re.compile(r"\b(?:answer|topic)\b", re.IGNORECASE)
# Only the cue itself: "The answer is that …" is a sentence.
_REPEATED_CUE = re.compile(
    r"\A(?:[#>]+\s*)?[*_]{0,3}(?:(?:(?:final|short)\s+)?answer|response)[^\S\n]*+"
    r"(?:\([^()\n]*\)[^\S\n]*+)?[*_]{0,3}[^\S\n]*+(?::[*_]{0,3}\s*|$)",
    re.IGNORECASE | re.MULTILINE,
)


def unwrapped(reply: str) -> str:
    r"""A reply without fences, JSON, tags or ``\boxed{}`` around it, and without tokens of a chat template.

    >>> unwrapped('{"answer": "Tolm"}'), unwrapped("<answer>Tolm</answer></s>"), unwrapped(r"\boxed{\text{Tolm}}.")
    ('Tolm', 'Tolm', 'Tolm')
    """
    text = without_reports(_one_turn(reply[:LONGEST_REPLY])).strip()
    for marked in [*_MARKED.finditer(own_words(text).words)][-1:]:  # the last one counts
        text = text[slice(*marked.span(marked.lastgroup or 0))].strip()
    for pattern in _INSIDE:
        if found := pattern.match(text):
            text = found["inside"].strip()
    value, rest = _field(text)
    return text if rest or value is None else value


def _one_turn(reply: str) -> str:
    """A reply up to the first token that ends a turn, without the role before it and other tokens of a template."""
    text = _ROLE.sub("", reply)
    turns = (turn for turn in _TURN_ENDS.split(text) if _CHAT_TOKENS.sub("", turn).strip())
    return _CHAT_TOKENS.sub("", next(turns, "")).strip()


def _field(text: str) -> tuple[str | None, str]:
    """What the JSON object at the beginning of a text answers, and what stands behind it."""
    try:
        fields, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None, ""
    if not isinstance(fields, dict):
        return None, ""
    value = next((fields[name] for name in _FIELDS if name in fields), None)
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    return str(value).strip() if isinstance(value, str | int | float) else None, text[
        end:
    ].strip()


def short_reply(reply: str) -> str:
    """What a reply of one or a few words says: its first line, or the line that concludes, without what is around it.

    >>> short_reply("**Answer:** Tolm"), short_reply("Here it is:\\nTolm\\nA port."), short_reply("**Tolm**.")
    ('Tolm', 'Tolm', 'Tolm.')
    """
    text = unwrapped(reply)
    value, rest = _field(text)
    if value is not None and not rest.startswith((",", "{")):
        return value
    words = own_words(text).words
    lines = _stripped(text)
    if re.search("[>\"“„«‘'`~]", text) and len(_A_CUE.findall(words)) < len(
        _A_CUE.findall(text)
    ):
        # What a passage concludes is quoted; where the reply concludes as well, it is the last time that counts.
        lines = _stripped("\n".join(own_lines(text, words))) or lines
        cues = [at for at, line in enumerate(lines) if _CUE.match(line)]
        lines = lines[cues[-1] :] if cues else lines
    return next((value for line in _concluding(lines) if (value := _bare(line))), "")


def _stripped(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def short_reply_so_far(reply: str) -> str:
    """What `short_reply` will begin with, of a reply that is still being written; "" where that is not certain.

    That is up to three words that open it plainly: others may turn out to be a cue, or a sentence around the answer.

    >>> short_reply_so_far("Skerry Light, on Quill"), short_reply_so_far("The answer is "), short_reply_so_far("To")
    ('Skerry Light, on', '', '')
    """
    words = re.match(r"\s*(?:[^\W_][\w,'’.-]*[^\S\n]+){1,3}", reply)
    return "" if words is None or _MAY_OPEN_A_CUE.match(reply) else words[0].strip()


_MAY_OPEN_A_CUE = re.compile(
    r"\s*(?:final|short|correct|right|best|my|the|so|thus|hence|therefore|based|according|given|answers?|topic|verdict"
    r"|letter|output|response|result|here|sure|ok|okay|alright|great|got|next|question|context|knowledge|q|a|an|assistant"
    r"|model|one|it|not)\b",
    re.IGNORECASE,
)
"""Words with which a cue, a courtesy or an echo of the prompt may begin."""


def _concluding(lines: list[str]) -> list[str]:
    """The lines from the one that answers: a cue where there is one, unless a short answer stands before it."""
    echoed = next(
        (at for at, line in enumerate(lines[:-1]) if not _PROMPT.match(line)), len(lines) - 1
    )
    if echoed > 0:
        lines = [re.sub(r"\AA:\s+", "", lines[echoed]), *lines[echoed + 1 :]]
    elif len(lines) > 1 and _POLITE.fullmatch(lines[0]):
        lines = lines[1:]
    invented = next(
        (at for at, line in enumerate(lines[1:], 1) if _PROMPT.match(line)), len(lines)
    )
    lines = lines[:invented]
    if len(lines) < 2 or _CUE.match(lines[0]):
        return lines
    cues = [line for line in lines[1:] if _CUE.match(line)]
    if _OPTION.match(lines[0]) and _OPTION.match(lines[1]):  # all of them, and so none
        return lines[lines.index(cues[-1]) :] if cues else ["; ".join(lines)]
    if _HEADING.fullmatch(lines[0]) or (
        lines[0].rstrip("*_").endswith(":") and re.search(r"\w", lines[0])
    ):
        lines = lines[1:]
    elif not _tells(lines[0]):
        cues = []
    return lines[lines.index(cues[-1]) :] if cues else lines


def _tells(line: str) -> bool:
    """Whether a line is a sentence, not a short answer."""
    return len(line.split()) > 3 or _SENTENCE.fullmatch(line) is not None


def _bare(line: str) -> str:
    """A line without a repeated cue, a bullet, and marks or quotation marks around all of it."""
    cue = _CUE.match(line)
    # words of a title where a cue would have small letters
    if cue and re.search(r"Answers? (?:Is|Would Be|Should Be)\b[^:]*\Z", cue[0]):
        cue = None
    rest = _FORM.sub(
        "", re.sub(r"\A(?:[-•>]|\*(?=\s))\s+", "", line[cue.end() :] if cue else line)
    )
    rest = re.sub(r"</?(?:b|i|em|strong|p|answer|final_answer)>", "", rest, flags=re.IGNORECASE)
    if cue and (again := _CUE.match(rest)):
        rest = rest[again.end() :]

    if (bold := re.fullmatch(r"([*_]{1,3})(?P<inner>[^*]+)\1(?P<dot>\.?)", rest)) is not None:
        rest = bold["inner"] + bold["dot"]
    elif rest.count("**") == 1:
        rest = rest.removeprefix("**").removesuffix("**")
    rest = _WITH_REASONS.sub("", rest) if cue else _CALLED_SO.sub(r"\1", rest)
    quoted = _QUOTED.fullmatch(rest)
    return next(filter(None, quoted.groups())).strip() if quoted else rest.strip()


def whole_reply(reply: str) -> str:
    """What a reply of several sentences says: all of it, line breaks too, without a repeated cue before it.

    >>> whole_reply("**Answer:** Tolm is a port.\\nIt has a light.\\n")
    'Tolm is a port.\\nIt has a light.'
    """
    return _REPEATED_CUE.sub("", _one_turn(reply)).strip()


def whole_reply_so_far(reply: str) -> str:
    """What `whole_reply` will begin with, of a reply that is still being written; "" where that is not certain.

    >>> whole_reply_so_far("Tolm is a port.\\nIt has a li"), whole_reply_so_far("Answer: To")
    ('Tolm is a port.\\nIt has a li', '')
    """
    first, _, rest = reply.lstrip().partition("\n")
    if first[:1].isalnum() and (rest or not _MAY_OPEN_A_CUE.match(f"{first} ")):
        # without the beginning of what may come to be a token of a chat template
        return whole_reply(re.sub(r"[<\[][^>\]]{0,24}\Z", "", reply))
    return ""


# --- yes or no, true or false -----------------------------------------------------------------------------------------

_CLOSED = (
    r"(?:yes|no|true|false|supports|supported|refutes|refuted|not enough info(?:rmation)?)"
)
_EITHER = re.compile(
    r"\([^()\n]{0,60}\b(?:or|/)\s[^()\n]{0,60}\)\s*:?"  # "Answer (Yes or No):"
    rf"|\A\W*(?:the answer is:?\s*)?{_CLOSED}(?:,\s*{_CLOSED})*,?(?:\s*/\s*|\s+or\s+){_CLOSED}\s*:",
    re.IGNORECASE,
)
"""What a reply may be, repeated from the cue."""
_BOTH = re.compile(
    r"\b(?:yes|true)(?:\s*/\s*|\s+(?:or|and|nor)\s+)(?:no|false)\b|\bno(?:\s*/\s*|\s+(?:or|and|nor)\s+)yes\b",
    re.IGNORECASE,
)
_AFTER_NO = (
    r"(?:it|he|she|they|we|this|that|these|those|there|the|a|an|because|since|as|for|his|her|its|their|and|or|if|not"
    r"|never|although|though|when|while|in|at|on|by|according)\b"
)
_THAT_IS = r"\b(?:it|that|this|which|(?:the )?(?:claim|statement|answer))(?:\s+is|'s)\s+"
_DECIDES = re.compile(
    r"(?P<no_no>\b(?:not|n't)\s+(?:false|untrue|incorrect|wrong)\b)"
    r"|(?P<not_yes>\b(?:not|never)\s+(?:(?:at all|really|actually|very|quite)\s+)?(?:true|correct|right|likely)\b"
    r"|n't\s+(?:true|correct|right|likely)\b)"
    r"|\A\W*(?:(?:probably|certainly|definitely|surely|absolutely|of course|most likely)\W+)?"
    r"(?P<refuses>not(?=\W*\Z|\s+(?:at all|really|likely|necessarily)\b)|never\b|hardly\W*\Z|unlikely\b|negative\W*\Z"
    r"|n(?=\W*\Z)|I\s+(?:don't|do\s+not)\s+(?:think|believe)\s+so\b"
    r"|(?:it|he|she|they|that|this)\s+(?:would|did|does|do|is|was|were|are|has|have|had|can|could|will)(?:\s+not|n't)\W*\Z"
    r"|(?:it|he|she|they|that|this)\s+cannot\W*\Z)"
    rf"|(?P<no>\bno\b(?!\.\s?\d)(?!\s+(?!{_AFTER_NO})\w)|\b(?:nope|nah|false|untrue)\b|(?:\A\W*|\b(?:is|that's|it's)\s+)incorrect\b)"
    r"|(?P<yes>\b(?:yes|yep|yeah|yup|true)\b|(?:\A\W*|\b(?:is|that's|it's)\s+)(?:correct|right)\b|\A\W*(?:y|affirmative)(?=\W*\Z)"
    r"|\A\W*I\s+(?:think|believe)\s+so\b)"
    r"|\A\W*(?P<agrees>certainly|definitely|of course|absolutely|surely|indeed)(?=\W*\Z)",
    re.IGNORECASE,
)
_TURNS = re.compile(
    r"\b(?:but|so(?!\W*(?:\Z|[.!?;\n]))|therefore|thus|hence|however|yet)\b|\banswer\W{0,3}(?:is|would be|should be)\b"
    r"|:|(?P<weak>[.!?;]\s|,\s|\n)",
    re.IGNORECASE,
)
_STATED = re.compile(
    rf"{_THAT_IS}(?:not\s+)?(?:true|false|correct|incorrect|untrue)\W*\Z", re.IGNORECASE
)
_DOUBTS = re.compile(
    r"\b(?:whether|if|unclear|may|might|could|part(?:ly|ially)|half|almost|nearly|rarely|sometimes|far from)\b"
    r"|(?:\bnot|n't)\s+(?:entirely|completely|wholly|fully|strictly|always|necessarily)\b",
    re.IGNORECASE,
)


_NEXT_EXAMPLE = re.compile(
    r"\n[^\S\n]*+(?:question|context|passage|claim|knowledge)(?: \d{1,3})?\s*:", re.IGNORECASE
)
"""Where a model goes on with an example of its own."""


def _without_next_example(text: str) -> str:
    """A reply up to the first part of a prompt that it goes on with, unless that is all of it."""
    return _NEXT_EXAMPLE.split(text, 1)[0].rstrip() or text


def verdict(text: str) -> str | None:
    """The yes or no of a reply, in whatever words ("it is not true"); None where it has neither, or both.

    What opens the reply counts, and else what it concludes, behind "but", "so" or a colon. "No" before a noun ("No
    evidence says so, but yes"), questions, doubts and what a passage says decide nothing.

    >>> verdict("So the answer is: False."), verdict("There is no doubt: yes"), verdict("Nobody knows")
    ('no', 'yes', None)
    >>> verdict("No light stood there, so yes."), verdict("Is it true? No."), verdict("Yes and no")
    ('yes', 'no', None)
    """
    text = _without_next_example(unwrapped(text))
    return next(filter(None, map(_yes_or_no, _own_claims(text))), None)


def _own_claims(text: str) -> Iterator[str]:
    """A reply without what it repeats of its cue and what it reports; then with the quotations that may be its own."""
    text = _EITHER.sub(" ", text.replace("’", "'"))
    own = own_words(text)
    yield unreported(own.words)
    if own.announced is not None and not names_a_speaker(own.words):
        yield unreported(own.announced)


def _yes_or_no(text: str) -> str | None:
    opens, concluded, said, stated = None, None, set[str](), set[str]()
    begun = False
    for clause, turned in _clauses(_BOTH.sub(" ", text)):
        found = None if clause.rstrip().endswith("?") else _DECIDES.search(clause)
        if found and not _DOUBTS.search(clause, 0, found.start()):
            value = "no" if found.lastgroup in ("not_yes", "refuses", "no") else "yes"
            if not begun and not re.search(r"\w", clause[: found.start()]):
                opens = value
            concluded = value if turned else concluded
            said.add(value)
            stated |= {value} if _STATED.search(clause) else set()
        begun = begun or (bool(re.search(r"\w", clause)) and not clause.rstrip().endswith("?"))

    if opens:
        return opens if not ({concluded or opens} | stated) - {opens} else None
    return concluded or (said.pop() if len(said) == 1 else None)


def _clauses(text: str) -> Iterator[tuple[str, bool]]:
    """Clauses, each with whether a word or a mark before it announces a conclusion."""
    at, turn = 0, False
    for mark in _TURNS.finditer(text):
        yield text[at : mark.start() + bool(mark["weak"])], turn
        at, turn = mark.end(), mark["weak"] is None
    yield text[at:], turn


_MARKS = r"[\s\"'“”„‘’«»`*_#>(){}\[\]-]*+"
_GOES_ON = r"[\"'”’»`*_)\]}]*(?:\s*[.!:;,(\n]|\s[-–—]\s|\s*\Z)"
_TAKES_BACK = (
    r"[\W_]*(?:(?:only\s+)?(?:in part|part(?:ly|ially)|mostly|largely|somewhat)|to (?:some|a certain) extent"
    r"|but|although|though"
    r"|or|if|and|actually|however|yet|whereas|while|except|unless|apart|only|with regard|as far as"
    r"|for (?:one|the)|wait|no(?=\s*(?:[.,!;]|\Z))"
    r"|not (?:sure|quite|entirely|really))\b"
)
_VERDICT = re.compile(
    rf"{_MARKS}(?:(?:(?:the|my|final)\s+)*(?:verdict|answer|judge?ment)\s*+(?:\([^()]*\)\s*+)?"
    rf"(?:(?<=\s)[-–—]\s|{_MARKS}(?::|=|\bis\b:?)){_MARKS}"
    rf"|(?:final\s+)?verdict[*_]*+[^\S\n]*+\n{_MARKS}|the passage is consistent with the question{_MARKS}:{_MARKS})?"
    rf"(?P<word>true|false)\b(?={_GOES_ON})(?!{_TAKES_BACK}).*",
    re.IGNORECASE | re.DOTALL,
)
_WAVERS = re.compile(
    r"\b(?:wait|on second thoughts?|on reflection|actually|unsure"
    r"|not (?:quite |entirely |really )?(?:sure|certain|clear))\b",
    re.IGNORECASE,
)
_TURNS_BACK = re.compile(
    r"\b(?:but|however|yet|although|though|except|unless|whereas)\b", re.IGNORECASE
)
_DIFFERS = re.compile(
    r"\b(?:differs?|differ(?:ent|ing)|inconsistent|unlike|opposites?|contradict(?:s|ed|ory)?|conflicts?|mismatch(?:es)?|disagrees?)\b",
    re.IGNORECASE,
)
_AGREES = re.compile(
    r"\b(?:agrees?|consistent|match(?:es)?|the same|correct|true|right)\b", re.IGNORECASE
)
_AGREED = re.compile(r"\b(?:agrees?|consistent|correct)\b", re.IGNORECASE)


def true_or_false(reply: str) -> bool | None:
    """The verdict that opens a reply: True or False, with reasons behind it at most; None where it is unclear.

    >>> true_or_false("**True.**"), true_or_false("False. It is another town."), true_or_false("Not true")
    (True, False, None)
    >>> true_or_false("True, but the year differs"), true_or_false("True or false?")
    (None, None)
    """
    text = _without_next_example(unwrapped(reply))
    text = text[echo.end() :] if (echo := _EITHER.match(text)) else text
    found = _VERDICT.fullmatch(text)
    *reasons, last = text.strip().splitlines() or [""]
    if not found and _NAMES_A_VERDICT.match(last):
        text = "\n".join([last, *reasons])
        found = _VERDICT.fullmatch(text)
    if not found:
        return None
    value = found["word"].casefold() == "true"
    rest = own_words(text).words[found.end("word") :]
    against = (
        re.search(rf"\b{'false' if value else 'true'}\b", rest, re.IGNORECASE)
        or _WAVERS.search(rest)
        or _speaks_against(value, rest)
    )
    return None if against else value


_NAMES_A_VERDICT = re.compile(
    rf"{_MARKS}(?:(?:the|my|final)\s+)*(?:verdict|answer)\b", re.IGNORECASE
)


def _speaks_against(value: bool, reasons: str) -> bool:
    """Whether the reasons behind a verdict give the other one: True of what differs, False of what agrees."""
    if value and _TURNS_BACK.search(reasons):
        return True
    for clause in _CLAUSE_END.split(reasons):
        denied = _denied_from(clause)
        agrees = (_AGREES if value else _AGREED).search(clause)
        differs = _DIFFERS.search(clause)
        if agrees and (agrees.start() >= denied) is value:
            return True
        if differs and (differs.start() < denied) is value:
            return True
    return False


# --- labels of claims, letters of options -----------------------------------------------------------------------------

LABELS = ("SUPPORTS", "REFUTES", "NOT ENOUGH INFO")
"""The labels of a claim, as FEVER's files write them."""
TRUTHS = ("true", "false")
"""The labels of a claim, as PubHealth's files write them."""
_LABEL = re.compile(
    r"(?:(?<![\w-])(?:(?P<NEI>(?:not[ _]?enough|insufficient)[ _]?(?:info(?:rmation)?|evidence)|NEI(?=\W*\Z))"
    r"|(?P<SUPPORTS>supports|supported|support(?=\W*\Z|\s+(?:the|this|that|it|a|an)\b))|refute[sd]?)"
    r"|(?<=n't )(?P<few>(?:have )?enough (?:info(?:rmation)?|evidence)))"
    r"(?![\w-])(?P<none>\s+(?:(?:the|this|that)\s+(?:claim|statement)\s+)?(?:(?:by|in|to)\s+)?"
    r"(?:no|none|nothing|neither|nobody|only|part(?:ly|ially)?|some extent|if|unless)\b)?",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|nothing|nobody|neither|nor|cannot|without|hardly|barely|fail(?:s|ed)?|unable|whether|if"
    r"|doubt(?:s|ed|ful)?|unlikely|unclear|uncertain|lack(?:s|ing)?|missing|little"
    r"|weak(?:ly)?|far from|(?:false|untrue|wrong) that)\b"
    r"|n['’]t\b",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(
    r"(?<=[.!?;:])\s|\n|\b(?:but|so|therefore|thus|hence)\b", re.IGNORECASE
)
_UNTRUE = re.compile(
    r"(?<!may )(?<!might )(?<!could )(?:\bnot|n't)\s+(?:(?:at all|really|actually)\s+)?true\b|\buntrue\b",
    re.IGNORECASE,
)
_NOT_FALSE = re.compile(r"\bnot\s+(?:\w+\s+)?false\b", re.IGNORECASE)
_TRUTH = re.compile(r"(?<![\w-])(?:true|false)(?![\w-])", re.IGNORECASE)
_HEDGED = re.compile(
    r"\b(?:(?:may|might|could|would|can|should|must|seems?|appears?)(?:\s+\w+){0,2}|part(?:ly|ially)|half|possibly|perhaps"
    r"|maybe|mostly|largely|somewhat|almost|nearly|rarely|seldom|sometimes|often|usually|generally|once|called|considered"
    r"|believed|too\s+good\s+to\s+be)\s+$",
    re.IGNORECASE,
)
_HEDGES = re.compile(
    r"\s+(?:(?:only|just)\s+)?(?:in\s+part|part(?:ly|ially)|to\s+some\s+extent|in\s+some|for\s+some|if|unless|only)\b",
    re.I,
)
"""Behind a word."""
_HEDGE = 80
"""Characters before a word in which it may be hedged."""


def label(text: str) -> str | None:
    """The one label that a reply gives to a claim, None where it gives none or several.

    The labels' own words count ("support" and "supported" too, not "supporting"), and else whether the claim is called
    true or false. A label is not read where a word before it in its clause denies or doubts it ("not supported"),
    where what follows it empties it ("supported by nothing"), or in a question.

    >>> label("The claim is refuted."), label("It is not supported."), label("SUPPORTS, not REFUTES"), label("Untrue")
    ('REFUTES', None, 'SUPPORTS', 'REFUTES')
    """
    return _only(_all_labels_in(own) for own in _own_claims(unwrapped(text)))


def _only(read: Iterable[set[str]]) -> str | None:
    """What the reply's own words say, or else its quotations; None where they say several things."""
    found = next(filter(None, read), set[str]())
    return next(iter(found)) if len(found) == 1 else None


def _all_labels_in(text: str) -> set[str]:
    if not _LABEL.search(text):
        return {LABELS[TRUTHS.index(called)] for called in _truths_in(text)}
    found = set()
    for match, denied in _matches(_LABEL, _CLAUSE_END.split(text)):
        if match["NEI"] or match["few"]:
            found.add(LABELS[2])
        elif not match["none"] and not denied and not _hedged(match):
            found.add(LABELS[0] if match["SUPPORTS"] else LABELS[1])
    return found


def _matches(
    pattern: re.Pattern[str], clauses: Iterable[str]
) -> Iterator[tuple[re.Match[str], bool]]:
    """What is found in the clauses that ask nothing, and whether a word before it denies or doubts it."""
    for clause in clauses:
        if not clause.endswith("?"):
            denied = _denied_from(clause)
            for match in pattern.finditer(clause):
                yield match, match.start() >= denied


def _hedged(match: re.Match[str]) -> bool:
    at = match.start()
    return _HEDGED.search(match.string, max(0, at - _HEDGE), at) is not None


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
    return _only(map(_called, _own_claims(unwrapped(text))))


def _called(text: str) -> set[str]:
    opening = re.match(r"\W{0,3}(yes|no)\b(?=[^\w\s]|\s*$)", text, re.IGNORECASE)
    found = {TRUTHS[opening[1].lower() == "no"]} if opening else set()
    return found | _truths_in(text[opening.end() if opening else 0 :])


def _truths_in(text: str) -> set[str]:
    text = _NOT_FALSE.sub(" true", _UNTRUE.sub(" false", text.replace("’", "'")))
    return {
        match[0].lower()
        for match, denied in _matches(_TRUTH, _CLAUSE_END.split(text))
        if not (denied or _hedged(match) or _HEDGES.match(match.string, match.end()))
    }


_ALONE = re.compile(rf"\W{{0,4}}([{LETTERS}{LETTERS.lower()}])\W{{0,4}}")
_NO_ARTICLE = r"(?!\s+(?!(?:because|since|is|and|or)\b)[^\W\d_])"
"""Behind the letter A: not where it is the article of a word."""
_ONE = rf"[{LETTERS[1:]}]|{LETTERS[0]}{_NO_ARTICLE}"
_APART = r"(?!\w|['’]\w)"
_LETTER = re.compile(
    rf"\(([{LETTERS}{LETTERS.lower()}])\)"  # (B)
    rf"|^\W{{0,4}}([{LETTERS}])(?:[).:]|\*\*|$)(?=\W*(?:\s|$))"  # B. and B) and B: where a line begins, or all of it
    rf"|^\W{{0,4}}([{LETTERS}])(?=,?\s+(?:because|since)\b|\s+[-–—]\s)"  # B, because and B - ice, where a line begins
    rf"|^\W{{0,4}}([{LETTERS}])(?=,\s+[a-z]{{2}})(?!,\s+(?:or|and|however|like|but|not)\b)"  # B, ice
    rf"|^\W{{0,4}}([{LETTERS[1:]}])(?=\s+[a-z])"  # B ice, where a line begins
    r"(?!\s+(?:or|and|vs|versus|is|are|was|were|has|have|of|in)\b)"
    rf"|(?<![\w'’-])({_ONE})(?=\s+is\s+(?:the\s+)?(?:correct|right|best)\b)"  # B is correct
    rf"|\b(?i:it\s+is|it['’]s|choose|pick|select|go(?:ing)?\s+(?:with|for)|opt\s+for|say)\s+"
    rf"(?:\w+\s+)?({_ONE})(?=\W*$)"  # it is B
    r"|\b(?i:answer|option|choice|letter)(?:\s++(?:is|would be|should be))?(?:\s++|\s*+:\s++)[^\w\s(]{0,3}"
    rf"(?:({_ONE}){_APART}|([{LETTERS.lower()}])(?=\W*$))"  # the answer is B
)
_DENIED = re.compile(
    r"\W{0,4}\s*(?:is|are|was|were|would be|cannot be)\s+(?:not|wrong|incorrect|false)\b", re.I
)
_TERM = re.compile(
    r"(?<![\w'’-])(?:C\s+(?:major|minor|sharp|flat)|[A-E]\s+(?:cells?|lymphocytes?|vitamins?|vertebra)|E\.\s?(?:coli|g)|C\.\s?(?:elegans|difficile)"
    r"|[A-E]\s+is\s+an?\s)",
)
"""What begins with a letter that is no option's."""


def choice(text: str) -> str | None:
    """The one option that a reply chooses, by its letter; None where it chooses none or several.

    Read strictly: the letter alone, in brackets, with a mark or a word behind it where a line begins ("B. ice", "B
    ice"; not "A ice", which has the article), behind "answer", "option", "letter", "it is" or "I choose", or called
    correct; a capital anywhere else is a word of the reply. A letter that is denied counts for nothing.

    >>> choice("B"), choice("The answer is (B)."), choice("B) ice"), choice("A or B"), choice("A stone sinks.")
    ('B', 'B', 'B', None, None)
    """
    text = _without_next_example(unwrapped(text))
    return _only(map(_chosen, _own_claims(text)))


def _chosen(text: str) -> set[str]:
    alone = _ALONE.fullmatch(text)
    return {alone[1].upper()} if alone else _letters_in(text)


def _letters_in(text: str) -> set[str]:
    clauses = re.split(r"(?<=[.!?;])\s|\n|\bbut\b", _TERM.sub("", text), flags=re.IGNORECASE)
    return {
        next(filter(None, match.groups())).upper()
        for match, denied in _matches(_LETTER, clauses)
        if not denied and not _DENIED.match(match.string, match.end())
    }


_TOPIC_IS = re.compile(
    r"^(?:the )?(?:general )?(?:topic(?: of (?:the|this) question)?(?: is\b|:)|(?:the|this) question is about\b)\s*",
    re.IGNORECASE,
)


def topic(reply: str) -> str:
    """The phrase that a reply names as a question's topic.

    >>> topic("The general topic of the question is American football.")
    'American football'
    """
    return _TOPIC_IS.sub("", short_reply(reply)).removesuffix(".")
