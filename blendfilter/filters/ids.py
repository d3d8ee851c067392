"""Reading the ids that a model says are relevant: pure functions, no model.

BlendFilter, section 3.3 and appendix F, leaves open how a free-text reply becomes a set. It is read in three steps:

1. Every word, mark and number becomes one letter, its class (`_WORDS`, `_MARKS`), and what it means beside its
   neighbours is settled (`_IN_CONTEXT`): "3 passages" and "Total: 2" are counts, "not relevant" is one verdict.
2. Every line is cut into clauses of one subject each, and a clause says one thing (`_RULES`): it states ids ("Ids: 0",
   "only 3"), keeps or drops some ("0 is relevant", "1 ✗"), mentions some, or is in doubt.
3. What the clauses say is put together (`_together`): the last statement counts, and what is said of single passages
   must not go against it. Without one, the passages that are kept count, where every id that is spoken of is judged.

Thoughts in tags are not read, nor what a reply quotes (`blendfilter.quoting`); JSON is read by its keys; of a reply
that was cut off only whole lines that state ids are read. In doubt a reading is `suspect` (ids are spoken of) or
`unparseable`, which costs one more call; a wrong one would cost the knowledge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from blendfilter.lm.profiles import split_thinking
from blendfilter.quoting import QUOTED, end_of, own_words

Status = Literal["ids", "none", "suspect", "unparseable"]


class IdsRead(NamedTuple):
    """Positions 0..K-1 in the order the reply gives them, and how it was read."""

    ids: tuple[int, ...]
    status: Status


SUSPECT = IdsRead((), "suspect")
UNPARSEABLE = IdsRead((), "unparseable")
_NOUN = r"(?:knowledge|passage|sentence|id|number|piece|document|paragraph)s?"

# --- step 1: words, marks and numbers as letters ----------------------------------------------------------------------
# Numbers become i (an id), I (ids in a row), c (a count, or no id) and j (in doubt); unknown words become w.

_WORDS = {
    "n": "knowledge passage passages sentence sentences id ids number numbers piece pieces document documents",
    "k": "relevant helpful useful yes",  # kept
    "d": "irrelevant unrelated unhelpful unnecessary useless off-topic off_topic",  # left out
    "K": "keep kept related necessary needed need true answers help helps essential correct matter supporting y"
    " contribute contributes",
    "D": "exclude excluded remove removed drop dropped omit omitted ignore ignored false incorrect wrong skip n",
    "x": "not cannot never neither nor without",
    "N": "no",
    "o": "none",
    "z": "nothing empty null n/a",  # none, where nothing else is said
    "a": "all every each everything",
    "r": "others other rest remaining another different else elsewhere instead",
    "e": "except excluding other_than apart_from",
    "l": "only just",
    "b": "is was be",
    "B": "are were",
    "g": "it it's that's here they these this those them",
    "h": "maybe perhaps possibly potentially whether either may might could seem seems appears or if than",
    "Q": "unsure uncertain unclear doubt so_on etc not_sure not_certain all_but everything_but so_is so_are",
    "t": "total count score confidence rating rank relevance there_are there_were more_than at_least number_of",
    "u": "part parts step steps",
    "O": "of out_of",
    "E": "is_in are_in",
    ".": "but while whereas although though however so thus therefore",
    ";": "because since which who",  # no statement stands behind these
    ",": "and plus",
    "p": "answer final output result conclusion choose chose select selected use list summary sum_up boxed think",
    "P": "wait actually correction hmm oops thoughts reflection",  # what came before is taken back
    "y": "also too as_well",
    "v": "names name mention mentions state states tells give gives contain contains provide provides lists says say",
    "f": "the a an to on at by for with that when i me my we you your do does did can would should both sure have"
    " following json question asks given based context judgement been two three four five any most directly i'd i'll go"
    " one ones",  # left out before the rules are applied
}
_MARKS = {
    "k": "✓✔✅☑👍",
    "d": "✗✘❌✖☒👎",
    ":": ":|=→⇒",
    ".": ".;!",
    "?": "?",
    ",": ",&/",
    "q": QUOTED,
}
_CLASS = {
    word.replace("_", " "): code for code, words in _WORDS.items() for word in words.split()
}
_CLASS |= {mark: code for code, marks in _MARKS.items() for mark in marks}
_TOKEN = re.compile(
    r"(?P<range>(?<![\w./-])\d{1,4}\s{0,3}(?:-|–|—|to\b|through\b)\s{0,3}\d{1,4}(?![\w%-]|[.,/]\d))"
    r"|(?P<number>(?:(?<!\w)-)?\d+(?:[./]\d+|,\d{3}(?!\d))*(?:[^\W\d]|%)*)"
    rf"|(?P<word>\b(?:{'|'.join(word for word in _CLASS if ' ' in word)})\b|[^\W\d]+(?:['/-][^\W\d]+)*)"
    rf"|(?P<dash>->|=>|(?<=\s)[-–—]+(?=\s)|—)|(?P<mark>[{re.escape(''.join(map(''.join, _MARKS.values())))}])",
    re.IGNORECASE,
)
_IN_CONTEXT = [  # the letter that a group becomes beside its neighbours
    (r"(K)", "k"),
    (r"(D)", "d"),
    (r"u(i)", "c"),  # "step 2"
    (r"(?<!n)(i)(?=O|u|[kr]?n(?!,?[iI]))", "c"),  # "2 of them", "3 relevant passages"
    (r"O(i)", "c"),  # "2 of 5"
    (r"(?<![nre])(i)(?=B)|(?<!n)(i)(?=k*w)", "j"),  # "3 lighthouses", "2 are relevant"
    # "the year is 3", "says that the ids are 0 and 1"
    (r"(?:w[bBO]?|v[^.,:?iIE]{0,9})([iI])", "j"),
    (r"t[^i.]{0,6}(i)", "c"),  # "Total: 2"
    (r"[iIkd]([,:])(?=r)|(,)(?=n?[iI]:)", "."),  # "0: relevant, others: irrelevant"
    (r"^(N),", "P"),  # "No, wait"
    (r"([xN]a|x[dD])", "h"),  # "not all", "not irrelevant"
    (r"(Nk?n)(?![,iI])|(N)(?=r)", "o"),  # "no passage"
    (r"([xN][^.,:?iIjahdozr]{0,5}k)", "d"),  # "does not help"
    (r"(?<![^:iI,.])(N)(?![^,.:])", "d"),  # "0: no"
]
_ROWS = re.compile(r"[iI](?:[,nc]*[iI])*|.")
_CONTEXT = [(re.compile(pattern), letter) for pattern, letter in _IN_CONTEXT]
_AROUND = [  # ticked and empty boxes; tokens of chat templates and markdown; brackets around a label
    (
        re.compile(
            r"^\W*(?:the )?(?:context|judge?ment) (?:says?|states?|finds?|shows?|concludes?)(?: that)?(?= (?:\w+ )?\d)",
            re.I,
        ),
        " ",
    ),
    (re.compile(r"\[[xX]\]"), " ✓ "),
    (re.compile(r"\[\s*\]"), " none "),
    (re.compile(r"</?s>|<\|?/?\w{1,20}\|?>|[*_`#~$\\{}\"]+"), " "),
    (
        re.compile(rf"^\W*((?:{_NOUN}\s)?\d{{1,4}})\s*[)\]]\s*(?!and\b|or\b)(?=[^\W\d])"),
        r"\1: ",
    ),
]

_BRACKETS = re.compile(rf"\(([^()]{{0,200}}(?:[^\W\d]|{QUOTED})[^()]{{0,200}})\)")


@lru_cache(maxsize=128)  # lines of a reply are often alike
def _coded(line: str, k: int) -> tuple[str, list[tuple[int, ...]]]:
    """A letter for each token of a line, less fillers, and the ids of each; ids in a row are one token."""
    tokens = list[tuple[str, tuple[int, ...]]]()
    for token in _TOKEN.finditer(line):
        form, text = token.lastgroup, token[0].lower()
        if form == "range":
            first, last = (int(number) for number in re.findall(r"\d+", text))
            row = tuple(range(first, last + 1))
            # "0, 3 - 2 of them"
            tokens.append(("I", row) if first <= last < k else ("Q" if first < k else "c", ()))
        elif form == "number":
            parts = text.split(",") if k > 100 else [text]  # "12,150" of hundreds
            whole = all(re.fullmatch("0|[1-9][0-9]{0,3}", part) for part in parts)
            named = tuple(int(part) for part in parts if int(part) < k) if whole else ()
            tokens.append(("i" if named else "c", named))
        else:
            unknown = ":" if form == "dash" else "x" if text.endswith("n't") else "w"
            tokens.append((_CLASS.get(text, unknown), ()))
    tokens = [token for token in tokens if token[0] != "f"]
    letters = "".join(letter for letter, _ in tokens)
    rows = [found.span() for found in _ROWS.finditer(letters)]
    ids = [
        tuple(dict.fromkeys(each for _, named in tokens[start:end] for each in named))
        for start, end in rows
    ]
    letters = "".join(letters[start] if end == start + 1 else "I" for start, end in rows)
    letters = _beside_neighbours(letters)
    left = [at for at, letter in enumerate(letters) if letter not in "fO"]
    ids = [ids[at] if letters[at] in "iIj" else () for at in left]
    return "".join(letters[at] for at in left).replace("I", "i").replace("B", "b"), ids


@lru_cache(maxsize=256)  # most lines of a reply have the letters of others
def _beside_neighbours(letters: str) -> str:
    # Verdicts of the classes K and D are none where other words stand beside them.
    letters = re.sub(
        r"(?:^|(?<=[.,:?]))[^.,:?]*[wv][^.,:?KD]*[KD]?",
        lambda found: re.sub("[KD]", "w", found[0]),
        letters,
    )
    for pattern, letter in _CONTEXT:
        letters = pattern.sub(partial(_replaced, letter), letters)
    return letters


def _replaced(letter: str, found: re.Match[str]) -> str:
    start, end = (at - found.start() for at in found.span(found.lastindex or 0))
    return found[0][:start] + letter + "f" * (end - start - 1) + found[0][end:]


def _letters(text: str) -> str:
    return _coded(text.replace("_", " "), 10_000)[0]


# --- step 2: clauses --------------------------------------------------------------------------------------------------


def _in_order(*letters: str) -> str:
    """A pattern of one of each of these `letters`, in this order, whatever stands between; it never goes back."""
    return "^" + "".join(f"[^{letter}]*+[{letter}]" for letter in letters)


_RULES = [  # what a clause says: the first rule that is found among its letters
    ("doubt", rf"[QP]|^x$|{_in_order('h?', 'iozae')}|{_in_order('iozae', 'h?')}"),
    ("count", r"j"),
    ("state", r"^(?=.*d)[^ia]*+a[^ie]*+e[^i]*+i|o[^ie]*+e[^i]*+i"),  # "none except 2"
    ("all but", r"a[^ie]*+e[^i]*+i"),
    ("words", r"o[^i]*r|^[^i]*r[^i]*(?:d|x$)"),  # "none of the others", "the rest is not"
    ("rest kept", r"^[^iw]*r[^iw]*k"),
    (
        "doubt",
        "|".join(
            _in_order(*letters) for letters in ("od", "do", "ax", "kdi", "ikd", "idk", "dki")
        ),
    ),
    ("state", r"^[^i]*o[^i]*$|^[^i]*a[^i]*d|^[zgnpbk:]*z[zgnpbk:]*$"),  # nothing
    ("all", r"^[angbpyl:]*a[angbpyl:]*$|^[^i]*a[^i]*k[^i]*$"),
    ("drop", rf"{_in_order('d', 'i')}|{_in_order('i', 'd')}|ib?x$|{_in_order('ox', 'i')}"),
    ("isnt", _in_order("i", "x")),
    ("ids", r"^n?i$"),
    ("state", r"(?:^|[kbp:])ln*i|[kl][^iw]*[b:]n*i$|^[npbklgyac:]*i[npblgyc:]*$"),
    ("keep", r"^[^wvi]*k[^wv]*i|i[^w]*k"),
    ("mention", r"^n?i:|i[^iw]*v[^qrlz]*$|En?i$"),
    ("aside", r"i"),
    ("drop", r"^[^wcvh?]*d[^cvh?]*$"),  # of the id before it
    ("keep", r"^[^wcvh?]*k[^cvh?]*$"),
    ("words", r""),
]
_FOUND = [(kind, re.compile(rule)) for kind, rule in _RULES]
# what says nothing clear of a label
_ONE_SUBJECT = re.compile(
    r"[^ikd]*[kd][^ikd]*i[^ikd]*"  # "relevant: 0"
    r"|[^i]*i(?:(?!,?[kd][np]{0,2}[b:]n?i|[,nlxe]{0,3}i)[^i])*"  # "0 is relevant"
    r"|[^i]+$"
)
_SENTENCE = re.compile(r"[^.;?]+\??")
_LONGEST = 200  # letters of a clause: what is longer says nothing


class _Clause(NamedTuple):
    kind: str
    ids: tuple[int, ...] = ()
    letters: str = ""


_ANNOUNCED = _Clause("words", (), ":")


def _clauses(line: str, k: int) -> Iterator[_Clause]:
    """What a line says, clause by clause."""
    line = _full_range_pattern(k).sub(" ", line)
    for pattern, by in _AROUND:
        line = pattern.sub(by, line)
    letters, ids = _coded(_BRACKETS.sub(_unbracketed, line.strip("| \t")), k)
    for sentence in _SENTENCE.finditer(letters):
        start, end = sentence.span()
        if label := re.match(r"[,:p]*n?i:(?=.)", sentence[0]):
            named = next(each for each in ids[start:end] if each)
            yield _Clause("mention", named)
            for part in re.findall(r"[^:,]+", sentence[0][label.end() :]):
                verdict = _clause(part, (), k).kind
                if re.search(r"^[^kd]*i|^[nc]+$|[kd].*[h?i]|[h?].*[kd]|[QP]", part):
                    yield _Clause("doubt", named)
                elif verdict in ("keep", "drop") or re.search("[xozr]", part):
                    yield _Clause(verdict if verdict in ("keep", "drop") else "isnt")
            continue
        for found in _ONE_SUBJECT.finditer(letters, start, end):
            named = tuple(each for some in ids[found.start() : found.end()] for each in some)
            clause = _clause(found[0], named, k)
            if (
                clause.kind == "ids"
                and found.start()
                and letters[found.start() - 1] not in ".:"
            ):
                clause = clause._replace(kind="aside")  # "0 contradicts 1"
            yield clause


def _unbracketed(found: re.Match[str]) -> str:
    """Ids in brackets are a sentence, a verdict belongs to what it stands behind; the rest says nothing."""
    letters = _letters(found[1])
    if re.search("[ijr]", letters):
        return f". {found[1]}. "
    return f": {found[1]}, " if re.search("[kdhx]", letters) else " "


def _clause(letters: str, ids: tuple[int, ...], k: int) -> _Clause:
    letters = re.sub(r"^[q:]+|(?<!:):+$|(?<![vq])q+$|(?<=vq)q+$", "", letters.replace(",", ""))
    kind = _kind(letters)
    if kind == "all but":
        return _Clause("state", tuple(each for each in range(k) if each not in ids), letters)
    return _Clause(kind, ids, letters)


@lru_cache(maxsize=256)
def _kind(letters: str) -> str:
    return (
        next(kind for kind, rule in _FOUND if rule.search(letters))
        if len(letters) <= _LONGEST
        else "words"
    )


# --- step 3: a whole reply --------------------------------------------------------------------------------------------

_ITEM = re.compile(r"^\W*(\d{1,4})[.)]\s+(?!\d+\.\s*\d|and\b|or\b)(?P<rest>\S.*)")
_NAMES = re.compile(
    rf"\W*\d|.{{0,80}}\b{_NOUN}\W{{0,3}}(?:(?:is|are)\s)?\W{{0,3}}\d", re.IGNORECASE
)
_NEXT_PROMPT = re.compile(r"^(?:Context|Question|Judgement)\s*:", re.IGNORECASE)


def read_ids(reply: str, k: int, *, cut: bool = False) -> IdsRead:
    """The ids in `reply`, of `k` numbered passages; of one that was `cut` off, those that it had stated before.

    >>> read_ids("The relevant ones are 0 and 3. The others are not.", 5)
    IdsRead(ids=(0, 3), status='ids')
    >>> read_ids("1, 3 and 4 are irrelevant", 5).status
    'suspect'
    >>> read_ids("None of them.", 5).status
    'none'
    """
    reply = split_thinking(reply)[1]
    read = partial(read_plain, k=k, cut=cut)
    return _read_json(reply, k) or in_own_words(end_of(reply), read)


def in_own_words(reply: str, read: Callable[[str], IdsRead]) -> IdsRead:
    """How `read` reads what `reply` says itself, never what it quotes.

    What may be its own although it stands in quotation marks or a fence decides where nothing else does. Where it goes
    against the rest, or all that could be read was quoted, the reply is suspect.
    """
    own = own_words(reply)
    announced = stated = read(own.words)
    if own.announced is not None:
        numbers = re.findall(r"\d+", own.words)
        if re.findall(r"\d+", own.announced) != numbers or stated.status != "ids":
            announced = read(own.announced)
    if stated.status in ("ids", "none"):
        return stated if announced == stated else SUSPECT
    if announced.status != "unparseable":
        return announced
    quotes = re.search(r"\d", reply) and not re.search(r"\d", own.words)
    return SUSPECT if stated.status == "suspect" or quotes else stated


def unfenced(reply: str) -> str:
    """What stands inside a fence around the whole reply, or the reply."""
    return reply.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()


def negates(reply: str) -> bool:
    """Whether a line of `reply` speaks of ids and negates: why most `suspect` replies are that.

    >>> negates("1, 3 and 4 are irrelevant"), negates("0\\nOn reflection it is 2.")
    (True, False)
    """
    lines = end_of(reply).replace("’", "'").splitlines()
    return any(re.search(r"\d", line) and set("xdoe") & set(_letters(line)) for line in lines)


def restates_range(reply: str, k: int) -> bool:
    """Whether `reply` says the prompt's own range of numbers again, which names none of them.

    >>> restates_range("Of knowledge 0-4, only 2 is relevant.", 5), restates_range("0-2", 5)
    (True, False)
    """
    return _full_range_pattern(k).search(reply) is not None


@lru_cache(maxsize=16)
def _full_range_pattern(k: int) -> re.Pattern[str]:
    """The prompt's own range: "knowledge 0-4", "numbered from 0 to 4", "(0-4)"."""
    span = rf"0\s*(?:-|–|—|to|through)\s*{k - 1}"
    return re.compile(
        rf"(?:\b(?:{_NOUN}|numbered|from)\s+{span}\b|[(\[]\s*{span}\s*[)\]])", re.IGNORECASE
    )


