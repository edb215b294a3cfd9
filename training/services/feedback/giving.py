"""Feedback as it comes in: found, bounded, redacted, stored once per end user, completion and kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import RatingScale
from annotation.errors import Refusal, Unavailable
from annotation.models import ApiToken
from annotation.services.texts.completions import storable
from training.choices import FeedbackKind
from training.models import ApplicationRequest, Feedback, FeedbackKey, FeedbackSettings
from training.selectors.projects import managed_projects
from training.services.feedback.pseudonyms import address_hash, pseudonym
from training.services.feedback.redaction import Redactor, TooSlowError
from training.services.feedback.settings import settings_of

MOST_CHANGES = 20
"""So often may one end user change one piece of feedback."""
ADDRESS_PER_MINUTE = 30
"""New feedback from one network address, by publishable keys."""
USER_PER_MINUTE = 20

Source = ApiToken | FeedbackKey


class UnknownCompletionError(Exception):
    """No stored completion of this id that the token or key may give feedback on."""


class TooMuchFeedback(Unavailable):
    """A limit is reached; `seconds` until it is worth trying again."""

    def __init__(self, message: str, *, seconds: int) -> None:
        super().__init__("too_much_feedback", message)
        self.seconds = seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class NewFeedback:
    """Feedback as sent. Of value, text and alternative only that of its kind is set."""

    completion: str
    choice: int = 0
    kind: FeedbackKind
    value: int | None = None
    scale: str = ""
    text: str = ""
    alternative: str = ""
    alternative_choice: int = 0
    user: str = ""


def give_feedback(*, source: Source, new: NewFeedback, address: str = "") -> tuple[Feedback, bool]:
    """Store feedback, in one transaction. Return its row, and True where it is the first of its kind.

    The same feedback sent again changes nothing; another value replaces the former. address: the client's,
    where an end user's browser sends it. Raises `UnknownCompletionError`, `TooMuchFeedback`, and `Refusal`
    that names the field.
    """
    request = _request(source, new.completion, new.choice)
    settings = settings_of(request.project)
    author = _author(source, request.project_id, new.user)
    values = _values(source, request, settings, new)
    with transaction.atomic():
        # Of two at once one waits here, and then finds the other's row.
        ApplicationRequest.objects.select_for_update(of=("self",)).get(pk=request.pk)
        held = Feedback.objects.filter(
            request=request, choice=new.choice, kind=new.kind, author=author
        ).first()
        if held is not None:
            return _changed(held, values), False
        place = address_hash(request.project_id, address) if isinstance(source, FeedbackKey) else ""
        _check_limits(source, settings, author, place)
        now = timezone.now()
        return (
            Feedback.objects.create(
                project_id=request.project_id,
                request=request,
                choice=new.choice,
                kind=new.kind,
                author=author,
                address=place,
                updated_at=now,
                source_name=source.name,
                **_sent_by(source),
                **values,
            ),
            True,
        )


def _request(source: Source, key: str, choice: int) -> ApplicationRequest:
    """Return the stored request. Raises `UnknownCompletionError`."""
    rows = ApplicationRequest.objects.filter(key=key).select_related("project")
    if isinstance(source, FeedbackKey):
        rows = rows.filter(project=source.project_id)
    else:
        rows = rows.filter(project__in=managed_projects(source.user))
    request = rows.order_by("-pk").first()
    if request is None or choice >= len(request.choices):
        raise UnknownCompletionError(key)
    return request


def _author(source: Source, project_id: int, user: str) -> str:
    if user:
        return pseudonym(project_id, user)
    if isinstance(source, FeedbackKey):
        raise Refusal(
            "end_user_missing", _("Feedback with a publishable key names its end user."), field="user"
        )
    return pseudonym(project_id, f"token {source.pk}")


def _values(
    source: Source, request: ApplicationRequest, settings: FeedbackSettings, new: NewFeedback
) -> dict[str, object]:
    """Return the columns of this kind. Refuses what does not fit the completion."""
    if new.kind in (FeedbackKind.THUMB, FeedbackKind.RATING):
        scale = RatingScale.THUMBS if new.kind == FeedbackKind.THUMB else RatingScale(new.scale)
        return {"value": new.value, "scale": scale}
    if new.kind == FeedbackKind.REWRITE:
        return {"text": _rewrite(request, settings, new)}
    other = _request(source, new.alternative, new.alternative_choice)
    if (other.pk, new.alternative_choice) == (request.pk, new.choice):
        raise Refusal(
            "alternative_is_completion", _("The alternative is the completion itself."), field="alternative"
        )
    if (other.project_id, other.content_hash) != (request.project_id, request.content_hash):
        raise Refusal(
            "alternative_of_other_prompt", _("The alternative answers another prompt."), field="alternative"
        )
    return {"alternative": other, "alternative_choice": new.alternative_choice}


def _rewrite(request: ApplicationRequest, settings: FeedbackSettings, new: NewFeedback) -> str:
    try:
        text = Redactor(settings.patterns)(storable(new.text))
    except TooSlowError as error:
        raise Refusal(
            "text_check_too_slow",
            _("The text could not be checked in time. Send a shorter one."),
            field="rewrite",
        ) from error
    if not text.strip() or text.strip() == request.choices[new.choice]["text"].strip():
        raise Refusal("rewrite_unchanged", _("The rewrite changes nothing."), field="rewrite")
    return text


def _changed(held: Feedback, values: dict[str, object]) -> Feedback:
    """Return the row with these values; a change is counted."""
    if all(getattr(held, name) == value for name, value in values.items()):
        return held
    if held.changes >= MOST_CHANGES:
        raise Refusal("feedback_changed_too_often", _("This feedback was changed too often."))
    for name, value in values.items():
        setattr(held, name, value)
    held.changes += 1
    held.updated_at = timezone.now()
    held.save(update_fields=[*values, "changes", "updated_at"])
    return held


def _check_limits(source: Source, settings: FeedbackSettings, author: str, place: str) -> None:
    """Raise `TooMuchFeedback` for one piece of feedback more than source, end user or address may give."""
    by_author = Q(author=author)
    limits: Sequence[tuple[Q, int, int, str]] = (
        (by_author, 60, USER_PER_MINUTE, _("This end user gives feedback too fast.")),
        (
            by_author,
            86_400,
            settings.daily_quota_of_user,
            _("This end user has given as much feedback as one may in a day."),
        ),
        (
            Q(**_sent_by(source)),
            86_400,
            settings.daily_quota,
            _("This token or key has given as much feedback as it may in a day."),
        ),
    )
    if place:
        limits = (
            *limits,
            (Q(address=place), 60, ADDRESS_PER_MINUTE, _("Too much feedback comes from this address.")),
        )
    now = timezone.now()
    for whose, seconds, most, message in limits:
        recent = Feedback.objects.filter(
            whose, project=settings.project_id, created_at__gt=now - timedelta(seconds=seconds)
        )
        if recent.count() >= most:
            raise TooMuchFeedback(message, seconds=min(seconds, 3600))


def _sent_by(source: Source) -> dict[str, Source]:
    return {"key" if isinstance(source, FeedbackKey) else "token": source}
