"""BIDER's knowledge synthesis: of the retrieved sentences the few that an answerer needs, in an order.

Jin et al. 2024, "BIDER: Bridging Knowledge Inconsistency for Efficient Retrieval-Augmented LLMs via Key Supporting
Evidence", https://arxiv.org/abs/2402.12174, section 3.2. A question q, its golden answer o and the sentences s of its
passages (*nuggets*) go through three steps; what is left is the key supporting evidence that a refiner learns to write:

1. Extraction: the K sentences nearest to the fact f = q + " " + o (equation 1).
2. Refinement: one after the other, the nugget of the highest gain joins the pool P,
   kappa_i = sim(s_i, f) - mean over P of sim(s_i, s_j) (equation 2; nothing is subtracted while P is empty), until an
   entailment model says that the pool supports f by more than lambda_max, or a nugget brought less than lambda_min,
   from the second round on. That nugget stays, as written.
3. Cleaning: the first nugget stays; another where it makes the answer likelier for the answerer,
   tau'_i = log G(o | q, s_i) - log G(o | q) (equation 3), by a share of at least lambda_lm (equation 4).

Similarity is the cosine of an encoder's vectors; the entailment model reads the pool joined by spaces as its premise
and f as its hypothesis; tau' is FilCo's CXMI (`oracle.CXMIGenerator`: the prompt of direct prompting, with
``Title | sentence`` as its knowledge). On FEVER and HotPotQA, and where the answer is a yes or no, the annotated
evidence stands in for the answer in f (footnote 1); the answerer is still asked for the answer itself.

The second condition compares *two rounds*. Read with eta_0 = 0 (`lambda_min_from=1`) it would also end the search at a
first nugget that does not entail the fact by itself.

Differs from the paper: nuggets of tau' <= 0 go before the shares are made. Normalised as equation 4 has it, a harmful
nugget that is alone would have the share 1, and where the sum is negative every sign would turn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from blendfilter import aio
from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument, UnknownName, check_count
from blendfilter.lm.scoring.base import Score
from blendfilter.lm.scoring.entailment import EntailmentScorer
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.oracles.candidates import Candidate, sentences_of
from blendfilter.oracles.measures import is_verdict
from blendfilter.oracles.oracle import (
    NO_WORDS,
    Batch,
    CXMIGenerator,
    Oracle,
    OracleChoice,
    results_of,
)
from blendfilter.oracles.silver_rows import Stages, Stop
from blendfilter.prompting import Prompts
from blendfilter.records import Passage, Question, one_line
from blendfilter.replies import LABELS
from blendfilter.retrieval.encoders import Encoder, load_encoder
from blendfilter.tasks import TASKS
from blendfilter.tasks.fever import facts_of
from blendfilter.text import folded, normalize_answer

MEASURE: Final = "bider"
NUGGETS, LAMBDA_MAX, LAMBDA_MIN, LAMBDA_LM = 7, 0.5, 0.01, 0.05
"""Section 4.3."""
LAMBDA_MIN_FROM = 2
"""The first round whose gain is compared with lambda_min."""
BY_TARGET = 3
"""Sentences that Figure 3's "extract by evidence" takes."""
WITH_EVIDENCE = frozenset({"fever", "hotpotqa"})
"""Tasks whose answers say too little: their annotated evidence stands in for them (footnote 1)."""
E5_PREFIXES = ("query: ", "passage: ")
_E5 = re.compile(r"(?:^|[-_/])e5(?![a-z0-9])(?!.*(?:instruct|mistral))", re.IGNORECASE)


# --- the three steps --------------------------------------------------------------------------------------------------


def nearest(similarities: Sequence[float], n: int) -> tuple[int, ...]:
    """The positions of the `n` highest similarities, the highest first; of equal ones the earlier first (equation 1).

    >>> nearest([0.2, 0.9, 0.4, 0.9], 3)
    (1, 3, 2)
    """
    return tuple(sorted(range(len(similarities)), key=lambda at: -similarities[at])[:n])


def gain(to_fact: float, to_pool: Sequence[float]) -> float:
    """What a nugget would add to the pool (equation 2): its similarity to the fact less its mean one to the pool's.

    >>> gain(0.8, []), gain(0.75, [0.5, 0.25])
    (0.8, 0.375)
    """
    return to_fact - (math.fsum(to_pool) / len(to_pool) if to_pool else 0.0)


