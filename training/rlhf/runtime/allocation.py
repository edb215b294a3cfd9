"""Settings of the C library's memory allocation for training."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Numbers of `mallopt` in glibc's malloc.h."""
_NEVER = 2**31 - 1
_LARGE_BYTES = 32 * 1024 * 1024
"""The largest that glibc takes. With larger ones on the heap too, a run grew from 3 to 6 GB: they
leave holes."""
_PAD_BYTES = 64 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Keep what tensors below 32 MB leave free for the next ones, until the process ends; whether that could
    be set.

    glibc asks the system again for every such tensor, and every page of it is filled with zeros at its
    first touch: a tenth of a training step on a CPU. Elsewhere than on glibc nothing changes, and nothing
    does where the environment says how memory is to be handed out (`MALLOC_…_`, `GLIBC_TUNABLES`).
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        library = ctypes.CDLL("libc.so.6")
        library.gnu_get_libc_version()
        settings = {_MMAP_THRESHOLD: _LARGE_BYTES, _TRIM_THRESHOLD: _NEVER, _TOP_PAD: _PAD_BYTES}
        accepted = [library.mallopt(name, value) == 1 for name, value in settings.items()]
        return all(accepted)
    except (OSError, AttributeError):
        return False
