"""The order of a project's open comparisons: what is written, for which, and when."""

import json
import math
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import AcquisitionStrategy, Purpose, WithholdingState
from annotation.exchange.prompts import import_prompts
from annotation.models import (
    Comparison,
    Completion,
    CompletionScore,
    Project,
    User,
    Withholding,
)
from annotation.services.assignments import acquisition as service
from annotation.services.assignments.acquisition import score_new_comparison, score_open_comparisons
from annotation.services.assignments.next import assign_next
from annotation.services.texts import create_comparison
from tests import factories
from tests.annotation.judgments.answers import completions_of

pytestmark = pytest.mark.django_db
LOG_3 = math.log(3)  # σ(log 3) = 3/4
H_THREE_QUARTERS = 0.8112781244591328  # bits


def follow(project: Project, strategy: AcquisitionStrategy) -> Project:
    project.acquisition = strategy
    project.control_share = 0.0
    project.save()
    return project


def score(comparison: Comparison, *values: float, scorer: str = "reward-1") -> None:
    for completion, value in zip(completions_of(comparison), values, strict=True):
        CompletionScore.objects.create(completion=completion, scorer=scorer, value=value)


def value_of(comparison: Comparison) -> float:
    return Comparison.objects.values_list("acquisition_score", flat=True).get(pk=comparison.pk)


def test_by_uncertainty_the_closest_pair_comes_first_and_the_unknown_in_the_middle(
    project: Project, alice: User
):
    follow(project, AcquisitionStrategy.UNCERTAINTY)
    sure, unknown, even, between = (factories.make_comparison(project) for _ in range(4))
    score(sure, 10, -10)
    score(even, 1, 1)
    score(between, LOG_3, 0)
    assert score_open_comparisons(project=project) == 4
    assert value_of(even) == pytest.approx(1)
    assert value_of(between) == pytest.approx(H_THREE_QUARTERS)
    # The median of 0, 0.811 and 1.
    assert value_of(unknown) == pytest.approx(H_THREE_QUARTERS)
    assert value_of(sure) == pytest.approx(0, abs=1e-6)
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    assert assignment.comparison == even


def test_by_disagreement_members_of_two_minds_come_first(project: Project):
    follow(project, AcquisitionStrategy.DISAGREEMENT)
    agreed, disputed = (factories.make_comparison(project) for _ in range(2))
    for comparison, second in ((agreed, LOG_3), (disputed, -LOG_3)):
        score(comparison, LOG_3, 0)
        score(comparison, second, 0, scorer="reward-2")
    score_open_comparisons(project=project)
    assert value_of(agreed) == pytest.approx(0, abs=1e-12)
    assert value_of(disputed) == pytest.approx(1 / 16)


def test_a_member_that_scored_only_one_answer_does_not_count(project: Project):
    follow(project, AcquisitionStrategy.DISAGREEMENT)
    comparison = factories.make_comparison(project)
    score(comparison, LOG_3, 0)
    CompletionScore.objects.create(completion=completions_of(comparison)[0], scorer="half", value=99)
    score_open_comparisons(project=project)
    assert value_of(comparison) == 0


def test_by_chance_the_order_is_that_of_the_numbers_drawn(project: Project):
    follow(project, AcquisitionStrategy.RANDOM)
    comparisons = [factories.make_comparison(project) for _ in range(8)]
    for number, comparison in enumerate(comparisons):
        Comparison.objects.filter(pk=comparison.pk).update(shuffle=(number * 5) % 8 * 2**28)
    score_open_comparisons(project=project)
    scores = Comparison.objects.order_by("-acquisition_score").values_list("shuffle", flat=True)
    assert list(scores) == [number * 2**28 for number in range(7, -1, -1)]


def pair_of(project: Project, *sources: str) -> Comparison:
    prompt = factories.make_prompt(project, f"By {sources}, number {Comparison.objects.count()}?")
    completions: list[Completion] = []
    for number, name in enumerate(sources):
        completions += factories.make_completions(
            prompt, [f"answer {number}"], source=factories.make_source(name)
        )
    return create_comparison(prompt=prompt, completions=completions, round_number=1)


def test_by_d_optimality_the_models_that_were_compared_least_come_first(project: Project, alice: User):
    # Three pairs of old and middle were judged already; new met nobody yet.
    judged = [pair_of(project, "old", "middle") for _ in range(3)]
    for comparison in judged:
        factories.make_judgment(comparison, alice)
    follow(project, AcquisitionStrategy.D_OPTIMAL)
    again, first, within = (
        pair_of(project, *names) for names in (("old", "middle"), ("middle", "new"), ("new", "new"))
    )
    score_open_comparisons(project=project)
    assert value_of(first) > value_of(again) > value_of(within) == 0
    # Judged ones are not asked any more, and keep what they had.
    assert [value_of(comparison) for comparison in judged] == [0, 0, 0]


