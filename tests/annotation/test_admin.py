"""The admin: every model is there, lists stay cheap, and what must not change cannot be changed."""

import uuid
from collections.abc import Callable

import pytest
from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.db import connection, models
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from annotation.choices import AssignmentState, CategoryScope, DecisionKind, ReviewReason, Role, Verdict
from annotation.models import (
    AcquisitionFigures,
    ApiToken,
    Assignment,
    AuditEntry,
    BulkChange,
    CalibrationAnswer,
    CalibrationItem,
    CalibrationSession,
    Category,
    Comment,
    Comparison,
    Completion,
    CompletionFeatures,
    CompletionScore,
    Continuation,
    Conversation,
    ConversationTask,
    ConversationTurn,
    Correction,
    Criterion,
    DecidedSuggestion,
    Draft,
    FileImport,
    GoldAnswer,
    Guideline,
    HelpReveal,
    HelpSettings,
    ImportSource,
    ItemFlag,
    Judgment,
    KeptAnswer,
    MailChoice,
    MissingInfo,
    Notification,
    PasteRecord,
    Project,
    ProjectQuestion,
    Prompt,
    QuestionAnswer,
    QuestionVersion,
    QueuedComparison,
    RepeatedQuestion,
    Review,
    ReviewDecision,
    ReviewReturn,
    Rubric,
    RubricCriterion,
    RubricScore,
    RubricVersion,
    SavedView,
    SourceFile,
    SpanFlag,
    Suggestion,
    SuggestionSet,
    User,
    ViewQueue,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookMessage,
    Withholding,
)
from annotation.record.judgment import (
    CorrectionPart,
    CritiquePart,
    EvidencePointer,
    MissingPart,
    RatingPart,
    SpanPart,
    StepLabelPart,
)
from annotation.services.assignments.next import assign_next
from annotation.services.panels import begin
from annotation.services.projects.invitations import create_invitation
from annotation.services.texts import create_comparison
from tests import factories

MODELS = sorted(
    apps.get_app_config("annotation").get_models(), key=lambda model: model._meta.model_name or ""
)
WRITTEN_ONCE = [
    "judgment",
    "rankedcompletion",
    "spanflag",
    "missinginfo",
    "correction",
    "correctionedit",
    "rating",
    "critique",
    "demonstration",
    "questionanswer",
    "questionversion",
    "itemflag",
    "assignment",
    "completion",
    "guideline",
    "candidate",
]
LIST_BUDGET = 12
"""Queries of one list page: session, user, the rows, their count, dates, and one for each related filter."""

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser(admin: User, client_of: Callable[[User], Client]) -> Client:
    return client_of(admin)


def ask_again(project: Project, judgment: Judgment) -> None:
    """Add a question with an answer of the judgment, and put it again."""
    question = ProjectQuestion.objects.create(project=project, key=f"q-{uuid.uuid4()}", kind="text")
    version = QuestionVersion.objects.create(question=question, number=1, text="Why?")
    QuestionAnswer.objects.create(judgment=judgment, version=version, value="So.")
    RepeatedQuestion.objects.create(assignment=judgment.assignment, question=question)


def queue_view(project: Project, judgment: Judgment) -> None:
    """Save a view, assign it, and change its rows in bulk."""
    member = judgment.assignment.annotator
    view = SavedView.objects.create(project=project, owner=member, name=str(uuid.uuid4()), table="prompts")
    source = ImportSource.objects.create(
        project=project, address=f"/{uuid.uuid4()}", created_by=member, next_check_at=timezone.now()
    )
    SourceFile.objects.create(source=source, path="a.jsonl", version="1:1")
    queue = ViewQueue.objects.create(project=project, view=view, name=view.name, member=member)
    QueuedComparison.objects.create(queue=queue, comparison=judgment.comparison)
    BulkChange.objects.create(project=project, actor=member, action="close", changed=1)


