"""The overview of a project and the home page: figures over time, cost, reward models, the next step."""

import uuid
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal

import pytest
from django.db import transaction
from django.http import QueryDict
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.agreement.estimate import Estimate
from annotation.agreement.records import Selection
from annotation.choices import Purpose, Verdict
from annotation.models import Comparison, Project, User
from annotation.selectors.tables.data import TABLES
from annotation.selectors.tables.table import View
from annotation.services.judgments.submission import (
    create_machine,
    judge_as_machine,
    lease_to_machine,
    record_vote,
)
from annotation.statistics.cached import report_of
from annotation.statistics.plots import Bar
from tests import factories
from tests.records import judgment_record
from training.choices import RoundState
from training.models import Checkpoint, Evaluation, Round
from training.selectors.dashboard import DAYS, Day, annotation_days, burn_up, dashboard_of
from training.selectors.lists import reward_accuracy, rounds_of_project
from training.selectors.rounds import material_of
from training.services.rounds.controls import open_first_round
from webapp.navigation.sections import entries

pytestmark = pytest.mark.django_db

SignIn = Callable[[User], Client]


def week(*counts: int) -> list[Day]:
    bar = Bar(value=0, x=0, y=0, width=0, height=0)
    return [Day(day=date(2026, 3, 1 + place), count=count, bar=bar) for place, count in enumerate(counts)]


def test_the_burn_up_ends_at_what_is_done_and_tells_when_the_target_is_reached():
    drawn = burn_up(week(0, 10, 10, 15), done=35, target=70)
    # Sums 0, 10, 20, 35 of 70 in a box of 300 × 72: heights 72, 61.7, 51.4 and 36.
    assert drawn.line == "M0,72L100,61.7L200,51.4L300,36"
    assert drawn.target == 0
    assert drawn.left == 35
    # 35 in four days are 8.75 a day: four more days after 4 March.
    assert drawn.reached_on == date(2026, 3, 8)


def test_the_burn_up_names_no_day_without_pace_and_none_once_the_target_is_reached():
    assert burn_up(week(5, *[0] * 7), done=5, target=10).reached_on is None
    reached = burn_up(week(5, 10), done=15, target=10)
    assert (reached.left, reached.reached_on, reached.target) == (0, None, 24)
    assert burn_up(week(1), done=1, target=0) is None


def test_annotations_are_counted_by_day_and_by_annotator_most_first(
    project: Project, alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
):
    now = timezone.now()
    for annotator, days_ago in ((alice, 0), (alice, 0), (alice, 2), (bob, 2), (bob, DAYS + 5)):
        moment = now - timedelta(days=days_ago)
        monkeypatch.setattr("django.utils.timezone.now", lambda moment=moment: moment)
        factories.make_judgment(factories.make_comparison(project), annotator)
    monkeypatch.setattr("django.utils.timezone.now", lambda: now)
    activity = annotation_days(project)
    assert [day.count for day in activity.days[-4:]] == [0, 2, 0, 2]
    assert activity.count == 4
    assert [(row.name, row.count) for row in activity.annotators] == [(str(alice), 3), (str(bob), 1)]
    assert activity.further_annotators == 0


