"""Participants of a panel: their annotations, attention checks, and the end of their work. Reads only."""

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from django.db.models import Count
from django.utils import timezone

from annotation.choices import KNOWN_PURPOSES, AssignmentState, ParticipantState
from annotation.models import Assignment, Judgment, Panel, PanelParticipant, Project
from annotation.selectors.known_answers import gold_outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class ParticipantRow:
    """A participant with what they did so far."""

    participant: PanelParticipant
    annotations: int
    right: int
    wrong: int
    """Of the first answers to gold items."""
    code: str
    """Empty before the end."""


def participant_rows(panel: Panel) -> list[ParticipantRow]:
    """Return the participants of a panel, newest first. Four queries."""
    participants = list(panel.participants.select_related("user"))
    people = [participant.user_id for participant in participants]
    annotations = dict(
        Assignment.objects.filter(
            annotator__in=people,
            state=AssignmentState.SUBMITTED,
            comparison__project=panel.project_id,
        )
        .order_by()
        .values_list("annotator")
        .annotate(Count("pk"))
    )
    checks = attention_checks(panel.project, people)
    return [
        ParticipantRow(
            participant=participant,
            annotations=annotations.get(participant.user_id, 0),
            right=checks.get(participant.user_id, (0, 0))[0],
            wrong=checks.get(participant.user_id, (0, 0))[1],
            code=code_of(panel, participant),
        )
        for participant in participants
    ]


def attention_checks(project: Project, people: Collection[int]) -> dict[int, tuple[int, int]]:
    """Return right and wrong first answers to gold and qualification items, by annotator."""
    counts: dict[int, tuple[int, int]] = {}
    answers = Judgment.objects.filter(
        annotator__in=list(people),
        comparison__project=project,
        comparison__purpose__in=KNOWN_PURPOSES,
        comparison__gold_answer__isnull=False,
        assignment__retest_of__isnull=True,
        supersedes__isnull=True,
    )
    for answer in answers.select_related("comparison__gold_answer").prefetch_related("ranks"):
        right, wrong = counts.get(answer.annotator_id, (0, 0))
        is_right = gold_outcome(answer).right
        counts[answer.annotator_id] = (right + is_right, wrong + (not is_right))
    return counts


def code_of(panel: Panel, participant: PanelParticipant) -> str:
    """Return the code that a participant was shown; empty before the end."""
    if participant.state == ParticipantState.WORKING:
        return ""
    return panel.failed_code if participant.state == ParticipantState.FAILED else panel.code


def panel_is_open_for(user: int) -> bool:
    """Return True while the panel of this participant is open. One query."""
    return PanelParticipant.objects.filter(
        user=user, panel__revoked_at__isnull=True, panel__closes_at__gt=timezone.now()
    ).exists()


def return_address_of(panel: Panel, code: str) -> str:
    """Return the address to which a participant goes with the code; empty where its host is not allowed."""
    parts = urlsplit(panel.return_address)
    if parts.scheme != "https" or parts.netloc not in panel.project.panel_hosts:
        return ""
    query = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != "cc"]
    return urlunsplit(parts._replace(query=urlencode([*query, ("cc", code)])))
