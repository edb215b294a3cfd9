"""Accounts of people: names, passwords, switched on and off."""

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from allauth.account.forms import default_token_generator
from allauth.account.utils import user_pk_to_url_str
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState
from annotation.errors import Refusal
from annotation.models import AnnotatorTally, Assignment, AuditEntry, Draft, User
from annotation.selectors.personal_data import pointing_at_people
from annotation.services.assignments.leases import release_assignment
from annotation.services.audit import record
from annotation.services.inbox import absolute, deliver

_WRITTEN_TOGETHER = (
    frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}),
    frozenset({"CJK", "HANGUL"}),
    frozenset({"CJK", "BOPOMOFO"}),
)
"""Scripts that one language mixes."""
_LOOK_LATIN = frozenset(
    # Cyrillic, Greek, Armenian, Cherokee: letters that a Latin letter looks like in most fonts.
    "аеіјорсухѕһԁԛԝӏАВЕЅІЈКМНОРСТУХҮԌοονιρυκαχΑΒΕΖΗΙΚΜΝΟΡΤΥΧϲϳօոսհցզՕՍՏԼᎪᎫᎬᎳᎻᏀᏃᏆᏔᏚᏞᏟᏢᏦᏮᏴ"
)


def require_one_meaning(username: str) -> None:
    """Raise `ValidationError` for a name of several scripts, or one whose letters only look Latin."""
    letters = [char for char in username if unicodedata.category(char).startswith("L")]
    scripts = {_script_of(char) for char in letters}
    if len(scripts) > 1 and not any(scripts <= together for together in _WRITTEN_TOGETHER):
        raise ValidationError(_("Use letters of one script in a user name."), code="several_scripts")
    if letters and scripts != {"LATIN"} and all(char in _LOOK_LATIN for char in letters):
        raise ValidationError(
            _("This user name looks like one in Latin letters. Choose another."), code="looks_latin"
        )


def _script_of(char: str) -> str:
    """Return the first word of the letter's name, which is its script for all but a few old letters."""
    return unicodedata.name(char, "UNKNOWN").partition(" ")[0]


def send_password_reset(user_id: int) -> bool:
    """Send a person the link to a new password; return True where it was sent.

    The link holds for `PASSWORD_RESET_TIMEOUT`, and until the password or the address changes.
    """
    user = User.objects.filter(pk=user_id, is_active=True, is_guest=False, is_machine=False).first()
    if user is None or not user.email or not settings.RONDO_EMAIL:
        return False
    parts = {"uidb36": user_pk_to_url_str(user), "key": default_token_generator.make_token(user)}
    link = absolute(reverse("account_reset_password_from_key", kwargs=parts))
    with translation.override(user.language or settings.LANGUAGE_CODE):
        subject = _("Your password for Rondo")
        return deliver(user.email, subject, "mail/password_reset.txt", {"user": user, "link": link})


_STAYS: tuple[type[models.Model], ...] = (AnnotatorTally, LogEntry)
"""Rows that would go with a person's row, and stay: counts of their judgments, and the admin's history."""


def choose_language(*, user: User, language: str) -> None:
    """Store the language of someone's pages; empty follows their browser. Refuses one that Rondo has not."""
    if language and language not in dict(settings.LANGUAGES):
        raise Refusal(
            "unknown_language",
            _("Rondo does not speak this language. Choose one of the list."),
            field="language",
        )
    user.language = language
    user.save(update_fields=["language"])


