"""System checks on the environment variables of rewards and other servers: each fault alone."""

import pytest
from django.core.checks import run_checks
from pytest_django import Settings


@pytest.fixture(autouse=True)
def sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tests run on: a database server beside the folder broker is a warning of its own."""
    monkeypatch.setattr("webapp.checks._is_sqlite", lambda: True)


def identifiers() -> set[str]:
    return {str(message.id) for message in run_checks(tags=["rondo"])}


@pytest.mark.parametrize("path", ["polite", "acme.rewards:polite", "acme rewards.polite", ".polite", "acme."])
def test_a_reward_function_that_is_no_dotted_path_is_told(path: str, settings: Settings):
    settings.RONDO_REWARD_FUNCTIONS = ["acme.rewards.short", path]
    assert identifiers() == {"rondo.E016"}


def test_functions_a_judge_and_hosts_that_are_in_order_are_left_alone(settings: Settings):
    settings.RONDO_REWARD_FUNCTIONS = ["acme.rewards.short", " acme.rewards.polite"]
    settings.RONDO_JUDGE_URL = "https://judge.example:8443"
    settings.RONDO_JUDGE_KEY = "k"
    settings.RONDO_MODEL_SERVER_HOSTS = ["gpu-box", "10.0.0.7:8000", "[fd00::1]:8000"]
    assert identifiers() == set()


@pytest.mark.parametrize("url", ["judge", "ftp://judge", "https://", "https://judge:0", "https://judge?x=1"])
def test_an_address_of_the_judge_that_is_none_is_told(url: str, settings: Settings):
    settings.RONDO_JUDGE_URL = url
    assert identifiers() == {"rondo.E017"}


def test_a_key_without_a_judge_is_warned_about(settings: Settings):
    settings.RONDO_JUDGE_KEY = "k"
    assert identifiers() == {"rondo.W018"}


def test_a_key_that_crosses_the_network_in_the_clear_is_warned_about(settings: Settings):
    settings.RONDO_JUDGE_KEY = "k"
    settings.RONDO_JUDGE_URL = "http://judge.example"
    assert identifiers() == {"rondo.W019"}
    settings.RONDO_JUDGE_URL = "http://127.0.0.1:8002"
    assert identifiers() == set()


@pytest.mark.parametrize("host", ["http://gpu-box", "gpu-box/v1", " "])
def test_a_listed_host_that_is_none_is_told(host: str, settings: Settings):
    settings.RONDO_MODEL_SERVER_HOSTS = [host]
    assert identifiers() == {"rondo.E020"}
