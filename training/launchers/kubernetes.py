"""Kubernetes: an indexed Job with a pod for each node, and a Service by which they meet.

Where the cluster has JobSet's controller, a JobSet of one such Job instead: its controller makes the Service.
"""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from training.launchers.http import Api
from training.launchers.node_command import node_command, without_secrets
from training.launchers.protocol import Job, JobReport, LauncherError, Place

_PORT = 29400
_LABELS = {"app.kubernetes.io/name": "rondo", "app.kubernetes.io/component": "training"}
_KEEP_SECONDS = 86400
_GRACE_SECONDS = 180
"""For a trainer to save once it is told to end."""
_JOBSET = "jobset.x-k8s.io/v1alpha2"
_NODES = "nodes"
_OVER = ("Complete", "Completed", "Failed")
"""Conditions of a Job and of a JobSet that has ended."""
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pods:
    """Properties of every pod, from the settings."""

    image: str
    namespace: str = "default"
    claim: str = ""
    """A PersistentVolumeClaim with RONDO_HOME, mounted where the nodes see it; empty where the store carries
    files."""
    secret: str = ""
    """A Secret whose entries become variables: keys of the store and of judges."""
    service_account: str = ""
    jobset: bool = False
    """True: submit JobSets in place of Jobs."""


class Kubernetes:
    """A namespace of a Kubernetes cluster."""

    name = "kubernetes"

    def __init__(
        self,
        place: Place,
        pods: Pods,
        *,
        url: str,
        token: str = "",
        authority: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """token: empty takes that of the service account. authority: file of a certificate authority."""
        self._place = place
        self._pods = pods
        self._api = Api(
            "Kubernetes", url, token=_token(token), verify=lambda: _trust(authority), transport=transport
        )
        self._namespaced = f"/api/v1/namespaces/{pods.namespace}"
        group, kind = (_JOBSET, "jobsets") if pods.jobset else ("batch/v1", "jobs")
        self._jobs = f"/apis/{group}/namespaces/{pods.namespace}/{kind}"

    def script(self, job: Job) -> str:
        """Return the manifests as one list in JSON, which kubectl takes, too."""
        items = {"apiVersion": "v1", "kind": "List", "items": self.manifests(job)}
        return json.dumps(items, indent=2) + "\n"

    def manifests(self, job: Job) -> list[dict[str, Any]]:
        """Return the Job, and with several nodes the Service by which they find the first; or the JobSet."""
        if self._pods.jobset:
            return [self._set(job)]
        return [self._job(job), *([self._service(job)] if job.resources.nodes > 1 else [])]

    def submit(self, job: Job) -> str:
        """Create the objects; if the second one fails, the first is deleted."""
        manifest, *others = self.manifests(job)
        made = self._api.json("POST", self._jobs, json=manifest, tolerate=(409,))
        if made is None:
            # Created by a worker that died before it could write so.
            made = self._api.json("GET", f"{self._jobs}/{job.name}")
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job.name,
            "uid": made["metadata"]["uid"],
        }
        try:
            for other in others:
                other["metadata"]["ownerReferences"] = [owner]
                self._api.ask("POST", f"{self._namespaced}/services", json=other, tolerate=(409,))
        except LauncherError:
            self.cancel(job.name)
            raise
        return job.name

    def find(self, name: str) -> str | None:
        """Return the name where the Job is there, with all that belongs to it."""
        job = self._api.json("GET", f"{self._jobs}/{name}", tolerate=(404,))
        if job is None:
            return None
        service = self._api.ask("GET", f"{self._namespaced}/services/{name}", tolerate=(404,))
        if job["spec"].get("completions", 1) > 1 and service is None:
            self.cancel(name)
            return None
        return name

    def poll(self, handle: str) -> JobReport:
        """Return the state of a Job and of its pods."""
        job = self._api.json("GET", f"{self._jobs}/{handle}", tolerate=(404,))
        if job is None:
            return JobReport(state="cancelled", reason="there is no such Job any more: somebody deleted it")
        pods = self._pods_of(handle)
        nodes = tuple(name for pod in pods if (name := pod["spec"].get("nodeName")))
        if any(_ended_by(pod) == "OOMKilled" for pod in pods):
            return JobReport(
                state="failed", reason="OOMKilled: a pod needed more than its memory", nodes=nodes
            )
        for condition in job.get("status", {}).get("conditions") or ():
            if condition.get("status") == "True" and condition.get("type") in _OVER:
                return JobReport(state="ended", reason=_words(condition), nodes=nodes)
        if any(pod.get("status", {}).get("phase") == "Running" for pod in pods):
            return JobReport(state="running", nodes=nodes)
        reasons = [reason for pod in pods if (reason := _waits_for(pod))]
        return JobReport(state="waiting", reason=reasons[0] if reasons else "", nodes=nodes)

    def cancel(self, handle: str) -> None:
        """Delete a Job. Its pods get SIGTERM and time to save."""
        self._api.ask(
            "DELETE",
            f"{self._jobs}/{handle}",
            query={"propagationPolicy": "Background"},
            tolerate=(404,),
        )

    def logs(self, handle: str, *, lines: int) -> str:
        """Return the end of the first pod's log."""
        pods = self._pods_of(handle)
        if not pods:
            return ""
        first = min(pods, key=_index)
        name = first["metadata"]["name"]
        answer = self._api.ask(
            "GET", f"{self._namespaced}/pods/{name}/log", query={"tailLines": str(lines)}, tolerate=(400, 404)
        )
        return answer.text.rstrip("\n") if answer is not None else ""

    def look(self) -> Sequence[str]:
        """Return the version of the server, and how many of our Jobs are active."""
        version = self._api.json("GET", "/version").get("gitVersion")
        selector = ",".join(f"{name}={value}" for name, value in _LABELS.items())
        jobs = self._api.json("GET", self._jobs, query={"labelSelector": selector})["items"]
        active = sum(1 for job in jobs if _is_active(job.get("status") or {}))
        return [f"version {version}, namespace {self._pods.namespace}: {active} active jobs"]

    def _pods_of(self, handle: str) -> list[dict[str, Any]]:
        label = "jobset.sigs.k8s.io/jobset-name" if self._pods.jobset else "batch.kubernetes.io/job-name"
        query = {"labelSelector": f"{label}={handle}"}
        items: list[dict[str, Any]] = self._api.json("GET", f"{self._namespaced}/pods", query=query)["items"]
        return items

    def _job(self, job: Job) -> dict[str, Any]:
        spec = {**self._job_spec(job), "ttlSecondsAfterFinished": _KEEP_SECONDS}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": self._metadata(job), "spec": spec}

    def _set(self, job: Job) -> dict[str, Any]:
        nodes = {"name": _NODES, "replicas": 1, "template": {"spec": self._job_spec(job)}}
        spec = {
            "replicatedJobs": [nodes],
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": job.name},
            "failurePolicy": {"maxRestarts": 0},
            "ttlSecondsAfterFinished": _KEEP_SECONDS,
        }
        return {"apiVersion": _JOBSET, "kind": "JobSet", "metadata": self._metadata(job), "spec": spec}

    def _metadata(self, job: Job) -> dict[str, Any]:
        queue = job.resources.queue
        return {
            "name": job.name,
            "namespace": self._pods.namespace,
            "labels": {**_LABELS, **({"kueue.x-k8s.io/queue-name": queue} if queue else {})},
            "annotations": {"rondo/run": job.run},
        }

    def _job_spec(self, job: Job) -> dict[str, Any]:
        wants = job.resources
        spec: dict[str, Any] = {
            "completions": wants.nodes,
            "parallelism": wants.nodes,
            "completionMode": "Indexed",
            # Rondo submits again by itself, where training came further.
            "backoffLimit": 0,
            "template": {"metadata": {"labels": _LABELS}, "spec": self._pod(job)},
        }
        if wants.hours is not None:
            spec["activeDeadlineSeconds"] = math.ceil(wants.hours * 3600)
        return spec

    def _pod(self, job: Job) -> dict[str, Any]:
        wants = job.resources
        limits: dict[str, Any] = {}
        if wants.gpus:
            limits["nvidia.com/gpu"] = wants.gpus
        if wants.memory_gb is not None:
            limits["memory"] = f"{math.ceil(wants.memory_gb * 1024)}Mi"
        # Processes of one node exchange tensors through shared memory; Docker's default is 64 MiB.
        volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
        mounts = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - where shared memory is
        if self._pods.claim:
            volumes.append({"name": "home", "persistentVolumeClaim": {"claimName": self._pods.claim}})
            mounts.append({"name": "home", "mountPath": self._place.home})
        container: dict[str, Any] = {
            "name": "trainer",
            "image": self._pods.image,
            "command": self._command(job),
            "workingDir": self._place.code,
            "env": [
                {"name": name, "value": value}
                for name, value in sorted(without_secrets(job.environment).items())
            ],
            "resources": {"limits": limits},
            "volumeMounts": mounts,
        }
        if self._pods.secret:
            container["envFrom"] = [{"secretRef": {"name": self._pods.secret}}]
        pod: dict[str, Any] = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "subdomain": job.name,
            "containers": [container],
            "volumes": volumes,
        }
        if self._pods.service_account:
            pod["serviceAccountName"] = self._pods.service_account
        else:
            pod["automountServiceAccountToken"] = False
        return pod

    def _command(self, job: Job) -> list[str]:
        command = [*node_command(job, self._place), "--rank-from", "JOB_COMPLETION_INDEX"]
        # JobSet names a pod by its set, the job in it, the job's number and its own.
        first = f"{job.name}-{_NODES}-0-0" if self._pods.jobset else f"{job.name}-0"
        return [*command, "--master", f"{first}.{job.name}:{_PORT}"]

    def _service(self, job: Job) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": job.name, "namespace": self._pods.namespace, "labels": dict(_LABELS)},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {"batch.kubernetes.io/job-name": job.name},
                "ports": [{"name": "trainers", "port": _PORT}],
            },
        }