def next_nugget(
    pool: Sequence[int], left: Sequence[int], to_fact: Sequence[float], between: Any
) -> int:
    """Of the nuggets `left` the one of the highest gain; of equal ones the first.

    `between[i][j]` is the similarity of nuggets i and j.
    """
    return max(
        left, key=lambda at: gain(to_fact[at], [float(between[at][other]) for other in pool])
    )


def stop_of(
    supports: Sequence[float],
    *,
    lambda_max: float = LAMBDA_MAX,
    lambda_min: float = LAMBDA_MIN,
    lambda_min_from: int = LAMBDA_MIN_FROM,
) -> Stop | None:
    """Why refinement ends after these supports eta_1, eta_2, …; None where it goes on.

    `lambda_min` counts from the round `lambda_min_from` on; from 1 on, eta_0 is 0.

    >>> stop_of([0.2, 0.6]), stop_of([0.2, 0.205]), stop_of([0.2, 0.3])
    ('supported', 'no gain', None)
    >>> stop_of([0.0]), stop_of([0.0], lambda_min_from=1)
    (None, 'no gain')
    """
    before, now = ([0.0, *supports])[-2:]
    if now > lambda_max:
        return "supported"
    if len(supports) < lambda_min_from:
        return None
    gained = round(now - before, 6)  # 0.21 - 0.2 is a little less than 0.01
    return "no gain" if gained < lambda_min else None


def clean(effects: Sequence[float | None], *, lambda_lm: float = LAMBDA_LM) -> tuple[int, ...]:
    """Which nuggets of a pool survive, by their tau' (that of the first does not count; None: it could not be scored).

    >>> clean([None, 3.0, 1.0, -5.0]), clean([None, -1.0]), clean([None, 0.97, 0.03])
    ((0, 1, 2), (0,), (0, 1))
    """
    helping = {
        at: effect
        for at, effect in enumerate(effects)
        if at and effect is not None and effect > 0
    }
    whole = math.fsum(helping.values())
    return (
        *((0,) if effects else ()),
        *(at for at, effect in helping.items() if effect / whole >= lambda_lm),
    )


def evidence_of(question: Question) -> str:
    """The text of a question's annotated evidence, "" where it has none, or only a part of it.

    That is `metadata["evidence_sentences"]`, or the supporting facts' sentences in the question's own paragraphs. Of
    several sets of facts (FEVER) those count of which every sentence is there.
    """
    stated = question.metadata.get("evidence_sentences")
    if isinstance(stated, list | tuple) and stated:
        found = [str(each) for each in stated]
    else:
        rows = question.metadata.get("evidence")
        sets: Sequence[Sequence[tuple[str, int]]] = [question.supporting_facts]
        if rows and question.type in LABELS:
            sets = facts_of(rows, question.id)
        found = []
        for facts in sets:
            texts = [_sentence_at(question, *fact) for fact in facts]
            if None not in texts:
                found += [text for text in texts if text is not None]
    return " ".join(one_line(each) for each in dict.fromkeys(found) if each.strip())


def _sentence_at(question: Question, title: str, at: int) -> str | None:
    """A sentence of the question's own paragraphs; None where it is not there."""
    for passage in question.context:
        own = passage.metadata.get("sentences") or ()
        first = passage.metadata.get("sent_id") or 0
        if (
            folded(passage.title) == folded(title)
            and isinstance(first, int)
            and 0 <= at - first < len(own)
        ):
            return str(own[at - first])
    return None


def evidence_for(task: str, question: Question) -> str | None:
    """The evidence that stands in for the answer, by the task, or because it is a yes or no, or a label.

    "" where there is none; None where the answer speaks for itself.
    """
    needed = task in WITH_EVIDENCE or is_verdict(question.golden_answers)
    return evidence_of(question) if needed else None


# --- models -----------------------------------------------------------------------------------------------------------


