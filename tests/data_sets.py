"""A pytest plugin: data sets that tests read, small ones of ours and, where they are there, the real ones.

`RONDO_TEST_DATA` names a folder with the published sets (`qa_feedback/feedback.json`,
`hh_rlhf/harmless.jsonl.gz`, …). Nothing else outside the checkout is read. `small_data` is a folder with
files of ours in the same shapes, composed from a seed. A test that takes `data` runs on both, one that takes
`real_data` on the real ones alone; the marker `real_data` selects what needs them.
"""

import gzip
import json
import os
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from webapp.demo.texts import Topic, topics

VARIABLE = "RONDO_TEST_DATA"
NEEDS = f"needs the real data sets: {VARIABLE} names their folder"
_QUESTIONS = 40
_PAIRS = 60
_ERRORS = ("Irrelevant", "Redundant", "Incoherent", "Wrong-Grounding", "Unverifiable")


def data_folder() -> Path:
    """Return the folder of the real sets. Raises `FileNotFoundError` where the setting names none."""
    folder = Path(os.environ.get(VARIABLE, "") or "/nowhere")
    if not folder.is_dir():
        raise FileNotFoundError(f"{NEEDS}.")
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes the real sets, before a selection by marker is made."""
    for item in items:
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker("real_data")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real sets; skips the test without them."""
    try:
        return data_folder()
    except FileNotFoundError:
        pytest.skip(NEEDS)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sets of ours."""
    return write_small_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session", params=["small", pytest.param("real", marks=pytest.mark.real_data)])
def data(request: pytest.FixtureRequest) -> Path:
    """The folder of the small sets, then of the real ones."""
    folder: Path = request.getfixturevalue(f"{request.param}_data")
    return folder


def write_small_data(folder: Path) -> Path:
    """Write every set of ours below `folder`, and return it."""
    chance = Random(7)
    _write_json(folder / "qa_feedback" / "feedback.json", list(qa_feedback(chance)))
    _write_lines(folder / "hh_rlhf" / "harmless.jsonl.gz", _transcripts(chance))
    for name in ("auto_j", "alpaca_eval", "llmbar"):
        _write_lines(folder / name / "pairs.jsonl.gz", _pairs(chance))
    names = ["".join(chance.choices("abdeiklmnorstu", k=chance.randint(3, 6))) for _ in range(120)]
    _write_json(folder / "names_reversal" / "names.json", {"train": names[:90], "dev": names[85:]})
    return folder


def qa_feedback(chance: Random) -> Iterator[dict[str, Any]]:
    """Yield questions with four answers, the six preferences between them, and faults of the first."""
    questions = [(topic, question) for topic in topics() for question in topic.questions()]
    for number, (topic, question) in enumerate(chance.sample(questions, _QUESTIONS)):
        sentences = [[*topic.facts[:3]], [*topic.facts[3:]]]
        answers: list[str] = []
        while len(answers) < 4:
            answers += [] if (answer := _answer(topic, chance)) in answers else [answer]
        yield {
            "question": question,
            "passages": [
                [topic.topic, f"{topic.topic}\n\n{first[0]}", *first[1:]] for first in sentences if first
            ],
            "gold": " ".join(topic.facts),
            **{f"prediction {place}": answer for place, answer in enumerate(answers, start=1)},
            "feedback": {
                # Some have no fault of either kind.
                "errors": [] if number % 8 == 0 else list(_errors(answers[0], chance)),
                "missing-info": []
                if number % 8 == 0
                else [{"error type": "Missing-Answer", "passage_id": 1, "sentence_id": [1, 2]}],
                "corrected-prediction": topic.facts[0],
            },
            "preference": _preferences(chance, is_weak_order=number % 10 != 3),
        }


def _answer(topic: Topic, chance: Random) -> str:
    error = chance.choice(topic.errors)
    sentences = [*chance.sample(topic.facts, 2), f"{error[0].upper()}{error[1:]}."]
    chance.shuffle(sentences)
    return " ".join(sentences)


def _errors(text: str, chance: Random) -> Iterator[dict[str, Any]]:
    """Yield a fault of each of one or two sentences, as a stretch of the text."""
    start = 0
    for sentence in text.split(". ")[: chance.randint(1, 2)]:
        yield {
            "error type": chance.choice(_ERRORS),
            "explanation": chance.choice(("", "p1 s2")),
            "start": start,
            "end": start + len(sentence),
        }
        start += len(sentence) + 2


def _preferences(chance: Random, *, is_weak_order: bool) -> list[int]:
    """Return six preferences, 1v2 to 3v4: of a ranking, or with ties that are not transitive."""
    if not is_weak_order:
        # 1 beats 2, and each is as good as 3 and 4.
        return [1, 0, 0, 0, 0, 0]
    ranks = [1, 1, 1, 1]
    while len(set(ranks)) == 1:
        ranks = [chance.randint(1, 3) for _ in range(4)]
    return [
        0 if ranks[first] == ranks[second] else 1 if ranks[first] < ranks[second] else 2
        for first, second in combinations(range(4), 2)
    ]


def _transcripts(chance: Random) -> Iterator[dict[str, str]]:
    """Yield chosen and rejected dialogues with a common beginning; the last two cannot be read."""
    for _ in range(_PAIRS):
        topic = chance.choice(topics())
        first, second = chance.sample(list(topic.questions()), 2)
        begin = f"\n\nHuman: {first}\n\nAssistant: {topic.facts[0]}\n\nHuman: {second}\n\nAssistant: "
        yield {"chosen": begin + topic.facts[1], "rejected": begin + topic.errors[0].capitalize()}
    yield {"chosen": f"{begin}Yes.", "rejected": begin}
    yield {"chosen": f"{begin}Yes.", "rejected": "\n\nHuman: Another?\n\nAssistant: No.\n\nHuman: So?"}


def _pairs(chance: Random) -> Iterator[dict[str, str]]:
    """Yield two responses to a prompt, and which of them is better."""
    for number in range(_PAIRS):
        topic = chance.choice(topics())
        prompt = chance.choice(list(topic.questions()))
        good, bad = " ".join(topic.facts[:2]), f"{topic.errors[0].capitalize()}."
        label = ("a", "b", "tie")[number % 3]
        responses = (good, bad) if label != "b" else (bad, good)
        yield {
            "prompt": prompt,
            "response_a": responses[0],
            "response_b": responses[1],
            "label": label,
            "scenario": "explaining",
            "subset": "natural",
            "model_a": "one",
            "model_b": "two",
        }


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def _write_lines(path: Path, rows: Iterator[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
