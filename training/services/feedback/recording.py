"""Requests and feedback of applications: recorded, redacted, rated, deleted."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from annotation.choices import FinishReason, RatingScale
from annotation.errors import Refusal, Unavailable
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.prompts_jsonl import parse_object
from annotation.models import ApiToken, Assignment, Comparison, Project, Prompt, User
from annotation.selectors import access
from annotation.services import audit
from annotation.services.texts import storable
from annotation.text.identity import content_hash
from training.choices import FeedbackKind
from training.model_server import ServerError, read_events
from training.models import (
    ApplicationRequest,
    Checkpoint,
    Feedback,
    FeedbackComparison,
    FeedbackKey,
    FeedbackSettings,
    RequestOptIn,
)
from training.selectors.projects import managed_projects
from training.services.feedback.settings import Redactor, TooSlowError, settings_of

# ── Pseudonyms of end users ──


def pseudonym(project_id: int, user_id: str) -> str:
    """Return the pseudonym of an end user in a project, 64 hexadecimal digits; each project has another."""
    return _hash(f"rondo.feedback.user.{project_id}", user_id, settings.SECRET_KEY)


def pseudonyms(project_id: int, user_id: str) -> list[str]:
    """Return every pseudonym that an end user may have had: one for each secret key still configured."""
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return [_hash(f"rondo.feedback.user.{project_id}", user_id, key) for key in keys]


def address_hash(project_id: int, address: str) -> str:
    """Return the keyed hash of a network address; empty for an unknown one."""
    return _hash(f"rondo.feedback.address.{project_id}", address, settings.SECRET_KEY) if address else ""


def _hash(salt: str, value: str, key: str | bytes) -> str:
    return salted_hmac(salt, value, secret=key, algorithm="sha256").hexdigest()


# ── Requests ──


logger = logging.getLogger(__name__)

MOST_BYTES = 4 * 1024**2
"""A longer answer is passed on, and not stored."""
LONGEST_KEY = 100
LONGEST_USER = 512

_SAMPLING = (
    *("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed", "n"),
    *("presence_penalty", "frequency_penalty"),
)
"""Numbers alone: a text among them would be stored without redaction."""


class NotStorableError(Exception):
    """A request that is not stored, and why, in a sentence for managers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """Facts known before the answer: where it goes, and who asked."""

    settings_id: int
    project_id: int
    patterns: Sequence[str]
    checkpoint_id: int
    token_id: int
    token_name: str
    body: Mapping[str, Any]


