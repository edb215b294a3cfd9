"""Ray: jobs by the REST API of Ray Jobs. Ray itself is on the cluster alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import httpx

from training.launchers import (
    ClusterPaths,
    JobReport,
    JobState,
    LauncherError,
    LauncherUnreachableError,
    LaunchJob,
    node_command,
    without_secrets,
)

# ── Launchers that are asked over HTTP: errors in plain words ──


_SECONDS = 15.0
_MOST_CHARACTERS = 400


class Api:
    """A server's API. `transport` replaces the network in tests."""

    def __init__(
        self,
        launcher: str,
        url: str,
        *,
        token: Callable[[], str] = lambda: "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._launcher = launcher
        self._url = url.rstrip("/")
        self._token = token
        self._transport = transport

    def ask(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        query: Mapping[str, str] | None = None,
        tolerate: tuple[int, ...] = (),
    ) -> httpx.Response | None:
        """Return the response; None for a status that is tolerated.

        Raises `LauncherUnreachableError` for a server that does not answer or is out of order, and
        `LauncherError` for one that refuses.
        """
        token = self._token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            with httpx.Client(timeout=_SECONDS, transport=self._transport, trust_env=False) as client:
                response = client.request(
                    method, f"{self._url}{path}", json=json, params=query, headers=headers
                )
        except httpx.HTTPError as error:
            raise LauncherUnreachableError(
                f"{self._launcher} does not answer at {self._url} ({type(error).__name__}); it is tried again"
            ) from error
        if response.status_code in tolerate:
            return None
        if response.status_code in (502, 503, 504, 429):
            raise LauncherUnreachableError(
                f"{self._launcher} at {self._url} is out of order (status {response.status_code}); it is "
                "tried again"
            )
        if response.status_code in (401, 403):
            raise LauncherError(
                f"{self._launcher} at {self._url} lets nobody in with this token (status "
                f"{response.status_code}: {_error_text(response)}); set another one"
            )
        if response.is_error:
            raise LauncherError(f"{self._launcher} refused: {_error_text(response)}")
        return response

    def json(self, method: str, path: str, **more: Any) -> Any:
        """Return the decoded response; None for a status that is tolerated."""
        response = self.ask(method, path, **more)
        if response is None:
            return None
        try:
            return response.json()
        except ValueError:
            raise LauncherError(
                f"{self._launcher} at {self._url} answers with something else than JSON: "
                f"{_error_text(response)}"
            ) from None


def _error_text(response: httpx.Response) -> str:
    """Return the error that a response holds, in one short line."""
    try:
        body = response.json()
        text = str(body.get("message") or body) if isinstance(body, dict) else str(body)
    except ValueError:
        text = response.text
    return " ".join(text.split())[-_MOST_CHARACTERS:] or f"status {response.status_code}"


# ── Ray ──


_STATES: dict[str, JobState] = {
    "PENDING": "waiting",
    "RUNNING": "running",
    "SUCCEEDED": "ended",
    "FAILED": "ended",
    "STOPPED": "cancelled",
}
"""Every status of Ray Jobs (`JobStatus`)."""
_JOBS = "/api/jobs/"
_KEY_VARIABLES = ("VLLM_API_KEY", "RONDO_MODEL_SERVER_KEY")
"""Variables from which vLLM and Rondo's model server take the key that clients must send."""


class Ray:
    """The Ray cluster whose dashboard has this address."""

    name = "ray"

    def __init__(
        self,
        place: ClusterPaths,
        *,
        url: str,
        token: str = "",
        server_command: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """server_command: of a rollout server, with the places that the guide lists."""
        self._place = place
        self._server_command = server_command
        self._api = Api("Ray", url, token=lambda: token, transport=transport)

    def script(self, job: LaunchJob) -> str:
        """Return the entrypoint of the job, and after it the driver that it runs."""
        return f"{self._entrypoint(job, 'DRIVER')}\n\n# DRIVER:\n{_driver()}"

    def submit(self, job: LaunchJob) -> str:
        """Submit a job under its own name, which is the handle."""
        body = {
            "entrypoint": self._entrypoint(job, _driver()),
            "submission_id": job.name,
            "metadata": {"run": job.run},
            # What Ray keeps of a job is shown on its dashboard.
            "runtime_env": {"env_vars": without_secrets(job.environment)},
        }
        answer = self._api.json("POST", _JOBS, json=body)
        if not isinstance(answer, dict) or answer.get("submission_id") != job.name:
            raise LauncherError(f"Ray took the job and answered with another one: {answer!r}")
        return job.name

    def find(self, name: str) -> str | None:
        """Return the name where Ray knows it."""
        return name if self._api.ask("GET", f"{_JOBS}{name}", tolerate=(404,)) is not None else None

    def poll(self, handle: str) -> JobReport:
        """Return the state of a job."""
        job = self._api.json("GET", f"{_JOBS}{handle}", tolerate=(404,))
        if job is None:
            return JobReport(state="unknown")
        status = str(job.get("status"))
        return JobReport(
            state=_STATES.get(status, "unknown"),
            reason=" ".join(str(job.get("message") or "").split())[-400:],
        )

    def cancel(self, handle: str) -> None:
        """Stop a job: its driver ends, and with it the nodes, which save first."""
        self._api.ask("POST", f"{_JOBS}{handle}/stop", tolerate=(404,))

    def logs(self, handle: str, *, lines: int) -> str:
        """Return the end of the driver's log, which has those of its nodes."""
        answer = self._api.json("GET", f"{_JOBS}{handle}/logs", tolerate=(404,))
        text = str(answer.get("logs") or "") if isinstance(answer, dict) else ""
        return "\n".join(text.splitlines()[-lines:])

    def look(self) -> Sequence[str]:
        """Return Ray's version, and how many jobs it has by status."""
        version = self._api.json("GET", "/api/version").get("ray_version")
        counts: dict[str, int] = {}
        for job in self._api.json("GET", _JOBS):
            counts[str(job.get("status"))] = counts.get(str(job.get("status")), 0) + 1
        jobs = (
            ", ".join(f"{count} {status.lower()}" for status, count in sorted(counts.items())) or "none yet"
        )
        return [f"version {version}; jobs: {jobs}"]

    def _entrypoint(self, job: LaunchJob, driver: str) -> str:
        wants = job.resources
        arguments = {
            "command": node_command(job, self._place),
            "folder": self._place.code,
            "nodes": wants.nodes,
            "processes": wants.processes,
            "gpus": wants.gpus,
            "memory": int(wants.memory_gb * 2**30) if wants.memory_gb else 0,
            "seconds": wants.hours * 3600 if wants.hours else 0,
            "servers": self._servers(job),
        }
        # A shell of the cluster reads it; `python` is the one that Ray runs in.
        return shlex.join(["python", "-c", driver, json.dumps(arguments)])

    def _servers(self, job: LaunchJob) -> dict[str, Any]:
        """Return what the driver starts beside the nodes."""
        wants, base = job.resources, PurePosixPath(job.base_model)
        adapters = str(PurePosixPath(self._place.home) / "rollout")
        filled = {
            "{base}": str(base),
            "{models}": str(base.parent),
            "{name}": base.name,
            "{gpus}": str(max(1, wants.gpus_per_server)),
            "{adapters}": adapters,
            "{python}": self._place.python,
        }
        words = shlex.split(self._server_command) if wants.servers else []
        for place, value in filled.items():
            words = [word.replace(place, value) for word in words]
        return {
            "count": wants.servers,
            "gpus": wants.gpus_per_server,
            "keeper": [self._place.python, "-m", "training.launchers.node.server", "--"],
            "command": words,
            "adapters": adapters,
            "key_variables": _KEY_VARIABLES,
            "environment": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"},
        }


def _driver() -> str:
    return Path(__file__).with_name("ray_driver.py").read_text(encoding="utf-8")
