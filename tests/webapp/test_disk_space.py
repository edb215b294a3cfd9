"""A disk that is nearly full: uploads, sampling and training wait and say so, while people label."""

import sqlite3

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError
from django.test import Client
from pytest_django import Settings

from annotation.errors import Unavailable
from annotation.exchange import uploads
from annotation.models import Judgment, Project, User
from annotation.services.assignments.next import assign_next
from tests import factories
from tests.webapp.test_away import away
from webapp.operations import errors

pytestmark = pytest.mark.django_db

MORE_THAN_ANY_DISK = 1 << 40


@pytest.fixture
def no_room(settings: Settings) -> Settings:
    settings.RONDO_LEAST_FREE_MB = MORE_THAN_ANY_DISK
    return settings


def test_an_upload_is_refused_and_leaves_no_file(project: Project, carol: User, no_room: Settings):
    with pytest.raises(Unavailable, match="disk"):
        uploads.receive_upload(project=project, upload=SimpleUploadedFile("x.jsonl", b"{}\n"), user=carol)
    assert not list(no_room.RONDO_HOME.rglob("*.jsonl"))


def test_people_label_meanwhile(project: Project, alice: User, no_room: Settings):
    factories.make_comparison(project)
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    factories.make_judgment(assignment.comparison, alice)
    assert Judgment.objects.count() == 1


@pytest.mark.parametrize(("code", "is_full"), [(sqlite3.SQLITE_FULL, True), (sqlite3.SQLITE_BUSY, False)])
def test_the_503_says_when_the_disk_is_full(alice: User, code: int, is_full: bool):
    cause = sqlite3.OperationalError("database or disk is full")
    cause.sqlite_errorcode = code
    error = OperationalError(*cause.args)
    error.__cause__ = cause
    assert errors.is_disk_full(error) == is_full
    browser = Client(raise_request_exception=False)
    browser.force_login(alice)
    with away(error):
        page = browser.get("/projects/")
        program = Client(raise_request_exception=False, headers={"Authorization": "Bearer rondo_x"})
        answer = program.get("/v1/models")
    assert (page.status_code, answer.status_code) == (503, 503)
    assert ("The disk of the database is full" in page.content.decode()) == is_full
    assert answer.json()["error"]["code"] == ("disk_full" if is_full else "database_unavailable")