_DOUBTED = re.compile(  # verdicts by half, scores and orders, second thoughts, and what a passage says or is
    r"\b(?:least|less|somewhat|marginally|barely|hardly|scarcely|partially|partly|slightly|loosely|tangentially) ?\b"
    r"|\banything but\b|\bnothing (?:\w+ )?relevant\b|\bcan go\b|~~|\d\s?>\s?\d|\(0?\.\d|\d\.\.\.|, no\)"
    rf"|\b(?:according to|per) (?:the )?{_NOUN} #?\d|\b(?:from|in) (?:the )?{_NOUN} #?\d+(?::|,? it\b)"
    rf"|\b{_NOUN} #?\d+ (?:\w+ ){{0,3}}(?:ids?:|relevant:\s?\d)"
    rf"|^[^\w\n]*+{_NOUN} #?\d+: (?-i:(?:The |An? )?(?!(?:It|This|That|There|Yes|No)\b)[A-Z][\w'’]+(?: [A-Z][\w'’]+)*)"
    r" (?:is|was|are|were|has|had)\b"
    r"|; \d[\d, -]{0,20} are[^\S\n]*+\.?[^\S\n]*+$|^[^\w\n]*+(?:knowledge|passage|sentence) \d+: [^|\n]{1,120} \| ",
    re.IGNORECASE | re.MULTILINE,
)


