"""Gold items: mixed in unseen, compared with what is known, never learned from."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from annotation.choices import AssignmentState, Purpose, Verdict
from annotation.errors import InvalidAnswer, NotAllowed, Refusal
from annotation.models import Assignment, AuditEntry, Comparison, GoldAnswer, Project, User
from annotation.selectors import access
from annotation.selectors.known_answers import feedback_for, gold_outcome
from annotation.services.assignments.leases import expire_leases, release_assignment, skip_assignment
from annotation.services.assignments.next import assign_next
from annotation.services.quality import create_gold_item, mark_as_gold, retire_gold_item
from tests import factories
from tests.annotation.labelling.work import answer, in_candidate_order, lease, reversed_order, work
from tests.records import judgment_record

pytestmark = pytest.mark.django_db


def gold_project(project: Project, share: float = 1.0, **fields: object) -> Project:
    for name, value in {"gold_share": share, **fields}.items():
        setattr(project, name, value)
    project.save()
    return project


def ids_of(comparison: Comparison) -> list[int]:
    return list(comparison.candidates.order_by("index").values_list("completion_id", flat=True))


def leased_gold(project: Project, annotator: User, gold: Comparison) -> Assignment:
    """With a share of 1 whoever asks gets the gold item, as long as there is work beside it."""
    gold_project(project)
    factories.make_comparison(project)
    assignment = lease(project, annotator)
    assert assignment.comparison == gold
    return assignment


def test_gold_takes_nobodys_place_and_is_never_in_the_queue(project: Project, alice: User, bob: User):
    gold = factories.make_gold_item(project)
    assert assign_next(project=project, annotator=alice) is None  # no work, so no gold in its place
    first = leased_gold(project, alice, gold)
    second = lease(project, bob)
    assert (first.slot, second.slot) == (None, None)
    assert second.comparison == gold
    gold.refresh_from_db()
    assert gold.open_slots == 0


@pytest.mark.parametrize("end", ["release", "skip", "expire", "submit"])
def test_however_a_lease_of_gold_ends_no_place_is_opened(project: Project, alice: User, end: str):
    gold = factories.make_gold_item(project)
    assignment = leased_gold(project, alice, gold)
    if end == "release":
        release_assignment(assignment=assignment, annotator=alice)
    elif end == "skip":
        skip_assignment(assignment=assignment, annotator=alice, reason="")
    elif end == "submit":
        answer(assignment)
    else:
        Assignment.objects.update(lease_expires_at="2020-01-01T00:00Z")
        assert expire_leases(project=project) == 1
    gold.refresh_from_db()
    assert gold.open_slots == 0


def test_nobody_gets_a_gold_item_twice_and_who_gave_it_back_may(project: Project, alice: User):
    gold = factories.make_gold_item(project)
    release_assignment(assignment=leased_gold(project, alice, gold), annotator=alice)
    again = lease(project, alice)
    assert again.comparison == gold
    answer(again)
    assert lease(project, alice).comparison.purpose == Purpose.WORK


def test_the_share_of_gold_is_about_what_the_project_says(project: Project, alice: User):
    gold_project(project, 0.3)
    # As many of each as may be drawn.
    for _ in range(32):
        factories.make_gold_item(project)
    for _ in range(55):
        factories.make_comparison(project)
    drawn = Counter(assignment.comparison.purpose for assignment in work(project, alice, 60))
    # Binomial with n = 60, p = 0.3: outside of 5 to 32 with a chance below 1 in 10,000.
    assert 5 <= drawn[Purpose.GOLD] <= 32
    assert drawn[Purpose.GOLD] + drawn[Purpose.WORK] == 60


def test_without_a_share_there_is_no_gold(project: Project, alice: User):
    gold_project(project, 0.0)
    for _ in range(5):
        factories.make_gold_item(project)
        factories.make_comparison(project)
    assert {assignment.comparison.purpose for assignment in work(project, alice, 5)} == {Purpose.WORK}


def test_two_people_do_not_get_gold_on_the_same_turns(project: Project, alice: User, bob: User):
    gold_project(project, 0.5, overlap=2)
    for _ in range(16):
        factories.make_gold_item(project)
        factories.make_comparison(project)
    turns = [
        [assignment.comparison.purpose == Purpose.GOLD for assignment in work(project, annotator, 16)]
        for annotator in (alice, bob)
    ]
    assert turns[0] != turns[1]  # alike with a chance of 2 ** -16


@pytest.mark.parametrize(
    ("known", "answer_ranks", "right"),
    [
        ((1, 2), (1, 2), True),
        ((1, 2), (2, 1), False),
        ((1, 2, 3), (1, 2, 3), True),
        ((1, 2, 3), (1, 3, 2), False),
        ((1, 2, 3), (1, 2, 2), False),  # the last pair is known, and was not decided
        ((1, 2, 2), (1, 2, 3), True),  # the known tie leaves that pair open
        ((1, 2, 2), (1, 3, 2), True),
        ((1, 2, 2), (2, 1, 3), False),
        ((1, 1, 2), (1, 1, 2), True),
    ],
)
def test_right_is_who_decides_every_known_pair_the_same_way(
    project: Project, alice: User, known: tuple[int, ...], answer_ranks: tuple[int, ...], right: bool
):
    gold = factories.make_gold_item(project, known)
    assignment = leased_gold(project, alice, gold)
    ranks = dict(zip(ids_of(gold), answer_ranks, strict=True))
    judgment = answer(assignment, judgment_record(verdict=Verdict.RANKED, ranks=ranks))
    assert gold_outcome(judgment).right is right
    assert gold_outcome(judgment).explanation == "Two minutes are enough."


@pytest.mark.parametrize("known", [Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD, Verdict.CANNOT_JUDGE])
@pytest.mark.parametrize(
    "verdict", [Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD, Verdict.CANNOT_JUDGE]
)
def test_a_known_verdict_without_a_winner_is_met_by_itself_alone(
    project: Project, alice: User, known: Verdict, verdict: Verdict
):
    gold = factories.make_gold_item(project, (), verdict=known)
    assignment = leased_gold(project, alice, gold)
    judgment = answer(assignment, judgment_record(verdict=verdict, ranks={}))
    assert gold_outcome(judgment).right is (known == verdict)


def test_a_winner_is_wrong_where_none_is_known_and_the_other_way_round(
    project: Project, alice: User, bob: User
):
    equal = factories.make_gold_item(project, (1, 1), verdict=Verdict.EQUAL)
    assert not gold_outcome(answer(leased_gold(project, alice, equal))).right
    ranked = factories.make_gold_item(project, (1, 2))
    equal_answer = judgment_record(verdict=Verdict.EQUAL, ranks={})
    assert not gold_outcome(answer(leased_gold(project, alice, ranked), equal_answer)).right


def test_feedback_names_the_letters_of_the_page(project: Project, alice: User):
    gold = factories.make_gold_item(project, (2, 1, 2))
    gold_project(project, gold_feedback=True)
    assignment = leased_gold(project, alice, gold)
    assert feedback_for(assignment) is None  # not answered yet
    first, second, third = ids_of(gold)
    Assignment.objects.filter(pk=assignment.pk).update(display_order=[third, second, first])
    assignment.refresh_from_db()
    answer(assignment, reversed_order)
    feedback = feedback_for(assignment)
    assert feedback is not None
    assert (feedback.right, feedback.verdict) == (False, Verdict.RANKED)
    # The second candidate is best, and it stood in the middle: B before A and C.
    assert feedback.ranks == {"A": 2, "B": 1, "C": 2}
    assert feedback.ranking == "B > A = C"
    assert feedback.explanation == "Two minutes are enough."


def test_a_silent_project_gives_no_feedback_and_work_has_none(project: Project, alice: User):
    gold = factories.make_gold_item(project)
    assignment = leased_gold(project, alice, gold)
    answer(assignment)
    assert feedback_for(assignment) is None
    gold_project(project, gold_feedback=True)
    assignment = Assignment.objects.get(pk=assignment.pk)
    assert feedback_for(assignment) is not None
    of_work = lease(project, alice)
    answer(of_work)
    assert feedback_for(of_work) is None


def test_an_answer_that_was_changed_after_feedback_does_not_become_right(project: Project, alice: User):
    gold = factories.make_gold_item(project, (1, 2))
    gold_project(project, gold_feedback=True)
    assignment = leased_gold(project, alice, gold)
    answer(assignment, reversed_order)
    answer(assignment, in_candidate_order)
    feedback = feedback_for(assignment)
    assert feedback is not None
    assert not feedback.right


def test_gold_is_never_among_the_judgments_nor_in_anyones_progress(project: Project, alice: User):
    gold = factories.make_gold_item(project)
    assignment = leased_gold(project, alice, gold)
    answer(assignment)
    assert not access.judgments_current(project).exists()
    progress = access.progress_of(project, alice, 1)
    assert (progress.done, progress.total) == (0, 1)
    answer(lease(project, alice))
    assert access.judgments_current(project).count() == 1
    assert access.progress_of(project, alice, 1).done == 1


def test_gold_opens_no_round_of_its_own_and_the_page_names_the_round_of_the_work(
    project: Project, alice: User
):
    factories.make_comparison(project, round_number=2)
    gold = factories.make_gold_item(project)
    Comparison.objects.filter(pk=gold.pk).update(round_number=7)
    assert access.current_round(project) == 2
    gold_project(project)
    assignment = lease(project, alice)
    assert assignment.comparison == gold
    assert access.round_shown(assignment) == 2


def test_a_known_answer_needs_a_manager_and_must_decide_something(project: Project, alice: User, carol: User):
    prompt = factories.make_prompt(project)
    first, second = completions = factories.make_completions(prompt, ["Two minutes.", "Ten hours."])
    ranked: dict[str, Any] = {"prompt": prompt, "completions": completions, "verdict": Verdict.RANKED}
    with pytest.raises(NotAllowed):
        create_gold_item(**ranked, ranks={first.pk: 1, second.pk: 2}, created_by=alice)
    with pytest.raises(InvalidAnswer):
        create_gold_item(**ranked, ranks={first.pk: 1, second.pk: 1}, created_by=carol)
    with pytest.raises(InvalidAnswer):
        create_gold_item(**ranked, ranks={first.pk: 1}, created_by=carol)
    with pytest.raises(Refusal) as undecided:
        create_gold_item(**{**ranked, "verdict": Verdict.NOT_ASKED}, ranks={}, created_by=carol)
    assert undecided.value.field == "verdict"
    with pytest.raises(Refusal) as queued:
        create_gold_item(**ranked, ranks={first.pk: 1, second.pk: 2}, created_by=carol, purpose=Purpose.WORK)
    assert queued.value.field == "purpose"
    assert not GoldAnswer.objects.exists()
    assert not Comparison.objects.exists()


def test_three_answers_that_all_tie_are_no_known_answer(project: Project, carol: User):
    with pytest.raises(Refusal, match="has no winner"):
        factories.make_gold_item(project, (1, 1, 1))


def test_the_same_completions_become_gold_once(project: Project, carol: User):
    prompt = factories.make_prompt(project)
    completions = factories.make_completions(prompt, ["Two minutes.", "Ten hours."])
    known: dict[str, Any] = {
        "prompt": prompt,
        "completions": completions,
        "verdict": Verdict.EQUAL,
        "ranks": {},
        "created_by": carol,
    }
    create_gold_item(**known)
    with pytest.raises(Refusal, match="already"):
        create_gold_item(**known)
    create_gold_item(**known, purpose=Purpose.QUALIFICATION)
    assert GoldAnswer.objects.count() == 2


def test_a_judged_comparison_becomes_gold_for_those_who_did_not_judge_it(
    project: Project, alice: User, bob: User, carol: User
):
    judged = factories.make_comparison(project)
    with pytest.raises(Refusal, match="still being annotated"):
        mark_as_gold(comparison=judged, created_by=carol)
    factories.make_judgment(judged, alice, (2, 1))
    gold = mark_as_gold(comparison=judged, created_by=carol, explanation="All said so.")
    assert gold.gold_answer.ranks == {str(pk): rank for pk, rank in zip(ids_of(judged), (2, 1), strict=True)}
    gold_project(project)
    factories.make_comparison(project)
    assert lease(project, alice).comparison.purpose == Purpose.WORK
    factories.make_comparison(project)
    assert lease(project, bob).comparison == gold


def test_what_annotators_do_not_agree_on_is_not_known(project: Project, alice: User, bob: User, carol: User):
    project.overlap = 2
    project.save()
    judged = factories.make_comparison(project)
    factories.make_judgment(judged, alice, (1, 2))
    factories.make_judgment(judged, bob, (2, 1))
    with pytest.raises(Refusal, match="reviewer"):
        mark_as_gold(comparison=judged, created_by=carol)


def test_gold_that_ran_out_may_still_be_answered(project: Project, alice: User):
    gold = factories.make_gold_item(project)
    assignment = leased_gold(project, alice, gold)
    Assignment.objects.update(lease_expires_at="2020-01-01T00:00Z")
    expire_leases(project=project)
    answer(assignment)
    assignment.refresh_from_db()
    assert (assignment.state, assignment.slot) == (AssignmentState.SUBMITTED, None)
    gold.refresh_from_db()
    assert gold.open_slots == 0


def test_what_a_page_counts_goes_on_by_one_whatever_was_answered(
    project: Project, alice: User, client_of: Callable[[User], Client]
):
    gold_project(project, share=0.5, retest_share=0.2)
    for _ in range(3):
        factories.make_gold_item(project)
    for _ in range(24):
        factories.make_comparison(project)
    purposes = []
    for number in range(1, 21):
        page = client_of(alice).get(f"/projects/{project.slug}/label/").content.decode()
        counted = re.search(r'<strong class="number">(\d+) of <span data-total>(\d+)</span></strong>', page)
        assert int(counted[1]) == number
        assert int(counted[2]) >= 24
        assignment = Assignment.objects.get(annotator=alice, state=AssignmentState.LEASED)
        purposes.append((assignment.comparison.purpose, assignment.retest_of_id is not None))
        answer(assignment)
    # Gold and a retest were among them, or nothing was shown here.
    assert (Purpose.GOLD, False) in purposes
    assert (Purpose.WORK, True) in purposes


def test_a_manager_gives_the_known_answer_edits_it_and_what_was_answered_counts_by_the_new_one(
    project: Project, alice: User, bob: User, carol: User, client_of: Callable[[User], Client]
):
    comparison = factories.make_comparison(project)
    factories.make_judgment(comparison, alice, (1, 2))
    as_carol, page = client_of(carol), f"/projects/tea/gold/{comparison.pk}/"
    assert as_carol.post(page, {"purpose": "gold"}).status_code == 422
    sent = {"choice": "win:2", "purpose": "gold", "explanation": "Look at the source."}
    assert as_carol.post(page, sent).status_code == 302
    known = GoldAnswer.objects.get()
    first, second = ids_of(known.comparison)
    assert known.ranks == {str(first): 2, str(second): 1}
    assert as_carol.post(page, sent).status_code == 422

    judgment = answer(leased_gold(project, bob, known.comparison), reversed_order)
    page = f"/projects/tea/gold/{known.comparison_id}/"
    assert "Look at the source." in as_carol.get(page).content.decode()
    before = gold_outcome(judgment).right
    other = "win:2" if known.ranks[str(second)] == 2 else "win:1"
    assert as_carol.post(page, {"choice": other, "explanation": "Read B again."}).status_code == 302
    judgment.comparison.gold_answer.refresh_from_db()
    assert gold_outcome(judgment).right is not before
    entry = AuditEntry.objects.get(action="gold.edit")
    assert entry.details["before"]["explanation"] == "Look at the source."


def test_a_retired_item_is_handed_out_to_nobody_until_it_is_used_again(
    project: Project, alice: User, carol: User, client_of: Callable[[User], Client]
):
    gold = factories.make_gold_item(project)
    qualifies = factories.make_gold_item(project, purpose=Purpose.QUALIFICATION)
    gold_project(project, qualification_pass_share=1.0)
    factories.make_comparison(project)
    as_carol = client_of(carol)
    for item in (gold, qualifies):
        assert as_carol.post(f"/projects/tea/gold/{item.pk}/", {"retire": "1"}).status_code == 302
    assert lease(project, alice).comparison.purpose == Purpose.WORK
    assert "retired" in as_carol.get("/projects/tea/gold/").content.decode()
    with pytest.raises(NotAllowed):
        retire_gold_item(known=gold.gold_answer, retired_by=alice)
    assert as_carol.post(f"/projects/tea/gold/{qualifies.pk}/", {"restore": "1"}).status_code == 302
    release_assignment(assignment=Assignment.objects.get(annotator=alice), annotator=alice)
    assert lease(project, alice).comparison == qualifies
