"""Saved views: who sees and changes them, and queues of members that are made of them."""

import json
import uuid
from collections.abc import Callable

import pytest
from django.test import Client

from annotation.choices import Verdict, WithholdingState
from annotation.errors import NotAllowed
from annotation.models import (
    Assignment,
    AuditEntry,
    Comparison,
    Project,
    SavedView,
    User,
    ViewQueue,
    Withholding,
)
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from annotation.services.saved_views import assign_view, change_view, delete_view, end_queue, save_view
from tests import factories
from tests.records import judgment_record
from tests.refusals import refused

pytestmark = pytest.mark.django_db

ClientOf = Callable[[User], Client]
MEDICAL = "join=and&column=metadata.domain&is=equals&to=medical"


@pytest.fixture
def scene(project: Project, alice: User, bob: User) -> list[Comparison]:
    """Three comparisons on which two annotators disagree, of which two are medical, and an open one."""
    project.overlap = 2
    project.save()
    made = []
    for domain, is_done in (("medical", True), ("medical", True), ("law", True), ("medical", False)):
        comparison = factories.make_comparison(project)
        Comparison.objects.filter(pk=comparison.pk).update(metadata={"domain": domain})
        if is_done:
            factories.make_judgment(comparison, alice, (1, 2))
            factories.make_judgment(comparison, bob, (2, 1))
        made.append(comparison)
    return made


@pytest.fixture
def dora(project: Project) -> User:
    dora = factories.make_user("dora")
    project.memberships.create(user=dora, role="annotator")
    return dora


def saved(project: Project, owner: User, query: str = MEDICAL, name: str = "medical") -> SavedView:
    return save_view(project=project, owner=owner, name=name, table="comparisons", query=query)


def submit(assignment: Assignment) -> None:
    """Submit the first response as the better one."""
    first, *others = assignment.display_order
    record = judgment_record(verdict=Verdict.RANKED, ranks={first: 1, **dict.fromkeys(others, 2)})
    submit_judgment(
        assignment=assignment, annotator=assignment.annotator, answer=record, idempotency_key=uuid.uuid4()
    )


def work_of(project: Project, annotator: User) -> list[int]:
    """Return all comparisons that a person gets, one after the other."""
    got = []
    project.refresh_from_db()
    while (assignment := assign_next(project=project, annotator=annotator)) is not None:
        submit(assignment)
        got.append(assignment.comparison_id)
    return got


def test_a_queue_gives_its_comparisons_first_and_then_the_rest(
    project: Project, carol: User, dora: User, scene: list[Comparison], client_of: ClientOf
):
    unsure = saved(project, carol, f"agreement=50&{MEDICAL}", name="medical of tea-policy")
    queue, effect = assign_view(view=unsure, member=dora, assigned_by=carol)
    assert queue is not None
    assert (effect.changed, dict(effect.skipped)) == (2, {})
    home = client_of(dora).get("/projects/tea/").content.decode()
    assert "2 comparisons are assigned to you" in home
    # The name of a view may name a model.
    assert unsure.name not in home
    # Both had all their annotations: each is opened once more, for her alone.
    first, second, law, still_open = scene
    places = Comparison.objects.filter(pk__in=[first.pk, second.pk])
    assert list(places.values_list("overlap", "open_slots")) == [(3, 1), (3, 1)]
    erin = factories.make_user("erin")
    project.memberships.create(user=erin, role="annotator")
    newest = factories.make_comparison(project)
    assert sorted(work_of(project, erin)) == [still_open.pk, newest.pk]
    assert sorted(work_of(project, dora)[:2]) == [first.pk, second.pk]
    assert law.pk not in work_of(project, dora)


def test_what_somebody_has_had_or_what_is_not_work_is_skipped_and_said(
    project: Project, alice: User, carol: User, scene: list[Comparison]
):
    view = saved(project, carol)
    last = scene[-1]
    Withholding.objects.create(comparison=last, requested_by=carol, state=WithholdingState.PENDING)
    queue, effect = assign_view(view=view, member=alice, assigned_by=carol)
    assert queue is None
    assert sorted(effect.skipped.values()) == [1, 2]
    assert not ViewQueue.objects.exists()


def test_a_preview_changes_nothing_and_the_same_is_not_queued_twice(
    project: Project, carol: User, dora: User, scene: list[Comparison]
):
    view = saved(project, carol)
    before = list(Comparison.objects.values_list("overlap", "open_slots"))
    queue, effect = assign_view(view=view, member=dora, assigned_by=carol, dry_run=True)
    assert (queue, effect.changed) == (None, 3)
    assert list(Comparison.objects.values_list("overlap", "open_slots")) == before
    assign_view(view=view, member=dora, assigned_by=carol)
    queue, effect = assign_view(view=view, member=dora, assigned_by=carol)
    assert (queue, effect.changed, sum(effect.skipped.values())) == (None, 0, 3)


