"""The scene of the API's tests: a project with one of everything, and the people who send requests."""

import json
from dataclasses import dataclass
from typing import Any

from allauth.usersessions.models import UserSession
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from annotation.choices import ReviewReason, Role
from annotation.exchange.uploads import receive_upload
from annotation.models import (
    Assignment,
    BulkChange,
    CalibrationSession,
    Category,
    Comment,
    Comparison,
    Conversation,
    ConversationTask,
    Criterion,
    FileImport,
    GoldAnswer,
    ImportSource,
    Invitation,
    Judgment,
    Membership,
    Notification,
    Panel,
    Project,
    ProjectQuestion,
    Prompt,
    Review,
    RubricVersion,
    SavedView,
    User,
    ViewQueue,
    WebhookDelivery,
    Withholding,
)
from annotation.record.questions import Question
from annotation.services.calibration import create_session, reveal_session
from annotation.services.inbox import post_comment
from annotation.services.people.accounts import create_token
from annotation.services.projects.invitations import create_invitation
from annotation.services.projects.project_questions import save_question
from annotation.services.projects.rubrics import RubricCriterionInput, save_rubric
from annotation.services.reviews import open_review
from annotation.services.webhooks import create_webhook, send_test
from tests import factories
from training.models import (
    ApplicationRequest,
    ArenaBallot,
    ArenaLink,
    ArenaPair,
    BaseModelAddition,
    Checkpoint,
    ConversationSettings,
    EmbeddingJob,
    FeedbackIncident,
    FeedbackKey,
    Judge,
    LessonRun,
    ModelProvider,
    PromptEmbedding,
    PromptSet,
    RequestOptIn,
    Round,
    RubricDraft,
    Run,
    SideBySide,
    Snapshot,
)
from training.recipe.recipe import Recipe, default_recipe
from training.services.feedback.settings import create_key, opt_in
from training.services.judges import create_judge
from training.services.rounds.controls import open_first_round
from training.services.runs.runs import create_run
from training.services.snapshots import freeze_snapshot

BASE = "/api/v1"
VOTES = "prompt,answer_1,answer_2,winner\nTea?,Green.,Black.,1\n"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A round in labelling, judged by Alice, who holds a second comparison, with a snapshot and a run."""

    project: Project
    round: Round
    prompt: Prompt
    comparison: Comparison
    judgment: Judgment
    assignment: Assignment
    """Alice's, in her hands."""
    review: Review
    gold: GoldAnswer
    withheld: Withholding
    snapshot: Snapshot
    run: Run
    judge: Judge
    rubric: RubricVersion
    """Not published."""
    rubric_draft: RubricDraft
    embedding_job: EmbeddingJob
    addition: BaseModelAddition
    """Refused."""
    provider: ModelProvider
    starter: Checkpoint
    ballot: ArenaBallot
    """Alice's, not voted on."""
    side_by_side: SideBySide
    conversation: Conversation
    """Alice's, in which nothing was said yet; the project's conversations are closed."""
    conversation_task: ConversationTask
    prompt_set: PromptSet
    """Of one prompt."""
    session: UserSession
    """Of Alice's."""
    invitation: Invitation
    panel: Panel
    calibration: CalibrationSession
    """Of Alice and Bob, of one comparison, revealed before anybody answered."""
    category: Category
    criterion: Criterion
    question: ProjectQuestion
    upload: FileImport
    """A file of one judgment, looked through."""
    delivery: WebhookDelivery
    """Of a test, to a webhook that is told of nothing else here."""
    comment: Comment
    """Alice's, on what she judged."""
    saved_view: SavedView
    source: ImportSource
    """Carol's, of all comparisons, shared."""
    queue: ViewQueue
    """Alice's, of no comparison."""
    binned: Project
    """Carol's, in the bin."""
    lesson_run: LessonRun
    """Alice's, ended."""
    change: BulkChange
    """Of no row."""
    token_id: int
    """Of a token of Alice's."""
    stored: ApplicationRequest
    incident: FeedbackIncident
    key: FeedbackKey
    opted_in: RequestOptIn
    """A token of Carol's."""

    def address(self, path: str) -> str:
        """An address of the OpenAPI document with this scene's rows."""
        kind = path.partition("/{id}")[0].rpartition("/")[2]
        ids = {
            "assignments": self.assignment.pk,
            "comparisons": self.comparison.pk,
            "prompts": self.prompt.pk,
            "reviews": self.review.pk,
            "gold": self.gold.pk,
            "withheld": self.withheld.pk,
            "judges": self.judge.pk,
            "rubrics": self.rubric.rubric_id,
            "rubric-drafts": self.rubric_draft.pk,
            "embeddings": self.embedding_job.pk,
            "runs": self.run.pk,
            "base-model-additions": self.addition.pk,
            "providers": self.provider.pk,
            "tokens": self.token_id,
            "webhooks": self.delivery.endpoint_id,
            "deliveries": self.delivery.pk,
            "views": self.saved_view.pk,
            "sources": self.source.pk,
            "changes": self.change.pk,
            "bin": self.binned.pk,
            "queues": self.queue.pk,
            "lesson-runs": self.lesson_run.pk,
            "imports": self.upload.pk,
            "prompt-sets": self.prompt_set.pk,
            "arenas": self.ballot.pair.arena_id,
            "conversations": self.conversation.pk,
            "conversation-tasks": self.conversation_task.pk,
            "invitations": self.invitation.pk,
            "panels": self.panel.pk,
            "calibrations": self.calibration.pk,
            "sessions": self.session.pk,
            "comments": self.comment.pk,
            "application-requests": self.stored.pk,
            "incidents": self.incident.pk,
            "keys": self.key.pk,
            "stored-tokens": self.opted_in.token_id,
        }
        return path.format(
            slug=self.project.slug,
            number=1,
            index=0,
            id=ids.get(kind, 0),
            name=self.starter.name,
            digest=self.snapshot.digest,
            username="bob",
            format_name="jsonl",
            arena=self.ballot.pair.arena.slug,
            ballot=self.ballot.pk,
            page=self.side_by_side.slug,
            key=self._key_in(path),
            action="promote",
            lesson=self.lesson_run.lesson,
        )

    def _key_in(self, path: str) -> str:
        if "questions" in path:
            return self.question.key
        return self.criterion.key if "criteria" in path else self.category.key