class Recorder:
    """Takes an answer piece by piece, and stores it once all of it was sent."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_whole = False

    def add(self, piece: bytes) -> None:
        """Remember a piece of the answer."""
        self._size += len(piece)
        if self._size <= MOST_BYTES:
            self._pieces.append(piece)

    def end(self) -> None:
        """Note that the answer is whole: only then it is stored."""
        self._is_whole = self._size <= MOST_BYTES

    def store(self) -> ApplicationRequest | None:
        """Store the request with its answer, once. Return its row; None where it is not stored.

        Raises nothing: the answer is with the application already.
        """
        if not self._is_whole:
            return None
        self._is_whole = False
        try:
            return _store(self._plan, b"".join(self._pieces))
        except (NotStorableError, TooSlowError, DatabaseError) as error:
            _note_problem(self._plan, error)
        except Exception:
            logger.exception("A request of token %s was not stored", self._plan.token_name)
        return None


def recorder_for(*, token: ApiToken, checkpoint: Checkpoint, body: Mapping[str, Any]) -> Recorder | None:
    """Return the recorder of a request; None where project or token did not opt in. Raises nothing."""
    try:
        opted = (
            RequestOptIn.objects.filter(token=token, project__feedback_settings__stores_requests=True)
            .select_related("project__feedback_settings")
            .first()
        )
    except DatabaseError:
        logger.exception("No request of token %s is stored", token.name)
        return None
    # Another project's checkpoint answers with that project's data.
    if opted is None or checkpoint.project_id not in (None, opted.project_id):
        return None
    settings: FeedbackSettings = opted.project.feedback_settings
    return Recorder(
        _Plan(
            settings_id=settings.pk,
            project_id=opted.project_id,
            patterns=settings.patterns,
            checkpoint_id=checkpoint.pk,
            token_id=token.pk,
            token_name=token.name,
            body=body,
        )
    )


def _store(plan: _Plan, content: bytes) -> ApplicationRequest:
    redact = Redactor(plan.patterns)
    messages = _messages(plan.body.get("messages"), redact)
    key, choices = _answer(content, is_streamed=bool(plan.body.get("stream")))
    user = plan.body.get("user") or plan.body.get("safety_identifier") or ""
    redacted = [{**choice, "text": redact(choice["text"])} for choice in choices]
    try:
        with transaction.atomic():
            return ApplicationRequest.objects.create(
                project_id=plan.project_id,
                key=key,
                checkpoint_id=plan.checkpoint_id,
                token_id=plan.token_id,
                token_name=plan.token_name,
                pseudonym=pseudonym(plan.project_id, str(user)[:LONGEST_USER]) if user else "",
                messages=messages,
                content_hash=content_hash(messages),
                sampling={
                    name: plan.body[name]
                    for name in _SAMPLING
                    if isinstance(plan.body.get(name), int | float)
                },
                choices=redacted,
                redactions=redact.count,
                is_streamed=bool(plan.body.get("stream")),
            )
    except IntegrityError as error:
        raise NotStorableError("The model server gave two answers the same id.") from error


def _messages(sent: Any, redact: Redactor) -> list[dict[str, str]]:
    """Return the redacted chat. Raises `NotStorableError` for one that is no prompt here."""
    if not isinstance(sent, list):
        raise NotStorableError("Only chats are stored, and this request has no messages.")
    try:
        read = parse_object({"prompt": [_plain(turn) for turn in sent]}).messages
    except FieldError as error:
        raise NotStorableError(f"The chat is no prompt: {error}") from error
    return [{"role": turn["role"], "content": redact(turn["content"])} for turn in read]


def _plain(turn: Any) -> Any:
    """Return a turn with role and text alone; content in parts is joined where all parts are text."""
    if not isinstance(turn, Mapping) or turn.get("tool_calls"):
        raise NotStorableError("Chats with tool calls are not stored.")
    content = turn.get("content")
    if isinstance(content, list):
        if any(not isinstance(part, Mapping) or not isinstance(part.get("text"), str) for part in content):
            raise NotStorableError("Chats with images or sound are not stored.")
        content = "".join(part["text"] for part in content)
    role = "system" if turn.get("role") == "developer" else turn.get("role")
    return {"role": role, "content": storable(content) if isinstance(content, str) else content}


def _answer(content: bytes, *, is_streamed: bool) -> tuple[str, list[dict[str, Any]]]:
    """Return the id of an answer and its completions, in their order."""
    try:
        text = content.decode()
        # Not `splitlines`: a line separator may stand within a text.
        chunks = (
            list(read_events(text.replace("\r\n", "\n").split("\n"))) if is_streamed else [json.loads(text)]
        )
        texts, facts = _joined(chunks)
    except (ValueError, TypeError, AttributeError, ServerError) as error:
        raise NotStorableError(f"The answer cannot be read: {error}.") from error
    key = next((str(chunk["id"]) for chunk in chunks if chunk.get("id")), "")
    if not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
        raise NotStorableError("The model server gave the answer no id.")
    if not texts or any(not text.strip() for text in texts.values()):
        raise NotStorableError("The answer has no text.")
    if sorted(texts) != list(range(len(texts))):
        raise NotStorableError("The completions of the answer are not numbered from 0.")
    return key, [{"text": storable(texts[index]), **facts[index]} for index in sorted(texts)]


def _joined(chunks: Iterable[Mapping[str, Any]]) -> tuple[dict[int, str], dict[int, dict[str, Any]]]:
    """Return text and facts of each completion, from the pieces of a stream or from a whole answer."""
    texts: dict[int, str] = {}
    facts: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        if "error" in chunk:
            raise NotStorableError("The model server failed within the answer.")
        for index, piece, known in _pieces(chunk):
            texts[index] = texts.get(index, "") + piece
            facts.setdefault(index, {"seed": None, "finish_reason": "", "token_count": None}).update(known)
    return texts, facts


def _pieces(chunk: Mapping[str, Any]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    for choice in chunk.get("choices") or ():
        message = choice.get("delta") or choice.get("message") or {}
        if message.get("tool_calls"):
            raise NotStorableError("Answers with tool calls are not stored.")
        known = {name: choice[name] for name in ("seed", "token_count") if isinstance(choice.get(name), int)}
        if choice.get("finish_reason"):
            known["finish_reason"] = str(FinishReason(choice["finish_reason"]))
        yield int(choice.get("index", 0)), str(message.get("content") or ""), known


def _note_problem(plan: _Plan, error: Exception) -> None:
    """Tell managers on the settings page why a request is missing."""
    known = isinstance(error, NotStorableError)
    message = str(error) if known else "The patterns took too long, so nothing of the request was stored."
    if isinstance(error, DatabaseError):
        logger.warning("A request of token %s was not stored: %s", plan.token_name, error)
        return
    try:
        FeedbackSettings.objects.filter(pk=plan.settings_id).update(problem=message[:500])
    except DatabaseError:
        logger.exception("%s", message)


# ── Feedback ──


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


# ── Deletion of requests with their feedback ──


_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Erased:
    """Counts of an erasure."""

    requests: int
    feedback: int
    comparisons: int
    """Not yet annotated ones, which left with their requests."""
    remaining: int
    """Annotated comparisons, which stay: annotations stand on their texts."""


def erase_expired(*, now: datetime | None = None) -> int:
    """Delete the stored requests that are older than their projects' retention. Return how many."""
    moment, number = now or timezone.now(), 0
    for row_settings in FeedbackSettings.objects.select_related("project"):
        before = moment - timedelta(days=row_settings.retention_days)
        rows = ApplicationRequest.objects.filter(project=row_settings.project_id, created_at__lt=before)
        while some := list(rows.order_by("pk").values_list("pk", flat=True)[:_AT_ONCE]):
            with transaction.atomic():
                _erase(ApplicationRequest.objects.filter(pk__in=some))
            number += len(some)
    return number