def erase_account(*, user: User) -> None:
    """Make a person's row a pseudonym, for good. Refuses the last administrator.

    What hangs on their judgments stays and names nobody: judgments, assignments, reviews, what they made in
    projects, and the audit log. What is about them alone goes: memberships, tokens, second factors, accounts
    of other sites, drafts; work that they hold is given back, and their invitations are revoked. Their names
    in the words of the audit log and of the admin's history are replaced. The text that they wrote into
    judgments stays as written: snapshots are made of it.
    """
    with transaction.atomic():
        others = User.objects.filter(is_superuser=True, is_active=True).exclude(pk=user.pk)
        if user.is_superuser and not others.exists():
            raise Refusal(
                "last_administrator", _("You are the only administrator. Appoint another one first.")
            )
        names = sorted({user.username, user.get_full_name(), user.email} - {""}, key=len, reverse=True)
        for assignment in Assignment.objects.filter(annotator=user, state=AssignmentState.LEASED):
            release_assignment(assignment=assignment, annotator=user)
        Draft.objects.filter(assignment__annotator=user).delete()
        user.invitations.filter(revoked_at__isnull=True).update(revoked_at=timezone.now())
        for model, field in _rows_of_their_own():
            model._base_manager.filter(**{field: user}).delete()
        pseudonym = f"deleted-{user.pseudonym.hex[:16]}"
        _anonymise(user, pseudonym)
        record(action="account.delete", subject=pseudonym, actor=user)
        _redact(names, pseudonym)


def _rows_of_their_own() -> Iterator[tuple[type[models.Model], str]]:
    """Models whose rows go with a person's row by the rule of the database, and the field that says whose."""
    for relation in pointing_at_people():
        model = relation.related_model
        if relation.on_delete is models.CASCADE and not issubclass(model, _STAYS):
            yield model, relation.field.name


def _anonymise(user: User, pseudonym: str) -> None:
    user.groups.clear()
    user.user_permissions.clear()
    user.username = pseudonym
    user.first_name = user.last_name = user.email = user.language = ""
    user.is_active = user.is_staff = user.is_superuser = False
    user.last_login, user.keys = None, {}
    user.erased_at = timezone.now()
    user.set_unusable_password()
    user.save()


def _redact(names: list[str], pseudonym: str) -> None:
    """Replace names, as whole words, in what the audit log and the admin's history say."""
    word = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names))
    now = timezone.now()
    # Not through the manager, which refuses: the triggers of the database let this one change pass.
    entries: models.QuerySet[AuditEntry] = models.QuerySet(AuditEntry)
    for entry in entries.filter(_mention(names, "subject", "details")):
        subject, details = word.sub(pseudonym, entry.subject)[:200], _replaced(entry.details, word, pseudonym)
        if (subject, details) != (entry.subject, entry.details):
            entries.filter(pk=entry.pk).update(subject=subject, details=details, redacted_at=now)
    for line in LogEntry.objects.filter(_mention(names, "object_repr", "change_message")):
        line.object_repr = word.sub(pseudonym, line.object_repr)[:200]
        line.change_message = _replaced_in_message(line.change_message, word, pseudonym)
        line.save(update_fields=["object_repr", "change_message"])


def _replaced_in_message(message: str, word: re.Pattern[str], pseudonym: str) -> str:
    """Replace names in the admin's history of a change: JSON, in which a name may be escaped, or words."""
    try:
        return json.dumps(_replaced(json.loads(message), word, pseudonym))
    except ValueError:
        return word.sub(pseudonym, message)


def _mention(names: list[str], *fields: str) -> Q:
    """Rows in which one of these fields has one of the names somewhere; JSON may write it escaped."""
    condition = Q()
    for name in names:
        escaped = name.encode("ascii", "backslashreplace").decode()
        for field in fields:
            condition |= Q(**{f"{field}__contains" if field != "details" else "details__icontains": name})
            if escaped != name:
                condition |= Q(**{f"{field}__icontains": r"\u"})
    return condition


def _replaced(value: Any, word: re.Pattern[str], pseudonym: str) -> Any:
    """A JSON value with the names in its strings replaced."""
    match value:
        case str():
            return word.sub(pseudonym, value)
        case dict():
            return {
                _replaced(key, word, pseudonym): _replaced(inner, word, pseudonym)
                for key, inner in value.items()
            }
        case list():
            return [_replaced(inner, word, pseudonym) for inner in value]
        case _:
            return value