def read_plain(text: str, k: int, *, cut: bool = False) -> IdsRead:
    """The ids in a text that is read as it stands, whatever in it is quoted: one that `in_own_words` gave."""
    if re.search(r"\d", text) and _DOUBTED.search(text):
        return SUSPECT
    # an object that is not whole, or whose names are quoted
    if re.search(rf"\{{\s*[{QUOTED}\"]", text):
        return UNPARSEABLE
    lines = filter(str.strip, _lines(text.replace("’", "'")))
    said = [(line, clauses) for line in lines if (clauses := [*_clauses(line, k)])]
    if cut:  # the last line is not whole, and what others name one by one need not be all
        said = [each for each in said[:-1] if each[1][0].kind in ("ids", "state")]
        said = [each for each in said if each[1][0].kind == "state" or len(each[1][0].ids) > 1]
    read = _together(_attributed(said), k)
    # a list that ends with `k`, the last number where one counts from 1
    to_k = re.search(rf"\d(?![^\S\n]*+\d)(?:[\s,]|\band\b)++{k}\W*(?:$|[.;\n])", text)
    return SUSPECT if 1 in read.ids and 0 not in read.ids and to_k else read


def _lines(text: str) -> list[str]:
    """The lines of a reply; the numbers of a list are taken off, made labels, or doubts where it counts from 1."""
    lines = list[str]()
    for line in text.splitlines():
        if lines and _NEXT_PROMPT.match(line):  # a base model goes on with a next example
            break
        item = _ITEM.match(line)
        lines.append(
            item["rest"] if item and item[1] != "0" and _NAMES.match(item["rest"]) else line
        )
    items = [item for line in lines if (item := _ITEM.match(line))]
    counted = [int(item[1]) for item in items] == [*range(1, len(items) + 1)]
    return [_ITEM.sub(r"maybe \1 \2" if counted else r"\1: \2", line) for line in lines]