def _token(token: str) -> Callable[[], str]:
    """Return a way to the token: that of a service account is renewed, so its file is read each time."""
    path = _SERVICE_ACCOUNT / "token"
    return lambda: token or (path.read_text(encoding="utf-8").strip() if path.is_file() else "")


def _trust(authority: str) -> ssl.SSLContext:
    """Return a context that trusts the cluster's authority, where one is named or mounted."""
    mounted = _SERVICE_ACCOUNT / "ca.crt"
    path = authority or (str(mounted) if mounted.is_file() else "")
    try:
        return ssl.create_default_context(cafile=path or None)
    except (OSError, ssl.SSLError) as error:
        raise LauncherError(
            f"Kubernetes: the certificate authority {path} cannot be read ({error}); see to "
            "RONDO_KUBERNETES_CA"
        ) from error


def _is_active(status: dict[str, Any]) -> bool:
    """Return whether a Job, or a Job of a JobSet, has pods that wait or run."""
    return any(
        job_status.get("active") for job_status in (status, *(status.get("replicatedJobsStatus") or ()))
    )


def _ended_by(pod: dict[str, Any]) -> str:
    """Return why a pod's container ended; empty while it runs."""
    for status in pod.get("status", {}).get("containerStatuses") or ():
        if ended := status.get("state", {}).get("terminated"):
            return str(ended.get("reason") or "")
    return ""


def _waits_for(pod: dict[str, Any]) -> str:
    """Return why a pod does not run yet: its image, or a node with room for it."""
    for status in pod.get("status", {}).get("containerStatuses") or ():
        if waiting := status.get("state", {}).get("waiting"):
            return _words(waiting)
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _words(condition)
    return ""


def _words(about: dict[str, Any]) -> str:
    return ": ".join(str(about[name]) for name in ("reason", "message") if about.get(name))


def _index(pod: dict[str, Any]) -> int:
    annotations = pod["metadata"].get("annotations") or {}
    return int(annotations.get("batch.kubernetes.io/job-completion-index", 0))
