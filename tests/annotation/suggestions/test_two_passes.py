"""Two passes: the first stands as it was, the final one supersedes it, each decision is kept."""

import uuid

import pytest

from annotation.choices import HelpArm, Purpose, SuggestionKind
from annotation.errors import AnsweredElsewhere, InvalidAnswer, NotAllowed, StaleAnswer
from annotation.models import HelpReveal, Judgment, Project, SuggestionSet, User
from annotation.selectors.suggestions import oldest_open_reveal, planted_suggestions, suggestions_for
from annotation.services.judgments.submission import submit_judgment
from annotation.services.suggestions import SuggestionInput, set_help
from tests import factories
from tests.annotation.suggestions.help_scene import (
    compare,
    finish,
    prefers,
    ranking,
    span,
    suggest,
    switch_on,
)
from tests.refusals import refused

pytestmark = pytest.mark.django_db


def test_the_final_pass_supersedes_the_first_and_both_stay(project: Project, alice: User, carol: User):
    switch_on(project, carol)
    comparison = compare(project)
    wrong, better = suggest(comparison, span(comparison, "Never boil it."), prefers(comparison, (2, 1)))
    first = factories.make_judgment(comparison, alice, (1, 2), strength=3)
    reveal = oldest_open_reveal(project, alice)
    assert reveal is not None
    assert (reveal.arm, reveal.first_judgment) == (HelpArm.HELPED, first)
    final = finish(
        reveal, alice, ranking(comparison, (1, 2), strength=3), {wrong.pk: "accepted", better.pk: "rejected"}
    )
    assert final.supersedes == first
    assert list(Judgment.objects.current()) == [final]
    # The accepted span was added by the server; the rejected preference was not.
    assert [flag.quote for flag in final.span_flags.all()] == ["Never boil it."]
    assert first.span_flags.count() == 0
    assert (final.verdict, final.strength) == ("ranked", 3)
    reveal.refresh_from_db()
    assert reveal.final_judgment == final
    assert reveal.finished_at is not None
    assert {row.suggestion_id: row.decision for row in reveal.decisions.all()} == {
        wrong.pk: "accepted",
        better.pk: "rejected",
    }
    assert oldest_open_reveal(project, alice) is None


def test_an_accepted_preference_turns_the_ranking(project: Project, alice: User, carol: User):
    switch_on(project, carol)
    comparison = compare(project)
    [better] = suggest(comparison, prefers(comparison, (2, 1)))
    factories.make_judgment(comparison, alice, (1, 2), strength=4)
    reveal = HelpReveal.objects.get()
    final = finish(reveal, alice, ranking(comparison, (1, 2), strength=4), {better.pk: "accepted"})
    ids = list(comparison.candidates.order_by("index").values_list("completion_id", flat=True))
    assert {row.completion_id: row.rank for row in final.ranks.all()} == {ids[0]: 2, ids[1]: 1}
    assert final.strength == 2


def test_an_accepted_partial_ranking_of_two_is_no_pair(project: Project, alice: User, carol: User):
    switch_on(project, carol)
    comparison = compare(project, ["a", "b", "c", "d"])
    ids = list(comparison.candidates.order_by("index").values_list("completion_id", flat=True))
    partial = SuggestionInput(kind=SuggestionKind.PREFERENCE, verdict="ranked", ranks={ids[1]: 1, ids[3]: 2})
    [better] = suggest(comparison, partial)
    assert better.ranks == {str(ids[1]): 1, str(ids[3]): 2}
    factories.make_judgment(comparison, alice, (1, 2, 3, 4))
    reveal = HelpReveal.objects.get()
    final = finish(reveal, alice, ranking(comparison, (1, 2, 3, 4)), {better.pk: "accepted"})
    assert {row.completion_id: row.rank for row in final.ranks.all()} == {ids[1]: 1, ids[3]: 2}
    assert final.strength is None


def test_what_was_accepted_and_then_altered_on_the_page_counts_as_changed(
    project: Project, alice: User, carol: User
):
    switch_on(project, carol)
    comparison = compare(project)
    [wrong] = suggest(comparison, span(comparison, "Never boil it."))
    factories.make_judgment(comparison, alice)
    reveal = HelpReveal.objects.get()
    final = finish(reveal, alice, ranking(comparison, (1, 2)), {wrong.pk: "accepted"}, is_applied=True)
    assert final.span_flags.count() == 0
    assert reveal.decisions.get().decision == "changed"


