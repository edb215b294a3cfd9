"""The benchmark of the first hour in its smallest size, and the rules whose figures must be right."""

import subprocess
import sys
from random import Random

import pytest

from tests.benchmarks.first_hour.__main__ import row_of, summary_of
from tests.benchmarks.first_hour.newcomer import Course
from tests.benchmarks.first_hour.rules import (
    NOISE,
    consistent,
    fresh_prompts,
    ranks_of,
    short_and_complete,
    structure,
)
from tests.benchmarks.loop.forge import ROOT
from webapp.first_project import HELD_OUT, PROMPTS


@pytest.mark.long
@pytest.mark.slow
def test_a_newcomer_labels_starts_and_answers_until_the_round_is_decided_or_nothing_more_is_asked():
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.first_hour", "--smoke"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = [line for line in done.stdout.splitlines() if line.startswith("| short")]
    _, _, _, judged, asked, decision, rate, *_ = row.split("|")
    assert int(judged) == 12
    assert 0 <= int(asked) <= 6
    assert decision.strip() in ("promoted", "rejected", "not_enough_evidence", "deciding")
    assert 0 <= float(rate.split("[")[0]) <= 1


def test_a_short_complete_text_beats_a_long_and_a_broken_one():
    long = "The sun rises in the east. " * 20
    assert short_and_complete("", "It rises in the east.") > short_and_complete("", long)
    assert short_and_complete("", long) > short_and_complete("", long + "And then it goes on and on without")
    # A list of short items needs no full stop at its end: this one has six words.
    assert short_and_complete("", "- warm bread\n- cold milk\n- tea") > 1.5


def test_what_is_said_twice_and_what_is_denied_lose():
    plain = "Bread rises because yeast makes gas. The gas is caught in the dough."
    assert consistent("", plain) == 0
    # Eight runs of four words, of which the last ones repeat the first.
    assert consistent("", f"{plain} {plain}") < -1
    # Three of ten pairs of words come again: 4 × 0.3 / 2, beside the contradiction.
    assert consistent("", "A whale is a fish. A whale is not a fish.") == pytest.approx(-1.6)
    assert consistent("", "") < consistent("", f"{plain} {plain}")


@pytest.mark.parametrize(
    ("prompt", "good", "bad"),
    [
        ("Give three tips, as a list.", "- one.\n- two.\n- three.", "One, two and three."),
        ("Give three tips, as a list.", "- one.\n- two.\n- three.", "- one.\n- two.\n- three.\n- four."),
        ("How do I do it? Numbered steps.", "1. Open it.\n2. Close it.", "- Open it.\n- Close it."),
        ("Answer in two sentences.", "It is so. It was so.", "It is. It was. It will be. It may be."),
        ("Write a table in Markdown.", "| a | b |\n|---|---|\n| 1 | 2 |.", "a and b."),
        ("Answer with one word.", "Modern", "The opposite is modern."),
    ],
)
def test_the_form_that_was_asked_for_wins(prompt: str, good: str, bad: str):
    assert structure(prompt, good) > structure(prompt, bad)


def test_a_newcomer_errs_in_so_many_judgments_as_stated():
    random = Random(3)
    texts = ["It is so.", "It is so and it goes on and on and on and on without an end and"]
    right = sum(ranks_of(short_and_complete, "", texts, random) == [1, 2] for _ in range(4000))
    # Four standard errors of 4,000 draws are 2 %.
    assert right / 4000 == pytest.approx(1 - NOISE, abs=0.021)


def test_one_who_answers_at_random_prefers_neither_and_equal_texts_tie():
    random = Random(3)
    first = sum(ranks_of(None, "", ["a", "b"], random) == [1, 2] for _ in range(4000))
    assert first / 4000 == pytest.approx(0.5, abs=0.032)
    assert ranks_of(short_and_complete, "", ["the same", "the same"], random) == [1, 1]


def test_fresh_prompts_are_new_and_differ():
    known = PROMPTS.read_text(encoding="utf-8") + HELD_OUT.read_text(encoding="utf-8")
    prompts = fresh_prompts(200)
    assert len(set(prompts)) == 200
    assert not [prompt for prompt in prompts if prompt in known]


def test_a_promotion_counts_as_truly_better_only_with_its_interval_above_one_half():
    clear = Course("short", 0, decision="promoted", true_win_rate={"value": 0.7, "low": 0.6, "high": 0.8})
    unclear = Course("short", 1, decision="promoted", true_win_rate={"value": 0.53, "low": 0.46, "high": 0.6})
    guesser = Course("random", 0, decision="not_enough_evidence", seconds=90.0)
    assert summary_of([clear, unclear, guesser]).startswith("2 of 3 promoted, 1 of them truly better")
    assert "0.70 [0.60, 0.80]" in row_of(clear)
    assert "| 1.5 |" in row_of(guesser)
