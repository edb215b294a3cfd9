"""A pytest plugin: which tests run on which database where both are there.

Every test runs; all that reach the database run on PostgreSQL, for locks, constraints and lookups differ
there; and all but the longest of them on SQLite, too.
"""

import pytest

_ON_ONE_DATABASE = ("tests/browser/", "tests/architecture/")
"""Pages in a browser, and walks over every address as everybody: one database is enough, the stricter one.
Two tests go through a browser with an installation of their own, which is on SQLite."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        choices=("sqlite", "postgresql"),
        help="Run what this database is asked where both are: without it, all.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share = config.getoption("--share")
    if share is None:
        return
    left_out = [item for item in items if not belongs_to(share, item)]
    items[:] = [item for item in items if belongs_to(share, item)]
    config.hook.pytest_deselected(items=left_out)


def belongs_to(share: str, item: pytest.Item) -> bool:
    """Whether this share of the tests holds one."""
    if share == "postgresql":
        return reaches_database(item)
    return not (item.nodeid.startswith(_ON_ONE_DATABASE) and reaches_database(item))


def reaches_database(item: pytest.Item) -> bool:
    """Whether a test uses the database that it is run on, or needs PostgreSQL."""
    fixtures = {"db", "transactional_db", "live_server"}
    marked = item.get_closest_marker("django_db") or item.get_closest_marker("postgres")
    return bool(marked) or not fixtures.isdisjoint(getattr(item, "fixturenames", ()))