def _binned(carol: User) -> Project:
    binned = factories.make_project(slug=f"binned-{carol.pk}", managers=[carol])
    Project.objects.filter(pk=binned.pk).update(deleted_at=timezone.now(), is_incomplete=True)
    return binned


def make_scene(project: Project, alice: User, carol: User) -> Scene:
    """One of everything."""
    round_ = open_first_round(project=project)
    prompt = factories.make_prompt(project, "How long should tea steep?", split="train")
    comparison = factories.make_comparison(project, prompt=prompt)
    judgment = factories.make_judgment(comparison, alice)
    other = factories.make_comparison(
        project, prompt=factories.make_prompt(project, "Coffee?", split="train")
    )
    assignment = factories.lease_to(other, alice)
    named = factories.make_comparison(project)
    webhook = create_webhook(
        project=project, url="https://example.org/hook", events=["checkpoint.deleted"], created_by=carol
    )
    snapshot = freeze_snapshot(project=project, rounds=[1])
    run = create_run(
        name=f"reward-{project.slug}",
        snapshot=snapshot,
        settings_of_method=Recipe.from_json(default_recipe()).reward,
        base_model=round_.policy.base_model,
        parent=None,
        seed=1,
    )
    return Scene(
        project=project,
        round=round_,
        prompt=prompt,
        comparison=comparison,
        judgment=judgment,
        assignment=assignment,
        review=open_review(comparison=comparison, reason=ReviewReason.FLAGGED),
        gold=factories.make_gold_item(project).gold_answer,
        withheld=Withholding.objects.create(
            comparison=named, completion=named.completions.all()[0], start=0, end=1, quote="T"
        ),
        snapshot=snapshot,
        run=run,
        rubric=save_rubric(
            project=project, name="Tea", criteria=[RubricCriterionInput(name="Accuracy")], saved_by=carol
        ),
        rubric_draft=RubricDraft.objects.create(project=project, checkpoint=round_.policy, pairs=4),
        embedding_job=_embedded(project, prompt, round_.policy),
        addition=BaseModelAddition.objects.create(
            name=f"refused-{project.slug}", origin="folder", state="failed", error="It is an encoder."
        ),
        provider=ModelProvider.objects.create(name=project.slug, url="http://127.0.0.1:9/v1"),
        judge=create_judge(project=project, name="Judge", checkpoint=round_.policy, created_by=carol),
        starter=round_.policy,
        ballot=_ballot(project, comparison, alice),
        side_by_side=_side_by_side(project, round_.policy, carol),
        conversation=_conversation(project, round_.policy, alice),
        conversation_task=ConversationTask.objects.create(project=project, name="Refund"),
        prompt_set=_prompt_set(project, prompt, carol),
        session=UserSession.objects.create(
            user=alice, ip="127.0.0.1", session_key="alice", user_agent="Tests"
        ),
        invitation=create_invitation(project=project, created_by=carol, role="annotator", days=1).invitation,
        panel=factories.make_panel(project, carol)[0],
        calibration=_calibration(project, carol),
        category=project.categories.get(key="untruthful"),
        criterion=Criterion.objects.create(project=project, key="helpful", label="Helpful"),
        question=save_question(
            project=project, question=Question(key="why", kind="text", text="Why?"), saved_by=carol
        ),
        upload=receive_upload(
            project=project, upload=SimpleUploadedFile("votes.csv", VOTES.encode()), user=carol
        ),
        delivery=send_test(endpoint=webhook.endpoint, sent_by=carol),
        comment=post_comment(assignment=judgment.assignment, author=alice, text="May I use a dictionary?"),
        source=ImportSource.objects.create(
            project=project, address="/prompts", created_by=carol, next_check_at=timezone.now()
        ),
        saved_view=SavedView.objects.create(
            project=project, owner=carol, name="All", table="comparisons", is_shared=True
        ),
        binned=_binned(carol),
        lesson_run=LessonRun.objects.create(lesson="dpo", created_by=alice, state="finished"),
        change=BulkChange.objects.create(project=project, action="tag", changed=0),
        queue=ViewQueue.objects.create(project=project, name="All", member=alice),
        token_id=create_token(user=alice, name="scene", scopes=["read"]).token.pk,
        **_feedback(project, round_.policy, carol),
    )


