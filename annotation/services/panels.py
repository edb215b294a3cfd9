"""Panels: make and revoke their links, let participants begin, and give them their code at the end."""

import hashlib
import secrets
import uuid
from datetime import timedelta
from urllib.parse import urlsplit

from django.db import transaction
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, ParticipantState, QualificationState, Role
from annotation.errors import Refusal
from annotation.models import Assignment, Membership, Panel, PanelParticipant, Project, User
from annotation.selectors.eligibility import left_to_submit, qualification_of
from annotation.selectors.panels import attention_checks
from annotation.services.assignments.next import assign_next
from annotation.services.audit import record
from annotation.services.projects.invitations import digest_of

MOST_ITEMS = 500
MOST_PARTICIPANTS = 5000
MOST_DAYS = 90
LONGEST_ID = 100
BEGUN_A_MINUTE = 60
"""Participants who may begin by one link in a minute."""
BEGUN_OF_ADDRESS = {1: 10, 60: 60}
"""Minutes → participants from one address: a university has one for many people."""


class PanelTooFast(Refusal):
    """Too many participants begin at once."""


def create_panel(
    *,
    project: Project,
    created_by: User,
    name: str,
    consent: str,
    items: int,
    code: str,
    days: int,
    most_participants: int,
    most_wrong: int | None = None,
    failed_code: str = "",
    return_address: str = "",
) -> tuple[Panel, str]:
    """Make a link for participants; return the panel and the secret of its link, which nothing tells again.

    Refuses numbers out of bounds, an empty text or code, an attention check without another code, and a
    return address whose host is not among the project's.
    """
    for field, number, most in (
        ("items", items, MOST_ITEMS),
        ("most_participants", most_participants, MOST_PARTICIPANTS),
        ("days", days, MOST_DAYS),
    ):
        if not 1 <= number <= most:
            raise Refusal("invalid_panel_number", _("Choose 1 to %(most)d here."), field=field, most=most)
    for field, text in (("name", name), ("consent", consent), ("code", code)):
        if not text.strip():
            raise Refusal("panel_field_empty", _("Fill this in: participants need it."), field=field)
    if most_wrong is not None and (not failed_code.strip() or failed_code.strip() == code.strip()):
        raise Refusal(
            "panel_failed_code_missing",
            _("Attention checks need a second code, other than the first."),
            field="failed_code",
        )
    if return_address:
        parts = urlsplit(return_address)
        if parts.scheme != "https" or parts.netloc not in project.panel_hosts:
            raise Refusal(
                "return_host_not_allowed",
                _("Return addresses begin with https:// and one of the allowed hosts. Allow the host first."),
                field="return_address",
            )
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        panel = Panel.objects.create(
            project=project,
            name=name.strip(),
            digest=digest_of(secret),
            consent=consent,
            items=items,
            most_wrong=most_wrong,
            code=code.strip(),
            failed_code=failed_code.strip(),
            return_address=return_address,
            most_participants=most_participants,
            closes_at=timezone.now() + timedelta(days=days),
            created_by=created_by,
        )
        record(
            action="panel.create",
            subject=panel,
            actor=created_by,
            project=project,
            details={"items": items, "most_participants": most_participants, "days": days},
        )
    return panel, secret


def find_panel(*, secret: str) -> Panel | None:
    """Return the panel of this link; None where it opens nothing (any more)."""
    panel = Panel.objects.select_related("project").filter(digest=digest_of(secret)).first()
    if panel is None or not panel.is_open(timezone.now()) or panel.project.is_incomplete:
        return None
    return panel


@transaction.atomic
def revoke_panel(*, panel: Panel, revoked_by: User) -> None:
    """End a panel for good: nobody begins or goes on. Their annotations stay. Twice is once."""
    revoked = Panel.objects.filter(pk=panel.pk, revoked_at__isnull=True).update(revoked_at=timezone.now())
    if revoked:
        record(action="panel.revoke", subject=panel, actor=revoked_by, project=panel.project)
    panel.refresh_from_db()