def test_pages_that_count_the_same_annotations_show_one_number(
    project: Project, alice: User, bob: User, carol: User
):
    project.overlap = 2
    project.save()
    round_ = open_first_round(project=project, started_by=carol)
    comparisons = [factories.make_comparison(project, round_number=1) for _ in range(2)]
    for comparison in comparisons:
        factories.make_judgment(comparison, alice)

    def vote(comparison: Comparison, voter: User, *, blind: bool = True) -> None:
        shown = list(comparison.candidates.order_by("index").values_list("completion_id", flat=True))
        answer = judgment_record(verdict=Verdict.RANKED, ranks={shown[0]: 1, shown[1]: 2})
        with transaction.atomic():
            record_vote(
                comparison=comparison,
                voter=voter,
                shown=shown,
                answer=answer,
                idempotency_key=uuid.uuid4(),
                blind=blind,
            )

    full = factories.make_comparison(project, round_number=1)
    for annotator in (alice, bob):
        factories.make_judgment(full, annotator)
    # One more than was asked for: no place is free.
    vote(full, carol)
    vote(comparisons[1], bob, blind=False)
    gold, voted = (factories.make_comparison(project, round_number=1) for _ in range(2))
    factories.make_judgment(gold, alice)
    Comparison.objects.filter(pk=gold.pk).update(purpose=Purpose.GOLD, open_slots=0)
    Comparison.objects.filter(pk=voted.pk).update(purpose=Purpose.ARENA, open_slots=0)
    vote(Comparison.objects.get(pk=voted.pk), bob)
    machine = create_machine(name="Judge")
    leased = lease_to_machine(project=project, machine=machine, round_number=1)
    ranks = dict(zip(leased.display_order, (1, 2), strict=True))
    judged = judgment_record(verdict=Verdict.RANKED, ranks=ranks)
    judge_as_machine(assignment=leased, machine=machine, answer=judged, guideline=None)

    def listed(kind: str) -> int:
        return View(TABLES["annotations"], project, QueryDict(f"kind={kind}")).count

    stations = {station.icon: station for station in dashboard_of(project).stations}
    assert stations["pencil-line"].count == 5
    assert stations["pencil-line"].address.endswith("?kind=work")
    assert [row.annotations for row in rounds_of_project(project)] == [5]
    assert material_of(round_).judgments == 5
    kinds = {kind: listed(kind) for kind in ("work", "measuring", "ai", "arena", "unblinded")}
    assert kinds == {"work": 5, "measuring": 1, "ai": 1, "arena": 1, "unblinded": 1}
    assert listed("") == sum(kinds.values())
    # Those of people for the project, gold items too.
    assert annotation_days(project).count == report_of(project, Selection()).judgments == 7


def test_the_overview_of_a_second_round_keeps_the_projects_figures_and_names_the_rounds_own(
    labelled: Round, alice: User
):
    before = {station.label: station.count for station in dashboard_of(labelled.project).stations}
    Round.objects.update(state=RoundState.PROMOTED)
    second = Round.objects.get()
    second.pk, second.number, second.state = None, 2, RoundState.LABELLING
    second.save()
    comparisons = [factories.make_comparison(labelled.project, round_number=2) for _ in range(2)]
    factories.make_judgment(comparisons[0], alice)
    overview = dashboard_of(labelled.project)
    stations = {station.label: station.count for station in overview.stations}
    assert stations["Annotations"] == before["Annotations"] + 1
    assert stations["Comparisons"] == before["Comparisons"] + 2
    assert overview.burn_up.done == before["Annotations"] + 1
    assert overview.next_step.text.startswith("1 of 2 annotations of this round.")


def test_the_quality_part_tells_the_cost_where_a_wage_is_set(
    project: Project, alice: User, carol: User, client_of: SignIn
):
    factories.make_judgment(factories.make_comparison(project), alice, active_seconds=1800)
    address = reverse("dashboard-quality", args=[project.slug])
    assert "an hour" not in client_of(carol).get(address).content.decode()
    project.hourly_wage = Decimal("21.50")
    project.save()
    page = client_of(carol).get(address).content.decode()
    assert "10.75" in page
    assert "at 21.50 an hour" in page


