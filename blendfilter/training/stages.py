"""The pipeline's own stages, learned from gold: a method runs, and what each of its prompts should bring is written.

The examples of a small model that shall run BlendFilter, its baselines and its filters by itself. Each method is run
over each training question by a model that knows the question's gold (`GoldTeacher`), and every prompt that it sent,
with the reply it got, is an example: what the model learns to read is what a run sends it, to the byte. Prompts show no
demonstrations; a run of the trained model leaves them out too (`--demos none`).

Ours; no paper trains these stages. Targets are read off the gold:

=================== =====================================================================================
`external, answer`  a sentence of each gold passage that the prompt shows (the supporting sentences where they are
                    known, else the one with the answer, else the first), then `So the answer is X.`; StrategyQA's
                    annotated facts in their place; over no gold passage, those of all (`cot` from memory)
`internal`          the first sentences of the gold passage that the question names (else of the first one)
`topic`             the gold titles that the question names (else the first one)
`check`             a line a passage: `0: relevant - ` and the first words of its fact, or `1: irrelevant`
`ids`, `judge`      the numbers of the gold passages; `none` where the task offers it and none is gold
`relevant`          Yes for a gold passage, No for any other
`direct, short_answer`  the answer
=================== =====================================================================================

A passage is gold where its title is. A list without a gold passage has no ids where the task does not offer `none`:
such a prompt is no example.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import dspy

from blendfilter import aio
from blendfilter.asking import NO_DEMOS, TaskWording
from blendfilter.context import asker, setting
from blendfilter.dspy_surface import lm15
from blendfilter.errors import BadArgument, EmptyData, check_count
from blendfilter.filters.registry import make_filter
from blendfilter.lm.journaled import prompt_of, text_of
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.offline import take_apart
from blendfilter.modules.methods import make_method
from blendfilter.records import Passage, Question, one_line
from blendfilter.retrieval.base import ProgressCallback, Retriever, silent
from blendfilter.retrieval.callables import as_retriever
from blendfilter.tasks.base import Questions
from blendfilter.text import folded, normalize_answer, sentences
from blendfilter.training.examples import Example

FACT_WORDS, WHY_WORDS, PASSAGE_WORDS = 30, 8, 60
"""Words at the most of a fact in a reasoning, of what a passage contributes in a check, of a passage from memory."""
LOOKED_THROUGH = 10
"""Hits for its title among which a gold passage is looked for."""
_MEMORY = frozenset({"direct", "cot"})


class TaughtMethod(NamedTuple):
    """A method whose prompts are examples; `filter` by name, `k` in place of the usual."""

    method: str
    filter: str | None = None
    k: int | None = None


METHODS = (
    TaughtMethod("blendfilter"),
    TaughtMethod("blendfilter", "one-call"),
    TaughtMethod("blendfilter", "pointwise"),
    TaughtMethod("direct-retrieval"),
    TaughtMethod("cot-retrieval"),  # self-consistency's prompt, too
    TaughtMethod("iter-retgen"),
    TaughtMethod("direct"),
    TaughtMethod("cot"),
)
"""What is run by default: together they send every prompt of these methods and filters."""
SHARES: Mapping[str, float] = MappingProxyType(
    {
        "relevant": 0.30,
        "check": 0.16,
        "judge": 0.10,
        "ids": 0.05,
        "external": 0.10,
        "answer": 0.10,
        "direct": 0.09,
        "short_answer": 0.05,
        "internal": 0.03,
        "topic": 0.02,
    }
)
"""The share of each stage in the examples: the filter's steps decide most, and those of one passage are short."""


class StageExample(NamedTuple):
    """A prompt that `stage` sent for a question, and what gold would have it bring."""

    stage: str
    prompt: str
    target: str
    question: str

    @property
    def example(self) -> Example:
        """As the trainer takes it."""
        return Example(self.prompt, self.target, self.question)


# --- gold -------------------------------------------------------------------------------------------------------------


