"""The audit log: neither changed nor deleted by anything that has the database, and searched on a page."""

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection, transaction
from django.urls import reverse
from django.utils import timezone

from annotation.models import AuditEntry, Project, User
from annotation.services.audit import record
from tests import factories


@pytest.fixture
def entry(project: Project, carol: User) -> AuditEntry:
    return record(action="round.start", subject=project, actor=carol, project=project, details={"round": 1})


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM annotation_auditentry",
        "UPDATE annotation_auditentry SET action = 'nothing'",
        "UPDATE annotation_auditentry SET actor_id = NULL",
        "UPDATE annotation_auditentry SET subject = 'another'",
        "UPDATE annotation_auditentry SET details = '{}'",
        "UPDATE annotation_auditentry SET created_at = '2020-01-01 00:00:00+00:00'",
        "UPDATE annotation_auditentry SET subject_id = 99",
        # Words change only where that is said, and nothing else under that cover.
        "UPDATE annotation_auditentry SET redacted_at = '2026-01-01 00:00:00+00:00', action = 'nothing'",
        "UPDATE annotation_auditentry SET redacted_at = '2026-01-01 00:00:00+00:00', project_id = NULL",
    ],
)
def test_no_statement_changes_or_deletes_an_entry(entry: AuditEntry, change: str):
    before = AuditEntry.objects.values().get()
    refused = pytest.raises(DatabaseError, match="never changed or deleted")
    with refused, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(change)
    assert AuditEntry.objects.values().get() == before


def test_that_words_were_replaced_is_said_and_not_taken_back(entry: AuditEntry):
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE annotation_auditentry SET subject = 'deleted-1', redacted_at = %s", [timezone.now()]
        )
    for back in ("redacted_at = NULL", "redacted_at = '2020-01-01 00:00:00+00:00'"):
        with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"UPDATE annotation_auditentry SET {back}, subject = 'Tea'")
    assert AuditEntry.objects.get().subject == "deleted-1"


def test_an_entry_outlives_its_project(entry: AuditEntry, project: Project):
    project.delete()
    stored_entry = AuditEntry.objects.get()
    assert (stored_entry.project, stored_entry.subject) == (None, "Tea")


@pytest.mark.django_db(transaction=True)
def test_flush_empties_the_log_and_leaves_its_guard(admin: User):
    record(action="note", subject="x", actor=admin)
    call_command("flush", interactive=False, verbosity=0)
    assert not AuditEntry.objects.exists()
    record(action="note", subject="x")
    with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM annotation_auditentry")


# ── The page ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def log(entry: AuditEntry, project: Project, carol: User, admin: User) -> None:
    record(action="checkpoint.delete", subject="reward-7", actor=admin, project=project)
    record(action="checkpoint.verify", subject="reward-8", project=project)
    record(action="round.start", subject="Coffee", actor=admin, project=factories.make_project(slug="coffee"))


def rows(client, address: str, **filters: str) -> list[str]:
    answer = client.get(address, filters)
    assert answer.status_code == 200
    return [entry.subject for entry in answer.context["page"]]


def test_a_manager_sees_their_project_alone(log, carol: User, client_of):
    address = reverse("project-audit", kwargs={"slug": "tea"})
    assert rows(client_of(carol), address) == ["reward-8", "reward-7", "Tea"]
    assert client_of(carol).get(reverse("audit")).status_code == 403


def test_an_administrator_sees_everything(log, admin: User, client_of):
    assert rows(client_of(admin), reverse("audit")) == ["Coffee", "reward-8", "reward-7", "Tea"]


@pytest.mark.parametrize(
    ("filters", "subjects"),
    [
        ({"person": "CAR"}, ["Tea"]),
        ({"action": "checkpoint."}, ["reward-8", "reward-7"]),
        ({"words": "ward-7"}, ["reward-7"]),
        ({"person": "admin", "action": "round"}, ["Coffee"]),
        ({"since": "2100-01-01"}, []),
        ({"until": "2020-01-01"}, []),
        ({"since": "2020-01-01", "until": "2100-01-01"}, ["Coffee", "reward-8", "reward-7", "Tea"]),
        # What is no day finds nothing, rather than everything.
        ({"since": "yesterday"}, []),
    ],
)
def test_the_log_is_searched_by_person_action_words_and_time(log, admin: User, client_of, filters, subjects):
    assert rows(client_of(admin), reverse("audit"), **filters) == subjects


def test_a_search_of_the_log_for_nul_is_refused(log, admin: User, client_of):
    assert client_of(admin).get(reverse("audit"), {"words": "\x00"}).status_code == 400


def test_a_page_of_the_log_costs_the_same_however_long_it_is(
    log, admin: User, client_of, project: Project, django_assert_max_num_queries
):
    for number in range(120):
        record(action="note", subject=str(number), actor=admin, project=project)
    client = client_of(admin)
    with django_assert_max_num_queries(5):
        subjects = rows(client, reverse("audit"), page="2")
    assert (len(subjects), subjects[0]) == (50, "69")