def test_every_suggestion_is_decided_before_the_final_pass_is_stored(
    project: Project, alice: User, carol: User
):
    switch_on(project, carol)
    comparison = compare(project)
    suggestion, other = suggest(comparison, span(comparison, "Two minutes."), span(comparison, "Ten hours."))
    first = factories.make_judgment(comparison, alice)
    reveal = HelpReveal.objects.get()
    answer = ranking(comparison, (1, 2))
    with refused("suggestion_undecided", InvalidAnswer, left=1):
        finish(reveal, alice, answer, {suggestion.pk: "accepted"})
    with refused("unknown_suggestion", InvalidAnswer):
        finish(reveal, alice, answer, {suggestion.pk: "accepted", other.pk: "rejected", 10**9: "accepted"})
    with refused("suggestion_undecided", InvalidAnswer):
        finish(reveal, alice, answer, {suggestion.pk: "accepted", other.pk: "maybe"})
    reveal.refresh_from_db()
    assert reveal.finished_at is None
    assert list(Judgment.objects.all()) == [first]


def test_the_first_pass_cannot_be_changed_while_suggestions_wait(project: Project, alice: User, carol: User):
    switch_on(project, carol)
    comparison = compare(project)
    suggest(comparison, span(comparison, "Two minutes."))
    first = factories.make_judgment(comparison, alice)
    with refused("suggestions_undecided", InvalidAnswer):
        submit_judgment(
            assignment=first.assignment,
            annotator=alice,
            answer=ranking(comparison, (2, 1)),
            idempotency_key=uuid.uuid4(),
        )
    # Switched off, nothing waits any more.
    set_help(project=project, is_active=False, by=carol)
    first.assignment.comparison.project.refresh_from_db()
    submit_judgment(
        assignment=first.assignment,
        annotator=alice,
        answer=ranking(comparison, (2, 1)),
        idempotency_key=uuid.uuid4(),
    )
    assert Judgment.objects.current().get().supersedes == first


def test_a_final_pass_sent_twice_is_stored_once_and_another_is_refused(
    project: Project, alice: User, bob: User, carol: User
):
    switch_on(project, carol)
    comparison = compare(project)
    [wrong] = suggest(comparison, span(comparison, "Two minutes."))
    factories.make_judgment(comparison, alice)
    reveal, key = HelpReveal.objects.get(), uuid.uuid4()
    answer = ranking(comparison, (1, 2))
    with refused("assigned_to_another", NotAllowed):
        finish(reveal, bob, answer, {wrong.pk: "rejected"})
    once = finish(reveal, alice, answer, {wrong.pk: "rejected"}, idempotency_key=key)
    again = finish(reveal, alice, answer, {wrong.pk: "rejected"}, idempotency_key=key)
    assert again == once
    with refused("submitted_since", AnsweredElsewhere):
        finish(reveal, alice, answer, {wrong.pk: "accepted"})
    assert reveal.decisions.get().decision == "rejected"


def test_the_control_arm_sees_nothing_and_its_first_pass_is_final(project: Project, alice: User, carol: User):
    switch_on(project, carol, control_share=1.0)
    comparison = compare(project)
    suggest(comparison, span(comparison, "Two minutes."))
    judgment = factories.make_judgment(comparison, alice)
    reveal = HelpReveal.objects.get()
    assert (reveal.arm, reveal.first_judgment, reveal.final_judgment) == ("control", judgment, None)
    assert oldest_open_reveal(project, alice) is None
    # A later share changes no arm that was drawn.
    switch_on(project, carol, control_share=0.0)
    assert HelpReveal.objects.get().arm == "control"


