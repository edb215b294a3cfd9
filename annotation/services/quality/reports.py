"""Reports of large projects are computed by workers: the web processes stay free to answer."""

from dataclasses import astuple

from annotation.agreement.selection import Selection
from annotation.choices import TaskName
from annotation.services.jobs.messages import send


def request_report(*, project_id: int, selection: Selection) -> bool:
    """Ask a worker to compute a report; return False where no message could be sent."""
    return send(TaskName.COMPUTE_REPORT, project_id, *astuple(selection))
