"""The guard of live learning: a signal asks people, and their answers let it go on or take it back."""

import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.models import Project, User
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from tests.api.scene import Asker
from tests.records import judgment_record
from tests.training.engine.fake_server import FakeServer
from tests.training.live.live_scene import EVERY, label, waiting, work
from training.choices import LiveState, QuestionOutcome
from training.models import LiveLearning, LiveUpdate, QuestionPair, RunQuestion
from training.selectors.live import policy_now
from training.services.live import set_live

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]


def updates(project: Project, annotator: User, learning: LiveLearning, count: int) -> None:
    for _ in range(count):
        label(project, annotator, EVERY)
        work(learning)


def answer(project: Project, annotator: User, *, now_wins: bool) -> None:
    """Answer what is at the head of the queue, which must be a pair of the guard."""
    assignment = assign_next(project=project, annotator=annotator)
    assert assignment is not None
    pair = QuestionPair.objects.get(comparison=assignment.comparison)
    ranks = {
        pk: 1 if (pk == pair.now_id) == now_wins else 2
        for pk in assignment.comparison.candidates.values_list("completion_id", flat=True)
    }
    submit_judgment(
        assignment=assignment,
        annotator=annotator,
        answer=judgment_record(verdict="ranked", ranks=ranks),
        idempotency_key=uuid.uuid4(),
    )


def test_nothing_is_asked_while_the_policy_stays_near(
    project: Project, learning: LiveLearning, alice: User, fake_server: FakeServer
):
    fake_server.kl = [1.0]
    updates(project, alice, learning, 4)
    assert not RunQuestion.objects.exists()


def test_a_signal_asks_eight_blind_pairs_on_training_prompts_and_no_update_begins(
    project: Project, asked: LiveLearning, bob: User
):
    question = RunQuestion.objects.get()
    assert (question.step, question.then_step, question.outcome) == (4, 0, QuestionOutcome.OPEN)
    assert [signal["name"] for signal in question.signals] == ["kl"]
    assert QuestionPair.objects.count() == 8
    splits = QuestionPair.objects.values_list("comparison__prompt__split", flat=True)
    assert set(splits) == {"train"}
    answer(project, bob, now_wins=True)
    label(project, bob, 2 * EVERY)
    work(asked)
    assert LiveUpdate.objects.count() == 4


def test_a_question_and_its_answers_stand_on_the_page_and_in_the_api(
    project: Project, asked: LiveLearning, bob: User, carol: User, client_of: Callable[[User], Client]
):
    answer(project, bob, now_wins=True)
    answer(project, bob, now_wins=False)
    page = client_of(carol).get(reverse("live", args=[project.slug])).content.decode()
    assert "Update 4 against the policy of the round" in page
    assert "2 of 8 pairs answered: 1 better, 1 worse, 0 equal" in page
    [question] = Asker(carol).get("/projects/tea/live/").json()["questions"]
    assert (question["step"], question["then_step"], question["outcome"]) == (4, 0, "open")
    assert (question["pairs"], question["wins"], question["losses"]) == (8, 1, 1)


def test_the_same_height_asks_once(
    project: Project, asked: LiveLearning, alice: User, fake_server: FakeServer
):
    RunQuestion.objects.update(outcome=QuestionOutcome.FINE)
    updates(project, alice, asked, 2)
    assert RunQuestion.objects.count() == 1
    fake_server.kl = [13.0]
    updates(project, alice, asked, 1)
    assert RunQuestion.objects.count() == 2


def test_answers_that_now_is_fine_let_learning_go_on(project: Project, asked: LiveLearning, bob: User):
    while RunQuestion.objects.get().outcome == QuestionOutcome.OPEN:
        answer(project, bob, now_wins=True)
        work(asked)
    assert RunQuestion.objects.get().outcome == QuestionOutcome.FINE
    assert asked.is_active
    assert LiveUpdate.objects.filter(state=LiveState.SERVED).count() >= 4


def test_answers_that_now_is_worse_take_it_back_and_stop_it_with_a_reason(
    project: Project, asked: LiveLearning, bob: User, carol: User
):
    while RunQuestion.objects.get().outcome == QuestionOutcome.OPEN:
        answer(project, bob, now_wins=False)
        work(asked)
    assert RunQuestion.objects.get().outcome == QuestionOutcome.WORSE
    assert not asked.is_active
    assert "update 4" in asked.stopped_because
    assert set(LiveUpdate.objects.values_list("state", flat=True)) == {LiveState.WITHDRAWN}
    round_ = project.rounds.get()
    assert policy_now(round_) == round_.policy
    assert waiting(project, "tea-live-4") == 0
    # Switched on again, it learns from all judgments of the round, from where it went back to.
    again = set_live(project=project, by=carol, is_active=True, every=EVERY, ahead=4)
    assert again.stopped_because == ""
    work(again)
    newest = LiveUpdate.objects.first()
    assert (newest.number, newest.state, newest.run.parent) == (5, LiveState.SERVED, None)


def test_without_an_answer_in_time_it_goes_back_and_stops(project: Project, asked: LiveLearning):
    RunQuestion.objects.update(asked_at=timezone.now() - timedelta(minutes=61))
    work(asked)
    assert RunQuestion.objects.get().outcome == QuestionOutcome.UNANSWERED
    assert not asked.is_active
    assert policy_now(project.rounds.get()).kind == "starter"
