"""Prompts and responses of the demo project, composed of facts and of known flaws."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

IRRELEVANT, UNTRUTHFUL = "irrelevant", "untruthful"
"""Keys of the span categories of fine-grained feedback."""

_QUESTIONS = (
    "How do I {task}?",
    "What should a beginner know about {topic}?",
    "Give me three tips on {topic}.",
    "Explain {topic} to a ten-year-old.",
    "Is it true that {claim}?",
    "I read that {other_claim}. Can you check this?",
    "Summarise what matters about {topic} in two sentences.",
    "What do most people get wrong about {topic}?",
)
_ASIDES = (
    "Many people also like to listen to music.",
    "The weather plays no small role in daily life.",
    "There are several books in the library.",
    "Opinions differ, as they always do.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flaw:
    """A flawed stretch of a response: [start, end) in code points, and the key of its category."""

    start: int
    end: int
    category: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoResponse:
    """A composed response with its flaws and its true quality."""

    text: str
    flaws: tuple[Flaw, ...]
    quality: float
    is_truncated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Skill:
    """Probabilities of a simulated model: of each sort of flaw in a response, and its number of facts."""

    wrong: float
    irrelevant: float
    repeated: float
    truncated: float
    facts: tuple[int, int]
    names_itself: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Topic:
    """One topic: its task, facts and errors."""

    topic: str
    task: str
    facts: tuple[str, ...]
    errors: tuple[str, ...]
    """False claims, as clauses without capital and full stop."""

    def questions(self) -> Iterator[str]:
        """Yield the prompts about it."""
        claim, other_claim = self.errors
        for question in _QUESTIONS:
            yield question.format(topic=self.topic, task=self.task, claim=claim, other_claim=other_claim)


@cache
def topics() -> tuple[Topic, ...]:
    """Return all topics."""
    path = Path(__file__).parent / "topics.jsonl"
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return tuple(
        Topic(topic=row["topic"], task=row["task"], facts=tuple(row["facts"]), errors=tuple(row["errors"]))
        for row in rows
    )


@cache
def topics_by_question() -> Mapping[str, Topic]:
    """Return the topic of each prompt's text."""
    return {question: topic for topic in topics() for question in topic.questions()}


def prompt_rows(count: int, chance: Random) -> Iterator[str]:
    """Yield lines of a prompt file: all topics before a second prompt on one of them."""
    questions = list(zip(*(topic.questions() for topic in topics()), strict=True))
    kinds = ("how-to", "overview", "tips", "explanation", "check", "check", "summary", "mistakes")
    rows = []
    for kind, of_kind in zip(kinds, questions, strict=True):
        shuffled = list(of_kind)
        chance.shuffle(shuffled)
        rows += [(kind, question) for question in shuffled]
    for kind, question in rows[:count]:
        yield json.dumps({"prompt": question, "tags": [kind]})


def compose(topic: Topic, skill: Skill, chance: Random) -> DemoResponse:
    """Compose a response of a model of this skill. The same `chance` composes the same response."""
    facts = chance.sample(topic.facts, chance.randint(*skill.facts))
    sentences = [(fact, "") for fact in facts]
    if chance.random() < skill.wrong:
        error = chance.choice(topic.errors)
        sentences.insert(chance.randint(0, len(sentences)), (f"{error[0].upper()}{error[1:]}.", UNTRUTHFUL))
    if chance.random() < skill.repeated:
        sentences.append((f"As I said, {facts[0][0].lower()}{facts[0][1:]}", IRRELEVANT))
    if chance.random() < skill.irrelevant:
        sentences.insert(chance.randint(1, len(sentences)), (chance.choice(_ASIDES), IRRELEVANT))
    if chance.random() < skill.names_itself:
        sentences.insert(0, ("As SmolLM, a language model, I can help with that.", IRRELEVANT))
    is_truncated = chance.random() < skill.truncated
    text, flaws = _laid_out(sentences, as_list=chance.random() < 0.35)
    if is_truncated:
        text = text[: max(20, len(text) - chance.randint(8, 25))].rstrip()
        flaws = tuple(flaw for flaw in flaws if flaw.end <= len(text))
    quality = len(facts) - sum(2.0 if flaw.category == UNTRUTHFUL else 0.8 for flaw in flaws)
    return DemoResponse(
        text=text, flaws=flaws, quality=quality - 0.9 * is_truncated, is_truncated=is_truncated
    )


def rewrite(topic: Topic, text: str) -> str:
    """Return another response than `text` that holds true facts alone."""
    facts = topic.facts[:3]
    written = " ".join(facts)
    return written if written != text else " ".join(facts[:2])


def _laid_out(sentences: list[tuple[str, str]], *, as_list: bool) -> tuple[str, tuple[Flaw, ...]]:
    """Join sentences, each with the category of its flaw or "", to a paragraph or to a Markdown list."""
    text, flaws = "", []
    for sentence, category in sentences:
        if text:
            text += "\n" if as_list else " "
        text += "- " if as_list else ""
        if category:
            flaws.append(Flaw(start=len(text), end=len(text) + len(sentence), category=category))
        text += sentence
    return text, tuple(flaws)