def _attributed(said: Sequence[tuple[str, list[_Clause]]]) -> list[_Clause]:
    """The clauses of all lines: "Irrelevant:" is said of the lines below it, "Irrelevant" of the id before it."""
    heading, all_said, subject = "", list[_Clause](), -1
    for line, clauses in said:
        announces = line.rstrip(" *_`").endswith(":")
        if announces:
            heading = (
                clauses[0].kind
                if clauses[0].kind in ("keep", "drop") and not clauses[0].ids
                else ""
            )
        for each in clauses:
            clause, last = each, all_said[subject] if subject >= 0 else _ANNOUNCED
            if each.kind in ("mention", "ids") and (announces or heading):
                clause = each._replace(kind="mention" if announces else heading)
            elif each.kind in ("keep", "drop") and not each.ids and not announces:
                clause = each._replace(ids=last.ids)
                if last.kind in ("mention", "aside", "isnt") or (
                    last.kind == "ids" and len(last.ids) == 1
                ):
                    all_said[subject] = clause
                    continue
            elif each.kind == "isnt" and not each.ids and last.kind in ("mention", "aside"):
                all_said[subject] = each._replace(ids=last.ids)
                continue
            all_said.append(clause)
            subject = len(all_said) - 1 if clause.ids else subject
        if announces:
            all_said.append(_ANNOUNCED)
    return all_said


