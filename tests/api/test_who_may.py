"""Every operation of the API as everybody, in one's own project and in another's.

The table is the policy. An operation that is not in it fails, and so does a line without an operation.
"""

import re
from collections.abc import Iterator

import pytest
from django.db import transaction
from django.test import Client

from annotation.models import Project, User
from tests import factories
from tests.api.scene import Asker, Scene, make_reviewer
from training.services.runs.runs import create_run
from webapp.api.urls import document, urlpatterns

ROLES = ("nobody", "oscar", "frank", "alice", "rita", "carol", "admin")
"""Without a token; an outsider; who manages another project; who labels, and whose assignment and token it
is; who reviews; who manages; the superuser."""

EVERYONE = (401, 200, 200, 200, 200, 200, 200)
MEMBERS = (401, 404, 404, 200, 200, 200, 200)
REVIEWERS = (401, 404, 404, 403, 200, 200, 200)
MANAGERS = (401, 404, 404, 403, 403, 200, 200)
PARTICIPANTS = (401, 404, 404, 200, 404, 200, 200)
ALICE_ALONE = (401, 404, 404, 200, 404, 404, 404)
ALL_MANAGERS = (401, 404, 200, 403, 403, 200, 200)
"""Of a starter model, which belongs to no project."""

SUPERUSER_ALONE = (401, 403, 403, 403, 403, 403, 200)
"""Operations that name no project: nobody else may; that such a thing exists is no secret."""


def says(status: int, expected: tuple[int, ...]) -> tuple[int, ...]:
    """The same people are let in, and get another status."""
    return tuple(status if code == 200 else code for code in expected)


