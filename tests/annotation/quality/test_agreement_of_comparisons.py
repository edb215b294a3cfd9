"""The agreement kept with a comparison: the share of agreeing pairs of annotators, whoever wrote last."""

import importlib
import uuid
from functools import partial

import pytest
from django.apps import apps
from django.db import transaction

from annotation.choices import Purpose, TaskName, Verdict
from annotation.models import Comparison, Judgment, Project, User
from annotation.services.judgments.submission import record_vote, submit_judgment
from annotation.tasks import record_agreement
from tests import factories
from tests.annotation.assignments.test_concurrency import at_once
from tests.annotation.judgments.answers import completions_of
from tests.records import judgment_record

pytestmark = pytest.mark.django_db


@pytest.fixture
def project(project: Project) -> Project:
    project.overlap = 3
    project.save()
    return project


@pytest.fixture
def dave(project: Project) -> User:
    user = factories.make_user("dave")
    project.memberships.create(user=user)
    return user


def agreement(comparison: Comparison) -> float | None:
    return Comparison.objects.get(pk=comparison.pk).agreement


def test_it_is_the_share_of_agreeing_pairs_of_annotators(
    project: Project, alice: User, bob: User, dave: User
):
    comparison = factories.make_comparison(project)
    factories.make_judgment(comparison, alice, (1, 2))
    assert agreement(comparison) is None
    factories.make_judgment(comparison, bob, (2, 1))
    assert agreement(comparison) == 0
    # Of the pairs alice-bob, alice-dave and bob-dave the last agrees.
    factories.make_judgment(comparison, dave, (2, 1))
    assert agreement(comparison) == pytest.approx(1 / 3)


def test_a_ranking_of_three_counts_each_pair_of_responses(project: Project, alice: User, bob: User):
    comparison = factories.make_comparison(project, ("One.", "Two.", "Three."))
    factories.make_judgment(comparison, alice, (1, 2, 3))
    # They agree on the pairs of the third with the first and with the second; the second ties with the first.
    factories.make_judgment(comparison, bob, (1, 1, 2))
    assert agreement(comparison) == pytest.approx(2 / 3)


def test_a_revision_changes_it(project: Project, alice: User, bob: User):
    comparison = factories.make_comparison(project)
    factories.make_judgment(comparison, alice, (1, 2))
    judgment = factories.make_judgment(comparison, bob, (2, 1))
    first, second = completions_of(comparison)
    submit_judgment(
        assignment=judgment.assignment,
        annotator=bob,
        answer=judgment_record(verdict=Verdict.RANKED, ranks={first.pk: 1, second.pk: 2}),
        idempotency_key=uuid.uuid4(),
    )
    assert agreement(comparison) == 1


def test_who_cannot_judge_says_nothing(project: Project, alice: User, bob: User):
    comparison = factories.make_comparison(project)
    factories.make_judgment(comparison, alice, (1, 2))
    factories.make_judgment(comparison, bob, (), verdict=Verdict.CANNOT_JUDGE)
    assert agreement(comparison) is None


def test_a_vote_beside_the_queue_counts_where_one_annotator_was_asked_for(
    project: Project, alice: User, bob: User
):
    project.overlap = 1
    project.save()
    comparison = factories.make_comparison(project)
    factories.make_judgment(comparison, alice, (1, 2))
    first, second = completions_of(comparison)
    record_vote(
        comparison=comparison,
        voter=bob,
        shown=[first.pk, second.pk],
        answer=judgment_record(verdict=Verdict.RANKED, ranks={first.pk: 2, second.pk: 1}),
        idempotency_key=uuid.uuid4(),
    )
    assert agreement(comparison) == 0


def test_gold_has_none(project: Project, alice: User, bob: User):
    gold = factories.make_gold_item(project)
    assert gold.purpose == Purpose.GOLD
    assert agreement(gold) is None


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_two_who_submit_at_once_see_each_other(
    project: Project, alice: User, bob: User, sent: list[tuple[str, list[int]]]
):
    for _ in range(5):
        sent.clear()
        comparison = factories.make_comparison(project)
        first, second = completions_of(comparison)
        leased = [factories.lease_to(comparison, user) for user in (alice, bob)]
        outcomes = at_once(
            *(
                partial(
                    submit_judgment,
                    assignment=assignment,
                    annotator=assignment.annotator,
                    answer=judgment_record(verdict=Verdict.RANKED, ranks={first.pk: 1, second.pk: 2}),
                    idempotency_key=uuid.uuid4(),
                )
                for assignment in leased
            )
        )
        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        # Who met the other's lock did not wait, and left it to a worker.
        left = [arguments for task, arguments in sent if task == TaskName.RECORD_AGREEMENT]
        assert left in ([], [[comparison.pk]], [[comparison.pk]] * 2)
        for arguments in left:
            record_agreement(*arguments)
        assert agreement(comparison) == 1


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_worker_records_it_where_the_comparison_is_locked(
    project: Project, alice: User, bob: User, sent: list[tuple[str, list[int]]]
):
    comparison = factories.make_comparison(project)
    factories.make_judgment(comparison, alice, (1, 2))
    assignment = factories.lease_to(comparison, bob)
    first, second = completions_of(comparison)
    with transaction.atomic():
        Comparison.objects.select_for_update(no_key=True).get(pk=comparison.pk)
        (judgment,) = at_once(
            partial(
                submit_judgment,
                assignment=assignment,
                annotator=bob,
                answer=judgment_record(verdict=Verdict.RANKED, ranks={first.pk: 1, second.pk: 2}),
                idempotency_key=uuid.uuid4(),
            )
        )
    assert isinstance(judgment, Judgment)
    # Every fiftieth annotation of the database also has a learning curve drawn.
    assert sent.count((TaskName.RECORD_AGREEMENT, [comparison.pk])) == 1
    assert agreement(comparison) is None
    record_agreement(comparison.pk)
    assert agreement(comparison) == 1


def test_the_migration_fills_what_was_judged_before(project: Project, alice: User, bob: User, dave: User):
    apart, alone = (factories.make_comparison(project, ("One.", "Two.", "Three.")) for _ in range(2))
    for who, ranks in ((alice, (1, 2, 3)), (bob, (1, 1, 2)), (dave, (3, 2, 1))):
        factories.make_judgment(apart, who, ranks)
    factories.make_judgment(alone, alice, (1, 2, 3))
    # Of 9 pairs (3 of annotators × 3 of responses) alice and bob agree on 2.
    assert agreement(apart) == pytest.approx(2 / 9)
    Comparison.objects.update(agreement=None)
    migration = importlib.import_module("annotation.migrations.0027_fill_agreement")
    migration.fill(apps, None)
    assert agreement(apart) == pytest.approx(2 / 9)
    assert agreement(alone) is None
