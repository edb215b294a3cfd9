"""Leases of GPUs: which run trains on which GPU of which host. Sharing one needs a setting."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.errors import Refusal, Unavailable
from training.models import GpuLease, Run, Worker
from training.services.jobs.gpus import gpus


def visible_gpus() -> list[int]:
    """Return the numbers of this host's GPUs that the worker may use: CUDA_VISIBLE_DEVICES limits them."""
    here = [int(gpu["index"]) for gpu in gpus()]
    limit = os.environ.get("CUDA_VISIBLE_DEVICES")
    if limit is None:
        return here
    allowed = {part.strip() for part in limit.split(",")}
    return [index for index in here if str(index) in allowed]


@contextmanager
def leased_gpus(run: Run, *, processes: int, requested: int | None) -> Iterator[list[int] | None]:
    """Hold GPUs for a run on this host; None where it trains without any.

    requested: GPUs; None takes one for each process where the host has some. Raises `Refusal` where neither
    this host nor another worker's has as many, and `Unavailable` while they are in use.
    """
    here = visible_gpus()
    count = (processes if here else 0) if requested is None else requested
    if not count:
        yield [] if here else None
        return
    if count > len(here):
        raise _too_few(count, len(here))
    indices = _take(run, here, count)
    try:
        yield indices
    finally:
        GpuLease.objects.filter(run=run, worker=run.worker).delete()


def renew(run: Run) -> None:
    """Say that the run's GPUs are still in use; part of its heartbeat."""
    GpuLease.objects.filter(run=run, worker=run.worker).update(heartbeat_at=Now())


def forget_silent() -> None:
    """Delete leases whose worker has been silent for `RONDO_STALE_SECONDS`."""
    GpuLease.objects.filter(heartbeat_at__lt=Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS)).delete()


def _take(run: Run, here: list[int], count: int) -> list[int]:
    """Write a row for each GPU; the constraint decides between two workers that want the same."""
    host = socket.gethostname()
    forget_silent()
    # An earlier worker of this run is dead or has lost its claim.
    GpuLease.objects.filter(run=run).delete()
    indices: list[int] = []
    with transaction.atomic():
        for gpu in here:
            if len(indices) == count:
                break
            if _take_one(run, host, gpu):
                indices.append(gpu)
        if len(indices) < count:
            transaction.set_rollback(True)
    if len(indices) < count:
        raise _all_in_use(host, count, len(indices))
    return indices


def _take_one(run: Run, host: str, gpu: int) -> bool:
    for slot in range(settings.RONDO_JOBS_PER_GPU):
        try:
            with transaction.atomic():
                GpuLease.objects.create(
                    host=host, gpu=gpu, slot=slot, run=run, worker=run.worker, heartbeat_at=Now()
                )
        except IntegrityError:
            continue
        return True
    return False


def _all_in_use(host: str, count: int, free: int) -> Unavailable:
    holders = GpuLease.objects.filter(host=host).values_list("run__name", flat=True)
    return Unavailable(
        "waiting_for_gpus",
        _("waiting for GPUs of %(host)s: %(count)d needed, %(free)d free; the others train %(runs)s"),
        count=count,
        host=host,
        free=free,
        runs=", ".join(sorted(set(holders))) or "–",
    )


def _too_few(count: int, here: int) -> Refusal:
    """Return the refusal, or where another worker has enough the word to wait for it."""
    live = Worker.objects.filter(heartbeat_at__gte=Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS))
    most = max((len(worker.machine.get("gpus") or ()) for worker in live), default=0)
    if most >= count:
        return Unavailable(
            "waiting_for_gpus",
            _("waiting for a worker with %(count)d GPUs: this one has %(here)d"),
            count=count,
            here=here,
        )
    return Refusal(
        "too_few_gpus",
        _(
            "The recipe asks for %(count)d GPUs on one machine, one for each process, and the largest has "
            "%(most)d: lower processes or gpus under compute, or choose a cluster as launcher."
        ),
        count=count,
        most=max(here, most),
    )