# Requests that change something are sent with an empty object: who is let in is told what is missing (422).
TABLE: dict[str, tuple[int, ...]] = {
    "me_read": EVERYONE,
    "me_change": says(200, EVERYONE),
    "me_keys_read": EVERYONE,
    "me_keys_set": EVERYONE,
    "me_mail_read": EVERYONE,
    "me_mail_set": says(422, EVERYONE),
    "inbox_list": EVERYONE,
    "inbox_read": EVERYONE,
    "status_read": SUPERUSER_ALONE,
    "audit_list_all": SUPERUSER_ALONE,
    "checkpoints_serve": says(422, SUPERUSER_ALONE),
    # Nobody here gave their password: it is asked for first (tests/api/test_people.py).
    "me_data": says(403, EVERYONE),
    "me_delete": says(403, EVERYONE),
    "tokens_list": EVERYONE,
    # A token makes no token, and revokes none but itself.
    "tokens_create": says(403, EVERYONE),
    "tokens_revoke": (401, 404, 404, 403, 404, 404, 404),
    "projects_list": EVERYONE,
    "projects_create": (401, 403, 403, 403, 403, 403, 422),
    "projects_read": MEMBERS,
    "projects_settings_read": MANAGERS,
    "projects_settings_change": MANAGERS,
    "projects_archive": says(422, MANAGERS),
    "categories_state": says(422, MANAGERS),
    "projects_file_read": MANAGERS,
    "projects_file_apply": says(422, MANAGERS),
    "projects_file_compare": says(422, MANAGERS),
    "projects_delete": says(204, MANAGERS),
    "bin_list": EVERYONE,
    "bin_restore": (401, 404, 404, 404, 404, 200, 200),
    "members_list": MANAGERS,
    "members_set": says(422, MANAGERS),
    "members_remove": says(204, MANAGERS),
    "guidelines_list": MEMBERS,
    "guidelines_publish": says(422, MANAGERS),
    "guidelines_acknowledge": says(422, MEMBERS),
    "audit_list": MANAGERS,
    "prompts_list": MANAGERS,
    "prompts_add": says(422, MANAGERS),
    "prompts_read": MANAGERS,
    "completions_list": MANAGERS,
    "comparisons_list": MANAGERS,
    "comparisons_read": MANAGERS,
    "comparisons_judgments": MANAGERS,
    "comparisons_act": says(422, MANAGERS),
    "comparisons_answer": says(422, MANAGERS),
    "prompts_act": says(422, MANAGERS),
    "completions_act": says(422, MANAGERS),
    "judgments_list": MANAGERS,
    "assignments_list": MEMBERS,
    "assignments_next": MEMBERS,
    "assignments_read": ALICE_ALONE,
    "assignments_judge": says(422, ALICE_ALONE),
    "assignments_draft": says(422, ALICE_ALONE),
    "assignments_skip": says(422, ALICE_ALONE),
    "assignments_flag": says(422, ALICE_ALONE),
    # The scene's project records nothing.
    "assignments_paste": says(422, ALICE_ALONE),
    "pastes_list": MANAGERS,
    "assignments_object": says(422, ALICE_ALONE),
    "assignments_returns": ALICE_ALONE,
    "assignments_continuation": ALICE_ALONE,
    "assignments_continue": says(422, ALICE_ALONE),
    "assignments_suggestions": ALICE_ALONE,
    "assignments_finish": says(422, ALICE_ALONE),
    "assignments_comments": ALICE_ALONE,
    "assignments_ask": says(422, ALICE_ALONE),
    "comments_list": REVIEWERS,
    "comments_reply": says(422, REVIEWERS),
    "comments_resolve": says(422, REVIEWERS),
    "comments_edit": says(422, ALICE_ALONE),
    "assignments_renew": says(204, ALICE_ALONE),
    "assignments_release": says(204, ALICE_ALONE),
    "reviews_list": REVIEWERS,
    "reviews_read": REVIEWERS,
    "reviews_decide": says(422, REVIEWERS),
    "reviews_return": says(422, REVIEWERS),
    # It is not decided: there is nothing to undo.
    "reviews_undo": says(422, REVIEWERS),
    "statistics_read": MANAGERS,
    "team_read": MANAGERS,
    "pay_read": says(422, MANAGERS),
    "statistics_items": MANAGERS,
    "withheld_list": MANAGERS,
    "withheld_decide": says(422, MANAGERS),
    "gold_list": MANAGERS,
    "gold_make": says(422, MANAGERS),
    "gold_import": says(415, MANAGERS),
    "gold_edit": says(422, MANAGERS),
    "gold_retire": MANAGERS,
    "categories_order": says(422, MANAGERS),
    "categories_set": says(422, MANAGERS),
    # Alice has marked nothing with it.
    "categories_delete": says(204, MANAGERS),
    "criteria_order": says(422, MANAGERS),
    "criteria_set": says(422, MANAGERS),
    "criteria_delete": says(204, MANAGERS),
    "questions_order": says(422, MANAGERS),
    "questions_set": says(422, MANAGERS),
    "questions_state": MANAGERS,
    "questions_delete": says(204, MANAGERS),
    "panels_list": MANAGERS,
    "panels_create": says(422, MANAGERS),
    "panels_participants": MANAGERS,
    "panels_revoke": says(204, MANAGERS),
    "calibrations_list": MEMBERS,
    # Alice takes part, Rita does not.
    "calibrations_read": PARTICIPANTS,
    "calibrations_results": PARTICIPANTS,
    "calibrations_votes": PARTICIPANTS,
    "calibrations_talk": PARTICIPANTS,
    "calibrations_say": says(422, PARTICIPANTS),
    "calibrations_create": says(422, MANAGERS),
    # It is revealed already.
    "calibrations_reveal": says(422, MANAGERS),
    "calibrations_close": MANAGERS,
    "calibrations_retest": says(201, MANAGERS),
    "calibrations_delete": says(204, MANAGERS),
    "invitations_list": MANAGERS,
    "invitations_create": says(422, MANAGERS),
    "invitations_revoke": says(204, MANAGERS),
    "invitations_accept": says(422, EVERYONE),
    "sessions_list": EVERYONE,
    "sessions_end_others": says(204, EVERYONE),
    # It is Alice's.
    "sessions_end": says(204, ALICE_ALONE),
    "formats_list": EVERYONE,
    "imports_list": MANAGERS,
    # A form with a file is wanted, and JSON is none.
    "imports_upload": says(415, MANAGERS),
    "imports_read": MANAGERS,
    "imports_preview": MANAGERS,
    "imports_correct": MANAGERS,
    "imports_start": says(202, MANAGERS),
    "imports_discard": says(204, MANAGERS),
    # Nothing of it is in yet.
    "imports_undo": says(422, MANAGERS),
    "exports_download": MANAGERS,
    "exports_manifest": MANAGERS,
    "exports_dropped": MANAGERS,
    "views_list": MANAGERS,
    "views_read": MANAGERS,
    "views_save": says(422, MANAGERS),
    "views_change": MANAGERS,
    "views_delete": says(204, MANAGERS),
    "views_assign": says(422, MANAGERS),
    "queues_list": MANAGERS,
    "queues_end": MANAGERS,
    "changes_list": MANAGERS,
    "changes_undo": MANAGERS,
    "webhooks_list": MANAGERS,
    "webhooks_create": says(422, MANAGERS),
    "webhooks_read": MANAGERS,
    "webhooks_change": MANAGERS,
    "webhooks_delete": says(204, MANAGERS),
    "webhooks_rotate": says(201, MANAGERS),
    "webhooks_test": says(202, MANAGERS),
    "deliveries_list": MANAGERS,
    "deliveries_read": MANAGERS,
    # It is on its way already.
    "deliveries_resend": says(422, MANAGERS),
    "rounds_list": MANAGERS,
    "rounds_draft": says(201, MANAGERS),
    "rounds_read": MANAGERS,
    # A round that is being labelled has nothing to promote.
    "rounds_act": says(422, MANAGERS),
    "recipes_read": MANAGERS,
    "recipes_change": says(422, MANAGERS),
    "rounds_dry_run": MANAGERS,
    "runs_list": MANAGERS,
    "runs_read": MANAGERS,
    "runs_describe": MANAGERS,
    "runs_metrics": MANAGERS,
    "runs_log": MANAGERS,
    "runs_archive": MANAGERS,
    "runs_events": MANAGERS,
    # It has not begun, so there are none.
    "runs_samples": says(404, MANAGERS),
    "snapshots_list": MANAGERS,
    "snapshots_judgments": MANAGERS,
    "base_models_list": ALL_MANAGERS,
    "base_models_add": says(422, SUPERUSER_ALONE),
    "base_models_read": ALL_MANAGERS,
    # The scene's rounds need it.
    "base_models_remove": (401, 404, 403, 403, 403, 403, 422),
    "base_models_inspect": (401, 404, 403, 403, 403, 403, 202),
    "base_model_additions_list": SUPERUSER_ALONE,
    "base_model_additions_read": SUPERUSER_ALONE,
    "base_model_additions_cancel": says(204, SUPERUSER_ALONE),
    "hub_models_read": says(422, SUPERUSER_ALONE),
    "providers_list": SUPERUSER_ALONE,
    "providers_add": says(422, SUPERUSER_ALONE),
    "providers_read": SUPERUSER_ALONE,
    # Its address is not among the allowed hosts.
    "providers_change": says(422, SUPERUSER_ALONE),
    "providers_remove": says(204, SUPERUSER_ALONE),
    "providers_test": SUPERUSER_ALONE,
    "providers_add_model": says(422, SUPERUSER_ALONE),
    "project_base_model_read": MANAGERS,
    "project_base_model_choose": says(422, MANAGERS),
    "checkpoints_list": ALL_MANAGERS,
    "checkpoints_read": ALL_MANAGERS,
    "checkpoints_describe": (401, 404, 403, 403, 403, 403, 200),
    # It is needed, which only who may delete it is told.
    "checkpoints_delete": (401, 404, 403, 403, 403, 403, 422),
    "checkpoints_card": ALL_MANAGERS,
    # It came without a manifest, so there is nothing to hold its files against.
    "checkpoints_verify": says(422, ALL_MANAGERS),
    # Nothing was evaluated, and nothing is exported yet.
    "checkpoints_evaluation": says(404, ALL_MANAGERS),
    "checkpoints_slices": says(422, ALL_MANAGERS),
    "exports_archive": says(404, ALL_MANAGERS),
    "exports_list": ALL_MANAGERS,
    # A starter model is exported as it is: merged or not, there is nothing of ours in it.
    "exports_request": (401, 404, 403, 403, 403, 403, 422),
    "arenas_list": MANAGERS,
    "arenas_create": says(422, MANAGERS),
    "arenas_close": MANAGERS,
    "ballots_next": (401, 404, 404, 200, 200, 200, 200),
    "ballots_read": ALICE_ALONE,
    "ballots_vote": says(422, ALICE_ALONE),
    "conversations_list": MEMBERS,
    # They are closed here.
    "conversations_begin": says(422, MEMBERS),
    "conversations_read": (401, 404, 404, 200, 404, 200, 200),
    "conversations_say": says(422, ALICE_ALONE),
    "conversations_write": ALICE_ALONE,
    # Her own is refused before its first turn.
    "conversations_end": (401, 404, 404, 422, 404, 200, 200),
    "conversation_settings_read": MANAGERS,
    "conversation_settings_set": says(422, MANAGERS),
    "conversation_tasks_list": MEMBERS,
    "conversation_tasks_add": says(422, MANAGERS),
    "conversation_tasks_set": says(422, MANAGERS),
    "conversation_tasks_archive": says(204, MANAGERS),
    "side_by_side_list": MANAGERS,
    "side_by_side_ask": says(422, MANAGERS),
    "side_by_side_read": MANAGERS,
    # No model server is there.
    "side_by_side_write": says(422, MANAGERS),
    "side_by_side_vote": says(422, MANAGERS),
    "side_by_side_reveal": MANAGERS,
    "side_by_side_continue": says(422, MANAGERS),
    "side_by_side_regenerate": says(201, MANAGERS),
    # The page belongs to no set.
    "side_by_side_next": says(422, MANAGERS),
    "prompt_sets_list": MANAGERS,
    "prompt_sets_create": says(422, MANAGERS),
    "prompt_sets_read": MANAGERS,
    "prompt_sets_change": MANAGERS,
    "prompt_sets_delete": says(204, MANAGERS),
    "leaderboard_read": MANAGERS,
    "drift_read": MANAGERS,
    # The checkpoint in the address is no reward model (see tests/training/evaluation/test_drift.py).
    "drift_items": says(404, MANAGERS),
    "drift_measure": says(202, MANAGERS),
    # Whoever has a token of the scope is told what is missing.
    "feedback_give": says(422, EVERYONE),
    "application_requests_list": MANAGERS,
    "application_requests_read": MANAGERS,
    "feedback_list": MANAGERS,
    "feedback_figures": MANAGERS,
    "feedback_incidents_list": MANAGERS,
    "feedback_incidents_decide": MANAGERS,
    "feedback_settings_read": MANAGERS,
    "feedback_settings_change": MANAGERS,
    "feedback_patterns_try": says(422, MANAGERS),
    "feedback_rules_set": says(422, MANAGERS),
    "feedback_tokens_add": says(422, MANAGERS),
    "feedback_tokens_remove": says(204, MANAGERS),
    "feedback_keys_list": MANAGERS,
    "feedback_keys_create": says(422, MANAGERS),
    "feedback_keys_revoke": says(204, MANAGERS),
    "feedback_erase": says(422, MANAGERS),
    "live_read": MANAGERS,
    "live_set": says(422, MANAGERS),
    "live_updates": MANAGERS,
    "suggestions_read": MANAGERS,
    "suggestions_set": says(422, MANAGERS),
    "suggestions_effect": MANAGERS,
    "judges_list": MANAGERS,
    "judges_create": says(422, MANAGERS),
    "judges_set": says(200, MANAGERS),
    "judges_criteria": MANAGERS,
    "rubrics_list": MANAGERS,
    "rubrics_create": says(422, MANAGERS),
    "rubrics_read": MANAGERS,
    "rubrics_save": says(422, MANAGERS),
    "rubrics_use": MANAGERS,
    "sources_list": MANAGERS,
    "sources_read": MANAGERS,
    "sources_add": says(422, MANAGERS),
    "sources_set": MANAGERS,
    "sources_remove": says(204, MANAGERS),
    "sources_files": MANAGERS,
    "embeddings_list": MANAGERS,
    "embeddings_request": says(422, MANAGERS),
    "embeddings_cancel": MANAGERS,
    "prompts_similar": MANAGERS,
    "near_duplicates_list": MANAGERS,
    "lessons_list": EVERYONE,
    "lesson_runs_list": EVERYONE,
    "lesson_runs_start": says(202, EVERYONE),
    "lesson_runs_stop": says(204, EVERYONE),
    "lesson_runs_read": ALICE_ALONE,
    "class_read": MANAGERS,
    "rubric_drafts_list": MANAGERS,
    "rubric_drafts_request": says(422, MANAGERS),
    "rubric_drafts_read": MANAGERS,
}


