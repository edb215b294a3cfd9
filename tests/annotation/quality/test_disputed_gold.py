"""Gold that annotators agreed on never punishes a group that consistently prefers otherwise."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from django.utils import timezone

from annotation.choices import Purpose, QualificationState, ReviewReason, Role, Verdict
from annotation.models import Comparison, Membership, Project, Review, User
from annotation.selectors.eligibility import qualification_of
from annotation.selectors.judged import gold_answered_in
from annotation.selectors.queues import known_items
from annotation.services.quality import mark_as_gold
from tests import factories
from tests.annotation.labelling.work import answer, lease
from tests.records import judgment_record

pytestmark = pytest.mark.django_db

FIRST, SECOND = (1, 2), (2, 1)


def group_of(project: Project, name: str, members: Sequence[str]) -> list[User]:
    people = [factories.make_user(member) for member in members]
    for person in people:
        Membership.objects.create(project=project, user=person, role=Role.ANNOTATOR, group=name)
    return people


def gold_of_agreement(project: Project, judge: User, manager: User, purpose: Purpose) -> Comparison:
    """A known item whose answer one annotator gave: the first response is better."""
    work = factories.make_comparison(project)
    factories.make_judgment(work, judge, FIRST)
    return mark_as_gold(comparison=work, created_by=manager, purpose=purpose)


def answer_known(project: Project, annotator: User, known: Comparison, ranks: Sequence[int]) -> None:
    assignment = lease(project, annotator)
    assert assignment.comparison == known
    ids = known.candidates.order_by("index").values_list("completion_id", flat=True)
    answer(assignment, judgment_record(verdict=Verdict.RANKED, ranks=dict(zip(ids, ranks, strict=True))))


@pytest.fixture
def known(project: Project, alice: User, carol: User) -> Comparison:
    """A qualification item that is all of its set: the first answer is that of alice's agreement."""
    project.qualification_pass_share = 1.0
    project.save()
    Membership.objects.filter(project=project, user=alice).update(qualified_at=timezone.now())
    return gold_of_agreement(project, alice, carol, Purpose.QUALIFICATION)


def outcomes(project: Project) -> dict[str, list[bool]]:
    """First answers to known items that count, by annotator."""
    rights_by_name: dict[str, list[bool]] = {}
    for outcome in gold_answered_in(project):
        rights_by_name.setdefault(User.objects.get(pk=outcome.annotator).username, []).append(outcome.right)
    return rights_by_name


def test_a_group_that_answers_otherwise_as_one_is_neither_wrong_nor_kept_out(
    project: Project, alice: User, carol: User, known: Comparison
):
    """Three poets prefer the second response to the known first one; a clerk among three errs alone.

    By hand: of the poets' answers two of two are the same and contradict the known one, so none counts and
    nothing is left to fail by. Of the clerks' one of two contradicts it, not more than half: both count.
    """
    factories.make_comparison(project)
    poets = group_of(project, "poets", ["ann", "ben", "cid"])
    clerks = group_of(project, "clerks", ["dan", "eve", "fay"])
    answer_known(project, poets[0], known, SECOND)
    assert outcomes(project) == {"ann": [False]}  # one alone may be careless
    assert qualification_of(project, poets[0]).state == QualificationState.FAILED
    answer_known(project, poets[1], known, SECOND)
    answer_known(project, clerks[0], known, SECOND)
    answer_known(project, clerks[1], known, FIRST)
    assert outcomes(project) == {"dan": [False], "eve": [True]}
    states = {
        person.username: qualification_of(project, person).state for person in (*poets[:2], *clerks[:2])
    }
    passed, failed = QualificationState.PASSED, QualificationState.FAILED
    assert states == {"ann": passed, "ben": passed, "dan": failed, "eve": passed}
    [item] = known_items(project)
    assert (item.answered, item.right, item.disputed_by) == (4, 1, ["poets"])


def test_what_a_reviewer_decided_counts_for_everyone(project: Project, carol: User, known: Comparison):
    factories.make_comparison(project)
    poets = group_of(project, "poets", ["ann", "ben", "cid"])
    for poet in poets[:2]:
        answer_known(project, poet, known, SECOND)
    assert outcomes(project) == {}
    work = Comparison.objects.get(completion_set=known.completion_set, purpose=Purpose.WORK)
    Review.objects.create(
        comparison=work,
        reason=ReviewReason.REQUESTED,
        reviewer=carol,
        verdict=Verdict.RANKED,
        ranks=known.gold_answer.ranks,
        decided_at=timezone.now() - timedelta(minutes=1),
    )
    assert outcomes(project) == {"ann": [False], "ben": [False]}