def _together(said: Sequence[_Clause], k: int) -> IdsRead:
    """The last statement, where nothing goes against it; without one what is kept, where all ids named are judged."""
    stated: dict[int, None] | None = None
    named, last, spoken = dict[str, dict[int, None]](), _ANNOUNCED, False
    for clause in said:
        kind, ids = clause.kind, dict.fromkeys(clause.ids)
        if kind == "all" and stated:  # "0, 2. All of these are relevant"
            continue
        if kind == "all" and not ("g" in clause.letters and spoken):
            kind, ids = "state", dict.fromkeys(range(k))
            # "0 is a light. All are relevant"
            if 0 < len({each for some in named.values() for each in some}) < k:
                return SUSPECT
        if kind not in ("ids", "state"):
            # "2 is relevant as well"
            also = stated if kind == "keep" and "y" in clause.letters else None
            (also or named.setdefault(kind, {})).update(ids)
        elif stated and last.letters == clause.letters and ":" in clause.letters:
            if not stated.keys() <= ids.keys():
                named["doubt"] = {}  # "Ids: 0", and below it "Ids: 3"
            stated = ids
        elif stated is None or last is _ANNOUNCED or re.search("p|n[b:]", clause.letters):
            named = {kind: named[kind] for kind in ("keep", "drop") if kind in named}
            stated = ids
        elif last.kind == kind == "ids" and len(last.ids) == len(ids) == 1:
            stated |= ids
        elif not ids.keys() <= stated.keys() or (stated and not ids):
            named["doubt"] = {}
        last, spoken = clause, spoken or bool(ids)
    if stated is None and not spoken:
        return (
            SUSPECT
            if any(kind == "doubt" and "o" in letters for kind, _, letters in said)
            else UNPARSEABLE
        )
    drops = named.get("drop", {}).keys()
    # what must be among the ids
    bound = named.keys() if stated is None else {"keep", "mention", "aside"}
    ids = _judged(named, k) if stated is None else stated
    unsettled = (stated is None and not ids and len(drops) < k) or (
        "rest kept" in named and (stated or not drops)
    )
    left = {each for kind in bound for each in named.get(kind, ())} - drops - ids.keys()
    if (
        unsettled
        or left
        or "doubt" in named
        or (drops | named.get("isnt", {}).keys()) & ids.keys()
    ):
        return SUSPECT
    return IdsRead(tuple(ids), "ids" if ids else "none")