def test_the_end_of_a_queue_takes_back_the_places_that_nobody_took(
    project: Project, carol: User, dora: User, scene: list[Comparison]
):
    queue, _effect = assign_view(view=saved(project, carol), member=dora, assigned_by=carol)
    assert queue is not None
    taken = scene[0]
    factories.make_judgment(taken, dora)
    assert end_queue(queue=queue, ended_by=carol) == 1
    places = dict(Comparison.objects.values_list("pk", "overlap"))
    assert [places[comparison.pk] for comparison in scene] == [3, 2, 2, 2]
    assert not any(comparison.reserved_for.exists() for comparison in scene)
    project.refresh_from_db()
    # Then she gets what everybody gets.
    assert work_of(project, dora) == [scene[-1].pk]
    with refused("queue_ended"):
        end_queue(queue=queue, ended_by=carol)


def test_only_the_owner_changes_a_view_and_others_see_shared_ones(
    project: Project, alice: User, carol: User, client_of: ClientOf, scene: list[Comparison]
):
    cleo = factories.make_user("cleo")
    project.memberships.create(user=cleo, role="manager")
    view = saved(project, carol)
    address = f"/api/v1/projects/tea/views/{view.pk}/"
    assert client_of(cleo).get(address).status_code == 404
    change_view(view=view, changed_by=carol, name="Medical", query=MEDICAL, is_shared=True)
    assert client_of(cleo).get(address).json()["name"] == "Medical"
    with refused("owner_changes_view", NotAllowed):
        change_view(view=view, changed_by=cleo, name="Mine", query=MEDICAL, is_shared=True)
    with refused("owner_changes_view", NotAllowed):
        delete_view(view=view, deleted_by=cleo)
    with refused("manager_saves_views", NotAllowed):
        saved(project, alice)
    saved(project, carol, name="other")
    with refused("view_name_taken") as refusal:
        change_view(view=view, changed_by=carol, name="other", query=MEDICAL, is_shared=True)
    assert refusal.value.field == "name"
    delete_view(view=view, deleted_by=carol)
    actions = AuditEntry.objects.filter(action__startswith="view.").values_list("action", flat=True)
    assert list(actions.order_by("pk")) == ["view.save", "view.change", "view.save", "view.delete"]


def test_a_view_that_cannot_be_met_is_not_saved_and_one_of_prompts_is_not_assigned(
    project: Project, carol: User, dora: User
):
    with refused("condition_needs_number"):
        saved(project, carol, "join=and&column=agreement&is=below&to=half")
    with refused("invalid_view_name"):
        saved(project, carol, name=" ")
    prompts = save_view(project=project, owner=carol, name="p", table="prompts", query="")
    with refused("view_of_no_comparisons"):
        assign_view(view=prompts, member=dora, assigned_by=carol)


def test_the_api_saves_lists_and_assigns_views_and_filters_by_them(
    project: Project, carol: User, dora: User, client_of: ClientOf, scene: list[Comparison]
):
    client, base = client_of(carol), "/api/v1/projects/tea/"
    body = {"name": "medical", "table": "comparisons", "query": MEDICAL}
    made = client.post(f"{base}views/", body, content_type="application/json")
    assert made.status_code == 201, made.content
    pk = made.json()["id"]
    assert client.get(f"{base}views/").json()["results"][0]["query"] == MEDICAL
    found = client.get(f"{base}comparisons/", {"view": pk}).json()["results"]
    medical = [scene[3].pk, scene[1].pk, scene[0].pk]
    assert [row["id"] for row in found] == medical
    conditions = json.dumps(
        [
            [
                {"column": "metadata.domain", "is": "equals", "to": "medical"},
                {"column": "agreement", "is": "below", "to": 0.5},
            ],
            [{"column": "metadata.domain", "is": "equals", "to": "law"}],
        ]
    )
    found = client.get(f"{base}comparisons/", {"conditions": conditions}).json()["results"]
    assert [row["id"] for row in found] == [scene[2].pk, scene[1].pk, scene[0].pk]
    prompts = client.get(f"{base}prompts/", {"conditions": conditions.replace("agreement", "responses")})
    assert [row["id"] for row in prompts.json()["results"]] == [scene[2].prompt_id]
    wrong = client.get(f"{base}comparisons/", {"conditions": "[[]]"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_conditions")
    assigned = client.post(
        f"{base}views/{pk}/assign/", {"member": "dora"}, content_type="application/json"
    ).json()
    assert assigned["changed"] == 3
    (queue,) = client.get(f"{base}queues/").json()["results"]
    assert (queue["id"], queue["total"], queue["done"]) == (assigned["queue"], 3, 0)
    ended = client.post(f"{base}queues/{queue['id']}/end/", {}, content_type="application/json")
    assert ended.json() == {"closed": 2}


def test_the_page_of_views_costs_the_same_queries_for_many_queues(
    project: Project, carol: User, dora: User, client_of: ClientOf, scene, django_assert_max_num_queries
):
    for number in range(4):
        view = saved(project, carol, name=f"view {number}")
        queue, _effect = assign_view(view=view, member=dora, assigned_by=carol)
        assert queue is not None
        end_queue(queue=queue, ended_by=carol)
    browser = client_of(carol)
    browser.get("/projects/tea/views/")
    with django_assert_max_num_queries(12):
        page = browser.get("/projects/tea/views/").content.decode()
    assert page.count("0 / 3") == 4
