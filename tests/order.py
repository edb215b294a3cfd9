"""A pytest plugin: what takes longest comes first, so that no worker is left alone with it at the end.

Within one place, files with slow tests come before the others.
"""

import pytest

LONGEST = (
    # A minute of processor time or more each: tests/benchmarks/operations.md.
    "tests/rlhf/policy_gradient/test_reverse_runs.py",
    "tests/architecture/test_addresses.py",
    "tests/api/fuzzing/",
    "tests/training/runs/test_processes.py",
    "tests/loop/",
    "tests/rlhf/loop/",
    "tests/webapp/test_backup.py",
    "tests/webapp/test_up.py",
    "tests/architecture/test_languages.py",
    # Browsers, installations and trainings; then all that asks only functions and the database.
    "tests/browser/",
    "tests/faults/",
    "tests/rlhf/",
    "tests/serving/",
    "tests/webapp/",
)
"""Files and folders whose tests take longest, in this order."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {_file_of(item) for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (place_of(item.nodeid), _file_of(item) not in slow))


def place_of(nodeid: str) -> int:
    """Return how early a test runs; those of one place stay in their order."""
    return next((place for place, start in enumerate(LONGEST) if nodeid.startswith(start)), len(LONGEST))


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
