"""Other programs are told what became of rounds, runs and checkpoints, in the transaction of the deed."""

from django.urls import reverse

from annotation.choices import NotificationKind, WebhookEvent
from annotation.services.inbox.notifications import Event, notify_managers
from annotation.services.webhooks import tell
from training.choices import RoundState
from training.models import Checkpoint, Round, Run


def tell_of_round(round_: Round, state: RoundState) -> None:
    """Tell that a round has come to a state."""
    tell(
        project_id=round_.project_id,
        event=WebhookEvent(f"round.{state.value}"),
        about=f"projects/{round_.project.slug}/rounds/{round_.number}/",
        data={"round": round_.number, "state": state.value},
    )


def tell_managers_of_round(round_: Round, kind: NotificationKind, *, key: str = "", error: str = "") -> None:
    """Put an event of a round into the inboxes of its managers; the same `key` reaches each of them once."""
    project = round_.project
    event = Event(
        kind=kind,
        key=f"round:{round_.pk}:{kind.value}{key}",
        subject=str(round_),
        excerpt=error,
        address=reverse("round", args=[project.slug, round_.number]),
    )
    notify_managers(project_id=project.pk, event=event)


def tell_of_run(run: Run, event: WebhookEvent) -> None:
    """Tell what became of a run."""
    tell(
        project_id=run.snapshot.project_id,
        event=event,
        about=f"runs/{run.pk}/",
        data={"run": run.pk, "name": run.name, "method": run.method},
    )


def tell_of_checkpoint(checkpoint: Checkpoint, event: WebhookEvent) -> None:
    """Tell what became of a checkpoint; one that belongs to no project is nobody's news."""
    if checkpoint.project_id is not None:
        tell(
            project_id=checkpoint.project_id,
            event=event,
            about=f"checkpoints/{checkpoint.name}/",
            data={"checkpoint": checkpoint.name, "kind": checkpoint.kind},
        )