def operations() -> Iterator[tuple[str, str, str]]:
    """Name, method and path of every operation of the OpenAPI document."""
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield operation["operationId"], method.upper(), path


def test_every_operation_is_in_the_table_and_every_line_of_it_is_an_operation():
    assert sorted(name for name, _method, _path in operations()) == sorted(TABLE)


def test_every_address_of_the_api_is_an_operation():
    """But the document itself, its page, and what is nothing: those stand in the table of pages."""
    named = {pattern.name: str(pattern.pattern) for pattern in urlpatterns}
    for name in ("api-schema", "api-docs", "api-unknown"):
        del named[name]
    converted = {re.sub(r"<\w+:(\w+)>", r"{\1}", path).replace("{pk}", "{id}") for path in named.values()}
    assert {f"/api/v1/{path}" for path in converted} == {path for _name, _method, path in operations()}


@pytest.fixture
def frank(db: None) -> User:
    """Manages a project of his own."""
    frank = factories.make_user("frank")
    factories.make_project(slug="coffee", managers=[frank])
    return frank


@pytest.fixture
def everybody(
    scene: Scene, oscar: User, frank: User, alice: User, carol: User, admin: User
) -> dict[str, Asker]:
    """A program of each."""
    users = (None, oscar, frank, alice, make_reviewer(scene.project), carol, admin)
    return dict(zip(ROLES, map(Asker, users), strict=True))