def gold_passages(question: Question, retriever: Retriever) -> list[Passage]:
    """The question's gold passages, those that it names first: its own paragraphs, else what their titles find."""
    found = dict[str, Passage]()
    for title in sorted(
        question.gold_titles, key=lambda name: folded(name) not in folded(question.question)
    ):
        hits: Sequence[Passage] = ()
        if title.strip():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a small corpus, where the hits are fewer
                hits = retriever.search([title], LOOKED_THROUGH)[0]
        # what an index holds is what it finds: its paragraph may be another cut of the article than the question's
        for passage in (*hits, *question.context):
            if folded(passage.title) == folded(title):
                found.setdefault(folded(title), passage)
    return list(found.values())


def facts_of(question: Question, passages: Sequence[Passage]) -> list[str]:
    """What each of these gold passages contributes to the answer, a sentence or two with the name of its subject.

    >>> pier = Passage("Orm Pier stands in Tolm. It opened in 1871.", title="Orm Pier")
    >>> facts_of(Question("q", "When did Orm Pier open?", ("1871",), ("Orm Pier",)), [pier])
    ['Orm Pier: It opened in 1871.']
    """
    found = []
    for passage in passages:
        name = passage.title.partition(" (")[0].strip()
        for fact in _facts_in(question, passage):
            found.append(_cut(fact if name in fact else f"{name}: {fact}", FACT_WORDS))
    return found


def _facts_in(question: Question, passage: Passage) -> list[str]:
    """The sentences of a gold passage that count: see above."""
    text, title = one_line(passage.text), folded(passage.title)
    whole = [sentence.text for sentence in sentences(text)] or [text]
    split = whole
    for paragraph in question.context:  # as the data set splits it, where it came along
        if folded(paragraph.title) == title and paragraph.metadata.get("sentences"):
            split = [one_line(sentence) for sentence in paragraph.metadata["sentences"]]
            break
    known = [
        split[number]
        for name, number in question.supporting_facts
        if folded(name) == title and 0 <= number < len(split)
    ]
    if chosen := [sentence for sentence in known if sentence and sentence in text]:
        return chosen
    answers = {normalize_answer(answer) for answer in question.golden_answers}
    answers -= {"", "yes", "no"}
    holding = [
        sentence
        for sentence in whole
        if any(answer in normalize_answer(sentence) for answer in answers)
    ]
    return (holding or whole)[:1]


def _cut(text: str, most: int) -> str:
    words = text.split()
    return (
        " ".join(words) if len(words) <= most else " ".join(words[:most]).rstrip(",;:") + " …"
    )


# --- the teacher ------------------------------------------------------------------------------------------------------


class GoldTeacher:
    """An engine that knows the gold of the question at hand, and keeps what it was asked with what it said.

    Attributes:
        examples: by prompt, in the order of asking.
        lm: what asks it.
    """

    def __init__(self, wording: TaskWording) -> None:
        self.wording = wording
        self.examples: dict[str, StageExample] = {}
        self.lm = ConnectedLM("gold", self, identity={"label": ""})
        self._known: dict[str, tuple[Question, list[Passage]]] = {}

    def learn(self, question: Question, gold: Sequence[Passage]) -> None:
        """Take the gold of a question, which is then asked under its id (`context.QUESTION`)."""
        self._known[question.id] = question, list(gold)

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """What gold says. Raises: BadArgument for a stage that gold has no target for."""
        prompt, stage = text_of(prompt_of(request)), asker().stage
        question, gold = self._known[asker().question]
        target = _target(stage, question, gold, prompt, self.wording)
        if target is not None:
            made = StageExample(stage, prompt, target, question.question)
            self.examples.setdefault(prompt, made)
        words = "none" if target is None else target  # it is to go on
        return lm15.Response(
            id=None,
            model="gold",
            message=lm15.Message(role="assistant", parts=(lm15.TextPart(text=words),)),
            finish_reason="stop",
            usage=lm15.Usage(
                input_tokens=len(prompt.split()), output_tokens=len(words.split())
            ),
        )


