"""Rules put stored requests before annotators: which, how many a day, with which reason, nothing twice."""

import httpx
import pytest

from annotation.choices import JobState
from annotation.models import Completion, Project, Prompt, User
from annotation.services.assignments.next import assign_next
from tests import factories
from tests.training.engine.fake_server import FakeServer
from tests.training.evaluation.test_scores import reward_model
from tests.training.feedback.conftest import Application
from training.choices import SelectionReason, TrainingTask
from training.engine import Engine, Engines
from training.models import (
    ApplicationRequest,
    Checkpoint,
    FeedbackComparison,
    FeedbackSettings,
)
from training.services.feedback import selection
from training.services.feedback.abuse import check_project
from training.services.feedback.recording import Erased, erase_user, pseudonym
from training.services.feedback.selection import select_requests, sweep_selection
from training.services.feedback.settings import set_rule

pytestmark = pytest.mark.django_db


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def engines(server: FakeServer) -> Engines:
    return Engines(Engine(transport=httpx.MockTransport(server)))


def rule(project: Project, user: User, reason: SelectionReason, share: float, most: int = 100) -> None:
    set_rule(project=project, reason=reason, is_on=True, share=share, most_per_day=most, changed_by=user)


def select(settings: FeedbackSettings, engines: Engines) -> dict[str, str]:
    """Run the selection as a sweep would; the reasons by the keys of the requests."""
    FeedbackSettings.objects.update(state=JobState.WAITING)
    select_requests(settings.pk, engines=engines)
    settings.refresh_from_db()
    return dict(FeedbackComparison.objects.order_by("pk").values_list("request__key", "reason"))


def requests(project: Project, checkpoint: Checkpoint, number: int) -> list[ApplicationRequest]:
    """Requests about different things, whose answers are 1, 2, 3, … characters long."""
    return [
        factories.make_application_request(
            project, checkpoint, "x" * (place + 1), key=f"r{place}", question=f"What is {place}?"
        )
        for place in range(number)
    ]


def test_a_request_becomes_a_pair_with_a_second_response_of_its_model(
    feedback_settings: FeedbackSettings,
    project: Project,
    starter: Checkpoint,
    carol: User,
    alice: User,
    engines: Engines,
):
    rule(project, carol, SelectionReason.RANDOM, 1.0)
    [stored] = requests(project, starter, 1)
    assert select(feedback_settings, engines) == {"r0": "random"}
    origin = FeedbackComparison.objects.get()
    texts = {completion.text for completion in origin.comparison.completions.all()}
    assert len(texts) == 2
    assert "x" in texts
    assert {completion.source for completion in origin.comparison.completions.all()} == {starter.source}
    assert origin.comparison.prompt.tags == ["application"]
    assert origin.comparison.prompt.messages == stored.messages
    # Annotators meet it in their queue like any other.
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    assert assignment.comparison == origin.comparison
    # Nothing is left, and doing it again does nothing.
    assert select(feedback_settings, engines) == {"r0": "random"}
    assert Completion.objects.count() == 2


def test_the_share_and_the_bound_of_a_day_hold(
    feedback_settings: FeedbackSettings,
    project: Project,
    starter: Checkpoint,
    carol: User,
    engines: Engines,
):
    rule(project, carol, SelectionReason.RANDOM, 0.5, most=8)
    stored = requests(project, starter, 60)
    drawn = [request.key for request in stored if selection._draw(request) < 0.5]
    # Of 60 fair draws between 15 and 45 but once in 30,000: the hash spreads them.
    assert 15 < len(drawn) < 45
    assert list(select(feedback_settings, engines)) == drawn[:8]
    assert not ApplicationRequest.objects.filter(examined_at=None).exists()


def test_negative_feedback_brings_a_request_and_what_is_excluded_does_not(
    application: Application,
    feedback_settings: FeedbackSettings,
    project: Project,
    starter: Checkpoint,
    carol: User,
    engines: Engines,
):
    rule(project, carol, SelectionReason.NEGATIVE, 1.0)
    requests(project, starter, 4)
    assert select(feedback_settings, engines) == {}
    application.give("r0", thumb="down", user="anna")
    application.give("r1", rating=2, user="anna")
    application.give("r2", thumb="up", user="anna")
    application.give("r3", thumb="down", user="ben")
    for _ in range(3):
        application.give("r3", thumb="up", user="ben")
        application.give("r3", thumb="down", user="ben")
    check_project(project)
    assert select(feedback_settings, engines) == {"r0": "negative", "r1": "negative"}