def erase_user(*, project: Project, user_id: str, erased_by: User) -> Erased:
    """Delete all requests and all feedback of an end user, in one transaction; return what was deleted.

    user_id: as the application sends it in `user`. Frozen snapshots keep what they hold.
    """
    access.refuse_unless_manager(erased_by, project, "manager_erases_requests")
    if not user_id.strip():
        raise Refusal("end_user_missing", _("Enter the id that the application sends."), field="user")
    names = pseudonyms(project.pk, user_id)
    with transaction.atomic():
        requests = ApplicationRequest.objects.filter(project=project, pseudonym__in=names)
        feedback = Feedback.objects.filter(project=project).filter(
            Q(author__in=names) | Q(request__in=requests) | Q(alternative__in=requests)
        )
        feedback_count = feedback.count()
        Feedback.objects.filter(project=project, author__in=names).delete()
        number, comparisons, remaining = _erase(requests)
        erased = Erased(
            requests=number, feedback=feedback_count, comparisons=comparisons, remaining=remaining
        )
        audit.record(
            action="feedback.erase",
            subject=project,
            actor=erased_by,
            project=project,
            # Not whose: that is what goes.
            details={
                "requests": number,
                "feedback": feedback_count,
                "comparisons": comparisons,
                "remaining": remaining,
            },
        )
    return erased


def _erase(requests: "QuerySet[ApplicationRequest]") -> tuple[int, int, int]:
    """Delete requests; return how many, and how many comparisons left with them and remain."""
    origins = FeedbackComparison.objects.filter(request__in=requests).select_related("comparison")
    left = remaining = 0
    for origin in origins:
        if Assignment.objects.filter(comparison=origin.comparison_id).exists():
            remaining += 1
            continue
        left += 1
        _remove(origin)
    number = requests.count()
    requests.delete()
    return number, left, remaining


def _remove(origin: FeedbackComparison) -> None:
    """Delete a comparison that nobody has seen, and the prompt that it added where nothing else asks it."""
    others = origin.comparison.feedback_origins.exclude(pk=origin.pk).exclude(request=None)
    if others.exists():
        return
    prompt_id = origin.comparison.prompt_id
    origin.comparison.delete()
    if not origin.added_prompt or Comparison.objects.filter(prompt=prompt_id).exists():
        return
    Prompt.objects.get(pk=prompt_id).delete()
