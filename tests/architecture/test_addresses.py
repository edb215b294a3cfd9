"""Every address as everybody: who gets in, who is turned away, and that no address is forgotten.

The table is the policy. An address that is not in it fails, and so does a line without an address.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib import admin
from django.test import Client, TestCase, override_settings
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from pytest_django import DjangoDbBlocker, Settings

from annotation.choices import ReviewReason
from annotation.models import (
    Conversation,
    ConversationTask,
    Criterion,
    FileImport,
    Project,
    User,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookMessage,
    Withholding,
)
from annotation.models.encryption import seal
from annotation.selectors.comparison.traces import step_token
from annotation.services.assignments import candidate_token
from annotation.services.inbox.comments import post_comment
from annotation.services.people.tokens import create_token
from annotation.services.projects.invitations import create_invitation
from annotation.services.projects.rubrics import RubricCriterionInput, save_rubric
from annotation.services.quality.reviews import open_review
from annotation.services.texts.completions import create_comparison
from tests import factories
from training.models import (
    ArenaBallot,
    ArenaLink,
    ArenaPair,
    ArenaTalk,
    BaseModelAddition,
    ConversationSettings,
    FeedbackIncident,
    PromptSet,
    RubricDraft,
    SideBySide,
)
from training.recipe import Recipe, default_recipe
from training.services.judges.judges import create_judge
from training.services.rounds import open_first_round
from training.services.runs.runs import create_run
from training.services.snapshots import freeze_snapshot

ROLES = ("anonymous", "oscar", "alice", "bob", "carol", "admin")

# What anonymous, Oscar (an outsider), Alice (who labels, and whose assignment it is), Bob (who
# labels too), Carol (a manager) and the superuser get. 302 for anonymous leads to the sign-in page.
EVERYONE = (302, 200, 200, 200, 200, 200)
MEMBERS = (302, 404, 200, 200, 200, 200)
ALICE_ALONE = (302, 404, 200, 404, 404, 404)
MANAGERS = (302, 404, 403, 403, 200, 200)
NOBODY = (401,) * 6
# Carol did not judge what is reviewed; there is no plain reviewer in the cast.
REVIEWERS = MANAGERS

WHO = re.compile(
    r"\bFor (everyone|members|annotators|reviewers|managers|superusers|administrators|the annotator|who)\b"
)

# name: (method, what each gets)
TABLE: dict[str, tuple[str, tuple[int, ...]]] = {
    "login": ("GET", (200, 302, 302, 302, 302, 302)),
    "logout": ("POST", (302, 302, 302, 302, 302, 302)),
    # The same pages under the names by which allauth calls them.
    "account_login": ("GET", (200, 302, 302, 302, 302, 302)),
    "account_logout": ("POST", (302, 302, 302, 302, 302, 302)),
    # Nobody here was invited: a page that says that accounts are made by invitation.
    "account_signup": ("GET", (200, *(302,) * 5)),
    "account_inactive": ("GET", (200,) * 6),
    "account": ("GET", EVERYONE),
    # An empty form takes the address away, which needs a recent sign-in.
    "mail-choice": ("POST", (302,) * 6),
    "account_reset_password": ("GET", (200,) * 6),
    "account_reset_password_done": ("GET", (200,) * 6),
    # A link that opens nothing says so.
    "account_reset_password_from_key": ("GET", (200,) * 6),
    "account_reset_password_from_key_done": ("GET", (200,) * 6),
    "inbox": ("GET", EVERYONE),
    "inbox-count": ("GET", EVERYONE),
    "inbox-read": ("POST", (302,) * 6),
    # Alice's own.
    "notification": ("POST", (302, 404, 302, 404, 404, 404)),
    # There is no such session; one's own are ended in tests/webapp/test_sessions.py.
    "session-end": ("POST", (302,) * 6),
    "sessions-end-others": ("POST", (302,) * 6),
    # First who signed in otherwise than by password a moment ago confirms that it is them.
    "account-export": ("GET", (302,) * 6),
    "account-delete": ("GET", (302,) * 6),
    "account_reauthenticate": ("GET", EVERYONE),
    "account_change_password": ("GET", EVERYONE),
    # Who has a password changes it.
    "account_set_password": ("GET", (302,) * 6),
    "mfa_index": ("GET", EVERYONE),
    # Between the password and the second factor.
    "mfa_authenticate": ("GET", (302,) * 6),
    # Nobody here has a second factor.
    "mfa_reauthenticate": ("GET", (302,) * 6),
    "mfa_activate_totp": ("GET", (302,) * 6),
    "mfa_deactivate_totp": ("GET", (302, 404, 404, 404, 404, 404)),
    "mfa_view_recovery_codes": ("GET", (302, 404, 404, 404, 404, 404)),
    "mfa_generate_recovery_codes": ("GET", (302,) * 6),
    "mfa_download_recovery_codes": ("GET", (302, 404, 404, 404, 404, 404)),
    "mfa_list_webauthn": ("GET", EVERYONE),
    "mfa_add_webauthn": ("GET", (302,) * 6),
    "mfa_reauthenticate_webauthn": ("GET", (302,) * 6),
    "mfa_remove_webauthn": ("GET", (302,) * 6),
    "mfa_edit_webauthn": ("GET", (302,) * 6),
    "mfa_login_webauthn": ("GET", (302,) * 6),
    "socialaccount_login_cancelled": ("GET", (200,) * 6),
    "socialaccount_login_error": ("GET", (302, 401, 401, 401, 401, 401)),
    "socialaccount_signup": ("GET", (302,) * 6),
    "socialaccount_connections": ("GET", EVERYONE),
    # No other site is set up here; tests/webapp/test_other_sites.py sets one up.
    "github_login": ("GET", (404,) * 6),
    "github_callback": ("GET", (404,) * 6),
    "google_login": ("GET", (404,) * 6),
    "google_callback": ("GET", (404,) * 6),
    "openid_connect_login": ("GET", (404,) * 6),
    "openid_connect_callback": ("GET", (404,) * 6),
    "language": ("POST", (302, 302, 302, 302, 302, 302)),
    # A load balancer and whoever restarts processes ask these; they say nothing of why.
    "health-live": ("GET", (200,) * 6),
    "health-ready": ("GET", (200,) * 6),
    # Django's test client is a program on another machine: it calls us by another name.
    "metrics": ("GET", (302, 403, 403, 403, 403, 200)),
    "status": ("GET", (302, 403, 403, 403, 403, 200)),
    "start": ("GET", (302, 403, 403, 403, 403, 200)),
    "start-demo": ("POST", (302, 403, 403, 403, 403, 302)),
    "start-starter": ("POST", (302, 403, 403, 403, 403, 302)),
    "projects": ("GET", EVERYONE),
    "project-new": ("GET", (302, 403, 403, 403, 403, 200)),
    "keys": ("GET", EVERYONE),
    "tokens": ("GET", EVERYONE),
    # Only one's own tokens are there.
    "token-revoke": ("POST", (302, 404, 302, 404, 404, 404)),
    "project": ("GET", MEMBERS),
    "guidelines": ("GET", MEMBERS),
    # An empty request does not say which version was read.
    "guidelines-read": ("POST", (302, 404, 400, 400, 400, 400)),
    "category-colours": ("GET", MEMBERS),
    "label": ("GET", MEMBERS),
    # Nothing follows when the request does not say upon what.
    "label-step": ("GET", ALICE_ALONE),
    "label-ahead": ("GET", (302, 404, 204, 204, 204, 204)),
    # With nothing in the form: shown again, with what is missing.
    "submit": ("POST", (302, 404, 422, 404, 404, 404)),
    "skip": ("POST", (302, 404, 422, 404, 404, 404)),
    "flag": ("POST", (302, 404, 422, 404, 404, 404)),
    "ask": ("GET", ALICE_ALONE),
    "comments": ("GET", REVIEWERS),
    # Alice wrote it; not even a manager edits what others wrote.
    "comment-edit": ("GET", ALICE_ALONE),
    # An empty request is no draft.
    "draft": ("POST", (302, 404, 400, 404, 404, 404)),
    # The lease of what is submitted cannot be renewed.
    "renew": ("POST", (302, 404, 409, 404, 404, 404)),
    "continuation": ("GET", ALICE_ALONE),
    "revise": ("GET", ALICE_ALONE),
    # No suggestions wait: back to work.
    "final-pass": ("GET", (302, 404, 302, 404, 404, 404)),
    "final-pass-submit": ("POST", (302, 404, 302, 404, 404, 404)),
    "reviews": ("GET", REVIEWERS),
    "review": ("GET", REVIEWERS),
    # With nothing in the form: shown again, with what is missing.
    "review-decide": ("POST", (302, 404, 403, 403, 422, 422)),
    "statistics": ("GET", MANAGERS),
    "statistics-items": ("GET", MANAGERS),
    # Reviewers may open it, too, where they may open its review: tests/annotation/comparison/.
    "statistics-item": ("GET", MANAGERS),
    "comparison-step": ("GET", REVIEWERS),
    "my-work": ("GET", MEMBERS),
    "annotators": ("GET", MANAGERS),
    "annotator": ("GET", MANAGERS),
    "project-settings": ("GET", MANAGERS),
    "project-archive": ("POST", (302, 404, 403, 403, 302, 302)),
    "project-preview": ("GET", MANAGERS),
    "project-questions": ("GET", MANAGERS),
    "criterion-add": ("GET", MANAGERS),
    "criterion": ("GET", MANAGERS),
    "criterion-change": ("POST", (302, 404, 403, 403, 302, 302)),
    "project-categories": ("GET", MANAGERS),
    "category-add": ("GET", MANAGERS),
    "category": ("GET", MANAGERS),
    "category-change": ("POST", (302, 404, 403, 403, 302, 302)),
    "guidelines-edit": ("GET", MANAGERS),
    "allocation": ("GET", MANAGERS),
    # No rule is sent, so those who may see why it was not added.
    "allocation-rules": ("POST", (302, 404, 403, 403, 422, 422)),
    "allocation-member": ("POST", (302, 404, 403, 403, 302, 302)),
    "members": ("GET", MANAGERS),
    "member": ("POST", (302, 404, 403, 403, 302, 302)),
    "invitations": ("GET", MANAGERS),
    "invitation-revoke": ("POST", (302, 404, 403, 403, 302, 302)),
    # Whoever has the link.
    "invitation": ("GET", (200,) * 6),
    "project-audit": ("GET", MANAGERS),
    "audit": ("GET", (302, 403, 403, 403, 403, 200)),
    "withheld": ("GET", MANAGERS),
    # Neither release nor discard is said: back to the list, with a message.
    "withheld-decide": ("POST", (302, 404, 403, 403, 302, 302)),
    **dict.fromkeys(
        ("data-prompts", "data-comparisons", "data-annotations", "data-responses"), ("GET", MANAGERS)
    ),
    **dict.fromkeys(("prompt", "prompt-new"), ("GET", MANAGERS)),
    # Nothing is chosen: back to the table, with a message.
    "data-act": ("POST", (302, 404, 403, 403, 302, 302)),
    "transfers": ("GET", MANAGERS),
    "transfer": ("GET", MANAGERS),
    "export-choose": ("GET", MANAGERS),
    "export": ("GET", MANAGERS),
    "webhooks": ("GET", MANAGERS),
    "webhook": ("GET", MANAGERS),
    "webhook-rotate": ("POST", (302, 404, 403, 403, 200, 200)),
    # It is switched off: back to its page, with a message.
    "webhook-test": ("POST", (302, 404, 403, 403, 302, 302)),
    # Gone for whoever comes second.
    "webhook-delete": ("POST", (302, 404, 403, 403, 302, 404)),
    "webhook-delivery": ("GET", MANAGERS),
    "gold": ("GET", MANAGERS),
    "gold-make": ("POST", (302, 404, 403, 403, 422, 422)),
    "search": ("GET", EVERYONE),
    "design": ("GET", EVERYONE),
    **dict.fromkeys(("guide", "guide-page"), ("GET", EVERYONE)),
    "dashboard": ("GET", MANAGERS),
    "dashboard-quality": ("GET", MANAGERS),
    "rounds": ("GET", MANAGERS),
    "runs": ("GET", MANAGERS),
    "runs-compare": ("GET", MANAGERS),
    "run-log": ("GET", MANAGERS),
    # Nothing is said, and nothing changes.
    "run-describe": ("POST", (302, 404, 403, 403, 302, 302)),
    "round": ("GET", MANAGERS),
    "round-progress": ("GET", MANAGERS),
    "round-recipe": ("GET", MANAGERS),
    "round-draft": ("GET", MANAGERS),
    # Each asks first; what it does, and for whom, is tested in tests/training.
    "round-open": ("GET", MANAGERS),
    "round-rollback": ("GET", MANAGERS),
    "round-cancel": ("GET", MANAGERS),
    "round-pause": ("GET", MANAGERS),
    "round-reopen": ("GET", MANAGERS),
    "round-again": ("GET", MANAGERS),
    "round-resume": ("GET", MANAGERS),
    "round-start": ("GET", MANAGERS),
    "round-retry": ("GET", MANAGERS),
    "round-reject": ("GET", MANAGERS),
    "round-promote": ("GET", MANAGERS),
    "run": ("GET", MANAGERS),
    "run-live": ("GET", MANAGERS),
    "run-curves": ("GET", MANAGERS),
    "run-download": ("GET", MANAGERS),
    "run-tensorboard": ("GET", MANAGERS),
    "base-models": ("GET", MANAGERS),
    "base-model": ("GET", MANAGERS),
    "base-model-additions": ("GET", MANAGERS),
    # They fill a disk or send a key to a server: administrators alone.
    "base-model-add": ("GET", (302, 403, 403, 403, 403, 200)),
    "base-model-cancel": ("POST", (302, 403, 403, 403, 403, 302)),
    "base-model-inspect": ("POST", (302, 404, 403, 403, 403, 302)),
    "base-model-remove": ("GET", (302, 404, 403, 403, 403, 200)),
    # No base model is named: back to the list, with why.
    "project-base-model": ("POST", (302, 404, 403, 403, 302, 302)),
    "checkpoints": ("GET", MANAGERS),
    "scaling": ("GET", MANAGERS),
    "checkpoint": ("GET", MANAGERS),
    # Nothing has been evaluated.
    "evaluation": ("GET", (302, 404, 403, 403, 404, 404)),
    "evaluation-file": ("GET", (302, 404, 403, 403, 404, 404)),
    # The starter model belongs to no project: every manager sees it, administrators alone change it.
    "checkpoint-describe": ("POST", (302, 404, 403, 403, 403, 302)),
    "checkpoint-verify": ("POST", (302, 404, 403, 403, 302, 302)),
    "checkpoint-card": ("GET", MANAGERS),
    "checkpoint-export": ("POST", (302, 404, 403, 403, 403, 302)),
    "checkpoint-exports": ("GET", MANAGERS),
    # There is no such export.
    "checkpoint-export-download": ("GET", (302, 404, 403, 403, 404, 404)),
    "checkpoint-delete": ("GET", (302, 404, 403, 403, 403, 200)),
    "drift": ("GET", MANAGERS),
    "drift-measure": ("POST", (302, 404, 403, 403, 302, 302)),
    "drift-progress": ("GET", MANAGERS),
    # There is no such reward model.
    "drift-items": ("GET", (302, 404, 403, 403, 404, 404)),
    "snapshot": ("GET", MANAGERS),
    "completion": ("GET", MANAGERS),
    "leaderboard": ("GET", MANAGERS),
    "leaderboard-groups": ("GET", MANAGERS),
    "leaderboard-items": ("GET", MANAGERS),
    "arenas": ("GET", MANAGERS),
    # The form again, with what is missing.
    "arena-create": ("POST", (302, 404, 403, 403, 422, 422)),
    "arena-close": ("POST", (302, 404, 403, 403, 302, 302)),
    # An arena without guests; what guests may is tested in tests/training/comparing/test_arena_guests.py.
    "arena": ("GET", MEMBERS),
    "arena-begin": ("POST", (302, 404, 302, 302, 302, 302)),
    "arena-ballot": ("GET", ALICE_ALONE),
    "arena-talk": ("GET", ALICE_ALONE),
    # No message is no message, and nothing is to be generated or voted on.
    "arena-talk-say": ("POST", (302, 404, 422, 404, 404, 404)),
    "arena-talk-write": ("POST", (302, 404, 302, 404, 404, 404)),
    "arena-talk-vote": ("POST", ALICE_ALONE),
    "arena-talk-end": ("POST", (302, 404, 422, 404, 404, 404)),
    # Alice talks; managers read what she said.
    "conversations": ("GET", MEMBERS),
    # The project's conversations are closed: the list again, with why.
    "conversation-begin": ("POST", (302, 404, 422, 422, 422, 422)),
    "conversation": ("GET", (302, 404, 200, 404, 200, 200)),
    # No message is no message.
    "conversation-say": ("POST", (302, 404, 422, 404, 404, 404)),
    # Nothing is to be generated: back to the page.
    "conversation-write": ("POST", (302, 404, 302, 404, 404, 404)),
    # Her own is refused before its first turn.
    "conversation-end": ("POST", (302, 404, 422, 404, 302, 302)),
    "conversation-settings": ("GET", MANAGERS),
    "conversation-task-add": ("GET", MANAGERS),
    "conversation-task": ("GET", MANAGERS),
    "conversation-task-archive": ("POST", (302, 404, 403, 403, 302, 302)),
    "compare": ("GET", MANAGERS),
    "suggestions": ("GET", MANAGERS),
    "judges": ("GET", MANAGERS),
    "judge": ("GET", MANAGERS),
    # Neither pause nor resume is said, and that is a pause: back to the judge's page.
    "judge-set": ("POST", (302, 404, 403, 403, 302, 302)),
    **dict.fromkeys(("rubrics", "rubric", "rubric-new", "rubric-edit"), ("GET", MANAGERS)),
    # No action is chosen: back to the rubric's page.
    "rubric-act": ("POST", (302, 404, 403, 403, 302, 302)),
    **dict.fromkeys(("rubric-drafts", "rubric-draft"), ("GET", MANAGERS)),
    # Whoever may choose an address and a key may send that key there.
    "served-model": ("GET", (302, 404, 404, 404, 404, 200)),
    **dict.fromkeys(
        ("feedback", "feedback-request", "feedback-figures", "feedback-incidents", "feedback-settings"),
        ("GET", MANAGERS),
    ),
    # Excluded again, as it was.
    "feedback-incident": ("POST", (302, 404, 403, 403, 302, 302)),
    # Nothing is tried.
    "feedback-patterns": ("POST", (302, 404, 403, 403, 200, 200)),
    # Nothing is chosen or named: back to the settings, with a message.
    **dict.fromkeys(
        ("feedback-rule", "feedback-token", "feedback-key", "feedback-erase"),
        ("POST", (302, 404, 403, 403, 302, 302)),
    ),
    # A token opens these, and no cookie does.
    "v1-models": ("GET", NOBODY),
    "v1-model": ("GET", NOBODY),
    "v1-chat-completions": ("POST", NOBODY),
    "v1-completions": ("POST", NOBODY),
    "v1-unknown": ("GET", (404,) * 6),
    # The form again, with what is missing.
    "compare-answer": ("POST", (302, 404, 403, 403, 200, 200)),
    "compare-shown": ("GET", MANAGERS),
    # Everything is written, nothing is said, and nothing typed: back to the page, with a message.
    "compare-write": ("POST", (302, 404, 403, 403, 302, 302)),
    "compare-vote": ("POST", (302, 404, 403, 403, 302, 302)),
    "compare-reveal": ("POST", (302, 404, 403, 403, 302, 302)),
    "compare-continue": ("POST", (302, 404, 403, 403, 302, 302)),
    "compare-prompts": ("GET", MANAGERS),
    # Without settings nothing is generated, and the page belongs to no set: back to the page, with a message.
    "compare-again": ("POST", (302, 404, 403, 403, 302, 302)),
    "compare-next": ("POST", (302, 404, 403, 403, 302, 302)),
    "prompt-sets": ("GET", MANAGERS),
    # The form again, with what is missing.
    "prompt-set-create": ("POST", (302, 404, 403, 403, 422, 422)),
    "prompt-set": ("GET", MANAGERS),
    # Nothing is said, and nothing changes.
    "prompt-set-change": ("POST", (302, 404, 403, 403, 302, 302)),
    # Gone for whoever comes second.
    "prompt-set-delete": ("POST", (302, 404, 403, 403, 302, 404)),
    # The operations of the API have a table of their own, in tests/api/test_who_may.py.
    "api-docs": ("GET", EVERYONE),
    "api-schema": ("GET", (401, 200, 200, 200, 200, 200)),
    "api-unknown": ("GET", (401, 404, 404, 404, 404, 404)),
}


def our_patterns() -> Iterator[URLPattern]:
    """Every address but those of the admin, whose own table is below."""

    def walk(patterns: list[URLPattern | URLResolver]) -> Iterator[URLPattern]:
        for pattern in patterns:
            if isinstance(pattern, URLPattern):
                yield pattern
            elif pattern.namespace != "admin":
                yield from walk(pattern.url_patterns)

    return walk(get_resolver().url_patterns)


class SceneOfAddresses(TestCase):
    """The transaction that the tests of a module have in common: each of them gives back what it changed."""


@dataclass(frozen=True)
class Scene:
    """Rows that all tests of a module share; no test changes them for the others."""

    home: Path
    parts: dict[str, dict[str, Any]]
    sessions: dict[str, str]
    """Keys of the sessions by username."""


@pytest.fixture(scope="module")
def scene(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """The parts of every address, and everybody signed in: made once for a module."""
    home = tmp_path_factory.mktemp("addresses")
    with django_db_blocker.unblock():
        SceneOfAddresses.setUpClass()
        try:
            with override_settings(RONDO_HOME=home, **folders_in(home)):
                users = {name: factories.make_user(name) for name in ("oscar", "alice", "bob", "carol")}
                users["admin"] = factories.make_user("admin", superuser=True)
                project = factories.make_project(
                    annotators=[users["alice"], users["bob"]], managers=[users["carol"]]
                )
                parts_by_view = parts_of(project, users["alice"], users["carol"])
                sessions = {name: session_of(user) for name, user in users.items()}
            yield Scene(home, parts_by_view, sessions)
        finally:
            SceneOfAddresses.tearDownClass()


def folders_in(home: Path) -> dict[str, Path]:
    return {f"RONDO_{name.upper()}": home / name for name in ("models", "snapshots", "runs", "checkpoints")}


def session_of(user: User) -> str:
    client = Client()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


@pytest.fixture
def home_of_scene(scene: Scene, settings: Settings) -> Path:
    """The home of the scene, whose files the pages read."""
    for name, value in {"RONDO_HOME": scene.home, **folders_in(scene.home)}.items():
        setattr(settings, name, value)
    return scene.home


@pytest.fixture
def everybody(home_of_scene: Path, scene: Scene, db: None) -> Mapping[str, Client]:
    """A browser for each role."""
    clients = {role: Client() for role in ROLES}
    for username, session in scene.sessions.items():
        clients[username].cookies[settings.SESSION_COOKIE_NAME] = session
    return clients


@pytest.fixture
def parts(home_of_scene: Path, scene: Scene, db: None) -> dict[str, dict[str, Any]]:
    """The parts of every address."""
    return scene.parts


def parts_of(project: Project, alice: User, carol: User) -> dict[str, dict[str, Any]]:
    """A round in labelling, judged by Alice, with a snapshot and a run: the parts of every address."""
    round_ = open_first_round(project=project)
    prompt = factories.make_prompt(project, "How long should tea steep?", split="train")
    comparison = factories.make_comparison(project, prompt=prompt)
    judgment = factories.make_judgment(comparison, alice)
    factories.make_comparison(project, prompt=factories.make_prompt(project, "And coffee?", split="train"))
    trace = factories.make_trace(prompt, factories.search_steps())
    alone = create_comparison(prompt=prompt, completions=[trace], round_number=1)
    told_trace = factories.make_judgment(alone, alice, (1,))
    snapshot = freeze_snapshot(project=project, rounds=[1])
    run = create_run(
        name="reward-1",
        snapshot=snapshot,
        settings_of_method=Recipe.from_json(default_recipe()).reward,
        base_model=round_.policy.base_model,
        parent=None,
        seed=1,
    )
    in_project = {"slug": project.slug}
    Criterion.objects.create(project=project, key="helpful", label="Helpful")
    in_trace = {**in_project, "index": 0}
    in_assignment = {**in_project, "pk": judgment.assignment_id}
    in_round = {**in_project, "number": 1}
    withheld = Withholding.objects.create(
        comparison=comparison, completion=comparison.completions.all()[0], start=0, end=1, quote="T"
    )
    in_review = {**in_project, "pk": open_review(comparison=comparison, reason=ReviewReason.FLAGGED).pk}
    judge = create_judge(project=project, name="Judge", checkpoint=round_.policy, created_by=carol)
    stored = factories.make_application_request(project, round_.policy)
    incident = FeedbackIncident.objects.create(
        project=project,
        kind="burst",
        subject="user:1",
        started_at=stored.created_at,
        ended_at=stored.created_at,
    )
    completion = prompt.completions.first()
    assert completion
    arena = ArenaLink.objects.create(project=project, name="Tea", prompts=1, sampling={}, created_by=alice)
    left, right = prompt.completions.all()[:2]
    pair = ArenaPair.objects.create(
        arena=arena, comparison=comparison, left=left, right=right, models_key="1:2"
    )
    side_by_side = SideBySide.objects.create(
        project=project, messages=prompt.messages, sampling={}, seed=0, created_by=alice
    )
    prompt_set = PromptSet.objects.create(project=project, name="Everyday", created_by=carol)
    rubric = save_rubric(
        project=project, name="Tea", criteria=[RubricCriterionInput(name="Accuracy")], saved_by=carol
    )
    invited = create_invitation(project=project, created_by=carol, role="annotator", days=7)
    webhook = WebhookEndpoint.objects.create(
        project=project,
        url="https://example.org",
        secret=seal("whsec_", purpose="webhook secret"),
        is_enabled=False,
    )
    delivery = WebhookDelivery.objects.create(
        message=WebhookMessage.objects.create(project=project, key="msg_1", event="webhook.test", body="{}"),
        endpoint=webhook,
        state="delivered",
    )
    question = post_comment(assignment=judgment.assignment, author=alice, text="May I use a dictionary?")
    post_comment(assignment=judgment.assignment, author=carol, text="Yes.")
    notification = alice.notifications.get()
    ballot = ArenaBallot.objects.create(pair=pair, voter=alice, display_order=[left.pk, right.pk])
    conversation = Conversation.objects.create(project=project, annotator=alice)
    task = ConversationTask.objects.create(project=project, name="Refund")
    talked = Conversation.objects.create(project=project, annotator=alice)
    ArenaTalk.objects.create(arena=arena, conversation=talked)
    ConversationSettings.objects.create(project=project)
    return {
        **dict.fromkeys(("project", "guidelines", "category-colours", "label", "label-ahead"), in_project),
        **dict.fromkeys(
            ("submit", "draft", "skip", "flag", "ask", "renew", "continuation", "revise"), in_assignment
        ),
        **dict.fromkeys(("final-pass", "final-pass-submit"), in_assignment),
        "suggestions": in_project,
        "guide-page": {"kind": "tutorials", "name": "first-round"},
        "label-step": {
            **in_trace,
            "pk": told_trace.assignment_id,
            "token": candidate_token(told_trace.assignment, trace.pk),
        },
        "comparison-step": {
            **in_trace,
            "pk": told_trace.comparison_id,
            "token": step_token(told_trace.comparison_id, trace.pk),
        },
        "comment-edit": {**in_project, "pk": question.pk},
        "notification": {"pk": notification.pk},
        "account_reset_password_from_key": {"uidb36": "1", "key": "wrong"},
        "guidelines-read": in_project,
        **{name: in_project for name in TABLE if name.startswith("data-")},
        "data-act": {**in_project, "table": "prompts"},
        "prompt-new": in_project,
        "prompt": {**in_project, "pk": prompt.pk},
        "transfers": in_project,
        "transfer": {
            **in_project,
            "pk": FileImport.objects.create(project=project, name="x.csv", digest="0" * 64).pk,
        },
        "export-choose": in_project,
        "export": {**in_project, "format_name": "jsonl"},
        "webhooks": in_project,
        **{
            name: {**in_project, "pk": webhook.pk}
            for name in ("webhook", "webhook-rotate", "webhook-test", "webhook-delete")
        },
        "webhook-delivery": {**in_project, "pk": delivery.pk},
        **dict.fromkeys(("reviews", "withheld", "gold", "gold-make"), in_project),
        "withheld-decide": {**in_project, "pk": withheld.pk},
        **dict.fromkeys(("review", "review-decide"), in_review),
        **dict.fromkeys(("statistics", "statistics-items", "my-work", "annotators"), in_project),
        "annotator": {**in_project, "pk": alice.pk},
        **{key: {**in_project, "pk": comparison.pk} for key in ("statistics-item", "comments")},
        **{name: in_round for name in TABLE if name == "round" or name.startswith("round-")},
        "round-draft": in_project,
        "dashboard": in_project,
        "project-settings": in_project,
        **dict.fromkeys(("project-archive", "project-preview", "project-questions"), in_project),
        **dict.fromkeys(("project-categories", "category-add", "criterion-add"), in_project),
        **{name: {**in_project, "key": "untruthful"} for name in ("category", "category-change")},
        **{name: {**in_project, "key": "helpful"} for name in ("criterion", "criterion-change")},
        "guidelines-edit": in_project,
        **dict.fromkeys(("allocation", "allocation-rules", "members"), in_project),
        **dict.fromkeys(
            ("member", "allocation-member"),
            in_project | {"pk": project.memberships.get(user__username="bob").pk},
        ),
        "dashboard-quality": in_project,
        "rounds": in_project,
        **dict.fromkeys(("runs", "runs-compare"), in_project),
        "session-end": {"pk": 1},
        **{key: {"pk": 1} for key in ("mfa_remove_webauthn", "mfa_edit_webauthn")},
        **{key: {"provider_id": "openid"} for key in ("openid_connect_login", "openid_connect_callback")},
        **dict.fromkeys(("invitations", "project-audit"), in_project),
        "invitation-revoke": {**in_project, "pk": invited.invitation.pk},
        "invitation": {"secret": invited.secret},
        "token-revoke": {"pk": create_token(user=alice, name="script", scopes=["read"]).token.pk},
        **{name: {"pk": run.pk} for name in TABLE if name == "run" or name.startswith("run-")},
        **{
            name: {"name": round_.policy.name}
            for name in ("base-model", "base-model-inspect", "base-model-remove")
        },
        "base-model-cancel": {
            "pk": BaseModelAddition.objects.create(name="refused", origin="folder", state="failed").pk
        },
        "project-base-model": in_project,
        **{
            name: {"name": round_.policy.name}
            for name in TABLE
            if name == "checkpoint" or name.startswith("checkpoint-")
        },
        "checkpoint-export-download": {"name": round_.policy.name, "pk": 1},
        **{name: {"name": round_.policy.name} for name in ("evaluation", "evaluation-file")},
        **dict.fromkeys(("drift", "drift-measure", "drift-progress"), in_project),
        "drift-items": {**in_project, "name": "nobody", "number": 1},
        "snapshot": {"digest": snapshot.digest},
        "completion": {"pk": completion.pk},
        **{name: in_project for name in TABLE if name.startswith("leaderboard")},
        **{
            f"compare-{name}": {"slug": side_by_side.slug}
            for name in ("shown", "write", "vote", "reveal", "continue", "again", "next")
        },
        **dict.fromkeys(("conversations", "conversation-begin", "conversation-settings"), in_project),
        "conversation-task-add": in_project,
        **{
            key: {**in_project, "pk": conversation.pk}
            for key in ("conversation", "conversation-say", "conversation-write", "conversation-end")
        },
        **{key: {**in_project, "pk": task.pk} for key in ("conversation-task", "conversation-task-archive")},
        **dict.fromkeys(("prompt-sets", "prompt-set-create"), in_project),
        **{
            name: {**in_project, "pk": prompt_set.pk}
            for name in ("prompt-set", "prompt-set-change", "prompt-set-delete")
        },
        **dict.fromkeys(("arenas", "arena-create"), in_project),
        "arena-close": {**in_project, "pk": arena.pk},
        **{key: {"slug": arena.slug} for key in ("arena", "arena-begin")},
        **{name: {"slug": arena.slug, "pk": talked.pk} for name in TABLE if name.startswith("arena-talk")},
        "arena-ballot": {"slug": arena.slug, "ballot_id": ballot.pk},
        **{name: in_project for name in TABLE if name.startswith("feedback")},
        "feedback-request": {**in_project, "pk": stored.pk},
        "feedback-incident": {**in_project, "pk": incident.pk},
        "judges": in_project,
        **{key: {**in_project, "pk": judge.pk} for key in ("judge", "judge-set")},
        **dict.fromkeys(("rubrics", "rubric-new", "rubric-drafts"), in_project),
        **{key: {**in_project, "pk": rubric.rubric_id} for key in ("rubric", "rubric-edit", "rubric-act")},
        "rubric-draft": {
            **in_project,
            "pk": RubricDraft.objects.create(project=project, checkpoint=round_.policy, pairs=4).pk,
        },
        "v1-model": {"name": round_.policy.name},
        "v1-unknown": {"rest": "embeddings"},
        "api-unknown": {"rest": "nothing"},
    }


def test_every_address_is_in_the_table_and_every_line_of_it_is_an_address():
    names = [
        str(pattern.name)
        for pattern in our_patterns()
        if pattern.name in TABLE or not str(pattern.name).startswith("api-")
    ]
    assert sorted(names) == sorted(TABLE)


@pytest.mark.django_db
@pytest.mark.parametrize("name", TABLE)
def test_each_role_gets_what_the_table_says(name: str, parts, everybody):
    method, expected = TABLE[name]
    address = reverse(name, kwargs=parts.get(name, {}))
    responses = {
        role: everybody[role].generic(method, address, content_type="application/x-www-form-urlencoded")
        for role in ROLES
    }
    assert {role: answer.status_code for role, answer in responses.items()} == dict(
        zip(ROLES, expected, strict=True)
    )
    # What the table opens to everybody is opened to them; from all else the way leads to the sign-in page.
    if expected[0] == 302:
        assert responses["anonymous"]["Location"].startswith(reverse("login"))


@pytest.mark.django_db
@pytest.mark.parametrize("name", [name for name, (method, _) in TABLE.items() if method == "POST"])
def test_what_changes_something_is_never_done_by_following_a_link(name: str, parts, everybody):
    address = reverse(name, kwargs=parts.get(name, {}))
    assert everybody["admin"].get(address).status_code in (404, 405)
    assert everybody["alice"].get(address).status_code in (403, 404, 405)


@pytest.mark.django_db
@pytest.mark.parametrize("name", [name for name, (method, _) in TABLE.items() if method == "POST"])
def test_a_form_from_another_site_is_refused(name: str, parts, everybody):
    client = Client(enforce_csrf_checks=True)
    client.cookies = everybody["admin"].cookies
    # Where cookies are not looked at, another site's form comes without a token as anybody's does.
    expected = 401 if name.startswith("v1-") else 403
    assert client.post(reverse(name, kwargs=parts.get(name, {}))).status_code == expected


@pytest.mark.django_db
def test_a_page_that_does_not_exist_looks_like_one_that_is_not_yours(parts, everybody):
    """An outsider who guesses a name learns nothing from the answer."""
    yours = everybody["oscar"].get(reverse("project", kwargs=parts["project"]))
    nobodys = everybody["oscar"].get(reverse("project", kwargs={"slug": "no-such-project"}))
    assert (yours.status_code, nobodys.status_code) == (404, 404)
    # Django masks the same CSRF token anew on every page.
    token = re.compile(rb"[A-Za-z0-9]{64}")
    assert token.sub(b"", yours.content) == token.sub(b"", nobodys.content)


@pytest.mark.parametrize("pattern", list(our_patterns()), ids=lambda pattern: str(pattern.name))
def test_every_view_of_ours_says_who_may_use_it(pattern: URLPattern):
    view = inspect.unwrap(pattern.callback)
    if not view.__module__.startswith(("annotation", "training", "webapp")):
        return
    assert view.__doc__, f"{view.__qualname__} has no docstring"
    assert WHO.search(view.__doc__), f"{view.__qualname__} does not say for whom it is"


# ── the admin ─────────────────────────────────────────────────────────────────────────


def admin_addresses() -> list[str]:
    """The list of every model, and of those that can be added the form."""
    return ["admin:index", "admin:password_change"] + [
        f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist" for model in admin.site._registry
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("name", admin_addresses())
def test_the_admin_is_for_superusers_alone(name: str, parts, everybody):
    statuses = {role: client.get(reverse(name)).status_code for role, client in everybody.items()}
    assert statuses == {**dict.fromkeys(ROLES, 302), "admin": 200}


@pytest.mark.django_db
@pytest.mark.parametrize("model", list(admin.site._registry), ids=lambda model: model._meta.label)
def test_every_form_of_the_admin_opens(model: Any, parts, everybody):
    site = admin.site.get_model_admin(model)
    prefix = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    adds = everybody["admin"].get(reverse(f"{prefix}_add")).status_code
    assert adds in (200, 403)
    row = site.model._default_manager.first()
    if row is not None:
        assert everybody["admin"].get(reverse(f"{prefix}_change", args=[row.pk])).status_code == 200
        assert everybody["admin"].get(reverse(f"{prefix}_history", args=[row.pk])).status_code == 200
    response = everybody["admin"].get(reverse(f"{prefix}_changelist"), {"q": "x"})
    assert response.status_code == 200
