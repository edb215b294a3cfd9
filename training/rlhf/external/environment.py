"""TRL's own environment: the program, its packages, and the variables that it is started with."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from training.contract import ContractError
from training.contract.external import REWARD_KEY_VARIABLE, REWARD_URL_VARIABLE, TRL_VARIABLE

OLDEST = 1
"""Major version of TRL whose configuration is written."""
_SECONDS = 120.0
_LIST = (
    "import importlib.metadata as m, json;"
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions() if d.metadata['Name']}))"
)
_NOT_HANDED_ON = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "RANK", "WORLD_SIZE", "LOCAL_RANK")
_NAMED = ("trl", "transformers", "torch", "peft", "datasets", "accelerate")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrlEnvironment:
    """A Python environment with TRL."""

    program: Path
    packages: Mapping[str, str]
    """Version of every distribution in it."""

    @property
    def digest(self) -> str:
        """Return the SHA-256 of its packages as `pip freeze` lists them."""
        return hashlib.sha256(self.frozen.encode()).hexdigest()

    @property
    def frozen(self) -> str:
        """Return its packages, NAME==VERSION, sorted, a line each."""
        return "".join(sorted(f"{name}=={version}\n" for name, version in self.packages.items()))

    @property
    def versions(self) -> dict[str, str]:
        """Return versions of the libraries that a checkpoint's numbers depend on."""
        return {name: self.packages[name] for name in _NAMED if name in self.packages}

    def require(self, package: str) -> None:
        """Raise `ContractError` where a package is missing."""
        if package not in self.packages:
            raise ContractError(
                f"the environment of {self.program} lacks {package}, which this run needs; install it: "
                f"{self.program.parent / 'python'} -m pip install {package}"
            )


def find_environment(environment: Mapping[str, str] = os.environ) -> TrlEnvironment:
    """Return the environment that RONDO_TRL names. Raises `ContractError` where it is none."""
    named = environment.get(TRL_VARIABLE, "").strip()
    if not named:
        raise ContractError(
            f"trainer: {TRL_VARIABLE} is not set in the trainer's environment; set it to the program `trl` "
            "of an environment with TRL, or set trainer to 'rondo' in the recipe"
        )
    program = Path(named).expanduser().absolute()
    python = program.parent / "python"
    if not os.access(program, os.X_OK) or not os.access(python, os.X_OK):
        raise ContractError(
            f"trainer: {TRL_VARIABLE} is {named}, which is no program with a Python beside it; make an "
            "environment (python -m venv, pip install 'trl[peft]' httpx) and name its bin/trl"
        )
    try:
        done = subprocess.run(
            [str(python), "-c", _LIST],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=child_variables(environment, program=program),
        )
        packages: dict[str, str] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise ContractError(f"trainer: {python} does not run ({error}); make that environment anew") from None
    version = packages.get("trl", "")
    if version.partition(".")[0] != str(OLDEST):
        raise ContractError(
            f"trainer: the environment of {program} has TRL {version or '(none)'}, and Rondo writes the "
            f"configuration of TRL {OLDEST}; install 'trl>={OLDEST},<{OLDEST + 1}' there"
        )
    return TrlEnvironment(program=program, packages=packages)


def child_variables(environment: Mapping[str, str], *, program: Path) -> dict[str, str]:
    """Return the variables of a process in TRL's environment: no secret of Rondo's, and no download."""
    variables = {
        name: value
        for name, value in environment.items()
        if name not in _NOT_HANDED_ON and not name.startswith(("RONDO_", "DJANGO_"))
    }
    return {
        **variables,
        "PATH": f"{program.parent}{os.pathsep}{variables.get('PATH', os.defpath)}",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "TQDM_DISABLE": "1",
    }


def reward_variables(environment: Mapping[str, str], *, model: str) -> dict[str, str]:
    """Return the variables of `rondo_reward.py`. Raises `ContractError` where the server is not named."""
    for name in (REWARD_URL_VARIABLE, REWARD_KEY_VARIABLE):
        if not environment.get(name):
            raise ContractError(
                f"trainer: {name} is not set in the trainer's environment; set it to the model server that "
                "scores the samples, and its key"
            )
    return {
        REWARD_URL_VARIABLE: environment[REWARD_URL_VARIABLE],
        REWARD_KEY_VARIABLE: environment[REWARD_KEY_VARIABLE],
        "RONDO_REWARD_MODEL": model,
    }
