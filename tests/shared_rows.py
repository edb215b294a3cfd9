"""Rows that all tests of a module share: made once, in a transaction around those of the tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.test import TestCase, override_settings
from pytest_django import DjangoDbBlocker

from annotation.services.jobs import no_messages


class SharedRows(TestCase):
    """The transaction that the tests of a module have in common: each of them gives back what it changed."""


def folders_in(home: Path) -> dict[str, Path]:
    """Return the settings that name a home and its folders, as the fixture `rondo_home` sets them."""
    names = ("models", "snapshots", "runs", "checkpoints")
    return {"RONDO_HOME": home, **{f"RONDO_{name.upper()}": home / name for name in names}}


@contextmanager
def shared_rows(blocker: DjangoDbBlocker) -> Iterator[None]:
    """Open the transaction for a fixture of a module's scope, which makes its rows within and then yields."""
    with blocker.unblock():
        SharedRows.setUpClass()
        try:
            yield
        finally:
            SharedRows.tearDownClass()


@contextmanager
def made_in(home: Path) -> Iterator[None]:
    """Let files go to `home`, and no message to a worker, while rows are made."""
    with override_settings(**folders_in(home)), no_messages():
        yield