def test_low_rewards_and_disagreement_are_found_among_what_was_scored(
    feedback_settings: FeedbackSettings,
    project: Project,
    starter: Checkpoint,
    carol: User,
    engines: Engines,
    server: FakeServer,
):
    first, second = reward_model(project, "reward-1"), reward_model(project, "reward-2")
    rule(project, carol, SelectionReason.LOW_REWARD, 0.1)
    rule(project, carol, SelectionReason.DISAGREEMENT, 0.1)
    stored = requests(project, starter, selection.LEAST_SCORED - 1)
    assert select(feedback_settings, engines) == {}
    # Too few to know a share of: they wait, scored by their length.
    assert stored[0].scores == {}
    assert ApplicationRequest.objects.get(key="r4").scores == {"reward-1": 5.0, "reward-2": 5.0}
    # Twenty, and the models disagree on the last alone.
    last = factories.make_application_request(project, starter, "x" * 20, key="odd", question="Odd?")
    ApplicationRequest.objects.filter(pk=last.pk).update(scores={first.name: 20.0, second.name: 1.0})
    # A tenth of twenty are two: the lowest mean scores, and the greatest spreads.
    assert select(feedback_settings, engines) == {
        "r0": "low_reward",
        "r1": "low_reward",
        "odd": "disagreement",
        "r18": "disagreement",
    }
    assert not ApplicationRequest.objects.filter(examined_at=None).exists()


def test_a_model_server_that_is_away_is_waited_for_and_nothing_is_doubled(
    feedback_settings: FeedbackSettings,
    project: Project,
    starter: Checkpoint,
    carol: User,
    engines: Engines,
    server: FakeServer,
):
    rule(project, carol, SelectionReason.RANDOM, 1.0)
    requests(project, starter, 2)
    server.trouble = lambda request: httpx.Response(503, json={"error": {"message": "starting"}})
    assert select(feedback_settings, engines) == {}
    assert feedback_settings.state == JobState.WAITING
    server.trouble = lambda request: None
    assert set(select(feedback_settings, engines)) == {"r0", "r1"}
    assert (Prompt.objects.count(), Completion.objects.count()) == (2, 4)
    assert feedback_settings.state == JobState.FINISHED


def test_the_sweep_wakes_a_selection_that_has_something_to_decide(
    feedback_settings: FeedbackSettings, project: Project, starter: Checkpoint, carol: User, sent
):
    sweep_selection()
    requests(project, starter, 1)
    sweep_selection()
    assert sent == []
    rule(project, carol, SelectionReason.RANDOM, 1.0)
    sweep_selection()
    assert sent == [(TrainingTask.SELECT_FEEDBACK, [feedback_settings.pk])]


def test_what_comes_with_a_project_without_preferences_is_a_single_response(
    feedback_settings: FeedbackSettings,
    project: Project,
    starter: Checkpoint,
    carol: User,
    engines: Engines,
):
    Project.objects.filter(pk=project.pk).update(ask_verdict=False)
    rule(project, carol, SelectionReason.RANDOM, 1.0)
    requests(project, starter, 1)
    select(feedback_settings, engines)
    assert FeedbackComparison.objects.get().comparison.size == 1


def test_deleting_a_user_takes_what_nobody_has_seen_and_says_what_remains(
    feedback_settings: FeedbackSettings,
    project: Project,
    starter: Checkpoint,
    carol: User,
    alice: User,
    engines: Engines,
):
    rule(project, carol, SelectionReason.RANDOM, 1.0)
    stored = requests(project, starter, 3)
    names = [pseudonym(project.pk, "anna"), pseudonym(project.pk, "anna"), pseudonym(project.pk, "ben")]
    for request, name in zip(stored, names, strict=True):
        ApplicationRequest.objects.filter(pk=request.pk).update(pseudonym=name)
    select(feedback_settings, engines)
    first = FeedbackComparison.objects.get(request__key="r0").comparison
    factories.make_judgment(first, alice)
    erased = erase_user(project=project, user_id="anna", erased_by=carol)
    assert erased == Erased(requests=2, feedback=0, comparisons=1, remaining=1)
    assert sorted(prompt.last_question for prompt in Prompt.objects.all()) == ["What is 0?", "What is 2?"]
    assert FeedbackComparison.objects.get(comparison=first).request is None
