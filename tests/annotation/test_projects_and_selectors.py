"""Projects, members, completions, comparisons, and what people may see of them."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import IntegrityError, transaction

from annotation.choices import CategoryScope, FinishReason, Role
from annotation.errors import Refusal
from annotation.models import Comparison, Completion, Membership, Project, User
from annotation.selectors import access
from annotation.selectors.access import Progress
from annotation.services.assignments.leases import skip_assignment
from annotation.services.assignments.next import assign_next
from annotation.services.projects.projects import add_member, create_project, publish_guideline
from annotation.services.texts import NewCompletion, create_comparison, record_completions
from annotation.text.identity import text_hash
from tests import factories
from tests.refusals import refused

pytestmark = pytest.mark.django_db


# ── Projects ──────────────────────────────────────────────────────────────────────────


def test_a_new_project_has_the_three_categories_and_its_first_guideline(admin: User):
    project = create_project(
        name="Tea", slug="tea", guideline="Be fair.", created_by=admin, overlap=2, lease_minutes=10
    )
    assert (project.overlap, project.lease_minutes) == (2, 10)
    scopes = [(category.key, category.scope) for category in access.categories_of(project)]
    assert scopes == [
        ("irrelevant", CategoryScope.SPAN),
        ("untruthful", CategoryScope.SPAN),
        ("missing", CategoryScope.MISSING),
    ]
    guideline = access.current_guideline(project)
    assert guideline is not None
    assert (guideline.version, guideline.text, guideline.created_by) == (1, "Be fair.", admin)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"slug": "tea"}, "slug"),
        ({"slug": "not a slug"}, "slug"),
        ({"overlap": 0}, "overlap"),
        ({"name": ""}, "name"),
        ({"categories": [{"key": "x", "label": "X", "colour": "red"}]}, "colour"),
    ],
)
def test_a_project_that_cannot_be_is_refused_naming_the_field(
    project: Project, fields: dict[str, Any], field: str
):
    with pytest.raises(Refusal) as refusal:
        create_project(**{"name": "More tea", "slug": "more-tea", **fields})
    assert refusal.value.field == field
    assert Project.objects.count() == 1


def test_guidelines_are_numbered_and_the_same_text_is_not_published_twice(project: Project, carol: User):
    second = publish_guideline(project=project, text="New.", author=carol)
    assert second.version == 2
    assert publish_guideline(project=project, text="New.", author=carol) == second
    # The first text again, after the second, is a change of mind and a third version.
    first_text = project.guidelines.get(version=1).text
    assert publish_guideline(project=project, text=first_text, author=carol).version == 3
    with refused("guideline_empty"):
        publish_guideline(project=project, text=" \n", author=carol)


def test_adding_a_member_again_changes_the_role(project: Project, alice: User):
    add_member(project=project, user=alice, role=Role.MANAGER)
    assert Membership.objects.get(project=project, user=alice).role == Role.MANAGER


# ── Who may what ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("alice", [Role.ANNOTATOR]),
        ("carol", [Role.ANNOTATOR, Role.REVIEWER, Role.MANAGER]),
        ("admin", [Role.ANNOTATOR, Role.REVIEWER, Role.MANAGER]),
        ("oscar", []),
    ],
)
def test_a_role_includes_those_above_it_and_an_outsider_has_none(
    project: Project, request: pytest.FixtureRequest, name: str, roles: list[Role]
):
    user = request.getfixturevalue(name)
    assert [role for role in Role if access.may(user, project, role)] == roles
    assert list(access.projects_for(user)) == ([project] if roles else [])


def test_a_reviewer_is_no_manager(project: Project, oscar: User):
    add_member(project=project, user=oscar, role=Role.REVIEWER)
    assert [role for role in Role if access.may(oscar, project, role)] == [Role.ANNOTATOR, Role.REVIEWER]


def test_who_is_not_signed_in_or_no_longer_active_may_nothing(project: Project, carol: User, admin: User):
    nobody = AnonymousUser()
    assert not access.may(nobody, project, Role.ANNOTATOR)
    assert access.membership_of(nobody, project) is None
    assert not access.projects_for(nobody).exists()
    for user in (carol, admin):
        user.is_active = False
        assert not access.may(user, project, Role.ANNOTATOR)


# ── Progress ──────────────────────────────────────────────────────────────────────────


def test_progress_counts_what_one_person_can_judge(project: Project, alice: User, bob: User):
    for _ in range(4):
        factories.make_comparison(project)
    other_round = factories.make_comparison(project, round_number=2)
    factories.make_judgment(other_round, bob)

    def of(user: User) -> Progress:
        return access.progress_of(project, user, 1)

    assert of(alice) == Progress(done=0, total=4)
    held = assign_next(project=project, annotator=alice)
    assert held is not None
    assert of(alice) == Progress(done=0, total=4)
    assert of(bob) == Progress(done=0, total=3)  # Alice holds one, whose only place is hers
    skip_assignment(assignment=held, annotator=alice, reason="")
    assert of(alice) == Progress(done=0, total=3)
    assert of(bob) == Progress(done=0, total=4)
    factories.make_judgment(held.comparison, bob)
    assert of(bob) == Progress(done=1, total=4)
    assert access.progress_of(project, bob, 2) == Progress(done=1, total=1)


def test_progress_with_overlap_counts_what_others_did_too(project: Project, alice: User, bob: User):
    project.overlap = 2
    project.save()
    comparisons = [factories.make_comparison(project) for _ in range(3)]
    factories.make_judgment(comparisons[0], alice)
    assert access.progress_of(project, alice, 1) == Progress(done=1, total=3)
    assert access.progress_of(project, bob, 1) == Progress(done=0, total=3)


def test_the_current_round_is_the_newest_with_comparisons(project: Project):
    assert access.current_round(project) == 1
    factories.make_comparison(project, round_number=3)
    factories.make_comparison(project, round_number=2)
    assert access.current_round(project) == 3


def test_the_last_submitted_is_ones_own_and_the_newest(project: Project, alice: User, bob: User):
    assert access.last_submitted(alice, project) is None
    factories.make_judgment(factories.make_comparison(project), alice)
    newest = factories.make_judgment(factories.make_comparison(project), alice)
    factories.make_judgment(factories.make_comparison(project), bob)
    assert access.last_submitted(alice, project) == newest.assignment


# ── Completions and comparisons ───────────────────────────────────────────────────────


def answers(*texts: str, first_seed: int | None = 1) -> list[NewCompletion]:
    return [
        NewCompletion(
            text=text,
            seed=None if first_seed is None else first_seed + number,
            sampling={"temperature": 0.7},
            finish_reason=FinishReason.STOP,
        )
        for number, text in enumerate(texts)
    ]


def test_recording_the_same_seeds_again_adds_nothing_and_keeps_the_first_texts(project: Project):
    prompt, source = factories.make_prompt(project), factories.make_source()
    first = record_completions(prompt=prompt, source=source, answers=answers("a", "b"))
    assert [completion.text for completion in first] == ["a", "b"]
    assert first[0].text_hash == text_hash("a")
    again = record_completions(prompt=prompt, source=source, answers=answers("c", "b", "new"))
    assert [completion.text for completion in again] == ["a", "b", "new"]
    assert [completion.pk for completion in again[:2]] == [completion.pk for completion in first]
    assert Completion.objects.count() == 3


def test_answers_without_a_seed_are_always_added_in_their_places(project: Project):
    prompt, source = factories.make_prompt(project), factories.make_source()
    mixed = [*answers("a", first_seed=None), *answers("b", first_seed=7), *answers("c", first_seed=None)]
    for _ in range(2):
        stored = record_completions(prompt=prompt, source=source, answers=mixed)
        assert [completion.text for completion in stored] == ["a", "b", "c"]
        assert all(completion.pk for completion in stored)
    assert Completion.objects.count() == 5


def test_nul_in_an_answer_becomes_the_replacement_character(project: Project):
    (stored,) = record_completions(
        prompt=factories.make_prompt(project), source=factories.make_source(), answers=answers("a\x00b")
    )
    assert stored.text == "a�b"
    assert stored.text_hash == text_hash("a�b")


def test_the_same_completions_in_the_same_round_are_one_comparison_whatever_their_order(project: Project):
    prompt = factories.make_prompt(project)
    a, b, c = factories.make_completions(prompt, ["a", "b", "c"])
    first = create_comparison(prompt=prompt, completions=[a, b], round_number=1, priority=5)
    assert create_comparison(prompt=prompt, completions=[b, a], round_number=1) == first
    assert create_comparison(prompt=prompt, completions=[a, b], round_number=2) != first
    assert create_comparison(prompt=prompt, completions=[a, b, c], round_number=1) != first
    first.refresh_from_db()
    assert (first.priority, first.size, first.overlap, first.open_slots) == (5, 2, 1, 1)
    assert [c.completion for c in first.candidates.order_by("index")] == [a, b]
    with pytest.raises(IntegrityError), transaction.atomic():
        Comparison.objects.create(
            project=project, prompt=prompt, size=2, completion_set=first.completion_set, round_number=1
        )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda mine, other: [],
        lambda mine, other: [mine, mine],
        lambda mine, other: [mine, other],
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(
    project: Project, wrong: Callable[[Completion, Completion], list[Completion]]
):
    prompt, elsewhere = factories.make_prompt(project, "a"), factories.make_prompt(project, "b")
    (mine,), (other,) = (factories.make_completions(p, ["x"]) for p in (prompt, elsewhere))
    with pytest.raises(Refusal) as refusal:
        create_comparison(prompt=prompt, completions=wrong(mine, other), round_number=1)
    assert refusal.value.field == "completions"
