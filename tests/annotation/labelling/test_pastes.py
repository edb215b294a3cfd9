"""Pastes into texts are recorded where the project says so; managers see them, annotators are told."""

import json
import uuid
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import WrittenIn
from annotation.errors import LeaseLost, NotAllowed, Refusal
from annotation.models import Assignment, PasteRecord, Project, User
from annotation.models.pastes import LONGEST_PASTE
from annotation.selectors.pastes import pasted_by_annotator
from annotation.services.assignments.display_order import tokens_of
from annotation.services.assignments.leases import release_assignment
from annotation.services.pastes import MOST_PASTES, record_paste
from tests import factories
from tests.annotation.labelling.work import answer, lease

pytestmark = pytest.mark.django_db

SignIn = Callable[[User], Client]


@pytest.fixture
def recording(project: Project) -> Project:
    project.records_pastes = project.ask_critique = True
    project.save()
    return project


@pytest.fixture
def held(recording: Project, alice: User) -> Assignment:
    factories.make_comparison(recording)
    return lease(recording, alice)


def paste(assignment: Assignment, characters: int = 10, **more: object) -> None:
    values = {
        "annotator": assignment.annotator,
        "key": uuid.uuid4(),
        "field": WrittenIn.CRITIQUE,
        "is_on_screen": False,
        **more,
    }
    record_paste(assignment=assignment, characters=characters, **values)  # type: ignore[arg-type]


def test_sums_tell_what_came_from_the_screen(held: Assignment, alice: User):
    paste(held, 10)
    paste(held, 30, is_on_screen=True, completion_id=held.display_order[0])
    sums = pasted_by_annotator(held.comparison.project)[alice.pk]
    assert (sums.pastes, sums.characters, sums.elsewhere) == (2, 40, 10)


def test_a_paste_that_is_sent_twice_is_one(held: Assignment):
    key = uuid.uuid4()
    paste(held, key=key)
    paste(held, key=key)
    assert PasteRecord.objects.count() == 1


def test_more_than_so_many_pastes_of_an_assignment_are_not_recorded(held: Assignment):
    for _ in range(MOST_PASTES + 3):
        paste(held)
    assert PasteRecord.objects.count() == MOST_PASTES


def test_a_paste_longer_than_the_column_counts_as_its_most(held: Assignment):
    paste(held, 10**12)
    assert PasteRecord.objects.get().characters == LONGEST_PASTE


def test_what_cannot_be_is_refused(held: Assignment, recording: Project, bob: User):
    other = factories.make_comparison(recording)
    for values, error, code in (
        ({"annotator": bob}, NotAllowed, "assigned_to_another"),
        ({"characters": 0}, Refusal, "paste_empty"),
        ({"completion_id": other.candidates.first().completion_id}, Refusal, "unknown_response"),
    ):
        with pytest.raises(error) as refused:
            paste(held, **values)
        assert refused.value.code == code
    recording.records_pastes = False
    recording.save()
    with pytest.raises(Refusal) as off:
        paste(Assignment.objects.get(pk=held.pk))
    assert off.value.code == "pastes_not_recorded"
    assert not PasteRecord.objects.exists()


def test_nothing_is_recorded_for_a_comparison_that_was_given_back(held: Assignment, alice: User):
    release_assignment(assignment=held, annotator=alice)
    with pytest.raises(LeaseLost):
        paste(held)


def test_annotators_are_told_and_only_where_it_is_so(
    held: Assignment, recording: Project, alice: User, client_of: SignIn
):
    page = client_of(alice).get(reverse("label", args=[recording.slug])).content.decode()
    assert "managers see it" in page
    assert f'data-pastes="{reverse("paste", args=[recording.slug, held.pk])}"' in page
    recording.records_pastes = False
    recording.save()
    page = client_of(alice).get(reverse("label", args=[recording.slug])).content.decode()
    assert "managers see it" not in page
    assert "data-pastes" not in page


def test_the_screen_s_report_is_recorded_about_its_response(
    held: Assignment, recording: Project, alice: User, bob: User, client_of: SignIn
):
    token, completion = next(iter(tokens_of(held).items()))
    address = reverse("paste", args=[recording.slug, held.pk])
    sent = {"key": str(uuid.uuid4()), "field": "critique", "response": token, "characters": 7}
    assert client_of(alice).post(address, sent).status_code == 204
    row = PasteRecord.objects.get()
    assert (row.completion_id, row.characters, row.is_on_screen) == (completion, 7, False)
    assert client_of(alice).post(address, {**sent, "field": "nothing"}).status_code == 422
    assert client_of(bob).post(address, sent).status_code == 404


def test_managers_see_it_by_person_and_vote_and_annotators_do_not(
    held: Assignment, recording: Project, alice: User, carol: User, client_of: SignIn
):
    paste(held, 1234)
    answer(held)
    manager = client_of(carol)
    pages = [
        reverse("annotators", args=[recording.slug]),
        reverse("annotator", args=[recording.slug, alice.pk]),
        reverse("statistics-item", args=[recording.slug, held.comparison_id]),
    ]
    assert ["1234" in manager.get(page).content.decode() for page in pages] == [True] * 3
    annotator = client_of(alice)
    assert "1234" not in annotator.get(reverse("my-work", args=[recording.slug])).content.decode()
    assert annotator.get(f"/api/v1/projects/{recording.slug}/pastes/").status_code == 403


def test_the_api_records_and_lists_pastes(
    held: Assignment, recording: Project, alice: User, carol: User, client_of: SignIn
):
    token, completion = next(iter(tokens_of(held).items()))
    sent = {"key": str(uuid.uuid4()), "field": "correction", "completion": token, "characters": 5}
    below = f"/api/v1/projects/{recording.slug}"
    made = client_of(alice).post(
        f"{below}/assignments/{held.pk}/pastes/", json.dumps(sent), content_type="application/json"
    )
    assert made.status_code == 204
    manager = client_of(carol)
    (row,) = manager.get(f"{below}/pastes/", {"annotator": "alice"}).json()["results"]
    assert (row["annotator"], row["completion"], row["characters"]) == ("alice", completion, 5)
    assert row["comparison"] == held.comparison_id
    assert manager.get(f"{below}/pastes/", {"annotator": "bob"}).json()["results"] == []
