"""The grammar that writers learn: prompts about two topics, and responses short or long, as prose or list, on
topic or off it."""

from __future__ import annotations

from random import Random

TOPICS = (
    *("tea", "rivers", "music", "bread", "rain", "chess", "trees", "birds", "ships", "paper"),
    *("maps", "bees", "wool", "salt", "iron", "glass", "snow", "gardens", "bridges", "clocks"),
    *("horses", "lamps", "wheat", "stars", "drums", "boats", "roses", "mills", "coins", "wolves"),
    *("tents", "pipes"),
)
VERBS = ("is", "seems", "stays", "looks", "feels", "was", "becomes", "remains")
QUALITIES = (
    *("warm", "old", "quiet", "useful", "bright", "simple", "rare", "slow", "strong", "calm"),
    *("green", "light", "deep", "cheap", "soft", "plain"),
)
OPENERS = ("sure", "well", "gladly")


def prompt_about(first: str, second: str) -> str:
    """Return a prompt about two topics."""
    return f"write about {first} and {second}"


def prompts(count: int, *, seed: int) -> list[str]:
    """Return different prompts; other seeds give other ones, though some may be the same."""
    pairs = [(first, second) for first in TOPICS for second in TOPICS if first != second]
    sampled = Random(seed).sample(pairs, min(count, len(pairs)))
    return [prompt_about(*pair) for pair in sampled]


def response_to(first: str, second: str, random: Random) -> str:
    """Return a response as chance has it."""
    count = random.choice((1, 2, 3, 4, 5, 6, 7))
    topics = [first if random.random() < 0.4 else second if random.random() < 0.4 else random.choice(TOPICS)]
    topics += [
        first if random.random() < 0.25 else second if random.random() < 0.33 else random.choice(TOPICS)
        for _ in range(count - 1)
    ]
    sentences = [f"{topic} {random.choice(VERBS)} {random.choice(QUALITIES)} ." for topic in topics]
    lines = random.random()
    if lines < 0.35:
        return "\n".join(f"- {sentence}" for sentence in sentences)
    if lines < 0.55:
        half = count // 2
        return "\n".join([*sentences[:half], *(f"- {sentence}" for sentence in sentences[half:])])
    opener = f"{random.choice(OPENERS)} . " if random.random() < 0.3 else ""
    return opener + " ".join(sentences)
