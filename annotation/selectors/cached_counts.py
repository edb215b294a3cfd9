"""Figures of large projects that take long to compute: cached for a while, where that is worth it."""

import hashlib
import time
from collections.abc import Callable
from typing import TypeVar

from django.core.cache import cache

Value = TypeVar("Value")

QUICK_SECONDS = 0.1
"""Seconds up to which a figure is not cached: it is computed each time."""
_SHOWN_FOR = 50
"""Lifetime of a cached figure, as a multiple of the time that it took."""


def cached(compute: Callable[[], Value], *name: str | int, at_least: float = 0.0) -> Value:
    """Return a figure: from the cache if computing it took long, else computed now.

    name: the figure, and the ids of what it is about. at_least: seconds for which it is cached, however
    quickly it was computed.
    """
    entry: tuple[Value] | None = cache.get(_key(name))
    if entry is None:
        began = time.perf_counter()
        entry = (compute(),)
        took = time.perf_counter() - began
        if took > QUICK_SECONDS or at_least:
            cache.set(_key(name), entry, max(_SHOWN_FOR * took, at_least))
    return entry[0]


def is_cached(*name: str | int) -> bool:
    """Return True where a figure is cached."""
    return cache.get(_key(name)) is not None


def _key(name: tuple[str | int, ...]) -> str:
    digest = hashlib.sha256(repr(name).encode()).hexdigest()
    return f"annotation.kept:{digest[:32]}"
