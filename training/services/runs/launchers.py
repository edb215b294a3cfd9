"""The launchers of this installation, as its settings describe them."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from training.launchers import Launcher, Place, Resources
from training.launchers.command import CommandTemplate
from training.launchers.ray import Ray
from training.recipe.parts import ComputeSettings
from training.services.runs.launcher import trainer_environment

LOCAL = "local"
DEFAULT = "default"
_STORE_PREFIXES = ("AWS_", "FSSPEC_", "GOOGLE_", "AZURE_")
_SAME_THERE = (
    "RONDO_",
    "OMP_",
    "MKL_",
    "TORCH",
    "PYTORCH_",
    "NCCL_",
    "HF_HUB_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
)
"""Variables of a trainer that mean the same on a node; paths and devices of this machine do not."""


def allowed_launchers() -> list[str]:
    """Return the launchers that recipes may choose; the first is the default."""
    return list(settings.RONDO_LAUNCHER)


def launcher_of(compute: ComputeSettings) -> str:
    """Return the name of the launcher that a recipe means. Refuses one that the installation lacks."""
    names = allowed_launchers()
    if compute.launcher == DEFAULT:
        return names[0]
    if compute.launcher not in names:
        raise Refusal(
            "unknown_launcher",
            _(
                "The recipe asks for the launcher %(name)s, and this installation has %(names)s: change "
                "compute, launcher, or add it to RONDO_LAUNCHER."
            ),
            field="recipe",
            name=compute.launcher,
            names=", ".join(names),
        )
    return compute.launcher


def resources_of(compute: ComputeSettings) -> dict[str, Any]:
    """Return what a run keeps of its recipe's compute: the launcher, and what is asked of it."""
    name = launcher_of(compute)
    if name == LOCAL and compute.nodes > 1:
        raise Refusal(
            "launcher_too_small",
            _("The recipe asks for %(nodes)d machines, and local has one: choose a cluster as launcher."),
            field="recipe",
            nodes=compute.nodes,
        )
    if compute.rollout_servers:
        _check_servers(name)
    return {
        "launcher": name,
        "nodes": compute.nodes,
        "gpus": compute.gpus,
        "memory_gb": compute.memory_gb,
        "hours": compute.time_limit_hours,
        "queue": compute.queue,
        "servers": compute.rollout_servers,
        "gpus_per_server": compute.gpus_per_server,
    }


def _check_servers(launcher: str) -> None:
    """Refuse rollout servers that nobody would start, or that could not read the adapters."""
    if launcher != "ray":
        raise Refusal(
            "rollout_servers_need_ray",
            _(
                "Rollout servers are started on Ray, and this round trains on %(name)s: set rollout_servers "
                "under compute to 0, or launcher to ray."
            ),
            field="recipe",
            name=launcher,
        )
    if not cluster_place().shares_files:
        raise Refusal(
            "rollout_servers_need_shared_folder",
            _(
                "Rollout servers read adapters from a folder that all nodes share, and RONDO_STORE_URL says "
                "that they share none: set rollout_servers under compute to 0, or share RONDO_CLUSTER_HOME."
            ),
            field="recipe",
        )


def cluster_resources(resources: Mapping[str, Any], *, processes: int) -> Resources:
    """Return what a run asks of a cluster: by default a GPU for each process."""
    gpus = resources.get("gpus")
    return Resources(
        nodes=resources.get("nodes") or 1,
        processes=processes,
        gpus=processes if gpus is None else gpus,
        memory_gb=resources.get("memory_gb"),
        hours=resources.get("hours"),
        queue=resources.get("queue") or "",
        servers=resources.get("servers") or 0,
        gpus_per_server=resources.get("gpus_per_server") or 0,
    )


def cluster(name: str) -> Launcher:
    """Return a launcher by its name; any but `local`."""
    if name == "command":
        return CommandTemplate(
            cluster_place(),
            runs=Path(settings.RONDO_RUNS),
            submit_command=settings.RONDO_COMMAND_SUBMIT,
            poll_command=settings.RONDO_COMMAND_POLL,
            cancel_command=settings.RONDO_COMMAND_CANCEL,
            logs_command=settings.RONDO_COMMAND_LOGS,
        )
    if name == "ray":
        return Ray(
            cluster_place(),
            url=settings.RONDO_RAY_URL,
            token=settings.RONDO_RAY_TOKEN,
            server_command=settings.RONDO_RAY_SERVER_COMMAND,
        )
    raise Refusal(
        "unknown_launcher",
        _("No launcher is called %(name)s: change compute, launcher in the recipe."),
        name=name,
    )


def cluster_place() -> Place:
    """Return where Rondo is on the nodes."""
    return Place(
        python=settings.RONDO_CLUSTER_PYTHON,
        code=settings.RONDO_CLUSTER_CODE,
        home=settings.RONDO_CLUSTER_HOME,
        shares_files=not settings.RONDO_STORE_URL,
    )


def node_environment() -> dict[str, str]:
    """Return the variables of a trainer on a node: those of one here, and the keys of the store."""
    here = trainer_environment(os.environ)
    environment = {name: value for name, value in here.items() if name.startswith(_SAME_THERE)}
    if settings.RONDO_STORE_URL:
        environment["RONDO_STORE_URL"] = settings.RONDO_STORE_URL
        environment |= {name: value for name, value in os.environ.items() if name.startswith(_STORE_PREFIXES)}
    return environment


def resources_said(resources: Resources) -> dict[str, Any]:
    """Return resources as JSON, for the row of a launch."""
    return dataclasses.asdict(resources)
