"""Ray by the REST API of Ray Jobs, played by a stub; the real one is behind `make test-ray`."""

import ast
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from training import launchers
from training.launchers import (
    ClusterPaths,
    JobReport,
    JobState,
    LauncherError,
    LauncherUnreachableError,
    LaunchJob,
    Resources,
)
from training.launchers.ray import Ray

PLACE = ClusterPaths(python="/opt/rondo/bin/python", code="/opt/rondo", home="/data", shares_files=False)
JOB = LaunchJob(
    name="rondo-7-1-abcdef",
    run="tea",
    resources=Resources(nodes=2, processes=4, gpus=4, memory_gb=1.5, hours=2),
    environment={"OMP_NUM_THREADS": "8", "RONDO_JUDGE_KEY": "very secret", "AWS_SECRET_ACCESS_KEY": "s"},
)


class Stub:
    """Answers as a dashboard does."""

    def __init__(self, *, token: str = "") -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.requests: list[httpx.Request] = []
        self.token = token

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return httpx.Response(401, text="Unauthorized")
        parts = request.url.path.strip("/").split("/")
        if parts == ["api", "version"]:
            return httpx.Response(200, json={"ray_version": "2.60.0"})
        if parts == ["api", "jobs"] and request.method == "GET":
            return httpx.Response(200, json=list(self.jobs.values()))
        if parts == ["api", "jobs"]:
            body = json.loads(request.content)
            self.jobs[body["submission_id"]] = {**body, "status": "PENDING", "message": "Job is queued"}
            return httpx.Response(200, json={"submission_id": body["submission_id"]})
        job = self.jobs.get(parts[2])
        if job is None:
            return httpx.Response(404, text=f"Job {parts[2]} does not exist")
        if parts[3:] == ["stop"]:
            job["status"] = "STOPPED"
            return httpx.Response(200, json={"stopped": True})
        if parts[3:] == ["logs"]:
            return httpx.Response(200, json={"logs": "one\ntwo\nthree\n"})
        return httpx.Response(200, json=job)


def ray(stub: Callable[[httpx.Request], httpx.Response], *, token: str = "") -> Ray:
    return Ray(PLACE, url="http://ray:8265/", token=token, transport=httpx.MockTransport(stub))


def test_a_job_is_submitted_under_its_own_name_with_the_driver_and_without_secrets():
    stub = Stub()
    assert ray(stub).submit(JOB) == "rondo-7-1-abcdef"
    body = stub.jobs["rondo-7-1-abcdef"]
    assert body["runtime_env"] == {"env_vars": {"OMP_NUM_THREADS": "8"}}
    python, flag, driver, arguments = shlex.split(body["entrypoint"])
    assert (python, flag) == ("python", "-c")
    assert "placement_group" in driver
    assert json.loads(arguments) == {
        "command": [
            *("/opt/rondo/bin/python", "-m", "training.launchers.node", "/data/runs/tea"),
            *("--job", "rondo-7-1-abcdef", "--nodes", "2", "--processes", "4"),
        ],
        "folder": "/opt/rondo",
        "nodes": 2,
        "processes": 4,
        "gpus": 4,
        "memory": 1_610_612_736,
        "seconds": 7200,
        "servers": {
            "count": 0,
            "gpus": 0,
            "keeper": ["/opt/rondo/bin/python", "-m", "training.launchers.node.server", "--"],
            "command": [],
            "adapters": "/data/rollout",
            "key_variables": ["VLLM_API_KEY", "RONDO_MODEL_SERVER_KEY"],
            "environment": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"},
        },
    }
    assert "very secret" not in json.dumps(body)
    assert "AWS_SECRET_ACCESS_KEY" not in json.dumps(body)
    assert "/data/runs/tea" in ray(stub).script(JOB)


def test_rollout_servers_are_started_with_the_base_on_the_cluster_and_the_folder_that_all_share():
    stub = Stub()
    job = replace(
        JOB,
        base_model="/data/models/qwen 7b",
        resources=replace(JOB.resources, servers=3, gpus_per_server=2),
    )
    command = "vllm serve {base} --served-model-name '{name}' --host {host} --port {port} -tp {gpus}"
    launcher = Ray(PLACE, url="http://ray:8265", server_command=command, transport=httpx.MockTransport(stub))
    launcher.submit(job)
    arguments = json.loads(shlex.split(stub.jobs[JOB.name]["entrypoint"])[3])
    assert (arguments["servers"]["count"], arguments["servers"]["gpus"]) == (3, 2)
    # Host and port are those that the server gets on its node.
    assert arguments["servers"]["command"] == [
        *("vllm", "serve", "/data/models/qwen 7b", "--served-model-name", "qwen 7b"),
        *("--host", "{host}", "--port", "{port}", "-tp", "2"),
    ]


def test_the_driver_that_is_shipped_stands_on_the_standard_library_and_ray_alone():
    tree = ast.parse(Path(launchers.__file__).with_name("ray_driver.py").read_text())
    names = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert names == {"json", "os", "ray", "secrets", "signal", "socket"} | {
        *("subprocess", "sys", "time", "typing", "urllib")
    }


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PENDING", "waiting"),
        ("RUNNING", "running"),
        ("SUCCEEDED", "ended"),
        ("FAILED", "ended"),
        ("STOPPED", "cancelled"),
        ("NEW_IN_RAY_9", "unknown"),
    ],
)
def test_every_status_of_ray_is_understood(status: str, state: JobState):
    stub = Stub()
    stub.jobs["one"] = {"status": status, "message": "Driver  exited\nwith 1"}
    assert ray(stub).poll("one") == JobReport(state=state, reason="Driver exited with 1")


def test_a_job_that_ray_has_forgotten_is_unknown_and_not_found():
    assert ray(Stub()).poll("gone") == JobReport(state="unknown")
    assert ray(Stub()).find("gone") is None
    assert ray(Stub()).logs("gone", lines=3) == ""
    ray(Stub()).cancel("gone")


def test_a_job_is_found_stopped_and_its_log_read():
    stub = Stub()
    ray(stub).submit(JOB)
    assert ray(stub).find(JOB.name) == JOB.name
    assert ray(stub).logs(JOB.name, lines=2) == "two\nthree"
    assert list(ray(stub).look()) == ["version 2.60.0; jobs: 1 pending"]
    ray(stub).cancel(JOB.name)
    assert ray(stub).poll(JOB.name).state == "cancelled"


def test_a_ray_that_does_not_answer_may_be_asked_again():
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    for answer in (away, lambda request: httpx.Response(503)):
        with pytest.raises(LauncherUnreachableError, match=r"http://ray:8265.*it is tried again"):
            ray(answer).submit(JOB)


def test_a_wrong_token_and_a_page_in_place_of_json_are_told_apart():
    with pytest.raises(LauncherError, match="lets nobody in with this token"):
        ray(Stub(token="right"), token="wrong").poll("one")
    stub = Stub(token="right")
    assert ray(stub, token="right").submit(JOB) == JOB.name
    with pytest.raises(LauncherError, match="something else than JSON"):
        ray(lambda request: httpx.Response(200, text="<html>proxy</html>")).poll("one")
    with pytest.raises(LauncherError, match=r"Ray refused: .*no such field"):
        ray(lambda request: httpx.Response(400, text="no such field")).submit(JOB)