def test_arms_hang_on_the_annotator_and_the_comparison_in_the_share_that_was_set(
    project: Project, alice: User, bob: User, carol: User
):
    from annotation.services.judgments.submission import arm_of

    switch_on(project, carol, control_share=0.3)
    arms = {
        person: [arm_of(project=project, annotator=person, comparison_id=pk) for pk in range(1, 2001)]
        for person in (alice, bob)
    }
    assert arms[alice] == [
        arm_of(project=project, annotator=alice, comparison_id=pk) for pk in range(1, 2001)
    ]
    # Binomial: 0.3 of 2000 with a deviation of 0.0102; five of them on either side.
    for drawn in arms.values():
        assert 0.249 < drawn.count(HelpArm.CONTROL) / 2000 < 0.351
    both = sum(
        first == second == HelpArm.CONTROL for first, second in zip(arms[alice], arms[bob], strict=True)
    )
    assert 0.058 < both / 2000 < 0.122


@pytest.mark.parametrize("case", ["off", "no suggestions", "retest", "qualification", "gold with feedback"])
def test_no_help_where_it_would_measure_something_else(case: str, project: Project, alice: User, carol: User):
    switch_on(project, carol)
    comparison = compare(project)
    if case != "no suggestions":
        suggest(comparison, span(comparison, "Two minutes."))
    if case == "off":
        set_help(project=project, is_active=False, by=carol)
        project.refresh_from_db()
    assignment = factories.lease_to(comparison, alice)
    if case == "qualification":
        assignment.comparison.purpose = Purpose.QUALIFICATION
    elif case == "gold with feedback":
        assignment.comparison.purpose = Purpose.GOLD
        assignment.comparison.project.gold_feedback = True
    elif case == "retest":
        before = factories.make_judgment(compare(project), carol).assignment
        type(assignment).objects.filter(pk=assignment.pk).update(slot=None, retest_of=before)
    submit_judgment(
        assignment=assignment,
        annotator=alice,
        answer=ranking(comparison, (1, 2)),
        idempotency_key=uuid.uuid4(),
    )
    assert not HelpReveal.objects.filter(assignment=assignment).exists()


def test_planted_suggestions_are_told_only_where_the_project_says_so(
    project: Project, alice: User, carol: User
):
    switch_on(project, carol)
    comparison = compare(project)
    right, planted = suggest(
        comparison,
        span(comparison, "Two minutes."),
        span(comparison, "Ten hours.", original={"quote": "Never boil it."}),
    )
    factories.make_judgment(comparison, alice)
    reveal = oldest_open_reveal(project, alice)
    assert reveal is not None
    assert planted_suggestions(reveal) == []
    finish(reveal, alice, ranking(comparison, (1, 2)), {right.pk: "accepted", planted.pk: "rejected"})
    assert planted_suggestions(HelpReveal.objects.get()) == []
    set_help(project=project, is_active=True, by=carol, tells_planted=True)
    assert [
        (suggestion.pk, decision) for suggestion, decision in planted_suggestions(HelpReveal.objects.get())
    ] == [(planted.pk, "rejected")]


def test_suggestions_are_stored_once_whoever_computes_them(project: Project):
    comparison = compare(project)
    suggest(comparison, span(comparison, "Two minutes."))
    suggest(comparison, span(comparison, "Ten hours."))
    assert SuggestionSet.objects.count() == 1
    assert [suggestion.quote for suggestion in suggestions_for(comparison)] == ["Two minutes."]


def test_suggestions_of_parts_that_are_no_longer_asked_are_not_shown(project: Project):
    comparison = compare(project)
    suggest(comparison, span(comparison, "Two minutes."), prefers(comparison, (1, 2)))
    project.ask_span_flags = False
    project.save()
    comparison.project = project
    assert [suggestion.kind for suggestion in suggestions_for(comparison)] == ["preference"]


def test_a_span_that_does_not_stand_on_its_quote_is_refused(project: Project):
    from dataclasses import replace

    comparison = compare(project)
    good = span(comparison, "Two minutes.")
    with refused("span_off_quote", StaleAnswer):
        suggest(comparison, replace(good, start=1, end=13))
    with refused("span_outside_response", InvalidAnswer):
        suggest(comparison, replace(good, end=10_000))
    with refused("unknown_category", InvalidAnswer):
        suggest(comparison, replace(good, category_id=project.categories.get(key="missing").pk))
    assert not SuggestionSet.objects.exists()


def test_only_a_manager_switches_help_on(project: Project, alice: User):
    with refused("manager_changes_suggestions", NotAllowed):
        set_help(project=project, is_active=True, by=alice)
    assert not project.has_help
