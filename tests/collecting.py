"""A pytest plugin: tests of Hypothesis bear the marker `drawn`; and collecting is quick.

There is no search for unreachable objects while tests are collected, none among what they import.

Modules, models and some ten thousand collected tests live as long as the process; each full search would walk
through all of them again.
"""

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        # What cannot be reached any more stays too: to search for it would take a second of each process.
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.drawn)