def _target(
    stage: str, question: Question, gold: Sequence[Passage], prompt: str, wording: TaskWording
) -> str | None:
    """What `stage` should write to a prompt; None where such a prompt is no example."""
    lines = prompt.split("\n")
    marked = [
        line.removeprefix("Passage:") for line in lines[-3:] if line.startswith("Passage:")
    ]
    listed = take_apart(lines).passages or [line.strip() for line in marked]
    titles = {folded(title) for title in question.gold_titles}
    shown = dict[int, Passage]()
    for number, line in enumerate(listed):
        title, bar, text = line.removeprefix("| ").partition(" | ")
        if bar and folded(title) in titles:
            shown[number] = Passage(text, title=title)
    if stage in ("check", "ids", "ids_again", "judge"):
        return _judged(stage, question, shown, len(listed), wording.offer_none)
    answer = one_line(question.golden_answers[0])
    if wording.answer_form == "Yes or No":
        answer = answer.capitalize()
    match stage:
        case "relevant":
            answer = "Yes" if shown else "No"
        case "external" | "answer":
            facts = _reasoned(question, gold, [*shown.values()])
            answer = f"{' '.join(facts)}\nSo the answer is {answer}.".strip()
        case "internal":
            kept: list[str] = []
            for sentence in sentences(one_line(gold[0].text)) if gold else ():
                if kept and len(" ".join([*kept, sentence.text]).split()) > PASSAGE_WORDS:
                    break
                kept.append(sentence.text)
            answer = _cut(" ".join(kept), PASSAGE_WORDS)
        case "topic":
            names = [passage.title.partition(" (")[0].strip() for passage in gold]
            named = [
                name for name in names if name and folded(name) in folded(question.question)
            ]
            answer = " and ".join(named[:2] or names[:1])
        case "direct" | "short_answer":
            pass
        case _:
            raise BadArgument(
                f"gold says nothing of what the stage '{stage}' should write: it does of {', '.join(sorted(SHARES))}"
            )
    return answer or None


def _judged(
    stage: str, question: Question, shown: Mapping[int, Passage], n: int, offers_none: bool
) -> str | None:
    checks = [f"{number}: irrelevant" for number in range(n)]
    for number, passage in shown.items():
        why = " ".join(_facts_in(question, passage)[0].split()[:WHY_WORDS])
        checks[number] = f"{number}: relevant - {why}"
    check = "\n".join(checks)
    ids = ", ".join(map(str, shown)) or ("none" if offers_none else None)
    if stage == "check":
        return check
    return f"{check}\nIds: {ids}" if ids and stage == "judge" else ids


def _reasoned(
    question: Question, gold: Sequence[Passage], shown: Sequence[Passage]
) -> list[str]:
    given = question.metadata.get("facts")
    if isinstance(given, list | tuple) and given:
        return [_cut(one_line(str(fact)), FACT_WORDS) for fact in given]
    order = {folded(passage.title): at for at, passage in enumerate(gold)}
    ranked = sorted(shown, key=lambda each: order.get(folded(each.title), len(order)))
    return facts_of(question, ranked or gold)


def _with_gold(
    hits: Sequence[Passage], gold: Sequence[Passage], k: int, seed: str
) -> list[Passage]:
    """The hits, and the gold passages that they miss.

    These stand in the places of the last hits that are not gold, moved to a place drawn by `seed`.
    """
    kept, draw = list(hits), random.Random(seed)
    titles = {folded(passage.title) for passage in gold}
    for passage in gold:
        if folded(passage.title) in {folded(each.title) for each in kept}:
            continue
        others = [at for at, each in enumerate(kept) if folded(each.title) not in titles]
        if len(kept) >= k:
            if not others:
                break
            kept.pop(others[-1])
        kept.insert(draw.randint(0, len(kept)), passage)
    return kept


# --- examples ---------------------------------------------------------------------------------------------------------