def judge_everything(project: Project, annotator: User) -> Judgment:
    """One judgment with a row of every kind."""
    project.ask_correction = project.ask_critique = project.ask_demonstration = True
    project.ask_step_labels = True
    project.save()
    prompt = factories.make_prompt(project, f"Tea? {uuid.uuid4()}", context=[("Tea", ["Tea is a drink."])])
    first = factories.make_completions(prompt, ["Two minutes."])[0]
    trace = factories.make_trace(prompt, factories.search_steps())
    comparison = create_comparison(prompt=prompt, completions=[first, trace], round_number=1)
    criterion, _ = Criterion.objects.get_or_create(project=project, key="helpful", label="Helpful")
    span = project.categories.get(key="untruthful")
    missing = project.categories.get(key="missing")
    judgment = factories.make_judgment(
        comparison,
        annotator,
        (1, 2),
        spans=(
            SpanPart(
                completion=str(first.pk),
                category=span.key,
                start=0,
                end=3,
                quote="Two",
                text_hash=first.text_hash,
            ),
        ),
        missing=(
            MissingPart(
                completion=str(first.pk),
                category=missing.key,
                evidence=(EvidencePointer(passage=0, sentence=0),),
            ),
        ),
        step_labels=(StepLabelPart(completion=str(trace.pk), step=0, label="correct"),),
        corrections=(CorrectionPart(completion=str(first.pk), text="Three minutes."),),
        ratings=tuple(
            RatingPart(completion=str(pk), criterion=criterion.key, scale=criterion.scale, value=4)
            for pk in comparison.completions.values_list("pk", flat=True)
        ),
        critiques=(CritiquePart(completion=str(first.pk), text="Short and right."),),
        demonstration="Two to three minutes.",
    )
    assignment = judgment.assignment
    ask_again(project, judgment)
    queue_view(project, judgment)
    give_help(judgment, first)
    score_by_rubric(project, judgment, first)
    Continuation.objects.create(assignment=assignment, completion=first, prefix="Two", text=" minutes.")
    ItemFlag.objects.create(assignment=assignment, reason="broken")
    PasteRecord.objects.create(
        assignment=assignment,
        annotator=annotator,
        key=uuid.uuid4(),
        field="critique",
        characters=5,
        is_on_screen=True,
    )
    Draft.objects.create(assignment=assignment, fields={"comment": ["Hm"]}, saved_from=uuid.uuid4())
    CompletionScore.objects.create(completion=first, scorer=f"reward {uuid.uuid4()}", value=0.5)
    CompletionFeatures.objects.create(completion=first, space="text", values=b"0123")
    AcquisitionFigures.objects.get_or_create(project=project, defaults={"judgments": 1, "comparisons": 1})
    review = Review.objects.create(comparison=comparison, reason=ReviewReason.FLAGGED)
    knows = {"review": review, "comment": "Why?"}
    ReviewDecision.objects.create(
        **knows, kind=DecisionKind.UNDONE, reviewer=annotator, created_at=timezone.now()
    )
    ReviewReturn.objects.create(
        **knows,
        assignment=assignment,
        judgment=judgment,
        annotator=annotator,
        returned_by=factories.make_user(f"reviewer-{uuid.uuid4()}"),
    )
    AuditEntry.objects.create(actor=annotator, project=project, action="round.start", subject="round 1")
    ApiToken.objects.create(
        user=annotator, name=str(uuid.uuid4()), digest=uuid.uuid4().hex, beginning="rondo_"
    )
    Comment.objects.create(assignment=judgment.assignment, author=annotator, text="Hm?")
    Notification.objects.create(
        user=annotator, project=project, kind="reply", key=str(uuid.uuid4()), address="/inbox/"
    )
    MailChoice.objects.get_or_create(user=annotator)
    task = ConversationTask.objects.create(project=project, name=str(uuid.uuid4()))
    conversation = Conversation.objects.create(project=project, annotator=annotator, task=task)
    ConversationTurn.objects.create(conversation=conversation, index=1, prompt=prompt, comparison=comparison)
    GoldAnswer.objects.create(comparison=comparison, verdict=Verdict.RANKED, ranks={str(first.pk): 1})
    Withholding.objects.create(comparison=comparison, completion=first, start=0, end=3, quote="Two")
    create_invitation(project=project, created_by=annotator, role=Role.ANNOTATOR, days=1)
    begin(panel=factories.make_panel(project, annotator)[0], participant="p1")
    FileImport.objects.create(
        project=project, created_by=annotator, name="tea.jsonl", digest=uuid.uuid4().hex
    )
    KeptAnswer.objects.create(user=annotator, key=str(uuid.uuid4()), fingerprint=uuid.uuid4().hex)
    endpoint = WebhookEndpoint.objects.create(
        project=project, url="https://example.org", created_by=annotator, secret="sealed", is_enabled=False
    )
    message = WebhookMessage.objects.create(
        project=project, key=str(uuid.uuid4()), event="webhook.test", body="{}"
    )
    delivery = WebhookDelivery.objects.create(
        message=message, endpoint=endpoint, next_attempt_at=message.created_at
    )
    WebhookAttempt.objects.create(
        delivery=delivery, started_at=message.created_at, milliseconds=7, status=204
    )
    calibration = CalibrationSession.objects.create(project=project, name="Tea", created_by=annotator)
    item = CalibrationItem.objects.create(session=calibration, comparison=comparison, index=0)
    CalibrationAnswer.objects.create(item=item, assignment=assignment)
    return judgment


