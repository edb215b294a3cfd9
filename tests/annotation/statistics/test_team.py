"""Who waits, who is blocked and by what, signs of pace, the forecast, and pay: figures by hand."""

import random
import uuid
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

from annotation.choices import Availability, PaceSign, PayBasis, Purpose, ReviewReason, WhyNothing
from annotation.models import (
    Assignment,
    AuditEntry,
    Judgment,
    Membership,
    Project,
    Review,
    ReviewReturn,
    User,
)
from annotation.selectors.eligibility import availability_of_annotators, why_nothing
from annotation.selectors.pay import pay_of
from annotation.statistics.compute import change_of
from annotation.statistics.forecast import HORIZON, NoForecast, days_needed, forecast_of
from tests import factories
from tests.annotation.statistics.statistics_scene import item, say
from tests.api.scene import Asker

pytestmark = pytest.mark.django_db
ClientOf = Callable[[User], Client]


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    """No test reads what another has computed."""
    cache.clear()


def found(project: Project, person: User) -> tuple[str, str | None]:
    project.refresh_from_db()
    row = availability_of_annotators(project)[person.pk]
    return row.availability, row.reason


# ── Who has work ──────────────────────────────────────────────────────────────────────


def test_an_annotator_waits_once_they_have_had_all_that_is_open(project: Project, alice: User, bob: User):
    comparison = item(project)
    assert found(project, alice) == (Availability.READY, None)
    say(comparison, alice, [1, 2])
    assert found(project, alice) == (Availability.WAITING, WhyNothing.NOTHING_LEFT)
    assert found(project, bob) == (Availability.READY, None)


def test_a_lease_in_hand_is_work(project: Project, alice: User):
    comparison = item(project)
    comparison.overlap = comparison.open_slots = 1
    comparison.save()
    factories.lease_to(comparison, alice)
    assert found(project, alice) == (Availability.READY, None)


def test_limits_of_the_day_and_in_all_block(project: Project, alice: User):
    item(project)
    say(item(project), alice, [1, 2])
    membership = Membership.objects.get(project=project, user=alice)
    membership.total_limit = 1
    membership.save()
    assert found(project, alice) == (Availability.BLOCKED, WhyNothing.TOTAL_REACHED)
    membership.total_limit, membership.daily_limit = 2, 1
    membership.save()
    assert found(project, alice) == (Availability.BLOCKED, WhyNothing.DAY_IS_FULL)
    Assignment.objects.filter(annotator=alice).update(closed_at=timezone.now() - timedelta(days=1))
    assert found(project, alice) == (Availability.READY, None)


def test_work_for_other_skills_blocks_and_work_reserved_for_others_does_not_count(
    project: Project, alice: User, bob: User
):
    prompt = factories.make_prompt(project, "A question of law", tags=["law"])
    comparison = item(project, prompt=prompt)
    project.allocation = [{"tag": "law", "skill": "lawyer"}]
    project.save()
    Membership.objects.filter(project=project, user=bob).update(skills=["lawyer"])
    assert found(project, alice) == (Availability.BLOCKED, WhyNothing.OTHER_SKILLS)
    assert found(project, bob) == (Availability.READY, None)
    Project.objects.update(allocation=[], has_reservations=True)
    comparison.reserved_for.add(bob)
    assert found(project, alice) == (Availability.WAITING, WhyNothing.NOTHING_LEFT)
    assert found(project, bob) == (Availability.READY, None)


def test_a_failed_qualification_blocks_and_one_in_progress_is_work(project: Project, alice: User):
    item(project)
    Project.objects.update(qualification_pass_share=1.0)
    items = [item(project, purpose=Purpose.QUALIFICATION, known=[1, 2]) for _ in range(2)]
    say(items[0], alice, [2, 1])
    assert found(project, alice) == (Availability.READY, None)
    say(items[1], alice, [1, 2])
    assert found(project, alice) == (Availability.BLOCKED, WhyNothing.NOT_QUALIFIED)


def test_a_returned_annotation_blocks(project: Project, alice: User, carol: User):
    item(project)
    judgment = say(item(project), alice, [1, 2])
    review = Review.objects.create(comparison=judgment.comparison, reason=ReviewReason.REQUESTED)
    ReviewReturn.objects.create(
        review=review,
        assignment=judgment.assignment,
        judgment=judgment,
        annotator=alice,
        returned_by=carol,
        comment="Look at the second one again.",
    )
    row = availability_of_annotators(project)[alice.pk]
    assert (row.availability, row.reason, row.returned) == (Availability.BLOCKED, None, 1)