def ask(asker: Asker, method: str, address: str) -> int:
    """The status; what was done is undone."""
    body: dict[str, object] | None = None if method in ("GET", "DELETE") else {}
    with transaction.atomic():
        status = int(asker(method, address, body).status_code)
        transaction.set_rollback(True)
    return status


@pytest.mark.django_db
def test_each_role_gets_what_the_table_says(scene: Scene, everybody: dict[str, Asker]):
    statuses = {
        name: tuple(ask(everybody[role], method, scene.address(path)) for role in ROLES)
        for name, method, path in operations()
    }
    assert {name: row for name, row in statuses.items() if row != TABLE[name]} == {}


@pytest.mark.django_db
def test_a_member_of_one_project_gets_into_no_other_by_any_operation(
    scene: Scene, frank: User, alice: User, carol: User
):
    """Rows of one's own project under another's address, and another's rows under one's own."""
    other = Project.objects.get(slug="coffee")
    assert other.pk != scene.project.pk
    as_frank, as_carol = Asker(frank), Asker(carol)
    for name, method, path in operations():
        if "{slug}" not in path:
            continue
        address = scene.address(path)
        foreign = address.replace("/projects/tea/", "/projects/coffee/")
        assert ask(as_carol, method, foreign) == 404, f"{name}: Carol at {foreign}"
        if "{id}" in path or "{number}" in path:
            # Frank manages it, and what the number names is not in it.
            assert ask(as_frank, method, foreign) == 404, f"{name}: Frank at {foreign}"