def _judged(named: Mapping[str, dict[int, None]], k: int) -> dict[int, None]:
    """Without a statement: the ids that are kept; what is left where the rest is; or what is mentioned, and no more."""
    if "rest kept" in named and "drop" in named:
        return dict.fromkeys(each for each in range(k) if each not in named["drop"])
    if named.keys() <= {"mention", "words"} and len(named.get("mention", ())) < max(k, 2):
        return named.get("mention", {})
    return named.get("keep", {})


# --- JSON -------------------------------------------------------------------------------------------------------------


def _read_json(reply: str, k: int) -> IdsRead | None:
    """What JSON says, with no more than an announcement before it and no word of ids behind it; None: it is none."""
    start = re.search(r"[\[{]", reply[:200])
    if start is None or set(_letters(reply[: start.start()])) - set("gpknb:.,"):
        return None
    lines, at = list[str](), start.start()
    try:
        while opened := re.compile(r"[\s,]*(?=[\[{])").match(reply, at):
            value, at = json.JSONDecoder(object_pairs_hook=once).raw_decode(reply, opened.end())
            lines += _in_words(value)
    except (ValueError, RecursionError):
        return None
    return (
        None
        if set(_letters(reply[at:])) & set("ijcdxoerhQk")
        else read_plain("\n".join(lines), k)
    )


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object each of whose names stands once; of `{"ids": [0], "ids": [1]}` nobody knows which is meant."""
    if len(pairs) > len(dict(pairs)):
        raise ValueError("a name twice")
    return dict(pairs)


def _in_words(value: Any, name: str = "") -> Iterator[str]:
    """A JSON value as the lines of a reply: "ids: 0, 3", "0: not relevant". Other texts and numbers are left out."""
    if isinstance(value, list):
        numbers = ", ".join(str(each) for each in value if not isinstance(each, list | dict))
        if numbers and set(_letters(numbers)) <= set("inc,"):
            yield f"{name}: {numbers}"
        elif not value and set(_letters(name)) <= set("npk"):
            yield f"{name}: none"
        for each in value:
            yield from _in_words(each, name) if isinstance(each, list | dict) else ()
        return
    numbered = [
        str(value[key])
        for key in value
        if "n" in _letters(key) and re.fullmatch(r"\d{1,4}", str(value[key]))
    ]
    if len(numbered) == 1:
        verdicts = [verdict for key, each in value.items() if (verdict := _verdict(key, each))]
        yield f"{numbered[0]}: {': '.join(verdicts) or 'maybe relevant'}"
        return
    for key, each in value.items():
        if isinstance(each, list | dict):
            yield from _in_words(each, f"{name} {key}")
        elif "i" in _letters(key):
            yield f"{key}: {_verdict('yes', each) or 'maybe relevant'}"
        elif isinstance(each, str) and set(_letters(each)) <= set("inc,"):
            yield f"{key}: {each}"


def _verdict(name: str, value: object) -> str:
    """What a field says of a passage: the verdict in its text, or its name, which is true or false; else nothing."""
    verdict = name if isinstance(value, bool) else value if isinstance(value, str) else ""
    if not re.fullmatch("[gb]*[kd]+", _letters(verdict)):
        return ""
    return f"not {verdict}" if value is False else verdict