def test_all_at_once_says_what_the_labelling_page_says_to_each(
    project: Project, alice: User, bob: User, carol: User
):
    people = [alice, bob, *(factories.make_user(f"person-{number}") for number in range(4))]
    generator = random.Random(3)
    project.allocation = [{"tag": "law", "skill": "lawyer"}]
    project.save()
    for number, person in enumerate(people):
        Membership.objects.update_or_create(
            project=project,
            user=person,
            defaults={
                "skills": ["lawyer"] if number % 2 else [],
                "total_limit": generator.choice([None, 3]),
                "daily_limit": generator.choice([None, 2]),
            },
        )
    for number in range(6):
        tags = ["law"] if number % 2 else []
        comparison = item(project, prompt=factories.make_prompt(project, f"Question {number}", tags=tags))
        for person in people:
            if generator.random() < 0.6 and (not tags or "lawyer" in person.memberships.get().skills):
                say(comparison, person, [1, 2])
    rows = availability_of_annotators(project)
    reasons = {person.pk: rows[person.pk].reason for person in people if rows[person.pk].reason}
    assert reasons
    assert reasons == {pk: why_nothing(project, User.objects.get(pk=pk)) for pk in reasons}


def test_the_availability_of_thirty_takes_as_many_queries_as_that_of_two(
    project: Project, alice: User, django_assert_max_num_queries
):
    item(project)
    for number in range(30):
        Membership.objects.create(project=project, user=factories.make_user(f"person-{number}"))
    with django_assert_max_num_queries(6):
        availability_of_annotators(project)


# ── Signs of pace ─────────────────────────────────────────────────────────────────────


def page_of(client: Client, project: Project):
    answer = client.get(reverse("annotators", args=[project.slug]))
    assert answer.status_code == 200
    return answer


def signs(client: Client, project: Project) -> dict[str, list[str]]:
    rows = page_of(client, project).context["page"].rows
    return {row.name: [shown.sign for shown in row.signs] for row in rows}


