"""A trainer keeps the memory that its tensors leave free, instead of asking the system for it again."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource, sys
# PR_SET_THP_DISABLE: pages of 4 KB alone, never of 2 MB.
assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0
import torch
from training.rlhf.__main__ import keep_freed_memory
if "keep" in sys.argv:
    assert keep_freed_memory()
for _ in range(2):
    held = [torch.ones(7, 1024, 1024) for _ in range(12)]
    del held
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    held = [torch.ones(7, 1024, 1024) for _ in range(12)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments: str, **environment: str) -> str:
    """Return the page faults of three times twelve tensors of 28 MB, made after as many were freed."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS, *arguments]
    done = subprocess.run(command, env={**plain, **environment}, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told how to hand out memory")
def test_memory_that_tensors_leave_free_is_used_again_without_a_page_fault() -> None:
    # 36 tensors of 28 MB, each 7,168 pages of 4 KB. Where a block splits the heap, one of twelve may be
    # touched anew though memory is kept. By itself glibc learns from what is freed and keeps some of it, by
    # luck of the heap's place; held to its first threshold it asks the system for each tensor.
    assert int(faults("keep")) <= 3 * 7_168
    assert int(faults(MALLOC_MMAP_THRESHOLD_="131072")) >= 36 * 7_168


def test_what_the_environment_says_of_memory_stands() -> None:
    assert "AssertionError" in faults("keep", MALLOC_ARENA_MAX="2")
