"""Run a run's trainer as one node of a job: `python -m training.launchers.node RUN_DIR --job NAME`.

Ray and command templates start this, once on each node. It needs neither the database nor a connection to the
web. Exit status: that of the trainer on the first node, 0 or 3 on the others.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from training.contract import EXIT_FAILED, ContractError
from training.launchers.node.run import Files, NodeRun
from training.store import StoreError


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m training.launchers.node", description="Run one node of a training job."
    )
    parser.add_argument("run_folder", type=Path, metavar="RUN_DIR", help="folder of the run on this node")
    parser.add_argument("--job", required=True, help="name of the job, as in job.json")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of the job (default: 1)")
    parser.add_argument("--processes", type=int, default=1, help="trainers on each node (default: 1)")
    parser.add_argument("--rank", type=int, default=0, help="number of this node, from 0")
    parser.add_argument(
        "--rank-from", metavar="VARIABLE", help="environment variable that holds the number of this node"
    )
    parser.add_argument(
        "--master", default="127.0.0.1:29400", metavar="HOST:PORT", help="where the first node is reached"
    )
    parser.add_argument(
        "--stop-with-parent", action="store_true", help="save and stop when standard input ends"
    )
    arguments = parser.parse_args()
    rank = arguments.rank
    if arguments.rank_from:
        text = os.environ.get(arguments.rank_from, "")
        if not text.isdecimal():
            parser.error(f"{arguments.rank_from} is {text!r}; it must hold the number of this node")
        rank = int(text)
    try:
        files = Files(arguments.run_folder.absolute(), job=arguments.job, is_first=rank == 0)
        return NodeRun(
            files,
            nodes=arguments.nodes,
            rank=rank,
            processes=arguments.processes,
            master=arguments.master,
            stop_with_parent=arguments.stop_with_parent,
        ).run()
    except (ContractError, StoreError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