def test_by_age_all_are_equal_again(project: Project):
    follow(project, AcquisitionStrategy.UNCERTAINTY)
    comparison = factories.make_comparison(project)
    score(comparison, 0, 0)
    score_open_comparisons(project=project)
    assert value_of(comparison) == 1
    follow(project, AcquisitionStrategy.AGE)
    assert score_open_comparisons(project=project) == 1
    assert value_of(comparison) == 0


def test_only_what_changed_is_written(project: Project, django_assert_max_num_queries):
    follow(project, AcquisitionStrategy.UNCERTAINTY)
    comparisons = [factories.make_comparison(project) for _ in range(6)]
    for comparison in comparisons:
        score(comparison, 0, 0)
    assert score_open_comparisons(project=project) == 6
    with django_assert_max_num_queries(6):
        assert score_open_comparisons(project=project) == 0
    CompletionScore.objects.filter(completion=completions_of(comparisons[0])[0]).update(value=LOG_3)
    assert score_open_comparisons(project=project) == 1


def test_many_are_written_in_batches(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "_WRITTEN_AT_ONCE", 2)
    follow(project, AcquisitionStrategy.UNCERTAINTY)
    comparisons = [factories.make_comparison(project) for _ in range(5)]
    for comparison in comparisons:
        score(comparison, 0, 0)
    assert score_open_comparisons(project=project) == 5
    assert {value_of(comparison) for comparison in comparisons} == {1}


def test_older_rounds_gold_and_other_projects_are_left_alone(project: Project):
    follow(project, AcquisitionStrategy.UNCERTAINTY)
    other = factories.make_project(slug="coffee")
    older, gold, elsewhere = (
        factories.make_comparison(project),
        factories.make_comparison(project, round_number=2),
        factories.make_comparison(other, round_number=2),
    )
    Comparison.objects.filter(pk=gold.pk).update(purpose=Purpose.GOLD, open_slots=0)
    newest = factories.make_comparison(project, round_number=2)
    for comparison in (older, gold, elsewhere, newest):
        score(comparison, 0, 0)
    assert score_open_comparisons(project=project) == 1
    assert [value_of(item) for item in (older, gold, elsewhere, newest)] == [0, 0, 0, 1]


def test_what_someone_holds_or_a_manager_looks_at_may_come_back_and_is_scored(project: Project, alice: User):
    follow(project, AcquisitionStrategy.UNCERTAINTY)
    held, withheld = (factories.make_comparison(project) for _ in range(2))
    factories.lease_to(held, alice)
    Comparison.objects.filter(pk=withheld.pk).update(open_slots=0)
    Withholding.objects.create(
        comparison=withheld,
        completion=completions_of(withheld)[0],
        start=0,
        end=3,
        quote="Two",
        state=WithholdingState.PENDING,
    )
    for comparison in (held, withheld):
        score(comparison, 0, 0)
    assert score_open_comparisons(project=project) == 2


def test_a_new_comparison_has_its_place_at_once_where_that_is_known(project: Project):
    follow(project, AcquisitionStrategy.RANDOM)
    drawn = factories.make_comparison(project)
    assert value_of(drawn) == drawn.shuffle / 2**31
    follow(project, AcquisitionStrategy.UNCERTAINTY)
    unknown = factories.make_comparison(project)
    assert value_of(unknown) == 0
    score(unknown, 0, 0)
    score_new_comparison(comparison=unknown)
    assert value_of(unknown) == 1


def test_by_age_a_new_comparison_asks_the_database_nothing(project: Project, django_assert_num_queries):
    comparison = factories.make_comparison(project)
    assert comparison.project.acquisition == AcquisitionStrategy.AGE
    with django_assert_num_queries(0):
        score_new_comparison(comparison=comparison)


def test_imported_comparisons_have_their_places(project: Project):
    follow(project, AcquisitionStrategy.RANDOM)
    lines = [
        json.dumps(
            {
                "prompt": f"Question {number}?",
                "completions": [{"text": "Yes."}, {"text": "No."}],
            }
        )
        for number in range(3)
    ]
    import_prompts(project=project, lines=lines, name="tasks.jsonl")
    rows = list(Comparison.objects.values_list("acquisition_score", "shuffle"))
    assert len(rows) == 3
    assert all(value == pytest.approx(shuffle / 2**31) for value, shuffle in rows)


@pytest.mark.django_db(transaction=True)
def test_a_change_of_strategy_in_the_admin_puts_all_in_order(
    project: Project, admin: User, client_of: Callable[[User], Client]
):
    comparison = factories.make_comparison(project)
    score(comparison, 0, 0)
    client = client_of(admin)
    address = reverse("admin:annotation_project_change", args=[project.pk])
    form = client.get(address).context["adminform"].form
    data = {name: form[name].value() for name in form.fields}
    data |= {"acquisition": "uncertainty", "daily_limit": "", "qualification_pass_share": ""}
    for prefix in ("categories", "criteria", "memberships", "guidelines"):
        data |= {f"{prefix}-TOTAL_FORMS": 0, f"{prefix}-INITIAL_FORMS": 0}
    sent = {name: value for name, value in data.items() if value is not None and value is not False}
    answer = client.post(address, sent)
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    assert value_of(comparison) == 1