def begin(
    *, panel: Panel, participant: str, study: str = "", session: str = "", address: str = ""
) -> PanelParticipant:
    """Return the participant with this id: a new one with an account of their own, or who has begun before.

    Refuses an id that is none, a link that is over or full, and too many in a minute or from one address.
    """
    if not participant or any(len(text) > LONGEST_ID for text in (participant, study, session)):
        raise Refusal(
            "participant_id_invalid",
            _("The link lacks a participant id. Open it from the service that invited you."),
            field="participant",
        )
    with transaction.atomic():
        # All who begin by one link wait here for each other, so none is one too many.
        locked = Panel.objects.select_for_update(no_key=True).select_related(None).get(pk=panel.pk)
        now = timezone.now()
        if not locked.is_open(now):
            raise Refusal("panel_closed", _("This study is over."))
        known = locked.participants.select_related("user").filter(participant=participant).first()
        if known is not None:
            return known
        if locked.participants.count() >= locked.most_participants:
            raise Refusal("panel_full", _("This study has all of its participants."))
        prefix = f"panel-{panel.pk}-"
        place = salted_hmac("annotation.panel-address", address, algorithm="sha256").hexdigest()[:16]
        limits = [(prefix, 1, BEGUN_A_MINUTE)]
        limits += [(f"{prefix}{place}-", minutes, most) for minutes, most in BEGUN_OF_ADDRESS.items()]
        for beginning, minutes, most in limits:
            begun = User.objects.filter(
                is_participant=True,
                username__startswith=beginning,
                date_joined__gt=now - timedelta(minutes=minutes),
            )
            if begun.count() >= most:
                raise PanelTooFast(
                    "too_many_participants", _("Many participants begin right now. Try again later.")
                )
        user = User(
            username=f"{prefix}{place}-{uuid.uuid4().hex}",
            first_name=_("Participant"),
            last_name=hashlib.sha256(f"{panel.pk}/{participant}".encode()).hexdigest()[:8],
            is_participant=True,
        )
        user.set_unusable_password()
        user.save()
        Membership.objects.create(
            project=panel.project, user=user, role=Role.ANNOTATOR, total_limit=locked.items
        )
        made = PanelParticipant.objects.create(
            panel=locked, user=user, participant=participant, study=study, session=session
        )
        record(action="panel.join", subject=locked, actor=user, project=panel.project)
    return made


def finish(*, participant: PanelParticipant) -> PanelParticipant:
    """End a participant's work, once; from then on their code is fixed.

    Refuses who still has work, and who finds nothing left but skipped some or did none. Attention is not
    passed by who gave more wrong gold answers than the panel allows, or failed the project's qualification.
    """
    panel, user = participant.panel, participant.user
    project = panel.project
    if participant.state != ParticipantState.WORKING:
        return participant
    membership = Membership.objects.filter(project=project, user=user).first()
    mine = Assignment.objects.filter(annotator=user, comparison__project=project)
    done = mine.filter(state=AssignmentState.SUBMITTED).count()
    if membership is None or left_to_submit(project, user, membership) != 0:
        is_open = membership is not None and panel.is_open(timezone.now())
        if not is_open or assign_next(project=project, annotator=user) is not None:
            raise Refusal("panel_work_left", _("Some annotations are left. Finish them first."))
        # Otherwise who skips everything would be paid for nothing.
        if not done or mine.filter(state=AssignmentState.SKIPPED).exists():
            raise Refusal(
                "panel_too_few",
                _("Nothing is left, and too few annotations are done. Ask whoever gave you the link."),
            )
    _right, wrong = attention_checks(project, [user.pk]).get(user.pk, (0, 0))
    failed = panel.most_wrong is not None and wrong > panel.most_wrong
    if membership is not None:
        failed = failed or qualification_of(project, user).state == QualificationState.FAILED
    state = ParticipantState.FAILED if failed and panel.failed_code else ParticipantState.COMPLETED
    with transaction.atomic():
        ended = PanelParticipant.objects.filter(pk=participant.pk, state=ParticipantState.WORKING).update(
            state=state, finished_at=timezone.now()
        )
        if ended:
            # Nothing more is handed out; what they have judged can still be changed, but no code with it.
            Membership.objects.filter(project=project, user=user).update(total_limit=max(done, 1))
            record(
                action="panel.finish", subject=panel, actor=user, project=project, details={"state": state}
            )
    participant.refresh_from_db()
    return participant
