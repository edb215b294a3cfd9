"""The scene of addresses: rows with which every address of the table can be opened."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.test import Client
from django.utils import timezone

from annotation.choices import ReviewReason
from annotation.models import (
    BulkChange,
    CalibrationSession,
    Conversation,
    ConversationTask,
    Criterion,
    FileImport,
    ImportSource,
    Project,
    SavedView,
    User,
    ViewQueue,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookMessage,
    Withholding,
)
from annotation.models.webhooks import seal
from annotation.record.questions import Question
from annotation.selectors.comparison import step_token
from annotation.services.assignments.display_order import candidate_token
from annotation.services.inbox import post_comment
from annotation.services.people.accounts import create_token
from annotation.services.projects.invitations import create_invitation
from annotation.services.projects.project_questions import save_question
from annotation.services.projects.rubrics import RubricCriterionInput, save_rubric
from annotation.services.reviews import open_review
from annotation.services.texts import create_comparison
from tests import factories
from tests.architecture.address_table import TABLE
from training.models import (
    ArenaBallot,
    ArenaLink,
    ArenaPair,
    ArenaTalk,
    BaseModelAddition,
    ConversationSettings,
    FeedbackIncident,
    ModelProvider,
    PromptSet,
    RubricDraft,
    SideBySide,
)
from training.recipe.recipe import Recipe, default_recipe
from training.services.judges import create_judge
from training.services.rounds.controls import open_first_round
from training.services.runs.runs import create_run
from training.services.snapshots import freeze_snapshot


@dataclass(frozen=True)
class Scene:
    """Rows that all tests of a module share; no test changes them for the others."""

    home: Path
    parts: dict[str, dict[str, Any]]
    sessions: dict[str, str]
    """Keys of the sessions by username."""


def session_of(user: User) -> str:
    client = Client()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


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
    binned = factories.make_project(slug="binned", managers=[carol])
    Project.objects.filter(pk=binned.pk).update(deleted_at=timezone.now(), is_incomplete=True)
    source = ImportSource.objects.create(
        project=project, address="/prompts", created_by=carol, next_check_at=timezone.now()
    )
    saved_view = SavedView.objects.create(
        project=project, owner=carol, name="All", table="comparisons", is_shared=True
    )
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
    save_question(project=project, question=Question(key="why", kind="text", text="Why?"), saved_by=carol)
    rubric = save_rubric(
        project=project, name="Tea", criteria=[RubricCriterionInput(name="Accuracy")], saved_by=carol
    )
    panel, panel_secret = factories.make_panel(project, carol)
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
    calibration = CalibrationSession.objects.create(project=project, name="Tea", created_by=alice)
    calibration.participants.set([alice, User.objects.get(username="bob")])
    return {
        **dict.fromkeys(("project", "guidelines", "category-colours", "label", "label-ahead"), in_project),
        **dict.fromkeys(
            (
                "submit",
                "draft",
                "paste",
                "skip",
                "flag",
                "ask",
                "renew",
                "continuation",
                "revise",
                "return-object",
            ),
            in_assignment,
        ),
        **dict.fromkeys(("final-pass", "final-pass-submit"), in_assignment),
        "suggestions": in_project,
        **dict.fromkeys(("live", "live-line"), in_project),
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
        "bin-restore": {"pk": binned.pk},
        "change-undo": {
            **in_project,
            "pk": BulkChange.objects.create(project=project, action="tag", changed=0).pk,
        },
        "saved-views": in_project,
        "sources": in_project,
        "source-act": {**in_project, "pk": source.pk},
        **{key: {**in_project, "pk": saved_view.pk} for key in ("saved-view", "saved-view-assign")},
        "view-queue-end": {
            **in_project,
            "pk": ViewQueue.objects.create(project=project, name="x", member=alice).pk,
        },
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
        **dict.fromkeys(("reviews", "withheld", "gold", "gold-make", "gold-file"), in_project),
        "withheld-decide": {**in_project, "pk": withheld.pk},
        **dict.fromkeys(
            ("review", "review-decide", "review-return", "review-take", "review-undo"), in_review
        ),
        **dict.fromkeys(
            ("statistics", "statistics-items", "my-work", "annotators", "pay", "pay-file"), in_project
        ),
        "annotator": {**in_project, "pk": alice.pk},
        **{
            key: {**in_project, "pk": comparison.pk} for key in ("statistics-item", "comments", "gold-answer")
        },
        **{name: in_round for name in TABLE if name == "round" or name.startswith("round-")},
        "round-draft": in_project,
        "dashboard": in_project,
        "project-settings": in_project,
        **dict.fromkeys(
            (
                "project-archive",
                "project-delete",
                "project-preview",
                "project-questions",
                "project-file",
                "project-file-download",
            ),
            in_project,
        ),
        **dict.fromkeys(("project-categories", "category-add", "criterion-add"), in_project),
        **{
            name: {**in_project, "key": "untruthful"}
            for name in ("category", "category-change", "category-again")
        },
        **{name: {**in_project, "key": "helpful"} for name in ("criterion", "criterion-change")},
        **dict.fromkeys(("project-question-add", "project-question-preview-new"), in_project),
        **{
            name: {**in_project, "key": "why"}
            for name in (
                *("project-question", "project-question-change"),
                *("project-question-again", "project-question-preview"),
            )
        },
        "guidelines-edit": in_project,
        **dict.fromkeys(("allocation", "allocation-rules", "members"), in_project),
        **dict.fromkeys(
            ("member", "allocation-member", "pay-rate"),
            in_project | {"pk": project.memberships.get(user__username="bob").pk},
        ),
        "dashboard-quality": in_project,
        "course-class": in_project,
        **{key: {"slug": "dpo"} for key in ("lesson", "lesson-live", "lesson-run", "lesson-stop")},
        "rounds": in_project,
        **dict.fromkeys(("runs", "runs-compare"), in_project),
        "session-end": {"pk": 1},
        **{key: {"pk": 1} for key in ("mfa_remove_webauthn", "mfa_edit_webauthn")},
        **{key: {"provider_id": "openid"} for key in ("openid_connect_login", "openid_connect_callback")},
        **dict.fromkeys(("invitations", "project-audit", "panels", "panel-hosts"), in_project),
        **dict.fromkeys(("panel-participants", "panel-file", "panel-revoke"), in_project | {"pk": panel.pk}),
        "panel-done": {},
        "panel": {"secret": panel_secret},
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
        **{
            name: {"pk": ModelProvider.objects.create(name=name, url="http://127.0.0.1:9").pk}
            for name in ("provider", "provider-test", "provider-add-model", "provider-remove")
        },
        **dict.fromkeys(("calibrations", "calibration-new"), in_project),
        **{
            name: {**in_project, "pk": calibration.pk, **({"index": 0} if name == "calibration-item" else {})}
            for name in TABLE
            if name == "calibration" or name.startswith("calibration-")
            if name != "calibration-new"
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
        **dict.fromkeys(("near-duplicates", "embed-prompts", "embed-cancel", "embed-progress"), in_project),
        "prompt-similar": {**in_project, "pk": prompt.pk},
        "v1-model": {"name": round_.policy.name},
        "v1-unknown": {"rest": "embeddings"},
        "api-unknown": {"rest": "nothing"},
    }
