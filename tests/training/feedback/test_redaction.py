"""Patterns: what is refused when they are saved, and that no text can make them slow."""

import time

import pytest

from annotation.errors import Refusal
from training.services.feedback.settings import SUGGESTED, Redactor, TooSlowError, checked_patterns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mail anna.b+x@example.co.uk, please", "Mail [redacted], please"),
        ("Call +49 (30) 123 45-67.", "Call [redacted]."),
        ("In 2026 I was 35.", "In 2026 I was 35."),
    ],
)
def test_the_suggested_patterns_find_addresses_and_numbers(text: str, expected: str):
    assert Redactor(checked_patterns(SUGGESTED))(text) == expected


@pytest.mark.parametrize("pattern", ["(", "a**", "x*", "", r"(?:a|aa)+$", "a" * 501, "\x00"])
def test_patterns_that_would_harm_are_refused_when_they_are_saved(pattern: str):
    if not pattern:
        assert checked_patterns([" ", pattern]) == []
        return
    with pytest.raises(Refusal) as refused:
        checked_patterns(["fine", pattern])
    assert refused.value.field == "patterns"
    assert "2" in refused.value.message


def test_more_patterns_than_a_request_has_time_for_are_refused():
    with pytest.raises(Refusal):
        checked_patterns(["a"] * 51)


def test_time_is_bounded_over_all_patterns_and_texts():
    redact = Redactor([r"(?:a|aa)+$"], seconds=0.1)
    began = time.thread_time()
    with pytest.raises(TooSlowError):
        redact("a" * 10_000 + "b")
    assert time.thread_time() - began < 2
    with pytest.raises(TooSlowError):
        redact("short")