def give_help(judgment: Judgment, completion: Completion) -> None:
    """A suggestion after a first pass, and the decision on it."""
    HelpSettings.objects.get_or_create(project=judgment.comparison.project)
    shown = Suggestion.objects.create(
        suggestion_set=SuggestionSet.objects.create(comparison=judgment.comparison, source="helper"),
        kind="critique",
        completion=completion,
        text="Short.",
    )
    reveal = HelpReveal.objects.create(assignment=judgment.assignment, arm="helped", first_judgment=judgment)
    DecidedSuggestion.objects.create(
        reveal=reveal, suggestion=shown, decision="accepted", decided_at=judgment.created_at
    )


def score_by_rubric(project: Project, judgment: Judgment, completion: Completion) -> None:
    """One criterion of a rubric, and a score by it."""
    rubric = Rubric.objects.create(project=project, name=str(uuid.uuid4()))
    version = RubricVersion.objects.create(rubric=rubric, number=1)
    criterion = RubricCriterion.objects.create(version=version, position=1, key="clear", name="Clear")
    RubricScore.objects.create(judgment=judgment, completion=completion, criterion=criterion, value=4)


def page(model: type[models.Model], name: str, *args: object) -> str:
    return reverse(f"admin:annotation_{model._meta.model_name}_{name}", args=args)


def test_a_list_page_costs_the_same_few_queries_for_many_rows(
    browser: Client, project: Project, alice: User, bob: User
):
    def cost(model: type[models.Model]) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert browser.get(page(model, "changelist")).status_code == 200, model
        return len(queries)

    judge_everything(project, alice)
    judge_everything(project, bob)
    # They are looked up once per process.
    ContentType.objects.get_for_models(*MODELS)
    few = {model: cost(model) for model in MODELS}
    for annotator in (alice, bob, alice):
        judge_everything(project, annotator)
    many = {model: cost(model) for model in MODELS}
    assert {model: queries for model, queries in many.items() if queries > few[model]} == {}
    assert max(many.values()) <= LIST_BUDGET


def test_a_row_of_every_model_opens_and_every_list_is_searched(
    browser: Client, project: Project, alice: User
):
    judge_everything(project, alice)
    for model in MODELS:
        row = model._default_manager.first()
        assert row is not None, model
        assert browser.get(page(model, "change", row.pk)).status_code == 200, model
        assert browser.get(page(model, "changelist"), {"q": "1"}).status_code == 200, model
        assert browser.get(page(model, "add")).status_code in (200, 403), model
    judgment = Judgment.objects.get()
    assert browser.get(page(Judgment, "history", judgment.pk)).status_code == 200


