"""A round goes on while its programs and servers are killed by SIGKILL, so often, in turn and at random.

    python -m tests.benchmarks.faults [--kills 50] [--seed 1] [--people 4] [--steps 400]

PostgreSQL and Redis are the script's own. First each of web server, worker, trainer, model server, PostgreSQL
and Redis is killed in turn, then whichever a seeded draw names, with a drawn pause between. Meanwhile people
judge and write every answer that the server acknowledged into a ledger. At the end every run is trained once
more, undisturbed: its weights must be the same to the byte. Exit status 1 where anything was lost, doubled or
left over.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.installation import VICTIMS, Installation
from tests.faults.ledger import faults_in
from tests.loop.recipe import TINY
from tests.tiny import tiny_model_folder
from tests.webapp.running import ROOT
from training.contract import read_metrics

_DECIDED = ("promoted", "rejected", "not_enough_evidence")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--people", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pause", type=float, default=4.0, help="mean seconds between two kills")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rondo-faults-home-"))
    tiny_model_folder(folder / "models" / TINY)
    house = Installation(folder, folder / "models")
    try:
        report = _ordeal(house, options)
    finally:
        house.close()
    wrong = report["wrong"]
    if wrong:
        print(f"Kept for a look: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    print(json.dumps({**report, "load": os.getloadavg()[0]}, indent=1))
    sys.exit(bool(wrong))


def _ordeal(house: Installation, options: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    house.prepare(
        prompts=160, people=options.people, overlap=2, steps=options.steps, save_every=10, judgments=20
    )
    house.start()
    house.people_come([house.place], think=6.0)
    killed = _kill(house, options)
    after = time.monotonic()
    # What was open when the last one died must come to its end; then nobody starts another round.
    house.wait(lambda: house.state_of_round(1) in (*_DECIDED, "failed"), "the end of round 1", 900)
    came_to = max(1, int(house.value("SELECT max(number) FROM training_round") or 1))
    calm = time.monotonic() - after
    house.people_go()
    left = [" ".join(process.cmdline())[:120] for process in house.stop()]
    seen = house.look()
    wrong: dict[str, Any] = dict(faults_in(house.ledger.path, seen["judgments"]))
    wrong |= {name: seen[name] for name in ("learned_from_twice", "answered_twice") if seen[name]}
    wrong |= {"processes left": left} if left else {}
    wrong |= {"files left": house.left_over()} if house.left_over() else {}
    failed = {
        f"round {round_['number']}": round_["errors"]
        for round_ in seen["rounds"]
        if round_["state"] == "failed"
    }
    wrong |= {"rounds failed": failed} if failed else {}
    wrong |= _trained_otherwise(house, seen)
    return {
        "kills": Counter(killed),
        "seconds_of_kills": round(after - began),
        "seconds_to_the_end_of_round_1_afterwards": round(calm),
        "rounds": {round_["number"]: round_["state"] for round_ in seen["rounds"]},
        "round_reached": came_to,
        "acknowledged": house.ledger.acknowledged,
        "sent_again": house.ledger.tries - house.ledger.acknowledged,
        "stored": len(seen["judgments"]),
        "trained": {run["name"]: f"{run['state']}, {run['step']} steps" for run in seen["runs"]},
        "wrong": wrong,
    }


def _kill(house: Installation, options: argparse.Namespace) -> list[str]:
    """As often as asked: in turn, then at random. Who does not run now is waited for."""
    chance = random.Random(options.seed)
    killed: list[str] = []
    in_turn = list(VICTIMS)
    while len(killed) < options.kills:
        time.sleep(chance.uniform(0.2, 2 * options.pause))
        victim = in_turn[0] if in_turn else chance.choice(VICTIMS)
        pid = house.kill(victim, chance)
        if pid is None:
            # It is just being started, or the round is where nothing is trained.
            in_turn = [*in_turn[1:], victim] if in_turn else []
            continue
        in_turn = in_turn[1:]
        killed.append(victim)
        print(
            f"{len(killed):3} {victim} ({pid}); round 1 {house.state_of_round(1)}",
            file=sys.stderr,
            flush=True,
        )
    return killed


def _trained_otherwise(house: Installation, seen: dict[str, Any]) -> dict[str, list[str]]:
    """Finished runs whose steps are not there once each, or whose weights are not an undisturbed run's."""
    faults: dict[str, list[str]] = {}
    for run in seen["runs"]:
        if run["state"] != "finished":
            continue
        folder = house.home / run["folder"]
        steps = [row["step"] for row in read_metrics(folder)]
        if steps != list(range(1, run["total"] + 1)):
            faults.setdefault("steps not once each", []).append(run["name"])
        again = folder.with_name(f"{folder.name}-undisturbed")
        again.mkdir()
        shutil.copy(folder / "spec.json", again)
        trained = [sys.executable, "-m", "training.rlhf", str(again)]
        subprocess.run(
            trained, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True
        )
        if _weights(folder) != _weights(again):
            faults.setdefault("weights differ from an undisturbed run", []).append(run["name"])
    return faults


def _weights(run: Path) -> dict[str, str]:
    files = sorted((run / "checkpoint").rglob("*.safetensors"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


if __name__ == "__main__":
    main()
