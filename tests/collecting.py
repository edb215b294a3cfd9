"""A pytest plugin: look for unreachable objects neither while tests are collected nor among what they import.

Modules, models and some ten thousand collected tests live as long as the process. Without this each full search
walks through all of them, again and again.
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
        gc.collect()
        gc.freeze()
        gc.enable()
