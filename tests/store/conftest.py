"""Stores to try everything in: in memory, in a folder, and one that speaks S3."""

import uuid
from pathlib import Path

import pytest

from training.store import Store


@pytest.fixture(params=["memory", "file", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind."""
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    if request.param == "file":
        return f"file://{tmp_path / 'the store'}"
    url: str = request.getfixturevalue("s3_url")
    return url


@pytest.fixture
def store(store_url: str) -> Store:
    return Store(store_url)
