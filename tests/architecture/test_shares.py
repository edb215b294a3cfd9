"""Divided over two databases the suite is still whole, and long files come first."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.order import LONGEST
from tests.order import pytest_collection_modifyitems as put_in_order
from tests.shares import belongs_to, pytest_collection_modifyitems, pytest_ignore_collect

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Test:
    """The properties of a test that decide its share."""

    nodeid: str
    fixturenames: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    kwargs: dict[str, bool] = field(default_factory=dict)
    """Of each of its marks."""

    __test__ = False

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(kwargs=self.kwargs) if name in self.marks else None


@pytest.mark.parametrize(
    ("test", "shares"),
    [
        (Test("tests/rlhf/losses/test_losses.py::test_a"), {"sqlite"}),
        (Test("tests/rlhf/loop/test_runs.py::test_a", marks=("slow",)), {"sqlite"}),
        (Test("tests/annotation/test_leases.py::test_a", ("db",)), {"sqlite", "postgresql"}),
        (
            Test("tests/annotation/assignments/test_storm.py::test_a", marks=("postgres", "slow")),
            {"postgresql"},
        ),
        (Test("tests/training/feedback/test_giving.py::test_a", ("db",)), {"sqlite"}),
        (
            Test("tests/training/feedback/test_giving.py::test_a", ("transactional_db",)),
            {"sqlite", "postgresql"},
        ),
        (Test("tests/training/feedback/test_recording.py::test_a", ("db",)), {"sqlite", "postgresql"}),
        (Test("tests/training/launchers/test_cluster_runs.py::test_a", ("db",), ("slow",)), {"postgresql"}),
        (Test("tests/annotation/people/test_tokens.py::test_a", ("client", "db")), {"sqlite", "postgresql"}),
        (Test("tests/training/rounds/test_rounds_held.py::test_a", ("db",)), {"postgresql"}),
        (
            Test("tests/training/rounds/test_rounds.py::test_a", ("transactional_db",)),
            {"sqlite", "postgresql"},
        ),
        (Test("tests/loop/test_once_around.py::test_a", marks=("django_db", "slow")), {"postgresql"}),
        (Test("tests/browser/test_drafts.py::test_a", ("live_server",)), {"postgresql"}),
        (Test("tests/browser/test_journey.py::test_a", ("browser",), ("slow",)), {"sqlite"}),
        (Test("tests/architecture/test_addresses.py::test_a", ("db",)), {"sqlite"}),
        (Test("tests/webapp/test_upgrade.py::test_a", ("db",), ("slow",)), {"sqlite"}),
        (
            Test("tests/architecture/test_addresses.py::test_each_role_gets_what_the_table_says[x]", ("db",)),
            {"postgresql"},
        ),
        (Test("tests/training/test_dashboard.py::test_a", ("db", "client_of")), {"sqlite"}),
        (
            Test("tests/training/test_votes.py::test_a", ("client",), ("django_db",), {"transaction": True}),
            {"sqlite", "postgresql"},
        ),
        (
            Test("tests/training/test_ends.py::test_a", ("client", "transactional_db")),
            {"sqlite", "postgresql"},
        ),
        (Test("tests/api/test_labelling.py::test_a", ("db", "client_of")), {"postgresql"}),
        (Test("tests/api/fuzzing/test_people.py::test_a", ("client", "db"), ("slow",)), {"postgresql"}),
    ],
    ids=lambda value: value.nodeid.split("::")[0] if isinstance(value, Test) else None,
)
def test_each_kind_of_test_runs_where_it_says_something_and_none_is_left_out(test: Test, shares: set[str]):
    assert {
        share for share in ("sqlite", "postgresql") if belongs_to(share, cast(pytest.Item, test))
    } == shares


@pytest.mark.parametrize(
    ("test", "is_fast"),
    [
        (Test("tests/annotation/test_leases.py::test_a", ("db",)), True),
        (Test("tests/annotation/text/test_offsets.py::test_a"), True),
        (Test("tests/annotation/labelling/test_views.py::test_a", ("db", "client_of")), False),
    ],
)
def test_the_fast_run_asks_for_no_page(test: Test, is_fast: bool):
    assert belongs_to("fast", cast(pytest.Item, test)) == is_fast


def run_with(share: str | None) -> Any:
    return SimpleNamespace(getoption=lambda _name: share)


@pytest.mark.parametrize(
    ("share", "folder", "ignored"),
    [
        ("postgresql", "rlhf", True),
        ("postgresql", "training", None),
        ("sqlite", "rlhf", None),
        (None, "rlhf", None),
    ],
)
def test_tests_of_what_imports_no_django_are_not_even_read_for_postgresql(
    share: str | None, folder: str, ignored: bool | None
):
    assert pytest_ignore_collect(ROOT / "tests" / folder, run_with(share)) is ignored


def test_a_test_of_the_database_among_those_that_are_not_read_is_refused():
    misplaced: Any = Test("tests/rlhf/test_a.py::test_b", ("db",))
    misplaced.path = ROOT / "tests" / "rlhf" / "test_a.py"
    with pytest.raises(pytest.UsageError, match="test_b"):
        pytest_collection_modifyitems(run_with("sqlite"), [misplaced])


def test_the_longest_files_come_first_and_the_others_keep_their_order():
    names = [
        "tests/b.py::test_b",
        "tests/loop/test_a.py::test_a",
        "tests/a.py::test_a",
        f"{LONGEST[0]}::test_a",
    ]
    tests: Any = [Test(name) for name in names]
    put_in_order(tests)
    assert [test.nodeid for test in tests] == [names[3], names[1], names[0], names[2]]


@pytest.mark.parametrize("start", LONGEST)
def test_each_of_the_longest_files_exists(start: str):
    assert (ROOT / start).exists()
