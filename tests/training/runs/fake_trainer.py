"""A trainer of the standard library alone, for tests of who starts, watches and stops one.

It keeps to the contract: spec and snapshot in, status and checkpoint out, stops on `cancel`
and at the end of its standard input, resumes from `state/`. `fake_trainer.json` beside the
runs folder tells it how to behave: `steps`, `seconds` per step, `fail_at` a step,
`interrupted_at` a step, once; `killed_at` a step by SIGKILL in each of its first `kills` starts.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from training.contract.checkpoint import Manifest, write_manifest
from training.contract.files import sha256_of_file
from training.contract.run import (
    CANCEL_FILE,
    CHECKPOINT_FOLDER,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    METRICS_FILE,
    STATE_FOLDER,
    RunSpec,
    RunStatus,
    read_spec,
    write_status,
)
from training.contract.snapshot import read_snapshot

BEHAVIOUR_FILE = "fake_trainer.json"


def train(folder: Path, *, parent_is_gone: Callable[[], bool] = lambda: False) -> int:
    """Train as the behaviour file says; the exit status of the contract."""
    behaviour_file = folder.parent.parent / BEHAVIOUR_FILE
    behaviour = json.loads(behaviour_file.read_text()) if behaviour_file.exists() else {}
    steps, seconds, fail_at = behaviour.get("steps", 3), behaviour.get("seconds", 0), behaviour.get("fail_at")
    spec = read_spec(folder)
    rows = list(read_snapshot((folder / spec.snapshot).resolve()))
    state = folder / STATE_FOLDER / "step"
    done = int(state.read_text()) if state.exists() else 0
    with (folder / "starts").open("a") as stream:
        stream.write(f"{os.getpid()} from {done}\n")

    def tell(kind: str, message: str = "") -> None:
        left = (steps - done) * seconds
        write_status(
            folder,
            RunStatus(
                state=kind,  # type: ignore[arg-type]
                step=done,
                total_steps=steps,
                seconds_left=left,
                message=message,
                updated_at=time.time(),
            ),
        )

    tell("starting", f"{len(rows)} rows")
    while done < steps:
        if (folder / CANCEL_FILE).exists() or parent_is_gone():
            tell("stopped", "stopped, state saved")
            return EXIT_STOPPED
        if behaviour.get("interrupted_at") == done and not (folder / "interrupted").exists():
            (folder / "interrupted").touch()
            tell("stopped", "stopped by SIGTERM")
            return EXIT_STOPPED
        starts = len((folder / "starts").read_text().splitlines())
        if behaviour.get("killed_at") == done and starts <= behaviour["kills"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if fail_at == done:
            tell("failed", f"Loss was not finite at step {done}. Lower the learning rate.")
            return EXIT_FAILED
        time.sleep(seconds)
        done += 1
        with (folder / METRICS_FILE).open("a") as stream:
            stream.write(json.dumps({"step": done, "loss": 1 / done}) + "\n")
        state.parent.mkdir(exist_ok=True)
        state.write_text(str(done))
        tell("running", f"step {done}")
    write_checkpoint(folder / CHECKPOINT_FOLDER, spec, steps)
    tell("finished")
    return EXIT_FINISHED


def stdin_is_closed() -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def write_checkpoint(folder: Path, spec: RunSpec, steps: int) -> None:
    folder.mkdir(exist_ok=True)
    weights = folder / "adapter_model.safetensors"
    weights.write_text(f"weights of {spec.name}")
    write_manifest(
        folder,
        Manifest(
            kind="reward" if spec.method == "reward" else "policy",
            name=spec.name,
            base_model=Path(spec.base_model).name,
            base_digest="0" * 64,
            spec=spec.to_json(),
            snapshot_digest=spec.snapshot_digest,
            seed=spec.seed,
            commit=spec.commit,
            steps=steps,
            metrics={"accuracy": 0.75},
            dropped=[],
            heads=["reward"] if spec.method == "reward" else [],
            files={weights.name: sha256_of_file(weights)},
            versions={},
            parent_digest=spec.parent_digest,
        ),
    )


if __name__ == "__main__":
    if "--stop-with-parent" in sys.argv:
        sys.exit(train(Path(sys.argv[1]), parent_is_gone=stdin_is_closed))
    sys.exit(train(Path(sys.argv[1])))
