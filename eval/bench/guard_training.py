"""Train a small cross-encoder that says whether two questions ask the same: for the measurement in `guards.py`.

    python eval/bench/guard_training.py QUESTIONS... --out FOLDER [--minutes 12] [--limit 6000]

QUESTIONS are files of questions (JSON Lines, gzipped or not). It starts from the MiniLM checkpoint that tests are
given, of which the embeddings and the first two layers stay as they are.
Same: a question beside its rewordings by the rules of this file, one or two at once. Not the same: one word of it
exchanged for its opposite or for any other word, another name or number, two names in each other's place, another
question word, a "not"; the question nearest to it by words; half of these reworded besides. No rule here is one that
`guards.py` measures with: openings, synonyms and opposites are others. It still learns what rules make and not what
people write, so its figures say what such a model may do, and a published one is better.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from similarity import read

from blendfilter.trimming.opposites import OPPOSITES, QUESTION_WORDS
from blendfilter.trimming.similar import ByWords

Chance = random.Random
OPENINGS = (
    "Can anyone remember {}", "My question: {}", "I need the answer to this: {}", "Quick one, {}", "Help me out, {}",
    "For a quiz: {}", "{} (for a quiz)", "{} I forgot.", "Remind me, {}", "{} Just curious.", "Actually, {}",
)  # fmt: skip
SYNONYMS = (
    ("begin", "start"), ("actor", "performer"), ("job", "position"), ("buy", "acquire"), ("child", "kid"),
    ("house", "home"), ("fast", "quick"), ("people", "persons"), ("which", "what"), ("how many", "what number of"),
    ("where", "in what place"), ("when", "at what time"), ("who", "which person"), ("why", "for what reason"),
    ("how old", "what age"), ("how long", "for what length of time"), ("won", "was the winner of"),
    ("car", "automobile"),
    ("made", "created"), ("tv", "television"), ("american", "US"), ("during", "in the course of"), ("end", "conclude"),
    ("happened", "took place"), ("war", "conflict"), ("magazine", "periodical"), ("college", "university"),
    ("football", "soccer"), ("player", "athlete"), ("lawyer", "attorney"), ("artist", "painter"), ("team", "squad"),
    ("members", "people belonging"), ("currently", "now"), ("died", "passed away"), ("married", "wed"),
    ("both", "each"), ("only", "sole"), ("also", "too"), ("main", "principal"), ("received", "got"), ("help", "assist"),
    ("street", "road"), ("store", "shop"), ("woman", "lady"), ("award", "prize"), ("show", "programme"),
    ("boss", "chief"),
    ("used", "employed"), ("plays", "portrays"), ("episode", "instalment"), ("released", "came out"),
    ("based", "headquartered"),
    ("often", "frequently"), ("get", "obtain"), ("needed", "required"), ("almost", "nearly"), ("owner", "proprietor"),
)  # fmt: skip
PASSIVE = {
    "wrote": "written", "directed": "directed", "produced": "produced", "sang": "sung", "founded": "founded",
    "invented": "invented", "discovered": "discovered", "painted": "painted", "composed": "composed",
    "designed": "designed", "killed": "killed", "created": "created", "developed": "developed", "recorded": "recorded",
}  # fmt: skip
_CAPITALS = r"[A-Z][\w.-]+(?: [A-Z][\w.-]+)*"
_NAME = re.compile(rf"(?<=[a-z,] ){_CAPITALS}")
_WORD = re.compile(r"\b[a-z]{4,}\b")


def opened(question: str, chance: Chance) -> str:
    """With words around it."""
    return chance.choice(OPENINGS).format(question)


def other_words(question: str, chance: Chance) -> str:
    """Some words exchanged for synonyms."""
    for pair in chance.sample(SYNONYMS, len(SYNONYMS)):
        old, new = pair if chance.random() < 0.5 else pair[::-1]
        if re.search(rf"\b{old}\b", question, re.IGNORECASE):
            return re.sub(rf"\b{old}\b", new, question, count=1, flags=re.IGNORECASE)
    return question


def owned(question: str, chance: Chance) -> str:
    """`X's genre` for `the genre of X`, and back."""
    found = re.sub(rf"\bthe (\w+) of ({_CAPITALS})", r"\2's \1", question)
    return found if found != question else re.sub(rf"\b({_CAPITALS})'s (\w+)", r"the \2 of \1", question)


def passive(question: str, chance: Chance) -> str:
    """`By whom was X written` for `Who wrote X`."""
    found = re.match(r"who (\w+) (.+?)\??$", question, re.IGNORECASE)
    if found is None or found[1].lower() not in PASSIVE:
        return question
    form = chance.choice(("By whom was {} {}?", "{} was {} by whom?", "{} was {} by which person?"))
    return form.format(found[2], PASSIVE[found[1].lower()])


def indirect(question: str, chance: Chance) -> str:
    """`State what X is` for `What is X`."""
    found = re.match(r"(who|what|where|when) (is|was|are|were) (.+?)\??$", question, re.IGNORECASE)
    form = chance.choice(("State {0} {2} {1}.", "I forgot {0} {2} {1}.", "We should find {0} {2} {1}"))
    return form.format(found[1].lower(), found[2], found[3]) if found else question


def written(question: str, chance: Chance) -> str:
    """In small letters, or without its mark, or with a slip of the keyboard."""
    at = chance.randrange(len(question) - 1)
    slip = question[:at] + question[at + 1] + question[at] + question[at + 2 :]
    return chance.choice((question.lower(), question.rstrip("?"), slip if len(question) > 40 else question))


REWORDINGS: tuple[Callable[[str, Chance], str], ...] = (
    opened,
    other_words,
    other_words,
    owned,
    passive,
    indirect,
    written,
)


def reworded(question: str, chance: Chance) -> str:
    """By one rule or two."""
    for _ in range(chance.choice((1, 2, 2))):
        for rule in chance.sample(REWORDINGS, len(REWORDINGS)):
            if (found := rule(question, chance)) != question:
                question = found
                break
    return question


class Changes:
    """What makes another question of one."""

    def __init__(self, questions: Sequence[str], without: frozenset[str]) -> None:
        self.names = sorted({name for each in questions for name in _NAME.findall(each)})
        counts = Counter(word for each in questions for word in _WORD.findall(each))
        self.words = [word for word, count in counts.items() if 3 <= count <= 400]
        self.pairs = [pair for pair in OPPOSITES if without.isdisjoint(pair)]
        self.rules = (self.opposite, self.name, self.number, self.word, self.word, self.turned, self.asks, self.negated)

    def opposite(self, question: str, chance: Chance) -> str:
        for pair in chance.sample(self.pairs, len(self.pairs)):
            for old, new in (pair, pair[::-1]):
                if re.search(rf"\b{old}\b", question):
                    return re.sub(rf"\b{old}\b", new, question, count=1)
        return question

    def name(self, question: str, chance: Chance) -> str:
        found = [*_NAME.finditer(question)]
        if not found:
            return question
        one = chance.choice(found)
        parts, new = one.group().split(), chance.choice(self.names)
        if len(parts) > 1 and chance.random() < 0.5:  # one of its words alone
            parts[chance.randrange(len(parts))] = new.split()[0]
            new = " ".join(parts)
        return question[: one.start()] + new + question[one.end() :]

    def number(self, question: str, chance: Chance) -> str:
        return re.sub(
            r"\d+", lambda found: str(int(found.group()) + chance.choice((-10, -1, 1, 2, 100))), question, count=1
        )

    def word(self, question: str, chance: Chance) -> str:
        found = [*_WORD.finditer(question)]
        if not found:
            return question
        one = chance.choice(found)
        ending = one.group()[-2:]
        alike = [word for word in self.words if word.endswith(ending)] or self.words
        return question[: one.start()] + chance.choice(alike) + question[one.end() :]

    def turned(self, question: str, chance: Chance) -> str:
        found = [*_NAME.finditer(question)]
        if len(found) < 2:
            return question
        a, b = found[:2]
        return question[: a.start()] + b.group() + question[a.end() : b.start()] + a.group() + question[b.end() :]

    def asks(self, question: str, chance: Chance) -> str:
        for word in QUESTION_WORDS:
            if re.match(rf"{word}\b", question, re.IGNORECASE):
                return chance.choice(("When", "Where", "Why", "How", "Who")) + question[len(word) :]
        return question

    def negated(self, question: str, chance: Chance) -> str:
        return re.sub(
            r"\b(is|was|were|are|did|does|has)\b", rf"\1 {chance.choice(('not', 'never'))}", question, count=1
        )

    def changed(self, question: str, chance: Chance) -> str:
        for rule in chance.sample(self.rules, len(self.rules)):
            if (found := rule(question, chance)).casefold() != question.casefold():
                return found
        return chance.choice(self.names)


def pairs(questions: Sequence[str], without: frozenset[str], seed: int = 5) -> list[tuple[str, str, int]]:
    """Pairs of questions, and whether they ask the same: three of a question."""
    chance, change = Chance(seed), Changes(questions, without)
    half, near = len(questions) // 2, ByWords()
    near.add(questions[:half])
    made = []
    for question in questions:
        other = change.changed(question, chance)
        made += [
            (question, reworded(question, chance), 1),
            (question, reworded(question, chance), 1),
            (question, reworded(other, chance) if chance.random() < 0.5 else other, 0),
        ]
        other = change.changed(question, chance)
        made.append((reworded(question, chance) if chance.random() < 0.5 else question, other, 0))
    for question, found in zip(questions[half:], near.nearest(questions[half:]), strict=True):
        if found is not None:
            made.append((question, questions[found.at], 0))
    chance.shuffle(made)
    return [(b, a, same) if chance.random() < 0.5 else (a, b, same) for a, b, same in made]


def train(made: Sequence[tuple[str, str, int]], out: Path, minutes: float, batch: int = 16) -> None:
    """One pass at most, as far as the time goes."""
    import torch
    from checkpoints import minilm_package
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(5)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(minilm_package())
    model = AutoModelForSequenceClassification.from_pretrained(minilm_package(), num_labels=1).train()
    for part in (model.base_model.embeddings, *model.base_model.encoder.layer[:2]):
        part.requires_grad_(False)
    optimiser = torch.optim.AdamW(
        [each for each in model.parameters() if each.requires_grad], lr=2e-4, weight_decay=0.01
    )
    # pairs of like length together: less padding
    made = [pair for at in range(0, len(made), 20 * batch) for pair in sorted(made[at : at + 20 * batch], key=_length)]
    starts = [*range(0, len(made), batch)]
    Chance(6).shuffle(starts)
    started, losses = time.monotonic(), list[float]()
    for step, at in enumerate(starts):
        done = max(step / len(starts), (time.monotonic() - started) / (60 * minutes))
        if done >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = 2e-4 * min(1, (step + 1) / 50) * (1 - done)
        some = made[at : at + batch]
        read = tokenizer(
            [a for a, *_ in some],
            [b for _, b, _ in some],
            padding=True,
            truncation=True,
            max_length=96,
            return_tensors="pt",
        )
        wanted = torch.tensor([float(same) for *_, same in some])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(**read).logits[:, 0], wanted)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        if step % 50 == 49:
            print(
                f"{step * batch:,} pairs, {time.monotonic() - started:.0f} s, loss {sum(losses[-50:]) / 50:.3f}",
                flush=True,
            )
    model.eval().save_pretrained(out)
    tokenizer.save_pretrained(out)


def _length(pair: tuple[str, str, int]) -> int:
    return len(pair[0]) + len(pair[1])


def main() -> None:
    """Train, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--limit", type=int, default=6000)
    parser.add_argument("--longest", type=int, default=12, help="words of a question")
    given = parser.parse_args()
    from guards import exchanged_words

    questions = [each for file in given.questions for each in read(file) if 4 <= len(each.split()) <= given.longest]
    some = Chance(5).sample(questions, min(given.limit, len(questions)))
    made = pairs(some, exchanged_words())
    print(f"{len(some):,} questions, {len(made):,} pairs, {sum(same for *_, same in made):,} of them the same")
    train(made, given.out, given.minutes)


if __name__ == "__main__":
    main()
