"""Cached values: those that took long to compute are shown for a while, quick ones are always new."""

import time

import pytest

from annotation.selectors import cached_counts
from annotation.selectors.cached_counts import cached, is_cached


class Counter:
    """A function that counts its calls and takes `seconds` for each."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.calls = 0
        self.seconds = seconds

    def __call__(self) -> int:
        time.sleep(self.seconds)
        self.calls += 1
        return self.calls


def test_what_is_quick_is_computed_each_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cached_counts, "QUICK_SECONDS", 60.0)
    count = Counter()
    assert [cached(count, "quick", 1), cached(count, "quick", 1)] == [1, 2]
    assert not is_cached("quick", 1)


def test_what_took_long_is_shown_again_but_not_for_another_project(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cached_counts, "QUICK_SECONDS", 0.001)
    count = Counter(0.02)
    assert [cached(count, "slow", 1), cached(count, "slow", 1), cached(count, "slow", 2)] == [1, 1, 2]
    assert is_cached("slow", 1)


def test_nothing_found_is_kept_as_well(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cached_counts, "QUICK_SECONDS", 0.001)
    calls = []

    def nothing() -> None:
        time.sleep(0.02)
        calls.append(1)

    assert [cached(nothing, "nothing"), cached(nothing, "nothing")] == [None, None]
    assert len(calls) == 1