@pytest.mark.django_db
def test_every_operation_needs_the_scope_that_it_belongs_to(scene: Scene, carol: User):
    """A token that may read changes nothing, and one that may label does not manage."""
    reads, labels = Asker(carol, scopes=("read",)), Asker(carol, scopes=("label",))
    for name, method, path in operations():
        address = scene.address(path)
        if method == "GET":
            assert ask(labels, method, address) == 403, name
            continue
        if name.startswith("tokens_"):
            # Whatever a token is for, it manages none but itself.
            continue
        assert ask(reads, method, address) == 403, name
        labelling = ("assignments_", "reviews_", "ballots_", "comments_", "conversations_")
        is_labelling = name.startswith(labelling) or name in (
            "guidelines_acknowledge",
            "inbox_read",
            "calibrations_say",
        )
        assert (ask(labels, method, address) != 403) == is_labelling, name


@pytest.mark.django_db
def test_a_page_of_another_site_cannot_use_the_session(scene: Scene, carol: User):
    """A browser sends its cookies along; the token of the form it cannot know."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(carol)
    assert client.get("/api/v1/me/").status_code == 200
    refused = client.post("/api/v1/projects/tea/drift/", "{}", content_type="application/json")
    assert (refused.status_code, refused["Content-Type"]) == (403, "application/problem+json")


@pytest.mark.django_db
def test_who_is_signed_in_makes_a_token_and_a_token_makes_none(alice: User):
    client = Client()
    client.force_login(alice)
    body = {"name": "script", "scopes": ["read", "label"]}
    made = client.post("/api/v1/tokens/", body, content_type="application/json")
    assert made.status_code == 201
    with_it = Client(headers={"Authorization": f"Bearer {made.json()['secret']}"})
    assert with_it.get("/api/v1/me/").json()["username"] == "alice"
    more = with_it.post("/api/v1/tokens/", {**body, "name": "more"}, content_type="application/json")
    assert more.status_code == 403
    assert with_it.delete(f"/api/v1/tokens/{made.json()['id']}/").status_code == 204
    assert with_it.get("/api/v1/me/").status_code == 401


@pytest.mark.django_db
def test_a_run_of_another_project_is_not_there(scene: Scene, frank: User):
    """Its number is in no project's address."""
    other = create_run(
        name="other",
        snapshot=scene.snapshot,
        settings_of_method=scene.round.parsed_recipe.reward,
        base_model=scene.starter.base_model,
        parent=None,
        seed=2,
    )
    assert Asker(frank).get(f"/runs/{other.pk}/").status_code == 404
