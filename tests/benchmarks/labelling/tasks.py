"""The pairs that the load is made of: 40 to 60 words asked, 100 to 140 words answered, twice.

The same sizes as in `../shared/peers/label_studio`, so that both servers move the same texts.
"""

import random
from dataclasses import dataclass

_TEXT = (
    "the of and to in is that for it as was with be by on not are this have from or had which one you were "
    "all there would their been has when who will no more if out so up said what its about than into them "
    "can only other time new some could these two may first then do any like now over such our most made "
    "after also did many off before must well back through years much where way down should because long "
    "model answer explain describe function value list number system process water light energy market "
    "price result question context detail example reason method data train language history city river"
)
WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Task:
    """One pair."""

    prompt: str
    answers: tuple[str, str]


def make_tasks(number: int, *, seed: int = 1) -> list[Task]:
    """The same tasks for the same seed."""
    chance = random.Random(seed)

    def text(low: int, high: int) -> str:
        words = chance.choices(WORDS, k=chance.randint(low, high))
        return " ".join(words).capitalize() + "."

    return [Task(f"{n}. {text(40, 60)}", (text(100, 140), text(100, 140))) for n in range(number)]
