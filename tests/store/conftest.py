"""Stores to try everything in: in memory, in a folder, and one that speaks S3."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from training.store import Store


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of moto's S3, on a free port of this machine."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_url(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket; address and keys are where S3's own library looks for them."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "rondo")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-tests")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = f"rondo-{uuid.uuid4().hex}"
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(bucket)
    return f"s3://{bucket}/team"


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
