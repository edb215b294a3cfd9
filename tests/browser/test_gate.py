"""The gate stands before the tests' live server and before no other WSGI application of the process."""

import urllib.error
import urllib.request
from wsgiref.util import setup_testing_defaults

import pytest
from django.core.wsgi import get_wsgi_application
from pytest_django.live_server_helper import LiveServer

from tests.browser.conftest import Gate


def test_a_shut_gate_refuses_requests_to_the_live_server_and_lets_others_pass(
    live_server: LiveServer, gate: Gate
):
    address = f"{live_server.url}/health/live"
    with urllib.request.urlopen(address) as response:
        assert response.status == 200
    gate.shut()
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(address)
    statuses: list[str] = []
    environ = {"PATH_INFO": "/health/live", "HTTP_HOST": "localhost"}
    setup_testing_defaults(environ)
    get_wsgi_application()(environ, lambda status, *_rest: statuses.append(status))
    assert statuses == ["200 OK"]
