"""Kubernetes: manifests against its published schema, and an API server played by a stub."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import jsonschema
import kubernetes_validate
import pytest

from training.launchers import Job, JobReport, LauncherError, LauncherUnreachableError, Place, Resources
from training.launchers.kubernetes import Kubernetes, Pods

PLACE = Place(python="python3", code="/opt/rondo", home="/data", shares_files=True)
PODS = Pods(image="registry/rondo:1", namespace="nlp", claim="rondo-home", secret="rondo-keys")
JOB = Job(
    name="rondo-7-1-abcdef",
    run="tea-round-1-reward",
    resources=Resources(nodes=2, processes=4, gpus=4, memory_gb=1.5, hours=2, queue="team-a"),
    environment={"OMP_NUM_THREADS": "8", "RONDO_JUDGE_KEY": "very secret"},
)
JOBS = "/apis/batch/v1/namespaces/nlp/jobs"
CORE = "/api/v1/namespaces/nlp"
SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/nlp/jobsets"


def closed(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    """The schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


ANY = {"type": "object"}
SET_SCHEMA = closed(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=ANY,
    spec=closed(
        (),
        replicatedJobs={
            "type": "array",
            "items": closed(
                ("name", "template"),
                name={"type": "string"},
                replicas={"type": "integer", "minimum": 0},
                template=closed((), metadata=ANY, spec=ANY),
            ),
        },
        network=closed(
            (),
            enableDNSHostnames={"type": "boolean"},
            publishNotReadyAddresses={"type": "boolean"},
            subdomain={"type": "string"},
        ),
        failurePolicy=closed((), maxRestarts={"type": "integer"}),
        ttlSecondsAfterFinished={"type": "integer", "minimum": 0},
    ),
)
"""From JobSet's `api/jobset/v1alpha2/jobset_types.go`: the fields that a run needs. The manifests were
also held to its whole definition (`jobset.x-k8s.io_jobsets.yaml`, 08dfbdfd), closed, 2026-11-26."""


