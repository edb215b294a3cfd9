"""Free space where Rondo keeps its files. Below the setting, what writes much waits; labelling goes on."""

import shutil

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.errors import Unavailable


class DiskFull(Unavailable):
    """Too little of the disk is free for what would write much."""


def free_bytes() -> int | None:
    """Return the free bytes below RONDO_HOME; None if unknown."""
    try:
        return shutil.disk_usage(settings.RONDO_HOME).free
    except OSError:
        return None


def is_low() -> bool:
    """Return whether less is free than `RONDO_LEAST_FREE_MB` says."""
    free = free_bytes()
    return free is not None and free < settings.RONDO_LEAST_FREE_MB << 20


def sentence() -> str:
    """Return what waits for room, and how much there is."""
    return _(
        "The disk is nearly full: %(free)s MB are free, and uploads, sampling and training need "
        "%(least)s MB. They wait until there is room; labelling goes on."
    ) % {"free": (free_bytes() or 0) >> 20, "least": settings.RONDO_LEAST_FREE_MB}


def refuse_without_room() -> None:
    """Raise `DiskFull` where the disk is nearly full."""
    if is_low():
        raise DiskFull("disk_full", sentence())