class Synthesis(Oracle):
    """An `Oracle` that synthesises key supporting evidence.

    Args:
        task: a task's name: the words of the answerer's prompt, and whether evidence stands in for answers.
        encoder: a folder or a name on the hub, or what `load_encoder` made. E5 by its name has its prefixes.
        nli: what `scorer("nli", …)` made. scorer: the answerer that cleans, what `scorer(…)` made.
        nuggets: K, how many sentences are extracted. lambda_max, lambda_min, lambda_lm: the paper's thresholds.
        lambda_min_from: the round from which lambda_min counts, as in `stop_of`: 2, or 1.
        query_prefix, passage_prefix: stand before f, and before each sentence, for the encoder.
        wording, prompts: of the answerer's prompt, in place of the task's and the package's.

    Raises:
        UnknownName: no such task. BadArgument: a value outside its range; a model of another kind.
        What `load_encoder` raises.
    """

    _ask: CXMIGenerator
    measure = MEASURE
    threshold: float | None = None  # type: ignore[assignment]
    """Sentences are not chosen by a score of their own."""

    def __init__(
        self,
        task: str,
        *,
        encoder: str | Path | Encoder,
        nli: EntailmentScorer,
        scorer: KeptScorer,
        nuggets: int = NUGGETS,
        lambda_max: float = LAMBDA_MAX,
        lambda_min: float = LAMBDA_MIN,
        lambda_lm: float = LAMBDA_LM,
        lambda_min_from: int = LAMBDA_MIN_FROM,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        wording: TaskWording | None = None,
        prompts: Prompts | str | None = None,
    ) -> None:
        if task not in TASKS:
            raise UnknownName.of("task", task, TASKS)
        self.lambdas = {
            "lambda_max": lambda_max,
            "lambda_min": lambda_min,
            "lambda_lm": lambda_lm,
        }
        for name, value in self.lambdas.items():
            if not 0 <= value <= 1:
                raise BadArgument(
                    f"{name} is a probability or a share, from 0 to 1: got {value}"
                )
        if lambda_min_from not in (1, 2):
            raise BadArgument(
                "lambda_min_from is the round from which lambda_min counts: 2 (the gain between two rounds) or 1 "
                f"(eta_0 = 0 is a round too), got {lambda_min_from}"
            )
        self.lambda_min_from = lambda_min_from
        self.task, self.nuggets, self.nli = task, check_count("nuggets", nuggets), nli
        self.encoder = (
            opened(encoder, query_prefix, passage_prefix)
            if isinstance(encoder, str | Path)
            else encoder
        )
        self._own_wording = wording is not None
        self._ask = CXMIGenerator(scorer, wording or TASKS[task].wording, prompts)

    @property
    def scorers(self) -> tuple[KeptScorer, ...]:
        """What keeps scores in a journal."""
        return self.nli, self._ask.scorer

    def check(self, questions: Iterable[Question]) -> None:
        """Raise now what would go wrong later; each model gives one score, which is kept.

        Raises:
            BadData: a question without an answer, or without all of the evidence that stands in for it.
            Leak: the answerer's prompt shows the answer. ModelError, ServerRefused: a model cannot score.
        """
        wanted = list(questions)
        super().check(wanted)
        if wanted:
            self.nli.entailment([("The mill burned down.", "The mill burned down.")])

    async def achoose(self, batch: Batch) -> list[OracleChoice]:
        """The key supporting evidence of each question's passages, in the order of selection, with its `stages`.

        The batch refines together: one list of entailments a round. Raises as `check`.
        """
        begun = await aio.in_thread(
            lambda: [Refining(self, one, sentences_of(passages)) for one, passages in batch]
        )
        while open_ := [each for each in begun if each.take()]:
            found = await results_of(self.nli, [each.pair for each in open_], "support")
            for each, result in zip(open_, found, strict=True):
                each.supported(result if isinstance(result, Score) else None)
        pools = [[each.candidates[at] for at in each.pool[1:]] for each in begun]
        effects = await self._ask([each.question for each in begun], pools)
        return [each.cleaned(own) for each, own in zip(begun, effects, strict=True)]

    def identity(self) -> dict[str, Any]:
        """What its choices depend on, as JSON; a silver file is bound to it."""
        return {
            "measure": self.measure,
            "task": self.task,
            "nuggets": self.nuggets,
            **self.lambdas,
            "lambda_min_from": self.lambda_min_from,
            "encoder": self.encoder.identity[:16],
            "nli": dict(self.nli.backend.identity),
            **self._ask.identity(),
        }

    def fault_of(self, question: Question) -> str:
        """As `Oracle.fault_of`."""
        answer = question.golden_answers[0]
        if not normalize_answer(answer):
            return f"the answer '{answer:.40}' {NO_WORDS}"
        if evidence_for(self.task, question) == "":
            return (
                f"its answer '{answer:.20}' says too little, and it has no annotated evidence to stand in, or not all "
                "of it: drop the row"
            )
        return ""

    def nothing(self, passages: Sequence[Passage]) -> OracleChoice:
        """As `Oracle.nothing`, with the stages of a synthesis that did not begin."""
        return super().nothing(passages)._replace(stages=Stages((), (), (), "no answer", ()))


