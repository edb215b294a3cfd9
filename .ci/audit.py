"""Ask whether a package of the locks has a known vulnerability: a step of .ci/run.

    .venv/bin/python .ci/audit.py

All of .ci/locks, of every platform: what this machine has installed is a part of that.

Fails on every vulnerability that .ci/known_vulnerabilities.txt does not excuse, and on every excuse that is
no longer needed. Without a network nothing can be asked: that is said, and fails nothing.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE = 180
EXCUSES = Path(__file__).parent / "known_vulnerabilities.txt"
LOCKS = Path(__file__).parent / "locks"


def main() -> None:
    report: dict[str, Any] = {"dependencies": []}
    for lock in sorted(LOCKS.glob("*.txt")):
        # 1 is its verdict that something was found, and comes with the same document.
        try:
            asked = subprocess.run(
                audit_command(lock), capture_output=True, text=True, check=False, timeout=PATIENCE
            )
            packages = json.loads(asked.stdout)["dependencies"]
        except subprocess.TimeoutExpired:
            print(f"WARNING: nothing was audited, pip-audit had no answer in {PATIENCE} s.")
            return
        except ValueError:
            last = (asked.stderr.strip().splitlines() or ["it said nothing"])[-1]
            print(f"WARNING: nothing was audited, pip-audit could not ask: {last}")
            return
        report["dependencies"] += [one for one in packages if one not in report["dependencies"]]
    faults = found_faults(report, excuses(EXCUSES.read_text(encoding="utf-8")))
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(report['dependencies'])} packages, no vulnerability that is not excused.")


def audit_command(lock: Path) -> list[str]:
    """Return the command that audits every pin of a lock and installs none."""
    return [
        *(sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--require-hashes", "--disable-pip"),
        *("--format", "json", "--progress-spinner", "off"),
    ]


def excuses(text: str) -> dict[str, str]:
    """Identifier of a vulnerability → why it does not concern us. Refuses a line without a reason."""
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        identifier, _, reason = line.strip().partition(" ")
        if not reason.strip():
            sys.exit(
                f"{EXCUSES.name}: {identifier} has no reason. Write one behind it, or update the package."
            )
        found[identifier] = reason.strip()
    return found


def found_faults(report: dict[str, Any], excused: dict[str, str]) -> list[str]:
    """Remedies: packages to update, excuses to take out."""
    faults, used = [], set()
    for package in report["dependencies"]:
        for one in package.get("vulns", []):
            names = {one["id"], *one.get("aliases", [])}
            if matching := names & set(excused):
                used |= matching
                continue
            better = ", ".join(one["fix_versions"]) or "none yet"
            faults.append(f"{package['name']} {package['version']}: {one['id']}; repaired in: {better}.")
    faults += [
        f"{EXCUSES.name}: {name} is not found any more. Take the line out." for name in set(excused) - used
    ]
    return sorted(faults)


if __name__ == "__main__":
    main()