def test_who_answers_faster_than_one_can_read_and_who_is_slow_shows(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    dora = factories.make_user("dora")
    Membership.objects.create(project=project, user=dora)
    for _ in range(10):
        # 2 × 600 characters at 60 a second: 20 seconds.
        comparison = item(project, ["x" * 600, "y" * 600])
        for person, seconds in ((alice, 19), (bob, 20), (dora, 41)):
            say(comparison, person, [1, 2], active_seconds=seconds)
    # Dora: 41 is more than twice the median of 19 and 20. Bob needs just as long as reading takes.
    assert signs(client_of(carol), project) == {
        "alice": [PaceSign.FAST],
        "bob": [],
        "dora": [PaceSign.SLOW],
    }


def test_nothing_is_said_of_a_few_and_revisions_and_retests_do_not_count(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    long = ["x" * 600, "y" * 600]
    for _ in range(9):
        say(item(project, long), alice, [1, 2], active_seconds=1)
    say(item(project, long), alice, [1, 2], active_seconds=30)
    cache.clear()
    client = client_of(carol)
    assert signs(client, project)["alice"] == [PaceSign.FAST]
    other = factories.make_user("other")
    Membership.objects.create(project=project, user=other)
    for _ in range(12):
        first = say(item(project, long), other, [1, 2], active_seconds=60)
        say(first.comparison, other, [1, 2], again=first, active_seconds=1)
    cache.clear()
    assert signs(client, project)["other"] == []


def test_agreement_that_falls_is_a_drift(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    for number in range(60):
        comparison = item(project)
        say(comparison, bob, [1, 2])
        # She agrees with all of the first thirty and with ten of the next.
        say(comparison, alice, [1, 2] if number < 40 else [2, 1])
    person = page_of(client_of(carol), project).context["page"].report.people[0]
    # 10/30 − 30/30 = −2/3. Wilson of 30/30 is (0.8865, 1), of 10/30 (0.1923, 0.5122):
    # high = −0.6667 + √((0.5122 − 0.3333)² + (1 − 0.8865)²) = −0.4548
    assert person.agreement_change.value == pytest.approx(-2 / 3)
    assert person.agreement_change.high == pytest.approx(-0.4548, abs=5e-4)
    assert signs(client_of(carol), project)["alice"] == [PaceSign.DRIFTING]


def test_a_change_is_the_textbook_interval_of_newcombe():
    # Newcombe (1998), table II, example (a): 56/70 − 48/80 = 0.2, method 10: 0.0524 to 0.3339.
    # The newest of one length as those before are compared here, so the same formula at 56/80 and 48/80.
    shares = [1.0] * 48 + [0.0] * 32 + [1.0] * 56 + [0.0] * 24
    change = change_of(shares, recent=80)
    assert change.value == pytest.approx(0.1)
    # Wilson: 48/80 (0.4904, 0.7004), 56/80 (0.5923, 0.7892).
    assert change.low == pytest.approx(0.1 - ((0.7 - 0.5923) ** 2 + (0.7004 - 0.6) ** 2) ** 0.5, abs=2e-4)
    assert change.high == pytest.approx(0.1 + ((0.7892 - 0.7) ** 2 + (0.6 - 0.4904) ** 2) ** 0.5, abs=2e-4)
    assert change_of([1.0] * 159, recent=80).value is None


# ── Forecast ──────────────────────────────────────────────────────────────────────────


def test_a_steady_team_ends_on_one_day():
    # Ten a day: 40 take today and three days more; with four of them done today, the same.
    assert set(days_needed([10] * 14, 40)) == {3}
    assert set(days_needed([10] * 14, 36, done_today=4)) == {3}
    assert set(days_needed([10] * 14, 37, done_today=4)) == {4}


def test_weeks_keep_their_weekends():
    # Five days of ten and a free weekend, the last day yesterday: 50 are done after five days, every time.
    assert set(days_needed([10] * 5 * 1 + [0] * 2 + ([10] * 5 + [0] * 2) * 3, 51)) == {7}


def test_a_team_that_does_nothing_ends_beyond_the_horizon():
    assert set(days_needed([0] * 14, 1)) == {HORIZON}


@pytest.mark.parametrize("days", [14, 42])
def test_the_interval_holds_the_end_about_as_often_as_it_says(days: int):
    generator = random.Random(11)
    held = 0
    trials = 120
    for trial in range(trials):
        draw = lambda: generator.choice([0, 0, 5, 10, 20, 40])  # noqa: E731
        ends = sorted(days_needed([draw() for _ in range(days)], 400, draws=400, seed=trial))
        done, needed = 0, -1
        while done < 400:
            done += draw()
            needed += 1
        held += ends[10] <= needed <= ends[389]
    # 95 % is promised; a past of two weeks tells less of the rest than it seems to.
    assert 0.87 <= held / trials <= 1.0


def test_the_forecast_counts_what_is_open_and_says_when_it_knows_too_little(project: Project, alice: User):
    assert forecast_of(project).missing == NoForecast.NOTHING_OPEN
    open_one = item(project)
    cache.clear()
    assert forecast_of(project).missing == NoForecast.TOO_FEW
    for day in range(1, 8):
        judgment = say(item(project), alice, [1, 2])
        Assignment.objects.filter(pk=judgment.assignment_id).update(
            closed_at=timezone.now() - timedelta(days=day)
        )
    project.comparisons.exclude(pk=open_one.pk).update(open_slots=0)
    cache.clear()
    forecast = forecast_of(project)
    # One a day for a week; nine slots are open: today and eight days more.
    assert (forecast.remaining, forecast.days, forecast.per_day) == (9, 7, 1.0)
    assert forecast.missing is None
    end = timezone.localdate() + timedelta(days=8)
    assert (forecast.low, forecast.expected, forecast.high) == (end, end, end)


def test_imported_annotations_are_no_pace(project: Project, alice: User):
    item(project)
    for day in range(1, 9):
        judgment = say(item(project), alice, [1, 2], imported_from={"format": "jsonl"})
        Assignment.objects.filter(pk=judgment.assignment_id).update(
            closed_at=timezone.now() - timedelta(days=day)
        )
    assert forecast_of(project).missing == NoForecast.TOO_FEW


# ── Pay ───────────────────────────────────────────────────────────────────────────────


def amounts(project: Project, basis: PayBasis, days: int = 3) -> dict[str, tuple[int, int, Decimal | None]]:
    today = timezone.localdate()
    rows = pay_of(project, since=today - timedelta(days=days), until=today, basis=basis)
    return {row.user.username: (row.annotations, row.seconds, row.amount) for row in rows}


def test_pay_by_hour_and_by_annotation_with_own_rates(project: Project, alice: User, bob: User):
    project.hourly_wage, project.item_pay = Decimal("18.00"), Decimal("0.25")
    project.save()
    for days in (0, 1, 10):
        say(item(project), alice, [1, 2], active_seconds=500, days_ago=days)
    say(item(project), bob, [1, 2], active_seconds=90)
    say(item(project, purpose=Purpose.GOLD, known=[1, 2]), bob, [1, 2])
    Membership.objects.filter(user=bob).update(hourly_wage=Decimal("20.00"))
    # Alice: 1,000 s × 18 / 3,600 = 5.00; the day ten days ago is outside. Bob: 90 s × 20 / 3,600 = 0.50.
    assert amounts(project, PayBasis.HOUR) == {
        "alice": (2, 1000, Decimal("5.00")),
        "bob": (2, 90, Decimal("0.50")),
    }
    assert amounts(project, PayBasis.ITEM) == {
        "alice": (2, 1000, Decimal("0.50")),
        "bob": (2, 90, Decimal("0.50")),
    }


def test_a_revision_adds_time_and_no_annotation_and_imports_and_arenas_add_nothing(
    project: Project, alice: User
):
    project.hourly_wage = Decimal("36.00")
    project.save()
    first = say(item(project), alice, [1, 2], active_seconds=100)
    Judgment.objects.create(
        assignment=first.assignment,
        comparison=first.comparison,
        annotator=alice,
        verdict=first.verdict,
        active_seconds=50,
        idempotency_key=uuid.uuid4(),
        supersedes=first,
    )
    say(item(project), alice, [1, 2], active_seconds=7000, imported_from={"format": "jsonl"})
    say(item(project, purpose=Purpose.ARENA), alice, [1, 2], active_seconds=7000)
    # 150 s × 36 / 3,600 = 1.50
    assert amounts(project, PayBasis.HOUR)["alice"] == (1, 150, Decimal("1.50"))


def test_without_a_rate_there_is_no_amount_and_who_left_is_still_paid(
    project: Project, alice: User, carol: User
):
    say(item(project), alice, [1, 2], active_seconds=60)
    assert amounts(project, PayBasis.HOUR)["alice"] == (1, 60, None)
    Membership.objects.filter(user=alice).delete()
    Project.objects.update(item_pay=Decimal("0.10"))
    project.refresh_from_db()
    assert amounts(project, PayBasis.ITEM)["alice"] == (1, 60, Decimal("0.10"))


def test_the_page_and_its_file_hold_the_same_and_no_name_becomes_a_formula(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    User.objects.filter(pk=alice.pk).update(first_name="=1+1")
    project.hourly_wage = Decimal("18.00")
    project.save()
    say(item(project), alice, [1, 2], active_seconds=1000)
    client = client_of(carol)
    query = {"since": str(timezone.localdate()), "until": str(timezone.localdate()), "by": "hour"}
    answer = client.get(reverse("pay", args=[project.slug]), query)
    assert (answer.status_code, answer.context["total"]) == (200, Decimal("5.00"))
    link = f"{reverse('pay-file', args=[project.slug])}?{urlencode(query)}"
    assert link.replace("&", "&amp;") in answer.content.decode()
    lines = client.get(link).content.decode().splitlines()
    today = timezone.localdate()
    assert lines[0].startswith("username,name,since,until,annotations,measured,unmeasured,active_seconds")
    assert f"alice,'=1+1,{today},{today},1,1,0,1000,hour,18.00,5.00" in lines


def test_the_api_tells_who_waits_the_forecast_and_pay(project: Project, alice: User, carol: User):
    comparison = item(project)
    say(comparison, alice, [1, 2], active_seconds=100)
    Project.objects.update(item_pay=Decimal("0.30"))
    asker = Asker(carol)
    team = asker.get(f"/projects/{project.slug}/team/").json()
    assert team["annotators"][0] == {
        "annotator": "alice",
        "availability": "waiting",
        "reason": "nothing_left",
        "returned": 0,
    }
    assert (team["forecast"]["remaining"], team["forecast"]["missing"]) == (9, "too-few")
    today = timezone.localdate()
    paid = asker.get(f"/projects/{project.slug}/pay/?since={today}&until={today}&by=item").json()
    assert paid[0] == {
        "annotator": "alice",
        "annotations": 1,
        "measured": 1,
        "unmeasured": 0,
        "active_seconds": 100,
        "rate": 0.3,
        "amount": 0.3,
    }
    assert asker.get(f"/projects/{project.slug}/pay/?since={today}&until=1999-01-01").status_code == 422


@pytest.mark.parametrize(
    "query",
    [
        {"since": "2026-02-02", "until": "2026-02-01"},
        {"since": "0001-01-01", "until": "0001-01-02"},
        {"since": "2026-02-02", "until": "9999-12-31"},
        {"since": "yesterday"},
        {"by": "kilo"},
    ],
)
def test_a_period_that_is_none_is_refused(
    project: Project, carol: User, client_of: ClientOf, query: dict[str, str]
):
    for page in ("pay", "pay-file"):
        assert client_of(carol).get(reverse(page, args=[project.slug]), query).status_code == 422


def test_a_rate_of_ones_own_is_saved_and_logged_and_can_be_dropped(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    membership = Membership.objects.get(project=project, user=alice)
    address = reverse("pay-rate", args=[project.slug, membership.pk])
    client_of(carol).post(address, {"rate": "21.50", "by": "hour"})
    membership.refresh_from_db()
    assert (membership.hourly_wage, membership.item_pay) == (Decimal("21.50"), None)
    entry = AuditEntry.objects.get(action="member.hourly_wage")
    assert (entry.actor, entry.details) == (carol, {"from": None, "to": "21.50"})
    client_of(carol).post(address, {"rate": "-1", "by": "hour"})
    membership.refresh_from_db()
    assert membership.hourly_wage == Decimal("21.50")
    client_of(carol).post(address, {"rate": "", "by": "hour"})
    membership.refresh_from_db()
    assert membership.hourly_wage is None