def test_no_part_of_a_judgment_that_a_calibration_session_hides_is_there(
    browser: Client, project: Project, alice: User
):
    judgment = judge_everything(project, alice)
    # An assignment says who has answered, which is no secret, and a comment is none of a vote.
    owners = {Judgment, Correction, HelpReveal, Assignment}
    rows = {
        model: model._base_manager.order_by("pk")[0]
        for model in MODELS
        if {field.related_model for field in model._meta.fields} & owners
        and model not in {Judgment, Assignment, Comment}
    }
    assert len(rows) >= 18
    rows[Judgment] = judgment
    for is_sealed in (True, False):
        Comparison.objects.update(is_sealed=is_sealed)
        for model, row in rows.items():
            address = page(model, "change", row.pk)
            assert (browser.get(address).status_code == 200) != is_sealed, model
            assert (address in browser.get(page(model, "changelist")).content.decode()) != is_sealed, model
    Comparison.objects.update(is_sealed=True)
    for subject in (judgment.comparison.prompt, project, alice):
        asked = browser.get(page(type(subject), "delete", subject.pk)).content.decode()
        assert "Short and right." not in asked
        assert "Three minutes." not in asked


def test_what_is_written_once_can_be_neither_changed_nor_deleted(
    browser: Client, project: Project, alice: User
):
    judge_everything(project, alice)
    for name in WRITTEN_ONCE:
        model = apps.get_model("annotation", name)
        row = model._default_manager.first()
        before = model._default_manager.filter(pk=row.pk).values().get()
        sent = {"comment": "changed", "text": "changed"}
        assert browser.post(page(model, "change", row.pk), sent).status_code == 403, name
        assert browser.post(page(model, "delete", row.pk), {"post": "yes"}).status_code == 403, name
        assert model._default_manager.filter(pk=row.pk).values().get() == before


def test_the_content_of_a_prompt_stays_when_its_tags_are_changed(browser: Client, project: Project):
    prompt = factories.make_prompt(project, "What is tea?")
    answer = browser.post(
        page(Prompt, "change", prompt.pk),
        {
            "messages": '[{"role": "user", "content": "What is coffee?"}]',
            "tags": '["easy"]',
            "references": "[]",
        },
    )
    assert answer.status_code == 302
    prompt.refresh_from_db()
    assert prompt.messages == [{"role": "user", "content": "What is tea?"}]
    assert prompt.tags == ["easy"]


def test_only_the_priority_of_a_comparison_can_be_changed(browser: Client, project: Project):
    comparison = factories.make_comparison(project)
    sent = {"priority": "7", "overlap": "9", "round_number": "5"}
    for prefix in ("candidates", "assignments"):
        sent |= {f"{prefix}-TOTAL_FORMS": "0", f"{prefix}-INITIAL_FORMS": "0"}
    answer = browser.post(page(Comparison, "change", comparison.pk), sent)
    assert answer.status_code == 302
    comparison.refresh_from_db()
    assert (comparison.priority, comparison.overlap, comparison.round_number) == (7, 1, 1)


def project_form(project: Project, **changes: str) -> dict[str, str]:
    """Return the fields that the project's page sends, with the formsets that nobody touched."""
    sent = {
        "name": project.name,
        "slug": project.slug,
        "description": project.description,
        "overlap": str(project.overlap),
        "lease_minutes": str(project.lease_minutes),
        "extra_overlap": str(project.extra_overlap),
        "extra_overlap_share": str(project.extra_overlap_share),
        "retest_share": str(project.retest_share),
        "gold_share": str(project.gold_share),
        "acquisition": project.acquisition,
        "show_context": project.show_context,
        "control_share": str(project.control_share),
        "review_random_share": str(project.review_random_share),
    }
    for prefix in ("categories", "criteria", "memberships", "guidelines"):
        sent |= {f"{prefix}-TOTAL_FORMS": "0", f"{prefix}-INITIAL_FORMS": "0"}
    return sent | changes


def test_adding_a_guideline_on_the_page_of_a_project_publishes_the_next_version(
    browser: Client, project: Project, admin: User
):
    sent = project_form(project, **{"guidelines-TOTAL_FORMS": "1", "guidelines-0-text": "Be kind."})
    answer = browser.post(page(Project, "change", project.pk), sent)
    assert answer.status_code == 302, answer.content.decode()
    versions = list(project.guidelines.order_by("version").values_list("version", "text", "created_by"))
    assert versions[1:] == [(2, "Be kind.", admin.pk)]
    assert len(versions) == 2


