"""A pytest plugin: what may be left out, where, and that nothing else is.

On a newcomer's machine a test whose service is not there is skipped, in words that say how to get
it. With `--no-unexpected-skips`, which CI=true switches on, a skip whose reason is not listed here
fails the run: a suite that silently stops testing something looks exactly like one that passes.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chromium import find_chromium

EXPECTED = (
    # No machine of ours has all of them: a GPU, and the other operating system.
    re.compile(r"needs a GPU"),
    re.compile(r"needs macOS"),
    # Containers mostly forbid them, even to root.
    re.compile(r"^needs network namespaces"),
    re.compile(r"^needs to mount a tmpfs"),
    # Published sets are no part of the repository.
    re.compile(r"^needs the real data sets"),
    # Minutes, and programs outside the environment: two targets of their own.
    re.compile(r"^starts a cluster"),
)

RABBITMQ_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"

_unexpected: list[tuple[str, str]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-unexpected-skips",
        action="store_true",
        default=os.environ.get("CI", "").lower() == "true",
        help="Fail when a test is skipped for a reason that tests/skips.py does not list (on when CI=true).",
    )
    parser.addoption(
        "--clusters",
        action="store_true",
        help="Run the tests that start a Ray of their own: `make test-ray`.",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests whose service is not there; say what to install."""
    needs: tuple[tuple[str, Callable[[], bool], str], ...] = (
        (
            "servers",
            _servers_are_installed,
            "needs the programs of PostgreSQL and Redis (Debian: apt install postgresql redis-server)",
        ),
        (
            "rabbitmq",
            Path(RABBITMQ_SERVER).exists,
            f"needs {RABBITMQ_SERVER} (Debian: apt install rabbitmq-server)",
        ),
        (
            "cluster",
            lambda: bool(config.getoption("--clusters")),
            "starts a cluster: `make test-ray` runs it",
        ),
        ("namespaces", _ip_is_there, "needs ip (Debian: apt install iproute2)"),
        ("namespaces", namespaces_are_permitted, "needs network namespaces, which are not permitted here"),
        ("tmpfs", mounting_is_permitted, "needs to mount a tmpfs, which is not permitted here"),
        ("postgres", _on_postgresql, "needs PostgreSQL: `make test` runs it so when a server is there"),
        ("browser", _chromium_is_there, "needs Chromium (Debian: apt install chromium)"),
    )
    for marker, is_there, reason in needs:
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not is_there():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _note(report.nodeid, report.longrepr)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _note(report.nodeid, report.longrepr)


def _note(nodeid: str, longrepr: object) -> None:
    reason = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not any(pattern.search(reason) for pattern in EXPECTED):
        _unexpected.append((nodeid, reason))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _fails(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    if _fails(config):
        terminalreporter.section("unexpected skips: these fail the run", red=True)
        for nodeid, reason in _unexpected:
            terminalreporter.line(f"{nodeid}: {reason}")


def _fails(config: pytest.Config) -> bool:
    # Under pytest-xdist the workers report to the first process, and that one decides.
    return bool(
        config.getoption("--no-unexpected-skips") and _unexpected and not hasattr(config, "workerinput")
    )


def _servers_are_installed() -> bool:
    return bool(shutil.which("redis-server") and program_of_postgresql("postgres"))


def program_of_postgresql(name: str) -> str | None:
    """Return the path of a program of PostgreSQL, or None: Debian keeps its servers out of PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(installed[-1]) if installed else shutil.which(name)


def _ip_is_there() -> bool:
    """Whoever is not root could do nothing with it."""
    return os.geteuid() != 0 or shutil.which("ip") is not None


def namespaces_are_permitted() -> bool:
    """Return whether this process may make a network namespace with a cable in it."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"rn-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return False
    cable = ["ip", "-n", name, "link", "add", "one", "type", "veth", "peer", "name", "two"]
    plugged = subprocess.run(cable, capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return plugged.returncode == 0


def mounting_is_permitted() -> bool:
    """Return whether this process may mount a file system of its own."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "rondo-probe", folder]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", folder], capture_output=True, check=False)
    return True


def _on_postgresql() -> bool:
    from django.db import connection

    return connection.vendor == "postgresql"


def _chromium_is_there() -> bool:
    return find_chromium() is not None