@pytest.mark.usefixtures("quick_trainer")
def test_reward_models_stand_beside_the_human_ceiling(labelled: Round, carol: User, monkeypatch):
    from training.figures.held_out import HeldOutFigure
    from training.selectors import lists
    from training.selectors.lists import RunRow
    from training.services.rounds.controls import start_round
    from training.services.rounds.executor import advance_round

    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    headline = HeldOutFigure(title="accuracy", value=0.6, low=0.4, high=0.8)
    monkeypatch.setattr(
        lists,
        "run_rows",
        lambda runs: [RunRow(run=run, headline=headline) for run in runs],
    )
    report = report_of(labelled.project, Selection())
    agreed = [figure for figure in report.agreement if figure.key == "pair-percent"]
    accuracy = lists.reward_accuracy(labelled.project, report)
    assert [row.round_number for row in accuracy.rounds] == [1]
    mark = accuracy.rounds[0].mark
    assert (mark.low, mark.x, mark.high) == (40, 60, 80)
    # One annotator a comparison: nothing measures a ceiling, and the line is chance.
    assert agreed[0].estimate.value is None
    assert (accuracy.ceiling, mark.reference) == (None, 50)


def test_the_ceiling_is_where_people_agree(project: Project, alice: User, bob: User):
    project.overlap = 2
    project.save()

    for ranks in ((1, 2), (1, 2), (1, 2), (2, 1)):
        comparison = factories.make_comparison(project)
        factories.make_judgment(comparison, alice, (1, 2))
        factories.make_judgment(comparison, bob, ranks)
    accuracy = reward_accuracy(project, report_of(project, Selection()))
    assert isinstance(accuracy.ceiling, Estimate)
    assert accuracy.ceiling.value == pytest.approx(0.75)


def test_home_tells_managers_the_next_step_and_labellers_their_work(
    project: Project, alice: User, carol: User, client_of: SignIn
):
    factories.make_comparison(project)
    assert "Draft the first round" in client_of(carol).get("/").content.decode()
    assert "Draft the first round" not in client_of(alice).get("/").content.decode()


def test_home_shows_administrators_alone_what_is_unhealthy(
    admin: User, carol: User, project: Project, client_of: SignIn
):
    assert "?short=1" in client_of(admin).get("/").content.decode()
    assert "?short=1" not in client_of(carol).get("/").content.decode()
    short = client_of(admin).get(reverse("status"), {"short": 1}).content.decode()
    # No worker runs in tests: that stands first.
    assert "Needs attention" in short
    assert "<html" not in short


def test_the_sidebar_counts_the_newest_round_that_needs_a_person(labelled: Round, carol: User):
    def waiting() -> dict[str, str]:
        return {entry.name: entry.waiting for entry in entries(labelled.project, carol, "") if entry.waiting}

    assert waiting() == {}
    Round.objects.update(state=RoundState.FAILED)
    assert waiting() == {"rounds": "1"}
    newer = Round.objects.get()
    newer.pk, newer.number, newer.state = None, 2, RoundState.LABELLING
    newer.save()
    assert waiting() == {}


def test_the_list_of_rounds_and_the_overview_write_the_win_rate_with_its_interval(
    labelled: Round, carol: User, client_of: SignIn
):
    rate = {"value": 0.625, "low": 0.51, "high": 0.74, "prompts": 200}
    newer = Checkpoint.objects.get(pk=labelled.policy_id)
    newer.pk, newer.base, newer.name = None, None, "tea-new"
    newer.source = factories.make_source("tea-new")
    newer.save()
    Evaluation.objects.create(
        checkpoint=newer,
        parent=labelled.policy,
        round=labelled,
        digest="d" * 64,
        settings={},
        prompts=[],
        figures={"prompts": 200, "win_rate": rate},
        finished_at=timezone.now(),
    )
    # On the overview there is room for whole percents alone; 62.5 rounds to the even number.
    for name, shown, low in (("rounds", "62.5 %", "51.0 %"), ("dashboard", "62 %", "51 %")):
        page = client_of(carol).get(reverse(name, args=[labelled.project.slug])).content.decode()
        assert shown in page, name
        assert low in page, name


def test_the_loop_ends_at_the_checkpoint_that_answers(project: Project, carol: User, client_of: SignIn):
    factories.make_prompt(project)
    round_ = open_first_round(project=project, started_by=carol)
    page = client_of(carol).get(reverse("dashboard", args=[project.slug])).content.decode()
    assert round_.policy.name in page
