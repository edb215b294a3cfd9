"""Panels: links for participants of a recruiting service, and their states."""

from typing import Any

from django.urls import reverse
from django.utils import timezone
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import ParticipantState
from annotation.models import Panel
from annotation.selectors.panels import ParticipantRow, participant_rows
from annotation.services.panels import MOST_DAYS, MOST_ITEMS, MOST_PARTICIPANTS, create_panel, revoke_panel


@fields.of(
    Panel,
    "id name items most_wrong code failed_code return_address most_participants is_open closes_at revoked_at "
    "created_by created_at",
)
class PanelSerializer(serializers.ModelSerializer[Panel]):
    """A panel, without its link."""

    created_by = fields.text(source="created_by.username")
    is_open = fields.computed("Whether participants may begin and go on.")

    def get_is_open(self, panel: Panel) -> bool:
        return panel.is_open(timezone.now())


@fields.more("link")
class MadePanelSerializer(PanelSerializer):
    """A panel with its link, which is shown only once."""

    link = fields.text("The service adds participant, study and session as parameters.")


class NewPanelSerializer(serializers.Serializer[Any]):
    """A panel to create."""

    name = fields.text(most=100)
    consent = fields.text("Markdown: instructions, and what a participant agrees to.", most=20_000)
    items = fields.integer("Annotations of one participant.", least=1, most=MOST_ITEMS)
    most_participants = fields.integer(least=1, most=MOST_PARTICIPANTS)
    days = fields.integer("Closes after so many days.", least=1, most=MOST_DAYS, default=14)
    code = fields.text("Shown at the end.", most=60)
    most_wrong = fields.integer(
        "Wrong gold answers up to which attention is passed; null for no check.",
        required=False,
        allow_null=True,
        default=None,
        least=0,
        most=MOST_ITEMS,
    )
    failed_code = fields.text("Shown where attention was not passed.", most=60, default="")
    return_address = serializers.URLField(
        max_length=500,
        required=False,
        default="",
        allow_blank=True,
        help_text="Gets the code as `cc`; its host is one that the project allows.",
    )


class ParticipantSerializer(serializers.Serializer[Any]):
    """A participant with what they did so far."""

    participant = fields.text(source="participant.participant")
    study = fields.text(source="participant.study")
    session = fields.text(source="participant.session")
    annotator = fields.text(source="participant.user.username")
    state = fields.choice(ParticipantState.choices, source="participant.state")
    annotations = fields.integer()
    gold_right = fields.integer(source="right")
    gold_wrong = fields.integer(source="wrong")
    code = fields.text("Empty before the end.")
    began_at = fields.time(source="participant.began_at")
    finished_at = fields.time(source="participant.finished_at", allow_null=True)


class ParticipantsSerializer(serializers.Serializer[Any]):
    """The participants of a panel."""

    participants = ParticipantSerializer(many=True)


panels = Resource(
    ProjectView,
    f"{PROJECT}panels/",
    tag="projects",
    rows=lambda view: Panel.objects.filter(project=view.project).select_related("created_by", "project"),
)
panel = panels.item("<int:pk>/")
panels.add_list("panels_list", PanelSerializer, "List panels, closed ones too, newest first.")


# A response with a secret is not stored.
@panels.post(takes=NewPanelSerializer, returns=MadePanelSerializer, status=201, keeps_answers=False)
def panels_create(view: ProjectView, values: Values) -> Panel:
    """Create a link for participants. Only this response holds it."""
    made, secret = create_panel(project=view.project, created_by=view.user, **values)
    row: Any = made
    row.link = view.request.build_absolute_uri(reverse("panel", kwargs={"secret": secret}))
    return made


@panel.get("participants/", returns=ParticipantsSerializer)
def panels_participants(view: ProjectView, panel: Panel) -> dict[str, list[ParticipantRow]]:
    """List the participants of a panel with their state and code, newest first."""
    return {"participants": participant_rows(panel)}


@panel.delete()
def panels_revoke(view: ProjectView, panel: Panel) -> None:
    """Close a panel for good. Its annotations stay."""
    revoke_panel(panel=panel, revoked_by=view.user)
