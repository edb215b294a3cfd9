"""A pytest plugin: a server that speaks S3, and a bucket of a test's own in it."""

import uuid
from collections.abc import Iterator

import pytest


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
    import fsspec

    bucket = f"rondo-{uuid.uuid4().hex}"
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(bucket)
    return f"s3://{bucket}/team"
