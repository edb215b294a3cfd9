"""Jobs and leases that nobody watches any more are ended."""

import logging
from datetime import timedelta

from django.conf import settings
from django.db.models import Q
from django.db.models.functions import Now

from annotation.errors import Refusal
from training.choices import LIVE_LAUNCH, LaunchState, RoundState, StepState
from training.launchers import LauncherError
from training.models import Launch
from training.services.runs.launchers import cluster
from training.services.runs.leases import forget_silent

logger = logging.getLogger(__name__)

_GOES_ON = (StepState.WAITING, StepState.RUNNING)


def sweep_launches() -> None:
    """End jobs whose round was cancelled or paused while no worker watched them; they save before they end.

    A launcher that does not answer is asked again with the next sweep.
    """
    forget_silent()
    silent = Q(run__round_step__heartbeat_at__lt=Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS))
    unwatched = Q(run__round_step__worker="") | silent | Q(run__round_step__isnull=True)
    unwanted = ~Q(run__round_step__state__in=_GOES_ON) | Q(run__round_step__round__state=RoundState.PAUSED)
    for launch in Launch.objects.filter(unwatched, unwanted, state__in=LIVE_LAUNCH):
        try:
            launcher = cluster(launch.launcher)
            handle = launch.handle or launcher.find(launch.name)
            if handle:
                launcher.cancel(handle)
        except (LauncherError, Refusal) as error:
            logger.warning("%s: %s", launch, error)
            continue
        ended = Launch.objects.filter(pk=launch.pk, state__in=LIVE_LAUNCH)
        ended.update(state=LaunchState.CANCELLED, reason="Its round was paused or cancelled.", ended_at=Now())
