"""Runs on a Ray cluster as the driver of one job: places the nodes of a run, starts them, and ends with them.

Shipped as text with the job, so that the cluster needs Ray and Rondo's trainer, and the web needs no Ray.
Stands on the standard library and Ray alone. Its argument is JSON: see `training.launchers.ray`.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

_LEAVE_SECONDS = 200.0
"""For the other nodes to save and end after one was lost; each ends by itself once its peers are gone."""
_START_SECONDS = 3600.0
"""For a rollout server to load its base."""


class Node:
    """One node: holds its bundle's resources and the process that trains there."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def address(self) -> str:
        """Return where the trainers meet, if this is the first node."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

    def run(
        self, command: list[str], folder: str, rank: int, master: str, environment: dict[str, str]
    ) -> int:
        """Run the node's command to its end; the exit status. environment: further variables of it."""
        # The other end of the pipe closes with this process, however it ends; the node then saves and stops.
        self.process = subprocess.Popen(
            [*command, "--rank", str(rank), "--master", master, "--stop-with-parent"],
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
        )
        return self.process.wait()

    def stop(self) -> None:
        """Have the node save and stop."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)


class Server:
    """One rollout server: holds its bundle's resources and the process that keeps it running."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, keeper: list[str], command: list[str], folder: str, environment: dict[str, str]) -> str:
        """Start the server; its address, once it answers and has loaded its base.

        keeper: command that keeps another one running. command: of the server, with {host} and {port}.
        """
        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        words = [word.replace("{host}", host).replace("{port}", str(port)) for word in command]
        self.process = subprocess.Popen(
            [*keeper, *words], cwd=folder, env=os.environ | environment, stdin=subprocess.PIPE
        )
        url = f"http://{host}:{port}"
        deadline = time.monotonic() + _START_SECONDS
        while not is_ready(url):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the rollout server at {url} does not answer GET /health: see its output")
            time.sleep(1.0)
        return url


def is_ready(url: str) -> bool:
    """Return whether a server answers; Rondo's answers before it has its base, and says so."""
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{url}/health", timeout=10) as response:
            text = response.read().strip()
        return not text or json.loads(text).get("state", "ready") == "ready"
    except (OSError, ValueError):
        return False


def main() -> int:
    """Drive the job; the exit status is that of its first node."""
    job = json.loads(sys.argv[1])
    ray.init(log_to_driver=True)
    bundle = {"CPU": job["processes"]}
    if job["gpus"]:
        bundle["GPU"] = job["gpus"]
    if job["memory"]:
        bundle["memory"] = job["memory"]
    wants = job["servers"]
    server_bundle = {"CPU": 1, "GPU": wants["gpus"]} if wants["gpus"] else {"CPU": 1}
    bundles = [*([bundle] * job["nodes"]), *([server_bundle] * wants["count"])]
    # One group, so that two jobs never wait for each other's half. A server may share a machine with a node.
    strategy = "SPREAD" if wants["count"] else "STRICT_SPREAD" if job["nodes"] > 1 else "PACK"
    group = placement_group(bundles, strategy=strategy)
    print(f"waiting for {job['nodes']} nodes with {bundle} each", flush=True)
    if wants["count"]:
        print(f"and for {wants['count']} rollout servers with {server_bundle} each", flush=True)
    ray.get(group.ready())

    def actor(kind: type, index: int) -> Any:
        # Several calls at once: one runs until the end.
        remote = ray.remote(max_restarts=0, max_concurrency=4)(kind)
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        needs = bundles[index]
        return remote.options(
            num_cpus=needs["CPU"],
            num_gpus=needs.get("GPU", 0),
            memory=needs.get("memory", 0),
            scheduling_strategy=place,
        ).remote()

    nodes = [actor(Node, index) for index in range(job["nodes"])]
    servers = [actor(Server, job["nodes"] + index) for index in range(wants["count"])]
    environment = serve(servers, wants, job["folder"]) if servers else {}
    master = ray.get(nodes[0].address.remote())
    print(f"the nodes meet at {master}", flush=True)
    ends = [
        node.run.remote(job["command"], job["folder"], rank, master, environment)
        for rank, node in enumerate(nodes)
    ]
    return follow(nodes, ends, job["seconds"])


def serve(servers: list[Any], wants: dict[str, Any], folder: str) -> dict[str, str]:
    """Start the servers; the variables by which trainers find them. Their key is shown nowhere."""
    key = secrets.token_urlsafe(32)
    os.makedirs(wants["adapters"], exist_ok=True)
    environment = dict.fromkeys(wants["key_variables"], key) | wants["environment"]
    starts = [
        server.start.remote(wants["keeper"], wants["command"], folder, environment) for server in servers
    ]
    urls = ray.get(starts)
    print(f"rollout servers answer at {', '.join(urls)}", flush=True)
    return {
        "RONDO_ROLLOUT_URL": ",".join(urls),
        "RONDO_ROLLOUT_KEY": key,
        "RONDO_ROLLOUT_FOLDER": wants["adapters"],
    }


def follow(nodes: list[Any], ends: list[Any], seconds: float) -> int:
    """Stay until all nodes have ended; once one is lost or time is up, the others are asked to stop."""
    deadline = time.monotonic() + seconds if seconds else None
    codes: dict[int, int | None] = {}
    stopping: float | None = None
    while len(codes) < len(ends):
        left = [end for rank, end in enumerate(ends) if rank not in codes]
        ready, _ = ray.wait(left, num_returns=1, timeout=1.0)
        for end in ready:
            rank = ends.index(end)
            try:
                codes[rank] = ray.get(end)
            except ray.exceptions.RayError as error:
                print(f"node {rank} was lost: {type(error).__name__}", flush=True)
                codes[rank] = None
        now = time.monotonic()
        is_over = any(code != 0 for code in codes.values()) or (deadline is not None and now > deadline)
        if is_over and stopping is None:
            stopping = now
            for rank, node in enumerate(nodes):
                if rank not in codes:
                    node.stop.remote()
        if stopping is not None and now - stopping > _LEAVE_SECONDS:
            break
    code = codes.get(0)
    return 1 if code is None else code


if __name__ == "__main__":
    status = main()
    ray.shutdown()
    sys.stdout.flush()
    os._exit(status if 0 <= status < 256 else 1)
