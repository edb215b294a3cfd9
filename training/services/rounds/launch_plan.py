"""The launcher part of a dry run: where a round's runs would train, and the script to be submitted."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from training.launchers import LauncherError, Resources
from training.models import Round, Worker
from training.recipe.parts import ComputeSettings
from training.services.runs.cluster_runs import job_of
from training.services.runs.launchers import LOCAL, cluster, cluster_resources, launcher_of, resources_of


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """Launcher and resources with which a round's runs would train."""

    launcher: str
    resources: Resources
    script: str = ""
    """Script that would be submitted for the reward model; empty for `local`, which submits nothing."""
    problems: Sequence[str] = ()

    @property
    def is_local(self) -> bool:
        """Return whether the worker's machine trains."""
        return self.launcher == LOCAL


def launch_plan(round_: Round) -> LaunchPlan:
    """Return the plan by the round's recipe. Asks no cluster, and never raises."""
    compute = round_.parsed_recipe.compute
    try:
        requested = resources_of(compute)
    except Refusal as refusal:
        nothing = Resources(nodes=compute.nodes, processes=compute.processes)
        return LaunchPlan(launcher=compute.launcher, resources=nothing, problems=[refusal.message])
    resources = cluster_resources(requested, processes=compute.processes)
    name = launcher_of(compute)
    if name == LOCAL:
        return LaunchPlan(launcher=name, resources=resources, problems=[*_too_few_gpus(compute)])
    run = f"{round_.project.slug}-round-{round_.number}-reward"
    try:
        # A reward model samples nothing.
        alone = dataclasses.replace(resources, servers=0)
        script = cluster(name).script(job_of(run, alone, name="rondo-0-1-000000"))
    except (LauncherError, Refusal) as error:
        return LaunchPlan(launcher=name, resources=resources, problems=[str(error)])
    return LaunchPlan(launcher=name, resources=resources, script=script)


def _too_few_gpus(compute: ComputeSettings) -> Iterator[str]:
    """Yield why no live training worker has the GPUs; nothing where none has reported."""
    silent_since = Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS)
    live = Worker.objects.filter(heartbeat_at__gte=silent_since)
    counts = [
        len(worker.machine.get("gpus") or ())
        for worker in live
        if settings.RONDO_TRAINING_QUEUE in worker.queues
    ]
    if not counts:
        return
    most = max(counts)
    # On a machine without GPUs any number of processes shares the processor, unless GPUs are asked for.
    needed = compute.gpus if compute.gpus is not None else (compute.processes if most else 0)
    if needed > most:
        yield _(
            "The recipe asks for %(count)d GPUs on one machine, one for each process, and the largest has "
            "%(most)d: lower processes or gpus under compute, or choose a cluster as launcher."
        ) % {"count": needed, "most": most}