class Stub:
    """An API server with jobs, services and pods. `fails` maps a path to a status."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.fails: dict[str, int] = {}
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.path
        if path in self.fails:
            return httpx.Response(
                self.fails[path], json={"kind": "Status", "message": f"{path} is forbidden"}
            )
        if path == "/version":
            return httpx.Response(200, json={"gitVersion": "v1.33.1"})
        if path == f"{CORE}/pods":
            return httpx.Response(200, json={"items": self.pods})
        if path.endswith("/log"):
            return httpx.Response(200, text=f"{path} {request.url.params['tailLines']}\n")
        if request.method == "POST":
            body = json.loads(request.content)
            place = f"{path}/{body['metadata']['name']}"
            if place in self.objects:
                return httpx.Response(409, json={"message": "already exists"})
            body["metadata"]["uid"] = "11-22"
            self.objects[place] = body
            return httpx.Response(201, json=body)
        if path in (JOBS, SETS):
            items = [resource for resource in self.objects.values() if resource["kind"] in ("Job", "JobSet")]
            return httpx.Response(200, json={"items": items})
        if path not in self.objects:
            return httpx.Response(404, json={"message": "not found"})
        if request.method == "DELETE":
            del self.objects[path]
            return httpx.Response(200, json={})
        return httpx.Response(200, json=self.objects[path])


def kubernetes(stub: Callable[[httpx.Request], httpx.Response], pods: Pods = PODS) -> Kubernetes:
    transport = httpx.MockTransport(stub)
    return Kubernetes(PLACE, pods, url="https://api:6443", token="t", transport=transport)


FAILED = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}
NO_IMAGE = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
OOM = "OOMKilled: a pod needed more than its memory"
NO_MEMORY = {"state": {"terminated": {"reason": "OOMKilled"}}}


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "rondo-7-1-abcdef-0-x",
            "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        },
        "spec": {"nodeName": "gpu-1"},
        "status": status,
    }


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
@pytest.mark.parametrize(
    ("job", "pods"),
    [
        (JOB, PODS),
        (Job(name="rondo-1-1-a", run="r", resources=Resources()), Pods(image="i")),
        (JOB, Pods(image="i", service_account="trainer")),
    ],
    ids=["two nodes", "one node, nothing else", "service account"],
)
def test_manifests_keep_to_the_published_schema_of_kubernetes(version: str, job: Job, pods: Pods):
    for manifest in kubernetes(Stub(), pods).manifests(job):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_jobset_keeps_to_its_schema_and_its_job_to_that_of_kubernetes():
    launcher = kubernetes(Stub(), replace(PODS, jobset=True))
    [manifest] = launcher.manifests(JOB)
    jsonschema.validate(manifest, SET_SCHEMA)
    [nodes] = manifest["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": JOB.name}, **nodes["template"]}
    kubernetes_validate.validate(job, "1.33", strict=True)
    assert (job["spec"]["completions"], job["spec"]["completionMode"], nodes["replicas"]) == (2, "Indexed", 1)
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    # <set>-<job>-<its number>-<the pod's>.<subdomain>, as JobSet's controller names the first pod.
    assert command[-1] == "rondo-7-1-abcdef-nodes-0-0.rondo-7-1-abcdef:29400"
    assert "very secret" not in launcher.script(JOB)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**manifest, "spec": {**manifest["spec"], "replicas": 1}}, SET_SCHEMA)


@pytest.mark.parametrize(
    ("condition", "state"),
    [("Completed", "ended"), ("Failed", "ended"), ("StartupPolicyCompleted", "running")],
)
def test_a_jobset_is_created_followed_and_deleted_as_one_object(condition: str, state: str):
    stub = Stub()
    launcher = kubernetes(stub, replace(PODS, jobset=True))
    assert launcher.submit(JOB) == launcher.submit(JOB) == JOB.name
    assert set(stub.objects) == {f"{SETS}/{JOB.name}"}
    assert launcher.find(JOB.name) == JOB.name
    stub.pods = [pod(phase="Running")]
    status = {"conditions": [{"type": condition, "status": "True"}], "replicatedJobsStatus": [{"active": 1}]}
    stub.objects[f"{SETS}/{JOB.name}"]["status"] = status
    assert launcher.poll(JOB.name).state == state
    assert stub.requests[-1].url.params["labelSelector"] == f"jobset.sigs.k8s.io/jobset-name={JOB.name}"
    assert list(launcher.look()) == ["version v1.33.1, namespace nlp: 1 active jobs"]
    launcher.cancel(JOB.name)
    assert stub.objects == {}


def test_the_schema_would_find_a_field_that_is_not_there():
    manifest = kubernetes(Stub()).manifests(JOB)[0]
    manifest["spec"]["completion"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, "1.33", strict=True)


def test_each_node_is_a_pod_that_asks_for_its_gpus_and_finds_the_first_by_name():
    job, service = json.loads(kubernetes(Stub()).script(JOB))["items"]
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 7200)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    container = spec["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4, "memory": "1536Mi"}
    assert container["command"][-4:] == [
        *("--rank-from", "JOB_COMPLETION_INDEX", "--master"),
        "rondo-7-1-abcdef-0.rondo-7-1-abcdef:29400",
    ]
    assert container["env"] == [{"name": "OMP_NUM_THREADS", "value": "8"}]
    assert container["envFrom"] == [{"secretRef": {"name": "rondo-keys"}}]
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"] == "rondo-7-1-abcdef"
    assert service["spec"]["clusterIP"] == "None"
    assert "very secret" not in kubernetes(Stub()).script(JOB)


def test_a_job_is_created_with_a_service_that_goes_with_it():
    stub = Stub()
    assert kubernetes(stub).submit(JOB) == JOB.name
    assert set(stub.objects) == {f"{JOBS}/{JOB.name}", f"{CORE}/services/{JOB.name}"}
    owners = stub.objects[f"{CORE}/services/{JOB.name}"]["metadata"]["ownerReferences"]
    assert owners == [{"apiVersion": "batch/v1", "kind": "Job", "name": JOB.name, "uid": "11-22"}]
    assert stub.requests[0].headers["Authorization"] == "Bearer t"
    # A worker that died before it noted the handle does the same once more.
    assert kubernetes(stub).submit(JOB) == JOB.name
    assert kubernetes(stub).find(JOB.name) == JOB.name


def test_where_the_service_is_refused_no_job_stays():
    stub = Stub()
    stub.fails[f"{CORE}/services"] = 403
    with pytest.raises(LauncherError, match="services is forbidden"):
        kubernetes(stub).submit(JOB)
    assert stub.objects == {}


def test_a_job_without_its_service_is_taken_away_and_not_found():
    stub = Stub()
    kubernetes(stub).submit(JOB)
    del stub.objects[f"{CORE}/services/{JOB.name}"]
    assert kubernetes(stub).find(JOB.name) is None
    assert stub.objects == {}


@pytest.mark.parametrize(
    ("job_status", "pods", "report"),
    [
        ({}, [], JobReport(state="waiting")),
        (
            {},
            [pod(phase="Pending", conditions=[
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                 "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}
            ])],
            JobReport(
                state="waiting",
                reason="Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                nodes=("gpu-1",),
            ),
        ),
        (
            {},
            [pod(phase="Pending", containerStatuses=[NO_IMAGE])],
            JobReport(state="waiting", reason="ImagePullBackOff", nodes=("gpu-1",)),
        ),
        ({"active": 2}, [pod(phase="Running")], JobReport(state="running", nodes=("gpu-1",))),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, [], JobReport(state="ended")),
        (
            FAILED,
            [],
            JobReport(state="ended", reason="BackoffLimitExceeded"),
        ),
        (
            FAILED,
            [pod(phase="Failed", containerStatuses=[NO_MEMORY])],
            JobReport(state="failed", reason=OOM, nodes=("gpu-1",)),
        ),
    ],
)  # fmt: skip
def test_the_state_of_a_job_is_read_from_it_and_its_pods(
    job_status: dict[str, Any], pods: list[dict[str, Any]], report: JobReport
):
    stub = Stub()
    kubernetes(stub).submit(JOB)
    stub.objects[f"{JOBS}/{JOB.name}"]["status"] = job_status
    stub.pods = pods
    assert kubernetes(stub).poll(JOB.name) == report


def test_a_deleted_job_counts_as_cancelled():
    assert kubernetes(Stub()).poll("gone") == JobReport(
        state="cancelled", reason="there is no such Job any more: somebody deleted it"
    )
    kubernetes(Stub()).cancel("gone")


def test_logs_are_those_of_the_first_node():
    stub = Stub()
    assert kubernetes(stub).logs(JOB.name, lines=5) == ""
    other = pod()
    other["metadata"] = {"name": "b", "annotations": {"batch.kubernetes.io/job-completion-index": "1"}}
    stub.pods = [other, pod()]
    assert kubernetes(stub).logs(JOB.name, lines=5) == f"{CORE}/pods/rondo-7-1-abcdef-0-x/log 5"
    assert list(kubernetes(stub).look()) == ["version v1.33.1, namespace nlp: 0 active jobs"]


def test_a_server_that_does_not_answer_may_be_asked_again():
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("slow")

    with pytest.raises(LauncherUnreachableError, match=r"Kubernetes does not answer at https://api:6443"):
        kubernetes(away).submit(JOB)