class Refining:
    """One question's nuggets on their way through the steps."""

    def __init__(
        self, of: Synthesis, question: Question, candidates: Sequence[Candidate]
    ) -> None:
        self._of, self.question, self.candidates = of, question, tuple(candidates)
        self.evidence = evidence_for(of.task, question) or ""
        target = self.evidence or question.golden_answers[0].strip()
        self.fact = f"{question.question} {target}"
        texts = [candidate.text for candidate in self.candidates]
        vectors = encoded(of.encoder, texts, [self.fact, target])
        # eight digits: a cosine has no more in 32 bits
        self.scores, by_target = (vectors[:2] @ vectors[2:].T).round(8).tolist()
        self.by_target = nearest(by_target, BY_TARGET)
        self.extracted = nearest(self.scores, of.nuggets)
        self._between = vectors[2:] @ vectors[2:].T
        self.pool: list[int] = []
        self.supports: list[float] = []
        self.stop: Stop | None = None if self.candidates else "no nuggets"
        self.cut = False

    @property
    def pair(self) -> tuple[str, str]:
        """The pool and the fact, as the entailment model reads them."""
        return " ".join(self.candidates[at].text for at in self.pool), self.fact

    def take(self) -> bool:
        """Take the next nugget into the pool, where there is one to take; whether there was."""
        left = [at for at in self.extracted if at not in self.pool]
        if self.stop is None and not left:
            self.stop = "all taken"
        if self.stop is None:
            self.pool.append(next_nugget(self.pool, left, self.scores, self._between))
        return self.stop is None

    def supported(self, score: Score | None) -> None:
        """What the entailment model says of the pool; None: the fact is too long for it, and the pool stays so."""
        if score is None:
            self.stop = "fact too long"
            return
        self.cut |= score.cut
        self.supports.append(round(math.exp(score.logprob), 6))
        lambdas = self._of.lambdas
        self.stop = stop_of(
            self.supports,
            lambda_max=lambdas["lambda_max"],
            lambda_min=lambdas["lambda_min"],
            lambda_min_from=self._of.lambda_min_from,
        )

    def cleaned(self, effects: Sequence[float | None]) -> OracleChoice:
        """What is left, by the effects of all nuggets but the first on the answerer."""
        own = (*((None,) if self.pool else ()), *effects)
        chosen = tuple(
            self.pool[at] for at in clean(own, lambda_lm=self._of.lambdas["lambda_lm"])
        )
        stages = Stages(
            self.extracted,
            tuple(self.pool),
            tuple(self.supports),
            self.stop or "all taken",
            own,
            self.by_target,
            self.evidence,
            self.cut,
        )
        return OracleChoice(self.candidates, tuple(self.scores), chosen, stages)


def opened(
    name: str | Path, query_prefix: str | None = None, passage_prefix: str | None = None
) -> Encoder:
    """The encoder of that name, compared by cosine; E5 (by its name) reads its own prefixes where none are given.

    Raises as `load_encoder`.
    """
    if _E5.search(Path(name).name):
        query_prefix = E5_PREFIXES[0] if query_prefix is None else query_prefix
        passage_prefix = E5_PREFIXES[1] if passage_prefix is None else passage_prefix
    return load_encoder(
        str(name),
        query_prefix=query_prefix,
        passage_prefix=passage_prefix,
        similarity="cosine",
    )


def encoded(encoder: Encoder, nuggets: Sequence[str], queries: Sequence[str]) -> Any:
    """The vectors of the queries, then of the nuggets, in rows of length 1."""
    # one by one on a CPU: a text's last bits then do not depend on the texts beside it
    size = 1 if encoder.on_cpu else 64
    parts = encoder.encode_queries(queries), encoder.encode_passages(nuggets, size)
    return np.concatenate([part.vectors for part in parts]).astype(np.float64)
