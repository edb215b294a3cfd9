"""A Ray cluster on this machine, run by the Python of its own virtual environment: a head and three nodes.

Prints a line with the pids of its raylets once it is up, and ends with its standard input.
"""

import json
import sys

from ray.cluster_utils import Cluster

NODES = 3


def main() -> None:
    """Start the cluster; the argument is the port of the dashboard."""
    small = {"object_store_memory": 100 * 2**20, "memory": 2 * 2**30}
    # The head drives jobs and trains nothing, so that every node that trains may die.
    head = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": int(sys.argv[1]), **small}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(NODES)]
    cluster.wait_for_nodes()
    pids = [node.all_processes["raylet"][0].process.pid for node in nodes]
    print(json.dumps({"raylets": pids}), flush=True)
    for line in sys.stdin:
        if line.strip() == "add":
            cluster.add_node(num_cpus=1, **small)
            print(json.dumps({"added": True}), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