def test_a_guideline_can_be_published_from_its_own_page(browser: Client, project: Project):
    answer = browser.post(page(Guideline, "add"), {"project": project.pk, "text": "Be brief."})
    assert answer.status_code == 302
    assert project.guidelines.get(version=2).text == "Be brief."


def test_a_category_keeps_its_key_and_scope(browser: Client, project: Project):
    category = project.categories.get(key="untruthful")
    answer = browser.post(
        page(Category, "change", category.pk),
        {
            "key": "other",
            "scope": CategoryScope.MISSING,
            "label": "Untrue",
            "granularity": category.granularity,
            "colour": "#123456",
            "position": "4",
            "polarity": "error",
            "severity_steps": "0",
            "shortcut": "x",
        },
    )
    assert answer.status_code == 302
    category.refresh_from_db()
    assert (category.key, category.scope) == ("untruthful", CategoryScope.SPAN)
    assert (category.label, category.shortcut) == ("Untrue", "x")


def test_members_and_categories_can_be_added_on_the_page_of_a_project(
    browser: Client, project: Project, oscar: User
):
    sent = project_form(
        project,
        **{
            "memberships-TOTAL_FORMS": "1",
            "memberships-0-user": str(oscar.pk),
            "memberships-0-role": Role.REVIEWER,
            "categories-TOTAL_FORMS": "1",
            "categories-0-key": "rude",
            "categories-0-label": "Rude",
            "categories-0-scope": CategoryScope.SPAN,
            "categories-0-granularity": "sentence",
            "categories-0-colour": "#000000",
            "categories-0-position": "9",
            "categories-0-polarity": "error",
            "categories-0-severity_steps": "3",
        },
    )
    assert browser.post(page(Project, "change", project.pk), sent).status_code == 302
    assert project.memberships.get(user=oscar).role == Role.REVIEWER
    assert project.categories.get(key="rude").label == "Rude"


def test_a_user_can_be_added_and_gets_a_pseudonym(browser: Client):
    answer = browser.post(
        page(User, "add"),
        {
            "username": "dora",
            "usable_password": "true",
            "password1": factories.PASSWORD,
            "password2": factories.PASSWORD,
        },
    )
    assert answer.status_code == 302, answer.content.decode()
    assert User.objects.get(username="dora").pseudonym


def test_a_lease_can_be_given_back_and_a_submitted_assignment_cannot(
    browser: Client, project: Project, alice: User, bob: User
):
    submitted = judge_everything(project, alice).assignment
    comparison = factories.make_comparison(project)
    leased = assign_next(project=project, annotator=bob)
    assert leased is not None
    answer = browser.post(
        page(Assignment, "changelist"),
        {"action": "give_back", "_selected_action": [str(leased.pk), str(submitted.pk)]},
        follow=True,
    )
    assert "1 given back." in answer.content.decode()
    leased.refresh_from_db()
    submitted.refresh_from_db()
    comparison.refresh_from_db()
    assert leased.state == AssignmentState.RELEASED
    assert submitted.state == AssignmentState.SUBMITTED
    assert comparison.open_slots == 1


def test_a_project_that_was_judged_cannot_be_deleted(browser: Client, project: Project, alice: User):
    judge_everything(project, alice)
    browser.post(page(Project, "delete", project.pk), {"post": "yes"})
    assert Project.objects.filter(pk=project.pk).exists()
    assert Judgment.objects.count() == 1
    for model in (SpanFlag, MissingInfo, Correction, Completion):
        assert model.objects.exists()


def test_an_annotator_does_not_get_into_the_admin(alice: User, client_of: Callable[[User], Client]):
    assert client_of(alice).get(page(Judgment, "changelist")).status_code == 302


def test_a_correction_shows_what_was_changed(browser: Client, project: Project, alice: User):
    judgment = judge_everything(project, alice)
    for address in (
        page(Judgment, "change", judgment.pk),
        page(Correction, "change", judgment.corrections.get().pk),
    ):
        assert "<del>Two</del><ins>Three</ins> minutes." in browser.get(address).content.decode()
