"""What simulated newcomers like, as rewards of a response's text, and how they judge by it.

short         short and complete: an ended text, the fewer words the better
consistent    no repetition and no contradiction; of texts that are equal in this, an ended one
structure     the form that the prompt asks for: a list, numbered steps, a table, so many sentences or items,
              the closer the better; of texts that are equal in this, an ended one
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random

Rule = Callable[[str, str], float]
"""The true reward of a response to a prompt, both as text."""

NOISE = 0.12
"""Share of judgments that are the other way round."""

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_ENDED = re.compile(r"""[.!?…:]["'”’»)\]*_]*\s*$""")
_ITEM = re.compile(r"^[ \t]*(?:[-*•+]|\d{1,3}[.)])[ \t]+\S", re.MULTILINE)
_NUMBERED = re.compile(r"^[ \t]*\d{1,3}[.)][ \t]+\S", re.MULTILINE)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]")
_NOT = re.compile(r"\b(?:not|never|no)\b|n['’]t\b")
_BRIEF = re.compile(r"\b(?:brief|briefly|short|one line|in a line)\b")
_COUNTS: Mapping[str, int] = {
    **{"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8},
}
_NUMBER = rf"({'|'.join(_COUNTS)}|\d+)"
_SENTENCES = re.compile(rf"{_NUMBER} (?:short |simple )?sentences?\b", re.IGNORECASE)
_ITEMS = re.compile(
    rf"{_NUMBER} (?:\w+ ){{0,3}}?(?:things|ways|tips|steps|reasons|questions|names|examples|games|items)\b",
    re.IGNORECASE,
)


def words_in(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return [word.lower() for word in _WORD.findall(text)]


def is_complete(text: str) -> bool:
    """Return whether a text ends with a sentence, or is too short to need one."""
    stripped = text.strip()
    return bool(_ENDED.search(stripped)) or 0 < len(words_in(stripped)) < 8


def short_and_complete(prompt: str, text: str) -> float:
    """Return 2 for a complete text, less one for every forty words."""
    return 2.0 * is_complete(text) - len(words_in(text)) / 40


def consistent(prompt: str, text: str) -> float:
    """Return 0 for a text that says nothing twice and nothing against itself, less for each share of it.

    What is said again counts by runs of four words, and half as much by pairs of words; breaking off counts
    least.
    """
    words = words_in(text)
    if not words:
        return -4.0
    repeated = _repeated(words, 4) + _repeated(words, 2) / 2
    return -4.0 * repeated - _contradictions(text) - 0.1 * (not is_complete(text))


def _repeated(words: Sequence[str], length: int) -> float:
    """Return the share of runs of so many words that were there before."""
    runs = [tuple(words[place : place + length]) for place in range(len(words) - length + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _contradictions(text: str) -> int:
    """Count the sentences that are said with a negation and without."""
    said: dict[str, set[bool]] = {}
    for sentence in _SENTENCE.findall(text):
        plain = " ".join(words_in(_NOT.sub(" ", sentence)))
        said.setdefault(plain, set()).add(bool(_NOT.search(sentence.lower())))
    return sum(len(both) == 2 for both in said.values())


def structure(prompt: str, text: str) -> float:
    """Return how close a text comes to the form that was asked for, and a little for an ended one.

    A form that is there or not is worth a point; so many sentences or items a point less what is missing or
    too much of them. Where no number is asked for, a
    brief text has two sentences and another one four.
    """
    asked = prompt.lower()
    items, sentences = len(_ITEM.findall(text)), len(_SENTENCE.findall(text))
    points = 0.25 * is_complete(text)
    if "numbered" in asked or "steps" in asked:
        points += len(_NUMBERED.findall(text)) >= 2
    elif "list" in asked or "bullet" in asked:
        points += items >= 2
    if "table" in asked:
        points += text.count("|") >= 4
    if wanted := _count(_SENTENCES, asked):
        points += _closeness(sentences, wanted)
    elif wanted := _count(_ITEMS, asked):
        points += _closeness(max(items, 1), wanted)
    else:
        points += _closeness(max(sentences, 1), 2 if _BRIEF.search(asked) else 4)
    if "one word" in asked:
        points += len(words_in(text)) == 1
    return points


def _closeness(count: int, wanted: int) -> float:
    """Return 1 for as many as were asked for, and down to −1 the further the count lies from that."""
    return 1 - 2 * abs(count - wanted) / max(count, wanted)


def _count(pattern: re.Pattern[str], asked: str) -> int:
    found = pattern.search(asked)
    return 0 if found is None else _COUNTS.get(found[1]) or int(found[1])


RULES: Mapping[str, Rule] = {
    "short": short_and_complete,
    "consistent": consistent,
    "structure": structure,
}


def ranks_of(rule: Rule | None, prompt: str, texts: Sequence[str], random: Random) -> list[int]:
    """Return the rank of each response, 1 best, equal for ties, as a newcomer with 12 % noise gives it.

    rule: None for one who answers at random.
    """
    rewards = [random.random() if rule is None else rule(prompt, text) for text in texts]
    if rule is not None and random.random() < NOISE:
        rewards = [-reward for reward in rewards]
    return [1 + sum(other > reward for other in rewards) for reward in rewards]


# ── Fresh prompts, of the kinds that the first project has ──


_TOPICS = (
    *("bicycles", "honey", "rain", "bridges", "chess", "sleep", "trains", "bread", "wolves", "soap"),
    *("maps", "glass", "tea", "gardens", "clocks", "salt", "music", "snow", "libraries", "shoes"),
)
_FORMS = (
    "What are {topic} good for? Answer in two sentences.",
    "Name three things that people get wrong about {topic}. Use a list.",
    "Explain {topic} to a seven-year-old in three short sentences.",
    "Give four tips about {topic}, as a list with one line each.",
    "How would you teach a class about {topic}? Give five numbered steps.",
    "Write one sentence about {topic} for a poster.",
    "Give two reasons why {topic} matter. One line each, as a list.",
    "Ask three questions about {topic}. Use a numbered list.",
    "Describe {topic} to somebody who has never met with them. Be brief.",
    "Write a short message to a friend who likes {topic}. Two sentences.",
)


def fresh_prompts(count: int) -> list[str]:
    """Return prompts that are not in the first project, in an order that mixes forms and topics."""
    pairs = [(form, topic) for form in _FORMS for topic in _TOPICS]
    Random(0).shuffle(pairs)
    return [form.format(topic=topic) for form, topic in pairs[:count]]