def _feedback(project: Project, checkpoint: Checkpoint, manager: User) -> dict[str, Any]:
    """A stored request of a manager's token, an incident and a publishable key."""
    token = create_token(user=manager, name="application", scopes=["generate"]).token
    stored = factories.make_application_request(project, checkpoint)
    return {
        "stored": stored,
        "incident": FeedbackIncident.objects.create(
            project=project,
            kind="burst",
            subject="user:1",
            started_at=stored.created_at,
            ended_at=stored.created_at,
        ),
        "key": create_key(project=project, name="page", created_by=manager),
        "opted_in": opt_in(project=project, token=token, opted_by=manager),
    }


def _ballot(project: Project, comparison: Comparison, voter: User) -> ArenaBallot:
    """A pair of an arena before `voter`."""
    left, right = comparison.completions.order_by("pk")[:2]
    arena = ArenaLink.objects.create(project=project, name="Tea", prompts=1, sampling={}, created_by=voter)
    pair = ArenaPair.objects.create(
        arena=arena, comparison=comparison, left=left, right=right, models_key="1:2"
    )
    return ArenaBallot.objects.create(pair=pair, voter=voter, display_order=[left.pk, right.pk])


def _conversation(project: Project, checkpoint: Checkpoint, annotator: User) -> Conversation:
    """A conversation without a turn."""
    settings = ConversationSettings.objects.create(project=project, sampling={"temperature": 0.7})
    settings.checkpoints.add(checkpoint)
    return Conversation.objects.create(project=project, annotator=annotator)


def _embedded(project: Project, prompt: Prompt, checkpoint: Checkpoint) -> EmbeddingJob:
    PromptEmbedding.objects.create(
        prompt=prompt, model=checkpoint.name, text_hash="0" * 64, vector=bytes([127, 1]), scale=1 / 127
    )
    return EmbeddingJob.objects.create(project=project, checkpoint=checkpoint)


def _prompt_set(project: Project, prompt: Prompt, manager: User) -> PromptSet:
    """A set of one prompt."""
    made = PromptSet.objects.create(project=project, name="Everyday questions", created_by=manager)
    made.prompts.add(prompt)
    return made


def _side_by_side(project: Project, checkpoint: Checkpoint, manager: User) -> SideBySide:
    """A question that nobody has answered yet."""
    made = SideBySide.objects.create(
        project=project,
        messages=[{"role": "user", "content": "Tea?"}],
        sampling={"temperature": 0.7, "top_p": 0.95, "max_tokens": 8},
        seed=0,
        created_by=manager,
    )
    for position in (1, 2):
        made.answers.create(position=position, checkpoint=checkpoint, messages=made.messages)
    return made


def _calibration(project: Project, manager: User) -> CalibrationSession:
    """A revealed session of one comparison that nobody has answered."""
    people = User.objects.filter(memberships__project=project, username__in=["alice", "bob"])
    made = create_session(
        project=project,
        created_by=manager,
        name="Spring",
        participants=[person.pk for person in people],
        comparisons=[factories.make_comparison(project).pk],
    )
    revealed = reveal_session(session=made.session, revealed_by=manager)
    # The tests of inboxes know what else is in them.
    Notification.objects.filter(kind__startswith="calibration").delete()
    return revealed


def make_reviewer(project: Project) -> User:
    """Rita reviews."""
    rita = factories.make_user("rita")
    Membership.objects.create(project=project, user=rita, role=Role.REVIEWER)
    return rita


class Asker:
    """Asks the API in somebody's name: with a token of all scopes, or with none at all."""

    def __init__(
        self, user: User | None, *, scopes: tuple[str, ...] = ("read", "label", "manage", "feedback")
    ) -> None:
        self.client = Client()
        self.headers: dict[str, str] = {}
        if user is not None:
            name = f"asker {'-'.join(scopes)}"
            self.headers = {
                "Authorization": f"Bearer {create_token(user=user, name=name, scopes=scopes).secret}"
            }

    def __call__(
        self, method: str, address: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> Any:
        """The answer to a request; `address` below /api/v1, a body as JSON."""
        data = "" if body is None else json.dumps(body)
        return self.client.generic(
            method,
            address if address.startswith(BASE) else f"{BASE}{address}",
            data,
            content_type="application/json",
            headers={**self.headers, **(headers or {})},
        )

    def get(self, address: str, **headers: str) -> Any:
        """Read."""
        return self("GET", address, headers=headers)

    def post(self, address: str, body: Any = None, **headers: str) -> Any:
        """Do."""
        return self("POST", address, {} if body is None else body, headers=headers)