def stage_examples(
    questions: Questions,
    retriever: Retriever,
    *,
    k: int = 5,
    methods: Sequence[TaughtMethod] = METHODS,
    add_gold: float = 0.5,
    seed: int = 0,
    progress: ProgressCallback = silent,
) -> list[StageExample]:
    """Every prompt that the methods send for these questions, each once, with its target; in question order.

    Args:
        questions: of a task with gold titles; those without are left out.
        retriever: what the methods search.
        k: passages a query.
        methods: what is run.
        add_gold: the share of questions whose gold passages are put among the hits where these miss them; of the
            others a prompt shows what a run would find.
        seed: of that choice, and of the places.

    Raises:
        BadArgument: a share that is none, a method with a stage that gold knows nothing of. EmptyData: no question
        has gold titles.
    """
    k = check_count("k", k)
    if not 0.0 <= add_gold <= 1.0:
        raise BadArgument(f"add_gold is {add_gold!r}: give a share of the questions, 0 to 1")
    known = [question for question in questions if question.gold_titles]
    if not known:
        raise EmptyData(
            f"no question of {questions.source} names its gold passages, so nothing says what its stages should write: "
            "take questions that do (hotpotqa, twowiki, strategyqa, or 'gold_titles' of your own)"
        )
    wording = TaskWording.of(questions.task.wording).with_demos(NO_DEMOS)
    teacher = GoldTeacher(wording)
    beside: dict[str, list[Passage]] = {}

    def search(query: str, k: int) -> list[Passage]:
        gold = beside.get(asker().question, [])
        return _with_gold(retriever.find([query], k)[0], gold, k, f"{seed} {query}")

    searched = as_retriever(search)
    made = [
        make_method(
            taught.method,
            None if taught.method in _MEMORY else searched,
            k=taught.k or k,
            filter=taught.filter and make_filter(taught.filter, wording=wording),
            task=wording,
        )
        for taught in methods
    ]

    async def ask(question: Question) -> None:
        with setting(question=question.id):
            for method in made:
                await method.acall(question=question.question)

    with dspy.context(lm=teacher.lm):
        for number, question in enumerate(known):
            gold = gold_passages(question, retriever)
            teacher.learn(question, gold)
            if random.Random(f"{seed} {question.id}").random() < add_gold:
                beside[question.id] = gold
            aio.run(ask(question), "stage_examples")
            progress("stages by gold, questions", number + 1, len(known))
    # what branches ask side by side arrives in any order
    places = {question.question: at for at, question in reversed([*enumerate(known)])}
    return sorted(
        teacher.examples.values(),
        key=lambda each: (places[each.question], each.stage, each.prompt),
    )


def drawn(
    examples: Sequence[StageExample],
    n: int,
    *,
    shares: Mapping[str, float] = SHARES,
    seed: int = 0,
) -> list[StageExample]:
    """About `n` examples: of each stage its share, drawn by `seed`, and of `relevant` as many Yes as No.

    A stage that has fewer gives all that it has; one without a share gives none.
    """
    chosen: list[StageExample] = []
    for stage, share in shares.items():
        most = round(n * share / sum(shares.values()))
        words = ("Yes", "No") if stage == "relevant" else ("",)
        groups = [
            [each for each in examples if each.stage == stage and word in (each.target, "")]
            for word in words
        ]
        few = min(most // len(groups), *map(len, groups))
        for group in groups:
            chosen += random.Random(f"{seed} {stage}").sample(group, few)
    random.Random(seed).shuffle(chosen)
    return chosen


def recipe_of(
    examples: Sequence[StageExample],
    questions: Questions,
    retriever: Retriever,
    *,
    k: int,
    add_gold: float,
) -> dict[str, Any]:
    """What `recipe.json` says of these examples."""
    return {
        "part": "stages",
        "task": questions.task.name,
        "data": {
            "source": questions.source,
            "fingerprint": questions.fingerprint,
            "n": len(questions),
        },
        "retriever": retriever.fingerprint,
        "k": k,
        "add_gold": add_gold,
        "demos": NO_DEMOS,
        "stages": {
            stage: count
            for stage in SHARES
            if (count := sum(each.stage == stage for each in examples))
        },
    }


def apart(questions: Questions, others: Sequence[Question]) -> Questions:
    """The questions that share neither id, words nor a gold title with any of `others`. Raises: EmptyData for none.

    A passage that is gold for an evaluation question is then no gold passage of a training question; it may stand among
    its other passages.
    """

    def marks(question: Question) -> set[tuple[str, str]]:
        titles = {("title", folded(title)) for title in question.gold_titles}
        return titles | {("id", question.id), ("words", normalize_answer(question.question))}

    taken = set().union(*map(marks, others))
    left = tuple(question for question in questions if not marks(question) & taken)
    if not left:
        raise EmptyData(
            f"every question of {questions.source} is one to evaluate on, or shares its gold passages"
        )
    return Questions(left, questions.task, questions.source)
