"""Runs on a Ray cluster as the driver of one job: places the nodes of a run, starts them, and ends with them.

Shipped as text with the job, so that the cluster needs Ray and Rondo's trainer, and the web needs no Ray.
Stands on the standard library and Ray alone. Its argument is JSON: see `training.launchers.ray`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

_LEAVE_SECONDS = 200.0
"""For the other nodes to save and end after one was lost; each ends by itself once its peers are gone."""


class Node:
    """One node: holds its bundle's resources and the process that trains there."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def address(self) -> str:
        """Return where the trainers meet, if this is the first node."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

    def run(self, command: list[str], folder: str, rank: int, master: str) -> int:
        """Run the node's command to its end; the exit status."""
        # The other end of the pipe closes with this process, however it ends; the node then saves and stops.
        self.process = subprocess.Popen(
            [*command, "--rank", str(rank), "--master", master, "--stop-with-parent"],
            cwd=folder,
            stdin=subprocess.PIPE,
        )
        return self.process.wait()

    def stop(self) -> None:
        """Have the node save and stop."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)


def main() -> int:
    """Drive the job; the exit status is that of its first node."""
    job = json.loads(sys.argv[1])
    ray.init(log_to_driver=True)
    count = job["nodes"]
    bundle = {"CPU": job["processes"]}
    if job["gpus"]:
        bundle["GPU"] = job["gpus"]
    if job["memory"]:
        bundle["memory"] = job["memory"]
    bundles = [dict(bundle) for _ in range(count)]
    group = placement_group(bundles, strategy="STRICT_SPREAD" if count > 1 else "PACK")
    print(f"waiting for {count} nodes with {bundle} each", flush=True)
    ray.get(group.ready())
    # Several calls at once: one runs until the end.
    remote = ray.remote(max_restarts=0, max_concurrency=4)(Node)
    nodes = [
        remote.options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            memory=bundle.get("memory", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        ).remote()
        for index in range(count)
    ]
    master = ray.get(nodes[0].address.remote())
    print(f"the nodes meet at {master}", flush=True)
    ends = [node.run.remote(job["command"], job["folder"], rank, master) for rank, node in enumerate(nodes)]
    return follow(nodes, ends, job["seconds"])


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
